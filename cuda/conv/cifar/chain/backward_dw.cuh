/* cuda/conv/cifar/chain/backward_dw.cuh: the filter gradients of many convolutions of a CIFAR ResNet: one launch computes the
 * parts of all of them, one adds them. Both add the same numbers in the same order as
 * cuda/conv/cifar/cifar_conv_grad.cu with one image a block.
 *
 * A job is the part of dw that a block of that file computes. Blocks loop over the jobs of all convolutions. While a
 * tile is multiplied, the copies of the next one, of this or of the next job, are in flight. Jobs whose tiles are too
 * large for that (16 -> 32 channels), and the stem, copy their own tile.
 *
 * Bytes: dy and x, 2 an element each; twice from 64 channels on. Limiter: the L2 cache and memory. */
#ifndef CK_CHAIN_BACKWARD_DW_CUH
#define CK_CHAIN_BACKWARD_DW_CUH

#include "cuda/conv/cifar/cifar_grad_stem.cuh"

namespace cifar {
namespace {

/* One convolution. Jobs `begin` on belong to it. */
struct dw_layer {
    const void  *dy, *x;     /* dy of the stem: not used */
    const void  *g, *dy_x;   /* of the stem */
    const float *dy_coeffs;  /* of the stem */
    const float *scale_bias; /* x is read as act(x), or NULL */
    float       *partial, *dw;
    int          begin, add_begin, each; /* each: rows of `partial` that are added */
    int          kind;
    bool         accumulate;
};
template <int MOST> struct dw_layers {
    int64_t  N;
    int      count, jobs;
    dw_layer layer[MOST];
};

/* Tiles of dy and x of a job. */
template <class S> struct dw_tiles {
    using D = grad_tiling<S>;
    enum { TILES = D::JOINT ? (int)D::TILES : 1, TH = D::JOINT ? (int)D::TH : (int)S::P };
    using DY = output_tile<S, D::I, TH, D::KB, false>;
    using X  = typename D::DW_X;
    enum { X_AT = DY::BYTES, BYTES = X_AT + X::BYTES };
};
/* Two tiles, or one large one; a job's sums are added in the place of its last tile. */
enum { DW_STAGE = 57856, DW_BYTES = 2 * DW_STAGE };
static_assert((int)dw_tiles<s16>::BYTES <= (int)DW_STAGE && (int)dw_tiles<s32>::BYTES <= (int)DW_STAGE &&
                  (int)dw_tiles<d32>::BYTES <= (int)DW_STAGE && (int)dw_tiles<s64>::BYTES <= (int)DW_STAGE,
              "two stages");
static_assert((int)dw_tiles<d16>::BYTES <= (int)DW_BYTES && (int)STEM_ALL <= (int)DW_BYTES, "one stage");
static_assert((DW_BYTES + 1024) * 2 <= 233472, "two blocks a multiprocessor");

__device__ __forceinline__ bool dw_copies_itself(int kind) {
    return kind == BACK_DOWN_16 || kind == BACK_STEM;
}

/* First image, and number of images, of a job. */
template <class S> struct dw_images {
    int64_t                    image;
    int                        count, k0, c0;
    __device__ __forceinline__ dw_images(int64_t N, int block) {
        using D        = grad_tiling<S>;
        const int part = D::JOINT ? 0 : block / D::GROUP;
        image          = D::JOINT ? block : block % D::GROUP * D::I;
        count          = image < N ? (int)min((int64_t)D::I, N - image) : 0;
        k0 = part / (S::C / D::CB) * D::KB, c0 = part % (S::C / D::CB) * D::CB;
    }
};

template <class S, typename T>
__device__ __forceinline__ void dw_issue_of(const dw_layer &a, int64_t N, uint32_t to, int block, int tile) {
    using W = dw_tiles<S>;
    const dw_images<S> job(N, block);
    tile_issue<typename W::DY, false, false>(to, (const T *)a.dy + job.image * S::P * S::P * S::K + job.k0,
                                             tile * W::TH, job.count);
    tile_issue<typename W::X, false, false>(to + (uint32_t)W::X_AT,
                                            (const T *)a.x + job.image * S::H * S::H * S::C + job.c0,
                                            input_row<S>(tile * W::TH), job.count);
}
template <typename T>
__device__ __noinline__ void dw_issue(const dw_layer &a, int64_t N, uint32_t to, int block, int tile) {
    switch (a.kind) {
    case BACK_16: dw_issue_of<s16, T>(a, N, to, block, tile); break;
    case BACK_DOWN_16: dw_issue_of<d16, T>(a, N, to, block, tile); break;
    case BACK_32: dw_issue_of<s32, T>(a, N, to, block, tile); break;
    case BACK_DOWN_32: dw_issue_of<d32, T>(a, N, to, block, tile); break;
    case BACK_64: dw_issue_of<s64, T>(a, N, to, block, tile); break;
    }
}

/* The present job and the next one. */
struct dw_job {
    const dw_layer *layer, *next; /* next: NULL when there is none */
    int             block, next_block, stage;
};

/* Computes a job whose first tile is in flight. */
template <class S, typename T> __device__ __noinline__ void dw_part(const dw_job &job, int64_t N, char *memory) {
    using D                              = grad_tiling<S>;
    using W                              = dw_tiles<S>;
    using X                              = typename W::X;
    const dw_layer  &a                   = *job.layer;
    constexpr bool   LARGE               = (int)W::BYTES > (int)DW_STAGE;
    float            acc[D::EARLY][2][4] = {};
    const dw_slot<S> slot_of_warp;
    int              stage = job.stage;
    static_assert(D::JOINT || W::TILES == 1, "tiles of one image");
#pragma unroll 1
    for (int tile = 0; tile < W::TILES; tile++) {
        const uint32_t dy = ck_shared(memory) + (uint32_t)(stage * DW_STAGE), x = dy + W::X_AT;
        tile_margin<X>(x);
        if (!LARGE) {
            const uint32_t to = ck_shared(memory) + (uint32_t)((1 - stage) * DW_STAGE);
            if (tile + 1 < W::TILES)
                dw_issue<T>(a, N, to, job.block, tile + 1);
            else if (job.next && !dw_copies_itself(job.next->kind))
                dw_issue<T>(*job.next, N, to, job.next_block, 0);
            ck_copy_commit();
            ck_copy_wait<1>();
        } else
            ck_copy_wait<0>();
        const dw_images<S> images(N, job.block);
        if (a.scale_bias)
            tile_act<X, LARGE ? 0 : 1, T>(x, a.scale_bias + images.c0, S::C, input_row<S>(tile * W::TH), images.count);
        __syncthreads();
        dw_piece<S, T, typename W::DY>(acc, dy + slot_of_warp.dy_bytes(), x + slot_of_warp.x_bytes(),
                                       slot_of_warp.group, slot_of_warp.late);
        __syncthreads();
        stage = 1 - stage;
    }
    dw_block<S>(acc, a.partial + (int64_t)job.block * D::DW, reinterpret_cast<float *>(memory + (1 - stage) * DW_STAGE),
                slot_of_warp);
    __syncthreads();
}

template <typename T> __device__ __noinline__ void dw_stem(const dw_layer &layer, int64_t N, char *memory, int block) {
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
                         .N            = N,
                         .accumulate   = false,
                         .w_new        = false,
                         .by_image     = false};
    stem_dw<T>(s, memory, block, (int)N * STEM_TILES);
    __syncthreads();
}

template <typename T, int MOST>
__global__ void __launch_bounds__(THREADS, 2) dw_parts_kernel(const __grid_constant__ dw_layers<MOST> a) {
    extern __shared__ __align__(16) char memory[];
    dw_job                               job       = {a.layer, NULL, 0, 0, 0};
    int                                  l         = 0;
    bool                                 in_flight = false; /* the first tile of the job */
    for (int j = (int)blockIdx.x; j < a.jobs; j += (int)gridDim.x) {
        while (l + 1 < a.count && j >= a.layer[l + 1].begin) l++;
        int n = l;
        while (n + 1 < a.count && j + (int)gridDim.x >= a.layer[n + 1].begin) n++;
        job.layer = &a.layer[l], job.block = j - a.layer[l].begin;
        job.next       = j + (int)gridDim.x < a.jobs ? &a.layer[n] : NULL,
        job.next_block = j + (int)gridDim.x - a.layer[n].begin;
        const int kind = a.layer[l].kind;
        if (!in_flight) job.stage = 0;
        if (!in_flight && kind != BACK_STEM) {
            dw_issue<T>(*job.layer, a.N, ck_shared(memory), job.block, 0);
            ck_copy_commit();
        }
        switch (kind) {
        case BACK_16: dw_part<s16, T>(job, a.N, memory); break;
        case BACK_DOWN_16: dw_part<d16, T>(job, a.N, memory); break;
        case BACK_32: dw_part<s32, T>(job, a.N, memory); break;
        case BACK_DOWN_32: dw_part<d32, T>(job, a.N, memory); break;
        case BACK_64: dw_part<s64, T>(job, a.N, memory); break;
        case BACK_STEM: dw_stem<T>(*job.layer, a.N, memory, job.block); break;
        }
        in_flight = job.next && !dw_copies_itself(kind) && !dw_copies_itself(job.next->kind);
        if (kind != BACK_16) job.stage = 1 - job.stage; /* 16 channels have two tiles */
    }
    ck_copy_wait_all();
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
