/* device/cpu/tuned/all_reduce.c: the kernel shm.all_reduce. */
#include "device/cpu/simd.h"

/* The function of the reference kernel, under a name that says how the sum is computed. */
const struct cr_kernel cr_shm_all_reduce = {CR_KERNEL("shm.all_reduce", all_reduce, CR_MATH_EXACT),
                                            .dtypes = CR_TYPES_F32, .launch = cr_ref_all_reduce};
