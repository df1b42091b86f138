/* device/cpu/tuned/pool.c: tuned kernels for max-pooling and its gradient. The inner loop runs over channels. */
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

CR_CLONES static void pool_row(const struct window *v, const float *x, float *y, uint8_t *index, int64_t p) {
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

static cr_status maxpool_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *tensor = call->program->tensor;
    struct window v = window_of(call, &tensor[call->op->in[CR_IN_maxpool_x]], &tensor[call->op->out[CR_OUT_maxpool_y]]);
    const float  *x = call->in[CR_IN_maxpool_x];
    float        *y = call->out[CR_OUT_maxpool_y];
    uint8_t      *index = call->out[CR_OUT_maxpool_index];
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t row = 0; row < v.images * v.P; row++) {
        int64_t at = row * v.Q * v.C;
        pool_row(&v, x + row / v.P * v.H * v.W * v.C, y + at, index ? index + at : NULL, row % v.P);
    }
    return CR_OK;
}

/* One image: the gradient of every window is added to the pixel that was its maximum. */
CR_CLONES static void scatter_image(const struct window *v, const float *dy, const uint8_t *index, float *dx) {
    memset(dx, 0, (size_t)(v->H * v->W * v->C) * sizeof *dx);
    for (int64_t p = 0; p < v->P; p++)
        for (int64_t q = 0; q < v->Q; q++, dy += v->C, index += v->C)
            for (int64_t c = 0; c < v->C; c++) {
                int64_t h = p * v->stride - v->pad + index[c] / v->size,
                        w = q * v->stride - v->pad + index[c] % v->size;
                if (h >= 0 && h < v->H && w >= 0 && w < v->W) dx[(h * v->W + w) * v->C + c] += dy[c];
            }
}

static cr_status maxpool_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *tensor = call->program->tensor;
    struct window           v =
        window_of(call, &tensor[call->op->out[CR_OUT_maxpool_grad_dx]], &tensor[call->op->in[CR_IN_maxpool_grad_dy]]);
    const float   *dy    = call->in[CR_IN_maxpool_grad_dy];
    const uint8_t *index = call->in[CR_IN_maxpool_grad_index];
    float         *dx    = call->out[CR_OUT_maxpool_grad_dx];
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t n = 0; n < v.images; n++)
        scatter_image(&v, dy + n * v.P * v.Q * v.C, index + n * v.P * v.Q * v.C, dx + n * v.H * v.W * v.C);
    return CR_OK;
}

static bool pool_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cr_cpu_supports(op) && p->tensor[op->in[0]].dtype == CR_F32;
}

const struct cr_kernel cr_cpu_maxpool      = {CR_KERNEL("cpu.maxpool", maxpool, CR_MATH_EXACT), .accepts = pool_accepts,
                                              .launch = maxpool_launch};
const struct cr_kernel cr_cpu_maxpool_grad = {CR_KERNEL("cpu.maxpool_grad", maxpool_grad, CR_MATH_F32),
                                              .accepts = pool_accepts, .launch = maxpool_grad_launch};
