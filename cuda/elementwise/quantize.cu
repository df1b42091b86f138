/* cuda/elementwise/quantize.cu: conversion to and from 8-bit integers, the factors of 8-bit convolutions, and max
 * pooling and the shortcut without parameters on 8-bit tensors. Limiter: memory. */
#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256, BLOCKS = 4096, LANES = 8 };

/* x / scale in f32, rounded to the nearest integer (ties to even), within [low, high]; NaN becomes 0. */
__device__ __forceinline__ int quantized(float x, float scale, float low, float high) {
    const float q = rintf(__fdiv_rn(x, scale));
    return q == q ? (int)fminf(fmaxf(q, low), high) : 0;
}

/* 8 neighbouring elements. */
template <typename T> __device__ __forceinline__ void load_eight(const T *x, int64_t i, float (&v)[LANES]) {
    if constexpr (sizeof(T) == 4) {
        ck_unpack<T>(ck_load(x, 2 * i), v);
        ck_unpack<T>(ck_load(x, 2 * i + 1), v + 4);
    } else {
        ck_unpack<T>(ck_load(x, i), v);
    }
}
template <typename T> __device__ __forceinline__ void store_eight(T *y, int64_t i, const float (&v)[LANES]) {
    if constexpr (sizeof(T) == 4) {
        ck_store(y, 2 * i, ck_pack<T>(v));
        ck_store(y, 2 * i + 1, ck_pack<T>(v + 4));
    } else {
        ck_store(y, i, ck_pack<T>(v));
    }
}

/* Bytes an element: size + 1. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    quantize(const T *x, const float *scale, uint8_t *y, int64_t elems, float low, float high) {
    const int64_t vectors = elems / LANES, step = (int64_t)gridDim.x * THREADS;
    ck_begin_after_last();
    const float s = *scale;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        float    v[LANES];
        uint32_t word[2] = {0, 0};
        load_eight(x, i, v);
#pragma unroll
        for (int k = 0; k < LANES; k++) word[k / 4] |= ((uint32_t)quantized(v[k], s, low, high) & 255u) << k % 4 * 8;
        reinterpret_cast<uint2 *>(y)[i] = make_uint2(word[0], word[1]);
    }
    const int64_t rest = vectors * LANES + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < elems) y[rest] = (uint8_t)quantized(ck_float(x[rest]), s, low, high);
}

/* Bytes an element: 1 + size. */
template <typename T, typename Q>
__global__ void __launch_bounds__(THREADS) dequantize(const Q *x, const float *scale, T *y, int64_t elems) {
    const int64_t vectors = elems / LANES, step = (int64_t)gridDim.x * THREADS;
    const float   s = *scale;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        const uint2    two     = reinterpret_cast<const uint2 *>(x)[i];
        const uint32_t word[2] = {two.x, two.y};
        float          v[LANES];
#pragma unroll
        for (int k = 0; k < LANES; k++) v[k] = __fmul_rn((float)(Q)(word[k / 4] >> k % 4 * 8 & 255u), s);
        store_eight(y, i, v);
    }
    const int64_t rest = vectors * LANES + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < elems) y[rest] = ck_round<T>(__fmul_rn((float)x[rest], s));
}

/* One block for each output channel. */
template <typename T>
__global__ void __launch_bounds__(THREADS) quantize_filter(const T *w, const float *scale, int8_t *y, int64_t row) {
    const float s = scale[blockIdx.x];
    for (int64_t i = threadIdx.x; i < row; i += THREADS)
        y[blockIdx.x * row + i] = (int8_t)quantized(ck_float(w[blockIdx.x * row + i]), s, -127.0f, 127.0f);
}

__global__ void __launch_bounds__(THREADS) qconv_coeffs(const struct ck_qconv_coeffs a) {
    const int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (k >= a.K) return;
    const float y = a.y_scale ? *a.y_scale : 1.0f, add = a.add_scale ? *a.add_scale : 0.0f;
    const float scale = a.scale_bias ? a.scale_bias[k] : 1.0f, bias = a.scale_bias ? a.scale_bias[a.K + k] : a.bias[k];
    a.coeffs[k]           = __fdiv_rn(__fmul_rn(__fmul_rn(*a.x_scale, a.w_scale[k]), scale), y);
    a.coeffs[a.K + k]     = __fdiv_rn(bias, y);
    a.coeffs[2 * a.K + k] = __fdiv_rn(add, y);
}

/* ---- windows over 16 channels (vectors) or one ---- */

template <bool SIGNED> __device__ __forceinline__ uint32_t largest_bytes(uint32_t a, uint32_t b) {
    return SIGNED ? __vmaxs4(a, b) : __vmaxu4(a, b);
}
template <bool SIGNED> __device__ __forceinline__ void raise(uint4 &to, const uint4 &from) {
    to.x = largest_bytes<SIGNED>(to.x, from.x);
    to.y = largest_bytes<SIGNED>(to.y, from.y);
    to.z = largest_bytes<SIGNED>(to.z, from.z);
    to.w = largest_bytes<SIGNED>(to.w, from.w);
}
template <bool SIGNED> __device__ __forceinline__ void raise(uint8_t &to, const uint8_t &from) {
    to = (uint8_t)largest_bytes<SIGNED>(to, from);
}
__device__ __forceinline__ void set_all(uint4 &to, uint32_t bytes) {
    to = make_uint4(bytes, bytes, bytes, bytes);
}
__device__ __forceinline__ void set_all(uint8_t &to, uint32_t bytes) {
    to = (uint8_t)bytes;
}

/* V: uint4 (16 channels) or uint8_t. groups: vectors of a pixel. */
template <typename V, bool SIGNED>
__global__ void __launch_bounds__(THREADS) maxpool(const V *x, V *y, const struct ck_window w, int64_t groups) {
    const int64_t count = w.N * w.P * w.Q * groups, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const int64_t c = i % groups, pixel = i / groups, q = pixel % w.Q, line = pixel / w.Q, p = line % w.P,
                      n = line / w.P;
        V best;
        set_all(best, SIGNED ? 0x80808080u : 0u);
        for (int r = 0; r < w.window; r++) {
            const int64_t h = p * w.stride - w.pad + r;
            if (h < 0 || h >= w.H) continue;
            for (int s = 0; s < w.window; s++) {
                const int64_t column = q * w.stride - w.pad + s;
                if (column >= 0 && column < w.W) raise<SIGNED>(best, x[((n * w.H + h) * w.W + column) * groups + c]);
            }
        }
        y[i] = best;
    }
}

/* Subsamples and adds w.pad zero channels in front and the rest behind. */
__global__ void __launch_bounds__(THREADS) pad_shortcut(const uint8_t *x, uint8_t *y, const struct ck_window w) {
    const int64_t count = w.N * w.P * w.Q * w.K, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const int64_t c = i % w.K - w.pad, pixel = i / w.K, q = pixel % w.Q, line = pixel / w.Q, p = line % w.P,
                      n = line / w.P;
        y[i]            = c >= 0 && c < w.C ? x[((n * w.H + p * w.stride) * w.W + q * w.stride) * w.C + c] : (uint8_t)0;
    }
}

template <typename V>
void maxpool_run(const void *x, void *y, bool is_signed, const struct ck_window *w, int64_t groups,
                 cudaStream_t stream) {
    const unsigned blocks = ck_blocks(w->N * w->P * w->Q * groups, THREADS, 16 * BLOCKS);
    if (is_signed)
        maxpool<V, true><<<blocks, THREADS, 0, stream>>>((const V *)x, (V *)y, *w, groups);
    else
        maxpool<V, false><<<blocks, THREADS, 0, stream>>>((const V *)x, (V *)y, *w, groups);
}

} // namespace

cudaError_t ck_quantize(enum ck_type type, const void *x, const float *scale, void *y, int64_t elems, bool is_signed,
                        cudaStream_t stream) {
    const unsigned blocks = ck_blocks(elems / LANES, THREADS, BLOCKS);
    const float    low = is_signed ? -127.0f : 0.0f, high = is_signed ? 127.0f : 255.0f;
    CK_BY_TYPE(type, return ck_launch(quantize<T>, blocks, THREADS, 0, stream, (const T *)x, scale, (uint8_t *)y, elems,
                                      low, high));
    return cudaErrorInvalidValue;
}

cudaError_t ck_dequantize(enum ck_type type, const void *x, bool is_signed, const float *scale, void *y, int64_t elems,
                          cudaStream_t stream) {
    const unsigned blocks = ck_blocks(elems / LANES, THREADS, BLOCKS);
    if (is_signed)
        CK_BY_TYPE(type,
                   dequantize<T, int8_t><<<blocks, THREADS, 0, stream>>>((const int8_t *)x, scale, (T *)y, elems));
    else
        CK_BY_TYPE(type,
                   dequantize<T, uint8_t><<<blocks, THREADS, 0, stream>>>((const uint8_t *)x, scale, (T *)y, elems));
    return cudaGetLastError();
}

cudaError_t ck_quantize_filter(enum ck_type type, const void *w, const float *scale, int8_t *y, int64_t filters,
                               int64_t row, cudaStream_t stream) {
    CK_BY_TYPE(type, quantize_filter<T><<<(unsigned)filters, THREADS, 0, stream>>>((const T *)w, scale, y, row));
    return cudaGetLastError();
}

cudaError_t ck_qconv_coeffs(const struct ck_qconv_coeffs *a, cudaStream_t stream) {
    qconv_coeffs<<<(unsigned)((a->K + THREADS - 1) / THREADS), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t ck_maxpool_int8(const void *x, void *y, bool is_signed, const struct ck_window *w, cudaStream_t stream) {
    if (w->C % 16 == 0)
        maxpool_run<uint4>(x, y, is_signed, w, w->C / 16, stream);
    else
        maxpool_run<uint8_t>(x, y, is_signed, w, w->C, stream);
    return cudaGetLastError();
}

cudaError_t ck_pad_shortcut_int8(const void *x, void *y, const struct ck_window *w, cudaStream_t stream) {
    pad_shortcut<<<ck_blocks(w->N * w->P * w->Q * w->K, THREADS, 16 * BLOCKS), THREADS, 0, stream>>>((const uint8_t *)x,
                                                                                                     (uint8_t *)y, *w);
    return cudaGetLastError();
}
