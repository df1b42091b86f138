/* cuda/sparse/direct/direct_wgrad.cu: the gradient of the nonzero weights of a filter.
 *
 * Each gradient is a dot product over all output pixels, of one channel of dy and one channel of x, shifted by the
 * weight's tap. The tiling and the staging of x are those of cuda/sparse/direct/direct_conv.cu. A warp keeps dy of its
 * output channels at its tile's pixels in registers. An entry is read, multiplied and summed over the lanes: two
 * entries together with one exchange, which leaves 16 lanes to each, and then through shared memory, where each lane
 * sums one of 32 entries. The sums of a tile are written to `partial`. A second kernel adds the tiles in their order.
 *
 * Bytes: dy once; x once per block of output channels (from L2, except the first time); 8 per entry and tile; dw once.
 * Limiter: reads of shared memory as in cuda/sparse/direct/direct_conv.cu, 16 bytes per quad of multiply-adds, with 3
 * more cycles per entry: at most 4*quads/(4*quads + 3) of 17 TFLOP/s of nonzero weights. */
#include "cuda/sparse/direct/direct_tile.cuh"

namespace sparse {
namespace {

enum { HALF = CK_WARP / 2, WARP_BYTES = CK_WARP * 4 + CK_WARP * HALF * 4, REDUCE_ENTRIES = 32, REDUCE_GROUPS = 8 };

struct wgrad_args {
    kernel_args  k;
    const float *dy;
    float       *partial; /* [tiles][entries] */
    int64_t      entries;
};

/* Loads dy of the tile's points and the block's channels, [point][channels + 1], through shared memory into registers.
 * dy is 0 where there is no output. */
template <int QUADS, int ROWS>
__device__ __forceinline__ void load_dy(const wgrad_args &w, const int *points, float *staged_dy, int64_t k0, int first,
                                        float (&dy)[ROWS][4 * QUADS]) {
    constexpr int ITEMS    = QUADS * CK_WARP;
    const int     channels = w.k.plan.channels, pitch = channels + 1, lane = (int)threadIdx.x % CK_WARP;
    const int64_t K = w.k.a.conv.K;
    for (int i = (int)threadIdx.x; i < ITEMS * 4 * channels; i += (int)blockDim.x) {
        const int     point = i / channels, pixel = points[point];
        const int64_t channel = k0 + i % channels;
        staged_dy[point * pitch + i % channels] =
            pixel >= 0 && channel < K ? __ldg(w.dy + (int64_t)pixel * K + channel) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < 4 * QUADS; v++)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            dy[r][v] = staged_dy[((v % 4 * QUADS + v / 4) * CK_WARP + lane) * pitch + first + r];
}

/* The product of one entry at this thread's points. */
template <int QUADS>
__device__ __forceinline__ float dot(const char *memory, const uint32_t (&base)[QUADS], uint32_t offset,
                                     const float (&dy)[4 * QUADS]) {
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        const float4 a = *reinterpret_cast<const float4 *>(memory + (base[j] + offset));
        sum[0]         = fmaf(dy[4 * j + 0], a.x, sum[0]);
        sum[1]         = fmaf(dy[4 * j + 1], a.y, sum[1]);
        sum[2]         = fmaf(dy[4 * j + 2], a.z, sum[2]);
        sum[3]         = fmaf(dy[4 * j + 3], a.w, sum[3]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The 16 parts of entry `row` of 32 are stored rotated by row/2, so that both the write of two rows and the read of all
 * rows access each bank once. */
__device__ __forceinline__ int place_of_part(int row, int part) {
    return row * HALF + (part + row / 2) % HALF;
}

/* Each lane sums one of 32 entries, or of the first `count`. */
__device__ __forceinline__ void flush(const float *parts, int count, float *to) {
    const int lane = (int)threadIdx.x % CK_WARP;
    float     sum  = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HALF; i++) sum += parts[place_of_part(lane, i)];
    if (lane < count) to[lane] = sum;
    __syncwarp();
}

/* Computes all nonzero weights of this warp's rows in one chunk, in the order of multiply() in
 * cuda/sparse/direct/direct_conv.cu. */
template <int QUADS, int ROWS>
__device__ __forceinline__ void sum_entries(const wgrad_args &w, const uint32_t *start, int part, int64_t tile,
                                            const char *memory, const uint32_t (&base)[QUADS], uint32_t *ring,
                                            float *parts, const float (&dy)[ROWS][4 * QUADS]) {
    const int               lane = (int)threadIdx.x % CK_WARP, half = lane / HALF;
    const row_entries<ROWS> rows(start, part, w.k.plan.split);
    const uint32_t         *offsets = w.k.a.offsets + rows.first + lane;
    float                  *to      = w.partial + tile * w.entries + rows.first;
    uint32_t                next    = lane < rows.total ? __ldg(offsets) : 0;
    int                     i       = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int end = rows.end(r);
#pragma unroll 1
        for (; i < end; i += CK_SPARSE_PAIR) {
            if (i % CK_WARP == 0) {
                if (i) flush(parts, CK_WARP, to + i - CK_WARP);
                __syncwarp();
                ring[lane] = next;
                __syncwarp();
                if (i + CK_WARP + lane < rows.total) next = __ldg(offsets + i + CK_WARP);
            }
            const uint2 pair = *reinterpret_cast<const uint2 *>(ring + i % CK_WARP);
            const float a = dot<QUADS>(memory, base, pair.x, dy[r]), b = dot<QUADS>(memory, base, pair.y, dy[r]);
            const float other                                     = __shfl_xor_sync(0xffffffffu, half ? a : b, HALF);
            parts[place_of_part(i % CK_WARP + half, lane % HALF)] = (half ? b : a) + other;
        }
    }
    if (rows.total) flush(parts, (rows.total - 1) % CK_WARP + 1, to + (rows.total - 1) / CK_WARP * CK_WARP);
}

template <int QUADS, int ROWS>
__global__ void __launch_bounds__(512, 1) wgrad_kernel(const __grid_constant__ wgrad_args w) {
    extern __shared__ __align__(16) char memory[];
    constexpr int                        ITEMS = QUADS * CK_WARP;
    const kernel_args                   &k     = w.k;
    int *table = reinterpret_cast<int *>(memory + k.table_at), *points = reinterpret_cast<int *>(memory + k.points_at);
    const int     lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    uint32_t     *ring  = reinterpret_cast<uint32_t *>(memory + k.ring_at + warp * WARP_BYTES);
    float        *parts = reinterpret_cast<float *>(ring + CK_WARP);
    const int64_t tile = blockIdx.x / k.plan.k_blocks, block_k = blockIdx.x % k.plan.k_blocks;
    const int64_t k0 = block_k * k.plan.channels, rows_all = k.plan.k_blocks * k.plan.channels;
    /* first channel within the thread block */
    const int part = warp % k.plan.split, first = warp / k.plan.split * ROWS;

    fill_table(k, tile, table);
    fill_points(k, tile, ITEMS, points);
    __syncthreads();
    float dy[ROWS][4 * QUADS];
    load_dy<QUADS, ROWS>(w, points, reinterpret_cast<float *>(memory), k0, first, dy);
    uint32_t base[QUADS];
    find_bases(k, lane, base);
    for (int chunk = 0; chunk < k.plan.chunks; chunk++) {
        const int c0 = chunk * k.plan.chunk, left = (int)k.a.conv.C - c0;
        __syncthreads();
        stage<QUADS == 4 ? 2 : 4, float>(k, table, reinterpret_cast<float *>(memory), c0,
                                         left < k.plan.chunk ? left : k.plan.chunk);
        __syncthreads();
        sum_entries<QUADS, ROWS>(w, k.a.start + chunk * rows_all + k0 + first, part, tile, memory, base, ring, parts,
                                 dy);
    }
}

/* dw[from[i]] (+)= the sum over tiles. Each of 8 threads per entry sums every eighth tile. */
__global__ void __launch_bounds__(REDUCE_ENTRIES *REDUCE_GROUPS)
    add_tiles(const float *partial, const uint32_t *from, int64_t entries, int64_t tiles, bool accumulate, float *dw) {
    __shared__ float sums[REDUCE_GROUPS][REDUCE_ENTRIES];
    const int        lane = (int)threadIdx.x % REDUCE_ENTRIES, group = (int)threadIdx.x / REDUCE_ENTRIES;
    const int64_t    entry = (int64_t)blockIdx.x * REDUCE_ENTRIES + lane;
    float            sum   = 0;
    if (entry < entries)
#pragma unroll 4
        for (int64_t t = group; t < tiles; t += REDUCE_GROUPS) sum += partial[t * entries + entry];
    sums[group][lane] = sum;
    __syncthreads();
    if (group || entry >= entries || from[entry] == UINT32_MAX) return;
#pragma unroll
    for (int g = 1; g < REDUCE_GROUPS; g++) sum += sums[g][lane];
    float *to = dw + from[entry];
    *to       = accumulate ? *to + sum : sum;
}

template <int QUADS, int ROWS> cudaError_t launch_wgrad(const wgrad_args &w, cudaStream_t stream) {
    const ck_sparse_plan &plan = w.k.plan;
    const cudaError_t     e    = ck_allow_shared(wgrad_kernel<QUADS, ROWS>, (int64_t)plan.shared_bytes);
    if (e != cudaSuccess) return e;
    const unsigned blocks = (unsigned)(plan.tiles * plan.k_blocks), threads = (unsigned)plan.warps * CK_WARP;
    wgrad_kernel<QUADS, ROWS><<<blocks, threads, plan.shared_bytes, stream>>>(w);
    return cudaGetLastError();
}

cudaError_t launch_tile(const wgrad_args &w, cudaStream_t stream) {
    switch (w.k.plan.quads * 16 + w.k.plan.rows) {
#define LAUNCH(QUADS, ROWS)                                                                                            \
    case QUADS * 16 + ROWS: return launch_wgrad<QUADS, ROWS>(w, stream);
        SPARSE_TILES(LAUNCH)
#undef LAUNCH
    }
    return cudaErrorInvalidValue;
}

} // namespace
} // namespace sparse

bool ck_sparse_wgrad_plan(const struct ck_conv *conv, int64_t nnz, int config, int multiprocessors, int shared_bytes,
                          struct ck_sparse_plan *plan) {
    return sparse::plan_tiles(*conv, nnz, config, multiprocessors, shared_bytes, sparse::WARP_BYTES, plan);
}

size_t ck_sparse_wgrad_workspace(const struct ck_sparse_plan *plan, int64_t entries) {
    return (size_t)(plan->tiles * entries) * sizeof(float);
}

cudaError_t ck_sparse_wgrad(const struct ck_sparse_wgrad *args, const struct ck_sparse_plan *plan, void *workspace,
                            cudaStream_t stream) {
    const ck_conv     &c    = args->conv;
    ck_sparse_args     tile = {};
    sparse::wgrad_args w    = {};
    tile.conv               = c;
    tile.x                  = args->x;
    tile.offsets            = args->offsets;
    tile.start              = args->start;
    w.k                     = sparse::tile_args(tile, *plan);
    w.dy                    = args->dy;
    w.partial               = (float *)workspace;
    w.entries               = args->entries;
    if (c.type != CK_F32) return cudaErrorInvalidValue;
    if (!args->accumulate) {
        const cudaError_t e = cudaMemsetAsync(args->dw, 0, (size_t)(c.K * c.R * c.S * c.C) * sizeof(float), stream);
        if (e != cudaSuccess) return e;
    }
    if (!args->entries) return cudaSuccess;
    cudaError_t e = sparse::launch_tile(w, stream);
    if (e != cudaSuccess) return e;
    const unsigned blocks = (unsigned)((args->entries + sparse::REDUCE_ENTRIES - 1) / sparse::REDUCE_ENTRIES);
    sparse::add_tiles<<<blocks, sparse::REDUCE_ENTRIES * sparse::REDUCE_GROUPS, 0, stream>>>(
        w.partial, args->from, args->entries, plan->tiles, args->accumulate, args->dw);
    return cudaGetLastError();
}
