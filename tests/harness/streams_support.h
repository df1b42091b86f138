/* tests/harness/streams_support.h: a device that works beside the host, without a GPU: each lane is a queue of work, and whenever the host waits, the
 * queues are emptied in an order that chance chooses among those that the marks allow. What order is missing in a program's waits
 * comes to light as on a GPU, only more often. Kernels are those of the CPU device. */
#ifndef CR_LANES_SUPPORT_H
#define CR_LANES_SUPPORT_H

#include "runtime/executor.h"
#include "core/rng.h"
#include "tests/harness/test.h"

#include <string.h>

enum { WORK_MAX = 1 << 14 };

struct lane_mark {
    int64_t set, done; /* how often it was enqueued, and reached */
};

struct work {
    enum { WORK_LAUNCH, WORK_COPY, WORK_FILL, WORK_SET, WORK_WAIT } what;
    enum cr_lane      lane;
    struct cr_call    call;
    void             *dst;
    const void       *src;
    size_t            bytes;
    struct lane_mark *mark;
    int64_t           count; /* of the mark: what is reached, or waited for */
};

struct recording {
    struct work *work;
    int          count;
};

struct lanes { /* one such device at a time */
    struct cr_device              *cpu; /* with another backend and other launches */
    const struct cr_backend       *its_backend;
    const struct cr_kernel *const *its_rows;
    struct cr_backend             backend;
    struct cr_kernel              row[512];
    const struct cr_kernel       *rows[512];
    struct work                  *queue[CR_LANES];
    int                           first[CR_LANES], last[CR_LANES];
    struct recording             *records;
    struct cr_rng                 chance;
    int                           delays, fills, replays, out_of_turn; /* seen: work of a lane done before older work of another */
};
static struct lanes lanes_;

/* ---- doing the work ---- */

static inline cr_status lanes_do(const struct work *w) {
    switch (w->what) {
    case WORK_LAUNCH: return lanes_.its_rows[w->call.op->row]->launch(lanes_.cpu, &w->call);
    case WORK_COPY: memmove(w->dst, w->src, w->bytes); break;
    case WORK_FILL: memset(w->dst, (int)w->count, w->bytes); break;
    case WORK_SET: w->mark->done = w->count; break;
    default: break;
    }
    return CR_OK;
}

static inline bool lanes_ready(int lane) {
    if (lanes_.first[lane] == lanes_.last[lane]) return false;
    const struct work *w = &lanes_.queue[lane][lanes_.first[lane]];
    return w->what != WORK_WAIT || w->mark->done >= w->count;
}

/* A lane that is chosen does a run of its work, so that one may get far ahead of the others. */
static inline cr_status lanes_empty(void) {
    for (;;) {
        int ready[CR_LANES], n = 0, left = 0;
        for (int l = 0; l < CR_LANES; l++) {
            left += lanes_.last[l] - lanes_.first[l];
            if (lanes_ready(l)) ready[n++] = l;
        }
        if (!left) break;
        CR_ASSERT(n); /* else the lanes wait for each other */
        const int lane = ready[cr_rng_below(&lanes_.chance, (uint64_t)n)];
        lanes_.out_of_turn += n > 1;
        for (int k = (int)cr_rng_below(&lanes_.chance, 60) + 1; k > 0 && lanes_ready(lane); k--)
            CR_TRY(lanes_do(&lanes_.queue[lane][lanes_.first[lane]++]));
    }
    for (int l = 0; l < CR_LANES; l++) lanes_.first[l] = lanes_.last[l] = 0;
    return CR_OK;
}

static inline cr_status lanes_add(const struct work *w) {
    struct recording *r = lanes_.records;
    if (r) {
        CR_ASSERT(r->count < WORK_MAX);
        r->work[r->count++] = *w;
        return CR_OK;
    }
    CR_ASSERT(lanes_.last[w->lane] < WORK_MAX);
    struct work *to = &lanes_.queue[w->lane][lanes_.last[w->lane]++];
    *to             = *w;
    if (w->what == WORK_SET) to->count = ++w->mark->set;
    if (w->what == WORK_WAIT) to->count = w->mark->set;
    return CR_OK;
}

/* ---- the backend ---- */

static inline cr_status lanes_launch(struct cr_device *d, const struct cr_call *call) {
    (void)d;
    return lanes_add(&(struct work){.what = WORK_LAUNCH, .lane = call->op->lane, .call = *call});
}
static inline cr_status lanes_copy(struct cr_device *d, enum cr_lane lane, void *dst, const void *src, size_t bytes) {
    (void)d;
    return lanes_add(&(struct work){.what = WORK_COPY, .lane = lane, .dst = dst, .src = src, .bytes = bytes});
}
static inline cr_status lanes_get_small(struct cr_device *d, enum cr_lane lane, void *const *host, const void *const *src,
                                        const size_t *bytes, int pieces) {
    for (int i = 0; i < pieces; i++) CR_TRY(lanes_copy(d, lane, host[i], src[i], bytes[i]));
    return CR_OK;
}
static inline cr_status lanes_fill(struct cr_device *d, enum cr_lane lane, void *dst, int byte, size_t bytes) {
    (void)d;
    lanes_.fills++;
    return lanes_add(&(struct work){.what = WORK_FILL, .lane = lane, .dst = dst, .count = byte, .bytes = bytes});
}
static inline cr_status lanes_delay(struct cr_device *d, enum cr_lane lane, int64_t ns) {
    (void)d, (void)lane, (void)ns; /* chance does it */
    lanes_.delays++;
    return CR_OK;
}
static inline cr_status lanes_sync(struct cr_device *d) { return (void)d, lanes_empty(); }
static inline cr_status lanes_copy_now(struct cr_device *d, void *dst, const void *src, size_t bytes) {
    CR_TRY(lanes_sync(d));
    memcpy(dst, src, bytes);
    return CR_OK;
}
static inline cr_status lanes_reserve(struct cr_device *d, size_t bytes, void **out) {
    (void)d;
    return lanes_.its_backend->reserve(lanes_.cpu, bytes, out);
}
static inline void lanes_release(struct cr_device *d, void *region) { (void)d, lanes_.its_backend->release(lanes_.cpu, region); }
static inline cr_status lanes_mark_open(struct cr_device *d, void **out) {
    (void)d;
    *out = cr_alloc(1, sizeof(struct lane_mark));
    return *out ? CR_OK : CR_NO_MEMORY(sizeof(struct lane_mark));
}
static inline void      lanes_mark_close(struct cr_device *d, void *mark) { (void)d, cr_free(mark); }
static inline cr_status lanes_mark_set(struct cr_device *d, enum cr_lane lane, void *mark) {
    return (void)d, lanes_add(&(struct work){.what = WORK_SET, .lane = lane, .mark = mark});
}
static inline cr_status lanes_wait(struct cr_device *d, enum cr_lane lane, void *mark) {
    return (void)d, lanes_add(&(struct work){.what = WORK_WAIT, .lane = lane, .mark = mark});
}
static inline cr_status lanes_host_wait(struct cr_device *d, void *mark) { return (void)mark, lanes_sync(d); }
static inline cr_status lanes_record_begin(struct cr_device *d) {
    (void)d;
    CR_ALLOC(lanes_.records, 1);
    CR_ALLOC(lanes_.records->work, WORK_MAX);
    return CR_OK;
}
static inline cr_status lanes_record_end(struct cr_device *d, void **out) {
    (void)d;
    *out           = lanes_.records;
    lanes_.records = NULL;
    return CR_OK;
}
static inline cr_status lanes_replay(struct cr_device *d, void *recording) {
    const struct recording *r = recording;
    (void)d;
    lanes_.replays++;
    for (int i = 0; i < r->count; i++) CR_TRY(lanes_add(&r->work[i]));
    return CR_OK;
}
static inline void lanes_recording_close(struct cr_device *d, void *recording) {
    struct recording *r = recording;
    (void)d;
    if (r) cr_free(r->work);
    cr_free(r);
}
static inline void lanes_push(const char *name) { (void)name; }
static inline void lanes_pop(void) {}

static const struct cr_async lanes_async = {
    .host_reserve = lanes_reserve, .host_release = lanes_release, .put = lanes_copy, .get = lanes_copy, .get_small = lanes_get_small, .move = lanes_copy,
    .fill = lanes_fill, .delay = lanes_delay, .mark_open = lanes_mark_open, .mark_close = lanes_mark_close,
    .mark_set = lanes_mark_set, .mark_set_each = lanes_mark_set, .lane_wait = lanes_wait, .host_wait = lanes_host_wait, .record_begin = lanes_record_begin,
    .record_end = lanes_record_end, .replay = lanes_replay, .recording_close = lanes_recording_close, .range_push = lanes_push,
    .range_pop = lanes_pop};

/* The device stands until lanes_close; rows are the CPU device's, by index. */
static inline cr_status lanes_open(const struct cr_device_options *options, uint64_t seed, struct cr_device **out) {
    lanes_ = (struct lanes){.chance = cr_rng_make(seed, CR_RNG_TEST, 1, 0)};
    CR_TRY(cr_device_open(CR_DEVICE_CPU, options, &lanes_.cpu));
    lanes_.its_backend = lanes_.cpu->backend;
    lanes_.its_rows    = lanes_.cpu->rows;
    lanes_.backend     = (struct cr_backend){.name = "lanes", .close = lanes_.its_backend->close, .reserve = lanes_reserve,
                                             .release = lanes_release, .put = lanes_copy_now, .get = lanes_copy_now, .sync = lanes_sync,
                                             .async = &lanes_async, .init_store = lanes_.its_backend->init_store};
    for (int i = 0; lanes_.its_rows[i]; i++) {
        CR_ASSERT(i < 511);
        lanes_.row[i]        = *lanes_.its_rows[i];
        lanes_.row[i].launch = lanes_launch;
        lanes_.rows[i]       = &lanes_.row[i];
    }
    lanes_.cpu->backend = &lanes_.backend;
    lanes_.cpu->rows    = lanes_.rows;
    for (int l = 0; l < CR_LANES; l++) CR_ALLOC(lanes_.queue[l], WORK_MAX);
    *out = lanes_.cpu;
    return CR_OK;
}

static inline void lanes_close(void) {
    for (int l = 0; l < CR_LANES; l++) cr_free(lanes_.queue[l]);
    cr_device_close(lanes_.cpu);
    lanes_ = (struct lanes){0};
}

#endif
