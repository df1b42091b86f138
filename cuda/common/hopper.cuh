/* cuda/common/hopper.cuh: instructions that only Hopper GPUs have, one small function for each: barriers in shared
 * memory that count arrivals and bytes (mbarrier), copies by the tensor memory accelerator (TMA), matrix products of a
 * warpgroup (wgmma).
 *
 * Invariants
 *   - Tiles have the layout of TMA with the 128-byte swizzle: rows of 128 bytes, aligned to 1024 bytes; chunk c (16
 *     bytes) of row r is stored at chunk c ^ (r % 8).
 *   - TMA and wgmma see the results of ordinary stores only after ck_fence_async and a barrier. */
#ifndef CK_HOPPER_CUH
#define CK_HOPPER_CUH

#include "cuda/common/shared.cuh"

#include <cuda.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CK_HAS_SM90A 1
#else
#define CK_HAS_SM90A 0
#endif

/* ---- mbarrier ---- */

__device__ __forceinline__ void ck_mbar_init(uint32_t bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
/* Makes initialised barriers visible to other threads and to TMA. A barrier must follow. */
__device__ __forceinline__ void ck_mbar_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void ck_mbar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* An index into a ring of barriers or stages, and the parity of its current round. */
struct ck_ring_place {
    int                             at     = 0;
    uint32_t                        parity = 0;
    __device__ __forceinline__ void next(int size) {
        if (++at == size) {
            at = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void skip(int count, int size) {
        for (at += count; at >= size; at -= size) parity ^= 1;
    }
};
/* Arrives, and announces the number of bytes that copies will write. */
__device__ __forceinline__ void ck_mbar_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
/* Waits until the phase of this parity is complete. */
__device__ __forceinline__ void ck_mbar_wait(uint32_t bar, uint32_t parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra OVER;\nbra AGAIN;\nOVER:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Returns whether the phase of this parity is complete. Does not wait. */
__device__ __forceinline__ bool ck_mbar_is_over(uint32_t bar, uint32_t parity) {
    uint32_t is;
    asm volatile(
        "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
        : "=r"(is)
        : "r"(bar), "r"(parity)
        : "memory");
    return is != 0;
}

/* ---- fences and barriers ---- */

__device__ __forceinline__ void ck_fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Barrier `id` (1..15; 0 is __syncthreads) of `threads` threads. */
__device__ __forceinline__ void ck_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* Counts towards barrier `id` without waiting. */
__device__ __forceinline__ void ck_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* Waits until all threads of all blocks of a cluster have arrived or ended. Writes before it are visible after it. */
__device__ __forceinline__ void ck_cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* Waits until all threads of all blocks of a cluster have started, and makes barriers visible that another block has
 * initialised, before ck_mbar_init_fence. Other writes are not ordered, which would take about 0.5 us. */
__device__ __forceinline__ void ck_cluster_begin() {
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* Address, in block `rank` of the cluster, of the object at `address` in this block. */
__device__ __forceinline__ uint32_t ck_other_block(uint32_t address, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ void ck_send_four(uint32_t to, const float (&v)[4]) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                 "f"(v[3])
                 : "memory");
}
/* Stores 16 bytes into another block of the cluster and counts them at barrier `bar` there. */
__device__ __forceinline__ void ck_send_counted(uint32_t to, uint32_t bar, uint4 v) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(to),
        "r"(bar), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}
/* As ck_mbar_wait, for bytes that other blocks of the cluster send. */
__device__ __forceinline__ void ck_mbar_wait_cluster(uint32_t bar, uint32_t parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], "
                 "%1;\n@done bra OVER;\nbra AGAIN;\nOVER:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
/* Sets the number of registers of each thread of the calling warpgroup. */
template <int N> __device__ __forceinline__ void ck_registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void ck_registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- TMA ---- */

__device__ __forceinline__ void ck_tma_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Loads a box of a matrix; (column, row) is its first element. */
__device__ __forceinline__ void ck_tma_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                 "%4}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(column), "r"(row)
                 : "memory");
}
/* Loads pixels of an image tensor in the map's order, starting at (h, w) of image n, shifted by filter position (r,
 * s). */
__device__ __forceinline__ void ck_tma_load_pixels(uint32_t to, const CUtensorMap *map, uint32_t bar, int c, int w,
                                                   int h, int n, int s = 0, int r = 0) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                 "%4, %5, %6}], [%2], "
                 "{%7, %8};" ::"r"(to),
                 "l"(map), "r"(bar), "r"(c), "r"(w), "r"(h), "r"(n), "h"((uint16_t)s), "h"((uint16_t)r)
                 : "memory");
}
/* Loads a box of four dimensions; the first coordinate is that of the contiguous dimension. */
__device__ __forceinline__ void ck_tma_load_box(uint32_t to, const CUtensorMap *map, uint32_t bar, int a, int b, int c,
                                                int d) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
/* Copies bytes without a tensor map: a multiple of 16, both addresses aligned to 16. */
__device__ __forceinline__ void ck_bulk_load(uint32_t to, const void *from, uint32_t bar, uint32_t bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];" ::"r"(to),
                 "l"(from), "r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void ck_tma_store(const CUtensorMap *map, uint32_t from, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(from), "r"(column), "r"(row)
                 : "memory");
}
__device__ __forceinline__ void ck_bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Waits until at most N stores of this thread still have to read their shared memory (wait_read) or are incomplete. */
template <int N> __device__ __forceinline__ void ck_bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void ck_bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- fragments of 8x8 matrices of 16-bit elements ---- */

__device__ __forceinline__ void ck_stmatrix(uint32_t to, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}
__device__ __forceinline__ void ck_stmatrix_trans(uint32_t to, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
__device__ __forceinline__ void ck_stmatrix_trans(uint32_t to, const uint32_t (&r)[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(r[0]), "r"(r[1])
                 : "memory");
}

/* ---- wgmma: D[64][N] (+)= A[64][16] B[16][N], f32 sums, 16-bit operands ---- */

/* Descriptor of an operand in swizzled 128-byte rows. Rows run along the reduced dimension (K-major): 8 rows are 1024
 * bytes. */
__device__ __forceinline__ uint64_t ck_operand(uint32_t at) {
    return (uint64_t)((at & 0x3ffffu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
/* Descriptor of an operand whose rows run across the reduced dimension (MN-major): 8 steps of the reduced dimension are
 * 1024 bytes. The next 64 columns are `panel` bytes further (modulo 2^18, so `panel` may be negative). */
__device__ __forceinline__ uint64_t ck_operand_transposed(uint32_t at, uint32_t panel) {
    return (uint64_t)((at & 0x3ffffu) >> 4) | (uint64_t)((panel & 0x3ffffu) >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ void ck_wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void ck_wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void ck_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Prevents the compiler from moving uses of these registers across this point. */
template <int N> __device__ __forceinline__ void ck_wgmma_hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* The registers of the sums: their names in an instruction, and the operands d[i], d[i + 1] ...; r: the constraint. */
#define CK_D16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define CK_D32 CK_D16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CK_D48 CK_D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define CK_D52 CK_D48 ",%48,%49,%50,%51"
#define CK_D56 CK_D52 ",%52,%53,%54,%55"
#define CK_D60 CK_D56 ",%56,%57,%58,%59"
#define CK_D64 CK_D60 ",%60,%61,%62,%63"
#define CK_D80 CK_D64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define CK_D96 CK_D80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define CK_D104 CK_D96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define CK_D108 CK_D104 ",%104,%105,%106,%107"
#define CK_D112 CK_D108 ",%108,%109,%110,%111"
#define CK_D116 CK_D112 ",%112,%113,%114,%115"
#define CK_D128 CK_D116 ",%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define CK_ACC4(r, d, i) r((d)[(i) + 0]), r((d)[(i) + 1]), r((d)[(i) + 2]), r((d)[(i) + 3])
#define CK_ACC8(r, d, i) CK_ACC4(r, d, i), CK_ACC4(r, d, (i) + 4)
#define CK_ACC16(r, d, i) CK_ACC8(r, d, i), CK_ACC8(r, d, (i) + 8)
#define CK_ACC32(r, d, i) CK_ACC16(r, d, i), CK_ACC16(r, d, (i) + 16)
#define CK_ACC48(r, d, i) CK_ACC32(r, d, i), CK_ACC16(r, d, (i) + 32)
#define CK_ACC52(r, d, i) CK_ACC48(r, d, i), CK_ACC4(r, d, (i) + 48)
#define CK_ACC56(r, d, i) CK_ACC48(r, d, i), CK_ACC8(r, d, (i) + 48)
#define CK_ACC60(r, d, i) CK_ACC56(r, d, i), CK_ACC4(r, d, (i) + 56)
#define CK_ACC64(r, d, i) CK_ACC32(r, d, i), CK_ACC32(r, d, (i) + 32)
#define CK_ACC80(r, d, i) CK_ACC64(r, d, i), CK_ACC16(r, d, (i) + 64)
#define CK_ACC96(r, d, i) CK_ACC64(r, d, i), CK_ACC32(r, d, (i) + 64)
#define CK_ACC104(r, d, i) CK_ACC96(r, d, i), CK_ACC8(r, d, (i) + 96)
#define CK_ACC108(r, d, i) CK_ACC104(r, d, i), CK_ACC4(r, d, (i) + 104)
#define CK_ACC112(r, d, i) CK_ACC96(r, d, i), CK_ACC16(r, d, (i) + 96)
#define CK_ACC116(r, d, i) CK_ACC112(r, d, i), CK_ACC4(r, d, (i) + 112)
#define CK_ACC128(r, d, i) CK_ACC64(r, d, i), CK_ACC64(r, d, (i) + 64)

/* both(): A and B are in shared memory. left(): A is in registers. TRANSPOSED: B is MN-major; LEFT_TRANSPOSED: A is
 * MN-major. keep: adds to d; otherwise d is overwritten. */
template <typename T, int N> struct ck_wgmma;
#define CK_WGMMA(T, type, N, half, a0, a1, a2, a3, a4, a5, a6)                                                         \
    template <> struct ck_wgmma<T, N> {                                                                                \
        template <int TRANSPOSED, int LEFT_TRANSPOSED = 0>                                                             \
        static __device__ __forceinline__ void both(float (&d)[half], uint64_t a, uint64_t b, int keep) {              \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" a2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N    \
                         "k16.f32." type "." type " {" CK_D##half "}, %" a0 ", %" a1 ", keep, 1, 1, %" a4 ", %" a3     \
                                                                  ";\n}"                                               \
                         : CK_ACC##half("+f", d, 0)                                                                    \
                         : "l"(a), "l"(b), "r"(keep), "n"(TRANSPOSED), "n"(LEFT_TRANSPOSED));                          \
        }                                                                                                              \
        template <int TRANSPOSED>                                                                                      \
        static __device__ __forceinline__ void left(float (&d)[half], const uint32_t (&a)[4], uint64_t b, int keep) {  \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" a5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N    \
                         "k16.f32." type "." type " {" CK_D##half "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" a4      \
                                                                  ", keep, 1, 1, %" a6 ";\n}"                          \
                         : CK_ACC##half("+f", d, 0)                                                                    \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TRANSPOSED));            \
        }                                                                                                              \
    };
#define CK_WGMMA_HALF(...) CK_WGMMA(__half, "f16", __VA_ARGS__) CK_WGMMA(__nv_bfloat16, "bf16", __VA_ARGS__)
CK_WGMMA_HALF(32, 16, "16", "17", "18", "19", "20", "21", "22")
CK_WGMMA_HALF(64, 32, "32", "33", "34", "35", "36", "37", "38")
CK_WGMMA_HALF(96, 48, "48", "49", "50", "51", "52", "53", "54")
CK_WGMMA_HALF(104, 52, "52", "53", "54", "55", "56", "57", "58")
CK_WGMMA_HALF(112, 56, "56", "57", "58", "59", "60", "61", "62")
CK_WGMMA_HALF(120, 60, "60", "61", "62", "63", "64", "65", "66")
CK_WGMMA_HALF(128, 64, "64", "65", "66", "67", "68", "69", "70")
CK_WGMMA_HALF(160, 80, "80", "81", "82", "83", "84", "85", "86")
CK_WGMMA_HALF(192, 96, "96", "97", "98", "99", "100", "101", "102")
CK_WGMMA_HALF(208, 104, "104", "105", "106", "107", "108", "109", "110")
CK_WGMMA_HALF(216, 108, "108", "109", "110", "111", "112", "113", "114")
CK_WGMMA_HALF(232, 116, "116", "117", "118", "119", "120", "121", "122")
CK_WGMMA_HALF(256, 128, "128", "129", "130", "131", "132", "133", "134")
#undef CK_WGMMA_HALF
#undef CK_WGMMA

#endif
