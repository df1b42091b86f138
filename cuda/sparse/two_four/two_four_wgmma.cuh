/* cuda/sparse/two_four/two_four_wgmma.cuh: wgmma's sparse form: d[64][N] (+)= a[64][32, 2 of 4 kept] b[32][N], both operands in shared memory; and its plain one,
 * d[64][N] (+)= a[64][16] b[16][N], with columns that cuda/common/hopper.cuh has not. */
#ifndef CK_SPARSE_NM_WGMMA_CUH
#define CK_SPARSE_NM_WGMMA_CUH

#include "cuda/common/hopper.cuh"

namespace nm {

/* Accumulators by fours: names in the instruction, and operands. */
#define NM_N4 "%0,%1,%2,%3"
#define NM_N16 NM_N4 ",%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NM_N32 NM_N16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NM_N48 NM_N32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NM_N52 NM_N48 ",%48,%49,%50,%51"
#define NM_N56 NM_N52 ",%52,%53,%54,%55"
#define NM_N60 NM_N56 ",%56,%57,%58,%59"
#define NM_N64 NM_N60 ",%60,%61,%62,%63"
#define NM_N80 NM_N64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NM_N96 NM_N80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NM_N104 NM_N96 \
    ",%96,%97,%98,%99,%100,%101,%102,%103"
#define NM_N108 NM_N104 ",%104,%105,%106,%107"
#define NM_N112 NM_N108 ",%108,%109,%110,%111"
#define NM_N116 NM_N112 ",%112,%113,%114,%115"
#define NM_N128 NM_N116 ",%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define NM_FOUR(d, i) "+f"((d)[(i) + 0]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define NM_A32(d) CK_ACC32(d, 0)
#define NM_A48(d) CK_ACC32(d, 0), CK_ACC8(d, 32), CK_ACC8(d, 40)
#define NM_A80(d) CK_ACC64(d, 0), CK_ACC8(d, 64), CK_ACC8(d, 72)
#define NM_A96(d) CK_ACC64(d, 0), CK_ACC32(d, 64)
#define NM_A52(d) CK_ACC32(d, 0), CK_ACC8(d, 32), CK_ACC8(d, 40), NM_FOUR(d, 48)
#define NM_A56(d) CK_ACC32(d, 0), CK_ACC8(d, 32), CK_ACC8(d, 40), CK_ACC8(d, 48)
#define NM_A60(d) CK_ACC32(d, 0), CK_ACC8(d, 32), CK_ACC8(d, 40), CK_ACC8(d, 48), NM_FOUR(d, 56)
#define NM_A64(d) CK_ACC64(d, 0)
#define NM_A104(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96)
#define NM_A108(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96), NM_FOUR(d, 104)
#define NM_A112(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96), CK_ACC8(d, 104)
#define NM_A116(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96), CK_ACC8(d, 104), NM_FOUR(d, 112)
#define NM_A128(d) CK_ACC64(d, 0), CK_ACC64(d, 64)

template <typename T, int N, int HALF> struct sparse_product;
/* The metadata is in lanes 2*HALF and 2*HALF + 1 of each four. keep: add to d, else d is overwritten. */
#define NM_PRODUCT(T, type, N, regs, a0, a1, a2, a3, a4)                                                                            \
    template <int HALF> struct sparse_product<T, N, HALF> {                                                                        \
        static __device__ __forceinline__ void add(float (&d)[regs], uint64_t a, uint64_t b, uint32_t places, int keep) {          \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" a4 ", 0;\nwgmma.mma_async.sp.sync.aligned.m64n" #N             \
                         "k32.f32." type "." type " {" NM_N##regs "}, %" a0 ", %" a1 ", %" a2 ", %" a3 ", keep, 1, 1, 0, 0;\n}"    \
                         : NM_A##regs(d)                                                                                           \
                         : "l"(a), "l"(b), "r"(places), "n"(HALF), "r"(keep));                                                     \
        }                                                                                                                          \
    };
NM_PRODUCT(__half, "f16", 64, 32, "32", "33", "34", "35", "36")
NM_PRODUCT(__half, "f16", 96, 48, "48", "49", "50", "51", "52")
NM_PRODUCT(__half, "f16", 160, 80, "80", "81", "82", "83", "84")
NM_PRODUCT(__half, "f16", 192, 96, "96", "97", "98", "99", "100")
NM_PRODUCT(__half, "f16", 104, 52, "52", "53", "54", "55", "56")
NM_PRODUCT(__half, "f16", 112, 56, "56", "57", "58", "59", "60")
NM_PRODUCT(__half, "f16", 120, 60, "60", "61", "62", "63", "64")
NM_PRODUCT(__half, "f16", 128, 64, "64", "65", "66", "67", "68")
NM_PRODUCT(__half, "f16", 208, 104, "104", "105", "106", "107", "108")
NM_PRODUCT(__half, "f16", 216, 108, "108", "109", "110", "111", "112")
NM_PRODUCT(__half, "f16", 224, 112, "112", "113", "114", "115", "116")
NM_PRODUCT(__half, "f16", 232, 116, "116", "117", "118", "119", "120")
NM_PRODUCT(__half, "f16", 256, 128, "128", "129", "130", "131", "132")
NM_PRODUCT(__nv_bfloat16, "bf16", 104, 52, "52", "53", "54", "55", "56")
NM_PRODUCT(__nv_bfloat16, "bf16", 112, 56, "56", "57", "58", "59", "60")
NM_PRODUCT(__nv_bfloat16, "bf16", 128, 64, "64", "65", "66", "67", "68")
NM_PRODUCT(__nv_bfloat16, "bf16", 208, 104, "104", "105", "106", "107", "108")
NM_PRODUCT(__nv_bfloat16, "bf16", 216, 108, "108", "109", "110", "111", "112")
NM_PRODUCT(__nv_bfloat16, "bf16", 224, 112, "112", "113", "114", "115", "116")
NM_PRODUCT(__nv_bfloat16, "bf16", 232, 116, "116", "117", "118", "119", "120")
NM_PRODUCT(__nv_bfloat16, "bf16", 256, 128, "128", "129", "130", "131", "132")
#undef NM_PRODUCT

template <int N> struct plain_product;
/* Of f16. keep: as above. */
#define NM_PLAIN(N, regs, a0, a1, a2)                                                                                              \
    template <> struct plain_product<N> {                                                                                          \
        static __device__ __forceinline__ void add(float (&d)[regs], uint64_t a, uint64_t b, int keep) {                           \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" a2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                \
                         "k16.f32.f16.f16 {" NM_N##regs "}, %" a0 ", %" a1 ", keep, 1, 1, 0, 0;\n}"                                \
                         : NM_A##regs(d)                                                                                           \
                         : "l"(a), "l"(b), "r"(keep));                                                                             \
        }                                                                                                                          \
    };
NM_PLAIN(64, 32, "32", "33", "34")
NM_PLAIN(96, 48, "48", "49", "50")
NM_PLAIN(104, 52, "52", "53", "54")
NM_PLAIN(112, 56, "56", "57", "58")
NM_PLAIN(120, 60, "60", "61", "62")
NM_PLAIN(160, 80, "80", "81", "82")
NM_PLAIN(192, 96, "96", "97", "98")
#undef NM_PLAIN

} // namespace nm

#endif
