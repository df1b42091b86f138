/* tests/checkops/checkops_unit_train.c: makes the operands and attributes of losses, of updates and of what updates
 * need: norms and averages of parameters. */
#include "tests/checkops/checkops.h"

#define in(...) checkops_build_in(__VA_ARGS__)
#define out(...) checkops_build_out(__VA_ARGS__)

void checkops_build_loss(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    const bool one_label = (c->flags & CHECKOPS_TWO) != 0, several = (c->flags & CHECKOPS_SEVERAL) != 0;
    b->op.attr.loss = (struct cr_loss_attr){.smoothing = c->flags & CHECKOPS_SMOOTH ? 0.1f : 0,
                                            .weight    = 0.5f,
                                            .gamma     = c->flags & CHECKOPS_FOCAL ? 1.5f : 0,
                                            .threshold = one_label && c->flags & CHECKOPS_MIXES ? 0.2f : 0,
                                            .sigmoid   = one_label || several,
                                            .several   = several};
    in(b, 0, b->real, c->N, 1, 1, c->K);
    in(b, 1, CR_I32, c->N, 1, 1, c->flags & CHECKOPS_SEVERAL ? cr_label_words(c->K) : 1);
    if (c->flags & CHECKOPS_WEIGHTS) in(b, CR_IN_loss_class_weights, CR_F32, 1, 1, 1, c->K);
    if (c->flags & CHECKOPS_MIXES) in(b, 3, CR_I32, c->N, 1, 1, CR_MIX_NUMBERS);
    if (c->kind == CR_OP_loss_grad) {
        in(b, CR_IN_loss_grad_state, CR_F64, 1, 1, 1, CR_STATE_COUNT);
        return;
    }
    in(b, CR_IN_loss_metrics, b->wide, 1, 1, 1, 4);
    b->op.out[CR_OUT_loss_metrics] = b->op.in[CR_IN_loss_metrics];
}

void checkops_build_distill(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.distill = (struct cr_distill_attr){.weight = 0.5f, .temperature = c->flags & CHECKOPS_SMOOTH ? 4 : 1};
    in(b, CR_IN_distill_logits, b->real, c->N, 1, 1, c->K);
    in(b, CR_IN_distill_labels, CR_I32, c->N, 1, 1, 1);
    in(b, CR_IN_distill_teacher, b->real, c->N, 1, 1, c->K);
    if (c->kind == CR_OP_distill_grad) {
        in(b, CR_IN_distill_grad_state, CR_F64, 1, 1, 1, CR_STATE_COUNT);
        in(b, CR_IN_distill_grad_dy, b->real, c->N, 1, 1, c->K);
        out(b, CR_OUT_distill_grad_dx, b->real, c->N, 1, 1, c->K);
        return;
    }
    in(b, CR_IN_distill_metrics, b->wide, 1, 1, 1, 4);
    b->op.out[CR_OUT_distill_metrics] = b->op.in[CR_IN_distill_metrics];
}

void checkops_build_update(struct checkops_build *b) {
    struct cr_program *p = b->p;
    const int grad = cr_tensor_store(p, CR_BUFFER_GRAD, CR_NONE), state = cr_tensor_store(p, CR_BUFFER_STATE, CR_NONE);
    if (b->c->kind == CR_OP_grad_norm) {
        b->op.in[CR_IN_grad_norm_grad] = grad;
        in(b, CR_IN_grad_norm_metrics, b->wide, 1, 1, 1, 4);
        b->op.in[CR_IN_grad_norm_state] = state;
        return;
    }
    if (b->c->kind == CR_OP_param_norms) {
        b->op.in[CR_IN_param_norms_value] = cr_tensor_store(p, CR_BUFFER_VALUE, CR_NONE);
        b->op.in[CR_IN_param_norms_grad]  = grad;
        b->op.in[CR_IN_param_norms_state] = state;
        return;
    }
    b->op.attr.sgd = (struct cr_sgd_attr){.nesterov      = (b->c->flags & CHECKOPS_NESTEROV) != 0,
                                          .micro_batches = 3,
                                          .beta2         = 0.99,
                                          .eps           = 1e-8,
                                          .trust         = 0.02};
    if (b->c->kind == CR_OP_muon_direction) {
        b->op.in[CR_IN_muon_direction_grad]     = grad;
        b->op.in[CR_IN_muon_direction_momentum] = cr_tensor_store(p, CR_BUFFER_MOMENTUM, CR_NONE);
        b->op.in[CR_IN_muon_direction_state]    = state;
        if (b->c->flags & CHECKOPS_BITS)
            b->op.in[CR_IN_muon_direction_mask] = cr_tensor_store(p, CR_BUFFER_MASK, CR_NONE);
        in(b, CR_IN_muon_direction_norm, b->wide, 1, 1, 1, 2);
        return;
    }
    b->op.in[CR_IN_sgd_value]    = cr_tensor_store(p, CR_BUFFER_VALUE, CR_NONE);
    b->op.in[CR_IN_sgd_grad]     = grad;
    b->op.in[CR_IN_sgd_momentum] = cr_tensor_store(p, CR_BUFFER_MOMENTUM, CR_NONE);
    b->op.in[CR_IN_sgd_state]    = state;
    if (b->c->flags & CHECKOPS_BITS) b->op.in[CR_IN_sgd_mask] = cr_tensor_store(p, CR_BUFFER_MASK, CR_NONE);
    in(b, CR_IN_sgd_norm, b->wide, 1, 1, 1, 2);
    if (b->c->kind == CR_OP_lamb_norms) {
        b->op.in[CR_IN_lamb_norms_second] = cr_tensor_store(p, CR_BUFFER_SECOND, CR_NONE);
        return;
    }
    b->op.out[CR_OUT_sgd_value]    = b->op.in[CR_IN_sgd_value];
    b->op.out[CR_OUT_sgd_momentum] = b->op.in[CR_IN_sgd_momentum];
    b->op.out[CR_OUT_sgd_state]    = state;
    if (b->c->kind == CR_OP_adamw || b->c->kind == CR_OP_lamb || b->c->kind == CR_OP_muon)
        b->op.in[CR_IN_adamw_second] = b->op.out[CR_OUT_adamw_second] = cr_tensor_store(p, CR_BUFFER_SECOND, CR_NONE);
    if (b->c->kind == CR_OP_lamb) in(b, CR_IN_lamb_norms, b->wide, p->store->params, 1, 1, 2);
    if (b->c->kind == CR_OP_muon) in(b, CR_IN_muon_direction, b->wide, 1, 1, 1, p->store->value_elems);
    if (b->c->kind == CR_OP_lars) in(b, CR_IN_lars_norms, b->wide, p->store->params, 1, 1, 2);
}

void checkops_build_ema(struct checkops_build *b) {
    struct cr_program *p        = b->p;
    b->op.attr.ema              = (struct cr_ema_attr){.decay = 0.97, .warmup = (b->c->flags & CHECKOPS_SMOOTH) != 0};
    b->op.in[CR_IN_ema_value]   = cr_tensor_store(p, CR_BUFFER_VALUE, CR_NONE);
    b->op.in[CR_IN_ema_running] = cr_tensor_store(p, CR_BUFFER_RUNNING, CR_NONE);
    b->op.in[CR_IN_ema_state]   = cr_tensor_store(p, CR_BUFFER_STATE, CR_NONE);
    if (b->c->flags & CHECKOPS_BITS) b->op.in[CR_IN_ema_mask] = cr_tensor_store(p, CR_BUFFER_MASK, CR_NONE);
    in(b, CR_IN_ema_norm, b->wide, 1, 1, 1, 2);
    b->op.in[CR_IN_ema_averages] = b->op.out[CR_OUT_ema_averages] = cr_tensor_store(p, CR_BUFFER_EMA, CR_NONE);
    b->op.in[CR_IN_ema_running_averages]                          = b->op.out[CR_OUT_ema_running_averages] =
        cr_tensor_store(p, CR_BUFFER_EMA_RUNNING, CR_NONE);
}
