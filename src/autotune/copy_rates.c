/* autotune/copy_rates.c: how fast copies to the host and back are beside each other and beside work, and what they do
 * to work: measured once a device, kept in the table like any cost. See autotune/cost_table.h.
 *
 * The table knows costs of ops, so a rate is kept as the time of a swap op that carries PIECE_BYTES, and what a copy
 * takes besides its bytes as the time of one that carries almost none. Work is a row of launches of one op: copies to
 * the host are timed while it outlasts them (they read in competition with kernels: convolutions out of the cache,
 * statistics out of the memory; the slowest counts), and additions, which keep the memory busy, while copies outlast
 * them. */
#include "autotune/cost_table_internal.h"

#include <math.h>

enum { PIECE_BYTES = 64 << 20, PIECES = 4, SMALL_BYTES = 256, SMALL_PIECES = 64, ROUNDS = 3 };
enum { WORK_TENSORS = 3, WORK_BYTES = 128 << 20, WORK_LAUNCHES = 32, WORK_MOST = 4096, PIECES_MOST = 256 };
static const double outlasts = 1.5;
/* Beside real forward passes copies to the host went at 48 to 50 of 55.3 GB/s (one H200, five programs), beside each
 * kind of work that is timed here at 55 on most days. Why is open; a plan that counts on 55 stalls, so this much more
 * time is allowed for at least. */
static const double loaded_least = 1.13;
/* Loads of kernels: 51.2 GB/s where copies go at 55.5, 49.2 and 53.7 of 4 MiB (one H200). */
static const double loads_slower = 1.085;

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

/* ---- measuring ---- */

struct both_ways {
    struct cr_device *device;
    void             *host[2], *memory[2]; /* out, in */
    void             *begun, *done[2];     /* marks */
};

static cr_status open_both(struct both_ways *b) {
    const struct cr_async *async = b->device->backend->async;
    CR_TRY(async->event_create(b->device, &b->begun));
    for (int i = 0; i < 2; i++) {
        CR_TRY(async->host_reserve(b->device, PIECE_BYTES, &b->host[i]));
        CR_TRY(b->device->backend->reserve(b->device, PIECE_BYTES, &b->memory[i]));
        CR_TRY(async->event_create(b->device, &b->done[i]));
    }
    return CR_OK;
}

static void close_both(struct both_ways *b) {
    const struct cr_async *async = b->device->backend->async;
    async->event_destroy(b->device, b->begun);
    for (int i = 0; i < 2; i++) {
        async->event_destroy(b->device, b->done[i]);
        if (b->memory[i]) b->device->backend->release(b->device, b->memory[i]);
        if (b->host[i]) async->host_release(b->device, b->host[i]);
    }
}

/* Seconds a copy, when `pieces` go each way at once; a way of 0 pieces is left alone. */
static cr_status time_both(struct both_ways *b, const int pieces[2], size_t bytes, double seconds[2]) {
    static const enum cr_stream lane[2] = {CR_STREAM_TO_HOST, CR_STREAM_TO_DEVICE};
    const struct cr_async      *async   = b->device->backend->async;
    CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, b->begun));
    for (int i = 0; i < 2; i++) CR_TRY(async->stream_wait_event(b->device, lane[i], b->begun));
    for (int k = 0; k < CR_MAX(pieces[0], pieces[1]); k++) {
        if (k < pieces[0]) CR_TRY(async->get(b->device, lane[0], b->host[0], b->memory[0], bytes));
        if (k < pieces[1]) CR_TRY(async->put(b->device, lane[1], b->memory[1], b->host[1], bytes));
    }
    for (int i = 0; i < 2; i++) CR_TRY(async->event_record(b->device, lane[i], b->done[i]));
    for (int i = 0; i < 2; i++) {
        CR_TRY(async->host_wait(b->device, b->done[i]));
        CR_TRY(async->elapsed(b->device, b->begun, b->done[i], &seconds[i]));
        seconds[i] /= CR_MAX(pieces[i], 1);
    }
    return CR_OK;
}

static double middle(const double x[ROUNDS]) {
    return CR_MAX(CR_MIN(x[0], x[1]), CR_MIN(CR_MAX(x[0], x[1]), x[2]));
}

/* The middle one of three: what a plan counts on should be neither the best nor the worst that was seen. */
static cr_status measure(struct both_ways *b, double seconds[CR_COPY_TIMES]) {
    static const int both[2] = {PIECES, PIECES}, small[2] = {SMALL_PIECES, 0}, only_out[2] = {PIECES, 0},
                     only_in[2] = {0, PIECES};
    double out[ROUNDS], in[ROUNDS], out_alone[ROUNDS], in_alone[ROUNDS], alone[ROUNDS], pair[2];
    CR_TRY(time_both(b, both, PIECE_BYTES, pair)); /* to warm up */
    for (int i = 0; i < ROUNDS; i++) {
        CR_TRY(time_both(b, both, PIECE_BYTES, pair));
        out[i] = pair[0];
        in[i]  = pair[1];
        CR_TRY(time_both(b, only_out, PIECE_BYTES, pair));
        out_alone[i] = pair[0];
        CR_TRY(time_both(b, only_in, PIECE_BYTES, pair));
        in_alone[i] = pair[1];
        CR_TRY(time_both(b, small, SMALL_BYTES, pair));
        alone[i] = pair[0];
    }
    seconds[CR_COPY_TO_HOST]   = middle(out);
    seconds[CR_COPY_TO_DEVICE] = middle(in);
    seconds[CR_COPY_OUT_ALONE] = middle(out_alone);
    seconds[CR_COPY_IN_ALONE]  = middle(in_alone);
    seconds[CR_COPY_SMALL]     = middle(alone);
    return CR_OK;
}

/* ---- measuring, beside work ---- */

struct work { /* of large f32 tensors */
    struct cr_program       p;
    struct cr_op            op;
    const struct cr_kernel *row;
    struct cr_call          call;
    void                   *memory[WORK_TENSORS], *workspace, *begun, *done;
};

static int tensor(struct work *w, int i, int n, int h, int wide, int c) {
    static const char *const names[WORK_TENSORS] = {"a", "b", "y"};
    return cr_tensor_add(&w->p, names[i], CR_F32, CR_REGION_POOL, n, h, wide, c);
}

/* Each of its tensors within WORK_BYTES. */
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
    const struct cr_kernel *row = device->kernels[w->op.kernel];
    if (row->prepare) CR_TRY(row->prepare(device, &w->p, &w->op, &w->call.prepared, &bytes));
    w->row = row;
    for (int i = 0; i < WORK_TENSORS; i++) CR_TRY(device->backend->reserve(device, WORK_BYTES, &w->memory[i]));
    if (bytes) CR_TRY(device->backend->reserve(device, bytes, &w->workspace));
    w->call.program   = &w->p;
    w->call.op        = &w->op;
    w->call.workspace = w->workspace;
    for (int i = 0; i < 2; i++) w->call.in[i] = w->op.in[i] < 0 ? NULL : w->memory[i]; /* all have their inputs first */
    w->call.out[0] = w->memory[2];
    CR_TRY(device->backend->async->event_create(device, &w->begun));
    return device->backend->async->event_create(device, &w->done);
}

static void close_work(struct cr_device *device, struct work *w) {
    for (int i = 0; i < WORK_TENSORS; i++)
        if (w->memory[i]) device->backend->release(device, w->memory[i]);
    if (w->workspace) device->backend->release(device, w->workspace);
    if (w->row && w->row->release) w->row->release(w->call.prepared);
    device->backend->async->event_destroy(device, w->begun);
    device->backend->async->event_destroy(device, w->done);
    cr_program_free(&w->p);
}

/* `pieces` one way beside `launches`: seconds of a piece, and of all launches. */
static cr_status time_beside(struct both_ways *b, struct work *w, int way, int pieces, int launches, double *piece_s,
                             double *work_s) {
    static const enum cr_stream lane[2] = {CR_STREAM_TO_HOST, CR_STREAM_TO_DEVICE};
    const struct cr_async      *async   = b->device->backend->async;
    CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, b->begun));
    CR_TRY(async->stream_wait_event(b->device, lane[way], b->begun));
    for (int k = 0; k < pieces; k++)
        CR_TRY(way ? async->put(b->device, lane[1], b->memory[1], b->host[1], PIECE_BYTES)
                   : async->get(b->device, lane[0], b->host[0], b->memory[0], PIECE_BYTES));
    CR_TRY(async->event_record(b->device, lane[way], b->done[way]));
    CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, w->begun));
    for (int k = 0; k < launches; k++) CR_TRY(w->row->launch(b->device, &w->call));
    CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, w->done));
    CR_TRY(async->host_wait(b->device, b->done[way]));
    CR_TRY(async->host_wait(b->device, w->done));
    CR_TRY(async->elapsed(b->device, b->begun, b->done[way], piece_s));
    *piece_s /= CR_MAX(pieces, 1);
    return async->elapsed(b->device, w->begun, w->done, work_s);
}

static int times_to_outlast(double other, double one, int most) {
    return (int)CR_MIN(ceil(outlasts * other / CR_MAX(one, 1e-7)), (double)most);
}

/* seconds[] has what copies take alone. */
static cr_status measure_work(struct both_ways *b, struct work *w, enum cr_copy_time out,
                              double seconds[CR_COPY_TIMES]) {
    double x[ROUNDS], other;
    for (int i = -1; i < ROUNDS; i++)
        CR_TRY(time_beside(b, w, 0, 0, WORK_LAUNCHES, &other, &x[CR_MAX(i, 0)])); /* -1: to warm up */
    const double alone = middle(x), piece = seconds[CR_COPY_OUT_ALONE];
    for (int i = 0; i < ROUNDS; i++)
        CR_TRY(time_beside(b, w, 0, PIECES, times_to_outlast(PIECES * piece, alone / WORK_LAUNCHES, WORK_MOST), &x[i],
                           &other));
    seconds[out] = middle(x);
    if (out != CR_COPY_OUT_ADD) return CR_OK;
    seconds[CR_COPY_WORK_ALONE] = alone;
    for (int way = 0; way < 2; way++) {
        const int pieces = times_to_outlast(alone, seconds[way ? CR_COPY_IN_ALONE : CR_COPY_OUT_ALONE], PIECES_MOST);
        for (int i = 0; i < ROUNDS; i++) CR_TRY(time_beside(b, w, way, pieces, WORK_LAUNCHES, &other, &x[i]));
        seconds[way ? CR_COPY_WORK_IN : CR_COPY_WORK_OUT] = middle(x);
    }
    return CR_OK;
}

/* A kind of work that the device has no row for does copies no harm. */
static cr_status measure_load(struct both_ways *b, double seconds[CR_COPY_TIMES]) {
    static const enum cr_op_kind kinds[] = {CR_OP_add, CR_OP_bn_sums, CR_OP_conv};
    for (int i = 0; i < (int)CR_COUNT(kinds); i++) {
        struct work             w      = {.row = NULL};
        const enum cr_copy_time out    = (enum cr_copy_time)(CR_COPY_OUT_ADD + i);
        cr_status               status = open_work(b->device, kinds[i], &w);
        seconds[out]                   = seconds[CR_COPY_OUT_ALONE];
        if (status == CR_OK && w.row) status = measure_work(b, &w, out, seconds);
        close_work(b->device, &w);
        CR_TRY(status);
    }
    return CR_OK;
}

/* ---- the table ---- */

static int row_of(const struct cr_cost_table *c, enum cr_op_kind kind) {
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

static cr_status keep(struct cr_cost_table *c, double seconds[CR_COPY_TIMES], int from, int to) {
    for (int i = from; i < to; i++) {
        const struct cr_cost_entry e = {.signature = signatures[i],
                                        .source    = CR_COST_MEASURED,
                                        .used      = true,
                                        .kernel    = row_of(c, kind_of(i)),
                                        .ns        = CR_MAX((int64_t)(seconds[i] * 1e9 + 0.5), 1)};
        seconds[i]                   = (double)e.ns * 1e-9; /* as the table will say it */
        CR_TRY(cr_cost_add(c, &e));
    }
    c->measured += to - from;
    return CR_OK;
}

/* What is not known. Where there is no room to measure, the device's own figures stand, and nothing is kept. */
static cr_status measure_and_keep(struct cr_cost_table *c, int row) {
    struct both_ways b      = {.device = c->device};
    const bool       copies = !c->copies_known;
    bool             load   = false;
    const int64_t    start  = cr_time_ns();
    cr_status        status = open_both(&b);
    if (status == CR_OK && copies) {
        status          = measure(&b, c->copy_s);
        c->copies_known = status == CR_OK;
    }
    if (status == CR_OK && row != CR_NONE) {
        status = measure_load(&b, c->copy_s);
        load   = status == CR_OK;
    }
    close_both(&b);
    if (status == CR_ERR_MEMORY) {
        cr_error_clear();
        status = CR_OK;
    }
    CR_TRY(status);
    if (copies && c->copies_known) CR_TRY(keep(c, c->copy_s, 0, CR_COPY_OUT_ADD));
    if (load) CR_TRY(keep(c, c->copy_s, CR_COPY_OUT_ADD, CR_COPY_TIMES));
    c->contention_known = load;
    c->measure_ns += cr_time_ns() - start;
    return CR_OK;
}

static double share_more(double with, double alone) {
    return CR_MAX(with / alone - 1, 0);
}

void cr_cost_use_copy_rates(const struct cr_cost_table *c, struct cr_cost_model *target) {
    const double *s = c->copy_s, small = s[CR_COPY_SMALL];
    if (!c->copies_known) return;
    target->copy_latency_s        = small;
    target->to_host_bytes_per_s   = PIECE_BYTES / CR_MAX(s[CR_COPY_TO_HOST] - small, 1e-6);
    target->to_device_bytes_per_s = PIECE_BYTES / CR_MAX(s[CR_COPY_TO_DEVICE] - small, 1e-6);
    target->duplex_speedup =
        CR_MIN(s[CR_COPY_TO_HOST] / s[CR_COPY_OUT_ALONE], s[CR_COPY_TO_DEVICE] / s[CR_COPY_IN_ALONE]);
    target->mapped_read_slowdown = loads_slower;
    if (!c->contention_known) return;
    target->loaded_copy_slowdown = loaded_least;
    for (int i = CR_COPY_OUT_ADD; i <= CR_COPY_OUT_CONV; i++)
        target->loaded_copy_slowdown = CR_MAX(target->loaded_copy_slowdown, 1 + share_more(s[i], s[CR_COPY_OUT_ALONE]));
    target->contention_out = share_more(s[CR_COPY_WORK_OUT], s[CR_COPY_WORK_ALONE]);
    target->contention_in  = share_more(s[CR_COPY_WORK_IN], s[CR_COPY_WORK_ALONE]);
}

cr_status cr_cost_table_copy_rates(struct cr_cost_table *c, struct cr_cost_model *target) {
    const int row = row_of(c, CR_OP_add);
    CR_ASSERT(target->self == c);
    c->queried = true;
    if (!c->copies_known && row_of(c, CR_OP_offload) != CR_NONE && row_of(c, CR_OP_prefetch) != CR_NONE) {
        c->copies_known = all_known(c, c->copy_s, 0, CR_COPY_OUT_ADD);
        c->contention_known =
            c->copies_known && row != CR_NONE && all_known(c, c->copy_s, CR_COPY_OUT_ADD, CR_COPY_TIMES);
        if (!c->offline && !(c->copies_known && (c->contention_known || row == CR_NONE)))
            CR_TRY(measure_and_keep(c, row));
    }
    cr_cost_use_copy_rates(c, target);
    return CR_OK;
}
