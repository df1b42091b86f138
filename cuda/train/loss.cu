/* cuda/train/loss.cu: the loss: softmax cross-entropy (label smoothing, class weights, focal loss) and binary
 * cross-entropy; its metrics and its gradient. Reference: device/cpu/reference/ref_loss.c.
 *
 * A group of threads processes a sample: a warp for few classes, a block for many. The group reads its row of logits
 * two or three times. A row is small (4 KB for 1000 classes), so it is read from memory once and then from cache.
 * Limiter: latency, a few microseconds; above a million logits memory: 2 or 4 bytes a logit for the loss, twice as much
 * for the gradient. */
#include "cuda/train/loss_rows.cuh"
#include "cuda/train/loss_weighted.cuh"

/* Without class weights, focal loss and binary cross-entropy FP32 suffices, and is faster. */
static __device__ __forceinline__ bool is_plain(const struct problem &p) {
    return !p.o.sigmoid && p.o.gamma == 0.0f && !p.o.class_weights;
}

/* ---- loss ---- */

template <typename T, int GROUP>
static __global__ void __launch_bounds__(THREADS) loss_kernel(struct problem p, struct result *result) {
    const int64_t n    = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const int     lane = (int)threadIdx.x % GROUP;
    ck_begin_after_last();
    if (n >= p.a.samples) return; /* a whole warp returns; in a launch with one block a sample, n is always below */
    const T      *row = (const T *)p.a.logits + n * p.a.classes;
    struct result r   = {0, 0, 0};
    if (is_valid(p, n)) {
        if (is_plain(p)) {
            const struct sample s =
                sample_loss<T, GROUP>(row, p.a.classes, p.a.labels[n], target_of(p.a, n), p.a.smoothing, lane);
            r = {(double)s.loss, s.counts & CORRECT ? 1.0 : 0.0, s.counts & CORRECT5 ? 1.0 : 0.0};
        } else {
            r = p.o.sigmoid ? sigmoid_loss<T, GROUP>(p, row, n, lane) : softmax_loss<T, GROUP>(p, row, n, lane);
        }
    }
    if (lane == 0) result[n] = r;
}

/* One block, so that the order of the sum depends only on the number of samples. */
static __global__ void __launch_bounds__(THREADS)
    loss_sum_kernel(struct problem p, const struct result *result, const float *before, float *metrics) {
    double sum = 0, first = 0, second = 0, valid;
    ck_begin_after_last();
#pragma unroll 4
    for (int64_t n = threadIdx.x; n < p.a.samples; n += THREADS) {
        sum += result[n].loss;
        first += result[n].first;
        second += result[n].second;
    }
    sum                  = ck_block_sum<THREADS>(sum);
    first                = ck_block_sum<THREADS>(first);
    second               = ck_block_sum<THREADS>(second);
    const double divisor = divisor_of(p, &valid);
    const double add[4]  = {divisor > 0.0 ? sum * (valid / divisor) : sum, valid, first, second};
    if (threadIdx.x == 0)
        for (int i = 0; i < 4; i++) metrics[i] = (float)((double)before[i] + add[i]);
}

/* ---- gradient ---- */

template <typename T, int GROUP>
static __global__ void __launch_bounds__(THREADS)
    loss_grad_kernel(struct problem p, float weight, const double *state, T *dx) {
    const int64_t n    = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const int     lane = (int)threadIdx.x % GROUP;
    double        valid;
    ck_begin_after_last();
    const double divisor = divisor_of(p, &valid);
    if (n >= p.a.samples) return; /* a whole warp returns; in a launch with one block a sample, n is always below */
    const T     *row    = (const T *)p.a.logits + n * p.a.classes;
    T           *out    = dx + n * p.a.classes;
    const double factor = state[CK_STATE_LOSS_SCALE] * (double)weight / divisor;
    if (!is_valid(p, n) || divisor <= 0.0)
        for (int64_t k = lane; k < p.a.classes; k += GROUP) out[k] = ck_round<T>(0.0f);
    else if (is_plain(p))
        grad_row<T, GROUP>(row, out, p.a.classes, p.a.labels[n], target_of(p.a, n), p.a.smoothing, (float)factor, lane);
    else if (p.o.sigmoid)
        sigmoid_grad<T, GROUP>(p, row, out, n, factor, lane);
    else
        softmax_grad<T, GROUP>(p, row, out, n, factor, lane);
}

/* ---- launchers ---- */

static struct problem problem_of(const struct ck_loss *a, const struct ck_loss_options *o) {
    return {*a, *o, o->several ? (int)(1 + (a->classes + 31) / 32) : 1};
}

static unsigned blocks_of(int64_t samples, int group) {
    return ck_blocks(samples, THREADS / group, INT32_MAX);
}

size_t ck_loss_workspace(int64_t samples) {
    return (size_t)samples * sizeof(struct result);
}

template <typename T>
static cudaError_t launch_loss(const struct problem &p, struct result *result, cudaStream_t stream) {
    if (p.a.classes <= WARP_CLASSES)
        return ck_launch(loss_kernel<T, CK_WARP>, blocks_of(p.a.samples, CK_WARP), THREADS, 0, stream, p, result);
    return ck_launch(loss_kernel<T, THREADS>, blocks_of(p.a.samples, THREADS), THREADS, 0, stream, p, result);
}

cudaError_t ck_loss(const struct ck_loss *a, const struct ck_loss_options *o, const float *before, float *metrics,
                    void *workspace, cudaStream_t stream) {
    const struct problem p      = problem_of(a, o);
    struct result       *result = (struct result *)workspace;
    cudaError_t          error  = cudaErrorInvalidValue;
    CK_BY_TYPE(a->type, error = launch_loss<T>(p, result, stream));
    return error != cudaSuccess ? error : ck_launch(loss_sum_kernel, 1, THREADS, 0, stream, p, result, before, metrics);
}

template <typename T>
static cudaError_t launch_loss_grad(const struct problem &p, float weight, const double *state, T *dx,
                                    cudaStream_t stream) {
    if (p.a.classes <= WARP_CLASSES)
        return ck_launch(loss_grad_kernel<T, CK_WARP>, blocks_of(p.a.samples, CK_WARP), THREADS, 0, stream, p, weight,
                         state, dx);
    return ck_launch(loss_grad_kernel<T, THREADS>, blocks_of(p.a.samples, THREADS), THREADS, 0, stream, p, weight,
                     state, dx);
}

cudaError_t ck_loss_grad(const struct ck_loss *a, const struct ck_loss_options *o, float weight, const double *state,
                         void *dx, cudaStream_t stream) {
    const struct problem p = problem_of(a, o);
    CK_BY_TYPE(a->type, return launch_loss_grad<T>(p, weight, state, (T *)dx, stream));
}
