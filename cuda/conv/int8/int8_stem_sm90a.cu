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
    BAR_AT       = TABLE_AT + TABLE_BYTES,
    SHARED_BYTES = BAR_AT + 2 * WORKERS * SLOTS * 8
};
static_assert(BAR_AT % 8 == 0 && OUT_AT % 16 == 0, "aligned");

#if CK_HAS_SM90A

/* A loader fills pixel `thread` of each row for its worker; rows are loaded AHEAD rows in advance. */
enum { AHEAD = 2 };
struct loader {
    const params  &p;
    const int      thread;
    const uint8_t *table;
    uint32_t       ring, full;
    ck_ring_place  at;

    __device__ __forceinline__ void row(const two_pixels &above, const two_pixels &below) {
        const uint32_t bar = full + 8 * (uint32_t)at.at;
        ck_mbar_wait(bar + 8 * WORKERS * SLOTS, at.parity ^ 1);
        if (thread < SPAN) ck_put16(ring + (uint32_t)(at.at * ROW_BYTES + thread * 16), convert(table, above, below));
        ck_fence_async();
        __syncwarp();
        if (thread % 32 == 0) ck_mbar_arrive(bar);
        at.next(SLOTS);
    }
    __device__ __forceinline__ void fetch(const band &b, int i, two_pixels &above, two_pixels &below) const {
        const int h = 2 * (b.top() + i - 2), w = 2 * (b.left + thread - 2);
        above.load(p, b.n, h, thread < SPAN ? w : -1);
        below.load(p, b.n, h + 1, thread < SPAN ? w : -1);
    }
    __device__ __forceinline__ void run(const band &b) {
        const int rows = b.count() + TAPS - 1;
        for (int i = 0; i < rows; i += AHEAD) {
            two_pixels above[AHEAD], below[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (i + k < rows) fetch(b, i + k, above[k], below[k]);
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (i + k < rows) row(above[k], below[k]);
        }
    }
};

#define STEM_D56                                                                                                       \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"           \
    "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55"
/* d[64 channels][112 pixels] (+)= a[64][32] b[32][112] */
__device__ __forceinline__ void multiply_line(int (&d)[56], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %58, 0;\nwgmma.mma_async.sync.aligned.m64n112k32.s32.s8.s8 "
                 "{" STEM_D56 "}, %56, %57, keep;\n}"
                 : CK_INT32(d, 0), CK_INT8(d, 32), CK_INT8(d, 40), CK_INT8(d, 48)
                 : "l"(a), "l"(b), "r"(keep));
}

/* The block's filters in the order of the product's rows; those with a negative factor are negated. All loads of a
 * thread are under way at the same time. */
__device__ __forceinline__ void make_filter(const params &p, uint32_t to) {
    constexpr int ROUNDS = COLUMNS * TAPS * TAPS * 16 / (4 * 2 * WORKERS * GROUP);
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int i = (round * 2 * WORKERS * GROUP + (int)threadIdx.x) * 4, m = i / 256, at = i % 256;
        const int k    = (int)blockIdx.y * COLUMNS + m / 16 * 16 + m % 8 * 2 + m % 16 / 8;
        const int sign = p.coeffs[k] < 0.0f ? -1 : 1;
        uint32_t  word = 0;
#pragma unroll
        for (int b = 0; b < 4; b++) word |= (uint32_t)(sign * filter_element(p, k, at + b) & 255) << 8 * b;
        ck_put4(to + (uint32_t)(at / 128 * COLUMNS * 128 + m * 128 + (at % 128 / 16 ^ m % 8) * 16 + at % 16), word);
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
            multiply_line(sums, filter, pixels(slot, 0), r);
            multiply_line(sums, filter + 2, pixels(slot, 2), 1);
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
    make_table(p, reinterpret_cast<int8_t *>(memory + TABLE_AT));
    make_filter(p, shared + FILTER_AT);
    ck_fence_async();
    __syncthreads();
    const int mine = group % WORKERS;
    if (group >= WORKERS) {
        ck_registers_decrease<40>();
        loader l = {p,
                    (int)threadIdx.x % GROUP,
                    memory + TABLE_AT,
                    shared + (uint32_t)(RING_AT + mine * SLOTS * ROW_BYTES),
                    bars + 8 * (uint32_t)(mine * SLOTS),
                    {}};
        for (int i = (int)blockIdx.x * WORKERS + mine; i < p.shape.work; i += step) l.run(band(p.shape, i));
    } else {
        ck_registers_increase<216>();
        worker w(p, shared, mine);
        for (int i = (int)blockIdx.x * WORKERS + mine; i < p.shape.work; i += step) w.run_band(band(p.shape, i));
    }
#else
    (void)p;
    __trap();
#endif
}

cudaError_t launch(const struct ck_int8_stem *a, void *, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!ck_int8_stem_configs(a, gpu)) return cudaErrorInvalidValue;
    const params p       = params_of(a, BAND_MAX, WORKERS * gpu->multiprocessors);
    const int    columns = p.shape.K / COLUMNS, pairs = (p.shape.work + WORKERS - 1) / WORKERS,
              blocks = pairs < gpu->multiprocessors ? pairs : gpu->multiprocessors;
    return ck_launch_shared(int8_stem, dim3((unsigned)blocks, (unsigned)columns), dim3(2 * WORKERS * GROUP),
                            SHARED_BYTES, stream, p);
}

} // namespace

const struct ck_conv_family ck_int8_stem_wgmma =
    ck_family<ck_int8_stem, ck_int8_stem_configs, ck_no_workspace, launch>();
