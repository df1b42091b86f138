/* cuda/elementwise/quantize_kernels.c: kernel table for conversions to and from 8-bit integers, quantised values in
 * floating point, the factors of 8-bit convolutions, and max pooling and the shortcut without parameters on 8-bit
 * tensors. Scales are f32. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

static cr_status quantize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_quantize_x);
    return CUDA_STATUS(ck_quantize(cuda_type(x), call->in[CR_IN_quantize_x], call->in[CR_IN_quantize_scale],
                                   call->out[CR_OUT_quantize_y], cr_tensor_elems(x), call->op->attr.quant.is_signed,
                                   cr_cuda_stream(device, call)));
}

static cr_status dequantize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_dequantize_x),
                           *y = cuda_out(call->program, call->op, CR_OUT_dequantize_y);
    return CUDA_STATUS(ck_dequantize(cuda_type(y), call->in[CR_IN_dequantize_x], x->dtype == CR_I8,
                                     call->in[CR_IN_dequantize_scale], call->out[CR_OUT_dequantize_y],
                                     cr_tensor_elems(y), cr_cuda_stream(device, call)));
}

static cr_status quantize_filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w = cuda_in(call->program, call->op, CR_IN_quantize_filter_w);
    return CUDA_STATUS(ck_quantize_filter(cuda_type(w), call->in[CR_IN_quantize_filter_w],
                                          call->in[CR_IN_quantize_filter_scale], call->out[CR_OUT_quantize_filter_y],
                                          w->dim[0], cr_tensor_elems(w) / w->dim[0], cr_cuda_stream(device, call)));
}

static cr_status qconv_coeffs_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_qconv_coeffs args = {
        .x_scale    = call->in[CR_IN_qconv_coeffs_x_scale],
        .w_scale    = call->in[CR_IN_qconv_coeffs_w_scale],
        .scale_bias = call->in[CR_IN_qconv_coeffs_scale_bias],
        .bias       = call->in[CR_IN_qconv_coeffs_bias],
        .y_scale    = call->in[CR_IN_qconv_coeffs_y_scale],
        .add_scale  = call->in[CR_IN_qconv_coeffs_add_scale],
        .coeffs     = call->out[CR_OUT_qconv_coeffs_coeffs],
        .K          = cuda_out(call->program, call->op, CR_OUT_qconv_coeffs_coeffs)->dim[3],
    };
    return CUDA_STATUS(ck_qconv_coeffs(&args, cr_cuda_stream(device, call)));
}

/* ---- quantised values in floating point ---- */

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

/* ---- windows ---- */

static cr_status maxpool_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, 0);
    const struct ck_window  w = cuda_window(call->op, x, cuda_out(call->program, call->op, 0));
    return CUDA_STATUS(ck_maxpool_int8(call->in[0], call->out[0], x->dtype == CR_I8, &w, cr_cuda_stream(device, call)));
}

static cr_status pad_shortcut_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, 0);
    const struct ck_window  w = cuda_window(call->op, x, cuda_out(call->program, call->op, 0));
    return CUDA_STATUS(ck_pad_shortcut_int8(call->in[0], call->out[0], &w, cr_cuda_stream(device, call)));
}

#define KERNEL(name, kind, types, ...)                                                                                 \
    { CR_KERNEL("cuda." #name, kind, CR_MATH_EXACT), .dtypes = types, .launch = kind##_launch, __VA_ARGS__ }
const struct cr_kernel cr_cuda_quantize_kernels[] = {
    KERNEL(quantize, quantize, CR_TYPES_FLOAT),
    KERNEL(dequantize, dequantize, CR_TYPES_FLOAT),
    KERNEL(quantize_filter, quantize_filter, CR_TYPES_FLOAT),
    KERNEL(qconv_coeffs, qconv_coeffs, CR_TYPES_F32,
           .optional_in = CR_IN_BIT(qconv_coeffs, scale_bias) | CR_IN_BIT(qconv_coeffs, bias) |
                          CR_IN_BIT(qconv_coeffs, y_scale) | CR_IN_BIT(qconv_coeffs, add_scale)),
    KERNEL(fake_quant, fake_quant, CR_TYPES_FLOAT),
    KERNEL(fake_quant_filter, fake_quant_filter, CR_TYPES_FLOAT),
    KERNEL(maxpool_int8, maxpool, CR_TYPES_BYTE),
    KERNEL(pad_shortcut_int8, pad_shortcut, CR_TYPES_BYTE),
    {0}};
