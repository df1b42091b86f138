/* cuda/conv/generic/conv_kernels.c: kernel table of the generic convolutions, plain and grouped, after cuDNN's: shapes
 * that cuDNN does not support, in f32, f16 or bf16, without fused operations. Device code is in
 * cuda/conv/generic/conv.cu and group_conv.cu. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#define IN(kind, slot) cuda_in(p, op, CR_IN_##kind##_##slot)
#define OUT(kind, slot) cuda_out(p, op, CR_OUT_##kind##_##slot)

/* x, w and y of the forward convolution, or their gradients. */
struct operands {
    const struct cr_tensor *x, *w, *y;
};
static struct operands operands_of(const struct cr_program *p, const struct cr_op *op) {
    switch (op->kind) {
    case CR_OP_group_conv:
    case CR_OP_conv: return (struct operands){IN(conv, x), IN(conv, w), OUT(conv, y)};
    case CR_OP_group_conv_dgrad:
    case CR_OP_conv_dgrad: return (struct operands){OUT(conv_dgrad, dx), IN(conv_dgrad, w), IN(conv_dgrad, dy)};
    default: return (struct operands){IN(conv_wgrad, x), OUT(conv_wgrad, dw), IN(conv_wgrad, dy)};
    }
}
static struct ck_conv shape_of(const struct cr_program *p, const struct cr_op *op) {
    const struct operands a = operands_of(p, op);
    return cuda_conv_shape(op, a.x, a.w, a.y);
}
/* Input channels of a group. */
static int64_t depth_of(const struct cr_call *call) {
    return operands_of(call->program, call->op).w->dim[3];
}

/* Sizes that cuda/conv/generic/conv.cu indexes with 32 bits: sides of images, elements of a filter, blocks of 64 x 64
 * results. */
static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct operands   a = operands_of(p, op);
    const struct cr_tensor *x = a.x, *w = a.w, *y = a.y;
    const int64_t           side = 1 << 20, taps = w->dim[1] * w->dim[2], wide = CR_MAX(x->dim[3], y->dim[3]);
    (void)device;
    if (op->kind == CR_OP_conv && op->attr.conv.relu) return false;
    if (x->dim[1] >= side || x->dim[2] >= side || y->dim[1] >= side || y->dim[2] >= side || taps >= side) return false;
    return wide <= INT32_MAX / taps && CR_MAX(cuda_pixels(x), cuda_pixels(y)) / 64 + 1 <= INT32_MAX / (wide / 64 + 1);
}

/* ---- plain ---- */

/* The products run on CUDA cores, at 17 to 23 of 54 TFLOP/s for the shapes of ResNet-50 (one H200). */
static double estimate(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    double bytes, flops;
    cr_op_cost(p, op, &bytes, &flops);
    return 2 * flops / cr_device_flops(device, CR_MATH_F32);
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_conv v = shape_of(call->program, call->op);
    return CUDA_STATUS(ck_conv_forward(&v, call->in[CR_IN_conv_x], call->in[CR_IN_conv_w], call->out[CR_OUT_conv_y],
                                       cr_cuda_stream(device, call)));
}

static cr_status dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_conv v = shape_of(call->program, call->op);
    return CUDA_STATUS(ck_conv_dgrad(&v, call->in[CR_IN_conv_dgrad_dy], call->in[CR_IN_conv_dgrad_w],
                                     call->out[CR_OUT_conv_dgrad_dx], cr_cuda_stream(device, call)));
}

static size_t wgrad_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv v = shape_of(p, op);
    return ck_conv_wgrad_workspace(&v, cuda_of(device)->multiprocessors);
}
static cr_status wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_conv v = shape_of(call->program, call->op);
    return CUDA_STATUS(ck_conv_wgrad(&v, call->in[CR_IN_conv_wgrad_x], call->in[CR_IN_conv_wgrad_dy],
                                     call->out[CR_OUT_conv_wgrad_dw], call->op->attr.conv.accumulate, call->workspace,
                                     cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

/* ---- grouped ---- */

static cr_status group_conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_conv v = shape_of(call->program, call->op);
    return CUDA_STATUS(ck_group_conv_forward(&v, depth_of(call), call->in[CR_IN_group_conv_x],
                                             call->in[CR_IN_group_conv_w], call->out[CR_OUT_group_conv_y],
                                             cr_cuda_stream(device, call)));
}
static cr_status group_dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_conv v = shape_of(call->program, call->op);
    return CUDA_STATUS(ck_group_conv_dgrad(&v, depth_of(call), call->in[CR_IN_group_conv_dgrad_dy],
                                           call->in[CR_IN_group_conv_dgrad_w], call->out[CR_OUT_group_conv_dgrad_dx],
                                           cr_cuda_stream(device, call)));
}
static cr_status group_wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_conv v = shape_of(call->program, call->op);
    return CUDA_STATUS(ck_group_conv_wgrad(&v, depth_of(call), call->in[CR_IN_group_conv_wgrad_x],
                                           call->in[CR_IN_group_conv_wgrad_dy], call->out[CR_OUT_group_conv_wgrad_dw],
                                           call->op->attr.conv.accumulate, cr_cuda_stream(device, call)));
}

#define KERNEL(kind) CR_KERNEL("cuda." #kind, kind, CR_MATH_F32), .dtypes = CR_TYPES_FLOAT

const struct cr_kernel cr_cuda_conv_kernels[] = {
    {KERNEL(conv), .accepts = accepts, .estimate = estimate, .launch = conv_launch},
    {KERNEL(conv_dgrad), .accepts = accepts, .estimate = estimate, .launch = dgrad_launch},
    {KERNEL(conv_wgrad), .accepts = accepts, .estimate = estimate, .workspace = wgrad_workspace,
     .launch = wgrad_launch},
    {KERNEL(group_conv), .launch = group_conv_launch},
    {KERNEL(group_conv_dgrad), .launch = group_dgrad_launch},
    {KERNEL(group_conv_wgrad), .launch = group_wgrad_launch},
    {0}};
