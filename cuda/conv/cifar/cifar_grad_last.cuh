/* cuda/conv/cifar/cifar_grad_last.cuh: a backward kernel that completes the launch before it: it adds the sums of the
 * BN and the parts of dw that the blocks of that launch stored, instead of a second launch between them.
 *
 * Each block adds the sums for itself, because it needs the coefficients; one block also stores the results. The parts
 * of dw are divided among the warps of the launch that compute dw, which would wait for dy otherwise. */
#ifndef CK_CIFAR_GRAD_LAST_CUH
#define CK_CIFAR_GRAD_LAST_CUH

#include "cuda/conv/cifar/cifar_grad_dw.cuh"

namespace cifar {
namespace {

struct last_grad {
    const float               *dw_partial, *sums_partial; /* [parts][each][DW], [rows][2][its C] */
    float                     *dw, *grad_sums;
    int                        each, rows, C, K;
    bool                       accumulate;
    struct ck_bn_grad_finalize finish;
    double                     inverse; /* 1/M */
};
struct grad_last_args : grad_args {
    static constexpr bool LAST = true;
    last_grad             last;
};

/* The sums of CH of all K channels, by the first THREADS of the WARPS warps. A thread adds the rows of four
 * neighbouring numbers; the order depends on K and WARPS only. */
template <int K, int CH, int WARPS, bool EARLY> struct last_grad_sums {
    enum { SHARES = WARPS * CK_WARP / (K / 2), FOURS = CH / 2, THREADS = SHARES * FOURS, MOST = 144 /* rows */ };
    enum { FLIGHT = (MOST + SHARES - 1) / SHARES, ROWS = FOURS < CK_WARP ? THREADS / CK_WARP : (int)SHARES };
    /* CH < K: the shuffles would not be those of K. */
    enum { SHUFFLED = K / 2 < CK_WARP, PARTS = SHUFFLED ? (int)ROWS : (int)SHARES };
    static_assert(CH == K || !SHUFFLED, "the same order for all CH");
    enum { COEFFS = 3 * CH, ROOM = (3 * CH + PARTS * 2 * CH) * 4 };
    float4                                v[FLIGHT];
    ck_bn_grad_channel                    bn;
    static __device__ __forceinline__ int share() { return (int)threadIdx.x / FOURS; }
    static __device__ __forceinline__ int four() { return (int)threadIdx.x % FOURS; }
    __device__ __forceinline__ void       load(const last_grad &a, int first, int from) {
              const int    sum = four() / (CH / 4), c = first + four() % (CH / 4) * 4;
              const float *at = a.sums_partial + sum * K + c;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const int row = from + share() + i * SHARES;
            v[i]          = row < a.rows ? __ldcg(reinterpret_cast<const float4 *>(at + (int64_t)row * 2 * K))
                                         : make_float4(0, 0, 0, 0);
        }
    }
    /* first: the first of the CH channels. With EARLY, the loads of the rows start before those of tiles. Otherwise
     * they would need the registers that copy the tiles. */
    __device__ __forceinline__ void begin(const last_grad &a, int first, bool stores) {
        if ((int)threadIdx.x < CH) bn.load(finish_of(a, stores), first + (int)threadIdx.x, K);
        if (EARLY && (int)threadIdx.x < THREADS) load(a, first, 0);
    }
    static __device__ __forceinline__ struct ck_bn_grad_finalize finish_of(const last_grad &a, bool stores) {
        struct ck_bn_grad_finalize f = a.finish;
        if (!stores) f.dgamma = f.dbeta = NULL;
        return f;
    }
    /* Writes the coefficients [3][CH] to `room`, ROOM bytes of shared memory, and returns them. stores: this block
     * stores the results, with CH = K. The WARPS warps call; all threads of the block synchronise twice. */
    template <int BLOCK = WARPS *CK_WARP>
    __device__ __forceinline__ const float *end(const last_grad &a, int first, float *room, bool stores) {
        float *parts = room + COEFFS, s[4] = {};
        if ((int)threadIdx.x < THREADS) {
            if (!EARLY) load(a, first, 0);
            add_to(s);
            for (int b = SHARES * FLIGHT; b < a.rows; b += SHARES * FLIGHT) load(a, first, b), add_to(s);
        }
        if constexpr (SHUFFLED) {
#pragma unroll
            for (int offset = FOURS; offset < CK_WARP; offset *= 2)
#pragma unroll
                for (int i = 0; i < 4; i++) s[i] += __shfl_xor_sync(0xffffffffu, s[i], offset);
        }
        const int part = SHUFFLED ? (int)threadIdx.x / CK_WARP : share();
        if ((int)threadIdx.x < THREADS && (!SHUFFLED || (int)threadIdx.x % CK_WARP < FOURS))
            *reinterpret_cast<float4 *>(parts + part * 2 * CH + four() * 4) = make_float4(s[0], s[1], s[2], s[3]);
        barrier_sync<0, BLOCK>();
        if ((int)threadIdx.x < CH) finish_channel(a, room, parts, (int)threadIdx.x, stores);
        barrier_sync<0, BLOCK>();
        return room;
    }
    __device__ __forceinline__ void add_to(float (&s)[4]) const {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) s[0] += v[i].x, s[1] += v[i].y, s[2] += v[i].z, s[3] += v[i].w;
    }
    __device__ __forceinline__ void finish_channel(const last_grad &a, float *room, const float *parts, int c,
                                                   bool stores) const {
        double sum = 0, product = 0;
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            sum += (double)parts[p * 2 * CH + c], product += (double)parts[p * 2 * CH + CH + c];
        struct ck_bn_grad_finalize f = finish_of(a, stores);
        f.coeffs                     = room;
        bn.finish(f, a.inverse, c, CH, (float)sum, (float)product);
        if (!stores) return;
        a.grad_sums[c] = (float)sum, a.grad_sums[CH + c] = (float)product;
#pragma unroll
        for (int i = 0; i < 3; i++) a.finish.coeffs[i * CH + c] = room[i * CH + c];
    }
};

/* Adds the parts of dw. A warp adds some vectors of four numbers at a time; its lanes divide the parts, so that the
 * loads of 144 parts are in flight at once. The order depends on the number of parts only. */
enum { LAST_FLIGHT = 9 };
__device__ __forceinline__ int last_columns(int each) {
    return each > 64 ? 2 : each > 32 ? 4 : 8;
}
__device__ __forceinline__ float4 last_column(const float4 *from, int each, int fours, int columns) {
    const int shares = CK_WARP / columns;
    float4    sum    = make_float4(0, 0, 0, 0);
    for (int b = (int)threadIdx.x % CK_WARP / columns; b < each; b += LAST_FLIGHT * shares) {
        float4 v[LAST_FLIGHT];
#pragma unroll
        for (int i = 0; i < LAST_FLIGHT; i++)
            v[i] = b + i * shares < each ? __ldcg(from + (int64_t)(b + i * shares) * fours) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < LAST_FLIGHT; i++) add4(sum, v[i]);
    }
    for (int offset = columns; offset < CK_WARP; offset *= 2) {
        sum.x += __shfl_xor_sync(0xffffffffu, sum.x, offset), sum.y += __shfl_xor_sync(0xffffffffu, sum.y, offset);
        sum.z += __shfl_xor_sync(0xffffffffu, sum.z, offset), sum.w += __shfl_xor_sync(0xffffffffu, sum.w, offset);
    }
    return sum;
}
/* As dw_place::store, for 3x3 filters whose channels are known when the kernel runs. */
__device__ __forceinline__ void last_store(const last_grad &a, int part, int four, float4 v) {
    constexpr int FOURS = 9 * 2 * CK_WARP;
    const int     KB = min(a.K, 32), CB = min(a.C, 32), across = CB / PIECE, parts_in = a.C / CB;
    const int     piece = four / FOURS;
    const dw_four at(four % FOURS);
    const int     k = part / parts_in * KB + piece / across * PIECE + at.k,
              c     = part % parts_in * CB + piece % across * PIECE + at.c;
    float *to       = a.dw + (k * 9 + at.tap) * a.C + c;
    add2(to, v.x, v.y, a.accumulate);
    add2(to + 8 * 9 * a.C, v.z, v.w, a.accumulate);
}
/* Warp `warp` of each of the `blocks` blocks that share the work. */
__device__ __forceinline__ void last_filter(const last_grad &a, int warp, int blocks) {
    const int fours = min(a.K, 32) * min(a.C, 32) * 9 / 4, all = a.K * a.C * 9 / 4, columns = last_columns(a.each);
    const int lane = (int)threadIdx.x % CK_WARP;
    for (int task = warp * blocks + (int)blockIdx.x; task * columns < all; task += WARPS * blocks) {
        const int     column = task * columns + lane % columns, part = column / fours, four = column % fours;
        const float4 *from = reinterpret_cast<const float4 *>(a.dw_partial) + (int64_t)part * a.each * fours + four;
        const float4  sum  = last_column(from, a.each, fours, columns);
        if (lane < columns) last_store(a, part, four, sum);
    }
}

} // namespace
} // namespace cifar

#endif
