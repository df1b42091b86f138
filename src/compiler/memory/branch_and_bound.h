/* compiler/memory/branch_and_bound.h: is there a place for every life below a capacity? A tree of placements, walked
 * depth first.
 *
 * Laws
 *   - Complete: "none" is a proof that no plan fits. "Stopped" says only that the budget was used up.
 *   - Everything is counted in visits, so equal inputs give equal plans; a deadline may only stop the walk.
 *   - The lives of one tree hang together: between its first and its last section something is always alive.
 * Knows nothing of programs, alignment or bytes: ranks of time, units of space. */
#ifndef CR_PLAN_TREE_H
#define CR_PLAN_TREE_H

#include "core/base.h"

struct cr_tree_item {     /* sorted by lower */
    int     lower, upper; /* sections, half open */
    int64_t size;         /* > 0 */
    int64_t offset;       /* out: set when the tree was solved */
    int     interval;     /* the caller's */
};

struct cr_tree_budget {
    int64_t visits;      /* what is left; taken from by each walk */
    int64_t deadline_ns; /* of cr_time_ns; INT64_MAX: none */
};

enum cr_tree_end { CR_TREE_SOLVED, CR_TREE_NONE, CR_TREE_STOPPED };

/* One step of undoing. */
struct cr_tree_change {
    int64_t *where, was;
};

struct cr_tree {
    struct cr_tree_item *item; /* the caller's */
    int                  items, sections;
    int                 *near, *near_at;  /* lives that overlap life i: near[near_at[i] .. near_at[i + 1]) */
    const int           *rank;            /* by item: which of several at one offset comes first */
    int                 *next, *previous; /* the lives that are not placed, as a ring by `lower`; `items` is the head */
    bool                *placed;
    int64_t             *rest;  /* by item: where it would come to rest now */
    int64_t             *least; /* by item: below which it cannot be placed any more */
    int64_t             *floor; /* by section: top of what is placed */
    int64_t             *total; /* by section: sizes of what is not */
    int64_t             *lowest;
    int                 *across; /* by section: lives not placed that span the border to the section before */
    int                 *stack;  /* placed lives, the last one on top */
    int                  depth;
    struct cr_tree_change *change;
    size_t                 changes;
    int64_t                capacity;
    struct cr_tree_budget *budget;
    int64_t                steps;
    bool                   stopped;
    double                *failures; /* by section: how often nothing fitted there; the caller may fade them */
};

/* CR_ERR_MEMORY. The items must outlive the tree. */
CR_MUST cr_status cr_tree_open(struct cr_tree *tree, struct cr_tree_item *item, int items, int sections);
void              cr_tree_close(struct cr_tree *tree);
/* Bytes that opening would take, for callers with a limit. */
size_t           cr_tree_bytes(const struct cr_tree_item *item, int items, int sections);
enum cr_tree_end cr_tree_walk(struct cr_tree *tree, const int *rank, int64_t capacity, struct cr_tree_budget *budget);

#endif
