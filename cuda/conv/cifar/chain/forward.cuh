/* cuda/conv/cifar/chain/forward.cuh: parts of the forward pass of a CIFAR ResNet in one launch
 * (cuda/conv/cifar/chain/forward.cu): shared
 * memory, arguments, what follows the products of a convolution. */
#ifndef CK_CHAIN_FORWARD_CUH
#define CK_CHAIN_FORWARD_CUH

#include "cuda/conv/cifar/chain/exchange.cuh"
#include "cuda/conv/cifar/chain/forward.h"
#include "cuda/conv/cifar/cifar_forward.cuh"

namespace cifar {
namespace {

#ifndef CHAIN_ALL /* largest number of channels whose sums all blocks read from all blocks; otherwise owners */
#define CHAIN_ALL 32
#endif
#ifndef CHAIN_REGS
#define CHAIN_REGS 1
#endif
#ifndef CHAIN_EARLY_Y
#define CHAIN_EARLY_Y 0
#endif
#ifndef CHAIN_UNROLL
#define CHAIN_UNROLL 1
#endif
#ifndef CHAIN_STORE
#define CHAIN_STORE 1
#endif
#ifndef CHAIN_FEW_SHUFFLES
#define CHAIN_FEW_SHUFFLES 1
#endif
#ifdef CHAIN_MARKS
__device__ long long chain_marks[EXCHANGE_BLOCKS][128][8];
#define MARK(i)                                                                                                        \
    do {                                                                                                               \
        if (threadIdx.x == CHAIN_MARKS) chain_marks[blockIdx.x][k.index][i] = clock64();                               \
    } while (0)
#else
#define MARK(i) (void)0
#endif

enum { CHAIN_WARPS = 16, CHAIN_THREADS = CHAIN_WARPS * CK_WARP };
enum chain_kind {
    CHAIN_STEM,
    CHAIN_16,
    CHAIN_DOWN_16,
    CHAIN_SHORT_16,
    CHAIN_32,
    CHAIN_DOWN_32,
    CHAIN_SHORT_32,
    CHAIN_64
};

/* A whole image with a margin of one pixel: the input of the 3x3 convolutions with CH channels. */
template <int CH> using chain_tile = input_tile<shape<CH, CH, 512 / CH, 1, 3>, 1, 512 / CH, CH>;

/* Shared memory. Of each number of channels there are two tiles: the block's input, in whose place the block's output
 * is written, and the second convolution's input. The tiles of 32 channels have the place of the second tile of 16
 * channels, because the first one is still read while they are written; those of 64 channels the place of the first
 * one. Filters are copied while the convolution before them runs, so two lie side by side: in the first two places, and
 * with 64 channels in the last two. */
enum {
    CHAIN_A16   = 0,
    CHAIN_B16   = CHAIN_A16 + chain_tile<16>::BYTES,
    CHAIN_B32   = CHAIN_B16,
    CHAIN_A32   = CHAIN_B32 + chain_tile<32>::BYTES,
    CHAIN_W_S16 = CHAIN_A32 + chain_tile<32>::BYTES, /* filter of the shortcut of 16 channels */
    CHAIN_B64   = CHAIN_A16,
    CHAIN_A64   = CHAIN_B64 + chain_tile<64>::BYTES,
    CHAIN_W_S32 = CHAIN_A64 + chain_tile<64>::BYTES,
    CHAIN_W2    = CHAIN_W_S32 + 64 * (32 * 2 + 16),
    CHAIN_W0    = CHAIN_B16 + chain_tile<16>::BYTES,
    CHAIN_W1    = CHAIN_W0 + 64 * (9 * 32 * 2 + 16),
    CHAIN_SUMS  = CHAIN_W1 + 64 * (9 * 64 * 2 + 16),     /* [CHAIN_WARPS][2][8*NT] */
    CHAIN_TABLE = CHAIN_SUMS + CHAIN_WARPS * 2 * 32 * 4, /* scale and bias of the convolution and of the shortcut */
    CHAIN_OWN   = CHAIN_TABLE + 2 * 2 * 64 * 4,          /* scale and bias that the block's owners have computed */
    CHAIN_OWN2  = CHAIN_OWN,                             /* results of the BN: [6][64] */
    CHAIN_STEPS = CHAIN_OWN + 6 * 64 * 4,                /* four steps: the present one and those before and after it */
    CHAIN_BYTES = CHAIN_STEPS + 4 * 256
};
static_assert(CHAIN_W_S16 + 32 * (16 * 2 + 16) <= CHAIN_W0 && CHAIN_W2 + 64 * (9 * 64 * 2 + 16) <= CHAIN_W0, "places");
/* The stem's tiles and filter have the place of the second tile of 16 channels. */
enum { STEM_PITCH = 48 * 2 + 16, CHAIN_STEM_AT = CHAIN_B16, CHAIN_STEM_W = CHAIN_STEM_AT + STEM_TILES * STEM_BYTES };
static_assert(CHAIN_STEM_W + STEM_K * STEM_PITCH <= CHAIN_W0, "the stem fits");

struct chain_step {
    const void           *w;
    void                 *y, *z;
    uint8_t              *mask;
    float                *sums;
    struct ck_bn_finalize finish;
    struct ck_bn_factors  factors;
    int                   w_at; /* place of the filter */
    short                 kind, skip, channels;
    bool                  pad;
};
static_assert(sizeof(chain_step) <= 256 && sizeof(chain_step) % 4 == 0, "a step's place");
template <int MOST> struct chain_args {
    const void *x;
    exchange   *memory;
    int         count;
    chain_step  step[MOST];
};

/* What a thread block knows while it runs a step. Steps are read from shared memory: the arguments of the launch are
 * slow to index. */
struct chain_block {
    char             *memory;
    uint32_t          base;
    exchange         *mail;
    const chain_step *all; /* arguments of the launch */
    int               index, count;
    unsigned          epoch;

    __device__ __forceinline__ const chain_step &step(int ahead) const {
        return *reinterpret_cast<const chain_step *>(memory + CHAIN_STEPS + (index + ahead) % 4 * 256);
    }
    __device__ __forceinline__ const chain_step *next() const { return index + 1 < count ? &step(1) : NULL; }
    /* Copies step `ahead` into shared memory; two warps do it. Its place was that of a step before the last barrier. */
    __device__ __forceinline__ void fetch(int ahead) const {
        const int word = (int)threadIdx.x - (CHAIN_THREADS - 64);
        if (word >= 0 && word < (int)sizeof(chain_step) / 4 && index + ahead < count)
            reinterpret_cast<uint32_t *>(memory + CHAIN_STEPS + (index + ahead) % 4 * 256)[word] =
                reinterpret_cast<const uint32_t *>(all + index + ahead)[word];
    }
};

/* 2*NT channels of a pixel of a tile, which a thread reads and writes. */
template <int NT> __device__ __forceinline__ void tile_put(uint32_t at, const piece<NT> &p) {
    if constexpr (NT == 4)
        ck_put16(at, make_uint4(p.word[0], p.word[1], p.word[2], p.word[3]));
    else
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(p.word[0]), "r"(p.word[1]) : "memory");
}
/* ---- sums ---- */

__device__ __forceinline__ float *chain_rows(const chain_block &k) {
    return reinterpret_cast<float *>(k.memory + CHAIN_SUMS);
}
/* Half of a reduction over lanes that are `offset` apart: a lane keeps half of its N values and gets the other lane's
 * half. */
template <int N> __device__ __forceinline__ void halve(float (&v)[N], int offset) {
    const bool upper = ((int)threadIdx.x & offset) != 0;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float keep = upper ? v[i + N / 2] : v[i], give = upper ? v[i] : v[i + N / 2];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
    }
}
/* Stores the warp's sums of its 8*NT channels as row `row`, [2][8*NT]; the thread's sums become 0. */
template <int NT>
__device__ __forceinline__ void chain_sums(const chain_block &k, float (&first)[2 * NT], float (&second)[2 * NT],
                                           int                row) {
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
#if CHAIN_FEW_SHUFFLES
    float v[4 * NT], v2[2 * NT], v3[NT];
    (void)warp;
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) v[i] = first[i], v[2 * NT + i] = second[i], first[i] = second[i] = 0;
    halve(v, 4);
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) v2[i] = v[i];
    halve(v2, 8);
#pragma unroll
    for (int i = 0; i < NT; i++) v3[i] = v2[i];
    halve(v3, 16);
    float    *to = chain_rows(k) + row * 2 * 8 * NT + (lane >> 2 & 1) * 8 * NT + lane % 4 * 2 * NT +
                (lane >> 3 & 1) * NT + (lane >> 4) * (NT / 2);
#pragma unroll
    for (int i = 0; i < NT / 2; i++) to[i] = v3[i];
#else
    float    *rows = chain_rows(k) + (row - warp) * 2 * 8 * NT; /* sums_flush adds to row `warp` */
    for (int i = lane; i < 2 * 8 * NT; i += CK_WARP) rows[warp * 2 * 8 * NT + i] = 0;
    __syncwarp();
    sums_flush<NT, 8 * NT>(first, second, rows, 0, true);
#endif
}

/* Sends the block's sums of K channels as row `row`, added as the blocks of cifar_conv.cu do it: over its eight warps,
 * whose sums have two halves here, or over eight warps from `warp` on. NW: warps along the channels. */
template <int K, int NT, bool HALVES>
__device__ __forceinline__ void chain_send_owner(const chain_block &k, int row, int warp) {
    constexpr int CH = 8 * NT, NW = K / CH;
    const int     c = (int)threadIdx.x;
    if (c >= K) return;
    const float *rows = chain_rows(k) + (warp + c / CH) * 2 * CH + c % CH;
    float        a = 0, b = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w += NW) {
        float first = rows[w * 2 * CH], second = rows[w * 2 * CH + CH];
        if (HALVES) first += rows[(WARPS + w) * 2 * CH], second += rows[(WARPS + w) * 2 * CH + CH];
        a += first, b += second;
    }
    packet_store(&k.mail->packet[c][row], a, b, k.epoch);
}
/* The same, to all blocks: packets of three sums; sum 2*c + i is sum i of channel c. Ten packets a warp. */
template <int K, int NT, bool HALVES>
__device__ __forceinline__ void chain_send_all(const chain_block &k, int row, int warp) {
    constexpr int CH = 8 * NT, NW = K / CH, PACKETS = (2 * K + 2) / 3;
    const int     lane = (int)threadIdx.x % CK_WARP, sum = (int)threadIdx.x / CK_WARP * 30 + lane, c = sum / 2;
    float         a = 0;
    if ((int)threadIdx.x / CK_WARP * 30 >= 2 * K) return;
    if (lane < 30 && sum < 2 * K) {
        const float *rows = chain_rows(k) + (warp + c / CH) * 2 * CH + sum % 2 * CH + c % CH;
#pragma unroll
        for (int w = 0; w < WARPS; w += NW)
            a += HALVES ? rows[w * 2 * CH] + rows[(WARPS + w) * 2 * CH] : rows[w * 2 * CH];
    }
    const float b = __shfl_down_sync(0xffffffffu, a, 1), d = __shfl_down_sync(0xffffffffu, a, 2);
    if (lane < 30 && sum % 3 == 0 && sum < 2 * K)
        packet_store3(&k.mail->row[k.epoch % 2][row * PACKETS + sum / 3], a, b, d, k.epoch);
}
template <int K, int NT, bool HALVES>
__device__ __forceinline__ void chain_send(const chain_block &k, int row, int warp) {
    if constexpr (K <= CHAIN_ALL)
        chain_send_all<K, NT, HALVES>(k, row, warp);
    else
        chain_send_owner<K, NT, HALVES>(k, row, warp);
}

/* The parameters of the next BN's channel, into the L2 cache. */
__device__ __forceinline__ void chain_prefetch(const chain_block &k) {
    const chain_step *next = k.next();
    const int         c    = (int)blockIdx.x + (int)threadIdx.x / CK_WARP * (int)gridDim.x;
    if (!next || c >= (int)next->channels) return;
    const float *const from[4] = {next->finish.gamma, next->finish.beta, next->finish.old_mean, next->finish.old_var};
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("prefetch.global.L2 [%0];" ::"l"(from[i] + c));
}

/* Owners: warp w of block b has channel b + w*blocks. The parameters of its BN are read before the products: they come
 * from memory, while everything else of the exchange is in the L2 cache. */
template <int K> struct chain_owner {
    int           c;
    ck_bn_channel bn;
    __device__    __forceinline__ explicit chain_owner(const chain_step &s)
        : c((int)blockIdx.x + (int)threadIdx.x / CK_WARP * (int)gridDim.x) {
        if (c < K) bn.load(s.finish, c);
    }
    /* Adds the sums of all blocks, finishes the BN and sends the results. */
    template <int TILES> __device__ __forceinline__ void run(const chain_block &k, const chain_step &s) const {
        float sum, squares;
        k.fetch(2);
        if (c >= K) return;
        exchange_add<EXCHANGE_BLOCKS * TILES>(k.mail, c, (int)gridDim.x * TILES, k.epoch, sum, squares);
        if (threadIdx.x % CK_WARP) return;
        float                *own    = reinterpret_cast<float *>(k.memory + CHAIN_OWN);
        struct ck_bn_finalize finish = s.finish;
        finish.scale_bias            = own; /* read back at once; global memory would take longer */
        bn.finish(finish, s.factors, c, K, sum, squares);
        packet_store(&k.mail->result[c], own[c], own[K + c], k.epoch);
        s.finish.scale_bias[c] = own[c], s.finish.scale_bias[K + c] = own[K + c];
        s.sums[c] = sum, s.sums[K + c] = squares;
        chain_prefetch(k);
    }
};

/* Scale and bias of all channels, into table `which`. All threads synchronise. */
template <int K> __device__ __forceinline__ void chain_results(const chain_block &k, int which) {
    float    *table = reinterpret_cast<float *>(k.memory + CHAIN_TABLE) + which * 2 * 64;
    const int c     = (int)threadIdx.x - (CHAIN_THREADS - 128);
    if (c >= 0 && c < K) {
        const float2 v = exchange_result(k.mail, c, k.epoch);
        table[c] = v.x, table[64 + c] = v.y;
    }
    __syncthreads();
}

/* Every block adds the sums of all blocks and finishes the BN; block c stores the results of channel c. */
template <int K> struct chain_all {
    int           c;
    ck_bn_channel bn;
    __device__    __forceinline__ explicit chain_all(const chain_step &s) : c((int)threadIdx.x / SPREAD) {
        if ((int)threadIdx.x % SPREAD == 0 && c < K) bn.load(s.finish, c);
    }
    enum { PACKETS = (2 * K + 2) / 3, GROUPS = CHAIN_THREADS / PACKETS, PITCH = PACKETS * 3 };
    enum { SHARES = CHAIN_THREADS / (2 * K), SPREAD = 2 * SHARES }; /* threads that add a sum; threads of a channel */
    enum { SCRATCH = K == 64 ? (int)CHAIN_W0 : (int)CHAIN_W1 + 40 * 1024 };
    template <int TILES> __device__ __forceinline__ void run(const chain_block &k, const chain_step &s, int which) const {
        constexpr int EACH = (EXCHANGE_BLOCKS * TILES + GROUPS - 1) / GROUPS;
        const int     p = (int)threadIdx.x % PACKETS, g = (int)threadIdx.x / PACKETS, rows = (int)gridDim.x * TILES;
        double       *part = reinterpret_cast<double *>(k.memory + SCRATCH);
        if (g < GROUPS) {
            const uint4 *from = k.mail->row[k.epoch % 2] + p;
            uint4        v[EACH];
            double       t[3] = {};
#pragma unroll
            for (int i = 0; i < EACH; i++)
                v[i] = g + i * GROUPS < rows ? packet_load(from + (g + i * GROUPS) * PACKETS)
                                             : make_uint4(0, 0, 0, k.epoch);
            for (bool wait = true; wait;) { /* all packets that are missing, in one round trip */
                wait = false;
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (v[i].w != k.epoch) v[i] = packet_load(from + (g + i * GROUPS) * PACKETS);
#pragma unroll
                for (int i = 0; i < EACH; i++) wait |= v[i].w != k.epoch;
#ifdef CHAIN_NOWAIT
                break;
#endif
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                t[0] += (double)__uint_as_float(v[i].x), t[1] += (double)__uint_as_float(v[i].y),
                    t[2] += (double)__uint_as_float(v[i].z);
            }
#pragma unroll
            for (int i = 0; i < 3; i++) part[g * PITCH + 3 * p + i] = t[i];
        }
        MARK(6);
        __syncthreads();
        /* SHARES neighbours add sum 0 of a channel, the next SHARES its sum 1 */
        const int sum = (int)threadIdx.x / SHARES, share = (int)threadIdx.x % SHARES;
        double    t = 0;
        for (int i = share; i < GROUPS; i += SHARES) t += part[i * PITCH + sum];
#pragma unroll
        for (int offset = 1; offset < SHARES; offset *= 2) t += __shfl_xor_sync(0xffffffffu, t, offset);
        const float first = (float)t, second = __shfl_down_sync(0xffffffffu, first, SHARES);
        if ((int)threadIdx.x % SPREAD == 0) {
            float                *table = reinterpret_cast<float *>(k.memory + CHAIN_TABLE) + which * 2 * 64;
            float                *own   = reinterpret_cast<float *>(k.memory + CHAIN_OWN2);
            struct ck_bn_finalize f     = s.finish;
            f.scale_bias = own, f.mean_rstd = own + 128, f.new_mean = own + 256, f.new_var = own + 320;
            bn.finish(f, s.factors, c, K, first, second);
            table[c] = own[c], table[64 + c] = own[K + c];
            if (c % (int)gridDim.x == (int)blockIdx.x) {
                s.finish.scale_bias[c] = own[c], s.finish.scale_bias[K + c] = own[K + c];
                s.finish.mean_rstd[c] = own[128 + c], s.finish.mean_rstd[K + c] = own[128 + K + c];
                s.finish.new_mean[c] = own[256 + c], s.finish.new_var[c] = own[320 + c];
                s.sums[c] = first, s.sums[K + c] = second;
            }
        }
        __syncthreads();
    }
};
/* The exchange of K channels, of either kind. */
template <int K> struct chain_exchange {
    static constexpr bool ALL = K <= CHAIN_ALL;
    __device__ __forceinline__ explicit chain_exchange(const chain_step &s) : all(s) {}
    chain_all<K> all;
    template <int TILES> __device__ __forceinline__ void run(const chain_block &k, const chain_step &s, int which) const {
        k.fetch(2);
        all.template run<TILES>(k, s, which);
    }
};
template <int K> struct chain_exchange_owner {
    chain_owner<K> owner;
    __device__     __forceinline__ explicit chain_exchange_owner(const chain_step &s) : owner(s) {}
    template <int TILES> __device__ __forceinline__ void run(const chain_block &k, const chain_step &s, int which) const {
        owner.template run<TILES>(k, s);
        chain_results<K>(k, which);
    }
};
template <bool ALL, int K> struct exchange_kind { using type = chain_exchange<K>; };
template <int K> struct exchange_kind<false, K> { using type = chain_exchange_owner<K>; };
template <int K> using chain_exchange_of = typename exchange_kind<(K <= CHAIN_ALL), K>::type;

/* ---- what follows ---- */

/* Writes the pieces of y, not yet normalised, to a tile. place(i, row, col): pixel of piece i; n: the thread's first
 * channel. */
template <int K, int NT, int COUNT, typename Place>
__device__ __forceinline__ void chain_put(uint32_t to, const piece<NT> (&out)[COUNT], int n, Place place) {
    using X = chain_tile<K>;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int row, col;
        place(i, row, col);
        tile_put<NT>(to + (uint32_t)(((row + 1) * X::COLS + col + 1) * X::PITCH + n * 2), out[i]);
    }
}

template <int NT> __device__ __forceinline__ piece<NT> tile_get(uint32_t at) {
    piece<NT> p;
    if constexpr (NT == 4) {
        const uint4 v = ck_get16(at);
        p.word[0] = v.x, p.word[1] = v.y, p.word[2] = v.z, p.word[3] = v.w;
    } else
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(p.word[0]), "=r"(p.word[1]) : "r"(at) : "memory");
    return p;
}
/* Stores the pieces to y [P][P][K] of the block's image. */
template <int K, int P, int NT, typename T, int COUNT, typename Place>
__device__ __forceinline__ void chain_store(const void *y, const piece<NT> (&out)[COUNT], int n, Place place) {
    T *to = (T *)y + (int64_t)blockIdx.x * P * P * K + n;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int row, col;
        place(i, row, col);
        if (CHAIN_STORE || out[i].word[0] == 0x12345678u) piece_store<NT>(to + (row * P + col) * K, out[i]);
    }
}
/* act(y) of the thread's pieces, with the addition where a block ends, to the tile at `to` and to z. */
template <int K, int P, int NT, typename T, int COUNT, typename Place>
__device__ __forceinline__ void chain_finish(const chain_block &k, const chain_step &s, piece<NT> (&out)[COUNT],
                                             uint32_t to, int n, Place place) {
    using X               = chain_tile<K>;
    const bool   shortcut = s.skip == CK_CHAIN_SHORTCUT, identity = s.skip == CK_CHAIN_IDENTITY;
    const float *table = reinterpret_cast<const float *>(k.memory + CHAIN_TABLE);
    float        scale[2 * NT], bias[2 * NT], more[2 * NT] = {};
    uint8_t     *mask = s.mask ? s.mask + ((int64_t)blockIdx.x * P * P * K + n) / 8 : NULL;
    load_floats(scale, table + n), load_floats(bias, table + 64 + n);
    if (shortcut) {
        float add[2 * NT];
        load_floats(more, table + 2 * 64 + n), load_floats(add, table + 3 * 64 + n);
#pragma unroll
        for (int j = 0; j < 2 * NT; j++) bias[j] += add[j];
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int row, col;
        place(i, row, col);
        const uint32_t at = to + (uint32_t)(((row + 1) * X::COLS + col + 1) * X::PITCH + n * 2);
        piece<NT>      more_of;
        if (shortcut || identity) more_of = tile_get<NT>(at);
#pragma unroll
        for (int j = 0; j < NT; j++) {
            float2 x = ck_unpack_word<T>(out[i].word[j]), a = make_float2(0, 0);
            if (shortcut || identity) a = ck_unpack_word<T>(more_of.word[j]);
            x.x = fmaf(x.x, scale[2 * j], shortcut ? fmaf(a.x, more[2 * j], bias[2 * j]) : bias[2 * j]);
            x.y = fmaf(x.y, scale[2 * j + 1], shortcut ? fmaf(a.y, more[2 * j + 1], bias[2 * j + 1]) : bias[2 * j + 1]);
            if (identity) x.x += a.x, x.y += a.y;
            out[i].word[j] = ck_pack_word<T>(ck_relu(x.x), ck_relu(x.y));
        }
        tile_put<NT>(at, out[i]);
        if (mask) {
            unsigned bits = 0;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                const float2 x = ck_unpack_word<T>(out[i].word[j]); /* a value too small for the type is 0 */
                bits |= (x.x > 0.0f ? 1u << (2 * j) : 0u) | (x.y > 0.0f ? 2u << (2 * j) : 0u);
            }
            if (NT == 2) bits |= __shfl_down_sync(0xffffffffu, bits, 1) << 4;
            if (NT == 4 || n % 8 == 0) mask[(row * P + col) * K / 8] = (uint8_t)bits;
        }
    }
    if (s.z) chain_store<K, P, NT, T>(s.z, out, n, place);
}

/* Scale and bias of a thread's eight channels, and those of the shortcut. */
struct chain_factors {
    float                      scale[8], bias[8], more[8];
    __device__ __forceinline__ chain_factors(const float *table, int first, bool shortcut) {
        load_floats(scale, table + first), load_floats(bias, table + 64 + first);
        if (!shortcut) return;
        float add[8];
        load_floats(more, table + 2 * 64 + first), load_floats(add, table + 3 * 64 + first);
#pragma unroll
        for (int j = 0; j < 8; j++) bias[j] += add[j];
    }
};

/* Stores y from the tile at `raw`. With ACT, also writes act(y), with the addition, to the tile at `to` and, where a
 * block ends, to z. The loop is short: a step of straight code would exceed the instruction cache. */
template <int K, int P, typename T, bool ACT>
__device__ __forceinline__ void chain_act(const chain_block &k, const chain_step &s, uint32_t raw, uint32_t to) {
    using X              = chain_tile<K>;
    constexpr int CHUNKS = K / 8, ROWS = CHAIN_THREADS / CHUNKS / P, ROUNDS = P / ROWS;
    static_assert(ROWS * P * CHUNKS == CHAIN_THREADS && ROUNDS * ROWS == P,
                  "a thread keeps its column and its channels");
    const int           chunk = (int)threadIdx.x % CHUNKS, col = (int)threadIdx.x / CHUNKS % P;
    const int           row      = (int)threadIdx.x / CHUNKS / P;
    const bool          shortcut = s.skip == CK_CHAIN_SHORTCUT, identity = s.skip == CK_CHAIN_IDENTITY;
    const chain_factors f(reinterpret_cast<const float *>(k.memory + CHAIN_TABLE), chunk * 8, shortcut);
    const uint32_t      at    = (uint32_t)(((row + 1) * X::COLS + col + 1) * X::PITCH + chunk * 16);
    const int64_t       first = (((int64_t)blockIdx.x * P + row) * P + col) * K + chunk * 8;
    T                  *y = (T *)s.y + first, *z = s.z ? (T *)s.z + first : NULL;
    uint8_t            *mask = s.mask ? s.mask + first / 8 : NULL;
    raw += at, to += at;
#pragma unroll 2
    for (int i = 0; i < ROUNDS; i++) {
        uint4 v = ck_get16(raw);
        ck_store_whole(y, v);
        if (ACT) {
            float x[8], a[8];
            ck_unpack<T>(v, x);
            if (shortcut || identity) ck_unpack<T>(ck_get16(to), a);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                x[j] = fmaf(x[j], f.scale[j], shortcut ? fmaf(a[j], f.more[j], f.bias[j]) : f.bias[j]);
                if (identity) x[j] += a[j];
                x[j] = ck_relu(x[j]);
            }
            v = ck_pack<T>(x);
            ck_put16(to, v);
            if (z) ck_store_whole(z, v);
            if (mask) {
                unsigned bits = 0;
                ck_unpack<T>(v, x); /* a value too small for the type is 0 */
#pragma unroll
                for (int j = 0; j < 8; j++) bits |= x[j] > 0.0f ? 1u << j : 0u;
                *mask = (uint8_t)bits;
            }
        }
        raw += ROWS * X::COLS * X::PITCH, to += ROWS * X::COLS * X::PITCH;
        y += ROWS * P * K;
        if (z) z += ROWS * P * K;
        if (mask) mask += ROWS * P * K / 8;
    }
}

} // namespace
} // namespace cifar

#endif
