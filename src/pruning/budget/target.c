/* pruning/budget/target.c: reaches a target time (--target-ms, --speedup) by measurement; see target.h. */
#include "pruning/budget/target.h"

#include <math.h>

static const double close_enough = 0.02;  /* difference of predicted and measured time */
static const double below        = 0.995; /* of the target, after a network has missed it */
static const double near         = 0.03;  /* costs that differ less give no slope */
static const double unsteady     = 0.1;   /* a time that is shorter by this fraction replaces the one before */

struct rounds {
    const struct cr_budget_networks *networks;
    struct cr_budget_met            *out;
    double                           target, best_loss;
    double                           dense_cost, dense; /* of the network before pruning; seconds */
    double                           last_cost, last;   /* of the network that was measured last */
    double                           offset, slope;     /* predicted time: offset + slope * cost */
    double                           cost, measured;    /* of the present network */
    bool                             close;             /* its prediction was correct */
};

static bool find_slope(const struct rounds *r, double cost, double seconds, double *slope) {
    const double factor = r->measured / r->cost;
    if (fabs(cost - r->cost) <= near * r->cost) return false;
    *slope = (seconds - r->measured) / (cost - r->cost);
    return *slope >= 0.2 * factor && *slope <= 5 * factor;
}

/* The line through the present network and the one measured before, or the one before pruning. Where that makes no
 * sense, times are in proportion to costs. */
static void correct(struct rounds *r) {
    if (!find_slope(r, r->last_cost, r->last, &r->slope) && !find_slope(r, r->dense_cost, r->dense, &r->slope))
        r->slope = r->measured / r->cost;
    r->offset    = r->measured - r->slope * r->cost;
    r->last_cost = r->cost;
    r->last      = r->measured;
}

/* Chooses a network, measures it, and corrects the prediction. */
static cr_status try_budget(struct rounds *r, double budget) {
    const struct cr_budget_networks *n = r->networks;
    struct cr_budget_met            *o = r->out;
    double                           loss;
    CR_TRY(n->choose(n->self, budget, &r->cost, &loss));
    CR_TRY(n->measure(n->self, &r->measured));
    const double predicted = r->offset + r->slope * r->cost;
    r->close               = fabs(predicted / r->measured - 1) <= close_enough;
    o->least               = o->networks ? CR_MIN(o->least, r->measured) : r->measured;
    if (!o->networks++) o->first = predicted / r->measured;
    correct(r);
    if (r->measured > r->target || (o->met && loss > r->best_loss)) return CR_OK;
    o->met       = true;
    o->predicted = predicted;
    o->measured  = r->measured;
    r->best_loss = loss;
    return n->keep(n->self);
}

cr_status cr_budget_reach(const struct cr_budget_networks *networks, double target, double cost, double seconds,
                          struct cr_budget_met *out) {
    struct rounds r   = {.networks   = networks,
                         .out        = out,
                         .target     = target,
                         .dense_cost = cost,
                         .dense      = seconds,
                         .last_cost  = cost,
                         .last       = seconds,
                         .slope      = seconds / cost};
    double        aim = target;
    *out              = (struct cr_budget_met){0};
    for (int i = 0; i < CR_BUDGET_ROUNDS; i++) {
        const double budget = CR_MAX((aim - r.offset) / r.slope, 0.0);
        CR_TRY(try_budget(&r, budget));
        const bool missed = r.measured > target;
        if (!missed && r.close) return CR_OK;
        if (missed && r.cost > budget * (1 + 1e-9)) return CR_OK; /* no network is cheaper */
        if (missed) aim = target * below;
    }
    return out->met ? CR_OK : try_budget(&r, 0);
}

cr_status cr_budget_reach_speedup(const struct cr_budget_networks *networks, double speedup, double cost,
                                  double *seconds, struct cr_budget_met *out) {
    for (int search = 1;; search++) {
        double again;
        CR_TRY(cr_budget_reach(networks, *seconds / speedup, cost, *seconds, out));
        if (!out->met || !networks->measure_dense || search == CR_BUDGET_SEARCHES) return CR_OK;
        CR_TRY(networks->measure_dense(networks->self, &again));
        if (again >= *seconds * (1 - unsteady)) return CR_OK;
        cr_log(CR_LOG_INFO,
               "times vary: the network before pruning took %.4g ms, and now %.4g ms; the search is repeated",
               1e3 * *seconds, 1e3 * again);
        *seconds = again;
    }
}
