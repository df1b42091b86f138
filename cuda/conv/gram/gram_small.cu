/* cuda/conv/gram/gram_small.cu: statistics of a BN and everything that its backward pass needs, from a Gram matrix.
 *
 * All sums are in f64 and have a fixed order. A block computes several channels at once, because each reads a whole
 * matrix: limited by f64 arithmetic and the L2 cache, 2 to 10 microseconds. */
#include "cuda/common/common.cuh"
#include "cuda/conv/gram/gram.h"

namespace {

constexpr int THREADS = 512, WARPS = THREADS / 32, RUN = 16, KB = 8, CB = 4; /* output, input channels of a block */

/* Sums over the lanes of a warp, the result in all lanes. */
__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
    for (int i = 16; i; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/* v[i] = sum over the block; scratch: [WARPS][N]. */
template <int N> __device__ __forceinline__ void block_sums(double (&v)[N], double *scratch) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = warp_sum(v[i]);
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32 * N + i] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = 0.0;
        for (int w = 0; w < WARPS; w++) v[i] += scratch[w * N + i];
    }
}

/* The work of a thread on a matrix with `lines` lines and `columns` columns: a column of each `width`, and a part of
 * the lines, a multiple of RUN. */
struct part {
    int width, groups, group, column, first, end;

    __device__ part(int columns, int lines) {
        width           = columns < THREADS ? columns : THREADS;
        groups          = THREADS / width;
        group           = (int)threadIdx.x / width;
        column          = (int)threadIdx.x % width;
        const int piece = ((lines + groups - 1) / groups + RUN - 1) / RUN * RUN;
        first           = group * piece;
        end             = group >= groups ? first : first + piece < lines ? first + piece : lines;
    }
};

/* sum[i] += the sum over the lines of the part of left[line][i] * value(load(line), line). The loads of a run start
 * before the products of the run before. */
template <int N, class Load, class Value>
__device__ __forceinline__ void add_products(double (&sum)[N], const double *left, const part &p, const Load &load,
                                             const Value &value) {
    float v[RUN], next[RUN];
#pragma unroll
    for (int r = 0; r < RUN; r++) next[r] = p.first + r < p.end ? load(p.first + r) : 0.0f;
    for (int l = p.first; l < p.end; l += RUN) {
#pragma unroll
        for (int r = 0; r < RUN; r++) {
            v[r]    = next[r];
            next[r] = l + RUN + r < p.end ? load(l + RUN + r) : 0.0f;
        }
#pragma unroll
        for (int r = 0; r < RUN; r++) {
            if (l + r >= p.end) break;
            const double factor = value(v[r], l + r);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] = fma(left[(l + r) * N + i], factor, sum[i]);
        }
    }
}

/* Sums over the groups: of entry i of column `column`, from parts[THREADS][N]. */
template <int N>
__device__ __forceinline__ double sum_of_groups(const double *parts, const part &p, int column, int i) {
    double sum = 0.0;
    for (int g = 0; g < p.groups; g++) sum += parts[(g * p.width + column) * N + i];
    return sum;
}

/* w[C][KB] of the block's channels; 0 outside. */
template <typename T> __device__ __forceinline__ void read_filters(double *to, const void *w, int64_t K, int C) {
    const int64_t k0 = (int64_t)blockIdx.x * KB;
    for (int c = (int)threadIdx.x; c < C; c += THREADS)
#pragma unroll
        for (int k = 0; k < KB; k++)
            to[c * KB + k] = k0 + k < K ? (double)ck_float(((const T *)w)[(k0 + k) * C + c]) : 0.0;
    __syncthreads();
}

/* Means of y of the block's channels, and of its part w t; a warp for each. each: 1 / pixels. */
__device__ __forceinline__ void find_means(const double *w, const float *gram, int C, double each, double *mean,
                                           double *shift) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (warp >= KB) return;
    double a = 0.0, b = 0.0;
    for (int c = lane; c < C; c += 32) {
        const double v = w[c * KB + warp], t = (double)gram[(C + 1) * C + c];
        a += v * (t + (double)gram[C * C + c] * each);
        b += v * t;
    }
    a = warp_sum(a), b = warp_sum(b);
    if (lane == 0) mean[warp] = a, shift[warp] = b;
}

template <typename T> __global__ void __launch_bounds__(THREADS) bn_finalize(const struct ck_gram_bn a) {
    extern __shared__ __align__(16) unsigned char memory[]; /* f64 w[C][KB], parts[THREADS][KB], averages[C] */
    __shared__ double                             scratch[WARPS * KB], mean[KB], shift[KB];
    double *const                                 w = reinterpret_cast<double *>(memory);
    const int                                     C = (int)a.C;
    double *const parts = w + KB * C, *const averages = parts + THREADS * KB;
    const double each       = 1.0 / a.count;
    double       square[KB] = {};
    for (int c = (int)threadIdx.x; c < C; c += THREADS) averages[c] = (double)a.gram[C * C + c] * each;
    read_filters<T>(w, a.w, a.K, C);
    find_means(w, a.gram, C, each, mean, shift);
    const part p(C, C);
    for (int first = 0; first < C; first += p.width) {
        const int i        = first + p.column;
        double    line[KB] = {};
        if (i < C)
            add_products(
                line, w, p, [&](int j) { return a.gram[j * C + i]; },
                [&](float g, int j) { return (double)g * each - averages[i] * averages[j]; });
        __syncthreads();
#pragma unroll
        for (int k = 0; k < KB; k++) parts[(int)threadIdx.x * KB + k] = line[k];
        __syncthreads();
        if (p.group || i >= C) continue;
#pragma unroll
        for (int k = 0; k < KB; k++) square[k] += w[i * KB + k] * sum_of_groups<KB>(parts, p, p.column, k);
    }
    block_sums(square, scratch);
    const int64_t k = (int64_t)blockIdx.x * KB + threadIdx.x;
    if (threadIdx.x >= KB || k >= a.K) return;
    double var = 0.0;
#pragma unroll
    for (int i = 0; i < KB; i++) var = (int)threadIdx.x == i ? square[i] : var;
    if (var < 0.0) var = 0.0; /* NaN stays NaN */
    const double average = mean[threadIdx.x], rstd = 1.0 / sqrt(var + (double)a.eps), scale = (double)a.gamma[k] * rstd;
    a.mean_rstd[k]        = (float)average;
    a.mean_rstd[a.K + k]  = (float)rstd;
    a.scale_bias[k]       = (float)scale;
    a.scale_bias[a.K + k] = (float)((double)a.beta[k] - average * scale);
    const double m = (double)a.momentum, unbiased = a.count > 1.0 ? var * a.count / (a.count - 1.0) : var;
    const bool   good = isfinite(average) && isfinite(var);
    a.mean[k]         = good ? (float)((1.0 - m) * (double)a.old_mean[k] + m * average) : a.old_mean[k];
    a.var[k]          = good ? (float)((1.0 - m) * (double)a.old_var[k] + m * unbiased) : a.old_var[k];
}

/* dy = A*g + B*(y - mean) + D */
struct channel {
    double A, B, D, mean, shift; /* shift: w t */
};

/* One output channel by a warp: its coefficients, dgamma and dbeta. */
__device__ __forceinline__ channel make_channel(const struct ck_gram_bn_grad &a, const double *w, int64_t k,
                                                double mean, double shift) {
    const int C = (int)a.C, lane = (int)threadIdx.x % 32;
    double    dot = 0.0;
    for (int c = lane; c < C; c += 32) dot += w[c * KB] * (double)a.m[k * C + c];
    dot               = warp_sum(dot);
    const double rstd = (double)a.mean_rstd[a.K + k], sum = (double)a.dy_sums[k], A = (double)a.gamma[k] * rstd,
                 product = rstd * (dot - mean * sum);
    if (lane == 0) {
        if (a.dgamma) a.dgamma[k] = (float)((a.accumulate ? (double)a.dgamma[k] : 0.0) + product);
        if (a.dbeta) a.dbeta[k] = (float)((a.accumulate ? (double)a.dbeta[k] : 0.0) + sum);
    }
    return {A, -A * rstd * (product / a.count), -A * (sum / a.count), mean, shift};
}

/* KB output channels: their coefficients, dgamma, dbeta and lines of dw. */
template <typename T>
__global__ void __launch_bounds__(THREADS) grad_outputs(const struct ck_gram_bn_grad a, channel *channels) {
    extern __shared__ __align__(16) unsigned char memory[]; /* f64 w[C][KB], parts[THREADS][KB] */
    __shared__ channel                            own[KB];
    __shared__ double                             mean[KB], shift[KB];
    double *const                                 w = reinterpret_cast<double *>(memory);
    const int                                     C = (int)a.C, warp = (int)threadIdx.x / 32;
    double *const                                 parts = w + KB * C;
    const int64_t                                 k0    = (int64_t)blockIdx.x * KB;
    read_filters<T>(w, a.w, a.K, C);
    find_means(w, a.gram, C, 1.0 / a.count, mean, shift);
    __syncwarp();
    if (warp < KB && k0 + warp < a.K) {
        const channel h = make_channel(a, w + warp, k0 + warp, mean[warp], shift[warp]);
        if (threadIdx.x % 32 == 0) own[warp] = channels[k0 + warp] = h;
    }
    const part p(C, C);
    for (int first = 0; first < C; first += p.width) {
        const int c        = first + p.column;
        double    sums[KB] = {};
        if (c < C)
            add_products(
                sums, w, p, [&](int j) { return a.gram[j * C + c]; }, [](float g, int) { return (double)g; });
        __syncthreads(); /* own is there, and the lines before are read */
#pragma unroll
        for (int k = 0; k < KB; k++) parts[(int)threadIdx.x * KB + k] = sums[k];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < KB * p.width; i += THREADS) {
            const int k = i / p.width, column = i % p.width, at = first + column;
            if (k0 + k >= a.K || at >= C) continue;
            const channel h = own[k];
            const double  s = (double)a.gram[C * C + at], t = (double)a.gram[(C + 1) * C + at];
            const double  line = (h.shift - h.mean) * s + sum_of_groups<KB>(parts, p, column, k);
            const int64_t to   = (k0 + k) * C + at;
            const double  v    = h.A * (double)a.m[to] + h.D * (s + a.count * t) + h.B * line;
            a.dw[to]           = (float)((a.accumulate ? (double)a.dw[to] : 0.0) + v);
        }
    }
}

/* The power of two for which the largest element is in [128, 256) after the division. */
__device__ __forceinline__ double factor_of(double most) {
    int exponent;
    if (!(most > 0.0) || isinf(most)) return 1.0;
    (void)frexp(most, &exponent);
    return ldexp(1.0, exponent - 8 < -120 ? -120 : exponent - 8);
}

/* CB input channels: their lines of w_g and w_x, their factors and biases. */
template <typename T>
__global__ void __launch_bounds__(THREADS) grad_inputs(const struct ck_gram_bn_grad a, const channel *channels) {
    extern __shared__ __align__(16) unsigned char memory[]; /* f64 wb[K][CB], parts[THREADS][CB], line[CB][C] */
    __shared__ double                             scratch[WARPS * CB];
    const int                                     C = (int)a.C, K = (int)a.K, c0 = (int)blockIdx.x * CB;
    const T *const                                w        = (const T *)a.w;
    double *const                                 wb       = reinterpret_cast<double *>(memory);
    double *const                                 parts    = wb + CB * K;
    double *const                                 line     = parts + THREADS * CB;
    double                                        bias[CB] = {}, most[CB] = {};
    for (int i = (int)threadIdx.x; i < K; i += THREADS) {
        const channel h       = channels[i];
        const double  average = (double)a.dy_sums[i] / a.count;
#pragma unroll
        for (int c = 0; c < CB; c++) {
            wb[i * CB + c] = 0.0;
            if (c0 + c >= C) continue;
            const double v = (double)ck_float(w[(int64_t)i * C + c0 + c]), scaled = h.A * v;
            const T      rounded                    = ck_round<T>((float)scaled);
            wb[i * CB + c]                          = v * h.B;
            ((T *)a.w_g)[(int64_t)(c0 + c) * K + i] = rounded;
            bias[c] += v * (h.D - h.B * h.mean) + (scaled - (double)ck_float(rounded)) * average;
        }
    }
    __syncthreads();
    const part p(C, K);
    for (int first = 0; first < C; first += p.width) {
        const int j        = first + p.column;
        double    sums[CB] = {};
        if (j < C)
            add_products(
                sums, wb, p, [&](int k) { return ck_float(w[(int64_t)k * C + j]); },
                [](float v, int) { return (double)v; });
        __syncthreads();
#pragma unroll
        for (int c = 0; c < CB; c++) parts[(int)threadIdx.x * CB + c] = sums[c];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < CB * p.width; i += THREADS) {
            const int c = i / p.width, column = i % p.width;
            if (first + column >= C) continue;
            line[c * C + first + column] = sum_of_groups<CB>(parts, p, column, c);
        }
    }
    __syncthreads();
    /* NaN if an element is NaN: then the factor is 1 */
#pragma unroll
    for (int c = 0; c < CB; c++) {
        for (int j = (int)threadIdx.x % 32; j < C; j += 32) {
            const double size = fabs(line[c * C + j]);
            if (size > most[c] || isnan(size)) most[c] = size;
        }
#pragma unroll
        for (int i = 16; i; i /= 2) {
            const double other = __shfl_xor_sync(0xffffffffu, most[c], i);
            if (other > most[c] || isnan(other)) most[c] = other;
        }
    }
#pragma unroll
    for (int c = 0; c < CB; c++) {
        const double factor = factor_of(most[c]);
        if (c0 + c < C)
            for (int j = (int)threadIdx.x; j < C; j += THREADS) {
                const double exact                      = line[c * C + j];
                const T      rounded                    = ck_round<T>((float)(exact / factor));
                ((T *)a.w_x)[(int64_t)(c0 + c) * C + j] = rounded;
                bias[c] += (exact - (double)ck_float(rounded) * factor) *
                           ((double)a.gram[(C + 1) * C + j] + (double)a.gram[C * C + j] / a.count);
            }
        if (threadIdx.x == 0 && c0 + c < C) a.factor_bias[c0 + c] = (float)factor;
    }
    block_sums(bias, scratch);
    if (threadIdx.x) return;
#pragma unroll
    for (int c = 0; c < CB; c++)
        if (c0 + c < C) a.factor_bias[C + c0 + c] = (float)bias[c];
}

unsigned blocks_of(int64_t channels, int per_block) {
    return (unsigned)((channels + per_block - 1) / per_block);
}

template <typename T> cudaError_t start_finalize(const struct ck_gram_bn *a, cudaStream_t stream) {
    const int64_t     bytes = (int64_t)sizeof(double) * (KB * a->C + THREADS * KB + a->C);
    const cudaError_t error = ck_allow_shared(bn_finalize<T>, bytes);
    if (error != cudaSuccess) return error;
    bn_finalize<T><<<blocks_of(a->K, KB), THREADS, (size_t)bytes, stream>>>(*a);
    return cudaGetLastError();
}

template <typename T> cudaError_t start_grad(const struct ck_gram_bn_grad *a, channel *channels, cudaStream_t stream) {
    const int64_t outputs = (int64_t)sizeof(double) * (KB * a->C + THREADS * KB),
                  inputs  = (int64_t)sizeof(double) * (CB * a->K + THREADS * CB + CB * a->C);
    cudaError_t error     = ck_allow_shared(grad_outputs<T>, outputs);
    if (error == cudaSuccess) error = ck_allow_shared(grad_inputs<T>, inputs);
    if (error != cudaSuccess) return error;
    grad_outputs<T><<<blocks_of(a->K, KB), THREADS, (size_t)outputs, stream>>>(*a, channels);
    grad_inputs<T><<<blocks_of(a->C, CB), THREADS, (size_t)inputs, stream>>>(*a, channels);
    return cudaGetLastError();
}

} // namespace

cudaError_t ck_gram_bn_finalize(const struct ck_gram_bn *a, cudaStream_t stream) {
    return a->type == CK_F16 ? start_finalize<__half>(a, stream) : start_finalize<__nv_bfloat16>(a, stream);
}

size_t ck_gram_bn_grad_workspace(int64_t K) {
    return sizeof(struct channel) * (size_t)K;
}

cudaError_t ck_gram_bn_grad(const struct ck_gram_bn_grad *a, void *workspace, cudaStream_t stream) {
    channel *channels = static_cast<struct channel *>(workspace);
    return a->type == CK_F16 ? start_grad<__half>(a, channels, stream) : start_grad<__nv_bfloat16>(a, channels, stream);
}
