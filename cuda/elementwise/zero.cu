/* cuda/elementwise/zero.cu: see cuda/elementwise/zero.h. */
#include "cuda/common/common.cuh"
#include "cuda/elementwise/zero.h"

namespace {

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS) zero(uint32_t *to, int words) {
    ck_begin_after_last();
    for (int i = (int)threadIdx.x; i < words; i += THREADS) to[i] = 0;
}

} // namespace

cudaError_t ck_zero(void *to, size_t bytes, cudaStream_t stream) {
    if (bytes % 4 || bytes > CK_ZERO_BYTES_MAX) return cudaErrorInvalidValue;
    return ck_launch(zero, 1, THREADS, 0, stream, static_cast<uint32_t *>(to), (int)(bytes / 4));
}
