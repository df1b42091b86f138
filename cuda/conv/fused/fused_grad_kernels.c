/* cuda/conv/fused/fused_grad_kernels.c: kernel table, in f16 and bf16, of the whole backward of 1x1 convolutions with
 * stride 1 (cuda/common/fused_conv.h), and of the kernels over all pixels for BN statistics from Gram matrices, for 1x1
 * convolutions of any stride (cuda/conv/gram/gram.h). */
#include "cuda/common/fused_conv.h"
#include "cuda/conv/gram/gram.h"
#include "cuda/core/family_kernels.h"
#include "cuda/core/kernel_tables.h"

/* ---- backward of a 1x1 convolution ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_grad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_grad_##slot)

/* With y, which must be x, there is no BN in front, and bn_x is x. */
static bool is_point_grad(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_conv_attr *a = &op->attr.conv;
    if (!cuda_is_f32(IN(scale_bias))) return false;
    if (a->stride != 1 || a->pad != 0 || a->add_pad_c || IN(w)->dim[1] != 1 || IN(w)->dim[2] != 1) return false;
    if (!OUT(dx) || !OUT(dw) || (IN(mean_rstd) != NULL) != (OUT(grad_sums) != NULL) || (IN(bn_x) && !IN(mean_rstd)))
        return false;
    return !IN(y) || (op->in[CR_IN_conv_grad_y] == op->in[CR_IN_conv_grad_x] && !IN(mean_rstd) && !IN(scale_bias));
}

static bool point_grad_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    *(struct ck_point_grad *)to = (struct ck_point_grad){.type           = cuda_type(IN(x)),
                                                         .pixels         = cuda_pixels(IN(x)),
                                                         .C              = IN(x)->dim[3],
                                                         .K              = IN(g)->dim[3],
                                                         .config         = op->algo,
                                                         .accumulate     = op->attr.conv.accumulate,
                                                         .has_dy_x       = IN(dy_x) && IN(dy_coeffs),
                                                         .has_scale_bias = IN(scale_bias) != NULL,
                                                         .has_mean_rstd  = IN(mean_rstd) != NULL,
                                                         .has_add        = IN(add) != NULL,
                                                         .has_bn_x       = IN(bn_x) || IN(y),
                                                         .g              = cuda_data_in(call, CR_IN_conv_grad_g),
                                                         .dy_x           = cuda_data_in(call, CR_IN_conv_grad_dy_x),
                                                         .dy_coeffs  = cuda_data_in(call, CR_IN_conv_grad_dy_coeffs),
                                                         .w          = cuda_data_in(call, CR_IN_conv_grad_w),
                                                         .x          = cuda_data_in(call, CR_IN_conv_grad_x),
                                                         .add        = cuda_data_in(call, CR_IN_conv_grad_add),
                                                         .bn_x       = cuda_data_in(call, CR_IN_conv_grad_bn_x),
                                                         .scale_bias = cuda_data_in(call, CR_IN_conv_grad_scale_bias),
                                                         .mean_rstd  = cuda_data_in(call, CR_IN_conv_grad_mean_rstd),
                                                         .dx         = cuda_data_out(call, CR_OUT_conv_grad_dx),
                                                         .dw         = cuda_data_out(call, CR_OUT_conv_grad_dw),
                                                         .grad_sums  = cuda_data_out(call, CR_OUT_conv_grad_grad_sums)};
    return is_point_grad(p, op);
}
CUDA_FAMILY_KERNEL(point_grad, point_grad, ck_point_grad, point_grad_args)

#undef IN
#undef OUT

/* ---- Gram matrix ---- */

static bool gram_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x    = cuda_in(p, op, CR_IN_gram_x);
    *(struct ck_gram_matrix *)to = (struct ck_gram_matrix){.type       = cuda_type(x),
                                                           .N          = x->dim[0],
                                                           .H          = x->dim[1],
                                                           .W          = x->dim[2],
                                                           .C          = x->dim[3],
                                                           .stride     = op->attr.conv.stride,
                                                           .x          = cuda_data_in(call, CR_IN_gram_x),
                                                           .scale_bias = cuda_data_in(call, CR_IN_gram_scale_bias),
                                                           .gram       = cuda_data_out(call, CR_OUT_gram_gram)};
    return op->attr.conv.pad == 0 && cuda_is_f32(cuda_in(p, op, CR_IN_gram_scale_bias));
}
CUDA_FAMILY_KERNEL(gram, gram, ck_gram_matrix, gram_args)
CUDA_FAMILY_KERNEL(gram_wgmma, gram_wgmma, ck_gram_matrix, gram_args)

/* ---- product of the gradient and the input ---- */

static bool wgrad_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_wgrad_x), *dw = cuda_out(p, op, CR_OUT_conv_wgrad_dw);
    *(struct ck_gram_product *)to =
        (struct ck_gram_product){.type       = cuda_type(x),
                                 .N          = x->dim[0],
                                 .H          = x->dim[1],
                                 .W          = x->dim[2],
                                 .C          = x->dim[3],
                                 .K          = dw->dim[0],
                                 .stride     = op->attr.conv.stride,
                                 .x          = cuda_data_in(call, CR_IN_conv_wgrad_x),
                                 .dy         = cuda_data_in(call, CR_IN_conv_wgrad_dy),
                                 .scale_bias = cuda_data_in(call, CR_IN_conv_wgrad_scale_bias),
                                 .dw         = cuda_data_out(call, CR_OUT_conv_wgrad_dw),
                                 .dy_sums    = cuda_data_out(call, CR_OUT_conv_wgrad_dy_sums)};
    return op->out[CR_OUT_conv_wgrad_dy_sums] >= 0 && !op->attr.conv.accumulate && op->attr.conv.pad == 0 &&
           dw->dim[1] == 1 && dw->dim[2] == 1 && cuda_is_f32(cuda_in(p, op, CR_IN_conv_wgrad_scale_bias));
}
CUDA_FAMILY_KERNEL(wgrad, gram_product, ck_gram_product, wgrad_args)
CUDA_FAMILY_KERNEL(wgrad_wgmma, gram_product_wgmma, ck_gram_product, wgrad_args)

/* ---- the kernels ---- */

#define WGRAD_SLOTS .optional_in = CR_IN_BIT(conv_wgrad, scale_bias), .optional_out = CR_OUT_BIT(conv_wgrad, dy_sums)

const struct cr_kernel cr_cuda_fused_grad_kernels[] = {
    {CUDA_HALF_KERNEL("point_grad", conv_grad),
     .optional_in = CR_IN_BIT(conv_grad, dy_x) | CR_IN_BIT(conv_grad, dy_coeffs) | CR_IN_BIT(conv_grad, scale_bias) |
                    CR_IN_BIT(conv_grad, mean_rstd) | CR_IN_BIT(conv_grad, add) | CR_IN_BIT(conv_grad, bn_x) |
                    CR_IN_BIT(conv_grad, y),
     .optional_out = CR_OUT_BIT(conv_grad, dx) | CR_OUT_BIT(conv_grad, dw) | CR_OUT_BIT(conv_grad, grad_sums),
     CUDA_FAMILY(point_grad)},
    {CUDA_HALF_KERNEL("gram.gram", gram), .optional_in = CR_IN_BIT(gram, scale_bias), CUDA_FAMILY(gram)},
    {CUDA_HALF_KERNEL("gram_wgmma.gram", gram), .optional_in = CR_IN_BIT(gram, scale_bias), CUDA_FAMILY(gram_wgmma)},
    {CUDA_HALF_KERNEL("gram.wgrad", conv_wgrad), WGRAD_SLOTS, CUDA_FAMILY(wgrad)},
    {CUDA_HALF_KERNEL("gram_wgmma.wgrad", conv_wgrad), WGRAD_SLOTS, CUDA_FAMILY(wgrad_wgmma)},
    {0}};
