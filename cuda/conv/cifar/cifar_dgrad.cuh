/* cuda/conv/cifar/cifar_dgrad.cuh: the input gradient of a CIFAR convolution without the gradient of its filter. */
#ifndef CK_CIFAR_DGRAD_CUH
#define CK_CIFAR_DGRAD_CUH

#include "cuda/conv/cifar/cifar_grad_dw.cuh"
#include "cuda/conv/cifar/cifar_grad_dx.cuh"

namespace cifar {
namespace {

/* A shape whose dx is computed alone: TH rows of dy a tile, WARPS warps, BLOCKS blocks a multiprocessor. */
template <class S, int TH_, int WARPS_, int BLOCKS_>
struct dx_shape : shape<S::C, S::K, S::H, S::STRIDE, S::R> {
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
    float                     *grad_sums;
    int                        rows;
    struct ck_bn_grad_finalize finish;
    double                     inverse;
};
struct dx_args {
    grad_args grad;
    dx_finish last;
    void     *dy; /* also stored, or NULL */
};

/* A thread's rows of `partial`; the first loads start before the copies of tiles. */
template <class S> struct dx_rows_of_last {
    using D = grad_tiling<S>;
    enum { FOURS = 2 * S::K / 4, SHARES = D::DX_THREADS / FOURS, FLIGHT = S::K == 16 ? 8 : 16 };
    float4 v[FLIGHT];
    __device__ __forceinline__ void load(const dx_finish &f, int from) {
        const int four = (int)threadIdx.x % FOURS, b = from + (int)threadIdx.x / FOURS;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
            v[i] = b + i * SHARES < f.rows
                       ? __ldcg(reinterpret_cast<const float4 *>(f.partial + (int64_t)(b + i * SHARES) * 2 * S::K) +
                                four)
                       : make_float4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void add_to(float (&s)[4]) const {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) s[0] += v[i].x, s[1] += v[i].y, s[2] += v[i].z, s[3] += v[i].w;
    }
};
/* All threads add `partial` in a fixed order, the same in all blocks. The coefficients are in shared memory afterwards;
 * block 0 stores them. early: gamma, mean and rstd of channel threadIdx.x. */
template <class S>
__device__ __forceinline__ void dx_coeffs(const dx_finish &f, dx_rows_of_last<S> &rows, const float *early,
                                          char *memory) {
    using D                = grad_tiling<S>;
    using R                = dx_rows_of_last<S>;
    constexpr int K        = S::K;
    float        *room     = reinterpret_cast<float *>(memory + D::ROOM_AT),
          *coeffs          = reinterpret_cast<float *>(memory + D::COEFF_AT);
    const int c = (int)threadIdx.x;
    float     s[4] = {};
    rows.add_to(s);
    for (int b = R::SHARES * R::FLIGHT; b < f.rows; b += R::SHARES * R::FLIGHT) rows.load(f, b), rows.add_to(s);
#pragma unroll
    for (int offset = R::FOURS; offset < CK_WARP; offset *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] += __shfl_xor_sync(0xffffffffu, s[i], offset);
    if (c % CK_WARP < R::FOURS)
        *reinterpret_cast<float4 *>(room + c / CK_WARP * 2 * K + c % R::FOURS * 4) = make_float4(s[0], s[1], s[2], s[3]);
    __syncthreads();
    if (c < K) {
        double first = 0, second = 0;
#pragma unroll
        for (int w = 0; w < D::DX_WARPS; w++)
            first += (double)room[w * 2 * K + c], second += (double)room[w * 2 * K + K + c];
        const float  sum = (float)first, product = (float)second;
        const double gamma = (double)early[0], mean = (double)early[1], rstd = (double)early[2];
        const double scale = gamma * rstd, X = (double)product * f.inverse, G = (double)sum * f.inverse;
        const float  a = (float)scale, b = (float)(-scale * rstd * X), d = (float)(scale * (mean * rstd * X - G));
        coeffs[c] = a, coeffs[K + c] = b, coeffs[2 * K + c] = d;
        if (blockIdx.x == 0) {
            f.grad_sums[c] = sum, f.grad_sums[K + c] = product;
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
        if (to && (D::TILES == 1 || (h >= y0 && h < y0 + D::TH))) ck_store_whole(to + from, out);
    });
}

/* Starts the copies of tile `job`: g, and dy_x unless its copies are in flight. */
template <class S, bool G, bool X, typename T> __device__ __forceinline__ void dx_issue(const grad_args &a, int64_t job,
                                                                                         uint32_t base) {
    using D            = grad_tiling<S>;
    using L            = typename D::DY;
    const int64_t out  = job / D::TILES * S::P * S::P * S::K;
    const int     row0 = (int)(job % D::TILES) * D::TH - L::LEFT;
    if (G) tile_issue<L, false, false>(base + D::DY_AT, (const T *)a.g + out, row0, 1);
    if (X && a.dy_x) tile_issue<L, true, false>(base + D::LINE_AT, (const T *)a.dy_x + out, row0, 1);
}

template <class S, typename T, bool FINISH>
__global__ void __launch_bounds__(grad_tiling<S>::DX_THREADS, S::BLOCKS) dx_kernel(dx_args args) {
    using D = grad_tiling<S>;
    using L = typename D::DY;
    extern __shared__ __align__(16) char memory[];
    const grad_args &a    = args.grad;
    const uint32_t   base = ck_shared(memory);
    float           *rows = reinterpret_cast<float *>(memory + D::SUMS_AT),
          *table          = reinterpret_cast<float *>(memory + D::TABLE_AT);
    if (!a.w_new) filter_issue<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT, (const T *)a.w, a);
    if (!a.x_new && blockIdx.x < a.N * D::TILES) dx_issue<S, false, true, T>(a, blockIdx.x, base);
    dx_clear<S>(a, base, rows);
    if (!a.x_new && a.bn_x) dx_prefetch<S, T>(a);
    if constexpr (FINISH) {
        float early[3] = {};
        if ((int)threadIdx.x < S::K)
            early[0] = args.last.finish.gamma[threadIdx.x], early[1] = args.last.finish.mean_rstd[threadIdx.x],
            early[2] = args.last.finish.mean_rstd[S::K + threadIdx.x];
        table_entry<S>(a).store(table); /* of the forward pass */
        ck_begin_after_last();
        dx_rows_of_last<S> last;
        last.load(args.last, 0);
        if (blockIdx.x < a.N * D::TILES) dx_issue<S, true, false, T>(a, blockIdx.x, base);
        if (a.x_new && blockIdx.x < a.N * D::TILES) dx_issue<S, false, true, T>(a, blockIdx.x, base);
        if (a.w_new) filter_issue<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT, (const T *)a.w, a);
        ck_copy_commit();
        dx_coeffs<S>(args.last, last, early, memory);
    } else {
        ck_begin_after_last();
        const table_entry<S> entry(a);
        if (a.dy_coeffs) tile_warm<L>(a.dy_coeffs, S::K, 3);
        if (blockIdx.x < a.N * D::TILES) dx_issue<S, true, false, T>(a, blockIdx.x, base);
        if (a.x_new && blockIdx.x < a.N * D::TILES) dx_issue<S, false, true, T>(a, blockIdx.x, base);
        if (a.w_new) filter_issue<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT, (const T *)a.w, a);
        ck_copy_commit();
        entry.store(table);
    }
    const float *coeffs    = FINISH ? reinterpret_cast<const float *>(memory + D::COEFF_AT) : a.dy_coeffs;
    float first[2 * D::NT] = {}, second[2 * D::NT] = {};
    ck_copy_wait<0>();
    filter_transpose<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT);
    for (int64_t job = blockIdx.x; job < a.N * D::TILES; job += gridDim.x) {
        const int y0 = (int)(job % D::TILES) * D::TH;
        if (a.dy_x)
            dx_bn_grad<S, L, T>(base + D::DY_AT, base + D::LINE_AT, coeffs, y0,
                                args.dy ? (T *)args.dy + job / D::TILES * S::P * S::P * S::K : (T *)NULL);
        else
            ck_copy_wait<0>();
        __syncthreads();
        dx_tile<S, T>(a, base + D::DY_AT, dx_filter<S>(base + D::W_AT), table, job / D::TILES, y0, first, second);
        if (job + gridDim.x < a.N * D::TILES) {
            __syncthreads();
            dx_issue<S, true, true, T>(a, job + gridDim.x, base);
            ck_copy_commit();
        }
    }
    dx_end<S>(a, first, second, rows, table, (int)blockIdx.x);
}

/* The sums alone, as a second launch. */
template <int C> struct dx_sums_place {
    enum { CH = C };
    static constexpr bool ANY = false;
};
template <int C> __global__ void __launch_bounds__(THREADS) dx_sums_kernel(add_args a) {
    ck_let_next_begin();
    ck_wait_for_last();
    sums_add(a.sums_partial, a.sums_rows, (int)blockIdx.x, add_end<dx_sums_place<C>>{a}, C);
}
template <int C>
cudaError_t dx_sums_run(const grad_args &a, const struct ck_bn_grad_finalize &finish, int rows, cudaStream_t stream) {
    add_args add         = {.partial      = NULL,
                            .sums_partial = a.sums_partial,
                            .dw           = NULL,
                            .grad_sums    = a.grad_sums,
                            .each         = 0,
                            .sums_rows    = rows,
                            .sums_blocks  = C / SUMS_CHANNELS,
                            .C            = C,
                            .K            = a.K,
                            .accumulate   = false,
                            .finish       = finish,
                            .inverse      = 1 / (double)finish.count};
    add.finish.mean_rstd = a.mean_rstd;
    return launch(dx_sums_kernel<C>, add, C / SUMS_CHANNELS, THREADS, 0, stream);
}

} // namespace
} // namespace cifar

#endif
