/* verification/head.c: the bound of the op head. Twelve ops follow each other, and in a 16-bit program six results
 * between them are rounded. So errors are propagated from one result to the next, to first order or by bounds that
 * always hold:
 *   - z and features: the roundings of BN and addition, then one of each type
 *   - logits: errors of the features times |w|
 *   - probabilities: a factor of at most exp(2 * largest error of the image's logits)
 *   - gradients: products and sums of these
 * A is the same expression over absolute values, and slack the propagated error. A ReLU mask or a rank that may differ
 * adds what it decides. A result that may overflow in between makes all that follows unusable for a comparison. */
#include "verification/bound.h"

#include <float.h>
#include <math.h>

enum { ROUNDINGS = 32 /* of f32, around a result that is not a sum */ };

struct head {
    const struct cr_verify_values *v;
    struct cr_verify_expected     *e;
    enum cr_dtype                  type; /* of x */
    int64_t                        N, P, C, K;
    double                         k; /* error of sums and of a few roundings, relative to A */
    double                         factor;
    /* values (of gradients: their bounds) and errors: features [N][C], g by logits [N][K], dz by z [N][C] */
    double *feature, *feature_error, *g, *g_error, *dz, *dz_error, *logit_error;
    bool   *wild; /* [N]: may overflow, or is infinite */
};

static const double *in(const struct head *h, int slot) {
    return h->v->in[slot];
}

/* Error of rounding a value whose magnitude is at most `top`. */
static double rounding(const struct head *h, double top) {
    return cr_verify_half_ulp(h->type, top);
}

static bool may_overflow(const struct head *h, double top) {
    return isinf(top) || top >= cr_verify_largest(h->type) * (1 - 0x1p-9);
}

/* BN and addition of an element; *error: of the f32 result, before it is rounded. */
static double before_relu(const struct head *h, int64_t i, double *error) {
    const int64_t c = i % h->C;
    const double *s = in(h, CR_IN_head_scale_bias), product = in(h, CR_IN_head_x)[i] * s[c],
                 add = in(h, CR_IN_head_add)[i];
    *error           = 2 * CR_VERIFY_AFFINE * (fabs(product) + fabs(s[h->C + c]) + fabs(add)) + (double)FLT_MIN;
    return product + s[h->C + c] + add;
}

static void features(struct head *h) {
    for (int64_t f = 0; f < h->N * h->C; f++) {
        const int64_t n   = f / h->C;
        double        sum = 0, error = 0;
        for (int64_t p = 0; p < h->P; p++) {
            double       off;
            const double pre = before_relu(h, (n * h->P + p) * h->C + f % h->C, &off), z = pre < 0 ? 0 : pre;
            h->wild[n] |= may_overflow(h, fabs(pre) + off);
            sum += z;
            if (pre + off > 0) error += off + rounding(h, z + off);
        }
        h->feature[f]       = sum / (double)h->P;
        error               = error / (double)h->P + h->k * h->feature[f];
        h->feature_error[f] = error + rounding(h, h->feature[f] + error);
        h->wild[n] |= may_overflow(h, sum);
    }
}

static void logits(struct head *h) {
    const double *w = in(h, CR_IN_head_w), *want = h->e->want[CR_OUT_head_logits];
    for (int64_t i = 0; i < h->N * h->K; i++) {
        const int64_t n = i / h->K, k = i % h->K;
        double        size = fabs(in(h, CR_IN_head_b)[k]), error = 0;
        for (int64_t c = 0; c < h->C; c++) {
            size += fabs(h->feature[n * h->C + c] * w[k * h->C + c]);
            error += h->feature_error[n * h->C + c] * fabs(w[k * h->C + c]);
        }
        error += h->k * size + (double)FLT_MIN;
        h->wild[n] |= may_overflow(h, fabs(want[i]) + error) || isinf(size);
        h->e->scale[CR_OUT_head_logits][i] = size;
        h->e->slack[CR_OUT_head_logits][i] = error;
        h->logit_error[i]                  = error + rounding(h, fabs(want[i]) + error);
    }
}

/* ---- loss ---- */

static bool is_class(const struct head *h, int64_t n, int32_t *label) {
    *label = ((const int32_t *)h->v->in[CR_IN_head_labels])[n];
    return *label >= 0 && *label < h->K;
}

/* The label of the image's partner, or -1. */
static int32_t other_label(const struct head *h, int64_t n) {
    const int32_t *mix = h->v->in[CR_IN_head_mixes];
    int32_t        label;
    if (h->v->op->in[CR_IN_head_mixes] < 0) return -1;
    const int32_t partner = mix[CR_MIX_NUMBERS * n + CR_MIX_PARTNER];
    return partner >= 0 && partner < h->N && is_class(h, partner, &label) ? label : -1;
}

/* Adds an image to the bounds of the metrics. spread: largest logit - smallest logit; error: largest error of one. */
static void metrics(const struct head *h, int64_t n, int32_t label, double spread, double error) {
    const double *l = h->e->want[CR_OUT_head_logits] + n * h->K, *off = h->logit_error + n * h->K;
    double *const slack  = h->e->slack[CR_OUT_head_metrics];
    int           before = 0, unsure = 0;
    for (int64_t k = 0; k < h->K; k++) {
        if (k == label) continue;
        const bool close = fabs(l[k] - l[label]) <= off[k] + off[label];
        unsure += close;
        before += !close && l[k] > l[label];
    }
    h->e->scale[CR_OUT_head_metrics][0] += spread + log((double)h->K) + 1;
    slack[0] += 2 * error;
    slack[2] += before < 1 && before + unsure >= 1 ? 1 : 0;
    slack[3] += before < 5 && before + unsure >= 5 ? 1 : 0;
}

static void loss_gradient(struct head *h, int64_t n) {
    const double *l      = h->e->want[CR_OUT_head_logits] + n * h->K;
    const double  smooth = (double)h->v->op->attr.head.loss.smoothing / (double)h->K;
    const int32_t other  = other_label(h, n);
    double        top = -INFINITY, bottom = INFINITY, sum = 0, error = 0;
    int32_t       label;
    if (!is_class(h, n, &label)) return; /* zeros */
    for (int64_t k = 0; k < h->K; k++) {
        top = fmax(top, l[k]), bottom = fmin(bottom, l[k]);
        error = fmax(error, h->logit_error[n * h->K + k]);
    }
    for (int64_t k = 0; k < h->K; k++) sum += exp(l[k] - top);
    metrics(h, n, label, top - bottom, error);
    for (int64_t k = 0; k < h->K; k++) {
        const double p = exp(l[k] - top) / sum, t = smooth + (k == label || k == other ? 1 : 0),
                     off = fmin(1, p * expm1(2 * error)) + h->k * (p * (1 + top - bottom) + t) + (double)FLT_MIN;
        double *const g  = &h->g[n * h->K + k];
        *g               = h->factor * (p + t);
        h->g_error[n * h->K + k] = h->factor * off + rounding(h, *g + h->factor * off);
        h->wild[n] |= may_overflow(h, *g + h->factor * off);
    }
}

/* ---- gradients ---- */

static void classifier(struct head *h) {
    double *const dw = h->e->scale[CR_OUT_head_dw], *const dw_slack = h->e->slack[CR_OUT_head_dw],
                  *const db = h->e->scale[CR_OUT_head_db], *const db_slack = h->e->slack[CR_OUT_head_db];
    for (int64_t n = 0; n < h->N; n++)
        for (int64_t k = 0; k < h->K; k++) {
            const double g = h->g[n * h->K + k], off = h->g_error[n * h->K + k];
            db[k] += g, db_slack[k] += off;
            for (int64_t c = 0; c < h->C; c++) {
                const double f = h->feature[n * h->C + c], f_off = h->feature_error[n * h->C + c];
                dw[k * h->C + c] += (g + off) * (f + f_off);
                dw_slack[k * h->C + c] += off * (f + f_off) + g * f_off;
            }
        }
}

static void pooled(struct head *h) {
    const double *w = in(h, CR_IN_head_w);
    for (int64_t f = 0; f < h->N * h->C; f++) {
        const int64_t n    = f / h->C;
        double        size = 0, error = 0;
        for (int64_t k = 0; k < h->K; k++) {
            size += h->g[n * h->K + k] * fabs(w[k * h->C + f % h->C]);
            error += h->g_error[n * h->K + k] * fabs(w[k * h->C + f % h->C]);
        }
        error += h->k * size + (double)FLT_MIN;
        error += rounding(h, size + error);
        h->wild[n] |= may_overflow(h, size + error);
        h->dz[f]       = size / (double)h->P;
        h->dz_error[f] = error / (double)h->P;
    }
}

/* dx, and the errors of its sums, [2][C], with those of sums of dx*xhat behind them. */
static void input_gradient(struct head *h, double *size, double *off) {
    const double *mr = in(h, CR_IN_head_mean_rstd), *x = in(h, CR_IN_head_x), *want = h->e->want[CR_OUT_head_dx];
    for (int64_t i = 0; i < h->N * h->P * h->C; i++) {
        const int64_t c = i % h->C, f = i / (h->P * h->C) * h->C + c;
        double        error, slack    = 0;
        const double  pre = before_relu(h, i, &error), xhat = (fabs(x[i]) + fabs(mr[c])) * fabs(mr[h->C + c]);
        const bool    unsure = fabs(pre) <= error + rounding(h, 0);
        if (unsure)
            slack = h->dz[f] + h->dz_error[f];
        else if (pre > 0)
            slack = h->dz_error[f];
        if (unsure && !isfinite(h->dz[f] + want[i])) h->wild[i / (h->P * h->C)] = true;
        h->e->scale[CR_OUT_head_dx][i] = slack > 0 ? fabs(want[i]) : 0;
        h->e->slack[CR_OUT_head_dx][i] = slack;
        const double stored            = slack > 0 ? slack + rounding(h, fabs(want[i]) + slack) : 0;
        size[c] += fabs(want[i]) + stored;
        off[c] += stored;
        size[h->C + c] += (fabs(want[i]) + stored) * xhat;
        off[h->C + c] += stored * xhat;
    }
}

static void finalize(const struct head *h, const double *size, const double *off) {
    const double *mr = in(h, CR_IN_head_mean_rstd), *gamma = in(h, CR_IN_head_gamma);
    const double  M = (double)h->v->op->attr.head.bn.count, ranks = (double)CR_MAX(h->v->op->attr.head.bn.ranks, 1);
    const int     small[] = {CR_OUT_head_dbeta, CR_OUT_head_dgamma};
    for (int64_t c = 0; c < h->C; c++) {
        const double  s = fabs(gamma[c] * mr[h->C + c]), r = fabs(mr[h->C + c]), m = fabs(mr[c]);
        double *const a = h->e->scale[CR_OUT_head_coeffs] + c, *const slack = h->e->slack[CR_OUT_head_coeffs] + c;
        for (int i = 0; i < 2; i++) {
            h->e->scale[small[i]][c] = size[i * h->C + c] / ranks;
            h->e->slack[small[i]][c] = off[i * h->C + c] / ranks;
        }
        a[0]            = s;
        a[h->C]         = s * r * size[h->C + c] / M;
        slack[h->C]     = s * r * off[h->C + c] / M;
        a[2 * h->C]     = s * (m * r * size[h->C + c] + size[c]) / M;
        slack[2 * h->C] = s * (m * r * off[h->C + c] + off[c]) / M;
        if (isfinite(mr[c]) && isfinite(mr[h->C + c])) continue;
        h->e->scale[CR_OUT_head_dgamma][c] = CR_VERIFY_UNUSED;
        a[h->C] = a[2 * h->C] = CR_VERIFY_UNUSED;
    }
}

/* ---- what cannot be compared ---- */

static void set_unused(const struct head *h, int slot, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; i++) h->e->scale[slot][i] = CR_VERIFY_UNUSED;
}

static void forget_wild(const struct head *h) {
    static const int over_images[] = {CR_OUT_head_dw, CR_OUT_head_db, CR_OUT_head_dgamma, CR_OUT_head_dbeta};
    bool             any           = false;
    for (int64_t n = 0; n < h->N; n++) {
        if (!h->wild[n]) continue;
        any = true;
        set_unused(h, CR_OUT_head_logits, n * h->K, h->K);
        set_unused(h, CR_OUT_head_dx, n * h->P * h->C, h->P * h->C);
    }
    if (!any) return;
    for (size_t i = 0; i < CR_COUNT(over_images); i++) set_unused(h, over_images[i], 0, h->e->elems[over_images[i]]);
    set_unused(h, CR_OUT_head_metrics, 0, 1);
    set_unused(h, CR_OUT_head_metrics, 2, 2);
    set_unused(h, CR_OUT_head_coeffs, h->C, 2 * h->C);
}

/* With a NaN in the reference, errors are not usable: the elements that it reaches are compared by position. */
static void clean(const struct head *h) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        for (int64_t i = 0; i < h->e->elems[s]; i++) {
            if (!isfinite(h->e->scale[s][i])) h->e->scale[s][i] = 0;
            if (!isfinite(h->e->slack[s][i])) h->e->slack[s][i] = 0;
        }
}

static void add_before(const struct head *h) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        for (int64_t i = 0; h->e->before[s] && i < h->e->elems[s]; i++) h->e->scale[s][i] += fabs(h->e->before[s][i]);
}

static double loss_factor(const struct head *h) {
    const double *state = in(h, CR_IN_head_state);
    int64_t       valid = 0;
    int32_t       label;
    for (int64_t n = 0; n < h->N; n++) valid += is_class(h, n, &label);
    return fabs(state[CR_STATE_LOSS_SCALE] * (double)h->v->op->attr.head.loss.weight) / (double)CR_MAX(valid, 1);
}

static cr_status run(struct head *h, double *memory) {
    const int64_t NC = h->N * h->C, NK = h->N * h->K;
    double *const size = memory, *const off = size + 2 * h->C;
    h->feature = off + 2 * h->C, h->feature_error = h->feature + NC;
    h->dz = h->feature_error + NC, h->dz_error = h->dz + NC;
    h->g = h->dz_error + NC, h->g_error = h->g + NK, h->logit_error = h->g_error + NK;
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (h->e->elems[s]) CR_TRY(cr_verify_array(h->e, s, h->e->slack));
    h->factor = loss_factor(h);
    features(h);
    logits(h);
    for (int64_t n = 0; n < h->N; n++) loss_gradient(h, n);
    classifier(h);
    pooled(h);
    input_gradient(h, size, off);
    finalize(h, size, off);
    add_before(h);
    clean(h);
    forget_wild(h);
    return CR_OK;
}

cr_status cr_verify_epilogue_head(const struct cr_verify_values *v, struct cr_verify_expected *expected) {
    const struct cr_tensor *x      = tensor_of(v->original, v->op->in[CR_IN_head_x]);
    struct head             h      = {.v    = v,
                                      .e    = expected,
                                      .type = x->dtype,
                                      .N    = x->dim[0],
                                      .P    = x->dim[1] * x->dim[2],
                                      .C    = x->dim[3],
                                      .K    = dim(v->original, v->op->out[CR_OUT_head_logits], 3)};
    double                 *memory = NULL;
    cr_status               status;
    h.k                  = ROUNDINGS * v->u * sqrt((double)(h.P + h.C));
    const size_t numbers = (size_t)(4 * h.C + 4 * h.N * h.C + 3 * h.N * h.K);
    memory               = cr_alloc(numbers, sizeof *memory);
    h.wild               = cr_alloc((size_t)h.N, sizeof *h.wild);
    status               = memory && h.wild ? run(&h, memory) : CR_NO_MEMORY(numbers * sizeof *memory);
    cr_free(memory);
    cr_free(h.wild);
    return status;
}
