/* compiler/gram/gram_patterns.c: patterns around a 1x1 convolution whose BN has its statistics from a Gram matrix
 * (compiler/gram/gram_bn.h). The program has such ops only after that rewrite. */
#include "compiler/fusion/fusion.h"

/* ---- the convolution, the sum of both branches and ReLU ---- */

static bool is_plain_gram_conv(const struct cr_op *op) {
    return op->kind == CR_OP_conv && op->in[CR_IN_conv_out_scale_bias] != CR_NONE &&
           op->in[CR_IN_conv_add] == CR_NONE && !op->attr.conv.relu;
}

/* The convolution that writes `tensor` for one reader only and can run at `root`; CR_NONE: none. */
static int conv_before(const struct cr_edit *edit, int tensor, int root) {
    const int conv = cr_fuse_before(edit, tensor, CR_OP_conv, root);
    return conv != CR_NONE && is_plain_gram_conv(cr_fuse_op(edit, conv)) ? conv : CR_NONE;
}

static bool fuse_relu(struct cr_edit *edit, int conv, int add, int other, int root) {
    struct cr_op fused       = *cr_fuse_op(edit, conv);
    fused.in[CR_IN_conv_add] = other;
    fused.out[CR_OUT_conv_y] = cr_fuse_op(edit, root)->out[CR_OUT_relu_y];
    fused.attr.conv.relu     = true;
    return cr_fuse_replace(edit, root, &fused, conv, add);
}

/* Of two such convolutions (main branch and shortcut) the later one gets the sum. */
bool cr_fuse_gram_conv(struct cr_edit *edit, int root) {
    const int x = cr_fuse_op(edit, root)->in[CR_IN_relu_x], alone = conv_before(edit, x, root);
    if (alone != CR_NONE) return fuse_relu(edit, alone, CR_NONE, CR_NONE, root);
    const int add = cr_fuse_before(edit, x, CR_OP_add, root);
    if (add == CR_NONE) return false;
    const int a = cr_fuse_op(edit, add)->in[CR_IN_add_a], b = cr_fuse_op(edit, add)->in[CR_IN_add_b],
              conv_a = conv_before(edit, a, root), conv_b = conv_before(edit, b, root);
    if (a == b || (conv_a == CR_NONE && conv_b == CR_NONE)) return false;
    return conv_a > conv_b ? fuse_relu(edit, conv_a, add, b, root) : fuse_relu(edit, conv_b, add, a, root);
}

/* ---- BN and ReLU of the input ---- */

/* The slots of x and of scale_bias of an op that can read x as act(x); false: this op cannot. */
static bool input_slots(const struct cr_op *op, int *x, int *scale_bias) {
    switch (op->kind) {
    case CR_OP_gram:
        *x          = CR_IN_gram_x;
        *scale_bias = CR_IN_gram_scale_bias;
        return true;
    case CR_OP_conv:
        *x          = CR_IN_conv_x;
        *scale_bias = CR_IN_conv_scale_bias;
        return op->in[CR_IN_conv_out_scale_bias] != CR_NONE;
    case CR_OP_conv_wgrad:
        *x          = CR_IN_conv_wgrad_x;
        *scale_bias = CR_IN_conv_wgrad_scale_bias;
        return op->out[CR_OUT_conv_wgrad_dy_sums] != CR_NONE;
    case CR_OP_gram_dgrad:
        *x          = CR_IN_gram_dgrad_x;
        *scale_bias = CR_IN_gram_dgrad_scale_bias;
        return !op->attr.conv.relu;
    default: return false;
    }
}

/* Returns the reader `k` of a with act(x) instead of a. kind CR_OP_COUNT: it cannot read it so. */
static struct cr_op activated(const struct cr_edit *edit, int k, int a, const struct cr_op *bn) {
    struct cr_op op = *cr_fuse_op(edit, k);
    int          x, scale_bias, uses = 0;
    for (int s = 0; s < cr_op_info(op.kind)->ins; s++) uses += op.in[s] == a;
    if (uses != 1 || !input_slots(&op, &x, &scale_bias) || op.in[x] != a || op.in[scale_bias] != CR_NONE)
        return cr_op_make(CR_OP_COUNT, CR_NONE);
    op.in[x]          = bn->in[CR_IN_bn_apply_x];
    op.in[scale_bias] = bn->in[CR_IN_bn_apply_scale_bias];
    return op;
}

/* gram_dgrad that also masks its result and sums the gradient of the BN before it, and the ops behind it. */
struct joined {
    struct cr_op dgrad, apply; /* bn_grad_apply without the mask */
    int          sums, last;   /* op indices of bn_grad_sums, which disappears, and of bn_grad_apply */
};

/* dgrad: the op at `root`, which reads x through scale_bias. Returns false when the ops behind it do not match. */
static bool join_sums(const struct cr_edit *edit, int root, const struct cr_op *dgrad, struct joined *j) {
    const int dx = dgrad->out[CR_OUT_gram_dgrad_dx], x = dgrad->in[CR_IN_gram_dgrad_x],
              scale_bias = dgrad->in[CR_IN_gram_dgrad_scale_bias];
    if (scale_bias == CR_NONE || dgrad->in[CR_IN_gram_dgrad_mean_rstd] != CR_NONE || dgrad->attr.conv.stride != 1 ||
        !cr_edit_is_inner(edit, dx, 2))
        return false;
    j->sums = cr_edit_next_reader(edit, dx, root);
    j->last = j->sums == CR_NONE ? CR_NONE : cr_edit_next_reader(edit, dx, j->sums);
    if (j->last == CR_NONE || cr_fuse_op(edit, j->sums)->kind != CR_OP_bn_grad_sums ||
        cr_fuse_op(edit, j->last)->kind != CR_OP_bn_grad_apply)
        return false;
    const struct cr_op *sums = cr_fuse_op(edit, j->sums);
    j->apply                 = *cr_fuse_op(edit, j->last);
    if (sums->in[CR_IN_bn_grad_sums_dy] != dx || sums->in[CR_IN_bn_grad_sums_x] != x ||
        sums->in[CR_IN_bn_grad_sums_scale_bias] != scale_bias || j->apply.in[CR_IN_bn_grad_apply_dy] != dx ||
        j->apply.in[CR_IN_bn_grad_apply_x] != x || j->apply.in[CR_IN_bn_grad_apply_scale_bias] != scale_bias ||
        !cr_edit_can_move_up(edit, j->sums, root) || !cr_fuse_same_stream(edit, j->sums, root))
        return false;
    j->dgrad                                    = *dgrad;
    j->dgrad.in[CR_IN_gram_dgrad_mean_rstd]     = sums->in[CR_IN_bn_grad_sums_mean_rstd];
    j->dgrad.out[CR_OUT_gram_dgrad_grad_sums]   = sums->out[CR_OUT_bn_grad_sums_grad_sums];
    j->apply.in[CR_IN_bn_grad_apply_scale_bias] = CR_NONE;
    return true;
}

/* What joining the sums to `dgrad` (see join_sums) saves; below 0: it does not pay, or is not possible. */
static double join_saves(struct cr_edit *edit, int root, const struct cr_op *dgrad, struct joined *j) {
    if (dgrad->kind != CR_OP_gram_dgrad || !join_sums(edit, root, dgrad, j) || !cr_fuse_accepted(edit, &j->dgrad) ||
        !cr_fuse_accepted(edit, &j->apply))
        return -1;
    const double apart_s = cr_fuse_seconds(edit, dgrad) + cr_fuse_seconds(edit, cr_fuse_op(edit, j->sums)) +
                           cr_fuse_seconds(edit, cr_fuse_op(edit, j->last));
    return apart_s - cr_fuse_seconds(edit, &j->dgrad) - cr_fuse_seconds(edit, &j->apply);
}

/* All readers of the BN's output read its input instead, so that the output need not exist. Only then can gram_dgrad
 * sum the gradient of this BN, which belongs to the gain. */
bool cr_fuse_gram_input(struct cr_edit *edit, int root) {
    const int a = cr_fuse_op(edit, root)->in[CR_IN_gram_x], writer = cr_fuse_writer(edit, a, CR_OP_bn_apply);
    if (writer == CR_NONE || !cr_edit_is_private(edit, a)) return false;
    const struct cr_op bn = *cr_fuse_op(edit, writer);
    struct joined      j;
    double             plain_s, fused_s = 0;
    int                readers = 0;
    if (!bn.attr.bn.relu || bn.in[CR_IN_bn_apply_add] != CR_NONE || bn.out[CR_OUT_bn_apply_mask] != CR_NONE)
        return false;
    plain_s = cr_fuse_seconds(edit, &bn);
    for (int k = cr_edit_next_reader(edit, a, writer); k != CR_NONE; k = cr_edit_next_reader(edit, a, k)) {
        const struct cr_op op = activated(edit, k, a, &bn);
        if (op.kind == CR_OP_COUNT || !cr_edit_can_move(edit, writer, k) || !cr_fuse_same_stream(edit, writer, k) ||
            !cr_fuse_accepted(edit, &op))
            return false;
        plain_s += cr_fuse_seconds(edit, cr_fuse_op(edit, k));
        fused_s += cr_fuse_seconds(edit, &op) - CR_MAX(join_saves(edit, k, &op, &j), 0.0);
        readers++;
    }
    if (readers != edit->reads[a] || fused_s > plain_s) return false;
    for (int k = cr_edit_next_reader(edit, a, writer), next; k != CR_NONE; k = next) {
        const struct cr_op op = activated(edit, k, a, &bn);
        next                  = cr_edit_next_reader(edit, a, k);
        cr_edit_replace(edit, k, &op);
    }
    cr_edit_remove(edit, writer);
    return true;
}

/* ---- the ReLU mask and the BN gradient sums behind gram_dgrad ---- */

bool cr_fuse_gram_dgrad(struct cr_edit *edit, int root) {
    const struct cr_op dgrad = *cr_fuse_op(edit, root);
    struct joined      j;
    if (join_saves(edit, root, &dgrad, &j) < 0) return false;
    cr_edit_remove(edit, j.sums);
    cr_edit_replace(edit, root, &j.dgrad);
    cr_edit_replace(edit, j.last, &j.apply);
    return true;
}

/* gram_dgrad -> add: the sum with the gradient of the other branch. Runs after the fusions that are chosen by cost,
 * because a convolution may fuse the sum together with a ReLU mask. */
bool cr_fuse_gram_add(struct cr_edit *edit, int root) {
    const int operand[2] = {cr_fuse_op(edit, root)->in[CR_IN_add_a], cr_fuse_op(edit, root)->in[CR_IN_add_b]};
    for (int side = 0; side < 2; side++) {
        const int dgrad = cr_fuse_before(edit, operand[side], CR_OP_gram_dgrad, root);
        if (dgrad == CR_NONE) continue;
        struct cr_op fused = *cr_fuse_op(edit, dgrad);
        if (fused.in[CR_IN_gram_dgrad_add] != CR_NONE || fused.in[CR_IN_gram_dgrad_mean_rstd] != CR_NONE) continue;
        fused.in[CR_IN_gram_dgrad_add]  = operand[1 - side];
        fused.out[CR_OUT_gram_dgrad_dx] = cr_fuse_op(edit, root)->out[CR_OUT_add_y];
        if (cr_fuse_replace(edit, root, &fused, dgrad, CR_NONE)) return true;
    }
    return false;
}
