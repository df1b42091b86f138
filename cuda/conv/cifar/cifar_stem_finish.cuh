/* cuda/conv/cifar/cifar_stem_finish.cuh: the filter gradient of the stem can finish the BN behind it: it adds the rows of
 * gradient sums that the blocks of the launch before it stored, instead of a small launch between them. Each block adds
 * the rows for itself, because it needs the coefficients; one block also stores the results. */
#ifndef CK_CIFAR_STEM_FINISH_CUH
#define CK_CIFAR_STEM_FINISH_CUH

#include "cuda/conv/cifar/cifar_grad_dw.cuh"

namespace cifar {
namespace {

struct stem_finish {
    const float               *partial; /* [rows][2][STEM_K] */
    int                        rows;
    struct ck_bn_grad_finalize finish;
    double                     inverse; /* 1/M */
};
struct stem_finish_args : grad_args {
    static constexpr bool FINISH = true;
    stem_finish           before;
};

/* The sums of K channels. A thread adds the rows of four neighbouring numbers; the order depends on K and WARPS only. */
template <int K, int WARPS> struct stem_sums {
    enum { FOURS = K / 2, SHARES = WARPS * CK_WARP / FOURS, MOST = 144 /* rows in flight */ };
    enum { FLIGHT = (MOST + SHARES - 1) / SHARES, COEFFS = 3 * K, ROOM = (3 * K + WARPS * 2 * K) * 4 };
    static_assert((int)FOURS < (int)CK_WARP, "a warp has several rows");
    float4                                v[FLIGHT];
    ck_bn_grad_channel                    bn;
    static __device__ __forceinline__ int four() { return (int)threadIdx.x % FOURS; }
    __device__ __forceinline__ void       load(const stem_finish &a, int from) {
              const float *at = a.partial + four() * 4;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const int row = from + (int)threadIdx.x / FOURS + i * SHARES;
            v[i]          = row < a.rows ? __ldcg(reinterpret_cast<const float4 *>(at + (int64_t)row * 2 * K))
                                         : make_float4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ void begin(const stem_finish &a, bool stores) {
        if ((int)threadIdx.x < K) bn.load(finish_of(a, stores), (int)threadIdx.x, K);
        load(a, 0);
    }
    static __device__ __forceinline__ struct ck_bn_grad_finalize finish_of(const stem_finish &a, bool stores) {
        struct ck_bn_grad_finalize f = a.finish;
        if (!stores) f.dgamma = f.dbeta = NULL;
        return f;
    }
    /* Writes the coefficients [3][K] to `room`, ROOM bytes of shared memory, and returns them. stores: this block stores
     * the results. All threads of the block synchronise twice. */
    __device__ __forceinline__ const float *end(const stem_finish &a, float *room, bool stores) {
        float *parts = room + COEFFS, s[4] = {};
        add_to(s);
        for (int b = SHARES * FLIGHT; b < a.rows; b += SHARES * FLIGHT) load(a, b), add_to(s);
#pragma unroll
        for (int offset = FOURS; offset < CK_WARP; offset *= 2)
#pragma unroll
            for (int i = 0; i < 4; i++) s[i] += __shfl_xor_sync(0xffffffffu, s[i], offset);
        if ((int)threadIdx.x % CK_WARP < FOURS)
            *reinterpret_cast<float4 *>(parts + (int)threadIdx.x / CK_WARP * 2 * K + four() * 4) =
                make_float4(s[0], s[1], s[2], s[3]);
        __syncthreads();
        if ((int)threadIdx.x < K) finish_channel(a, room, parts, (int)threadIdx.x, stores);
        __syncthreads();
        return room;
    }
    __device__ __forceinline__ void add_to(float (&s)[4]) const {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) s[0] += v[i].x, s[1] += v[i].y, s[2] += v[i].z, s[3] += v[i].w;
    }
    __device__ __forceinline__ void finish_channel(const stem_finish &a, float *room, const float *parts, int c,
                                                   bool stores) const {
        double sum = 0, product = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            sum += (double)parts[w * 2 * K + c], product += (double)parts[w * 2 * K + K + c];
        struct ck_bn_grad_finalize f = finish_of(a, stores);
        f.coeffs                     = room;
        bn.finish(f, a.inverse, c, K, (float)sum, (float)product);
        if (!stores) return;
#pragma unroll
        for (int i = 0; i < 3; i++) a.finish.coeffs[i * K + c] = room[i * K + c];
    }
};

} // namespace
} // namespace cifar

#endif
