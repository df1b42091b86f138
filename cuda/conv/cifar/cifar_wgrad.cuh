/* cuda/conv/cifar/cifar_wgrad.cuh: the filter gradients of many CIFAR convolutions in one launch. */
#ifndef CK_CIFAR_WGRAD_CUH
#define CK_CIFAR_WGRAD_CUH

#include "cuda/conv/cifar/cifar_grad_dw.cuh"

namespace cifar {
namespace {

/* A shape whose dw is computed alone: TH rows of dy and IMAGES images a tile. */
template <class S, int TH_, int IMAGES_, bool PLAIN_> struct dw_shape : shape<S::C, S::K, S::H, S::STRIDE, S::R> {
    using BASE = S;
    static constexpr bool PLAIN = PLAIN_; /* dy is complete */
};
template <class B, int TH_, int IMAGES_, bool PLAIN_> struct grad_tiling<dw_shape<B, TH_, IMAGES_, PLAIN_>> {
    using S                     = dw_shape<B, TH_, IMAGES_, PLAIN_>;
    static constexpr bool JOINT = true /* TH rows a tile */, BY_ROW = S::STRIDE == 1;
    enum { DW_WARPS = 8, DW_THREADS = THREADS, DW_BARRIER = 0, TH = TH_, TILES = S::P / TH, I = IMAGES_, STAGES = 2 };
    static_assert(I == 1 || TILES == 1, "rows of one image, or whole images");
    enum { KB = S::K < 32 ? (int)S::K : 32, CB = S::C < 32 ? (int)S::C : 32, PARTS = S::K / KB * (S::C / CB) };
    enum { HELD = KB / PIECE * (CB / PIECE), DW = KB * CB * S::TAPS };
    enum {
        SPLIT  = S::TAPS > 1 && !BY_ROW ? 2 : 1,
        EARLY  = (S::TAPS + SPLIT - 1) / SPLIT,
        GROUPS = DW_WARPS / (HELD * SPLIT)
    };
    static_assert(GROUPS >= 1, "a warp has one piece");
    static __host__ __device__ int parts_in(int) { return S::C / CB; }
    static __host__ __device__ int parts(int, int) { return PARTS; }
    using DW_DY = output_tile<S, I, TH, KB, false>;
    using DW_X  = input_tile<S, I, TH, CB>;
    enum {
        LINE_AT = DW_DY::BYTES,
        X_AT    = LINE_AT + (PLAIN_ ? 0 : DW_DY::VECTORS * 16),
        STAGE   = X_AT + DW_X::BYTES,
        ROUND   = GROUPS / 2 * HELD * SPLIT * EARLY * 8 * CK_WARP * 4,
        BYTES   = STAGES * STAGE > ROUND ? STAGES * STAGE : ROUND
    };
};

template <int SET> struct dw_set;
template <> struct dw_set<0> { enum { T16 = 8, T32 = 8, I3264 = 1, I64 = 2, PLAIN = 0 }; };
template <> struct dw_set<1> { enum { T16 = 8, T32 = 8, I3264 = 1, I64 = 2, PLAIN = 1 }; };
template <> struct dw_set<2> { enum { T16 = 16, T32 = 16, I3264 = 2, I64 = 4, PLAIN = 1 }; };
template <int SET> using dw_16    = dw_shape<shape<16, 16, 32, 1, 3>, dw_set<SET>::T16, 1, dw_set<SET>::PLAIN>;
template <int SET> using dw_16_32 = dw_shape<shape<16, 32, 32, 2, 3>, 8, 1, dw_set<SET>::PLAIN>;
template <int SET> using dw_32    = dw_shape<shape<32, 32, 16, 1, 3>, dw_set<SET>::T32, 1, dw_set<SET>::PLAIN>;
template <int SET> using dw_32_64 = dw_shape<shape<32, 64, 16, 2, 3>, 8, dw_set<SET>::I3264, dw_set<SET>::PLAIN>;
template <int SET> using dw_64    = dw_shape<shape<64, 64, 8, 1, 3>, 8, dw_set<SET>::I64, dw_set<SET>::PLAIN>;

enum { DW_MOST = 56 /* convolutions a launch */ };
struct dw_conv {
    const void  *g, *dy_x, *x;
    const float *dy_coeffs, *scale_bias;
    float       *partial, *dw; /* partial: [parts][slices][DW] */
    int          shape, slices, first_block, first_add;
};
struct dw_list {
    dw_conv conv[DW_MOST];
    int     convs;
    bool    accumulate;
    int64_t N;
};

/* As tile_act and tile_bn_grad, but all vectors are loaded before the first is used. */
template <class L> struct dw_vectors {
    enum { LINE = L::WIDE * L::CHUNKS, STEP = L::THREADS / LINE, LINES = L::I * L::ROWS, MOST = (LINES + STEP - 1) / STEP };
};
template <class L, typename T>
__device__ __forceinline__ void dw_act(uint32_t at, const float *scale_bias, int gap, int row0, int images) {
    constexpr int MOST = dw_vectors<L>::MOST, HALF = MOST > 4 ? (MOST + 1) / 2 : MOST;
    float         scale[8], bias[8];
    load_floats(scale, scale_bias + (int)threadIdx.x % L::CHUNKS * 8);
    load_floats(bias, scale_bias + gap + (int)threadIdx.x % L::CHUNKS * 8);
#pragma unroll
    for (int half = 0; half < MOST; half += HALF) {
        uint4 v[HALF];
        int   n = 0;
        tile_for_each<L>(row0, images, channels{}, [&](uint32_t place, int, int, bool) {
            if (n >= half && n < half + HALF) v[n - half] = ck_get16(at + place);
            n++;
        });
        n = 0;
        tile_for_each<L>(row0, images, channels{}, [&](uint32_t place, int, int, bool real) {
            if (n >= half && n < half + HALF) {
                const uint4 out = act<T>(v[n - half], scale, bias);
                if (real) ck_put16(at + place, out);
            }
            n++;
        });
    }
}
template <class L, typename T>
__device__ __forceinline__ void dw_bn_grad(uint32_t at, uint32_t line, const float *coeffs, int gap, int row0,
                                           int images) {
    constexpr int MOST = dw_vectors<L>::MOST;
    float         a[8], b[8], c[8];
    const int     first = (int)threadIdx.x % L::CHUNKS * 8;
    load_floats(a, coeffs + first);
    load_floats(b, coeffs + gap + first);
    load_floats(c, coeffs + 2 * gap + first);
    uint4 g[MOST], x[MOST];
    int   n = 0;
    tile_for_each<L>(row0, images, channels{}, [&](uint32_t place, int, int v, bool) {
        g[n] = ck_get16(at + place), x[n] = ck_get16(line + (uint32_t)v * 16), n++;
    });
    n = 0;
    tile_for_each<L>(row0, images, channels{}, [&](uint32_t place, int, int, bool real) {
        float p[8], q[8];
        ck_unpack<T>(g[n], p);
        ck_unpack<T>(x[n], q);
#pragma unroll
        for (int i = 0; i < 8; i++) p[i] = fmaf(a[i], p[i], fmaf(b[i], q[i], c[i]));
        if (real) ck_put16(at + place, ck_pack<T>(p));
        n++;
    });
}

/* One slice of the images for one part of dw. */
template <class S, typename T>
__device__ __forceinline__ void dw_run(const dw_conv &a, int64_t N, int part, int slice, char *memory) {
    using D        = grad_tiling<S>;
    using L        = typename D::DW_DY;
    using X        = typename D::DW_X;
    const int      k0 = part / (S::C / D::CB) * D::KB, c0 = part % (S::C / D::CB) * D::CB;
    const uint32_t base = ck_shared(memory);
    float          acc[D::EARLY][2][4] = {};
    const dw_slot<S> slot_of_warp;
    const int64_t    jobs = D::I > 1 ? (N + D::I - 1) / D::I : N * D::TILES;
    const auto image_of = [](int64_t job) { return D::I > 1 ? job * D::I : job / D::TILES; };
    const auto row_of   = [](int64_t job) { return D::I > 1 ? 0 : (int)(job % D::TILES) * D::TH; };
    const auto issue    = [&](int64_t job, uint32_t at) {
        if (job < jobs) {
            const int64_t image  = image_of(job);
            const int     images = (int)min((int64_t)D::I, N - image), y0 = row_of(job);
            tile_issue<L, false, false>(at, (const T *)a.g + image * S::P * S::P * S::K + k0, y0, images);
            if (!S::PLAIN && a.dy_x)
                tile_issue<L, true, false>(at + D::LINE_AT, (const T *)a.dy_x + image * S::P * S::P * S::K + k0, y0,
                                           images);
            tile_issue<X, false, false>(at + D::X_AT, (const T *)a.x + image * S::H * S::H * S::C + c0,
                                        input_row<S>(y0), images);
        }
        ck_copy_commit();
    };
    for (int i = 0; i < D::STAGES; i++) tile_margin<X>(base + (uint32_t)(i * D::STAGE + D::X_AT));
    for (int i = 0; i < D::STAGES; i++) issue(slice + (int64_t)i * a.slices, base + (uint32_t)(i * D::STAGE));
    int stage = 0;
    for (int64_t job = slice; job < jobs; job += a.slices) {
        const int      images = (int)min((int64_t)D::I, N - image_of(job)), y0 = row_of(job);
        const uint32_t at = base + (uint32_t)(stage * D::STAGE);
        ck_copy_wait<D::STAGES - 1>();
        if (!S::PLAIN && a.dy_x) dw_bn_grad<L, T>(at, at + D::LINE_AT, a.dy_coeffs + k0, S::K, y0, images);
        if (a.scale_bias) dw_act<X, T>(at + D::X_AT, a.scale_bias + c0, S::C, input_row<S>(y0), images);
        __syncthreads();
        dw_piece<S, T>(acc, at + slot_of_warp.dy_bytes(), at + D::X_AT + slot_of_warp.x_bytes(), slot_of_warp.group,
                       slot_of_warp.late, true);
        __syncthreads();
        issue(job + (int64_t)D::STAGES * a.slices, at);
        stage = stage + 1 == D::STAGES ? 0 : stage + 1;
    }
    ck_copy_wait<0>();
    __syncthreads();
    dw_block<S>(acc, a.partial + ((int64_t)part * a.slices + slice) * D::DW, reinterpret_cast<float *>(memory),
                slot_of_warp, true);
}

/* Calls run(shape) for the number of a shape. */
template <int SET, typename Run> __device__ __forceinline__ void dw_each(int shape, Run run) {
    if (shape == 0)
        run(dw_16<SET>());
    else if (shape == 1)
        run(dw_16_32<SET>());
    else if (shape == 2)
        run(dw_32<SET>());
    else if (shape == 3)
        run(dw_32_64<SET>());
    else
        run(dw_64<SET>());
}

template <typename T, int SET> __global__ void __launch_bounds__(THREADS, 2) dw_kernel(const __grid_constant__ dw_list list) {
    extern __shared__ __align__(16) char memory[];
    int conv = 0;
    while (conv + 1 < list.convs && (int)blockIdx.x >= list.conv[conv + 1].first_block) conv++;
    const dw_conv &a     = list.conv[conv];
    const int      block = (int)blockIdx.x - a.first_block;
    ck_begin_after_last();
    dw_each<SET>(a.shape, [&](auto s) {
        dw_run<decltype(s), T>(a, list.N, block / a.slices, block % a.slices, memory);
    });
}

/* Adds the slices: 64 vectors a block, its threads divide the slices. */
enum { DW_COLUMNS = 64, DW_SHARES = THREADS / DW_COLUMNS, DW_FLIGHT = 8 };
__global__ void __launch_bounds__(THREADS) dw_add_kernel(const __grid_constant__ dw_list list) {
    __shared__ float4 all[THREADS];
    int conv = 0;
    while (conv + 1 < list.convs && (int)blockIdx.x >= list.conv[conv + 1].first_add) conv++;
    const dw_conv &a = list.conv[conv];
    ck_begin_after_last();
    dw_each<0>(a.shape, [&](auto s) {
        using S             = decltype(s);
        constexpr int FOURS = grad_tiling<S>::DW / 4, BLOCKS = FOURS / DW_COLUMNS;
        static_assert(FOURS % DW_COLUMNS == 0, "whole blocks");
        const int     block = (int)blockIdx.x - a.first_add, part = block / BLOCKS;
        const int     column = (int)threadIdx.x % DW_COLUMNS, share = (int)threadIdx.x / DW_COLUMNS;
        const int     four   = block % BLOCKS * DW_COLUMNS + column;
        const float4 *from   = reinterpret_cast<const float4 *>(a.partial) + (int64_t)part * a.slices * FOURS + four;
        float4        sum    = make_float4(0, 0, 0, 0);
        for (int b = share; b < a.slices; b += DW_FLIGHT * DW_SHARES) {
            float4 v[DW_FLIGHT];
#pragma unroll
            for (int i = 0; i < DW_FLIGHT; i++)
                v[i] = b + i * DW_SHARES < a.slices ? __ldcg(from + (int64_t)(b + i * DW_SHARES) * FOURS)
                                                    : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < DW_FLIGHT; i++) add4(sum, v[i]);
        }
        all[threadIdx.x] = sum;
        __syncthreads();
        if (share) return;
#pragma unroll
        for (int k = 1; k < DW_SHARES; k++) add4(sum, all[k * DW_COLUMNS + column]);
        dw_place<S>::store(a.dw, part, four, sum, list.accumulate, S::C, S::K);
    });
}

} // namespace
} // namespace cifar

#endif
