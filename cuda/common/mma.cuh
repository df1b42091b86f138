/* cuda/common/mma.cuh: matrix products of a warp on the tensor cores of all GPUs from 8.0 on (mma.sync, ldmatrix).
 *
 * A tile in shared memory has rows of 16-bit elements, a multiple of 128 bytes each; 16-byte chunk c of row r is stored
 * at chunk c ^ (r % 8), so that eight rows of one chunk lie in different banks.
 *
 * The product is d[16][8] += a[16][16] b[16][8]. Element d[i] of lane l: row l/4 + i/2*8, column l%4*2 + i%2. */
#ifndef CK_MMA_CUH
#define CK_MMA_CUH

#include "cuda/common/shared.cuh"

__device__ __forceinline__ uint32_t ck_chunk_at(uint32_t tile, int row_bytes, int row, int chunk) {
    return tile + (uint32_t)(row * row_bytes + ((chunk ^ (row & 7)) << 4));
}

/* a from a tile of rows m, columns k. */
__device__ __forceinline__ void ck_mma_a(uint32_t (&a)[4], uint32_t tile, int row_bytes, int m, int k) {
    const int lane = (int)threadIdx.x % 32;
    ck_ldmatrix(a, ck_chunk_at(tile, row_bytes, m + lane % 16, k / 8 + lane / 16));
}
/* a from a tile of rows k, columns m. */
__device__ __forceinline__ void ck_mma_a_transposed(uint32_t (&a)[4], uint32_t tile, int row_bytes, int m, int k) {
    const int lane = (int)threadIdx.x % 32;
    ck_ldmatrix_trans(a, ck_chunk_at(tile, row_bytes, k + lane / 16 * 8 + lane % 8, m / 8 + lane / 8 % 2));
}
/* Two b from a tile of rows n, columns k: b[0], b[1] for columns n to n+7, b[2], b[3] for n+8 to n+15. */
__device__ __forceinline__ void ck_mma_b(uint32_t (&b)[4], uint32_t tile, int row_bytes, int n, int k) {
    const int lane = (int)threadIdx.x % 32;
    ck_ldmatrix(b, ck_chunk_at(tile, row_bytes, n + lane / 16 * 8 + lane % 8, k / 8 + lane / 8 % 2));
}
/* The same from a tile of rows k, columns n. */
__device__ __forceinline__ void ck_mma_b_transposed(uint32_t (&b)[4], uint32_t tile, int row_bytes, int n, int k) {
    const int lane = (int)threadIdx.x % 32;
    ck_ldmatrix_trans(b, ck_chunk_at(tile, row_bytes, k + lane / 8 % 2 * 8 + lane % 8, n / 8 + lane / 16));
}

/* Barriers 1 to 15 of a block, for a part of its warps; barrier 0 is that of __syncthreads. `threads` is the number of
 * threads that wait or arrive. */
__device__ __forceinline__ void ck_group_wait(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void ck_group_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

template <typename T>
__device__ __forceinline__ void ck_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void ck_mma<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void ck_mma<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
