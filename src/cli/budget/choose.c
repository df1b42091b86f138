/* cli/budget/choose.c: chooses widths and patterns that meet the target time. See cli/budget/budget.h.
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

/* The network with the least loss whose table sum is at most `budget`. */
static cr_status solve(struct cr_budget *b, double budget, struct cr_budget_candidate *candidate) {
    struct cr_search_result result;
    cr_status               status = cr_search(&b->problem.search, budget - b->problem.fixed, &result);
    if (status == CR_OK) status = cr_budget_candidate_make(b, &result, candidate);
    cr_search_free(&result);
    b->outcome.compiled++;
    return status;
}

/* ---- the network as it is ---- */

static cr_status cost_of_given(struct cr_budget *b) {
    const struct cr_param_store *store = &b->clock.session.model.store;
    const uint8_t               *mask  = b->source.buffers.mask;
    struct cr_model              model;
    bool                         pruned = false;
    b->outcome.least_table = b->outcome.dense = b->problem.dense;
    for (int64_t i = 0; i < b->source.session.model.store.value_elems / 8; i++) pruned |= mask[i] != 0xff;
    b->outcome.given_mask = pruned ? mask : NULL;
    pruned &= store->value_elems == b->source.session.model.store.value_elems && b->clock.config->train.sparse;
    CR_TRY(cr_model_open(b->clock.config, b->clock.session.model.classes, b->clock.session.model.eval_size,
                         b->clock.session.model.eval_size, &model));
    cr_model_set_real(&model, b->clock.session.model.real);
    const cr_status status =
        cr_budget_network_cost(&b->clock, b->clock.config, &model, pruned ? mask : NULL, &b->outcome.dense);
    cr_model_close(&model);
    return status;
}

static cr_status run(const struct cr_budget *b, const struct cr_config *config, const struct cr_budget_weights *weights,
                     double *seconds) {
    if (b->clock.session.cost_table) cr_cost_table_flush(b->clock.session.cost_table); /* the run reads these times */
    return cr_budget_measure(config, b->clock.session.model.classes, b->clock.batch, weights, seconds);
}

static cr_status time_given(void *self, double *seconds) {
    struct cr_budget              *b       = self;
    const struct cr_budget_source *s       = &b->source;
    const struct cr_budget_weights weights = {&s->session.model.store, s->buffers.value, s->running,
                                              b->outcome.given_mask};
    return run(b, b->clock.config, &weights, seconds);
}

/* Predicted times are multiplied by the ratio of measured and predicted time of this network. */
static cr_status measure_given(struct cr_budget *b) {
    b->outcome.scale = 1;
    if (!b->clock.measured) return CR_OK;
    CR_TRY(time_given(b, &b->outcome.measured_dense));
    b->outcome.scale = b->outcome.measured_dense / b->outcome.dense;
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
static cr_status find_least(struct cr_budget *b) {
    struct cr_search_result result;
    const cr_status         status = cr_search(&b->problem.search, -1, &result);
    if (status == CR_OK) b->outcome.least_table = b->problem.fixed + result.cost;
    cr_search_free(&result);
    return status;
}

/* least: the shortest time that was found, in seconds. */
static cr_status refuse(const struct cr_budget *b, double least) {
    const struct cr_budget_clock *k      = &b->clock;
    const char                   *note   = k->measured ? "" : "; times are estimates: train.measure = no, or no GPU";
    const double                  s      = b->outcome.scale;
    const double                  before = s * b->outcome.dense;
    if (least >= 0.9999 * before)
        return CR_FAIL(CR_ERR_CONFIG,
                       "the target cannot be reached: these patterns save no time at all here (%s; batch %lld%s)%s",
                       k->session.device->caps.text, (long long)k->batch, note,
                       b->request.automatic ? "" : ": give other patterns, --pattern auto for all");
    if (b->request.speedup > 0)
        return CR_FAIL(CR_ERR_CONFIG,
                       "--speedup %g cannot be reached: the minimum is %.6g ms, %.4g times as fast (now %.6g ms; "
                       "batch %lld, %s%s): give a smaller speedup, other patterns or a smaller prune.multiple",
                       b->request.speedup, ceil_ms(least), floor_factor(before / least), ceil_ms(before),
                       (long long)k->batch, k->session.device->caps.text, note);
    return CR_FAIL(
        CR_ERR_CONFIG,
        "--target-ms %g cannot be reached: the minimum is %.6g ms (now %.6g ms, of which %.6g ms in ops that "
        "no choice changes; batch %lld, %s%s): give a larger time, a smaller --batch or other patterns",
        1e3 * b->request.target_s, ceil_ms(least), ceil_ms(before), ceil_ms(s * b->problem.fixed), (long long)k->batch,
        k->session.device->caps.text, note);
}

static cr_status refuse_reached(const struct cr_budget *b) {
    return CR_FAIL(CR_ERR_CONFIG,
                   "--target-ms %g: no pruning needed, the %s time of these weights is already lower (%.6g ms, "
                   "batch %lld, %s)",
                   1e3 * b->request.target_s, b->clock.measured ? "measured" : "predicted",
                   ceil_ms(b->outcome.scale * b->outcome.dense), (long long)b->clock.batch,
                   b->clock.session.device->caps.text);
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

/* Narrows the budget of the table until the cost of the compiled network is just below `cost`. `present` becomes the
 * network with the least loss that is not above it, and is empty when there is none. */
static cr_status refine(struct cr_budget *b, double cost) {
    double budget = cost * b->outcome.table_ratio, before = 0;
    cr_budget_candidate_free(&b->outcome.present);
    for (int i = 0; i < TRIES; i++) {
        struct cr_budget_candidate candidate = {0};
        cr_status                  status    = solve(b, budget, &candidate);
        const double               ratio     = candidate.cost > 0 ? cost / candidate.cost : 1;
        const bool                 met       = status == CR_OK && meets(&candidate, cost);
        const double               table     = candidate.table;
        if (status == CR_OK && candidate.cost > 0) b->outcome.table_ratio = table / candidate.cost;
        if (met && (!b->outcome.present.level || candidate.loss < b->outcome.present.loss))
            move(&candidate, &b->outcome.present);
        cr_budget_candidate_free(&candidate);
        CR_TRY(status);
        if (met && ratio * close_enough <= 1) return CR_OK;
        if (met && table <= before && table >= before) return CR_OK; /* the next network costs too much */
        before            = table;
        const double next = met ? budget * ratio : CR_MIN(budget, table) * CR_MIN(ratio, 0.995);
        if (next < b->outcome.least_table && !met) return CR_OK;
        budget = next;
    }
    return CR_OK;
}

/* ---- callbacks of pruning/budget/target.h ---- */

static cr_status choose(void *self, double budget, double *cost, double *loss) {
    struct cr_budget *b = self;
    CR_TRY(refine(b, budget));
    if (!b->outcome.present.level) CR_TRY(solve(b, -1, &b->outcome.present));
    *cost = b->outcome.present.cost;
    *loss = b->outcome.present.loss;
    return CR_OK;
}

static cr_status measure(void *self, double *seconds) {
    struct cr_budget                 *b       = self;
    const struct cr_budget_candidate *p       = &b->outcome.present;
    const struct cr_budget_weights    weights = {&p->model.store, p->value, p->running, p->masked ? p->mask : NULL};
    const struct cr_config           *config;
    CR_TRY(cr_config_derive(&config, b->clock.config, 0, NULL, 0));
    cr_status status = cr_config_set(&config, "model.channels", p->config->model.channels);
    if (status == CR_OK) status = run(b, config, &weights, seconds);
    cr_config_close(config);
    return status;
}

static cr_status keep(void *self) {
    struct cr_budget *b = self;
    move(&b->outcome.present, &b->outcome.best);
    return CR_OK;
}

/* Without measured times, the predicted time decides. */
static cr_status choose_predicted(struct cr_budget *b, bool *met, double *least) {
    double cost, loss;
    CR_TRY(choose(b, b->outcome.target / b->outcome.scale, &cost, &loss));
    *met                 = meets(&b->outcome.present, b->outcome.target / b->outcome.scale);
    *least               = cost;
    b->outcome.predicted = cost;
    return *met ? keep(b) : CR_OK;
}

static cr_status choose_measured(struct cr_budget *b, bool *met, double *least) {
    const bool                      steady   = b->clock.session.device->backend->async != NULL;
    const struct cr_budget_networks networks = {b, choose, measure, keep, steady ? NULL : time_given};
    const double                    speedup  = b->request.speedup;
    struct cr_budget_outcome       *o        = &b->outcome;
    struct cr_budget_met            result;
    if (speedup > 0) {
        CR_TRY(cr_budget_reach_speedup(&networks, speedup, o->dense, &o->measured_dense, &result));
        o->scale  = o->measured_dense / o->dense;
        o->target = o->measured_dense / speedup;
    } else
        CR_TRY(cr_budget_reach(&networks, o->target, o->dense, o->measured_dense, &result));
    *met                 = result.met;
    *least               = result.least;
    o->predicted         = result.predicted;
    o->measured          = result.measured;
    o->first             = result.first;
    o->measured_networks = result.networks;
    return CR_OK;
}

cr_status cr_budget_choose(struct cr_budget *b) {
    const struct cr_budget_request *request = &b->request;
    struct cr_budget_outcome       *o       = &b->outcome;
    bool                            met     = false;
    double                          least   = 0;
    CR_TRY(cost_of_given(b));
    CR_TRY(measure_given(b));
    const double before = o->scale * o->dense;
    o->target           = request->target_s > 0 ? request->target_s : before / request->speedup;
    if (before <= o->target) return refuse_reached(b);
    CR_TRY(find_least(b));
    o->table_ratio = b->problem.dense / o->dense;
    CR_TRY(b->clock.measured ? choose_measured(b, &met, &least) : choose_predicted(b, &met, &least));
    if (!met) {
        if (request->unreachable) *request->unreachable = true;
        return refuse(b, least);
    }
    cr_budget_candidate_show(b, &o->best);
    return CR_OK;
}
