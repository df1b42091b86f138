/* tools/init-bench/methods.c: times the methods of weight initialisation. See tools/init-bench/methods.h. */
#include "tools/init-bench/methods.h"

#include "cli/common/command.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { CHUNK_ELEMS = 1 << 16, COMPARE_BYTES = 16 << 20 };

/* ---- generating values on the host ---- */

/* Generates filters `first` to `last` - 1 of a parameter at `to`, in the layout of its buffer (KRSC). */
static void fill_filters(const struct cr_param_store *store, const struct cr_config *config, int param, int64_t first,
                         int64_t last, float *to) {
    const struct cr_param *q = &store->param[param];
    const int64_t          R = q->dim[1], S = q->dim[2], C = q->dim[3];
    for (int64_t k = first; k < last; k++)
        for (int64_t r = 0; r < R; r++)
            for (int64_t s = 0; s < S; s++)
                for (int64_t c = 0; c < C; c++)
                    *to++ = cr_param_store_initial(store, param, ((k * C + c) * R + r) * S + s, config);
}

struct fill {
    const struct cr_param_store *store;
    const struct cr_config      *config;
    float                       *value, *running;
    pthread_mutex_t              lock;
    int                          param;  /* parameter of the next chunk */
    int64_t                      filter; /* first filter of the next chunk */
};

/* Takes the next chunk of work; false when none is left. */
static bool next_chunk(struct fill *f, int *param, int64_t *first, int64_t *last) {
    pthread_mutex_lock(&f->lock);
    const bool any = f->param < f->store->params;
    if (any) {
        const struct cr_param *q = &f->store->param[f->param];
        *param                   = f->param;
        *first                   = f->filter;
        *last     = CR_MIN(q->dim[0], f->filter + CR_MAX((int64_t)1, CHUNK_ELEMS * q->dim[0] / q->elems));
        f->filter = *last;
        if (f->filter == q->dim[0]) f->param++, f->filter = 0;
    }
    pthread_mutex_unlock(&f->lock);
    return any;
}

static void *fill_worker(void *argument) {
    struct fill *f = argument;
    int          param;
    int64_t      first, last;
    while (next_chunk(f, &param, &first, &last)) {
        const struct cr_param *q      = &f->store->param[param];
        float                 *buffer = cr_param_is_running(q->role) ? f->running : f->value;
        fill_filters(f->store, f->config, param, first, last, buffer + q->offset + first * (q->elems / q->dim[0]));
    }
    return NULL;
}

/* Fills both buffers with several threads. When fewer threads start, they do the same work. */
static void fill_by_threads(const struct cr_init_net *s, int threads, float *value, float *running) {
    struct fill f = {.store = &s->model.store, .config = s->config, .value = value, .running = running};
    pthread_t   thread[CR_INIT_THREADS_MAX];
    int         started = 0;
    pthread_mutex_init(&f.lock, NULL);
    while (started < threads - 1 && pthread_create(&thread[started], NULL, fill_worker, &f) == 0) started++;
    fill_worker(&f);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&f.lock);
}

/* ---- the methods ---- */

/* Records the times of one run; at[p] is the start of part p, at[CR_INIT_ALL] the end. */
static void record(struct cr_init_method *method, const int64_t at[CR_INIT_PARTS]) {
    if (method->runs == (int64_t)CR_COUNT(method->ns[0])) return;
    for (int p = CR_INIT_MEMORY; p < CR_INIT_ALL; p++) method->ns[p][method->runs] = at[p + 1] - at[p];
    method->ns[CR_INIT_ALL][method->runs++] = at[CR_INIT_ALL] - at[0];
}

cr_status cr_init_direct(struct cr_init_bench *b, const struct cr_init_net *s, struct cr_init_method *method) {
    const struct cr_backend *backend = b->device->backend;
    void                    *region  = NULL;
    int64_t                  at[CR_INIT_PARTS];
    cr_status                status;
    at[CR_INIT_MEMORY] = cr_time_ns();
    CR_TRY_OUT(backend->reserve(b->device, s->store_bytes, &region));
    at[CR_INIT_VALUES] = cr_time_ns();
    CR_TRY_OUT(backend->init_store(b->device, &s->model.store, s->config, region));
    CR_TRY_OUT(backend->sync(b->device));
    at[CR_INIT_COPY] = at[CR_INIT_ALL] = cr_time_ns();
    record(method, at);
out:
    if (region) backend->release(b->device, region);
    return status;
}

cr_status cr_init_thread(struct cr_init_bench *b, const struct cr_init_net *s, struct cr_init_method *method) {
    const struct cr_backend     *backend = b->device->backend;
    const struct cr_param_store *store   = &s->model.store;
    void                        *region  = NULL;
    float                      **array;
    int64_t                      at[CR_INIT_PARTS];
    cr_status                    status;
    CR_ALLOC(array, (size_t)store->params);
    at[CR_INIT_MEMORY] = cr_time_ns();
    for (int i = 0; i < store->params; i++) {
        array[i] = cr_alloc((size_t)store->param[i].elems, sizeof **array);
        if (!array[i])
            CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: %.0f MB of host memory for the values",
                        (double)s->value_bytes * 1e-6);
    }
    CR_TRY_OUT(backend->reserve(b->device, s->store_bytes, &region));
    at[CR_INIT_VALUES] = cr_time_ns();
    for (int i = 0; i < store->params; i++) fill_filters(store, s->config, i, 0, store->param[i].dim[0], array[i]);
    at[CR_INIT_COPY] = cr_time_ns();
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        char *buffer = cr_init_buffer(s, region, cr_param_is_running(q->role) ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE);
        CR_TRY_OUT(backend->put(b->device, buffer + (size_t)q->offset * sizeof(float), array[i],
                                (size_t)q->elems * sizeof(float)));
    }
    CR_TRY_OUT(backend->sync(b->device));
    at[CR_INIT_ALL] = cr_time_ns();
    record(method, at);
out:
    for (int i = 0; i < store->params; i++) cr_free(array[i]);
    cr_free(array);
    if (region) backend->release(b->device, region);
    return status;
}

cr_status cr_init_cores(struct cr_init_bench *b, const struct cr_init_net *s, struct cr_init_method *method,
                        float **values) {
    const struct cr_backend *backend     = b->device->backend;
    const size_t             value_bytes = (size_t)s->value_elems * sizeof(float),
                 running_bytes           = (size_t)s->running_elems * sizeof(float);
    void     *region = NULL, *host = NULL;
    int64_t   at[CR_INIT_PARTS];
    cr_status status;
    at[CR_INIT_MEMORY] = cr_time_ns();
    CR_TRY_OUT(backend->async->host_reserve(b->device, s->value_bytes, &host));
    *values = host;
    CR_TRY_OUT(backend->reserve(b->device, s->store_bytes, &region));
    at[CR_INIT_VALUES] = cr_time_ns();
    fill_by_threads(s, b->threads, *values, *values + s->value_elems);
    at[CR_INIT_COPY] = cr_time_ns();
    CR_TRY_OUT(backend->async->put(b->device, CR_STREAM_COMPUTE, cr_init_buffer(s, region, CR_BUFFER_VALUE), *values,
                                   value_bytes));
    CR_TRY_OUT(backend->async->put(b->device, CR_STREAM_COMPUTE, cr_init_buffer(s, region, CR_BUFFER_RUNNING),
                                   *values + s->value_elems, running_bytes));
    CR_TRY_OUT(backend->sync(b->device));
    at[CR_INIT_ALL] = cr_time_ns();
    record(method, at);
out:
    if (region) backend->release(b->device, region);
    return status;
}

cr_status cr_init_cores_in_place(struct cr_init_bench *b, const struct cr_init_net *s, struct cr_init_method *method,
                                 void **region) {
    int64_t at[CR_INIT_PARTS];
    at[CR_INIT_MEMORY] = cr_time_ns();
    CR_TRY(b->device->backend->reserve(b->device, s->store_bytes, region));
    at[CR_INIT_VALUES] = cr_time_ns();
    fill_by_threads(s, b->threads, (void *)cr_init_buffer(s, *region, CR_BUFFER_VALUE),
                    (void *)cr_init_buffer(s, *region, CR_BUFFER_RUNNING));
    at[CR_INIT_COPY] = at[CR_INIT_ALL] = cr_time_ns();
    record(method, at);
    return CR_OK;
}

/* ---- time on the device ---- */

/* Copies within the device run before the first event. They keep the device busy until the host has enqueued everything
 * up to the second event, so the time between the events contains no waiting for the host. */
cr_status cr_init_device_time(struct cr_init_bench *b, const struct cr_init_net *s, double *ms) {
    enum { TIMES = 5, MOVES_MAX = 64 };
    const struct cr_async *async        = b->device->backend->async;
    const double           busy_bytes   = 2e-3 * b->device->caps.bytes_per_s;
    const size_t           buffer_bytes = cr_param_store_buffer_bytes(&s->model.store, CR_BUFFER_VALUE);
    const int              moves        = (int)CR_MIN(busy_bytes / (2 * (double)buffer_bytes) + 1, (double)MOVES_MAX);
    void                  *region = NULL, *event[2] = {0};
    int64_t                ns[TIMES];
    cr_status              status;
    CR_TRY_OUT(b->device->backend->reserve(b->device, s->store_bytes, &region));
    for (int i = 0; i < 2; i++) CR_TRY_OUT(async->event_create(b->device, &event[i]));
    for (int t = 0; t < TIMES; t++) {
        double seconds;
        for (int i = 0; i < moves; i++)
            CR_TRY_OUT(async->move(b->device, CR_STREAM_COMPUTE, cr_init_buffer(s, region, CR_BUFFER_GRAD),
                                   cr_init_buffer(s, region, CR_BUFFER_VALUE), buffer_bytes));
        CR_TRY_OUT(async->event_record(b->device, CR_STREAM_COMPUTE, event[0]));
        CR_TRY_OUT(b->device->backend->init_store(b->device, &s->model.store, s->config, region));
        CR_TRY_OUT(async->event_record(b->device, CR_STREAM_COMPUTE, event[1]));
        CR_TRY_OUT(async->host_wait(b->device, event[1]));
        CR_TRY_OUT(async->elapsed(b->device, event[0], event[1], &seconds));
        ns[t] = (int64_t)llround(seconds * 1e9);
    }
    *ms = cr_cmd_median_ms(ns, TIMES);
out:
    for (int i = 0; i < 2; i++) async->event_destroy(b->device, event[i]);
    if (region) b->device->backend->release(b->device, region);
    return status;
}

/* ---- comparison of values ---- */

/* Maps floats to integers in the same order, one step per representable value; both zeros map to 0. */
static int64_t ordinal(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? -(int64_t)(bits & INT32_MAX) : bits;
}

static cr_status compare_buffer(struct cr_init_bench *b, const char *buffer, const float *want, int64_t elems,
                                float *got, struct cr_init_result *r) {
    const int64_t step = COMPARE_BYTES / (int64_t)sizeof *got;
    for (int64_t at = 0; at < elems; at += step) {
        const int64_t n = CR_MIN(step, elems - at);
        CR_TRY(b->device->backend->get(b->device, got, buffer + (size_t)at * sizeof *got, (size_t)n * sizeof *got));
        for (int64_t i = 0; i < n; i++) {
            const int64_t distance = ordinal(got[i]) - ordinal(want[at + i]),
                          size     = distance < 0 ? -distance : distance;
            r->worst_ulp           = CR_MAX(r->worst_ulp, size);
            r->differing += size != 0;
        }
    }
    return CR_OK;
}

cr_status cr_init_compare(struct cr_init_bench *b, const struct cr_init_net *s, const float *value,
                          const float *running, struct cr_init_result *r) {
    const struct cr_backend *backend = b->device->backend;
    void                    *region  = NULL;
    float                   *got;
    cr_status                status;
    got = cr_alloc(COMPARE_BYTES, 1);
    if (!got) return CR_NO_MEMORY(COMPARE_BYTES);
    CR_TRY_OUT(backend->reserve(b->device, s->store_bytes, &region));
    CR_TRY_OUT(backend->init_store(b->device, &s->model.store, s->config, region));
    CR_TRY_OUT(compare_buffer(b, cr_init_buffer(s, region, CR_BUFFER_VALUE), value, s->value_elems, got, r));
    CR_TRY_OUT(compare_buffer(b, cr_init_buffer(s, region, CR_BUFFER_RUNNING), running, s->running_elems, got, r));
out:
    if (region) backend->release(b->device, region);
    cr_free(got);
    return status;
}
