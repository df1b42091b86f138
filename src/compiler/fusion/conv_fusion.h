/* compiler/fusion/conv_fusion.h: what a convolution takes over from its neighbours, chosen by cost.
 *
 * Between two convolutions stand statistics, coefficients, BN and ReLU; backwards a mask, sums and the BN's gradient.
 * Each of these is a pass over a large tensor that a convolution could do while it reads or writes that tensor anyway:
 *   S  the statistics of what it makes                        (conv.stats;            saves bn_sums)
 *   P  BN and ReLU of what it reads                           (conv.coef)
 *   W  the same in its filter's gradient                      (conv_wgrad.coef, conv_grad.coef)  P and W save bn_apply
 *   D  in its gradient: the sum with the other branch, the mask and the sums of the BN before it (conv_dgrad,
 * conv_grad; saves add, relu_grad, bn_grad_sums, and the mask that bn_grad_apply reads) B  the gradient of the BN
 * behind it                       (conv_grad.dy_x, dy_coef; saves bn_grad_apply) J  filter's and data gradient in one
 * op                   (conv_grad) A fused convolution may be slower than a plain one, so nothing is taken for granted:
 * the target tells what it accepts and what each op costs, and of all combinations the one of least total cost is taken
 * (equal: of fewest features).
 *
 * What couples two convolutions is the BN between them: B behind the first wants the mask to be done, by D of the
 * second, and the BN's gradient is cheaper without it. So convolutions form paths, and a path is solved by dynamic
 * programming over the options of its convolutions. Costs are whole picoseconds: their sums do not depend on the order.
 * What does not look like this (frozen BNs, a tensor that somebody else reads) is left alone. */
#ifndef CR_JUNCTION_H
#define CR_JUNCTION_H

#include "compiler/fusion/fusion.h"
#include "compiler/rewrite/explain.h"

enum { CR_FUSION_OPTIONS_MAX = 128 }; /* S 2 * P 3 * (W 3 * D 3 apart, W 2 * D 3 * B 2 joint) = 126 */

enum cr_grad_fusion { CR_GRAD_FUSION_NONE, CR_GRAD_FUSION_ADD, CR_GRAD_FUSION_ALL };

/* P and W read the coefficients as bn_finalize makes them, or their 16-bit copy: rows of libraries want those, others
 * not. */
enum cr_bn_input { CR_BN_INPUT_NONE, CR_BN_INPUT_F32, CR_BN_INPUT_HALF };

/* One way of doing a convolution. */
struct cr_fusion_option {
    bool                s, b, joint;
    enum cr_bn_input    p, w;
    enum cr_grad_fusion d;
    int64_t             ps; /* of all ops that this choice alone decides about */
};

/* What becomes of the gradient that a convolution's dgrad makes (its tensor is v): op indices and tensor ids, CR_NONE:
 * not there. v, or its sum with `other`, is masked and summed up by relu_grad, or by bn_grad_sums and bn_grad_apply.
 */
struct cr_grad_epilogue {
    enum cr_grad_fusion max_fusion; /* how much of it dgrad could take over */
    int                 add, other, sum;
    int                 relu;        /* relu_grad with the BN's dstats; or */
    int                 sums, apply; /* bn_grad_sums and bn_grad_apply with the mask of x */
    int                 bn_x, mean_rstd, gamma, beta;
    int                 g, grad_sums; /* what TAKE_ALL writes: the masked gradient, the sums */
    bool                two;          /* relu_grad sums up for a second BN too: bn_grad_sums does that in its place */
};

/* A convolution and what stands around it. */
struct cr_fusion_candidate {
    int                     conv, wgrad, dgrad; /* ops */
    int                     sums;               /* the bn_sums of its output */
    int                     apply;              /* the bn_grad_apply that makes its dy, for wgrad and dgrad alone */
    bool                    masked;             /* that op makes the mask too */
    int                     bn, finalize;       /* the bn_apply that makes x, and the source of its coefficients */
    bool                    owned; /* x has no other reader, and bn is BN and ReLU alone: P and W may save it */
    int                     half;  /* 16-bit copy of the coefficients, CR_NONE: not to be had */
    struct cr_grad_epilogue epilogue;
    int                     next;         /* site whose gate is this one's `apply`; CR_NONE: none */
    bool                    has_previous; /* is another's next */
    struct cr_fusion_option option[CR_FUSION_OPTIONS_MAX];
    int                     options, chosen;
    int64_t                 dy_ps[2]; /* `apply` with the mask, without */
};

struct cr_conv_fusions {
    struct cr_edit             *edit;
    const struct cr_cost_model *target;
    struct cr_fusion_candidate *candidate; /* in the order of the program */
    int                         candidates;
    cr_status                   status;              /* of asking for costs */
    int64_t                     plain_ps, chosen_ps; /* of everything that was chosen about */
};

/* Everything: find, price, choose, rewrite. */
CR_MUST cr_status cr_pass_conv_fusions(struct cr_edit *edit, const struct cr_cost_model *target);

/* Its parts. find lists the convolutions, each with the options that the target accepts (the first: all plain), with
 * their costs; choose sets `chosen`; apply rewrites the program. Any valid choice gives the same numbers. */
CR_MUST cr_status cr_conv_fusions_find(struct cr_conv_fusions *j, struct cr_edit *edit,
                                       const struct cr_cost_model *target);
CR_MUST cr_status cr_conv_fusions_choose(struct cr_conv_fusions *j);
void              cr_conv_fusions_apply(struct cr_conv_fusions *j);
void              cr_conv_fusions_close(struct cr_conv_fusions *j);
/* May these options stand together (B of the one, D of the next)? And what their meeting costs. */
bool    cr_conv_fusion_fits(const struct cr_fusion_candidate *first, const struct cr_fusion_option *a,
                            const struct cr_fusion_option *b);
int64_t cr_conv_fusion_edge_ps(const struct cr_fusion_candidate *first, const struct cr_fusion_option *a,
                               const struct cr_fusion_option *b);
/* One line a convolution that had a choice: what it took, and microseconds of the plain way and of the chosen one. As
 * JSON one a convolution, with a choice or without. */
CR_MUST cr_status cr_conv_fusions_explain(const struct cr_conv_fusions *j, struct cr_choices *out);
/* The same of a program that has not been fused, which stays as it is. */
CR_MUST cr_status cr_fuse_report(const struct cr_program *program, const struct cr_cost_model *target,
                                 struct cr_choices *out);

/* ---- between junction_*.c ---- */

/* Fills everything of the sites but their options. */
CR_MUST cr_status cr_conv_fusions_match(struct cr_conv_fusions *j);
/* The ops that an option puts in the place of the plain ones. */
struct cr_op cr_fused_conv(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, enum cr_bn_input p,
                           bool stats);
struct cr_op cr_fused_wgrad(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, enum cr_bn_input w);
struct cr_op cr_fused_dgrad(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s,
                            enum cr_grad_fusion d);
struct cr_op cr_fused_conv_grad(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, bool w,
                                enum cr_grad_fusion d, bool b);
struct cr_op cr_fused_second_sums(const struct cr_conv_fusions     *j,
                                  const struct cr_fusion_candidate *s); /* bn_grad_sums of gate.two */
struct cr_op cr_fused_finalize(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s);
struct cr_op cr_unmasked_bn_grad_apply(const struct cr_conv_fusions *j, int apply); /* bn_grad_apply without its mask */
struct cr_op cr_unmasked_bn_apply(const struct cr_conv_fusions     *j,
                                  const struct cr_fusion_candidate *s); /* bn_apply without its mask's bits */
/* Are the bits of the mask of x there for this site's relu_grad alone? */
bool cr_candidate_owns_mask_bits(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s);

#endif
