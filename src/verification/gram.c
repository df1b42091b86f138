/* verification/gram.c: bounds of the ops that take batch statistics from a Gram matrix.
 *
 * The bounds are those of sums of products in the order of the formulas of graph/ops.def. Statistics are differences
 * (a variance, a gradient minus its mean), so their errors are relative to the terms and not to the results. What the
 * reference does not round (centred values and scaled filters are 16-bit operands of tensor cores) is slack. */
#include "verification/bound.h"

#include <math.h>

/* ---- gram ---- */

struct pixel_values {
    double *a, *off;           /* [C] values of a pixel and how much a kernel's value may differ */
    double *t, *t_off;         /* the same of the pixel that is the shift */
    double *d, *error;         /* [C] a - t, and the error of this operand */
    double *squares, *sum_abs; /* [C+1][C] squared errors of the products and (line C) of the sums; [C] sum of |d| */
    double *exact, *rounded;   /* [C] a - t, and the same as a 16-bit operand */
    double *effect;            /* [C][C] sum of the products of the rounded operands minus that of the exact ones */
};

/* Values of the pixel at element `at` of x. */
static void read_pixel(const struct cr_verify_values *v, int64_t at, double *a, double *off) {
    const struct cr_tensor *x    = tensor_of(v->original, v->op->in[CR_IN_gram_x]);
    const double           *data = v->in[CR_IN_gram_x],
                 *k              = v->op->in[CR_IN_gram_scale_bias] >= 0 ? v->in[CR_IN_gram_scale_bias] : NULL;
    for (int64_t c = 0; c < x->dim[3]; c++) {
        off[c] = 0;
        a[c]   = k ? cr_verify_activated(x->dtype, data[at + c], k[c], k[x->dim[3] + c], &off[c]) : data[at + c];
    }
}

/* The pixels that a convolution with this stride reads. */
struct read_pixels {
    int64_t H, W, C, rows, columns, stride, count;
};
static int64_t element_of(const struct read_pixels *r, int64_t p) {
    const int64_t n = p / (r->rows * r->columns), h = p / r->columns % r->rows, w = p % r->columns;
    return ((n * r->H + h * r->stride) * r->W + w * r->stride) * r->C;
}

/* The shift of channel c, and how much a kernel's may differ: samples may lie at either end of their intervals.
 * a, off: [CR_GRAM_SAMPLES][C]. */
static void find_shift(const struct pixel_values *q, const double *a, const double *off, int64_t C, int64_t c) {
    double sample[CR_GRAM_SAMPLES];
    for (int i = 0; i < CR_GRAM_SAMPLES; i++) sample[i] = a[i * C + c];
    q->t[c]     = cr_gram_shift(sample);
    q->t_off[c] = 0;
    for (int k = 0; k < 9; k++) { /* the center and the others: low, exact or high */
        for (int i = 0; i < CR_GRAM_SAMPLES; i++)
            sample[i] = a[i * C + c] + (i == CR_GRAM_CENTER ? k / 3 - 1 : k % 3 - 1) * off[i * C + c];
        q->t_off[c] = fmax(q->t_off[c], fabs(cr_gram_shift(sample) - q->t[c]));
    }
}

static cr_status read_shifts(const struct cr_verify_values *v, const struct pixel_values *q,
                             const struct read_pixels *r) {
    double *memory;
    CR_ALLOC(memory, (size_t)(2 * CR_GRAM_SAMPLES * r->C));
    double *off = memory + CR_GRAM_SAMPLES * r->C;
    for (int i = 0; i < CR_GRAM_SAMPLES; i++)
        read_pixel(v, element_of(r, cr_gram_sample(i, r->count)), memory + i * r->C, off + i * r->C);
    for (int64_t c = 0; c < r->C; c++) find_shift(q, memory, off, r->C, c);
    cr_free(memory);
    return CR_OK;
}

static void add_pixel(const struct cr_verify_values *v, struct cr_verify_expected *e, const struct pixel_values *q,
                      int64_t at) {
    const struct cr_tensor *x = tensor_of(v->original, v->op->in[CR_IN_gram_x]);
    const int64_t           C = x->dim[3];
    read_pixel(v, at, q->a, q->off);
    for (int64_t c = 0; c < C; c++) {
        q->exact[c]   = q->a[c] - q->t[c];
        q->rounded[c] = cr_verify_stored(x->dtype, q->exact[c]);
        q->d[c]       = fabs(q->exact[c]);
        q->error[c]   = q->off[c] + (x->dtype == CR_F64 ? 0 : cr_verify_half_ulp(x->dtype, q->d[c]));
        q->sum_abs[c] += q->d[c];
        e->scale[0][C * C + c] += q->d[c];
        q->squares[C * C + c] += q->error[c] * q->error[c];
    }
    for (int64_t i = 0; i < C; i++)
        for (int64_t j = 0; j < C; j++) {
            const double error = q->d[i] * q->error[j] + q->error[i] * (q->d[j] + q->error[j]);
            e->scale[0][i * C + j] += q->d[i] * q->d[j];
            q->squares[i * C + j] += error * error;
            q->effect[i * C + j] += q->rounded[i] * q->rounded[j] - q->exact[i] * q->exact[j];
        }
}

/* Errors of the operands are independent, so their squares add up; an error of the shift is the same for all pixels.
 * Equal values of a have equal errors. Their effect on a sum is known, because a - t is rounded to the nearest 16-bit
 * number: a kernel may round this difference or not. */
static void put_slack(struct cr_verify_expected *e, const struct pixel_values *q, int64_t C, int64_t P) {
    for (int64_t i = 0; i <= C; i++)
        for (int64_t j = 0; j < C; j++) {
            const double t_off     = i == C ? (double)P * q->t_off[j]
                                            : q->t_off[i] * q->sum_abs[j] + q->t_off[j] * q->sum_abs[i] +
                                              (double)P * q->t_off[i] * q->t_off[j];
            const double effect    = i == C ? 0 : or_zero(fabs(q->effect[i * C + j]));
            e->slack[0][i * C + j] = or_zero(CR_VERIFY_C * sqrt(q->squares[i * C + j]) + t_off + effect);
            e->scale[0][i * C + j] = or_zero(e->scale[0][i * C + j]);
        }
    for (int64_t j = 0; j < C; j++) e->slack[0][(C + 1) * C + j] = or_zero(q->t_off[j]);
}

cr_status cr_verify_epilogue_gram(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const int64_t     *dims = tensor_of(v->original, v->op->in[CR_IN_gram_x])->dim, C = dims[3];
    struct read_pixels r = {.H = dims[1], .W = dims[2], .C = C, .stride = v->op->attr.conv.stride};
    double            *memory;
    r.rows    = (r.H - 1) / r.stride + 1;
    r.columns = (r.W - 1) / r.stride + 1;
    r.count   = dims[0] * r.rows * r.columns;
    CR_TRY(cr_verify_array(e, 0, e->slack));
    CR_ALLOC(memory, (size_t)(C * (2 * C + 10)));
    const struct pixel_values q      = {.a       = memory,
                                        .off     = memory + C,
                                        .t       = memory + 2 * C,
                                        .t_off   = memory + 3 * C,
                                        .d       = memory + 4 * C,
                                        .error   = memory + 5 * C,
                                        .sum_abs = memory + 6 * C,
                                        .squares = memory + 7 * C,
                                        .exact   = memory + (C + 8) * C,
                                        .rounded = memory + (C + 9) * C,
                                        .effect  = memory + (C + 10) * C};
    const cr_status           status = read_shifts(v, &q, &r);
    for (int64_t p = 0; p < r.count && status == CR_OK; p++) add_pixel(v, e, &q, element_of(&r, p));
    if (status == CR_OK) put_slack(e, &q, C, r.count);
    cr_free(memory);
    return status;
}

/* ---- statistics of y = w a ---- */

struct moment_sums {
    const double *w, *gram;
    int64_t       K, C;
    double        P;
};

static struct moment_sums sums_of(const struct cr_verify_values *v, int w, int gram) {
    const struct cr_bn_attr *attr = &v->op->attr.bn;
    return (struct moment_sums){.w    = v->in[w],
                                .gram = v->in[gram],
                                .K    = dim(v->program, v->op->in[w], 0),
                                .C    = dim(v->program, v->op->in[w], 3),
                                .P    = (double)attr->count / (double)CR_MAX(attr->ranks, 1)};
}

static double at(const struct moment_sums *s, int64_t i, int64_t j) {
    return s->gram[i * s->C + j];
}
static double average(const struct moment_sums *s, int64_t c) {
    return at(s, s->C, c) / s->P;
}

/* Mean and variance of y[k], and the sums of the magnitudes of their terms. */
struct moments {
    double mean, mean_terms, var, var_terms;
};

static struct moments moments_of(const struct moment_sums *s, int64_t k) {
    const double  *w = s->w + k * s->C;
    struct moments m = {0};
    for (int64_t i = 0; i < s->C; i++) {
        m.mean += w[i] * (at(s, s->C + 1, i) + average(s, i));
        m.mean_terms += fabs(w[i]) * (fabs(at(s, s->C + 1, i)) + fabs(average(s, i)));
        for (int64_t j = 0; j < s->C; j++) {
            const double square = at(s, i, j) / s->P, product = average(s, i) * average(s, j);
            m.var += w[i] * w[j] * (square - product);
            m.var_terms += fabs(w[i] * w[j]) * (fabs(square) + fabs(product));
        }
    }
    return m;
}

/* Relative error of the roundings of a formula. */
static double roundings(const struct cr_verify_values *v) {
    return CR_VERIFY_C * v->u * sqrt(cr_verify_terms(v->program, v->op, 0));
}

cr_status cr_verify_epilogue_gram_bn_finalize(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const struct moment_sums s = sums_of(v, CR_IN_gram_bn_finalize_w, CR_IN_gram_bn_finalize_gram);
    const double             k = roundings(v);
    for (int64_t c = 0; c < s.K; c++) {
        const struct moments           m = moments_of(&s, c);
        const struct cr_verify_moments f = {.attr         = &v->op->attr.bn,
                                            .mean         = m.mean,
                                            .var          = m.var,
                                            .mean_error   = k * m.mean_terms,
                                            .var_error    = k * m.var_terms,
                                            .gamma        = in_at(v, CR_IN_gram_bn_finalize_gamma, c),
                                            .beta         = in_at(v, CR_IN_gram_bn_finalize_beta, c),
                                            .running_mean = in_at(v, CR_IN_gram_bn_finalize_running_mean, c),
                                            .running_var  = in_at(v, CR_IN_gram_bn_finalize_running_var, c),
                                            .k            = k};
        double                         want[CR_VERIFY_BN_NUMBERS], error[CR_VERIFY_BN_NUMBERS];
        cr_verify_finalize_moments(&f, want, error);
        for (int half = 0; half < 2; half++) {
            e->scale[CR_OUT_gram_bn_finalize_mean_rstd][half * s.K + c] = or_zero(error[CR_VERIFY_BN_MEAN + half] / k);
            e->scale[CR_OUT_gram_bn_finalize_scale_bias][half * s.K + c] =
                or_zero(error[CR_VERIFY_BN_SCALE + half] / k);
        }
        e->scale[CR_OUT_gram_bn_finalize_running_mean][c] = or_zero(error[CR_VERIFY_BN_RUNNING_MEAN] / k);
        e->scale[CR_OUT_gram_bn_finalize_running_var][c]  = or_zero(error[CR_VERIFY_BN_RUNNING_VAR] / k);
    }
    return CR_OK;
}

cr_status cr_verify_epilogue_gram_bn_sums(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const struct moment_sums s      = sums_of(v, CR_IN_gram_bn_sums_w, CR_IN_gram_bn_sums_gram);
    const double            *center = v->in[CR_IN_gram_bn_sums_center], k = roundings(v);
    for (int64_t c = 0; c < s.K; c++) {
        const struct moments m = moments_of(&s, c);
        const double         d = fabs(m.mean - center[c]), terms = m.mean_terms + fabs(center[c]);
        e->scale[0][c]       = or_zero(s.P * terms);
        e->scale[0][s.K + c] = or_zero(s.P * (m.var_terms + 2 * d * terms + k * terms * terms + d * d));
    }
    return CR_OK;
}

/* ---- backward ---- */

/* Magnitudes of one output channel: dy = A*g + B*(y - mean) + D. mean, product and B contain the sums of the magnitudes
 * of their terms. */
struct channel {
    double A, B, D, mean, sum, product, signed_B;
};

struct grad {
    const struct cr_verify_values *v;
    struct cr_verify_expected     *e;
    struct moment_sums             s;
    const double                  *m, *dy_sums, *grad_sums; /* grad_sums: NULL when absent */
    struct channel                *h;                       /* [K] */
    enum cr_dtype                  dtype;                   /* of the filters */
    double                         k;
};

static struct channel channel_of(const struct grad *q, int64_t k) {
    const double  *mean_rstd = q->v->in[CR_IN_gram_bn_grad_mean_rstd], *gamma = q->v->in[CR_IN_gram_bn_grad_gamma];
    const double   M = (double)q->v->op->attr.bn.count, rstd = fabs(mean_rstd[q->s.K + k]);
    struct channel h       = {.A = fabs(gamma[k]) * rstd};
    const struct moments y = moments_of(&q->s, k);
    double               product;
    if (q->grad_sums) {
        h.mean    = fabs(mean_rstd[k]);
        h.sum     = fabs(q->grad_sums[k]);
        product   = q->grad_sums[q->s.K + k];
        h.product = fabs(product);
    } else {
        double dot = 0, terms = 0;
        for (int64_t c = 0; c < q->s.C; c++) {
            dot += q->s.w[k * q->s.C + c] * q->m[k * q->s.C + c];
            terms += fabs(q->s.w[k * q->s.C + c] * q->m[k * q->s.C + c]);
        }
        h.mean    = y.mean_terms;
        h.sum     = fabs(q->dy_sums[k]);
        h.product = rstd * (terms + h.mean * h.sum);
        product   = rstd * (dot - y.mean * q->dy_sums[k]);
    }
    h.B        = h.A * rstd * h.product / M;
    h.D        = h.A * h.sum / M;
    h.signed_B = -gamma[k] * mean_rstd[q->s.K + k] * rstd * product / M;
    return h;
}

static double before(const struct grad *q, int slot, int64_t i) {
    return q->e->before[slot] ? fabs(q->e->before[slot][i]) : 0;
}

static void put_channel(const struct grad *q, int64_t k) {
    const struct moment_sums *s     = &q->s;
    const struct channel     *h     = &q->h[k];
    const int64_t             C     = s->C;
    const double              ranks = (double)CR_MAX(q->v->op->attr.bn.ranks, 1), *w = s->w + k * C;
    double                    d = h->mean, off = 0;
    if (q->e->elems[CR_OUT_gram_bn_grad_dgamma])
        q->e->scale[CR_OUT_gram_bn_grad_dgamma][k] =
            or_zero(before(q, CR_OUT_gram_bn_grad_dgamma, k) + h->product / ranks);
    if (q->e->elems[CR_OUT_gram_bn_grad_dbeta])
        q->e->scale[CR_OUT_gram_bn_grad_dbeta][k] = or_zero(before(q, CR_OUT_gram_bn_grad_dbeta, k) + h->sum / ranks);
    for (int64_t c = 0; c < C; c++) d += fabs(w[c] * at(s, C + 1, c));
    if (q->grad_sums) off = s->P * (moments_of(s, k).mean_terms + h->mean);
    for (int64_t c = 0; c < C; c++) {
        const double shift = fabs(at(s, C + 1, c));
        double       dot   = d * fabs(at(s, C, c)) + shift * off;
        for (int64_t j = 0; j < C; j++) dot += fabs(w[j] * at(s, j, c));
        q->e->scale[CR_OUT_gram_bn_grad_dw][k * C + c] =
            or_zero(before(q, CR_OUT_gram_bn_grad_dw, k * C + c) + h->A * fabs(q->m[k * C + c]) +
                    h->D * s->P * (shift + fabs(average(s, c))) + h->B * dot);
    }
}

/* Near a power of two a kernel may choose the next factor. */
static bool is_sure(double most, double error) {
    int low, high;
    (void)frexp(most - error, &low);
    (void)frexp(most + error, &high);
    return most > 2 * error && low == high && isfinite(most);
}

/* Line c of w_g, w_x and factor_bias. */
static void put_input(const struct grad *q, int64_t c) {
    const struct moment_sums *s = &q->s;
    const int64_t             C = s->C, K = s->K;
    const double              factor = q->e->want[CR_OUT_gram_bn_grad_factor_bias][c];
    double                    bias = 0, slack = 0, most = 0, error = 0;
    for (int64_t k = 0; k < K; k++) {
        const double w = fabs(s->w[k * C + c]), mean_g = fabs(q->dy_sums[k]) / s->P;
        q->e->scale[CR_OUT_gram_bn_grad_w_g][c * K + k] = or_zero(q->h[k].A * w);
        bias += w * (q->h[k].D + q->h[k].B * q->h[k].mean + q->h[k].A * mean_g);
        slack += cr_verify_half_ulp(q->dtype, q->h[k].A * w) * mean_g;
    }
    for (int64_t j = 0; j < C; j++) {
        const double mean_a = fabs(at(s, C + 1, j)) + fabs(average(s, j));
        double       r = 0, terms = 0;
        for (int64_t k = 0; k < K; k++) {
            r += s->w[k * C + c] * q->h[k].signed_B * s->w[k * C + j];
            terms += fabs(s->w[k * C + c] * s->w[k * C + j]) * q->h[k].B;
        }
        q->e->scale[CR_OUT_gram_bn_grad_w_x][c * C + j] = or_zero(terms / factor);
        bias += terms * mean_a;
        slack += cr_verify_half_ulp(q->dtype, (fabs(r) + q->k * terms) / factor) * factor * mean_a;
        most  = fmax(most, fabs(r));
        error = fmax(error, q->k * terms);
    }
    /* what rounding loses, times an infinite mean: NaN if nothing is lost, as in the reference, else infinite */
    q->e->scale[CR_OUT_gram_bn_grad_factor_bias][C + c] = isfinite(slack) ? or_zero(bias) : CR_VERIFY_UNUSED;
    q->e->slack[CR_OUT_gram_bn_grad_factor_bias][C + c] = or_zero(slack);
    if (most == 0 || is_sure(most, error)) return;
    q->e->scale[CR_OUT_gram_bn_grad_factor_bias][c] = CR_VERIFY_UNUSED;
    for (int64_t j = 0; j < C; j++) q->e->scale[CR_OUT_gram_bn_grad_w_x][c * C + j] = CR_VERIFY_UNUSED;
}

cr_status cr_verify_epilogue_gram_bn_grad(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    struct grad q = {.v       = v,
                     .e       = e,
                     .s       = sums_of(v, CR_IN_gram_bn_grad_w, CR_IN_gram_bn_grad_gram),
                     .m       = v->in[CR_IN_gram_bn_grad_m],
                     .dy_sums = v->in[CR_IN_gram_bn_grad_dy_sums],
                     .grad_sums =
                         v->op->in[CR_IN_gram_bn_grad_grad_sums] >= 0 ? v->in[CR_IN_gram_bn_grad_grad_sums] : NULL,
                     .dtype = tensor_of(v->original, v->op->in[CR_IN_gram_bn_grad_w])->dtype,
                     .k     = roundings(v)};
    CR_TRY(cr_verify_array(e, CR_OUT_gram_bn_grad_factor_bias, e->slack));
    CR_ALLOC(q.h, (size_t)q.s.K);
    for (int64_t k = 0; k < q.s.K; k++) q.h[k] = channel_of(&q, k);
    for (int64_t k = 0; k < q.s.K; k++) put_channel(&q, k);
    for (int64_t c = 0; c < q.s.C; c++) put_input(&q, c);
    cr_free(q.h);
    return CR_OK;
}
