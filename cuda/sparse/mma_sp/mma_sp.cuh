/* cuda/sparse/mma_sp/mma_sp.cuh: instructions of the sparse tensor cores, the split of FP32 into two FP16 numbers, and
 * the sizes of a thread block. */
#ifndef CK_MMA_SP_CUH
#define CK_MMA_SP_CUH

#include "cuda/common/common.cuh"
#include "cuda/sparse/mma_sp/mma_sp.h"

namespace mma_sp {

/* Bytes of a fragment: 16 bytes of weights per lane (for FP32 twice: the high parts, then the low parts), then one word
 * of metadata per lane. `of_number` is the size of the data type. */
__host__ __device__ constexpr int fragment_bytes(size_t of_number) {
    return CK_WARP * (16 * (int)of_number / 2 + 4);
}

/* Loads four matrices of 8 rows of 16 bytes. Lane i gives the address of row i%8 of matrix i/8. */
__device__ __forceinline__ void load_rows(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}

/* d[16][8] = (KEEP ? d : 0) + a[16][32] b[32][8]. a has at most two nonzeros in each group of four columns; the
 * metadata `places` of lanes 0 and 1 of each four lanes give their indices. */
template <typename T, bool KEEP> struct product;
/* The metadata are in ascending order. CUDA 12.4 has no instruction that says so; its instruction takes any order. */
#if __CUDACC_VER_MAJOR__ > 12 || __CUDACC_VER_MINOR__ >= 5
#define CK_MMA_SP "mma.sp::ordered_metadata"
#else
#define CK_MMA_SP "mma.sp"
#endif
#define CK_MMA_SP_PRODUCT(T, type)                                                                                     \
    template <bool KEEP> struct product<T, KEEP> {                                                                     \
        static __device__ __forceinline__ void add(float (&d)[4], const uint4 &a, const uint32_t (&b)[4],              \
                                                   uint32_t places) {                                                  \
            const float c[4] = {KEEP ? d[0] : 0.0f, KEEP ? d[1] : 0.0f, KEEP ? d[2] : 0.0f, KEEP ? d[3] : 0.0f};       \
            asm(CK_MMA_SP ".sync.aligned.m16n8k32.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, "                   \
                          "{%4,%5,%6,%7}, {%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, 0x0;"                               \
                : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                       \
                : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "f"(c[0]),       \
                  "f"(c[1]), "f"(c[2]), "f"(c[3]), "r"(places));                                                       \
        }                                                                                                              \
    };
CK_MMA_SP_PRODUCT(__half, "f16")
CK_MMA_SP_PRODUCT(__nv_bfloat16, "bf16")
#undef CK_MMA_SP_PRODUCT
#undef CK_MMA_SP

/* Splits two numbers into their FP16 high parts and the remainders. The remainders are multiplied by LOW_SCALE, so that
 * a remainder is denormal only where its high part is denormal. */
constexpr float                 LOW_SCALE = 2048.0f;
__device__ __forceinline__ void split(float a, float b, uint32_t *high, uint32_t *low) {
    *high               = ck_pack_word<__half>(a, b);
    const float2 stored = ck_unpack_word<__half>(*high);
    *low                = ck_pack_word<__half>((a - stored.x) * LOW_SCALE, (b - stored.y) * LOW_SCALE);
}
/* The same without scaling the remainders. For weights, whose channels were scaled before. */
__device__ __forceinline__ void split_exactly(float a, float b, uint32_t *high, uint32_t *low) {
    *high               = ck_pack_word<__half>(a, b);
    const float2 stored = ck_unpack_word<__half>(*high);
    *low                = ck_pack_word<__half>(a - stored.x, b - stored.y);
}
/* The filter's numbers divided by LOW_SCALE, for the products with scaled low parts. */
__device__ __forceinline__ uint32_t divide_by_low_scale(uint32_t pair) {
    __half2 v;
    memcpy(&v, &pair, sizeof v);
    v = __hmul2(v, __float2half2_rn(1 / LOW_SCALE));
    memcpy(&pair, &v, sizeof v);
    return pair;
}
__device__ __forceinline__ uint4 divide_by_low_scale(const uint4 &w) {
    return make_uint4(divide_by_low_scale(w.x), divide_by_low_scale(w.y), divide_by_low_scale(w.z),
                      divide_by_low_scale(w.w));
}

/* Computes the scale of each of `rows` output channels. Weights are divided by the scale, and sums are multiplied by
 * it. w is [K][taps]. Channels from K on get scale 1. Defined in cuda/sparse/mma_sp/mma_sp_fill.cu. */
cudaError_t row_scales(enum ck_type type, const void *w, int64_t K, int64_t taps, int64_t rows, float *scale,
                       cudaStream_t stream);

/* Address in the shared-memory window. */
__device__ __forceinline__ uint32_t address_of(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- sizes of a thread block ---- */

enum { MAX_WARPS = 8 };
/* A thread block has few warps with many columns or many warps with few columns, so that 65,536 registers hold two
 * thread blocks. */
__host__ __device__ constexpr int warps_of(int columns) {
    return columns > 4 ? 4 : MAX_WARPS;
}

/* items_of: output pixels of a tile. places_of: staged input pixels. tables_bytes: bytes of the tables behind the
 * staged input. */
inline int items_of(const ck_mma_sp_plan &p) {
    return warps_of(p.columns) / p.bands / p.split * p.columns * 8;
}
inline int places_of(const ck_mma_sp_plan &p) {
    return p.groups * p.IH * p.pitch;
}
inline size_t tables_bytes(const ck_mma_sp_plan &p) {
    return (size_t)(places_of(p) + items_of(p) + MAX_WARPS) * 4;
}

} // namespace mma_sp

#endif
