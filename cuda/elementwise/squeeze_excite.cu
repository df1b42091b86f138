/* cuda/elementwise/squeeze_excite.cu: squeeze-and-excitation's scale for each channel and its gradients. Reference:
 * device/cpu/reference/ref_relu_grad.c.
 *
 * Limiter of all: memory. Elements read + written for each element of x: se_scale 1 + 1, se_scale_grad 2 + 1. Threads
 * of a warp process neighbouring channels, one element each: whole cache lines, but not the widest loads. */
#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256, ACROSS = 32, DOWN = THREADS / ACROSS, BLOCKS = 65535 };

/* No overflow for large numbers of either sign; NaN stays NaN. */
__device__ __forceinline__ float sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return x >= 0.0f ? 1.0f / (1.0f + e) : x < 0.0f ? e / (1.0f + e) : x;
}
__device__ __forceinline__ float sigmoid_slope(float x) {
    const float e = expf(-fabsf(x));
    return e / ((1.0f + e) * (1.0f + e));
}

/* A block processes ACROSS channels of an image, DOWN pixels at a time. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    se_scale(const T *x, const T *by, T *y, int64_t N, int64_t pixels, int64_t C) {
    const int64_t c = (int64_t)blockIdx.x * ACROSS + threadIdx.x % ACROSS, first = threadIdx.x / ACROSS;
    if (c >= C) return;
    for (int64_t n = blockIdx.y; n < N; n += gridDim.y) {
        const float s = sigmoid(ck_float(by[n * C + c]));
        for (int64_t m = (int64_t)blockIdx.z * DOWN + first; m < pixels; m += (int64_t)gridDim.z * DOWN) {
            const int64_t i = (n * pixels + m) * C + c;
            y[i]            = ck_round<T>(ck_float(x[i]) * s);
        }
    }
}

/* One block sums an image, in an order that depends on sizes only. dx may be dy. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    se_scale_grad(const T *dy, const T *x, const T *by, T *dx, T *dby, int64_t N, int64_t pixels, int64_t C) {
    __shared__ double part[DOWN][ACROSS];
    const int         lane = (int)threadIdx.x % ACROSS, row = (int)threadIdx.x / ACROSS;
    const int64_t     c = (int64_t)blockIdx.x * ACROSS + lane;
    for (int64_t n = blockIdx.y; n < N; n += gridDim.y) {
        const float at = c < C ? ck_float(by[n * C + c]) : 0.0f, s = sigmoid(at);
        double      sum = 0;
        for (int64_t m = row; c < C && m < pixels; m += DOWN) {
            const int64_t i = (n * pixels + m) * C + c;
            const float   g = ck_float(dy[i]);
            sum += (double)(g * ck_float(x[i]));
            dx[i] = ck_round<T>(g * s);
        }
        part[row][lane] = sum;
        __syncthreads();
        if (row == 0 && c < C) {
            for (int r = 1; r < DOWN; r++) sum += part[r][lane];
            dby[n * C + c] = ck_round<T>((float)((double)sigmoid_slope(at) * sum));
        }
        __syncthreads();
    }
}

template <typename T> void se_scale_run(const struct ck_se_scale *a, cudaStream_t stream) {
    const dim3 grid(ck_blocks(a->C, ACROSS, BLOCKS), ck_blocks(a->N, 1, BLOCKS), ck_blocks(a->pixels, 8 * DOWN, 64));
    se_scale<T><<<grid, THREADS, 0, stream>>>((const T *)a->x, (const T *)a->logit, (T *)a->y, a->N, a->pixels, a->C);
}

template <typename T> void se_scale_grad_run(const struct ck_se_scale *a, cudaStream_t stream) {
    const dim3 grid(ck_blocks(a->C, ACROSS, BLOCKS), ck_blocks(a->N, 1, BLOCKS));
    se_scale_grad<T><<<grid, THREADS, 0, stream>>>((const T *)a->dy, (const T *)a->x, (const T *)a->logit, (T *)a->dx,
                                                   (T *)a->dlogit, a->N, a->pixels, a->C);
}

} // namespace

cudaError_t ck_se_scale(const struct ck_se_scale *a, cudaStream_t stream) {
    CK_BY_TYPE(a->type, se_scale_run<T>(a, stream));
    return cudaGetLastError();
}

cudaError_t ck_se_scale_grad(const struct ck_se_scale *a, cudaStream_t stream) {
    CK_BY_TYPE(a->type, se_scale_grad_run<T>(a, stream));
    return cudaGetLastError();
}
