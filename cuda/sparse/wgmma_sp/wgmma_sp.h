/* cuda/sparse/wgmma_sp/wgmma_sp.h: FP32 convolutions with a mostly zero filter on the sparse tensor cores of compute
 * capability 9.0 (wgmma), for any sparsity pattern.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`. Sums are FP32.
 *
 * The filter is divided into pieces of 64 output channels x 32 input channels at one tap. Where no channel has more
 * than 2 nonzeros in any 4 neighbours, a piece is one sparse unit; otherwise it is two sparse units that divide the
 * nonzeros between them. Alternatively, a piece is one dense unit for each half of its input channels: a dense unit
 * takes as long as a sparse one and reads half as much. A piece without nonzeros has no unit. Units of one kind are
 * summed together, so that a piece has the kind of the piece before it unless the other kind saves more than the change
 * costs. A unit is operand A. The host packs the metadata (ck_wgmma_sp_pack). The device gathers the values
 * (ck_wgmma_sp_fill), so that the weights may change.
 *
 * Input and filter are split into two FP16 numbers each; three of the four products are summed. The error of an input
 * is 2^-22 of the input or 2^-29 of the largest of the 32 channels of its tile, whichever is larger. The input is
 * scaled by a power of two: by the scale of the tile before where that scale fits, else by a scale that the tile
 * computes. The error of a weight is 2^-22 of the weight or 2^-39 of its channel's largest weight. An infinity in the
 * input may give NaN. The tensor cores truncate sums instead of rounding them, which adds up where all terms have one
 * sign. Therefore the tensor cores sum at most CK_WGMMA_SP_CHAIN units, and those sums are added in FP32. The plan
 * fixes the order of summation. The conventions of cuda/common/launchers.h hold. */
#ifndef CK_WGMMA_SP_H
#define CK_WGMMA_SP_H

#include "cuda/sparse/two_four/two_four.h"

CK_C_BEGIN

enum {
    CK_WGMMA_SP_ROWS   = 64, /* output channels per block */
    CK_WGMMA_SP_CHUNK  = 32, /* input channels per unit */
    CK_WGMMA_SP_CHAIN  = 8,  /* maximum units whose products the tensor cores sum */
    CK_WGMMA_SP_VALUES = CK_WGMMA_SP_ROWS * CK_WGMMA_SP_CHUNK / 2, /* values per unit */
    /* words per unit: metadata, 4 bits per 4 channels; then the 4-word head, see cuda/sparse/wgmma_sp/wgmma_sp.cuh */
    CK_WGMMA_SP_WORDS = CK_WGMMA_SP_ROWS * CK_WGMMA_SP_CHUNK / 32 + 4
};

/* The tiling. The sum is computed in stages: chunk by chunk, and phase by phase of the stride within a chunk. Each
 * stage has at least one unit. */
struct ck_wgmma_sp_plan {
    struct ck_two_four_plan tile;
    /* the convolution that is computed; for a filter of one tap without padding, all pixels form one long column */
    struct ck_conv conv;
    /* parts that the chunks are divided into; with 2, a pair of thread blocks sums one part each and exchanges the sums
     */
    int parts;
};

/* A filter's units in device memory. */
struct ck_wgmma_sp_filter {
    const uint32_t *start; /* [blocks*parts + 1]: first unit of each part of a block */
    /* [units][CK_WGMMA_SP_WORDS], as ck_wgmma_sp_pack writes them; the kernel's control flow depends on `start` and
     * `words` */
    const uint32_t *words;
    /* values as ck_wgmma_sp_fill writes them; only y depends on the values, so that any contents are safe */
    const void  *units;
    const float *scale; /* [blocks*64] */
};

struct ck_wgmma_sp_args {
    const float              *x;
    struct ck_wgmma_sp_filter filter;
    const float              *bias; /* [K] or NULL */
    const float              *add;  /* shape of y, or NULL; y may be the same buffer */
    bool                      relu;
    float                    *y;
};

/* Tile configs are numbered 1..ck_wgmma_sp_configs(). The plan of a config is the tile with the fewest estimated cycles
 * for about `nnz` nonzero weights. C and K must be multiples of 4, because data are read and written 16 bytes at a
 * time. ck_wgmma_sp_make_plan returns false when the config does not support the convolution or `capability` is not 90.
 */
int ck_wgmma_sp_configs(void);
/* tile: workers, maximum columns, thread blocks per multiprocessor, parts. */
void ck_wgmma_sp_tile(int config, int tile[4]);
bool ck_wgmma_sp_make_plan(const struct ck_conv *conv, int64_t nnz, int config, int capability, int multiprocessors,
                           struct ck_wgmma_sp_plan *plan);
/* Packs a filter on the host; returns the number of units of all blocks. `nonzero` is [K][R*S*C], not 0 where a weight
 * is nonzero. Gives start [blocks*parts + 1], words [units][CK_WGMMA_SP_WORDS] and from [units][CK_WGMMA_SP_VALUES],
 * the index in the filter of each value, or UINT32_MAX for a value that is 0. start, words and from may each be NULL.
 */
int64_t ck_wgmma_sp_pack(const struct ck_wgmma_sp_plan *plan, const uint8_t *nonzero, uint32_t *start, uint32_t *words,
                         uint32_t *from);
/* Bytes of the units' values and scales; byte offset of the scales. */
size_t ck_wgmma_sp_bytes(const struct ck_wgmma_sp_plan *plan, int64_t units);
size_t ck_wgmma_sp_scale_at(int64_t units);
/* Writes the units' values and then the scales to `to`, which is aligned to 16 bytes. */
cudaError_t ck_wgmma_sp_fill(const struct ck_wgmma_sp_plan *plan, const float *w, const uint32_t *from, int64_t units,
                             void *to, cudaStream_t stream);
cudaError_t ck_wgmma_sp_conv(const struct ck_wgmma_sp_args *args, const struct ck_wgmma_sp_plan *plan,
                             int multiprocessors, cudaStream_t stream);

CK_C_END

#endif
