/* cuda/conv/mma/gram/point_gram_mma.cuh: copies and results of cuda/conv/mma/gram/point_gram_mma.cu. Products and sums
 * are those of cuda/conv/mma/point_mma_work.cuh. */
#ifndef CK_POINT_GRAM_MMA_CUH
#define CK_POINT_GRAM_MMA_CUH

#include "cuda/conv/mma/point_mma_work.cuh"

namespace {

enum gram_kind {
    CONV,     /* y = v*scale + bias (+ add), ReLU, mask */
    CONV_ACT, /* the same for act(x) */
    GRAD,     /* v + factor*(second_x second_w^T) + bias (+ add) */
    GRAD_ACT, /* the same with act(second_x) */
    GRAD_BN,  /* the same, masked by act(second_x) > 0, with sums */
    GRAD_RELU /* GRAD, masked by second_x > 0 */
};

struct gram_params : params {
    int            seconds; /* steps over second_x, before those over x */
    const void    *second_x, *second_w;
    const float   *factor_bias, *out_scale_bias;
    unsigned char *mask;
};

/* Copies of steps over second_x and second_w, then over x and w. Channels are whole steps. Without STRIDED the stride
 * is 1: the choice at run time costs 6 to 13 % of the time of the whole kernel. */
template <typename T, int COLUMNS, bool STRIDED> struct pair_copier : copier<T, COLUMNS, false> {
    using base = copier<T, COLUMNS, false>;
    using base::chunk, base::column, base::p, base::row, base::shared, base::step, base::tile;
    const gram_params &g;

    __device__ pair_copier(const gram_params &g_, uint32_t shared_, int column_, int tile_)
        : base(g_, shared_, column_, tile_), g(g_) {}

    /* Rows of `channels` elements, from this thread's 8 channels of step s on. */
    struct source {
        const T *x, *w;
        int      channels;
    };
    __device__ __forceinline__ source source_of(int s) const {
        const bool second = s < g.seconds;
        const int  c      = (second ? s : s - g.seconds) * STEP + chunk * 8;
        return {static_cast<const T *>(second ? g.second_x : p.x) + c,
                static_cast<const T *>(second ? g.second_w : p.w) + c, second ? p.K : p.C};
    }
    __device__ __forceinline__ void copy_x(uint32_t to) const {
        const source from = source_of(step);
#pragma unroll
        for (int i = 0; i < ROWS / 32; i++) {
            const int  r     = tile * ROWS + row + 32 * i;
            const bool is    = r < p.rows;
            int64_t    pixel = is ? r : 0;
            if (STRIDED && is && step < g.seconds) pixel = base::pixel_of(r);
            ck_copy16(ck_chunk_at(to, 128, row + 32 * i, chunk), from.x + pixel * from.channels, is);
        }
    }
    __device__ __forceinline__ void copy_w(uint32_t to, int s) const {
        const source from = source_of(s);
#pragma unroll
        for (int i = 0; i < COLUMNS / 32; i++) {
            const int  k  = column + row + 32 * i;
            const bool is = k < p.K;
            ck_copy16(ck_chunk_at(to, 128, row + 32 * i, chunk), from.w + (is ? (int64_t)k * from.channels : 0), is);
        }
    }
    __device__ __forceinline__ void copy_all_w() const {
        for (int s = 0; s < p.plan.steps; s++) copy_w(shared + (uint32_t)(s * base::W_BYTES), s);
    }
    __device__ __forceinline__ void next(int stage) {
        if (tile < p.plan.tiles) {
            const uint32_t to =
                shared + (uint32_t)(p.plan.stage_at + stage * ((int)X_BYTES + (p.plan.resident ? 0 : base::W_BYTES)));
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

template <typename T, int COLUMNS, gram_kind KIND>
struct gram_worker : worker<T, COLUMNS, KIND == CONV_ACT ? ACT : PLAIN> {
    static constexpr bool IS_CONV = KIND == CONV || KIND == CONV_ACT, ACTIVE = KIND == GRAD_ACT || KIND == GRAD_BN,
                          SUMS = KIND == GRAD_BN, MASKS = SUMS || KIND == GRAD_RELU;
    using base = worker<T, COLUMNS, KIND == CONV_ACT ? ACT : PLAIN>;
    using base::acc, base::FRAGMENTS, base::k, base::lane, base::p, base::panel, base::part, base::shared, base::sums;
    const gram_params &g;

    __device__ gram_worker(const gram_params &g_, uint32_t shared_, int column) : base(g_, shared_, column), g(g_) {}

    /* The block's vectors over its columns, f32 [6][COLUMNS]: scale and bias of the result, of the BN in front; rstd,
     * -mean*rstd; factor and bias of the products with second_x. Every thread calls; a barrier must follow. */
    enum { SCALE, BIAS, RSTD, SHIFT, FACTOR, SUMMAND };
    __device__ __forceinline__ void set_vectors(int column) const {
        for (int i = (int)threadIdx.x; i < COLUMNS; i += THREADS) {
            const uint32_t     to = shared + (uint32_t)(p.plan.column_at + i * 4);
            const int          c = column + i, K = p.K;
            const bool         is   = c < K;
            const float *const pair = IS_CONV ? g.out_scale_bias : p.scale_bias;
            if (IS_CONV || SUMS) {
                ck_put4(to + 4 * SCALE * COLUMNS, is ? pair[c] : 0.0f);
                ck_put4(to + 4 * BIAS * COLUMNS, is ? pair[K + c] : 0.0f);
            }
            if (SUMS) {
                const float mean = is ? p.mean_rstd[c] : 0.0f, rstd = is ? p.mean_rstd[K + c] : 0.0f;
                ck_put4(to + 4 * RSTD * COLUMNS, rstd);
                ck_put4(to + 4 * SHIFT * COLUMNS, -mean * rstd);
            }
            if (!IS_CONV) {
                ck_put4(to + 4 * FACTOR * COLUMNS, is ? g.factor_bias[c] : 0.0f);
                ck_put4(to + 4 * SUMMAND * COLUMNS, is ? g.factor_bias[K + c] : 0.0f);
            }
        }
        if (KIND == CONV_ACT || ACTIVE)
            for (int i = (int)threadIdx.x; i < 2 * (IS_CONV ? p.C : p.K); i += THREADS)
                ck_put4(shared + (uint32_t)(p.plan.scale_bias_at + i * 4), p.scale_bias[i]);
    }

    __device__ __forceinline__ void multiply(int stage, int step) {
        if (IS_CONV || step >= g.seconds) {
            base::multiply(stage, step);
            return;
        }
        base::template multiply_as<ACTIVE>(stage, step, p.K);
        if (step == g.seconds - 1) scale();
    }
    /* The products with second_x are complete. */
    __device__ __forceinline__ void scale() {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const uint32_t at     = shared + (uint32_t)(p.plan.column_at + (part * 64 + n * 8 + lane % 4 * 2) * 4);
            const float2   factor = ck_get8(at + 4 * FACTOR * COLUMNS), bias = ck_get8(at + 4 * SUMMAND * COLUMNS);
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++) {
                acc[m][n][0] = fmaf(acc[m][n][0], factor.x, bias.x);
                acc[m][n][1] = fmaf(acc[m][n][1], factor.y, bias.y);
                acc[m][n][2] = fmaf(acc[m][n][2], factor.x, bias.x);
                acc[m][n][3] = fmaf(acc[m][n][3], factor.y, bias.y);
            }
        }
    }

    /* ---- results ---- */

    /* Vectors of add and second_x for the lane's four rows of a fragment. */
    struct loaded {
        uint4 add[4], x[4];
    };
    __device__ __forceinline__ int row_of(int tile, int m) const {
        return tile * ROWS + this->first_row + m * 16 + lane / 8;
    }
    /* Number of the lane's vector of a row in y, add and second_x. */
    __device__ __forceinline__ int64_t vector_of(int row) const {
        int64_t pixel = row;
        if (!IS_CONV && !SUMS && p.stride > 1) {
            const int n = row / (p.P * p.Q), rest = row - n * (p.P * p.Q), h = rest / p.Q;
            pixel = ((int64_t)n * p.H + h * p.stride) * p.W + (rest - h * p.Q) * p.stride;
        }
        return pixel * (p.K / 8) + k / 8;
    }
    __device__ __forceinline__ void load(loaded &l, int row) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t at = vector_of(row + 4 * i);
            const bool    is = k < p.K && row + 4 * i < p.rows;
            l.add[i] = l.x[i] = make_uint4(0, 0, 0, 0);
            if (!SUMS && is && p.add) l.add[i] = ck_load(static_cast<const T *>(p.add), at);
            if (MASKS && is) l.x[i] = ck_load(static_cast<const T *>(g.second_x), at);
        }
    }
    __device__ __forceinline__ void get_vector(float (&v)[8], int which) const {
        const uint32_t at = shared + (uint32_t)(p.plan.column_at + (which * COLUMNS + part * 64 + lane % 8 * 8) * 4);
        set4(v, ck_get16(at));
        set4(v + 4, ck_get16(at + 16));
    }
    __device__ __forceinline__ void put_mask(uint4 word, int row) const {
        float    v[8];
        unsigned bits = 0;
        ck_unpack<T>(word, v);
#pragma unroll
        for (int i = 0; i < 8; i++) bits |= (v[i] > 0.0f ? 1u : 0u) << i;
        g.mask[(int64_t)row * (p.K / 8) + k / 8] = (unsigned char)bits;
    }
    __device__ __forceinline__ void finish_vector(float (&v)[8], const float (&scale)[8], const float (&bias)[8],
                                                  uint4 add, uint4 x, int row) {
        float other[8];
#pragma unroll
        for (int i = 0; i < 8 && IS_CONV; i++) v[i] = fmaf(v[i], scale[i], bias[i]);
        if (!SUMS && p.add) {
            ck_unpack<T>(add, other);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] += other[i];
        }
        if (IS_CONV && p.relu) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = ck_relu(v[i]);
        }
        if (MASKS) ck_unpack<T>(x, other);
        if (SUMS) this->mask(v, other);
#pragma unroll
        for (int i = 0; i < 8 && KIND == GRAD_RELU; i++) v[i] = other[i] > 0.0f ? v[i] : 0.0f;
        const uint4 word = ck_pack<T>(v);
        ck_store_whole(static_cast<T *>(p.y) + vector_of(row) * 8, word);
        if (IS_CONV && g.mask) put_mask(word, row);
        if (SUMS) {
            ck_unpack<T>(word, v);
            this->add_bn_sums(v, other);
        }
    }
    template <int HALF>
    __device__ __forceinline__ void finish_half(const float (&of)[8][4], const loaded &l, const float (&scale)[8],
                                                const float (&bias)[8], int            row) {
        put_panel<HALF>(panel, of);
        __syncwarp();
#pragma unroll
        for (int i = 2 * HALF; i < 2 * HALF + 2; i++) {
            float v[8];
            get_panel(v, panel, lane / 8 + 4 * (i - 2 * HALF));
            if (k < p.K && row + 4 * i < p.rows) finish_vector(v, scale, bias, l.add[i], l.x[i], row + 4 * i);
        }
        __syncwarp();
    }
    /* The warp's part of a tile; l: of its first fragment. */
    __device__ __forceinline__ void finish(int tile, loaded &l) {
        float scale[8] = {}, bias[8] = {};
        if (IS_CONV) {
            get_vector(scale, SCALE);
            get_vector(bias, BIAS);
        }
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++) {
            loaded next;
            if (m + 1 < FRAGMENTS) load(next, row_of(tile, m + 1));
            finish_half<0>(acc[m], l, scale, bias, row_of(tile, m));
            finish_half<1>(acc[m], l, scale, bias, row_of(tile, m));
            if (m + 1 < FRAGMENTS) l = next;
        }
    }
};

} // namespace

#endif
