/* pruning/budget_target.c: meets a target time by measurement. See pruning/budget_target.h. */
#include "pruning/budget_target.h"

#include <math.h>

static const double close_enough = 0.02; /* difference of predicted and measured time */
static const double below        = 0.995; /* of the target, after a network has missed it */

struct rounds {
    const struct cr_budget_networks *networks;
    struct cr_budget_met            *out;
    double                           target, best_loss;
    double                           cost, measured; /* of the present network */
    bool                             close;          /* its prediction was right */
};

/* Chooses a network, measures it, and corrects the scale. */
static cr_status try_budget(struct rounds *r, double budget) {
    const struct cr_budget_networks *n = r->networks;
    struct cr_budget_met            *o = r->out;
    double                           loss;
    CR_TRY(n->choose(n->self, budget, &r->cost, &loss));
    CR_TRY(n->measure(n->self, &r->measured));
    const double predicted = o->scale * r->cost;
    r->close               = fabs(predicted / r->measured - 1) <= close_enough;
    o->least               = o->networks ? CR_MIN(o->least, r->measured) : r->measured;
    if (!o->networks++) o->first = predicted / r->measured;
    o->scale = r->measured / r->cost;
    if (r->measured > r->target || (o->met && loss > r->best_loss)) return CR_OK;
    o->met       = true;
    o->predicted = predicted;
    o->measured  = r->measured;
    r->best_loss = loss;
    return n->keep(n->self);
}

cr_status cr_budget_meet(const struct cr_budget_networks *networks, double target, double scale,
                         struct cr_budget_met *out) {
    struct rounds r     = {.networks = networks, .out = out, .target = target};
    double        aim   = target;
    *out                = (struct cr_budget_met){.scale = scale};
    for (int i = 0; i < CR_BUDGET_ROUNDS; i++) {
        const double budget = aim / out->scale;
        CR_TRY(try_budget(&r, budget));
        const bool missed = r.measured > target;
        if (!missed && r.close) return CR_OK;
        if (missed && r.cost > budget * (1 + 1e-9)) return CR_OK; /* no network is cheaper */
        if (missed) aim = target * below;
    }
    return out->met ? CR_OK : try_budget(&r, 0);
}
