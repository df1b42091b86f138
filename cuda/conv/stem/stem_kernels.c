/* cuda/conv/stem/stem_kernels.c: kernel table of the space-to-depth stem in f16 and bf16: forward with max-pooling and
 * filter gradients (cuda/common/fused_conv.h). The plain forward convolution is in
 * cuda/conv/fused/fused_conv_kernels.c. */
#include "cuda/common/fused_conv.h"
#include "cuda/core/family_kernels.h"
#include "cuda/core/kernel_tables.h"

/* filter: w or dw. */
static bool is_stem(const struct cr_op *op, const struct cr_tensor *x, const struct cr_tensor *filter) {
    return op->attr.conv.stride == 1 && op->attr.conv.pad == 0 && x->dim[3] == CK_STEM_CHANNELS &&
           filter->dim[1] == CK_STEM_SIDE && filter->dim[2] == CK_STEM_SIDE;
}

/* ---- forward with max-pooling ---- */

static bool pool_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_pool_x), *w = cuda_in(p, op, CR_IN_conv_pool_w);
    *(struct ck_stem_pool *)to = (struct ck_stem_pool){.type = cuda_type(x),
                                                       .N    = x->dim[0],
                                                       .H    = x->dim[1],
                                                       .W    = x->dim[2],
                                                       .K    = w->dim[0],
                                                       .x    = cuda_data_in(call, CR_IN_conv_pool_x),
                                                       .w    = cuda_data_in(call, CR_IN_conv_pool_w),
                                                       .bias = cuda_data_in(call, CR_IN_conv_pool_bias),
                                                       .y    = cuda_data_out(call, CR_OUT_conv_pool_y)};
    return is_stem(op, x, w);
}
CUDA_FAMILY_KERNEL(stem_pool, stem_pool, ck_stem_pool, pool_args)

/* ---- filter gradient: conv_wgrad, or a conv_grad whose dx is not used ---- */

static struct ck_stem_grad grad_of(const struct cr_op *op, const struct cr_tensor *x, const struct cr_tensor *dy) {
    return (struct ck_stem_grad){.type       = cuda_type(x),
                                 .N          = x->dim[0],
                                 .H          = x->dim[1],
                                 .W          = x->dim[2],
                                 .K          = dy->dim[3],
                                 .accumulate = op->attr.conv.accumulate,
                                 .config     = op->algo};
}

static bool wgrad_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x  = cuda_in(p, op, CR_IN_conv_wgrad_x);
    struct ck_stem_grad     a  = grad_of(op, x, cuda_in(p, op, CR_IN_conv_wgrad_dy));
    a.x                        = cuda_data_in(call, CR_IN_conv_wgrad_x);
    a.g                        = cuda_data_in(call, CR_IN_conv_wgrad_dy);
    a.dw                       = cuda_data_out(call, CR_OUT_conv_wgrad_dw);
    *(struct ck_stem_grad *)to = a;
    return is_stem(op, x, cuda_out(p, op, CR_OUT_conv_wgrad_dw));
}
CUDA_FAMILY_KERNEL(stem_wgrad, stem_grad, ck_stem_grad, wgrad_args)

static bool grad_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_grad_x), *dy_x = cuda_in(p, op, CR_IN_conv_grad_dy_x);
    struct ck_stem_grad     a  = grad_of(op, x, cuda_in(p, op, CR_IN_conv_grad_g));
    a.has_dy_x                 = dy_x != NULL;
    a.x                        = cuda_data_in(call, CR_IN_conv_grad_x);
    a.g                        = cuda_data_in(call, CR_IN_conv_grad_g);
    a.dy_x                     = cuda_data_in(call, CR_IN_conv_grad_dy_x);
    a.dy_coeffs                = cuda_data_in(call, CR_IN_conv_grad_dy_coeffs);
    a.dw                       = cuda_data_out(call, CR_OUT_conv_grad_dw);
    *(struct ck_stem_grad *)to = a;
    return op->out[CR_OUT_conv_grad_dw] >= 0 && is_stem(op, x, cuda_out(p, op, CR_OUT_conv_grad_dw)) &&
           (dy_x != NULL) == (cuda_in(p, op, CR_IN_conv_grad_dy_coeffs) != NULL);
}
CUDA_FAMILY_KERNEL(stem_grad, stem_grad, ck_stem_grad, grad_args)

/* ---- filter gradient with the gradient of pooling, ReLU and BN ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_pool_grad_##slot)

static bool pool_grad_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x = IN(x);
    *(struct ck_stem_pool_grad *)to =
        (struct ck_stem_pool_grad){.type       = cuda_type(x),
                                   .N          = x->dim[0],
                                   .H          = x->dim[1],
                                   .W          = x->dim[2],
                                   .K          = IN(y)->dim[3],
                                   .accumulate = op->attr.conv.accumulate,
                                   .x          = cuda_data_in(call, CR_IN_conv_pool_grad_x),
                                   .g          = cuda_data_in(call, CR_IN_conv_pool_grad_dy),
                                   .y          = cuda_data_in(call, CR_IN_conv_pool_grad_y),
                                   .index      = cuda_data_in(call, CR_IN_conv_pool_grad_index),
                                   .coeffs     = cuda_data_in(call, CR_IN_conv_pool_grad_coeffs),
                                   .scale_bias = cuda_data_in(call, CR_IN_conv_pool_grad_scale_bias),
                                   .dw         = cuda_data_out(call, CR_OUT_conv_pool_grad_dw)};
    return is_stem(op, x, cuda_out(p, op, CR_OUT_conv_pool_grad_dw)) && cuda_is_f32(IN(scale_bias));
}
CUDA_FAMILY_KERNEL(stem_pool_grad, stem_pool_grad, ck_stem_pool_grad, pool_grad_args)

/* ---- the kernels ---- */

const struct cr_kernel cr_cuda_stem_kernels[] = {
    {CUDA_HALF_KERNEL("stem_pool", conv_pool), CUDA_FAMILY(stem_pool)},
    {CUDA_HALF_KERNEL("stem_wgrad", conv_wgrad), CUDA_FAMILY(stem_wgrad)},
    {CUDA_HALF_KERNEL("stem_grad", conv_grad),
     .optional_in  = CR_IN_BIT(conv_grad, dy_x) | CR_IN_BIT(conv_grad, dy_coeffs),
     .optional_out = CR_OUT_BIT(conv_grad, dw), CUDA_FAMILY(stem_grad)},
    {CUDA_HALF_KERNEL("stem_pool_grad", conv_pool_grad), CUDA_FAMILY(stem_pool_grad)},
    {0}};
