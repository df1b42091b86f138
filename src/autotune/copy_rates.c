/* autotune/copy_rates.c: measures the rates of copies between host and device, alone and while kernels run, and the
 * slowdown of kernels during copies. See autotune/cost_table.h.
 *
 * Rates are measured once for a device and stored in the table. The table stores times of ops, so a rate is stored as
 * the time of an offload or prefetch op of PIECE_BYTES, and the fixed time of a copy as the time of a very small one.
 *
 * Work is a sequence of launches of one op. Copies to the host are timed while work runs that takes longer than they
 * do, because copies compete with kernels for memory: convolutions read from the cache, BN sums read from memory; the
 * slowest copy counts. The op `add`, which is limited by memory, is timed while copies run that take longer. */
#include "autotune/cost_table_internal.h"

#include <math.h>

enum { PIECE_BYTES = 64 << 20, PIECES = 4, SMALL_BYTES = 256, SMALL_PIECES = 64, ROUNDS = 3 };
enum { WORK_TENSORS = 3, WORK_BYTES = 128 << 20, WORK_LAUNCHES = 32, LAUNCHES_MAX = 4096, PIECES_MAX = 256 };
enum { OUT, IN };                         /* direction of a copy: to the host, to the device */
static const double overlap_margin = 1.5; /* background work lasts this many times as long as what is timed */
/* Minimum of loaded_copy_slowdown. During real forward passes copies to the host reached 48 to 50 of 55.3 GB/s (one
 * H200, five programs). During each op kind that is timed here they mostly reached 55. The cause is unknown. A plan
 * that assumes 55 GB/s stalls. */
static const double loaded_slowdown_min = 1.13;

static const char *const signatures[CR_COPY_TIMES] = {
    [CR_COPY_TO_HOST]     = "offload during prefetch, 64 MiB",
    [CR_COPY_TO_DEVICE]   = "prefetch during offload, 64 MiB",
    [CR_COPY_OUT_ALONE]   = "offload alone, 64 MiB",
    [CR_COPY_IN_ALONE]    = "prefetch alone, 64 MiB",
    [CR_COPY_SMALL]       = "offload alone, 256 B",
    [CR_COPY_OUT_ADD]     = "offload during add, 64 MiB",
    [CR_COPY_OUT_BN_SUMS] = "offload during bn_sums, 64 MiB",
    [CR_COPY_OUT_CONV]    = "offload during conv, 64 MiB",
    [CR_COPY_WORK_ALONE]  = "add alone, 32 of 128 MiB",
    [CR_COPY_WORK_OUT]    = "add during offload, 32 of 128 MiB",
    [CR_COPY_WORK_IN]     = "add during prefetch, 32 of 128 MiB",
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
    static const int both[2] = {PIECES, PIECES}, small[2] = {SMALL_PIECES, 0}, only_out[2] = {PIECES, 0},
                     only_in[2] = {0, PIECES};
    double out[ROUNDS], in[ROUNDS], out_alone[ROUNDS], in_alone[ROUNDS], small_alone[ROUNDS], pair[2];
    CR_TRY(time_copies(b, both, PIECE_BYTES, pair)); /* warm-up */
    for (int i = 0; i < ROUNDS; i++) {
        CR_TRY(time_copies(b, both, PIECE_BYTES, pair));
        out[i] = pair[OUT];
        in[i]  = pair[IN];
        CR_TRY(time_copies(b, only_out, PIECE_BYTES, pair));
        out_alone[i] = pair[OUT];
        CR_TRY(time_copies(b, only_in, PIECE_BYTES, pair));
        in_alone[i] = pair[IN];
        CR_TRY(time_copies(b, small, SMALL_BYTES, pair));
        small_alone[i] = pair[OUT];
    }
    seconds[CR_COPY_TO_HOST]   = median3(out);
    seconds[CR_COPY_TO_DEVICE] = median3(in);
    seconds[CR_COPY_OUT_ALONE] = median3(out_alone);
    seconds[CR_COPY_IN_ALONE]  = median3(in_alone);
    seconds[CR_COPY_SMALL]     = median3(small_alone);
    return CR_OK;
}

/* ---- copies and kernels at the same time ---- */

/* An op on f32 tensors of at most WORK_BYTES each, ready for launches. */
struct work {
    struct cr_program       p;
    struct cr_op            op;
    const struct cr_kernel *kernel; /* NULL: the device has no kernel for the op */
    struct cr_call          call;
    void                   *memory[WORK_TENSORS], *workspace;
    void                   *start, *done; /* events */
};

static int tensor(struct work *w, int i, int n, int height, int width, int c) {
    static const char *const names[WORK_TENSORS] = {"a", "b", "y"};
    return cr_tensor_add(&w->p, names[i], CR_F32, CR_REGION_POOL, n, height, width, c);
}

static void make_work(struct work *w, enum cr_op_kind kind) {
    w->op = cr_op_make(kind, CR_NONE);
    if (kind == CR_OP_add) {
        w->op.in[CR_IN_add_a]   = tensor(w, 0, 32, 64, 64, WORK_BYTES >> 19);
        w->op.in[CR_IN_add_b]   = tensor(w, 1, 32, 64, 64, WORK_BYTES >> 19);
        w->op.out[CR_OUT_add_y] = tensor(w, 2, 32, 64, 64, WORK_BYTES >> 19);
    } else if (kind == CR_OP_bn_sums) {
        w->op.in[CR_IN_bn_sums_x]      = tensor(w, 0, 32, 64, 64, WORK_BYTES >> 19);
        w->op.out[CR_OUT_bn_sums_sums] = tensor(w, 2, 2, 1, 1, WORK_BYTES >> 19);
    } else {
        w->op.attr.conv          = (struct cr_conv_attr){.stride = 1, .pad = 1, .window = 3};
        w->op.in[CR_IN_conv_x]   = tensor(w, 0, 64, 56, 56, 64);
        w->op.in[CR_IN_conv_w]   = tensor(w, 1, 64, 3, 3, 64);
        w->op.out[CR_OUT_conv_y] = tensor(w, 2, 64, 56, 56, 64);
    }
}

static cr_status open_work(struct cr_device *device, enum cr_op_kind kind, struct work *w) {
    size_t bytes = 0;
    cr_program_init(&w->p, "work", NULL);
    make_work(w, kind);
    if (w->p.failed) return CR_NO_MEMORY(sizeof *w->p.tensor);
    if (!cr_kernel_find(device, &w->p, &w->op, 0, &w->op.kernel)) return CR_OK;
    const struct cr_kernel *kernel = device->kernels[w->op.kernel];
    CR_TRY(cr_kernel_prepare(device, kernel, &w->p, &w->op, &w->call.prepared, &bytes));
    w->kernel = kernel;
    for (int i = 0; i < WORK_TENSORS; i++) CR_TRY(device->backend->reserve(device, WORK_BYTES, &w->memory[i]));
    if (bytes) CR_TRY(device->backend->reserve(device, bytes, &w->workspace));
    w->call.program   = &w->p;
    w->call.op        = &w->op;
    w->call.workspace = w->workspace;
    for (int i = 0; i < 2; i++) w->call.in[i] = w->op.in[i] < 0 ? NULL : w->memory[i];
    w->call.out[0] = w->memory[2];
    CR_TRY(device->backend->async->event_create(device, &w->start));
    return device->backend->async->event_create(device, &w->done);
}

static void close_work(struct cr_device *device, struct work *w) {
    for (int i = 0; i < WORK_TENSORS; i++)
        if (w->memory[i]) device->backend->release(device, w->memory[i]);
    if (w->workspace) device->backend->release(device, w->workspace);
    if (w->kernel) cr_kernel_release(w->kernel, w->call.prepared);
    device->backend->async->event_destroy(device, w->start);
    device->backend->async->event_destroy(device, w->done);
    cr_program_free(&w->p);
}

/* Runs `pieces` copies in one direction and `launches` launches at the same time. Returns the seconds of one copy and
 * of all launches. */
static cr_status time_overlapped(struct copy_bench *b, struct work *w, int direction, int pieces, int launches,
                                 double *piece_s, double *work_s) {
    const struct cr_async *async = b->device->backend->async;
    CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, b->start));
    CR_TRY(async->stream_wait_event(b->device, copy_stream[direction], b->start));
    for (int k = 0; k < pieces; k++) CR_TRY(enqueue_copy(b, direction, PIECE_BYTES));
    CR_TRY(async->event_record(b->device, copy_stream[direction], b->done[direction]));
    CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, w->start));
    for (int k = 0; k < launches; k++) CR_TRY(w->kernel->launch(b->device, &w->call));
    CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, w->done));
    CR_TRY(async->host_wait(b->device, b->done[direction]));
    CR_TRY(async->host_wait(b->device, w->done));
    CR_TRY(async->elapsed(b->device, b->start, b->done[direction], piece_s));
    *piece_s /= CR_MAX(pieces, 1);
    return async->elapsed(b->device, w->start, w->done, work_s);
}

/* Number of pieces of background work of one_s each that last longer than timed_s. */
static int background_count(double timed_s, double one_s, int max) {
    return (int)CR_MIN(ceil(overlap_margin * timed_s / CR_MAX(one_s, 1e-7)), (double)max);
}

/* Measures copies to the host during the work, and for `add` also the work during copies. seconds[] already holds the
 * times of copies alone. */
static cr_status measure_work(struct copy_bench *b, struct work *w, enum cr_copy_time out,
                              double seconds[CR_COPY_TIMES]) {
    double x[ROUNDS], other;
    for (int i = -1; i < ROUNDS; i++)
        CR_TRY(time_overlapped(b, w, OUT, 0, WORK_LAUNCHES, &other, &x[CR_MAX(i, 0)])); /* -1: warm-up */
    const double alone = median3(x), piece = seconds[CR_COPY_OUT_ALONE];
    const int    launches = background_count(PIECES * piece, alone / WORK_LAUNCHES, LAUNCHES_MAX);
    for (int i = 0; i < ROUNDS; i++) CR_TRY(time_overlapped(b, w, OUT, PIECES, launches, &x[i], &other));
    seconds[out] = median3(x);
    if (out != CR_COPY_OUT_ADD) return CR_OK;
    seconds[CR_COPY_WORK_ALONE] = alone;
    for (int direction = OUT; direction <= IN; direction++) {
        const bool to_host = direction == OUT;
        const int pieces = background_count(alone, seconds[to_host ? CR_COPY_OUT_ALONE : CR_COPY_IN_ALONE], PIECES_MAX);
        for (int i = 0; i < ROUNDS; i++) CR_TRY(time_overlapped(b, w, direction, pieces, WORK_LAUNCHES, &other, &x[i]));
        seconds[to_host ? CR_COPY_WORK_OUT : CR_COPY_WORK_IN] = median3(x);
    }
    return CR_OK;
}

/* Measures copies during each kind of work. A kind without a kernel counts as no slowdown. */
static cr_status measure_contention(struct copy_bench *b, double seconds[CR_COPY_TIMES]) {
    static const enum cr_op_kind kinds[] = {CR_OP_add, CR_OP_bn_sums, CR_OP_conv};
    for (int i = 0; i < (int)CR_COUNT(kinds); i++) {
        struct work             w      = {.kernel = NULL};
        const enum cr_copy_time out    = (enum cr_copy_time)(CR_COPY_OUT_ADD + i);
        cr_status               status = open_work(b->device, kinds[i], &w);
        seconds[out]                   = seconds[CR_COPY_OUT_ALONE];
        if (status == CR_OK && w.kernel) status = measure_work(b, &w, out, seconds);
        close_work(b->device, &w);
        CR_TRY(status);
    }
    return CR_OK;
}

/* ---- the table ---- */

static int first_kernel(const struct cr_cost_table *c, enum cr_op_kind kind) {
    for (int i = 0; c->device->kernels[i]; i++)
        if (c->device->kernels[i]->op == kind) return i;
    return CR_NONE;
}

static bool all_known(struct cr_cost_table *c, double seconds[CR_COPY_TIMES], int from, int to) {
    struct cr_cost cost;
    for (int i = from; i < to; i++) {
        if (!cr_cost_best_known(c, signatures[i], &cost) || cost.kernel < 0) return false;
        seconds[i] = cost.seconds;
    }
    return true;
}

static enum cr_op_kind kind_of(int time) {
    if (time >= CR_COPY_WORK_ALONE) return CR_OP_add;
    return time == CR_COPY_TO_DEVICE || time == CR_COPY_IN_ALONE ? CR_OP_prefetch : CR_OP_offload;
}

/* Adds the times from index `from` to `to` - 1 to the table, and rounds them to the precision of the table. */
static cr_status store_times(struct cr_cost_table *c, double seconds[CR_COPY_TIMES], int from, int to) {
    for (int i = from; i < to; i++) {
        const struct cr_cost_entry e = {.signature = signatures[i],
                                        .source    = CR_COST_MEASURED,
                                        .used      = true,
                                        .kernel    = first_kernel(c, kind_of(i)),
                                        .ns        = CR_MAX((int64_t)(seconds[i] * 1e9 + 0.5), 1)};
        seconds[i]                   = (double)e.ns * 1e-9;
        CR_TRY(cr_cost_add(c, &e));
    }
    c->measured += to - from;
    return CR_OK;
}

/* Measures the times that the table lacks and stores them. If memory is too short, the device's estimates stay.
 * `kernel` is the index of a kernel for `add`, or CR_NONE. */
static cr_status measure_missing(struct cr_cost_table *c, int kernel) {
    struct copy_bench b          = {.device = c->device};
    const bool        copies     = !c->copies_known;
    bool              contention = false;
    CR_TRY(cr_sharing_before(c));
    const int64_t start  = cr_time_ns();
    cr_status     status = open_bench(&b);
    if (status == CR_OK && copies) {
        status          = measure_copies(&b, c->copy_s);
        c->copies_known = status == CR_OK;
    }
    if (status == CR_OK && kernel != CR_NONE) {
        status     = measure_contention(&b, c->copy_s);
        contention = status == CR_OK;
    }
    close_bench(&b);
    if (status == CR_ERR_MEMORY) {
        cr_error_clear();
        status = CR_OK;
    }
    CR_TRY(status);
    if (copies && c->copies_known) CR_TRY(store_times(c, c->copy_s, 0, CR_COPY_OUT_ADD));
    if (contention) CR_TRY(store_times(c, c->copy_s, CR_COPY_OUT_ADD, CR_COPY_TIMES));
    c->contention_known = contention;
    c->measure_ns += cr_time_ns() - start;
    return CR_OK;
}

/* Additional time as a fraction of the time alone. */
static double slowdown(double overlapped, double alone) {
    return CR_MAX(overlapped / alone - 1, 0);
}

void cr_cost_use_copy_rates(const struct cr_cost_table *c, struct cr_cost_model *model) {
    const double *s = c->copy_s, small = s[CR_COPY_SMALL];
    if (!c->copies_known) return;
    model->copy_latency_s        = small;
    model->to_host_bytes_per_s   = PIECE_BYTES / CR_MAX(s[CR_COPY_TO_HOST] - small, 1e-6);
    model->to_device_bytes_per_s = PIECE_BYTES / CR_MAX(s[CR_COPY_TO_DEVICE] - small, 1e-6);
    model->duplex_speedup =
        CR_MIN(s[CR_COPY_TO_HOST] / s[CR_COPY_OUT_ALONE], s[CR_COPY_TO_DEVICE] / s[CR_COPY_IN_ALONE]);
    if (!c->contention_known) return;
    model->loaded_copy_slowdown = loaded_slowdown_min;
    for (int i = CR_COPY_OUT_ADD; i <= CR_COPY_OUT_CONV; i++)
        model->loaded_copy_slowdown = CR_MAX(model->loaded_copy_slowdown, 1 + slowdown(s[i], s[CR_COPY_OUT_ALONE]));
    model->contention_out = slowdown(s[CR_COPY_WORK_OUT], s[CR_COPY_WORK_ALONE]);
    model->contention_in  = slowdown(s[CR_COPY_WORK_IN], s[CR_COPY_WORK_ALONE]);
}

/* Takes the times from the table. Returns whether it has all. */
static bool find_known(struct cr_cost_table *c, int kernel) {
    c->copies_known = all_known(c, c->copy_s, 0, CR_COPY_OUT_ADD);
    c->contention_known =
        c->copies_known && kernel != CR_NONE && all_known(c, c->copy_s, CR_COPY_OUT_ADD, CR_COPY_TIMES);
    return c->copies_known && (c->contention_known || kernel == CR_NONE);
}

cr_status cr_cost_table_copy_rates(struct cr_cost_table *c, struct cr_cost_model *model) {
    const int kernel = first_kernel(c, CR_OP_add);
    CR_ASSERT(model->self == c);
    c->queried = true;
    if (!c->copies_known && first_kernel(c, CR_OP_offload) != CR_NONE && first_kernel(c, CR_OP_prefetch) != CR_NONE) {
        bool known = find_known(c, kernel);
        if (!c->offline && !known && cr_cost_lock(c)) known = find_known(c, kernel);
        if (!c->offline && !known) CR_TRY(measure_missing(c, kernel));
    }
    cr_cost_use_copy_rates(c, model);
    return CR_OK;
}
