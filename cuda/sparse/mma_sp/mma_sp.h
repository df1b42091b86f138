/* cuda/sparse/mma_sp/mma_sp.h: convolutions with a mostly zero filter on the sparse tensor cores (mma.sp), for any
 * sparsity pattern.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`. Sums are FP32 for every data type.
 *
 * The filter is divided into bands of 64 output channels and blocks of 8 columns, as sparsity/band_2_4.h describes.
 * FP32 operands are split into two FP16 numbers each; three of the four products are summed, so that the result is as
 * exact as FP32 sums. Each tile scales its input by a power of two of its own, so that the range of the input does not
 * matter. An infinity in the input may give NaN. Any stride, padding, filter size and batch size is supported. The plan
 * fixes the order of summation. The conventions of cuda/common/launchers.h hold. */
#ifndef CK_MMA_SP_H
#define CK_MMA_SP_H

#include "cuda/common/launchers.h"

CK_C_BEGIN

/* BAND: output channels per band. GROUPS: groups of 16 output channels per band, one fragment each. BLOCK: columns per
 * block.
 *
 * A thread block has 8 warps, or 4 when a warp has many columns. A thread block computes `bands` bands of
 * warps/bands/split spans of 8*columns pixels. `split` warps compute one span, each a part of the sum. */
enum { CK_MMA_SP_BAND = 64, CK_MMA_SP_GROUPS = 4, CK_MMA_SP_BLOCK = 8 };

/* The tiling. The output is divided into patches of TP x TQ pixels. A tile is `groups` patches. */
struct ck_mma_sp_plan {
    int64_t tiles, k_blocks, chunks;
    /* bands: of a thread block; columns: of 8 pixels each, of a warp; split: warps that share the sums of the same
     * outputs */
    int bands, columns, split;
    int TP, TQ, groups, patches_p, patches_q;
    /* IH: staged input rows of a patch; phase: staged columns of one phase of the stride; pitch: staged pixels per row
     */
    int    IH, phase, pitch;
    int    chunk;       /* input channels per chunk: a multiple of 8 */
    int    place_bytes; /* bytes of a staged pixel */
    size_t shared_bytes;
    double cycles; /* estimated cycles of a launch */
};
/* Byte steps of the filter's offsets:
 *
 *   offset of a block = (c - first channel of the chunk)/8*c_step + r*r_step + (s % stride)*s_phase + s/stride*s_step
 */
struct ck_mma_sp_steps {
    int64_t c_step, r_step, s_phase, s_step;
};

/* ---- the filter: cuda/sparse/mma_sp/mma_sp_fill.cu ---- */

/* Writes the fragments, each with its weights and metadata, and then the scales. For FP32, the weights of channel k are
 * divided by scale[k], a power of two, and split into two FP16 numbers each. The error is 2^-22 of a weight or 2^-39 of
 * the channel's largest weight, whichever is larger. */
struct ck_mma_sp_fill_args {
    const void     *w; /* [K][taps] */
    enum ck_type    type;
    int64_t         K, taps, bands, fragments;
    const uint32_t *from, *places; /* as the host's struct cr_mma_sp, copied to the device */
    void           *to;            /* ck_mma_sp_bytes() bytes, aligned to 16 */
};
/* Bytes of the fragments and the scales; byte offset of the scales, which are FP32 [bands*64]. */
size_t      ck_mma_sp_bytes(enum ck_type type, int64_t fragments, int64_t bands);
size_t      ck_mma_sp_scale_at(enum ck_type type, int64_t fragments);
cudaError_t ck_mma_sp_fill(const struct ck_mma_sp_fill_args *args, cudaStream_t stream);

/* ---- convolutions: cuda/sparse/mma_sp/mma_sp.cu ---- */

struct ck_mma_sp_args {
    struct ck_conv  conv;
    const void     *x;
    const uint32_t *run; /* as the host's struct cr_mma_sp, for the plan's chunk and steps and k_blocks*bands bands */
    const uint32_t *offset;
    const void     *fragment;
    const float    *scale;
    const float    *bias; /* [K] or NULL */
    const void     *add;  /* shape of y, or NULL; y may be the same buffer */
    bool            relu;
    void           *y;
    int64_t         l2_bytes; /* of the GPU */
};

/* Tile configs 1..ck_mma_sp_conv_configs() select one tiling each. Config 0 selects the tiling with the fewest
 * estimated cycles. */
int  ck_mma_sp_conv_configs(void);
void ck_mma_sp_conv_tile(int config, int tile[3]); /* tile: bands, columns, split */
/* Makes a plan for a filter with about `nnz` nonzero weights. Returns false when the config does not support the
 * convolution or the images are too large. `shared_bytes` is the shared memory of a multiprocessor. */
bool ck_mma_sp_conv_plan(const struct ck_conv *conv, int64_t nnz, int config, int multiprocessors, int shared_bytes,
                         struct ck_mma_sp_plan *plan);
struct ck_mma_sp_steps ck_mma_sp_conv_steps(const struct ck_mma_sp_plan *plan);
cudaError_t ck_mma_sp_conv(const struct ck_mma_sp_args *args, const struct ck_mma_sp_plan *plan, cudaStream_t stream);

CK_C_END

#endif
