/* cuda/conv/conv3x3/conv3x3_work.cuh: a multiplying warpgroup ("worker") of cuda/conv/conv3x3/conv3x3_sm90a.cu:
 * filter, products, results and sums. */
#ifndef CK_CONV3X3_WORK_CUH
#define CK_CONV3X3_WORK_CUH

#include "cuda/conv/conv3x3/conv3x3.cuh"
#include "cuda/conv/conv3x3/eight_channels.cuh"

#if CK_HAS_SM90A

namespace {

/* An 8x8 matrix of 16-bit elements, of which each lane has two neighbours in a row, transposed. */
__device__ __forceinline__ uint32_t transposed(uint32_t word) {
    uint32_t to;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(word));
    return to;
}

template <typename T, int KIND> struct worker {
    const params &p;
    const int     me, thread, warp, lane;
    uint32_t      x_at, y_at, bars;
    uint32_t      filter[TAPS][STEPS][4], bn_parity = 0;
    float         bias[2], acc[COLUMNS / 2];
    ck_ring_place at;

    __device__ worker(const params &params_, uint32_t shared, int me_)
        : p(params_), me(me_), thread((int)threadIdx.x % GROUP), warp(thread / 32), lane(thread % 32) {
        x_at = shared + (uint32_t)(me * COLUMNS * ROW);
        y_at = shared + (uint32_t)(p.plan.y_at + me * Y_BYTES);
        bars = shared + (uint32_t)p.plan.bar_at;
    }

    /* ---- the filter: fragments of the left operand; a thread has two channels of y ---- */

    __device__ __forceinline__ void load_filter() {
        if (KIND == FORWARD)
            load_rows();
        else
            load_columns();
#pragma unroll
        for (int i = 0; i < 2; i++)
            bias[i] = KIND == FORWARD && p.bias ? __ldg(p.bias + warp * 16 + lane / 4 + 8 * i) : 0.0f;
    }
    __device__ __forceinline__ void load_rows() {
        const uint32_t *from =
            static_cast<const uint32_t *>(p.w) + (warp * 16 + lane / 4) * (TAPS * CHANNELS / 2) + lane % 4;
#pragma unroll
        for (int t = 0; t < TAPS; t++)
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    filter[t][s][i] =
                        __ldg(from + i % 2 * 8 * (TAPS * CHANNELS / 2) + t * (CHANNELS / 2) + s * 8 + i / 2 * 4);
    }
    /* The gradient's filter has the last position first, and its rows are columns of w. */
    __device__ __forceinline__ void load_columns() {
        const uint32_t *from =
            static_cast<const uint32_t *>(p.w) + lane / 4 * (TAPS * CHANNELS / 2) + warp * 8 + lane % 4;
#pragma unroll
        for (int t = 0; t < TAPS; t++)
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    filter[t][s][i] = transposed(__ldg(from + (s * 16 + i / 2 * 8) * (TAPS * CHANNELS / 2) +
                                                       (TAPS - 1 - t) * (CHANNELS / 2) + i % 2 * 4));
    }

    /* ---- products ---- */

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

    /* ---- results: through the tile of y in shared memory, in rows of a position's 64 channels ---- */

    /* Four 8x8 matrices of the tile: positions 8*j to 8*j + 15, the warp's channels. */
    __device__ __forceinline__ uint32_t matrices_at(int j) const {
        const int row = lane % 8, chunk = warp * 2 + lane / 8 % 2;
        return y_at + (uint32_t)((8 * (j + lane / 16) + row) * ROW + (chunk ^ row) * 16);
    }
    /* Where the thread's eight channels of a row of the tile are. The tiles of bn_x follow those of y. */
    __device__ __forceinline__ uint32_t vector_at(int row) const {
        return (uint32_t)(row * ROW + (thread % 8 ^ row % 8) * 16);
    }
    template <bool RELU> __device__ __forceinline__ void put() const {
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j += 2) {
            uint32_t word[4], add[4];
            if (KIND != FORWARD && p.add) ck_ldmatrix_trans(add, matrices_at(j));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *v = acc + (j + i / 2) * 4 + i % 2 * 2;
                float2       b = make_float2(bias[i % 2], bias[i % 2]);
                if (KIND != FORWARD && p.add) b = ck_pair<T>(add[i]);
                word[i] = RELU ? ck_pack_relu<T>(v[0] + b.x, v[1] + b.y) : ck_pack_pair<T>(v[0] + b.x, v[1] + b.y);
            }
            ck_stmatrix_trans(matrices_at(j), word);
        }
    }
    /* Starts the copies of add into the tile of y, and of zeros where there is no pixel. */
    __device__ __forceinline__ void copy_add(int position) const {
        place to(p, position + thread / 8);
#pragma unroll 1
        for (int row = thread / 8; row < COLUMNS; row += GROUP / 8) {
            const int  pixel = to.pixel(p);
            const bool real  = pixel >= 0 && position + row < p.positions;
            ck_copy16(y_at + vector_at(row),
                      static_cast<const T *>(p.add) + (int64_t)(real ? pixel : 0) * CHANNELS + thread % 8 * 8, real);
            to.advance(p, GROUP / 8);
        }
        ck_copy_commit();
    }

    /* Stores the tile of y; 8 threads store a pixel. SUMS: also adds it to the sums. */
    template <bool SUMS> __device__ __forceinline__ void store(int position) {
        scale_bias     of;
        eight_sums     sums;
        const uint32_t bn_at = bars - (uint32_t)(p.plan.bar_at - p.plan.bn_at) + (uint32_t)(thread % 8 * 32);
        if (KIND == GRADIENT) {
            get8(of.scale, bn_at), get8(of.bias, bn_at + 4 * CHANNELS);
            ck_mbar_wait(bars + 8 * (uint32_t)(BAR_BN + me), bn_parity);
            bn_parity ^= 1;
        }
        place to(p, position + thread / 8);
#pragma unroll(1)
        for (int row = thread / 8; row < COLUMNS; row += GROUP / 8) {
            const int pixel = to.pixel(p);
            uint4     word  = ck_get16(y_at + vector_at(row)), bn;
            if (KIND == GRADIENT) bn = ck_get16(y_at + WORKERS * Y_BYTES + vector_at(row));
            if (pixel >= 0 && position + row < p.positions) {
                if (KIND == GRADIENT) word = mask<T>(word, bn, of, sums);
                if (KIND == FORWARD && SUMS) add_squares<T>(word, sums);
                ck_store_whole(static_cast<uint8_t *>(p.y) + (int64_t)pixel * ROW + thread % 8 * 16, word);
            }
            to.advance(p, GROUP / 8);
        }
        if (KIND == GRADIENT) {
            __syncwarp();
            if (lane == 0) ck_mbar_arrive(bars + 8 * (uint32_t)(BAR_BN_EMPTY + me));
            normalize(sums, bn_at + 8 * CHANNELS, bn_at + 12 * CHANNELS);
        }
        if (SUMS) add_sums(sums);
    }

    /* ---- sums: those of each thread are in shared memory ---- */

    __device__ __forceinline__ uint32_t sums_at() const { /* of the thread */
        return bars - (uint32_t)(p.plan.bar_at - p.plan.sums_at) + (uint32_t)((me * GROUP + thread) * 16);
    }
    __device__ __forceinline__ void add_sums(const eight_sums &sums) const {
#pragma unroll
        for (int i = 0; i < 4; i++)
            add_four(sums_at() + (uint32_t)(i * SUMS_VECTOR), (i < 2 ? sums.first : sums.second) + i % 2 * 4);
    }
    __device__ __forceinline__ void clear_sums() const {
#pragma unroll
        for (int i = 0; i < 4; i++) ck_put16(sums_at() + (uint32_t)(i * SUMS_VECTOR), make_uint4(0, 0, 0, 0));
    }
    /* The worker's sums over its threads, to the workspace: a thread has one sum of one channel. */
    __device__ __forceinline__ void put_sums() const {
        const int      channel = thread % CHANNELS, i = thread / CHANNELS * 2 + channel % 8 / 4;
        const uint32_t first = sums_at() - (uint32_t)(thread * 16);
        float          sum   = 0.0f;
        ck_barrier(STAGED + me, GROUP);
#pragma unroll
        for (int r = 0; r < GROUP / 8; r++)
            sum += __uint_as_float(
                ck_get4(first + (uint32_t)(i * SUMS_VECTOR + (r * 8 + channel / 8) * 16 + channel % 4 * 4)));
        p.partial[((int64_t)blockIdx.x * WORKERS + me) * 2 * CHANNELS + thread] = sum;
    }

    __device__ __forceinline__ void run() {
        if (p.partial) clear_sums();
        if (me == 1) ck_barrier_arrive(TURN, TILE_THREADS);
        for (int tile = (int)blockIdx.x; tile < p.plan.tiles; tile += (int)gridDim.x) {
            const int position = tile * TILE + me * COLUMNS;
            if (KIND != FORWARD && p.add) {
                ck_barrier(STAGED + me, GROUP); /* the last tile of y has been read */
                copy_add(position);
            }
            multiply(tile + (int)gridDim.x >= p.plan.tiles);
            if (KIND != FORWARD && p.add) ck_copy_wait_all();
            ck_barrier(STAGED + me, GROUP); /* the last tile of y has been read, or add is complete */
            if (KIND == FORWARD && p.relu)
                put<true>();
            else
                put<false>();
            ck_barrier(STAGED + me, GROUP);
            if (KIND != TRANSPOSED && p.partial)
                store<true>(position);
            else
                store<false>(position);
        }
        if (KIND != TRANSPOSED && p.partial) put_sums();
    }
};

} // namespace

#endif

#endif
