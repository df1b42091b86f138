/* cuda/conv/int8/int8_stem_mma.cu: the stem of ImageNet networks in 8 bits, from images to the output of the max
 * pooling, on the tensor cores of all GPUs from compute capability 8.0 on (mma.sync). Bytes: 3 a pixel of the image, K
 * a pixel of y. Limiter: the tensor cores (half of the products are with zeros), then the conversion of pixels.
 *
 * A block computes bands (a few rows of y of one image), two rows of the convolution at a time: rows 2j and 2j + 1
 * complete row j of y together with row 2j - 1, which a thread has kept. Seven warps have 16 pixels and 64 channels
 * each. Columns are in an order in which a thread has 16 neighbouring channels of a pixel (channel_of), so the maximum
 * of rows is that of packed bytes; the maximum of neighbouring pixels is taken on the way from shared memory to y. All
 * threads convert the pixels of the next two rows while these are multiplied. */
#include "cuda/conv/int8/int8_mma.cuh"
#include "cuda/conv/int8/int8_stem.cuh"
#include "cuda/conv/int8/int8_store.cuh"

namespace {

enum {
    WORKING      = LINE / 16, /* warps that multiply */
    THREADS      = 256,
    SLOTS        = 8, /* rows in the ring */
    AHEAD        = 2, /* rows of the convolution at a time */
    FRAGMENTS    = COLUMNS / 8,
    BAND_MAX     = 14, /* rows of y */
    FILTER_ROW   = TAPS * TAPS * 16,
    OUT_BYTES    = (LINE + 1) * COLUMNS, /* pixel -1 and the pixels of a line */
    RING_AT      = COLUMNS * FILTER_ROW,
    OUT_AT       = RING_AT + SLOTS * ROW_BYTES, /* two of them, used in turn */
    TABLE_AT     = OUT_AT + 2 * OUT_BYTES,
    SHARED_BYTES = TABLE_AT + TABLE_BYTES,
    RESIDENT     = 2 /* blocks a multiprocessor */
};
static_assert(SHARED_BYTES <= 48 << 10, "every GPU has it");
static_assert(AHEAD * SPAN <= THREADS, "each thread converts one pixel");

__device__ __forceinline__ uint32_t filter_at(uint32_t shared, int row, int chunk) {
    return shared + (uint32_t)(row * FILTER_ROW + ((chunk ^ row % 8) << 4));
}
/* Element `i` (row, column, channel in space-to-depth form) of filter k. */
__device__ __forceinline__ int filter_element(const params &p, int k, int i) {
    const int c = i % 16, part = c / 3, s = 2 * (i / 16 % 4) + part % 2 - 1, r = 2 * (i / 64) + part / 2 - 1;
    return part > 3 || r < 0 || s < 0 ? 0 : p.w[((k * 7 + r) * 7 + s) * 3 + c % 3];
}

__device__ __forceinline__ void make_filter(const params &p, uint32_t shared) {
    for (int i = (int)threadIdx.x * 4; i < COLUMNS * FILTER_ROW; i += THREADS * 4) {
        const int row = i / FILTER_ROW, at = i % FILTER_ROW, k = (int)blockIdx.y * COLUMNS + channel_of(row);
        uint32_t  word = 0;
#pragma unroll
        for (int b = 0; b < 4; b++) word |= (uint32_t)(filter_element(p, k, at + b) & 255) << 8 * b;
        ck_put4(filter_at(shared, row, at / 16) + (uint32_t)(at % 16), word);
    }
}

struct block {
    const params  &p;
    const uint32_t shared;
    const uint8_t *table;
    const int      warp, lane, pixel; /* pixel: of the thread's first row of a fragment */
    uint32_t       kept[2][4];        /* row 2j - 1 of the convolution, 16 channels of two pixels */

    __device__ block(const params &params_, uint32_t shared_, const uint8_t *table_)
        : p(params_), shared(shared_), table(table_), warp((int)threadIdx.x / 32), lane((int)threadIdx.x % 32),
          pixel(warp * 16 + lane / 4) {}

    /* Row `row` of the image in space-to-depth form. */
    __device__ __forceinline__ uint32_t slot(int row) const {
        return shared + (uint32_t)(RING_AT + (row & SLOTS - 1) * ROW_BYTES);
    }
    __device__ __forceinline__ void fetch(const band &b, int row, int column, two_pixels &above,
                                          two_pixels &below) const {
        above.load(p, b.n, 2 * row, 2 * (b.left + column - 2));
        below.load(p, b.n, 2 * row + 1, 2 * (b.left + column - 2));
    }
    __device__ __forceinline__ void put(int row, int column, const two_pixels &above, const two_pixels &below) const {
        ck_put16(slot(row) + (uint32_t)(column * 16), convert(table, above, below));
    }
    /* The rows that the first two rows of the convolution need. */
    __device__ __forceinline__ void load_first(const band &b, int j) const {
        for (int i = (int)threadIdx.x; i < (TAPS + 1) * SPAN; i += THREADS) {
            two_pixels above, below;
            fetch(b, 2 * j - 2 + i / SPAN, i % SPAN, above, below);
            put(2 * j - 2 + i / SPAN, i % SPAN, above, below);
        }
    }

    /* 16 pixels of a row, two filter positions: 2*pair and 2*pair + 1. */
    __device__ __forceinline__ void get_pixels(uint32_t (&a)[4], int row, int pair) const {
        ck_ldmatrix(a, slot(row) + (uint32_t)((warp * 16 + lane % 16 + 2 * pair + lane / 16) * 16));
    }
    /* Rows 2j and 2j + 1 of the convolution. */
    __device__ __forceinline__ void multiply(int j, int (&acc)[AHEAD][FRAGMENTS][4]) const {
#pragma unroll
        for (int i = 0; i < AHEAD * FRAGMENTS * 4; i++) acc[i / (4 * FRAGMENTS)][i / 4 % FRAGMENTS][i % 4] = 0;
#pragma unroll
        for (int pair = 0; pair < TAPS / 2; pair++) {
            uint32_t a[2][4];
            get_pixels(a[0], 2 * j - 2, pair);
#pragma unroll
            for (int r = 0; r < TAPS; r++) {
                get_pixels(a[(r + 1) % 2], 2 * j - 1 + r, pair);
#pragma unroll
                for (int n = 0; n < FRAGMENTS; n += 2) {
                    uint32_t b[4];
                    ck_ldmatrix(
                        b, filter_at(shared, n * 8 + lane / 16 * 8 + lane % 8, r * TAPS + 2 * pair + lane / 8 % 2));
#pragma unroll
                    for (int e = 0; e < AHEAD; e++) {
                        multiply_add<true>(acc[e][n], a[(r + e) % 2], b[0], b[1]);
                        multiply_add<true>(acc[e][n + 1], a[(r + e) % 2], b[2], b[3]);
                    }
                }
            }
        }
    }
    /* The thread's 16 channels of two pixels: kept = row 2j + 1; most = maximum of rows 2j - 1, 2j and 2j + 1. */
    __device__ __forceinline__ void take_rows(const band &b, int j, const int (&acc)[AHEAD][FRAGMENTS][4],
                                              uint32_t (&most)[2][4]) {
        const float *coeffs = p.coeffs + (int64_t)blockIdx.y * COLUMNS + lane % 4 * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 scale = __ldg(reinterpret_cast<const float4 *>(coeffs) + i),
                         bias  = __ldg(reinterpret_cast<const float4 *>(coeffs + p.shape.K) + i);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const bool inside = b.left + pixel + half * 8 < p.shape.Q;
                uint32_t   word[AHEAD];
#pragma unroll
                for (int e = 0; e < AHEAD; e++) {
                    const int(&low)[4] = acc[e][2 * i], (&high)[4] = acc[e][2 * i + 1];
                    const float v[4] = {
                        fmaf((float)low[half * 2], scale.x, bias.x), fmaf((float)low[half * 2 + 1], scale.y, bias.y),
                        fmaf((float)high[half * 2], scale.z, bias.z), fmaf((float)high[half * 2 + 1], scale.w, bias.w)};
                    const int row = 2 * j + e;
                    word[e]       = inside && row >= 0 && row < p.shape.P ? pack_four<false>(v) : 0;
                }
                most[half][i] = __vmaxu4(kept[half][i], __vmaxu4(word[0], word[1]));
                kept[half][i] = word[1];
            }
        }
    }
    __device__ __forceinline__ uint32_t out(int j, int at) const { /* at: pixel + 1 */
        return shared + (uint32_t)(OUT_AT + (j & 1) * OUT_BYTES + at * COLUMNS);
    }
    /* Row j of y: the maximum of pixels 2c - 1, 2c and 2c + 1. */
    __device__ __forceinline__ void store(const band &b, int j) const {
        const int skip = b.from ? 1 : 0; /* the first pixel of a further segment belongs to the one before */
        uint8_t  *to =
            p.y + (((int64_t)b.n * p.shape.PP + j) * p.shape.PQ + b.from) * p.shape.K + (int)blockIdx.y * COLUMNS;
        for (int i = (int)threadIdx.x; i < b.most * 4; i += THREADS) {
            const uint32_t from = out(j, 2 * (i / 4 + skip)) + (uint32_t)(i % 4 * 16);
            uint4          most = ck_get16(from);
#pragma unroll
            for (int k = 1; k < 3; k++) {
                const uint4 v = ck_get16(from + (uint32_t)(k * COLUMNS));
                most          = make_uint4(__vmaxu4(most.x, v.x), __vmaxu4(most.y, v.y), __vmaxu4(most.z, v.z),
                                           __vmaxu4(most.w, v.w));
            }
            ck_store_whole(to + (int64_t)(i / 4) * p.shape.K + i % 4 * 16, most);
        }
    }
    /* Rows 2j and 2j + 1 of the convolution, and row j of y when `stores`. */
    __device__ __forceinline__ void work(const band &b, int j, bool stores) {
        int      acc[AHEAD][FRAGMENTS][4];
        uint32_t most[2][4];
        if (warp >= WORKING) return;
        multiply(j, acc);
        take_rows(b, j, acc, most);
        if (!stores) return;
#pragma unroll
        for (int half = 0; half < 2; half++)
            ck_put16(out(j, pixel + half * 8 + 1) + (uint32_t)(lane % 4 * 16),
                     make_uint4(most[half][0], most[half][1], most[half][2], most[half][3]));
    }
    __device__ __forceinline__ void run(const band &b) {
        const int first = b.row ? b.row - 1 : 0, end = b.row + b.rows;
        const int row = (int)threadIdx.x / SPAN, column = (int)threadIdx.x % SPAN;
#pragma unroll
        for (int i = 0; i < 8; i++) kept[i / 4][i % 4] = 0;
        load_first(b, first);
        __syncthreads();
        for (int j = first; j < end; j++) {
            const bool loads = j + 1 < end && row < AHEAD;
            two_pixels above, below;
            if (loads) fetch(b, 2 * j + 3 + row, column, above, below);
            work(b, j, j >= b.row);
            if (loads) put(2 * j + 3 + row, column, above, below);
            __syncthreads();
            if (j >= b.row) store(b, j);
        }
        __syncthreads(); /* the ring is free */
    }
};

__global__ void __launch_bounds__(THREADS, RESIDENT) int8_stem_mma(const __grid_constant__ params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const uint32_t                                 shared = ck_shared(memory);
    ck_begin_after_last();
    make_table(p, reinterpret_cast<int8_t *>(memory + TABLE_AT), (int)threadIdx.x, (int)blockDim.x);
    make_filter(p, shared);
    if (threadIdx.x < 2 * COLUMNS / 16) /* pixel -1: less than all others */
        ck_put16(shared + OUT_AT + threadIdx.x / 4 * OUT_BYTES + threadIdx.x % 4 * 16, make_uint4(0, 0, 0, 0));
    __syncthreads();
    block all(p, shared, memory + TABLE_AT);
    for (int i = (int)blockIdx.x; i < p.shape.work; i += (int)gridDim.x) all.run(band(p.shape, i));
}

cudaError_t launch(const struct ck_int8_stem *a, void *, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!ck_int8_stem_configs(a, gpu)) return cudaErrorInvalidValue;
    const int    most    = RESIDENT * gpu->multiprocessors;
    const params p       = params_of(a, BAND_MAX, most);
    const int    columns = p.shape.K / COLUMNS;
    return ck_launch(int8_stem_mma, dim3((unsigned)(p.shape.work < most ? p.shape.work : most), (unsigned)columns),
                     dim3(THREADS), SHARED_BYTES, stream, p);
}

} // namespace

const struct ck_conv_family ck_int8_stem_mma = ck_family<ck_int8_stem, ck_int8_stem_configs, ck_no_workspace, launch>();
