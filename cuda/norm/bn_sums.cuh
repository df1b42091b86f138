/* cuda/norm/bn_sums.cuh: sums per channel over all pixels: bn_sums, bn_grad_sums, relu_grad and pool_bn_grad_sums.
 *
 * A tensor is read as rows of C/N vectors of N elements: 16 bytes, or one element where C is not a whole number of
 * vectors.
 *   - Stage one: a block processes `width` <= SUMS_WIDTH neighbouring vectors of a part of the rows, a span. For
 *     pointwise terms a span is `depth` neighbouring rows and every spans-th such group before them, from the end to
 *     the begin: the kernel before has written its last part last, so it is still in the L2 cache. A thread processes
 *     one vector column and one row of each group. It sums SUMS_RUN rows in float and adds them to its doubles.
 *     The doubles are in shared memory, which leaves the registers to loads in flight. The block adds its threads'
 *     doubles and writes one double for each channel and sum: partial[span][sum][C]. There are no more blocks than the
 *     device holds at once: a second wave would cost more than slow multiprocessors do.
 *   - Stage two: adds the spans and rounds to float. All its loads are in flight together. (The last block of stage one
 *     could do this, but its fence, its ticket and the bandwidth of one multiprocessor take 2 us, while a launch in a
 *     CUDA graph takes 1 us.)
 * So at most SUMS_RUN terms are added in float, and the order of all sums depends only on shapes and the device.
 *
 * Limiter: memory, (INPUTS + outputs) * sizeof(T) bytes an element; partial sums add less than 1 %, in L2. */
#ifndef CK_BN_SUMS_CUH
#define CK_BN_SUMS_CUH

#include "cuda/common/common.cuh"
#include "cuda/norm/bn_point.cuh"

enum {
    SUMS_THREADS = 256,
    SUMS_PITCH = SUMS_THREADS + 2, /* of shared doubles: lanes that differ in element and vector use different banks */
    SUMS_WIDTH = 16,               /* vectors: half a warp reads 256 bytes of a row; 8 and 32 are slower */
    SUMS_RUN   = 32,               /* rows summed in float */
    SUMS_LEAST = 4,                /* minimum rows of a thread for another span to pay */
    FOLD_OUTPUTS   = 8,            /* of a block of stage two: 64 bytes of a span */
    FOLD_WARPS     = 32,           /* maximum warps of a block of stage two */
    FOLD_SPANS     = 4,            /* of a thread, while there are warps left */
    FOLD_IN_FLIGHT = 8,            /* spans that a thread has in flight */
    FOLD_EARLY     = 6             /* blocks of stage two that may start early: more would take space from stage one */
};

struct sums_shape {
    int64_t rows, span_rows, C;
    int     vectors; /* in a row */
    int     width, depth, columns /* blocks across a row */, spans;
};

/* `resident`: blocks of the kernel that the device holds at once. */
static inline struct sums_shape sums_shape_of(int lanes, int64_t rows, int64_t C, int64_t resident) {
    struct sums_shape s;
    s.rows    = rows;
    s.C       = C;
    s.vectors = (int)(C / lanes);
    s.columns = (s.vectors + SUMS_WIDTH - 1) / SUMS_WIDTH;
    s.width   = (s.vectors + s.columns - 1) / s.columns;
    s.depth   = SUMS_THREADS / s.width;
    s.spans = (int)ck_blocks(rows, (int64_t)s.depth * SUMS_LEAST, resident / s.columns > 1 ? resident / s.columns : 1);
    s.span_rows = ((rows + s.spans - 1) / s.spans + s.depth - 1) / s.depth * s.depth;
    s.spans     = (int)ck_blocks(rows, s.span_rows, INT32_MAX);
    return s;
}

static inline size_t sums_workspace(const struct sums_shape *s, int sums) {
    return (size_t)s->spans * (size_t)sums * (size_t)s->C * sizeof(double);
}

/* ---- in shared memory: part[sum * N + element][thread] ---- */

template <int VALUES> __device__ __forceinline__ void sums_clear(double *part) {
#pragma unroll
    for (int k = 0; k < VALUES; k++) part[k * SUMS_PITCH + (int)threadIdx.x] = 0;
}
/* Volatile: four at a time. Otherwise the compiler loads all of them first and runs out of registers. */
template <int SUMS, int N> __device__ __forceinline__ void sums_flush(double *part, float (&acc)[SUMS][N]) {
    constexpr int    VALUES = SUMS * N, STEP = VALUES % 4 == 0 ? 4 : 1;
    volatile double *own = part + threadIdx.x;
#pragma unroll
    for (int k = 0; k < VALUES; k += STEP) {
        double sum[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++) sum[i] = own[(k + i) * SUMS_PITCH];
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            own[(k + i) * SUMS_PITCH]     = sum[i] + (double)acc[(k + i) / N][(k + i) % N];
            acc[(k + i) / N][(k + i) % N] = 0;
        }
    }
}

/* Adds the block's threads, row by row, and writes partial[span][sum][channel]. Several threads compute one output
 * where there are fewer outputs than threads. All threads must call. */
template <int SUMS, int N>
__device__ __forceinline__ void sums_end(const struct sums_shape &shape, const double *part, double *partial) {
    __shared__ double share[SUMS_THREADS];
    const int         t = (int)threadIdx.x, across = N * shape.width, outputs = SUMS * across;
    const int         shares = outputs < SUMS_THREADS ? SUMS_THREADS / outputs : 1;
    const int64_t     first  = (int64_t)blockIdx.x * across;
    partial += (int64_t)blockIdx.y * SUMS * shape.C + first;
    __syncthreads();
    for (int i = t; i < outputs * shares; i += SUMS_THREADS) {
        const int     o = i % outputs, which = o / across, c = o % across;
        const double *from = part + (which * N + c % N) * SUMS_PITCH + c / N;
        double        sum  = 0;
#pragma unroll 4
        for (int row = i / outputs; row < shape.depth; row += shares) sum += from[row * shape.width];
        if (shares > 1)
            share[i] = sum;
        else if (first + c < shape.C)
            partial[which * shape.C + c] = sum;
    }
    if (shares == 1) return; /* uniform for the whole block */
    __syncthreads();
    const int which = t / across, c = t % across;
    if (t >= outputs || first + c >= shape.C) return;
    double sum = share[t];
    for (int k = 1; k < shares; k++) sum += share[k * outputs + t];
    partial[which * shape.C + c] = sum;
}

/* ---- stage two; where it is small, its blocks are placed while stage one runs: a block computes 8 outputs. A warp
 * adds four spans at a time, of which it reads 64 bytes each; the warps divide the spans. ---- */

/* Calls terms.put(which, channel, C, sum). */
template <class Terms>
__global__ void __launch_bounds__(FOLD_WARPS *CK_WARP)
    sums_fold(const Terms terms, const double *partial, int spans, int64_t C, int64_t outputs) {
    __shared__ double part[FOLD_WARPS][FOLD_OUTPUTS + 1];
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP, warps = (int)blockDim.x / CK_WARP;
    const int step      = (int)blockDim.x / FOLD_OUTPUTS;
    const int64_t first = (int64_t)blockIdx.x * FOLD_OUTPUTS, own = first + lane % FOLD_OUTPUTS;
    double        sum = 0;
    ck_wait_for_last();
    if (own < outputs)
        for (int span = (int)threadIdx.x / FOLD_OUTPUTS; span < spans; span += FOLD_IN_FLIGHT * step) {
            double v[FOLD_IN_FLIGHT];
#pragma unroll
            for (int k = 0; k < FOLD_IN_FLIGHT; k++)
                v[k] = span + k * step < spans ? partial[(span + k * step) * outputs + own] : 0.0;
#pragma unroll
            for (int k = 0; k < FOLD_IN_FLIGHT; k++) sum += v[k];
        }
#pragma unroll
    for (int lanes = FOLD_OUTPUTS; lanes < CK_WARP; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (lane < FOLD_OUTPUTS) part[warp][lane] = sum;
    __syncthreads();
    for (int k = warp; k < FOLD_OUTPUTS; k += warps) {
        const double  all = ck_warp_sum(lane < warps ? part[lane][k] : 0.0);
        const int64_t o   = first + k;
        if (lane == 0 && o < outputs) terms.put((int)(o / C), o % C, C, all);
    }
}

template <class Terms>
static cudaError_t sums_fold_launch(const Terms &terms, const struct sums_shape &s, int sums, const double *partial,
                                    cudaStream_t stream) {
    const int64_t  outputs = sums * s.C;
    const unsigned blocks  = ck_blocks(outputs, FOLD_OUTPUTS, INT64_MAX);
    const unsigned warps   = ck_blocks(s.spans, FOLD_SPANS * CK_WARP / FOLD_OUTPUTS, FOLD_WARPS);
    return ck_launch_if(blocks <= FOLD_EARLY, sums_fold<Terms>, blocks, warps * CK_WARP, 0, stream, terms, partial,
                        s.spans, s.C, outputs);
}

/* ---- sums of pointwise terms ----
 * Terms describe what is summed. A struct Terms has these members:
 *   Type, LANES (N), INPUTS, SUMS, BATCH (rows loaded at a time, divides SUMS_RUN), RESIDENT (blocks a multiprocessor)
 *   READS_BITS, WRITES                                  whether there is a bit mask to read; an output to write
 *   const T *in[INPUTS]; const uint8_t *bits; T *out
 *   struct Params; load_params(Params *, c, C)          numbers of channels c ... c+N-1, in registers
 *   add(const Params &, float in[INPUTS][N], unsigned bits, float acc[SUMS][N], float out[N])      adds one vector
 *   put(which, c, C, sum)                               stores the final sum */

template <typename Terms> struct sums_words {
    typename ck_word<typename Terms::Type, Terms::LANES>::word in[Terms::INPUTS];
    unsigned                                                   bits;
};

template <typename Terms>
__device__ __forceinline__ void sums_load(const Terms &terms, sums_words<Terms> &raw, int64_t v) {
    using words = ck_word<typename Terms::Type, Terms::LANES>;
#pragma unroll
    for (int s = 0; s < Terms::INPUTS; s++) raw.in[s] = words::load(terms.in[s], v);
    if constexpr (Terms::READS_BITS)
        raw.bits = ck_load_bits<Terms::LANES>(terms.bits, v);
    else
        raw.bits = 0;
}

template <typename Terms>
__device__ __forceinline__ void sums_add(const Terms &terms, const typename Terms::Params &params,
                                         const sums_words<Terms> &raw, int64_t v,
                                         float (&acc)[Terms::SUMS][Terms::LANES]) {
    using words = ck_word<typename Terms::Type, Terms::LANES>;
    float in[Terms::INPUTS][Terms::LANES], out[Terms::LANES];
#pragma unroll
    for (int s = 0; s < Terms::INPUTS; s++) words::open(raw.in[s], in[s]);
    terms.add(params, in, raw.bits, acc, out);
    if constexpr (Terms::WRITES) words::store(terms.out, v, words::close(out));
}

/* Rows v, v + step, ... of one vector column; `left` of them. The loop is not unrolled: the compiler would prefetch
 * more than the registers hold, and other warps of the multiprocessor hide the latency as well. */
template <typename Terms>
__device__ __forceinline__ void sums_column(const Terms &terms, const typename Terms::Params &params, int64_t v,
                                            int64_t step, int left, double *part) {
    constexpr int B = Terms::BATCH;
    static_assert(SUMS_RUN % B == 0, "whole batches a run");
    float             acc[Terms::SUMS][Terms::LANES] = {};
    sums_words<Terms> raw[B];
#pragma unroll 1
    for (int run = 0; left >= B; left -= B, v += B * step) {
#pragma unroll
        for (int k = 0; k < B; k++) sums_load(terms, raw[k], v + k * step);
#pragma unroll
        for (int k = 0; k < B; k++) sums_add(terms, params, raw[k], v + k * step, acc);
        run += B;
        if (run < SUMS_RUN) continue;
        sums_flush(part, acc);
        run = 0;
    }
#pragma unroll
    for (int k = 0; k < B - 1; k++)
        if (k < left) sums_load(terms, raw[k], v + k * step);
#pragma unroll
    for (int k = 0; k < B - 1; k++)
        if (k < left) sums_add(terms, params, raw[k], v + k * step, acc);
    sums_flush(part, acc);
}

template <typename Terms>
__global__ void __launch_bounds__(SUMS_THREADS, Terms::RESIDENT)
    sums_kernel(const Terms terms, const struct sums_shape shape, double *partial) {
    extern __shared__ double part[];
    constexpr int            N = Terms::LANES;
    ck_begin_after_last();
    const int row        = (int)threadIdx.x / shape.width,
              column     = (int)blockIdx.x * shape.width + (int)threadIdx.x % shape.width;
    const int64_t behind = (int64_t)blockIdx.y * shape.depth + row, step = (int64_t)shape.spans * shape.depth;
    sums_clear<Terms::SUMS * N>(part);
    if (row < shape.depth && column < shape.vectors && behind < shape.rows) {
        typename Terms::Params params;
        terms.load_params(&params, (int64_t)column * N, shape.C);
        sums_column(terms, params, (shape.rows - 1 - behind) * shape.vectors + column, -step * shape.vectors,
                    (int)((shape.rows - behind + step - 1) / step), part);
    }
    sums_end<Terms::SUMS, N>(shape, part, partial);
}

/* A kernel must request more than 48 KiB of shared memory. */
template <class Kernel> static cudaError_t sums_allow(Kernel kernel, size_t bytes) {
    return bytes <= 48 << 10 ? cudaSuccess : ck_allow_shared(kernel, (int64_t)bytes);
}

template <typename Terms> static struct sums_shape sums_shape_for(int64_t pixels, int64_t C, int multiprocessors) {
    return sums_shape_of(Terms::LANES, pixels, C, (int64_t)multiprocessors * Terms::RESIDENT);
}

template <typename Terms>
static cudaError_t sums_launch(const Terms &terms, int64_t pixels, int64_t C, void *workspace, int multiprocessors,
                               cudaStream_t stream) {
    const struct sums_shape s     = sums_shape_for<Terms>(pixels, C, multiprocessors);
    const size_t            bytes = (size_t)Terms::SUMS * Terms::LANES * SUMS_PITCH * sizeof(double);
    cudaError_t             error = sums_allow(sums_kernel<Terms>, bytes);
    if (error != cudaSuccess) return error;
    const dim3 grid((unsigned)s.columns, (unsigned)s.spans);
    error = ck_launch(sums_kernel<Terms>, grid, SUMS_THREADS, bytes, stream, terms, s, (double *)workspace);
    return error != cudaSuccess ? error : sums_fold_launch(terms, s, Terms::SUMS, (const double *)workspace, stream);
}

template <typename Terms> static size_t sums_bytes(int64_t pixels, int64_t C, int multiprocessors) {
    const struct sums_shape s = sums_shape_for<Terms>(pixels, C, multiprocessors);
    return sums_workspace(&s, Terms::SUMS);
}

#endif
