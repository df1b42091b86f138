/* cuda/conv/mma/gram/point_gram_mma.cu: device code and launchers of cuda/conv/mma/gram/point_gram_mma.h.
 *
 * The convolution moves 2*(C + K) bytes a pixel, 2*K more with add, K/8 more with the mask; the gradient
 * 2*(C + 2*K), 2*K more with add. The limiter is memory. Tiles, copies and products are those of
 * cuda/conv/mma/point_mma.cu. The gradient is one product over [second_x; x]: its first steps multiply act(second_x)
 * with second_w, then the sums are scaled and get their bias, and the other steps add x w^T. A warp loads `add`, and
 * second_x for the mask, before the products of a tile. */
#include "cuda/common/column_sums.cuh"
#include "cuda/conv/mma/gram/gram_conv.h"
#include "cuda/conv/mma/gram/point_gram_mma.cuh"
#include "cuda/conv/mma/gram/point_gram_mma.h"
#include "cuda/conv/mma/point_mma_plan.cuh"

namespace {

/* The copies of a convolution or of a gradient. */
template <typename T, int COLUMNS, gram_kind KIND> struct copier_of {
    using copies = pair_copier<T, COLUMNS, KIND != GRAD_BN>;
};
template <typename T, int COLUMNS> struct copier_of<T, COLUMNS, CONV> { using copies = copier<T, COLUMNS, false>; };
template <typename T, int COLUMNS> struct copier_of<T, COLUMNS, CONV_ACT> { using copies = copier<T, COLUMNS, false>; };

template <typename T, int COLUMNS, gram_kind KIND>
__global__ void __launch_bounds__(THREADS, 2) point_gram_mma(const gram_params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const uint32_t                                 shared = ck_shared(memory);
    const int group = (int)blockIdx.x / p.plan.blocks_k, column = (int)blockIdx.x % p.plan.blocks_k * COLUMNS;
    ck_begin_after_last();
    using work = gram_worker<T, COLUMNS, KIND>;
    typename copier_of<T, COLUMNS, KIND>::copies copier(p, shared, column, group);
    work                                         worker(p, shared, column);
    if (p.plan.resident) copier.copy_all_w();
    for (int s = 0; s < p.plan.stages - 1; s++) copier.next(s);
    worker.set_vectors(column);
    __syncthreads(); /* the vectors are complete */
    int stage = 0;
    for (int tile = group; tile < p.plan.tiles; tile += p.plan.groups) {
        typename work::loaded loaded;
        worker.load(loaded, worker.row_of(tile, 0));
        worker.clear();
        for (int step = 0; step < p.plan.steps; step++) {
            wait_stage(p.plan.stages);
            __syncthreads(); /* the copies of all threads are visible, and no warp reads the stage before this one */
            copier.next(stage ? stage - 1 : p.plan.stages - 1);
            worker.multiply(stage, step);
            stage = stage + 1 < p.plan.stages ? stage + 1 : 0;
        }
        worker.finish(tile, loaded);
    }
    if (work::SUMS) worker.write_sums(group, column);
}

/* ---- host side ---- */

int64_t side_of(int64_t side, int stride) {
    return (side - 1) / stride + 1;
}
gram_kind kind_of(const struct ck_point_conv *a) {
    if (a->second_x) return a->mean_rstd ? GRAD_BN : a->bn_x ? GRAD_RELU : a->scale_bias ? GRAD_ACT : GRAD;
    return a->scale_bias ? CONV_ACT : CONV;
}
int seconds_of(const struct ck_point_conv *a) {
    return a->second_x ? (int)(a->K / STEP) : 0;
}
int find_plan(struct plan *p, const struct ck_point_conv *a, int algo, const struct ck_mma_gpu *gpu) {
    const int64_t       rows  = a->N * side_of(a->H, a->stride) * side_of(a->W, a->stride);
    const int64_t       steps = a->C / STEP + seconds_of(a), scale_bias = 2 * (a->second_x ? a->K : a->C);
    const struct demand d = {
        rows, a->K, steps, a->second_x ? 6 : 2, a->scale_bias ? scale_bias : 0, a->mean_rstd != nullptr, true};
    return find_plan(p, &d, algo, gpu);
}

template <typename T, int COLUMNS, gram_kind KIND> cudaError_t start(const gram_params &p, cudaStream_t stream) {
    const auto        kernel = point_gram_mma<T, COLUMNS, KIND>;
    const cudaError_t error  = ck_allow_shared(kernel, p.plan.bytes);
    if (error != cudaSuccess) return error;
    return ck_launch(kernel, dim3((unsigned)(p.plan.groups * p.plan.blocks_k)), dim3(THREADS), (size_t)p.plan.bytes,
                     stream, p);
}
template <typename T, gram_kind KIND> cudaError_t start_columns(const gram_params &p, cudaStream_t stream) {
    if constexpr (KIND != GRAD_BN)
        if (p.plan.columns == 128) return start<T, 128, KIND>(p, stream);
    return start<T, 64, KIND>(p, stream);
}
template <typename T> cudaError_t start_kind(const gram_params &p, gram_kind kind, cudaStream_t stream) {
    switch (kind) {
    case CONV: return start_columns<T, CONV>(p, stream);
    case CONV_ACT: return start_columns<T, CONV_ACT>(p, stream);
    case GRAD: return start_columns<T, GRAD>(p, stream);
    case GRAD_ACT: return start_columns<T, GRAD_ACT>(p, stream);
    case GRAD_BN: return start_columns<T, GRAD_BN>(p, stream);
    case GRAD_RELU: return start_columns<T, GRAD_RELU>(p, stream);
    }
    return cudaErrorInvalidValue;
}

gram_params params_of(const struct ck_point_conv *a, const struct plan *plan, void *workspace) {
    gram_params p    = {};
    p.plan           = *plan;
    p.x              = a->x;
    p.w              = a->w;
    p.add            = a->add;
    p.scale_bias     = a->scale_bias;
    p.mean_rstd      = a->mean_rstd;
    p.y              = a->y;
    p.partial        = a->sums ? static_cast<float *>(workspace) : nullptr;
    p.C              = (int)a->C;
    p.K              = (int)a->K;
    p.stride         = a->stride;
    p.H              = (int)a->H;
    p.W              = (int)a->W;
    p.P              = (int)side_of(a->H, a->stride);
    p.Q              = (int)side_of(a->W, a->stride);
    p.rows           = (int)a->N * p.P * p.Q;
    p.relu           = a->relu;
    p.seconds        = seconds_of(a);
    p.second_x       = a->second_x;
    p.second_w       = a->second_w;
    p.factor_bias    = a->factor_bias;
    p.out_scale_bias = a->out_scale_bias;
    p.mask           = a->mask;
    return p;
}

bool has_shape(const struct ck_point_conv *a) {
    const int64_t most = INT32_MAX / 2;
    if (a->type == CK_F32 || a->stride < 1 || a->stride > 8 || a->N < 1 || a->H < 1 || a->W < 1) return false;
    if (a->C < STEP || a->C % STEP || a->C > most || a->K < STEP || a->K % STEP || a->K > most / 8) return false;
    return a->H <= most / a->W && a->N <= most / (a->H * a->W);
}

/* Sets the pixels of a gradient that the kernel does not write: those between the pixels of a stride. */
cudaError_t set_others(const struct ck_point_conv *a, cudaStream_t stream) {
    const size_t bytes = (size_t)(a->N * a->H * a->W * a->K) * 2;
    if (!a->second_x || a->stride == 1 || a->add == a->y) return cudaSuccess;
    return a->add ? cudaMemcpyAsync(a->y, a->add, bytes, cudaMemcpyDeviceToDevice, stream)
                  : cudaMemsetAsync(a->y, 0, bytes, stream);
}

} // namespace

bool ck_point_gram_mma_supports(const struct ck_point_conv *a, const struct ck_mma_gpu *gpu) {
    if (!has_shape(a) || a->transposed || a->bias) return false;
    if (a->second_x) {
        const bool bn = a->mean_rstd != nullptr, relu = a->bn_x && !bn; /* bn_x is the output of a ReLU */
        if (a->relu || a->out_scale_bias || a->mask || !a->second_w || !a->factor_bias) return false;
        if (bn != (a->sums != nullptr) || (relu && (!a->add || a->scale_bias))) return false;
        if (bn && (!a->bn_x || !a->scale_bias || a->add || a->stride > 1)) return false;
    } else if (!a->out_scale_bias || a->sums || a->bn_x) {
        return false;
    }
    return ck_point_gram_mma_configs(a, gpu) > 0;
}

int ck_point_gram_mma_configs(const struct ck_point_conv *a, const struct ck_mma_gpu *gpu) {
    struct plan plan;
    return ck_gram_conv_configs(a, gpu) + find_plan(&plan, a, -1, gpu);
}

size_t ck_point_gram_mma_workspace(const struct ck_point_conv *a, const struct ck_mma_gpu *gpu) {
    struct plan plan;
    if (!a->sums || find_plan(&plan, a, a->config, gpu) <= a->config) return 0; /* only gradients have sums */
    return sizeof(float) * 2 * (size_t)plan.groups * (size_t)plan.blocks_k * (size_t)plan.columns;
}

cudaError_t ck_point_gram_mma(const struct ck_point_conv *a, void *workspace, const struct ck_mma_gpu *gpu,
                              cudaStream_t stream) {
    struct plan plan;
    const int   first = ck_gram_conv_configs(a, gpu);
    if (a->config < 0 || !ck_point_gram_mma_supports(a, gpu)) return cudaErrorInvalidValue;
    if (a->config < first) return ck_gram_conv(a, a->config, gpu, stream);
    if (find_plan(&plan, a, a->config - first, gpu) <= a->config - first) return cudaErrorInvalidValue;
    const gram_params p     = params_of(a, &plan, workspace);
    cudaError_t       error = set_others(a, stream);
    if (error != cudaSuccess) return error;
    error = a->type == CK_F16 ? start_kind<__half>(p, kind_of(a), stream)
                              : start_kind<__nv_bfloat16>(p, kind_of(a), stream);
    if (error != cudaSuccess || !a->sums) return error;
    return add_column_sums(p.partial, a->sums, plan.groups, (int64_t)plan.blocks_k * plan.columns, a->K, stream);
}
