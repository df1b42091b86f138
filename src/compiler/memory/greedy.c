/* compiler/memory/greedy.c: greedy memory planner: chooses the offset of each tensor (interval) in the pool.
 *
 * The planner places one interval after the other into the smallest gap that fits among the placed intervals that
 * overlap in time, or on top. The order decides the quality, so it tries several orders, by size first, because large
 * intervals are hard to place late. While the best peak is above the bound, the intervals that end above the bound move
 * to the front of the order and all intervals are placed again.
 *
 * Space is counted in units of the alignment and time in ranks. The planner uses no clock, so equal inputs give equal
 * plans. */
#include "compiler/intervals.h"

#include <stdlib.h>
#include <string.h>

struct item { /* one interval: ranks of time, units of space */
    int     lower, upper;
    int64_t size, offset;
    int     interval; /* index of the caller's interval */
};

struct key {
    int64_t major, minor;
    int     item;
};

struct planner {
    struct item    *item;
    int             items;
    int64_t        *time; /* ranks: sorted, unique */
    int             times;
    int            *order; /* items in the order of placement */
    struct key     *key;
    int            *placed; /* items, sorted by offset */
    int64_t        *best;   /* offsets by item */
    int            *best_order;
    int            *earlier; /* an order of an earlier round of the improvement */
    int64_t         peak, bound;
    int64_t         visits; /* compared pairs: the budget of the improvement */
    struct cr_arena arena;  /* holds the arrays */
};

enum { IMPROVE_VISITS = 24 * 1000 * 1000, IMPROVE_ROUNDS = 400 };

/* ---- setting up ---- */

int cr_times_sort(int64_t *time, int times) {
    int unique = 0;
    qsort(time, (size_t)times, sizeof *time, cr_compare_i64);
    for (int i = 0; i < times; i++)
        if (i == 0 || time[i] != time[unique - 1]) time[unique++] = time[i];
    return unique;
}

int cr_time_rank(const int64_t *times, int count, int64_t time) {
    const int64_t *at = bsearch(&time, times, (size_t)count, sizeof *times, cr_compare_i64);
    return (int)(at - times);
}

static bool is_empty(const struct cr_interval *interval) {
    return interval->size == 0 || interval->lower >= interval->upper;
}

static cr_status set_up(struct planner *w, const struct cr_interval *interval, int count, size_t alignment) {
    CR_ASSERT(alignment > 0 && count >= 0);
    size_t n = (size_t)count, total = 0;
    CR_ARENA_ALLOC(&w->arena, w->item, n);
    CR_ARENA_ALLOC(&w->arena, w->time, 2 * n);
    for (int i = 0; i < count; i++) {
        if (is_empty(&interval[i])) continue;
        size_t units = interval[i].size / alignment + (interval[i].size % alignment != 0);
        if (units >
            ((size_t)INT64_MAX - 1 - total) / alignment) /* w->peak = INT64_MAX means that there is no plan yet */
            return CR_FAIL(CR_ERR_MEMORY, "the plan would need more bytes than can be counted: use a smaller batch");
        total += units * alignment;
        w->item[w->items++] = (struct item){.size = (int64_t)units, .interval = i};
        w->time[w->times++] = interval[i].lower;
        w->time[w->times++] = interval[i].upper;
    }
    w->times = cr_times_sort(w->time, w->times);
    for (int i = 0; i < w->items; i++) {
        w->item[i].lower = cr_time_rank(w->time, w->times, interval[w->item[i].interval].lower);
        w->item[i].upper = cr_time_rank(w->time, w->times, interval[w->item[i].interval].upper);
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

/* ---- orders ---- */

enum order_kind { BY_SIZE, BY_AREA, BY_SIZE_LATE, BY_LENGTH, BY_START, BY_END, ORDERS };

static struct key key_of(const struct planner *w, int index, enum order_kind order_kind) {
    const struct item *x      = &w->item[index];
    int64_t            length = x->upper - x->lower;
    switch (order_kind) {
    case BY_SIZE: return (struct key){x->size, length, index};
    case BY_AREA: return (struct key){x->size > INT64_MAX / length ? INT64_MAX : x->size * length, x->size, index};
    case BY_SIZE_LATE: return (struct key){x->size, x->lower, index};
    case BY_LENGTH: return (struct key){length, x->size, index};
    case BY_START: return (struct key){-x->lower, x->size, index};
    case BY_END:
    case ORDERS: break;
    }
    return (struct key){x->upper, x->size, index};
}

static int compare_keys(const void *a, const void *b) { /* large first; ties by index */
    const struct key *s = a, *t = b;
    if (s->major != t->major) return s->major > t->major ? -1 : 1;
    if (s->minor != t->minor) return s->minor > t->minor ? -1 : 1;
    return s->item - t->item;
}

static void sort_order(struct planner *w, enum order_kind order_kind) {
    for (int i = 0; i < w->items; i++) w->key[i] = key_of(w, i, order_kind);
    qsort(w->key, (size_t)w->items, sizeof *w->key, compare_keys);
    for (int i = 0; i < w->items; i++) w->order[i] = w->key[i].item;
}

/* ---- placing ---- */

/* Offset of an item above the placed items: the smallest gap that fits; with `lowest`, the lowest gap. */
static int64_t find_gap(struct planner *w, int placed, const struct item *x, bool lowest) {
    int64_t top = 0, at = -1, smallest = INT64_MAX;
    for (int i = 0; i < placed; i++) {
        const struct item *y = &w->item[w->placed[i]];
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

static void insert_placed(struct planner *w, int placed, int item) {
    int low = 0, high = placed;
    while (low < high) {
        int middle = (low + high) / 2;
        if (w->item[w->placed[middle]].offset > w->item[item].offset)
            high = middle;
        else
            low = middle + 1;
    }
    memmove(&w->placed[low + 1], &w->placed[low], (size_t)(placed - low) * sizeof *w->placed);
    w->placed[low] = item;
}

/* Places all items in the present order. Keeps the plan and returns true when it is the best so far. */
static bool place_all(struct planner *w, bool lowest) {
    int64_t peak = 0;
    for (int i = 0; i < w->items; i++) {
        struct item *x = &w->item[w->order[i]];
        x->offset      = find_gap(w, i, x, lowest);
        peak           = CR_MAX(peak, x->offset + x->size);
        insert_placed(w, i, w->order[i]);
    }
    if (peak >= w->peak) return false;
    w->peak = peak;
    for (int i = 0; i < w->items; i++) {
        w->best[i]       = w->item[i].offset;
        w->best_order[i] = w->order[i];
    }
    return true;
}

/* Moves the items that end above the bound to the front, in their present order. Returns false when there are none. */
static bool move_to_front(struct planner *w) {
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

/* The next order depends on the present one only: once an order returns, all later rounds repeat earlier ones. Compares
 * with one earlier order, that of the last round whose number is a power of two (Brent's algorithm). */
static bool has_returned(struct planner *w, int round) {
    const size_t bytes = (size_t)w->items * sizeof *w->order;
    if (round > 0 && memcmp(w->order, w->earlier, bytes) == 0) return true;
    if ((round & (round - 1)) == 0) memcpy(w->earlier, w->order, bytes);
    return false;
}

/* Improves the best order: first with the smallest gap, then again with the lowest gap. */
static void improve(struct planner *w) {
    for (int start = 0; start < 2 && w->peak > w->bound; start++) {
        memcpy(w->order, w->best_order, (size_t)w->items * sizeof *w->order);
        for (int i = 0; i < w->items; i++) w->item[i].offset = w->best[i];
        for (int round = 0; round < IMPROVE_ROUNDS / 2; round++) {
            if (w->peak == w->bound || w->visits > IMPROVE_VISITS || !move_to_front(w)) return;
            if (has_returned(w, round)) { /* the other rounds would find nothing: they only count */
                w->visits += (int64_t)(IMPROVE_ROUNDS / 2 - round) * w->items * (w->items - 1) / 2;
                break;
            }
            place_all(w, start == 1);
        }
    }
}

static cr_status plan_items(struct planner *w) {
    size_t n = (size_t)w->items;
    CR_ARENA_ALLOC(&w->arena, w->order, n);
    CR_ARENA_ALLOC(&w->arena, w->key, n);
    CR_ARENA_ALLOC(&w->arena, w->placed, n);
    CR_ARENA_ALLOC(&w->arena, w->best, n);
    CR_ARENA_ALLOC(&w->arena, w->best_order, n);
    CR_ARENA_ALLOC(&w->arena, w->earlier, n);
    w->peak = INT64_MAX;
    for (int order_kind = 0; order_kind < ORDERS; order_kind++)
        for (int lowest = 0; lowest < 2; lowest++) {
            if (w->peak == w->bound || (w->visits > IMPROVE_VISITS && order_kind > BY_AREA)) return CR_OK;
            sort_order(w, (enum order_kind)order_kind);
            place_all(w, lowest == 1);
        }
    improve(w);
    return CR_OK;
}

cr_status cr_plan_intervals(struct cr_interval *interval, int count, size_t alignment, size_t *peak, size_t *bound) {
    cr_status      status = CR_OK;
    struct planner w      = {0};
    CR_TRY_OUT(set_up(&w, interval, count, alignment));
    CR_TRY_OUT(find_bound(&w));
    if (w.items) CR_TRY_OUT(plan_items(&w));
    for (int i = 0; i < count; i++) interval[i].offset = 0;
    for (int i = 0; i < w.items; i++) interval[w.item[i].interval].offset = (size_t)w.best[i] * alignment;
    *peak  = (size_t)w.peak * alignment;
    *bound = (size_t)w.bound * alignment;
out:
    cr_arena_free(&w.arena);
    return status;
}

cr_status cr_plan_bound(const struct cr_interval *interval, int count, size_t alignment, size_t *bound) {
    cr_status      status = CR_OK;
    struct planner w      = {0};
    CR_TRY_OUT(set_up(&w, interval, count, alignment));
    CR_TRY_OUT(find_bound(&w));
    *bound = (size_t)w.bound * alignment;
out:
    cr_arena_free(&w.arena);
    return status;
}
