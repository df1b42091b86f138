/* compiler/head/head.c: fuses the end of forward and the start of backward (pooling, classifier, loss) into one op.
 *
 *     bn_apply, avgpool, dense, zero, loss, loss_grad, dense_wgrad, dense_bgrad, dense_dgrad, avgpool_grad, relu_grad,
 *     bn_grad_finalize                                                                             become    head
 *
 * For a small network each of these twelve ops takes as long as its launch. The ops follow each other in the order in
 * which the layers and cr_pass_grad emit them. Each one reads only what the ops before it have written, or what no op
 * between them changes. Done where one kernel takes less time than twelve. A program with another loss, with
 * distillation, or with sums over ranks between these ops stays as it is. */
#include "compiler/fusion/fusion.h"
#include "compiler/passes.h"

enum part { APPLY, POOL, DENSE, ZERO, LOSS, LOSS_GRAD, WGRAD, BGRAD, DGRAD, POOL_GRAD, RELU_GRAD, FINALIZE, PARTS };
static const enum cr_op_kind kinds[PARTS] = {CR_OP_bn_apply,     CR_OP_avgpool,     CR_OP_dense,
                                             CR_OP_zero,         CR_OP_loss,        CR_OP_loss_grad,
                                             CR_OP_dense_wgrad,  CR_OP_dense_bgrad, CR_OP_dense_dgrad,
                                             CR_OP_avgpool_grad, CR_OP_relu_grad,   CR_OP_bn_grad_finalize};

/* The parts that end with the op at `last`. */
struct parts {
    int                 at[PARTS];
    const struct cr_op *op[PARTS];
};

static bool find(const struct cr_edit *edit, int last, struct parts *m) {
    if (last < PARTS - 1) return false;
    for (int k = 0; k < PARTS; k++) {
        m->at[k] = last - (PARTS - 1) + k;
        m->op[k] = cr_fuse_op(edit, m->at[k]);
        if (m->op[k]->kind != kinds[k] || m->op[k]->stream != cr_fuse_op(edit, last)->stream) return false;
    }
    return true;
}

#define IN(part, kind, slot) m->op[part]->in[CR_IN_##kind##_##slot]
#define OUT(part, kind, slot) m->op[part]->out[CR_OUT_##kind##_##slot]

static bool is_forward(const struct cr_edit *edit, const struct parts *m) {
    const int z = OUT(APPLY, bn_apply, y), mask = OUT(APPLY, bn_apply, mask), logits = OUT(DENSE, dense, y),
              metrics = OUT(LOSS, loss, metrics);
    if (IN(APPLY, bn_apply, add) == CR_NONE || IN(APPLY, bn_apply, add_scale_bias) != CR_NONE) return false;
    if (!m->op[APPLY]->attr.bn.relu || !cr_edit_is_inner(edit, z, mask == CR_NONE ? 2 : 1)) return false;
    return (mask == CR_NONE || cr_edit_is_inner(edit, mask, 1)) && IN(POOL, avgpool, x) == z &&
           cr_edit_is_inner(edit, OUT(POOL, avgpool, y), 2) && IN(DENSE, dense, x) == OUT(POOL, avgpool, y) &&
           OUT(ZERO, zero, y) == metrics && IN(LOSS, loss, metrics) == metrics && IN(LOSS, loss, logits) == logits &&
           cr_loss_is_plain(m->op[LOSS]) && !m->op[LOSS]->attr.loss.several;
}

/* The loss gradient is that of the loss, and it is not written in the memory of the logits. */
static bool is_loss_grad(const struct parts *m) {
    return IN(LOSS_GRAD, loss_grad, logits) == IN(LOSS, loss, logits) &&
           IN(LOSS_GRAD, loss_grad, labels) == IN(LOSS, loss, labels) &&
           IN(LOSS_GRAD, loss_grad, mixes) == IN(LOSS, loss, mixes) && cr_loss_is_plain(m->op[LOSS_GRAD]) &&
           m->op[LOSS_GRAD]->attr.loss.smoothing == m->op[LOSS]->attr.loss.smoothing;
}

static bool is_backward(const struct cr_edit *edit, const struct parts *m) {
    const int dlogits = OUT(LOSS_GRAD, loss_grad, dx), mask = OUT(APPLY, bn_apply, mask);
    return cr_edit_is_inner(edit, dlogits, 3) && IN(WGRAD, dense_wgrad, x) == IN(DENSE, dense, x) &&
           IN(WGRAD, dense_wgrad, dy) == dlogits && IN(BGRAD, dense_bgrad, dy) == dlogits &&
           IN(DGRAD, dense_dgrad, dy) == dlogits && IN(DGRAD, dense_dgrad, w) == IN(DENSE, dense, w) &&
           cr_edit_is_inner(edit, OUT(DGRAD, dense_dgrad, dx), 1) &&
           IN(POOL_GRAD, avgpool_grad, dy) == OUT(DGRAD, dense_dgrad, dx) &&
           cr_edit_is_inner(edit, OUT(POOL_GRAD, avgpool_grad, dx), 1) &&
           IN(RELU_GRAD, relu_grad, dy) == OUT(POOL_GRAD, avgpool_grad, dx) &&
           IN(RELU_GRAD, relu_grad, y) == (mask == CR_NONE ? OUT(APPLY, bn_apply, y) : mask);
}

static bool is_bn_grad(const struct cr_edit *edit, const struct parts *m) {
    const bool accumulate = m->op[FINALIZE]->attr.bn.accumulate;
    return IN(RELU_GRAD, relu_grad, add) == CR_NONE && IN(RELU_GRAD, relu_grad, bn2_x) == CR_NONE &&
           IN(RELU_GRAD, relu_grad, bn_x) == IN(APPLY, bn_apply, x) &&
           cr_edit_is_inner(edit, OUT(RELU_GRAD, relu_grad, grad_sums), 1) &&
           IN(FINALIZE, bn_grad_finalize, grad_sums) == OUT(RELU_GRAD, relu_grad, grad_sums) &&
           IN(FINALIZE, bn_grad_finalize, mean_rstd) == IN(RELU_GRAD, relu_grad, mean_rstd) &&
           m->op[WGRAD]->attr.dense.accumulate == accumulate && m->op[BGRAD]->attr.dense.accumulate == accumulate;
}

static struct cr_op head_of(const struct parts *m) {
    struct cr_op op              = cr_op_make(CR_OP_head, m->op[LOSS]->layer);
    op.stream                    = m->op[LOSS]->stream;
    op.attr.head.loss            = m->op[LOSS_GRAD]->attr.loss;
    op.attr.head.bn              = m->op[FINALIZE]->attr.bn;
    op.in[CR_IN_head_x]          = IN(APPLY, bn_apply, x);
    op.in[CR_IN_head_scale_bias] = IN(APPLY, bn_apply, scale_bias);
    op.in[CR_IN_head_mean_rstd]  = IN(RELU_GRAD, relu_grad, mean_rstd);
    op.in[CR_IN_head_add]        = IN(APPLY, bn_apply, add);
    op.in[CR_IN_head_w]          = IN(DENSE, dense, w);
    op.in[CR_IN_head_b]          = IN(DENSE, dense, b);
    op.in[CR_IN_head_labels]     = IN(LOSS, loss, labels);
    op.in[CR_IN_head_state]      = IN(LOSS_GRAD, loss_grad, state);
    op.in[CR_IN_head_gamma]      = IN(FINALIZE, bn_grad_finalize, gamma);
    op.in[CR_IN_head_mixes]      = IN(LOSS, loss, mixes);
    op.out[CR_OUT_head_dx]       = OUT(RELU_GRAD, relu_grad, dx);
    op.out[CR_OUT_head_logits]   = OUT(DENSE, dense, y);
    op.out[CR_OUT_head_metrics]  = OUT(LOSS, loss, metrics);
    op.out[CR_OUT_head_dw]       = OUT(WGRAD, dense_wgrad, dw);
    op.out[CR_OUT_head_db]       = OUT(BGRAD, dense_bgrad, db);
    op.out[CR_OUT_head_dgamma]   = OUT(FINALIZE, bn_grad_finalize, dgamma);
    op.out[CR_OUT_head_dbeta]    = OUT(FINALIZE, bn_grad_finalize, dbeta);
    op.out[CR_OUT_head_coeffs]   = OUT(FINALIZE, bn_grad_finalize, coeffs);
    return op;
}

static bool join(struct cr_edit *edit, int last) {
    struct parts m;
    if (!find(edit, last, &m) || !is_forward(edit, &m) || !is_loss_grad(&m) || !is_backward(edit, &m) ||
        !is_bn_grad(edit, &m))
        return false;
    const struct cr_op op = head_of(&m);
    return cr_fuse_parts(edit, &op, m.at, PARTS, last);
}

cr_status cr_pass_head(struct cr_program *program, const struct cr_cost_model *cost_model) {
    return cr_fuse_pass(program, cost_model, &(const struct cr_pattern){CR_OP_bn_grad_finalize, join}, 1);
}
