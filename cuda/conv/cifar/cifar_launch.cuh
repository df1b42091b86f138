/* cuda/conv/cifar/cifar_launch.cuh: launches of the CIFAR kernels, which overlap (programmatic dependent launch). */
#ifndef CK_CIFAR_LAUNCH_CUH
#define CK_CIFAR_LAUNCH_CUH

#include "cuda/common/common.cuh"
#include "cuda/common/launchers.h"

namespace cifar {

/* Launches overlap, as described at ck_launch. A second, small launch of an op allows the next kernel to start at
 * once, so that the next kernel loads its filters and other inputs meanwhile that it may read before its wait. */
template <typename Kernel, typename Args>
cudaError_t launch(Kernel kernel, const Args &a, int64_t blocks, int threads, int bytes, cudaStream_t stream) {
    constexpr int SHARING = 256; /* kernels with more threads need all registers of a multiprocessor */
    cudaError_t   error   = ck_allow_shared(kernel, (int64_t)bytes);
    if (error == cudaSuccess && threads <= SHARING) error = ck_most_shared(kernel);
    return error != cudaSuccess ? error
                                : ck_launch(kernel, (unsigned)blocks, (unsigned)threads, (size_t)bytes, stream, a);
}

/* Number of blocks without work in front of the `blocks` of a launch with at most one block a multiprocessor. The
 * multiprocessors that the launch before does not use would otherwise get two blocks each: the GPU places the first
 * blocks where most room is. */
inline int idle_blocks(unsigned blocks, int multiprocessors) {
    const int b = (int)blocks;
    return b < multiprocessors && 2 * b > multiprocessors ? multiprocessors - b : 0;
}

/* Bytes of shared memory with which a multiprocessor runs one block of a kernel and has room for a block of the next
 * launch; at least `bytes`. A launch that overlaps the one before it is placed where that one has ended or left room.
 * If only a part of the multiprocessors has room, each gets two blocks and the others none: 128 blocks ran on 65
 * multiprocessors of one H100. */
inline int alone_bytes(int bytes) {
    constexpr int RESERVED = 1024; /* bytes that the GPU adds to each block */
    int           device = 0, all = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return bytes;
    const int limit = ck_shared_limit(), alone = all / 2 - RESERVED + 128;
    return alone < bytes || alone > most || (limit && alone > limit) ? bytes : alone;
}

} // namespace cifar

#endif
