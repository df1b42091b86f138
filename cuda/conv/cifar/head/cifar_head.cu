/* cuda/conv/cifar/head/cifar_head.cu: the fused op head of CIFAR ResNets (pooling, classifier, loss, gradients): twelve
 * small ops in two launches. Reference: device/cpu/reference/ref_head.c.
 *
 * In the first launch a block has one image, which stays in registers. The second launch computes the sums over the
 * images: BN sums, gradients of the classifier, the loss. A thread has the same 8 channels (a chunk) of two pixels, of
 * a class's weights and, in the second launch, of some images' features. Channels that the tensors do not have are 0.
 *
 * Bytes: x and add once, 2 an element, and dx 2. Limiter: latency, a chain of six reductions over a block, about 3 us;
 * the second launch about 2 us. Roofline: two launches. */
#include "cuda/conv/cifar/cifar_sums.cuh"
#include "cuda/conv/cifar/head/cifar_head.h"
#include "cuda/train/loss_rows.cuh"

namespace cifar {
namespace {

enum {
    PIXELS = CK_HEAD_PIXELS,
    MOST   = CK_HEAD_CHANNELS_MOST,
    CHUNKS = MOST / 8,
    SHARES = THREADS / CHUNKS, /* threads with the same channels */
    EACH   = PIXELS / SHARES   /* pixels of a thread */
};
static_assert(EACH == 2 && MOST == 64 && CHUNKS == 8, "a warp has all channels four times");

struct head_args {
    struct ck_cifar_head args;
    double               inverse; /* 1 / number of elements of a BN channel */
    /* scratch memory: [samples][2][channels], [samples][channels] at a multiple of 16 bytes, [samples],
     * [samples][classes] */
    float         *partial;
    void          *features;
    struct sample *result;
    void          *dlogits;
};

/* Sums over the threads with the same chunk. */
template <int N> struct chunk_sums {
    float rows[WARPS][CHUNKS][N];
    /* Element i of chunk c is then the sum of rows[w][c][i] over the warps. The block must synchronise. */
    __device__ __forceinline__ void put(float (&v)[N]) {
        const int lane = (int)threadIdx.x % CK_WARP;
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int offset = CHUNKS; offset < CK_WARP; offset *= 2) v[i] += __shfl_xor_sync(0xffffffffu, v[i], offset);
        if (lane >= CHUNKS) return;
#pragma unroll
        for (int i = 0; i < N; i++) rows[threadIdx.x / CK_WARP][lane][i] = v[i];
    }
    __device__ __forceinline__ float sum(int chunk, int i) const {
        float s = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) s += rows[w][chunk][i];
        return s;
    }
};

/* ---- the first launch ---- */

template <typename T> struct head_shared {
    chunk_sums<8>  sums;
    chunk_sums<16> bn;
    float          feature[MOST], gradient[MOST]; /* gradient: by z, the same for all pixels */
    T              logits[CK_HEAD_CLASSES_MOST], dlogits[CK_HEAD_CLASSES_MOST];
};

/* What a thread keeps. ROUNDS: classes, in groups of SHARES. */
template <int ROUNDS> struct head_thread {
    bool  live; /* the chunk exists */
    int   chunk, share;
    uint4 x[EACH], z[EACH], w[ROUNDS];
};

template <typename T, int ROUNDS>
__device__ __forceinline__ void head_load(const struct ck_cifar_head &h, head_thread<ROUNDS> &t, int64_t n) {
    const int K = (int)h.loss.classes, C = (int)h.channels;
    t.chunk = (int)threadIdx.x % CHUNKS, t.share = (int)threadIdx.x / CHUNKS, t.live = t.chunk * 8 < C;
    const uint4   none     = make_uint4(0, 0, 0, 0);
    const int64_t at       = (n * PIXELS + t.share) * C + t.chunk * 8;
    float         scale[8] = {}, bias[8] = {};
    uint4         add[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        t.x[i] = t.live ? ck_load((const T *)h.x + at + (int64_t)i * SHARES * C, 0) : none;
        add[i] = t.live ? ck_load((const T *)h.add + at + (int64_t)i * SHARES * C, 0) : none;
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int k = i * SHARES + t.share;
        t.w[i]      = t.live && k < K ? ck_load((const T *)h.w + (int64_t)k * C + t.chunk * 8, 0) : none;
    }
    if (t.live) {
        load_floats(scale, h.scale_bias + t.chunk * 8);
        load_floats(bias, h.scale_bias + C + t.chunk * 8);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float v[8], a[8];
        ck_unpack<T>(t.x[i], v);
        ck_unpack<T>(add[i], a);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = ck_relu(fmaf(v[j], scale[j], bias[j]) + a[j]); /* as ck_bn_apply */
        t.z[i] = ck_pack<T>(v);
    }
}

/* The mean of z over the pixels. */
template <typename T, int ROUNDS>
__device__ __forceinline__ void head_features(head_shared<T> &m, const head_thread<ROUNDS> &t, T *out, int C) {
    const int c = (int)threadIdx.x;
    float     a[8], b[8];
    ck_unpack<T>(t.z[0], a);
    ck_unpack<T>(t.z[1], b);
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] += b[i];
    m.sums.put(a);
    __syncthreads();
    if (c < MOST) {
        const T mean = ck_round<T>(m.sums.sum(c / 8, c % 8) * (1.0f / (float)PIXELS));
        m.feature[c] = ck_float(mean);
        if (c < C) out[c] = mean;
    }
    __syncthreads();
}

template <typename T, int ROUNDS>
__device__ __forceinline__ void head_logits(head_shared<T> &m, const head_args &a, const head_thread<ROUNDS> &t,
                                            int64_t n) {
    const int K = (int)a.args.loss.classes;
    float     p[8];
    load_floats(p, m.feature + t.chunk * 8);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int k = i * SHARES + t.share;
        float     q[8], sum = 0;
        ck_unpack<T>(t.w[i], q);
#pragma unroll
        for (int j = 0; j < 8; j++) sum = fmaf(p[j], q[j], sum);
#pragma unroll
        for (int offset = 1; offset < CHUNKS; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (t.chunk > 0 || k >= K) continue;
        const T logit = ck_round<T>(sum + a.args.bias[k]);
        m.logits[k] = ((T *)a.args.logits)[n * K + k] = logit;
    }
    __syncthreads();
}

/* The first warp computes the gradient, the second one the loss, which nothing waits for. */
template <typename T>
__device__ __forceinline__ void head_loss(head_shared<T> &m, const head_args &a, int64_t n, int label, float factor) {
    const struct ck_loss &loss = a.args.loss;
    const int             K = (int)loss.classes, lane = (int)threadIdx.x % CK_WARP;
    const bool            here = is_class(label, K);
    if (threadIdx.x < CK_WARP) {
        if (here)
            grad_row<T, CK_WARP>(m.logits, m.dlogits, K, label, target_of(loss, n), loss.smoothing, factor, lane);
        else
            for (int k = lane; k < K; k += CK_WARP) m.dlogits[k] = ck_round<T>(0.0f);
        __syncwarp();
        for (int k = lane; k < K; k += CK_WARP) ((T *)a.dlogits)[n * K + k] = m.dlogits[k];
    } else if (threadIdx.x < 2 * CK_WARP) {
        struct sample s = {0.0f, 0u};
        if (here) s = sample_loss<T, CK_WARP>(m.logits, K, label, target_of(loss, n), loss.smoothing, lane);
        if (lane == 0) a.result[n] = s;
    }
    __syncthreads();
}

/* The gradient by z, rounded as the gradients of the classifier and of the pooling. */
template <typename T, int ROUNDS>
__device__ __forceinline__ void head_gradient(head_shared<T> &m, const head_thread<ROUNDS> &t, int K) {
    const int c      = (int)threadIdx.x;
    float     sum[8] = {};
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int   k = i * SHARES + t.share;
        const float g = k < K ? ck_float(m.dlogits[k]) : 0.0f;
        float       q[8];
        ck_unpack<T>(t.w[i], q);
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] = fmaf(g, q[j], sum[j]);
    }
    m.sums.put(sum);
    __syncthreads();
    if (c < MOST)
        m.gradient[c] = ck_float(ck_round<T>(ck_float(ck_round<T>(m.sums.sum(c / 8, c % 8))) * (1.0f / (float)PIXELS)));
    __syncthreads();
}

/* dx, and the block's row of BN sums. */
template <typename T, int ROUNDS>
__device__ __forceinline__ void head_dx(head_shared<T> &m, const head_args &a, const head_thread<ROUNDS> &t, int64_t n,
                                        const float (&mean)[8]) {
    const struct ck_cifar_head &h = a.args;
    const int                   C = (int)h.channels, i = (int)threadIdx.x;
    const int64_t               at = (n * PIXELS + t.share) * C + t.chunk * 8;
    float                       gradient[8], sums[16] = {}; /* of g, then of g*(x - mean) */
    load_floats(gradient, m.gradient + t.chunk * 8);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        float g[8], v[8], on[8];
        ck_unpack<T>(t.z[e], on);
        ck_unpack<T>(t.x[e], v);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            g[j] = on[j] > 0.0f ? gradient[j] : 0.0f;
            sums[j] += g[j];
            sums[8 + j] = fmaf(g[j], v[j] - mean[j], sums[8 + j]);
        }
        if (t.live) ck_store_whole((T *)h.dx + at + (int64_t)e * SHARES * C, ck_pack<T>(g));
    }
    m.bn.put(sums);
    __syncthreads();
    if (i >= 2 * MOST || i % MOST >= C) return;
    const int   c = i % MOST, second = i / MOST;
    const float sum = m.bn.sum(c / 8, second * 8 + c % 8);
    __stcg(a.partial + (n * 2 + second) * C + c, second ? sum * h.mean_rstd[C + c] : sum);
}

template <typename T, int ROUNDS> __global__ void __launch_bounds__(THREADS) head_kernel(const head_args a) {
    __shared__ __align__(16) char memory[sizeof(head_shared<T>)];
    head_shared<T>               &m = *reinterpret_cast<head_shared<T> *>(memory);
    const struct ck_cifar_head   &h = a.args;
    const int                     K = (int)h.loss.classes, C = (int)h.channels;
    const int64_t                 n = blockIdx.x;
    head_thread<ROUNDS>           t;
    float                         mean[8] = {};
    int                           valid   = 0;
    ck_begin_after_last();
    head_load<T>(h, t, n);
    const int    label = h.loss.labels[n];
    const double scale = h.state[CK_STATE_LOSS_SCALE] * (double)h.weight;
    if (t.live) load_floats(mean, h.mean_rstd + t.chunk * 8);
    for (int64_t s = 0; s < h.loss.samples; s += THREADS)
        valid += __syncthreads_count(s + threadIdx.x < h.loss.samples && is_class(h.loss.labels[s + threadIdx.x], K));
    head_features<T>(m, t, (T *)a.features + n * C, C);
    head_logits<T>(m, a, t, n);
    head_loss<T>(m, a, n, label, (float)(scale / (double)max(valid, 1)));
    head_gradient<T>(m, t, K);
    head_dx<T>(m, a, t, n, mean);
}

/* ---- the second launch ---- */

struct head_end {
    const head_args &a;
    struct channel {
        ck_bn_grad_channel         bn;
        __device__ __forceinline__ channel(const head_end &end, int c) {
            bn.load(end.a.args.finish, c, end.a.args.channels);
        }
        __device__ __forceinline__ void finish(const head_end &end, int c, float sum, float product) const {
            bn.finish(end.a.args.finish, end.a.inverse, c, end.a.args.channels, sum, product);
        }
    };
};

/* Row k of dw, and element k of db. */
template <typename T> __device__ __forceinline__ void head_classifier(const head_args &a, int k) {
    __shared__ chunk_sums<9>    m; /* of products, then of the gradient */
    const struct ck_cifar_head &h = a.args;
    const int                   K = (int)h.loss.classes, C = (int)h.channels, t = (int)threadIdx.x, chunk = t % CHUNKS,
              share       = t / CHUNKS;
    const int64_t N       = h.loss.samples;
    const T      *dlogits = (const T *)a.dlogits + k, *features = (const T *)a.features + chunk * 8;
    const bool    add    = h.finish.accumulate;
    const float   before = !add ? 0.0f : t < C ? h.dw[(int64_t)k * C + t] : t == MOST ? h.db[k] : 0.0f;
    float         sum[9] = {};
    if (chunk * 8 < C)
#pragma unroll 4
        for (int64_t n = share; n < N; n += SHARES) {
            float       p[8];
            const float g = ck_float(dlogits[n * K]);
            ck_unpack<T>(ck_load(features + n * C, 0), p);
#pragma unroll
            for (int j = 0; j < 8; j++) sum[j] = fmaf(g, p[j], sum[j]);
            sum[8] += g;
        }
    m.put(sum);
    __syncthreads();
    if (t < C) h.dw[(int64_t)k * C + t] = before + m.sum(t / 8, t % 8);
    if (t == MOST) h.db[k] = before + m.sum(0, 8);
}

template <typename T> __global__ void __launch_bounds__(THREADS) head_add_kernel(const head_args a) {
    const int b = (int)blockIdx.x, sums = (int)a.args.channels / SUMS_CHANNELS, K = (int)a.args.loss.classes;
    ck_let_next_begin();
    ck_wait_for_last();
    if (b < sums)
        sums_add(a.partial, (int)a.args.loss.samples, b, head_end{a}, (int)a.args.channels);
    else if (b < sums + K)
        head_classifier<T>(a, b - sums);
    else
        loss_sum(a.result, a.args.loss.samples, NULL, a.args.metrics);
}

template <typename T> cudaError_t head_run(const head_args &a, cudaStream_t stream) {
    const int64_t     N = a.args.loss.samples, K = a.args.loss.classes, sums = a.args.channels / SUMS_CHANNELS;
    const cudaError_t error = K <= SHARES
                                  ? launch(head_kernel<T, 1>, a, N, THREADS, 0, stream)
                                  : launch(head_kernel<T, CK_HEAD_CLASSES_MOST / SHARES>, a, N, THREADS, 0, stream);
    return error != cudaSuccess ? error : launch(head_add_kernel<T>, a, sums + K + 1, THREADS, 0, stream);
}

} // namespace
} // namespace cifar

bool ck_cifar_head_supports(enum ck_type type, int64_t samples, int64_t channels, int64_t classes) {
    return type != CK_F32 && samples >= 1 && samples <= 65535 && channels >= 8 && channels <= CK_HEAD_CHANNELS_MOST &&
           channels % 8 == 0 && classes >= 1 && classes <= CK_HEAD_CLASSES_MOST;
}

size_t ck_cifar_head_workspace(int64_t samples, int64_t channels, int64_t classes) {
    return (size_t)samples *
           (2 * (size_t)channels * sizeof(float) + sizeof(struct sample) + 2 * (size_t)channels + 2 * (size_t)classes);
}

cudaError_t ck_cifar_head(const struct ck_cifar_head *args, void *workspace, cudaStream_t stream) {
    const int64_t    N = args->loss.samples, C = args->channels;
    cifar::head_args a;
    if (!ck_cifar_head_supports(args->loss.type, N, C, args->loss.classes)) return cudaErrorInvalidValue;
    a.args                  = *args;
    a.args.finish.mean_rstd = args->mean_rstd;
    a.inverse               = 1 / (double)args->finish.count;
    a.partial               = (float *)workspace;
    a.features              = a.partial + N * 2 * C;
    a.result                = (struct sample *)((uint16_t *)a.features + N * C);
    a.dlogits               = a.result + N;
    return args->loss.type == CK_F16 ? cifar::head_run<__half>(a, stream) : cifar::head_run<__nv_bfloat16>(a, stream);
}
