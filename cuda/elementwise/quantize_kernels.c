/* cuda/elementwise/quantize_kernels.c: kernel table for conversions to and from 8-bit integers, the factors of 8-bit
 * convolutions, and max pooling and the shortcut without parameters on 8-bit tensors. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

static bool is_int8(const struct cr_tensor *t) {
    return t && (t->dtype == CR_I8 || t->dtype == CR_U8);
}

static bool quantize_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_is_data(cuda_in(p, op, 0)) && is_int8(cuda_out(p, op, 0)) && cuda_in(p, op, 1)->dtype == CR_F32;
}

static cr_status quantize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_quantize_x);
    CUDA_TRY(ck_quantize(cuda_type(x), call->in[CR_IN_quantize_x], call->in[CR_IN_quantize_scale],
                         call->out[CR_OUT_quantize_y], cr_tensor_elems(x), call->op->attr.quant.is_signed,
                         cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool dequantize_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return is_int8(cuda_in(p, op, 0)) && cuda_is_data(cuda_out(p, op, 0)) && cuda_in(p, op, 1)->dtype == CR_F32;
}

static cr_status dequantize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_dequantize_x),
                           *y = cuda_out(call->program, call->op, CR_OUT_dequantize_y);
    CUDA_TRY(ck_dequantize(cuda_type(y), call->in[CR_IN_dequantize_x], x->dtype == CR_I8,
                           call->in[CR_IN_dequantize_scale], call->out[CR_OUT_dequantize_y], cr_tensor_elems(y),
                           cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status quantize_filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w = cuda_in(call->program, call->op, CR_IN_quantize_filter_w);
    CUDA_TRY(ck_quantize_filter(cuda_type(w), call->in[CR_IN_quantize_filter_w], call->in[CR_IN_quantize_filter_scale],
                                call->out[CR_OUT_quantize_filter_y], w->dim[0], cr_tensor_elems(w) / w->dim[0],
                                cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool coeffs_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    for (int i = 0; i < cr_op_info(op->kind)->ins; i++)
        if (cuda_in(p, op, i) && cuda_in(p, op, i)->dtype != CR_F32) return false;
    return cuda_out(p, op, CR_OUT_qconv_coeffs_coeffs)->dtype == CR_F32;
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
    CUDA_TRY(ck_qconv_coeffs(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- windows ---- */

static bool window_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, 0), *y = cuda_out(p, op, 0);
    (void)device;
    return is_int8(x) && y && y->dtype == x->dtype && cr_op_uses_only(op, 1, 1);
}

static struct ck_window window_of(const struct cr_call *call) {
    const struct cr_tensor    *x = cuda_in(call->program, call->op, 0), *y = cuda_out(call->program, call->op, 0);
    const struct cr_conv_attr *a = &call->op->attr.conv;
    return (struct ck_window){.N      = x->dim[0],
                              .H      = x->dim[1],
                              .W      = x->dim[2],
                              .C      = x->dim[3],
                              .P      = y->dim[1],
                              .Q      = y->dim[2],
                              .K      = y->dim[3],
                              .window = a->window,
                              .stride = a->stride,
                              .pad    = call->op->kind == CR_OP_pad_shortcut ? a->pad_c : a->pad};
}

static cr_status maxpool_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_window w = window_of(call);
    CUDA_TRY(ck_maxpool_int8(call->in[0], call->out[0], cuda_in(call->program, call->op, 0)->dtype == CR_I8, &w,
                             cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status pad_shortcut_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_window w = window_of(call);
    CUDA_TRY(ck_pad_shortcut_int8(call->in[0], call->out[0], &w, cr_cuda_stream(device, call)));
    return CR_OK;
}

#define KERNEL(kind, suffix, test)                                                                                     \
    static const struct cr_kernel kernel_##kind = {CR_KERNEL("cuda." #kind suffix, kind, CR_MATH_EXACT),               \
                                                   .accepts = test, .launch = kind##_launch}
KERNEL(quantize, "", quantize_accepts);
KERNEL(dequantize, "", dequantize_accepts);
KERNEL(quantize_filter, "", quantize_accepts);
KERNEL(qconv_coeffs, "", coeffs_accepts);
KERNEL(maxpool, "_int8", window_accepts);
KERNEL(pad_shortcut, "_int8", window_accepts);

const struct cr_kernel *const cr_cuda_quantize_kernels[] = {&kernel_quantize,
                                                            &kernel_dequantize,
                                                            &kernel_quantize_filter,
                                                            &kernel_qconv_coeffs,
                                                            &kernel_maxpool,
                                                            &kernel_pad_shortcut,
                                                            NULL};
