/* cuda/sparse/two_four/two_four_wgmma.cuh: the sparse form of wgmma, d[64][N] (+)= a[64][32, 2 of 4 nonzero] b[32][N],
 * with both operands in shared memory; and the dense form, d[64][N] (+)= a[64][16] b[16][N], for widths that
 * cuda/common/hopper.cuh does not have. */
#ifndef CK_TWO_FOUR_WGMMA_CUH
#define CK_TWO_FOUR_WGMMA_CUH

#include "cuda/common/hopper.cuh"

namespace two_four {

/* Accumulator registers: their names in the instruction, and the operands. */
#define WGMMA_REGS_4 "%0,%1,%2,%3"
#define WGMMA_REGS_16 WGMMA_REGS_4 ",%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_REGS_32 WGMMA_REGS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_REGS_48 WGMMA_REGS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_REGS_52 WGMMA_REGS_48 ",%48,%49,%50,%51"
#define WGMMA_REGS_56 WGMMA_REGS_52 ",%52,%53,%54,%55"
#define WGMMA_REGS_60 WGMMA_REGS_56 ",%56,%57,%58,%59"
#define WGMMA_REGS_64 WGMMA_REGS_60 ",%60,%61,%62,%63"
#define WGMMA_REGS_80 WGMMA_REGS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define WGMMA_REGS_96 WGMMA_REGS_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WGMMA_REGS_104                                                                                                 \
    WGMMA_REGS_96                                                                                                      \
    ",%96,%97,%98,%99,%100,%101,%102,%103"
#define WGMMA_REGS_108 WGMMA_REGS_104 ",%104,%105,%106,%107"
#define WGMMA_REGS_112 WGMMA_REGS_108 ",%108,%109,%110,%111"
#define WGMMA_REGS_116 WGMMA_REGS_112 ",%112,%113,%114,%115"
#define WGMMA_REGS_128 WGMMA_REGS_116 ",%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_ACC_4(d, i) "+f"((d)[(i) + 0]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define WGMMA_ACC_32(d) CK_ACC32(d, 0)
#define WGMMA_ACC_48(d) CK_ACC32(d, 0), CK_ACC8(d, 32), CK_ACC8(d, 40)
#define WGMMA_ACC_80(d) CK_ACC64(d, 0), CK_ACC8(d, 64), CK_ACC8(d, 72)
#define WGMMA_ACC_96(d) CK_ACC64(d, 0), CK_ACC32(d, 64)
#define WGMMA_ACC_52(d) CK_ACC32(d, 0), CK_ACC8(d, 32), CK_ACC8(d, 40), WGMMA_ACC_4(d, 48)
#define WGMMA_ACC_56(d) CK_ACC32(d, 0), CK_ACC8(d, 32), CK_ACC8(d, 40), CK_ACC8(d, 48)
#define WGMMA_ACC_60(d) CK_ACC32(d, 0), CK_ACC8(d, 32), CK_ACC8(d, 40), CK_ACC8(d, 48), WGMMA_ACC_4(d, 56)
#define WGMMA_ACC_64(d) CK_ACC64(d, 0)
#define WGMMA_ACC_104(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96)
#define WGMMA_ACC_108(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96), WGMMA_ACC_4(d, 104)
#define WGMMA_ACC_112(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96), CK_ACC8(d, 104)
#define WGMMA_ACC_116(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96), CK_ACC8(d, 104), WGMMA_ACC_4(d, 112)
#define WGMMA_ACC_128(d) CK_ACC64(d, 0), CK_ACC64(d, 64)

template <typename T, int N, int HALF> struct sparse_product;
/* The metadata are in lanes 2*HALF and 2*HALF + 1 of each four lanes. With keep = 0, d is overwritten instead of added
 * to. */
#define WGMMA_SPARSE(T, type, N, regs, a0, a1, a2, a3, a4)                                                             \
    template <int HALF> struct sparse_product<T, N, HALF> {                                                            \
        static __device__ __forceinline__ void add(float (&d)[regs], uint64_t a, uint64_t b, uint32_t places,          \
                                                   int keep) {                                                         \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" a4 ", 0;\nwgmma.mma_async.sp.sync.aligned.m64n" #N \
                         "k32.f32." type "." type " {" WGMMA_REGS_##regs "}, %" a0 ", %" a1 ", %" a2 ", %" a3          \
                                                                         ", keep, 1, 1, 0, 0;\n}"                      \
                         : WGMMA_ACC_##regs(d)                                                                         \
                         : "l"(a), "l"(b), "r"(places), "n"(HALF), "r"(keep));                                         \
        }                                                                                                              \
    };
WGMMA_SPARSE(__half, "f16", 64, 32, "32", "33", "34", "35", "36")
WGMMA_SPARSE(__half, "f16", 96, 48, "48", "49", "50", "51", "52")
WGMMA_SPARSE(__half, "f16", 160, 80, "80", "81", "82", "83", "84")
WGMMA_SPARSE(__half, "f16", 192, 96, "96", "97", "98", "99", "100")
WGMMA_SPARSE(__half, "f16", 104, 52, "52", "53", "54", "55", "56")
WGMMA_SPARSE(__half, "f16", 112, 56, "56", "57", "58", "59", "60")
WGMMA_SPARSE(__half, "f16", 120, 60, "60", "61", "62", "63", "64")
WGMMA_SPARSE(__half, "f16", 128, 64, "64", "65", "66", "67", "68")
WGMMA_SPARSE(__half, "f16", 208, 104, "104", "105", "106", "107", "108")
WGMMA_SPARSE(__half, "f16", 216, 108, "108", "109", "110", "111", "112")
WGMMA_SPARSE(__half, "f16", 224, 112, "112", "113", "114", "115", "116")
WGMMA_SPARSE(__half, "f16", 232, 116, "116", "117", "118", "119", "120")
WGMMA_SPARSE(__half, "f16", 256, 128, "128", "129", "130", "131", "132")
WGMMA_SPARSE(__nv_bfloat16, "bf16", 104, 52, "52", "53", "54", "55", "56")
WGMMA_SPARSE(__nv_bfloat16, "bf16", 112, 56, "56", "57", "58", "59", "60")
WGMMA_SPARSE(__nv_bfloat16, "bf16", 128, 64, "64", "65", "66", "67", "68")
WGMMA_SPARSE(__nv_bfloat16, "bf16", 208, 104, "104", "105", "106", "107", "108")
WGMMA_SPARSE(__nv_bfloat16, "bf16", 216, 108, "108", "109", "110", "111", "112")
WGMMA_SPARSE(__nv_bfloat16, "bf16", 224, 112, "112", "113", "114", "115", "116")
WGMMA_SPARSE(__nv_bfloat16, "bf16", 232, 116, "116", "117", "118", "119", "120")
WGMMA_SPARSE(__nv_bfloat16, "bf16", 256, 128, "128", "129", "130", "131", "132")
#undef WGMMA_SPARSE

template <int N> struct dense_product;
/* FP16. keep: as above. */
#define WGMMA_DENSE(N, regs, a0, a1, a2)                                                                               \
    template <> struct dense_product<N> {                                                                              \
        static __device__ __forceinline__ void add(float (&d)[regs], uint64_t a, uint64_t b, int keep) {               \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" a2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N    \
                         "k16.f32.f16.f16 {" WGMMA_REGS_##regs "}, %" a0 ", %" a1 ", keep, 1, 1, 0, 0;\n}"             \
                         : WGMMA_ACC_##regs(d)                                                                         \
                         : "l"(a), "l"(b), "r"(keep));                                                                 \
        }                                                                                                              \
    };
WGMMA_DENSE(64, 32, "32", "33", "34")
WGMMA_DENSE(96, 48, "48", "49", "50")
WGMMA_DENSE(104, 52, "52", "53", "54")
WGMMA_DENSE(112, 56, "56", "57", "58")
WGMMA_DENSE(120, 60, "60", "61", "62")
WGMMA_DENSE(160, 80, "80", "81", "82")
WGMMA_DENSE(192, 96, "96", "97", "98")
#undef WGMMA_DENSE

} // namespace two_four

#endif
