/* cuda/train/loss_kernels.c: kernel table for the loss, its gradient and the gradient norm. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* ---- loss, loss_grad ---- */

/* The two ops have logits and labels in the same slots. */
_Static_assert((int)CR_IN_loss_logits == (int)CR_IN_loss_grad_logits &&
                   (int)CR_IN_loss_labels == (int)CR_IN_loss_grad_labels,
               "both ops have the same slots");

_Static_assert((int)CR_IN_loss_mixes == (int)CR_IN_loss_grad_mixes &&
                   (int)CR_IN_loss_class_weights == (int)CR_IN_loss_grad_class_weights,
               "including mixes and class weights");

static struct ck_loss loss_args(const struct cr_call *call) {
    const struct cr_tensor *logits = cuda_in(call->program, call->op, CR_IN_loss_logits);
    return (struct ck_loss){.type      = cuda_type(logits),
                            .logits    = call->in[CR_IN_loss_logits],
                            .labels    = call->in[CR_IN_loss_labels],
                            .mixes     = call->in[CR_IN_loss_mixes],
                            .samples   = cuda_pixels(logits),
                            .classes   = logits->dim[3],
                            .smoothing = call->op->attr.loss.smoothing};
}

static struct ck_loss_options loss_options(const struct cr_call *call) {
    return (struct ck_loss_options){.class_weights = call->in[CR_IN_loss_class_weights],
                                    .gamma         = call->op->attr.loss.gamma,
                                    .threshold     = call->op->attr.loss.threshold,
                                    .sigmoid       = call->op->attr.loss.sigmoid,
                                    .several       = call->op->attr.loss.several};
}

static bool has_loss_types(const struct cr_program *p, const struct cr_op *op) {
    return cuda_is_data(cuda_in(p, op, CR_IN_loss_logits)) && cuda_in(p, op, CR_IN_loss_labels)->dtype == CR_I32 &&
           cuda_in(p, op, CR_IN_loss_metrics)->dtype == CR_F32 && cuda_out(p, op, CR_OUT_loss_metrics)->dtype == CR_F32;
}

static bool loss_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cr_loss_is_plain(op) && has_loss_types(p, op);
}

static bool weighted_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    const int weights = op->in[CR_IN_loss_class_weights];
    return has_loss_types(p, op) && (weights < 0 || p->tensor[weights].dtype == CR_F32);
}

static cr_status loss_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    (void)device;
    *prepared        = NULL;
    *workspace_bytes = ck_loss_workspace(cuda_pixels(cuda_in(p, op, CR_IN_loss_logits)));
    return CR_OK;
}

static cr_status loss_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_loss args = loss_args(call);
    CUDA_TRY(ck_loss(&args, call->in[CR_IN_loss_metrics], call->out[CR_OUT_loss_metrics], call->workspace,
                     cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool has_loss_grad_types(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *logits = cuda_in(p, op, CR_IN_loss_grad_logits);
    return cuda_is_data(logits) && cuda_out(p, op, CR_OUT_loss_grad_dx)->dtype == logits->dtype &&
           cuda_in(p, op, CR_IN_loss_grad_labels)->dtype == CR_I32 &&
           cuda_in(p, op, CR_IN_loss_grad_state)->dtype == CR_F64;
}

static bool loss_grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cr_loss_is_plain(op) && has_loss_grad_types(p, op);
}

static bool weighted_grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    const int weights = op->in[CR_IN_loss_grad_class_weights];
    return has_loss_grad_types(p, op) && (weights < 0 || p->tensor[weights].dtype == CR_F32);
}

static cr_status loss_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_loss args = loss_args(call);
    CUDA_TRY(ck_loss_grad(&args, call->op->attr.loss.weight, call->in[CR_IN_loss_grad_state],
                          call->out[CR_OUT_loss_grad_dx], cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- with class weights, focal loss or binary cross-entropy ---- */

static cr_status weighted_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                  void **prepared, size_t *workspace_bytes) {
    (void)device;
    *prepared        = NULL;
    *workspace_bytes = ck_loss_weighted_workspace(cuda_pixels(cuda_in(p, op, CR_IN_loss_logits)));
    return CR_OK;
}

static cr_status weighted_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_loss         args    = loss_args(call);
    const struct ck_loss_options options = loss_options(call);
    CUDA_TRY(ck_loss_weighted(&args, &options, call->in[CR_IN_loss_metrics], call->out[CR_OUT_loss_metrics],
                              call->workspace, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status weighted_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_loss         args    = loss_args(call);
    const struct ck_loss_options options = loss_options(call);
    CUDA_TRY(ck_loss_weighted_grad(&args, &options, call->op->attr.loss.weight, call->in[CR_IN_loss_grad_state],
                                   call->out[CR_OUT_loss_grad_dx], cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- grad_norm ---- */

static bool check_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_in(p, op, CR_IN_grad_norm_grad)->dtype == CR_F32 &&
           cuda_in(p, op, CR_IN_grad_norm_metrics)->dtype == CR_F32 &&
           cuda_out(p, op, CR_OUT_grad_norm_norm)->dtype == CR_F32;
}

static cr_status check_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    (void)device;
    *prepared        = NULL;
    *workspace_bytes = ck_grad_norm_workspace(cr_tensor_elems(cuda_in(p, op, CR_IN_grad_norm_grad)));
    return CR_OK;
}

static cr_status check_launch(struct cr_device *device, const struct cr_call *call) {
    CUDA_TRY(ck_grad_norm(call->in[CR_IN_grad_norm_grad],
                          cr_tensor_elems(cuda_in(call->program, call->op, CR_IN_grad_norm_grad)),
                          call->in[CR_IN_grad_norm_metrics], call->in[CR_IN_grad_norm_state],
                          call->out[CR_OUT_grad_norm_norm], call->workspace, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the table ---- */

static const struct cr_kernel loss_row               = {.name          = "cuda.loss",
                                                        .op            = CR_OP_loss,
                                                        .math          = CR_MATH_F32,
                                                        .deterministic = true,
                                                        .accepts       = loss_accepts,
                                                        .prepare       = loss_prepare,
                                                        .launch        = loss_launch};
static const struct cr_kernel loss_grad_row          = {.name          = "cuda.loss_grad",
                                                        .op            = CR_OP_loss_grad,
                                                        .math          = CR_MATH_F32,
                                                        .deterministic = true,
                                                        .accepts       = loss_grad_accepts,
                                                        .launch        = loss_grad_launch};
static const struct cr_kernel check_row              = {.name          = "cuda.grad_norm",
                                                        .op            = CR_OP_grad_norm,
                                                        .math          = CR_MATH_F32,
                                                        .deterministic = true,
                                                        .accepts       = check_accepts,
                                                        .prepare       = check_prepare,
                                                        .launch        = check_launch};
static const struct cr_kernel weighted_row           = {.name          = "cuda.loss_weighted",
                                                        .op            = CR_OP_loss,
                                                        .math          = CR_MATH_F32,
                                                        .deterministic = true,
                                                        .accepts       = weighted_accepts,
                                                        .prepare       = weighted_prepare,
                                                        .launch        = weighted_launch};
static const struct cr_kernel weighted_grad_row      = {.name          = "cuda.loss_weighted_grad",
                                                        .op            = CR_OP_loss_grad,
                                                        .math          = CR_MATH_F32,
                                                        .deterministic = true,
                                                        .accepts       = weighted_grad_accepts,
                                                        .launch        = weighted_grad_launch};
const struct cr_kernel *const cr_cuda_loss_kernels[] = {&loss_row,          &loss_grad_row, &weighted_row,
                                                        &weighted_grad_row, &check_row,     NULL};
