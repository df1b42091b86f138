/* device/cpu/reference/ref_dense.c: the dense layer y = x w^T + b and its three gradients. x is N,1,1,C; w is K,1,1,C;
 * b is 1,1,1,K. */
#include "device/cpu/reference/ref.h"

REF_KERNEL(dense) {
    struct ref    x = REF_IN(dense, x), w = REF_IN(dense, w), b = REF_IN(dense, b), y = REF_OUT(dense, y);
    const int64_t C = x.C, K = y.C;
    CR_PARALLEL(i, y.elems) {
        double sum = ref_get(&b, i % K);
        for (int64_t c = 0; c < C; c++) sum += ref_get(&x, i / K * C + c) * ref_get(&w, i % K * C + c);
        ref_put(&y, i, sum);
    }
}

REF_KERNEL(dense_dgrad) {
    struct ref    dy = REF_IN(dense_dgrad, dy), w = REF_IN(dense_dgrad, w), dx = REF_OUT(dense_dgrad, dx);
    const int64_t C = dx.C, K = dy.C;
    CR_PARALLEL(i, dx.elems) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) sum += ref_get(&dy, i / C * K + k) * ref_get(&w, k * C + i % C);
        ref_put(&dx, i, sum);
    }
}

REF_KERNEL(dense_wgrad) {
    struct ref    x = REF_IN(dense_wgrad, x), dy = REF_IN(dense_wgrad, dy), dw = REF_OUT(dense_wgrad, dw);
    const int64_t C = x.C, K = dy.C;
    CR_PARALLEL(i, dw.elems) {
        double sum = call->op->attr.dense.accumulate ? ref_get(&dw, i) : 0;
        for (int64_t n = 0; n < x.N; n++) sum += ref_get(&dy, n * K + i / C) * ref_get(&x, n * C + i % C);
        ref_put(&dw, i, sum);
    }
}

REF_KERNEL(dense_bgrad) {
    struct ref    dy = REF_IN(dense_bgrad, dy), db = REF_OUT(dense_bgrad, db);
    const int64_t K = dy.C;
    for (int64_t k = 0; k < K; k++) {
        double sum = call->op->attr.dense.accumulate ? ref_get(&db, k) : 0;
        for (int64_t n = 0; n < dy.N; n++) sum += ref_get(&dy, n * K + k);
        ref_put(&db, k, sum);
    }
}
