/* autotune/sharing.c: finds out whether other processes share the device while kernels are measured (noise, MPS).
 *
 * Such times select wrong kernels, and the file would keep them for all later runs. So equal launches of reference work
 * are timed. Alone on the device, all launches take equal times, and all pieces of a launch equal numbers of clock
 * cycles. Next to another process under MPS, pieces take longer while a multiprocessor also runs a block of the other
 * process, and launches take longer when they wait for multiprocessors that the other process fills. With time slices,
 * one launch waits for about 2 ms. The launches of one test last more than 1 ms together. A delay before them gives the
 * host the time to enqueue all of them before the first one starts.
 *
 * The device is tested before the first measurement, every half second and at the end. Only entries between two tests
 * without contention are written to the file. */
#include "autotune/cost_table_internal.h"

enum { LAUNCHES = 48, WARM_UP = 4 };
static const int64_t enqueue_ns = 600000;    /* the host enqueues all launches in this time */
static const int64_t period_ns  = 500000000; /* between two tests */
/* On a quiet device launches differ by a few percent, mainly by the resolution of events, and pieces by less. */
static const double contention_max = 1.15;

/* ---- the decision ---- */

double cr_sharing_of_launches(const double *seconds, int launches) {
    double sum = 0, shortest = seconds[0];
    for (int i = 0; i < launches; i++) {
        sum += seconds[i];
        shortest = CR_MIN(shortest, seconds[i]);
    }
    return shortest > 0 ? sum / launches / shortest : 1;
}

double cr_sharing_of_pieces(const uint64_t *ticks, int blocks) {
    double   sum = 0, pieces = 0;
    uint64_t shortest = UINT64_MAX;
    for (int b = 0; b < blocks; b++, ticks += 3) {
        if (!ticks[1]) continue;
        sum += (double)ticks[0];
        pieces += (double)ticks[1];
        shortest = CR_MIN(shortest, ticks[2]);
    }
    return pieces > 0 && shortest > 0 ? sum / pieces / (double)shortest : 1;
}

enum cr_sharing cr_sharing_decide(const struct cr_contention *contention, int tests) {
    int high = 0;
    for (int i = 0; i < tests; i++)
        high += contention[i].launches > contention_max || contention[i].pieces > contention_max;
    if (high >= 2) return CR_SHARING_YES;
    return (tests > 0 && high == 0) || tests - high >= 2 ? CR_SHARING_NO : CR_SHARING_UNDECIDED;
}

/* ---- a test ---- */

struct sharing_test {
    void    *event[LAUNCHES + 1];
    void    *memory; /* ticks, of the device */
    double   seconds[LAUNCHES];
    uint64_t ticks[3 * CR_REFERENCE_BLOCKS];
};

static cr_status run_launches(struct cr_device *device, struct sharing_test *t) {
    const struct cr_async *async = device->backend->async;
    CR_TRY(device->backend->reserve(device, sizeof t->ticks, &t->memory));
    for (int i = 0; i <= LAUNCHES; i++) CR_TRY(async->event_create(device, &t->event[i]));
    if (async->delay) CR_TRY(async->delay(device, CR_STREAM_COMPUTE, enqueue_ns));
    for (int i = -WARM_UP; i < LAUNCHES; i++) {
        if (i == 0) CR_TRY(async->event_record(device, CR_STREAM_COMPUTE, t->event[0]));
        CR_TRY(async->reference_work(device, CR_STREAM_COMPUTE, t->memory));
        if (i >= 0) CR_TRY(async->event_record(device, CR_STREAM_COMPUTE, t->event[i + 1]));
    }
    CR_TRY(async->host_wait(device, t->event[LAUNCHES]));
    for (int i = 0; i < LAUNCHES; i++) CR_TRY(async->elapsed(device, t->event[i], t->event[i + 1], &t->seconds[i]));
    return device->backend->get(device, t->ticks, t->memory, sizeof t->ticks);
}

/* Without memory for the test the device counts as quiet. */
cr_status cr_sharing_measure(struct cr_device *device, struct cr_contention *out) {
    struct sharing_test *t;
    *out = (struct cr_contention){1, 1};
    CR_ALLOC(t, 1);
    cr_status status = run_launches(device, t);
    if (status == CR_OK)
        *out = (struct cr_contention){cr_sharing_of_launches(t->seconds, LAUNCHES),
                                      cr_sharing_of_pieces(t->ticks, CR_REFERENCE_BLOCKS)};
    for (int i = 0; i <= LAUNCHES; i++) device->backend->async->event_destroy(device, t->event[i]);
    if (t->memory) device->backend->release(device, t->memory);
    cr_free(t);
    if (status != CR_ERR_MEMORY) return status;
    cr_error_clear();
    return CR_OK;
}

static cr_status is_shared(struct cr_device *device, bool *shared) {
    struct cr_contention contention[CR_SHARING_TRIES];
    enum cr_sharing      decision = CR_SHARING_UNDECIDED;
    for (int i = 0; i < CR_SHARING_TRIES && decision == CR_SHARING_UNDECIDED; i++) {
        CR_TRY(cr_sharing_measure(device, &contention[i]));
        decision = cr_sharing_decide(contention, i + 1);
    }
    *shared = decision == CR_SHARING_YES;
    return CR_OK;
}

/* ---- the table ---- */

static cr_status test_device(struct cr_cost_table *c) {
    struct cr_cost_sharing *s      = &c->sharing;
    const bool              before = s->known && s->shared;
    CR_TRY(is_shared(c->device, &s->shared));
    for (int i = s->tested; s->known && i < c->entries; i++) {
        struct cr_cost_entry *e = &c->entry[i];
        if (e->source != CR_COST_MEASURED || e->kernel == CR_NONE || !(before || s->shared)) continue;
        e->source = CR_COST_SHARED;
        s->unsaved++;
    }
    s->known     = true;
    s->tested    = c->entries;
    s->tested_ns = cr_time_ns();
    return CR_OK;
}

cr_status cr_sharing_before(struct cr_cost_table *c) {
    if (!c->device->backend->async->reference_work) return CR_OK;
    if (c->sharing.known && cr_time_ns() - c->sharing.tested_ns < period_ns) return CR_OK;
    return test_device(c);
}

int cr_sharing_after(struct cr_cost_table *c) {
    struct cr_cost_sharing *s = &c->sharing;
    if (s->known && s->tested < c->entries && test_device(c) != CR_OK)
        cr_error_clear(); /* the next launch reports it again */
    s->known = s->shared = false;
    const int unsaved    = s->unsaved;
    s->unsaved           = 0;
    if (unsaved)
        cr_log(
            CR_LOG_WARN,
            "%d kernel times were measured while other programs used the GPU: they are not saved, and this run may be "
            "slower; start one run alone first, or set train.measure=no",
            unsaved);
    return unsaved;
}
