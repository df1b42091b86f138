/* cuda/elementwise/fake_quant_kernels.c: kernel table for quantised values in floating point. Data is f32, f16 or bf16;
 * scales are f32. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* x and y have one type. */
static bool fake_quant_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, 0), *y = cuda_out(p, op, 0);
    (void)device;
    return cuda_is_data(x) && x->dtype == y->dtype && cuda_in(p, op, 1)->dtype == CR_F32;
}

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

/* dy, x and dx have one type. */
static bool grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dy = cuda_in(p, op, CR_IN_fake_quant_grad_dy);
    (void)device;
    return cuda_is_data(dy) && cuda_in(p, op, CR_IN_fake_quant_grad_x)->dtype == dy->dtype &&
           cuda_out(p, op, CR_OUT_fake_quant_grad_dx)->dtype == dy->dtype &&
           cuda_in(p, op, CR_IN_fake_quant_grad_scale)->dtype == CR_F32;
}

static cr_status fake_quant_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = cuda_out(call->program, call->op, CR_OUT_fake_quant_grad_dx);
    CUDA_TRY(ck_fake_quant_grad(cuda_type(dx), call->in[CR_IN_fake_quant_grad_dy], call->in[CR_IN_fake_quant_grad_x],
                                call->in[CR_IN_fake_quant_grad_scale], call->out[CR_OUT_fake_quant_grad_dx],
                                cr_tensor_elems(dx), call->op->attr.quant.is_signed, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool range_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_is_data(cuda_in(p, op, CR_IN_observe_range_x)) &&
           cuda_out(p, op, CR_OUT_observe_range_scale)->dtype == CR_F32;
}

static cr_status range_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    (void)device;
    (void)p;
    (void)op;
    *prepared        = NULL;
    *workspace_bytes = CK_RANGE_PARTS * sizeof(float);
    return CR_OK;
}

static void range_release(void *prepared) {
    (void)prepared;
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

static bool filter_scale_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_is_data(cuda_in(p, op, CR_IN_filter_scale_w)) &&
           cuda_out(p, op, CR_OUT_filter_scale_scale)->dtype == CR_F32;
}

static cr_status filter_scale_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w = cuda_in(call->program, call->op, CR_IN_filter_scale_w);
    CUDA_TRY(ck_filter_scale(cuda_type(w), call->in[CR_IN_filter_scale_w], call->out[CR_OUT_filter_scale_scale],
                             w->dim[0], cr_tensor_elems(w) / w->dim[0], cr_cuda_stream(device, call)));
    return CR_OK;
}

#define KERNEL(kind, test)                                                                                             \
    static const struct cr_kernel kernel_##kind = {CR_KERNEL("cuda." #kind, kind, CR_MATH_EXACT), .accepts = test,     \
                                                   .launch = kind##_launch}
KERNEL(fake_quant, fake_quant_accepts);
KERNEL(fake_quant_filter, fake_quant_accepts);
KERNEL(fake_quant_grad, grad_accepts);
KERNEL(filter_scale, filter_scale_accepts);
static const struct cr_kernel kernel_observe_range = {CR_KERNEL("cuda.observe_range", observe_range, CR_MATH_EXACT),
                                                      .accepts = range_accepts, .prepare = range_prepare,
                                                      .launch = observe_range_launch, .release = range_release};

const struct cr_kernel *const cr_cuda_fake_quant_kernels[] = {&kernel_fake_quant,      &kernel_fake_quant_filter,
                                                              &kernel_fake_quant_grad, &kernel_filter_scale,
                                                              &kernel_observe_range,   NULL};
