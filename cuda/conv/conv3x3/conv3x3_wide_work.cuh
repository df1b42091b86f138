/* cuda/conv/conv3x3/conv3x3_wide_work.cuh: a multiplying warpgroup ("worker") of
 * cuda/conv/conv3x3/conv3x3_wide_sm90a.cu: products, and results to shared memory. */
#ifndef CK_CONV3X3_WIDE_WORK_CUH
#define CK_CONV3X3_WIDE_WORK_CUH

#include "cuda/conv/conv3x3/conv3x3_wide.cuh"

#if CK_HAS_SM90A

namespace {

template <typename T, int KIND> struct worker {
    const params  &p;
    const plan    &plan;
    const int      me, warp, lane;
    const uint32_t shared, bars;
    ck_ring_place  x, w;
    uint32_t       y_parity = 0;
    float          acc[HEIGHT][COLUMNS / 2];
    uint32_t       neighbours[HEIGHT]; /* of the lane's rows: which of the nine are in the image */
    uint32_t       rows[HEIGHT];       /* addresses of the lane's rows of the left operand */

    __device__ worker(const params &params_, uint32_t shared_, int me_)
        : p(params_), plan(params_.plan), me(me_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32),
          shared(shared_), bars(shared_ + (uint32_t)params_.plan.bar_at) {}

    /* This warp has finished reading, or writing. */
    __device__ __forceinline__ void release(uint32_t bar) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bars + 8 * bar);
    }
    /* First row of the warp in the tile, for product i. */
    __device__ __forceinline__ int first_row(int i) const { return me * ROWS + i * 64 + warp * 16; }

    /* ---- products ---- */

    /* x is the left operand, from registers: so each row of it may be any row of shared memory, and a neighbour that
     * is not in the image is a row of zeros. */
    struct fragments { /* of half a step: 32 channels */
        uint32_t a[HEIGHT][STEPS / 2][4];
    };
    __device__ __forceinline__ void find_neighbours(int tile) {
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) {
            const place    at(p, tile * TILE + first_row(i) + lane % 16);
            const uint32_t across = (at.w > 0 ? 1u : 0u) | 2u | (at.w + 1 < p.Q ? 4u : 0u);
            neighbours[i]         = (at.h > 0 ? across : 0u) | across << 3 | (at.h + 1 < p.P ? across << 6 : 0u);
        }
    }
    /* Sets the lane's rows for one of the nine neighbours. */
    __device__ __forceinline__ void find_rows(int neighbour) {
        const int      distance = neighbour / 3 * p.Q + neighbour % 3;
        const uint32_t slot = shared + (uint32_t)(x.at * plan.slot_bytes), zero = shared + (uint32_t)plan.zero_at;
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) {
            const int row = first_row(i) + lane % 16 + distance;
            rows[i]       = (neighbours[i] >> neighbour & 1u ? slot + (uint32_t)(row * ROW) : zero) +
                      (uint32_t)((lane / 16 ^ (row & 7)) << 4);
            asm volatile("" : "+r"(rows[i])); /* now, not when it is needed */
        }
    }
    template <int HALF> __device__ __forceinline__ void load(fragments &f) const {
#pragma unroll
        for (int i = 0; i < HEIGHT; i++)
#pragma unroll
            for (int s = 0; s < STEPS / 2; s++)
                ck_ldmatrix(f.a[i][s], rows[i] ^ (uint32_t)((HALF * STEPS / 2 + s) << 5));
    }
    template <int HALF> __device__ __forceinline__ void add(const fragments &f, bool keep) {
        constexpr int  IS_TRANSPOSED = KIND != FORWARD, DISTANCE = IS_TRANSPOSED ? 2048 / 16 : 2;
        const uint32_t at = shared + (uint32_t)(plan.w_at + w.at * W_BYTES);
        const uint64_t b  = IS_TRANSPOSED ? ck_operand_transposed(at, W_BYTES / 2) : ck_operand(at);
        ck_wgmma_fence();
#pragma unroll
        for (int s = 0; s < STEPS / 2; s++)
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
                ck_wgmma<T, COLUMNS>::template left<IS_TRANSPOSED>(
                    acc[i], f.a[i][s], b + (uint64_t)((HALF * STEPS / 2 + s) * DISTANCE), keep || HALF || s);
        ck_wgmma_commit();
    }
    /* acc[2 * 64 pixels][128 channels]. A step is one filter position and 64 channels of x. Fragments are loaded while
     * products of the others run. */
    __device__ __forceinline__ void multiply(const pass &pass, bool first) {
        fragments low, high;
        int       tap = 0, chunk = 0, last_w = -1;
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_X + x.at), x.parity);
        find_rows(pass.neighbour[0]);
        load<0>(low);
#pragma unroll 1
        while (chunk < plan.chunks) {
            ck_mbar_wait(bars + 8 * (uint32_t)(BAR_W + w.at), w.parity);
            add<0>(low, last_w >= 0);
            ck_wgmma_wait<1>();
            if (last_w >= 0) release((uint32_t)(BAR_W_EMPTY + last_w));
            load<1>(high);
            add<1>(high, true);
            if (me == 0 && first && last_w < 0) ck_barrier_arrive(BEGUN, WORKERS * GROUP);
            last_w = w.at;
            w.next(plan.filters);
            if (++tap == pass.taps) {
                tap = 0;
                chunk++;
                release((uint32_t)(BAR_X_EMPTY + x.at)); /* the issued products have waited for their fragments */
                x.next(SLOTS);
                if (chunk < plan.chunks) ck_mbar_wait(bars + 8 * (uint32_t)(BAR_X + x.at), x.parity);
            }
            find_rows(pass.neighbour[tap]);
            ck_wgmma_wait<1>();
            if (chunk < plan.chunks) load<0>(low);
        }
        ck_wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) ck_wgmma_hold(acc[i]);
        release((uint32_t)(BAR_W_EMPTY + last_w));
    }

    /* ---- results: to shared memory, for the warps that store; 128 rows of each 64 channels ---- */

    template <int I> __device__ __forceinline__ void put(uint32_t to) const {
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j += 2) {
            const float   *v  = acc[I] + j * 4;
            const uint32_t at = (uint32_t)(j / 8 * HALF_BYTES) + (uint32_t)((j % 8 + lane / 16 ^ lane % 8) << 4);
            uint32_t       word[4];
#pragma unroll
            for (int i = 0; i < 4; i++) word[i] = ck_pack_pair<T>(v[2 * i], v[2 * i + 1]);
            ck_stmatrix(to + at, word);
        }
    }
    __device__ __forceinline__ void put_all() {
        const uint32_t to = shared + (uint32_t)(plan.y_at + me * HALVES * HALF_BYTES + (warp * 16 + lane % 16) * ROW);
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_Y_EMPTY + me), y_parity ^ 1);
        put<0>(to);
        put<1>(to + 64 * ROW);
        release((uint32_t)(BAR_Y + me));
        y_parity ^= 1;
    }

    __device__ __forceinline__ void run() {
        bool first = true;
        if (me == 1) ck_barrier(BEGUN, WORKERS * GROUP); /* so one worker multiplies while the other one stores */
        for (item at(plan); at.exists(plan); at.next()) {
            find_neighbours(at.tile(plan));
            for (int i = 0; i < plan.passes; i++) {
                multiply(p.pass[i], first);
                put_all();
                first = false;
            }
        }
    }
};

} // namespace

#endif

#endif
