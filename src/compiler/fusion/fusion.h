/* compiler/fusion/fusion.h: what the patterns of the fuse pass share. A pattern is a function that, at the op `root`,
 * joins ops when
 *   - what lies between them is a transient that nobody else reads (backward ops included) and nobody keeps,
 *   - all stand on one lane and nothing in between changes what they read,
 *   - the target has a row for the joined op;
 * true: joined. Patterns know the program as the plain layers and cr_pass_grad emit it. Choices by cost:
 * compiler/fusion/conv_fusion.h. */
#ifndef CR_FUSE_H
#define CR_FUSE_H

#include "compiler/compiler.h"
#include "compiler/rewrite/rewrite.h"

typedef bool cr_fuse_pattern(struct cr_edit *edit, const struct cr_cost_model *target, int root);

bool cr_fuse_accepted(const struct cr_edit *edit, const struct cr_cost_model *target, const struct cr_op *op);
const struct cr_op *cr_fuse_op(const struct cr_edit *edit, int index);
bool                cr_fuse_same_stream(const struct cr_edit *edit, int a, int b);
/* The op that writes a transient of this program, of this kind; CR_NONE: another kind, or nobody. Who reads it does not
 * matter. */
int cr_fuse_writer(const struct cr_edit *edit, int tensor, enum cr_op_kind kind);
/* A new transient of the type and shape that output `slot` of the op will have, named <name of tensor like>.<suffix>.
 */
int cr_fuse_output(struct cr_edit *edit, const struct cr_op *op, int slot, int like, const char *suffix);

/* compiler/fusion/patterns_backward.c */
cr_fuse_pattern cr_fuse_sums_mask,
    cr_fuse_apply_mask;                 /* a BN's gradient: the ReLU's mask computed again from the BN's input */
cr_fuse_pattern cr_fuse_block_mask;     /* the end of a block stores one bit an element for its gradient */
cr_fuse_pattern cr_fuse_block_end_grad; /* add -> relu_grad -> bn_grad_sums */
/* compiler/fusion/patterns_bn_finalize.c, after the choices by cost: a convolution that makes the sums of a BN also
 * does what becomes of them */
cr_fuse_pattern cr_fuse_conv_finalize, cr_fuse_conv_grad_finalize;
/* compiler/fusion/patterns_stem.c */
cr_fuse_pattern cr_fuse_bn_pool, cr_fuse_pool_grad; /* BN + ReLU -> maxpool, and the way back */
/* Turns the 7x7 convolution of stride 2 on the picture into one on the picture in space-to-depth form. Runs before the
 * patterns, on the program itself: it adds ops. */
CR_MUST cr_status cr_fuse_s2d(struct cr_program *program, const struct cr_cost_model *target);

#endif
