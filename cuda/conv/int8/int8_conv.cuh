/* cuda/conv/int8/int8_conv.cuh: the division of a launch of cuda/conv/int8/int8_conv_sm90a.cu, the kernel's arguments,
 * and the threads that load. */
#ifndef CK_INT8_CONV_CUH
#define CK_INT8_CONV_CUH

#include "cuda/common/hopper_int8.cuh"
#include "cuda/conv/int8/int8_conv.h"

namespace {

enum {
    GROUP        = 128, /* threads of a warpgroup */
    ROWS         = 64,  /* of one product */
    WORKERS_MAX  = 3,
    SLOTS_MAX    = 8, /* of the ring of x */
    FILTERS_MAX  = 8, /* of the ring of filters */
    ADDS         = 2, /* of the ring of add */
    SHARED_LIMIT = 227 * 1024
};

/* Tile of a worker (a warpgroup): height * 64 positions x columns. resident: the block holds the filters of its columns
 * and each worker has a ring of its own; else the filters pass through a ring, and all workers process neighbouring
 * rows of one tile. halo: x is loaded once for all filter positions. */
struct tile_config {
    int  columns, height, workers;
    bool resident, halo;
};

/* Division of a launch; offsets are into shared memory. */
struct plan {
    struct tile_config config;
    int                chunk;                /* bytes of a row in shared memory: channels of a step, 64 or 128 */
    int                taps, rounds;         /* filter positions that one slot of x serves; slots of x for each tile */
    int                slots, filters, rows; /* of the rings of x and of filters; positions in a slot of x */
    int                slot_bytes, add_bytes;
    int                blocks_k, tiles, grid;
    int                w_at, x_at, add_at, coeffs_at, bar_at, bytes;
};

struct params {
    CUtensorMap  x, w, add;
    struct plan  plan;
    const float *coeffs;
    void        *y;
    int          positions, K, chunks; /* positions: rows of the product; chunks: steps over the channels */
    int          H, W, P, Q, S, stride, pad;
    int          y_type;
    float        least; /* of v */
    bool         add_given, add_signed;
    bool         by_pixel; /* x is loaded pixel by pixel (padding, stride), not as a matrix */
};

/* Barriers, 8 bytes each, from bar_at on. */
enum {
    BAR_X         = 0, /* full, of each ring */
    BAR_X_EMPTY   = BAR_X + WORKERS_MAX * SLOTS_MAX,
    BAR_ADD       = BAR_X_EMPTY + WORKERS_MAX * SLOTS_MAX,
    BAR_ADD_EMPTY = BAR_ADD + WORKERS_MAX * ADDS,
    BAR_W         = BAR_ADD_EMPTY + WORKERS_MAX * ADDS,
    BAR_W_EMPTY   = BAR_W + FILTERS_MAX,
    BAR_COUNT     = BAR_W_EMPTY + FILTERS_MAX
};

#if CK_HAS_SM90A

/* The tiles of ring `ring` of `rings` of this block, in order. */
struct tiles {
    int        at, step, end, column_block;
    bool       resident;
    __device__ tiles(const plan &p, int ring) {
        const int block = (int)blockIdx.x, blocks = (int)gridDim.x, rings = p.config.resident ? p.config.workers : 1;
        resident     = p.config.resident;
        at           = resident ? block / p.blocks_k * rings + ring : block;
        step         = resident ? blocks / p.blocks_k * rings : blocks;
        end          = p.tiles;
        column_block = block % p.blocks_k;
    }
    __device__ __forceinline__ bool more() const { return at < end; }
    __device__ __forceinline__ void next() { at += step; }
    /* first position and first column of the tile */
    __device__ __forceinline__ int row(const plan &p) const {
        const int high = p.config.height * ROWS * (resident ? 1 : p.config.workers);
        return (resident ? at : at / p.blocks_k) * high;
    }
    __device__ __forceinline__ int column(const plan &p) const {
        return (resident ? column_block : at % p.blocks_k) * p.config.columns;
    }
};

/* Image, row and column of a position. With a halo, positions are those of images with one more row and column. */
struct place {
    int        n, h, w;
    __device__ place(const params &p, int position) {
        const int wide = p.plan.config.halo ? p.W + 1 : p.Q, high = p.plan.config.halo ? p.H + 1 : p.P;
        const int line = position / wide;
        w              = position - line * wide;
        n              = line / high;
        h              = line - n * high;
    }
};

/* One thread fills ring `ring` with x and add. */
__device__ __forceinline__ void load_x(const params &p, uint32_t shared, int ring) {
    const plan    &plan  = p.plan;
    const uint32_t bars  = shared + (uint32_t)plan.bar_at;
    const uint32_t x     = shared + (uint32_t)(plan.x_at + ring * plan.slots * plan.slot_bytes),
                   add   = shared + (uint32_t)(plan.add_at + ring * ADDS * plan.add_bytes);
    const uint32_t full  = bars + 8 * (uint32_t)(BAR_X + ring * SLOTS_MAX),
                   empty = bars + 8 * (uint32_t)(BAR_X_EMPTY + ring * SLOTS_MAX);
    const int     panel  = plan.config.columns < 128 ? 64 : 128;
    ck_ring_place at, add_at;
    for (tiles t(plan, ring); t.more(); t.next()) {
        const int   row = t.row(plan), column = t.column(plan);
        const place first(p, row);
        if (p.add_given) {
            const uint32_t bar = bars + 8 * (uint32_t)(BAR_ADD + ring * ADDS + add_at.at);
            ck_mbar_wait(bars + 8 * (uint32_t)(BAR_ADD_EMPTY + ring * ADDS + add_at.at), add_at.parity ^ 1);
            ck_mbar_expect(bar, (uint32_t)plan.add_bytes);
            for (int c = 0; c < plan.config.columns; c += panel) {
                const uint32_t to =
                    add + (uint32_t)(add_at.at * plan.add_bytes + c * (plan.add_bytes / plan.config.columns));
                if (plan.config.halo)
                    ck_tma_load_pixels(to, &p.add, bar, column + c, first.w, first.h, first.n);
                else
                    ck_tma_load(to, &p.add, bar, column + c, row);
            }
            add_at.next(ADDS);
        }
        for (int i = 0; i < plan.rounds; i++) {
            const uint32_t bar = full + 8 * (uint32_t)at.at, to = x + (uint32_t)(at.at * plan.slot_bytes);
            ck_mbar_wait(empty + 8 * (uint32_t)at.at, at.parity ^ 1);
            ck_mbar_expect(bar, (uint32_t)(plan.rows * plan.chunk));
            if (plan.config.halo) {
                ck_tma_load_pixels(to, &p.x, bar, i * plan.chunk, first.w - 1, first.h - 1, first.n);
            } else if (p.by_pixel) {
                const int taps = plan.rounds / p.chunks, c = i / taps, tap = i - c * taps, r = tap / p.S;
                ck_tma_load_pixels(to, &p.x, bar, c * plan.chunk, first.w * p.stride - p.pad,
                                   first.h * p.stride - p.pad, first.n, tap - r * p.S, r);
            } else {
                ck_tma_load(to, &p.x, bar, i * plan.chunk, row);
            }
            at.next(plan.slots);
        }
    }
}

/* Step `step` of a tile's product reads these columns of the packed filter: all positions of one chunk of channels. */
__device__ __forceinline__ void load_filter(const params &p, uint32_t to, uint32_t bar, int step, int column) {
    const int taps = p.plan.taps * p.plan.rounds / p.chunks, c = step / taps, tap = step - c * taps;
    ck_tma_load(to, &p.w, bar, (tap * p.chunks + c) * p.plan.chunk, column);
}

/* One thread loads the filters: once, or through the ring. */
__device__ __forceinline__ void load_w(const params &p, uint32_t shared) {
    const plan    &plan = p.plan;
    const uint32_t bars = shared + (uint32_t)plan.bar_at, w = shared + (uint32_t)plan.w_at;
    const uint32_t bytes = (uint32_t)(plan.config.columns * plan.chunk);
    const int      steps = plan.taps * plan.rounds;
    tiles          t(plan, 0);
    if (plan.config.resident) {
        ck_mbar_expect(bars + 8 * BAR_W, (uint32_t)steps * bytes);
        for (int i = 0; i < steps; i++) load_filter(p, w + (uint32_t)i * bytes, bars + 8 * BAR_W, i, t.column(plan));
        return;
    }
    ck_ring_place at;
    for (; t.more(); t.next())
        for (int i = 0; i < steps; i++) {
            const uint32_t bar = bars + 8 * (uint32_t)(BAR_W + at.at);
            ck_mbar_wait(bars + 8 * (uint32_t)(BAR_W_EMPTY + at.at), at.parity ^ 1);
            ck_mbar_expect(bar, bytes);
            load_filter(p, w + (uint32_t)at.at * bytes, bar, i, t.column(plan));
            at.next(plan.filters);
        }
}

#endif

} // namespace

#endif
