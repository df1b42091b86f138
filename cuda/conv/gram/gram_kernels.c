/* cuda/conv/gram/gram_kernels.c: kernel table of BN statistics from Gram matrices, the small kernels, f16 and bf16,
 * compute capability 8.0 and later. Device code is in cuda/conv/gram/gram_finalize.cu and gram_grad.cu. */
#include "cuda/conv/gram/gram.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/typed_kernels.h"

static bool is_half_on(const struct cr_device *device, const struct cr_tensor *t, enum cr_dtype type) {
    return cuda_of(device)->cc >= 80 && t->dtype == type;
}
static bool is_point(const struct cr_tensor *w) {
    return w->dim[1] == 1 && w->dim[2] == 1;
}

/* ---- statistics ---- */

/* wide: the Gram matrix or m. */
static bool is_small(const struct cr_device *device, const struct cr_tensor *w, const struct cr_tensor *wide,
                     enum cr_dtype type) {
    return is_half_on(device, w, type) && is_point(w) && w->dim[3] <= 512 && w->dim[0] <= 2048 && wide->dtype == CR_F32;
}

/* Pixels of this rank. */
static double pixels_of(const struct cr_bn_attr *attr) {
    return (double)attr->count / (double)CR_MAX(attr->ranks, 1);
}

static bool finalize_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                             enum cr_dtype type) {
    return is_small(device, IN(gram_bn_finalize, w), IN(gram_bn_finalize, gram), type);
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

static bool sums_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    return is_small(device, IN(gram_bn_sums, w), IN(gram_bn_sums, gram), type);
}
BOTH_TYPES(sums)

static cr_status sums_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor      *w    = cuda_in(call->program, call->op, CR_IN_gram_bn_sums_w);
    const struct ck_gram_bn_sums args = {.type   = cuda_type(w),
                                         .K      = w->dim[0],
                                         .C      = w->dim[3],
                                         .pixels = pixels_of(&call->op->attr.bn),
                                         .w      = call->in[CR_IN_gram_bn_sums_w],
                                         .gram   = call->in[CR_IN_gram_bn_sums_gram],
                                         .center = call->in[CR_IN_gram_bn_sums_center],
                                         .sums   = call->out[CR_OUT_gram_bn_sums_sums]};
    CUDA_TRY(ck_gram_bn_sums(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* The sums of all ranks are about a center; cuda.bn_finalize accepts the other ops of this kind. */
static bool finish_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return IN(bn_finalize, center) && IN(bn_finalize, sums)->dtype == CR_F32 && !OUT(bn_finalize, scale_bias_half);
}

static cr_status finish_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_gram_bn args = {.K          = cuda_in(call->program, call->op, CR_IN_bn_finalize_sums)->dim[3],
                                    .count      = (double)call->op->attr.bn.count,
                                    .eps        = call->op->attr.bn.eps,
                                    .momentum   = call->op->attr.bn.momentum,
                                    .gamma      = call->in[CR_IN_bn_finalize_gamma],
                                    .beta       = call->in[CR_IN_bn_finalize_beta],
                                    .old_mean   = call->in[CR_IN_bn_finalize_running_mean],
                                    .old_var    = call->in[CR_IN_bn_finalize_running_var],
                                    .scale_bias = call->out[CR_OUT_bn_finalize_scale_bias],
                                    .mean_rstd  = call->out[CR_OUT_bn_finalize_mean_rstd],
                                    .mean       = call->out[CR_OUT_bn_finalize_running_mean],
                                    .var        = call->out[CR_OUT_bn_finalize_running_var]};
    CUDA_TRY(ck_gram_bn_finish(&args, call->in[CR_IN_bn_finalize_sums], call->in[CR_IN_bn_finalize_center],
                               cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- gradients ---- */

static bool grad_sums_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              enum cr_dtype type) {
    return is_small(device, IN(gram_bn_grad_sums, w), IN(gram_bn_grad_sums, m), type);
}
BOTH_TYPES(grad_sums)

static cr_status grad_sums_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor           *w    = cuda_in(call->program, call->op, CR_IN_gram_bn_grad_sums_w);
    const struct ck_gram_bn_grad_sums args = {.type      = cuda_type(w),
                                              .K         = w->dim[0],
                                              .C         = w->dim[3],
                                              .w         = call->in[CR_IN_gram_bn_grad_sums_w],
                                              .m         = call->in[CR_IN_gram_bn_grad_sums_m],
                                              .dy_sums   = call->in[CR_IN_gram_bn_grad_sums_dy_sums],
                                              .mean_rstd = call->in[CR_IN_gram_bn_grad_sums_mean_rstd],
                                              .grad_sums = call->out[CR_OUT_gram_bn_grad_sums_grad_sums]};
    CUDA_TRY(ck_gram_bn_grad_sums(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    return is_small(device, IN(gram_bn_grad, w), IN(gram_bn_grad, gram), type);
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
                                         .pixels      = pixels_of(&call->op->attr.bn),
                                         .ranks       = (double)CR_MAX(call->op->attr.bn.ranks, 1),
                                         .accumulate  = call->op->attr.bn.accumulate,
                                         .w           = call->in[CR_IN_gram_bn_grad_w],
                                         .gram        = call->in[CR_IN_gram_bn_grad_gram],
                                         .m           = call->in[CR_IN_gram_bn_grad_m],
                                         .dy_sums     = call->in[CR_IN_gram_bn_grad_dy_sums],
                                         .gamma       = call->in[CR_IN_gram_bn_grad_gamma],
                                         .mean_rstd   = call->in[CR_IN_gram_bn_grad_mean_rstd],
                                         .grad_sums   = call->in[CR_IN_gram_bn_grad_grad_sums],
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
KERNELS(finalize, gram_bn_finalize, CR_MATH_F32, CR_MATH_F32, .prepare = NULL);
KERNELS(sums, gram_bn_sums, CR_MATH_F32, CR_MATH_F32, .prepare = NULL);
KERNELS(grad_sums, gram_bn_grad_sums, CR_MATH_F32, CR_MATH_F32, .prepare = NULL);
KERNELS(grad, gram_bn_grad, CR_MATH_F32, CR_MATH_F32, .prepare = grad_prepare, .release = nothing_to_release);

static const struct cr_kernel finish = {CR_KERNEL("cuda.gram.finish", bn_finalize, CR_MATH_F32),
                                        .accepts = finish_accepts, .launch = finish_launch};

const struct cr_kernel *const cr_cuda_gram_kernels[] = {&finalize_f16,  &finalize_bf16,  &sums_f16, &sums_bf16, &finish,
                                                        &grad_sums_f16, &grad_sums_bf16, &grad_f16, &grad_bf16, NULL};
