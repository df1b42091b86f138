/* verification/muon.c: the error bound of the op muon_direction. */
#include "graph/muon.h"
#include "verification/bound.h"

/* The iteration multiplies the error of a small singular value by up to 3.4445^5 = 485, and the errors of its own
 * roundings by smaller powers of 3.4445, but it reduces errors of singular values near 1. A bound from these factors
 * alone would be larger than the result for 16-bit products. So the iteration runs here again in FP64 with all matrices
 * rounded to the type that the kernel multiplies (f16 for kernels of TF32, which has the same number of fraction bits).
 * Its largest difference from the exact result estimates the error of the filter, because it adds the effects of
 * thousands of roundings, and each is as large as a rounding of the kernel. `least` is a few roundings of the result.
 * It is for filters in which no rounding loses anything. Kernels of F32 round their sums too, with an error that grows
 * with the root of the number of terms. */
struct rounded {
    enum cr_dtype type; /* of X, A, A A and b A + c A A */
    int64_t       rows, columns;
    double       *x, *next, *a, *p, *q, *t, *square;
};

static double round_to(const struct rounded *r, double x) {
    return r->type == CR_F64 ? x : cr_verify_stored(r->type, x);
}

/* out = first * second, or with `across` first * second', rounded. `first` is a matrix of `depth` columns. */
static void product(const struct rounded *r, const double *first, const double *second, int64_t depth, int64_t width,
                    bool across, double *out) {
    for (int64_t i = 0; i < r->rows; i++)
        for (int64_t j = 0; j < width; j++) {
            double sum = 0;
            for (int64_t k = 0; k < depth; k++)
                sum += first[i * depth + k] * (across ? second[j * depth + k] : second[k * width + j]);
            out[i * width + j] = round_to(r, sum);
        }
}

static void exchange(double **a, double **b) {
    double *old = *a;
    *a = *b, *b = old;
}

/* p = a I + b A + c A A */
static void make_polynomial(const struct rounded *r, double *p) {
    product(r, r->a, r->a, r->rows, r->rows, false, r->square);
    for (int64_t i = 0; i < r->rows * r->rows; i++)
        p[i] = round_to(r, CR_MUON_B * r->a[i] + CR_MUON_C * r->square[i] + (i % (r->rows + 1) == 0 ? CR_MUON_A : 0));
}

/* `count` iterations. Kernels of F32 may compute A as P A P and multiply X by the product q of all P. */
static void iterate(struct rounded *r, int count) {
    const int64_t m = r->rows;
    product(r, r->x, r->x, r->columns, m, true, r->a);
    for (int i = 0; i < count; i++) {
        double *const p = i ? r->p : r->q;
        make_polynomial(r, p);
        if (i) {
            product(r, p, r->q, m, m, false, r->t);
            exchange(&r->q, &r->t);
        }
        if (i + 1 == count) break;
        product(r, p, r->a, m, m, false, r->t);
        product(r, r->t, p, m, m, false, r->a);
    }
    product(r, r->q, r->x, m, r->columns, false, r->next);
    exchange(&r->x, &r->next);
}

/* Element i of the matrix before the iteration. */
static double input_at(const struct cr_verify_values *v, int64_t i) {
    const double *grad = v->in[CR_IN_muon_direction_grad], *momentum = v->in[CR_IN_muon_direction_momentum],
                 *norm = v->in[CR_IN_muon_direction_norm], *state = v->in[CR_IN_muon_direction_state];
    const double mu   = (double)v->step->momentum;
    double       clip = 1;
    if (v->step->clip_norm > 0) clip = fmin(1, (double)v->step->clip_norm / (sqrt(norm[0]) + 1e-6));
    if (is_pruned(v, CR_IN_muon_direction_mask, i)) return 0;
    const double g = clip / state[CR_STATE_LOSS_SCALE] * grad[i], m = mu * momentum[i] + (1 - mu) * g;
    return v->op->attr.sgd.nesterov ? g + mu * (m - g) : m;
}

static int64_t place(const struct cr_param *q, int64_t i) {
    const int64_t K = q->dim[0], N = cr_muon_columns(q);
    return N < K ? i % N * K + i / N : i;
}

/* Largest difference from `want` if the iterations are done `group` at a time; *top: the largest magnitude. */
static double error_of_groups(const struct cr_verify_values *v, const struct cr_param *q, const double *want,
                              struct rounded *r, int group, double *top) {
    double squares = 0, off = 0;
    for (int64_t i = 0; i < q->elems; i++) {
        r->x[place(q, i)] = input_at(v, q->offset + i);
        squares += r->x[place(q, i)] * r->x[place(q, i)];
    }
    const double norm = fmax(sqrt(squares), CR_MUON_EPS);
    for (int64_t i = 0; i < q->elems; i++) r->x[i] = round_to(r, r->x[i] / norm);
    for (int done = 0; done < CR_MUON_ITERATIONS; done += group)
        iterate(r, (int)CR_MIN(group, CR_MUON_ITERATIONS - done));
    for (int64_t i = 0; i < q->elems; i++) {
        off  = fmax(off, fabs(r->x[place(q, i)] - want[q->offset + i]));
        *top = fmax(*top, fabs(want[q->offset + i]));
    }
    return off;
}

/* The largest error of an element of the filter: see above. */
static double error_of_filter(const struct cr_verify_values *v, const struct cr_param *q, const double *want,
                              struct rounded *r) {
    const bool wide = r->type == CR_F32 || r->type == CR_F64;
    double     top = 0, off = error_of_groups(v, q, want, r, 1, &top);
    if (wide) off = fmax(off, error_of_groups(v, q, want, r, 3, &top));
    const double least = r->type == CR_F64 ? 4 * 0x1p-53 * top : 4 * cr_verify_half_ulp(r->type, top);
    return CR_VERIFY_C * (wide ? sqrt((double)r->columns) : 1) * (off + least);
}

static enum cr_dtype product_type(enum cr_math math) {
    switch (math) {
    case CR_MATH_F64: return CR_F64;
    case CR_MATH_TF32:
    case CR_MATH_F16: return CR_F16;
    case CR_MATH_BF16: return CR_BF16;
    default: return CR_F32;
    }
}

cr_status cr_verify_epilogue_muon(const struct cr_verify_values *v, struct cr_verify_expected *expected) {
    const struct cr_param_store *store = v->program->store;
    const int                    y     = CR_OUT_muon_direction_y;
    if (in_at(v, CR_IN_muon_direction_norm, 1) != 0) return CR_OK;
    CR_TRY(cr_verify_array(expected, y, expected->slack));
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        if (!cr_muon_has_direction(q)) continue;
        struct rounded r       = {.type    = product_type(expected->math),
                                  .rows    = CR_MIN(q->dim[0], cr_muon_columns(q)),
                                  .columns = CR_MAX(q->dim[0], cr_muon_columns(q))};
        const int64_t  square  = r.rows * r.rows;
        double        *scratch = cr_alloc((size_t)(2 * q->elems + 5 * square), sizeof *scratch);
        if (!scratch) return CR_NO_MEMORY((size_t)q->elems * sizeof *scratch);
        r.x = scratch, r.next = r.x + q->elems, r.a = r.next + q->elems, r.square = r.a + square;
        r.p = r.square + square, r.q = r.p + square, r.t = r.q + square;
        const double error = error_of_filter(v, q, expected->want[y], &r);
        for (int64_t i = 0; i < q->elems; i++) expected->slack[y][q->offset + i] = error;
        cr_free(scratch);
    }
    return CR_OK;
}
