/* cuda/conv/pointwise/point_grad_kernels.c: kernel table of the whole backward of 1x1 convolutions with stride 1, in
 * f16 and bf16. Device code is in cuda/conv/pointwise/point_grad_sm90a.cu for compute capability 9.0, and in
 * cuda/conv/mma/point_grad_mma.cu for all others from 8.0 on. */
#include "cuda/conv/mma/mma_device.h"
#include "cuda/conv/mma/point_grad_mma.h"
#include "cuda/conv/pointwise/point_grad.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/optional_slots.h"

#define IN(slot) cuda_in(p, op, CR_IN_conv_grad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_grad_##slot)
#define IN_BIT(slot) (1u << CR_IN_conv_grad_##slot)
#define OUT_BIT(slot) (1u << CR_OUT_conv_grad_##slot)

static struct ck_point_grad_kind kind_of(const struct cr_program *p, const struct cr_op *op) {
    return (struct ck_point_grad_kind){.type       = cuda_type(IN(x)),
                                       .pixels     = cuda_pixels(IN(x)),
                                       .C          = IN(x)->dim[3],
                                       .K          = IN(g)->dim[3],
                                       .dy_x       = IN(dy_x) && IN(dy_coeffs),
                                       .scale_bias = IN(scale_bias) != NULL,
                                       .mean_rstd  = IN(mean_rstd) != NULL,
                                       .add        = IN(add) != NULL,
                                       .bn_x       = IN(bn_x) != NULL || IN(y) != NULL};
}

/* With y the mode is `masked`. The kernels with mma.sync do not have it. They compute sums that nobody reads, of a BN
 * that does not exist: x is its input, (mean, rstd) are zeros in the workspace, and the sums follow them. */
static struct ck_point_grad_kind mma_kind_of(const struct cr_program *p, const struct cr_op *op) {
    struct ck_point_grad_kind kind = kind_of(p, op);
    kind.mean_rstd                 = kind.mean_rstd || IN(y);
    return kind;
}
static size_t unused_bytes(const struct cr_program *p, const struct cr_op *op) {
    return IN(y) ? 2 * sizeof(float) * (size_t)IN(x)->dim[3] : 0; /* a multiple of 512 */
}

static bool supports(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_mma_gpu         gpu  = cuda_mma_gpu(device);
    const struct ck_point_grad_kind kind = kind_of(p, op), mma = mma_kind_of(p, op);
    if (cuda_has_wgmma(device)) return ck_point_grad_supports(&kind);
    return cuda_uses_mma(device) && ck_point_grad_mma_supports(&mma, &gpu);
}

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x), *w = IN(w);
    if (!cr_op_uses_only(op,
                         IN_BIT(g) | IN_BIT(dy_x) | IN_BIT(dy_coeffs) | IN_BIT(w) | IN_BIT(x) | IN_BIT(scale_bias) |
                             IN_BIT(mean_rstd) | IN_BIT(add) | IN_BIT(bn_x) | IN_BIT(y),
                         OUT_BIT(dx) | OUT_BIT(dw) | OUT_BIT(grad_sums)))
        return false;
    if (op->attr.conv.stride != 1 || op->attr.conv.pad != 0 || w->dim[1] != 1 || w->dim[2] != 1) return false;
    if (!OUT(dx) || (IN(mean_rstd) != NULL) != (OUT(grad_sums) != NULL)) return false;
    if (IN(bn_x) && !IN(mean_rstd)) return false;
    if (op->attr.conv.add_pad_c) return false;
    if (IN(y) && (op->in[CR_IN_conv_grad_y] != op->in[CR_IN_conv_grad_x] || IN(mean_rstd) || IN(scale_bias)))
        return false;
    if (!is_like(IN(g), x) || !is_like(IN(dy_x), x) || !is_like(w, x) || !is_like(IN(add), x) ||
        !is_like(IN(bn_x), x) || !is_like(OUT(dx), x))
        return false;
    if (!is_f32(IN(dy_coeffs)) || !is_f32(IN(scale_bias)) || !is_f32(IN(mean_rstd)) || !is_f32(OUT(dw)) ||
        !is_f32(OUT(grad_sums)))
        return false;
    return supports(device, p, op);
}
static bool f16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return IN(x)->dtype == CR_F16 && accepts(device, p, op);
}
static bool bf16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return IN(x)->dtype == CR_BF16 && accepts(device, p, op);
}

static int point_grad_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_point_grad_kind mma = mma_kind_of(p, op);
    const struct ck_mma_gpu         gpu = cuda_mma_gpu(device);
    return cuda_has_wgmma(device) ? 1 : ck_point_grad_mma_configs(&mma, &gpu);
}

static cr_status point_grad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                    void **prepared, size_t *workspace_bytes) {
    const struct ck_mma_gpu         gpu  = cuda_mma_gpu(device);
    const struct ck_point_grad_kind kind = kind_of(p, op), mma = mma_kind_of(p, op);
    *prepared        = NULL;
    *workspace_bytes = cuda_has_wgmma(device)
                           ? ck_point_grad_workspace(&kind, gpu.multiprocessors)
                           : 2 * unused_bytes(p, op) + ck_point_grad_mma_workspace(&mma, op->algo, &gpu);
    return CR_OK;
}
static void nothing_to_release(void *prepared) {
    (void)prepared;
}

static struct ck_point_grad args_of(const struct cr_call *call, const struct ck_point_grad_kind *kind) {
    return (struct ck_point_grad){.kind       = *kind,
                                  .g          = call->in[CR_IN_conv_grad_g],
                                  .dy_x       = call->in[CR_IN_conv_grad_dy_x],
                                  .w          = call->in[CR_IN_conv_grad_w],
                                  .x          = call->in[CR_IN_conv_grad_x],
                                  .add        = call->in[CR_IN_conv_grad_add],
                                  .bn_x       = call->in[CR_IN_conv_grad_bn_x],
                                  .dy_coeffs  = call->in[CR_IN_conv_grad_dy_coeffs],
                                  .scale_bias = call->in[CR_IN_conv_grad_scale_bias],
                                  .mean_rstd  = call->in[CR_IN_conv_grad_mean_rstd],
                                  .dx         = call->out[CR_OUT_conv_grad_dx],
                                  .dw         = call->out[CR_OUT_conv_grad_dw],
                                  .grad_sums  = call->out[CR_OUT_conv_grad_grad_sums],
                                  .accumulate = call->op->attr.conv.accumulate};
}

static cr_status launch_mma(struct cr_device *device, const struct cr_call *call) {
    const struct ck_point_grad_kind kind   = mma_kind_of(call->program, call->op);
    const size_t                    unused = unused_bytes(call->program, call->op);
    const struct ck_mma_gpu         gpu    = cuda_mma_gpu(device);
    const cudaStream_t              stream = cr_cuda_stream(device, call);
    struct ck_point_grad            args   = args_of(call, &kind);
    char                           *work   = call->workspace;
    if (unused) {
        CUDA_TRY(cudaMemsetAsync(work, 0, unused, stream));
        args.mean_rstd = (const float *)(const void *)work;
        args.grad_sums = (float *)(void *)(work + unused);
        args.bn_x      = args.x;
    }
    CUDA_TRY(ck_point_grad_mma(&args, call->op->algo, work + 2 * unused, &gpu, stream));
    return CR_OK;
}

static cr_status point_grad_launch(struct cr_device *device, const struct cr_call *call) {
    if (!cuda_has_wgmma(device)) return launch_mma(device, call);
    const struct ck_point_grad_kind kind = kind_of(call->program, call->op);
    const struct ck_point_grad      args = args_of(call, &kind);
    CUDA_TRY(ck_point_grad(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

#define POINT_GRAD_KERNEL(kernel, type, of_type, of_math)                                                              \
    static const struct cr_kernel kernel = {.name          = "cuda.point_grad." type,                                  \
                                            .op            = CR_OP_conv_grad,                                          \
                                            .math          = of_math,                                                  \
                                            .deterministic = true,                                                     \
                                            .accepts       = of_type,                                                  \
                                            .algo_count    = point_grad_algo_count,                                    \
                                            .prepare       = point_grad_prepare,                                       \
                                            .launch        = point_grad_launch,                                        \
                                            .release       = nothing_to_release}
POINT_GRAD_KERNEL(kernel_f16, "f16", f16_accepts, CR_MATH_F16);
POINT_GRAD_KERNEL(kernel_bf16, "bf16", bf16_accepts, CR_MATH_BF16);

const struct cr_kernel *const cr_cuda_point_grad_kernels[] = {&kernel_f16, &kernel_bf16, NULL};
