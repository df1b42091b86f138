/* cuda/conv/int8/int8_store.cuh: epilogue of the 8-bit convolutions: rounds the results and stores them. */
#ifndef CK_INT8_STORE_CUH
#define CK_INT8_STORE_CUH

#include "cuda/common/shared.cuh"
#include "cuda/conv/int8/int8_conv.h"

namespace {

/* Four values, rounded (ties to even) and saturated. */
template <bool SIGNED> __device__ __forceinline__ uint32_t pack_four(const float *v) {
    int i[4];
#pragma unroll
    for (int k = 0; k < 4; k++) i[k] = __float2int_rn(v[k]);
    uint32_t word;
    if (SIGNED)
        asm("{\n.reg .b32 high;\ncvt.pack.sat.s8.s32.b32 high, %4, %3, 0;\ncvt.pack.sat.s8.s32.b32 %0, %2, %1, high;\n}"
            : "=r"(word)
            : "r"(i[0]), "r"(i[1]), "r"(i[2]), "r"(i[3]));
    else
        asm("{\n.reg .b32 high;\ncvt.pack.sat.u8.s32.b32 high, %4, %3, 0;\ncvt.pack.sat.u8.s32.b32 %0, %2, %1, high;\n}"
            : "=r"(word)
            : "r"(i[0]), "r"(i[1]), "r"(i[2]), "r"(i[3]));
    return word;
}

template <int TYPE> constexpr int bytes_of = TYPE == CK_INT8_F32 ? 4 : TYPE == CK_INT8_U8 || TYPE == CK_INT8_I8 ? 1 : 2;

/* Stores 16 neighbouring channels with vectors, or the first `count` of them one by one. */
template <int TYPE>
__device__ __forceinline__ void store_channels(void *y, int64_t at, const float (&v)[16], int count, bool whole) {
    if (TYPE == CK_INT8_U8 || TYPE == CK_INT8_I8) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) word[i] = pack_four<TYPE == CK_INT8_I8>(v + 4 * i);
        uint8_t *to = static_cast<uint8_t *>(y) + at;
        if (whole)
            ck_store_whole(to, make_uint4(word[0], word[1], word[2], word[3]));
        else
#pragma unroll
            for (int i = 0; i < 16; i++)
                if (i < count) to[i] = (uint8_t)(word[i / 4] >> i % 4 * 8);
    } else {
        using T = typename std::conditional<
            TYPE == CK_INT8_F16, __half,
            typename std::conditional<TYPE == CK_INT8_BF16, __nv_bfloat16, float>::type>::type;
        constexpr int lanes = ck_vector_elems<T>();
        T            *to    = static_cast<T *>(y) + at;
        if (whole)
#pragma unroll
            for (int i = 0; i < 16; i += lanes) ck_store_whole(to + i, ck_pack<T>(v + i));
        else
#pragma unroll
            for (int i = 0; i < 16; i++)
                if (i < count) to[i] = ck_round<T>(v[i]);
    }
}

} // namespace

#endif
