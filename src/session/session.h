/* session/session.h: everything a command needs to run a network: model, device, compiled programs, memory, loaded
 * weights.
 *
 * Laws
 *   - Opening does all the work that can fail for lack of memory, files or kernels; what follows only runs.
 *   - A session never falls back to another device once it has said which one it took.
 * Top level of the house but for the commands: may see everything below. */
#ifndef CR_SESSION_H
#define CR_SESSION_H

#include "autotune/cost_table.h"
#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "data/data.h"
#include "model/model.h"
#include "runtime/executor.h"

struct cr_session_options {
    bool train;      /* build the training programs */
    bool eval;       /* build the evaluation program */
    bool execute;    /* open the device's memory and bind; false: compile only (cresnet plan) */
    bool ref_only;   /* CPU: only ref rows */
    bool masks;      /* the network is pruned: a store with masks, which [prune] may give it anyway */
    bool draw_masks; /* for measurements: a network as [prune] says, where model.weights is none that is pruned */
    const char *masks_from; /* with train: pruned weights, a folder or file, whose masks stay as they are; NULL: none */
    int64_t     batch;      /* training batch; 0: [train] batch */
    int64_t     batch_max;  /* of a batch that is found; 0: as many as fit */
    int64_t     eval_batch; /* 0: [train] eval_batch, or batch */
    int         classes;    /* of the data set; 0: find out with cr_session_classes */
    const char *costs_from; /* step folder of a run that goes on: its kernels are chosen again; NULL: none */
    bool        costs_unmeasured; /* that run measured nothing: train.measure was no */
    bool        retune;           /* choose kernels anew where costs_from does not fit this device */
    struct cr_comm
        *comm; /* the ranks of the run, all of which open their sessions now; NULL: one. It outlives the session */
};

enum { CR_SESSION_TRAIN_MAX = 3, CR_RUNNING_BUFFERS = 2 };

/* How long the parts of opening took. */
struct cr_session_times {
    int64_t device_ns;  /* driver, libraries */
    int64_t compile_ns; /* networks to programs, kernels chosen */
    int64_t memory_ns;  /* regions reserved, programs bound */
    int64_t init_ns;    /* initial values, or weights read */
};

struct cr_session {
    const struct cr_config *config;
    struct cr_comm         *comm; /* NULL: one rank */
    struct cr_model         model;
    struct cr_prepare       prepare_train, prepare_eval;
    struct cr_device       *device;
    uint8_t                *pattern; /* the masks of model.weights that programs rely on (store.pattern); NULL: none */
    struct cr_cost_table   *cost_table;                  /* NULL: kernels are taken in their order */
    struct cr_program       train[CR_SESSION_TRAIN_MAX]; /* step; or micro_first, micro, micro_last */
    int                     trains;
    struct cr_program       eval;
    bool                    has_eval;
    struct cr_memory        memory;
    struct cr_exec         *train_exec[CR_SESSION_TRAIN_MAX];
    struct cr_exec         *eval_exec;
    int64_t                 batch, eval_batch;
    size_t                  limit; /* bytes that regions may have, by [memory] limit; 0: no limit */
    size_t
        overhead_bytes; /* what a limit that is a number counts besides them: libraries, recordings, buffers of NCCL */
    size_t input_bytes, small_bytes; /* INPUT region of the programs known so far, and what of it is not pictures */
    struct cr_fit_report fit;        /* of the fullest program under that limit */
    float *running_of_ranks[CR_RUNNING_BUFFERS]; /* of all ranks, while the store has their mean; else NULL
                                                    (session/state.h) */
    struct cr_session_times times;
};

/* Opens the device that [train] names; *real gets the type of activations there: [train] precision, or by the device.
 */
CR_MUST cr_status cr_session_device(const struct cr_config *config, bool ref_only, struct cr_device **device,
                                    enum cr_dtype *real);
/* The same for a rank: the GPU of its number on this host, from train.gpu on. comm NULL: one rank. */
CR_MUST cr_status cr_session_rank_device(const struct cr_config *config, bool ref_only, struct cr_comm *comm,
                                         struct cr_device **device, enum cr_dtype *real);
/* session/costs.c: the table of costs that this session's programs are chosen by, or none. */
CR_MUST cr_status cr_session_open_cost_table(struct cr_session *session, const struct cr_session_options *options);
/* ---- session/ranks.c: what ranks must agree on. All of these are collectives, and nothing with one rank ---- */

/* The least limit of all ranks is everybody's. */
CR_MUST cr_status cr_session_share_limit(struct cr_session *session);
/* Rank 0, behind compiling: sends its batch, its limit and its costs; the others, before it: take them, so that all
 * choose the same kernels. */
CR_MUST cr_status cr_session_share_choices(struct cr_session *session);
/* Are the training programs the same everywhere? Collectives of programs that differ would add up what does not belong
 * together. */
CR_MUST cr_status cr_session_same_programs(struct cr_session *session);
/* Are values, momenta, running statistics and state the same everywhere, to the bit? */
CR_MUST cr_status cr_session_same_values(struct cr_session *session);

/* What that session's programs are compiled for: the device, with costs from the table when there is one. */
struct cr_cost_model cr_session_cost_model(struct cr_session *session);
/* session/static_masks.c: the masks of `weights` (a folder or file; NULL: none), if it is a pruned network's, into
 * s->pattern; else, with `draw`, those that [prune] makes of first weights: for measurements. Programs then rely on
 * them: masks must stay as they are. */
CR_MUST cr_status cr_session_pattern(struct cr_session *session, const char *weights, bool draw);
/* Does an update look at nothing of what the gradients of pruned weights are? Clipping and LARS take norms of all. */
bool cr_session_may_mask_gradients(const struct cr_config *config);
/* For measurements: prunes first values as s->pattern, or else [prune], says. Nothing where the store has no masks. */
CR_MUST cr_status cr_session_prune(struct cr_session *session);
/* "40 of 53 convolutions, 40 of 52 data gradients": those on rows that skip pruned weights. */
void cr_session_sparse_text(const struct cr_program *program, struct cr_text *out);
/* session/memory_limit.c: s->limit and s->beside from [memory] limit. */
void cr_session_limit(struct cr_session *session);
/* Behind the first step: a warning where more of the device is taken than a limit that is a number allows. */
void cr_session_check_limit(const struct cr_session *session);
/* Pictures and labels of one more program take their memory from the limit. */
void cr_session_count_input(struct cr_session *session, const struct cr_program *program);
/* A program of this session, its pool below the limit if that can be; how, gets into session->fit. `until` as in
 * cr_compile. */
CR_MUST cr_status cr_session_compile(struct cr_session *session, enum cr_program_kind kind, int64_t batch,
                                     const char *until, struct cr_program *out);
/* The largest batch, at most `most` (0: any), that fits the limit (or what is free) at [train] batch_slowdown, into
 * session->batch. */
CR_MUST cr_status cr_session_find_batch(struct cr_session *session, int64_t most);
/* With programs compiled for a batch that was found: is it too large after all? Then session->batch is lowered. */
bool cr_session_smaller_batch(struct cr_session *session, size_t need);
/* How the limit is kept, "" when it needs nothing; the errors when it cannot be, and when memory is not there (lacks:
 * bytes, 0: unknown). */
void      cr_session_fit_text(const struct cr_session *session, struct cr_text *out);
cr_status cr_session_limit_missed(const struct cr_session *session, size_t need);
cr_status cr_session_lacks_memory(const struct cr_session *session, const struct cr_program *const *programs, int count,
                                  size_t lacks);
/* Number of classes without opening the data set where possible: model.classes, the kind's own number, the folder's. */
CR_MUST cr_status cr_session_classes(const struct cr_config *config, int *classes);
CR_MUST cr_status cr_session_open(const struct cr_config *config, const struct cr_session_options *options,
                                  struct cr_session *out);
void              cr_session_close(struct cr_session *session);
/* He's rule into the store, on the device; the loss scale as [train] loss_scale says. */
CR_MUST cr_status cr_session_init(struct cr_session *session);
/* "device 0.61 s, kernels 0.40 s, memory 0.05 s, values 0.01 s" */
void cr_session_times_text(const struct cr_session *session, char *text, size_t size);
/* After loading the state of a run that may have had another precision or loss scale. */
CR_MUST cr_status cr_session_fit_loss_scale(struct cr_session *session);
/* Loads model.weights (torchvision's names, or the CIFAR nets' `linear.*`) from a file, step folder or run folder.
 * `exact`: the classifier must fit (evaluation); else model.head decides, and one line says when it starts fresh. */
CR_MUST cr_status cr_session_load_weights(struct cr_session *session, const char *path, bool exact);

/* ---- evaluation ---- */
struct cr_scores {
    int64_t images, correct1, correct5;
    double  loss_sum; /* plain cross entropy */
    int64_t corrupt;
    double  seconds;
};
/* Runs the whole data set through the eval program; each sample counts once. Stops early with CR_ERR_INTERRUPTED when
 * *stop becomes non-zero (may be NULL). With several ranks each does its share, and *out is the same on all: so is the
 * interruption. */
CR_MUST cr_status cr_session_evaluate(struct cr_session *session, const struct cr_dataset *dataset,
                                      volatile const int *stop, struct cr_scores *out);

/* The same, showing each readable sample with its logits ([model.classes], valid during the call) to `see`. The device
 * is waited for behind every batch. */
struct cr_sample_callback {
    void *self;
    void (*on_sample)(void *self, int64_t sample, int32_t label, const float *logits);
};
CR_MUST cr_status cr_session_evaluate_each(struct cr_session *session, const struct cr_dataset *dataset,
                                           volatile const int *stop, const struct cr_sample_callback *judge,
                                           struct cr_scores *out);

/* ---- training ---- */
struct cr_train_options {
    const char        *resume;    /* NULL, "auto", or a run folder, step folder */
    bool               force;     /* accept changes to model or data order on resume */
    const char *const *overrides; /* the command line's section.key=value, applied again over the stored config */
    int                override_count;
    struct cr_comm    *comm; /* the ranks that train together; NULL: one */
};
/* The whole of `cresnet train`. *signal_taken gets the signal that ended the run (0: none). */
CR_MUST cr_status cr_train(const struct cr_config *config, const struct cr_train_options *options, int *signal_taken);

/* ---- prediction ---- */
struct cr_prediction {
    int   label[5];
    float probability[5];
    int   count; /* 0: the picture could not be read; why is in `error` */
    char  error[256];
};
/* The logits of the last run of the eval program, [eval_batch][classes] as floats; `raw` has the bytes of its tensor.
 */
CR_MUST cr_status cr_session_logits(struct cr_session *session, void *raw, float *logits);
/* Top classes of pictures read from files. One entry an image, those that cannot be read included. */
CR_MUST cr_status cr_session_predict(struct cr_session *session, const char *const *paths, int count,
                                     struct cr_prediction *out);

#endif
