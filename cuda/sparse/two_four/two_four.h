/* cuda/sparse/two_four/two_four.h: convolutions with a 2:4 sparse filter on the sparse tensor cores. Conventions of
 * cuda/common/launchers.h.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`; 16-bit data, sums in f32, one rounding.
 *
 * Of any 4 neighbouring input channels of a filter's tap at most 2 are kept. The filter is operand A (rows are output
 * channels), pixels are operand B. Which weights are kept is packed on the host for one plan (ck_two_four_pack); their
 * values are gathered on the device (ck_two_four_gather), so that they may change. */
#ifndef CK_TWO_FOUR_H
#define CK_TWO_FOUR_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CK_TWO_FOUR_ROWS  = 64, /* output channels of a block */
    CK_TWO_FOUR_CHUNK = 64, /* input channels of a unit: two instructions' sums */
    CK_TWO_FOUR_UNIT  = CK_TWO_FOUR_ROWS * CK_TWO_FOUR_CHUNK /
                       2, /* kept values of a unit: a block's, of one tap and one chunk of channels */
    CK_TWO_FOUR_WORDS =
        CK_TWO_FOUR_ROWS * CK_TWO_FOUR_CHUNK / 32, /* words of metadata of a unit: 4 bits for each 4 channels */
    CK_TWO_FOUR_TAPS   = 64,                       /* of a filter, at most */
    CK_TWO_FOUR_PHASES = 4                         /* of a stride in both directions, at most */
};

/* How the work is cut. The sum passes in units, chunk by chunk, in each chunk tap by tap. */
struct ck_two_four_plan {
    int     taps, chunks;
    int64_t blocks, tiles;         /* of output channels; of pixels */
    uint8_t tap[CK_TWO_FOUR_TAPS]; /* r*S + s, in the order of units */
    int     shared_bytes;
    double  cycles; /* of a launch, as foreseen */
    /* A tile is TP rows of y of `images` images, whose pixels stand side by side: image innermost, then column, then
     * row. Its inputs lie in shared memory, one phase of the stride at a time, once for all taps of the phase. */
    int      columns; /* of an instruction: positions of a tile */
    int      workers; /* warpgroups, each with a block of channels */
    int      lead; /* units that the first worker is ahead of the second, so that they do not store at the same time */
    int      images, TP, strips; /* strips: tiles of an image's rows */
    int      pitch, rows;        /* positions / images of a row; rows that are loaded */
    int      low_r, low_s;       /* first row and column that are loaded, from y's on, in pixels of a phase */
    int      phases, phase_r[CK_TWO_FOUR_PHASES], phase_s[CK_TWO_FOUR_PHASES];
    uint64_t first, last;          /* bit i: tap i is its phase's first, last */
    int      at[CK_TWO_FOUR_TAPS]; /* first position of a tap's operand B */
    int      stages, ring; /* in shared memory: inputs of a phase and chunk; units of the filter for each worker */
    int      stage_bytes;
};

struct ck_two_four_args {
    struct ck_conv  conv; /* f16 or bf16 */
    const void     *x;
    const void     *values; /* kept values, as ck_two_four_gather puts them */
    const uint32_t *places; /* metadata, as ck_two_four_pack puts it */
    const float    *bias;   /* [K] or NULL */
    const void     *add;    /* like y, or NULL; y may be add */
    bool            relu;
    void           *y;
};

/* Ways of cutting: 1..ck_two_four_configs(); each takes the tile with the fewest cycles by arithmetic. Compute
 * capability 9.0 alone. C and K are multiples of 8. false: not with this way. */
int  ck_two_four_configs(void);
void ck_two_four_tile(int config, int tile[2]); /* workers, columns at most */
bool ck_two_four_make_plan(const struct ck_conv *conv, int config, int capability, int multiprocessors,
                           struct ck_two_four_plan *plan);
/* Units of all blocks: CK_TWO_FOUR_UNIT values and CK_TWO_FOUR_WORDS words of metadata each. */
int64_t ck_two_four_units(const struct ck_two_four_plan *plan);
/* On the host, of a filter K,R,S,C16, whose C is filled up to a multiple of 16, C16, with what is not kept:
 * places[K][R*S*C16/16] as of cr_sparse_24_encode. words[units][CK_TWO_FOUR_WORDS]; from[units][CK_TWO_FOUR_UNIT]: the
 * element of the dense filter K,R,S,C that packed value i is, UINT32_MAX: none, it is 0. Either may be NULL. */
void ck_two_four_pack(const struct ck_conv *conv, const struct ck_two_four_plan *plan, const uint16_t *places,
                      uint32_t *words, uint32_t *from);
/* values[i] = dense[from[i]], or 0; elements of 16 bits. */
cudaError_t ck_two_four_gather(const void *dense, const uint32_t *from, int64_t count, void *values,
                               cudaStream_t stream);
cudaError_t ck_two_four_conv(const struct ck_two_four_args *args, const struct ck_two_four_plan *plan,
                             int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
