/* cuda/conv/pointwise/point_cluster.cuh: Hopper instructions of cuda/conv/pointwise/point_conv_block.cuh in addition to
 * cuda/common/hopper.cuh: barriers and loads of the two blocks of a cluster. */
#ifndef CK_POINT_CLUSTER_CUH
#define CK_POINT_CLUSTER_CUH

#include "cuda/common/hopper.cuh"

__device__ __forceinline__ uint32_t pc_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* Arrives at a barrier of another block; `bar` is from ck_other_block. */
__device__ __forceinline__ void pc_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* As ck_mbar_wait, for arrivals of the other block. */
__device__ __forceinline__ void pc_wait(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra OVER;\nbra AGAIN;\nOVER:\n}" ::"r"(bar),
        "r"(parity)
        : "memory");
}
/* As ck_tma_load, into the shared memory of both blocks at the same place; the barrier at the same place in each of
 * them counts the bytes. */
__device__ __forceinline__ void pc_load_to_both(uint32_t to, const CUtensorMap *map, uint32_t bar, int column,
                                                int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(column), "r"(row), "h"((uint16_t)3)
                 : "memory");
}

#endif
