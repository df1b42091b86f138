/* tools/memory-trace/trace/plan.c: offsets for the lifetimes of an iteration that repeats. If no lifetime continues in
 * the next iteration, this is the problem of the planner (cr_plan_intervals). Otherwise time is circular, and two
 * plans are made: one treats lifetimes that continue as live all the time (correct, and often without loss, because
 * the cut is where few bytes are live); the other places all blocks greedily on the circle. The smaller plan is
 * used. */
#include "compiler/intervals.h"
#include "tools/memory-trace/trace/trace.h"

#include <stdlib.h>
#include <string.h>

struct key {
    int64_t first, second, third; /* blocks with larger keys are placed first */
    int     interval;
};

struct placer {
    struct cr_trace_plan *plan;
    struct key           *key;
    int                  *placed; /* placed intervals, sorted by offset */
    size_t               *best;   /* offsets of the best plan so far */
    int64_t               visits; /* comparisons so far, limited by VISITS_MAX */
};

enum { VISITS_MAX = 100 * 1000 * 1000, ROUNDS = 30 };

static size_t padded(const struct cr_trace_plan *plan, const struct cr_trace_interval *x) {
    return (x->size + plan->alignment - 1) / plan->alignment * plan->alignment * (size_t)x->copies;
}

/* ---- the bound ---- */

/* Computes the bound on the circle; a lifetime of several iterations counts once per copy that is live. */
static cr_status find_bound(struct cr_trace_plan *plan) {
    size_t *change, always = 0, live = 0;
    CR_ALLOC(change, (size_t)plan->steps + 1);
    for (int i = 0; i < plan->intervals; i++) {
        const struct cr_trace_interval *x     = &plan->interval[i];
        const size_t                    bytes = padded(plan, x) / (size_t)x->copies;
        const int64_t length = x->upper - x->lower, iterations = length / plan->steps, remainder = length % plan->steps;
        always += (size_t)iterations * bytes;
        change[x->lower] += bytes;
        if (x->lower + remainder < plan->steps)
            change[x->lower + remainder] -= bytes;
        else {
            change[0] += bytes;
            change[x->lower + remainder - plan->steps] -= bytes;
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

/* ---- the linear plan ---- */

static cr_status plan_linear(struct cr_trace_plan *plan) {
    struct cr_interval *interval;
    size_t              bound;
    CR_ALLOC(interval, (size_t)CR_MAX(plan->intervals, 1));
    for (int i = 0; i < plan->intervals; i++) {
        const struct cr_trace_interval *x = &plan->interval[i];
        interval[i] = (struct cr_interval){.lower = 0, .upper = plan->steps, .size = padded(plan, x)};
        if (x->upper <= plan->steps)
            interval[i] = (struct cr_interval){.lower = x->lower, .upper = x->upper, .size = x->size};
    }
    cr_status status = cr_plan_intervals(interval, plan->intervals, plan->alignment, &plan->peak, &bound);
    for (int i = 0; i < plan->intervals && status == CR_OK; i++) plan->interval[i].offset = interval[i].offset;
    cr_free(interval);
    return status;
}

/* ---- the circular plan ---- */

static bool wraps(const struct cr_trace_plan *plan, const struct cr_trace_interval *x) {
    return x->upper > plan->steps;
}

/* Returns whether the lifetimes overlap, in one iteration or across iterations. */
static bool overlap(const struct cr_trace_plan *plan, const struct cr_trace_interval *x,
                    const struct cr_trace_interval *y) {
    if (x->copies > 1 || y->copies > 1) return true;
    const int64_t steps = plan->steps;
    return (x->lower < y->upper && y->lower < x->upper) || (x->lower + steps < y->upper) ||
           (y->lower + steps < x->upper);
}

static size_t find_gap(struct placer *w, int placed, const struct cr_trace_interval *x, bool lowest) {
    size_t       top = 0, at = SIZE_MAX, smallest = SIZE_MAX;
    const size_t size = padded(w->plan, x);
    for (int i = 0; i < placed; i++) {
        const struct cr_trace_interval *y = &w->plan->interval[w->placed[i]];
        if (!overlap(w->plan, x, y)) continue;
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

static void insert_placed(struct placer *w, int placed, int interval) {
    int at = placed;
    for (; at > 0 && w->plan->interval[w->placed[at - 1]].offset > w->plan->interval[interval].offset; at--)
        w->placed[at] = w->placed[at - 1];
    w->placed[at] = interval;
}

static int compare_keys(const void *a, const void *b) {
    const struct key *s = a, *t = b;
    if (s->first != t->first) return s->first > t->first ? -1 : 1;
    if (s->second != t->second) return s->second > t->second ? -1 : 1;
    if (s->third != t->third) return s->third > t->third ? -1 : 1;
    return s->interval - t->interval;
}

enum sort_key { BY_SIZE, BY_AREA, BY_LENGTH, BYS };

/* Lifetimes that continue in the next iteration all overlap at the cut: they are stacked, at the bottom if they come
 * first. */
static void sort_intervals(struct placer *w, enum sort_key by, bool wrapping_first) {
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

/* Blocks above the bound are placed earlier in the next round. False: no block is above the bound. */
static bool promote(struct placer *w) {
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

static cr_status plan_circular(struct placer *w) {
    const size_t n = (size_t)w->plan->intervals;
    CR_ALLOC(w->key, n);
    CR_ALLOC(w->placed, n);
    CR_ALLOC(w->best, n);
    for (size_t i = 0; i < n; i++) w->best[i] = w->plan->interval[i].offset;
    for (int k = 0; k < 4 * BYS; k++) {
        sort_intervals(w, (enum sort_key)(k / 4), k % 2 == 0);
        place_all(w, k / 2 % 2);
        for (int round = 0; round < ROUNDS && !is_done(w) && promote(w); round++) place_all(w, k / 2 % 2);
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
    if (status == CR_OK) status = plan_linear(&plan);
    if (status == CR_OK && plan.wrapping && plan.peak > plan.bound) status = plan_circular(&w);
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
