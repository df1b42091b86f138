/* cuda/sparse/sparse_launchers.h: convolutions with a mostly zero filter, without im2col and without tensor cores.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`. Sums are FP32 for every data type.
 *
 * The conventions of cuda/common/launchers.h hold. There are two kernels. ck_sparse_conv keeps the input in shared
 * memory; it is faster when most weights are zero. ck_sell_conv reads the input from global memory; it is faster for
 * denser filters and for single small images. Both support any stride, padding, filter size and batch size. The plan
 * fixes the order of summation. The filter comes as values and offsets, one of each per entry. The offsets are made on
 * the host for one plan. The values are gathered on the device, so that the weights may change. */
#ifndef CK_SPARSE_LAUNCHERS_H
#define CK_SPARSE_LAUNCHERS_H

#include "cuda/common/launchers.h"

CK_C_BEGIN

/* Scattered outputs: output (p, q) of an image is pixel (p*step + h, q*step + w) of an image of H x W pixels. With step
 * 0 the outputs are contiguous and the other members are not used. */
struct ck_scatter {
    int     step, h, w;
    int64_t H, W;
};
struct ck_sparse_args {
    struct ck_conv conv;
    const void    *x;
    const float   *values; /* FP32, one per entry */
    /* offset of each entry's input from the output's first input; the unit depends on the kernel */
    const uint32_t   *offsets;
    const uint32_t   *start; /* index of the first entry of each row */
    const float      *bias;  /* [K] or NULL */
    const void       *add;   /* shape of y, or NULL; y may be the same buffer */
    bool              relu;
    void             *y;
    struct ck_scatter scatter;
};

/* values[i] = w[from[i]], or 0 where from[i] is UINT32_MAX. All pointers are device memory. Bytes: 8 per entry and the
 * cache lines of w that the entries touch. Limiter: memory bandwidth. */
cudaError_t ck_sparse_gather(const void *w, enum ck_type type, const uint32_t *from, int64_t count, float *values,
                             cudaStream_t stream);

/* ---- cuda/sparse/direct/direct_conv.cu: the input is in shared memory ---- */

enum { CK_SPARSE_ITEMS = 128, CK_SPARSE_PAIR = 2 };

/* The tiling. The output is divided into patches of TP x TQ pixels. Any 4 patches form a quad: the same output of the 4
 * patches is held in 4 floats of one thread, and their inputs are contiguous in shared memory, so that one 16-byte read
 * of shared memory serves a weight 4 times. A thread block computes a tile of `groups` quads of patches for `channels`
 * output channels. Input channels are processed in chunks. Where few warps would have long rows, `split` warps share
 * the weights of one output channel. */
struct ck_sparse_plan {
    int64_t tiles, k_blocks, chunks;
    int     quads, rows, warps; /* quads of outputs per thread, output channels per warp, warps per block */
    int     split, channels;    /* warps that share a row (1 unless `rows` is 1), output channels per block */
    int     TP, TQ, groups;
    int     patches_p, patches_q;
    /* IH: staged input rows of a patch; columns: staged columns of one phase of the stride; pitch: 16-byte slots per
     * row */
    int    IH, columns, pitch;
    int    chunk;      /* input channels per chunk */
    int    warp_bytes; /* bytes of shared memory that are private to a warp */
    size_t shared_bytes;
    double cycles; /* estimated cycles of a launch */
    /* the item of a tile (group, row, column) that quad and lane compute, at [quad*32 + lane]; 0xffff: none */
    uint16_t order[CK_SPARSE_ITEMS];
};
/* Byte steps of the filter's offsets. Filter format for a plan: input channels are divided into chunks of `chunk`. With
 * rows_all = k_blocks*channels, start[i*rows_all + k] is the first entry of row k in chunk i; one more element marks
 * the end. Rows from K on are empty. Each run of entries (one row, one chunk) has an even number of entries; a run is
 * padded with value 0 and an offset of the same run.
 *
 *   offset = (c - first channel of the chunk)*c_step + r*r_step + (s % stride)*s_phase + s/stride*s_step */
struct ck_sparse_steps {
    int64_t c_step, r_step, s_phase, s_step;
};

/* Gives the quads, rows and maximum number of warps of a tile config. Configs from 1 on select one tiling each; config
 * 0 selects the tiling with the fewest estimated cycles. */
void ck_sparse_conv_tile(int config, int tile[3]);
/* Makes a plan for a filter with `nnz` nonzero weights. Returns false when the config does not support the convolution
 * or the images are too large (2^31 pixels, or a patch that does not fit in `shared_bytes`, the shared memory of a
 * multiprocessor). */
bool ck_sparse_conv_plan(const struct ck_conv *conv, int64_t nnz, int config, int multiprocessors, int shared_bytes,
                         struct ck_sparse_plan *plan);
struct ck_sparse_steps ck_sparse_conv_steps(const struct ck_conv *conv, const struct ck_sparse_plan *plan);
cudaError_t ck_sparse_conv(const struct ck_sparse_args *args, const struct ck_sparse_plan *plan, cudaStream_t stream);

/* ---- cuda/sparse/direct/direct_wgrad.cu: the gradient of the nonzero weights ---- */

/* dw[k,r,s,c] (+)= sum over n,p,q of dy[n,p,q,k] * x[n, p*stride-pad+r, q*stride-pad+s, c] where the weight is nonzero.
 * Elsewhere dw is set to 0, or is unchanged when `accumulate`. */
struct ck_sparse_wgrad {
    struct ck_conv  conv; /* f32 */
    const float    *x, *dy;
    const uint32_t *offsets, *start; /* as for ck_sparse_conv, for a plan of ck_sparse_wgrad_plan */
    const uint32_t *from;            /* index in dw of each entry; UINT32_MAX: a padding entry */
    int64_t         entries;
    float          *dw;
    bool            accumulate;
};
/* Makes a plan as ck_sparse_conv_plan does. The steps and the filter format are the same. */
bool ck_sparse_wgrad_plan(const struct ck_conv *conv, int64_t nnz, int config, int multiprocessors, int shared_bytes,
                          struct ck_sparse_plan *plan);
/* Workspace of ck_sparse_wgrad in bytes. */
size_t      ck_sparse_wgrad_workspace(const struct ck_sparse_plan *plan, int64_t entries);
cudaError_t ck_sparse_wgrad(const struct ck_sparse_wgrad *args, const struct ck_sparse_plan *plan, void *workspace,
                            cudaStream_t stream);

/* ---- cuda/sparse/direct/sell_conv.cu: the input is in global memory ---- */

/* Filter format: output channels form SELL slices of 32. Slice i has start[i+1] - start[i] steps of 32 entries, one
 * entry per channel. A channel with fewer entries is padded with value 0 and an offset of the slice, or 0. offset = r
 * << 24 | s << 16 | c. */
bool        ck_sell_conv_supports(const struct ck_conv *conv);
cudaError_t ck_sell_conv(const struct ck_sparse_args *args, cudaStream_t stream);

CK_C_END

#endif
