/* cuda/conv/mma/gram/point_gram_mma.cu: the family point_gram from compute capability 8.0 on
 * (cuda/common/fused_conv.h): 1x1 convolutions whose BN takes its statistics from a Gram matrix, and the gradients of
 * their inputs.
 *
 * The convolution moves 2*(C + K) bytes a pixel, 2*K more with add, K/8 more with the mask; the gradient
 * 2*(C + 2*K), 2*K more with add. The limiter is memory. Tiles, copies and products are those of
 * cuda/conv/mma/point_mma.cu. The gradient is one product over [second_x; x]: its first steps multiply act(second_x)
 * with second_w, then the sums are scaled and get their bias, and the other steps add x w^T. A warp loads `add`, and
 * second_x for the mask, before the products of a tile. */
#include "cuda/conv/mma/gram/point_gram_mma.cuh"
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

gram_kind kind_of(const struct ck_fused_conv *a) {
    if (!a->has_second) return a->has_scale_bias ? CONV_ACT : CONV;
    return a->has_mean_rstd ? GRAD_BN : a->has_bn_x ? GRAD_RELU : a->has_scale_bias ? GRAD_ACT : GRAD;
}
int seconds_of(const struct ck_fused_conv *a) {
    return a->has_second ? (int)(a->K / STEP) : 0;
}
int find_plan(struct plan *p, const struct ck_fused_conv *a, int algo, const struct ck_gpu *gpu) {
    const int64_t       rows = a->N * a->P * a->Q, steps = a->C / STEP + seconds_of(a);
    const int64_t       scale_bias = 2 * (a->has_second ? a->K : a->C);
    const struct demand d          = {
                 rows, a->K, steps, a->has_second ? 6 : 2, a->has_scale_bias ? scale_bias : 0, a->has_mean_rstd, true};
    return find_plan(p, &d, algo, gpu);
}

template <typename T, int COLUMNS, gram_kind KIND> cudaError_t start(const gram_params &p, cudaStream_t stream) {
    return ck_launch_shared(point_gram_mma<T, COLUMNS, KIND>, dim3((unsigned)(p.plan.groups * p.plan.blocks_k)),
                            dim3(THREADS), p.plan.bytes, stream, p);
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

gram_params gram_params_of(const struct ck_fused_conv *a, const struct plan *plan, void *workspace) {
    gram_params p    = params_of<gram_params>(a, plan, workspace);
    p.seconds        = seconds_of(a);
    p.second_x       = a->second_x;
    p.second_w       = a->second_w;
    p.factor_bias    = a->factor_bias;
    p.out_scale_bias = a->out_scale_bias;
    p.mask           = a->mask;
    return p;
}

/* Sets the pixels of a gradient that the kernel does not write: those between the pixels of a stride. */
cudaError_t set_others(const struct ck_fused_conv *a, cudaStream_t stream) {
    const size_t bytes = (size_t)(a->N * a->H * a->W * a->K) * 2;
    if (!a->has_second || a->stride == 1 || (a->has_add && a->add == a->y)) return cudaSuccess;
    return a->has_add ? cudaMemcpyAsync(a->y, a->add, bytes, cudaMemcpyDeviceToDevice, stream)
                      : cudaMemsetAsync(a->y, 0, bytes, stream);
}

bool supports(const struct ck_fused_conv *a) {
    const bool bn = a->has_mean_rstd, relu = a->has_bn_x && !bn; /* bn_x is the output of a ReLU */
    if (!ck_is_point_gram(a)) return false;
    if (!a->has_second) return true;
    if (bn != a->has_sums || (relu && (!a->has_add || a->has_scale_bias))) return false;
    return !bn || (a->has_bn_x && a->has_scale_bias && !a->has_add && a->stride == 1);
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    return supports(a) ? find_plan(&plan, a, -1, gpu) : 0;
}

size_t workspace_of(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    if (!a->has_sums || find_plan(&plan, a, a->config, gpu) <= a->config) return 0; /* only gradients have sums */
    return sums_bytes(plan);
}

cudaError_t launch(const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct plan plan;
    if (a->config < 0 || !supports(a) || find_plan(&plan, a, a->config, gpu) <= a->config) return cudaErrorInvalidValue;
    const gram_params p     = gram_params_of(a, &plan, workspace);
    cudaError_t       error = set_others(a, stream);
    if (error != cudaSuccess) return error;
    error = ck_by_half(a->type, [&](auto t) { return start_kind<decltype(t)>(p, kind_of(a), stream); });
    return error == cudaSuccess ? start_sums(p, a, stream) : error;
}

} // namespace

const struct ck_conv_family ck_point_gram_mma = ck_family<ck_fused_conv, configs, workspace_of, launch>();
