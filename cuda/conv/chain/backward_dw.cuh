/* cuda/conv/chain/backward_dw.cuh: the filter gradients of many convolutions of a CIFAR ResNet: one launch computes
 * the parts of all of them, one adds them. The work of a block, and the order of all additions, are those of
 * cuda/conv/cifar/cifar_conv_grad.cu with one image a block.
 *
 * Bytes: g, dy_x and x, 2 an element each; twice from 64 channels on. Limiter: the L2 cache and memory. */
#ifndef CK_CHAIN_BACKWARD_DW_CUH
#define CK_CHAIN_BACKWARD_DW_CUH

#include "cuda/conv/cifar/cifar_grad_stem.cuh"

namespace cifar {
namespace {

/* One convolution of the launches. Blocks `begin` on belong to it. */
struct dw_layer {
    const void  *g, *dy_x, *x;
    const float *dy_coeffs, *scale_bias;
    float       *partial, *dw;
    int          begin, add_begin, each; /* each: rows of `partial` that are added */
    int          kind;
    bool         accumulate;
};
template <int MOST> struct dw_layers {
    int64_t  N;
    int      count;
    dw_layer layer[MOST];
};

/* Shared memory of a block's work. Filter gradients are added in the place of the tiles. */
template <class S> struct dw_memory {
    using D = grad_tiling<S>;
    enum { LINE_AT = D::DW_DY::BYTES, X_AT = LINE_AT + D::DW_DY::VECTORS * 16, ALL = X_AT + D::DW_X::BYTES };
    enum { BYTES = (int)ALL > (int)D::ROUND ? (int)ALL : (int)D::ROUND };
};

/* Block `block` of a convolution: an image (joint), or a part of dw over some images (split). */
template <class S, typename T>
__device__ __noinline__ void dw_part(const dw_layer &a, int64_t N, char *memory, int block) {
    using D        = grad_tiling<S>;
    using M        = dw_memory<S>;
    using L        = typename D::DW_DY;
    using X        = typename D::DW_X;
    const int part = D::JOINT ? 0 : block / D::GROUP, k0 = part / (S::C / D::CB) * D::KB,
              c0        = part % (S::C / D::CB) * D::CB;
    const uint32_t   dy = ck_shared(memory), line = dy + M::LINE_AT, x = dy + M::X_AT;
    float            acc[D::EARLY][2][4] = {};
    const dw_slot<S> slot_of_warp;
    constexpr int    TILES = D::JOINT ? (int)D::TILES : 1;
    tile_margin<X>(x);
    for (int64_t image = D::JOINT ? block : block % D::GROUP * D::I; image < N;
         image += D::JOINT ? N : D::GROUP * D::I) {
        const int     images = (int)min((int64_t)D::I, N - image);
        const int64_t out    = image * S::P * S::P * S::K + k0;
#pragma unroll 1
        for (int tile = 0; tile < TILES; tile++) {
            const int row = tile * D::TH - L::LEFT, x_row = input_row<S>(tile * D::TH);
            tile_issue<L, false, false>(dy, (const T *)a.g + out, row, images);
            tile_issue<L, true, false>(line, (const T *)a.dy_x + out, row, images);
            tile_issue<X, false, false>(x, (const T *)a.x + image * S::H * S::H * S::C + c0, x_row, images);
            ck_copy_commit();
            tile_bn_grad<L, 0, T>(dy, line, a.dy_coeffs + k0, S::K, row, images);
            if (a.scale_bias) tile_act<X, 0, T>(x, a.scale_bias + c0, S::C, x_row, images);
            __syncthreads();
            dw_piece<S, T>(acc, dy + slot_of_warp.dy_bytes(), x + slot_of_warp.x_bytes(), slot_of_warp.group,
                           slot_of_warp.late);
            __syncthreads();
        }
    }
    dw_block<S>(acc, a.partial + (int64_t)block * D::DW, reinterpret_cast<float *>(memory), slot_of_warp);
}

template <typename T, int MOST>
__global__ void __launch_bounds__(THREADS, 2) dw_parts_kernel(const __grid_constant__ dw_layers<MOST> a) {
    extern __shared__ __align__(16) char memory[];
    int                                  i = 0;
    while (i + 1 < a.count && (int)blockIdx.x >= a.layer[i + 1].begin) i++;
    const dw_layer layer = a.layer[i];
    const int      block = (int)blockIdx.x - layer.begin;
    switch (layer.kind) {
    case BACK_16: dw_part<s16, T>(layer, a.N, memory, block); break;
    case BACK_DOWN_16: dw_part<d16, T>(layer, a.N, memory, block); break;
    case BACK_32: dw_part<s32, T>(layer, a.N, memory, block); break;
    case BACK_DOWN_32: dw_part<d32, T>(layer, a.N, memory, block); break;
    case BACK_64: dw_part<s64, T>(layer, a.N, memory, block); break;
    case BACK_STEM: {
        const grad_args s = {.g            = layer.g,
                             .dy_x         = layer.dy_x,
                             .w            = NULL,
                             .x            = layer.x,
                             .add          = NULL,
                             .bn_x         = NULL,
                             .dy_coeffs    = layer.dy_coeffs,
                             .scale_bias   = NULL,
                             .mean_rstd    = NULL,
                             .dx           = NULL,
                             .dw           = NULL,
                             .grad_sums    = NULL,
                             .dw_partial   = layer.partial,
                             .sums_partial = NULL,
                             .N            = a.N,
                             .accumulate   = false,
                             .w_new        = false,
                             .by_image     = false};
        stem_dw<T>(s, memory, block, (int)a.N * STEM_TILES);
        break;
    }
    }
}

/* Adds the parts. */
template <int MOST>
__global__ void __launch_bounds__(THREADS) dw_add_kernel(const __grid_constant__ dw_layers<MOST> a) {
    int i = 0;
    while (i + 1 < a.count && (int)blockIdx.x >= a.layer[i + 1].add_begin) i++;
    const dw_layer &l     = a.layer[i];
    const int       block = (int)blockIdx.x - l.add_begin;
    switch (l.kind) {
    case BACK_16: add_rows<dw_place<s16>>(l.partial, l.dw, l.each, l.accumulate, block); break;
    case BACK_DOWN_16: add_rows<dw_place<d16>>(l.partial, l.dw, l.each, l.accumulate, block); break;
    case BACK_32: add_rows<dw_place<s32>>(l.partial, l.dw, l.each, l.accumulate, block); break;
    case BACK_DOWN_32: add_rows<dw_place<d32>>(l.partial, l.dw, l.each, l.accumulate, block); break;
    case BACK_64: add_rows<dw_place<s64>>(l.partial, l.dw, l.each, l.accumulate, block); break;
    case BACK_STEM: add_rows<stem_place>(l.partial, l.dw, l.each, l.accumulate, block); break;
    }
}

} // namespace
} // namespace cifar

#endif
