/* pruning/budget/search.h: chooses the values of variables with the least loss within a budget of cost. It knows
 * nothing of networks: cli/budget/ makes a problem of one, with a variable for the width of each group of channels,
 * and a factor for the time and the loss of each op.
 *
 * A factor depends on a few variables. For each combination of their values it has a list of options, each with a
 * cost and a loss; one option is taken. Costs and losses of all factors are added.
 *
 * Variables are eliminated one after the other (dynamic programming along the network): the options of all factors
 * with the variable become the options of one new factor without it. Options that are not better than another one
 * in cost or loss are dropped. A list that would become too long is thinned: of all options within a small range of
 * cost, the one with the least loss stays. This is the only approximation, and its error is known (`gap`). */
#ifndef CR_BUDGET_SEARCH_H
#define CR_BUDGET_SEARCH_H

#include "core/base.h"

struct cr_search_option {
    double cost, loss; /* finite, loss >= 0 */
    int    tag;        /* the caller's */
};
struct cr_search_factor {
    int                     *variable; /* [variables] ascending */
    int                      variables;
    int                     *first; /* [combinations + 1] first option of each combination; the last variable varies
                                     * fastest. Every combination has an option */
    struct cr_search_option *option;
};
struct cr_search_problem {
    int                      variables, factors;
    int                     *values; /* [variables] number of values, at least 1 */
    struct cr_search_factor *factor;
};
struct cr_search_result {
    int   *value;      /* [variables] */
    int   *option;     /* [factors] index in factor.option */
    double cost, loss; /* sums */
    double gap; /* in units of cost: no choice of a cost of at most budget - gap has a smaller loss. 0: optimal */
};
/* Number of combinations that the largest elimination step looks at. Time and memory grow with it. */
double cr_search_size(const struct cr_search_problem *problem);
/* Finds the least loss of all choices whose cost is at most `budget`. When there are none, the choice is the one of
 * least cost (and then of least loss), and result.cost exceeds the budget. The caller frees *out with
 * cr_search_free, also after a failure. Equal input gives equal choices. CR_ERR_MEMORY. */
CR_MUST cr_status cr_search(const struct cr_search_problem *problem, double budget, struct cr_search_result *out);
void              cr_search_free(struct cr_search_result *result);
/* Frees the arrays of a problem. */
void cr_search_problem_free(struct cr_search_problem *problem);

#endif
