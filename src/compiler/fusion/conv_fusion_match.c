/* compiler/fusion/conv_fusion_match.c: finds the convolutions of a program and what stands around each. See compiler/fusion/conv_fusion.h. */
#include "compiler/fusion/conv_fusion.h"

static const struct cr_op *op_at(const struct cr_junctions *j, int index) {
    return cr_fuse_op(j->edit, index);
}

/* Does `tensor` exist when op `index` starts? Inputs, parameters and what an earlier op wrote do. */
static bool exists_before(const struct cr_junctions *j, int tensor, int index) {
    return tensor >= 0 && j->edit->writer[tensor] < index;
}

/* A transient of one writer that `reads` slots read. */
static bool is_private(const struct cr_junctions *j, int tensor, int reads) {
    return cr_edit_is_private(j->edit, tensor) && j->edit->writes[tensor] == 1 && j->edit->reads[tensor] == reads;
}

/* The reader of `tensor` of this kind; CR_NONE: none, or more than one. */
static int reader_of(const struct cr_junctions *j, int tensor, enum cr_op_kind kind) {
    int found = CR_NONE;
    for (int k = cr_edit_next_reader(j->edit, tensor, -1); k != CR_NONE; k = cr_edit_next_reader(j->edit, tensor, k)) {
        if (op_at(j, k)->kind != kind) continue;
        if (found != CR_NONE) return CR_NONE;
        found = k;
    }
    return found;
}

/* ---- behind the convolution ---- */

/* From y to dy: the BN's gradient reads y, and its dx is what wgrad and dgrad read. */
static void match_backward(struct cr_junctions *j, struct cr_site *s) {
    const struct cr_op *conv = op_at(j, s->conv);
    int                 y = conv->out[CR_OUT_conv_y], apply = reader_of(j, y, CR_OP_bn_grad_apply);
    int                 any = apply != CR_NONE ? apply : reader_of(j, y, CR_OP_pool_bn_grad_apply);
    if (any == CR_NONE) return;
    int dy = op_at(j, any)->out[0]; /* dx of either kind */
    int w = reader_of(j, dy, CR_OP_conv_wgrad), d = reader_of(j, dy, CR_OP_conv_dgrad);
    if (w != CR_NONE && op_at(j, w)->in[CR_IN_conv_wgrad_x] == conv->in[CR_IN_conv_x] &&
        op_at(j, w)->in[CR_IN_conv_wgrad_coef] == CR_NONE)
        s->wgrad = w;
    if (d != CR_NONE && op_at(j, d)->in[CR_IN_conv_dgrad_w] == conv->in[CR_IN_conv_w] &&
        cr_op_uses_only(op_at(j, d), 3, 1))
        s->dgrad = d;
    if (apply == CR_NONE || op_at(j, apply)->in[CR_IN_bn_grad_apply_x] != y) return;
    if (!is_private(j, dy, (s->wgrad != CR_NONE) + (s->dgrad != CR_NONE))) return;
    s->apply  = apply;
    s->masked = op_at(j, apply)->in[CR_IN_bn_grad_apply_y] != CR_NONE ||
                op_at(j, apply)->in[CR_IN_bn_grad_apply_act] != CR_NONE;
}

/* ---- before it ---- */

static void match_input(struct cr_junctions *j, struct cr_site *s) {
    int x = op_at(j, s->conv)->in[CR_IN_conv_x], bn = cr_fuse_writer(j->edit, x, CR_OP_bn_apply);
    if (bn == CR_NONE || !op_at(j, bn)->attr.bn.relu) return;
    const struct cr_op *apply    = op_at(j, bn);
    int                 finalize = cr_fuse_writer(j->edit, apply->in[CR_IN_bn_apply_coef], CR_OP_bn_finalize);
    if (finalize == CR_NONE) return;
    s->bn       = bn;
    s->finalize = finalize;
    s->owned    = apply->in[CR_IN_bn_apply_add] == CR_NONE && apply->out[CR_OUT_bn_apply_mask] == CR_NONE &&
               is_private(j, x, 1 + (s->wgrad != CR_NONE)) && cr_edit_can_move(j->edit, bn, s->conv) &&
               (s->wgrad == CR_NONE || cr_edit_can_move(j->edit, bn, s->wgrad));
}

/* ---- the gate: what becomes of its gradient ---- */

/* v meets the other branch's gradient; returns the tensor behind the sum, v itself where there is none. */
static int match_sum(const struct cr_junctions *j, const struct cr_site *s, int v, struct cr_gate *gate) {
    int add = is_private(j, v, 1) ? cr_edit_next_reader(j->edit, v, s->dgrad) : CR_NONE;
    if (add == CR_NONE || op_at(j, add)->kind != CR_OP_add) return v;
    const struct cr_op *op    = op_at(j, add);
    int                 other = op->in[CR_IN_add_a] == v ? op->in[CR_IN_add_b] : op->in[CR_IN_add_a];
    if (other == v || !exists_before(j, other, s->dgrad)) return v;
    gate->add   = add;
    gate->other = other;
    gate->sum = gate->g = op->out[CR_OUT_add_y];
    gate->most          = CR_TAKE_SUM;
    return gate->sum;
}

/* With nothing added before the ReLU its mask can be told from the BN's input. */
static void match_parameters(const struct cr_junctions *j, const struct cr_site *s, struct cr_gate *gate) {
    if (op_at(j, s->bn)->in[CR_IN_bn_apply_add] != CR_NONE || op_at(j, s->bn)->in[CR_IN_bn_apply_x] != gate->bn_x)
        return;
    gate->gamma = op_at(j, s->finalize)->in[CR_IN_bn_finalize_gamma];
    gate->beta  = op_at(j, s->finalize)->in[CR_IN_bn_finalize_beta];
}

/* relu_grad with the sums of the BNs before it, the mask being that of x. */
static bool match_relu(const struct cr_junctions *j, const struct cr_site *s, int v, struct cr_gate *gate) {
    int relu = is_private(j, v, 1) ? cr_edit_next_reader(j->edit, v, s->dgrad) : CR_NONE;
    if (relu == CR_NONE || op_at(j, relu)->kind != CR_OP_relu_grad || gate->add != CR_NONE) return false;
    const struct cr_op *op = op_at(j, relu), *bn = op_at(j, s->bn);
    int                 y = op->in[CR_IN_relu_grad_y];
    if (y != bn->out[CR_OUT_bn_apply_y] && y != bn->out[CR_OUT_bn_apply_mask]) return false;
    if (op->out[CR_OUT_relu_grad_dstats] == CR_NONE) return false;
    int other = op->in[CR_IN_relu_grad_add];
    if (other == v) other = op->in[CR_IN_relu_grad_dy];
    if (other != CR_NONE && !exists_before(j, other, s->dgrad)) return false;
    gate->most   = CR_TAKE_ALL;
    gate->other  = other;
    gate->relu   = relu;
    gate->bn_x   = op->in[CR_IN_relu_grad_bn_x];
    gate->saved  = op->in[CR_IN_relu_grad_saved];
    gate->g      = op->out[CR_OUT_relu_grad_dx];
    gate->dstats = op->out[CR_OUT_relu_grad_dstats];
    gate->two    = op->out[CR_OUT_relu_grad_dstats2] != CR_NONE;
    match_parameters(j, s, gate);
    return true;
}

/* bn_grad_stats and bn_grad_apply that mask `dy` (v, or the sum) themselves. */
static void match_bn_grad(const struct cr_junctions *j, const struct cr_site *s, int dy, struct cr_gate *gate) {
    if (!is_private(j, dy, 2)) return;
    int stats = reader_of(j, dy, CR_OP_bn_grad_stats), apply = reader_of(j, dy, CR_OP_bn_grad_apply);
    if (stats == CR_NONE || apply == CR_NONE) return;
    const struct cr_op *st = op_at(j, stats), *ap = op_at(j, apply), *bn = op_at(j, s->bn);
    int x = bn->in[CR_IN_bn_apply_x], y = bn->out[CR_OUT_bn_apply_y], coef = bn->in[CR_IN_bn_apply_coef];
    if (st->in[CR_IN_bn_grad_stats_x] != x || ap->in[CR_IN_bn_grad_apply_x] != x) return;
    if (st->in[CR_IN_bn_grad_stats_y] != y && st->in[CR_IN_bn_grad_stats_act] != coef) return;
    if (ap->in[CR_IN_bn_grad_apply_y] != y && ap->in[CR_IN_bn_grad_apply_act] != coef) return;
    struct cr_op clear = cr_site_clear(j, apply);
    if (!cr_fuse_accepted(j->edit, j->target, &clear)) return;
    gate->most   = CR_TAKE_ALL;
    gate->stats  = stats;
    gate->apply  = apply;
    gate->bn_x   = x;
    gate->saved  = st->in[CR_IN_bn_grad_stats_saved];
    gate->g      = dy;
    gate->dstats = st->out[CR_OUT_bn_grad_stats_dstats];
    match_parameters(j, s, gate);
}

/* All ops of the gate must be doable at dgrad's place. */
static bool movable(const struct cr_junctions *j, const struct cr_site *s) {
    const int late[] = {s->gate.add, s->gate.relu, s->gate.stats};
    for (size_t i = 0; i < CR_COUNT(late); i++)
        if (late[i] != CR_NONE && !cr_fuse_same_lane(j->edit, s->dgrad, late[i])) return false;
    if (s->gate.most < CR_TAKE_ALL) return true;
    return exists_before(j, s->gate.bn_x, s->dgrad) && exists_before(j, s->gate.saved, s->dgrad) &&
           cr_edit_can_move(j->edit, s->finalize, s->dgrad);
}

static void match_gate(struct cr_junctions *j, struct cr_site *s) {
    static const struct cr_gate none = {CR_TAKE_NOTHING, CR_NONE, CR_NONE, CR_NONE, CR_NONE, CR_NONE, CR_NONE,
                                        CR_NONE,         CR_NONE, CR_NONE, CR_NONE, CR_NONE, CR_NONE, false};
    s->gate                          = none;
    if (s->dgrad == CR_NONE) return;
    int v  = op_at(j, s->dgrad)->out[CR_OUT_conv_dgrad_dx];
    int dy = match_sum(j, s, v, &s->gate);
    if (s->bn != CR_NONE && !match_relu(j, s, v, &s->gate)) match_bn_grad(j, s, dy, &s->gate);
    if (!movable(j, s)) s->gate = none;
}

/* ---- all of it ---- */

static void match_site(struct cr_junctions *j, struct cr_site *s) {
    const struct cr_op *conv = op_at(j, s->conv);
    s->stats                 = reader_of(j, conv->out[CR_OUT_conv_y], CR_OP_bn_stats);
    if (s->stats != CR_NONE && !cr_fuse_same_lane(j->edit, s->conv, s->stats)) s->stats = CR_NONE;
    match_backward(j, s);
    match_input(j, s);
    match_gate(j, s);
}

/* The sites whose BN's gradient stands between two of them. */
static void link_sites(struct cr_junctions *j) {
    for (int k = 0; k < j->sites; k++) {
        if (j->site[k].gate.apply == CR_NONE) continue;
        for (int i = 0; i < j->sites; i++) {
            if (i == k || j->site[i].apply != j->site[k].gate.apply) continue;
            j->site[i].next = k;
            j->site[k].led  = true;
        }
    }
}

cr_status cr_junctions_match(struct cr_junctions *j) {
    const struct cr_program *p     = j->edit->program;
    int                      count = 0;
    for (int i = 0; i < p->ops; i++) count += !j->edit->removed[i] && p->op[i].kind == CR_OP_conv;
    CR_ALLOC(j->site, (size_t)CR_MAX(count, 1));
    for (int i = 0; i < p->ops; i++) {
        if (j->edit->removed[i] || p->op[i].kind != CR_OP_conv || !cr_op_uses_only(&p->op[i], 3, 1)) continue;
        struct cr_site *s = &j->site[j->sites++];
        s->conv           = i;
        s->wgrad = s->dgrad = s->stats = s->apply = s->bn = s->finalize = s->half = s->next = CR_NONE;
        match_site(j, s);
    }
    link_sites(j);
    return CR_OK;
}
