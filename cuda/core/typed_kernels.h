/* cuda/core/typed_kernels.h: macros of kernel tables with a kernel for f16 and one for bf16. Their functions call the
 * program `p` and the op `op`. */
#ifndef CR_CUDA_TYPED_KERNELS_H
#define CR_CUDA_TYPED_KERNELS_H

#include "cuda/core/cuda_device.h"
#include "cuda/core/op_shapes.h"

#define IN(kind, slot) cuda_in(p, op, CR_IN_##kind##_##slot)
#define OUT(kind, slot) cuda_out(p, op, CR_OUT_##kind##_##slot)
#define IN_BIT(kind, slot) (1u << CR_IN_##kind##_##slot)
#define OUT_BIT(kind, slot) (1u << CR_OUT_##kind##_##slot)

/* Makes the accepts functions of both types. */
#define BOTH_TYPES(name)                                                                                               \
    static bool name##_accepts_f16(const struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {    \
        return name##_accepts(d, p, op, CR_F16);                                                                       \
    }                                                                                                                  \
    static bool name##_accepts_bf16(const struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {   \
        return name##_accepts(d, p, op, CR_BF16);                                                                      \
    }

/* `prepared` is NULL, but a kernel with `prepare` also has `release`. */
static inline void nothing_to_release(void *prepared) {
    (void)prepared;
}

#endif
