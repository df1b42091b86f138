/* bn_sums.cuh: two sums per channel over all pixels, as bn_stats and bn_grad_stats want them.
 *
 * A tensor of M pixels and C channels is read as rows = M/k super-rows of k*C elements, k the smallest count that makes them
 * whole vectors (1 when C is a multiple of N, the elements of a vector); the M % k pixels behind are added in stage two.
 *   stage one   a block owns `width` <= 32 neighbouring vectors of a span of super-rows. A thread owns one vector column and
 *               every `depth`-th row of the span. It sums RUN rows in float, then adds them to its doubles. The block adds
 *               its threads' doubles in shared memory and writes one double per channel and sum: partial[span][2][k*C].
 *   stage two   adds the spans, the k columns of a channel, and the pixels behind, in double, and rounds to float.
 * So floats add up at most RUN terms, whatever M is, and the order of all sums depends on shapes and the device only.
 *
 * Limiter: memory, INPUTS * sizeof(T) bytes an element; partial sums are some per cent beside it, in L2. */
#ifndef CK_BN_SUMS_CUH
#define CK_BN_SUMS_CUH

#include "common.cuh"

enum {
    SUMS_THREADS = 256,
    SUMS_WIDTH   = 32, /* vectors: a warp reads 512 bytes of a row */
    SUMS_RUN     = 16, /* rows in float */
    SUMS_LEAST   = 8,  /* rows that a thread should have before another span pays */
    SUMS_WAVES   = 2,  /* blocks that follow one another, so that slow multiprocessors get less to do, */
    SUMS_MANY    = 32, /* when a thread still has so many rows */
    SUMS_FOLDERS = 32  /* warps of a block of stage two */
};

struct sums_shape {
    int64_t C, merged /* k */, rows, row_vectors;
    int64_t tail;       /* pixels behind the super-rows */
    int     width, depth, columns /* blocks across a row */;
    int64_t spans, span_rows;
};

static inline struct sums_shape sums_shape_of(int lanes, int64_t pixels, int64_t C, int resident_blocks) {
    struct sums_shape s;
    s.C           = C;
    s.merged      = lanes / ck_gcd(C, lanes);
    s.rows        = pixels / s.merged;
    s.tail        = pixels % s.merged;
    s.row_vectors = s.merged * C / lanes;
    const int64_t columns = (s.row_vectors + SUMS_WIDTH - 1) / SUMS_WIDTH;
    s.columns = (int)columns;
    s.width   = (int)((s.row_vectors + columns - 1) / columns);
    s.depth   = SUMS_THREADS / s.width;
    const int64_t wave  = resident_blocks / columns > 1 ? resident_blocks / columns : 1;
    const int64_t most  = s.rows >= wave * SUMS_WAVES * s.depth * SUMS_MANY ? wave * SUMS_WAVES : wave;
    const int64_t spans = ck_blocks(s.rows, (int64_t)s.depth * SUMS_LEAST, most);
    s.span_rows = (s.rows + spans - 1) / spans;
    s.span_rows = (s.span_rows + s.depth - 1) / s.depth * s.depth;
    s.spans     = s.rows ? (s.rows + s.span_rows - 1) / s.span_rows : 0;
    return s;
}

static inline size_t sums_workspace(const struct sums_shape *s) {
    return (size_t)s->spans * 2 * (size_t)(s->merged * s->C) * sizeof(double);
}

/* What is summed: struct Terms with
 *   Type, INPUTS, BATCH, RESIDENT       the element, tensors read, rows loaded at a time (divides SUMS_RUN), and blocks a
 *                                       multiprocessor
 *   const Type *in[INPUTS];
 *   float centre(c)                     a number of channel c that `add` gets
 *   add(const float in[INPUTS], float centre, float *a, float *b)      one element onto both sums
 *   double finish(c, double b)          the second sum of channel c, at the end */

template <typename Terms, int N>
__device__ __forceinline__ void sums_add(const Terms &terms, const uint4 (&raw)[Terms::INPUTS], const float (&centre)[N],
                                         float (&a)[N], float (&b)[N]) {
    float in[Terms::INPUTS][N];
#pragma unroll
    for (int s = 0; s < Terms::INPUTS; s++) ck_unpack<typename Terms::Type>(raw[s], in[s]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float one[Terms::INPUTS];
#pragma unroll
        for (int s = 0; s < Terms::INPUTS; s++) one[s] = in[s][i];
        terms.add(one, centre[i], &a[i], &b[i]);
    }
}

/* Rows v, v + step, ... of one vector column, `left` of them, into sum[2*N]: first N first sums, then N second ones. */
template <typename Terms, int N>
__device__ __forceinline__ void sums_column(const Terms &terms, int64_t v, int64_t step, int64_t left, const float (&centre)[N],
                                            double (&sum)[2 * N]) {
    constexpr int B = Terms::BATCH, INPUTS = Terms::INPUTS;
    static_assert(SUMS_RUN % B == 0, "whole batches a run");
    uint4 raw[B][INPUTS];
    for (; left > 0; left -= SUMS_RUN) {
        float a[N] = {}, b[N] = {};
        if (left >= SUMS_RUN) {
#pragma unroll
            for (int r = 0; r < SUMS_RUN; r += B, v += B * step) {
#pragma unroll
                for (int k = 0; k < B; k++)
#pragma unroll
                    for (int s = 0; s < INPUTS; s++) raw[k][s] = ck_load(terms.in[s], v + k * step);
#pragma unroll
                for (int k = 0; k < B; k++) sums_add<Terms, N>(terms, raw[k], centre, a, b);
            }
        } else {
            for (int r = 0; r < (int)left; r += B, v += B * step) {
#pragma unroll
                for (int k = 0; k < B; k++)
                    if (r + k < (int)left)
#pragma unroll
                        for (int s = 0; s < INPUTS; s++) raw[k][s] = ck_load(terms.in[s], v + k * step);
#pragma unroll
                for (int k = 0; k < B; k++)
                    if (r + k < (int)left) sums_add<Terms, N>(terms, raw[k], centre, a, b);
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum[i] += (double)a[i];
            sum[N + i] += (double)b[i];
        }
    }
}

/* Adds the block's threads, row by row, and writes 2 * width * N doubles. part[k][thread]: the pad keeps the reads of
 * neighbouring lanes, which differ in k, in different banks. Where fewer outputs than threads are wanted, several threads
 * share an output, and a second round adds their shares. */
template <int N>
__device__ __forceinline__ void sums_block(const double (&sum)[2 * N], const struct sums_shape &shape, double *partial) {
    __shared__ double part[2 * N][SUMS_THREADS + 1];
    __shared__ double share[SUMS_THREADS];
    const int         t = (int)threadIdx.x, W = shape.width, depth = shape.depth, outputs = 2 * N * W;
    const int         shares = outputs < SUMS_THREADS ? SUMS_THREADS / outputs : 1;
    const int64_t     wide   = shape.merged * shape.C; /* of a row of partial */
    const int64_t     first  = (int64_t)blockIdx.x * W * N;
#pragma unroll
    for (int k = 0; k < 2 * N; k++) part[k][t] = sum[k];
    __syncthreads();
    for (int o = t; o < outputs * shares; o += SUMS_THREADS) {
        const int out = o % outputs, which = out / (W * N), c = out % (W * N);
        double    s = 0;
        for (int row = o / outputs; row < depth; row += shares) s += part[which * N + c % N][row * W + c / N];
        if (shares > 1) share[o] = s;
        else if (first + c < wide) partial[which * wide + first + c] = s;
    }
    if (shares == 1) return; /* the same for the whole block */
    __syncthreads();
    if (t >= outputs) return;
    const int which = t / (W * N), c = t % (W * N);
    double    s = share[t];
    for (int k = 1; k < shares; k++) s += share[k * outputs + t];
    if (first + c < wide) partial[which * wide + first + c] = s;
}

template <typename Terms>
__global__ void __launch_bounds__(SUMS_THREADS, Terms::RESIDENT)
    sums_kernel(Terms terms, struct sums_shape shape, double *partial) {
    constexpr int N   = ck_lanes<typename Terms::Type>();
    const int     row = (int)threadIdx.x / shape.width, across = (int)threadIdx.x % shape.width;
    const int64_t column = (int64_t)blockIdx.x * shape.width + across;
    const int64_t begin = (int64_t)blockIdx.y * shape.span_rows + row;
    const int64_t end   = min((int64_t)(blockIdx.y + 1) * shape.span_rows, shape.rows);
    double        sum[2 * N] = {};
    if (row < shape.depth && column < shape.row_vectors && begin < end) {
        float   centre[N];
        int64_t c = column * N % shape.C;
#pragma unroll
        for (int i = 0; i < N; i++) {
            centre[i] = terms.centre(c);
            c         = c + 1 < shape.C ? c + 1 : 0;
        }
        sums_column<Terms, N>(terms, begin * shape.row_vectors + column, shape.depth * shape.row_vectors,
                              (end - begin + shape.depth - 1) / shape.depth, centre, sum);
    }
    sums_block<N>(sum, shape, partial + (int64_t)blockIdx.y * 2 * shape.merged * shape.C);
}

/* A block gives 32 outputs, one a lane; its warps share the spans. */
template <typename Terms>
__global__ void __launch_bounds__(SUMS_FOLDERS *CK_WARP)
    sums_fold(Terms terms, struct sums_shape shape, const double *partial, float *out) {
    __shared__ double part[SUMS_FOLDERS][CK_WARP + 1];
    const int         lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const int64_t     C = shape.C, wide = shape.merged * C;
    int64_t           o = (int64_t)blockIdx.x * CK_WARP + lane;
    double            s = 0;
    if (o < 2 * C) {
        const bool    second = o >= C;
        const int64_t c      = second ? o - C : o;
        const double *from   = partial + (second ? wide : 0) + c;
        for (int64_t k = 0; k < shape.merged; k++, from += C)
#pragma unroll 8
            for (int64_t span = warp; span < shape.spans; span += SUMS_FOLDERS) s += from[span * 2 * wide];
        if (warp < shape.tail) { /* tail < 8 */
            const int64_t at = (shape.rows * shape.merged + warp) * C + c;
            float         one[Terms::INPUTS], a = 0, b = 0;
#pragma unroll
            for (int k = 0; k < Terms::INPUTS; k++) one[k] = ck_float(terms.in[k][at]);
            terms.add(one, terms.centre(c), &a, &b);
            s += (double)(second ? b : a);
        }
    }
    part[warp][lane] = s;
    __syncthreads();
    o = (int64_t)blockIdx.x * CK_WARP + warp;
    s = ck_warp_sum(part[lane][warp]);
    if (lane == 0 && o < 2 * C) out[o] = (float)(o < C ? s : terms.finish(o - C, s));
}

template <typename Terms>
static cudaError_t sums_launch(const Terms &terms, int64_t pixels, int64_t C, float *out, void *workspace, int multiprocessors,
                               cudaStream_t stream) {
    static_assert((int)SUMS_FOLDERS == (int)CK_WARP, "sums_fold turns its sums round");
    const struct sums_shape s = sums_shape_of(ck_lanes<typename Terms::Type>(), pixels, C, multiprocessors * Terms::RESIDENT);
    if (s.spans) {
        const dim3 grid((unsigned)s.columns, (unsigned)s.spans);
        sums_kernel<Terms><<<grid, SUMS_THREADS, 0, stream>>>(terms, s, (double *)workspace);
        const cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess) return error;
    }
    const unsigned blocks = ck_blocks(2 * C, CK_WARP, INT64_MAX);
    sums_fold<Terms><<<blocks, SUMS_FOLDERS * CK_WARP, 0, stream>>>(terms, s, (const double *)workspace, out);
    return cudaGetLastError();
}

template <typename Terms> static size_t sums_bytes(int64_t pixels, int64_t C, int multiprocessors) {
    const struct sums_shape s = sums_shape_of(ck_lanes<typename Terms::Type>(), pixels, C, multiprocessors * Terms::RESIDENT);
    return sums_workspace(&s);
}

#endif
