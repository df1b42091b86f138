/* verification/bn_finalize.c: bounds of fused ops, part 4: results of finalizing BN sums that the same op has computed.
 *
 * The sums may be off by their own bound (verification/sums.c). This error is propagated through the formulas of
 * bn_finalize and bn_grad_finalize. The whole bound is slack. */
#include "verification/bound.h"

#include <float.h>
#include <math.h>

bool cr_verify_fuses_finalize(const struct cr_op *op) {
    if (op->kind == CR_OP_conv) return op->in[CR_IN_conv_gamma] >= 0;
    return op->kind == CR_OP_conv_grad && op->in[CR_IN_conv_grad_gamma] >= 0;
}

/* The error of rstd follows from 1/sqrt of both ends of the variance's interval. */
void cr_verify_finalize_moments(const struct cr_verify_moments *f, double want[CR_VERIFY_BN_NUMBERS],
                                double error[CR_VERIFY_BN_NUMBERS]) {
    const double M = (double)f->attr->count, m = (double)f->attr->momentum, eps = (double)f->attr->eps, k = f->k;
    const double mean = f->mean, raw = f->var, var = raw < 0 ? 0 : raw, d_sum = f->mean_error, d_var = f->var_error;
    const double rstd = 1 / sqrt(var + eps), scale = f->gamma * rstd, unbias = M / CR_MAX(M - 1, 1);
    const bool   moves  = isfinite(mean) && isfinite(var);
    const double d_mean = d_sum + k * fabs(mean);
    const double high = 1 / sqrt(CR_MAX(raw - d_var, 0) + eps), low = 1 / sqrt(CR_MAX(raw + d_var, 0) + eps);
    const double d_rstd  = CR_MAX(high - rstd, rstd - low) + k * rstd,
                 d_scale = fabs(f->gamma) * d_rstd + k * fabs(scale);

    want[CR_VERIFY_BN_MEAN]         = mean;
    want[CR_VERIFY_BN_RSTD]         = rstd;
    want[CR_VERIFY_BN_SCALE]        = scale;
    want[CR_VERIFY_BN_BIAS]         = f->beta - mean * scale;
    want[CR_VERIFY_BN_RUNNING_MEAN] = moves ? (1 - m) * f->running_mean + m * mean : f->running_mean;
    want[CR_VERIFY_BN_RUNNING_VAR]  = moves ? (1 - m) * f->running_var + m * unbias * var : f->running_var;
    error[CR_VERIFY_BN_MEAN]        = d_mean;
    error[CR_VERIFY_BN_RSTD]        = d_rstd;
    error[CR_VERIFY_BN_SCALE]       = d_scale;
    error[CR_VERIFY_BN_BIAS] =
        fabs(mean) * (d_scale + k * fabs(scale)) + d_sum * (fabs(scale) + d_scale) + k * fabs(f->beta);
    error[CR_VERIFY_BN_RUNNING_MEAN] = k * ((1 - m) * fabs(f->running_mean) + m * fabs(mean)) + m * d_sum;
    error[CR_VERIFY_BN_RUNNING_VAR]  = k * ((1 - m) * fabs(f->running_var) + m * unbias * var) + m * unbias * d_var;
}

/* Relative error of the roundings of the formulas, which use plain arithmetic. */
static double roundings(const struct cr_verify_expected *e, enum cr_op_kind plain) {
    const enum cr_math math = e->math == CR_MATH_F64 ? CR_MATH_F64 : CR_MATH_F32;
    return CR_VERIFY_C * cr_verify_unit(math)->sum * sqrt(cr_verify_rule(plain)->extra);
}

/* any: every value is allowed. FLT_MIN allows results below the normal range to be lost. */
static void put(struct cr_verify_expected *e, int slot, int64_t i, double want, double error, bool any) {
    e->want[slot][i]  = want;
    e->scale[slot][i] = any ? CR_VERIFY_UNUSED : 0;
    e->slack[slot][i] = isfinite(error) ? error + (e->math == CR_MATH_F64 ? 0 : (double)FLT_MIN) : 0;
}

static cr_status make_slack(struct cr_verify_expected *e, int first, int last) {
    for (int s = first; s <= last; s++)
        if (e->elems[s]) CR_TRY(cr_verify_array(e, s, e->slack));
    return CR_OK;
}

/* If NaN may appear in sums that are finite in the reference, the running statistics may be updated or not. */
cr_status cr_verify_finalize_conv(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    if (!cr_verify_fuses_finalize(v->op)) return CR_OK;
    const int     sums = CR_OUT_conv_sums, mean_rstd = CR_OUT_conv_mean_rstd, next = CR_OUT_conv_next_scale_bias;
    const int64_t K = e->elems[sums] / 2;
    const double  M = (double)v->op->attr.conv.bn.count, k = roundings(e, CR_OP_bn_finalize);
    CR_TRY(make_slack(e, next, CR_OUT_conv_running_var));
    for (int64_t c = 0; c < K; c++) {
        bool         any[2];
        double       want[CR_VERIFY_BN_NUMBERS], error[CR_VERIFY_BN_NUMBERS];
        const double d_sum = cr_verify_error(e, sums, c, &any[0]) / M, mean = e->want[sums][c] / M;
        const double d_square = cr_verify_error(e, sums, K + c, &any[1]) / M, square = e->want[sums][K + c] / M;
        const bool   unsure = any[0] || any[1];
        /* The variance is a difference, so its error is the sum of the errors of E[x^2] and mean^2. */
        const double var_error = d_square + 2 * fabs(mean) * d_sum + d_sum * d_sum + k * (fabs(square) + mean * mean);
        const struct cr_verify_moments f = {.attr         = &v->op->attr.conv.bn,
                                            .mean         = mean,
                                            .var          = square - mean * mean,
                                            .mean_error   = d_sum,
                                            .var_error    = var_error,
                                            .gamma        = in_at(v, CR_IN_conv_gamma, c),
                                            .beta         = in_at(v, CR_IN_conv_beta, c),
                                            .running_mean = in_at(v, CR_IN_conv_running_mean, c),
                                            .running_var  = in_at(v, CR_IN_conv_running_var, c),
                                            .k            = k};
        cr_verify_finalize_moments(&f, want, error);
        for (int half = 0; half < 2; half++) {
            put(e, mean_rstd, half * K + c, want[CR_VERIFY_BN_MEAN + half], error[CR_VERIFY_BN_MEAN + half], unsure);
            put(e, next, half * K + c, want[CR_VERIFY_BN_SCALE + half], error[CR_VERIFY_BN_SCALE + half], unsure);
        }
        put(e, CR_OUT_conv_running_mean, c, want[CR_VERIFY_BN_RUNNING_MEAN], error[CR_VERIFY_BN_RUNNING_MEAN],
            unsure || e->spreads);
        put(e, CR_OUT_conv_running_var, c, want[CR_VERIFY_BN_RUNNING_VAR], error[CR_VERIFY_BN_RUNNING_VAR],
            unsure || e->spreads);
    }
    return CR_OK;
}

/* One channel of bn_grad_finalize. */
struct grad {
    double sum, product, d_sum, d_product; /* sums and their errors */
    double mean, rstd, gamma, M, k;
};

static void put_coeffs(struct cr_verify_expected *e, int64_t c, int64_t C, const struct grad *g, bool any) {
    const int    slot = CR_OUT_conv_grad_grad_coeffs;
    const double s = g->gamma * g->rstd, X = g->product / g->M, G = g->sum / g->M, d_X = g->d_product / g->M,
                 d_G = g->d_sum / g->M;
    const double b = s * g->rstd, shift = g->mean * g->rstd;
    put(e, slot, c, s, g->k * fabs(s), any);
    put(e, slot, C + c, -b * X, fabs(b) * (d_X + g->k * fabs(X)), any);
    put(e, slot, 2 * C + c, s * (shift * X - G),
        fabs(s) * (fabs(shift) * (d_X + g->k * fabs(X)) + d_G + g->k * fabs(G)), any);
}

static void put_sum(struct cr_verify_expected *e, int slot, int64_t c, double sum, double d_sum, double k, bool any) {
    const double before = e->before[slot] ? e->before[slot][c] : 0;
    put(e, slot, c, before + sum, d_sum + k * (fabs(before) + fabs(sum)), any);
}

cr_status cr_verify_finalize_conv_grad(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    if (!cr_verify_fuses_finalize(v->op)) return CR_OK;
    const int     grad_sums = CR_OUT_conv_grad_grad_sums;
    const int64_t C         = e->elems[grad_sums] / 2;
    CR_TRY(make_slack(e, CR_OUT_conv_grad_dgamma, CR_OUT_conv_grad_grad_coeffs));
    for (int64_t c = 0; c < C; c++) {
        bool              any[2];
        const struct grad g = {.sum       = e->want[grad_sums][c],
                               .product   = e->want[grad_sums][C + c],
                               .d_sum     = cr_verify_error(e, grad_sums, c, &any[0]),
                               .d_product = cr_verify_error(e, grad_sums, C + c, &any[1]),
                               .mean      = in_at(v, CR_IN_conv_grad_mean_rstd, c),
                               .rstd      = in_at(v, CR_IN_conv_grad_mean_rstd, C + c),
                               .gamma     = in_at(v, CR_IN_conv_grad_gamma, c),
                               .M         = (double)v->op->attr.conv.bn.count,
                               .k         = roundings(e, CR_OP_bn_grad_finalize)};
        put_coeffs(e, c, C, &g, any[0] || any[1]);
        if (e->elems[CR_OUT_conv_grad_dbeta]) put_sum(e, CR_OUT_conv_grad_dbeta, c, g.sum, g.d_sum, g.k, any[0]);
        if (e->elems[CR_OUT_conv_grad_dgamma])
            put_sum(e, CR_OUT_conv_grad_dgamma, c, g.product, g.d_product, g.k, any[1]);
    }
    return CR_OK;
}
