/* autotune/host_times.c: measures ops on a synchronous device. See autotune/host_times.h. */
#include "autotune/host_times.h"

#include "autotune/cost_table_internal.h"

enum { ROUNDS_MIN = 4, ROUNDS_MAX = 100 };
static const int64_t rounds_ns = 10000000; /* rounds end after this time */

struct cr_host_times {
    struct cr_cost_table table; /* has no file */
};

cr_status cr_host_times_open(struct cr_device *device, struct cr_host_times **out) {
    *out = NULL;
    CR_ALLOC(*out, 1);
    (*out)->table.device = device;
    return CR_OK;
}

void cr_host_times_close(struct cr_host_times *t) {
    if (!t) return;
    cr_measure_memory_release(t->table.device, &t->table.scratch);
    cr_cost_free_table(&t->table);
    cr_free(t);
}

static cr_status time_launches(struct cr_device *device, const struct cr_kernel *kernel, const struct cr_call *call,
                               int64_t *ns) {
    int64_t sum = 0;
    CR_TRY(kernel->launch(device, call)); /* warm-up: loads code, packs filters */
    for (int i = 0; i < ROUNDS_MAX && (i < ROUNDS_MIN || sum < rounds_ns); i++) {
        const int64_t start = cr_time_ns();
        CR_TRY(kernel->launch(device, call));
        const int64_t one = CR_MAX(cr_time_ns() - start, 1);
        *ns               = i ? CR_MIN(*ns, one) : one;
        sum += one;
    }
    return CR_OK;
}

/* Sets kernel and ns of the entry. */
static cr_status measure(struct cr_host_times *t, const struct cr_program *p, const struct cr_op *given,
                         struct cr_cost_entry *e) {
    struct cr_device *device    = t->table.device;
    struct cr_op      op        = *given;
    void             *prepared  = NULL;
    size_t            workspace = 0;
    cr_status         status    = CR_OK;
    struct cr_call    call;
    /* packed weights would have to be made first */
    if (op.kind == CR_OP_conv) op.in[CR_IN_conv_packed] = CR_NONE;
    const struct cr_kernel *kernel = cr_kernel_find(device, p, &op, 0, &op.kernel);
    if (!kernel) return CR_OK;
    op.algo   = 0;
    e->kernel = op.kernel;
    CR_TRY(cr_kernel_prepare(device, kernel, p, &op, &prepared, &workspace));
    CR_TRY_OUT(cr_measure_place(device, &t->table.scratch, p, &op, workspace, &call));
    call.prepared = prepared;
    CR_TRY_OUT(time_launches(device, kernel, &call, &e->ns));
out:
    cr_kernel_release(kernel, prepared);
    return status;
}

cr_status cr_host_times_of(struct cr_host_times *t, const struct cr_program *p, const struct cr_op *op,
                           double *seconds) {
    struct cr_text       text = {0};
    struct cr_cost       cost;
    struct cr_cost_entry e = {.kernel = CR_NONE, .ns = 1};
    cr_status            status;
    CR_TRY_OUT(cr_cost_signature(t->table.device, p, op, &text));
    e.signature = text.data;
    if (!cr_cost_best_known(&t->table, text.data, &cost)) {
        CR_TRY_OUT(measure(t, p, op, &e));
        CR_TRY_OUT(cr_cost_add(&t->table, &e));
        (void)cr_cost_best_known(&t->table, text.data, &cost);
    }
    *seconds = cost.seconds;
out:
    cr_text_free(&text);
    return status;
}
