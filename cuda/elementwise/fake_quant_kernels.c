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

#define KERNEL(kind)                                                                                                   \
    static const struct cr_kernel kernel_##kind = {CR_KERNEL("cuda." #kind, kind, CR_MATH_EXACT),                      \
                                                   .accepts = fake_quant_accepts, .launch = kind##_launch}
KERNEL(fake_quant);
KERNEL(fake_quant_filter);

const struct cr_kernel *const cr_cuda_fake_quant_kernels[] = {&kernel_fake_quant, &kernel_fake_quant_filter, NULL};
