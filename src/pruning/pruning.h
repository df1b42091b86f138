/* pruning/pruning.h: magnitude pruning: computes masks from the magnitudes of weights. Equal buffers give equal masks.
 *
 * A unit is a set of weights that are pruned together: a single weight (unstructured, 2:4), a block of output x input
 * channels at one position of the filter (block), or a filter (channel). The key of a unit is the mean magnitude of its
 * weights. Units with the smallest keys are pruned first. Units with equal keys are pruned in the order of layers
 * and of elements in the parameter store.
 *
 * Invariants
 *   - When units are single weights, exactly round(n * sparsity) of n weights with a common target are pruned. With
 *     larger units, as many units are pruned as fit in this number.
 *   - A pruned weight stays pruned: the masks of an increasing schedule are nested, and the number of pruned weights
 *     includes weights that were pruned before.
 *   - The largest unit of each layer is never pruned.
 *   - 2:4: only the two smallest of four neighbours along the input channels may be pruned.
 * The code runs on the host; callers copy the buffers from and to the device. */
#ifndef CR_PRUNING_H
#define CR_PRUNING_H

#include "graph/graph.h"

struct cr_prune_layer {
    char       *name;     /* "layer1.0.conv1" */
    int         param;    /* index in the parameter store */
    const char *dense;    /* the reason why the layer stays dense; NULL when it may be pruned */
    double      sparsity; /* final sparsity; unused when the scope is global */
    int64_t     elems, pruned;
};
struct cr_prune {
    const struct cr_param_store *store;
    const struct cr_config      *config;
    struct cr_prune_layer       *layer; /* every convolution and dense layer, in the parameter store's order */
    int                          layers;
    bool                         global;        /* one target for all layers */
    int64_t                      elems, pruned; /* sums over the layers that may be pruned */
    struct cr_arena              arena;
};
/* Resolves [prune] for a network; the caller frees *out with cr_prune_close. Borrows store and config. CR_ERR_CONFIG
 * names the key, CR_ERR_FORMAT the line of the budget file. */
CR_MUST cr_status cr_prune_open(const struct cr_param_store *store, const struct cr_config *config,
                                struct cr_prune *out);
void              cr_prune_close(struct cr_prune *prune);
/* Clears bits of the mask by the magnitudes of `value` until `fraction` (0 to 1) of the final sparsity is reached, and
 * counts the pruned weights in layer[].pruned. Both buffers have the layout of the parameter store. */
CR_MUST cr_status cr_prune_masks(struct cr_prune *prune, double fraction, const float *value, uint8_t *mask);
/* For measurements: computes the mask (the caller frees it with cr_free) that [prune] gives for the initial weights at
 * the final sparsity. */
CR_MUST cr_status cr_prune_draw(const struct cr_param_store *store, const struct cr_config *config, uint8_t **mask);
/* Sets each element of a buffer whose mask bit is 0 to 0. */
void cr_prune_zero(const struct cr_param_store *store, const uint8_t *mask, float *buffer);
/* Number of pruned elements of a parameter. */
int64_t cr_prune_count(const struct cr_param *param, const uint8_t *mask);

/* pruning/schedule.c: true when pruning is due after `step` updates. *fraction is the fraction of the final sparsity to
 * reach, 1 - (1 - x)^3 at progress x (Zhu and Gupta 2017). */
bool cr_prune_due(const struct cr_config *config, int64_t step, int64_t steps_per_epoch, double *fraction);
/* Sets layer[].sparsity by the Erdos-Renyi-Kernel rule (Evci et al. 2020): densities proportional to (K+R+S+C)/(KRSC),
 * for dense layers (K+C)/(KC), at most 1, with the overall sparsity `sparsity`. */
void cr_prune_erk(struct cr_prune *prune, double sparsity);
/* pruning/budget.c: reads layer[].sparsity from a CSV file; layers that the file does not name stay dense. */
CR_MUST cr_status cr_prune_budget(struct cr_prune *prune, const char *path);

#endif
