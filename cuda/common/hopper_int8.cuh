/* cuda/common/hopper_int8.cuh: matrix products of 8-bit integers by a warpgroup (wgmma): D[64][N] (+)= A[64][32]
 * B[32][N], sums in i32, which do not saturate. A is u8 or i8, B is i8; both are in shared memory and K-major. */
#ifndef CK_HOPPER_INT8_CUH
#define CK_HOPPER_INT8_CUH

#include "cuda/common/hopper.cuh"

/* Descriptor of a K-major operand in rows of BYTES (64 or 128) with the swizzle of that width. Rows may start anywhere:
 * the swizzle depends on the address, not on the index of the row. */
template <int BYTES> __device__ __forceinline__ uint64_t ck_operand_rows(uint32_t at) {
    static_assert(BYTES == 64 || BYTES == 128, "swizzles in use");
    return (uint64_t)((at & 0x3ffffu) >> 4) | 1ull << 16 | (uint64_t)(8 * BYTES / 16) << 32 |
           (BYTES == 128 ? 1ull : 2ull) << 62;
}
/* Prevents the compiler from moving uses of these registers across this point. */
template <int N> __device__ __forceinline__ void ck_wgmma_hold(int (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* v = fma(byte, scale, v) for 16 bytes. */
template <bool SIGNED> __device__ __forceinline__ void ck_add_bytes(uint4 bytes, float scale, float (&v)[16]) {
    const uint32_t word[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int k = 0; k < 16; k++) {
        const uint32_t byte = word[k / 4] >> k % 4 * 8 & 255u;
        v[k]                = fmaf(SIGNED ? (float)(int8_t)byte : (float)byte, scale, v[k]);
    }
}

/* keep: adds to d; otherwise d is overwritten. */
template <bool A_SIGNED, int N> struct ck_wgmma_int8;
#define CK_WGMMA_INT8(is_signed, type, N, half, a0, a1, a2)                                                            \
    template <> struct ck_wgmma_int8<is_signed, N> {                                                                   \
        static __device__ __forceinline__ void run(int (&d)[half], uint64_t a, uint64_t b, int keep) {                 \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" a2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N    \
                         "k32.s32." type ".s8 {" CK_D##half "}, %" a0 ", %" a1 ", keep;\n}"                            \
                         : CK_ACC##half("+r", d, 0)                                                                    \
                         : "l"(a), "l"(b), "r"(keep));                                                                 \
        }                                                                                                              \
    };
CK_WGMMA_INT8(false, "u8", 32, 16, "16", "17", "18")
CK_WGMMA_INT8(false, "u8", 64, 32, "32", "33", "34")
CK_WGMMA_INT8(false, "u8", 128, 64, "64", "65", "66")
CK_WGMMA_INT8(false, "u8", 256, 128, "128", "129", "130")
CK_WGMMA_INT8(true, "s8", 32, 16, "16", "17", "18")
CK_WGMMA_INT8(true, "s8", 64, 32, "32", "33", "34")
CK_WGMMA_INT8(true, "s8", 112, 56, "56", "57", "58")
CK_WGMMA_INT8(true, "s8", 128, 64, "64", "65", "66")
CK_WGMMA_INT8(true, "s8", 256, 128, "128", "129", "130")
#undef CK_WGMMA_INT8

#endif
