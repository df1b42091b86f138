/* cuda/conv/pointwise/point_grad.cuh: Hopper instructions of cuda/conv/pointwise/point_grad_sm90a.cu in addition to
 * cuda/common/hopper.cuh: a test of a barrier without waiting, access between the two blocks of a cluster, matrix
 * products. */
#ifndef CK_POINT_GRAD_CUH
#define CK_POINT_GRAD_CUH

#include "cuda/common/hopper.cuh"

namespace {

/* Returns whether the phase with this parity is complete. Does not wait. */
__device__ __forceinline__ bool is_complete(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

__device__ __forceinline__ void put_floats(uint4 v, float *to) {
    to[0] = __uint_as_float(v.x);
    to[1] = __uint_as_float(v.y);
    to[2] = __uint_as_float(v.z);
    to[3] = __uint_as_float(v.w);
}
/* A load through L1, where the compiler would otherwise keep the value in registers. */
__device__ __forceinline__ uint4 fetch16(const float *from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/* ---- the two blocks of a cluster ---- */

__device__ __forceinline__ void arrive_peer(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* As ck_mbar_wait, for writes of the other block. */
__device__ __forceinline__ void wait_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* Stores 16 bytes to the other block's shared memory; that block's barrier counts them. */
__device__ __forceinline__ void send16(uint32_t to, float4 v, uint32_t barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
        : "memory");
}

/* ---- matrix products ---- */

/* A chunk is 64 rows of 64 16-bit elements, 128 bytes a row, in the tile layout of cuda/common/hopper.cuh; it starts at
 * a multiple of 1024 bytes. ck_operand describes both uses: rows as the outer dimension (the sum runs along the row;
 * +32 bytes for a step of 16) and rows as the inner dimension (the sum runs over rows; +2048 bytes for a step). Groups
 * of 8 rows are 1024 bytes apart in both. */

/* d[64][64] = a[64][16] * b[16][64] (+ d when `add`). The rows of B are the inner dimension; with ROWS_INNER those of
 * A, too. Element d[i] of lane l of warp q: row 16q + l/4 + 8*(i/2%2), column 8*(i/4) + 2*(l%4) + i%2. */
template <typename T, bool ROWS_INNER>
__device__ __forceinline__ void multiply_64(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    ck_wgmma<T, 64>::template both<1, ROWS_INNER>(d, a, b, add);
}
/* d[64][128] += a[64][16] * b[16][128]; rows are the inner dimension of both. d[32..63] are columns 64..127. */
template <typename T> __device__ __forceinline__ void multiply_wide(float (&d)[64], uint64_t a, uint64_t b) {
    ck_wgmma<T, 128>::template both<1, 1>(d, a, b, 1);
}

} // namespace

#endif
