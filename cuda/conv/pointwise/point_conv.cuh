/* cuda/conv/pointwise/point_conv.cuh: the division of a launch of cuda/conv/pointwise/point_conv_block.cuh, the
 * kernel's arguments, and the warps that load. */
#ifndef CK_POINT_CONV_CUH
#define CK_POINT_CONV_CUH

#include "cuda/common/hopper.cuh"

namespace {

enum {
    ROWS             = 64,
    STEP             = 64, /* of a worker's tile; channels */
    GROUP            = 128,
    WORKERS_MAX      = 4,           /* threads of a warpgroup; multiplying warpgroups */
    X_BYTES          = ROWS * 128,  /* 64 rows x 64 channels */
    STRIP            = 16,          /* rows of a warp */
    PANEL_BYTES      = STRIP * 128, /* 16 rows x 64 columns */
    SCALE_BIAS_BYTES = 2 * STEP * (int)sizeof(float),
    STAGES_MAX       = 8,  /* of a ring */
    PANELS_MAX       = 12, /* workers x panels of a warp's ring */
    SHARED_LIMIT     = 227 * 1024,
};

/* Division of a launch; offsets are into shared memory. */
struct plan {
    bool resident;
    int  columns, blocks_k, workers; /* of a tile; ceil(K / columns) */
    int  steps, stages;              /* ceil(C / 64), and those of second_x; of a ring */
    int  second_steps;               /* the first steps of a tile: of second_x */
    int  vectors;                    /* over the columns of a tile */
    int  panels;                     /* of a warp's ring: 2 or 4 */
    int  grid, tiles;                /* tiles: of 64 rows (resident), of workers x 64 rows x columns (streamed) */
    int  w_at, panel_at, other_at, stage_at, scale_bias_at, column_at, scratch_at, bar_at, bytes;
    int  partial_rows; /* of the workspace: [partial_rows][2][blocks_k * columns] f32 */
};

struct params {
    CUtensorMap    x, w, y, add, bn_x, second_x, second_w;
    struct plan    plan;
    const float   *scale_bias, *bias, *mean_rstd, *gamma, *beta, *out_scale_bias, *factor_bias;
    float         *partial; /* NULL without sums */
    unsigned char *mask;
    void          *data; /* of y, only with second_x and stride > 1 */
    int            rows, C, K, stride, H, W, P, Q;
    bool           add_given, bn_given, relu;
};

/* Barriers, 8 bytes each, from bar_at on: full and empty of each worker's stages, panels of each warp, filters. */
enum {
    BAR_FULL    = 0,
    BAR_EMPTY   = WORKERS_MAX * STAGES_MAX,
    BAR_PANEL   = 2 * WORKERS_MAX * STAGES_MAX,
    BAR_FILTERS = BAR_PANEL + 4 * PANELS_MAX,
    BAR_ORDER   = BAR_FILTERS + 1, /* of each team */
    BAR_COUNT   = BAR_ORDER + 2
};

enum mode { AS_IS, ACT, TRANSPOSED, JOINED }; /* JOINED: with second_x */

#if CK_HAS_SM90A

/* Workers that process a tile together: when streamed, a team; four workers are two teams. */
template <int WORKERS, bool RESIDENT> __device__ constexpr int team_of() {
    return RESIDENT ? 1 : WORKERS == 4 ? 2 : WORKERS;
}

/* Iterates over the tiles of a worker (resident) or of team `taker` of `takers`, in order; row is that of the team's
 * first worker. */
template <int COLUMNS, int WORKERS, bool RESIDENT> struct scheduler {
    int        tile, step, end, row, column;
    __device__ scheduler(const plan &p, int taker, int takers) {
        const int block = (int)blockIdx.x, blocks = (int)gridDim.x;
        tile   = RESIDENT ? block / p.blocks_k * takers + taker : block + taker * blocks;
        step   = (RESIDENT ? blocks / p.blocks_k : blocks) * takers;
        end    = p.tiles;
        column = RESIDENT ? block % p.blocks_k * COLUMNS : 0;
        find(p);
    }
    __device__ void find(const plan &p) {
        if (RESIDENT) {
            row = tile * ROWS;
        } else {
            const int down = tile / p.blocks_k;
            row            = down * (team_of<WORKERS, RESIDENT>() * ROWS);
            column         = (tile - down * p.blocks_k) * COLUMNS;
        }
    }
    __device__ bool more() const { return tile < end; }
    __device__ void next(const plan &p) {
        tile += step;
        find(p);
    }
};

/* ---- the loading warps ---- */

template <int COLUMNS, int MODE>
__device__ __forceinline__ void load_filters(const params &p, uint32_t to, uint32_t bar, int k0, int step) {
    const int c0 = (MODE == JOINED && step >= p.plan.second_steps ? step - p.plan.second_steps : step) * STEP;
    if (MODE == JOINED) {
        ck_tma_load(to, step < p.plan.second_steps ? &p.second_w : &p.w, bar, c0, k0);
    } else if (MODE == TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < COLUMNS / 64; i++) ck_tma_load(to + (uint32_t)(i * 64 * 128), &p.w, bar, k0 + i * 64, c0);
    } else {
        ck_tma_load(to, &p.w, bar, c0, k0);
    }
}

/* The channels of scale_bias, and the number of steps that need it. */
template <int MODE> __device__ __forceinline__ int act_channels(const params &p) {
    return MODE == JOINED ? p.K : p.C;
}
template <int MODE> __device__ __forceinline__ int act_steps(const params &p) {
    return MODE == ACT ? p.plan.steps : MODE == JOINED && p.scale_bias ? p.plan.second_steps : 0;
}
__device__ __forceinline__ void load_scale_bias(const params &p, uint32_t to, uint32_t bar, int c0, int channels) {
    ck_bulk_load(to, p.scale_bias + c0, bar, SCALE_BIAS_BYTES / 2);
    ck_bulk_load(to + SCALE_BIAS_BYTES / 2, p.scale_bias + channels + c0, bar, SCALE_BIAS_BYTES / 2);
}

/* Rows of second_x in the first steps, then rows of x. */
__device__ __forceinline__ void load_joined(const params &p, uint32_t to, uint32_t bar, int step, int row, int w, int h,
                                            int n) {
    if (step < p.plan.second_steps && p.stride > 1)
        ck_tma_load_pixels(to, &p.second_x, bar, step * STEP, w, h, n);
    else if (step < p.plan.second_steps)
        ck_tma_load(to, &p.second_x, bar, step * STEP, row);
    else
        ck_tma_load(to, &p.x, bar, (step - p.plan.second_steps) * STEP, row);
}

/* One lane of a warp fills ring `ring`; there is one ring when streamed. */
template <int COLUMNS, int WORKERS, bool RESIDENT, int MODE>
__device__ __forceinline__ void load(const params &p, uint32_t shared, int ring) {
    const plan        &plan    = p.plan;
    constexpr uint32_t W_BYTES = COLUMNS * 128, X = team_of<WORKERS, RESIDENT>() * X_BYTES,
                       STAGE = X + (RESIDENT ? 0 : W_BYTES);
    const uint32_t bar       = shared + (uint32_t)plan.bar_at,
                   stages    = shared + (uint32_t)(plan.stage_at + ring * plan.stages * (int)STAGE);
    scheduler<COLUMNS, WORKERS, RESIDENT> scheduler(plan, ring, RESIDENT ? WORKERS : 1);
    constexpr bool                        EARLY = RESIDENT && MODE == AS_IS; /* the filter is read before the wait */
    if (!EARLY) ck_begin_after_last();
    if (RESIDENT && ring == 0) {
        ck_mbar_expect(bar + 8 * BAR_FILTERS,
                       (uint32_t)plan.steps * W_BYTES + (uint32_t)act_steps<MODE>(p) * SCALE_BIAS_BYTES);
        for (int s = 0; s < plan.steps; s++) {
            load_filters<COLUMNS, MODE>(p, shared + (uint32_t)plan.w_at + (uint32_t)s * W_BYTES, bar + 8 * BAR_FILTERS,
                                        scheduler.column, s);
            if (s < act_steps<MODE>(p))
                load_scale_bias(p, shared + (uint32_t)(plan.scale_bias_at + s * SCALE_BIAS_BYTES),
                                bar + 8 * BAR_FILTERS, s * STEP, act_channels<MODE>(p));
        }
    }
    if (EARLY) ck_begin_after_last();
    ck_ring_place at;
    for (; scheduler.more(); scheduler.next(plan)) {
        int w = 0, h = 0, n = 0;
        if (p.stride > 1) {
            n              = scheduler.row / (p.P * p.Q);
            const int rest = scheduler.row - n * (p.P * p.Q);
            h              = rest / p.Q;
            w              = (rest - h * p.Q) * p.stride;
            h *= p.stride;
        }
        for (int s = 0; s < plan.steps; s++) {
            const uint32_t full = bar + 8 * (uint32_t)(BAR_FULL + ring * STAGES_MAX + at.at),
                           to   = stages + (uint32_t)at.at * STAGE;
            ck_mbar_wait(full + 8 * (BAR_EMPTY - BAR_FULL), at.parity ^ 1);
            const bool act = !RESIDENT && s < act_steps<MODE>(p);
            ck_mbar_expect(full, STAGE + (act ? SCALE_BIAS_BYTES : 0));
            if (MODE == JOINED)
                load_joined(p, to, full, s, scheduler.row, w, h, n);
            else if (p.stride > 1)
                ck_tma_load_pixels(to, &p.x, full, s * STEP, w, h, n);
            else
                ck_tma_load(to, &p.x, full, s * STEP, scheduler.row);
            if (act)
                load_scale_bias(p, shared + (uint32_t)(plan.scale_bias_at + at.at * SCALE_BIAS_BYTES), full, s * STEP,
                                act_channels<MODE>(p));
            if (!RESIDENT) load_filters<COLUMNS, MODE>(p, to + X, full, scheduler.column, s);
            at.next(plan.stages);
        }
    }
}

#endif

} // namespace

#endif
