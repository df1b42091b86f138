/* cuda/sparse/block/block_sparse.h: convolutions whose filter is kept in blocks of 64 output x 64 input channels at one
 * tap, on Hopper's tensor cores (compute capability 9.0 alone): cuda/sparse/block/block_sparse_sm90a.cu. Conventions of
 * cuda/common/launchers.h.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`; 16-bit data, sums in f32, one rounding.
 *
 * Only kept blocks are read and multiplied. With every block kept it is a dense convolution. C and K are multiples
 * of 64. */
#ifndef CK_BLOCK_SPARSE_H
#define CK_BLOCK_SPARSE_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_BLOCK_SPARSE_SIDE = 64, CK_BLOCK_SPARSE_BYTES = CK_BLOCK_SPARSE_SIDE * CK_BLOCK_SPARSE_SIDE * 2 };

/* How the work is cut. A tile is `parts` runs of `columns` pixels x `teams` blocks of output channels; a warpgroup has
 * one of each. Input passes in steps: 64 channels of a part's pixels as one tap sees them; or, with `patch`, 64
 * channels of the rectangle of input that all taps see, pixels side by side in rows of `pitch`, so that a tap is an
 * offset. */
struct ck_block_sparse_plan {
    int     teams, parts, columns;
    bool    patch;
    int     rows, images, pitch; /* patch: of y, of a part: rows of an image, images; positions a row */
    int     box;                 /* patch: rows of input of an image */
    int     strips;              /* parts of an image's rows */
    int64_t runs, tiles;         /* parts in all; tiles of one group of output channels */
    int     groups;              /* of output channels */
    bool    interleave;          /* neighbouring tiles are those of one part and all groups */
    int     grid;
    int     x_bytes;                                     /* of a part of a stage */
    int     stages, ring;                                /* of input; of a team's filter blocks */
    int     x_at, w_at, out_at, pixel_at, bar_at, bytes; /* shared memory */
};

/* The list of what is kept, words of one table on the device, made on the host (cr_sparse_blocks). Offsets in words:
 *   steps[groups + 1]           where a group's steps begin in `step`: c-block | r << 16 | s << 24
 *   items[groups + 1]           where its filter blocks begin in `item`: the team that each is for, in the order of
 * loading entries[groups*teams + 1]   where a team's products begin in `entry`: steps to go on before it << 16 | offset
 * in positions block[groups*teams]         a team's block of output channels; UINT32_MAX: none */
struct ck_block_sparse_list {
    uint32_t steps, step, items, item, entries, entry, block;
};

struct ck_block_sparse_args {
    struct ck_conv              conv;
    const void                 *x;
    const void                 *blocks; /* packed: [items][64][64], rows swizzled */
    const uint32_t             *table;
    struct ck_block_sparse_list list;
    const float                *bias; /* [K] or NULL */
    const void                 *add;  /* like y, or NULL; y may be add */
    bool                        relu;
    void                       *y;
};

/* Ways of cutting, numbered from 0. false: not with this way, or the kernel does not take such a convolution. */
int  ck_block_sparse_conv_configs(void);
void ck_block_sparse_conv_tile(int config, int tile[4]); /* teams, parts, columns, patch or not */
bool ck_block_sparse_conv_plan(const struct ck_conv *conv, int config, int multiprocessors,
                               struct ck_block_sparse_plan *plan);
/* Packs blocks: from[i] is the first element of block i in w (K,R,S,C); UINT32_MAX: a block of zeros. 2*4096 bytes read
 * and written a block; limiter: memory. */
cudaError_t ck_block_sparse_pack(const struct ck_conv *conv, const void *w, const uint32_t *from, int64_t blocks,
                                 void *packed, cudaStream_t stream);
cudaError_t ck_block_sparse_conv(const struct ck_block_sparse_args *args, const struct ck_block_sparse_plan *plan,
                                 cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
