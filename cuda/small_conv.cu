/* small_conv.cu: forward of the small convolutions: BN and ReLU of the input while it is read, sums of the output while it is
 * written. A block keeps the whole filter and a tile of the input in shared memory and multiplies with the tensor cores, one
 * tap and 16 channels at a time; blocks stride over the tiles.
 *
 * Bytes: 2 an element of x, read 1 (whole pictures) to 1.13 times (halves), and 2 an element of y. Limiter: at 128 pictures the
 * launch and one round trip to the L2 cache; from about 1024 pictures on memory in 16 channels, and reads of shared memory
 * (ldmatrix, 4 cycles for 512 bytes) in 32 and 64. Roof: 4.3 TB/s, or about 600 TFLOP/s of mma.sync. */
#include "small_conv.cuh"

namespace small {
namespace {

/* How a shape is cut: I pictures of TH output rows a tile, NT columns of 8 and MT groups of 16 pixels a warp at a time. */
template <class S> struct cut {
    enum { WARPS = 8, TH = S::P == 32 ? 16 : 8, RESIDENT = 2 };
    enum { THREADS = WARPS * CK_WARP, I = 1, ROWS = TH * S::P / 16, NT = S::K == 16 ? 2 : ROWS * S::K / 32 >= WARPS ? 4 : 2 };
    enum { NW = S::K / (8 * NT), MW = WARPS / NW, MT = ROWS / MW, TILES = S::P / TH };
    static_assert(MW * MT == ROWS, "each warp has as much");
};

struct forward_args {
    const void  *x, *w;
    const float *coef;
    void        *y;
    float       *stats, *partial;
    unsigned    *counter;
    int64_t      N;
    struct ck_bn_finalize finish;
    struct ck_bn_factors  factors;
};

/* Filters to shared memory, one row a channel k, in column order. */
template <class S, int NT, int PITCH, int THREADS, typename T> __device__ __forceinline__ void filter_issue(uint32_t to, const T *w) {
    constexpr int CHUNKS = S::TAPS * S::C / 8;
#pragma unroll
    for (int v = (int)threadIdx.x; v < S::K * CHUNKS; v += THREADS)
        copy_async(to + (uint32_t)(column_of<NT>(v / CHUNKS) * PITCH + v % CHUNKS * 16), w + v * 8, true);
}

template <class S> struct forward_memory {
    using D = cut<S>;
    using X = input_tile<S, D::I, D::TH, S::C, D::THREADS>;
    enum { W_PITCH = S::TAPS * S::C * 2 + 16, W_AT = 0, X_AT = S::K * W_PITCH, SUMS_ROOM = D::WARPS * 2 * S::K * 8 };
    enum { SUMS_AT = X_AT + X::BYTES > SUMS_ROOM ? X_AT + X::BYTES : (int)SUMS_ROOM, BYTES = SUMS_AT + D::WARPS * 2 * S::K * 4 };
};

/* Rounds `half` of a group of 16 pixels x 8*NT columns, and sums what was rounded. */
template <typename T, int NT>
__device__ __forceinline__ piece<NT> forward_round(const float (&acc)[NT][4], int half, bool sums, float (&first)[2 * NT],
                                                   float (&second)[2 * NT]) {
    piece<NT> p;
#pragma unroll
    for (int j = 0; j < NT; j++) p.word[j] = ck_pack_word<T>(acc[j][2 * half], acc[j][2 * half + 1]);
    if (sums)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const float2 v = ck_unpack_word<T>(p.word[j]);
            first[2 * j] += v.x, first[2 * j + 1] += v.y;
            second[2 * j]     = fmaf(v.x, v.x, second[2 * j]);
            second[2 * j + 1] = fmaf(v.y, v.y, second[2 * j + 1]);
        }
    return p;
}

/* The block's sums, once it has multiplied its last tile: written and announced before that tile is stored, whose way to
 * memory nobody then waits for. */
template <int NT, int K, int WARPS>
__device__ __forceinline__ void forward_sums(const forward_args &a, float (&first)[2 * NT], float (&second)[2 * NT], float *rows, int n0,
                                             bool *last) {
    sums_flush<NT, K>(first, second, rows, n0);
    __syncthreads();
    sums_write<K, WARPS>(rows, NULL, a.partial, (int)blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) *last = ticket(a.counter, gridDim.x);
}

/* The last block: adds all sums, and does what becomes of them. */
template <int K> struct forward_end {
    const forward_args &a;
    ck_bn_channel       channel;
    __device__ __forceinline__ explicit forward_end(const forward_args &args) : a(args) {
        if (a.finish.coef && (int)threadIdx.x < K) channel.load(a.finish, threadIdx.x);
    }
    __device__ __forceinline__ void operator()(int k, float sum, float squares) const {
        a.stats[k]     = sum;
        a.stats[K + k] = squares;
        if (a.finish.coef) channel.finish(a.finish, a.factors, k, K, sum, squares);
    }
};
template <int K, int WARPS> __device__ __forceinline__ void forward_finish(const forward_args &a, void *room) {
    sums_finish<K, WARPS>(a.partial, (int)gridDim.x, reinterpret_cast<double *>(room), forward_end<K>(a));
}

template <class S, typename T> __global__ void __launch_bounds__(cut<S>::THREADS, cut<S>::RESIDENT) forward_kernel(forward_args a) {
    using M = forward_memory<S>;
    using D = typename M::D;
    using X = typename M::X;
    extern __shared__ __align__(16) char memory[];
    __shared__ bool last;
    const int      lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP, n0 = warp % D::NW * 8 * D::NT;
    const uint32_t base = smem_address(memory), xs = base + M::X_AT;
    float         *rows = reinterpret_cast<float *>(memory + M::SUMS_AT);
    float          first[2 * D::NT] = {}, second[2 * D::NT] = {};
    const uint32_t b0 = base + (uint32_t)((n0 + (lane & 7) + (lane >> 4) * 8) * M::W_PITCH + (lane >> 3 & 1) * 16);

    tile_margin<X>(xs);
    for (int i = (int)threadIdx.x; i < D::WARPS * 2 * S::K; i += D::THREADS) rows[i] = 0;
    begin_after_last();
    filter_issue<S, D::NT, M::W_PITCH, D::THREADS>(base, (const T *)a.w);

    for (int64_t job = blockIdx.x; job < a.N * D::TILES; job += gridDim.x) {
        const int64_t image = job / D::TILES;
        const int     y0    = (int)(job % D::TILES) * D::TH;
        const T      *x     = (const T *)a.x + image * S::H * S::H * S::C;
        tile_issue<X, false, false>(xs, x, input_row<S>(y0), 1);
        copy_group();
        if (!a.coef) copy_wait_group<0>();
        if (a.coef) tile_act<X, 0, T>(xs, a.coef, S::C, input_row<S>(y0), 1);
        __syncthreads();
        const int m0 = warp / D::NW * D::MT;
        uint32_t  at[D::MT];
        float     acc[D::MT][D::NT][4] = {};
#pragma unroll
        for (int m = 0; m < D::MT; m++) {
            const int pixel = (m0 + m) * 16 + (lane & 15);
            at[m] = xs + (uint32_t)(input_pixel<S, X>(pixel / S::P, pixel % S::P) + (lane >> 4) * 16);
        }
/* A row of the filter at a time: straight code for all of them is more than the instruction cache likes. */
#pragma unroll 1
        for (int r = 0; r < S::R; r++) {
#pragma unroll
            for (int s = 0; s < S::R; s++)
#pragma unroll
                for (int c = 0; c < S::C; c += 16) {
                    uint32_t af[D::MT][4], bf[D::NT / 2][4];
#pragma unroll
                    for (int j = 0; j < D::NT / 2; j++)
                        ldmatrix(bf[j], b0 + (uint32_t)(j * 16 * M::W_PITCH + ((r * S::R + s) * S::C + c) * 2));
#pragma unroll
                    for (int m = 0; m < D::MT; m++)
                        ldmatrix(af[m], at[m] + (uint32_t)(r * input_tap<S, X>(1, 0) + input_tap<S, X>(0, s) + c * 2));
#pragma unroll
                    for (int m = 0; m < D::MT; m++)
#pragma unroll
                        for (int j = 0; j < D::NT; j++) mma<T>(acc[m][j], af[m], bf[j / 2][j % 2 * 2], bf[j / 2][j % 2 * 2 + 1]);
                }
        }
        piece<D::NT> out[D::MT][2];
#pragma unroll
        for (int m = 0; m < D::MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) out[m][half] = forward_round<T, D::NT>(acc[m], half, a.stats, first, second);
        if (a.stats && job + gridDim.x >= a.N * D::TILES) forward_sums<D::NT, S::K, D::WARPS>(a, first, second, rows, n0, &last);
        T *y = (T *)a.y + ((image * S::P + y0) * S::P + m0 * 16 + lane / 4) * S::K + n0 + lane % 4 * 2 * D::NT;
#pragma unroll
        for (int m = 0; m < D::MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) piece_store<D::NT>(y + (m * 16 + half * 8) * S::K, out[m][half]);
        __syncthreads();
    }
    if (a.stats && last) forward_finish<S::K, D::WARPS>(a, memory);
}

/* ---- the stem: 3 -> 16 channels ------------------------------------------------------------------------------------------ */

enum { STEM_MT = 4 };

template <typename T> __global__ void __launch_bounds__(THREADS, 3) stem_kernel(forward_args a) {
    constexpr int NT = 2, W_PITCH = 48 * 2 + 16;
    __shared__ __align__(16) char tile[STEM_BYTES];
    __shared__ __align__(16) char filter[STEM_K * W_PITCH];
    __shared__ float              rows[WARPS * 2 * STEM_K];
    __shared__ bool               last;
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    float     first[2 * NT] = {}, second[2 * NT] = {};
    for (int i = (int)threadIdx.x; i < WARPS * 2 * STEM_K; i += THREADS) rows[i] = 0;
    begin_after_last();
    for (int i = (int)threadIdx.x; i < STEM_K * 48; i += THREADS) { /* [k][r][4 columns][4 channels] */
        const int k = i / 48, r = i / 16 % 3, s = i / 4 % 4, c = i % 4;
        uint16_t  v = 0;
        if (s < 3 && c < 3) v = ((const uint16_t *)a.w)[((k * 3 + r) * 3 + s) * 3 + c];
        *reinterpret_cast<uint16_t *>(filter + column_of<NT>(k) * W_PITCH + i % 48 * 2) = v;
    }
    const uint32_t b0 = smem_address(filter) + (uint32_t)(((lane & 7) + (lane >> 4) * 8) * W_PITCH + (lane >> 3 & 1) * 16);
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
            at[m] = smem_address(tile) + stem_pixel(pixel / STEM_SIDE, pixel % STEM_SIDE) + (uint32_t)(lane >> 4) * 16;
        }
#pragma unroll
        for (int r = 0; r < 3; r++) {
            uint32_t bf[4], af[4];
            ldmatrix(bf, b0 + (uint32_t)(r * 32));
#pragma unroll
            for (int m = 0; m < STEM_MT; m++) {
                ldmatrix(af, at[m] + (uint32_t)(r * STEM_LINE));
                mma<T>(acc[m][0], af, bf[0], bf[1]);
                mma<T>(acc[m][1], af, bf[2], bf[3]);
            }
        }
        piece<NT> out[STEM_MT][2];
#pragma unroll
        for (int m = 0; m < STEM_MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) out[m][half] = forward_round<T, NT>(acc[m], half, a.stats, first, second);
        if (a.stats && job + gridDim.x >= a.N * STEM_TILES) forward_sums<NT, STEM_K, WARPS>(a, first, second, rows, 0, &last);
        T *y = (T *)a.y + ((image * STEM_SIDE + y0) * STEM_SIDE + warp * STEM_MT * 16 + lane / 4) * STEM_K + lane % 4 * 2 * NT;
#pragma unroll
        for (int m = 0; m < STEM_MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) piece_store<NT>(y + (m * 16 + half * 8) * STEM_K, out[m][half]);
        __syncthreads();
    }
    if (a.stats && last) forward_finish<STEM_K, WARPS>(a, tile);
}

/* ---- the host's side ---------------------------------------------------------------------------------------------------- */

enum { RESIDENT = 2 /* blocks a multiprocessor, at most */ };

template <class S, typename T> cudaError_t forward_run(const forward_args &a, int multiprocessors, cudaStream_t stream) {
    using M = forward_memory<S>;
    using D = typename M::D;
    static_assert((int)D::RESIDENT <= (int)RESIDENT && (M::BYTES + 1024) * D::RESIDENT <= 233472, "so many fit");
    const unsigned blocks = ck_blocks(a.N * D::TILES, 1, (int64_t)multiprocessors * D::RESIDENT);
    return launch(forward_kernel<S, T>, a, blocks, D::THREADS, M::BYTES, stream);
}

template <typename T> cudaError_t stem_run(const forward_args &a, int multiprocessors, cudaStream_t stream) {
    return launch(stem_kernel<T>, a, ck_blocks(a.N * STEM_TILES, 1, (int64_t)multiprocessors * RESIDENT), THREADS, 0, stream);
}

template <typename T>
cudaError_t forward_any(const struct ck_conv *v, const forward_args &a, int multiprocessors, cudaStream_t stream) {
    if (v->C == 3) return stem_run<T>(a, multiprocessors, stream);
    if (v->C == 16 && v->K == 16) return forward_run<shape<16, 16, 32, 1, 3>, T>(a, multiprocessors, stream);
    if (v->C == 16)
        return v->R == 3 ? forward_run<shape<16, 32, 32, 2, 3>, T>(a, multiprocessors, stream)
                         : forward_run<shape<16, 32, 32, 2, 1>, T>(a, multiprocessors, stream);
    if (v->C == 32 && v->K == 32) return forward_run<shape<32, 32, 16, 1, 3>, T>(a, multiprocessors, stream);
    if (v->C == 32)
        return v->R == 3 ? forward_run<shape<32, 64, 16, 2, 3>, T>(a, multiprocessors, stream)
                         : forward_run<shape<32, 64, 16, 2, 1>, T>(a, multiprocessors, stream);
    return forward_run<shape<64, 64, 8, 1, 3>, T>(a, multiprocessors, stream);
}

} // namespace
} // namespace small

bool ck_small_conv_takes(const struct ck_conv *v) {
    if (v->type == CK_F32 || v->N < 1 || v->H != v->W || v->R != v->S || (v->R != 3 && v->R != 1) || v->pad != v->R / 2) return false;
    if (v->P != v->H / v->stride || v->Q != v->P || v->N > INT32_MAX) return false;
    const bool down = v->stride == 2 && v->K == 2 * v->C && ((v->C == 16 && v->H == 32) || (v->C == 32 && v->H == 16));
    const bool same = v->stride == 1 && v->R == 3 && v->K == v->C && v->H * v->C == 512 && (v->C == 16 || v->C == 32 || v->C == 64);
    const bool stem = v->stride == 1 && v->R == 3 && v->C == 3 && v->K == 16 && v->H == 32;
    return down || same || stem;
}

size_t ck_small_conv_workspace(const struct ck_conv *v, int multiprocessors) {
    return (size_t)multiprocessors * small::RESIDENT * 2 * (size_t)v->K * sizeof(float);
}

cudaError_t ck_small_conv(const struct ck_small_conv *args, void *workspace, unsigned *counters, int multiprocessors,
                          cudaStream_t stream) {
    const small::forward_args a = {.x = args->x, .w = args->w, .coef = args->coef, .y = args->y, .stats = args->stats,
                                   .partial = (float *)workspace, .counter = counters, .N = args->conv.N,
                                   .finish = args->finish, .factors = ck_bn_factors_of(&args->finish)};
    if (!ck_small_conv_takes(&args->conv) || (args->conv.C == 3 && args->coef)) return cudaErrorInvalidValue;
    if (args->finish.coef && !args->stats) return cudaErrorInvalidValue;
    return args->conv.type == CK_F16 ? small::forward_any<__half>(&args->conv, a, multiprocessors, stream)
                                     : small::forward_any<__nv_bfloat16>(&args->conv, a, multiprocessors, stream);
}
