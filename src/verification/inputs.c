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

cr_status cr_verify_array(const struct cr_verify_expected *e, int slot, double **array) {
    if (!array[slot]) CR_ALLOC(array[slot], (size_t)e->elems[slot]);
    return CR_OK;
}

cr_status cr_verify_alternatives(struct cr_verify_expected *e, int slot) {
    if (e->alternative[slot]) return CR_OK;
    CR_TRY(cr_verify_array(e, slot, e->alternative));
    for (int64_t i = 0; i < e->elems[slot]; i++) e->alternative[slot][i] = NAN;
    return CR_OK;
}

/* ---- x*scale + bias in f32 ---- */

double cr_verify_stored(enum cr_dtype dtype, double x) {
    uint64_t one = 0;
    cr_number_store(dtype, &one, 0, x);
    return cr_number_load(dtype, &one, 0);
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
    for (int64_t i = 0; run->pass != CR_VERIFY_WANT && i < elems(run->original, run->op->in[slot]); i++)
        data[i] = fabs(data[i]);
}

static void read_activated(struct cr_verify_run *run, int x, int scale_bias) {
    if (run->op->in[scale_bias] < 0) {
        make_absolute(run, x);
        return;
    }
    const enum cr_dtype dtype = tensor_of(run->original, run->op->in[x])->dtype;
    const int64_t       C = tensor_of(run->original, run->op->in[x])->dim[3], n = elems(run->original, run->op->in[x]);
    double             *data = run->in[x];
    const double       *k    = run->in[scale_bias];
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
static void read_bn_gradient(struct cr_verify_run *run) {
    const int id = run->op->in[CR_IN_conv_grad_g];
    if (run->op->in[CR_IN_conv_grad_dy_coeffs] < 0) {
        make_absolute(run, CR_IN_conv_grad_g);
        return;
    }
    const enum cr_dtype dtype = tensor_of(run->original, id)->dtype;
    const int64_t       C = tensor_of(run->original, id)->dim[3], n = elems(run->original, id);
    double             *g = run->in[CR_IN_conv_grad_g];
    const double       *x = run->in[CR_IN_conv_grad_dy_x], *k = run->in[CR_IN_conv_grad_dy_coeffs];
    for (int64_t i = 0; i < n; i++) {
        const double term[3] = {k[i % C] * g[i], k[C + i % C] * x[i], k[2 * C + i % C]};
        g[i]                 = operand_of(run, sum_interval(dtype, term));
    }
    run->op->in[CR_IN_conv_grad_dy_coeffs] = run->op->in[CR_IN_conv_grad_dy_x] = CR_NONE;
}

void cr_verify_prologue_conv_grad(struct cr_verify_run *run) {
    read_bn_gradient(run);
    read_activated(run, CR_IN_conv_grad_x, CR_IN_conv_grad_scale_bias);
    run->op->in[CR_IN_conv_grad_mean_rstd] = run->op->in[CR_IN_conv_grad_bn_x] = run->op->in[CR_IN_conv_grad_gamma] =
        run->op->in[CR_IN_conv_grad_y]                                         = CR_NONE;
    for (int s = CR_OUT_conv_grad_grad_sums; s <= CR_OUT_conv_grad_grad_coeffs; s++) run->op->out[s] = CR_NONE;
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
    CR_TRY(cr_verify_array(e, y, e->slack));
    for (int64_t i = 0; i < e->elems[y]; i++) {
        e->slack[y][i] = pool_slack(&q, i, taps, e->want[y][i]);
        if (v->op->out[index] >= 0 && other_can_win(&q, i, taps, (int)e->want[index][i]))
            e->scale[index][i] = CR_VERIFY_UNUSED;
    }
    return CR_OK;
}
