/* cuda/sparse/two_four/two_four.h: convolutions with a 2:4 sparse filter on the sparse tensor cores of compute
 * capability 9.0.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`. Data are 16-bit; sums are FP32 and are rounded once.
 *
 * Of any 4 neighbouring input channels of a filter tap at most 2 weights are nonzero. The filter is operand A, whose
 * rows are output channels; pixels are operand B. The host packs the metadata for one plan (ck_two_four_pack). The
 * device gathers the values (ck_two_four_gather), so that the weights may change. The conventions of
 * cuda/common/launchers.h hold. */
#ifndef CK_TWO_FOUR_H
#define CK_TWO_FOUR_H

#include "cuda/common/launchers.h"

CK_C_BEGIN

enum {
    CK_TWO_FOUR_ROWS  = 64, /* output channels per block */
    CK_TWO_FOUR_CHUNK = 64, /* input channels per unit: the sums of two instructions */
    /* packed values per unit; a unit is one block of output channels, one tap and one chunk of input channels */
    CK_TWO_FOUR_UNIT = CK_TWO_FOUR_ROWS * CK_TWO_FOUR_CHUNK / 2,
    /* words of metadata per unit: 4 bits per 4 input channels */
    CK_TWO_FOUR_WORDS  = CK_TWO_FOUR_ROWS * CK_TWO_FOUR_CHUNK / 32,
    CK_TWO_FOUR_TAPS   = 64, /* maximum taps of a filter */
    CK_TWO_FOUR_PHASES = 4   /* maximum phases of a stride, in both directions together */
};

/* The tiling. The sum is computed unit by unit: chunk by chunk, and tap by tap within a chunk. */
struct ck_two_four_plan {
    int     taps, chunks;
    int64_t blocks, tiles;         /* blocks of output channels; tiles of pixels */
    uint8_t tap[CK_TWO_FOUR_TAPS]; /* r*S + s, in the order of units */
    int     shared_bytes;
    double  cycles; /* estimated cycles of a launch */
    /* A tile is TP rows of y of `images` images. Pixels are stored with the image innermost, then the column, then the
     * row. The inputs of one phase of the stride are in shared memory once for all taps of the phase. */
    int columns; /* N of an instruction: positions of a tile */
    int workers; /* warpgroups that multiply; each computes one block of channels */
    /* units by which the first worker leads the second one, so that the two do not store at the same time */
    int lead;
    int images, TP, strips; /* strips: tiles that one image's rows are divided into */
    int pitch, rows;        /* pitch: pixels per row; rows: rows that are loaded */
    /* first row and column that are loaded, relative to those of y, in pixels of a phase */
    int      low_r, low_s;
    int      phases, phase_r[CK_TWO_FOUR_PHASES], phase_s[CK_TWO_FOUR_PHASES];
    uint64_t first, last;          /* bit i: tap i is the first (last) tap of its phase */
    int      at[CK_TWO_FOUR_TAPS]; /* first position of each tap's operand B */
    /* in shared memory: stages of input (one phase and chunk each); ring of filter units for each worker */
    int stages, ring;
    int stage_bytes;
};

struct ck_two_four_args {
    struct ck_conv  conv; /* f16 or bf16 */
    const void     *x;
    const void     *values; /* values, as ck_two_four_gather writes them */
    const uint32_t *places; /* metadata, as ck_two_four_pack writes it */
    const float    *bias;   /* [K] or NULL */
    const void     *add;    /* shape of y, or NULL; y may be the same buffer */
    bool            relu;
    void           *y;
};

/* Tile configs are numbered 1..ck_two_four_configs(). The plan of a config is the tile with the fewest estimated
 * cycles. C and K must be multiples of 8. ck_two_four_make_plan returns false when the config does not support the
 * convolution or `capability` is not 90. */
int  ck_two_four_configs(void);
void ck_two_four_tile(int config, int tile[2]); /* tile: workers, maximum columns */
bool ck_two_four_make_plan(const struct ck_conv *conv, int config, int capability, int multiprocessors,
                           struct ck_two_four_plan *plan);
/* Number of units of all blocks. A unit has CK_TWO_FOUR_UNIT values and CK_TWO_FOUR_WORDS words of metadata. */
int64_t ck_two_four_units(const struct ck_two_four_plan *plan);
/* Packs a filter on the host. `places` is [K][R*S*C16/16], as cr_sparse_24_encode writes it; C16 is C rounded up to a
 * multiple of 16, and the added weights are zero. Gives words [units][CK_TWO_FOUR_WORDS], the metadata, and from
 * [units][CK_TWO_FOUR_UNIT], the index in the dense filter [K][R][S][C] of each packed value, or UINT32_MAX for a value
 * that is 0. `words` or `from` may be NULL. */
void ck_two_four_pack(const struct ck_conv *conv, const struct ck_two_four_plan *plan, const uint16_t *places,
                      uint32_t *words, uint32_t *from);
/* values[i] = dense[from[i]], or 0 where from[i] is UINT32_MAX. Elements are 16-bit. */
cudaError_t ck_two_four_gather(const void *dense, const uint32_t *from, int64_t count, void *values,
                               cudaStream_t stream);
cudaError_t ck_two_four_conv(const struct ck_two_four_args *args, const struct ck_two_four_plan *plan,
                             int multiprocessors, cudaStream_t stream);

CK_C_END

#endif
