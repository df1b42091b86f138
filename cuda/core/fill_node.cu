/* cuda/core/fill_node.cu: adds to a graph a kernel that does the work of a memset node. Limiter: memory bandwidth. */
#include "cuda/common/common.cuh"

enum { THREADS = 256, VECTORS_A_THREAD = 4, BLOCKS_MAX = 1024 };

static __global__ void __launch_bounds__(THREADS)
    fill_kernel(uint4 *to, int64_t vectors, int64_t bytes, unsigned word) {
    const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, rest = vectors * CK_VECTOR_BYTES + first;
    for (int64_t i = first; i < vectors; i += (int64_t)gridDim.x * THREADS) to[i] = make_uint4(word, word, word, word);
    if (rest < bytes) ((unsigned char *)to)[rest] = (unsigned char)(word >> 8 * (rest % 4));
}

cudaError_t ck_add_fill_node(cudaGraph_t graph, const cudaGraphNode_t *before, size_t count,
                             const struct cudaMemsetParams *memset, cudaGraphNode_t *node) {
    *node = NULL;
    if (memset->height != 1 || (uintptr_t)memset->dst % CK_VECTOR_BYTES) return cudaSuccess;
    const unsigned value = memset->value, size = memset->elementSize;
    unsigned       word  = size == 1 ? (value & 255u) * 0x01010101u : size == 2 ? (value & 65535u) * 0x10001u : value;
    int64_t        bytes = (int64_t)(memset->width * size), vectors = bytes / CK_VECTOR_BYTES;
    uint4         *to     = (uint4 *)memset->dst;
    void          *args[] = {&to, &vectors, &bytes, &word};

    struct cudaKernelNodeParams kernel = {};
    kernel.func                        = (void *)fill_kernel;
    kernel.gridDim                     = dim3(ck_blocks(vectors, THREADS * VECTORS_A_THREAD, BLOCKS_MAX));
    kernel.blockDim                    = dim3(THREADS);
    kernel.kernelParams                = args;
    return cudaGraphAddKernelNode(node, graph, before, count, &kernel);
}
