/* cuda/conv/cudnn/sum_slices.cu: sums parts, one for each slice of the batch. Reference:
 * tests/gpu/test_cudnn_batches.c. */
#include "cuda/common/common.cuh"

enum { SLICES_THREADS = 256 };

/* Reads 4 bytes for each element and slice, writes 4 for each element: some KiB in all. Limiter: the launch. The sum is
 * double, because its terms are sums over billions of elements. */
static __global__ void __launch_bounds__(SLICES_THREADS)
    sum_slices(const float *part, float *sum, int64_t slices, int64_t stride, int64_t elems) {
    const int64_t i = (int64_t)blockIdx.x * SLICES_THREADS + threadIdx.x;
    if (i >= elems) return;
    double s = 0;
    for (int64_t p = 0; p < slices; p++) s += (double)part[p * stride + i];
    sum[i] = (float)s;
}

cudaError_t ck_sum_slices(const float *part, float *sum, int64_t slices, int64_t stride, int64_t elems,
                          cudaStream_t stream) {
    if (elems <= 0) return cudaSuccess;
    const unsigned blocks = (unsigned)((elems + SLICES_THREADS - 1) / SLICES_THREADS);
    sum_slices<<<blocks, SLICES_THREADS, 0, stream>>>(part, sum, slices, stride, elems);
    return cudaGetLastError();
}
