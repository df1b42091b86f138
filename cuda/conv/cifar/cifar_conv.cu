/* cuda/conv/cifar/cifar_conv.cu: forward of the CIFAR convolutions (ResNet-20 to 110): applies BN and ReLU to the input
 * while it is read, and sums the output while it is written.
 *
 * A block holds the whole filter and a tile of the input in shared memory and multiplies with the tensor cores. With a
 * stride of 1 a tile is an image, and a row of it in registers is used for three rows of the filter. Blocks loop over
 * the tiles. They store their sums in the workspace; the next convolution adds them and finishes the BN
 * (cuda/conv/cifar/cifar_finish.cuh), or a second launch of a few blocks does.
 * (Variants that finish in the same launch were slower on an H200. If an atomic counter selects the last block, that
 * block ends 2 to 3 us after the products. If all blocks wait in global memory for the sums of the other blocks, they
 * end 2 to 6 us after the products. An empty launch costs 0.6 us.)
 *
 * Bytes: 2 an element of x, read 1 (whole images) to 1.13 times (halves), and 2 an element of y. Limiter: at 128 images
 * the launches and two round trips to the L2 cache; from about 1024 images on memory with 16 channels, and reads of
 * shared memory (ldmatrix, 4 cycles for 512 bytes) with 32 and 64. Roofline: 4.3 TB/s, or about 600 TFLOP/s of
 * mma.sync. */
#include "cuda/conv/cifar/cifar_finish.cuh"

namespace cifar {
namespace {

/* ---- the first launch: all shapes but the stem ---- */

/* Loads a tile of the input and waits for it, and for the filter, whose copies are in flight. A whole image comes
 * through registers, rows of an image by asynchronous copies. All threads must synchronise afterwards. */
template <class S, typename T>
__device__ __forceinline__ void forward_load(const forward_args &a, const float *scale_bias, uint32_t xs, int64_t image,
                                             int y0) {
    using D          = forward_tiling<S>;
    using X          = typename forward_memory<S>::X;
    const int      C = in_channels<S>(a);
    const channels n = {C, C};
    const T       *x = (const T *)a.x + image * S::H * S::H * C;
    if constexpr (D::WHOLE) {
        whole_image<X> p;
        float          scale[8], bias[8];
        if (scale_bias) {
            load_floats(scale, scale_bias + coefficients<X>(n));
            load_floats(bias, scale_bias + C + coefficients<X>(n));
        }
        p.load(x, n);
        if (scale_bias && (!S::ANY || p.chunk() * 8 < C))
#pragma unroll
            for (int i = 0; i < p.ROUNDS; i++) p.v[i] = act<T>(p.v[i], scale, bias);
        p.store(xs);
        ck_copy_wait<0>();
    } else {
        tile_issue<X, false, false>(xs, x, input_row<S>(y0), 1, n);
        ck_copy_commit();
        if (!scale_bias) ck_copy_wait<0>();
        if (scale_bias) tile_act<X, 0, T>(xs, scale_bias, C, input_row<S>(y0), 1, n);
    }
}

/* A warp's work: its first channel, and the positions of its groups of 16 pixels. */
template <class S> struct forward_slot {
    using D = forward_tiling<S>;
    using G = groups<S::STRIDE == 1 ? (int)S::P : 16, S::STRIDE == 1 ? (int)D::TH : 1>;
    int                        n0, m0, strip;
    __device__ __forceinline__ forward_slot() {
        const int warp = (int)threadIdx.x / CK_WARP, rest = warp / D::NW;
        n0 = warp % D::NW * 8 * D::NT;
        if constexpr (D::WHOLE)
            strip = rest % G::STRIPS * 16, m0 = rest / G::STRIPS * D::MT;
        else
            strip = 0, m0 = rest * D::MT;
    }
    /* Row and column in the tile of pixel i of group m. */
    __device__ __forceinline__ int row(int m, int i) const {
        return D::WHOLE ? m0 + m + G::row(i) : ((m0 + m) * 16 + i) / S::P;
    }
    __device__ __forceinline__ int col(int m, int i) const {
        return D::WHOLE ? strip + G::col(i) : ((m0 + m) * 16 + i) % S::P;
    }
};

/* Products for a stride of 1: one column of the filter and 16 channels at a time; an input row is used for three rows
 * of output. All unrolled, also in the backward pass: steps of ResNet-56 are 1.1 % faster than with a loop over the
 * columns. */
template <class S, typename T, int GROUPS, int MT>
__device__ __forceinline__ void forward_rows(float (&acc)[MT][2][4], uint32_t at, uint32_t b0) {
    using X = typename forward_memory<S>::X;
    static_assert(S::R == 3 && forward_tiling<S>::NT == 2, "three rows, two times 8 columns");
#pragma unroll
    for (int s = 0; s < 3; s++)
#pragma unroll
        for (int c = 0; c < GROUPS * 16; c += 16) {
            uint32_t bf[3][4], af[MT + 2][4];
#pragma unroll
            for (int r = 0; r < 3; r++) ck_ldmatrix(bf[r], b0 + (uint32_t)(((r * 3 + s) * S::C + c) * 2));
#pragma unroll
            for (int t = 0; t < MT + 2; t++) {
                ck_ldmatrix(af[t], at + (uint32_t)(t * input_tap<S, X>(1, 0) + s * X::PITCH + c * 2));
#pragma unroll
                for (int r = 0; r < 3; r++)
                    if (t - r >= 0 && t - r < MT) {
                        mma<T>(acc[t - r][0], af[t], bf[r][0], bf[r][1]);
                        mma<T>(acc[t - r][1], af[t], bf[r][2], bf[r][3]);
                    }
            }
        }
}

/* Products for any shape: one filter position and 16 channels at a time. One row of the filter at a time is unrolled;
 * unrolling all rows would exceed the instruction cache. */
template <class S, typename T, int GROUPS, int MT, int NT>
__device__ __forceinline__ void forward_taps(float (&acc)[MT][NT][4], const uint32_t (&at)[MT], uint32_t b0) {
    using M = forward_memory<S>;
    using X = typename M::X;
#pragma unroll 1
    for (int r = 0; r < S::R; r++) {
#pragma unroll
        for (int s = 0; s < S::R; s++)
#pragma unroll
            for (int c = 0; c < GROUPS * 16; c += 16) {
                uint32_t af[MT][4], bf[NT / 2][4];
#pragma unroll
                for (int j = 0; j < NT / 2; j++)
                    ck_ldmatrix(bf[j], b0 + (uint32_t)(j * 16 * M::W_PITCH + ((r * S::R + s) * S::C + c) * 2));
#pragma unroll
                for (int m = 0; m < MT; m++)
                    ck_ldmatrix(af[m], at[m] + (uint32_t)(r * input_tap<S, X>(1, 0) + input_tap<S, X>(0, s) + c * 2));
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int j = 0; j < NT; j++)
                        mma<T>(acc[m][j], af[m], bf[j / 2][j % 2 * 2], bf[j / 2][j % 2 * 2 + 1]);
            }
    }
}

template <class S, typename T, class Args>
__global__ void __launch_bounds__(forward_tiling<S>::THREADS, forward_tiling<S>::RESIDENT) forward_kernel(Args a) {
    using M = forward_memory<S>;
    using D = typename M::D;
    using X = typename M::X;
    extern __shared__ __align__(16) char memory[];
    const int                            lane = (int)threadIdx.x % CK_WARP;
    const uint32_t                       base = ck_shared(memory), xs = base + M::X_AT;
    float                               *rows             = reinterpret_cast<float *>(memory + M::SUMS_AT);
    float                                first[2 * D::NT] = {}, second[2 * D::NT] = {};
    const forward_slot<S>                slot_of_warp;
    const int                            C = in_channels<S>(a), K = out_channels<S>(a);
    const int                            channel = slot_of_warp.n0 + lane % 4 * 2 * D::NT;
    const bool                           works   = !S::ANY || channel < K;
    const uint32_t                       b0 =
        base + (uint32_t)((slot_of_warp.n0 + (lane & 7) + (lane >> 4) * 8) * M::W_PITCH + (lane >> 3 & 1) * 16);

    /* The last block without work stores the results of the BN before (finish_sums). */
    if (block_of<S::ANY>(a) < (Args::FINISH ? -1 : 0)) return;
    if (Args::FINISH && block_of<S::ANY>(a) >= 0)
        filter_issue<S, D::NT, M::W_PITCH, D::THREADS>(base, (const T *)a.w, a);
    if constexpr (D::WHOLE)
        image_margin<X>(xs);
    else
        tile_margin<X>(xs);
    for (int i = (int)threadIdx.x; i < D::WARPS * 2 * S::K; i += D::THREADS) rows[i] = 0;
    const float *scale_bias = a.scale_bias;
    if constexpr (Args::FINISH) {
        float *room = reinterpret_cast<float *>(memory + M::BYTES);
        if constexpr (D::WHOLE)
            forward_load_finish<S, T>(a, base, room);
        else
            forward_load_down<S, T>(a, base, room);
        scale_bias = room;
        if (block_of<S::ANY>(a) < 0) return;
    } else {
        filter_issue<S, D::NT, M::W_PITCH, D::THREADS>(base, (const T *)a.w, a);
        ck_copy_commit();
        ck_begin_after_last();
    }

    for (int64_t job = block_of<S::ANY>(a); job < a.N * D::TILES; job += blocks_of<S::ANY>(a)) {
        const int64_t image = job / D::TILES;
        const int     y0    = (int)(job % D::TILES) * D::TH;
        if (!Args::FINISH || job != block_of<S::ANY>(a)) forward_load<S, T>(a, scale_bias, xs, image, y0);
        __syncthreads();
        uint32_t at[D::MT];
        float    acc[D::MT][D::NT][4] = {};
#pragma unroll
        for (int m = 0; m < D::MT; m++)
            at[m] = xs + (uint32_t)(input_pixel<S, X>(slot_of_warp.row(m, lane & 15), slot_of_warp.col(m, lane & 15)) +
                                    (lane >> 4) * 16);
        const auto multiply = [&](auto groups) {
            if constexpr (D::WHOLE)
                forward_rows<S, T, decltype(groups)::N16>(acc, at[0], b0);
            else
                forward_taps<S, T, decltype(groups)::N16>(acc, at, b0);
        };
        if (!S::ANY || slot_of_warp.n0 < K) for_groups<S::ANY, S::C / 16>(C, multiply);
        const int64_t to      = (image * S::P + y0) * S::P * K + slot_of_warp.n0 + lane % 4 * 2 * D::NT;
        const auto    element = [=](int m, int half) {
            const int i = half * 8 + lane / 4;
            return (slot_of_warp.row(m, i) * S::P + slot_of_warp.col(m, i)) * K;
        };
        if constexpr (S::ANY)
            if (a.bias && works) inference_end<T>(a, acc, channel, (const T *)a.add + to, element);
        piece<D::NT> out[D::MT][2];
#pragma unroll
        for (int m = 0; m < D::MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) out[m][half] = forward_round<T, D::NT>(acc[m], half, first, second);
        T *y = (T *)a.y + to; /* stored before the sums are added: steps of ResNet-56 are 1.2 % faster */
        if (works)
#pragma unroll
            for (int m = 0; m < D::MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) piece_store<D::NT>(y + element(m, half), out[m][half]);
        if (a.sums && job + blocks_of<S::ANY>(a) >= a.N * D::TILES)
            forward_sums<D::NT, S::K, D::WARPS, S::ANY>(a, first, second, rows, slot_of_warp.n0);
        __syncthreads();
    }
}

/* ---- host side ---- */

/* Whether the launch before this one may end on some multiprocessors earlier than on others. Only a convolution with at
 * most one block on each of them does not. Such a convolution is the launch before one that finishes its BN, but before
 * one that applies a BN there may be the launch of a shortcut. */
inline bool ends_unevenly(const forward_args &, int) {
    return true;
}
inline bool ends_unevenly(const forward_apply_args &, int) {
    return true;
}
inline bool ends_unevenly(const forward_finish_args &a, int multiprocessors) {
    return a.before_count > multiprocessors;
}

template <class S, typename T, class Args>
cudaError_t forward_run(Args a, const finish_args &finish, int multiprocessors, cudaStream_t stream) {
    using M = forward_memory<S>;
    using D = typename M::D;
    static_assert((int)D::RESIDENT <= (int)RESIDENT &&
                      (M::BYTES + finish_sums<S::C>::ROOM + 1024) * D::RESIDENT <= 233472,
                  "RESIDENT blocks fit into the shared memory of a multiprocessor of compute capability 9.0");
    const unsigned blocks = ck_blocks(a.N * D::TILES, 1, (int64_t)multiprocessors * D::RESIDENT);
    int            bytes  = M::BYTES + (Args::FINISH ? (int)finish_sums<S::C>::ROOM : 0);
    if ((int)blocks <= multiprocessors && ends_unevenly(a, multiprocessors)) bytes = alone_bytes(bytes);
    a.idle                  = S::ANY ? 0 : idle_blocks(blocks, multiprocessors);
    const cudaError_t error = launch(forward_kernel<S, T, Args>, a, blocks + a.idle, D::THREADS, bytes, stream);
    constexpr int     K     = S::ANY ? 0 : (int)S::K;
    return error != cudaSuccess ? error : finish_run<K>(finish, blocks, stream);
}

template <typename T, bool ANY>
cudaError_t forward_any(const struct ck_conv *v, const forward_args &a, const finish_args &f, int multiprocessors,
                        cudaStream_t stream) {
    if (v->C == 3) return stem_run<T, ANY>(a, f, multiprocessors, stream);
    return run_shape<ANY>(v, [&](auto s) { return forward_run<decltype(s), T>(a, f, multiprocessors, stream); });
}
/* With args->before and a stride of 1. Only the second convolution of a residual block finishes a BN without applying
 * it. Its stride is 1. */
template <typename T, class Args>
cudaError_t forward_finish(const struct ck_conv *v, const Args &a, const finish_args &f, int multiprocessors,
                           cudaStream_t stream) {
    if (v->H == 32) return forward_run<shape<16, 16, 32, 1, 3>, T>(a, f, multiprocessors, stream);
    if (v->H == 16) return forward_run<shape<32, 32, 16, 1, 3>, T>(a, f, multiprocessors, stream);
    return forward_run<shape<64, 64, 8, 1, 3>, T>(a, f, multiprocessors, stream);
}
template <typename T>
cudaError_t forward_after(const struct ck_conv *v, bool applies, const forward_apply_args &a, const finish_args &f,
                          int multiprocessors, cudaStream_t stream) {
    if (v->stride == 2 && v->H == 32) return forward_run<shape<16, 32, 32, 2, 3>, T>(a, f, multiprocessors, stream);
    if (v->stride == 2) return forward_run<shape<32, 64, 16, 2, 3>, T>(a, f, multiprocessors, stream);
    return applies ? forward_finish<T>(v, a, f, multiprocessors, stream)
                   : forward_finish<T>(v, static_cast<const forward_finish_args &>(a), f, multiprocessors, stream);
}
int64_t tiles_of(const struct ck_conv *v) { /* of an image */
    return v->C == 3 ? (int64_t)STEM_TILES : v->stride == 1 ? 1 : v->P / 8;
}
/* Number of blocks that store sums. */
unsigned sums_rows(const struct ck_conv *v, int multiprocessors) {
    return ck_blocks(v->N * tiles_of(v), 1, (int64_t)multiprocessors * RESIDENT);
}

/* Whether args->before is valid. With a stride of 2 some pixels of x belong to two tiles, so a block may not overwrite
 * them. */
bool can_finish(const struct ck_cifar_conv *args, int multiprocessors) {
    if (!args->before.finish.scale_bias) return false;
    if (!args->apply_x)
        return ck_cifar_conv_finishes(&args->conv) && args->scale_bias == args->before.finish.scale_bias;
    const bool alias = args->x == args->apply_add || args->x == args->apply_x;
    if (args->conv.stride == 2 && (alias || args->shortcut_c)) return false;
    return ck_cifar_conv_applies(&args->conv, multiprocessors) && !args->scale_bias;
}

template <typename T>
cudaError_t forward(const struct ck_conv *v, const forward_args &a, const finish_args &f, int multiprocessors,
                    cudaStream_t stream) {
    return is_narrow(v) || a.bias ? forward_any<T, true>(v, a, f, multiprocessors, stream)
                                  : forward_any<T, false>(v, a, f, multiprocessors, stream);
}

} // namespace
} // namespace cifar

bool ck_cifar_conv_supports(const struct ck_conv *v) {
    if (v->type == CK_F32 || v->N < 1 || v->H != v->W || v->R != v->S || (v->R != 3 && v->R != 1) || v->pad != v->R / 2)
        return false;
    if (v->P != v->H / v->stride || v->Q != v->P || v->N > INT32_MAX) return false;
    const bool down = v->stride == 2 && (v->H == 32 || v->H == 16);
    const bool same = v->stride == 1 && v->R == 3 && (v->H == 32 || v->H == 16 || v->H == 8);
    const bool stem = v->stride == 1 && v->R == 3 && v->C == 3 && v->H == 32;
    if ((!down && !same) || v->K < 8 || v->K % 8 || v->K > cifar::most_out(v)) return false;
    return stem || (v->C >= 8 && v->C % 8 == 0 && v->C <= cifar::most_in(v));
}

bool ck_cifar_conv_finishes(const struct ck_conv *v) {
    return ck_cifar_conv_supports(v) && !cifar::is_narrow(v) && v->C != 3 && v->stride == 1;
}

bool ck_cifar_conv_applies(const struct ck_conv *v, int multiprocessors) {
    return ck_cifar_conv_supports(v) && !cifar::is_narrow(v) && v->C != 3 && v->R == 3 &&
           v->N * cifar::tiles_of(v) <= (int64_t)multiprocessors * cifar::RESIDENT;
}

int ck_cifar_conv_rows(const struct ck_conv *v, int multiprocessors) {
    return cifar::is_narrow(v) ? 0 : (int)cifar::sums_rows(v, multiprocessors);
}

size_t ck_cifar_conv_workspace(const struct ck_conv *v, int multiprocessors) {
    return (size_t)multiprocessors * cifar::RESIDENT * 2 * (size_t)v->K * sizeof(float);
}

cudaError_t ck_cifar_conv(const struct ck_cifar_conv *args, void *workspace, int multiprocessors, cudaStream_t stream) {
    const cifar::forward_args a = {.x          = args->x,
                                   .w          = args->w,
                                   .scale_bias = args->scale_bias,
                                   .y          = args->y,
                                   .sums       = args->sums,
                                   .partial    = args->stores_rows ? args->sums : (float *)workspace,
                                   .N          = args->conv.N,
                                   .idle       = 0,
                                   .relu       = args->relu,
                                   .C          = (uint8_t)args->conv.C,
                                   .K          = (uint8_t)args->conv.K,
                                   .bias       = args->bias,
                                   .add        = args->add};
    const cifar::finish_args  f = {.partial  = (float *)workspace,
                                   .sums     = args->stores_rows ? NULL : args->sums,
                                   .rows     = 0,
                                   .channels = (int)args->conv.K,
                                   .finish   = args->finish,
                                   .factors  = ck_bn_factors_of(&args->finish)};
    if (!ck_cifar_conv_supports(&args->conv) || (args->conv.C == 3 && args->scale_bias)) return cudaErrorInvalidValue;
    if (args->finish.scale_bias && (!args->sums || args->stores_rows)) return cudaErrorInvalidValue;
    if ((args->add || args->relu) && !args->bias) return cudaErrorInvalidValue;
    if (args->before.rows) {
        cifar::forward_apply_args b = {};
        if (!cifar::can_finish(args, multiprocessors)) return cudaErrorInvalidValue;
        static_cast<cifar::forward_args &>(b) = a;
        b.before_rows = args->before.rows, b.before_count = args->before.count;
        b.finish = args->before.finish, b.factors = ck_bn_factors_of(&args->before.finish);
        if (args->apply_x) b.x = args->apply_x, b.add = args->apply_add, b.z = (void *)args->x;
        b.shortcut_c = (int)args->shortcut_c, b.shortcut_pad = (int)args->shortcut_pad;
        return args->conv.type == CK_F16
                   ? cifar::forward_after<__half>(&args->conv, args->apply_x != NULL, b, f, multiprocessors, stream)
                   : cifar::forward_after<__nv_bfloat16>(&args->conv, args->apply_x != NULL, b, f, multiprocessors,
                                                         stream);
    }
    return args->conv.type == CK_F16 ? cifar::forward<__half>(&args->conv, a, f, multiprocessors, stream)
                                     : cifar::forward<__nv_bfloat16>(&args->conv, a, f, multiprocessors, stream);
}
