/* cuda/conv/gram/gram_tile.cuh: tiles of 64 pixels in shared memory, as cuda/common/mma.cuh describes them, for the
 * kernels with mma.sync in this folder. Pixels are the rows of a tile. Products sum over rows, so both operands are
 * read transposed. */
#ifndef CK_GRAM_TILE_CUH
#define CK_GRAM_TILE_CUH

#include "cuda/common/mma.cuh"
#include "cuda/conv/gram/gram.h"

namespace {

enum { TILE = 64, THREADS = 256 };

/* x at the pixels that a convolution reads. */
struct source {
    const void  *x;
    const float *scale_bias; /* or NULL */
    int          C, stride, H, W, P, Q, pixels, tiles;

    /* Index in x of the r-th pixel that the convolution reads. */
    __device__ __forceinline__ int64_t pixel_of(int r) const {
        if (stride == 1) return r;
        const int n = r / (P * Q), rest = r - n * (P * Q), h = rest / Q;
        return ((int64_t)n * H + h * stride) * W + (rest - h * Q) * stride;
    }
};

/* A thread's part of tiles of WIDTH channels: the same 8 channels of every STEP-th row, so that their scale and bias
 * stay in registers. */
template <typename T, bool ACT, int WIDTH> struct reader {
    static constexpr int VECTORS = WIDTH / 8, STEP = THREADS / VECTORS, COUNT = TILE / STEP, BYTES = TILE * WIDTH * 2;
    const source        &from;
    const int            vector, row, c; /* chunk of a row, first row, first channel */
    float                scale[8], bias[8];

    __device__ reader(const source &from_, int channel)
        : from(from_), vector((int)threadIdx.x % VECTORS), row((int)threadIdx.x / VECTORS), c(channel + vector * 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            scale[i] = ACT ? from.scale_bias[c + i] : 1.0f;
            bias[i]  = ACT ? from.scale_bias[from.C + c + i] : 0.0f;
        }
    }
    __device__ __forceinline__ int pixel(int tile, int i) const {
        return tile * TILE + row + STEP * i;
    }
    __device__ __forceinline__ bool exists(int tile, int i) const {
        return tile < from.tiles && pixel(tile, i) < from.pixels;
    }
    __device__ __forceinline__ const T *at(int r) const {
        return static_cast<const T *>(from.x) + from.pixel_of(r) * from.C + c;
    }
    /* act(x), rounded. */
    __device__ __forceinline__ uint4 activated(uint4 word) const {
        if (!ACT) return word;
        uint32_t pair[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v = ck_pair<T>(pair[i]);
            pair[i] =
                ck_pack_relu<T>(fmaf(v.x, scale[2 * i], bias[2 * i]), fmaf(v.y, scale[2 * i + 1], bias[2 * i + 1]));
        }
        return make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
};

template <typename T> __device__ __forceinline__ void unpack(const uint4 &word, float (&v)[8]) {
    const uint32_t pair[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = ck_pair<T>(pair[i]);
        v[2 * i] = two.x, v[2 * i + 1] = two.y;
    }
}

/* ---- host side ---- */

inline source source_of(const void *x, const float *scale_bias, int64_t N, int64_t H, int64_t W, int64_t C,
                        int stride) {
    const int64_t P = (H - 1) / stride + 1, Q = (W - 1) / stride + 1, pixels = N * P * Q;
    return {x,      scale_bias, (int)C, stride,      (int)H,
            (int)W, (int)P,     (int)Q, (int)pixels, (int)((pixels + TILE - 1) / TILE)};
}

} // namespace

#endif
