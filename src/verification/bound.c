/* verification/bound.c: the bound of every op kind: how long its reductions are and how A, the expression over absolute
 * values, is found. One row a kind; a kind without a row is refused by cr_verify_rule, so a new op must say how it is
 * judged. */
#include "verification/verify.h"

#include <float.h>
#include <math.h>
#include <string.h>

static double largest(double a, double b) {
    return a > b ? a : b;
}

static int64_t dim(const struct cr_program *p, int tensor, int i) {
    return p->tensor[tensor].dim[i];
}

static int64_t elems(const struct cr_program *p, int tensor) {
    return cr_tensor_elems(&p->tensor[tensor]);
}

/* ---- closed forms ---- */

/* A must be divided by C*u*sqrt(n) again, with which the bound multiplies. */
static void closed_bn_finalize(const struct cr_verify_values *v, double *const scale[]) {
    const double *stats = v->in[CR_IN_bn_finalize_sums], *gamma = v->in[CR_IN_bn_finalize_gamma],
                 *beta = v->in[CR_IN_bn_finalize_beta], *running_mean = v->in[CR_IN_bn_finalize_running_mean],
                 *running_var = v->in[CR_IN_bn_finalize_running_var];
    const int64_t C           = dim(v->program, v->op->in[CR_IN_bn_finalize_sums], 3);
    const double  k           = CR_VERIFY_C * v->u * sqrt(cr_verify_terms(v->program, v->op, 0));
    for (int64_t c = 0; c < C; c++) {
        const struct cr_verify_finalize f = {.attr         = &v->op->attr.bn,
                                             .sum          = stats[c],
                                             .squares      = stats[C + c],
                                             .gamma        = gamma[c],
                                             .beta         = beta[c],
                                             .running_mean = running_mean[c],
                                             .running_var  = running_var[c],
                                             .k            = k};
        double                          want[CR_VERIFY_BN_NUMBERS], error[CR_VERIFY_BN_NUMBERS];
        cr_verify_finalize(&f, want, error);
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

/* log(sum exp(l - max)) and the target's distance from max: the errors are those of l - max, never of max itself. */
static void closed_loss(const struct cr_verify_values *v, double *const scale[]) {
    const double  *logits = v->in[CR_IN_loss_logits], *before = v->in[CR_IN_loss_metrics];
    const int32_t *label = v->in[CR_IN_loss_labels];
    const int      id    = v->op->in[CR_IN_loss_logits];
    const int64_t  N = dim(v->program, id, 0), K = dim(v->program, id, 3);
    double         sum = fabs(before[0]);
    for (int64_t n = 0; n < N; n++) {
        if (label[n] < 0 || label[n] >= K) continue;
        double top = -DBL_MAX, bottom = DBL_MAX;
        for (int64_t j = 0; j < K; j++) {
            const double l = logits[n * K + j];
            if (!isfinite(l)) continue; /* judged by position */
            top    = largest(top, l);
            bottom = -largest(-bottom, -l);
        }
        sum += largest(top - bottom, 0) + log((double)K) + 1;
    }
    scale[CR_OUT_loss_metrics][0] = sum;
    for (int i = 1; i < 4; i++) scale[CR_OUT_loss_metrics][i] = 0; /* counts */
}

static double loss_grad_factor(const struct cr_verify_values *v) {
    const int32_t *label = v->in[CR_IN_loss_grad_labels];
    const double  *state = v->in[CR_IN_loss_grad_state];
    const int      id    = v->op->in[CR_IN_loss_grad_logits];
    const int64_t  N = dim(v->program, id, 0), K = dim(v->program, id, 3);
    int64_t        valid = 0;
    for (int64_t n = 0; n < N; n++) valid += label[n] >= 0 && label[n] < K;
    return fabs(state[CR_STATE_LOSS_SCALE] * v->op->attr.loss.weight) / (double)CR_MAX(valid, 1);
}

/* exp turns the absolute error u|l - max| of its argument into a relative one; the sum below collects the same. */
static void closed_loss_grad(const struct cr_verify_values *v, double *const scale[]) {
    const double  *logits = v->in[CR_IN_loss_grad_logits];
    const int32_t *label  = v->in[CR_IN_loss_grad_labels];
    const int      id     = v->op->in[CR_IN_loss_grad_logits];
    const int64_t  N = dim(v->program, id, 0), K = dim(v->program, id, 3);
    const double   factor = loss_grad_factor(v), smooth = v->op->attr.loss.smoothing;
    for (int64_t n = 0; n < N; n++) {
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
            const double more = j == other ? 1 - smooth : 0; /* of a mixed target: at most that */
            A[j]              = label[n] < 0 || label[n] >= K
                                    ? 0
                                    : factor * (target + more + (p > 0 ? p * (1 + (top - l[j]) + drift / sum) : 0));
        }
    }
}

/* With the flag up the norm is not used. */
static void closed_grad_norm(const struct cr_verify_values *v, double *const scale[]) {
    const double *want              = v->want[CR_OUT_grad_norm_norm];
    scale[CR_OUT_grad_norm_norm][0] = want[1] != 0 ? CR_VERIFY_UNUSED : want[0];
    scale[CR_OUT_grad_norm_norm][1] = 0;
}

/* ---- runs on magnitudes ---- */

static void adjust_normalize(struct cr_op *op, struct cr_step_block *step) {
    (void)step;
    for (int c = 0; c < 3; c++) {
        op->attr.input.mean[c] = -fabsf(op->attr.input.mean[c]);
        op->attr.input.std[c]  = fabsf(op->attr.input.std[c]);
    }
}

static void adjust_sgd(struct cr_op *op, struct cr_step_block *step) {
    (void)op;
    step->lr = -step->lr; /* w - lr*m becomes |w| + lr*|m| */
}

/* What must not move (frozen parameters, padding, a suppressed update) must not move at all, and what is masked, whose
 * magnitude is 0 as its value, must be 0; counters are exact. */
static void correct_sgd(const struct cr_verify_values *v, double *const scale[]) {
    const bool suppressed = ((const double *)v->in[CR_IN_sgd_norm])[1] != 0;
    for (int slot = CR_OUT_sgd_value; slot <= CR_OUT_sgd_momentum; slot++) {
        if (!scale[slot]) continue;
        const double *before = slot == CR_OUT_sgd_value ? v->in[CR_IN_sgd_value] : v->in[CR_IN_sgd_momentum];
        const int64_t n      = elems(v->program, v->op->out[slot]);
        for (int64_t i = 0; i < n; i++)
            if (suppressed || (v->want[slot][i] == before[i] && scale[slot][i] == fabs(before[i]))) scale[slot][i] = 0;
    }
    for (int i = 0; i < CR_STATE_COUNT; i++) scale[CR_OUT_sgd_state][i] = 0;
}

/* The update's own loop over the parameters that move: `one` gives the magnitude of w of element i of parameter k. What
 * does not move, or becomes 0, has A = 0. */
struct moving {
    const struct cr_verify_values *v;
    double *const                 *scale;
    double                         clip, lr, mu;
};

static struct moving moving_of(const struct cr_verify_values *v, double *const scale[]) {
    const double *norm = v->in[CR_IN_sgd_norm], *state = v->in[CR_IN_sgd_state];
    struct moving m = {
        .v = v, .scale = scale, .lr = fabs((double)v->step->lr), .mu = (double)v->step->momentum, .clip = 1};
    if (v->step->clip_norm > 0) m.clip = fmin(1, (double)v->step->clip_norm / (sqrt(norm[0]) + 1e-6));
    m.clip /= state[CR_STATE_LOSS_SCALE];
    return m;
}

static void move_element_adamw(const struct moving *m, int64_t i, double decay) {
    const struct cr_verify_values *v    = m->v;
    const struct cr_sgd_attr      *attr = &v->op->attr.sgd;
    const double                   t    = ((const double *)v->in[CR_IN_adamw_state])[CR_STATE_UPDATES] + 1;
    const double                   w    = fabs(((const double *)v->in[CR_IN_adamw_value])[i]),
                 g                      = fabs(m->clip * ((const double *)v->in[CR_IN_adamw_grad])[i]);
    const double first  = m->mu * fabs(((const double *)v->in[CR_IN_adamw_momentum])[i]) + (1 - m->mu) * g;
    const double second = attr->beta2 * ((const double *)v->in[CR_IN_adamw_second])[i] + (1 - attr->beta2) * g * g;
    m->scale[CR_OUT_adamw_momentum][i] = first;
    m->scale[CR_OUT_adamw_second][i]   = second;
    m->scale[CR_OUT_adamw_value][i] =
        w + m->lr * decay * w +
        m->lr / (1 - pow(m->mu, t)) * first / (sqrt(second / (1 - pow(attr->beta2, t))) + attr->eps);
}

static void move_element_lars(const struct moving *m, int64_t i, double decay, double ratio) {
    const struct cr_verify_values *v  = m->v;
    const double                   w  = fabs(((const double *)v->in[CR_IN_lars_value])[i]),
                 g                    = fabs(m->clip * ((const double *)v->in[CR_IN_lars_grad])[i]);
    const double step                 = ratio * (g + decay * w),
                 next                 = m->mu * fabs(((const double *)v->in[CR_IN_lars_momentum])[i]) + step;
    m->scale[CR_OUT_lars_momentum][i] = next;
    m->scale[CR_OUT_lars_value][i]    = w + m->lr * (v->op->attr.sgd.nesterov ? step + m->mu * next : next);
}

static double lars_ratio(const struct moving *m, const struct cr_param *q, int64_t k, double decay) {
    const double *norms = m->v->in[CR_IN_lars_norms];
    const double  w = sqrt(norms[2 * k]), g = m->clip *
                                             ((const double *)m->v->in[CR_IN_lars_state])[CR_STATE_LOSS_SCALE] *
                                             sqrt(norms[2 * k + 1]);
    const struct cr_sgd_attr *attr = &m->v->op->attr.sgd;
    if ((q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT) || !(w > 0 && g > 0)) return 1;
    return attr->trust * w / (g + decay * w + attr->eps);
}

static void closed_update(const struct cr_verify_values *v, double *const scale[]) {
    const struct cr_param_store *store = v->program->store;
    const struct moving          m     = moving_of(v, scale);
    const uint8_t               *mask  = v->in[CR_IN_sgd_mask];
    const bool                   adamw = v->op->kind == CR_OP_adamw;
    for (int s = 0; s < (adamw ? CR_OUTS_adamw : CR_OUTS_lars); s++)
        if (scale[s]) memset(scale[s], 0, (size_t)elems(v->program, v->op->out[s]) * sizeof *scale[s]);
    if (((const double *)v->in[CR_IN_sgd_norm])[1] != 0) return;
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q     = &store->param[k];
        const double           decay = q->decay ? (double)v->step->weight_decay : 0;
        if (q->frozen || cr_param_is_running(q->role)) continue;
        const double ratio = adamw ? 1 : lars_ratio(&m, q, k, decay);
        for (int64_t i = q->offset; i < q->offset + q->elems; i++) {
            if (mask && !(mask[i / 8] >> (i % 8) & 1)) continue;
            if (adamw)
                move_element_adamw(&m, i, decay);
            else
                move_element_lars(&m, i, decay, ratio);
        }
    }
}

/* |e| and |w| weighed, and twice over: a mean is made of a difference. Where nothing moves, none. */
static void closed_ema(const struct cr_verify_values *v, double *const scale[]) {
    static const int now[2]  = {CR_IN_ema_value, CR_IN_ema_running},
                     mean[2] = {CR_IN_ema_averages, CR_IN_ema_running_averages};
    const bool     still     = ((const double *)v->in[CR_IN_ema_norm])[1] != 0;
    const uint8_t *mask      = v->in[CR_IN_ema_mask];
    for (int s = 0; s < 2; s++) {
        const double *w = v->in[now[s]], *e = v->in[mean[s]];
        for (int64_t i = 0; i < elems(v->program, v->op->out[s]); i++) {
            const bool pruned = s == 0 && mask && !(mask[i / 8] >> (i % 8) & 1);
            scale[s][i]       = still || pruned || w[i] == e[i] ? 0 : fabs(w[i]) + fabs(e[i]);
        }
    }
}

/* ---- the table ---- */

static const struct cr_verify_rule rules[CR_OP_COUNT] = {
    [CR_OP_normalize]         = {.magnitude = "kk", .extra = 5, .adjust = adjust_normalize},
    [CR_OP_mix]               = {.exact = true},
    [CR_OP_conv]              = {.magnitude = "kakaakkkkk",
                                 .extra     = 1,
                                 .products  = true,
                                 .pads      = true,
                                 .prologue  = cr_verify_prologue_conv,
                                 .epilogue  = cr_verify_epilogue_conv},
    [CR_OP_bn_sums]           = {.magnitude = "a", .extra = 2},
    [CR_OP_bn_finalize]       = {.closed = closed_bn_finalize, .extra = 4, .by_unit = true},
    [CR_OP_bn_scale_bias]     = {.magnitude = "aank", .extra = 6},
    [CR_OP_fold_bn]           = {.magnitude = "aaank", .extra = 6},
    [CR_OP_bn_apply]          = {.magnitude = "aakaa", .extra = 6, .epilogue = cr_verify_epilogue_bn_apply},
    [CR_OP_relu]              = {.exact = true},
    [CR_OP_add]               = {.magnitude = "aa", .extra = 1},
    [CR_OP_maxpool]           = {.exact    = true,
                                 .unless   = 1u << CR_IN_maxpool_scale_bias,
                                 .prologue = cr_verify_prologue_maxpool,
                                 .epilogue = cr_verify_epilogue_maxpool},
    [CR_OP_avgpool]           = {.magnitude = "a", .extra = 3},
    [CR_OP_avgpool2x2]        = {.magnitude = "a", .extra = 3},
    [CR_OP_se_scale]          = {.magnitude = "ak", .extra = 8},
    [CR_OP_pad_shortcut]      = {.exact = true},
    [CR_OP_dense]             = {.magnitude = "aaa", .extra = 2, .products = true},
    [CR_OP_loss]              = {.closed = closed_loss, .extra = 4},
    [CR_OP_loss_grad]         = {.closed = closed_loss_grad, .extra = 6},
    [CR_OP_dense_dgrad]       = {.magnitude = "aa", .extra = 1, .products = true},
    [CR_OP_dense_wgrad]       = {.magnitude = "aa", .before = 'a', .extra = 1, .products = true},
    [CR_OP_dense_bgrad]       = {.magnitude = "a", .before = 'a', .extra = 1},
    [CR_OP_avgpool_grad]      = {.magnitude = "a", .extra = 3},
    [CR_OP_maxpool_grad]      = {.magnitude = "ak"},
    [CR_OP_avgpool2x2_grad]   = {.magnitude = "a", .extra = 3},
    [CR_OP_se_scale_grad]     = {.magnitude = "aak", .extra = 12},
    [CR_OP_pad_shortcut_grad] = {.exact = true},
    [CR_OP_relu_grad]         = {.exact  = true,
                                 .unless = 1u << CR_IN_relu_grad_add | 1u << CR_IN_relu_grad_bn_x | 1u << CR_IN_relu_grad_bn2_x,
                                 .extra  = 1,
                                 .epilogue = cr_verify_epilogue_relu_grad},
    [CR_OP_bn_grad_sums]      = {.extra = 9, .epilogue = cr_verify_epilogue_bn_grad_sums},
    /* dstats and mean below 0 make every term of the three coefficients positive; dgamma and dbeta all negative */
    [CR_OP_bn_grad_finalize]   = {.magnitude = "nas", .before = 'n', .extra = 9},
    [CR_OP_bn_grad_apply]      = {.extra = 5, .epilogue = cr_verify_epilogue_bn_grad_apply},
    [CR_OP_pool_bn_grad_sums]  = {.extra = 9, .epilogue = cr_verify_epilogue_pool_bn_grad_sums},
    [CR_OP_pool_bn_grad_apply] = {.extra = 5, .epilogue = cr_verify_epilogue_pool_bn_grad_apply},
    [CR_OP_channel_scale]      = {.magnitude = "aa", .extra = 1},
    [CR_OP_conv_dgrad]         = {.magnitude = "aaakkkk",
                                  .extra     = 1,
                                  .products  = true,
                                  .pads      = true,
                                  .prologue  = cr_verify_prologue_dgrad,
                                  .epilogue  = cr_verify_epilogue_dgrad},
    [CR_OP_conv_wgrad]         = {.magnitude = "kak",
                                  .before    = 'a',
                                  .extra     = 1,
                                  .products  = true,
                                  .pads      = true,
                                  .prologue  = cr_verify_prologue_wgrad},
    [CR_OP_conv_grad]          = {.magnitude = "kkkakkkakk",
                                  .before    = 'a',
                                  .extra     = 1,
                                  .products  = true,
                                  .pads      = true,
                                  .prologue  = cr_verify_prologue_conv_grad,
                                  .epilogue  = cr_verify_epilogue_conv_grad},
    [CR_OP_s2d_filter]         = {.exact = true},
    [CR_OP_s2d_filter_grad]    = {.magnitude = "a", .before = 'a'},
    [CR_OP_grad_norm]          = {.closed = closed_grad_norm, .extra = 4},
    [CR_OP_sgd]                = {.magnitude = "aaakkk", .extra = 12, .adjust = adjust_sgd, .correct = correct_sgd},
    [CR_OP_adamw]              = {.closed = closed_update, .extra = 24},
    [CR_OP_param_norms]        = {.magnitude = "aak", .extra = 4},
    [CR_OP_lars]               = {.closed = closed_update, .extra = 24},
    [CR_OP_ema]                = {.closed = closed_ema, .extra = 6},
    [CR_OP_cast]               = {.exact = true, .rounds = true},
    [CR_OP_zero]               = {.exact = true},
    [CR_OP_offload]            = {.exact = true},
    [CR_OP_prefetch]           = {.exact = true},
    [CR_OP_all_reduce]         = {.exact = true}, /* one rank looks */
    [CR_OP_barrier]            = {.exact = true, .no_value = true},
    [CR_OP_sparse_filter]      = {.exact    = true,
                                  .no_value = true}, /* what stands where is the layout's: convolutions are judged */
};

const struct cr_verify_rule *cr_verify_rule(enum cr_op_kind kind) {
    const struct cr_verify_rule *rule = &rules[kind];
    CR_ASSERT(rule->exact || rule->magnitude || rule->closed || rule->epilogue); /* a new op kind needs a line above */
    return rule;
}

/* ---- numbers ---- */

static double window_overlap(int64_t window, int stride) {
    return (double)((window + stride - 1) / stride);
}

bool cr_verify_is_exact(const struct cr_op *op) {
    const struct cr_verify_rule *rule = cr_verify_rule(op->kind);
    return rule->exact && cr_op_uses_only(op, ~rule->unless, ~0u);
}

static double pixels(const struct cr_program *p, int tensor) {
    return (double)(elems(p, tensor) / dim(p, tensor, 3));
}

static double dgrad_terms(const struct cr_program *p, int w, int stride) {
    return (double)dim(p, w, 0) * window_overlap(dim(p, w, 1), stride) * window_overlap(dim(p, w, 2), stride);
}

static double conv_reduction(const struct cr_program *p, const struct cr_op *op, int slot) {
    const int *in = op->in;
    switch (op->kind) {
    case CR_OP_conv:
        if (slot == CR_OUT_conv_sums) return pixels(p, op->out[CR_OUT_conv_y]);
        return (double)(elems(p, in[CR_IN_conv_w]) / dim(p, in[CR_IN_conv_w], 0)) + (in[CR_IN_conv_bias] >= 0) +
               (in[CR_IN_conv_add] >= 0);
    case CR_OP_conv_dgrad:
        if (slot == CR_OUT_conv_dgrad_grad_sums) return pixels(p, op->out[CR_OUT_conv_dgrad_dx]);
        return dgrad_terms(p, in[CR_IN_conv_dgrad_w], op->attr.conv.stride) + (in[CR_IN_conv_dgrad_add] >= 0);
    case CR_OP_conv_wgrad: return pixels(p, in[CR_IN_conv_wgrad_dy]);
    default:
        if (slot == CR_OUT_conv_grad_dw) return pixels(p, in[CR_IN_conv_grad_g]);
        if (slot == CR_OUT_conv_grad_grad_sums) return pixels(p, in[CR_IN_conv_grad_x]);
        return dgrad_terms(p, in[CR_IN_conv_grad_w], op->attr.conv.stride) + (in[CR_IN_conv_grad_add] >= 0);
    }
}

static double reduction(const struct cr_program *p, const struct cr_op *op, int slot) {
    const int    *in     = op->in;
    const int     stride = op->attr.conv.stride;
    const int64_t one    = in[0] >= 0 ? elems(p, in[0]) : 1;
    switch (op->kind) {
    case CR_OP_conv:
    case CR_OP_conv_dgrad:
    case CR_OP_conv_wgrad:
    case CR_OP_conv_grad: return conv_reduction(p, op, slot);
    case CR_OP_dense: return (double)dim(p, in[CR_IN_dense_x], 3);
    case CR_OP_dense_dgrad: return (double)dim(p, in[CR_IN_dense_dgrad_dy], 3);
    case CR_OP_dense_wgrad:
    case CR_OP_dense_bgrad: return (double)dim(p, in[0], 0);
    case CR_OP_bn_sums:
    case CR_OP_bn_grad_sums: return pixels(p, in[0]);
    case CR_OP_relu_grad: return slot == CR_OUT_relu_grad_dx ? 0 : pixels(p, in[0]);
    case CR_OP_pool_bn_grad_sums:
        return pixels(p, in[CR_IN_pool_bn_grad_sums_x]) + pow(window_overlap(op->attr.conv.window, stride), 2);
    case CR_OP_avgpool2x2: return 4;
    case CR_OP_se_scale_grad:
        return slot == CR_OUT_se_scale_grad_dx ? 0 : (double)(dim(p, in[0], 1) * dim(p, in[0], 2));
    case CR_OP_avgpool: return (double)(dim(p, in[0], 1) * dim(p, in[0], 2));
    case CR_OP_pool_bn_grad_apply:
    case CR_OP_maxpool_grad: return pow(window_overlap(op->attr.conv.window, stride), 2);
    case CR_OP_loss: return (double)(dim(p, in[0], 0) + dim(p, in[0], 3));
    case CR_OP_loss_grad: return (double)dim(p, in[0], 3);
    case CR_OP_param_norms:
    case CR_OP_grad_norm: return (double)one;
    default: return 0;
    }
}

/* Sums of dx*xhat have the roundings of xhat around them, as those of bn_grad_sums. */
static double extra(const struct cr_op *op, int slot) {
    const double of_sums = cr_verify_rule(CR_OP_bn_grad_sums)->extra;
    if (op->kind == CR_OP_conv && slot == CR_OUT_conv_sums) return cr_verify_rule(CR_OP_bn_sums)->extra;
    if (op->kind == CR_OP_conv_dgrad && slot == CR_OUT_conv_dgrad_grad_sums) return of_sums;
    if (op->kind == CR_OP_conv_grad && slot == CR_OUT_conv_grad_grad_sums) return of_sums;
    if (op->kind == CR_OP_relu_grad && slot != CR_OUT_relu_grad_dx) return of_sums;
    return cr_verify_rule(op->kind)->extra;
}

double cr_verify_terms(const struct cr_program *p, const struct cr_op *op, int out_slot) {
    return reduction(p, op, out_slot) + extra(op, out_slot) + (cr_verify_accumulates(op, out_slot) ? 1 : 0);
}

bool cr_verify_accumulates(const struct cr_op *op, int out_slot) {
    switch (op->kind) {
    case CR_OP_conv_grad:
        if (out_slot == CR_OUT_conv_grad_dgamma || out_slot == CR_OUT_conv_grad_dbeta)
            return op->attr.conv.bn.accumulate;
        return op->attr.conv.accumulate && out_slot == CR_OUT_conv_grad_dw;
    case CR_OP_s2d_filter_grad:
    case CR_OP_conv_wgrad: return op->attr.conv.accumulate;
    case CR_OP_dense_wgrad:
    case CR_OP_dense_bgrad: return op->attr.dense.accumulate;
    case CR_OP_bn_grad_finalize: return op->attr.bn.accumulate && out_slot != CR_OUT_bn_grad_finalize_coef;
    default: return false;
    }
}

/* Where the numbers come from.
 *
 * F32, F64: each operation rounds to nearest, and roundings are independent: sqrt(n) of them count.
 *
 * Matrix units (TF32, F16, BF16) multiply exactly and add in f32, but not as IEEE says: a group of products is lined up
 * with the largest of them and of the sum so far, what falls off behind a bit or two more than f32 has is cut off, and
 * the new sum is cut off again instead of being rounded (measured by Fasi et al. 2021 on three generations). So sum is
 * four times f32's: cutting costs up to a whole last place, where rounding costs half, and of every term; drift because
 * cutting always makes numbers smaller. Where all terms have the sign of the sum so do the losses: per term half of a
 * place one bit behind the last, against a sum that is on the way half of what it becomes: 2^-26. Where signs alternate
 * so do the losses, which is why it is the result that counts here and not A. TF32 besides has 10 bits behind the first
 * in its operands. They may be cut off there: less than 2^-10 of each factor. F16 and BF16: the operands are 16-bit
 * tensors, nothing is lost. A sum whose tensor is f32 (a weight gradient) may be rounded to 16 bits on the way:
 * libraries have kernels that only write the type they read. That costs half a unit in the last place, and overflows
 * where the 16-bit type does. */
const struct cr_verify_unit *cr_verify_unit(enum cr_math math) {
    static const struct cr_verify_unit f64  = {.sum = 0x1p-53, .result = CR_F64},
                                       f32  = {.sum = 0x1p-24, .result = CR_F64},
                                       tf32 = {.sum     = 0x1p-22,
                                               .drift   = 0x1p-26,
                                               .operand = 2 * 0x1p-10,
                                               .result  = CR_F64},
                                       f16  = {.sum = 0x1p-22, .drift = 0x1p-26, .result = CR_F16},
                                       bf16 = {.sum = 0x1p-22, .drift = 0x1p-26, .result = CR_BF16};
    switch (math) {
    case CR_MATH_F64: return &f64;
    case CR_MATH_TF32: return &tf32;
    case CR_MATH_F16: return &f16;
    case CR_MATH_BF16: return &bf16;
    case CR_MATH_EXACT:
    case CR_MATH_F32: break;
    }
    return &f32;
}

/* A mean may be taken as sum, then division. */
double cr_verify_peak(const struct cr_program *p, const struct cr_op *op) {
    return op->kind == CR_OP_avgpool ? reduction(p, op, CR_OUT_avgpool_y) : 1;
}

/* The largest of all operands, at least 1. */
static double largest_operand(const struct cr_verify_values *v) {
    double top = 1;
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (!v->in[s] || v->program->tensor[v->op->in[s]].dtype != CR_F64) continue;
        const double *x = v->in[s];
        const int64_t n = elems(v->program, v->op->in[s]);
        for (int64_t i = 0; i < n; i++)
            if (fabs(x[i]) > top && isfinite(x[i])) top = fabs(x[i]);
    }
    return top;
}

/* Each product may lose half the smallest denormal; the factors behind it enlarge that. In sums of products an operand
 * below the smallest normal f32 may be taken for 0: libraries promise nothing there. All other rows are ours, and keep
 * denormals. Operands of f16 are normal numbers to f32; where their sums are rounded to f16 the half step is in
 * `result` and `round`. */
double cr_verify_tiny(const struct cr_verify_values *v, int out_slot) {
    const double n = cr_verify_terms(v->program, v->op, out_slot), unit = 0x1p-149;
    const bool   acts = v->op->kind == CR_OP_conv || v->op->kind == CR_OP_conv_wgrad || v->op->kind == CR_OP_conv_grad;
    if (cr_verify_rule(v->op->kind)->products) { /* coefficients of operands enlarge what those lose */
        const double top = largest_operand(v);
        return n * FLT_MIN * (acts ? top * top : top);
    }
    switch (v->op->kind) {
    case CR_OP_loss_grad: return loss_grad_factor(v) * n * FLT_MIN; /* exp may flush */
    case CR_OP_bn_grad_sums:
    case CR_OP_pool_bn_grad_sums:
    case CR_OP_relu_grad: return n * unit * largest_operand(v); /* rstd is one of them */
    case CR_OP_grad_norm: {
        const double scale = ((const double *)v->in[CR_IN_grad_norm_state])[CR_STATE_LOSS_SCALE];
        return n * unit * largest(1, 1 / (scale * scale));
    }
    default: return n * unit;
    }
}

/* The power of two below x, times 2^-bits: by its bits, since every element of every output is asked for. */
static double half_step(double x, int bits, double least) {
    uint64_t word;
    memcpy(&word, &x, sizeof word);
    word &= (uint64_t)0x7ff << 52;
    memcpy(&x, &word, sizeof x);
    return largest(x * (1.0 / (double)((uint64_t)1 << bits)), least);
}

double cr_verify_half_ulp(enum cr_dtype dtype, double x) {
    if (!isfinite(x)) return 0;
    switch (dtype) {
    case CR_F32: return half_step(x, 24, 0x1p-150);
    case CR_F64: return half_step(x, 53, 0);
    case CR_F16: return half_step(x, 11, 0x1p-25);
    case CR_BF16: return half_step(x, 8, 0x1p-134);
    default: return 0;
    }
}

double cr_verify_largest(enum cr_dtype dtype) {
    switch (dtype) {
    case CR_F64: return DBL_MAX;
    case CR_F16: return 65504.0;
    case CR_BF16: return 0x1.fep127;
    default: return FLT_MAX;
    }
}
