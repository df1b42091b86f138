/* device/cpu/reference/ref_relu_grad.c: channel scale of squeeze-and-excitation, 2x2 average pooling (ResNet-D), blur
 * pooling (anti-aliased subsampling), and their gradients. */
#include "device/cpu/reference/ref.h"

/* ---- sigmoid, without overflow for large arguments ---- */

static double sigmoid(double x) {
    const double e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : x < 0 ? e / (1 + e) : x; /* NaN stays NaN */
}

static double sigmoid_slope(double x) {
    const double e = exp(-fabs(x));
    return e / ((1 + e) * (1 + e));
}

/* The logit of the channel of element i of x. */
static double logit_of(const struct ref *logit, const struct ref *x, int64_t i) {
    return ref_get(logit, i / (x->H * x->W * x->C) * x->C + i % x->C);
}

REF_KERNEL(se_scale) {
    struct ref x = REF_IN(se_scale, x), logit = REF_IN(se_scale, logit), y = REF_OUT(se_scale, y);
    CR_PARALLEL(i, y.elems) ref_put(&y, i, ref_get(&x, i) * sigmoid(logit_of(&logit, &x, i)));
}

REF_KERNEL(se_scale_grad) {
    struct ref    dy = REF_IN(se_scale_grad, dy), x = REF_IN(se_scale_grad, x), logit = REF_IN(se_scale_grad, logit);
    struct ref    dx = REF_OUT(se_scale_grad, dx), dlogit = REF_OUT(se_scale_grad, dlogit);
    const int64_t C = x.C, pixels = x.H * x.W;
    CR_PARALLEL(k, dlogit.elems) {
        double sum = 0;
        for (int64_t m = 0; m < pixels; m++) {
            const int64_t i = (k / C * pixels + m) * C + k % C;
            sum += ref_get(&dy, i) * ref_get(&x, i);
        }
        ref_put(&dlogit, k, sigmoid_slope(ref_get(&logit, k)) * sum);
    }
    CR_PARALLEL(i, dx.elems) ref_put(&dx, i, ref_get(&dy, i) * sigmoid(logit_of(&logit, &x, i)));
}

/* ---- average of 2x2 pixels; at an odd border of the pixels inside the image ---- */

static int64_t side_of(int64_t p, int64_t size) {
    return CR_MIN(size - 2 * p, (int64_t)2);
}

REF_KERNEL(avgpool2x2) {
    struct ref x = REF_IN(avgpool2x2, x), y = REF_OUT(avgpool2x2, y);
    CR_PARALLEL(i, y.elems) {
        const int64_t c = i % y.C, q = i / y.C % y.W, p = i / y.C / y.W % y.H, n = i / y.C / y.W / y.H;
        const int64_t rows = side_of(p, x.H), columns = side_of(q, x.W);
        double        sum = 0;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t s = 0; s < columns; s++)
                sum += ref_get(&x, ((n * x.H + 2 * p + r) * x.W + 2 * q + s) * x.C + c);
        ref_put(&y, i, sum / (double)(rows * columns));
    }
}

REF_KERNEL(avgpool2x2_grad) {
    struct ref dy = REF_IN(avgpool2x2_grad, dy), dx = REF_OUT(avgpool2x2_grad, dx);
    CR_PARALLEL(i, dx.elems) {
        const int64_t c = i % dx.C, p = i / dx.C / dx.W % dx.H / 2, q = i / dx.C % dx.W / 2, n = i / dx.C / dx.W / dx.H;
        const double  count = (double)(side_of(p, dx.H) * side_of(q, dx.W));
        ref_put(&dx, i, ref_get(&dy, ((n * dy.H + p) * dy.W + q) * dy.C + c) / count);
    }
}

/* ---- anti-aliased subsampling: 3x3 taps with stride 2 over an image with a reflected border ---- */

/* The index that tap 0, 1 or 2 of output p reads on an axis of `size` pixels. */
static int64_t tap_index(int64_t p, int tap, int64_t size) {
    const int64_t at = 2 * p + tap - 1, inside = at < 0 ? -at : at >= size ? 2 * size - 2 - at : at;
    return size == 1 ? 0 : inside;
}

static double tap_weight(int tap) {
    return tap == 1 ? 0.5 : 0.25;
}

REF_KERNEL(blurpool) {
    struct ref x = REF_IN(blurpool, x), y = REF_OUT(blurpool, y);
    CR_PARALLEL(i, y.elems / y.C) {
        const int64_t q = i % y.W, p = i / y.W % y.H, n = i / y.W / y.H;
        int64_t       from[9];
        for (int t = 0; t < 9; t++)
            from[t] = ((n * x.H + tap_index(p, t / 3, x.H)) * x.W + tap_index(q, t % 3, x.W)) * x.C;
        for (int64_t c = 0; c < y.C; c++) {
            double sum = 0;
            for (int t = 0; t < 9; t++) sum += tap_weight(t / 3) * tap_weight(t % 3) * ref_get(&x, from[t] + c);
            ref_put(&y, i * y.C + c, sum);
        }
    }
}

/* The sum of the weights with which output p reads pixel h. */
static double weight_of(int64_t p, int64_t h, int64_t size) {
    double sum = 0;
    for (int tap = 0; tap < 3; tap++)
        if (tap_index(p, tap, size) == h) sum += tap_weight(tap);
    return sum;
}

/* Of the outputs, only h/2 and the next one read pixel h. */
REF_KERNEL(blurpool_grad) {
    struct ref dy = REF_IN(blurpool_grad, dy), dx = REF_OUT(blurpool_grad, dx);
    CR_PARALLEL(i, dx.elems / dx.C) {
        const int64_t w = i % dx.W, h = i / dx.W % dx.H, n = i / dx.W / dx.H;
        double        weight[4];
        int64_t       from[4];
        for (int k = 0; k < 4; k++) {
            const int64_t p = h / 2 + k / 2, q = w / 2 + k % 2;
            const bool    inside = p < dy.H && q < dy.W;
            weight[k]            = inside ? weight_of(p, h, dx.H) * weight_of(q, w, dx.W) : 0;
            from[k]              = inside ? ((n * dy.H + p) * dy.W + q) * dy.C : 0;
        }
        for (int64_t c = 0; c < dx.C; c++) {
            double sum = 0;
            for (int k = 0; k < 4; k++)
                if (weight[k] > 0) sum += weight[k] * ref_get(&dy, from[k] + c);
            ref_put(&dx, i * dx.C + c, sum);
        }
    }
}
