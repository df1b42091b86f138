/* cuda/sparse/direct/gather.cu: gathers the nonzero weights of a sparse filter in the order of a plan. */
#include "cuda/common/common.cuh"
#include "cuda/sparse/sparse_launchers.h"

namespace {

enum { THREADS = 256 };

template <typename T>
__global__ void __launch_bounds__(THREADS) gather(const T *w, const uint32_t *from, int64_t count, float *values) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const uint32_t at = from[i];
    values[i]         = at == UINT32_MAX ? 0.0f : ck_float(w[at]);
}

} // namespace

cudaError_t ck_sparse_gather(const void *w, enum ck_type type, const uint32_t *from, int64_t count, float *values,
                             cudaStream_t stream) {
    if (!count) return cudaSuccess;
    const unsigned blocks = (unsigned)((count + THREADS - 1) / THREADS);
    CK_BY_TYPE(type, (gather<T><<<blocks, THREADS, 0, stream>>>((const T *)w, from, count, values)));
    return cudaGetLastError();
}
