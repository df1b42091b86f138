/* compiler/fusion/conv_fusion.h: chooses by cost which neighbouring ops each convolution fuses.
 *
 * Between two convolutions stand BN sums, scale_bias, BN and ReLU; in the backward pass a ReLU mask, BN gradient sums
 * and the BN gradient. Each of them is a pass over a large tensor that a convolution already reads or writes. A
 * convolution can fuse these passes. Each fusion has a letter, which reports show:
 *
 *   S  sums for the BN behind the convolution: op conv writes `sums`. Saves bn_sums.
 *   P  BN and ReLU of the input: op conv reads `scale_bias`.
 *   W  BN and ReLU of the input in the filter gradient: conv_wgrad or conv_grad reads `scale_bias`.
 *      P and W together save bn_apply.
 *   D  add of the other branch's gradient, ReLU mask and gradient sums of the BN before the convolution,
 *      in the data gradient: op conv_dgrad or conv_grad. Saves add, relu_grad and bn_grad_sums, and the
 *      mask that bn_grad_apply reads.
 *   B  gradient of the BN behind the convolution: conv_grad reads dy_x and dy_coeffs. Saves bn_grad_apply.
 *   J  filter gradient and data gradient in one op, conv_grad.
 *
 * A fused convolution may be slower than a plain convolution. The device says which ops it accepts and what each op
 * costs. The pass takes the combination with the least total cost; of two combinations with the same cost, the one with
 * fewer fusions.
 *
 * The BN between two convolutions couples their choices. B of the first convolution requires that D of the second
 * applies the mask, and the BN gradient is cheaper without its mask. So convolutions form paths, and dynamic
 * programming over the options of each convolution solves a path. Costs are integers (picoseconds), so their sums do
 * not depend on the order of addition. Convolutions whose neighbours do not match (frozen BN, a tensor with another
 * reader) stay plain. */
#ifndef CR_CONV_FUSION_H
#define CR_CONV_FUSION_H

#include "compiler/fusion/fusion.h"
#include "compiler/passes.h"

enum { CR_FUSION_OPTIONS_MAX = 128 }; /* S 2 * P 3 * (separate gradients W 3 * D 3 + joint W 2 * D 3 * B 2) = 126 */

/* D: none, the add alone, or all of it. */
enum cr_grad_fusion { CR_GRAD_FUSION_NONE, CR_GRAD_FUSION_ADD, CR_GRAD_FUSION_ALL };

/* P and W: none, scale_bias as bn_finalize writes it (f32), or its 16-bit copy, which library kernels need. */
enum cr_bn_input { CR_BN_INPUT_NONE, CR_BN_INPUT_F32, CR_BN_INPUT_HALF };

/* One combination of fusions of a convolution; `joint` is J. */
struct cr_fusion_option {
    bool                s, b, joint;
    enum cr_bn_input    p, w;
    enum cr_grad_fusion d;
    int64_t             ps; /* cost in picoseconds of all ops that depend on this option alone */
};

/* The ops behind the data gradient v of a convolution, which D can fuse. v, or its sum with `other`, is masked and
 * summed by relu_grad, or by bn_grad_sums and bn_grad_apply. Members are op indices or tensor ids; CR_NONE: absent. */
struct cr_grad_epilogue {
    enum cr_grad_fusion max_fusion;      /* the most that the data gradient can fuse */
    int                 add, other, sum; /* op; tensor added to v; tensor of the sum */
    int                 relu;            /* op relu_grad that writes the BN gradient sums; or: */
    int                 sums, apply;     /* ops bn_grad_sums and bn_grad_apply, which apply the mask of x */
    int                 bn_x, mean_rstd; /* inputs of the BN before the convolution */
    int                 y;               /* instead: x itself, the mask of a block whose last BN needs no sums */
    int                 gamma, beta;
    int                 g, grad_sums; /* tensors that CR_GRAD_FUSION_ALL writes: masked gradient, sums */
    bool                two;          /* relu_grad also writes the sums of a second BN; after the fusion, an op
                                         bn_grad_sums computes them */
};

/* A convolution, the ops around it and its options. Members are op indices; CR_NONE: absent. */
struct cr_fusion_candidate {
    int                     conv, wgrad, dgrad;
    int                     sums;         /* bn_sums of its output */
    int                     apply;        /* bn_grad_apply whose dx only wgrad and dgrad read */
    bool                    masked;       /* `apply` also applies a ReLU mask */
    int                     bn, finalize; /* bn_apply that writes x, and bn_finalize that writes its scale_bias */
    int                     block;        /* op that writes x and may store its mask bits: `bn`, or a convolution
                                             with out_scale_bias and ReLU */
    bool                    owned;        /* P and W can remove `bn`: x has no other reader, `bn` is BN and ReLU only */
    int                     half;         /* tensor: 16-bit copy of scale_bias; CR_NONE: not available */
    struct cr_grad_epilogue epilogue;
    int                     next; /* candidate whose epilogue.apply is this candidate's `apply`; CR_NONE: none */
    bool                    has_previous;                  /* another candidate's `next` is this candidate */
    struct cr_fusion_option option[CR_FUSION_OPTIONS_MAX]; /* option[0] is the plain convolution */
    int                     options, chosen;
    int64_t                 dy_ps[2]; /* cost in picoseconds of `apply` with its mask and without */
};

struct cr_conv_fusions {
    struct cr_edit             *edit;      /* borrowed */
    struct cr_fusion_candidate *candidate; /* [candidates], in program order */
    int                         candidates;
    int64_t                     plain_ps, chosen_ps; /* total cost in picoseconds without fusion and as chosen */
};

/* The whole pass: find, choose, apply. */
CR_MUST cr_status cr_pass_conv_fusions(struct cr_edit *edit);

/* The parts of the pass. find lists the candidates with the options that the device accepts and their costs. choose
 * sets `chosen` of each candidate. apply rewrites the program; each valid choice gives the same results. close frees
 * the candidates. */
CR_MUST cr_status cr_conv_fusions_find(struct cr_conv_fusions *fusions, struct cr_edit *edit);
CR_MUST cr_status cr_conv_fusions_choose(struct cr_conv_fusions *fusions);
void              cr_conv_fusions_apply(struct cr_conv_fusions *fusions);
void              cr_conv_fusions_close(struct cr_conv_fusions *fusions);

/* The first function returns whether candidate `first` can take option a while its next candidate takes option b. The
 * second function returns the edge cost of the pair in picoseconds: the cost of the BN gradient between them. */
bool    cr_conv_fusion_fits(const struct cr_fusion_candidate *first, const struct cr_fusion_option *a,
                            const struct cr_fusion_option *b);
int64_t cr_conv_fusion_edge_ps(const struct cr_fusion_candidate *first, const struct cr_fusion_option *a,
                               const struct cr_fusion_option *b);

/* Appends a table of the chosen fusions: one line for each convolution with several options, with the microseconds of
 * the plain and of the chosen option. */
void cr_conv_fusions_print(const struct cr_conv_fusions *fusions, struct cr_text *out);
/* The same table for a program that is not fused yet; the program stays unchanged. */
CR_MUST cr_status cr_fuse_report(const struct cr_program *program, const struct cr_cost_model *cost_model,
                                 struct cr_text *out);

/* ---- internal to conv_fusion*.c ---- */

/* Fills the candidates except their options. */
CR_MUST cr_status cr_conv_fusions_match(struct cr_conv_fusions *fusions);

/* The ops that an option puts in the place of the plain ops. */
struct cr_op cr_fused_conv(const struct cr_conv_fusions *fusions, const struct cr_fusion_candidate *s,
                           enum cr_bn_input p, bool sums);
struct cr_op cr_fused_wgrad(const struct cr_conv_fusions *fusions, const struct cr_fusion_candidate *s,
                            enum cr_bn_input w);
struct cr_op cr_fused_dgrad(const struct cr_conv_fusions *fusions, const struct cr_fusion_candidate *s,
                            enum cr_grad_fusion d);
struct cr_op cr_fused_conv_grad(const struct cr_conv_fusions *fusions, const struct cr_fusion_candidate *s, bool w,
                                enum cr_grad_fusion d, bool b);
/* bn_finalize that also writes the 16-bit copy of scale_bias. */
struct cr_op cr_fused_finalize(const struct cr_conv_fusions *fusions, const struct cr_fusion_candidate *s);
/* bn_grad_sums of the second BN, when epilogue.two is set. */
struct cr_op cr_fused_second_sums(const struct cr_conv_fusions *fusions, const struct cr_fusion_candidate *s);
/* bn_grad_apply without its mask; `apply` is its op index. */
struct cr_op cr_unmasked_bn_grad_apply(const struct cr_conv_fusions *fusions, int apply);
/* The op at `block` without its mask bits. */
struct cr_op cr_unmasked_block(const struct cr_conv_fusions *fusions, const struct cr_fusion_candidate *s);
/* Returns whether the candidate's relu_grad is the only reader of the mask bits of x. */
bool cr_candidate_owns_mask_bits(const struct cr_conv_fusions *fusions, const struct cr_fusion_candidate *s);

#endif
