/* cuda/conv/pair/conv_chain_first.cuh: the warpgroup of cuda/conv/pair/conv_chain_sm90a.cu that computes the 3x3
 * convolution, in 16 bits (first_half) and in 8 bits (first_byte), and gives its tiles to the workers. */
#ifndef CK_CONV_CHAIN_FIRST_CUH
#define CK_CONV_CHAIN_FIRST_CUH

#include "cuda/conv/pair/conv_chain.cuh"

#if CK_HAS_SM90A

namespace {

/* Places in the rings, and the tile of x as an operand. ROW: bytes of a pixel. */
template <int ROW> struct first_worker {
    const chain_params &p;
    const int           warp, lane;
    uint32_t            shared, bars;
    ck_ring_place       at, t[WORKERS];

    __device__ first_worker(const chain_params &params_, uint32_t shared_)
        : p(params_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32), shared(shared_),
          bars(shared_ + (uint32_t)params_.plan.bar_at) {}

    /* The tile's pixels at filter position `tap`: groups of 8 pixels, a row of x apart. */
    __device__ __forceinline__ uint64_t pixels(uint32_t from, int tap) const {
        const uint32_t start = from + (uint32_t)((tap / 3 * p.wide + tap % 3) * ROW);
        return (uint64_t)((start & 0x3ffffu) >> 4) | 1ull << 16 | (uint64_t)(p.wide * ROW / 16) << 32 |
               (ROW == 128 ? 1ull : 2ull) << 62;
    }
    /* Waits for the next tile of x; returns where it is. */
    __device__ __forceinline__ uint32_t wait_image() const {
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_IMAGE + at.at), at.parity);
        return shared + (uint32_t)(p.image_at + at.at * p.image_bytes);
    }
    __device__ __forceinline__ void release_image() {
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bars + 8 * (uint32_t)(BAR_IMAGE_EMPTY + at.at));
        at.next(p.image_slots);
    }
    /* Gives a worker the tile of t that put(address) writes. */
    template <typename Put> __device__ __forceinline__ void give(int worker, ck_ring_place &place, Put put) const {
        const uint32_t full = bars + 8 * (uint32_t)(BAR_X + worker * X_SLOTS_MAX + place.at);
        ck_mbar_wait(full + 8 * BAR_FULL, place.parity ^ 1);
        put(shared + (uint32_t)(p.plan.x_at + (worker * p.plan.x_slots + place.at) * p.plan.x_bytes));
        ck_fence_async();
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(full);
        place.next(p.plan.x_slots);
    }
    template <typename Put> __device__ __forceinline__ void give(int worker, Put put) {
        if (worker == 0)
            give(0, t[0], put);
        else
            give(1, t[1], put);
    }
};

/* Computes t transposed: t^T = first_w x^T. The filter is the left operand and stays in registers; see
 * cuda/conv/conv3x3/conv3x3_sm90a.cu. */
template <typename T> struct first_half : first_worker<2 * CHANNELS> {
    static constexpr int ROW = 2 * CHANNELS, STEPS = CHANNELS / 16; /* STEPS: products for each filter position */
    uint32_t             filter[TAPS][STEPS][4];
    float                bias[2], acc[ROWS / 2];

    __device__ first_half(const chain_params &params_, uint32_t shared_) : first_worker<ROW>(params_, shared_) {}

    /* The fragments of the left operand: a thread has two output channels. */
    __device__ __forceinline__ void load_filter() {
        const int       k    = warp * 16 + lane / 4;
        const uint32_t *from = static_cast<const uint32_t *>(p.first_w) + k * (TAPS * CHANNELS / 2) + lane % 4;
#pragma unroll
        for (int t = 0; t < TAPS; t++)
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    filter[t][s][i] =
                        __ldg(from + i % 2 * 8 * (TAPS * CHANNELS / 2) + t * (CHANNELS / 2) + s * 8 + i / 2 * 4);
#pragma unroll
        for (int i = 0; i < 2; i++) bias[i] = __ldg(p.first_coeffs + k + 8 * i);
    }

    /* acc[64 output channels][64 pixels] */
    __device__ __forceinline__ void multiply() {
        const uint32_t from = wait_image();
        ck_wgmma_fence();
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
            const uint64_t x = pixels(from, t);
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                ck_wgmma<T, ROWS>::template left<0>(acc, filter[t][s], x + (uint64_t)(2 * s), t + s);
        }
        ck_wgmma_commit();
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        release_image();
    }

    /* Writes the tile of t as rows of a pixel's 64 channels. */
    __device__ __forceinline__ void put(uint32_t to) const {
        const int row = lane % 8, chunk = warp * 2 + lane / 8 % 2;
#pragma unroll
        for (int j = 0; j < ROWS / 8; j += 2) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *v = acc + (j + i / 2) * 4 + i % 2 * 2;
                word[i]        = ck_pack_relu<T>(v[0] + bias[i % 2], v[1] + bias[i % 2]);
            }
            ck_stmatrix_trans(to + (uint32_t)((8 * (j + lane / 16) + row) * ROW + (chunk ^ row) * 16), word);
        }
    }

    __device__ __forceinline__ void run() {
        each_tile(p.plan, [&](int worker, int) {
            multiply();
            give(worker, [&](uint32_t to) { put(to); });
        });
    }
};

/* The pixels are the left operand. The filter is in shared memory, its columns in the order of ck_int8_pack: a thread
 * has 16 neighbouring channels of two pixels, the same channels in all tiles. */
struct first_byte : first_worker<CHANNELS> {
    static constexpr int ROW = CHANNELS;
    float                scale[16], bias[16];
    int                  acc[CHANNELS / 2];

    __device__ first_byte(const chain_params &params_, uint32_t shared_) : first_worker<ROW>(params_, shared_) {}

    /* The coefficients of the thread's channels. */
    __device__ __forceinline__ void load_filter() {
#pragma unroll
        for (int k = 0; k < 16; k++) {
            scale[k] = __ldg(p.first_coeffs + lane % 4 * 16 + k);
            bias[k]  = __ldg(p.first_coeffs + CHANNELS + lane % 4 * 16 + k);
        }
    }

    __device__ __forceinline__ void multiply() {
        const uint32_t from = wait_image(), filter = shared + (uint32_t)p.first_at;
        ck_wgmma_fence();
#pragma unroll
        for (int t = 0; t < TAPS; t++)
#pragma unroll
            for (int k = 0; k < ROW / 32; k++)
                ck_wgmma_int8<false, CHANNELS>::run(
                    acc, pixels(from, t) + (uint64_t)(2 * k),
                    ck_operand_rows<ROW>(filter + (uint32_t)(t * FIRST_BYTES)) + (uint64_t)(2 * k), t + k);
        ck_wgmma_commit();
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        release_image();
    }

    __device__ __forceinline__ void put(uint32_t to) const {
        const int q = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = warp * 16 + lane / 4 + half * 8;
            float     v[16];
            uint32_t  word[4];
#pragma unroll
            for (int k = 0; k < 16; k++) v[k] = fmaf((float)acc[k / 2 * 4 + half * 2 + k % 2], scale[k], bias[k]);
#pragma unroll
            for (int k = 0; k < 4; k++) word[k] = pack_bytes(v + 4 * k);
            ck_put16(to + (uint32_t)(row * ROW + (q ^ row / 2 % 4) * 16),
                     make_uint4(word[0], word[1], word[2], word[3]));
        }
    }

    __device__ __forceinline__ void run() {
        ck_mbar_wait(bars + 8 * BAR_FIRST, 0);
        each_tile(p.plan, [&](int worker, int) {
            multiply();
            give(worker, [&](uint32_t to) { put(to); });
        });
    }
};

} // namespace

#endif

#endif
