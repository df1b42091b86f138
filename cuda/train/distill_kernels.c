/* cuda/train/distill_kernels.c: kernel table for knowledge distillation. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* Both ops have the same slots (compiler/autodiff/grad_distill.c). */
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

static size_t loss_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_distill_logits);
    (void)device;
    return ck_distill_workspace(x->dim[0]);
}

static cr_status loss_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_distill args = distill_args(call);
    return CUDA_STATUS(ck_distill(&args, call->in[CR_IN_distill_metrics], call->out[CR_OUT_distill_metrics],
                                  call->workspace, cr_cuda_stream(device, call)));
}

static cr_status grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_distill args = distill_args(call);
    return CUDA_STATUS(ck_distill_grad(&args, call->in[CR_IN_distill_grad_state], call->in[CR_IN_distill_grad_dy],
                                       call->out[CR_OUT_distill_grad_dx], cr_cuda_stream(device, call)));
}

#define KERNEL(kind, ...)                                                                                              \
    { CR_KERNEL("cuda." #kind, kind, CR_MATH_F32), .dtypes = CR_TYPES_FLOAT, __VA_ARGS__ }
const struct cr_kernel cr_cuda_distill_kernels[] = {KERNEL(distill, .workspace = loss_workspace, .launch = loss_launch),
                                                    KERNEL(distill_grad, .launch = grad_launch),
                                                    {0}};
