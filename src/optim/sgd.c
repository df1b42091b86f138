/* sgd.c: stochastic gradient descent with momentum (PyTorch's form: the rate multiplies the whole step), as two ops over
 * whole planes: one looks at all gradients (norm, non-finite values), one updates all parameters. */
#include "optim/optim.h"

void cr_optim_prepare(struct cr_store *store, const struct cr_config *config) {
    store->has_momentum = true;
    store->has_mask     = cr_config_prunes(config);
    for (int i = 0; i < store->params; i++) {
        struct cr_param *q = &store->param[i];
        bool weight        = q->role == CR_ROLE_CONV || q->role == CR_ROLE_DENSE_WEIGHT;
        q->decay           = !cr_store_is_running(q->role) && (weight || config->optim.decay_norm_bias);
    }
}

void cr_optim_emit(struct cr_program *p, const struct cr_config *config, int micro_batches) {
    int layer = cr_program_layer(p, "update");
    if (p->failed) return;
    int value = cr_tensor_store(p, CR_PLANE_VALUE, CR_NONE), grad = cr_tensor_store(p, CR_PLANE_GRAD, CR_NONE);
    int momentum = cr_tensor_store(p, CR_PLANE_MOMENTUM, CR_NONE), state = cr_tensor_store(p, CR_PLANE_STATE, CR_NONE);

    struct cr_op check                  = cr_op_make(CR_OP_grad_check, layer);
    check.in[CR_IN_grad_check_grad]     = grad;
    check.in[CR_IN_grad_check_metrics]  = p->metrics;
    check.in[CR_IN_grad_check_state]    = state;
    int checked = cr_emit(p, &check, "grad_norm");
    if (p->failed) return;
    int norm             = p->op[checked].out[CR_OUT_grad_check_norm];
    p->tensor[norm].keep = true; /* the log shows it */

    struct cr_op op                = cr_op_make(CR_OP_sgd, layer);
    op.in[CR_IN_sgd_value]         = value;
    op.in[CR_IN_sgd_grad]          = grad;
    op.in[CR_IN_sgd_momentum]      = momentum;
    op.in[CR_IN_sgd_norm]          = norm;
    op.in[CR_IN_sgd_state]         = state;
    if (p->store->has_mask) op.in[CR_IN_sgd_mask] = cr_tensor_store(p, CR_PLANE_MASK, CR_NONE);
    op.out[CR_OUT_sgd_value]       = value;
    op.out[CR_OUT_sgd_momentum]    = momentum;
    op.out[CR_OUT_sgd_state]       = state;
    op.attr.sgd                    = (struct cr_sgd_attr){.nesterov = config->optim.nesterov, .micro_batches = micro_batches,
                                                          .moving_scale = p->real == CR_F16 && config->train.loss_scale == 0};
    cr_emit(p, &op, "update");
}
