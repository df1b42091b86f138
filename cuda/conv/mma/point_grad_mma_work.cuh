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
    using loader<T, P>::own;
    using loader<T, P>::group;
    using loader<T, P>::thread;
    using typename loader<T, P>::vector;
    static constexpr bool COPIES = P::COPIES > 0 && P::MODE == BLOCK; /* of add and bn_x */
    static constexpr int  MODE = P::MODE, CE = P::CE, W_FRAGMENTS = P::W_ROWS / 16, W_PAIRS = P::W_COLUMNS / 16,
                         V_PAIRS = P::V_COLUMNS / 16;

    const int warp, lane;
    float     dw[W_FRAGMENTS][2 * W_PAIRS][4];
    float     sums[2][CE]; /* of dx and dx*(x - mean), of the thread's channels */
    vector    held[P::CN]; /* x of this tile (INNER), or bn_x */
    vector    next[MODE == INNER && P::OVERLAP ? P::CN : 1]; /* x of the next tile */
    vector    add[P::CN];
    unsigned  above, next_above; /* which elements have a ReLU in front of them that is above 0 */
    uint32_t  buffer;            /* of dy, xa and v that are written or read */

    __device__ worker(const params &params_, uint32_t shared_, int slice_)
        : loader<T, P>(params_, shared_, slice_), warp(thread() / 32), lane(thread() % 32), above(0), next_above(0), buffer(own) {
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
                ck_put8(ck_chunk_at(buffer + P::DY_AT, P::K * 2, this->k_row(i), this->k_vector()) +
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
        next_above = 0;
#pragma unroll
        for (int i = 0; i < P::CN; i++) {
            const int row = this->c_row(i), byte = this->c_vector() * CE * 2;
            vector    here = x[i];
            if (MODE != PLAIN) {
                float v[CE];
                here.template unpack<T>(v);
                if (MODE == INNER) {
                    (P::OVERLAP ? next[i % (sizeof next / sizeof *next)] : held[i]) = here;
                    activate(v);
                    here.template pack<T>(v);
                    if (!this->exists(tile, row)) here.clear();
                } else {
#pragma unroll
                    for (int j = 0; j < CE; j++) next_above |= (v[j] > 0.0f ? 1u : 0u) << (CE * i + j);
                }
            }
            here.put(ck_chunk_at(buffer + P::XA_AT, P::C * 2, row, byte / 16) + (uint32_t)(byte % 16));
        }
    }

    /* ---- products ---- */

    __device__ __forceinline__ void wgrad() {
        const int k = warp / P::W_ACROSS * P::W_ROWS, c = warp % P::W_ACROSS * P::W_COLUMNS;
#pragma unroll(P::GROUPS > 1 ? 1 : 2)
        for (int pixel = 0; pixel < P::TILE; pixel += 16) {
            uint32_t a[W_FRAGMENTS][4];
#pragma unroll
            for (int m = 0; m < W_FRAGMENTS; m++)
                ck_mma_a_transposed(a[m], buffer + P::DY_AT, P::K * 2, k + m * 16, pixel);
#pragma unroll
            for (int n = 0; n < W_PAIRS; n++) {
                uint32_t b[4];
                ck_mma_b_transposed(b, buffer + P::XA_AT, P::C * 2, c + n * 16, pixel);
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
#pragma unroll(P::GROUPS > 1 ? 1 : P::K == 64 ? 4 : 2)
        for (int k = part * PART; k < part * PART + PART; k += 16) {
            uint32_t a[4];
            ck_mma_a(a, buffer + P::DY_AT, P::K * 2, row, k);
#pragma unroll
            for (int n = 0; n < V_PAIRS; n++) {
                uint32_t b[4];
                ck_mma_b_transposed(b, shared, P::C * 2, c + n * 16, k);
                ck_mma<T>(v[2 * n], a, b[0], b[1]);
                ck_mma<T>(v[2 * n + 1], a, b[2], b[3]);
            }
        }
        const uint32_t to = buffer + (uint32_t)(P::V_AT + part * P::V_BYTES + (row + lane / 4) * P::V_ROW);
#pragma unroll
        for (int i = 0; i < 2 * V_PAIRS; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                ck_put8(to + (uint32_t)(half * 8 * P::V_ROW) + v_byte(lane / 4, (c + lane % 4 * 2) * 4 + i * 32),
                        __float_as_uint(v[i][2 * half]), __float_as_uint(v[i][2 * half + 1]));
    }

    /* ---- results ---- */

    /* The thread's channels of a row of v. With 8 of them, threads 4 to 7 read their second half first, so that eight
     * threads read from all banks. */
    __device__ __forceinline__ void get_v(float (&v)[CE], int row) const {
        const bool     upper_first = CE == 8 && (this->c_vector() & 4) != 0;
        const uint32_t from        = buffer + (uint32_t)(P::V_AT + row * P::V_ROW) +
                              v_byte(row, this->c_vector() * (CE * 4) + (upper_first ? 16 : 0));
        float half[2][4];
        get4(half[0], from);
        if (CE == 8) get4(half[1], from ^ 16u);
        if (P::V_PARTS == 2) {
            float more[4];
#pragma unroll
            for (int h = 0; h < CE / 4; h++) {
                get4(more, (h == 0 ? from : from ^ 16u) + (uint32_t)P::V_BYTES);
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

    /* ---- groups ---- */

    enum { ALONE = 1 /* barriers of one group */, TURN = 3 /* a group's turn with the products */ };
    __device__ __forceinline__ void sync() const {
        if (P::GROUPS == 1)
            __syncthreads();
        else
            ck_group_wait(ALONE + group(), P::THREADS);
    }
    /* Also waits for the whole group. */
    __device__ __forceinline__ void take_turn() const {
        if (P::GROUPS == 1)
            __syncthreads();
        else
            ck_group_wait(TURN + group(), P::BLOCK_THREADS);
    }
    __device__ __forceinline__ void end_turn(bool last) const {
        if (P::GROUPS > 1 && !(last && group() == 1)) ck_group_arrive(TURN + (group() ^ 1), P::BLOCK_THREADS);
    }

    /* What is not a product: dx of the tile before, dy and xa of the next tile, the loads behind it. */
    __device__ __forceinline__ void convert(int tile, int step, bool is_first) {
        if (!is_first) finish(tile - step);
        rotate();
        if (MODE != INNER && p.add) this->load_c(add, p.add, tile);
        if (MODE == BLOCK) this->load_c(held, p.bn_x, tile);
        if (tile + step >= p.tiles) return;
        make_dy(tile + step);
        make_xa(tile + step);
        this->load_x(tile + 2 * step);
        this->load_g(tile + 2 * step);
    }
    __device__ __forceinline__ void rotate() {
        above = next_above;
        if constexpr (MODE == INNER) {
#pragma unroll
            for (int i = 0; i < P::CN; i++) held[i] = next[i];
        }
    }
    /* Half of the warps of each scheduler convert while the others multiply, then the reverse. */
    __device__ __forceinline__ void run_overlapped(int first, int step) {
        const int      products = warp / 4 % 2;
        const uint32_t buffers  = 2 * own + P::BUFFER_BYTES;
        this->load_x(first);
        this->load_g(first);
        make_dy(first);
        make_xa(first);
        this->load_x(first + step);
        this->load_g(first + step);
        for (int tile = first; tile < p.tiles; tile += step) {
            __syncthreads(); /* dy and xa of this tile and v of the last are complete; nobody reads the other buffers */
#pragma unroll 1
            for (int phase = 0; phase < 2; phase++) {
                if (phase == products) {
                    wgrad();
                    dgrad();
                } else {
                    buffer = buffers - buffer;
                    convert(tile, step, tile == first);
                    buffer = buffers - buffer;
                }
            }
            buffer = buffers - buffer;
        }
        if (first >= p.tiles) return;
        __syncthreads();
        buffer         = buffers - buffer;
        const int last = first + (p.tiles - 1 - first) / step * step;
        finish(last);
    }

    /* Tiles first + group, first + group + step, ...: as many as the first group has. */
    __device__ __forceinline__ void run(int first, int step) {
        this->load_x(first + group());
        this->load_g(first + group());
        if (P::GROUPS > 1 && group() == 1 && first < p.tiles) ck_group_arrive(TURN, P::BLOCK_THREADS);
        for (; first < p.tiles; first += step) {
            const int tile = first + group();
            make_dy(tile);
            make_xa(tile);
            above = next_above;
            if (COPIES) {
                if (p.add) this->copy_c(0, p.add, tile);
                this->copy_c(1, p.bn_x, tile);
                ck_copy_commit();
            }
            if (P::EARLY) this->load_g(tile + step);
            take_turn(); /* dy and xa are complete */
            if (MODE != INNER && !COPIES && p.add) this->load_c(add, p.add, tile);
            if (MODE == BLOCK && !COPIES) this->load_c(held, p.bn_x, tile);
            if (P::GROUPS == 1) this->load_x(tile + step);
            wgrad();
            if (!P::EARLY) this->load_g(tile + step);
            dgrad();
            end_turn(first + step >= p.tiles);
            sync();                        /* v is complete; nobody reads dy and xa */
            if (COPIES) ck_copy_wait<1>(); /* add and bn_x; dy_x may be on its way */
            finish(tile);
            if (P::GROUPS > 1) this->load_x(tile + step);
        }
    }

    /* ---- sums of the block ---- */

    /* Adds the second group's dw to the first one's. */
    __device__ __forceinline__ void add_groups() {
        const uint32_t at = shared + (uint32_t)(P::GROUPS_AT + thread() * 4);
        __syncthreads(); /* both groups have ended */
#pragma unroll
        for (int i = 0; i < W_FRAGMENTS * W_PAIRS * 8; i++)
            if (group() == 1) ck_put4(at + (uint32_t)(i * P::THREADS * 4), dw[i / (W_PAIRS * 8)][i / 4 % (2 * W_PAIRS)][i % 4]);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < W_FRAGMENTS * W_PAIRS * 8; i++)
            if (group() == 0)
                dw[i / (W_PAIRS * 8)][i / 4 % (2 * W_PAIRS)][i % 4] +=
                    __uint_as_float(ck_get4(at + (uint32_t)(i * P::THREADS * 4)));
    }
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
    /* Stores the group's sums in row `row` of the workspace. */
    __device__ __forceinline__ void write_sums(int row) {
        const uint32_t at = own + P::V_AT; /* f32 [WARPS][2][C] */
        sync();
#pragma unroll
        for (int i = 0; i < 2 * CE; i++) {
            float &s = sums[i / CE][i % CE];
            for (int lanes = P::CV; lanes < 32; lanes *= 2) s += __shfl_xor_sync(0xffffffffu, s, lanes);
            if (lane < P::CV) ck_put4(at + (uint32_t)(((warp * 2 + i / CE) * P::C + lane * CE + i % CE) * 4), s);
        }
        sync();
        for (int i = thread(); i < 2 * P::C; i += P::THREADS) {
            float sum = 0.0f;
            for (int w = 0; w < P::WARPS; w++) sum += __uint_as_float(ck_get4(at + (uint32_t)((w * 2 * P::C + i) * 4)));
            p.sums_part[((int64_t)row * 2 + i / P::C) * p.C + slice + i % P::C] = sum;
        }
    }
};

} // namespace

#endif
