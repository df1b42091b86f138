/* cuda/conv/pointwise/point_conv_work.cuh: a multiplying warpgroup of cuda/conv/pointwise/point_conv_sm90a.cu:
 * products, results, sums. */
#ifndef CK_POINT_CONV_WORK_CUH
#define CK_POINT_CONV_WORK_CUH

#include "cuda/conv/pointwise/point_conv.cuh"

#if CK_HAS_SM90A

namespace {

/* A worker is one warpgroup. Each warp has panels and sums of its own. */
template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE> struct worker {
    static constexpr int      PANELS = COLUMNS / 64, ACC = COLUMNS / 2;
    static constexpr int      TEAM = team_of<WORKERS, RESIDENT>(), TAKERS = WORKERS / TEAM;
    static constexpr uint32_t W_BYTES = COLUMNS * 128, STAGE = TEAM * X_BYTES + (RESIDENT ? 0 : W_BYTES);
    static constexpr bool     TURNS = TAKERS > 1 && !RESIDENT; /* teams multiply one after the other */
    static constexpr int      FRAGMENTS =
        COLUMNS == 128 && WORKERS == 4 ? 1 : 2; /* sets of registers for steps with act, as many as fit */
    static constexpr int B_NEXT =
        MODE == TRANSPOSED ? 2048 / 16 : 32 / 16;          /* 16 channels further in w, in units of a descriptor */
    static constexpr bool LATE = MODE != ACT || !RESIDENT; /* a stage is read until its products are complete */
    using tiles                = scheduler<COLUMNS, WORKERS, RESIDENT>;

    const params &p;
    const plan   &plan;
    /* index of the worker; warp in the worker, lane in the warp, thread in the worker */
    const int me, warp, lane, thread;
    uint32_t  full, filters_at, stages_at, scale_bias_base; /* of the ring */
    uint32_t  panels_at, others_at, panel_full;             /* of the warp */
    uint32_t  columns_at, scratch_at, worker_at;            /* of the worker; worker_at: panels of its first warp */
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

    __device__ worker(const params &params_, uint32_t shared, int me_)
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
        columns_at = shared + (uint32_t)(plan.column_at + own * (p.bn_given ? 4 : 1) * COLUMNS * (int)sizeof(float));
        scratch_at = shared + (uint32_t)(plan.scratch_at + me * 4 * GROUP * (int)sizeof(float));
        worker_at  = panels_at - (uint32_t)(warp * plan.panels * PANEL_BYTES);
#pragma unroll
        for (int i = 0; i < 4; i++) chunk[i] = (uint32_t)(lane % 16 * 128 + ((2 * i + lane / 16) ^ lane % 8) * 16);
#pragma unroll
        for (int i = 0; i < PANELS; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
    }
    __device__ __forceinline__ void group_barrier() const {
        ck_barrier(1 + me, GROUP);
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

    /* acc = the tile's products. One step is in flight while the next is prepared. */
    __device__ __forceinline__ void multiply() {
        if (TURNS) wait_order();
        int before = 0;
        if constexpr (MODE == ACT) {
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

    /* ---- results ---- */

    /* Vectors over the tile's columns, f32 [4][COLUMNS]: bias; or scale and bias of the BN in front, rstd,
     * -mean*rstd. */
    __device__ __forceinline__ void set_columns(int column) const {
        group_barrier();
        for (int i = thread; i < COLUMNS; i += GROUP) {
            const uint32_t to = columns_at + (uint32_t)i * 4;
            const int      k  = column + i;
            if (p.bn_given) {
                const float mean = k < p.K ? p.mean_rstd[k] : 0.0f, rstd = k < p.K ? p.mean_rstd[p.K + k] : 0.0f;
                const float scale = k < p.K ? p.gamma[k] * rstd : 0.0f,
                            bias  = k < p.K ? p.beta[k] - mean * scale : 0.0f;
                ck_put4(to, scale);
                ck_put4(to + 4 * COLUMNS, bias);
                ck_put4(to + 8 * COLUMNS, rstd);
                ck_put4(to + 12 * COLUMNS, -mean * rstd);
            } else {
                ck_put4(to, p.bias && k < p.K ? p.bias[k] : 0.0f);
            }
        }
        group_barrier();
    }

    /* First row of this warp in the tile at `row`. */
    __device__ __forceinline__ int strip_row(int row) const {
        return row + me % TEAM * ROWS + warp * STRIP;
    }

    /* Called by the warp's first lane: loads add and bn_x of the next panel, whose buffers are free. */
    __device__ __forceinline__ void load_ahead() {
        if (!ahead.more()) return;
        const uint32_t bar = panel_full + 8 * (uint32_t)ahead_at.at, at = (uint32_t)(ahead_at.at * PANEL_BYTES);
        const int      column = ahead.column + ahead_panel * 64, row = strip_row(ahead.row);
        ck_mbar_expect(bar, (uint32_t)PANEL_BYTES * (uint32_t)(p.add_given + p.bn_given));
        if (p.add_given) ck_tma_load(panels_at + at, &p.add, bar, column, row);
        if (p.bn_given) ck_tma_load(others_at + at, &p.bn_x, bar, column, row);
        ahead_at.next(plan.panels);
        if (++ahead_panel == PANELS) {
            ahead_panel = 0;
            ahead.next(plan);
        }
    }

    /* Finishes panel `i` of acc and writes it to its buffer. INFER: adds the bias; with least 0 also applies ReLU. */
    template <bool INFER, bool ADD, bool BN>
    __device__ __forceinline__ void write_panel(int i, uint32_t to, uint32_t other, float least) const {
        const uint32_t columns = columns_at + (uint32_t)(i * 64 + lane % 4 * 2) * 4;
#pragma unroll
        for (int q = 0; q < 4; q++) { /* 16 columns */
            uint32_t word[4], add[4], x[4];
            if (ADD) ck_ldmatrix(add, to + chunk[q]);
            if (BN) ck_ldmatrix(x, other + chunk[q]);
            float2 v[4]; /* [j]: j / 2: 8 columns; j % 2: 8 rows */
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[j] = make_float2(acc[i * 32 + q * 8 + j * 2], acc[i * 32 + q * 8 + j * 2 + 1]);
                if (ADD) {
                    const float2 a = ck_pair<T>(add[j]);
                    v[j].x += a.x;
                    v[j].y += a.y;
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t from = columns + (uint32_t)(q * 16 + half * 8) * 4;
                float2         first, second;
                if (INFER || BN) first = ck_get8(from);
                if (BN) second = ck_get8(from + 4 * COLUMNS);
#pragma unroll
                for (int j = 2 * half; j < 2 * half + 2; j++) {
                    if (INFER)
                        v[j] = make_float2(ck_at_least(v[j].x + first.x, least), ck_at_least(v[j].y + first.y, least));
                    if (BN) {
                        const float2 b = ck_pair<T>(x[j]);
                        v[j].x         = fmaf(b.x, first.x, second.x) > 0.0f ? v[j].x : 0.0f;
                        v[j].y         = fmaf(b.y, first.y, second.y) > 0.0f ? v[j].y : 0.0f;
                    }
                    word[j] = ck_pack_word<T>(v[j].x, v[j].y);
                }
            }
            ck_stmatrix(to + chunk[q], word);
        }
    }

    /* Adds the warp's 16 rows of two columns of a panel: y and y^2, or y and y*xhat. */
    template <bool BN> __device__ __forceinline__ void add_sums(int i, uint32_t y, uint32_t other) {
        const uint32_t word = (uint32_t)(lane % 4) * 4, sixteen = (uint32_t)(lane / 4) * 16;
        float          s0 = sum[i][0], s1 = sum[i][1], t0 = sum[i][2], t1 = sum[i][3];
        float2         rstd, shift;
        if (BN) {
            const uint32_t from = columns_at + (uint32_t)(i * 64 + lane * 2) * 4;
            rstd                = ck_get8(from + 8 * COLUMNS);
            shift               = ck_get8(from + 12 * COLUMNS);
        }
#pragma unroll
        for (int r = 0; r < STRIP; r++) {
            const uint32_t at = word + (sixteen ^ (uint32_t)(r % 8 * 16)) + (uint32_t)(r * 128);
            const float2   v  = ck_pair<T>(ck_get4(y + at));
            s0 += v.x;
            s1 += v.y;
            if (BN) {
                const float2 x = ck_pair<T>(ck_get4(other + at));
                t0             = fmaf(v.x, fmaf(x.x, rstd.x, shift.x), t0);
                t1             = fmaf(v.y, fmaf(x.y, rstd.y, shift.y), t1);
            } else {
                t0 = fmaf(v.x, v.x, t0);
                t1 = fmaf(v.y, v.y, t1);
            }
        }
        sum[i][0] = s0, sum[i][1] = s1, sum[i][2] = t0, sum[i][3] = t1;
    }

    /* Sets rows outside y to 0, for the sums. */
    __device__ __forceinline__ void clear_outside(int row) {
        const int mine = row + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (mine + half * 8 >= p.rows) {
#pragma unroll
                for (int i = half * 2; i < ACC; i += 4) acc[i] = acc[i + 1] = 0.0f;
            }
    }

    /* The warp's strip of the tile: all lanes write to shared memory, lane 0 stores to memory. */
    template <bool INFER, bool ADD, bool BN> __device__ __forceinline__ void finish(int row, int column) {
        const float least = INFER && p.relu ? 0.0f : __int_as_float((int)0xff800000); /* minus infinity */
        if (p.partial && row + STRIP > p.rows) clear_outside(row);
#pragma unroll
        for (int i = 0; i < PANELS; i++) {
            const uint32_t y     = panels_at + (uint32_t)(panel.at * PANEL_BYTES),
                           other = others_at + (uint32_t)(panel.at * PANEL_BYTES);
            if (ADD || BN) ck_mbar_wait(panel_full + 8 * (uint32_t)panel.at, panel.parity);
            write_panel<INFER, ADD, BN>(i, y, other, least);
            ck_fence_async();
            if (!(ADD || BN) && lane == 0) { /* the next panel's buffer: its last store has read it */
                if (plan.panels == 2)
                    ck_bulk_wait_read<0>();
                else
                    ck_bulk_wait_read<2>();
            }
            __syncwarp();
            if (lane == 0) {
                ck_tma_store(&p.y, y, column + i * 64, row);
                ck_bulk_commit();
            }
            if (p.partial) add_sums<BN>(i, y, other);
            /* the next panel is loaded into the buffer of the previous panel: all lanes have read it */
            if (ADD || BN) {
                __syncwarp();
                if (lane == 0) {
                    ck_bulk_wait_read<1>();
                    load_ahead();
                }
            }
            panel.next(plan.panels);
        }
        __syncwarp();
    }

    __device__ __forceinline__ void set_sums(int i, uint32_t scratch) const {
        const uint32_t mine = scratch + (uint32_t)(warp * GROUP + lane * 2) * 4;
        ck_put4(mine, sum[i][0]);
        ck_put4(mine + 4, sum[i][1]);
        ck_put4(mine + 64 * 4, sum[i][2]);
        ck_put4(mine + 65 * 4, sum[i][3]);
    }
    __device__ __forceinline__ float sum_of_warps(uint32_t scratch) const {
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < 4; w++) total += __uint_as_float(ck_get4(scratch + (uint32_t)(w * GROUP + thread) * 4));
        return total;
    }
    /* Adds the sums so far over the worker's warps, writes them to row `row` of the workspace and resets them. IDLE: no
     * loads into the worker's panels are in flight, so the panels are used as scratch. */
    template <bool IDLE> __device__ __forceinline__ void flush(int row, int column) {
        const int64_t width = (int64_t)plan.blocks_k * COLUMNS;
        float        *to    = p.partial + row * 2 * width + thread / 64 * width + column + thread % 64;
        if (IDLE) {
            if (lane == 0) ck_bulk_wait_read<0>();
            group_barrier();
#pragma unroll
            for (int i = 0; i < PANELS; i++) set_sums(i, worker_at + (uint32_t)(i * 4 * GROUP * 4));
            group_barrier();
#pragma unroll
            for (int i = 0; i < PANELS; i++) to[i * 64] = sum_of_warps(worker_at + (uint32_t)(i * 4 * GROUP * 4));
            group_barrier();
        } else {
#pragma unroll
            for (int i = 0; i < PANELS; i++) {
                group_barrier();
                set_sums(i, scratch_at);
                group_barrier();
                to[i * 64] = sum_of_warps(scratch_at);
            }
        }
#pragma unroll
        for (int i = 0; i < PANELS; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
    }

    template <bool INFER, bool ADD, bool BN> __device__ __forceinline__ void run_as() {
        tiles at(plan, me / TEAM, TAKERS);
        int   column = -1; /* the column of the last call of set_columns */
        /* all panels but one: the buffer of the last is loaded when the first panel has been stored */
        if ((ADD || BN) && lane == 0)
            for (int i = 0; i < plan.panels - 1; i++) load_ahead();
        if (TURNS && me >= TEAM) stage.skip(plan.steps, plan.stages);
        turn = me < TEAM ? 1 : 0; /* the first team starts at once */
        if (RESIDENT) ck_mbar_wait(full + 8 * (uint32_t)(BAR_FILTERS - BAR_FULL) - 8 * (uint32_t)(me * STAGES_MAX), 0);
        for (; at.more(); at.next(plan)) {
            if ((INFER || BN) && at.column != column) set_columns(column = at.column);
            multiply();
            finish<INFER, ADD, BN>(strip_row(at.row), at.column);
            if (p.partial && !RESIDENT) flush<!ADD>(at.row / ROWS + me % TEAM, at.column);
        }
        if (p.partial && RESIDENT) flush<true>((int)blockIdx.x / plan.blocks_k * WORKERS + me, at.column);
        if (lane == 0) ck_bulk_wait<0>();
    }
};

} // namespace

#endif

#endif
