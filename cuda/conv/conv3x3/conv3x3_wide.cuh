/* cuda/conv/conv3x3/conv3x3_wide.cuh: tiles, shared memory and loads of cuda/conv/conv3x3/conv3x3_wide_sm90a.cu. */
#ifndef CK_CONV3X3_WIDE_CUH
#define CK_CONV3X3_WIDE_CUH

#include "cuda/common/divisor.cuh"
#include "cuda/common/hopper.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/conv3x3/conv3x3_wide.h"

namespace {

enum {
    GROUP        = 128, /* threads of a warpgroup */
    WORKERS      = 2,
    WARPS        = 4 * WORKERS, /* that multiply */
    HEIGHT       = 2,           /* products of 64 rows of a worker */
    ROWS         = HEIGHT * 64, /* of a worker's tile */
    TILE         = WORKERS * ROWS,
    COLUMNS      = 128, /* of a tile: channels of y */
    CHUNK        = 64,  /* channels of x in one step */
    ROW          = 2 * CHUNK,
    STEPS        = CHUNK / 16,
    TAPS         = 9,
    PASSES_MAX   = 4,
    W_BYTES      = COLUMNS * ROW,
    PANEL        = 16 * ROW, /* bytes of a warp's results in shared memory: 16 rows, 64 channels */
    SLOTS_MIN    = 3,
    SLOTS_MAX    = 6,
    FILTERS_MIN  = 3,
    FILTERS_MAX  = 8,
    SUMS_BYTES   = WARPS * 2 * COLUMNS * 4,
    BN_BYTES     = 4 * COLUMNS * 4, /* f32: scale, bias, rstd, -mean*rstd */
    SHARED_LIMIT = 227 * 1024
};

/* What the kernel computes. */
enum kind {
    FORWARD,    /* sums of y */
    TRANSPOSED, /* the gradient of x */
    GRADIENT    /* the gradient of x; mask of BN and ReLU, sums */
};

/* Hardware barriers: worker 0 has begun; all workers have finished. */
enum { BEGUN = 1, FINISHED = 2, TILE_THREADS = WORKERS * GROUP };

/* Barriers, 8 bytes each: a full one counts one arrival, an empty one all warps that multiply. */
enum {
    BAR_X       = 0,
    BAR_X_EMPTY = BAR_X + SLOTS_MAX,
    BAR_W       = BAR_X_EMPTY + SLOTS_MAX,
    BAR_W_EMPTY = BAR_W + FILTERS_MAX,
    BAR_COUNT   = BAR_W_EMPTY + FILTERS_MAX
};

/* The pixels of y that one filter position reaches from the same pixel of x: with stride 2, every second pixel of every
 * second row, from (row, column) on. A tap is one of nine neighbours of the pixel of x, and a filter position. */
struct pass {
    int           taps, row, column;
    unsigned char neighbour[TAPS], filter[TAPS];
};

/* Offsets are into shared memory; the slots of x are first. */
struct plan {
    int rows; /* pixels in a slot of x: those of a tile and their neighbours */
    int slots, slot_bytes, filters, chunks, passes;
    int tiles, columns, blocks; /* tiles of 256 pixels, of 128 columns; thread blocks */
    int w_at, panels_at, sums_at, bn_at, zero_at, bar_at, bytes;
};

struct params {
    CUtensorMap  x, w, bn_x;
    struct plan  plan;
    struct pass  pass[PASSES_MAX];
    const float *mean_rstd, *gamma, *beta;
    void        *y;
    float       *partial;                          /* [blocks / columns][2][K], or NULL without sums */
    int          pixels, P, Q, C, H, W, K, stride; /* pixels, P, Q, C of x; H, W, K of y */
    bool         bn_given;
    ck_divisor   lines, images; /* by Q, by P */
};

#if CK_HAS_SM90A

/* Image, row and column of a pixel of x. */
struct place {
    int        n, h, w;
    __device__ place(const params &p, int pixel) {
        const int line = (int)p.lines.divide((uint32_t)pixel);
        w              = pixel - line * p.Q;
        n              = (int)p.images.divide((uint32_t)line);
        h              = line - n * p.P;
    }
};

/* All tiles of a block have the same columns. */
__device__ __forceinline__ int first_tile(const plan &p) {
    return (int)blockIdx.x / p.columns;
}
__device__ __forceinline__ int tile_step(const plan &p) {
    return (int)gridDim.x / p.columns;
}
__device__ __forceinline__ int column_of(const plan &p) {
    return (int)blockIdx.x % p.columns * COLUMNS;
}

/* One thread fills the slots: with the tile's pixels of x and their neighbours, 64 channels each, then with bn_x. */
__device__ __forceinline__ void load_x(const params &p, uint32_t shared) {
    const plan    &plan = p.plan;
    const uint32_t bars = shared + (uint32_t)plan.bar_at;
    const int      half = plan.rows / 2;
    ck_ring_place  at;
    for (int tile = first_tile(plan); tile < plan.tiles; tile += tile_step(plan))
        for (int pass = 0; pass < plan.passes; pass++) {
            for (int chunk = 0; chunk < plan.chunks; chunk++) {
                const uint32_t full = bars + 8 * (uint32_t)(BAR_X + at.at),
                               to   = shared + (uint32_t)(at.at * plan.slot_bytes);
                const int row       = tile * TILE - p.Q - 1;
                ck_mbar_wait(bars + 8 * (uint32_t)(BAR_X_EMPTY + at.at), at.parity ^ 1);
                ck_mbar_expect(full, (uint32_t)plan.slot_bytes);
                ck_tma_load(to, &p.x, full, chunk * CHUNK, row);
                ck_tma_load(to + (uint32_t)(half * ROW), &p.x, full, chunk * CHUNK, row + half);
                at.next(plan.slots);
            }
            const place first(p, tile * TILE);
            for (int i = 0; i < COLUMNS / CHUNK && p.bn_given; i++) {
                const uint32_t full = bars + 8 * (uint32_t)(BAR_X + at.at);
                ck_mbar_wait(bars + 8 * (uint32_t)(BAR_X_EMPTY + at.at), at.parity ^ 1);
                ck_mbar_expect(full, TILE * ROW);
                ck_tma_load_pixels(shared + (uint32_t)(at.at * plan.slot_bytes), &p.bn_x, full,
                                   column_of(plan) + i * CHUNK, first.w * p.stride, first.h * p.stride, first.n,
                                   p.pass[pass].column, p.pass[pass].row);
                at.next(plan.slots);
            }
        }
}

/* Another thread loads the filters: for each step 64 channels of x and 128 of y. */
template <bool IS_TRANSPOSED> __device__ __forceinline__ void load_w(const params &p, uint32_t shared) {
    const plan    &plan   = p.plan;
    const uint32_t bars   = shared + (uint32_t)plan.bar_at;
    const int      column = column_of(plan);
    ck_ring_place  at;
    for (int tile = first_tile(plan); tile < plan.tiles; tile += tile_step(plan))
        for (int pass = 0; pass < plan.passes; pass++)
            for (int chunk = 0; chunk < plan.chunks; chunk++)
                for (int tap = 0; tap < p.pass[pass].taps; tap++) {
                    const uint32_t full = bars + 8 * (uint32_t)(BAR_W + at.at),
                                   to   = shared + (uint32_t)(plan.w_at + at.at * W_BYTES);
                    const int filter    = p.pass[pass].filter[tap];
                    ck_mbar_wait(bars + 8 * (uint32_t)(BAR_W_EMPTY + at.at), at.parity ^ 1);
                    ck_mbar_expect(full, W_BYTES);
                    if (IS_TRANSPOSED) {
                        ck_tma_load(to, &p.w, full, filter * p.K + column, chunk * CHUNK);
                        ck_tma_load(to + W_BYTES / 2, &p.w, full, filter * p.K + column + CHUNK, chunk * CHUNK);
                    } else {
                        ck_tma_load(to, &p.w, full, filter * p.C + chunk * CHUNK, column);
                    }
                    at.next(plan.filters);
                }
}

#endif

} // namespace

#endif
