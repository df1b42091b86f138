/* cuda/sparse/block/block_sparse.cuh: the parameters, the tile scheduler and the loading threads of the kernel in
 * cuda/sparse/block/block_sparse_sm90a.cu. */
#ifndef CK_BLOCK_SPARSE_CUH
#define CK_BLOCK_SPARSE_CUH

#include "cuda/common/hopper.cuh"
#include "cuda/sparse/block/block_sparse.h"

namespace {

enum {
    GROUP        = 128, /* threads per warpgroup */
    ROW_BYTES    = 128, /* 64 channels */
    TEAMS_MAX    = 4,
    PANEL        = 64, /* pixels that are stored together */
    PANEL_BYTES  = PANEL * ROW_BYTES,
    PIXELS_MAX   = 256, /* maximum columns of a tile */
    STAGES_MAX   = 8,   /* maximum stages of a ring */
    SHARED_LIMIT = 227 * 1024,
    SHARED_HALF  = 113 * 1024, /* per thread block, when two share a multiprocessor */
};

/* Indices of the barriers, 8 bytes each, from bar_at on: full and empty for the stages of x, then for each team's ring
 * of filter blocks. */
enum {
    BAR_X_FULL  = 0,
    BAR_X_EMPTY = STAGES_MAX,
    BAR_W_FULL  = 2 * STAGES_MAX,
    BAR_W_EMPTY = BAR_W_FULL + TEAMS_MAX * STAGES_MAX,
    BAR_COUNT   = BAR_W_EMPTY + TEAMS_MAX * STAGES_MAX
};

enum loading { AS_MATRIX, AS_PIXELS, AS_PATCH };

struct params {
    CUtensorMap                 x;
    struct ck_block_sparse_plan plan;
    struct ck_block_sparse_list list;
    enum loading                loading;
    const uint32_t             *table;
    const char                 *blocks;
    const float                *bias;
    const char                 *add;
    char                       *y;
    int64_t                     pixels; /* pixels of y */
    int                         N, P, Q, stride, pad;
    int64_t                     K;
    bool                        relu;
};

#if CK_HAS_SM90A

/* The sequence of the thread block's tiles. With `interleave` the groups of a part are consecutive; every round begins
 * with the next group, so that each thread block computes all of them. */
struct scheduler {
    int        groups, tiles, tile, group, part; /* part: the first part of the tile */
    int        index, round;
    __device__ scheduler(const params &p)
        : groups(p.plan.groups), tiles((int)p.plan.tiles), index((int)blockIdx.x), round(0) {
        find(p);
    }
    __device__ __forceinline__ void find(const params &p) {
        if (p.plan.interleave) {
            tile  = index / groups;
            group = (index - tile * groups + round) % groups;
        } else {
            group = index / tiles;
            tile  = index - group * tiles;
        }
        part = tile * p.plan.parts;
    }
    __device__ __forceinline__ bool more() const { return index < groups * tiles; }
    __device__ __forceinline__ void next(const params &p) {
        index += (int)gridDim.x;
        round++;
        find(p);
    }
};

/* ---- loading threads ---- */

/* Bytes that a load of one part transfers. */
__device__ __forceinline__ uint32_t part_bytes(const params &p) {
    return (uint32_t)(p.loading == AS_PATCH ? p.plan.box * p.plan.pitch * p.plan.images : p.plan.columns) * ROW_BYTES;
}

__device__ __forceinline__ void load_part(const params &p, uint32_t to, uint32_t bar, int part, uint32_t step) {
    const int c = (int)(step & 0xffffu) * CK_BLOCK_SPARSE_SIDE, r = (int)(step >> 16 & 0xff), s = (int)(step >> 24);
    if (part >= p.plan.runs) part = 0; /* the result is not stored */
    if (p.loading == AS_MATRIX) {
        ck_tma_load(to, &p.x, bar, c, part * p.plan.columns);
    } else if (p.loading == AS_PIXELS) {
        const int pixel = part * p.plan.columns, n = pixel / (p.P * p.Q), rest = pixel - n * (p.P * p.Q),
                  h = rest / p.Q;
        ck_tma_load_pixels(to, &p.x, bar, c, (rest - h * p.Q) * p.stride - p.pad, h * p.stride - p.pad, n, s, r);
    } else {
        const int image = part / p.plan.strips, strip = part - image * p.plan.strips;
        ck_tma_load_box(to, &p.x, bar, c, -p.pad, strip * p.plan.rows - p.pad, image * p.plan.images);
    }
}

/* Run by one thread: loads the stages of x. */
__device__ __forceinline__ void load_x(const params &p, uint32_t shared) {
    const uint32_t bar = shared + (uint32_t)p.plan.bar_at, to = shared + (uint32_t)p.plan.x_at;
    ck_ring_place  at;
    for (scheduler scheduler(p); scheduler.more(); scheduler.next(p)) {
        const uint32_t *steps = p.table + p.list.steps + scheduler.group;
        const uint32_t  end   = steps[1];
        for (uint32_t i = steps[0]; i < end; i++) {
            const uint32_t step = p.table[p.list.step + i], full = bar + 8 * (uint32_t)(BAR_X_FULL + at.at);
            ck_mbar_wait(bar + 8 * (uint32_t)(BAR_X_EMPTY + at.at), at.parity ^ 1);
            ck_mbar_expect(full, part_bytes(p) * (uint32_t)p.plan.parts);
            for (int part = 0; part < p.plan.parts; part++)
                load_part(p, to + (uint32_t)((at.at * p.plan.parts + part) * p.plan.x_bytes), full,
                          scheduler.part + part, step);
            at.next(p.plan.stages);
        }
    }
}

/* Run by one thread: loads the filter blocks in the order of the list, each into its team's ring. */
__device__ __forceinline__ void load_w(const params &p, uint32_t shared) {
    const uint32_t bar = shared + (uint32_t)p.plan.bar_at, to = shared + (uint32_t)p.plan.w_at;
    ck_ring_place  at[TEAMS_MAX];
    for (scheduler scheduler(p); scheduler.more(); scheduler.next(p)) {
        const uint32_t *items = p.table + p.list.items + scheduler.group;
        const uint32_t  end   = items[1];
        for (uint32_t i = items[0]; i < end; i++) {
            const int team = (int)p.table[p.list.item + i];
#pragma unroll
            for (int t = 0; t < TEAMS_MAX; t++)
                if (t == team) {
                    const uint32_t slot = (uint32_t)(t * STAGES_MAX + at[t].at), full = bar + 8 * (BAR_W_FULL + slot);
                    ck_mbar_wait(bar + 8 * (BAR_W_EMPTY + slot), at[t].parity ^ 1);
                    ck_mbar_expect(full, CK_BLOCK_SPARSE_BYTES);
                    ck_bulk_load(to + (uint32_t)((t * p.plan.ring + at[t].at) * CK_BLOCK_SPARSE_BYTES),
                                 p.blocks + (int64_t)i * CK_BLOCK_SPARSE_BYTES, full, CK_BLOCK_SPARSE_BYTES);
                    at[t].next(p.plan.ring);
                }
        }
    }
}

#endif

} // namespace

#endif
