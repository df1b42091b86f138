/* cuda/elementwise/fake_quant_kernels.c: kernel table for quantised values in floating point. Data is f32, f16 or bf16;
 * scales are f32. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

static cr_status fake_quant_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = cuda_out(call->program, call->op, CR_OUT_fake_quant_y);
    CUDA_TRY(ck_fake_quant(cuda_type(y), call->in[CR_IN_fake_quant_x], call->in[CR_IN_fake_quant_scale],
                           call->out[CR_OUT_fake_quant_y], cr_tensor_elems(y), call->op->attr.quant.is_signed,
                           cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status fake_quant_filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = cuda_out(call->program, call->op, CR_OUT_fake_quant_filter_y);
    CUDA_TRY(ck_fake_quant_filter(cuda_type(y), call->in[CR_IN_fake_quant_filter_w],
                                  call->in[CR_IN_fake_quant_filter_scale], call->out[CR_OUT_fake_quant_filter_y],
                                  y->dim[0], cr_tensor_elems(y) / y->dim[0], cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status fake_quant_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = cuda_out(call->program, call->op, CR_OUT_fake_quant_grad_dx);
    CUDA_TRY(ck_fake_quant_grad(cuda_type(dx), call->in[CR_IN_fake_quant_grad_dy], call->in[CR_IN_fake_quant_grad_x],
                                call->in[CR_IN_fake_quant_grad_scale], call->out[CR_OUT_fake_quant_grad_dx],
                                cr_tensor_elems(dx), call->op->attr.quant.is_signed, cr_cuda_stream(device, call)));
    return CR_OK;
}

static size_t parts_bytes(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device, (void)p, (void)op;
    return CK_RANGE_PARTS * sizeof(float);
}

static cr_status observe_range_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor       *x     = cuda_in(call->program, call->op, CR_IN_observe_range_x);
    const double                 *state = call->in[CR_IN_observe_range_state];
    const struct ck_observe_range args  = {.type      = cuda_type(x),
                                           .x         = call->in[CR_IN_observe_range_x],
                                           .elems     = cr_tensor_elems(x),
                                           .old       = call->in[CR_IN_observe_range_scale],
                                           .scale     = call->out[CR_OUT_observe_range_scale],
                                           .batches   = state + CR_STATE_BATCHES,
                                           .parts     = call->workspace,
                                           .momentum  = call->op->attr.quant.momentum,
                                           .is_signed = call->op->attr.quant.is_signed};
    CUDA_TRY(ck_observe_range(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status filter_scale_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w = cuda_in(call->program, call->op, CR_IN_filter_scale_w);
    CUDA_TRY(ck_filter_scale(cuda_type(w), call->in[CR_IN_filter_scale_w], call->out[CR_OUT_filter_scale_scale],
                             w->dim[0], cr_tensor_elems(w) / w->dim[0], cr_cuda_stream(device, call)));
    return CR_OK;
}

#define KERNEL(kind, how, types, ...)                                                                                  \
    { CR_KERNEL("cuda." #kind, kind, how), .dtypes = types, .launch = kind##_launch, __VA_ARGS__ }
const struct cr_kernel cr_cuda_fake_quant_kernels[] = {
    KERNEL(fake_quant, CR_MATH_EXACT, CR_TYPES_FLOAT),
    KERNEL(fake_quant_filter, CR_MATH_EXACT, CR_TYPES_FLOAT),
    KERNEL(fake_quant_grad, CR_MATH_EXACT, CR_TYPES_FLOAT),
    KERNEL(filter_scale, CR_MATH_EXACT, CR_TYPES_FLOAT),
    KERNEL(observe_range, CR_MATH_EXACT, CR_TYPES_FLOAT, .workspace = parts_bytes),
    {0}};
