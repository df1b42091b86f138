/* verification/cases.c: bounds of fused ops, part 2: ReLU masks of gradients, and bit masks as outputs. */
#include "verification/bound.h"

#include <float.h>
#include <math.h>

struct cr_verify_mask cr_verify_mask_of(const struct cr_verify_values *v, int x, int y, int scale_bias) {
    struct cr_verify_mask g = {.slot   = x,
                               .x      = v->in[x],
                               .C      = tensor_of(v->original, v->op->in[x])->dim[3],
                               .is_f64 = tensor_of(v->original, v->op->in[x])->dtype == CR_F64};
    if (scale_bias >= 0 && v->op->in[scale_bias] >= 0) g.scale_bias = v->in[scale_bias];
    if (y < 0 || v->op->in[y] < 0) return g;
    if (tensor_of(v->original, v->op->in[y])->dtype == CR_U8)
        g.bits = v->in[y];
    else
        g.y = v->in[y];
    return g;
}

/* The mask bit of a pre-activation with this possible error. */
static enum cr_verify_mask_bit sign(double pre, double error) {
    if (fabs(pre) <= error && error > 0) return CR_VERIFY_UNSURE;
    return pre > 0 ? CR_VERIFY_PASSED : CR_VERIFY_MASKED;
}

/* A kernel may compute (x - mean)*rstd*gamma + beta directly, or compute scale and bias first. */
static enum cr_verify_mask_bit bn_mask_bit(const struct cr_verify_mask *g, int64_t i, int64_t c) {
    const double mean = g->mean_rstd[c], rstd = g->mean_rstd[g->C + c], d = g->x[i] - mean, scale = rstd * g->gamma[c];
    const double pre = d * rstd * g->gamma[c] + g->beta[c], bias = g->beta[c] - mean * scale;
    const bool   exact = is_float(d) && is_float(d * rstd) && is_float(d * rstd * g->gamma[c]) && is_float(pre) &&
                       is_float(scale) && is_float(d * scale) && is_float(mean * scale) && is_float(bias) &&
                       is_float(g->x[i] * scale);
    const double size = (fabs(g->x[i]) + fabs(mean)) * fabs(scale) + fabs(g->beta[c]);
    return sign(pre, g->is_f64 || exact ? 0 : 2 * CR_VERIFY_AFFINE * size + (double)FLT_MIN);
}

enum cr_verify_mask_bit cr_verify_mask_bit_at(const struct cr_verify_mask *g, int64_t i, int64_t c) {
    if (g->bits) return g->bits[i / 8] >> (i % 8) & 1 ? CR_VERIFY_PASSED : CR_VERIFY_MASKED;
    if (g->y) return g->y[i] > 0 ? CR_VERIFY_PASSED : CR_VERIFY_MASKED;
    if (g->scale_bias) {
        const double scale = g->scale_bias[c], bias = g->scale_bias[g->C + c];
        return sign(g->x[i] * scale + bias, g->is_f64 ? 0 : cr_verify_affine_error(g->x[i], scale, bias));
    }
    return g->gamma ? bn_mask_bit(g, i, c) : CR_VERIFY_PASSED;
}

cr_status cr_verify_apply_mask(const struct cr_verify_mask *g, struct cr_verify_expected *e, int slot) {
    CR_TRY(cr_verify_array(e, slot, e->slack));
    CR_TRY(cr_verify_alternatives(e, slot));
    double *want = e->want[slot], *A = e->scale[slot], *slack = e->slack[slot];
    for (int64_t i = 0; i < e->elems[slot]; i++) {
        const enum cr_verify_mask_bit bit = cr_verify_mask_bit_at(g, i, i % g->C);
        if (bit == CR_VERIFY_PASSED) continue;
        if (bit == CR_VERIFY_UNSURE)
            e->alternative[slot][i] = 0;
        else
            want[i] = A[i] = slack[i] = 0;
    }
    return CR_OK;
}

/* ---- BN gradients: g is dy, or the gradient of a max-pool, where the ReLU mask passes it ---- */

/* Gradient of a max-pool before the mask. */
struct pooled {
    double *g;        /* magnitudes */
    double *rounding; /* error where several windows overlap and g is rounded to the program's type after each of them,
                         as maxpool_grad does, in any order: a sum of some windows is at most the sum of all */
};

static void pooled_free(struct pooled *p) {
    cr_free(p->g);
    cr_free(p->rounding);
}

static cr_status pooled_make(const struct cr_verify_values *v, int dy, int index, int x, struct pooled *out) {
    const struct cr_conv_attr *a  = &v->op->attr.conv;
    const struct cr_tensor    *tx = tensor_of(v->original, v->op->in[x]), *ty = tensor_of(v->original, v->op->in[dy]);
    const int64_t              C = tx->dim[3], P = ty->dim[1], Q = ty->dim[2], n = cr_tensor_elems(ty);
    const double              *d   = v->in[dy];
    const uint8_t             *tap = v->in[index];
    CR_ALLOC(out->g, (size_t)cr_tensor_elems(tx));
    CR_ALLOC(out->rounding, (size_t)cr_tensor_elems(tx));
    for (int64_t i = 0; i < n; i++) {
        const int64_t h = i / C / Q % P * a->stride - a->pad + tap[i] / a->window,
                      w = i / C % Q * a->stride - a->pad + tap[i] % a->window;
        if (h < 0 || h >= tx->dim[1] || w < 0 || w >= tx->dim[2]) continue;
        const int64_t at = ((i / C / Q / P * tx->dim[1] + h) * tx->dim[2] + w) * C + i % C;
        if (out->g[at] > 0) out->rounding[at]++;
        out->g[at] += fabs(d[i]);
    }
    for (int64_t i = 0; i < cr_tensor_elems(tx); i++)
        out->rounding[i] *= ty->dtype == CR_F64 ? 0 : cr_verify_half_ulp(ty->dtype, out->g[i]);
    return CR_OK;
}

static cr_status grad_sums(const struct cr_verify_values *v, struct cr_verify_expected *e,
                           const struct cr_verify_mask *g, const double *G, const double *mean_rstd) {
    const int64_t C = g->C, n = cr_tensor_elems(tensor_of(v->original, v->op->in[g->slot]));
    CR_TRY(cr_verify_array(e, 0, e->slack));
    for (int64_t i = 0; i < n; i++) {
        const int64_t                 c   = i % C;
        const enum cr_verify_mask_bit bit = cr_verify_mask_bit_at(g, i, c);
        const double size = fabs(G[i]), factor = (fabs(g->x[i]) + fabs(mean_rstd[c])) * fabs(mean_rstd[C + c]);
        if (bit == CR_VERIFY_MASKED) continue;
        e->scale[0][c] += size;
        e->scale[0][C + c] += size * factor;
        if (bit != CR_VERIFY_UNSURE) continue;
        e->slack[0][c] += size;
        e->slack[0][C + c] += size * factor;
    }
    for (int64_t c = 0; c < 2 * C; c++) {
        e->scale[0][c] = or_zero(e->scale[0][c]);
        e->slack[0][c] = or_zero(e->slack[0][c]);
    }
    return CR_OK;
}

/* magnitudes: G holds magnitudes, so the alternative value is not known and the difference becomes slack. */
static cr_status grad_apply(const struct cr_verify_values *v, struct cr_verify_expected *e,
                            const struct cr_verify_mask *g, const double *G, bool magnitudes, const double *coeffs) {
    const int64_t C = g->C, n = cr_tensor_elems(tensor_of(v->original, v->op->in[g->slot]));
    CR_TRY(cr_verify_array(e, 0, e->slack));
    CR_TRY(cr_verify_alternatives(e, 0));
    for (int64_t i = 0; i < n; i++) {
        const int64_t                 c   = i % C;
        const enum cr_verify_mask_bit bit = cr_verify_mask_bit_at(g, i, c);
        const double part = bit == CR_VERIFY_MASKED ? 0 : coeffs[c] * G[i], linear = coeffs[C + c] * g->x[i],
                     size = fabs(part);
        e->scale[0][i]    = or_zero(size + fabs(linear) + fabs(coeffs[2 * C + c]));
        if (bit != CR_VERIFY_UNSURE) continue;
        const double closed = linear + coeffs[2 * C + c], open = closed + part;
        if (isfinite(open) && !magnitudes)
            e->alternative[0][i] = fabs(e->want[0][i] - open) < fabs(e->want[0][i] - closed) ? closed : open;
        else
            e->slack[0][i] = or_zero(size);
    }
    return CR_OK;
}

cr_status cr_verify_epilogue_bn_grad_sums(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const struct cr_verify_mask g =
        cr_verify_mask_of(v, CR_IN_bn_grad_sums_x, CR_IN_bn_grad_sums_y, CR_IN_bn_grad_sums_scale_bias);
    return grad_sums(v, e, &g, v->in[CR_IN_bn_grad_sums_dy], v->in[CR_IN_bn_grad_sums_mean_rstd]);
}

cr_status cr_verify_epilogue_bn_grad_apply(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const struct cr_verify_mask g =
        cr_verify_mask_of(v, CR_IN_bn_grad_apply_x, CR_IN_bn_grad_apply_y, CR_IN_bn_grad_apply_scale_bias);
    return grad_apply(v, e, &g, v->in[CR_IN_bn_grad_apply_dy], false, v->in[CR_IN_bn_grad_apply_coeffs]);
}

cr_status cr_verify_epilogue_pool_bn_grad_sums(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const struct cr_verify_mask g =
        cr_verify_mask_of(v, CR_IN_pool_bn_grad_sums_x, CR_NONE, CR_IN_pool_bn_grad_sums_scale_bias);
    struct pooled p = {0};
    cr_status     status;
    CR_TRY_OUT(
        pooled_make(v, CR_IN_pool_bn_grad_sums_dy, CR_IN_pool_bn_grad_sums_index, CR_IN_pool_bn_grad_sums_x, &p));
    CR_TRY_OUT(grad_sums(v, e, &g, p.g, v->in[CR_IN_pool_bn_grad_sums_mean_rstd]));
    const int64_t n = cr_tensor_elems(tensor_of(v->original, v->op->in[g.slot]));
    for (int64_t i = 0; i < n; i++) /* a kernel that iterates over windows never reads a pixel that no window chose */
        if (p.g[i] == 0 && !isfinite(g.x[i])) e->scale[0][g.C + i % g.C] = CR_VERIFY_UNUSED;
out:
    pooled_free(&p);
    return status;
}

cr_status cr_verify_epilogue_pool_bn_grad_apply(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const struct cr_verify_mask g =
        cr_verify_mask_of(v, CR_IN_pool_bn_grad_apply_x, CR_NONE, CR_IN_pool_bn_grad_apply_scale_bias);
    struct pooled p = {0};
    cr_status     status;
    CR_TRY_OUT(
        pooled_make(v, CR_IN_pool_bn_grad_apply_dy, CR_IN_pool_bn_grad_apply_index, CR_IN_pool_bn_grad_apply_x, &p));
    CR_TRY_OUT(grad_apply(v, e, &g, p.g, true, v->in[CR_IN_pool_bn_grad_apply_coeffs]));
    const double       *coeffs = v->in[CR_IN_pool_bn_grad_apply_coeffs];
    const enum cr_dtype dtype  = tensor_of(v->original, v->op->in[CR_IN_pool_bn_grad_apply_dy])->dtype;
    for (int64_t i = 0; i < e->elems[0]; i++) {
        e->slack[0][i] += or_zero(fabs(coeffs[i % g.C]) * p.rounding[i]);
        if (p.rounding[i] > 0 && p.g[i] + p.rounding[i] >= cr_verify_largest(dtype)) e->scale[0][i] = CR_VERIFY_UNUSED;
    }
out:
    pooled_free(&p);
    return status;
}

/* ---- the bit mask of bn_apply ---- */

/* Returns whether the sum of these terms is exact in f32. The terms are those of x*scale + bias + add in the order of
 * bn_apply. */
static bool apply_is_exact(const double term[4]) {
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        sum += term[k];
        if (!is_float(term[k]) || !is_float(sum)) return false;
    }
    return true;
}

static enum cr_verify_mask_bit apply_sign(const struct cr_verify_values *v, int64_t i, int64_t c, int64_t C) {
    const int    *in = v->op->in;
    const double *x = v->in[CR_IN_bn_apply_x], *k = v->in[CR_IN_bn_apply_scale_bias], *add = v->in[CR_IN_bn_apply_add],
                 *ak = v->in[CR_IN_bn_apply_add_scale_bias];
    double term[4]   = {x[i] * k[c], k[C + c], 0, 0};
    if (in[CR_IN_bn_apply_add] >= 0) term[2] = in[CR_IN_bn_apply_add_scale_bias] >= 0 ? add[i] * ak[c] : add[i];
    if (in[CR_IN_bn_apply_add] >= 0 && in[CR_IN_bn_apply_add_scale_bias] >= 0) term[3] = ak[C + c];
    const double pre = term[0] + term[1] + term[2] + term[3];
    if (tensor_of(v->original, in[CR_IN_bn_apply_x])->dtype == CR_F64 || apply_is_exact(term)) return sign(pre, 0);
    /* a value above 0 that rounds to 0 may have its bit set or not */
    const double size = fabs(term[0]) + fabs(term[1]) + fabs(term[2]) + fabs(term[3]);
    return sign(pre, 2 * CR_VERIFY_AFFINE * size +
                         cr_verify_half_ulp(tensor_of(v->original, in[CR_IN_bn_apply_x])->dtype, 0) + (double)FLT_MIN);
}

/* slack holds the bits that are not compared. */
cr_status cr_verify_epilogue_bn_apply(const struct cr_verify_values *v, struct cr_verify_expected *e) {
    const int slot = CR_OUT_bn_apply_mask;
    if (v->op->out[slot] < 0) return CR_OK;
    const int64_t C = tensor_of(v->original, v->op->in[CR_IN_bn_apply_x])->dim[3];
    CR_TRY(cr_verify_array(e, slot, e->slack));
    e->bits[slot] = true;
    for (int64_t i = 0; i < 8 * e->elems[slot]; i++)
        if (apply_sign(v, i, i % C, C) == CR_VERIFY_UNSURE) e->slack[slot][i / 8] += (double)(1u << i % 8);
    return CR_OK;
}
