/* device/cpu/reference/ref_gram.c: batch statistics of a 1x1 convolution y = w a, and its backward pass, from the Gram
 * matrix of a; y is never computed. Formulas: graph/ops.def, derivation: docs/internals/gram-bn.md. */
#include "device/cpu/reference/ref_conv.h"

/* ---- the Gram matrix ---- */

/* The pixels of a that the convolution reads. */
struct pixels {
    struct ref a;
    int64_t    stride, rows, columns;
};

static struct pixels pixels_of(struct ref a, int64_t stride) {
    return (struct pixels){.a = a, .stride = stride, .rows = (a.H - 1) / stride + 1, .columns = (a.W - 1) / stride + 1};
}

/* Index of channel 0 of pixel p. */
static int64_t pixel_offset(const struct pixels *q, int64_t p) {
    const int64_t w = p % q->columns * q->stride, h = p / q->columns % q->rows * q->stride,
                  n = p / q->columns / q->rows;
    return ((n * q->a.H + h) * q->a.W + w) * q->a.C;
}

static double shift_of(const struct pixels *q, int64_t i) {
    double sample[CR_GRAM_SAMPLES];
    for (int s = 0; s < CR_GRAM_SAMPLES; s++)
        sample[s] = ref_get(&q->a, pixel_offset(q, cr_gram_sample(s, q->a.N * q->rows * q->columns)) + i);
    return cr_gram_shift(sample);
}

/* Row i of the Gram matrix, its sum and its shift. */
static void gram_row(const struct pixels *q, const struct ref *gram, int64_t i) {
    const int64_t C = q->a.C, P = q->a.N * q->rows * q->columns;
    const double  t   = shift_of(q, i);
    double        sum = 0;
    for (int64_t p = 0; p < P; p++) sum += ref_get(&q->a, pixel_offset(q, p) + i) - t;
    for (int64_t j = 0; j < C; j++) {
        const double u   = shift_of(q, j);
        double       dot = 0;
        for (int64_t p = 0; p < P; p++) {
            const int64_t at = pixel_offset(q, p);
            dot += (ref_get(&q->a, at + i) - t) * (ref_get(&q->a, at + j) - u);
        }
        ref_put(gram, i * C + j, dot);
    }
    ref_put(gram, C * C + i, sum);
    ref_put(gram, (C + 1) * C + i, t);
}

REF_KERNEL(gram) {
    struct ref x = REF_IN(gram, x), scale_bias = REF_IN(gram, scale_bias), gram = REF_OUT(gram, gram);
    ref_conv_activate(device, &x, &scale_bias, call->workspace);
    const struct pixels q = pixels_of(x, call->op->attr.conv.stride);
    CR_PARALLEL(i, x.C) gram_row(&q, &gram, i);
}

/* ---- statistics of y = w a ---- */

/* The pixels of this rank: P. */
struct gram_view {
    struct ref w, gram;
    double     P;
};

static double gram_at(const struct gram_view *s, int64_t i, int64_t j) {
    return ref_get(&s->gram, i * s->w.C + j);
}
/* Sum of a[c] - t[c]; the shift t[c]; the mean of a[c]. */
static double sum_at(const struct gram_view *s, int64_t c) {
    return gram_at(s, s->w.C, c);
}
static double shift_at(const struct gram_view *s, int64_t c) {
    return gram_at(s, s->w.C + 1, c);
}
static double mean_at(const struct gram_view *s, int64_t c) {
    return shift_at(s, c) + sum_at(s, c) / s->P;
}
static double w_at(const struct gram_view *s, int64_t k, int64_t c) {
    return ref_get(&s->w, k * s->w.C + c);
}

static double mean_of_y(const struct gram_view *s, int64_t k) {
    double mean = 0;
    for (int64_t c = 0; c < s->w.C; c++) mean += w_at(s, k, c) * mean_at(s, c);
    return mean;
}

static double variance_of_y(const struct gram_view *s, int64_t k) {
    const int64_t C   = s->w.C;
    double        var = 0;
    for (int64_t i = 0; i < C; i++) {
        double row = 0;
        for (int64_t j = 0; j < C; j++)
            row += (gram_at(s, i, j) / s->P - sum_at(s, i) / s->P * (sum_at(s, j) / s->P)) * w_at(s, k, j);
        var += w_at(s, k, i) * row;
    }
    return var;
}

REF_KERNEL(gram_bn_finalize) {
    const struct ref_finalize f = {.attr       = call->op->attr.bn,
                                   .gamma      = REF_IN(gram_bn_finalize, gamma),
                                   .beta       = REF_IN(gram_bn_finalize, beta),
                                   .old_mean   = REF_IN(gram_bn_finalize, running_mean),
                                   .old_var    = REF_IN(gram_bn_finalize, running_var),
                                   .scale_bias = REF_OUT(gram_bn_finalize, scale_bias),
                                   .mean_rstd  = REF_OUT(gram_bn_finalize, mean_rstd),
                                   .mean       = REF_OUT(gram_bn_finalize, running_mean),
                                   .var        = REF_OUT(gram_bn_finalize, running_var)};
    const struct gram_view    s = {
           .w = REF_IN(gram_bn_finalize, w), .gram = REF_IN(gram_bn_finalize, gram), .P = (double)f.attr.count};
    ref_copy_old(&f.old_mean, &f.mean);
    ref_copy_old(&f.old_var, &f.var);
    CR_PARALLEL(k, s.w.N) cr_ref_finalize_channel(&f, k, mean_of_y(&s, k), variance_of_y(&s, k));
}

static double pixels_of_rank(const struct cr_bn_attr *attr) {
    return (double)attr->count / (double)CR_MAX(attr->ranks, 1);
}

REF_KERNEL(gram_bn_sums) {
    const struct gram_view s = {
        .w = REF_IN(gram_bn_sums, w), .gram = REF_IN(gram_bn_sums, gram), .P = pixels_of_rank(&call->op->attr.bn)};
    struct ref center = REF_IN(gram_bn_sums, center), sums = REF_OUT(gram_bn_sums, sums);
    CR_PARALLEL(k, s.w.N) {
        const double d = mean_of_y(&s, k) - ref_get(&center, k);
        ref_put(&sums, k, s.P * d);
        ref_put(&sums, s.w.N + k, s.P * (variance_of_y(&s, k) + d * d));
    }
}

/* ---- backward ---- */

/* Sum of g*xhat over the pixels. */
static double grad_product(const struct ref *w, const struct ref *m, int64_t k, double mean, double rstd, double sum) {
    double dot = 0;
    for (int64_t c = 0; c < w->C; c++) dot += ref_get(w, k * w->C + c) * ref_get(m, k * w->C + c);
    return rstd * (dot - mean * sum);
}

REF_KERNEL(gram_bn_grad_sums) {
    struct ref w = REF_IN(gram_bn_grad_sums, w), m = REF_IN(gram_bn_grad_sums, m),
               dy_sums = REF_IN(gram_bn_grad_sums, dy_sums), mean_rstd = REF_IN(gram_bn_grad_sums, mean_rstd),
               grad_sums = REF_OUT(gram_bn_grad_sums, grad_sums);
    for (int64_t k = 0; k < w.N; k++) {
        const double sum = ref_get(&dy_sums, k);
        ref_put(&grad_sums, k, sum);
        ref_put(&grad_sums, w.N + k,
                grad_product(&w, &m, k, ref_get(&mean_rstd, k), ref_get(&mean_rstd, w.N + k), sum));
    }
}

struct gram_grad {
    struct cr_bn_attr attr;
    struct gram_view  s;
    struct ref        m, dy_sums, gamma, mean_rstd, grad_sums; /* grad_sums may be absent */
    struct ref        w_g, w_x, factor_bias, dw, dgamma, dbeta;
};

/* One output channel: dy = A*g + B*(y - mean) + D. */
struct channel {
    double A, B, D, mean, sum, product;
};

static struct channel channel_of(const struct gram_grad *q, int64_t k) {
    const double   M = (double)q->attr.count, rstd = ref_get(&q->mean_rstd, q->s.w.N + k);
    struct channel h = {.mean = q->grad_sums.data ? ref_get(&q->mean_rstd, k) : mean_of_y(&q->s, k),
                        .sum  = ref_get(q->grad_sums.data ? &q->grad_sums : &q->dy_sums, k),
                        .A    = ref_get(&q->gamma, k) * rstd};
    h.product =
        q->grad_sums.data ? ref_get(&q->grad_sums, q->s.w.N + k) : grad_product(&q->s.w, &q->m, k, h.mean, rstd, h.sum);
    h.B = -h.A * rstd * (h.product / M);
    h.D = -h.A * (h.sum / M);
    return h;
}

/* Row k of dw: the sums over the pixels of (A*g + D)*a and of B*(y - mean)*a. With d = w.t - mean, the mean of y of
 * this rank minus `mean` is d + w.S: without grad_sums it is 0. */
static void filter_row(const struct gram_grad *q, int64_t k, const struct channel *h) {
    const struct gram_view *s = &q->s;
    const int64_t           C = s->w.C;
    double                  d = -h->mean, off = 0;
    for (int64_t c = 0; c < C; c++) d += w_at(s, k, c) * shift_at(s, c);
    if (q->grad_sums.data) off = s->P * (mean_of_y(s, k) - h->mean);
    for (int64_t c = 0; c < C; c++) {
        double dot = d * sum_at(s, c) + shift_at(s, c) * off;
        for (int64_t j = 0; j < C; j++) dot += w_at(s, k, j) * gram_at(s, j, c);
        ref_put_or_add(&q->dw, k * C + c, h->A * ref_get(&q->m, k * C + c) + h->D * s->P * mean_at(s, c) + h->B * dot,
                       q->attr.accumulate);
    }
}

static void put_channel(const struct gram_grad *q, int64_t k, const struct channel *h) {
    const double ranks = (double)CR_MAX(q->attr.ranks, 1);
    ref_put_or_add(&q->dgamma, k, h->product / ranks, q->attr.accumulate);
    ref_put_or_add(&q->dbeta, k, h->sum / ranks, q->attr.accumulate);
    filter_row(q, k, h);
}

/* The power of two for which the largest element is in [128, 256) after the division. */
static double factor_of(double most) {
    int exponent;
    if (!(most > 0) || !isfinite(most)) return 1;
    (void)frexp(most, &exponent);
    return ldexp(1, CR_MAX(exponent - 8, -120));
}

/* Row c of w_g and w_x. r: scratch memory for row c of w^T B w. */
static void input_row(const struct gram_grad *q, int64_t c, const struct channel *h, double *r) {
    const struct gram_view *s = &q->s;
    const int64_t           C = s->w.C, K = s->w.N;
    double                  bias = 0, most = 0;
    for (int64_t k = 0; k < K; k++) {
        const double w = w_at(s, k, c), wa = h[k].A * w;
        ref_put(&q->w_g, c * K + k, wa);
        bias += w * (h[k].D - h[k].B * h[k].mean);
        bias += (wa - ref_get(&q->w_g, c * K + k)) * (ref_get(&q->dy_sums, k) / s->P);
    }
    for (int64_t j = 0; j < C; j++) {
        r[j] = 0;
        for (int64_t k = 0; k < K; k++) r[j] += w_at(s, k, c) * h[k].B * w_at(s, k, j);
        if (fabs(r[j]) > most || isnan(r[j])) most = fabs(r[j]);
    }
    const double factor = factor_of(most);
    for (int64_t j = 0; j < C; j++) {
        ref_put(&q->w_x, c * C + j, r[j] / factor);
        bias += (r[j] - ref_get(&q->w_x, c * C + j) * factor) * mean_at(s, j);
    }
    ref_put(&q->factor_bias, c, factor);
    ref_put(&q->factor_bias, C + c, bias);
}

REF_KERNEL(gram_bn_grad) {
    const struct gram_grad q = {.attr        = call->op->attr.bn,
                                .s           = {.w    = REF_IN(gram_bn_grad, w),
                                                .gram = REF_IN(gram_bn_grad, gram),
                                                .P    = pixels_of_rank(&call->op->attr.bn)},
                                .m           = REF_IN(gram_bn_grad, m),
                                .dy_sums     = REF_IN(gram_bn_grad, dy_sums),
                                .gamma       = REF_IN(gram_bn_grad, gamma),
                                .mean_rstd   = REF_IN(gram_bn_grad, mean_rstd),
                                .grad_sums   = REF_IN(gram_bn_grad, grad_sums),
                                .w_g         = REF_OUT(gram_bn_grad, w_g),
                                .w_x         = REF_OUT(gram_bn_grad, w_x),
                                .factor_bias = REF_OUT(gram_bn_grad, factor_bias),
                                .dw          = REF_OUT(gram_bn_grad, dw),
                                .dgamma      = REF_OUT(gram_bn_grad, dgamma),
                                .dbeta       = REF_OUT(gram_bn_grad, dbeta)};
    struct channel        *h = call->workspace;
    double                *r = (double *)(h + q.s.w.N);
    CR_PARALLEL(k, q.s.w.N) {
        h[k] = channel_of(&q, k);
        put_channel(&q, k, &h[k]);
    }
    CR_PARALLEL(c, q.s.w.C) input_row(&q, c, h, r + c * q.s.w.C);
}

size_t cr_ref_gram_bn_grad_workspace(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *w = &p->tensor[op->in[CR_IN_gram_bn_grad_w]];
    return (size_t)w->dim[0] * sizeof(struct channel) + (size_t)(w->dim[3] * w->dim[3]) * sizeof(double);
}

/* ---- gradient by a ---- */

struct gram_dgrad {
    struct pixels       q;
    struct ref          g, w_g, w_x, factor_bias, dx;
    struct ref_epilogue epilogue;
    bool                relu; /* masks the pixels that are read with a > 0 */
};

static void dgrad_row(const struct gram_dgrad *v, int64_t n, int64_t h) {
    const int64_t C = v->dx.C, K = v->g.C, stride = v->q.stride;
    for (int64_t w = 0; w < v->dx.W; w++) {
        const int64_t x0 = ((n * v->dx.H + h) * v->dx.W + w) * C,
                      g0 = ((n * v->g.H + h / stride) * v->g.W + w / stride) * K;
        const bool reads = h % stride == 0 && w % stride == 0;
        for (int64_t c = 0; c < C; c++) {
            double by_g = 0, by_x = 0;
            for (int64_t k = 0; reads && k < K; k++) by_g += ref_get(&v->w_g, c * K + k) * ref_get(&v->g, g0 + k);
            for (int64_t j = 0; reads && j < C; j++) by_x += ref_get(&v->w_x, c * C + j) * ref_get(&v->q.a, x0 + j);
            const double sum = reads ? by_g + ref_get(&v->factor_bias, c) * by_x + ref_get(&v->factor_bias, C + c) : 0;
            const bool   masked = v->relu && reads && !(ref_get(&v->q.a, x0 + c) > 0);
            ref_put(&v->dx, x0 + c, masked ? 0 : ref_epilogue_apply(&v->epilogue, x0 + c, c, sum));
        }
    }
}

REF_KERNEL(gram_dgrad) {
    struct ref x = REF_IN(gram_dgrad, x), scale_bias = REF_IN(gram_dgrad, scale_bias), a = x,
               mean_rstd = REF_IN(gram_dgrad, mean_rstd), grad_sums = REF_OUT(gram_dgrad, grad_sums);
    ref_conv_activate(device, &a, &scale_bias, call->workspace);
    struct gram_dgrad v = {.q           = pixels_of(a, call->op->attr.conv.stride),
                           .g           = REF_IN(gram_dgrad, g),
                           .w_g         = REF_IN(gram_dgrad, w_g),
                           .w_x         = REF_IN(gram_dgrad, w_x),
                           .factor_bias = REF_IN(gram_dgrad, factor_bias),
                           .dx          = REF_OUT(gram_dgrad, dx),
                           .epilogue    = {.add = REF_IN(gram_dgrad, add)},
                           .relu        = call->op->attr.conv.relu};
    if (mean_rstd.data) v.epilogue.mask = (struct ref_relu_mask){.x = x, .scale_bias = scale_bias};
    CR_PARALLEL(i, v.dx.N * v.dx.H) dgrad_row(&v, i / v.dx.H, i % v.dx.H);
    cr_ref_sum_grads(device, &v.dx, NULL, &x, &mean_rstd, &grad_sums);
}
