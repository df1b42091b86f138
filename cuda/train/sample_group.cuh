/* cuda/train/sample_group.cuh: the threads that process one row of logits, a sample: a warp for few classes, a block for
 * many; sums and maxima over them. GROUP is their number, CK_WARP or THREADS; all of them call these functions. */
#ifndef CK_SAMPLE_GROUP_CUH
#define CK_SAMPLE_GROUP_CUH

#include "cuda/common/common.cuh"

enum { THREADS = 256, WARP_CLASSES = 512 /* with at most this many classes a warp processes a sample */ };

template <int GROUP, typename A> static __device__ __forceinline__ A group_sum(A x) {
    if constexpr (GROUP == CK_WARP)
        return ck_warp_sum(x);
    else
        return ck_block_sum<GROUP>(x);
}

static __device__ __forceinline__ float larger(float a, float b) {
    return fmaxf(a, b);
}
static __device__ __forceinline__ double larger(double a, double b) {
    return fmax(a, b);
}

/* NaN is ignored; if all values are NaN, the result is -inf. */
template <int GROUP, typename A> static __device__ __forceinline__ A group_max(A x) {
#pragma unroll
    for (int offset = CK_WARP / 2; offset > 0; offset /= 2) x = larger(x, __shfl_xor_sync(0xffffffffu, x, offset));
    if constexpr (GROUP != CK_WARP) {
        __shared__ A part[GROUP / CK_WARP];
        __syncthreads();
        if (threadIdx.x % CK_WARP == 0) part[threadIdx.x / CK_WARP] = x;
        __syncthreads();
        x = part[0];
        for (int w = 1; w < GROUP / CK_WARP; w++) x = larger(x, part[w]);
        __syncthreads();
    }
    return x;
}

#endif
