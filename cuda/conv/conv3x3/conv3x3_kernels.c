/* cuda/conv/conv3x3/conv3x3_kernels.c: kernel table of 3x3 convolutions in f16 and bf16, with BN sums, and of the
 * gradient of the input with the gradient of the BN and ReLU in front. With 64 channels on both sides: on compute
 * capability 9.0 (cuda/conv/conv3x3/conv3x3_sm90a.cu) and on all others from 8.0 on (cuda/conv/mma/conv3x3_mma.cu).
 * With 128 and more channels: on 9.0 (cuda/conv/conv3x3/conv3x3_wide_sm90a.cu). */
#include "cuda/conv/conv3x3/conv3x3.h"
#include "cuda/conv/conv3x3/conv3x3_wide.h"
#include "cuda/conv/mma/conv3x3_mma.h"
#include "cuda/conv/mma/mma_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/optional_slots.h"
#include "cuda/core/typed_kernels.h"

static bool is_3x3(const struct cr_op *op, const struct cr_tensor *w) {
    return w->dim[1] == 3 && w->dim[2] == 3 && op->attr.conv.pad == 1;
}
static bool is_narrow(const struct ck_conv3x3 *a) {
    return a->C == CK_CONV3X3_CHANNELS && a->K == CK_CONV3X3_CHANNELS && a->stride == 1;
}

static bool supports(const struct cr_device *device, const struct ck_conv3x3 *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    if (!is_narrow(a)) return cuda_has_wgmma(device) && ck_conv3x3_wide_supports(a, gpu.multiprocessors);
    if (cuda_has_wgmma(device)) return ck_conv3x3_supports(a);
    return cuda_uses_mma(device) && ck_conv3x3_mma_supports(a, &gpu);
}
static size_t workspace_of(const struct cr_device *device, const struct ck_conv3x3 *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    if (!is_narrow(a)) return ck_conv3x3_wide_workspace(a, gpu.multiprocessors);
    if (!cuda_has_wgmma(device)) return ck_conv3x3_mma_workspace(a, &gpu);
    return a->sums ? ck_conv3x3_workspace(gpu.multiprocessors) : 0;
}
static cr_status start(struct cr_device *device, const struct cr_call *call, const struct ck_conv3x3 *a) {
    const struct ck_mma_gpu gpu    = cuda_mma_gpu(device);
    const cudaStream_t      stream = cr_cuda_stream(device, call);
    if (!is_narrow(a))
        CUDA_TRY(ck_conv3x3_wide(a, call->workspace, gpu.multiprocessors, stream));
    else if (cuda_has_wgmma(device))
        CUDA_TRY(ck_conv3x3(a, call->workspace, gpu.multiprocessors, stream));
    else
        CUDA_TRY(ck_conv3x3_mma(a, call->workspace, &gpu, stream));
    return CR_OK;
}

/* ---- forward ---- */

static struct ck_conv3x3 conv_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(conv, x), *y = OUT(conv, y);
    return (struct ck_conv3x3){.type   = cuda_type(x),
                               .N      = y->dim[0],
                               .H      = y->dim[1],
                               .W      = y->dim[2],
                               .K      = y->dim[3],
                               .C      = x->dim[3],
                               .stride = op->attr.conv.stride,
                               .relu   = op->attr.conv.relu,
                               .bias   = vector_of(IN(conv, bias)),
                               .sums   = output_of(OUT(conv, sums))};
}

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct cr_tensor *x = IN(conv, x);
    if (!cr_op_uses_only(op, IN_BIT(conv, x) | IN_BIT(conv, w) | IN_BIT(conv, bias),
                         OUT_BIT(conv, y) | OUT_BIT(conv, sums)))
        return false;
    if (x->dtype != type || !is_like(IN(conv, w), x) || !is_like(OUT(conv, y), x) || !is_f32(IN(conv, bias)) ||
        !is_f32(OUT(conv, sums)))
        return false;
    if (!is_3x3(op, IN(conv, w))) return false;
    const struct ck_conv3x3 a = conv_of(p, op);
    return supports(device, &a);
}
BOTH_TYPES(conv)

static cr_status conv_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_conv3x3 a = conv_of(p, op);
    *prepared                 = NULL;
    *workspace_bytes          = workspace_of(device, &a);
    return CR_OK;
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_conv3x3 a = conv_of(call->program, call->op);
    a.x                 = call->in[CR_IN_conv_x];
    a.w                 = call->in[CR_IN_conv_w];
    a.bias              = call->in[CR_IN_conv_bias];
    a.y                 = call->out[CR_OUT_conv_y];
    a.sums              = call->out[CR_OUT_conv_sums];
    a.early             = cr_call_reads_early(call, IN_BIT(conv, w) | IN_BIT(conv, bias));
    return start(device, call, &a);
}

/* ---- gradient of the input ---- */

static struct ck_conv3x3 dgrad_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dy = IN(conv_dgrad, dy), *dx = OUT(conv_dgrad, dx);
    return (struct ck_conv3x3){.type       = cuda_type(dy),
                               .N          = dx->dim[0],
                               .H          = dx->dim[1],
                               .W          = dx->dim[2],
                               .K          = dx->dim[3],
                               .C          = dy->dim[3],
                               .stride     = op->attr.conv.stride,
                               .transposed = true,
                               .add        = vector_of(IN(conv_dgrad, add)),
                               .bn_x       = vector_of(IN(conv_dgrad, bn_x)),
                               .mean_rstd  = vector_of(IN(conv_dgrad, mean_rstd)),
                               .gamma      = vector_of(IN(conv_dgrad, gamma)),
                               .beta       = vector_of(IN(conv_dgrad, beta)),
                               .sums       = output_of(OUT(conv_dgrad, grad_sums))};
}

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                          enum cr_dtype type) {
    const struct cr_tensor *dy = IN(conv_dgrad, dy);
    if (!cr_op_uses_only(op,
                         IN_BIT(conv_dgrad, dy) | IN_BIT(conv_dgrad, w) | IN_BIT(conv_dgrad, add) |
                             IN_BIT(conv_dgrad, bn_x) | IN_BIT(conv_dgrad, mean_rstd) | IN_BIT(conv_dgrad, gamma) |
                             IN_BIT(conv_dgrad, beta),
                         OUT_BIT(conv_dgrad, dx) | OUT_BIT(conv_dgrad, grad_sums)))
        return false;
    if (dy->dtype != type || !is_3x3(op, IN(conv_dgrad, w))) return false;
    if (!is_like(IN(conv_dgrad, w), dy) || !is_like(OUT(conv_dgrad, dx), dy) || !is_like(IN(conv_dgrad, add), dy) ||
        !is_like(IN(conv_dgrad, bn_x), dy))
        return false;
    if (!is_f32(IN(conv_dgrad, mean_rstd)) || !is_f32(IN(conv_dgrad, gamma)) || !is_f32(IN(conv_dgrad, beta)) ||
        !is_f32(OUT(conv_dgrad, grad_sums)))
        return false;
    const struct ck_conv3x3 a = dgrad_of(p, op);
    return supports(device, &a);
}
BOTH_TYPES(dgrad)

static cr_status dgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    const struct ck_conv3x3 a = dgrad_of(p, op);
    *prepared                 = NULL;
    *workspace_bytes          = workspace_of(device, &a);
    return CR_OK;
}

static cr_status dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_conv3x3 a = dgrad_of(call->program, call->op);
    a.x                 = call->in[CR_IN_conv_dgrad_dy];
    a.w                 = call->in[CR_IN_conv_dgrad_w];
    a.add               = call->in[CR_IN_conv_dgrad_add];
    a.bn_x              = call->in[CR_IN_conv_dgrad_bn_x];
    a.mean_rstd         = call->in[CR_IN_conv_dgrad_mean_rstd];
    a.gamma             = call->in[CR_IN_conv_dgrad_gamma];
    a.beta              = call->in[CR_IN_conv_dgrad_beta];
    a.y                 = call->out[CR_OUT_conv_dgrad_dx];
    a.sums              = call->out[CR_OUT_conv_dgrad_grad_sums];
    return start(device, call, &a);
}

/* ---- the kernels ---- */

static const struct cr_kernel conv_f16 = {CR_KERNEL("cuda.conv3x3.f16", conv, CR_MATH_F16), .accepts = conv_accepts_f16,
                                          .prepare = conv_prepare, .release = nothing_to_release,
                                          .launch = conv_launch},
                              conv_bf16  = {CR_KERNEL("cuda.conv3x3.bf16", conv, CR_MATH_BF16),
                                            .accepts = conv_accepts_bf16, .prepare = conv_prepare,
                                            .release = nothing_to_release, .launch = conv_launch},
                              dgrad_f16  = {CR_KERNEL("cuda.conv3x3_dgrad.f16", conv_dgrad, CR_MATH_F16),
                                            .accepts = dgrad_accepts_f16, .prepare = dgrad_prepare,
                                            .release = nothing_to_release, .launch = dgrad_launch},
                              dgrad_bf16 = {CR_KERNEL("cuda.conv3x3_dgrad.bf16", conv_dgrad, CR_MATH_BF16),
                                            .accepts = dgrad_accepts_bf16, .prepare = dgrad_prepare,
                                            .release = nothing_to_release, .launch = dgrad_launch};

const struct cr_kernel *const cr_cuda_conv3x3_kernels[] = {&conv_f16, &conv_bf16, &dgrad_f16, &dgrad_bf16, NULL};
