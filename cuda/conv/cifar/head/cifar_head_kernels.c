/* cuda/conv/cifar/head/cifar_head_kernels.c: kernel table of the op head: images of 8x8 pixels, up to 64 channels and
 * 128 classes, in f16 and bf16, for every GPU. Device code: cuda/conv/cifar/head/cifar_head.cu. */
#include "cuda/conv/cifar/head/cifar_head.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#define IN(slot) cuda_in(p, op, CR_IN_head_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_head_##slot)

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    (void)device;
    return x->dim[1] * x->dim[2] == CK_HEAD_PIXELS &&
           ck_cifar_head_supports(cuda_type(x), x->dim[0], x->dim[3], OUT(logits)->dim[3]);
}

static size_t workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    (void)device;
    return ck_cifar_head_workspace(x->dim[0], x->dim[3], OUT(logits)->dim[3]);
}

static struct ck_loss loss_of(const struct cr_call *call, const struct cr_tensor *logits) {
    return (struct ck_loss){.type      = cuda_type(logits),
                            .labels    = call->in[CR_IN_head_labels],
                            .mixes     = call->in[CR_IN_head_mixes],
                            .samples   = logits->dim[0],
                            .classes   = logits->dim[3],
                            .smoothing = call->op->attr.head.loss.smoothing};
}

static struct ck_bn_grad_finalize finish_of(const struct cr_call *call) {
    const struct cr_bn_attr *bn = &call->op->attr.head.bn;
    return (struct ck_bn_grad_finalize){.gamma      = call->in[CR_IN_head_gamma],
                                        .dgamma     = call->out[CR_OUT_head_dgamma],
                                        .dbeta      = call->out[CR_OUT_head_dbeta],
                                        .coeffs     = call->out[CR_OUT_head_coeffs],
                                        .count      = bn->count,
                                        .accumulate = bn->accumulate,
                                        .ranks      = bn->ranks};
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_cifar_head args = {.x          = call->in[CR_IN_head_x],
                                       .add        = call->in[CR_IN_head_add],
                                       .scale_bias = call->in[CR_IN_head_scale_bias],
                                       .mean_rstd  = call->in[CR_IN_head_mean_rstd],
                                       .w          = call->in[CR_IN_head_w],
                                       .bias       = call->in[CR_IN_head_b],
                                       .loss     = loss_of(call, cuda_out(call->program, call->op, CR_OUT_head_logits)),
                                       .channels = cuda_in(call->program, call->op, CR_IN_head_x)->dim[3],
                                       .weight   = call->op->attr.head.loss.weight,
                                       .state    = call->in[CR_IN_head_state],
                                       .logits   = call->out[CR_OUT_head_logits],
                                       .metrics  = call->out[CR_OUT_head_metrics],
                                       .dx       = call->out[CR_OUT_head_dx],
                                       .dw       = call->out[CR_OUT_head_dw],
                                       .db       = call->out[CR_OUT_head_db],
                                       .finish   = finish_of(call)};
    return CUDA_STATUS(ck_cifar_head(&args, call->workspace, cr_cuda_stream(device, call)));
}

const struct cr_kernel cr_cuda_cifar_head_kernels[] = {{CR_KERNEL("cuda.cifar_head.*", head, CR_MATH_F32),
                                                        .dtypes = CR_TYPES_HALF, .optional_in = CR_IN_BIT(head, mixes),
                                                        .accepts = accepts, .workspace = workspace, .launch = launch},
                                                       {0}};
