/* cuda/sparse/two_four/two_four_wgmma.cuh: the sparse form of wgmma, d[64][N] (+)= a[64][32, 2 of 4 nonzero] b[32][N],
 * with both operands in shared memory. */
#ifndef CK_TWO_FOUR_WGMMA_CUH
#define CK_TWO_FOUR_WGMMA_CUH

#include "cuda/common/hopper.cuh"

namespace two_four {

template <typename T, int N, int HALF> struct sparse_product;
/* The metadata are in lanes 2*HALF and 2*HALF + 1 of each four lanes. With keep = 0, d is overwritten instead of added
 * to. */
#define WGMMA_SPARSE(T, type, N, regs, a0, a1, a2, a3, a4)                                                             \
    template <int HALF> struct sparse_product<T, N, HALF> {                                                            \
        static __device__ __forceinline__ void add(float (&d)[regs], uint64_t a, uint64_t b, uint32_t places,          \
                                                   int keep) {                                                         \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" a4 ", 0;\nwgmma.mma_async.sp.sync.aligned.m64n" #N \
                         "k32.f32." type "." type " {" CK_D##regs "}, %" a0 ", %" a1 ", %" a2 ", %" a3                 \
                                                                  ", keep, 1, 1, 0, 0;\n}"                             \
                         : CK_ACC##regs("+f", d, 0)                                                                    \
                         : "l"(a), "l"(b), "r"(places), "n"(HALF), "r"(keep));                                         \
        }                                                                                                              \
    };
#define WGMMA_SPARSE_HALF(...) WGMMA_SPARSE(__half, "f16", __VA_ARGS__) WGMMA_SPARSE(__nv_bfloat16, "bf16", __VA_ARGS__)
WGMMA_SPARSE_HALF(64, 32, "32", "33", "34", "35", "36")
WGMMA_SPARSE_HALF(96, 48, "48", "49", "50", "51", "52")
WGMMA_SPARSE_HALF(104, 52, "52", "53", "54", "55", "56")
WGMMA_SPARSE_HALF(112, 56, "56", "57", "58", "59", "60")
WGMMA_SPARSE_HALF(120, 60, "60", "61", "62", "63", "64")
WGMMA_SPARSE_HALF(128, 64, "64", "65", "66", "67", "68")
WGMMA_SPARSE_HALF(160, 80, "80", "81", "82", "83", "84")
WGMMA_SPARSE_HALF(192, 96, "96", "97", "98", "99", "100")
WGMMA_SPARSE_HALF(208, 104, "104", "105", "106", "107", "108")
WGMMA_SPARSE_HALF(216, 108, "108", "109", "110", "111", "112")
WGMMA_SPARSE_HALF(224, 112, "112", "113", "114", "115", "116")
WGMMA_SPARSE_HALF(232, 116, "116", "117", "118", "119", "120")
WGMMA_SPARSE_HALF(256, 128, "128", "129", "130", "131", "132")
#undef WGMMA_SPARSE_HALF
#undef WGMMA_SPARSE

} // namespace two_four

#endif
