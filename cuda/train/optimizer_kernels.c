/* cuda/train/optimizer_kernels.c: kernel table for the optimizers (SGD, AdamW, LARS, LAMB, Muon), the norms that LARS
 * and LAMB need, and moving averages (EMA). All of them process whole parameter buffers in place. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/train/muon.h"
#include "cuda/train/update_tables.h"

/* ---- buffers ---- */

static bool is_buffer(const struct cr_program *p, int tensor, enum cr_param_buffer buffer, int64_t elems) {
    const struct cr_tensor *t = &p->tensor[tensor];
    return t->buffer == (int)buffer && cr_tensor_elems(t) == elems;
}

bool cr_cuda_is_values(const struct cr_program *p, int tensor, enum cr_param_buffer buffer) {
    return is_buffer(p, tensor, buffer, p->store->value_elems) && p->store->value_elems % CK_SGD_BLOCK == 0;
}

/* The direction of muon has the shape of a whole buffer. */
static bool is_direction(const struct cr_program *p, int tensor) {
    return cr_tensor_elems(&p->tensor[tensor]) == p->store->value_elems;
}

bool cr_cuda_is_mask(const struct cr_program *p, int tensor) {
    return tensor == CR_NONE || cr_tensor_elems(&p->tensor[tensor]) == p->store->value_elems / 8;
}

/* ---- sgd, adamw, muon, lars, lamb: the slots are the same ---- */

static bool update_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    if (!p->store || !cr_cuda_is_values(p, op->in[CR_IN_sgd_value], CR_BUFFER_VALUE) ||
        !cr_cuda_is_values(p, op->in[CR_IN_sgd_grad], CR_BUFFER_GRAD) ||
        !cr_cuda_is_values(p, op->in[CR_IN_sgd_momentum], CR_BUFFER_MOMENTUM) ||
        !cr_cuda_is_mask(p, op->in[CR_IN_sgd_mask]))
        return false;
    if ((op->kind == CR_OP_adamw || op->kind == CR_OP_lamb || op->kind == CR_OP_muon) &&
        (!cr_cuda_is_values(p, op->in[CR_IN_adamw_second], CR_BUFFER_SECOND) ||
         op->out[CR_OUT_adamw_second] != op->in[CR_IN_adamw_second]))
        return false;
    if (op->kind == CR_OP_muon && !is_direction(p, op->in[CR_IN_muon_direction])) return false;
    return op->out[CR_OUT_sgd_value] == op->in[CR_IN_sgd_value] &&
           op->out[CR_OUT_sgd_momentum] == op->in[CR_IN_sgd_momentum] &&
           op->out[CR_OUT_sgd_state] == op->in[CR_IN_sgd_state];
}

static struct ck_sgd sgd_args(struct cr_device *device, const struct cr_call *call) {
    const struct update_tables *tables = call->prepared;
    const struct cr_sgd_attr   *attr   = &call->op->attr.sgd;
    return (struct ck_sgd){.value         = call->out[CR_OUT_sgd_value],
                           .momentum      = call->out[CR_OUT_sgd_momentum],
                           .grad          = call->in[CR_IN_sgd_grad],
                           .norm          = call->in[CR_IN_sgd_norm],
                           .state         = call->out[CR_OUT_sgd_state],
                           .map           = tables->map,
                           .mask          = call->in[CR_IN_sgd_mask],
                           .scale         = tables->scale,
                           .step          = cuda_of(device)->step,
                           .elems         = call->program->store->value_elems,
                           .micro_batches = attr->micro_batches,
                           .nesterov      = attr->nesterov,
                           .moving_scale  = attr->moving_scale};
}

static cr_status sgd_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_sgd args = sgd_args(device, call);
    return CUDA_STATUS(ck_sgd(&args, cr_cuda_stream(device, call)));
}

static cr_status adamw_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_sgd_attr *attr = &call->op->attr.sgd;
    const struct ck_rule      args = {.sgd    = sgd_args(device, call),
                                      .second = call->out[CR_OUT_adamw_second],
                                      .beta2  = attr->beta2,
                                      .eps    = attr->eps};
    return CUDA_STATUS(ck_adamw(&args, cr_cuda_stream(device, call)));
}

static cr_status muon_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_sgd_attr   *attr   = &call->op->attr.sgd;
    const struct update_tables *tables = call->prepared;
    const struct ck_muon        args   = {.rule      = {.sgd    = sgd_args(device, call),
                                                        .second = call->out[CR_OUT_muon_second],
                                                        .beta2  = attr->beta2,
                                                        .eps    = attr->eps},
                                          .direction = call->in[CR_IN_muon_direction],
                                          .factor    = tables->factor};
    return CUDA_STATUS(ck_muon(&args, cr_cuda_stream(device, call)));
}

static cr_status lars_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_sgd_attr   *attr   = &call->op->attr.sgd;
    const struct update_tables *tables = call->prepared;
    const struct ck_rule        args   = {.sgd   = sgd_args(device, call),
                                          .norms = call->in[CR_IN_lars_norms],
                                          .owner = tables->owner,
                                          .eps   = attr->eps,
                                          .trust = attr->trust};
    return CUDA_STATUS(ck_lars(&args, cr_cuda_stream(device, call)));
}

static cr_status lamb_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_sgd_attr   *attr   = &call->op->attr.sgd;
    const struct update_tables *tables = call->prepared;
    const struct ck_rule        args   = {.sgd    = sgd_args(device, call),
                                          .second = call->out[CR_OUT_lamb_second],
                                          .norms  = call->in[CR_IN_lamb_norms],
                                          .owner  = tables->owner,
                                          .beta2  = attr->beta2,
                                          .eps    = attr->eps};
    return CUDA_STATUS(ck_lamb(&args, cr_cuda_stream(device, call)));
}

/* ---- lamb_norms ---- */

static bool lamb_norms_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->store && cr_cuda_is_values(p, op->in[CR_IN_lamb_norms_value], CR_BUFFER_VALUE) &&
           cr_cuda_is_values(p, op->in[CR_IN_lamb_norms_grad], CR_BUFFER_GRAD) &&
           cr_cuda_is_values(p, op->in[CR_IN_lamb_norms_momentum], CR_BUFFER_MOMENTUM) &&
           cr_cuda_is_values(p, op->in[CR_IN_lamb_norms_second], CR_BUFFER_SECOND) &&
           cr_cuda_is_mask(p, op->in[CR_IN_lamb_norms_mask]);
}

/* The launcher's arguments are those of the update, but it writes none of the buffers. */
static cr_status lamb_norms_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_sgd_attr   *attr   = &call->op->attr.sgd;
    const struct update_tables *tables = call->prepared;
    struct ck_lamb_norms        args   = {.tile       = tables->tile,
                                          .first_tile = tables->first_tile,
                                          .norms      = call->out[CR_OUT_lamb_norms_norms],
                                          .tiles      = tables->tiles,
                                          .params     = call->program->store->params};
    args.rule.sgd.value                = (float *)(uintptr_t)call->in[CR_IN_lamb_norms_value];
    args.rule.sgd.momentum             = (float *)(uintptr_t)call->in[CR_IN_lamb_norms_momentum];
    args.rule.sgd.state                = (double *)(uintptr_t)call->in[CR_IN_lamb_norms_state];
    args.rule.second                   = (float *)(uintptr_t)call->in[CR_IN_lamb_norms_second];
    args.rule.sgd.grad                 = call->in[CR_IN_lamb_norms_grad];
    args.rule.sgd.norm                 = call->in[CR_IN_lamb_norms_norm];
    args.rule.sgd.mask                 = call->in[CR_IN_lamb_norms_mask];
    args.rule.sgd.map                  = tables->map;
    args.rule.sgd.step                 = cuda_of(device)->step;
    args.rule.beta2                    = attr->beta2;
    args.rule.eps                      = attr->eps;
    return CUDA_STATUS(ck_lamb_norms(&args, call->workspace, cr_cuda_stream(device, call)));
}

/* ---- param_norms ---- */

static bool param_norms_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->store && cr_cuda_is_values(p, op->in[CR_IN_param_norms_value], CR_BUFFER_VALUE) &&
           cr_cuda_is_values(p, op->in[CR_IN_param_norms_grad], CR_BUFFER_GRAD);
}

static cr_status param_norms_launch(struct cr_device *device, const struct cr_call *call) {
    const struct update_tables *tables = call->prepared;
    const struct ck_param_norms args   = {.value      = call->in[CR_IN_param_norms_value],
                                          .grad       = call->in[CR_IN_param_norms_grad],
                                          .state      = call->in[CR_IN_param_norms_state],
                                          .tile       = tables->tile,
                                          .first_tile = tables->first_tile,
                                          .norms      = call->out[CR_OUT_param_norms_norms],
                                          .tiles      = tables->tiles,
                                          .params     = call->program->store->params};
    return CUDA_STATUS(ck_param_norms(&args, call->workspace, cr_cuda_stream(device, call)));
}

/* ---- ema ---- */

static bool ema_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    if (!p->store) return false;
    const int64_t running = p->store->running_elems;
    return cr_cuda_is_values(p, op->in[CR_IN_ema_value], CR_BUFFER_VALUE) &&
           cr_cuda_is_values(p, op->in[CR_IN_ema_averages], CR_BUFFER_EMA) &&
           is_buffer(p, op->in[CR_IN_ema_running], CR_BUFFER_RUNNING, running) && running % CK_SGD_BLOCK == 0 &&
           is_buffer(p, op->in[CR_IN_ema_running_averages], CR_BUFFER_EMA_RUNNING, running) &&
           cr_cuda_is_mask(p, op->in[CR_IN_ema_mask]) && op->out[CR_OUT_ema_averages] == op->in[CR_IN_ema_averages] &&
           op->out[CR_OUT_ema_running_averages] == op->in[CR_IN_ema_running_averages];
}

static cr_status ema_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_ema args = {.value            = call->in[CR_IN_ema_value],
                                .running          = call->in[CR_IN_ema_running],
                                .norm             = call->in[CR_IN_ema_norm],
                                .state            = call->in[CR_IN_ema_state],
                                .averages         = call->out[CR_OUT_ema_averages],
                                .running_averages = call->out[CR_OUT_ema_running_averages],
                                .mask             = call->in[CR_IN_ema_mask],
                                .elems            = call->program->store->value_elems,
                                .running_elems    = call->program->store->running_elems,
                                .decay            = call->op->attr.ema.decay,
                                .warmup           = call->op->attr.ema.warmup};
    return CUDA_STATUS(ck_ema(&args, cr_cuda_stream(device, call)));
}

/* ---- the table ---- */

#define KERNEL(kind, ...)                                                                                              \
    { CR_KERNEL("cuda." #kind, kind, CR_MATH_F32), .dtypes = CR_TYPES_F32, .launch = kind##_launch, __VA_ARGS__ }
#define WITH_TABLES(kind, accept, ...)                                                                                 \
    KERNEL(kind, .accepts = accept, .prepare = cr_cuda_update_prepare, .release = cr_cuda_update_release, __VA_ARGS__)
#define RULE(kind) WITH_TABLES(kind, update_accepts, .optional_in = CR_IN_BIT(kind, mask))
const struct cr_kernel cr_cuda_optimizer_kernels[] = {
    RULE(sgd),
    RULE(adamw),
    RULE(muon),
    RULE(lars),
    RULE(lamb),
    WITH_TABLES(param_norms, param_norms_accepts),
    WITH_TABLES(lamb_norms, lamb_norms_accepts, .optional_in = CR_IN_BIT(lamb_norms, mask)),
    KERNEL(ema, .accepts = ema_accepts, .optional_in = CR_IN_BIT(ema, mask)),
    {0}};
