/* cuda/train/loss.cu: softmax cross entropy with label smoothing, its metrics and its gradient. Reference:
 * device/cpu/reference/ref_loss.c.
 *
 * A group of threads processes a sample: a warp for few classes, a block for many. The group reads its row of logits
 * two or three times. A row is small (4 KB for 1000 classes), so it is read from memory once and then from cache.
 * Limiter: latency, a few microseconds; above a million logits memory: 2 or 4 bytes a logit for the loss, twice as much
 * for the gradient. */
#include "cuda/train/loss_rows.cuh"

/* ---- loss ---- */

template <typename T, int GROUP>
static __global__ void __launch_bounds__(THREADS) loss_kernel(struct ck_loss a, struct sample *result) {
    const int64_t n    = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const int     lane = (int)threadIdx.x % GROUP;
    ck_begin_after_last();
    if (n >= a.samples) return; /* a whole warp returns; in a launch with one block a sample, n is always below */
    const int     label = a.labels[n];
    struct sample s     = {0.0f, 0u};
    if (is_class(label, a.classes))
        s = sample_loss<T, GROUP>((const T *)a.logits + n * a.classes, a.classes, label, target_of(a, n), a.smoothing,
                                  lane);
    if (lane == 0) result[n] = s;
}

static __global__ void __launch_bounds__(THREADS)
    loss_sum_kernel(const struct sample *result, int64_t samples, const float *before, float *metrics) {
    ck_begin_after_last();
    loss_sum(result, samples, before, metrics);
}

/* ---- gradient ---- */

template <typename T, int GROUP>
static __global__ void __launch_bounds__(THREADS)
    loss_grad_kernel(struct ck_loss a, float weight, const double *state, T *dx) {
    const int64_t n    = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const int     lane = (int)threadIdx.x % GROUP;
    ck_begin_after_last();
    const double valid  = count_valid(a.labels, a.samples, a.classes);
    const float  factor = (float)(state[CK_STATE_LOSS_SCALE] * (double)weight / (valid < 1.0 ? 1.0 : valid));
    if (n >= a.samples) return; /* a whole warp returns; in a launch with one block a sample, n is always below */
    const int label = a.labels[n];
    T        *out   = dx + n * a.classes;
    if (is_class(label, a.classes))
        grad_row<T, GROUP>((const T *)a.logits + n * a.classes, out, a.classes, label, target_of(a, n), a.smoothing,
                           factor, lane);
    else
        for (int64_t k = lane; k < a.classes; k += GROUP) out[k] = ck_round<T>(0.0f);
}

/* ---- launchers ---- */

static unsigned blocks_of(int64_t samples, int group) {
    return ck_blocks(samples, THREADS / group, INT32_MAX);
}

size_t ck_loss_workspace(int64_t samples) {
    return (size_t)samples * sizeof(struct sample);
}

template <typename T>
static cudaError_t launch_loss(const struct ck_loss *a, struct sample *result, cudaStream_t stream) {
    if (a->classes <= WARP_CLASSES)
        return ck_launch(loss_kernel<T, CK_WARP>, blocks_of(a->samples, CK_WARP), THREADS, 0, stream, *a, result);
    return ck_launch(loss_kernel<T, THREADS>, blocks_of(a->samples, THREADS), THREADS, 0, stream, *a, result);
}

cudaError_t ck_loss(const struct ck_loss *a, const float *before, float *metrics, void *workspace,
                    cudaStream_t stream) {
    struct sample *result = (struct sample *)workspace;
    cudaError_t    error  = cudaErrorInvalidValue;
    CK_BY_TYPE(a->type, error = launch_loss<T>(a, result, stream));
    return error != cudaSuccess
               ? error
               : ck_launch(loss_sum_kernel, 1, THREADS, 0, stream, result, a->samples, before, metrics);
}

template <typename T>
static cudaError_t launch_loss_grad(const struct ck_loss *a, float weight, const double *state, T *dx,
                                    cudaStream_t stream) {
    if (a->classes <= WARP_CLASSES)
        return ck_launch(loss_grad_kernel<T, CK_WARP>, blocks_of(a->samples, CK_WARP), THREADS, 0, stream, *a, weight,
                         state, dx);
    return ck_launch(loss_grad_kernel<T, THREADS>, blocks_of(a->samples, THREADS), THREADS, 0, stream, *a, weight,
                     state, dx);
}

cudaError_t ck_loss_grad(const struct ck_loss *a, float weight, const double *state, void *dx, cudaStream_t stream) {
    CK_BY_TYPE(a->type, return launch_loss_grad<T>(a, weight, state, (T *)dx, stream));
    return cudaErrorInvalidValue;
}
