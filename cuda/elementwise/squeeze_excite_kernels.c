/* cuda/elementwise/squeeze_excite_kernels.c: kernel table for squeeze-and-excitation's scale, ResNet-D's 2x2 average
 * pooling, and the op drop. Data is f32, f16 or bf16, one type in an op. */
#include "core/rng.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* All inputs and outputs have one type. */
static bool one_type(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_op_info *info  = cr_op_info(op->kind);
    const struct cr_tensor  *first = cuda_in(p, op, 0);
    (void)device;
    for (int s = 0; s < info->ins; s++)
        if (!cuda_is_data(cuda_in(p, op, s)) || cuda_in(p, op, s)->dtype != first->dtype) return false;
    for (int s = 0; s < info->outs; s++)
        if (cuda_out(p, op, s)->dtype != first->dtype) return false;
    return true;
}

static struct ck_se_scale se_scale_args(const struct cr_tensor *x) {
    return (struct ck_se_scale){.type = cuda_type(x), .N = x->dim[0], .pixels = x->dim[1] * x->dim[2], .C = x->dim[3]};
}

static cr_status se_scale_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_se_scale args = se_scale_args(cuda_in(call->program, call->op, CR_IN_se_scale_x));
    args.x                  = call->in[CR_IN_se_scale_x];
    args.logit              = call->in[CR_IN_se_scale_logit];
    args.y                  = call->out[CR_OUT_se_scale_y];
    CUDA_TRY(ck_se_scale(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status se_scale_grad_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_se_scale args = se_scale_args(cuda_in(call->program, call->op, CR_IN_se_scale_grad_x));
    args.dy                 = call->in[CR_IN_se_scale_grad_dy];
    args.x                  = call->in[CR_IN_se_scale_grad_x];
    args.logit              = call->in[CR_IN_se_scale_grad_logit];
    args.dx                 = call->out[CR_OUT_se_scale_grad_dx];
    args.dlogit             = call->out[CR_OUT_se_scale_grad_dlogit];
    CUDA_TRY(ck_se_scale_grad(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status channel_conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_channel_conv_x),
                           *w = cuda_in(call->program, call->op, CR_IN_channel_conv_w);
    const int direction       = call->op->kind == CR_OP_channel_conv ? 1 : -1;
    CUDA_TRY(ck_channel_conv(cuda_type(x), call->in[CR_IN_channel_conv_x], call->in[CR_IN_channel_conv_w],
                             call->out[CR_OUT_channel_conv_y], x->dim[0], x->dim[3], (int)w->dim[3], direction,
                             cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status channel_conv_wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x  = cuda_in(call->program, call->op, CR_IN_channel_conv_wgrad_x),
                           *dw = cuda_out(call->program, call->op, CR_OUT_channel_conv_wgrad_dw);
    CUDA_TRY(ck_channel_conv_wgrad(cuda_type(x), call->in[CR_IN_channel_conv_wgrad_x],
                                   call->in[CR_IN_channel_conv_wgrad_dy], call->out[CR_OUT_channel_conv_wgrad_dw],
                                   x->dim[0], x->dim[3], (int)dw->dim[3], call->op->attr.dense.accumulate,
                                   cr_cuda_stream(device, call)));
    return CR_OK;
}

/* Images of one type and an f32 filter; the gradient of the filter is f32. */
static bool channel_conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, 0), *second = cuda_in(p, op, 1), *out = cuda_out(p, op, 0);
    const bool              wgrad = op->kind == CR_OP_channel_conv_wgrad;
    (void)device;
    return cuda_is_data(x) && (wgrad ? second : out)->dtype == x->dtype && (wgrad ? out : second)->dtype == CR_F32;
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
    CUDA_TRY(ck_drop(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status avgpool2x2_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_avgpool2x2_x);
    CUDA_TRY(ck_avgpool2x2(cuda_type(x), call->in[CR_IN_avgpool2x2_x], call->out[CR_OUT_avgpool2x2_y], x->dim[0],
                           x->dim[1], x->dim[2], x->dim[3], cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status avgpool2x2_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = cuda_out(call->program, call->op, CR_OUT_avgpool2x2_grad_dx);
    CUDA_TRY(ck_avgpool2x2_grad(cuda_type(dx), call->in[CR_IN_avgpool2x2_grad_dy], call->out[CR_OUT_avgpool2x2_grad_dx],
                                dx->dim[0], dx->dim[1], dx->dim[2], dx->dim[3], cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status blurpool_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_blurpool_x);
    CUDA_TRY(ck_blurpool(cuda_type(x), call->in[CR_IN_blurpool_x], call->out[CR_OUT_blurpool_y], x->dim[0], x->dim[1],
                         x->dim[2], x->dim[3], cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status blurpool_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = cuda_out(call->program, call->op, CR_OUT_blurpool_grad_dx);
    CUDA_TRY(ck_blurpool_grad(cuda_type(dx), call->in[CR_IN_blurpool_grad_dy], call->out[CR_OUT_blurpool_grad_dx],
                              dx->dim[0], dx->dim[1], dx->dim[2], dx->dim[3], cr_cuda_stream(device, call)));
    return CR_OK;
}

#define KERNEL(kind)                                                                                                   \
    static const struct cr_kernel kind##_row = {.name          = "cuda." #kind,                                        \
                                                .op            = CR_OP_##kind,                                         \
                                                .math          = CR_MATH_F32,                                          \
                                                .deterministic = true,                                                 \
                                                .accepts       = one_type,                                             \
                                                .launch        = kind##_launch}
KERNEL(se_scale);
KERNEL(se_scale_grad);
KERNEL(avgpool2x2);
KERNEL(avgpool2x2_grad);
KERNEL(blurpool);
KERNEL(blurpool_grad);
KERNEL(drop);

#define CHANNEL_CONV(kind, launcher)                                                                                   \
    static const struct cr_kernel kind##_row = {.name          = "cuda." #kind,                                        \
                                                .op            = CR_OP_##kind,                                         \
                                                .math          = CR_MATH_F32,                                          \
                                                .deterministic = true,                                                 \
                                                .accepts       = channel_conv_accepts,                                 \
                                                .launch        = launcher}
CHANNEL_CONV(channel_conv, channel_conv_launch);
CHANNEL_CONV(channel_conv_dgrad, channel_conv_launch);
CHANNEL_CONV(channel_conv_wgrad, channel_conv_wgrad_launch);

const struct cr_kernel *const cr_cuda_squeeze_excite_kernels[] = {&se_scale_row,
                                                                  &se_scale_grad_row,
                                                                  &avgpool2x2_row,
                                                                  &avgpool2x2_grad_row,
                                                                  &drop_row,
                                                                  &channel_conv_row,
                                                                  &channel_conv_dgrad_row,
                                                                  &channel_conv_wgrad_row,
                                                                  &blurpool_row,
                                                                  &blurpool_grad_row,
                                                                  NULL};
