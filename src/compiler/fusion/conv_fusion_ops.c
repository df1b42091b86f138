/* compiler/fusion/conv_fusion_ops.c: builds the fused ops of a fusion option and rewrites the program with them. */
#include "compiler/fusion/conv_fusion.h"

static const struct cr_op *op_at(const struct cr_conv_fusions *f, int index) {
    return cr_fuse_op(f->edit, index);
}

/* Input and scale_bias of the BN before the convolution. */
static int bn_input(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s) {
    return op_at(f, s->bn)->in[CR_IN_bn_apply_x];
}

static int scale_bias_of(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, enum cr_bn_input form) {
    return form == CR_BN_INPUT_HALF ? s->half : op_at(f, s->bn)->in[CR_IN_bn_apply_scale_bias];
}

struct cr_op cr_fused_conv(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, enum cr_bn_input p,
                           bool sums) {
    struct cr_op op = *op_at(f, s->conv);
    if (p) {
        op.in[CR_IN_conv_x]          = bn_input(f, s);
        op.in[CR_IN_conv_scale_bias] = scale_bias_of(f, s, p);
    }
    if (sums) op.out[CR_OUT_conv_sums] = op_at(f, s->sums)->out[CR_OUT_bn_sums_sums];
    return op;
}

struct cr_op cr_fused_wgrad(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, enum cr_bn_input w) {
    struct cr_op op = *op_at(f, s->wgrad);
    if (w) {
        op.in[CR_IN_conv_wgrad_x]          = bn_input(f, s);
        op.in[CR_IN_conv_wgrad_scale_bias] = scale_bias_of(f, s, w);
    }
    return op;
}

struct cr_op cr_fused_dgrad(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                            enum cr_grad_fusion d) {
    const struct cr_grad_epilogue *e  = &s->epilogue;
    struct cr_op                   op = *op_at(f, s->dgrad);
    if (d == CR_GRAD_FUSION_NONE) return op;
    op.in[CR_IN_conv_dgrad_add]  = e->other;
    op.out[CR_OUT_conv_dgrad_dx] = d == CR_GRAD_FUSION_ALL ? e->g : e->sum;
    if (d == CR_GRAD_FUSION_ADD) return op;
    op.in[CR_IN_conv_dgrad_bn_x]        = e->bn_x;
    op.in[CR_IN_conv_dgrad_mean_rstd]   = e->mean_rstd;
    op.in[CR_IN_conv_dgrad_gamma]       = e->gamma;
    op.in[CR_IN_conv_dgrad_beta]        = e->beta;
    op.out[CR_OUT_conv_dgrad_grad_sums] = e->grad_sums;
    return op;
}

/* Fusion B: the op reads the inputs of the BN gradient behind the convolution. */
static void fuse_bn_grad(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, struct cr_op *op) {
    const struct cr_op *apply         = op_at(f, s->apply);
    op->in[CR_IN_conv_grad_g]         = apply->in[CR_IN_bn_grad_apply_dy];
    op->in[CR_IN_conv_grad_dy_x]      = apply->in[CR_IN_bn_grad_apply_x];
    op->in[CR_IN_conv_grad_dy_coeffs] = apply->in[CR_IN_bn_grad_apply_coeffs];
}

static void fuse_epilogue(const struct cr_fusion_candidate *s, bool w, enum cr_grad_fusion d, struct cr_op *op) {
    const struct cr_grad_epilogue *e = &s->epilogue;
    if (d == CR_GRAD_FUSION_NONE) return;
    op->in[CR_IN_conv_grad_add]  = e->other;
    op->out[CR_OUT_conv_grad_dx] = d == CR_GRAD_FUSION_ALL ? e->g : e->sum;
    if (d == CR_GRAD_FUSION_ADD) return;
    op->in[CR_IN_conv_grad_y]           = e->y;
    op->in[CR_IN_conv_grad_mean_rstd]   = e->mean_rstd;
    op->out[CR_OUT_conv_grad_grad_sums] = e->grad_sums;
    if (!w) op->in[CR_IN_conv_grad_bn_x] = e->bn_x; /* with W, x is the BN's input already */
}

struct cr_op cr_fused_conv_grad(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, bool w,
                                enum cr_grad_fusion d, bool b) {
    const struct cr_op *wgrad = op_at(f, s->wgrad);
    struct cr_op        op    = cr_op_make(CR_OP_conv_grad, wgrad->layer);
    op.stream                 = wgrad->stream;
    op.attr.conv              = wgrad->attr.conv;
    op.in[CR_IN_conv_grad_g]  = wgrad->in[CR_IN_conv_wgrad_dy];
    op.in[CR_IN_conv_grad_w]  = op_at(f, s->conv)->in[CR_IN_conv_w];
    op.in[CR_IN_conv_grad_x]  = w ? bn_input(f, s) : wgrad->in[CR_IN_conv_wgrad_x];
    if (w) op.in[CR_IN_conv_grad_scale_bias] = scale_bias_of(f, s, CR_BN_INPUT_F32);
    if (s->dgrad != CR_NONE) op.out[CR_OUT_conv_grad_dx] = op_at(f, s->dgrad)->out[CR_OUT_conv_dgrad_dx];
    op.out[CR_OUT_conv_grad_dw] = wgrad->out[CR_OUT_conv_wgrad_dw];
    fuse_epilogue(s, w, d, &op);
    if (b) fuse_bn_grad(f, s, &op);
    return op;
}

struct cr_op cr_fused_second_sums(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s) {
    const struct cr_op *relu              = op_at(f, s->epilogue.relu);
    struct cr_op        op                = cr_op_make(CR_OP_bn_grad_sums, relu->layer);
    op.stream                             = relu->stream;
    op.in[CR_IN_bn_grad_sums_dy]          = s->epilogue.g;
    op.in[CR_IN_bn_grad_sums_x]           = relu->in[CR_IN_relu_grad_bn2_x];
    op.in[CR_IN_bn_grad_sums_mean_rstd]   = relu->in[CR_IN_relu_grad_mean_rstd2];
    op.out[CR_OUT_bn_grad_sums_grad_sums] = relu->out[CR_OUT_relu_grad_grad_sums2];
    return op;
}

struct cr_op cr_fused_finalize(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s) {
    struct cr_op op                            = *op_at(f, s->finalize);
    op.out[CR_OUT_bn_finalize_scale_bias_half] = s->half;
    return op;
}

struct cr_op cr_unmasked_bn_grad_apply(const struct cr_conv_fusions *f, int apply) {
    struct cr_op op              = *op_at(f, apply);
    op.in[CR_IN_bn_grad_apply_y] = op.in[CR_IN_bn_grad_apply_scale_bias] = CR_NONE;
    return op;
}

static int mask_slot(const struct cr_op *op) {
    return op->kind == CR_OP_conv ? (int)CR_OUT_conv_mask : (int)CR_OUT_bn_apply_mask;
}

struct cr_op cr_unmasked_block(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s) {
    struct cr_op op        = *op_at(f, s->block);
    op.out[mask_slot(&op)] = CR_NONE;
    return op;
}

bool cr_candidate_owns_mask_bits(const struct cr_conv_fusions *f, const struct cr_fusion_candidate *s) {
    if (s->epilogue.relu == CR_NONE) return false;
    int bits = op_at(f, s->block)->out[mask_slot(op_at(f, s->block))];
    return bits != CR_NONE && bits == op_at(f, s->epilogue.relu)->in[CR_IN_relu_grad_y] && f->edit->reads[bits] == 1;
}

/* ---- the rewrite ---- */

static void drop(struct cr_conv_fusions *f, int op) {
    if (op != CR_NONE && !f->edit->removed[op]) cr_edit_remove(f->edit, op);
}

static void apply_forward(struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                          const struct cr_fusion_option *o) {
    if (!o->p && !o->s) return;
    struct cr_op conv = cr_fused_conv(f, s, o->p, o->s);
    if (o->s) drop(f, s->sums);
    cr_edit_replace(f->edit, s->conv, &conv);
}

/* Removes the ops that the data gradient has fused. */
static void drop_epilogue(struct cr_conv_fusions *f, const struct cr_fusion_candidate *s, enum cr_grad_fusion d) {
    if (d == CR_GRAD_FUSION_NONE) return;
    drop(f, s->epilogue.add);
    if (d == CR_GRAD_FUSION_ADD) return;
    if (cr_candidate_owns_mask_bits(f, s)) {
        struct cr_op block = cr_unmasked_block(f, s);
        cr_edit_replace(f->edit, s->block, &block);
    }
    if (s->epilogue.two) {
        struct cr_op second = cr_fused_second_sums(f, s);
        cr_edit_replace(f->edit, s->epilogue.relu, &second);
    } else {
        drop(f, s->epilogue.relu);
    }
    drop(f, s->epilogue.sums);
    if (s->epilogue.apply != CR_NONE && !f->edit->removed[s->epilogue.apply]) {
        struct cr_op unmasked = cr_unmasked_bn_grad_apply(f, s->epilogue.apply);
        cr_edit_replace(f->edit, s->epilogue.apply, &unmasked);
    }
}

static void apply_backward(struct cr_conv_fusions *f, const struct cr_fusion_candidate *s,
                           const struct cr_fusion_option *o) {
    if (o->joint) {
        struct cr_op joint = cr_fused_conv_grad(f, s, o->w, o->d, o->b);
        int          place = s->dgrad != CR_NONE ? s->dgrad : s->wgrad;
        if (place != s->wgrad) drop(f, s->wgrad);
        drop_epilogue(f, s, o->d);
        if (o->b) drop(f, s->apply);
        cr_edit_replace(f->edit, place, &joint);
        return;
    }
    if (o->w) {
        struct cr_op wgrad = cr_fused_wgrad(f, s, o->w);
        cr_edit_replace(f->edit, s->wgrad, &wgrad);
    }
    if (o->d == CR_GRAD_FUSION_NONE) return;
    struct cr_op dgrad = cr_fused_dgrad(f, s, o->d);
    drop_epilogue(f, s, o->d);
    cr_edit_replace(f->edit, s->dgrad, &dgrad);
}

void cr_conv_fusions_apply(struct cr_conv_fusions *f) {
    for (int i = 0; i < f->candidates; i++) {
        const struct cr_fusion_candidate *s = &f->candidate[i];
        const struct cr_fusion_option    *o = &s->option[s->chosen];
        if (s->chosen == 0) continue;
        if (o->p == CR_BN_INPUT_HALF || o->w == CR_BN_INPUT_HALF) {
            struct cr_op finalize = cr_fused_finalize(f, s);
            cr_edit_replace(f->edit, s->finalize, &finalize);
        }
        apply_forward(f, s, o);
        apply_backward(f, s, o);
        if (o->p && (o->w || s->wgrad == CR_NONE)) drop(f, s->bn);
    }
}
