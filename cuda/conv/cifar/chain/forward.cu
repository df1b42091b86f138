/* cuda/conv/cifar/chain/forward.cu: the forward pass of a CIFAR ResNet in one cooperative launch. A block has one
 * image.
 * The output of a convolution stays in registers until the BN's sums have been exchanged; then it becomes the next
 * convolution's input in shared memory. Work is divided and added as in cuda/conv/cifar/cifar_conv.cu, so the results
 * are the same
 * bits.
 *
 * Bytes: y and the blocks' outputs, 2 an element, written; filters, from the L2 cache, once a block. Limiter: latency.
 * A convolution is products, an exchange, and act(). */
#include "cuda/conv/cifar/chain/forward.cuh"

namespace cifar {
namespace {

/* ---- filters ---- */

template <class S, typename T> __device__ __forceinline__ void chain_filter_of(uint32_t to, const void *w) {
    filter_issue<S, cut<S>::NT, S::TAPS * S::C * 2 + 16, CHAIN_THREADS>(to, (const T *)w);
}
using s16 = shape<16, 16, 32, 1, 3>;
using d16 = shape<16, 32, 32, 2, 3>;
using h16 = shape<16, 32, 32, 2, 1>;
using s32 = shape<32, 32, 16, 1, 3>;
using d32 = shape<32, 64, 16, 2, 3>;
using h32 = shape<32, 64, 16, 2, 1>;
using s64 = shape<64, 64, 8, 1, 3>;

/* Starts the copy of the step's filter. */
template <typename T> __device__ __noinline__ void chain_filter(uint32_t base, const chain_step &s) {
    const uint32_t to = base + (uint32_t)s.w_at;
    switch (s.kind) {
    case CHAIN_16: chain_filter_of<s16, T>(to, s.w); break;
    case CHAIN_DOWN_16: chain_filter_of<d16, T>(to, s.w); break;
    case CHAIN_SHORT_16: chain_filter_of<h16, T>(to, s.w); break;
    case CHAIN_32: chain_filter_of<s32, T>(to, s.w); break;
    case CHAIN_DOWN_32: chain_filter_of<d32, T>(to, s.w); break;
    case CHAIN_SHORT_32: chain_filter_of<h32, T>(to, s.w); break;
    case CHAIN_64: chain_filter_of<s64, T>(to, s.w); break;
    }
    ck_copy_commit();
}

/* ---- a convolution of stride 1 ---- */

template <class S, typename T> __device__ __noinline__ void chain_same(chain_block k) {
    const chain_step &s = k.step(0), *next = k.next();
    using D         = cut<S>;
    using M         = forward_memory<S>;
    using X         = chain_tile<S::K>;
    constexpr int A = S::K == 16   ? CHAIN_A16
                      : S::K == 32 ? CHAIN_A32
                                   : CHAIN_A64,
                  B = S::K == 16   ? CHAIN_B16
                      : S::K == 32 ? CHAIN_B32
                                   : CHAIN_B64;
    /* Two warps have the groups of one in cifar_conv.cu; with 64 channels eight warps work: more would read the filter
     * from shared memory more often. */
    constexpr bool          TWO  = D::MT > 2;
    constexpr int           MT   = TWO ? D::MT / 2 : (int)D::MT;
    const int               lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const forward_slot<S>   slot;
    const int               n0 = slot.n0, m0 = TWO ? warp / WARPS * MT : 0;
    const uint32_t          xs = k.base + (uint32_t)(s.z ? B : A); /* the second convolution of a block ends it */
    const chain_exchange_of<S::K> exchange(s);
    piece<D::NT>            out[2 * MT];
    MARK(0);
    ck_copy_wait<0>();
    __syncthreads(); /* the filter and the tile are complete */
    MARK(1);
    if (next) chain_filter<T>(k.base, *next);
    if (TWO || warp < WARPS) {
        float first[2 * D::NT] = {}, second[2 * D::NT] = {}, acc[MT][D::NT][4] = {};
        forward_rows<S, T, (S::C == 16 ? CHAIN_UNROLL : 1)>(
            acc, xs + (uint32_t)(input_pixel<S, X>(slot.row(m0, lane & 15), slot.col(0, lane & 15)) + (lane >> 4) * 16),
            k.base + (uint32_t)(s.w_at + (n0 + (lane & 7) + (lane >> 4) * 8) * M::W_PITCH + (lane >> 3 & 1) * 16));
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++)
                out[2 * m + half] = forward_round<T, D::NT>(acc[m], half, first, second);
            if (!TWO && 2 * (m + 1) == MT) chain_sums<D::NT>(k, first, second, warp);
        }
        chain_sums<D::NT>(k, first, second, TWO ? warp : warp + WARPS);
    }
    const auto place = [&](int i, int &row, int &col) {
        row = slot.row(m0 + i / 2, i % 2 * 8 + lane / 4), col = slot.col(i / 2, i % 2 * 8 + lane / 4);
    };
    const int n = n0 + lane % 4 * 2 * D::NT;
    MARK(2);
    __syncthreads();
    chain_send<S::K, D::NT, true>(k, (int)blockIdx.x, 0);
    MARK(3);
    if (!CHAIN_REGS && (TWO || warp < WARPS)) /* every warp has read its input */
        chain_put<S::K>(k.base + (uint32_t)B, out, n, place);
    if (CHAIN_REGS && CHAIN_EARLY_Y && (TWO || warp < WARPS)) chain_store<S::K, S::P, D::NT, T>(s.y, out, n, place);
    exchange.template run<1>(k, s, 0);
    MARK(4);
    if (!CHAIN_REGS)
        chain_act<S::K, S::P, T, true>(k, s, k.base + (uint32_t)B, k.base + (uint32_t)(s.z ? A : B));
    else if (TWO || warp < WARPS) {
        if (!CHAIN_EARLY_Y) chain_store<S::K, S::P, D::NT, T>(s.y, out, n, place);
        chain_finish<S::K, S::P, D::NT, T>(k, s, out, k.base + (uint32_t)(s.z ? A : B), n, place);
    }
    MARK(5);
}

/* ---- stride 2 ---- */

/* Products of one tile of output from a whole image with a margin, in the order of forward_taps. */
template <class S, typename T>
__device__ __forceinline__ void chain_taps(float (&acc)[cut<S>::NT][4], uint32_t at, uint32_t b0) {
    using X          = chain_tile<S::C>;
    constexpr int NT = cut<S>::NT, PITCH = forward_memory<S>::W_PITCH;
#pragma unroll 1
    for (int r = 0; r < S::R; r++)
#pragma unroll
        for (int t = 0; t < S::R; t++)
#pragma unroll
            for (int c = 0; c < S::C; c += 16) {
                uint32_t af[4], bf[NT / 2][4];
#pragma unroll
                for (int j = 0; j < NT / 2; j++)
                    ck_ldmatrix(bf[j], b0 + (uint32_t)(j * 16 * PITCH + ((r * S::R + t) * S::C + c) * 2));
                ck_ldmatrix(af, at + (uint32_t)((r * X::COLS + t) * X::PITCH + c * 2));
#pragma unroll
                for (int j = 0; j < NT; j++) mma<T>(acc[j], af, bf[j / 2][j % 2 * 2], bf[j / 2][j % 2 * 2 + 1]);
            }
}

/* The shortcut without parameters: from the block's input to the place of its output. */
template <class S> __device__ __forceinline__ void chain_pad(uint32_t from, uint32_t to) {
    using X              = chain_tile<S::C>;
    using Y              = chain_tile<S::K>;
    constexpr int BEFORE = (S::K - S::C) / 2 / 8, CHUNKS = S::K / 8;
    static_assert((S::K - S::C) / 2 % 8 == 0, "whole vectors");
    for (int v = (int)threadIdx.x; v < S::P * S::P * CHUNKS; v += CHAIN_THREADS) {
        const int  chunk = v % CHUNKS, col = v / CHUNKS % S::P, row = v / CHUNKS / S::P, c = chunk - BEFORE;
        const bool real  = c >= 0 && c < S::C / 8;
        uint4      value = make_uint4(0, 0, 0, 0);
        if (real) value = ck_get16(from + (uint32_t)(((2 * row + 1) * X::COLS + 2 * col + 1) * X::PITCH + c * 16));
        ck_put16(to + (uint32_t)(((row + 1) * Y::COLS + col + 1) * Y::PITCH + chunk * 16), value);
    }
}

/* A first convolution of a block (R = 3), whose act() goes to the second tile, or a shortcut's (R = 1), whose y goes to
 * the first tile. */
template <class S, typename T> __device__ __noinline__ void chain_down(chain_block k) {
    const chain_step &s = k.step(0), *next = k.next();
    using D            = cut<S>;
    using M            = forward_memory<S>;
    using X            = chain_tile<S::C>;
    using Y            = chain_tile<S::K>;
    constexpr int FROM = S::C == 16 ? CHAIN_A16 : CHAIN_A32, A = S::C == 16 ? CHAIN_A32 : CHAIN_A64,
                  B = S::C == 16 ? CHAIN_B32 : CHAIN_B64, TO = S::R == 3 ? B : A;
    const int               lane = (int)threadIdx.x % CK_WARP;
    const forward_slot<S>   slot;
    const int               n = slot.n0 + lane % 4 * 2 * D::NT;
    const chain_exchange_of<S::K> exchange(s);
    piece<D::NT>            out[2];
    const int               t = (int)threadIdx.x / THREADS; /* eight warps a tile */
    static_assert(D::MT == 1 && D::NT == 4 && D::TILES <= 2, "a group a tile");
    MARK(0);
    ck_copy_wait<0>();
    __syncthreads();
    MARK(1);
    if (next) chain_filter<T>(k.base, *next);
    if (S::R == 3) image_margin<Y>(k.base + A), image_margin<Y>(k.base + B);
    const auto place = [&](int i, int &row, int &col) {
        row = t * D::TH + slot.row(0, i * 8 + lane / 4), col = slot.col(0, i * 8 + lane / 4);
    };
    if (t < D::TILES) {
        const uint32_t b0 =
            k.base + (uint32_t)(s.w_at + (slot.n0 + (lane & 7) + (lane >> 4) * 8) * M::W_PITCH + (lane >> 3 & 1) * 16);
        float     first[2 * D::NT] = {}, second[2 * D::NT] = {}, acc[D::NT][4] = {};
        const int row = 2 * (t * D::TH + slot.row(0, lane & 15)) + (S::R == 1),
                  col = 2 * slot.col(0, lane & 15) + (S::R == 1);
        chain_taps<S, T>(acc, k.base + (uint32_t)(FROM + (row * X::COLS + col) * X::PITCH + (lane >> 4) * 16), b0);
#pragma unroll
        for (int half = 0; half < 2; half++) out[half] = forward_round<T, D::NT>(acc, half, first, second);
        chain_sums<D::NT>(k, first, second, (int)threadIdx.x / CK_WARP);
    }
    MARK(2);
    __syncthreads();
    for (int i = 0; i < D::TILES; i++) chain_send<S::K, D::NT, false>(k, (int)blockIdx.x * D::TILES + i, i * WARPS);
    MARK(3);
    if (t < D::TILES && (!CHAIN_REGS || S::R == 1)) chain_put<S::K>(k.base + (uint32_t)TO, out, n, place);
    if (CHAIN_REGS && CHAIN_EARLY_Y && t < D::TILES) chain_store<S::K, S::P, D::NT, T>(s.y, out, n, place);
    if (S::R == 3 && s.pad) chain_pad<S>(k.base + FROM, k.base + A);
    exchange.template run<D::TILES>(k, s, S::R == 1);
    MARK(4);
    if (!CHAIN_REGS)
        chain_act<S::K, S::P, T, S::R == 3>(k, s, k.base + (uint32_t)TO, k.base + (uint32_t)TO);
    else if (t < D::TILES) {
        if (!CHAIN_EARLY_Y) chain_store<S::K, S::P, D::NT, T>(s.y, out, n, place);
        if (S::R == 3) chain_finish<S::K, S::P, D::NT, T>(k, s, out, k.base + (uint32_t)TO, n, place);
    }
    MARK(5);
}

/* ---- the stem ---- */

enum { CHAIN_STEM_MT = 4 };

/* [k][r][4 columns][4 channels] */
template <typename T> __device__ __forceinline__ void chain_stem_filter(char *to, const T *w) {
    for (int i = (int)threadIdx.x; i < STEM_K * 48; i += CHAIN_THREADS) {
        const int k = i / 48, r = i / 16 % 3, s = i / 4 % 4, c = i % 4;
        uint16_t  v = 0;
        if (s < 3 && c < 3) v = ((const uint16_t *)w)[((k * 3 + r) * 3 + s) * 3 + c];
        *reinterpret_cast<uint16_t *>(to + column_of<2>(k) * STEM_PITCH + i % 48 * 2) = v;
    }
}

template <typename T> __device__ __noinline__ void chain_stem(chain_block k, const void *images) {
    const chain_step &s = k.step(0), *next = k.next();
    constexpr int     NT = 2, MT = CHAIN_STEM_MT;
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP % WARPS, n = lane % 4 * 2 * NT;
    const T  *x = (const T *)images + (int64_t)blockIdx.x * STEM_SIDE * STEM_SIDE * 3;
    const chain_exchange_of<STEM_K> exchange(s);
    piece<NT>                 out[MT * 2];
    MARK(0);
    MARK(1);
    const int                 t              = (int)threadIdx.x / THREADS; /* eight warps a tile */
    float                     acc[MT][NT][4] = {}, first[2 * NT] = {}, second[2 * NT] = {};
    uint32_t                  at[MT];
    const uint32_t            b0 =
        k.base + (uint32_t)(CHAIN_STEM_W + ((lane & 7) + (lane >> 4) * 8) * STEM_PITCH + (lane >> 3 & 1) * 16);
    if (next) chain_filter<T>(k.base, *next);
    chain_stem_filter<T>(k.memory + CHAIN_STEM_W, (const T *)s.w);
    image_margin<chain_tile<16>>(k.base + CHAIN_A16);
    stem_fill(k.memory + CHAIN_STEM_AT + t * STEM_BYTES, x, t * STEM_TH - 1);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const int pixel = (warp * MT + m) * 16 + (lane & 15);
        at[m]           = k.base + (uint32_t)(CHAIN_STEM_AT + t * STEM_BYTES + (lane >> 4) * 16) +
                stem_pixel(pixel / STEM_SIDE, pixel % STEM_SIDE);
    }
#pragma unroll
    for (int r = 0; r < 3; r++) {
        uint32_t bf[4], af[4];
        ck_ldmatrix(bf, b0 + (uint32_t)(r * 32));
#pragma unroll
        for (int m = 0; m < MT; m++) {
            ck_ldmatrix(af, at[m] + (uint32_t)(r * STEM_LINE));
            mma<T>(acc[m][0], af, bf[0], bf[1]);
            mma<T>(acc[m][1], af, bf[2], bf[3]);
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) out[m * 2 + half] = forward_round<T, NT>(acc[m], half, first, second);
    chain_sums<NT>(k, first, second, (int)threadIdx.x / CK_WARP);
    const auto place = [&](int i, int &row, int &col) {
        const int pixel = (warp * MT + i / 2) * 16 + i % 2 * 8 + lane / 4;
        row = t * STEM_TH + pixel / STEM_SIDE, col = pixel % STEM_SIDE;
    };
    MARK(2);
    __syncthreads();
    for (int i = 0; i < STEM_TILES; i++) chain_send<STEM_K, NT, false>(k, (int)blockIdx.x * STEM_TILES + i, i * WARPS);
    MARK(3);
    image_margin<chain_tile<16>>(k.base + CHAIN_B16); /* nobody reads the stem's tiles any more */
    if (!CHAIN_REGS) chain_put<STEM_K>(k.base + (uint32_t)CHAIN_A16, out, n, place);
    if (CHAIN_REGS && CHAIN_EARLY_Y) chain_store<STEM_K, STEM_SIDE, NT, T>(s.y, out, n, place);
    exchange.template run<STEM_TILES>(k, s, 0);
    MARK(4);
    if (!CHAIN_REGS)
        chain_act<STEM_K, STEM_SIDE, T, true>(k, s, k.base + (uint32_t)CHAIN_A16, k.base + (uint32_t)CHAIN_A16);
    else {
        if (!CHAIN_EARLY_Y) chain_store<STEM_K, STEM_SIDE, NT, T>(s.y, out, n, place);
        chain_finish<STEM_K, STEM_SIDE, NT, T>(k, s, out, k.base + (uint32_t)CHAIN_A16, n, place);
    }
    MARK(5);
}

/* ---- the kernel ---- */

template <typename T, int MOST>
__global__ void __launch_bounds__(CHAIN_THREADS, 1) chain_kernel(const __grid_constant__ chain_args<MOST> a) {
    extern __shared__ __align__(16) char memory[];
    chain_block                          k = {.memory = memory,
                                              .base   = ck_shared(memory),
                                              .mail   = a.memory,
                                              .all    = a.step,
                                              .index  = 0,
                                              .count  = a.count,
                                              .epoch  = a.memory->epoch};
    k.fetch(0), k.fetch(1);
    __syncthreads();
    for (; k.index < k.count; k.index++) {
        k.epoch++;
        switch (k.step(0).kind) {
        case CHAIN_STEM: chain_stem<T>(k, a.x); break;
        case CHAIN_16: chain_same<s16, T>(k); break;
        case CHAIN_DOWN_16: chain_down<d16, T>(k); break;
        case CHAIN_SHORT_16: chain_down<h16, T>(k); break;
        case CHAIN_32: chain_same<s32, T>(k); break;
        case CHAIN_DOWN_32: chain_down<d32, T>(k); break;
        case CHAIN_SHORT_32: chain_down<h32, T>(k); break;
        case CHAIN_64: chain_same<s64, T>(k); break;
        }
    }
    /* All blocks have read the first epoch: this block has packets of all of them. */
    if (blockIdx.x == 0 && threadIdx.x == 0) a.memory->epoch = k.epoch;
}

/* ---- host side ---- */

int chain_kind_of(const struct ck_conv *v) {
    if (v->C == 3) return CHAIN_STEM;
    if (v->stride == 1) return v->C == 16 ? CHAIN_16 : v->C == 32 ? CHAIN_32 : CHAIN_64;
    if (v->C == 16) return v->R == 3 ? CHAIN_DOWN_16 : CHAIN_SHORT_16;
    return v->R == 3 ? CHAIN_DOWN_32 : CHAIN_SHORT_32;
}
bool is_shortcut(int kind) {
    return kind == CHAIN_SHORT_16 || kind == CHAIN_SHORT_32;
}

/* Places of the filters: neighbours differ, and the one of 32 -> 64 channels is the first place, because the filter
 * after it fits into the second one only. */
void place_filters(chain_step *step, int count) {
    int down = 0, place = 1;
    while (down < count && step[down].kind != CHAIN_DOWN_32) down++;
    for (int i = (down < count ? down : count - 1), other = 0; i > 0; i--) {
        if (is_shortcut(step[i].kind)) continue;
        step[i].w_at = other ? CHAIN_W1 : CHAIN_W0;
        other        = !other;
    }
    for (int i = down + 1; i < count; i++) {
        if (is_shortcut(step[i].kind)) continue;
        step[i].w_at = place ? CHAIN_W1 : CHAIN_W2;
        place        = !place;
    }
    for (int i = 0; i < count; i++)
        if (is_shortcut(step[i].kind)) step[i].w_at = step[i].kind == CHAIN_SHORT_16 ? CHAIN_W_S16 : CHAIN_W_S32;
}

template <typename T, int MOST>
cudaError_t chain_run(const struct ck_chain_step *steps, int count, const void *x, void *memory, cudaStream_t stream) {
    chain_args<MOST>    a         = {.x = x, .memory = (exchange *)memory, .count = count, .step = {}};
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t  config    = {};
    for (int i = 0; i < count; i++) {
        const struct ck_chain_step *s = &steps[i];
        a.step[i]                     = {.w        = s->w,
                                         .y        = s->y,
                                         .z        = s->z,
                                         .mask     = s->mask,
                                         .sums     = s->sums,
                                         .finish   = s->finish,
                                         .factors  = ck_bn_factors_of(&s->finish),
                                         .w_at     = 0,
                                         .kind     = (short)chain_kind_of(&s->conv),
                                         .skip     = (short)s->skip,
                                         .channels = (short)s->conv.K,
                                         .pad      = s->pad};
    }
    place_filters(a.step, count);
    const cudaError_t error = ck_allow_shared(chain_kernel<T, MOST>, CHAIN_BYTES);
    if (error != cudaSuccess) return error;
    attribute.id              = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.gridDim            = dim3((unsigned)steps[0].conv.N);
    config.blockDim           = dim3(CHAIN_THREADS);
    config.dynamicSmemBytes   = CHAIN_BYTES;
    config.stream             = stream;
    config.attrs              = &attribute;
    config.numAttrs           = 1;
    return cudaLaunchKernelEx(&config, chain_kernel<T, MOST>, a);
}

template <typename T>
cudaError_t chain_any(const struct ck_chain_step *steps, int count, const void *x, void *memory, cudaStream_t stream) {
    if (count <= 24) return chain_run<T, 24>(steps, count, x, memory, stream);
    return chain_run<T, CK_CHAIN_STEPS_MAX>(steps, count, x, memory, stream);
}

} // namespace
} // namespace cifar

#ifdef CHAIN_MARKS
extern "C" void chain_marks_get(void *to, size_t bytes) {
    (void)cudaMemcpyFromSymbol(to, cifar::chain_marks, bytes);
}
#endif
bool ck_cifar_chain_supports(int64_t images, int multiprocessors, int block_bytes) {
    return images >= 8 && images <= multiprocessors && images <= cifar::EXCHANGE_BLOCKS &&
           block_bytes >= cifar::CHAIN_BYTES;
}
size_t ck_cifar_chain_exchange(void) {
    return sizeof(cifar::exchange);
}
cudaError_t ck_cifar_chain(const struct ck_chain_step *steps, int count, const void *x, void *exchange,
                           cudaStream_t stream) {
    if (count < 1 || count > CK_CHAIN_STEPS_MAX || steps[0].conv.C != 3) return cudaErrorInvalidValue;
    for (int i = 0; i < count; i++)
        if (!ck_cifar_conv_supports(&steps[i].conv) || steps[i].conv.N != steps[0].conv.N ||
            steps[i].conv.type != steps[0].conv.type)
            return cudaErrorInvalidValue;
#ifdef CHAIN_ONE
    return cifar::chain_run<__half, 24>(steps, count, x, exchange, stream);
#endif
    return steps[0].conv.type == CK_F16 ? cifar::chain_any<__half>(steps, count, x, exchange, stream)
                                        : cifar::chain_any<__nv_bfloat16>(steps, count, x, exchange, stream);
}
