/* training/run.h: opening a training run: output folder, resume, data, session. Private to train*.c. */
#ifndef CR_TRAIN_SETUP_H
#define CR_TRAIN_SETUP_H

#include "pruning/pruning.h"
#include "session/session.h"
#include "session/state.h"
#include "training/metrics.h"

struct cr_run {
    struct cr_comm    *comm;       /* NULL: one rank */
    struct cr_config   config;     /* the one that counts: on resume the stored one under the command line's values */
    char              *dir;        /* run folder */
    char              *from;       /* checkpoint resumed from; NULL: fresh */
    bool               unmeasured; /* ... whose kernels were chosen by their order, not by measured times */
    int                lock;       /* of the run folder; -1: none */
    struct cr_dataset *train, *val;
    struct cr_session  session;
    struct cr_loader  *loader;
    struct cr_position at;
    int64_t            total_steps; /* of the whole run, with train.steps applied */
    double             lr_factor;   /* of every learning rate: [optim] lr_scaling for the images of an update */
    struct cr_prune    prune;       /* without layers: training prunes nothing */
    struct cr_text     config_text;
};
/* Everything up to the first step. On failure *run is closed. */
CR_MUST cr_status cr_run_open(const struct cr_config *given, const struct cr_train_options *options,
                              struct cr_run *run);
/* training/trace.c: writes the log that [memory] trace asks for. */
CR_MUST cr_status cr_run_trace(const struct cr_run *run);
/* training/prune.c: resolves [prune]; prunes up to `share` of its final sparsity, with no update under way. */
CR_MUST cr_status cr_run_prune_open(struct cr_run *run);
void cr_run_prune_warn(const struct cr_run *run); /* of a [prune] that the run ends before, or that prunes nothing */
CR_MUST cr_status cr_run_prune(struct cr_run *run, double share, struct cr_report *report);
void              cr_run_close(struct cr_run *run);

/* training/ranks.c: what several ranks share while they start. With one rank nothing happens. */
int64_t cr_run_update_images(const struct cr_run *run); /* of all ranks */
/* Rank 0 knows the folder and the checkpoint: everybody gets them. */
CR_MUST cr_status cr_run_share_folders(struct cr_run *run);
/* One rank a host opens the data first, since that may draw or count pictures there. */
CR_MUST cr_status cr_run_data_turn(struct cr_run *run, cr_status (*open)(struct cr_run *run));
/* Have all ranks the same configuration and the same pictures? */
CR_MUST cr_status cr_run_same(struct cr_run *run);
/* A run that goes on with another number of ranks keeps the images of its updates: train.batch changes unless the
 * command line does it. *same_update: an update has as many images as before. `stored`: the run's configuration as it
 * was saved. */
CR_MUST cr_status cr_run_fit_batch(struct cr_run *run, const struct cr_config *stored, bool force, bool *same_update);
/* The rule of [optim] lr_scaling; the line about ranks and images. */
void cr_run_scale_lr(struct cr_run *run);

#endif
