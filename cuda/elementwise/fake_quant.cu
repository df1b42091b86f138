/* cuda/elementwise/fake_quant.cu: quantised values in floating point, for activations (one scale) and filters (one
 * scale for each output channel). Limiter: memory. */
#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256, BLOCKS = 4096 };

/* x / scale in f32, rounded to the nearest integer (ties to even), within [low, high]; NaN becomes 0. */
__device__ __forceinline__ float quantized(float x, float scale, float low, float high) {
    const float q = rintf(__fdiv_rn(x, scale));
    return q == q ? fminf(fmaxf(q, low), high) : 0.0f;
}

/* y may be x. Bytes an element: 2 * size. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    fake_quant(const T *x, const float *scale, T *y, int64_t elems, float low, float high) {
    constexpr int lanes   = ck_vector_elems<T>();
    const int64_t vectors = elems / lanes, step = (int64_t)gridDim.x * THREADS;
    const float   s = *scale;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        float f[lanes];
        ck_unpack<T>(ck_load(x, i), f);
#pragma unroll
        for (int k = 0; k < lanes; k++) f[k] = __fmul_rn(quantized(f[k], s, low, high), s);
        ck_store(y, i, ck_pack<T>(f));
    }
    const int64_t rest = vectors * lanes + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < elems)
        y[rest] = ck_round<T>(__fmul_rn(quantized(ck_float(x[rest]), s, low, high), s));
}

/* One block for each output channel. */
template <typename T>
__global__ void __launch_bounds__(THREADS) fake_quant_filter(const T *w, const float *scale, T *y, int64_t row) {
    const float s  = scale[blockIdx.x];
    const T    *wk = w + blockIdx.x * row;
    T          *yk = y + blockIdx.x * row;
    for (int64_t i = threadIdx.x; i < row; i += THREADS)
        yk[i] = ck_round<T>(__fmul_rn(quantized(ck_float(wk[i]), s, -127.0f, 127.0f), s));
}

/* Bytes an element: 3 * size. dx may be dy. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    fake_quant_grad(const T *dy, const T *x, const float *scale, T *dx, int64_t elems, float low, float high) {
    constexpr int lanes   = ck_vector_elems<T>();
    const int64_t vectors = elems / lanes, step = (int64_t)gridDim.x * THREADS;
    const float   s = *scale;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        float f[lanes], g[lanes];
        ck_unpack<T>(ck_load(x, i), f);
        ck_unpack<T>(ck_load(dy, i), g);
#pragma unroll
        for (int k = 0; k < lanes; k++) {
            const float q = rintf(__fdiv_rn(f[k], s));
            g[k]          = q >= low && q <= high ? g[k] : 0.0f;
        }
        ck_store(dx, i, ck_pack<T>(g));
    }
    const int64_t rest = vectors * lanes + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < elems) {
        const float q = rintf(__fdiv_rn(ck_float(x[rest]), s));
        dx[rest]      = ck_round<T>(q >= low && q <= high ? ck_float(dy[rest]) : 0.0f);
    }
}

/* The largest finite magnitude of a thread's values, over the whole block. */
__device__ __forceinline__ float block_largest(float largest) {
    __shared__ float of_warp[THREADS / 32];
    for (int k = 16; k; k /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, k));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int k = 0; k < THREADS / 32; k++) largest = fmaxf(largest, of_warp[k]);
    return largest;
}

__device__ __forceinline__ float larger(float largest, float x) {
    const float m = fabsf(x);
    return m > largest && m < INFINITY ? m : largest;
}

/* parts[block] = the largest magnitude that the block has seen. Bytes an element: size. */
template <typename T> __global__ void __launch_bounds__(THREADS) range_parts(const T *x, int64_t elems, float *parts) {
    constexpr int lanes   = ck_vector_elems<T>();
    const int64_t vectors = elems / lanes, step = (int64_t)gridDim.x * THREADS;
    float         largest = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        float f[lanes];
        ck_unpack<T>(ck_load(x, i), f);
#pragma unroll
        for (int k = 0; k < lanes; k++) largest = larger(largest, f[k]);
    }
    const int64_t rest = vectors * lanes + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < elems) largest = larger(largest, ck_float(x[rest]));
    largest = block_largest(largest);
    if (threadIdx.x == 0) parts[blockIdx.x] = largest;
}

/* One block. */
__global__ void __launch_bounds__(THREADS) range_update(const float *parts, int count, const float *old, float *scale,
                                                        const double *batches, float momentum, float levels) {
    float largest = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) largest = fmaxf(largest, parts[i]);
    largest       = block_largest(largest);
    const float d = fmaxf(momentum, __fdiv_rn(1.0f, 1.0f + (float)*batches)), m = __fdiv_rn(largest, levels);
    if (threadIdx.x == 0) *scale = m > 0 ? fmaf(d, m - *old, *old) : *old;
}

/* One block for each output channel. */
template <typename T> __global__ void __launch_bounds__(THREADS) filter_scale(const T *w, float *scale, int64_t row) {
    float largest = 0;
    for (int64_t i = threadIdx.x; i < row; i += THREADS) largest = larger(largest, ck_float(w[blockIdx.x * row + i]));
    largest = block_largest(largest);
    if (threadIdx.x == 0) scale[blockIdx.x] = fmaxf(__fdiv_rn(largest, 127.0f), 0x1p-126f);
}

template <typename T>
void fake_quant_grad_run(const void *dy, const void *x, const float *scale, void *dx, int64_t elems, bool is_signed,
                         cudaStream_t stream) {
    const unsigned blocks = ck_blocks(elems / ck_vector_elems<T>(), THREADS, BLOCKS);
    fake_quant_grad<T><<<blocks, THREADS, 0, stream>>>((const T *)dy, (const T *)x, scale, (T *)dx, elems,
                                                       is_signed ? -127.0f : 0.0f, is_signed ? 127.0f : 255.0f);
}

template <typename T> void range_parts_run(const struct ck_observe_range *a, unsigned blocks, cudaStream_t stream) {
    range_parts<T><<<blocks, THREADS, 0, stream>>>((const T *)a->x, a->elems, a->parts);
}

template <typename T>
void filter_scale_run(const void *w, float *scale, int64_t filters, int64_t row, cudaStream_t stream) {
    filter_scale<T><<<(unsigned)filters, THREADS, 0, stream>>>((const T *)w, scale, row);
}

template <typename T>
void fake_quant_run(const void *x, const float *scale, void *y, int64_t elems, bool is_signed, cudaStream_t stream) {
    const unsigned blocks = ck_blocks(elems / ck_vector_elems<T>(), THREADS, BLOCKS);
    fake_quant<T><<<blocks, THREADS, 0, stream>>>((const T *)x, scale, (T *)y, elems, is_signed ? -127.0f : 0.0f,
                                                  is_signed ? 127.0f : 255.0f);
}

template <typename T>
void fake_quant_filter_run(const void *w, const float *scale, void *y, int64_t filters, int64_t row,
                           cudaStream_t stream) {
    fake_quant_filter<T><<<(unsigned)filters, THREADS, 0, stream>>>((const T *)w, scale, (T *)y, row);
}

} // namespace

cudaError_t ck_fake_quant(enum ck_type type, const void *x, const float *scale, void *y, int64_t elems, bool is_signed,
                          cudaStream_t stream) {
    CK_BY_TYPE(type, fake_quant_run<T>(x, scale, y, elems, is_signed, stream));
    return cudaGetLastError();
}

cudaError_t ck_fake_quant_filter(enum ck_type type, const void *w, const float *scale, void *y, int64_t filters,
                                 int64_t row, cudaStream_t stream) {
    CK_BY_TYPE(type, fake_quant_filter_run<T>(w, scale, y, filters, row, stream));
    return cudaGetLastError();
}

cudaError_t ck_fake_quant_grad(enum ck_type type, const void *dy, const void *x, const float *scale, void *dx,
                               int64_t elems, bool is_signed, cudaStream_t stream) {
    CK_BY_TYPE(type, fake_quant_grad_run<T>(dy, x, scale, dx, elems, is_signed, stream));
    return cudaGetLastError();
}

cudaError_t ck_observe_range(const struct ck_observe_range *a, cudaStream_t stream) {
    const unsigned blocks = ck_blocks(a->elems / 8, THREADS, CK_RANGE_PARTS);
    CK_BY_TYPE(a->type, range_parts_run<T>(a, blocks, stream));
    range_update<<<1, THREADS, 0, stream>>>(a->parts, (int)blocks, a->old, a->scale, a->batches, a->momentum,
                                            a->is_signed ? 127.0f : 255.0f);
    return cudaGetLastError();
}

cudaError_t ck_filter_scale(enum ck_type type, const void *w, float *scale, int64_t filters, int64_t row,
                            cudaStream_t stream) {
    CK_BY_TYPE(type, filter_scale_run<T>(w, scale, filters, row, stream));
    return cudaGetLastError();
}
