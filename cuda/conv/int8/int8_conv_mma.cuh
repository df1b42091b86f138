/* cuda/conv/int8/int8_conv_mma.cuh: the division of a launch of cuda/conv/int8/int8_conv_mma.cu and the copies into
 * shared memory.
 *
 * A step of the product has 64 of the R*S*C values of a filter. A tile in shared memory has rows of 64 bytes; 16-byte
 * chunk c of row r is stored at chunk c ^ (r / 2 % 4), so that eight rows of one chunk lie in different banks. */
#ifndef CK_INT8_CONV_MMA_CUH
#define CK_INT8_CONV_MMA_CUH

#include "cuda/conv/int8/int8_conv.h"
#include "cuda/conv/int8/int8_mma.cuh"

namespace {

enum {
    STEP    = 64, /* bytes of a row */
    CHUNK   = 16,
    WARPS   = 4,
    THREADS = WARPS * 32,
    GROUP   = 64,                      /* columns of a warp */
    PASS    = THREADS / (STEP / CHUNK) /* rows that the block copies at a time */
};

/* Pixels and columns of a tile. */
template <int ROWS_, int COLUMNS_> struct tiling {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
    static constexpr int SIDE    = WARPS / (COLUMNS / GROUP); /* warps above each other */
    static constexpr int HEIGHT  = ROWS / SIDE / 16;          /* fragments of 16 rows of a warp */
    static constexpr int STAGES  = COLUMNS == 128 ? 3 : 4;    /* at most 48 KiB, which every GPU has */
    static constexpr int X_BYTES = ROWS * STEP, BYTES = STAGES * (X_BYTES + COLUMNS * STEP);
    static constexpr int BLOCKS = ROWS == 128 ? 2 : 3; /* on a multiprocessor */
};

struct params {
    const uint8_t *x;
    const int8_t  *w;
    const float   *coeffs;
    const uint8_t *add;
    void          *y;
    int            pixels, blocks_k, tiles, steps; /* blocks_k: ceil(K / columns); steps: of a tile */
    int            C, K, H, W, P, Q, R, S, stride, pad;
    int            filter_bytes; /* R*S*C */
    int            y_type;
    float          least; /* of v */
    bool           x_signed, add_signed;
};

__device__ __forceinline__ uint32_t chunk_at(uint32_t tile, int row, int chunk) {
    return tile + (uint32_t)(row * STEP + ((chunk ^ (row >> 1 & 3)) << 4));
}

/* A block's copies for all its tiles, step by step. Each thread copies 16-byte chunk `chunk` of every 32nd row. */
template <class T> struct copier {
    static constexpr int PASSES = T::ROWS / PASS;

    const params  &p;
    const uint32_t shared;
    const int      chunk, row;
    int            tile, step;                          /* of the next copy */
    int            r, s, c;                             /* of this thread's chunk in that step */
    int            image[PASSES], h[PASSES], w[PASSES]; /* of each row: first pixel of its image; filter position 0 */

    __device__ copier(const params &params_, uint32_t shared_)
        : p(params_), shared(shared_), chunk((int)threadIdx.x % 4), row((int)threadIdx.x / 4), tile((int)blockIdx.x),
          step(0) {
        begin();
    }

    __device__ __forceinline__ void carry() {
        while (c >= p.C) {
            c -= p.C;
            if (++s == p.S) {
                s = 0;
                r++;
            }
        }
    }
    __device__ __forceinline__ void begin() {
        r = s = 0;
        c     = chunk * CHUNK;
        carry();
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int pixel = tile / p.blocks_k * T::ROWS + row + i * PASS, line = pixel / p.Q, n = line / p.P;
            image[i] = n * p.H * p.W;
            h[i]     = pixel < p.pixels ? (line - n * p.P) * p.stride - p.pad : INT32_MIN / 2;
            w[i]     = (pixel - line * p.Q) * p.stride - p.pad;
        }
    }
    __device__ __forceinline__ void copy_x(uint32_t to) const {
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int  at_h = h[i] + r, at_w = w[i] + s;
            const bool is = (unsigned)at_h < (unsigned)p.H && (unsigned)at_w < (unsigned)p.W && r < p.R;
            ck_copy16(chunk_at(to, row + i * PASS, chunk),
                      p.x + (is ? (int64_t)(image[i] + at_h * p.W + at_w) * p.C + c : 0), is);
        }
    }
    __device__ __forceinline__ void copy_w(uint32_t to) const {
        const int at = step * STEP + chunk * CHUNK, first = tile % p.blocks_k * T::COLUMNS;
#pragma unroll
        for (int i = 0; i < T::COLUMNS / PASS; i++) {
            const int  k  = first + channel_of(row + i * PASS);
            const bool is = k < p.K && at < p.filter_bytes;
            ck_copy16(chunk_at(to, row + i * PASS, chunk), p.w + (is ? (int64_t)k * p.filter_bytes + at : 0), is);
        }
    }
    /* Starts the next step's copies into a stage, if there is one, and ends the group of copies. */
    __device__ __forceinline__ void next(int stage) {
        if (tile < p.tiles) {
            const uint32_t to = shared + (uint32_t)(stage * (T::BYTES / T::STAGES));
            copy_x(to);
            copy_w(to + T::X_BYTES);
            c += STEP;
            carry();
            if (++step == p.steps) {
                step = 0;
                tile += (int)gridDim.x;
                begin();
            }
        }
        ck_copy_commit();
    }
};

} // namespace

#endif
