/* training/run.h: a training run: output folder, resumed checkpoint, datasets, session. Used by this folder only. */
#ifndef CR_TRAINING_RUN_H
#define CR_TRAINING_RUN_H

#include "pruning/pruning.h"
#include "session/checkpoint_tensors.h"
#include "session/session.h"
#include "training/metrics.h"
#include "training/training.h"

#include <sys/types.h>

enum { CR_RUN_LINK_BYTES = 64 };
/* training/setup.c: reads the target of the link `last`; "" when there is none. Every save changes it. */
void cr_run_read_last_link(const char *dir, char out[CR_RUN_LINK_BYTES]);

/* State of training/data_wait.c. */
struct cr_data_watch {
    struct cr_load_counts before;  /* at the last check */
    int64_t               steps;   /* of this process */
    bool                  waited;  /* at the last check */
    char                  said[5]; /* the first letters of the last message */
};

struct cr_run {
    struct cr_comm *comm; /* borrowed; NULL with one rank */
    const struct cr_config
               *config; /* effective configuration; on resume the stored one with the values of the command line */
    char       *dir;    /* run folder */
    const char *continued_by;                 /* what continues it, for messages; static */
    char       *from;                         /* checkpoint folder that the run resumes from; NULL for a new run */
    bool        unmeasured;                   /* the resumed run chose its kernels without measuring them */
    char        last_link[CR_RUN_LINK_BYTES]; /* --resume auto: target of the link `last` when `from` was chosen */
    int         lock;                         /* file descriptor of the lock of the run folder; -1 when not locked */
    bool        made;                         /* this process has made the run folder, and nothing is in it yet */
    struct cr_dataset   *train, *val;
    uint64_t             data_contents; /* cr_dataset_contents of `train` */
    struct cr_teacher   *teacher;       /* network of distill.teacher; NULL: none */
    struct cr_session    session;
    struct cr_loader    *loader;
    struct cr_data_watch data_watch;
    int64_t              corrupt;     /* images that loaders before this one could not read */
    struct cr_position   at;          /* current position */
    bool                 evaluated;   /* the step that the run resumes from was evaluated */
    bool                 viewed;      /* also with train.final_tta, where it is set */
    int64_t              total_steps; /* number of updates of the whole run, limited by train.steps */
    double lr_factor; /* factor of every learning rate, by [optim] lr_scaling and the number of images of an update */
    struct cr_prune prune; /* has no layers when training does not prune */
    struct cr_text  config_text;
};
/* CR_ERR_CONFIG when a network of this configuration cannot be trained. */
CR_MUST cr_status cr_training_check(const struct cr_config *config);
/* Does everything up to the first step. Closes *run on failure. */
CR_MUST cr_status cr_run_open(const struct cr_config *user_config, const struct cr_train_options *options,
                              struct cr_run *run);
/* training/resumed_config.c: sets run->config to the configuration of run->from with the values of the command line.
 * CR_ERR_CONFIG, without options->force, when one of them decides the network or the data (config/config.def). */
CR_MUST cr_status cr_run_resumed_config(const struct cr_config *user_config, const struct cr_train_options *options,
                                        struct cr_run *run);
/* After a checkpoint of this step was written: opens the session again with the parts that model.unfreeze has unfrozen,
 * and loads the checkpoint. The run continues as if it were resumed. All ranks call it. */
CR_MUST cr_status cr_run_unfreeze(struct cr_run *run);
/* training/prune.c: CR_ERR_CONFIG when [prune] has keys that only `cresnet prune` understands. */
CR_MUST cr_status cr_run_prune_check(const struct cr_config *config);
/* Warns when [prune] prunes nothing, or when the run ends before pruning is complete. */
void cr_run_prune_warn(const struct cr_run *run);
/* Prunes if this step is one of the schedule (cr_prune_step_at), and logs it. No program may be running. */
CR_MUST cr_status cr_run_prune(struct cr_run *run, const struct cr_prune_step *due, struct cr_report *report);
/* Of a run that starts from pruned weights: logs its sparsity, and that the masks are kept. */
CR_MUST cr_status cr_run_report_sparsity(struct cr_run *run, struct cr_report *report);
void              cr_run_close(struct cr_run *run);

/* ---- training/best.c: the best checkpoint so far, and early stopping ---- */

struct cr_best {
    int64_t step;    /* -1 before the first evaluation, and after the network was pruned */
    double  value;   /* of the metric train.best, the better one of the weights and their moving averages */
    double  average; /* of the metric, the moving averages, which other commands use; without averages `value` */
    int64_t stale;   /* evaluations since then (after pruning: since then) */
};
/* Reads best.json when the run resumes. The same on all ranks. */
struct cr_best cr_run_best_read(const struct cr_run *run);
/* Compares the results of an evaluation at the current step with *best (ema: NULL without moving averages). Of equal
 * values, the one with better averages is better. If the results are better, the function updates *best, the link
 * `best` and best.json. */
CR_MUST cr_status cr_run_update_best(const struct cr_run *run, const struct cr_scores *raw, const struct cr_scores *ema,
                                     struct cr_best *best, bool *is_best);
/* Returns whether train.eval_every requires an evaluation after `step`. */
bool cr_run_evaluates_at(const struct cr_run *run, int64_t step);
/* Sets run->evaluated and run->viewed. All ranks call it. */
CR_MUST cr_status cr_run_find_evaluation(struct cr_run *run);
/* Returns whether a resumed run begins with the evaluation of its step, which did not end before: a signal interrupted
 * or killed the run. An uninterrupted run and a resumed one then have the same best checkpoint. */
bool cr_run_evaluates_again(const struct cr_run *run, int64_t best_step);
/* Sets run->total_steps by the configuration and the number of updates per epoch. */
void cr_run_set_steps(struct cr_run *run);
/* Returns whether all updates and their evaluations are done. */
bool cr_run_is_complete(const struct cr_run *run, const struct cr_best *best);
/* Returns whether train.patience ends the run. */
bool cr_run_stops_early(const struct cr_run *run, const struct cr_best *best);

/* training/run_log.c: network, device and length of the run; the event `start` or `resume`; the parts that are still
 * frozen; the end of the run. early_best: the best result, when train.patience ended the run; else NULL. */
void cr_run_log_setup(const struct cr_run *run);
void cr_run_log_start(const struct cr_run *run, struct cr_report *report);
/* With data.image_sizes, logs the size of the next images when it changes; with `start` always. */
void cr_run_log_size(const struct cr_run *run, bool start);
/* training/data_wait.c: after each step. At the end of an epoch, and once after some steps, logs what is short if
 * training has waited for images; on the screen once for each kind of shortage. */
void cr_run_watch_data(struct cr_run *run, struct cr_report *report);
void cr_run_log_unfrozen(const struct cr_run *run, struct cr_report *report);
void cr_run_log_end(const struct cr_run *run, struct cr_report *report, int ended_by, const struct cr_best *early_best);
/* Warns after an error, on rank 0, that a checkpoint is there to continue from. Not after errors that a resumed run
 * would have too: a wrong configuration, a loss that is not finite. */
void cr_run_log_failed(const struct cr_run *run, cr_status why);

/* ---- training/evaluate.c ---- */

/* True on the rank that writes logs and checkpoints (rank 0). */
bool cr_run_reports(const struct cr_run *run);
/* With ema.swa_start, at the end of an epoch from the first averaged one on: adds the weights to the averages and
 * computes the averages' BN statistics. Before: makes the averages equal to the weights. Collective. */
CR_MUST cr_status cr_run_average(struct cr_run *run);
/* Writes a checkpoint of the current step. */
CR_MUST cr_status cr_run_save(struct cr_run *run, struct cr_report *report);
/* Evaluates the validation set, also with the moving averages of [ema], and updates *best. CR_ERR_INTERRUPTED when
 * *stop becomes non-zero. */
CR_MUST cr_status cr_run_evaluate(struct cr_run *run, struct cr_report *report, volatile const sig_atomic_t *stop,
                                  struct cr_best *best);
/* train.final_tta: CR_ERR_CONFIG when it cannot be evaluated at the end of this run. */
CR_MUST cr_status cr_run_check_final_tta(const struct cr_run *run);
/* The last evaluation, with the views of train.final_tta; does nothing without this key. It does not change `best`. */
CR_MUST cr_status cr_run_evaluate_views(struct cr_run *run, struct cr_report *report,
                                        volatile const sig_atomic_t *stop);

/* What follows when the weights of a new run have other classes than its dataset: ends the warning of
 * cr_saved_model_number_classes. */
#define CR_RUN_SAME_HEAD "the classifier is kept, label by label; model.head=new initialises a new one"
/* training/same_data.c: gives the classes of both datasets the labels that they have, by name, in the checkpoint that
 * is resumed, or in the weights whose classifier the run starts with. */
CR_MUST cr_status cr_run_number_classes(struct cr_run *run);
/* Computes run->data_contents. On resume: CR_ERR_CONFIG, with a list of the differences, when the
 * training set is not the one of the checkpoint; with `force` a warning, unless the number of classes changed. */
CR_MUST cr_status cr_run_check_data(struct cr_run *run, bool force);
/* Opens the datasets of run->config and adds a line "\n  ..." for each difference between the training set and that of
 * run->from. *classes: the names or the number of the classes differ. */
CR_MUST cr_status cr_run_compare_data(struct cr_run *run, struct cr_text *diff, bool *classes);
/* Logs a warning for each line: a difference that --force accepted. Changes `lines`. */
void cr_run_warn_forced(char *lines);

/* training/teacher.c: on resume: CR_ERR_CONFIG when the teacher is not the one of the checkpoint; with `force` a
 * warning. */
CR_MUST cr_status cr_run_check_teacher(struct cr_run *run, bool force);

/* training/class_balance.c: logs the class weights of [loss]; warns when the sizes of the classes differ tenfold.
 * CR_ERR_CONFIG, CR_ERR_FORMAT: the class weights are invalid, or differ between the ranks. All ranks call it. */
CR_MUST cr_status cr_run_check_balance(struct cr_run *run);

/* ---- training/ranks.c: start of a run with several ranks ---- */

/* Batch size of this rank: of the session, or before it is open [train] batch, which is 0 for auto. */
int64_t cr_run_batch(const struct cr_run *run);
/* Number of images of one update, over all ranks. */
int64_t cr_run_update_images(const struct cr_run *run);
/* Rank 0 sends the run folder and the checkpoint folder to all ranks. Does nothing with one rank. */
CR_MUST cr_status cr_run_share_folders(struct cr_run *run);
/* Opens the datasets, first on one rank of each host, because opening may generate or count images on that host. */
CR_MUST cr_status cr_run_open_data_one_rank_at_a_time(struct cr_run *run, cr_status (*open)(struct cr_run *run));
/* Checks that all ranks have the same configuration and datasets. */
CR_MUST cr_status cr_run_check_ranks_agree(struct cr_run *run);
/* On resume with another number of ranks: changes train.batch of run->config so that an update has as many images as
 * before, unless the command line sets train.batch. `stored`: the configuration that was saved. *same_update: the
 * number of images of an update is unchanged. */
CR_MUST cr_status cr_run_fit_batch(struct cr_run *run, const struct cr_config *stored, bool force, bool *same_update);
/* Factor of every learning rate by [optim] lr_scaling, for this number of images of an update. */
double cr_training_lr_factor(const struct cr_config *config, int64_t images);
/* Sets run->lr_factor by [optim] lr_scaling and logs the number of ranks and images. */
void cr_run_scale_lr(struct cr_run *run);

#endif
