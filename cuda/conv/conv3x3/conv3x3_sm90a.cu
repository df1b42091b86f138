/* cuda/conv/conv3x3/conv3x3_sm90a.cu: device code and launcher of cuda/conv/conv3x3/conv3x3.h.
 *
 * Bytes: 256 a pixel; 73,728 floating-point operations a pixel. The limiter is the tensor cores.
 *
 * With 64 channels on both sides, a product whose operands both come from shared memory reads as many bytes as shared
 * memory delivers. So the product is transposed: y^T = w x^T. The filter is the left operand and stays in registers for
 * the whole launch, and 128 pixels are the right operand. One block for each multiprocessor: a thread that loads by
 * TMA, and two warpgroups ("workers") that multiply 128 neighbouring positions each.
 *
 * A tile of x is loaded once for all nine filter positions. Positions are pixels of images with one zero row on top and
 * one zero column on the left, which are the zeros below and on the right of their neighbours. A filter position is
 * then a constant distance in this order, so each of its products reads the same rows of shared memory from another
 * address.
 *
 * The sums over the pixels are made while the workers store y, when the registers of the products are free. */
#include "cuda/common/column_sums.cuh"
#include "cuda/common/hopper_int8.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/conv3x3/conv3x3.h"

namespace {

enum {
    GROUP        = 128, /* threads of a warpgroup */
    WORKERS      = 2,
    CHANNELS     = CK_CONV3X3_CHANNELS,
    ROW          = 2 * CHANNELS, /* bytes of a position */
    COLUMNS      = 128,          /* positions of a worker's tile */
    TILE         = WORKERS * COLUMNS,
    TAPS         = 9,
    STEPS        = CHANNELS / 16, /* products for each filter position */
    Y_BYTES      = COLUMNS * ROW,
    SLOTS_MAX    = 4,
    WARP_SUMS    = 8 * 16, /* of a warp: eight sums and eight sums of squares of each chunk of channels */
    SUMS_BYTES   = WORKERS * 4 * WARP_SUMS * (int)sizeof(float),
    SHARED_LIMIT = 227 * 1024
};

/* Hardware barriers: of each worker's tile of y, and of its turn. */
enum { STAGED = 1, TURN = STAGED + WORKERS, TILE_THREADS = WORKERS * GROUP };

/* Barriers, 8 bytes each: a full one counts one arrival, an empty one all warps of the workers. */
enum { BAR_FULL = 0, BAR_EMPTY = SLOTS_MAX, BAR_COUNT = 2 * SLOTS_MAX };

/* Offsets are into shared memory; the slots of x are first. */
struct plan {
    int rows; /* positions in a slot of x */
    int slots, slot_bytes, tiles, y_at, sums_at, bar_at, bytes;
};

struct params {
    CUtensorMap  x;
    struct plan  plan;
    const void  *w;
    const float *bias;
    void        *y;
    float       *partial; /* [blocks][WORKERS][2][64], or NULL without sums */
    int          positions, H, W;
    bool         relu, early;
};

#if CK_HAS_SM90A

/* One thread loads the tiles. */
__device__ __forceinline__ void load_tiles(const params &p, uint32_t shared) {
    const uint32_t bars = shared + (uint32_t)p.plan.bar_at;
    ck_ring_place  at;
    for (int tile = (int)blockIdx.x; tile < p.plan.tiles; tile += (int)gridDim.x) {
        const int      position = tile * TILE, line = position / (p.W + 1), n = line / (p.H + 1);
        const uint32_t full = bars + 8 * (uint32_t)(BAR_FULL + at.at);
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_EMPTY + at.at), at.parity ^ 1);
        ck_mbar_expect(full, (uint32_t)(p.plan.rows * ROW));
        ck_tma_load_pixels(shared + (uint32_t)(at.at * p.plan.slot_bytes), &p.x, full, 0,
                           position - line * (p.W + 1) - 1, line - n * (p.H + 1) - 1, n);
        at.next(p.plan.slots);
    }
}

/* Image, row and column of a position, and the pixel of y there. */
struct place {
    int        n, h, w;
    __device__ place(const params &p, int position) {
        const int line = position / (p.W + 1);
        w              = position - line * (p.W + 1);
        n              = line / (p.H + 1);
        h              = line - n * (p.H + 1);
    }
    __device__ __forceinline__ void advance(const params &p, int positions) {
        for (w += positions; w > p.W; w -= p.W + 1)
            if (++h > p.H) {
                h = 0;
                n++;
            }
    }
    /* -1: the position is between two rows or two images */
    __device__ __forceinline__ int pixel(const params &p) const {
        return h < p.H && w < p.W ? (n * p.H + h) * p.W + w : -1;
    }
};

template <typename T> struct worker {
    const params &p;
    const int     me, thread, warp, lane;
    uint32_t      x_at, y_at, sums_at, bars; /* sums_at: of the warp */
    uint32_t      filter[TAPS][STEPS][4];
    float         bias[2], acc[COLUMNS / 2];
    ck_ring_place at;

    __device__ worker(const params &params_, uint32_t shared, int me_)
        : p(params_), me(me_), thread((int)threadIdx.x % GROUP), warp(thread / 32), lane(thread % 32) {
        x_at    = shared + (uint32_t)(me * COLUMNS * ROW);
        y_at    = shared + (uint32_t)(p.plan.y_at + me * Y_BYTES);
        sums_at = shared + (uint32_t)(p.plan.sums_at + (me * 4 + warp) * WARP_SUMS * (int)sizeof(float));
        bars    = shared + (uint32_t)p.plan.bar_at;
    }

    /* The fragments of the left operand: a thread has two output channels. */
    __device__ __forceinline__ void load_filter() {
        const int       k    = warp * 16 + lane / 4;
        const uint32_t *from = static_cast<const uint32_t *>(p.w) + k * (TAPS * CHANNELS / 2) + lane % 4;
#pragma unroll
        for (int t = 0; t < TAPS; t++)
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    filter[t][s][i] =
                        __ldg(from + i % 2 * 8 * (TAPS * CHANNELS / 2) + t * (CHANNELS / 2) + s * 8 + i / 2 * 4);
#pragma unroll
        for (int i = 0; i < 2; i++) bias[i] = p.bias ? __ldg(p.bias + k + 8 * i) : 0.0f;
    }

    /* acc[64 output channels][128 positions]. The workers take turns: one multiplies while the other stores. */
    __device__ __forceinline__ void multiply(bool last) {
        const uint32_t rows = x_at + (uint32_t)(at.at * p.plan.slot_bytes);
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_FULL + at.at), at.parity);
        ck_barrier(TURN + me, TILE_THREADS);
        ck_wgmma_fence();
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
            const uint64_t x = ck_operand_rows<ROW>(rows + (uint32_t)((t / 3 * (p.W + 1) + t % 3) * ROW));
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                ck_wgmma<T, COLUMNS>::template left<0>(acc, filter[t][s], x + (uint64_t)(2 * s), t + s);
        }
        ck_wgmma_commit();
        if (me == 0 || !last) ck_barrier_arrive(TURN + (me ^ 1), TILE_THREADS);
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bars + 8 * (uint32_t)(BAR_EMPTY + at.at));
        at.next(p.plan.slots);
    }

    /* Writes the tile of y to shared memory, transposed: rows of a position's 64 channels. */
    template <bool RELU> __device__ __forceinline__ void put() const {
        const int row = lane % 8, chunk = warp * 2 + lane / 8 % 2;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j += 2) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *v = acc + (j + i / 2) * 4 + i % 2 * 2;
                const float  b = bias[i % 2];
                word[i]        = RELU ? ck_pack_relu<T>(v[0] + b, v[1] + b) : ck_pack_pair<T>(v[0] + b, v[1] + b);
            }
            ck_stmatrix_trans(y_at + (uint32_t)((8 * (j + lane / 16) + row) * ROW + (chunk ^ row) * 16), word);
        }
    }

    /* Stores the tile of y; 8 threads store a pixel. SUMS: also adds it to the sums. */
    template <bool SUMS> __device__ __forceinline__ void store(int position) const {
        const int chunk   = thread % 8;
        float     sum[16] = {};
        place     to(p, position + thread / 8);
#pragma unroll 1
        for (int row = thread / 8; row < COLUMNS; row += GROUP / 8) {
            const int pixel = to.pixel(p);
            if (pixel >= 0 && position + row < p.positions) {
                const uint4 word = ck_get16(y_at + (uint32_t)(row * ROW + (chunk ^ row % 8) * 16));
                ck_store_whole(static_cast<uint8_t *>(p.y) + (int64_t)pixel * ROW + chunk * 16, word);
                if (SUMS) add_pixel(sum, word);
            }
            to.advance(p, GROUP / 8);
        }
        if (SUMS) add_sums(sum);
    }

    static __device__ __forceinline__ void add_pixel(float (&sum)[16], const uint4 &word) {
        const uint32_t pair[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v = ck_pair<T>(pair[i]);
            sum[2 * i] += v.x;
            sum[2 * i + 1] += v.y;
            sum[8 + 2 * i]     = fmaf(v.x, v.x, sum[8 + 2 * i]);
            sum[8 + 2 * i + 1] = fmaf(v.y, v.y, sum[8 + 2 * i + 1]);
        }
    }
    /* Adds the threads' sums to those of the warp: four lanes have the same channels. */
    __device__ __forceinline__ void add_sums(float (&sum)[16]) const {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 8);
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 16);
        }
        if (lane >= 8) return;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const uint32_t of = sums_at + (uint32_t)((i * 8 + lane) * (int)sizeof(float));
            ck_put4(of, __float_as_uint(__uint_as_float(ck_get4(of)) + sum[i]));
        }
    }
    __device__ __forceinline__ void clear_sums() const {
#pragma unroll
        for (int i = 0; i < WARP_SUMS / 32; i++)
            ck_put4(sums_at + (uint32_t)((i * 32 + lane) * (int)sizeof(float)), 0u);
        __syncwarp();
    }
    /* The worker's sums over its warps, to the workspace: a thread has one. */
    __device__ __forceinline__ void put_sums() const {
        const int      channel = thread % CHANNELS, i = thread / CHANNELS * 8 + channel % 8;
        const uint32_t first = sums_at - (uint32_t)(warp * WARP_SUMS * (int)sizeof(float));
        float          sum   = 0.0f;
        ck_barrier(STAGED + me, GROUP);
#pragma unroll
        for (int w = 0; w < 4; w++)
            sum += __uint_as_float(
                ck_get4(first + (uint32_t)((w * WARP_SUMS + i * 8 + channel / 8) * (int)sizeof(float))));
        p.partial[((int64_t)blockIdx.x * WORKERS + me) * 2 * CHANNELS + thread] = sum;
    }

    __device__ __forceinline__ void run() {
        if (p.partial) clear_sums();
        if (me == 1) ck_barrier_arrive(TURN, TILE_THREADS);
        for (int tile = (int)blockIdx.x; tile < p.plan.tiles; tile += (int)gridDim.x) {
            multiply(tile + (int)gridDim.x >= p.plan.tiles);
            ck_barrier(STAGED + me, GROUP); /* the last tile of y has been read */
            if (p.relu)
                put<true>();
            else
                put<false>();
            ck_barrier(STAGED + me, GROUP);
            if (p.partial)
                store<true>(tile * TILE + me * COLUMNS);
            else
                store<false>(tile * TILE + me * COLUMNS);
        }
        if (p.partial) put_sums();
    }
};

#endif

template <typename T>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) conv3x3(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    const int                                       group = (int)threadIdx.x / GROUP, bar = (int)threadIdx.x;
    if (bar < BAR_COUNT) {
        ck_mbar_init(shared + (uint32_t)(p.plan.bar_at + 8 * bar), bar < BAR_EMPTY ? 1 : 4 * WORKERS);
        ck_mbar_init_fence();
    }
    if (threadIdx.x == WORKERS * GROUP) ck_tma_prefetch(&p.x);
    __syncthreads();
    if (group == WORKERS) {
        ck_registers_decrease<24>();
        ck_begin_after_last();
        if (threadIdx.x == WORKERS * GROUP) load_tiles(p, shared);
    } else {
        ck_registers_increase<240>();
        worker<T> worker(p, shared, group);
        if (p.early) worker.load_filter();
        ck_begin_after_last();
        if (!p.early) worker.load_filter();
        worker.run();
    }
#else
    (void)p;
    __trap();
#endif
}

/* ---- host side ---- */

bool make_plan(struct plan *p, const struct ck_conv3x3 *a) {
    const int64_t positions = a->N * (a->H + 1) * (a->W + 1);
    if (a->type == CK_F32 || a->N < 1 || a->H < 1 || a->W < 1 || a->W > 1024) return false;
    if (a->sums && (a->bias || a->relu)) return false;
    if (a->H >= INT32_MAX / 2 / (a->W + 1) || a->N >= INT32_MAX / 2 / ((a->H + 1) * (a->W + 1))) return false;
    p->rows       = ((TILE + 2 * ((int)a->W + 1) + 2) + 7) / 8 * 8;
    p->slot_bytes = p->rows * ROW;
    p->slots      = (SHARED_LIMIT - WORKERS * Y_BYTES - SUMS_BYTES - 8 * BAR_COUNT) / p->slot_bytes;
    if (p->slots > SLOTS_MAX) p->slots = SLOTS_MAX;
    p->y_at    = p->slots * p->slot_bytes;
    p->sums_at = p->y_at + WORKERS * Y_BYTES;
    p->bar_at  = p->sums_at + SUMS_BYTES;
    p->bytes   = p->bar_at + 8 * BAR_COUNT;
    p->tiles   = (int)((positions + TILE - 1) / TILE);
    return p->slots >= 2 && p->rows <= 1024;
}

template <typename T> cudaError_t start(const struct params *p, int blocks, cudaStream_t stream) {
    const cudaError_t error =
        cudaFuncSetAttribute(conv3x3<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, p->plan.bytes);
    if (error != cudaSuccess) return error;
    return ck_launch(conv3x3<T>, dim3((unsigned)blocks), dim3((1 + WORKERS) * GROUP), (size_t)p->plan.bytes, stream,
                     *p);
}

} // namespace

bool ck_conv3x3_supports(const struct ck_conv3x3 *a) {
    struct plan plan;
    return make_plan(&plan, a);
}

size_t ck_conv3x3_workspace(int multiprocessors) {
    return sizeof(float) * (size_t)multiprocessors * WORKERS * 2 * CHANNELS;
}

cudaError_t ck_conv3x3(const struct ck_conv3x3 *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    const int     before[2] = {-1, -1}, none[2] = {0, 0};
    struct params p = {};
    if (!make_plan(&p.plan, a)) return cudaErrorInvalidValue;
    p.w         = a->w;
    p.bias      = a->bias;
    p.y         = a->y;
    p.partial   = a->sums ? static_cast<float *>(workspace) : nullptr;
    p.positions = (int)(a->N * (a->H + 1) * (a->W + 1));
    p.H         = (int)a->H;
    p.W         = (int)a->W;
    p.relu      = a->relu;
    p.early     = a->early;
    if (!ck_tma_pixels(&p.x, a->type, a->x, a->N, a->H, a->W, CHANNELS, before, none, 1, p.plan.rows))
        return cudaErrorNotSupported;
    const int         blocks = p.plan.tiles < multiprocessors ? p.plan.tiles : multiprocessors;
    const cudaError_t error =
        a->type == CK_F16 ? start<__half>(&p, blocks, stream) : start<__nv_bfloat16>(&p, blocks, stream);
    if (error != cudaSuccess || !a->sums) return error;
    return add_column_sums(p.partial, a->sums, blocks * WORKERS, CHANNELS, CHANNELS, stream);
}
