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
#include "cuda/common/point_grad_fold.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/pointwise/point_grad.h"
#include "cuda/conv/pointwise/point_grad_load.cuh"
#include "cuda/conv/pointwise/point_grad_work.cuh"

/* ---- the kernel ---- */

template <typename P> static __device__ __forceinline__ void pg_barriers(uint32_t base) {
    const uint32_t b = base + P::BARRIER_AT;
    for (int i = 0; i < P::BARRIERS; i++) ck_mbar_init(b + 8 * i, P::arrivals(i));
    ck_mbar_init_fence();
}

template <typename P>
static __device__ __forceinline__ void pg_channels(const pg_args &a, uint32_t base, pg_place place) {
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
static __global__ void __launch_bounds__(P::THREADS, 1) pg_kernel(const __grid_constant__ pg_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char pg_memory[];
    const uint32_t                                  base  = ck_shared(pg_memory);
    const pg_place                                  place = pg_place_of<P>(a);
    if (threadIdx.x == 0) pg_barriers<P>(base);
    ck_begin_after_last();
    pg_channels<P>(a, base, place);
    if constexpr (P::PAIR)
        ck_cluster_sync();
    else
        __syncthreads();
    const int warp = (int)__shfl_sync(0xffffffffu, threadIdx.x / CK_WARP, 0), lane = (int)threadIdx.x % CK_WARP;
    if (warp < P::WARPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)P::WORKER_REGS));
        pg_worker<T, P> worker = {{{a, base, place}, warp / GROUP_WARPS}, warp % GROUP_WARPS, lane, {}, {}, {}};
        worker.run();
        worker.write_dw();
        if (worker.thread() == 0) ck_bulk_wait<0>(); /* before the shared memory is released */
        ck_barrier(1 + P::GROUPS, P::WORKERS);
        worker.write_grad_sums(base + P::G_AT);
    } else if (P::MAKER && warp < P::WARPS + GROUP_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)P::MAKER_REGS));
        if constexpr (P::MAKER) {
            const pg_maker<T, P> maker = {{a, base, place}, 0};
            maker.run();
        }
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)P::LOADER_REGS));
        if (warp == P::THREADS / CK_WARP - GROUP_WARPS && lane == 0) {
            const pg_loader<P> loader = {{a, base, place}};
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
static bool pg_map(CUtensorMap *map, enum ck_type type, const void *data, int64_t pixels, int64_t channels, int rows) {
    return !data || ck_tma_matrix(map, type, data, pixels, channels, rows);
}

struct pg_layout {
    int    tiles, slices, groups, dw_parts;
    size_t dw_bytes, sums_bytes;
};
template <typename P> static struct pg_layout pg_layout_of(const struct ck_point_grad_kind *kind, int multiprocessors) {
    struct pg_layout l;
    l.tiles  = (int)((kind->pixels + TILE - 1) / TILE);
    l.slices = P::PAIR ? 2 : (int)(kind->C / P::C);
    l.groups = multiprocessors / l.slices > 1 ? multiprocessors / l.slices : 1;
    if (l.groups > l.tiles) l.groups = l.tiles;
    l.dw_parts   = P::ALONE ? l.groups * P::GROUPS : l.groups;
    l.dw_bytes   = (size_t)l.dw_parts * (size_t)(kind->K * kind->C) * sizeof(float);
    l.sums_bytes = (size_t)l.groups * 2 * (size_t)kind->C * sizeof(float);
    return l;
}

static cudaError_t pg_launch_pairs(void (*kernel)(pg_args), dim3 blocks, dim3 threads, int bytes, cudaStream_t stream,
                                   const pg_args &a) {
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t  config  = {};
    cluster.id                  = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim      = {2, 1, 1};
    config.gridDim = blocks, config.blockDim = threads, config.dynamicSmemBytes = (size_t)bytes;
    config.stream = stream, config.attrs = &cluster, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, a);
}

template <typename T, typename P>
static cudaError_t pg_launch(const struct ck_point_grad *args, void *workspace, int multiprocessors,
                             cudaStream_t stream) {
    const struct ck_point_grad_kind *kind = &args->kind;
    const struct pg_layout           l    = pg_layout_of<P>(kind, multiprocessors);
    pg_args                          a;
    const int64_t                    M = kind->pixels, C = kind->C, K = kind->K;
    if (!pg_map(&a.g, kind->type, args->g, M, K, P::SHARE_ROWS) ||
        !pg_map(&a.d, kind->type, args->dy_x, M, K, P::SHARE_ROWS) || !pg_map(&a.x, kind->type, args->x, M, C, TILE) ||
        !pg_map(&a.w, kind->type, args->w, K, C, 64) || !pg_map(&a.add, kind->type, args->add, M, C, TILE) ||
        !pg_map(&a.bn_x, kind->type, args->bn_x, M, C, TILE) || !pg_map(&a.dx, kind->type, args->dx, M, C, TILE))
        return cudaErrorNotSupported;
    a.dy_coeffs = args->dy_coeffs, a.scale_bias = args->scale_bias, a.mean_rstd = args->mean_rstd;
    a.dw_part = (float *)workspace, a.sums_part = (float *)((char *)workspace + l.dw_bytes);
    a.pixels = M, a.C = (int)C, a.K = (int)K, a.tiles = l.tiles, a.slices = l.slices, a.has_add = args->add != NULL;
    const auto  kernel = pg_kernel<T, P>;
    cudaError_t error  = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::BYTES);
    if (error != cudaSuccess) return error;
    const dim3 blocks((unsigned)(l.groups * l.slices)), threads(P::THREADS);
    error = P::PAIR ? pg_launch_pairs(kernel, blocks, threads, P::BYTES, stream, a)
                    : ck_launch(kernel, blocks, threads, (size_t)P::BYTES, stream, a);
    if (error != cudaSuccess) return error;
    const struct pg_parts parts = {a.dw_part, a.sums_part, l.dw_parts, l.groups};
    return pg_fold(&parts, P::SUMS ? a.mean_rstd : NULL, args->dw, args->grad_sums, (int)K, (int)C, args->accumulate,
                   stream);
}

/* The kernels: shape of a block, mode, slots of g, dy_x, x, add and bn_x, pairs. C of the tensor is the plan's C times
 * the number of slices; K of a pair's tensor is twice the plan's K. */
#define PG_PLANS(DO)                                                                                                   \
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

static int pg_mode(const struct ck_point_grad_kind *kind) {
    if (kind->scale_bias && kind->mean_rstd && !kind->bn_x && !kind->add) return INNER;
    if (!kind->scale_bias && kind->mean_rstd && kind->bn_x) return BLOCK;
    if (!kind->scale_bias && !kind->mean_rstd && kind->bn_x) return MASKED;
    if (!kind->scale_bias && !kind->mean_rstd && !kind->bn_x) return PLAIN;
    return -1;
}
template <typename P> static bool pg_fits(const struct ck_point_grad_kind *kind) {
    if (pg_mode(kind) != P::MODE || P::GIVEN == kind->dy_x) return false;
    if (P::PAIR) return kind->K == 2 * P::K && kind->C == P::C;
    return kind->K == P::K && kind->C % P::C == 0 && kind->C / P::C <= SLICES_MAX;
}

bool ck_point_grad_supports(const struct ck_point_grad_kind *kind) {
    if ((kind->type != CK_F16 && kind->type != CK_BF16) || kind->pixels < 1 || kind->pixels > PIXELS_MAX) return false;
#define PG_TAKES(...)                                                                                                  \
    if (pg_fits<pg_plan<__VA_ARGS__>>(kind)) return true;
    PG_PLANS(PG_TAKES)
    return false;
}

size_t ck_point_grad_workspace(const struct ck_point_grad_kind *kind, int multiprocessors) {
#define PG_BYTES(...)                                                                                                  \
    if (pg_fits<pg_plan<__VA_ARGS__>>(kind)) {                                                                         \
        const struct pg_layout l = pg_layout_of<pg_plan<__VA_ARGS__>>(kind, multiprocessors);                          \
        return l.dw_bytes + l.sums_bytes;                                                                              \
    }
    PG_PLANS(PG_BYTES)
    return 0;
}

cudaError_t ck_point_grad(const struct ck_point_grad *args, void *workspace, int multiprocessors, cudaStream_t stream) {
    const struct ck_point_grad_kind *kind = &args->kind;
#define PG_LAUNCH(...)                                                                                                 \
    if (pg_fits<pg_plan<__VA_ARGS__>>(kind))                                                                           \
        return kind->type == CK_F16                                                                                    \
                   ? pg_launch<__half, pg_plan<__VA_ARGS__>>(args, workspace, multiprocessors, stream)                 \
                   : pg_launch<__nv_bfloat16, pg_plan<__VA_ARGS__>>(args, workspace, multiprocessors, stream);
    PG_PLANS(PG_LAUNCH)
    return cudaErrorInvalidValue;
}
