/* cuda/conv/pair/conv_pair.cuh: the division of a launch of cuda/conv/pair/conv_pair_sm90a.cu, the kernel's arguments,
 * and the threads that load. */
#ifndef CK_CONV_PAIR_CUH
#define CK_CONV_PAIR_CUH

#include "cuda/common/hopper_int8.cuh"
#include "cuda/conv/pair/conv_pair.h"

namespace {

enum {
    GROUP        = 128, /* threads of a warpgroup */
    ROWS         = 64,  /* pixels of a worker's tile */
    PANEL        = 128, /* bytes of a row of a slot of y */
    SLOT_BYTES   = ROWS * PANEL,
    WORKERS      = 2, /* warpgroups that multiply */
    X_SLOTS_MAX  = 2,
    Y_SLOTS_MAX  = 8,
    SHARED_LIMIT = 227 * 1024
};

/* The block holds both filters. Each worker (a warpgroup) has tiles of its own. */
struct plan {
    int L, x_panel;     /* x_panel: bytes of a row of x in shared memory, 64 or 128 */
    int panels, chunks; /* of a row of x; of a row of y, PANEL bytes each */
    int x_bytes;        /* of a slot of x */
    int filter_bytes;   /* of the pieces of both filters that belong to a chunk */
    int x_slots, y_slots, tiles, grid;
    int x_at, y_at, coeffs_at, bar_at, bytes; /* offsets in shared memory; the filters are first */
};

struct params {
    CUtensorMap  x, w, next_w, add, y, z;
    struct plan  plan;
    const float *coeffs, *next_coeffs;
    void        *to; /* z */
    int          pixels, K, z_panels;
    bool         add_given, add_signed;
};

/* Barriers, 8 bytes each, from bar_at on. A full barrier counts one arrival, an empty one those of four warps. */
enum {
    BAR_X     = 0,
    BAR_Y     = BAR_X + WORKERS * X_SLOTS_MAX,
    BAR_W     = BAR_Y + WORKERS * Y_SLOTS_MAX,
    BAR_FULL  = BAR_W + 1, /* number of full barriers; the empty ones follow in the same order */
    BAR_COUNT = 2 * BAR_FULL
};

#if CK_HAS_SM90A

/* The numbers of a worker's tiles, in order. Few tiles are spread over the blocks, one each. */
struct tiles {
    int        at, step, end;
    __device__ tiles(const plan &p, int worker)
        : at((int)blockIdx.x + worker * (int)gridDim.x), step((int)gridDim.x * WORKERS), end(p.tiles) {}
    __device__ __forceinline__ bool more() const { return at < end; }
    __device__ __forceinline__ void next() { at += step; }
};

/* A tile of ROWS neighbouring pixels of a matrix [pixels][channels]. */
struct pixel_tile {
    int                             first, pixels;
    __device__                      pixel_tile(const params &p, int tile) : first(tile * ROWS), pixels(p.pixels) {}
    __device__ __forceinline__ void load(uint32_t to, const CUtensorMap *map, uint32_t bar, int column) const {
        ck_tma_load(to, map, bar, column, first);
    }
    __device__ __forceinline__ void store(const CUtensorMap *map, uint32_t from, int column) const {
        ck_tma_store(map, from, column, first);
    }
    /* The pixel of row `row` of the tile; -1: none. */
    __device__ __forceinline__ int pixel(int row) const { return first + row < pixels ? first + row : -1; }
};

/* Fills a worker's slots of y for a tile with add, if it is given. Slots in which the worker will write z stay
 * unchanged. */
template <typename Tile>
__device__ __forceinline__ void load_add(const params &p, uint32_t shared, int worker, const Tile &tile,
                                         ck_ring_place &y) {
    const plan    &plan  = p.plan;
    const uint32_t y_bar = shared + (uint32_t)(plan.bar_at + 8 * (BAR_Y + worker * Y_SLOTS_MAX)), empty = 8 * BAR_FULL;
    const uint32_t y_at = shared + (uint32_t)(plan.y_at + worker * plan.y_slots * SLOT_BYTES);
    for (int i = 0; i < plan.chunks + p.z_panels; i++) {
        const uint32_t slot = y_bar + 8 * (uint32_t)y.at;
        ck_mbar_wait(slot + empty, y.parity ^ 1);
        if (i < plan.chunks && p.add_given) {
            ck_mbar_expect(slot, SLOT_BYTES);
            tile.load(y_at + (uint32_t)(y.at * SLOT_BYTES), &p.add, slot, i * PANEL);
        } else {
            ck_mbar_arrive(slot);
        }
        y.next(plan.y_slots);
    }
}

/* One thread fills a worker's slots of x, and of y with add. */
__device__ __forceinline__ void load_x(const params &p, uint32_t shared, int worker) {
    const plan    &plan  = p.plan;
    const uint32_t x_bar = shared + (uint32_t)(plan.bar_at + 8 * (BAR_X + worker * X_SLOTS_MAX)), empty = 8 * BAR_FULL;
    const uint32_t x_at = shared + (uint32_t)(plan.x_at + worker * plan.x_slots * plan.x_bytes);
    ck_ring_place  x, y;
    for (tiles t(plan, worker); t.more(); t.next()) {
        const pixel_tile tile(p, t.at);
        const uint32_t   bar = x_bar + 8 * (uint32_t)x.at;
        ck_mbar_wait(bar + empty, x.parity ^ 1);
        ck_mbar_expect(bar, (uint32_t)plan.x_bytes);
        for (int i = 0; i < plan.panels; i++)
            tile.load(x_at + (uint32_t)(x.at * plan.x_bytes + i * ROWS * plan.x_panel), &p.x, bar, i * plan.x_panel);
        x.next(plan.x_slots);
        load_add(p, shared, worker, tile, y);
    }
}

/* One thread loads both filters, in pieces that belong to a chunk of y. `channels`: of a chunk. */
__device__ __forceinline__ void load_filters(const params &p, uint32_t shared, int channels) {
    const plan    &plan = p.plan;
    const uint32_t bar  = shared + (uint32_t)(plan.bar_at + 8 * BAR_W);
    ck_mbar_expect(bar, (uint32_t)(plan.chunks * plan.filter_bytes));
    for (int chunk = 0; chunk < plan.chunks; chunk++) {
        const uint32_t to = shared + (uint32_t)(chunk * plan.filter_bytes);
        for (int i = 0; i < plan.panels; i++)
            ck_tma_load(to + (uint32_t)(i * channels * plan.x_panel), &p.w, bar, i * plan.x_panel, chunk * channels);
        ck_tma_load(to + (uint32_t)(plan.panels * channels * plan.x_panel), &p.next_w, bar, chunk * PANEL, 0);
    }
}

#endif

} // namespace

#endif
