/* cuda/common/word_floats.cuh: 16-bit elements to f32, for kernels that do this for every element of a large tensor.
 * The compiler rearranges the halves of a word for nothing in ck_unpack of f16: two instructions more for a pair. */
#ifndef CK_WORD_FLOATS_CUH
#define CK_WORD_FLOATS_CUH

#include "cuda/common/common.cuh"

/* The two elements of a word; the lower half is the first. */
template <typename T> __device__ __forceinline__ void ck_word_floats(uint32_t word, float &low, float &high);
template <> __device__ __forceinline__ void           ck_word_floats<__half>(uint32_t word, float &low, float &high) {
              asm("{.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}"
        : "=f"(low), "=f"(high)
        : "r"(word));
}
template <> __device__ __forceinline__ void ck_word_floats<__nv_bfloat16>(uint32_t word, float &low, float &high) {
    low  = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
}
/* The eight elements of a vector. Index `out` with constants only. */
template <typename T> __device__ __forceinline__ void ck_vector_floats(const uint4 &v, float *out) {
    ck_word_floats<T>(v.x, out[0], out[1]);
    ck_word_floats<T>(v.y, out[2], out[3]);
    ck_word_floats<T>(v.z, out[4], out[5]);
    ck_word_floats<T>(v.w, out[6], out[7]);
}

#endif
