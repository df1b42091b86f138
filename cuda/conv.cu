/* conv.cu: sums of gradients in f32, and own convolutions for what cuDNN does not take. The truth is ref_conv.c. */
#include "common.cuh"

namespace {

enum { THREADS = 256, FLIGHT = 4 /* vectors that a thread has under way */ };

/* ---- convert_add: 4 or 2 bytes read and 4 written an element, 4 more read with ADD; limited by memory ---------------- */

/* Four elements of x as float. */
template <typename T> __device__ __forceinline__ void load4(const T *x, int64_t i, float *f) {
    if constexpr (sizeof(T) == 4)
        ck_unpack<float>(ck_load(x, i), f);
    else {
        const uint2  v = reinterpret_cast<const uint2 *>(x)[i];
        const float2 a = ck_unpack_word<T>(v.x), b = ck_unpack_word<T>(v.y);
        f[0] = a.x, f[1] = a.y, f[2] = b.x, f[3] = b.y;
    }
}

/* A thread takes FLIGHT vectors of four elements: all of its loads are under way before the first store. x may be y. */
template <typename T, bool ADD> __global__ void __launch_bounds__(THREADS) convert_add(const T *x, float *y, int64_t n) {
    const int64_t vectors = n / 4, first = (int64_t)blockIdx.x * (THREADS * FLIGHT) + threadIdx.x;
    float         f[FLIGHT][4] = {}, old[FLIGHT][4] = {};
#pragma unroll
    for (int j = 0; j < FLIGHT; j++)
        if (first + j * THREADS < vectors) {
            load4(x, first + j * THREADS, f[j]);
            if constexpr (ADD) load4(y, first + j * THREADS, old[j]);
        }
#pragma unroll
    for (int j = 0; j < FLIGHT; j++) {
        if constexpr (ADD)
            for (int k = 0; k < 4; k++) f[j][k] += old[j][k];
        if (first + j * THREADS < vectors) ck_store(y, first + j * THREADS, ck_pack<float>(f[j]));
    }
    const int64_t rest = vectors * 4 + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < n) y[rest] = ADD ? ck_float(x[rest]) + y[rest] : ck_float(x[rest]);
}

template <typename T> cudaError_t convert_add_run(const void *x, float *y, int64_t n, bool add, cudaStream_t stream) {
    const unsigned blocks = ck_blocks(n / 4, THREADS * FLIGHT, INT32_MAX);
    if (add)
        convert_add<T, true><<<blocks, THREADS, 0, stream>>>((const T *)x, y, n);
    else
        convert_add<T, false><<<blocks, THREADS, 0, stream>>>((const T *)x, y, n);
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t ck_convert_add(enum ck_type type, const void *x, float *y, int64_t n, bool add, cudaStream_t stream) {
    CK_BY_TYPE(type, return convert_add_run<T>(x, y, n, add, stream));
    return cudaErrorInvalidValue;
}
