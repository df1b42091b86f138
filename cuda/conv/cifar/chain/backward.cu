/* cuda/conv/cifar/chain/backward.cu: the backward of consecutive convolutions of a CIFAR ResNet in three launches: the
 * gradients of the inputs (cooperative), the parts of the filter gradients, their sums. See
 * cuda/conv/cifar/chain/backward.h. */
#include "cuda/conv/cifar/chain/backward.cuh"
#include "cuda/conv/cifar/chain/backward.h"
#include "cuda/conv/cifar/chain/backward_dw.cuh"

namespace cifar {
namespace {

template <typename T, int MOST>
__global__ void __launch_bounds__(BACK_THREADS, 1) backward_kernel(const __grid_constant__ back_args<MOST> a) {
    extern __shared__ __align__(16) char memory[];
    back_block                           k = {.memory = memory,
                                              .base   = ck_shared(memory),
                                              .mail   = a.memory,
                                              .all    = a.step,
                                              .index  = 0,
                                              .count  = a.count,
                                              .epoch  = a.memory->epoch};
    k.fetch(0), k.fetch(1);
    __syncthreads();
    back_layout::of_kind(k.step(0).kind).clear(k.half(0));
    back_issue<T, true>(k.half(0), k.step(0));
    for (; k.index < k.count; k.index++) {
        k.epoch++;
        switch (k.step(0).kind) {
        case BACK_16: back_conv<s16, T>(k); break;
        case BACK_DOWN_16: back_conv<d16, T>(k); break;
        case BACK_32: back_conv<s32, T>(k); break;
        case BACK_DOWN_32: back_conv<d32, T>(k); break;
        case BACK_64: back_conv<s64, T>(k); break;
        }
    }
    /* All blocks have read the first epoch: this warp owns channel 0 and has packets of all of them. */
    if (blockIdx.x == 0 && threadIdx.x == 0) a.memory->epoch = k.epoch;
}

/* ---- host side ---- */

/* Images of all jobs that compute one part of dw. */
enum { SPLIT_IMAGES = grad_tiling<s64>::GROUP * grad_tiling<s64>::I };
static_assert((int)SPLIT_IMAGES == (int)grad_tiling<d32>::GROUP * (int)grad_tiling<d32>::I, "the same for both");

int kind_of(const struct ck_conv *v) {
    if (v->C == 3) return BACK_STEM;
    if (v->stride == 1) return v->C == 16 ? BACK_16 : v->C == 32 ? BACK_32 : BACK_64;
    return v->C == 16 ? BACK_DOWN_16 : BACK_DOWN_32;
}

/* Calls run(shape, place) with the shape of a convolution and the place of its filter gradient. */
template <typename Run> auto run_kind(int kind, Run run) {
    switch (kind) {
    case BACK_16: return run(s16(), dw_place<s16>());
    case BACK_DOWN_16: return run(d16(), dw_place<d16>());
    case BACK_32: return run(s32(), dw_place<s32>());
    case BACK_DOWN_32: return run(d32(), dw_place<d32>());
    default: return run(s64(), dw_place<s64>());
    }
}
/* Rows of a convolution's parts: blocks of the second launch. */
int rows_of(int kind, int64_t N) {
    if (kind == BACK_STEM) return (int)N * STEM_TILES;
    return run_kind(kind,
                    [&](auto s, auto) { return grad_tiling<decltype(s)>::JOINT ? (int)N : (int)SPLIT_DW_BLOCKS; });
}
/* Floats of a row; number of parts of dw, which the rows are divided among. */
int row_floats(int kind) {
    if (kind == BACK_STEM) return STEM_DW;
    return run_kind(kind, [](auto, auto p) { return (int)decltype(p)::DW; });
}
int parts_of(int kind) {
    if (kind == BACK_STEM) return 1;
    return run_kind(kind, [](auto, auto p) { return (int)decltype(p)::PARTS; });
}

/* Elements of dy. */
int64_t dy_elems(const struct ck_conv *v) {
    return v->C == 3 ? 0 : v->N * v->P * v->Q * v->K;
}

back_step step_of(const struct ck_backward_step *step_args, uint16_t *dy) {
    const struct ck_cifar_conv_grad *s    = &step_args->grad;
    back_step                        step = {.g          = s->g,
                                             .dy_x       = s->dy_x,
                                             .w          = s->w,
                                             .x          = s->x,
                                             .add        = s->add,
                                             .bn_x       = s->bn_x,
                                             .dy_coeffs  = s->dy_coeffs,
                                             .scale_bias = s->scale_bias,
                                             .mean_rstd  = s->mean_rstd,
                                             .dx         = s->dx,
                                             .dy         = dy,
                                             .pad_dx     = step_args->pad_dx,
                                             .grad_sums  = s->grad_sums,
                                             .finish     = s->finish,
                                             .inverse    = 1 / (double)s->finish.count,
                                             .kind       = kind_of(&s->conv)};
    step.finish.mean_rstd                 = s->mean_rstd;
    return step;
}

template <typename T, int MOST>
cudaError_t inputs_run(const struct ck_backward_step *steps, int count, exchange *memory, uint16_t *dy,
                       cudaStream_t stream) {
    back_args<MOST>     a         = {.memory = memory, .count = count, .step = {}};
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t  config    = {};
    for (int i = 0; i < count; i++) {
        a.step[i] = step_of(&steps[i], dy);
        dy += dy_elems(&steps[i].grad.conv);
    }
    const cudaError_t error = ck_allow_shared(backward_kernel<T, MOST>, BACK_BYTES);
    if (error != cudaSuccess) return error;
    attribute.id              = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.gridDim            = dim3((unsigned)steps[0].grad.conv.N);
    config.blockDim           = dim3(BACK_THREADS);
    config.dynamicSmemBytes   = BACK_BYTES;
    config.stream             = stream;
    config.attrs              = &attribute;
    config.numAttrs           = 1;
    return cudaLaunchKernelEx(&config, backward_kernel<T, MOST>, a);
}

template <typename T, int MOST>
cudaError_t filters_run(const struct ck_backward_step *steps, int count, const uint16_t *dy, float *partial,
                        int multiprocessors, cudaStream_t stream) {
    dw_layers<MOST> a      = {.N = steps[0].grad.conv.N, .count = count, .jobs = 0, .layer = {}};
    int             blocks = 0, add_blocks = 0;
    for (int i = 0; i < count; i++) {
        const struct ck_cifar_conv_grad *s    = &steps[i].grad;
        const int                        kind = kind_of(&s->conv), rows = rows_of(kind, a.N);
        a.layer[i] = {.dy         = dy,
                      .x          = s->x,
                      .g          = s->g,
                      .dy_x       = s->dy_x,
                      .dy_coeffs  = s->dy_coeffs,
                      .scale_bias = s->scale_bias,
                      .partial    = partial,
                      .dw         = s->dw,
                      .begin      = blocks,
                      .add_begin  = add_blocks,
                      .each       = rows / parts_of(kind),
                      .kind       = kind,
                      .accumulate = s->accumulate};
        blocks += rows;
        add_blocks += row_floats(kind) / 4 / ADD_COLUMNS * parts_of(kind);
        partial += (int64_t)rows * row_floats(kind);
        dy += dy_elems(&s->conv);
    }
    cudaError_t error = ck_allow_shared(dw_parts_kernel<T, MOST>, DW_BYTES);
    if (error != cudaSuccess) return error;
    a.jobs = blocks;
    dw_parts_kernel<T, MOST><<<ck_blocks(blocks, 1, 2 * (int64_t)multiprocessors), THREADS, DW_BYTES, stream>>>(a);
    error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    dw_add_kernel<MOST><<<(unsigned)add_blocks, THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

/* The workspace: the parts of dw, then dy of all convolutions. */
size_t partial_floats(const struct ck_backward_step *steps, int count) {
    size_t floats = 0;
    for (int i = 0; i < count; i++) {
        const int kind = kind_of(&steps[i].grad.conv);
        floats += (size_t)rows_of(kind, steps[i].grad.conv.N) * (size_t)row_floats(kind);
    }
    return floats;
}

template <typename T, int MOST>
cudaError_t backward_run(const struct ck_backward_step *steps, int count, void *memory, void *workspace,
                         int multiprocessors, cudaStream_t stream) {
    const int         inputs  = steps[count - 1].grad.dx ? count : count - 1;
    float            *partial = (float *)workspace;
    uint16_t         *dy      = (uint16_t *)(partial + partial_floats(steps, count));
    const cudaError_t error   = inputs_run<T, MOST>(steps, inputs, (exchange *)memory, dy, stream);
    return error != cudaSuccess ? error : filters_run<T, MOST>(steps, count, dy, partial, multiprocessors, stream);
}
template <typename T>
cudaError_t backward_any(const struct ck_backward_step *steps, int count, void *memory, void *workspace,
                         int multiprocessors, cudaStream_t stream) {
    if (count <= 20) return backward_run<T, 20>(steps, count, memory, workspace, multiprocessors, stream);
    return backward_run<T, CK_BACKWARD_STEPS_MAX>(steps, count, memory, workspace, multiprocessors, stream);
}

} // namespace
} // namespace cifar

bool ck_cifar_backward_supports(int64_t images, int multiprocessors, int block_bytes) {
    return images >= 8 && images <= multiprocessors && images * 2 > multiprocessors &&
           images <= cifar::EXCHANGE_BLOCKS && images <= cifar::SPLIT_IMAGES && block_bytes >= cifar::BACK_BYTES;
}
bool ck_cifar_backward_accepts(const struct ck_conv *v) {
    return ck_cifar_conv_supports(v) && v->C >= 16 && v->R == 3;
}
size_t ck_cifar_backward_exchange(void) {
    return sizeof(cifar::exchange);
}
size_t ck_cifar_backward_workspace(const struct ck_backward_step *steps, int count) {
    size_t bytes = cifar::partial_floats(steps, count) * sizeof(float);
    for (int i = 0; i < count; i++) bytes += (size_t)cifar::dy_elems(&steps[i].grad.conv) * sizeof(uint16_t);
    return bytes;
}
cudaError_t ck_cifar_backward(const struct ck_backward_step *steps, int count, void *exchange, void *workspace,
                              int multiprocessors, cudaStream_t stream) {
    if (count < 2 || count > CK_BACKWARD_STEPS_MAX || !steps[0].grad.dy_x) return cudaErrorInvalidValue;
    for (int i = 0; i < count; i++) {
        const struct ck_cifar_conv_grad *s = &steps[i].grad;
        if (s->conv.N != steps[0].grad.conv.N || s->conv.type != steps[0].grad.conv.type) return cudaErrorInvalidValue;
        if (i + 1 == count && s->conv.C == 3 && ck_cifar_conv_supports(&s->conv)) continue;
        if (!ck_cifar_backward_accepts(&s->conv) || !s->finish.coeffs || !s->mean_rstd) return cudaErrorInvalidValue;
        if (steps[i].pad_dx && (i + 1 == count || s->conv.C < 32 || s->conv.stride != 1)) return cudaErrorInvalidValue;
    }
    return steps[0].grad.conv.type == CK_F16
               ? cifar::backward_any<__half>(steps, count, exchange, workspace, multiprocessors, stream)
               : cifar::backward_any<__nv_bfloat16>(steps, count, exchange, workspace, multiprocessors, stream);
}
