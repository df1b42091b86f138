/* cuda/elementwise/blurpool.cu: anti-aliased subsampling and its gradient. Reference:
 * device/cpu/reference/ref_relu_grad.c. Bytes moved, in tensors of the input's size: 1 + 1/4 each way; windows share
 * reads in the cache. Threads of a warp process neighbouring channels, one element each: whole lines of memory. */
#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256, BLOCKS = 65535 };

/* The index that tap 0, 1 or 2 of output p reads on an axis of `size` pixels: the border is reflected. */
__device__ __forceinline__ int64_t tap_index(int64_t p, int tap, int64_t size) {
    const int64_t at = 2 * p + tap - 1, inside = at < 0 ? -at : at >= size ? 2 * size - 2 - at : at;
    return size == 1 ? 0 : inside;
}

__device__ __forceinline__ float tap_weight(int tap) {
    return tap == 1 ? 0.5f : 0.25f;
}

/* The sum of the weights with which output p reads pixel h. */
__device__ __forceinline__ float weight_of(int64_t p, int64_t h, int64_t size) {
    float sum = 0;
    for (int tap = 0; tap < 3; tap++)
        if (tap_index(p, tap, size) == h) sum += tap_weight(tap);
    return sum;
}

/* y is [N,P,Q,C] with P, Q half of H, W, rounded up; a thread computes an element. */
template <typename T>
__global__ void __launch_bounds__(THREADS) blurpool(const T *x, T *y, int64_t elems, int64_t H, int64_t W, int64_t C) {
    const int64_t P = (H + 1) / 2, Q = (W + 1) / 2;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elems; i += (int64_t)gridDim.x * THREADS) {
        const int64_t c = i % C, q = i / C % Q, p = i / C / Q % P, n = i / C / Q / P;
        float         sum = 0;
        for (int r = 0; r < 3; r++) {
            const int64_t row = (n * H + tap_index(p, r, H)) * W;
            for (int s = 0; s < 3; s++)
                sum = fmaf(tap_weight(r) * tap_weight(s), ck_float(x[(row + tap_index(q, s, W)) * C + c]), sum);
        }
        y[i] = ck_round<T>(sum);
    }
}

/* Of the outputs, only h/2 and the next one read pixel h. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    blurpool_grad(const T *dy, T *dx, int64_t elems, int64_t H, int64_t W, int64_t C) {
    const int64_t P = (H + 1) / 2, Q = (W + 1) / 2;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elems; i += (int64_t)gridDim.x * THREADS) {
        const int64_t c = i % C, w = i / C % W, h = i / C / W % H, n = i / C / W / H;
        float         sum = 0;
        for (int64_t p = h / 2; p < P && p <= h / 2 + 1; p++)
            for (int64_t q = w / 2; q < Q && q <= w / 2 + 1; q++) {
                const float weight = weight_of(p, h, H) * weight_of(q, w, W);
                if (weight > 0) sum = fmaf(weight, ck_float(dy[((n * P + p) * Q + q) * C + c]), sum);
            }
        dx[i] = ck_round<T>(sum);
    }
}

} // namespace

cudaError_t ck_blurpool(enum ck_type type, const void *x, void *y, int64_t N, int64_t H, int64_t W, int64_t C,
                        cudaStream_t stream) {
    const int64_t  elems  = N * ((H + 1) / 2) * ((W + 1) / 2) * C;
    const unsigned blocks = ck_blocks(elems, THREADS, BLOCKS);
    CK_BY_TYPE(type, (blurpool<T><<<blocks, THREADS, 0, stream>>>((const T *)x, (T *)y, elems, H, W, C)));
    return cudaGetLastError();
}

cudaError_t ck_blurpool_grad(enum ck_type type, const void *dy, void *dx, int64_t N, int64_t H, int64_t W, int64_t C,
                             cudaStream_t stream) {
    const int64_t  elems  = N * H * W * C;
    const unsigned blocks = ck_blocks(elems, THREADS, BLOCKS);
    CK_BY_TYPE(type, (blurpool_grad<T><<<blocks, THREADS, 0, stream>>>((const T *)dy, (T *)dx, elems, H, W, C)));
    return cudaGetLastError();
}
