/* device/cpu/tuned/all_reduce.c: the kernel shm.all_reduce. */
#include "device/cpu/simd.h"

/* The function of the reference kernel, under a name that says how the sum is computed. */
const struct cr_kernel cr_shm_all_reduce = {.name          = "shm.all_reduce",
                                            .op            = CR_OP_all_reduce,
                                            .math          = CR_MATH_EXACT,
                                            .deterministic = true,
                                            .accepts       = cr_accepts_f32,
                                            .launch        = cr_ref_all_reduce};
