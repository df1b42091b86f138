/* session/session.h: everything that a command needs to run a network: model, device, compiled programs, memory and
 * weights.
 *
 * Invariants
 *   - cr_session_open does all work that can fail for lack of memory, files or kernels; later calls only run programs.
 *   - A session never changes to another device after it has reported the device that it uses.
 * The session is the layer below training/, api/ and the commands: it may include every header of lower levels. */
#ifndef CR_SESSION_H
#define CR_SESSION_H

#include "autotune/cost_table.h"
#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "compiler/compiler.h"
#include "data/data.h"
#include "model/teacher.h"
#include "runtime/executor.h"

#include <signal.h>

struct cr_label_scores; /* session/labels/label_scores.h */

struct cr_session_options {
    bool           train;      /* build the training programs */
    bool           all_sizes;  /* ... for every size of data.image_sizes; else for data.image_size alone */
    bool           eval;       /* build the evaluation program */
    bool           execute;    /* allocate device memory and bind the programs; false: compile only (cresnet plan) */
    bool           ref_only;   /* CPU: use reference kernels only */
    bool           masks;      /* create a store with pruning masks even when [prune] is not set */
    bool           draw_masks; /* for measurements: prune as [prune] says when model.weights names no pruned weights */
    const uint8_t *pattern; /* evaluation: masks that the program relies on, in the layout of the parameter store; NULL:
                               those of model.weights. Borrowed */
    /* with train: folder or file of the weights that are loaded afterwards; "" or NULL when none. If they are pruned,
     * the store has masks, and their masks stay fixed */
    const char *masks_from;
    bool        f32_input;     /* the evaluation program reads normalised f32 images instead of bytes */
    bool        keep_features; /* the evaluation program keeps the pooled features for the host */
    bool        keep_maps;     /* the evaluation program keeps the output of the last stage for the host */
    bool        calibrate; /* quantised network: the evaluation program computes in floating point and keeps the tensors
                                  that are to be quantised for the host */
    bool        without_scales; /* quantised network: the weights to load have no scales yet */
    /* with train: the dataset by which [loss] class_weights are resolved; NULL: all weights are 1. Borrowed */
    const struct cr_dataset *train_data;
    int64_t                  epoch;        /* completed epochs; by model.unfreeze they decide what is frozen */
    size_t                   memory_limit; /* found by the run for [memory] limit = auto; 0: the limit of the config */
    int64_t                  batch;        /* batch size for training; 0 uses [train] batch */
    int64_t                  batch_max;    /* upper bound for [train] batch = auto; 0 when there is none */
    int64_t eval_batch; /* batch size for evaluation; 0 uses [train] eval_batch, or else the training batch size */
    int     classes;    /* number of classes of the dataset; 0 determines it with cr_session_classes */
    const char
        *kernel_times_from; /* on resume: the step folder of the run, whose kernel choices are reused; else NULL */
    bool kernel_times_unmeasured; /* that run chose kernels without measuring (train.measure = no) */
    bool retune;                  /* choose kernels anew when the choices of kernel_times_from do not fit this device */
    struct cr_comm *comm; /* ranks of the run, which all open their sessions now; NULL with one rank. Borrowed */
    /* with train: the network of distill.teacher, from cr_session_open_teacher; NULL: the session opens it. Borrowed */
    struct cr_teacher *teacher;
};

enum { CR_SESSION_PARTS_MAX = 3, CR_SESSION_TRAIN_MAX = CR_SESSION_PARTS_MAX * CR_SIZES_MAX, CR_RUNNING_BUFFERS = 2 };

/* Durations of the phases of cr_session_open. */
struct cr_session_times {
    int64_t device_ns;  /* driver and libraries */
    int64_t compile_ns; /* building and compiling programs, choosing kernels */
    int64_t memory_ns;  /* allocating the regions, binding the programs */
    int64_t init_ns;    /* weight initialisation, or reading weights */
};

/* What a run decides or changes; the configuration is read-only. Written by session/ only; plan and bench data fill
 * one of their own. */
struct cr_run_state {
    int64_t batch;        /* images of a (micro-)batch of this rank: [train] batch, or what was found for auto */
    int64_t eval_batch;   /* images of a batch in evaluation */
    int64_t epoch;        /* completed epochs when the session was opened */
    size_t  memory_limit; /* bytes that the run may use, with libraries: [memory] limit, or found for auto; 0: none */
    struct cr_size_schedule sizes; /* of training images; count is 1 without options.all_sizes */
};

struct cr_jpeg_decoder; /* device/jpeg_decoder.h */
struct cr_session {
    const struct cr_config *config; /* borrowed */
    struct cr_run_state     state;
    struct cr_comm         *comm; /* borrowed; NULL with one rank */
    struct cr_model         model;
    struct cr_prepare       prepare_train, prepare_eval;
    struct cr_device       *device;
    uint8_t                *pattern;    /* masks that programs rely on (store.pattern points here); NULL when none */
    struct cr_cost_table   *cost_table; /* NULL: kernels are chosen by their fixed order, not by time */
    /* "step", or "micro_first", "micro", "micro_last": `parts` programs for each size, in the order of the sizes */
    struct cr_program train[CR_SESSION_TRAIN_MAX];
    int               parts;
    struct cr_prepare prepare_sizes[CR_SIZES_MAX]; /* of state.sizes; prepare_train is that of the largest */
    int               trains;                      /* number of training programs */
    struct cr_program eval;
    bool              has_eval;
    bool              without_scales; /* as in the options */
    struct cr_memory  memory;
    struct cr_exec   *train_exec[CR_SESSION_TRAIN_MAX];
    struct cr_exec   *eval_exec;
    size_t            limit; /* upper bound of the sum of all regions in bytes ([memory] limit); 0 when unlimited */
    /* With [memory] limit = auto: the free memory. It becomes the limit when the programs need more bytes without one
     * (need_without_limit; else 0). */
    size_t limit_if_needed, need_without_limit;
    /* With a numeric [memory] limit: bytes of libraries, CUDA graphs and NCCL buffers, which count against the limit in
     * addition to the regions. */
    size_t               overhead_bytes;
    size_t               input_bytes; /* INPUT region of the programs compiled so far */
    size_t               small_bytes; /* part of input_bytes that does not hold images */
    struct cr_fit_report fit;         /* how the program with the largest pool was fitted below the limit */
    /* The running statistics of every rank, while the parameter store holds their mean; else NULL
     * (session/checkpoint_tensors.h). */
    float                  *running_of_ranks[CR_RUNNING_BUFFERS];
    struct cr_teacher      *own_teacher;  /* model.teacher, when the session has opened it */
    struct cr_label_scores *label_scores; /* data.multi_label: of the last evaluation, of all ranks; else NULL */
    struct cr_session_times times;
    /* Decoder of training images on the device (session/jpeg_decoder.c); NULL: the loader decodes all. */
    struct cr_jpeg_decoder *jpeg;
    uint8_t                *jpeg_failed; /* [batch] */
};

/* Opens the device named by [train] device; the caller closes it with cr_device_close. *real is the type of
 * activations: by [train] precision, or the device's default. `options` (may be NULL): ref_only; and comm, with which
 * a rank gets the GPU train.gpu + local rank. */
CR_MUST cr_status cr_session_device(const struct cr_config *config, const struct cr_session_options *options,
                                    struct cr_device **device, enum cr_dtype *real);
/* session/kernel_times.c: opens the table of kernel times by which kernels are chosen, if the device measures any. */
CR_MUST cr_status cr_session_open_cost_table(struct cr_session *session, const struct cr_session_options *options);

/* ---- session/ranks.c: agreement between ranks. All functions are collective and do nothing with one rank ---- */

/* Sets every rank's limit to the smallest limit of all ranks. */
CR_MUST cr_status cr_session_share_limit(struct cr_session *session);
/* Rank 0 sends its batch size, limit and kernel times after compiling; the other ranks receive them before compiling,
 * so that all ranks choose the same kernels. */
CR_MUST cr_status cr_session_share_choices(struct cr_session *session);
/* Checks that all ranks have the same training programs: collectives of different programs would add unrelated
 * values. */
CR_MUST cr_status cr_session_same_programs(struct cr_session *session);
/* Checks that weights, optimizer state, running statistics and scalars are bitwise identical on all ranks. */
CR_MUST cr_status cr_session_same_values(struct cr_session *session);

/* Returns the cost model that the programs are compiled with: measured kernel times when the session has a table, else
 * roofline estimates. */
struct cr_cost_model cr_session_cost_model(struct cr_session *session);

/* ---- session/static_masks.c: masks that programs may rely on ---- */

/* Sets session->pattern to the masks of `weights` (a folder or file, or NULL) if these are pruned weights. Otherwise,
 * with `draw`, sets it to the masks that [prune] makes of the initial weights (for measurements). Programs rely on the
 * masks, so they must not change afterwards. */
CR_MUST cr_status cr_session_sparsity_pattern(struct cr_session *session, const char *weights, bool draw);
/* Sets session->pattern to a copy of `pattern`, which has a bit for each element of the parameter store's values. */
CR_MUST cr_status cr_session_copy_pattern(struct cr_session *session, const uint8_t *pattern);
/* True when an update does not depend on the gradients of pruned weights. Clipping and LARS use norms of all
 * gradients. */
bool cr_session_may_mask_gradients(const struct cr_config *config);
/* For measurements: prunes the initial weights by session->pattern, or else by [prune]. Does nothing when the parameter
 * store has no masks. */
CR_MUST cr_status cr_session_prune(struct cr_session *session);
/* Appends "40 of 53 convolutions, 40 of 52 data gradients": the number of ops that run on sparse kernels. */
void cr_session_sparse_text(const struct cr_program *program, struct cr_text *out);

/* ---- session/memory_limit.c and session/batch_search.c ---- */

/* Sets state.memory_limit, limit, limit_if_needed and overhead_bytes from [memory] limit. `found` is the limit in bytes
 * that the run found before for limit = auto, or 0. */
void cr_session_limit(struct cr_session *session, size_t found);
/* Bytes that count against the limit in addition to the regions. */
size_t cr_session_overhead_bytes(const struct cr_session *session);
/* For programs that were compiled without a limit and need `need` bytes: with [memory] limit = auto and less free
 * memory, sets session->limit and returns true. The caller compiles them again. */
bool cr_session_needs_limit(struct cr_session *session, size_t need);
/* Called after the first step: warns when more device memory is in use than a numeric limit allows. */
void cr_session_check_limit(const struct cr_session *session);
/* Bytes of device memory that are free for regions, 0 when unknown. */
size_t cr_session_free_memory(const struct cr_session *session);
/* Reserves memory for the INPUT region of one more program. */
void cr_session_count_input(struct cr_session *session, const struct cr_program *program);
/* Builds and compiles one program of this session, with its pool below the limit if possible; session->fit reports how.
 * `until` as in cr_compile. CR_ERR_MEMORY, CR_ERR_CONFIG, CR_ERR_DEVICE. */
CR_MUST cr_status cr_session_compile(struct cr_session *session, enum cr_program_kind kind, int64_t batch,
                                     const char *until, struct cr_program *out);
/* The same with a given cost model and report; session->fit stays unchanged. */
CR_MUST cr_status cr_session_compile_with(struct cr_session *session, struct cr_cost_model *model,
                                          enum cr_program_kind kind, int64_t batch, const char *until,
                                          struct cr_fit_report *fit, struct cr_program *out);
/* Sets session->state.batch to the largest batch size that fits the limit (or the free memory) with at most [train]
 * batch_slowdown. `batch_max` is an upper bound, 0 when there is none. */
CR_MUST cr_status cr_session_find_batch(struct cr_session *session, int64_t batch_max);
/* For programs compiled with a batch size that cr_session_find_batch found and that need `need` bytes: when they do not
 * fit, lowers session->state.batch and returns true. */
bool cr_session_smaller_batch(struct cr_session *session, size_t need);
/* Appends how the limit is met (recomputation, offloading); appends nothing when no measures are needed. */
void cr_session_fit_text(const struct cr_session *session, struct cr_text *out);
/* Set the error for a limit that cannot be met, and for lack of device memory (`lacks`: missing bytes, 0 when unknown).
 * They return CR_ERR_CONFIG and CR_ERR_MEMORY. */
cr_status cr_session_limit_missed(const struct cr_session *session, size_t need);
cr_status cr_session_lacks_memory(const struct cr_session *session, const struct cr_program *const *programs, int count,
                                  size_t lacks);

/* ---- opening ---- */

/* Number of classes: model.classes, or the number that the dataset kind implies; opens the dataset only when neither is
 * known. */
CR_MUST cr_status cr_session_classes(const struct cr_config *config, int *classes);
/* Opens a session; the caller frees it with cr_session_close, also after a failure. */
CR_MUST cr_status cr_session_open(const struct cr_config *config, const struct cr_session_options *options,
                                  struct cr_session *out);
void              cr_session_close(struct cr_session *session);
/* The training program of micro-batch `i` in an epoch, as an index of train and train_exec. */
int cr_session_program_at(const struct cr_session *session, int64_t epoch, int64_t i);
/* Initialises weights and state on the device ([model] init, [train] loss_scale). */
CR_MUST cr_status cr_session_init(struct cr_session *session);
/* Writes "device 0.61 s, kernel selection 0.40 s, memory 0.05 s, weight initialisation 0.01 s" to text. */
void cr_session_times_text(const struct cr_session *session, char *text, size_t size);
/* Adjusts the loss scale after loading the state of a run that may have had another precision or loss scale. */
CR_MUST cr_status cr_session_fit_loss_scale(struct cr_session *session);
/* Loads weights (torchvision's names, or `linear.*` of CIFAR networks) from a file, step folder or run folder. With
 * `exact` the classifier must fit (evaluation). Without it model.head decides whether the classifier is replaced by a
 * newly initialised one; the log says so. */
CR_MUST cr_status cr_session_load_weights(struct cr_session *session, const char *path, bool exact);

/* session/loading/match_head.c: with model.head = match, after cr_session_load_weights: gives the rows of the new
 * classifier whose classes the weights have, by name and by model.rename, their values in the weights, and names in
 * the log what is kept, new and dropped. names: [model.classes]. CR_ERR_CONFIG: the weights have no class names, a
 * name of model.rename is unknown, or the classifier of the weights does not fit. CR_ERR_FORMAT, CR_ERR_IO,
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_session_match_head(struct cr_session *session, const char *path, const char *const *names);

/* ---- session/teacher.c: knowledge distillation ---- */

/* Opens the network that distill.teacher names, for training images of this configuration: reads its weights and folds
 * its batch norms, on the host. `data`: the training set, whose order of classes the teacher's outputs get, by name;
 * NULL: the teacher's own order. Sets *out to NULL when the key is empty; the caller frees *out with cr_teacher_close.
 * CR_ERR_CONFIG, with the line of the configuration: no such network, other classes, another image size, or a
 * network or loss that cannot be distilled. */
CR_MUST cr_status cr_session_open_teacher(const struct cr_config *config, const struct cr_dataset *data, int classes,
                                          struct cr_teacher **out);
/* Makes the training programs that are built later learn from `teacher` (borrowed), or when it is NULL from the network
 * that distill.teacher names, which the session then owns. `real`: the type of activations. */
CR_MUST cr_status cr_session_attach_teacher(struct cr_session *session, struct cr_teacher *teacher, int classes,
                                            enum cr_dtype real);
/* Copies the teacher's constants to the parameter store on the device. Does nothing without a teacher. */
CR_MUST cr_status cr_session_put_teacher(struct cr_session *session);

/* ---- evaluation ---- */
struct cr_scores {
    /* With data.multi_label correct1 counts images whose labels are all correct (logit > 0 means that the label is
     * there), and correct5 is the number of correct labels, one for each image and class. */
    int64_t images, correct1, correct5;
    double  loss_sum; /* cross entropy (data.multi_label: binary) without label smoothing, summed over images */
    double  map;      /* data.multi_label: mean average precision; NAN when no image has a label */
    bool    several;  /* data.multi_label */
    int64_t corrupt;  /* images that could not be read */
    double  seconds;
};
/* Whether the top-5 accuracy says anything. With five classes or fewer it is always 100 %: people are not shown it;
 * JSON and logs have it. */
static inline bool cr_top5_tells(int classes) {
    return classes > 5;
}
/* The fraction of correct images, or with data.multi_label the mean average precision. */
double cr_scores_accuracy(const struct cr_scores *scores);
double cr_scores_loss(const struct cr_scores *scores); /* the mean over the images */
/* After an evaluation with data.multi_label: stores the thresholds with the largest F1 in a checkpoint folder. */
CR_MUST cr_status cr_session_save_thresholds(const struct cr_session *session, const char *folder);
/* Evaluates the whole dataset; each sample counts once. With [data] tta, a session that does not train takes the mean
 * logits of the views of each sample. Returns CR_ERR_INTERRUPTED when *stop becomes non-zero (stop
 * may be NULL). With several ranks each rank evaluates its part, and all ranks get the same *out and the same
 * status. */
CR_MUST cr_status cr_session_evaluate(struct cr_session *session, const struct cr_dataset *dataset,
                                      volatile const sig_atomic_t *stop, struct cr_scores *out);
/* The same with the views of `tta`, also in a session that trains. One rank only. */
CR_MUST cr_status cr_session_evaluate_views(struct cr_session *session, const struct cr_dataset *dataset,
                                            enum cr_tta tta, volatile const sig_atomic_t *stop, struct cr_scores *out);

/* As cr_session_evaluate; calls on_sample for each readable sample with its logits ([model.classes], valid during the
 * call). The host waits for the device after every batch. */
struct cr_sample_callback {
    void *self;
    /* labels: the label, or with data.multi_label the labels as graph/loss.h describes them */
    /* features: in a session with keep_features, [cr_session_features]; else NULL */
    void (*on_sample)(void *self, int64_t sample, const int32_t *labels, const float *logits, const float *features);
};
CR_MUST cr_status cr_session_evaluate_each(struct cr_session *session, const struct cr_dataset *dataset,
                                           volatile const sig_atomic_t *stop, const struct cr_sample_callback *callback,
                                           struct cr_scores *out);
/* CR_ERR_MEMORY when the outputs of all images, which an evaluation keeps with data.multi_label, do not fit into the
 * memory that is free. Every evaluation checks it; training does before its first step. */
CR_MUST cr_status cr_session_check_evaluation(const struct cr_session *session, const struct cr_dataset *dataset);

/* ---- batches without training (session/batches.c) ---- */

/* The memory in which a loader keeps its images, so that the device can copy from it: page-locked memory on a GPU,
 * ordinary memory otherwise. The session must outlive the loader. Use it for the loader of a training only, because
 * page-locking takes time. */
struct cr_loader_memory cr_session_loader_memory(struct cr_session *session);
/* Takes the next batch from the loader and runs the program on it. Images in the memory of the function above are not
 * copied on the host. *samples (may be NULL) is the number of images; 0 after the last batch of an evaluation, when no
 * program runs. */
CR_MUST cr_status cr_session_run_next(struct cr_session *session, struct cr_loader *loader, struct cr_exec *exec,
                                      const struct cr_step_block *block, int64_t *samples);

/* ---- images that the device decodes (session/jpeg_decoder.c) ---- */

/* Why the device cannot decode the images of this configuration (static text); NULL: it can. */
const char *cr_session_jpeg_obstacle(const struct cr_session *session);
/* Device memory that data.decode = gpu takes, in bytes; else 0. */
size_t cr_session_jpeg_bytes(const struct cr_session *session);
/* Opens the decoder if data.decode wants one, the images of `train` allow it and there is memory for it, and says so in
 * the options of the training's loader. cr_session_close closes it. CR_ERR_CONFIG: data.decode = gpu is impossible.
 * CR_ERR_MEMORY, CR_ERR_DEVICE. */
CR_MUST cr_status cr_session_jpeg_open(struct cr_session *session, const struct cr_dataset *train,
                                       struct cr_loader_options *options);
void              cr_session_jpeg_close(struct cr_session *session);
/* Decodes the scans of a batch. The loader decodes the scans that the device cannot decode. */
CR_MUST cr_status cr_session_jpeg_decode(struct cr_session *session, struct cr_loader *loader, struct cr_batch *batch);

/* Runs the training program on the first `batches` batches of the training order, with learning rate 0, and calls
 * on_gradients after each one with a host copy of the gradients (layout GRAD, valid during the call). The session
 * trains in fp32 without micro-batches. Afterwards only the gradients have changed. CR_ERR_CONFIG: not finite; the
 * errors of the loader and of on_gradients. */
CR_MUST cr_status cr_session_gradients(struct cr_session *session, const struct cr_dataset *train, int64_t batches,
                                       cr_status (*on_gradients)(void *self, const float *grad), void *self);
struct cr_bn_options {
    bool    averages;    /* of the moving averages of the weights: to EMA_RUNNING instead of RUNNING */
    int64_t batches;     /* at most; per rank, from the start of the epoch */
    int64_t epoch, step; /* whose order of images and whose random masks are used */
};
/* Computes BN statistics again from training batches, as torch.optim.swa_utils.update_bn: the means of the statistics
 * of all batches of all ranks. Runs the training program with learning rate 0, then restores everything else. With
 * data.image_sizes the images have the size of the epoch before options->epoch. Frozen BNs keep their statistics. The
 * session trains, with model.bn_momentum above 0. Collective: one rank may not fail alone. *used: batches of all ranks;
 * NULL when not needed. The errors of the loader; CR_ERR_CONFIG when the training set has less than a batch. */
CR_MUST cr_status cr_session_bn_statistics(struct cr_session *session, const struct cr_dataset *train,
                                           const struct cr_bn_options *options, int64_t *used);
/* The parts of it. After begin, the device holds the weights (averages: the averaged ones) and running statistics of 0;
 * after each run of a training program with learning rate 0 the caller calls add. end puts everything back, and
 * then the means in their place. */
struct cr_bn_statistics {
    bool    averages;
    void   *saved[CR_BUFFERS]; /* host copies of the buffers that a training program changes; else NULL */
    float  *batch;             /* [running_elems] statistics of one batch, scaled by bn_momentum */
    double *sum;               /* [running_elems] */
    int64_t batches;
};
CR_MUST cr_status cr_session_bn_begin(struct cr_session *session, bool averages, struct cr_bn_statistics *statistics);
CR_MUST cr_status cr_session_bn_add(struct cr_session *session, struct cr_bn_statistics *statistics);
CR_MUST cr_status cr_session_bn_end(struct cr_session *session, struct cr_bn_statistics *statistics);
void              cr_session_bn_free(struct cr_bn_statistics *statistics);

/* ---- prediction ---- */

/* Copies a tensor that the eval program keeps (logits, features) to `out`, as f32. `raw` is scratch memory with the
 * size of the tensor, whose type may be f16 or bf16. */
CR_MUST cr_status cr_session_read(struct cr_session *session, int tensor, void *raw, float *out);

/* Length of a vector of pooled features; the session has keep_features. */
int cr_session_features(const struct cr_session *session);

struct cr_ranked {
    double logit;
    int    label;
};
/* The `top` most probable of `classes` classes, in descending order, by finite logits: labels [top] and probabilities
 * [top], either of which may be NULL: the softmax, or with `several` labels per image the sigmoid of each logit.
 * `ranked` is scratch memory for all classes. */
void cr_session_top_classes(const float *logits, int classes, int top, bool several, struct cr_ranked *ranked,
                            int32_t *labels, float *probabilities);

#endif
