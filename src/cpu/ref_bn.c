/* ref_bn.c: batch normalisation in its pieces (Ioffe & Szegedy 2015): sums, finalize, apply; and the same backward.
 * With xhat = (x - mean) * rstd and g the gradient after the ReLU,
 *   dx = gamma * rstd * (g - mean(g) - xhat * mean(g * xhat)),  dgamma = sum g * xhat,  dbeta = sum g. */
#include "ref.h"

enum { CHANNEL_BLOCK = 16 }; /* channels a thread sums side by side: a cache line of floats */

/* ---- forward ---- */

static void stats_block(const struct ref *x, const struct ref *stats, int64_t c0) {
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
        ref_put(stats, c0 + c, sum[c]);
        ref_put(stats, C + c0 + c, squares[c]);
    }
}

cr_status cr_ref_bn_stats(struct cr_device *device, const struct cr_call *call) {
    struct ref x = REF_IN(bn_stats, x), stats = REF_OUT(bn_stats, stats);
    int64_t    blocks = (x.C + CHANNEL_BLOCK - 1) / CHANNEL_BLOCK;
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t b = 0; b < blocks; b++) stats_block(&x, &stats, b * CHANNEL_BLOCK);
    return CR_OK;
}

/* Normalisation uses the biased variance, the running variance the unbiased one (PyTorch's convention). A channel whose
 * batch statistics are not finite leaves its running statistics alone, so that one bad batch cannot harm evaluation. */
cr_status cr_ref_bn_finalize(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    const struct cr_bn_attr *a     = &call->op->attr.bn;
    struct ref               stats = REF_IN(bn_finalize, stats), gamma = REF_IN(bn_finalize, gamma);
    struct ref beta = REF_IN(bn_finalize, beta), coef = REF_OUT(bn_finalize, coef), saved = REF_OUT(bn_finalize, saved);
    struct ref run_mean = REF_OUT(bn_finalize, running_mean), run_var = REF_OUT(bn_finalize, running_var);
    struct ref old_mean = REF_IN(bn_finalize, running_mean), old_var = REF_IN(bn_finalize, running_var);
    const int64_t C = stats.C;
    const double  M = (double)a->count, m = (double)a->momentum;
    ref_carry_over(&old_mean, &run_mean);
    ref_carry_over(&old_var, &run_var);
    for (int64_t c = 0; c < C; c++) {
        double mean = ref_get(&stats, c) / M;
        double var  = ref_get(&stats, C + c) / M - mean * mean;
        if (var < 0) var = 0; /* rounding; NaN stays NaN */
        double rstd = 1 / sqrt(var + (double)a->eps), scale = ref_get(&gamma, c) * rstd;
        ref_put(&saved, c, mean);
        ref_put(&saved, C + c, rstd);
        ref_put(&coef, c, scale);
        ref_put(&coef, C + c, ref_get(&beta, c) - mean * scale);
        if (!isfinite(mean) || !isfinite(var)) continue;
        double unbiased = M > 1 ? var * M / (M - 1) : var;
        ref_put(&run_mean, c, (1 - m) * ref_get(&run_mean, c) + m * mean);
        ref_put(&run_var, c, (1 - m) * ref_get(&run_var, c) + m * unbiased);
    }
    return CR_OK;
}

cr_status cr_ref_bn_coef(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    struct ref    gamma = REF_IN(bn_coef, gamma), beta = REF_IN(bn_coef, beta), coef = REF_OUT(bn_coef, coef);
    struct ref    mean = REF_IN(bn_coef, running_mean), var = REF_IN(bn_coef, running_var);
    const int64_t C = gamma.C;
    for (int64_t c = 0; c < C; c++) {
        double scale = ref_get(&gamma, c) / sqrt(ref_get(&var, c) + (double)call->op->attr.bn.eps);
        ref_put(&coef, c, scale);
        ref_put(&coef, C + c, ref_get(&beta, c) - ref_get(&mean, c) * scale);
    }
    return CR_OK;
}

struct apply {
    struct ref x, coef, add, add_coef, y;
    bool       relu;
};

static void apply_run(const struct apply *a, int64_t begin, int64_t end) {
    const int64_t C = a->x.C;
    for (int64_t i = begin; i < end; i++) {
        int64_t c = i % C;
        double  v = ref_get(&a->x, i) * ref_get(&a->coef, c) + ref_get(&a->coef, C + c);
        if (a->add.data && a->add_coef.data)
            v += ref_get(&a->add, i) * ref_get(&a->add_coef, c) + ref_get(&a->add_coef, C + c);
        else if (a->add.data)
            v += ref_get(&a->add, i);
        if (a->relu && v < 0) v = 0; /* NaN stays NaN */
        ref_put(&a->y, i, v);
    }
}

cr_status cr_ref_bn_apply(struct cr_device *device, const struct cr_call *call) {
    struct apply a = {.x        = REF_IN(bn_apply, x),
                      .coef     = REF_IN(bn_apply, coef),
                      .add      = REF_IN(bn_apply, add),
                      .add_coef = REF_IN(bn_apply, add_coef),
                      .y        = REF_OUT(bn_apply, y),
                      .relu     = call->op->attr.bn.relu};
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t run = 0; run < ref_runs(a.y.elems); run++) apply_run(&a, run * REF_RUN, ref_run_end(run, a.y.elems));
    return CR_OK;
}

/* ---- backward ---- */

/* The gradient before the ReLU: dy where y > 0; without y there was no ReLU. */
REF_INLINE double gated(const struct ref *dy, const struct ref *y, int64_t i) {
    return !y->data || ref_get(y, i) > 0 ? ref_get(dy, i) : 0;
}

struct grad_stats {
    struct ref dy, x, saved, y, dstats;
};

static void grad_stats_block(const struct grad_stats *a, int64_t c0) {
    const struct ref *x = &a->x;
    const int64_t     M = x->N * x->H * x->W, C = x->C, width = CR_MIN(C - c0, (int64_t)CHANNEL_BLOCK);
    double            sum[CHANNEL_BLOCK] = {0}, product[CHANNEL_BLOCK] = {0}, mean[CHANNEL_BLOCK], rstd[CHANNEL_BLOCK];
    for (int64_t c = 0; c < width; c++) {
        mean[c] = ref_get(&a->saved, c0 + c);
        rstd[c] = ref_get(&a->saved, C + c0 + c);
    }
    for (int64_t m = 0; m < M; m++) {
        for (int64_t c = 0; c < width; c++) {
            int64_t i = m * C + c0 + c;
            double  g = gated(&a->dy, &a->y, i);
            sum[c] += g;
            product[c] += g * ((ref_get(x, i) - mean[c]) * rstd[c]);
        }
    }
    for (int64_t c = 0; c < width; c++) {
        ref_put(&a->dstats, c0 + c, sum[c]);
        ref_put(&a->dstats, C + c0 + c, product[c]);
    }
}

cr_status cr_ref_bn_grad_stats(struct cr_device *device, const struct cr_call *call) {
    struct grad_stats a      = {.dy     = REF_IN(bn_grad_stats, dy),
                                .x      = REF_IN(bn_grad_stats, x),
                                .saved  = REF_IN(bn_grad_stats, saved),
                                .y      = REF_IN(bn_grad_stats, y),
                                .dstats = REF_OUT(bn_grad_stats, dstats)};
    int64_t           blocks = (a.x.C + CHANNEL_BLOCK - 1) / CHANNEL_BLOCK;
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t b = 0; b < blocks; b++) grad_stats_block(&a, b * CHANNEL_BLOCK);
    return CR_OK;
}

static void put_or_add(const struct ref *t, int64_t i, double x, bool accumulate) {
    if (t->data) ref_put(t, i, accumulate ? ref_get(t, i) + x : x);
}

/* With G = mean(g), X = mean(g*xhat), s = gamma*rstd:  dx = s*g + (-s*rstd*X)*x + s*(mean*rstd*X - G). */
cr_status cr_ref_bn_grad_finalize(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    const struct cr_bn_attr *a      = &call->op->attr.bn;
    struct ref               dstats = REF_IN(bn_grad_finalize, dstats), gamma = REF_IN(bn_grad_finalize, gamma);
    struct ref               saved = REF_IN(bn_grad_finalize, saved), coef = REF_OUT(bn_grad_finalize, coef);
    struct ref               dgamma = REF_OUT(bn_grad_finalize, dgamma), dbeta = REF_OUT(bn_grad_finalize, dbeta);
    const int64_t            C = dstats.C;
    const double             M = (double)a->count;
    for (int64_t c = 0; c < C; c++) {
        double sum = ref_get(&dstats, c), product = ref_get(&dstats, C + c);
        double mean = ref_get(&saved, c), rstd = ref_get(&saved, C + c), s = ref_get(&gamma, c) * rstd;
        put_or_add(&dbeta, c, sum, a->accumulate);
        put_or_add(&dgamma, c, product, a->accumulate);
        ref_put(&coef, c, s);
        ref_put(&coef, C + c, -s * rstd * (product / M));
        ref_put(&coef, 2 * C + c, s * (mean * rstd * (product / M) - sum / M));
    }
    return CR_OK;
}

struct grad_apply {
    struct ref dy, x, coef, y, dx;
};

static void grad_apply_run(const struct grad_apply *a, int64_t begin, int64_t end) {
    const int64_t C = a->dx.C;
    for (int64_t i = begin; i < end; i++) {
        int64_t c = i % C;
        ref_put(&a->dx, i,
                ref_get(&a->coef, c) * gated(&a->dy, &a->y, i) + ref_get(&a->coef, C + c) * ref_get(&a->x, i) +
                    ref_get(&a->coef, 2 * C + c));
    }
}

cr_status cr_ref_bn_grad_apply(struct cr_device *device, const struct cr_call *call) {
    struct grad_apply a = {.dy   = REF_IN(bn_grad_apply, dy),
                           .x    = REF_IN(bn_grad_apply, x),
                           .coef = REF_IN(bn_grad_apply, coef),
                           .y    = REF_IN(bn_grad_apply, y),
                           .dx   = REF_OUT(bn_grad_apply, dx)};
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t run = 0; run < ref_runs(a.dx.elems); run++)
        grad_apply_run(&a, run * REF_RUN, ref_run_end(run, a.dx.elems));
    return CR_OK;
}

static void channel_scale_run(const struct ref *dy, const struct ref *coef, const struct ref *dx, int64_t begin,
                              int64_t end) {
    for (int64_t i = begin; i < end; i++) ref_put(dx, i, ref_get(dy, i) * ref_get(coef, i % dx->C));
}

cr_status cr_ref_channel_scale(struct cr_device *device, const struct cr_call *call) {
    struct ref dy = REF_IN(channel_scale, dy), coef = REF_IN(channel_scale, coef), dx = REF_OUT(channel_scale, dx);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t run = 0; run < ref_runs(dx.elems); run++)
        channel_scale_run(&dy, &coef, &dx, run * REF_RUN, ref_run_end(run, dx.elems));
    return CR_OK;
}
