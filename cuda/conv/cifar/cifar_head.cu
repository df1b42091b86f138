/* cuda/conv/cifar/cifar_head.cu: twelve small ops between the last convolution's forward and backward in two launches.
 *
 * In the first launch a block has one image, which stays in registers. The second launch adds what crosses the images:
 * BN sums, gradients of the classifier, the loss. Except for the BN's gradient sums, whose terms are added in another
 * order, and products that a library computes, the results are those of the single ops bit by bit.
 *
 * Bytes: x and add once, 2 an element, and dx 2. Limiter: latency, a chain of about ten reductions in shared memory. */
#include "cuda/conv/cifar/cifar_head.h"
#include "cuda/conv/cifar/cifar_sums.cuh"
#include "cuda/train/loss_rows.cuh"

namespace cifar {
namespace {

enum {
    PIXELS       = CK_HEAD_PIXELS,
    CHANNELS     = CK_HEAD_CHANNELS,
    CLASSES_MOST = CK_HEAD_CLASSES_MOST,
    CHUNKS       = CHANNELS / 8,
    SHARES       = THREADS / CHUNKS, /* threads with the same channels */
    EACH         = PIXELS / SHARES,  /* pixels of a thread */
    BIAS_SHARES  = 32                /* parts of a sum of ck_dense_bgrad */
};
static_assert(EACH == 2, "two pixels a thread");

struct head_args {
    struct ck_cifar_head args;
    double               inverse; /* 1 / number of elements of a BN channel */
    /* scratch memory: [samples][64], [samples][classes], [samples], [samples][2][64] */
    void          *features, *dlogits;
    struct sample *result;
    float         *partial;
};

/* ---- the first launch ---- */

template <typename T> struct head_shared {
    double part[8][THREADS];
    float  rows[WARPS][2][CHANNELS];
    float  gradient[CHANNELS]; /* by z, the same for all pixels */
    T      w[CLASSES_MOST * CHANNELS], feature[CHANNELS], logits[CLASSES_MOST], dlogits[CLASSES_MOST];
};

/* The mean of z over the pixels, in the order of ck_avgpool. */
template <typename T> __device__ __forceinline__ void head_features(head_shared<T> &m, const uint4 (&z)[EACH], T *out) {
    const int t = (int)threadIdx.x, of = t / CHUNKS, lane = t % CHUNKS;
    float     a[8], b[8];
    ck_unpack<T>(z[0], a);
    ck_unpack<T>(z[1], b);
#pragma unroll
    for (int i = 0; i < 8; i++) m.part[i][t] = (double)(a[i] + b[i]);
    __syncthreads();
    if (of < 8) {
        double total = 0;
#pragma unroll 8
        for (int s = 0; s < SHARES; s++) total += m.part[of][s * CHUNKS + lane];
        out[lane * 8 + of] = m.feature[lane * 8 + of] = ck_round<T>((float)(total / (double)PIXELS));
    }
    __syncthreads();
}

/* Logits, loss and their gradient; the latter two in the first warp. */
template <typename T>
__device__ __forceinline__ void head_loss(head_shared<T> &m, const head_args &a, int64_t n, float factor) {
    const struct ck_loss &loss = a.args.loss;
    const int             t = (int)threadIdx.x, K = (int)loss.classes;
    if (t < K) {
        float sum = 0;
#pragma unroll 8
        for (int c = 0; c < CHANNELS; c++) sum = fmaf(ck_float(m.feature[c]), ck_float(m.w[t * CHANNELS + c]), sum);
        m.logits[t] = ck_round<T>(sum + a.args.bias[t]);
    }
    __syncthreads();
    if (t < CK_WARP) {
        const int     label = loss.labels[n];
        struct sample s     = {0.0f, 0u};
        if (is_class(label, K)) {
            const struct target to = target_of(loss, n);
            s                      = sample_loss<T, CK_WARP>(m.logits, K, label, to, loss.smoothing, t);
            grad_row<T, CK_WARP>(m.logits, m.dlogits, K, label, to, loss.smoothing, factor, t);
        } else {
            for (int k = t; k < K; k += CK_WARP) m.dlogits[k] = ck_round<T>(0.0f);
        }
        if (t == 0) a.result[n] = s;
        for (int k = t; k < K; k += CK_WARP) ((T *)a.dlogits)[n * K + k] = m.dlogits[k];
    }
    __syncthreads();
}

/* The gradient by z, rounded as ck_cifar_dense_dgrad and ck_avgpool_grad round it. */
template <typename T> __device__ __forceinline__ void head_gradient(head_shared<T> &m, int K) {
    const int c = (int)threadIdx.x;
    if (c < CHANNELS) {
        float sum = 0;
        for (int k = 0; k < K; k++) sum = fmaf(ck_float(m.dlogits[k]), ck_float(m.w[k * CHANNELS + c]), sum);
        m.gradient[c] = ck_float(ck_round<T>(ck_float(ck_round<T>(sum)) / (float)PIXELS));
    }
    __syncthreads();
}

/* The block's BN sums: a row of `partial`. */
template <typename T>
__device__ __forceinline__ void head_sums(head_shared<T> &m, float (&first)[8], float (&second)[8], const float *rstd,
                                          float *partial) {
    const int t = (int)threadIdx.x, lane = t % CK_WARP;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int offset = CHUNKS; offset < CK_WARP; offset *= 2) {
            first[i] += __shfl_xor_sync(0xffffffffu, first[i], offset);
            second[i] += __shfl_xor_sync(0xffffffffu, second[i], offset);
        }
    if (lane < CHUNKS)
#pragma unroll
        for (int i = 0; i < 8; i++)
            m.rows[t / CK_WARP][0][lane * 8 + i] = first[i], m.rows[t / CK_WARP][1][lane * 8 + i] = second[i];
    __syncthreads();
    if (t >= 2 * CHANNELS) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += m.rows[w][t / CHANNELS][t % CHANNELS];
    __stcg(partial + t, t < CHANNELS ? sum : sum * rstd[t - CHANNELS]);
}

template <typename T> __global__ void __launch_bounds__(THREADS) head_kernel(const head_args a) {
    __shared__ __align__(16) char memory[sizeof(head_shared<T>)];
    head_shared<T>               &m = *reinterpret_cast<head_shared<T> *>(memory);
    const struct ck_cifar_head   &h = a.args;
    const int                     t = (int)threadIdx.x, chunk = t % CHUNKS, share = t / CHUNKS, K = (int)h.loss.classes;
    const int64_t n = blockIdx.x, at = (n * PIXELS + share) * CHUNKS + chunk; /* vectors of 8 elements */
    uint4         x[EACH], add[EACH], z[EACH];
    float         mean[8], first[8] = {}, second[8] = {};
    ck_begin_after_last();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        x[i]   = ck_load((const T *)h.x, at + i * SHARES * CHUNKS);
        add[i] = ck_load((const T *)h.add, at + i * SHARES * CHUNKS);
    }
    for (int i = t; i < K * CHUNKS; i += THREADS) reinterpret_cast<uint4 *>(m.w)[i] = ck_load((const T *)h.w, i);
    const sum_factors f(h.scale_bias, h.add_scale_bias, CHANNELS, chunk * 8);
    load_floats(mean, h.mean_rstd + chunk * 8);
    const double valid  = count_valid(h.loss.labels, h.loss.samples, K);
    const float  factor = (float)(h.state[CK_STATE_LOSS_SCALE] * (double)h.weight / (valid < 1.0 ? 1.0 : valid));
#pragma unroll
    for (int i = 0; i < EACH; i++) z[i] = act_sum<T>(x[i], add[i], f.scale, f.bias, f.more, h.add_scale_bias != NULL);
    head_features<T>(m, z, (T *)a.features + n * CHANNELS);
    head_loss<T>(m, a, n, factor);
    head_gradient<T>(m, K);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float g[8], v[8], on[8];
        load_floats(g, m.gradient + chunk * 8);
        ck_unpack<T>(z[i], on);
        ck_unpack<T>(x[i], v);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            g[j] = on[j] > 0.0f ? g[j] : 0.0f;
            first[j] += g[j];
            second[j] = fmaf(g[j], v[j] - mean[j], second[j]);
        }
        ck_store((T *)h.dx, at + i * SHARES * CHUNKS, ck_pack<T>(g));
    }
    head_sums<T>(m, first, second, h.mean_rstd + CHANNELS, a.partial + n * 2 * CHANNELS);
}

/* ---- the second launch ---- */

struct head_end {
    const head_args &a;
    struct channel {
        ck_bn_grad_channel              bn;
        __device__ __forceinline__      channel(const head_end &end, int c) { bn.load(end.a.args.finish, c, CHANNELS); }
        __device__ __forceinline__ void finish(const head_end &end, int c, float sum, float product) const {
            const struct ck_cifar_head &h = end.a.args;
            h.grad_sums[c]                = sum;
            h.grad_sums[CHANNELS + c]     = product;
            bn.finish(h.finish, end.a.inverse, c, CHANNELS, sum, product);
        }
    };
};

/* Row k of dw, and element k of db, in the orders of ck_cifar_dense_wgrad and ck_dense_bgrad. */
template <typename T> __device__ __forceinline__ void head_classifier(const head_args &a, int k) {
    __shared__ float            part[THREADS * 8], bias[BIAS_SHARES];
    const struct ck_cifar_head &h = a.args;
    const int64_t               N = h.loss.samples, K = h.loss.classes;
    const int                   t = (int)threadIdx.x, share = t / CHUNKS;
    const T                    *dlogits = (const T *)a.dlogits + k;
    float                       sum[8] = {}, own = 0;
#pragma unroll 4
    for (int64_t n = share; n < N; n += SHARES) {
        float       p[8];
        const float g = ck_float(dlogits[n * K]);
        ck_unpack<T>(ck_load((const T *)a.features, n * CHUNKS + t % CHUNKS), p);
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] = fmaf(g, p[j], sum[j]);
    }
    if (t < BIAS_SHARES) {
#pragma unroll 4
        for (int64_t n = t; n < N; n += BIAS_SHARES) own += ck_float(dlogits[n * K]);
        bias[t] = own;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) part[t * 8 + j] = sum[j];
    __syncthreads();
    if (t < CHANNELS) {
        float *to = h.dw + (int64_t)k * CHANNELS + t, all = 0;
        for (int s = 0; s < SHARES; s++) all += part[s * CHANNELS + t];
        *to = h.accumulate_dw ? *to + all : all;
    }
    if (t == CHANNELS) {
        double total = h.accumulate_db ? (double)h.db[k] : 0;
        for (int j = 0; j < BIAS_SHARES; j++) total += (double)bias[j];
        h.db[k] = (float)total;
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) head_add_kernel(const head_args a) {
    constexpr int SUMS = CHANNELS / SUMS_CHANNELS;
    const int     b    = (int)blockIdx.x;
    ck_let_next_begin();
    ck_wait_for_last();
    if (b < SUMS)
        sums_add<CHANNELS>(a.partial, (int)a.args.loss.samples, b, head_end{a});
    else if (b < SUMS + (int)a.args.loss.classes)
        head_classifier<T>(a, b - SUMS);
    else
        loss_sum(a.result, a.args.loss.samples, NULL, a.args.metrics);
}

template <typename T> cudaError_t head_run(const head_args &a, cudaStream_t stream) {
    const struct ck_loss &loss  = a.args.loss;
    const cudaError_t     error = launch(head_kernel<T>, a, loss.samples, THREADS, 0, stream);
    return error != cudaSuccess
               ? error
               : launch(head_add_kernel<T>, a, CHANNELS / SUMS_CHANNELS + loss.classes + 1, THREADS, 0, stream);
}

} // namespace
} // namespace cifar

bool ck_cifar_head_supports(enum ck_type type, int64_t samples, int64_t classes) {
    return type != CK_F32 && samples >= 1 && samples <= 65535 && classes >= 1 && classes <= CK_HEAD_CLASSES_MOST;
}

size_t ck_cifar_head_workspace(int64_t samples, int64_t classes) {
    return (size_t)samples *
           (2 * CK_HEAD_CHANNELS * sizeof(float) + sizeof(struct sample) + CK_HEAD_CHANNELS * 2 + (size_t)classes * 2);
}

cudaError_t ck_cifar_head(const struct ck_cifar_head *args, void *workspace, cudaStream_t stream) {
    const int64_t    N      = args->loss.samples;
    cifar::head_args a      = {.args     = *args,
                               .inverse  = 1 / (double)args->finish.count,
                               .features = NULL,
                               .dlogits  = NULL,
                               .result   = NULL,
                               .partial  = (float *)workspace};
    a.result                = (struct sample *)(a.partial + N * 2 * CK_HEAD_CHANNELS);
    a.features              = a.result + N;
    a.dlogits               = (uint16_t *)a.features + N * CK_HEAD_CHANNELS;
    a.args.finish.mean_rstd = args->mean_rstd;
    if (!ck_cifar_head_supports(args->loss.type, N, args->loss.classes)) return cudaErrorInvalidValue;
    return args->loss.type == CK_F16 ? cifar::head_run<__half>(a, stream) : cifar::head_run<__nv_bfloat16>(a, stream);
}
