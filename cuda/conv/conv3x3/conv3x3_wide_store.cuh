/* cuda/conv/conv3x3/conv3x3_wide_store.cuh: the warpgroup of cuda/conv/conv3x3/conv3x3_wide_sm90a.cu that stores: it
 * reads the results of the multiplying warpgroups in shared memory, applies the ReLU mask, adds to the sums and stores,
 * while the next tile is multiplied. */
#ifndef CK_CONV3X3_WIDE_STORE_CUH
#define CK_CONV3X3_WIDE_STORE_CUH

#include "cuda/conv/conv3x3/conv3x3_wide.cuh"
#include "cuda/conv/conv3x3/eight_channels.cuh"

#if CK_HAS_SM90A

namespace {

/* A warp stores 32 of the 128 pixels of each worker, 64 channels at a time. Each thread stores 8 vectors of 8 channels:
 * one of every fourth pixel. bn_x is copied into shared memory before it is needed, and a thread reads only what it
 * copied. Each vector is one cp.async group, because a thread can wait for one group. Loads into registers were slower:
 * the warp then waited for all later loads, too. */
template <typename T, int KIND> struct storer {
    enum { PIXELS = ROWS / WARPS, VECTORS = PIXELS / 4, UNROLLED = 4 };
    static constexpr bool SUMS = KIND != TRANSPOSED;

    const params  &p;
    const plan    &plan;
    const int      warp, lane;
    const uint32_t shared, bars;
    uint32_t       parity = 0;
    int            column = -1; /* first of the tile's */
    int            slot   = 0;  /* of the next vector of bn_x */

    __device__ storer(const params &params_, uint32_t shared_)
        : p(params_), plan(params_.plan), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32), shared(shared_),
          bars(shared_ + (uint32_t)params_.plan.bar_at) {}

    struct part {
        const pass &of;
        int         tile, worker, half;
    };
    /* The row in the worker's results. */
    __device__ __forceinline__ int row_of(int vector) const { return warp * PIXELS + vector * 4 + lane / 8; }
    __device__ __forceinline__ int pixel_of(const part &at, int vector) const {
        return at.tile * TILE + at.worker * ROWS + row_of(vector);
    }
    /* Index of the vector's first element in y. */
    __device__ __forceinline__ int64_t index_of(const part &at, int pixel) const {
        const int64_t k = column + at.half * CHUNK + lane % 8 * 8;
        if (p.stride == 1) return (int64_t)pixel * p.K + k;
        const place of(p, pixel);
        const int   row = of.h * p.stride + at.of.row;
        return (int64_t)((of.n * p.H + row) * p.W + of.w * p.stride + at.of.column) * p.K + k;
    }
    __device__ __forceinline__ uint32_t slot_at(int of) const {
        return shared + (uint32_t)(plan.ahead_at + (of * GROUP + warp * 32 + lane) * 16);
    }
    /* A vector for which there is nothing to copy is a group, too. */
    __device__ __forceinline__ void copy_bn_x(const part &at, int vector, int to) const {
        const int  pixel = pixel_of(at, vector);
        const bool real  = pixel < p.pixels;
        if (at.tile >= 0)
            ck_copy16(slot_at(to), static_cast<const T *>(p.bn_x) + (real ? index_of(at, pixel) : 0), real);
        ck_copy_commit();
    }
    __device__ __forceinline__ uint4 next_bn_x() const {
        if (plan.ahead == AHEAD_MAX)
            ck_copy_wait<AHEAD_MAX - 1>();
        else
            ck_copy_wait<AHEAD_MIN - 1>();
        return ck_get16(slot_at(slot));
    }
    /* Starts the copies for the first vectors of a tile. */
    __device__ __forceinline__ void begin_bn_x(const part &at) {
        slot = 0;
        for (int i = 0; i < plan.ahead; i++) copy_bn_x(at, i, i);
    }
    /* next: the part behind this one; its tile is -1 when there is none. */
    __device__ __forceinline__ void finish(const part &at, const part &next) {
        const uint32_t from = shared + (uint32_t)(plan.y_at + (at.worker * HALVES + at.half) * HALF_BYTES),
                       bn   = shared + (uint32_t)(plan.bn_at + (at.half * CHUNK + lane % 8 * 8) * 4);
        scale_bias of;
        eight_sums sums;
        if (KIND == GRADIENT) get8(of.scale, bn), get8(of.bias, bn + 4 * COLUMNS);
#pragma unroll UNROLLED
        for (int i = 0; i < VECTORS; i++) {
            const int  row = row_of(i), pixel = pixel_of(at, i);
            const bool real = pixel < p.pixels;
            uint4      word = ck_get16(from + (uint32_t)(row * ROW + ((lane % 8 ^ row % 8) << 4)));
            if (KIND == GRADIENT) {
                const uint4 bn_x = next_bn_x();
                if (real) word = mask<T>(word, bn_x, of, sums);
                const int  later = i + plan.ahead;
                const bool here  = later < VECTORS;
                copy_bn_x(
                    {at.of, here ? at.tile : next.tile, here ? at.worker : next.worker, here ? at.half : next.half},
                    later % VECTORS, slot);
                slot = slot + 1 == plan.ahead ? 0 : slot + 1;
            }
            if (KIND == FORWARD && p.partial && real) add_squares<T>(word, sums);
            if (real) ck_store_whole(static_cast<T *>(p.y) + index_of(at, pixel), word);
        }
        if (KIND == GRADIENT) normalize(sums, bn + 8 * COLUMNS, bn + 12 * COLUMNS);
        if (SUMS && p.partial) add_sums(sums, at.half);
    }

    /* ---- sums: those of each warp are in shared memory, [2][128] ---- */

    __device__ __forceinline__ uint32_t sums_at(int of_warp) const {
        return shared + (uint32_t)(plan.sums_at + of_warp * 2 * COLUMNS * 4);
    }
    /* Four lanes have the same channels: each of them gets one of the two sums of four channels. */
    __device__ __forceinline__ void add_sums(const eight_sums &sums, int half) const {
        const bool second = lane & 8, upper = lane & 16;
        float      pair[8], sum[4];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float keep = second ? sums.second[i] : sums.first[i], send = second ? sums.first[i] : sums.second[i];
            pair[i] = keep + __shfl_xor_sync(0xffffffffu, send, 8);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float keep = upper ? pair[4 + i] : pair[i], send = upper ? pair[i] : pair[4 + i];
            sum[i] = keep + __shfl_xor_sync(0xffffffffu, send, 16);
        }
        const int channel = half * CHUNK + lane % 8 * 8 + (upper ? 4 : 0);
        add_four(sums_at(warp) + (uint32_t)(((second ? COLUMNS : 0) + channel) * 4), sum);
    }
    __device__ __forceinline__ void clear_sums() const {
#pragma unroll
        for (int i = 0; i < 2; i++) ck_put16(sums_at(warp) + (uint32_t)((i * 32 + lane) * 16), make_uint4(0, 0, 0, 0));
        __syncwarp();
    }
    /* The sums over the warps, to a row of the workspace: a thread has both sums of a channel. */
    __device__ __forceinline__ void put_sums(int row) const {
        const int thread = warp * 32 + lane;
        ck_barrier(STORED, GROUP);
#pragma unroll
        for (int of = 0; of < 2; of++) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; i++)
                sum += __uint_as_float(ck_get4(sums_at(i) + (uint32_t)((of * COLUMNS + thread) * 4)));
            p.partial[(int64_t)(row * 2 + of) * p.K + column + thread] = sum;
        }
        ck_barrier(STORED, GROUP);
    }

    /* Begins other columns: scale and bias of the BN in front, rstd and -mean*rstd. */
    __device__ __forceinline__ void begin(int new_column) {
        if (new_column == column) return;
        const int thread = warp * 32 + lane, k = new_column + thread;
        column = new_column;
        if (SUMS && p.partial) clear_sums();
        if (KIND != GRADIENT) return;
        const uint32_t to   = shared + (uint32_t)(plan.bn_at + thread * 4);
        const float    mean = p.mean_rstd[k], rstd = p.mean_rstd[p.K + k], scale = p.gamma[k] * rstd;
        ck_barrier(STORED, GROUP);
        ck_put4(to, scale);
        ck_put4(to + 4 * COLUMNS, p.beta[k] - mean * scale);
        ck_put4(to + 8 * COLUMNS, rstd);
        ck_put4(to + 12 * COLUMNS, -mean * rstd);
        ck_barrier(STORED, GROUP);
    }

    __device__ __forceinline__ void store_tile(int tile, const pass &pass) {
        if (KIND == GRADIENT) begin_bn_x({pass, tile, 0, 0});
#pragma unroll 1
        for (int j = 0; j < WORKERS * HALVES; j++) {
            const int  worker = j / HALVES, half = j % HALVES;
            const bool last = j + 1 == WORKERS * HALVES;
            if (half == 0) ck_mbar_wait(bars + 8 * (uint32_t)(BAR_Y + worker), parity);
            finish({pass, tile, worker, half}, {pass, last ? -1 : tile, (j + 1) / HALVES, (j + 1) % HALVES});
            if (half < HALVES - 1) continue;
            __syncwarp();
            if (lane == 0) ck_mbar_arrive(bars + 8 * (uint32_t)(BAR_Y_EMPTY + worker));
        }
        parity ^= 1;
    }

    __device__ __forceinline__ void run() {
        for (item at(plan); at.exists(plan); at.next()) {
            const int tile = at.tile(plan);
            begin(at.column(plan));
            for (int i = 0; i < plan.passes; i++) store_tile(tile, p.pass[i]);
            if (!SUMS || !p.partial) continue;
            if (plan.flat) {
                put_sums(tile);
                clear_sums();
            }
        }
        if (SUMS && p.partial && !plan.flat) put_sums((int)blockIdx.x / plan.columns);
    }
};
static_assert(GROUP == COLUMNS, "a thread for each channel");

} // namespace

#endif

#endif
