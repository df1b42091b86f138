/* sparsity/band_2_4.h: unstructured sparse filters in a format for the sparse tensor cores (mma_sp).
 *
 * The sparse tensor cores multiply 16 output channels by 32 columns (r,s,c), with at most 2 nonzeros of 4 neighbouring
 * columns per channel. This format accepts any sparsity pattern. Output channels are divided into bands of 64, columns
 * into blocks of 8 neighbouring input channels of one tap. A band processes each block with a nonzero once if no
 * channel has more than 2 nonzeros of 4, otherwise twice; the second pass covers only those 16 channels that need it.
 * With a density of 0.1 there are about 1.1 passes on average, each at half the cost of a dense product; a dense filter
 * needs 2 passes.
 *
 * Invariants
 *   - Input channels are divided into chunks; run number: (band*chunks + chunk)*5 + list. List 0 has steps for all 64
 *     channels; list 1 + m has steps for channels 16m..16m+15 of the band only.
 *   - A step has 4 blocks; missing blocks have offset 0 and weights 0. A fragment is the filter operand of one step and
 *     16 channels.
 *   - The format has positions only, no values: weights may change while the sparsity pattern stays.
 * This header does not depend on graphs and devices. */
#ifndef CR_BAND_2_4_H
#define CR_BAND_2_4_H

#include "sparsity/sparsity.h"

enum {
    CR_MMA_SP_ROWS   = 16,
    CR_MMA_SP_GROUPS = 4,
    CR_MMA_SP_BAND   = 64,
    CR_MMA_SP_BLOCK  = 8,
    CR_MMA_SP_BLOCKS = 4,
    CR_MMA_SP_LANES  = 32
};

/* Input offset of a block: (c - first channel of the chunk)/8*c_step + r*r_step + s % stride * s_phase + s / stride *
 * s_step. */
struct cr_mma_sp_layout {
    int64_t stride, chunk; /* chunk: input channels per chunk, a multiple of 8 */
    int64_t c_step, r_step, s_phase, s_step;
    int64_t bands; /* bands*64 is at least K */
};

/* A fragment has 8 weights (4 pairs) and a word of places for each of 32 lanes. Pair i of a lane belongs to row lane/4
 * + 8*(i%2) and the 4 columns from 4*(lane%4 + 4*(i/2)) on. */
struct cr_mma_sp {
    int64_t   chunks, bands, steps, fragments;
    uint32_t *run;    /* [chunks*bands*5 + 1][2]: first step and first fragment of a run */
    uint32_t *offset; /* [steps + 1][4]: the last step may be read but is not used */
    uint32_t *from; /* [fragments][32][8]: element of each weight in the filter K,R,S,C; CR_SPARSE_FILL for a weight of
                         0. May be NULL */
    uint32_t *places; /* [fragments][32]; may be NULL */
};

/* Properties of a filter that all layouts need, computed once. */
struct cr_mma_sp_map {
    int64_t  K, R, S, C;
    int64_t  bands, blocks; /* bands of the filter; blocks of a tap */
    uint8_t *quad;          /* [bands][R*S][blocks][64][2]: bit i: channel i of these 4 is a nonzero of the row */
    uint8_t *passes;        /* [bands][R*S][blocks]: passes, 0 to 2, of each 16 rows, 2 bits each, first rows lowest */
};
/* Reads only the pattern of `sparse`. The caller calls cr_mma_sp_map_free. */
CR_MUST cr_status cr_mma_sp_map_make(const struct cr_sparse *sparse, struct cr_mma_sp_map *map);
void              cr_mma_sp_map_free(struct cr_mma_sp_map *map); /* a zeroed map is allowed */

/* Encodes the filter in this layout. The caller calls cr_mma_sp_free. weights = false omits `from` and `places`, which
 * need most of the memory, for callers that already have the fragments. CR_ERR_MEMORY. */
CR_MUST cr_status cr_mma_sp_make(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *layout, bool weights,
                                 struct cr_mma_sp *out);
/* Computes the number of fragments only, to compare weight formats. */
int64_t cr_mma_sp_count(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *layout);
void    cr_mma_sp_free(struct cr_mma_sp *out);

#endif
