/* verification/sums.c: bounds of fused ops, part 3: sums of values that the same op has just computed. */
#include "verification/bound.h"

#include <math.h>

struct sums {
    int           of, slot;      /* output slots: the values, their [2, C] sums */
    const double *x, *mean_rstd; /* sums of values and of values*xhat; NULL: sums of values and of squares */
};

/* One sum of one channel. Independent errors of the values add up as squares (noise); errors of equal sign add up
 * linearly (pull). A value with an alternative (a mask that may be open or closed) counts in `changes`. */
struct sum {
    double want, scale, noise, pull, slack, rounded, roundings, factors;
    double change;       /* effect of the last value with an alternative */
    double changes;      /* sum of the magnitudes of these effects */
    int    alternatives; /* number of values with an alternative */
    bool   unused;       /* the sum is not compared */
};

/* A value may differ by `change`; the sum contains the value times `factor`. */
static void add_alternative(struct sum *s, double change, double factor) {
    s->change = factor * change;
    s->changes += fabs(s->change);
    s->alternatives++;
}

static void sum_add(struct sum *s, double term, double size, double factor, double value_scale, double value_slack,
                    double half_ulp) {
    s->want += term;
    s->scale += size;
    s->noise += factor * value_scale * (factor * value_scale);
    s->pull += fabs(term);
    s->slack += fabs(factor) * value_slack;
    s->roundings += factor * half_ulp * (factor * half_ulp);
    s->factors += fabs(factor);
}

static void sums_add(const struct sums *q, const struct cr_verify_expected *e, enum cr_dtype dtype, int64_t C,
                     int64_t i, struct sum s[2]) {
    const int64_t c = i % C;
    const double  v = e->want[q->of][i], A = e->scale[q->of][i];
    const bool    differs = e->alternative[q->of] && !isnan(e->alternative[q->of][i]);
    const double  slack = e->slack[q->of] ? e->slack[q->of][i] : 0, change = differs ? e->alternative[q->of][i] - v : 0;
    const double  half_ulp = cr_verify_half_ulp(dtype, fabs(v)), r = cr_verify_stored(dtype, v);
    sum_add(&s[0], v, fabs(v), 1, A, slack, half_ulp);
    s[0].rounded += r;
    if (differs) add_alternative(&s[0], change, 1);
    if (q->mean_rstd) {
        const double mean = q->mean_rstd[c], rstd = q->mean_rstd[C + c], xhat = (q->x[i] - mean) * rstd;
        sum_add(&s[1], v * xhat, fabs(v) * (fabs(q->x[i]) + fabs(mean)) * fabs(rstd), xhat, A, slack, half_ulp);
        s[1].rounded += r * xhat;
        if (differs) add_alternative(&s[1], change, xhat);
        s[1].unused = s[1].unused || ((v == 0 || slack > 0 || differs) &&
                                      !isfinite(xhat)); /* the mask may hide an xhat that is not finite */
    } else {
        CR_ASSERT(!differs); /* squares are sums of a convolution's output, which has no mask */
        sum_add(&s[1], v * v, v * v, 2 * fabs(v) + slack, A, slack, half_ulp);
        s[1].rounded += r * r;
    }
    if (isfinite(v) && !isfinite(r)) s[0].unused = s[1].unused = true; /* infinite only if rounded before the sum */
}

static void sums_put(const struct sum *s, struct cr_verify_expected *e, int slot, int64_t i) {
    e->want[slot][i]  = s->want;
    e->scale[slot][i] = s->unused ? CR_VERIFY_UNUSED : or_zero(s->scale);
    e->noise[slot][i] = or_zero(sqrt(s->noise));
    e->pull[slot][i]  = or_zero(s->pull);
    e->slack[slot][i] = or_zero(s->slack + (s->alternatives > 1 ? s->changes : 0) + fabs(s->rounded - s->want) +
                                CR_VERIFY_C * sqrt(s->roundings));
    if (s->alternatives == 1)
        e->alternative[slot][i] = s->want + s->change; /* with several alternatives the slack covers all combinations */
}

static cr_status compute_sums(const struct cr_verify_values *v, struct cr_verify_expected *e, struct sums q) {
    const struct cr_tensor *values = tensor_of(v->original, v->op->out[q.of]);
    const int64_t           C = values->dim[3], n = e->elems[q.of];
    struct sum             *s;
    double                  factors = 0;
    CR_TRY(cr_verify_array(e, q.slot, e->noise));
    CR_TRY(cr_verify_array(e, q.slot, e->pull));
    CR_TRY(cr_verify_array(e, q.slot, e->slack));
    CR_TRY(cr_verify_alternatives(e, q.slot));
    CR_ALLOC(s, (size_t)(2 * C));
    for (int64_t i = 0; i < n; i++) sums_add(&q, e, values->dtype, C, i, s + 2 * (i % C));
    for (int64_t c = 0; c < C; c++)
        for (int k = 0; k < 2; k++) {
            sums_put(&s[2 * c + k], e, q.slot, k * C + c);
            factors = fmax(factors, or_zero(s[2 * c + k].factors));
        }
    e->noise_terms[q.slot] = e->terms[q.of];
    e->tiny[q.slot] += e->tiny[q.of] * factors;
    cr_free(s);
    return CR_OK;
}

/* ---- relaxations of libraries (device/kernel.h): intermediate values are rounded to the type of the images ---- */

static double size_at(const struct cr_verify_values *v, int slot, int64_t i) {
    return v->op->in[slot] >= 0 ? fabs(in_at(v, slot, i)) : 0;
}

/* Adds the rounding of the sum of products, or of the bias, to the slack. want = ReLU(sum + add + bias). */
static cr_status allow_rounding(const struct cr_verify_values *v, struct cr_verify_expected *e, int add, int bias) {
    const struct cr_tensor *y          = tensor_of(v->original, v->op->out[0]);
    const bool              rounds_sum = (v->relaxations & CR_RELAXED_ROUNDED_SUM) && v->op->in[add] >= 0;
    const bool half_bias = (v->relaxations & CR_RELAXED_HALF_BIAS) && bias != CR_NONE && v->op->in[bias] >= 0;
    if (y->dtype == CR_F64 || (!rounds_sum && !half_bias)) return CR_OK;
    CR_TRY(cr_verify_array(e, 0, e->slack));
    for (int64_t i = 0; i < e->elems[0]; i++) {
        const double b   = bias == CR_NONE ? 0 : size_at(v, bias, i % y->dim[3]),
                     sum = fabs(e->want[0][i]) + size_at(v, add, i) + b;
        if (half_bias && isfinite(b)) e->slack[0][i] += cr_verify_half_ulp(y->dtype, b);
        if (!rounds_sum || !isfinite(sum)) continue;
        e->slack[0][i] += cr_verify_half_ulp(y->dtype, sum);
        if (sum >= cr_verify_largest(y->dtype)) e->scale[0][i] = CR_VERIFY_UNUSED;
    }
    return CR_OK;
}

/* The ReLU of a convolution with a mask, and the mask's bits: bit i is whether the stored y is above 0. slack holds the
 * bits that are not compared. */
static cr_status relu_and_mask(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const int           y = CR_OUT_conv_y, mask = CR_OUT_conv_mask;
    const enum cr_dtype dtype = tensor_of(v->original, v->op->out[y])->dtype;
    CR_TRY(cr_verify_array(e, mask, e->slack));
    e->bits[mask] = true;
    for (int64_t i = 0; i < e->elems[mask]; i++) {
        unsigned bits = 0, ignored = 0;
        for (int64_t b = 0; b < 8; b++) {
            bool         any;
            const double pre   = e->want[y][8 * i + b],
                         error = cr_verify_error(e, y, 8 * i + b, &any) + cr_verify_half_ulp(dtype, 0);
            bits |= (unsigned)(pre > 0) << b;
            ignored |= (unsigned)(any || e->spreads || (isfinite(pre) && fabs(pre) <= error && error > 0)) << b;
            if (pre < 0) e->want[y][8 * i + b] = 0;
        }
        e->want[mask][i]  = bits;
        e->slack[mask][i] = ignored;
    }
    return CR_OK;
}

cr_status cr_verify_epilogue_conv(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    CR_TRY(allow_rounding(v, e, CR_IN_conv_add, CR_IN_conv_bias));
    if (v->op->out[CR_OUT_conv_mask] >= 0) CR_TRY(relu_and_mask(v, e));
    if (v->op->out[CR_OUT_conv_sums] < 0) return CR_OK;
    CR_TRY(compute_sums(v, e, (struct sums){.of = CR_OUT_conv_y, .slot = CR_OUT_conv_sums}));
    return cr_verify_finalize_conv(v, e);
}

/* An element of t, the result of the 3x3 convolution in front of a pair: its value, and in *scale the same sum over
 * absolute values. */
static double first_value(const struct cr_verify_values *v, int64_t pixel, int64_t k, double *scale) {
    const struct cr_tensor *x  = tensor_of(v->original, v->op->in[CR_IN_conv_pair_x]);
    const double           *in = v->in[CR_IN_conv_pair_x], *w = v->in[CR_IN_conv_pair_first_w];
    const int64_t           C = x->dim[3], row = pixel / x->dim[2] % x->dim[1], column = pixel % x->dim[2];
    double                  sum = in_at(v, CR_IN_conv_pair_first_bias, k);
    *scale                      = fabs(sum);
    for (int64_t tap = 0; tap < 9; tap++) {
        const int64_t down = tap / 3 - 1, right = tap % 3 - 1;
        if (row + down < 0 || row + down >= x->dim[1] || column + right < 0 || column + right >= x->dim[2]) continue;
        const double *a = in + (pixel + down * x->dim[2] + right) * C, *b = w + (9 * k + tap) * C;
        for (int64_t c = 0; c < C; c++) {
            sum += a[c] * b[c];
            *scale += fabs(a[c] * b[c]);
        }
    }
    return CR_MAX(sum, 0.0);
}

/* y reads t, which is rounded to its type. A pixel of t that may overflow makes its pixel of y unknown. */
static cr_status round_first(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    enum { Y = CR_OUT_conv_pair_y };
    const struct cr_tensor *y = tensor_of(v->original, v->op->out[Y]);
    const double           *w = v->in[CR_IN_conv_pair_w];
    const int64_t           K = y->dim[3], C = tensor_of(v->original, v->op->in[CR_IN_conv_pair_w])->dim[3];
    CR_TRY(cr_verify_array(e, Y, e->slack));
    for (int64_t i = 0; i < e->elems[Y] / K * C; i++) {
        const int64_t pixel = i / C, c = i % C;
        double        scale;
        const double  t = first_value(v, pixel, c, &scale), error = cr_verify_half_ulp(y->dtype, 2 * t);
        for (int64_t k = 0; k < K; k++) {
            if (scale >= cr_verify_largest(y->dtype)) e->scale[Y][pixel * K + k] = CR_VERIFY_UNUSED;
            if (isfinite(t) && isfinite(w[k * C + c])) e->slack[Y][pixel * K + k] += fabs(w[k * C + c]) * error;
        }
    }
    return CR_OK;
}

/* The convolution of the shortcut may be rounded before it is added. */
static cr_status round_shortcut(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    enum { Y = CR_OUT_conv_pair_y };
    const struct cr_tensor *y = tensor_of(v->original, v->op->out[Y]);
    const double           *x = v->in[CR_IN_conv_pair_shortcut_x], *w = v->in[CR_IN_conv_pair_shortcut_w],
                 *bias = v->in[CR_IN_conv_pair_shortcut_bias];
    const int64_t K = y->dim[3], C = tensor_of(v->original, v->op->in[CR_IN_conv_pair_shortcut_w])->dim[3];
    CR_TRY(cr_verify_array(e, Y, e->slack));
    for (int64_t i = 0; i < e->elems[Y]; i++) {
        double sum = bias[i % K], scale = fabs(sum);
        for (int64_t c = 0; c < C; c++) {
            sum += x[i / K * C + c] * w[i % K * C + c];
            scale += fabs(x[i / K * C + c] * w[i % K * C + c]);
        }
        if (scale >= cr_verify_largest(y->dtype)) e->scale[Y][i] = CR_VERIFY_UNUSED;
        if (isfinite(sum)) e->slack[Y][i] += cr_verify_half_ulp(y->dtype, 2 * fabs(sum));
    }
    return CR_OK;
}

/* z reads y, which is rounded to its type. A pixel of y that may overflow makes its pixel of z unknown. */
cr_status cr_verify_epilogue_conv_pair(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    enum { Y = CR_OUT_conv_pair_y, Z = CR_OUT_conv_pair_z };
    const bool first = v->op->in[CR_IN_conv_pair_first_w] >= 0;
    if (first) CR_TRY(round_first(v, e));
    if (v->op->in[CR_IN_conv_pair_shortcut_w] >= 0) CR_TRY(round_shortcut(v, e));
    const struct cr_tensor *y    = tensor_of(v->original, v->op->out[Y]);
    const double           *next = v->in[CR_IN_conv_pair_next_w];
    const int64_t           K = y->dim[3], L = e->elems[Z] / (e->elems[Y] / K);
    CR_TRY(cr_verify_array(e, Z, e->slack));
    for (int64_t i = 0; i < e->elems[Z]; i++) {
        const double *want = e->want[Y] + i / L * K, *scale = e->scale[Y] + i / L * K, *w = next + i % L * K;
        for (int64_t k = 0; k < K; k++) {
            const double before = e->slack[Y] ? e->slack[Y][i / L * K + k] : 0;
            if (scale[k] >= cr_verify_largest(y->dtype) || scale[k] == CR_VERIFY_UNUSED)
                e->scale[Z][i] = CR_VERIFY_UNUSED;
            if (before > 0 && !isfinite(w[k])) e->scale[Z][i] = CR_VERIFY_UNUSED; /* y may be 0 or not */
            if (isfinite(want[k]) && isfinite(w[k]))
                e->slack[Z][i] += fabs(w[k]) * (cr_verify_half_ulp(y->dtype, 2 * fabs(want[k])) + before);
        }
    }
    return CR_OK;
}

/* Where an infinite sum is not the maximum of its window, A is unknown, and the maximum is a rounded number. */
cr_status cr_verify_epilogue_conv_pool(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    enum { Y = CR_OUT_conv_pool_y };
    (void)v;
    for (int64_t i = 0; e->spreads && i < e->elems[Y]; i++)
        if (e->scale[Y][i] == 0 && isfinite(e->want[Y][i])) e->scale[Y][i] = CR_VERIFY_UNUSED;
    return CR_OK;
}

cr_status cr_verify_epilogue_dgrad(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    CR_TRY(allow_rounding(v, e, CR_IN_conv_dgrad_add, CR_NONE));
    if (v->op->in[CR_IN_conv_dgrad_bn_x] < 0) return CR_OK;
    struct cr_verify_mask g = cr_verify_mask_of(v, CR_IN_conv_dgrad_bn_x, CR_NONE, CR_NONE);
    g.mean_rstd             = v->in[CR_IN_conv_dgrad_mean_rstd];
    g.gamma                 = v->in[CR_IN_conv_dgrad_gamma];
    g.beta                  = v->in[CR_IN_conv_dgrad_beta];
    CR_TRY(cr_verify_apply_mask(&g, e, CR_OUT_conv_dgrad_dx));
    if (v->op->out[CR_OUT_conv_dgrad_grad_sums] < 0) return CR_OK;
    return compute_sums(v, e, (struct sums){CR_OUT_conv_dgrad_dx, CR_OUT_conv_dgrad_grad_sums, g.x, g.mean_rstd});
}

cr_status cr_verify_epilogue_conv_grad(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const bool after_block = v->op->in[CR_IN_conv_grad_bn_x] >= 0; /* x is then the output of a residual block */
    if (v->op->out[CR_OUT_conv_grad_dx] >= 0 && v->op->in[CR_IN_conv_grad_y] >= 0) {
        const struct cr_verify_mask y = cr_verify_mask_of(v, CR_IN_conv_grad_x, CR_IN_conv_grad_y, CR_NONE);
        return cr_verify_apply_mask(&y, e, CR_OUT_conv_grad_dx);
    }
    if (v->op->out[CR_OUT_conv_grad_dx] < 0 || v->op->in[CR_IN_conv_grad_mean_rstd] < 0) return CR_OK;
    const struct cr_verify_mask g = after_block
                                        ? cr_verify_mask_of(v, CR_IN_conv_grad_x, CR_IN_conv_grad_x, CR_NONE)
                                        : cr_verify_mask_of(v, CR_IN_conv_grad_x, CR_NONE, CR_IN_conv_grad_scale_bias);
    CR_TRY(cr_verify_apply_mask(&g, e, CR_OUT_conv_grad_dx));
    if (v->op->out[CR_OUT_conv_grad_grad_sums] < 0) return CR_OK;
    CR_TRY(compute_sums(v, e,
                        (struct sums){CR_OUT_conv_grad_dx, CR_OUT_conv_grad_grad_sums,
                                      v->in[after_block ? CR_IN_conv_grad_bn_x : CR_IN_conv_grad_x],
                                      v->in[CR_IN_conv_grad_mean_rstd]}));
    return cr_verify_finalize_conv_grad(v, e);
}

/* Where the ReLU of gram_dgrad masks, the result is exactly 0. */
static void mask_read_pixels(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const int64_t *dims = tensor_of(v->original, v->op->in[CR_IN_gram_dgrad_x])->dim, stride = v->op->attr.conv.stride;
    const double  *x = v->in[CR_IN_gram_dgrad_x];
    for (int64_t i = 0; i < e->elems[CR_OUT_gram_dgrad_dx]; i++) {
        const int64_t pixel = i / dims[3], w = pixel % dims[2], h = pixel / dims[2] % dims[1];
        if (w % stride == 0 && h % stride == 0 && !(x[i] > 0)) e->scale[CR_OUT_gram_dgrad_dx][i] = 0;
    }
}

cr_status cr_verify_epilogue_gram_dgrad(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    if (v->op->attr.conv.relu) mask_read_pixels(v, e);
    if (v->op->in[CR_IN_gram_dgrad_mean_rstd] < 0) return CR_OK;
    const struct cr_verify_mask g = cr_verify_mask_of(v, CR_IN_gram_dgrad_x, CR_NONE, CR_IN_gram_dgrad_scale_bias);
    CR_TRY(cr_verify_apply_mask(&g, e, CR_OUT_gram_dgrad_dx));
    if (v->op->out[CR_OUT_gram_dgrad_grad_sums] < 0) return CR_OK;
    return compute_sums(v, e,
                        (struct sums){CR_OUT_gram_dgrad_dx, CR_OUT_gram_dgrad_grad_sums, v->in[CR_IN_gram_dgrad_x],
                                      v->in[CR_IN_gram_dgrad_mean_rstd]});
}

/* Without `add` dx is a copy, and A stays 0. */
cr_status cr_verify_epilogue_relu_grad(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const struct cr_verify_mask g  = cr_verify_mask_of(v, CR_IN_relu_grad_dy, CR_IN_relu_grad_y, CR_NONE);
    const double               *dy = v->in[CR_IN_relu_grad_dy],
                 *add              = v->op->in[CR_IN_relu_grad_add] < 0 ? NULL : v->in[CR_IN_relu_grad_add];
    for (int64_t i = 0; add && i < e->elems[CR_OUT_relu_grad_dx]; i++)
        if (cr_verify_mask_bit_at(&g, i, i % g.C) == CR_VERIFY_PASSED)
            e->scale[CR_OUT_relu_grad_dx][i] = or_zero(fabs(dy[i]) + fabs(add[i]));
    if (v->op->out[CR_OUT_relu_grad_grad_sums] >= 0)
        CR_TRY(compute_sums(v, e,
                            (struct sums){CR_OUT_relu_grad_dx, CR_OUT_relu_grad_grad_sums, v->in[CR_IN_relu_grad_bn_x],
                                          v->in[CR_IN_relu_grad_mean_rstd]}));
    if (v->op->out[CR_OUT_relu_grad_grad_sums2] < 0) return CR_OK;
    return compute_sums(v, e,
                        (struct sums){CR_OUT_relu_grad_dx, CR_OUT_relu_grad_grad_sums2, v->in[CR_IN_relu_grad_bn2_x],
                                      v->in[CR_IN_relu_grad_mean_rstd2]});
}
