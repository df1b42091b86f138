/* cuda/conv/cifar/cifar_sums.cuh: sums over the blocks of a launch, for forward and backward of the CIFAR convolutions.
 */
#ifndef CK_CIFAR_SUMS_CUH
#define CK_CIFAR_SUMS_CUH

#include "cuda/conv/cifar/cifar_conv.cuh"

namespace cifar {

/* Adds the first N values of the lanes whose numbers differ by multiples of OFFSET; each lane keeps a part of the sums
 * at the beginning of v. Returns the index of the lane's first sum. In each turn two lanes divide the values between
 * them, so a turn adds half as many values as the turn before. Together with parts_add this makes steps of ResNet-56
 * 1.1 % faster than sums of all values in all lanes. */
template <int N, int OFFSET, int ALL> __device__ __forceinline__ int lanes_add(float (&v)[ALL]) {
    if constexpr (OFFSET == CK_WARP)
        return 0;
    else {
        constexpr int HALF  = N / 2;
        const bool    upper = ((int)threadIdx.x & OFFSET) != 0;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const float keep = upper ? v[HALF + i] : v[i], give = upper ? v[i] : v[HALF + i];
            v[i] = keep + __shfl_xor_sync(0xffffffffu, give, OFFSET);
        }
        return (upper ? HALF : 0) + lanes_add<HALF, 2 * OFFSET>(v);
    }
}
/* Stores the warp's first and second sums of 2*NT channels of each thread, in column order, in the warp's row of `rows`
 * [WARPS][2][CH]; n0: the warp's first channel. A warp calls it once. */
template <int NT, int CH>
__device__ __forceinline__ void sums_flush(float (&first)[2 * NT], float (&second)[2 * NT], float *rows, int n0) {
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    float     v[4 * NT];
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) v[i] = first[i], v[2 * NT + i] = second[i];
    const int at = lanes_add<4 * NT, 4>(v), c = at % (2 * NT);
    float    *to = rows + warp * 2 * CH + at / (2 * NT) * CH + n0 + lane % 4 * 2 * NT + c;
#pragma unroll
    for (int i = 0; i < NT / 2; i++) to[i] = v[i];
}

/* Adds the sums of the warps, [WARPS][2][CH], for channel c, as a tree of pairs: additions in double take long, and few
 * of them wait for each other in a tree. */
template <int CH, int WARPS>
__device__ __forceinline__ void parts_add(const float *parts, int c, double &first, double &second) {
    static_assert((WARPS & (WARPS - 1)) == 0, "pairs");
    double a[WARPS], b[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) a[w] = (double)parts[w * 2 * CH + c], b[w] = (double)parts[w * 2 * CH + CH + c];
#pragma unroll
    for (int step = 1; step < WARPS; step *= 2)
#pragma unroll
        for (int w = 0; w < WARPS; w += 2 * step) a[w] += a[w + step], b[w] += b[w + step];
    first = a[0], second = b[0];
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
enum {
    SUMS_CHANNELS  = 8,          /* of a block */
    SUMS_IN_FLIGHT = 5,          /* loads of a thread */
    SUMS_SHARES    = THREADS / 4 /* threads among which the rows are divided; each loads four sums of a row */
};
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
