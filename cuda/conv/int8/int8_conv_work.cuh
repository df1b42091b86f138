/* cuda/conv/int8/int8_conv_work.cuh: a multiplying warpgroup of cuda/conv/int8/int8_conv_sm90a.cu: products, scales,
 * rounding, stores.
 *
 * Columns of a product are in an order (ck_int8_pack) in which a thread has 16 neighbouring channels of a pixel: it
 * adds, rounds and stores them without an exchange between threads. Column 8j + 2q + e of 64 is channel 16q + 2j + e; q
 * is the thread's number in its group of four. */
#ifndef CK_INT8_CONV_WORK_CUH
#define CK_INT8_CONV_WORK_CUH

#include "cuda/conv/int8/int8_conv.cuh"
#include "cuda/conv/int8/int8_store.cuh"

#if CK_HAS_SM90A

namespace {

/* Where coefficient `i` is, in units of four: moved so that the four threads of a group read different banks. */
__device__ __forceinline__ int coeff_place(int i) {
    return i ^ (i >> 3 & 1);
}
__device__ __forceinline__ void get_four(uint32_t at, float *to) {
    const uint4 v = ck_get16(at);
    to[0]         = __uint_as_float(v.x);
    to[1]         = __uint_as_float(v.y);
    to[2]         = __uint_as_float(v.z);
    to[3]         = __uint_as_float(v.w);
}

template <int COLUMNS, int HEIGHT, int WORKERS, bool RESIDENT, int CHUNK, bool SIGNED> struct worker {
    static constexpr uint32_t W_BYTES = COLUMNS * CHUNK;
    static constexpr int      PANEL   = COLUMNS < 128 ? 64 : 128; /* bytes of a row of add in shared memory */
    static constexpr int      TEAM    = RESIDENT ? 1 : WORKERS;

    const params &p;
    const plan   &plan;
    const int     me, warp, lane, ring, mine; /* mine: first of the worker's rows in the tile */
    uint32_t      x_at, x_full, w_at, w_full, add_at, add_full, coeffs_at;
    ck_ring_place x, w, add;
    int           acc[HEIGHT][COLUMNS / 2];

    __device__ worker(const params &params_, uint32_t shared, int me_)
        : p(params_), plan(params_.plan), me(me_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32),
          ring(RESIDENT ? me_ : 0), mine(RESIDENT ? 0 : me_ * HEIGHT * ROWS) {
        const uint32_t bars = shared + (uint32_t)plan.bar_at;
        x_at                = shared + (uint32_t)(plan.x_at + ring * plan.slots * plan.slot_bytes);
        x_full              = bars + 8 * (uint32_t)(BAR_X + ring * SLOTS_MAX);
        w_at                = shared + (uint32_t)plan.w_at;
        w_full              = bars + 8 * (uint32_t)BAR_W;
        add_at              = shared + (uint32_t)(plan.add_at + ring * ADDS * plan.add_bytes);
        add_full            = bars + 8 * (uint32_t)(BAR_ADD + ring * ADDS);
        coeffs_at           = shared + (uint32_t)plan.coeffs_at;
    }

    /* This warp has finished reading. */
    __device__ __forceinline__ void release(uint32_t bar) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bar);
    }

    __device__ __forceinline__ void step(uint32_t rows, uint32_t filters, int keep) {
        ck_wgmma_fence();
#pragma unroll
        for (int k = 0; k < CHUNK / 32; k++)
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
                ck_wgmma_int8<SIGNED, COLUMNS>::run(acc[i],
                                                    ck_operand_rows<CHUNK>(rows + (uint32_t)(i * ROWS * CHUNK)) + 2 * k,
                                                    ck_operand_rows<CHUNK>(filters) + 2 * k, keep + k);
        ck_wgmma_commit();
    }

    /* acc = the tile's products. One step is in flight while the next is prepared. */
    __device__ __forceinline__ void multiply() {
        int last_x = -1, last_w = -1, number = 0;
        for (int round = 0; round < plan.rounds; round++) {
            const uint32_t rows = x_at + (uint32_t)(x.at * plan.slot_bytes + mine * CHUNK);
            ck_mbar_wait(x_full + 8 * (uint32_t)x.at, x.parity);
            int shift = 0, across = 0; /* of the filter position, in rows */
            for (int tap = 0; tap < plan.taps; tap++) {
                if (!RESIDENT) ck_mbar_wait(w_full + 8 * (uint32_t)w.at, w.parity);
                step(rows + (uint32_t)(shift * CHUNK), w_at + (uint32_t)(RESIDENT ? number : w.at) * W_BYTES, number);
                ck_wgmma_wait<1>();
                if (!RESIDENT) {
                    if (last_w >= 0) release(w_full + 8 * (uint32_t)(BAR_W_EMPTY - BAR_W + last_w));
                    last_w = w.at;
                    w.next(plan.filters);
                }
                if (last_x >= 0) release(x_full + 8 * (uint32_t)(BAR_X_EMPTY - BAR_X + last_x));
                last_x = -1;
                number++;
                shift++;
                if (++across == p.S) {
                    across = 0;
                    shift += p.W + 1 - p.S;
                }
            }
            last_x = x.at;
            x.next(plan.slots);
        }
        ck_wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) ck_wgmma_hold(acc[i]);
        release(x_full + 8 * (uint32_t)(BAR_X_EMPTY - BAR_X + last_x));
        if (!RESIDENT) release(w_full + 8 * (uint32_t)(BAR_W_EMPTY - BAR_W + last_w));
    }

    /* Pixel of y at a position; -1: none. */
    __device__ __forceinline__ int pixel(int position) const {
        if (position >= p.positions) return -1;
        if (!plan.config.halo) return position;
        const place at(p, position);
        return at.h < p.H && at.w < p.W ? (at.n * p.H + at.h) * p.W + at.w : -1;
    }

    /* 16 channels of add in row `row` of the tile, from channel `channel` of the tile on. */
    __device__ __forceinline__ uint4 get_add(int row, int channel) const {
        const int panel = channel / PANEL, chunk = channel % PANEL / 16;
        const int moved = PANEL == 128 ? chunk ^ row % 8 : chunk ^ (row / 2) % 4;
        return ck_get16(add_at + (uint32_t)(add.at * plan.add_bytes + panel * (ROWS * HEIGHT * TEAM * PANEL) +
                                            row * PANEL + moved * 16));
    }

    template <int TYPE, bool ADD> __device__ __forceinline__ void finish(int row, int column) {
        const int q = lane % 4, first = mine + warp * 16 + lane / 4; /* first: of the thread's rows in the tile */
        int       to[HEIGHT][2];
        float     add_scale = 0.0f;
#pragma unroll
        for (int i = 0; i < HEIGHT; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) to[i][half] = pixel(row + first + i * ROWS + half * 8);
        if (ADD) {
            add_scale = __ldg(p.coeffs + 2 * p.K);
            ck_mbar_wait(add_full + 8 * (uint32_t)add.at, add.parity);
        }
#pragma unroll
        for (int g = 0; g < COLUMNS / 64; g++) {
            const int channel = column + 64 * g + 16 * q, count = min(16, p.K - channel);
            const int of   = (RESIDENT ? 64 * g : column + 64 * g) / 4 + 4 * q;
            const int rest = (RESIDENT ? COLUMNS : plan.blocks_k * COLUMNS) * 4;
            float     scale[16], bias[16];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t at = coeffs_at + (uint32_t)(16 * coeff_place(of + i));
                get_four(at, scale + 4 * i);
                get_four(at + (uint32_t)rest, bias + 4 * i);
            }
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float v[16];
#pragma unroll
                    for (int k = 0; k < 16; k++)
                        v[k] = fmaf((float)acc[i][g * 32 + k / 2 * 4 + half * 2 + k % 2], scale[k], bias[k]);
                    if (ADD) {
                        const uint4 a = get_add(first + i * ROWS + half * 8, 64 * g + 16 * q);
                        if (p.add_signed)
                            ck_add_bytes<true>(a, add_scale, v);
                        else
                            ck_add_bytes<false>(a, add_scale, v);
                    }
                    if (TYPE != CK_INT8_U8 && p.least == 0.0f) {
#pragma unroll
                        for (int k = 0; k < 16; k++) v[k] = ck_at_least(v[k], p.least);
                    }
                    if (to[i][half] >= 0 && count > 0)
                        store_channels<TYPE>(p.y, (int64_t)to[i][half] * p.K + channel, v, count,
                                             count == 16 && p.K % (16 / bytes_of<TYPE>) == 0);
                }
        }
        if (ADD) {
            release(add_full + 8 * (uint32_t)(BAR_ADD_EMPTY - BAR_ADD + add.at));
            add.next(ADDS);
        }
    }

    __device__ __forceinline__ void run() {
        if (RESIDENT) ck_mbar_wait(w_full, 0);
        for (tiles t(plan, ring); t.more(); t.next()) {
            const int row = t.row(plan), column = t.column(plan);
            multiply();
            if (p.y_type == CK_INT8_U8 && p.add_given)
                finish<CK_INT8_U8, true>(row, column);
            else if (p.y_type == CK_INT8_U8)
                finish<CK_INT8_U8, false>(row, column);
            else if (p.y_type == CK_INT8_I8 && p.add_given)
                finish<CK_INT8_I8, true>(row, column);
            else if (p.y_type == CK_INT8_I8)
                finish<CK_INT8_I8, false>(row, column);
            else
                finish_float(row, column);
        }
    }
    __device__ __forceinline__ void finish_float(int row, int column) {
        if (p.y_type == CK_INT8_F16)
            p.add_given ? finish<CK_INT8_F16, true>(row, column) : finish<CK_INT8_F16, false>(row, column);
        else if (p.y_type == CK_INT8_BF16)
            p.add_given ? finish<CK_INT8_BF16, true>(row, column) : finish<CK_INT8_BF16, false>(row, column);
        else
            p.add_given ? finish<CK_INT8_F32, true>(row, column) : finish<CK_INT8_F32, false>(row, column);
    }
};

} // namespace

#endif

#endif
