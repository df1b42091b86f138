/* compiler/schedule/early_filters.c: marks the convolutions whose kernels may read the filter early.
 *
 * A kernel that starts before the launches before it have ended may load its filter (and, for convolutions on 8-bit
 * integers, the coefficients) first, provided that none of these launches writes them. Two ops are examined, because
 * one of them may launch nothing, and all ops behind the first of the two. Ops that never launch a kernel on the stream
 * are not counted: those of other streams, barriers, and a pad_shortcut that a convolution computes. The op head has
 * two launches. Its second launch starts after all launches before the op have ended, so nothing before head is
 * examined.
 *
 * A kernel that completes an op may also load the parameters and statistics of that op's BN first. They need no check:
 * they were written before the launch of that op, which has waited for all launches before it. */
#include "compiler/passes.h"

enum { OPS_BEFORE = 2, INPUTS_MAX = 8 };

/* Stores the ids of the filters and coefficients that an op has, and returns their number. A qconv without a packed
 * filter packs it itself, so it has nothing to read early. */
static int early_inputs(const struct cr_op *op, int ids[INPUTS_MAX]) {
    switch (op->kind) {
    case CR_OP_conv:
        ids[0] = op->in[CR_IN_conv_w];
        ids[1] = op->in[CR_IN_conv_bias];
        return ids[1] < 0 ? 1 : 2;
    case CR_OP_conv_pair:
        ids[0] = op->in[CR_IN_conv_pair_w];
        ids[1] = op->in[CR_IN_conv_pair_next_w];
        ids[2] = op->in[CR_IN_conv_pair_bias];
        ids[3] = op->in[CR_IN_conv_pair_next_bias];
        ids[4] = op->in[CR_IN_conv_pair_first_w];
        ids[5] = op->in[CR_IN_conv_pair_first_bias];
        ids[6] = op->in[CR_IN_conv_pair_shortcut_w];
        ids[7] = op->in[CR_IN_conv_pair_shortcut_bias];
        return ids[4] < 0 ? 4 : ids[6] < 0 ? 6 : 8;
    case CR_OP_conv_grad: ids[0] = op->in[CR_IN_conv_grad_w]; return 1;
    case CR_OP_qconv:
        ids[0] = op->in[CR_IN_qconv_packed];
        ids[1] = op->in[CR_IN_qconv_coeffs];
        return ids[0] < 0 ? 0 : 2;
    case CR_OP_qconv_pair:
        ids[0] = op->in[CR_IN_qconv_pair_packed];
        ids[1] = op->in[CR_IN_qconv_pair_next_packed];
        ids[2] = op->in[CR_IN_qconv_pair_coeffs];
        ids[3] = op->in[CR_IN_qconv_pair_next_coeffs];
        ids[4] = op->in[CR_IN_qconv_pair_first_packed];
        ids[5] = op->in[CR_IN_qconv_pair_first_coeffs];
        if (ids[0] < 0 || ids[1] < 0) return 0;
        if (op->in[CR_IN_qconv_pair_first_w] < 0) return 4;
        return ids[4] < 0 ? 0 : 6;
    default: return 0;
    }
}

/* The same for the tensors that the forward pass has written and a conv_grad reads: activations, and scale_bias and
 * mean_rstd of a BN. */
static int early_data(const struct cr_op *op, int ids[INPUTS_MAX]) {
    static const int slots[] = {CR_IN_conv_grad_x, CR_IN_conv_grad_dy_x, CR_IN_conv_grad_bn_x,
                                CR_IN_conv_grad_scale_bias, CR_IN_conv_grad_mean_rstd};
    int              count   = 0;
    if (op->kind != CR_OP_conv_grad) return 0;
    for (int i = 0; i < (int)CR_COUNT(slots); i++)
        if (op->in[slots[i]] >= 0) ids[count++] = op->in[slots[i]];
    return count;
}

static bool overlap(const struct cr_tensor *a, const struct cr_tensor *b) {
    return a->region == b->region && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static bool has_output(const struct cr_program *p, const struct cr_op *op, int tensor) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0 && overlap(&p->tensor[op->out[s]], &p->tensor[tensor])) return true;
    return false;
}

/* The launch of op `at` writes the tensor. It also writes the results that an earlier op has left to it, such as the
 * scale_bias of a BN, and those of the conv before a bn_apply that it computes. The dw of a conv_grad with filter_later
 * is not examined, because no kernel reads a gradient early. */
static bool writes(const struct cr_program *p, int at, int tensor) {
    if (has_output(p, &p->op[at], tensor)) return true;
    for (int left = cr_op_before(p, at); left >= 0 && cr_op_finishes_later(&p->op[left]);
         left     = cr_op_before(p, left)) {
        if (has_output(p, &p->op[left], tensor)) return true;
        if (p->op[left].kind != CR_OP_bn_apply) break;
    }
    return false;
}

/* None of the ops from `first` to i - 1, which may still run, writes one of the tensors. */
static bool are_old(const struct cr_program *p, int first, int i, const int *ids, int count) {
    for (int before = i - 1; before >= first; before--) {
        for (int k = 0; k < count; k++)
            if (writes(p, before, ids[k])) return false;
        if (p->op[before].kind == CR_OP_head) break;
    }
    return true;
}

/* Op `at` may launch a kernel on the stream of op i. */
static bool counts(const struct cr_program *p, int at, int i) {
    const struct cr_op *op = &p->op[at];
    return op->stream == p->op[i].stream && op->kind != CR_OP_barrier &&
           !(op->kind == CR_OP_pad_shortcut && cr_op_finishes_later(op));
}

/* Index of the first op that is examined before op i; negative if that op belongs to the program that ran before. */
static int first_before(const struct cr_program *p, int i) {
    int at = i - 1;
    for (int left = OPS_BEFORE; at >= 0; at--)
        if (counts(p, at, i) && --left == 0) return at;
    return at;
}

void cr_pass_early_filters(struct cr_program *p) {
    for (int i = 0; i < p->ops; i++) {
        int       ids[INPUTS_MAX];
        const int first = first_before(p, i), count = early_inputs(&p->op[i], ids);
        if (first < 0) continue;
        if (count) p->op[i].attr.conv.early_filter = are_old(p, first, i, ids, count);
        const int data = early_data(&p->op[i], ids);
        if (data) p->op[i].attr.conv.early_data = are_old(p, first, i, ids, data);
    }
}
