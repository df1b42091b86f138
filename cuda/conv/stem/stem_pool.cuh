/* cuda/conv/stem/stem_pool.cuh: the forward kernel of cuda/conv/stem/stem_sm90a.cu with bias, ReLU and max-pooling.
 *
 * Pooled row r is the maximum of the lines 2r-1, 2r and 2r+1 of y. Workers process pooled rows alternately: a worker
 * multiplies the lines 2r and 2r+1 and reduces them horizontally. The other worker has reduced line 2r-1 for the row
 * before and hands it over through shared memory. Only the first row of a block multiplies line 2r-1 itself. The
 * maximum is taken before bias, ReLU and rounding, which keep the order of numbers, so y is never stored. */
#ifndef CK_STEM_POOL_CUH
#define CK_STEM_POOL_CUH

#include "cuda/conv/stem/stem_conv.cuh"

namespace {

struct pool_params {
    CUtensorMap  y;
    struct shape shape; /* of the convolution */
    int          rows;  /* pooled rows of an image */
    const void  *x, *w;
    const float *bias;
};

/* Shared memory: two pooled lines of each worker, a line for each worker that the other one has reduced, stages of x,
 * barriers. A stage begins with the row of x below line 2r-1 of its first pooled row. */
enum {
    POOL_RUN        = 4, /* pooled rows */
    POOL_LINE       = LINE / 2,
    POOL_LINE_BYTES = POOL_LINE * COLUMNS * 2,
    POOL_ROWS       = 2 * POOL_RUN + SIDE, /* of x in a stage */
    POOL_STAGE      = POOL_ROWS * ROW_BYTES,
    POOL_HAND_BYTES = GROUP * POOL_LINE / 2 * 4, /* a thread has 28 numbers */
    POOL_HAND_AT    = 2 * WORKERS * POOL_LINE_BYTES,
    POOL_X_AT       = POOL_HAND_AT + WORKERS * POOL_HAND_BYTES,
    POOL_BAR_AT     = POOL_X_AT + X_STAGES * POOL_STAGE,
    POOL_FULL       = 0,
    POOL_EMPTY      = X_STAGES,
    POOL_ORDER      = 2 * X_STAGES,
    POOL_HANDED     = POOL_ORDER + WORKERS,  /* the line for this worker is written */
    POOL_TAKEN      = POOL_HANDED + WORKERS, /* this worker has read it */
    POOL_BARS       = POOL_TAKEN + WORKERS,
    POOL_BYTES      = POOL_BAR_AT + 8 * POOL_BARS
};
static_assert((int)POOL_BYTES <= (int)SHARED_LIMIT && POOL_BAR_AT % 8 == 0 && POOL_LINE_BYTES % 1024 == 0, "fits");

#if CK_HAS_SM90A

/* The block's pooled rows, in runs of at most POOL_RUN rows of one image. */
struct pool_runs {
    int        row, first, end; /* first row of the run; rows of the block */
    int        count;           /* rows of the run */
    int        n, r;            /* image, first pooled row in it */
    __device__ pool_runs(const pool_params &p) {
        const int64_t all = (int64_t)p.shape.N * p.rows;
        row = first = (int)(all * blockIdx.x / gridDim.x);
        end         = (int)(all * (blockIdx.x + 1) / gridDim.x);
        find(p);
    }
    __device__ __forceinline__ void find(const pool_params &p) {
        n     = row / p.rows;
        r     = row - n * p.rows;
        count = min((int)POOL_RUN, min(p.rows - r, end - row));
    }
    __device__ __forceinline__ bool more() const { return row < end; }
    /* Whether the run needs line 2r-1 of its first row from x. */
    __device__ __forceinline__ bool starts_inside() const { return row == first && r > 0; }
    __device__ __forceinline__ void next(const pool_params &p) {
        row += count;
        find(p);
    }
};

/* Loads rows of x, run by run, as load_rows in cuda/conv/stem/stem.cuh does. */
__device__ __forceinline__ void load_pool_rows(const pool_params &p, int thread, uint32_t to, uint32_t bar) {
    const int64_t pitch = (int64_t)p.shape.W * (DEPTH * 2);
    const int     H = p.shape.H, W = p.shape.W;
    pool_runs     run(p);
    ck_ring_place at;
    int           before = -1;
    for (; run.more(); run.next(p)) {
        const int      above = 2 * run.r - 1; /* row of x at the beginning of the stage */
        const char    *image = static_cast<const char *>(p.x) + (int64_t)run.n * H * pitch;
        const uint32_t stage = to + (uint32_t)(at.at * POOL_STAGE);
        const int      begin = run.starts_inside() ? 0 : 2 * SPAN, end = (2 * run.count + SIDE) * (2 * SPAN);
        ck_mbar_wait(bar + 8 * (uint32_t)(POOL_EMPTY + at.at), at.parity ^ 1);
#pragma unroll 4
        for (int i = begin + thread; i < end; i += LOADERS) {
            const int  row = i / (2 * SPAN), piece = i - row * (2 * SPAN), pixel = piece / 2;
            const bool inside = pixel < W && above + row < H;
            ck_copy16(stage + (uint32_t)((row * 2 + piece % 2) * PLANE_BYTES + pixel * 16),
                      inside ? image + (above + row) * pitch + piece * 16 : image, inside);
        }
        ck_copy_commit();
        if (before >= 0) {
            ck_copy_wait<1>();
            ck_fence_async();
            ck_mbar_arrive(bar + 8 * (uint32_t)(POOL_FULL + before));
        }
        before = at.at;
        at.next(X_STAGES);
    }
    ck_copy_wait<0>();
    ck_fence_async();
    if (before >= 0) ck_mbar_arrive(bar + 8 * (uint32_t)(POOL_FULL + before));
}

/* max(a, b); NaN if one of them is. */
__device__ __forceinline__ float larger(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}
__device__ __forceinline__ float minus_infinity() {
    return __int_as_float((int)0xff800000);
}

/* As conv_worker. Of a line a thread has the pixels 2c and 2c+1 for c = 4j + lane%4, j = 0 ... 13; pooled pixel c is
 * the maximum of these and of pixel 2c-1. */
template <typename T> struct pool_worker {
    const pool_params &p;
    const int          me, warp, lane, column; /* column: first channel of the block */
    const uint32_t     shared, bar;
    uint32_t           odd = 0, parity;
    uint32_t           w[TAPS][4];
    float              acc[2][56]; /* two lines; after `across` pooled pixel 4j + lane%4 in elements 4j and 4j + 2 */
    float              bias[2];

    __device__ pool_worker(const pool_params &params, uint32_t shared_, int me_)
        : p(params), me(me_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32),
          column((int)blockIdx.y * COLUMNS), shared(shared_), bar(shared_ + POOL_BAR_AT), parity(me_ == 0 ? 1 : 0) {
        const int       k  = column + warp * 16 + lane / 4;
        const uint32_t *of = static_cast<const uint32_t *>(p.w) + (int64_t)k * (TAPS * DEPTH / 2) + lane % 4;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
            for (int i = 0; i < 4; i++) w[tap][i] = of[i % 2 * (8 * TAPS * DEPTH / 2) + tap * (DEPTH / 2) + i / 2 * 4];
        bias[0] = p.bias[k];
        bias[1] = p.bias[k + 8];
    }
    __device__ __forceinline__ bool leads() const {
        return warp == 0 && lane == 0;
    }
    __device__ __forceinline__ uint32_t barrier_of(int first, int worker) const {
        return bar + 8 * (uint32_t)(first + worker);
    }
    __device__ __forceinline__ void signal(uint32_t barrier) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(barrier);
    }
    /* This thread's numbers of the line for `worker`. */
    __device__ __forceinline__ uint32_t hand(int worker) const {
        return shared + (uint32_t)(POOL_HAND_AT + worker * POOL_HAND_BYTES + (int)threadIdx.x % GROUP * 16);
    }

    /* Starts the products of two lines; `rows`: row of x of the first one. */
    __device__ __forceinline__ void multiply(uint32_t rows) {
        const matrices x(rows, PLANE_BYTES, 128);
        ck_wgmma_fence();
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
            for (int l = 0; l < 2; l++)
                ck_wgmma<T, LINE>::template left<0>(acc[l], w[tap],
                                                    x.at((tap / SIDE + l) * ROW_BYTES + tap % SIDE * 16), tap > 0);
        ck_wgmma_commit();
    }

    /* Horizontal maximum of a line that has `inside` pixels. */
    __device__ __forceinline__ void across(float (&line)[56], int inside) const {
        if (inside < LINE) {
#pragma unroll
            for (int i = 0; i < 56; i++)
                if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= inside) line[i] = minus_infinity();
        }
        const int from = lane / 4 * 4 + (lane + 3) % 4;
#pragma unroll
        for (int i = 52; i >= 0; i -= 4)
#pragma unroll
            for (int k = i; k < i + 4; k += 2) { /* the lane to the left of the first one has the group before */
                const float last = k >= 4 ? line[k - 3] : minus_infinity();
                const float left = __shfl_sync(0xffffffffu, lane % 4 == 3 ? last : line[k + 1], from);
                line[k]          = larger(larger(line[k], line[k + 1]), left);
            }
    }

    __device__ __forceinline__ void hand_over(const float (&line)[56], int worker) const {
        const uint32_t to = hand(worker);
#pragma unroll
        for (int i = 0; i < 56; i += 8)
            ck_put16(to + (uint32_t)(i / 8 * GROUP * 16),
                     make_uint4(__float_as_uint(line[i]), __float_as_uint(line[i + 2]), __float_as_uint(line[i + 4]),
                                __float_as_uint(line[i + 6])));
    }

    /* acc[0] = maximum of the three lines; `above`: the image has line 2r-1. */
    __device__ __forceinline__ void down(bool above) {
        const uint32_t from = hand(me);
#pragma unroll
        for (int i = 0; i < 56; i += 8) {
            uint4 v = make_uint4(0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u);
            if (above) v = ck_get16(from + (uint32_t)(i / 8 * GROUP * 16));
            const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int at = i + 2 * k;
                acc[0][at]   = larger(larger(acc[0][at], acc[1][at]), __uint_as_float(word[k]));
            }
        }
    }

    /* Stores a pooled row in the layout of TMA. A word has the pooled pixels c and c+4 of a channel, so row i of an 8x8
     * matrix is pixel i/2 + 4*(i%2). */
    __device__ __forceinline__ void store(int row) {
        const uint32_t to    = shared + (uint32_t)(me * 2 + (int)odd) * POOL_LINE_BYTES;
        const int      pixel = lane % 8 / 2 + 4 * (lane % 2);
        const uint32_t mine  = to + (uint32_t)(pixel * 128 + ((2 * warp + lane / 8 % 2) ^ pixel) * 16);
        odd ^= 1;
        if (leads()) ck_bulk_wait_read<1>();
        ck_barrier(1 + me, GROUP);
#pragma unroll
        for (int i = 0; i < 56; i += 8) {
            const uint32_t word[2] = {ck_pack_relu<T>(acc[0][i] + bias[0], acc[0][i + 4] + bias[0]),
                                      ck_pack_relu<T>(acc[0][i + 2] + bias[1], acc[0][i + 6] + bias[1])};
            ck_stmatrix_trans(mine + (uint32_t)(i / 8 * 1024), word);
        }
        ck_fence_async();
        ck_barrier(1 + me, GROUP);
        if (leads()) {
            store_line(&p.y, to, column, 0, row);
            ck_bulk_commit();
        }
    }

    /* r: pooled row of the image; row: of all images. Each row signals both barriers, whether it needs the line or
     * not, so that both workers count the same phases. */
    __device__ __forceinline__ void finish(int r, int row) {
        const int other = (me + 1) % WORKERS;
        across(acc[1], 2 * r + 1 < p.shape.P ? p.shape.Q : 0);
        ck_mbar_wait(barrier_of(POOL_TAKEN, other), parity);
        hand_over(acc[1], other);
        signal(barrier_of(POOL_HANDED, other));
        across(acc[0], p.shape.Q);
        ck_mbar_wait(barrier_of(POOL_HANDED, me), parity);
        down(r > 0);
        signal(barrier_of(POOL_TAKEN, me));
        parity ^= 1;
        store(row);
    }

    __device__ __forceinline__ void run() {
        mma_order     order(bar + 8 * POOL_ORDER, me);
        pool_runs     run(p);
        ck_ring_place stage;
        int           next = me; /* the worker's next row of the run */
        for (; run.more(); run.next(p)) {
            const uint32_t above = shared + (uint32_t)(POOL_X_AT + stage.at * POOL_STAGE);
            ck_mbar_wait(barrier_of(POOL_FULL, stage.at), stage.parity);
            if (next >= run.count) signal(barrier_of(POOL_EMPTY, stage.at));
            bool line_above = next == 0 && run.starts_inside(); /* first multiply line 2r-1 */
            while (next < run.count) {
                if (!line_above) order.wait();
                multiply(above + (uint32_t)(line_above ? 0 : (2 * next + 1) * ROW_BYTES));
                if (!line_above) order.pass();
                ck_wgmma_wait<0>();
                ck_wgmma_hold(acc[0]);
                ck_wgmma_hold(acc[1]);
                if (line_above) {
                    across(acc[0], p.shape.Q);
                    hand_over(acc[0], me);
                    line_above = false;
                    continue;
                }
                if (next + WORKERS >= run.count) signal(barrier_of(POOL_EMPTY, stage.at));
                finish(run.r + next, run.row + next);
                next += WORKERS;
            }
            next -= run.count;
            stage.next(X_STAGES);
        }
        if (leads()) ck_bulk_wait<0>();
    }
};

#endif

template <typename T> __global__ void __launch_bounds__(THREADS, 1) stem_pool(const __grid_constant__ pool_params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory), bar = shared + POOL_BAR_AT;
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_STAGES; i++) {
            ck_mbar_init(bar + 8 * (uint32_t)(POOL_FULL + i), LOADERS);
            ck_mbar_init(bar + 8 * (uint32_t)(POOL_EMPTY + i), 4 * WORKERS); /* warps */
        }
        for (int i = POOL_ORDER; i < POOL_BARS; i++) ck_mbar_init(bar + 8 * (uint32_t)i, 4);
        ck_mbar_init_fence();
    }
    __syncthreads();
    ck_begin_after_last();
    const int group = (int)threadIdx.x / GROUP;
    if (group == 0) {
        ck_registers_decrease<24>();
        if (threadIdx.x < LOADERS) load_pool_rows(p, (int)threadIdx.x, shared + POOL_X_AT, bar);
    } else {
        ck_registers_increase<240>();
        pool_worker<T> worker(p, shared, group - 1);
        worker.run();
    }
#else
    __trap();
#endif
}

} // namespace

#endif
