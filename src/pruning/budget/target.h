/* pruning/budget/target.h: meets a target time by measurement. Networks are chosen by their cost, the sum of kernel
 * times. The measured time of a network differs from it by more than a constant factor: kernels overlap, caches and
 * clocks depend on the network, and some time is not that of kernels. So the chosen network is measured, predictions
 * follow the line through this network and the one measured before, and the choice is repeated. It knows nothing of
 * networks: cli/budget/ passes functions that choose and measure. */
#ifndef CR_BUDGET_TARGET_H
#define CR_BUDGET_TARGET_H

#include "core/base.h"

struct cr_budget_networks {
    void *self;
    /* Makes the network with the least loss whose cost is at most `budget` the present one, or the cheapest one when
     * there is none. Sets its cost and loss. */
    cr_status (*choose)(void *self, double budget, double *cost, double *loss);
    /* Seconds of the present network. */
    cr_status (*measure)(void *self, double *seconds);
    /* The present network is the best so far. */
    cr_status (*keep)(void *self);
    /* Seconds of the network before pruning, measured again. NULL: times are steady. */
    cr_status (*measure_dense)(void *self, double *seconds);
};
struct cr_budget_met {
    bool   met;                 /* a measured time is at most the target */
    double predicted, measured; /* seconds of the network that was kept last: predicted before it was measured */
    double first;               /* predicted / measured time of the first network */
    double least;               /* the shortest measured time */
    int    networks;            /* that were measured */
};
enum {
    CR_BUDGET_ROUNDS   = 6, /* networks that are measured at most, and the cheapest one */
    CR_BUDGET_SEARCHES = 3  /* of cr_budget_reach_speedup, at most */
};

/* Chooses and measures until a network's measured time is at most `target` seconds and within 2 % of its prediction, at
 * most CR_BUDGET_ROUNDS times. Of the networks that meet the target the one with the least loss is kept. cost, seconds:
 * of the network before pruning, measured. The first prediction is in proportion to them. The errors of the functions.
 */
CR_MUST cr_status cr_budget_reach(const struct cr_budget_networks *networks, double target, double cost, double seconds,
                                  struct cr_budget_met *out);
/* The same for a target of *seconds / speedup. On a CPU that other programs use, *seconds may be far too long, so that
 * any network meets the target. With measure_dense, it is measured again after a search that met the target. When it is
 * more than 10 % shorter, the search is repeated with it. *seconds is the shortest time of the network before pruning
 * that was measured. */
CR_MUST cr_status cr_budget_reach_speedup(const struct cr_budget_networks *networks, double speedup, double cost,
                                          double *seconds, struct cr_budget_met *out);

#endif
