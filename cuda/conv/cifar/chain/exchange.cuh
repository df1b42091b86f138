/* cuda/conv/cifar/chain/exchange.cuh: exchange of BN sums between the blocks of a cooperative launch.
 *
 * There is no barrier. A block sends a packet of 16 bytes for each channel: its two sums and the epoch, the number of
 * the exchange. One warp owns a channel: it polls the packets of all blocks, adds them and sends a packet with the
 * results, which all blocks poll. A packet is written and read in one access, so whoever sees the epoch sees the
 * values,
 * and no fence is needed. A packet is not overwritten too early: a block sends packets of the next epoch only after it
 * has all results, whose owners have read all packets of this epoch; and an owner sends results of the next epoch only
 * after it has packets of all blocks, which have read all results of this one. */
#ifndef CK_CHAIN_EXCHANGE_CUH
#define CK_CHAIN_EXCHANGE_CUH

#include "cuda/conv/cifar/cifar_sums.cuh"

namespace cifar {
namespace {

enum { EXCHANGE_CHANNELS = 64, EXCHANGE_BLOCKS = 148, EXCHANGE_ROWS = 2 * EXCHANGE_BLOCKS };
enum { EXCHANGE_PACKETS = (2 * EXCHANGE_CHANNELS + 2) / 3 };

struct exchange {
    uint4    packet[EXCHANGE_CHANNELS][EXCHANGE_ROWS];
    uint4    result[EXCHANGE_CHANNELS];
    uint4    row[2][EXCHANGE_ROWS * EXCHANGE_PACKETS];
    unsigned epoch; /* number of the last exchange of the launches before this one */
};

__device__ __forceinline__ void packet_store(uint4 *at, float a, float b, unsigned epoch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint64_t low = (uint64_t)__float_as_uint(a) | (uint64_t)__float_as_uint(b) << 32, high = epoch;
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(at), "l"(low),
                 "l"(high)
                 : "memory");
#else
    (void)at, (void)a, (void)b, (void)epoch;
#endif
}
__device__ __forceinline__ void packet_store3(uint4 *at, float a, float b, float c, unsigned epoch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint64_t low  = (uint64_t)__float_as_uint(a) | (uint64_t)__float_as_uint(b) << 32,
                   high = (uint64_t)__float_as_uint(c) | (uint64_t)epoch << 32;
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(at), "l"(low),
                 "l"(high)
                 : "memory");
#else
    (void)at, (void)a, (void)b, (void)c, (void)epoch;
#endif
}
__device__ __forceinline__ uint4 packet_load(const uint4 *at) {
    uint64_t low = 0, high = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b128 v; ld.relaxed.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(low), "=l"(high)
                 : "l"(at)
                 : "memory");
#else
    (void)at;
#endif
    return make_uint4((unsigned)low, (unsigned)(low >> 32), (unsigned)high, (unsigned)(high >> 32));
}

/* Adds the `count` rows of channel c, in one warp and in the order of sums_add, whose result it repeats bit by bit:
 * share s of 64 adds rows s, s + 64 and so on; eight neighbouring shares are added as a tree; the eight sums in
 * order. MOST: largest count. */
template <int MOST>
__device__ __forceinline__ void exchange_add(const exchange *x, int c, int count, unsigned epoch, float &first,
                                             float &second) {
    constexpr int EACH = (MOST + SUMS_SHARES - 1) / SUMS_SHARES;
    const int     lane = (int)threadIdx.x % CK_WARP;
    uint4         v[2][EACH];
    double        s[2][2] = {};
    for (bool wait = true; wait;) {
        wait = false;
#pragma unroll
        for (int i = 0; i < 2 * EACH; i++) {
            const int row   = i % 2 * CK_WARP + lane + i / 2 * SUMS_SHARES;
            v[i % 2][i / 2] = row < count ? packet_load(&x->packet[c][row]) : make_uint4(0, 0, epoch, 0);
        }
#pragma unroll
        for (int i = 0; i < 2 * EACH; i++) wait |= v[i % 2][i / 2].z != epoch;
    }
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            s[h][0] += (double)__uint_as_float(v[h][i].x), s[h][1] += (double)__uint_as_float(v[h][i].y);
#pragma unroll
        for (int offset = 1; offset < 8; offset *= 2)
#pragma unroll
            for (int k = 0; k < 2; k++) s[h][k] += __shfl_xor_sync(0xffffffffu, s[h][k], offset);
    }
    double total[2] = {0, 0};
#pragma unroll
    for (int w = 0; w < WARPS; w++)
#pragma unroll
        for (int k = 0; k < 2; k++) total[k] += __shfl_sync(0xffffffffu, s[w / 4][k], w % 4 * 8);
    first = (float)total[0], second = (float)total[1];
}

/* Waits for the two results of channel c. */
__device__ __forceinline__ float2 exchange_result(const exchange *x, int c, unsigned epoch) {
    uint4 v;
    do v = packet_load(&x->result[c]);
    while (v.z != epoch);
    return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

} // namespace
} // namespace cifar

#endif
