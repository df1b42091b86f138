/* sparse_nm_sm90a.cu: see sparse_nm.h: the kernel on wgmma's sparse form.
 *
 * A tile's inputs lie in shared memory once for all taps, 8 channels of a position after the other: 8 neighbouring positions are one of
 * the 8x8 matrices that wgmma reads without a swizzle, wherever they begin. So a tap is the same bytes from another address on, and what
 * is beside an image is a position of zeros. Rows are a column or two longer than y's: those columns are computed and dropped.
 *
 * Bytes of shared memory that a step of 64 channels x 32 of the sum reads: 64 a position, in N/2 cycles of the tensor cores, which is all
 * that shared memory gives (128 a cycle); the filter's 2,304 and the tile's own arrival come on top. Limiter: shared memory; roof: about
 * 3/4 of the sparse tensor cores' rate, of which the dropped columns are another tenth.
 *
 * One block a multiprocessor, for the whole launch: a warpgroup that loads (the filter by bulk copies into a ring of units, inputs by
 * ordinary asynchronous copies into a ring of chunks) and 1 or 2 that multiply, each 64 channels x one tile: two blocks of channels of one
 * tile, or two tiles of one block. Filter and metadata come from shared memory to registers one unit ahead. */
#include "hopper.cuh"
#include "sparse_nm.cuh"

namespace nm {
namespace {

enum { GROUP = 128, LOADERS = 96, UNIT_BYTES = CK_NM_BYTES };
enum { BAR_FULL = 0, BAR_EMPTY = MOST_STAGES, BAR_UNIT = 2 * MOST_STAGES, BAR_USED = BAR_UNIT + MOST_RING, BARS = BAR_USED + MOST_RING };

/* Where things lie in shared memory. */
struct layout {
    uint32_t bars, out, stages, stage_bytes, units, table;
    __host__ __device__ layout(const ck_nm_plan &p) {
        bars        = 0;
        out         = 1024;
        stages      = out + (uint32_t)(p.down * p.across * OUT_BYTES);
        stage_bytes = (uint32_t)(p.across * p.chunk / 8 * p.plane * 16);
        units       = stages + (uint32_t)p.stages * stage_bytes;
        table       = units + (uint32_t)(p.ring * p.down * UNIT_BYTES);
    }
};
static_assert(BARS * 8 <= 1024, "barriers fit");

#if CK_HAS_SM90A

struct place {
    int             at     = 0;
    uint32_t        parity = 0;
    __device__ void next(int size) {
        if (++at == size) {
            at = 0;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ void copy_piece(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* Is the phase of this parity over? */
__device__ __forceinline__ bool is_over(uint32_t bar, uint32_t parity) {
    uint32_t over;
    asm volatile("{\n.reg .pred over;\nmbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\nselp.u32 %0, 1, 0, over;\n}"
                 : "=r"(over)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return over;
}

/* ---- loading ---- */

/* One lane: units of the filter, in the order of use. */
__device__ __forceinline__ void load_filter(const params &p, const layout &l, uint32_t shared) {
    const ck_nm_plan &plan = p.plan;
    const int         each = plan.units;
    place             at;
    for (int tile = (int)blockIdx.x; tile < p.k_groups * p.groups; tile += (int)gridDim.x) {
        const int64_t block = (int64_t)(tile % p.k_groups) * plan.down;
        for (int u = 0; u < each; u++) {
            const uint32_t full = shared + 8 * (uint32_t)(BAR_UNIT + at.at), to = shared + l.units + (uint32_t)(at.at * plan.down * UNIT_BYTES);
            ck_mbar_wait(full + 8 * (BAR_USED - BAR_UNIT), at.parity ^ 1);
            ck_mbar_expect(full, (uint32_t)(plan.down * UNIT_BYTES));
            for (int d = 0; d < plan.down; d++) {
                const int64_t b = block + d < plan.blocks ? block + d : block; /* of a block that is not there nothing is written */
                ck_bulk_load(to + (uint32_t)(d * UNIT_BYTES), static_cast<const char *>(p.a.filter) + (b * each + u) * UNIT_BYTES, full, UNIT_BYTES);
            }
            at.next(plan.ring);
        }
    }
}

/* Input pixels of the positions of a block's tiles. */
__device__ __forceinline__ void fill_table(const params &p, int64_t first, int thread, int *table) {
    for (int t = 0; t < p.plan.across; t++)
        for (int i = thread; i < p.plan.staged; i += LOADERS)
            table[t * p.plan.staged + i] = (int)input_of(p.a.conv, p.plan, first + t, i);
}

/* A chunk's channels of all positions; GROUPS: of 8 channels. What is beside the image or the channels is 0. */
template <int GROUPS>
__device__ __forceinline__ void load_chunk(const params &p, const int *table, uint32_t to, int channel, int thread) {
    const ck_nm_plan &plan  = p.plan;
    const int         group = thread % GROUPS, c = channel + group * 8;
    const bool        some = c < p.a.conv.C;
    const char       *x    = static_cast<const char *>(p.a.x);
    for (int t = 0; t < plan.across; t++) {
        const uint32_t mine = to + (uint32_t)((t * GROUPS + group) * plan.plane * 16);
#pragma unroll 4
        for (int i = thread / GROUPS; i < plan.staged; i += LOADERS / GROUPS) {
            const int  pixel = table[t * plan.staged + i];
            const bool in    = some && pixel >= 0;
            copy_piece(mine + (uint32_t)(i * 16), in ? x + ((int64_t)pixel * p.a.conv.C + c) * 2 : x, in ? 16 : 0);
        }
    }
}

/* This thread's copies but for the last PENDING groups have arrived: those of `stage`. */
template <int PENDING> __device__ __forceinline__ void announce(uint32_t shared, int &stage) {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    ck_fence_async();
    if (stage >= 0) ck_mbar_arrive(shared + 8 * (uint32_t)(BAR_FULL + stage));
    stage = -1;
}

/* LOADERS threads: inputs, chunk by chunk. A stage is announced when the copies of the next one are under way, or at once when the next
 * one is not free. */
__device__ __forceinline__ void load_inputs(const params &p, const layout &l, uint32_t shared, int *table, int thread) {
    const ck_nm_plan &plan = p.plan;
    place             at;
    int               before = -1;
    for (int tile = (int)blockIdx.x; tile < p.k_groups * p.groups; tile += (int)gridDim.x) {
        ck_barrier(15, LOADERS);
        fill_table(p, (int64_t)(tile / p.k_groups) * plan.across, thread, table);
        ck_barrier(15, LOADERS);
        for (int chunk = 0; chunk < plan.chunks; chunk++) {
            const uint32_t to = shared + l.stages + (uint32_t)at.at * l.stage_bytes;
            const uint32_t empty = shared + 8 * (uint32_t)(BAR_EMPTY + at.at);
            if (!is_over(empty, at.parity ^ 1)) announce<0>(shared, before);
            ck_mbar_wait(empty, at.parity ^ 1);
            if (plan.chunk == 64)
                load_chunk<8>(p, table, to, chunk * 64, thread);
            else
                load_chunk<4>(p, table, to, chunk * 32, thread);
            asm volatile("cp.async.commit_group;" ::: "memory");
            if (before >= 0) announce<1>(shared, before);
            before = at.at;
            at.next(plan.stages);
        }
    }
    announce<0>(shared, before);
}

/* ---- multiplying ---- */

/* d[64][N] (+)= a[64][32 sparse] b[32][N]; the metadata is in lanes 2*HALF and 2*HALF + 1 of each four. */
template <typename T, int N, int HALF> struct sparse_product;
#define NM_D56 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27"
#define NM_ACC56(d) CK_ACC8(d, 0), CK_ACC8(d, 8), CK_ACC8(d, 16), "+f"((d)[24]), "+f"((d)[25]), "+f"((d)[26]), "+f"((d)[27])
#define NM_LAST56 "35"
#define NM_D64 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NM_ACC64(d) CK_ACC32(d, 0)
#define NM_LAST64 "39"
#define NM_D120 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59"
#define NM_ACC120(d) CK_ACC32(d, 0), CK_ACC8(d, 32), CK_ACC8(d, 40), CK_ACC8(d, 48), "+f"((d)[56]), "+f"((d)[57]), "+f"((d)[58]), "+f"((d)[59])
#define NM_LAST120 "67"
#define NM_D128 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NM_ACC128(d) CK_ACC64(d, 0)
#define NM_LAST128 "71"
#define NM_D208 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103"
#define NM_ACC208(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96)
#define NM_LAST208 "111"
#define NM_D216 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107"
#define NM_ACC216(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96), "+f"((d)[104]), "+f"((d)[105]), "+f"((d)[106]), "+f"((d)[107])
#define NM_LAST216 "115"
#define NM_D232 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115"
#define NM_ACC232(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96), CK_ACC8(d, 104), "+f"((d)[112]), "+f"((d)[113]), "+f"((d)[114]), "+f"((d)[115])
#define NM_LAST232 "123"
#define NM_D248 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123"
#define NM_ACC248(d) CK_ACC64(d, 0), CK_ACC32(d, 64), CK_ACC8(d, 96), CK_ACC8(d, 104), CK_ACC8(d, 112), "+f"((d)[120]), "+f"((d)[121]), "+f"((d)[122]), "+f"((d)[123])
#define NM_LAST248 "131"
#define NM_D256 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define NM_ACC256(d) CK_ACC64(d, 0), CK_ACC64(d, 64)
#define NM_LAST256 "135"
#define NM_PRODUCT(T, type, N, half, b0, b1, b2, b3, b4, b5, b6)                                                                    \
    template <int HALF> struct sparse_product<T, N, HALF> {                                                                        \
        static __device__ __forceinline__ void add(float (&d)[half], const uint32_t (&a)[4], uint64_t b, uint32_t places, int keep) { \
            asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" b6 ", 0;\nwgmma.mma_async.sp.sync.aligned.m64n" #N             \
                         "k32.f32." type "." type " {" NM_D##N "}, {%" b0 ", %" b1 ", %" b2 ", %" b3 "}, %" b4 ", %" b5            \
                         ", " "%" NM_LAST##N ", keep, 1, 1, 0;\n}"                                                               \
                         : NM_ACC##N(d)                                                                                          \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(places), "r"(keep), "n"(HALF));                  \
        }                                                                                                                          \
    };
NM_PRODUCT(__half, "f16", 56, 28, "28", "29", "30", "31", "32", "33", "34")
NM_PRODUCT(__half, "f16", 64, 32, "32", "33", "34", "35", "36", "37", "38")
NM_PRODUCT(__half, "f16", 120, 60, "60", "61", "62", "63", "64", "65", "66")
NM_PRODUCT(__half, "f16", 128, 64, "64", "65", "66", "67", "68", "69", "70")
NM_PRODUCT(__half, "f16", 208, 104, "104", "105", "106", "107", "108", "109", "110")
NM_PRODUCT(__half, "f16", 216, 108, "108", "109", "110", "111", "112", "113", "114")
NM_PRODUCT(__half, "f16", 232, 116, "116", "117", "118", "119", "120", "121", "122")
NM_PRODUCT(__half, "f16", 248, 124, "124", "125", "126", "127", "128", "129", "130")
NM_PRODUCT(__half, "f16", 256, 128, "128", "129", "130", "131", "132", "133", "134")
NM_PRODUCT(__nv_bfloat16, "bf16", 56, 28, "28", "29", "30", "31", "32", "33", "34")
NM_PRODUCT(__nv_bfloat16, "bf16", 64, 32, "32", "33", "34", "35", "36", "37", "38")
NM_PRODUCT(__nv_bfloat16, "bf16", 120, 60, "60", "61", "62", "63", "64", "65", "66")
NM_PRODUCT(__nv_bfloat16, "bf16", 128, 64, "64", "65", "66", "67", "68", "69", "70")
NM_PRODUCT(__nv_bfloat16, "bf16", 208, 104, "104", "105", "106", "107", "108", "109", "110")
NM_PRODUCT(__nv_bfloat16, "bf16", 216, 108, "108", "109", "110", "111", "112", "113", "114")
NM_PRODUCT(__nv_bfloat16, "bf16", 232, 116, "116", "117", "118", "119", "120", "121", "122")
NM_PRODUCT(__nv_bfloat16, "bf16", 248, 124, "124", "125", "126", "127", "128", "129", "130")
NM_PRODUCT(__nv_bfloat16, "bf16", 256, 128, "128", "129", "130", "131", "132", "133", "134")
#undef NM_PRODUCT


/* A unit's operand A of this lane. */
struct fragment {
    uint32_t a[2][4], places;
};
__device__ __forceinline__ void load_fragment(fragment &f, uint32_t unit, int warp, int lane) {
    const uint32_t from = unit + (uint32_t)((warp * CK_WARP + lane) * 16);
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f.a[i][0]), "=r"(f.a[i][1]), "=r"(f.a[i][2]), "=r"(f.a[i][3])
                     : "r"(from + (uint32_t)(i * 4 * CK_WARP * 16))
                     : "memory");
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(f.places) : "r"(unit + (uint32_t)(CK_NM_UNIT * 2 + (warp * CK_WARP + lane) * 4)) : "memory");
}

template <typename T, int N, int WORKERS> struct worker {
    const params  &p;
    const layout  &l;
    const uint32_t shared;
    const int      warp, lane, down, across; /* which of the block's channel blocks and tiles */
    place          stage, unit, done;   /* the next stage; the unit at hand; the next stage to give back */
    int            step, ended, ending; /* next of the chunk; stages whose last products are in the unit at hand, or under way */
    uint32_t       low, at[2];          /* lower halves of the descriptions of the chunk's operand, and of both steps' */
    float          acc[N / 2];

    __device__ worker(const params &params_, const layout &layout_, uint32_t shared_, int me)
        : p(params_), l(layout_), shared(shared_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32), down(me % params_.plan.down),
          across(me / params_.plan.down) {}

    __device__ __forceinline__ void arrive(uint32_t bar) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bar);
    }
    __device__ __forceinline__ void wait_unit() const { ck_mbar_wait(shared + 8 * (uint32_t)(BAR_UNIT + unit.at), unit.parity); }

    /* The description of the next step's operand. */
    __device__ __forceinline__ uint32_t next_step() {
        if (step == 0) {
            ck_mbar_wait(shared + 8 * (uint32_t)(BAR_FULL + stage.at), stage.parity);
            const uint32_t from = shared + l.stages + (uint32_t)stage.at * l.stage_bytes + (uint32_t)(across * p.plan.chunk / 8 * p.plan.plane * 16);
            low                 = from / 16 | (uint32_t)p.plan.plane << 16;
            stage.next(p.plan.stages);
        }
        const uint32_t from = low + (uint32_t)p.plan.at[step];
        if (++step == p.plan.steps) {
            step = 0;
            ended++;
        }
        return __shfl_sync(0xffffffffu, from, 0);
    }
    /* The unit at hand, which has arrived: its filter, and its operands' descriptions. `both`: it has two steps, else one of zeros. */
    __device__ __forceinline__ void fetch(fragment &f, bool both) {
        load_fragment(f, shared + l.units + (uint32_t)((unit.at * p.plan.down + down) * UNIT_BYTES), warp, lane);
        ended = 0;
        at[0] = next_step();
        at[1] = both ? next_step() : at[0];
    }
    __device__ __forceinline__ void give_back() {
#pragma unroll 1
        for (; ending > 0; ending--) {
            arrive(shared + 8 * (uint32_t)(BAR_EMPTY + done.at));
            done.next(p.plan.stages);
        }
    }
    /* The unit at hand's products; while they run the next unit is fetched, once those before them are done. Nothing may stand between the
     * products: ptxas would wait for each. */
    __device__ __forceinline__ void multiply(const fragment &f, fragment &next, int keep, bool more, bool both) {
        const uint64_t high = (uint64_t)(128 / 16) << 32;
        ck_wgmma_fence();
        sparse_product<T, N, 0>::add(acc, f.a[0], high | at[0], f.places, keep);
        sparse_product<T, N, 1>::add(acc, f.a[1], high | at[1], f.places, 1);
        ck_wgmma_commit();
        arrive(shared + 8 * (uint32_t)(BAR_USED + unit.at));
        unit.next(p.plan.ring);
        if (more) wait_unit();
        ck_wgmma_wait<1>();
        give_back();
        ending = ended;
        if (more) fetch(next, both);
    }

    /* The results, PIECE positions at a time. */
    __device__ __forceinline__ void write(int64_t block, int64_t tile, int me) const {
        float         *out   = reinterpret_cast<float *>(__cvta_shared_to_generic((size_t)(shared + l.out + (uint32_t)(me * OUT_BYTES))));
        const int      row   = warp * 16 + lane / 4, thread = (int)threadIdx.x % GROUP;
        const int64_t  k     = block * CK_NM_ROWS + thread % 8 * 8;
#pragma unroll
        for (int piece = 0; piece < N; piece += PIECE) {
            ck_barrier(1 + me, GROUP);
#pragma unroll
            for (int j = 0; j < PIECE / 8 && piece + j * 8 < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    out[(j * 8 + lane % 4 * 2 + e % 2) * OUT_ROW + row + e / 2 * 8] = acc[(piece / 8 + j) * 4 + e];
            ck_barrier(1 + me, GROUP);
#pragma unroll
            for (int i = 0; i < PIECE / 16 && piece + i * 16 < N; i++) {
                const int     column = i * 16 + thread / 8;
                const int64_t pixel  = piece + column < N ? output_of(p.a.conv, p.plan, tile, piece + column) : -1;
                if (pixel >= 0 && k < p.a.conv.K) finish<T>(p.a, out + column * OUT_ROW + thread % 8 * 8, pixel, k);
            }
        }
    }

    __device__ __forceinline__ void run(int me) {
        const int total = p.plan.chunks * p.plan.steps;
        fragment  even, odd;
        step = ending = 0;
        for (int tile = (int)blockIdx.x; tile < p.k_groups * p.groups; tile += (int)gridDim.x) {
            wait_unit();
            fetch(even, total > 1);
            for (int s = 0; s < total; s += 4) {
                multiply(even, odd, s, s + 2 < total, s + 3 < total);
                if (s + 2 < total) multiply(odd, even, 1, s + 4 < total, s + 5 < total);
            }
            ck_wgmma_wait<0>();
            ck_wgmma_hold(acc);
            give_back();
            const int64_t block = (int64_t)(tile % p.k_groups) * p.plan.down + down;
            const int64_t at    = (int64_t)(tile / p.k_groups) * p.plan.across + across;
            if (block < p.plan.blocks && at < p.plan.tiles) write(block, at, me);
        }
    }
};

#endif

template <typename T, int N, int WORKERS>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) conv(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    const layout                                    l(p.plan);
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.plan.stages; i++) {
            ck_mbar_init(shared + 8 * (uint32_t)(BAR_FULL + i), LOADERS);
            ck_mbar_init(shared + 8 * (uint32_t)(BAR_EMPTY + i), 4 * WORKERS);
        }
        for (int i = 0; i < p.plan.ring; i++) {
            ck_mbar_init(shared + 8 * (uint32_t)(BAR_UNIT + i), 1);
            ck_mbar_init(shared + 8 * (uint32_t)(BAR_USED + i), 4 * WORKERS);
        }
        ck_mbar_init_fence();
    }
    __syncthreads();
    const int group = (int)threadIdx.x / GROUP;
    if (group == 0) {
        ck_registers_fewer<56>();
        if (threadIdx.x < LOADERS)
            load_inputs(p, l, shared, reinterpret_cast<int *>(memory + l.table), (int)threadIdx.x);
        else if (threadIdx.x == LOADERS)
            load_filter(p, l, shared);
    } else {
        ck_registers_more<224>();
        worker<T, N, WORKERS> worker(p, l, shared, group - 1);
        worker.run(group - 1);
    }
#else
    (void)p;
    __trap();
#endif
}

template <typename T, int N, int WORKERS> cudaError_t launch(const params &p, int multiprocessors, cudaStream_t stream) {
    const cudaError_t e = cudaFuncSetAttribute(conv<T, N, WORKERS>, cudaFuncAttributeMaxDynamicSharedMemorySize, p.plan.shared_bytes);
    if (e != cudaSuccess) return e;
    const int tiles = p.k_groups * p.groups;
    conv<T, N, WORKERS><<<(unsigned)(tiles < multiprocessors ? tiles : multiprocessors), (1 + WORKERS) * GROUP, (size_t)p.plan.shared_bytes,
                          stream>>>(p);
    return cudaGetLastError();
}
template <typename T, int N> cudaError_t launch_workers(const params &p, int multiprocessors, cudaStream_t stream) {
    return p.plan.down * p.plan.across == 2 ? launch<T, N, 2>(p, multiprocessors, stream) : launch<T, N, 1>(p, multiprocessors, stream);
}
template <typename T> cudaError_t launch_columns(const params &p, int multiprocessors, cudaStream_t stream) {
    switch (p.plan.columns) {
    case 56: return launch_workers<T, 56>(p, multiprocessors, stream);
    case 64: return launch_workers<T, 64>(p, multiprocessors, stream);
    case 120: return launch_workers<T, 120>(p, multiprocessors, stream);
    case 128: return launch_workers<T, 128>(p, multiprocessors, stream);
    case 208: return launch_workers<T, 208>(p, multiprocessors, stream);
    case 216: return launch_workers<T, 216>(p, multiprocessors, stream);
    case 232: return launch_workers<T, 232>(p, multiprocessors, stream);
    case 248: return launch_workers<T, 248>(p, multiprocessors, stream);
    case 256: return launch_workers<T, 256>(p, multiprocessors, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace

cudaError_t conv_wgmma(const params &p, int multiprocessors, cudaStream_t stream) {
    if (p.a.conv.type == CK_F16) return launch_columns<__half>(p, multiprocessors, stream);
    if (p.a.conv.type == CK_BF16) return launch_columns<__nv_bfloat16>(p, multiprocessors, stream);
    return cudaErrorInvalidValue;
}

} // namespace nm
