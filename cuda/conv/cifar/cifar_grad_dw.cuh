/* cuda/conv/cifar/cifar_grad_dw.cuh: wgrad of the CIFAR convolutions: the gradient of the filters from tiles of dy and
 * x in shared memory, and the sum over blocks. */
#ifndef CK_CIFAR_GRAD_DW_CUH
#define CK_CIFAR_GRAD_DW_CUH

#include "cuda/conv/cifar/cifar_grad.cuh"

namespace cifar {
namespace {

__device__ __forceinline__ void add4(float4 &a, const float4 &b) {
    a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
}

/* ---- dw ---- */

/* Adds filter positions FIRST..END-1 of a piece of dw [16 k][positions][16 c] to acc, over the pixels of a tile that
 * belong to `group`; dy and x point at the piece's channels. */
template <class S, typename T, int FIRST, int END, int N>
__device__ __forceinline__ void dw_taps(float (&acc)[N][2][4], uint32_t dy, uint32_t x, int group) {
    using D         = grad_tiling<S>;
    using LD        = typename D::DW_DY;
    using LX        = typename D::DW_X;
    constexpr int H = D::JOINT ? (int)D::TH : (int)S::P, EDGE = LD::LEFT; /* the margin of dy */
    const int     lane = (int)threadIdx.x % CK_WARP, pa = (lane & 7) + (lane >> 4) * 8, pb = lane & 15;
    dy += (uint32_t)((EDGE * LD::COLS + EDGE) * LD::PITCH + (lane >> 3 & 1) * 16);
    x += (uint32_t)((lane >> 4) * 16);
#pragma unroll 1
    for (int p0 = group * 16; p0 < D::I * H * S::P; p0 += D::GROUPS * 16) {
        const int image = p0 / (H * S::P), p = p0 % (H * S::P);
        const int ya = (p + pa) / S::P, xa = (p + pa) % S::P, yb = (p + pb) / S::P, xb = (p + pb) % S::P;
        uint32_t  af[4], bf[4];
        ck_ldmatrix_trans(af, dy + (uint32_t)(image * LD::IMAGE + (ya * LD::COLS + xa) * LD::PITCH));
        const uint32_t at = x + (uint32_t)(image * LX::IMAGE + input_pixel<S, LX>(yb, xb));
#pragma unroll
        for (int tap = FIRST; tap < END; tap++) {
            ck_ldmatrix_trans(bf, at + (uint32_t)input_tap<S, LX>(tap / S::R, tap % S::R));
            mma<T>(acc[tap - FIRST][0], af, bf[0], bf[1]);
            mma<T>(acc[tap - FIRST][1], af, bf[2], bf[3]);
        }
    }
}
/* The same for all nine filter positions with a stride of 1: a group has some rows, and a row of x is used for three
 * rows of dy. */
template <class S, typename T>
__device__ __forceinline__ void dw_rows(float (&acc)[9][2][4], uint32_t dy, uint32_t x, int group) {
    using D              = grad_tiling<S>;
    using LD             = typename D::DW_DY;
    using LX             = typename D::DW_X;
    using G              = cifar::groups<S::P, D::JOINT ? (int)D::TH : (int)S::P>;
    constexpr int SHARES = D::GROUPS / G::STRIPS > D::I ? D::GROUPS / G::STRIPS / D::I : 1, ROWS = G::DOWN / SHARES,
                  EDGE = LD::LEFT;
    static_assert(D::GROUPS % G::STRIPS == 0 && SHARES * ROWS == G::DOWN && D::I * G::STRIPS * SHARES % D::GROUPS == 0,
                  "equal shares");
    const int lane = (int)threadIdx.x % CK_WARP, pa = (lane & 7) + (lane >> 4) * 8, pb = lane & 15;
    dy += (uint32_t)(((EDGE + G::row(pa)) * LD::COLS + EDGE + G::col(pa)) * LD::PITCH + (lane >> 3 & 1) * 16);
    x += (uint32_t)((G::row(pb) * LX::COLS + G::col(pb)) * LX::PITCH + (lane >> 4) * 16);
#pragma unroll 1
    for (int share = group; share < D::I * G::STRIPS * SHARES; share += D::GROUPS) {
        const int strip = share % G::STRIPS, image = share / G::STRIPS / SHARES,
                  row        = share / G::STRIPS % SHARES * ROWS;
        const uint32_t at_dy = dy + (uint32_t)(image * LD::IMAGE + (row * LD::COLS + strip * 16) * LD::PITCH);
        const uint32_t at_x  = x + (uint32_t)(image * LX::IMAGE + (row * LX::COLS + strip * 16) * LX::PITCH);
        uint32_t       af[3][4];
#pragma unroll
        for (int t = 0; t < ROWS + 2; t++) {
            if (t < ROWS) ck_ldmatrix_trans(af[t % 3], at_dy + (uint32_t)(t * LD::COLS * LD::PITCH));
#pragma unroll
            for (int s = 0; s < 3; s++) {
                uint32_t bf[4];
                ck_ldmatrix_trans(bf, at_x + (uint32_t)((t * LX::COLS + s) * LX::PITCH));
#pragma unroll
                for (int r = 0; r < 3; r++)
                    if (t - r >= 0 && t - r < ROWS) {
                        mma<T>(acc[r * 3 + s][0], af[(t - r) % 3], bf[0], bf[1]);
                        mma<T>(acc[r * 3 + s][1], af[(t - r) % 3], bf[2], bf[3]);
                    }
            }
        }
    }
}
template <class S, typename T, int N>
__device__ __forceinline__ void dw_piece(float (&acc)[N][2][4], uint32_t dy, uint32_t x, int group, int late,
                                         bool exists) {
    if (S::ANY && !exists) return;
    if constexpr (grad_tiling<S>::BY_ROW)
        dw_rows<S, T>(acc, dy, x, group);
    else if (!late)
        dw_taps<S, T, 0, N>(acc, dy, x, group);
    else if constexpr (S::TAPS > N)
        dw_taps<S, T, N, S::TAPS>(acc, dy, x, group);
}

/* Adds the `GROUPS` warps of each of SLOTS parts of the pieces; slot: the warp's part. Afterwards group 0 has the sums.
 * All threads call, after a barrier. */
template <int GROUPS, int SLOTS, int BARRIER, int N>
__device__ __forceinline__ void dw_warps(float (&acc)[N][2][4], float *to, int slot, int group) {
#pragma unroll
    for (int half = GROUPS / 2; half > 0; half /= 2) {
        float *mine = to + (group % half * SLOTS + slot) * N * 8 * CK_WARP + (int)threadIdx.x % CK_WARP * 4;
        if (group >= half && group < 2 * half)
#pragma unroll
            for (int i = 0; i < N * 2; i++)
                *reinterpret_cast<float4 *>(mine + i * 128) =
                    make_float4(acc[i / 2][i % 2][0], acc[i / 2][i % 2][1], acc[i / 2][i % 2][2], acc[i / 2][i % 2][3]);
        barrier_sync<BARRIER, THREADS>();
        if (group < half)
#pragma unroll
            for (int i = 0; i < N * 2; i++) {
                const float4 v = *reinterpret_cast<const float4 *>(mine + i * 128);
                acc[i / 2][i % 2][0] += v.x, acc[i / 2][i % 2][1] += v.y, acc[i / 2][i % 2][2] += v.z,
                    acc[i / 2][i % 2][3] += v.w;
            }
        barrier_sync<BARRIER, THREADS>();
    }
}

/* Stores filter positions FIRST..END-1 of a piece to `to`, in the threads' order: [positions][2 halves of the
 * columns][32 lanes] of four numbers: c and c + 1 of row k, then of row k + 8. */
template <int FIRST, int END, int N> __device__ __forceinline__ void dw_write(const float (&acc)[N][2][4], float *to) {
    float4 *mine = reinterpret_cast<float4 *>(to) + FIRST * 2 * CK_WARP + (int)threadIdx.x % CK_WARP;
#pragma unroll
    for (int i = 0; i < (END - FIRST) * 2; i++) {
        const float(&v)[4] = acc[i / 2][i % 2];
        __stcg(mine + i * CK_WARP, make_float4(v[0], v[1], v[2], v[3]));
    }
}
struct dw_four {
    int        tap, k, c; /* of the piece */
    __device__ __forceinline__ explicit dw_four(int four)
        : tap(four / (2 * CK_WARP)), k(four % CK_WARP / 4), c(four / CK_WARP % 2 * 8 + four % 4 * 2) {}
};

/* A warp's part of the work on dw: its piece among HELD, its half of the filter positions, its group of pixels. */
template <class S> struct dw_slot {
    int                        piece, late, group;
    __device__ __forceinline__ dw_slot() {
        using D        = grad_tiling<S>;
        const int warp = (int)threadIdx.x / CK_WARP % D::DW_WARPS;
        piece = warp % D::HELD, late = warp / D::HELD % D::SPLIT, group = warp / (D::HELD * D::SPLIT);
    }
    /* First channel of the piece in a pixel of dy and of x. */
    __device__ __forceinline__ int      k() const { return piece / (grad_tiling<S>::CB / PIECE) * PIECE; }
    __device__ __forceinline__ int      c() const { return piece % (grad_tiling<S>::CB / PIECE) * PIECE; }
    __device__ __forceinline__ uint32_t dy_bytes() const { return (uint32_t)(k() * 2); }
    __device__ __forceinline__ uint32_t x_bytes() const { return (uint32_t)(c() * 2); }
    /* Whether the tensors have the piece; k0, c0: first channels of the block's part of dw. */
    __device__ __forceinline__ bool exists(const grad_args &a, int k0, int c0) const {
        return !S::ANY || (k0 + k() < a.K && c0 + c() < a.C);
    }
};

/* Stores the block's pieces that exist to `to`; room: shared memory. */
template <class S, int N>
__device__ __forceinline__ void dw_block(float (&acc)[N][2][4], float *to, float *room, const dw_slot<S> &slot_of_warp,
                                         bool exists) {
    using D = grad_tiling<S>;
    dw_warps<D::GROUPS, D::HELD * D::SPLIT, D::DW_BARRIER>(acc, room, slot_of_warp.piece * D::SPLIT + slot_of_warp.late,
                                                           slot_of_warp.group);
    if (slot_of_warp.group || !exists) return;
    to += slot_of_warp.piece * PIECE * PIECE * S::TAPS;
    if (!slot_of_warp.late)
        dw_write<0, N>(acc, to);
    else if constexpr (S::TAPS > N)
        dw_write<N, S::TAPS>(acc, to);
}

__device__ __forceinline__ void add2(float *to, float x, float y, bool accumulate) {
    float2 v = make_float2(x, y);
    if (accumulate) {
        const float2 old = *reinterpret_cast<const float2 *>(to);
        v.x += old.x, v.y += old.y;
    }
    *reinterpret_cast<float2 *>(to) = v;
}
/* Index of four elements of part `part` in dw [K][TAPS][C]. */
template <class S> struct dw_place {
    using D = grad_tiling<S>;
    enum { DW = D::DW, CH = S::C, TRANSPOSED = D::CB / PIECE, FOURS = S::TAPS * 2 * CK_WARP };
    static constexpr bool                 ANY = S::ANY;
    static __host__ int                   parts(int C, int K) { return D::parts(C, K); }
    static __device__ __forceinline__ int first_k(int part, int four, int C) {
        return part / D::parts_in(C) * D::KB + four / FOURS / TRANSPOSED * PIECE;
    }
    static __device__ __forceinline__ int first_c(int part, int four, int C) {
        return part % D::parts_in(C) * D::CB + four / FOURS % TRANSPOSED * PIECE;
    }
    static __device__ __forceinline__ bool exists(int part, int four, int C, int K) {
        return first_k(part, four, C) < K && first_c(part, four, C) < C;
    }
    static __device__ __forceinline__ void store(float *dw, int part, int four, float4 v, bool accumulate, int in_all,
                                                 int K) {
        const dw_four at(four % FOURS);
        const int C = ANY ? in_all : (int)S::C, k = first_k(part, four, C) + at.k, c = first_c(part, four, C) + at.c;
        float    *to = dw + (k * S::TAPS + at.tap) * C + c;
        if (ANY && c >= C) return;
        if (!ANY || k < K) add2(to, v.x, v.y, accumulate);
        if (!ANY || k + 8 < K) add2(to + 8 * S::TAPS * C, v.z, v.w, accumulate);
    }
};

/* The stem: the columns of a piece are 4 columns of the filter by 4 channels; 3 by 3 of them are stored. */
enum { STEM_DW = STEM_K * 3 * 16 };
template <bool ANY_> struct stem_place {
    enum { DW = STEM_DW, CH = 0 };
    static constexpr bool                  ANY = ANY_;
    static __host__ int                    parts(int, int) { return 1; }
    static __device__ __forceinline__ bool exists(int, int, int, int) { return true; }
    static __device__ __forceinline__ void put(float *to, float x, float y, bool first, bool accumulate) {
        to[0] = accumulate ? to[0] + x : x;
        if (first) to[1] = accumulate ? to[1] + y : y; /* the third element is stored separately */
    }
    static __device__ __forceinline__ void store(float *dw, int, int four, float4 v, bool accumulate, int, int K) {
        const dw_four at(four);
        const int     s = at.c / 4, c = at.c % 4;
        if (s == 3) return;
        float *to = dw + ((at.k * 3 + at.tap) * 3 + s) * 3 + c;
        if (!ANY || at.k < K) put(to, v.x, v.y, c == 0, accumulate);
        if (!ANY || at.k + 8 < K) put(to + 8 * 27, v.z, v.w, c == 0, accumulate);
    }
};

/* The second launch. partial: [PARTS][each][DW]. A block adds ADD_COLUMNS vectors of four numbers; its threads divide
 * the `each` rows. The first blocks add grad_sums, which the next op waits for longest, and finish them. */
enum { ADD_COLUMNS = 16, ADD_SHARES = THREADS / ADD_COLUMNS, ADD_IN_FLIGHT = 9 /* 144 rows */ };
struct add_args {
    const float               *partial, *sums_partial;
    float                     *dw, *grad_sums;
    int                        each, sums_rows, sums_blocks;
    bool                       accumulate;
    uint8_t                    C, K; /* only with ANY, as in grad_args */
    struct ck_bn_grad_finalize finish;
    double                     inverse; /* 1/M */
};
template <class Place> struct add_end {
    const add_args                &a;
    __device__ __forceinline__ int channels() const { return Place::ANY ? a.C : (int)Place::CH; }
    struct channel {
        ck_bn_grad_channel         bn;
        __device__ __forceinline__ channel(const add_end &end, int c) {
            if (end.a.finish.coeffs) bn.load(end.a.finish, c, end.channels());
        }
        __device__ __forceinline__ void finish(const add_end &end, int c, float sum, float product) const {
            const int C            = end.channels();
            end.a.grad_sums[c]     = sum;
            end.a.grad_sums[C + c] = product;
            if (end.a.finish.coeffs) bn.finish(end.a.finish, end.a.inverse, c, C, sum, product);
        }
    };
};
/* Adds the parts of dw. block: index of this block among the blocks that add; all: shared memory. */
template <class Place>
__device__ __forceinline__ void add_parts(const float *partial, float *dw, int each, int block, bool accumulate, int C,
                                          int K, float4 *all) {
    constexpr int FOURS = Place::DW / 4, BLOCKS = FOURS / ADD_COLUMNS;
    static_assert(FOURS % ADD_COLUMNS == 0, "whole blocks");
    const int part = block / BLOCKS, slot_of_warp = (int)threadIdx.x % ADD_COLUMNS,
              share = (int)threadIdx.x / ADD_COLUMNS, four = block % BLOCKS * ADD_COLUMNS + slot_of_warp;
    if (Place::ANY && !Place::exists(part, four, C, K)) return; /* the same for all threads */
    const float4 *from = reinterpret_cast<const float4 *>(partial) + (int64_t)part * each * FOURS + four;
    float4        sum  = make_float4(0, 0, 0, 0);
    for (int b = share; b < each; b += ADD_IN_FLIGHT * ADD_SHARES) {
        float4 v[ADD_IN_FLIGHT]; /* all loads first, as in sums_add */
#pragma unroll
        for (int i = 0; i < ADD_IN_FLIGHT; i++)
            v[i] = b + i * ADD_SHARES < each ? __ldcg(from + (int64_t)(b + i * ADD_SHARES) * FOURS)
                                             : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < ADD_IN_FLIGHT; i++) add4(sum, v[i]);
    }
    all[threadIdx.x] = sum;
    __syncthreads();
    if (share) return;
#pragma unroll
    for (int k = 1; k < ADD_SHARES; k++) add4(sum, all[k * ADD_COLUMNS + slot_of_warp]);
    Place::store(dw, part, four, sum, accumulate, C, K);
}
template <class Place> __global__ void __launch_bounds__(THREADS) add_kernel(add_args a) {
    __shared__ float4 all[THREADS];
    ck_let_next_begin();
    ck_wait_for_last();
    if constexpr (Place::CH > 0)
        if ((int)blockIdx.x < a.sums_blocks) {
            const add_end<Place> end{a};
            sums_add(a.sums_partial, a.sums_rows, (int)blockIdx.x, end, end.channels());
            return;
        }
    add_parts<Place>(a.partial, a.dw, a.each, (int)blockIdx.x - a.sums_blocks, a.accumulate, a.C, a.K, all);
}
template <class Place>
cudaError_t add_run(const grad_args &a, const struct ck_bn_grad_finalize &finish, int64_t each, int64_t sums_rows,
                    cudaStream_t stream) {
    add_args add         = {.partial      = a.dw_partial,
                            .sums_partial = a.sums_partial,
                            .dw           = a.dw,
                            .grad_sums    = a.grad_sums,
                            .each         = (int)each,
                            .sums_rows    = (int)sums_rows,
                            .sums_blocks  = a.grad_sums ? (Place::ANY ? a.C : (int)Place::CH) / SUMS_CHANNELS : 0,
                            .accumulate   = a.accumulate,
                            .C            = a.C,
                            .K            = a.K,
                            .finish       = finish,
                            .inverse      = 1 / (double)finish.count};
    add.finish.mean_rstd = a.mean_rstd;
    return launch(add_kernel<Place>, add, Place::DW / 4 / ADD_COLUMNS * Place::parts(a.C, a.K) + add.sums_blocks,
                  THREADS, 0, stream);
}

} // namespace
} // namespace cifar

#endif
