/* cuda/conv/pointwise/point_grad_plan.cuh: how a kernel of cuda/conv/pointwise/point_grad_sm90a.cu divides its work and
 * its shared memory. */
#ifndef CK_POINT_GRAD_PLAN_CUH
#define CK_POINT_GRAD_PLAN_CUH

#include "cuda/conv/pointwise/point_grad.cuh"

namespace {

enum { INNER, BLOCK, PLAIN, MASKED }; /* as in cuda/common/fused_conv.h */
enum {
    TILE         = 64,    /* pixels */
    CHUNK        = 8192,  /* bytes of 64 pixels of 64 channels */
    SENT         = 16384, /* the same in f32 */
    SHARES       = 4,     /* parts of a tile of dy; a part is loaded and computed at a time */
    GROUP        = 128,   /* threads of a warpgroup */
    GROUP_WARPS  = 4,
    BARRIERS_MAX = 120,
    SHARED_MAX   = 227 * 1024
};

/* KS, CS: channels of dy and of the slice of x. Numbers of slots: G tiles of dy, D of dy_x, X tiles of x, E units of
 * add and of bn_x. With D = 0, g is dy. GROUPS warpgroups compute the products: 2 where dw needs their registers. PAIR:
 * two blocks share a tile of KS*2 channels of dy. */
template <int KS, int CS, int MODE_, int G, int D, int X, int E_, int GROUPS_, bool PAIR_> struct plan {
    static constexpr int  K = KS, C = CS, MODE = MODE_, SG = G, SD = D, SX = X, E = E_, GROUPS = GROUPS_;
    static constexpr bool PAIR = PAIR_;
    static constexpr int  KC = K / 64, CC = C / 64; /* chunks across */
    /* a group has tiles of its own: dw is one tile, and each group has one */
    static constexpr bool ALONE = KC * CC == 1;
    /* one more group computes dy and xa; otherwise all groups do */
    static constexpr bool GIVEN = D == 0;
    static constexpr bool MAKER = GROUPS == 2 && CC == 2 && !GIVEN;
    static constexpr bool EARLY =
        GROUPS == 2 && !MAKER && !GIVEN;                  /* registers for dgrad are reserved while dy is computed */
    static constexpr bool WIDE  = GROUPS == 2 && CC == 2; /* tiles of dw are 64x128, else 64x64 */
    static constexpr int  ACC   = WIDE ? 64 : 32;         /* registers of one */
    static constexpr int  TILES = KC * CC < GROUPS ? 1 : KC * CC / GROUPS / (WIDE ? 2 : 1); /* tiles of dw in a group */
    static constexpr int  AHEAD = ALONE ? GROUPS : 1; /* distance between consecutive tiles of a group */

    /* Threads. Registers move between whole warpgroups: the loading warpgroup releases the registers that the other
     * groups allocate. */
    static constexpr int WARPS = GROUPS * GROUP_WARPS, WORKERS = GROUPS * GROUP;
    static constexpr int THREADS     = WORKERS + (MAKER ? GROUP : 0) + GROUP;
    static constexpr int WORKER_REGS = MAKER ? 200 : GROUPS == 4 ? 112 : 240;
    static constexpr int MAKER_REGS = 88, LOADER_REGS = GROUPS == 4 ? 32 : 24;

    static constexpr int SHARE_ROWS = 16 * KC; /* of one chunk */
    static constexpr int OWN_SHARES = MAKER || ALONE ? SHARES : SHARES / GROUPS;
    static constexpr int MAKE_WARPS = MAKER || ALONE ? GROUP_WARPS : WARPS; /* warps that compute a tile of dy */
    static constexpr int USE_WARPS  = ALONE ? GROUP_WARPS : WARPS;          /* warps that read it */

    static constexpr bool HAS_A = MODE != INNER, HAS_B = MODE == BLOCK, SUMS = MODE == INNER || MODE == BLOCK;
    static_assert(KC <= 4 && CC <= 4 && (MODE != INNER || CC == (PAIR ? 2 : 1)), "chunks of a tile");
    static_assert(!GIVEN || (HAS_A && !ALONE && !PAIR && GROUPS == 2 && CC == 2), "kernels without dy_x");
    static_assert(GROUPS == 4 || (GROUPS == 2 && KC == 4 && CC <= 2), "how tiles of dw are shared out");
    static_assert(!ALONE || (SG % GROUPS == 0 && SD % GROUPS == 0 && SX % GROUPS == 0),
                  "a group always meets the same slots");

    /* Shared memory: w, then the rings. INNER has xa in addition to x, with as many slots as dy; see maker. */
    static constexpr int G_AT = KC * CC * CHUNK, D_AT = G_AT + SG * KC * CHUNK;
    static constexpr int X_AT = D_AT + SD * KC * CHUNK, XA_AT = X_AT + SX * CC * CHUNK;
    static constexpr int A_AT = XA_AT + (MODE == INNER ? SG * CHUNK : 0), B_AT = A_AT + (HAS_A ? E * CHUNK : 0);
    static constexpr int SENT_AT    = B_AT + (HAS_B ? E * CHUNK : 0); /* float[64][64] from the other block of a pair */
    static constexpr int CHANNEL_AT = SENT_AT + (PAIR ? SENT : 0);    /* float[][C]: mean, scale, bias */
    static constexpr int CHANNEL_ROWS = MODE == INNER ? 3 : MODE == BLOCK ? 1 : 0;
    static constexpr int BARRIER_AT = CHANNEL_AT + CHANNEL_ROWS * C * 4, ABC_AT = BARRIER_AT + 8 * BARRIERS_MAX;
    /* float[3][K]; false: read from memory through L1 */
    static constexpr bool ABC_SHARED = !GIVEN && ABC_AT + 3 * K * 4 <= SHARED_MAX;
    static constexpr int  BYTES      = ABC_AT + (ABC_SHARED ? 3 * K * 4 : 0);

    /* Barriers: a full and an empty one for each slot, or for each part of a slot where parts arrive separately. READY:
     * dy and xa are complete. */
    static constexpr int FULL_W = 0, FULL_G = 1, FULL_D = FULL_G + SHARES * SG, EMPTY_D = FULL_D + SHARES * SD;
    static constexpr int READY = EMPTY_D + SHARES * SD, EMPTY_G = READY + SG, FULL_X = EMPTY_G + SG,
                         EMPTY_X = FULL_X + SX;
    static constexpr int FULL_A = EMPTY_X + SX, EMPTY_A = FULL_A + E, FULL_B = EMPTY_A + E, EMPTY_B = FULL_B + E;
    static constexpr int FULL_SENT = EMPTY_B + E, EMPTY_SENT = FULL_SENT + 2,
                         BARRIERS = EMPTY_SENT + 2; /* even, odd tiles */
    static_assert(BARRIERS <= BARRIERS_MAX && BYTES <= SHARED_MAX, "shared memory of a block");

    /* Warps (or threads) that a phase of a barrier waits for. One: the thread that announces the bytes, or stores from
     * the slot. */
    static constexpr __device__ int arrivals(int barrier) {
        if (barrier >= EMPTY_SENT) return GROUP_WARPS;
        if (barrier >= FULL_A) return 1;
        if (barrier >= EMPTY_X) return PAIR ? WARPS + 1 : MODE == INNER ? 1 : USE_WARPS;
        if (barrier >= FULL_X) return 1;
        if (barrier >= EMPTY_G) return USE_WARPS;
        if (barrier >= READY) return MAKE_WARPS;
        if (barrier >= EMPTY_D) return GROUP_WARPS;
        return 1;
    }
};

struct args {
    CUtensorMap  g, d, x, w, add, bn_x, dx;
    const float *dy_coeffs, *scale_bias, *mean_rstd; /* [3][K], [2][C], [2][C] of the whole tensors */
    float       *dw_part, *sums_part;                /* [parts][K][C], [blocks of a slice][2][C] */
    int64_t      pixels;
    int          C, K, tiles, slices;
    bool         has_add;
};

/* The block's part of the tensors: channels from `c` on of x and from `k` on of dy; tiles first, first + step, ... The
 * blocks of a pair share a tile: each has half of dy and all of x, and finishes chunk `rank` of x. */
struct place {
    int rank, c, k, first, step;
};
template <typename P> __device__ __forceinline__ place place_of(const args &a) {
    const int slice = (int)blockIdx.x % a.slices;
    return {P::PAIR ? slice : 0, P::PAIR ? 0 : slice * P::C, P::PAIR ? slice * P::K : 0, (int)blockIdx.x / a.slices,
            (int)gridDim.x / a.slices};
}

/* Use number n of a ring of N slots: its slot, and the parity with which a wait for the end of its fill is called. */
template <int N> __device__ __forceinline__ int slot_of(int n) {
    return (int)((unsigned)n % N);
}
template <int N> __device__ __forceinline__ uint32_t parity_of(int n) {
    return (unsigned)n / N & 1;
}

/* Positions in shared memory. `index` counts the block's tiles; the positions in all rings follow from it. */
template <typename P> struct block_part {
    const args &a;
    uint32_t    base;
    place       at;

    __device__ __forceinline__ uint32_t barrier(int number) const { return base + P::BARRIER_AT + 8 * number; }
    __device__ __forceinline__ uint32_t dy_at(int index) const {
        return base + P::G_AT + slot_of<P::SG>(index) * P::KC * CHUNK;
    }
    __device__ __forceinline__ uint32_t x_at(int index) const {
        return base + P::X_AT + slot_of<P::SX>(index) * P::CC * CHUNK;
    }
    /* Chunk c of xa. Where x itself is needed later, xa has a place of its own. */
    __device__ __forceinline__ uint32_t xa_at(int index, int c) const {
        if constexpr (P::MODE == INNER)
            if (c == at.rank) return base + P::XA_AT + slot_of<P::SG>(index) * CHUNK;
        return x_at(index) + c * CHUNK;
    }
    __device__ __forceinline__ void wait_x(int index) const {
        ck_mbar_wait(barrier(P::FULL_X + slot_of<P::SX>(index)), parity_of<P::SX>(index));
    }
    /* Once for each warp, when all its lanes have finished. */
    __device__ __forceinline__ void warp_arrive(int number) const {
        __syncwarp();
        if (threadIdx.x % CK_WARP == 0) ck_mbar_arrive(barrier(number));
    }
};

} // namespace

#endif
