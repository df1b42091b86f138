/* cuda/conv/pointwise/point_grad_sm90a.cu: the whole backward of a 1x1 convolution with stride 1 in one pass over
 * memory: the gradient of the BN behind it (dy), dgrad, wgrad, the mask of the ReLU in front of it, and the sums for
 * the BN in front of it.
 *
 * A block owns a slice of C channels of x, all K channels of dy and every step-th tile of 64 pixels. One thread issues
 * all loads (cuda/conv/pointwise/point_grad_load.cuh); three or four warpgroups do the remaining work:
 *
 *   - dy = a*g + b*dy_x + c, rounded, in place of g in shared memory; in mode `inner` also xa from x
 *     (cuda/conv/pointwise/point_grad_make.cuh)
 *   - dw[K][C] += dy^T * xa, in registers from the first tile to the last (cuda/conv/pointwise/point_grad_work.cuh)
 *   - v[64][64] = dy * w for a unit, which is 64 channels of a tile and belongs to one warpgroup. The warpgroup then
 *     finishes the unit: v + add, mask, dx, and sums of dx and dx*(x-mean)
 *
 * w stays in shared memory; all products read w from there. Three divisions of the work
 * (cuda/conv/pointwise/point_grad_plan.cuh):
 *   - dw up to 16384 floats: all groups compute dy of the next tile while their products of this tile run.
 *   - dw of 32768 floats: two groups have the registers for dw and do products and units; a third computes dy and xa.
 *     Without dy_x there is no third one, and a unit is finished during the products of dw.
 *   - dw of 4096 floats: each group has tiles of its own.
 * Larger dw is divided among several blocks. Slices of C: dy is computed in each slice. The slices run concurrently on
 * neighbouring multiprocessors, so dy comes from memory once and from L2 once for each slice. Pairs (512 channels of
 * dy): each block of a cluster has half of K and sends half of its v to the other block. A second kernel adds the
 * blocks' dw and sums in a fixed order.
 *
 * Bytes a pixel, 16 bits an element: 4*(K + C), and 2*C each for add and bn_x. Limiter: memory. Roofline at 4 TB/s for
 * the shapes of ResNet-50 at batch 256: 257 us (K 256, C 64), 462 (64, 256, block), 128 (512, 128), 231 (128, 512,
 * block). The last two are limited by shared memory as well, where the tensor cores read both operands. */
#include "cuda/common/conv_family.cuh"
#include "cuda/common/fused_conv.h"
#include "cuda/common/point_grad_fold.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/pointwise/point_grad_load.cuh"
#include "cuda/conv/pointwise/point_grad_work.cuh"

namespace {

/* ---- the kernel ---- */

template <typename P> __device__ __forceinline__ void init_barriers(uint32_t base) {
    const uint32_t b = base + P::BARRIER_AT;
    for (int i = 0; i < P::BARRIERS; i++) ck_mbar_init(b + 8 * i, P::arrivals(i));
    ck_mbar_init_fence();
}

template <typename P> __device__ __forceinline__ void load_vectors(const args &a, uint32_t base, place place) {
    for (int i = (int)threadIdx.x; i < 3 * P::K && P::ABC_SHARED; i += P::THREADS)
        ck_put4(base + P::ABC_AT + i * 4, a.dy_coeffs[i / P::K * a.K + place.k + i % P::K]);
    for (int c = (int)threadIdx.x; c < P::C; c += P::THREADS) {
        const uint32_t at   = base + P::CHANNEL_AT + c * 4;
        const int      from = place.c + c;
        if (P::SUMS) ck_put4(at, a.mean_rstd[from]);
        if (P::MODE == INNER) {
            ck_put4(at + P::C * 4, a.scale_bias[from]);
            ck_put4(at + P::C * 8, a.scale_bias[a.C + from]);
        }
    }
}

template <typename T, typename P>
__global__ void __launch_bounds__(P::THREADS, 1) point_grad(const __grid_constant__ args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  base  = ck_shared(memory);
    const place                                     place = place_of<P>(a);
    if (threadIdx.x == 0) init_barriers<P>(base);
    ck_begin_after_last();
    load_vectors<P>(a, base, place);
    if constexpr (P::PAIR)
        ck_cluster_sync();
    else
        __syncthreads();
    const int warp = (int)__shfl_sync(0xffffffffu, threadIdx.x / CK_WARP, 0), lane = (int)threadIdx.x % CK_WARP;
    if (warp < P::WARPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)P::WORKER_REGS));
        worker<T, P> worker = {{{a, base, place}, warp / GROUP_WARPS}, warp % GROUP_WARPS, lane, {}, {}, {}};
        worker.run();
        worker.write_dw();
        if (worker.thread() == 0) ck_bulk_wait<0>(); /* before the shared memory is released */
        ck_barrier(1 + P::GROUPS, P::WORKERS);
        worker.write_grad_sums(base + P::G_AT);
    } else if (P::MAKER && warp < P::WARPS + GROUP_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)P::MAKER_REGS));
        if constexpr (P::MAKER) {
            const maker<T, P> maker = {{a, base, place}, 0};
            maker.run();
        }
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)P::LOADER_REGS));
        if (warp == P::THREADS / CK_WARP - GROUP_WARPS && lane == 0) {
            const loader<P> loader = {{a, base, place}};
            loader.run();
        }
    }
    if constexpr (P::PAIR) ck_cluster_sync(); /* the other block must not send to a block that has ended */
#else
    __trap(); /* code of another architecture is running: stop instead of a wrong result */
#endif
}

/* ---- host side ---- */

/* data [pixels][channels], read in boxes of `rows` pixels and 64 channels. With NULL data the map is not used. */
bool map_matrix(CUtensorMap *map, enum ck_type type, const void *data, int64_t pixels, int64_t channels, int rows) {
    return !data || ck_tma_matrix(map, type, data, pixels, channels, rows);
}

struct layout {
    int    tiles, slices, groups, dw_parts;
    size_t dw_bytes, sums_bytes;
};
template <typename P> struct layout layout_of(const struct ck_point_grad *args, int multiprocessors) {
    struct layout l;
    l.tiles  = (int)((args->pixels + TILE - 1) / TILE);
    l.slices = P::PAIR ? 2 : (int)(args->C / P::C);
    l.groups = multiprocessors / l.slices > 1 ? multiprocessors / l.slices : 1;
    if (l.groups > l.tiles) l.groups = l.tiles;
    l.dw_parts   = P::ALONE ? l.groups * P::GROUPS : l.groups;
    l.dw_bytes   = (size_t)l.dw_parts * (size_t)(args->K * args->C) * sizeof(float);
    l.sums_bytes = (size_t)l.groups * 2 * (size_t)args->C * sizeof(float);
    return l;
}

cudaError_t launch_pairs(void (*kernel)(args), dim3 blocks, dim3 threads, int bytes, cudaStream_t stream,
                         const args &a) {
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t  config  = {};
    cluster.id                  = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim      = {2, 1, 1};
    config.gridDim = blocks, config.blockDim = threads, config.dynamicSmemBytes = (size_t)bytes;
    config.stream = stream, config.attrs = &cluster, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, a);
}

template <typename T, typename P>
cudaError_t start(const struct ck_point_grad *args, void *workspace, int multiprocessors, cudaStream_t stream) {
    const struct layout l = layout_of<P>(args, multiprocessors);
    struct args         a;
    const int64_t       M = args->pixels, C = args->C, K = args->K;
    if (!map_matrix(&a.g, args->type, args->g, M, K, P::SHARE_ROWS) ||
        !map_matrix(&a.d, args->type, args->dy_x, M, K, P::SHARE_ROWS) ||
        !map_matrix(&a.x, args->type, args->x, M, C, TILE) || !map_matrix(&a.w, args->type, args->w, K, C, 64) ||
        !map_matrix(&a.add, args->type, args->add, M, C, TILE) ||
        !map_matrix(&a.bn_x, args->type, args->bn_x, M, C, TILE) ||
        !map_matrix(&a.dx, args->type, args->dx, M, C, TILE))
        return cudaErrorNotSupported;
    a.dy_coeffs = args->dy_coeffs, a.scale_bias = args->scale_bias, a.mean_rstd = args->mean_rstd;
    a.dw_part = (float *)workspace, a.sums_part = (float *)((char *)workspace + l.dw_bytes);
    a.pixels = M, a.C = (int)C, a.K = (int)K, a.tiles = l.tiles, a.slices = l.slices, a.has_add = args->has_add;
    const auto  kernel = point_grad<T, P>;
    cudaError_t error  = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::BYTES);
    if (error != cudaSuccess) return error;
    const dim3 blocks((unsigned)(l.groups * l.slices)), threads(P::THREADS);
    error = P::PAIR ? launch_pairs(kernel, blocks, threads, P::BYTES, stream, a)
                    : ck_launch(kernel, blocks, threads, (size_t)P::BYTES, stream, a);
    if (error != cudaSuccess) return error;
    const struct ck_parts parts = {a.dw_part, a.sums_part, l.dw_parts, l.groups};
    return ck_fold_parts(&parts, P::SUMS ? a.mean_rstd : NULL, args->dw, args->grad_sums, (int)K, (int)C,
                         args->accumulate, stream);
}

/* The kernels: shape of a block, mode, slots of g, dy_x, x, add and bn_x, pairs. C of the tensor is the plan's C times
 * the number of slices; K of a pair's tensor is twice the plan's K. */
#define PLANS(DO)                                                                                                      \
    DO(256, 64, INNER, 3, 1, 3, 4, 2, false)                                                                           \
    DO(256, 128, INNER, 2, 1, 2, 1, 2, true)                                                                           \
    DO(64, 256, BLOCK, 3, 2, 2, 4, 4, false)                                                                           \
    DO(128, 128, BLOCK, 3, 2, 3, 4, 4, false)                                                                          \
    DO(256, 128, BLOCK, 2, 1, 2, 2, 2, false)                                                                          \
    DO(64, 256, MASKED, 3, 2, 2, 8, 4, false)                                                                          \
    DO(128, 128, MASKED, 3, 2, 3, 8, 4, false)                                                                         \
    DO(256, 128, MASKED, 2, 1, 2, 3, 2, false)                                                                         \
    DO(256, 128, MASKED, 3, 0, 2, 4, 2, false)                                                                         \
    DO(64, 64, PLAIN, 8, 4, 8, 4, 4, false)                                                                            \
    DO(256, 64, PLAIN, 3, 1, 3, 4, 2, false)

enum { SLICES_MAX = 8, PIXELS_MAX = 1 << 30 };

int mode_of(const struct ck_point_grad *a) {
    if (a->has_scale_bias && a->has_mean_rstd && !a->has_bn_x && !a->has_add) return INNER;
    if (!a->has_scale_bias && a->has_mean_rstd && a->has_bn_x) return BLOCK;
    if (!a->has_scale_bias && !a->has_mean_rstd && a->has_bn_x) return MASKED;
    if (!a->has_scale_bias && !a->has_mean_rstd && !a->has_bn_x) return PLAIN;
    return -1;
}
template <typename P> bool fits(const struct ck_point_grad *a) {
    if (mode_of(a) != P::MODE || P::GIVEN == a->has_dy_x) return false;
    if (P::PAIR) return a->K == 2 * P::K && a->C == P::C;
    return a->K == P::K && a->C % P::C == 0 && a->C / P::C <= SLICES_MAX;
}

/* Calls use with a value of the first plan that fits, and returns its result; `none` if no plan fits. */
template <class Result, class Use> Result with_plan(const struct ck_point_grad *a, Result none, const Use &use) {
#define USE(...)                                                                                                       \
    if (fits<plan<__VA_ARGS__>>(a)) return use(plan<__VA_ARGS__>());
    PLANS(USE)
    return none;
}

int configs(const struct ck_point_grad *a, const struct ck_gpu *) {
    if ((a->type != CK_F16 && a->type != CK_BF16) || a->pixels < 1 || a->pixels > PIXELS_MAX) return 0;
    return with_plan(a, 0, [](auto) { return 1; });
}

size_t workspace_of(const struct ck_point_grad *a, const struct ck_gpu *gpu) {
    return with_plan(a, (size_t)0, [&](auto plan) {
        const struct layout l = layout_of<decltype(plan)>(a, gpu->multiprocessors);
        return l.dw_bytes + l.sums_bytes;
    });
}

cudaError_t launch(const struct ck_point_grad *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    return ck_by_half(a->type, [&](auto t) {
        return with_plan(a, cudaErrorInvalidValue, [&](auto plan) {
            return start<decltype(t), decltype(plan)>(a, workspace, gpu->multiprocessors, stream);
        });
    });
}

} // namespace

const struct ck_conv_family ck_point_grad_wgmma = ck_family<ck_point_grad, configs, workspace_of, launch>();
