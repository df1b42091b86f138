/* verification/inputs.c: bounds of fused ops, first part: operands that are made while they are read.
 *
 * Three things make the bounds of fused ops different (verification/cases.c has the second, verification/sums.c the
 * third; verification/bn_finalize.c has what is made of such sums). Where x is read as act(x) = max(x*scale + bias, 0),
 * rounded to the data's type, a row computes x*scale + bias in f32: near the middle between two numbers of the type it
 * may end on the other one. Where a gradient passes only if x*scale + bias > 0, a row may see another sign near 0.
 * Where sums are taken of what was just computed, they may be of the number before or after it is rounded. All three
 * are followed element by element: what may come out differently adds what it changes to the bound (slack), and nothing
 * else does. Where f32 arithmetic is exact, as for 0*scale + 0, nothing may differ. */
#include "verification/verify.h"

#include <float.h>
#include <math.h>

static const struct cr_tensor *tensor_of(const struct cr_program *p, int id) {
    return &p->tensor[id];
}
static int64_t elems_of(const struct cr_program *p, int id) {
    return cr_tensor_elems(&p->tensor[id]);
}

cr_status cr_verify_array(const struct cr_verify_expected *t, int slot, double **array) {
    if (*array) return CR_OK;
    CR_ALLOC(*array, (size_t)t->elems[slot]);
    return CR_OK;
}

cr_status cr_verify_alternatives(struct cr_verify_expected *t, int slot) {
    if (t->alternative[slot]) return CR_OK;
    CR_TRY(cr_verify_array(t, slot, &t->alternative[slot]));
    for (int64_t i = 0; i < t->elems[slot]; i++) t->alternative[slot][i] = NAN;
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

struct ends {
    double low, right, high;
};
static struct ends act_ends(enum cr_dtype dtype, double x, double scale, double bias) {
    const double pre = x * scale + bias, e = dtype == CR_F64 ? 0 : cr_verify_affine_error(x, scale, bias);
    return (struct ends){cr_verify_stored(dtype, rectified(pre - e)), cr_verify_stored(dtype, rectified(pre)),
                         cr_verify_stored(dtype, rectified(pre + e))};
}
static struct ends sum_ends(enum cr_dtype dtype, const double term[3]) {
    const double sum = term[0] + term[1] + term[2];
    const double e =
        dtype == CR_F64 ? 0 : CR_VERIFY_AFFINE * (fabs(term[0]) + fabs(term[1]) + fabs(term[2])) + (double)FLT_MIN;
    return (struct ends){cr_verify_stored(dtype, sum - e), cr_verify_stored(dtype, sum),
                         cr_verify_stored(dtype, sum + e)};
}

/* What stands for an operand in a run: the right number, its magnitude, or that and as much as it may be off by. */
static double operand_of(struct cr_verify_run *run, struct ends e) {
    const double off = fmax(e.high - e.right, e.right - e.low);
    run->flips       = run->flips || off > 0;
    if (run->pass == CR_VERIFY_WANT) return e.right;
    return fabs(e.right) + (run->pass == CR_VERIFY_FLIP ? off : 0);
}

static void make_absolute(struct cr_verify_run *run, int slot) {
    double *data = run->in[slot];
    for (int64_t i = 0; run->pass != CR_VERIFY_WANT && i < elems_of(run->original, run->op->in[slot]); i++)
        data[i] = fabs(data[i]);
}

static void read_activated(struct cr_verify_run *run, int x, int coef) {
    if (run->op->in[coef] < 0) {
        make_absolute(run, x);
        return;
    }
    const enum cr_dtype dtype = tensor_of(run->original, run->op->in[x])->dtype;
    const int64_t C = tensor_of(run->original, run->op->in[x])->dim[3], n = elems_of(run->original, run->op->in[x]);
    double       *data = run->in[x];
    const double *k    = run->in[coef];
    for (int64_t i = 0; i < n; i++) data[i] = operand_of(run, act_ends(dtype, data[i], k[i % C], k[C + i % C]));
    run->op->in[coef] = CR_NONE;
}

void cr_verify_prologue_conv(struct cr_verify_run *run) {
    read_activated(run, CR_IN_conv_x, CR_IN_conv_scale_bias);
    for (int s = CR_IN_conv_gamma; s <= CR_IN_conv_running_var; s++) run->op->in[s] = CR_NONE;
    for (int s = CR_OUT_conv_sums; s <= CR_OUT_conv_running_var; s++) run->op->out[s] = CR_NONE;
}
void cr_verify_prologue_wgrad(struct cr_verify_run *run) {
    read_activated(run, CR_IN_conv_wgrad_x, CR_IN_conv_wgrad_scale_bias);
}
void cr_verify_prologue_maxpool(struct cr_verify_run *run) {
    read_activated(run, CR_IN_maxpool_x, CR_IN_maxpool_scale_bias);
}

void cr_verify_prologue_dgrad(struct cr_verify_run *run) {
    for (int s = CR_IN_conv_dgrad_bn_x; s <= CR_IN_conv_dgrad_beta; s++) run->op->in[s] = CR_NONE;
    run->op->out[CR_OUT_conv_dgrad_grad_sums] = CR_NONE;
}

/* The gradient behind the convolution. */
static void read_through_bn(struct cr_verify_run *run) {
    const int id = run->op->in[CR_IN_conv_grad_g];
    if (run->op->in[CR_IN_conv_grad_dy_coef] < 0) {
        make_absolute(run, CR_IN_conv_grad_g);
        return;
    }
    const enum cr_dtype dtype = tensor_of(run->original, id)->dtype;
    const int64_t       C = tensor_of(run->original, id)->dim[3], n = elems_of(run->original, id);
    double             *g = run->in[CR_IN_conv_grad_g];
    const double       *x = run->in[CR_IN_conv_grad_dy_x], *k = run->in[CR_IN_conv_grad_dy_coef];
    for (int64_t i = 0; i < n; i++) {
        const double term[3] = {k[i % C] * g[i], k[C + i % C] * x[i], k[2 * C + i % C]};
        g[i]                 = operand_of(run, sum_ends(dtype, term));
    }
    run->op->in[CR_IN_conv_grad_dy_coef] = run->op->in[CR_IN_conv_grad_dy_x] = CR_NONE;
}

void cr_verify_prologue_conv_grad(struct cr_verify_run *run) {
    read_through_bn(run);
    read_activated(run, CR_IN_conv_grad_x, CR_IN_conv_grad_scale_bias);
    run->op->in[CR_IN_conv_grad_mean_rstd] = run->op->in[CR_IN_conv_grad_bn_x] = run->op->in[CR_IN_conv_grad_gamma] =
        CR_NONE;
    for (int s = CR_OUT_conv_grad_grad_sums; s <= CR_OUT_conv_grad_grad_coef; s++) run->op->out[s] = CR_NONE;
}

/* ---- pooling of act(x): values within their ends, and an index where no other tap could win ---- */

struct pooling {
    const struct cr_verify_values *v;
    const struct cr_tensor        *x, *y;
    const double                  *data, *coef;
};

/* The ends of tap `tap` of output element i. false: outside the picture. */
static bool pool_tap(const struct pooling *q, int64_t i, int tap, struct ends *e) {
    const struct cr_conv_attr *a = &q->v->op->attr.conv;
    const int64_t C = q->y->dim[3], c = i % C, w = i / C % q->y->dim[2], h = i / C / q->y->dim[2] % q->y->dim[1];
    const int64_t n = i / C / q->y->dim[2] / q->y->dim[1], at_h = h * a->stride - a->pad + tap / a->window,
                  at_w = w * a->stride - a->pad + tap % a->window;
    if (at_h < 0 || at_h >= q->x->dim[1] || at_w < 0 || at_w >= q->x->dim[2]) return false;
    *e = act_ends(q->x->dtype, q->data[((n * q->x->dim[1] + at_h) * q->x->dim[2] + at_w) * C + c], q->coef[c],
                  q->coef[C + c]);
    return true;
}

/* Could another tap than `winner` be the first of the largest? */
static bool other_wins(const struct pooling *q, int64_t i, int taps, int winner) {
    struct ends best, e;
    if (!pool_tap(q, i, winner, &best)) return false;
    for (int tap = 0; tap < taps; tap++)
        if (tap != winner && pool_tap(q, i, tap, &e) && (tap < winner ? e.high >= best.low : e.high > best.low))
            return true;
    return false;
}

static double pool_slack(const struct pooling *q, int64_t i, int taps, double want) {
    double      low = -INFINITY, high = -INFINITY;
    struct ends e;
    for (int tap = 0; tap < taps; tap++) {
        if (!pool_tap(q, i, tap, &e)) continue;
        low  = fmax(low, e.low);
        high = fmax(high, e.high);
    }
    return isfinite(want) ? fmax(high - want, want - low) : 0;
}

cr_status cr_verify_epilogue_maxpool(const struct cr_verify_values *v, struct cr_verify_expected *t) {
    const int y = CR_OUT_maxpool_y, index = CR_OUT_maxpool_index;
    if (v->op->in[CR_IN_maxpool_scale_bias] < 0) return CR_OK;
    const struct pooling q    = {.v    = v,
                                 .x    = tensor_of(v->original, v->op->in[CR_IN_maxpool_x]),
                                 .y    = tensor_of(v->original, v->op->out[y]),
                                 .data = v->in[CR_IN_maxpool_x],
                                 .coef = v->in[CR_IN_maxpool_scale_bias]};
    const int            taps = v->op->attr.conv.window * v->op->attr.conv.window;
    CR_TRY(cr_verify_array(t, y, &t->slack[y]));
    for (int64_t i = 0; i < t->elems[y]; i++) {
        t->slack[y][i] = pool_slack(&q, i, taps, t->want[y][i]);
        if (v->op->out[index] >= 0 && other_wins(&q, i, taps, (int)t->want[index][i]))
            t->scale[index][i] = CR_VERIFY_UNUSED;
    }
    return CR_OK;
}
