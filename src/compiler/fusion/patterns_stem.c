/* compiler/fusion/patterns_stem.c: patterns for the stem of ImageNet networks: BN and ReLU inside the max-pooling, and
 * the 7x7 convolution on the image in space-to-depth form. Tensor cores suit its 16 channels, but not the 3 channels of
 * the image. */
#include "compiler/fusion/fusion.h"
#include "compiler/passes.h"

/* ---- BN and ReLU in the max-pooling ---- */

/* bn_apply with ReLU -> maxpool. Programs without gradients are left alone: fold puts the BN into the convolution. */
bool cr_fuse_bn_pool(struct cr_edit *edit, int root) {
    struct cr_op fused = *cr_fuse_op(edit, root);
    int          bn    = cr_fuse_before(edit, fused.in[CR_IN_maxpool_x], CR_OP_bn_apply, root);
    if (bn == CR_NONE || fused.in[CR_IN_maxpool_scale_bias] != CR_NONE || !cr_program_trains(edit->program))
        return false;
    const struct cr_op *apply = cr_fuse_op(edit, bn);
    if (!apply->attr.bn.relu || apply->in[CR_IN_bn_apply_add] != CR_NONE) return false;
    if (apply->out[CR_OUT_bn_apply_mask] != CR_NONE) return false;
    fused.in[CR_IN_maxpool_x]          = apply->in[CR_IN_bn_apply_x];
    fused.in[CR_IN_maxpool_scale_bias] = apply->in[CR_IN_bn_apply_scale_bias];
    return cr_fuse_replace(edit, root, &fused, bn, CR_NONE);
}

/* maxpool_grad -> bn_grad_sums and bn_grad_apply, both with a recomputed mask. The sparse dx is never stored. Kernels
 * exist for the usual pooling of 3x3 with stride 2; before anti-aliased subsampling the stride is 1. */
bool cr_fuse_pool_grad(struct cr_edit *edit, int root) {
    const struct cr_op *pool = cr_fuse_op(edit, root);
    int                 s, a;
    if (pool->attr.conv.window != 3 || pool->attr.conv.stride != 2) return false;
    if (!cr_fuse_bn_grad(edit, root, pool->out[CR_OUT_maxpool_grad_dx], &s, &a)) return false;
    const struct cr_op *sums = cr_fuse_op(edit, s), *apply = cr_fuse_op(edit, a);
    int                 x = sums->in[CR_IN_bn_grad_sums_x], scale_bias = sums->in[CR_IN_bn_grad_sums_scale_bias];
    if (scale_bias == CR_NONE || scale_bias != apply->in[CR_IN_bn_grad_apply_scale_bias]) return false;

    struct cr_op pool_sums                             = cr_op_make(CR_OP_pool_bn_grad_sums, sums->layer),
                 pool_apply                            = cr_op_make(CR_OP_pool_bn_grad_apply, apply->layer);
    pool_sums.in[CR_IN_pool_bn_grad_sums_dy]           = pool->in[CR_IN_maxpool_grad_dy];
    pool_sums.in[CR_IN_pool_bn_grad_sums_index]        = pool->in[CR_IN_maxpool_grad_index];
    pool_sums.in[CR_IN_pool_bn_grad_sums_x]            = x;
    pool_sums.in[CR_IN_pool_bn_grad_sums_scale_bias]   = scale_bias;
    pool_sums.in[CR_IN_pool_bn_grad_sums_mean_rstd]    = sums->in[CR_IN_bn_grad_sums_mean_rstd];
    pool_sums.out[CR_OUT_pool_bn_grad_sums_grad_sums]  = sums->out[CR_OUT_bn_grad_sums_grad_sums];
    pool_apply.in[CR_IN_pool_bn_grad_apply_dy]         = pool->in[CR_IN_maxpool_grad_dy];
    pool_apply.in[CR_IN_pool_bn_grad_apply_index]      = pool->in[CR_IN_maxpool_grad_index];
    pool_apply.in[CR_IN_pool_bn_grad_apply_x]          = x;
    pool_apply.in[CR_IN_pool_bn_grad_apply_scale_bias] = scale_bias;
    pool_apply.in[CR_IN_pool_bn_grad_apply_coeffs]     = apply->in[CR_IN_bn_grad_apply_coeffs];
    pool_apply.out[CR_OUT_pool_bn_grad_apply_dx]       = apply->out[CR_OUT_bn_grad_apply_dx];
    pool_sums.stream = pool_apply.stream = pool->stream;
    pool_sums.attr = pool_apply.attr = pool->attr; /* window, stride and padding of the pooling */
    if (!cr_fuse_accepted(edit, &pool_sums) || !cr_fuse_accepted(edit, &pool_apply)) return false;
    cr_edit_remove(edit, root);
    cr_edit_replace(edit, s, &pool_sums);
    cr_edit_replace(edit, a, &pool_apply);
    return true;
}

/* ---- space to depth ---- */

enum { WINDOW = 7, S2D_WINDOW = 4, S2D_CHANNELS = 16 };

/* Indices of the plain ops, and the ops that replace them. */
struct stem {
    int          normalize, conv, wgrad; /* wgrad: CR_NONE in a frozen stem and without gradients */
    struct cr_op image, filter, s2d_conv, s2d_wgrad, filter_grad;
};

/* Matches when the image that op `normalize` writes has two readers at most: a convolution of the right shape and its
 * filter gradient. */
static bool find_stem(const struct cr_edit *edit, int normalize, struct stem *s) {
    const struct cr_program *p = edit->program;
    *s                         = (struct stem){normalize, CR_NONE, CR_NONE, {0}, {0}, {0}, {0}, {0}};
    if (p->op[s->normalize].attr.input.s2d || p->op[s->normalize].attr.input.wide) return false;
    int x = p->op[s->normalize].out[CR_OUT_normalize_y];
    if (!cr_edit_is_private(edit, x) || p->tensor[x].dim[1] % 2 || p->tensor[x].dim[2] % 2) return false;
    for (int k = cr_edit_next_reader(edit, x, s->normalize); k != CR_NONE; k = cr_edit_next_reader(edit, x, k)) {
        if (p->op[k].stream != p->op[s->normalize].stream) return false;
        if (p->op[k].kind == CR_OP_conv && s->conv == CR_NONE)
            s->conv = k;
        else if (p->op[k].kind == CR_OP_conv_wgrad && s->wgrad == CR_NONE)
            s->wgrad = k;
        else
            return false;
    }
    if (s->conv == CR_NONE) return false;
    const struct cr_op     *conv = &p->op[s->conv];
    const struct cr_tensor *w    = &p->tensor[conv->in[CR_IN_conv_w]];
    if (conv->attr.conv.stride != 2 || conv->attr.conv.pad != WINDOW / 2 || conv->in[CR_IN_conv_scale_bias] != CR_NONE)
        return false;
    return w->dim[1] == WINDOW && w->dim[2] == WINDOW && w->dim[3] == 3;
}

/* Adds the space-to-depth form of a tensor; CR_NONE when an allocation fails (program->failed is set). */
static int add_s2d(struct cr_program *p, int of, enum cr_dtype dtype, const int64_t dim[4]) {
    const int id = cr_tensor_derive(p, p->tensor[of].name, ".s2d", dtype, CR_REGION_POOL, dim);
    return p->failed ? CR_NONE : id;
}

static void set_s2d_window(struct cr_op *conv) {
    conv->attr.conv.stride = 1;
    conv->attr.conv.pad    = 0;
    conv->attr.conv.window = S2D_WINDOW;
}

static void make_forward(struct cr_program *p, struct stem *s) {
    enum cr_dtype dtype;
    int64_t       dim[4];
    s->image                = p->op[s->normalize];
    s->image.attr.input.s2d = true;
    cr_op_infer(p, &s->image, CR_OUT_normalize_y, &dtype, dim);
    s->image.out[CR_OUT_normalize_y] = add_s2d(p, s->image.out[CR_OUT_normalize_y], dtype, dim);

    const struct cr_op *conv         = &p->op[s->conv];
    s->filter                        = cr_op_make(CR_OP_s2d_filter, conv->layer);
    s->filter.stream                 = conv->stream;
    s->filter.in[CR_IN_s2d_filter_w] = conv->in[CR_IN_conv_w];
    cr_op_infer(p, &s->filter, CR_OUT_s2d_filter_y, &dtype, dim);
    s->filter.out[CR_OUT_s2d_filter_y] = add_s2d(p, conv->in[CR_IN_conv_w], dtype, dim);

    s->s2d_conv                  = *conv; /* outputs and attributes stay */
    s->s2d_conv.in[CR_IN_conv_x] = s->image.out[CR_OUT_normalize_y];
    s->s2d_conv.in[CR_IN_conv_w] = s->filter.out[CR_OUT_s2d_filter_y];
    set_s2d_window(&s->s2d_conv);
}

static void make_backward(struct cr_program *p, struct stem *s) {
    const struct cr_op *wgrad  = &p->op[s->wgrad];
    int                 dw     = wgrad->out[CR_OUT_conv_wgrad_dw];
    const int64_t       dim[4] = {p->tensor[dw].dim[0], S2D_WINDOW, S2D_WINDOW, S2D_CHANNELS};
    int                 s2d_dw = add_s2d(p, dw, p->tensor[dw].dtype, dim);

    s->s2d_wgrad                           = *wgrad;
    s->s2d_wgrad.in[CR_IN_conv_wgrad_x]    = s->image.out[CR_OUT_normalize_y];
    s->s2d_wgrad.out[CR_OUT_conv_wgrad_dw] = s2d_dw;
    s->s2d_wgrad.attr.conv.accumulate      = false; /* s2d_filter_grad accumulates instead */
    set_s2d_window(&s->s2d_wgrad);

    s->filter_grad                                = cr_op_make(CR_OP_s2d_filter_grad, wgrad->layer);
    s->filter_grad.stream                         = wgrad->stream;
    s->filter_grad.in[CR_IN_s2d_filter_grad_dy]   = s2d_dw;
    s->filter_grad.out[CR_OUT_s2d_filter_grad_dw] = dw;
    s->filter_grad.attr.conv.accumulate           = wgrad->attr.conv.accumulate;
}

static bool all_accepted(const struct cr_edit *edit, const struct stem *s) {
    if (!cr_fuse_accepted(edit, &s->image) || !cr_fuse_accepted(edit, &s->filter)) return false;
    if (!cr_fuse_accepted(edit, &s->s2d_conv)) return false;
    if (s->wgrad == CR_NONE) return true;
    return cr_fuse_accepted(edit, &s->s2d_wgrad) && cr_fuse_accepted(edit, &s->filter_grad);
}

static void rewrite(struct cr_program *p, const struct stem *s) {
    p->op[s->normalize] = s->image;
    p->op[s->conv]      = s->s2d_conv;
    if (s->wgrad != CR_NONE) { /* the later op first, so that earlier indices stay valid */
        p->op[s->wgrad] = s->s2d_wgrad;
        cr_emit_at(p, s->wgrad + 1, &s->filter_grad, "");
    }
    cr_emit_at(p, s->conv, &s->filter, "");
}

static cr_status fuse_stem(struct cr_program *p, const struct cr_cost_model *cost_model, int normalize) {
    struct cr_edit edit;
    struct stem    s;
    CR_TRY(cr_edit_open(&edit, p, cost_model));
    if (find_stem(&edit, normalize, &s)) {
        make_forward(p, &s);
        if (!p->failed && s.wgrad != CR_NONE) make_backward(p, &s);
        if (!p->failed && all_accepted(&edit, &s)) rewrite(p, &s);
    }
    cr_edit_close(&edit);
    return p->failed ? CR_NO_MEMORY((size_t)p->tensors * sizeof *p->tensor) : CR_OK;
}

/* A program with a teacher has two stems. Ops are inserted behind the normalize op only. */
cr_status cr_fuse_s2d(struct cr_program *p, const struct cr_cost_model *cost_model) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_normalize) CR_TRY(fuse_stem(p, cost_model, i));
    return CR_OK;
}
