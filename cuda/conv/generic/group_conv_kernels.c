/* cuda/conv/generic/group_conv_kernels.c: kernel table of the generic grouped convolutions, after cuDNN's, in f32, f16
 * or bf16. Device code is in cuda/conv/generic/group_conv.cu. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#define IN(kind, slot) cuda_in(p, op, CR_IN_##kind##_##slot)
#define OUT(kind, slot) cuda_out(p, op, CR_OUT_##kind##_##slot)

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(group_conv, x);
    (void)device;
    return cuda_is_data(x) && IN(group_conv, w)->dtype == x->dtype && OUT(group_conv, y)->dtype == x->dtype;
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    const struct ck_conv     v  = cuda_conv_shape(op, IN(group_conv, x), IN(group_conv, w), OUT(group_conv, y));
    CUDA_TRY(ck_group_conv_forward(&v, IN(group_conv, w)->dim[3], call->in[CR_IN_group_conv_x],
                                   call->in[CR_IN_group_conv_w], call->out[CR_OUT_group_conv_y],
                                   cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dy = IN(group_conv_dgrad, dy);
    (void)device;
    return cuda_is_data(dy) && IN(group_conv_dgrad, w)->dtype == dy->dtype &&
           OUT(group_conv_dgrad, dx)->dtype == dy->dtype;
}

static cr_status dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    const struct ck_conv     v =
        cuda_conv_shape(op, OUT(group_conv_dgrad, dx), IN(group_conv_dgrad, w), IN(group_conv_dgrad, dy));
    CUDA_TRY(ck_group_conv_dgrad(&v, IN(group_conv_dgrad, w)->dim[3], call->in[CR_IN_group_conv_dgrad_dy],
                                 call->in[CR_IN_group_conv_dgrad_w], call->out[CR_OUT_group_conv_dgrad_dx],
                                 cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(group_conv_wgrad, x);
    (void)device;
    return cuda_is_data(x) && IN(group_conv_wgrad, dy)->dtype == x->dtype && OUT(group_conv_wgrad, dw)->dtype == CR_F32;
}

static cr_status wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    const struct ck_conv     v =
        cuda_conv_shape(op, IN(group_conv_wgrad, x), OUT(group_conv_wgrad, dw), IN(group_conv_wgrad, dy));
    CUDA_TRY(ck_group_conv_wgrad(&v, OUT(group_conv_wgrad, dw)->dim[3], call->in[CR_IN_group_conv_wgrad_x],
                                 call->in[CR_IN_group_conv_wgrad_dy], call->out[CR_OUT_group_conv_wgrad_dw],
                                 op->attr.conv.accumulate, cr_cuda_stream(device, call)));
    return CR_OK;
}

#define KERNEL(name_, kind, part)                                                                                      \
    static const struct cr_kernel name_ = {.name          = "cuda." #kind,                                             \
                                           .op            = CR_OP_##kind,                                              \
                                           .math          = CR_MATH_F32,                                               \
                                           .deterministic = true,                                                      \
                                           .accepts       = part##_accepts,                                            \
                                           .launch        = part##_launch}
KERNEL(group_forward, group_conv, conv);
KERNEL(group_dgrad, group_conv_dgrad, dgrad);
KERNEL(group_wgrad, group_conv_wgrad, wgrad);

const struct cr_kernel *const cr_cuda_group_conv_kernels[] = {&group_forward, &group_dgrad, &group_wgrad, NULL};
