/* pruning/budget/lists.h: lists of options, shared by search.c and lists.c; no other file includes it. */
#ifndef CR_BUDGET_LISTS_H
#define CR_BUDGET_LISTS_H

#include "pruning/budget/search.h"

enum {
    CR_SEARCH_SCOPE      = 16,      /* variables of a factor, original or new */
    CR_SEARCH_PARTS_MAX  = 1 << 13, /* options of a list */
    CR_SEARCH_PARTS_MIN  = 1 << 7,
    CR_SEARCH_TRAILS_MAX = 40000000, /* stored options */
    CR_SEARCH_NONE       = -1
};

/* How an option came about: an option of a factor, a sum of two, or a value of a variable added to one. */
enum cr_search_origin { CR_FROM_FACTOR, CR_FROM_SUM, CR_FROM_VALUE };
struct cr_search_trail {
    enum cr_search_origin origin;
    int                   a, b;  /* factor and option; two trails; variable and value */
    int                   below; /* CR_FROM_VALUE: trail */
};
struct cr_search_point {
    double cost, loss;
    int    trail;
};
struct cr_search_list { /* by ascending cost and descending loss */
    struct cr_search_point *point;
    int                     count;
};
struct cr_search_table {
    int                    variable[CR_SEARCH_SCOPE], variables;
    struct cr_search_list *list;  /* [combinations] */
    double                 floor; /* sum of the least costs of its factors: no option costs less */
    double                 error;
    bool                   used; /* eliminated */
};
struct cr_search_state {
    const struct cr_search_problem *problem;
    struct cr_search_table         *table; /* [tables] */
    int                             tables;
    struct cr_search_trail         *trail;
    int                             trails, capacity;
    double                          budget, slack; /* slack: budget above the sum of the least costs of all factors */
    double                          part;          /* range of cost in which one option stays */
    int                             parts;
    int                             first, last; /* cells that may hold an option; first > last: none */
    bool                            cheapest;    /* find the least cost */
    struct cr_search_point         *cell; /* [parts + 2] scratch of thin: the best option of each range of cost */
    bool failed, full;                    /* memory is short; there are too many trails: fewer parts are needed */
};

/* ---- lists.c ---- */

/* Appends to s->trail and returns the index; s->failed when memory is short. */
int cr_search_add_trail(struct cr_search_state *s, enum cr_search_origin origin, int a, int b, int below);
/* Collects options in s->cell: clear, store each option in its cell, then take the list. */
void cr_search_clear_cells(struct cr_search_state *s);
/* The cell that an option is to be stored in, or NULL when it costs too much or the cell has a better one. floor:
 * no option of this list costs less. *error becomes the range of cost of a cell when the option in the cell costs
 * more than one that is dropped. */
struct cr_search_point *cr_search_find_cell(struct cr_search_state *s, double floor, double cost, double loss,
                                            double *error);
/* The options of the cells that are not dominated; the caller frees out->point. */
CR_MUST cr_status cr_search_take(struct cr_search_state *s, struct cr_search_list *out);
/* The sum of two lists, which become shorter when they are long. Adds to *error. */
CR_MUST cr_status cr_search_add_lists(struct cr_search_state *s, struct cr_search_list *a, struct cr_search_list *b,
                                      double floor, struct cr_search_list *out, double *error);

#endif
