/* compiler/fusion/patterns_stem.c: patterns of the stem of the ImageNet networks: the max-pooling that normalises what
 * it reads, and the 7x7 convolution on the picture in space-to-depth form, whose sixteen channels suit the tensor cores
 * where three do not. */
#include "compiler/fusion/fusion.h"

#include <stdio.h>
#include <string.h>

/* ---- BN and ReLU in the max-pooling ---- */

static bool has_backward(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_loss_grad) return true;
    return false;
}

/* bn_apply with ReLU -> maxpool. In a program without gradients the BN belongs into the convolution before it. */
bool cr_fuse_bn_pool(struct cr_edit *edit, const struct cr_cost_model *target, int root) {
    struct cr_op joined = *cr_fuse_op(edit, root);
    int          bn     = cr_edit_private_writer(edit, joined.in[CR_IN_maxpool_x], CR_OP_bn_apply);
    if (bn == CR_NONE || joined.in[CR_IN_maxpool_scale_bias] != CR_NONE || !has_backward(edit->program)) return false;
    if (!cr_fuse_same_stream(edit, bn, root) || !cr_edit_can_move(edit, bn, root)) return false;
    const struct cr_op *apply = cr_fuse_op(edit, bn);
    if (!apply->attr.bn.relu || apply->in[CR_IN_bn_apply_add] != CR_NONE) return false;
    if (apply->out[CR_OUT_bn_apply_mask] != CR_NONE) return false;
    joined.in[CR_IN_maxpool_x]          = apply->in[CR_IN_bn_apply_x];
    joined.in[CR_IN_maxpool_scale_bias] = apply->in[CR_IN_bn_apply_scale_bias];
    if (!cr_fuse_accepted(edit, target, &joined)) return false;
    cr_edit_remove(edit, bn);
    cr_edit_replace(edit, root, &joined);
    return true;
}

/* maxpool_grad -> bn_grad_sums and bn_grad_apply, both with the mask computed again: its sparse dx is never stored. */
bool cr_fuse_pool_grad(struct cr_edit *edit, const struct cr_cost_model *target, int root) {
    const struct cr_op *pool = cr_fuse_op(edit, root);
    int                 dx   = pool->out[CR_OUT_maxpool_grad_dx];
    if (!cr_edit_is_private(edit, dx) || edit->reads[dx] != 2 || edit->writes[dx] != 1) return false;
    int s = cr_edit_next_reader(edit, dx, root), a = s == CR_NONE ? CR_NONE : cr_edit_next_reader(edit, dx, s);
    if (a == CR_NONE) return false;
    const struct cr_op *stats = cr_fuse_op(edit, s), *apply = cr_fuse_op(edit, a);
    if (stats->kind != CR_OP_bn_grad_sums || apply->kind != CR_OP_bn_grad_apply) return false;
    if (stats->in[CR_IN_bn_grad_sums_dy] != dx || apply->in[CR_IN_bn_grad_apply_dy] != dx) return false;
    int x = stats->in[CR_IN_bn_grad_sums_x], act = stats->in[CR_IN_bn_grad_sums_scale_bias];
    if (act == CR_NONE || act != apply->in[CR_IN_bn_grad_apply_scale_bias] || x != apply->in[CR_IN_bn_grad_apply_x])
        return false;
    if (!cr_fuse_same_stream(edit, root, s) || !cr_fuse_same_stream(edit, root, a) || !cr_edit_can_move(edit, root, a))
        return false;

    struct cr_op first                             = cr_op_make(CR_OP_pool_bn_grad_sums, stats->layer),
                 second                            = cr_op_make(CR_OP_pool_bn_grad_apply, apply->layer);
    first.in[CR_IN_pool_bn_grad_sums_dy]           = pool->in[CR_IN_maxpool_grad_dy];
    first.in[CR_IN_pool_bn_grad_sums_index]        = pool->in[CR_IN_maxpool_grad_index];
    first.in[CR_IN_pool_bn_grad_sums_x]            = x;
    first.in[CR_IN_pool_bn_grad_sums_scale_bias]   = act;
    first.in[CR_IN_pool_bn_grad_sums_mean_rstd]    = stats->in[CR_IN_bn_grad_sums_mean_rstd];
    first.out[CR_OUT_pool_bn_grad_sums_grad_sums]  = stats->out[CR_OUT_bn_grad_sums_grad_sums];
    second.in[CR_IN_pool_bn_grad_apply_dy]         = pool->in[CR_IN_maxpool_grad_dy];
    second.in[CR_IN_pool_bn_grad_apply_index]      = pool->in[CR_IN_maxpool_grad_index];
    second.in[CR_IN_pool_bn_grad_apply_x]          = x;
    second.in[CR_IN_pool_bn_grad_apply_scale_bias] = act;
    second.in[CR_IN_pool_bn_grad_apply_coef]       = apply->in[CR_IN_bn_grad_apply_coef];
    second.out[CR_OUT_pool_bn_grad_apply_dx]       = apply->out[CR_OUT_bn_grad_apply_dx];
    first.stream = second.stream = pool->stream;
    first.attr = second.attr = pool->attr; /* the windows */
    if (!cr_fuse_accepted(edit, target, &first) || !cr_fuse_accepted(edit, target, &second)) return false;
    cr_edit_remove(edit, root);
    cr_edit_replace(edit, s, &first);
    cr_edit_replace(edit, a, &second);
    return true;
}

/* ---- space to depth ---- */

enum { WINDOW = 7, S2D_WINDOW = 4, S2D_CHANNELS = 16 };

/* The ops of the plain stem (indices) and what stands in their place. */
struct stem {
    int          normalize, conv, wgrad; /* wgrad: CR_NONE in frozen stems and without gradients */
    struct cr_op picture, filter, product, gradient, spread;
};

/* The readers of the normalised picture are one convolution of the right shape and its filter's gradient. */
static bool find_stem(const struct cr_edit *edit, struct stem *s) {
    const struct cr_program *p = edit->program;
    *s                         = (struct stem){CR_NONE, CR_NONE, CR_NONE, {0}, {0}, {0}, {0}, {0}};
    for (int i = 0; i < p->ops && s->normalize == CR_NONE; i++)
        if (p->op[i].kind == CR_OP_normalize) s->normalize = i;
    if (s->normalize == CR_NONE || p->op[s->normalize].attr.input.s2d) return false;
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

/* A transient of the program; CR_NONE when memory is out (the program remembers). */
static int transient(struct cr_program *p, const char *of, const char *suffix, enum cr_dtype dtype,
                     const int64_t dim[4]) {
    char name[256];
    snprintf(name, sizeof name, "%s.%s", of, suffix);
    int id = cr_tensor_add(p, name, dtype, CR_REGION_POOL, dim[0], dim[1], dim[2], dim[3]);
    return p->failed ? CR_NONE : id;
}

static void set_windows(struct cr_op *conv) {
    conv->attr.conv.stride = 1;
    conv->attr.conv.pad    = 0;
    conv->attr.conv.window = S2D_WINDOW;
}

static void make_forward(struct cr_program *p, struct stem *s) {
    enum cr_dtype dtype;
    int64_t       dim[4];
    s->picture                = p->op[s->normalize];
    s->picture.attr.input.s2d = true;
    cr_op_infer(p, &s->picture, CR_OUT_normalize_y, &dtype, dim);
    s->picture.out[CR_OUT_normalize_y] =
        transient(p, p->tensor[s->picture.out[CR_OUT_normalize_y]].name, "s2d", dtype, dim);

    const struct cr_op *conv         = &p->op[s->conv];
    s->filter                        = cr_op_make(CR_OP_s2d_filter, conv->layer);
    s->filter.stream                 = conv->stream;
    s->filter.in[CR_IN_s2d_filter_w] = conv->in[CR_IN_conv_w];
    cr_op_infer(p, &s->filter, CR_OUT_s2d_filter_y, &dtype, dim);
    s->filter.out[CR_OUT_s2d_filter_y] = transient(p, p->tensor[conv->in[CR_IN_conv_w]].name, "s2d", dtype, dim);

    s->product                  = *conv; /* what is done behind it stays */
    s->product.in[CR_IN_conv_x] = s->picture.out[CR_OUT_normalize_y];
    s->product.in[CR_IN_conv_w] = s->filter.out[CR_OUT_s2d_filter_y];
    set_windows(&s->product);
}

static void make_backward(struct cr_program *p, struct stem *s) {
    const struct cr_op *wgrad  = &p->op[s->wgrad];
    int                 dw     = wgrad->out[CR_OUT_conv_wgrad_dw];
    const int64_t       dim[4] = {p->tensor[dw].dim[0], S2D_WINDOW, S2D_WINDOW, S2D_CHANNELS};
    int                 wide   = transient(p, p->tensor[dw].name, "s2d", p->tensor[dw].dtype, dim);

    s->gradient                           = *wgrad;
    s->gradient.in[CR_IN_conv_wgrad_x]    = s->picture.out[CR_OUT_normalize_y];
    s->gradient.out[CR_OUT_conv_wgrad_dw] = wide;
    s->gradient.attr.conv.accumulate      = false; /* the sum over batches is the next op's business */
    set_windows(&s->gradient);

    s->spread                                = cr_op_make(CR_OP_s2d_filter_grad, wgrad->layer);
    s->spread.stream                         = wgrad->stream;
    s->spread.in[CR_IN_s2d_filter_grad_dy]   = wide;
    s->spread.out[CR_OUT_s2d_filter_grad_dw] = dw;
    s->spread.attr.conv.accumulate           = wgrad->attr.conv.accumulate;
}

static bool all_accepted(const struct cr_edit *edit, const struct cr_cost_model *target, const struct stem *s) {
    if (!cr_fuse_accepted(edit, target, &s->picture) || !cr_fuse_accepted(edit, target, &s->filter)) return false;
    if (!cr_fuse_accepted(edit, target, &s->product)) return false;
    if (s->wgrad == CR_NONE) return true;
    return cr_fuse_accepted(edit, target, &s->gradient) && cr_fuse_accepted(edit, target, &s->spread);
}

/* Appends an op and moves it to `place`: what stood there and behind goes one up. */
static void insert(struct cr_program *p, int place, const struct cr_op *op) {
    cr_emit(p, op, "");
    if (p->failed) return;
    memmove(&p->op[place + 1], &p->op[place], (size_t)(p->ops - 1 - place) * sizeof *p->op);
    p->op[place] = *op;
}

static void rewrite(struct cr_program *p, const struct stem *s) {
    p->op[s->normalize] = s->picture;
    p->op[s->conv]      = s->product;
    if (s->wgrad != CR_NONE) { /* the later op first: places before it stay */
        p->op[s->wgrad] = s->gradient;
        insert(p, s->wgrad + 1, &s->spread);
    }
    insert(p, s->conv, &s->filter);
}

cr_status cr_fuse_s2d(struct cr_program *p, const struct cr_cost_model *target) {
    struct cr_edit edit;
    struct stem    s;
    CR_TRY(cr_edit_open(&edit, p));
    if (find_stem(&edit, &s)) {
        make_forward(p, &s);
        if (!p->failed && s.wgrad != CR_NONE) make_backward(p, &s);
        if (!p->failed && all_accepted(&edit, target, &s)) rewrite(p, &s);
    }
    cr_edit_close(&edit);
    return p->failed ? CR_NO_MEMORY((size_t)p->tensors * sizeof *p->tensor) : CR_OK;
}
