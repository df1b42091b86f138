/* device/cpu/tuned/int8/quant.c: tuned kernels for 8-bit tensors: quantize, dequantize, and max pooling and
 * zero channels on 8-bit pixels. */
#include "device/cpu/simd.h"

#include <math.h>
#include <string.h>

/* ---- quantize, dequantize ---- */

/* Rounds x / scale to the nearest integer (ties to even): adding and subtracting 1.5 * 2^23 does it for numbers below
 * 2^22, and larger ones saturate before. NaN becomes `low`, as the first comparison is false. */
static inline __attribute__((always_inline)) float rounded(float x, float scale, float low, float high) {
    const float magic = 0x1.8p23f;
    float       v     = x / scale;
    v                 = v > low ? v : low;
    v                 = v < high ? v : high;
    return (v + magic) - magic;
}

CR_BY_LEVEL(void, quantize_u8, (const float *x, uint8_t *y, float scale, int64_t count), (x, y, scale, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = (uint8_t)(int)rounded(x[i], scale, 0, 255);
}

/* The reference gives 0 for NaN. The choice is one of floats, since compilers do not vectorise a conditional
 * conversion. */
CR_BY_LEVEL(void, quantize_i8, (const float *x, int8_t *y, float scale, int64_t count), (x, y, scale, count)) {
    for (int64_t i = 0; i < count; i++) {
        const float number = x[i] == x[i] ? x[i] : 0;
        y[i]               = (int8_t)(int)rounded(number, scale, -127, 127);
    }
}

CR_BY_LEVEL(void, dequantize_u8, (const uint8_t *x, float *y, float scale, int64_t count), (x, y, scale, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = (float)x[i] * scale;
}

CR_BY_LEVEL(void, dequantize_i8, (const int8_t *x, float *y, float scale, int64_t count), (x, y, scale, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = (float)x[i] * scale;
}

static cr_status quantize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *t = &call->program->tensor[call->op->out[CR_OUT_quantize_y]];
    const float            *x = call->in[CR_IN_quantize_x], scale = *(const float *)call->in[CR_IN_quantize_scale];
    void                   *y     = call->out[CR_OUT_quantize_y];
    const int64_t           elems = cr_tensor_elems(t);
    const int               parts = cr_cpu_threads(device);
    CR_PARALLEL_FOR(parts)
    for (int part = 0; part < parts; part++) {
        int64_t begin, end;
        cr_run_of(elems, part, parts, &begin, &end);
        if (t->dtype == CR_U8)
            quantize_u8(x + begin, (uint8_t *)y + begin, scale, end - begin);
        else
            quantize_i8(x + begin, (int8_t *)y + begin, scale, end - begin);
    }
    return CR_OK;
}

static cr_status dequantize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *t     = &call->program->tensor[call->op->in[CR_IN_dequantize_x]];
    const void             *x     = call->in[CR_IN_dequantize_x];
    const float             scale = *(const float *)call->in[CR_IN_dequantize_scale];
    float                  *y     = call->out[CR_OUT_dequantize_y];
    const int64_t           elems = cr_tensor_elems(t);
    const int               parts = cr_cpu_threads(device);
    CR_PARALLEL_FOR(parts)
    for (int part = 0; part < parts; part++) {
        int64_t begin, end;
        cr_run_of(elems, part, parts, &begin, &end);
        if (t->dtype == CR_U8)
            dequantize_u8((const uint8_t *)x + begin, y + begin, scale, end - begin);
        else
            dequantize_i8((const int8_t *)x + begin, y + begin, scale, end - begin);
    }
    return CR_OK;
}

/* One scale for each filter. Runs once for a network, before its first batch. */
static cr_status quantize_filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *t       = &call->program->tensor[call->op->out[CR_OUT_quantize_filter_y]];
    const float            *w       = call->in[CR_IN_quantize_filter_w];
    const float            *scale   = call->in[CR_IN_quantize_filter_scale];
    int8_t                 *y       = call->out[CR_OUT_quantize_filter_y];
    const int64_t           filters = t->dim[0], elems = cr_tensor_elems(t) / filters;
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t k = 0; k < filters; k++) quantize_i8(w + k * elems, y + k * elems, scale[k], elems);
    return CR_OK;
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

static cr_status maxpool8_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *tx   = &call->program->tensor[call->op->in[CR_IN_maxpool_x]],
                           *ty   = &call->program->tensor[call->op->out[CR_OUT_maxpool_y]];
    const struct cr_conv_attr *a = &call->op->attr.conv;
    const struct window8 v = {tx->dim[1], tx->dim[2], tx->dim[3], ty->dim[1], ty->dim[2], a->window, a->stride, a->pad};
    const uint8_t       *x = call->in[CR_IN_maxpool_x];
    uint8_t             *y = call->out[CR_OUT_maxpool_y];
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t line = 0; line < ty->dim[0] * v.P; line++)
        pool_line(&v, tx->dtype == CR_I8, x + line / v.P * v.H * v.W * v.C, y + line * v.Q * v.C, line % v.P);
    return CR_OK;
}

/* ---- pad_shortcut ---- */

static cr_status pad_shortcut8_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *tx = &call->program->tensor[call->op->in[CR_IN_pad_shortcut_x]],
                           *ty = &call->program->tensor[call->op->out[CR_OUT_pad_shortcut_y]];
    const int64_t  H = tx->dim[1], W = tx->dim[2], C = tx->dim[3], P = ty->dim[1], Q = ty->dim[2], K = ty->dim[3];
    const int      stride = call->op->attr.conv.stride, pad = call->op->attr.conv.pad_c;
    const uint8_t *x = call->in[CR_IN_pad_shortcut_x];
    uint8_t       *y = call->out[CR_OUT_pad_shortcut_y];
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t line = 0; line < ty->dim[0] * P; line++)
        for (int64_t q = 0; q < Q; q++) {
            uint8_t *to = y + (line * Q + q) * K;
            memset(to, 0, (size_t)K);
            memcpy(to + pad, x + ((line / P * H + line % P * stride) * W + q * stride) * C, (size_t)C);
        }
    return CR_OK;
}

#define KERNEL(name, kind, types)                                                                                      \
    { CR_KERNEL("cpu." #name, kind, CR_MATH_EXACT), .dtypes = types, .launch = name##_launch }
const struct cr_kernel cr_cpu_quant_kernels[] = {
    KERNEL(quantize, quantize, CR_TYPES_F32),           KERNEL(quantize_filter, quantize_filter, CR_TYPES_F32),
    KERNEL(dequantize, dequantize, CR_TYPES_F32),       KERNEL(maxpool8, maxpool, CR_TYPES_BYTE),
    KERNEL(pad_shortcut8, pad_shortcut, CR_TYPES_BYTE), {0}};
