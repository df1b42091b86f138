/* device/cpu/tuned/pool.c: tuned kernels for max-pooling, anti-aliased subsampling and their gradients. The inner
 * loop runs over channels. */
#include "device/cpu/simd.h"

#include <math.h>
#include <string.h>

struct window {
    int64_t H, W, C, P, Q, images; /* of x and y */
    int64_t size, stride, pad;
};

static struct window window_of(const struct cr_call *call, const struct cr_tensor *x, const struct cr_tensor *y) {
    const struct cr_conv_attr *a = &call->op->attr.conv;
    return (struct window){.H      = x->dim[1],
                           .W      = x->dim[2],
                           .C      = x->dim[3],
                           .P      = y->dim[1],
                           .Q      = y->dim[2],
                           .images = x->dim[0],
                           .size   = a->window,
                           .stride = a->stride,
                           .pad    = a->pad};
}

/* Updates the maximum with pixel x: the first of equal values wins, and the first NaN wins over all numbers. */
static inline __attribute__((always_inline)) void update_max(const float *x, float *best, uint8_t *index,
                                                             int64_t channels, uint8_t at) {
    for (int64_t c = 0; c < channels; c++) {
        bool wins = x[c] > best[c] || (x[c] != x[c] && best[c] == best[c]);
        best[c]   = wins ? x[c] : best[c];
        if (index) index[c] = wins ? at : index[c];
    }
}

CR_BY_LEVEL(void, pool_row, (const struct window *v, const float *x, float *y, uint8_t *index, int64_t p),
            (v, x, y, index, p)) {
    for (int64_t q = 0; q < v->Q; q++, y += v->C, index = index ? index + v->C : NULL) {
        bool first = true;
        for (int64_t r = 0; r < v->size; r++) {
            int64_t h = p * v->stride - v->pad + r;
            for (int64_t s = 0; s < v->size && h >= 0 && h < v->H; s++) {
                int64_t      w     = q * v->stride - v->pad + s;
                const float *pixel = x + (h * v->W + w) * v->C;
                uint8_t      at    = (uint8_t)(r * v->size + s);
                if (w < 0 || w >= v->W) continue;
                if (first) {
                    memcpy(y, pixel, (size_t)v->C * sizeof *y);
                    if (index) memset(index, at, (size_t)v->C);
                } else if (index)
                    update_max(pixel, y, index, v->C, at);
                else
                    update_max(pixel, y, NULL, v->C, at);
                first = false;
            }
        }
    }
}

CR_CPU_LAUNCH(maxpool_launch) {
    const struct cr_tensor *tensor = call->program->tensor;
    struct window v = window_of(call, &tensor[call->op->in[CR_IN_maxpool_x]], &tensor[call->op->out[CR_OUT_maxpool_y]]);
    const float  *x = call->in[CR_IN_maxpool_x];
    float        *y = call->out[CR_OUT_maxpool_y];
    uint8_t      *index = call->out[CR_OUT_maxpool_index];
    CR_PARALLEL(row, v.images * v.P) {
        int64_t at = row * v.Q * v.C;
        pool_row(&v, x + row / v.P * v.H * v.W * v.C, y + at, index ? index + at : NULL, row % v.P);
    }
}

/* One image: the gradient of every window is added to the pixel that was its maximum. */
CR_BY_LEVEL(void, scatter_image, (const struct window *v, const float *dy, const uint8_t *index, float *dx),
            (v, dy, index, dx)) {
    memset(dx, 0, (size_t)(v->H * v->W * v->C) * sizeof *dx);
    for (int64_t p = 0; p < v->P; p++)
        for (int64_t q = 0; q < v->Q; q++, dy += v->C, index += v->C)
            for (int64_t c = 0; c < v->C; c++) {
                int64_t h = p * v->stride - v->pad + index[c] / v->size,
                        w = q * v->stride - v->pad + index[c] % v->size;
                if (h >= 0 && h < v->H && w >= 0 && w < v->W) dx[(h * v->W + w) * v->C + c] += dy[c];
            }
}

CR_CPU_LAUNCH(maxpool_grad_launch) {
    const struct cr_tensor *tensor = call->program->tensor;
    struct window           v =
        window_of(call, &tensor[call->op->out[CR_OUT_maxpool_grad_dx]], &tensor[call->op->in[CR_IN_maxpool_grad_dy]]);
    const float   *dy    = call->in[CR_IN_maxpool_grad_dy];
    const uint8_t *index = call->in[CR_IN_maxpool_grad_index];
    float         *dx    = call->out[CR_OUT_maxpool_grad_dx];
    CR_PARALLEL(n, v.images)
        scatter_image(&v, dy + n * v.P * v.Q * v.C, index + n * v.P * v.Q * v.C, dx + n * v.H * v.W * v.C);
}

/* ---- anti-aliased subsampling ---- */

struct blur {
    int64_t H, W, C, P, Q, images; /* of x (dx) and y (dy) */
};

static struct blur blur_of(const struct cr_tensor *x, const struct cr_tensor *y) {
    return (struct blur){
        .H = x->dim[1], .W = x->dim[2], .C = x->dim[3], .P = y->dim[1], .Q = y->dim[2], .images = x->dim[0]};
}

/* The index that tap 0, 1 or 2 of output p reads on an axis of `size` pixels. */
static int64_t blur_index(int64_t p, int tap, int64_t size) {
    const int64_t at = 2 * p + tap - 1, inside = at < 0 ? -at : at >= size ? 2 * size - 2 - at : at;
    return size == 1 ? 0 : inside;
}

/* x: one image, y: its row p */
CR_BY_LEVEL(void, blur_row, (const struct blur *b, const float *x, float *y, int64_t p), (b, x, y, p)) {
    const int64_t C  = b->C;
    const float  *up = x + blur_index(p, 0, b->H) * b->W * C, *middle = x + blur_index(p, 1, b->H) * b->W * C,
                *down = x + blur_index(p, 2, b->H) * b->W * C;
    for (int64_t q = 0; q < b->Q; q++, y += C) {
        const int64_t l = blur_index(q, 0, b->W) * C, m = blur_index(q, 1, b->W) * C, r = blur_index(q, 2, b->W) * C;
        for (int64_t c = 0; c < C; c++) {
            const float corners = (up[l + c] + up[r + c]) + (down[l + c] + down[r + c]);
            const float sides   = (up[m + c] + down[m + c]) + (middle[l + c] + middle[r + c]);
            y[c]                = 0.0625f * corners + 0.125f * sides + 0.25f * middle[m + c];
        }
    }
}

CR_CPU_LAUNCH(blurpool_launch) {
    const struct cr_tensor *tensor = call->program->tensor;
    const struct blur b = blur_of(&tensor[call->op->in[CR_IN_blurpool_x]], &tensor[call->op->out[CR_OUT_blurpool_y]]);
    const float      *x = call->in[CR_IN_blurpool_x];
    float            *y = call->out[CR_OUT_blurpool_y];
    CR_PARALLEL(row, b.images * b.P) blur_row(&b, x + row / b.P * b.H * b.W * b.C, y + row * b.Q * b.C, row % b.P);
}

/* The sum of the weights with which output p reads pixel h; 0 for an output beyond the last one. */
static float blur_weight(int64_t p, int64_t outputs, int64_t h, int64_t size) {
    float sum = 0;
    for (int tap = 0; tap < 3 && p < outputs; tap++)
        if (blur_index(p, tap, size) == h) sum += tap == 1 ? 0.5f : 0.25f;
    return sum;
}

/* The outputs that read pixel h of an axis, h/2 and the next one, and their weights. Where only one does, it is both
 * with half of its weight: a weight of 0 would turn infinities into NaN. */
struct readers {
    int64_t at[2];
    float   weight[2];
};
static struct readers readers_of(int64_t h, int64_t size, int64_t outputs) {
    const int64_t p = h / 2;
    if (h > 1 && h < size - 2) return (struct readers){{p, p + h % 2}, {0.25f, 0.25f}}; /* no reflection */
    const float first = blur_weight(p, outputs, h, size), second = blur_weight(p + 1, outputs, h, size);
    if (second > 0) return (struct readers){{p, p + 1}, {first, second}};
    return (struct readers){{p, p}, {first / 2, first / 2}};
}

/* dx = sum of two rows of dy with two pixels each; [channels] */
static inline __attribute__((always_inline)) void blur_grad_pixel(const float *const dy[4], const float weight[4],
                                                                  float *restrict dx, int64_t           channels) {
    const float *restrict const a = dy[0], *restrict const b = dy[1], *restrict const c = dy[2],
                                *restrict const d = dy[3];
    const float wa = weight[0], wb = weight[1], wc = weight[2], wd = weight[3];
    for (int64_t i = 0; i < channels; i++) dx[i] = (wa * a[i] + wb * b[i]) + (wc * c[i] + wd * d[i]);
}

/* dy: one image, dx: its row h */
CR_BY_LEVEL(void, blur_grad_row, (const struct blur *b, const float *dy, float *dx, int64_t h), (b, dy, dx, h)) {
    const struct readers rows = readers_of(h, b->H, b->P);
    for (int64_t w = 0; w < b->W; w++) {
        const struct readers columns = readers_of(w, b->W, b->Q);
        const float         *from[4];
        float                weight[4];
        for (int k = 0; k < 4; k++) {
            from[k]   = dy + (rows.at[k / 2] * b->Q + columns.at[k % 2]) * b->C;
            weight[k] = rows.weight[k / 2] * columns.weight[k % 2];
        }
        blur_grad_pixel(from, weight, dx + w * b->C, b->C);
    }
}

CR_CPU_LAUNCH(blurpool_grad_launch) {
    const struct cr_tensor *tensor = call->program->tensor;
    const struct blur       b =
        blur_of(&tensor[call->op->out[CR_OUT_blurpool_grad_dx]], &tensor[call->op->in[CR_IN_blurpool_grad_dy]]);
    const float *dy = call->in[CR_IN_blurpool_grad_dy];
    float       *dx = call->out[CR_OUT_blurpool_grad_dx];
    CR_PARALLEL(row, b.images * b.H)
        blur_grad_row(&b, dy + row / b.H * b.P * b.Q * b.C, dx + row * b.W * b.C, row % b.H);
}

const struct cr_kernel cr_cpu_pool_kernels[] = {
    CR_CPU_KERNEL(maxpool, CR_MATH_EXACT, .optional_out = CR_OUT_BIT(maxpool, index)),
    CR_CPU_KERNEL(maxpool_grad, CR_MATH_F32),
    CR_CPU_KERNEL(blurpool, CR_MATH_F32),
    CR_CPU_KERNEL(blurpool_grad, CR_MATH_F32),
    {0}};
