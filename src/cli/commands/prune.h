/* cli/commands/prune.h: between cli/commands/prune.c and cli/commands/prune_target.c: the sparsities that --target-ms
 * chooses, and why.
 *
 * Laws
 *   - Times are sums over the ops of the evaluation program that run for each batch, each with the cost that the
 * device's target gives it: measured on a GPU; elsewhere the roofline, with the device's own rule for which
 * convolutions skip what is pruned.
 *   - The choice rests on prices of the same kept weights that are pruned then. */
#ifndef CR_CMD_PRUNE_H
#define CR_CMD_PRUNE_H

#include "pruning/pruning.h"
#include "session/session.h"
#include "session/state.h"

struct cr_prune_guide {
    double  target_s;             /* what is asked for; 0: no time is */
    double  dense_s, predicted_s; /* of the program: nothing pruned, and as chosen */
    double  fixed_s;              /* of dense_s, what no pruning changes */
    int64_t batch;
    bool    measured;
    double  sparse_density_max; /* where it is not: the rule's */
    char    device[256];
    struct cr_prune_guided {
        double dense_s, seconds, lost;
        bool   timed, sparse; /* timed: it is a convolution that may be pruned; sparse: it skips what is pruned */
    } * layer;                /* [prune->layers] */
};
/* Chooses layer[].sparsity of `prune` for the weights and masks of `planes`. CR_ERR_CONFIG where the time cannot be
 * had, or is had anyway. target_s is set; the rest is filled. */
CR_MUST cr_status cr_prune_guide(const struct cr_config *config, int classes, struct cr_prune *prune,
                                 const struct cr_state_buffers *planes, struct cr_prune_guide *guide);
void              cr_prune_guide_free(struct cr_prune_guide *guide);
/* After masks are chosen: the table, or a JSON line's further fields (", ..."). */
void cr_prune_guide_print(const struct cr_prune_guide *guide, const struct cr_prune *prune, struct cr_text *out);
void cr_prune_guide_json(const struct cr_prune_guide *guide, const struct cr_prune *prune, struct cr_text *out);

#endif
