/* cuda/elementwise/drop.cu: dropout and stochastic depth, with the random numbers of core/rng.c. Reference:
 * device/cpu/reference/ref_pointwise.c.
 *
 * Limiter of stochastic depth: memory, 1 element written for each element of x, and 1 read if the image is kept.
 * Dropout has few elements. */
#include "cuda/common/common.cuh"

#include <curand_philox4x32_x.h>

namespace {

enum { THREADS = 256, BLOCKS = 65535 };

/* Word `index` of the stream (seed, purpose, step, op): cr_rng_word. */
__device__ __forceinline__ bool keeps(const struct ck_drop &a, const struct ck_step &step, int64_t index) {
    const uint4 counter =
        make_uint4((unsigned)(index / 4), a.index, (unsigned)step.step, (unsigned)((uint64_t)step.step >> 32));
    const uint2 key  = make_uint2((unsigned)step.seed, (unsigned)(step.seed >> 32) ^ a.purpose << 24);
    const uint4 word = curand_Philox4x32_10(counter, key);
    const int   lane = (int)(index % 4);
    return (lane == 0 ? word.x : lane == 1 ? word.y : lane == 2 ? word.z : word.w) >= a.threshold;
}

template <typename T> __global__ void __launch_bounds__(THREADS) drop_elements(struct ck_drop a) {
    const struct ck_step step  = *a.step;
    const int64_t        total = a.N * a.elems;
    const T             *x     = (const T *)a.x;
    T                   *y     = (T *)a.y;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < total; i += (int64_t)gridDim.x * THREADS)
        y[i] = ck_round<T>(keeps(a, step, step.first_image * a.elems + i) ? ck_float(x[i]) * a.scale : 0.0f);
}

/* VECTORS: images begin at multiples of 16 bytes and are whole vectors. */
template <typename T, bool VECTORS> __global__ void __launch_bounds__(THREADS) drop_images(struct ck_drop a) {
    constexpr int        lanes = VECTORS ? ck_vector_elems<T>() : 1;
    const struct ck_step step  = *a.step;
    for (int64_t n = blockIdx.y; n < a.N; n += gridDim.y) {
        const bool    keep = keeps(a, step, step.first_image + n);
        const T      *x    = (const T *)a.x + n * a.elems;
        T            *y    = (T *)a.y + n * a.elems;
        const int64_t hop  = (int64_t)gridDim.x * THREADS;
        for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.elems / lanes; i += hop) {
            if (!VECTORS) {
                y[i] = ck_round<T>(keep ? ck_float(x[i]) * a.scale : 0.0f);
                continue;
            }
            float v[ck_vector_elems<T>()] = {};
            if (keep) ck_unpack<T>(ck_load(x, i), v);
#pragma unroll
            for (int j = 0; j < ck_vector_elems<T>(); j++) v[j] *= a.scale;
            ck_store(y, i, ck_pack<T>(v));
        }
    }
}

template <typename T> void drop_run(const struct ck_drop *a, cudaStream_t stream) {
    if (!a->images) {
        drop_elements<T><<<ck_blocks(a->N * a->elems, THREADS, BLOCKS), THREADS, 0, stream>>>(*a);
        return;
    }
    const bool vectors = a->elems % ck_vector_elems<T>() == 0;
    const dim3 grid(ck_blocks(a->elems, 4 * THREADS * ck_vector_elems<T>(), 256), ck_blocks(a->N, 1, BLOCKS));
    if (vectors)
        drop_images<T, true><<<grid, THREADS, 0, stream>>>(*a);
    else
        drop_images<T, false><<<grid, THREADS, 0, stream>>>(*a);
}

} // namespace

cudaError_t ck_drop(const struct ck_drop *a, cudaStream_t stream) {
    CK_BY_TYPE(a->type, drop_run<T>(a, stream));
    return cudaGetLastError();
}
