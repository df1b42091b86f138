/* device/cpu/tuned/sparse_conv.h: convolution of f32 images with a sparse filter (sparsity/sparsity.h) on the CPU.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`;  x is N,H,W,C, y and add N,P,Q,K
 *
 * Any stride, padding, filter and batch. The plan fixes the order of sums, so results are bitwise identical for any
 * number of threads. */
#ifndef CR_CPU_SPARSE_CONV_H
#define CR_CPU_SPARSE_CONV_H

#include "sparsity/sparsity.h"

/* Division of the work, computed by cr_cpu_sparse_conv_plan from the shape. */
struct cr_cpu_sparse_plan {
    int64_t N, H, W, C, K, R, S, stride, pad, P, Q;
    int64_t images, band;         /* images and output rows of a unit of work; images > 1 only with whole images */
    int64_t rows, columns;        /* staged rows and columns of an image, for one phase of the stride */
    int64_t channel_elems, chunk; /* staged floats of a channel; channels staged at a time */
    int64_t vectors;              /* vectors of 16 outputs for one channel of a unit */
};
struct cr_cpu_sparse_plan cr_cpu_sparse_conv_plan(int64_t N, int64_t H, int64_t W, int64_t C, int64_t K, int64_t R,
                                                  int64_t S, int64_t stride, int64_t pad);
/* Returns the parameters of cr_sparse_linearize for the plan. */
struct cr_linear_layout cr_cpu_sparse_conv_layout(const struct cr_cpu_sparse_plan *plan);

struct cr_cpu_sparse_call {
    const float                   *x, *bias, *add; /* bias and add may be NULL; y may be add */
    const struct cr_linear_filter *filter;
    float                         *y;
    bool                           relu;
};
/* Bytes of scratch memory. */
size_t cr_cpu_sparse_conv_workspace(const struct cr_cpu_sparse_plan *plan, int threads);
void   cr_cpu_sparse_conv(const struct cr_cpu_sparse_plan *plan, const struct cr_cpu_sparse_call *call, void *workspace,
                          int threads);

/* ---- device/cpu/tuned/sparse_wgrad.c: gradient of the nonzeros of a filter; pruned weights get gradient 0 ---- */

struct cr_cpu_sparse_wgrad {
    const float                   *x, *dy;
    const struct cr_linear_filter *filter; /* for the plan of the forward convolution; values are not used */
    float                         *dw;
    bool                           accumulate;
};
size_t cr_cpu_sparse_wgrad_workspace(const struct cr_cpu_sparse_plan *plan, const struct cr_linear_filter *filter,
                                     int threads);
void cr_cpu_sparse_wgrad(const struct cr_cpu_sparse_plan *plan, const struct cr_cpu_sparse_wgrad *call, void *workspace,
                         int threads);

/* ---- between device/cpu/tuned/sparse_conv.c and device/cpu/tuned/sparse_wgrad.c ---- */

/* Position of a unit of work: `images` images from image n, and output rows from p0. */
struct cr_cpu_sparse_tile {
    int64_t n, images, p0;
};
int64_t cr_cpu_sparse_staged_elems(
    const struct cr_cpu_sparse_plan
        *plan); /* floats of staged channels, with a margin for vectors that read beyond the end */
/* Copies `channels` input channels from c0 of the unit to to[channel*channel_elems + ...], with padding. */
void cr_cpu_sparse_stage(const struct cr_cpu_sparse_plan *plan, const struct cr_cpu_sparse_tile *tile, const float *x,
                         int64_t c0, int64_t channels, float *to);
/* Copies output channels from k0 to to[channel*pitch + ...]. An output is at the position of the staged input of its
 * first filter element; all other floats are 0. pitch is at least 16*vectors + 8. */
void cr_cpu_sparse_stage_outputs(const struct cr_cpu_sparse_plan *plan, const struct cr_cpu_sparse_tile *place,
                                 const float *y, int64_t k0, int64_t channels, int64_t pitch, float *to);

#endif
