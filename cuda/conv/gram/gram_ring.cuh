/* cuda/conv/gram/gram_ring.cuh: what the kernels of cuda/conv/gram/ for compute capability 9.0 share that sum over
 * pixels: a ring of tiles in shared memory that one thread fills by TMA.
 *
 * A chunk is 64 pixels x 64 channels in the layout of cuda/common/hopper.cuh: pixels are its rows. Products sum over
 * rows, so both operands are transposed; 16 pixels further are 2048 bytes. */
#ifndef CK_GRAM_RING_CUH
#define CK_GRAM_RING_CUH

#include "cuda/common/hopper.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/gram/gram_parts.cuh"

namespace {

enum {
    PIXELS     = 64, /* of a tile */
    CHUNK      = PIXELS * 128,
    GROUP      = 128, /* threads of a warpgroup */
    GROUPS     = 2,   /* that multiply; one more loads */
    BLOCK      = (GROUPS + 1) * GROUP,
    STAGES_MAX = 24,
    BAR_BYTES  = 2 * 8 * STAGES_MAX,
};

/* A tensor whose pixels are read: all, or those of a convolution with this stride. */
struct source {
    CUtensorMap map;
    int         stride, P, Q; /* P x Q pixels of an image are read */
};

/* The tiles of a block: first, first + step, ..., counted from the end of the tensor. The kernel before has written or
 * read the tensor from its beginning, so its end is in the L2 cache. The next kernel reads from the beginning again,
 * which this kernel has read last. */
struct share {
    int first, step, end;

    __device__ int in_tensor(int tile) const { return end - 1 - tile; }
};

#if CK_HAS_SM90A

/* Barriers of stage s: full at bars + 8*s, empty STAGES_MAX further. */
__device__ __forceinline__ void set_barriers(uint32_t bars, int stages, uint32_t readers) {
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; s++) {
            ck_mbar_init(bars + 8 * (uint32_t)s, 1);
            ck_mbar_init(bars + 8 * (uint32_t)(STAGES_MAX + s), readers);
        }
        ck_mbar_init_fence();
    }
    __syncthreads();
}

/* 64 channels from c on of a tile. */
__device__ __forceinline__ void load_chunk(uint32_t to, const source &from, uint32_t bar, int c, int tile) {
    const int row = tile * PIXELS;
    if (from.stride == 1) {
        ck_tma_load(to, &from.map, bar, c, row);
        return;
    }
    const int n = row / (from.P * from.Q), rest = row - n * (from.P * from.Q), h = rest / from.Q;
    ck_tma_load_pixels(to, &from.map, bar, c, (rest - h * from.Q) * from.stride, h * from.stride, n);
}

/* This warp has finished reading stage `at`. */
__device__ __forceinline__ void release_stage(uint32_t bars, int at) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ck_mbar_arrive(bars + 8 * (uint32_t)(STAGES_MAX + at));
}

#endif

/* ---- host side ---- */

/* Tensor [N][H][W][C], of which a convolution with this stride reads the pixels. */
bool map_source(struct source *s, enum ck_type type, const void *data, int64_t N, int64_t H, int64_t W, int64_t C,
                int stride) {
    const int corner[2] = {0, 0};
    s->stride           = stride;
    s->P                = (int)((H - 1) / stride + 1);
    s->Q                = (int)((W - 1) / stride + 1);
    return stride == 1 ? ck_tma_matrix(&s->map, type, data, N * H * W, C, PIXELS)
                       : ck_tma_pixels(&s->map, type, data, N, H, W, C, corner, corner, stride, PIXELS);
}

} // namespace

#endif
