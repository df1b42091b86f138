/* compiler/fusion/conv_fusion_ops.c: the ops that an option puts in the place of the plain ones, and the rewrite. See
 * compiler/fusion/conv_fusion.h. */
#include "compiler/fusion/conv_fusion.h"

static const struct cr_op *op_at(const struct cr_conv_fusions *j, int index) {
    return cr_fuse_op(j->edit, index);
}

/* Input and coefficients of the BN before the convolution. */
static int raw_x(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s) {
    return op_at(j, s->bn)->in[CR_IN_bn_apply_x];
}
static int coefficients(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, enum cr_bn_input act) {
    return act == CR_BN_INPUT_HALF ? s->half : op_at(j, s->bn)->in[CR_IN_bn_apply_scale_bias];
}

struct cr_op cr_fused_conv(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, enum cr_bn_input p,
                           bool stats) {
    struct cr_op op = *op_at(j, s->conv);
    if (p) {
        op.in[CR_IN_conv_x]          = raw_x(j, s);
        op.in[CR_IN_conv_scale_bias] = coefficients(j, s, p);
    }
    if (stats) op.out[CR_OUT_conv_sums] = op_at(j, s->sums)->out[CR_OUT_bn_sums_sums];
    return op;
}

struct cr_op cr_fused_wgrad(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, enum cr_bn_input w) {
    struct cr_op op = *op_at(j, s->wgrad);
    if (w) {
        op.in[CR_IN_conv_wgrad_x]          = raw_x(j, s);
        op.in[CR_IN_conv_wgrad_scale_bias] = coefficients(j, s, w);
    }
    return op;
}

struct cr_op cr_fused_dgrad(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s,
                            enum cr_grad_fusion d) {
    const struct cr_grad_epilogue *g  = &s->epilogue;
    struct cr_op                   op = *op_at(j, s->dgrad);
    if (d == CR_GRAD_FUSION_NONE) return op;
    op.in[CR_IN_conv_dgrad_add]  = g->other;
    op.out[CR_OUT_conv_dgrad_dx] = d == CR_GRAD_FUSION_ALL ? g->g : g->sum;
    if (d == CR_GRAD_FUSION_ADD) return op;
    op.in[CR_IN_conv_dgrad_bn_x]        = g->bn_x;
    op.in[CR_IN_conv_dgrad_mean_rstd]   = g->mean_rstd;
    op.in[CR_IN_conv_dgrad_gamma]       = g->gamma;
    op.in[CR_IN_conv_dgrad_beta]        = g->beta;
    op.out[CR_OUT_conv_dgrad_grad_sums] = g->grad_sums;
    return op;
}

/* The BN behind the convolution, in its prologue. */
static void take_bn(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, struct cr_op *op) {
    const struct cr_op *apply       = op_at(j, s->apply);
    op->in[CR_IN_conv_grad_g]       = apply->in[CR_IN_bn_grad_apply_dy];
    op->in[CR_IN_conv_grad_dy_x]    = apply->in[CR_IN_bn_grad_apply_x];
    op->in[CR_IN_conv_grad_dy_coef] = apply->in[CR_IN_bn_grad_apply_coef];
}

static void take_gate(const struct cr_fusion_candidate *s, bool w, enum cr_grad_fusion d, struct cr_op *op) {
    const struct cr_grad_epilogue *g = &s->epilogue;
    if (d == CR_GRAD_FUSION_NONE) return;
    op->in[CR_IN_conv_grad_add]  = g->other;
    op->out[CR_OUT_conv_grad_dx] = d == CR_GRAD_FUSION_ALL ? g->g : g->sum;
    if (d == CR_GRAD_FUSION_ADD) return;
    op->in[CR_IN_conv_grad_mean_rstd]   = g->mean_rstd;
    op->out[CR_OUT_conv_grad_grad_sums] = g->grad_sums;
    if (!w) op->in[CR_IN_conv_grad_bn_x] = g->bn_x; /* else x is the BN's input itself */
}

struct cr_op cr_fused_conv_grad(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, bool w,
                                enum cr_grad_fusion d, bool b) {
    const struct cr_op *wgrad = op_at(j, s->wgrad);
    struct cr_op        op    = cr_op_make(CR_OP_conv_grad, wgrad->layer);
    op.stream                 = wgrad->stream;
    op.attr.conv              = wgrad->attr.conv;
    op.in[CR_IN_conv_grad_g]  = wgrad->in[CR_IN_conv_wgrad_dy];
    op.in[CR_IN_conv_grad_w]  = op_at(j, s->conv)->in[CR_IN_conv_w];
    op.in[CR_IN_conv_grad_x]  = w ? raw_x(j, s) : wgrad->in[CR_IN_conv_wgrad_x];
    if (w) op.in[CR_IN_conv_grad_scale_bias] = coefficients(j, s, CR_BN_INPUT_F32);
    if (s->dgrad != CR_NONE) op.out[CR_OUT_conv_grad_dx] = op_at(j, s->dgrad)->out[CR_OUT_conv_dgrad_dx];
    op.out[CR_OUT_conv_grad_dw] = wgrad->out[CR_OUT_conv_wgrad_dw];
    take_gate(s, w, d, &op);
    if (b) take_bn(j, s, &op);
    return op;
}

struct cr_op cr_fused_second_sums(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s) {
    const struct cr_op *relu              = op_at(j, s->epilogue.relu);
    struct cr_op        op                = cr_op_make(CR_OP_bn_grad_sums, relu->layer);
    op.stream                             = relu->stream;
    op.in[CR_IN_bn_grad_sums_dy]          = s->epilogue.g;
    op.in[CR_IN_bn_grad_sums_x]           = relu->in[CR_IN_relu_grad_bn2_x];
    op.in[CR_IN_bn_grad_sums_mean_rstd]   = relu->in[CR_IN_relu_grad_mean_rstd2];
    op.out[CR_OUT_bn_grad_sums_grad_sums] = relu->out[CR_OUT_relu_grad_grad_sums2];
    return op;
}

struct cr_op cr_fused_finalize(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s) {
    struct cr_op op                            = *op_at(j, s->finalize);
    op.out[CR_OUT_bn_finalize_scale_bias_half] = s->half;
    return op;
}

struct cr_op cr_unmasked_bn_grad_apply(const struct cr_conv_fusions *j, int apply) {
    struct cr_op op              = *op_at(j, apply);
    op.in[CR_IN_bn_grad_apply_y] = op.in[CR_IN_bn_grad_apply_scale_bias] = CR_NONE;
    return op;
}

struct cr_op cr_unmasked_bn_apply(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s) {
    struct cr_op op              = *op_at(j, s->bn);
    op.out[CR_OUT_bn_apply_mask] = CR_NONE;
    return op;
}

bool cr_candidate_owns_mask_bits(const struct cr_conv_fusions *j, const struct cr_fusion_candidate *s) {
    if (s->epilogue.relu == CR_NONE) return false;
    int bits = op_at(j, s->bn)->out[CR_OUT_bn_apply_mask];
    return bits != CR_NONE && bits == op_at(j, s->epilogue.relu)->in[CR_IN_relu_grad_y] && j->edit->reads[bits] == 1;
}

/* ---- the rewrite ---- */

static void drop(struct cr_conv_fusions *j, int op) {
    if (op != CR_NONE && !j->edit->removed[op]) cr_edit_remove(j->edit, op);
}

static void apply_forward(struct cr_conv_fusions *j, const struct cr_fusion_candidate *s,
                          const struct cr_fusion_option *o) {
    if (!o->p && !o->s) return;
    struct cr_op conv = cr_fused_conv(j, s, o->p, o->s);
    if (o->s) drop(j, s->sums);
    cr_edit_replace(j->edit, s->conv, &conv);
}

/* The ops whose work the data gradient does now. */
static void drop_gate(struct cr_conv_fusions *j, const struct cr_fusion_candidate *s, enum cr_grad_fusion d) {
    if (d == CR_GRAD_FUSION_NONE) return;
    drop(j, s->epilogue.add);
    if (d == CR_GRAD_FUSION_ADD) return;
    if (cr_candidate_owns_mask_bits(j, s)) {
        struct cr_op bn = cr_unmasked_bn_apply(j, s);
        cr_edit_replace(j->edit, s->bn, &bn);
    }
    if (s->epilogue.two) {
        struct cr_op second = cr_fused_second_sums(j, s);
        cr_edit_replace(j->edit, s->epilogue.relu, &second);
    } else {
        drop(j, s->epilogue.relu);
    }
    drop(j, s->epilogue.sums);
    if (s->epilogue.apply != CR_NONE && !j->edit->removed[s->epilogue.apply]) {
        struct cr_op clear = cr_unmasked_bn_grad_apply(j, s->epilogue.apply);
        cr_edit_replace(j->edit, s->epilogue.apply, &clear);
    }
}

static void apply_backward(struct cr_conv_fusions *j, const struct cr_fusion_candidate *s,
                           const struct cr_fusion_option *o) {
    if (o->joint) {
        struct cr_op joint = cr_fused_conv_grad(j, s, o->w, o->d, o->b);
        int          place = s->dgrad != CR_NONE ? s->dgrad : s->wgrad;
        if (place != s->wgrad) drop(j, s->wgrad);
        drop_gate(j, s, o->d);
        if (o->b) drop(j, s->apply);
        cr_edit_replace(j->edit, place, &joint);
        return;
    }
    if (o->w) {
        struct cr_op wgrad = cr_fused_wgrad(j, s, o->w);
        cr_edit_replace(j->edit, s->wgrad, &wgrad);
    }
    if (o->d == CR_GRAD_FUSION_NONE) return;
    struct cr_op dgrad = cr_fused_dgrad(j, s, o->d);
    drop_gate(j, s, o->d);
    cr_edit_replace(j->edit, s->dgrad, &dgrad);
}

void cr_conv_fusions_apply(struct cr_conv_fusions *j) {
    for (int i = 0; i < j->candidates; i++) {
        const struct cr_fusion_candidate *s = &j->candidate[i];
        const struct cr_fusion_option    *o = &s->option[s->chosen];
        if (s->chosen == 0) continue;
        if (o->p == CR_BN_INPUT_HALF || o->w == CR_BN_INPUT_HALF) {
            struct cr_op finalize = cr_fused_finalize(j, s);
            cr_edit_replace(j->edit, s->finalize, &finalize);
        }
        apply_forward(j, s, o);
        apply_backward(j, s, o);
        if (o->p && (o->w || s->wgrad == CR_NONE)) drop(j, s->bn);
    }
}
