/* inspect/memory_trace/plan.c: offsets for the lives of an iteration that repeats. Where no life goes on in the next
 * iteration, it is the planner's own problem (cr_plan_intervals). Where some do, time is a circle: they are taken to be
 * there all the time (safe, and often no loss: the cut lies where few bytes live), and besides everything is placed
 * greedily on the circle; the better plan is kept. */
#include "compiler/compiler.h"
#include "inspect/memory_trace/memory_trace.h"

#include <stdlib.h>
#include <string.h>

struct key {
    int64_t first, second, third; /* larger ones are placed earlier */
    int     interval;
};

struct placer {
    struct cr_trace_plan *plan;
    struct key           *key;
    int                  *placed; /* lives by offset */
    size_t               *best;   /* offsets */
    int64_t               visits;
};

enum { VISITS_MAX = 100 * 1000 * 1000, ROUNDS = 30 };

static size_t padded(const struct cr_trace_plan *plan, const struct cr_trace_interval *x) {
    return (x->size + plan->alignment - 1) / plan->alignment * plan->alignment * (size_t)x->copies;
}

/* ---- the bound ---- */

/* On the circle; a life of several turns counts as often as it is there. */
static cr_status find_bound(struct cr_trace_plan *plan) {
    size_t *change, always = 0, live = 0;
    CR_ALLOC(change, (size_t)plan->steps + 1);
    for (int i = 0; i < plan->intervals; i++) {
        const struct cr_trace_interval *x     = &plan->interval[i];
        const size_t                    bytes = padded(plan, x) / (size_t)x->copies;
        const int64_t length = x->upper - x->lower, turns = length / plan->steps, rest = length % plan->steps;
        always += (size_t)turns * bytes;
        change[x->lower] += bytes;
        if (x->lower + rest < plan->steps)
            change[x->lower + rest] -= bytes;
        else {
            change[0] += bytes;
            change[x->lower + rest - plan->steps] -= bytes;
        }
    }
    plan->bound = always;
    for (int64_t t = 0; t < plan->steps; t++) {
        live += change[t];
        plan->bound = CR_MAX(plan->bound, always + live);
    }
    cr_free(change);
    return CR_OK;
}

/* ---- straight ---- */

static cr_status plan_straight(struct cr_trace_plan *plan) {
    struct cr_interval *life;
    size_t              bound;
    CR_ALLOC(life, (size_t)CR_MAX(plan->intervals, 1));
    for (int i = 0; i < plan->intervals; i++) {
        const struct cr_trace_interval *x = &plan->interval[i];
        life[i]                           = x->upper <= plan->steps
                                                ? (struct cr_interval){.lower = x->lower, .upper = x->upper, .size = x->size}
                                                : (struct cr_interval){.lower = 0, .upper = plan->steps, .size = padded(plan, x)};
    }
    cr_status status = cr_plan_intervals(life, plan->intervals, plan->alignment, &plan->peak, &bound);
    for (int i = 0; i < plan->intervals && status == CR_OK; i++) plan->interval[i].offset = life[i].offset;
    cr_free(life);
    return status;
}

/* ---- round ---- */

static bool wraps(const struct cr_trace_plan *plan, const struct cr_trace_interval *x) {
    return x->upper > plan->steps;
}

/* Are they there at the same time, in one iteration or the next? */
static bool meet(const struct cr_trace_plan *plan, const struct cr_trace_interval *x,
                 const struct cr_trace_interval *y) {
    if (x->copies > 1 || y->copies > 1) return true;
    const int64_t turn = plan->steps;
    return (x->lower < y->upper && y->lower < x->upper) || (x->lower + turn < y->upper) || (y->lower + turn < x->upper);
}

static size_t find_gap(struct placer *w, int placed, const struct cr_trace_interval *x, bool lowest) {
    size_t       top = 0, at = SIZE_MAX, smallest = SIZE_MAX;
    const size_t size = padded(w->plan, x);
    for (int i = 0; i < placed; i++) {
        const struct cr_trace_interval *y = &w->plan->interval[w->placed[i]];
        if (!meet(w->plan, x, y)) continue;
        if (y->offset >= top + size && y->offset - top < smallest) {
            smallest = y->offset - top;
            at       = top;
            if (lowest || smallest == size) break;
        }
        top = CR_MAX(top, y->offset + padded(w->plan, y));
    }
    w->visits += placed;
    return at != SIZE_MAX ? at : top;
}

static void insert_placed(struct placer *w, int placed, int life) {
    int at = placed;
    for (; at > 0 && w->plan->interval[w->placed[at - 1]].offset > w->plan->interval[life].offset; at--)
        w->placed[at] = w->placed[at - 1];
    w->placed[at] = life;
}

static int compare_keys(const void *a, const void *b) {
    const struct key *s = a, *t = b;
    if (s->first != t->first) return s->first > t->first ? -1 : 1;
    if (s->second != t->second) return s->second > t->second ? -1 : 1;
    if (s->third != t->third) return s->third > t->third ? -1 : 1;
    return s->interval - t->interval;
}

enum by { BY_SIZE, BY_AREA, BY_LENGTH, BYS };

/* Those that go on in the next iteration all meet at the cut: they lie on each other, at the bottom when they come
 * first. */
static void sort_lives(struct placer *w, enum by by, bool wrapping_first) {
    for (int i = 0; i < w->plan->intervals; i++) {
        const struct cr_trace_interval *x     = &w->plan->interval[i];
        const int64_t                   units = (int64_t)(padded(w->plan, x) / w->plan->alignment);
        const int64_t length = x->upper - x->lower, area = units > INT64_MAX / length ? INT64_MAX : units * length;
        w->key[i] = (struct key){.first    = wrapping_first && wraps(w->plan, x),
                                 .second   = by == BY_SIZE   ? units
                                             : by == BY_AREA ? area
                                                             : length,
                                 .third    = by == BY_SIZE ? length : units,
                                 .interval = i};
    }
    qsort(w->key, (size_t)w->plan->intervals, sizeof *w->key, compare_keys);
}

static void place_all(struct placer *w, bool lowest) {
    size_t peak = 0;
    for (int i = 0; i < w->plan->intervals; i++) {
        struct cr_trace_interval *x = &w->plan->interval[w->key[i].interval];
        x->offset                   = find_gap(w, i, x, lowest);
        peak                        = CR_MAX(peak, x->offset + padded(w->plan, x));
        insert_placed(w, i, w->key[i].interval);
    }
    if (peak >= w->plan->peak) return;
    w->plan->peak = peak;
    for (int i = 0; i < w->plan->intervals; i++) w->best[i] = w->plan->interval[i].offset;
}

/* What sticks out above the bound is placed earlier the next time. False: nothing does. */
static bool lift(struct placer *w) {
    bool any = false;
    for (int i = 0; i < w->plan->intervals; i++) {
        const struct cr_trace_interval *x = &w->plan->interval[w->key[i].interval];
        w->key[i].first                   = x->offset + padded(w->plan, x) > w->plan->bound;
        w->key[i].second                  = -i;
        any |= w->key[i].first;
    }
    qsort(w->key, (size_t)w->plan->intervals, sizeof *w->key, compare_keys);
    return any;
}

static bool is_done(const struct placer *w) {
    return w->plan->peak == w->plan->bound || w->visits > VISITS_MAX;
}

static cr_status plan_round(struct placer *w) {
    const size_t n = (size_t)w->plan->intervals;
    CR_ALLOC(w->key, n);
    CR_ALLOC(w->placed, n);
    CR_ALLOC(w->best, n);
    for (size_t i = 0; i < n; i++) w->best[i] = w->plan->interval[i].offset;
    for (int k = 0; k < 4 * BYS; k++) {
        sort_lives(w, (enum by)(k / 4), k % 2 == 0);
        place_all(w, k / 2 % 2);
        for (int round = 0; round < ROUNDS && !is_done(w) && lift(w); round++) place_all(w, k / 2 % 2);
        if (is_done(w)) break;
    }
    for (size_t i = 0; i < n; i++) w->plan->interval[i].offset = w->best[i];
    return CR_OK;
}

cr_status cr_trace_plan(const struct cr_trace *trace, const struct cr_trace_loop *loop, enum cr_trace_by by,
                        size_t alignment, struct cr_trace_plan *out) {
    CR_ASSERT(alignment > 0 && loop->period > 0 && loop->end - loop->start >= 2 * (int64_t)loop->period);
    struct cr_trace_plan plan   = {.by = by, .alignment = alignment};
    struct placer        w      = {.plan = &plan};
    cr_status            status = cr_trace_intervals(trace, loop, &plan);
    if (status == CR_OK) status = find_bound(&plan);
    if (status == CR_OK) status = plan_straight(&plan);
    if (status == CR_OK && plan.wrapping && plan.peak > plan.bound) status = plan_round(&w);
    cr_free(w.key);
    cr_free(w.placed);
    cr_free(w.best);
    if (status == CR_OK)
        *out = plan;
    else
        cr_trace_plan_free(&plan);
    return status;
}

void cr_trace_plan_free(struct cr_trace_plan *plan) {
    cr_free(plan->interval);
    *plan = (struct cr_trace_plan){0};
}
