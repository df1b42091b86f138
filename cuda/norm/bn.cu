/* cuda/norm/bn.cu: batch normalisation forward: sums of a batch, and scale and bias from sums or from running
 * statistics. cuda/norm/bn_apply.cu applies them. */
#include "cuda/norm/bn_finish.cuh"
#include "cuda/norm/bn_sums.cuh"

/* ---- bn_sums: sizeof(T) bytes an element; limiter: memory ---- */

template <typename T, int N> struct bn_sums_terms {
    using Type = T;
    enum { LANES = N, INPUTS = 1, SUMS = 2, BATCH = N == 8 ? 4 : 8, RESIDENT = 4 };
    static constexpr bool READS_BITS = false, WRITES = false;
    const T              *in[1];
    const uint8_t        *bits;
    T                    *out;
    float                *sums;
    struct Params {};
    __device__ __forceinline__ void load_params(Params *, int64_t, int64_t) const {}
    __device__ __forceinline__ void add(const Params &, const float (&x)[1][N], unsigned, float (&acc)[2][N],
                                        float (&)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            acc[0][i] += x[0][i];
            acc[1][i] = fmaf(x[0][i], x[0][i], acc[1][i]);
        }
    }
    __device__ __forceinline__ void put(int which, int64_t c, int64_t C, double sum) const {
        sums[which * C + c] = (float)sum;
    }
};

template <typename T> static size_t bn_sums_bytes(int64_t pixels, int64_t C, int multiprocessors) {
    if (C % ck_vector_elems<T>() == 0)
        return sums_bytes<bn_sums_terms<T, ck_vector_elems<T>()>>(pixels, C, multiprocessors);
    return sums_bytes<bn_sums_terms<T, 1>>(pixels, C, multiprocessors);
}
size_t ck_bn_sums_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors) {
    CK_BY_TYPE(type, return bn_sums_bytes<T>(pixels, channels, multiprocessors));
}

template <typename T, int N>
static cudaError_t bn_sums_run(const void *x, float *sums, void *workspace, int64_t pixels, int64_t channels,
                               int multiprocessors, cudaStream_t stream) {
    const bn_sums_terms<T, N> terms = {{(const T *)x}, NULL, NULL, sums};
    return sums_launch(terms, pixels, channels, workspace, multiprocessors, stream);
}

cudaError_t ck_bn_sums(enum ck_type type, const void *x, float *sums, void *workspace, int64_t pixels, int64_t channels,
                       int multiprocessors, cudaStream_t stream) {
    CK_BY_TYPE(type, return channels % ck_vector_elems<T>() == 0
                                ? bn_sums_run<T, ck_vector_elems<T>()>(x, sums, workspace, pixels, channels,
                                                                       multiprocessors, stream)
                                : bn_sums_run<T, 1>(x, sums, workspace, pixels, channels, multiprocessors, stream));
}

/* ---- per channel: C threads, in double; limiter: the launch ---- */

enum { CHANNEL_THREADS = 64 }; /* few threads, so that the blocks' loads spread over more multiprocessors */

static __global__ void __launch_bounds__(CHANNEL_THREADS)
    finalize_kernel(const struct ck_bn_finalize a, const struct ck_bn_factors k) {
    const int64_t c = (int64_t)blockIdx.x * CHANNEL_THREADS + threadIdx.x, C = a.channels;
    ck_begin_after_last();
    if (c >= C) return;
    const float          sum = a.sums[c], squares = a.sums[C + c];
    struct ck_bn_channel channel;
    channel.load(a, c);
    channel.finish(a, k, c, C, sum, squares);
}

cudaError_t ck_bn_finalize(const struct ck_bn_finalize *args, cudaStream_t stream) {
    return ck_launch(finalize_kernel, ck_blocks(args->channels, CHANNEL_THREADS, INT64_MAX), CHANNEL_THREADS, 0, stream,
                     *args, ck_bn_factors_of(args));
}

static __global__ void __launch_bounds__(CHANNEL_THREADS) scale_bias_kernel(const struct ck_bn_scale_bias a) {
    const int64_t c = (int64_t)blockIdx.x * CHANNEL_THREADS + threadIdx.x, C = a.channels;
    if (c >= C) return;
    const double scale  = (double)a.gamma[c] / sqrt((double)a.var[c] + (double)a.eps);
    a.scale_bias[c]     = (float)scale;
    a.scale_bias[C + c] = (float)((double)a.beta[c] - (double)a.mean[c] * scale);
}

cudaError_t ck_bn_scale_bias(const struct ck_bn_scale_bias *args, cudaStream_t stream) {
    scale_bias_kernel<<<ck_blocks(args->channels, CHANNEL_THREADS, INT64_MAX), CHANNEL_THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}
