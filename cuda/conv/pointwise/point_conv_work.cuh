/* cuda/conv/pointwise/point_conv_work.cuh: the results and sums of a multiplying warpgroup
 * (cuda/conv/pointwise/point_conv_multiply.cuh). */
#ifndef CK_POINT_CONV_WORK_CUH
#define CK_POINT_CONV_WORK_CUH

#include "cuda/conv/pointwise/point_conv_multiply.cuh"

#if CK_HAS_SM90A

namespace {

/* A product gets a bias, or scale and bias of the BN behind the convolution; then the ReLU mask is written as bits. */
enum { BIAS = 1, SCALE = 2 };

template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE>
struct worker : multiplier<T, COLUMNS, WORKERS, RESIDENT, MODE> {
    using base = multiplier<T, COLUMNS, WORKERS, RESIDENT, MODE>;
    using base::acc;
    using base::ahead;
    using base::ahead_at;
    using base::ahead_panel;
    using base::chunk;
    using base::columns_at;
    using base::columns_barrier;
    using base::full;
    using base::group_barrier;
    using base::lane;
    using base::me;
    using base::multiply;
    using base::others_at;
    using base::p;
    using base::panel;
    using base::panel_full;
    using base::panels_at;
    using base::plan;
    using base::scratch_at;
    using base::stage;
    using base::sum;
    using base::thread;
    using base::turn;
    using base::warp;
    using base::worker_at;
    using typename base::tiles;
    static constexpr int  PANELS = base::PANELS, ACC = base::ACC, TEAM = base::TEAM, TAKERS = base::TAKERS;
    static constexpr bool TURNS = base::TURNS;

    __device__ worker(const params &params_, uint32_t shared, int me_) : base(params_, shared, me_) {}

    /* Vectors over the tile's columns, f32 [vectors][COLUMNS]: bias; or scale and bias of the BN behind; or scale and
     * bias of the BN in front, rstd, -mean*rstd; then factor and bias of the products with second_x. The workers of a
     * resident block share the vectors and write them together. */
    __device__ __forceinline__ void set_columns(int column) const {
        columns_barrier();
        for (int i = RESIDENT ? me * GROUP + thread : thread; i < COLUMNS; i += base::SHARERS) {
            const uint32_t to = columns_at + (uint32_t)i * 4;
            const int      k  = column + i;
            if (MODE == JOINED) {
                const uint32_t last = to + (p.bn_given ? base::BN_VECTORS : 0) * 4 * COLUMNS;
                ck_put4(last, k < p.K ? p.factor_bias[k] : 0.0f);
                ck_put4(last + 4 * COLUMNS, k < p.K ? p.factor_bias[p.K + k] : 0.0f);
            }
            if (p.bn_given) {
                const bool  is   = k < p.K && p.mean_rstd; /* otherwise the mask is bn_x > 0 */
                const float mean = is ? p.mean_rstd[k] : 0.0f, rstd = is ? p.mean_rstd[p.K + k] : 0.0f;
                const float scale = k >= p.K || !is  ? 1.0f
                                    : MODE == JOINED ? p.scale_bias[k]
                                                     : p.gamma[k] * rstd,
                            bias  = k >= p.K || !is  ? 0.0f
                                    : MODE == JOINED ? p.scale_bias[p.K + k]
                                                     : p.beta[k] - mean * scale;
                ck_put4(to, scale);
                ck_put4(to + 4 * COLUMNS, bias);
                ck_put4(to + 8 * COLUMNS, rstd);
                ck_put4(to + 12 * COLUMNS, -mean * rstd);
            } else if (p.out_scale_bias) {
                ck_put4(to, k < p.K ? p.out_scale_bias[k] : 0.0f);
                ck_put4(to + 4 * COLUMNS, k < p.K ? p.out_scale_bias[p.K + k] : 0.0f);
            } else if (MODE != JOINED) {
                ck_put4(to, p.bias && k < p.K ? p.bias[k] : 0.0f);
            }
        }
        columns_barrier();
    }

    /* First row of this warp in the tile at `row`. */
    __device__ __forceinline__ int strip_row(int row) const { return row + me % TEAM * ROWS + warp * STRIP; }

    /* Called by the warp's first lane: loads add and bn_x of the next panel, whose buffers are free. */
    __device__ __forceinline__ void load_ahead() {
        if (!ahead.more()) return;
        const uint32_t bar = panel_full + 8 * (uint32_t)ahead_at.at, at = (uint32_t)(ahead_at.at * PANEL_BYTES);
        const int      column = ahead.column + ahead_panel * 64, row = strip_row(ahead.row);
        ck_mbar_expect(bar, (uint32_t)PANEL_BYTES * (uint32_t)(p.add_given + p.bn_given));
        if (MODE == JOINED && p.stride > 1) {
            const int first = row < p.rows ? row : 0, n = first / (p.P * p.Q), rest = first - n * (p.P * p.Q),
                      h = rest / p.Q, w = rest - h * p.Q;
            if (p.add_given) ck_tma_load_pixels(panels_at + at, &p.add, bar, column, w * p.stride, h * p.stride, n);
            if (p.bn_given) ck_tma_load_pixels(others_at + at, &p.bn_x, bar, column, w * p.stride, h * p.stride, n);
        } else {
            if (p.add_given) ck_tma_load(panels_at + at, &p.add, bar, column, row);
            if (p.bn_given) ck_tma_load(others_at + at, &p.bn_x, bar, column, row);
        }
        ahead_at.next(plan.panels);
        if (++ahead_panel == PANELS) {
            ahead_panel = 0;
            ahead.next(plan);
        }
    }

    /* Finishes panel `i` of acc and writes it to its buffer. INFER: BIAS or SCALE; with least 0 also applies ReLU. */
    template <int INFER, bool ADD, bool BN>
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
                if (ADD && INFER != SCALE) {
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
                if (INFER == SCALE || BN) second = ck_get8(from + 4 * COLUMNS);
#pragma unroll
                for (int j = 2 * half; j < 2 * half + 2; j++) {
                    if (INFER == BIAS)
                        v[j] = make_float2(ck_at_least(v[j].x + first.x, least), ck_at_least(v[j].y + first.y, least));
                    if (INFER == SCALE) {
                        const float2 a = ADD ? ck_pair<T>(add[j]) : make_float2(0.0f, 0.0f);
                        v[j].x         = ck_at_least(fmaf(v[j].x, first.x, second.x) + a.x, least);
                        v[j].y         = ck_at_least(fmaf(v[j].y, first.y, second.y) + a.y, least);
                    }
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

    /* Writes the bits of y > 0 of a panel: a lane has 32 columns of a row. */
    __device__ __forceinline__ void write_mask(uint32_t y, int column, int row) const {
        const int r = lane / 2, half = lane % 2;
        uint32_t  bits = 0;
        if (row + r >= p.rows || column >= p.K) return;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4    eight   = ck_get16(y + (uint32_t)(r * 128 + ((half * 4 + i) ^ r % 8) * 16));
            const uint32_t word[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 v = ck_pair<T>(word[j]);
                bits |= (v.x > 0.0f ? 1u : 0u) << (i * 8 + j * 2) | (v.y > 0.0f ? 2u : 0u) << (i * 8 + j * 2);
            }
        }
        *(uint32_t *)(p.mask + ((int64_t)(row + r) * p.K + column + half * 32) / 8) = bits;
    }

    /* Stores a panel at the pixels (p*stride, q*stride) of y [N][H][W][K], and without add zeros at the pixels between
     * them. A lane has 8 columns of every 4th row. */
    __device__ __forceinline__ void store_pixels(uint32_t y, int column, int row) const {
        const int chunk = lane % 8, side = p.add_given ? 1 : p.stride;
        for (int r = lane / 8; r < STRIP && row + r < p.rows && column + chunk * 8 < p.K; r += 4) {
            const int n = (row + r) / (p.P * p.Q), rest = row + r - n * (p.P * p.Q), h = rest / p.Q * p.stride,
                      w      = (rest - rest / p.Q * p.Q) * p.stride;
            const uint4 word = ck_get16(y + (uint32_t)(r * 128 + (chunk ^ r % 8) * 16)), zero = make_uint4(0, 0, 0, 0);
            for (int dh = 0; dh < side && h + dh < p.H; dh++)
                for (int dw = 0; dw < side && w + dw < p.W; dw++)
                    ck_store_whole((T *)p.data + (((int64_t)n * p.H + h + dh) * p.W + w + dw) * p.K + column +
                                       chunk * 8,
                                   dh + dw ? zero : word);
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
    template <int INFER, bool ADD, bool BN> __device__ __forceinline__ void finish(int row, int column) {
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
            if (MODE == JOINED && p.stride > 1)
                store_pixels(y, column + i * 64, row);
            else if (lane == 0) {
                ck_tma_store(&p.y, y, column + i * 64, row);
                ck_bulk_commit();
            }
            if (INFER == SCALE && p.mask) write_mask(y, column + i * 64, row);
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

    template <int INFER, bool ADD, bool BN> __device__ __forceinline__ void run_as() {
        tiles      at(plan, me / TEAM, TAKERS);
        const bool vectors = INFER || BN || MODE == JOINED;
        int        column  = -1;                                   /* the column of the last call of set_columns */
        const bool once    = MODE == JOINED && plan.blocks_k == 1; /* all tiles have the same columns */
        /* all panels but one: the buffer of the last is loaded when the first panel has been stored */
        if ((ADD || BN) && lane == 0)
            for (int i = 0; i < plan.panels - 1; i++) load_ahead();
        if (TURNS && me >= TEAM) stage.skip(plan.steps, plan.stages);
        turn = me < TEAM ? 1 : 0;                        /* the first team starts at once */
        if (RESIDENT && vectors) set_columns(at.column); /* workers without a tile too */
        if (RESIDENT) ck_mbar_wait(full + 8 * (uint32_t)(BAR_FILTERS - BAR_FULL) - 8 * (uint32_t)(me * STAGES_MAX), 0);
        for (; at.more(); at.next(plan)) {
            if (!RESIDENT && vectors && at.column != column) set_columns(column = at.column);
            multiply();
            finish<INFER, ADD, BN>(strip_row(at.row), at.column);
            if (p.partial && !RESIDENT && !once) flush<!ADD>(at.row / ROWS + me % TEAM, at.column);
        }
        if (p.partial && (RESIDENT || once)) flush<true>((int)blockIdx.x / plan.blocks_k * WORKERS + me, at.column);
        if (lane == 0) ck_bulk_wait<0>();
    }
};

} // namespace

#endif

#endif
