/* cuda/train/distill.cu: the losses of knowledge distillation (KL divergence) and their gradients. Reference:
 * device/cpu/reference/ref_distill.c.
 *
 * A group of threads processes a sample: a warp for few classes, a block for many. Probabilities and sums are in FP64,
 * because the loss is a small difference when both networks agree. Limiter: latency, a few microseconds. */
#include "cuda/train/sample_group.cuh"

/* A row of logits divided by the temperature, relative to the largest, and the sum of their exponentials. NaN or +inf
 * among the logits makes the sum NaN. */
template <typename T> struct softened {
    const T                          *row;
    double                            top, sum, log_sum, inverse; /* inverse of the temperature */
    __device__ __forceinline__ double at(int64_t k) const { return ((double)ck_float(row[k]) - top) * inverse; }
};

template <typename T, int GROUP>
static __device__ __forceinline__ struct softened<T> soften(const T *row, int64_t K, double inverse, int lane) {
    float              top = -INFINITY;
    struct softened<T> s   = {
          row, 0.0, 0.0, 0.0, inverse
    };
    for (int64_t k = lane; k < K; k += GROUP) top = fmaxf(top, ck_float(row[k]));
    s.top      = (double)group_max<GROUP>(top);
    double sum = 0;
    for (int64_t k = lane; k < K; k += GROUP) sum += exp(s.at(k));
    s.sum     = group_sum<GROUP>(sum);
    s.log_sum = log(s.sum);
    return s;
}

static __device__ __forceinline__ bool
is_class(int label, int64_t K) {
    return label >= 0 && label < K;
}

/* result[n] = the divergence of sample n; 0 when it does not count. */
template <typename T, int GROUP>
static __global__ void __launch_bounds__(THREADS) divergence_kernel(struct ck_distill a, double *result) {
    const int64_t n    = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const int     lane = (int)threadIdx.x % GROUP;
    ck_begin_after_last();
    if (n >= a.samples) return; /* a whole warp returns; in a launch with one block a sample, n is always below */
    double sum = 0;
    if (is_class(a.labels[n], a.elems)) {
        const double             inverse = 1.0 / (double)a.temperature;
        const struct softened<T> p       = soften<T, GROUP>((const T *)a.x + n * a.elems, a.elems, inverse, lane),
                                 q       = soften<T, GROUP>((const T *)a.teacher + n * a.elems, a.elems, inverse, lane);
        for (int64_t k = lane; k < a.elems; k += GROUP) {
            const double log_q = q.at(k) - q.log_sum, probability = exp(q.at(k)) / q.sum;
            if (probability != 0.0) sum += probability * (log_q - (p.at(k) - p.log_sum)); /* 0 * inf would be NaN */
        }
        sum = group_sum<GROUP>(sum);
    }
    if (lane == 0) result[n] = sum;
}

/* metrics[0] = keep * before[0] + factor * sum of result[count]; the other metrics are copied. One block, so that the
 * order of the sum depends only on the count. */
static __global__ void __launch_bounds__(THREADS)
    sum_kernel(const double *result, int64_t count, double keep, double factor, const float *before, float *metrics) {
    double sum = 0;
    ck_begin_after_last();
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < count; i += THREADS) sum += result[i];
    sum = ck_block_sum<THREADS>(sum);
    if (threadIdx.x) return;
    metrics[0] = (float)((keep > 0.0 ? keep * (double)before[0] : 0.0) + factor * sum);
    for (int i = 1; i < 4; i++) metrics[i] = before[i];
}

/* Number of labels in [0, K). Every block counts them: the labels are few. */
static __device__ __forceinline__ double count_valid(const int32_t *labels, int64_t samples, int64_t K) {
    int valid = 0;
#pragma unroll 4
    for (int64_t n = threadIdx.x; n < samples; n += THREADS) valid += is_class(labels[n], K) ? 1 : 0;
    const double all = ck_block_sum<THREADS>((double)valid);
    return all < 1.0 ? 1.0 : all;
}

/* dx may be dy: the thread that reads an element writes it. */
template <typename T, int GROUP>
static __global__ void __launch_bounds__(THREADS)
    divergence_grad_kernel(struct ck_distill a, const double *state, const T *dy, T *dx) {
    const int64_t n    = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const int     lane = (int)threadIdx.x % GROUP;
    ck_begin_after_last();
    const double factor = state[CK_STATE_LOSS_SCALE] * (double)a.weight * (double)a.temperature /
                          count_valid(a.labels, a.samples, a.elems);
    if (n >= a.samples) return; /* a whole warp returns; in a launch with one block a sample, n is always below */
    const int64_t first = n * a.elems;
    if (!is_class(a.labels[n], a.elems)) {
        for (int64_t k = lane; k < a.elems; k += GROUP) dx[first + k] = dy[first + k];
        return;
    }
    const double             inverse = 1.0 / (double)a.temperature;
    const struct softened<T> p       = soften<T, GROUP>((const T *)a.x + first, a.elems, inverse, lane),
                             q       = soften<T, GROUP>((const T *)a.teacher + first, a.elems, inverse, lane);
    for (int64_t k = lane; k < a.elems; k += GROUP) {
        const double part = exp(p.at(k)) / p.sum - exp(q.at(k)) / q.sum;
        dx[first + k]     = ck_round<T>((float)((double)ck_float(dy[first + k]) + factor * part));
    }
}

/* ---- launchers ---- */

static unsigned blocks_of(int64_t samples, int group) {
    return ck_blocks(samples, THREADS / group, INT32_MAX);
}

size_t ck_distill_workspace(int64_t samples) {
    return (size_t)samples * sizeof(double);
}

template <typename T>
static cudaError_t launch_divergence(const struct ck_distill *a, double *result, cudaStream_t stream) {
    if (a->elems <= WARP_CLASSES)
        return ck_launch(divergence_kernel<T, CK_WARP>, blocks_of(a->samples, CK_WARP), THREADS, 0, stream, *a, result);
    return ck_launch(divergence_kernel<T, THREADS>, blocks_of(a->samples, THREADS), THREADS, 0, stream, *a, result);
}

cudaError_t ck_distill(const struct ck_distill *a, const float *before, float *metrics, void *workspace,
                       cudaStream_t stream) {
    double      *result = (double *)workspace;
    const double weight = (double)a->weight, T2 = (double)a->temperature * (double)a->temperature;
    cudaError_t  error = cudaErrorInvalidValue;
    CK_BY_TYPE(a->type, error = launch_divergence<T>(a, result, stream));
    return error != cudaSuccess ? error
                                : ck_launch(sum_kernel, 1, THREADS, 0, stream, result, a->samples, 1.0 - weight,
                                            weight * T2, before, metrics);
}

template <typename T>
static cudaError_t launch_divergence_grad(const struct ck_distill *a, const double *state, const T *dy, T *dx,
                                          cudaStream_t stream) {
    if (a->elems <= WARP_CLASSES)
        return ck_launch(divergence_grad_kernel<T, CK_WARP>, blocks_of(a->samples, CK_WARP), THREADS, 0, stream, *a,
                         state, dy, dx);
    return ck_launch(divergence_grad_kernel<T, THREADS>, blocks_of(a->samples, THREADS), THREADS, 0, stream, *a, state,
                     dy, dx);
}

cudaError_t ck_distill_grad(const struct ck_distill *a, const double *state, const void *dy, void *dx,
                            cudaStream_t stream) {
    CK_BY_TYPE(a->type, return launch_divergence_grad<T>(a, state, (const T *)dy, (T *)dx, stream));
}
