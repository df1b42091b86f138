/* cuda/conv/int8/int8_stem_sm90a.cu: the stem of ImageNet networks in 8 bits, from images to the output of the max
 * pooling. Bytes: 3 a pixel of the image, K a pixel of y. Limiter: the tensor cores (half of the products are with
 * zeros), then the conversion of pixels.
 *
 * The image is used in space-to-depth form: 2x2 pixels are one pixel of 16 channels, four of them zero, and the 7x7
 * filter of stride 2 is a 4x4 filter of stride 1. One row of such pixels takes 16 bytes a pixel in shared memory. So 8
 * neighbouring pixels are one of the 8x8 matrices of 128 bytes that wgmma reads without a swizzle, at any starting
 * pixel, and the next filter position is the next pixel: a step of the product covers two of them.
 *
 * A band is a few rows of y of one image. A worker (warpgroup) processes a band row by row of the convolution:
 * channels down, 112 pixels to the right. The pooling needs neighbouring pixels, which are in
 * the same thread or the next one, and rows one after another, of which a thread keeps the maximum. Sums are compared
 * before they are scaled and rounded, because both are monotonic; for a negative factor, filters and factor are negated
 * first. For each worker a warpgroup of loaders converts pixels through a table of 256 values for each colour. */
#include "cuda/common/hopper_int8.cuh"
#include "cuda/conv/int8/int8_stem.cuh"

namespace {

enum {
    GROUP        = 128,
    WORKERS      = 2,
    SLOTS        = 12, /* rows in a worker's ring */
    BAND_MAX     = 14, /* rows of y */
    POOLED       = LINE / 2,
    PIXEL_BYTES  = 80, /* of a pixel of y in shared memory: 64 and a gap against bank conflicts */
    OUT_BYTES    = POOLED * PIXEL_BYTES,
    FILTER_AT    = 0, /* [2][COLUMNS] rows of 128 bytes with the 128-byte swizzle */
    RING_AT      = FILTER_AT + COLUMNS * TAPS * TAPS * 16,
    OUT_AT       = RING_AT + WORKERS * SLOTS * ROW_BYTES,
    TABLE_AT     = OUT_AT + WORKERS * OUT_BYTES,
    RAW_AT       = RING_AT, /* the block's filters as they are, before the first row */
    BAR_AT       = TABLE_AT + TABLE_BYTES,
    SHARED_BYTES = BAR_AT + 2 * WORKERS * SLOTS * 8
};
static_assert(BAR_AT % 8 == 0 && OUT_AT % 16 == 0, "aligned");
constexpr int RAW_BYTES = COLUMNS * 7 * 7 * 3;
static_assert(RAW_BYTES % 16 == 0 && RAW_BYTES + 8 <= WORKERS * SLOTS * ROW_BYTES, "fits");

#if CK_HAS_SM90A

/* A loader fills pixel `thread` of each row for its worker; rows are loaded AHEAD rows in advance, the first ones
 * while the table is made. */
enum { AHEAD = 2 };
struct loader {
    const params  &p;
    const int      thread;
    const uint8_t *table;
    uint32_t       ring, full;
    ck_ring_place  at;
    two_pixels     above[AHEAD], below[AHEAD];

    __device__ __forceinline__ void row(int k) {
        const uint32_t bar = full + 8 * (uint32_t)at.at;
        ck_mbar_wait(bar + 8 * WORKERS * SLOTS, at.parity ^ 1);
        if (thread < SPAN)
            ck_put16(ring + (uint32_t)(at.at * ROW_BYTES + thread * 16), convert(table, above[k], below[k]));
        ck_fence_async();
        __syncwarp();
        if (thread % 32 == 0) ck_mbar_arrive(bar);
        at.next(SLOTS);
    }
    __device__ __forceinline__ void fetch(const band &b, int i, int k) {
        const int h = 2 * (b.top() + i - 2), w = 2 * (b.left + thread - 2);
        above[k].load(p, b.n, h, thread < SPAN ? w : -1);
        below[k].load(p, b.n, h + 1, thread < SPAN ? w : -1);
    }
    __device__ __forceinline__ void begin(const band &b) {
#pragma unroll
        for (int k = 0; k < AHEAD; k++) fetch(b, k, k); /* a band has at least TAPS rows */
    }
    __device__ __forceinline__ void run(const band &b) {
        const int rows = b.count() + TAPS - 1;
        for (int i = 0; i < rows; i += AHEAD)
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                if (i + k < rows) row(k);
                if (i + k + AHEAD < rows) fetch(b, i + k + AHEAD, k);
            }
    }
};

/* Six bytes of shared memory at any address. */
__device__ __forceinline__ uint2 six_bytes(uint32_t at) {
    const uint32_t first = at & ~3u, shift = at % 4 * 8, middle = ck_get4(first + 4);
    return make_uint2(__funnelshift_r(ck_get4(first), middle, shift),
                      __funnelshift_r(middle, ck_get4(first + 8), shift) & 0xffffu);
}

/* The workers' threads write the block's filters in the order of the product's rows; those with a negative factor are
 * negated. A filter position is two rows of two neighbouring elements of the 7x7 filter, of six bytes each. */
__device__ __forceinline__ void make_filter(const params &p, uint32_t raw, uint32_t to) {
    const int     thread = (int)threadIdx.x, threads = WORKERS * GROUP;
    const int8_t *from   = p.w + (int64_t)blockIdx.y * RAW_BYTES;
    constexpr int ROUNDS = COLUMNS * TAPS * TAPS / (WORKERS * GROUP);
    float         sign[ROUNDS];
    for (int i = thread; i < RAW_BYTES / 16; i += threads) ck_put16(raw + (uint32_t)(16 * i), ck_load(from, i));
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int m = (round * threads + thread) / 16;
        sign[round] = p.coeffs[(int)blockIdx.y * COLUMNS + m / 16 * 16 + m % 8 * 2 + m % 16 / 8];
    }
    ck_barrier(1 + WORKERS, threads);
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int m = (round * threads + thread) / 16, tap = thread % 16, R = tap / TAPS, S = tap % TAPS;
        const int k = m / 16 * 16 + m % 8 * 2 + m % 16 / 8;
        uint2     row[2];
#pragma unroll
        for (int d = 0; d < 2; d++) { /* element (2R + d - 1, 2S - 1) and the next one; those at -1 are 0 */
            const int at = (k * 49 + (2 * R + d - 1) * 7 + 2 * S - 1) * 3;
            row[d]       = six_bytes(raw + (uint32_t)(at < 0 ? 0 : at));
            if (S == 0)
                row[d] = at < 0 ? make_uint2(row[d].x << 24, row[d].x >> 8 & 0xffffu)
                                : make_uint2(row[d].x & 0xff000000u, row[d].y);
            if (2 * R + d == 0) row[d] = make_uint2(0, 0);
        }
        uint4 v = make_uint4(row[0].x, row[0].y | row[1].x << 16, row[1].x >> 16 | row[1].y << 16, 0);
        if (sign[round] < 0.0f) v = make_uint4(__vneg4(v.x), __vneg4(v.y), __vneg4(v.z), 0);
        ck_put16(to + (uint32_t)(tap / 8 * COLUMNS * 128 + m * 128 + (tap % 8 ^ m % 8) * 16), v);
    }
}

/* A thread has channels 2g and 2g + 1 of its warp's 16 (g = lane / 4): rows g and g + 8 of the product. */
struct worker {
    static constexpr int LOWEST = -0x7fffffff;
    const params        &p;
    const int            me, warp, lane;
    const uint32_t       shared, bars;
    int                  acc[2][LINE / 2], best[LINE / 4]; /* acc: of rows of the convolution in turn */
    float                scale[2], bias[2];
    ck_ring_place        at;

    __device__ __forceinline__ int channel() const { return (int)blockIdx.y * COLUMNS + warp * 16 + lane / 4 * 2; }
    __device__                     worker(const params &params_, uint32_t shared_, int me_)
        : p(params_), me(me_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32), shared(shared_),
          bars(shared_ + BAR_AT) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            scale[e] = fabsf(p.coeffs[channel() + e]);
            bias[e]  = p.coeffs[p.shape.K + channel() + e];
        }
    }

    /* Descriptor of a row's pixels from pixel `first` on: 16 bytes along the reduced dimension, 128 across. */
    __device__ __forceinline__ uint64_t pixels(int slot, int first) const {
        const uint32_t from = shared + (uint32_t)(RING_AT + (me * SLOTS + slot) * ROW_BYTES + first * 16);
        return (uint64_t)(__shfl_sync(0xffffffffu, from / 16, 0) | 1u << 16) | (uint64_t)(128 / 16) << 32;
    }

    /* Begins a row of the convolution, whose first row of pixels is the ring's next slot. */
    __device__ __forceinline__ void begin(int (&sums)[LINE / 2], bool first) {
        ck_ring_place row = at;
        if (first) {
#pragma unroll
            for (int r = 0; r < TAPS - 1; r++) {
                ck_mbar_wait(bars + 8 * (uint32_t)(me * SLOTS + row.at), row.parity);
                row.next(SLOTS);
            }
        } else {
            row.skip(TAPS - 1, SLOTS);
        }
        ck_mbar_wait(bars + 8 * (uint32_t)(me * SLOTS + row.at), row.parity);
        ck_wgmma_fence();
#pragma unroll
        for (int r = 0; r < TAPS; r++) {
            const int      slot   = at.at + r >= SLOTS ? at.at + r - SLOTS : at.at + r;
            const uint64_t filter = ck_operand(shared + (uint32_t)(FILTER_AT + r / 2 * COLUMNS * 128)) + r % 2 * 4;
            ck_wgmma_int8<true, 112>::run(sums, filter, pixels(slot, 0), r);
            ck_wgmma_int8<true, 112>::run(sums, filter + 2, pixels(slot, 2), 1);
        }
        ck_wgmma_commit();
    }
    /* Waits for the row that was begun. */
    __device__ __forceinline__ void end(int (&sums)[LINE / 2]) {
        ck_wgmma_wait<0>();
        ck_wgmma_hold(sums);
        release();
    }
    __device__ __forceinline__ void release() {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bars + 8 * (uint32_t)(WORKERS * SLOTS + me * SLOTS + at.at));
        at.next(SLOTS);
    }

    /* Row `i` of the band's convolution goes into the maximum of a row of y. Every second one completes a row and
     * belongs to the next one too. Column c = 4j + lane%4 of y is the maximum of pixels 2c - 1, 2c, 2c + 1. */
    template <bool COMPLETES> __device__ __forceinline__ void finish(const band &b, int i, int (&sums)[LINE / 2]) {
        const uint32_t out    = shared + (uint32_t)(OUT_AT + me * OUT_BYTES) + (uint32_t)(warp * 16 + lane / 4 * 2);
        const int      inside = p.shape.Q - b.left;
        const bool     is_row = b.top() + i >= 0 && b.top() + i < p.shape.P;
        if (inside < LINE || !is_row) {
#pragma unroll
            for (int k = 0; k < LINE / 2; k++)
                if (!is_row || k / 4 * 8 + lane % 4 * 2 + k % 2 >= inside) sums[k] = LOWEST;
        }
        if (COMPLETES && i) ck_barrier(1 + me, GROUP); /* the row of y before has left shared memory */
        int before[2] = {LOWEST, LOWEST};
#pragma unroll
        for (int j = 0; j < LINE / 8; j++) {
            int q[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int left = sums[4 * j + 2 * e], right = sums[4 * j + 2 * e + 1];
                const int other = __shfl_sync(0xffffffffu, right, (lane & ~3) | ((lane + 3) & 3));
                const int most = max(max(left, right), lane % 4 ? other : before[e]), of = best[2 * j + e];
                before[e]       = other;
                best[2 * j + e] = COMPLETES ? most : max(of, most);
                if (COMPLETES) q[e] = __float2int_rn(fmaf((float)max(of, most), scale[e], bias[e]));
            }
            if (COMPLETES && i) {
                uint32_t two;
                asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(two) : "r"(q[1]), "r"(q[0]));
                asm volatile("st.shared.u16 [%0], %1;" ::"r"(out + (uint32_t)((4 * j + lane % 4) * PIXEL_BYTES)),
                             "h"((uint16_t)two)
                             : "memory");
            }
        }
        if (COMPLETES && i) store(b, b.row + i / 2 - 1);
    }

    /* Copies a row of y from shared memory. */
    __device__ __forceinline__ void store(const band &b, int row) const {
        const uint32_t out = shared + (uint32_t)(OUT_AT + me * OUT_BYTES);
        ck_barrier(1 + me, GROUP);
        const int skip = b.from ? 1 : 0; /* the first pixel of a further segment belongs to the one before */
        uint8_t  *to =
            p.y + (((int64_t)b.n * p.shape.PP + row) * p.shape.PQ + b.from) * p.shape.K + (int)blockIdx.y * COLUMNS;
        for (int i = (int)threadIdx.x % GROUP; i < b.most * 4; i += GROUP)
            ck_store_whole(to + (int64_t)(i / 4) * p.shape.K + i % 4 * 16,
                           ck_get16(out + (uint32_t)((i / 4 + skip) * PIXEL_BYTES + i % 4 * 16)));
    }

    /* The next row is multiplied while one is pooled. The number of rows is odd. */
    __device__ __forceinline__ void run_band(const band &b) {
#pragma unroll
        for (int i = 0; i < LINE / 4; i++) best[i] = LOWEST;
        begin(acc[0], true);
        for (int i = 0; i < b.count() - 1; i += 2) {
            end(acc[0]);
            begin(acc[1], false);
            finish<true>(b, i, acc[0]);
            end(acc[1]);
            begin(acc[0], false);
            finish<false>(b, i + 1, acc[1]);
        }
        end(acc[0]);
        finish<true>(b, b.count() - 1, acc[0]);
        for (int r = 0; r < TAPS - 1; r++) release(); /* rows below the last one */
    }
};
#endif

__global__ void __launch_bounds__(2 * WORKERS * GROUP, 1) int8_stem(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory), bars = shared + BAR_AT;
    const int                                       group = (int)threadIdx.x / GROUP, step = WORKERS * (int)gridDim.x;
    if (threadIdx.x < 2 * WORKERS * SLOTS) {
        ck_mbar_init(bars + 8 * threadIdx.x, 4); /* the warps that write or read the row */
        ck_mbar_init_fence();
    }
    ck_begin_after_last();
    const int mine = group % WORKERS, first = mine * (int)gridDim.x + (int)blockIdx.x;
    if (group >= WORKERS) {
        ck_registers_decrease<40>();
        loader l = {p,
                    (int)threadIdx.x % GROUP,
                    memory + TABLE_AT,
                    shared + (uint32_t)(RING_AT + mine * SLOTS * ROW_BYTES),
                    bars + 8 * (uint32_t)(mine * SLOTS),
                    {},
                    {},
                    {}};
        if (first < p.shape.work) l.begin(band(p.shape, first));
        make_table(p, reinterpret_cast<int8_t *>(memory + TABLE_AT), (int)threadIdx.x - WORKERS * GROUP,
                   WORKERS * GROUP);
        ck_barrier(0, 2 * WORKERS * GROUP);
        for (int i = first; i < p.shape.work; i += step) {
            if (i > first) l.begin(band(p.shape, i));
            l.run(band(p.shape, i));
        }
    } else {
        ck_registers_increase<216>();
        make_filter(p, shared + RAW_AT, shared + FILTER_AT);
        ck_fence_async();
        ck_barrier(0, 2 * WORKERS * GROUP);
        worker w(p, shared, mine);
        for (int i = first; i < p.shape.work; i += step) w.run_band(band(p.shape, i));
    }
#else
    __trap();
#endif
}

cudaError_t launch(const struct ck_int8_stem *a, void *, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!ck_int8_stem_configs(a, gpu)) return cudaErrorInvalidValue;
    const params p       = params_of(a, BAND_MAX, WORKERS * gpu->multiprocessors);
    const int    columns = p.shape.K / COLUMNS,
              blocks     = p.shape.work < gpu->multiprocessors ? p.shape.work : gpu->multiprocessors;
    return ck_launch_shared(int8_stem, dim3((unsigned)blocks, (unsigned)columns), dim3(2 * WORKERS * GROUP),
                            SHARED_BYTES, stream, p);
}

} // namespace

const struct ck_conv_family ck_int8_stem_wgmma =
    ck_family<ck_int8_stem, ck_int8_stem_configs, ck_no_workspace, launch>();
