/* cuda/conv/gram/gram_kernels.c: kernel table of BN statistics from Gram matrices, the small kernels, f16 and bf16,
 * compute capability 8.0 and later. Device code is in cuda/conv/gram/gram_finalize.cu and gram_grad.cu. The kernels
 * over all pixels are in cuda/conv/fused/fused_grad_kernels.c. */
#include "cuda/conv/gram/gram.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* ---- statistics ---- */

/* All of these ops have w in slot 0. */
_Static_assert(CR_IN_gram_bn_finalize_w == 0 && CR_IN_gram_bn_sums_w == 0 && CR_IN_gram_bn_grad_sums_w == 0 &&
                   CR_IN_gram_bn_grad_w == 0,
               "slots of w");
static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *w = cuda_in(p, op, 0);
    (void)device;
    return w->dim[1] == 1 && w->dim[2] == 1 && w->dim[3] <= 512 && w->dim[0] <= 2048;
}

/* Pixels of this rank. */
static double pixels_of(const struct cr_bn_attr *attr) {
    return (double)attr->count / (double)CR_MAX(attr->ranks, 1);
}

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
    return CUDA_STATUS(ck_gram_bn_finalize(&args, cr_cuda_stream(device, call)));
}

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
    return CUDA_STATUS(ck_gram_bn_sums(&args, cr_cuda_stream(device, call)));
}

/* The sums of all ranks are about a center; cuda.bn_finalize accepts the other ops of this kind. */
static bool finish_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_in(p, op, CR_IN_bn_finalize_center) != NULL;
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
    return CUDA_STATUS(ck_gram_bn_finish(&args, call->in[CR_IN_bn_finalize_sums], call->in[CR_IN_bn_finalize_center],
                                         cr_cuda_stream(device, call)));
}

/* ---- gradients ---- */

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
    return CUDA_STATUS(ck_gram_bn_grad_sums(&args, cr_cuda_stream(device, call)));
}

static size_t grad_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *w = cuda_in(p, op, CR_IN_gram_bn_grad_w);
    (void)device;
    return ck_gram_bn_grad_workspace(w->dim[0], w->dim[3]);
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
    return CUDA_STATUS(ck_gram_bn_grad(&args, call->workspace, cr_cuda_stream(device, call)));
}

/* ---- the kernels ---- */

#define KERNEL(name, kind)                                                                                             \
    CR_KERNEL("cuda.gram." name ".*", kind, CR_MATH_F32), .dtypes = CR_TYPES_HALF, .accepts = accepts

// clang-format off
const struct cr_kernel cr_cuda_gram_kernels[] = {
    {KERNEL("finalize", gram_bn_finalize), .launch = finalize_launch},
    {KERNEL("sums", gram_bn_sums), .launch = sums_launch},
    {CR_KERNEL("cuda.gram.finish", bn_finalize, CR_MATH_F32), .dtypes = CR_TYPES_F32,
     .optional_in = CR_IN_BIT(bn_finalize, center), .accepts = finish_accepts, .launch = finish_launch},
    {KERNEL("grad_sums", gram_bn_grad_sums), .launch = grad_sums_launch},
    {KERNEL("grad", gram_bn_grad), .optional_in = CR_IN_BIT(gram_bn_grad, grad_sums), .workspace = grad_workspace,
     .launch = grad_launch},
    {0}};
// clang-format on
