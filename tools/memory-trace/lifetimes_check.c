/* tools/memory-trace/lifetimes_check.c: checks a plan of lifetimes (tools/memory-trace/lifetimes_csv.h). It shares no
 * code with the planner: a sweep over time keeps the live intervals sorted by offset and compares each new interval
 * with its two neighbours. */
#include "tools/memory-trace/lifetimes_csv.h"

#include <stdlib.h>
#include <string.h>

struct event { /* at equal times ends come before beginnings, because intervals are half open */
    int64_t time;
    int     begins, index;
};

struct sweep {
    const struct cr_lifetimes *lifetimes;
    struct event              *event;
    int                       *live; /* live intervals, sorted by offset */
    int                        count;
};

static int compare_events(const void *a, const void *b) {
    const struct event *s = a, *t = b;
    if (s->time != t->time) return s->time < t->time ? -1 : 1;
    if (s->begins != t->begins) return s->begins - t->begins;
    return (s->index > t->index) - (s->index < t->index);
}

/* Returns how many live intervals begin at or below the offset. */
static int count_below(const struct sweep *w, size_t offset) {
    int low = 0, high = w->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (w->lifetimes->interval[w->live[middle]].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static cr_status overlap_error(const struct sweep *w, int a, int b) {
    return CR_FAIL(CR_ERR_FORMAT, "the plan is wrong: %.40s and %.40s overlap in time and in memory",
                   w->lifetimes->id[a], w->lifetimes->id[b]);
}

static cr_status begin(struct sweep *w, int i) {
    const struct cr_interval *interval = w->lifetimes->interval, *x = &interval[i];
    int                       at = count_below(w, x->offset);
    if (at > 0 && x->offset - interval[w->live[at - 1]].offset < interval[w->live[at - 1]].size)
        return overlap_error(w, w->live[at - 1], i);
    if (at < w->count && interval[w->live[at]].offset - x->offset < x->size) return overlap_error(w, i, w->live[at]);
    memmove(&w->live[at + 1], &w->live[at], (size_t)(w->count - at) * sizeof *w->live);
    w->live[at] = i;
    w->count++;
    return CR_OK;
}

static void end(struct sweep *w, int i) {
    int at = count_below(w, w->lifetimes->interval[i].offset) - 1; /* no two live intervals have the same offset */
    CR_ASSERT(at >= 0 && w->live[at] == i);
    memmove(&w->live[at], &w->live[at + 1], (size_t)(w->count - at - 1) * sizeof *w->live);
    w->count--;
}

static cr_status run_sweep(struct sweep *w) {
    int events = 0;
    for (int i = 0; i < w->lifetimes->count; i++) {
        const struct cr_interval *x = &w->lifetimes->interval[i];
        if (!x->size || x->lower >= x->upper) continue;
        w->event[events++] = (struct event){x->lower, 1, i};
        w->event[events++] = (struct event){x->upper, 0, i};
    }
    qsort(w->event, (size_t)events, sizeof *w->event, compare_events);
    for (int e = 0; e < events; e++) {
        if (w->event[e].begins)
            CR_TRY(begin(w, w->event[e].index));
        else
            end(w, w->event[e].index);
    }
    return CR_OK;
}

cr_status cr_lifetimes_check(const struct cr_lifetimes *lifetimes, size_t capacity) {
    cr_status    status = CR_OK;
    struct sweep w      = {.lifetimes = lifetimes};
    for (int i = 0; i < lifetimes->count; i++)
        if (lifetimes->interval[i].size > capacity ||
            lifetimes->interval[i].offset > capacity - lifetimes->interval[i].size)
            return CR_FAIL(CR_ERR_FORMAT, "the plan is wrong: %.40s ends above the capacity %zu", lifetimes->id[i],
                           capacity);
    w.event = cr_alloc(2 * (size_t)lifetimes->count, sizeof *w.event);
    w.live  = cr_alloc((size_t)lifetimes->count, sizeof *w.live);
    if (!w.event || !w.live) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while checking the plan");
    CR_TRY_OUT(run_sweep(&w));
out:
    cr_free(w.event);
    cr_free(w.live);
    return status;
}
