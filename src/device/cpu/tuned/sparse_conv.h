/* device/cpu/tuned/sparse_conv.h: convolution of an f32 picture with a filter whose weights are mostly gone
 * (sparsity/sparsity.h), on the CPU.
 *
 *   y = x * w (+ bias[k]) (+ add), then ReLU when `relu`;  x is N,H,W,C, y and add N,P,Q,K
 *
 * Any stride, padding, filter and batch. The order of sums is fixed by the plan: the same bits for any number of
 * threads. */
#ifndef CR_CPU_SPARSE_CONV_H
#define CR_CPU_SPARSE_CONV_H

#include "sparsity/sparsity.h"

/* What is cut into what: filled by cr_cpu_sparse_conv_plan from the shape. */
struct cr_cpu_sparse_plan {
    int64_t N, H, W, C, K, R, S, stride, pad, P, Q;
    int64_t images, band;         /* pictures and output rows of a unit of work; images > 1 only with whole pictures */
    int64_t rows, columns;        /* staged rows of a picture and columns, of one phase of the stride */
    int64_t channel_elems, chunk; /* staged floats of a channel, channels staged at a time */
    int64_t vectors;              /* of 16 outputs of a unit, for one channel */
};
struct cr_cpu_sparse_plan cr_cpu_sparse_conv_plan(int64_t N, int64_t H, int64_t W, int64_t C, int64_t K, int64_t R,
                                                  int64_t S, int64_t stride, int64_t pad);
/* How cr_sparse_linearize is to lay out the filter for the plan. */
struct cr_linear_layout cr_cpu_sparse_conv_layout(const struct cr_cpu_sparse_plan *plan);

struct cr_cpu_sparse_call {
    const float                   *x, *bias, *add; /* bias and add may be NULL; y may be add */
    const struct cr_linear_filter *filter;
    float                         *y;
    bool                           relu;
};
size_t cr_cpu_sparse_conv_workspace(const struct cr_cpu_sparse_plan *plan, int threads);
/* The same bits for any number of threads. */
void cr_cpu_sparse_conv(const struct cr_cpu_sparse_plan *plan, const struct cr_cpu_sparse_call *call, void *workspace,
                        int threads);

/* ---- device/cpu/tuned/sparse_wgrad.c: dw (+)= the gradient of the kept weights; 0 (+= 0) elsewhere ---- */

struct cr_cpu_sparse_wgrad {
    const float                   *x, *dy;
    const struct cr_linear_filter *filter; /* places only, for the plan of the forward convolution */
    float                         *dw;
    bool                           accumulate;
};
size_t cr_cpu_sparse_wgrad_workspace(const struct cr_cpu_sparse_plan *plan, const struct cr_linear_filter *filter,
                                     int threads);
void cr_cpu_sparse_wgrad(const struct cr_cpu_sparse_plan *plan, const struct cr_cpu_sparse_wgrad *call, void *workspace,
                         int threads);

/* ---- between device/cpu/tuned/sparse_conv.c and device/cpu/tuned/sparse_wgrad.c ---- */

/* A unit of work: some pictures from n on, and output rows from p0 on. */
struct cr_cpu_sparse_tile {
    int64_t n, images, p0;
};
int64_t cr_cpu_sparse_staged_elems(
    const struct cr_cpu_sparse_plan *plan); /* floats of staged channels, with room for reads that overhang */
void cr_cpu_sparse_stage(const struct cr_cpu_sparse_plan *plan, const struct cr_cpu_sparse_tile *place, const float *x,
                         int64_t c0, int64_t channels, float *to);
/* to[channel*apart + ...]: outputs k0.. where the staged inputs of their first taps stand, 0 between and behind them;
 * apart at least 16*vectors + 8. */
void cr_cpu_sparse_stage_outputs(const struct cr_cpu_sparse_plan *plan, const struct cr_cpu_sparse_tile *place,
                                 const float *y, int64_t k0, int64_t channels, int64_t apart, float *to);

#endif
