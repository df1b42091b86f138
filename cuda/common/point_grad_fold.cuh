/* cuda/common/point_grad_fold.cuh: adds the filter gradients and BN sums that the blocks of a backward kernel
 * stored in the workspace. */
#ifndef CK_POINT_GRAD_FOLD_CUH
#define CK_POINT_GRAD_FOLD_CUH

#include "cuda/common/common.cuh"

/* out[i] (+)= scale * sum of part[0..parts)[i]. A block computes 128 elements; its warps divide the parts. First come
 * the elements of dw, then those of grad_sums, whose second half is multiplied by rstd. */
enum { FOLD_WARPS = 8, FOLD_ELEMS = 4 * CK_WARP };
static __global__ void __launch_bounds__(FOLD_WARPS *CK_WARP)
    fold_parts_kernel(const float *dw_part, int dw_parts, const float *sums_part, int sums_parts,
                      const float *mean_rstd, float *dw, float *grad_sums, int dw_elems, int C, bool accumulate) {
    __shared__ float4 share[FOLD_WARPS][CK_WARP];
    const int         lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const bool        sums  = (int)blockIdx.x * FOLD_ELEMS >= dw_elems;
    const int         at    = (int)blockIdx.x * FOLD_ELEMS - (sums ? dw_elems : 0) + lane * 4;
    const float      *from  = sums ? sums_part : dw_part;
    const int         parts = sums ? sums_parts : dw_parts, elems = sums ? 2 * C : dw_elems;
    float4            s = make_float4(0, 0, 0, 0);
    ck_begin_after_last();
#pragma unroll 8
    for (int p = warp; p < parts; p += FOLD_WARPS) {
        const float4 f = *(const float4 *)(from + (int64_t)p * elems + at);
        s.x += f.x, s.y += f.y, s.z += f.z, s.w += f.w;
    }
    share[warp][lane] = s;
    __syncthreads();
    if (warp != 0) return;
    for (int w = 1; w < FOLD_WARPS; w++) {
        const float4 f = share[w][lane];
        s.x += f.x, s.y += f.y, s.z += f.z, s.w += f.w;
    }
    if (sums && at >= C) {                                  /* C is a multiple of 64: all four or none */
        const float4 r = *(const float4 *)(mean_rstd + at); /* rstd follows C means */
        s.x *= r.x, s.y *= r.y, s.z *= r.z, s.w *= r.w;
    }
    float4 *to = (float4 *)((sums ? grad_sums : dw) + at);
    if (!sums && accumulate) {
        const float4 f = *to;
        s.x += f.x, s.y += f.y, s.z += f.z, s.w += f.w;
    }
    *to = s;
}

struct ck_parts {
    const float *dw, *sums; /* [dw_parts][K][C], [sums_parts][2][C] */
    int          dw_parts, sums_parts;
};
/* Adds the parts. mean_rstd [2][C]: NULL without sums. */
static cudaError_t ck_fold_parts(const struct ck_parts *parts, const float *mean_rstd, float *dw, float *grad_sums,
                                 int K, int C, bool accumulate, cudaStream_t stream) {
    const int elems = K * C, blocks = (elems + (mean_rstd ? 2 * C : 0)) / FOLD_ELEMS;
    return ck_launch(fold_parts_kernel, dim3((unsigned)blocks), dim3(FOLD_WARPS * CK_WARP), 0, stream, parts->dw,
                     parts->dw_parts, parts->sums, parts->sums_parts, mean_rstd, dw, grad_sums, elems, C, accumulate);
}

#endif
