/* device/cpu/reference/ref_relu_grad.c: the channel scale of squeeze-and-excitation, 2x2 average pooling (ResNet-D),
 * and their gradients. */
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

cr_status cr_ref_se_scale(struct cr_device *device, const struct cr_call *call) {
    struct ref x = REF_IN(se_scale, x), logit = REF_IN(se_scale, logit), y = REF_OUT(se_scale, y);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < y.elems; i++) ref_put(&y, i, ref_get(&x, i) * sigmoid(logit_of(&logit, &x, i)));
    return CR_OK;
}

cr_status cr_ref_se_scale_grad(struct cr_device *device, const struct cr_call *call) {
    struct ref    dy = REF_IN(se_scale_grad, dy), x = REF_IN(se_scale_grad, x), logit = REF_IN(se_scale_grad, logit);
    struct ref    dx = REF_OUT(se_scale_grad, dx), dlogit = REF_OUT(se_scale_grad, dlogit);
    const int64_t C = x.C, pixels = x.H * x.W;
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t k = 0; k < dlogit.elems; k++) {
        double sum = 0;
        for (int64_t m = 0; m < pixels; m++) {
            const int64_t i = (k / C * pixels + m) * C + k % C;
            sum += ref_get(&dy, i) * ref_get(&x, i);
        }
        ref_put(&dlogit, k, sigmoid_slope(ref_get(&logit, k)) * sum);
    }
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < dx.elems; i++) ref_put(&dx, i, ref_get(&dy, i) * sigmoid(logit_of(&logit, &x, i)));
    return CR_OK;
}

/* ---- average of 2x2 pixels; at an odd border of the pixels inside the image ---- */

static int64_t side_of(int64_t p, int64_t size) {
    return CR_MIN(size - 2 * p, (int64_t)2);
}

cr_status cr_ref_avgpool2x2(struct cr_device *device, const struct cr_call *call) {
    struct ref x = REF_IN(avgpool2x2, x), y = REF_OUT(avgpool2x2, y);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < y.elems; i++) {
        const int64_t c = i % y.C, q = i / y.C % y.W, p = i / y.C / y.W % y.H, n = i / y.C / y.W / y.H;
        const int64_t rows = side_of(p, x.H), columns = side_of(q, x.W);
        double        sum = 0;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t s = 0; s < columns; s++)
                sum += ref_get(&x, ((n * x.H + 2 * p + r) * x.W + 2 * q + s) * x.C + c);
        ref_put(&y, i, sum / (double)(rows * columns));
    }
    return CR_OK;
}

cr_status cr_ref_avgpool2x2_grad(struct cr_device *device, const struct cr_call *call) {
    struct ref dy = REF_IN(avgpool2x2_grad, dy), dx = REF_OUT(avgpool2x2_grad, dx);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < dx.elems; i++) {
        const int64_t c = i % dx.C, p = i / dx.C / dx.W % dx.H / 2, q = i / dx.C % dx.W / 2, n = i / dx.C / dx.W / dx.H;
        const double  count = (double)(side_of(p, dx.H) * side_of(q, dx.W));
        ref_put(&dx, i, ref_get(&dy, ((n * dy.H + p) * dy.W + q) * dy.C + c) / count);
    }
    return CR_OK;
}
