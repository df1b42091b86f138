/* autotune/sharing.c: finds out whether other processes use the device while kernels are measured.
 *
 * Such times select wrong kernels, and the file would keep them for all later runs. So equal launches of reference work
 * are timed one by one. Alone on the device they take equal times. Next to another process some take longer: under MPS
 * its blocks occupy multiprocessors, and with time slices the device works for the other process for about 2 ms. The
 * launches of one test last more than 1 ms together. A delay before them gives the host the time to enqueue all of them
 * before the first one starts.
 *
 * The device is tested before the first measurement, every half second and at the end. Only entries between two tests
 * without contention are written to the file. */
#include "autotune/cost_table_internal.h"

enum { LAUNCHES = 48, WARM_UP = 4 };
static const int64_t enqueue_ns = 600000;    /* the host enqueues all launches in this time */
static const int64_t period_ns  = 500000000; /* between two tests */
/* On a quiet device launches differ by a few percent, mainly by the resolution of events. */
static const double contention_max = 1.15;

/* ---- the decision ---- */

double cr_sharing_contention(const double *seconds, int launches) {
    double sum = 0, shortest = seconds[0];
    for (int i = 0; i < launches; i++) {
        sum += seconds[i];
        shortest = CR_MIN(shortest, seconds[i]);
    }
    return shortest > 0 ? sum / launches / shortest : 1;
}

enum cr_sharing cr_sharing_decide(const double *contention, int tests) {
    int high = 0;
    for (int i = 0; i < tests; i++) high += contention[i] > contention_max;
    if (high >= 2) return CR_SHARING_YES;
    return (tests > 0 && high == 0) || tests - high >= 2 ? CR_SHARING_NO : CR_SHARING_UNDECIDED;
}

/* ---- a test ---- */

static cr_status enqueue(struct cr_device *device, void *const event[LAUNCHES + 1]) {
    const struct cr_async *async = device->backend->async;
    if (async->delay) CR_TRY(async->delay(device, CR_STREAM_COMPUTE, enqueue_ns));
    for (int i = 0; i < WARM_UP; i++) CR_TRY(async->reference_work(device, CR_STREAM_COMPUTE));
    CR_TRY(async->event_record(device, CR_STREAM_COMPUTE, event[0]));
    for (int i = 0; i < LAUNCHES; i++) {
        CR_TRY(async->reference_work(device, CR_STREAM_COMPUTE));
        CR_TRY(async->event_record(device, CR_STREAM_COMPUTE, event[i + 1]));
    }
    return async->host_wait(device, event[LAUNCHES]);
}

cr_status cr_sharing_measure(struct cr_device *device, double *contention) {
    const struct cr_async *async               = device->backend->async;
    void                  *event[LAUNCHES + 1] = {NULL};
    double                 seconds[LAUNCHES];
    cr_status              status = CR_OK;
    for (int i = 0; i <= LAUNCHES; i++) CR_TRY_OUT(async->event_create(device, &event[i]));
    CR_TRY_OUT(enqueue(device, event));
    for (int i = 0; i < LAUNCHES; i++) CR_TRY_OUT(async->elapsed(device, event[i], event[i + 1], &seconds[i]));
    *contention = cr_sharing_contention(seconds, LAUNCHES);
out:
    for (int i = 0; i <= LAUNCHES; i++) async->event_destroy(device, event[i]);
    return status;
}

static cr_status is_shared(struct cr_device *device, bool *shared) {
    double          contention[CR_SHARING_TRIES];
    enum cr_sharing decision = CR_SHARING_UNDECIDED;
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

void cr_sharing_after(struct cr_cost_table *c) {
    struct cr_cost_sharing *s = &c->sharing;
    if (s->known && s->tested < c->entries && test_device(c) != CR_OK)
        cr_error_clear(); /* the next launch reports it again */
    s->known = s->shared = false;
    if (s->unsaved)
        cr_log(CR_LOG_WARN,
               "%d kernel times were measured while other programs used the GPU: this run uses them and may be slower "
               "for it, they are not saved; start one run alone first, or set train.measure=no",
               s->unsaved);
    s->unsaved = 0;
}
