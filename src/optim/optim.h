/* optim.h: update rules emit ops that end a training program; schedules give the learning rate of a step.
 * Knows graph/graph.h and config/config.h. */
#ifndef CR_OPTIM_H
#define CR_OPTIM_H

#include "graph/graph.h"

/* Sets which parameters decay and which planes the rule needs; called once, before any program is built. */
void cr_optim_prepare(struct cr_param_store *store, const struct cr_config *config);
/* Appends gradient check and update. `micro_batches`: forward passes that this update stands for. */
void cr_optim_emit(struct cr_program *program, const struct cr_config *config, int micro_batches);

/* Learning rate of update `step` (from 0) when an epoch has `steps_per_epoch` updates. The length of the schedule is
 * train.epochs, whatever train.steps says. Warm-up is linear over warmup_epochs from warmup_start*lr; the rule of
 * [schedule] kind runs over the whole of train.epochs for step, multistep and one_cycle, and over what follows the
 * warm-up for cosine and polynomial. */
double cr_schedule_lr(const struct cr_config *config, int64_t step, int64_t steps_per_epoch);
/* Momentum of that update: [optim] momentum, unless one_cycle moves it. */
double cr_schedule_momentum(const struct cr_config *config, int64_t step, int64_t steps_per_epoch);

#endif
