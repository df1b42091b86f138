/* cuda/conv/cifar/cifar_dgrad.cu: the input gradient of a CIFAR convolution whose filter gradient a later launch
 * computes (cuda/conv/cifar/cifar_wgrads.cu): the BN's gradient applied while dy is read, product, addition, mask and
 * sums. The gradient dy of the convolution's output is stored as well, so that the filter gradient reads one tensor
 * less and computes no BN. The first tiles are in flight while a block adds the sums of the launch before.
 *
 * Bytes an element, 16 bits: g and dy_x 2 each, read 1 to 1.13 times; x, add and bn_x 2 each; dy and dx 2 each.
 * Limiter: latency, because a block has one or two tiles at the batches for which it is used. */
#include "cuda/conv/cifar/cifar_grad_run.cuh"

namespace cifar {
namespace {

/* A shape whose dx is computed alone: TH rows of dy a tile, WARPS warps, BLOCKS blocks a multiprocessor. */
template <class S, int TH_, int WARPS_, int BLOCKS_> struct dx_shape : shape<S::C, S::K, S::H, S::STRIDE, S::R> {
    using BASE = S;
    enum { TILE_ROWS = TH_, TILE_WARPS = WARPS_, BLOCKS = BLOCKS_ };
};
template <class B, int TH_, int WARPS_, int BLOCKS_> struct grad_tiling<dx_shape<B, TH_, WARPS_, BLOCKS_>> {
    using S                     = dx_shape<B, TH_, WARPS_, BLOCKS_>;
    static constexpr bool JOINT = false, BY_ROW = S::STRIDE == 1, LATE_SUMS = false;
    enum { DX_WARPS = WARPS_, DX_THREADS = DX_WARPS * CK_WARP, DX_BARRIER = 0, STAGES = 1 };
    enum { TH = TH_, TILES = S::P / TH, ROWS = TH * S::P / 16 };
    enum { NT = S::C == 16 || BY_ROW ? 2 : 4, NW = S::C / (8 * NT), MW = DX_WARPS / NW, MT = BY_ROW ? ROWS / MW : 1 };
    static_assert(!BY_ROW || MT * MW == ROWS, "all warps have the same amount of work");
    using DY = output_tile<S, 1, TH, S::K, true, DX_THREADS>;
    enum { W_PITCH = S::TAPS * S::C * 2 + 16 };
    enum {
        SUMS_AT  = 0,
        TABLE_AT = DX_WARPS * 2 * S::C * 4,
        ROOM_AT  = TABLE_AT + 4 * S::C * 4, /* FINISH: [warps][2][K], then coefficients [3][K] */
        COEFF_AT = ROOM_AT + DX_WARPS * 2 * S::K * 4,
        W_AT     = COEFF_AT + 4 * S::K * 4,
        DY_AT    = W_AT + S::K * W_PITCH,
        DY_STAGE = DY::BYTES + DY::VECTORS * 16,
        LINE_AT  = DY_AT + DY::BYTES,
        BYTES    = DY_AT + DY_STAGE
    };
};

/* What a kernel needs that adds the gradient sums of the launch before it and finishes their BN. */
struct dx_finish {
    const float               *partial; /* [rows][2][K] of the launch before, or NULL: dy_coeffs is complete */
    int                        rows;
    struct ck_bn_grad_finalize finish;
    double                     inverse;
};
struct dx_args {
    grad_args grad;
    dx_finish before;
    void     *dy;   /* also stored */
    int       idle; /* the first `idle` blocks compute nothing */
};

/* A thread's rows of `partial`; the first loads start before the copies of tiles. */
template <class S> struct dx_rows_before {
    using D = grad_tiling<S>;
    enum { FOURS = 2 * S::K / 4, SHARES = D::DX_THREADS / FOURS, FLIGHT = S::K == 16 ? 8 : 16 };
    float4                          v[FLIGHT];
    __device__ __forceinline__ void load(const dx_finish &f, int from) {
        const int four = (int)threadIdx.x % FOURS, b = from + (int)threadIdx.x / FOURS;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
            v[i] =
                b + i * SHARES < f.rows
                    ? __ldcg(reinterpret_cast<const float4 *>(f.partial + (int64_t)(b + i * SHARES) * 2 * S::K) + four)
                    : make_float4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void add_to(float (&s)[4]) const {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) s[0] += v[i].x, s[1] += v[i].y, s[2] += v[i].z, s[3] += v[i].w;
    }
};
/* Parameters and statistics of the BN for the thread of channel threadIdx.x. The forward pass has written them. */
template <class S> struct dx_early {
    float                           gamma = 0, mean = 0, rstd = 0;
    __device__ __forceinline__ void load(const dx_finish &f) {
        const int c = (int)threadIdx.x;
        if (c < S::K) gamma = f.finish.gamma[c], mean = f.finish.mean_rstd[c], rstd = f.finish.mean_rstd[S::K + c];
    }
};
/* All threads add `partial` in a fixed order, the same in all blocks. The coefficients are in shared memory afterwards;
 * with `stores` they are stored. */
template <class S>
__device__ __forceinline__ void dx_coeffs(const dx_finish &f, dx_rows_before<S> &rows, const dx_early<S> &early,
                                          char *memory, bool stores) {
    using D            = grad_tiling<S>;
    using R            = dx_rows_before<S>;
    constexpr int K    = S::K;
    float        *room = reinterpret_cast<float *>(memory + D::ROOM_AT),
          *coeffs      = reinterpret_cast<float *>(memory + D::COEFF_AT);
    const int c        = (int)threadIdx.x;
    float     s[4]     = {};
    rows.add_to(s);
    for (int b = R::SHARES * R::FLIGHT; b < f.rows; b += R::SHARES * R::FLIGHT) rows.load(f, b), rows.add_to(s);
#pragma unroll
    for (int offset = R::FOURS; offset < CK_WARP; offset *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] += __shfl_xor_sync(0xffffffffu, s[i], offset);
    if (c % CK_WARP < R::FOURS)
        *reinterpret_cast<float4 *>(room + c / CK_WARP * 2 * K + c % R::FOURS * 4) =
            make_float4(s[0], s[1], s[2], s[3]);
    __syncthreads();
    if (c < K) {
        double first, second;
        parts_add<K, D::DX_WARPS>(room, c, first, second);
        const float  sum = (float)first, product = (float)second;
        const double gamma = (double)early.gamma, mean = (double)early.mean, rstd = (double)early.rstd;
        const double scale = gamma * rstd, X = (double)product * f.inverse, G = (double)sum * f.inverse;
        const float  a = (float)scale, b = (float)(-scale * rstd * X), d = (float)(scale * (mean * rstd * X - G));
        coeffs[c] = a, coeffs[K + c] = b, coeffs[2 * K + c] = d;
        if (stores) {
            f.finish.coeffs[c] = a, f.finish.coeffs[K + c] = b, f.finish.coeffs[2 * K + c] = d;
            if (f.finish.dbeta) f.finish.dbeta[c] = (f.finish.accumulate ? f.finish.dbeta[c] : 0.0f) + sum;
            if (f.finish.dgamma) f.finish.dgamma[c] = (f.finish.accumulate ? f.finish.dgamma[c] : 0.0f) + product;
        }
    }
    __syncthreads();
}

/* As tile_bn_grad; also stores rows y0..y0+TH-1 of the image at `to`. */
template <class S, class L, typename T>
__device__ __forceinline__ void dx_bn_grad(uint32_t at, uint32_t line, const float *coeffs, int y0, T *to) {
    using D = grad_tiling<S>;
    float     a[8], b[8], c[8];
    const int first = (int)threadIdx.x % L::CHUNKS * 8;
    load_floats(a, coeffs + first);
    load_floats(b, coeffs + S::K + first);
    load_floats(c, coeffs + 2 * S::K + first);
    ck_copy_wait<0>();
    tile_for_each<L>(y0 - L::LEFT, 1, channels{}, [&](uint32_t place, int from, int v, bool real) {
        if (!real) return;
        float g[8], x[8];
        ck_unpack<T>(ck_get16(at + place), g);
        ck_unpack<T>(ck_get16(line + (uint32_t)v * 16), x);
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = fmaf(a[i], g[i], fmaf(b[i], x[i], c[i]));
        const uint4 out = ck_pack<T>(g);
        ck_put16(at + place, out);
        const int h = from / (S::P * S::K);
        if (D::TILES == 1 || (h >= y0 && h < y0 + D::TH)) ck_store_whole(to + from, out);
    });
}

/* Starts the copies of tile `job`: g, and dy_x unless its copies are in flight. */
template <class S, bool G, bool X, typename T>
__device__ __forceinline__ void dx_issue(const grad_args &a, int64_t job, uint32_t base) {
    using D            = grad_tiling<S>;
    using L            = typename D::DY;
    const int64_t out  = job / D::TILES * S::P * S::P * S::K;
    const int     row0 = (int)(job % D::TILES) * D::TH - L::LEFT;
    if (G) tile_issue<L, false, false>(base + D::DY_AT, (const T *)a.g + out, row0, 1);
    if (X) tile_issue<L, true, false>(base + D::LINE_AT, (const T *)a.dy_x + out, row0, 1);
}

/* FINISH: the launch before has left the end of its BN to this one (args.before). */
template <class S, typename T, bool FINISH>
__global__ void __launch_bounds__(grad_tiling<S>::DX_THREADS, S::BLOCKS) dx_kernel(dx_args args) {
    using D = grad_tiling<S>;
    using L = typename D::DY;
    extern __shared__ __align__(16) char memory[];
    const grad_args                     &a    = args.grad;
    const uint32_t                       base = ck_shared(memory);
    float                               *rows = reinterpret_cast<float *>(memory + D::SUMS_AT),
          *table                              = reinterpret_cast<float *>(memory + D::TABLE_AT);
    const int  block = (int)blockIdx.x - args.idle, blocks = (int)gridDim.x - args.idle;
    const bool works = block >= 0 && block < a.N * D::TILES;
    if (block < (FINISH ? -1 : 0)) return; /* the last block without work stores the results of the BN */
    /* As much as possible comes before the wait for the launch before; steps of ResNet-56 are 0.2 % faster with it. */
    if (block >= 0) filter_issue<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT, (const T *)a.w, a);
    ck_copy_commit();
    if (works) dx_issue<S, false, true, T>(a, block, base);
    ck_copy_commit();
    dx_clear<S>(a, base, rows);
    if (a.bn_x && works) dx_prefetch<S, T>(a, block);
    if constexpr (FINISH) {
        table_entry<S> entry;
        dx_early<S>    early;
        entry.load(a), early.load(args.before);
        if (block >= 0) {
            ck_copy_wait<1>(); /* for the filter, not for dy_x */
            filter_transpose<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT);
        }
        ck_begin_after_last();
        dx_rows_before<S> rows_before;
        rows_before.load(args.before, 0);
        if (works) dx_issue<S, true, false, T>(a, block, base);
        ck_copy_commit();
        entry.store(table);
        dx_coeffs<S>(args.before, rows_before, early, memory, block == (args.idle > 0 ? -1 : 0));
        if (block < 0) return;
    } else {
        ck_begin_after_last();
        table_entry<S> entry;
        entry.load(a);
        tile_warm<L>(a.dy_coeffs, S::K, 3);
        if (works) dx_issue<S, true, false, T>(a, block, base);
        ck_copy_commit();
        entry.store(table);
    }
    const float *coeffs           = FINISH ? reinterpret_cast<const float *>(memory + D::COEFF_AT) : a.dy_coeffs;
    float        first[2 * D::NT] = {}, second[2 * D::NT] = {};
    ck_copy_wait<0>();
    if (!FINISH) filter_transpose<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT);
    for (int64_t job = block; job < a.N * D::TILES; job += blocks) {
        const int y0 = (int)(job % D::TILES) * D::TH;
        dx_bn_grad<S, L, T>(base + D::DY_AT, base + D::LINE_AT, coeffs, y0,
                            (T *)args.dy + job / D::TILES * S::P * S::P * S::K);
        __syncthreads();
        dx_tile<S, T>(a, base + D::DY_AT, dx_filter<S>(base + D::W_AT), table, job / D::TILES, y0, first, second);
        if (job + blocks < a.N * D::TILES) {
            __syncthreads();
            dx_issue<S, true, true, T>(a, job + blocks, base);
            ck_copy_commit();
        }
    }
    dx_end<S>(a, first, second, rows, table, block);
}

/* ---- host side ---- */

/* The tiles of a shape. WHOLE: images, which are used if more than half of the multiprocessors get one; otherwise rows
 * of images. */
template <class S, bool WHOLE> struct dx_choice { using type = dx_shape<S, 8, 8, 2>; };
template <> struct dx_choice<shape<16, 16, 32, 1, 3>, false> {
    using type = dx_shape<shape<16, 16, 32, 1, 3>, 16, 8, 2>;
};
template <> struct dx_choice<shape<16, 16, 32, 1, 3>, true> {
    using type = dx_shape<shape<16, 16, 32, 1, 3>, 32, 16, 1>;
};
template <> struct dx_choice<shape<16, 32, 32, 2, 3>, true> {
    using type = dx_shape<shape<16, 32, 32, 2, 3>, 16, 16, 1>;
};
template <> struct dx_choice<shape<32, 32, 16, 1, 3>, true> {
    using type = dx_shape<shape<32, 32, 16, 1, 3>, 16, 8, 2>;
};

template <typename Run> cudaError_t dx_run_shape(const struct ck_conv *v, int multiprocessors, Run run) {
    return run_shape<false>(v, [&](auto s) {
        using S = decltype(s);
        if constexpr (S::R != 3)
            return cudaErrorInvalidValue;
        else if constexpr (S::P == 8)
            return run(typename dx_choice<S, false>::type());
        else
            return 2 * v->N > multiprocessors ? run(typename dx_choice<S, true>::type())
                                              : run(typename dx_choice<S, false>::type());
    });
}
template <class S> unsigned dx_blocks(int64_t N, int multiprocessors) {
    return ck_blocks(N * grad_tiling<S>::TILES, 1, (int64_t)multiprocessors * S::BLOCKS);
}

template <typename T> cudaError_t dx_run(const struct ck_conv *v, dx_args a, int multiprocessors, cudaStream_t stream) {
    return dx_run_shape(v, multiprocessors, [&](auto s) {
        using S               = decltype(s);
        using D               = grad_tiling<S>;
        const unsigned blocks = dx_blocks<S>(v->N, multiprocessors);
        a.idle                = idle_blocks(blocks, multiprocessors);
        const unsigned all    = blocks + (unsigned)a.idle;
        if (a.before.partial) return launch(dx_kernel<S, T, true>, a, all, D::DX_THREADS, D::BYTES, stream);
        const int bytes = (int)blocks <= multiprocessors ? alone_bytes(D::BYTES) : (int)D::BYTES;
        return launch(dx_kernel<S, T, false>, a, all, D::DX_THREADS, bytes, stream);
    });
}

int dx_bytes(const struct ck_conv *v, int multiprocessors) {
    int bytes = 0;
    (void)dx_run_shape(v, multiprocessors,
                       [&](auto s) { return bytes = grad_tiling<decltype(s)>::BYTES, cudaSuccess; });
    return bytes;
}

} // namespace

cudaError_t dgrad(const struct ck_cifar_conv_grad *args, int multiprocessors, cudaStream_t stream) {
    dx_args a           = {};
    a.grad              = args_of(args, NULL, multiprocessors);
    a.grad.sums_partial = args->grad_sums;
    a.dy                = args->dy;
    a.before.partial    = args->before.rows;
    a.before.rows       = args->before.count;
    a.before.finish     = args->before.finish;
    a.before.inverse    = 1 / (double)args->before.finish.count;
    return args->conv.type == CK_F16 ? dx_run<__half>(&args->conv, a, multiprocessors, stream)
                                     : dx_run<__nv_bfloat16>(&args->conv, a, multiprocessors, stream);
}

} // namespace cifar

int ck_cifar_dgrad_rows(const struct ck_conv *v, int multiprocessors) {
    unsigned rows = 0;
    (void)cifar::dx_run_shape(v, multiprocessors, [&](auto s) {
        return rows = cifar::dx_blocks<decltype(s)>(v->N, multiprocessors), cudaSuccess;
    });
    return (int)rows;
}

/* Measured on GPUs with 132 multiprocessors: with at most one image for each, a launch for dx and a common launch for
 * the dw of many convolutions are faster than one launch for both gradients of each convolution. */
bool ck_cifar_dgrad_supports(const struct ck_conv *v, int multiprocessors, int block_bytes) {
    return ck_cifar_conv_grad_supports(v, block_bytes) && !cifar::is_narrow(v) && v->C != 3 && v->R == 3 &&
           v->N <= multiprocessors && cifar::dx_bytes(v, multiprocessors) <= block_bytes &&
           (int)cifar::WGRADS_BYTES <= block_bytes;
}
