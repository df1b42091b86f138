/* small_grad_dw.cuh: the gradient of the filters from tiles of dy and x in shared memory, and the sum of what blocks made. */
#ifndef CK_SMALL_GRAD_DW_CUH
#define CK_SMALL_GRAD_DW_CUH

#include "small_grad.cuh"

namespace small {
namespace {

__device__ __forceinline__ void add4(float4 &a, const float4 &b) { a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w; }

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
template <int GROUPS, int SLOTS, int MEET, int N>
__device__ __forceinline__ void dw_warps(float (&acc)[N][2][4], float *to, int slot, int group) {
#pragma unroll
    for (int half = GROUPS / 2; half > 0; half /= 2) {
        float *mine = to + (group % half * SLOTS + slot) * N * 8 * CK_WARP + (int)threadIdx.x % CK_WARP * 4;
        if (group >= half && group < 2 * half)
#pragma unroll
            for (int i = 0; i < N * 2; i++)
                *reinterpret_cast<float4 *>(mine + i * 128) = make_float4(acc[i / 2][i % 2][0], acc[i / 2][i % 2][1],
                                                                          acc[i / 2][i % 2][2], acc[i / 2][i % 2][3]);
        meet<MEET, THREADS>();
        if (group < half)
#pragma unroll
            for (int i = 0; i < N * 2; i++) {
                const float4 v = *reinterpret_cast<const float4 *>(mine + i * 128);
                acc[i / 2][i % 2][0] += v.x, acc[i / 2][i % 2][1] += v.y, acc[i / 2][i % 2][2] += v.z, acc[i / 2][i % 2][3] += v.w;
            }
        meet<MEET, THREADS>();
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
        const int warp = (int)threadIdx.x / CK_WARP % D::DW_WARPS;
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
    dw_warps<D::GROUPS, D::HELD * D::SPLIT, D::DW_MEET>(acc, room, seat.piece * D::SPLIT + seat.late, seat.group);
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
 * The block after those of dw adds dstats and does what becomes of them. */
enum { ADD_ACROSS = 16, ADD_SHARES = THREADS / ADD_ACROSS, ADD_ROOM = WARPS * 2 * 64 * 8 };
struct add_args {
    const float *partial, *sums_partial;
    float       *dw, *dstats;
    int          each, sums_blocks;
    bool         accumulate;
    struct ck_bn_grad_finalize finish;
    double                     inverse; /* 1/M */
};
template <int C> struct add_end {
    const add_args   &a;
    ck_bn_grad_channel channel;
    __device__ __forceinline__ explicit add_end(const add_args &args) : a(args) {
        if (a.finish.coef && (int)threadIdx.x < C) channel.load(a.finish, threadIdx.x, C);
    }
    __device__ __forceinline__ void operator()(int c, float sum, float product) const {
        a.dstats[c]     = sum;
        a.dstats[C + c] = product;
        if (a.finish.coef) channel.finish(a.finish, a.inverse, c, C, sum, product);
    }
};
template <class Place> __global__ void __launch_bounds__(THREADS) add_kernel(add_args a) {
    constexpr int FOURS = Place::DW / 4, BLOCKS = FOURS / ADD_ACROSS;
    static_assert(FOURS % ADD_ACROSS == 0, "whole blocks");
    __shared__ __align__(16) char room[ADD_ROOM];
    begin_after_last();
    if (blockIdx.x == BLOCKS * Place::PARTS) {
        if constexpr (Place::CH > 0)
            sums_finish<Place::CH, WARPS>(a.sums_partial, a.sums_blocks, reinterpret_cast<double *>(room), add_end<Place::CH>(a));
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
template <class Place>
cudaError_t add_run(const grad_args &a, const struct ck_bn_grad_finalize &finish, int64_t each, int64_t sums_blocks, cudaStream_t stream) {
    add_args add     = {a.dw_partial,     a.sums_partial, a.dw,   a.dstats, (int)each,
                        (int)sums_blocks, a.accumulate,   finish, 1 / (double)finish.count};
    add.finish.saved = a.saved;
    return launch(add_kernel<Place>, add, Place::DW / 4 / ADD_ACROSS * Place::PARTS + (a.dstats ? 1 : 0), THREADS, 0, stream);
}

} // namespace
} // namespace small

#endif
