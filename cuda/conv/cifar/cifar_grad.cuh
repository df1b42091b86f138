/* cuda/conv/cifar/cifar_grad.cuh: how the backward of a CIFAR convolution is divided: arguments, tiles, shared
 * memory. */
#ifndef CK_CIFAR_GRAD_CUH
#define CK_CIFAR_GRAD_CUH

#include "cuda/conv/cifar/cifar_sums.cuh"

namespace cifar {
namespace {

enum {
    PIECE           = 16,  /* channels of a piece of dw, in each direction */
    SPLIT_DW_BLOCKS = 128, /* blocks of a split launch that compute dw */
    SPLIT_DX_LEAST  = 64   /* the other blocks, at least, on a GPU with few multiprocessors */
};
constexpr bool KEEP_X = true; /* copies of x go through the L1 cache, because x is read twice */

struct grad_args {
    static constexpr bool FINISH = false;
    const void           *g, *dy_x, *w, *x, *add, *bn_x;
    const float          *dy_coeffs, *scale_bias, *mean_rstd;
    void                 *dx;
    float                *dw, *grad_sums, *dw_partial, *sums_partial;
    int64_t               N;
    bool                  accumulate;
    /* These four are in the padding: with more than 128 bytes of arguments, the compiler of CUDA 13.0 gives other
     * registers to the kernels without ANY, which then spill more and take 2 % longer. */
    bool    one_stage; /* only with ANY */
    uint8_t C, K;      /* only with ANY */
    uint8_t add_pad;   /* as in ck_cifar_conv_grad */
};

static_assert(sizeof(grad_args) <= 128, "see above");

/* ---- shapes ---- */

/* dy for TH rows: with the neighbours that dx needs (HALO), or without them. */
template <class S, int I, int TH, int CH, bool HALO, int THREADS = cifar::THREADS>
using output_tile = tile<I,
                         TH + (!HALO || S::R == 1 ? 0
                               : S::STRIDE == 1   ? 2
                                                  : 1),
                         S::P + (!HALO || S::R == 1 ? 0
                                 : S::STRIDE == 1   ? 2
                                                    : 1),
                         CH, S::K, S::P, 1, HALO && S::R == 3 && S::STRIDE == 1 ? 1 : 0, false, THREADS, S::ANY>;

template <class S> struct grad_tiling {
    static constexpr bool JOINT = S::TAPS * S::K * S::C <= 32 * 32 * 9, BY_ROW = S::STRIDE == 1;
    enum {
        DX_WARPS   = JOINT && !BY_ROW ? 16 : 8,
        DX_THREADS = DX_WARPS * CK_WARP,
        DW_WARPS   = 8,
        DW_THREADS = DW_WARPS * CK_WARP
    };
    enum { BLOCK = JOINT ? DX_THREADS + DW_THREADS : (int)DX_THREADS };
    enum { DX_BARRIER = JOINT ? 1 : 0, DW_BARRIER = JOINT ? 2 : 0 }; /* barriers of these threads only */
    /* dx: rows of dy a tile, groups of 16 pixels in it, tiles of an image; columns of 8 and groups that a warp
     * processes at a time; warps along the columns */
    enum { TH = (S::P == 32 ? 16 : S::P == 16 ? 16 : 8), TILES = S::P / TH, ROWS = TH * S::P / 16 };
    enum { NT = S::C == 16 || BY_ROW ? 2 : 4, NW = S::C / (8 * NT), MW = DX_WARPS / NW, MT = BY_ROW ? ROWS / MW : 1 };
    static_assert(!BY_ROW || MT * MW == ROWS, "all warps have the same amount of work");
    /* dw: channels of dy and x whose dw a block computes, number of such parts of dw, pieces of a part, images that a
     * block reads at a time */
    enum { KB = JOINT ? (int)S::K : 32, CB = JOINT ? (int)S::C : 32, PARTS = S::K / KB * (S::C / CB) };
    enum { HELD = KB / PIECE * (CB / PIECE), I = JOINT ? 1 : S::STRIDE == 2 ? 2 : 4, DW = KB * CB * S::TAPS };
    enum { GROUP = SPLIT_DW_BLOCKS / PARTS /* blocks of a part */ };
    /* With ANY: only the parts that exist. */
    static __host__ __device__ int parts_in(int C) { return S::ANY ? (C + CB - 1) / CB : S::C / CB; }
    static __host__ __device__ int parts(int C, int K) { return S::ANY ? (K + KB - 1) / KB * parts_in(C) : (int)PARTS; }
    static __host__ __device__ int group(int C, int K) { return S::ANY ? SPLIT_DW_BLOCKS / parts(C, K) : (int)GROUP; }
    /* With a stride, two warps divide the filter positions of a piece. The first warp has EARLY of them. */
    enum {
        SPLIT  = S::TAPS > 1 && !BY_ROW ? 2 : 1,
        EARLY  = (S::TAPS + SPLIT - 1) / SPLIT,
        GROUPS = DW_WARPS / (HELD * SPLIT)
    };
    static_assert(GROUPS >= 1, "a warp has one piece");
    using DY    = output_tile<S, 1, TH, S::K, true, DX_THREADS>;
    using DW_DY = output_tile<S, I, JOINT ? (int)TH : (int)S::P, KB, JOINT>;
    using DW_X  = input_tile<S, I, JOINT ? (int)TH : (int)S::P, CB>;
    enum { W_PITCH = S::TAPS * S::C * 2 + 16 };
    /* SMALL, joint: one stage. SMALL, split: the sums have the space of dy, after the last tile. With ANY there is one
     * kernel for both: the number of stages is an argument, and split kernels always have their sums there. */
    static constexpr bool LATE_SUMS = (S::SMALL || S::ANY) && !JOINT;
    /* Shared memory. Joint: sums, table, filter, then STAGES times dy and dy_x, then STAGES times x; dw is reduced in
     * the space of x, or of dy and x. Split: sums, table, filter, dy, dy_x or dy, dy_x, x; dw is reduced in the space
     * of the last three. */
    enum {
        TABLE_AT = LATE_SUMS ? 0 : DX_WARPS * 2 * S::C * 4,
        W_AT     = TABLE_AT + 4 * S::C * 4,
        DY_AT    = W_AT + S::K * W_PITCH,
        SUMS_AT  = LATE_SUMS ? DY_AT : 0
    };
    enum { LINE_AT = DY_AT + DY::BYTES, DY_STAGE = DY::BYTES + DY::VECTORS * 16, BOTH = DY_STAGE + DW_X::BYTES };
    enum { FITS_TWICE = TILES > 1 || DY_AT + 2 * BOTH <= 200 * 1024, STAGES = FITS_TWICE && !S::SMALL ? 2 : 1 };
    enum { X_AT = DY_AT + STAGES * DY_STAGE };
    enum { JOINT_BYTES = X_AT + STAGES * DW_X::BYTES, DX_BYTES = DY_AT + DY_STAGE };
    enum {
        S_DY_AT     = 0,
        S_LINE_AT   = DW_DY::BYTES,
        S_X_AT      = S_LINE_AT + DW_DY::VECTORS * 16,
        SPLIT_BYTES = S_X_AT + DW_X::BYTES
    };
    /* With one stage dw is reduced in the space of dy and x: after the last tile neither is read. */
    enum { BARRIER_AT = !JOINT ? 0 : STAGES > 1 ? (int)X_AT : (int)DY_AT };
    enum { ROUND = GROUPS / 2 * HELD * SPLIT * EARLY * 8 * CK_WARP * 4 };
    enum { LEAST = BARRIER_AT + ROUND, EITHER = (int)DX_BYTES > (int)SPLIT_BYTES ? (int)DX_BYTES : (int)SPLIT_BYTES };
    enum { MOST = JOINT ? (int)JOINT_BYTES : (int)EITHER, BYTES = (int)MOST > (int)LEAST ? (int)MOST : (int)LEAST };
    static_assert(!LATE_SUMS || DX_WARPS * 2 * S::C * 4 <= (int)DY_STAGE, "the sums fit into dy");
    static_assert(!JOINT || (int)BARRIER_AT + (int)ROUND <= (int)JOINT_BYTES, "dw is reduced in this space");
};

/* The same shape in less shared memory, for GPUs whose blocks have less than those of compute capability 9.0. With one
 * stage, the copies of the next tile wait until the tile has been used. */
template <class S> using small = shape<S::C, S::K, S::H, S::STRIDE, S::R, true, S::ANY>;

/* What depends on the number of stages. */
template <class S> __device__ __forceinline__ int stages(const grad_args &a) {
    return S::ANY && a.one_stage ? 1 : (int)grad_tiling<S>::STAGES;
}
template <class S> __device__ __forceinline__ int x_at(const grad_args &a) {
    return S::ANY && a.one_stage ? (int)grad_tiling<small<S>>::X_AT : (int)grad_tiling<S>::X_AT;
}
template <class S> __device__ __forceinline__ int barrier_at(const grad_args &a) {
    return S::ANY && a.one_stage ? (int)grad_tiling<small<S>>::BARRIER_AT : (int)grad_tiling<S>::BARRIER_AT;
}
/* Stands before a wait for all copies but those of the later stages. With one stage there are no later stages, so it
 * waits for all copies. */
template <class S> __device__ __forceinline__ void wait_for_stage(const grad_args &a) {
    if (S::ANY && a.one_stage) ck_copy_wait<0>();
}

} // namespace
} // namespace cifar

#endif
