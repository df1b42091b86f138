/* cuda/conv/mma/conv3x3_mma.cuh: pixels, shared memory and copies of cuda/conv/mma/conv3x3_mma.cu.
 *
 * Positions are pixels of images with one zero row on top and one zero column on the left, which are the zeros below
 * and on the right of their neighbours. A filter position is then a constant distance in this order: the result at
 * position o needs the positions o + r*(W + 1) + s. Position p is in slot p % slots of a ring in shared memory, in 128
 * bytes. */
#ifndef CK_CONV3X3_MMA_CUH
#define CK_CONV3X3_MMA_CUH

#include "cuda/common/divisor.cuh"
#include "cuda/conv/mma/panel.cuh"

namespace {

enum {
    CHANNELS   = 64,
    SIDE       = 3,
    TAPS       = SIDE * SIDE,
    EACH       = 4, /* fragments of 16 positions of a warp */
    WARPS      = 4, /* of a group */
    GROUPS     = 2,
    THREADS    = WARPS * 32,
    TILE       = WARPS * EACH * 16, /* positions */
    ROW        = CHANNELS * 2,      /* bytes of a slot */
    W_ROW      = TAPS * ROW,
    PANEL_HALF = 8 * HALF_ROW, /* 8 rows of 64 results */
    W_BYTES    = CHANNELS * W_ROW,
    VECTORS_AT = W_BYTES, /* f32 [4][64] */
    PANELS_AT  = VECTORS_AT + 4 * CHANNELS * 4,
    RING_AT    = PANELS_AT + GROUPS * WARPS * PANEL_HALF
};
static_assert(RING_AT % 128 == 0 && W_ROW % 128 == 0, "swizzled rows");
static_assert(WARPS * 2 * CHANNELS * 4 <= WARPS * PANEL_HALF, "sums of a group's warps");

/* What the kernel computes. */
enum kind {
    PLAIN,      /* sums of y */
    INFER,      /* bias, ReLU */
    TRANSPOSED, /* the gradient of x; add */
    GRADIENT    /* the gradient of x; add, mask of BN and ReLU, sums */
};

struct shape {
    int        N, H, W;
    int        pitch; /* W + 1 */
    int        slots, tiles, blocks;
    ck_divisor pitches, lines; /* by W + 1, by H + 1 */

    /* Number of the pixel at row h - top, column w - left of a position's image, or -1: there is none. */
    __device__ __forceinline__ int pixel(int position, int border) const {
        const int line = (int)pitches.divide((uint32_t)position), w = position - line * pitch - border;
        const int n = (int)lines.divide((uint32_t)line), h = line - n * (H + 1) - border;
        return w >= 0 && w < W && h >= 0 && h < H && n < N ? (n * H + h) * W + w : -1;
    }
    /* Inputs have a border on top and on the left; results are numbered without it. */
    __device__ __forceinline__ int input(int position) const { return pixel(position, 1); }
    __device__ __forceinline__ int result(int position) const { return pixel(position, 0); }
    /* Positions behind a tile that its filter reaches. */
    __host__ __device__ __forceinline__ int reach() const { return (SIDE - 1) * (pitch + 1); }
};

struct params {
    struct shape shape;
    const void  *x, *w, *add, *bn_x;
    const float *bias, *mean_rstd, *gamma, *beta;
    void        *y;
    float       *partial; /* [blocks * GROUPS][2][64], NULL without sums */
    bool         relu;
};

/* Starts the copies of positions first to last-1 by one group. */
template <typename T>
__device__ __forceinline__ void copy_positions(const params &p, uint32_t ring, int first, int last, int thread) {
    const int chunk = thread % 8;
    for (int position = first + thread / 8; position < last; position += THREADS / 8) {
        const int pixel = p.shape.input(position);
        ck_copy16(ck_chunk_at(ring, ROW, position % p.shape.slots, chunk),
                  static_cast<const T *>(p.x) + (int64_t)(pixel < 0 ? 0 : pixel) * CHANNELS + chunk * 8, pixel >= 0);
    }
}

} // namespace

#endif
