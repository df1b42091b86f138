/* cuda/conv/int8/int8_conv_plain.cu: 8-bit convolutions of any shape on any GPU. A thread computes one output; four
 * channels are multiplied by one instruction where C is a multiple of four. */
#include "cuda/common/common.cuh"
#include "cuda/conv/int8/int8_conv.h"

namespace {

enum { THREADS = 256 };

__device__ __forceinline__ int dot_four(uint32_t x, uint32_t w, int sum, bool is_signed) {
    int result;
    if (is_signed)
        asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(w), "r"(sum));
    else
        asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(w), "r"(sum));
    return result;
}

__device__ __forceinline__ float number(const void *data, int64_t i, bool is_signed) {
    return is_signed ? (float)static_cast<const int8_t *>(data)[i] : (float)static_cast<const uint8_t *>(data)[i];
}

__device__ __forceinline__ int dot(const uint8_t *x, const int8_t *w, int channels, int sum, bool is_signed) {
    if (channels % 4 == 0) {
        for (int c = 0; c < channels; c += 4)
            sum = dot_four(*reinterpret_cast<const uint32_t *>(x + c), *reinterpret_cast<const uint32_t *>(w + c), sum,
                           is_signed);
        return sum;
    }
    for (int c = 0; c < channels; c++) sum += (is_signed ? (int)(int8_t)x[c] : (int)x[c]) * (int)w[c];
    return sum;
}

__device__ __forceinline__ void store(const struct ck_int8_conv &a, int64_t i, float v) {
    const float q = rintf(v);
    switch (a.y_type) {
    case CK_INT8_U8: static_cast<uint8_t *>(a.y)[i] = (uint8_t)fminf(fmaxf(q, 0.0f), 255.0f); break;
    case CK_INT8_I8: static_cast<int8_t *>(a.y)[i] = (int8_t)fminf(fmaxf(q, -128.0f), 127.0f); break;
    case CK_INT8_F16: static_cast<__half *>(a.y)[i] = ck_round<__half>(v); break;
    case CK_INT8_BF16: static_cast<__nv_bfloat16 *>(a.y)[i] = ck_round<__nv_bfloat16>(v); break;
    case CK_INT8_F32: static_cast<float *>(a.y)[i] = v; break;
    }
}

__global__ void __launch_bounds__(THREADS) int8_conv_plain(const struct ck_int8_conv a) {
    const int64_t  i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t  k = i % a.K, pixel = i / a.K, q = pixel % a.Q, p = pixel / a.Q % a.P, n = pixel / a.Q / a.P;
    const uint8_t *x   = static_cast<const uint8_t *>(a.x);
    int            sum = 0;
    if (n >= a.N) return;
    for (int r = 0; r < a.R; r++) {
        const int64_t h = p * a.stride - a.pad + r;
        if (h < 0 || h >= a.H) continue;
        for (int s = 0; s < a.S; s++) {
            const int64_t w = q * a.stride - a.pad + s;
            if (w < 0 || w >= a.W) continue;
            sum = dot(x + ((n * a.H + h) * a.W + w) * a.C, a.w + ((k * a.R + r) * a.S + s) * a.C, (int)a.C, sum,
                      a.x_type == CK_INT8_I8);
        }
    }
    float v = fmaf((float)sum, a.coeffs[k], a.coeffs[a.K + k]);
    if (a.add) v = fmaf(number(a.add, i, a.add_type == CK_INT8_I8), a.coeffs[2 * a.K], v);
    store(a, i, a.relu ? fmaxf(v, 0.0f) : v);
}

} // namespace

cudaError_t ck_int8_conv_plain(const struct ck_int8_conv *a, cudaStream_t stream) {
    const int64_t outputs = a->N * a->P * a->Q * a->K;
    int8_conv_plain<<<(unsigned)((outputs + THREADS - 1) / THREADS), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}
