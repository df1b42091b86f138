/* cuda/conv/pair/conv_chain.cuh: arguments and tiles of cuda/conv/pair/conv_chain_sm90a.cu, and the warpgroup that
 * computes the 3x3 convolution. */
#ifndef CK_CONV_CHAIN_CUH
#define CK_CONV_CHAIN_CUH

#include "cuda/conv/pair/conv_chain.h"
#include "cuda/conv/pair/conv_pair_work.cuh"

namespace {

enum {
    CHANNELS        = CK_CONV_CHAIN_CHANNELS,
    SIDE            = 8,              /* a tile has 8 x 8 pixels */
    HALO            = SIDE + 2,       /* rows and columns of x for a tile */
    ROW             = 2 * CHANNELS,   /* bytes of a pixel of x */
    TAPS            = 9,              /* filter positions */
    STEPS           = CHANNELS / 16,  /* products for each filter position */
    IMAGE_SLOTS_MAX = 3
};
/* Barriers of the ring of x; the others are those of conv_pair. */
enum { BAR_IMAGE = BAR_COUNT, BAR_IMAGE_EMPTY = BAR_IMAGE + IMAGE_SLOTS_MAX, BAR_CHAIN = BAR_IMAGE_EMPTY + IMAGE_SLOTS_MAX };

/* t takes the place of the input of a pair of 1x1 convolutions. */
struct chain_params : params {
    CUtensorMap  image;
    const void  *first_w;
    const float *first_bias;
    int          across, down;               /* tiles of an image */
    int          wide;                       /* pixels of a row of x in shared memory: HALO or more */
    int          image_slots, image_bytes, image_at; /* the ring of x */
};

#if CK_HAS_SM90A

__device__ __forceinline__ void store_box(const CUtensorMap *map, uint32_t from, int a, int b, int c, int d) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* SIDE x SIDE pixels of an image. Rows of 8 pixels follow one another in shared memory; what lies outside the image is
 * neither read nor written. */
struct box_tile {
    int        n, h, w;
    __device__ box_tile(const chain_params &p, int tile) {
        const int line = tile / p.across;
        w              = (tile - line * p.across) * SIDE;
        n              = line / p.down;
        h              = (line - n * p.down) * SIDE;
    }
    __device__ __forceinline__ void load(uint32_t to, const CUtensorMap *map, uint32_t bar, int column) const {
        ck_tma_load_box(to, map, bar, column / 2, w, h, n);
    }
    __device__ __forceinline__ void store(const CUtensorMap *map, uint32_t from, int column) const {
        store_box(map, from, column / 2, w, h, n);
    }
};

/* Calls visit(worker, tile number) for the tiles of both workers, in the order in which t is computed. */
template <typename Visit> __device__ __forceinline__ void each_tile(const plan &plan, Visit visit) {
    for (int first = (int)blockIdx.x * WORKERS; first < plan.tiles; first += (int)gridDim.x * WORKERS)
        for (int worker = 0; worker < WORKERS; worker++)
            if (first + worker < plan.tiles) visit(worker, first + worker);
}

/* One thread loads the tiles of x with the pixels around them. */
__device__ __forceinline__ void load_images(const chain_params &p, uint32_t shared) {
    const uint32_t bars = shared + (uint32_t)p.plan.bar_at;
    ck_ring_place  at;
    each_tile(p.plan, [&](int, int number) {
        const box_tile tile(p, number);
        const uint32_t full = bars + 8 * (uint32_t)(BAR_IMAGE + at.at);
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_IMAGE_EMPTY + at.at), at.parity ^ 1);
        ck_mbar_expect(full, (uint32_t)(HALO * p.wide * ROW));
        ck_tma_load_box(shared + (uint32_t)(p.image_at + at.at * p.image_bytes), &p.image, full, 0, tile.w - 1,
                        tile.h - 1, tile.n);
        at.next(p.image_slots);
    });
}

/* One thread fills a worker's slots of y with add. */
__device__ __forceinline__ void load_adds(const chain_params &p, uint32_t shared, int worker) {
    ck_ring_place y;
    for (tiles t(p.plan, worker); t.more(); t.next()) load_add(p, shared, worker, box_tile(p, t.at), y);
}

/* The warpgroup that computes t, transposed: t^T = first_w x^T. The filter is the left operand and stays in registers;
 * see cuda/conv/conv3x3/conv3x3_sm90a.cu. */
template <typename T> struct first_worker {
    const chain_params &p;
    const int           warp, lane;
    uint32_t            shared, bars;
    uint32_t            filter[TAPS][STEPS][4];
    float               bias[2], acc[ROWS / 2];
    ck_ring_place       at, x[WORKERS];

    __device__ first_worker(const chain_params &params_, uint32_t shared_)
        : p(params_), warp((int)threadIdx.x / 32 % 4), lane((int)threadIdx.x % 32), shared(shared_),
          bars(shared_ + (uint32_t)params_.plan.bar_at) {}

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
        for (int i = 0; i < 2; i++) bias[i] = __ldg(p.first_bias + k + 8 * i);
    }

    /* The tile's pixels at a filter position: groups of 8 pixels, a row of x apart. */
    __device__ __forceinline__ uint64_t operand(uint32_t from) const {
        return (uint64_t)((from & 0x3ffffu) >> 4) | 1ull << 16 | (uint64_t)(p.wide * ROW / 16) << 32 | 1ull << 62;
    }

    /* acc[64 output channels][64 pixels] */
    __device__ __forceinline__ void multiply() {
        const uint32_t rows = shared + (uint32_t)(p.image_at + at.at * p.image_bytes);
        ck_mbar_wait(bars + 8 * (uint32_t)(BAR_IMAGE + at.at), at.parity);
        ck_wgmma_fence();
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
            const uint64_t pixels = operand(rows + (uint32_t)((t / 3 * p.wide + t % 3) * ROW));
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                ck_wgmma<T, ROWS>::template left<0>(acc, filter[t][s], pixels + (uint64_t)(2 * s), t + s);
        }
        ck_wgmma_commit();
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(bars + 8 * (uint32_t)(BAR_IMAGE_EMPTY + at.at));
        at.next(p.image_slots);
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

    /* Gives the tile of t to a worker. */
    __device__ __forceinline__ void give(int worker, ck_ring_place &place) const {
        const uint32_t full = bars + 8 * (uint32_t)(BAR_X + worker * X_SLOTS_MAX + place.at);
        ck_mbar_wait(full + 8 * BAR_FULL, place.parity ^ 1);
        put(shared + (uint32_t)(p.plan.x_at + (worker * p.plan.x_slots + place.at) * p.plan.x_bytes));
        ck_fence_async();
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(full);
        place.next(p.plan.x_slots);
    }

    __device__ __forceinline__ void run() {
        each_tile(p.plan, [&](int worker, int) {
            multiply();
            if (worker == 0)
                give(0, x[0]);
            else
                give(1, x[1]);
        });
    }
};

#endif

} // namespace

#endif
