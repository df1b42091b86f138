/* tests/harness/streams_support.h: an asynchronous device without a GPU. Each stream is a queue of work. When the host
 * waits, the queues are emptied in a random order that the events allow, so a missing wait of a program shows as on a
 * GPU, only more often. The kernels are those of the CPU device. Streams of a caller are queues too. */
#ifndef CR_STREAMS_SUPPORT_H
#define CR_STREAMS_SUPPORT_H

#include "core/rng.h"
#include "tests/harness/test.h"

enum { WORK_MAX = 1 << 14, FOREIGN_STREAMS = 2, QUEUES = CR_STREAMS + FOREIGN_STREAMS, ORDERS_MAX = 1024 };

struct stream_event {
    int64_t set, done; /* number of records, and of completed records */
};

struct work {
    enum { WORK_LAUNCH, WORK_COPY, WORK_FILL, WORK_SET, WORK_WAIT } what;
    int                  stream; /* from CR_STREAMS on: a foreign one */
    struct cr_call       call;
    void                *dst;
    const void          *src;
    size_t               bytes;
    struct stream_event *event;
    int64_t              count; /* of the event: the count to reach or to wait for */
};

struct captured_graph {
    struct work *work;
    int          count;
};

struct streams {                        /* one such device at a time */
    struct cr_device              *cpu; /* the CPU backend with another name and other launches */
    const struct cr_backend       *its_backend;
    const struct cr_kernel *const *its_kernels;
    struct cr_backend              backend;
    struct cr_kernel               kernel[512];
    const struct cr_kernel        *kernels[512];
    struct work                   *queue[QUEUES];
    int                            first[QUEUES], last[QUEUES];
    struct stream_event            order[ORDERS_MAX]; /* between streams and foreign ones */
    int                            orders;
    struct captured_graph         *captures;
    struct cr_rng                  rng;
    /* set when work of one stream ran before older work of another stream */
    int delays, fills, graph_launches, out_of_turn;
};
static struct streams streams_;

/* ---- execution of the work ---- */

static inline cr_status streams_do(const struct work *w) {
    switch (w->what) {
    case WORK_LAUNCH: return streams_.its_kernels[w->call.op->kernel]->launch(streams_.cpu, &w->call);
    case WORK_COPY: memmove(w->dst, w->src, w->bytes); break;
    case WORK_FILL: memset(w->dst, (int)w->count, w->bytes); break;
    case WORK_SET: w->event->done = w->count; break;
    default: break;
    }
    return CR_OK;
}

static inline bool streams_ready(int stream) {
    if (streams_.first[stream] == streams_.last[stream]) return false;
    const struct work *w = &streams_.queue[stream][streams_.first[stream]];
    return w->what != WORK_WAIT || w->event->done >= w->count;
}

/* Executes several items of the chosen stream, so that a stream may get far ahead of the others. */
static inline cr_status streams_empty(void) {
    for (;;) {
        int ready[QUEUES], n = 0, left = 0;
        for (int l = 0; l < QUEUES; l++) {
            left += streams_.last[l] - streams_.first[l];
            if (streams_ready(l)) ready[n++] = l;
        }
        if (!left) break;
        CR_ASSERT(n); /* otherwise the streams wait for each other: a deadlock */
        const int stream = ready[cr_rng_below(&streams_.rng, (uint64_t)n)];
        streams_.out_of_turn += n > 1;
        for (int k = (int)cr_rng_below(&streams_.rng, 60) + 1; k > 0 && streams_ready(stream); k--)
            CR_TRY(streams_do(&streams_.queue[stream][streams_.first[stream]++]));
    }
    for (int l = 0; l < QUEUES; l++) streams_.first[l] = streams_.last[l] = 0;
    return CR_OK;
}

static inline cr_status streams_add(const struct work *w) {
    struct captured_graph *r = streams_.captures;
    if (r) {
        CR_ASSERT(r->count < WORK_MAX);
        r->work[r->count++] = *w;
        return CR_OK;
    }
    CR_ASSERT(streams_.last[w->stream] < WORK_MAX);
    struct work *to = &streams_.queue[w->stream][streams_.last[w->stream]++];
    *to             = *w;
    if (w->what == WORK_SET) to->count = ++w->event->set;
    if (w->what == WORK_WAIT) to->count = w->event->set;
    return CR_OK;
}

/* ---- the backend ---- */

static inline cr_status streams_launch(struct cr_device *d, const struct cr_call *call) {
    return streams_add(&(struct work){.what = WORK_LAUNCH, .stream = call->op->stream, .call = *call});
}
static inline cr_status streams_copy(struct cr_device *d, enum cr_stream stream, void *dst, const void *src,
                                     size_t bytes) {
    return streams_add(&(struct work){.what = WORK_COPY, .stream = stream, .dst = dst, .src = src, .bytes = bytes});
}
static inline cr_status streams_get_small(struct cr_device *d, enum cr_stream stream, void *const *host,
                                          const void *const *src, const size_t *bytes, int pieces) {
    for (int i = 0; i < pieces; i++) CR_TRY(streams_copy(d, stream, host[i], src[i], bytes[i]));
    return CR_OK;
}
static inline cr_status streams_fill(struct cr_device *d, enum cr_stream stream, void *dst, int byte, size_t bytes) {
    streams_.fills++;
    return streams_add(&(struct work){.what = WORK_FILL, .stream = stream, .dst = dst, .count = byte, .bytes = bytes});
}
static inline cr_status streams_delay(struct cr_device *d, enum cr_stream stream, int64_t ns) {
    streams_.delays++; /* the random order already delays work */
    return CR_OK;
}
static inline cr_status streams_sync(struct cr_device *d) {
    return streams_empty();
}
static inline cr_status streams_copy_now(struct cr_device *d, void *dst, const void *src, size_t bytes) {
    CR_TRY(streams_sync(d));
    memcpy(dst, src, bytes);
    return CR_OK;
}
static inline cr_status streams_reserve(struct cr_device *d, size_t bytes, void **out) {
    return streams_.its_backend->reserve(streams_.cpu, bytes, out);
}
static inline void streams_release(struct cr_device *d, void *region) {
    streams_.its_backend->release(streams_.cpu, region);
}
static inline cr_status streams_event_create(struct cr_device *d, void **out) {
    *out = cr_alloc(1, sizeof(struct stream_event));
    return *out ? CR_OK : CR_NO_MEMORY(sizeof(struct stream_event));
}
static inline void streams_event_destroy(struct cr_device *d, void *event) {
    cr_free(event);
}
static inline cr_status streams_event_record(struct cr_device *d, enum cr_stream stream, void *event) {
    return streams_add(&(struct work){.what = WORK_SET, .stream = stream, .event = event});
}
static inline cr_status streams_wait(struct cr_device *d, enum cr_stream stream, void *event) {
    return streams_add(&(struct work){.what = WORK_WAIT, .stream = stream, .event = event});
}
/* The address of a foreign stream is that of its queue's number. */
static inline void *streams_foreign(int number) {
    return &streams_.last[CR_STREAMS + number];
}
static inline int streams_queue_of(const void *foreign) {
    return (int)((const int *)foreign - streams_.last);
}
static inline cr_status streams_order(int first, int waiting) {
    CR_ASSERT(streams_.orders < ORDERS_MAX);
    struct stream_event *event = &streams_.order[streams_.orders++];
    CR_TRY(streams_add(&(struct work){.what = WORK_SET, .stream = first, .event = event}));
    return streams_add(&(struct work){.what = WORK_WAIT, .stream = waiting, .event = event});
}
static inline cr_status streams_wait_for_foreign(struct cr_device *d, enum cr_stream stream, void *foreign) {
    return streams_order(streams_queue_of(foreign), (int)stream);
}
static inline cr_status streams_foreign_waits(struct cr_device *d, enum cr_stream stream, void *foreign) {
    return streams_order((int)stream, streams_queue_of(foreign));
}
static inline cr_status streams_host_wait(struct cr_device *d, void *event) {
    return streams_sync(d);
}
static inline cr_status streams_capture_begin(struct cr_device *d) {
    CR_ALLOC(streams_.captures, 1);
    CR_ALLOC(streams_.captures->work, WORK_MAX);
    return CR_OK;
}
static inline cr_status streams_capture_end(struct cr_device *d, void **out) {
    *out              = streams_.captures;
    streams_.captures = NULL;
    return CR_OK;
}
static inline cr_status streams_graph_launch(struct cr_device *d, void *captured_graph) {
    const struct captured_graph *r = captured_graph;
    streams_.graph_launches++;
    for (int i = 0; i < r->count; i++) CR_TRY(streams_add(&r->work[i]));
    return CR_OK;
}
static inline void streams_graph_destroy(struct cr_device *d, void *captured_graph) {
    struct captured_graph *r = captured_graph;
    if (r) cr_free(r->work);
    cr_free(r);
}
static inline void streams_range_push(const char *name) {}
static inline void streams_range_pop(void) {}

static const struct cr_async streams_async = {.host_reserve          = streams_reserve,
                                              .host_release          = streams_release,
                                              .put                   = streams_copy,
                                              .get                   = streams_copy,
                                              .get_small             = streams_get_small,
                                              .move                  = streams_copy,
                                              .fill                  = streams_fill,
                                              .delay                 = streams_delay,
                                              .event_create          = streams_event_create,
                                              .event_destroy         = streams_event_destroy,
                                              .event_record          = streams_event_record,
                                              .event_record_external = streams_event_record,
                                              .stream_wait_event     = streams_wait,
                                              .wait_for_foreign      = streams_wait_for_foreign,
                                              .foreign_waits         = streams_foreign_waits,
                                              .host_wait             = streams_host_wait,
                                              .capture_begin         = streams_capture_begin,
                                              .capture_end           = streams_capture_end,
                                              .graph_launch          = streams_graph_launch,
                                              .graph_destroy         = streams_graph_destroy,
                                              .range_push            = streams_range_push,
                                              .range_pop             = streams_range_pop};

/* The device exists until streams_close; its kernels are those of the CPU device, by index. */
static inline cr_status streams_open(const struct cr_device_options *options, uint64_t seed, struct cr_device **out) {
    streams_ = (struct streams){.rng = cr_rng_make(seed, CR_RNG_TEST, 1, 0)};
    CR_TRY(cr_device_open(CR_DEVICE_CPU, options, &streams_.cpu));
    streams_.its_backend = streams_.cpu->backend;
    streams_.its_kernels = streams_.cpu->kernels;
    streams_.backend     = (struct cr_backend){.name       = "streams",
                                               .close      = streams_.its_backend->close,
                                               .reserve    = streams_reserve,
                                               .release    = streams_release,
                                               .put        = streams_copy_now,
                                               .get        = streams_copy_now,
                                               .sync       = streams_sync,
                                               .async      = &streams_async,
                                               .init_store = streams_.its_backend->init_store};
    for (int i = 0; streams_.its_kernels[i]; i++) {
        CR_ASSERT(i < 511);
        streams_.kernel[i]        = *streams_.its_kernels[i];
        streams_.kernel[i].launch = streams_launch;
        streams_.kernels[i]       = &streams_.kernel[i];
    }
    streams_.cpu->backend = &streams_.backend;
    streams_.cpu->kernels = streams_.kernels;
    for (int l = 0; l < QUEUES; l++) CR_ALLOC(streams_.queue[l], WORK_MAX);
    *out = streams_.cpu;
    return CR_OK;
}

static inline void streams_close(void) {
    for (int l = 0; l < QUEUES; l++) cr_free(streams_.queue[l]);
    cr_device_close(streams_.cpu);
    streams_ = (struct streams){0};
}

#endif
