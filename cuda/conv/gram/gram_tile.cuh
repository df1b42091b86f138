/* cuda/conv/gram/gram_tile.cuh: tiles in shared memory and products of the kernels in cuda/conv/gram/.
 *
 * A tile has rows of 16-bit elements; 16-byte chunk c of row r is stored at chunk c ^ (r % 8), so that eight rows of
 * one chunk lie in different banks. */
#ifndef CK_GRAM_TILE_CUH
#define CK_GRAM_TILE_CUH

#include "cuda/common/shared.cuh"
#include "cuda/conv/gram/gram.h"

namespace {

constexpr int C = CK_GRAM_C, K = CK_GRAM_K;
constexpr int TILE = 64, THREADS = 256; /* pixels of a tile; threads of a block */
constexpr int C_ROW = C * 2, K_ROW = K * 2, C_TILE = TILE * C_ROW, K_TILE = TILE * K_ROW; /* bytes */

__device__ __forceinline__ uint32_t chunk_at(uint32_t tile, int row_bytes, int row, int chunk) {
    return tile + (uint32_t)(row * row_bytes + ((chunk ^ (row & 7)) << 4));
}

/* ---- fragments of a product d[16][8] += a[16][16] b[16][8]; lane is that of the warp ---- */

/* a from a tile of rows m, columns k. */
__device__ __forceinline__ void left(uint32_t (&a)[4], uint32_t tile, int row_bytes, int m, int k) {
    const int lane = (int)threadIdx.x % 32;
    ck_ldmatrix(a, chunk_at(tile, row_bytes, m + lane % 16, k / 8 + lane / 16));
}
/* a from a tile of rows k, columns m. */
__device__ __forceinline__ void left_transposed(uint32_t (&a)[4], uint32_t tile, int row_bytes, int m, int k) {
    const int lane = (int)threadIdx.x % 32;
    ck_ldmatrix_trans(a, chunk_at(tile, row_bytes, k + lane / 16 * 8 + lane % 8, m / 8 + lane / 8 % 2));
}
/* Two b from a tile of rows n, columns k: b[0], b[1] for columns n to n+7, b[2], b[3] for n+8 to n+15. */
__device__ __forceinline__ void right(uint32_t (&b)[4], uint32_t tile, int row_bytes, int n, int k) {
    const int lane = (int)threadIdx.x % 32;
    ck_ldmatrix(b, chunk_at(tile, row_bytes, n + lane / 16 * 8 + lane % 8, k / 8 + lane / 8 % 2));
}
/* The same from a tile of rows k, columns n. */
__device__ __forceinline__ void right_transposed(uint32_t (&b)[4], uint32_t tile, int row_bytes, int n, int k) {
    const int lane = (int)threadIdx.x % 32;
    ck_ldmatrix_trans(b, chunk_at(tile, row_bytes, k + lane / 8 % 2 * 8 + lane % 8, n / 8 + lane / 16));
}

template <typename T>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

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
            ck_put16(chunk_at(to, C_ROW, row + 32 * i, vector), word);
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
        ck_copy16(chunk_at(to, K_ROW, row, vector), from + (is ? p * K : 0) + vector * 8, is);
    }
}

/* Copies a matrix of `rows` rows. */
template <typename T> __device__ __forceinline__ void copy_matrix(uint32_t to, const T *from, int rows, int columns) {
    const int chunks = columns / 8;
    for (int i = (int)threadIdx.x; i < rows * chunks; i += THREADS)
        ck_copy16(chunk_at(to, columns * 2, i / chunks, i % chunks), from + (int64_t)i * 8, true);
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
