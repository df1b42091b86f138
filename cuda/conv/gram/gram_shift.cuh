/* cuda/conv/gram/gram_shift.cuh: the shift that the op gram subtracts (cr_gram_shift in graph/graph.h), on a device. */
#ifndef CK_GRAM_SHIFT_CUH
#define CK_GRAM_SHIFT_CUH

#include "cuda/common/common.cuh"

namespace {

enum { SAMPLES = 8, CENTER = 4 };

/* Truncates `a` to a multiple of 1/8 of the power of two at or below `largest`, the largest magnitude of the samples.
 * So at most four bits remain. 2^-100 <= largest < infinity; the factors are powers of two, so both products are exact.
 * */
__device__ __forceinline__ float truncated(float a, float largest) {
    const uint32_t exponent = __float_as_uint(largest) >> 23;
    return truncf(a * __uint_as_float((257u - exponent) << 23)) * __uint_as_float((exponent - 3u) << 23);
}

/* t = the shifts of eight channels. read(p, v): `a` of these channels at pixel p of `pixels`. A channel with a sample
 * that is not finite is shifted by the sample in the middle as it is. */
template <class Read> __device__ __forceinline__ void shifts_of(float (&t)[8], int64_t pixels, const Read &read) {
    float largest[8];
    bool  finite[8];
#pragma unroll
    for (int j = 0; j < 8; j++) largest[j] = 0.0f, finite[j] = true;
#pragma unroll
    for (int i = 0; i < SAMPLES; i++) {
        float v[8];
        read((2 * i + 1) * pixels / (2 * SAMPLES), v);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            largest[j] = fmaxf(largest[j], fabsf(v[j]));
            finite[j]  = finite[j] && isfinite(v[j]);
            if (i == CENTER) t[j] = v[j];
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (finite[j]) t[j] = largest[j] < 0x1p-100f ? 0.0f : truncated(t[j], largest[j]);
}

} // namespace

#endif
