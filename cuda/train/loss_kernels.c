/* cuda/train/loss_kernels.c: kernel table for the loss, knowledge distillation, their gradients and the
 * gradient norm. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* ---- loss, loss_grad ---- */

/* Both ops have these inputs in the same slots. */
_Static_assert((int)CR_IN_loss_logits == (int)CR_IN_loss_grad_logits &&
                   (int)CR_IN_loss_labels == (int)CR_IN_loss_grad_labels &&
                   (int)CR_IN_loss_mixes == (int)CR_IN_loss_grad_mixes &&
                   (int)CR_IN_loss_class_weights == (int)CR_IN_loss_grad_class_weights,
               "slots of loss and loss_grad");

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

/* ---- distill, distill_grad ---- */

/* Both ops have the same slots (compiler/autodiff/grad.c). */
static struct ck_distill distill_args(const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_distill_logits);
    return (struct ck_distill){.type        = cuda_type(x),
                               .x           = call->in[CR_IN_distill_logits],
                               .teacher     = call->in[CR_IN_distill_teacher],
                               .labels      = call->in[CR_IN_distill_labels],
                               .samples     = x->dim[0],
                               .elems       = cr_tensor_elems(x) / x->dim[0],
                               .weight      = call->op->attr.distill.weight,
                               .temperature = call->op->attr.distill.temperature};
}

static size_t distill_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_distill_logits);
    (void)device;
    return ck_distill_workspace(x->dim[0]);
}

static cr_status distill_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_distill args = distill_args(call);
    return CUDA_STATUS(ck_distill(&args, call->in[CR_IN_distill_metrics], call->out[CR_OUT_distill_metrics],
                                  call->workspace, cr_cuda_stream(device, call)));
}

static cr_status distill_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_distill args = distill_args(call);
    return CUDA_STATUS(ck_distill_grad(&args, call->in[CR_IN_distill_grad_state], call->in[CR_IN_distill_grad_dy],
                                       call->out[CR_OUT_distill_grad_dx], cr_cuda_stream(device, call)));
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

#define KERNEL(kind, ...)                                                                                              \
    { CR_KERNEL("cuda." #kind, kind, CR_MATH_F32), .launch = kind##_launch, __VA_ARGS__ }
#define MIXES_AND_WEIGHTS(kind) (CR_IN_BIT(kind, mixes) | CR_IN_BIT(kind, class_weights))
const struct cr_kernel cr_cuda_loss_kernels[] = {
    KERNEL(loss, .dtypes = CR_TYPES_FLOAT, .optional_in = MIXES_AND_WEIGHTS(loss), .workspace = loss_workspace),
    KERNEL(loss_grad, .dtypes = CR_TYPES_FLOAT, .optional_in = MIXES_AND_WEIGHTS(loss_grad)),
    KERNEL(distill, .dtypes = CR_TYPES_FLOAT, .workspace = distill_workspace),
    KERNEL(distill_grad, .dtypes = CR_TYPES_FLOAT),
    KERNEL(grad_norm, .dtypes = CR_TYPES_F32, .workspace = norm_workspace),
    {0}};
