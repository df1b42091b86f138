/* tools/memory-trace/branch_and_bound.h: decides by depth-first search whether all intervals fit below a capacity.
 *
 *   - The search is complete: CR_TREE_NONE proves that no plan fits. CR_TREE_STOPPED says only that the budget is used
 *     up.
 *   - The budget counts visits, so equal inputs give equal plans; a deadline can only stop the search.
 *   - The intervals of one tree are connected: between the first and the last section, some interval is always live.
 *
 * Time is counted in sections (the ranks of the interval ends) and space in abstract units. */
#ifndef CR_BRANCH_AND_BOUND_H
#define CR_BRANCH_AND_BOUND_H

#include "core/base.h"

struct cr_tree_item {     /* one interval */
    int     lower, upper; /* sections [lower, upper) */
    int64_t size;         /* > 0 */
    int64_t offset;       /* output, valid after CR_TREE_SOLVED */
    int     interval;     /* for the caller */
};

struct cr_tree_budget {
    int64_t visits;      /* remaining visits; each search subtracts its own */
    int64_t deadline_ns; /* on the clock of cr_time_ns; INT64_MAX: none */
};

enum cr_tree_end { CR_TREE_SOLVED, CR_TREE_NONE, CR_TREE_STOPPED };

/* One undo record: *where had the value `was`. */
struct cr_tree_change {
    int64_t *where, was;
};

/* State of the search. The caller reads `total`, `failures` and `sections`; all other members are private. */
struct cr_tree {
    struct cr_tree_item   *item; /* [items], borrowed */
    int                    items, sections;
    int                   *near, *near_at;  /* items that overlap item i: near[near_at[i] .. near_at[i + 1]) */
    const int             *rank;            /* [items] order of items that could be placed at the same offset */
    int                   *next, *previous; /* unplaced items as a ring sorted by `lower`; index `items` is the head */
    bool                  *placed;          /* [items] */
    int64_t               *rest;            /* [items] lowest offset above the placed items */
    int64_t               *least;           /* [items] lower bound of the offset that the item can still get */
    int64_t               *floor;           /* [sections] top of the placed items */
    int64_t               *total;           /* [sections] sum of the sizes of the unplaced items */
    int64_t               *lowest;          /* [sections] least `least` of the unplaced items */
    int                   *across;          /* [sections] unplaced items that are live in this and the section before */
    int                   *stack;           /* [depth] placed items, the last one on top */
    int                    depth;
    struct cr_tree_change *change; /* [changes] undo log */
    size_t                 changes;
    int64_t                capacity;
    struct cr_tree_budget *budget;
    int64_t                steps;
    bool                   stopped;
    double                *failures; /* [sections] number of failed subtrees; the caller may scale the numbers */
    struct cr_arena        arena;    /* holds the arrays but `item` */
};

/* Returns CR_ERR_MEMORY. `item` is sorted by lower and must outlive the tree. cr_tree_close frees the tree. */
CR_MUST cr_status cr_tree_open(struct cr_tree *tree, struct cr_tree_item *item, int items, int sections);
void              cr_tree_close(struct cr_tree *tree);
/* Bytes that cr_tree_open would allocate. */
size_t cr_tree_bytes(const struct cr_tree_item *item, int items, int sections);
/* Searches for a plan below `capacity`. rank[items] decides the order of equal offsets and so the order of the search.
 * The tree is ready for another search afterwards. */
enum cr_tree_end cr_tree_walk(struct cr_tree *tree, const int *rank, int64_t capacity, struct cr_tree_budget *budget);

#endif
