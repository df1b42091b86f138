/* cuda/conv/cifar/chain/backward.cuh: gradients of the inputs of consecutive convolutions in one launch
 * (cuda/conv/cifar/chain/backward.cu): shared memory, arguments, one convolution.
 *
 * Shared memory has two halves. A convolution uses one of them: dy, the input of the BN behind it, and its filter.
 * While
 * it runs, the other half gets those of the next convolution: dx is written there as the next g, the rest is copied. */
#ifndef CK_CHAIN_BACKWARD_CUH
#define CK_CHAIN_BACKWARD_CUH

#include "cuda/conv/cifar/chain/exchange.cuh"
#include "cuda/conv/cifar/cifar_grad_dx.cuh"

namespace cifar {
namespace {

enum { BACK_WARPS = 16, BACK_THREADS = BACK_WARPS * CK_WARP };

/* dy of a whole image, moved by all threads of a block. */
template <class S> using back_tile = output_tile<S, 1, S::P, S::K, true, BACK_THREADS>;

using s16 = shape<16, 16, 32, 1, 3>;
using d16 = shape<16, 32, 32, 2, 3>;
using s32 = shape<32, 32, 16, 1, 3>;
using d32 = shape<32, 64, 16, 2, 3>;
using s64 = shape<64, 64, 8, 1, 3>;
enum back_kind { BACK_16, BACK_DOWN_16, BACK_32, BACK_DOWN_32, BACK_64, BACK_STEM };

template <class S> struct back_memory {
    using L = back_tile<S>;
    using D = grad_tiling<S>;
    enum { DY_AT = 0, LINE_AT = L::BYTES, W_AT = LINE_AT + L::VECTORS * 16, BYTES = W_AT + S::K * D::W_PITCH };
};
constexpr int most(int a, int b) {
    return a > b ? a : b;
}
enum {
    BACK_HALF   = most(most(back_memory<s16>::BYTES, back_memory<d16>::BYTES),
                       most(back_memory<s32>::BYTES, most(back_memory<d32>::BYTES, back_memory<s64>::BYTES))),
    BACK_SUMS   = 2 * BACK_HALF,
    BACK_TABLE  = BACK_SUMS + 4096,            /* two tables [4][C], of this convolution and the last one */
    BACK_COEFFS = BACK_TABLE + 2 * 4 * 64 * 4, /* [3][K] */
    BACK_OWN    = BACK_COEFFS + 3 * 64 * 4,    /* [3][C]: coefficients that the block's owners have computed */
    BACK_STEPS  = BACK_OWN + 3 * 64 * 4,       /* four steps */
    BACK_BYTES  = BACK_STEPS + 4 * 256
};
static_assert(BACK_BYTES <= 227 * 1024, "a block of compute capability 9.0");

struct back_step {
    const void                *g, *dy_x, *w, *x, *add, *bn_x;
    const float               *dy_coeffs, *scale_bias, *mean_rstd;
    void                      *dx, *dy; /* dy: N,P,Q,K, for the filter gradient */
    void                      *pad_dx;  /* see struct ck_backward_step */
    float                     *grad_sums;
    struct ck_bn_grad_finalize finish;
    double                     inverse; /* 1 / finish.count */
    int                        kind;
};
static_assert(sizeof(back_step) <= 256 && sizeof(back_step) % 4 == 0, "a step's place");
template <int MOST> struct back_args {
    exchange *memory;
    int       count;
    back_step step[MOST];
};

struct back_block {
    char            *memory;
    uint32_t         base;
    exchange        *mail;
    const back_step *all; /* arguments of the launch */
    int              index, count;
    unsigned         epoch; /* of the sums of this convolution */

    __device__ __forceinline__ const back_step &step(int ahead) const {
        return *reinterpret_cast<const back_step *>(memory + BACK_STEPS + (index + ahead) % 4 * 256);
    }
    __device__ __forceinline__ bool     has_next() const { return index + 1 < count; }
    __device__ __forceinline__ uint32_t half(int ahead) const {
        return base + (uint32_t)((index + ahead) % 2 * BACK_HALF);
    }
    __device__ __forceinline__ float *floats(int at) const { return reinterpret_cast<float *>(memory + at); }
    __device__ __forceinline__ float *table() const { return floats(BACK_TABLE + index % 2 * 4 * 64 * 4); }
    /* Copies step `ahead` into shared memory. Its place was that of a step before the last barrier. */
    __device__ __forceinline__ void fetch(int ahead) const {
        const int word = (int)threadIdx.x - (BACK_THREADS - 64);
        if (word >= 0 && word < (int)sizeof(back_step) / 4 && index + ahead < count)
            reinterpret_cast<uint32_t *>(memory + BACK_STEPS + (index + ahead) % 4 * 256)[word] =
                reinterpret_cast<const uint32_t *>(all + index + ahead)[word];
    }
};

/* ---- what the next convolution gets ---- */

/* Layout of the next dy: columns with margin, columns (and rows) in front, bytes of a pixel, rows. */
struct back_layout {
    int                                                              cols, left, pitch, rows, side;
    template <class S> static __device__ __forceinline__ back_layout of() {
        using L = back_tile<S>;
        return {L::COLS, L::LEFT, L::PITCH, L::ROWS, L::SIDE};
    }
    static __device__ __forceinline__ back_layout of_kind(int kind) {
        switch (kind) {
        case BACK_16:
        case BACK_STEM: return of<s16>();
        case BACK_DOWN_16: return of<d16>();
        case BACK_32: return of<s32>();
        case BACK_DOWN_32: return of<d32>();
        default: return of<s64>();
        }
    }
    /* Writes zeros to the margin. */
    __device__ __forceinline__ void clear(uint32_t to) const {
        const int chunks = pitch / 16 - 1;
        for (int v = (int)threadIdx.x; v < rows * cols * chunks; v += BACK_THREADS) {
            const int chunk = v % chunks, col = v / chunks % cols, row = v / chunks / cols;
            if (row < left || row >= left + side || col < left || col >= left + side)
                ck_put16(to + (uint32_t)((row * cols + col) * pitch + chunk * 16), make_uint4(0, 0, 0, 0));
        }
    }
};

/* Starts the copies of a convolution's filter, and of the input of the BN behind it; with G, of its g, too. */
template <class S, typename T, bool G>
__device__ __forceinline__ void back_issue_of(uint32_t half, const back_step &s) {
    using M           = back_memory<S>;
    using L           = back_tile<S>;
    const int64_t out = (int64_t)blockIdx.x * S::P * S::P * S::K;
    if (G) tile_issue<L, false, false>(half + (uint32_t)M::DY_AT, (const T *)s.g + out, -L::LEFT, 1);
    tile_issue<L, true, false>(half + (uint32_t)M::LINE_AT, (const T *)s.dy_x + out, -L::LEFT, 1);
    filter_issue<S, grad_tiling<S>::NT, grad_tiling<S>::W_PITCH, BACK_WARPS>(half + (uint32_t)M::W_AT, (const T *)s.w);
}
template <typename T, bool G> __device__ __noinline__ void back_issue(uint32_t half, const back_step &s) {
    switch (s.kind) {
    case BACK_16: back_issue_of<s16, T, G>(half, s); break;
    case BACK_DOWN_16: back_issue_of<d16, T, G>(half, s); break;
    case BACK_32: back_issue_of<s32, T, G>(half, s); break;
    case BACK_DOWN_32: back_issue_of<d32, T, G>(half, s); break;
    case BACK_64: back_issue_of<s64, T, G>(half, s); break;
    }
    ck_copy_commit();
}

/* Writes the pieces of dx to the next g. */
template <int NT> struct keep_next {
    uint32_t                        at;
    int                             cols, pitch;
    bool                            real;
    __device__ __forceinline__ void operator()(int row, int col, int c, const piece<NT> &p) const {
        const uint32_t to = at + (uint32_t)((row * cols + col) * pitch + c * 2);
        if (!real) return;
        if constexpr (NT == 4)
            ck_put16(to, make_uint4(p.word[0], p.word[1], p.word[2], p.word[3]));
        else
            asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(p.word[0]), "r"(p.word[1]) : "memory");
    }
    template <int N> __device__ __forceinline__ void part(float (&)[N], float (&)[N]) const {}
};

/* ---- sums ---- */

/* Stores the warp's sums of its 8*NT channels as its row. */
template <int NT>
__device__ __forceinline__ void back_sums(const back_block &k, float (&first)[2 * NT], float (&second)[2 * NT]) {
    float *rows = k.floats(BACK_SUMS), *row = rows + (int)threadIdx.x / CK_WARP * 2 * 8 * NT;
    for (int i = (int)threadIdx.x % CK_WARP; i < 2 * 8 * NT; i += CK_WARP) row[i] = 0;
    __syncwarp();
    sums_flush<NT, 8 * NT>(first, second, rows, 0);
}

/* Sends the block's sums, added as the blocks of cifar_conv_grad.cu do it, whose warps are fewer: PARTS of them are
 * rows of several warps here. factor: multiplies the second sums. */
template <class S> __device__ __forceinline__ void back_send(const back_block &k, const float *factor) {
    using D          = grad_tiling<S>;
    constexpr int CH = 8 * D::NT, ROW = 2 * CH, HALF = BACK_WARPS / 2;
    const int     c = (int)threadIdx.x;
    if (c >= S::C) return;
    const float *rows = k.floats(BACK_SUMS) + c / CH * ROW + c % CH;
    float        a = 0, b = 0;
    for (int w = 0; w < D::DX_WARPS; w += D::NW) {
        float first = rows[w * ROW], second = rows[w * ROW + CH];
        if (D::BY_ROW) first += rows[(w + HALF) * ROW], second += rows[(w + HALF) * ROW + CH];
        if (!D::BY_ROW && D::DX_WARPS == HALF && w >= D::ROWS)
            for (int i = 1; i < 3; i++)
                first += rows[(w + i * D::ROWS) * ROW], second += rows[(w + i * D::ROWS) * ROW + CH];
        a += first, b += second;
    }
    packet_store(&k.mail->packet[c][blockIdx.x], a, b * factor[c], k.epoch);
}

/* Owners: warp w of block b has channel b + w*blocks. Adds the sums of all blocks, finishes the BN's gradient and sends
 * its coefficients. */
template <int C> __device__ __forceinline__ void back_own(const back_block &k, const back_step &s) {
    const int c = (int)blockIdx.x + (int)threadIdx.x / CK_WARP * (int)gridDim.x, lane = (int)threadIdx.x % CK_WARP;
    if (c >= C) return;
    ck_bn_grad_channel bn;
    float              sum, product;
    bn.load(s.finish, c, C); /* in flight while the packets arrive */
    exchange_add<EXCHANGE_BLOCKS>(k.mail, c, (int)gridDim.x, k.epoch, sum, product);
    if (lane) return;
    float                     *own    = k.floats(BACK_OWN);
    struct ck_bn_grad_finalize finish = s.finish;
    finish.coeffs                     = own; /* read back at once; global memory would take longer */
    bn.finish(finish, s.inverse, c, C, sum, product);
    packet_store(&k.mail->result[c], own[c], own[C + c], k.epoch, own[2 * C + c]);
    for (int i = 0; i < 3; i++) s.finish.coeffs[i * C + c] = own[i * C + c];
    s.grad_sums[c] = sum, s.grad_sums[C + c] = product;
}

/* The coefficients of this convolution's dy, into shared memory. */
template <int K> __device__ __forceinline__ void back_coeffs(const back_block &k, const back_step &s) {
    float    *to = k.floats(BACK_COEFFS);
    const int c  = (int)threadIdx.x - (BACK_THREADS - 128);
    if (c < 0 || c >= K) return;
    if (k.index == 0) {
        for (int i = 0; i < 3; i++) to[i * K + c] = s.dy_coeffs[i * K + c];
    } else {
        const float3 v = exchange_result(k.mail, c, k.epoch - 1);
        to[c] = v.x, to[K + c] = v.y, to[2 * K + c] = v.z;
    }
}

/* dy = a*g + b*x + c in the place of g, and in global memory; as tile_bn_grad. */
template <class S, typename T>
__device__ __forceinline__ void back_dy(const back_block &k, const back_step &s, uint32_t half) {
    using L           = back_tile<S>;
    using M           = back_memory<S>;
    const float *from = k.floats(BACK_COEFFS) + (int)threadIdx.x % L::CHUNKS * 8;
    T           *out  = (T *)s.dy + (int64_t)blockIdx.x * S::P * S::P * S::K;
    float        a[8], b[8], c[8];
    load_floats(a, from), load_floats(b, from + S::K), load_floats(c, from + 2 * S::K);
    tile_for_each<L>(-L::LEFT, 1, [&](uint32_t place, int at, int v, bool real) {
        if (!real) return;
        float          g[8], x[8];
        const uint32_t to = half + (uint32_t)M::DY_AT + place;
        ck_unpack<T>(ck_get16(to), g);
        ck_unpack<T>(ck_get16(half + (uint32_t)M::LINE_AT + (uint32_t)v * 16), x);
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = fmaf(a[i], g[i], fmaf(b[i], x[i], c[i]));
        const uint4 dy = ck_pack<T>(g);
        ck_put16(to, dy);
        ck_store_whole(out + at, dy);
    });
}

/* ---- one convolution ---- */

/* dx of the image, with all warps. */
template <class S, typename T>
__device__ __forceinline__ void back_products(const grad_args &a, uint32_t dy, uint32_t filter, const float *table,
                                              float (&first)[2 * grad_tiling<S>::NT],
                                              float (&second)[2 * grad_tiling<S>::NT],
                                              const keep_next<grad_tiling<S>::NT> &keep) {
    using D             = grad_tiling<S>;
    using L             = back_tile<S>;
    const int      warp = (int)threadIdx.x / CK_WARP, n0 = warp % D::NW * 8 * D::NT;
    const uint32_t b0 = dx_filter<S>(filter);
    if constexpr (S::STRIDE == 1) {
        /* 8 warps a tile, or two warps for the groups of one */
        constexpr int STRIPS = cifar::groups<S::P, D::TH>::STRIPS, MT = D::TILES > 1 ? (int)D::MT : D::MT / 2;
        const int     rest = warp % D::DX_WARPS / D::NW, more = warp / D::DX_WARPS;
        const int     y0 = D::TILES > 1 ? more * D::TH : 0, m0 = rest / STRIPS * D::MT + (D::TILES > 1 ? 0 : more * MT);
        dx_groups<S, T, 0, 0, MT>(a, dy + (uint32_t)(y0 * L::COLS * L::PITCH), b0, table, blockIdx.x, y0, m0,
                                  rest % STRIPS * 16, n0, first, second, keep);
    } else if constexpr (D::DX_WARPS == BACK_WARPS) {
        dx_tile<S, T>(a, dy, b0, table, blockIdx.x, 0, first, second, keep);
    } else { /* a warp for each parity of a group */
        static_assert(D::ROWS * 4 == BACK_WARPS, "all warps work");
        const int m0 = warp % D::ROWS, part = warp / D::ROWS;
        if (part == 0) dx_groups<S, T, 1, 1, 1>(a, dy, b0, table, blockIdx.x, 0, m0, 0, n0, first, second, keep);
        if (part == 1) dx_groups<S, T, 0, 1, 1>(a, dy, b0, table, blockIdx.x, 0, m0, 0, n0, first, second, keep);
        if (part == 2) dx_groups<S, T, 1, 0, 1>(a, dy, b0, table, blockIdx.x, 0, m0, 0, n0, first, second, keep);
        if (part == 3) dx_groups<S, T, 0, 0, 1>(a, dy, b0, table, blockIdx.x, 0, m0, 0, n0, first, second, keep);
    }
}

/* The gradient of a shortcut without parameters, from dx in the tile at `from`, whose margin lies before it. */
template <class S, typename T> __device__ __forceinline__ void back_pad(uint32_t from, int cols, int pitch, T *out) {
    constexpr int C = S::C / 2, SIDE = 2 * S::H, CHUNKS = C / 8, BEFORE = (S::C - C) / 2 / 8;
    static_assert((S::C - C) / 2 % 8 == 0, "whole vectors");
    out += (int64_t)blockIdx.x * SIDE * SIDE * C;
#pragma unroll 2
    for (int v = (int)threadIdx.x; v < SIDE * SIDE * CHUNKS; v += BACK_THREADS) {
        const int chunk = v % CHUNKS, col = v / CHUNKS % SIDE, row = v / CHUNKS / SIDE;
        uint4     value = make_uint4(0, 0, 0, 0);
        if ((row & 1) == 0 && (col & 1) == 0)
            value = ck_get16(from + (uint32_t)((row / 2 * cols + col / 2) * pitch + (chunk + BEFORE) * 16));
        ck_store_whole(out + v * 8, value);
    }
}

template <class S, typename T> __device__ __noinline__ void back_conv(back_block k) {
    using D               = grad_tiling<S>;
    using L               = back_tile<S>;
    using M               = back_memory<S>;
    const back_step &s    = k.step(0);
    const uint32_t   half = k.half(0), filter = half + (uint32_t)M::W_AT, dy = half + (uint32_t)M::DY_AT;
    float           *table = k.table();
    const grad_args  a     = {.g            = NULL,
                              .dy_x         = NULL,
                              .w            = NULL,
                              .x            = s.x,
                              .add          = s.add,
                              .bn_x         = s.bn_x,
                              .dy_coeffs    = NULL,
                              .scale_bias   = s.scale_bias,
                              .mean_rstd    = s.mean_rstd,
                              .dx           = s.dx,
                              .dw           = NULL,
                              .grad_sums    = NULL,
                              .dw_partial   = NULL,
                              .sums_partial = NULL,
                              .N            = 0,
                              .accumulate   = false,
                              .w_new        = false,
                              .by_image     = false};
    static_assert(BACK_WARPS * 2 * 8 * D::NT * 4 <= 4096 && D::DX_WARPS <= BACK_WARPS, "places");
    const table_entry<S::C> entry(a);
    back_coeffs<S::K>(k, s);
    entry.store(table);
    ck_copy_wait<0>();
    filter_transpose<S, D::NT, D::W_PITCH, BACK_WARPS>(filter);
    __syncthreads(); /* g, the BN's input and the coefficients are complete */
    back_dy<S, T>(k, s, half);
    k.fetch(2);
    __syncthreads();
    const bool        keeps = k.has_next();
    const back_layout next  = back_layout::of_kind(keeps ? k.step(1).kind : BACK_16);
    if (keeps) {
        if (k.step(1).kind != BACK_STEM) back_issue<T, false>(k.half(1), k.step(1));
        next.clear(k.half(1));
    }
    const keep_next<D::NT> keep = {k.half(1) + (uint32_t)((next.left * next.cols + next.left) * next.pitch), next.cols,
                                   next.pitch, keeps};
    float                  first[2 * D::NT] = {}, second[2 * D::NT] = {};
    back_products<S, T>(a, dy, filter, table, first, second, keep);
    back_sums<D::NT>(k, first, second);
    __syncthreads();
    back_send<S>(k, table + 3 * S::C);
    if constexpr (S::C >= 32)
        if (s.pad_dx) back_pad<S, T>(keep.at, keep.cols, keep.pitch, (T *)s.pad_dx);
    back_own<S::C>(k, s);
}

} // namespace
} // namespace cifar

#endif
