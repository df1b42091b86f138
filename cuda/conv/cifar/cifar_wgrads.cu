/* cuda/conv/cifar/cifar_wgrads.cu: the filter gradients of many CIFAR convolutions in one launch, from the gradients of
 * their outputs, which cuda/conv/cifar/cifar_dgrad.cu has stored.
 *
 * A block computes a part of at most 32 x 32 channels of one filter over a slice of the images; copies of its next tile
 * are in flight meanwhile, and BN and ReLU are applied to x in shared memory. The slices are so many that all blocks
 * run at the same time. A second launch adds them in a fixed order, and the parts of the stem's dw as well.
 *
 * Bytes an element, 16 bits: dy and x 2 each, read once with up to 32 channels, twice with 64. Limiter: the L2 cache,
 * which does not hold the tensors of a network with 128 images. */
#include "cuda/conv/cifar/cifar_grad_run.cuh"

namespace cifar {
namespace {

/* A shape whose dw is computed alone: TH rows of dy and IMAGES images a tile. */
template <class S, int TH_, int IMAGES_> struct dw_shape : shape<S::C, S::K, S::H, S::STRIDE, S::R> {};
template <class B, int TH_, int IMAGES_> struct grad_tiling<dw_shape<B, TH_, IMAGES_>> {
    using S                     = dw_shape<B, TH_, IMAGES_>;
    static constexpr bool JOINT = true /* TH rows a tile */, BY_ROW = S::STRIDE == 1;
    enum { DW_WARPS = 8, DW_THREADS = THREADS, DW_BARRIER = 0, TH = TH_, TILES = S::P / TH, I = IMAGES_, STAGES = 2 };
    static_assert(I == 1 || TILES == 1, "rows of one image, or whole images");
    enum { KB = S::K < 32 ? (int)S::K : 32, CB = S::C < 32 ? (int)S::C : 32, PARTS = S::K / KB * (S::C / CB) };
    enum { HELD = KB / PIECE * (CB / PIECE), DW = KB * CB * S::TAPS };
    enum { SPLIT = BY_ROW ? 1 : 2, EARLY = (S::TAPS + SPLIT - 1) / SPLIT, GROUPS = DW_WARPS / (HELD * SPLIT) };
    static_assert(GROUPS >= 1, "a warp has one piece");
    static __host__ __device__ int parts_in(int) { return S::C / CB; }
    static __host__ __device__ int parts(int, int) { return PARTS; }
    using DW_DY = output_tile<S, I, TH, KB, false>;
    using DW_X  = input_tile<S, I, TH, CB>;
    enum {
        X_AT  = DW_DY::BYTES,
        STAGE = X_AT + DW_X::BYTES,
        ROUND = GROUPS / 2 * HELD * SPLIT * EARLY * 8 * CK_WARP * 4,
        BYTES = STAGES * STAGE > ROUND ? STAGES *STAGE : ROUND
    };
    static_assert((int)BYTES <= (int)WGRADS_BYTES, "ck_cifar_conv_grad_leaves_filter");
};
using dw_16    = dw_shape<shape<16, 16, 32, 1, 3>, 8, 1>;
using dw_16_32 = dw_shape<shape<16, 32, 32, 2, 3>, 8, 1>;
using dw_32    = dw_shape<shape<32, 32, 16, 1, 3>, 8, 1>;
using dw_32_64 = dw_shape<shape<32, 64, 16, 2, 3>, 8, 1>;
using dw_64    = dw_shape<shape<64, 64, 8, 1, 3>, 8, 2>;

/* Numbers of the shapes. */
template <typename Run> __device__ __forceinline__ void dw_each(int shape, Run run) {
    if (shape == 0)
        run(dw_16());
    else if (shape == 1)
        run(dw_16_32());
    else if (shape == 2)
        run(dw_32());
    else if (shape == 3)
        run(dw_32_64());
    else
        run(dw_64());
}
int shape_of(const struct ck_conv *v) {
    return v->C == 64 ? 4 : v->C == 32 ? (v->stride == 2 ? 3 : 2) : v->stride == 2 ? 1 : 0;
}

struct dw_conv {
    const void  *dy, *x;
    const float *scale_bias;
    float       *partial, *dw; /* partial: [parts][slices][DW] */
    int          shape, slices, first_block, first_add;
    bool         accumulate;
};
/* Parts of the stem's dw, [each][STEM_DW]. */
struct dw_stem {
    const float *partial;
    float       *dw;
    int          each, blocks; /* blocks: 0 without a stem */
    bool         accumulate;
};
enum { DW_MOST = 56 /* convolutions a launch, whose arguments have 4 KiB at most */ };
struct dw_list {
    dw_conv conv[DW_MOST];
    dw_stem stem;
    int     convs;
    int64_t N;
};
static_assert(sizeof(dw_list) <= 4096, "arguments of a launch");

/* As tile_act, but all vectors are loaded before the first is used. */
template <class L, typename T>
__device__ __forceinline__ void dw_act(uint32_t at, const float *scale_bias, int gap, int row0, int images) {
    constexpr int STEP = L::THREADS / (L::WIDE * L::CHUNKS), MOST = (L::I * L::ROWS + STEP - 1) / STEP,
                  HALF = MOST > 4 ? (MOST + 1) / 2 : MOST;
    float scale[8], bias[8];
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

/* One slice of the images for one part of dw. */
template <class S, typename T>
__device__ __forceinline__ void dw_run(const dw_conv &a, int64_t N, int part, int slice, char *memory) {
    using D             = grad_tiling<S>;
    using L             = typename D::DW_DY;
    using X             = typename D::DW_X;
    const int        k0 = part / (S::C / D::CB) * D::KB, c0 = part % (S::C / D::CB) * D::CB;
    const uint32_t   base                = ck_shared(memory);
    float            acc[D::EARLY][2][4] = {};
    const dw_slot<S> slot_of_warp;
    const int64_t    jobs     = D::I > 1 ? (N + D::I - 1) / D::I : N * D::TILES;
    const auto       image_of = [](int64_t job) { return D::I > 1 ? job * D::I : job / D::TILES; };
    const auto       row_of   = [](int64_t job) { return D::I > 1 ? 0 : (int)(job % D::TILES) * D::TH; };
    const auto       issue    = [&](int64_t job, uint32_t at) {
        if (job < jobs) {
            const int64_t image  = image_of(job);
            const int     images = (int)min((int64_t)D::I, N - image), y0 = row_of(job);
            tile_issue<L, false, false>(at, (const T *)a.dy + image * S::P * S::P * S::K + k0, y0, images);
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

template <typename T> __global__ void __launch_bounds__(THREADS, 2) dw_kernel(const __grid_constant__ dw_list list) {
    extern __shared__ __align__(16) char memory[];
    int                                  conv = 0;
    while (conv + 1 < list.convs && (int)blockIdx.x >= list.conv[conv + 1].first_block) conv++;
    const dw_conv &a     = list.conv[conv];
    const int      block = (int)blockIdx.x - a.first_block;
    ck_let_next_begin();
    dw_each(a.shape, [&](auto s) { dw_run<decltype(s), T>(a, list.N, block / a.slices, block % a.slices, memory); });
    ck_wait_for_last(); /* so that the launch before is complete when this one is */
}

/* Adds the slices: 64 vectors a block, its threads divide the slices. */
enum { DW_COLUMNS = 64, DW_SHARES = THREADS / DW_COLUMNS, DW_FLIGHT = 8 };
__global__ void __launch_bounds__(THREADS) dw_add_kernel(const __grid_constant__ dw_list list) {
    __shared__ float4 all[THREADS];
    int               conv = 0;
    while (conv + 1 < list.convs && (int)blockIdx.x >= list.conv[conv + 1].first_add) conv++;
    const dw_conv &a = list.conv[conv];
    ck_begin_after_last();
    if ((int)blockIdx.x < list.stem.blocks) {
        const dw_stem &stem = list.stem;
        add_parts<stem_place<false>>(stem.partial, stem.dw, stem.each, (int)blockIdx.x, stem.accumulate, 0, 0, all);
        return;
    }
    dw_each(a.shape, [&](auto s) {
        using S             = decltype(s);
        constexpr int FOURS = grad_tiling<S>::DW / 4, BLOCKS = FOURS / DW_COLUMNS;
        static_assert(FOURS % DW_COLUMNS == 0, "whole blocks");
        const int     block = (int)blockIdx.x - a.first_add, part = block / BLOCKS;
        const int     column = (int)threadIdx.x % DW_COLUMNS, share = (int)threadIdx.x / DW_COLUMNS;
        const int     four = block % BLOCKS * DW_COLUMNS + column;
        const float4 *from = reinterpret_cast<const float4 *>(a.partial) + (int64_t)part * a.slices * FOURS + four;
        float4        sum  = make_float4(0, 0, 0, 0);
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
        dw_place<S>::store(a.dw, part, four, sum, a.accumulate, S::C, S::K);
    });
}

/* ---- host side ---- */

/* The time of a tile of each shape in units of 10 ns, without and with a BN before the convolution, measured with 128
 * images on one H200 (with a BN and a stride of 2: estimated); and the most slices. */
const int dw_time[][2] = {{148, 200}, {188, 230}, {150, 198}, {153, 190}, {175, 235}}, dw_most[] = {48, 32, 32, 12, 16};

struct dw_sizes {
    int parts, floats, adds, bytes, images, tiles; /* images a tile; tiles an image */
};
template <class S> dw_sizes sizes() {
    using D = grad_tiling<S>;
    return {D::PARTS, D::DW, D::DW / 4 / DW_COLUMNS * D::PARTS, D::BYTES, D::I, D::TILES};
}
dw_sizes sizes_of(int shape) {
    const dw_sizes all[] = {sizes<dw_16>(), sizes<dw_16_32>(), sizes<dw_32>(), sizes<dw_32_64>(), sizes<dw_64>()};
    return all[shape];
}

/* Time of the filter's slowest block. */
int64_t dw_takes(const dw_conv &c, int64_t N) {
    const dw_sizes s    = sizes_of(c.shape);
    const int64_t  jobs = (N + s.images - 1) / s.images * s.tiles;
    return dw_time[c.shape][c.scale_bias != NULL] * ((jobs + c.slices - 1) / c.slices);
}

/* Divides two blocks a multiprocessor: a slice more for the filter whose blocks take longest, as long as there is one
 * that can have it. */
void divide(dw_conv *conv, int count, int64_t N, int multiprocessors) {
    int blocks = 0;
    for (int i = 0; i < count; i++) conv[i].slices = 1, blocks += sizes_of(conv[i].shape).parts;
    while (true) {
        int     longest = -1;
        int64_t time    = 0;
        for (int i = 0; i < count; i++) {
            const dw_conv &c     = conv[i];
            const int64_t  takes = dw_takes(c, N);
            if (takes <= time || c.slices >= dw_most[c.shape] || c.slices >= N ||
                blocks + sizes_of(c.shape).parts > multiprocessors * RESIDENT)
                continue;
            longest = i, time = takes;
        }
        if (longest < 0) return;
        conv[longest].slices++, blocks += sizes_of(conv[longest].shape).parts;
    }
}

cudaError_t wgrads_run(const struct ck_cifar_filter *filters, int count, int multiprocessors, cudaStream_t stream) {
    dw_list list   = {};
    int     blocks = 0, adds = 0, bytes = 0;
    if (filters[count - 1].grad.conv.C == 3) {
        const struct ck_cifar_filter &f = filters[--count];
        adds                            = STEM_DW / 4 / ADD_COLUMNS;
        list.stem                       = {.partial    = (const float *)f.workspace,
                                           .dw         = f.grad.dw,
                                           .each       = (int)stem_grad_blocks(f.grad.conv.N, multiprocessors),
                                           .blocks     = adds,
                                           .accumulate = f.grad.accumulate};
    }
    list.convs = count, list.N = filters[0].grad.conv.N;
    for (int i = 0; i < count; i++) {
        const struct ck_cifar_conv_grad &g     = filters[i].grad;
        const int                        shape = shape_of(&g.conv);
        const dw_sizes                   s     = sizes_of(shape);
        if (g.conv.N != list.N || g.conv.type != filters[0].grad.conv.type) return cudaErrorInvalidValue;
        list.conv[i] = {.dy          = filters[i].workspace,
                        .x           = g.x,
                        .scale_bias  = g.scale_bias,
                        .partial     = left_filter_sums(&g.conv, filters[i].workspace, multiprocessors),
                        .dw          = g.dw,
                        .shape       = shape,
                        .slices      = 1,
                        .first_block = 0,
                        .first_add   = adds,
                        .accumulate  = g.accumulate};
        adds += s.adds, bytes = s.bytes > bytes ? s.bytes : bytes;
    }
    divide(list.conv, count, list.N, multiprocessors);
    for (int i = 0; i < count; i++)
        list.conv[i].first_block = blocks, blocks += list.conv[i].slices * sizes_of(list.conv[i].shape).parts;
    const cudaError_t error = filters[0].grad.conv.type == CK_F16
                                  ? launch(dw_kernel<__half>, list, blocks, THREADS, bytes, stream)
                                  : launch(dw_kernel<__nv_bfloat16>, list, blocks, THREADS, bytes, stream);
    return error != cudaSuccess ? error : launch(dw_add_kernel, list, adds, THREADS, 0, stream);
}

} // namespace

int64_t wgrads_floats(const struct ck_conv *v) {
    const int      shape = shape_of(v);
    const dw_sizes s     = sizes_of(shape);
    return (int64_t)s.parts * s.floats * dw_most[shape];
}

} // namespace cifar

cudaError_t ck_cifar_wgrads(const struct ck_cifar_filter *filters, int count, int multiprocessors,
                            cudaStream_t stream) {
    const int launches = (count + cifar::DW_MOST - 1) / cifar::DW_MOST;
    for (int i = 0; i < launches; i++) {
        const int         first = i * count / launches, end = (i + 1) * count / launches;
        const cudaError_t error = cifar::wgrads_run(filters + first, end - first, multiprocessors, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
