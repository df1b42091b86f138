/* pruning/pruning.h: computes masks from the magnitudes of weights, or of other scores. Equal buffers give equal masks.
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
/* Whether prune.exempt has the word `residual`, which is for the pattern channels only. */
bool cr_prune_exempts_residual(const struct cr_config *config);
/* Clears bits of the mask by the magnitudes of `value` until `fraction` (0 to 1) of the final sparsity is reached, and
 * counts the pruned weights in layer[].pruned. Both buffers have the layout of the parameter store. */
CR_MUST cr_status cr_prune_masks(struct cr_prune *prune, double fraction, const float *value, uint8_t *mask);
/* Sets `pruned` and layer[].pruned to the counts of a mask. */
void cr_prune_recount(struct cr_prune *prune, const uint8_t *mask);
/* For measurements: computes the mask (the caller frees it with cr_free) that [prune] gives for the initial weights at
 * the final sparsity. */
CR_MUST cr_status cr_prune_draw(const struct cr_param_store *store, const struct cr_config *config, uint8_t **mask);
/* pruning/taylor.c: scores for cr_prune_masks instead of weights (prune.importance = taylor, Molchanov et al. 2019):
 * adds for one batch the square of weight times gradient to each element of sum [value_elems], and sets score to the
 * roots of the means over `batches`. The score of a unit is the mean over its weights. */
void cr_prune_add_taylor(const struct cr_param_store *store, const float *value, const float *grad, double *sum);
void cr_prune_taylor_scores(const struct cr_param_store *store, const double *sum, int64_t batches, float *score);
/* Sets each element of a buffer whose mask bit is 0 to 0. */
void cr_prune_zero(const struct cr_param_store *store, const uint8_t *mask, float *buffer);
/* Returns whether the mask keeps element i. */
static inline bool cr_mask_bit(const uint8_t *mask, int64_t i) {
    return mask[i / 8] >> (i % 8) & 1;
}
static inline void cr_mask_set(uint8_t *mask, int64_t i, bool on) {
    const unsigned bit = 1u << (i % 8);
    mask[i / 8]        = (uint8_t)(on ? mask[i / 8] | bit : mask[i / 8] & ~bit);
}
/* Number of pruned elements of a parameter. */
int64_t cr_prune_count(const struct cr_param *param, const uint8_t *mask);

/* pruning/schedule.c: true when pruning is due after `step` updates. *fraction is the fraction of the final sparsity to
 * reach, 1 - (1 - x)^3 at progress x (Zhu and Gupta 2017). */
bool cr_prune_due(const struct cr_config *config, int64_t step, int64_t steps_per_epoch, double *fraction);

/* ---- pruning/phases.c: schedules whose masks do not only grow ---- */

enum cr_prune_action {
    CR_PRUNE_NOTHING,
    CR_PRUNE_TO,     /* gradual: to `fraction` of the final sparsity. acdc: a sparse phase begins; fraction 1 */
    CR_PRUNE_RANDOM, /* rigl: random masks with the final sparsity; fraction 1 */
    CR_PRUNE_FREE,   /* acdc: a dense phase begins: no weight is masked, all momenta are 0 */
    CR_PRUNE_MOVE    /* rigl: `fraction` of the nonzeros of each layer moves to other weights */
};
struct cr_prune_step {
    enum cr_prune_action action;
    double               fraction;
};
/* What [prune] does after `step` updates; a function of the numbers alone.
 *   acdc  Peste et al. 2021: dense until start; then phases of sparse_epochs and dense_epochs alternate. A sparse phase
 *         begins only if it and the dense phase after it are over by `end`; the last dense phase lasts until `end`, and
 *         all later epochs are sparse
 *   rigl  Evci et al. 2020: masks at start, random when the weights of the step are the initial ones; then every
 *         `frequency` steps before `end` a mask update with fraction drop_fraction / 2 * (1 + cos(pi * progress)) */
struct cr_prune_step cr_prune_step_at(const struct cr_config *config, int64_t step, int64_t steps_per_epoch);
/* True while schedule = acdc has dense phases before it, or is in one: the run must not end yet. */
bool cr_prune_is_dense_later(const struct cr_config *config, int64_t step, int64_t steps_per_epoch);
/* CR_PRUNE_FREE: clears the masks of layers that may be pruned. */
void cr_prune_free_masks(struct cr_prune *prune, uint8_t *mask);
/* CR_PRUNE_RANDOM: masks with the final sparsity, from train.seed. CR_ERR_MEMORY. */
CR_MUST cr_status cr_prune_random_masks(struct cr_prune *prune, uint8_t *mask);
/* CR_PRUNE_MOVE, pruning/regrow.c: each layer loses the floor(n * fraction) of its n nonzeros with the smallest
 * magnitudes, then gains as many pruned weights with the largest gradients; weights just lost may return. Ties go to
 * the smaller index. Weights that return keep value and moments, weights that are new have 0, and so have lost ones.
 * `moments`: buffers with the layout of VALUE, NULL entries are skipped. *moved: number of new weights. */
CR_MUST cr_status cr_prune_move(struct cr_prune *prune, double fraction, const float *grad, float *value,
                                float *const *moments, int moment_count, uint8_t *mask, int64_t *moved);

/* Sets layer[].sparsity by the Erdos-Renyi-Kernel rule (Evci et al. 2020): densities proportional to (K+R+S+C)/(KRSC),
 * for dense layers (K+C)/(KC), at most 1, with the overall sparsity `sparsity`. */
void cr_prune_erk(struct cr_prune *prune, double sparsity);
/* pruning/budget.c: reads layer[].sparsity from a CSV file; layers that the file does not name stay dense. */
CR_MUST cr_status cr_prune_budget(struct cr_prune *prune, const char *path);

#endif
