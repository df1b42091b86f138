/* cuda/sparse/sparse_conv.cuh: the epilogue (bias, addition, ReLU, rounding) that the kernels for sparse filters share.
 */
#ifndef CK_SPARSE_CONV_CUH
#define CK_SPARSE_CONV_CUH

#include "cuda/common/common.cuh"
#include "cuda/sparse/sparse_launchers.h"

namespace sparse {

/* Index of output (n, p, q) among the pixels of y. */
__device__ __forceinline__ int64_t output_pixel(const ck_sparse_args &a, int64_t n, int64_t p, int64_t q) {
    const ck_scatter &s = a.scatter;
    return s.step ? (n * s.H + p * s.step + s.h) * s.W + q * s.step + s.w : (n * a.conv.P + p) * a.conv.Q + q;
}

/* Writes one sum, of output channel `channel`, to y[at]. */
template <typename T>
__device__ __forceinline__ void write_one(const ck_sparse_args &a, int64_t at, int64_t channel, float v) {
    if (a.bias) v += a.bias[channel];
    if (a.add) v += ck_float(((const T *)a.add)[at]);
    ((T *)a.y)[at] = ck_round<T>(a.relu ? ck_relu(v) : v);
}

/* Writes the first `count` of 4 sums to y[at...]. The sums belong to the output channels from `channel` on. `whole`
 * means that count is 4 and `at` a multiple of 4. */
template <typename T>
__device__ __forceinline__ void write_four(const ck_sparse_args &a, int64_t at, int64_t channel, int count, bool whole,
                                           float (&v)[4]) {
    if (!whole) {
        for (int i = 0; i < 4; i++)
            if (i < count) write_one<T>(a, at + i, channel + i, v[i]);
        return;
    }
    if (a.bias) {
        const float4 b = *reinterpret_cast<const float4 *>(a.bias + channel);
        v[0] += b.x, v[1] += b.y, v[2] += b.z, v[3] += b.w;
    }
    if constexpr (sizeof(T) == 4) {
        if (a.add) {
            const float4 r = *reinterpret_cast<const float4 *>((const float *)a.add + at);
            v[0] += r.x, v[1] += r.y, v[2] += r.z, v[3] += r.w;
        }
    } else if (a.add) {
        const uint2  r   = *reinterpret_cast<const uint2 *>((const T *)a.add + at);
        const float2 low = ck_unpack_word<T>(r.x), high = ck_unpack_word<T>(r.y);
        v[0] += low.x, v[1] += low.y, v[2] += high.x, v[3] += high.y;
    }
    if (a.relu)
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = ck_relu(v[i]);
    if constexpr (sizeof(T) == 4)
        *reinterpret_cast<float4 *>((float *)a.y + at) = make_float4(v[0], v[1], v[2], v[3]);
    else
        *reinterpret_cast<uint2 *>((T *)a.y + at) =
            make_uint2(ck_pack_word<T>(v[0], v[1]), ck_pack_word<T>(v[2], v[3]));
}

} // namespace sparse

#endif
