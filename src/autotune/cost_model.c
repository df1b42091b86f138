/* autotune/cost_model.c: the questions that passes ask, answered from the table of costs. See autotune/cost_table.h. */
#include "autotune/cost_table_internal.h"

#include "runtime/executor.h"

/* ---- one signature ---- */

static bool is_pinned(const struct cr_cost_table *c, const char *signature, uint64_t hash) {
    for (int i = CR_NONE; c->fixed && (i = cr_cost_next(c, signature, hash, i)) != CR_NONE;)
        if (c->entry[i].source == CR_COST_CHECKPOINT) return true;
    return false;
}

/* Of equals the one that came first. Once a signature has an entry, it has all: rows are not asked again, which for
 * libraries takes longer than to launch what they offer. */
bool cr_cost_best_known(struct cr_cost_table *c, const char *signature, struct cr_cost *out) {
    static const char *const sources[] = {[CR_COST_FILE]       = "file",
                                          [CR_COST_CHECKPOINT] = "checkpoint",
                                          [CR_COST_MEASURED]   = "measured",
                                          [CR_COST_PARTIAL]    = "measured in part"};
    const uint64_t           hash      = cr_cost_hash(signature);
    const bool               pinned    = is_pinned(c, signature, hash);
    int                      best = CR_NONE, known = 0;
    for (int i = CR_NONE; (i = cr_cost_next(c, signature, hash, i)) != CR_NONE;) {
        struct cr_cost_entry *e = &c->entry[i];
        if (pinned && e->source != CR_COST_CHECKPOINT) continue;
        e->used = true;
        known++;
        if (e->kernel != CR_NONE && (best == CR_NONE || e->ns <= c->entry[best].ns))
            best = i; /* they come last first */
    }
    *out = (struct cr_cost){.kernel = CR_NONE};
    if (best != CR_NONE)
        *out = (struct cr_cost){.kernel  = c->entry[best].kernel,
                                .algo    = c->entry[best].algo,
                                .seconds = (double)c->entry[best].ns * 1e-9,
                                .source  = sources[c->entry[best].source]};
    return known > 0;
}

static cr_status time_candidate(struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *op,
                                double best, double *seconds) {
    const int64_t start = cr_time_ns();
    c->sparse_cores |= c->device->kernels[op->kernel]->sparse_cores;
    cr_status status = cr_cost_measure(c->device, &c->scratch, p, op, best, seconds);
    c->measured++;
    c->measure_ns += cr_time_ns() - start;
    if (status == CR_OK || status == CR_ERR_MEMORY) return status;
    return CR_FAIL(status, "%s (while %s was timed; with train.measure=no nothing is)", cr_error_message(),
                   c->device->kernels[op->kernel]->name);
}

static cr_status add_candidate(struct cr_cost_table *c, const struct cr_op *op, const char *signature, double seconds) {
    const struct cr_cost_entry e = {.signature = signature,
                                    .kernel    = op->kernel,
                                    .algo      = op->algo,
                                    .source    = CR_COST_MEASURED,
                                    .ns        = CR_MAX((int64_t)(seconds * 1e9 + 0.5), 1)};
    return cr_cost_add(c, &e);
}

/* A candidate whose scratch memory is not to be had is left out; where that is so of all, the order of the rows
 * decides. */
static cr_status measure_all(struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *asked,
                             const char *signature) {
    const struct cr_cost_model roof   = cr_device_cost_model(c->device);
    const int                  before = c->entries;
    struct cr_op               op = *asked, large = {.kernel = CR_NONE}; /* large: the first left out */
    double                     seconds, best      = 0;
    for (int from = 0; cr_kernel_find(c->device, p, &op, from, &op.kernel); from = op.kernel + 1) {
        const struct cr_kernel *row  = c->device->kernels[op.kernel];
        const int               ways = row->algo_count ? row->algo_count(c->device, p, &op) : 1;
        for (op.algo = 0; op.algo < ways; op.algo++) {
            const cr_status status = time_candidate(c, p, &op, best, &seconds);
            if (status == CR_ERR_MEMORY) {
                cr_error_clear();
                cr_scratch_release(c->device, &c->scratch);
                if (large.kernel == CR_NONE) large = op;
                continue;
            }
            CR_TRY(status);
            best = best == 0 ? seconds : CR_MIN(best, seconds);
            CR_TRY(add_candidate(c, &op, signature, seconds));
        }
    }
    if (large.kernel == CR_NONE) return CR_OK;
    if (c->entries == before) CR_TRY(add_candidate(c, &large, signature, cr_op_seconds(&roof, p, &large)));
    for (int i = before; i < c->entries; i++) c->entry[i].source = CR_COST_PARTIAL;
    return CR_OK;
}

/* Where nothing can be measured: the first row, at the roofline. */
static cr_status guess(const struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *asked,
                       struct cr_cost *out) {
    const struct cr_cost_model roof = cr_device_cost_model(c->device);
    struct cr_op               op   = *asked;
    *out                            = (struct cr_cost){.kernel = CR_NONE};
    if (!cr_kernel_find(c->device, p, &op, 0, &op.kernel)) return CR_OK;
    *out = (struct cr_cost){.kernel = op.kernel, .seconds = cr_op_seconds(&roof, p, &op), .source = "roofline"};
    return CR_OK;
}

cr_status cr_cost_table_best(struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *op,
                             struct cr_cost *out) {
    struct cr_text text   = {0};
    cr_status      status = cr_cost_signature(c->device, p, op, &text);
    c->queried            = true;
    if (status == CR_OK && !cr_cost_best_known(c, text.data, out)) {
        if (c->offline) {
            status = guess(c, p, op, out);
            goto out;
        }
        status = measure_all(c, p, op, text.data);
        (void)cr_cost_best_known(c, text.data, out);
    }
out:
    cr_text_free(&text);
    return status;
}

/* ---- what passes see ---- */

/* Libraries take long to say no to a convolution: that is remembered like a cost. */
static bool target_accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    struct cr_cost_table *c = self;
    if (!cr_cost_keeps_rejections(op->kind)) return cr_device_accepts(c->device, p, op);
    struct cr_text text = {0};
    struct cr_cost best;
    bool           accepts;
    c->queried = true;
    if (cr_cost_signature(c->device, p, op, &text) != CR_OK)
        accepts = cr_device_accepts(c->device, p, op);
    else if (cr_cost_best_known(c, text.data, &best))
        accepts = best.kernel >= 0;
    else {
        const struct cr_cost_entry refused = {
            .signature = text.data, .kernel = CR_NONE, .ns = 1, .source = CR_COST_MEASURED, .used = true};
        accepts = cr_device_accepts(c->device, p, op);
        if (!accepts && cr_cost_add(c, &refused) == CR_OK) c->dirty = true;
    }
    cr_text_free(&text);
    return accepts;
}

static cr_status target_cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    struct cr_cost_table *c = self;
    struct cr_cost        best;
    struct cr_op          asked = *op;
    size_t                workspace;
    const bool            by_bytes =
        op->kind == CR_OP_offload || op->kind == CR_OP_prefetch || op->kind == CR_OP_barrier ||
        op->kind ==
            CR_OP_all_reduce; /* copies: autotune/copy_rates.c; a collective cannot be tried by one rank alone */
    if (by_bytes) {
        const struct cr_cost_model target = cr_cost_table_model(c);
        *seconds                          = cr_op_seconds(&target, p, op);
        return CR_OK;
    }
    CR_TRY(cr_cost_table_best(c, p, op, &best));
    *seconds = best.seconds;
    return best.kernel >= 0 ? CR_OK : cr_device_select(c->device, p, &asked, &workspace); /* for its message */
}

static cr_status target_tell(void *self, const struct cr_program *p, const struct cr_op *op, struct cr_selection *out) {
    struct cr_cost_table *c = self;
    struct cr_cost        best;
    CR_TRY(cr_cost_table_best(c, p, op, &best));
    if (best.kernel >= 0)
        *out = (struct cr_selection){.kernel  = c->device->kernels[best.kernel]->name,
                                     .algo    = best.algo,
                                     .seconds = best.seconds,
                                     .source  = best.source};
    return CR_OK;
}

/* Is there anything to choose? What the table knows of was chosen before. */
static cr_status has_choice(struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *op, bool *yes) {
    struct cr_text text = {0};
    struct cr_cost best;
    int            first, second;
    cr_status      status = cr_cost_signature(c->device, p, op, &text);
    *yes                  = status == CR_OK && cr_cost_best_known(c, text.data, &best);
    cr_text_free(&text);
    if (status != CR_OK || *yes) return status;
    const struct cr_kernel *row = cr_kernel_find(c->device, p, op, 0, &first);
    *yes                        = row && ((row->algo_count && row->algo_count(c->device, p, op) > 1) ||
                   cr_kernel_find(c->device, p, op, first + 1, &second));
    return CR_OK;
}

static cr_status target_select(void *self, const struct cr_program *p, struct cr_op *op, size_t *workspace) {
    struct cr_cost_table *c = self;
    struct cr_cost        best;
    bool                  choice = false;
    if (op->kind != CR_OP_all_reduce) CR_TRY(has_choice(c, p, op, &choice));
    if (!choice) return cr_device_select(c->device, p, op, workspace);
    CR_TRY(cr_cost_table_best(c, p, op, &best));
    if (best.kernel < 0) return cr_device_select(c->device, p, op, workspace); /* for its message */
    op->kernel = best.kernel;
    op->algo   = best.algo;
    return cr_device_workspace(c->device, p, op, workspace);
}

static int64_t target_kept_elems(void *self, const struct cr_program *p, const struct cr_op *op) {
    return cr_device_packed_elems(((struct cr_cost_table *)self)->device, p, op);
}

static double target_foresee(void *self, const struct cr_program *p, const struct cr_op *op) {
    return cr_device_estimate(((struct cr_cost_table *)self)->device, p, op);
}

static void target_name_way(void *self, const struct cr_program *p, const struct cr_op *op, struct cr_text *out) {
    cr_device_algo_name(((struct cr_cost_table *)self)->device, p, op, out);
}

static bool target_reads_host(void *self, const struct cr_op *op, int slot) {
    return cr_device_reads_host(((struct cr_cost_table *)self)->device, op, slot);
}

struct cr_cost_model cr_cost_table_model(struct cr_cost_table *costs) {
    struct cr_cost_model t = cr_device_cost_model(costs->device);
    t.self                 = costs;
    t.accepts              = target_accepts;
    t.select               = target_select;
    t.explain              = target_tell;
    t.cost                 = target_cost;
    t.packed_elems         = target_kept_elems;
    t.estimate             = target_foresee;
    t.algo_name            = target_name_way;
    t.reads_host           = target_reads_host;
    cr_cost_use_copy_rates(costs, &t);
    return t;
}
