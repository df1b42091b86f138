/* cuda/conv/cifar/cifar_wgrads.cu: the filter gradients of many CIFAR convolutions in one launch, from the gradients of
 * their outputs, which cuda/conv/cifar/cifar_dgrad.cu has stored.
 *
 * A block computes parts of at most 32 x 32 channels of a filter over some of the images; copies of its next tiles are
 * in flight meanwhile, and BN and ReLU are applied to x in shared memory. All blocks run at the same time, and all take
 * the same time: the tiles of all filters form a sequence, of which each block has a section. So a block can
 * have the end of one filter and the beginning of the next. The four parts of a filter with 64 channels are computed by
 * four blocks side by side, which read the same tensors. A second launch adds what the blocks have stored, in a fixed
 * order.
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
    enum { DW_WARPS = 8, DW_THREADS = THREADS, DW_BARRIER = 0, TH = TH_, TILES = S::P / TH, I = IMAGES_ };
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
        X_AT   = DW_DY::BYTES,
        STAGE  = X_AT + DW_X::BYTES,
        STAGES = 3 * STAGE <= (int)WGRADS_BYTES ? 3 : 2,
        ROUND  = GROUPS / 2 * HELD * SPLIT * EARLY * 8 * CK_WARP * 4,
        BYTES  = STAGES * STAGE > ROUND ? STAGES *STAGE : ROUND
    };
    static_assert((int)BYTES <= (int)WGRADS_BYTES, "ck_cifar_dgrad_supports");
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
/* The most rows of a part in `partial`. */
template <class S> __host__ __device__ constexpr int dw_most_of() {
    return S::C == 16 ? (S::K == 16 ? 48 : 32) : S::C == 32 ? (S::K == 32 ? 32 : 12) : 16;
}
int shape_of(const struct ck_conv *v) {
    return v->C == 64 ? 4 : v->C == 32 ? (v->stride == 2 ? 3 : 2) : v->stride == 2 ? 1 : 0;
}

/* Times are in units of 10 ns. The tiles of a part begin at start, start + time and so on, those of the next part in
 * the same sequence dw_span later. */
struct dw_conv {
    const void  *dy, *x;
    const float *scale_bias;
    float       *partial, *dw; /* partial: [parts][dw_most][DW]; a part has a row for each of its blocks */
    int          start, first_add;
    uint16_t     time; /* of a tile */
    uint8_t      shape;
    bool         accumulate;
};
/* Blocks whose convolutions have SIDE parts that are computed side by side; block b of them has the tiles that begin in
 * [b / SIDE * length, (b / SIDE + 1) * length). */
struct dw_sequence {
    int first, end; /* convolutions */
    int blocks, length;
};
enum { DW_MOST = 56 /* convolutions a launch, whose arguments have 4 KiB at most */ };
enum { SEQUENCES = 2, SIDE = 4 /* parts side by side in the second sequence; 1 in the first */ };
struct dw_list {
    dw_conv     conv[DW_MOST];
    dw_sequence sequence[SEQUENCES];
    int         convs;
    int         N;
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

/* Tiles of N images. */
template <class S> __host__ __device__ constexpr int dw_jobs(int N) {
    using D = grad_tiling<S>;
    return D::I > 1 ? (N + D::I - 1) / D::I : N * D::TILES;
}
/* Parts that follow each other in a sequence, and parts side by side. */
template <class S> __host__ __device__ constexpr int dw_side() {
    return (int)grad_tiling<S>::PARTS == (int)SIDE ? (int)SIDE : 1;
}
template <class S> __host__ __device__ constexpr int dw_turns() {
    return grad_tiling<S>::PARTS / dw_side<S>();
}
/* From the first tile of a part to that of the next one. DW_BEGIN is the time to begin and to end a part, which a block
 * with tiles of two parts needs twice: measured, 3 to 4 us for all shapes. */
__host__ __device__ constexpr int dw_span(int jobs, int time) {
    constexpr int DW_BEGIN = 320;
    return jobs * time + DW_BEGIN;
}

/* Tiles `first` to end - 1 of one part of dw, stored in `to`. Not inlined: the compiler would compute addresses for all
 * shapes ahead of the loop over the parts, and registers would spill. */
template <class S, typename T>
__device__ __noinline__ void dw_run(const void *dy, const void *x, const float *scale_bias, float *to, int N, int part,
                                    int first, int end) {
    extern __shared__ __align__(16) char memory[];
    using D             = grad_tiling<S>;
    using L             = typename D::DW_DY;
    using X             = typename D::DW_X;
    const int        k0 = part / (S::C / D::CB) * D::KB, c0 = part % (S::C / D::CB) * D::CB;
    const uint32_t   base                = ck_shared(memory);
    float            acc[D::EARLY][2][4] = {};
    const dw_slot<S> slot_of_warp;
    const auto       image_of = [](int job) { return D::I > 1 ? job * D::I : job / D::TILES; };
    const auto       row_of   = [](int job) { return D::I > 1 ? 0 : job % D::TILES * D::TH; };
    const auto       issue    = [&](int job, uint32_t at) {
        if (job < end) {
            const int64_t image  = image_of(job);
            const int     images = min((int)D::I, N - (int)image), y0 = row_of(job);
            tile_issue<L, false, false>(at, (const T *)dy + image * S::P * S::P * S::K + k0, y0, images);
            tile_issue<X, false, false>(at + D::X_AT, (const T *)x + image * S::H * S::H * S::C + c0, input_row<S>(y0),
                                        images);
        }
        ck_copy_commit();
    };
    for (int i = 0; i < D::STAGES; i++) tile_margin<X>(base + (uint32_t)(i * D::STAGE + D::X_AT));
    const auto prepare = [&](int job, int stage) {
        ck_copy_wait<D::STAGES - 2>(); /* for the copies of this tile */
        if (job < end && scale_bias)
            dw_act<X, T>(base + (uint32_t)(stage * D::STAGE + D::X_AT), scale_bias + c0, S::C,
                         input_row<S>(row_of(job)), min((int)D::I, N - image_of(job)));
        __syncthreads(); /* the only one for each tile: 0.6 % faster steps than with two, ResNet-56 */
    };
    int stage = 0;
    for (int i = 0; i < D::STAGES - 1; i++) issue(first + i, base + (uint32_t)(i * D::STAGE));
    prepare(first, 0);
    for (int job = first; job < end; job++) {
        const uint32_t at   = base + (uint32_t)(stage * D::STAGE);
        const int      next = stage + 1 == D::STAGES ? 0 : stage + 1, last = stage ? stage - 1 : D::STAGES - 1;
        issue(job + D::STAGES - 1, base + (uint32_t)(last * D::STAGE));
        dw_piece<S, T>(acc, at + slot_of_warp.dy_bytes(), at + D::X_AT + slot_of_warp.x_bytes(), slot_of_warp.group,
                       slot_of_warp.late, true);
        prepare(job + 1, next);
        stage = next;
    }
    ck_copy_wait<0>();
    __syncthreads();
    ck_wait_for_last(); /* until the launches before have ended, they read tensors whose memory `to` shares */
    dw_block<S>(acc, to, reinterpret_cast<float *>(memory), slot_of_warp, true);
    __syncthreads(); /* before the next part */
}

template <typename T> __global__ void __launch_bounds__(THREADS, 2) dw_kernel(const __grid_constant__ dw_list list) {
    const int second           = (int)blockIdx.x >= list.sequence[0].blocks,
              b                = (int)blockIdx.x - (second ? list.sequence[0].blocks : 0);
    const dw_sequence &q       = list.sequence[second];
    const int          section = second ? b / SIDE : b, from = section * q.length, to = from + q.length;
    ck_let_next_begin();
    for (int conv = q.first; conv < q.end; conv++) {
        const dw_conv &a = list.conv[conv];
        if (a.start >= to) break;
        if (conv + 1 < q.end && list.conv[conv + 1].start <= from) continue;
        dw_each(a.shape, [&](auto s) {
            using S        = decltype(s);
            const int jobs = dw_jobs<S>(list.N);
#pragma unroll 1
            for (int turn = 0; turn < dw_turns<S>(); turn++) {
                const int start = a.start + turn * dw_span(jobs, a.time);
                const int first = from > start ? (from - start + a.time - 1) / a.time : 0,
                          end   = to > start ? min(jobs, (to - start + a.time - 1) / a.time) : 0;
                const int part = second ? b % SIDE : turn, row = section - start / q.length;
                if (first < end)
                    dw_run<S, T>(a.dy, a.x, a.scale_bias,
                                 a.partial + (part * dw_most_of<S>() + row) * (int)grad_tiling<S>::DW, list.N, part,
                                 first, end);
            }
        });
    }
    ck_wait_for_last(); /* so that the launch before is complete when this one is */
}

/* Rows of a part: blocks that have one of its tiles. */
__device__ __forceinline__ int dw_rows(const dw_conv &a, int jobs, int turn, int length) {
    const int start = a.start + turn * dw_span(jobs, a.time);
    return (start + (jobs - 1) * a.time) / length - start / length + 1;
}
/* Adds the rows of a part: 64 vectors a block, its threads divide the rows. */
enum { DW_COLUMNS = 64, DW_SHARES = THREADS / DW_COLUMNS, DW_FLIGHT = 8 };
__global__ void __launch_bounds__(THREADS) dw_add_kernel(const __grid_constant__ dw_list list) {
    __shared__ float4 all[THREADS];
    int               conv = 0;
    while (conv + 1 < list.convs && (int)blockIdx.x >= list.conv[conv + 1].first_add) conv++;
    const dw_conv &a = list.conv[conv];
    ck_begin_after_last();
    dw_each(a.shape, [&](auto s) {
        using S             = decltype(s);
        constexpr int FOURS = grad_tiling<S>::DW / 4, BLOCKS = FOURS / DW_COLUMNS;
        static_assert(FOURS % DW_COLUMNS == 0, "whole blocks");
        const int     block = (int)blockIdx.x - a.first_add, part = block / BLOCKS;
        const int     column = (int)threadIdx.x % DW_COLUMNS, share = (int)threadIdx.x / DW_COLUMNS;
        const int     four = block % BLOCKS * DW_COLUMNS + column;
        const float4 *from =
            reinterpret_cast<const float4 *>(a.partial) + (int64_t)part * dw_most_of<S>() * FOURS + four;
        const int rows =
            dw_rows(a, dw_jobs<S>(list.N), dw_side<S>() > 1 ? 0 : part, list.sequence[dw_side<S>() > 1].length);
        float4 sum = make_float4(0, 0, 0, 0);
        for (int b = share; b < rows; b += DW_FLIGHT * DW_SHARES) {
            float4 v[DW_FLIGHT];
#pragma unroll
            for (int i = 0; i < DW_FLIGHT; i++)
                v[i] = b + i * DW_SHARES < rows ? __ldcg(from + (int64_t)(b + i * DW_SHARES) * FOURS)
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

/* The time of a tile of each shape in units of 10 ns, without and with a BN before the convolution: measured with 128
 * images on one H200 inside the kernel, between ResNet-20 and ResNet-56 (with a BN and a stride of 2: estimated). */
const uint16_t dw_time[][2] = {{126, 167}, {160, 205}, {144, 190}, {132, 172}, {168, 222}};

uint16_t time_of(int shape, bool bn) {
    return dw_time[shape][bn];
}
struct dw_sizes {
    int parts, floats, adds, bytes, side, turns, most;
};
template <class S> dw_sizes sizes() {
    using D = grad_tiling<S>;
    return {D::PARTS, D::DW, D::DW / 4 / DW_COLUMNS * D::PARTS, D::BYTES, dw_side<S>(), dw_turns<S>(), dw_most_of<S>()};
}
dw_sizes sizes_of(int shape) {
    const dw_sizes all[] = {sizes<dw_16>(), sizes<dw_16_32>(), sizes<dw_32>(), sizes<dw_32_64>(), sizes<dw_64>()};
    return all[shape];
}
int jobs_of(int shape, int N) {
    const int all[] = {dw_jobs<dw_16>(N), dw_jobs<dw_16_32>(N), dw_jobs<dw_32>(N), dw_jobs<dw_32_64>(N),
                       dw_jobs<dw_64>(N)};
    return all[shape];
}

/* Sets the starts of the convolutions of a sequence and returns its time. shortest: the shortest section, so that a
 * part has at most as many rows as there is room for, and each of its sections has a tile. */
int start_all(dw_list &list, const dw_sequence &q, int *shortest) {
    int time = 0;
    for (int i = q.first; i < q.end; i++) {
        dw_conv       &c    = list.conv[i];
        const dw_sizes s    = sizes_of(c.shape);
        const int      jobs = jobs_of(c.shape, list.N), least = jobs * c.time / (s.most - 2) + 1;
        c.start   = time, time += s.turns * dw_span(jobs, c.time);
        *shortest = max(*shortest, max(least, (int)c.time));
    }
    return time;
}
int divided(int time, int by) {
    return (time + by - 1) / by;
}
/* Divides two blocks a multiprocessor between the sequences so that the longest section is the shortest possible. */
void divide(dw_list &list, int multiprocessors) {
    dw_sequence *q                   = list.sequence;
    const int    all                 = multiprocessors * RESIDENT;
    int          shortest[SEQUENCES] = {1, 1}, time[SEQUENCES], groups = 0, length = INT_MAX;
    for (int i = 0; i < SEQUENCES; i++) time[i] = start_all(list, q[i], &shortest[i]);
    for (int n = time[1] ? 1 : 0; n * SIDE < all && n <= (time[1] ? all : 0); n++) {
        const int longer = max(divided(time[0], all - n * SIDE), n ? divided(time[1], n) : 0);
        if (longer < length) groups = n, length = longer;
    }
    q[0].length = max(shortest[0], divided(time[0], all - groups * SIDE));
    q[1].length = max(shortest[1], groups ? divided(time[1], groups) : 1);
    q[0].blocks = divided(time[0], q[0].length);
    q[1].blocks = divided(time[1], q[1].length) * SIDE;
}

cudaError_t wgrads_run(const struct ck_cifar_filter *filters, int count, int multiprocessors, cudaStream_t stream) {
    dw_list list  = {};
    int     convs = 0, adds = 0, bytes = 0;
    list.convs = count, list.N = (int)filters[0].conv.N;
    for (int i = 0; i < SEQUENCES; i++) {
        list.sequence[i].first = convs;
        for (int k = 0; k < count; k++) {
            const struct ck_cifar_filter &f     = filters[k];
            const int                     shape = shape_of(&f.conv);
            const dw_sizes                s     = sizes_of(shape);
            if (f.conv.N != list.N || f.conv.type != filters[0].conv.type) return cudaErrorInvalidValue;
            if ((s.side > 1) != (i > 0)) continue;
            list.conv[convs++] = {.dy         = f.dy,
                                  .x          = f.x,
                                  .scale_bias = f.scale_bias,
                                  .partial    = f.partial,
                                  .dw         = f.dw,
                                  .start      = 0,
                                  .first_add  = adds,
                                  .time       = time_of(shape, f.scale_bias != NULL),
                                  .shape      = (uint8_t)shape,
                                  .accumulate = f.accumulate};
            adds += s.adds, bytes = max(bytes, s.bytes);
        }
        list.sequence[i].end = convs;
    }
    divide(list, multiprocessors);
    const int         blocks = list.sequence[0].blocks + list.sequence[1].blocks;
    const cudaError_t error  = filters[0].conv.type == CK_F16
                                   ? launch(dw_kernel<__half>, list, blocks, THREADS, bytes, stream)
                                   : launch(dw_kernel<__nv_bfloat16>, list, blocks, THREADS, bytes, stream);
    return error != cudaSuccess ? error : launch(dw_add_kernel, list, adds, THREADS, 0, stream);
}

} // namespace

} // namespace cifar

size_t ck_cifar_wgrads_workspace(const struct ck_conv *v) {
    const cifar::dw_sizes s = cifar::sizes_of(cifar::shape_of(v));
    return (size_t)s.parts * (size_t)s.floats * (size_t)s.most * sizeof(float);
}

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
