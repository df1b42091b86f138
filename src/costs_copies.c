/* costs_copies.c: how fast copies to the host and back are beside each other: measured once a device, kept in the table like any
 * cost. See costs.h.
 *
 * The table knows costs of ops, so a rate is kept as the time of a swap op that carries PIECE_BYTES, and what a copy takes
 * besides its bytes as the time of one that carries almost none. */
#include "costs_parts.h"

enum { PIECE_BYTES = 64 << 20, PIECES = 4, SMALL_BYTES = 256, SMALL_PIECES = 64, ROUNDS = 3 };

static const char *const signatures[CR_COPY_TIMES] = {
    [CR_COPY_TO_HOST]   = "swap_out beside swap_in, 64 MiB",
    [CR_COPY_TO_DEVICE] = "swap_in beside swap_out, 64 MiB",
    [CR_COPY_OUT_ALONE] = "swap_out alone, 64 MiB",
    [CR_COPY_IN_ALONE]  = "swap_in alone, 64 MiB",
    [CR_COPY_SMALL]     = "swap_out alone, 256 B",
};

/* ---- measuring ---- */

struct both_ways {
    struct cr_device *device;
    void             *host[2], *memory[2]; /* out, in */
    void             *begun, *done[2];     /* marks */
};

static cr_status open_both(struct both_ways *b) {
    const struct cr_async *async = b->device->backend->async;
    CR_TRY(async->mark_open(b->device, &b->begun));
    for (int i = 0; i < 2; i++) {
        CR_TRY(async->host_reserve(b->device, PIECE_BYTES, &b->host[i]));
        CR_TRY(b->device->backend->reserve(b->device, PIECE_BYTES, &b->memory[i]));
        CR_TRY(async->mark_open(b->device, &b->done[i]));
    }
    return CR_OK;
}

static void close_both(struct both_ways *b) {
    const struct cr_async *async = b->device->backend->async;
    async->mark_close(b->device, b->begun);
    for (int i = 0; i < 2; i++) {
        async->mark_close(b->device, b->done[i]);
        if (b->memory[i]) b->device->backend->release(b->device, b->memory[i]);
        if (b->host[i]) async->host_release(b->device, b->host[i]);
    }
}

/* Seconds a copy, when `pieces` go each way at once; a way of 0 pieces is left alone. */
static cr_status time_both(struct both_ways *b, const int pieces[2], size_t bytes, double seconds[2]) {
    static const enum cr_lane lane[2] = {CR_LANE_TO_HOST, CR_LANE_TO_DEVICE};
    const struct cr_async    *async   = b->device->backend->async;
    CR_TRY(async->mark_set(b->device, CR_LANE_COMPUTE, b->begun));
    for (int i = 0; i < 2; i++) CR_TRY(async->lane_wait(b->device, lane[i], b->begun));
    for (int k = 0; k < CR_MAX(pieces[0], pieces[1]); k++) {
        if (k < pieces[0]) CR_TRY(async->get(b->device, lane[0], b->host[0], b->memory[0], bytes));
        if (k < pieces[1]) CR_TRY(async->put(b->device, lane[1], b->memory[1], b->host[1], bytes));
    }
    for (int i = 0; i < 2; i++) CR_TRY(async->mark_set(b->device, lane[i], b->done[i]));
    for (int i = 0; i < 2; i++) {
        CR_TRY(async->host_wait(b->device, b->done[i]));
        CR_TRY(async->elapsed(b->device, b->begun, b->done[i], &seconds[i]));
        seconds[i] /= CR_MAX(pieces[i], 1);
    }
    return CR_OK;
}

static double middle(const double x[ROUNDS]) { return CR_MAX(CR_MIN(x[0], x[1]), CR_MIN(CR_MAX(x[0], x[1]), x[2])); }

/* The middle one of three: what a plan counts on should be neither the best nor the worst that was seen. */
static cr_status measure(struct both_ways *b, double seconds[CR_COPY_TIMES]) {
    static const int both[2] = {PIECES, PIECES}, small[2] = {SMALL_PIECES, 0}, only_out[2] = {PIECES, 0}, only_in[2] = {0, PIECES};
    double           out[ROUNDS], in[ROUNDS], out_alone[ROUNDS], in_alone[ROUNDS], alone[ROUNDS], pair[2];
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

/* ---- the table ---- */

static int row_of(const struct cr_costs *c, enum cr_op_kind kind) {
    for (int i = 0; c->device->rows[i]; i++)
        if (c->device->rows[i]->op == kind) return i;
    return CR_NONE;
}

static bool all_known(struct cr_costs *c, double seconds[CR_COPY_TIMES]) {
    struct cr_cost cost;
    for (int i = 0; i < CR_COPY_TIMES; i++) {
        if (!cr_cost_best_known(c, signatures[i], &cost) || cost.row < 0) return false;
        seconds[i] = cost.seconds;
    }
    return true;
}

/* Where there is no room to measure, the device's own figures stand, and nothing is kept. */
static cr_status measure_and_keep(struct cr_costs *c, double seconds[CR_COPY_TIMES], bool *known) {
    struct both_ways b      = {.device = c->device};
    const int64_t    start  = cr_time_ns();
    cr_status        status = open_both(&b);
    if (status == CR_OK) status = measure(&b, seconds);
    close_both(&b);
    *known = status == CR_OK;
    if (status == CR_ERR_MEMORY) {
        cr_error_clear();
        return CR_OK;
    }
    CR_TRY(status);
    for (int i = 0; i < CR_COPY_TIMES; i++) {
        const struct cr_cost_entry e = {.signature = signatures[i], .source = CR_COST_MEASURED, .used = true,
                                        .row = row_of(c, i == CR_COPY_TO_DEVICE || i == CR_COPY_IN_ALONE ? CR_OP_swap_in : CR_OP_swap_out),
                                        .ns = CR_MAX((int64_t)(seconds[i] * 1e9 + 0.5), 1)};
        seconds[i] = (double)e.ns * 1e-9; /* as the table will say it */
        CR_TRY(cr_cost_add(c, &e));
    }
    c->measured += CR_COPY_TIMES;
    c->measure_ns += cr_time_ns() - start;
    return CR_OK;
}

void cr_cost_use_copies(const struct cr_costs *c, struct cr_target *target) {
    const double *s = c->copy_s, small = s[CR_COPY_SMALL];
    if (!c->copies_known) return;
    target->copy_latency_s        = small;
    target->to_host_bytes_per_s   = PIECE_BYTES / CR_MAX(s[CR_COPY_TO_HOST] - small, 1e-6);
    target->to_device_bytes_per_s = PIECE_BYTES / CR_MAX(s[CR_COPY_TO_DEVICE] - small, 1e-6);
    target->copy_alone            = CR_MIN(s[CR_COPY_TO_HOST] / s[CR_COPY_OUT_ALONE], s[CR_COPY_TO_DEVICE] / s[CR_COPY_IN_ALONE]);
}

cr_status cr_costs_copies(struct cr_costs *c, struct cr_target *target) {
    CR_ASSERT(target->self == c);
    c->asked = true;
    if (!c->copies_known && row_of(c, CR_OP_swap_out) != CR_NONE && row_of(c, CR_OP_swap_in) != CR_NONE) {
        c->copies_known = all_known(c, c->copy_s);
        if (!c->copies_known && !c->elsewhere) CR_TRY(measure_and_keep(c, c->copy_s, &c->copies_known));
    }
    cr_cost_use_copies(c, target);
    return CR_OK;
}
