/* cuda/norm/bn_grad.cu: batch normalisation backward: sums of the gradient, its coefficients, and the gradient itself.
 * g is the gradient before the ReLU: dy, or dy where the mask passes it (enum ck_mask).
 *
 * Bytes an element (times 2 in 16 bits, times 4 in f32): bn_grad_sums 2, bn_grad_apply 3; y adds 1 to each, the bit
 * mask 1/8 byte. A mask that is recomputed from x adds nothing. */
#include "cuda/norm/bn_finish.cuh"
#include "cuda/norm/bn_point.cuh"
#include "cuda/norm/bn_sums.cuh"

/* g of a vector. `in`: dy, x, and y when the mask is y; scale and bias when the mask is recomputed from x. */
template <ck_mask MASK, int INPUTS, int N>
static __device__ __forceinline__ void masked(const float (&in)[INPUTS][N], unsigned bits, const float *scale,
                                              const float *bias, float (&g)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        bool alive = true;
        if constexpr (MASK == CK_MASK_Y) alive = in[2][i] > 0.0f;
        if constexpr (MASK == CK_MASK_BITS) alive = bits >> i & 1u;
        if constexpr (MASK == CK_MASK_ACT) alive = fmaf(in[1][i], scale[i], bias[i]) > 0.0f;
        g[i] = alive ? in[0][i] : 0.0f;
    }
}

/* ---- bn_grad_sums: sums of g and g*(x - mean); the end multiplies by rstd ---- */

template <typename T, int N, ck_mask MASK> struct grad_terms {
    using Type = T;
    enum {
        LANES    = N,
        INPUTS   = MASK == CK_MASK_Y ? 3 : 2,
        SUMS     = 2,
        RESIDENT = 3,
        BATCH    = N == 8 && MASK != CK_MASK_NONE ? 2 : 4
    };
    static constexpr bool READS_BITS = MASK == CK_MASK_BITS, WRITES = false;
    const T              *in[INPUTS]; /* dy, x, y */
    const uint8_t        *bits;
    T                    *out;
    const float          *mean_rstd, *act;
    float                *grad_sums;
    struct Params {
        float mean[N], scale[N], bias[N];
    };
    __device__ __forceinline__ void load_params(Params *k, int64_t c, int64_t C) const {
        point_channels<N>(mean_rstd, c, C, k->mean);
        if constexpr (MASK == CK_MASK_ACT) {
            point_channels<N>(act, c, C, k->scale);
            point_channels<N>(act + C, c, C, k->bias);
        }
    }
    __device__ __forceinline__ void add(const Params &k, const float (&in)[INPUTS][N], unsigned set, float (&acc)[2][N],
                                        float (&)[N]) const {
        float g[N];
        masked<MASK>(in, set, k.scale, k.bias, g);
#pragma unroll
        for (int i = 0; i < N; i++) {
            acc[0][i] += g[i];
            acc[1][i] = fmaf(g[i], in[1][i] - k.mean[i], acc[1][i]);
        }
    }
    __device__ __forceinline__ void put(int which, int64_t c, int64_t C, double sum) const {
        grad_sums[which * C + c] = (float)(which ? sum * (double)mean_rstd[C + c] : sum);
    }
};

/* Calls job.run<T, elements of a vector, mask>(). Bit masks have whole vectors only. */
template <typename T, int N, class Job> static auto grad_sums_by_mask(const struct ck_bn_grad *a, const Job &job) {
    switch (a->by) {
    case CK_MASK_Y: return job.template run<T, N, CK_MASK_Y>();
    case CK_MASK_ACT: return job.template run<T, N, CK_MASK_ACT>();
    case CK_MASK_BITS:
        if constexpr (N > 1) return job.template run<T, N, CK_MASK_BITS>();
        break;
    case CK_MASK_NONE: break;
    }
    return job.template run<T, N, CK_MASK_NONE>();
}
template <class Job> static auto grad_sums_by_type(const struct ck_bn_grad *a, const Job &job) {
    CK_BY_TYPE(a->type, return a->channels % ck_vector_elems<T>() == 0
                                   ? grad_sums_by_mask<T, ck_vector_elems<T>()>(a, job)
                                   : grad_sums_by_mask<T, 1>(a, job));
}

struct grad_sums_sizes {
    const struct ck_bn_grad                          *a;
    int                                               multiprocessors;
    template <typename T, int N, ck_mask MASK> size_t run() const {
        return sums_bytes<grad_terms<T, N, MASK>>(a->pixels, a->channels, multiprocessors);
    }
};
struct grad_sums_job {
    const struct ck_bn_grad                               *a;
    void                                                  *workspace;
    int                                                    multiprocessors;
    cudaStream_t                                           stream;
    template <typename T, int N, ck_mask MASK> cudaError_t run() const {
        grad_terms<T, N, MASK> terms = {
            {(const T *)a->dy, (const T *)a->x}, NULL, NULL, a->mean_rstd, NULL, a->grad_sums};
        if constexpr (MASK == CK_MASK_Y) terms.in[2] = (const T *)a->mask;
        if constexpr (MASK == CK_MASK_BITS) terms.bits = (const uint8_t *)a->mask;
        if constexpr (MASK == CK_MASK_ACT) terms.act = (const float *)a->mask;
        return sums_launch(terms, a->pixels, a->channels, workspace, multiprocessors, stream);
    }
};

size_t ck_bn_grad_sums_workspace(const struct ck_bn_grad *a, int multiprocessors) {
    return grad_sums_by_type(a, grad_sums_sizes{a, multiprocessors});
}

cudaError_t ck_bn_grad_sums(const struct ck_bn_grad *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    if (a->by == CK_MASK_BITS && a->channels % 8 != 0) return cudaErrorInvalidValue;
    return grad_sums_by_type(a, grad_sums_job{a, workspace, multiprocessors, stream});
}

/* ---- bn_grad_finalize: C threads, in double; limiter: the launch ---- */

enum { CHANNEL_THREADS = 64 };

static __global__ void __launch_bounds__(CHANNEL_THREADS)
    grad_finalize_kernel(const struct ck_bn_grad_finalize a, double inverse) {
    const int64_t c = (int64_t)blockIdx.x * CHANNEL_THREADS + threadIdx.x, C = a.channels;
    ck_begin_after_last();
    if (c >= C) return;
    const float               sum = a.grad_sums[c], product = a.grad_sums[C + c];
    struct ck_bn_grad_channel channel;
    channel.load(a, c, C);
    channel.finish(a, inverse, c, C, sum, product);
}

cudaError_t ck_bn_grad_finalize(const struct ck_bn_grad_finalize *args, cudaStream_t stream) {
    return ck_launch(grad_finalize_kernel, ck_blocks(args->channels, CHANNEL_THREADS, INT64_MAX), CHANNEL_THREADS, 0,
                     stream, *args, 1 / (double)args->count);
}

/* ---- bn_grad_apply ---- */

template <typename T, ck_mask MASK> struct grad_map {
    using Type = T;
    enum {
        INPUTS   = MASK == CK_MASK_Y ? 3 : 2,
        UNROLL   = 2,
        RESIDENT = MASK == CK_MASK_NONE || MASK == CK_MASK_BITS ? 4 : 3
    };
    static constexpr bool READS_BITS = MASK == CK_MASK_BITS, WRITES_BITS = false;
    const T              *in[INPUTS]; /* dy, x, y */
    T                    *out;
    const uint8_t        *in_bits;
    const float          *abc, *act;
    template <int N> struct Params { float a[N], b[N], c[N], scale[N], bias[N]; };
    template <int N> __device__ __forceinline__ void load_params(Params<N> *k, int64_t c, int64_t C) const {
        point_channels<N>(abc, c, C, k->a);
        point_channels<N>(abc + C, c, C, k->b);
        point_channels<N>(abc + 2 * C, c, C, k->c);
        if constexpr (MASK == CK_MASK_ACT) {
            point_channels<N>(act, c, C, k->scale);
            point_channels<N>(act + C, c, C, k->bias);
        }
    }
    template <int N>
    __device__ __forceinline__ void apply(const Params<N> &k, const float (&in)[INPUTS][N], unsigned set,
                                          float (&dx)[N]) const {
        float g[N];
        masked<MASK>(in, set, k.scale, k.bias, g);
#pragma unroll
        for (int i = 0; i < N; i++) dx[i] = fmaf(k.a[i], g[i], fmaf(k.b[i], in[1][i], k.c[i]));
    }
};

template <typename T, ck_mask MASK>
static cudaError_t grad_apply_run(const struct ck_bn_grad *a, int multiprocessors, cudaStream_t stream) {
    grad_map<T, MASK> map = {{(const T *)a->dy, (const T *)a->x}, (T *)a->dx, NULL, a->coeffs, NULL};
    if constexpr (MASK == CK_MASK_Y) map.in[2] = (const T *)a->mask;
    if constexpr (MASK == CK_MASK_BITS) map.in_bits = (const uint8_t *)a->mask;
    if constexpr (MASK == CK_MASK_ACT) map.act = (const float *)a->mask;
    return point_launch(map, a->pixels, a->channels, multiprocessors, stream);
}

template <typename T>
static cudaError_t grad_apply_by_mask(const struct ck_bn_grad *a, int multiprocessors, cudaStream_t stream) {
    switch (a->by) {
    case CK_MASK_NONE: return grad_apply_run<T, CK_MASK_NONE>(a, multiprocessors, stream);
    case CK_MASK_Y: return grad_apply_run<T, CK_MASK_Y>(a, multiprocessors, stream);
    case CK_MASK_ACT: return grad_apply_run<T, CK_MASK_ACT>(a, multiprocessors, stream);
    case CK_MASK_BITS:
        if (a->channels % 8 == 0) return grad_apply_run<T, CK_MASK_BITS>(a, multiprocessors, stream);
    }
    return cudaErrorInvalidValue;
}

cudaError_t ck_bn_grad_apply(const struct ck_bn_grad *a, int multiprocessors, cudaStream_t stream) {
    CK_BY_TYPE(a->type, return grad_apply_by_mask<T>(a, multiprocessors, stream));
}
