/* device/cpu/tuned/bn_apply.c: tuned kernels that are affine in each channel: bn_apply, bn_grad_apply, channel_scale.
 * They read each operand once and are limited by memory. */
#include "device/cpu/simd.h"

#include <math.h>

enum { AFFINE_PARTS = 4 }; /* parts of the repeated coefficients: scale, bias, add_scale, add_bias, or a, b, c */

CR_CPU_WORKSPACE(affine_bytes) {
    return (size_t)cr_simd_shape_of(&p->tensor[op->out[0]]).width * AFFINE_PARTS * sizeof(float);
}

/* ---- bn_apply ---- */

enum add_kind { ADD_NONE, ADD_PLAIN, ADD_AFFINE };

struct apply_call {
    const float *x, *add, *scale, *bias, *add_scale, *add_bias; /* coefficients: one row each */
    float       *y, least;                                      /* least: 0 for a ReLU, else -INFINITY */
    bool         stream; /* non-temporal stores: y is large and is not one of the inputs */
};

static inline __attribute__((always_inline)) float apply_one(const struct apply_call *a, int64_t at, int64_t i,
                                                             enum add_kind add) {
    float v = a->x[at] * a->scale[i] + a->bias[i];
    if (add == ADD_PLAIN) v += a->add[at];
    if (add == ADD_AFFINE) v += a->add[at] * a->add_scale[i] + a->add_bias[i];
    return v < a->least ? a->least : v; /* NaN stays NaN */
}

static inline __attribute__((always_inline)) void apply_rows(const struct apply_call *a, int64_t begin, int64_t end,
                                                             int64_t width, enum add_kind add) {
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * width, i = 0;
        for (; i + CR_STRIP <= width; i += CR_STRIP) {
            float v[CR_STRIP]; /* y may be x or add, so the strip is read before it is written */
            cr_strip_prefetch(a->x + at + i);
            if (add != ADD_NONE) cr_strip_prefetch(a->add + at + i);
            for (int k = 0; k < CR_STRIP; k++) v[k] = apply_one(a, at + i + k, i + k, add);
            cr_strip_store(a->y + at + i, v, a->stream);
        }
        for (; i < width; i++) a->y[at + i] = apply_one(a, at + i, i, add);
    }
    cr_strip_fence(a->stream);
}

CR_BY_LEVEL(void, apply, (const struct apply_call *a, int64_t begin, int64_t end, int64_t width, enum add_kind add),
            (a, begin, end, width, add)) {
    switch (add) {
    case ADD_NONE: apply_rows(a, begin, end, width, ADD_NONE); break;
    case ADD_PLAIN: apply_rows(a, begin, end, width, ADD_PLAIN); break;
    case ADD_AFFINE: apply_rows(a, begin, end, width, ADD_AFFINE); break;
    }
}

CR_CPU_LAUNCH(bn_apply_launch) {
    const struct cr_tensor    *y          = &call->program->tensor[call->op->out[CR_OUT_bn_apply_y]];
    const struct cr_simd_shape l          = cr_simd_shape_of(y);
    const float               *scale_bias = call->in[CR_IN_bn_apply_scale_bias],
                *add_scale_bias           = call->in[CR_IN_bn_apply_add_scale_bias];
    float            *rows                = call->workspace;
    int64_t           w = l.width, C = l.channels;
    struct apply_call a   = {.x         = call->in[CR_IN_bn_apply_x],
                             .add       = call->in[CR_IN_bn_apply_add],
                             .y         = call->out[CR_OUT_bn_apply_y],
                             .least     = call->op->attr.bn.relu ? 0 : -INFINITY,
                             .scale     = rows,
                             .bias      = rows + w,
                             .add_scale = rows + 2 * w,
                             .add_bias  = rows + 3 * w};
    enum add_kind     add = !a.add ? ADD_NONE : add_scale_bias ? ADD_AFFINE : ADD_PLAIN;
    a.stream = w % CR_STRIP == 0 && cr_is_nontemporal(y, cr_cpu_threads(device)) && a.y != a.x && a.y != a.add;
    cr_simd_broadcast(&l, scale_bias, rows);
    cr_simd_broadcast(&l, scale_bias + C, rows + w);
    if (add_scale_bias) {
        cr_simd_broadcast(&l, add_scale_bias, rows + 2 * w);
        cr_simd_broadcast(&l, add_scale_bias + C, rows + 3 * w);
    }
    CR_EACH_RUN(l.rows, row, count, apply(&a, row, row + count, w, add));
    for (int64_t i = 0; i < l.tail; i++) a.y[l.rows * w + i] = apply_one(&a, l.rows * w + i, i, add);
}

/* ---- bn_grad_apply: dx = a*g + b*x + c ---- */

struct grad_call {
    const float *dy, *x, *y, *a, *b, *c;
    float       *dx;
};

static inline __attribute__((always_inline)) float grad_one(const struct grad_call *k, int64_t at, int64_t i,
                                                            bool masked) {
    float dy = k->dy[at]; /* loaded unconditionally, because compilers do not vectorise a conditional load */
    float g  = !masked || k->y[at] > 0 ? dy : 0.0f;
    return k->a[i] * g + k->b[i] * k->x[at] + k->c[i];
}

static inline __attribute__((always_inline)) void grad_rows(const struct grad_call *k, int64_t begin, int64_t end,
                                                            int64_t width, bool masked) {
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * width, i = 0;
        for (; i + CR_STRIP <= width; i += CR_STRIP) {
            float v[CR_STRIP];
            cr_strip_prefetch(k->dy + at + i);
            cr_strip_prefetch(k->x + at + i);
            if (masked) cr_strip_prefetch(k->y + at + i);
            for (int j = 0; j < CR_STRIP; j++) v[j] = grad_one(k, at + i + j, i + j, masked);
            for (int j = 0; j < CR_STRIP; j++) k->dx[at + i + j] = v[j];
        }
        for (; i < width; i++) k->dx[at + i] = grad_one(k, at + i, i, masked);
    }
}

CR_BY_LEVEL(void, grad, (const struct grad_call *k, int64_t begin, int64_t end, int64_t width),
            (k, begin, end, width)) {
    if (k->y)
        grad_rows(k, begin, end, width, true);
    else
        grad_rows(k, begin, end, width, false);
}

CR_CPU_LAUNCH(bn_grad_apply_launch) {
    const struct cr_simd_shape l = cr_simd_shape_of(&call->program->tensor[call->op->out[CR_OUT_bn_grad_apply_dx]]);
    const float               *coeffs = call->in[CR_IN_bn_grad_apply_coeffs];
    float                     *rows   = call->workspace;
    int64_t                    w = l.width, C = l.channels;
    struct grad_call           k = {.dy = call->in[CR_IN_bn_grad_apply_dy],
                                    .x  = call->in[CR_IN_bn_grad_apply_x],
                                    .y  = call->in[CR_IN_bn_grad_apply_y],
                                    .dx = call->out[CR_OUT_bn_grad_apply_dx],
                                    .a  = rows,
                                    .b  = rows + w,
                                    .c  = rows + 2 * w};
    for (int i = 0; i < 3; i++) cr_simd_broadcast(&l, coeffs + i * C, rows + i * w);
    CR_EACH_RUN(l.rows, row, count, grad(&k, row, row + count, w));
    for (int64_t i = 0; i < l.tail; i++) k.dx[l.rows * w + i] = grad_one(&k, l.rows * w + i, i, k.y != NULL);
}

/* ---- channel_scale ---- */

CR_BY_LEVEL(void, scale_rows,
            (const float *dy, const float *scale, float *dx, int64_t begin, int64_t end, int64_t width),
            (dy, scale, dx, begin, end, width)) {
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < width; i++) dx[r * width + i] = dy[r * width + i] * scale[i];
}

CR_CPU_LAUNCH(channel_scale_launch) {
    const struct cr_simd_shape l     = cr_simd_shape_of(&call->program->tensor[call->op->out[CR_OUT_channel_scale_dx]]);
    const float               *dy    = call->in[CR_IN_channel_scale_dy];
    float                     *scale = call->workspace, *dx = call->out[CR_OUT_channel_scale_dx];
    cr_simd_broadcast(&l, call->in[CR_IN_channel_scale_scale_bias], scale);
    CR_EACH_RUN(l.rows, row, count, scale_rows(dy, scale, dx, row, row + count, l.width));
    for (int64_t i = l.rows * l.width; i < l.rows * l.width + l.tail; i++) dx[i] = dy[i] * scale[i % l.width];
}

/* ---- fold_bn: into the filter of the convolution before ---- */

CR_BY_LEVEL(void, scale_filter, (const float *w, float scale, float *y, int64_t count), (w, scale, y, count)) {
    for (int64_t i = 0; i < count; i++) y[i] = w[i] * scale;
}

/* Programs of other types keep the parameters in f32. */
CR_CPU_ACCEPTS(fold_bn_accepts) {
    return p->tensor[op->out[CR_OUT_fold_bn_y]].dtype == CR_F32;
}

CR_CPU_LAUNCH(fold_bn_launch) {
    const struct cr_tensor *filter = &call->program->tensor[call->op->in[CR_IN_fold_bn_w]];
    const int64_t           K = filter->dim[0], elems = cr_tensor_elems(filter) / K;
    const float            *w    = call->in[CR_IN_fold_bn_w];            /* [K,R,S,C] */
    const float            *mean = call->in[CR_IN_fold_bn_running_mean]; /* [K], as all that follow */
    const float            *var = call->in[CR_IN_fold_bn_running_var], *gamma = call->in[CR_IN_fold_bn_gamma];
    const float            *beta = call->in[CR_IN_fold_bn_beta];
    float                  *y    = call->out[CR_OUT_fold_bn_y]; /* [K,R,S,C] */
    float                  *bias = call->out[CR_OUT_fold_bn_bias];
    CR_PARALLEL(k, K) {
        const double scale = (double)gamma[k] / sqrt((double)var[k] + (double)call->op->attr.bn.eps);
        bias[k]            = (float)((double)beta[k] - (double)mean[k] * scale);
        scale_filter(w + k * elems, (float)scale, y + k * elems, elems);
    }
}

#define AFFINE_KERNEL(kind, ...) CR_CPU_KERNEL(kind, CR_MATH_F32, .workspace = affine_bytes, __VA_ARGS__)
const struct cr_kernel cr_cpu_bn_apply_kernels[] = {
    AFFINE_KERNEL(bn_apply, .optional_in = CR_IN_BIT(bn_apply, mean_rstd) | CR_IN_BIT(bn_apply, add) |
                                           CR_IN_BIT(bn_apply, add_scale_bias)),
    AFFINE_KERNEL(bn_grad_apply, .optional_in = CR_IN_BIT(bn_grad_apply, y), .accepts = cr_has_plain_mask),
    AFFINE_KERNEL(channel_scale),
    CR_CPU_KERNEL(fold_bn, CR_MATH_F32, .accepts = fold_bn_accepts),
    {0}};
