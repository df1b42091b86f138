/* device/cpu/reference/ref_group_conv.c: grouped convolution, the convolution over channels of efficient channel
 * attention, and their gradients. */
#include "device/cpu/reference/ref.h"

struct group_conv {
    struct ref x, w, y;              /* or their gradients */
    int64_t    stride, pad, filters; /* filters: of a group */
};

static struct group_conv conv_of(const struct cr_call *call, struct ref x, struct ref w, struct ref y) {
    const struct cr_conv_attr *a = &call->op->attr.conv;
    return (struct group_conv){x, w, y, a->stride, a->pad, w.N / (x.C / w.C)};
}

REF_INLINE int64_t at4(const struct ref *t, int64_t n, int64_t h, int64_t w, int64_t c) {
    return ((n * t->H + h) * t->W + w) * t->C + c;
}

/* Element i of y: sum of x * w over its window and the channels of its group. */
static double forward_sum(const struct group_conv *v, int64_t i) {
    const struct ref *x = &v->x, *w = &v->w, *y = &v->y;
    const int64_t     k = i % y->C, q = i / y->C % y->W, p = i / y->C / y->W % y->H, n = i / y->C / y->W / y->H;
    const int64_t     c0  = k / v->filters * w->C;
    double            sum = 0;
    for (int64_t r = 0; r < w->H; r++) {
        const int64_t h = p * v->stride - v->pad + r;
        for (int64_t s = 0; s < w->W && h >= 0 && h < x->H; s++) {
            const int64_t at = q * v->stride - v->pad + s;
            for (int64_t c = 0; c < w->C && at >= 0 && at < x->W; c++)
                sum += ref_get(x, at4(x, n, h, at, c0 + c)) * ref_get(w, at4(w, k, r, s, c));
        }
    }
    return sum;
}

/* The output row or column that reads input position `at` through tap `tap`; -1: none. */
static int64_t output_of(int64_t at, int64_t tap, int64_t stride, int64_t pad, int64_t outputs) {
    const int64_t shifted = at + pad - tap;
    return shifted >= 0 && shifted % stride == 0 && shifted / stride < outputs ? shifted / stride : -1;
}

/* Element i of dx: sum over the outputs that read it and the filters of its group. */
static double dgrad_sum(const struct group_conv *v, int64_t i) {
    const struct ref *dx = &v->x, *w = &v->w, *dy = &v->y;
    const int64_t c = i % dx->C, at = i / dx->C % dx->W, h = i / dx->C / dx->W % dx->H, n = i / dx->C / dx->W / dx->H;
    const int64_t k0  = c / w->C * v->filters;
    double        sum = 0;
    for (int64_t r = 0; r < w->H; r++) {
        const int64_t p = output_of(h, r, v->stride, v->pad, dy->H);
        for (int64_t s = 0; s < w->W && p >= 0; s++) {
            const int64_t q = output_of(at, s, v->stride, v->pad, dy->W);
            for (int64_t k = k0; k < k0 + v->filters && q >= 0; k++)
                sum += ref_get(dy, at4(dy, n, p, q, k)) * ref_get(w, at4(w, k, r, s, c % w->C));
        }
    }
    return sum;
}

/* Element i of dw: sum over the pixels of dy. */
static double wgrad_sum(const struct group_conv *v, int64_t i) {
    const struct ref *x = &v->x, *dw = &v->w, *dy = &v->y;
    const int64_t c = i % dw->C, s = i / dw->C % dw->W, r = i / dw->C / dw->W % dw->H, k = i / dw->C / dw->W / dw->H;
    const int64_t from = k / v->filters * dw->C + c;
    double        sum  = 0;
    for (int64_t n = 0; n < dy->N; n++)
        for (int64_t p = 0; p < dy->H; p++) {
            const int64_t h = p * v->stride - v->pad + r;
            for (int64_t q = 0; q < dy->W && h >= 0 && h < x->H; q++) {
                const int64_t at = q * v->stride - v->pad + s;
                if (at >= 0 && at < x->W) sum += ref_get(dy, at4(dy, n, p, q, k)) * ref_get(x, at4(x, n, h, at, from));
            }
        }
    return sum;
}

cr_status cr_ref_group_conv(struct cr_device *device, const struct cr_call *call) {
    const struct group_conv v = conv_of(call, REF_IN(group_conv, x), REF_IN(group_conv, w), REF_OUT(group_conv, y));
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < v.y.elems; i++) ref_put(&v.y, i, forward_sum(&v, i));
    return CR_OK;
}

cr_status cr_ref_group_conv_dgrad(struct cr_device *device, const struct cr_call *call) {
    const struct group_conv v =
        conv_of(call, REF_OUT(group_conv_dgrad, dx), REF_IN(group_conv_dgrad, w), REF_IN(group_conv_dgrad, dy));
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < v.x.elems; i++) ref_put(&v.x, i, dgrad_sum(&v, i));
    return CR_OK;
}

cr_status cr_ref_group_conv_wgrad(struct cr_device *device, const struct cr_call *call) {
    const struct group_conv v =
        conv_of(call, REF_IN(group_conv_wgrad, x), REF_OUT(group_conv_wgrad, dw), REF_IN(group_conv_wgrad, dy));
    const bool add = call->op->attr.conv.accumulate;
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < v.w.elems; i++) ref_put(&v.w, i, (add ? ref_get(&v.w, i) : 0) + wgrad_sum(&v, i));
    return CR_OK;
}

/* ---- the filter over channels: the tensors have one pixel, so tuned kernels would save nothing ---- */

/* sum over j of w[j] * x[n, c + direction * (j - L/2)], i = n*C + c */
static double sum_at(const struct ref *x, const struct ref *w, int64_t i, int direction) {
    const int64_t c = i % x->C, half = w->C / 2;
    double        sum = 0;
    for (int64_t j = 0; j < w->C; j++) {
        const int64_t from = c + direction * (j - half);
        if (from >= 0 && from < x->C) sum += ref_get(w, j) * ref_get(x, i - c + from);
    }
    return sum;
}

cr_status cr_ref_channel_conv(struct cr_device *device, const struct cr_call *call) {
    struct ref x = REF_IN(channel_conv, x), w = REF_IN(channel_conv, w), y = REF_OUT(channel_conv, y);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < y.elems; i++) ref_put(&y, i, sum_at(&x, &w, i, 1));
    return CR_OK;
}

cr_status cr_ref_channel_conv_dgrad(struct cr_device *device, const struct cr_call *call) {
    struct ref dy = REF_IN(channel_conv_dgrad, dy), w = REF_IN(channel_conv_dgrad, w),
               dx = REF_OUT(channel_conv_dgrad, dx);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < dx.elems; i++) ref_put(&dx, i, sum_at(&dy, &w, i, -1));
    return CR_OK;
}

cr_status cr_ref_channel_conv_wgrad(struct cr_device *device, const struct cr_call *call) {
    struct ref x = REF_IN(channel_conv_wgrad, x), dy = REF_IN(channel_conv_wgrad, dy),
               dw  = REF_OUT(channel_conv_wgrad, dw);
    const bool add = call->op->attr.dense.accumulate;
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t j = 0; j < dw.elems; j++) {
        double sum = 0;
        for (int64_t i = 0; i < x.elems; i++) {
            const int64_t c = i % x.C, from = c + j - dw.elems / 2;
            if (from >= 0 && from < x.C) sum += ref_get(&dy, i) * ref_get(&x, i - c + from);
        }
        ref_put(&dw, j, add ? ref_get(&dw, j) + sum : sum);
    }
    return CR_OK;
}
