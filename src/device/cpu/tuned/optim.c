/* device/cpu/tuned/optim.c: tuned CPU kernels for gradient norm, parameter norms, optimizers (SGD, AdamW, LARS, LAMB,
 * Muon) and EMA. Each makes one pass over whole buffers of the parameter store. */
#include "device/cpu/tuned/buffers.h"
#include "graph/muon.h"

#include <math.h>
#include <string.h>

/* Floats that are summed in float before the sum is added in double; floats that are updated before they are masked. */
enum { BLOCK = 1024 };
_Static_assert(CR_STRIP % 8 == 0, "a strip must begin at a byte of the mask");

/* ---- grad_norm ---- */

/* Sum of squares. A block whose sum in float overflows or underflows is summed again in double. */
CR_BY_LEVEL(double, squares, (const float *g, int64_t count), (g, count)) {
    double  sum = 0;
    int64_t i   = 0;
    for (; i + BLOCK <= count; i += BLOCK) {
        float s[CR_STRIP] = {0};
        for (int k = 0; k < BLOCK; k += CR_STRIP)
            for (int j = 0; j < CR_STRIP; j++) s[j] += g[i + k + j] * g[i + k + j];
        double block = 0;
        for (int j = 0; j < CR_STRIP; j++) block += (double)s[j];
        if (!isfinite(block) || block < 1e-30) {
            block = 0;
            for (int k = 0; k < BLOCK; k++) block += (double)g[i + k] * (double)g[i + k];
        }
        sum += block;
    }
    for (; i < count; i++) sum += (double)g[i] * (double)g[i];
    return sum;
}

/* A sum for each thread. */
CR_CPU_WORKSPACE(grad_norm_workspace) {
    return (size_t)cr_cpu_threads(device) * CR_STRIP * sizeof(double);
}

CR_CPU_LAUNCH(grad_norm_launch) {
    const int               threads = cr_cpu_threads(device);
    const struct cr_tensor *t       = &call->program->tensor[call->op->in[CR_IN_grad_norm_grad]];
    const float            *grad = call->in[CR_IN_grad_norm_grad], *metrics = call->in[CR_IN_grad_norm_metrics];
    const double           *state   = call->in[CR_IN_grad_norm_state];
    float                  *norm    = call->out[CR_OUT_grad_norm_norm];
    double                 *partial = call->workspace, sum = 0, scale = state[CR_STATE_LOSS_SCALE];
    int64_t                 strips = cr_tensor_elems(t) / CR_STRIP;
    CR_THREADS(k, threads) {
        int64_t begin, end;
        cr_run_of(strips, k, threads, &begin, &end);
        int64_t last                  = k == threads - 1 ? cr_tensor_elems(t) : end * CR_STRIP;
        partial[(size_t)k * CR_STRIP] = squares(grad + begin * CR_STRIP, last - begin * CR_STRIP);
    }
    for (int k = 0; k < threads; k++) sum += partial[(size_t)k * CR_STRIP];
    sum /= scale * scale;
    norm[0] = (float)sum;
    norm[1] = isfinite(sum) && isfinite(metrics[0]) ? 0.0f : 1.0f;
}

/* ---- norms of parameters ---- */

static bool is_trained(const struct cr_param *q) {
    return !q->frozen && !cr_param_is_running(q->role);
}

/* One thread computes each sum in order, so the result does not depend on the number of threads. */
CR_CPU_LAUNCH(param_norms_launch) {
    const int                    threads = cr_cpu_threads(device);
    const struct cr_param_store *store   = call->program->store;
    const float                 *value = call->in[CR_IN_param_norms_value], *grad = call->in[CR_IN_param_norms_grad];
    const double                 scale = ((const double *)call->in[CR_IN_param_norms_state])[CR_STATE_LOSS_SCALE];
    float                       *norms = call->out[CR_OUT_param_norms_norms];
    CR_THREADS(t, threads)
        for (int k = t; k < store->params; k += threads) {
            const struct cr_param *q = &store->param[k];
            norms[2 * k]             = is_trained(q) ? (float)squares(value + q->offset, q->elems) : 0;
            norms[2 * k + 1] = is_trained(q) ? (float)(squares(grad + q->offset, q->elems) / (scale * scale)) : 0;
        }
}

/* ---- update rules ---- */

struct update {
    const struct cr_param_store *store;
    const struct cr_sgd_attr    *attr;
    bool                         adam; /* adamw, lamb, muon */
    bool                         lamb;
    float                       *w, *m, *v; /* value, momentum; adamw, lamb, muon: second */
    const float                 *g, *norms; /* norms: lars, lamb */
    const float                 *direction; /* muon; else NULL */
    const uint8_t               *mask;      /* NULL: none */
    float                        lr, mu;
    double                       factor, scale, decay; /* factor: clip / loss scale */
    double                       correct;              /* adamw, lamb, muon: 1 - b1^t */
    float                        root;                 /* adamw, lamb, muon: 1 / sqrt(1 - b2^t) */
};

/* Factors for one parameter. */
struct param_factors {
    float factor,
        decay;       /* of the gradient, of the weight; the trust ratio of lars multiplies both, of lamb the decay */
    float lr, step;  /* learning rate of the parameter; adamw: lr / (1 - b1^t); lamb: that times the trust ratio */
    float direction; /* muon: lr times the factor of the direction; 0: as adamw */
};

static inline __attribute__((always_inline)) void sgd_loop(float *w, const float *g, float *m, int64_t count,
                                                           struct param_factors of, float mu, bool nesterov) {
    for (int64_t i = 0; i < count; i++) {
        float grad = of.factor * g[i] + of.decay * w[i];
        float next = mu * m[i] + grad;
        m[i]       = next;
        w[i] -= of.lr * (nesterov ? grad + mu * next : next);
    }
}

CR_BY_LEVEL(void, sgd_run,
            (float *restrict w, const float *restrict g, float *restrict m, int64_t count, struct param_factors of,
             float mu, bool nesterov),
            (w, g, m, count, of, mu, nesterov)) {
    if (nesterov)
        sgd_loop(w, g, m, count, of, mu, true);
    else
        sgd_loop(w, g, m, count, of, mu, false);
}

CR_BY_LEVEL(void, adamw_run,
            (float *restrict w, const float *restrict g, float *restrict m, float *restrict v, int64_t count,
             struct param_factors of, const struct update *u),
            (w, g, m, v, count, of, u)) {
    const float mu = u->mu, beta = (float)u->attr->beta2, eps = (float)u->attr->eps, shrink = of.lr * of.decay;
    const float mu_rest = (float)(1 - (double)u->mu), beta_rest = (float)(1 - u->attr->beta2), step = of.step,
                root = u->root;
    for (int64_t i = 0; i < count; i++) {
        const float grad = of.factor * g[i];
        const float mean = mu * m[i] + mu_rest * grad, second = beta * v[i] + beta_rest * grad * grad;
        m[i] = mean;
        v[i] = second;
        w[i] -= shrink * w[i] + step * mean / (sqrtf(second) * root + eps);
    }
}

/* Muon: filters. */
CR_BY_LEVEL(void, muon_run,
            (float *restrict w, const float *restrict g, float *restrict m, const float *restrict d, int64_t count,
             struct param_factors of, float mu),
            (w, g, m, d, count, of, mu)) {
    const float rest = (float)(1 - (double)mu), shrink = of.lr * of.decay;
    for (int64_t i = 0; i < count; i++) {
        m[i] = mu * m[i] + rest * (of.factor * g[i]);
        w[i] -= shrink * w[i] + of.direction * d[i];
    }
}

/* Updates elements from `from` to `to` - 1. With a mask the pieces are so small that they are still in the first-level
 * cache when they are masked. */
static void update_run(const struct update *u, int64_t from, int64_t to, struct param_factors of) {
    const int64_t piece = u->mask ? BLOCK : to - from;
    for (int64_t i = from; i < to; i += piece) {
        const int64_t count = CR_MIN(to - i, piece);
        if (of.direction > 0)
            muon_run(u->w + i, u->g + i, u->m + i, u->direction + i, count, of, u->mu);
        else if (u->adam)
            adamw_run(u->w + i, u->g + i, u->m + i, u->v + i, count, of, u);
        else
            sgd_run(u->w + i, u->g + i, u->m + i, count, of, u->mu, u->attr->nesterov);
        if (!u->mask) continue;
        cr_mask_run(u->w + i, u->mask + i / 8, count);
        cr_mask_run(u->m + i, u->mask + i / 8, count);
        if (u->v && of.direction == 0) cr_mask_run(u->v + i, u->mask + i / 8, count);
    }
}

static double lamb_ratio(const struct update *u, int k, double decay) {
    const double w = sqrt((double)u->norms[2 * k]), d = sqrt((double)u->norms[2 * k + 1]);
    return decay > 0 && w > 0 && d > 0 ? w / d : 1;
}

/* Trust ratio of LARS, 1 for BN parameters and biases; of LAMB, 1 without weight decay. */
static double trust_ratio(const struct update *u, int k, double decay) {
    const enum cr_param_role role = u->store->param[k].role;
    if (u->lamb) return lamb_ratio(u, k, decay);
    if (!u->norms || (role != CR_ROLE_CONV && role != CR_ROLE_DENSE_WEIGHT)) return 1;
    const double w = sqrt((double)u->norms[2 * k]), g = u->factor * u->scale * sqrt((double)u->norms[2 * k + 1]);
    return w > 0 && g > 0 ? u->attr->trust * w / (g + decay * w + u->attr->eps) : 1;
}

/* Updates elements `begin` to `end` - 1 of the buffer. Weight decay and the learning rate depend on the parameter;
 * frozen parameters do not change. */
static void update_part(const struct update *u, int64_t begin, int64_t end) {
    for (int k = 0; k < u->store->params; k++) {
        const struct cr_param *q    = &u->store->param[k];
        const int64_t          from = CR_MAX(q->offset, begin), to = CR_MIN(q->offset + q->elems, end);
        const double           own = q->decay ? u->decay : 0;
        if (!is_trained(q) || from >= to) continue;
        const double ratio = trust_ratio(u, k, own);
        const float  lr    = (float)((double)u->lr * q->lr_scale);
        const bool   moves = u->direction && cr_muon_has_direction(q);
        update_run(u, from, to,
                   (struct param_factors){.factor    = (float)(u->lamb ? u->factor : ratio * u->factor),
                                          .decay     = (float)(ratio * own),
                                          .lr        = lr,
                                          .direction = moves ? (float)((double)lr * cr_muon_factor(q)) : 0,
                                          .step      = u->adam ? (float)(ratio * ((double)lr / u->correct)) : 0});
    }
}

static bool has_second(const struct cr_op *op) {
    return op->kind == CR_OP_adamw || op->kind == CR_OP_lamb || op->kind == CR_OP_muon;
}

static void set_corrections(struct update *u, const double *state) {
    const double t = state[CR_STATE_UPDATES] + 1;
    u->adam        = true;
    u->correct     = 1 - pow((double)u->mu, t);
    u->root        = (float)(1 / sqrt(1 - pow(u->attr->beta2, t)));
}

static struct update update_of(const struct cr_call *call, const double *state) {
    const struct cr_step_block *step = call->step;
    const float                *norm = call->in[CR_IN_sgd_norm];
    struct update               u    = {.store = call->program->store,
                                        .attr  = &call->op->attr.sgd,
                                        .lamb  = call->op->kind == CR_OP_lamb,
                                        .g     = call->in[CR_IN_sgd_grad],
                                        .mask  = call->in[CR_IN_sgd_mask],
                                        .lr    = step->lr,
                                        .mu    = step->momentum,
                                        .decay = (double)step->weight_decay,
                                        .scale = state[CR_STATE_LOSS_SCALE]};
    double                      clip = 1;
    if (step->clip_norm > 0) clip = fmin(1, (double)step->clip_norm / (sqrt((double)norm[0]) + 1e-6));
    u.factor = clip / u.scale;
    if (call->op->kind == CR_OP_lars) u.norms = call->in[CR_IN_lars_norms];
    if (u.lamb) u.norms = call->in[CR_IN_lamb_norms];
    if (call->op->kind == CR_OP_muon) u.direction = call->in[CR_IN_muon_direction];
    if (!has_second(call->op)) return u;
    u.v = call->out[CR_OUT_adamw_second];
    set_corrections(&u, state);
    return u;
}

/* For all update rules, which have the common slots at the same indices. */
CR_CPU_LAUNCH(update_launch) {
    const int64_t elems = call->program->store->value_elems;
    const size_t  bytes = (size_t)elems * sizeof(float);
    double       *state = call->out[CR_OUT_sgd_state];
    const bool    good  = ((const float *)call->in[CR_IN_sgd_norm])[1] == 0;
    cr_copy_old(call->out[CR_OUT_sgd_value], call->in[CR_IN_sgd_value], bytes);
    cr_copy_old(call->out[CR_OUT_sgd_momentum], call->in[CR_IN_sgd_momentum], bytes);
    cr_copy_old(state, call->in[CR_IN_sgd_state], CR_STATE_COUNT * sizeof(double));
    if (has_second(call->op)) cr_copy_old(call->out[CR_OUT_adamw_second], call->in[CR_IN_adamw_second], bytes);
    struct update u = update_of(call, state);
    u.w             = call->out[CR_OUT_sgd_value];
    u.m             = call->out[CR_OUT_sgd_momentum];
    if (good)
        CR_EACH_RUN(elems / CR_STRIP, strip, count, update_part(&u, strip * CR_STRIP, (strip + count) * CR_STRIP));
    cr_cpu_count_update(state, good, u.attr);
}

/* ---- the norms of LAMB ---- */

/* Sum of squares of LAMB's direction; it is summed in double, because a small second moment makes it large. */
CR_BY_LEVEL(double, lamb_squares,
            (const float *restrict w, const float *restrict g, const float *restrict m, const float *restrict v,
             const uint8_t *mask, int64_t count, const struct update *u, float decay),
            (w, g, m, v, mask, count, u, decay)) {
    const float mu = u->mu, beta = (float)u->attr->beta2, eps = (float)u->attr->eps, root = u->root;
    const float mu_rest = (float)(1 - (double)u->mu), beta_rest = (float)(1 - u->attr->beta2);
    const float factor = (float)u->factor, correct = (float)(1 / u->correct);
    double      sum[CR_STRIP] = {0}, all = 0;
    for (int64_t i = 0; i < count; i += CR_STRIP) {
        const int64_t strip = CR_MIN(count - i, (int64_t)CR_STRIP);
        float         d[CR_STRIP];
        for (int64_t j = 0; j < strip; j++) {
            const float grad = factor * g[i + j];
            const float mean = mu * m[i + j] + mu_rest * grad, second = beta * v[i + j] + beta_rest * grad * grad;
            d[j] = correct * mean / (sqrtf(second) * root + eps) + decay * w[i + j];
        }
        if (mask) cr_mask_run(d, mask + i / 8, strip);
        for (int64_t j = 0; j < strip; j++) sum[j] += (double)d[j] * (double)d[j];
    }
    for (int j = 0; j < CR_STRIP; j++) all += sum[j];
    return all;
}

/* One thread computes each sum in order, as in param_norms. */
CR_CPU_LAUNCH(lamb_norms_launch) {
    const int                    threads = cr_cpu_threads(device);
    const struct cr_param_store *store   = call->program->store;
    const float                 *value = call->in[CR_IN_lamb_norms_value], *grad = call->in[CR_IN_lamb_norms_grad],
                *momentum = call->in[CR_IN_lamb_norms_momentum], *second = call->in[CR_IN_lamb_norms_second];
    const bool    good  = ((const float *)call->in[CR_IN_lamb_norms_norm])[1] == 0;
    float        *norms = call->out[CR_OUT_lamb_norms_norms];
    struct update u     = update_of(call, call->in[CR_IN_lamb_norms_state]);
    set_corrections(&u, call->in[CR_IN_lamb_norms_state]);
    CR_THREADS(t, threads)
        for (int k = t; k < store->params; k += threads) {
            const struct cr_param *q  = &store->param[k];
            const int64_t          at = q->offset;
            norms[2 * k] = norms[2 * k + 1] = 0;
            if (!good || !is_trained(q)) continue;
            norms[2 * k] = (float)squares(value + at, q->elems);
            norms[2 * k + 1] =
                (float)lamb_squares(value + at, grad + at, momentum + at, second + at, u.mask ? u.mask + at / 8 : NULL,
                                    q->elems, &u, (float)(q->decay ? u.decay : 0));
        }
}

/* ---- moving averages ---- */

/* mean = d * mean + (1 - d) * now. The two forms make d = 0 and d = 1 exact. */
CR_BY_LEVEL(void, average_run, (float *restrict mean, const float *restrict now, int64_t count, float d),
            (mean, now, count, d)) {
    const float weight = 1 - d;
    if (d < 0.5f)
        for (int64_t i = 0; i < count; i++) mean[i] = now[i] + d * (mean[i] - now[i]);
    else
        for (int64_t i = 0; i < count; i++) mean[i] += weight * (now[i] - mean[i]);
}

static void average(int threads, float *mean, const float *now, const uint8_t *mask, int64_t elems, double decay) {
    const int64_t strips = (elems + CR_STRIP - 1) / CR_STRIP;
    CR_THREADS(k, threads) {
        int64_t begin, end;
        cr_run_of(strips, k, threads, &begin, &end);
        begin *= CR_STRIP;
        end = CR_MIN(end * CR_STRIP, elems);
        average_run(mean + begin, now + begin, end - begin, (float)decay);
        if (mask) cr_mask_run(mean + begin, mask + begin / 8, end - begin);
    }
}

CR_CPU_LAUNCH(ema_launch) {
    const int                 threads = cr_cpu_threads(device);
    const struct cr_program  *p       = call->program;
    const struct cr_ema_attr *attr    = &call->op->attr.ema;
    const int64_t             values  = cr_tensor_elems(&p->tensor[call->op->in[CR_IN_ema_value]]),
                  running             = cr_tensor_elems(&p->tensor[call->op->in[CR_IN_ema_running]]);
    const double t                    = ((const double *)call->in[CR_IN_ema_state])[CR_STATE_UPDATES];
    cr_copy_old(call->out[CR_OUT_ema_averages], call->in[CR_IN_ema_averages], (size_t)values * sizeof(float));
    cr_copy_old(call->out[CR_OUT_ema_running_averages], call->in[CR_IN_ema_running_averages],
                (size_t)running * sizeof(float));
    if (((const float *)call->in[CR_IN_ema_norm])[1] != 0) return;
    const double d = t <= 1 ? 0 : attr->warmup ? fmin(attr->decay, 1 - pow(t, -2.0 / 3)) : attr->decay;
    average(threads, call->out[CR_OUT_ema_averages], call->in[CR_IN_ema_value], call->in[CR_IN_ema_mask], values, d);
    average(threads, call->out[CR_OUT_ema_running_averages], call->in[CR_IN_ema_running], NULL, running, d);
}

/* ---- kernels ---- */

#define KERNEL(kind, launcher, ...)                                                                                    \
    { CR_KERNEL("cpu." #kind, kind, CR_MATH_F32), .dtypes = CR_TYPES_F32, .launch = launcher, __VA_ARGS__ }
#define BUFFERS_KERNEL(kind, launcher)                                                                                 \
    KERNEL(kind, launcher, .optional_in = CR_IN_BIT(kind, mask), .accepts = cr_accepts_buffers)
const struct cr_kernel cr_cpu_optim_kernels[] = {KERNEL(grad_norm, grad_norm_launch, .workspace = grad_norm_workspace),
                                                 KERNEL(param_norms, param_norms_launch, .accepts = cr_accepts_buffers),
                                                 BUFFERS_KERNEL(sgd, update_launch),
                                                 BUFFERS_KERNEL(adamw, update_launch),
                                                 BUFFERS_KERNEL(lars, update_launch),
                                                 BUFFERS_KERNEL(lamb, update_launch),
                                                 BUFFERS_KERNEL(muon, update_launch),
                                                 BUFFERS_KERNEL(lamb_norms, lamb_norms_launch),
                                                 BUFFERS_KERNEL(ema, ema_launch),
                                                 {0}};
