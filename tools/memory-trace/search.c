/* tools/memory-trace/search.c: searches for a better plan where the greedy plan is above the bound.
 *
 * tools/memory-trace/branch_and_bound.c decides whether all intervals fit below a capacity; this file chooses the
 * capacities. The greedy plan stands until a better plan is found. The first capacity is the lower bound, or the
 * capacity that the caller wants. When that is too low or too hard, the next capacity is the middle between it and the
 * best plan, and so on.
 *
 * The size of a search tree depends on the order in which it tries the intervals, and no order suits all inputs.
 * Several orders take turns: some are fixed, some are randomised, and one is learnt: intervals go first that cross the
 * sections where earlier searches failed. Searches are short and restart, because an early mistake is not corrected
 * deep in the tree. Points in time without live intervals split the intervals into groups, which are searched
 * separately. */
#include "tools/memory-trace/search.h"
#include "core/rng.h"
#include "tools/memory-trace/branch_and_bound.h"

#include <stdlib.h>
#include <string.h>

enum order_kind { BY_LOAD, BY_LENGTH, BY_AREA, BY_LOAD_AREA, BY_SIZE, BY_LOAD_RANDOM, BY_FAILURES };

static const enum order_kind order_sequence[] = {BY_LOAD, BY_LENGTH,      BY_AREA,     BY_LOAD_AREA,
                                                 BY_SIZE, BY_LOAD_RANDOM, BY_FAILURES, BY_LOAD_RANDOM};

enum { BASE_VISITS = 1 << 21, TREE_BYTES_MAX = 256 << 20, TREE_ITEMS_MAX = 8192 };

#define FAILURE_DECAY 0.7 /* factor of the failure counts before each search */
#define JITTER 0.3

struct group {
    struct cr_tree tree;
    int            first, count; /* range of items */
    bool           has_tree;
    int64_t        peak; /* units, of the best plan */
    int            searches;
};

struct order_key {
    double major, minor, least;
    int    item;
};

struct search {
    struct cr_interval   *interval;
    struct cr_tree_item  *item;   /* sorted by lower */
    double               *length; /* [items] in the caller's time */
    int64_t              *best;   /* [items] offsets of the best plan */
    int                   items;
    int64_t              *time;
    int                   times;
    int64_t               unit; /* bytes */
    struct group         *group;
    int                   groups;
    struct order_key     *key;
    int                  *rank;
    int64_t               low, high; /* no plan is below `low`; a plan exists at `high` */
    struct cr_tree_budget budget;
    struct cr_arena       arena; /* holds the arrays */
};

/* ---- setting up ---- */

static int compare_items(const void *a, const void *b) {
    const struct cr_tree_item *s = a, *t = b;
    return s->lower != t->lower ? s->lower - t->lower : s->interval - t->interval;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a            = b;
        b            = rest;
    }
    return a;
}

static cr_status find_items(struct search *w, int count, size_t alignment) {
    size_t n = (size_t)count;
    CR_ARENA_ALLOC(&w->arena, w->item, n);
    CR_ARENA_ALLOC(&w->arena, w->length, n);
    CR_ARENA_ALLOC(&w->arena, w->best, n);
    CR_ARENA_ALLOC(&w->arena, w->time, 2 * n);
    CR_ARENA_ALLOC(&w->arena, w->key, n);
    CR_ARENA_ALLOC(&w->arena, w->rank, n);
    for (int i = 0; i < count; i++) {
        const struct cr_interval *x = &w->interval[i];
        if (!x->size || x->lower >= x->upper) continue;
        int64_t bytes       = (int64_t)((x->size + alignment - 1) / alignment * alignment);
        w->item[w->items++] = (struct cr_tree_item){.size = bytes, .interval = i};
        w->unit             = common_divisor(bytes, w->unit);
        w->time[w->times++] = x->lower;
        w->time[w->times++] = x->upper;
    }
    w->times = cr_times_sort(w->time, w->times);
    for (int i = 0; i < w->items; i++) {
        struct cr_tree_item *x = &w->item[i];
        x->size /= w->unit;
        x->lower = cr_time_rank(w->time, w->times, w->interval[x->interval].lower);
        x->upper = cr_time_rank(w->time, w->times, w->interval[x->interval].upper);
    }
    qsort(w->item, (size_t)w->items, sizeof *w->item, compare_items);
    for (int i = 0; i < w->items; i++) {
        const struct cr_interval *x = &w->interval[w->item[i].interval];
        w->length[i]                = (double)x->upper - (double)x->lower;
        w->best[i]                  = (int64_t)x->offset / w->unit;
    }
    return CR_OK;
}

/* Splits the items into groups. The sections of a group are renumbered from 0. */
static cr_status find_groups(struct search *w) {
    CR_ARENA_ALLOC(&w->arena, w->group, (size_t)w->items);
    int upper = -1;
    for (int i = 0; i < w->items; i++) {
        if (w->item[i].lower >= upper) w->group[w->groups++].first = i;
        struct group *g = &w->group[w->groups - 1];
        upper           = CR_MAX(upper, w->item[i].upper);
        g->peak         = CR_MAX(g->peak, w->best[i] + w->item[i].size);
        g->count++;
    }
    for (int k = 0; k < w->groups; k++) {
        struct cr_tree_item *x    = &w->item[w->group[k].first];
        int                  base = x->lower;
        for (int i = 0; i < w->group[k].count; i++) {
            x[i].lower -= base;
            x[i].upper -= base;
        }
    }
    return CR_OK;
}

/* Opens the search trees. A group that meets the bound needs no tree; a group that is too large keeps its greedy plan.
 */
static cr_status open_trees(struct search *w) {
    for (int k = 0; k < w->groups; k++) {
        struct group        *g        = &w->group[k];
        struct cr_tree_item *x        = &w->item[g->first];
        int                  sections = 0;
        for (int i = 0; i < g->count; i++) sections = CR_MAX(sections, x[i].upper);
        if (g->peak <= w->low || g->count > TREE_ITEMS_MAX || cr_tree_bytes(x, g->count, sections) > TREE_BYTES_MAX)
            continue;
        CR_TRY(cr_tree_open(&g->tree, x, g->count, sections));
        g->has_tree = true;
    }
    return CR_OK;
}

static void release(struct search *w) {
    for (int k = 0; k < w->groups; k++)
        if (w->group[k].has_tree) cr_tree_close(&w->group[k].tree);
    cr_arena_free(&w->arena);
}

/* ---- orders ---- */

static struct order_key key_of(const struct search *w, const struct group *g, int i, enum order_kind order_kind,
                               struct cr_rng *rng) {
    const struct cr_tree_item *x    = &w->item[g->first + i];
    double                     load = 0, failures = 0, size = (double)x->size, length = w->length[g->first + i];
    for (int s = x->lower; s < x->upper; s++) {
        load = CR_MAX(load, (double)g->tree.total[s]);
        failures += g->tree.failures[s];
    }
    double noise = 1 + JITTER * (2 * cr_rng_real(rng) - 1);
    switch (order_kind) {
    case BY_LOAD: return (struct order_key){load, length, size, i};
    case BY_LENGTH: return (struct order_key){length, size, load, i};
    case BY_AREA: return (struct order_key){size * length, load, length, i};
    case BY_LOAD_AREA: return (struct order_key){load, size * length, length, i};
    case BY_SIZE: return (struct order_key){size, load, length, i};
    case BY_LOAD_RANDOM: return (struct order_key){load, length * noise, size, i};
    case BY_FAILURES: break;
    }
    return (struct order_key){failures * noise, length, size, i};
}

static int compare_keys(const void *a, const void *b) { /* large first; ties by index */
    const struct order_key *s = a, *t = b;
    if (s->major != t->major) return s->major > t->major ? -1 : 1;
    if (s->minor != t->minor) return s->minor > t->minor ? -1 : 1;
    if (s->least != t->least) return s->least > t->least ? -1 : 1;
    return s->item - t->item;
}

static void find_order(struct search *w, struct group *g, enum order_kind order_kind) {
    struct cr_rng rng = cr_rng_make(0, CR_RNG_SEARCH, (uint64_t)g->searches++, (uint32_t)g->first);
    for (int i = 0; i < g->count; i++) w->key[i] = key_of(w, g, i, order_kind, &rng);
    qsort(w->key, (size_t)g->count, sizeof *w->key, compare_keys);
    for (int i = 0; i < g->count; i++) w->rank[w->key[i].item] = i;
    for (int s = 0; s < g->tree.sections; s++) g->tree.failures[s] *= FAILURE_DECAY;
}

/* ---- searching ---- */

static void keep_plan(struct search *w, struct group *g) {
    g->peak = 0;
    for (int i = g->first; i < g->first + g->count; i++) {
        w->best[i] = w->item[i].offset;
        g->peak    = CR_MAX(g->peak, w->best[i] + w->item[i].size);
    }
}

/* The Luby sequence 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ...: restart lengths close to the best fixed length, which is
 * unknown. */
static int64_t luby(int64_t k) {
    int64_t size = 1;
    while (size < k) size = 2 * size + 1;
    while (size != k) {
        size /= 2;
        if (k > size) k -= size;
        while (size / 2 >= k) size /= 2;
    }
    return (size + 1) / 2;
}

/* Budget of search number `attempt`. The fixed orders repeat themselves, so they run rarely and with a growing budget.
 */
static int64_t visits_of(int attempt, enum order_kind order_kind) {
    int64_t turn = attempt / (int)CR_COUNT(order_sequence);
    if (order_kind >= BY_LOAD_RANDOM) return BASE_VISITS * luby(turn + 1);
    return turn & (turn - 1) ? 0 : BASE_VISITS * CR_MAX(turn, 1);
}

/* Searches the group's tree in one order after the other until `budget` is spent. */
static enum cr_tree_end search_group(struct search *w, struct group *g, int64_t capacity,
                                     struct cr_tree_budget *budget) {
    if (!g->has_tree) return CR_TREE_STOPPED;
    for (int attempt = 0; budget->visits > 0 && cr_time_ns() <= budget->deadline_ns; attempt++) {
        enum order_kind       order_kind = order_sequence[attempt % (int)CR_COUNT(order_sequence)];
        int64_t               granted    = CR_MIN(visits_of(attempt, order_kind), budget->visits);
        struct cr_tree_budget turn       = {granted, budget->deadline_ns};
        if (!granted) continue;
        find_order(w, g, order_kind);
        enum cr_tree_end end = cr_tree_walk(&g->tree, w->rank, capacity, &turn);
        budget->visits -= granted - turn.visits;
        if (end == CR_TREE_SOLVED) keep_plan(w, g);
        if (end != CR_TREE_STOPPED) return end;
    }
    return CR_TREE_STOPPED;
}

/* The given number of fifths of the remaining budget. */
static struct cr_tree_budget part_of_budget(const struct search *w, int fifths) {
    struct cr_tree_budget part = {CR_MAX(w->budget.visits / 5 * fifths, 1), INT64_MAX};
    if (w->budget.deadline_ns == INT64_MAX) return part;
    int64_t now      = cr_time_ns();
    part.deadline_ns = now + (w->budget.deadline_ns - now) / 5 * fifths;
    return part;
}

/* Searches for a plan below the capacity in every group. */
static enum cr_tree_end search_all(struct search *w, int64_t capacity, int fifths) {
    enum cr_tree_end      all     = CR_TREE_SOLVED;
    struct cr_tree_budget part    = part_of_budget(w, fifths);
    int64_t               granted = part.visits;
    for (int k = 0; k < w->groups && all != CR_TREE_NONE; k++) {
        if (w->group[k].peak <= capacity) continue;
        enum cr_tree_end end = search_group(w, &w->group[k], capacity, &part);
        if (end != CR_TREE_SOLVED) all = end;
    }
    w->budget.visits -= granted - part.visits;
    w->high = 0;
    for (int k = 0; k < w->groups; k++) w->high = CR_MAX(w->high, w->group[k].peak);
    return all;
}

static bool is_budget_spent(const struct search *w) {
    return w->budget.visits <= 0 || cr_time_ns() > w->budget.deadline_ns;
}

/* Lowers the peak to `goal`, or as far as the budget allows. A capacity that is not solved within its part of the
 * budget counts as too low, without proof. */
static void descend(struct search *w, int64_t goal) {
    int64_t failed = goal - 1, capacity = goal;
    while (w->high > capacity && capacity > failed && !is_budget_spent(w)) {
        enum cr_tree_end end = search_all(w, capacity, capacity == goal ? 4 : 1);
        if (end != CR_TREE_SOLVED) failed = capacity;
        if (end == CR_TREE_NONE) w->low = capacity + 1;
        capacity = failed + (w->high - failed) / 2;
    }
}

static cr_status search_plan(struct search *w, int count, const struct cr_plan_effort *effort,
                             struct cr_plan_found *found) {
    CR_TRY(find_items(w, count, effort->alignment));
    CR_TRY(find_groups(w));
    w->low  = (int64_t)found->bound / w->unit;
    w->high = (int64_t)found->peak / w->unit;
    CR_TRY(open_trees(w));
    descend(w, CR_MAX(w->low, (int64_t)(effort->capacity / (size_t)w->unit)));
    for (int i = 0; i < w->items; i++) w->interval[w->item[i].interval].offset = (size_t)(w->best[i] * w->unit);
    found->peak        = (size_t)(w->high * w->unit);
    found->lower_bound = (size_t)(w->low * w->unit);
    return CR_OK;
}

cr_status cr_plan_search(struct cr_interval *interval, int count, const struct cr_plan_effort *effort,
                         struct cr_plan_found *found) {
    cr_status     status = CR_OK;
    struct search w      = {.interval = interval, .budget = {effort->visits, INT64_MAX}};
    CR_TRY(cr_plan_intervals(interval, count, effort->alignment, &found->peak, &found->bound));
    found->greedy      = found->peak;
    found->lower_bound = found->bound;
    if (found->peak <= CR_MAX(found->bound, effort->capacity) || effort->visits <= 0) return CR_OK;
    if (effort->limit_ns < INT64_MAX) w.budget.deadline_ns = cr_time_ns() + effort->limit_ns;
    CR_TRY_OUT(search_plan(&w, count, effort, found));
out:
    release(&w);
    return status;
}
