/* compiler/gram/gram_bn.c: finds and rewrites the 1x1 convolutions and BNs (candidates) of compiler/gram/gram_bn.h. */
#include "compiler/gram/gram_bn.h"

#include <stdio.h>

static const struct cr_op *op_at(const struct cr_edit *edit, int index) {
    return cr_fuse_op(edit, index);
}

/* ---- matching ---- */

/* The first reader of `tensor` of this kind behind op `from`; CR_NONE: none. */
static int reader_of(const struct cr_edit *edit, int tensor, enum cr_op_kind kind, int from) {
    int k = from;
    do k = cr_edit_next_reader(edit, tensor, k);
    while (k != CR_NONE && op_at(edit, k)->kind != kind);
    return k;
}

/* From sums [2,K] to the op that finalizes them, directly or behind an all_reduce. */
static int finalizer_of(const struct cr_edit *edit, int sums, enum cr_op_kind kind, int from, int *reduce) {
    *reduce = CR_NONE;
    if (!cr_edit_is_inner(edit, sums, 1)) return CR_NONE;
    const int all = reader_of(edit, sums, CR_OP_all_reduce, from);
    if (all == CR_NONE) return reader_of(edit, sums, kind, from);
    *reduce           = all;
    const int reduced = op_at(edit, all)->out[CR_OUT_all_reduce_y];
    return cr_edit_is_inner(edit, reduced, 1) ? reader_of(edit, reduced, kind, all) : CR_NONE;
}

static bool is_expansion(const struct cr_edit *edit, const struct cr_op *conv) {
    const struct cr_tensor *w = &edit->program->tensor[conv->in[CR_IN_conv_w]];
    return conv->kind == CR_OP_conv && cr_op_uses_only(conv, 3, 1) && w->region == CR_REGION_STORE && w->dim[1] == 1 &&
           w->dim[2] == 1 && w->dim[3] < w->dim[0] && conv->attr.conv.pad == 0 && !conv->attr.conv.relu &&
           !cr_op_has_sparsity_pattern(conv);
}

static bool match_forward(const struct cr_edit *edit, struct cr_gram_candidate *s) {
    const struct cr_op *conv = op_at(edit, s->conv);
    const int           y    = conv->out[CR_OUT_conv_y];
    /* bn_sums, bn_apply, bn_grad_sums, bn_grad_apply */
    if (!is_expansion(edit, conv) || !cr_edit_is_inner(edit, y, 4)) return false;
    s->sums  = reader_of(edit, y, CR_OP_bn_sums, s->conv);
    s->apply = reader_of(edit, y, CR_OP_bn_apply, s->conv);
    if (s->sums == CR_NONE || s->apply == CR_NONE) return false;
    s->finalize = finalizer_of(edit, op_at(edit, s->sums)->out[0], CR_OP_bn_finalize, s->sums, &s->reduce);
    if (s->finalize == CR_NONE || s->finalize > s->apply) return false;
    const struct cr_op *finalize = op_at(edit, s->finalize), *apply = op_at(edit, s->apply);
    return finalize->out[CR_OUT_bn_finalize_scale_bias_half] == CR_NONE &&
           finalize->in[CR_IN_bn_finalize_center] == CR_NONE && !apply->attr.bn.relu &&
           apply->in[CR_IN_bn_apply_x] == y && apply->in[CR_IN_bn_apply_add] == CR_NONE &&
           apply->in[CR_IN_bn_apply_scale_bias] == finalize->out[CR_OUT_bn_finalize_scale_bias] &&
           edit->reads[apply->in[CR_IN_bn_apply_scale_bias]] == 1;
}

/* The BN gradient of the candidate, unmasked, which reads y and g. */
static bool match_bn_grad(const struct cr_edit *edit, struct cr_gram_candidate *s) {
    const int y  = op_at(edit, s->conv)->out[CR_OUT_conv_y];
    s->grad_sums = reader_of(edit, y, CR_OP_bn_grad_sums, s->apply);
    if (s->grad_sums == CR_NONE) return false;
    s->grad_finalize =
        finalizer_of(edit, op_at(edit, s->grad_sums)->out[0], CR_OP_bn_grad_finalize, s->grad_sums, &s->grad_reduce);
    s->grad_apply = reader_of(edit, y, CR_OP_bn_grad_apply, s->grad_sums);
    if (s->grad_finalize == CR_NONE || s->grad_apply < s->grad_finalize) return false;
    const struct cr_op *sums = op_at(edit, s->grad_sums), *apply = op_at(edit, s->grad_apply);
    return cr_op_uses_only(sums, 7, 1) && cr_op_uses_only(apply, 7, 1) &&
           sums->in[CR_IN_bn_grad_sums_mean_rstd] == op_at(edit, s->finalize)->out[CR_OUT_bn_finalize_mean_rstd] &&
           apply->in[CR_IN_bn_grad_apply_dy] == sums->in[CR_IN_bn_grad_sums_dy] &&
           apply->in[CR_IN_bn_grad_apply_coeffs] ==
               op_at(edit, s->grad_finalize)->out[CR_OUT_bn_grad_finalize_coeffs] &&
           edit->reads[apply->in[CR_IN_bn_grad_apply_coeffs]] == 1 &&
           (s->reduce == CR_NONE) == (s->grad_reduce == CR_NONE);
}

static bool match_conv_grads(const struct cr_edit *edit, struct cr_gram_candidate *s) {
    const struct cr_op *conv = op_at(edit, s->conv);
    const int           dy   = op_at(edit, s->grad_apply)->out[CR_OUT_bn_grad_apply_dx];
    s->wgrad                 = reader_of(edit, dy, CR_OP_conv_wgrad, s->grad_apply);
    s->dgrad                 = reader_of(edit, dy, CR_OP_conv_dgrad, s->grad_apply);
    if (s->wgrad == CR_NONE || !cr_edit_is_inner(edit, dy, 1 + (s->dgrad != CR_NONE))) return false;
    const struct cr_op *wgrad = op_at(edit, s->wgrad), *bn = op_at(edit, s->grad_finalize);
    if (!cr_op_uses_only(wgrad, 3, 1) || wgrad->in[CR_IN_conv_wgrad_x] != conv->in[CR_IN_conv_x] ||
        wgrad->attr.conv.accumulate != bn->attr.bn.accumulate || cr_op_has_sparsity_pattern(wgrad))
        return false;
    return s->dgrad == CR_NONE || (cr_op_uses_only(op_at(edit, s->dgrad), 3, 1) &&
                                   op_at(edit, s->dgrad)->in[CR_IN_conv_dgrad_w] == conv->in[CR_IN_conv_w]);
}

bool cr_gram_match(const struct cr_edit *edit, int conv, struct cr_gram_candidate *candidate) {
    *candidate      = (struct cr_gram_candidate){0};
    candidate->conv = conv;
    return !edit->removed[conv] && match_forward(edit, candidate) && match_bn_grad(edit, candidate) &&
           match_conv_grads(edit, candidate);
}

/* ---- the new ops ---- */

/* The ops of a rewritten candidate; `kind` of an absent op is CR_OP_COUNT. */
struct gram_ops {
    struct cr_op gram, finalize, sums, conv, m, grad_sums, grad, dgrad;
};

static struct cr_op make(const struct cr_edit *edit, enum cr_op_kind kind, int like) {
    struct cr_op op = cr_op_make(kind, op_at(edit, like)->layer);
    op.stream       = op_at(edit, like)->stream;
    return op;
}

static void make_statistics(struct cr_edit *edit, const struct cr_gram_candidate *s, struct gram_ops *o) {
    const struct cr_op *conv = op_at(edit, s->conv), *old = op_at(edit, s->finalize);
    const int           y         = conv->out[CR_OUT_conv_y];
    o->gram                       = make(edit, CR_OP_gram, s->conv);
    o->gram.attr.conv             = conv->attr.conv;
    o->gram.in[CR_IN_gram_x]      = conv->in[CR_IN_conv_x];
    o->gram.out[CR_OUT_gram_gram] = cr_fuse_output(edit, &o->gram, CR_OUT_gram_gram, y, "gram");
    if (s->reduce != CR_NONE) {
        o->sums                                  = make(edit, CR_OP_gram_bn_sums, s->sums);
        o->sums.attr.bn                          = old->attr.bn;
        o->sums.in[CR_IN_gram_bn_sums_w]         = conv->in[CR_IN_conv_w];
        o->sums.in[CR_IN_gram_bn_sums_gram]      = o->gram.out[CR_OUT_gram_gram];
        o->sums.in[CR_IN_gram_bn_sums_center]    = old->in[CR_IN_bn_finalize_running_mean];
        o->sums.out[CR_OUT_gram_bn_sums_sums]    = op_at(edit, s->sums)->out[CR_OUT_bn_sums_sums];
        o->finalize                              = *old;
        o->finalize.in[CR_IN_bn_finalize_center] = old->in[CR_IN_bn_finalize_running_mean];
        return;
    }
    o->finalize                                           = make(edit, CR_OP_gram_bn_finalize, s->finalize);
    o->finalize.attr.bn                                   = old->attr.bn;
    o->finalize.in[CR_IN_gram_bn_finalize_w]              = conv->in[CR_IN_conv_w];
    o->finalize.in[CR_IN_gram_bn_finalize_gram]           = o->gram.out[CR_OUT_gram_gram];
    o->finalize.in[CR_IN_gram_bn_finalize_gamma]          = old->in[CR_IN_bn_finalize_gamma];
    o->finalize.in[CR_IN_gram_bn_finalize_beta]           = old->in[CR_IN_bn_finalize_beta];
    o->finalize.in[CR_IN_gram_bn_finalize_running_mean]   = old->in[CR_IN_bn_finalize_running_mean];
    o->finalize.in[CR_IN_gram_bn_finalize_running_var]    = old->in[CR_IN_bn_finalize_running_var];
    o->finalize.out[CR_OUT_gram_bn_finalize_scale_bias]   = old->out[CR_OUT_bn_finalize_scale_bias];
    o->finalize.out[CR_OUT_gram_bn_finalize_mean_rstd]    = old->out[CR_OUT_bn_finalize_mean_rstd];
    o->finalize.out[CR_OUT_gram_bn_finalize_running_mean] = old->out[CR_OUT_bn_finalize_running_mean];
    o->finalize.out[CR_OUT_gram_bn_finalize_running_var]  = old->out[CR_OUT_bn_finalize_running_var];
}

static void make_conv(struct cr_edit *edit, const struct cr_gram_candidate *s, struct gram_ops *o) {
    o->conv                               = *op_at(edit, s->conv);
    o->conv.in[CR_IN_conv_out_scale_bias] = op_at(edit, s->apply)->in[CR_IN_bn_apply_scale_bias];
    o->conv.out[CR_OUT_conv_y]            = op_at(edit, s->apply)->out[CR_OUT_bn_apply_y];
}

/* m and the sums of g, in f32 (f64 in f64 programs). */
static void make_products(struct cr_edit *edit, const struct cr_gram_candidate *s, struct gram_ops *o) {
    const struct cr_op     *wgrad = op_at(edit, s->wgrad);
    const int               g = op_at(edit, s->grad_sums)->in[CR_IN_bn_grad_sums_dy], y = op_at(edit, s->conv)->out[0];
    const struct cr_tensor *dw   = &edit->program->tensor[wgrad->out[CR_OUT_conv_wgrad_dw]],
                           *gram = &edit->program->tensor[o->gram.out[CR_OUT_gram_gram]];
    char name[256];
    o->m                         = *wgrad;
    o->m.in[CR_IN_conv_wgrad_dy] = g;
    o->m.attr.conv.accumulate    = false;
    snprintf(name, sizeof name, "%s.m", edit->program->tensor[y].name);
    o->m.out[CR_OUT_conv_wgrad_dw]      = cr_edit_tensor(edit, name, gram->dtype, dw->dim);
    o->m.out[CR_OUT_conv_wgrad_dy_sums] = cr_fuse_output(edit, &o->m, CR_OUT_conv_wgrad_dy_sums, y, "g_sums");
}

static void make_grad_sums(struct cr_edit *edit, const struct cr_gram_candidate *s, struct gram_ops *o) {
    o->grad_sums                                       = make(edit, CR_OP_gram_bn_grad_sums, s->grad_sums);
    o->grad_sums.in[CR_IN_gram_bn_grad_sums_w]         = op_at(edit, s->conv)->in[CR_IN_conv_w];
    o->grad_sums.in[CR_IN_gram_bn_grad_sums_m]         = o->m.out[CR_OUT_conv_wgrad_dw];
    o->grad_sums.in[CR_IN_gram_bn_grad_sums_dy_sums]   = o->m.out[CR_OUT_conv_wgrad_dy_sums];
    o->grad_sums.in[CR_IN_gram_bn_grad_sums_mean_rstd] = op_at(edit, s->grad_sums)->in[CR_IN_bn_grad_sums_mean_rstd];
    o->grad_sums.out[CR_OUT_gram_bn_grad_sums_grad_sums] =
        op_at(edit, s->grad_sums)->out[CR_OUT_bn_grad_sums_grad_sums];
}

static void make_grad(struct cr_edit *edit, const struct cr_gram_candidate *s, struct gram_ops *o) {
    const struct cr_op *old             = op_at(edit, s->grad_finalize);
    const int           y               = op_at(edit, s->conv)->out[CR_OUT_conv_y];
    struct cr_op        op              = make(edit, CR_OP_gram_bn_grad, s->grad_finalize);
    op.attr.bn                          = old->attr.bn;
    op.in[CR_IN_gram_bn_grad_w]         = op_at(edit, s->conv)->in[CR_IN_conv_w];
    op.in[CR_IN_gram_bn_grad_gram]      = o->gram.out[CR_OUT_gram_gram];
    op.in[CR_IN_gram_bn_grad_m]         = o->m.out[CR_OUT_conv_wgrad_dw];
    op.in[CR_IN_gram_bn_grad_dy_sums]   = o->m.out[CR_OUT_conv_wgrad_dy_sums];
    op.in[CR_IN_gram_bn_grad_gamma]     = old->in[CR_IN_bn_grad_finalize_gamma];
    op.in[CR_IN_gram_bn_grad_mean_rstd] = old->in[CR_IN_bn_grad_finalize_mean_rstd];
    if (s->grad_reduce != CR_NONE) op.in[CR_IN_gram_bn_grad_grad_sums] = old->in[CR_IN_bn_grad_finalize_grad_sums];
    op.out[CR_OUT_gram_bn_grad_dw]     = op_at(edit, s->wgrad)->out[CR_OUT_conv_wgrad_dw];
    op.out[CR_OUT_gram_bn_grad_dgamma] = old->out[CR_OUT_bn_grad_finalize_dgamma];
    op.out[CR_OUT_gram_bn_grad_dbeta]  = old->out[CR_OUT_bn_grad_finalize_dbeta];
    op.out[CR_OUT_gram_bn_grad_w_g]    = cr_fuse_output(edit, &op, CR_OUT_gram_bn_grad_w_g, y, "w_g");
    op.out[CR_OUT_gram_bn_grad_w_x]    = cr_fuse_output(edit, &op, CR_OUT_gram_bn_grad_w_x, y, "w_x");
    op.out[CR_OUT_gram_bn_grad_factor_bias] =
        cr_fuse_output(edit, &op, CR_OUT_gram_bn_grad_factor_bias, y, "factor_bias");
    o->grad = op;
}

static void make_dgrad(struct cr_edit *edit, const struct cr_gram_candidate *s, struct gram_ops *o) {
    o->dgrad                                  = make(edit, CR_OP_gram_dgrad, s->dgrad);
    o->dgrad.attr.conv                        = op_at(edit, s->dgrad)->attr.conv;
    o->dgrad.in[CR_IN_gram_dgrad_g]           = o->m.in[CR_IN_conv_wgrad_dy];
    o->dgrad.in[CR_IN_gram_dgrad_x]           = o->m.in[CR_IN_conv_wgrad_x];
    o->dgrad.in[CR_IN_gram_dgrad_w_g]         = o->grad.out[CR_OUT_gram_bn_grad_w_g];
    o->dgrad.in[CR_IN_gram_dgrad_w_x]         = o->grad.out[CR_OUT_gram_bn_grad_w_x];
    o->dgrad.in[CR_IN_gram_dgrad_factor_bias] = o->grad.out[CR_OUT_gram_bn_grad_factor_bias];
    o->dgrad.out[CR_OUT_gram_dgrad_dx]        = op_at(edit, s->dgrad)->out[CR_OUT_conv_dgrad_dx];
}

static bool is_accepted(const struct cr_edit *edit, const struct cr_op *op, bool present) {
    return !present || cr_fuse_accepted(edit, op);
}

/* ---- strided shortcuts ---- */

/* The ops that add the gradient of a strided shortcut to that of the block's first convolution and mask the sum with x,
 * the output of the block before. */
struct block_end {
    int add, relu, other; /* ops; the gradient of the first convolution. add == CR_NONE: not found */
};

static struct block_end end_of(const struct cr_edit *edit, const struct cr_gram_candidate *s) {
    struct block_end none = {.add = CR_NONE}, e = none;
    if (s->dgrad == CR_NONE || op_at(edit, s->dgrad)->attr.conv.stride == 1) return none;
    const int x = op_at(edit, s->conv)->in[CR_IN_conv_x], dx = op_at(edit, s->dgrad)->out[CR_OUT_conv_dgrad_dx];
    if (!cr_edit_is_inner(edit, dx, 1)) return none;
    e.add = reader_of(edit, dx, CR_OP_add, s->dgrad);
    if (e.add == CR_NONE || !cr_edit_is_inner(edit, op_at(edit, e.add)->out[CR_OUT_add_y], 1)) return none;
    const struct cr_op *add = op_at(edit, e.add);
    e.other                 = add->in[add->in[CR_IN_add_a] == dx ? CR_IN_add_b : CR_IN_add_a];
    e.relu                  = reader_of(edit, add->out[CR_OUT_add_y], CR_OP_relu_grad, e.add);
    if (e.relu == CR_NONE || e.other == dx) return none;
    const struct cr_op *relu = op_at(edit, e.relu);
    return cr_op_uses_only(relu, 3, 1) && relu->in[CR_IN_relu_grad_dy] == add->out[CR_OUT_add_y] &&
                   relu->in[CR_IN_relu_grad_y] == x && relu->stream == op_at(edit, s->dgrad)->stream &&
                   add->stream == relu->stream && cr_edit_can_move(edit, s->dgrad, e.relu)
               ? e
               : none;
}

/* gram_dgrad that adds to the masked gradient of the first convolution, at its own pixels only: the others need no
 * gradient of the shortcut. */
static struct cr_op dgrad_behind(const struct cr_edit *edit, const struct block_end *e, const struct gram_ops *o) {
    struct cr_op op              = o->dgrad;
    op.in[CR_IN_gram_dgrad_add]  = op_at(edit, e->add)->out[CR_OUT_add_y];
    op.out[CR_OUT_gram_dgrad_dx] = op_at(edit, e->relu)->out[CR_OUT_relu_grad_dx];
    op.attr.conv.relu            = true;
    return op;
}

static void put_dgrad_behind(struct cr_edit *edit, const struct cr_gram_candidate *s, const struct block_end *e,
                             const struct cr_op *dgrad) {
    struct cr_op mask             = *op_at(edit, e->relu);
    mask.in[CR_IN_relu_grad_dy]   = e->other;
    mask.out[CR_OUT_relu_grad_dx] = dgrad->in[CR_IN_gram_dgrad_add];
    cr_edit_replace(edit, e->add, &mask);
    cr_edit_replace(edit, e->relu, dgrad);
    cr_edit_remove(edit, s->dgrad);
}

/* ---- the rewrite ---- */

/* The ops stand in an order in which each input exists: with SyncBN each of grad_sums, all_reduce and gram_bn_grad
 * moves one place down. */
static void put_ops(struct cr_edit *edit, const struct cr_gram_candidate *s, const struct gram_ops *o) {
    const bool sync = s->reduce != CR_NONE;
    cr_edit_replace(edit, s->conv, &o->gram);
    if (sync)
        cr_edit_replace(edit, s->sums, &o->sums);
    else
        cr_edit_remove(edit, s->sums);
    cr_edit_replace(edit, s->finalize, &o->finalize);
    cr_edit_replace(edit, s->apply, &o->conv);
    cr_edit_remove(edit, s->wgrad);
    if (sync) {
        const struct cr_op reduce = *op_at(edit, s->grad_reduce);
        cr_edit_replace(edit, s->grad_sums, &o->m);
        cr_edit_replace(edit, s->grad_reduce, &o->grad_sums);
        cr_edit_replace(edit, s->grad_finalize, &reduce);
        cr_edit_replace(edit, s->grad_apply, &o->grad);
    } else {
        cr_edit_replace(edit, s->grad_sums, &o->m);
        cr_edit_replace(edit, s->grad_finalize, &o->grad);
        cr_edit_remove(edit, s->grad_apply);
    }
    if (s->dgrad != CR_NONE) cr_edit_replace(edit, s->dgrad, &o->dgrad);
}

bool cr_gram_rewrite(struct cr_edit *edit, const struct cr_gram_candidate *s) {
    struct gram_ops o;
    const bool      sync = s->reduce != CR_NONE;
    make_statistics(edit, s, &o);
    if (edit->program->failed) return false;
    make_conv(edit, s, &o);
    make_products(edit, s, &o);
    if (edit->program->failed) return false;
    if (sync) make_grad_sums(edit, s, &o);
    make_grad(edit, s, &o);
    if (edit->program->failed) return false;
    if (s->dgrad != CR_NONE) make_dgrad(edit, s, &o);
    if (!is_accepted(edit, &o.gram, true) || !is_accepted(edit, &o.sums, sync) ||
        !is_accepted(edit, &o.finalize, true) || !is_accepted(edit, &o.conv, true) || !is_accepted(edit, &o.m, true) ||
        !is_accepted(edit, &o.grad_sums, sync) || !is_accepted(edit, &o.grad, true))
        return false;
    const struct block_end end    = end_of(edit, s);
    const struct cr_op     behind = end.add == CR_NONE ? o.dgrad : dgrad_behind(edit, &end, &o);
    const bool             moves  = end.add != CR_NONE && cr_fuse_accepted(edit, &behind);
    if (!moves && !is_accepted(edit, &o.dgrad, s->dgrad != CR_NONE)) return false;
    put_ops(edit, s, &o);
    if (moves) put_dgrad_behind(edit, s, &end, &behind);
    return true;
}
