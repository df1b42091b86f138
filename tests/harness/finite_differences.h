/* tests/harness/finite_differences.h: checks backward ops by finite differences. A scalar loss L is computed from the
 * output of the forward ops. The derivative of L by an element of an input is computed from four more runs of the
 * forward ops and compared with the gradient of the backward ops.
 *
 * The derivative is the five-point formula (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h. Its rounding error is the
 * rounding error of L, eps * A, divided by h, where A is the sum of |terms| of L; the factor 1024 covers the roundings
 * that produce the terms. The second-order formula has the error T = (D(2h) - D(h)) / 3, so the fourth-order formula
 * has an error of about T * (h/length)^2: a thousandth of T is a safe bound. With h = 1e-3 the bound is about 1e-9, and
 * a wrong term causes an error above 1e-3. Where a ReLU or a maximum changes sides between the runs, L is not
 * differentiable and the element is skipped. */
#ifndef CR_TEST_REF_FD_H
#define CR_TEST_REF_FD_H

#include "tests/harness/reference_run.h"

#include <float.h>

struct fd {
    struct ref_run *run;
    int             forward_ops; /* the forward ops are the first ops of the program; the backward ops follow */
    int             y;           /* L = sum of weight * y, or the mean loss when y is f64[4] metrics */
    int             dy;     /* tensor of the weights, the gradient that the backward ops read; CR_NONE for metrics */
    double          factor; /* scale of the gradients, e.g. the loss scale; 0 selects 1 */
    /* step size; 0 selects 1e-3. Networks with many ReLUs need a smaller step, or most elements are skipped */
    double  h;
    int64_t compared, kinks;
};

/* Runs everything once: forward, then backward with the weights of L as dy. */
static inline bool fd_run(const struct fd *f) {
    struct ref_run *run = f->run;
    if (ref_exec(run, 0, run->p.ops) == CR_OK) return true;
    TEST_FAIL_("run: %s", cr_error_message());
    return false;
}

static inline double fd_value(const struct fd *f, double *terms) {
    double L = 0;
    *terms   = 0;
    if (f->dy == CR_NONE) {
        L      = ref_at(f->run, f->y, 0) / ref_at(f->run, f->y, 1);
        *terms = fabs(L) + 1;
        return L;
    }
    for (int64_t i = 0; i < cr_tensor_elems(&f->run->p.tensor[f->y]); i++) {
        double term = ref_at(f->run, f->dy, i) * ref_at(f->run, f->y, i);
        L += term;
        *terms += fabs(term);
    }
    return L;
}

/* Hash of the side that every ReLU and every maximum took. */
static inline uint64_t fd_sides(const struct fd *f) {
    uint64_t hash = 1469598103934665603u;
    for (int k = 0; k < f->forward_ops; k++) {
        const struct cr_op *op   = &f->run->p.op[k];
        bool                relu = op->kind == CR_OP_relu || (op->kind == CR_OP_bn_apply && op->attr.bn.relu);
        int                 t = relu ? op->out[0] : op->kind == CR_OP_maxpool ? op->out[CR_OUT_maxpool_index] : CR_NONE;
        for (int64_t i = 0; t >= 0 && i < cr_tensor_elems(&f->run->p.tensor[t]); i++) {
            uint64_t side = relu ? ref_at(f->run, t, i) > 0 : (uint64_t)ref_at(f->run, t, i);
            hash          = (hash ^ side) * 1099511628211u;
        }
    }
    return hash;
}

static inline double fd_moved(struct fd *f, int x, int64_t i, double value, double *terms, uint64_t *sides) {
    ref_set(f->run, x, i, value);
    if (ref_exec(f->run, 0, f->forward_ops) != CR_OK) return NAN;
    *sides = fd_sides(f);
    return fd_value(f, terms);
}

static inline void fd_element(struct fd *f, int x, int64_t i, double claimed, uint64_t base_sides, const char *name) {
    const double old = ref_at(f->run, x, i), h = f->h > 0 ? f->h : 1e-3, move[4] = {h, -h, 2 * h, -2 * h};
    double       L[4], terms = 0;
    bool         kink = false;
    for (int k = 0; k < 4; k++) {
        uint64_t sides = 0;
        L[k]           = fd_moved(f, x, i, old + move[k], &terms, &sides);
        kink |= sides != base_sides;
    }
    ref_set(f->run, x, i, old);
    f->kinks += kink;
    if (kink) return;
    f->compared++;
    double near = (L[0] - L[1]) / (2 * h), wide = (L[2] - L[3]) / (4 * h), T = fabs(wide - near) / 3;
    double factor = f->factor != 0 ? f->factor : 1, want = factor * (4 * near - wide) / 3;
    double bound = fabs(factor) * (1024 * DBL_EPSILON * terms / h + 1e-3 * T);
    if (!(bound < 1e-4 * fabs(factor) * (terms + fabs(want))))
        TEST_FAIL_("%s[%lld]: the bound %.3g is too wide", name, (long long)i, bound);
    if (!(fabs(claimed - want) <= bound))
        TEST_FAIL_("%s[%lld]: gradient %.12g, finite difference %.12g, bound %.3g", name, (long long)i, claimed, want,
                   bound);
}

/* Compares every `every`-th element of dx, the gradient of x. The program must have run with the current leaves. */
static inline void fd_check(struct fd *f, int x, int dx, int every) {
    struct ref_run *run     = f->run;
    const int64_t   n       = cr_tensor_elems(&run->p.tensor[x]);
    OWNED(doubles)  claimed = cr_alloc((size_t)n, sizeof *claimed);
    REQUIRE(claimed && cr_tensor_elems(&run->p.tensor[dx]) == n);
    for (int64_t i = 0; i < n; i++) claimed[i] = ref_at(run, dx, i);
    if (ref_exec(run, 0, f->forward_ops) != CR_OK) TEST_FAIL_("forward ops: %s", cr_error_message());
    uint64_t sides = fd_sides(f);
    for (int64_t i = 0; i < n; i += every) fd_element(f, x, i, claimed[i], sides, run->p.tensor[dx].name);
    if (ref_exec(run, 0, f->forward_ops) != CR_OK) TEST_FAIL_("forward ops: %s", cr_error_message());
}

/* Most elements must have been compared. */
static inline void fd_finish(const struct fd *f) {
    CHECK(f->compared > 0);
    if (f->kinks * 5 > f->compared)
        TEST_FAIL_("%lld kinks, only %lld elements compared", (long long)f->kinks, (long long)f->compared);
}

#endif
