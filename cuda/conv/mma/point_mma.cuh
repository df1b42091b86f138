/* cuda/conv/mma/point_mma.cuh: the division of a launch of cuda/conv/mma/point_mma.cu and the copies into shared
 * memory. */
#ifndef CK_POINT_MMA_CUH
#define CK_POINT_MMA_CUH

#include "cuda/conv/mma/panel.cuh"

namespace {

enum {
    ROWS        = 128, /* pixels of a tile */
    STEP        = 64,  /* channels of a step */
    WARPS       = 8,
    THREADS     = WARPS * 32,
    X_BYTES     = ROWS * STEP * 2,
    STAGES_MAX  = 5,
    BLOCK_BYTES = 99 << 10 /* shared memory that a block has on every GPU */
};

/* What a kernel can do in addition to the product; its arguments say which of it. */
enum kind {
    PLAIN,      /* sums of y */
    INFER,      /* bias, add, ReLU */
    ACT,        /* ReLU(x*scale + bias) of the input, sums of y */
    TRANSPOSED, /* w is [C][K]; add */
    GRADIENT    /* w is [C][K]; add, the gradient of BN and ReLU, its sums; 64 columns */
};

struct plan {
    bool resident;                                            /* the filters of all channels stay in shared memory */
    int  columns, blocks_k;                                   /* of a tile: 64 or 128; ceil(K / columns) */
    int  steps, stages;                                       /* ceil(C / 64); of the ring of copies */
    int  tiles, groups;                                       /* of rows; blocks with the same columns */
    int  stage_at, panel_at, column_at, scale_bias_at, bytes; /* the filters are at 0 */
};

struct params {
    struct plan  plan;
    const void  *x, *w, *add, *bn_x;
    const float *scale_bias, *bias, *mean_rstd, *gamma, *beta;
    void        *y;
    float       *partial; /* [groups][2][blocks_k * columns], NULL without sums */
    int          rows, C, K;
    int          stride, H, W, P, Q;
    bool         relu;
};

/* A block's copies: x of all its tiles, step by step, and the filters. Each thread copies 16-byte chunk `chunk` of
 * every 32nd row. */
template <typename T, int COLUMNS, bool W_TRANSPOSED> struct copier {
    static constexpr int W_BYTES = COLUMNS * STEP * 2;
    const params        &p;
    const uint32_t       shared;
    const int            chunk, row, column; /* column: first one of the block */
    int                  tile, step;         /* of the next copy */

    __device__ copier(const params &params_, uint32_t shared_, int column_, int tile_)
        : p(params_), shared(shared_), chunk((int)threadIdx.x % 8), row((int)threadIdx.x / 8), column(column_),
          tile(tile_), step(0) {}

    __device__ __forceinline__ int64_t pixel_of(int r) const {
        if (p.stride == 1) return r;
        const int n = r / (p.P * p.Q), rest = r - n * (p.P * p.Q), h = rest / p.Q, w = rest - h * p.Q;
        return ((int64_t)n * p.H + h * p.stride) * p.W + w * p.stride;
    }
    __device__ __forceinline__ void copy_x(uint32_t to) const {
        const int c = step * STEP + chunk * 8;
#pragma unroll
        for (int i = 0; i < ROWS / 32; i++) {
            const int  r  = tile * ROWS + row + 32 * i;
            const bool is = r < p.rows && c < p.C;
            ck_copy16(ck_chunk_at(to, 128, row + 32 * i, chunk),
                      static_cast<const T *>(p.x) + (is ? pixel_of(r) * p.C + c : 0), is);
        }
    }
    /* The filters of 64 channels: rows of w, or with W_TRANSPOSED one part of 64 channels for each 64 columns. */
    __device__ __forceinline__ void copy_w(uint32_t to, int s) const {
#pragma unroll
        for (int i = 0; i < COLUMNS / 32; i++) {
            const int at = row + 32 * i, c = s * STEP + (W_TRANSPOSED ? at % 64 : chunk * 8),
                      k        = column + (W_TRANSPOSED ? at / 64 * 64 + chunk * 8 : at);
            const bool    is   = c < p.C && k < p.K;
            const int64_t from = W_TRANSPOSED ? (int64_t)c * p.K + k : (int64_t)k * p.C + c;
            ck_copy16(ck_chunk_at(to, 128, at, chunk), static_cast<const T *>(p.w) + (is ? from : 0), is);
        }
    }
    __device__ __forceinline__ void copy_all_w() const {
        for (int s = 0; s < p.plan.steps; s++) copy_w(shared + (uint32_t)(s * W_BYTES), s);
    }
    /* Starts the next step's copies into a stage, if there is one, and ends the group of copies. */
    __device__ __forceinline__ void next(int stage) {
        if (tile < p.plan.tiles) {
            const uint32_t to =
                shared + (uint32_t)(p.plan.stage_at + stage * ((int)X_BYTES + (p.plan.resident ? 0 : W_BYTES)));
            copy_x(to);
            if (!p.plan.resident) copy_w(to + X_BYTES, step);
            if (++step == p.plan.steps) {
                step = 0;
                tile += p.plan.groups;
            }
        }
        ck_copy_commit();
    }
};

/* Waits until the oldest of stages - 1 groups of copies is complete. */
__device__ __forceinline__ void wait_stage(int stages) {
    if (stages == 2)
        ck_copy_wait<0>();
    else if (stages == 3)
        ck_copy_wait<1>();
    else if (stages == 4)
        ck_copy_wait<2>();
    else
        ck_copy_wait<3>();
}

} // namespace

#endif
