/* sparsity/sparsity.h: sparse convolution filters in the formats that kernels read.
 *
 * Invariants
 *   - A filter has K rows in R,S,C order. A bit mask selects the nonzeros: an element whose bit is set is a nonzero of
 *     the sparsity pattern, even if its value is 0. Kernels add the values.
 *   - The entries of a row are in R,S,C order (within a chunk of channels, if there are chunks).
 *   - Each encode function has a free function next to it; after a failure there is nothing to free.
 * This header does not depend on graphs and devices. */
#ifndef CR_SPARSITY_H
#define CR_SPARSITY_H

#include "core/base.h"

/* ---- CSR ---- */

struct cr_sparse {
    int64_t   K, R, S, C;
    int64_t  *row;     /* [K + 1]: index of the first entry of each row */
    uint32_t *index;   /* (r*S + s)*C + c */
    uint32_t *element; /* element of the original filter, if this filter is transposed; else NULL */
};

/* Encodes a sparsity pattern, a bit mask: element i is bit j%8 of byte j/8 with j = first + i. K*R*S*C is below 2^32.
 * The caller calls cr_sparse_free. CR_ERR_MEMORY. */
CR_MUST cr_status cr_sparse_from_bits(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                                      struct cr_sparse *sparse);
void              cr_sparse_free(struct cr_sparse *sparse);
static inline int64_t cr_sparse_nnz(const struct cr_sparse *sparse) {
    return sparse->row[sparse->K];
}

/* ---- transposed filter (sparsity/transpose.c): the data gradient of a convolution is a convolution of dy ----
 *
 *   dx[stride*i + first_h][stride*j + first_w] = conv(dy, transposed filter), i, j = 0, 1, ..., with stride 1 and `pad`
 *
 * The pixels of dx form stride*stride phases. Each phase has its own filter: C rows in R,S,K order, taps rotated. */
struct cr_transposition {
    int64_t stride, tap_r, tap_s; /* the phase has taps tap_r + stride*i, tap_s + stride*j of the filter */
    int64_t first_r, first_s;     /* leading rows and columns of zeros, so that both axes have the same padding */
    int64_t R, S, pad;            /* of the transposed filter; R or S is 0 if the phase has no tap: dx is 0 there */
};
struct cr_transposition cr_sparse_transposition(int64_t R, int64_t S, int64_t stride, int64_t pad, int64_t first_h,
                                                int64_t first_w);
/* Transposes the pattern and fills `element`, without values. t->R and t->S must not be 0. The caller
 * calls cr_sparse_free. CR_ERR_MEMORY. */
CR_MUST cr_status cr_sparse_transpose(const struct cr_sparse *sparse, const struct cr_transposition *t,
                                      struct cr_sparse *transposed);

/* ---- linearised offsets: the position of a weight's input in a padded image ---- */

struct cr_sparse_entry {
    float    value; /* encode functions write 0; kernels gather the values */
    uint32_t offset;
};

/* offset = (c - first channel of the chunk)*c_step + (r % stride)*r_phase + r/stride*r_step + (s % stride)*s_phase +
 * s/stride*s_step. For dense images r_phase is the row pitch, r_step is stride * row pitch, and similarly for s. For
 * kernels that store every stride-th pixel contiguously the phases are far apart. */
struct cr_linear_layout {
    int64_t stride, chunk; /* chunk: input channels per chunk */
    int64_t c_step, r_phase, r_step, s_phase, s_step;
    int64_t rows, multiple; /* rows per chunk, at least K; run lengths are rounded up to this multiple */
};
struct cr_linear_filter {
    int64_t                 chunks, rows;
    uint32_t               *start; /* [chunks*rows + 1]: row k of chunk i is the run from start[i*rows + k] on */
    struct cr_sparse_entry *entry; /* runs are padded with value 0 and the offset of their last entry */
    uint32_t               *from;  /* [entries]: element of the filter; CR_SPARSE_FILL for padding */
    int64_t                 entries;
};
#define CR_SPARSE_FILL UINT32_MAX
/* Encodes a filter in this layout. The caller calls cr_linear_filter_free. CR_ERR_MEMORY. */
CR_MUST cr_status cr_sparse_linearize(const struct cr_sparse *sparse, const struct cr_linear_layout *layout,
                                      struct cr_linear_filter *out);
/* Computes the number of entries only, to compare weight formats. */
CR_MUST cr_status cr_sparse_linearize_count(const struct cr_sparse *sparse, const struct cr_linear_layout *layout,
                                            int64_t *entries);
void              cr_linear_filter_free(struct cr_linear_filter *filter);

/* SELL format: slices of `lanes` rows. Step i of a slice has one entry per row, entry[i*lanes + row % lanes]; offset =
 * r << 24 | s << 16 | c, so R and S are at most 256 and C at most 65536. out->rows is the number of slices, out->chunks
 * is 1. */
CR_MUST cr_status cr_sparse_sell(const struct cr_sparse *sparse, int64_t lanes, struct cr_linear_filter *out);
int64_t           cr_sparse_sell_count(const struct cr_sparse *sparse, int64_t lanes); /* number of entries */

/* ---- block-sparse: dense blocks of `side` output x `side` input channels at one tap, for tensor cores ---- */

/* A group has `teams` teams; each team computes `side` output channels from the same input. The input is read in steps
 * of `side` channels: at one tap, or, with `patch`, at all taps, whose inputs are at r*pitch + s positions. Output
 * blocks are assigned to groups in the order of their number of nonzero blocks, largest first. */
struct cr_block_layout {
    int64_t side, teams;
    bool    patch;
    int64_t pitch;
};
/* clang-format off */
/* One table of 32-bit words. Each part begins at the offset in the member of the same name:
 *   steps[groups + 1]          first step of each group in `step`; a step is c-block | r << 16 | s << 24
 *   items[groups + 1]          first filter block of each group in `item`; an item is the block's team, in step order
 *   entries[groups*teams + 1]  first product of each team in `entry`; an entry is the number of steps to advance before
 *                              the product << 16 | offset in positions
 *   block[groups*teams]        output block of each team; UINT32_MAX if it has none
 *   from[items]                first element of each filter block in the filter; CR_SPARSE_FILL for a block of zeros,
 *                              which represents an output block without nonzeros */
/* clang-format on */
struct cr_block_sparse {
    int64_t   groups, blocks; /* blocks: number of stored filter blocks */
    int64_t   words;
    uint32_t *table;
    uint32_t  steps, step, items, item, entries, entry, block, from;
};
/* Counts the blocks with at least one bit; K and C are multiples of side. *stored is the number of blocks that
 * cr_block_sparse stores: an output block without nonzeros counts as one block of zeros. */
int64_t cr_block_sparse_count(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                              int64_t side, int64_t *stored);
/* Encodes the blocks of a pattern in this layout. The caller calls cr_block_sparse_free. CR_ERR_MEMORY. */
CR_MUST cr_status cr_block_sparse_encode(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                                         const struct cr_block_layout *layout, struct cr_block_sparse *blocks);
void              cr_block_sparse_free(struct cr_block_sparse *blocks);

/* ---- 2:4: at most 2 nonzeros of 4 neighbours in a row; 16-bit elements, for the sparse tensor cores ---- */

/* Returns whether a bit mask of rows x columns is 2:4 sparse. Bit i is bit j%8 of byte j/8, j = first + i; the last
 * group of a row may have fewer than 4 elements. */
bool cr_sparse_is_24(const uint8_t *bits, int64_t first, int64_t rows, int64_t columns);
/* Compresses dense[rows][columns] to values[rows][columns/2] and places[rows][columns/16]. A place is the 2-bit index
 * of a stored element in its group of 4; a word has 8 places, the first in the lowest bits; the places of a group
 * ascend. columns is a multiple of 16. An element is a nonzero if any bit except the sign is set. False if a group has
 * more than 2 nonzeros. */
CR_MUST bool cr_sparse_24_encode(const uint16_t *dense, int64_t rows, int64_t columns, uint16_t *values,
                                 uint16_t *places);

#endif
