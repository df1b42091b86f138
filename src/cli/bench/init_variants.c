/* cli/bench/init_variants.c: how initial values come into a device's memory, measured. See cli/bench/init.h. */
#include "cli/bench/init.h"

#include "cli/command.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { CHUNK_ELEMS = 1 << 16, COMPARE_BYTES = 16 << 20 };

/* ---- one draw after the other, and shared out ---- */

/* Filters `first` to `last` of a parameter, at `to` as they stand in its plane. */
static void fill_rows(const struct cr_param_store *store, const struct cr_config *config, int param, int64_t first,
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
    int                          param; /* of the next piece, and its first filter */
    int64_t                      row;
};

static bool take_piece(struct fill *f, int *param, int64_t *first, int64_t *last) {
    pthread_mutex_lock(&f->lock);
    const bool any = f->param < f->store->params;
    if (any) {
        const struct cr_param *q = &f->store->param[f->param];
        *param                   = f->param;
        *first                   = f->row;
        *last                    = CR_MIN(q->dim[0], f->row + CR_MAX((int64_t)1, CHUNK_ELEMS * q->dim[0] / q->elems));
        f->row                   = *last;
        if (f->row == q->dim[0]) f->param++, f->row = 0;
    }
    pthread_mutex_unlock(&f->lock);
    return any;
}

static void *fill_worker(void *argument) {
    struct fill *f = argument;
    int          param;
    int64_t      first, last;
    while (take_piece(f, &param, &first, &last)) {
        const struct cr_param *q     = &f->store->param[param];
        float                 *plane = cr_param_is_running(q->role) ? f->running : f->value;
        fill_rows(f->store, f->config, param, first, last, plane + q->offset + first * (q->elems / q->dim[0]));
    }
    return NULL;
}

/* Fewer threads than asked for do the same work. */
static void fill_by_threads(const struct cr_init_net *s, int threads, float *value, float *running) {
    struct fill f = {.store = &s->model.store, .config = &s->config, .value = value, .running = running};
    pthread_t   thread[CR_INIT_THREADS_MAX];
    int         started = 0;
    pthread_mutex_init(&f.lock, NULL);
    while (started < threads - 1 && pthread_create(&thread[started], NULL, fill_worker, &f) == 0) started++;
    fill_worker(&f);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&f.lock);
}

/* ---- the ways ---- */

static void note(struct cr_init_method *way, const int64_t at[CR_INIT_PARTS]) {
    if (way->runs == (int64_t)CR_COUNT(way->ns[0])) return;
    for (int p = CR_INIT_MEMORY; p < CR_INIT_ALL; p++) way->ns[p][way->runs] = at[p + 1] - at[p];
    way->ns[CR_INIT_ALL][way->runs++] = at[CR_INIT_ALL] - at[0];
}

cr_status cr_init_direct(struct cr_init_bench *b, const struct cr_init_net *s, struct cr_init_method *way) {
    const struct cr_backend *backend = b->device->backend;
    void                    *region  = NULL;
    int64_t                  at[CR_INIT_PARTS];
    cr_status                status;
    at[CR_INIT_MEMORY] = cr_time_ns();
    CR_TRY_OUT(backend->reserve(b->device, s->store_bytes, &region));
    at[CR_INIT_VALUES] = cr_time_ns();
    CR_TRY_OUT(backend->init_store(b->device, &s->model.store, &s->config, region));
    CR_TRY_OUT(backend->sync(b->device));
    at[CR_INIT_COPY] = at[CR_INIT_ALL] = cr_time_ns();
    note(way, at);
out:
    if (region) backend->release(b->device, region);
    return status;
}

cr_status cr_init_thread(struct cr_init_bench *b, const struct cr_init_net *s, struct cr_init_method *way) {
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
    for (int i = 0; i < store->params; i++) fill_rows(store, &s->config, i, 0, store->param[i].dim[0], array[i]);
    at[CR_INIT_COPY] = cr_time_ns();
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        char *plane = cr_init_buffer(s, region, cr_param_is_running(q->role) ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE);
        CR_TRY_OUT(backend->put(b->device, plane + (size_t)q->offset * sizeof(float), array[i],
                                (size_t)q->elems * sizeof(float)));
    }
    CR_TRY_OUT(backend->sync(b->device));
    at[CR_INIT_ALL] = cr_time_ns();
    note(way, at);
out:
    for (int i = 0; i < store->params; i++) cr_free(array[i]);
    cr_free(array);
    if (region) backend->release(b->device, region);
    return status;
}

/* *values is the host's copy of the value and the running plane; the caller releases it. */
cr_status cr_init_cores(struct cr_init_bench *b, const struct cr_init_net *s, struct cr_init_method *way,
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
    note(way, at);
out:
    if (region) backend->release(b->device, region);
    return status;
}

/* Where the device's memory is the host's: drawn by all cores at the place where they belong. */
cr_status cr_init_cores_in_place(struct cr_init_bench *b, const struct cr_init_net *s, struct cr_init_method *way,
                                 void **region) {
    int64_t at[CR_INIT_PARTS];
    at[CR_INIT_MEMORY] = cr_time_ns();
    CR_TRY(b->device->backend->reserve(b->device, s->store_bytes, region));
    at[CR_INIT_VALUES] = cr_time_ns();
    fill_by_threads(s, b->threads, (void *)cr_init_buffer(s, *region, CR_BUFFER_VALUE),
                    (void *)cr_init_buffer(s, *region, CR_BUFFER_RUNNING));
    at[CR_INIT_COPY] = at[CR_INIT_ALL] = cr_time_ns();
    note(way, at);
    return CR_OK;
}

/* ---- the device's own time ---- */

/* Copies within the device go before the first mark, so that all that lies between the marks has been enqueued when the
 * device comes there, and no waiting for the host is counted. */
cr_status cr_init_device_time(struct cr_init_bench *b, const struct cr_init_net *s, double *ms) {
    enum { TIMES = 5, MOVES_MOST = 64 };
    const struct cr_async *async       = b->device->backend->async;
    const double           busy_bytes  = 2e-3 * b->device->caps.bytes_per_s;
    const size_t           plane_bytes = cr_param_store_buffer_bytes(&s->model.store, CR_BUFFER_VALUE);
    const int              moves       = (int)CR_MIN(busy_bytes / (2 * (double)plane_bytes) + 1, (double)MOVES_MOST);
    void                  *region = NULL, *mark[2] = {0};
    int64_t                ns[TIMES];
    cr_status              status;
    CR_TRY_OUT(b->device->backend->reserve(b->device, s->store_bytes, &region));
    for (int i = 0; i < 2; i++) CR_TRY_OUT(async->event_create(b->device, &mark[i]));
    for (int t = 0; t < TIMES; t++) {
        double seconds;
        for (int i = 0; i < moves; i++)
            CR_TRY_OUT(async->move(b->device, CR_STREAM_COMPUTE, cr_init_buffer(s, region, CR_BUFFER_GRAD),
                                   cr_init_buffer(s, region, CR_BUFFER_VALUE), plane_bytes));
        CR_TRY_OUT(async->event_record(b->device, CR_STREAM_COMPUTE, mark[0]));
        CR_TRY_OUT(b->device->backend->init_store(b->device, &s->model.store, &s->config, region));
        CR_TRY_OUT(async->event_record(b->device, CR_STREAM_COMPUTE, mark[1]));
        CR_TRY_OUT(async->host_wait(b->device, mark[1]));
        CR_TRY_OUT(async->elapsed(b->device, mark[0], mark[1], &seconds));
        ns[t] = (int64_t)llround(seconds * 1e9);
    }
    *ms = cr_cmd_median_ms(ns, TIMES);
out:
    for (int i = 0; i < 2; i++) async->event_destroy(b->device, mark[i]);
    if (region) b->device->backend->release(b->device, region);
    return status;
}

/* ---- are they the same values? ---- */

/* Floats in the order of their size, the two zeros at one place. */
static int64_t place(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? -(int64_t)(bits & INT32_MAX) : bits;
}

static cr_status compare_plane(struct cr_init_bench *b, const char *plane, const float *want, int64_t elems, float *got,
                               struct cr_init_result *r) {
    const int64_t step = COMPARE_BYTES / (int64_t)sizeof *got;
    for (int64_t at = 0; at < elems; at += step) {
        const int64_t n = CR_MIN(step, elems - at);
        CR_TRY(b->device->backend->get(b->device, got, plane + (size_t)at * sizeof *got, (size_t)n * sizeof *got));
        for (int64_t i = 0; i < n; i++) {
            const int64_t distance = place(got[i]) - place(want[at + i]), size = distance < 0 ? -distance : distance;
            r->worst_ulp = CR_MAX(r->worst_ulp, size);
            r->differing += size != 0;
        }
    }
    return CR_OK;
}

/* What the device draws beside the host's draw, every value of it. */
cr_status cr_init_compare(struct cr_init_bench *b, const struct cr_init_net *s, const float *value,
                          const float *running, struct cr_init_result *r) {
    const struct cr_backend *backend = b->device->backend;
    void                    *region  = NULL;
    float                   *got;
    cr_status                status;
    got = cr_alloc(COMPARE_BYTES, 1);
    if (!got) return CR_NO_MEMORY(COMPARE_BYTES);
    CR_TRY_OUT(backend->reserve(b->device, s->store_bytes, &region));
    CR_TRY_OUT(backend->init_store(b->device, &s->model.store, &s->config, region));
    CR_TRY_OUT(compare_plane(b, cr_init_buffer(s, region, CR_BUFFER_VALUE), value, s->value_elems, got, r));
    CR_TRY_OUT(compare_plane(b, cr_init_buffer(s, region, CR_BUFFER_RUNNING), running, s->running_elems, got, r));
out:
    if (region) backend->release(b->device, region);
    cr_free(got);
    return status;
}
