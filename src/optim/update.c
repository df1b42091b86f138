/* optim/update.c: appends an optimizer's update ops (weight decay, layer-wise learning rates), on whole buffers.
 *
 * One op computes the gradient norm and detects non-finite values, one op updates all parameters by the rule of [optim]
 * kind, and with [ema] one op updates the moving averages.
 *   sgd    with momentum, as in PyTorch: the learning rate multiplies the whole step
 *   adamw  Loshchilov and Hutter 2019, as in PyTorch: decoupled weight decay, multiplied by the learning rate
 *   lars   You et al. 2017: the step of each filter and dense weight is proportional to the norm of the weight
 *   lamb   You et al. 2020, as in timm: AdamW's direction, scaled to the norm of the weight
 *   muon   Jordan et al. 2024, as in PyTorch: filters move along the orthogonalised momentum, all else as adamw */
#include "config/config.h"
#include "optim/optim.h"

#include <math.h>
#include <string.h>

/* All update rules have the slots of sgd at the same positions, so that emit_update can fill them alike. */
#define SAME_SLOT(rule, slot) ((int)CR_IN_##rule##_##slot == (int)CR_IN_sgd_##slot)
#define SAME_SLOTS(rule)                                                                                               \
    _Static_assert(SAME_SLOT(rule, value) && SAME_SLOT(rule, grad) && SAME_SLOT(rule, momentum) &&                     \
                       SAME_SLOT(rule, norm) && SAME_SLOT(rule, state) && SAME_SLOT(rule, mask) &&                     \
                       (int)CR_OUT_##rule##_value == (int)CR_OUT_sgd_value &&                                          \
                       (int)CR_OUT_##rule##_momentum == (int)CR_OUT_sgd_momentum &&                                    \
                       (int)CR_OUT_##rule##_state == (int)CR_OUT_sgd_state,                                            \
                   "update rules must have the slots of sgd at the same positions")
SAME_SLOTS(adamw);
SAME_SLOTS(lars);
SAME_SLOTS(lamb);
SAME_SLOTS(muon);
_Static_assert((int)CR_IN_muon_second == (int)CR_IN_adamw_second && (int)CR_OUT_muon_second == (int)CR_OUT_adamw_second,
               "muon must have the slots of adamw at the same positions");
_Static_assert((int)CR_IN_lamb_second == (int)CR_IN_adamw_second &&
                   (int)CR_OUT_lamb_second == (int)CR_OUT_adamw_second &&
                   (int)CR_IN_lamb_norms_second == (int)CR_IN_lamb_second &&
                   (int)CR_IN_lamb_norms_mask == (int)CR_IN_lamb_mask &&
                   (int)CR_IN_lamb_norms_state == (int)CR_IN_lamb_state,
               "lamb and lamb_norms must have the slots of adamw at the same positions");

/* Length of the prefix "layer2.0" of a parameter's name; 0 outside of the residual blocks. */
static size_t block_prefix(const char *name) {
    if (strncmp(name, "layer", 5) != 0) return 0;
    const char *dot = strchr(name, '.'), *second = dot ? strchr(dot + 1, '.') : NULL;
    return second ? (size_t)(second - name) : 0;
}

/* Returns whether parameter i is the first one of a residual block: blocks follow each other in the table. */
static bool begins_block(const struct cr_param_store *store, int i) {
    const size_t length = block_prefix(store->param[i].name);
    if (!length) return false;
    return i == 0 || block_prefix(store->param[i - 1].name) != length ||
           memcmp(store->param[i].name, store->param[i - 1].name, length) != 0;
}

/* As in timm: the stem is layer 0, then each residual block is a layer, and the classifier is the last one. */
static void set_lr_scales(struct cr_param_store *store, const struct cr_config *config) {
    int blocks = 0, at = 0;
    for (int i = 0; i < store->params; i++) blocks += begins_block(store, i);
    for (int i = 0; i < store->params; i++) {
        struct cr_param *q = &store->param[i];
        at += begins_block(store, i);
        q->lr_scale = q->classifier ? 1 : pow(config->optim.layer_decay, blocks + 1 - at);
        if (q->classifier && config->optim.head_lr > 0) q->lr_scale = config->optim.head_lr / config->optim.lr;
        if (q->role == CR_ROLE_BETA) q->lr_scale *= config->optim.bn_bias_factor;
    }
}

void cr_optim_prepare(struct cr_param_store *store, const struct cr_config *config) {
    store->has_momentum = true;
    store->has_second   = config->optim.kind == CR_OPTIM_ADAMW || config->optim.kind == CR_OPTIM_LAMB ||
                        config->optim.kind == CR_OPTIM_MUON;
    store->has_ema  = config->ema.decay > 0 || config->ema.swa_start > 0;
    store->has_mask = cr_config_prunes(config);
    for (int i = 0; i < store->params; i++) {
        struct cr_param *q = &store->param[i];
        bool weight = q->role == CR_ROLE_CONV || q->role == CR_ROLE_CHANNEL_CONV || q->role == CR_ROLE_DENSE_WEIGHT;
        q->decay    = !cr_param_is_running(q->role) && (weight || config->optim.decay_norm_bias);
    }
    set_lr_scales(store, config);
}

static int buffer_tensor(struct cr_program *p, enum cr_param_buffer which) {
    return cr_tensor_store(p, which, CR_NONE);
}

/* Sets p->grad_norm: the norm and the non-finite flag. */
static void emit_grad_norm(struct cr_program *p, int layer) {
    buffer_tensor(p, CR_BUFFER_VALUE); /* creates the tensors in the same order for every rule */
    struct cr_op check             = cr_op_make(CR_OP_grad_norm, layer);
    check.in[CR_IN_grad_norm_grad] = buffer_tensor(p, CR_BUFFER_GRAD);
    buffer_tensor(p, CR_BUFFER_MOMENTUM);
    check.in[CR_IN_grad_norm_metrics] = p->metrics;
    check.in[CR_IN_grad_norm_state]   = buffer_tensor(p, CR_BUFFER_STATE);
    int checked                       = cr_emit(p, &check, "grad_norm");
    if (p->failed) return;
    p->grad_norm                 = p->op[checked].out[CR_OUT_grad_norm_norm];
    p->tensor[p->grad_norm].keep = true; /* the host reads it for the log */
}

static int emit_param_norms(struct cr_program *p, int layer) {
    struct cr_op op                = cr_op_make(CR_OP_param_norms, layer);
    op.in[CR_IN_param_norms_value] = buffer_tensor(p, CR_BUFFER_VALUE);
    op.in[CR_IN_param_norms_grad]  = buffer_tensor(p, CR_BUFFER_GRAD);
    op.in[CR_IN_param_norms_state] = buffer_tensor(p, CR_BUFFER_STATE);
    int index                      = cr_emit(p, &op, "param_norms");
    return p->failed ? 0 : p->op[index].out[CR_OUT_param_norms_norms];
}

/* Has the inputs and attributes of the update `of`, whose norms it computes. */
static int emit_lamb_norms(struct cr_program *p, int layer, const struct cr_op *of) {
    struct cr_op op = cr_op_make(CR_OP_lamb_norms, layer);
    memcpy(op.in, of->in, CR_INS_lamb_norms * sizeof *op.in);
    op.attr.sgd = of->attr.sgd;
    int index   = cr_emit(p, &op, "lamb_norms");
    return p->failed ? 0 : p->op[index].out[CR_OUT_lamb_norms_norms];
}

/* Has the inputs and attributes of the update `of`, for whose filters it computes the directions. */
static int emit_muon_direction(struct cr_program *p, int layer, const struct cr_op *of) {
    struct cr_op op                      = cr_op_make(CR_OP_muon_direction, layer);
    op.in[CR_IN_muon_direction_grad]     = of->in[CR_IN_muon_grad];
    op.in[CR_IN_muon_direction_momentum] = of->in[CR_IN_muon_momentum];
    op.in[CR_IN_muon_direction_norm]     = of->in[CR_IN_muon_norm];
    op.in[CR_IN_muon_direction_state]    = of->in[CR_IN_muon_state];
    op.in[CR_IN_muon_direction_mask]     = of->in[CR_IN_muon_mask];
    op.attr.sgd                          = of->attr.sgd;
    int index                            = cr_emit(p, &op, "muon_direction");
    return p->failed ? 0 : p->op[index].out[CR_OUT_muon_direction_y];
}

static void emit_update(struct cr_program *p, const struct cr_config *config, int layer, int micro_batches) {
    static const enum cr_op_kind rule[] = {[CR_OPTIM_SGD]   = CR_OP_sgd,
                                           [CR_OPTIM_ADAMW] = CR_OP_adamw,
                                           [CR_OPTIM_LARS]  = CR_OP_lars,
                                           [CR_OPTIM_LAMB]  = CR_OP_lamb,
                                           [CR_OPTIM_MUON]  = CR_OP_muon};
    struct cr_op                 op     = cr_op_make(rule[config->optim.kind], layer);
    op.in[CR_IN_sgd_value] = op.out[CR_OUT_sgd_value] = buffer_tensor(p, CR_BUFFER_VALUE);
    op.in[CR_IN_sgd_grad]                             = buffer_tensor(p, CR_BUFFER_GRAD);
    op.in[CR_IN_sgd_momentum] = op.out[CR_OUT_sgd_momentum] = buffer_tensor(p, CR_BUFFER_MOMENTUM);
    op.in[CR_IN_sgd_norm]                                   = p->grad_norm;
    op.in[CR_IN_sgd_state] = op.out[CR_OUT_sgd_state] = buffer_tensor(p, CR_BUFFER_STATE);
    if (p->store->has_mask) op.in[CR_IN_sgd_mask] = buffer_tensor(p, CR_BUFFER_MASK);
    if (p->store->has_second)
        op.in[CR_IN_adamw_second] = op.out[CR_OUT_adamw_second] = buffer_tensor(p, CR_BUFFER_SECOND);
    if (op.kind == CR_OP_lars) op.in[CR_IN_lars_norms] = emit_param_norms(p, layer);
    op.attr.sgd = (struct cr_sgd_attr){.nesterov      = config->optim.nesterov,
                                       .micro_batches = micro_batches,
                                       .moving_scale  = p->real == CR_F16 && config->train.loss_scale == 0,
                                       .eps           = config->optim.eps,
                                       .beta2         = config->optim.beta2,
                                       .trust         = config->optim.trust};
    if (op.kind == CR_OP_lamb && !p->failed) op.in[CR_IN_lamb_norms] = emit_lamb_norms(p, layer, &op);
    if (op.kind == CR_OP_muon && !p->failed) op.in[CR_IN_muon_direction] = emit_muon_direction(p, layer, &op);
    if (!p->failed) cr_emit(p, &op, "update");
}

static void emit_ema(struct cr_program *p, const struct cr_config *config, int layer) {
    struct cr_op op           = cr_op_make(CR_OP_ema, layer);
    op.in[CR_IN_ema_value]    = buffer_tensor(p, CR_BUFFER_VALUE);
    op.in[CR_IN_ema_running]  = buffer_tensor(p, CR_BUFFER_RUNNING);
    op.in[CR_IN_ema_norm]     = p->grad_norm;
    op.in[CR_IN_ema_state]    = buffer_tensor(p, CR_BUFFER_STATE);
    op.in[CR_IN_ema_averages] = op.out[CR_OUT_ema_averages] = buffer_tensor(p, CR_BUFFER_EMA);
    op.in[CR_IN_ema_running_averages] = op.out[CR_OUT_ema_running_averages] = buffer_tensor(p, CR_BUFFER_EMA_RUNNING);
    if (p->store->has_mask) op.in[CR_IN_ema_mask] = buffer_tensor(p, CR_BUFFER_MASK);
    op.attr.ema = (struct cr_ema_attr){.decay = config->ema.decay, .warmup = config->ema.warmup};
    if (!p->failed) cr_emit(p, &op, "ema");
}

void cr_optim_emit(struct cr_program *p, const struct cr_config *config, int micro_batches) {
    int layer = cr_program_layer(p, "update");
    if (p->failed) return;
    emit_grad_norm(p, layer);
    if (p->failed) return;
    emit_update(p, config, layer, micro_batches);
    if (config->ema.decay > 0 && !p->failed) emit_ema(p, config, layer);
}
