/* cuda/conv/gram/gram_finalize.cu: statistics of a BN from a Gram matrix: ck_gram_bn_finalize. With SyncBN the sums of
 * one rank and, from those of all ranks, the statistics: ck_gram_bn_sums, ck_gram_bn_finish.
 *
 * A block computes 16 channels. Their variances are the quadratic forms w G w^T: because G is symmetric, the warps read
 * its tiles of 8 x 8 on and above the diagonal, and count those above twice. All sums are in f64 and have a fixed
 * order. Limited by f64 products and the L2 cache: 3 to 12 microseconds. */
#include "cuda/conv/gram/gram.h"
#include "cuda/conv/gram/gram_f64.cuh"

namespace {

constexpr int THREADS = 512, WARPS = THREADS / 32, RUN = 8;

/* Rows of the block in f64, 0 outside. */
template <typename T>
__device__ __forceinline__ void read_filters(double *to, int length, const T *w, int64_t K, int64_t C) {
    const int64_t k0 = (int64_t)blockIdx.x * PANEL;
#pragma unroll 8
    for (int i = (int)threadIdx.x; i < PANEL * length; i += THREADS) {
        const int row = i / length, c = i % length;
        to[i] = k0 + row < K && c < C ? (double)ck_float(w[(k0 + row) * C + c]) : 0.0;
    }
    __syncthreads();
}

/* Sums over the input channels c of row `w`: w (t + s/P), the mean of y, and w s/P. */
__device__ __forceinline__ void find_mean(const double *w, const float *gram, int C, double each, double *mean,
                                          double *rest) {
    double a = 0.0, b = 0.0;
#pragma unroll 4
    for (int c = (int)threadIdx.x % 32; c < C; c += 32) {
        const double s = (double)gram[C * C + c] * each;
        a += w[c] * ((double)gram[(C + 1) * C + c] + s);
        b += w[c] * s;
    }
    *mean = warp_sum(a);
    *rest = warp_sum(b);
}

/* The variance of row `w` term by term, where numbers are not finite, so that infinities cancel as in the reference. */
__device__ __noinline__ double variance_by_terms(const double *w, const float *gram, int C, double each) {
    double var = 0.0;
    for (int i = (int)threadIdx.x % 32; i < C; i += 32) {
        const double average = (double)gram[C * C + i] * each;
        double       line    = 0.0;
        for (int j = 0; j < C; j++)
            line += ((double)gram[i * C + j] * each - average * ((double)gram[C * C + j] * each)) * w[j];
        var += w[i] * line;
    }
    return warp_sum(var);
}

/* The lane's part of column tile `tile` of w G. */
__device__ __forceinline__ void column_tile(double (&sum)[1][4], const double *w, int length, const float *gram, int C,
                                            int tile) {
    const int    t = (int)threadIdx.x % 4, own = tile * 8 + (int)threadIdx.x % 32 / 4, column = own < C ? own : C - 1;
    const float *from = gram + column; /* columns behind the last are not used */
    double       a[4], last[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = tile * 8 + 4 * half + t;
        last[half]    = row < C ? (double)from[(int64_t)row * C] : 0.0;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sum[0][i] = 0.0;
    add_panel<1, RUN>(sum, w, length, tile * 8, [&](int row, float(&v)[1]) { v[0] = from[(int64_t)row * C]; });
#pragma unroll
    for (int i = 0; i < 4; i++) sum[0][i] *= 2.0;
    get_left(a, w, length, tile * 8);
    multiply_f64(sum[0], a, last[0], last[1]);
}

/* This lane's terms of w G w^T for rows lane / 4 and lane / 4 + 8. */
__device__ __forceinline__ void square_of(double (&square)[2], const double *w, int length, const float *gram, int C) {
    const int lane = (int)threadIdx.x % 32, tiles = (C + 7) / 8;
    square[0] = square[1] = 0.0;
    for (int pair = (int)threadIdx.x / 32; pair < (tiles + 1) / 2; pair += WARPS)
        for (int side = 0; side < 2; side++) { /* a short and a long column */
            const int tile = side ? tiles - 1 - pair : pair;
            double    line[1][4];
            if (side && tile == pair) break;
            column_tile(line, w, length, gram, C, tile);
            const int     column = tile * 8 + lane % 4 * 2;
            const double *at     = w + lane / 4 * length + column;
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (column + i < C) {
                    square[0] += at[i] * line[0][i];
                    square[1] += at[8 * length + i] * line[0][2 + i];
                }
        }
}

/* What a channel needs in addition; loaded early. */
struct channel {
    float      gamma, beta, mean, var;
    __device__ channel(const struct ck_gram_bn &a, int64_t k)
        : gamma(a.gamma[k]), beta(a.beta[k]), mean(a.old_mean[k]), var(a.old_var[k]) {}
};

__device__ __forceinline__ void put_channel(const struct ck_gram_bn &a, const channel &of, int64_t k, double average,
                                            double var) {
    if (var < 0.0) var = 0.0; /* NaN stays NaN */
    const double rstd = 1.0 / sqrt(var + (double)a.eps), scale = (double)of.gamma * rstd;
    a.mean_rstd[k]        = (float)average;
    a.mean_rstd[a.K + k]  = (float)rstd;
    a.scale_bias[k]       = (float)scale;
    a.scale_bias[a.K + k] = (float)((double)of.beta - average * scale);
    const double m = (double)a.momentum, unbiased = a.count > 1.0 ? var * a.count / (a.count - 1.0) : var;
    const bool   good = isfinite(average) && isfinite(var);
    a.mean[k]         = good ? (float)((1.0 - m) * (double)of.mean + m * average) : of.mean;
    a.var[k]          = good ? (float)((1.0 - m) * (double)of.var + m * unbiased) : of.var;
}

/* Mean and variance of y[k] for channel k of this warp, in all of its lanes. memory: f64 [PANEL][row_length(C)]. `of`
 * has type, K, C, w and gram. */
struct moments {
    double mean, var;
};
template <typename T, class Args>
__device__ __forceinline__ moments moments_of(const Args &of, double pixels, unsigned char *memory) {
    __shared__ double parts[WARPS][PANEL];
    double *const     w = reinterpret_cast<double *>(memory);
    const int         C = (int)of.C, length = row_length(C), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const double      each = 1.0 / pixels;
    double            square[2], mean, rest, var = 0.0;
    static_assert(WARPS == PANEL, "a warp for each row");
    read_filters<T>(w, length, (const T *)of.w, of.K, of.C);
    square_of(square, w, length, of.gram, C);
    find_mean(w + warp * length, of.gram, C, each, &mean, &rest);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        square[i] += __shfl_xor_sync(0xffffffffu, square[i], 1);
        square[i] += __shfl_xor_sync(0xffffffffu, square[i], 2);
        if (lane % 4 == 0) parts[warp][lane / 4 + 8 * i] = square[i];
    }
    __syncthreads();
    for (int i = 0; i < WARPS; i++) var += parts[i][warp];
    var = var * each - rest * rest;
    if (!isfinite(var)) var = variance_by_terms(w + warp * length, of.gram, C, each);
    return {mean, var};
}

/* The channel of this warp. */
__device__ __forceinline__ int64_t own_channel() {
    return (int64_t)blockIdx.x * PANEL + threadIdx.x / 32;
}

template <typename T> __global__ void __launch_bounds__(THREADS) bn_finalize(const struct ck_gram_bn a) {
    extern __shared__ __align__(16) unsigned char memory[];
    const int64_t                                 k = own_channel();
    ck_begin_after_last();
    const channel of(a, k < a.K ? k : a.K - 1);
    const moments y = moments_of<T>(a, a.count, memory);
    if (threadIdx.x % 32 == 0 && k < a.K) put_channel(a, of, k, y.mean, y.var);
}

template <typename T> __global__ void __launch_bounds__(THREADS) bn_sums(const struct ck_gram_bn_sums a) {
    extern __shared__ __align__(16) unsigned char memory[];
    const int64_t                                 k = own_channel();
    ck_begin_after_last();
    const double  center = (double)a.center[k < a.K ? k : a.K - 1];
    const moments y      = moments_of<T>(a, a.pixels, memory);
    const double  apart  = y.mean - center;
    if (threadIdx.x % 32 || k >= a.K) return;
    a.sums[k]       = (float)(a.pixels * apart);
    a.sums[a.K + k] = (float)(a.pixels * (y.var + apart * apart));
}

/* A thread computes a channel. center may be a.mean, so it is read before the first store. */
constexpr int   FINISH_THREADS = 64;
__global__ void __launch_bounds__(FINISH_THREADS)
    bn_finish(const struct ck_gram_bn a, const float *sums, const float *center) {
    const int64_t k = (int64_t)blockIdx.x * FINISH_THREADS + threadIdx.x;
    ck_begin_after_last();
    if (k >= a.K) return;
    const channel of(a, k);
    const double  about = (double)sums[k] / a.count, average = (double)center[k] + about;
    put_channel(a, of, k, average, (double)sums[a.K + k] / a.count - about * about);
}

/* Launches a kernel whose blocks compute PANEL channels. */
template <class Args> cudaError_t start_panels(void (*kernel)(Args), const Args *a, cudaStream_t stream) {
    const int64_t     bytes = (int64_t)sizeof(double) * PANEL * row_length((int)a->C);
    const cudaError_t error = ck_allow_shared(kernel, bytes);
    if (error != cudaSuccess) return error;
    return ck_launch(kernel, dim3((unsigned)((a->K + PANEL - 1) / PANEL)), dim3(THREADS), (size_t)bytes, stream, *a);
}

} // namespace

cudaError_t ck_gram_bn_finalize(const struct ck_gram_bn *a, cudaStream_t stream) {
    return start_panels(a->type == CK_F16 ? bn_finalize<__half> : bn_finalize<__nv_bfloat16>, a, stream);
}

cudaError_t ck_gram_bn_sums(const struct ck_gram_bn_sums *a, cudaStream_t stream) {
    return start_panels(a->type == CK_F16 ? bn_sums<__half> : bn_sums<__nv_bfloat16>, a, stream);
}

cudaError_t ck_gram_bn_finish(const struct ck_gram_bn *a, const float *sums, const float *center, cudaStream_t stream) {
    return ck_launch(bn_finish, dim3((unsigned)((a->K + FINISH_THREADS - 1) / FINISH_THREADS)), dim3(FINISH_THREADS), 0,
                     stream, *a, sums, center);
}
