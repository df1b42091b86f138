/* cuda/conv/gram/gram_tile.cuh: tiles in shared memory of the kernels in cuda/conv/gram/, as cuda/common/mma.cuh
 * describes them. */
#ifndef CK_GRAM_TILE_CUH
#define CK_GRAM_TILE_CUH

#include "cuda/common/mma.cuh"
#include "cuda/conv/gram/gram.h"

namespace {

constexpr int C = CK_GRAM_C, K = CK_GRAM_K;
constexpr int TILE = 64, THREADS = 256; /* pixels of a tile; threads of a block */
constexpr int C_ROW = C * 2, K_ROW = K * 2, C_TILE = TILE * C_ROW, K_TILE = TILE * K_ROW; /* bytes */

/* ---- a tile of a ---- */

/* A thread reads the same 8 channels of every 32nd row: its scale and bias stay in registers. */
template <typename T, bool ACT> struct reader {
    const T *x;
    int64_t  pixels;
    int      vector, row; /* chunk of the row, first row */
    float    scale[8], bias[8];
    uint4    held[2];

    __device__ reader(const void *x_, const float *scale_bias, int64_t pixels_)
        : x((const T *)x_), pixels(pixels_), vector((int)threadIdx.x % 8), row((int)threadIdx.x / 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            scale[i] = ACT ? scale_bias[vector * 8 + i] : 1.0f;
            bias[i]  = ACT ? scale_bias[C + vector * 8 + i] : 0.0f;
        }
    }
    __device__ __forceinline__ bool exists(int64_t tile, int i) const {
        return tile * TILE + row + 32 * i < pixels;
    }
    /* Starts the loads of a tile; rows behind the last pixel are 0. */
    __device__ __forceinline__ void load(int64_t tile) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            held[i] = make_uint4(0, 0, 0, 0);
            if (exists(tile, i)) held[i] = ck_load(x, ((tile * TILE + row + 32 * i) * C) / 8 + vector);
        }
    }
    __device__ __forceinline__ void activate(float (&v)[8]) const {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = ACT ? ck_relu(fmaf(v[i], scale[i], bias[i])) : v[i];
    }
    /* Stores a of the loaded tile; rows behind the last pixel are 0. */
    __device__ __forceinline__ void store(int64_t tile, uint32_t to) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 word = held[i];
            if (ACT) {
                float v[8];
                ck_unpack<T>(held[i], v);
                activate(v);
                word = exists(tile, i) ? ck_pack<T>(v) : make_uint4(0, 0, 0, 0);
            }
            ck_put16(ck_chunk_at(to, C_ROW, row + 32 * i, vector), word);
        }
    }
};

/* Starts the copies of a tile of K channels; rows behind the last pixel become 0. */
template <typename T>
__device__ __forceinline__ void copy_wide(uint32_t to, const T *from, int64_t tile, int64_t tiles, int64_t pixels) {
    const int vector = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int     row = (int)threadIdx.x / 32 + 8 * i;
        const int64_t p   = tile * TILE + row;
        const bool    is  = tile < tiles && p < pixels;
        ck_copy16(ck_chunk_at(to, K_ROW, row, vector), from + (is ? p * K : 0) + vector * 8, is);
    }
}

/* Copies a matrix of `rows` rows. */
template <typename T> __device__ __forceinline__ void copy_matrix(uint32_t to, const T *from, int rows, int columns) {
    const int chunks = columns / 8;
    for (int i = (int)threadIdx.x; i < rows * chunks; i += THREADS)
        ck_copy16(ck_chunk_at(to, columns * 2, i / chunks, i % chunks), from + (int64_t)i * 8, true);
}

/* ---- sums over blocks ---- */

/* to[i] = sum of from[block][i] over the blocks, in f64 and in order. */
__global__ void __launch_bounds__(THREADS)
    add_blocks(const float *from, int blocks, int64_t length, float *to, int64_t first, float *to_rest) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= length) return;
    double sum = 0.0;
    for (int b = 0; b < blocks; b++) sum += (double)from[b * length + i];
    if (i < first)
        to[i] = (float)sum;
    else
        to_rest[i - first] = (float)sum;
}

inline int64_t tiles_of(int64_t pixels) {
    return (pixels + TILE - 1) / TILE;
}

} // namespace

#endif
