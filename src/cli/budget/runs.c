/* cli/budget/runs.c: measures the time (latency) of a network by running it. See cli/budget/budget.h.
 *
 * The program is timed alone, as kernel times are: images are copied once, before the first run. In evaluation and
 * inference the copy of the next batch overlaps with the program. */
#include "cli/budget/budget.h"
#include "quantization/quantization.h"

#include <string.h>

enum { WARMUP = 3, WINDOWS_MIN = 5, WINDOWS_MAX = 2000, WINDOW_MAX = 200 };
static const double runs_s = 0.7, window_s = 10e-3; /* runs end after this time; runs between two events take this */
static const float  activation_scale = 1 / 32.0f;

/* ---- weights ---- */

/* The scales of a quantised network. Times do not depend on them, but power does, so values must not all be 0. */
static void make_scales(const struct cr_param_store *store, int scale, const float *value, float *running) {
    const struct cr_param *q      = &store->param[scale];
    const size_t           suffix = strlen("_scale"), length = strlen(q->name);
    int                    filter = CR_NONE;
    for (int i = 0; i < store->params && filter == CR_NONE; i++)
        if (strlen(store->param[i].name) + suffix == length &&
            strncmp(store->param[i].name, q->name, length - suffix) == 0)
            filter = i;
    for (int64_t k = 0; k < q->elems; k++) {
        const int64_t count = filter == CR_NONE ? 0 : store->param[filter].elems / q->elems;
        running[q->offset + k] =
            filter == CR_NONE
                ? activation_scale
                : cr_quant_filter_scale(value + store->param[filter].offset + k * count, count, CR_QUANT_LEVELS_I8);
    }
}

/* Copies parameters by name, because a quantised network has more of them. */
static void fill(const struct cr_param_store *store, const struct cr_budget_weights *from, float *value,
                 float *running) {
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *to     = &store->param[i];
        const int              source = cr_param_store_find(from->store, to->name);
        const bool             runs   = cr_param_is_running(to->role);
        if (source == CR_NONE) continue;
        const struct cr_param *q = &from->store->param[source];
        CR_ASSERT(q->elems == to->elems);
        memcpy((runs ? running : value) + to->offset, (runs ? from->running : from->value) + q->offset,
               (size_t)q->elems * sizeof *value);
    }
    for (int i = 0; i < store->params; i++)
        if (store->param[i].role == CR_ROLE_SCALE) make_scales(store, i, value, running);
}

static cr_status put_weights(struct cr_session *s, const struct cr_budget_weights *from) {
    const struct cr_param_store *store   = &s->model.store;
    float                       *value   = cr_alloc((size_t)store->value_elems + 1, sizeof *value);
    float                       *running = cr_alloc((size_t)store->running_elems + 1, sizeof *running);
    cr_status                    status;
    if (!value || !running) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: %lld weights", (long long)store->value_elems);
    fill(store, from, value, running);
    CR_TRY_OUT(cr_state_buffer_put(s, CR_BUFFER_VALUE, value));
    CR_TRY_OUT(cr_state_buffer_put(s, CR_BUFFER_RUNNING, running));
out:
    cr_free(value);
    cr_free(running);
    return status;
}

/* ---- times ---- */

struct runner {
    struct cr_session         *session;
    const struct cr_cmd_batch *batch;
    struct cr_step_block       step;
};

static cr_status feed(const struct runner *r) {
    return cr_exec_feed(r->session->eval_exec, r->batch->images, r->batch->labels, r->batch->boxes);
}

/* Runs the program once and waits for it. */
static cr_status run_alone(const struct runner *r, double *seconds) {
    struct cr_device *device = r->session->device;
    const int64_t     start  = cr_time_ns();
    CR_TRY(cr_exec_run(r->session->eval_exec, &r->step));
    CR_TRY(device->backend->sync(device));
    *seconds = 1e-9 * (double)(cr_time_ns() - start);
    return CR_OK;
}

static cr_status time_window(const struct runner *r, int runs, void *const event[2], double *seconds) {
    struct cr_device      *device = r->session->device;
    const struct cr_async *async  = device->backend->async;
    CR_TRY(async->event_record(device, CR_STREAM_COMPUTE, event[0]));
    for (int i = 0; i < runs; i++) CR_TRY(cr_exec_run(r->session->eval_exec, &r->step));
    CR_TRY(async->event_record(device, CR_STREAM_COMPUTE, event[1]));
    CR_TRY(async->host_wait(device, event[1]));
    CR_TRY(async->elapsed(device, event[0], event[1], seconds));
    *seconds /= runs;
    return CR_OK;
}

/* The median of windows of runs that follow each other. */
static cr_status time_windows(const struct runner *r, double one, double *seconds) {
    struct cr_device      *device   = r->session->device;
    const struct cr_async *async    = device->backend->async;
    const int              runs     = (int)CR_MIN(CR_MAX(window_s / one, 1.0), (double)WINDOW_MAX);
    void                  *event[2] = {NULL, NULL};
    int64_t                times[WINDOWS_MAX];
    int                    count = 0;
    double                 sum = 0, each = 0;
    cr_status              status;
    for (int i = 0; i < 2; i++) CR_TRY_OUT(async->event_create(device, &event[i]));
    CR_TRY_OUT(time_window(r, runs, event, &each)); /* clocks rise */
    while (count < WINDOWS_MAX && (count < WINDOWS_MIN || sum < runs_s)) {
        CR_TRY_OUT(time_window(r, runs, event, &each));
        times[count++] = (int64_t)(1e12 * each); /* picoseconds */
        sum += each * runs;
    }
    *seconds = 1e-6 * cr_cmd_median_ms(times, count);
out:
    for (int i = 0; i < 2; i++) async->event_destroy(device, event[i]);
    return status;
}

/* The least time: other processes may use the same cores. */
static cr_status time_host(const struct runner *r, double *seconds) {
    double sum = 0, one;
    for (int i = 0; i < WINDOWS_MAX && (i < WINDOWS_MIN || sum < runs_s); i++) {
        CR_TRY(feed(r));
        CR_TRY(run_alone(r, &one));
        *seconds = i ? CR_MIN(*seconds, one) : one;
        sum += one;
    }
    return CR_OK;
}

static cr_status time_runs(const struct runner *r, double *seconds) {
    double one = 0;
    CR_TRY(feed(r));
    for (int i = 0; i < WARMUP; i++) CR_TRY(run_alone(r, &one));
    return r->session->device->backend->async ? time_windows(r, CR_MAX(one, 1e-6), seconds) : time_host(r, seconds);
}

cr_status cr_budget_measure(const struct cr_config *config, int classes, int64_t batch_size,
                            const struct cr_budget_weights *weights, double *seconds) {
    const struct cr_session_options options = {.eval       = true,
                                               .execute    = true,
                                               .eval_batch = batch_size,
                                               .batch      = batch_size,
                                               .classes    = classes,
                                               .pattern = config->quant.type == CR_QUANT_NONE ? weights->mask : NULL};
    struct cr_config                local   = *config;
    struct cr_session               session = {0};
    struct cr_cmd_batch             batch   = {0};
    const struct runner             r       = {&session, &batch, cr_cmd_step_block(config)};
    cr_status                       status;
    local.model.weights = "";
    CR_TRY_OUT(cr_session_open(&local, &options, &session));
    CR_TRY_OUT(cr_session_init(&session));
    CR_TRY_OUT(put_weights(&session, weights));
    CR_TRY_OUT(cr_cmd_random_batch(&session.eval, classes, (uint64_t)config->train.seed, &batch));
    CR_TRY_OUT(time_runs(&r, seconds));
out:
    cr_cmd_batch_free(&batch);
    cr_session_close(&session);
    return status;
}
