/* cuda/conv/stem/stem_conv.cuh: forward of the stem's 7x7 convolution: the kernel of cuda/conv/stem/stem_sm90a.cu. */
#ifndef CK_STEM_CONV_CUH
#define CK_STEM_CONV_CUH

#include "cuda/conv/stem/stem.cuh"

namespace {

/* Operations on y before it is stored. */
enum epilogue { JUST_Y, SUMS, BIAS };

struct conv_params {
    CUtensorMap  y;
    struct shape shape;
    const void  *x, *w;
    const float *bias;
    float       *partial; /* [blocks * WORKERS][2][K], with SUMS */
    bool         relu;
};

/* Shared memory: two lines of y of each worker, stages of x, barriers. */
enum {
    CONV_RUN    = 8,
    CONV_STAGE  = (CONV_RUN + SIDE - 1) * ROW_BYTES,
    CONV_X_AT   = 2 * WORKERS * LINE_BYTES,
    CONV_BAR_AT = CONV_X_AT + X_STAGES * CONV_STAGE,
    CONV_FULL   = 0,
    CONV_EMPTY  = X_STAGES,
    CONV_ORDER  = 2 * X_STAGES,
    CONV_BARS   = CONV_ORDER + WORKERS,
    CONV_BYTES  = CONV_BAR_AT + 8 * CONV_BARS
};
static_assert((int)CONV_BYTES <= (int)SHARED_LIMIT && CONV_BAR_AT % 8 == 0, "fits");

#if CK_HAS_SM90A

/* A worker holds the filters of 64 channels in registers. A line is their product with x, channels down, pixels to the
 * right. A thread has channels lane/4 and lane/4 + 8 of its warp's 16. */
template <typename T, int EPILOGUE> struct conv_worker {
    const conv_params &p;
    const int          me, warp, lane, column; /* column: first channel of the block */
    const uint32_t     shared, bar;
    uint32_t           out; /* this worker's lines of y; index of the next one */
    uint32_t           odd = 0;
    uint32_t           w[TAPS][4];
    float              acc[56];
    float              bias[2], least;
    float              sum[4]; /* of y for both channels, of y^2 for both channels */

    __device__ conv_worker(const conv_params &params, uint32_t shared_, int me_)
        : p(params), me(me_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32),
          column((int)blockIdx.y * COLUMNS), shared(shared_), bar(shared_ + CONV_BAR_AT),
          out(shared_ + (uint32_t)(me_ * 2 * LINE_BYTES)) {
        const int       k  = channel();
        const uint32_t *of = static_cast<const uint32_t *>(p.w) + (int64_t)k * (TAPS * DEPTH / 2) + lane % 4;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
            for (int i = 0; i < 4; i++) w[tap][i] = of[i % 2 * (8 * TAPS * DEPTH / 2) + tap * (DEPTH / 2) + i / 2 * 4];
        bias[0] = p.bias ? p.bias[k] : 0.0f;
        bias[1] = p.bias ? p.bias[k + 8] : 0.0f;
        least   = p.relu ? 0.0f : __int_as_float((int)0xff800000); /* minus infinity */
        sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
    }
    __device__ __forceinline__ int channel() const {
        return column + warp * 16 + lane / 4;
    }
    __device__ __forceinline__ bool leads() const {
        return warp == 0 && lane == 0;
    }

    __device__ __forceinline__ void multiply(uint32_t rows, mma_order &order) {
        const matrices x(rows, PLANE_BYTES, 128);
        order.wait();
        ck_wgmma_fence();
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
            ck_wgmma<T, LINE>::template left<0>(acc, w[tap], x.at(tap / SIDE * ROW_BYTES + tap % SIDE * 16), tap > 0);
        ck_wgmma_commit();
        order.pass();
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
    }

    /* `inside`: number of pixels of the line that are in y. */
    __device__ __forceinline__ void add_sums(int inside) {
        if (inside < LINE) {
#pragma unroll
            for (int i = 0; i < 56; i++)
                if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= inside) acc[i] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 56; i++) {
            sum[i / 2 % 2] += acc[i];
            sum[2 + i / 2 % 2] = fmaf(acc[i], acc[i], sum[2 + i / 2 % 2]);
        }
    }

    __device__ __forceinline__ void finish(int q, int row) {
        const uint32_t to = out + odd * LINE_BYTES, mine = to + lane_row(warp, lane);
        odd ^= 1;
        if (EPILOGUE == SUMS) add_sums(p.shape.Q - q);
        if (leads()) ck_bulk_wait_read<1>();
        ck_barrier(1 + me, GROUP);
#pragma unroll
        for (int i = 0; i < 56; i += 8) {
            uint32_t word[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float low = acc[i + 2 * j], high = acc[i + 2 * j + 1];
                if (EPILOGUE == BIAS) {
                    low  = ck_at_least(low + bias[j % 2], least);
                    high = ck_at_least(high + bias[j % 2], least);
                }
                word[j] = ck_pack_word<T>(low, high);
            }
            ck_stmatrix_trans(mine + (uint32_t)(i / 8 * 2048), word);
        }
        ck_fence_async();
        ck_barrier(1 + me, GROUP);
        if (leads()) {
            store_line(&p.y, to, column, q, row);
            ck_bulk_commit();
        }
    }

    __device__ __forceinline__ void release(int stage) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bar + 8 * (uint32_t)(CONV_EMPTY + stage));
    }

    __device__ __forceinline__ void write_sums() const {
        float *to = p.partial + ((int64_t)blockIdx.x * WORKERS + me) * 2 * p.shape.K + channel();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float s = sum[i];
            s += __shfl_xor_sync(0xffffffffu, s, 1);
            s += __shfl_xor_sync(0xffffffffu, s, 2);
            if (lane % 4 == 0) to[i / 2 * p.shape.K + i % 2 * 8] = s;
        }
    }

    __device__ __forceinline__ void run() {
        mma_order      order(bar + 8 * CONV_ORDER, me);
        runs<CONV_RUN> run(p.shape);
        ck_ring_place  stage;
        int            next = me; /* the worker's next line of the run */
        for (; run.more(); run.next(p.shape)) {
            const uint32_t rows = shared + (uint32_t)(CONV_X_AT + stage.at * CONV_STAGE);
            ck_mbar_wait(bar + 8 * (uint32_t)(CONV_FULL + stage.at), stage.parity);
            if (next >= run.count) release(stage.at);
            for (; next < run.count; next += WORKERS) {
                multiply(rows + (uint32_t)(next * ROW_BYTES), order);
                if (next + WORKERS >= run.count) release(stage.at);
                finish(run.q, run.n * p.shape.P + run.p + next);
            }
            next -= run.count;
            stage.next(X_STAGES);
        }
        if (EPILOGUE == SUMS) write_sums();
        if (leads()) ck_bulk_wait<0>();
    }
};

#endif

template <typename T, int EPILOGUE>
__global__ void __launch_bounds__(THREADS, 1) stem_conv(const __grid_constant__ conv_params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory), bar = shared + CONV_BAR_AT;
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_STAGES; i++) {
            ck_mbar_init(bar + 8 * (uint32_t)(CONV_FULL + i), LOADERS);
            ck_mbar_init(bar + 8 * (uint32_t)(CONV_EMPTY + i), 4 * WORKERS); /* warps */
        }
        for (int i = 0; i < WORKERS; i++) ck_mbar_init(bar + 8 * (uint32_t)(CONV_ORDER + i), 4);
        ck_mbar_init_fence();
    }
    __syncthreads();
    const int group = (int)threadIdx.x / GROUP;
    if (group == 0) {
        ck_registers_decrease<56>();
        if (threadIdx.x < LOADERS)
            load_rows<CONV_RUN>(p.shape, p.x, (int)threadIdx.x, shared + CONV_X_AT, bar + 8 * CONV_FULL,
                                bar + 8 * CONV_EMPTY);
    } else {
        ck_registers_increase<224>();
        conv_worker<T, EPILOGUE> worker(p, shared, group - 1);
        worker.run();
    }
#else
    __trap();
#endif
}

} // namespace

#endif
