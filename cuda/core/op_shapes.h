/* cuda/core/op_shapes.h: helpers of the kernel tables (*_kernels.c): tensors and shapes of an op, as they are passed to
 * launchers. And what one kernel table offers to others. */
#ifndef CR_CUDA_OP_SHAPES_H
#define CR_CUDA_OP_SHAPES_H

#include "cuda/common/launchers.h"
#include "device/kernel.h"

static inline const struct cr_tensor *cuda_in(const struct cr_program *p, const struct cr_op *op, int slot) {
    return op->in[slot] >= 0 ? &p->tensor[op->in[slot]] : NULL;
}
static inline const struct cr_tensor *cuda_out(const struct cr_program *p, const struct cr_op *op, int slot) {
    return op->out[slot] >= 0 ? &p->tensor[op->out[slot]] : NULL;
}
/* Returns whether the tensor has a type that cresnet's own kernels accept for data. */
static inline bool cuda_is_data(const struct cr_tensor *t) {
    return t && (t->dtype == CR_F32 || t->dtype == CR_F16 || t->dtype == CR_BF16);
}
static inline enum ck_type cuda_type(const struct cr_tensor *t) {
    return t->dtype == CR_F16 ? CK_F16 : t->dtype == CR_BF16 ? CK_BF16 : CK_F32;
}
/* Number of pixels of an image tensor: elements of all dimensions but the last. */
static inline int64_t cuda_pixels(const struct cr_tensor *t) {
    return t->dim[0] * t->dim[1] * t->dim[2];
}
/* Returns whether 32 bits can index the elements of an image. */
static inline bool cuda_fits_ints(const struct cr_tensor *t) {
    return t->dim[1] <= INT32_MAX / t->dim[2] && t->dim[1] * t->dim[2] <= INT32_MAX / t->dim[3];
}

/* Grouped convolutions have the slots of the plain ones at the same positions, so that one function reads both. */
_Static_assert((int)CR_IN_group_conv_w == (int)CR_IN_conv_w &&
                   (int)CR_IN_group_conv_dgrad_w == (int)CR_IN_conv_dgrad_w &&
                   (int)CR_IN_group_conv_wgrad_dy == (int)CR_IN_conv_wgrad_dy,
               "grouped convolutions must have the slots of plain ones");

/* Shape of a convolution, from x, w and y of its forward form. Each of them may be the gradient instead. */
static inline struct ck_conv cuda_conv_shape(const struct cr_op *op, const struct cr_tensor *x,
                                             const struct cr_tensor *w, const struct cr_tensor *y) {
    return (struct ck_conv){.type   = cuda_type(x),
                            .R      = (int)w->dim[1],
                            .S      = (int)w->dim[2],
                            .stride = op->attr.conv.stride,
                            .pad    = op->attr.conv.pad,
                            .N      = x->dim[0],
                            .H      = x->dim[1],
                            .W      = x->dim[2],
                            .C      = x->dim[3],
                            .K      = y->dim[3],
                            .P      = y->dim[1],
                            .Q      = y->dim[2]};
}

/* Windows of a pooling or of the padded shortcut, from the large image x and the small image y of its forward form.
 * Each of them may be the gradient instead. */
static inline struct ck_window cuda_window(const struct cr_op *op, const struct cr_tensor *x,
                                           const struct cr_tensor *y) {
    const struct cr_conv_attr *a        = &op->attr.conv;
    const bool                 shortcut = op->kind == CR_OP_pad_shortcut || op->kind == CR_OP_pad_shortcut_grad;
    return (struct ck_window){.N      = x->dim[0],
                              .H      = x->dim[1],
                              .W      = x->dim[2],
                              .C      = x->dim[3],
                              .P      = y->dim[1],
                              .Q      = y->dim[2],
                              .K      = y->dim[3],
                              .window = a->window,
                              .stride = a->stride,
                              .pad    = shortcut ? a->pad_c : a->pad};
}

/* All optional slots of a conv_dgrad. */
#define CUDA_DGRAD_SLOTS                                                                                               \
    .optional_in = CR_IN_BIT(conv_dgrad, add) | CR_IN_BIT(conv_dgrad, bn_x) | CR_IN_BIT(conv_dgrad, mean_rstd) |       \
                   CR_IN_BIT(conv_dgrad, gamma) | CR_IN_BIT(conv_dgrad, beta),                                         \
    .optional_out = CR_OUT_BIT(conv_dgrad, grad_sums)

/* cuda/elementwise/pointwise_kernels.c: whether 32 bits can index the elements of an image of the first input and of
 * the first output. */
bool cr_cuda_window_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op);
/* cuda/sparse/sparse_kernels.c: the convolution of a conv or sparse_filter op with a sparsity pattern. */
struct ck_conv cuda_sparse_conv_shape(const struct cr_program *program, const struct cr_op *op);
/* cuda/norm/bn_kernels.c: the arguments of a bn_finalize or a bn_grad_finalize, which may be a part of a fused op. */
struct ck_bn_finalize      cr_cuda_bn_finalize_args(const struct cr_call *call);
struct ck_bn_grad_finalize cr_cuda_bn_grad_finalize_args(const struct cr_call *call);
/* cuda/norm/bn_kernels.c: the ReLU mask and BN gradient sums of a conv_dgrad that runs as a second kernel behind the
 * convolution (ck_bn_relu_grad). The first function returns the bytes of workspace, 0 when the op has no ReLU mask. The
 * second runs the kernel with the workspace that starts at byte relu_mask_at of the op's workspace. */
size_t    cr_cuda_bn_relu_grad_workspace(const struct cr_device *device, const struct cr_program *program,
                                         const struct cr_op *op);
cr_status cr_cuda_bn_relu_grad(struct cr_device *device, const struct cr_call *call, size_t relu_mask_at);

#endif
