/* cuda/sparse/block/block_sparse.h: block-sparse convolutions on the tensor cores of compute capability 9.0.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`. Data are 16-bit; sums are FP32 and are rounded once.
 *
 * The filter consists of blocks of 64 output x 64 input channels at one tap. Only nonzero blocks are stored, read and
 * multiplied. With every block nonzero the kernel computes a dense convolution. C and K are multiples of 64. The
 * conventions of cuda/common/launchers.h hold. */
#ifndef CK_BLOCK_SPARSE_H
#define CK_BLOCK_SPARSE_H

#include "cuda/common/launchers.h"

CK_C_BEGIN

enum { CK_BLOCK_SPARSE_SIDE = 64, CK_BLOCK_SPARSE_BYTES = CK_BLOCK_SPARSE_SIDE * CK_BLOCK_SPARSE_SIDE * 2 };

/* The tiling. A tile is `parts` parts of `columns` pixels x `teams` blocks of output channels; one warpgroup computes
 * one part for one block of output channels. The input is processed in steps. A step is 64 input channels of a part's
 * pixels, shifted by one tap; or, with `patch`, 64 channels of the rectangle of input that all taps read, stored as
 * rows of `pitch` pixels, so that a tap is an offset. */
struct ck_block_sparse_plan {
    int  teams, parts, columns;
    bool patch;
    /* with patch, of one part: rows of y per image, and images; pitch: positions per row */
    int     rows, images, pitch;
    int     box;         /* with patch: rows of input per image */
    int     strips;      /* parts that one image's rows are divided into */
    int64_t runs, tiles; /* number of parts; tiles per group of output channels */
    int     groups;      /* groups of output channels */
    /* consecutive tiles are those of one part and all groups, rather than of one group */
    bool interleave;
    int  grid;
    int  x_bytes;                                     /* bytes of one part in one stage */
    int  stages, ring;                                /* stages of input; stages of each team's filter blocks */
    int  x_at, w_at, out_at, pixel_at, bar_at, bytes; /* byte offsets in shared memory, and its size */
};

/* The list of nonzero blocks: one table of words on the device, which the host makes (cr_block_sparse_encode). The
 * members are word offsets of the table's parts:
 *
 *   steps[groups + 1]
 *     first step of each group in `step`: input block | r << 16 | s << 24
 *   items[groups + 1]
 *     first filter block of each group in `item`, in loading order: the team that uses the block
 *   entries[groups*teams + 1]
 *     first product of each team in `entry`: steps to advance before the product << 16 | offset in positions
 *   block[groups*teams]
 *     each team's block of output channels; UINT32_MAX: none
 */
struct ck_block_sparse_list {
    uint32_t steps, step, items, item, entries, entry, block;
};

struct ck_block_sparse_args {
    struct ck_conv              conv;
    const void                 *x;
    const void                 *blocks; /* packed by ck_block_sparse_pack: [items][64][64], rows swizzled */
    const uint32_t             *table;
    struct ck_block_sparse_list list;
    const float                *bias; /* [K] or NULL */
    const void                 *add;  /* shape of y, or NULL; y may be the same buffer */
    bool                        relu;
    void                       *y;
};

/* Tile configs are numbered from 0. ck_block_sparse_conv_plan returns false when the config or the kernel does not
 * support the convolution. l2_bytes: L2 cache of the GPU. */
void ck_block_sparse_conv_tile(int config, int tile[4]); /* tile: teams, parts, columns, 1 with patch */
bool ck_block_sparse_conv_plan(const struct ck_conv *conv, int config, int multiprocessors, int64_t l2_bytes,
                               struct ck_block_sparse_plan *plan);
/* Packs the blocks of w [K][R][S][C] for ck_block_sparse_conv. from[i] is the index of the first element of block i in
 * w; UINT32_MAX: a block of zeros. Bytes: 8192 read and written per block. Limiter: memory bandwidth. */
cudaError_t ck_block_sparse_pack(const struct ck_conv *conv, const void *w, const uint32_t *from, int64_t blocks,
                                 void *packed, cudaStream_t stream);
cudaError_t ck_block_sparse_conv(const struct ck_block_sparse_args *args, const struct ck_block_sparse_plan *plan,
                                 cudaStream_t stream);

CK_C_END

#endif
