/* cuda/common/carveout.cuh: how a multiprocessor divides its memory into L1 cache and shared memory. */
#ifndef CK_CARVEOUT_CUH
#define CK_CARVEOUT_CUH

#include <cuda_runtime.h>

/* A multiprocessor can change the division only while it runs no block. For a kernel of which one block fits, the
 * driver sets aside what one block needs. A block of the next launch then waits until that block has ended, although
 * there would be room for both. It does not wait if all kernels of a sequence of small launches request the most shared
 * memory. For a large launch more L1 cache is better: a load in flight needs a place there. Code for GPUs before
 * compute capability 9.0 has no overlapping launches, and keeps the driver's choice. */
template <typename Kernel> static cudaError_t ck_most_shared(Kernel kernel) {
    cudaFuncAttributes binary;
    const cudaError_t  error = cudaFuncGetAttributes(&binary, kernel);
    if (error != cudaSuccess || binary.ptxVersion < 90) return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

#endif
