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

static size_t loss_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return ck_loss_workspace(cuda_pixels(cuda_in(p, op, CR_IN_loss_logits)));
}

static cr_status loss_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_loss         args    = loss_args(call);
    const struct ck_loss_options options = loss_options(call);
    return CUDA_STATUS(ck_loss(&args, &options, call->in[CR_IN_loss_metrics], call->out[CR_OUT_loss_metrics],
                               call->workspace, cr_cuda_stream(device, call)));
}

static cr_status loss_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_loss         args    = loss_args(call);
    const struct ck_loss_options options = loss_options(call);
    return CUDA_STATUS(ck_loss_grad(&args, &options, call->op->attr.loss.weight, call->in[CR_IN_loss_grad_state],
                                    call->out[CR_OUT_loss_grad_dx], cr_cuda_stream(device, call)));
}

/* ---- grad_norm ---- */

static size_t norm_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return ck_grad_norm_workspace(cr_tensor_elems(cuda_in(p, op, CR_IN_grad_norm_grad)));
}

static cr_status grad_norm_launch(struct cr_device *device, const struct cr_call *call) {
    return CUDA_STATUS(ck_grad_norm(call->in[CR_IN_grad_norm_grad],
                                    cr_tensor_elems(cuda_in(call->program, call->op, CR_IN_grad_norm_grad)),
                                    call->in[CR_IN_grad_norm_metrics], call->in[CR_IN_grad_norm_state],
                                    call->out[CR_OUT_grad_norm_norm], call->workspace, cr_cuda_stream(device, call)));
}

/* ---- the table ---- */

#define KERNEL(name, kind, ...)                                                                                        \
    { CR_KERNEL("cuda." #name, kind, CR_MATH_F32), .launch = name##_launch, __VA_ARGS__ }
#define MIXES_AND_WEIGHTS(kind) (CR_IN_BIT(kind, mixes) | CR_IN_BIT(kind, class_weights))
const struct cr_kernel cr_cuda_loss_kernels[] = {
    KERNEL(loss, loss, .dtypes = CR_TYPES_FLOAT, .optional_in = MIXES_AND_WEIGHTS(loss), .workspace = loss_workspace),
    KERNEL(loss_grad, loss_grad, .dtypes = CR_TYPES_FLOAT, .optional_in = MIXES_AND_WEIGHTS(loss_grad)),
    KERNEL(grad_norm, grad_norm, .dtypes = CR_TYPES_F32, .workspace = norm_workspace),
    {0}};
