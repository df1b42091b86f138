/* cuda/conv/mma/point_mma.cu: device code and launchers of cuda/conv/mma/point_mma.h.
 *
 * Bytes and operations: see cuda/conv/pointwise/point_conv_block.cuh. The limiter is memory where C*K/(C + K) is below
 * about 100, else the tensor cores or shared memory: mma.sync reads 24 KiB of fragments for 128 x 128 x 16 products.
 *
 * A block has one set of 64 or 128 columns for the whole launch and every groups-th tile of 128 pixels. Copies
 * (cp.async) of 64 channels at a time run stages - 1 steps ahead, also across tiles. The filters stay in shared memory
 * where they fit, else they are copied with each step. act is applied to fragments in registers. Results leave by rows
 * through cuda/conv/mma/panel.cuh, where a lane adds `add`, masks, and sums its 8 columns. A second kernel adds the
 * sums of the blocks in a fixed order. Two blocks share a multiprocessor: one multiplies while the other stores. */
#include "cuda/common/column_sums.cuh"
#include "cuda/conv/mma/point_mma.h"
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

int64_t side_of(int64_t side, int stride) {
    return (side - 1) / stride + 1;
}
int64_t rows_of(const struct ck_point_conv *a) {
    return a->N * side_of(a->H, a->stride) * side_of(a->W, a->stride);
}
enum kind kind_of(const struct ck_point_conv *a) {
    if (a->transposed) return a->bn_x ? GRADIENT : TRANSPOSED;
    if (a->scale_bias) return ACT;
    return a->bias || a->add || a->relu ? INFER : PLAIN;
}

int find_plan(struct plan *p, const struct ck_point_conv *a, int algo, const struct ck_mma_gpu *gpu) {
    const int64_t       steps = (a->C + STEP - 1) / STEP;
    const struct demand d     = {rows_of(a),         a->K, steps, a->bn_x ? 4 : 1, a->scale_bias ? 2 * a->C : 0,
                                 a->bn_x != nullptr, false};
    return find_plan(p, &d, algo, gpu);
}

template <typename T, int COLUMNS, int KIND> cudaError_t start(const params &p, cudaStream_t stream) {
    const auto        kernel = point_mma<T, COLUMNS, KIND>;
    const cudaError_t error  = ck_allow_shared(kernel, p.plan.bytes);
    if (error != cudaSuccess) return error;
    return ck_launch(kernel, dim3((unsigned)(p.plan.groups * p.plan.blocks_k)), dim3(THREADS), (size_t)p.plan.bytes,
                     stream, p);
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

params params_of(const struct ck_point_conv *a, const struct plan *plan, void *workspace) {
    params p     = {};
    p.plan       = *plan;
    p.x          = a->x;
    p.w          = a->w;
    p.add        = a->add;
    p.bn_x       = a->bn_x;
    p.scale_bias = a->scale_bias;
    p.bias       = a->bias;
    p.mean_rstd  = a->mean_rstd;
    p.gamma      = a->gamma;
    p.beta       = a->beta;
    p.y          = a->y;
    p.partial    = a->sums ? static_cast<float *>(workspace) : nullptr;
    p.rows       = (int)rows_of(a);
    p.C          = (int)a->C;
    p.K          = (int)a->K;
    p.stride     = a->stride;
    p.H          = (int)a->H;
    p.W          = (int)a->W;
    p.P          = (int)side_of(a->H, a->stride);
    p.Q          = (int)side_of(a->W, a->stride);
    p.relu       = a->relu;
    return p;
}

} // namespace

bool ck_point_mma_supports(const struct ck_point_conv *a, const struct ck_mma_gpu *gpu) {
    const int64_t most = INT32_MAX / 2;
    if (a->type == CK_F32 || a->stride < 1 || a->stride > 8 || a->N < 1 || a->H < 1 || a->W < 1) return false;
    if (a->C < 8 || a->C % 8 || a->C > most || a->K < 8 || a->K % 8 || a->K > most / 8) return false;
    if (a->H > most / a->W || a->N > most / (a->H * a->W)) return false;
    if (a->scale_bias && (a->C % STEP || a->transposed || a->bias || a->add || a->relu)) return false;
    if (a->transposed && (a->bias || a->relu || a->stride > 1)) return false;
    if (a->bn_x && !(a->transposed && a->mean_rstd && a->gamma && a->beta)) return false;
    if (a->sums && (a->bias || a->relu || (a->add && !a->bn_x))) return false;
    return ck_point_mma_configs(a, gpu) > 0;
}

int ck_point_mma_configs(const struct ck_point_conv *a, const struct ck_mma_gpu *gpu) {
    struct plan plan;
    return find_plan(&plan, a, -1, gpu);
}

size_t ck_point_mma_workspace(const struct ck_point_conv *a, const struct ck_mma_gpu *gpu) {
    struct plan plan;
    if (!a->sums || find_plan(&plan, a, a->config, gpu) <= a->config) return 0;
    return sizeof(float) * 2 * (size_t)plan.groups * (size_t)plan.blocks_k * (size_t)plan.columns;
}

cudaError_t ck_point_mma(const struct ck_point_conv *a, void *workspace, const struct ck_mma_gpu *gpu,
                         cudaStream_t stream) {
    struct plan plan;
    if (a->config < 0 || !ck_point_mma_supports(a, gpu) || find_plan(&plan, a, a->config, gpu) <= a->config)
        return cudaErrorInvalidValue;
    const params      p     = params_of(a, &plan, workspace);
    const cudaError_t error = a->type == CK_F16 ? start_kind<__half>(p, kind_of(a), stream)
                                                : start_kind<__nv_bfloat16>(p, kind_of(a), stream);
    if (error != cudaSuccess || !a->sums) return error;
    return add_column_sums(p.partial, a->sums, plan.groups, (int64_t)plan.blocks_k * plan.columns, a->K, stream);
}
