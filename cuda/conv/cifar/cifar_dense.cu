/* cuda/conv/cifar/cifar_dense.cu: a small classifier (dense layer of CIFAR ResNets): a thread computes an element or a
 * vector of the result, with shared memory only where it is needed. Bytes: each operand once from memory, then from
 * caches. Limiter: the launch and two round trips to the L2 cache. Roofline: a launch, about 2 us. */
#include "cuda/conv/cifar/cifar_conv.cuh"

namespace cifar {
namespace {

struct dense_args {
    const void  *a, *w;
    const float *b;
    void        *out;
    int          N, C, K;
    bool         accumulate;
};

enum { DENSE_THREADS = 128 };

template <typename T> __device__ __forceinline__ void dense_open(const T *from, float (&out)[8]) {
    ck_unpack<T>(ck_load(from, 0), out);
}

/* A thread computes one logit. The logits of an image are neighbours, so the image's features come from the L1 cache
 * after the first. */
template <typename T> __global__ void __launch_bounds__(DENSE_THREADS) dense_kernel(dense_args a) {
    const int64_t i = (int64_t)blockIdx.x * DENSE_THREADS + threadIdx.x;
    ck_begin_after_last();
    if (i >= (int64_t)a.N * a.K) return;
    const int k = (int)(i % a.K);
    const T  *x = (const T *)a.a + i / a.K * a.C, *w = (const T *)a.w + (int64_t)k * a.C;
    float     sum = 0;
#pragma unroll 8
    for (int c = 0; c < a.C; c += 8) {
        float p[8], q[8];
        dense_open<T>(x + c, p);
        dense_open<T>(w + c, q);
#pragma unroll
        for (int j = 0; j < 8; j++) sum = fmaf(p[j], q[j], sum);
    }
    ((T *)a.out)[i] = ck_round<T>(sum + a.b[k]);
}

/* A thread computes 8 features of an image. */
template <typename T> __global__ void __launch_bounds__(DENSE_THREADS) dense_dgrad_kernel(dense_args a) {
    const int64_t i       = (int64_t)blockIdx.x * DENSE_THREADS + threadIdx.x;
    const int     vectors = a.C / 8, at = (int)(i % vectors) * 8;
    ck_begin_after_last();
    if (i >= (int64_t)a.N * vectors) return;
    const T *dy = (const T *)a.a + i / vectors * a.K, *w = (const T *)a.w + at;
    float    sum[8] = {};
#pragma unroll 5
    for (int k = 0; k < a.K; k++) {
        float       q[8];
        const float g = ck_float(dy[k]);
        dense_open<T>(w + (int64_t)k * a.C, q);
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] = fmaf(g, q[j], sum[j]);
    }
    ck_store((T *)a.out, i, ck_pack<T>(sum));
}

/* A block computes one class; its threads divide the images among them, each for 8 features. */
template <typename T> __global__ void __launch_bounds__(THREADS) dense_wgrad_kernel(dense_args a) {
    __shared__ float part[THREADS * 8];
    const int        vectors = a.C / 8, shares = THREADS / vectors, k = (int)blockIdx.x;
    const int        at = (int)threadIdx.x % vectors * 8, share = (int)threadIdx.x / vectors;
    float            sum[8] = {};
    ck_begin_after_last();
    if (share < shares) {
#pragma unroll 4
        for (int n = share; n < a.N; n += shares) {
            float       p[8];
            const float g = ck_float(((const T *)a.w)[(int64_t)n * a.K + k]);
            dense_open<T>((const T *)a.a + (int64_t)n * a.C + at, p);
#pragma unroll
            for (int j = 0; j < 8; j++) sum[j] = fmaf(g, p[j], sum[j]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) part[share * a.C + at + j] = sum[j];
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < a.C; c += THREADS) {
        float *to = (float *)a.out + (int64_t)k * a.C + c, all = 0;
        for (int s = 0; s < shares; s++) all += part[s * a.C + c];
        *to = a.accumulate ? *to + all : all;
    }
}

template <typename Kernel>
cudaError_t dense_run(Kernel kernel, const dense_args &a, int64_t threads, cudaStream_t stream) {
    return launch(kernel, a, (threads + DENSE_THREADS - 1) / DENSE_THREADS, DENSE_THREADS, 0, stream);
}
dense_args dense_of(const struct ck_dense *v, const void *a, const void *w, void *out) {
    return {a, w, NULL, out, (int)v->N, (int)v->C, (int)v->K, false};
}

} // namespace
} // namespace cifar

bool ck_cifar_dense_supports(const struct ck_dense *v) {
    return v->type != CK_F32 && v->N >= 1 && v->N <= 65536 && v->C >= 8 && v->C % 8 == 0 && v->C <= 256 && v->K >= 1 &&
           v->K <= 128;
}

cudaError_t ck_cifar_dense(const struct ck_dense *v, const void *x, const void *w, const float *b, void *y,
                           cudaStream_t stream) {
    if (!ck_cifar_dense_supports(v)) return cudaErrorInvalidValue;
    cifar::dense_args a = cifar::dense_of(v, x, w, y);
    a.b                 = b;
    return v->type == CK_F16 ? cifar::dense_run(cifar::dense_kernel<__half>, a, v->N * v->K, stream)
                             : cifar::dense_run(cifar::dense_kernel<__nv_bfloat16>, a, v->N * v->K, stream);
}

cudaError_t ck_cifar_dense_dgrad(const struct ck_dense *v, const void *dy, const void *w, void *dx,
                                 cudaStream_t stream) {
    if (!ck_cifar_dense_supports(v)) return cudaErrorInvalidValue;
    const cifar::dense_args a = cifar::dense_of(v, dy, w, dx);
    return v->type == CK_F16 ? cifar::dense_run(cifar::dense_dgrad_kernel<__half>, a, v->N * v->C / 8, stream)
                             : cifar::dense_run(cifar::dense_dgrad_kernel<__nv_bfloat16>, a, v->N * v->C / 8, stream);
}

cudaError_t ck_cifar_dense_wgrad(const struct ck_dense *v, const void *x, const void *dy, float *dw, bool accumulate,
                                 cudaStream_t stream) {
    if (!ck_cifar_dense_supports(v)) return cudaErrorInvalidValue;
    cifar::dense_args a = cifar::dense_of(v, x, dy, dw);
    a.accumulate        = accumulate;
    return v->type == CK_F16
               ? cifar::launch(cifar::dense_wgrad_kernel<__half>, a, v->K, cifar::THREADS, 0, stream)
               : cifar::launch(cifar::dense_wgrad_kernel<__nv_bfloat16>, a, v->K, cifar::THREADS, 0, stream);
}
