/* pruning/budget/two_bounds.c: a Lagrange multiplier on the second cost. See pruning/budget/two_bounds.h.
 *
 * For a multiplier m >= 0 the search finds the least loss + m * second within the budget. That value minus m * bound is
 * at most the loss of any choice within both bounds, so the largest one over m says how far the best choice found may
 * be from the least loss. Two choices enclose the bound, one on each side. The next m makes both equal; where the
 * search finds a third choice that is lower, it replaces one of the two (Handler and Zang, 1980). */
#include "pruning/budget/two_bounds.h"

#include <math.h>
#include <string.h>

enum { COARSE = 1 << 8, FINE = 1 << 12, FULL = 1 << 13 }; /* options of a list */
enum { COARSE_ROUNDS = 12, FINE_ROUNDS = 2 };
static const double near_enough = 1e-3; /* of the loss */
static const double same        = 2e-3; /* relative difference of multipliers that coarse rounds do not tell apart */

enum objective { LEAST_LOSS, LEAST_SECOND, LEAST_COST_WITHIN_SECOND };

struct point {
    double loss, second;
};
struct bounds {
    const struct cr_search_problem *problem;
    struct cr_search_problem        copy; /* its options have other costs and losses; the rest is borrowed */
    double                          budget, second;
    int                             options;     /* of a list */
    double                          multiplier;  /* of the last round */
    struct point                    over, under; /* choices above the second bound, and within it */
    struct cr_search_result         best;        /* the least loss within both bounds so far */
    double                          lower; /* by a fine search: no choice within both bounds loses less; 0: unknown */
    double                          gap;   /* the gap of that search */
};

/* ---- the copy ---- */

static size_t options_of(const struct cr_search_problem *p, const struct cr_search_factor *f) {
    size_t combinations = 1;
    for (int i = 0; i < f->variables; i++) combinations *= (size_t)p->values[f->variable[i]];
    return (size_t)f->first[combinations];
}

static cr_status open_copy(struct bounds *b) {
    const struct cr_search_problem *p = b->problem;
    b->copy                           = *p;
    b->copy.factor                    = NULL;
    CR_ALLOC(b->copy.factor, (size_t)p->factors + 1);
    for (int f = 0; f < p->factors; f++) {
        b->copy.factor[f]        = p->factor[f];
        b->copy.factor[f].option = NULL;
    }
    for (int f = 0; f < p->factors; f++) CR_ALLOC(b->copy.factor[f].option, options_of(p, &p->factor[f]));
    return CR_OK;
}

static void close_copy(struct bounds *b) {
    for (int f = 0; b->copy.factor && f < b->problem->factors; f++) cr_free(b->copy.factor[f].option);
    cr_free(b->copy.factor);
}

static void set_options(struct bounds *b, enum objective objective, double multiplier) {
    for (int f = 0; f < b->problem->factors; f++) {
        const struct cr_search_option *from  = b->problem->factor[f].option;
        struct cr_search_option       *to    = b->copy.factor[f].option;
        const size_t                   count = options_of(b->problem, &b->problem->factor[f]);
        memcpy(to, from, count * sizeof *to);
        for (size_t i = 0; i < count && objective == LEAST_LOSS; i++) to[i].loss += multiplier * from[i].second;
        for (size_t i = 0; i < count && objective != LEAST_LOSS; i++) to[i].loss = from[i].second;
        for (size_t i = 0; i < count && objective == LEAST_COST_WITHIN_SECOND; i++) {
            to[i].cost = from[i].second;
            to[i].loss = from[i].cost;
        }
    }
}

/* Searches the copy. The sums of *out are those of the given problem. */
static cr_status search(struct bounds *b, enum objective objective, double multiplier, struct cr_search_result *out) {
    const bool exchanged = objective == LEAST_COST_WITHIN_SECOND;
    set_options(b, objective, multiplier);
    CR_TRY(cr_search_within(&b->copy, exchanged ? b->second : b->budget, b->options, out));
    out->cost = out->loss = out->second = 0;
    if (exchanged) out->gap = 0;
    for (int f = 0; f < b->problem->factors; f++) {
        const struct cr_search_option *o = &b->problem->factor[f].option[out->option[f]];
        out->cost += o->cost;
        out->loss += o->loss;
        out->second += o->second;
    }
    return CR_OK;
}

/* ---- the search ---- */

static bool within(double value, double bound) {
    return value <= bound * (1 + 1e-12);
}

static void replace(struct cr_search_result *old, struct cr_search_result *new) {
    cr_search_free(old);
    *old = *new;
    *new = (struct cr_search_result){0};
}

/* One multiplier: the one at which `over` and `under` have the same value, which is an upper bound of the least value.
 * *done when no other choice has a smaller one. */
static cr_status step(struct bounds *b, bool *done) {
    struct cr_search_result r;
    const double            multiplier = (b->under.loss - b->over.loss) / (b->over.second - b->under.second);
    *done                              = true;
    if (!(multiplier > 0)) return CR_OK;
    const bool near  = b->options == COARSE && fabs(multiplier - b->multiplier) < same * multiplier;
    b->multiplier    = multiplier;
    cr_status status = search(b, LEAST_LOSS, multiplier, &r);
    if (status == CR_OK) {
        const double value  = r.loss + multiplier * r.second;
        const double before = b->over.loss + multiplier * b->over.second;
        const double lower  = value - multiplier * b->second;
        const bool   keeps  = within(r.second, b->second);
        *done               = near || value >= before * (1 - 1e-9);
        if (b->options == FINE && lower > b->lower) {
            b->lower = lower;
            b->gap   = r.gap;
        }
        *(keeps ? &b->under : &b->over) = (struct point){r.loss, r.second};
        if (keeps && r.loss < b->best.loss) replace(&b->best, &r);
    }
    cr_search_free(&r);
    return status;
}

static cr_status rounds(struct bounds *b, int options, int most) {
    bool done  = false;
    b->options = options;
    for (int i = 0; i < most && !done && b->best.loss - b->lower > near_enough * b->best.loss; i++)
        CR_TRY(step(b, &done));
    return CR_OK;
}

/* The least loss within the budget is above the second bound. */
static cr_status narrow(struct bounds *b) {
    b->options = FINE;
    CR_TRY(search(b, LEAST_SECOND, 0, &b->best));
    if (!within(b->best.second, b->second) || !within(b->best.cost, b->budget)) {
        cr_search_free(&b->best);
        return search(b, LEAST_COST_WITHIN_SECOND, 0, &b->best);
    }
    b->under = (struct point){b->best.loss, b->best.second};
    CR_TRY(rounds(b, COARSE, COARSE_ROUNDS));
    CR_TRY(rounds(b, FINE, FINE_ROUNDS));
    b->best.loss_gap = CR_MAX(b->best.loss - b->lower, 0);
    b->best.gap      = b->gap;
    return CR_OK;
}

cr_status cr_search_two(const struct cr_search_problem *problem, double budget, double second,
                        struct cr_search_result *out) {
    struct bounds b = {.problem = problem, .budget = budget, .second = second};
    cr_status     status;
    CR_TRY_OUT(open_copy(&b));
    for (b.options = isfinite(second) ? COARSE : FULL; b.options <= FULL; b.options *= FULL / COARSE) {
        cr_search_free(&b.best);
        CR_TRY_OUT(search(&b, LEAST_LOSS, 0, &b.best));
        if (!within(b.best.second, second)) break;
    }
    if (!within(b.best.second, second)) {
        b.over = (struct point){b.best.loss, b.best.second};
        cr_search_free(&b.best);
        CR_TRY_OUT(narrow(&b));
    }
out:
    *out = b.best;
    close_copy(&b);
    return status;
}
