/* cuda/conv/cifar/cifar_forward.cuh: shared parts of the forward kernels of the CIFAR convolutions: division of the
 * work, arguments, copies of filters, rounding, sums, and the second launch; and the kernel of the stem. See
 * cuda/conv/cifar/cifar_conv.cu. */
#ifndef CK_CIFAR_FORWARD_CUH
#define CK_CIFAR_FORWARD_CUH

#include "cuda/conv/cifar/cifar_sums.cuh"

namespace cifar {
namespace {

/* How a shape is divided: TH output rows a tile, NT columns of 8 and MT groups of 16 pixels that a warp processes at a
 * time. With a stride of 1 a tile is an image. */
template <class S> struct forward_tiling {
    static constexpr bool WHOLE = S::STRIDE == 1;
    enum { WARPS = 8, TH = WHOLE ? (int)S::P : 8, RESIDENT = 2 };
    enum { THREADS = WARPS * CK_WARP, I = 1, ROWS = TH * S::P / 16, NT = WHOLE || ROWS * S::K / 32 < WARPS ? 2 : 4 };
    enum { NW = S::K / (8 * NT), MW = WARPS / NW, MT = ROWS / MW, TILES = S::P / TH };
    static_assert(MW * MT == ROWS, "all warps have the same amount of work");
};

struct forward_args {
    static constexpr bool FINISH = false;
    const void           *x, *w;
    const float          *scale_bias;
    void                 *y;
    float                *sums, *partial;
    int64_t               N;
    int                   idle; /* the first `idle` blocks compute nothing */
    /* only with ANY: channels, and the end of inference */
    bool         relu;
    uint8_t      C, K;
    const float *bias; /* [K] or NULL */
    const void  *add;  /* like y, or NULL */
};

/* Index of this block among the blocks that compute, negative if it computes nothing; and the number of blocks that
 * compute. With ANY all blocks compute. */
template <bool ANY> __device__ __forceinline__ int block_of(const forward_args &a) {
    return (int)blockIdx.x - (ANY ? 0 : a.idle);
}
template <bool ANY> __device__ __forceinline__ int blocks_of(const forward_args &a) {
    return (int)gridDim.x - (ANY ? 0 : a.idle);
}

/* Copies filters to shared memory, one row for each channel k, in column order. All blocks read the same bytes at the
 * same time; each starts at another position, so that they do not queue for one part of the L2 cache. */
template <class S, int NT, int PITCH, int THREADS, typename T>
__device__ __forceinline__ void filter_issue(uint32_t to, const T *w, const forward_args &a) {
    constexpr int CHUNKS = S::TAPS * S::C / 8, ALL = S::K * CHUNKS, ROUNDS = (ALL + THREADS - 1) / THREADS;
    int           round = (int)blockIdx.x % ROUNDS;
#pragma unroll 6
    for (int i = 0; i < ROUNDS; i++) {
        const int      v = round * THREADS + (int)threadIdx.x, k = v / CHUNKS, c = v % CHUNKS * 8 % S::C;
        const uint32_t at = to + (uint32_t)(column_of<NT>(v / CHUNKS) * PITCH + v % CHUNKS * 16);
        if constexpr (S::ANY) {
            if (k < round_up(a.K, 8 * NT) && c / 16 * 16 < a.C)
                ck_copy16(at, w + (k * S::TAPS + v % CHUNKS * 8 / S::C) * a.C + c, k < a.K && c < a.C);
        } else if (ALL % THREADS == 0 || v < ALL)
            ck_copy16(at, w + v * 8, true);
        round = round + 1 == ROUNDS ? 0 : round + 1;
    }
}

template <class S> struct forward_memory {
    using D = forward_tiling<S>;
    using X = input_tile<S, D::I, D::TH, S::C, D::THREADS>;
    enum { W_PITCH = S::TAPS * S::C * 2 + 16, W_AT = 0, X_AT = S::K * W_PITCH };
    enum { SUMS_AT = X_AT + X::BYTES, BYTES = SUMS_AT + D::WARPS * 2 * S::K * 4 };
};

/* Rounds `half` of a group of 16 pixels x 8*NT columns, and sums the rounded values. */
template <typename T, int NT>
__device__ __forceinline__ piece<NT> forward_round(const float (&acc)[NT][4], int half, float (&first)[2 * NT],
                                                   float (&second)[2 * NT]) {
    piece<NT> p;
#pragma unroll
    for (int j = 0; j < NT; j++) p.word[j] = ck_pack_word<T>(acc[j][2 * half], acc[j][2 * half + 1]);
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 v = ck_unpack_word<T>(p.word[j]);
        first[2 * j] += v.x, first[2 * j + 1] += v.y;
        second[2 * j]     = fmaf(v.x, v.x, second[2 * j]);
        second[2 * j + 1] = fmaf(v.y, v.y, second[2 * j + 1]);
    }
    return p;
}

/* The block's sums, after its last tile. */
template <int NT, int K, int WARPS, bool ANY>
__device__ __forceinline__ void forward_sums(const forward_args &a, float (&first)[2 * NT], float (&second)[2 * NT],
                                             float *rows, int n0) {
    sums_flush<NT, K>(first, second, rows, n0);
    __syncthreads();
    sums_write<K, WARPS, ANY>(rows, NULL, a.partial, block_of<ANY>(a), a.K);
}

/* The end of inference, for the thread's 2*NT channels of 16*MT pixels: acc = [relu](acc + bias [+ add]). The summands
 * of pixel group m are at add + element(m, half); channel: the first of the channels. The loads of some pixels start
 * before the first of their sums. */
template <typename T, int MT, int NT, typename Element>
__device__ __forceinline__ void inference_end(const forward_args &a, float (&acc)[MT][NT][4], int channel, const T *add,
                                              Element element) {
    constexpr int AT_A_TIME = MT * NT > 8 ? 8 / NT : MT;
    const float   lowest    = a.relu ? 0.0f : -INFINITY;
    float         bias[2 * NT];
    load_floats(bias, a.bias + channel);
#pragma unroll
    for (int m0 = 0; m0 < MT; m0 += AT_A_TIME) {
        piece<NT> p[AT_A_TIME][2] = {};
        if (a.add)
#pragma unroll
            for (int m = 0; m < AT_A_TIME; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) p[m][half] = piece_load<NT>(add + element(m0 + m, half));
#pragma unroll
        for (int m = 0; m < AT_A_TIME; m++)
#pragma unroll
            for (int i = 0; i < 2 * NT; i++) { /* word i % NT of half i / NT */
                const int    half = i / NT, j = i % NT;
                const float2 more = ck_unpack_word<T>(p[m][half].word[j]);
                float       &v = acc[m0 + m][j][2 * half], &w = acc[m0 + m][j][2 * half + 1];
                v += bias[2 * j] + more.x, w += bias[2 * j + 1] + more.y;
                v = v < lowest ? lowest : v, w = w < lowest ? lowest : w;
            }
    }
}

/* ---- the second launch: adds the sums of all blocks and finishes the BN ---- */

struct finish_args {
    const float          *partial;
    float                *sums;
    int                   rows, channels;
    struct ck_bn_finalize finish;
    struct ck_bn_factors  factors;
};
/* K = 0: a.channels */
template <int K_> struct forward_end {
    const finish_args &a;
    struct channel {
        ck_bn_channel              bn;
        __device__ __forceinline__ channel(const forward_end &end, int k) {
            if (end.a.finish.scale_bias) bn.load(end.a.finish, k);
        }
        __device__ __forceinline__ void finish(const forward_end &end, int k, float sum, float squares) const {
            const int K       = K_ ? K_ : end.a.channels;
            end.a.sums[k]     = sum;
            end.a.sums[K + k] = squares;
            if (end.a.finish.scale_bias) bn.finish(end.a.finish, end.a.factors, k, K, sum, squares);
        }
    };
};
template <int K> __global__ void __launch_bounds__(THREADS) finish_kernel(finish_args a) {
    ck_let_next_begin();
    ck_wait_for_last();
    sums_add(a.partial, a.rows, (int)blockIdx.x, forward_end<K>{a}, K ? K : a.channels);
}
template <int K> cudaError_t finish_run(finish_args a, unsigned rows, cudaStream_t stream) {
    if (!a.sums) return cudaSuccess;
    a.rows = (int)rows;
    return launch(finish_kernel<K>, a, (K ? K : a.channels) / SUMS_CHANNELS, THREADS, 0, stream);
}

/* ---- the stem: 3 -> 16 channels ---- */

enum { RESIDENT = 2 /* blocks of a forward launch on a multiprocessor, at most */ };

enum { STEM_MT = 4 };

template <typename T, bool ANY> __global__ void __launch_bounds__(THREADS, 3) stem_kernel(forward_args a) {
    constexpr int NT = 2, W_PITCH = 48 * 2 + 16;
    const int     K = ANY ? a.K : (int)STEM_K;
    __shared__ __align__(16) char tile[STEM_BYTES];
    __shared__ __align__(16) char filter[STEM_K * W_PITCH];
    __shared__ float              rows[WARPS * 2 * STEM_K];
    const int                     lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    float                         first[2 * NT] = {}, second[2 * NT] = {};
    for (int i = (int)threadIdx.x; i < WARPS * 2 * STEM_K; i += THREADS) rows[i] = 0;
    ck_begin_after_last();
    for (int i = (int)threadIdx.x; i < STEM_K * 48; i += THREADS) { /* [k][r][4 columns][4 channels] */
        const int k = i / 48, r = i / 16 % 3, s = i / 4 % 4, c = i % 4;
        uint16_t  v = 0;
        if (s < 3 && c < 3 && (!ANY || k < K)) v = ((const uint16_t *)a.w)[((k * 3 + r) * 3 + s) * 3 + c];
        *reinterpret_cast<uint16_t *>(filter + column_of<NT>(k) * W_PITCH + i % 48 * 2) = v;
    }
    const uint32_t b0 = ck_shared(filter) + (uint32_t)(((lane & 7) + (lane >> 4) * 8) * W_PITCH + (lane >> 3 & 1) * 16);
    for (int64_t job = blockIdx.x; job < a.N * STEM_TILES; job += gridDim.x) {
        const int64_t image = job / STEM_TILES;
        const int     y0    = (int)(job % STEM_TILES) * STEM_TH;
        stem_fill(tile, (const T *)a.x + image * STEM_SIDE * STEM_SIDE * 3, y0 - 1);
        __syncthreads();
        float    acc[STEM_MT][NT][4] = {};
        uint32_t at[STEM_MT];
#pragma unroll
        for (int m = 0; m < STEM_MT; m++) {
            const int pixel = (warp * STEM_MT + m) * 16 + (lane & 15);
            at[m] = ck_shared(tile) + stem_pixel(pixel / STEM_SIDE, pixel % STEM_SIDE) + (uint32_t)(lane >> 4) * 16;
        }
#pragma unroll
        for (int r = 0; r < 3; r++) {
            uint32_t bf[4], af[4];
            ck_ldmatrix(bf, b0 + (uint32_t)(r * 32));
#pragma unroll
            for (int m = 0; m < STEM_MT; m++) {
                ck_ldmatrix(af, at[m] + (uint32_t)(r * STEM_LINE));
                mma<T>(acc[m][0], af, bf[0], bf[1]);
                mma<T>(acc[m][1], af, bf[2], bf[3]);
            }
        }
        const int     channel = lane % 4 * 2 * NT;
        const bool    works   = !ANY || channel < K;
        const int64_t to      = ((image * STEM_SIDE + y0) * STEM_SIDE + warp * STEM_MT * 16 + lane / 4) * K + channel;
        const auto    element = [=](int m, int half) { return (m * 16 + half * 8) * K; };
        if constexpr (ANY)
            if (a.bias && works) inference_end<T>(a, acc, channel, (const T *)a.add + to, element);
        piece<NT> out[STEM_MT][2];
#pragma unroll
        for (int m = 0; m < STEM_MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) out[m][half] = forward_round<T, NT>(acc[m], half, first, second);
        if (a.sums && job + gridDim.x >= a.N * STEM_TILES)
            forward_sums<NT, STEM_K, WARPS, ANY>(a, first, second, rows, 0);
        T *y = (T *)a.y + to;
        if (works)
#pragma unroll
            for (int m = 0; m < STEM_MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) piece_store<NT>(y + element(m, half), out[m][half]);
        __syncthreads();
    }
}

template <typename T, bool ANY>
cudaError_t stem_run(const forward_args &a, const finish_args &finish, int multiprocessors, cudaStream_t stream) {
    const unsigned    blocks = ck_blocks(a.N * STEM_TILES, 1, (int64_t)multiprocessors * RESIDENT);
    const cudaError_t error  = launch(stem_kernel<T, ANY>, a, blocks, THREADS, 0, stream);
    constexpr int     K      = ANY ? 0 : (int)STEM_K;
    return error != cudaSuccess ? error : finish_run<K>(finish, blocks, stream);
}

} // namespace
} // namespace cifar

#endif
