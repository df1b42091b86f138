/* cuda/conv/int8/int8_mma.cuh: products of 8-bit integers by a warp on the tensor cores of all GPUs from compute
 * capability 8.0 on. Fragments are those of cuda/common/mma.cuh, with two bytes in place of each 16-bit element. */
#ifndef CK_INT8_MMA_CUH
#define CK_INT8_MMA_CUH

#include "cuda/common/shared.cuh"

namespace {

/* d[16][8] += a[16][32] * b[32][8] */
template <bool SIGNED>
__device__ __forceinline__ void multiply_add(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define CK_MMA_INT8(type)                                                                                              \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "       \
                 "{%0,%1,%2,%3};"                                                                                      \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (SIGNED)
        CK_MMA_INT8("s8");
    else
        CK_MMA_INT8("u8");
#undef CK_MMA_INT8
}

/* Channel of a column: a thread's columns of a fragment are then 16 neighbouring channels
 * (cuda/conv/int8/int8_conv_work.cuh). */
__device__ __forceinline__ int channel_of(int column) {
    const int n = column % 64;
    return column - n + n / 2 % 4 * 16 + n / 8 * 2 + n % 2;
}

} // namespace

#endif
