/* sparsity/sparsity.h: filters most of whose weights are gone, in the forms that kernels read.
 *
 * Laws
 *   - A filter is K rows of R,S,C, as everywhere. A weight is kept when its mask byte is not 0, also when its value is
 * 0.
 *   - Entries of a row stand in the order of R,S,C (within a chunk of channels, where there are chunks).
 *   - What an encode function gives is freed by the free function beside it; on failure nothing is left to free.
 * Knows nothing of graphs and devices. */
#ifndef CR_SPARSE_H
#define CR_SPARSE_H

#include "core/base.h"

/* ---- compressed rows ---- */

struct cr_sparse {
    int64_t   K, R, S, C;
    int64_t  *row;     /* [K + 1]: where the entries of row k begin */
    uint32_t *index;   /* (r*S + s)*C + c */
    float    *value;   /* NULL: places only */
    uint32_t *element; /* of the filter that it was turned from, what each entry is; NULL: entries are of this filter */
};

/* mask NULL: what is not 0 is kept. K*R*S*C must be below 2^32. */
CR_MUST cr_status cr_sparse_encode(const float *filter, const uint8_t *mask, int64_t K, int64_t R, int64_t S, int64_t C,
                                   struct cr_sparse *sparse);
/* Places only, from bits: element i is kept when bit first + i is set, bit j%8 of byte j/8. */
CR_MUST cr_status cr_sparse_from_bits(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                                      struct cr_sparse *sparse);
void              cr_sparse_decode(const struct cr_sparse *sparse, float *filter); /* K,R,S,C */
void              cr_sparse_free(struct cr_sparse *sparse);
static inline int64_t cr_sparse_nnz(const struct cr_sparse *sparse) {
    return sparse->row[sparse->K];
}

/* ---- turned (sparsity/transpose.c): the gradient of a convolution's input is a convolution of its output's ----
 *
 *   dx[stride*i + first_h][stride*j + first_w] = dy * turned, for i and j from 0 on, with stride 1 and `pad`
 *
 * so the pixels of dx fall into stride*stride phases, each with a filter of its own: C rows of R,S,K. */
struct cr_transposition {
    int64_t stride, tap_r, tap_s; /* taps tap_r + stride*i, tap_s + stride*j of the filter belong to the phase */
    int64_t first_r, first_s;     /* rows and columns of zeros in front, so that both paddings are one */
    int64_t R, S, pad;            /* of the turned filter; R or S 0: no tap, and dx is 0 there */
};
struct cr_transposition cr_sparse_transposition(int64_t R, int64_t S, int64_t stride, int64_t pad, int64_t first_h,
                                                int64_t first_w);
/* Places only, with `element`. turn->R and S are not 0. */
CR_MUST cr_status cr_sparse_transpose(const struct cr_sparse *sparse, const struct cr_transposition *turn,
                                      struct cr_sparse *turned);

/* ---- rows with stretched offsets: where a weight's input lies in a padded picture ---- */

struct cr_sparse_entry {
    float    value;
    uint32_t offset;
};

/* offset = (c - first of the chunk)*c_step + (r % stride)*r_phase + r/stride*r_step + (s % stride)*s_phase +
 * s/stride*s_step. Pictures whose pixels lie side by side have r_phase = a row's step, r_step = stride of it, and so
 * on; kernels that keep every stride-th pixel together have phases far apart. */
struct cr_linear_layout {
    int64_t stride, chunk; /* input channels of a chunk */
    int64_t c_step, r_phase, r_step, s_phase, s_step;
    int64_t rows, multiple; /* rows of a chunk, at least K; entries of a run are a multiple of this */
};
struct cr_linear_filter {
    int64_t                 chunks, rows;
    uint32_t               *start; /* [chunks*rows + 1]: the run of row k in chunk i begins at start[i*rows + k] */
    struct cr_sparse_entry *entry; /* runs are filled up with value 0 and the offset of their last entry */
    uint32_t               *from;  /* the element of the filter that each entry is; CR_SPARSE_FILL: none */
    int64_t                 entries;
};
#define CR_SPARSE_FILL UINT32_MAX
CR_MUST cr_status cr_sparse_linearize(const struct cr_sparse *sparse, const struct cr_linear_layout *how,
                                      struct cr_linear_filter *to);
/* How many entries that has, without writing them: what is asked of every layout that a filter might get. */
CR_MUST cr_status cr_sparse_linearize_count(const struct cr_sparse *sparse, const struct cr_linear_layout *how,
                                            int64_t *entries);
void              cr_linear_filter_free(struct cr_linear_filter *stretched);

/* Slices of `lanes` rows side by side: step i of a slice is an entry of each row, entry[i*lanes + row % lanes];
 * offset = r << 24 | s << 16 | c, so R and S are at most 256 and C at most 65536. rows is the number of slices, chunks
 * is 1. */
CR_MUST cr_status cr_sparse_sell(const struct cr_sparse *sparse, int64_t lanes, struct cr_linear_filter *to);
int64_t           cr_sparse_sell_count(const struct cr_sparse *sparse, int64_t lanes); /* entries */

/* ---- blocks: what is kept lies in `side` output x `side` input channels at one tap; tensor cores multiply whole ones
 * ---- */

/* Teams of a group make `side` output channels each, from the same input. Input passes in steps of `side` channels: at
 * one tap; or, with patch, at all taps, whose inputs lie r*pitch + s positions apart. Output blocks go to groups by how
 * much they keep, most first. */
struct cr_block_layout {
    int64_t side, teams;
    bool    patch;
    int64_t pitch;
};
/* One table of words; each part begins at its offset:
 *   steps[groups + 1]          where a group's steps begin in `step`: c-block | r << 16 | s << 24
 *   items[groups + 1]          where its filter blocks begin in `item`: each one's team, in the order of steps
 *   entries[groups*teams + 1]  where a team's products begin in `entry`: steps to go on before it << 16 | offset in
 * positions block[groups*teams]        a team's output block; UINT32_MAX: none from[items]                a filter
 * block's first element in the filter; CR_SPARSE_FILL: a block of zeros, of an output block of which nothing is kept */
struct cr_blocks {
    int64_t   groups, blocks; /* blocks: filter blocks that are stored */
    int64_t   words;
    uint32_t *table;
    uint32_t  steps, step, items, item, entries, entry, block, from;
};
/* Blocks with at least one bit; K and C are multiples of side. *stored: how many cr_blocks has of them, where an output
 * block that keeps nothing has one of zeros. */
int64_t           cr_sparse_count_blocks(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                                         int64_t side, int64_t *stored);
CR_MUST cr_status cr_sparse_blocks(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                                   const struct cr_block_layout *how, struct cr_blocks *blocks);
void              cr_blocks_free(struct cr_blocks *blocks);

/* ---- 2:4: of any 4 neighbours in a row at most 2 are kept; 16-bit elements, for the sparse tensor cores ---- */

/* Is a pattern of `rows` rows of `columns` bits like that? Bit i is bit j%8 of byte j/8, j = first + i; the last group
 * of a row may have fewer than 4. */
bool cr_sparse_is_24(const uint8_t *bits, int64_t first, int64_t rows, int64_t columns);
/* dense[rows][columns] -> values[rows][columns/2], places[rows][columns/16]: of each kept element 2 bits, its place
 * among the 4, first element lowest, 8 elements a word; of a pair the first place is the smaller one. columns is a
 * multiple of 16. An element is kept when its bits but for the sign are not 0. false: somewhere more than 2 of 4 are
 * kept. */
CR_MUST bool cr_sparse_24_encode(const uint16_t *dense, int64_t rows, int64_t columns, uint16_t *values,
                                 uint16_t *places);
void         cr_sparse_24_decode(const uint16_t *values, const uint16_t *places, int64_t rows, int64_t columns,
                                 uint16_t *dense);
/* The metadata operand of mma.sp m16n8k32 for 16 rows from `row` on and 32 columns from `column` on: lane's word with
 * selector 0 (lanes 0 and 1 of each four give theirs) or 1 (lanes 2 and 3). */
uint32_t cr_sparse_24_word(const uint16_t *places, int64_t columns, int64_t row, int64_t column, int lane);

#endif
