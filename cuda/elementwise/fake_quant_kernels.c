/* cuda/elementwise/fake_quant_kernels.c: kernel table for quantised values in floating point. Data is f32, f16 or bf16;
 * scales are f32. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

static cr_status fake_quant_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = cuda_out(call->program, call->op, CR_OUT_fake_quant_y);
    return CUDA_STATUS(ck_fake_quant(cuda_type(y), call->in[CR_IN_fake_quant_x], call->in[CR_IN_fake_quant_scale],
                                     call->out[CR_OUT_fake_quant_y], cr_tensor_elems(y), call->op->attr.quant.is_signed,
                                     cr_cuda_stream(device, call)));
}

static cr_status fake_quant_filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = cuda_out(call->program, call->op, CR_OUT_fake_quant_filter_y);
    return CUDA_STATUS(ck_fake_quant_filter(cuda_type(y), call->in[CR_IN_fake_quant_filter_w],
                                            call->in[CR_IN_fake_quant_filter_scale],
                                            call->out[CR_OUT_fake_quant_filter_y], y->dim[0],
                                            cr_tensor_elems(y) / y->dim[0], cr_cuda_stream(device, call)));
}

#define KERNEL(kind)                                                                                                   \
    { CR_KERNEL("cuda." #kind, kind, CR_MATH_EXACT), .dtypes = CR_TYPES_FLOAT, .launch = kind##_launch }
const struct cr_kernel cr_cuda_fake_quant_kernels[] = {KERNEL(fake_quant), KERNEL(fake_quant_filter), {0}};
