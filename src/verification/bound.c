/* verification/bound.c: the error bound (tolerance) of an op kind: functions that compute A, the expression over
 * absolute values, and that verify fused ops. Formulas of n and of the arithmetic are in verification/numbers.c, the
 * numbers of each op kind in verification/rules.c. */
#include "verification/bound.h"
#include "graph/muon.h"

#include <float.h>
#include <math.h>

/* ---- closed forms ---- */

/* Element i of sums [2,C] in rows [R,2,C]; magnitudes: the sum of the absolute values. */
static double add_rows(const double *sums, int64_t rows, int64_t C, int64_t i, bool magnitudes) {
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += magnitudes ? fabs(sums[r * 2 * C + i]) : sums[r * 2 * C + i];
    return sum;
}

/* The errors are divided by k = C*u*sqrt(n), because the bound multiplies A by it. */
static void closed_bn_finalize(const struct cr_verify_values *v, double *const scale[]) {
    const double *sums = v->in[CR_IN_bn_finalize_sums], *gamma = v->in[CR_IN_bn_finalize_gamma],
                 *beta = v->in[CR_IN_bn_finalize_beta], *running_mean = v->in[CR_IN_bn_finalize_running_mean],
                 *running_var = v->in[CR_IN_bn_finalize_running_var];
    const double *center      = v->op->in[CR_IN_bn_finalize_center] >= 0 ? v->in[CR_IN_bn_finalize_center] : NULL;
    const int64_t C           = dim(v->program, v->op->in[CR_IN_bn_finalize_sums], 3);
    const int64_t rows        = cr_sum_rows(&v->program->tensor[v->op->in[CR_IN_bn_finalize_sums]]);
    const double  M           = (double)v->op->attr.bn.count;
    const double  k           = CR_VERIFY_C * v->u * sqrt(cr_verify_terms(v->program, v->op, 0));
    for (int64_t c = 0; c < C; c++) {
        const double about = add_rows(sums, rows, C, c, false) / M, square = add_rows(sums, rows, C, C + c, false) / M;
        const double off                 = rows > 1 ? k * add_rows(sums, rows, C, c, true) / M : 0;
        const double var_error           = k * (fabs(square) + about * about) + off * (2 * fabs(about) + off);
        const struct cr_verify_moments f = {.attr         = &v->op->attr.bn,
                                            .mean         = about + (center ? center[c] : 0),
                                            .var          = square - about * about,
                                            .mean_error   = (center ? k * fabs(about) : 0) + off,
                                            .var_error    = var_error,
                                            .gamma        = gamma[c],
                                            .beta         = beta[c],
                                            .running_mean = running_mean[c],
                                            .running_var  = running_var[c],
                                            .k            = k};
        double                         want[CR_VERIFY_BN_NUMBERS], error[CR_VERIFY_BN_NUMBERS];
        cr_verify_finalize_moments(&f, want, error);
        for (int half = 0; half < 2; half++) {
            scale[CR_OUT_bn_finalize_mean_rstd][half * C + c]  = error[CR_VERIFY_BN_MEAN + half] / k;
            scale[CR_OUT_bn_finalize_scale_bias][half * C + c] = error[CR_VERIFY_BN_SCALE + half] / k;
            if (!scale[CR_OUT_bn_finalize_scale_bias_half]) continue;
            scale[CR_OUT_bn_finalize_scale_bias_half][half * C + c] =
                scale[CR_OUT_bn_finalize_scale_bias][half * C + c];
        }
        scale[CR_OUT_bn_finalize_running_mean][c] = error[CR_VERIFY_BN_RUNNING_MEAN] / k;
        scale[CR_OUT_bn_finalize_running_var][c]  = error[CR_VERIFY_BN_RUNNING_VAR] / k;
    }
}

/* A = |output| of an op with one output. */
static void closed_magnitude(const struct cr_verify_values *v, double *const scale[]) {
    for (int64_t i = 0; i < elems(v->program, v->op->out[0]); i++) scale[0][i] = fabs(v->want[0][i]);
}

/* The loss is log(sum exp(l - max)) plus max - target. Both depend on differences from max, so errors are relative to
 * these differences and not to max. With class weights, focal loss or binary cross-entropy, kernels compute in FP64: a
 * focal loss needs the digits of 1-p. The loss is then a sum of positive terms, and only the result is rounded. */
static void closed_loss(const struct cr_verify_values *v, double *const scale[]) {
    const double  *logits = v->in[CR_IN_loss_logits], *before = v->in[CR_IN_loss_metrics];
    const int32_t *label = v->in[CR_IN_loss_labels];
    const int      id    = v->op->in[CR_IN_loss_logits];
    const int64_t  N = dim(v->program, id, 0), K = dim(v->program, id, 3);
    double         sum = fabs(before[0]);
    if (!cr_loss_is_plain(v->op)) {
        scale[CR_OUT_loss_metrics][0] = fabs(v->want[CR_OUT_loss_metrics][0]); /* the others are counts */
        return;
    }
    for (int64_t n = 0; n < N; n++) {
        if (label[n] < 0 || label[n] >= K) continue;
        double top = -DBL_MAX, bottom = DBL_MAX;
        for (int64_t j = 0; j < K; j++) {
            const double l = logits[n * K + j];
            if (!isfinite(l)) continue; /* compared by position only */
            top    = CR_MAX(top, l);
            bottom = CR_MIN(bottom, l);
        }
        sum += CR_MAX(top - bottom, 0) + log((double)K) + 1;
    }
    scale[CR_OUT_loss_metrics][0] = sum;
}

/* A kernel that follows the rounding rule exactly (CR_MATH_EXACT, u = 0) has equal outputs. Others may add the bias
 * before they multiply: an 8-bit output may be off by one. */
static void closed_qconv(const struct cr_verify_values *v, double *const scale[]) {
    const int               y = v->op->out[CR_OUT_qconv_y], add = v->op->in[CR_IN_qconv_add];
    const struct cr_tensor *t          = v->original->tensor;
    const bool              is_integer = t[y].dtype == CR_I8 || t[y].dtype == CR_U8;
    const double           *coeffs     = v->in[CR_IN_qconv_coeffs];
    const double            k          = CR_VERIFY_C * v->u * sqrt(cr_verify_terms(v->program, v->op, 0));
    const int64_t           K = dim(v->program, y, 3), n = cr_tensor_elems(&v->program->tensor[y]);
    for (int64_t i = 0; i < n && k > 0; i++) {
        const double summand =
            add < 0 ? 0 : coeffs[2 * K + i % K] * cr_number_load(t[add].dtype, v->in[CR_IN_qconv_add], i);
        scale[CR_OUT_qconv_y][i] =
            is_integer ? 1 / k : fabs(v->want[CR_OUT_qconv_y][i]) + 2 * (fabs(coeffs[K + i % K]) + fabs(summand));
    }
}

/* exp turns the absolute error u|l - max| of its argument into a relative error. The denominator collects the same
 * errors (drift). */
static void closed_loss_grad(const struct cr_verify_values *v, double *const scale[]) {
    const double  *logits = v->in[CR_IN_loss_grad_logits];
    const int32_t *label  = v->in[CR_IN_loss_grad_labels];
    const int      id     = v->op->in[CR_IN_loss_grad_logits];
    const int64_t  N = dim(v->program, id, 0), K = dim(v->program, id, 3);
    const double   factor = cr_verify_loss_grad_factor(v), smooth = v->op->attr.loss.smoothing;
    if (!cr_loss_is_plain(v->op)) {
        closed_magnitude(v, scale);
        return;
    }
    for (int64_t n = 0; n < N; n++) {
        if (label[n] < 0 || label[n] >= K) continue;
        const double  *l = logits + n * K;
        double        *A = scale[CR_OUT_loss_grad_dx] + n * K;
        const int32_t *mix =
            v->in[CR_IN_loss_grad_mixes] ? (const int32_t *)v->in[CR_IN_loss_grad_mixes] + CR_MIX_NUMBERS * n : NULL;
        const int32_t other =
            mix && mix[CR_MIX_PARTNER] >= 0 && mix[CR_MIX_PARTNER] < N ? label[mix[CR_MIX_PARTNER]] : -1;
        double top = l[0], sum = 0, drift = 0;
        for (int64_t j = 1; j < K; j++) top = l[j] > top ? l[j] : top;
        for (int64_t j = 0; j < K; j++) {
            const double e = exp(l[j] - top);
            sum += e;
            if (e > 0) drift += e * (top - l[j]);
        }
        for (int64_t j = 0; j < K; j++) {
            const double p = exp(l[j] - top) / sum, target = smooth / (double)K + (j == label[n] ? 1 - smooth : 0);
            const double mixed = j == other ? 1 - smooth : 0; /* upper bound of the partner's part of a mixed label */
            A[j]               = factor * (target + mixed + (p > 0 ? p * (1 + (top - l[j]) + drift / sum) : 0));
        }
    }
}

/* The norm is not used when the non-finite flag is set. */
static void closed_grad_norm(const struct cr_verify_values *v, double *const scale[]) {
    const double *want              = v->want[CR_OUT_grad_norm_norm];
    scale[CR_OUT_grad_norm_norm][0] = want[1] != 0 ? CR_VERIFY_UNUSED : want[0];
}

/* ---- runs on magnitudes ---- */

static void adjust_normalize(struct cr_op *op, struct cr_step_block *step) {
    (void)step;
    for (int c = 0; c < 4; c++) {
        op->attr.input.mean[c] = -fabsf(op->attr.input.mean[c]);
        op->attr.input.std[c]  = fabsf(op->attr.input.std[c]);
    }
}

static void adjust_sgd(struct cr_op *op, struct cr_step_block *step) {
    (void)op;
    step->lr = -step->lr; /* w - lr*m becomes |w| + lr*|m| */
}

/* Elements that are not updated (frozen parameters, padding, a suppressed update) must not change at all. A masked
 * weight must be 0; its magnitude is 0 like its value. Counters are exact. */
static void correct_sgd(const struct cr_verify_values *v, double *const scale[]) {
    const bool suppressed = in_at(v, CR_IN_sgd_norm, 1) != 0;
    for (int slot = CR_OUT_sgd_value; slot <= CR_OUT_sgd_momentum; slot++) {
        if (!scale[slot]) continue;
        const double *before = slot == CR_OUT_sgd_value ? v->in[CR_IN_sgd_value] : v->in[CR_IN_sgd_momentum];
        const int64_t n      = elems(v->program, v->op->out[slot]);
        for (int64_t i = 0; i < n; i++)
            if (suppressed || (v->want[slot][i] == before[i] && scale[slot][i] == fabs(before[i]))) scale[slot][i] = 0;
    }
    for (int i = 0; i < CR_STATE_COUNT; i++) scale[CR_OUT_sgd_state][i] = 0;
}

/* Factors of an update. Elements that are not updated or become 0 have A = 0. */
struct update {
    const struct cr_verify_values *v;
    double *const                 *scale;
    double                         clip, lr, mu;
};

static struct update update_of(const struct cr_verify_values *v, double *const scale[]) {
    const double *norm = v->in[CR_IN_sgd_norm], *state = v->in[CR_IN_sgd_state];
    struct update m = {
        .v = v, .scale = scale, .lr = fabs((double)v->step->lr), .mu = (double)v->step->momentum, .clip = 1};
    if (v->step->clip_norm > 0) m.clip = fmin(1, (double)v->step->clip_norm / (sqrt(norm[0]) + 1e-6));
    m.clip /= state[CR_STATE_LOSS_SCALE];
    return m;
}

/* Magnitudes of Adam's moments, and of the moments' quotient in the step. */
static double adam_magnitudes(const struct update *m, int64_t i, double *first, double *second) {
    const struct cr_verify_values *v    = m->v;
    const struct cr_sgd_attr      *attr = &v->op->attr.sgd;
    const double                   t    = in_at(v, CR_IN_adamw_state, CR_STATE_UPDATES) + 1,
                 g                      = fabs(m->clip * in_at(v, CR_IN_adamw_grad, i));
    *first                              = m->mu * fabs(in_at(v, CR_IN_adamw_momentum, i)) + (1 - m->mu) * g;
    *second                             = attr->beta2 * in_at(v, CR_IN_adamw_second, i) + (1 - attr->beta2) * g * g;
    return *first / (1 - pow(m->mu, t)) / (sqrt(*second / (1 - pow(attr->beta2, t))) + attr->eps);
}

/* ratio: the trust ratio of LAMB, 1 for AdamW. */
static void update_adamw(const struct update *m, int64_t i, double decay, double ratio) {
    const double w = fabs(in_at(m->v, CR_IN_adamw_value, i));
    double       first, second;
    const double size                  = adam_magnitudes(m, i, &first, &second);
    m->scale[CR_OUT_adamw_momentum][i] = first;
    m->scale[CR_OUT_adamw_second][i]   = second;
    m->scale[CR_OUT_adamw_value][i]    = w + m->lr * ratio * (decay * w + size);
}

/* A filter that moves along its direction. */
static void update_muon(const struct update *m, int64_t i, double decay, double factor) {
    const struct cr_verify_values *v = m->v;
    const double w = fabs(in_at(v, CR_IN_muon_value, i)), g = fabs(m->clip * in_at(v, CR_IN_muon_grad, i));
    m->scale[CR_OUT_muon_momentum][i] = m->mu * fabs(in_at(v, CR_IN_muon_momentum, i)) + (1 - m->mu) * g;
    m->scale[CR_OUT_muon_value][i]    = w + m->lr * (decay * w + factor * fabs(in_at(v, CR_IN_muon_direction, i)));
}

static void update_lars(const struct update *m, int64_t i, double decay, double ratio) {
    const struct cr_verify_values *v = m->v;
    const double w = fabs(in_at(v, CR_IN_lars_value, i)), g = fabs(m->clip * in_at(v, CR_IN_lars_grad, i));
    const double step = ratio * (g + decay * w), next = m->mu * fabs(in_at(v, CR_IN_lars_momentum, i)) + step;
    m->scale[CR_OUT_lars_momentum][i] = next;
    m->scale[CR_OUT_lars_value][i]    = w + m->lr * (v->op->attr.sgd.nesterov ? step + m->mu * next : next);
}

static double lars_ratio(const struct update *m, const struct cr_param *q, int64_t k, double decay) {
    const double *norms = m->v->in[CR_IN_lars_norms];
    const double  w     = sqrt(norms[2 * k]),
                 g      = m->clip * in_at(m->v, CR_IN_lars_state, CR_STATE_LOSS_SCALE) * sqrt(norms[2 * k + 1]);
    const struct cr_sgd_attr *attr = &m->v->op->attr.sgd;
    if ((q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT) || !(w > 0 && g > 0)) return 1;
    return attr->trust * w / (g + decay * w + attr->eps);
}

static double lamb_ratio(const struct update *m, int64_t k, double decay) {
    const double *norms = m->v->in[CR_IN_lamb_norms];
    return decay > 0 && norms[2 * k] > 0 && norms[2 * k + 1] > 0 ? sqrt(norms[2 * k] / norms[2 * k + 1]) : 1;
}

static double ratio_of(const struct update *m, const struct cr_param *q, int64_t k, double decay) {
    switch (m->v->op->kind) {
    case CR_OP_lars: return lars_ratio(m, q, k, decay);
    case CR_OP_lamb: return lamb_ratio(m, k, decay);
    default: return 1;
    }
}

static void closed_update(const struct cr_verify_values *v, double *const scale[]) {
    const struct cr_param_store *store = v->program->store;
    struct update                m     = update_of(v, scale);
    const double                 lr    = m.lr;
    const bool                   adam  = v->op->kind != CR_OP_lars;
    if (in_at(v, CR_IN_sgd_norm, 1) != 0) return;
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q     = &store->param[k];
        const double           decay = q->decay ? (double)v->step->weight_decay : 0;
        if (q->frozen || cr_param_is_running(q->role)) continue;
        const double ratio = ratio_of(&m, q, k, decay);
        m.lr               = lr * q->lr_scale;
        for (int64_t i = q->offset; i < q->offset + q->elems; i++) {
            if (is_pruned(v, CR_IN_sgd_mask, i)) continue;
            if (v->op->kind == CR_OP_muon && cr_muon_has_direction(q))
                update_muon(&m, i, decay, cr_muon_factor(q));
            else if (adam)
                update_adamw(&m, i, decay, ratio);
            else
                update_lars(&m, i, decay, ratio);
        }
    }
}

static void closed_lamb_norms(const struct cr_verify_values *v, double *const scale[]) {
    const struct cr_param_store *store = v->program->store;
    const struct update          m     = update_of(v, scale);
    const bool                   good  = in_at(v, CR_IN_lamb_norms_norm, 1) == 0;
    for (int k = 0; k < store->params && good; k++) {
        const struct cr_param *q     = &store->param[k];
        const double           decay = q->decay ? (double)v->step->weight_decay : 0;
        if (q->frozen || cr_param_is_running(q->role)) continue;
        for (int64_t i = q->offset; i < q->offset + q->elems; i++) {
            const double w = fabs(in_at(v, CR_IN_lamb_norms_value, i));
            double       first, second;
            scale[0][2 * k] += w * w;
            if (is_pruned(v, CR_IN_lamb_norms_mask, i)) continue;
            const double d = adam_magnitudes(&m, i, &first, &second) + decay * w;
            scale[0][2 * k + 1] += d * d;
        }
    }
}

/* Kernels of distillation compute sums and probabilities in FP64. A = |old| + |new - old|, where `old` is what the
 * result is added to; `least` covers the cancellation of equal networks. */
static double added(double want, double old, double least) {
    return fabs(old) + fabs(want - old) + least;
}

static void closed_distill(const struct cr_verify_values *v, double *const scale[]) {
    const struct cr_distill_attr *a = &v->op->attr.distill;
    const double part = 1 - (double)a->weight, T = (double)a->temperature, least = 1e-3 * (double)a->weight * T * T,
                 *before = v->in[CR_IN_distill_metrics], *want = v->want[CR_OUT_distill_metrics];
    const int64_t N                  = dim(v->program, v->op->in[CR_IN_distill_logits], 0);
    scale[CR_OUT_distill_metrics][0] = added(want[0], part * before[0], (double)N * least);
}

static void closed_distill_grad(const struct cr_verify_values *v, double *const scale[]) {
    const double *dy = v->in[CR_IN_distill_grad_dy], *want = v->want[CR_OUT_distill_grad_dx],
                 *state = v->in[CR_IN_distill_grad_state];
    const double least =
        1e-6 * fabs(state[CR_STATE_LOSS_SCALE] * (double)v->op->attr.distill.weight * v->op->attr.distill.temperature);
    for (int64_t i = 0; i < elems(v->program, v->op->out[0]); i++)
        scale[CR_OUT_distill_grad_dx][i] = added(want[i], dy[i], least);
}

/* A = |w| + |e|, because the new mean is computed from a difference. A is 0 where the mean does not change. */
static void closed_ema(const struct cr_verify_values *v, double *const scale[]) {
    static const int now[2]  = {CR_IN_ema_value, CR_IN_ema_running},
                     mean[2] = {CR_IN_ema_averages, CR_IN_ema_running_averages};
    const bool suppressed    = in_at(v, CR_IN_ema_norm, 1) != 0;
    for (int s = 0; s < 2; s++) {
        const double *w = v->in[now[s]], *e = v->in[mean[s]];
        for (int64_t i = 0; i < elems(v->program, v->op->out[s]); i++) {
            const bool pruned = s == 0 && is_pruned(v, CR_IN_ema_mask, i);
            scale[s][i]       = suppressed || pruned || w[i] == e[i] ? 0 : fabs(w[i]) + fabs(e[i]);
        }
    }
}

/* ---- the table ---- */

static const struct cr_verify_hooks hooks[CR_OP_COUNT] = {
    [CR_OP_normalize]          = {.adjust = adjust_normalize},
    [CR_OP_conv]               = {.prologue = cr_verify_prologue_conv, .epilogue = cr_verify_epilogue_conv},
    [CR_OP_conv_pool]          = {.epilogue = cr_verify_epilogue_conv_pool},
    [CR_OP_conv_pair]          = {.epilogue = cr_verify_epilogue_conv_pair},
    [CR_OP_bn_finalize]        = {.closed = closed_bn_finalize},
    [CR_OP_bn_apply]           = {.epilogue = cr_verify_epilogue_bn_apply},
    [CR_OP_qconv]              = {.closed = closed_qconv},
    [CR_OP_maxpool]            = {.prologue = cr_verify_prologue_maxpool, .epilogue = cr_verify_epilogue_maxpool},
    [CR_OP_loss]               = {.closed = closed_loss},
    [CR_OP_loss_grad]          = {.closed = closed_loss_grad},
    [CR_OP_head]               = {.epilogue = cr_verify_epilogue_head},
    [CR_OP_relu_grad]          = {.epilogue = cr_verify_epilogue_relu_grad},
    [CR_OP_bn_grad_sums]       = {.epilogue = cr_verify_epilogue_bn_grad_sums},
    [CR_OP_bn_grad_apply]      = {.epilogue = cr_verify_epilogue_bn_grad_apply},
    [CR_OP_pool_bn_grad_sums]  = {.epilogue = cr_verify_epilogue_pool_bn_grad_sums},
    [CR_OP_pool_bn_grad_apply] = {.epilogue = cr_verify_epilogue_pool_bn_grad_apply},
    [CR_OP_conv_dgrad]         = {.prologue = cr_verify_prologue_dgrad, .epilogue = cr_verify_epilogue_dgrad},
    [CR_OP_conv_wgrad]         = {.prologue = cr_verify_prologue_wgrad},
    [CR_OP_conv_grad]          = {.prologue = cr_verify_prologue_conv_grad, .epilogue = cr_verify_epilogue_conv_grad},
    [CR_OP_gram]               = {.prologue = cr_verify_prologue_gram, .epilogue = cr_verify_epilogue_gram},
    [CR_OP_gram_bn_finalize]   = {.epilogue = cr_verify_epilogue_gram_bn_finalize},
    [CR_OP_gram_bn_sums]       = {.epilogue = cr_verify_epilogue_gram_bn_sums},
    [CR_OP_gram_bn_grad]       = {.epilogue = cr_verify_epilogue_gram_bn_grad},
    [CR_OP_gram_dgrad]         = {.prologue = cr_verify_prologue_gram_dgrad, .epilogue = cr_verify_epilogue_gram_dgrad},
    [CR_OP_grad_norm]          = {.closed = closed_grad_norm},
    [CR_OP_sgd]                = {.adjust = adjust_sgd, .correct = correct_sgd},
    [CR_OP_adamw]              = {.closed = closed_update},
    [CR_OP_lars]               = {.closed = closed_update},
    [CR_OP_lamb]               = {.closed = closed_update},
    [CR_OP_lamb_norms]         = {.closed = closed_lamb_norms},
    [CR_OP_muon_direction]     = {.closed = closed_magnitude, .epilogue = cr_verify_epilogue_muon},
    [CR_OP_muon]               = {.closed = closed_update},
    [CR_OP_ema]                = {.closed = closed_ema},
    /* knowledge distillation */
    [CR_OP_distill]      = {.closed = closed_distill},
    [CR_OP_distill_grad] = {.closed = closed_distill_grad},
};

const struct cr_verify_hooks *cr_verify_hooks(enum cr_op_kind kind) {
    return &hooks[kind];
}
