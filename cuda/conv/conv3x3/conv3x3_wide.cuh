/* cuda/conv/conv3x3/conv3x3_wide.cuh: tiles, shared memory and loads of cuda/conv/conv3x3/conv3x3_wide_sm90a.cu. */
#ifndef CK_CONV3X3_WIDE_CUH
#define CK_CONV3X3_WIDE_CUH

#include "cuda/common/divisor.cuh"
#include "cuda/common/fused_conv.h"
#include "cuda/common/hopper.cuh"
#include "cuda/common/tma.cuh"

namespace {

enum {
    GROUP        = 128,         /* threads of a warpgroup */
    WORKERS      = 2,           /* warpgroups that multiply */
    GROUPS       = WORKERS + 2, /* one that loads and one that stores */
    WARPS        = 4,           /* of a warpgroup */
    HEIGHT       = 2,           /* products of 64 rows of a worker */
    ROWS         = HEIGHT * 64, /* of a worker's tile */
    TILE         = WORKERS * ROWS,
    COLUMNS      = 128, /* of a tile: channels of y */
    CHUNK        = 64,  /* channels of x in one step */
    HALVES       = COLUMNS / CHUNK,
    ROW          = 2 * CHUNK,
    STEPS        = CHUNK / 16,
    TAPS         = 9,
    PASSES_MAX   = 4,
    W_BYTES      = COLUMNS * ROW,
    HALF_BYTES   = ROWS * ROW, /* 64 channels of a worker's results in shared memory */
    SLOTS        = 2,          /* of x */
    FILTERS_MIN  = 3,
    FILTERS_MAX  = 8,
    AHEAD_MIN    = 4, /* vectors of bn_x that a thread copies ahead */
    AHEAD_MAX    = 8,
    AHEAD_BYTES  = GROUP * 16, /* of one of them */
    FLAT_MAX     = 512,        /* tiles: rows of sums that a second launch adds */
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

/* Hardware barriers: worker 0 has begun; of the threads that store. */
enum { BEGUN = 1, STORED = 2 };

/* Barriers, 8 bytes each. Those of loaded x and w count one arrival, empty ones all warps that multiply; those of a
 * worker's results count its warps, empty ones the warps that store. */
enum {
    BAR_X       = 0,
    BAR_W       = BAR_X + SLOTS,
    BAR_X_EMPTY = BAR_W + FILTERS_MAX,
    BAR_W_EMPTY = BAR_X_EMPTY + SLOTS,
    BAR_Y       = BAR_W_EMPTY + FILTERS_MAX,
    BAR_Y_EMPTY = BAR_Y + WORKERS,
    BAR_COUNT   = BAR_Y_EMPTY + WORKERS
};

/* The pixels of y that one filter position reaches from the same pixel of x: with stride 2, every second pixel of every
 * second row, from (row, column) on. A tap is one of nine neighbours of the pixel of x, and a filter position. */
struct pass {
    int           taps, row, column;
    unsigned char neighbour[TAPS], filter[TAPS];
};

/* Offsets are into shared memory; the slots of x are first. */
struct plan {
    int  rows; /* pixels in a slot of x: those of a tile and their neighbours */
    int  slot_bytes, filters, chunks, passes;
    int  tiles, columns, blocks; /* tiles of 256 pixels, of 128 columns; thread blocks */
    bool flat;                   /* a block's tiles have different columns */
    int  sums;                   /* rows of sums in the workspace */
    int  ahead;                  /* vectors of bn_x */
    int  y_at, w_at, ahead_at, sums_at, bn_at, zero_at, bar_at, bytes;
};

struct params {
    CUtensorMap  x, w;
    struct plan  plan;
    struct pass  pass[PASSES_MAX];
    const void  *bn_x;
    const float *mean_rstd, *gamma, *beta;
    void        *y;
    float       *partial;                          /* [rows of sums][2][K], or NULL without sums */
    int          pixels, P, Q, C, H, W, K, stride; /* pixels, P, Q, C of x; H, W, K of y */
    ck_divisor   lines, images;                    /* by Q, by P */
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

/* What a block computes: tiles of 256 pixels and 128 columns, every gridDim.x-th of them. */
struct item {
    int                             at;
    __device__                      item(const plan &) : at((int)blockIdx.x) {}
    __device__ __forceinline__ bool exists(const plan &p) const { return at < p.tiles * p.columns; }
    __device__ __forceinline__ void next() { at += (int)gridDim.x; }
    __device__ __forceinline__ int  tile(const plan &p) const { return at / p.columns; }
    __device__ __forceinline__ int  column(const plan &p) const { return at % p.columns * COLUMNS; }
};

/* One thread fills the slots: with the tile's pixels of x and their neighbours, 64 channels each. */
__device__ __forceinline__ void load_x(const params &p, uint32_t shared) {
    const plan    &plan = p.plan;
    const uint32_t bars = shared + (uint32_t)plan.bar_at;
    const int      half = plan.rows / 2;
    ck_ring_place  at;
    for (item of(plan); of.exists(plan); of.next())
        for (int pass = 0; pass < plan.passes; pass++)
            for (int chunk = 0; chunk < plan.chunks; chunk++) {
                const uint32_t full = bars + 8 * (uint32_t)(BAR_X + at.at),
                               to   = shared + (uint32_t)(at.at * plan.slot_bytes);
                const int row       = of.tile(plan) * TILE - p.Q - 1;
                ck_mbar_wait(bars + 8 * (uint32_t)(BAR_X_EMPTY + at.at), at.parity ^ 1);
                ck_mbar_expect(full, (uint32_t)plan.slot_bytes);
                ck_tma_load(to, &p.x, full, chunk * CHUNK, row);
                ck_tma_load(to + (uint32_t)(half * ROW), &p.x, full, chunk * CHUNK, row + half);
                at.next(SLOTS);
            }
}

/* Another thread loads the filters: for each step 64 channels of x and 128 of y. */
template <bool IS_TRANSPOSED> __device__ __forceinline__ void load_w(const params &p, uint32_t shared) {
    const plan    &plan = p.plan;
    const uint32_t bars = shared + (uint32_t)plan.bar_at;
    ck_ring_place  at;
    for (item of(plan); of.exists(plan); of.next())
        for (int pass = 0; pass < plan.passes; pass++)
            for (int chunk = 0; chunk < plan.chunks; chunk++)
                for (int tap = 0; tap < p.pass[pass].taps; tap++) {
                    const uint32_t full = bars + 8 * (uint32_t)(BAR_W + at.at),
                                   to   = shared + (uint32_t)(plan.w_at + at.at * W_BYTES);
                    const int filter = p.pass[pass].filter[tap], column = of.column(plan);
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
