/* verification/compare.c: compares outputs with the FP64 reference within the error bound. */
#include "verification/bound.h"

#include <float.h>
#include <math.h>

/* Comparison of one element. */
struct difference {
    double bound, ratio; /* ratio of the difference to the bound; correct if at most 1 */
    bool   nonfinite;    /* exactly one side is finite */
};

/* Returns whether x becomes infinite when it is rounded to dtype. */
static bool overflows_to(enum cr_dtype dtype, double x) {
    const double top = cr_verify_largest(dtype);
    return x >= top + cr_verify_half_ulp(dtype, top);
}

/* Factors of the bound that all elements of an output share. */
struct bound_factors {
    const struct cr_verify_expected *expected;
    int                              slot;
    enum cr_dtype                    dtype;  /* of the tensor */
    enum cr_dtype                    result; /* 16-bit type to which a sum may be rounded first; F64: none */
    double                           by_scale, by_want, by_noise, by_pull, tiny, limit;
    bool                             rounds_twice, drops_nan;
};

/* Ops that libraries do not have: their sums are not rounded to 16 bits in between. */
static bool sums_in_f32(const struct cr_op *op) {
    return op->kind == CR_OP_gram || (op->kind == CR_OP_conv_wgrad && op->out[CR_OUT_conv_wgrad_dy_sums] >= 0);
}

static struct bound_factors bound_factors_of(const struct cr_verify_expected *expected, int slot) {
    const struct cr_verify_unit *u      = cr_verify_unit(expected->math);
    const enum cr_dtype          dtype  = expected->program->tensor[expected->op->out[slot]].dtype;
    const bool                   is_f64 = expected->math == CR_MATH_F64;
    const double                 n = expected->terms[slot], value_terms = expected->noise_terms[slot];
    if (expected->noise[slot]) { /* sums of just computed values use plain arithmetic and wide types */
        const double sum = is_f64 ? u->sum : cr_verify_unit(CR_MATH_F32)->sum;
        return (struct bound_factors){.expected = expected,
                                      .slot     = slot,
                                      .dtype    = dtype,
                                      .result   = CR_F64,
                                      .by_scale = CR_VERIFY_C * sum * sqrt(n),
                                      .by_noise = CR_VERIFY_C * u->sum * sqrt(value_terms) + u->operand,
                                      .by_pull  = u->drift * value_terms + u->operand,
                                      .tiny     = is_f64 ? 0 : expected->tiny[slot],
                                      .limit    = is_f64 ? DBL_MAX : (double)FLT_MAX};
    }
    return (struct bound_factors){
        .expected = expected,
        .slot     = slot,
        .dtype    = dtype,
        .result   = u->result == dtype || sums_in_f32(expected->op) ? CR_F64 : u->result,
        .by_scale = CR_VERIFY_C * u->sum * sqrt(n) + u->operand,
        .by_want  = u->drift * n,
        .tiny     = is_f64 ? 0 : expected->tiny[slot],
        .limit    = is_f64 ? DBL_MAX : (double)FLT_MAX,
        /* cr_number_store rounds FP64 to f32 and then to 16 bits */
        .rounds_twice = is_f64 && (dtype == CR_F16 || dtype == CR_BF16),
        .drops_nan    = (expected->relaxations & CR_RELAXED_NAN_RELU) && expected->op->kind == CR_OP_conv &&
                     expected->op->attr.conv.relu,
    };
}

/* Error of an element before it is rounded to the type of the output. *overflows: an intermediate value may become
 * infinite. */
static double error_of(const struct bound_factors *g, int64_t i, bool *overflows) {
    const double want = g->expected->want[g->slot][i], A = g->expected->scale[g->slot][i];
    double       error = g->by_scale * A + g->by_want * fabs(want);
    if (g->expected->slack[g->slot]) error += g->expected->slack[g->slot][i];
    if (g->expected->noise[g->slot])
        error += g->by_noise * g->expected->noise[g->slot][i] + g->by_pull * g->expected->pull[g->slot][i];
    /* Elements with A = 0 (not updated, or counters) may not change by underflow either. */
    if (A > 0 || !is_real(g->dtype)) error += g->tiny;
    if (g->rounds_twice) error += cr_verify_half_ulp(CR_F32, fabs(want));
    *overflows = A * g->expected->peak >= g->limit;
    if (g->result == CR_F64 || A == 0) return error;
    const double *before = g->expected->before[g->slot];
    const double  sum    = fabs(want - (before ? before[i] : 0)) + error;
    *overflows           = *overflows || overflows_to(g->result, sum);
    return error + cr_verify_half_ulp(g->result, sum);
}

double cr_verify_error(const struct cr_verify_expected *expected, int slot, int64_t i, bool *any) {
    const struct bound_factors g     = bound_factors_of(expected, slot);
    const double               other = expected->alternative[slot] ? expected->alternative[slot][i] : NAN,
                 apart               = fabs(other - expected->want[slot][i]);
    const double error               = error_of(&g, i, any) + (isfinite(apart) ? apart : 0),
                 top                 = fabs(expected->want[slot][i]) + error;
    *any = *any || expected->scale[slot][i] == CR_VERIFY_UNUSED || overflows_to(g.dtype, top);
    return error + cr_verify_half_ulp(g.dtype, top);
}

/* The correct value to compare with. If there are two correct values, the nearer value. */
static double nearest_correct(const struct bound_factors *g, int64_t i, double got) {
    const double want  = g->expected->want[g->slot][i],
                 other = g->expected->alternative[g->slot] ? g->expected->alternative[g->slot][i] : NAN;
    if (isnan(other) || !isfinite(got)) return want;
    return !isfinite(want) || fabs(got - other) < fabs(got - want) ? other : want;
}

static struct difference compare(const struct bound_factors *g, int64_t i, double got) {
    const double      want = nearest_correct(g, i, got);
    struct difference j    = {0};
    if (got == want || (isnan(got) && isnan(want)) || g->expected->scale[g->slot][i] == CR_VERIFY_UNUSED) return j;
    if (isnan(got) && g->expected->spreads) return j;
    if (got == 0 && g->drops_nan && (isnan(want) || g->expected->spreads)) return j; /* a ReLU replaced a NaN by 0 */
    if (g->expected->bits[g->slot]) {
        const unsigned ignored = (unsigned)g->expected->slack[g->slot][i];
        j.ratio                = ((unsigned)got ^ (unsigned)want) & ~ignored ? INFINITY : 0;
        return j;
    }
    if (!g->expected->exact) {
        bool         overflows;
        const double error = error_of(g, i, &overflows), top = fabs(want) + error;
        j.bound = error + cr_verify_half_ulp(g->dtype, top);
        if (isfinite(want) && !isfinite(got) && (overflows || overflows_to(g->dtype, top))) return j;
    }
    j.nonfinite = isfinite(got) != isfinite(want);
    if (!isfinite(got) || !isfinite(want))
        j.ratio = INFINITY;
    else
        j.ratio = j.bound > 0 ? fabs(got - want) / j.bound : INFINITY;
    return j;
}

void cr_verify_compare(const struct cr_verify_expected *expected, const void *const got[],
                       struct cr_verify_result *out) {
    struct cr_verify_result r = {.ok = true};
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (!expected->elems[s]) continue;
        const struct bound_factors g = bound_factors_of(expected, s);
        for (int64_t i = 0; i < expected->elems[s]; i++) {
            const double            x = cr_number_load(g.dtype, got[s], i);
            const struct difference j = compare(&g, i, x);
            r.nonfinite += j.nonfinite;
            if (!(j.ratio > r.worst)) continue;
            r.ok    = j.ratio <= 1 && r.ok;
            r.worst = j.ratio;
            r.slot  = s;
            r.index = i;
            r.got   = x;
            r.want  = nearest_correct(&g, i, x);
            r.bound = j.bound;
        }
    }
    *out = r;
}
