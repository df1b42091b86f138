/* verification/inputs.c: bounds of fused ops, part 1: operands that are computed while they are read.
 *
 * Fused ops differ from plain ops in three ways.
 *   - Inputs (this file). If x is read as act(x) = max(x*scale + bias, 0) and rounded to the type of the data, a kernel
 *     computes x*scale + bias in f32. Near the middle between two numbers of the type it may round to the other one.
 *   - Masks (verification/cases.c). If a gradient passes only where x*scale + bias > 0, a kernel may see another sign
 *     near 0.
 *   - Sums (verification/sums.c, verification/bn_finalize.c). Sums of values that were just computed may use the values
 *     before or after they are rounded.
 * All three are computed element by element: only an element that may differ gets slack, by the effect of the
 * difference. Where f32 arithmetic is exact, as for 0*scale + 0, nothing may differ. */
#include "verification/bound.h"

#include <float.h>
#include <math.h>

static int64_t elems_of(const struct cr_program *p, int id) {
    return cr_tensor_elems(&p->tensor[id]);
}

cr_status cr_verify_array(const struct cr_verify_expected *e, int slot, double **array) {
    if (*array) return CR_OK;
    CR_ALLOC(*array, (size_t)e->elems[slot]);
    return CR_OK;
}

cr_status cr_verify_alternatives(struct cr_verify_expected *e, int slot) {
    if (e->alternative[slot]) return CR_OK;
    CR_TRY(cr_verify_array(e, slot, &e->alternative[slot]));
    for (int64_t i = 0; i < e->elems[slot]; i++) e->alternative[slot][i] = NAN;
    return CR_OK;
}

/* ---- x*scale + bias in f32 ---- */

double cr_verify_stored(enum cr_dtype dtype, double x) {
    uint64_t one = 0;
    cr_number_store(dtype, &one, 0, x);
    return cr_number_load(dtype, &one, 0);
}
static bool is_float(double x) {
    return (double)(float)x == x;
}
static double rectified(double x) {
    return x < 0 ? 0 : x;
}

double cr_verify_affine_error(double x, double scale, double bias) {
    if (is_float(x * scale) && is_float(x * scale + bias)) return 0;
    return CR_VERIFY_AFFINE * (fabs(x * scale) + fabs(bias)) + (double)FLT_MIN;
}

/* The exact value of an operand, rounded, and the smallest and largest value that a kernel may compute. */
struct interval {
    double low, exact, high;
};
static struct interval act_interval(enum cr_dtype dtype, double x, double scale, double bias) {
    const double pre = x * scale + bias, e = dtype == CR_F64 ? 0 : cr_verify_affine_error(x, scale, bias);
    return (struct interval){cr_verify_stored(dtype, rectified(pre - e)), cr_verify_stored(dtype, rectified(pre)),
                             cr_verify_stored(dtype, rectified(pre + e))};
}
static struct interval sum_interval(enum cr_dtype dtype, const double term[3]) {
    const double sum = term[0] + term[1] + term[2];
    const double e =
        dtype == CR_F64 ? 0 : CR_VERIFY_AFFINE * (fabs(term[0]) + fabs(term[1]) + fabs(term[2])) + (double)FLT_MIN;
    return (struct interval){cr_verify_stored(dtype, sum - e), cr_verify_stored(dtype, sum),
                             cr_verify_stored(dtype, sum + e)};
}

/* The value of an operand in a run: the exact value, its magnitude, or its magnitude plus its possible error. */
static double operand_of(struct cr_verify_run *run, struct interval e) {
    const double off = fmax(e.high - e.exact, e.exact - e.low);
    run->flips       = run->flips || off > 0;
    if (run->pass == CR_VERIFY_WANT) return e.exact;
    return fabs(e.exact) + (run->pass == CR_VERIFY_FLIP ? off : 0);
}

static void make_absolute(struct cr_verify_run *run, int slot) {
    double *data = run->in[slot];
    for (int64_t i = 0; run->pass != CR_VERIFY_WANT && i < elems_of(run->original, run->op->in[slot]); i++)
        data[i] = fabs(data[i]);
}

static void read_activated(struct cr_verify_run *run, int x, int scale_bias) {
    if (run->op->in[scale_bias] < 0) {
        make_absolute(run, x);
        return;
    }
    const enum cr_dtype dtype = tensor_of(run->original, run->op->in[x])->dtype;
    const int64_t C = tensor_of(run->original, run->op->in[x])->dim[3], n = elems_of(run->original, run->op->in[x]);
    double       *data = run->in[x];
    const double *k    = run->in[scale_bias];
    for (int64_t i = 0; i < n; i++) data[i] = operand_of(run, act_interval(dtype, data[i], k[i % C], k[C + i % C]));
    run->op->in[scale_bias] = CR_NONE;
}

double cr_verify_activated(enum cr_dtype dtype, double x, double scale, double bias, double *off) {
    const struct interval e = act_interval(dtype, x, scale, bias);
    *off                    = fmax(e.high - e.exact, e.exact - e.low);
    return e.exact;
}

/* With a mask as output the reference computes y before the ReLU, which cr_verify_epilogue_conv applies. */
void cr_verify_prologue_conv(struct cr_verify_run *run) {
    read_activated(run, CR_IN_conv_x, CR_IN_conv_scale_bias);
    if (run->op->out[CR_OUT_conv_mask] >= 0) run->op->attr.conv.relu = false;
    run->op->out[CR_OUT_conv_mask] = CR_NONE;
    for (int s = CR_IN_conv_gamma; s <= CR_IN_conv_running_var; s++) run->op->in[s] = CR_NONE;
    for (int s = CR_OUT_conv_sums; s <= CR_OUT_conv_running_var; s++) run->op->out[s] = CR_NONE;
}
void cr_verify_prologue_wgrad(struct cr_verify_run *run) {
    read_activated(run, CR_IN_conv_wgrad_x, CR_IN_conv_wgrad_scale_bias);
}
void cr_verify_prologue_gram(struct cr_verify_run *run) {
    read_activated(run, CR_IN_gram_x, CR_IN_gram_scale_bias);
}
void cr_verify_prologue_gram_dgrad(struct cr_verify_run *run) {
    read_activated(run, CR_IN_gram_dgrad_x, CR_IN_gram_dgrad_scale_bias);
    run->op->in[CR_IN_gram_dgrad_mean_rstd]   = CR_NONE;
    run->op->out[CR_OUT_gram_dgrad_grad_sums] = CR_NONE;
}
void cr_verify_prologue_maxpool(struct cr_verify_run *run) {
    read_activated(run, CR_IN_maxpool_x, CR_IN_maxpool_scale_bias);
}

void cr_verify_prologue_dgrad(struct cr_verify_run *run) {
    for (int s = CR_IN_conv_dgrad_bn_x; s <= CR_IN_conv_dgrad_beta; s++) run->op->in[s] = CR_NONE;
    run->op->out[CR_OUT_conv_dgrad_grad_sums] = CR_NONE;
}

/* The gradient of the convolution's output, computed from the gradient of the BN that follows it. */
static void read_bn_gradient(struct cr_verify_run *run, int g_slot, int x_slot, int coeffs) {
    const int id = run->op->in[g_slot];
    if (run->op->in[coeffs] < 0) {
        make_absolute(run, g_slot);
        return;
    }
    const enum cr_dtype dtype = tensor_of(run->original, id)->dtype;
    const int64_t       C = tensor_of(run->original, id)->dim[3], n = elems_of(run->original, id);
    double             *g = run->in[g_slot];
    const double       *x = run->in[x_slot], *k = run->in[coeffs];
    for (int64_t i = 0; i < n; i++) {
        const double term[3] = {k[i % C] * g[i], k[C + i % C] * x[i], k[2 * C + i % C]};
        g[i]                 = operand_of(run, sum_interval(dtype, term));
    }
    run->op->in[coeffs] = run->op->in[x_slot] = CR_NONE;
}

void cr_verify_prologue_conv_wgrads(struct cr_verify_run *run) {
    for (int i = 0, from = 0; i < CR_WGRADS; i++, from += CR_WGRADS_STEP) {
        if (run->op->out[i] < 0) continue;
        read_bn_gradient(run, CR_IN_conv_wgrads_g0 + from, CR_IN_conv_wgrads_dy_x0 + from,
                         CR_IN_conv_wgrads_dy_coeffs0 + from);
        read_activated(run, CR_IN_conv_wgrads_x0 + from, CR_IN_conv_wgrads_scale_bias0 + from);
    }
}

void cr_verify_prologue_conv_grad(struct cr_verify_run *run) {
    read_bn_gradient(run, CR_IN_conv_grad_g, CR_IN_conv_grad_dy_x, CR_IN_conv_grad_dy_coeffs);
    read_activated(run, CR_IN_conv_grad_x, CR_IN_conv_grad_scale_bias);
    run->op->in[CR_IN_conv_grad_mean_rstd] = run->op->in[CR_IN_conv_grad_bn_x] = run->op->in[CR_IN_conv_grad_gamma] =
        run->op->in[CR_IN_conv_grad_y]                                         = CR_NONE;
    for (int s = CR_OUT_conv_grad_grad_sums; s <= CR_OUT_conv_grad_grad_coeffs; s++) run->op->out[s] = CR_NONE;
}

/* ---- conv_pool_grad: the gradient of y is computed while y is read ---- */

/* The gradient that max pooling 3x3, stride 2, padding 1 passes to element `at` of y: a sum of its windows' gradients
 * in any order, rounded to the type after each of them. */
static struct interval pooled_gradient(const struct cr_verify_run *run, const struct cr_tensor *y,
                                       const struct cr_tensor *pooled, int64_t at) {
    const int64_t C = y->dim[3], w = at / C % y->dim[2], h = at / C / y->dim[2] % y->dim[1],
                  n      = at / C / y->dim[2] / y->dim[1];
    const double  *d     = run->in[CR_IN_conv_pool_grad_dy];
    const uint8_t *index = run->in[CR_IN_conv_pool_grad_index];
    double         sum = 0, size = 0;
    int            windows = 0;
    for (int64_t i = h / 2; i <= (h + 1) / 2 && i < pooled->dim[1]; i++)
        for (int64_t j = w / 2; j <= (w + 1) / 2 && j < pooled->dim[2]; j++) {
            const int64_t from = ((n * pooled->dim[1] + i) * pooled->dim[2] + j) * C + at % C;
            if (index[from] != (h - 2 * i + 1) * 3 + w - 2 * j + 1) continue;
            sum += d[from];
            size += fabs(d[from]);
            windows++;
        }
    const double rounding = windows > 1 && y->dtype != CR_F64 ? (windows - 1) * cr_verify_half_ulp(y->dtype, size) : 0;
    return (struct interval){sum - rounding, sum, sum + rounding};
}

/* The same behind the ReLU of y*scale + bias. */
static struct interval masked(enum cr_dtype dtype, struct interval g, double y, double scale, double bias) {
    const double pre = y * scale + bias, error = dtype == CR_F64 ? 0 : cr_verify_affine_error(y, scale, bias);
    if (error > 0 && fabs(pre) <= error) /* the ReLU may pass it or not */
        return (struct interval){fmin(g.low, 0), pre > 0 ? g.exact : 0, fmax(g.high, 0)};
    return pre > 0 ? g : (struct interval){0, 0, 0};
}

/* factor*g + linear + constant, rounded. */
static struct interval bn_gradient(enum cr_dtype dtype, struct interval g, double factor, double linear,
                                   double constant) {
    const double low[3] = {factor * g.low, linear, constant}, exact[3] = {factor * g.exact, linear, constant},
                 high[3]    = {factor * g.high, linear, constant};
    const struct interval a = sum_interval(dtype, low), b = sum_interval(dtype, exact), c = sum_interval(dtype, high);
    return (struct interval){fmin(fmin(a.low, b.low), c.low), b.exact, fmax(fmax(a.high, b.high), c.high)};
}

/* Replaces y by its gradient. */
void cr_verify_prologue_conv_pool_grad(struct cr_verify_run *run) {
    const struct cr_tensor *y      = tensor_of(run->original, run->op->in[CR_IN_conv_pool_grad_y]),
                           *pooled = tensor_of(run->original, run->op->in[CR_IN_conv_pool_grad_dy]);
    const int64_t C                = y->dim[3];
    double       *data             = run->in[CR_IN_conv_pool_grad_y];
    const double *scale_bias = run->in[CR_IN_conv_pool_grad_scale_bias], *k = run->in[CR_IN_conv_pool_grad_coeffs];
    for (int64_t i = 0; i < cr_tensor_elems(y); i++) {
        const int64_t         c = i % C;
        const struct interval g =
            masked(y->dtype, pooled_gradient(run, y, pooled, i), data[i], scale_bias[c], scale_bias[C + c]);
        data[i] = operand_of(run, bn_gradient(y->dtype, g, k[c], k[C + c] * data[i], k[2 * C + c]));
    }
    run->op->in[CR_IN_conv_pool_grad_coeffs] = CR_NONE;
}

/* ---- max-pool of act(x): values within their interval; the index where no other element can be the maximum ---- */

struct pooling {
    const struct cr_verify_values *v;
    const struct cr_tensor        *x, *y;
    const double                  *data, *scale_bias;
};

/* Interval of element `tap` of the window of output element i. Returns false outside the image. */
static bool pool_tap(const struct pooling *q, int64_t i, int tap, struct interval *e) {
    const struct cr_conv_attr *a = &q->v->op->attr.conv;
    const int64_t C = q->y->dim[3], c = i % C, w = i / C % q->y->dim[2], h = i / C / q->y->dim[2] % q->y->dim[1];
    const int64_t n = i / C / q->y->dim[2] / q->y->dim[1], at_h = h * a->stride - a->pad + tap / a->window,
                  at_w = w * a->stride - a->pad + tap % a->window;
    if (at_h < 0 || at_h >= q->x->dim[1] || at_w < 0 || at_w >= q->x->dim[2]) return false;
    *e = act_interval(q->x->dtype, q->data[((n * q->x->dim[1] + at_h) * q->x->dim[2] + at_w) * C + c], q->scale_bias[c],
                      q->scale_bias[C + c]);
    return true;
}

/* Returns whether an element other than `winner` can be the first maximum of the window. */
static bool other_can_win(const struct pooling *q, int64_t i, int taps, int winner) {
    struct interval best, e;
    if (!pool_tap(q, i, winner, &best)) return false;
    for (int tap = 0; tap < taps; tap++)
        if (tap != winner && pool_tap(q, i, tap, &e) && (tap < winner ? e.high >= best.low : e.high > best.low))
            return true;
    return false;
}

static double pool_slack(const struct pooling *q, int64_t i, int taps, double want) {
    double          low = -INFINITY, high = -INFINITY;
    struct interval e;
    for (int tap = 0; tap < taps; tap++) {
        if (!pool_tap(q, i, tap, &e)) continue;
        low  = fmax(low, e.low);
        high = fmax(high, e.high);
    }
    return isfinite(want) ? fmax(high - want, want - low) : 0;
}

cr_status cr_verify_epilogue_maxpool(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const int y = CR_OUT_maxpool_y, index = CR_OUT_maxpool_index;
    if (v->op->in[CR_IN_maxpool_scale_bias] < 0) return CR_OK;
    const struct pooling q    = {.v          = v,
                                 .x          = tensor_of(v->original, v->op->in[CR_IN_maxpool_x]),
                                 .y          = tensor_of(v->original, v->op->out[y]),
                                 .data       = v->in[CR_IN_maxpool_x],
                                 .scale_bias = v->in[CR_IN_maxpool_scale_bias]};
    const int            taps = v->op->attr.conv.window * v->op->attr.conv.window;
    CR_TRY(cr_verify_array(e, y, &e->slack[y]));
    for (int64_t i = 0; i < e->elems[y]; i++) {
        e->slack[y][i] = pool_slack(&q, i, taps, e->want[y][i]);
        if (v->op->out[index] >= 0 && other_can_win(&q, i, taps, (int)e->want[index][i]))
            e->scale[index][i] = CR_VERIFY_UNUSED;
    }
    return CR_OK;
}
