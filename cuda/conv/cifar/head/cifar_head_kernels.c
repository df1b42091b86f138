/* cuda/conv/cifar/head/cifar_head_kernels.c: kernel table of the op head: images of 8x8 pixels, up to 64 channels and
 * 128 classes, in f16 and bf16, for every GPU. Device code: cuda/conv/cifar/head/cifar_head.cu. */
#include "cuda/conv/cifar/head/cifar_head.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#define IN(slot) cuda_in(p, op, CR_IN_head_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_head_##slot)

static bool has_types(const struct cr_program *p, const struct cr_op *op, enum cr_dtype half) {
    const struct cr_tensor *const narrow[] = {IN(x), IN(add), IN(w), OUT(dx), OUT(logits)},
                                  *wide[]  = {IN(scale_bias), IN(mean_rstd), IN(b),       IN(gamma),  OUT(metrics),
                                              OUT(dw),        OUT(db),       OUT(dgamma), OUT(dbeta), OUT(coeffs)};
    for (size_t i = 0; i < CR_COUNT(narrow); i++)
        if (narrow[i]->dtype != half) return false;
    for (size_t i = 0; i < CR_COUNT(wide); i++)
        if (wide[i]->dtype != CR_F32) return false;
    return IN(labels)->dtype == CR_I32 && IN(state)->dtype == CR_F64;
}

static bool accepts(const struct cr_program *p, const struct cr_op *op, enum cr_dtype half) {
    const struct cr_tensor *x = IN(x);
    return has_types(p, op, half) && x->dim[1] * x->dim[2] == CK_HEAD_PIXELS &&
           ck_cifar_head_supports(cuda_type(x), x->dim[0], x->dim[3], OUT(logits)->dim[3]);
}
static bool accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return accepts(p, op, CR_F16);
}
static bool accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return accepts(p, op, CR_BF16);
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    const struct cr_tensor *x = IN(x);
    (void)device;
    *prepared        = NULL;
    *workspace_bytes = ck_cifar_head_workspace(x->dim[0], x->dim[3], OUT(logits)->dim[3]);
    return CR_OK;
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
    CUDA_TRY(ck_cifar_head(&args, call->workspace, cr_cuda_stream(device, call)));
    return CR_OK;
}

#define HEAD_KERNEL(kernel, text, half)                                                                                \
    static const struct cr_kernel kernel = {CR_KERNEL(text, head, CR_MATH_F32), .accepts = accepts_##half,             \
                                            .prepare = prepare, .launch = launch}
HEAD_KERNEL(head_f16, "cuda.cifar_head.f16", f16);
HEAD_KERNEL(head_bf16, "cuda.cifar_head.bf16", bf16);
const struct cr_kernel *const cr_cuda_cifar_head_kernels[] = {&head_f16, &head_bf16, NULL};
