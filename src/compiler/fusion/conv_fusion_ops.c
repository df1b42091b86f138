/* compiler/fusion/conv_fusion_ops.c: the ops that an option puts in the place of the plain ones, and the rewrite. See compiler/fusion/conv_fusion.h. */
#include "compiler/fusion/conv_fusion.h"

static const struct cr_op *op_at(const struct cr_junctions *j, int index) {
    return cr_fuse_op(j->edit, index);
}

/* Input and coefficients of the BN before the convolution. */
static int raw_x(const struct cr_junctions *j, const struct cr_site *s) {
    return op_at(j, s->bn)->in[CR_IN_bn_apply_x];
}
static int coefficients(const struct cr_junctions *j, const struct cr_site *s, enum cr_act act) {
    return act == CR_ACT_HALF ? s->half : op_at(j, s->bn)->in[CR_IN_bn_apply_coef];
}

struct cr_op cr_site_conv(const struct cr_junctions *j, const struct cr_site *s, enum cr_act p, bool stats) {
    struct cr_op op = *op_at(j, s->conv);
    if (p) {
        op.in[CR_IN_conv_x]    = raw_x(j, s);
        op.in[CR_IN_conv_coef] = coefficients(j, s, p);
    }
    if (stats) op.out[CR_OUT_conv_stats] = op_at(j, s->stats)->out[CR_OUT_bn_stats_stats];
    return op;
}

struct cr_op cr_site_wgrad(const struct cr_junctions *j, const struct cr_site *s, enum cr_act w) {
    struct cr_op op = *op_at(j, s->wgrad);
    if (w) {
        op.in[CR_IN_conv_wgrad_x]    = raw_x(j, s);
        op.in[CR_IN_conv_wgrad_coef] = coefficients(j, s, w);
    }
    return op;
}

struct cr_op cr_site_dgrad(const struct cr_junctions *j, const struct cr_site *s, enum cr_take d) {
    const struct cr_gate *g  = &s->gate;
    struct cr_op          op = *op_at(j, s->dgrad);
    if (d == CR_TAKE_NOTHING) return op;
    op.in[CR_IN_conv_dgrad_add]  = g->other;
    op.out[CR_OUT_conv_dgrad_dx] = d == CR_TAKE_ALL ? g->g : g->sum;
    if (d == CR_TAKE_SUM) return op;
    op.in[CR_IN_conv_dgrad_bn_x]     = g->bn_x;
    op.in[CR_IN_conv_dgrad_saved]    = g->saved;
    op.in[CR_IN_conv_dgrad_gamma]    = g->gamma;
    op.in[CR_IN_conv_dgrad_beta]     = g->beta;
    op.out[CR_OUT_conv_dgrad_dstats] = g->dstats;
    return op;
}

/* The BN behind the convolution, in its prologue. */
static void take_bn(const struct cr_junctions *j, const struct cr_site *s, struct cr_op *op) {
    const struct cr_op *apply       = op_at(j, s->apply);
    op->in[CR_IN_conv_grad_g]       = apply->in[CR_IN_bn_grad_apply_dy];
    op->in[CR_IN_conv_grad_dy_x]    = apply->in[CR_IN_bn_grad_apply_x];
    op->in[CR_IN_conv_grad_dy_coef] = apply->in[CR_IN_bn_grad_apply_coef];
}

static void take_gate(const struct cr_site *s, bool w, enum cr_take d, struct cr_op *op) {
    const struct cr_gate *g = &s->gate;
    if (d == CR_TAKE_NOTHING) return;
    op->in[CR_IN_conv_grad_add]  = g->other;
    op->out[CR_OUT_conv_grad_dx] = d == CR_TAKE_ALL ? g->g : g->sum;
    if (d == CR_TAKE_SUM) return;
    op->in[CR_IN_conv_grad_saved]    = g->saved;
    op->out[CR_OUT_conv_grad_dstats] = g->dstats;
    if (!w) op->in[CR_IN_conv_grad_bn_x] = g->bn_x; /* else x is the BN's input itself */
}

struct cr_op cr_site_joint(const struct cr_junctions *j, const struct cr_site *s, bool w, enum cr_take d, bool b) {
    const struct cr_op *wgrad = op_at(j, s->wgrad);
    struct cr_op        op    = cr_op_make(CR_OP_conv_grad, wgrad->layer);
    op.lane                   = wgrad->lane;
    op.attr.conv              = wgrad->attr.conv;
    op.in[CR_IN_conv_grad_g]  = wgrad->in[CR_IN_conv_wgrad_dy];
    op.in[CR_IN_conv_grad_w]  = op_at(j, s->conv)->in[CR_IN_conv_w];
    op.in[CR_IN_conv_grad_x]  = w ? raw_x(j, s) : wgrad->in[CR_IN_conv_wgrad_x];
    if (w) op.in[CR_IN_conv_grad_coef] = coefficients(j, s, CR_ACT_WIDE);
    if (s->dgrad != CR_NONE) op.out[CR_OUT_conv_grad_dx] = op_at(j, s->dgrad)->out[CR_OUT_conv_dgrad_dx];
    op.out[CR_OUT_conv_grad_dw] = wgrad->out[CR_OUT_conv_wgrad_dw];
    take_gate(s, w, d, &op);
    if (b) take_bn(j, s, &op);
    return op;
}

struct cr_op cr_site_second(const struct cr_junctions *j, const struct cr_site *s) {
    const struct cr_op *relu            = op_at(j, s->gate.relu);
    struct cr_op        op              = cr_op_make(CR_OP_bn_grad_stats, relu->layer);
    op.lane                             = relu->lane;
    op.in[CR_IN_bn_grad_stats_dy]       = s->gate.g;
    op.in[CR_IN_bn_grad_stats_x]        = relu->in[CR_IN_relu_grad_bn2_x];
    op.in[CR_IN_bn_grad_stats_saved]    = relu->in[CR_IN_relu_grad_saved2];
    op.out[CR_OUT_bn_grad_stats_dstats] = relu->out[CR_OUT_relu_grad_dstats2];
    return op;
}

struct cr_op cr_site_finalize(const struct cr_junctions *j, const struct cr_site *s) {
    struct cr_op op                      = *op_at(j, s->finalize);
    op.out[CR_OUT_bn_finalize_coef_half] = s->half;
    return op;
}

struct cr_op cr_site_clear(const struct cr_junctions *j, int apply) {
    struct cr_op op              = *op_at(j, apply);
    op.in[CR_IN_bn_grad_apply_y] = op.in[CR_IN_bn_grad_apply_act] = CR_NONE;
    return op;
}

struct cr_op cr_site_unmasked(const struct cr_junctions *j, const struct cr_site *s) {
    struct cr_op op              = *op_at(j, s->bn);
    op.out[CR_OUT_bn_apply_mask] = CR_NONE;
    return op;
}

bool cr_site_owns_bits(const struct cr_junctions *j, const struct cr_site *s) {
    if (s->gate.relu == CR_NONE) return false;
    int bits = op_at(j, s->bn)->out[CR_OUT_bn_apply_mask];
    return bits != CR_NONE && bits == op_at(j, s->gate.relu)->in[CR_IN_relu_grad_y] && j->edit->reads[bits] == 1;
}

/* ---- the rewrite ---- */

static void drop(struct cr_junctions *j, int op) {
    if (op != CR_NONE && !j->edit->removed[op]) cr_edit_remove(j->edit, op);
}

static void apply_forward(struct cr_junctions *j, const struct cr_site *s, const struct cr_option *o) {
    if (!o->p && !o->s) return;
    struct cr_op conv = cr_site_conv(j, s, o->p, o->s);
    if (o->s) drop(j, s->stats);
    cr_edit_replace(j->edit, s->conv, &conv);
}

/* The ops whose work the data gradient does now. */
static void drop_gate(struct cr_junctions *j, const struct cr_site *s, enum cr_take d) {
    if (d == CR_TAKE_NOTHING) return;
    drop(j, s->gate.add);
    if (d == CR_TAKE_SUM) return;
    if (cr_site_owns_bits(j, s)) {
        struct cr_op bn = cr_site_unmasked(j, s);
        cr_edit_replace(j->edit, s->bn, &bn);
    }
    if (s->gate.two) {
        struct cr_op second = cr_site_second(j, s);
        cr_edit_replace(j->edit, s->gate.relu, &second);
    } else {
        drop(j, s->gate.relu);
    }
    drop(j, s->gate.stats);
    if (s->gate.apply != CR_NONE && !j->edit->removed[s->gate.apply]) {
        struct cr_op clear = cr_site_clear(j, s->gate.apply);
        cr_edit_replace(j->edit, s->gate.apply, &clear);
    }
}

static void apply_backward(struct cr_junctions *j, const struct cr_site *s, const struct cr_option *o) {
    if (o->joint) {
        struct cr_op joint = cr_site_joint(j, s, o->w, o->d, o->b);
        int          place = s->dgrad != CR_NONE ? s->dgrad : s->wgrad;
        if (place != s->wgrad) drop(j, s->wgrad);
        drop_gate(j, s, o->d);
        if (o->b) drop(j, s->apply);
        cr_edit_replace(j->edit, place, &joint);
        return;
    }
    if (o->w) {
        struct cr_op wgrad = cr_site_wgrad(j, s, o->w);
        cr_edit_replace(j->edit, s->wgrad, &wgrad);
    }
    if (o->d == CR_TAKE_NOTHING) return;
    struct cr_op dgrad = cr_site_dgrad(j, s, o->d);
    drop_gate(j, s, o->d);
    cr_edit_replace(j->edit, s->dgrad, &dgrad);
}

void cr_junctions_apply(struct cr_junctions *j) {
    for (int i = 0; i < j->sites; i++) {
        const struct cr_site   *s = &j->site[i];
        const struct cr_option *o = &s->option[s->chosen];
        if (s->chosen == 0) continue;
        if (o->p == CR_ACT_HALF || o->w == CR_ACT_HALF) {
            struct cr_op finalize = cr_site_finalize(j, s);
            cr_edit_replace(j->edit, s->finalize, &finalize);
        }
        apply_forward(j, s, o);
        apply_backward(j, s, o);
        if (o->p && (o->w || s->wgrad == CR_NONE)) drop(j, s->bn);
    }
}
