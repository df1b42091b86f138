/* tools/memory-trace/branch_and_bound.c: depth-first search for offsets below a capacity.
 *
 * Every plan can be compacted until each item rests on the bottom or on another item. The items of a compacted plan can
 * be placed one by one with non-decreasing offsets. So a node of the tree places one of the unplaced items at its
 * lowest free offset, never below the item placed before; the ranks order items at equal offsets. Each plan is then
 * visited once. An item that is passed over can be placed only after another item has been placed under it.
 *
 * A subtree is pruned when
 *   - an unplaced item would still fit below the present offset: the plan with that item there is visited elsewhere;
 *   - no unplaced item can still lift an item that was passed over;
 *   - in some section the unplaced items, on top of the lowest offset that is left there, exceed the capacity.
 *
 * When no unplaced item spans a border between two sections, the two sides are independent. They are solved one after
 * the other; when one side has no solution, the other side is not tried again. */
#include "tools/memory-trace/branch_and_bound.h"

#include <string.h>

enum { CLOCK_INTERVAL = 64 }; /* steps between two looks at the clock */

/* Position of the last placed item; later items have larger keys. */
struct key {
    int64_t offset;
    int     rank;
};

struct part { /* the unplaced items from `first` on that start before section `end` */
    int first, begin, end;
};

/* ---- opening ---- */

static bool overlap(const struct cr_tree_item *a, const struct cr_tree_item *b) {
    return a->lower < b->upper && b->lower < a->upper;
}

/* Number of overlapping pairs, counted twice, plus the lengths of all items: the most undo records of one branch. */
static size_t count_changes(const struct cr_tree_item *item, int items, size_t *near) {
    size_t sections = 0;
    *near           = 0;
    for (int i = 0; i < items; i++) {
        sections += (size_t)(item[i].upper - item[i].lower);
        for (int k = i + 1; k < items && item[k].lower < item[i].upper; k++) *near += 2;
    }
    return sections + *near;
}

size_t cr_tree_bytes(const struct cr_tree_item *item, int items, int sections) {
    size_t near, changes = count_changes(item, items, &near);
    return changes * sizeof(struct cr_tree_change) + near * sizeof(int) + (size_t)items * 48 + (size_t)sections * 40;
}

static void find_near(struct cr_tree *t) {
    int count = 0;
    for (int i = 0; i < t->items; i++) {
        t->near_at[i] = count;
        for (int k = 0; k < t->items && t->item[k].lower < t->item[i].upper; k++)
            if (k != i && overlap(&t->item[k], &t->item[i])) t->near[count++] = k;
    }
    t->near_at[t->items] = count;
}

static cr_status allocate(struct cr_tree *t) {
    size_t n = (size_t)t->items, s = (size_t)t->sections + 1, near, changes = count_changes(t->item, t->items, &near);
    CR_ARENA_ALLOC(&t->arena, t->near, near);
    CR_ARENA_ALLOC(&t->arena, t->near_at, n + 1);
    CR_ARENA_ALLOC(&t->arena, t->next, n + 1);
    CR_ARENA_ALLOC(&t->arena, t->previous, n + 1);
    CR_ARENA_ALLOC(&t->arena, t->placed, n);
    CR_ARENA_ALLOC(&t->arena, t->rest, n);
    CR_ARENA_ALLOC(&t->arena, t->least, n);
    CR_ARENA_ALLOC(&t->arena, t->stack, n);
    CR_ARENA_ALLOC(&t->arena, t->floor, s);
    CR_ARENA_ALLOC(&t->arena, t->total, s);
    CR_ARENA_ALLOC(&t->arena, t->lowest, s);
    CR_ARENA_ALLOC(&t->arena, t->across, s);
    CR_ARENA_ALLOC(&t->arena, t->failures, s);
    CR_ARENA_ALLOC(&t->arena, t->change, changes);
    return CR_OK;
}

void cr_tree_close(struct cr_tree *t) {
    cr_arena_free(&t->arena);
    *t = (struct cr_tree){0};
}

cr_status cr_tree_open(struct cr_tree *tree, struct cr_tree_item *item, int items, int sections) {
    *tree            = (struct cr_tree){.item = item, .items = items, .sections = sections};
    cr_status status = allocate(tree);
    if (status != CR_OK) {
        cr_tree_close(tree);
        return status;
    }
    find_near(tree);
    for (int i = 0; i < items; i++) {
        for (int s = item[i].lower; s < item[i].upper; s++) tree->total[s] += item[i].size;
        for (int s = item[i].lower + 1; s < item[i].upper; s++) tree->across[s]++;
    }
    for (int i = 0; i <= items; i++) {
        tree->next[i]     = i < items ? i + 1 : 0;
        tree->previous[i] = i ? i - 1 : items;
    }
    return CR_OK;
}

/* ---- placing and undoing ---- */

static bool in_part(const struct cr_tree *t, struct part p, int i) {
    return i < t->items && t->item[i].lower < p.end;
}

static void record_change(struct cr_tree *t, int64_t *where, int64_t value) {
    t->change[t->changes++] = (struct cr_tree_change){where, *where};
    *where                  = value;
}

static void place(struct cr_tree *t, int b) {
    struct cr_tree_item *x   = &t->item[b];
    int64_t              top = t->rest[b] + x->size;
    x->offset                = t->rest[b];
    t->placed[b]             = true;
    t->stack[t->depth++]     = b;
    t->next[t->previous[b]]  = t->next[b];
    t->previous[t->next[b]]  = t->previous[b];
    for (int s = x->lower; s < x->upper; s++) {
        record_change(t, &t->floor[s], top);
        t->total[s] -= x->size;
    }
    for (int s = x->lower + 1; s < x->upper; s++) t->across[s]--;
    for (int k = t->near_at[b]; k < t->near_at[b + 1]; k++)
        if (!t->placed[t->near[k]] && t->rest[t->near[k]] < top) record_change(t, &t->rest[t->near[k]], top);
}

static void undo(struct cr_tree *t, int depth, size_t changes) {
    while (t->changes > changes) {
        t->changes--;
        *t->change[t->changes].where = t->change[t->changes].was;
    }
    while (t->depth > depth) {
        int                        b = t->stack[--t->depth];
        const struct cr_tree_item *x = &t->item[b];
        t->placed[b]                 = false;
        t->next[t->previous[b]]      = b;
        t->previous[t->next[b]]      = b;
        for (int s = x->lower; s < x->upper; s++) t->total[s] += x->size;
        for (int s = x->lower + 1; s < x->upper; s++) t->across[s]++;
    }
}

/* ---- pruning ---- */

static bool is_candidate(const struct cr_tree *t, int i, struct key key) {
    return t->rest[i] != key.offset ? t->rest[i] > key.offset : t->rank[i] > key.rank;
}

/* Least offset of item i, which was passed over: the top of the lowest unplaced item that may still come under it.
 * INT64_MAX when there is no such item. */
static int64_t least_lifted_offset(const struct cr_tree *t, int i) {
    int64_t top = t->rest[i] + t->item[i].size, least = INT64_MAX;
    for (int k = t->near_at[i]; k < t->near_at[i + 1]; k++) {
        int j = t->near[k];
        if (t->placed[j] || t->least[j] >= top) continue;
        least = CR_MIN(least, t->least[j] + t->item[j].size);
    }
    return least;
}

static bool find_least(struct cr_tree *t, struct part p, struct key key) {
    for (int i = p.first; in_part(t, p, i); i = t->next[i])
        t->least[i] = is_candidate(t, i, key) ? t->rest[i] : key.offset;
    for (int i = p.first; in_part(t, p, i); i = t->next[i]) {
        if (!is_candidate(t, i, key)) {
            t->budget->visits -= t->near_at[i + 1] - t->near_at[i];
            int64_t least = least_lifted_offset(t, i);
            if (least == INT64_MAX) {
                for (int s = t->item[i].lower; s < t->item[i].upper; s++)
                    t->failures[s] += 1.0 / (t->item[i].upper - t->item[i].lower);
                return false;
            }
            t->least[i] = least;
        }
        if (t->least[i] > t->capacity - t->item[i].size) return false;
    }
    return true;
}

static bool sections_fit(struct cr_tree *t, struct part p) {
    for (int s = p.begin; s < p.end; s++) t->lowest[s] = INT64_MAX;
    for (int i = p.first; in_part(t, p, i); i = t->next[i]) {
        int64_t least = t->least[i];
        for (int s = t->item[i].lower; s < t->item[i].upper; s++) t->lowest[s] = CR_MIN(t->lowest[s], least);
        t->budget->visits -= t->item[i].upper - t->item[i].lower + 1;
    }
    for (int s = p.begin; s < p.end; s++) {
        if (!t->total[s] || t->lowest[s] <= t->capacity - t->total[s]) continue;
        t->failures[s]++;
        return false;
    }
    return true;
}

static bool is_feasible(struct cr_tree *t, struct part p, struct key key) {
    return find_least(t, p, key) && sections_fit(t, p);
}

/* ---- the search ---- */

static bool is_budget_spent(struct cr_tree *t) {
    if (t->budget->visits <= 0) t->stopped = true;
    if (t->steps++ % CLOCK_INTERVAL == 0 && t->budget->deadline_ns != INT64_MAX &&
        cr_time_ns() > t->budget->deadline_ns)
        t->stopped = true;
    return t->stopped;
}

/* The lowest unplaced item above `key` and below `ceiling`; of equals the one of least rank; -1: none. */
static int next_choice(const struct cr_tree *t, struct part p, struct key key, int64_t ceiling) {
    int best = -1;
    for (int i = p.first; in_part(t, p, i); i = t->next[i]) {
        if (t->rest[i] >= ceiling || !is_candidate(t, i, key)) continue;
        bool lower = best < 0 || t->rest[i] < t->rest[best];
        if (lower || (t->rest[i] == t->rest[best] && t->rank[i] < t->rank[best])) best = i;
    }
    return best;
}

static bool search(struct cr_tree *t, struct part p, struct key key);

/* Item x has just been placed. Searches the sides of each border inside x that no unplaced item spans, one by one. */
static bool search_sides(struct cr_tree *t, struct part p, const struct cr_tree_item *x, struct key key) {
    struct part side = {p.first, p.begin, p.end};
    for (int s = x->lower + 1; s < x->upper; s++) {
        if (t->across[s]) continue;
        side.end = s;
        if (!search(t, side, key)) return false;
        /* all items of that side are placed, so the ring continues with the next side */
        while (in_part(t, side, side.first)) side.first = t->next[side.first];
        side.begin = s;
    }
    side.end = p.end;
    return search(t, side, key);
}

static bool search(struct cr_tree *t, struct part p, struct key key) {
    if (!in_part(t, p, p.first)) return true;
    int64_t ceiling = INT64_MAX;
    for (int i = p.first; in_part(t, p, i); i = t->next[i]) ceiling = CR_MIN(ceiling, t->rest[i] + t->item[i].size);
    for (;;) {
        int b = next_choice(t, p, key, ceiling);
        if (b < 0 || is_budget_spent(t)) return false;
        int         depth   = t->depth;
        size_t      changes = t->changes;
        struct part rest    = {b == p.first ? t->next[b] : p.first, p.begin, p.end};
        key                 = (struct key){t->rest[b], t->rank[b]};
        place(t, b);
        if (is_feasible(t, rest, key) && search_sides(t, rest, &t->item[b], key)) return true;
        undo(t, depth, changes);
        if (t->stopped || !is_feasible(t, p, key)) return false; /* b is passed over from here on */
    }
}

enum cr_tree_end cr_tree_walk(struct cr_tree *t, const int *rank, int64_t capacity, struct cr_tree_budget *budget) {
    t->rank     = rank;
    t->capacity = capacity;
    t->budget   = budget;
    t->steps    = 0;
    t->stopped  = false;
    for (int i = 0; i < t->items; i++)
        if (t->item[i].size > capacity) return CR_TREE_NONE;
    for (int s = 0; s < t->sections; s++)
        if (t->total[s] > capacity) return CR_TREE_NONE;
    bool solved = search(t, (struct part){t->next[t->items], 0, t->sections}, (struct key){-1, 0});
    undo(t, 0, 0);
    return solved ? CR_TREE_SOLVED : t->stopped ? CR_TREE_STOPPED : CR_TREE_NONE;
}
