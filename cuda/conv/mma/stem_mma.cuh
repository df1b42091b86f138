/* cuda/conv/mma/stem_mma.cuh: tiles of the stem's kernels and the copies of x into shared memory.
 *
 * A line is 112 neighbouring pixels of a row of y: 7 fragments of 16 pixels. A tile is some consecutive fragments of an
 * image, line after line. It needs 3 more rows of x than it has lines, 115 pixels wide. A row of x is stored as two
 * planes, channels 0..7 and 8..15, with 16 bytes a pixel: so 8 neighbouring pixels of a plane are an 8x8 matrix of 128
 * bytes for ldmatrix, at any starting pixel. Each of the 16 filter positions reads the same bytes from another address,
 * and x is stored once. */
#ifndef CK_STEM_MMA_CUH
#define CK_STEM_MMA_CUH

#include "cuda/common/conv_family.cuh"
#include "cuda/common/fused_conv.h"
#include "cuda/common/mma.cuh"

namespace {

enum {
    SIDE        = CK_STEM_SIDE,
    DEPTH       = CK_STEM_CHANNELS,
    TAPS        = SIDE * SIDE,
    LINE        = 112,             /* pixels */
    ACROSS      = LINE / 16,       /* fragments */
    SPAN        = LINE + SIDE - 1, /* pixels of x below a line */
    COLUMNS     = 64,              /* channels of y that a block computes */
    PLANE_BYTES = SPAN * 16,
    ROW_BYTES   = 2 * PLANE_BYTES,
    STAGES      = 2
};

struct shape {
    int      N, H, W, P, Q, K;
    int      segments, fragments, runs, tiles; /* of a row of y; of a tile; tiles of P lines; of a launch */
    unsigned inverse;                          /* 2^32 / runs, rounded down */
};

inline shape shape_of(int64_t N, int64_t H, int64_t W, int64_t K, int fragments) {
    shape s;
    s.N = (int)N, s.H = (int)H, s.W = (int)W, s.K = (int)K;
    s.P         = s.H - SIDE + 1;
    s.Q         = s.W - SIDE + 1;
    s.segments  = (s.Q + LINE - 1) / LINE;
    s.fragments = fragments;
    s.runs      = (s.P * ACROSS + fragments - 1) / fragments;
    s.tiles     = s.N * s.segments * s.runs;
    s.inverse   = UINT32_MAX / (unsigned)s.runs;
    return s;
}
inline bool shape_fits(int64_t N, int64_t H, int64_t W, int64_t K) {
    const int64_t most = INT32_MAX / 4;
    return N > 0 && H >= SIDE && W >= SIDE && K > 0 && K % COLUMNS == 0 && K <= most / 512 && H <= most / W &&
           N <= most / (H * W);
}
/* Blocks with the same channels: two for each multiprocessor in all. */
inline int groups_of(const shape &s, int multiprocessors) {
    int groups = 2 * multiprocessors / (s.K / COLUMNS);
    groups     = groups < 1 ? 1 : groups;
    return groups < s.tiles ? groups : s.tiles;
}

/* First line of a tile: image, row and column of y; and the tile's first fragment in it. */
struct place {
    int        n, p, q, first;
    __device__ place(const shape &s, int tile) {
        int strip = (int)__umulhi((unsigned)tile, s.inverse), run = tile - strip * s.runs; /* or one less */
        if (run >= s.runs) strip++, run -= s.runs;
        const int fragment = run * s.fragments;
        p                  = fragment / ACROSS;
        first              = fragment % ACROSS;
        n                  = s.segments == 1 ? strip : strip / s.segments;
        q                  = (strip - n * s.segments) * LINE;
    }
};

/* Starts the copies of a tile's rows of x; elements outside x become 0. */
template <int THREADS, int ROWS>
__device__ __forceinline__ void copy_x(const shape &s, const void *x, const place &at, uint32_t to, int thread) {
    constexpr unsigned PIECES = ROWS * 2 * SPAN;
    const char        *from = static_cast<const char *>(x) + (((int64_t)at.n * s.H + at.p) * s.W + at.q) * (DEPTH * 2);
    const int          wide = s.W - at.q, high = s.H - at.p, pitch = s.W * (DEPTH * 2);
#pragma unroll
    for (unsigned k = 0; k < (PIECES + THREADS - 1) / THREADS; k++) {
        const unsigned i = (unsigned)thread + k * THREADS, row = i / (2 * SPAN), piece = i - row * (2 * SPAN),
                       pixel = piece / 2;
        const bool is        = (int)pixel < wide && (int)row < high;
        if ((k + 1) * THREADS <= PIECES || i < PIECES)
            ck_copy16(to + (row * 2 + piece % 2) * PLANE_BYTES + pixel * 16,
                      from + (is ? (int)row * pitch + (int)piece * 16 : 0), is);
    }
}

/* Line and first pixel of fragment f, counted from the tile's first line. */
__device__ __forceinline__ int line_of(int f) {
    return f / ACROSS;
}
__device__ __forceinline__ int pixel_of(int f) {
    return f % ACROSS * 16;
}

} // namespace

#endif
