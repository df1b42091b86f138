/* cuda/conv/pointwise/point_gram_kernels.c: kernel table of 1x1 convolutions whose BN takes its statistics from a Gram
 * matrix, and of the gradients of their inputs, f16 and bf16. Device code is in
 * cuda/conv/pointwise/point_gram_sm90a.cu for compute capability 9.0, and in cuda/conv/mma/gram/point_gram_mma.cu for
 * all others from 8.0 on. */
#include "cuda/conv/mma/gram/point_gram_mma.h"
#include "cuda/conv/mma/mma_device.h"
#include "cuda/conv/pointwise/point_conv.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/optional_slots.h"
#include "cuda/core/typed_kernels.h"

static bool is_point(const struct cr_op *op, const struct cr_tensor *x, enum cr_dtype type) {
    return x->dtype == type && op->attr.conv.pad == 0;
}

/* ---- the two implementations ---- */

static bool supports(const struct cr_device *device, const struct ck_point_conv *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    if (cuda_has_wgmma(device)) return ck_point_gram_supports(a);
    return cuda_uses_mma(device) && ck_point_gram_mma_supports(a, &gpu);
}
static int configs(const struct cr_device *device, const struct ck_point_conv *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    return cuda_has_wgmma(device) ? ck_point_gram_configs(a, gpu.multiprocessors) : ck_point_gram_mma_configs(a, &gpu);
}
static size_t workspace_of(const struct cr_device *device, const struct ck_point_conv *a) {
    const struct ck_mma_gpu gpu = cuda_mma_gpu(device);
    return cuda_has_wgmma(device) ? ck_point_gram_workspace(a, gpu.multiprocessors)
                                  : ck_point_gram_mma_workspace(a, &gpu);
}
static cr_status launch(struct cr_device *device, const struct cr_call *call, const struct ck_point_conv *a) {
    const struct ck_mma_gpu gpu    = cuda_mma_gpu(device);
    const cudaStream_t      stream = cr_cuda_stream(device, call);
    if (cuda_has_wgmma(device))
        CUDA_TRY(ck_point_gram(a, call->workspace, gpu.multiprocessors, stream));
    else
        CUDA_TRY(ck_point_gram_mma(a, call->workspace, &gpu, stream));
    return CR_OK;
}

/* ---- the convolution with its BN ---- */

static struct ck_point_conv conv_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(conv, x);
    return (struct ck_point_conv){.type           = cuda_type(x),
                                  .N              = x->dim[0],
                                  .H              = x->dim[1],
                                  .W              = x->dim[2],
                                  .C              = x->dim[3],
                                  .K              = OUT(conv, y)->dim[3],
                                  .stride         = op->attr.conv.stride,
                                  .config         = op->algo,
                                  .relu           = op->attr.conv.relu,
                                  .scale_bias     = data_of(IN(conv, scale_bias)),
                                  .add            = data_of(IN(conv, add)),
                                  .out_scale_bias = data_of(IN(conv, out_scale_bias)),
                                  .mask           = output_of(OUT(conv, mask))};
}

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct cr_tensor *x = IN(conv, x), *w = IN(conv, w);
    const unsigned          ins =
        IN_BIT(conv, x) | IN_BIT(conv, w) | IN_BIT(conv, scale_bias) | IN_BIT(conv, add) | IN_BIT(conv, out_scale_bias);
    if (!cr_op_uses_only(op, ins, OUT_BIT(conv, y) | OUT_BIT(conv, mask)) || !IN(conv, out_scale_bias)) return false;
    const struct ck_point_conv a = conv_of(p, op);
    return is_point(op, x, type) && w->dim[1] == 1 && w->dim[2] == 1 && is_like(w, x) && is_like(OUT(conv, y), x) &&
           is_like(IN(conv, add), x) && is_f32(IN(conv, scale_bias)) && is_f32(IN(conv, out_scale_bias)) &&
           supports(device, &a);
}
BOTH_TYPES(conv)

static int conv_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_point_conv a = conv_of(p, op);
    return configs(device, &a);
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_point_conv a = conv_of(call->program, call->op);
    a.x                    = call->in[CR_IN_conv_x];
    a.w                    = call->in[CR_IN_conv_w];
    a.add                  = call->in[CR_IN_conv_add];
    a.scale_bias           = call->in[CR_IN_conv_scale_bias];
    a.out_scale_bias       = call->in[CR_IN_conv_out_scale_bias];
    a.y                    = call->out[CR_OUT_conv_y];
    a.mask                 = call->out[CR_OUT_conv_mask];
    return launch(device, call, &a);
}

/* ---- gradient by the input ---- */

enum { SUMMED_CHANNELS_MAX = 256 }; /* with sums: a block has all channels of a pixel */

/* For a mask. */
static bool reads_x_again(const struct cr_program *p, const struct cr_op *op) {
    return IN(gram_dgrad, mean_rstd) || op->attr.conv.relu;
}

static struct ck_point_conv dgrad_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(gram_dgrad, x);
    return (struct ck_point_conv){.type        = cuda_type(x),
                                  .N           = x->dim[0],
                                  .H           = x->dim[1],
                                  .W           = x->dim[2],
                                  .C           = IN(gram_dgrad, g)->dim[3],
                                  .K           = x->dim[3],
                                  .stride      = op->attr.conv.stride,
                                  .config      = op->algo,
                                  .add         = data_of(IN(gram_dgrad, add)),
                                  .scale_bias  = data_of(IN(gram_dgrad, scale_bias)),
                                  .mean_rstd   = data_of(IN(gram_dgrad, mean_rstd)),
                                  .bn_x        = reads_x_again(p, op) ? data_of(x) : NULL,
                                  .sums        = output_of(OUT(gram_dgrad, grad_sums)),
                                  .second_x    = data_of(x),
                                  .second_w    = data_of(IN(gram_dgrad, w_x)),
                                  .factor_bias = vector_of(IN(gram_dgrad, factor_bias))};
}

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                          enum cr_dtype type) {
    const struct cr_tensor    *x = IN(gram_dgrad, x), *g = IN(gram_dgrad, g);
    const struct ck_point_conv a = dgrad_of(p, op);
    if (IN(gram_dgrad, mean_rstd) && x->dim[3] > SUMMED_CHANNELS_MAX) return false;
    return is_point(op, x, type) && is_like(g, x) && is_like(IN(gram_dgrad, w_g), x) &&
           is_like(IN(gram_dgrad, w_x), x) && is_like(IN(gram_dgrad, add), x) && is_like(OUT(gram_dgrad, dx), x) &&
           is_f32(IN(gram_dgrad, factor_bias)) && is_f32(IN(gram_dgrad, scale_bias)) &&
           is_f32(IN(gram_dgrad, mean_rstd)) && supports(device, &a);
}
BOTH_TYPES(dgrad)

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
    a.x                    = call->in[CR_IN_gram_dgrad_g];
    a.w                    = call->in[CR_IN_gram_dgrad_w_g];
    a.second_x             = call->in[CR_IN_gram_dgrad_x];
    a.second_w             = call->in[CR_IN_gram_dgrad_w_x];
    a.factor_bias          = call->in[CR_IN_gram_dgrad_factor_bias];
    a.add                  = call->in[CR_IN_gram_dgrad_add];
    a.scale_bias           = call->in[CR_IN_gram_dgrad_scale_bias];
    a.mean_rstd            = call->in[CR_IN_gram_dgrad_mean_rstd];
    a.bn_x                 = reads_x_again(call->program, call->op) ? a.second_x : NULL;
    a.y                    = call->out[CR_OUT_gram_dgrad_dx];
    a.sums                 = call->out[CR_OUT_gram_dgrad_grad_sums];
    return launch(device, call, &a);
}

/* ---- the kernels ---- */

#define KERNELS(name, kind, ...)                                                                                       \
    static const struct cr_kernel name##_f16  = {CR_KERNEL("cuda.point_gram." #name ".f16", kind, CR_MATH_F16),        \
                                                 .accepts = name##_accepts_f16, .launch = name##_launch, __VA_ARGS__}, \
                                  name##_bf16 = {CR_KERNEL("cuda.point_gram." #name ".bf16", kind, CR_MATH_BF16),      \
                                                 .accepts = name##_accepts_bf16, .launch = name##_launch, __VA_ARGS__}
KERNELS(conv, conv, .algo_count = conv_algo_count);
KERNELS(dgrad, gram_dgrad, .algo_count = dgrad_algo_count, .prepare = dgrad_prepare, .release = nothing_to_release);

const struct cr_kernel *const cr_cuda_point_gram_kernels[] = {&conv_f16, &conv_bf16, &dgrad_f16, &dgrad_bf16, NULL};
