/* compiler/fusion/fusion.h: helpers that the fusion patterns share, and the list of patterns.
 *
 * A pattern is a function that looks at the op `root` and fuses it with its neighbours when
 *   - each tensor between them is a transient without another reader (backward ops included) and is not kept,
 *   - all ops are on one stream and no op between them changes the tensors that they read,
 *   - the device has a kernel for the fused op.
 * It returns true when it has fused. Patterns match programs as the layers and cr_pass_grad emit them. Fusions that are
 * chosen by cost: compiler/fusion/conv_fusion.h. */
#ifndef CR_FUSION_H
#define CR_FUSION_H

#include "compiler/rewrite/rewrite.h"

typedef bool cr_fuse_pattern(struct cr_edit *edit, int root);
struct cr_pattern {
    enum cr_op_kind  root;
    cr_fuse_pattern *fuse;
};

/* Tries each pattern, one after the other, at every op of its kind. */
void cr_fuse_patterns(struct cr_edit *edit, const struct cr_pattern *patterns, size_t count);
/* Runs these patterns as one pass. Returns CR_ERR_MEMORY, or the error of a measurement. */
CR_MUST cr_status cr_fuse_pass(struct cr_program *program, const struct cr_cost_model *cost_model,
                               const struct cr_pattern *patterns, size_t count);

/* Returns whether the device has a kernel for the op. */
bool cr_fuse_accepted(const struct cr_edit *edit, const struct cr_op *op);
/* Time of the op in seconds: measured where the cost model has times, else by its roofline. An error of the measurement
 * becomes edit->failure. */
double cr_fuse_seconds(struct cr_edit *edit, const struct cr_op *op);
/* Replaces the ops part[0 .. count - 1] by `fused`, at the place of op `root`, which is one of them, where the device
 * has a kernel that takes no longer than theirs together. Without measured times the roofline decides: one op moves
 * fewer bytes, and as many operations are one launch less. Returns whether it has replaced them. */
bool cr_fuse_parts(struct cr_edit *edit, const struct cr_op *fused, const int *part, int count, int root);
/* Puts `fused` at the place of op `root` and removes the ops `first` and `second` (CR_NONE: none), where the device has
 * a kernel. Returns whether it has. */
bool cr_fuse_replace(struct cr_edit *edit, int root, const struct cr_op *fused, int first, int second);
/* The op with this index; valid until the edit changes the program. */
const struct cr_op *cr_fuse_op(const struct cr_edit *edit, int index);
bool                cr_fuse_same_stream(const struct cr_edit *edit, int a, int b);
/* Index of the only op that writes the transient `tensor`, when that op is of this kind; else CR_NONE. The tensor may
 * have any number of readers. */
int cr_fuse_writer(const struct cr_edit *edit, int tensor, enum cr_op_kind kind);
/* The op of this kind that writes `tensor` for one reader only, and can run at the later op `root`; else CR_NONE. */
int cr_fuse_before(const struct cr_edit *edit, int tensor, enum cr_op_kind kind, int root);
/* Finds bn_grad_sums and bn_grad_apply of one BN that are the only readers of `dy`, an output of op `root`, and behind
 * which `root` can run. */
bool cr_fuse_bn_grad(const struct cr_edit *edit, int root, int dy, int *sums, int *apply);
/* Adds a transient with the type and shape of the op's output `slot`, named <name of tensor like>.<suffix>. Returns its
 * id, or CR_NONE when an allocation fails. */
int cr_fuse_output(struct cr_edit *edit, const struct cr_op *op, int slot, int like, const char *suffix);
/* Returns whether the op is the plain max pooling of an ImageNet stem: 3x3, stride 2, padding 1. */
bool cr_fuse_is_stem_pool(const struct cr_op *pool);

/* compiler/fusion/patterns_backward.c */
cr_fuse_pattern cr_fuse_sums_mask, cr_fuse_apply_mask; /* BN gradient: recomputes the ReLU mask from the BN's input */
/* end of a residual block, written by bn_apply or by a convolution with out_scale_bias: stores the ReLU mask as one bit
 * per element */
cr_fuse_pattern cr_fuse_block_mask, cr_fuse_conv_mask;
cr_fuse_pattern cr_fuse_block_end_grad; /* add -> relu_grad -> bn_grad_sums */
/* compiler/gram/gram_patterns.c: the neighbours of a convolution with out_scale_bias and of gram and gram_dgrad */
cr_fuse_pattern cr_fuse_gram_conv;  /* conv -> (add ->) relu */
cr_fuse_pattern cr_fuse_gram_input; /* bn_apply + ReLU -> all ops that read the input of the convolution */
cr_fuse_pattern cr_fuse_gram_add;   /* gram_dgrad -> add; runs after the choice by cost */
cr_fuse_pattern cr_fuse_gram_dgrad; /* gram_dgrad -> ReLU mask and BN gradient sums */
/* compiler/fusion/patterns_bn_finalize.c; these run after the choice by cost. A convolution that computes the sums of a
 * BN also computes its scale_bias. */
cr_fuse_pattern cr_fuse_conv_finalize, cr_fuse_conv_grad_finalize;
/* compiler/fusion/patterns_stem.c */
cr_fuse_pattern cr_fuse_bn_pool, cr_fuse_pool_grad; /* BN + ReLU -> maxpool, and its gradient */
/* compiler/fusion/quantize_stem.c: normalize -> quantize -> qconv -> maxpool */
cr_fuse_pattern cr_fuse_quantized_stem;
/* Turns the 7x7 convolution of stride 2 on the image into a 4x4 convolution of stride 1 on the image in space-to-depth
 * form. Adds ops, so it runs before the patterns, on the program itself. Returns CR_ERR_MEMORY. */
CR_MUST cr_status cr_fuse_s2d(struct cr_program *program, const struct cr_cost_model *cost_model);

#endif
