/* device/cpu/reference/ref_channel_conv.c: the convolution over channels of efficient channel attention, and its
 * gradients. The tensors have one pixel, so tuned kernels would save nothing. */
#include "device/cpu/reference/ref.h"

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

REF_KERNEL(channel_conv) {
    struct ref x = REF_IN(channel_conv, x), w = REF_IN(channel_conv, w), y = REF_OUT(channel_conv, y);
    CR_PARALLEL(i, y.elems) ref_put(&y, i, sum_at(&x, &w, i, 1));
}

REF_KERNEL(channel_conv_dgrad) {
    struct ref dy = REF_IN(channel_conv_dgrad, dy), w = REF_IN(channel_conv_dgrad, w),
               dx = REF_OUT(channel_conv_dgrad, dx);
    CR_PARALLEL(i, dx.elems) ref_put(&dx, i, sum_at(&dy, &w, i, -1));
}

REF_KERNEL(channel_conv_wgrad) {
    struct ref x = REF_IN(channel_conv_wgrad, x), dy = REF_IN(channel_conv_wgrad, dy),
               dw  = REF_OUT(channel_conv_wgrad, dw);
    const bool add = call->op->attr.dense.accumulate;
    CR_PARALLEL(j, dw.elems) {
        double sum = 0;
        for (int64_t i = 0; i < x.elems; i++) {
            const int64_t c = i % x.C, from = c + j - dw.elems / 2;
            if (from >= 0 && from < x.C) sum += ref_get(&dy, i) * ref_get(&x, i - c + from);
        }
        ref_put(&dw, j, add ? ref_get(&dw, j) + sum : sum);
    }
}
