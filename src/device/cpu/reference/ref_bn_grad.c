/* device/cpu/reference/ref_bn_grad.c: batch normalisation backward. With xhat = (x - mean) * rstd and g the gradient
 * after the ReLU, dx = gamma * rstd * (g - mean(g) - xhat * mean(g * xhat)),  dgamma = sum g * xhat,  dbeta = sum g. */
#include "device/cpu/reference/ref.h"

enum { CHANNEL_BLOCK = 16 }; /* channels that a thread sums together: a cache line of floats */

struct grad_sums_call {
    const struct ref           *dy, *x, *mean_rstd, *grad_sums;
    const struct ref_relu_mask *mask;
};

static void grad_sums_block(const struct grad_sums_call *a, int64_t c0) {
    const struct ref *x = a->x;
    const int64_t     M = x->N * x->H * x->W, C = x->C, width = CR_MIN(C - c0, (int64_t)CHANNEL_BLOCK);
    double            sum[CHANNEL_BLOCK] = {0}, product[CHANNEL_BLOCK] = {0}, mean[CHANNEL_BLOCK], rstd[CHANNEL_BLOCK];
    for (int64_t c = 0; c < width; c++) {
        mean[c] = ref_get(a->mean_rstd, c0 + c);
        rstd[c] = ref_get(a->mean_rstd, C + c0 + c);
    }
    for (int64_t m = 0; m < M; m++) {
        for (int64_t c = 0; c < width; c++) {
            int64_t i = m * C + c0 + c;
            double  g = ref_mask_passes(a->mask, i, c0 + c) ? ref_get(a->dy, i) : 0;
            sum[c] += g;
            product[c] += g * ((ref_get(x, i) - mean[c]) * rstd[c]);
        }
    }
    for (int64_t c = 0; c < width; c++) {
        ref_put(a->grad_sums, c0 + c, sum[c]);
        ref_put(a->grad_sums, C + c0 + c, product[c]);
    }
}

void cr_ref_sum_grads(struct cr_device *device, const struct ref *dy, const struct ref_relu_mask *mask,
                      const struct ref *x, const struct ref *mean_rstd, const struct ref *grad_sums) {
    static const struct ref_relu_mask no_mask = {0};
    const struct grad_sums_call       a       = {dy, x, mean_rstd, grad_sums, mask ? mask : &no_mask};
    const int64_t                     blocks  = (x->C + CHANNEL_BLOCK - 1) / CHANNEL_BLOCK;
    if (!grad_sums->data) return;
    CR_PARALLEL(b, blocks) grad_sums_block(&a, b * CHANNEL_BLOCK);
    ref_clear_rows(grad_sums);
}

REF_KERNEL(bn_grad_sums) {
    struct ref dy = REF_IN(bn_grad_sums, dy), x = REF_IN(bn_grad_sums, x), mean_rstd = REF_IN(bn_grad_sums, mean_rstd);
    struct ref grad_sums      = REF_OUT(bn_grad_sums, grad_sums);
    struct ref_relu_mask mask = {.y = REF_IN(bn_grad_sums, y), .scale_bias = REF_IN(bn_grad_sums, scale_bias), .x = x};
    cr_ref_sum_grads(device, &dy, &mask, &x, &mean_rstd, &grad_sums);
}

/* With G = mean(g), X = mean(g*xhat), s = gamma*rstd:  dx = s*g + (-s*rstd*X)*x + s*(mean*rstd*X - G). */
void cr_ref_grad_finalize(const struct ref_grad_finalize *f) {
    const int64_t C = f->grad_sums.C;
    const double  M = (double)f->attr.count, ranks = (double)CR_MAX(f->attr.ranks, 1);
    for (int64_t c = 0; c < C; c++) {
        double sum = ref_sum_of_rows(&f->grad_sums, c), product = ref_sum_of_rows(&f->grad_sums, C + c);
        double mean = ref_get(&f->mean_rstd, c), rstd = ref_get(&f->mean_rstd, C + c), s = ref_get(&f->gamma, c) * rstd;
        ref_put_or_add(&f->dbeta, c, sum / ranks, f->attr.accumulate);
        ref_put_or_add(&f->dgamma, c, product / ranks, f->attr.accumulate);
        ref_put(&f->coeffs, c, s);
        ref_put(&f->coeffs, C + c, -s * rstd * (product / M));
        ref_put(&f->coeffs, 2 * C + c, s * (mean * rstd * (product / M) - sum / M));
    }
}

REF_KERNEL(bn_grad_finalize) {
    cr_ref_grad_finalize(&(struct ref_grad_finalize){.attr      = call->op->attr.bn,
                                                     .grad_sums = REF_IN(bn_grad_finalize, grad_sums),
                                                     .gamma     = REF_IN(bn_grad_finalize, gamma),
                                                     .mean_rstd = REF_IN(bn_grad_finalize, mean_rstd),
                                                     .dgamma    = REF_OUT(bn_grad_finalize, dgamma),
                                                     .dbeta     = REF_OUT(bn_grad_finalize, dbeta),
                                                     .coeffs    = REF_OUT(bn_grad_finalize, coeffs)});
}

REF_KERNEL(bn_grad_apply) {
    const struct ref dy = REF_IN(bn_grad_apply, dy), x = REF_IN(bn_grad_apply, x),
                     coeffs = REF_IN(bn_grad_apply, coeffs), dx = REF_OUT(bn_grad_apply, dx);
    const struct ref_relu_mask mask = {
        .y = REF_IN(bn_grad_apply, y), .scale_bias = REF_IN(bn_grad_apply, scale_bias), .x = x};
    CR_PARALLEL(i, dx.elems) {
        const int64_t c = i % dx.C;
        const double  g = ref_mask_passes(&mask, i, c) ? ref_get(&dy, i) : 0;
        ref_put(&dx, i, ref_bn_gradient(&coeffs, g, &x, i, c));
    }
}

REF_KERNEL(channel_scale) {
    struct ref dy = REF_IN(channel_scale, dy), scale_bias = REF_IN(channel_scale, scale_bias),
               dx = REF_OUT(channel_scale, dx);
    CR_PARALLEL(i, dx.elems) ref_put(&dx, i, ref_get(&dy, i) * ref_get(&scale_bias, i % dx.C));
}

/* ---- ReLU gradient, fused with the gradient of the other branch and with the sums of the BNs before it ---- */

REF_KERNEL(relu_grad) {
    struct ref dy = REF_IN(relu_grad, dy), dx = REF_OUT(relu_grad, dx), grad_sums = REF_OUT(relu_grad, grad_sums);
    struct ref x = REF_IN(relu_grad, bn_x), mean_rstd = REF_IN(relu_grad, mean_rstd),
               grad_sums2  = REF_OUT(relu_grad, grad_sums2);
    struct ref          x2 = REF_IN(relu_grad, bn2_x), mean_rstd2 = REF_IN(relu_grad, mean_rstd2);
    struct ref_epilogue epilogue = {.add = REF_IN(relu_grad, add), .mask = {.y = REF_IN(relu_grad, y)}};
    CR_PARALLEL(i, dx.elems) ref_put(&dx, i, ref_epilogue_apply(&epilogue, i, i % dx.C, ref_get(&dy, i)));
    cr_ref_sum_grads(device, &dx, NULL, &x, &mean_rstd, &grad_sums);
    cr_ref_sum_grads(device, &dx, NULL, &x2, &mean_rstd2, &grad_sums2);
}
