/* cuda/sparse/mma_sp/mma_sp_fill.cu: converts the weights of a filter to the fragments that
 * cuda/sparse/mma_sp/mma_sp.cu reads.
 *
 * There are two launches: the scale of each output channel (one thread block per channel), then the fragments (one
 * thread per lane of a fragment). Bytes: the filter twice, 8 bytes per weight of a fragment. Limiter: memory bandwidth.
 */
#include "cuda/sparse/mma_sp/mma_sp.cuh"
#include "cuda/sparse/mma_sp/mma_sp.h"

namespace mma_sp {
namespace {

enum { FILL_THREADS = 256, WEIGHTS = 8 /* per lane */, MAX_EXPONENT = 15 /* scaled weights are less than 2^15 */ };

/* The scale of a channel whose largest finite weight is max_abs: sums are multiplied by it. */
__device__ __forceinline__ float scale_of(float max_abs) {
    if (max_abs == 0.0f) return 1.0f;
    const int exponent = MAX_EXPONENT - 1 - ilogbf(max_abs);
    return ldexpf(1.0f, exponent > 120 ? -120 : -exponent);
}

template <typename T>
__global__ void __launch_bounds__(FILL_THREADS) scales(const void *w, int64_t K, int64_t taps, float *scale) {
    __shared__ uint32_t block_max;
    const int64_t       k       = blockIdx.x;
    float               max_abs = 0;
    if (threadIdx.x == 0) block_max = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; sizeof(T) == 4 && k < K && i < taps; i += FILL_THREADS) {
        const float v = fabsf(ck_float(((const T *)w)[k * taps + i]));
        max_abs       = v < INFINITY ? fmaxf(max_abs, v) : max_abs;
    }
    atomicMax(&block_max, __float_as_uint(max_abs)); /* nonnegative floats: the result does not depend on the order */
    __syncthreads();
    if (threadIdx.x == 0) scale[k] = scale_of(__uint_as_float(block_max));
}

template <typename T>
__device__ __forceinline__ float weight(const ck_mma_sp_fill_args &a, const float *scale, uint32_t at) {
    if (at == UINT32_MAX) return 0.0f;
    const float v = ck_float(((const T *)a.w)[at]);
    return sizeof(T) == 4 ? v / scale[at / a.taps] : v;
}

template <typename T>
__global__ void __launch_bounds__(FILL_THREADS) fill(const ck_mma_sp_fill_args a, const float *scale) {
    constexpr int BYTES = fragment_bytes(sizeof(T));
    const int64_t i = (int64_t)blockIdx.x * FILL_THREADS + threadIdx.x, f = i / CK_WARP, lane = i % CK_WARP;
    if (f > a.fragments) return;
    const bool exists = f < a.fragments; /* the last fragment is read ahead but not used */
    float      v[WEIGHTS];
#pragma unroll
    for (int j = 0; j < WEIGHTS; j++) v[j] = exists ? weight<T>(a, scale, a.from[i * WEIGHTS + j]) : 0.0f;
    char *to                                                     = (char *)a.to + f * BYTES;
    reinterpret_cast<uint32_t *>(to + BYTES - CK_WARP * 4)[lane] = exists ? a.places[i] : 0x44444444u;
    uint32_t high[4], low[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if constexpr (sizeof(T) == 2)
            high[j] = ck_pack_word<T>(v[2 * j], v[2 * j + 1]);
        else
            split_exactly(v[2 * j], v[2 * j + 1], &high[j], &low[j]);
    }
    reinterpret_cast<uint4 *>(to)[lane] = make_uint4(high[0], high[1], high[2], high[3]);
    if constexpr (sizeof(T) == 4)
        reinterpret_cast<uint4 *>(to)[CK_WARP + lane] = make_uint4(low[0], low[1], low[2], low[3]);
}

} // namespace

cudaError_t row_scales(enum ck_type type, const void *w, int64_t K, int64_t taps, int64_t rows, float *scale,
                       cudaStream_t stream) {
    CK_BY_TYPE(type, scales<T><<<(unsigned)rows, FILL_THREADS, 0, stream>>>(w, K, taps, scale));
    return cudaGetLastError();
}

namespace {

template <typename T> cudaError_t launch(const ck_mma_sp_fill_args &a, cudaStream_t stream) {
    float            *scale = reinterpret_cast<float *>((char *)a.to + ck_mma_sp_scale_at(a.type, a.fragments));
    const cudaError_t e     = row_scales(a.type, a.w, a.K, a.taps, a.bands * CK_MMA_SP_BAND, scale, stream);
    if (e != cudaSuccess) return e;
    const int64_t threads = (a.fragments + 1) * CK_WARP;
    fill<T><<<(unsigned)((threads + FILL_THREADS - 1) / FILL_THREADS), FILL_THREADS, 0, stream>>>(a, scale);
    return cudaGetLastError();
}

} // namespace
} // namespace mma_sp

size_t ck_mma_sp_scale_at(enum ck_type type, int64_t fragments) {
    return (size_t)(fragments + 1) * (size_t)mma_sp::fragment_bytes(type == CK_F32 ? 4 : 2);
}
size_t ck_mma_sp_bytes(enum ck_type type, int64_t fragments, int64_t bands) {
    return ck_mma_sp_scale_at(type, fragments) + (size_t)(bands * CK_MMA_SP_BAND) * sizeof(float);
}

cudaError_t ck_mma_sp_fill(const struct ck_mma_sp_fill_args *args, cudaStream_t stream) {
    CK_BY_TYPE(args->type, return mma_sp::launch<T>(*args, stream));
}
