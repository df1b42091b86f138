/* cuda/conv/cifar/cifar_grad_stem.cuh: the filter gradient of the stem, 3 -> 16 channels. */
#ifndef CK_CIFAR_GRAD_STEM_CUH
#define CK_CIFAR_GRAD_STEM_CUH

#include "cuda/conv/cifar/cifar_grad_dw.cuh"

namespace cifar {
namespace {

/* The forward product, transposed: the columns of a piece are 4 columns of the filter by 4
 * channels; 3 by 3 of them are stored. */

enum { STEM_DW = STEM_K * 3 * 16 };
struct stem_place {
    enum { DW = STEM_DW, PARTS = 1, CH = 0 };
    static __device__ __forceinline__ void put(float *to, float x, float y, bool first, bool accumulate) {
        to[0] = accumulate ? to[0] + x : x;
        if (first) to[1] = accumulate ? to[1] + y : y; /* the third element is stored separately */
    }
    static __device__ __forceinline__ void store(float *dw, int, int four, float4 v, bool accumulate) {
        const dw_four at(four);
        const int     s = at.c / 4, c = at.c % 4;
        if (s == 3) return;
        float *to = dw + ((at.k * 3 + at.tap) * 3 + s) * 3 + c;
        put(to, v.x, v.y, c == 0, accumulate);
        put(to + 8 * 27, v.z, v.w, c == 0, accumulate);
    }
};

using stem_shape = shape<16, 16, 32, 1, 3>; /* of dy; only dy is used */
using stem_dy    = output_tile<stem_shape, 1, STEM_TH, STEM_K, false>;
enum {
    STEM_LINE_AT = stem_dy::BYTES,
    STEM_X_AT    = STEM_LINE_AT + stem_dy::VECTORS * 16,
    STEM_ALL     = STEM_X_AT + STEM_BYTES
};

/* The part of dw of block `block` of `blocks`; memory: STEM_ALL bytes of shared memory. */
template <typename T> __device__ __forceinline__ void stem_dw(const grad_args &a, char *memory, int block, int blocks) {
    const uint32_t base = ck_shared(memory), line = base + STEM_LINE_AT;
    const int      lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const uint32_t ya = base + (uint32_t)(((lane & 7) + (lane >> 4) * 8) * stem_dy::PITCH + (lane >> 3 & 1) * 16);
    const uint32_t xb = base + STEM_X_AT + (uint32_t)((lane >> 4) * 16);
    float          acc[3][2][4] = {};
    for (int64_t job = block; job < a.N * STEM_TILES; job += blocks) {
        const int64_t image = job / STEM_TILES, out = image * STEM_SIDE * STEM_SIDE * STEM_K;
        const int     y0 = (int)(job % STEM_TILES) * STEM_TH;
        tile_issue<stem_dy, false, false>(base, (const T *)a.g + out, y0, 1);
        if (a.dy_x) tile_issue<stem_dy, true, false>(line, (const T *)a.dy_x + out, y0, 1);
        stem_fill(memory + STEM_X_AT, (const T *)a.x + image * STEM_SIDE * STEM_SIDE * 3, y0 - 1);
        ck_copy_commit();
        if (!a.dy_x) ck_copy_wait<0>();
        if (a.dy_x) tile_bn_grad<stem_dy, 0, T>(base, line, a.dy_coeffs, STEM_K, y0, 1);
        __syncthreads();
        for (int p0 = warp * 16; p0 < STEM_TH * STEM_SIDE; p0 += WARPS * 16) {
            const int p = p0 + (lane & 15);
            uint32_t  af[4], bf[4];
            ck_ldmatrix_trans(af, ya + (uint32_t)(p0 * stem_dy::PITCH));
#pragma unroll
            for (int r = 0; r < 3; r++) {
                ck_ldmatrix_trans(bf, xb + stem_pixel(p / STEM_SIDE + r, p % STEM_SIDE));
                mma<T>(acc[r][0], af, bf[0], bf[1]);
                mma<T>(acc[r][1], af, bf[2], bf[3]);
            }
        }
        __syncthreads();
    }
    dw_warps<WARPS, 1, 0>(acc, reinterpret_cast<float *>(memory), 0, warp);
    if (warp == 0) dw_write<0, 3>(acc, a.dw_partial + (int64_t)block * STEM_DW);
}

} // namespace
} // namespace cifar

#endif
