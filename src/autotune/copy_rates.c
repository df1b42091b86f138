/* autotune/copy_rates.c: measures the rates of copies between host and device. See autotune/cost_table.h.
 *
 * Rates are measured once for a device and stored in the table. The table stores times of ops, so a rate is stored as
 * the time of an offload or prefetch op of PIECE_BYTES, and the fixed time of a copy as the time of a very small one.
 */
#include "autotune/cost_table_internal.h"

enum { PIECE_BYTES = 64 << 20, PIECES = 4, SMALL_BYTES = 256, SMALL_PIECES = 64, ROUNDS = 3 };
enum { OUT, IN }; /* direction of a copy: to the host, to the device */
/* During real forward passes copies to the host reached 48 to 50 of 55.3 GB/s (one H200, five programs), and 54 to 55
 * while one op ran again and again (add, bn_sums, conv). The cause is unknown. A plan that assumes 55 GB/s stalls. */
static const double loaded_slowdown = 1.13;

static const char *const signatures[CR_COPY_TIMES] = {
    [CR_COPY_TO_HOST]   = "offload during prefetch, 64 MiB",
    [CR_COPY_TO_DEVICE] = "prefetch during offload, 64 MiB",
    [CR_COPY_OUT_ALONE] = "offload alone, 64 MiB",
    [CR_COPY_IN_ALONE]  = "prefetch alone, 64 MiB",
    [CR_COPY_SMALL]     = "offload alone, 256 B",
};

/* ---- copies alone ---- */

/* Buffers and events of copies; arrays are indexed by direction. */
struct copy_bench {
    struct cr_device *device;
    void             *host[2], *memory[2];
    void             *start, *done[2]; /* events */
};

static const enum cr_stream copy_stream[2] = {CR_STREAM_TO_HOST, CR_STREAM_TO_DEVICE};

static cr_status open_bench(struct copy_bench *b) {
    const struct cr_async *async = b->device->backend->async;
    CR_TRY(async->event_create(b->device, &b->start));
    for (int i = 0; i < 2; i++) {
        CR_TRY(async->host_reserve(b->device, PIECE_BYTES, &b->host[i]));
        CR_TRY(b->device->backend->reserve(b->device, PIECE_BYTES, &b->memory[i]));
        CR_TRY(async->event_create(b->device, &b->done[i]));
    }
    return CR_OK;
}

static void close_bench(struct copy_bench *b) {
    const struct cr_async *async = b->device->backend->async;
    async->event_destroy(b->device, b->start);
    for (int i = 0; i < 2; i++) {
        async->event_destroy(b->device, b->done[i]);
        if (b->memory[i]) b->device->backend->release(b->device, b->memory[i]);
        if (b->host[i]) async->host_release(b->device, b->host[i]);
    }
}

static cr_status enqueue_copy(struct copy_bench *b, int direction, size_t bytes) {
    const struct cr_async *async = b->device->backend->async;
    return direction == OUT ? async->get(b->device, copy_stream[OUT], b->host[OUT], b->memory[OUT], bytes)
                            : async->put(b->device, copy_stream[IN], b->memory[IN], b->host[IN], bytes);
}

/* seconds[d]: time of one copy in direction d while pieces[d] copies of `bytes` run in each direction. */
static cr_status time_copies(struct copy_bench *b, const int pieces[2], size_t bytes, double seconds[2]) {
    const struct cr_async *async = b->device->backend->async;
    CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, b->start));
    for (int i = 0; i < 2; i++) CR_TRY(async->stream_wait_event(b->device, copy_stream[i], b->start));
    for (int k = 0; k < CR_MAX(pieces[OUT], pieces[IN]); k++) {
        if (k < pieces[OUT]) CR_TRY(enqueue_copy(b, OUT, bytes));
        if (k < pieces[IN]) CR_TRY(enqueue_copy(b, IN, bytes));
    }
    for (int i = 0; i < 2; i++) CR_TRY(async->event_record(b->device, copy_stream[i], b->done[i]));
    for (int i = 0; i < 2; i++) {
        CR_TRY(async->host_wait(b->device, b->done[i]));
        CR_TRY(async->elapsed(b->device, b->start, b->done[i], &seconds[i]));
        seconds[i] /= CR_MAX(pieces[i], 1);
    }
    return CR_OK;
}

static double median3(const double x[ROUNDS]) {
    return CR_MAX(CR_MIN(x[0], x[1]), CR_MIN(CR_MAX(x[0], x[1]), x[2]));
}

static cr_status measure_copies(struct copy_bench *b, double seconds[CR_COPY_TIMES]) {
    static const struct { /* both by direction */
        int               pieces[2];
        enum cr_copy_time time[2];
        size_t            bytes;
    } runs[] = {{{PIECES, PIECES}, {CR_COPY_TO_HOST, CR_COPY_TO_DEVICE}, PIECE_BYTES},
                {{PIECES, 0}, {CR_COPY_OUT_ALONE}, PIECE_BYTES},
                {{0, PIECES}, {[IN] = CR_COPY_IN_ALONE}, PIECE_BYTES},
                {{SMALL_PIECES, 0}, {CR_COPY_SMALL}, SMALL_BYTES}};
    double took[CR_COPY_TIMES][ROUNDS], pair[2];
    CR_TRY(time_copies(b, runs[0].pieces, PIECE_BYTES, pair)); /* warm-up */
    for (int i = 0; i < ROUNDS; i++)
        for (size_t k = 0; k < CR_COUNT(runs); k++) {
            CR_TRY(time_copies(b, runs[k].pieces, runs[k].bytes, pair));
            for (int d = 0; d < 2; d++)
                if (runs[k].pieces[d]) took[runs[k].time[d]][i] = pair[d];
        }
    for (int t = 0; t < CR_COPY_TIMES; t++) seconds[t] = median3(took[t]);
    return CR_OK;
}

/* ---- the table ---- */

static int first_kernel(const struct cr_cost_table *c, enum cr_op_kind kind) {
    for (int i = 0; c->device->kernels[i]; i++)
        if (c->device->kernels[i]->op == kind) return i;
    return CR_NONE;
}

/* Takes the times from the table. Returns whether it has all. */
static bool find_known(struct cr_cost_table *c) {
    struct cr_cost cost;
    for (int i = 0; i < CR_COPY_TIMES; i++) {
        if (!cr_cost_best_known(c, signatures[i], &cost) || cost.kernel < 0) return false;
        c->copy_s[i] = cost.seconds;
    }
    return c->copies_known = true;
}

/* Adds the times to the table, and rounds them to the precision of the table. */
static cr_status store_times(struct cr_cost_table *c) {
    for (int i = 0; i < CR_COPY_TIMES; i++) {
        const bool                 in = i == CR_COPY_TO_DEVICE || i == CR_COPY_IN_ALONE;
        const struct cr_cost_entry e  = {.signature = signatures[i],
                                         .source    = CR_COST_MEASURED,
                                         .used      = true,
                                         .kernel    = first_kernel(c, in ? CR_OP_prefetch : CR_OP_offload),
                                         .ns        = CR_MAX((int64_t)(c->copy_s[i] * 1e9 + 0.5), 1)};
        c->copy_s[i]                  = (double)e.ns * 1e-9;
        CR_TRY(cr_cost_add(c, &e));
    }
    c->measured += CR_COPY_TIMES;
    return CR_OK;
}

/* Measures the times and stores them. If memory is too short, the device's estimates stay. */
static cr_status measure(struct cr_cost_table *c) {
    struct copy_bench b = {.device = c->device};
    CR_TRY(cr_sharing_before(c));
    const int64_t start  = cr_time_ns();
    cr_status     status = open_bench(&b);
    if (status == CR_OK) status = measure_copies(&b, c->copy_s);
    close_bench(&b);
    c->copies_known = status == CR_OK;
    if (status == CR_ERR_MEMORY) {
        cr_error_clear();
        return CR_OK;
    }
    if (status == CR_OK) status = store_times(c);
    c->measure_ns += cr_time_ns() - start;
    return status;
}

/* A copy takes its bytes from the memory bandwidth of the kernels that run. */
static double contention(const struct cr_cost_model *model, double bytes_per_s) {
    return model->bytes_per_s > 0 ? bytes_per_s / model->bytes_per_s : 0;
}

void cr_cost_use_copy_rates(const struct cr_cost_table *c, struct cr_cost_model *model) {
    const double *s = c->copy_s, small = s[CR_COPY_SMALL];
    if (!c->copies_known) return;
    model->copy_latency_s        = small;
    model->to_host_bytes_per_s   = PIECE_BYTES / CR_MAX(s[CR_COPY_TO_HOST] - small, 1e-6);
    model->to_device_bytes_per_s = PIECE_BYTES / CR_MAX(s[CR_COPY_TO_DEVICE] - small, 1e-6);
    model->duplex_speedup =
        CR_MIN(s[CR_COPY_TO_HOST] / s[CR_COPY_OUT_ALONE], s[CR_COPY_TO_DEVICE] / s[CR_COPY_IN_ALONE]);
    model->loaded_copy_slowdown = loaded_slowdown;
    model->contention_out       = contention(model, model->to_host_bytes_per_s);
    model->contention_in        = contention(model, model->to_device_bytes_per_s);
}

cr_status cr_cost_table_copy_rates(struct cr_cost_table *c, struct cr_cost_model *model) {
    CR_ASSERT(model->self == c);
    c->queried = true;
    if (!c->copies_known && first_kernel(c, CR_OP_offload) != CR_NONE && first_kernel(c, CR_OP_prefetch) != CR_NONE) {
        bool known = find_known(c);
        if (!c->offline && !known && cr_cost_lock(c)) known = find_known(c);
        if (!c->offline && !known) CR_TRY(measure(c));
    }
    cr_cost_use_copy_rates(c, model);
    return CR_OK;
}
