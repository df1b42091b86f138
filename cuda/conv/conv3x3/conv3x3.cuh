/* cuda/conv/conv3x3/conv3x3.cuh: tiles, shared memory and loads of cuda/conv/conv3x3/conv3x3_sm90a.cu. */
#ifndef CK_CONV3X3_CUH
#define CK_CONV3X3_CUH

#include "cuda/common/fused_conv.h"
#include "cuda/common/hopper_int8.cuh"
#include "cuda/common/tma.cuh"

namespace {

enum {
    GROUP        = 128, /* threads of a warpgroup */
    WORKERS      = 2,
    CHANNELS     = 64,
    ROW          = 2 * CHANNELS, /* bytes of a position */
    COLUMNS      = 128,          /* positions of a worker's tile */
    TILE         = WORKERS * COLUMNS,
    TAPS         = 9,
    STEPS        = CHANNELS / 16, /* products for each filter position */
    Y_BYTES      = COLUMNS * ROW, /* of a worker's tile of y, and of bn_x */
    SLOTS_MAX    = 4,
    TILE_THREADS = WORKERS * GROUP,
    SUMS_VECTOR  = TILE_THREADS * 16, /* bytes: a thread has four vectors of sums, for eight channels */
    SUMS_BYTES   = 4 * SUMS_VECTOR,
    BN_BYTES     = 4 * CHANNELS * 4, /* f32: scale, bias, rstd, -mean*rstd */
    SHARED_LIMIT = 227 * 1024
};

/* What the kernel computes. */
enum kind {
    FORWARD,    /* bias, ReLU; or sums of y */
    TRANSPOSED, /* the gradient of x; add */
    GRADIENT    /* the gradient of x; add, mask of BN and ReLU, sums */
};

/* Hardware barriers: of each worker's tile of y, and of its turn. */
enum { STAGED = 1, TURN = STAGED + WORKERS };

/* Barriers, 8 bytes each: a full one counts one arrival; an empty one of x all warps of the workers, of bn_x those of
 * its worker. */
enum {
    BAR_FULL     = 0,
    BAR_EMPTY    = SLOTS_MAX,
    BAR_BN       = 2 * SLOTS_MAX,
    BAR_BN_EMPTY = BAR_BN + WORKERS,
    BAR_COUNT    = BAR_BN_EMPTY + WORKERS
};

/* Offsets are into shared memory; the slots of x are first. */
struct plan {
    int rows; /* positions in a slot of x */
    int slots, slot_bytes, tiles, y_at, bn_x_at, sums_at, bn_at, bar_at, bytes;
};

struct params {
    CUtensorMap  x, bn_x;
    struct plan  plan;
    const void  *w, *add;
    const float *bias, *mean_rstd, *gamma, *beta;
    void        *y;
    float       *partial; /* [blocks][WORKERS][2][64], or NULL without sums */
    int          positions, H, W;
    bool         relu;
};

#if CK_HAS_SM90A

/* One thread loads the tiles. */
__device__ __forceinline__ void load_tiles(const params &p, uint32_t shared) {
    const uint32_t bars = shared + (uint32_t)p.plan.bar_at;
    ck_ring_place  at;
    for (int tile = (int)blockIdx.x; tile < p.plan.tiles; tile += (int)gridDim.x) {
        const int      position = tile * TILE, line = position / (p.W + 1), n = line / (p.H + 1);
        const uint32_t full = bars + 8 * (uint32_t)(BAR_FULL + at.at);
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_EMPTY + at.at), at.parity ^ 1);
        ck_mbar_expect(full, (uint32_t)(p.plan.rows * ROW));
        ck_tma_load_pixels(shared + (uint32_t)(at.at * p.plan.slot_bytes), &p.x, full, 0,
                           position - line * (p.W + 1) - 1, line - n * (p.H + 1) - 1, n);
        at.next(p.plan.slots);
    }
}

/* Another thread loads bn_x, at the positions of the workers' tiles of y. */
__device__ __forceinline__ void load_bn_x(const params &p, uint32_t shared) {
    const uint32_t bars   = shared + (uint32_t)p.plan.bar_at;
    uint32_t       parity = 0;
    for (int tile = (int)blockIdx.x; tile < p.plan.tiles; tile += (int)gridDim.x, parity ^= 1)
        for (int me = 0; me < WORKERS; me++) {
            const int      position = tile * TILE + me * COLUMNS, line = position / (p.W + 1), n = line / (p.H + 1);
            const uint32_t full = bars + 8 * (uint32_t)(BAR_BN + me);
            ck_mbar_wait(bars + 8 * (uint32_t)(BAR_BN_EMPTY + me), parity ^ 1);
            ck_mbar_expect(full, Y_BYTES);
            ck_tma_load_pixels(shared + (uint32_t)(p.plan.bn_x_at + me * Y_BYTES), &p.bn_x, full, 0,
                               position - line * (p.W + 1), line - n * (p.H + 1), n);
        }
}

/* Image, row and column of a position, and the pixel of y there. */
struct place {
    int        n, h, w;
    __device__ place(const params &p, int position) {
        const int line = position / (p.W + 1);
        w              = position - line * (p.W + 1);
        n              = line / (p.H + 1);
        h              = line - n * (p.H + 1);
    }
    __device__ __forceinline__ void advance(const params &p, int positions) {
        for (w += positions; w > p.W; w -= p.W + 1)
            if (++h > p.H) {
                h = 0;
                n++;
            }
    }
    /* -1: the position is between two rows or two images */
    __device__ __forceinline__ int pixel(const params &p) const {
        return h < p.H && w < p.W ? (n * p.H + h) * p.W + w : -1;
    }
};

#endif

} // namespace

#endif
