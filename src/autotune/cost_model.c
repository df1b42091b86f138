/* autotune/cost_model.c: answers queries of the passes (fastest kernel of an op) from the cost table. */
#include "autotune/cost_table_internal.h"

#include "runtime/executor.h"

/* ---- one signature ---- */

static cr_status time_candidate(struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *op,
                                double best, double *seconds) {
    const int64_t start = cr_time_ns();
    c->sparse_cores |= c->device->kernels[op->kernel]->traits.sparse_cores;
    c->scratch.shared_device = c->sharing.shared;
    cr_status status = cr_cost_measure(c->device, &c->scratch, c->device->kernels[op->kernel], p, op, best, seconds);
    c->measured++;
    c->measure_ns += cr_time_ns() - start;
    if (status == CR_OK || status == CR_ERR_MEMORY) return status;
    return CR_FAIL(status, "%s (while timing the kernel %s; train.measure=no disables timing)", cr_error_message(),
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

/* Returns whether the kernel's estimate rules out that it is faster than `best`. */
static bool is_certainly_slower(const struct cr_cost_table *c, const struct cr_kernel *kernel,
                                const struct cr_program *p, const struct cr_op *op, double best) {
    return best > 0 && kernel->estimate && kernel->estimate(c->device, p, op) > CR_ESTIMATE_MARGIN * best;
}

/* Measures all candidates that may be the fastest. A candidate whose scratch memory cannot be reserved is skipped. If
 * all are skipped, the first one is added with its roofline time. */
static cr_status measure_all(struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *queried,
                             const char *signature) {
    const struct cr_cost_model roofline = cr_device_cost_model(c->device);
    const int                  before   = c->entries;
    struct cr_op               op = *queried, skipped = {.kernel = CR_NONE}; /* skipped: the first skipped candidate */
    double                     seconds, best          = 0;
    CR_TRY(cr_sharing_before(c));
    for (int from = 0; cr_kernel_find(c->device, p, &op, from, &op.kernel); from = op.kernel + 1) {
        const struct cr_kernel *kernel = c->device->kernels[op.kernel];
        if (is_certainly_slower(c, kernel, p, &op, best)) continue;
        const int algos = kernel->algo_count ? kernel->algo_count(c->device, p, &op) : 1;
        for (op.algo = 0; op.algo < algos; op.algo++) {
            const cr_status status = time_candidate(c, p, &op, best, &seconds);
            if (status == CR_ERR_MEMORY) {
                cr_error_clear();
                cr_measure_memory_release(c->device, &c->scratch);
                if (skipped.kernel == CR_NONE) skipped = op;
                continue;
            }
            CR_TRY(status);
            best = best == 0 ? seconds : CR_MIN(best, seconds);
            CR_TRY(add_candidate(c, &op, signature, seconds));
        }
    }
    if (skipped.kernel == CR_NONE) return CR_OK;
    if (c->entries == before) CR_TRY(add_candidate(c, &skipped, signature, cr_op_seconds(&roofline, p, &skipped)));
    for (int i = before; i < c->entries; i++) c->entry[i].source = CR_COST_PARTIAL;
    return CR_OK;
}

/* For an offline device: the first kernel that accepts the op, with its roofline time. */
static void use_roofline(const struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *queried,
                         struct cr_cost *out) {
    const struct cr_cost_model roofline = cr_device_cost_model(c->device);
    struct cr_op               op       = *queried;
    *out                                = (struct cr_cost){.kernel = CR_NONE};
    if (cr_kernel_find(c->device, p, &op, 0, &op.kernel))
        *out = (struct cr_cost){.kernel = op.kernel, .seconds = cr_op_seconds(&roofline, p, &op)};
}

cr_status cr_cost_table_best(struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *op,
                             struct cr_cost *out) {
    struct cr_text text   = {0};
    cr_status      status = cr_cost_signature(c->device, p, op, &text);
    c->queried            = true;
    if (status == CR_OK && !cr_cost_best_known(c, text.data, out)) {
        if (c->offline)
            use_roofline(c, p, op, out);
        else if (!cr_cost_lock(c) || !cr_cost_best_known(c, text.data, out)) { /* no other process has measured it */
            status = measure_all(c, p, op, text.data);
            (void)cr_cost_best_known(c, text.data, out);
        }
    }
    cr_text_free(&text);
    return status;
}

/* ---- callbacks of the cost model ---- */

/* A library takes long to reject a convolution, so the table stores rejections too. A sparse kernel copies its pattern
 * to the GPU when it is prepared, so plans of an offline device have dense kernels only. */
static bool model_accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    struct cr_cost_table *c = self;
    if (c->offline && cr_op_has_sparsity_pattern(op)) return false;
    if (!cr_cost_stores_rejections(op->kind)) return cr_device_accepts(c->device, p, op);
    struct cr_text text = {0};
    struct cr_cost best;
    bool           accepts;
    c->queried = true;
    if (cr_cost_signature(c->device, p, op, &text) != CR_OK)
        accepts = cr_device_accepts(c->device, p, op);
    else if (cr_cost_best_known(c, text.data, &best))
        accepts = best.kernel >= 0;
    else {
        const struct cr_cost_entry rejection = {
            .signature = text.data, .kernel = CR_NONE, .ns = 1, .source = CR_COST_MEASURED, .used = true};
        accepts = cr_device_accepts(c->device, p, op);
        if (!accepts && cr_cost_add(c, &rejection) == CR_OK) c->dirty = true;
    }
    cr_text_free(&text);
    return accepts;
}

/* Copies follow the rates of autotune/copy_rates.c, and one rank alone cannot measure a collective. Both are computed
 * from their bytes. */
static bool is_computed_from_bytes(enum cr_op_kind kind) {
    return kind == CR_OP_offload || kind == CR_OP_prefetch || kind == CR_OP_barrier || kind == CR_OP_all_reduce ||
           kind == CR_OP_fused;
}

static cr_status model_cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    struct cr_cost_table *c = self;
    struct cr_cost        best;
    struct cr_op          copy = *op;
    size_t                workspace;
    if (is_computed_from_bytes(op->kind)) {
        const struct cr_cost_model model = cr_cost_table_model(c);
        *seconds                         = cr_op_seconds(&model, p, op);
        return CR_OK;
    }
    CR_TRY(cr_cost_table_best(c, p, op, &best));
    *seconds = best.seconds;
    return best.kernel >= 0 ? CR_OK : cr_device_select(c->device, p, &copy, &workspace); /* sets the error message */
}

/* Sets *yes when the op has several candidates, or an entry in the table, which implies that it had several. */
static cr_status has_candidates(struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *op,
                                bool *yes) {
    struct cr_text text = {0};
    struct cr_cost best;
    int            first, second;
    cr_status      status = cr_cost_signature(c->device, p, op, &text);
    *yes                  = status == CR_OK && cr_cost_best_known(c, text.data, &best);
    cr_text_free(&text);
    if (status != CR_OK || *yes) return status;
    const struct cr_kernel *kernel = cr_kernel_find(c->device, p, op, 0, &first);
    *yes                           = kernel && ((kernel->algo_count && kernel->algo_count(c->device, p, op) > 1) ||
                      cr_kernel_find(c->device, p, op, first + 1, &second));
    return CR_OK;
}

/* A table from a file may name a kernel or a tile config that does not compute this op. A kernel of a library is not
 * asked, because the library builds a plan first, which takes long; it refuses in `prepare`. */
static bool still_accepts(const struct cr_cost_table *c, const struct cr_program *p, const struct cr_op *op,
                          const struct cr_cost *best) {
    const struct cr_kernel *kernel = c->device->kernels[best->kernel];
    if (cr_cost_stores_rejections(op->kind) && kernel->prepare) return true;
    return cr_kernel_accepts(c->device, kernel, p, op) &&
           (!kernel->algo_count || best->algo < kernel->algo_count(c->device, p, op));
}

static cr_status model_select(void *self, const struct cr_program *p, struct cr_op *op, size_t *workspace) {
    struct cr_cost_table *c = self;
    struct cr_cost        best;
    bool                  several = false;
    if (op->kind != CR_OP_all_reduce) CR_TRY(has_candidates(c, p, op, &several));
    if (several) CR_TRY(cr_cost_table_best(c, p, op, &best));
    if (!several || best.kernel < 0 || !still_accepts(c, p, op, &best)) /* without a kernel: sets the error message */
        return cr_device_select(c->device, p, op, workspace);
    op->kernel = best.kernel;
    op->algo   = best.algo;
    return cr_device_workspace(c->device, p, op, workspace);
}

struct cr_cost_model cr_cost_table_model(struct cr_cost_table *costs) {
    struct cr_cost_model t = cr_device_cost_model(costs->device);
    t.self                 = costs;
    t.accepts              = model_accepts;
    t.select               = model_select;
    t.cost                 = model_cost;
    cr_cost_use_copy_rates(costs, &t);
    return t;
}
