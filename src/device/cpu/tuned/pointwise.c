/* device/cpu/tuned/pointwise.c: tuned kernels for elementwise ops (relu, add, normalize), the parameter-free shortcut
 * and global average pooling. They are limited by memory. */
#include "device/cpu/simd.h"

#include <string.h>

/* ---- elementwise: one range of elements for each thread ---- */

CR_BY_LEVEL(void, relu_run, (const float *x, float *y, int64_t count), (x, y, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = x[i] < 0 ? 0.0f : x[i]; /* NaN stays NaN */
}

CR_BY_LEVEL(void, relu_grad_run, (const float *dy, const float *y, float *dx, int64_t count), (dy, y, dx, count)) {
    for (int64_t i = 0; i < count; i++) dx[i] = y[i] > 0 ? dy[i] : 0.0f;
}

CR_BY_LEVEL(void, add_run, (const float *a, const float *b, float *y, int64_t count), (a, b, y, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = a[i] + b[i];
}

static const struct cr_tensor *output(const struct cr_call *call) {
    return &call->program->tensor[call->op->out[0]];
}

CR_CPU_LAUNCH(relu_launch) {
    const float *x = call->in[CR_IN_relu_x];
    float       *y = call->out[CR_OUT_relu_y];
    CR_EACH_RUN(cr_tensor_elems(output(call)), i, n, relu_run(x + i, y + i, n));
}

CR_CPU_LAUNCH(relu_grad_launch) {
    const float *dy = call->in[CR_IN_relu_grad_dy], *y = call->in[CR_IN_relu_grad_y];
    float       *dx = call->out[CR_OUT_relu_grad_dx];
    CR_EACH_RUN(cr_tensor_elems(output(call)), i, n, relu_grad_run(dy + i, y + i, dx + i, n));
}

CR_CPU_LAUNCH(add_launch) {
    const float *a = call->in[CR_IN_add_a], *b = call->in[CR_IN_add_b];
    float       *y = call->out[CR_OUT_add_y];
    CR_EACH_RUN(cr_tensor_elems(output(call)), i, n, add_run(a + i, b + i, y + i, n));
}

/* ---- normalize: a table of 256 values for each channel ---- */

CR_CPU_ACCEPTS(normalize_accepts) {
    return !op->attr.input.s2d && !op->attr.input.wide;
}

struct normalize {
    float          table[4][256];
    const uint8_t *images;
    const int32_t *boxes; /* NULL: none */
    int64_t        H, W;
    int            C;
};

/* Writes black pixels to columns `from` to `to` - 1 of a row. */
static void black_pixels(const struct normalize *v, float *y, int64_t from, int64_t to) {
    for (int64_t w = from; w < to; w++)
        for (int c = 0; c < v->C; c++) y[v->C * w + c] = v->table[c][0];
}

static void normalize_row(const struct normalize *v, float *y, int64_t row) {
    static const int32_t none[4] = {0};
    const int64_t        n = row / v->H, W = v->W;
    const int32_t       *box = v->boxes ? v->boxes + 4 * n : none;
    const int64_t        h = row % v->H + box[0], dx = box[1];
    const bool           flip = box[2] != 0;
    const int64_t        step = flip ? -1 : 1,
                  at          = (n * v->H + h) * W + dx + (flip ? W - 1 : 0);       /* output w is input at + step*w */
    int64_t from = CR_MAX(flip ? dx : -dx, 0), to = W - CR_MAX(flip ? -dx : dx, 0); /* inside the image */
    if (h < 0 || h >= v->H || from >= to) from = to = W;
    black_pixels(v, y, 0, from);
    if (v->C == 3) /* a loop of its own, which compilers unroll */
        for (int64_t w = from; w < to; w++)
            for (int c = 0; c < 3; c++) y[3 * w + c] = v->table[c][v->images[3 * (at + step * w) + c]];
    else
        for (int64_t w = from; w < to; w++)
            for (int c = 0; c < v->C; c++) y[v->C * w + c] = v->table[c][v->images[v->C * (at + step * w) + c]];
    black_pixels(v, y, to, W);
}

CR_CPU_LAUNCH(normalize_launch) {
    const struct cr_input_attr *a    = &call->op->attr.input;
    const struct cr_tensor     *t    = output(call);
    struct normalize            v    = {.images = call->in[CR_IN_normalize_images],
                                        .boxes  = call->in[CR_IN_normalize_boxes],
                                        .H      = t->dim[1],
                                        .W      = t->dim[2],
                                        .C      = (int)t->dim[3]};
    float                      *y    = call->out[CR_OUT_normalize_y];
    const int64_t               rows = t->dim[0] * v.H;
    for (int c = 0; c < v.C; c++)
        for (int i = 0; i < 256; i++) v.table[c][i] = (float)((i / 255.0 - (double)a->mean[c]) / (double)a->std[c]);
    CR_PARALLEL(row, rows) normalize_row(&v, y + row * v.W * v.C, row);
}

/* ---- the gradient of pad_shortcut ---- */

CR_CPU_LAUNCH(pad_shortcut_grad_launch) {
    const struct cr_tensor *small = &call->program->tensor[call->op->in[CR_IN_pad_shortcut_grad_dy]];
    const int64_t H = output(call)->dim[1], W = output(call)->dim[2], C = output(call)->dim[3], P = small->dim[1],
                  Q = small->dim[2], K = small->dim[3], stride = call->op->attr.conv.stride;
    const float *dy = (const float *)call->in[CR_IN_pad_shortcut_grad_dy] + call->op->attr.conv.pad_c;
    float       *dx = call->out[CR_OUT_pad_shortcut_grad_dx];
    CR_PARALLEL(row, small->dim[0] * H) {
        float *to = dx + row * W * C;
        memset(to, 0, (size_t)(W * C) * sizeof *to);
        if (row % H % stride) continue;
        const float *from = dy + (row / H * P + row % H / stride) * Q * K;
        for (int64_t q = 0; q < Q; q++) memcpy(to + q * stride * C, from + q * K, (size_t)C * sizeof *to);
    }
}

/* ---- avgpool ---- */

/* Means over the pixels, in double, for CR_STRIP channels at a time. */
CR_BY_LEVEL(void, mean_image, (const float *x, float *y, int64_t pixels, int64_t channels), (x, y, pixels, channels)) {
    for (int64_t c = 0; c < channels; c += CR_STRIP) {
        double  sum[CR_STRIP] = {0};
        int64_t n             = CR_MIN((int64_t)CR_STRIP, channels - c);
        for (int64_t i = 0; i < pixels; i++)
            for (int64_t k = 0; k < n; k++) sum[k] += (double)x[i * channels + c + k];
        for (int64_t k = 0; k < n; k++) y[c + k] = (float)(sum[k] / (double)pixels);
    }
}

CR_CPU_LAUNCH(avgpool_launch) {
    const struct cr_tensor *t      = &call->program->tensor[call->op->in[CR_IN_avgpool_x]];
    const float            *x      = call->in[CR_IN_avgpool_x];
    float                  *y      = call->out[CR_OUT_avgpool_y];
    int64_t                 pixels = t->dim[1] * t->dim[2], C = t->dim[3], images = t->dim[0];
    CR_PARALLEL(n, images) mean_image(x + n * pixels * C, y + n * C, pixels, C);
}

CR_CPU_LAUNCH(avgpool_grad_launch) {
    const struct cr_tensor *t      = output(call);
    const float            *dy     = call->in[CR_IN_avgpool_grad_dy];
    float                  *dx     = call->out[CR_OUT_avgpool_grad_dx];
    int64_t                 pixels = t->dim[1] * t->dim[2], C = t->dim[3], images = t->dim[0];
    CR_PARALLEL(n, images) {
        float *first = dx + n * pixels * C;
        for (int64_t c = 0; c < C; c++) first[c] = dy[n * C + c] / (float)pixels;
        for (int64_t i = 1; i < pixels; i++) memcpy(first + i * C, first, (size_t)C * sizeof *first);
    }
}

const struct cr_kernel cr_cpu_pointwise_kernels[] = {
    CR_CPU_KERNEL(relu, CR_MATH_EXACT),
    CR_CPU_KERNEL(relu_grad, CR_MATH_EXACT, .accepts = cr_has_plain_mask),
    CR_CPU_KERNEL(add, CR_MATH_F32),
    CR_CPU_KERNEL(normalize, CR_MATH_F32, .optional_in = CR_IN_BIT(normalize, boxes), .accepts = normalize_accepts),
    CR_CPU_KERNEL(pad_shortcut_grad, CR_MATH_EXACT),
    CR_CPU_KERNEL(avgpool, CR_MATH_F32),
    CR_CPU_KERNEL(avgpool_grad, CR_MATH_F32),
    {0}};
