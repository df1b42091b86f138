/* cuda/conv/gram/gram_grad_channels.cuh: what the backward pass of a BN needs of each output channel, from a Gram
 * matrix: the coefficients of ck_gram_bn_grad, and for SyncBN the sums of one rank, ck_gram_bn_grad_sums. A warp
 * computes a channel. */
#ifndef CK_GRAM_GRAD_CHANNELS_CUH
#define CK_GRAM_GRAD_CHANNELS_CUH

#include "cuda/conv/gram/gram.h"
#include "cuda/conv/gram/gram_f64.cuh"

namespace {

constexpr int CHANNEL_THREADS = 256, CHANNEL_WARPS = CHANNEL_THREADS / 32;

/* dy = A*g + B*(y - mean) + D. With SyncBN the mean is that of all ranks. */
struct channel {
    double A, B, D, mean;
    double shift, apart; /* w t; sum of y - mean over the pixels of this rank, 0 with one rank */
};

/* Sums over the input channels: w m, the mean of y on this rank, w t. */
struct row_sums {
    double dot, mean, shift;
};

/* DOT, MEAN: which sums are computed: the first; the others. each: 1/pixels. */
template <bool DOT, bool MEAN, typename T>
__device__ __forceinline__ row_sums sum_row(const T *w, const float *m, const float *gram, int C, double each) {
    row_sums r = {0.0, 0.0, 0.0};
#pragma unroll 8
    for (int c = (int)threadIdx.x % 32; c < C; c += 32) {
        const double v = (double)ck_float(w[c]);
        if constexpr (DOT) r.dot += v * (double)m[c];
        if constexpr (MEAN) {
            const double t = (double)gram[(C + 1) * C + c];
            r.mean += v * (t + (double)gram[C * C + c] * each);
            r.shift += v * t;
        }
    }
    if constexpr (DOT) r.dot = warp_sum(r.dot);
    if constexpr (MEAN) r.mean = warp_sum(r.mean), r.shift = warp_sum(r.shift);
    return r;
}

/* Sum of g*xhat over the pixels. */
__device__ __forceinline__ double grad_product(double dot, double mean, double rstd, double sum) {
    return rstd * (dot - mean * sum);
}

__device__ __forceinline__ int64_t own_channel() {
    return (int64_t)blockIdx.x * CHANNEL_WARPS + threadIdx.x / 32;
}

/* SYNC: the sums of all ranks are given. done[0] to done[counters-1] become 0. */
template <typename T, bool SYNC>
__global__ void __launch_bounds__(CHANNEL_THREADS)
    grad_channels(const struct ck_gram_bn_grad a, channel *channels, unsigned *done, int counters) {
    const int     C = (int)a.C;
    const int64_t k = own_channel();
    ck_begin_after_last();
    if (blockIdx.x == 0 && (int)threadIdx.x < counters) done[threadIdx.x] = 0;
    if (k >= a.K) return;
    const float gamma = a.gamma[k], of_rstd = a.mean_rstd[a.K + k], of_mean = SYNC ? a.mean_rstd[k] : 0.0f,
                of_sum = SYNC ? a.grad_sums[k] : a.dy_sums[k], of_product = SYNC ? a.grad_sums[a.K + k] : 0.0f;
    const row_sums y =
        sum_row<!SYNC, true>((const T *)a.w + k * C, SYNC ? nullptr : a.m + k * C, a.gram, C, 1.0 / a.pixels);
    if (threadIdx.x % 32) return;
    const double rstd = (double)of_rstd, sum = (double)of_sum, A = (double)gamma * rstd,
                 mean    = SYNC ? (double)of_mean : y.mean,
                 product = SYNC ? (double)of_product : grad_product(y.dot, mean, rstd, sum);
    if (a.dgamma) a.dgamma[k] = (float)((a.accumulate ? (double)a.dgamma[k] : 0.0) + product / a.ranks);
    if (a.dbeta) a.dbeta[k] = (float)((a.accumulate ? (double)a.dbeta[k] : 0.0) + sum / a.ranks);
    channels[k] = {A,       -A * rstd * (product / a.count),        -A * (sum / a.count), mean,
                   y.shift, SYNC ? a.pixels * (y.mean - mean) : 0.0};
}

template <typename T>
__global__ void __launch_bounds__(CHANNEL_THREADS) grad_sums(const struct ck_gram_bn_grad_sums a) {
    const int     C = (int)a.C;
    const int64_t k = own_channel();
    ck_begin_after_last();
    if (k >= a.K) return;
    const float    mean = a.mean_rstd[k], rstd = a.mean_rstd[a.K + k], sum = a.dy_sums[k];
    const row_sums y = sum_row<true, false>((const T *)a.w + k * C, a.m + k * C, nullptr, C, 0.0);
    if (threadIdx.x % 32) return;
    a.grad_sums[k]       = sum;
    a.grad_sums[a.K + k] = (float)grad_product(y.dot, (double)mean, (double)rstd, (double)sum);
}

template <typename T>
cudaError_t start_channels(const struct ck_gram_bn_grad *a, channel *channels, unsigned *done, int counters,
                           cudaStream_t stream) {
    return ck_launch(a->grad_sums ? grad_channels<T, true> : grad_channels<T, false>,
                     dim3((unsigned)((a->K + CHANNEL_WARPS - 1) / CHANNEL_WARPS)), dim3(CHANNEL_THREADS), 0, stream, *a,
                     channels, done, counters);
}

template <typename T> cudaError_t start_grad_sums(const struct ck_gram_bn_grad_sums *a, cudaStream_t stream) {
    return ck_launch(grad_sums<T>, dim3((unsigned)((a->K + CHANNEL_WARPS - 1) / CHANNEL_WARPS)), dim3(CHANNEL_THREADS),
                     0, stream, *a);
}

} // namespace

#endif
