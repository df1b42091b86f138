/* cuda/conv/gram/gram_small.cu: statistics of a BN and everything that its backward pass needs, from a Gram matrix.
 * Sums are in f64; a block's sums have a fixed order. Limited by latency: a few microseconds. */
#include "cuda/common/common.cuh"
#include "cuda/conv/gram/gram.h"

namespace {

constexpr int THREADS = 128;

/* Of one output channel. Threads process input channels c, c + THREADS, ... */
template <typename T> __device__ __forceinline__ double mean_of(const T *w, const float *gram, int64_t C, double P) {
    double part = 0.0;
    for (int64_t c = threadIdx.x; c < C; c += THREADS)
        part += (double)ck_float(w[c]) * ((double)gram[(C + 1) * C + c] + (double)gram[C * C + c] / P);
    return ck_block_sum<THREADS>(part);
}

/* w^T (G/P - s/P (s/P)^T) w; G is symmetric. */
template <typename T>
__device__ __forceinline__ double variance_of(const T *w, const float *gram, int64_t C, double P) {
    double part = 0.0;
    for (int64_t i = threadIdx.x; i < C; i += THREADS) {
        const double average = (double)gram[C * C + i] / P;
        double       line    = 0.0;
        for (int64_t j = 0; j < C; j++)
            line += ((double)gram[j * C + i] / P - average * ((double)gram[C * C + j] / P)) * (double)ck_float(w[j]);
        part += (double)ck_float(w[i]) * line;
    }
    return ck_block_sum<THREADS>(part);
}

template <typename T> __global__ void __launch_bounds__(THREADS) bn_finalize(const struct ck_gram_bn a) {
    const int64_t k    = blockIdx.x;
    const T      *w    = (const T *)a.w + k * a.C;
    const double  mean = mean_of(w, a.gram, a.C, a.count);
    double        var  = variance_of(w, a.gram, a.C, a.count);
    if (threadIdx.x) return;
    if (var < 0.0) var = 0.0; /* NaN stays NaN */
    const double rstd = 1.0 / sqrt(var + (double)a.eps), scale = (double)a.gamma[k] * rstd;
    a.mean_rstd[k]        = (float)mean;
    a.mean_rstd[a.K + k]  = (float)rstd;
    a.scale_bias[k]       = (float)scale;
    a.scale_bias[a.K + k] = (float)((double)a.beta[k] - mean * scale);
    const double m = (double)a.momentum, unbiased = a.count > 1.0 ? var * a.count / (a.count - 1.0) : var;
    const bool   good = isfinite(mean) && isfinite(var);
    a.mean[k]         = good ? (float)((1.0 - m) * (double)a.old_mean[k] + m * mean) : a.old_mean[k];
    a.var[k]          = good ? (float)((1.0 - m) * (double)a.old_var[k] + m * unbiased) : a.old_var[k];
}

/* dy = A*g + B*(y - mean) + D */
struct channel {
    double A, B, D, mean;
};

/* One output channel: its coefficients, dgamma, dbeta and its line of dw. */
template <typename T>
__global__ void __launch_bounds__(THREADS) grad_outputs(const struct ck_gram_bn_grad a, channel *channels) {
    const int64_t k = blockIdx.x, C = a.C;
    const T      *w    = (const T *)a.w + k * C;
    const double  mean = mean_of(w, a.gram, C, a.count);
    double        part = 0.0, shift = 0.0;
    for (int64_t c = threadIdx.x; c < C; c += THREADS) {
        part += (double)ck_float(w[c]) * (double)a.m[k * C + c];
        shift += (double)ck_float(w[c]) * (double)a.gram[(C + 1) * C + c];
    }
    const double dot = ck_block_sum<THREADS>(part), moved = ck_block_sum<THREADS>(shift);
    const double rstd = (double)a.mean_rstd[a.K + k], sum = (double)a.dy_sums[k], A = (double)a.gamma[k] * rstd,
                 product = rstd * (dot - mean * sum), B = -A * rstd * (product / a.count), D = -A * (sum / a.count),
                 d = moved - mean;
    if (threadIdx.x == 0) {
        if (a.dgamma) a.dgamma[k] = (float)((a.accumulate ? (double)a.dgamma[k] : 0.0) + product);
        if (a.dbeta) a.dbeta[k] = (float)((a.accumulate ? (double)a.dbeta[k] : 0.0) + sum);
        channels[k] = {A, B, D, mean};
    }
    for (int64_t c = threadIdx.x; c < C; c += THREADS) {
        const double s = (double)a.gram[C * C + c], t = (double)a.gram[(C + 1) * C + c];
        double       line = d * s;
        for (int64_t j = 0; j < C; j++) line += (double)ck_float(w[j]) * (double)a.gram[j * C + c];
        const double v  = A * (double)a.m[k * C + c] + D * (s + a.count * t) + B * line;
        a.dw[k * C + c] = (float)((a.accumulate ? (double)a.dw[k * C + c] : 0.0) + v);
    }
}

/* The power of two for which the largest element is in [128, 256) after the division. */
__device__ __forceinline__ double factor_of(double most) {
    int exponent;
    if (!(most > 0.0) || isinf(most)) return 1.0;
    (void)frexp(most, &exponent);
    return ldexp(1.0, exponent - 8 < -120 ? -120 : exponent - 8);
}

constexpr int C_MAX = 1024; /* C */

/* One input channel: its lines of w_g and w_x, its factor and bias. */
template <typename T>
__global__ void __launch_bounds__(THREADS) grad_inputs(const struct ck_gram_bn_grad a, const channel *channels) {
    __shared__ double line[C_MAX], largest[THREADS];
    const int64_t     c = blockIdx.x, C = a.C, K = a.K;
    const T          *w   = (const T *)a.w;
    T                *w_g = (T *)a.w_g + c * K, *w_x = (T *)a.w_x + c * C;
    double            bias = 0.0, most = 0.0;
    for (int64_t k = threadIdx.x; k < K; k += THREADS) {
        const channel h = channels[k];
        const double  v = (double)ck_float(w[k * C + c]), scaled = h.A * v;
        w_g[k] = ck_round<T>((float)scaled);
        bias += v * (h.D - h.B * h.mean) + (scaled - (double)ck_float(w_g[k])) * ((double)a.dy_sums[k] / a.count);
    }
    for (int64_t j = threadIdx.x; j < C; j += THREADS) {
        double r = 0.0;
        for (int64_t k = 0; k < K; k++)
            r += (double)ck_float(w[k * C + c]) * channels[k].B * (double)ck_float(w[k * C + j]);
        line[j] = r;
        if (fabs(r) > most || isnan(r)) most = fabs(r);
    }
    largest[threadIdx.x] = most;
    __syncthreads();
    most = 0.0;
    for (int i = 0; i < THREADS; i++)
        if (largest[i] > most || isnan(largest[i])) most = largest[i];
    const double factor = factor_of(most);
    for (int64_t j = threadIdx.x; j < C; j += THREADS) {
        w_x[j] = ck_round<T>((float)(line[j] / factor));
        bias += (line[j] - (double)ck_float(w_x[j]) * factor) *
                ((double)a.gram[(C + 1) * C + j] + (double)a.gram[C * C + j] / a.count);
    }
    bias = ck_block_sum<THREADS>(bias);
    if (threadIdx.x) return;
    a.factor_bias[c]     = (float)factor;
    a.factor_bias[C + c] = (float)bias;
}

template <typename T> cudaError_t start_grad(const struct ck_gram_bn_grad *a, channel *channels, cudaStream_t stream) {
    grad_outputs<T><<<(unsigned)a->K, THREADS, 0, stream>>>(*a, channels);
    grad_inputs<T><<<(unsigned)a->C, THREADS, 0, stream>>>(*a, channels);
    return cudaGetLastError();
}

} // namespace

cudaError_t ck_gram_bn_finalize(const struct ck_gram_bn *a, cudaStream_t stream) {
    if (a->type == CK_F16)
        bn_finalize<__half><<<(unsigned)a->K, THREADS, 0, stream>>>(*a);
    else
        bn_finalize<__nv_bfloat16><<<(unsigned)a->K, THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

size_t ck_gram_bn_grad_workspace(int64_t K) {
    return sizeof(struct channel) * (size_t)K;
}

cudaError_t ck_gram_bn_grad(const struct ck_gram_bn_grad *a, void *workspace, cudaStream_t stream) {
    channel *channels = static_cast<struct channel *>(workspace);
    return a->type == CK_F16 ? start_grad<__half>(a, channels, stream) : start_grad<__nv_bfloat16>(a, channels, stream);
}
