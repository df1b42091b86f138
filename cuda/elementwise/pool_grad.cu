/* cuda/elementwise/pool_grad.cu: the gradient of max pooling. Limiter: memory. See cuda/elementwise/pool.cuh. */
#include "cuda/elementwise/pool.cuh"

namespace {

/* ---- gradient of max pooling: gathers, so that no two threads add to one element; dx written, (dy + index)/stride^2
 * read ---- */

/* Adds dy of a window if its maximum is at `tap`. */
template <typename T, int LANES>
__device__ __forceinline__ void gather(const typename word_of<T, LANES>::word &dy, const byte_word<LANES> &index,
                                       unsigned tap, float (&sum)[LANES]) {
    float v[LANES];
    word_of<T, LANES>::open(dy, v);
#pragma unroll
    for (int i = 0; i < LANES; i++)
        if (bytes_of<LANES>::at(index, i) == tap) sum[i] += v[i];
}

/* An index that no window has in any lane. */
template <int LANES> __device__ __forceinline__ byte_word<LANES> nowhere() {
    if constexpr (LANES == 8)
        return make_uint2(~0u, ~0u);
    else
        return (byte_word<LANES>)~0u;
}

/* Any window: a thread visits all windows that cover its pixel, in their order. */
template <typename T, int LANES>
__global__ void __launch_bounds__(THREADS, 4) maxpool_grad(const T *dy, const uint8_t *index, T *dx, window g) {
    using words        = word_of<T, LANES>;
    const unsigned row = (unsigned)g.W * g.groups, work = (unsigned)g.H * row;
    for (int64_t n = blockIdx.y; n < g.N; n += gridDim.y) {
        const int64_t image = n * g.H * g.W * g.C, result = n * g.P * g.Q * g.C;
        for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < work; i += gridDim.x * THREADS) {
            const unsigned line = i / row, in_row = i - line * row, column = in_row / g.groups;
            const int c = (int)(in_row - column * g.groups) * LANES, h = (int)line + g.pad, w = (int)column + g.pad;
            const int p0 = h < g.size ? 0 : (h - g.size) / g.stride + 1, p1 = min(h / g.stride, g.P - 1);
            const int q0 = w < g.size ? 0 : (w - g.size) / g.stride + 1, q1 = min(w / g.stride, g.Q - 1);
            float     sum[LANES] = {};
            for (int p = p0; p <= p1; p++)
                for (int q = q0; q <= q1; q++) {
                    const int at = (p * g.Q + q) * g.C + c;
                    gather<T, LANES>(words::load(dy + result + at), load_bytes<LANES>(index + result + at),
                                     (unsigned)((h - p * g.stride) * g.size + w - q * g.stride), sum);
                }
            words::store(dx + image + (int64_t)i * LANES, sum);
        }
    }
}

/* Window 3, stride 2: the four pixels whose padded coordinates are 2i, 2i+1 by 2j, 2j+1 are covered only by the windows
 * at i-1, i by j-1, j. Of those 16 combinations only 9 fall inside a window. dy and index are loaded once for four
 * pixels. */
template <typename T, int LANES>
__global__ void __launch_bounds__(THREADS) maxpool_grad_3_2(const T *dy, const uint8_t *index, T *dx, window g) {
    using words         = word_of<T, LANES>;
    const unsigned row  = (((unsigned)(g.W + g.pad) + 1) / 2) * g.groups,
                   work = (((unsigned)(g.H + g.pad) + 1) / 2) * row;
    for (int64_t n = blockIdx.y; n < g.N; n += gridDim.y) {
        const int64_t image = n * g.H * g.W * g.C, result = n * g.P * g.Q * g.C;
        for (unsigned item = blockIdx.x * THREADS + threadIdx.x; item < work; item += gridDim.x * THREADS) {
            const unsigned       line = item / row, in_row = item - line * row, column = in_row / g.groups;
            const int            i = (int)line, j = (int)column, c = (int)(in_row - column * g.groups) * LANES;
            typename words::word v[4] = {};
            byte_word<LANES>     winner[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int p = i - 1 + k / 2, q = j - 1 + k % 2, at = (p * g.Q + q) * g.C + c;
                winner[k] = nowhere<LANES>();
                if (p < 0 || p >= g.P || q < 0 || q >= g.Q) continue;
                v[k]      = words::load(dy + result + at);
                winner[k] = load_bytes<LANES>(index + result + at);
            }
#pragma unroll
            for (int pixel = 0; pixel < 4; pixel++) {
                const int h = 2 * i + pixel / 2 - g.pad, w = 2 * j + pixel % 2 - g.pad;
                float     sum[LANES] = {};
#pragma unroll
                for (int k = 0; k < 4; k++) { /* padded 2i + pixel/2 is row r of the window at i-1 + k/2 */
                    const int r = 2 - k / 2 * 2 + pixel / 2, s = 2 - k % 2 * 2 + pixel % 2;
                    if (r < 3 && s < 3) gather<T, LANES>(v[k], winner[k], (unsigned)(r * 3 + s), sum);
                }
                if (h >= 0 && h < g.H && w >= 0 && w < g.W) words::store(dx + image + ((h * g.W + w) * g.C + c), sum);
            }
        }
    }
}

template <typename T, int LANES>
cudaError_t maxpool_grad_run(const void *dy, const uint8_t *index, void *dx, const struct ck_window *w,
                             cudaStream_t stream) {
    const window g = window_of(w, LANES);
    if (g.size == 3 && g.stride == 2)
        maxpool_grad_3_2<T, LANES>
            <<<grid_of((w->H + w->pad + 1) / 2 * ((w->W + w->pad + 1) / 2) * g.groups, w->N), THREADS, 0, stream>>>(
                (const T *)dy, index, (T *)dx, g);
    else
        maxpool_grad<T, LANES>
            <<<grid_of(w->H * w->W * g.groups, w->N), THREADS, 0, stream>>>((const T *)dy, index, (T *)dx, g);
    return cudaGetLastError();
}

} // namespace

cudaError_t ck_maxpool_grad(enum ck_type type, const void *dy, const uint8_t *index, void *dx,
                            const struct ck_window *w, cudaStream_t stream) {
    BY_LANES(type, w->C, maxpool_grad_run, dy, index, dx, w, stream);
}
