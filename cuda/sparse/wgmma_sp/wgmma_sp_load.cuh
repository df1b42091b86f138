/* cuda/sparse/wgmma_sp/wgmma_sp_load.cuh: loading for the kernel in cuda/sparse/wgmma_sp/wgmma_sp_sm90a.cu: parameters,
 * barriers, TMA, and the conversion of FP32 inputs to FP16 pairs. */
#ifndef CK_WGMMA_SP_LOAD_CUH
#define CK_WGMMA_SP_LOAD_CUH

#include "cuda/common/hopper.cuh"
#include "cuda/sparse/mma_sp/mma_sp.cuh"
#include "cuda/sparse/wgmma_sp/wgmma_sp.cuh"

namespace wgmma_sp {
namespace { /* included only by the kernel */

enum {
    GROUP               = 128,           /* threads per warpgroup */
    CONVERTERS          = 96,            /* threads per group of converting warps */
    POSITIONS_IN_FLIGHT = CONVERTERS / 4 /* positions that a group converts together */
};
enum {
    BAR_FULL         = 0,
    BAR_READY        = MAX_STAGES,
    BAR_EMPTY        = 2 * MAX_STAGES,
    BAR_RELOAD       = 3 * MAX_STAGES,
    BAR_LEAD         = BAR_RELOAD + 3,
    BAR_UNIT         = BAR_LEAD + 1,
    BAR_USED         = BAR_UNIT + 2 * MAX_RING,
    BARS             = BAR_USED + 2 * MAX_RING,
    BARRIER_CONVERT  = 1, /* named barriers of a thread block: one for each group of converting warps */
    BARRIER_PREPARED = 7
};
static_assert(BARS * 8 <= 768, "barriers fit");
struct params {
    CUtensorMap      x[CK_TWO_FOUR_PHASES];
    ck_wgmma_sp_args a;
    ck_conv          conv;
    ck_two_four_plan plan;
    layout           l;
    /* groups of the workers' blocks of channels; work items: groups x tiles */
    int k_groups, items;
    /* parts of the chunks: thread blocks that share an item; with 2 parts each thread block has at most one item */
    int parts;
};

#if CK_HAS_SM90A

/* Limits of the largest number of a stage, so that two FP16 numbers hold it and its neighbours, and the value to which
 * it is scaled otherwise. */
constexpr float MAX_STAGED = 32768.0f, MIN_STAGED = 16.0f, TARGET = 4096.0f, FIRST_SCALE = 64.0f,
                LARGEST_SCALE = 0x1p120f;

struct item {
    int        tile;
    int64_t    block; /* the first worker's block of output channels */
    __device__ item(const params &p, int i) : tile(i / p.k_groups), block((int64_t)(i % p.k_groups) * p.plan.workers) {}
};
/* The work items of this thread block, and its part of their chunks. */
__device__ __forceinline__ int first_item(const params &p) {
    return (int)blockIdx.x >> (p.parts - 1);
}
__device__ __forceinline__ int item_step(const params &p) {
    return (int)gridDim.x >> (p.parts - 1);
}
__device__ __forceinline__ int part_of(const params &p) {
    return (int)blockIdx.x & (p.parts - 1);
}
/* First image and row of a tile's inputs. */
struct corner {
    int        image, row;
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
__device__ __forceinline__ void store_word(uint32_t to, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ uint4 load_four(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_four(uint32_t to, const uint4 &v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* ---- loading ---- */

__device__ __forceinline__ uint32_t inputs_bytes(const params &p) {
    return (uint32_t)(p.plan.rows * p.plan.pitch * p.plan.images * POSITION);
}
__device__ __forceinline__ uint32_t stage_at(const params &p, uint32_t shared, int stage) {
    return shared + p.l.stages + (uint32_t)(stage * p.plan.stage_bytes);
}

/* A block that does not exist has the units of the last one; its results are not stored. */
__device__ __forceinline__ int64_t block_of(const params &p, const item &it, int worker) {
    const int64_t block = it.block + worker;
    return block < p.plan.blocks ? block : p.plan.blocks - 1;
}

/* One thread issues each load as soon as there is space for it. The time per unit is only a few dozen sequential
 * instructions, so that the number of instructions matters. */
struct input_loader {
    const params  &p;
    const uint32_t shared, bytes;
    uint32_t       bar, to, parity = 1;
    int            i, chunk, phase = 0;
    corner         from;
    __device__     input_loader(const params &params_, uint32_t shared_)
        : p(params_), shared(shared_), bytes(inputs_bytes(params_)), bar(shared_ + 8 * BAR_FULL),
          to(shared_ + params_.l.stages), i(first_item(params_)),
          chunk(chunk_from(params_.plan, params_.parts, part_of(params_))), from(params_, item(params_, i).tile) {}
    __device__ __forceinline__ bool is_done() const { return i >= p.items; }
    __device__ __forceinline__ void step() {
        if (is_done() || !ck_mbar_is_over(bar + 8 * (BAR_EMPTY - BAR_FULL), parity)) return;
        ck_mbar_expect(bar, bytes);
        ck_tma_load_box(to, &p.x[phase], bar, chunk * CK_WGMMA_SP_CHUNK, from.image, p.plan.low_s, from.row);
        bar += 8, to += (uint32_t)p.plan.stage_bytes;
        if (to == shared + p.l.ring) bar = shared + 8 * BAR_FULL, to = shared + p.l.stages, parity ^= 1;
        if (++phase < p.plan.phases) return;
        phase = 0;
        if (++chunk < chunk_from(p.plan, p.parts, part_of(p) + 1)) return;
        chunk = chunk_from(p.plan, p.parts, part_of(p));
        i += item_step(p);
        from = corner(p, item(p, i).tile);
    }
};

struct filter_loader {
    const params  &p;
    const int      worker;
    const uint32_t ring, bars;
    const char    *values, *words;
    uint32_t       bar, to, parity = 1, left = 0; /* units left of this item */
    int            i;
    uint32_t       next = 0, next_left = 0; /* first unit of the next item, and its number of units */
    __device__     filter_loader(const params &params_, uint32_t shared, int worker_, bool is)
        : p(params_), worker(worker_),
          ring(shared + params_.l.ring + (uint32_t)(worker_ * params_.plan.ring * UNIT_SLOT)),
          bars(shared + 8 * (uint32_t)(BAR_UNIT + worker_ * MAX_RING)), values(nullptr), words(nullptr), bar(bars),
          to(ring), i(is && worker_ < params_.plan.workers ? first_item(params_) : params_.items) {
        read_next_item();
        advance_item();
    }
    __device__ __forceinline__ bool is_done() const { return left == 0; }
    __device__ __forceinline__ void read_next_item() {
        next_left = 0;
        if (i >= p.items) return;
        const uint32_t *start = p.a.filter.start + block_of(p, item(p, i), worker) * p.parts + part_of(p);
        next = __ldg(start), next_left = __ldg(start + 1) - next;
    }
    /* Starts the next item, and reads the units of the item after it. */
    __device__ __forceinline__ void advance_item() {
        left   = next_left;
        values = static_cast<const char *>(p.a.filter.units) + (int64_t)next * UNIT_VALUES;
        words  = reinterpret_cast<const char *>(p.a.filter.words) + (int64_t)next * UNIT_WORDS;
        i += item_step(p);
        read_next_item();
    }
    __device__ __forceinline__ void issue_load() {
        ck_mbar_expect(bar, UNIT_BYTES);
        ck_bulk_load(to, values, bar, UNIT_VALUES);
        ck_bulk_load(to + UNIT_PLACES, words, bar, UNIT_WORDS);
        values += UNIT_VALUES, words += UNIT_WORDS, bar += 8, to += UNIT_SLOT;
        if (to == ring + (uint32_t)(p.plan.ring * UNIT_SLOT)) bar = bars, to = ring, parity ^= 1;
        if (--left == 0) advance_item();
    }
    __device__ __forceinline__ void step() {
        if (!is_done() && ck_mbar_is_over(bar + 8 * (BAR_USED - BAR_UNIT), parity)) issue_load();
    }
    __device__ __forceinline__ void run() {
        while (!is_done()) {
            ck_mbar_wait(bar + 8 * (BAR_USED - BAR_UNIT), parity);
            issue_load();
        }
    }
};

/* Run by one thread of each group's last warp. The first group loads inputs. Each worker has one of the other groups
 * for its units, as far as there are other groups. */
template <int GROUPS, int WORKERS> __device__ __forceinline__ void load(const params &p, uint32_t shared, int group) {
    const int worker = group - (GROUPS - WORKERS);
    if (group > 0) {
        if (worker >= 0 && worker < WORKERS) filter_loader(p, shared, worker, true).run();
        return;
    }
    input_loader  inputs(p, shared);
    filter_loader first(p, shared, 0, GROUPS <= WORKERS), second(p, shared, 1, GROUPS == 1 && WORKERS == 2);
    while (!inputs.is_done() || !first.is_done() || !second.is_done()) {
        inputs.step();
        if (GROUPS <= WORKERS) first.step();
        if (GROUPS == 1 && WORKERS == 2) second.step();
    }
}

/* ---- conversion of inputs ---- */

/* Four threads convert the 32 numbers of a position, 8 each; a warp converts 8 positions together. All numbers of a
 * position are read before any is written. Eight threads that access memory together have two positions whose indices
 * differ in bits 0 and 2, so that reads and writes access all banks. The groups of warps convert the stages in turn.
 * IN_FLIGHT: positions per thread in flight. */
template <int GROUPS, int IN_FLIGHT> struct converter {
    const params  &p;
    const uint32_t shared;
    /* thread, warp: within the group; row: position within the warp's 8 */
    const int group, thread, lane, warp, row;
    /* byte offsets of this thread's numbers in a position: input; high and low parts */
    uint32_t input[2], part[2];
    int      parity        = 0; /* of the tables of maxima */
    uint32_t reload_parity = 0; /* parity of the barrier for a second load */

    __device__ converter(const params &params_, uint32_t shared_, int thread_)
        : p(params_), shared(shared_), group(thread_ / CONVERTERS), thread(thread_ % CONVERTERS),
          lane((int)threadIdx.x % CK_WARP), warp(thread / CK_WARP), row(lane / 8 ^ (lane % 8 / 4) * 5) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            input[i] = (uint32_t)((lane % 4 * 2 + i) ^ row) * 16, part[i] = (uint32_t)((lane % 4 + i * 4) ^ row) * 16;
    }

    __device__ __forceinline__ void barrier() const {
        ck_barrier(BARRIER_CONVERT + group, CONVERTERS);
    }

    /* Converts a stage. Returns the largest number (infinity too, NaN not) that this thread has read. */
    __device__ __forceinline__ float convert(uint32_t stage, float scale) const {
        const int positions = (int)(inputs_bytes(p) / POSITION);
        float     max_abs   = 0;
#pragma unroll 1
        for (int first = warp * 8; first < positions; first += POSITIONS_IN_FLIGHT * IN_FLIGHT) {
            const uint32_t from = stage + (uint32_t)((first + row) * POSITION);
            uint4          v[IN_FLIGHT][2];
#pragma unroll
            for (int d = 0; d < IN_FLIGHT; d++) {
                v[d][0] = v[d][1] = make_uint4(0, 0, 0, 0);
                if (first + row + d * POSITIONS_IN_FLIGHT < positions)
                    v[d][0] = load_four(from + input[0] + d * POSITIONS_IN_FLIGHT * POSITION),
                    v[d][1] = load_four(from + input[1] + d * POSITIONS_IN_FLIGHT * POSITION);
            }
            __syncwarp();
#pragma unroll
            for (int d = 0; d < IN_FLIGHT; d++) {
                float    x[8];
                uint32_t high[4], low[4];
                ck_unpack<float>(v[d][0], x);
                ck_unpack<float>(v[d][1], x + 4);
#pragma unroll
                for (int i = 0; i < 8; i++) max_abs = fmaxf(max_abs, fabsf(x[i]));
#pragma unroll
                for (int i = 0; i < 4; i++)
                    mma_sp::split_exactly(x[2 * i] * scale, x[2 * i + 1] * scale, &high[i], &low[i]);
                if (first + row + d * POSITIONS_IN_FLIGHT >= positions) continue;
                store_four(from + part[0] + d * POSITIONS_IN_FLIGHT * POSITION,
                           make_uint4(high[0], high[1], high[2], high[3]));
                store_four(from + part[1] + d * POSITIONS_IN_FLIGHT * POSITION,
                           make_uint4(low[0], low[1], low[2], low[3]));
            }
        }
        return max_abs;
    }
    /* The largest finite number of a stage that is not yet converted. */
    __device__ __forceinline__ float max_finite(uint32_t stage) const {
        const int positions = (int)(inputs_bytes(p) / POSITION);
        float     max_abs   = 0;
        for (int i = thread; i < positions * 8; i += CONVERTERS) {
            float x[4];
            ck_unpack<float>(load_four(stage + (uint32_t)i * 16), x);
            for (int n = 0; n < 4; n++) max_abs = fabsf(x[n]) < INFINITY ? fmaxf(max_abs, fabsf(x[n])) : max_abs;
        }
        return max_abs;
    }
    /* Maximum over the group. wgmma and TMA see the earlier writes of all threads afterwards. */
    __device__ __forceinline__ float reduce_max(float max_abs) {
        const uint32_t table = shared + p.l.maxima + (uint32_t)(group * 32 + parity * 16),
                       bits  = __reduce_max_sync(0xffffffffu, __float_as_uint(max_abs));
        parity ^= 1;
        if (lane == 0) store_word(table + (uint32_t)(warp * 4), bits);
        ck_fence_async();
        barrier();
        const uint4 all = load_four(table); /* the words of three warps; nonnegative floats are ordered as integers */
        return __uint_as_float(max(max(all.x, all.y), all.z));
    }
    __device__ __forceinline__ static bool fits(float max_abs, float scale, float ceiling) {
        return scale <= ceiling && (max_abs == 0.0f || (max_abs * scale <= MAX_STAGED &&
                                                        (max_abs * scale >= MIN_STAGED || scale >= ceiling)));
    }
    /* Loads and converts the stage again, with a scale that fits its numbers. Returns the scale. */
    __device__ __forceinline__ float convert_again(uint32_t stage, int phase, int c, const corner &from, float scale,
                                                   float ceiling) {
        const uint32_t bar = shared + 8 * (uint32_t)(BAR_RELOAD + group);
        if (thread == 0) {
            ck_mbar_expect(bar, inputs_bytes(p));
            ck_tma_load_box(stage, &p.x[phase], bar, c, from.image, p.plan.low_s, from.row);
        }
        ck_mbar_wait(bar, reload_parity);
        reload_parity ^= 1;
        const float max_abs = reduce_max(max_finite(stage));
        scale               = fminf(scale, ceiling);
        if (!fits(max_abs, scale, ceiling)) scale = fminf(ldexpf(1.0f, ilogbf(TARGET) - ilogbf(max_abs)), ceiling);
        convert(stage, scale);
        ck_fence_async();
        barrier();
        return scale;
    }

    /* Converts one stage; returns its scale. The upper limit of the scale is passed from stage to stage of a tile: sums
     * that are scaled up too much could overflow FP32. */
    __device__ __forceinline__ float convert_stage(const ck_ring_place &at, const ck_ring_place &before, bool first,
                                                   int phase, int c, const corner &from, float scale) {
        const uint32_t full = shared + 8 * (uint32_t)(BAR_FULL + at.at), stage = stage_at(p, shared, at.at);
        ck_mbar_wait(full, at.parity);
        const float max_abs = reduce_max(convert(stage, scale));
        float       ceiling = LARGEST_SCALE;
        if (!first) {
            if (GROUPS > 1) ck_mbar_wait(shared + 8 * (uint32_t)(BAR_READY + before.at), before.parity);
            ceiling = __uint_as_float(load_word(shared + p.l.ceilings + (uint32_t)(before.at * 4)));
        }
        if (!fits(max_abs, scale, ceiling)) scale = convert_again(stage, phase, c, from, scale, ceiling);
        if (thread == 0) {
            store_word(shared + p.l.scales + (uint32_t)(at.at * 4), __float_as_uint(scale));
            store_word(shared + p.l.ceilings + (uint32_t)(at.at * 4), __float_as_uint(fminf(ceiling, scale * 0x1p64f)));
            ck_mbar_arrive(full + 8 * (BAR_READY - BAR_FULL));
        }
        return scale;
    }

    __device__ __forceinline__ void run() {
        ck_ring_place at, before;
        int           owner = 0;
        float         scale = FIRST_SCALE; /* of the group's previous stage, also across tiles: most tiles are alike */
        const int     begin = chunk_from(p.plan, p.parts, part_of(p)) * p.plan.phases,
                  end       = chunk_from(p.plan, p.parts, part_of(p) + 1) * p.plan.phases;
        for (int i = first_item(p); i < p.items; i += item_step(p)) {
            const corner from(p, item(p, i).tile);
            for (int stage = begin; stage < end; stage++) {
                const int chunk = stage / p.plan.phases;
                if (owner == group)
                    scale = convert_stage(at, before, stage == begin, stage - chunk * p.plan.phases,
                                          chunk * CK_WGMMA_SP_CHUNK, from, scale);
                owner  = owner + 1 < GROUPS ? owner + 1 : 0;
                before = at;
                at.next(p.plan.stages);
            }
        }
    }
};

#endif

} // namespace
} // namespace wgmma_sp

#endif
