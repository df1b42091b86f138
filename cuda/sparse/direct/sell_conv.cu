/* cuda/sparse/direct/sell_conv.cu: direct convolution with a sparse filter in SELL format; the input is read from
 * global memory.
 *
 * A lane computes one output channel and a warp 32 of them, at a few output pixels. Entry i of the 32 channels is one
 * read of 256 bytes. Each lane then reads its own input channel of each pixel, all within the few cache lines of the
 * pixel. The result is stored as whole lines.
 *
 * Bytes: x and y from memory once; from L1 4 (2 in 16 bits) per multiply-add. Limiter: the reads from L1, with up to 32
 * different addresses per instruction, which take a few cycles each: at most 4.2 TFLOP/s of nonzero weights at 4
 * cycles. */
#include "cuda/sparse/sparse_conv.cuh"

namespace sparse {
namespace {

enum { WARPS = 4, PIXELS = 4 };

struct sell_args {
    ck_sparse_args a;
    int64_t        pixels, slices;
};

/* Reads the inputs of one entry at the warp's pixels; 0 outside the image. */
template <typename T, bool POINT>
__device__ __forceinline__ void gather(const ck_conv &c, const T *x, const int64_t (&base)[PIXELS],
                                       const int (&h)[PIXELS], const int (&w)[PIXELS], uint32_t offset,
                                       float (&v)[PIXELS]) {
    const int     r = (int)(offset >> 24), s = (int)(offset >> 16 & 255u);
    const int64_t at = POINT ? (int64_t)offset : (int64_t)((int64_t)r * c.W + s) * c.C + (int64_t)(offset & 0xffffu);
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        const bool inside = POINT || ((unsigned)(h[i] + r) < (unsigned)c.H && (unsigned)(w[i] + s) < (unsigned)c.W);
        v[i]              = inside ? ck_float(x[base[i] + at]) : 0.0f;
    }
}

/* POINT: a 1x1 filter without padding. Its offsets are channels, and its inputs are always inside the image. */
template <typename T, bool POINT> __global__ void __launch_bounds__(WARPS *CK_WARP) sell_kernel(sell_args k) {
    const ck_conv &c    = k.a.conv;
    const int      lane = (int)threadIdx.x % CK_WARP;
    const int64_t  job = (int64_t)blockIdx.x * WARPS + (int)threadIdx.x / CK_WARP, slice = job % k.slices;
    const int64_t  first = job / k.slices * PIXELS, channel = slice * CK_WARP + lane;
    if (first >= k.pixels) return;
    const T *x = (const T *)k.a.x;
    int64_t  base[PIXELS];
    int      h[PIXELS], w[PIXELS];
    float    sum[PIXELS] = {};
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        const int64_t pixel = first + i < k.pixels ? first + i : first;
        h[i]                = (int)(pixel / c.Q % c.P) * c.stride - c.pad;
        w[i]                = (int)(pixel % c.Q) * c.stride - c.pad;
        base[i]             = ((pixel / (c.P * c.Q) * c.H + h[i]) * c.W + w[i]) * c.C;
    }
    const float    *values  = k.a.values + lane;
    const uint32_t *offsets = k.a.offsets + lane, end = k.a.start[slice + 1];
#pragma unroll(POINT ? 4 : 2)
    for (uint32_t i = k.a.start[slice]; i < end; i++) {
        const float    weight = __ldg(values + (int64_t)i * CK_WARP);
        const uint32_t offset = __ldg(offsets + (int64_t)i * CK_WARP);
        float          v[PIXELS];
        gather<T, POINT>(c, x, base, h, w, offset, v);
#pragma unroll
        for (int j = 0; j < PIXELS; j++) sum[j] = fmaf(weight, v[j], sum[j]);
    }
    if (channel >= c.K) return;
#pragma unroll
    for (int i = 0; i < PIXELS; i++)
        if (first + i < k.pixels) {
            const int64_t pixel = first + i;
            const int64_t at =
                k.a.scatter.step ? output_pixel(k.a, pixel / (c.P * c.Q), pixel / c.Q % c.P, pixel % c.Q) : pixel;
            write_one<T>(k.a, at * c.K + channel, channel, sum[i]);
        }
}

template <typename T> cudaError_t launch_sell(const sell_args &k, cudaStream_t stream) {
    const ck_conv &c    = k.a.conv;
    const int64_t  jobs = (k.pixels + PIXELS - 1) / PIXELS * k.slices, blocks = (jobs + WARPS - 1) / WARPS;
    const bool     all_inside = (c.P - 1) * c.stride < c.H && (c.Q - 1) * c.stride < c.W;
    if (c.R == 1 && c.S == 1 && c.pad == 0 && all_inside)
        sell_kernel<T, true><<<(unsigned)blocks, WARPS * CK_WARP, 0, stream>>>(k);
    else
        sell_kernel<T, false><<<(unsigned)blocks, WARPS * CK_WARP, 0, stream>>>(k);
    return cudaGetLastError();
}

} // namespace
} // namespace sparse

bool ck_sell_conv_supports(const struct ck_conv *conv) {
    const int64_t jobs = conv->N * conv->P * conv->Q * (conv->K / CK_WARP + 1);
    return conv->R <= 256 && conv->S <= 256 && conv->C <= 65536 && jobs < (int64_t)1 << 32;
}

cudaError_t ck_sell_conv(const struct ck_sparse_args *args, cudaStream_t stream) {
    sparse::sell_args k = {};
    k.a                 = *args;
    k.pixels            = args->conv.N * args->conv.P * args->conv.Q;
    k.slices            = (args->conv.K + CK_WARP - 1) / CK_WARP;
    cudaError_t e       = cudaErrorInvalidValue;
    CK_BY_TYPE(args->conv.type, e = sparse::launch_sell<T>(k, stream));
    return e;
}
