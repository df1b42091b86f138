/* compiler/fusion/patterns.c: the table of fusion patterns, and the patterns of BN, add and ReLU.
 *
 * The first patterns fuse bn_apply with the add and the ReLU behind it, and the ReLU gradient with the BN gradient
 * behind it. An activation is then read and written once instead of two or three times.
 *
 * The fused op stands where the last op stood and writes the output of the last op. Wide patterns come before narrow
 * ones, so each device gets the widest fusion that it accepts. Fusions into convolutions are chosen by cost afterwards:
 * compiler/fusion/conv_fusion.h. The fused and the unfused program give the same results; tests compare them. */
#include "compiler/fusion/fusion.h"

#include "compiler/fusion/conv_fusion.h"

/* ---- BN, add and ReLU ---- */

/* y = x*scale + bias only: the op can fuse an add or a ReLU. */
static bool is_plain_bn(const struct cr_op *op) {
    return op->kind == CR_OP_bn_apply && op->in[CR_IN_bn_apply_add] == CR_NONE && !op->attr.bn.relu;
}

/* bn_apply -> add -> relu */
static bool fuse_bn_add_relu(struct cr_edit *edit, int root) {
    const int add = cr_fuse_before(edit, cr_fuse_op(edit, root)->in[CR_IN_relu_x], CR_OP_add, root);
    if (add == CR_NONE) return false;
    const struct cr_op *add_op = cr_fuse_op(edit, add);
    for (int side = 0; side < 2; side++) {
        int operand = side ? add_op->in[CR_IN_add_b] : add_op->in[CR_IN_add_a],
            other   = side ? add_op->in[CR_IN_add_a] : add_op->in[CR_IN_add_b];
        int bn      = cr_fuse_before(edit, operand, CR_OP_bn_apply, root);
        if (bn == CR_NONE || !is_plain_bn(cr_fuse_op(edit, bn))) continue;
        struct cr_op fused           = *cr_fuse_op(edit, bn);
        fused.in[CR_IN_bn_apply_add] = other;
        fused.out[CR_OUT_bn_apply_y] = cr_fuse_op(edit, root)->out[CR_OUT_relu_y];
        fused.attr.bn.relu           = true;
        if (cr_fuse_replace(edit, root, &fused, bn, add)) return true;
    }
    return false;
}

/* bn_apply -> relu */
static bool fuse_bn_relu(struct cr_edit *edit, int root) {
    int bn = cr_fuse_before(edit, cr_fuse_op(edit, root)->in[CR_IN_relu_x], CR_OP_bn_apply, root);
    if (bn == CR_NONE || cr_fuse_op(edit, bn)->attr.bn.relu) return false;
    struct cr_op fused           = *cr_fuse_op(edit, bn);
    fused.out[CR_OUT_bn_apply_y] = cr_fuse_op(edit, root)->out[CR_OUT_relu_y];
    fused.attr.bn.relu           = true;
    return cr_fuse_replace(edit, root, &fused, bn, CR_NONE);
}

/* The other operand is the BN of the shortcut: one op applies both BNs. */
static bool fuse_shortcut_bn(struct cr_edit *edit, int root) {
    struct cr_op fused = *cr_fuse_op(edit, root);
    if (fused.in[CR_IN_bn_apply_add] == CR_NONE || fused.in[CR_IN_bn_apply_add_scale_bias] != CR_NONE) return false;
    int bn = cr_fuse_before(edit, fused.in[CR_IN_bn_apply_add], CR_OP_bn_apply, root);
    if (bn == CR_NONE || !is_plain_bn(cr_fuse_op(edit, bn))) return false;
    fused.in[CR_IN_bn_apply_add]            = cr_fuse_op(edit, bn)->in[CR_IN_bn_apply_x];
    fused.in[CR_IN_bn_apply_add_scale_bias] = cr_fuse_op(edit, bn)->in[CR_IN_bn_apply_scale_bias];
    return cr_fuse_replace(edit, root, &fused, bn, CR_NONE);
}

/* The summand of an input gradient is the gradient of a shortcut without parameters, which has the same stride:
 * conv_grad reads the gradient of the shortcut's result, where one kernel takes less time than two. */
static bool fuse_padded_gradient(struct cr_edit *edit, int root) {
    struct cr_op fused = *cr_fuse_op(edit, root);
    const int    pad   = cr_fuse_before(edit, fused.in[CR_IN_conv_grad_add], CR_OP_pad_shortcut_grad, root);
    if (pad == CR_NONE) return false;
    const struct cr_op     *shortcut = cr_fuse_op(edit, pad);
    const int               from     = shortcut->in[CR_IN_pad_shortcut_grad_dy];
    const struct cr_tensor *t        = edit->program->tensor;
    if (shortcut->attr.conv.stride != fused.attr.conv.stride ||
        t[from].bytes == t[fused.out[CR_OUT_conv_grad_dx]].bytes)
        return false;
    fused.in[CR_IN_conv_grad_add] = from;
    fused.attr.conv.add_pad_c     = shortcut->attr.conv.pad_c;
    return cr_fuse_parts(edit, &fused, (const int[]){root, pad}, 2, root);
}

/* relu_grad -> bn_grad_sums and bn_grad_apply of one BN: both apply the mask themselves. */
static bool fuse_relu_grad_bn_grad(struct cr_edit *edit, int root) {
    const struct cr_op *relu = cr_fuse_op(edit, root);
    int                 s, a;
    if (!cr_fuse_bn_grad(edit, root, relu->out[CR_OUT_relu_grad_dx], &s, &a)) return false;
    struct cr_op sums = *cr_fuse_op(edit, s), apply = *cr_fuse_op(edit, a);
    if (sums.in[CR_IN_bn_grad_sums_y] != CR_NONE || apply.in[CR_IN_bn_grad_apply_y] != CR_NONE) return false;
    sums.in[CR_IN_bn_grad_sums_dy] = apply.in[CR_IN_bn_grad_apply_dy] = relu->in[CR_IN_relu_grad_dy];
    sums.in[CR_IN_bn_grad_sums_y] = apply.in[CR_IN_bn_grad_apply_y] = relu->in[CR_IN_relu_grad_y];
    if (!cr_fuse_accepted(edit, &sums) || !cr_fuse_accepted(edit, &apply)) return false;
    cr_edit_remove(edit, root);
    cr_edit_replace(edit, s, &sums);
    cr_edit_replace(edit, a, &apply);
    return true;
}

static const struct cr_pattern patterns[] = {
    {CR_OP_relu, cr_fuse_gram_conv},
    {CR_OP_relu, fuse_bn_add_relu},
    {CR_OP_relu, fuse_bn_relu},
    {CR_OP_bn_apply, fuse_shortcut_bn},
    {CR_OP_relu_grad, fuse_relu_grad_bn_grad},
    {CR_OP_bn_grad_sums, cr_fuse_sums_mask},
    {CR_OP_bn_grad_apply, cr_fuse_apply_mask},
    {CR_OP_bn_apply, cr_fuse_block_mask},
    {CR_OP_conv, cr_fuse_conv_mask},
    {CR_OP_gram, cr_fuse_gram_input},
    {CR_OP_gram_dgrad, cr_fuse_gram_dgrad},
    {CR_OP_relu_grad, cr_fuse_block_end_grad},
    {CR_OP_maxpool, cr_fuse_quantized_stem},
    {CR_OP_maxpool, cr_fuse_bn_pool},
    {CR_OP_maxpool_grad, cr_fuse_pool_grad},
};

/* Run after the fusions that are chosen by cost. */
static const struct cr_pattern late_patterns[] = {
    {CR_OP_add, cr_fuse_gram_add},
    {CR_OP_conv_grad, fuse_padded_gradient},
    {CR_OP_bn_finalize, cr_fuse_conv_finalize},
    {CR_OP_bn_grad_finalize, cr_fuse_conv_grad_finalize},
};

cr_status cr_pass_fuse(struct cr_program *program, const struct cr_cost_model *cost_model) {
    struct cr_edit edit;
    CR_TRY(cr_fuse_s2d(program, cost_model));
    CR_TRY(cr_edit_open(&edit, program, cost_model));
    cr_fuse_patterns(&edit, patterns, CR_COUNT(patterns));
    cr_status status = cr_pass_conv_fusions(&edit);
    if (status == CR_OK) {
        cr_fuse_patterns(&edit, late_patterns, CR_COUNT(late_patterns));
        status = cr_edit_finish(&edit);
    }
    cr_edit_close(&edit);
    return status;
}

cr_status cr_fuse_report(const struct cr_program *program, const struct cr_cost_model *cost_model,
                         struct cr_text *out) {
    struct cr_program      copy;
    struct cr_edit         edit    = {0};
    struct cr_conv_fusions fusions = {0};
    CR_TRY(cr_program_copy(program, &copy));
    cr_status status = cr_fuse_s2d(&copy, cost_model);
    if (status == CR_OK) status = cr_edit_open(&edit, &copy, cost_model);
    if (status == CR_OK) cr_fuse_patterns(&edit, patterns, CR_COUNT(patterns));
    if (status == CR_OK) status = cr_conv_fusions_find(&fusions, &edit);
    if (status == CR_OK) status = cr_conv_fusions_choose(&fusions);
    if (status == CR_OK) cr_conv_fusions_print(&fusions, out);
    cr_conv_fusions_close(&fusions);
    cr_edit_close(&edit);
    cr_program_free(&copy);
    return status;
}
