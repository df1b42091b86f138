/* cuda/conv/cifar/cifar_grad_dx.cuh: dgrad of the CIFAR convolutions: the gradient of the input from a tile of dy in
 * shared memory, with addition, mask and sums. */
#ifndef CK_CIFAR_GRAD_DX_CUH
#define CK_CIFAR_GRAD_DX_CUH

#include "cuda/conv/cifar/cifar_grad.cuh"

namespace cifar {
namespace {

/* ---- dx ---- */

/* Copies filters to shared memory: row k, then filter position, then the channels of x in column order. The copies keep
 * the order of memory; afterwards each warp transposes the data of its lanes. Column order is, in each 8*NT channels, a
 * transposed matrix of 4 x NT words. A warp has regions of 8 rows by 8*NT channels, four at a time. During the
 * transposition, 8 neighbouring lanes have different rows and therefore different banks. */
template <class S, int NT> struct filter_regions {
    enum { TRANSPOSED = S::TAPS * S::C / (8 * NT), ALL = S::K / 8 * TRANSPOSED, WORDS = 4 * NT };
    static __device__ __forceinline__ int row(int region) { return region / TRANSPOSED * 8; }
    static __device__ __forceinline__ int column(int region) { return region % TRANSPOSED * WORDS * 4; } /* bytes */
};
template <class S, int NT, int PITCH, int WARPS, typename T>
__device__ __forceinline__ void filter_issue(uint32_t to, const T *w, const grad_args &a) {
    using R              = filter_regions<S, NT>;
    constexpr int ROUNDS = (R::ALL + WARPS * 4 - 1) / (WARPS * 4);
    const int     lane   = (int)threadIdx.x % CK_WARP;
    /* each block starts at another position, so that blocks do not queue in the L2 cache */
    int round = (int)blockIdx.x % ROUNDS;
    for (int i = 0; i < ROUNDS; i++) {
        const int at = (round * WARPS + (int)threadIdx.x / CK_WARP % WARPS) * 4;
        round        = round + 1 == ROUNDS ? 0 : round + 1;
        if (R::ALL % (WARPS * 4) && at >= R::ALL) continue;
#pragma unroll
        for (int q = 0; q < NT; q++) {
            const int region = at + q * (4 / NT) + lane / (8 * NT), k = R::row(region) + lane % (8 * NT) / NT;
            const int byte = R::column(region) + lane % NT * 16;
            if constexpr (S::ANY) {
                const int c = byte / 2 % S::C, tap = byte / 2 / S::C;
                if (region < R::ALL && k / 16 * 16 < a.K && c / (8 * NT) * 8 * NT < a.C)
                    ck_copy16(to + (uint32_t)(k * PITCH + byte), w + (k * S::TAPS + tap) * a.C + c, k < a.K && c < a.C);
            } else if (R::ALL % 4 == 0 || region < R::ALL)
                ck_copy16(to + (uint32_t)(k * PITCH + byte),
                          reinterpret_cast<const char *>(w) + k * S::TAPS * S::C * 2 + byte, true);
        }
    }
}
/* The warp's copies have arrived. */
template <class S, int NT, int PITCH, int WARPS> __device__ __forceinline__ void filter_transpose(uint32_t to) {
    using R        = filter_regions<S, NT>;
    const int lane = (int)threadIdx.x % CK_WARP;
    __syncwarp();
    for (int at = (int)threadIdx.x / CK_WARP * 4; at < R::ALL; at += WARPS * 4) {
        const int region = at + lane / 8;
        if (R::ALL % 4 && region >= R::ALL) break;
        const uint32_t place = to + (uint32_t)((R::row(region) + lane % 8) * PITCH + R::column(region));
        uint32_t       word[R::WORDS];
#pragma unroll
        for (int i = 0; i < NT; i++) {
            const uint4 v = ck_get16(place + (uint32_t)i * 16);
            word[4 * i] = v.x, word[4 * i + 1] = v.y, word[4 * i + 2] = v.z, word[4 * i + 3] = v.w;
        }
#pragma unroll
        for (int j = 0; j < NT; j++)
            ck_put16(place + (uint32_t)j * 16, make_uint4(word[j], word[NT + j], word[2 * NT + j], word[3 * NT + j]));
    }
}

/* Inputs of dx other than the product, for one pixel's channels; the loads start before the product. */
template <int NT> struct extra { piece<NT> x, bn_x, add; };
/* The summand is like x; or with add_pad this pixel of the shortcut, or a pixel that the shortcut does not have. */
enum summand { LIKE_X, SHORTCUT, NOTHING };
template <typename T, int NT, summand ADD>
__device__ __forceinline__ extra<NT> extra_load(const grad_args &a, int64_t at, int64_t shortcut_at) {
    extra<NT> e = {};
    if (a.mean_rstd) e.x = piece_load<NT>((const T *)a.x + at);
    if (a.bn_x) e.bn_x = piece_load<NT>((const T *)a.bn_x + at);
    if (ADD != LIKE_X && a.add_pad) {
        if (ADD == SHORTCUT) e.add = piece_load<NT>((const T *)a.add + shortcut_at + a.add_pad);
    } else if (a.add)
        e.add = piece_load<NT>((const T *)a.add + at);
    return e;
}

/* v = product + add, masked, rounded, stored, summed, for `half` of the 16 pixels; table: at the thread's first
 * channel. */
template <class S, typename T, int NT>
__device__ __forceinline__ void dx_store(const grad_args &a, const float (&acc)[NT][4], int half, const extra<NT> &e,
                                         int64_t at, const float *table, float (&first)[2 * NT],
                                         float (&second)[2 * NT]) {
    float     v[2 * NT], x[2 * NT];
    piece<NT> out;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 more = ck_unpack_word<T>(e.add.word[j]), in = ck_unpack_word<T>(e.x.word[j]);
        v[2 * j]     = acc[j][2 * half] + more.x;
        v[2 * j + 1] = acc[j][2 * half + 1] + more.y;
        x[2 * j] = in.x, x[2 * j + 1] = in.y;
    }
    if (a.mean_rstd) {
        float p[2 * NT], q[2 * NT];
        if (a.bn_x) {
#pragma unroll
            for (int i = 0; i < 2 * NT; i++) v[i] = x[i] > 0.0f ? v[i] : 0.0f;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                const float2 in = ck_unpack_word<T>(e.bn_x.word[j]);
                x[2 * j] = in.x, x[2 * j + 1] = in.y;
            }
        } else {
            load_floats(p, table);
            load_floats(q, table + S::C);
#pragma unroll
            for (int i = 0; i < 2 * NT; i++) v[i] = fmaf(x[i], p[i], q[i]) > 0.0f ? v[i] : 0.0f;
        }
        load_floats(p, table + 2 * S::C);
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) x[i] -= p[i]; /* the end multiplies by rstd */
    }
#pragma unroll
    for (int j = 0; j < NT; j++) out.word[j] = ck_pack_word<T>(v[2 * j], v[2 * j + 1]);
    piece_store<NT>((T *)a.dx + at, out);
    if (a.mean_rstd) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const float2 r = ck_unpack_word<T>(out.word[j]);
            first[2 * j] += r.x, first[2 * j + 1] += r.y;
            second[2 * j]     = fmaf(r.x, x[2 * j], second[2 * j]);
            second[2 * j + 1] = fmaf(r.y, x[2 * j + 1], second[2 * j + 1]);
        }
    }
}

/* [4][S::C] in shared memory: scale_bias, then mean_rstd. Loads come before the copies of tiles; behind them they would
 * wait in the queue. */
template <class S> struct table_entry {
    float                           scale_bias = 0, mean_rstd = 0;
    __device__ __forceinline__ void load(const grad_args &a) {
        const int thread = (int)threadIdx.x, c = thread % S::C;
        const int at = S::ANY ? thread / S::C * a.C + c : thread;
        if (thread >= 2 * S::C || (S::ANY && c >= a.C)) return;
        if (a.scale_bias) scale_bias = a.scale_bias[at];
        if (a.mean_rstd) mean_rstd = a.mean_rstd[at];
    }
    __device__ __forceinline__ void store(float *table) const {
        if ((int)threadIdx.x < 2 * S::C) table[threadIdx.x] = scale_bias, table[2 * S::C + threadIdx.x] = mean_rstd;
    }
};

/* Products for a stride of 1: one column of the filter and 16 channels at a time; a row of dy is used for three rows of
 * dx. */
template <class S, typename T, int GROUPS, int MT>
__device__ __forceinline__ void dx_rows(float (&acc)[MT][2][4], uint32_t at, uint32_t b0) {
    using D = grad_tiling<S>;
    using L = typename D::DY;
    static_assert(S::R == 3 && D::NT == 2, "three rows, two times 8 columns");
#pragma unroll
    for (int s = 0; s < 3; s++)
#pragma unroll
        for (int k = 0; k < GROUPS * 16; k += 16) {
            uint32_t bf[3][4], af[MT + 2][4]; /* down: index for filter row 2 - down */
#pragma unroll
            for (int down = 0; down < 3; down++)
                ck_ldmatrix_trans(bf[down], b0 + (uint32_t)(k * D::W_PITCH + ((2 - down) * 3 + s) * S::C * 2));
#pragma unroll
            for (int t = 0; t < MT + 2; t++) {
                ck_ldmatrix(af[t], at + (uint32_t)((t * L::COLS + 2 - s) * L::PITCH + k * 2));
#pragma unroll
                for (int down = 0; down < 3; down++)
                    if (t - down >= 0 && t - down < MT) {
                        mma<T>(acc[t - down][0], af[t], bf[down][0], bf[down][1]);
                        mma<T>(acc[t - down][1], af[t], bf[down][2], bf[down][3]);
                    }
            }
        }
}
/* Products for any shape; with a stride, for the pixels of one parity. One row of the filter at a time is unrolled;
 * unrolling all rows would exceed the instruction cache. */
template <class S, typename T, int PH, int PW, int GROUPS, int MT, int NT>
__device__ __forceinline__ void dx_taps(float (&acc)[MT][NT][4], const uint32_t (&at)[MT], uint32_t b0) {
    using D = grad_tiling<S>;
    using L = typename D::DY;
    static_assert(S::STRIDE == 2, "parities");
#pragma unroll 1
    for (int r = S::R == 3 && !PH; r < S::R; r += 2) {
        const uint32_t row    = (uint32_t)((PH && r == 0 && S::R == 3) * L::COLS * L::PITCH);
        const uint32_t filter = b0 + (uint32_t)(r * S::R * S::C * 2);
#pragma unroll
        for (int s = S::R == 3 && !PW; s < S::R; s += 2) {
            constexpr bool none  = S::R == 1 && (PH || PW); /* no filter position contributes to these pixels */
            const int      right = S::R == 3 && PW && s == 0;
#pragma unroll
            for (int k = 0; k < (none ? 0 : GROUPS * 16); k += 16) {
                uint32_t af[MT][4], bf[NT / 2][4];
#pragma unroll
                for (int j = 0; j < NT / 2; j++)
                    ck_ldmatrix_trans(bf[j], filter + (uint32_t)(k * D::W_PITCH + (s * S::C + j * 16) * 2));
#pragma unroll
                for (int m = 0; m < MT; m++) ck_ldmatrix(af[m], at[m] + row + (uint32_t)(right * L::PITCH + k * 2));
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int j = 0; j < NT; j++)
                        mma<T>(acc[m][j], af[m], bf[j / 2][j % 2 * 2], bf[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
}

/* MT groups of 16 pixels of dx from group m0 (of a strip) on. With a stride, these are pixels of one parity: rows
 * 2i+PH, columns 2j+PW, to which 1, 2 or 4 filter positions contribute. */
template <class S, typename T, int PH, int PW>
__device__ __forceinline__ void
dx_groups(const grad_args &a, uint32_t dy, uint32_t b0, const float *table, int64_t image, int y0, int m0, int strip,
          int n0, float (&first)[2 * grad_tiling<S>::NT], float (&second)[2 * grad_tiling<S>::NT]) {
    using D              = grad_tiling<S>;
    using L              = typename D::DY;
    using G              = cifar::groups<D::BY_ROW ? (int)S::P : 16, D::BY_ROW ? (int)D::TH : 1>;
    constexpr int     MT = D::MT, NT = D::NT;
    constexpr bool    EARLY = MT * NT <= 8; /* otherwise the product needs the registers */
    const int         lane = (int)threadIdx.x % CK_WARP, c = n0 + lane % 4 * 2 * NT;
    const int         C        = in_channels<S>(a);
    const bool        works    = !S::ANY || c < C;
    const int64_t     start    = image * S::H * S::H * C;
    constexpr summand ADD      = S::STRIDE == 1 || S::R == 1 ? LIKE_X : PH || PW ? NOTHING : SHORTCUT;
    const int         K        = out_channels<S>(a);
    const int64_t     first_dy = image * S::P * S::P * K + c;
    int               where[MT][2]; /* relative to start */
    extra<NT>         e[MT][2] = {};
    uint32_t          at[MT];
    float             acc[MT][NT][4] = {};
    const auto        row  = [=](int m, int i) { return D::BY_ROW ? m0 + m + G::row(i) : ((m0 + m) * 16 + i) / S::P; };
    const auto        col  = [=](int m, int i) { return D::BY_ROW ? strip + G::col(i) : ((m0 + m) * 16 + i) % S::P; };
    const auto        load = [&](int from, int m, int half) {
        const int i = half * 8 + lane / 4;
        return extra_load<T, NT, ADD>(a, start + from, first_dy + ((y0 + row(m, i)) * S::P + col(m, i)) * K);
    };
#pragma unroll
    for (int m = 0; m < MT; m++) {
        at[m] = dy + (uint32_t)((row(m, lane & 15) * L::COLS + col(m, lane & 15)) * L::PITCH + (lane >> 4) * 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = half * 8 + lane / 4, h = (y0 + row(m, i)) * S::STRIDE + PH, w = col(m, i) * S::STRIDE + PW;
            where[m][half] = (h * S::H + w) * C + c;
            if (EARLY && works) e[m][half] = load(where[m][half], m, half);
        }
    }
    for_groups<S::ANY, S::K / 16>(a.K, [&](auto groups) {
        if constexpr (D::BY_ROW)
            dx_rows<S, T, decltype(groups)::N16>(acc, at[0], b0);
        else
            dx_taps<S, T, PH, PW, decltype(groups)::N16>(acc, at, b0);
    });
    if (!works) return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (!EARLY) e[m][half] = load(where[m][half], m, half);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            dx_store<S, T, NT>(a, acc[m], half, e[m][half], start + where[m][half], table + c, first, second);
}

/* dx of a tile whose dy is in shared memory; b0: the filter at the thread's first column. Adds the sums to first and
 * second. */
template <class S, typename T>
__device__ __forceinline__ void dx_tile(const grad_args &a, uint32_t dy, uint32_t b0, const float *table, int64_t image,
                                        int y0, float (&first)[2 * grad_tiling<S>::NT],
                                        float (&second)[2 * grad_tiling<S>::NT]) {
    using D        = grad_tiling<S>;
    const int warp = (int)threadIdx.x / CK_WARP, n0 = warp % D::NW * 8 * D::NT;
    if (S::ANY && n0 >= a.C) return;
    if constexpr (S::STRIDE == 1) {
        constexpr int STRIPS = cifar::groups<S::P, D::TH>::STRIPS;
        const int     rest   = warp / D::NW;
        dx_groups<S, T, 0, 0>(a, dy, b0, table, image, y0, rest / STRIPS * D::MT, rest % STRIPS * 16, n0, first,
                              second);
    } else {
        /* PARTS warps divide the four parities of a group: 4 filter positions and 1; 2 and 2. */
        constexpr int PARTS = D::DX_WARPS / D::ROWS;
        static_assert(D::NW == 1 && D::MT == 1 && D::ROWS * PARTS == D::DX_WARPS &&
                          (PARTS == 1 || PARTS == 2 || PARTS == 4),
                      "shares");
        const int m0 = warp % D::ROWS, part = warp / D::ROWS;
        if (part == 0) dx_groups<S, T, 1, 1>(a, dy, b0, table, image, y0, m0, 0, n0, first, second);
        if (part == (PARTS > 1 ? 1 : 0)) dx_groups<S, T, 0, 1>(a, dy, b0, table, image, y0, m0, 0, n0, first, second);
        if (part == (PARTS > 2 ? 2 : PARTS > 1 ? 1 : 0))
            dx_groups<S, T, 1, 0>(a, dy, b0, table, image, y0, m0, 0, n0, first, second);
        if (part == (PARTS > 2 ? 3 : 0)) dx_groups<S, T, 0, 0>(a, dy, b0, table, image, y0, m0, 0, n0, first, second);
    }
}
template <class S> __device__ __forceinline__ uint32_t dx_filter(uint32_t filter) {
    using D        = grad_tiling<S>;
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    return filter + (uint32_t)((lane & 15) * D::W_PITCH + warp % D::NW * 8 * D::NT * 2 + (lane >> 4) * 16);
}

template <class S> __device__ __forceinline__ void dx_clear_sums(float *rows) {
    using D = grad_tiling<S>;
    for (int i = (int)threadIdx.x; i < D::DX_WARPS * 2 * S::C; i += D::DX_THREADS) rows[i] = 0;
}
/* Brings bn_x of the block's first image into the L2 cache. */
template <class S, typename T> __device__ __forceinline__ void dx_prefetch(const grad_args &a, int block) {
    using D            = grad_tiling<S>;
    const int   values = S::H * S::H * in_channels<S>(a);
    const char *from   = (const char *)((const T *)a.bn_x + (int64_t)(block / D::TILES) * values);
    for (int i = (int)threadIdx.x; i < values * 2 / 128; i += D::DX_THREADS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i * 128));
}
/* Work before the first tile that does not depend on earlier launches. */
template <class S> __device__ __forceinline__ void dx_clear(const grad_args &a, uint32_t base, float *rows) {
    using D = grad_tiling<S>;
    for (int i = 0; i < (D::JOINT ? stages<S>(a) : 1); i++)
        tile_margin<typename D::DY>(base + (uint32_t)(D::DY_AT + i * D::DY_STAGE));
    if (!D::LATE_SUMS) dx_clear_sums<S>(rows);
}
/* Work after the last tile: the block's sums. */
template <class S>
__device__ __forceinline__ void dx_end(const grad_args &a, float (&first)[2 * grad_tiling<S>::NT],
                                       float (&second)[2 * grad_tiling<S>::NT], float *rows, const float *table,
                                       int block) {
    using D = grad_tiling<S>;
    if (!a.mean_rstd) return;
    if constexpr (D::LATE_SUMS) {
        barrier_sync<D::DX_BARRIER, D::DX_THREADS>(); /* all threads have used the last tile */
        dx_clear_sums<S>(rows);
        barrier_sync<D::DX_BARRIER, D::DX_THREADS>();
    }
    sums_flush<D::NT, S::C>(first, second, rows, (int)threadIdx.x / CK_WARP % D::NW * 8 * D::NT);
    barrier_sync<D::DX_BARRIER, D::DX_THREADS>();
    sums_write<S::C, D::DX_WARPS, S::ANY>(rows, table + 3 * S::C, a.sums_partial, block, a.C);
}

} // namespace
} // namespace cifar

#endif
