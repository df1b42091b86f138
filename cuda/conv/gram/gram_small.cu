/* cuda/conv/gram/gram_small.cu: statistics of a BN and everything that its backward pass needs, from a Gram matrix.
 *
 * Matrix products are summed in f32 over runs of 16 terms, everything else is in f64; all sums have a fixed order. A
 * block computes several channels at once, because each reads a whole matrix: limited by the L2 cache, 2 to 8
 * microseconds. */
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

__host__ __device__ constexpr int padded(int64_t n) {
    return (int)((n + RUN - 1) / RUN * RUN);
}

/* sum[i] += the sum over the lines of part.first ... of left[i][line] * right(line); left has padded lines. */
template <int N, class Right>
__device__ __forceinline__ void add_products(double (&sum)[N], const float *left, int stride, const part &p,
                                             const Right &right) {
    for (int l = p.first; l < p.end; l += RUN) {
        float v[RUN];
#pragma unroll
        for (int r = 0; r < RUN; r++) v[r] = l + r < p.end ? right(l + r) : 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float run = 0.0f;
#pragma unroll
            for (int r = 0; r < RUN; r += 4) {
                const float4 a = *(const float4 *)(left + i * stride + l + r);
                run            = fmaf(a.x, v[r], run);
                run            = fmaf(a.y, v[r + 1], run);
                run            = fmaf(a.z, v[r + 2], run);
                run            = fmaf(a.w, v[r + 3], run);
            }
            sum[i] += (double)run;
        }
    }
}

/* w[KB][padded C] of the block's channels; 0 outside. */
template <typename T> __device__ __forceinline__ void read_filters(float *to, const void *w, int64_t K, int C) {
    const int64_t k0 = (int64_t)blockIdx.x * KB;
    for (int i = (int)threadIdx.x; i < KB * padded(C); i += THREADS) {
        const int k = i / padded(C), c = i % padded(C);
        to[i] = k0 + k < K && c < C ? ck_float(((const T *)w)[(k0 + k) * C + c]) : 0.0f;
    }
    __syncthreads();
}

template <typename T> __global__ void __launch_bounds__(THREADS) bn_finalize(const struct ck_gram_bn a) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ double                             scratch[WARPS * KB], mean[KB], moved[KB];
    float *const                                  w = reinterpret_cast<float *>(memory);
    const int C = (int)a.C, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    double    square[KB] = {};
    read_filters<T>(w, a.w, a.K, C);
    if (warp < KB) {
        double part_mean = 0.0, part_moved = 0.0;
        for (int c = lane; c < C; c += 32) {
            const double v = (double)w[warp * padded(C) + c], average = (double)a.gram[C * C + c] / a.count;
            part_mean += v * ((double)a.gram[(C + 1) * C + c] + average);
            part_moved += v * average;
        }
        part_mean = warp_sum(part_mean), part_moved = warp_sum(part_moved);
        if (lane == 0) mean[warp] = part_mean, moved[warp] = part_moved;
    }
    const part p(C, C);
    for (int i = p.column; i < C; i += p.width) {
        double line[KB] = {};
        add_products(line, w, padded(C), p, [&](int j) { return a.gram[j * C + i]; });
#pragma unroll
        for (int k = 0; k < KB; k++) square[k] += (double)w[k * padded(C) + i] * line[k];
    }
    block_sums(square, scratch);
    const int64_t k = (int64_t)blockIdx.x * KB + threadIdx.x;
    if (threadIdx.x >= KB || k >= a.K) return;
    double mine = 0.0;
#pragma unroll
    for (int i = 0; i < KB; i++) mine = (int)threadIdx.x == i ? square[i] : mine;
    double var = mine / a.count - moved[threadIdx.x] * moved[threadIdx.x];
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
    double A, B, D, mean, moved; /* moved: mean - w t */
};

/* One output channel by a warp: its coefficients, dgamma and dbeta. */
__device__ __forceinline__ channel make_channel(const struct ck_gram_bn_grad &a, const float *w, int64_t k) {
    const int C = (int)a.C, lane = (int)threadIdx.x % 32;
    double    dot = 0.0, shift = 0.0, average = 0.0;
    for (int c = lane; c < C; c += 32) {
        const double v = (double)w[c];
        dot += v * (double)a.m[k * C + c];
        shift += v * (double)a.gram[(C + 1) * C + c];
        average += v * ((double)a.gram[C * C + c] / a.count);
    }
    dot = warp_sum(dot), shift = warp_sum(shift), average = warp_sum(average);
    const double mean = shift + average, rstd = (double)a.mean_rstd[a.K + k], sum = (double)a.dy_sums[k],
                 A = (double)a.gamma[k] * rstd, product = rstd * (dot - mean * sum);
    if (lane == 0) {
        if (a.dgamma) a.dgamma[k] = (float)((a.accumulate ? (double)a.dgamma[k] : 0.0) + product);
        if (a.dbeta) a.dbeta[k] = (float)((a.accumulate ? (double)a.dbeta[k] : 0.0) + sum);
    }
    return {A, -A * rstd * (product / a.count), -A * (sum / a.count), mean, average};
}

/* KB output channels: their coefficients, dgamma, dbeta and lines of dw. */
template <typename T>
__global__ void __launch_bounds__(THREADS) grad_outputs(const struct ck_gram_bn_grad a, channel *channels) {
    extern __shared__ __align__(16) unsigned char memory[]; /* f32 w[KB][padded C], f64 lines[THREADS][KB] */
    __shared__ channel                            own[KB];
    float *const                                  w = reinterpret_cast<float *>(memory);
    const int                                     C = (int)a.C, warp = (int)threadIdx.x / 32;
    double *const                                 lines = reinterpret_cast<double *>(w + KB * padded(C));
    const int64_t                                 k0    = (int64_t)blockIdx.x * KB;
    read_filters<T>(w, a.w, a.K, C);
    if (warp < KB && k0 + warp < a.K) {
        const channel h = make_channel(a, w + warp * padded(C), k0 + warp);
        if (threadIdx.x % 32 == 0) own[warp] = channels[k0 + warp] = h;
    }
    const part p(C, C);
    for (int first = 0; first < C; first += p.width) {
        const int c        = first + p.column;
        double    sums[KB] = {};
        if (c < C) add_products(sums, w, padded(C), p, [&](int j) { return a.gram[j * C + c]; });
        __syncthreads(); /* own is there, and the lines before are read */
#pragma unroll
        for (int k = 0; k < KB; k++) lines[(int)threadIdx.x * KB + k] = sums[k];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < KB * p.width; i += THREADS) {
            const int k = i / p.width, column = i % p.width, at = first + column;
            if (k0 + k >= a.K || at >= C) continue;
            const channel h = own[k];
            const double  s = (double)a.gram[C * C + at], t = (double)a.gram[(C + 1) * C + at];
            double        line = -h.moved * s;
            for (int g = 0; g < p.groups; g++) line += lines[(g * p.width + column) * KB + k];
            const int64_t to = (k0 + k) * C + at;
            const double  v  = h.A * (double)a.m[to] + h.D * (s + a.count * t) + h.B * line;
            a.dw[to]         = (float)((a.accumulate ? (double)a.dw[to] : 0.0) + v);
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
    extern __shared__     __align__(
            16) unsigned char memory[]; /* f32 wb[CB][padded K], f64 parts[THREADS][CB], line[CB][C] */
    __shared__ double     scratch[WARPS * CB];
    const int             C = (int)a.C, K = (int)a.K, c0 = (int)blockIdx.x * CB;
    const T *const        w        = (const T *)a.w;
    float *const          wb       = reinterpret_cast<float *>(memory);
    double *const         parts    = reinterpret_cast<double *>(wb + CB * padded(K));
    double *const         line     = parts + THREADS * CB;
    double                bias[CB] = {}, most[CB] = {};
    for (int i = (int)threadIdx.x; i < padded(K); i += THREADS) {
        channel h     = {};
        double  share = 0.0;
        if (i < K) h = channels[i], share = (double)a.dy_sums[i] / a.count;
#pragma unroll
        for (int c = 0; c < CB; c++) {
            const bool   is = i < K && c0 + c < C;
            const double v = is ? (double)ck_float(w[(int64_t)i * C + c0 + c]) : 0.0, scaled = h.A * v;
            wb[c * padded(K) + i] = is ? (float)(h.B * v) : 0.0f;
            if (!is) continue;
            const T rounded                         = ck_round<T>((float)scaled);
            ((T *)a.w_g)[(int64_t)(c0 + c) * K + i] = rounded;
            bias[c] += v * (h.D - h.B * h.mean) + (scaled - (double)ck_float(rounded)) * share;
        }
    }
    __syncthreads();
    const part p(C, K);
    for (int first = 0; first < C; first += p.width) {
        const int j        = first + p.column;
        double    sums[CB] = {};
        if (j < C) add_products(sums, wb, padded(K), p, [&](int k) { return ck_float(w[(int64_t)k * C + j]); });
        __syncthreads();
#pragma unroll
        for (int c = 0; c < CB; c++) parts[(int)threadIdx.x * CB + c] = sums[c];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < CB * p.width; i += THREADS) {
            const int c = i / p.width, column = i % p.width;
            if (first + column >= C) continue;
            double sum = 0.0;
            for (int g = 0; g < p.groups; g++) sum += parts[(g * p.width + column) * CB + c];
            line[c * C + first + column] = sum;
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
    const int64_t     bytes = (int64_t)sizeof(float) * KB * padded(a->C);
    const cudaError_t error = ck_allow_shared(bn_finalize<T>, bytes);
    if (error != cudaSuccess) return error;
    bn_finalize<T><<<blocks_of(a->K, KB), THREADS, (size_t)bytes, stream>>>(*a);
    return cudaGetLastError();
}

template <typename T> cudaError_t start_grad(const struct ck_gram_bn_grad *a, channel *channels, cudaStream_t stream) {
    const int64_t outputs = (int64_t)sizeof(float) * KB * padded(a->C) + (int64_t)sizeof(double) * THREADS * KB;
    const int64_t inputs =
        (int64_t)sizeof(float) * CB * padded(a->K) + (int64_t)sizeof(double) * (THREADS * CB + CB * a->C);
    cudaError_t error = ck_allow_shared(grad_outputs<T>, outputs);
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
