/* cuda/core/family_kernels.h: kernels of the kernel table whose host half is a family of convolutions
 * (cuda/common/conv_family.h).
 *
 *     static bool conv_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to);
 *     CUDA_FAMILY_KERNEL(stem, stem, ck_fused_conv, conv_args)
 *     ... = {{CUDA_HALF_KERNEL("stem", conv), ..., CUDA_FAMILY(stem)}, ...} */
#ifndef CR_CUDA_FAMILY_KERNELS_H
#define CR_CUDA_FAMILY_KERNELS_H

#include "cuda/common/conv_family.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/op_shapes.h"

enum { CUDA_FAMILY_ARGS_BYTES = 512 };

struct cuda_family_kernel {
    /* Sets the arguments of the op, `call` being NULL: the pointers too when it is launched. Returns false when no
     * family supports the op. */
    bool (*args)(const struct cr_program *program, const struct cr_op *op, const struct cr_call *call, void *to);
    size_t family; /* offset in struct ck_conv_families */
};

/* The functions of struct cr_kernel. */
int    cuda_family_configs(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                           const struct cuda_family_kernel *kernel);
size_t cuda_family_workspace(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                             const struct cuda_family_kernel *kernel);
cr_status cuda_family_launch(struct cr_device *device, const struct cr_call *call,
                             const struct cuda_family_kernel *kernel);

/* Makes the functions of a kernel. args_type: the family's arguments, which args_function sets. */
#define CUDA_FAMILY_KERNEL(name, family_name, args_type, args_function)                                                \
    _Static_assert(sizeof(struct args_type) <= CUDA_FAMILY_ARGS_BYTES, "arguments of a family");                       \
    static const struct cuda_family_kernel name##_family = {args_function,                                             \
                                                            offsetof(struct ck_conv_families, family_name)};           \
    static bool name##_accepts(const struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {        \
        return cuda_family_configs(d, p, op, &name##_family) > 0;                                                      \
    }                                                                                                                  \
    static int name##_configs(struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {               \
        return cuda_family_configs(d, p, op, &name##_family);                                                          \
    }                                                                                                                  \
    static size_t name##_workspace(const struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {    \
        return cuda_family_workspace(d, p, op, &name##_family);                                                        \
    }                                                                                                                  \
    static cr_status name##_launch(struct cr_device *d, const struct cr_call *call) {                                  \
        return cuda_family_launch(d, call, &name##_family);                                                            \
    }
#define CUDA_FAMILY(name)                                                                                              \
    .accepts = name##_accepts, .algo_count = name##_configs, .workspace = name##_workspace, .launch = name##_launch

/* The first members of a kernel for f16 and one for bf16. */
#define CUDA_HALF_KERNEL(name, kind) CR_KERNEL("cuda." name ".*", kind, CR_MATH_DATA), .dtypes = CR_TYPES_HALF

/* Of a slot whose type graph/ops.def leaves open. */
static inline bool cuda_is_f32(const struct cr_tensor *t) {
    return !t || t->dtype == CR_F32;
}
/* Data of a slot in `args`: NULL before the launch. */
static inline const void *cuda_data_in(const struct cr_call *call, int slot) {
    return call ? call->in[slot] : NULL;
}
static inline void *cuda_data_out(const struct cr_call *call, int slot) {
    return call ? call->out[slot] : NULL;
}

#endif
