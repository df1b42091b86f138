/* cuda/common/shared.cuh: instructions on shared memory, one small function for each: loads, stores, asynchronous
 * copies into shared memory, fragments for the tensor cores. For all GPUs from Ampere on; cuda/common/hopper.cuh has
 * the instructions of Hopper.
 *
 * A shared address is the 32-bit address inside the block's shared memory (ck_shared). */
#ifndef CK_SHARED_CUH
#define CK_SHARED_CUH

#include "cuda/common/common.cuh"

__device__ __forceinline__ uint32_t ck_shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- loads and stores; the number in the name is the size in bytes ---- */

__device__ __forceinline__ uint32_t ck_get4(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ float2 ck_get8(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint4 ck_get16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
__device__ __forceinline__ void ck_put4(uint32_t at, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void ck_put4(uint32_t at, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ void ck_put8(uint32_t at, uint32_t low, uint32_t high) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(low), "r"(high) : "memory");
}
__device__ __forceinline__ void ck_put16(uint32_t at, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* ---- asynchronous copies of 16 bytes, without registers ---- */

/* Copies 16 bytes. With `real` false, writes zeros and does not read `from`. */
__device__ __forceinline__ void ck_copy16(uint32_t to, const void *from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
/* The same through the L1 cache, for data that is read again. */
__device__ __forceinline__ void ck_copy16_cached(uint32_t to, const void *from, bool real) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
/* Ends a group of copies. */
__device__ __forceinline__ void ck_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most N groups of this thread are incomplete. */
template <int N> __device__ __forceinline__ void ck_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* Waits until all copies of this thread are complete. */
__device__ __forceinline__ void ck_copy_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- fragments: four 8x8 matrices of 16-bit elements; lane i gives the address of row i%8 of matrix i/8 ---- */

__device__ __forceinline__ void ck_ldmatrix(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
/* The matrices are transposed. */
__device__ __forceinline__ void ck_ldmatrix_trans(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* ---- pairs of 16-bit elements ---- */

/* As ck_unpack_word, with one instruction for each f16 element. */
template <typename T> __device__ __forceinline__ float2 ck_pair(uint32_t word) {
    return ck_unpack_word<T>(word);
}
template <> __device__ __forceinline__ float2 ck_pair<__half>(uint32_t word) {
    float2 v;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
        : "=f"(v.x), "=f"(v.y)
        : "r"(word));
    return v;
}
/* Rounds two floats; the lower half is the first. */
template <typename T> __device__ __forceinline__ uint32_t ck_pack_pair(float low, float high) {
    uint32_t word;
    if constexpr (__is_same(T, __half))
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
/* max(x, least); NaN stays NaN. */
__device__ __forceinline__ float ck_at_least(float x, float least) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(least));
    return x;
}
/* ReLU of two floats (NaN stays NaN), rounded; the lower half is the first. */
template <typename T> __device__ __forceinline__ uint32_t ck_pack_relu(float low, float high);
template <> __device__ __forceinline__ uint32_t           ck_pack_relu<__half>(float low, float high) {
              uint32_t word;
              asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
              return word;
}
template <> __device__ __forceinline__ uint32_t ck_pack_relu<__nv_bfloat16>(float low, float high) {
    uint32_t word;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

#endif
