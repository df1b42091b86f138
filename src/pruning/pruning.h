/* pruning/pruning.h: which weights become 0: masks from the magnitudes of weights, the same weights whenever the same
 * planes are given.
 *
 * Words: an element of a layer that may be pruned belongs to one unit, which is pruned whole: itself (unstructured,
 * 2:4), the block of output (x input) channels at one place of the filter (block), a filter (channel). Its key is the
 * mean of its magnitudes; the smallest keys go first, and of equal keys the first unit, in the order of layers and of
 * elements in the store.
 *
 * Laws
 *   - Of n weights that share a target exactly round(n * sparsity) are pruned when units are single weights; of larger
 * units as many as fit in that number.
 *   - What is pruned stays so: masks of a rising schedule nest, and weights that come pruned count.
 *   - Each layer keeps its largest unit.
 *   - 2:4: of four neighbours along the input channels the two smallest may be pruned, the others never.
 * Host only: planes are copied here and back, which is rare. Knows graph/graph.h and config/config.h. */
#ifndef CR_PRUNE_H
#define CR_PRUNE_H

#include "graph/graph.h"

struct cr_prune_layer {
    char       *name;     /* "layer1.0.conv1" */
    int         param;    /* in the store */
    const char *dense;    /* why nothing of it is pruned; NULL: it may be */
    double      sparsity; /* wanted in the end; unused where the scope is global */
    int64_t     elems, pruned;
};
struct cr_prune {
    const struct cr_param_store *store;
    const struct cr_config      *config;
    struct cr_prune_layer       *layer; /* every convolution and dense layer, in the store's order */
    int                          layers;
    bool                         global;        /* one target for all layers */
    int64_t                      elems, pruned; /* of the layers that may be pruned */
    struct cr_arena              arena;
};
/* Resolves [prune] for a network; CR_ERR_CONFIG names the key, CR_ERR_FORMAT a line of the budget. Store and config
 * must outlive it. */
CR_MUST cr_status cr_prune_open(const struct cr_param_store *store, const struct cr_config *config,
                                struct cr_prune *out);
void              cr_prune_close(struct cr_prune *prune);
/* Clears bits of the mask plane by the weights of the value plane, until `share` (0 to 1) of the final sparsity is
 * reached, and counts what is pruned then in layer[].pruned. */
CR_MUST cr_status cr_prune_masks(struct cr_prune *prune, double share, const float *value, uint8_t *mask);
/* The mask plane (cr_free it) of a network that [prune] prunes to the end as it is before training: for measurements.
 */
CR_MUST cr_status cr_prune_draw(const struct cr_param_store *store, const struct cr_config *config, uint8_t **mask);
/* Sets the elements of a plane to 0 that the mask has no bit for. */
void cr_prune_zero(const struct cr_param_store *store, const uint8_t *mask, float *plane);
/* Pruned elements of a parameter. */
int64_t cr_prune_count(const struct cr_param *param, const uint8_t *mask);

/* pruning/schedule.c: is a pruning due after `step` updates, and up to which share of the final sparsity (Zhu and Gupta
 * 2017: 1 - (1 - x)^3 of the way)? */
bool cr_prune_due(const struct cr_config *config, int64_t step, int64_t steps_per_epoch, double *share);
/* Erdos-Renyi-Kernel shares (Evci et al. 2020) into layer[].sparsity: densities in proportion to (K+R+S+C)/(KRSC),
 * dense layers (K+C)/(KC), none above 1, such that `sparsity` of all weights together is pruned. */
void cr_prune_erk(struct cr_prune *prune, double sparsity);
/* pruning/budget.c: the same from a file; layers that it does not name stay dense. */
CR_MUST cr_status cr_prune_budget(struct cr_prune *prune, const char *path);

/* pruning/latency_target.c: what one layer takes and loses at one sparsity. */
struct cr_prune_point {
    double seconds, lost; /* lost: the sum of squares of the weights that go, as a share of the layer's */
};
/* One point of each layer, such that the sum of `lost` is least while that of `seconds` does not pass `budget`:
 * point[layers][points], choice[layers]. By dynamic programming over the time that is left above the fastest points, in
 * 16384 parts: the sum of `lost` is not above the best that could be had with layers / 16384 of that time less. Where
 * even the fastest points pass the budget, they are chosen: *seconds, the chosen sum, says so. Equal input gives equal
 * choices. */
CR_MUST cr_status cr_prune_choose(const struct cr_prune_point *point, int layers, int points, double budget,
                                  int *choice, double *seconds);

#endif
