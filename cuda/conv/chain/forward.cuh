/* cuda/conv/chain/forward.cuh: parts of the forward pass of a CIFAR ResNet in one launch (cuda/conv/chain/forward.cu): shared
 * memory, arguments, what follows the products of a convolution. */
#ifndef CK_CHAIN_FORWARD_CUH
#define CK_CHAIN_FORWARD_CUH

#include "cuda/conv/chain/exchange.cuh"
#include "cuda/conv/chain/forward.h"
#include "cuda/conv/cifar/cifar_forward.cuh"

namespace cifar {
namespace {

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
    CHAIN_SUMS  = CHAIN_W1 + 64 * (9 * 64 * 2 + 16), /* [2 tiles][WARPS][2][K], of up to 32 or 64 channels */
    CHAIN_TABLE = CHAIN_SUMS + WARPS * 2 * 64 * 4,   /* scale and bias of the convolution and of the shortcut */
    CHAIN_OWN   = CHAIN_TABLE + 2 * 2 * 64 * 4,      /* scale and bias that the block's owners have computed */
    CHAIN_STEPS = CHAIN_OWN + 2 * 64 * 4,            /* four steps: the present one and those before and after it */
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
    short                 kind, skip;
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
        const int word = (int)threadIdx.x - 64;
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
__device__ __forceinline__ piece<2> tile_get(uint32_t at) {
    piece<2> p;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(p.word[0]), "=r"(p.word[1]) : "r"(at) : "memory");
    return p;
}

/* ---- sums ---- */

__device__ __forceinline__ float *chain_rows(const chain_block &k) {
    return reinterpret_cast<float *>(k.memory + CHAIN_SUMS);
}
/* A warp clears its own row of each tile. */
template <int K, int TILES> __device__ __forceinline__ void chain_clear_sums(const chain_block &k) {
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    for (int t = 0; t < TILES; t++)
        for (int i = lane; i < 2 * K; i += CK_WARP) chain_rows(k)[(t * WARPS + warp) * 2 * K + i] = 0;
    __syncwarp();
}

/* Owners: warp w of block b has channel b + w*blocks. Adds the sums of all blocks, finishes the BN and sends the
 * results. */
template <int K, int TILES> __device__ __forceinline__ void chain_own(const chain_block &k, const chain_step &s) {
    const int c = (int)blockIdx.x + (int)threadIdx.x / CK_WARP * (int)gridDim.x, lane = (int)threadIdx.x % CK_WARP;
    k.fetch(2);
    if (c >= K) return;
    ck_bn_channel bn;
    float         sum, squares;
    bn.load(s.finish, c); /* in flight while the packets arrive */
    exchange_add<EXCHANGE_BLOCKS * TILES>(k.mail, c, (int)gridDim.x * TILES, k.epoch, sum, squares);
    if (lane) return;
    float                *own    = reinterpret_cast<float *>(k.memory + CHAIN_OWN);
    struct ck_bn_finalize finish = s.finish;
    finish.scale_bias            = own; /* read back at once; global memory would take longer */
    bn.finish(finish, s.factors, c, K, sum, squares);
    packet_store(&k.mail->result[c], own[c], own[K + c], k.epoch);
    s.finish.scale_bias[c] = own[c], s.finish.scale_bias[K + c] = own[K + c];
    s.sums[c] = sum, s.sums[K + c] = squares;
}

/* Scale and bias of all channels, into table `which`. All threads synchronise. */
template <int K> __device__ __forceinline__ void chain_results(const chain_block &k, int which) {
    float    *table = reinterpret_cast<float *>(k.memory + CHAIN_TABLE) + which * 2 * 64;
    const int c     = (int)threadIdx.x - (THREADS - 64);
    if (c >= 0 && c < K) {
        const float3 v = exchange_result(k.mail, c, k.epoch);
        table[c] = v.x, table[64 + c] = v.y;
    }
    __syncthreads();
}

/* ---- what follows ---- */

/* Stores the mask's bits of four channels of a thread; two neighbouring lanes have the channels of a byte. */
template <typename T> __device__ __forceinline__ void chain_mask(uint8_t *mask, int64_t element, const piece<2> &p) {
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float2 v = ck_unpack_word<T>(p.word[j]);
        bits |= (v.x > 0.0f ? 1u : 0u) << (2 * j) | (v.y > 0.0f ? 2u : 0u) << (2 * j);
    }
    const unsigned other = __shfl_down_sync(0xffffffffu, bits, 1);
    if ((threadIdx.x & 1) == 0) mask[element / 8] = (uint8_t)(bits | other << 4);
}

/* act(y) of the pieces of a convolution with K channels, P x P pixels, into the tile at `to` and, where a block ends,
 * to z. place(i, row, col): pixel of piece i; n: the thread's first channel. */
template <int K, int P, typename T, int NT, int COUNT, typename Place>
__device__ __forceinline__ void chain_act(const chain_block &k, const chain_step &s, piece<NT> (&out)[COUNT],
                                          uint32_t to, int n, Place place) {
    using X            = chain_tile<K>;
    const float *table = reinterpret_cast<const float *>(k.memory + CHAIN_TABLE);
    float        scale[2 * NT], bias[2 * NT], more[2 * NT];
    load_floats(scale, table + n), load_floats(bias, table + 64 + n);
    load_floats(more, table + 2 * 64 + n);
    if (s.skip == CK_CHAIN_SHORTCUT) {
        float add[2 * NT];
        load_floats(add, table + 3 * 64 + n);
#pragma unroll
        for (int j = 0; j < 2 * NT; j++) bias[j] += add[j];
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int row, col;
        place(i, row, col);
        const uint32_t at  = k.base + to + (uint32_t)(((row + 1) * X::COLS + col + 1) * X::PITCH + n * 2);
        piece<NT>      add = {};
        if constexpr (NT == 2)
            if (s.skip != CK_CHAIN_PLAIN) add = tile_get(at);
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const float2 x = ck_unpack_word<T>(out[i].word[j]), a = ck_unpack_word<T>(add.word[j]);
            float2       v;
            if (s.skip == CK_CHAIN_SHORTCUT) {
                v.x = fmaf(x.x, scale[2 * j], fmaf(a.x, more[2 * j], bias[2 * j]));
                v.y = fmaf(x.y, scale[2 * j + 1], fmaf(a.y, more[2 * j + 1], bias[2 * j + 1]));
            } else {
                v.x = fmaf(x.x, scale[2 * j], bias[2 * j]), v.y = fmaf(x.y, scale[2 * j + 1], bias[2 * j + 1]);
                if (s.skip == CK_CHAIN_IDENTITY) v.x += a.x, v.y += a.y;
            }
            out[i].word[j] = ck_pack_word<T>(ck_relu(v.x), ck_relu(v.y));
        }
        tile_put<NT>(at, out[i]);
        if constexpr (NT == 2)
            if (s.z) {
                const int64_t element = (((int64_t)blockIdx.x * P + row) * P + col) * K + n;
                piece_store<NT>((T *)s.z + element, out[i]);
                if (s.mask) chain_mask<T>(s.mask, element, out[i]);
            }
    }
}

/* Stores the pieces of y. */
template <int K, int P, typename T, int NT, int COUNT, typename Place>
__device__ __forceinline__ void chain_store(const chain_step &s, const piece<NT> (&out)[COUNT], int n, Place place) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int row, col;
        place(i, row, col);
        piece_store<NT>((T *)s.y + (((int64_t)blockIdx.x * P + row) * P + col) * K + n, out[i]);
    }
}

} // namespace
} // namespace cifar

#endif
