/* device/cpu/tuned/int8/quant.c: tuned kernels for 8-bit tensors: quantize, dequantize, max pooling and zero
 * channels. They follow the rounding rule of graph/ops.def, so their results equal those of the ref kernels. */
#include "device/cpu/simd.h"

#include <math.h>
#include <string.h>

/* ---- quantize, dequantize ---- */

/* Rounds x / scale to the nearest integer (ties to even): adding and subtracting 1.5 * 2^23 does it for numbers below
 * 2^22, and larger ones saturate before. NaN becomes 0. */
static inline __attribute__((always_inline)) float rounded(float x, float scale, float low, float high) {
    const float magic = 0x1.8p23f;
    float       v     = x / scale;
    v                 = v == v ? v : 0;
    v                 = v > low ? v : low;
    v                 = v < high ? v : high;
    return (v + magic) - magic;
}

CR_BY_LEVEL(void, fake_quant_run, (const float *x, float *y, float scale, float low, float high, int64_t count),
            (x, y, scale, low, high, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = rounded(x[i], scale, low, high) * scale;
}

CR_BY_LEVEL(void, quantize_u8, (const float *x, uint8_t *y, float scale, int64_t count), (x, y, scale, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = (uint8_t)(int)rounded(x[i], scale, 0, 255);
}

CR_BY_LEVEL(void, quantize_i8, (const float *x, int8_t *y, float scale, int64_t count), (x, y, scale, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = (int8_t)(int)rounded(x[i], scale, -127, 127);
}

CR_BY_LEVEL(void, dequantize_u8, (const uint8_t *x, float *y, float scale, int64_t count), (x, y, scale, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = (float)x[i] * scale;
}

CR_BY_LEVEL(void, dequantize_i8, (const int8_t *x, float *y, float scale, int64_t count), (x, y, scale, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = (float)x[i] * scale;
}

CR_CPU_LAUNCH(fake_quant_launch) {
    const float  *x = call->in[CR_IN_fake_quant_x], scale = *(const float *)call->in[CR_IN_fake_quant_scale];
    float        *y         = call->out[CR_OUT_fake_quant_y];
    const bool    is_signed = call->op->attr.quant.is_signed;
    const float   low = is_signed ? -127.0f : 0.0f, high = is_signed ? 127.0f : 255.0f;
    const int64_t elems = cr_tensor_elems(&call->program->tensor[call->op->out[CR_OUT_fake_quant_y]]);
    CR_EACH_RUN(elems, i, n, fake_quant_run(x + i, y + i, scale, low, high, n));
}

CR_CPU_LAUNCH(quantize_launch) {
    const struct cr_tensor *t = &call->program->tensor[call->op->out[CR_OUT_quantize_y]];
    const float            *x = call->in[CR_IN_quantize_x], scale = *(const float *)call->in[CR_IN_quantize_scale];
    void                   *y = call->out[CR_OUT_quantize_y];
    if (t->dtype == CR_U8)
        CR_EACH_RUN(cr_tensor_elems(t), i, n, quantize_u8(x + i, (uint8_t *)y + i, scale, n));
    else
        CR_EACH_RUN(cr_tensor_elems(t), i, n, quantize_i8(x + i, (int8_t *)y + i, scale, n));
}

CR_CPU_LAUNCH(dequantize_launch) {
    const struct cr_tensor *t     = &call->program->tensor[call->op->in[CR_IN_dequantize_x]];
    const void             *x     = call->in[CR_IN_dequantize_x];
    const float             scale = *(const float *)call->in[CR_IN_dequantize_scale];
    float                  *y     = call->out[CR_OUT_dequantize_y];
    if (t->dtype == CR_U8)
        CR_EACH_RUN(cr_tensor_elems(t), i, n, dequantize_u8((const uint8_t *)x + i, y + i, scale, n));
    else
        CR_EACH_RUN(cr_tensor_elems(t), i, n, dequantize_i8((const int8_t *)x + i, y + i, scale, n));
}

/* One scale for each filter. Runs once for a network, before its first batch. */
CR_CPU_LAUNCH(quantize_filter_launch) {
    const struct cr_tensor *t       = &call->program->tensor[call->op->out[CR_OUT_quantize_filter_y]];
    const float            *w       = call->in[CR_IN_quantize_filter_w];
    const float            *scale   = call->in[CR_IN_quantize_filter_scale];
    int8_t                 *y       = call->out[CR_OUT_quantize_filter_y];
    const int64_t           filters = t->dim[0], elems = cr_tensor_elems(t) / filters;
    CR_PARALLEL(k, filters) quantize_i8(w + k * elems, y + k * elems, scale[k], elems);
}

/* ---- max pooling without an index ---- */

struct window8 {
    int64_t H, W, C, P, Q, size, stride, pad;
};

#define MAX_INTO(type)                                                                                                 \
    CR_BY_LEVEL(void, max_into_##type, (const type##_t *x, type##_t *best, int64_t count), (x, best, count)) {         \
        for (int64_t c = 0; c < count; c++) best[c] = x[c] > best[c] ? x[c] : best[c];                                 \
    }
MAX_INTO(uint8)
MAX_INTO(int8)

/* Output row p of one image. */
static void pool_line(const struct window8 *v, bool is_signed, const uint8_t *x, uint8_t *y, int64_t p) {
    for (int64_t q = 0; q < v->Q; q++, y += v->C) {
        bool first = true;
        for (int64_t at = 0; at < v->size * v->size; at++) {
            const int64_t  h = p * v->stride - v->pad + at / v->size, w = q * v->stride - v->pad + at % v->size;
            const uint8_t *pixel = x + (h * v->W + w) * v->C;
            if (h < 0 || h >= v->H || w < 0 || w >= v->W) continue;
            if (first)
                memcpy(y, pixel, (size_t)v->C);
            else if (is_signed)
                max_into_int8((const int8_t *)pixel, (int8_t *)y, v->C);
            else
                max_into_uint8(pixel, y, v->C);
            first = false;
        }
    }
}

CR_CPU_LAUNCH(maxpool8_launch) {
    const struct cr_tensor *tx   = &call->program->tensor[call->op->in[CR_IN_maxpool_x]],
                           *ty   = &call->program->tensor[call->op->out[CR_OUT_maxpool_y]];
    const struct cr_conv_attr *a = &call->op->attr.conv;
    const struct window8 v = {tx->dim[1], tx->dim[2], tx->dim[3], ty->dim[1], ty->dim[2], a->window, a->stride, a->pad};
    const uint8_t       *x = call->in[CR_IN_maxpool_x];
    uint8_t             *y = call->out[CR_OUT_maxpool_y];
    CR_PARALLEL(line, ty->dim[0] * v.P)
        pool_line(&v, tx->dtype == CR_I8, x + line / v.P * v.H * v.W * v.C, y + line * v.Q * v.C, line % v.P);
}

/* ---- pad_shortcut: pixels padded with zero channels, of f32 or of bytes ---- */

CR_CPU_LAUNCH(pad_shortcut_launch) {
    const struct cr_tensor *tx = &call->program->tensor[call->op->in[CR_IN_pad_shortcut_x]],
                           *ty = &call->program->tensor[call->op->out[CR_OUT_pad_shortcut_y]];
    const int64_t bytes = (int64_t)cr_dtype_bytes(tx->dtype), stride = call->op->attr.conv.stride;
    const int64_t H = tx->dim[1], W = tx->dim[2], x_bytes = tx->dim[3] * bytes, P = ty->dim[1], Q = ty->dim[2];
    const int64_t y_bytes = ty->dim[3] * bytes, pad = call->op->attr.conv.pad_c * bytes;
    const char   *x = call->in[CR_IN_pad_shortcut_x];
    char         *y = call->out[CR_OUT_pad_shortcut_y];
    CR_PARALLEL(line, ty->dim[0] * P)
        for (int64_t q = 0; q < Q; q++) {
            char *to = y + (line * Q + q) * y_bytes;
            memset(to, 0, (size_t)y_bytes);
            memcpy(to + pad, x + ((line / P * H + line % P * stride) * W + q * stride) * x_bytes, (size_t)x_bytes);
        }
}

#define KERNEL(name, kind, function, types)                                                                            \
    { CR_KERNEL("cpu." #name, kind, CR_MATH_EXACT), .dtypes = types, .launch = function }

/* Programs in f64 (tests) have f64 scales and are left to the ref kernels. */
const struct cr_kernel cr_cpu_quant_kernels[] = {
    KERNEL(fake_quant, fake_quant, fake_quant_launch, CR_TYPES_F32),
    KERNEL(quantize, quantize, quantize_launch, CR_TYPES_F32),
    KERNEL(quantize_filter, quantize_filter, quantize_filter_launch, CR_TYPES_F32),
    KERNEL(dequantize, dequantize, dequantize_launch, CR_TYPES_F32),
    KERNEL(maxpool8, maxpool, maxpool8_launch, CR_TYPES_BYTE),
    KERNEL(pad_shortcut, pad_shortcut, pad_shortcut_launch, CR_TYPES_F32),
    KERNEL(pad_shortcut8, pad_shortcut, pad_shortcut_launch, CR_TYPES_BYTE),
    {0}};
