/* training/prune.c: pruning between two updates. The buffers are copied to the host, the masks are
 * chosen there (pruning/pruning.h), and the buffers are copied back with pruned weights and their momentum set to 0.
 * This is rare, so the copies do not matter. All ranks compute the same from the same buffers. */
#include "training/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

cr_status cr_run_prune_check(const struct cr_config *c) {
    if (!cr_config_prunes(c) || c->prune.importance == CR_PRUNE_IMPORTANCE_L2) return CR_OK;
    return cr_config_fail(c, "prune.importance", "%s is only for `cresnet prune`: training prunes by magnitude (l2)",
                          cr_word_prune_importance(c->prune.importance));
}

/* ---- warnings at the start ---- */

static void warn_of_phases(const struct cr_config *c) {
    const double epochs = (double)c->train.epochs;
    if (c->prune.start >= epochs)
        cr_log(CR_LOG_WARN, "[prune] start = %g, but the run has %g epochs: nothing is pruned", c->prune.start, epochs);
    else if (c->prune.schedule == CR_PRUNE_SCHEDULE_ACDC && c->prune.end >= epochs)
        cr_log(CR_LOG_WARN,
               "[prune] end = %g, but the run has %g epochs: schedule = acdc needs epochs after end, its last sparse "
               "phase",
               c->prune.end, epochs);
}

/* Considers the whole schedule: a run that train.steps ends early may be resumed later. */
void cr_run_prune_warn(const struct cr_run *run) {
    const struct cr_config *c     = run->config;
    const int64_t           steps = c->train.epochs * run->at.steps_per_epoch;
    double                  fraction, reached = 0;
    if (cr_comm_rank(run->comm) > 0) return;
    if (!cr_config_prunes(c)) {
        if (c->prune.initial > 0 || c->prune.start > 0 || c->prune.end > 0 ||
            c->prune.schedule != CR_PRUNE_SCHEDULE_GRADUAL)
            cr_log(CR_LOG_WARN,
                   "[prune] has a schedule but no target: nothing is pruned without sparsity (0.9 prunes 90 "
                   "%% of the weights) or a budget");
        else if (c->prune.pattern != CR_PRUNE_PATTERN_UNSTRUCTURED && !cr_config_is_set(c, "prune.sparsity"))
            cr_log(CR_LOG_WARN, "[prune] has the pattern %s but no target: nothing is pruned without sparsity%s",
                   cr_word_prune_pattern(c->prune.pattern),
                   c->prune.pattern == CR_PRUNE_PATTERN_2_4 ? " = 0.5" : " or a budget");
        return;
    }
    if (c->prune.schedule != CR_PRUNE_SCHEDULE_GRADUAL) {
        warn_of_phases(c);
        return;
    }
    if (c->prune.sparsity == 0 && c->prune.initial > 0)
        cr_log(CR_LOG_WARN,
               "[prune] initial = %g has no effect: with a budget it needs sparsity, the one of the budget",
               c->prune.initial);
    for (int64_t step = 0; step <= steps; step++)
        if (cr_prune_due(c, step, run->at.steps_per_epoch, &fraction)) reached = fraction;
    if (reached <= 0)
        cr_log(CR_LOG_WARN,
               "[prune] starts too late: none of the %" PRId64
               " steps prunes (start = %g, end = %g epochs, every %" PRId64 " steps; the run has %" PRId64
               " epochs of %" PRId64 ")",
               steps, c->prune.start, c->prune.end, (int64_t)c->prune.frequency, (int64_t)c->train.epochs,
               run->at.steps_per_epoch);
    else if (reached < 1)
        cr_log(CR_LOG_WARN,
               "[prune] end = %g epochs, the run has %" PRId64
               ": its last pruning step reaches %.1f %% of the requested sparsity",
               c->prune.end, (int64_t)c->train.epochs, 100 * reached);
}

static void put_sparsity(struct cr_json_writer *w, int64_t step, int64_t pruned, int64_t elems) {
    cr_json_put_int(w, "step", step);
    cr_json_put_fixed(w, "sparsity", (double)pruned / (double)elems, 6);
    cr_json_put_int(w, "pruned", pruned);
    cr_json_put_int(w, "of", elems);
}

/* moved: weights that a mask update has grown; -1: none was due. */
static void report_pruned(const struct cr_run *run, int64_t moved, double seconds, struct cr_report *report) {
    const struct cr_prune *p        = &run->prune;
    const double           sparsity = (double)p->pruned / (double)p->elems;
    char                   human[160], what[64];
    struct cr_json_writer  w = cr_report_begin(report, CR_EVENT_PRUNE);
    put_sparsity(&w, run->at.step, p->pruned, p->elems);
    if (moved >= 0) cr_json_put_int(&w, "moved", moved);
    cr_json_put_fixed(&w, "seconds", seconds, 3);
    snprintf(what, sizeof what, moved >= 0 ? "moved %" PRId64 " weights" : "pruned", moved);
    snprintf(human, sizeof human, "%s at step %" PRId64 ": %.2f %% (%" PRId64 " of %" PRId64 " weights) in %.3f s",
             moved >= 0  ? what
             : p->pruned ? "pruned"
                         : "dense phase",
             run->at.step, 100 * sparsity, p->pruned, p->elems, seconds);
    cr_report_end(report, &w, human);
}

struct sparsity { /* of the layers that have pruned weights */
    int     layers;
    int64_t weights, pruned;
};

static struct sparsity count_pruned(const struct cr_param_store *store, const uint8_t *mask) {
    struct sparsity s = {0};
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT) continue;
        const int64_t pruned = cr_prune_count(q, mask);
        if (!pruned) continue;
        s.layers++;
        s.weights += q->elems;
        s.pruned += pruned;
    }
    return s;
}

cr_status cr_run_report_sparsity(struct cr_run *run, struct cr_report *report) {
    const struct cr_param_store *store = &run->session.model.store;
    uint8_t                     *mask;
    if (!store->has_mask || !cr_run_reports(run)) return CR_OK;
    CR_ALLOC(mask, cr_param_store_buffer_bytes(store, CR_BUFFER_MASK));
    cr_status             status = cr_state_buffer_get(&run->session, CR_BUFFER_MASK, mask);
    const struct sparsity s      = status == CR_OK ? count_pruned(store, mask) : (struct sparsity){0};
    cr_free(mask);
    if (!s.pruned) return status;
    const double          fraction = (double)s.pruned / (double)s.weights;
    char                  human[240];
    struct cr_json_writer w = cr_report_begin(report, CR_EVENT_SPARSITY);
    put_sparsity(&w, run->at.step, s.pruned, s.weights);
    snprintf(human, sizeof human,
             "pruned  %.2f %% of the weights of %d layers (%" PRId64 " of %" PRId64 "): the masks are kept%s",
             100 * fraction, s.layers, s.pruned, s.weights,
             run->prune.layers ? ", and [prune] prunes more" : ", pruned weights stay 0");
    cr_report_end(report, &w, human);
    return CR_OK;
}

/* ---- pruning ---- */

static bool all_finite(const struct cr_prune *prune, const float *grad) {
    for (int l = 0; l < prune->layers; l++) {
        const struct cr_param *q = &prune->store->param[prune->layer[l].param];
        for (int64_t i = q->offset; i < q->offset + q->elems && !prune->layer[l].dense; i++)
            if (!isfinite(grad[i])) return false;
    }
    return true;
}

/* Gradients of the last update, summed over micro-batches and ranks. A loss scale does not change their order. */
static cr_status move_weights(struct cr_run *run, double fraction, struct cr_state_buffers *b, int64_t *moved) {
    float *const moments[] = {b->momentum, b->second, b->ema};
    float       *grad;
    CR_TRY(cr_state_buffer_copy(&run->session, CR_BUFFER_GRAD, &grad));
    cr_status status = CR_OK;
    *moved           = 0;
    if (all_finite(&run->prune, grad)) {
        status = cr_prune_move(&run->prune, fraction, grad, b->value, moments, CR_COUNT(moments), b->mask, moved);
    } else {
        cr_prune_recount(&run->prune, b->mask);
        cr_log(CR_LOG_WARN, "step %" PRId64 ": a gradient is not finite: the masks are not updated", run->at.step);
    }
    cr_free(grad);
    return status;
}

static void zero_pruned(const struct cr_param_store *store, const struct cr_state_buffers *b) {
    cr_prune_zero(store, b->mask, b->value);
    cr_prune_zero(store, b->mask, b->momentum);
    if (b->second) cr_prune_zero(store, b->mask, b->second);
    if (b->ema) cr_prune_zero(store, b->mask, b->ema);
}

static cr_status take_step(struct cr_run *run, const struct cr_prune_step *due, struct cr_state_buffers *b,
                           int64_t *moved) {
    const struct cr_param_store *store = &run->session.model.store;
    switch (due->action) {
    case CR_PRUNE_MOVE: return move_weights(run, due->fraction, b, moved);
    case CR_PRUNE_FREE:
        cr_prune_free_masks(&run->prune, b->mask);
        memset(b->momentum, 0, (size_t)store->value_elems * sizeof *b->momentum);
        return CR_OK;
    case CR_PRUNE_RANDOM: CR_TRY(cr_prune_random_masks(&run->prune, b->mask)); break;
    default: CR_TRY(cr_prune_masks(&run->prune, due->fraction, b->value, b->mask));
    }
    zero_pruned(store, b);
    return CR_OK;
}

cr_status cr_run_prune(struct cr_run *run, const struct cr_prune_step *due, struct cr_report *report) {
    const int64_t           start = cr_time_ns();
    int64_t                 moved = -1;
    struct cr_state_buffers buffers;
    cr_status               status;
    CR_TRY(cr_state_buffers_get(&run->session, &buffers));
    CR_TRY_OUT(take_step(run, due, &buffers, &moved));
    CR_TRY_OUT(cr_state_buffers_put(&run->session, &buffers));
    report_pruned(run, moved, (double)(cr_time_ns() - start) * 1e-9, report);
out:
    cr_state_buffers_free(&buffers);
    return status;
}
