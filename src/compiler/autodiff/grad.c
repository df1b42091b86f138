/* compiler/autodiff/grad.c: appends the backward ops of a program.
 *
 * The pass visits the forward ops from the loss to the front. Each op kind with GRAD in graph/ops.def has a function
 * grad_<op> here, which emits the gradient ops and contributes gradients to the op's inputs. A tensor that is read
 * twice gets the sum of its gradients. Nothing is emitted for tensors that do not depend on a trainable parameter. */
#include "compiler/passes.h"

#include <stdio.h>

struct backward {
    struct cr_program *p;
    bool               accumulate;
    float              weight, smoothing;
    int                forward_tensors; /* tensors that existed before the pass */
    bool              *needs_grad;      /* [tensors] the tensor depends on a trainable parameter */
    int               *grad;            /* [tensors] its gradient so far, or CR_NONE */
};

/* ---- helpers ---- */

static bool needs_grad(const struct backward *b, int tensor) {
    return tensor >= 0 && b->needs_grad[tensor];
}
static int tensor_of(const struct cr_program *p, int op, int slot) {
    return p->failed ? 0 : p->op[op].out[slot];
}

static void gradient_name(const struct backward *b, int tensor, char name[256]) {
    snprintf(name, 256, b->grad[tensor] == CR_NONE ? "d.%s" : "d.%s.2", b->p->tensor[tensor].name);
}

/* Adds a POOL tensor with the shape and type of `tensor`. */
static int tensor_like(struct backward *b, int tensor, const char *name) {
    const struct cr_tensor like = b->p->tensor[tensor];
    return cr_tensor_add(b->p, name, like.dtype, CR_REGION_POOL, like.dim[0], like.dim[1], like.dim[2], like.dim[3]);
}

/* Adds the gradient of `tensor`. */
static int gradient_new(struct backward *b, int tensor) {
    char name[256];
    gradient_name(b, tensor, name);
    return tensor_like(b, tensor, name);
}

/* Adds `gradient` to the gradient of `tensor`; emits an add when the tensor has a gradient already. */
static void contribute(struct backward *b, int tensor, int gradient) {
    struct cr_program *p = b->p;
    if (!needs_grad(b, tensor) || p->failed) return;
    if (b->grad[tensor] == CR_NONE) {
        b->grad[tensor] = gradient;
        return;
    }
    char         name[256];
    struct cr_op op    = cr_op_make(CR_OP_add, p->op[p->ops - 1].layer);
    op.in[CR_IN_add_a] = b->grad[tensor];
    op.in[CR_IN_add_b] = gradient;
    snprintf(name, sizeof name, "d.%s.sum", p->tensor[tensor].name);
    b->grad[tensor] = tensor_of(p, cr_emit(p, &op, name), CR_OUT_add_y);
}

/* The trainable parameter of a STORE tensor; CR_NONE: no trainable parameter. */
static int trainable_param(const struct cr_program *p, int tensor) {
    const int param = p->tensor[tensor].param;
    if (param < 0 || cr_param_is_running(p->store->param[param].role)) return CR_NONE;
    return p->store->param[param].frozen ? CR_NONE : param;
}

static int gradient_slice(struct backward *b, int value_tensor) {
    return cr_tensor_store(b->p, CR_BUFFER_GRAD, trainable_param(b->p, value_tensor));
}

/* ---- one function per op kind: `op` is a copy of the forward op, dy the gradient of its first output ---- */

/* conv, group_conv, dense and channel_conv have x and w in the same slots, and so have their gradients. */
enum { X = CR_IN_conv_x, W = CR_IN_conv_w };
#define SAME_SLOTS(name)                                                                                               \
    _Static_assert((int)CR_IN_##name##_x == X && (int)CR_IN_##name##_w == W && CR_IN_##name##_wgrad_x == 0 &&          \
                       CR_IN_##name##_wgrad_dy == 1 && CR_IN_##name##_dgrad_dy == 0 && CR_IN_##name##_dgrad_w == 1,    \
                   "slots of " #name)
SAME_SLOTS(conv);
SAME_SLOTS(group_conv);
SAME_SLOTS(dense);
SAME_SLOTS(channel_conv);

/* The gradient by the filter w. Returns whether it is needed. */
static bool grad_filter(struct backward *b, const struct cr_op *op, struct cr_op *wgrad, int dy) {
    if (trainable_param(b->p, op->in[W]) == CR_NONE) return false;
    wgrad->in[0]  = op->in[X];
    wgrad->in[1]  = dy;
    wgrad->out[0] = gradient_slice(b, op->in[W]);
    cr_emit(b->p, wgrad, "");
    return true;
}

static void grad_input(struct backward *b, const struct cr_op *op, struct cr_op *dgrad, int dy) {
    if (!needs_grad(b, op->in[X])) return;
    dgrad->in[0]  = dy;
    dgrad->in[1]  = op->in[W];
    dgrad->out[0] = gradient_new(b, op->in[X]);
    cr_emit(b->p, dgrad, "");
    contribute(b, op->in[X], dgrad->out[0]);
}

static void grad_conv(struct backward *b, const struct cr_op *op, int dy) {
    const bool   groups = op->kind == CR_OP_group_conv;
    struct cr_op wgrad  = cr_op_make(groups ? CR_OP_group_conv_wgrad : CR_OP_conv_wgrad, op->layer),
                 dgrad  = cr_op_make(groups ? CR_OP_group_conv_dgrad : CR_OP_conv_dgrad, op->layer);
    wgrad.attr.conv = dgrad.attr.conv = op->attr.conv;
    wgrad.attr.conv.accumulate        = b->accumulate;
    (void)grad_filter(b, op, &wgrad, dy);
    grad_input(b, op, &dgrad, dy);
}

#define grad_group_conv grad_conv

static void grad_channel_conv(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_op wgrad          = cr_op_make(CR_OP_channel_conv_wgrad, op->layer),
                 dgrad          = cr_op_make(CR_OP_channel_conv_dgrad, op->layer);
    wgrad.attr.dense.accumulate = b->accumulate;
    (void)grad_filter(b, op, &wgrad, dy);
    grad_input(b, op, &dgrad, dy);
}

static void grad_dense(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_op wgrad = cr_op_make(CR_OP_dense_wgrad, op->layer), bgrad = cr_op_make(CR_OP_dense_bgrad, op->layer),
                 dgrad          = cr_op_make(CR_OP_dense_dgrad, op->layer);
    wgrad.attr.dense.accumulate = bgrad.attr.dense.accumulate = b->accumulate;
    if (grad_filter(b, op, &wgrad, dy)) {
        bgrad.in[CR_IN_dense_bgrad_dy]   = dy;
        bgrad.out[CR_OUT_dense_bgrad_db] = gradient_slice(b, op->in[CR_IN_dense_b]);
        cr_emit(b->p, &bgrad, "");
    }
    grad_input(b, op, &dgrad, dy);
}

/* Gradients that are one op: inputs dy and at most one more, and an output of the input's shape. */
static void grad_simple(struct backward *b, const struct cr_op *op, enum cr_op_kind kind, int dy, int more) {
    struct cr_op g = cr_op_make(kind, op->layer);
    if (!needs_grad(b, op->in[0])) return;
    g.in[0]  = dy;
    g.in[1]  = more;
    g.out[0] = gradient_new(b, op->in[0]);
    g.attr   = op->attr;
    cr_emit(b->p, &g, "");
    contribute(b, op->in[0], g.out[0]);
}

/* BN with batch statistics. Its bn_finalize has gamma, beta and the number of elements per channel. */
static void grad_bn_training(struct backward *b, const struct cr_op *op, const struct cr_op *finalize, int dy) {
    struct cr_program *p = b->p;
    int                x = op->in[CR_IN_bn_apply_x], mean_rstd = op->in[CR_IN_bn_apply_mean_rstd];
    int                gamma = finalize->in[CR_IN_bn_finalize_gamma], beta = finalize->in[CR_IN_bn_finalize_beta];
    char               name[256];

    struct cr_op sums_op                     = cr_op_make(CR_OP_bn_grad_sums, op->layer);
    sums_op.in[CR_IN_bn_grad_sums_dy]        = dy;
    sums_op.in[CR_IN_bn_grad_sums_x]         = x;
    sums_op.in[CR_IN_bn_grad_sums_mean_rstd] = mean_rstd;
    snprintf(name, sizeof name, "d.%s.sums", p->tensor[op->out[0]].name);
    int grad_sums = tensor_of(p, cr_emit(p, &sums_op, name), 0);
    if (p->failed) return;
    const int sums = cr_program_writer(p, finalize->in[CR_IN_bn_finalize_sums]);
    if (sums != CR_NONE &&
        p->op[sums].kind == CR_OP_all_reduce) { /* the forward sums are all-reduced, so the gradient sums are too */
        struct cr_op all           = cr_op_make(CR_OP_all_reduce, op->layer);
        all.in[CR_IN_all_reduce_x] = grad_sums;
        all.attr.reduce            = p->op[sums].attr.reduce;
        snprintf(name, sizeof name, "d.%s.sums.all", p->tensor[op->out[0]].name);
        grad_sums = tensor_of(p, cr_emit(p, &all, name), 0);
    }

    struct cr_op finalize_op                         = cr_op_make(CR_OP_bn_grad_finalize, op->layer);
    finalize_op.in[CR_IN_bn_grad_finalize_grad_sums] = grad_sums;
    finalize_op.in[CR_IN_bn_grad_finalize_gamma]     = gamma;
    finalize_op.in[CR_IN_bn_grad_finalize_mean_rstd] = mean_rstd;
    finalize_op.out[CR_OUT_bn_grad_finalize_dgamma]  = gradient_slice(b, gamma);
    finalize_op.out[CR_OUT_bn_grad_finalize_dbeta]   = gradient_slice(b, beta);
    finalize_op.attr.bn                              = finalize->attr.bn;
    finalize_op.attr.bn.accumulate                   = b->accumulate;
    snprintf(name, sizeof name, "d.%s", p->tensor[op->out[0]].name); /* its third output is named d.<name>.coeffs */
    int coeffs = tensor_of(p, cr_emit(p, &finalize_op, name), CR_OUT_bn_grad_finalize_coeffs);
    if (p->failed) return;

    struct cr_op apply                   = cr_op_make(CR_OP_bn_grad_apply, op->layer);
    apply.in[CR_IN_bn_grad_apply_dy]     = dy;
    apply.in[CR_IN_bn_grad_apply_x]      = x;
    apply.in[CR_IN_bn_grad_apply_coeffs] = coeffs;
    gradient_name(b, x, name);
    contribute(b, x, tensor_of(p, cr_emit(p, &apply, name), 0));
}

static void grad_bn_apply(struct backward *b, const struct cr_op *op, int dy) {
    const int scale_bias = op->in[CR_IN_bn_apply_scale_bias];
    CR_ASSERT(!op->attr.bn.relu && op->in[CR_IN_bn_apply_add] == CR_NONE); /* the program is not fused yet */
    struct cr_op source = b->p->op[cr_program_writer(b->p, scale_bias)];
    if (source.kind == CR_OP_bn_finalize)
        grad_bn_training(b, op, &source, dy);
    else /* frozen BN */
        grad_simple(b, op, CR_OP_channel_scale, dy, scale_bias);
}

static void grad_add(struct backward *b, const struct cr_op *op, int dy) {
    contribute(b, op->in[CR_IN_add_a], dy);
    contribute(b, op->in[CR_IN_add_b], dy);
}

#define SIMPLE(name, more)                                                                                             \
    static void grad_##name(struct backward *b, const struct cr_op *op, int dy) {                                      \
        grad_simple(b, op, CR_OP_##name##_grad, dy, more);                                                             \
    }
SIMPLE(relu, op->out[CR_OUT_relu_y])
SIMPLE(maxpool, op->out[CR_OUT_maxpool_index])
SIMPLE(avgpool, CR_NONE)
SIMPLE(avgpool2x2, CR_NONE)
SIMPLE(blurpool, CR_NONE)
SIMPLE(pad_shortcut, CR_NONE)

static void grad_se_scale(struct backward *b, const struct cr_op *op, int dy) {
    const int    x = op->in[CR_IN_se_scale_x], logit = op->in[CR_IN_se_scale_logit];
    struct cr_op g                  = cr_op_make(CR_OP_se_scale_grad, op->layer);
    g.in[CR_IN_se_scale_grad_dy]    = dy;
    g.in[CR_IN_se_scale_grad_x]     = x;
    g.in[CR_IN_se_scale_grad_logit] = logit;
    if (!needs_grad(b, x) && !needs_grad(b, logit)) return;
    g.out[CR_OUT_se_scale_grad_dx]     = gradient_new(b, x);
    g.out[CR_OUT_se_scale_grad_dlogit] = gradient_new(b, logit);
    cr_emit(b->p, &g, "");
    contribute(b, x, g.out[CR_OUT_se_scale_grad_dx]);
    contribute(b, logit, g.out[CR_OUT_se_scale_grad_dlogit]);
}

static void grad_drop(struct backward *b, const struct cr_op *op, int dy) {
    grad_simple(b, op, CR_OP_drop, dy, CR_NONE);
}

/* Both ops have these operands in the same slots. */
_Static_assert((int)CR_IN_distill_logits == (int)CR_IN_distill_grad_logits &&
                   (int)CR_IN_distill_labels == (int)CR_IN_distill_grad_labels &&
                   (int)CR_IN_distill_teacher == (int)CR_IN_distill_grad_teacher,
               "distill and its gradient");

/* The op distill that reads the logits; CR_NONE: none. */
static int distill_of(const struct cr_program *p, int logits) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_distill && p->op[i].in[CR_IN_distill_logits] == logits) return i;
    return CR_NONE;
}

/* dy is the gradient of the logits by the loss. Returns its sum with the gradient by op `distill`. The teacher's
 * tensors have no gradient. */
static int grad_distill(struct backward *b, int distill, int dy) {
    struct cr_program *p       = b->p;
    const struct cr_op forward = p->op[distill];
    struct cr_op       g       = cr_op_make(CR_OP_distill_grad, forward.layer);
    const int          logits  = forward.in[CR_IN_distill_logits];
    char               name[256];
    g.in[CR_IN_distill_grad_logits]  = logits;
    g.in[CR_IN_distill_grad_labels]  = forward.in[CR_IN_distill_labels];
    g.in[CR_IN_distill_grad_state]   = cr_tensor_store(p, CR_BUFFER_STATE, CR_NONE);
    g.in[CR_IN_distill_grad_teacher] = forward.in[CR_IN_distill_teacher];
    g.in[CR_IN_distill_grad_dy]      = dy;
    g.attr                           = forward.attr;
    g.attr.distill.weight *= b->weight;
    snprintf(name, sizeof name, "d.%s.distilled", p->tensor[logits].name);
    g.out[CR_OUT_distill_grad_dx] = tensor_like(b, logits, name);
    cr_emit(p, &g, "");
    return g.out[CR_OUT_distill_grad_dx];
}

static void grad_loss(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_program *p       = b->p;
    const int          logits  = op->in[CR_IN_loss_logits];
    const int          distill = distill_of(p, logits);
    char               name[256];
    (void)dy; /* the loss is where gradients start */
    if (!needs_grad(b, logits)) return;
    struct cr_op g                      = cr_op_make(CR_OP_loss_grad, op->layer);
    g.in[CR_IN_loss_grad_logits]        = logits;
    g.in[CR_IN_loss_grad_labels]        = op->in[CR_IN_loss_labels];
    g.in[CR_IN_loss_grad_state]         = cr_tensor_store(p, CR_BUFFER_STATE, CR_NONE);
    g.in[CR_IN_loss_grad_mixes]         = op->in[CR_IN_loss_mixes];
    g.in[CR_IN_loss_grad_class_weights] = op->in[CR_IN_loss_class_weights];
    g.attr.loss                         = op->attr.loss;
    g.attr.loss.smoothing               = b->smoothing;
    g.attr.loss.weight                  = b->weight;
    if (distill != CR_NONE) g.attr.loss.weight *= 1 - p->op[distill].attr.distill.weight;
    gradient_name(b, logits, name);
    const int dx = tensor_of(p, cr_emit(p, &g, name), 0);
    contribute(b, logits, distill == CR_NONE || p->failed ? dx : grad_distill(b, distill, dx));
}

/* ---- the pass ---- */

static void emit_gradient(struct backward *b, const struct cr_op *op, int dy) {
    switch (op->kind) {
#define GRAD(name)                                                                                                     \
    case CR_OP_##name:                                                                                                 \
        grad_##name(b, op, dy);                                                                                        \
        break;
#include "graph/ops.def"
    default: break; /* ops without a gradient: sums, scale_bias, input */
    }
}

static void find_needs_grad(struct backward *b) {
    struct cr_program *p = b->p;
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op      *op   = &p->op[i];
        const struct cr_op_info *info = cr_op_info(op->kind);
        bool                     any  = false;
        for (int s = 0; s < info->ins; s++)
            if (op->in[s] >= 0) any |= b->needs_grad[op->in[s]] || trainable_param(p, op->in[s]) != CR_NONE;
        for (int s = 0; s < info->outs; s++)
            if (op->out[s] >= 0 && p->tensor[op->out[s]].region == CR_REGION_POOL) b->needs_grad[op->out[s]] |= any;
    }
}

cr_status cr_pass_grad(struct cr_program *p, int loss_op, bool accumulate, float weight, float smoothing) {
    if (p->failed) return CR_NO_MEMORY(0);
    struct backward b = {
        .p = p, .accumulate = accumulate, .weight = weight, .smoothing = smoothing, .forward_tensors = p->tensors};
    int       forward_ops = p->ops;
    cr_status status      = CR_OK;
    CR_ALLOC_OUT(b.needs_grad, (size_t)p->tensors);
    CR_ALLOC_OUT(b.grad, (size_t)p->tensors);
    for (int t = 0; t < p->tensors; t++) b.grad[t] = CR_NONE;
    find_needs_grad(&b);
    for (int i = forward_ops - 1; i >= 0 && !p->failed; i--) {
        struct cr_op op = p->op[i]; /* a copy, because emission may move the array */
        int          dy = op.out[0] >= 0 && op.out[0] < b.forward_tensors ? b.grad[op.out[0]] : CR_NONE;
        if (i == loss_op || dy != CR_NONE) emit_gradient(&b, &op, dy);
    }
    if (p->failed) status = CR_NO_MEMORY(0);
out:
    cr_free(b.needs_grad);
    cr_free(b.grad);
    return status;
}
