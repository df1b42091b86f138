/* compiler/schedule/finish_later.c: a convolution, or the bn_apply behind it, finishes the BN of the convolution before
 * it; and a convolution also computes the bn_apply before it.
 *
 * A convolution that computes the sums of the BN behind it and finishes them needs a second, small launch: the sums of
 * all its blocks must exist before one of them is finished. Where the next conv or bn_apply reads the resulting
 * scale_bias, its blocks can add the sums themselves, and the small launch is not needed. The results are written by
 * the next launch, so no op of another stream and no op between the two may use them.
 *
 * Where a conv reads the result of such a bn_apply, and is the next op, its blocks can apply the BN to the images that
 * they read, and store the result. The bn_apply then has no launch. If its summand is the result of a pad_shortcut
 * directly before it, which nothing else reads, those blocks can read the input of the pad_shortcut instead.
 *
 * The same in the backward pass: a conv_grad computes the gradient sums of the BN before its convolution, and parts of
 * dw, which the next conv_grad adds.
 *
 * No input gradient waits for a filter gradient. So neighbouring conv_grad may also leave dw to the first launch behind
 * them, which computes the dw of all of them at once, from what they have stored in their workspaces. Their inputs and
 * workspaces live until then. */
#include "compiler/passes.h"

static bool overlap(const struct cr_program *p, int a, int b) {
    if (a < 0 || b < 0) return false;
    const struct cr_tensor *s = &p->tensor[a], *t = &p->tensor[b];
    if (a == b) return true;
    return s->region == CR_REGION_STORE && t->region == CR_REGION_STORE && s->offset < t->offset + t->bytes &&
           t->offset < s->offset + s->bytes;
}

static bool overlaps_one_of(const struct cr_program *p, int tensor, const int *ids, int count) {
    for (int k = 0; k < count; k++)
        if (overlap(p, tensor, ids[k])) return true;
    return false;
}

/* An op of another stream, or an op between the two, reads or writes a tensor that the end of op `before` needs or
 * writes. Then op i may not complete op `before`. */
static bool is_used_elsewhere(const struct cr_program *p, int before, int i) {
    int       mine[CR_OP_IDS_MAX];
    const int count = cr_op_finish_ids(&p->op[before], mine);
    for (int other = 0; other < p->ops; other++) {
        if (p->op[other].stream == p->op[before].stream && (other <= before || other >= i)) continue;
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[other], ids);
        n += cr_op_writes(&p->op[other], ids + n);
        for (int k = 0; k < n; k++)
            if (overlaps_one_of(p, ids[k], mine, count)) return true;
    }
    return false;
}

static bool conv_fits(const struct cr_op *last, const struct cr_op *op) {
    if (last->in[CR_IN_conv_gamma] < 0 || op->in[CR_IN_conv_scale_bias] < 0) return false;
    return op->in[CR_IN_conv_scale_bias] == last->out[CR_OUT_conv_next_scale_bias] &&
           op->in[CR_IN_conv_x] == last->out[CR_OUT_conv_y];
}

static bool bn_apply_fits(const struct cr_op *last, const struct cr_op *op) {
    return last->in[CR_IN_conv_gamma] >= 0 && op->in[CR_IN_bn_apply_x] == last->out[CR_OUT_conv_y] &&
           op->in[CR_IN_bn_apply_add] != last->out[CR_OUT_conv_y];
}

/* The launch of `op` writes the results of `last`, so `op` may use them only as dy_coeffs. */
static bool conv_grad_fits(const struct cr_program *p, const struct cr_op *last, const struct cr_op *op) {
    int used = 0, ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(op, ids);
    n += cr_op_writes(op, ids + n);
    if (last->in[CR_IN_conv_grad_gamma] < 0 || op->in[CR_IN_conv_grad_dy_coeffs] < 0) return false;
    if (op->in[CR_IN_conv_grad_dy_coeffs] != last->out[CR_OUT_conv_grad_grad_coeffs] ||
        op->in[CR_IN_conv_grad_g] != last->out[CR_OUT_conv_grad_dx])
        return false;
    for (int k = 0; k < n; k++)
        used += overlaps_one_of(p, ids[k], &last->out[CR_OUT_conv_grad_dw],
                                CR_OUT_conv_grad_grad_coeffs - CR_OUT_conv_grad_dw + 1);
    return used == 1;
}

static bool fits(const struct cr_program *p, int before, int i) {
    const struct cr_op *last = &p->op[before], *op = &p->op[i];
    if (last->stream != op->stream || (before < p->hoisted && i >= p->hoisted)) return false;
    const bool reads = op->kind == CR_OP_conv       ? conv_fits(last, op)
                       : op->kind == CR_OP_bn_apply ? bn_apply_fits(last, op)
                                                    : conv_grad_fits(p, last, op);
    return reads && !is_used_elsewhere(p, before, i);
}

/* Op `apply` is a bn_apply that finishes the BN of the convolution before it, and the next op, a conv, reads it. */
static bool applies_fits(const struct cr_program *p, int apply) {
    const struct cr_op *last = &p->op[apply], *op = &p->op[apply + 1];
    const int           before = last->kind == CR_OP_bn_apply ? cr_op_before(p, apply) : CR_NONE;
    if (before < 0 || !cr_op_finishes_later(&p->op[before]) || op->kind != CR_OP_conv) return false;
    return last->stream == op->stream && (apply >= p->hoisted || apply + 1 < p->hoisted) &&
           op->in[CR_IN_conv_x] == last->out[CR_OUT_bn_apply_y] && !is_used_elsewhere(p, apply, apply + 1);
}

/* Op i is a conv that computes the bn_apply before it, and the summand of that one is the pad_shortcut `shortcut`. */
static bool shortcut_fits(const struct cr_program *p, int shortcut, int i) {
    const int y = p->op[shortcut].out[CR_OUT_pad_shortcut_y], x = p->op[shortcut].in[CR_IN_pad_shortcut_x];
    if (p->op[shortcut].stream != p->op[i].stream || (shortcut < p->hoisted && i >= p->hoisted)) return false;
    for (int other = 0; other < p->ops; other++) {
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[other], ids);
        n += cr_op_writes(&p->op[other], ids + n);
        for (int k = 0; k < n; k++) {
            if (overlap(p, ids[k], y) && other != shortcut && other != i - 1) return false;
            if (overlap(p, ids[k], x) && p->op[other].stream != p->op[i].stream) return false;
        }
    }
    return !p->tensor[y].keep;
}

/* ---- filter gradients of several convolutions ---- */

static bool is_filter_id(const struct cr_program *p, const struct cr_op *op, int tensor) {
    const int mine[] = {op->workspace, op->in[CR_IN_conv_grad_x], op->in[CR_IN_conv_grad_scale_bias],
                        op->out[CR_OUT_conv_grad_dw]};
    return overlaps_one_of(p, tensor, mine, (int)CR_COUNT(mine));
}

/* Ops of other streams use no tensor that the later launch needs for op i's dw. Its x may be offloaded to the host. */
static bool is_of_one_stream(const struct cr_program *p, int i) {
    for (int other = 0; other < p->ops; other++) {
        if (p->op[other].stream == p->op[i].stream) continue;
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[other], ids);
        n += cr_op_writes(&p->op[other], ids + n);
        for (int k = 0; k < n; k++)
            if (is_filter_id(p, &p->op[i], ids[k])) return false;
    }
    return true;
}

/* The op may be the first of a group, or belongs to the group of the one before it. */
static bool joins_group(const struct cr_program *p, int i) {
    const int before = cr_op_before(p, i);
    if (before < 0 || !p->op[before].attr.conv.finish_later) return true;
    const struct cr_tensor *a = &p->tensor[p->op[before].in[CR_IN_conv_grad_x]],
                           *b = &p->tensor[p->op[i].in[CR_IN_conv_grad_x]];
    return p->op[before].attr.conv.filter_later && a->dim[0] == b->dim[0] && a->dtype == b->dtype;
}

/* No op behind op i, up to op `end`, which would compute its dw, reads or writes this dw. */
static bool can_wait(const struct cr_program *p, int i, int end) {
    for (int other = i + 1; other <= end; other++) {
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[other], ids);
        n += cr_op_writes(&p->op[other], ids + n);
        for (int k = 0; k < n; k++)
            if (overlap(p, ids[k], p->op[i].out[CR_OUT_conv_grad_dw])) return false;
    }
    return true;
}

/* A common launch for few convolutions gains nothing over launches of their own, measured on one H200 with groups of 4,
 * 6 and 8 (ResNets with shortcuts that have a convolution). */
enum { GROUP_LEAST = 9 };
/* Dissolves the group that ends before op `end`, the first conv_grad behind it, if `end` cannot compute its dw or the
 * group is too small. */
static void check_group(struct cr_program *p, int end) {
    bool good  = true;
    int  count = 0;
    for (int i = cr_op_before(p, end); i >= 0 && p->op[i].attr.conv.filter_later; i = cr_op_before(p, i)) {
        good = good && can_wait(p, i, end);
        count++;
    }
    good = good && count >= GROUP_LEAST;
    for (int i = cr_op_before(p, end); !good && i >= 0 && p->op[i].attr.conv.filter_later; i = cr_op_before(p, i))
        p->op[i].attr.conv.filter_later = false;
}

static void set_filter_later(struct cr_program *p, const struct cr_cost_model *cost_model) {
    for (int i = 0; i < p->ops; i++) {
        struct cr_op *op = &p->op[i];
        if (op->kind != CR_OP_conv_grad) continue;
        op->attr.conv.filter_later = op->attr.conv.finish_later && joins_group(p, i) && is_of_one_stream(p, i) &&
                                     cost_model->leaves_filter(cost_model->self, p, op);
        if (!op->attr.conv.filter_later) check_group(p, i);
    }
}

void cr_pass_finish_later(struct cr_program *p, const struct cr_cost_model *cost_model) {
    if (!cost_model->finishes) return;
    for (int i = 1; i < p->ops; i++) {
        const int before = cr_op_before(p, i);
        if (before >= 0 && fits(p, before, i) && cost_model->finishes(cost_model->self, p, &p->op[before], &p->op[i]))
            p->op[before].attr.conv.finish_later = true;
        if (applies_fits(p, i - 1) && cost_model->finishes(cost_model->self, p, &p->op[i - 1], &p->op[i]))
            p->op[i - 1].attr.bn.finish_later = true;
        const int shortcut = p->op[i - 1].kind == CR_OP_bn_apply ? cr_op_shortcut(p, i - 1) : CR_NONE;
        if (shortcut >= 0 && cr_op_finishes_later(&p->op[i - 1]) && shortcut_fits(p, shortcut, i) &&
            cost_model->finishes(cost_model->self, p, &p->op[shortcut], &p->op[i]))
            p->op[shortcut].attr.conv.finish_later = true;
    }
    if (cost_model->leaves_filter) set_filter_later(p, cost_model);
}
