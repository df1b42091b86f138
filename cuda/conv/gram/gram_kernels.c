/* cuda/conv/gram/gram_kernels.c: kernel table of BN statistics from Gram matrices, f16 and bf16, compute capability 8.0
 * and later. Device code is in the .cu files of this folder. */
#include "cuda/conv/gram/gram.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/typed_kernels.h"

/* For optional slots: an absent tensor also fits. */
static bool is_like(const struct cr_tensor *t, const struct cr_tensor *data) {
    return !t || t->dtype == data->dtype;
}
static bool is_f32(const struct cr_tensor *t) {
    return !t || t->dtype == CR_F32;
}
static bool is_half_on(const struct cr_device *device, const struct cr_tensor *t, enum cr_dtype type) {
    return cuda_of(device)->cc >= 80 && t->dtype == type;
}
/* Tensors of C and of K channels, and a convolution of stride 1. */
static bool fits(const struct cr_op *op, const struct cr_tensor *narrow, const struct cr_tensor *wide) {
    return op->attr.conv.stride == 1 && op->attr.conv.pad == 0 && narrow->dim[3] == CK_GRAM_C &&
           (!wide || wide->dim[3] == CK_GRAM_K);
}
static bool is_point(const struct cr_tensor *w) {
    return w->dim[1] == 1 && w->dim[2] == 1;
}

/* ---- gram ---- */

static bool gram_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct cr_tensor *x = IN(gram, x);
    return is_half_on(device, x, type) && fits(op, x, NULL) && is_f32(IN(gram, scale_bias)) &&
           cr_op_uses_only(op, IN_BIT(gram, x) | IN_BIT(gram, scale_bias), OUT_BIT(gram, gram));
}
BOTH_TYPES(gram)

static cr_status gram_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    (void)p, (void)op;
    *prepared        = NULL;
    *workspace_bytes = ck_gram_workspace(cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status gram_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x    = cuda_in(call->program, call->op, CR_IN_gram_x);
    const struct ck_gram    args = {.type       = cuda_type(x),
                                    .pixels     = cuda_pixels(x),
                                    .x          = call->in[CR_IN_gram_x],
                                    .scale_bias = call->in[CR_IN_gram_scale_bias],
                                    .gram       = call->out[CR_OUT_gram_gram]};
    CUDA_TRY(ck_gram(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the convolution with its BN ---- */

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct cr_tensor *x = IN(conv, x), *w = IN(conv, w), *y = OUT(conv, y);
    const unsigned          ins =
        IN_BIT(conv, x) | IN_BIT(conv, w) | IN_BIT(conv, scale_bias) | IN_BIT(conv, add) | IN_BIT(conv, out_scale_bias);
    if (!cr_op_uses_only(op, ins, OUT_BIT(conv, y) | OUT_BIT(conv, mask)) || !IN(conv, out_scale_bias)) return false;
    return is_half_on(device, x, type) && is_point(w) && fits(op, x, y) && is_like(w, x) && is_like(y, x) &&
           is_like(IN(conv, add), x) && is_f32(IN(conv, scale_bias)) && is_f32(IN(conv, out_scale_bias));
}
BOTH_TYPES(conv)

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor   *x    = cuda_in(call->program, call->op, CR_IN_conv_x);
    const struct ck_gram_conv args = {.type           = cuda_type(x),
                                      .pixels         = cuda_pixels(x),
                                      .relu           = call->op->attr.conv.relu,
                                      .x              = call->in[CR_IN_conv_x],
                                      .w              = call->in[CR_IN_conv_w],
                                      .add            = call->in[CR_IN_conv_add],
                                      .scale_bias     = call->in[CR_IN_conv_scale_bias],
                                      .out_scale_bias = call->in[CR_IN_conv_out_scale_bias],
                                      .y              = call->out[CR_OUT_conv_y],
                                      .mask           = call->out[CR_OUT_conv_mask]};
    CUDA_TRY(ck_gram_conv(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- product of the gradient and the input ---- */

static bool wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                          enum cr_dtype type) {
    const struct cr_tensor *x = IN(conv_wgrad, x), *dy = IN(conv_wgrad, dy), *dw = OUT(conv_wgrad, dw);
    if (!OUT(conv_wgrad, dy_sums) || op->attr.conv.accumulate || cr_op_has_sparsity_pattern(op)) return false;
    if (cuda_of(device)->block_bytes < ck_gram_wgrad_shared()) return false; /* enough on 8.0 and from 9.0 to 11.x */
    return is_half_on(device, x, type) && is_point(dw) && fits(op, x, dy) && is_like(dy, x) && is_f32(dw) &&
           is_f32(IN(conv_wgrad, scale_bias));
}
BOTH_TYPES(wgrad)

static cr_status wgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    (void)p, (void)op;
    *prepared        = NULL;
    *workspace_bytes = ck_gram_wgrad_workspace(cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor    *x    = cuda_in(call->program, call->op, CR_IN_conv_wgrad_x);
    const struct ck_gram_wgrad args = {.type       = cuda_type(x),
                                       .pixels     = cuda_pixels(x),
                                       .x          = call->in[CR_IN_conv_wgrad_x],
                                       .dy         = call->in[CR_IN_conv_wgrad_dy],
                                       .scale_bias = call->in[CR_IN_conv_wgrad_scale_bias],
                                       .dw         = call->out[CR_OUT_conv_wgrad_dw],
                                       .dy_sums    = call->out[CR_OUT_conv_wgrad_dy_sums]};
    CUDA_TRY(ck_gram_wgrad(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- gradient by the input ---- */

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                          enum cr_dtype type) {
    const struct cr_tensor *x = IN(gram_dgrad, x), *g = IN(gram_dgrad, g);
    const bool              bn = IN(gram_dgrad, mean_rstd) != NULL;
    if (bn != (OUT(gram_dgrad, grad_sums) != NULL) || (bn && !IN(gram_dgrad, scale_bias))) return false;
    if (op->attr.conv.relu) return false;
    if (cuda_of(device)->block_bytes < ck_gram_dgrad_shared()) return false; /* enough from 9.0 to 11.x only */
    return is_half_on(device, x, type) && fits(op, x, g) && is_like(g, x) && is_like(IN(gram_dgrad, w_g), x) &&
           is_like(IN(gram_dgrad, w_x), x) && is_like(IN(gram_dgrad, add), x) && is_like(OUT(gram_dgrad, dx), x) &&
           is_f32(IN(gram_dgrad, factor_bias)) && is_f32(IN(gram_dgrad, scale_bias)) &&
           is_f32(IN(gram_dgrad, mean_rstd));
}
BOTH_TYPES(dgrad)

static cr_status dgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    (void)p, (void)op;
    *prepared        = NULL;
    *workspace_bytes = ck_gram_dgrad_workspace(cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor    *x    = cuda_in(call->program, call->op, CR_IN_gram_dgrad_x);
    const struct ck_gram_dgrad args = {.type        = cuda_type(x),
                                       .pixels      = cuda_pixels(x),
                                       .g           = call->in[CR_IN_gram_dgrad_g],
                                       .w_g         = call->in[CR_IN_gram_dgrad_w_g],
                                       .x           = call->in[CR_IN_gram_dgrad_x],
                                       .w_x         = call->in[CR_IN_gram_dgrad_w_x],
                                       .add         = call->in[CR_IN_gram_dgrad_add],
                                       .factor_bias = call->in[CR_IN_gram_dgrad_factor_bias],
                                       .scale_bias  = call->in[CR_IN_gram_dgrad_scale_bias],
                                       .mean_rstd   = call->in[CR_IN_gram_dgrad_mean_rstd],
                                       .dx          = call->out[CR_OUT_gram_dgrad_dx],
                                       .grad_sums   = call->out[CR_OUT_gram_dgrad_grad_sums]};
    CUDA_TRY(ck_gram_dgrad(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- small kernels ---- */

/* Statistics are those of one rank. */
static bool is_small(const struct cr_device *device, const struct cr_op *op, const struct cr_tensor *w,
                     const struct cr_tensor *gram, enum cr_dtype type) {
    return is_half_on(device, w, type) && is_point(w) && w->dim[3] <= 512 && w->dim[0] <= 2048 &&
           gram->dtype == CR_F32 && op->attr.bn.ranks <= 1;
}

static bool finalize_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                             enum cr_dtype type) {
    return is_small(device, op, IN(gram_bn_finalize, w), IN(gram_bn_finalize, gram), type);
}
BOTH_TYPES(finalize)

static cr_status finalize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w    = cuda_in(call->program, call->op, CR_IN_gram_bn_finalize_w);
    const struct ck_gram_bn args = {.type       = cuda_type(w),
                                    .K          = w->dim[0],
                                    .C          = w->dim[3],
                                    .count      = (double)call->op->attr.bn.count,
                                    .eps        = call->op->attr.bn.eps,
                                    .momentum   = call->op->attr.bn.momentum,
                                    .w          = call->in[CR_IN_gram_bn_finalize_w],
                                    .gram       = call->in[CR_IN_gram_bn_finalize_gram],
                                    .gamma      = call->in[CR_IN_gram_bn_finalize_gamma],
                                    .beta       = call->in[CR_IN_gram_bn_finalize_beta],
                                    .old_mean   = call->in[CR_IN_gram_bn_finalize_running_mean],
                                    .old_var    = call->in[CR_IN_gram_bn_finalize_running_var],
                                    .scale_bias = call->out[CR_OUT_gram_bn_finalize_scale_bias],
                                    .mean_rstd  = call->out[CR_OUT_gram_bn_finalize_mean_rstd],
                                    .mean       = call->out[CR_OUT_gram_bn_finalize_running_mean],
                                    .var        = call->out[CR_OUT_gram_bn_finalize_running_var]};
    CUDA_TRY(ck_gram_bn_finalize(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    return !IN(gram_bn_grad, grad_sums) && is_small(device, op, IN(gram_bn_grad, w), IN(gram_bn_grad, gram), type);
}
BOTH_TYPES(grad)

static cr_status grad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    (void)device;
    *prepared        = NULL;
    *workspace_bytes = ck_gram_bn_grad_workspace(IN(gram_bn_grad, w)->dim[0], IN(gram_bn_grad, w)->dim[3]);
    return CR_OK;
}

static cr_status grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor      *w    = cuda_in(call->program, call->op, CR_IN_gram_bn_grad_w);
    const struct ck_gram_bn_grad args = {.type        = cuda_type(w),
                                         .K           = w->dim[0],
                                         .C           = w->dim[3],
                                         .count       = (double)call->op->attr.bn.count,
                                         .accumulate  = call->op->attr.bn.accumulate,
                                         .w           = call->in[CR_IN_gram_bn_grad_w],
                                         .gram        = call->in[CR_IN_gram_bn_grad_gram],
                                         .m           = call->in[CR_IN_gram_bn_grad_m],
                                         .dy_sums     = call->in[CR_IN_gram_bn_grad_dy_sums],
                                         .gamma       = call->in[CR_IN_gram_bn_grad_gamma],
                                         .mean_rstd   = call->in[CR_IN_gram_bn_grad_mean_rstd],
                                         .w_g         = call->out[CR_OUT_gram_bn_grad_w_g],
                                         .w_x         = call->out[CR_OUT_gram_bn_grad_w_x],
                                         .factor_bias = call->out[CR_OUT_gram_bn_grad_factor_bias],
                                         .dw          = call->out[CR_OUT_gram_bn_grad_dw],
                                         .dgamma      = call->out[CR_OUT_gram_bn_grad_dgamma],
                                         .dbeta       = call->out[CR_OUT_gram_bn_grad_dbeta]};
    CUDA_TRY(ck_gram_bn_grad(&args, call->workspace, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the kernels ---- */

#define KERNELS(name, kind, half_math_f16, half_math_bf16, ...)                                                        \
    static const struct cr_kernel name##_f16  = {CR_KERNEL("cuda.gram." #name ".f16", kind, half_math_f16),            \
                                                 .accepts = name##_accepts_f16, .launch = name##_launch, __VA_ARGS__}, \
                                  name##_bf16 = {CR_KERNEL("cuda.gram." #name ".bf16", kind, half_math_bf16),          \
                                                 .accepts = name##_accepts_bf16, .launch = name##_launch, __VA_ARGS__}
KERNELS(gram, gram, CR_MATH_F16, CR_MATH_BF16, .prepare = gram_prepare, .release = nothing_to_release);
KERNELS(conv, conv, CR_MATH_F16, CR_MATH_BF16, .prepare = NULL);
KERNELS(wgrad, conv_wgrad, CR_MATH_F16, CR_MATH_BF16, .prepare = wgrad_prepare, .release = nothing_to_release);
KERNELS(dgrad, gram_dgrad, CR_MATH_F16, CR_MATH_BF16, .prepare = dgrad_prepare, .release = nothing_to_release);
KERNELS(finalize, gram_bn_finalize, CR_MATH_F32, CR_MATH_F32, .prepare = NULL);
KERNELS(grad, gram_bn_grad, CR_MATH_F32, CR_MATH_F32, .prepare = grad_prepare, .release = nothing_to_release);

const struct cr_kernel *const cr_cuda_gram_kernels[] = {
    &gram_f16,   &gram_bf16,    &conv_f16,      &conv_bf16, &wgrad_f16, &wgrad_bf16, &dgrad_f16,
    &dgrad_bf16, &finalize_f16, &finalize_bf16, &grad_f16,  &grad_bf16, NULL};
