/* cuda/conv/mma/point_mma_plan.cuh: host side: how a launch of the 1x1 kernels with mma.sync is divided. */
#ifndef CK_POINT_MMA_PLAN_CUH
#define CK_POINT_MMA_PLAN_CUH

#include "cuda/common/column_sums.cuh"
#include "cuda/common/conv_family.cuh"
#include "cuda/common/fused_conv.h"
#include "cuda/conv/mma/point_mma.cuh"

namespace {

struct demand {
    int64_t rows, K, steps; /* of y; of 64 channels */
    int     vectors;        /* f32 vectors over the block's columns in shared memory */
    int64_t scale_bias;     /* more f32 values */
    bool    narrow;         /* 64 columns only */
    bool    alone;          /* also configs with one block on a multiprocessor */
};

/* A plan whose filters stay in shared memory or not, if at least `least` stages fit into `limit` bytes. */
bool lay_out(struct plan *p, const struct demand *d, bool resident, int least, int64_t limit) {
    const int64_t w = (int64_t)p->columns * STEP * 2, stage = (int64_t)X_BYTES + (resident ? 0 : w);
    const int64_t vectors = (int64_t)d->vectors * p->columns * 4, scale_bias = d->scale_bias * (int64_t)sizeof(float);
    const int64_t fixed  = (resident ? p->steps * w : 0) + WARPS * PANEL_BYTES + vectors + scale_bias;
    const int64_t stages = (limit - fixed) / stage;
    if (fixed >= limit || stages < least) return false;
    p->resident      = resident;
    p->stages        = (int)(stages < STAGES_MAX ? stages : (int64_t)STAGES_MAX);
    p->stage_at      = (int)(resident ? p->steps * w : 0);
    p->panel_at      = (int)(p->stage_at + p->stages * stage);
    p->column_at     = p->panel_at + WARPS * PANEL_BYTES;
    p->scale_bias_at = (int)(p->column_at + vectors);
    p->bytes         = (int)(p->scale_bias_at + scale_bias);
    return true;
}

/* A plan within `limit` bytes of shared memory and with `blocks` thread blocks. Filters that stay in shared memory are
 * better than more stages. */
bool plan_as(struct plan *p, const struct demand *d, int columns, int64_t limit, int64_t blocks) {
    const int64_t tiles = (d->rows + ROWS - 1) / ROWS;
    *p                  = {};
    p->columns          = columns;
    p->blocks_k         = (int)((d->K + columns - 1) / columns);
    p->steps            = (int)d->steps;
    p->tiles            = (int)tiles;
    if (!lay_out(p, d, true, 3, limit) && !lay_out(p, d, false, 3, limit) && !lay_out(p, d, true, 2, limit) &&
        !lay_out(p, d, false, 2, limit))
        return false;
    int64_t groups = blocks / p->blocks_k;
    if (groups < 1) groups = 1;
    p->groups = (int)(groups < tiles ? groups : tiles);
    return true;
}

/* Stores tile config `algo`, an index into the configs that fit, in *p. It exists if the result is greater than algo.
 * With algo < 0 the result is the number of configs. They differ in their limit of shared memory: half of a
 * multiprocessor, what every GPU has, and, if d->alone is set, what this GPU has. */
int find_plan(struct plan *p, const struct demand *d, int algo, const struct ck_gpu *gpu) {
    const int64_t half = gpu->multiprocessor_bytes / 2 - 1024 /* of the driver */, all = BLOCK_BYTES;
    const int64_t most = gpu->block_bytes, limits[3] = {half < all ? half : all, all < most ? all : most, most};
    int           found  = 0;
    struct plan   before = {};
    for (int wide = d->K > 64 && !d->narrow ? 1 : 0; wide >= 0; wide--)
        for (int i = 0; i < (d->alone ? 3 : 2); i++) {
            if (algo >= 0 && found > algo) return found;
            if (!plan_as(p, d, wide ? 128 : 64, limits[i], (int64_t)(i < 2 ? 2 : 1) * gpu->multiprocessors)) continue;
            if (i >= 1 && found && before.columns == p->columns && before.bytes == p->bytes) continue;
            before = *p;
            found++;
        }
    return found;
}

/* The arguments of a kernel; Params is struct params or begins with it. */
template <class Params> Params params_of(const struct ck_fused_conv *a, const struct plan *plan, void *workspace) {
    Params p     = {};
    p.plan       = *plan;
    p.x          = a->x;
    p.w          = a->w;
    p.add        = a->add;
    p.bn_x       = a->bn_x;
    p.scale_bias = a->scale_bias;
    p.bias       = a->bias;
    p.mean_rstd  = a->mean_rstd;
    p.gamma      = a->gamma;
    p.beta       = a->beta;
    p.y          = a->y;
    p.partial    = a->has_sums ? static_cast<float *>(workspace) : nullptr;
    p.rows       = (int)(a->N * a->P * a->Q);
    p.C          = (int)a->C;
    p.K          = (int)a->K;
    p.stride     = a->stride;
    p.H          = (int)a->H;
    p.W          = (int)a->W;
    p.P          = (int)a->P;
    p.Q          = (int)a->Q;
    p.relu       = a->relu;
    return p;
}

/* The second launch: the sums of the blocks. */
cudaError_t start_sums(const params &p, const struct ck_fused_conv *a, cudaStream_t stream) {
    if (!a->has_sums) return cudaSuccess;
    return add_column_sums(p.partial, a->sums, p.plan.groups, (int64_t)p.plan.blocks_k * p.plan.columns, a->K, stream);
}
size_t sums_bytes(const struct plan &p) {
    return sizeof(float) * 2 * (size_t)p.groups * (size_t)p.blocks_k * (size_t)p.columns;
}

} // namespace

#endif
