/* cuda/conv/conv3x3/conv3x3_wide_work.cuh: a multiplying warpgroup ("worker") of
 * cuda/conv/conv3x3/conv3x3_wide_sm90a.cu: products, results and sums. */
#ifndef CK_CONV3X3_WIDE_WORK_CUH
#define CK_CONV3X3_WIDE_WORK_CUH

#include "cuda/conv/conv3x3/conv3x3_wide.cuh"
#include "cuda/conv/conv3x3/eight_channels.cuh"

#if CK_HAS_SM90A

namespace {

template <typename T, int KIND> struct worker {
    const params  &p;
    const plan    &plan;
    const int      me, warp, lane;
    const uint32_t shared, bars;
    ck_ring_place  x, w;
    float          acc[HEIGHT][COLUMNS / 2];
    uint32_t       neighbours[HEIGHT]; /* of the lane's rows: which of the nine are in the image */

    __device__ worker(const params &params_, uint32_t shared_, int me_)
        : p(params_), plan(params_.plan), me(me_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32),
          shared(shared_), bars(shared_ + (uint32_t)params_.plan.bar_at) {}

    /* This warp has finished reading. */
    __device__ __forceinline__ void release(uint32_t bar) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bars + 8 * bar);
    }
    /* First row of the warp in the tile, for product i. */
    __device__ __forceinline__ int first_row(int i) const { return me * ROWS + i * 64 + warp * 16; }

    /* ---- products ---- */

    /* x is the left operand, from registers: so each row of it may be any row of shared memory, and a neighbour that
     * is not in the image is a row of zeros. */
    struct fragments {
        uint32_t a[HEIGHT][STEPS][4];
    };
    __device__ __forceinline__ void find_neighbours(int tile) {
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) {
            const place    at(p, tile * TILE + first_row(i) + lane % 16);
            const uint32_t across = (at.w > 0 ? 1u : 0u) | 2u | (at.w + 1 < p.Q ? 4u : 0u);
            neighbours[i]         = (at.h > 0 ? across : 0u) | across << 3 | (at.h + 1 < p.P ? across << 6 : 0u);
        }
    }
    __device__ __forceinline__ void load(fragments &f, int neighbour) const {
        const int      distance = neighbour / 3 * p.Q + neighbour % 3;
        const uint32_t slot = shared + (uint32_t)(x.at * plan.slot_bytes), zero = shared + (uint32_t)plan.zero_at;
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) {
            const int      row  = first_row(i) + lane % 16 + distance;
            const uint32_t from = (neighbours[i] >> neighbour & 1u ? slot + (uint32_t)(row * ROW) : zero) +
                                  (uint32_t)((lane / 16 ^ (row & 7)) << 4);
#pragma unroll
            for (int s = 0; s < STEPS; s++) ck_ldmatrix(f.a[i][s], from ^ (uint32_t)(s << 5));
        }
    }
    __device__ __forceinline__ void add(const fragments &f, int step) {
        constexpr int  IS_TRANSPOSED = KIND != FORWARD;
        const uint32_t at            = shared + (uint32_t)(plan.w_at + w.at * W_BYTES);
        const uint64_t b             = IS_TRANSPOSED ? ck_operand_transposed(at, W_BYTES / 2) : ck_operand(at);
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_W + w.at), w.parity);
        ck_wgmma_fence();
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
                ck_wgmma<T, COLUMNS>::template left<IS_TRANSPOSED>(
                    acc[i], f.a[i][s], b + (uint64_t)(s * (IS_TRANSPOSED ? 2048 / 16 : 2)), step + s);
        ck_wgmma_commit();
    }

    struct position {
        int tap = 0, chunk = 0, last_w = -1;
    };
    /* Issues the products of a step, and loads the fragments of the next one when those before are complete. */
    __device__ __forceinline__ void step(const fragments &now, fragments &next, position &at, const pass &pass,
                                         int step) {
        add(now, step);
        ck_wgmma_wait<1>();
        if (at.last_w >= 0) release((uint32_t)(BAR_W_EMPTY + at.last_w));
        at.last_w = w.at;
        w.next(plan.filters);
        if (++at.tap == pass.taps) {
            at.tap = 0;
            at.chunk++;
            release((uint32_t)(BAR_X_EMPTY + x.at)); /* the issued products have waited for their fragments */
            x.next(plan.slots);
            if (at.chunk < plan.chunks) ck_mbar_wait(bars + 8 * (uint32_t)(BAR_X + x.at), x.parity);
        }
        if (at.chunk < plan.chunks) load(next, pass.neighbour[at.tap]);
    }
    /* acc[2 * 64 pixels][128 channels]; the number of steps is even. */
    __device__ __forceinline__ void multiply(const pass &pass, bool first) {
        const int steps = pass.taps * plan.chunks;
        fragments even, odd;
        position  at;
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_X + x.at), x.parity);
        load(even, pass.neighbour[0]);
#pragma unroll 1
        for (int i = 0; i < steps; i += 2) {
            step(even, odd, at, pass, i);
            step(odd, even, at, pass, i + 1);
            if (me == 0 && first && i == 0) ck_barrier_arrive(BEGUN, TILE_THREADS);
        }
        ck_wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) ck_wgmma_hold(acc[i]);
        release((uint32_t)(BAR_W_EMPTY + at.last_w));
    }

    /* ---- results: 16 pixels and 64 channels at a time through the warp's panel; a lane has 8 channels of them ---- */

    __device__ __forceinline__ int64_t y_at(int pixel, const pass &pass) const {
        if (p.stride == 1) return (int64_t)pixel * p.K;
        const place of(p, pixel);
        return (int64_t)((of.n * p.H + of.h * p.stride + pass.row) * p.W + of.w * p.stride + pass.column) * p.K;
    }
    template <int I, int HALF> __device__ __forceinline__ void put(uint32_t panel) const {
        const uint32_t to = panel + (uint32_t)(lane % 16 * ROW);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const float *v = acc[I] + (HALF * 8 + j) * 4;
            uint32_t     word[4];
#pragma unroll
            for (int i = 0; i < 4; i++) word[i] = ck_pack_pair<T>(v[2 * i], v[2 * i + 1]);
            ck_stmatrix(to + (uint32_t)((j + lane / 16 ^ lane % 8) << 4), word);
        }
    }
    template <int I, int HALF>
    __device__ __forceinline__ void store(int tile, const pass &pass, uint32_t panel, const scale_bias &of,
                                          eight_sums &sums) const {
        const uint32_t bn_x = shared + (uint32_t)(x.at * plan.slot_bytes + first_row(I) * ROW);
        put<I, HALF>(panel);
        __syncwarp();
#pragma unroll 2
        for (int row = lane / 8; row < 16; row += 4) {
            const uint32_t at    = (uint32_t)(row * ROW + ((lane % 8 ^ row % 8) << 4));
            const int      pixel = tile * TILE + first_row(I) + row;
            uint4          word  = ck_get16(panel + at), bn;
            if (KIND == GRADIENT) bn = ck_get16(bn_x + at);
            if (pixel < p.pixels) {
                if (KIND == GRADIENT) word = mask<T>(word, bn, of, sums);
                if (KIND == FORWARD && p.partial) add_squares<T>(word, sums);
                ck_store_whole(
                    static_cast<T *>(p.y) + y_at(pixel, pass) + column_of(plan) + HALF * CHUNK + lane % 8 * 8, word);
            }
        }
        __syncwarp();
    }
    template <int HALF> __device__ __forceinline__ void finish(int tile, const pass &pass) {
        const uint32_t panel = shared + (uint32_t)(plan.panels_at + (me * 4 + warp) * PANEL),
                       bn    = shared + (uint32_t)(plan.bn_at + (HALF * CHUNK + lane % 8 * 8) * 4);
        scale_bias of;
        eight_sums sums;
        if (KIND == GRADIENT) {
            get8(of.scale, bn), get8(of.bias, bn + 4 * COLUMNS);
            ck_mbar_wait(bars + 8 * (uint32_t)(BAR_X + x.at), x.parity);
        }
        store<0, HALF>(tile, pass, panel, of, sums);
        store<1, HALF>(tile, pass, panel, of, sums);
        if (KIND == GRADIENT) {
            release((uint32_t)(BAR_X_EMPTY + x.at));
            x.next(plan.slots);
            normalize(sums, bn + 8 * COLUMNS, bn + 12 * COLUMNS);
        }
        if (KIND != TRANSPOSED && p.partial) add_sums<HALF>(sums);
    }

    /* ---- sums: those of each warp are in shared memory, [2][128] ---- */

    __device__ __forceinline__ uint32_t sums_at(int of_warp) const {
        return shared + (uint32_t)(plan.sums_at + of_warp * 2 * COLUMNS * 4);
    }
    /* Four lanes have the same channels: each of them gets one of the two sums of four channels. */
    template <int HALF> __device__ __forceinline__ void add_sums(const eight_sums &sums) const {
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
        const int channel = HALF * CHUNK + lane % 8 * 8 + (upper ? 4 : 0);
        add_four(sums_at(me * 4 + warp) + (uint32_t)(((second ? COLUMNS : 0) + channel) * 4), sum);
    }
    __device__ __forceinline__ void clear_sums() const {
#pragma unroll
        for (int i = 0; i < 2; i++)
            ck_put16(sums_at(me * 4 + warp) + (uint32_t)((i * 32 + lane) * 16), make_uint4(0, 0, 0, 0));
        __syncwarp();
    }
    /* The block's sums over its warps, to the workspace: a thread has one sum of one channel. */
    __device__ __forceinline__ void put_sums() const {
        const int thread = (me * 4 + warp) * 32 + lane;
        float     sum    = 0.0f;
        ck_barrier(FINISHED, TILE_THREADS);
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += __uint_as_float(ck_get4(sums_at(i) + (uint32_t)(thread * 4)));
        p.partial[(int64_t)(first_tile(plan) * 2 + thread / COLUMNS) * p.K + column_of(plan) + thread % COLUMNS] = sum;
    }

    __device__ __forceinline__ void run() {
        bool first = true;
        if (KIND != TRANSPOSED && p.partial) clear_sums();
        if (me == 1) ck_barrier(BEGUN, TILE_THREADS); /* so one worker multiplies while the other one stores */
        for (int tile = first_tile(plan); tile < plan.tiles; tile += tile_step(plan)) {
            find_neighbours(tile);
            for (int i = 0; i < plan.passes; i++) {
                multiply(p.pass[i], first);
                finish<0>(tile, p.pass[i]);
                finish<1>(tile, p.pass[i]);
                first = false;
            }
        }
        if (KIND != TRANSPOSED && p.partial) put_sums();
    }
};
static_assert(TILE_THREADS == 2 * COLUMNS, "a thread for each sum");

} // namespace

#endif

#endif
