/* cuda/conv/pointwise/point_conv_multiply.cuh: a warpgroup of cuda/conv/pointwise/point_conv_block.cuh that
 * multiplies: its addresses in shared memory and its products. */
#ifndef CK_POINT_CONV_MULTIPLY_CUH
#define CK_POINT_CONV_MULTIPLY_CUH

#include "cuda/conv/pointwise/point_conv.cuh"

#if CK_HAS_SM90A

namespace {

/* A worker is one warpgroup. Each warp has panels and sums of its own. */
template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE> struct multiplier {
    static constexpr int      PANELS = COLUMNS / 64, ACC = COLUMNS / 2;
    static constexpr int      TEAM = team_of<WORKERS, RESIDENT>(), TAKERS = WORKERS / TEAM;
    static constexpr uint32_t W_BYTES = COLUMNS * 128, STAGE = TEAM * X_BYTES + (RESIDENT ? 0 : W_BYTES);
    static constexpr bool     TURNS = TAKERS > 1 && !RESIDENT; /* teams multiply one after the other */
    static constexpr int      FRAGMENTS =
        COLUMNS == 128 && WORKERS == 4 ? 1 : 2; /* sets of registers for steps with act, as many as fit */
    static constexpr int B_NEXT =
        MODE == TRANSPOSED ? 2048 / 16 : 32 / 16; /* 16 channels further in w, in units of a descriptor */
    static constexpr bool LATE       = MODE != ACT || !RESIDENT; /* a stage is read until its products are complete */
    static constexpr int  BN_VECTORS = 4;                        /* see set_columns */
    static constexpr int  SHARERS    = RESIDENT ? WORKERS * GROUP : GROUP; /* threads that share columns_at */
    using tiles                      = scheduler<COLUMNS, WORKERS, RESIDENT>;

    const params &p;
    const plan   &plan;
    /* index of the worker; warp in the worker, lane in the warp, thread in the worker */
    const int me, warp, lane, thread;
    uint32_t  full, filters_at, stages_at, scale_bias_base; /* of the ring */
    uint32_t  panels_at, others_at, panel_full;             /* of the warp */
    uint32_t  columns_at;                                   /* of the worker, or of all workers of a resident block */
    uint32_t  scratch_at, worker_at;                        /* of the worker; worker_at: panels of its first warp */
    /* for ldmatrix and stmatrix: byte offset of the lane's row and 16-byte chunk, for each 16 columns */
    uint32_t      chunk[4];
    ck_ring_place stage, panel;
    uint32_t      turn; /* parity of this team's next turn */
    float         acc[ACC];
    /* two columns of each panel: first and second column of the lower, of the upper sum */
    float         sum[PANELS][4];
    tiles         ahead; /* next tile whose add and bn_x are loaded */
    int           ahead_panel;
    ck_ring_place ahead_at;

    __device__ multiplier(const params &params_, uint32_t shared, int me_)
        : p(params_), plan(params_.plan), me(me_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32),
          thread((int)threadIdx.x % GROUP), ahead(params_.plan, me_ / TEAM, TAKERS), ahead_panel(0) {
        const int      ring = RESIDENT ? me : 0, of = me * 4 + warp, own = RESIDENT ? 0 : me;
        const uint32_t bar = shared + (uint32_t)plan.bar_at;
        full               = bar + 8 * (uint32_t)(BAR_FULL + ring * STAGES_MAX);
        filters_at         = shared + (uint32_t)plan.w_at;
        stages_at          = shared + (uint32_t)plan.stage_at + (uint32_t)(ring * plan.stages) * STAGE;
        scale_bias_base    = shared + (uint32_t)(plan.scale_bias_at + lane % 4 * 8);
        panels_at          = shared + (uint32_t)(plan.panel_at + of * plan.panels * PANEL_BYTES);
        others_at          = shared + (uint32_t)(plan.other_at + of * plan.panels * PANEL_BYTES);
        panel_full         = bar + 8 * (uint32_t)(BAR_PANEL + of * plan.panels);
        columns_at         = shared + (uint32_t)(plan.column_at + own * plan.vectors * COLUMNS * (int)sizeof(float));
        scratch_at         = shared + (uint32_t)(plan.scratch_at + me * 4 * GROUP * (int)sizeof(float));
        worker_at          = panels_at - (uint32_t)(warp * plan.panels * PANEL_BYTES);
#pragma unroll
        for (int i = 0; i < 4; i++) chunk[i] = (uint32_t)(lane % 16 * 128 + ((2 * i + lane / 16) ^ lane % 8) * 16);
#pragma unroll
        for (int i = 0; i < PANELS; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
    }
    __device__ __forceinline__ void group_barrier() const {
        ck_barrier(1 + me, GROUP);
    }
    /* Waits for the threads that share columns_at. */
    __device__ __forceinline__ void columns_barrier() const {
        ck_barrier(RESIDENT ? 1 + WORKERS : 1 + me, SHARERS);
    }

    /* ---- product ---- */

    __device__ __forceinline__ uint32_t pixels() const {
        return stages_at + (uint32_t)stage.at * STAGE + (uint32_t)(me % TEAM * X_BYTES);
    }
    __device__ __forceinline__ uint64_t filters(int step) const {
        const uint32_t b =
            RESIDENT ? filters_at + (uint32_t)step * W_BYTES : stages_at + (uint32_t)stage.at * STAGE + TEAM * X_BYTES;
        return MODE == TRANSPOSED ? ck_operand_transposed(b, 64 * 128) : ck_operand(b);
    }
    /* This warp has finished reading the stage. */
    __device__ __forceinline__ void release(int at) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(full + 8 * (uint32_t)(BAR_EMPTY - BAR_FULL + at));
    }

    __device__ __forceinline__ void step_from_shared(int step) {
        const uint64_t a = ck_operand(pixels()), b = filters(step);
        ck_mbar_wait(full + 8 * (uint32_t)stage.at, stage.parity);
        ck_wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            ck_wgmma<T, COLUMNS>::template both<MODE == TRANSPOSED>(acc, a + (uint64_t)(2 * i),
                                                                    b + (uint64_t)(B_NEXT * i), step + i > 0);
        ck_wgmma_commit();
    }

    /* a: registers that no unfinished product reads. */
    __device__ __forceinline__ void step_with_act(int step, uint32_t (&a)[4][4]) {
        const uint32_t x          = pixels() + (uint32_t)(warp * PANEL_BYTES),
                       scale_bias = scale_bias_base + (uint32_t)((RESIDENT ? step : stage.at) * SCALE_BIAS_BYTES);
        const uint64_t b          = filters(step);
        ck_mbar_wait(full + 8 * (uint32_t)stage.at, stage.parity);
#pragma unroll
        for (int i = 0; i < 4; i++) ck_ldmatrix(a[i], x + chunk[i]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) { /* channels 0..7 and 8..15 of the fragment: words 0, 1 and 2, 3 */
                const uint32_t at    = scale_bias + (uint32_t)(i * 64 + half * 32);
                const float2   scale = ck_get8(at), bias = ck_get8(at + SCALE_BIAS_BYTES / 2);
#pragma unroll
                for (int j = 2 * half; j < 2 * half + 2; j++) {
                    const float2 v = ck_pair<T>(a[i][j]);
                    a[i][j]        = ck_pack_relu<T>(fmaf(v.x, scale.x, bias.x), fmaf(v.y, scale.y, bias.y));
                }
            }
        }
        ck_wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            ck_wgmma<T, COLUMNS>::template left<0>(acc, a[i], b + (uint64_t)(B_NEXT * i), step + i > 0);
        ck_wgmma_commit();
        /* an arrival does not wait for loads in flight; the issued products have waited for them */
        if (!LATE) release(stage.at);
    }

    /* Stages are filled in the order of tiles, and their barriers only distinguish one round from the next. So a team
     * waits for its stages only after the other team has waited for all stages of the previous tile. */
    __device__ __forceinline__ uint32_t order_barrier(int team) const {
        return full + 8 * (uint32_t)(BAR_ORDER - BAR_FULL + team);
    }
    __device__ __forceinline__ void wait_order() {
        ck_mbar_wait(order_barrier(me / TEAM), turn);
        turn ^= 1;
    }
    __device__ __forceinline__ void signal_order() const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(order_barrier(1 - me / TEAM));
    }

    /* acc = acc * factor + bias, over the columns. */
    __device__ __forceinline__ void scale_products() {
        const uint32_t at =
            columns_at + (uint32_t)(((p.bn_given ? BN_VECTORS : 0) * COLUMNS + lane % 4 * 2) * (int)sizeof(float));
#pragma unroll
        for (int i = 0; i < ACC / 4; i++) {
            const float2 factor = ck_get8(at + (uint32_t)(i * 32)),
                         bias   = ck_get8(at + (uint32_t)(i * 32 + COLUMNS * (int)sizeof(float)));
            acc[i * 4]          = fmaf(acc[i * 4], factor.x, bias.x);
            acc[i * 4 + 1]      = fmaf(acc[i * 4 + 1], factor.y, bias.y);
            acc[i * 4 + 2]      = fmaf(acc[i * 4 + 2], factor.x, bias.x);
            acc[i * 4 + 3]      = fmaf(acc[i * 4 + 3], factor.y, bias.y);
        }
    }

    /* acc = the products with second_x, scaled. Each step is complete before the next is read. */
    __device__ __forceinline__ void multiply_second() {
        uint32_t a[4][4];
        for (int step = 0; step < plan.second_steps; step++) {
            if (p.scale_bias)
                step_with_act(step, a);
            else
                step_from_shared(step);
            ck_wgmma_wait<0>();
            ck_wgmma_hold(acc);
            release(stage.at);
            stage.next(plan.stages);
        }
        scale_products();
    }

    /* acc = the tile's products. One step is in flight while the next is prepared. */
    __device__ __forceinline__ void multiply() {
        if (TURNS) wait_order();
        int before = 0;
        if constexpr (MODE == JOINED) {
            multiply_second();
            for (int step = plan.second_steps; step < plan.steps; step++) {
                step_from_shared(step);
                ck_wgmma_wait<1>();
                if (step > plan.second_steps) release(before);
                before = stage.at;
                stage.next(plan.stages);
            }
        } else if constexpr (MODE == ACT) {
            uint32_t a[FRAGMENTS][4][4];
            for (int step = 0; step < plan.steps; step += FRAGMENTS) {
#pragma unroll
                for (int odd = 0; odd < FRAGMENTS; odd++)
                    if (step + odd < plan.steps) {
                        step_with_act(step + odd, a[odd]);
                        ck_wgmma_wait<FRAGMENTS - 1>();
                        if (LATE && (FRAGMENTS == 1 || step + odd > 0)) release(FRAGMENTS == 1 ? stage.at : before);
                        before = stage.at;
                        stage.next(plan.stages);
                    }
            }
        } else {
            for (int step = 0; step < plan.steps; step++) {
                step_from_shared(step);
                ck_wgmma_wait<1>();
                if (step > 0) release(before);
                before = stage.at;
                stage.next(plan.stages);
            }
        }
        if (TURNS) signal_order();
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        if (LATE && !(MODE == ACT && FRAGMENTS == 1)) release(before);
        if (TURNS) stage.skip(plan.steps * (TAKERS - 1), plan.stages); /* the other team's tile */
    }
};

} // namespace

#endif

#endif
