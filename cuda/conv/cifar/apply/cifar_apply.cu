/* cuda/conv/cifar/apply/cifar_apply.cu: y = relu(bn(x) + add), which also finishes the BN of the convolution that wrote
 * x: it adds the sums that the blocks of that launch stored, instead of a small launch between the two.
 *
 * A block has 16 channels of some pixels, so that it adds the sums of 16 channels only: 128 bytes of each of the
 * convolution's blocks. The first block of a slice of channels also stores the results.
 *
 * Bytes: 3 * 2 an element, with all loads in flight, and 16 to 33 KiB of sums a block. Limiter: latency, about 3 us at
 * batch 128. Measured: with 256 images it is faster than a bn_apply and a small launch before it, with 1,024 it is
 * not. */
#include "cuda/conv/cifar/cifar_conv.cuh"

namespace cifar {
namespace {

enum {
    SLICE       = 16,                    /* channels of a block */
    FOURS       = 2 * SLICE / 4,         /* vectors of four sums in a row */
    ROWS        = THREADS / FOURS,       /* rows at a time */
    ROWS_AHEAD  = 8,                     /* loads of a thread in flight */
    PIXELS      = THREADS / (SLICE / 8), /* pixels at a time */
    AHEAD       = 4,                     /* loads of x and of add in flight */
    APPLY_TURNS = 2 * AHEAD,             /* pixels of a thread, at most */
    IMAGES_MOST = 512,                   /* measured: faster at 256 images, not at 1,024 */
    RESIDENT    = 2                      /* blocks on a multiprocessor */
};

struct apply_args {
    const void           *x, *add;
    void                 *y;
    int64_t               pixels;
    int                   channels, rows;
    const float          *partial; /* [rows][2][channels] */
    float                *sums;    /* [2][channels] */
    struct ck_bn_finalize finish;
    struct ck_bn_factors  factors;
};

/* Four sums of a thread's rows. */
struct row_sums {
    float4                          v[ROWS_AHEAD];
    __device__ __forceinline__ void load(const apply_args &a, int slice, int first) {
        const int    four = (int)threadIdx.x % FOURS, b = first + (int)threadIdx.x / FOURS;
        const float *from = a.partial + four / (FOURS / 2) * a.channels + slice * SLICE + four % (FOURS / 2) * 4;
#pragma unroll
        for (int i = 0; i < ROWS_AHEAD; i++)
            v[i] = b + i * ROWS < a.rows
                       ? __ldcg(reinterpret_cast<const float4 *>(from + (int64_t)(b + i * ROWS) * 2 * a.channels))
                       : make_float4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void add_to(float (&s)[4]) const {
#pragma unroll
        for (int i = 0; i < ROWS_AHEAD; i++) s[0] += v[i].x, s[1] += v[i].y, s[2] += v[i].z, s[3] += v[i].w;
    }
};

struct apply_memory {
    float parts[WARPS][2 * SLICE], scale[SLICE], bias[SLICE];
};

/* Finishes channel c of the slice, as ck_bn_channel does. */
__device__ __forceinline__ void apply_channel(const apply_args &a, apply_memory &m, const ck_bn_channel &bn, int slice,
                                              int c) {
    double first = 0, second = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) first += (double)m.parts[w][c], second += (double)m.parts[w][SLICE + c];
    const float  sum = (float)first, squares = (float)second;
    const double mean = (double)sum * a.factors.inverse;
    double       var  = (double)squares * a.factors.inverse - mean * mean;
    if (var < 0) var = 0;
    const double scale = (double)bn.gamma * rsqrt(var + (double)a.finish.eps);
    m.scale[c] = (float)scale, m.bias[c] = (float)((double)bn.beta - mean * scale);
    if (blockIdx.x > 0) return;
    const int k = slice * SLICE + c;
    bn.finish(a.finish, a.factors, k, a.channels, sum, squares);
    a.sums[k] = sum, a.sums[a.channels + k] = squares;
}

__device__ __forceinline__ void apply_sums(const apply_args &a, apply_memory &m, row_sums &rows,
                                           const ck_bn_channel &bn, int slice) {
    const int t    = (int)threadIdx.x;
    float     s[4] = {};
    rows.add_to(s);
    for (int b = ROWS * ROWS_AHEAD; b < a.rows; b += ROWS * ROWS_AHEAD) rows.load(a, slice, b), rows.add_to(s);
#pragma unroll
    for (int offset = FOURS; offset < CK_WARP; offset *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] += __shfl_xor_sync(0xffffffffu, s[i], offset);
    if (t % CK_WARP < FOURS)
        *reinterpret_cast<float4 *>(&m.parts[t / CK_WARP][t % FOURS * 4]) = make_float4(s[0], s[1], s[2], s[3]);
    __syncthreads();
    if (t < SLICE) apply_channel(a, m, bn, slice, t);
    __syncthreads();
}

template <typename T, bool ADD> struct apply_words {
    uint4                           x[AHEAD], add[AHEAD];
    __device__ __forceinline__ void load(const apply_args &a, int64_t pixel, int64_t step, int channel) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (pixel + i * step < a.pixels) {
                const int64_t at = (pixel + i * step) * a.channels + channel;
                x[i]             = ck_load((const T *)a.x + at, 0);
                if constexpr (ADD) add[i] = ck_load((const T *)a.add + at, 0);
            }
    }
    __device__ __forceinline__ void store(const apply_args &a, int64_t pixel, int64_t step, int channel,
                                          const float (&scale)[8], const float (&bias)[8]) const {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (pixel + i * step < a.pixels) {
                float v[8], more[8] = {};
                ck_unpack<T>(x[i], v);
                if constexpr (ADD) ck_unpack<T>(add[i], more);
#pragma unroll
                for (int j = 0; j < 8; j++) { /* as ck_bn_apply */
                    const float z = fmaf(v[j], scale[j], bias[j]);
                    v[j]          = ck_relu(ADD ? z + more[j] : z);
                }
                ck_store_whole((T *)a.y + (pixel + i * step) * a.channels + channel, ck_pack<T>(v));
            }
    }
};

template <typename T, bool ADD> __global__ void __launch_bounds__(THREADS, RESIDENT) apply_kernel(const apply_args a) {
    __shared__ __align__(16) apply_memory m;
    const int     slice = (int)blockIdx.y, chunk = (int)threadIdx.x % (SLICE / 8), channel = slice * SLICE + chunk * 8;
    const int64_t step  = (int64_t)gridDim.x * PIXELS;
    int64_t       pixel = (int64_t)blockIdx.x * PIXELS + threadIdx.x / (SLICE / 8);
    row_sums      rows;
    apply_words<T, ADD> words;
    ck_bn_channel       bn;
    float               scale[8], bias[8];
    ck_begin_after_last();
    rows.load(a, slice, 0);
    if (threadIdx.x < SLICE) bn.load(a.finish, slice * SLICE + (int)threadIdx.x);
    words.load(a, pixel, step, channel);
    apply_sums(a, m, rows, bn, slice);
    load_floats(scale, m.scale + chunk * 8);
    load_floats(bias, m.bias + chunk * 8);
    while (true) {
        words.store(a, pixel, step, channel, scale, bias);
        pixel += AHEAD * step;
        if (pixel >= a.pixels) return;
        words.load(a, pixel, step, channel);
    }
}

int64_t slice_blocks(int64_t pixels, int64_t slices, int multiprocessors) {
    return ck_blocks(pixels, PIXELS, (int64_t)multiprocessors * RESIDENT / slices);
}

template <typename T> cudaError_t apply_run(const apply_args &a, int multiprocessors, cudaStream_t stream) {
    const int64_t     slices = a.channels / SLICE;
    const dim3        grid((unsigned)slice_blocks(a.pixels, slices, multiprocessors), (unsigned)slices);
    const auto        kernel = a.add ? apply_kernel<T, true> : apply_kernel<T, false>;
    const cudaError_t error  = ck_most_shared(kernel);
    return error != cudaSuccess ? error : ck_launch(kernel, grid, THREADS, 0, stream, a);
}

} // namespace
} // namespace cifar

bool ck_cifar_apply_finishes(const struct ck_conv *last, int multiprocessors) {
    const int64_t pixels = last->N * last->P * last->Q, slices = last->K / cifar::SLICE;
    return ck_cifar_conv_supports(last) && last->K % cifar::SLICE == 0 && last->N <= cifar::IMAGES_MOST &&
           pixels <= cifar::slice_blocks(pixels, slices, multiprocessors) * cifar::PIXELS * cifar::APPLY_TURNS;
}

cudaError_t ck_cifar_apply(const struct ck_cifar_conv *last, const void *last_workspace, const void *add, void *y,
                           int multiprocessors, cudaStream_t stream) {
    const cifar::apply_args a = {.x        = last->y,
                                 .add      = add,
                                 .y        = y,
                                 .pixels   = last->conv.N * last->conv.P * last->conv.Q,
                                 .channels = (int)last->conv.K,
                                 .rows     = ck_cifar_conv_rows(&last->conv, multiprocessors),
                                 .partial  = (const float *)last_workspace,
                                 .sums     = last->sums,
                                 .finish   = last->finish,
                                 .factors  = ck_bn_factors_of(&last->finish)};
    if (!ck_cifar_apply_finishes(&last->conv, multiprocessors) || !last->finish.scale_bias)
        return cudaErrorInvalidValue;
    return last->conv.type == CK_F16 ? cifar::apply_run<__half>(a, multiprocessors, stream)
                                     : cifar::apply_run<__nv_bfloat16>(a, multiprocessors, stream);
}
