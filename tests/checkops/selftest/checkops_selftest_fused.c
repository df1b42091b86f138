/* tests/checkops/selftest/checkops_selftest_fused.c: fused kernels as plain float loops, as a device would compute
 * them. Correct kernels must pass although they round and sum in another order than the reference; the same kernels
 * with one error each must be detected. */
#include "tests/checkops/selftest/checkops_selftest.h"

#include <math.h>
#include <string.h>

enum mistake {
    NONE,
    ACTIVATES_PADDING,    /* the activation is also applied to zero padding */
    ROUNDS_ACT_DOWN,      /* act(x) is truncated instead of rounded */
    FORGETS_LAST_PIXEL,   /* missing in the sums */
    SUMS_BEFORE_ADD,      /* gradient sums without the added gradient */
    PASSES_AT_ZERO,       /* a pre-activation of 0 passes the gradient */
    READS_OTHER_INPUT,    /* xhat is computed from x although the input of the BN is another tensor */
    READS_RAW_INPUT,      /* dw from x instead of act(x) */
    FORGETS_OFFSET,       /* of the BN after the convolution */
    FINISHES_BIASED,      /* the running variance is not corrected for bias */
    FINISHES_OTHER_COUNT, /* means divide by one pixel too many */
    FINISHES_BEFORE_LAST, /* dgamma and dbeta without the last pixel */
    /* the bias is rounded to the type of the images; correct for a kernel with this relaxation, as are the next two */
    HALF_BIAS,
    ROUNDS_SUM, /* the sum of products is rounded before `add` */
    DROPS_NAN,  /* ReLU(NaN) is 0 */
    COARSE_BIAS /* the bias has three bits fewer than that type */
};
static enum mistake mistake;

/* An operand converted to float. */
struct operand {
    const struct cr_tensor *t; /* NULL: absent */
    float                  *value;
};
static cr_status operand_open(const struct cr_call *call, int slot, struct operand *o) {
    const int id = call->op->in[slot];
    if (id < 0) return CR_OK;
    o->t = &call->program->tensor[id];
    CR_ALLOC(o->value, (size_t)cr_tensor_elems(o->t));
    for (int64_t i = 0; i < cr_tensor_elems(o->t); i++)
        o->value[i] = (float)cr_number_load(o->t->dtype, call->in[slot], i);
    return CR_OK;
}
static cr_status operands_open(const struct cr_call *call, struct operand in[CR_OP_IN_MAX]) {
    for (int s = 0; s < CR_OP_IN_MAX; s++) CR_TRY(operand_open(call, s, &in[s]));
    return CR_OK;
}
static void operands_close(struct operand in[CR_OP_IN_MAX]) {
    for (int s = 0; s < CR_OP_IN_MAX; s++) cr_free(in[s].value);
}

static float stored(enum cr_dtype dtype, float x) {
    uint64_t one = 0;
    cr_number_store(dtype, &one, 0, (double)x);
    const float near = (float)cr_number_load(dtype, &one, 0);
    if (mistake != ROUNDS_ACT_DOWN || !(near > x)) return near;
    one--;
    return (float)cr_number_load(dtype, &one, 0);
}

static float affine(const struct operand *x, const struct operand *coeffs, int64_t i, int64_t c) {
    return fmaf(x->value[i], coeffs->value[c], coeffs->value[coeffs->t->dim[3] + c]);
}
/* As fmaf, which is a slow call here; a tie may round to the other side. */
static float multiply_add(float a, float b, float sum) {
    return (float)((double)a * (double)b + (double)sum);
}
static float rectified(float x) {
    return x < 0 ? 0 : x;
}
static float rounded(enum cr_dtype dtype, float x) {
    return (float)cr_verify_stored(dtype, (double)x);
}

/* The input of a convolution, act(x), in `active`. */
static cr_status activate(const struct operand *x, const struct operand *coeffs, struct operand *active) {
    active->t = x->t;
    CR_ALLOC(active->value, (size_t)cr_tensor_elems(x->t));
    for (int64_t i = 0; i < cr_tensor_elems(x->t); i++) {
        const bool acts  = coeffs->t && mistake != READS_RAW_INPUT;
        active->value[i] = acts ? stored(x->t->dtype, rectified(affine(x, coeffs, i, i % x->t->dim[3]))) : x->value[i];
    }
    return CR_OK;
}

static int64_t at(const struct cr_tensor *t, int64_t n, int64_t h, int64_t w, int64_t c) {
    return ((n * t->dim[1] + h) * t->dim[2] + w) * t->dim[3] + c;
}
static bool inside(const struct cr_tensor *t, int64_t h, int64_t w) {
    return h >= 0 && w >= 0 && h < t->dim[1] && w < t->dim[2];
}

/* ---- forward ---- */

static float conv_sum(const struct cr_conv_attr *a, const struct operand *x, const struct operand *w,
                      const struct operand *coeffs, const int64_t at_y[4]) {
    float sum = 0;
    for (int64_t i = 0; i < w->t->dim[1] * w->t->dim[2]; i++) {
        const int64_t r = i / w->t->dim[2], s = i % w->t->dim[2], h = at_y[1] * a->stride - a->pad + r,
                      q  = at_y[2] * a->stride - a->pad + s;
        const bool there = inside(x->t, h, q);
        for (int64_t c = w->t->dim[3] - 1; c >= 0; c--) {
            const float f = w->value[at(w->t, at_y[3], r, s, c)];
            if (there)
                sum = multiply_add(x->value[at(x->t, at_y[0], h, q, c)], f, sum);
            else if (coeffs->t && mistake == ACTIVATES_PADDING)
                sum += rectified(coeffs->value[coeffs->t->dim[3] + c]) * f;
        }
    }
    return sum;
}

static float bias_of(enum cr_dtype dtype, float bias) {
    if (mistake == HALF_BIAS) return rounded(dtype, bias);
    return mistake == COARSE_BIAS ? ldexpf(nearbyintf(ldexpf(bias, 7)), -7) : bias;
}

static void conv_run(const struct cr_call *call, const struct operand *in, const struct operand *x) {
    const struct operand   *bias = &in[CR_IN_conv_bias], *add = &in[CR_IN_conv_add];
    const struct cr_tensor *y    = &call->program->tensor[call->op->out[CR_OUT_conv_y]];
    float                  *sums = call->out[CR_OUT_conv_sums];
    const int64_t           n = cr_tensor_elems(y), K = y->dim[3];
    if (sums) memset(sums, 0, 2 * (size_t)K * sizeof *sums);
    for (int64_t i = 0; i < n; i++) {
        const int64_t k        = i % K,
                      place[4] = {i / K / y->dim[2] / y->dim[1], i / K / y->dim[2] % y->dim[1], i / K % y->dim[2], k};
        float v = conv_sum(&call->op->attr.conv, x, &in[CR_IN_conv_w], &in[CR_IN_conv_scale_bias], place);
        if (mistake == ROUNDS_SUM && add->t) v = rounded(y->dtype, v);
        if (bias->t) v += bias_of(y->dtype, bias->value[k]);
        if (add->t) v += add->value[i];
        if (call->op->attr.conv.relu) v = mistake == DROPS_NAN && isnan(v) ? 0 : rectified(v);
        cr_number_store(y->dtype, call->out[CR_OUT_conv_y], i, (double)v);
        if (!sums || (mistake == FORGETS_LAST_PIXEL && i >= n - K)) continue;
        if (k % 2)
            v = (float)cr_number_load(y->dtype, call->out[CR_OUT_conv_y],
                                      i); /* before or after rounding: both are correct */
        sums[k] += v;
        sums[K + k] += v * v;
    }
}

/* The variance is a difference: float is not precise enough. */
static void conv_finish(const struct cr_call *call, const struct operand *in) {
    const struct cr_bn_attr *a    = &call->op->attr.conv.bn;
    const float             *sums = call->out[CR_OUT_conv_sums];
    float        *next = call->out[CR_OUT_conv_next_scale_bias], *mean_rstd = call->out[CR_OUT_conv_mean_rstd];
    const int64_t K = in[CR_IN_conv_gamma].t->dim[3], M = a->count + (mistake == FINISHES_OTHER_COUNT);
    for (int64_t k = 0; k < K; k++) {
        const double mean = (double)sums[k] / (double)M, square = (double)sums[K + k] / (double)M,
                     raw = square - mean * mean;
        const float var = raw < 0 ? 0 : (float)raw, rstd = 1 / sqrtf(var + a->eps),
                    scale    = rstd * in[CR_IN_conv_gamma].value[k];
        const float unbias   = mistake == FINISHES_BIASED || M == 1 ? 1 : (float)M / (float)(M - 1);
        float       run_mean = in[CR_IN_conv_running_mean].value[k], run_var = in[CR_IN_conv_running_var].value[k];
        if (isfinite(mean) && isfinite(var)) {
            run_mean += a->momentum * ((float)mean - run_mean);
            run_var += a->momentum * (var * unbias - run_var);
        }
        mean_rstd[k] = (float)mean, mean_rstd[K + k] = rstd;
        next[k] = scale, next[K + k] = in[CR_IN_conv_beta].value[k] - (float)mean * scale;
        ((float *)call->out[CR_OUT_conv_running_mean])[k] = run_mean;
        ((float *)call->out[CR_OUT_conv_running_var])[k]  = run_var;
    }
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    struct operand in[CR_OP_IN_MAX] = {{0}}, x = {0};
    cr_status      status;
    (void)device;
    CR_TRY_OUT(operands_open(call, in));
    CR_TRY_OUT(activate(&in[CR_IN_conv_x], &in[CR_IN_conv_scale_bias], &x));
    conv_run(call, in, &x);
    if (in[CR_IN_conv_gamma].t) conv_finish(call, in);
out:
    cr_free(x.value);
    operands_close(in);
    return status;
}

/* ---- backward ---- */

struct grad {
    struct cr_conv_attr a;
    struct operand      in[CR_OP_IN_MAX], dy, xa;
};

static cr_status grad_dy(struct grad *v) {
    const struct operand *g = &v->in[CR_IN_conv_grad_g], *x = &v->in[CR_IN_conv_grad_dy_x],
                         *k = &v->in[CR_IN_conv_grad_dy_coeffs];
    const int64_t K         = g->t->dim[3];
    v->dy.t                 = g->t;
    CR_ALLOC(v->dy.value, (size_t)cr_tensor_elems(g->t));
    for (int64_t i = 0; i < cr_tensor_elems(g->t); i++) {
        v->dy.value[i] = g->value[i];
        if (!k->t) continue;
        const float linear =
            k->value[K + i % K] * x->value[i] + (mistake == FORGETS_OFFSET ? 0 : k->value[2 * K + i % K]);
        v->dy.value[i] = stored(g->t->dtype, fmaf(k->value[i % K], g->value[i], linear));
    }
    return CR_OK;
}

static float grad_filter(const struct grad *v, int64_t i) {
    const struct cr_tensor *tw = v->in[CR_IN_conv_grad_w].t, *ty = v->dy.t, *tx = v->xa.t;
    const int64_t           C = tw->dim[3], S = tw->dim[2], R = tw->dim[1], c = i % C, s = i / C % S, r = i / C / S % R,
                  k  = i / C / S / R;
    const float *dy  = v->dy.value + k;
    float        sum = 0;
    for (int64_t n = 0; n < ty->dim[0]; n++)
        for (int64_t p = 0; p < ty->dim[1]; p++)
            for (int64_t q = 0; q < ty->dim[2]; q++, dy += ty->dim[3]) {
                const int64_t h = p * v->a.stride - v->a.pad + r, w = q * v->a.stride - v->a.pad + s;
                if (inside(tx, h, w)) sum = multiply_add(*dy, v->xa.value[at(tx, n, h, w, c)], sum);
            }
    return sum;
}

static float grad_input(const struct grad *v, int64_t i) {
    const struct operand   *w  = &v->in[CR_IN_conv_grad_w];
    const struct cr_tensor *tx = v->xa.t, *ty = v->dy.t;
    const int64_t           C = tx->dim[3], c = i % C, at_w = i / C % tx->dim[2], h = i / C / tx->dim[2] % tx->dim[1],
                  n = i / C / tx->dim[2] / tx->dim[1];
    float sum       = 0;
    for (int64_t tap = 0; tap < w->t->dim[1] * w->t->dim[2]; tap++) {
        const int64_t r = tap / w->t->dim[2], s = tap % w->t->dim[2], top = h + v->a.pad - r,
                      left = at_w + v->a.pad - s;
        if (top < 0 || left < 0 || top % v->a.stride || left % v->a.stride ||
            !inside(ty, top / v->a.stride, left / v->a.stride))
            continue;
        const float *dy = v->dy.value + at(ty, n, top / v->a.stride, left / v->a.stride, 0);
        for (int64_t k = 0; k < ty->dim[3]; k++) sum = multiply_add(dy[k], w->value[at(w->t, k, r, s, c)], sum);
    }
    return sum;
}

static bool grad_passes(const struct grad *v, int64_t i, int64_t c) {
    const struct operand *x = &v->in[CR_IN_conv_grad_x];
    if (!v->in[CR_IN_conv_grad_mean_rstd].t) return true;
    const float pre = v->in[CR_IN_conv_grad_bn_x].t ? x->value[i] : affine(x, &v->in[CR_IN_conv_grad_scale_bias], i, c);
    return mistake == PASSES_AT_ZERO ? pre >= 0 : pre > 0;
}

static void grad_sums(const struct grad *v, float *sums, int64_t i, float added, float dx) {
    const struct operand *x = &v->in[CR_IN_conv_grad_x], *bn_x = &v->in[CR_IN_conv_grad_bn_x],
                         *mean_rstd = &v->in[CR_IN_conv_grad_mean_rstd];
    const struct operand *of        = bn_x->t && mistake != READS_OTHER_INPUT ? bn_x : x;
    const int64_t         C = x->t->dim[3], c = i % C;
    if (!sums || (mistake == FORGETS_LAST_PIXEL && i >= cr_tensor_elems(x->t) - C)) return;
    if (mistake == SUMS_BEFORE_ADD && dx != 0) dx -= added;
    sums[c] += dx;
    sums[C + c] += dx * ((of->value[i] - mean_rstd->value[c]) * mean_rstd->value[C + c]);
}

static void grad_run(const struct grad *v, const struct cr_call *call) {
    const struct operand *x = &v->in[CR_IN_conv_grad_x], *add = &v->in[CR_IN_conv_grad_add];
    float                *dw = call->out[CR_OUT_conv_grad_dw], *sums = call->out[CR_OUT_conv_grad_grad_sums];
    for (int64_t i = 0; i < cr_tensor_elems(v->in[CR_IN_conv_grad_w].t); i++)
        dw[i] = grad_filter(v, i) + (v->a.accumulate ? dw[i] : 0);
    if (sums) memset(sums, 0, 2 * (size_t)x->t->dim[3] * sizeof *sums);
    for (int64_t i = 0; call->out[CR_OUT_conv_grad_dx] && i < cr_tensor_elems(x->t); i++) {
        const float added = add->t ? add->value[i] : 0, sum = grad_input(v, i) + added;
        const float dx = grad_passes(v, i, i % x->t->dim[3]) ? sum : 0;
        grad_sums(v, sums, i, added, dx);
        cr_number_store(x->t->dtype, call->out[CR_OUT_conv_grad_dx], i, (double)dx);
    }
}

/* FINISHES_BEFORE_LAST: the gradients of gamma and beta lack the last pixel, the gradient sums do not. */
static void grad_finish(const struct grad *v, const struct cr_call *call) {
    const struct operand   *mean_rstd = &v->in[CR_IN_conv_grad_mean_rstd], *gamma = &v->in[CR_IN_conv_grad_gamma];
    const struct cr_tensor *x = v->in[CR_IN_conv_grad_x].t;
    const int64_t           C = x->dim[3], n = cr_tensor_elems(x);
    const float             M = (float)(v->a.bn.count + (mistake == FINISHES_OTHER_COUNT)),
                *sums         = call->out[CR_OUT_conv_grad_grad_sums];
    float *dgamma = call->out[CR_OUT_conv_grad_dgamma], *dbeta = call->out[CR_OUT_conv_grad_dbeta];
    float *coeffs = call->out[CR_OUT_conv_grad_grad_coeffs];
    for (int64_t c = 0; c < C; c++) {
        const float mean = mean_rstd->value[c], rstd = mean_rstd->value[C + c], s = gamma->value[c] * rstd;
        const float G = sums[c] / M, X = sums[C + c] / M;
        const float last = (float)cr_number_load(x->dtype, call->out[CR_OUT_conv_grad_dx], n - C + c);
        dbeta[c]         = sums[c] - (mistake == FINISHES_BEFORE_LAST ? last : 0) + (v->a.bn.accumulate ? dbeta[c] : 0);
        dgamma[c]        = sums[C + c] + (v->a.bn.accumulate ? dgamma[c] : 0);
        coeffs[c]        = s;
        coeffs[C + c]    = -s * rstd * X;
        coeffs[2 * C + c] = s * (mean * rstd * X - G);
    }
}

static cr_status grad_launch(struct cr_device *device, const struct cr_call *call) {
    struct grad v = {.a = call->op->attr.conv};
    cr_status   status;
    (void)device;
    CR_TRY_OUT(operands_open(call, v.in));
    CR_TRY_OUT(grad_dy(&v));
    CR_TRY_OUT(activate(&v.in[CR_IN_conv_grad_x], &v.in[CR_IN_conv_grad_scale_bias], &v.xa));
    grad_run(&v, call);
    if (v.in[CR_IN_conv_grad_gamma].t) grad_finish(&v, call);
out:
    cr_free(v.dy.value);
    cr_free(v.xa.value);
    operands_close(v.in);
    return status;
}

/* ---- the table ---- */

static bool is_half(const struct cr_program *p) {
    return p->real == CR_F16 || p->real == CR_BF16;
}
/* The kernels of this file do not know the slots of BN statistics from Gram matrices, and no shortcut as summand. */
static bool slots_are_known(const struct cr_op *op) {
    return op->kind == CR_OP_conv ? op->in[CR_IN_conv_out_scale_bias] < 0 && op->out[CR_OUT_conv_mask] < 0
                                  : op->in[CR_IN_conv_grad_y] < 0 && !op->attr.conv.add_pad_c;
}
static bool accepts_f32(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->real == CR_F32 && slots_are_known(op);
}
static bool accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->real == CR_F16 && slots_are_known(op);
}
static bool accepts_half(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return is_half(p) && slots_are_known(op);
}

static const struct {
    struct cr_kernel kernel;
    enum mistake     mistake;
    unsigned         relaxations;
} kernels[] = {
    {CHECKOPS_KERNEL("good.fused_conv", conv, F32, accepts_f32, conv_launch), NONE, 0},
    {CHECKOPS_KERNEL("good.fused_conv_half", conv, F32, accepts_half, conv_launch), NONE, 0},
    {CHECKOPS_KERNEL("good.fused_grad", conv_grad, F32, accepts_f32, grad_launch), NONE, 0},
    {CHECKOPS_KERNEL("good.fused_grad_half", conv_grad, F32, accepts_half, grad_launch), NONE, 0},
    {CHECKOPS_KERNEL("bad.activates_padding", conv, F32, accepts_f32, conv_launch), ACTIVATES_PADDING, 0},
    {CHECKOPS_KERNEL("bad.activates_padding_half", conv, F16, accepts_f16, conv_launch), ACTIVATES_PADDING, 0},
    {CHECKOPS_KERNEL("bad.truncates_act", conv, F16, accepts_f16, conv_launch), ROUNDS_ACT_DOWN, 0},
    {CHECKOPS_KERNEL("bad.forgets_last_pixel", conv, F16, accepts_f16, conv_launch), FORGETS_LAST_PIXEL, 0},
    {CHECKOPS_KERNEL("bad.forgets_last_of_grad", conv_grad, F16, accepts_f16, grad_launch), FORGETS_LAST_PIXEL, 0},
    {CHECKOPS_KERNEL("bad.sums_before_add", conv_grad, F16, accepts_f16, grad_launch), SUMS_BEFORE_ADD, 0},
    {CHECKOPS_KERNEL("bad.passes_at_zero", conv_grad, F16, accepts_f16, grad_launch), PASSES_AT_ZERO, 0},
    {CHECKOPS_KERNEL("bad.reads_other_input", conv_grad, F16, accepts_f16, grad_launch), READS_OTHER_INPUT, 0},
    {CHECKOPS_KERNEL("bad.reads_raw_input", conv_grad, F16, accepts_f16, grad_launch), READS_RAW_INPUT, 0},
    {CHECKOPS_KERNEL("bad.forgets_offset", conv_grad, F16, accepts_f16, grad_launch), FORGETS_OFFSET, 0},
    {CHECKOPS_KERNEL("bad.finishes_biased", conv, F16, accepts_f16, conv_launch), FINISHES_BIASED, 0},
    {CHECKOPS_KERNEL("bad.finishes_other_count", conv, F16, accepts_f16, conv_launch), FINISHES_OTHER_COUNT, 0},
    {CHECKOPS_KERNEL("bad.finishes_other_count_of_grad", conv_grad, F16, accepts_f16, grad_launch),
     FINISHES_OTHER_COUNT, 0},
    {CHECKOPS_KERNEL("bad.finishes_before_last", conv_grad, F16, accepts_f16, grad_launch), FINISHES_BEFORE_LAST, 0},
    {CHECKOPS_KERNEL("bad.rounds_bias", conv, F16, accepts_f16, conv_launch), HALF_BIAS, 0},
    {CHECKOPS_KERNEL("bad.rounds_before_add", conv, F16, accepts_f16, conv_launch), ROUNDS_SUM, 0},
    {CHECKOPS_KERNEL("bad.drops_nan", conv, F32, accepts_f32, conv_launch), DROPS_NAN, 0},
    {CHECKOPS_KERNEL("good.rounds_bias", conv, F16, accepts_f16, conv_launch), HALF_BIAS, CR_RELAXED_HALF_BIAS},
    {CHECKOPS_KERNEL("good.rounds_before_add", conv, F16, accepts_f16, conv_launch), ROUNDS_SUM,
     CR_RELAXED_ROUNDED_SUM},
    {CHECKOPS_KERNEL("good.drops_nan", conv, F32, accepts_f32, conv_launch), DROPS_NAN, CR_RELAXED_NAN_RELU},
    {CHECKOPS_KERNEL("bad.coarse_bias", conv, F16, accepts_f16, conv_launch), COARSE_BIAS,
     CR_RELAXED_HALF_BIAS | CR_RELAXED_ROUNDED_SUM},
};

int checkops_selftest_fused(checkops_blames *blames, void *self) {
    int missed = 0;
    for (size_t i = 0; i < CR_COUNT(kernels); i++) {
        struct cr_kernel kernel = kernels[i].kernel;
        kernel.relaxations      = kernels[i].relaxations;
        mistake                 = kernels[i].mistake;
        missed += !blames(self, &kernel);
    }
    return missed;
}
