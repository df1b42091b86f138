/* cuda/elementwise/subsample.cu: halves the sides of images, by averages over 2x2 windows (ResNet-D) or by a blur
 * (anti-aliased subsampling), and the gradients. Reference: device/cpu/reference/ref_relu_grad.c. Limiter of all:
 * memory, 1 + 1/4 tensors of the larger image's size. Windows share reads in the cache. See
 * cuda/elementwise/pool.cuh. */
#include "cuda/elementwise/pool.cuh"

namespace {

/* The pixels of an axis that an output reads, and their weights. */
template <bool BLUR> struct taps {
    static constexpr int COUNT = BLUR ? 3 : 2, REACH = BLUR ? 2 : 1; /* REACH: outputs that read a pair of pixels */
    int                  at[COUNT];
    float                weight[COUNT];
    /* Output p of an axis of `size` pixels. An average takes the pixels inside; the blur reflects the border. */
    __device__ __forceinline__ taps(int p, int size) {
#pragma unroll
        for (int t = 0; t < COUNT; t++) {
            const int i = 2 * p + t - (BLUR ? 1 : 0), inside = i < 0 ? -i : i >= size ? 2 * size - 2 - i : i;
            at[t]     = BLUR ? (size == 1 ? 0 : inside) : min(i, size - 1);
            weight[t] = BLUR ? (t == 1 ? 0.5f : 0.25f) : i >= size ? 0.0f : 2 * p + 1 < size ? 0.5f : 1.0f;
        }
    }
    /* The sum of the weights with which the output reads pixel h. */
    __device__ __forceinline__ float of(int h) const {
        float sum = 0;
#pragma unroll
        for (int t = 0; t < COUNT; t++)
            if (at[t] == h) sum += weight[t];
        return sum;
    }
};

template <int LANES>
__device__ __forceinline__ void add_weighted(float weight, const float (&v)[LANES], float (&sum)[LANES]) {
    if (weight == 0.0f) return; /* NaN and infinity do not count either */
#pragma unroll
    for (int i = 0; i < LANES; i++) sum[i] = fmaf(weight, v[i], sum[i]);
}

/* A thread computes a vector of y. */
template <typename T, int LANES, bool BLUR>
__global__ void __launch_bounds__(THREADS) halve(const T *x, T *y, window g) {
    using words         = word_of<T, LANES>;
    constexpr int  SIZE = taps<BLUR>::COUNT;
    const unsigned row = (unsigned)g.Q * g.groups, work = (unsigned)g.P * row;
    for (int64_t n = blockIdx.y; n < g.N; n += gridDim.y) {
        const T *image = x + n * g.H * g.W * g.C;
        for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < work; i += gridDim.x * THREADS) {
            const unsigned       p = i / row, in_row = i - p * row, q = in_row / g.groups;
            const int            c = (int)(in_row - q * g.groups) * LANES;
            const taps<BLUR>     down((int)p, g.H), across((int)q, g.W);
            typename words::word word[SIZE][SIZE];
            float                sum[LANES] = {};
#pragma unroll
            for (int r = 0; r < SIZE; r++)
#pragma unroll
                for (int s = 0; s < SIZE; s++)
                    word[r][s] = words::load(image + ((down.at[r] * g.W + across.at[s]) * g.C + c));
#pragma unroll
            for (int r = 0; r < SIZE; r++)
#pragma unroll
                for (int s = 0; s < SIZE; s++) {
                    float v[LANES];
                    words::open(word[r][s], v);
                    add_weighted(down.weight[r] * across.weight[s], v, sum);
                }
            words::store(y + n * g.P * g.Q * g.C + (int64_t)i * LANES, sum);
        }
    }
}

/* A thread computes the vectors of the four pixels 2p, 2p+1 by 2q, 2q+1: of the outputs, only p, p+1 by q, q+1 read
 * them. */
template <typename T, int LANES, bool BLUR>
__global__ void __launch_bounds__(THREADS) halve_grad(const T *dy, T *dx, window g) {
    using words          = word_of<T, LANES>;
    constexpr int  REACH = taps<BLUR>::REACH;
    const unsigned row = (unsigned)g.Q * g.groups, work = (unsigned)g.P * row;
    for (int64_t n = blockIdx.y; n < g.N; n += gridDim.y) {
        const T *from = dy + n * g.P * g.Q * g.C;
        T       *to   = dx + n * g.H * g.W * g.C;
        for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < work; i += gridDim.x * THREADS) {
            const int p = (int)(i / row), in_row = (int)(i - (unsigned)p * row), q = in_row / (int)g.groups,
                      c = (in_row - q * (int)g.groups) * LANES;
            float v[REACH][REACH][LANES], down[REACH][2], across[REACH][2];
#pragma unroll
            for (int a = 0; a < REACH; a++) {
                const taps<BLUR> rows(p + a, g.H), columns(q + a, g.W);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    down[a][k]   = p + a < g.P ? rows.of(2 * p + k) : 0.0f;
                    across[a][k] = q + a < g.Q ? columns.of(2 * q + k) : 0.0f;
                }
#pragma unroll
                for (int b = 0; b < REACH; b++)
                    words::open(words::load(from + ((min(p + a, g.P - 1) * g.Q + min(q + b, g.Q - 1)) * g.C + c)),
                                v[a][b]);
            }
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    const int h = 2 * p + r, w = 2 * q + s;
                    float     sum[LANES] = {};
                    if (h >= g.H || w >= g.W) continue;
#pragma unroll
                    for (int a = 0; a < REACH; a++)
#pragma unroll
                        for (int b = 0; b < REACH; b++) add_weighted(down[a][r] * across[b][s], v[a][b], sum);
                    words::store(to + ((h * g.W + w) * g.C + c), sum);
                }
        }
    }
}

template <typename T, int LANES, bool BLUR>
cudaError_t halve_by_side(bool grad, const void *from, void *to, const struct ck_window *image, cudaStream_t stream) {
    const window g      = window_of(image, LANES);
    const auto   kernel = grad ? halve_grad<T, LANES, BLUR> : halve<T, LANES, BLUR>;
    kernel<<<grid_of(image->P * image->Q * g.groups, g.N), THREADS, 0, stream>>>((const T *)from, (T *)to, g);
    return cudaGetLastError();
}
template <typename T, int LANES>
cudaError_t halve_run(bool blur, bool grad, const void *from, void *to, const struct ck_window *image,
                      cudaStream_t stream) {
    return blur ? halve_by_side<T, LANES, true>(grad, from, to, image, stream)
                : halve_by_side<T, LANES, false>(grad, from, to, image, stream);
}

} // namespace

cudaError_t ck_halve(enum ck_type type, bool blur, bool grad, const void *from, void *to, const struct ck_window *image,
                     cudaStream_t stream) {
    BY_LANES(type, image->C, halve_run, blur, grad, from, to, image, stream);
}
