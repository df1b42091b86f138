/* cuda/conv/conv3x3/eight_channels.cuh: epilogue of the 3x3 convolutions: what a thread does with eight neighbouring
 * channels of a pixel before it stores them: the ReLU mask of the BN in front, and sums. */
#ifndef CK_EIGHT_CHANNELS_CUH
#define CK_EIGHT_CHANNELS_CUH

#include "cuda/common/shared.cuh"

namespace {

/* Of the BN in front. */
struct scale_bias {
    float scale[8], bias[8];
};
struct eight_sums {
    float first[8] = {}, second[8] = {};
};

__device__ __forceinline__ void get8(float (&v)[8], uint32_t at) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 word = ck_get16(at + (uint32_t)(16 * i));
        v[4 * i]         = __uint_as_float(word.x);
        v[4 * i + 1]     = __uint_as_float(word.y);
        v[4 * i + 2]     = __uint_as_float(word.z);
        v[4 * i + 3]     = __uint_as_float(word.w);
    }
}
template <typename T> __device__ __forceinline__ void unpack(float (&v)[8], const uint4 &word) {
    const uint32_t pair[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = ck_pair<T>(pair[i]);
        v[2 * i]         = two.x;
        v[2 * i + 1]     = two.y;
    }
}

/* y where the BN and ReLU in front let it pass, else 0; sums of y and y*bn_x. */
template <typename T>
__device__ __forceinline__ uint4 mask(const uint4 &word, const uint4 &bn, const scale_bias &of, eight_sums &sums) {
    float v[8], x[8];
    unpack<T>(v, word);
    unpack<T>(x, bn);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = fmaf(x[i], of.scale[i], of.bias[i]) > 0.0f ? v[i] : 0.0f;
        sums.first[i] += v[i];
        sums.second[i] = fmaf(v[i], x[i], sums.second[i]);
    }
    return make_uint4(ck_pack_pair<T>(v[0], v[1]), ck_pack_pair<T>(v[2], v[3]), ck_pack_pair<T>(v[4], v[5]),
                      ck_pack_pair<T>(v[6], v[7]));
}
/* Sums of y and y^2. */
template <typename T> __device__ __forceinline__ void add_squares(const uint4 &word, eight_sums &sums) {
    float v[8];
    unpack<T>(v, word);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sums.first[i] += v[i];
        sums.second[i] = fmaf(v[i], v[i], sums.second[i]);
    }
}
/* Sums of y*bn_x become sums of y*(bn_x - mean)*rstd: of one tile, before larger sums could cancel. rstd and -mean*rstd
 * are at these addresses. */
__device__ __forceinline__ void normalize(eight_sums &sums, uint32_t rstd_at, uint32_t shift_at) {
    float rstd[8], shift[8];
    get8(rstd, rstd_at), get8(shift, shift_at);
#pragma unroll
    for (int i = 0; i < 8; i++) sums.second[i] = fmaf(sums.second[i], rstd[i], sums.first[i] * shift[i]);
}
/* Adds four sums to those in shared memory. */
__device__ __forceinline__ void add_four(uint32_t to, const float *sum) {
    const uint4 last = ck_get16(to);
    ck_put16(to, make_uint4(__float_as_uint(__uint_as_float(last.x) + sum[0]),
                            __float_as_uint(__uint_as_float(last.y) + sum[1]),
                            __float_as_uint(__uint_as_float(last.z) + sum[2]),
                            __float_as_uint(__uint_as_float(last.w) + sum[3])));
}

} // namespace

#endif
