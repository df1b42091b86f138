/* cuda/sparse/mma_sp/mma_sp.h: convolutions with a mostly zero filter on the sparse tensor cores, no pattern asked for.
 * Conventions of cuda/common/launchers.h.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`; sums in f32 whatever the type of the data.
 *
 * The filter comes cut into bands of 64 output channels and blocks of 8 columns, as the host's sparsity/band_2_4.h
 * says. f32 is as exact as sums in f32 are: input and filter are taken apart into two f16 numbers each, of whose four
 * products three are summed. The input is made larger or smaller by a power of two that each tile finds itself, so that
 * its range does not matter; where it has an infinity the results may be NaN. Any stride, padding, filter and batch;
 * sums are taken in an order that the plan fixes. */
#ifndef CK_MMA_SP_H
#define CK_MMA_SP_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A band's output channels, and those of one fragment. A block has 8 warps, or 4 with many columns: `bands` bands by
 * warps/bands/split spans of 8*columns pixels, each by `split` warps, which take a part of the sum each. */
enum { CK_MMA_SP_BAND = 64, CK_MMA_SP_GROUPS = 4, CK_MMA_SP_BLOCK = 8 };

/* How the work is cut. The output is cut into patches of TP x TQ pixels; a tile is `groups` patches. */
struct ck_mma_sp_plan {
    int64_t tiles, k_blocks, chunks;
    int bands, columns, split; /* of a block; 8 pixels each, of a warp; warps that share the sums of the same outputs */
    int TP, TQ, groups, patches_p, patches_q;
    int IH, phase, pitch; /* staged rows of a patch; columns of one phase of the stride; places a row */
    int chunk;            /* input channels: a multiple of 8 */
    int place_bytes;      /* of a staged pixel */
    size_t shared_bytes;
    double cycles; /* of a launch, as foreseen */
};
/* offset of a block = (c - chunk's first)/8*c_step + r*r_step + (s % stride)*s_phase + s/stride*s_step            bytes
 */
struct ck_mma_sp_steps {
    int64_t c_step, r_step, s_phase, s_step;
};

/* ---- the filter: cuda/sparse/mma_sp/mma_sp_fill.cu ---- */

/* Fragments with their weights and places, for f32 as two f16 numbers after channel k was made larger by the power of
 * two 1/scale[k], so that what is lost is 2^-22 of a weight or 2^-39 of the channel's largest, whichever is more; then
 * the scales. */
struct ck_mma_sp_fill_args {
    const void     *w; /* [K][taps] */
    enum ck_type    type;
    int64_t         K, taps, bands, fragments;
    const uint32_t *from, *places; /* as the host's cr_mma_sp */
    void           *to;            /* ck_mma_sp_bytes, aligned to 16 */
};
size_t      ck_mma_sp_bytes(enum ck_type type, int64_t fragments, int64_t bands);
size_t      ck_mma_sp_scale_at(enum ck_type type, int64_t fragments); /* where the scales begin */
cudaError_t ck_mma_sp_fill(const struct ck_mma_sp_fill_args *args, cudaStream_t stream);

/* ---- convolutions: cuda/sparse/mma_sp/mma_sp.cu ---- */

struct ck_mma_sp_args {
    struct ck_conv  conv;
    const void     *x;
    const uint32_t *run; /* as the host's cr_mma_sp, for the plan's chunk and steps and k_blocks*bands bands */
    const uint32_t *offset;
    const void     *fragment;
    const float    *scale;
    const float    *bias; /* [K] or NULL */
    const void     *add;  /* like y, or NULL; y may be add */
    bool            relu;
    void           *y;
};

/* Ways of cutting: 1..ck_mma_sp_conv_configs() force one each, way 0 is what arithmetic says is best. */
int  ck_mma_sp_conv_configs(void);
void ck_mma_sp_conv_tile(int config, int tile[3]); /* bands, columns, split */
/* For about `kept` weights. false: not with this way, or the pictures are too large. */
bool ck_mma_sp_conv_plan(const struct ck_conv *conv, int64_t nnz, int config, int multiprocessors, int shared_bytes,
                         struct ck_mma_sp_plan *plan);
struct ck_mma_sp_steps ck_mma_sp_conv_steps(const struct ck_mma_sp_plan *plan);
cudaError_t ck_mma_sp_conv(const struct ck_mma_sp_args *args, const struct ck_mma_sp_plan *plan, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
