/* cuda/conv/stem/stem_grad.cuh: filter gradient of the stem: the kernel of cuda/conv/stem/stem_sm90a.cu. */
#ifndef CK_STEM_GRAD_CUH
#define CK_STEM_GRAD_CUH

#include "cuda/conv/stem/stem.cuh"

namespace {

struct grad_params {
    CUtensorMap  g;
    struct shape shape;
    const void  *x;
    float       *partial; /* [blocks][K / COLUMNS][GRAD_SUMS][GROUP] */
};

/* Shared memory: lines of g, stages of x, barriers. */
enum {
    GRAD_RUN     = 4,
    GRAD_STAGE   = (GRAD_RUN + SIDE - 1) * ROW_BYTES,
    GRAD_LINES   = 10,
    GRAD_X_AT    = GRAD_LINES * LINE_BYTES,
    GRAD_BAR_AT  = GRAD_X_AT + X_STAGES * GRAD_STAGE,
    GRAD_FULL    = 0,
    GRAD_EMPTY   = X_STAGES,
    GRAD_ORDER   = 2 * X_STAGES,
    GRAD_FULL_G  = GRAD_ORDER + WORKERS,
    GRAD_EMPTY_G = GRAD_FULL_G + GRAD_LINES,
    GRAD_BARS    = GRAD_EMPTY_G + GRAD_LINES,
    GRAD_BYTES   = GRAD_BAR_AT + 8 * GRAD_BARS,
    GRAD_TILE    = 32,
    GRAD_SUMS    = SIDE * GRAD_TILE, /* sums of a thread */
    GRAD_STEPS   = LINE / 16
};
static_assert((int)GRAD_BYTES <= (int)SHARED_LIMIT && GRAD_BAR_AT % 8 == 0, "fits");
static_assert(GRAD_SUMS * GROUP * (int)sizeof(float) <= GRAD_X_AT, "one worker hands its sums to the other");

/* Index in a block's dw[64][4][4][16] of sum `i` of thread `thread`. */
__device__ __forceinline__ int grad_element(int i, int thread) {
    const int lane = thread % 32, s = i / GRAD_TILE, j = i % GRAD_TILE;
    const int k = thread / 32 * 16 + lane / 4 + j / 2 % 2 * 8, r = j / 8, c = j / 4 % 2 * 8 + lane % 4 * 2 + j % 2;
    return ((k * SIDE + r) * SIDE + s) * DEPTH + c;
}

#if CK_HAS_SM90A

/* One thread loads the lines of g. */
__device__ __forceinline__ void load_lines(const grad_params &p, uint32_t shared, uint32_t bar) {
    const int      column = (int)blockIdx.y * COLUMNS;
    runs<GRAD_RUN> run(p.shape);
    ck_ring_place  at;
    for (; run.more(); run.next(p.shape))
        for (int i = 0; i < run.count; i++) {
            const uint32_t full = bar + 8 * (uint32_t)(GRAD_FULL_G + at.at),
                           to   = shared + (uint32_t)(at.at * LINE_BYTES);
            const int row       = run.n * p.shape.P + run.p + i;
            ck_mbar_wait(full + 8 * (GRAD_EMPTY_G - GRAD_FULL_G), at.parity ^ 1);
            ck_mbar_expect(full, LINE_BYTES);
            load_line(to, &p.g, full, column, run.q, row);
            at.next(GRAD_LINES);
        }
}

/* A worker computes sums of 64 channels of dy (down) with all filter positions of x, for its lines. dy goes through
 * registers. One product reads the rows and channels of x for one column of filter positions. A thread has channels
 * lane/4 and lane/4 + 8 of its warp's 16. */
template <typename T> struct grad_worker {
    const grad_params &p;
    const int          me, warp, lane;
    const uint32_t     shared, bar;
    float              acc[SIDE][GRAD_TILE];
    uint32_t           dy[GRAD_STEPS][4];
    ck_ring_place      line;

    __device__ grad_worker(const grad_params &params, uint32_t shared_, int me_)
        : p(params), me(me_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32), shared(shared_),
          bar(shared_ + GRAD_BAR_AT) {
#pragma unroll
        for (int i = 0; i < GRAD_SUMS; i++) acc[i / GRAD_TILE][i % GRAD_TILE] = 0.0f;
        if (me == 1) line.next(GRAD_LINES);
    }
    __device__ __forceinline__ void arrive(int at) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bar + 8 * (uint32_t)at);
    }

    /* The next line of dy; its pixels outside the image are 0. */
    __device__ __forceinline__ void prepare() {
        const uint32_t from = shared + (uint32_t)(line.at * LINE_BYTES) + lane_row(warp, lane);
        ck_mbar_wait(bar + 8 * (uint32_t)(GRAD_FULL_G + line.at), line.parity);
#pragma unroll
        for (int i = 0; i < GRAD_STEPS; i++) ck_ldmatrix_trans(dy[i], from + (uint32_t)(i * 2048));
    }
    __device__ __forceinline__ void multiply(uint32_t rows, mma_order &order) {
        const matrices x(rows, 128, PLANE_BYTES);
        order.wait();
        ck_wgmma_fence();
#pragma unroll
        for (int i = 0; i < GRAD_STEPS; i++)
#pragma unroll
            for (int s = 0; s < SIDE; s++) ck_wgmma<T, 64>::template left<1>(acc[s], dy[i], x.at((i * 16 + s) * 16), 1);
        ck_wgmma_commit();
        /* Not earlier: an arrival does not wait for loads from shared memory in flight; the products have waited for
         * them. */
        arrive(GRAD_EMPTY_G + line.at);
        for (int i = 0; i < WORKERS; i++) line.next(GRAD_LINES);
        order.pass();
        ck_wgmma_wait<0>();
#pragma unroll
        for (int s = 0; s < SIDE; s++) ck_wgmma_hold(acc[s]);
    }

    /* Adds both workers' sums and stores them in the workspace. */
    __device__ __forceinline__ void write() {
        const int thread = (int)threadIdx.x % GROUP;
        float    *to     = p.partial + ((int64_t)blockIdx.x * gridDim.y + blockIdx.y) * (GRAD_SUMS * GROUP) + thread;
        ck_barrier(1, WORKERS * GROUP); /* all lines have been read */
        if (me == 1)
#pragma unroll
            for (int i = 0; i < GRAD_SUMS; i++)
                ck_put4(shared + (uint32_t)(i * GROUP + thread) * 4, acc[i / GRAD_TILE][i % GRAD_TILE]);
        ck_barrier(1, WORKERS * GROUP);
        if (me == 0)
#pragma unroll
            for (int i = 0; i < GRAD_SUMS; i++) {
                const float other = __uint_as_float(ck_get4(shared + (uint32_t)(i * GROUP + thread) * 4));
                to[i * GROUP]     = acc[i / GRAD_TILE][i % GRAD_TILE] + other;
            }
    }

    __device__ __forceinline__ void run() {
        mma_order      order(bar + 8 * GRAD_ORDER, me);
        runs<GRAD_RUN> run(p.shape);
        ck_ring_place  stage;
        int            next = me; /* the worker's next line of the run */
        for (; run.more(); run.next(p.shape)) {
            const uint32_t rows = shared + (uint32_t)(GRAD_X_AT + stage.at * GRAD_STAGE);
            ck_mbar_wait(bar + 8 * (uint32_t)(GRAD_FULL + stage.at), stage.parity);
            for (; next < run.count; next += WORKERS) {
                prepare();
                multiply(rows + (uint32_t)(next * ROW_BYTES), order);
            }
            arrive(GRAD_EMPTY + stage.at);
            next -= run.count;
            stage.next(X_STAGES);
        }
        write();
    }
};

#endif

template <typename T> __global__ void __launch_bounds__(THREADS, 1) stem_grad(const __grid_constant__ grad_params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory), bar = shared + GRAD_BAR_AT;
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_STAGES; i++) {
            ck_mbar_init(bar + 8 * (uint32_t)(GRAD_FULL + i), LOADERS);
            ck_mbar_init(bar + 8 * (uint32_t)(GRAD_EMPTY + i), 4 * WORKERS); /* warps */
        }
        for (int i = 0; i < WORKERS; i++) ck_mbar_init(bar + 8 * (uint32_t)(GRAD_ORDER + i), 4);
        for (int i = 0; i < GRAD_LINES; i++) {
            ck_mbar_init(bar + 8 * (uint32_t)(GRAD_FULL_G + i), 1);
            ck_mbar_init(bar + 8 * (uint32_t)(GRAD_EMPTY_G + i), 4);
        }
        ck_mbar_init_fence();
    }
    __syncthreads();
    const int group = (int)threadIdx.x / GROUP;
    if (group == 0) {
        ck_registers_decrease<56>();
        if (threadIdx.x < LOADERS)
            load_rows<GRAD_RUN>(p.shape, p.x, (int)threadIdx.x, shared + GRAD_X_AT, bar + 8 * GRAD_FULL,
                                bar + 8 * GRAD_EMPTY);
        else if (threadIdx.x == LOADERS)
            load_lines(p, shared, bar);
    } else {
        ck_registers_increase<224>();
        grad_worker<T> worker(p, shared, group - 1);
        worker.run();
    }
#else
    __trap();
#endif
}

} // namespace

#endif
