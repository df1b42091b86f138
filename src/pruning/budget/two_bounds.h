/* pruning/budget/two_bounds.h: the least loss within a budget of cost and a bound of a second cost. */
#ifndef CR_BUDGET_TWO_BOUNDS_H
#define CR_BUDGET_TWO_BOUNDS_H

#include "pruning/budget/search.h"

/* Finds a choice whose cost is at most `budget` and whose second cost is at most `second`, with nearly the least loss:
 * result.gap and result.loss_gap say how near. With second = INFINITY the choice is that of cr_search. When no choice
 * is found within both bounds, it is the one of least cost within `second`, and result.cost exceeds the budget. When no
 * choice is within `second`, it is the one with the least second cost, and result.second exceeds `second`. The caller
 * frees *out with cr_search_free, also after a failure. Equal input gives equal choices. CR_ERR_MEMORY. */
CR_MUST cr_status cr_search_two(const struct cr_search_problem *problem, double budget, double second,
                                struct cr_search_result *out);

#endif
