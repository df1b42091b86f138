/* sparse_nm.cuh: what the kernels for 2:4 sparse filters share: where positions of a tile lie, how a result leaves. */
#ifndef CK_SPARSE_NM_CUH
#define CK_SPARSE_NM_CUH

#include "common.cuh"
#include "sparse_nm.h"

namespace nm {

enum {
    OUT_ROW   = CK_NM_ROWS + 4, /* floats a position on its way out: the 4 keep a warp's stores on different banks */
    PIECE     = 32,             /* positions that leave together */
    OUT_BYTES = PIECE * OUT_ROW * 4,
    MOST_STAGES = 4,                   /* of the rings in shared memory */
    MOST_RING   = 24
};

struct params {
    ck_nm_args a;
    ck_nm_plan plan;
    int        k_groups, groups; /* of `down` blocks; of `across` tiles */
};

/* The input pixel at position `i` (of all phases) of tile `tile`; -1: none, zeros. */
__host__ __device__ inline int64_t input_of(const ck_conv &c, const ck_nm_plan &p, int64_t tile, int i) {
    if (p.linear) {
        const int64_t pixel = tile * p.columns + i, n = pixel / (c.P * c.Q), rest = pixel - n * (c.P * c.Q);
        if (i >= p.columns || n >= c.N) return -1;
        return (n * c.H + rest / c.Q * c.stride) * c.W + rest % c.Q * c.stride;
    }
    const int     phase = i / p.positions, at = i - phase * p.positions, row = at / p.pitch;
    const int     image = row / p.image_rows, of = row - image * p.image_rows;
    const int64_t group = tile / p.strips, n = group * p.images + image, p0 = (tile - group * p.strips) * p.TP;
    const int64_t h = (p0 + of) * c.stride - c.pad + phase / p.phase_s;
    const int64_t w = (int64_t)(at - row * p.pitch) * c.stride - c.pad + phase % p.phase_s;
    if (n >= c.N || h < 0 || h >= c.H || w < 0 || w >= c.W) return -1;
    return (n * c.H + h) * c.W + w;
}

/* The output pixel of column `j` of tile `tile`; -1: none. */
__host__ __device__ inline int64_t output_of(const ck_conv &c, const ck_nm_plan &p, int64_t tile, int j) {
    if (p.linear) {
        const int64_t pixel = tile * p.columns + j;
        return pixel < c.N * c.P * c.Q ? pixel : -1;
    }
    const int     row = j / p.pitch, q = j - row * p.pitch, image = row / p.image_rows, of = row - image * p.image_rows;
    const int64_t group = tile / p.strips, n = group * p.images + image, y = (tile - group * p.strips) * p.TP + of;
    if (image >= p.images || of >= p.TP || q >= c.Q || n >= c.N || y >= c.P) return -1;
    return (n * c.P + y) * c.Q + q;
}

/* 8 channels of an output pixel, from `from` in shared memory. */
template <typename T> __device__ __forceinline__ void finish(const ck_nm_args &a, const float *from, int64_t pixel, int64_t k) {
    const int64_t at = pixel * a.conv.K + k;
    const float4  low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
    float         v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (a.bias) {
        const float4 b0 = *reinterpret_cast<const float4 *>(a.bias + k), b1 = *reinterpret_cast<const float4 *>(a.bias + k + 4);
        v[0] += b0.x, v[1] += b0.y, v[2] += b0.z, v[3] += b0.w;
        v[4] += b1.x, v[5] += b1.y, v[6] += b1.z, v[7] += b1.w;
    }
    if (a.add) {
        float u[8];
        ck_unpack<T>(*reinterpret_cast<const uint4 *>(static_cast<const T *>(a.add) + at), u);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] += u[i];
    }
    if (a.relu)
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = ck_relu(v[i]);
    ck_store_whole(static_cast<T *>(a.y) + at, ck_pack<T>(v));
}

cudaError_t conv_wgmma(const params &p, int multiprocessors, cudaStream_t stream);

} // namespace nm

#endif
