/* device/cpu/reference/ref_quant.c: quantisation to 8-bit integers and the 8-bit convolution; the rounding rule is that
 * of graph/ops.def. All arithmetic on scales is in f32, so every kernel that follows the rule has the same results. */
#include "device/cpu/reference/ref.h"

/* x / scale, rounded to the nearest integer (ties to even), within [low, high]; NaN becomes 0. */
static float quantized(double x, double scale, float low, float high) {
    const float q = rintf((float)x / (float)scale);
    return q >= low ? CR_MIN(q, high) : q < low ? low : 0;
}

static float lowest(bool is_signed) {
    return is_signed ? -127.0f : 0.0f;
}
static float highest(bool is_signed) {
    return is_signed ? 127.0f : 255.0f;
}

/* ---- activations: one scale ---- */

static void quantize_all(struct cr_device *device, const struct cr_call *call, bool fake) {
    const struct ref x = ref_in(call, 0), scale = ref_in(call, 1), y = ref_out(call, 0);
    const bool       is_signed = call->op->attr.quant.is_signed;
    const double     s         = ref_get(&scale, 0);
    CR_PARALLEL(i, y.elems) {
        const float q = quantized(ref_get(&x, i), s, lowest(is_signed), highest(is_signed));
        ref_put(&y, i, fake ? (double)(q * (float)s) : (double)q);
    }
}

REF_KERNEL(fake_quant) {
    quantize_all(device, call, true);
}

REF_KERNEL(quantize) {
    quantize_all(device, call, false);
}

REF_KERNEL(dequantize) {
    const struct ref x = REF_IN(dequantize, x), scale = REF_IN(dequantize, scale), y = REF_OUT(dequantize, y);
    const float      s = (float)ref_get(&scale, 0);
    CR_PARALLEL(i, y.elems) ref_put(&y, i, (double)((float)ref_get(&x, i) * s));
}

/* ---- filters: one scale for each output channel ---- */

static void quantize_filter(struct cr_device *device, const struct cr_call *call, bool fake) {
    const struct ref w = ref_in(call, 0), scale = ref_in(call, 1), y = ref_out(call, 0);
    const int64_t    row = w.elems / w.N;
    CR_PARALLEL(k, w.N) {
        const double s = ref_get(&scale, k);
        for (int64_t i = k * row; i < (k + 1) * row; i++) {
            const float q = quantized(ref_get(&w, i), s, lowest(true), highest(true));
            ref_put(&y, i, fake ? (double)(q * (float)s) : (double)q);
        }
    }
}

REF_KERNEL(fake_quant_filter) {
    quantize_filter(device, call, true);
}

REF_KERNEL(quantize_filter) {
    quantize_filter(device, call, false);
}

/* The reference convolution reads the filter itself; a packed filter is a copy. */
REF_KERNEL(pack_filter) {
    const struct ref w = REF_IN(pack_filter, w), y = REF_OUT(pack_filter, y);
    memcpy(y.data, w.data, (size_t)CR_MIN(w.elems, y.elems));
}

REF_KERNEL(qconv_coeffs) {
    const struct ref x_scale = REF_IN(qconv_coeffs, x_scale), w_scale = REF_IN(qconv_coeffs, w_scale),
                     scale_bias = REF_IN(qconv_coeffs, scale_bias), bias = REF_IN(qconv_coeffs, bias),
                     y_scale = REF_IN(qconv_coeffs, y_scale), add_scale = REF_IN(qconv_coeffs, add_scale),
                     coeffs = REF_OUT(qconv_coeffs, coeffs);
    const float xs = (float)ref_get(&x_scale, 0), ys = y_scale.data ? (float)ref_get(&y_scale, 0) : 1.0f,
                as  = add_scale.data ? (float)ref_get(&add_scale, 0) : 0.0f;
    const int64_t K = coeffs.C;
    for (int64_t k = 0; k < K; k++) {
        const float a = scale_bias.data ? (float)ref_get(&scale_bias, k) : 1.0f;
        const float b = scale_bias.data ? (float)ref_get(&scale_bias, K + k) : (float)ref_get(&bias, k);
        ref_put(&coeffs, k, (double)(xs * (float)ref_get(&w_scale, k) * a / ys));
        ref_put(&coeffs, K + k, (double)(b / ys));
        ref_put(&coeffs, 2 * K + k, (double)(as / ys));
    }
}

/* ---- the 8-bit convolution ---- */

struct qconv {
    struct ref x, w, coeffs, add, y;
    int64_t    stride, pad;
    bool       relu;
};

static int32_t int_sum(const struct qconv *v, int64_t n, int64_t p, int64_t q, int64_t k) {
    const struct ref *x = &v->x, *w = &v->w;
    const int8_t     *filter = w->data;
    int32_t           sum    = 0;
    for (int64_t r = 0; r < w->H; r++) {
        const int64_t h = p * v->stride - v->pad + r;
        if (h < 0 || h >= x->H) continue;
        for (int64_t s = 0; s < w->W; s++) {
            const int64_t column = q * v->stride - v->pad + s;
            if (column < 0 || column >= x->W) continue;
            const int64_t xi = ((n * x->H + h) * x->W + column) * x->C, wi = ((k * w->H + r) * w->W + s) * w->C;
            if (x->dtype == CR_U8)
                for (int64_t c = 0; c < x->C; c++) sum += ((const uint8_t *)x->data)[xi + c] * filter[wi + c];
            else
                for (int64_t c = 0; c < x->C; c++) sum += ((const int8_t *)x->data)[xi + c] * filter[wi + c];
        }
    }
    return sum;
}

static void qconv_element(const struct qconv *v, int64_t i) {
    const struct ref *y = &v->y;
    const int64_t     K = y->C, k = i % K, q = i / K % y->W, p = i / K / y->W % y->H, n = i / K / y->W / y->H;
    const float       sum = (float)int_sum(v, n, p, q, k);
    float             out = fmaf(sum, (float)ref_get(&v->coeffs, k), (float)ref_get(&v->coeffs, K + k));
    if (v->add.data) out = fmaf((float)ref_get(&v->add, i), (float)ref_get(&v->coeffs, 2 * K + k), out);
    if (v->relu && out < 0) out = 0;
    if (y->dtype == CR_I8 || y->dtype == CR_U8)
        out = quantized((double)out, 1, y->dtype == CR_I8 ? -128.0f : 0.0f, highest(y->dtype == CR_I8));
    ref_put(y, i, (double)out);
}

REF_KERNEL(qconv) {
    const struct cr_conv_attr *a = &call->op->attr.conv;
    const struct qconv         v = {.x      = REF_IN(qconv, x),
                                    .w      = REF_IN(qconv, w),
                                    .coeffs = REF_IN(qconv, coeffs),
                                    .add    = REF_IN(qconv, add),
                                    .y      = REF_OUT(qconv, y),
                                    .stride = a->stride,
                                    .pad    = a->pad,
                                    .relu   = a->relu};
    CR_PARALLEL(i, v.y.elems) qconv_element(&v, i);
}

/* The 3x3 convolution in front of a pair; its result is in the workspace. Without one, the pair reads x. */
static struct ref before_pair(struct cr_device *device, const struct cr_call *call) {
    const struct ref x = REF_IN(qconv_pair, x), w = REF_IN(qconv_pair, first_w);
    struct qconv     v = {.x      = x,
                          .w      = w,
                          .coeffs = REF_IN(qconv_pair, first_coeffs),
                          .y      = ref_scratch_like(&x, call->workspace),
                          .stride = 1,
                          .pad    = 1,
                          .relu   = true};
    if (!w.data) return x;
    v.y.C     = w.N;
    v.y.elems = x.elems / x.C * w.N;
    CR_PARALLEL(i, v.y.elems) qconv_element(&v, i);
    return v.y;
}

REF_KERNEL(qconv_pair) {
    const struct ref   y     = REF_OUT(qconv_pair, y);
    const struct qconv first = {.x      = before_pair(device, call),
                                .w      = REF_IN(qconv_pair, w),
                                .coeffs = REF_IN(qconv_pair, coeffs),
                                .add    = REF_IN(qconv_pair, add),
                                .y      = y,
                                .stride = 1,
                                .relu   = true},
                       next  = {.x      = y,
                                .w      = REF_IN(qconv_pair, next_w),
                                .coeffs = REF_IN(qconv_pair, next_coeffs),
                                .y      = REF_OUT(qconv_pair, z),
                                .stride = 1,
                                .relu   = true};
    CR_PARALLEL(i, first.y.elems) qconv_element(&first, i);
    CR_PARALLEL(i, next.y.elems) qconv_element(&next, i);
}

/* ---- the stem ---- */

enum { STEM_WINDOW = 7 * 7 * 3 }; /* elements of a filter */

struct qstem {
    const struct cr_input_attr *a;
    struct ref                  images, scale, w, coeffs, y;
};

/* q(normalize(images)) of one channel of a pixel; 0 outside the image. */
static int32_t stem_input(const struct qstem *v, int64_t n, int64_t h, int64_t w, int64_t c) {
    const struct ref *x = &v->images;
    if (h < 0 || w < 0 || h >= x->H || w >= x->W) return 0;
    const double byte = ref_get(x, ((n * x->H + h) * x->W + w) * 3 + c);
    const float  real = (float)((byte / 255 - (double)v->a->mean[c]) / (double)v->a->std[c]);
    return (int32_t)quantized((double)real, ref_get(&v->scale, 0), lowest(true), highest(true));
}

/* The inputs of an output pixel of the convolution; filters have the same order. */
static void stem_window(const struct qstem *v, int64_t n, int64_t p, int64_t q, int32_t window[STEM_WINDOW]) {
    for (int64_t i = 0; i < STEM_WINDOW; i++)
        window[i] = stem_input(v, n, 2 * p - 3 + i / 21, 2 * q - 3 + i / 3 % 7, i % 3);
}

static double stem_conv(const struct qstem *v, const int32_t window[STEM_WINDOW], int64_t k) {
    int32_t sum = 0;
    for (int64_t i = 0; i < STEM_WINDOW; i++) sum += window[i] * ((const int8_t *)v->w.data)[k * STEM_WINDOW + i];
    const float out = fmaf((float)sum, (float)ref_get(&v->coeffs, k), (float)ref_get(&v->coeffs, v->y.C + k));
    return (double)quantized((double)out, 1, lowest(false), highest(false));
}

/* One pixel of y: the largest of up to 3x3 pixels of the convolution, which has P x Q pixels; at least 0 (ReLU). */
static void stem_pixel(const struct qstem *v, int64_t i, int64_t P, int64_t Q) {
    const int64_t q = i % v->y.W, p = i / v->y.W % v->y.H, n = i / v->y.W / v->y.H;
    int32_t       window[STEM_WINDOW];
    for (int64_t k = 0; k < v->y.C; k++) ref_put(&v->y, i * v->y.C + k, 0);
    for (int64_t r = CR_MAX(2 * p - 1, 0); r <= CR_MIN(2 * p + 1, P - 1); r++)
        for (int64_t s = CR_MAX(2 * q - 1, 0); s <= CR_MIN(2 * q + 1, Q - 1); s++) {
            stem_window(v, n, r, s, window);
            for (int64_t k = 0; k < v->y.C; k++) {
                const int64_t at = i * v->y.C + k;
                ref_put(&v->y, at, CR_MAX(ref_get(&v->y, at), stem_conv(v, window, k)));
            }
        }
}

REF_KERNEL(qstem) {
    const struct qstem v = {.a      = &call->op->attr.input,
                            .images = REF_IN(qstem, images),
                            .scale  = REF_IN(qstem, scale),
                            .w      = REF_IN(qstem, w),
                            .coeffs = REF_IN(qstem, coeffs),
                            .y      = REF_OUT(qstem, y)};
    const int64_t      P = (v.images.H - 1) / 2 + 1, Q = (v.images.W - 1) / 2 + 1; /* of the convolution */
    CR_PARALLEL(i, v.y.elems / v.y.C) stem_pixel(&v, i, P, Q);
}
