/* cuda/conv/cifar/cifar_grad_kernels.cuh: the kernels of the backward of CIFAR convolutions; see
 * cuda/conv/cifar/cifar_conv_grad.cu. */
#ifndef CK_CIFAR_GRAD_KERNELS_CUH
#define CK_CIFAR_GRAD_KERNELS_CUH

#include "cuda/conv/cifar/cifar_grad_dw.cuh"
#include "cuda/conv/cifar/cifar_grad_dx.cuh"

namespace cifar {
namespace {

/* ---- the kernels ---- */

/* The two kinds of warps of a joint block synchronise twice for each tile: when it is ready, and when it has been
 * used. */
template <class S> __device__ __forceinline__ void joint_barrier() {
    barrier_sync<0, grad_tiling<S>::BLOCK>();
}

/* Starts the copies of a block's tile number `job`: of g or of dy_x. */
template <class S, bool G, typename T>
__device__ __forceinline__ void joint_issue_part(const T *from, uint32_t dy, int64_t job, int K) {
    using D            = grad_tiling<S>;
    using L            = typename D::DY;
    const int64_t out  = job / D::TILES * S::P * S::P * K;
    const int     row0 = (int)(job % D::TILES) * D::TH - L::LEFT;
    tile_issue<L, !G, false>(G ? dy : dy + L::BYTES, from + out, row0, 1, {K, K});
}
/* Starts the copies of g and of dy_x; with g_only, of g alone. After the last tile the group is empty. */
template <class S, typename T>
__device__ __forceinline__ void joint_issue_dy(const grad_args &a, uint32_t dy, int64_t job, bool g_only) {
    if (job < a.N * grad_tiling<S>::TILES) {
        const int K = out_channels<S>(a);
        joint_issue_part<S, true>((const T *)a.g, dy, job, K);
        if (a.dy_x && !g_only) joint_issue_part<S, false>((const T *)a.dy_x, dy, job, K);
    }
    ck_copy_commit();
}
template <class S, typename T>
__device__ __forceinline__ void joint_issue_x(const grad_args &a, uint32_t x, int64_t job) {
    using D     = grad_tiling<S>;
    const int C = in_channels<S>(a);
    if (job < a.N * D::TILES)
        tile_issue<typename D::DW_X, false, KEEP_X>(x, (const T *)a.x + job / D::TILES * S::H * S::H * C,
                                                    input_row<S>((int)(job % D::TILES) * D::TH), 1, {C, C});
    ck_copy_commit();
}

/* The first warps prepare dy and compute dx. */
template <class S, typename T> __device__ __forceinline__ void joint_dx(const grad_args &a, char *memory) {
    using D                = grad_tiling<S>;
    using L                = typename D::DY;
    constexpr int  LATER   = D::STAGES - 1;
    const int      K       = out_channels<S>(a);
    const uint32_t base    = ck_shared(memory);
    float         *rows    = reinterpret_cast<float *>(memory + D::SUMS_AT),
          *table           = reinterpret_cast<float *>(memory + D::TABLE_AT);
    float first[2 * D::NT] = {}, second[2 * D::NT] = {};
    filter_issue<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT, (const T *)a.w, a);
    if (a.dy_x)
        for (int i = 0; i < stages<S>(a); i++)
            if (blockIdx.x + (int64_t)i * gridDim.x < a.N * D::TILES)
                joint_issue_part<S, false>((const T *)a.dy_x, base + (uint32_t)(D::DY_AT + i * D::DY_STAGE),
                                           blockIdx.x + (int64_t)i * gridDim.x, K);
    dx_clear<S>(a, base, rows);
    if (a.bn_x) dx_prefetch<S, T>(a, (int)blockIdx.x);
    ck_begin_after_last();
    table_entry<S> entry;
    entry.load(a);
    if (a.dy_coeffs) tile_warm<L>(a.dy_coeffs, K, 3, {K, K});
    ck_copy_commit();
    for (int i = 0; i < stages<S>(a); i++)
        joint_issue_dy<S, T>(a, base + (uint32_t)(D::DY_AT + i * D::DY_STAGE), blockIdx.x + (int64_t)i * gridDim.x,
                             true);
    entry.store(table);
    if (S::ANY && a.one_stage)
        ck_copy_wait<1>();
    else
        ck_copy_wait<D::STAGES>();
    filter_transpose<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT);
    int stage = 0;
    for (int64_t job = blockIdx.x; job < a.N * D::TILES; job += gridDim.x) {
        const int      y0 = (int)(job % D::TILES) * D::TH;
        const uint32_t dy = base + (uint32_t)(D::DY_AT + stage * D::DY_STAGE);
        wait_for_stage<S>(a);
        if (a.dy_x)
            tile_bn_grad<L, LATER, T>(dy, dy + L::BYTES, a.dy_coeffs, K, y0 - L::LEFT, 1, {K, K});
        else
            ck_copy_wait<LATER>();
        joint_barrier<S>();
        dx_tile<S, T>(a, dy, dx_filter<S>(base + D::W_AT), table, job / D::TILES, y0, first, second);
        joint_barrier<S>();
        joint_issue_dy<S, T>(a, dy, job + (int64_t)stages<S>(a) * gridDim.x, false);
        stage = stage + 1 == stages<S>(a) ? 0 : stage + 1;
    }
    dx_end<S>(a, first, second, rows, table, (int)blockIdx.x);
}

/* The other warps prepare x and compute dw. */
template <class S, typename T> __device__ __forceinline__ void joint_dw(const grad_args &a, char *memory) {
    using D                = grad_tiling<S>;
    using X                = typename D::DW_X;
    constexpr int    LATER = D::STAGES - 1;
    const int        C     = in_channels<S>(a);
    const uint32_t   base  = ck_shared(memory);
    const dw_slot<S> slot_of_warp;
    const bool       exists              = slot_of_warp.exists(a, 0, 0);
    float            acc[D::EARLY][2][4] = {};
    for (int i = 0; i < stages<S>(a); i++)
        joint_issue_x<S, T>(a, base + (uint32_t)(x_at<S>(a) + i * X::BYTES), blockIdx.x + (int64_t)i * gridDim.x);
    for (int i = 0; i < stages<S>(a); i++) tile_margin<X>(base + (uint32_t)(x_at<S>(a) + i * X::BYTES));
    ck_begin_after_last();
    if (a.scale_bias) tile_warm<X>(a.scale_bias, C, 2, {C, C});
    int stage = 0;
    for (int64_t job = blockIdx.x; job < a.N * D::TILES; job += gridDim.x) {
        const int      y0 = (int)(job % D::TILES) * D::TH;
        const uint32_t dy = base + (uint32_t)(D::DY_AT + stage * D::DY_STAGE),
                       x  = base + (uint32_t)(x_at<S>(a) + stage * X::BYTES);
        wait_for_stage<S>(a);
        if (a.scale_bias)
            tile_act<X, LATER, T>(x, a.scale_bias, C, input_row<S>(y0), 1, {C, C});
        else
            ck_copy_wait<LATER>();
        joint_barrier<S>();
        dw_piece<S, T>(acc, dy + slot_of_warp.dy_bytes(), x + slot_of_warp.x_bytes(), slot_of_warp.group,
                       slot_of_warp.late, exists);
        joint_barrier<S>();
        joint_issue_x<S, T>(a, x, job + (int64_t)stages<S>(a) * gridDim.x);
        stage = stage + 1 == stages<S>(a) ? 0 : stage + 1;
    }
    dw_block<S>(acc, a.dw_partial + (int64_t)blockIdx.x * D::DW, reinterpret_cast<float *>(memory + barrier_at<S>(a)),
                slot_of_warp, exists);
}

template <class S, typename T> __global__ void __launch_bounds__(grad_tiling<S>::BLOCK, 1) joint_kernel(grad_args a) {
    extern __shared__ __align__(16) char memory[];
    if ((int)threadIdx.x < grad_tiling<S>::DX_THREADS)
        joint_dx<S, T>(a, memory);
    else
        joint_dw<S, T>(a, memory);
}

template <class S, typename T> __device__ __forceinline__ void split_dw(const grad_args &a, char *memory) {
    using D     = grad_tiling<S>;
    using L     = typename D::DW_DY;
    using X     = typename D::DW_X;
    const int C = in_channels<S>(a), K = out_channels<S>(a), blocks = D::group(a.C, a.K), parts_in = D::parts_in(a.C);
    const int part = (int)blockIdx.x / blocks, k0 = part / parts_in * D::KB, c0 = part % parts_in * D::CB;
    const channels   of_dy = {K, K - k0}, of_x = {C, C - c0};
    const uint32_t   base = ck_shared(memory), dy = base + D::S_DY_AT, line = base + D::S_LINE_AT, x = base + D::S_X_AT;
    float            acc[D::EARLY][2][4] = {};
    const dw_slot<S> slot_of_warp;
    const bool       exists = slot_of_warp.exists(a, k0, c0);
    const auto       issue =
        [&](int64_t image,
            int     images) { /* all but g */
                          if (a.dy_x)
                              tile_issue<L, true, false>(line, (const T *)a.dy_x + image * S::P * S::P * K + k0, 0,
                                                         images, of_dy);
                          tile_issue<X, false, KEEP_X>(x, (const T *)a.x + image * S::H * S::H * C + c0,
                                                       input_row<S>(0), images, of_x);
        };
    const int64_t first = (int64_t)((int)blockIdx.x % blocks) * D::I;
    if (first < a.N) issue(first, (int)min((int64_t)D::I, a.N - first));
    tile_margin<X>(x);
    ck_begin_after_last();
    const auto issue_dy = [&](int64_t image, int images) {
        tile_issue<L, false, false>(dy, (const T *)a.g + image * S::P * S::P * K + k0, 0, images, of_dy);
        if (image != first) issue(image, images);
        ck_copy_commit();
    };
    for (int64_t image = first; image < a.N; image += blocks * D::I) {
        const int images = (int)min((int64_t)D::I, a.N - image);
        issue_dy(image, images);
        if (!a.dy_x && !a.scale_bias) ck_copy_wait<0>();
        if (a.dy_x) tile_bn_grad<L, 0, T>(dy, line, a.dy_coeffs + k0, K, 0, images, of_dy);
        if (a.scale_bias) tile_act<X, 0, T>(x, a.scale_bias + c0, C, input_row<S>(0), images, of_x);
        __syncthreads();
        dw_piece<S, T>(acc, dy + slot_of_warp.dy_bytes(), x + slot_of_warp.x_bytes(), slot_of_warp.group,
                       slot_of_warp.late, exists);
        __syncthreads();
    }
    dw_block<S>(acc, a.dw_partial + (int64_t)blockIdx.x * D::DW, reinterpret_cast<float *>(memory + D::BARRIER_AT),
                slot_of_warp, exists);
}

/* Blocks of dx: `block` of `blocks`. */
template <class S, typename T>
__device__ __forceinline__ void split_dx(const grad_args &a, char *memory, int block, int blocks) {
    using D             = grad_tiling<S>;
    using L             = typename D::DY;
    const uint32_t base = ck_shared(memory), dy = base + D::DY_AT, line = base + D::LINE_AT;
    float         *rows        = reinterpret_cast<float *>(memory + D::SUMS_AT),
          *table               = reinterpret_cast<float *>(memory + D::TABLE_AT);
    float     first[2 * D::NT] = {}, second[2 * D::NT] = {};
    const int K = out_channels<S>(a);
    static_assert(D::TILES == 1, "whole images");
    const auto issue = [&](int64_t image) {
        tile_issue<L, true, false>(line, (const T *)a.dy_x + image * S::P * S::P * K, -L::LEFT, 1, {K, K});
    };
    if (a.dy_x && block < a.N) issue(block);
    filter_issue<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT, (const T *)a.w, a);
    dx_clear<S>(a, base, rows);
    ck_begin_after_last();
    table_entry<S> entry;
    entry.load(a);
    if (a.dy_coeffs) tile_warm<L>(a.dy_coeffs, K, 3, {K, K});
    for (int64_t image = block; image < a.N; image += blocks) {
        const int64_t out = image * S::P * S::P * K;
        tile_issue<L, false, false>(dy, (const T *)a.g + out, -L::LEFT, 1, {K, K});
        if (a.dy_x && image != block) issue(image);
        ck_copy_commit();
        if (a.dy_x)
            tile_bn_grad<L, 0, T>(dy, line, a.dy_coeffs, K, -L::LEFT, 1, {K, K});
        else
            ck_copy_wait<0>();
        if (image == block) {
            entry.store(table);
            filter_transpose<S, D::NT, D::W_PITCH, D::DX_WARPS>(base + D::W_AT);
        }
        __syncthreads();
        dx_tile<S, T>(a, dy, dx_filter<S>(base + D::W_AT), table, image, 0, first, second);
        __syncthreads();
    }
    dx_end<S>(a, first, second, rows, table, block);
}

template <class S, typename T> __global__ void __launch_bounds__(THREADS, 2) split_kernel(grad_args a) {
    extern __shared__ __align__(16) char memory[];
    if (blockIdx.x < SPLIT_DW_BLOCKS)
        split_dw<S, T>(a, memory);
    else
        split_dx<S, T>(a, memory, (int)blockIdx.x - SPLIT_DW_BLOCKS, (int)gridDim.x - SPLIT_DW_BLOCKS);
}

/* ---- the stem: dw only ---- */

/* As dw_taps, with the tile of stem_fill: a piece has 4 columns of the filter by 4 channels in its 16 columns. */

template <bool ANY> using stem_shape = shape<16, 16, 32, 1, 3, false, ANY>; /* of dy; only dy is used */
template <bool ANY> using stem_tile  = output_tile<stem_shape<ANY>, 1, STEM_TH, STEM_K, false>;
enum {
    STEM_LINE_AT = stem_tile<false>::BYTES,
    STEM_X_AT    = STEM_LINE_AT + stem_tile<false>::VECTORS * 16,
    STEM_ALL     = STEM_X_AT + STEM_BYTES
};

/* The stem can finish the BN behind it: it adds the rows of gradient sums that the blocks of the launch before it
 * stored, instead of a small launch between the two. Each block adds the rows for itself, because it needs the
 * coefficients; one block also stores the results. */
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

/* The sums of K channels. A thread adds the rows of four numbers; the order depends on K and WARPS only. */
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
    /* Writes the coefficients [3][K] to `room`, ROOM bytes of shared memory, and returns them. stores: this block
     * stores the results. All threads of the block synchronise twice. */
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

template <typename T, bool ANY, class Args> __global__ void __launch_bounds__(THREADS, 2) stem_grad_kernel(Args a) {
    using stem_dy       = stem_tile<ANY>;
    const int         K = ANY ? a.K : (int)STEM_K;
    const channels    n = {K, K};
    extern __shared__ __align__(16) char memory[];
    const uint32_t                       base = ck_shared(memory), line = base + STEM_LINE_AT;
    const int                            lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const uint32_t ya = base + (uint32_t)(((lane & 7) + (lane >> 4) * 8) * stem_dy::PITCH + (lane >> 3 & 1) * 16);
    const uint32_t xb = base + STEM_X_AT + (uint32_t)((lane >> 4) * 16);
    float          acc[3][2][4] = {};
    const auto     issue =
        [&](int64_t job) { /* all but g */
                           const int64_t image = job / STEM_TILES;
                           const int     y0    = (int)(job % STEM_TILES) * STEM_TH;
                           if (a.dy_x)
                               tile_issue<stem_dy, true, false>(
                                   line, (const T *)a.dy_x + image * STEM_SIDE * STEM_SIDE * K, y0, 1, n);
                           stem_fill(memory + STEM_X_AT, (const T *)a.x + image * STEM_SIDE * STEM_SIDE * 3, y0 - 1);
        };
    if (blockIdx.x < a.N * STEM_TILES) issue(blockIdx.x);
    ck_begin_after_last();
    const float             *coeffs = a.dy_coeffs;
    stem_sums<STEM_K, WARPS> sums;
    if constexpr (Args::FINISH) sums.begin(a.before, blockIdx.x == 0);
    for (int64_t job = blockIdx.x; job < a.N * STEM_TILES; job += gridDim.x) {
        const int64_t out = job / STEM_TILES * STEM_SIDE * STEM_SIDE * K;
        const int     y0  = (int)(job % STEM_TILES) * STEM_TH;
        tile_issue<stem_dy, false, false>(base, (const T *)a.g + out, y0, 1, n);
        if (job != blockIdx.x) issue(job);
        ck_copy_commit();
        if constexpr (Args::FINISH)
            if (job == blockIdx.x)
                coeffs = sums.end(a.before, reinterpret_cast<float *>(memory + STEM_ALL), blockIdx.x == 0);
        if (!a.dy_x) ck_copy_wait<0>();
        if (a.dy_x) tile_bn_grad<stem_dy, 0, T>(base, line, coeffs, K, y0, 1, n);
        __syncthreads();
        for (int p0 = warp * 16; p0 < STEM_TH * STEM_SIDE; p0 += WARPS * 16) {
            const int p = p0 + (lane & 15);
            uint32_t  af[4], bf[4];
            ck_ldmatrix_trans(af, ya + (uint32_t)(p0 * stem_dy::PITCH));
#pragma unroll
            for (int r = 0; r < 3; r++) {
                ck_ldmatrix_trans(bf, xb + stem_pixel(p / STEM_SIDE + r, p % STEM_SIDE));
                mma<T>(acc[r][0], af, bf[0], bf[1]);
                mma<T>(acc[r][1], af, bf[2], bf[3]);
            }
        }
        __syncthreads();
    }
    dw_warps<WARPS, 1, 0>(acc, reinterpret_cast<float *>(memory), 0, warp);
    if (warp == 0) dw_write<0, 3>(acc, a.dw_partial + (int64_t)blockIdx.x * STEM_DW);
}

} // namespace
} // namespace cifar

#endif
