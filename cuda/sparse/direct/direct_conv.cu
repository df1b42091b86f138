/* cuda/sparse/direct/direct_conv.cu: direct convolution with a sparse filter, with the input in shared memory.
 *
 * A thread block stages a chunk of the input's channels as [channel][slot][4]. The 4 floats of a slot are the same
 * position of 4 patches (of four images, or of four parts of one), so that every tap is an aligned 16-byte read for
 * every stride and batch size. A warp computes some output channels, and its lanes the positions of a patch. A nonzero
 * weight costs one read of (value, offset), which is the same for all lanes, and for each quad an addition, a 16-byte
 * read and four multiply-adds. The sums of all output channels stay in registers while the chunks are processed. The
 * results go through shared memory, so that y, bias and residual are accessed in whole cache lines.
 *
 * Bytes: y once, the residual once, x once per block of output channels (from L2, except the first time). Limiter:
 * reads of shared memory, 16 bytes per quad of multiply-adds: 128 bytes per cycle and multiprocessor are 32
 * multiply-adds, a quarter of the FP32 peak. (value, offset) takes 2 more cycles per weight, which leaves
 * 4*quads/(4*quads + 2) of that: 11 to 15 TFLOP/s of nonzero weights at 1.98 GHz on 132 multiprocessors, and less where
 * memory is the limit. */
#include "cuda/sparse/direct/direct_tile.cuh"

#include <math.h>

namespace sparse {
namespace {

/* Multiplies all nonzero weights of this warp's rows in one chunk. Lane i has entry i of the next 32 while the warp
 * processes the last 32, which are in the warp's ring. */
template <int QUADS, int ROWS>
__device__ __forceinline__ void multiply(const uint32_t *values, const uint32_t *offsets, const uint32_t *start,
                                         int part, int split, const char *memory, const uint32_t (&base)[QUADS],
                                         uint2 *ring, float (&sum)[ROWS][4 * QUADS]) {
    const int               lane = (int)threadIdx.x % CK_WARP;
    const row_entries<ROWS> rows(start, part, split);
    values += rows.first + lane, offsets += rows.first + lane;
    uint2 next = lane < rows.total ? make_uint2(__ldg(values), __ldg(offsets)) : make_uint2(0, 0);
    int   i    = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int end = rows.end(r);
#pragma unroll 1
        for (; i < end; i += CK_SPARSE_PAIR) {
            if (i % CK_WARP == 0) {
                __syncwarp();
                ring[lane] = next;
                __syncwarp();
                if (i + CK_WARP + lane < rows.total)
                    next = make_uint2(__ldg(values + i + CK_WARP), __ldg(offsets + i + CK_WARP));
            }
            const uint4 pair = *reinterpret_cast<const uint4 *>(ring + i % CK_WARP);
            float4      a[QUADS], b[QUADS];
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                a[j] = *reinterpret_cast<const float4 *>(memory + (base[j] + pair.y));
                b[j] = *reinterpret_cast<const float4 *>(memory + (base[j] + pair.w));
            }
            const float wa = __uint_as_float(pair.x), wb = __uint_as_float(pair.z);
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                sum[r][4 * j + 0] = fmaf(wa, a[j].x, sum[r][4 * j + 0]);
                sum[r][4 * j + 1] = fmaf(wa, a[j].y, sum[r][4 * j + 1]);
                sum[r][4 * j + 2] = fmaf(wa, a[j].z, sum[r][4 * j + 2]);
                sum[r][4 * j + 3] = fmaf(wa, a[j].w, sum[r][4 * j + 3]);
            }
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                sum[r][4 * j + 0] = fmaf(wb, b[j].x, sum[r][4 * j + 0]);
                sum[r][4 * j + 1] = fmaf(wb, b[j].y, sum[r][4 * j + 1]);
                sum[r][4 * j + 2] = fmaf(wb, b[j].z, sum[r][4 * j + 2]);
                sum[r][4 * j + 3] = fmaf(wb, b[j].w, sum[r][4 * j + 3]);
            }
        }
    }
}

/* Stores this thread's sums to out[part][point][channels of the block + 4], from channel `first` on. The padding of 4
 * makes the lanes access different banks. */
template <int QUADS, int ROWS>
__device__ __forceinline__ void store_sums(const float (&sum)[ROWS][4 * QUADS], float *out, int part, int first,
                                           int pitch) {
    const int lane = (int)threadIdx.x % CK_WARP;
    out += (int64_t)part * (QUADS * CK_WARP * 4) * pitch + first;
#pragma unroll
    for (int v = 0; v < 4 * QUADS; v++) {
        float *to = out + ((v % 4 * QUADS + v / 4) * CK_WARP + lane) * pitch;
        if constexpr (ROWS % 4 == 0) {
#pragma unroll
            for (int r = 0; r < ROWS; r += 4)
                *reinterpret_cast<float4 *>(to + r) =
                    make_float4(sum[r][v], sum[r + 1][v], sum[r + 2][v], sum[r + 3][v]);
        } else {
#pragma unroll
            for (int r = 0; r < ROWS; r++) to[r] = sum[r][v];
        }
    }
}

/* Adds the parts, bias and residual, applies ReLU and stores to memory: 4 channels per thread. */
template <typename T>
__device__ __forceinline__ void finish(const kernel_args &k, const float *out, const int *points, int count,
                                       int64_t k0) {
    const int     channels = k.plan.channels, fours = channels / 4;
    const int64_t K       = k.a.conv.K;
    const bool    aligned = K % 4 == 0;
    for (int i = (int)threadIdx.x; i < count * fours; i += (int)blockDim.x) {
        const int     pointwise = i / fours, pixel = points[pointwise];
        const int64_t first = k0 + i % fours * 4;
        if (pixel < 0 || first >= K) continue;
        float v[4] = {};
        for (int part = 0; part < k.plan.split; part++) {
            const float4 u = *reinterpret_cast<const float4 *>(
                out + (int64_t)(part * count + pointwise) * (channels + 4) + i % fours * 4);
            v[0] += u.x, v[1] += u.y, v[2] += u.z, v[3] += u.w;
        }
        write_four<T>(k.a, (int64_t)pixel * K + first, first, aligned ? 4 : (int)(K - first < 4 ? K - first : 4),
                      aligned, v);
    }
}

template <int QUADS, int ROWS, typename T>
__global__ void __launch_bounds__(512, 1) kernel(const __grid_constant__ kernel_args k) {
    extern __shared__ __align__(16) char memory[];
    constexpr int                        ITEMS = QUADS * CK_WARP;
    int *table = reinterpret_cast<int *>(memory + k.table_at), *points = reinterpret_cast<int *>(memory + k.points_at);
    const int     lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    uint2        *ring = reinterpret_cast<uint2 *>(memory + k.ring_at) + warp * CK_WARP;
    const int64_t tile = blockIdx.x / k.plan.k_blocks, block_k = blockIdx.x % k.plan.k_blocks;
    const int64_t k0 = block_k * k.plan.channels, rows_all = k.plan.k_blocks * k.plan.channels;
    /* first channel within the thread block */
    const int part = warp % k.plan.split, first = warp / k.plan.split * ROWS;

    fill_table(k, tile, table);
    fill_points(k, tile, ITEMS, points);
    uint32_t base[QUADS];
    find_bases(k, lane, base);
    float sum[ROWS][4 * QUADS] = {};
    for (int chunk = 0; chunk < k.plan.chunks; chunk++) {
        const int c0 = chunk * k.plan.chunk, left = (int)k.a.conv.C - c0;
        __syncthreads();
        stage<QUADS == 4 ? 2 : 4, T>(k, table, reinterpret_cast<float *>(memory), c0,
                                     left < k.plan.chunk ? left : k.plan.chunk);
        __syncthreads();
        multiply<QUADS, ROWS>(reinterpret_cast<const uint32_t *>(k.a.values), k.a.offsets,
                              k.a.start + chunk * rows_all + k0 + first, part, k.plan.split, memory, base, ring, sum);
    }
    __syncthreads();
    store_sums<QUADS, ROWS>(sum, reinterpret_cast<float *>(memory), part, first, k.plan.channels + 4);
    __syncthreads();
    finish<T>(k, reinterpret_cast<const float *>(memory), points, ITEMS * 4, k0);
}

/* ---- launches ---- */

template <int QUADS, int ROWS, typename T> cudaError_t launch(const kernel_args &k, cudaStream_t stream) {
    const cudaError_t e = ck_allow_shared(kernel<QUADS, ROWS, T>, (int64_t)k.plan.shared_bytes);
    if (e != cudaSuccess) return e;
    const unsigned blocks = (unsigned)(k.plan.tiles * k.plan.k_blocks), threads = (unsigned)k.plan.warps * CK_WARP;
    kernel<QUADS, ROWS, T><<<blocks, threads, k.plan.shared_bytes, stream>>>(k);
    return cudaGetLastError();
}
template <typename T> cudaError_t launch_tile(const kernel_args &k, cudaStream_t stream) {
    switch (k.plan.quads * 16 + k.plan.rows) {
#define LAUNCH(QUADS, ROWS)                                                                                            \
    case QUADS * 16 + ROWS: return launch<QUADS, ROWS, T>(k, stream);
        SPARSE_TILES(LAUNCH)
#undef LAUNCH
    }
    return cudaErrorInvalidValue;
}

} // namespace
} // namespace sparse

cudaError_t ck_sparse_conv(const struct ck_sparse_args *args, const struct ck_sparse_plan *plan, cudaStream_t stream) {
    const sparse::kernel_args k = sparse::tile_args(*args, *plan);
    switch (args->conv.type) {
    case CK_F32: return sparse::launch_tile<float>(k, stream);
    case CK_F16: return sparse::launch_tile<__half>(k, stream);
    case CK_BF16: return sparse::launch_tile<__nv_bfloat16>(k, stream);
    }
    return cudaErrorInvalidValue;
}
