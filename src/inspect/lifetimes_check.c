/* inspect/lifetimes_check.c: the proof of a plan of lives (inspect/lifetimes_csv.h). Shares no code with the planner: a
 * sweep over time keeps what is alive sorted by place, and whatever begins is compared with the neighbour on either
 * side of its place. */
#include "inspect/lifetimes_csv.h"

#include <stdlib.h>
#include <string.h>

struct event { /* at one time ends come before beginnings: lives are half open */
    int64_t time;
    int     begins, index;
};

struct sweep {
    const struct cr_lifetimes *lives;
    struct event              *event;
    int                       *alive; /* by offset */
    int                        count;
};

static int compare_events(const void *a, const void *b) {
    const struct event *s = a, *t = b;
    if (s->time != t->time) return s->time < t->time ? -1 : 1;
    if (s->begins != t->begins) return s->begins - t->begins;
    return (s->index > t->index) - (s->index < t->index);
}

/* How many of the living begin at or below the offset. */
static int count_below(const struct sweep *w, size_t offset) {
    int low = 0, high = w->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (w->lives->interval[w->alive[middle]].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static cr_status clash(const struct sweep *w, int a, int b) {
    return CR_FAIL(CR_ERR_FORMAT, "the plan is wrong: %.40s and %.40s share a place at one time", w->lives->id[a],
                   w->lives->id[b]);
}

static cr_status begin(struct sweep *w, int i) {
    const struct cr_interval *life = w->lives->interval, *x = &life[i];
    int                       at = count_below(w, x->offset);
    if (at > 0 && x->offset - life[w->alive[at - 1]].offset < life[w->alive[at - 1]].size)
        return clash(w, w->alive[at - 1], i);
    if (at < w->count && life[w->alive[at]].offset - x->offset < x->size) return clash(w, i, w->alive[at]);
    memmove(&w->alive[at + 1], &w->alive[at], (size_t)(w->count - at) * sizeof *w->alive);
    w->alive[at] = i;
    w->count++;
    return CR_OK;
}

static void end(struct sweep *w, int i) {
    int at = count_below(w, w->lives->interval[i].offset) - 1; /* no two of the living begin at one place */
    CR_ASSERT(at >= 0 && w->alive[at] == i);
    memmove(&w->alive[at], &w->alive[at + 1], (size_t)(w->count - at - 1) * sizeof *w->alive);
    w->count--;
}

static cr_status run_sweep(struct sweep *w) {
    int events = 0;
    for (int i = 0; i < w->lives->count; i++) {
        const struct cr_interval *x = &w->lives->interval[i];
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

cr_status cr_lifetimes_check(const struct cr_lifetimes *lives, size_t capacity) {
    cr_status    status = CR_OK;
    struct sweep w      = {.lives = lives};
    for (int i = 0; i < lives->count; i++)
        if (lives->interval[i].size > capacity || lives->interval[i].offset > capacity - lives->interval[i].size)
            return CR_FAIL(CR_ERR_FORMAT, "the plan is wrong: %.40s ends above the capacity %zu", lives->id[i],
                           capacity);
    w.event = cr_alloc(2 * (size_t)lives->count, sizeof *w.event);
    w.alive = cr_alloc((size_t)lives->count, sizeof *w.alive);
    if (!w.event || !w.alive) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while checking the plan");
    CR_TRY_OUT(run_sweep(&w));
out:
    cr_free(w.event);
    cr_free(w.alive);
    return status;
}
