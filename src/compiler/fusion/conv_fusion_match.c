/* compiler/fusion/conv_fusion_match.c: finds the convolutions of a program and what stands around each. See
 * compiler/fusion/conv_fusion.h. */
#include "compiler/fusion/conv_fusion.h"

static const struct cr_op *op_at(const struct cr_conv_fusions *j, int index) {
    return cr_fuse_op(j->edit, index);
}

/* Does `tensor` exist when op `index` starts? Inputs, parameters and what an earlier op wrote do. */
static bool exists_before(const struct cr_conv_fusions *j, int tensor, int index) {
    return tensor >= 0 && j->edit->writer[tensor] < index;
}

/* A transient of one writer that `reads` slots read. */
static bool is_private(const struct cr_conv_fusions *j, int tensor, int reads) {
    return cr_edit_is_private(j->edit, tensor) && j->edit->writes[tensor] == 1 && j->edit->reads[tensor] == reads;
}

/* The reader of `tensor` of this kind; CR_NONE: none, or more than one. */
static int reader_of(const struct cr_conv_fusions *j, int tensor, enum cr_op_kind kind) {
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
static void match_backward(struct cr_conv_fusions *j, struct cr_fusion_candidate *s) {
    const struct cr_op *conv = op_at(j, s->conv);
    int                 y = conv->out[CR_OUT_conv_y], apply = reader_of(j, y, CR_OP_bn_grad_apply);
    int                 any = apply != CR_NONE ? apply : reader_of(j, y, CR_OP_pool_bn_grad_apply);
    if (any == CR_NONE) return;
    int dy = op_at(j, any)->out[0]; /* dx of either kind */
    int w = reader_of(j, dy, CR_OP_conv_wgrad), d = reader_of(j, dy, CR_OP_conv_dgrad);
    if (w != CR_NONE && op_at(j, w)->in[CR_IN_conv_wgrad_x] == conv->in[CR_IN_conv_x] &&
        op_at(j, w)->in[CR_IN_conv_wgrad_scale_bias] == CR_NONE)
        s->wgrad = w;
    if (d != CR_NONE && op_at(j, d)->in[CR_IN_conv_dgrad_w] == conv->in[CR_IN_conv_w] &&
        cr_op_uses_only(op_at(j, d), 3, 1))
        s->dgrad = d;
    if (apply == CR_NONE || op_at(j, apply)->in[CR_IN_bn_grad_apply_x] != y) return;
    if (!is_private(j, dy, (s->wgrad != CR_NONE) + (s->dgrad != CR_NONE))) return;
    s->apply  = apply;
    s->masked = op_at(j, apply)->in[CR_IN_bn_grad_apply_y] != CR_NONE ||
                op_at(j, apply)->in[CR_IN_bn_grad_apply_scale_bias] != CR_NONE;
}

/* ---- before it ---- */

static void match_input(struct cr_conv_fusions *j, struct cr_fusion_candidate *s) {
    int x = op_at(j, s->conv)->in[CR_IN_conv_x], bn = cr_fuse_writer(j->edit, x, CR_OP_bn_apply);
    if (bn == CR_NONE || !op_at(j, bn)->attr.bn.relu) return;
    const struct cr_op *apply    = op_at(j, bn);
    int                 finalize = cr_fuse_writer(j->edit, apply->in[CR_IN_bn_apply_scale_bias], CR_OP_bn_finalize);
    if (finalize == CR_NONE) return;
    s->bn       = bn;
    s->finalize = finalize;
    s->owned    = apply->in[CR_IN_bn_apply_add] == CR_NONE && apply->out[CR_OUT_bn_apply_mask] == CR_NONE &&
               is_private(j, x, 1 + (s->wgrad != CR_NONE)) && cr_edit_can_move(j->edit, bn, s->conv) &&
               (s->wgrad == CR_NONE || cr_edit_can_move(j->edit, bn, s->wgrad));
}

/* ---- the gate: what becomes of its gradient ---- */

/* v meets the other branch's gradient; returns the tensor behind the sum, v itself where there is none. */
static int match_sum(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, int v,
                     struct cr_grad_epilogue *gate) {
    int add = is_private(j, v, 1) ? cr_edit_next_reader(j->edit, v, s->dgrad) : CR_NONE;
    if (add == CR_NONE || op_at(j, add)->kind != CR_OP_add) return v;
    const struct cr_op *op    = op_at(j, add);
    int                 other = op->in[CR_IN_add_a] == v ? op->in[CR_IN_add_b] : op->in[CR_IN_add_a];
    if (other == v || !exists_before(j, other, s->dgrad)) return v;
    gate->add   = add;
    gate->other = other;
    gate->sum = gate->g = op->out[CR_OUT_add_y];
    gate->max_fusion    = CR_GRAD_FUSION_ADD;
    return gate->sum;
}

/* With nothing added before the ReLU its mask can be told from the BN's input. */
static void match_parameters(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s,
                             struct cr_grad_epilogue *gate) {
    if (op_at(j, s->bn)->in[CR_IN_bn_apply_add] != CR_NONE || op_at(j, s->bn)->in[CR_IN_bn_apply_x] != gate->bn_x)
        return;
    gate->gamma = op_at(j, s->finalize)->in[CR_IN_bn_finalize_gamma];
    gate->beta  = op_at(j, s->finalize)->in[CR_IN_bn_finalize_beta];
}

/* relu_grad with the sums of the BNs before it, the mask being that of x. */
static bool match_relu(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, int v,
                       struct cr_grad_epilogue *gate) {
    int relu = is_private(j, v, 1) ? cr_edit_next_reader(j->edit, v, s->dgrad) : CR_NONE;
    if (relu == CR_NONE || op_at(j, relu)->kind != CR_OP_relu_grad || gate->add != CR_NONE) return false;
    const struct cr_op *op = op_at(j, relu), *bn = op_at(j, s->bn);
    int                 y = op->in[CR_IN_relu_grad_y];
    if (y != bn->out[CR_OUT_bn_apply_y] && y != bn->out[CR_OUT_bn_apply_mask]) return false;
    if (op->out[CR_OUT_relu_grad_grad_sums] == CR_NONE) return false;
    int other = op->in[CR_IN_relu_grad_add];
    if (other == v) other = op->in[CR_IN_relu_grad_dy];
    if (other != CR_NONE && !exists_before(j, other, s->dgrad)) return false;
    gate->max_fusion = CR_GRAD_FUSION_ALL;
    gate->other      = other;
    gate->relu       = relu;
    gate->bn_x       = op->in[CR_IN_relu_grad_bn_x];
    gate->mean_rstd  = op->in[CR_IN_relu_grad_mean_rstd];
    gate->g          = op->out[CR_OUT_relu_grad_dx];
    gate->grad_sums  = op->out[CR_OUT_relu_grad_grad_sums];
    gate->two        = op->out[CR_OUT_relu_grad_grad_sums2] != CR_NONE;
    match_parameters(j, s, gate);
    return true;
}

/* bn_grad_sums and bn_grad_apply that mask `dy` (v, or the sum) themselves. */
static void match_bn_grad(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, int dy,
                          struct cr_grad_epilogue *gate) {
    if (!is_private(j, dy, 2)) return;
    int stats = reader_of(j, dy, CR_OP_bn_grad_sums), apply = reader_of(j, dy, CR_OP_bn_grad_apply);
    if (stats == CR_NONE || apply == CR_NONE) return;
    const struct cr_op *st = op_at(j, stats), *ap = op_at(j, apply), *bn = op_at(j, s->bn);
    int x = bn->in[CR_IN_bn_apply_x], y = bn->out[CR_OUT_bn_apply_y], coef = bn->in[CR_IN_bn_apply_scale_bias];
    if (st->in[CR_IN_bn_grad_sums_x] != x || ap->in[CR_IN_bn_grad_apply_x] != x) return;
    if (st->in[CR_IN_bn_grad_sums_y] != y && st->in[CR_IN_bn_grad_sums_scale_bias] != coef) return;
    if (ap->in[CR_IN_bn_grad_apply_y] != y && ap->in[CR_IN_bn_grad_apply_scale_bias] != coef) return;
    struct cr_op clear = cr_unmasked_bn_grad_apply(j, apply);
    if (!cr_fuse_accepted(j->edit, j->target, &clear)) return;
    gate->max_fusion = CR_GRAD_FUSION_ALL;
    gate->sums       = stats;
    gate->apply      = apply;
    gate->bn_x       = x;
    gate->mean_rstd  = st->in[CR_IN_bn_grad_sums_mean_rstd];
    gate->g          = dy;
    gate->grad_sums  = st->out[CR_OUT_bn_grad_sums_grad_sums];
    match_parameters(j, s, gate);
}

/* All ops of the gate must be doable at dgrad's place. */
static bool movable(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s) {
    const int late[] = {s->epilogue.add, s->epilogue.relu, s->epilogue.sums};
    for (size_t i = 0; i < CR_COUNT(late); i++)
        if (late[i] != CR_NONE && !cr_fuse_same_stream(j->edit, s->dgrad, late[i])) return false;
    if (s->epilogue.max_fusion < CR_GRAD_FUSION_ALL) return true;
    return exists_before(j, s->epilogue.bn_x, s->dgrad) && exists_before(j, s->epilogue.mean_rstd, s->dgrad) &&
           cr_edit_can_move(j->edit, s->finalize, s->dgrad);
}

static void match_gate(struct cr_conv_fusions *j, struct cr_fusion_candidate *s) {
    static const struct cr_grad_epilogue none = {CR_GRAD_FUSION_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 CR_NONE,
                                                 false};
    s->epilogue                               = none;
    if (s->dgrad == CR_NONE) return;
    int v  = op_at(j, s->dgrad)->out[CR_OUT_conv_dgrad_dx];
    int dy = match_sum(j, s, v, &s->epilogue);
    if (s->bn != CR_NONE && !match_relu(j, s, v, &s->epilogue)) match_bn_grad(j, s, dy, &s->epilogue);
    if (!movable(j, s)) s->epilogue = none;
}

/* ---- all of it ---- */

static void match_site(struct cr_conv_fusions *j, struct cr_fusion_candidate *s) {
    const struct cr_op *conv = op_at(j, s->conv);
    s->sums                  = reader_of(j, conv->out[CR_OUT_conv_y], CR_OP_bn_sums);
    if (s->sums != CR_NONE && !cr_fuse_same_stream(j->edit, s->conv, s->sums)) s->sums = CR_NONE;
    match_backward(j, s);
    match_input(j, s);
    match_gate(j, s);
}

/* The sites whose BN's gradient stands between two of them. */
static void link_sites(struct cr_conv_fusions *j) {
    for (int k = 0; k < j->candidates; k++) {
        if (j->candidate[k].epilogue.apply == CR_NONE) continue;
        for (int i = 0; i < j->candidates; i++) {
            if (i == k || j->candidate[i].apply != j->candidate[k].epilogue.apply) continue;
            j->candidate[i].next         = k;
            j->candidate[k].has_previous = true;
        }
    }
}

cr_status cr_conv_fusions_match(struct cr_conv_fusions *j) {
    const struct cr_program *p     = j->edit->program;
    int                      count = 0;
    for (int i = 0; i < p->ops; i++) count += !j->edit->removed[i] && p->op[i].kind == CR_OP_conv;
    CR_ALLOC(j->candidate, (size_t)CR_MAX(count, 1));
    for (int i = 0; i < p->ops; i++) {
        if (j->edit->removed[i] || p->op[i].kind != CR_OP_conv || !cr_op_uses_only(&p->op[i], 3, 1)) continue;
        struct cr_fusion_candidate *s = &j->candidate[j->candidates++];
        s->conv                       = i;
        s->wgrad = s->dgrad = s->sums = s->apply = s->bn = s->finalize = s->half = s->next = CR_NONE;
        match_site(j, s);
    }
    link_sites(j);
    return CR_OK;
}
