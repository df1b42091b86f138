/* cuda/conv/mma/point_mma_work.cuh: products, results and sums of a warp of cuda/conv/mma/point_mma.cu. */
#ifndef CK_POINT_MMA_WORK_CUH
#define CK_POINT_MMA_WORK_CUH

#include "cuda/conv/mma/point_mma.cuh"

namespace {

/* A warp has 64 columns and 16 or 32 rows of a tile. */
template <typename T, int COLUMNS, int KIND> struct worker {
    static constexpr int ACROSS = COLUMNS / 64, WARP_ROWS = ROWS / (WARPS / ACROSS), FRAGMENTS = WARP_ROWS / 16,
                         W_BYTES       = COLUMNS * STEP * 2,
                         UNROLL        = KIND == PLAIN || KIND == INFER ? 4 : 2; /* of fragments: registers are short */
    static constexpr bool W_TRANSPOSED = KIND == TRANSPOSED || KIND == GRADIENT, ADDS = KIND == INFER || W_TRANSPOSED,
                          SUMS = KIND == PLAIN || KIND == ACT || KIND == GRADIENT;

    const params  &p;
    const uint32_t shared, panel;
    const int      lane, first_row, part; /* of the tile: first row and 64 columns of this warp */
    const int      k;                     /* first of the lane's 8 columns of y */
    float          acc[FRAGMENTS][8][4];
    column_sums    sums;

    __device__ worker(const params &params_, uint32_t shared_, int column)
        : p(params_), shared(shared_),
          panel(shared_ + (uint32_t)(params_.plan.panel_at + (int)threadIdx.x / 32 * PANEL_BYTES)),
          lane((int)threadIdx.x % 32), first_row((int)threadIdx.x / 32 / ACROSS * WARP_ROWS),
          part((int)threadIdx.x / 32 % ACROSS), k(column + part * 64 + lane % 8 * 8) {}

    /* The products start from the bias. */
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 bias = make_float2(0.0f, 0.0f);
            if (KIND == INFER)
                bias = ck_get8(shared + (uint32_t)(p.plan.column_at + (part * 64 + n * 8 + lane % 4 * 2) * 4));
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++) {
                acc[m][n][0] = acc[m][n][2] = bias.x;
                acc[m][n][1] = acc[m][n][3] = bias.y;
            }
        }
    }

    /* ---- product ---- */

    /* ReLU(x*scale + bias) of 16 channels from c on, of all fragments; x has `channels`. */
    __device__ __forceinline__ void activate(uint32_t (&a)[FRAGMENTS][4], int c, int channels) const {
        const uint32_t at = shared + (uint32_t)(p.plan.scale_bias_at + (c + lane % 4 * 2) * 4);
#pragma unroll
        for (int half = 0; half < 2; half++) { /* channels 0..7 and 8..15: words 0, 1 and 2, 3 */
            const float2 scale = ck_get8(at + (uint32_t)(half * 32)),
                         bias  = ck_get8(at + (uint32_t)((half * 8 + channels) * 4));
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
                for (int j = 2 * half; j < 2 * half + 2; j++) {
                    const float2 v = ck_pair<T>(a[m][j]);
                    a[m][j]        = ck_pack_relu<T>(fmaf(v.x, scale.x, bias.x), fmaf(v.y, scale.y, bias.y));
                }
        }
    }
    __device__ __forceinline__ void multiply(int stage, int step) {
        multiply_as<KIND == ACT>(stage, step, p.C);
    }
    template <bool ACTIVE> __device__ __forceinline__ void multiply_as(int stage, int step, int channels) {
        const uint32_t x = shared +
                           (uint32_t)(p.plan.stage_at + stage * ((int)X_BYTES + (p.plan.resident ? 0 : W_BYTES))),
                       w = p.plan.resident ? shared + (uint32_t)(step * W_BYTES) : x + X_BYTES;
#pragma unroll UNROLL
        for (int i = 0; i < STEP; i += 16) {
            uint32_t a[FRAGMENTS][4];
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++) ck_mma_a(a[m], x, 128, first_row + m * 16, i);
            if (ACTIVE) activate(a, step * STEP + i, channels);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t b[4];
                if (W_TRANSPOSED)
                    ck_mma_b_transposed(b, w + (uint32_t)(part * 64 * 128), 128, n * 16, i);
                else
                    ck_mma_b(b, w, 128, part * 64 + n * 16, i);
#pragma unroll
                for (int m = 0; m < FRAGMENTS; m++) {
                    ck_mma<T>(acc[m][2 * n], a[m], b[0], b[1]);
                    ck_mma<T>(acc[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    /* ---- results ---- */

    /* The block's vectors over its columns, f32 [4][COLUMNS]: bias; or scale and bias of the BN in front, rstd,
     * -mean*rstd. And scale and bias of the input's channels. Every thread calls; a barrier must follow. */
    static __device__ __forceinline__ void set_vectors(const params &p, uint32_t shared, int column) {
        for (int i = (int)threadIdx.x; i < COLUMNS; i += THREADS) {
            const uint32_t to = shared + (uint32_t)(p.plan.column_at + i * 4);
            const int      k  = column + i;
            if (KIND == INFER) ck_put4(to, p.bias && k < p.K ? p.bias[k] : 0.0f);
            if (KIND == GRADIENT) {
                const float mean = k < p.K ? p.mean_rstd[k] : 0.0f, rstd = k < p.K ? p.mean_rstd[p.K + k] : 0.0f;
                const float scale = k < p.K ? p.gamma[k] * rstd : 0.0f,
                            bias  = k < p.K ? p.beta[k] - mean * scale : 0.0f;
                ck_put4(to, scale);
                ck_put4(to + 4 * COLUMNS, bias);
                ck_put4(to + 8 * COLUMNS, rstd);
                ck_put4(to + 12 * COLUMNS, -mean * rstd);
            }
        }
        if (KIND == ACT)
            for (int i = (int)threadIdx.x; i < 2 * p.C; i += THREADS)
                ck_put4(shared + (uint32_t)(p.plan.scale_bias_at + i * 4), p.scale_bias[i]);
    }
    /* Four of the lane's columns of vector `which`. */
    __device__ __forceinline__ void vector(float (&v)[4], int which, int half) const {
        const int column = part * 64 + lane % 8 * 8 + half * 4;
        set4(v, ck_get16(shared + (uint32_t)(p.plan.column_at + (which * COLUMNS + column) * 4)));
    }

    __device__ __forceinline__ void mask(float (&v)[8], const float (&x)[8]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float scale[4], bias[4];
            vector(scale, 0, half);
            vector(bias, 1, half);
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[half * 4 + i] = fmaf(x[half * 4 + i], scale[i], bias[i]) > 0.0f ? v[half * 4 + i] : 0.0f;
        }
    }
    __device__ __forceinline__ void add_bn_sums(const float (&v)[8], const float (&x)[8]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float rstd[4], shift[4];
            vector(rstd, 2, half);
            vector(shift, 3, half);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = half * 4 + i;
                sums.first[at] += v[at];
                sums.second[at] = fmaf(v[at], fmaf(x[at], rstd[i], shift[i]), sums.second[at]);
            }
        }
    }
    __device__ __forceinline__ void store(uint4 vector, int row) const {
        ck_store_whole(static_cast<T *>(p.y) + (int64_t)row * p.K + k, vector);
    }
    /* Stores the lane's 8 elements of a row after add, mask and ReLU. */
    __device__ __forceinline__ void finish_vector(float (&v)[8], uint4 add, uint4 bn, int row) {
        float other[8];
        if (p.add) {
            ck_unpack<T>(add, other);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] += other[i];
        }
        if (KIND == INFER && p.relu) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = ck_relu(v[i]);
        }
        if (KIND == GRADIENT) {
            ck_unpack<T>(bn, other);
            mask(v, other);
        }
        const uint4 word = ck_pack<T>(v);
        store(word, row);
        if (KIND == GRADIENT && p.partial) {
            ck_unpack<T>(word, v);
            add_bn_sums(v, other);
        }
    }
    /* Vectors of add and bn_x for two rows of a panel. */
    struct loaded {
        uint4 add[2], bn[2];
    };
    __device__ __forceinline__ void load(loaded &l, int row) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t at = (int64_t)(row + 4 * i) * (p.K / 8) + k / 8;
            const bool    is = k < p.K && row + 4 * i < p.rows;
            l.add[i] = l.bn[i] = make_uint4(0, 0, 0, 0);
            if (is && p.add) l.add[i] = ck_load(static_cast<const T *>(p.add), at);
            if (KIND == GRADIENT && is) l.bn[i] = ck_load(static_cast<const T *>(p.bn_x), at);
        }
    }
    /* Rows 8*HALF to 8*HALF+7 of a fragment; row: the lane's first one. */
    template <int HALF> __device__ __forceinline__ void finish_half(const float (&of)[8][4], const loaded &l, int row) {
        put_panel<HALF>(panel, of);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float v[8];
            get_panel(v, panel, lane / 8 + 4 * i);
            if (k < p.K && row + 4 * i < p.rows) finish_vector(v, l.add[i], l.bn[i], row + 4 * i);
        }
        __syncwarp();
    }

    /* A fragment whose results are final; row: the lane's first one. */
    __device__ __forceinline__ void finish_plain(const float (&of)[8][4], int row) {
        if (KIND == INFER && p.relu)
            put_half_panel<T, true>(panel, of);
        else
            put_half_panel<T, false>(panel, of);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 word = get_half_panel(panel, lane / 8 + 4 * i);
            if (k < p.K && row + 4 * i < p.rows) {
                store(word, row + 4 * i);
                if (SUMS && p.partial) sums.template add<T>(word);
            }
        }
        __syncwarp();
    }

    /* The warp's part of a tile. */
    __device__ __forceinline__ void finish(int tile) {
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++) {
            const int row = tile * ROWS + first_row + m * 16 + lane / 8;
            if (KIND == GRADIENT || (ADDS && p.add)) {
                loaded low = {}, high = {};
                load(low, row);
                if (KIND != GRADIENT) load(high, row + 8);
                finish_half<0>(acc[m], low, row);
                if (KIND == GRADIENT) load(high, row + 8);
                finish_half<1>(acc[m], high, row + 8);
            } else {
                finish_plain(acc[m], row);
            }
        }
    }

    /* Stores the block's sums in row `group` of the workspace. All threads call. */
    __device__ __forceinline__ void write_sums(int group, int column) {
        const int64_t  width = (int64_t)p.plan.blocks_k * COLUMNS;
        const uint32_t to    = shared + (uint32_t)p.plan.panel_at; /* f32 [WARPS][2][64] */
        sums.add_lanes();
        __syncthreads(); /* no warp uses its panel */
        if (lane < 8) sums.put(to + (uint32_t)((int)threadIdx.x / 32 * 512));
        __syncthreads();
        for (int i = (int)threadIdx.x; i < 2 * COLUMNS; i += THREADS) {
            const int of = i / COLUMNS, c = i % COLUMNS;
            float     sum = 0.0f;
            for (int w = c / 64; w < WARPS; w += ACROSS)
                sum += __uint_as_float(ck_get4(to + (uint32_t)((w * 128 + of * 64 + c % 64) * 4)));
            p.partial[((int64_t)group * 2 + of) * width + column + c] = sum;
        }
    }
};

} // namespace

#endif
