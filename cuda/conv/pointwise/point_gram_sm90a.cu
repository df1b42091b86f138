/* cuda/conv/pointwise/point_gram_sm90a.cu: the family point_gram on compute capability 9.0: 1x1 convolutions whose BN
 * has its statistics from a Gram matrix, and the gradients of their inputs. The code of a thread block is in
 * cuda/conv/pointwise/point_conv_block.cuh. */
#include "cuda/conv/pointwise/point_conv_block.cuh"

namespace {

#if CK_HAS_SM90A
template <int MODE> struct run_gram {
    template <class Worker> __device__ __forceinline__ void operator()(Worker &worker) const {
        if constexpr (MODE == JOINED) {
            if (worker.p.bn_given && worker.p.add_given)
                worker.template run_as<0, true, true>();
            else if (worker.p.bn_given)
                worker.template run_as<0, false, true>();
            else if (worker.p.add_given)
                worker.template run_as<0, true, false>();
            else
                worker.template run_as<0, false, false>();
        } else {
            if (worker.p.add_given)
                worker.template run_as<SCALE, true, false>();
            else
                worker.template run_as<SCALE, false, false>();
        }
    }
};
#endif

template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) point_gram(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    point_block<T, COLUMNS, WORKERS, RESIDENT, MODE>(p, run_gram<MODE>());
#else
    __trap();
#endif
}

using conv_tiles  = tile_list<tile<256, 2, true>, tile<128, 3, true>, tile<256, 2, false>>;
using dgrad_tiles = tile_list<tile<64, 4, true>, tile<64, 3, true>, tile<64, 2, true>, tile<256, 2, false>,
                              tile<128, 2, false>, tile<128, 3, false>>;

template <typename T, int MODE, class Tiles> cudaError_t start_as(const struct params *p, cudaStream_t stream) {
    return Tiles::start(p->plan, [&](auto tile) {
        using Tile = decltype(tile);
        return start_tile<Tile>(point_gram<T, Tile::COLUMNS, Tile::WORKERS, Tile::RESIDENT, MODE>, p, stream);
    });
}
template <typename T> cudaError_t start_mode(const struct params *p, bool second, cudaStream_t stream) {
    if (second) return start_as<T, JOINED, dgrad_tiles>(p, stream);
    return p->scale_bias ? start_as<T, ACT, conv_tiles>(p, stream) : start_as<T, AS_IS, conv_tiles>(p, stream);
}

bool supports(const struct ck_fused_conv *a) {
    if (!ck_is_point_gram(a)) return false;
    if (a->has_second) {
        const bool relu = a->has_bn_x && !a->has_mean_rstd; /* bn_x is the output of a ReLU */
        if (relu && (!a->has_add || a->has_scale_bias || a->has_sums)) return false;
        if (a->has_bn_x && !relu && (a->has_add || !a->has_scale_bias || !a->has_sums || a->stride > 1)) return false;
        return a->has_bn_x || !(a->has_sums || a->has_mean_rstd);
    }
    return !a->has_mean_rstd;
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    return supports(a) && find_plan(&plan, a, -1, 1) > 0 ? find_plan(&plan, a, -1, gpu->multiprocessors) : 0;
}

cudaError_t launch(const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct params p;
    cudaError_t   error = configs(a, gpu) ? prepare(&p, a, workspace, gpu) : cudaErrorInvalidValue;
    if (error != cudaSuccess) return error;
    if (a->has_second && a->stride > 1 && a->has_add &&
        a->add != a->y) { /* the pixels that the kernel does not write */
        const size_t bytes = (size_t)(a->N * a->H * a->W * a->K) * 2;
        error              = cudaMemcpyAsync(a->y, a->add, bytes, cudaMemcpyDeviceToDevice, stream);
        if (error != cudaSuccess) return error;
    }
    error = ck_by_half(a->type, [&](auto t) { return start_mode<decltype(t)>(&p, a->has_second, stream); });
    return error == cudaSuccess ? start_sums(&p, a, stream) : error;
}

} // namespace

const struct ck_conv_family ck_point_gram_wgmma = ck_family<ck_fused_conv, configs, workspace_of, launch>();
