/* tools/sparse-bench/im2col.cu: the kernels of tools/sparse-bench/im2col.h.
 *
 * The kernels only copy elements, so that they are instantiated by element size. NHWC channels are copied in units of
 * 16 bytes where the size of a pixel allows it. */
#include "cuda/common/common.cuh"
#include "tools/sparse-bench/im2col.h"

namespace {

enum { THREADS = 256 };

/* One thread copies one unit of channels of one filter tap of one output pixel. Neighbouring threads write neighbouring
 * units. */
template <typename U>
__global__ void __launch_bounds__(THREADS) im2col_nhwc(ck_conv c, int64_t units, const U *x, U *out, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const int64_t unit = i % units, tap = i / units % (c.R * c.S), pixel = i / units / (c.R * c.S);
    const int64_t h = pixel / c.Q % c.P * c.stride - c.pad + tap / c.S, w = pixel % c.Q * c.stride - c.pad + tap % c.S;
    U             v = {};
    if (h >= 0 && h < c.H && w >= 0 && w < c.W) v = x[((pixel / (c.P * c.Q) * c.H + h) * c.W + w) * units + unit];
    out[i] = v;
}

/* One thread copies one output pixel of one row of the transposed matrix. Neighbouring threads read neighbouring
 * pixels, `stride` apart. */
template <typename T>
__global__ void __launch_bounds__(THREADS) im2col_cnhw(ck_conv c, const T *x, T *out, int64_t pixels) {
    const int64_t pixel = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (pixel >= pixels) return;
    const int64_t channel = row % c.C, tap = row / c.C;
    const int64_t h = pixel / c.Q % c.P * c.stride - c.pad + tap / c.S, w = pixel % c.Q * c.stride - c.pad + tap % c.S;
    T             v = {};
    if (h >= 0 && h < c.H && w >= 0 && w < c.W) v = x[((channel * c.N + pixel / (c.P * c.Q)) * c.H + h) * c.W + w];
    out[row * pixels + pixel] = v;
}

template <typename U>
cudaError_t launch_pixels(const ck_conv &c, int64_t units, const void *x, void *out, cudaStream_t stream) {
    const int64_t count = c.N * c.P * c.Q * c.R * c.S * units;
    im2col_nhwc<U>
        <<<(unsigned)((count + THREADS - 1) / THREADS), THREADS, 0, stream>>>(c, units, (const U *)x, (U *)out, count);
    return cudaGetLastError();
}

} // namespace

cudaError_t ck_im2col(const struct ck_conv *conv, const void *x, void *out, cudaStream_t stream) {
    const int64_t bytes = conv->C * (conv->type == CK_F32 ? 4 : 2);
    if (bytes % 16 == 0) return launch_pixels<uint4>(*conv, bytes / 16, x, out, stream);
    if (bytes % 4 == 0) return launch_pixels<uint32_t>(*conv, bytes / 4, x, out, stream);
    return launch_pixels<uint16_t>(*conv, bytes / 2, x, out, stream);
}

cudaError_t ck_im2col_channels_first(const struct ck_conv *conv, const void *x, void *out, cudaStream_t stream) {
    const int64_t pixels = conv->N * conv->P * conv->Q;
    const dim3    grid((unsigned)((pixels + THREADS - 1) / THREADS), (unsigned)(conv->R * conv->S * conv->C));
    if (conv->type == CK_F32)
        im2col_cnhw<uint32_t><<<grid, THREADS, 0, stream>>>(*conv, (const uint32_t *)x, (uint32_t *)out, pixels);
    else
        im2col_cnhw<uint16_t><<<grid, THREADS, 0, stream>>>(*conv, (const uint16_t *)x, (uint16_t *)out, pixels);
    return cudaGetLastError();
}
