/* small_conv_grad.cu: the whole backward of a small convolution: BN's gradient applied while dy is read, the
 * gradient of the input with mask, addition and sums, and the gradient of the filters.
 *
 * Two ways to share out the work:
 *   joint   a block reads its tiles of dy and x once and makes both gradients; its part of dw stays in registers until the
 *           end. For dw of up to 32*32*9 numbers.
 *   split   for larger dw: some blocks make dx, picture by picture; others one part of 32 x 32 channels of dw each, over
 *           many pictures, of which they read 32 channels alone. Both kinds run side by side on a multiprocessor.
 * Blocks leave their parts of dw and of the sums in the workspace; a second, small launch adds them in a fixed order. (Clusters
 * that add through one another's shared memory, and a last block that adds, were slower: clusters of 8 leave a tenth of the
 * multiprocessors without work, which at 128 pictures is a second wave, and one block alone reads too slowly.)
 *
 * Bytes an element, 16 bits: g, dy_x and x 2 each, read 1 to 1.25 times (joint) or 2 to 3 times, from the L2 cache (split);
 * add, bn_x and again x 2 each; dx 2. Roof: 4.3 TB/s, or about 600 TFLOP/s of mma.sync. Measured on an H200: half of a block's
 * time goes into dx, a third into reading and the BN, the rest into dw; with 16 warps a multiprocessor nothing is a single
 * limit, latencies are. */
#include "small_conv.cuh"

namespace small {
namespace {

enum { PIECE = 16 /* channels of a piece of dw, both ways */, SPLIT_DW_BLOCKS = 128, SPLIT_DX_LEAST = 64 };
constexpr bool KEEP_X = true; /* x is read twice */

struct grad_args {
    const void  *g, *dy_x, *w, *x, *add, *bn_x;
    const float *dy_coef, *coef, *saved;
    void        *dx;
    float       *dw, *dstats, *dw_partial, *sums_partial;
    int64_t      N;
    bool         accumulate;
};

__device__ __forceinline__ void add4(float4 &a, const float4 &b) { a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w; }

/* ---- shapes ------------------------------------------------------------------------------------------------------------- */

/* dy, as TH rows of it are needed: with the neighbours that dx needs (HALO), or alone. */
template <class S, int I, int TH, int CH, bool HALO>
using output_tile = tile<I, TH + (!HALO || S::R == 1 ? 0 : S::STRIDE == 1 ? 2 : 1),
                         S::P + (!HALO || S::R == 1 ? 0 : S::STRIDE == 1 ? 2 : 1), CH, S::K, S::P, 1,
                         HALO && S::R == 3 && S::STRIDE == 1 ? 1 : 0, false>;

template <class S> struct grad_cut {
    static constexpr bool JOINT = S::TAPS * S::K * S::C <= 32 * 32 * 9;
    /* dx: pictures (2 would leave no room for a second block) and rows of dy a tile; columns of 8 and groups of 16 pixels a warp
     * at a time; warps along the columns */
    enum { TH = S::P == 32 ? 16 : 8, XI = 1, TILES = S::P / TH, ROWS = XI * TH * S::P / 16 };
    enum { NT = S::C == 16 ? 2 : 4, NW = S::C / (8 * NT), MW = WARPS / NW, MT = ROWS / MW >= 2 ? 2 : 1 };
    /* dw: channels of dy and x whose dw a block makes, such parts of dw, pieces of a part, pictures a block reads at a time */
    enum { KB = JOINT ? (int)S::K : 32, CB = JOINT ? (int)S::C : 32, PARTS = S::K / KB * (S::C / CB) };
    enum { HELD = KB / PIECE * (CB / PIECE), I = JOINT ? 1 : S::STRIDE == 2 ? 2 : 4, DW = KB * CB * S::TAPS };
    enum { GROUP = SPLIT_DW_BLOCKS / PARTS /* blocks of a part */ };
    /* Two warps share the taps of a piece: its sums leave registers for the rest. The first has EARLY of them. */
    enum { SPLIT = S::TAPS > 1 ? 2 : 1, EARLY = (S::TAPS + SPLIT - 1) / SPLIT, GROUPS = WARPS / (HELD * SPLIT) };
    static_assert(GROUPS >= 1, "a warp has one piece");
    using DY    = output_tile<S, XI, TH, S::K, true>;
    using DW_DY = output_tile<S, I, JOINT ? (int)TH : (int)S::P, KB, JOINT>;
    using DW_X  = input_tile<S, I, JOINT ? (int)TH : (int)S::P, CB>;
    enum { W_PITCH = S::TAPS * S::C * 2 + 16 };
    /* Shared memory. Joint: sums, table, filter, dy, dy_x, x. Split: sums, table, filter, dy, dy_x or dy, dy_x, x. dw meets over
     * the filter and what follows. */
    enum { SUMS_AT = 0, TABLE_AT = WARPS * 2 * S::C * 4, W_AT = TABLE_AT + 4 * S::C * 4, DY_AT = W_AT + S::K * W_PITCH };
    enum { LINE_AT = DY_AT + DY::BYTES, X_AT = LINE_AT + DY::VECTORS * 16, JOINT_BYTES = X_AT + DW_X::BYTES };
    enum { S_DY_AT = 0, S_LINE_AT = DW_DY::BYTES, S_X_AT = S_LINE_AT + DW_DY::VECTORS * 16, SPLIT_BYTES = S_X_AT + DW_X::BYTES };
    enum { MEET_AT = W_AT, ROUND = GROUPS / 2 * HELD * SPLIT * EARLY * 8 * CK_WARP * 4 };
    enum { LEAST = MEET_AT + ROUND, EITHER = (int)X_AT > (int)SPLIT_BYTES ? (int)X_AT : (int)SPLIT_BYTES };
    enum { MOST = JOINT ? (int)JOINT_BYTES : (int)EITHER, BYTES = (int)MOST > (int)LEAST ? (int)MOST : (int)LEAST };
};

/* ---- dx ----------------------------------------------------------------------------------------------------------------- */

/* Filters to shared memory: row k, then tap, then the channels of x in column order. */
template <class S, int NT, int PITCH, typename T> __device__ __forceinline__ void filter_fill(uint32_t to, const T *w) {
    constexpr int CHUNKS = S::C / 8;
    const int     c = (int)threadIdx.x % CHUNKS * 8;
    for (int k = (int)threadIdx.x / CHUNKS; k < S::K; k += THREADS / CHUNKS)
#pragma unroll
        for (int tap = 0; tap < S::TAPS; tap++) {
            const uint4    q  = *reinterpret_cast<const uint4 *>(w + (k * S::TAPS + tap) * S::C + c);
            const uint32_t at = to + (uint32_t)(k * PITCH + tap * S::C * 2);
            shared_store_word(at + (uint32_t)column_of<NT>(c) * 2, q.x);
            shared_store_word(at + (uint32_t)column_of<NT>(c + 2) * 2, q.y);
            shared_store_word(at + (uint32_t)column_of<NT>(c + 4) * 2, q.z);
            shared_store_word(at + (uint32_t)column_of<NT>(c + 6) * 2, q.w);
        }
}

/* What the end of dx reads besides the product, for one pixel's channels; loads are started before the product. */
template <int NT> struct extra {
    piece<NT> x, bn_x, add;
};
template <typename T, int NT> __device__ __forceinline__ extra<NT> extra_load(const grad_args &a, int64_t at) {
    extra<NT> e = {};
    if (a.saved) e.x = piece_load<NT>((const T *)a.x + at);
    if (a.bn_x) e.bn_x = piece_load<NT>((const T *)a.bn_x + at);
    if (a.add) e.add = piece_load<NT>((const T *)a.add + at);
    return e;
}

/* v = product + add, masked, rounded, stored, summed; `half` of the 16 pixels; table: at the thread's first channel. */
template <class S, typename T, int NT>
__device__ __forceinline__ void dx_store(const grad_args &a, const float (&acc)[NT][4], int half, const extra<NT> &e, int64_t at,
                                         const float *table, float (&first)[2 * NT], float (&second)[2 * NT]) {
    float     v[2 * NT], x[2 * NT];
    piece<NT> out;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 more = ck_unpack_word<T>(e.add.word[j]), in = ck_unpack_word<T>(e.x.word[j]);
        v[2 * j]     = acc[j][2 * half] + more.x;
        v[2 * j + 1] = acc[j][2 * half + 1] + more.y;
        x[2 * j] = in.x, x[2 * j + 1] = in.y;
    }
    if (a.saved) {
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
            take(p, table);
            take(q, table + S::C);
#pragma unroll
            for (int i = 0; i < 2 * NT; i++) v[i] = fmaf(x[i], p[i], q[i]) > 0.0f ? v[i] : 0.0f;
        }
        take(p, table + 2 * S::C);
        take(q, table + 3 * S::C);
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) x[i] = (x[i] - p[i]) * q[i];
    }
#pragma unroll
    for (int j = 0; j < NT; j++) out.word[j] = ck_pack_word<T>(v[2 * j], v[2 * j + 1]);
    piece_store<NT>((T *)a.dx + at, out);
    if (a.saved) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const float2 r = ck_unpack_word<T>(out.word[j]);
            first[2 * j] += r.x, first[2 * j + 1] += r.y;
            second[2 * j]     = fmaf(r.x, x[2 * j], second[2 * j]);
            second[2 * j + 1] = fmaf(r.y, x[2 * j + 1], second[2 * j + 1]);
        }
    }
}

/* [4][C] in shared memory: coef, then saved. */
template <int C> __device__ __forceinline__ void table_fill(const grad_args &a, float *table) {
    for (int i = (int)threadIdx.x; i < 2 * C; i += THREADS) {
        if (a.coef) table[i] = a.coef[i];
        if (a.saved) table[2 * C + i] = a.saved[i];
    }
}

/* MT groups of 16 pixels of dx from group m0 on. With a stride, they are those of one parity: rows 2i+PH, columns 2j+PW, on
 * which 1, 2 or 4 taps fall. */
template <class S, typename T, int PH, int PW>
__device__ __forceinline__ void dx_groups(const grad_args &a, uint32_t dy, uint32_t b0, const float *table, int64_t image,
                                          int images, int y0, int m0, int n0, float (&first)[2 * grad_cut<S>::NT],
                                          float (&second)[2 * grad_cut<S>::NT]) {
    using D           = grad_cut<S>;
    using L           = typename D::DY;
    constexpr int  MT = D::MT, NT = D::NT;
    constexpr bool EARLY = MT * NT <= 4; /* else the registers are wanted for the product */
    const int      lane = (int)threadIdx.x % CK_WARP, c = n0 + lane % 4 * 2 * NT;
    const int64_t  start = image * S::H * S::H * S::C;
    int            where[MT][2]; /* from start on */
    extra<NT>     e[MT][2] = {};
    uint32_t      at[MT];
    float         acc[MT][NT][4] = {};
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const int pixel = (m0 + m) * 16 + (lane & 15);
        const int in    = pixel % (D::TH * S::P);
        at[m] = dy + (uint32_t)(pixel / (D::TH * S::P) * L::IMAGE + (in / S::P * L::COLS + in % S::P) * L::PITCH + (lane >> 4) * 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int mine = (m0 + m) * 16 + half * 8 + lane / 4, number = mine / (D::TH * S::P), pixel = mine % (D::TH * S::P);
            const int h = (y0 + pixel / S::P) * S::STRIDE + PH, w = pixel % S::P * S::STRIDE + PW;
            where[m][half] = number < images ? ((number * S::H + h) * S::H + w) * S::C + c : -1;
            if (EARLY && where[m][half] >= 0) e[m][half] = extra_load<T, NT>(a, start + where[m][half]);
        }
    }
/* A row of the filter at a time: straight code for all of them is more than the instruction cache likes. */
#pragma unroll 1
    for (int r = S::STRIDE == 2 && S::R == 3 && !PH; r < S::R; r += S::STRIDE) {
        const int      down = S::R == 1 ? 0 : S::STRIDE == 1 ? 2 - r : PH && r == 0;
        const uint32_t row = (uint32_t)(down * L::COLS * L::PITCH), filter = b0 + (uint32_t)(r * S::R * S::C * 2);
#pragma unroll
        for (int s = S::STRIDE == 2 && S::R == 3 && !PW; s < S::R; s += S::STRIDE) {
            constexpr bool none  = S::R == 1 && (PH || PW); /* no tap falls here */
            const int      right = S::R == 1 ? 0 : S::STRIDE == 1 ? 2 - s : PW && s == 0;
#pragma unroll
            for (int k = 0; k < (none ? 0 : (int)S::K); k += 16) {
                uint32_t af[MT][4], bf[NT / 2][4];
#pragma unroll
                for (int j = 0; j < NT / 2; j++) ldmatrix_trans(bf[j], filter + (uint32_t)(k * D::W_PITCH + (s * S::C + j * 16) * 2));
#pragma unroll
                for (int m = 0; m < MT; m++) ldmatrix(af[m], at[m] + row + (uint32_t)(right * L::PITCH + k * 2));
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int j = 0; j < NT; j++) mma<T>(acc[m][j], af[m], bf[j / 2][j % 2 * 2], bf[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (!EARLY && where[m][half] >= 0) e[m][half] = extra_load<T, NT>(a, start + where[m][half]);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (where[m][half] >= 0) dx_store<S, T, NT>(a, acc[m], half, e[m][half], start + where[m][half], table + c, first, second);
}

/* dx of a tile whose dy stands in shared memory; sums onto the warp's row. */
template <class S, typename T>
__device__ __forceinline__ void dx_tile(const grad_args &a, uint32_t dy, uint32_t filter, float *rows, const float *table, int64_t image,
                                        int images, int y0) {
    using D        = grad_cut<S>;
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP, n0 = warp % D::NW * 8 * D::NT;
    const uint32_t b0 = filter + (uint32_t)((lane & 15) * D::W_PITCH + n0 * 2 + (lane >> 4) * 16);
    float          first[2 * D::NT] = {}, second[2 * D::NT] = {};
    if constexpr (S::STRIDE == 1) {
        for (int m0 = warp / D::NW * D::MT; m0 < D::ROWS; m0 += D::MW * D::MT)
            dx_groups<S, T, 0, 0>(a, dy, b0, table, image, images, y0, m0, n0, first, second);
    } else {
        static_assert(S::STRIDE == 1 || (D::NW == 1 && D::MT == 1 && (D::ROWS == WARPS || 2 * D::ROWS == WARPS)), "a group a warp");
        const int m0 = warp % D::ROWS;
        if (D::ROWS == WARPS || warp < D::ROWS) dx_groups<S, T, 1, 1>(a, dy, b0, table, image, images, y0, m0, n0, first, second);
        if (D::ROWS == WARPS || warp >= D::ROWS) {
            dx_groups<S, T, 0, 0>(a, dy, b0, table, image, images, y0, m0, n0, first, second);
            dx_groups<S, T, 0, 1>(a, dy, b0, table, image, images, y0, m0, n0, first, second);
            dx_groups<S, T, 1, 0>(a, dy, b0, table, image, images, y0, m0, n0, first, second);
        }
    }
    if (a.saved) sums_flush<D::NT, S::C>(first, second, rows, n0);
}

/* ---- dw ----------------------------------------------------------------------------------------------------------------- */

/* Taps FIRST..END-1 of a piece of dw [16 k][taps][16 c] onto acc, over the pixels of a tile that fall to `group`; dy and x point
 * at the piece's channels. */
template <class S, typename T, int FIRST, int END, int N>
__device__ __forceinline__ void dw_taps(float (&acc)[N][2][4], uint32_t dy, uint32_t x, int group) {
    using D        = grad_cut<S>;
    using LD       = typename D::DW_DY;
    using LX       = typename D::DW_X;
    constexpr int H = D::JOINT ? (int)D::TH : (int)S::P, EDGE = LD::LEFT; /* the margin of dy */
    const int lane = (int)threadIdx.x % CK_WARP, pa = (lane & 7) + (lane >> 4) * 8, pb = lane & 15;
    dy += (uint32_t)((EDGE * LD::COLS + EDGE) * LD::PITCH + (lane >> 3 & 1) * 16);
    x += (uint32_t)((lane >> 4) * 16);
#pragma unroll 1
    for (int p0 = group * 16; p0 < D::I * H * S::P; p0 += D::GROUPS * 16) {
        const int image = p0 / (H * S::P), p = p0 % (H * S::P);
        const int ya = (p + pa) / S::P, xa = (p + pa) % S::P, yb = (p + pb) / S::P, xb = (p + pb) % S::P;
        uint32_t  af[4], bf[4];
        ldmatrix_trans(af, dy + (uint32_t)(image * LD::IMAGE + (ya * LD::COLS + xa) * LD::PITCH));
        const uint32_t at = x + (uint32_t)(image * LX::IMAGE + input_pixel<S, LX>(yb, xb));
#pragma unroll
        for (int tap = FIRST; tap < END; tap++) {
            ldmatrix_trans(bf, at + (uint32_t)input_tap<S, LX>(tap / S::R, tap % S::R));
            mma<T>(acc[tap - FIRST][0], af, bf[0], bf[1]);
            mma<T>(acc[tap - FIRST][1], af, bf[2], bf[3]);
        }
    }
}
template <class S, typename T, int N>
__device__ __forceinline__ void dw_piece(float (&acc)[N][2][4], uint32_t dy, uint32_t x, int group, int late) {
    if (!late)
        dw_taps<S, T, 0, N>(acc, dy, x, group);
    else if constexpr (S::TAPS > N)
        dw_taps<S, T, N, S::TAPS>(acc, dy, x, group);
}

/* Adds the `GROUPS` warps of each of SLOTS shares of the pieces; slot: the warp's share. Then group 0 has the sums. All
 * threads call, a barrier before. */
template <int GROUPS, int SLOTS, int N> __device__ __forceinline__ void dw_warps(float (&acc)[N][2][4], float *to, int slot, int group) {
#pragma unroll
    for (int half = GROUPS / 2; half > 0; half /= 2) {
        float *mine = to + (group % half * SLOTS + slot) * N * 8 * CK_WARP + (int)threadIdx.x % CK_WARP * 4;
        if (group >= half && group < 2 * half)
#pragma unroll
            for (int i = 0; i < N * 2; i++)
                *reinterpret_cast<float4 *>(mine + i * 128) = make_float4(acc[i / 2][i % 2][0], acc[i / 2][i % 2][1],
                                                                          acc[i / 2][i % 2][2], acc[i / 2][i % 2][3]);
        __syncthreads();
        if (group < half)
#pragma unroll
            for (int i = 0; i < N * 2; i++) {
                const float4 v = *reinterpret_cast<const float4 *>(mine + i * 128);
                acc[i / 2][i % 2][0] += v.x, acc[i / 2][i % 2][1] += v.y, acc[i / 2][i % 2][2] += v.z, acc[i / 2][i % 2][3] += v.w;
            }
        __syncthreads();
    }
}

/* Taps FIRST..END-1 of a piece into `to`, [16 k][TAPS][16 c]. */
template <int TAPS, int FIRST, int END, int N> __device__ __forceinline__ void dw_write(const float (&acc)[N][2][4], float *to) {
    const int lane = (int)threadIdx.x % CK_WARP;
#pragma unroll
    for (int tap = FIRST; tap < END; tap++)
#pragma unroll
        for (int i = 0; i < 4; i++) { /* rows' half, columns' half */
            const int k = i / 2 * 8 + lane / 4, c = i % 2 * 8 + lane % 4 * 2;
            *reinterpret_cast<float2 *>(to + (k * TAPS + tap) * 16 + c) =
                make_float2(acc[tap - FIRST][i % 2][i / 2 * 2], acc[tap - FIRST][i % 2][i / 2 * 2 + 1]);
        }
}

/* A warp's place in the work on dw: its piece among HELD, which half of the taps, its group of pixels. */
template <class S> struct dw_seat {
    int piece, late, group;
    __device__ __forceinline__ dw_seat() {
        using D        = grad_cut<S>;
        const int warp = (int)threadIdx.x / CK_WARP;
        piece = warp % D::HELD, late = warp / D::HELD % D::SPLIT, group = warp / (D::HELD * D::SPLIT);
    }
    /* Where the piece's channels begin in a pixel of dy and of x. */
    __device__ __forceinline__ uint32_t dy_bytes() const { return (uint32_t)(piece / (grad_cut<S>::CB / PIECE) * PIECE * 2); }
    __device__ __forceinline__ uint32_t x_bytes() const { return (uint32_t)(piece % (grad_cut<S>::CB / PIECE) * PIECE * 2); }
};

/* The block's pieces into `to`, [piece][16 k][TAPS][16 c]; room: shared memory. */
template <class S, int N>
__device__ __forceinline__ void dw_block(float (&acc)[N][2][4], float *to, float *room, const dw_seat<S> &seat) {
    using D = grad_cut<S>;
    dw_warps<D::GROUPS, D::HELD * D::SPLIT>(acc, room, seat.piece * D::SPLIT + seat.late, seat.group);
    if (seat.group) return;
    to += seat.piece * PIECE * PIECE * S::TAPS;
    if (!seat.late)
        dw_write<S::TAPS, 0, N>(acc, to);
    else if constexpr (S::TAPS > N)
        dw_write<S::TAPS, N, S::TAPS>(acc, to);
}

/* Where four numbers of part `part` of dw go. */
template <class S> struct dw_place {
    enum { DW = grad_cut<S>::DW, PARTS = grad_cut<S>::PARTS, CH = S::C };
    static __device__ __forceinline__ void store(float *dw, int part, int four, float4 v, bool accumulate) {
        using D              = grad_cut<S>;
        constexpr int ACROSS = D::CB / PIECE;
        const int     tap = four / 4 % S::TAPS, piece = four / (64 * S::TAPS);
        const int     k = part / (S::C / D::CB) * D::KB + piece / ACROSS * PIECE + four / (4 * S::TAPS) % PIECE;
        const int     c = part % (S::C / D::CB) * D::CB + piece % ACROSS * PIECE + four % 4 * 4;
        float4       *to = reinterpret_cast<float4 *>(dw + (k * S::TAPS + tap) * S::C + c);
        if (accumulate) add4(v, *to);
        *to = v;
    }
};

/* The second launch. partial: [PARTS][each][DW]; a block adds ACROSS vectors of four numbers, its threads share the `each` rows.
 * The block after those of dw adds dstats. */
enum { ADD_ACROSS = 16, ADD_SHARES = THREADS / ADD_ACROSS };
struct add_args {
    const float *partial, *sums_partial;
    float       *dw, *dstats;
    int          each, sums_blocks;
    bool         accumulate;
};
template <class Place> __global__ void __launch_bounds__(THREADS) add_kernel(add_args a) {
    constexpr int FOURS = Place::DW / 4, BLOCKS = FOURS / ADD_ACROSS;
    static_assert(FOURS % ADD_ACROSS == 0, "whole blocks");
    __shared__ __align__(16) char room[SUMS_ROOM];
    begin_after_last();
    if (blockIdx.x == BLOCKS * Place::PARTS) {
        if constexpr (Place::CH > 0)
            sums_finish<Place::CH>(a.sums_partial, a.sums_blocks, a.dstats, reinterpret_cast<double *>(room));
        return;
    }
    const int     part = (int)blockIdx.x / BLOCKS, seat = (int)threadIdx.x % ADD_ACROSS, share = (int)threadIdx.x / ADD_ACROSS;
    const int     four = (int)blockIdx.x % BLOCKS * ADD_ACROSS + seat;
    const float4 *from = reinterpret_cast<const float4 *>(a.partial) + (int64_t)part * a.each * FOURS + four;
    float4        sum  = make_float4(0, 0, 0, 0);
    float4       *all  = reinterpret_cast<float4 *>(room);
#pragma unroll 16
    for (int b = share; b < a.each; b += ADD_SHARES) add4(sum, __ldcg(from + (int64_t)b * FOURS));
    all[threadIdx.x] = sum;
    __syncthreads();
    if (share) return;
#pragma unroll
    for (int k = 1; k < ADD_SHARES; k++) add4(sum, all[k * ADD_ACROSS + seat]);
    Place::store(a.dw, part, four, sum, a.accumulate);
}
template <class Place> cudaError_t add_run(const grad_args &a, int64_t each, int64_t sums_blocks, cudaStream_t stream) {
    const add_args add = {a.dw_partial, a.sums_partial, a.dw, a.dstats, (int)each, (int)sums_blocks, a.accumulate};
    return launch(add_kernel<Place>, add, Place::DW / 4 / ADD_ACROSS * Place::PARTS + (a.dstats ? 1 : 0), 0, true, stream);
}

/* ---- the kernels --------------------------------------------------------------------------------------------------------- */

template <class S, typename T> __global__ void __launch_bounds__(THREADS, 2) joint_kernel(grad_args a) {
    begin_after_last();
    using D = grad_cut<S>;
    using L = typename D::DY;
    using X = typename D::DW_X;
    extern __shared__ __align__(16) char memory[];
    const dw_seat<S> seat;
    const uint32_t base = smem_address(memory), dy = base + D::DY_AT, line = base + D::LINE_AT, x = base + D::X_AT;
    float         *rows = reinterpret_cast<float *>(memory + D::SUMS_AT), *table = reinterpret_cast<float *>(memory + D::TABLE_AT);
    float          acc[D::EARLY][2][4] = {};
    bool           begun = false;
    for (int64_t job = blockIdx.x; job < a.N * D::TILES; job += gridDim.x) {
        const int64_t image = job / D::TILES, out = image * S::P * S::P * S::K;
        const int     y0 = (int)(job % D::TILES) * D::TH, row0 = y0 - L::LEFT;
        tile_issue<L, false, false>(dy, (const T *)a.g + out, row0, 1);
        if (a.dy_x) tile_issue<L, true, false>(line, (const T *)a.dy_x + out, row0, 1);
        tile_issue<X, false, KEEP_X>(x, (const T *)a.x + image * S::H * S::H * S::C, input_row<S>(y0), 1);
        if (!begun) { /* while the copies are under way */
            filter_fill<S, D::NT, D::W_PITCH>(base + D::W_AT, (const T *)a.w);
            tile_margin<L>(dy);
            tile_margin<X>(x);
            for (int i = (int)threadIdx.x; i < WARPS * 2 * S::C; i += THREADS) rows[i] = 0;
            table_fill<S::C>(a, table);
            begun = true;
        }
        if (!a.dy_x && !a.coef) copy_wait();
        if (a.dy_x) tile_bn_grad<L, T>(dy, line, a.dy_coef, S::K, row0, 1);
        if (a.coef) tile_act<X, T>(x, a.coef, S::C, input_row<S>(y0), 1);
        __syncthreads();
        dx_tile<S, T>(a, dy, base + D::W_AT, rows, table, image, 1, y0);
        dw_piece<S, T>(acc, dy + seat.dy_bytes(), x + seat.x_bytes(), seat.group, seat.late);
        __syncthreads();
    }
    if (a.dstats) sums_write<S::C>(rows, a.sums_partial, (int)blockIdx.x);
    dw_block<S>(acc, a.dw_partial + (int64_t)blockIdx.x * D::DW, reinterpret_cast<float *>(memory + D::MEET_AT), seat);
}

template <class S, typename T> __device__ __forceinline__ void split_dw(const grad_args &a, char *memory) {
    using D = grad_cut<S>;
    using L = typename D::DW_DY;
    using X = typename D::DW_X;
    const int      part = (int)blockIdx.x / D::GROUP, k0 = part / (S::C / D::CB) * D::KB, c0 = part % (S::C / D::CB) * D::CB;
    const uint32_t base = smem_address(memory), dy = base + D::S_DY_AT, line = base + D::S_LINE_AT, x = base + D::S_X_AT;
    float          acc[D::EARLY][2][4] = {};
    const dw_seat<S> seat;
    tile_margin<X>(x);
    for (int64_t image = (int64_t)(blockIdx.x % D::GROUP) * D::I; image < a.N; image += D::GROUP * D::I) {
        const int     images = (int)min((int64_t)D::I, a.N - image);
        const int64_t out    = image * S::P * S::P * S::K + k0;
        tile_issue<L, false, false>(dy, (const T *)a.g + out, 0, images);
        if (a.dy_x) tile_issue<L, true, false>(line, (const T *)a.dy_x + out, 0, images);
        tile_issue<X, false, KEEP_X>(x, (const T *)a.x + image * S::H * S::H * S::C + c0, input_row<S>(0), images);
        if (!a.dy_x && !a.coef) copy_wait();
        if (a.dy_x) tile_bn_grad<L, T>(dy, line, a.dy_coef + k0, S::K, 0, images);
        if (a.coef) tile_act<X, T>(x, a.coef + c0, S::C, input_row<S>(0), images);
        __syncthreads();
        dw_piece<S, T>(acc, dy + seat.dy_bytes(), x + seat.x_bytes(), seat.group, seat.late);
        __syncthreads();
    }
    dw_block<S>(acc, a.dw_partial + (int64_t)blockIdx.x * D::DW, reinterpret_cast<float *>(memory + D::MEET_AT), seat);
}

/* Blocks of dx: `block` of `blocks`. */
template <class S, typename T> __device__ __forceinline__ void split_dx(const grad_args &a, char *memory, int block, int blocks) {
    using D = grad_cut<S>;
    using L = typename D::DY;
    const uint32_t  base = smem_address(memory), dy = base + D::DY_AT, line = base + D::LINE_AT;
    float          *rows = reinterpret_cast<float *>(memory + D::SUMS_AT), *table = reinterpret_cast<float *>(memory + D::TABLE_AT);
    bool            begun = false;
    static_assert(D::TILES == 1, "whole pictures");
    for (int64_t image = (int64_t)block * D::XI; image < a.N; image += (int64_t)blocks * D::XI) {
        const int64_t out    = image * S::P * S::P * S::K;
        const int     images = (int)min((int64_t)D::XI, a.N - image), row0 = -L::LEFT;
        tile_issue<L, false, false>(dy, (const T *)a.g + out, row0, images);
        if (a.dy_x) tile_issue<L, true, false>(line, (const T *)a.dy_x + out, row0, images);
        if (!begun) {
            filter_fill<S, D::NT, D::W_PITCH>(base + D::W_AT, (const T *)a.w);
            tile_margin<L>(dy);
            for (int i = (int)threadIdx.x; i < WARPS * 2 * S::C; i += THREADS) rows[i] = 0;
            table_fill<S::C>(a, table);
            begun = true;
        }
        if (!a.dy_x) copy_wait();
        if (a.dy_x) tile_bn_grad<L, T>(dy, line, a.dy_coef, S::K, row0, images);
        __syncthreads();
        dx_tile<S, T>(a, dy, base + D::W_AT, rows, table, image, images, 0);
        __syncthreads();
    }
    if (a.dstats) sums_write<S::C>(rows, a.sums_partial, block);
}

template <class S, typename T> __global__ void __launch_bounds__(THREADS, 2) split_kernel(grad_args a) {
    extern __shared__ __align__(16) char memory[];
    begin_after_last();
    if (blockIdx.x < SPLIT_DW_BLOCKS)
        split_dw<S, T>(a, memory);
    else
        split_dx<S, T>(a, memory, (int)blockIdx.x - SPLIT_DW_BLOCKS, (int)gridDim.x - SPLIT_DW_BLOCKS);
}

/* ---- the stem: dw alone ------------------------------------------------------------------------------------------------------
 * As the forward's product, turned round: the columns of a piece are 4 columns of the filter by 4 channels, of which 3 by 3
 * count. */

enum { STEM_DW = STEM_K * 3 * 16 };
struct stem_place {
    enum { DW = STEM_DW, PARTS = 1, CH = 0 };
    static __device__ __forceinline__ void store(float *dw, int, int four, float4 v, bool accumulate) {
        const int s = four % 4;
        if (s == 3) return;
        float *to = dw + (four / 4 * 3 + s) * 3; /* four/4: k, then r */
        to[0] = accumulate ? to[0] + v.x : v.x;
        to[1] = accumulate ? to[1] + v.y : v.y;
        to[2] = accumulate ? to[2] + v.z : v.z;
    }
};

using stem_shape = shape<16, 16, 32, 1, 3>; /* of dy, which alone is asked for */
using stem_dy    = output_tile<stem_shape, 1, STEM_TH, STEM_K, false>;
enum { STEM_LINE_AT = stem_dy::BYTES, STEM_X_AT = STEM_LINE_AT + stem_dy::VECTORS * 16, STEM_ALL = STEM_X_AT + STEM_BYTES };

template <typename T> __global__ void __launch_bounds__(THREADS, 2) stem_grad_kernel(grad_args a) {
    extern __shared__ __align__(16) char memory[];
    begin_after_last();
    const uint32_t base = smem_address(memory), line = base + STEM_LINE_AT;
    const int      lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const uint32_t ya = base + (uint32_t)(((lane & 7) + (lane >> 4) * 8) * stem_dy::PITCH + (lane >> 3 & 1) * 16);
    const uint32_t xb = base + STEM_X_AT + (uint32_t)((lane >> 4) * 16);
    float          acc[3][2][4] = {};
    for (int64_t job = blockIdx.x; job < a.N * STEM_TILES; job += gridDim.x) {
        const int64_t image = job / STEM_TILES, out = image * STEM_SIDE * STEM_SIDE * STEM_K;
        const int     y0    = (int)(job % STEM_TILES) * STEM_TH;
        tile_issue<stem_dy, false, false>(base, (const T *)a.g + out, y0, 1);
        if (a.dy_x) tile_issue<stem_dy, true, false>(line, (const T *)a.dy_x + out, y0, 1);
        stem_fill(memory + STEM_X_AT, (const T *)a.x + image * STEM_SIDE * STEM_SIDE * 3, y0 - 1);
        if (!a.dy_x) copy_wait();
        if (a.dy_x) tile_bn_grad<stem_dy, T>(base, line, a.dy_coef, STEM_K, y0, 1);
        __syncthreads();
        for (int p0 = warp * 16; p0 < STEM_TH * STEM_SIDE; p0 += WARPS * 16) {
            const int p = p0 + (lane & 15);
            uint32_t  af[4], bf[4];
            ldmatrix_trans(af, ya + (uint32_t)(p0 * stem_dy::PITCH));
#pragma unroll
            for (int r = 0; r < 3; r++) {
                ldmatrix_trans(bf, xb + stem_pixel(p / STEM_SIDE + r, p % STEM_SIDE));
                mma<T>(acc[r][0], af, bf[0], bf[1]);
                mma<T>(acc[r][1], af, bf[2], bf[3]);
            }
        }
        __syncthreads();
    }
    dw_warps<WARPS, 1>(acc, reinterpret_cast<float *>(memory), 0, warp);
    if (warp == 0) dw_write<3, 0, 3>(acc, a.dw_partial + (int64_t)blockIdx.x * STEM_DW);
}

/* ---- the host's side ----------------------------------------------------------------------------------------------------- */

enum { RESIDENT = 2 };
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

template <class S, typename T> cudaError_t grad_run(const grad_args &a, int multiprocessors, cudaStream_t stream) {
    using D             = grad_cut<S>;
    const int64_t  jobs = D::JOINT ? a.N * D::TILES : (a.N + D::XI - 1) / D::XI;
    const int64_t  room = (int64_t)multiprocessors * RESIDENT, beside_dw = larger(room - SPLIT_DW_BLOCKS, SPLIT_DX_LEAST);
    const unsigned most = ck_blocks(jobs, 1, D::JOINT ? room : beside_dw);
    cudaError_t    error;
    if constexpr (D::JOINT)
        error = launch(joint_kernel<S, T>, a, most, D::BYTES, false, stream);
    else
        error = launch(split_kernel<S, T>, a, SPLIT_DW_BLOCKS + most, D::BYTES, false, stream);
    return error != cudaSuccess ? error : add_run<dw_place<S>>(a, D::JOINT ? (int64_t)most : (int64_t)D::GROUP, most, stream);
}

template <typename T>
cudaError_t grad_any(const struct ck_conv *v, const grad_args &a, int multiprocessors, cudaStream_t stream) {
    if (v->C == 3) {
        const unsigned    blocks = ck_blocks(a.N * STEM_TILES, 1, (int64_t)multiprocessors * RESIDENT);
        const cudaError_t error  = launch(stem_grad_kernel<T>, a, blocks, STEM_ALL, false, stream);
        return error != cudaSuccess ? error : add_run<stem_place>(a, blocks, 0, stream);
    }
    if (v->C == 16 && v->K == 16) return grad_run<shape<16, 16, 32, 1, 3>, T>(a, multiprocessors, stream);
    if (v->C == 16)
        return v->R == 3 ? grad_run<shape<16, 32, 32, 2, 3>, T>(a, multiprocessors, stream)
                         : grad_run<shape<16, 32, 32, 2, 1>, T>(a, multiprocessors, stream);
    if (v->C == 32 && v->K == 32) return grad_run<shape<32, 32, 16, 1, 3>, T>(a, multiprocessors, stream);
    if (v->C == 32)
        return v->R == 3 ? grad_run<shape<32, 64, 16, 2, 3>, T>(a, multiprocessors, stream)
                         : grad_run<shape<32, 64, 16, 2, 1>, T>(a, multiprocessors, stream);
    return grad_run<shape<64, 64, 8, 1, 3>, T>(a, multiprocessors, stream);
}

/* Blocks that leave a part of dw, or sums, and no more. */
int64_t most_blocks(int multiprocessors) {
    return larger((int64_t)multiprocessors * RESIDENT, SPLIT_DW_BLOCKS);
}
int64_t dw_floats(const struct ck_conv *v, int multiprocessors) {
    return (v->C == 3 ? (int64_t)STEM_DW : v->K * v->R * v->S * v->C) * most_blocks(multiprocessors);
}

} // namespace
} // namespace small

size_t ck_small_conv_grad_workspace(const struct ck_conv *v, int multiprocessors) {
    return (size_t)(small::dw_floats(v, multiprocessors) + small::most_blocks(multiprocessors) * 2 * v->C) * sizeof(float);
}

cudaError_t ck_small_conv_grad(const struct ck_small_conv_grad *args, void *workspace, int multiprocessors, cudaStream_t stream) {
    const small::grad_args a = {.g = args->g, .dy_x = args->dy_x, .w = args->w, .x = args->x, .add = args->add, .bn_x = args->bn_x,
                                .dy_coef = args->dy_coef, .coef = args->coef, .saved = args->saved, .dx = args->dx, .dw = args->dw,
                                .dstats = args->dstats, .dw_partial = (float *)workspace,
                                .sums_partial = (float *)workspace + small::dw_floats(&args->conv, multiprocessors),
                                .N = args->conv.N, .accumulate = args->accumulate};
    if (!ck_small_conv_takes(&args->conv)) return cudaErrorInvalidValue;
    if (!args->saved != !args->dstats || !args->dy_x != !args->dy_coef) return cudaErrorInvalidValue;
    if (args->saved && !args->bn_x && !args->coef) return cudaErrorInvalidValue;
    if ((args->conv.C == 3) != !args->dx || (!args->dx && (args->saved || args->coef || args->add))) return cudaErrorInvalidValue;
    return args->conv.type == CK_F16 ? small::grad_any<__half>(&args->conv, a, multiprocessors, stream)
                                     : small::grad_any<__nv_bfloat16>(&args->conv, a, multiprocessors, stream);
}
