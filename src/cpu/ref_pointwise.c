/* ref_pointwise.c: ops that look at one element at a time. */
#include "ref.h"

cr_status cr_ref_normalize(struct cr_device *device, const struct cr_call *call) {
    const struct cr_input_attr *a      = &call->op->attr.input;
    struct ref                  images = REF_IN(normalize, images), y = REF_OUT(normalize, y);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < y.elems; i++)
        ref_put(&y, i, (ref_get(&images, i) / 255 - (double)a->mean[i % 3]) / (double)a->std[i % 3]);
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
