/* compiler/fusion/conv_fusion_match.c: finds the convolutions of a program and the ops around each that it can fuse. */
#include "compiler/fusion/conv_fusion.h"

static const struct cr_op *op_at(const struct cr_conv_fusions *f, int index) {
    return cr_fuse_op(f->edit, index);
}

/* Returns whether `tensor` is available when op `index` starts: an input, a parameter or a result of an earlier op. */
static bool exists_before(const struct cr_conv_fusions *f, int tensor, int index) {
    return tensor >= 0 && f->edit->writer[tensor] < index;
}

/* The only reader of `tensor` of this kind; CR_NONE: none, or several. */
static int reader_of(const struct cr_conv_fusions *f, int tensor, enum cr_op_kind kind) {
    int found = CR_NONE;
    for (int k = cr_edit_next_reader(f->edit, tensor, -1); k != CR_NONE; k = cr_edit_next_reader(f->edit, tensor, k)) {
        if (op_at(f, k)->kind != kind) continue;
        if (found != CR_NONE) return CR_NONE;
        found = k;
    }
    return found;
}

/* ---- the ops behind the convolution ---- */

/* Finds the gradient ops. The BN gradient reads y; wgrad and dgrad read its dx. */
static void match_backward(struct cr_conv_fusions *f, struct cr_fusion_candidate *s) {
    const struct cr_op *conv = op_at(f, s->conv);
    int                 y = conv->out[CR_OUT_conv_y], apply = reader_of(f, y, CR_OP_bn_grad_apply);
    int                 gradient = apply != CR_NONE ? apply : reader_of(f, y, CR_OP_pool_bn_grad_apply);
    if (gradient == CR_NONE) return;
    int dy = op_at(f, gradient)->out[0]; /* dx of either op */
    int w = reader_of(f, dy, CR_OP_conv_wgrad), d = reader_of(f, dy, CR_OP_conv_dgrad);
    if (w != CR_NONE && op_at(f, w)->in[CR_IN_conv_wgrad_x] == conv->in[CR_IN_conv_x] &&
        op_at(f, w)->in[CR_IN_conv_wgrad_scale_bias] == CR_NONE)
        s->wgrad = w;
    if (d != CR_NONE && op_at(f, d)->in[CR_IN_conv_dgrad_w] == conv->in[CR_IN_conv_w] &&
        cr_op_uses_only(op_at(f, d), 3, 1))
        s->dgrad = d;
    if (apply == CR_NONE || op_at(f, apply)->in[CR_IN_bn_grad_apply_x] != y) return;
    if (!cr_edit_is_inner(f->edit, dy, (s->wgrad != CR_NONE) + (s->dgrad != CR_NONE))) return;
    s->apply  = apply;
    s->masked = op_at(f, apply)->in[CR_IN_bn_grad_apply_y] != CR_NONE ||
                op_at(f, apply)->in[CR_IN_bn_grad_apply_scale_bias] != CR_NONE;
}

/* ---- the BN before the convolution ---- */

static void match_input(struct cr_conv_fusions *f, struct cr_fusion_candidate *s) {
    int x = op_at(f, s->conv)->in[CR_IN_conv_x], bn = cr_fuse_writer(f->edit, x, CR_OP_bn_apply);
    s->block = bn != CR_NONE ? bn : cr_fuse_writer(f->edit, x, CR_OP_conv);
    if (bn == CR_NONE || !op_at(f, bn)->attr.bn.relu) return;
    const struct cr_op *apply    = op_at(f, bn);
    int                 finalize = cr_fuse_writer(f->edit, apply->in[CR_IN_bn_apply_scale_bias], CR_OP_bn_finalize);
    if (finalize == CR_NONE) return;
    s->bn       = bn;
    s->finalize = finalize;
    s->owned    = apply->in[CR_IN_bn_apply_add] == CR_NONE && apply->out[CR_OUT_bn_apply_mask] == CR_NONE &&
               cr_edit_is_inner(f->edit, x, 1 + (s->wgrad != CR_NONE)) && cr_edit_can_move(f->edit, bn, s->conv) &&
               (s->wgrad == CR_NONE || cr_edit_can_move(f->edit, bn, s->wgrad));
}

/* ---- the epilogue: the ops behind the data gradient ---- */

/* Finds the add of v and the other branch's gradient. Returns the sum; v when there is no such add. */
static int match_add(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, int v,
                     struct cr_grad_epilogue *e) {
    int add = cr_edit_is_inner(f->edit, v, 1) ? cr_edit_next_reader(f->edit, v, s->dgrad) : CR_NONE;
    if (add == CR_NONE || op_at(f, add)->kind != CR_OP_add) return v;
    const struct cr_op *op    = op_at(f, add);
    int                 other = op->in[CR_IN_add_a] == v ? op->in[CR_IN_add_b] : op->in[CR_IN_add_a];
    if (other == v || !exists_before(f, other, s->dgrad)) return v;
    e->add   = add;
    e->other = other;
    e->sum = e->g = op->out[CR_OUT_add_y];
    e->max_fusion = CR_GRAD_FUSION_ADD;
    return e->sum;
}

/* Without an add before the ReLU, the fused op can compute the ReLU mask from the BN's input, gamma and beta. */
static void match_gamma_beta(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                             struct cr_grad_epilogue *e) {
    if (op_at(f, s->bn)->in[CR_IN_bn_apply_add] != CR_NONE || op_at(f, s->bn)->in[CR_IN_bn_apply_x] != e->bn_x) return;
    e->gamma = op_at(f, s->finalize)->in[CR_IN_bn_finalize_gamma];
    e->beta  = op_at(f, s->finalize)->in[CR_IN_bn_finalize_beta];
}

/* Matches a relu_grad that masks with x: the result of a BN, whose gradient sums it writes; or the output of a
 * convolution whose BN needs no sums over the gradient. */
static bool match_relu(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, int v,
                       struct cr_grad_epilogue *e) {
    const bool conv = s->bn == CR_NONE;
    if (conv && (s->block == CR_NONE || op_at(f, s->block)->kind != CR_OP_conv || !op_at(f, s->block)->attr.conv.relu))
        return false;
    const int relu = cr_edit_is_inner(f->edit, v, 1) ? cr_edit_next_reader(f->edit, v, s->dgrad) : CR_NONE;
    if (relu == CR_NONE || op_at(f, relu)->kind != CR_OP_relu_grad || e->add != CR_NONE) return false;
    const struct cr_op *op = op_at(f, relu), *block = op_at(f, conv ? s->block : s->bn);
    const int           y = op->in[CR_IN_relu_grad_y], sums = op->out[CR_OUT_relu_grad_grad_sums];
    if (y != block->out[0] && y != block->out[conv ? (int)CR_OUT_conv_mask : (int)CR_OUT_bn_apply_mask]) return false;
    if ((sums == CR_NONE) != conv) return false;
    int other = op->in[CR_IN_relu_grad_add];
    if (other == v) other = op->in[CR_IN_relu_grad_dy];
    if (other != CR_NONE && !exists_before(f, other, s->dgrad)) return false;
    e->max_fusion = CR_GRAD_FUSION_ALL;
    e->other      = other;
    e->relu       = relu;
    e->g          = op->out[CR_OUT_relu_grad_dx];
    if (conv) {
        e->y = block->out[CR_OUT_conv_y];
        return true;
    }
    e->bn_x      = op->in[CR_IN_relu_grad_bn_x];
    e->mean_rstd = op->in[CR_IN_relu_grad_mean_rstd];
    e->grad_sums = sums;
    e->two       = op->out[CR_OUT_relu_grad_grad_sums2] != CR_NONE;
    match_gamma_beta(f, s, e);
    return true;
}

/* Matches bn_grad_sums and bn_grad_apply that apply the mask to `dy` (v, or the sum) themselves. */
static void match_bn_grad(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, int dy,
                          struct cr_grad_epilogue *e) {
    if (!cr_edit_is_inner(f->edit, dy, 2)) return;
    int sums_op = reader_of(f, dy, CR_OP_bn_grad_sums), apply = reader_of(f, dy, CR_OP_bn_grad_apply);
    if (sums_op == CR_NONE || apply == CR_NONE) return;
    const struct cr_op *sums_grad = op_at(f, sums_op), *apply_op = op_at(f, apply), *bn = op_at(f, s->bn);
    int x = bn->in[CR_IN_bn_apply_x], y = bn->out[CR_OUT_bn_apply_y], scale_bias = bn->in[CR_IN_bn_apply_scale_bias];
    if (sums_grad->in[CR_IN_bn_grad_sums_x] != x || apply_op->in[CR_IN_bn_grad_apply_x] != x) return;
    if (sums_grad->in[CR_IN_bn_grad_sums_y] != y && sums_grad->in[CR_IN_bn_grad_sums_scale_bias] != scale_bias) return;
    if (apply_op->in[CR_IN_bn_grad_apply_y] != y && apply_op->in[CR_IN_bn_grad_apply_scale_bias] != scale_bias) return;
    struct cr_op unmasked = cr_unmasked_bn_grad_apply(f, apply);
    if (!cr_fuse_accepted(f->edit, &unmasked)) return;
    e->max_fusion = CR_GRAD_FUSION_ALL;
    e->sums       = sums_op;
    e->apply      = apply;
    e->bn_x       = x;
    e->mean_rstd  = sums_grad->in[CR_IN_bn_grad_sums_mean_rstd];
    e->g          = dy;
    e->grad_sums  = sums_grad->out[CR_OUT_bn_grad_sums_grad_sums];
    match_gamma_beta(f, s, e);
}

/* Returns whether all ops of the epilogue can run at the place of dgrad. */
static bool epilogue_can_move(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s) {
    const int moved[] = {s->epilogue.add, s->epilogue.relu, s->epilogue.sums};
    for (size_t i = 0; i < CR_COUNT(moved); i++)
        if (moved[i] != CR_NONE && !cr_fuse_same_stream(f->edit, s->dgrad, moved[i])) return false;
    if (s->epilogue.max_fusion < CR_GRAD_FUSION_ALL || s->epilogue.y != CR_NONE) return true;
    return exists_before(f, s->epilogue.bn_x, s->dgrad) && exists_before(f, s->epilogue.mean_rstd, s->dgrad) &&
           cr_edit_can_move(f->edit, s->finalize, s->dgrad);
}

static void match_epilogue(struct cr_conv_fusions *f, struct cr_fusion_candidate *s) {
    struct cr_grad_epilogue none = {.max_fusion = CR_GRAD_FUSION_NONE};
    none.add = none.other = none.sum = none.relu = none.sums = none.apply = none.bn_x = none.mean_rstd = CR_NONE;
    none.y = none.gamma = none.beta = none.g = none.grad_sums = CR_NONE;
    s->epilogue                                               = none;
    if (s->dgrad == CR_NONE) return;
    int v  = op_at(f, s->dgrad)->out[CR_OUT_conv_dgrad_dx];
    int dy = match_add(f, s, v, &s->epilogue);
    if (!match_relu(f, s, v, &s->epilogue) && s->bn != CR_NONE) match_bn_grad(f, s, dy, &s->epilogue);
    if (!epilogue_can_move(f, s)) s->epilogue = none;
}

/* ---- the candidates ---- */

static void match_candidate(struct cr_conv_fusions *f, struct cr_fusion_candidate *s) {
    const struct cr_op *conv = op_at(f, s->conv);
    s->sums                  = reader_of(f, conv->out[CR_OUT_conv_y], CR_OP_bn_sums);
    if (s->sums != CR_NONE && !cr_fuse_same_stream(f->edit, s->conv, s->sums)) s->sums = CR_NONE;
    match_backward(f, s);
    match_input(f, s);
    match_epilogue(f, s);
}

/* Links two candidates when the BN gradient between them is `apply` of the first and epilogue.apply of the second. */
static void link_candidates(struct cr_conv_fusions *f) {
    for (int k = 0; k < f->candidates; k++) {
        if (f->candidate[k].epilogue.apply == CR_NONE) continue;
        for (int i = 0; i < f->candidates; i++) {
            if (i == k || f->candidate[i].apply != f->candidate[k].epilogue.apply) continue;
            f->candidate[i].next         = k;
            f->candidate[k].has_previous = true;
        }
    }
}

cr_status cr_conv_fusions_match(struct cr_conv_fusions *f) {
    const struct cr_program *p     = f->edit->program;
    int                      count = 0;
    for (int i = 0; i < p->ops; i++) count += !f->edit->removed[i] && p->op[i].kind == CR_OP_conv;
    CR_ALLOC(f->candidate, (size_t)count);
    for (int i = 0; i < p->ops; i++) {
        if (f->edit->removed[i] || p->op[i].kind != CR_OP_conv || !cr_op_uses_only(&p->op[i], 3, 1)) continue;
        struct cr_fusion_candidate *s = &f->candidate[f->candidates++];
        s->conv                       = i;
        s->wgrad = s->dgrad = s->sums = s->apply = s->bn = s->finalize = s->half = s->next = s->block = CR_NONE;
        match_candidate(f, s);
    }
    link_candidates(f);
    return CR_OK;
}
