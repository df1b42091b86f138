/* cuda/sparse/mma_sp/mma_sp.cu: convolution with a sparse filter on the sparse tensor cores.
 *
 * A thread block stages a chunk of the input's channels of a tile as [place][channels] (FP32: high parts, then low
 * parts). A place is a staged pixel. The places of one phase of the stride are contiguous, so that a tap is a shift. A
 * warp computes 64 output channels and some columns of 8 pixels. A step multiplies 4 blocks of 8 channels of any taps,
 * which one ldmatrix reads as the band's list says. The filter operands come from memory in the order of use and are
 * loaded one step ahead (other warps of the thread block, and of the other thread block of the multiprocessor, find
 * them in L1). Sums stay in registers while the chunks are processed. FP32 sums go directly to y, 32 bytes of a pixel
 * at a time. Sums that several warps share and 16-bit sums go through shared memory.
 *
 * FP32: the scale of the input is found during staging. A warp records the largest number that it staged. If that
 * number was too large or too small for FP16, the chunk is staged again with a better scale, and the sums are
 * multiplied by a power of two.
 *
 * Bytes: y once, the residual once, x once per block of output channels (from L2, except the first time), 2.25 bytes
 * per weight of the dense filter (16 bits: 1.25) and tile. Limiter: the tensor cores, 3 products (16 bits: 1) of half
 * of the dense count, 916 TFLOP/s of dense products on one H200; below that the latency of staging, which only the
 * other thread block hides; for 1x1 filters L2. */
#include "cuda/sparse/mma_sp/mma_sp_product.cuh"
#include "cuda/sparse/mma_sp/mma_sp_stage.cuh"
#include "cuda/sparse/sparse_conv.cuh"

namespace mma_sp {
namespace {

/* Percentage of L2 that an input may fill to stay there while an output is written: 32 MiB of an H200's 50. */
enum { L2_PERCENT = 64 };

/* Stores this thread's sums directly to y: 8 channels of a pixel are one 32-byte sector. `first` is the output channel
 * of the warp's first sum. */
template <int COLUMNS>
__device__ __forceinline__ void write_sums(const kernel_args &k, const float (&sum)[GROUPS][COLUMNS][4],
                                           const int *points, int64_t first, float by) {
    const int     lane = (int)threadIdx.x % CK_WARP;
    const int64_t K = k.a.conv.K, channel = first + lane / 4;
    const float  *add = (const float *)k.a.add;
    float         scale[GROUPS][2], bias[GROUPS][2];
#pragma unroll
    for (int m = 0; m < GROUPS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            scale[m][half] = __ldg(k.scale + channel + m * 16 + half * 8) * by; /* powers of two */
            bias[m][half] =
                k.a.bias && channel + m * 16 + half * 8 < K ? __ldg(k.a.bias + channel + m * 16 + half * 8) : 0.0f;
        }
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int     pixel = points[n * 8 + lane % 4 * 2 + i];
            const int64_t at    = pixel * K + channel;
            if (pixel < 0) continue;
#pragma unroll
            for (int m = 0; m < GROUPS; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int to = m * 16 + half * 8;
                    float     v  = fmaf(sum[m][n][half * 2 + i], scale[m][half], bias[m][half]);
                    if (channel + to >= K) continue;
                    if (add) v += add[at + to];
                    ((float *)k.a.y)[at + to] = k.a.relu ? ck_relu(v) : v;
                }
        }
}

/* Stores the unscaled sums to out[item][channels of the block + 4], or adds them with `accumulate`. */
template <int COLUMNS>
__device__ __forceinline__ void stage_sums(const kernel_args &k, bool accumulate, float (&sum)[GROUPS][COLUMNS][4],
                                           float *out, int first, int item, int64_t k0, float by) {
    const int lane = (int)threadIdx.x % CK_WARP, pitch = k.plan.bands * CK_MMA_SP_BAND + 4;
#pragma unroll
    for (int m = 0; m < GROUPS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int   channel = first + m * 16 + half * 8 + lane / 4;
            const float scale   = __ldg(k.scale + k0 + channel) * by; /* powers of two */
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &to = out[(item + n * 8 + lane % 4 * 2 + i) * pitch + channel];
                    to        = sum[m][n][half * 2 + i] * scale + (accumulate ? to : 0.0f);
                }
        }
}

/* Adds bias and residual, applies ReLU and stores to memory: 4 channels per thread. */
template <typename T>
__device__ __forceinline__ void finish(const kernel_args &k, const float *out, const int *points, int count,
                                       int64_t k0) {
    const int channels = k.plan.bands * CK_MMA_SP_BAND, fours = channels / 4,
              shift = __ffs(fours) - 1; /* fours is a power of two */
    const int64_t K = k.a.conv.K;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < count * fours; i += (int)blockDim.x) {
        const int     point = i >> shift, pixel = points[point];
        const int64_t first = k0 + (i & (fours - 1)) * 4;
        if (pixel < 0 || first >= K) continue;
        const float4 u    = *reinterpret_cast<const float4 *>(out + point * (channels + 4) + (i & (fours - 1)) * 4);
        float        v[4] = {u.x, u.y, u.z, u.w};
        sparse::write_four<T>(k.a, (int64_t)pixel * K + first, first,
                              K % 4 == 0 ? 4 : (int)(K - first < 4 ? K - first : 4), K % 4 == 0, v);
    }
}

template <int COLUMNS, typename T>
__global__ void __launch_bounds__(warps_of(COLUMNS) * CK_WARP, 2) kernel(const __grid_constant__ kernel_args k) {
    extern __shared__ __align__(16) char memory[];
    int *table = reinterpret_cast<int *>(memory + k.table_at), *points = reinterpret_cast<int *>(memory + k.points_at);
    const int      lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP, bands = k.plan.bands;
    const uint32_t tile = k.filter_first ? blockIdx.x % (uint32_t)k.plan.tiles : blockIdx.x / (uint32_t)k.plan.k_blocks;
    const uint32_t block_k =
        k.filter_first ? blockIdx.x / (uint32_t)k.plan.tiles : blockIdx.x - tile * (uint32_t)k.plan.k_blocks;
    const int64_t k0    = (int64_t)block_k * bands * CK_MMA_SP_BAND;
    const int     spans = warps_of(COLUMNS) / bands / k.plan.split, items = spans * COLUMNS * 8;
    const int     band = warp % bands, span = warp / bands % spans, part = warp / bands / spans;

    fill_table(k, tile, table);
    fill_points(k, tile, (uint32_t)items, points);
    uint32_t base[COLUMNS];
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        const uint32_t item = (uint32_t)((span * COLUMNS + n) * 8 + lane % 8), patch = item / k.patch_pixels,
                       of = item - patch * k.patch_pixels.by, down = of / k.patch_width;
        const uint32_t row = patch * k.patch_rows.by + down * (uint32_t)k.a.conv.stride;
        const uint32_t at  = patch < (uint32_t)k.plan.groups ? row * k.pitch.by + (of - down * k.patch_width.by) : 0;
        base[n]            = address_of(memory) + at * (uint32_t)k.plan.place_bytes;
    }
    float        sum[GROUPS][COLUMNS][4] = {};
    float        scale = sizeof(T) == 4 ? FIRST_SCALE : 1.0f, ceiling = LARGEST_SCALE;
    const uint2 *run          = k.run + (block_k * bands + band) * k.plan.chunks * LISTS;
    const bool   has_channels = k0 + band * CK_MMA_SP_BAND < k.a.conv.K;
    for (int chunk = 0; chunk < k.plan.chunks; chunk++) {
        const uint2 list = run[chunk * LISTS + (lane <= LISTS ? lane : 0)];
        const float new_scale =
            stage_scaled<T>(k, table, memory, reinterpret_cast<float *>(memory + k.max_at), chunk, scale, ceiling);
        ceiling = fminf(ceiling, new_scale * 0x1p64f); /* sums that are scaled up further could overflow FP32 */
        if (new_scale != scale) {
            const float by = new_scale / scale;
#pragma unroll
            for (int m = 0; m < GROUPS; m++)
#pragma unroll
                for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) sum[m][n][i] *= by;
            scale = new_scale;
        }
        if (has_channels) run_multiplier<T, COLUMNS>(k).multiply_run(list, part, base, sum);
    }
    if constexpr (sizeof(T) == 4) {
        if (k.plan.split == 1) {
            if (has_channels)
                write_sums<COLUMNS>(k, sum, points + span * COLUMNS * 8, k0 + band * CK_MMA_SP_BAND, 1.0f / scale);
            return;
        }
    }
    __syncthreads();
    for (int i = 0; i < k.plan.split; i++) {
        if (i == part)
            stage_sums<COLUMNS>(k, i > 0, sum, reinterpret_cast<float *>(memory), band * CK_MMA_SP_BAND,
                                span * COLUMNS * 8, k0, 1.0f / scale);
        __syncthreads();
    }
    finish<T>(k, reinterpret_cast<const float *>(memory), points, items, k0);
}

/* ---- launching ---- */

template <int COLUMNS, typename T> cudaError_t launch(const kernel_args &k, cudaStream_t stream) {
    const cudaError_t e = ck_allow_shared(kernel<COLUMNS, T>, (int64_t)k.plan.shared_bytes);
    if (e != cudaSuccess) return e;
    kernel<COLUMNS, T>
        <<<(unsigned)(k.plan.tiles * k.plan.k_blocks), warps_of(COLUMNS) * CK_WARP, k.plan.shared_bytes, stream>>>(k);
    return cudaGetLastError();
}
template <typename T> cudaError_t launch_columns(const kernel_args &k, cudaStream_t stream) {
    switch (k.plan.columns) {
    case 8: return launch<8, T>(k, stream);
    case 4: return launch<4, T>(k, stream);
    case 3: return launch<3, T>(k, stream);
    case 2: return launch<2, T>(k, stream);
    case 1: return launch<1, T>(k, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace
} // namespace mma_sp

cudaError_t ck_mma_sp_conv(const struct ck_mma_sp_args *args, const struct ck_mma_sp_plan *plan, cudaStream_t stream) {
    mma_sp::kernel_args k = {};
    k.a.conv = args->conv, k.a.x = args->x, k.a.bias = args->bias, k.a.add = args->add, k.a.relu = args->relu,
    k.a.y = args->y;
    k.run = reinterpret_cast<const uint2 *>(args->run), k.offset = args->offset,
    k.fragment = (const char *)args->fragment, k.scale = args->scale;
    k.plan         = *plan;
    k.patches      = (uint32_t)(args->conv.N * plan->patches_p * plan->patches_q);
    k.places       = (uint32_t)mma_sp::places_of(*plan);
    k.filter_first = args->conv.N * args->conv.P * args->conv.Q * args->conv.C * (args->conv.type == CK_F32 ? 4 : 2) <=
                     args->l2_bytes * mma_sp::L2_PERCENT / 100;
    k.linear            = args->conv.R == 1 && args->conv.S == 1 && args->conv.stride == 1 && args->conv.pad == 0;
    k.patches_per_image = mma_sp::fast_divisor_of((int64_t)plan->patches_p * plan->patches_q),
    k.patches_per_row = mma_sp::fast_divisor_of(plan->patches_q), k.pitch = mma_sp::fast_divisor_of(plan->pitch);
    k.patch_rows = mma_sp::fast_divisor_of(plan->IH), k.phase = mma_sp::fast_divisor_of(plan->phase),
    k.patch_pixels = mma_sp::fast_divisor_of(plan->TP * plan->TQ);
    k.patch_width  = mma_sp::fast_divisor_of(plan->TQ);
    k.table_at     = (int)(plan->shared_bytes - mma_sp::tables_bytes(*plan));
    k.points_at    = k.table_at + (int)k.places * 4;
    k.max_at       = k.points_at + mma_sp::items_of(*plan) * 4;
    switch (args->conv.type) {
    case CK_F32: return mma_sp::launch_columns<float>(k, stream);
    case CK_F16: return mma_sp::launch_columns<__half>(k, stream);
    case CK_BF16: return mma_sp::launch_columns<__nv_bfloat16>(k, stream);
    }
    return cudaErrorInvalidValue;
}
