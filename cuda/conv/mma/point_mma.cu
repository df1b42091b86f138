/* cuda/conv/mma/point_mma.cu: 1x1 convolutions: the family point_conv (cuda/common/fused_conv.h) from 8.0 on.
 *
 * Bytes and operations: see cuda/conv/pointwise/point_conv_block.cuh. The limiter is memory where C*K/(C + K) is below
 * about 100, else the tensor cores or shared memory: mma.sync reads 24 KiB of fragments for 128 x 128 x 16 products.
 *
 * A block has one set of 64 or 128 columns for the whole launch and every groups-th tile of 128 pixels. Copies
 * (cp.async) of 64 channels at a time run stages - 1 steps ahead, also across tiles. The filters stay in shared memory
 * where they fit, else they are copied with each step. act is applied to fragments in registers. Results leave by rows
 * through cuda/conv/mma/panel.cuh, where a lane adds `add`, masks, and sums its 8 columns. A second kernel adds the
 * sums of the blocks in a fixed order. Two blocks share a multiprocessor: one multiplies while the other stores. */
#include "cuda/conv/mma/point_mma_plan.cuh"
#include "cuda/conv/mma/point_mma_work.cuh"

namespace {

template <typename T, int COLUMNS, int KIND> __global__ void __launch_bounds__(THREADS, 2) point_mma(const params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const uint32_t                                 shared = ck_shared(memory);
    const int group = (int)blockIdx.x / p.plan.blocks_k, column = (int)blockIdx.x % p.plan.blocks_k * COLUMNS;
    ck_begin_after_last();
    using work = worker<T, COLUMNS, KIND>;
    copier<T, COLUMNS, work::W_TRANSPOSED> copier(p, shared, column, group);
    work                                   worker(p, shared, column);
    if (p.plan.resident) copier.copy_all_w();
    for (int s = 0; s < p.plan.stages - 1; s++) copier.next(s);
    worker.set_vectors(p, shared, column);
    __syncthreads(); /* the bias is complete */
    int stage = 0;
    for (int tile = group; tile < p.plan.tiles; tile += p.plan.groups) {
        worker.clear();
        for (int step = 0; step < p.plan.steps; step++) {
            wait_stage(p.plan.stages);
            __syncthreads(); /* the copies of all threads are visible, and no warp reads the stage before this one */
            copier.next(stage ? stage - 1 : p.plan.stages - 1);
            worker.multiply(stage, step);
            stage = stage + 1 < p.plan.stages ? stage + 1 : 0;
        }
        worker.finish(tile);
    }
    if (work::SUMS && p.partial) worker.write_sums(group, column);
}

/* ---- host side ---- */

enum kind kind_of(const struct ck_fused_conv *a) {
    if (a->transposed) return a->has_bn_x ? GRADIENT : TRANSPOSED;
    if (a->has_scale_bias) return ACT;
    return a->has_bias || a->has_add || a->relu ? INFER : PLAIN;
}

int find_plan(struct plan *p, const struct ck_fused_conv *a, int algo, const struct ck_gpu *gpu) {
    const int64_t       rows = a->N * a->P * a->Q, steps = (a->C + STEP - 1) / STEP;
    const struct demand d = {rows,        a->K, steps, a->has_bn_x ? 4 : 1, a->has_scale_bias ? 2 * a->C : 0,
                             a->has_bn_x, false};
    return find_plan(p, &d, algo, gpu);
}

template <typename T, int COLUMNS, int KIND> cudaError_t start(const params &p, cudaStream_t stream) {
    return ck_launch_shared(point_mma<T, COLUMNS, KIND>, dim3((unsigned)(p.plan.groups * p.plan.blocks_k)),
                            dim3(THREADS), p.plan.bytes, stream, p);
}
template <typename T, int KIND> cudaError_t start_columns(const params &p, cudaStream_t stream) {
    if constexpr (KIND != GRADIENT)
        if (p.plan.columns == 128) return start<T, 128, KIND>(p, stream);
    return start<T, 64, KIND>(p, stream);
}
template <typename T> cudaError_t start_kind(const params &p, enum kind kind, cudaStream_t stream) {
    switch (kind) {
    case PLAIN: return start_columns<T, PLAIN>(p, stream);
    case INFER: return start_columns<T, INFER>(p, stream);
    case ACT: return start_columns<T, ACT>(p, stream);
    case TRANSPOSED: return start_columns<T, TRANSPOSED>(p, stream);
    case GRADIENT: return start_columns<T, GRADIENT>(p, stream);
    }
    return cudaErrorInvalidValue;
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    return ck_is_point_conv(a) ? find_plan(&plan, a, -1, gpu) : 0;
}

size_t workspace_of(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    if (!a->has_sums || find_plan(&plan, a, a->config, gpu) <= a->config) return 0;
    return sums_bytes(plan);
}

cudaError_t launch(const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct plan plan;
    if (a->config < 0 || !ck_is_point_conv(a) || find_plan(&plan, a, a->config, gpu) <= a->config)
        return cudaErrorInvalidValue;
    const params      p = params_of<params>(a, &plan, workspace);
    const cudaError_t error =
        ck_by_half(a->type, [&](auto t) { return start_kind<decltype(t)>(p, kind_of(a), stream); });
    return error == cudaSuccess ? start_sums(p, a, stream) : error;
}

} // namespace

const struct ck_conv_family ck_point_conv_mma = ck_family<ck_fused_conv, configs, workspace_of, launch>();
