/* point_grad.cuh: Hopper's instructions as functions, for point_grad_sm90a.cu: barriers in shared memory, the copy
 * engine, matrix products of warpgroups. Needs sm_90a. */
#ifndef CK_POINT_GRAD_CUH
#define CK_POINT_GRAD_CUH

#include "common.cuh"

#include <cuda.h>

/* ---- barriers in shared memory; addresses are those of the shared window
 * ------------------------------------------------ */

__device__ __forceinline__ uint32_t pg_shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void pg_barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void pg_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives and announces bytes that the copy engine will bring. */
__device__ __forceinline__ void pg_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* Is the phase with this parity over? Does not wait. */
__device__ __forceinline__ bool pg_test(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}
__device__ __forceinline__ void pg_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* Of the threads of one warpgroup. */
__device__ __forceinline__ void pg_group_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* What this thread stored becomes visible to the copy engine and the tensor cores (after a barrier). */
__device__ __forceinline__ void pg_fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- the copy engine ------------------------------------------------------------------------------------------------
 */

__device__ __forceinline__ void pg_load(uint32_t to, const CUtensorMap *map, int channel, int pixel, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(map), "r"(channel), "r"(pixel), "r"(barrier)
        : "memory");
}
__device__ __forceinline__ void pg_store(const CUtensorMap *map, int channel, int pixel, uint32_t from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map),
                 "r"(channel), "r"(pixel), "r"(from)
                 : "memory");
}
/* The engine has read what this thread's stores send. */
__device__ __forceinline__ void pg_store_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void pg_store_done() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- shared memory by address
 * ----------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint4 pg_get16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
__device__ __forceinline__ void pg_put16(uint32_t at, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ uint32_t pg_get4(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ float2 pg_get8(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void pg_put4(uint32_t at, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ __forceinline__ void pg_floats(uint4 v, float *to) {
    to[0] = __uint_as_float(v.x);
    to[1] = __uint_as_float(v.y);
    to[2] = __uint_as_float(v.z);
    to[3] = __uint_as_float(v.w);
}
/* Memory through L1, where the compiler would else keep the value in registers. */
__device__ __forceinline__ uint4 pg_fetch16(const float *from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/* ---- two elements of 16 bits
 * ------------------------------------------------------------------------------------------ */

/* An instruction an element, which the general ones of common.cuh are not for f16. */
template <typename T> __device__ __forceinline__ float2 pg_unpack(uint32_t word) {
    if constexpr (__is_same(T, __half)) {
        float2 f;
        asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
            : "=f"(f.x), "=f"(f.y)
            : "r"(word));
        return f;
    } else
        return ck_unpack_word<T>(word);
}
template <typename T> __device__ __forceinline__ uint32_t pg_pack(float low, float high) {
    uint32_t word;
    if constexpr (__is_same(T, __half))
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* ---- the two blocks of a cluster
 * -------------------------------------------------------------------------------------- */

__device__ __forceinline__ void pg_cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* The other block's address of what is at `address` here. */
__device__ __forceinline__ uint32_t pg_peer(uint32_t address, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ void pg_arrive_peer(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* As pg_wait, for what the other block did. */
__device__ __forceinline__ void pg_wait_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* 16 bytes into the other block's memory; its barrier counts them. */
__device__ __forceinline__ void pg_send16(uint32_t to, float4 v, uint32_t barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
        : "memory");
}

/* ---- matrix products
 * ------------------------------------------------------------------------------------------------- */

/* A chunk is 64 rows of 64 elements of 16 bits, 128 bytes a row, as the copy engine lays it with the 128-byte swizzle:
 * vector v (16 bytes) of row r stands at r*128 + ((v ^ r%8) * 16). It starts at a multiple of 1024 bytes.
 *
 * The descriptor serves both readings, rows as the outer dimension (the sum runs along the row; +32 bytes a step of 16)
 * and rows as the inner one (the sum runs over rows; +2048 bytes a step): groups of 8 rows are 1024 bytes apart in
 * both. `wide`: bytes to the next 64 columns, where an operand with rows as the inner dimension has 128. */
__device__ __forceinline__ uint64_t pg_operand(uint32_t at, uint32_t wide = 16) {
    return ((uint64_t)1 << 62) | ((uint64_t)(1024 >> 4) << 32) | (uint64_t)((wide & 0x3ffffu) >> 4) << 16 |
           (uint64_t)((at & 0x3ffffu) >> 4);
}
__device__ __forceinline__ void pg_mma_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void pg_mma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void pg_mma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* d[64][64] = a[64][16] * b[16][64] (+ d when `add`). B's rows are the inner dimension; A's too when ROWS_INNER.
 * Element d[i] of lane l of warp q: row 16q + l/4 + 8*(i/2%2), column 8*(i/4) + 2*(l%4) + i%2. */
#define PG_MMA(kind)                                                                                                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                          \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind                                           \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "   \
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, %35, 1;\n}"               \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),     \
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),            \
                   "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),          \
                   "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),          \
                   "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                                               \
                 : "l"(a), "l"(b), "r"((int)add), "n"(ROWS_INNER ? 1 : 0))
template <typename T, bool ROWS_INNER>
__device__ __forceinline__ void pg_mma(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    if constexpr (__is_same(T, __half))
        PG_MMA("f16");
    else
        PG_MMA("bf16");
}

/* d[64][128] += a[64][16] * b[16][128], rows the inner dimension of both; d[32..63] are columns 64..127. */
#define PG_MMA_WIDE(kind)                                                                                              \
    asm volatile(                                                                                                      \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." kind "." kind                                                   \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                     \
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                            \
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                            \
        " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, 1, 1;"   \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),  \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),       \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),      \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),      \
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),      \
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),      \
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),      \
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                    \
        : "l"(a), "l"(b))
template <typename T> __device__ __forceinline__ void pg_mma_wide(float (&d)[64], uint64_t a, uint64_t b) {
    if constexpr (__is_same(T, __half))
        PG_MMA_WIDE("f16");
    else
        PG_MMA_WIDE("bf16");
}

#endif
