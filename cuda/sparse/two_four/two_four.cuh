/* cuda/sparse/two_four/two_four.cuh: sizes and the layout of shared memory that the plan and the kernel for 2:4 sparse
 * filters share. */
#ifndef CK_TWO_FOUR_CUH
#define CK_TWO_FOUR_CUH

#include "cuda/common/common.cuh"
#include "cuda/sparse/two_four/two_four.h"

#include <cuda.h>

namespace two_four {

enum {
    POSITION    = CK_TWO_FOUR_CHUNK * 2, /* bytes of a position in shared memory */
    UNIT_VALUES = CK_TWO_FOUR_UNIT * 2,  /* bytes */
    UNIT_PLACES = CK_TWO_FOUR_WORDS * 4,
    UNIT_BYTES  = UNIT_VALUES + UNIT_PLACES,
    MAX_STAGES  = 4,
    MAX_RING    = 16,
    MAX_COLUMNS = 256,
    OUT_PIXELS  = 64, /* pixels that are stored together */
    OUT_BYTES   = OUT_PIXELS * CK_TWO_FOUR_ROWS * 2
};

/* Byte offsets in shared memory. */
struct layout {
    uint32_t bars, pixels, corners, out, stages, ring, end;
    __host__ __device__ explicit layout(const ck_two_four_plan &p) {
        bars    = 0;
        pixels  = 1024;
        corners = pixels + MAX_COLUMNS * 4;
        out     = corners + MAX_COLUMNS * 4;
        stages  = out + (uint32_t)(p.workers * OUT_BYTES);
        ring    = stages + (uint32_t)(p.stages * p.stage_bytes);
        end     = ring + (uint32_t)(p.workers * p.ring * UNIT_BYTES);
    }
};

/* Column j of a tile: its image and row within the tile, and its output pixel relative to the tile's first one; -1:
 * none. */
struct column {
    int image, row, pixel;
};
__host__ __device__ inline column column_of(const ck_conv &c, const ck_two_four_plan &p, int j) {
    const int  image = j % p.images, at = j / p.images, row = at / p.pitch, q = at - row * p.pitch;
    const bool some = row < p.TP && q < (int)c.Q;
    return {image, row, some ? (int)(((int64_t)image * c.P + row) * c.Q + q) : -1};
}

/* Sets the plan for a tile of `rows` rows of y of `images` images: geometry, phases, taps, and the bytes of a stage
 * (128 bytes per position). `columns` are the `count` values of N that an instruction may have, ascending. Returns
 * false when none is large enough. */
bool fit_tile(const ck_conv &c, int images, int rows, const int *columns, int count, ck_two_four_plan *p);
/* Makes the TMA descriptor of each phase of the stride: the pixels of the phase, with 128 bytes of channels each.
 * Returns false when the driver rejects a descriptor. */
bool map_inputs(const ck_conv &c, const ck_two_four_plan &p, const void *x, CUtensorMap *maps);

cudaError_t conv(const ck_two_four_args &args, const ck_two_four_plan &plan, int multiprocessors, cudaStream_t stream);

} // namespace two_four

#endif
