/* cuda/sparse/wgmma_sp/wgmma_sp.h: f32 convolutions with a mostly zero filter on Hopper's sparse tensor cores (wgmma),
 * no pattern asked for. Conventions of cuda/common/launchers.h.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`; sums in f32.
 *
 * A piece of the filter, 64 output channels by 32 input channels of one tap, is a unit where no channel keeps more than
 * 2 of any 4 neighbours, or two that share them out; or one of plain products for each half of its input channels: they
 * take as long and read half as much. Where nothing is kept there is none. Units of a kind are summed together, so a
 * piece is of the kind that is at hand unless the other saves more than a change costs. A unit is operand A, whose
 * places the host packs (ck_wgmma_sp_pack) and whose values are gathered on the device (ck_wgmma_sp_fill), so that they
 * may change.
 *
 * Input and filter are taken apart into two f16 numbers each, of whose four products three are summed: of an input what
 * is lost is 2^-22 of it or 2^-29 of the largest of its tile's 32 channels, whichever is more (the input is made larger
 * or smaller by a power of two: that of the tile before where it suits, else one that the tile finds itself), of a
 * weight 2^-22 of it or 2^-39 of its channel's largest. Where the input has an infinity the results may be NaN. The
 * tensor cores cut sums off instead of rounding them, which where all terms have one sign is lost each time: only
 * CK_WGMMA_SP_CHAIN units are summed there, and those sums in f32 as others are. Sums are taken in an order that the
 * plan fixes. */
#ifndef CK_WGMMA_SP_H
#define CK_WGMMA_SP_H

#include "cuda/sparse/two_four/two_four.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CK_WGMMA_SP_ROWS   = 64, /* output channels of a block */
    CK_WGMMA_SP_CHUNK  = 32, /* input channels of a unit */
    CK_WGMMA_SP_CHAIN  = 8,  /* units at most whose products are summed by the tensor cores */
    CK_WGMMA_SP_VALUES = CK_WGMMA_SP_ROWS * CK_WGMMA_SP_CHUNK / 2, /* of a unit */
    CK_WGMMA_SP_WORDS  = CK_WGMMA_SP_ROWS * CK_WGMMA_SP_CHUNK / 32 +
                        4 /* places, 4 bits for each 4 channels; then the head: see the kernel */
};

/* How the work is cut. The sum passes in stages: chunk by chunk, in each chunk phase by phase of the stride; each has
 * one unit at least. */
struct ck_wgmma_sp_plan {
    struct ck_two_four_plan tile;
    struct ck_conv conv;  /* what is computed: pixels of a filter of one tap without padding are one long column */
    int            parts; /* of the chunks: 2: blocks are in pairs, each sums one part, and they exchange sums */
};

/* A filter's units on the device. */
struct ck_wgmma_sp_filter {
    const uint32_t *start; /* [blocks * parts + 1]: first unit of a block's part */
    const uint32_t *words; /* [units][CK_WGMMA_SP_WORDS]; start and words are as packed: a kernel goes by them */
    const void  *units; /* values as ck_wgmma_sp_fill writes them; whatever they are, nothing but y depends on them */
    const float *scale; /* [blocks*64] */
};

struct ck_wgmma_sp_args {
    const float              *x;
    struct ck_wgmma_sp_filter filter;
    const float              *bias; /* [K] or NULL */
    const float              *add;  /* like y, or NULL; y may be add */
    bool                      relu;
    float                    *y;
};

/* Ways of cutting: 1..ck_wgmma_sp_configs(); each takes the tile with the fewest cycles by arithmetic, for about `kept`
 * weights. Compute capability 9.0 alone; f32; C and K are multiples of 4, which leave and arrive as 16 bytes. false:
 * not with this way. */
int  ck_wgmma_sp_configs(void);
void ck_wgmma_sp_tile(int config, int tile[4]); /* workers, columns at most, blocks of a multiprocessor, parts */
bool ck_wgmma_sp_make_plan(const struct ck_conv *conv, int64_t nnz, int config, int capability, int multiprocessors,
                           struct ck_wgmma_sp_plan *plan);
/* On the host, of `kept` [K][R*S*C], not 0 where a weight is kept: units of all blocks. start[blocks * parts + 1];
 * words[units][CK_WGMMA_SP_WORDS]; from[units][CK_WGMMA_SP_VALUES]: the element of the filter that each value is,
 * UINT32_MAX: none, it is 0. Each may be NULL. */
int64_t ck_wgmma_sp_pack(const struct ck_wgmma_sp_plan *plan, const uint8_t *kept, uint32_t *start, uint32_t *words,
                         uint32_t *from);
/* Bytes of units' values and scales; where the scales begin. */
size_t ck_wgmma_sp_bytes(const struct ck_wgmma_sp_plan *plan, int64_t units);
size_t ck_wgmma_sp_scale_at(int64_t units);
/* `to`: units' values, then scales; aligned to 16. */
cudaError_t ck_wgmma_sp_fill(const struct ck_wgmma_sp_plan *plan, const float *w, const uint32_t *from, int64_t units,
                             void *to, cudaStream_t stream);
cudaError_t ck_wgmma_sp_conv(const struct ck_wgmma_sp_args *args, const struct ck_wgmma_sp_plan *plan,
                             int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
