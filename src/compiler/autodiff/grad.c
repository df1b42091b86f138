/* compiler/autodiff/grad.c: appends the backward ops. Walks the forward ops from the loss to the front; each op kind
 * with GRAD in graph/ops.def has a grad_<op> here that emits what it needs and contributes gradients to its inputs. A
 * tensor read twice gets the sum of its contributions. Nothing is emitted for tensors that no trainable parameter leads
 * to. */
#include "compiler/compiler.h"

#include <stdio.h>
#include <string.h>

struct backward {
    struct cr_program *p;
    bool               accumulate;
    float              weight, smoothing;
    int                forward_tensors; /* tensors that existed before the pass */
    bool              *needs;           /* by tensor: a trainable parameter leads to it */
    int               *grad;            /* by tensor: its gradient so far, or CR_NONE */
};

/* ---- tools ---- */

static bool needs(const struct backward *b, int tensor) {
    return tensor >= 0 && b->needs[tensor];
}
static int tensor_of(const struct cr_program *p, int op, int slot) {
    return p->failed ? 0 : p->op[op].out[slot];
}

static void gradient_name(const struct backward *b, int tensor, char name[256]) {
    snprintf(name, 256, b->grad[tensor] == CR_NONE ? "d.%s" : "d.%s.2", b->p->tensor[tensor].name);
}

/* A new POOL tensor for the gradient of `tensor`, of its shape. */
static int gradient_new(struct backward *b, int tensor) {
    char name[256];
    gradient_name(b, tensor, name);
    struct cr_tensor like = b->p->tensor[tensor];
    return cr_tensor_add(b->p, name, like.dtype, CR_REGION_POOL, like.dim[0], like.dim[1], like.dim[2], like.dim[3]);
}

/* `gradient` is (part of) the gradient of `tensor`. */
static void contribute(struct backward *b, int tensor, int gradient) {
    struct cr_program *p = b->p;
    if (!needs(b, tensor) || p->failed) return;
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

/* The op that writes a tensor. */
static int writer_of(const struct cr_program *p, int tensor) {
    for (int i = 0; i < p->ops; i++)
        for (int s = 0; s < cr_op_info(p->op[i].kind)->outs; s++)
            if (p->op[i].out[s] == tensor) return i;
    return CR_NONE;
}

/* The parameter behind a STORE tensor, by its place in the value plane or in its 16-bit copy; CR_NONE when it is not
 * trainable. */
static int trainable_param(const struct cr_program *p, int tensor) {
    const struct cr_tensor *t = &p->tensor[tensor];
    if (t->region != CR_REGION_STORE) return CR_NONE;
    const bool half = p->store->half != CR_F32 && t->offset >= cr_param_store_buffer_offset(p->store, CR_BUFFER_HALF);
    const enum cr_param_buffer which = half ? CR_BUFFER_HALF : CR_BUFFER_VALUE;
    const size_t               plane = cr_param_store_buffer_offset(p->store, which),
                 size                = cr_dtype_bytes(cr_param_store_buffer_dtype(p->store, which));
    for (int i = 0; i < p->store->params; i++) {
        const struct cr_param *q = &p->store->param[i];
        if (!cr_param_is_running(q->role) && !q->frozen && plane + (size_t)q->offset * size == t->offset) return i;
    }
    return CR_NONE;
}

static int gradient_slice(struct backward *b, int value_tensor) {
    return cr_tensor_store(b->p, CR_BUFFER_GRAD, trainable_param(b->p, value_tensor));
}

/* ---- one function an op kind: `op` is a copy of the forward op, dy the gradient of its first output ---- */

static void grad_conv(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_program *p = b->p;
    int                x = op->in[CR_IN_conv_x], w = op->in[CR_IN_conv_w];
    if (trainable_param(p, w) != CR_NONE) {
        struct cr_op wgrad              = cr_op_make(CR_OP_conv_wgrad, op->layer);
        wgrad.in[CR_IN_conv_wgrad_x]    = x;
        wgrad.in[CR_IN_conv_wgrad_dy]   = dy;
        wgrad.out[CR_OUT_conv_wgrad_dw] = gradient_slice(b, w);
        wgrad.attr.conv                 = op->attr.conv;
        wgrad.attr.conv.accumulate      = b->accumulate;
        cr_emit(p, &wgrad, "");
    }
    if (!needs(b, x)) return;
    struct cr_op dgrad              = cr_op_make(CR_OP_conv_dgrad, op->layer);
    dgrad.in[CR_IN_conv_dgrad_dy]   = dy;
    dgrad.in[CR_IN_conv_dgrad_w]    = w;
    dgrad.out[CR_OUT_conv_dgrad_dx] = gradient_new(b, x);
    dgrad.attr.conv                 = op->attr.conv;
    cr_emit(p, &dgrad, "");
    contribute(b, x, dgrad.out[CR_OUT_conv_dgrad_dx]);
}

/* BN with the batch's statistics: its finalize op knows gamma, beta and M. */
static void grad_bn_training(struct backward *b, const struct cr_op *op, const struct cr_op *finalize, int dy) {
    struct cr_program *p = b->p;
    int                x = op->in[CR_IN_bn_apply_x], saved = op->in[CR_IN_bn_apply_mean_rstd];
    int                gamma = finalize->in[CR_IN_bn_finalize_gamma], beta = finalize->in[CR_IN_bn_finalize_beta];
    char               name[256];

    struct cr_op stats                     = cr_op_make(CR_OP_bn_grad_sums, op->layer);
    stats.in[CR_IN_bn_grad_sums_dy]        = dy;
    stats.in[CR_IN_bn_grad_sums_x]         = x;
    stats.in[CR_IN_bn_grad_sums_mean_rstd] = saved;
    snprintf(name, sizeof name, "d.%s.sums", p->tensor[op->out[0]].name);
    int dstats = tensor_of(p, cr_emit(p, &stats, name), 0);
    if (p->failed) return;
    const int sums = writer_of(p, finalize->in[CR_IN_bn_finalize_sums]);
    if (sums != CR_NONE &&
        p->op[sums].kind == CR_OP_all_reduce) { /* the forward sums went over all ranks: so do these */
        struct cr_op all           = cr_op_make(CR_OP_all_reduce, op->layer);
        all.in[CR_IN_all_reduce_x] = dstats;
        all.attr.reduce            = p->op[sums].attr.reduce;
        snprintf(name, sizeof name, "d.%s.sums.all", p->tensor[op->out[0]].name);
        dstats = tensor_of(p, cr_emit(p, &all, name), 0);
    }

    struct cr_op fin                         = cr_op_make(CR_OP_bn_grad_finalize, op->layer);
    fin.in[CR_IN_bn_grad_finalize_grad_sums] = dstats;
    fin.in[CR_IN_bn_grad_finalize_gamma]     = gamma;
    fin.in[CR_IN_bn_grad_finalize_mean_rstd] = saved;
    fin.out[CR_OUT_bn_grad_finalize_dgamma]  = gradient_slice(b, gamma);
    fin.out[CR_OUT_bn_grad_finalize_dbeta]   = gradient_slice(b, beta);
    fin.attr.bn                              = finalize->attr.bn;
    fin.attr.bn.accumulate                   = b->accumulate;
    snprintf(name, sizeof name, "d.%s", p->tensor[op->out[0]].name); /* its third output becomes d.<name>.coef */
    int coef = tensor_of(p, cr_emit(p, &fin, name), CR_OUT_bn_grad_finalize_coef);
    if (p->failed) return;

    struct cr_op apply                 = cr_op_make(CR_OP_bn_grad_apply, op->layer);
    apply.in[CR_IN_bn_grad_apply_dy]   = dy;
    apply.in[CR_IN_bn_grad_apply_x]    = x;
    apply.in[CR_IN_bn_grad_apply_coef] = coef;
    gradient_name(b, x, name);
    contribute(b, x, tensor_of(p, cr_emit(p, &apply, name), 0));
}

static void grad_bn_apply(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_program *p = b->p;
    int                x = op->in[CR_IN_bn_apply_x];
    CR_ASSERT(!op->attr.bn.relu && op->in[CR_IN_bn_apply_add] == CR_NONE); /* grad runs before fuse */
    struct cr_op source = p->op[writer_of(p, op->in[CR_IN_bn_apply_scale_bias])];
    if (source.kind == CR_OP_bn_finalize) {
        grad_bn_training(b, op, &source, dy);
    } else if (needs(b, x)) { /* fixed statistics */
        char         name[256];
        struct cr_op scale                       = cr_op_make(CR_OP_channel_scale, op->layer);
        scale.in[CR_IN_channel_scale_dy]         = dy;
        scale.in[CR_IN_channel_scale_scale_bias] = op->in[CR_IN_bn_apply_scale_bias];
        gradient_name(b, x, name);
        contribute(b, x, tensor_of(p, cr_emit(p, &scale, name), 0));
    }
}

static void grad_relu(struct backward *b, const struct cr_op *op, int dy) {
    char         name[256];
    struct cr_op g           = cr_op_make(CR_OP_relu_grad, op->layer);
    g.in[CR_IN_relu_grad_dy] = dy;
    g.in[CR_IN_relu_grad_y]  = op->out[CR_OUT_relu_y];
    gradient_name(b, op->in[CR_IN_relu_x], name);
    contribute(b, op->in[CR_IN_relu_x], tensor_of(b->p, cr_emit(b->p, &g, name), 0));
}

static void grad_add(struct backward *b, const struct cr_op *op, int dy) {
    contribute(b, op->in[CR_IN_add_a], dy);
    contribute(b, op->in[CR_IN_add_b], dy);
}

/* Ops whose gradient is one op with one input besides dy at most, and an output of the input's shape. */
static void grad_simple(struct backward *b, const struct cr_op *op, struct cr_op *g, int x) {
    if (!needs(b, x)) return;
    g->out[0] = gradient_new(b, x);
    g->attr   = op->attr;
    cr_emit(b->p, g, "");
    contribute(b, x, g->out[0]);
}

static void grad_maxpool(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_op g                 = cr_op_make(CR_OP_maxpool_grad, op->layer);
    g.in[CR_IN_maxpool_grad_dy]    = dy;
    g.in[CR_IN_maxpool_grad_index] = op->out[CR_OUT_maxpool_index];
    grad_simple(b, op, &g, op->in[CR_IN_maxpool_x]);
}

static void grad_avgpool(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_op g              = cr_op_make(CR_OP_avgpool_grad, op->layer);
    g.in[CR_IN_avgpool_grad_dy] = dy;
    grad_simple(b, op, &g, op->in[CR_IN_avgpool_x]);
}

static void grad_avgpool2x2(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_op g                 = cr_op_make(CR_OP_avgpool2x2_grad, op->layer);
    g.in[CR_IN_avgpool2x2_grad_dy] = dy;
    grad_simple(b, op, &g, op->in[CR_IN_avgpool2x2_x]);
}

static void grad_se_scale(struct backward *b, const struct cr_op *op, int dy) {
    const int    x = op->in[CR_IN_se_scale_x], gate = op->in[CR_IN_se_scale_logit];
    struct cr_op g                  = cr_op_make(CR_OP_se_scale_grad, op->layer);
    g.in[CR_IN_se_scale_grad_dy]    = dy;
    g.in[CR_IN_se_scale_grad_x]     = x;
    g.in[CR_IN_se_scale_grad_logit] = gate;
    if (!needs(b, x) && !needs(b, gate)) return;
    g.out[CR_OUT_se_scale_grad_dx]     = gradient_new(b, x);
    g.out[CR_OUT_se_scale_grad_dlogit] = gradient_new(b, gate);
    cr_emit(b->p, &g, "");
    contribute(b, x, g.out[CR_OUT_se_scale_grad_dx]);
    contribute(b, gate, g.out[CR_OUT_se_scale_grad_dlogit]);
}

static void grad_pad_shortcut(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_op g                   = cr_op_make(CR_OP_pad_shortcut_grad, op->layer);
    g.in[CR_IN_pad_shortcut_grad_dy] = dy;
    grad_simple(b, op, &g, op->in[CR_IN_pad_shortcut_x]);
}

static void grad_dense(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_program *p = b->p;
    int                x = op->in[CR_IN_dense_x], w = op->in[CR_IN_dense_w], bias = op->in[CR_IN_dense_b];
    if (trainable_param(p, w) != CR_NONE) {
        struct cr_op wgrad               = cr_op_make(CR_OP_dense_wgrad, op->layer);
        wgrad.in[CR_IN_dense_wgrad_x]    = x;
        wgrad.in[CR_IN_dense_wgrad_dy]   = dy;
        wgrad.out[CR_OUT_dense_wgrad_dw] = gradient_slice(b, w);
        wgrad.attr.dense.accumulate      = b->accumulate;
        cr_emit(p, &wgrad, "");
        struct cr_op bgrad               = cr_op_make(CR_OP_dense_bgrad, op->layer);
        bgrad.in[CR_IN_dense_bgrad_dy]   = dy;
        bgrad.out[CR_OUT_dense_bgrad_db] = gradient_slice(b, bias);
        bgrad.attr.dense.accumulate      = b->accumulate;
        cr_emit(p, &bgrad, "");
    }
    struct cr_op dgrad             = cr_op_make(CR_OP_dense_dgrad, op->layer);
    dgrad.in[CR_IN_dense_dgrad_dy] = dy;
    dgrad.in[CR_IN_dense_dgrad_w]  = w;
    if (!needs(b, x)) return;
    char name[256];
    gradient_name(b, x, name);
    contribute(b, x, tensor_of(p, cr_emit(p, &dgrad, name), 0));
}

static void grad_loss(struct backward *b, const struct cr_op *op, int dy) {
    struct cr_program *p = b->p;
    char               name[256];
    (void)dy; /* the loss is where gradients start */
    if (!needs(b, op->in[CR_IN_loss_logits])) return;
    struct cr_op g               = cr_op_make(CR_OP_loss_grad, op->layer);
    g.in[CR_IN_loss_grad_logits] = op->in[CR_IN_loss_logits];
    g.in[CR_IN_loss_grad_labels] = op->in[CR_IN_loss_labels];
    g.in[CR_IN_loss_grad_state]  = cr_tensor_store(p, CR_BUFFER_STATE, CR_NONE);
    g.in[CR_IN_loss_grad_mixes]  = op->in[CR_IN_loss_mixes];
    g.attr.loss                  = (struct cr_loss_attr){.smoothing = b->smoothing, .weight = b->weight};
    gradient_name(b, op->in[CR_IN_loss_logits], name);
    contribute(b, op->in[CR_IN_loss_logits], tensor_of(p, cr_emit(p, &g, name), 0));
}

/* ---- the walk ---- */

static void emit_gradient(struct backward *b, const struct cr_op *op, int dy) {
    switch (op->kind) {
#define GRAD(name)                                                                                                     \
    case CR_OP_##name:                                                                                                 \
        grad_##name(b, op, dy);                                                                                        \
        break;
#include "graph/ops.def"
    default: break; /* no gradient: statistics, coefficients, input */
    }
}

static void find_needs(struct backward *b) {
    struct cr_program *p = b->p;
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op      *op   = &p->op[i];
        const struct cr_op_info *info = cr_op_info(op->kind);
        bool                     any  = false;
        for (int s = 0; s < info->ins; s++)
            if (op->in[s] >= 0) any |= b->needs[op->in[s]] || trainable_param(p, op->in[s]) != CR_NONE;
        for (int s = 0; s < info->outs; s++)
            if (op->out[s] >= 0 && p->tensor[op->out[s]].region == CR_REGION_POOL) b->needs[op->out[s]] |= any;
    }
}

cr_status cr_pass_grad(struct cr_program *p, int loss_op, bool accumulate, float weight, float smoothing) {
    if (p->failed) return CR_NO_MEMORY(0);
    struct backward b = {
        .p = p, .accumulate = accumulate, .weight = weight, .smoothing = smoothing, .forward_tensors = p->tensors};
    int forward_ops  = p->ops;
    b.needs          = cr_alloc((size_t)p->tensors, sizeof *b.needs);
    b.grad           = cr_alloc((size_t)p->tensors, sizeof *b.grad);
    cr_status status = b.needs && b.grad ? CR_OK : CR_NO_MEMORY((size_t)p->tensors * sizeof *b.grad);
    if (status == CR_OK) {
        for (int t = 0; t < p->tensors; t++) b.grad[t] = CR_NONE;
        find_needs(&b);
        for (int i = forward_ops - 1; i >= 0 && !p->failed; i--) {
            struct cr_op op = p->op[i]; /* a copy: emission may move the array */
            int          dy = op.out[0] >= 0 && op.out[0] < b.forward_tensors ? b.grad[op.out[0]] : CR_NONE;
            if (i == loss_op || dy != CR_NONE) emit_gradient(&b, &op, dy);
        }
        if (p->failed) status = CR_NO_MEMORY(0);
    }
    cr_free(b.needs);
    cr_free(b.grad);
    return status;
}
