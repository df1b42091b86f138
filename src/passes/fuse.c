/* fuse.c: joins BN-apply with the sum and the ReLU behind it, and the ReLU's gradient with the BN gradient behind it,
 * so that an activation is read and written once instead of two or three times.
 *
 * A pattern is a row: the kind of its last op and a function that, at such an op, joins it with the ops before it when
 *   - what lies between them is a transient that nobody else reads (backward ops included) and nobody keeps,
 *   - all stand on one lane and nothing in between changes what they read,
 *   - the target has a row for the joined op.
 * The joined op stands where the last one stood and writes the last one's output under its old name. Rows stand from
 * the widest to the narrowest, so a target that knows only the widest or only the narrowest gets the best it can do.
 * The unfused program is the oracle: both give the same numbers. */
#include "passes.h"
#include "passes/rewrite.h"

struct pattern {
    const char     *name;
    enum cr_op_kind root;
    bool (*join)(struct cr_edit *edit, const struct cr_target *target, int root);
};

static bool accepted(const struct cr_edit *edit, const struct cr_target *target, const struct cr_op *op) {
    return !target->accepts || target->accepts(target->self, edit->program, op);
}

static const struct cr_op *op_at(const struct cr_edit *edit, int index) {
    return &edit->program->op[index];
}

/* y = x*scale + bias and nothing more: free to take a sum or a ReLU. */
static bool is_plain_bn(const struct cr_op *op) {
    return op->kind == CR_OP_bn_apply && op->in[CR_IN_bn_apply_add] == CR_NONE && !op->attr.bn.relu;
}

static bool same_lane(const struct cr_edit *edit, int a, int b) {
    return op_at(edit, a)->lane == op_at(edit, b)->lane;
}

/* The BN-apply that alone feeds `tensor` to the op at `root`, and whose work may be done there; CR_NONE: none. */
static int bn_behind(const struct cr_edit *edit, int tensor, int root) {
    int bn = cr_edit_private_writer(edit, tensor, CR_OP_bn_apply);
    if (bn == CR_NONE || !same_lane(edit, bn, root) || !cr_edit_can_move(edit, bn, root)) return CR_NONE;
    return bn;
}

/* Puts the joined op at `root` and drops the ops it does the work of. */
static void put(struct cr_edit *edit, int root, const struct cr_op *joined, int first, int second) {
    if (first != CR_NONE) cr_edit_remove(edit, first);
    if (second != CR_NONE) cr_edit_remove(edit, second);
    cr_edit_replace(edit, root, joined);
}

/* Joins the BN-apply behind one operand of the sum at `add` into the op at `root`: the sum itself, or the ReLU behind
 * it. */
static bool join_sum(struct cr_edit *edit, const struct cr_target *target, int add, int root) {
    const struct cr_op *sum  = op_at(edit, add);
    bool                relu = root != add;
    for (int side = 0; side < 2; side++) {
        int own   = side ? sum->in[CR_IN_add_b] : sum->in[CR_IN_add_a],
            other = side ? sum->in[CR_IN_add_a] : sum->in[CR_IN_add_b];
        int bn    = bn_behind(edit, own, root);
        if (bn == CR_NONE || !is_plain_bn(op_at(edit, bn))) continue;
        struct cr_op joined           = *op_at(edit, bn);
        joined.in[CR_IN_bn_apply_add] = other;
        joined.out[CR_OUT_bn_apply_y] = op_at(edit, root)->out[0];
        joined.attr.bn.relu           = relu;
        if (!accepted(edit, target, &joined)) continue;
        put(edit, root, &joined, bn, relu ? add : CR_NONE);
        return true;
    }
    return false;
}

/* bn_apply -> add -> relu */
static bool join_bn_add_relu(struct cr_edit *edit, const struct cr_target *target, int root) {
    int add = cr_edit_private_writer(edit, op_at(edit, root)->in[CR_IN_relu_x], CR_OP_add);
    if (add == CR_NONE || !same_lane(edit, add, root) || !cr_edit_can_move(edit, add, root)) return false;
    return join_sum(edit, target, add, root);
}

/* bn_apply -> add */
static bool join_bn_add(struct cr_edit *edit, const struct cr_target *target, int root) {
    return join_sum(edit, target, root, root);
}

/* bn_apply (with or without a sum) -> relu */
static bool join_bn_relu(struct cr_edit *edit, const struct cr_target *target, int root) {
    int bn = bn_behind(edit, op_at(edit, root)->in[CR_IN_relu_x], root);
    if (bn == CR_NONE || op_at(edit, bn)->attr.bn.relu) return false;
    struct cr_op joined           = *op_at(edit, bn);
    joined.out[CR_OUT_bn_apply_y] = op_at(edit, root)->out[CR_OUT_relu_y];
    joined.attr.bn.relu           = true;
    if (!accepted(edit, target, &joined)) return false;
    put(edit, root, &joined, bn, CR_NONE);
    return true;
}

/* The summand is itself a BN of the shortcut: both are applied in one go. */
static bool join_bn_of_summand(struct cr_edit *edit, const struct cr_target *target, int root) {
    struct cr_op joined = *op_at(edit, root);
    if (joined.in[CR_IN_bn_apply_add] == CR_NONE || joined.in[CR_IN_bn_apply_add_coef] != CR_NONE) return false;
    int bn = bn_behind(edit, joined.in[CR_IN_bn_apply_add], root);
    if (bn == CR_NONE || !is_plain_bn(op_at(edit, bn))) return false;
    joined.in[CR_IN_bn_apply_add]      = op_at(edit, bn)->in[CR_IN_bn_apply_x];
    joined.in[CR_IN_bn_apply_add_coef] = op_at(edit, bn)->in[CR_IN_bn_apply_coef];
    if (!accepted(edit, target, &joined)) return false;
    put(edit, root, &joined, bn, CR_NONE);
    return true;
}

/* The next op after `from` that reads `tensor`; CR_NONE: none. */
static int next_reader(const struct cr_edit *edit, int tensor, int from) {
    for (int k = from + 1; k < edit->program->ops; k++) {
        if (edit->removed[k]) continue;
        int ids[8], n = cr_op_reads(op_at(edit, k), ids);
        for (int i = 0; i < n; i++)
            if (ids[i] == tensor) return k;
    }
    return CR_NONE;
}

/* relu_grad -> bn_grad_stats and bn_grad_apply of one BN: both take dy and y themselves. */
static bool join_relu_grad_bn_grad(struct cr_edit *edit, const struct cr_target *target, int root) {
    const struct cr_op *relu = op_at(edit, root);
    int                 dx   = relu->out[CR_OUT_relu_grad_dx];
    if (!cr_edit_is_private(edit, dx) || edit->reads[dx] != 2 || edit->writes[dx] != 1) return false;
    int s = next_reader(edit, dx, root), a = s == CR_NONE ? CR_NONE : next_reader(edit, dx, s);
    if (a == CR_NONE || op_at(edit, s)->kind != CR_OP_bn_grad_stats || op_at(edit, a)->kind != CR_OP_bn_grad_apply)
        return false;
    struct cr_op stats = *op_at(edit, s), apply = *op_at(edit, a);
    if (stats.in[CR_IN_bn_grad_stats_dy] != dx || apply.in[CR_IN_bn_grad_apply_dy] != dx) return false;
    if (stats.in[CR_IN_bn_grad_stats_x] != apply.in[CR_IN_bn_grad_apply_x]) return false;
    if (stats.in[CR_IN_bn_grad_stats_y] != CR_NONE || apply.in[CR_IN_bn_grad_apply_y] != CR_NONE) return false;
    if (!same_lane(edit, root, s) || !same_lane(edit, root, a) || !cr_edit_can_move(edit, root, a)) return false;
    stats.in[CR_IN_bn_grad_stats_dy] = apply.in[CR_IN_bn_grad_apply_dy] = relu->in[CR_IN_relu_grad_dy];
    stats.in[CR_IN_bn_grad_stats_y] = apply.in[CR_IN_bn_grad_apply_y] = relu->in[CR_IN_relu_grad_y];
    if (!accepted(edit, target, &stats) || !accepted(edit, target, &apply)) return false;
    cr_edit_remove(edit, root);
    cr_edit_replace(edit, s, &stats);
    cr_edit_replace(edit, a, &apply);
    return true;
}

static const struct pattern patterns[] = {
    {"bn+add+relu", CR_OP_relu, join_bn_add_relu},
    {"bn+add", CR_OP_add, join_bn_add},
    {"bn+relu", CR_OP_relu, join_bn_relu},
    {"bn+(bn)", CR_OP_bn_apply, join_bn_of_summand},
    {"relu_grad+bn_grad", CR_OP_relu_grad, join_relu_grad_bn_grad},
};

cr_status cr_pass_fuse(struct cr_program *program, const struct cr_target *target) {
    struct cr_edit edit;
    CR_TRY(cr_edit_open(&edit, program));
    for (size_t k = 0; k < CR_COUNT(patterns); k++)
        for (int i = 0; i < program->ops; i++)
            if (!edit.removed[i] && program->op[i].kind == patterns[k].root) patterns[k].join(&edit, target, i);
    cr_status status = cr_edit_finish(&edit);
    cr_edit_close(&edit);
    return status;
}
