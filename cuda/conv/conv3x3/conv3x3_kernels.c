/* cuda/conv/conv3x3/conv3x3_kernels.c: kernel table of 3x3 convolutions with 64 channels on both sides, in f16 and
 * bf16, with BN sums: on compute capability 9.0 (cuda/conv/conv3x3/conv3x3_sm90a.cu) and on all others from 8.0 on.
 * There also the gradient of the input with the gradient of the BN and ReLU in front (cuda/conv/mma/conv3x3_mma.cu). */
#include "cuda/conv/conv3x3/conv3x3.h"
#include "cuda/conv/mma/conv3x3_mma.h"
#include "cuda/conv/mma/mma_device.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#define IN_BIT(kind, slot) (1u << CR_IN_##kind##_##slot)
#define OUT_BIT(kind, slot) (1u << CR_OUT_##kind##_##slot)

/* For optional slots: an absent tensor also fits. */
static bool is_like(const struct cr_tensor *t, const struct cr_tensor *data) {
    return !t || t->dtype == data->dtype;
}
static bool is_f32(const struct cr_tensor *t) {
    return !t || t->dtype == CR_F32;
}

/* `present` is a placeholder for tensors that exist; the pointers are set at launch. */
static const float  present;
static const float *vector_of(const struct cr_tensor *t) {
    return t ? &present : NULL;
}
static float *sums_of(const struct cr_tensor *t) {
    return t ? (float *)(uintptr_t)&present : NULL;
}

static bool is_3x3(const struct cr_op *op, const struct cr_tensor *w) {
    return w->dim[0] == CK_CONV3X3_CHANNELS && w->dim[1] == 3 && w->dim[2] == 3 && w->dim[3] == CK_CONV3X3_CHANNELS &&
           op->attr.conv.stride == 1 && op->attr.conv.pad == 1;
}

/* ---- forward ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_##slot)

static struct ck_conv3x3 wgmma_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    return (struct ck_conv3x3){
        .type = cuda_type(x), .N = x->dim[0], .H = x->dim[1], .W = x->dim[2], .relu = op->attr.conv.relu};
}
static struct ck_conv3x3_mma mma_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    return (struct ck_conv3x3_mma){.type = cuda_type(x),
                                   .N    = x->dim[0],
                                   .H    = x->dim[1],
                                   .W    = x->dim[2],
                                   .relu = op->attr.conv.relu,
                                   .bias = vector_of(IN(bias)),
                                   .sums = sums_of(OUT(sums))};
}

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct cr_tensor *x = IN(x);
    if (!cr_op_uses_only(op, IN_BIT(conv, x) | IN_BIT(conv, w) | IN_BIT(conv, bias),
                         OUT_BIT(conv, y) | OUT_BIT(conv, sums)))
        return false;
    if (x->dtype != type || !is_like(IN(w), x) || !is_like(OUT(y), x) || !is_f32(IN(bias)) || !is_f32(OUT(sums)))
        return false;
    if (!is_3x3(op, IN(w))) return false;
    const struct ck_conv3x3     wgmma = wgmma_of(p, op);
    const struct ck_conv3x3_mma mma   = mma_of(p, op);
    const struct ck_mma_gpu     gpu   = cuda_mma_gpu(device);
    if (cuda_has_wgmma(device)) return !(OUT(sums) && (IN(bias) || op->attr.conv.relu)) && ck_conv3x3_supports(&wgmma);
    return cuda_uses_mma(device) && ck_conv3x3_mma_supports(&mma, &gpu);
}
static bool conv_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return conv_accepts(device, p, op, CR_F16);
}
static bool conv_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return conv_accepts(device, p, op, CR_BF16);
}

static cr_status conv_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_conv3x3_mma mma = mma_of(p, op);
    const struct ck_mma_gpu     gpu = cuda_mma_gpu(device);
    *prepared                       = NULL;
    if (!cuda_has_wgmma(device))
        *workspace_bytes = ck_conv3x3_mma_workspace(&mma, &gpu);
    else
        *workspace_bytes = OUT(sums) ? ck_conv3x3_workspace(cuda_of(device)->multiprocessors) : 0;
    return CR_OK;
}

static cr_status conv_launch_mma(struct cr_device *device, const struct cr_call *call) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    struct ck_conv3x3_mma   a   = mma_of(call->program, call->op);
    a.x                         = call->in[CR_IN_conv_x];
    a.w                         = call->in[CR_IN_conv_w];
    a.bias                      = call->in[CR_IN_conv_bias];
    a.y                         = call->out[CR_OUT_conv_y];
    a.sums                      = call->out[CR_OUT_conv_sums];
    CUDA_TRY(ck_conv3x3_mma(&a, call->workspace, &gpu, cr_cuda_stream(device, call)));
    return CR_OK;
}
static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    if (!cuda_has_wgmma(device)) return conv_launch_mma(device, call);
    struct ck_conv3x3 a = wgmma_of(call->program, call->op);
    a.x                 = call->in[CR_IN_conv_x];
    a.w                 = call->in[CR_IN_conv_w];
    a.bias              = call->in[CR_IN_conv_bias];
    a.y                 = call->out[CR_OUT_conv_y];
    a.sums              = call->out[CR_OUT_conv_sums];
    a.early             = call->op->attr.conv.early_filter;
    CUDA_TRY(ck_conv3x3(&a, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

#undef IN
#undef OUT

/* ---- gradient of the input ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_dgrad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_dgrad_##slot)

static struct ck_conv3x3_mma dgrad_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dy = IN(dy);
    return (struct ck_conv3x3_mma){.type       = cuda_type(dy),
                                   .N          = dy->dim[0],
                                   .H          = dy->dim[1],
                                   .W          = dy->dim[2],
                                   .transposed = true,
                                   .add        = vector_of(IN(add)),
                                   .bn_x       = vector_of(IN(bn_x)),
                                   .mean_rstd  = vector_of(IN(mean_rstd)),
                                   .gamma      = vector_of(IN(gamma)),
                                   .beta       = vector_of(IN(beta)),
                                   .sums       = sums_of(OUT(grad_sums))};
}

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                          enum cr_dtype type) {
    const struct cr_tensor *dy = IN(dy);
    if (!cr_op_uses_only(op,
                         IN_BIT(conv_dgrad, dy) | IN_BIT(conv_dgrad, w) | IN_BIT(conv_dgrad, add) |
                             IN_BIT(conv_dgrad, bn_x) | IN_BIT(conv_dgrad, mean_rstd) | IN_BIT(conv_dgrad, gamma) |
                             IN_BIT(conv_dgrad, beta),
                         OUT_BIT(conv_dgrad, dx) | OUT_BIT(conv_dgrad, grad_sums)))
        return false;
    if (dy->dtype != type || !is_3x3(op, IN(w))) return false;
    if (!is_like(IN(w), dy) || !is_like(OUT(dx), dy) || !is_like(IN(add), dy) || !is_like(IN(bn_x), dy)) return false;
    if (!is_f32(IN(mean_rstd)) || !is_f32(IN(gamma)) || !is_f32(IN(beta)) || !is_f32(OUT(grad_sums))) return false;
    const struct ck_conv3x3_mma a   = dgrad_of(p, op);
    const struct ck_mma_gpu     gpu = cuda_mma_gpu(device);
    return cuda_uses_mma(device) && ck_conv3x3_mma_supports(&a, &gpu);
}
static bool dgrad_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return dgrad_accepts(device, p, op, CR_F16);
}
static bool dgrad_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return dgrad_accepts(device, p, op, CR_BF16);
}

static cr_status dgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    const struct ck_conv3x3_mma a   = dgrad_of(p, op);
    const struct ck_mma_gpu     gpu = cuda_mma_gpu(device);
    *prepared                       = NULL;
    *workspace_bytes                = ck_conv3x3_mma_workspace(&a, &gpu);
    return CR_OK;
}

static cr_status dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    struct ck_conv3x3_mma   a   = dgrad_of(call->program, call->op);
    a.x                         = call->in[CR_IN_conv_dgrad_dy];
    a.w                         = call->in[CR_IN_conv_dgrad_w];
    a.add                       = call->in[CR_IN_conv_dgrad_add];
    a.bn_x                      = call->in[CR_IN_conv_dgrad_bn_x];
    a.mean_rstd                 = call->in[CR_IN_conv_dgrad_mean_rstd];
    a.gamma                     = call->in[CR_IN_conv_dgrad_gamma];
    a.beta                      = call->in[CR_IN_conv_dgrad_beta];
    a.y                         = call->out[CR_OUT_conv_dgrad_dx];
    a.sums                      = call->out[CR_OUT_conv_dgrad_grad_sums];
    CUDA_TRY(ck_conv3x3_mma(&a, call->workspace, &gpu, cr_cuda_stream(device, call)));
    return CR_OK;
}

static void nothing_to_release(void *prepared) {
    (void)prepared;
}

/* ---- the kernels ---- */

#define CONV3X3_KERNEL(kernel, kernel_name, kind, part, type, of_math)                                                 \
    static const struct cr_kernel kernel = {.name          = kernel_name,                                              \
                                            .op            = CR_OP_##kind,                                             \
                                            .math          = of_math,                                                  \
                                            .deterministic = true,                                                     \
                                            .accepts       = part##_accepts_##type,                                    \
                                            .prepare       = part##_prepare,                                           \
                                            .launch        = part##_launch,                                            \
                                            .release       = nothing_to_release}
CONV3X3_KERNEL(kernel_conv_f16, "cuda.conv3x3.f16", conv, conv, f16, CR_MATH_F16);
CONV3X3_KERNEL(kernel_conv_bf16, "cuda.conv3x3.bf16", conv, conv, bf16, CR_MATH_BF16);
CONV3X3_KERNEL(kernel_dgrad_f16, "cuda.conv3x3_dgrad.f16", conv_dgrad, dgrad, f16, CR_MATH_F16);
CONV3X3_KERNEL(kernel_dgrad_bf16, "cuda.conv3x3_dgrad.bf16", conv_dgrad, dgrad, bf16, CR_MATH_BF16);

const struct cr_kernel *const cr_cuda_conv3x3_kernels[] = {&kernel_conv_f16, &kernel_conv_bf16, &kernel_dgrad_f16,
                                                           &kernel_dgrad_bf16, NULL};
