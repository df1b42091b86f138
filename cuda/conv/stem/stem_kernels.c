/* cuda/conv/stem/stem_kernels.c: kernel table of the space-to-depth stem: forward, forward with max-pooling and
 * filter gradient, in f16 and bf16. Device code is in cuda/conv/stem/stem_sm90a.cu for compute capability 9.0, and in
 * cuda/conv/mma for all others from 8.0 on, without max-pooling. */
#include "cuda/conv/mma/mma_device.h"
#include "cuda/conv/mma/stem_mma.h"
#include "cuda/conv/stem/stem.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/optional_slots.h"

#define IN_BIT(kind, slot) (1u << CR_IN_##kind##_##slot)
#define OUT_BIT(kind, slot) (1u << CR_OUT_##kind##_##slot)

/* x, y (or dy) and the filter or its gradient. */
static bool is_stem(const struct cr_op *op, enum cr_dtype type, const struct cr_tensor *x,
                    const struct cr_tensor *filter, const struct cr_tensor *y) {
    return x->dtype == type && y->dtype == type && op->attr.conv.stride == 1 && op->attr.conv.pad == 0 &&
           x->dim[3] == CK_STEM_CHANNELS && filter->dim[1] == CK_STEM_SIDE && filter->dim[2] == CK_STEM_SIDE;
}

/* ---- forward ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_##slot)

static struct ck_stem_conv conv_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    return (struct ck_stem_conv){.type = cuda_type(x),
                                 .N    = x->dim[0],
                                 .H    = x->dim[1],
                                 .W    = x->dim[2],
                                 .K    = OUT(y)->dim[3],
                                 .bias = vector_of(IN(bias)),
                                 .relu = op->attr.conv.relu,
                                 .sums = output_of(OUT(sums))};
}

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    if (!cr_op_uses_only(op, IN_BIT(conv, x) | IN_BIT(conv, w) | IN_BIT(conv, bias),
                         OUT_BIT(conv, y) | OUT_BIT(conv, sums)))
        return false;
    if (!is_stem(op, type, IN(x), IN(w), OUT(y)) || IN(w)->dtype != type || !is_f32(IN(bias)) || !is_f32(OUT(sums)))
        return false;
    const struct ck_stem_conv a   = conv_of(p, op);
    const struct ck_mma_gpu   gpu = cuda_mma_gpu(device);
    if (cuda_has_wgmma(device)) return ck_stem_conv_supports(&a);
    return cuda_uses_mma(device) && ck_stem_mma_supports(&a, &gpu);
}
static bool conv_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return conv_accepts(device, p, op, CR_F16);
}
static bool conv_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return conv_accepts(device, p, op, CR_BF16);
}

static cr_status conv_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_stem_conv a   = conv_of(p, op);
    const struct ck_mma_gpu   gpu = cuda_mma_gpu(device);
    *prepared                     = NULL;
    *workspace_bytes =
        cuda_has_wgmma(device) ? ck_stem_conv_workspace(&a, gpu.multiprocessors) : ck_stem_mma_workspace(&a, &gpu);
    return CR_OK;
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_mma_gpu gpu    = cuda_mma_gpu(device);
    const cudaStream_t      stream = cr_cuda_stream(device, call);
    struct ck_stem_conv     a      = conv_of(call->program, call->op);
    a.x                            = call->in[CR_IN_conv_x];
    a.w                            = call->in[CR_IN_conv_w];
    a.bias                         = call->in[CR_IN_conv_bias];
    a.y                            = call->out[CR_OUT_conv_y];
    a.sums                         = call->out[CR_OUT_conv_sums];
    if (cuda_has_wgmma(device))
        CUDA_TRY(ck_stem_conv(&a, call->workspace, gpu.multiprocessors, stream));
    else
        CUDA_TRY(ck_stem_mma(&a, call->workspace, &gpu, stream));
    return CR_OK;
}

#undef IN
#undef OUT

/* ---- forward with max-pooling ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_pool_##slot)

static struct ck_stem_pool pool_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    return (struct ck_stem_pool){
        .type = cuda_type(x), .N = x->dim[0], .H = x->dim[1], .W = x->dim[2], .K = IN(w)->dim[0]};
}

static bool pool_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct cr_tensor *y = cuda_out(p, op, CR_OUT_conv_pool_y);
    if (!is_stem(op, type, IN(x), IN(w), y) || IN(w)->dtype != type || !is_f32(IN(bias))) return false;
    const struct ck_stem_pool a = pool_of(p, op);
    return cuda_has_wgmma(device) && ck_stem_pool_supports(&a);
}
static bool pool_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return pool_accepts(device, p, op, CR_F16);
}
static bool pool_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return pool_accepts(device, p, op, CR_BF16);
}

static cr_status pool_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_stem_pool a = pool_of(call->program, call->op);
    a.x                   = call->in[CR_IN_conv_pool_x];
    a.w                   = call->in[CR_IN_conv_pool_w];
    a.bias                = call->in[CR_IN_conv_pool_bias];
    a.y                   = call->out[CR_OUT_conv_pool_y];
    CUDA_TRY(ck_stem_pool(&a, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

#undef IN

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
static int grad_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)p, (void)op;
    return cuda_has_wgmma(device) ? 1 : ck_stem_grad_mma_configs();
}

static bool grad_supports(const struct cr_device *device, const struct ck_stem_grad *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    if (cuda_has_wgmma(device)) return ck_stem_grad_supports(a);
    return cuda_uses_mma(device) && ck_stem_grad_mma_supports(a, &gpu);
}
static size_t grad_workspace(const struct cr_device *device, const struct ck_stem_grad *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    return cuda_has_wgmma(device) ? ck_stem_grad_workspace(a, gpu.multiprocessors)
                                  : ck_stem_grad_mma_workspace(a, &gpu);
}
static cr_status grad_start(struct cr_device *device, const struct cr_call *call, const struct ck_stem_grad *a) {
    const struct ck_mma_gpu gpu    = cuda_mma_gpu(device);
    const cudaStream_t      stream = cr_cuda_stream(device, call);
    if (cuda_has_wgmma(device))
        CUDA_TRY(ck_stem_grad(a, call->workspace, gpu.multiprocessors, stream));
    else
        CUDA_TRY(ck_stem_grad_mma(a, call->workspace, &gpu, stream));
    return CR_OK;
}

#define IN(slot) cuda_in(p, op, CR_IN_conv_wgrad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_wgrad_##slot)

static bool wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                          enum cr_dtype type) {
    if (!cr_op_uses_only(op, IN_BIT(conv_wgrad, x) | IN_BIT(conv_wgrad, dy), OUT_BIT(conv_wgrad, dw))) return false;
    if (!is_stem(op, type, IN(x), OUT(dw), IN(dy)) || !is_f32(OUT(dw))) return false;
    const struct ck_stem_grad a = grad_of(op, IN(x), IN(dy));
    return grad_supports(device, &a);
}
static bool wgrad_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return wgrad_accepts(device, p, op, CR_F16);
}
static bool wgrad_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return wgrad_accepts(device, p, op, CR_BF16);
}

static cr_status wgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    const struct ck_stem_grad a = grad_of(op, IN(x), IN(dy));
    *prepared                   = NULL;
    *workspace_bytes            = grad_workspace(device, &a);
    return CR_OK;
}

static cr_status wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    struct ck_stem_grad      a  = grad_of(op, IN(x), IN(dy));
    a.x                         = call->in[CR_IN_conv_wgrad_x];
    a.g                         = call->in[CR_IN_conv_wgrad_dy];
    a.dw                        = call->out[CR_OUT_conv_wgrad_dw];
    return grad_start(device, call, &a);
}

#undef IN
#undef OUT
#define IN(slot) cuda_in(p, op, CR_IN_conv_grad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_grad_##slot)

static bool grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const unsigned in = IN_BIT(conv_grad, g) | IN_BIT(conv_grad, dy_x) | IN_BIT(conv_grad, dy_coeffs) |
                        IN_BIT(conv_grad, w) | IN_BIT(conv_grad, x);
    if (!cr_op_uses_only(op, in, OUT_BIT(conv_grad, dw))) return false;
    if (!is_stem(op, type, IN(x), OUT(dw), IN(g)) || !is_f32(OUT(dw)) || !is_f32(IN(dy_coeffs))) return false;
    if ((IN(dy_x) != NULL) != (IN(dy_coeffs) != NULL) || (IN(dy_x) && IN(dy_x)->dtype != type)) return false;
    struct ck_stem_grad a = grad_of(op, IN(x), IN(g));
    a.dy_x                = data_of(IN(dy_x));
    a.dy_coeffs           = vector_of(IN(dy_coeffs));
    return grad_supports(device, &a);
}
static bool grad_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return grad_accepts(device, p, op, CR_F16);
}
static bool grad_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return grad_accepts(device, p, op, CR_BF16);
}

static cr_status grad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_stem_grad a = grad_of(op, IN(x), IN(g));
    *prepared                   = NULL;
    *workspace_bytes            = grad_workspace(device, &a);
    return CR_OK;
}

static cr_status grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    struct ck_stem_grad      a  = grad_of(op, IN(x), IN(g));
    a.x                         = call->in[CR_IN_conv_grad_x];
    a.g                         = call->in[CR_IN_conv_grad_g];
    a.dy_x                      = call->in[CR_IN_conv_grad_dy_x];
    a.dy_coeffs                 = call->in[CR_IN_conv_grad_dy_coeffs];
    a.dw                        = call->out[CR_OUT_conv_grad_dw];
    return grad_start(device, call, &a);
}

#undef IN
#undef OUT

/* ---- filter gradient with the gradient of pooling, ReLU and BN ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_pool_grad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_pool_grad_##slot)

static struct ck_stem_pool_grad pool_grad_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    return (struct ck_stem_pool_grad){.type       = cuda_type(x),
                                      .N          = x->dim[0],
                                      .H          = x->dim[1],
                                      .W          = x->dim[2],
                                      .K          = IN(y)->dim[3],
                                      .accumulate = op->attr.conv.accumulate};
}

static bool pool_grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              enum cr_dtype type) {
    if (!is_stem(op, type, IN(x), OUT(dw), IN(y)) || IN(dy)->dtype != type || IN(index)->dtype != CR_U8) return false;
    if (!is_f32(IN(scale_bias)) || !is_f32(IN(coeffs)) || !is_f32(OUT(dw))) return false;
    const struct ck_stem_pool_grad a   = pool_grad_of(p, op);
    const struct ck_mma_gpu        gpu = cuda_mma_gpu(device);
    return cuda_uses_mma(device) && ck_stem_pool_grad_mma_supports(&a, &gpu);
}
static bool pool_grad_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return pool_grad_accepts(device, p, op, CR_F16);
}
static bool pool_grad_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return pool_grad_accepts(device, p, op, CR_BF16);
}

static cr_status pool_grad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                   void **prepared, size_t *workspace_bytes) {
    const struct ck_stem_pool_grad a   = pool_grad_of(p, op);
    const struct ck_mma_gpu        gpu = cuda_mma_gpu(device);
    *prepared                          = NULL;
    *workspace_bytes                   = ck_stem_pool_grad_mma_workspace(&a, &gpu);
    return CR_OK;
}

static cr_status pool_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_mma_gpu  gpu = cuda_mma_gpu(device);
    struct ck_stem_pool_grad a   = pool_grad_of(call->program, call->op);
    a.x                          = call->in[CR_IN_conv_pool_grad_x];
    a.g                          = call->in[CR_IN_conv_pool_grad_dy];
    a.y                          = call->in[CR_IN_conv_pool_grad_y];
    a.index                      = call->in[CR_IN_conv_pool_grad_index];
    a.coeffs                     = call->in[CR_IN_conv_pool_grad_coeffs];
    a.scale_bias                 = call->in[CR_IN_conv_pool_grad_scale_bias];
    a.dw                         = call->out[CR_OUT_conv_pool_grad_dw];
    CUDA_TRY(ck_stem_pool_grad_mma(&a, call->workspace, &gpu, cr_cuda_stream(device, call)));
    return CR_OK;
}

#undef IN
#undef OUT

static void nothing_to_release(void *prepared) {
    (void)prepared;
}

/* ---- the kernels ---- */

#define STEM_KERNEL(kernel, kernel_name, kind, part, algos, type, of_math)                                             \
    static const struct cr_kernel kernel = {.name          = kernel_name,                                              \
                                            .op            = CR_OP_##kind,                                             \
                                            .math          = of_math,                                                  \
                                            .deterministic = true,                                                     \
                                            .accepts       = part##_accepts_##type,                                    \
                                            .algo_count    = algos,                                                    \
                                            .prepare       = part##_prepare,                                           \
                                            .launch        = part##_launch,                                            \
                                            .release       = nothing_to_release}
STEM_KERNEL(kernel_conv_f16, "cuda.stem.f16", conv, conv, NULL, f16, CR_MATH_F16);
STEM_KERNEL(kernel_conv_bf16, "cuda.stem.bf16", conv, conv, NULL, bf16, CR_MATH_BF16);
STEM_KERNEL(kernel_wgrad_f16, "cuda.stem_wgrad.f16", conv_wgrad, wgrad, grad_algo_count, f16, CR_MATH_F16);
STEM_KERNEL(kernel_wgrad_bf16, "cuda.stem_wgrad.bf16", conv_wgrad, wgrad, grad_algo_count, bf16, CR_MATH_BF16);
STEM_KERNEL(kernel_grad_f16, "cuda.stem_grad.f16", conv_grad, grad, grad_algo_count, f16, CR_MATH_F16);
STEM_KERNEL(kernel_grad_bf16, "cuda.stem_grad.bf16", conv_grad, grad, grad_algo_count, bf16, CR_MATH_BF16);
STEM_KERNEL(kernel_pool_grad_f16, "cuda.stem_pool_grad.f16", conv_pool_grad, pool_grad, NULL, f16, CR_MATH_F16);
STEM_KERNEL(kernel_pool_grad_bf16, "cuda.stem_pool_grad.bf16", conv_pool_grad, pool_grad, NULL, bf16, CR_MATH_BF16);

static const struct cr_kernel kernel_pool_f16  = {CR_KERNEL("cuda.stem_pool.f16", conv_pool, CR_MATH_F16),
                                                  .accepts = pool_accepts_f16, .launch = pool_launch};
static const struct cr_kernel kernel_pool_bf16 = {CR_KERNEL("cuda.stem_pool.bf16", conv_pool, CR_MATH_BF16),
                                                  .accepts = pool_accepts_bf16, .launch = pool_launch};

const struct cr_kernel *const cr_cuda_stem_kernels[] = {&kernel_conv_f16,
                                                        &kernel_conv_bf16,
                                                        &kernel_pool_f16,
                                                        &kernel_pool_bf16,
                                                        &kernel_wgrad_f16,
                                                        &kernel_wgrad_bf16,
                                                        &kernel_grad_f16,
                                                        &kernel_grad_bf16,
                                                        &kernel_pool_grad_f16,
                                                        &kernel_pool_grad_bf16,
                                                        NULL};
