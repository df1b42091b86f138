/* optim/optim.h: optimizers append the update ops of a training program; schedules compute the learning rate. */
#ifndef CR_OPTIM_H
#define CR_OPTIM_H

#include "graph/graph.h"

/* Selects the parameters with weight decay and the buffers that the update rule needs, and sets the parameters' factors
 * of the learning rate. Called once, before any program is built. */
void cr_optim_prepare(struct cr_param_store *store, const struct cr_config *config);
/* Appends the gradient norm, the update and the moving averages. `micro_batches`: number of forward passes of an
 * update. */
void cr_optim_emit(struct cr_program *program, const struct cr_config *config, int micro_batches);

/* Learning rate of update `step` (counted from 0) when an epoch has `steps_per_epoch` updates. The schedule always
 * spans train.epochs; train.steps does not shorten it. Warm-up is linear over warmup_epochs, from warmup_start*lr to
 * lr. The rules step, multistep and one_cycle span all of train.epochs; cosine and polynomial span the epochs after
 * warm-up. */
double cr_schedule_lr(const struct cr_config *config, int64_t step, int64_t steps_per_epoch);
/* Momentum of update `step`: [optim] momentum, except that one_cycle may vary it. */
double cr_schedule_momentum(const struct cr_config *config, int64_t step, int64_t steps_per_epoch);

#endif
