/* training/prune.c: gradual pruning between two updates. The buffers are copied to the host, the masks are chosen there
 * (pruning/pruning.h), and the buffers are copied back with pruned weights and their momentum set to 0. Pruning is
 * rare, so the copies do not matter. */
#include "training/run.h"

#include <inttypes.h>
#include <stdio.h>

cr_status cr_run_prune_open(struct cr_run *run) {
    if (!cr_config_prunes(&run->config)) return CR_OK;
    return cr_prune_open(&run->session.model.store, &run->config, &run->prune);
}

/* Considers the whole schedule: a run that train.steps ends early may be resumed later. */
void cr_run_prune_warn(const struct cr_run *run) {
    const struct cr_config *c     = &run->config;
    const int64_t           steps = c->train.epochs * run->at.steps_per_epoch;
    double                  fraction, reached = 0;
    if (cr_comm_rank(run->comm) > 0) return;
    if (!cr_config_prunes(c)) {
        if (c->prune.initial > 0 || c->prune.start > 0 || c->prune.end > 0)
            cr_log(CR_LOG_WARN,
                   "[prune] has a schedule but no target: nothing is pruned without sparsity (0.9 prunes 90 "
                   "%% of the weights) or a budget");
        return;
    }
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

static void report_pruned(const struct cr_run *run, double seconds, struct cr_report *report) {
    const struct cr_prune *p        = &run->prune;
    const double           sparsity = (double)p->pruned / (double)p->elems;
    char                   human[160];
    struct cr_json_writer  w = cr_report_begin(report, CR_EVENT_PRUNE);
    put_sparsity(&w, run->at.step, p->pruned, p->elems);
    cr_json_put_fixed(&w, "seconds", seconds, 3);
    snprintf(human, sizeof human, "pruned at step %" PRId64 ": %.2f %% (%" PRId64 " of %" PRId64 " weights) in %.3f s",
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
        const struct cr_param *q      = &store->param[i];
        int64_t                pruned = 0;
        if (q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT) continue;
        for (int64_t k = q->offset; k < q->offset + q->elems; k++) pruned += !(mask[k / 8] >> (k % 8) & 1);
        if (!pruned) continue;
        s.layers++;
        s.weights += q->elems;
        s.pruned += pruned;
    }
    return s;
}

cr_status cr_run_report_sparsity(struct cr_run *run, struct cr_report *report) {
    const struct cr_session     *session = &run->session;
    const struct cr_param_store *store   = &session->model.store;
    const char                  *address = (const char *)session->memory.region[CR_REGION_STORE];
    uint8_t                     *mask;
    if (!store->has_mask || !cr_run_reports(run)) return CR_OK;
    const size_t bytes = cr_param_store_buffer_bytes(store, CR_BUFFER_MASK);
    CR_ALLOC(mask, bytes);
    cr_status status = session->device->backend->get(
        session->device, mask, address + cr_param_store_buffer_offset(store, CR_BUFFER_MASK), bytes);
    const struct sparsity s = status == CR_OK ? count_pruned(store, mask) : (struct sparsity){0};
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

cr_status cr_run_prune(struct cr_run *run, double fraction, struct cr_report *report) {
    const struct cr_param_store *store = &run->session.model.store;
    const int64_t                start = cr_time_ns();
    struct cr_state_buffers      buffers;
    cr_status                    status;
    CR_TRY(cr_state_buffers_get(&run->session, &buffers));
    CR_TRY_OUT(cr_prune_masks(&run->prune, fraction, buffers.value, buffers.mask));
    cr_prune_zero(store, buffers.mask, buffers.value);
    cr_prune_zero(store, buffers.mask, buffers.momentum);
    if (buffers.second) cr_prune_zero(store, buffers.mask, buffers.second);
    if (buffers.ema) cr_prune_zero(store, buffers.mask, buffers.ema);
    CR_TRY_OUT(cr_state_buffers_put(&run->session, &buffers));
    report_pruned(run, (double)(cr_time_ns() - start) * 1e-9, report);
out:
    cr_state_buffers_free(&buffers);
    return status;
}
