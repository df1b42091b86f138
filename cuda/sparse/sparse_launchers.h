/* cuda/sparse/sparse_launchers.h: convolutions whose filter is mostly zero, without im2col. Conventions of
 * cuda/common/launchers.h.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`; sums in f32 whatever the type of the data.
 *
 * Two kernels: ck_sparse_conv keeps the input in shared memory and wins when most weights are gone; ck_sell_conv reads
 * it where it lies, for denser filters and single small pictures. Any stride, padding, filter and batch; sums are taken
 * in an order that the plan fixes. The filter comes as values and offsets, entry by entry; the offsets are made on the
 * host for one plan, the values gathered on the device, so that they may change. */
#ifndef CK_SPARSE_LAUNCHERS_H
#define CK_SPARSE_LAUNCHERS_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Outputs that stand apart: (p, q) of a picture goes to pixel (p*step + h, q*step + w) of one of H x W. step 0: side by
 * side. */
struct ck_scatter {
    int     step, h, w;
    int64_t H, W;
};
struct ck_sparse_args {
    struct ck_conv  conv;
    const void     *x;
    const float    *values;  /* kept weights */
    const uint32_t *offsets; /* where their inputs lie from an output's first input on; in what unit, the kernel says */
    const uint32_t *start;   /* where rows of entries begin */
    const float    *bias;    /* [K] or NULL */
    const void     *add;     /* like y, or NULL; y may be add */
    bool            relu;
    void           *y;
    struct ck_scatter scatter;
};

/* values[i] = w[from[i]], or 0 where from[i] is UINT32_MAX. Bytes: 8 an entry and the lines of w that it touches;
 * limiter: memory. */
cudaError_t ck_sparse_gather(const void *w, enum ck_type type, const uint32_t *from, int64_t count, float *values,
                             cudaStream_t stream);

/* ---- cuda/sparse/direct/direct_conv.cu: input in shared memory ---- */

enum { CK_SPARSE_ITEMS = 128, CK_SPARSE_PAIR = 2 };

/* How the work is cut. The output is cut into patches of TP x TQ pixels, any 4 of which are a quad: one output of each
 * stands in 4 floats of one thread, so a read of 16 bytes of shared memory, where their inputs lie side by side, serves
 * a weight 4 times. A block has `groups` quads of patches (a tile) and some output channels; input channels pass in
 * chunks. Where few warps would have long rows, `split` warps share an output channel's weights. */
struct ck_sparse_plan {
    int64_t  tiles, k_blocks, chunks;
    int      quads, rows, warps; /* quads of outputs a thread, output channels a warp, warps a block */
    int      split, channels;    /* warps that share rows (1 unless rows is 1), output channels a block */
    int      TP, TQ, groups;
    int      patches_p, patches_q;
    int      IH, columns, pitch; /* staged rows of a patch; columns of one phase of the stride; 16-byte slots a row */
    int      chunk;              /* input channels */
    int      warp_bytes;         /* shared memory of a warp's own */
    size_t   shared_bytes;
    double   cycles;                 /* of a launch, as foreseen */
    uint16_t order[CK_SPARSE_ITEMS]; /* item of a tile (group, row, column) that lane and quad take; 0xffff: none */
};
/* Layout of the filter for a plan: input channels cut into chunks of `chunk`; start[chunk*rows_all + k] is where row
 * k's entries of the chunk begin, rows_all = k_blocks*channels, one number more at the end; rows beyond K are empty;
 * each such run has an even number of entries (fill up with value 0 and an offset of the same run); and offset = (c -
 * chunk's first)*c_step + r*r_step + (s % stride)*s_phase + s/stride*s_step          bytes */
struct ck_sparse_steps {
    int64_t c_step, r_step, s_phase, s_step;
};

/* Ways of cutting: 1..ck_sparse_conv_configs() force one each, way 0 is what arithmetic says is best for `kept` weights
 * in all. */
int  ck_sparse_conv_configs(void);
void ck_sparse_conv_tile(int config, int tile[3]); /* quads, rows, warps at most */
/* false: not with this way, or the pictures are too large (2^31 pixels or channels of a filter's slice that do not
 * fit). */
bool ck_sparse_conv_plan(const struct ck_conv *conv, int64_t nnz, int config, int multiprocessors, int shared_bytes,
                         struct ck_sparse_plan *plan);
struct ck_sparse_steps ck_sparse_conv_steps(const struct ck_conv *conv, const struct ck_sparse_plan *plan);
cudaError_t ck_sparse_conv(const struct ck_sparse_args *args, const struct ck_sparse_plan *plan, cudaStream_t stream);

/* ---- cuda/sparse/direct/direct_wgrad.cu: the gradient of the kept weights ---- */

/* dw[k,r,s,c] (+)= sum over n,p,q of dy[n,p,q,k] * x[n, p*stride-pad+r, q*stride-pad+s, c] where the weight is kept;
 * elsewhere 0 (+= 0). */
struct ck_sparse_wgrad {
    struct ck_conv  conv; /* f32 */
    const float    *x, *dy;
    const uint32_t *offsets, *start; /* as ck_sparse_conv reads them, for a plan of ck_sparse_wgrad_plan */
    const uint32_t *from;            /* the element of dw that each entry is; UINT32_MAX: none */
    int64_t         entries;
    float          *dw;
    bool            accumulate;
};
/* As ck_sparse_conv_plan; steps and layout of the filter are the same. */
bool   ck_sparse_wgrad_plan(const struct ck_conv *conv, int64_t nnz, int config, int multiprocessors, int shared_bytes,
                            struct ck_sparse_plan *plan);
size_t ck_sparse_wgrad_workspace(const struct ck_sparse_plan *plan, int64_t entries);
cudaError_t ck_sparse_wgrad(const struct ck_sparse_wgrad *args, const struct ck_sparse_plan *plan, void *workspace,
                            cudaStream_t stream);

/* ---- cuda/sparse/direct/sell_conv.cu: input where it lies ---- */

/* Layout of the filter: output channels in slices of 32; slice i has start[i+1] - start[i] steps, each of 32 entries,
 * one a channel (value 0 and an offset of the slice, or 0, where a channel has fewer); offset = r << 24 | s << 16 | c.
 */
bool        ck_sell_conv_supports(const struct ck_conv *conv);
cudaError_t ck_sell_conv(const struct ck_sparse_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
