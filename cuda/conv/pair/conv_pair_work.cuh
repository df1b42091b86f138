/* cuda/conv/pair/conv_pair_work.cuh: a multiplying warpgroup of cuda/conv/pair/conv_pair_sm90a.cu.
 *
 * A chunk of y (PANEL bytes of each of the worker's pixels) takes the place of its summand in shared memory. There the
 * second product reads it, and TMA stores it. Columns of 8-bit products are in the order of ck_int8_pack: a thread has
 * 16 neighbouring channels of a pixel (cuda/conv/int8/int8_conv_work.cuh). */
#ifndef CK_CONV_PAIR_WORK_CUH
#define CK_CONV_PAIR_WORK_CUH

#include "cuda/conv/pair/conv_pair.cuh"

#if CK_HAS_SM90A

namespace {

template <typename T> constexpr bool is_byte = sizeof(T) == 1;

/* d (+)= a b for 32 bytes of the reduced dimension */
template <typename T, int N, typename Sum>
__device__ __forceinline__ void multiply(Sum (&d)[N / 2], uint64_t a, uint64_t b, int keep) {
    if constexpr (is_byte<T>)
        ck_wgmma_int8<false, N>::run(d, a, b, keep);
    else
        ck_wgmma<T, N>::template both<0>(d, a, b, keep);
}

/* Four values, rounded (ties to even) and saturated to u8. */
__device__ __forceinline__ uint32_t pack_bytes(const float *v) {
    int      i[4];
    uint32_t word;
#pragma unroll
    for (int k = 0; k < 4; k++) i[k] = __float2int_rn(v[k]);
    asm("{\n.reg .b32 high;\ncvt.pack.sat.u8.s32.b32 high, %4, %3, 0;\ncvt.pack.sat.u8.s32.b32 %0, %2, %1, high;\n}"
        : "=r"(word)
        : "r"(i[0]), "r"(i[1]), "r"(i[2]), "r"(i[3]));
    return word;
}

/* Where the four coefficients `i` are, in units of 16 bytes: moved so that the four threads of a group read different
 * banks. */
__device__ __forceinline__ uint32_t coeff_place(int i) {
    return (uint32_t)(16 * (i ^ (i >> 3 & 1)));
}
__device__ __forceinline__ void get_four(uint32_t at, float *to) {
    const uint4 v = ck_get16(at);
    to[0]         = __uint_as_float(v.x);
    to[1]         = __uint_as_float(v.y);
    to[2]         = __uint_as_float(v.z);
    to[3]         = __uint_as_float(v.w);
}

/* All threads copy the coefficients or biases of both convolutions. */
__device__ __forceinline__ void set_bytes(uint32_t to, const float *from, int count) {
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        const uint32_t at = to + coeff_place(i / 4) + (uint32_t)(i % 4 * 4);
        ck_put4(at, from[i]);
        ck_put4(at + (uint32_t)(4 * count), from[count + i]);
    }
}
__device__ __forceinline__ void set_biases(uint32_t to, const float *from, int count) {
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) ck_put4(to + 4 * (uint32_t)i, from[i]);
}
template <typename T, int L> __device__ __forceinline__ void set_coeffs(const params &p, uint32_t to) {
    if constexpr (is_byte<T>) {
        set_bytes(to, p.coeffs, p.K);
        set_bytes(to + 8 * (uint32_t)p.K, p.next_coeffs, L);
    } else {
        set_biases(to, p.coeffs, p.K);
        set_biases(to + 4 * (uint32_t)p.K, p.next_coeffs, L);
    }
}

/* Tile is pixel_tile, or another division of the pixels with the same functions. Params has its parameters. ADD: a
 * tensor is added to y. */
template <typename T, int L, int X_PANEL, typename Tile = pixel_tile, typename Params = params, bool ADD = true>
struct worker {
    static constexpr int CHANNELS = PANEL / (int)sizeof(T);
    using Sum                     = typename std::conditional<is_byte<T>, int, float>::type;

    const Params &p;
    const plan   &plan;
    const int     me, warp, lane;
    uint32_t      shared, x_at, y_at, x_bar, y_bar, coeffs, next_coeffs;
    float         add_scale;
    ck_ring_place x, y;
    int           held; /* slot of y that the previous chunk occupies, or -1 */
    Sum           first[CHANNELS / 2], second[L / 2];

    __device__ worker(const Params &params_, uint32_t shared_, int me_)
        : p(params_), plan(params_.plan), me(me_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32),
          shared(shared_), held(-1) {
        const uint32_t bars = shared + (uint32_t)plan.bar_at;
        x_bar               = bars + 8 * (uint32_t)(BAR_X + me * X_SLOTS_MAX);
        y_bar               = bars + 8 * (uint32_t)(BAR_Y + me * Y_SLOTS_MAX);
        x_at                = shared + (uint32_t)(plan.x_at + me * plan.x_slots * plan.x_bytes);
        y_at                = shared + (uint32_t)(plan.y_at + me * plan.y_slots * SLOT_BYTES);
        coeffs              = shared + (uint32_t)plan.coeffs_at;
        next_coeffs         = coeffs + (uint32_t)((is_byte<T> ? 8 : 4) * p.K);
        add_scale           = is_byte<T> ? __ldg(p.coeffs + 2 * p.K) : 1.0f;
    }

    __device__ __forceinline__ bool     leads() const { return warp == 0 && lane == 0; }
    __device__ __forceinline__ uint32_t slot() const { return y_at + (uint32_t)(y.at * SLOT_BYTES); }
    /* This warp has finished reading what the full barrier `bar` announced. */
    __device__ __forceinline__ void release(uint32_t bar) const {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bar + 8 * BAR_FULL);
    }
    /* Releases the slot of the previous chunk; at most `STORES` stores of later chunks are still running. */
    template <int STORES> __device__ __forceinline__ void release_held() {
        if (held < 0) return;
        if (leads()) ck_bulk_wait_read<STORES>();
        release(y_bar + 8 * (uint32_t)held);
        held = -1;
    }
    /* What this warpgroup wrote to the current slot becomes visible to TMA and wgmma, and is stored. */
    __device__ __forceinline__ void store(const CUtensorMap *map, int column, const Tile &tile) const {
        ck_fence_async();
        ck_barrier(1 + me, GROUP);
        if (leads()) {
            tile.store(map, slot(), column);
            ck_bulk_commit();
        }
    }

    /* first = x * w of the chunk */
    __device__ __forceinline__ void multiply_first(uint32_t filter) {
        const uint32_t rows = x_at + (uint32_t)(x.at * plan.x_bytes);
        ck_wgmma_fence();
        for (int i = 0; i < plan.panels; i++)
#pragma unroll
            for (int k = 0; k < X_PANEL / 32; k++)
                multiply<T, CHANNELS>(first, ck_operand_rows<X_PANEL>(rows + (uint32_t)(i * ROWS * X_PANEL)) + 2 * k,
                                      ck_operand_rows<X_PANEL>(filter + (uint32_t)(i * CHANNELS * X_PANEL)) + 2 * k,
                                      i + k);
        ck_wgmma_commit();
        ck_wgmma_wait<0>();
        ck_wgmma_hold(first);
        ck_wgmma_hold(second);
    }
    /* second (+)= the chunk of y * next_w; not yet complete */
    __device__ __forceinline__ void multiply_second(uint32_t filter, int chunk) {
        const uint32_t from = filter + (uint32_t)(plan.panels * CHANNELS * X_PANEL);
        ck_wgmma_fence();
#pragma unroll
        for (int k = 0; k < PANEL / 32; k++)
            multiply<T, L>(second, ck_operand(slot()) + 2 * k, ck_operand(from) + 2 * k, chunk + k);
        ck_wgmma_commit();
    }

    /* Where the 16 bytes `part` of the worker's pixel `row` are in the current slot. */
    __device__ __forceinline__ uint32_t place(int row, int part) const {
        return slot() + (uint32_t)(row * PANEL + (part ^ row % 8) * 16);
    }

    /* v = sums * scale + bias for the thread's 16 channels of 64-channel group `g` and its pixel `half`. */
    template <int N>
    __device__ __forceinline__ void scale_sums(const Sum (&sums)[N], int g, int half, const float (&scale)[16],
                                               const float (&bias)[16], float (&v)[16]) const {
#pragma unroll
        for (int k = 0; k < 16; k++) v[k] = fmaf((float)sums[g * 32 + k / 2 * 4 + half * 2 + k % 2], scale[k], bias[k]);
    }
    __device__ __forceinline__ void get_coeffs(uint32_t from, int count, int channel, float (&scale)[16],
                                               float (&bias)[16]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = from + coeff_place(channel / 4 + i);
            get_four(at, scale + 4 * i);
            get_four(at + (uint32_t)(4 * count), bias + 4 * i);
        }
    }

    /* The chunk of y from its sums and the summand in the current slot. */
    template <bool ADD_SIGNED> __device__ __forceinline__ void finish_first_bytes(int chunk) const {
        const int q = lane % 4;
#pragma unroll
        for (int g = 0; g < CHANNELS / 64; g++) {
            float scale[16], bias[16];
            get_coeffs(coeffs, p.K, chunk * CHANNELS + 64 * g + 16 * q, scale, bias);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t at = place(warp * 16 + lane / 4 + half * 8, 4 * g + q);
                uint32_t       word[4];
                float          v[16];
                scale_sums(first, g, half, scale, bias, v);
                ck_add_bytes<ADD_SIGNED>(ck_get16(at), add_scale, v);
#pragma unroll
                for (int k = 0; k < 4; k++) word[k] = pack_bytes(v + 4 * k);
                ck_put16(at, make_uint4(word[0], word[1], word[2], word[3]));
            }
        }
    }
    /* Writes 64 16-bit channels, rounded, to the current slot; WITH_ADD: plus what is there. */
    template <bool WITH_ADD, int N>
    __device__ __forceinline__ void finish_half(const Sum (&sums)[N], int from, uint32_t bias_at) const {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 bias = ck_get8(bias_at + (uint32_t)(4 * (8 * j + 2 * (lane % 4))));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t at = place(warp * 16 + lane / 4 + half * 8, j) + (uint32_t)(lane % 4 * 4);
                float low = sums[from + 4 * j + 2 * half] + bias.x, high = sums[from + 4 * j + 2 * half + 1] + bias.y;
                if (WITH_ADD) {
                    const float2 a = ck_pair<T>(ck_get4(at));
                    low += a.x;
                    high += a.y;
                }
                ck_put4(at, ck_pack_relu<T>(low, high));
            }
        }
    }

    __device__ __forceinline__ void finish_second_bytes(const Tile &tile) const {
        const int q = lane % 4;
#pragma unroll
        for (int g = 0; g < L / 64; g++) {
            float scale[16], bias[16], v[16];
            get_coeffs(next_coeffs, L, 64 * g + 16 * q, scale, bias);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int pixel = tile.pixel(warp * 16 + lane / 4 + half * 8);
                uint32_t  word[4];
                scale_sums(second, g, half, scale, bias, v);
#pragma unroll
                for (int k = 0; k < 4; k++) word[k] = pack_bytes(v + 4 * k);
                if (pixel >= 0)
                    ck_store_whole(static_cast<uint8_t *>(p.to) + (int64_t)pixel * L + 64 * g + 16 * q,
                                   make_uint4(word[0], word[1], word[2], word[3]));
            }
        }
    }
    __device__ __forceinline__ void finish_second_half(const Tile &tile) {
#pragma unroll
        for (int i = 0; i < L / 64; i++) {
            ck_mbar_wait(y_bar + 8 * (uint32_t)y.at, y.parity);
            finish_half<false>(second, 32 * i, next_coeffs + (uint32_t)(4 * 64 * i));
            store(&p.z, i * PANEL, tile);
            release_held<1>();
            held = y.at;
            y.next(plan.y_slots);
        }
    }

    __device__ __forceinline__ void run_tile(const Tile &tile) {
        ck_mbar_wait(x_bar + 8 * (uint32_t)x.at, x.parity);
        for (int chunk = 0; chunk < plan.chunks; chunk++) {
            const uint32_t filter = shared + (uint32_t)(chunk * plan.filter_bytes);
            multiply_first(filter);
            release_held<0>();
            if (chunk == plan.chunks - 1) {
                release(x_bar + 8 * (uint32_t)x.at);
                x.next(plan.x_slots);
            }
            ck_mbar_wait(y_bar + 8 * (uint32_t)y.at, y.parity);
            if constexpr (is_byte<T>) {
                if (p.add_signed)
                    finish_first_bytes<true>(chunk);
                else
                    finish_first_bytes<false>(chunk);
            } else
                finish_half<ADD>(first, 0, coeffs + (uint32_t)(4 * CHANNELS * chunk));
            store(&p.y, chunk * PANEL, tile);
            multiply_second(filter, chunk);
            held = y.at;
            y.next(plan.y_slots);
        }
        ck_wgmma_wait<0>();
        ck_wgmma_hold(second);
        release_held<0>();
        if constexpr (is_byte<T>)
            finish_second_bytes(tile);
        else
            finish_second_half(tile);
    }

    __device__ __forceinline__ void run() {
        ck_mbar_wait(shared + (uint32_t)plan.bar_at + 8 * BAR_W, 0);
        for (tiles t(plan, me); t.more(); t.next()) run_tile(Tile(p, t.at));
        if (leads()) ck_bulk_wait<0>();
    }
};

} // namespace

#endif

#endif
