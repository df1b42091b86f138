/* cuda/elementwise/fake_quant.cu: fake quantisation: quantised values in floating point, for activations (one scale)
 * and filters (one scale for each output channel). Limiter: memory. */
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
