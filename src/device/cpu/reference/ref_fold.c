/* device/cpu/reference/ref_fold.c: folds batch normalisation with fixed statistics into the filter before it. */
#include "device/cpu/reference/ref.h"

cr_status cr_ref_fold_bn(struct cr_device *device, const struct cr_call *call) {
    struct ref    w = REF_IN(fold_bn, w), gamma = REF_IN(fold_bn, gamma), beta = REF_IN(fold_bn, beta);
    struct ref    mean = REF_IN(fold_bn, running_mean), var = REF_IN(fold_bn, running_var);
    struct ref    y = REF_OUT(fold_bn, y), bias = REF_OUT(fold_bn, bias);
    const int64_t K = w.N, elems = w.elems / K;
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t k = 0; k < K; k++) {
        const double scale = ref_get(&gamma, k) / sqrt(ref_get(&var, k) + (double)call->op->attr.bn.eps);
        ref_put(&bias, k, ref_get(&beta, k) - ref_get(&mean, k) * scale);
        for (int64_t i = 0; i < elems; i++) ref_put(&y, k * elems + i, ref_get(&w, k * elems + i) * scale);
    }
    return CR_OK;
}

/* The reference convolutions read the whole filter, so the packed weights are zeros. */
cr_status cr_ref_sparse_filter(struct cr_device *device, const struct cr_call *call) {
    const struct ref y = REF_OUT(sparse_filter, y);
    (void)device;
    memset(y.data, 0, (size_t)y.elems * cr_dtype_bytes(y.dtype));
    return CR_OK;
}
