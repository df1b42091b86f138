/* cuda/conv/mma/point_grad_mma_work.cuh: a thread of cuda/conv/mma/point_grad_mma.cu: dy and xa, products, results. */
#ifndef CK_POINT_GRAD_MMA_WORK_CUH
#define CK_POINT_GRAD_MMA_WORK_CUH

#include "cuda/conv/mma/point_grad_mma.cuh"

namespace {

template <typename T, typename P> struct worker : loader<T, P> {
    using loader<T, P>::p;
    using loader<T, P>::slice;
    using loader<T, P>::g;
    using loader<T, P>::d;
    using loader<T, P>::x;
    using loader<T, P>::shared;
    using typename loader<T, P>::vector;
    static constexpr bool COPIES = P::COPIES > 0 && P::MODE == BLOCK; /* of add and bn_x */
    static constexpr int  MODE = P::MODE, CE = P::CE, W_FRAGMENTS = P::W_ROWS / 16, W_PAIRS = P::W_COLUMNS / 16,
                         V_PAIRS = P::V_COLUMNS / 16;

    const int warp, lane;
    float     dw[W_FRAGMENTS][2 * W_PAIRS][4];
    float     sums[2][CE]; /* of dx and dx*(x - mean), of the thread's channels */
    vector    held[P::CN]; /* x of this tile (INNER), or bn_x */
    vector    add[P::CN];
    unsigned  above; /* which elements have a ReLU in front of them that is above 0 */

    __device__ worker(const params &params_, uint32_t shared_, int slice_)
        : loader<T, P>(params_, shared_, slice_), warp((int)threadIdx.x / 32), lane((int)threadIdx.x % 32), above(0) {
#pragma unroll
        for (int i = 0; i < W_FRAGMENTS * W_PAIRS * 8; i++) dw[i / (W_PAIRS * 8)][i / 4 % (2 * W_PAIRS)][i % 4] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * CE; i++) sums[i / CE][i % CE] = 0.0f;
    }

    /* ---- dy and xa in shared memory ---- */

    /* Coefficients of four of the thread's channels of dy. */
    __device__ __forceinline__ void coefficients(float (&v)[4], int which, int half) const {
        get4(v, shared + (uint32_t)(P::ABC_AT + which * P::K * 4 + half * (P::K * 2) + this->k_vector() * 16));
    }
    __device__ __forceinline__ void make_dy(int tile) const {
        if (P::COPIES) ck_copy_wait_all();
#pragma unroll
        for (int half = 0; half < 2; half++) { /* 4 channels at a time, for the registers of the coefficients */
            float a[4], b[4], c[4];
            coefficients(a, 0, half), coefficients(b, 1, half), coefficients(c, 2, half);
#pragma unroll
            for (int i = 0; i < P::KN; i++) {
                const uint4    u = this->template loaded<1>(g, i), v = this->template loaded<0>(d, i);
                const bool     is   = this->exists(tile, this->k_row(i));
                const uint32_t low  = dy_word(half ? u.z : u.x, half ? v.z : v.x, a, b, c, 0),
                               high = dy_word(half ? u.w : u.y, half ? v.w : v.y, a, b, c, 2);
                ck_put8(ck_chunk_at(shared + P::DY_AT, P::K * 2, this->k_row(i), this->k_vector()) +
                            (uint32_t)(half * 8),
                        is ? low : 0, is ? high : 0);
            }
        }
    }
    static __device__ __forceinline__ uint32_t dy_word(uint32_t g, uint32_t d, const float (&a)[4], const float (&b)[4],
                                                       const float (&c)[4], int i) {
        const float2 u = ck_pair<T>(g), v = ck_pair<T>(d);
        return ck_pack_pair<T>(fmaf(a[i], u.x, fmaf(b[i], v.x, c[i])),
                               fmaf(a[i + 1], u.y, fmaf(b[i + 1], v.y, c[i + 1])));
    }
    /* Mean (0), scale (1) or bias (2) of four of the thread's channels of x. */
    __device__ __forceinline__ void channels(float (&v)[4], int which, int from) const {
        get4(v, shared + (uint32_t)(P::CHANNEL_AT + which * P::C * 4 + from / 4 * (P::C * 2) + this->c_vector() * 16));
    }
    __device__ __forceinline__ void activate(float (&v)[CE]) const {
#pragma unroll
        for (int from = 0; from < CE; from += 4) {
            float scale[4], bias[4];
            channels(scale, 1, from), channels(bias, 2, from);
#pragma unroll
            for (int j = from; j < from + 4; j++) v[j] = ck_relu(fmaf(v[j], scale[j - from], bias[j - from]));
        }
    }
    __device__ __forceinline__ void make_xa(int tile) {
        above = 0;
#pragma unroll
        for (int i = 0; i < P::CN; i++) {
            const int row = this->c_row(i), byte = this->c_vector() * CE * 2;
            vector    here = x[i];
            if (MODE != PLAIN) {
                float v[CE];
                here.template unpack<T>(v);
                if (MODE == INNER) {
                    held[i] = here;
                    activate(v);
                    here.template pack<T>(v);
                    if (!this->exists(tile, row)) here.clear();
                } else {
#pragma unroll
                    for (int j = 0; j < CE; j++) above |= (v[j] > 0.0f ? 1u : 0u) << (CE * i + j);
                }
            }
            here.put(ck_chunk_at(shared + P::XA_AT, P::C * 2, row, byte / 16) + (uint32_t)(byte % 16));
        }
    }

    /* ---- products ---- */

    __device__ __forceinline__ void wgrad() {
        const int k = warp / P::W_ACROSS * P::W_ROWS, c = warp % P::W_ACROSS * P::W_COLUMNS;
#pragma unroll 2
        for (int pixel = 0; pixel < P::TILE; pixel += 16) {
            uint32_t a[W_FRAGMENTS][4];
#pragma unroll
            for (int m = 0; m < W_FRAGMENTS; m++)
                ck_mma_a_transposed(a[m], shared + P::DY_AT, P::K * 2, k + m * 16, pixel);
#pragma unroll
            for (int n = 0; n < W_PAIRS; n++) {
                uint32_t b[4];
                ck_mma_b_transposed(b, shared + P::XA_AT, P::C * 2, c + n * 16, pixel);
#pragma unroll
                for (int m = 0; m < W_FRAGMENTS; m++) {
                    ck_mma<T>(dw[m][2 * n], a[m], b[0], b[1]);
                    ck_mma<T>(dw[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }
    /* v = dy * w, in f32 in shared memory, in V_PARTS parts of the sum over K. */
    __device__ __forceinline__ void dgrad() const {
        constexpr int PART = P::K / P::V_PARTS;
        const int     part = warp / (P::WARPS / P::V_PARTS), w = warp % (P::WARPS / P::V_PARTS);
        const int     row = w / P::V_ACROSS * 16, c = w % P::V_ACROSS * P::V_COLUMNS;
        float         v[2 * V_PAIRS][4];
#pragma unroll
        for (int i = 0; i < V_PAIRS * 8; i++) v[i / 4][i % 4] = 0.0f;
#pragma unroll(P::K == 64 ? 4 : 2)
        for (int k = part * PART; k < part * PART + PART; k += 16) {
            uint32_t a[4];
            ck_mma_a(a, shared + P::DY_AT, P::K * 2, row, k);
#pragma unroll
            for (int n = 0; n < V_PAIRS; n++) {
                uint32_t b[4];
                ck_mma_b_transposed(b, shared, P::C * 2, c + n * 16, k);
                ck_mma<T>(v[2 * n], a, b[0], b[1]);
                ck_mma<T>(v[2 * n + 1], a, b[2], b[3]);
            }
        }
        const uint32_t to =
            shared + (uint32_t)(P::V_AT + part * P::V_BYTES + (row + lane / 4) * P::V_ROW + (c + lane % 4 * 2) * 4);
#pragma unroll
        for (int i = 0; i < 2 * V_PAIRS; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                ck_put8(to + (uint32_t)(half * 8 * P::V_ROW + i * 32), __float_as_uint(v[i][2 * half]),
                        __float_as_uint(v[i][2 * half + 1]));
    }

    /* ---- results ---- */

    /* The thread's channels of a row of v. With 8 of them, threads 4 to 7 read their second half first, so that eight
     * threads read from all banks. */
    __device__ __forceinline__ void get_v(float (&v)[CE], int row) const {
        const bool     upper_first = CE == 8 && (this->c_vector() & 4) != 0;
        const uint32_t from =
            shared + (uint32_t)(P::V_AT + row * P::V_ROW + this->c_vector() * (CE * 4) + (upper_first ? 16 : 0));
        float half[2][4];
        get4(half[0], from);
        if (CE == 8) get4(half[1], upper_first ? from - 16 : from + 16);
        if (P::V_PARTS == 2) {
            float more[4];
#pragma unroll
            for (int h = 0; h < CE / 4; h++) {
                get4(more, (h == 0 ? from : upper_first ? from - 16 : from + 16) + (uint32_t)P::V_BYTES);
#pragma unroll
                for (int i = 0; i < 4; i++) half[h][i] += more[i];
            }
        }
#pragma unroll
        for (int i = 0; i < CE; i++)
            v[i] = CE == 4 ? half[0][i % 4] : (i < 4) != upper_first ? half[0][i % 4] : half[1][i % 4];
    }
    /* The ReLU mask of vector i, and the sums; other: x, or bn_x. */
    __device__ __forceinline__ void mask(float (&v)[CE], const vector &other, int i) {
        float x_[CE];
        other.template unpack<T>(x_);
#pragma unroll
        for (int from = 0; from < CE; from += 4) {
            float mean[4], scale[4], bias[4];
            channels(mean, 0, from);
            if (MODE == INNER) channels(scale, 1, from), channels(bias, 2, from);
#pragma unroll
            for (int j = from; j < from + 4; j++) {
                const bool is = MODE == INNER ? fmaf(x_[j], scale[j - from], bias[j - from]) > 0.0f
                                              : (above >> (CE * i + j) & 1u) != 0;
                v[j]          = is ? v[j] : 0.0f;
                sums[0][j] += v[j];
                sums[1][j] = fmaf(v[j], x_[j] - mean[j - from], sums[1][j]);
            }
        }
    }
    __device__ __forceinline__ void finish(int tile) {
#pragma unroll
        for (int i = 0; i < P::CN; i++) {
            float  v[CE];
            vector result;
            get_v(v, this->c_row(i));
            if (!this->exists(tile, this->c_row(i))) continue;
            if constexpr (COPIES) {
                if (p.add) add[i].get(this->c_copy_at(0, i));
                held[i].get(this->c_copy_at(1, i));
            }
            if (MODE != INNER && p.add) {
                float other[CE];
                add[i].template unpack<T>(other);
#pragma unroll
                for (int j = 0; j < CE; j++) v[j] += other[j];
            }
            if (MODE != PLAIN) mask(v, held[i], i);
            result.template pack<T>(v);
            result.store(static_cast<T *>(p.dx), this->c_at(tile, i));
        }
    }

    __device__ __forceinline__ void run(int first, int step) {
        this->load_x(first);
        this->load_g(first);
        for (int tile = first; tile < p.tiles; tile += step) {
            make_dy(tile);
            make_xa(tile);
            __syncthreads(); /* dy and xa are complete */
            if (COPIES) {
                if (p.add) this->copy_c(0, p.add, tile);
                this->copy_c(1, p.bn_x, tile);
                ck_copy_commit();
            }
            if (MODE != INNER && !COPIES && p.add) this->load_c(add, p.add, tile);
            if (MODE == BLOCK && !COPIES) this->load_c(held, p.bn_x, tile);
            this->load_x(tile + step);
            if (P::EARLY) this->load_g(tile + step);
            wgrad();
            if (!P::EARLY) this->load_g(tile + step);
            dgrad();
            __syncthreads();               /* v is complete; nobody reads dy and xa */
            if (COPIES) ck_copy_wait<1>(); /* add and bn_x; dy_x may be on its way */
            finish(tile);
        }
    }

    /* ---- sums of the block ---- */

    __device__ __forceinline__ void write_dw(int group) const {
        const int k = warp / P::W_ACROSS * P::W_ROWS + lane / 4,
                  c = slice + warp % P::W_ACROSS * P::W_COLUMNS + lane % 4 * 2;
        float *to   = p.dw_part + ((int64_t)group * P::K + k) * p.C + c;
#pragma unroll
        for (int m = 0; m < W_FRAGMENTS; m++)
#pragma unroll
            for (int n = 0; n < 2 * W_PAIRS; n++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    *reinterpret_cast<float2 *>(to + (int64_t)(m * 16 + half * 8) * p.C + n * 8) =
                        make_float2(dw[m][n][2 * half], dw[m][n][2 * half + 1]);
    }
    __device__ __forceinline__ void write_sums(int group) {
        const uint32_t at = shared + P::V_AT; /* f32 [WARPS][2][C] */
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2 * CE; i++) {
            float &s = sums[i / CE][i % CE];
            for (int lanes = P::CV; lanes < 32; lanes *= 2) s += __shfl_xor_sync(0xffffffffu, s, lanes);
            if (lane < P::CV) ck_put4(at + (uint32_t)(((warp * 2 + i / CE) * P::C + lane * CE + i % CE) * 4), s);
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < 2 * P::C; i += P::THREADS) {
            float sum = 0.0f;
            for (int w = 0; w < P::WARPS; w++) sum += __uint_as_float(ck_get4(at + (uint32_t)((w * 2 * P::C + i) * 4)));
            p.sums_part[((int64_t)group * 2 + i / P::C) * p.C + slice + i % P::C] = sum;
        }
    }
};

} // namespace

#endif
