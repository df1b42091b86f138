/* compiler/fusion/conv_fusion.h: what a convolution takes over from its neighbours, chosen by cost.
 *
 * Between two convolutions stand statistics, coefficients, BN and ReLU; backwards a mask, sums and the BN's gradient.
 * Each of these is a pass over a large tensor that a convolution could do while it reads or writes that tensor anyway:
 *   S  the statistics of what it makes                        (conv.stats;            saves bn_stats)
 *   P  BN and ReLU of what it reads                           (conv.coef)
 *   W  the same in its filter's gradient                      (conv_wgrad.coef, conv_grad.coef)  P and W save bn_apply
 *   D  in its gradient: the sum with the other branch, the mask and the sums of the BN before it (conv_dgrad,
 * conv_grad; saves add, relu_grad, bn_grad_stats, and the mask that bn_grad_apply reads) B  the gradient of the BN
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

#include "compiler/rewrite/explain.h"
#include "compiler/fusion/fusion.h"

enum { CR_JUNCTION_OPTIONS_MAX = 128 }; /* S 2 * P 3 * (W 3 * D 3 apart, W 2 * D 3 * B 2 joint) = 126 */

enum cr_take { CR_TAKE_NOTHING, CR_TAKE_SUM, CR_TAKE_ALL };

/* P and W read the coefficients as bn_finalize makes them, or their 16-bit copy: rows of libraries want those, others
 * not. */
enum cr_act { CR_ACT_NONE, CR_ACT_WIDE, CR_ACT_HALF };

/* One way of doing a convolution. */
struct cr_option {
    bool         s, b, joint;
    enum cr_act  p, w;
    enum cr_take d;
    int64_t      ps; /* of all ops that this choice alone decides about */
};

/* What becomes of the gradient that a convolution's dgrad makes (its tensor is v): op indices and tensor ids, CR_NONE:
 * not there. v, or its sum with `other`, is masked and summed up by relu_grad, or by bn_grad_stats and bn_grad_apply.
 */
struct cr_gate {
    enum cr_take most; /* how much of it dgrad could take over */
    int          add, other, sum;
    int          relu;         /* relu_grad with the BN's dstats; or */
    int          stats, apply; /* bn_grad_stats and bn_grad_apply with the mask of x */
    int          bn_x, saved, gamma, beta;
    int          g, dstats; /* what TAKE_ALL writes: the masked gradient, the sums */
    bool         two;       /* relu_grad sums up for a second BN too: bn_grad_stats does that in its place */
};

/* A convolution and what stands around it. */
struct cr_site {
    int              conv, wgrad, dgrad; /* ops */
    int              stats;              /* the bn_stats of its output */
    int              apply;              /* the bn_grad_apply that makes its dy, for wgrad and dgrad alone */
    bool             masked;             /* that op makes the mask too */
    int              bn, finalize;       /* the bn_apply that makes x, and the source of its coefficients */
    bool             owned;              /* x has no other reader, and bn is BN and ReLU alone: P and W may save it */
    int              half;               /* 16-bit copy of the coefficients, CR_NONE: not to be had */
    struct cr_gate   gate;
    int              next; /* site whose gate is this one's `apply`; CR_NONE: none */
    bool             led;  /* is another's next */
    struct cr_option option[CR_JUNCTION_OPTIONS_MAX];
    int              options, chosen;
    int64_t          dy_ps[2]; /* `apply` with the mask, without */
};

struct cr_junctions {
    struct cr_edit         *edit;
    const struct cr_target *target;
    struct cr_site         *site; /* in the order of the program */
    int                     sites;
    cr_status               status;              /* of asking for costs */
    int64_t                 plain_ps, chosen_ps; /* of everything that was chosen about */
};

/* Everything: find, price, choose, rewrite. */
CR_MUST cr_status cr_pass_junctions(struct cr_edit *edit, const struct cr_target *target);

/* Its parts. find lists the convolutions, each with the options that the target accepts (the first: all plain), with
 * their costs; choose sets `chosen`; apply rewrites the program. Any valid choice gives the same numbers. */
CR_MUST cr_status cr_junctions_find(struct cr_junctions *j, struct cr_edit *edit, const struct cr_target *target);
CR_MUST cr_status cr_junctions_choose(struct cr_junctions *j);
void              cr_junctions_apply(struct cr_junctions *j);
void              cr_junctions_close(struct cr_junctions *j);
/* May these options stand together (B of the one, D of the next)? And what their meeting costs. */
bool    cr_junction_fits(const struct cr_site *first, const struct cr_option *a, const struct cr_option *b);
int64_t cr_junction_meeting_ps(const struct cr_site *first, const struct cr_option *a, const struct cr_option *b);
/* One line a convolution that had a choice: what it took, and microseconds of the plain way and of the chosen one. As JSON one a convolution,
 * with a choice or without. */
CR_MUST cr_status cr_junctions_tell(const struct cr_junctions *j, struct cr_choices *out);
/* The same of a program that has not been fused, which stays as it is. */
CR_MUST cr_status cr_fuse_report(const struct cr_program *program, const struct cr_target *target, struct cr_choices *out);

/* ---- between junction_*.c ---- */

/* Fills everything of the sites but their options. */
CR_MUST cr_status cr_junctions_match(struct cr_junctions *j);
/* The ops that an option puts in the place of the plain ones. */
struct cr_op cr_site_conv(const struct cr_junctions *j, const struct cr_site *s, enum cr_act p, bool stats);
struct cr_op cr_site_wgrad(const struct cr_junctions *j, const struct cr_site *s, enum cr_act w);
struct cr_op cr_site_dgrad(const struct cr_junctions *j, const struct cr_site *s, enum cr_take d);
struct cr_op cr_site_joint(const struct cr_junctions *j, const struct cr_site *s, bool w, enum cr_take d, bool b);
struct cr_op cr_site_second(const struct cr_junctions *j, const struct cr_site *s); /* bn_grad_stats of gate.two */
struct cr_op cr_site_finalize(const struct cr_junctions *j, const struct cr_site *s);
struct cr_op cr_site_clear(const struct cr_junctions *j, int apply); /* bn_grad_apply without its mask */
struct cr_op cr_site_unmasked(const struct cr_junctions *j,
                              const struct cr_site      *s); /* bn_apply without its mask's bits */
/* Are the bits of the mask of x there for this site's relu_grad alone? */
bool cr_site_owns_bits(const struct cr_junctions *j, const struct cr_site *s);

#endif
