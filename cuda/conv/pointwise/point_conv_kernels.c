/* cuda/conv/pointwise/point_conv_kernels.c: kernel table of 1x1 convolutions and the gradients of their inputs in f16
 * and bf16, with all fused operations of the ops. Device code is in cuda/conv/pointwise/point_conv_sm90a.cu for compute
 * capability 9.0, and in cuda/conv/mma/point_mma.cu for all others from 8.0 on. */
#include "cuda/conv/mma/mma_device.h"
#include "cuda/conv/mma/point_mma.h"
#include "cuda/conv/pointwise/point_conv.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/optional_slots.h"

/* x is the input and y the output; for the gradient they are dy and dx. The pointers are set at launch. */
static struct ck_point_conv shape_of(const struct cr_op *op, const struct cr_tensor *x, const struct cr_tensor *y) {
    return (struct ck_point_conv){.type   = cuda_type(x),
                                  .N      = x->dim[0],
                                  .H      = x->dim[1],
                                  .W      = x->dim[2],
                                  .C      = x->dim[3],
                                  .K      = y->dim[3],
                                  .stride = op->attr.conv.stride,
                                  .config = op->algo};
}

#define IN_BIT(kind, slot) (1u << CR_IN_##kind##_##slot)
#define OUT_BIT(kind, slot) (1u << CR_OUT_##kind##_##slot)

static bool is_point(const struct cr_op *op, const struct cr_tensor *w) {
    return w->dim[1] == 1 && w->dim[2] == 1 && op->attr.conv.pad == 0;
}

/* ---- the two implementations ---- */

static bool supports(const struct cr_device *device, const struct ck_point_conv *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    if (cuda_has_wgmma(device)) return ck_point_conv_supports(a);
    return cuda_uses_mma(device) && ck_point_mma_supports(a, &gpu);
}
static int configs(const struct cr_device *device, const struct ck_point_conv *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    return cuda_has_wgmma(device) ? ck_point_conv_configs(a, gpu.multiprocessors) : ck_point_mma_configs(a, &gpu);
}
static size_t workspace_of(const struct cr_device *device, const struct ck_point_conv *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    return cuda_has_wgmma(device) ? ck_point_conv_workspace(a, gpu.multiprocessors) : ck_point_mma_workspace(a, &gpu);
}
static cr_status launch(struct cr_device *device, const struct cr_call *call, const struct ck_point_conv *a) {
    const struct ck_mma_gpu gpu    = cuda_mma_gpu(device);
    const cudaStream_t      stream = cr_cuda_stream(device, call);
    if (cuda_has_wgmma(device))
        CUDA_TRY(ck_point_conv(a, call->workspace, gpu.multiprocessors, stream));
    else
        CUDA_TRY(ck_point_mma(a, call->workspace, &gpu, stream));
    return CR_OK;
}

/* ---- forward ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_##slot)

static struct ck_point_conv conv_of(const struct cr_program *p, const struct cr_op *op) {
    struct ck_point_conv a = shape_of(op, IN(x), OUT(y));
    a.relu                 = op->attr.conv.relu;
    a.scale_bias           = vector_of(IN(scale_bias));
    a.bias                 = vector_of(IN(bias));
    a.add                  = data_of(IN(add));
    a.sums                 = output_of(OUT(sums));
    return a;
}

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct cr_tensor *x = IN(x);
    if (!cr_op_uses_only(
            op, IN_BIT(conv, x) | IN_BIT(conv, w) | IN_BIT(conv, scale_bias) | IN_BIT(conv, bias) | IN_BIT(conv, add),
            OUT_BIT(conv, y) | OUT_BIT(conv, sums)))
        return false;
    if (x->dtype != type || !is_point(op, IN(w))) return false;
    if (!is_like(IN(w), x) || !is_like(OUT(y), x) || !is_like(IN(add), x)) return false;
    if (!is_f32(IN(scale_bias)) || !is_f32(IN(bias)) || !is_f32(OUT(sums))) return false;
    const struct ck_point_conv a = conv_of(p, op);
    return supports(device, &a);
}
static bool conv_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return conv_accepts(device, p, op, CR_F16);
}
static bool conv_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return conv_accepts(device, p, op, CR_BF16);
}

static int conv_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_point_conv a = conv_of(p, op);
    return configs(device, &a);
}

static cr_status conv_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_point_conv a = conv_of(p, op);
    *prepared                    = NULL;
    *workspace_bytes             = workspace_of(device, &a);
    return CR_OK;
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_point_conv a = conv_of(call->program, call->op);
    a.x                    = call->in[CR_IN_conv_x];
    a.w                    = call->in[CR_IN_conv_w];
    a.scale_bias           = call->in[CR_IN_conv_scale_bias];
    a.bias                 = call->in[CR_IN_conv_bias];
    a.add                  = call->in[CR_IN_conv_add];
    a.y                    = call->out[CR_OUT_conv_y];
    a.sums                 = call->out[CR_OUT_conv_sums];
    a.early                = cr_call_reads_early(call, IN_BIT(conv, w) | IN_BIT(conv, bias));
    return launch(device, call, &a);
}

#undef IN
#undef OUT

/* ---- gradient of the input ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_dgrad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_dgrad_##slot)

static struct ck_point_conv dgrad_of(const struct cr_program *p, const struct cr_op *op) {
    struct ck_point_conv a = shape_of(op, IN(dy), OUT(dx));
    a.transposed           = true;
    a.add                  = data_of(IN(add));
    a.bn_x                 = data_of(IN(bn_x));
    a.mean_rstd            = vector_of(IN(mean_rstd));
    a.gamma                = vector_of(IN(gamma));
    a.beta                 = vector_of(IN(beta));
    a.sums                 = output_of(OUT(grad_sums));
    return a;
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
    if (dy->dtype != type || !is_point(op, IN(w)) || (OUT(grad_sums) && !IN(bn_x))) return false;
    if (!is_like(IN(w), dy) || !is_like(OUT(dx), dy) || !is_like(IN(add), dy) || !is_like(IN(bn_x), dy)) return false;
    if (!is_f32(IN(mean_rstd)) || !is_f32(IN(gamma)) || !is_f32(IN(beta)) || !is_f32(OUT(grad_sums))) return false;
    const struct ck_point_conv a = dgrad_of(p, op);
    return supports(device, &a);
}
static bool dgrad_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return dgrad_accepts(device, p, op, CR_F16);
}
static bool dgrad_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return dgrad_accepts(device, p, op, CR_BF16);
}

static int dgrad_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_point_conv a = dgrad_of(p, op);
    return configs(device, &a);
}

static cr_status dgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    const struct ck_point_conv a = dgrad_of(p, op);
    *prepared                    = NULL;
    *workspace_bytes             = workspace_of(device, &a);
    return CR_OK;
}

static cr_status dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_point_conv a = dgrad_of(call->program, call->op);
    a.x                    = call->in[CR_IN_conv_dgrad_dy];
    a.w                    = call->in[CR_IN_conv_dgrad_w];
    a.add                  = call->in[CR_IN_conv_dgrad_add];
    a.bn_x                 = call->in[CR_IN_conv_dgrad_bn_x];
    a.mean_rstd            = call->in[CR_IN_conv_dgrad_mean_rstd];
    a.gamma                = call->in[CR_IN_conv_dgrad_gamma];
    a.beta                 = call->in[CR_IN_conv_dgrad_beta];
    a.y                    = call->out[CR_OUT_conv_dgrad_dx];
    a.sums                 = call->out[CR_OUT_conv_dgrad_grad_sums];
    return launch(device, call, &a);
}

static void nothing_to_release(void *prepared) {
    (void)prepared;
}

/* ---- the kernels ---- */

#define POINT_KERNEL(kernel, kernel_name, kind, part, type, of_math)                                                   \
    static const struct cr_kernel kernel = {.name          = kernel_name,                                              \
                                            .op            = CR_OP_##kind,                                             \
                                            .math          = of_math,                                                  \
                                            .deterministic = true,                                                     \
                                            .accepts       = part##_accepts_##type,                                    \
                                            .algo_count    = part##_algo_count,                                        \
                                            .prepare       = part##_prepare,                                           \
                                            .launch        = part##_launch,                                            \
                                            .release       = nothing_to_release}
POINT_KERNEL(kernel_conv_f16, "cuda.point_conv.f16", conv, conv, f16, CR_MATH_F16);
POINT_KERNEL(kernel_conv_bf16, "cuda.point_conv.bf16", conv, conv, bf16, CR_MATH_BF16);
POINT_KERNEL(kernel_dgrad_f16, "cuda.point_dgrad.f16", conv_dgrad, dgrad, f16, CR_MATH_F16);
POINT_KERNEL(kernel_dgrad_bf16, "cuda.point_dgrad.bf16", conv_dgrad, dgrad, bf16, CR_MATH_BF16);

const struct cr_kernel *const cr_cuda_point_conv_kernels[] = {&kernel_conv_f16, &kernel_conv_bf16, &kernel_dgrad_f16,
                                                              &kernel_dgrad_bf16, NULL};
