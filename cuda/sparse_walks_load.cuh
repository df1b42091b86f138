/* sparse_walks_load.cuh: the kernel of sparse_walks_sm90a.cu up to what its workers read: parameters, barriers, loading by TMA, numbers taken
 * apart. */
#ifndef CK_SPARSE_WALKS_LOAD_CUH
#define CK_SPARSE_WALKS_LOAD_CUH

#include "hopper.cuh"
#include "sparse_walks.cuh"
#include "union_conv.cuh"

namespace walks {
namespace { /* included once, by the kernel */

enum { GROUP = 128, CONVERTERS = 96 /* threads */, AT_ONCE = CONVERTERS / 4, DEEP = 4 /* positions of a thread under way */ };
enum {
    BAR_FULL   = 0,
    BAR_READY  = MOST_STAGES,
    BAR_EMPTY  = 2 * MOST_STAGES,
    BAR_AGAIN  = 3 * MOST_STAGES,
    BAR_UNIT   = BAR_AGAIN + 1,
    BAR_USED   = BAR_UNIT + 2 * MOST_RING,
    BARS       = BAR_USED + 2 * MOST_RING,
    BARRIER_CONVERT = 1 /* of a block */
};
static_assert(BARS * 8 <= 768, "barriers fit");
struct params {
    CUtensorMap   x[CK_NM_PHASES];
    ck_walks_args a;
    ck_conv       conv;
    ck_nm_plan    plan;
    layout        l;
    int           k_groups, items; /* of the workers' blocks of channels; of those times tiles */
};

#if CK_HAS_SM90A

/* What the largest number of a stage should be, so that two f16 numbers hold it and its neighbours; what it becomes otherwise. */
constexpr float MOST = 32768.0f, LEAST = 16.0f, AIM = 4096.0f, FIRST_SCALE = 64.0f, LARGEST_SCALE = 0x1p120f;

struct item {
    int     tile;
    int64_t block; /* of output channels, the first worker's */
    __device__ item(const params &p, int i) : tile(i / p.k_groups), block((int64_t)(i % p.k_groups) * p.plan.workers) {}
};
/* Where a tile's inputs begin. */
struct corner {
    int image, row;
    __device__ corner(const params &p, int tile) {
        const int group = tile / p.plan.strips;
        image           = group * p.plan.images;
        row             = (tile - group * p.plan.strips) * p.plan.TP + p.plan.low_r;
    }
};

__device__ __forceinline__ uint32_t load_word(uint32_t from) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}
__device__ __forceinline__ void store_word(uint32_t to, uint32_t v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory"); }
__device__ __forceinline__ uint4 load_four(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}
__device__ __forceinline__ void store_four(uint32_t to, const uint4 &v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/* ---- loading ---- */

__device__ __forceinline__ uint32_t inputs_bytes(const params &p) { return (uint32_t)(p.plan.rows * p.plan.pitch * p.plan.images * POSITION); }
__device__ __forceinline__ uint32_t stage_at(const params &p, uint32_t shared, int stage) {
    return shared + p.l.stages + (uint32_t)(stage * p.plan.stage_bytes);
}

/* Of a block that is not there nothing is written: it has the last one's units. */
__device__ __forceinline__ int64_t block_of(const params &p, const item &it, int worker) {
    const int64_t block = it.block + worker;
    return block < p.plan.blocks ? block : p.plan.blocks - 1;
}

/* One thread has three things to load, each as soon as there is room for it. */
struct input_feed {
    const params  &p;
    const uint32_t shared;
    ck_ring_place  at;
    int            i, chunk = 0, phase = 0;
    __device__ input_feed(const params &params_, uint32_t shared_) : p(params_), shared(shared_), i((int)blockIdx.x) {}
    __device__ __forceinline__ bool is_done() const { return i >= p.items; }
    __device__ __forceinline__ void step() {
        const uint32_t full = shared + 8 * (uint32_t)(BAR_FULL + at.at);
        if (is_done() || !ck_mbar_is_over(full + 8 * (BAR_EMPTY - BAR_FULL), at.parity ^ 1)) return;
        const corner from(p, item(p, i).tile);
        ck_mbar_expect(full, inputs_bytes(p));
        ck_tma_load_box(stage_at(p, shared, at.at), &p.x[phase], full, chunk * CK_WALKS_CHUNK, from.image, p.plan.low_s, from.row);
        at.next(p.plan.stages);
        if (++phase < p.plan.phases) return;
        phase = 0;
        if (++chunk < p.plan.chunks) return;
        chunk = 0;
        i += (int)gridDim.x;
    }
};

struct filter_feed {
    const params  &p;
    const int      worker;
    const uint32_t shared, ring, bars;
    ck_ring_place  at;
    int            i;
    uint32_t       unit, end, next_unit = 0, next_end = 0;
    bool           waits; /* for the first worker's lead: load() */
    __device__ filter_feed(const params &params_, uint32_t shared_, int worker_)
        : p(params_), worker(worker_), shared(shared_), ring(shared_ + params_.l.ring + (uint32_t)(worker_ * params_.plan.ring * UNIT_SLOT)),
          bars(shared_ + 8 * (uint32_t)(BAR_UNIT + worker_ * MOST_RING)), i(worker_ < params_.plan.workers ? (int)blockIdx.x : params_.items),
          waits(worker_ == 1 && params_.plan.lead > 0) {
        look(i, unit, end);
        look(i + (int)gridDim.x, next_unit, next_end);
    }
    __device__ __forceinline__ bool is_done() const { return i >= p.items; }
    /* So many units, fewer than the ring has. Asked after each step until it is so: when the last of them is loaded over, it is so too. */
    __device__ __forceinline__ bool has_given_back(int units) const {
        return (at.parity && at.at >= units) || ck_mbar_is_over(bars + 8 * (uint32_t)(BAR_USED - BAR_UNIT + units - 1), 0);
    }
    __device__ __forceinline__ void look(int which, uint32_t &from, uint32_t &to) const {
        if (which >= p.items) return;
        const uint32_t *start = p.a.filter.start + block_of(p, item(p, which), worker);
        from = __ldg(start), to = __ldg(start + 1);
    }
    __device__ __forceinline__ void step() {
        const uint32_t full = bars + 8 * (uint32_t)at.at;
        if (is_done() || waits || !ck_mbar_is_over(full + 8 * (BAR_USED - BAR_UNIT), at.parity ^ 1)) return;
        ck_mbar_expect(full, UNIT_BYTES);
        ck_bulk_load(ring + (uint32_t)(at.at * UNIT_SLOT), static_cast<const char *>(p.a.filter.units) + (int64_t)unit * UNIT_BYTES, full, UNIT_BYTES);
        at.next(p.plan.ring);
        if (++unit < end) return;
        i += (int)gridDim.x, unit = next_unit, end = next_end;
        look(i + (int)gridDim.x, next_unit, next_end);
    }
};

__device__ __forceinline__ void load(const params &p, uint32_t shared) {
    input_feed  inputs(p, shared);
    filter_feed first(p, shared, 0), second(p, shared, 1);
    while (!inputs.is_done() || !first.is_done() || !second.is_done()) {
        inputs.step();
        first.step();
        if (second.waits) second.waits = !first.has_given_back(p.plan.lead);
        second.step();
    }
}

/* ---- taking numbers apart ---- */

/* A position's 32 numbers are four threads': 8 each. All of a position are read before any is written; of two neighbours in a warp the odd
 * one writes its low parts first, so that the eight threads meet all banks. */
struct converter {
    const params  &p;
    const uint32_t shared;
    const int      thread, lane;
    int            parity = 0; /* of the tables of largest numbers */
    uint32_t       again  = 0; /* of the barrier for a second load */

    __device__ converter(const params &params_, uint32_t shared_) : p(params_), shared(shared_), thread((int)threadIdx.x), lane((int)threadIdx.x % CK_WARP) {}

    __device__ __forceinline__ void barrier() const { ck_barrier(BARRIER_CONVERT, CONVERTERS); }
    /* Where this thread's i-th 16 bytes of a position lie. */
    __device__ __forceinline__ static uint32_t piece(uint32_t row, int at, int i) { return row + (uint32_t)((i ^ at % 8) * 16); }

    /* Gives the largest number (infinity too, NaN not) that this thread saw. */
    __device__ __forceinline__ float convert(uint32_t stage, float scale) const {
        const int positions = (int)(inputs_bytes(p) / POSITION), j = thread % 4;
        float     most = 0;
#pragma unroll 1
        for (int first = thread / 4; first < positions + thread / 4; first += AT_ONCE * DEEP) {
            uint4 v[DEEP][2];
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                const int at = first + d * AT_ONCE;
                v[d][0] = v[d][1] = make_uint4(0, 0, 0, 0);
                if (at < positions) {
                    v[d][0] = load_four(piece(stage + (uint32_t)(at * POSITION), at, 2 * j));
                    v[d][1] = load_four(piece(stage + (uint32_t)(at * POSITION), at, 2 * j + 1));
                }
            }
            __syncwarp();
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                const int at = first + d * AT_ONCE;
                float     x[8];
                uint32_t  high[4], low[4];
                ck_unpack<float>(v[d][0], x);
                ck_unpack<float>(v[d][1], x + 4);
#pragma unroll
                for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(x[i]));
#pragma unroll
                for (int i = 0; i < 4; i++) uni::split_exactly(x[2 * i] * scale, x[2 * i + 1] * scale, &high[i], &low[i]);
                const uint4 h = make_uint4(high[0], high[1], high[2], high[3]), l = make_uint4(low[0], low[1], low[2], low[3]);
                const bool  odd = at % 2;
                if (at < positions) {
                    const uint32_t row = stage + (uint32_t)(at * POSITION);
                    store_four(piece(row, at, odd ? 4 + j : j), odd ? l : h);
                    store_four(piece(row, at, odd ? j : 4 + j), odd ? h : l);
                }
            }
        }
        return most;
    }
    /* The largest finite number of what is not yet taken apart. */
    __device__ __forceinline__ float finite(uint32_t stage) const {
        const int positions = (int)(inputs_bytes(p) / POSITION);
        float     most      = 0;
        for (int i = thread; i < positions * 8; i += CONVERTERS) {
            float x[4];
            ck_unpack<float>(load_four(stage + (uint32_t)i * 16), x);
            for (int n = 0; n < 4; n++) most = fabsf(x[n]) < INFINITY ? fmaxf(most, fabsf(x[n])) : most;
        }
        return most;
    }
    /* The warpgroup's largest. What each thread wrote before is seen by wgmma and TMA after it. */
    __device__ __forceinline__ float agree(float most) {
        const uint32_t table = shared + p.l.most + (uint32_t)(parity * 16), bits = __reduce_max_sync(0xffffffffu, __float_as_uint(most));
        parity ^= 1;
        if (lane == 0) store_word(table + (uint32_t)(thread / CK_WARP * 4), bits);
        ck_fence_async();
        barrier();
        const uint4 all = load_four(table);
        return fmaxf(fmaxf(__uint_as_float(all.x), __uint_as_float(all.y)), __uint_as_float(all.z));
    }
    __device__ __forceinline__ static bool fits(float most, float scale, float ceiling) {
        return most == 0.0f || (most * scale <= MOST && (most * scale >= LEAST || scale >= ceiling));
    }
    /* Once more, with a scale that suits the numbers. */
    __device__ __forceinline__ float repeat(uint32_t stage, int phase, int c, const corner &from, float scale, float ceiling) {
        const uint32_t bar = shared + 8 * BAR_AGAIN;
        if (thread == 0) {
            ck_mbar_expect(bar, inputs_bytes(p));
            ck_tma_load_box(stage, &p.x[phase], bar, c, from.image, p.plan.low_s, from.row);
        }
        ck_mbar_wait(bar, again);
        again ^= 1;
        const float most = agree(finite(stage));
        if (!fits(most, scale, ceiling)) scale = fminf(ldexpf(1.0f, ilogbf(AIM) - ilogbf(most)), ceiling);
        convert(stage, scale);
        ck_fence_async();
        barrier();
        return scale;
    }

    __device__ __forceinline__ void run() {
        ck_ring_place at;
        for (int i = (int)blockIdx.x; i < p.items; i += (int)gridDim.x) {
            const corner from(p, item(p, i).tile);
            float        scale = FIRST_SCALE, ceiling = LARGEST_SCALE;
            for (int chunk = 0; chunk < p.plan.chunks; chunk++)
                for (int phase = 0; phase < p.plan.phases; phase++) {
                    const uint32_t full = shared + 8 * (uint32_t)(BAR_FULL + at.at), stage = stage_at(p, shared, at.at);
                    ck_mbar_wait(full, at.parity);
                    const float most = agree(convert(stage, scale));
                    if (!fits(most, scale, ceiling)) scale = repeat(stage, phase, chunk * CK_WALKS_CHUNK, from, scale, ceiling);
                    ceiling = fminf(ceiling, scale * 0x1p64f); /* sums that are made larger by more might leave f32 */
                    if (thread == 0) {
                        store_word(shared + p.l.scales + (uint32_t)(at.at * 4), __float_as_uint(scale));
                        ck_mbar_arrive(full + 8 * (BAR_READY - BAR_FULL));
                    }
                    at.next(p.plan.stages);
                }
        }
    }
};

#endif

} // namespace
} // namespace walks

#endif
