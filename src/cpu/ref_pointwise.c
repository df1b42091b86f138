/* ref_pointwise.c: ops that look at one element at a time. */
#include "ref.h"

/* Channel c of what stands at (h, w) when picture n is shifted and mirrored as its box says; black outside. */
static double boxed_pixel(const struct ref *images, const struct ref *boxes, int64_t n, int64_t h, int64_t w,
                          int64_t c) {
    if (boxes->data) {
        h += (int64_t)ref_get(boxes, 4 * n);
        if (ref_get(boxes, 4 * n + 2) != 0) w = images->W - 1 - w;
        w += (int64_t)ref_get(boxes, 4 * n + 1);
    }
    if (h < 0 || h >= images->H || w < 0 || w >= images->W) return 0;
    return ref_get(images, ((n * images->H + h) * images->W + w) * 3 + c);
}

cr_status cr_ref_normalize(struct cr_device *device, const struct cr_call *call) {
    const struct cr_input_attr *a      = &call->op->attr.input;
    struct ref                  images = REF_IN(normalize, images), boxes = REF_IN(normalize, boxes);
    struct ref                  y      = REF_OUT(normalize, y);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < y.elems; i++) {
        const int64_t c = i % 3, w = i / 3 % y.W, h = i / 3 / y.W % y.H, n = i / 3 / y.W / y.H;
        ref_put(&y, i, (boxed_pixel(&images, &boxes, n, h, w, c) / 255 - (double)a->mean[c]) / (double)a->std[c]);
    }
    return CR_OK;
}

cr_status cr_ref_relu(struct cr_device *device, const struct cr_call *call) {
    struct ref x = REF_IN(relu, x), y = REF_OUT(relu, y);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < y.elems; i++) {
        double v = ref_get(&x, i);
        ref_put(&y, i, v < 0 ? 0 : v); /* NaN stays NaN */
    }
    return CR_OK;
}

cr_status cr_ref_relu_grad(struct cr_device *device, const struct cr_call *call) {
    struct ref dy = REF_IN(relu_grad, dy), y = REF_IN(relu_grad, y), dx = REF_OUT(relu_grad, dx);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < dx.elems; i++) ref_put(&dx, i, ref_get(&y, i) > 0 ? ref_get(&dy, i) : 0);
    return CR_OK;
}

cr_status cr_ref_add(struct cr_device *device, const struct cr_call *call) {
    struct ref a = REF_IN(add, a), b = REF_IN(add, b), y = REF_OUT(add, y);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < y.elems; i++) ref_put(&y, i, ref_get(&a, i) + ref_get(&b, i));
    return CR_OK;
}
