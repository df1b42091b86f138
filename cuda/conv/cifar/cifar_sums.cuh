/* cuda/conv/cifar/cifar_sums.cuh: sums over the blocks of a launch, for forward and backward of the CIFAR convolutions.
 */
#ifndef CK_CIFAR_SUMS_CUH
#define CK_CIFAR_SUMS_CUH

#include "cuda/conv/cifar/cifar_conv.cuh"

namespace cifar {

/* Adds the thread's first and second sums of 2*NT channels, in column order, to the warp's row of `rows`
 * [WARPS][2][CH]; n0: the warp's first channel. */
template <int NT, int CH>
__device__ __forceinline__ void sums_flush(float (&first)[2 * NT], float (&second)[2 * NT], float *rows, int n0) {
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
#pragma unroll
        for (int offset = 4; offset < CK_WARP; offset *= 2) {
            first[i] += __shfl_xor_sync(0xffffffffu, first[i], offset);
            second[i] += __shfl_xor_sync(0xffffffffu, second[i], offset);
        }
    }
    if (lane < 4) {
        float *row = rows + warp * 2 * CH + n0 + lane * 2 * NT;
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) {
            row[i] += first[i];
            row[CH + i] += second[i];
        }
    }
}

/* Writes the block's row of partial [blocks][2*CH] from `rows` [WARPS][2*CH]. Its first WARPS warps call, after a
 * barrier. factor: multiplies the second sums, [CH], or NULL. With ANY, partial is [blocks][2*channels]. */
template <int CH, int WARPS, bool ANY>
__device__ __forceinline__ void sums_write(const float *rows, const float *factor, float *partial, int block,
                                           int channels) {
    for (int i = (int)threadIdx.x; i < 2 * CH; i += WARPS * CK_WARP) {
        float s = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) s += rows[w * 2 * CH + i];
        if (ANY && i % CH >= channels) continue;
        const int to = ANY ? i / CH * channels + i % CH : i;
        __stcg(partial + (int64_t)block * 2 * (ANY ? channels : CH) + to, factor && i >= CH ? s * factor[i - CH] : s);
    }
}

/* For a second launch: block `part` of CH / SUMS_CHANNELS, with THREADS threads, adds the rows of its channels in
 * double, and calls End::channel(end, c).finish(end, c, first, second) for each. All loads are in flight before the
 * first sum: in a loop that the compiler unrolls, the remaining loads come one by one and take half a microsecond
 * each. */
enum { SUMS_CHANNELS = 8, SUMS_IN_FLIGHT = 5, SUMS_SHARES = THREADS / 4 };
template <typename End>
__device__ __forceinline__ void sums_add(const float *partial, int rows, int part, const End &end, int CH) {
    __shared__ double room[WARPS][2 * SUMS_CHANNELS];
    const int         four = (int)threadIdx.x % 4, share = (int)threadIdx.x / 4,
              c                      = part * SUMS_CHANNELS + (int)threadIdx.x % SUMS_CHANNELS;
    const float                *from = partial + four / 2 * CH + part * SUMS_CHANNELS + four % 2 * 4;
    const typename End::channel channel(end, c);
    double                      s[4] = {};
    for (int b = share; b < rows; b += SUMS_SHARES * SUMS_IN_FLIGHT) {
        float4 v[SUMS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < SUMS_IN_FLIGHT; i++)
            v[i] = b + i * SUMS_SHARES < rows
                       ? __ldcg(reinterpret_cast<const float4 *>(from + (int64_t)(b + i * SUMS_SHARES) * 2 * CH))
                       : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < SUMS_IN_FLIGHT; i++) {
            s[0] += (double)v[i].x, s[1] += (double)v[i].y;
            s[2] += (double)v[i].z, s[3] += (double)v[i].w;
        }
    }
#pragma unroll
    for (int offset = 4; offset < CK_WARP; offset *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] += __shfl_xor_sync(0xffffffffu, s[i], offset);
    if ((int)threadIdx.x % CK_WARP < 4)
#pragma unroll
        for (int i = 0; i < 4; i++) room[threadIdx.x / CK_WARP][four * 4 + i] = s[i];
    __syncthreads();
    if ((int)threadIdx.x >= SUMS_CHANNELS) return;
    double first = 0, second = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) first += room[w][threadIdx.x], second += room[w][SUMS_CHANNELS + threadIdx.x];
    channel.finish(end, c, (float)first, (float)second);
}

} // namespace cifar

#endif
