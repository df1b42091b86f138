/* compiler/memory/greedy.c: offsets for lives, the planner's core.
 *
 * Places one life after the other: among those placed whose time overlaps, take the smallest gap that fits, else the
 * top. The order decides the quality, so several are tried (by size first: large things are hard to place late). While
 * the best peak is above the bound, what sticks out above the bound is moved to the front and all is placed again.
 * Everything is counted in units of the alignment and in ranks of time, and no clock is asked, so equal inputs give
 * equal plans. */
#include "compiler/compiler.h"

#include <stdlib.h>
#include <string.h>

struct item { /* a life in ranks of time and units of space */
    int     lower, upper;
    int64_t size, offset;
    int     life; /* index of the caller's */
};

struct key {
    int64_t major, minor;
    int     item;
};

struct planner {
    struct item *item;
    int          items;
    int64_t     *time; /* ranks: sorted, unique */
    int          times;
    int         *order; /* items as they are placed */
    struct key  *key;
    struct item *placed; /* sorted by offset */
    int64_t     *best;   /* offsets by item */
    int         *best_order;
    int64_t      peak, bound;
    int64_t      visits; /* pairs looked at: the budget of the improvement */
};

enum { IMPROVE_VISITS = 24 * 1000 * 1000, IMPROVE_ROUNDS = 400 };

/* ---- setting up ---- */

static int rank_of(const struct planner *w, int64_t time) {
    const int64_t *at = bsearch(&time, w->time, (size_t)w->times, sizeof *w->time, cr_compare_i64);
    return (int)(at - w->time);
}

static bool is_empty(const struct cr_interval *life) {
    return life->size == 0 || life->lower >= life->upper;
}

static cr_status set_up(struct planner *w, const struct cr_interval *life, int count, size_t alignment) {
    CR_ASSERT(alignment > 0 && count >= 0);
    size_t n = (size_t)count, total = 0;
    CR_ALLOC(w->item, n);
    CR_ALLOC(w->time, 2 * n);
    for (int i = 0; i < count; i++) {
        if (is_empty(&life[i])) continue;
        size_t units = life[i].size / alignment + (life[i].size % alignment != 0);
        if (units > ((size_t)INT64_MAX - 1 - total) / alignment) /* INT64_MAX stands for no plan yet */
            return CR_FAIL(CR_ERR_MEMORY, "the plan would need more bytes than can be counted: use a smaller batch");
        total += units * alignment;
        w->item[w->items++] = (struct item){.size = (int64_t)units, .life = i};
        w->time[w->times++] = life[i].lower;
        w->time[w->times++] = life[i].upper;
    }
    qsort(w->time, (size_t)w->times, sizeof *w->time, cr_compare_i64);
    int unique = 0;
    for (int i = 0; i < w->times; i++)
        if (i == 0 || w->time[i] != w->time[unique - 1]) w->time[unique++] = w->time[i];
    w->times = unique;
    for (int i = 0; i < w->items; i++) {
        w->item[i].lower = rank_of(w, life[w->item[i].life].lower);
        w->item[i].upper = rank_of(w, life[w->item[i].life].upper);
    }
    return CR_OK;
}

static cr_status find_bound(struct planner *w) {
    int64_t *load;
    CR_ALLOC(load, (size_t)w->times + 1);
    for (int i = 0; i < w->items; i++) {
        load[w->item[i].lower] += w->item[i].size;
        load[w->item[i].upper] -= w->item[i].size;
    }
    int64_t now = 0;
    for (int t = 0; t < w->times; t++) {
        now += load[t];
        w->bound = CR_MAX(w->bound, now);
    }
    cr_free(load);
    return CR_OK;
}

static void tear_down(struct planner *w) {
    cr_free(w->item);
    cr_free(w->time);
    cr_free(w->order);
    cr_free(w->key);
    cr_free(w->placed);
    cr_free(w->best);
    cr_free(w->best_order);
}

/* ---- orders ---- */

enum by { BY_SIZE, BY_AREA, BY_SIZE_LATE, BY_LENGTH, BY_START, BY_END, BYS };

static struct key key_of(const struct planner *w, int index, enum by by) {
    const struct item *x      = &w->item[index];
    int64_t            length = x->upper - x->lower;
    switch (by) {
    case BY_SIZE: return (struct key){x->size, length, index};
    case BY_AREA: return (struct key){x->size > INT64_MAX / length ? INT64_MAX : x->size * length, x->size, index};
    case BY_SIZE_LATE: return (struct key){x->size, x->lower, index};
    case BY_LENGTH: return (struct key){length, x->size, index};
    case BY_START: return (struct key){-x->lower, x->size, index};
    case BY_END:
    case BYS: break;
    }
    return (struct key){x->upper, x->size, index};
}

static int compare_keys(const void *a, const void *b) { /* large first; ties by index */
    const struct key *s = a, *t = b;
    if (s->major != t->major) return s->major > t->major ? -1 : 1;
    if (s->minor != t->minor) return s->minor > t->minor ? -1 : 1;
    return s->item - t->item;
}

static void sort_order(struct planner *w, enum by by) {
    for (int i = 0; i < w->items; i++) w->key[i] = key_of(w, i, by);
    qsort(w->key, (size_t)w->items, sizeof *w->key, compare_keys);
    for (int i = 0; i < w->items; i++) w->order[i] = w->key[i].item;
}

/* ---- placing ---- */

/* Offset for an item among the `placed` ones, in the smallest gap that fits (or the lowest). */
static int64_t find_gap(struct planner *w, int placed, const struct item *x, bool lowest) {
    int64_t top = 0, at = -1, smallest = INT64_MAX;
    for (int i = 0; i < placed; i++) {
        const struct item *y = &w->placed[i];
        if (y->upper <= x->lower || x->upper <= y->lower) continue;
        int64_t gap = y->offset - top;
        if (gap >= x->size && gap < smallest) {
            smallest = gap;
            at       = top;
            if (lowest || gap == x->size) break;
        }
        top = CR_MAX(top, y->offset + y->size);
    }
    w->visits += placed;
    return at >= 0 ? at : top;
}

static void insert_placed(struct planner *w, int placed, const struct item *x) {
    int low = 0, high = placed;
    while (low < high) {
        int middle = (low + high) / 2;
        if (w->placed[middle].offset > x->offset)
            high = middle;
        else
            low = middle + 1;
    }
    memmove(&w->placed[low + 1], &w->placed[low], (size_t)(placed - low) * sizeof *w->placed);
    w->placed[low] = *x;
}

/* Places all in the present order; keeps the result when it is the best so far. */
static bool place_all(struct planner *w, bool lowest) {
    int64_t peak = 0;
    for (int i = 0; i < w->items; i++) {
        struct item *x = &w->item[w->order[i]];
        x->offset      = find_gap(w, i, x, lowest);
        peak           = CR_MAX(peak, x->offset + x->size);
        insert_placed(w, i, x);
    }
    if (peak >= w->peak) return false;
    w->peak = peak;
    for (int i = 0; i < w->items; i++) {
        w->best[i]       = w->item[i].offset;
        w->best_order[i] = w->order[i];
    }
    return true;
}

/* What sticks out above the bound goes to the front, in its present order. False when nothing does. */
static bool lift(struct planner *w) {
    int front = 0, back = 0;
    for (int i = 0; i < w->items; i++) {
        const struct item *x = &w->item[w->order[i]];
        w->key[i].item       = w->order[i];
        w->key[i].major      = x->offset + x->size > w->bound;
        front += (int)w->key[i].major;
    }
    if (front == 0) return false;
    int high = 0;
    for (int i = 0; i < w->items; i++) {
        if (w->key[i].major)
            w->order[high++] = w->key[i].item;
        else
            w->order[front + back++] = w->key[i].item;
    }
    return true;
}

/* Lifts from the best order; when that has run dry, goes on from where it stands, for it may still lead down. */
static void improve(struct planner *w) {
    for (int start = 0; start < 2 && w->peak > w->bound; start++) {
        memcpy(w->order, w->best_order, (size_t)w->items * sizeof *w->order);
        for (int i = 0; i < w->items; i++) w->item[i].offset = w->best[i];
        for (int round = 0; round < IMPROVE_ROUNDS / 2; round++) {
            if (w->peak == w->bound || w->visits > IMPROVE_VISITS || !lift(w)) return;
            place_all(w, start == 1);
        }
    }
}

static cr_status plan_items(struct planner *w) {
    size_t n = (size_t)w->items;
    CR_ALLOC(w->order, n);
    CR_ALLOC(w->key, n);
    CR_ALLOC(w->placed, n);
    CR_ALLOC(w->best, n);
    CR_ALLOC(w->best_order, n);
    w->peak = INT64_MAX;
    for (int by = 0; by < BYS; by++)
        for (int lowest = 0; lowest < 2; lowest++) {
            if (w->peak == w->bound || (w->visits > IMPROVE_VISITS && by > BY_AREA)) return CR_OK;
            sort_order(w, (enum by)by);
            place_all(w, lowest == 1);
        }
    improve(w);
    return CR_OK;
}

cr_status cr_plan_intervals(struct cr_interval *life, int count, size_t alignment, size_t *peak, size_t *bound) {
    cr_status      status = CR_OK;
    struct planner w      = {0};
    CR_TRY_OUT(set_up(&w, life, count, alignment));
    CR_TRY_OUT(find_bound(&w));
    if (w.items) CR_TRY_OUT(plan_items(&w));
    for (int i = 0; i < count; i++) life[i].offset = 0;
    for (int i = 0; i < w.items; i++) life[w.item[i].life].offset = (size_t)w.best[i] * alignment;
    *peak  = (size_t)w.peak * alignment;
    *bound = (size_t)w.bound * alignment;
out:
    tear_down(&w);
    return status;
}

cr_status cr_plan_bound(const struct cr_interval *life, int count, size_t alignment, size_t *bound) {
    cr_status      status = CR_OK;
    struct planner w      = {0};
    CR_TRY_OUT(set_up(&w, life, count, alignment));
    CR_TRY_OUT(find_bound(&w));
    *bound = (size_t)w.bound * alignment;
out:
    tear_down(&w);
    return status;
}
