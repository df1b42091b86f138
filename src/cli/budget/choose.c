/* cli/budget/choose.c: the choice that meets the target. See cli/budget/budget.h.
 *
 * The sum of the table differs from the cost of the compiled network: fused ops depend on widths, and a pattern
 * does not change the time by the same factor at all widths. So the budget of the search is corrected by the ratio,
 * a few times. The cost of the compiled network, a sum of kernel times, differs from the time of a run, so the network
 * is run, and the choice is corrected again (pruning/budget/target.h). */
#include "cli/budget/budget.h"
#include "pruning/budget/target.h"

#include <math.h>

enum { TRIES = 8 };
static const double close_enough = 0.985; /* of the target */

struct chooser {
    struct cr_budget_source        *source;
    struct cr_budget_clock         *clock;
    const struct cr_budget_axes    *axes;
    const struct cr_budget_request *request;
    struct cr_budget_layers        *layers;
    const struct cr_budget_problem *problem;
    struct cr_budget_outcome       *out;
    struct cr_budget_candidate      present;     /* the network that was chosen last */
    double                          least_table; /* cost of the cheapest network of the table */
    double                          table_ratio; /* of the last network: cost by the table / when compiled */
    const uint8_t                  *given_mask;  /* of the network before; NULL: nothing is pruned */
};

/* The network with the least loss whose table sum is at most `budget`. */
static cr_status solve(struct chooser *c, double budget, struct cr_budget_candidate *candidate) {
    struct cr_search_result result;
    cr_status               status = cr_search(&c->problem->search, budget - c->problem->fixed, &result);
    if (status == CR_OK)
        status = cr_budget_candidate_make(c->source, c->clock, c->axes, c->layers, c->problem, &result, candidate);
    cr_search_free(&result);
    c->out->compiled++;
    return status;
}

/* ---- the network as it is ---- */

static cr_status cost_of_given(struct chooser *c) {
    const struct cr_param_store *store = &c->clock->session.model.store;
    const uint8_t               *mask  = c->source->buffers.mask;
    struct cr_model              model;
    bool                         pruned = false;
    c->out->dense                       = c->problem->dense;
    for (int64_t i = 0; i < c->source->session.model.store.value_elems / 8; i++) pruned |= mask[i] != 0xff;
    c->given_mask = pruned ? mask : NULL;
    pruned &= store->value_elems == c->source->session.model.store.value_elems && c->clock->config->train.sparse;
    CR_TRY(cr_model_open(c->clock->config, c->clock->session.model.classes, c->clock->session.model.eval_size,
                         c->clock->session.model.eval_size, &model));
    cr_model_set_real(&model, c->clock->session.model.real);
    const cr_status status =
        cr_budget_network_cost(c->clock, c->clock->config, &model, pruned ? mask : NULL, &c->out->dense);
    cr_model_close(&model);
    return status;
}

static cr_status run(const struct chooser *c, const struct cr_config *config, const struct cr_budget_weights *weights,
                     double *seconds) {
    if (c->clock->session.cost_table) cr_cost_table_flush(c->clock->session.cost_table); /* the run reads these times */
    return cr_budget_measure(config, c->clock->session.model.classes, c->clock->batch, weights, seconds);
}

static cr_status time_given(void *self, double *seconds) {
    struct chooser                *c       = self;
    const struct cr_budget_source *s       = c->source;
    const struct cr_budget_weights weights = {&s->session.model.store, s->buffers.value, s->running, c->given_mask};
    return run(c, c->clock->config, &weights, seconds);
}

/* Predicted times are multiplied by the ratio of measured and predicted time of this network. */
static cr_status measure_given(struct chooser *c) {
    c->out->scale = 1;
    if (!c->clock->measured) return CR_OK;
    CR_TRY(time_given(c, &c->out->measured_dense));
    c->out->scale = c->out->measured_dense / c->out->dense;
    return CR_OK;
}

/* ---- messages ---- */

/* Milliseconds, rounded up, so that a printed time can be given to --target-ms. */
static double ceil_ms(double seconds) {
    return ceil(1e9 * seconds) * 1e-6;
}

/* Factor, rounded down. */
static double floor_factor(double factor) {
    return floor(1000 * factor) / 1000;
}

/* The cheapest network of the table. */
static cr_status find_least(struct chooser *c) {
    struct cr_search_result result;
    const cr_status         status = cr_search(&c->problem->search, -1, &result);
    if (status == CR_OK) c->least_table = c->problem->fixed + result.cost;
    cr_search_free(&result);
    return status;
}

/* least: the shortest time that was found, in seconds. */
static cr_status refuse(const struct chooser *c, double least) {
    const struct cr_budget_clock *k      = c->clock;
    const char                   *note   = k->measured ? "" : "; times are estimates: train.measure = no, or no GPU";
    const double                  s      = c->out->scale;
    const double                  before = s * c->out->dense;
    if (least >= 0.9999 * before)
        return CR_FAIL(CR_ERR_CONFIG,
                       "the target cannot be reached: these patterns save no time at all here (%s; batch %lld%s)%s",
                       k->session.device->caps.text, (long long)k->batch, note,
                       c->request->automatic ? "" : ": give other patterns, --pattern auto for all");
    if (c->request->speedup > 0)
        return CR_FAIL(CR_ERR_CONFIG,
                       "--speedup %g cannot be reached: the minimum is %.6g ms, %.4g times as fast (now %.6g ms; "
                       "batch %lld, %s%s): give a smaller speedup, other patterns or a smaller prune.multiple",
                       c->request->speedup, ceil_ms(least), floor_factor(before / least), ceil_ms(before),
                       (long long)k->batch, k->session.device->caps.text, note);
    return CR_FAIL(
        CR_ERR_CONFIG,
        "--target-ms %g cannot be reached: the minimum is %.6g ms (now %.6g ms, of which %.6g ms in ops that "
        "no choice changes; batch %lld, %s%s): give a larger time, a smaller --batch or other patterns",
        1e3 * c->request->target_s, ceil_ms(least), ceil_ms(before), ceil_ms(s * c->problem->fixed),
        (long long)k->batch, k->session.device->caps.text, note);
}

static cr_status refuse_reached(const struct chooser *c) {
    return CR_FAIL(CR_ERR_CONFIG,
                   "--target-ms %g: no pruning needed, the %s time of these weights is already lower (%.6g ms, "
                   "batch %lld, %s)",
                   1e3 * c->request->target_s, c->clock->measured ? "measured" : "predicted",
                   ceil_ms(c->out->scale * c->out->dense), (long long)c->clock->batch,
                   c->clock->session.device->caps.text);
}

/* ---- the search ---- */

static void move(struct cr_budget_candidate *from, struct cr_budget_candidate *to) {
    cr_budget_candidate_free(to);
    *to   = *from;
    *from = (struct cr_budget_candidate){0};
}

static bool meets(const struct cr_budget_candidate *candidate, double cost) {
    return candidate->cost <= cost * (1 + 1e-9);
}

/* Narrows the budget of the table until the cost of the compiled network is just below `cost`. c->present becomes the
 * network with the least loss that is not above it, and is empty when there is none. */
static cr_status refine(struct chooser *c, double cost) {
    double budget = cost * c->table_ratio, before = 0;
    cr_budget_candidate_free(&c->present);
    for (int i = 0; i < TRIES; i++) {
        struct cr_budget_candidate candidate = {0};
        cr_status                  status    = solve(c, budget, &candidate);
        const double               ratio     = candidate.cost > 0 ? cost / candidate.cost : 1;
        const bool                 met       = status == CR_OK && meets(&candidate, cost);
        const double               table     = candidate.table;
        if (status == CR_OK && candidate.cost > 0) c->table_ratio = table / candidate.cost;
        if (met && (!c->present.level || candidate.loss < c->present.loss)) move(&candidate, &c->present);
        cr_budget_candidate_free(&candidate);
        CR_TRY(status);
        if (met && ratio * close_enough <= 1) return CR_OK;
        if (met && table <= before && table >= before) return CR_OK; /* the next network costs too much */
        before            = table;
        const double next = met ? budget * ratio : CR_MIN(budget, table) * CR_MIN(ratio, 0.995);
        if (next < c->least_table && !met) return CR_OK;
        budget = next;
    }
    return CR_OK;
}

/* ---- callbacks of pruning/budget/target.h ---- */

static cr_status choose(void *self, double budget, double *cost, double *loss) {
    struct chooser *c = self;
    CR_TRY(refine(c, budget));
    if (!c->present.level) CR_TRY(solve(c, -1, &c->present));
    *cost = c->present.cost;
    *loss = c->present.loss;
    return CR_OK;
}

static cr_status measure(void *self, double *seconds) {
    struct chooser                   *c       = self;
    const struct cr_budget_candidate *p       = &c->present;
    const struct cr_budget_weights    weights = {&p->model.store, p->value, p->running, p->masked ? p->mask : NULL};
    const struct cr_config           *config;
    CR_TRY(cr_config_derive(&config, c->clock->config, 0, NULL, 0));
    cr_status status = cr_config_set(&config, "model.channels", p->config->model.channels);
    if (status == CR_OK) status = run(c, config, &weights, seconds);
    cr_config_close(config);
    return status;
}

static cr_status keep(void *self) {
    struct chooser *c = self;
    move(&c->present, &c->out->best);
    return CR_OK;
}

/* Without measured times, the predicted time decides. */
static cr_status choose_predicted(struct chooser *c, bool *met, double *least) {
    double cost, loss;
    CR_TRY(choose(c, c->out->target / c->out->scale, &cost, &loss));
    *met              = meets(&c->present, c->out->target / c->out->scale);
    *least            = cost;
    c->out->predicted = cost;
    return *met ? keep(c) : CR_OK;
}

static cr_status choose_measured(struct chooser *c, bool *met, double *least) {
    const bool                      steady   = c->clock->session.device->backend->async != NULL;
    const struct cr_budget_networks networks = {c, choose, measure, keep, steady ? NULL : time_given};
    const double                    speedup  = c->request->speedup;
    struct cr_budget_outcome       *o        = c->out;
    struct cr_budget_met            result;
    if (speedup > 0) {
        CR_TRY(cr_budget_reach_speedup(&networks, speedup, o->dense, &o->measured_dense, &result));
        o->scale  = o->measured_dense / o->dense;
        o->target = o->measured_dense / speedup;
    } else
        CR_TRY(cr_budget_reach(&networks, o->target, o->dense, o->measured_dense, &result));
    *met                      = result.met;
    *least                    = result.least;
    c->out->predicted         = result.predicted;
    c->out->measured          = result.measured;
    c->out->first             = result.first;
    c->out->measured_networks = result.networks;
    return CR_OK;
}

cr_status cr_budget_choose(struct cr_budget_source *source, struct cr_budget_clock *clock,
                           const struct cr_budget_axes *axes, const struct cr_budget_request *request,
                           struct cr_budget_layers *layers, const struct cr_budget_problem *problem,
                           struct cr_budget_outcome *out) {
    struct chooser c     = {source, clock, axes, request, layers, problem, out, .least_table = problem->dense};
    bool           met   = false;
    double         least = 0;
    cr_status      status;
    CR_TRY(cost_of_given(&c));
    CR_TRY(measure_given(&c));
    const double before = out->scale * out->dense;
    out->target         = request->target_s > 0 ? request->target_s : before / request->speedup;
    if (before <= out->target) return refuse_reached(&c);
    CR_TRY_OUT(find_least(&c));
    c.table_ratio = problem->dense / out->dense;
    CR_TRY_OUT(clock->measured ? choose_measured(&c, &met, &least) : choose_predicted(&c, &met, &least));
    if (!met) {
        if (request->unreachable) *request->unreachable = true;
        status = refuse(&c, least);
        goto out;
    }
    cr_budget_candidate_show(source, layers, &out->best);
out:
    cr_budget_candidate_free(&c.present);
    return status;
}
