/* cuda/conv/pointwise/point_conv_sm90a.cu: 1x1 convolutions (the family point_conv) on compute capability 9.0; the code
 * of a thread block is in cuda/conv/pointwise/point_conv_block.cuh. */
#include "cuda/conv/pointwise/point_conv_block.cuh"

namespace {

#if CK_HAS_SM90A
/* Runs a worker with the features of the arguments as template parameters. */
template <int MODE> struct run_worker {
    template <class Worker> __device__ __forceinline__ void operator()(Worker &worker) const {
        if constexpr (MODE == ACT) {
            worker.template run_as<false, false, false>();
        } else if constexpr (MODE == AS_IS) {
            if (worker.p.add_given)
                worker.template run_as<true, true, false>();
            else if (worker.p.bias || worker.p.relu)
                worker.template run_as<true, false, false>();
            else
                worker.template run_as<false, false, false>();
        } else {
            if (worker.p.bn_given && worker.p.add_given)
                worker.template run_as<false, true, true>();
            else if (worker.p.bn_given)
                worker.template run_as<false, false, true>();
            else if (worker.p.add_given)
                worker.template run_as<false, true, false>();
            else
                worker.template run_as<false, false, false>();
        }
    }
};
#endif

template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) point_conv(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    point_block<T, COLUMNS, WORKERS, RESIDENT, MODE>(p, run_worker<MODE>());
#else
    __trap();
#endif
}

using tiles = tile_list<tile<256, 2, true>, tile<128, 2, true>, tile<128, 3, true>, tile<64, 4, true>,
                        tile<256, 2, false>, tile<128, 2, false>, tile<128, 3, false>, tile<128, 4, false>>;

template <typename T, int MODE> cudaError_t start_as(const struct params *p, cudaStream_t stream) {
    return tiles::start(p->plan, [&](auto tile) {
        using Tile = decltype(tile);
        return start_tile<Tile>(point_conv<T, Tile::COLUMNS, Tile::WORKERS, Tile::RESIDENT, MODE>, p, stream);
    });
}
template <typename T> cudaError_t start_mode(const struct params *p, bool transposed, cudaStream_t stream) {
    if (transposed) return start_as<T, TRANSPOSED>(p, stream);
    return p->scale_bias ? start_as<T, ACT>(p, stream) : start_as<T, AS_IS>(p, stream);
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    if (!ck_is_point_conv(a)) return 0;
    struct plan plan;
    return find_plan(&plan, a, -1, 1) > 0 ? find_plan(&plan, a, -1, gpu->multiprocessors) : 0;
}

cudaError_t launch(const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct params p;
    cudaError_t   error = configs(a, gpu) ? prepare(&p, a, workspace, gpu) : cudaErrorInvalidValue;
    if (error != cudaSuccess) return error;
    error = ck_by_half(a->type, [&](auto t) { return start_mode<decltype(t)>(&p, a->transposed, stream); });
    return error == cudaSuccess ? start_sums(&p, a, stream) : error;
}

} // namespace

const struct ck_conv_family ck_point_conv_wgmma = ck_family<ck_fused_conv, configs, workspace_of, launch>();
