/* ops.c: shape and type rules, and the cost, of every op kind. ops.def demands one infer_<op> each. */
#include "graph.h"

#include <string.h>

/* What a rule sees and fills. */
struct rule {
    const struct cr_program *p;
    const struct cr_op      *op;
    int                      slot; /* output asked for */
    enum cr_dtype            dtype;
    int64_t                 *dim;
};

static const struct cr_tensor *input(const struct rule *r, int slot) { return &r->p->tensor[r->op->in[slot]]; }

static void set(struct rule *r, enum cr_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t dim[4] = {a, b, c, d};
    r->dtype             = dtype;
    memcpy(r->dim, dim, sizeof dim);
}

static void set_like(struct rule *r, const struct cr_tensor *t) { set(r, t->dtype, t->dim[0], t->dim[1], t->dim[2], t->dim[3]); }

static bool same_shape(const struct cr_tensor *a, const struct cr_tensor *b) { return memcmp(a->dim, b->dim, sizeof a->dim) == 0; }

/* Statistics and sums are f32 whatever the activations are, and f64 in an f64 program. */
static enum cr_dtype wide(const struct cr_tensor *t) { return t->dtype == CR_F64 ? CR_F64 : CR_F32; }

static int64_t window_out(int64_t in, int64_t window, int stride, int pad) {
    CR_ASSERT(stride > 0 && pad >= 0 && in + 2 * pad >= window);
    return (in + 2 * pad - window) / stride + 1;
}

/* ---- forward ---- */

static void infer_normalize(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_normalize_images);
    CR_ASSERT(x->dtype == CR_U8 && x->dim[3] == 3);
    if (r->op->in[CR_IN_normalize_boxes] != CR_NONE) {
        const struct cr_tensor *boxes = input(r, CR_IN_normalize_boxes);
        CR_ASSERT(boxes->dtype == CR_I32 && boxes->dim[0] == x->dim[0] && cr_tensor_elems(boxes) == 4 * x->dim[0]);
    }
    set(r, r->p->real, x->dim[0], x->dim[1], x->dim[2], 3);
}

static void infer_conv(struct rule *r) {
    const struct cr_tensor    *x = input(r, CR_IN_conv_x), *w = input(r, CR_IN_conv_w);
    const struct cr_conv_attr *a = &r->op->attr.conv;
    CR_ASSERT(x->dim[3] == w->dim[3]);
    set(r, x->dtype, x->dim[0], window_out(x->dim[1], w->dim[1], a->stride, a->pad),
        window_out(x->dim[2], w->dim[2], a->stride, a->pad), w->dim[0]);
}

static void infer_bn_stats(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_bn_stats_x);
    set(r, wide(x), 2, 1, 1, x->dim[3]);
}

static void infer_bn_finalize(struct rule *r) {
    const struct cr_tensor *stats = input(r, CR_IN_bn_finalize_stats);
    CR_ASSERT(r->slot <= CR_OUT_bn_finalize_saved); /* the running statistics are the store's */
    CR_ASSERT(input(r, CR_IN_bn_finalize_gamma)->dim[3] == stats->dim[3] && r->op->attr.bn.count > 0);
    set_like(r, stats);
}

static void infer_bn_coef(struct rule *r) {
    const struct cr_tensor *gamma = input(r, CR_IN_bn_coef_gamma);
    set(r, gamma->dtype, 2, 1, 1, gamma->dim[3]);
}

static void infer_bn_apply(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_bn_apply_x);
    CR_ASSERT(input(r, CR_IN_bn_apply_coef)->dim[3] == x->dim[3]);
    if (r->op->in[CR_IN_bn_apply_add] != CR_NONE) CR_ASSERT(same_shape(x, input(r, CR_IN_bn_apply_add)));
    set_like(r, x);
}

static void infer_relu(struct rule *r) { set_like(r, input(r, CR_IN_relu_x)); }

static void infer_add(struct rule *r) {
    CR_ASSERT(same_shape(input(r, CR_IN_add_a), input(r, CR_IN_add_b)));
    set_like(r, input(r, CR_IN_add_a));
}

static void infer_maxpool(struct rule *r) {
    const struct cr_tensor    *x = input(r, CR_IN_maxpool_x);
    const struct cr_conv_attr *a = &r->op->attr.conv;
    CR_ASSERT(a->window * a->window <= 256 && 2 * a->pad <= a->window);
    set(r, r->slot == CR_OUT_maxpool_index ? CR_U8 : x->dtype, x->dim[0], window_out(x->dim[1], a->window, a->stride, a->pad),
        window_out(x->dim[2], a->window, a->stride, a->pad), x->dim[3]);
}

static void infer_avgpool(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_avgpool_x);
    set(r, x->dtype, x->dim[0], 1, 1, x->dim[3]);
}

/* K is the shape's business, not an attribute: C plus pad_c in front and as many behind. */
static void infer_pad_shortcut(struct rule *r) {
    const struct cr_tensor    *x = input(r, CR_IN_pad_shortcut_x);
    const struct cr_conv_attr *a = &r->op->attr.conv;
    set(r, x->dtype, x->dim[0], (x->dim[1] - 1) / a->stride + 1, (x->dim[2] - 1) / a->stride + 1, x->dim[3] + 2 * a->pad_c);
}

static void infer_dense(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_dense_x), *w = input(r, CR_IN_dense_w);
    CR_ASSERT(x->dim[1] == 1 && x->dim[2] == 1 && x->dim[3] == w->dim[3]);
    set(r, x->dtype, x->dim[0], 1, 1, w->dim[0]);
}

static void infer_loss(struct rule *r) { set(r, wide(input(r, CR_IN_loss_logits)), 1, 1, 1, 4); }

/* ---- backward: gradients of parameters are the store's; gradients of inputs need a shape the op does not see, so the
 * pass that emits them (grad.c) makes the tensor itself ---- */

static void infer_loss_grad(struct rule *r) { set_like(r, input(r, CR_IN_loss_grad_logits)); }
static void infer_dense_dgrad(struct rule *r) {
    const struct cr_tensor *dy = input(r, CR_IN_dense_dgrad_dy), *w = input(r, CR_IN_dense_dgrad_w);
    set(r, dy->dtype, dy->dim[0], 1, 1, w->dim[3]);
}
static void infer_relu_grad(struct rule *r) { set_like(r, input(r, CR_IN_relu_grad_dy)); }
static void infer_bn_grad_stats(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_bn_grad_stats_x);
    CR_ASSERT(same_shape(x, input(r, CR_IN_bn_grad_stats_dy)));
    set(r, wide(x), 2, 1, 1, x->dim[3]);
}
static void infer_bn_grad_finalize(struct rule *r) {
    const struct cr_tensor *stats = input(r, CR_IN_bn_grad_finalize_dstats);
    CR_ASSERT(r->slot == CR_OUT_bn_grad_finalize_coef && r->op->attr.bn.count > 0);
    set(r, stats->dtype, 3, 1, 1, stats->dim[3]);
}
static void infer_bn_grad_apply(struct rule *r) { set_like(r, input(r, CR_IN_bn_grad_apply_dy)); }
static void infer_channel_scale(struct rule *r) { set_like(r, input(r, CR_IN_channel_scale_dy)); }

static void infer_given(struct rule *r) {
    CR_ASSERT(!"this output must be given");
    (void)r;
}
#define infer_dense_wgrad infer_given
#define infer_dense_bgrad infer_given
#define infer_avgpool_grad infer_given
#define infer_maxpool_grad infer_given
#define infer_pad_shortcut_grad infer_given
#define infer_conv_dgrad infer_given
#define infer_conv_wgrad infer_given
#define infer_sgd infer_given
#define infer_zero infer_given
#define infer_cast infer_given

/* ---- update ---- */

static void infer_grad_check(struct rule *r) { set(r, wide(input(r, CR_IN_grad_check_grad)), 1, 1, 1, 2); }

void cr_op_infer(const struct cr_program *p, const struct cr_op *op, int slot, enum cr_dtype *dtype, int64_t dim[4]) {
    static void (*const rules[CR_OP_COUNT])(struct rule *) = {
#define OP(op, what) [CR_OP_##op] = infer_##op,
#include "ops.def"
    };
    struct rule r = {.p = p, .op = op, .slot = slot, .dim = dim};
    rules[op->kind](&r);
    *dtype = r.dtype;
}

/* ---- cost ---- */

static double elems_of(const struct cr_program *p, int id) { return id < 0 ? 0 : (double)cr_tensor_elems(&p->tensor[id]); }

/* Multiply-adds of a convolution: every output element reduces over R*S*C (padding counted, as everybody does). */
static double conv_flops(const struct cr_program *p, int y, int w) {
    const struct cr_tensor *filter = &p->tensor[w];
    return 2.0 * elems_of(p, y) * (double)(filter->dim[1] * filter->dim[2] * filter->dim[3]);
}

void cr_op_cost(const struct cr_program *p, const struct cr_op *op, double *bytes, double *flops) {
    int    ids[8], n = cr_op_reads(op, ids);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)p->tensor[ids[i]].bytes;
    n = cr_op_writes(op, ids);
    for (int i = 0; i < n; i++) sum += (double)p->tensor[ids[i]].bytes;
    *bytes = sum;
    switch (op->kind) {
    case CR_OP_conv: *flops = conv_flops(p, op->out[CR_OUT_conv_y], op->in[CR_IN_conv_w]); break;
    case CR_OP_conv_dgrad: *flops = conv_flops(p, op->in[CR_IN_conv_dgrad_dy], op->in[CR_IN_conv_dgrad_w]); break;
    case CR_OP_conv_wgrad: *flops = conv_flops(p, op->in[CR_IN_conv_wgrad_dy], op->out[CR_OUT_conv_wgrad_dw]); break;
    case CR_OP_dense: *flops = conv_flops(p, op->out[CR_OUT_dense_y], op->in[CR_IN_dense_w]); break;
    case CR_OP_dense_dgrad: *flops = conv_flops(p, op->in[CR_IN_dense_dgrad_dy], op->in[CR_IN_dense_dgrad_w]); break;
    case CR_OP_dense_wgrad: *flops = conv_flops(p, op->in[CR_IN_dense_wgrad_dy], op->out[CR_OUT_dense_wgrad_dw]); break;
    default: /* pointwise: about two operations an element of the first operand */
        *flops = 2.0 * elems_of(p, op->in[0] >= 0 ? op->in[0] : op->out[0]);
    }
}
