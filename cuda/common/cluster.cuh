/* cuda/common/cluster.cuh: Hopper instructions for pairs of thread blocks (clusters of two) that load data together, in
 * addition to cuda/common/hopper.cuh. A pair's kernel begins with ck_cluster_sync after its barriers are initialised,
 * and ends with it, because the other block still sends until then. */
#ifndef CK_CLUSTER_CUH
#define CK_CLUSTER_CUH

#include "cuda/common/hopper.cuh"

__device__ __forceinline__ uint32_t ck_cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* Arrives at a barrier of this block, and at the same barrier of the other block of the pair. */
__device__ __forceinline__ void ck_mbar_arrive_both(uint32_t bar) {
    ck_mbar_arrive(bar);
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     ck_other_block(bar, 1 - (int)ck_cluster_rank()))
                 : "memory");
}
/* As ck_mbar_wait, for arrivals of both blocks. */
__device__ __forceinline__ void ck_mbar_wait_both(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra OVER;\nbra AGAIN;\nOVER:\n}" ::"r"(bar),
        "r"(parity)
        : "memory");
}
/* As ck_tma_load, into the shared memory of both blocks at the same place; the barrier at the same place in each of
 * them counts the bytes. */
__device__ __forceinline__ void ck_tma_load_both(uint32_t to, const CUtensorMap *map, uint32_t bar, int column,
                                                 int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(column), "r"(row), "h"((uint16_t)3)
                 : "memory");
}

/* ---- host side ---- */

/* Launches the kernel with clusters of `size` blocks (1: as ck_launch). */
template <typename... Parameters, typename... Args>
static cudaError_t ck_launch_clusters(int size, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                      size_t shared_bytes, cudaStream_t stream, const Args &...args) {
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t  config       = {};
    if (size == 1) return ck_launch(kernel, grid, block, shared_bytes, stream, args...);
    attribute[0].id               = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = (unsigned)size;
    attribute[0].val.clusterDim.y = 1;
    attribute[0].val.clusterDim.z = 1;
    config.gridDim                = grid;
    config.blockDim               = block;
    config.dynamicSmemBytes       = shared_bytes;
    config.stream                 = stream;
    config.attrs                  = attribute;
    config.numAttrs               = 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

#endif
