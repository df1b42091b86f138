/* cli/budget/choose.c: the choice whose predicted cost meets the target. See cli/budget/budget.h.
 *
 * The sum of the table differs from the cost of the compiled network: fused ops depend on widths, and a pattern
 * does not change the time by the same factor at all widths. So the budget of the search is corrected by the ratio,
 * a few times. */
#include "cli/budget/budget.h"

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
};

/* The network with the least loss whose table sum is at most `budget`. */
static cr_status solve(struct chooser *c, double budget, struct cr_budget_candidate *candidate) {
    struct cr_search_result result;
    cr_status               status = cr_search(&c->problem->search, budget - c->problem->fixed, &result);
    if (status == CR_OK)
        status = cr_budget_candidate_make(c->source, c->clock, c->axes, c->layers, c->problem, &result, candidate);
    cr_search_free(&result);
    c->out->compiled += c->clock->unit == CR_BUDGET_SECONDS;
    return status;
}

/* ---- the network as it is ---- */

static cr_status cost_of_given(struct chooser *c) {
    const struct cr_param_store *store = &c->clock->session.model.store;
    const uint8_t               *mask  = c->source->buffers.mask;
    struct cr_model              model;
    bool                         pruned = false;
    c->out->dense                       = c->problem->dense;
    if (c->clock->unit == CR_BUDGET_MACS) return CR_OK;
    for (int64_t i = 0; i < c->source->session.model.store.value_elems / 8; i++) pruned |= mask[i] != 0xff;
    pruned &= store->value_elems == c->source->session.model.store.value_elems && c->clock->config.train.sparse;
    CR_TRY(cr_model_open(&c->clock->config, c->clock->session.model.classes, c->clock->session.model.eval_size,
                         c->clock->session.model.eval_size, &model));
    cr_model_set_real(&model, c->clock->session.model.real);
    const cr_status status =
        cr_budget_network_cost(c->clock, &c->clock->config, &model, pruned ? mask : NULL, &c->out->dense);
    cr_model_close(&model);
    return status;
}

/* Predicted times are multiplied by the ratio of measured and predicted time of this network. A network with 8-bit
 * values cannot run before it has scales. */
static cr_status measure_given(struct chooser *c) {
    c->out->scale = 1;
    if (!c->clock->measured || c->clock->config.quant.type != CR_QUANT_NONE) return CR_OK;
    CR_TRY(cr_budget_measure(&c->clock->config, c->clock->session.model.classes, c->clock->batch,
                             &c->out->measured_dense));
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

static cr_status refuse_macs(const struct chooser *c, double least) {
    return CR_FAIL(CR_ERR_CONFIG,
                   "--flops %g cannot be reached: at most %.4g times fewer multiply-adds, with multiples of %lld "
                   "channels, of which every group keeps at least one: give a smaller factor, other patterns or a "
                   "smaller prune.multiple",
                   c->request->flops, floor_factor(c->out->dense / least), (long long)c->source->config.prune.multiple);
}

static cr_status refuse(const struct chooser *c, double least) {
    const struct cr_budget_clock *k    = c->clock;
    const char                   *note = k->measured ? "" : "; times are estimates: train.measure = no, or no GPU";
    const double                  s    = c->out->scale;
    if (k->unit == CR_BUDGET_MACS) return refuse_macs(c, least);
    if (least >= 0.9999 * c->out->dense)
        return CR_FAIL(CR_ERR_CONFIG,
                       "the target cannot be reached: these patterns save no time at all here (%s; batch %lld%s): give "
                       "other patterns, --pattern auto for all",
                       k->session.device->caps.text, (long long)k->batch, note);
    if (c->request->speedup > 0)
        return CR_FAIL(CR_ERR_CONFIG,
                       "--speedup %g cannot be reached: the minimum is %.6g ms, %.4g times as fast (now %.6g ms; batch "
                       "%lld, %s%s): give a smaller speedup, other patterns or a smaller prune.multiple",
                       c->request->speedup, ceil_ms(s * least), floor_factor(c->out->dense / least),
                       ceil_ms(s * c->out->dense), (long long)k->batch, k->session.device->caps.text, note);
    return CR_FAIL(
        CR_ERR_CONFIG,
        "--target-ms %g cannot be reached: the minimum is %.6g ms (now %.6g ms, of which %.6g ms in ops that "
        "no choice changes; batch %lld, %s%s): give a larger time, a smaller --batch or other patterns",
        1e3 * c->request->target_s, ceil_ms(s * least), ceil_ms(s * c->out->dense), ceil_ms(s * c->problem->fixed),
        (long long)k->batch, k->session.device->caps.text, note);
}

static cr_status refuse_reached(const struct chooser *c) {
    return CR_FAIL(CR_ERR_CONFIG,
                   "--target-ms %g: no pruning needed, the predicted time of these weights is already lower (%.6g ms, "
                   "batch %lld, %s)",
                   1e3 * c->request->target_s, ceil_ms(c->out->scale * c->out->dense), (long long)c->clock->batch,
                   c->clock->session.device->caps.text);
}

/* ---- the search ---- */

static bool meets(const struct chooser *c, const struct cr_budget_candidate *candidate) {
    return candidate->cost <= c->out->target * (1 + 1e-9);
}

static void keep_better(struct chooser *c, struct cr_budget_candidate *candidate) {
    if (meets(c, candidate) && (!c->out->best.level || candidate->loss < c->out->best.loss)) {
        cr_budget_candidate_free(&c->out->best);
        c->out->best = *candidate;
        *candidate   = (struct cr_budget_candidate){0};
    }
}

/* Narrows the budget of the table until the compiled network is just below the target. */
static cr_status refine(struct chooser *c, double least_table) {
    double budget = c->out->target * c->problem->dense / c->out->dense;
    for (int i = 0; i < TRIES; i++) {
        struct cr_budget_candidate candidate = {0};
        cr_status                  status    = solve(c, budget, &candidate);
        const double               ratio     = candidate.cost > 0 ? c->out->target / candidate.cost : 1;
        const bool                 met       = status == CR_OK && meets(c, &candidate);
        const double               table     = candidate.table;
        if (status == CR_OK) keep_better(c, &candidate);
        cr_budget_candidate_free(&candidate);
        CR_TRY(status);
        if (c->clock->unit == CR_BUDGET_MACS || (met && ratio * close_enough <= 1)) return CR_OK;
        const double next = met ? budget * ratio : CR_MIN(budget, table) * CR_MIN(ratio, 0.995);
        if (next < least_table && !met) return CR_OK; /* the cheapest choice stays */
        budget = next;
    }
    return CR_OK;
}

cr_status cr_budget_choose(struct cr_budget_source *source, struct cr_budget_clock *clock,
                           const struct cr_budget_axes *axes, const struct cr_budget_request *request,
                           struct cr_budget_layers *layers, const struct cr_budget_problem *problem,
                           struct cr_budget_outcome *out) {
    struct chooser             c        = {source, clock, axes, request, layers, problem, out};
    struct cr_budget_candidate cheapest = {0};
    cr_status                  status;
    CR_TRY(cost_of_given(&c));
    CR_TRY(measure_given(&c));
    out->target = request->target_s > 0  ? request->target_s / out->scale
                  : request->speedup > 0 ? out->dense / request->speedup
                                         : out->dense / request->flops;
    if (out->dense <= out->target) return refuse_reached(&c);
    CR_TRY_OUT(solve(&c, -1, &cheapest));
    const double least = cheapest.cost, least_table = cheapest.table;
    if (!meets(&c, &cheapest)) {
        if (request->unreachable) *request->unreachable = true;
        status = refuse(&c, least);
        goto out;
    }
    keep_better(&c, &cheapest);
    CR_TRY_OUT(refine(&c, least_table));
    cr_budget_candidate_show(source, layers, &out->best);
out:
    cr_budget_candidate_free(&cheapest);
    return status;
}
