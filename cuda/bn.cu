/* bn.cu: batch normalisation forward: sums of a batch, and coefficients from sums or from running statistics. What applies
 * them is in bn_apply.cu. */
#include "bn_sums.cuh"

/* ---- bn_stats: sizeof(T) bytes an element, limited by memory ------------------------------------------------------- */

template <typename T> struct stats_terms {
    using Type = T;
    enum { INPUTS = 1, BATCH = sizeof(T) == 4 ? 4 : 8, RESIDENT = sizeof(T) == 4 ? 3 : 2 };
    const T *in[1];
    __device__ __forceinline__ float centre(int64_t) const { return 0; }
    __device__ __forceinline__ void  add(const float (&x)[1], float, float *a, float *b) const {
        *a += x[0];
        *b = fmaf(x[0], x[0], *b);
    }
    __device__ __forceinline__ double finish(int64_t, double squares) const { return squares; }
};

size_t ck_bn_stats_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors) {
    CK_BY_TYPE(type, return sums_bytes<stats_terms<T>>(pixels, channels, multiprocessors));
    return 0;
}

template <typename T>
static cudaError_t stats_launch(const void *x, float *stats, void *workspace, int64_t pixels, int64_t channels,
                                int multiprocessors, cudaStream_t stream) {
    const stats_terms<T> terms = {{(const T *)x}};
    return sums_launch(terms, pixels, channels, stats, workspace, multiprocessors, stream);
}

cudaError_t ck_bn_stats(enum ck_type type, const void *x, float *stats, void *workspace, int64_t pixels, int64_t channels,
                        int multiprocessors, cudaStream_t stream) {
    CK_BY_TYPE(type, return stats_launch<T>(x, stats, workspace, pixels, channels, multiprocessors, stream));
    return cudaErrorInvalidValue;
}

/* ---- per channel: C threads, in double (a variance is a difference of large numbers); limited by the launch ---------- */

enum { CHANNEL_THREADS = 128 };

/* The batch is normalised by the biased variance; the running variance takes the unbiased one. Running statistics of a
 * channel whose sums are not finite stay as they are. */
static __global__ void finalize_kernel(struct ck_bn_finalize a) {
    const int64_t c = (int64_t)blockIdx.x * CHANNEL_THREADS + threadIdx.x, C = a.channels;
    if (c >= C) return;
    const double M = (double)a.count, m = (double)a.momentum, old_mean = (double)a.old_mean[c], old_var = (double)a.old_var[c];
    const double mean = (double)a.stats[c] / M;
    double       var  = (double)a.stats[C + c] / M - mean * mean;
    if (var < 0) var = 0; /* rounding; NaN stays NaN */
    const double rstd = 1 / sqrt(var + (double)a.eps), scale = (double)a.gamma[c] * rstd;
    a.saved[c]     = (float)mean;
    a.saved[C + c] = (float)rstd;
    a.coef[c]      = (float)scale;
    a.coef[C + c]  = (float)((double)a.beta[c] - mean * scale);
    const bool   finite   = isfinite(mean) && isfinite(var);
    const double unbiased = a.count > 1 ? var * M / (M - 1) : var;
    a.new_mean[c] = (float)(finite ? (1 - m) * old_mean + m * mean : old_mean);
    a.new_var[c]  = (float)(finite ? (1 - m) * old_var + m * unbiased : old_var);
}

cudaError_t ck_bn_finalize(const struct ck_bn_finalize *args, cudaStream_t stream) {
    finalize_kernel<<<ck_blocks(args->channels, CHANNEL_THREADS, INT64_MAX), CHANNEL_THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}

static __global__ void coef_kernel(const float *gamma, const float *beta, const float *mean, const float *var, float *coef,
                                   int64_t C, float eps) {
    const int64_t c = (int64_t)blockIdx.x * CHANNEL_THREADS + threadIdx.x;
    if (c >= C) return;
    const double scale = (double)gamma[c] / sqrt((double)var[c] + (double)eps);
    coef[c]            = (float)scale;
    coef[C + c]        = (float)((double)beta[c] - (double)mean[c] * scale);
}

cudaError_t ck_bn_coef(const float *gamma, const float *beta, const float *mean, const float *var, float *coef, int64_t channels,
                       float eps, cudaStream_t stream) {
    coef_kernel<<<ck_blocks(channels, CHANNEL_THREADS, INT64_MAX), CHANNEL_THREADS, 0, stream>>>(gamma, beta, mean, var, coef,
                                                                                                 channels, eps);
    return cudaGetLastError();
}
