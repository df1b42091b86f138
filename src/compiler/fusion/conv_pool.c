/* compiler/fusion/conv_pool.c: the stem convolution with its max pooling in inference programs.
 *
 *     conv(x, w, bias), ReLU -> t; maxpool(t) 3x3, stride 2, padding 1 -> y      becomes    conv_pool
 *
 * t is the largest tensor of an ImageNet network; it is not stored. Done where one kernel takes less time than two.
 * Runs after cr_pass_fuse, which chooses the form of the convolution. */
#include "compiler/fusion/fusion.h"
#include "compiler/passes.h"

static bool pools(const struct cr_op *op) {
    return op->attr.conv.window == 3 && op->attr.conv.stride == 2 && op->attr.conv.pad == 1 &&
           cr_op_uses_only(op, 1u << CR_IN_maxpool_x, 1u << CR_OUT_maxpool_y);
}

static bool convolves(const struct cr_op *op) {
    const unsigned in = 1u << CR_IN_conv_x | 1u << CR_IN_conv_w | 1u << CR_IN_conv_bias;
    return cr_op_uses_only(op, in, 1u << CR_OUT_conv_y) && op->in[CR_IN_conv_bias] >= 0 && op->attr.conv.relu &&
           !cr_op_has_sparsity_pattern(op);
}

/* Joins the pooling at `root` with the convolution that writes its input. */
static void join(struct cr_edit *edit, const struct cr_cost_model *cost_model, int root) {
    const struct cr_op *pool   = cr_fuse_op(edit, root);
    const int           writer = cr_edit_private_writer(edit, pool->in[CR_IN_maxpool_x], CR_OP_conv);
    if (writer == CR_NONE || !pools(pool) || !convolves(cr_fuse_op(edit, writer))) return;
    if (!cr_fuse_same_stream(edit, writer, root) || !cr_edit_can_move(edit, writer, root)) return;
    const struct cr_op *conv    = cr_fuse_op(edit, writer);
    struct cr_op        op      = cr_op_make(CR_OP_conv_pool, conv->layer);
    op.stream                   = conv->stream;
    op.attr.conv.stride         = conv->attr.conv.stride;
    op.attr.conv.pad            = conv->attr.conv.pad;
    op.in[CR_IN_conv_pool_x]    = conv->in[CR_IN_conv_x];
    op.in[CR_IN_conv_pool_w]    = conv->in[CR_IN_conv_w];
    op.in[CR_IN_conv_pool_bias] = conv->in[CR_IN_conv_bias];
    op.out[CR_OUT_conv_pool_y]  = pool->out[CR_OUT_maxpool_y];
    if (!cr_fuse_accepted(edit, cost_model, &op)) return;
    const double one_by_one = cr_fuse_seconds(edit, cost_model, conv) + cr_fuse_seconds(edit, cost_model, pool);
    if (cr_fuse_seconds(edit, cost_model, &op) > one_by_one * (1 + 1e-9) || edit->failure != CR_OK) return;
    cr_edit_remove(edit, writer);
    cr_edit_replace(edit, root, &op);
}

cr_status cr_pass_conv_pool(struct cr_program *program, const struct cr_cost_model *cost_model) {
    struct cr_edit edit;
    bool           any = false;
    for (int i = 0; i < program->ops; i++) any |= program->op[i].kind == CR_OP_maxpool && pools(&program->op[i]);
    if (!any) return CR_OK;
    CR_TRY(cr_edit_open(&edit, program));
    for (int i = 0; i < program->ops; i++)
        if (!edit.removed[i] && program->op[i].kind == CR_OP_maxpool) join(&edit, cost_model, i);
    const cr_status status = cr_edit_finish(&edit);
    cr_edit_close(&edit);
    return status;
}
