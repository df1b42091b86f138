/* sparsity/band_2_4.h: filters most of whose weights are gone, cut up for the sparse tensor cores, which take products
 * of 16 output channels by 32 columns (r,s,c) of which a channel keeps at most 2 of each 4 neighbours.
 *
 * No pattern is asked for. Output channels are cut into bands of 64, columns into blocks of 8 neighbouring input
 * channels of one tap. A band walks the blocks of which any of its channels keeps something: once where no channel
 * keeps more than 2 of 4, else twice, and the second time only for those 16 channels that need it. A filter of one
 * tenth of its weights is walked about 1.1 times, at half the cost of a dense one; a dense one is walked twice.
 *
 * Laws
 *   - Input channels come in chunks; run (band*chunks + chunk)*5 + list. List 0 has steps for all 64 channels, list 1 +
 * m steps for channels 16m..16m+15 of the band only.
 *   - A step is 4 blocks; missing ones have offset 0 and weights 0. A fragment is the filter's operand of one step and
 * 16 channels.
 *   - Only places are made here, no values: weights may change while what is kept does not.
 * Knows nothing of graphs and devices. */
#ifndef CR_SPARSE_UNION_H
#define CR_SPARSE_UNION_H

#include "sparsity/sparsity.h"

enum {
    CR_MMA_SP_ROWS   = 16,
    CR_MMA_SP_GROUPS = 4,
    CR_MMA_SP_BAND   = 64,
    CR_MMA_SP_BLOCK  = 8,
    CR_MMA_SP_BLOCKS = 4,
    CR_MMA_SP_LANES  = 32
};

/* Where a block's input lies: offset = (c - chunk's first)/8*c_step + r*r_step + s % stride * s_phase + s / stride *
 * s_step. */
struct cr_mma_sp_layout {
    int64_t stride, chunk; /* input channels of a chunk: a multiple of 8 */
    int64_t c_step, r_step, s_phase, s_step;
    int64_t bands; /* bands*64 is at least K */
};

/* A fragment has for each of 32 lanes 8 weights (4 pairs) and a word of places. Pair i of a lane is of row lane/4 +
 * 8*(i%2) and of the 4 columns from 4*(lane%4 + 4*(i/2)) on. */
struct cr_mma_sp {
    int64_t   chunks, bands, steps, fragments;
    uint32_t *run;    /* [chunks*bands*5 + 1][2]: first step and first fragment of a run */
    uint32_t *offset; /* [steps + 1][4]: one more that may be read but is not used */
    uint32_t *from; /* [fragments][32][8]: the element of the filter K,R,S,C that each weight is; CR_SPARSE_FILL: none,
                       it is 0; or NULL */
    uint32_t *places; /* [fragments][32]; or NULL */
};

/* What every way of cutting a filter up asks of it, found once. */
struct cr_mma_sp_map {
    int64_t  K, R, S, C;
    int64_t  bands, blocks; /* of the filter; of a tap */
    uint8_t *quad;          /* [bands][R*S][blocks][64][2]: bit i: of the row, channel i of these 4 is kept */
    uint8_t
        *passes; /* [bands][R*S][blocks]: how often 16 rows each walk it, 0 to 2, 2 bits each, the first rows' lowest */
};
/* Of `sparse` the places alone are read. */
CR_MUST cr_status cr_mma_sp_map_make(const struct cr_sparse *sparse, struct cr_mma_sp_map *map);
void              cr_mma_sp_map_free(struct cr_mma_sp_map *map); /* a zeroed one is fine */

/* weights false: without `from` and `places`, which are most of it, and of no use to who has the fragments already. */
CR_MUST cr_status cr_mma_sp_make(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *how, bool weights,
                                 struct cr_mma_sp *to);
/* How many fragments that has, without writing them: what is asked of every layout that a filter might get. */
int64_t cr_mma_sp_count(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *how);
void    cr_mma_sp_free(struct cr_mma_sp *to);

#endif
