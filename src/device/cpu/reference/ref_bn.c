/* device/cpu/reference/ref_bn.c: batch normalisation forward (Ioffe & Szegedy 2015): sums, finalize, apply, fold. The
 * backward ops are in device/cpu/reference/ref_bn_grad.c. */
#include "device/cpu/reference/ref.h"

enum { CHANNEL_BLOCK = 16 }; /* channels that a thread sums together: a cache line of floats */

static void sums_block(const struct ref *x, const struct ref *sums, int64_t c0) {
    const int64_t M = x->N * x->H * x->W, C = x->C, width = CR_MIN(C - c0, (int64_t)CHANNEL_BLOCK);
    double        sum[CHANNEL_BLOCK] = {0}, squares[CHANNEL_BLOCK] = {0};
    for (int64_t m = 0; m < M; m++) {
        for (int64_t c = 0; c < width; c++) {
            double v = ref_get(x, m * C + c0 + c);
            sum[c] += v;
            squares[c] += v * v;
        }
    }
    for (int64_t c = 0; c < width; c++) {
        ref_put(sums, c0 + c, sum[c]);
        ref_put(sums, C + c0 + c, squares[c]);
    }
}

void cr_ref_sum_squares(struct cr_device *device, const struct ref *x, const struct ref *sums) {
    int64_t blocks = (x->C + CHANNEL_BLOCK - 1) / CHANNEL_BLOCK;
    CR_PARALLEL(b, blocks) sums_block(x, sums, b * CHANNEL_BLOCK);
    ref_clear_rows(sums);
}

REF_KERNEL(bn_sums) {
    struct ref x = REF_IN(bn_sums, x), sums = REF_OUT(bn_sums, sums);
    cr_ref_sum_squares(device, &x, &sums);
}

static void put_scale_bias(const struct ref *scale_bias, int64_t c, double scale, double bias) {
    if (!scale_bias->data) return;
    ref_put(scale_bias, c, scale);
    ref_put(scale_bias, scale_bias->C + c, bias);
}

/* Normalisation uses the biased variance and the running variance the unbiased one, as in PyTorch. If the batch
 * statistics of a channel are not finite, its running statistics do not change, so that one bad batch cannot spoil
 * evaluation. */
void cr_ref_finalize_channel(const struct ref_finalize *f, int64_t c, double mean, double var) {
    const int64_t C = f->mean_rstd.C;
    const double  M = (double)f->attr.count, m = (double)f->attr.momentum;
    if (var < 0) var = 0; /* rounding; NaN stays NaN */
    double rstd = 1 / sqrt(var + (double)f->attr.eps), scale = ref_get(&f->gamma, c) * rstd;
    ref_put(&f->mean_rstd, c, mean);
    ref_put(&f->mean_rstd, C + c, rstd);
    put_scale_bias(&f->scale_bias, c, scale, ref_get(&f->beta, c) - mean * scale);
    put_scale_bias(&f->scale_bias_half, c, scale, ref_get(&f->beta, c) - mean * scale);
    if (!isfinite(mean) || !isfinite(var)) return;
    double unbiased = M > 1 ? var * M / (M - 1) : var;
    ref_put(&f->mean, c, (1 - m) * ref_get(&f->mean, c) + m * mean);
    ref_put(&f->var, c, (1 - m) * ref_get(&f->var, c) + m * unbiased);
}

void cr_ref_finalize(const struct ref_finalize *f) {
    const int64_t C = f->sums.C;
    const double  M = (double)f->attr.count;
    ref_copy_old(&f->old_mean, &f->mean);
    ref_copy_old(&f->old_var, &f->var);
    for (int64_t c = 0; c < C; c++) {
        double mean = ref_sum_of_rows(&f->sums, c) / M, center = f->center.data ? ref_get(&f->center, c) : 0;
        double var = ref_sum_of_rows(&f->sums, C + c) / M - mean * mean;
        cr_ref_finalize_channel(f, c, mean + center, var);
    }
}

REF_KERNEL(bn_finalize) {
    cr_ref_finalize(&(struct ref_finalize){.attr            = call->op->attr.bn,
                                           .sums            = REF_IN(bn_finalize, sums),
                                           .center          = REF_IN(bn_finalize, center),
                                           .gamma           = REF_IN(bn_finalize, gamma),
                                           .beta            = REF_IN(bn_finalize, beta),
                                           .old_mean        = REF_IN(bn_finalize, running_mean),
                                           .old_var         = REF_IN(bn_finalize, running_var),
                                           .scale_bias      = REF_OUT(bn_finalize, scale_bias),
                                           .scale_bias_half = REF_OUT(bn_finalize, scale_bias_half),
                                           .mean_rstd       = REF_OUT(bn_finalize, mean_rstd),
                                           .mean            = REF_OUT(bn_finalize, running_mean),
                                           .var             = REF_OUT(bn_finalize, running_var)});
}

REF_KERNEL(bn_scale_bias) {
    struct ref gamma = REF_IN(bn_scale_bias, gamma), beta = REF_IN(bn_scale_bias, beta),
               scale_bias = REF_OUT(bn_scale_bias, scale_bias);
    struct ref    mean = REF_IN(bn_scale_bias, running_mean), var = REF_IN(bn_scale_bias, running_var);
    const int64_t C = gamma.C;
    for (int64_t c = 0; c < C; c++) {
        double scale = ref_get(&gamma, c) / sqrt(ref_get(&var, c) + (double)call->op->attr.bn.eps);
        put_scale_bias(&scale_bias, c, scale, ref_get(&beta, c) - ref_get(&mean, c) * scale);
    }
}

struct apply {
    struct ref x, scale_bias, add, add_scale_bias;
    bool       relu;
};

static double apply_one(const struct apply *a, int64_t i, int64_t c) {
    double v = ref_affine(&a->x, &a->scale_bias, i, c);
    if (a->add.data) v += a->add_scale_bias.data ? ref_affine(&a->add, &a->add_scale_bias, i, c) : ref_get(&a->add, i);
    return a->relu ? ref_rectified(v) : v;
}

REF_KERNEL(bn_apply) {
    const struct apply a = {.x              = REF_IN(bn_apply, x),
                            .scale_bias     = REF_IN(bn_apply, scale_bias),
                            .add            = REF_IN(bn_apply, add),
                            .add_scale_bias = REF_IN(bn_apply, add_scale_bias),
                            .relu           = call->op->attr.bn.relu};
    const struct ref   y = REF_OUT(bn_apply, y), mask = REF_OUT(bn_apply, mask);
    CR_PARALLEL(i, y.elems) ref_put(&y, i, apply_one(&a, i, i % y.C));
    if (mask.data) cr_ref_mask_bits(device, &y, &mask);
}

void cr_ref_mask_bits(struct cr_device *device, const struct ref *y, const struct ref *mask) {
    uint8_t *bits = mask->data;
    CR_PARALLEL(i, mask->elems) {
        unsigned byte = 0;
        for (int64_t b = 0; b < 8; b++) byte |= (unsigned)(ref_get(y, 8 * i + b) > 0) << b;
        bits[i] = (uint8_t)byte;
    }
}

void cr_ref_activate(struct cr_device *device, const struct ref *x, const struct ref *scale_bias,
                     const struct ref *to) {
    CR_PARALLEL(i, x->elems) ref_put(to, i, ref_rectified(ref_affine(x, scale_bias, i, i % x->C)));
}

/* ---- with fixed statistics, into the filter before it ---- */

REF_KERNEL(fold_bn) {
    struct ref    w = REF_IN(fold_bn, w), gamma = REF_IN(fold_bn, gamma), beta = REF_IN(fold_bn, beta);
    struct ref    mean = REF_IN(fold_bn, running_mean), var = REF_IN(fold_bn, running_var);
    struct ref    y = REF_OUT(fold_bn, y), bias = REF_OUT(fold_bn, bias);
    const int64_t K = w.N, elems = w.elems / K;
    CR_PARALLEL(k, K) {
        const double scale = ref_get(&gamma, k) / sqrt(ref_get(&var, k) + (double)call->op->attr.bn.eps);
        ref_put(&bias, k, ref_get(&beta, k) - ref_get(&mean, k) * scale);
        for (int64_t i = 0; i < elems; i++) ref_put(&y, k * elems + i, ref_get(&w, k * elems + i) * scale);
    }
}

/* The reference convolutions read the whole filter, so the packed weights are zeros. */
REF_KERNEL(sparse_filter) {
    const struct ref y = REF_OUT(sparse_filter, y);
    memset(y.data, 0, (size_t)y.elems * cr_dtype_bytes(y.dtype));
}
