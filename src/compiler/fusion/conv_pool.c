/* compiler/fusion/conv_pool.c: the stem convolution with its max pooling in inference programs.
 *
 *     conv(x, w, bias), ReLU -> t; maxpool(t) 3x3, stride 2, padding 1 -> y      becomes    conv_pool
 *
 * t is the largest tensor of an ImageNet network; it is not stored. Done where one kernel takes less time than two.
 * Runs after cr_pass_fuse, which chooses the form of the convolution. */
#include "compiler/fusion/fusion.h"
#include "compiler/passes.h"

static bool convolves(const struct cr_op *op) {
    const unsigned in = 1u << CR_IN_conv_x | 1u << CR_IN_conv_w | 1u << CR_IN_conv_bias;
    return cr_op_uses_only(op, in, 1u << CR_OUT_conv_y) && op->in[CR_IN_conv_bias] >= 0 && op->attr.conv.relu &&
           !cr_op_has_sparsity_pattern(op);
}

/* Joins the pooling at `root` with the convolution that writes its input. */
static bool join(struct cr_edit *edit, int root) {
    const struct cr_op *pool   = cr_fuse_op(edit, root);
    const int           writer = cr_fuse_before(edit, pool->in[CR_IN_maxpool_x], CR_OP_conv, root);
    if (writer == CR_NONE || !cr_fuse_is_stem_pool(pool) || !convolves(cr_fuse_op(edit, writer))) return false;
    const struct cr_op *conv    = cr_fuse_op(edit, writer);
    struct cr_op        op      = cr_op_make(CR_OP_conv_pool, conv->layer);
    op.stream                   = conv->stream;
    op.attr.conv.stride         = conv->attr.conv.stride;
    op.attr.conv.pad            = conv->attr.conv.pad;
    op.in[CR_IN_conv_pool_x]    = conv->in[CR_IN_conv_x];
    op.in[CR_IN_conv_pool_w]    = conv->in[CR_IN_conv_w];
    op.in[CR_IN_conv_pool_bias] = conv->in[CR_IN_conv_bias];
    op.out[CR_OUT_conv_pool_y]  = pool->out[CR_OUT_maxpool_y];
    return cr_fuse_parts(edit, &op, (const int[]){writer, root}, 2, root);
}

cr_status cr_pass_conv_pool(struct cr_program *program, const struct cr_cost_model *cost_model) {
    return cr_fuse_pass(program, cost_model, &(const struct cr_pattern){CR_OP_maxpool, join}, 1);
}
