/* cuda/elementwise/squeeze_excite_kernels.c: kernel table for squeeze-and-excitation's scale, average pooling over 2x2
 * windows, blur pooling, channel convolutions and the op drop. Data is f32, f16 or bf16, one type in an op. */
#include "core/rng.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

static struct ck_se_scale se_scale_args(const struct cr_tensor *x) {
    return (struct ck_se_scale){.type = cuda_type(x), .N = x->dim[0], .pixels = x->dim[1] * x->dim[2], .C = x->dim[3]};
}

static cr_status se_scale_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_se_scale args = se_scale_args(cuda_in(call->program, call->op, CR_IN_se_scale_x));
    args.x                  = call->in[CR_IN_se_scale_x];
    args.logit              = call->in[CR_IN_se_scale_logit];
    args.y                  = call->out[CR_OUT_se_scale_y];
    return CUDA_STATUS(ck_se_scale(&args, cr_cuda_stream(device, call)));
}

static cr_status se_scale_grad_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_se_scale args = se_scale_args(cuda_in(call->program, call->op, CR_IN_se_scale_grad_x));
    args.dy                 = call->in[CR_IN_se_scale_grad_dy];
    args.x                  = call->in[CR_IN_se_scale_grad_x];
    args.logit              = call->in[CR_IN_se_scale_grad_logit];
    args.dx                 = call->out[CR_OUT_se_scale_grad_dx];
    args.dlogit             = call->out[CR_OUT_se_scale_grad_dlogit];
    return CUDA_STATUS(ck_se_scale_grad(&args, cr_cuda_stream(device, call)));
}

static cr_status channel_conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_channel_conv_x),
                           *w = cuda_in(call->program, call->op, CR_IN_channel_conv_w);
    const int direction       = call->op->kind == CR_OP_channel_conv ? 1 : -1;
    return CUDA_STATUS(ck_channel_conv(cuda_type(x), call->in[CR_IN_channel_conv_x], call->in[CR_IN_channel_conv_w],
                                       call->out[CR_OUT_channel_conv_y], x->dim[0], x->dim[3], (int)w->dim[3],
                                       direction, cr_cuda_stream(device, call)));
}

static cr_status channel_conv_wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x  = cuda_in(call->program, call->op, CR_IN_channel_conv_wgrad_x),
                           *dw = cuda_out(call->program, call->op, CR_OUT_channel_conv_wgrad_dw);
    return CUDA_STATUS(
        ck_channel_conv_wgrad(cuda_type(x), call->in[CR_IN_channel_conv_wgrad_x], call->in[CR_IN_channel_conv_wgrad_dy],
                              call->out[CR_OUT_channel_conv_wgrad_dw], x->dim[0], x->dim[3], (int)dw->dim[3],
                              call->op->attr.dense.accumulate, cr_cuda_stream(device, call)));
}

static cr_status drop_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_drop_attr *attr = &call->op->attr.drop;
    const struct cr_tensor    *x    = cuda_in(call->program, call->op, CR_IN_drop_x);
    const struct ck_drop       args = {.type      = cuda_type(x),
                                       .x         = call->in[CR_IN_drop_x],
                                       .y         = call->out[CR_OUT_drop_y],
                                       .step      = cuda_of(device)->step,
                                       .N         = x->dim[0],
                                       .elems     = cr_tensor_elems(x) / x->dim[0],
                                       .images    = attr->images,
                                       .index     = attr->index,
                                       .purpose   = CR_RNG_DROP,
                                       .threshold = cr_drop_threshold(attr),
                                       .scale     = cr_drop_scale(attr)};
    return CUDA_STATUS(ck_drop(&args, cr_cuda_stream(device, call)));
}

static cr_status halve_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_op     *op   = call->op;
    const bool              grad = op->kind == CR_OP_avgpool2x2_grad || op->kind == CR_OP_blurpool_grad;
    const bool              blur = op->kind == CR_OP_blurpool || op->kind == CR_OP_blurpool_grad;
    const struct cr_tensor *in = cuda_in(call->program, op, 0), *out = cuda_out(call->program, op, 0),
                           *x    = grad ? out : in;
    const struct ck_window image = cuda_window(op, x, grad ? in : out);
    return CUDA_STATUS(
        ck_halve(cuda_type(x), blur, grad, call->in[0], call->out[0], &image, cr_cuda_stream(device, call)));
}

#define KERNEL(kind, launcher)                                                                                         \
    { CR_KERNEL("cuda." #kind, kind, CR_MATH_F32), .dtypes = CR_TYPES_FLOAT, .launch = launcher }
#define HALVE(kind)                                                                                                    \
    {                                                                                                                  \
        CR_KERNEL("cuda." #kind, kind, CR_MATH_F32), .dtypes = CR_TYPES_FLOAT, .accepts = cr_cuda_window_accepts,      \
                                                     .launch = halve_launch                                            \
    }
const struct cr_kernel cr_cuda_squeeze_excite_kernels[] = {KERNEL(se_scale, se_scale_launch),
                                                           KERNEL(se_scale_grad, se_scale_grad_launch),
                                                           HALVE(avgpool2x2),
                                                           HALVE(avgpool2x2_grad),
                                                           KERNEL(drop, drop_launch),
                                                           KERNEL(channel_conv, channel_conv_launch),
                                                           KERNEL(channel_conv_dgrad, channel_conv_launch),
                                                           KERNEL(channel_conv_wgrad, channel_conv_wgrad_launch),
                                                           HALVE(blurpool),
                                                           HALVE(blurpool_grad),
                                                           {0}};
