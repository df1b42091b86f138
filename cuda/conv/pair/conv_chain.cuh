/* cuda/conv/pair/conv_chain.cuh: arguments and tiles of cuda/conv/pair/conv_chain_sm90a.cu, and threads that load. */
#ifndef CK_CONV_CHAIN_CUH
#define CK_CONV_CHAIN_CUH

#include "cuda/conv/pair/conv_pair_work.cuh"

namespace {

enum {
    CHANNELS        = CK_CONV_CHAIN_CHANNELS,
    SIDE            = 8,                   /* a tile has 8 x 8 pixels */
    HALO            = SIDE + 2,            /* rows and columns of x for a tile */
    TAPS            = 9,                   /* filter positions */
    FIRST_BYTES     = CHANNELS * CHANNELS, /* of the 8-bit filter of one position */
    IMAGE_SLOTS_MAX = 3
};

/* Barriers of the ring of x and of the 8-bit 3x3 filter; the others are those of conv_pair. */
enum {
    BAR_IMAGE       = BAR_COUNT,
    BAR_FIRST       = BAR_IMAGE + IMAGE_SLOTS_MAX,
    BAR_IMAGE_EMPTY = BAR_FIRST + 1,
    BAR_CHAIN       = BAR_IMAGE_EMPTY + IMAGE_SLOTS_MAX
};

/* t takes the place of the input of a pair of 1x1 convolutions. */
struct chain_params : params {
    CUtensorMap  image, first; /* first: the 8-bit 3x3 filter */
    CUtensorMap  shortcut, shortcut_w;
    const void  *first_w;
    const float *first_coeffs, *shortcut_bias;
    int          H, W, across, down; /* across, down: tiles of an image */
    int          row, wide;          /* of x in shared memory: bytes of a pixel, pixels of a row, HALO or more */
    int          image_slots, image_bytes, image_at, first_at;
};

#if CK_HAS_SM90A

__device__ __forceinline__ void store_box(const CUtensorMap *map, uint32_t from, int a, int b, int c, int d) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* SIDE x SIDE pixels of an image. Rows of 8 pixels follow one another in shared memory; what lies outside the image is
 * neither read nor written. The maps have elements of two bytes. */
struct box_tile {
    const chain_params &p;
    int                 n, h, w;
    __device__          box_tile(const chain_params &params_, int tile) : p(params_) {
                 const int line = tile / p.across;
                 w              = (tile - line * p.across) * SIDE;
                 n              = line / p.down;
                 h              = (line - n * p.down) * SIDE;
    }
    __device__ __forceinline__ void load(uint32_t to, const CUtensorMap *map, uint32_t bar, int column) const {
        ck_tma_load_box(to, map, bar, column / 2, w, h, n);
    }
    __device__ __forceinline__ void store(const CUtensorMap *map, uint32_t from, int column) const {
        store_box(map, from, column / 2, w, h, n);
    }
    __device__ __forceinline__ int pixel(int row) const {
        const int y = h + row / SIDE, x = w + row % SIDE;
        return y < p.H && x < p.W ? (n * p.H + y) * p.W + x : -1;
    }
};

/* Calls visit(worker, tile number) for the tiles of both workers, in the order in which t is computed. */
template <typename Visit> __device__ __forceinline__ void each_tile(const plan &plan, Visit visit) {
    int worker = 0;
    for (int tile = (int)blockIdx.x; tile < plan.tiles; tile += (int)gridDim.x) {
        visit(worker, tile);
        worker ^= 1;
    }
}

/* One thread loads the tiles of x with the pixels around them. */
__device__ __forceinline__ void load_images(const chain_params &p, uint32_t shared) {
    const uint32_t bars = shared + (uint32_t)p.plan.bar_at;
    ck_ring_place  at;
    each_tile(p.plan, [&](int, int number) {
        const box_tile tile(p, number);
        const uint32_t full = bars + 8 * (uint32_t)(BAR_IMAGE + at.at);
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_IMAGE_EMPTY + at.at), at.parity ^ 1);
        ck_mbar_expect(full, (uint32_t)(HALO * p.wide * p.row));
        ck_tma_load_box(shared + (uint32_t)(p.image_at + at.at * p.image_bytes), &p.image, full, 0, tile.w - 1,
                        tile.h - 1, tile.n);
        at.next(p.image_slots);
    });
}

/* One thread fills a worker's slots of y with add. With a shortcut it loads the tile of shortcut_x behind that of t. */
__device__ __forceinline__ void load_adds(const chain_params &p, uint32_t shared, int worker) {
    const plan    &plan  = p.plan;
    const uint32_t x_bar = shared + (uint32_t)(plan.bar_at + 8 * (BAR_X + worker * X_SLOTS_MAX));
    ck_ring_place  x, y;
    for (tiles t(plan, worker); t.more(); t.next()) {
        const box_tile tile(p, t.at);
        if (!p.add_given) {
            const uint32_t bar = x_bar + 8 * (uint32_t)x.at;
            ck_mbar_wait(bar + 8 * BAR_FULL, x.parity ^ 1);
            ck_mbar_expect(bar, SLOT_BYTES);
            tile.load(shared + (uint32_t)(plan.x_at + (worker * plan.x_slots + x.at) * plan.x_bytes + SLOT_BYTES),
                      &p.shortcut, bar, 0);
            x.next(plan.x_slots);
        }
        load_add(p, shared, worker, tile, y);
    }
}

/* One thread loads the filters of both operands of y, in pieces that belong to a chunk of y, and next_w. */
__device__ __forceinline__ void load_shortcut_filters(const chain_params &p, uint32_t shared) {
    const plan    &plan = p.plan;
    const uint32_t bar  = shared + (uint32_t)(plan.bar_at + 8 * BAR_W);
    ck_mbar_expect(bar, (uint32_t)(plan.chunks * plan.filter_bytes));
    for (int chunk = 0; chunk < plan.chunks; chunk++) {
        const uint32_t to = shared + (uint32_t)(chunk * plan.filter_bytes);
        ck_tma_load(to, &p.w, bar, 0, chunk * CHANNELS);
        ck_tma_load(to + SLOT_BYTES, &p.shortcut_w, bar, 0, chunk * CHANNELS);
        ck_tma_load(to + 2 * SLOT_BYTES, &p.next_w, bar, chunk * PANEL, 0);
    }
}

/* One thread loads the 8-bit 3x3 filter. */
__device__ __forceinline__ void load_first(const chain_params &p, uint32_t shared) {
    const uint32_t bar = shared + (uint32_t)(p.plan.bar_at + 8 * BAR_FIRST);
    ck_mbar_expect(bar, TAPS * FIRST_BYTES);
    for (int t = 0; t < TAPS; t++)
        ck_tma_load(shared + (uint32_t)(p.first_at + t * FIRST_BYTES), &p.first, bar, t * CHANNELS, 0);
}

#endif

} // namespace

#endif
