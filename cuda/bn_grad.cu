/* bn_grad.cu: batch normalisation backward: sums of the gradient, its coefficients, and the gradient itself. g is the
 * gradient before the ReLU: dy, or dy where y > 0 when y is given.
 *
 * Bytes an element (2 in 16 bits, 4 in f32, times): bn_grad_stats 2, with y 3; bn_grad_apply 3, with y 4. */
#include "bn_point.cuh"
#include "bn_sums.cuh"

/* ---- bn_grad_stats: sums of g and g*(x - mean); rstd comes at the end ------------------------------------------------ */

template <typename T, bool MASK> struct grad_terms {
    using Type = T;
    enum { INPUTS = MASK ? 3 : 2, BATCH = 4, RESIDENT = 2 };
    const T     *in[INPUTS]; /* dy, x, y */
    const float *saved;
    int64_t      C;
    __device__ __forceinline__ float centre(int64_t c) const { return saved[c]; }
    __device__ __forceinline__ void  add(const float (&in)[INPUTS], float mean, float *a, float *b) const {
        float g = in[0];
        if constexpr (MASK) g = in[2] > 0.0f ? g : 0.0f;
        *a += g;
        *b = fmaf(g, in[1] - mean, *b);
    }
    __device__ __forceinline__ double finish(int64_t c, double product) const { return product * (double)saved[C + c]; }
};

size_t ck_bn_grad_stats_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors) {
    CK_BY_TYPE(type, return sums_bytes<grad_terms<T, true>>(pixels, channels, multiprocessors)); /* the same without y */
    return 0;
}

template <typename T>
static cudaError_t grad_stats_launch(const void *dy, const void *x, const float *saved, const void *y, float *dstats,
                                     void *workspace, int64_t pixels, int64_t channels, int multiprocessors, cudaStream_t stream) {
    if (y) {
        const grad_terms<T, true> terms = {{(const T *)dy, (const T *)x, (const T *)y}, saved, channels};
        return sums_launch(terms, pixels, channels, dstats, workspace, multiprocessors, stream);
    }
    const grad_terms<T, false> terms = {{(const T *)dy, (const T *)x}, saved, channels};
    return sums_launch(terms, pixels, channels, dstats, workspace, multiprocessors, stream);
}

cudaError_t ck_bn_grad_stats(enum ck_type type, const void *dy, const void *x, const float *saved, const void *y, float *dstats,
                             void *workspace, int64_t pixels, int64_t channels, int multiprocessors, cudaStream_t stream) {
    CK_BY_TYPE(type, return grad_stats_launch<T>(dy, x, saved, y, dstats, workspace, pixels, channels, multiprocessors, stream));
    return cudaErrorInvalidValue;
}

/* ---- bn_grad_finalize: C threads, in double; limited by the launch --------------------------------------------------- */

enum { CHANNEL_THREADS = 128 };

/* With G = mean(g), X = mean(g*xhat), s = gamma*rstd:  dx = s*g + (-s*rstd*X)*x + s*(mean*rstd*X - G). */
static __global__ void grad_finalize_kernel(struct ck_bn_grad_finalize a) {
    const int64_t c = (int64_t)blockIdx.x * CHANNEL_THREADS + threadIdx.x, C = a.channels;
    if (c >= C) return;
    const double M = (double)a.count, sum = (double)a.dstats[c], product = (double)a.dstats[C + c];
    const double mean = (double)a.saved[c], rstd = (double)a.saved[C + c], s = (double)a.gamma[c] * rstd;
    if (a.dbeta) a.dbeta[c] = (float)(a.accumulate ? (double)a.dbeta[c] + sum : sum);
    if (a.dgamma) a.dgamma[c] = (float)(a.accumulate ? (double)a.dgamma[c] + product : product);
    a.coef[c]         = (float)s;
    a.coef[C + c]     = (float)(-s * rstd * (product / M));
    a.coef[2 * C + c] = (float)(s * (mean * rstd * (product / M) - sum / M));
}

cudaError_t ck_bn_grad_finalize(const struct ck_bn_grad_finalize *args, cudaStream_t stream) {
    grad_finalize_kernel<<<ck_blocks(args->channels, CHANNEL_THREADS, INT64_MAX), CHANNEL_THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}

/* ---- bn_grad_apply --------------------------------------------------------------------------------------------------- */

template <typename T, bool MASK> struct grad_map {
    using Type = T;
    enum { INPUTS = MASK ? 3 : 2, UNROLL = 2, RESIDENT = MASK ? 3 : 4 };
    const T     *in[INPUTS]; /* dy, x, y */
    T           *out;
    const float *abc;
    template <int N> struct Coef {
        float a[N], b[N], c[N];
    };
    template <int N> __device__ __forceinline__ void coef(Coef<N> *k, int64_t c, int64_t C) const {
        point_channels<N>(abc, c, C, k->a);
        point_channels<N>(abc + C, c, C, k->b);
        point_channels<N>(abc + 2 * C, c, C, k->c);
    }
    template <int N> __device__ __forceinline__ void apply(const Coef<N> &k, const float (&in)[INPUTS][N], float (&dx)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float g = in[0][i];
            if constexpr (MASK) g = in[2][i] > 0.0f ? g : 0.0f;
            dx[i] = fmaf(k.a[i], g, fmaf(k.b[i], in[1][i], k.c[i]));
        }
    }
};

template <typename T>
static cudaError_t grad_apply_launch(const void *dy, const void *x, const float *coef, const void *y, void *dx, int64_t pixels,
                                     int64_t channels, int multiprocessors, cudaStream_t stream) {
    if (y) {
        const grad_map<T, true> map = {{(const T *)dy, (const T *)x, (const T *)y}, (T *)dx, coef};
        return point_launch(map, pixels, channels, multiprocessors, stream);
    }
    const grad_map<T, false> map = {{(const T *)dy, (const T *)x}, (T *)dx, coef};
    return point_launch(map, pixels, channels, multiprocessors, stream);
}

cudaError_t ck_bn_grad_apply(enum ck_type type, const void *dy, const void *x, const float *coef, const void *y, void *dx,
                             int64_t pixels, int64_t channels, int multiprocessors, cudaStream_t stream) {
    CK_BY_TYPE(type, return grad_apply_launch<T>(dy, x, coef, y, dx, pixels, channels, multiprocessors, stream));
    return cudaErrorInvalidValue;
}
