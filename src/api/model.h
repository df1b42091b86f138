/* api/model.h: the structure behind cresnet_model, shared by the files of api/ and by cresnet predict.
 *
 * Invariants
 *   - Every model has one thread. It opens the session, computes, and closes the session. The thread of the caller
 *     waits meanwhile, so its OpenMP settings, its current GPU, its locale, its rounding mode and its stack do not
 *     matter and do not change. What the caller's own thread executes has no assertions: it checks arguments.
 *   - Calls on one model are computed one after the other. Only calls for tensors on the device overlap: the next one
 *     is given to the device before the results of the one before are there (api/overlap.c). */
#ifndef CR_API_MODEL_H
#define CR_API_MODEL_H

#include "include/cresnet.h"
#include "session/scores/reject.h"
#include "session/session.h"

#include <pthread.h>
#include <stdatomic.h>

struct cr_scratch;
struct cr_api_logits;

/* A piece of work for the thread of a model. */
typedef cr_status cr_api_job_fn(struct cresnet_model *model, void *argument);

/* A call from outside, on the stack of the caller. */
struct cr_api_job {
    cr_api_job_fn *begin; /* does the work; with `end`, only gives it to the device */
    cr_api_job_fn *end;   /* waits for the work and writes the results; NULL: begin has done all */
    /* With `end`: whether the work has been done, or has failed. Does not wait. */
    bool (*ready)(struct cresnet_model *model, void *argument);
    void              *argument;
    bool               done;
    cresnet_error      result;
    struct cr_api_job *next;
};

/* Jobs that were begun at the same time: the device computes one while the host writes the results of the other. */
enum { CR_API_BEGUN = 2 };

/* Jobs are begun and ended in the order of the calls. */
struct cr_api_worker {
    pthread_t          thread;
    bool               started;
    pthread_mutex_t    mutex;        /* protects the members below */
    pthread_cond_t     work, done;   /* for the thread of the model; for callers */
    struct cr_api_job *first, *last; /* not begun */
    struct cr_api_job *begun[CR_API_BEGUN];
    int                begun_jobs;
    struct cr_api_job *current; /* whose function runs */
    bool               quit;
    atomic_bool        abandoned; /* a programming error has stopped a thread of the model: no thread works any more */
    atomic_int         users;     /* threads that use memory of callers: see cr_api_use_begin */
    int                number;    /* of the model, which its OpenMP teams inherit */
    struct cresnet_model *next;   /* of all models of the process */
};

/* One call: prepares the images of a batch and computes it. One of images, encoded, paths and tensors is not NULL. */
struct cr_api_images {
    const cresnet_image   *images;
    const cresnet_encoded *encoded;
    const char *const     *paths;
    const cresnet_tensor  *tensors; /* all of one type, all on the host or all on the device */
    int                    tensor;  /* position in the tensors: the tensor of the next image, and the image in it */
    int                    tensor_image;
    int                    count;    /* images of the call */
    int                    view;     /* of each image, with [data] tta */
    uint8_t               *prepared; /* of cresnet_prepare_files: where images are written; else NULL */
    const cresnet_output  *output;
};

struct cresnet_model {
    struct cr_api_worker    worker;
    const struct cr_config *config;
    struct cr_session       session;
    struct cr_arena         arena; /* owns the class names and the path of the weights */
    const char            **class_name;
    int                     class_names;
    double                 *threshold; /* [classes], with several labels per image; else NULL */
    struct cr_reject        reject;
    const char             *weights;
    bool                    f32_input, has_features;
    pid_t                   process;       /* that opened the model: a child process has no thread of the model */
    int                     feature_count; /* length of a vector of pooled features */
    void (*log)(void *context, cresnet_log_level level, const char *line);
    void *log_context;
    int (*interrupt)(void *context); /* of cresnet_options; may be NULL */
    void        *interrupt_context;
    cresnet_info info;        /* what cresnet_get_info copies */
    char         broken[256]; /* the error after which the model cannot be used; "" while it can */

    /* One batch on the host. */
    uint8_t          *images;    /* [batch][size][width] pixels of the network's format */
    const void      **addresses; /* [batch]: images on the device; NULL without async */
    float            *values;    /* the same as normalised f32; NULL without f32_input */
    float            *logits, *features;
    struct cr_ranked *ranked; /* [classes]: scratch memory for sorting */
    float            *view;   /* logits or features of one view; NULL without [data] tta */
    void             *raw;    /* logits or features in the type of the device */
    struct {
        void *logits, *ready; /* page-locked memory in the type of the device, and the event when they are there */
    } overlap[CR_API_BEGUN];  /* of a device with async */
    int overlap_begun, overlap_ended; /* calls modulo CR_API_BEGUN */

    /* Logits on the device that callers own: api/dlpack.c. */
    atomic_int                      owners; /* the caller who opened the model, and such logits */
    _Atomic(struct cr_api_logits *) returned;
    struct cr_api_logits           *spare; /* returned earlier; of the thread of the model */

    struct cr_scratch *scratch; /* [decoders]: one for each thread that decodes images */
    int                decoders;
};

/* ---- api/worker.c ---- */

/* Creates a model and its thread. On failure *error says why and the result is NULL. */
struct cresnet_model *cr_api_start(cresnet_error *error);
/* Lets the thread of the model run a function and waits for it. Writes the result to *error (which may be NULL). */
cresnet_status cr_api_call(struct cresnet_model *model, cr_api_job_fn *function, void *argument, cresnet_error *error);
/* The same for a job of which begin, end, ready and argument are set. */
cresnet_status cr_api_call_job(struct cresnet_model *model, struct cr_api_job *job, cresnet_error *error);
/* Ends the thread and frees the model, whose session must be closed. */
void cr_api_stop(struct cresnet_model *model);
/* Writes an error of the library itself. Returns status. */
cresnet_status cr_api_fail(cresnet_error *error, cresnet_status status, const char *fmt, ...) CR_PRINTF(3, 4);
/* The model whose thread this is; NULL on all other threads. */
struct cresnet_model *cr_api_current(void);
/* A programming error in this thread: gives the error to the callers of its model, which can only be closed then. The
 * threads of the model never return, and close does not free it. */
_Noreturn void cr_api_abandon(const char *text);
/* A thread of an OpenMP team calls these before and after it uses memory of the caller. A call that a programming error
 * stops returns when no such thread is left. */
void cr_api_use_begin(struct cresnet_model *model);
void cr_api_use_end(struct cresnet_model *model);

/* ---- api/open.c ---- */

/* Opens a model for a configuration that names its weights. The model takes `config` over, also after an error.
 * options.config, settings, device, precision and threads are not read: the configuration has them. */
cresnet_status cr_api_open_config(const struct cr_config *config, const cresnet_options *options, cresnet_model **model,
                                  cresnet_error *error);

/* Closes the model when this is the last of its owners. */
void cr_api_leave(struct cresnet_model *model);

/* ---- api/classify.c ---- */

/* Number of views of each image: 1 without [data] tta. */
int cr_api_views(const struct cresnet_model *model);
/* Number of samples of a prepared image. */
size_t cr_api_image_samples(const struct cresnet_model *model);
/* Checks the arguments that all calls have in common. `name` is that of the array `images` in messages. */
cresnet_status cr_api_check_call(const cresnet_model *model, const char *name, const void *images, int count,
                                 cresnet_error *error);
/* Classifies the images of a call. */
cresnet_status cr_api_classify(cresnet_model *model, struct cr_api_images *call, cresnet_error *error);

/* ---- api/dlpack.c ---- */

/* Frees the memory of logits that have been returned. */
void cr_api_free_logits(struct cresnet_model *model);

/* ---- api/tensors.c ---- */

/* Checks a tensor of a call whose first tensor is `first`. */
cresnet_status cr_api_check_tensor(const cresnet_model *model, const cresnet_tensor *tensor,
                                   const cresnet_tensor *first, cresnet_error *error);

/* Gives the next `count` images of the call's tensors to the evaluation program. */
CR_MUST cr_status cr_api_feed_tensors(struct cresnet_model *model, struct cr_api_images *call, int count);
/* Writes the values that the op normalize computes from the first `count` images to model->values. */
void cr_api_normalize(struct cresnet_model *model, int count);

/* ---- api/overlap.c ---- */

CR_MUST cr_status cr_api_overlap_open(struct cresnet_model *model);
void              cr_api_overlap_close(struct cresnet_model *model);
/* Whether a call can be begun while another one is computed: its images are on the device and fit into a batch. */
bool cr_api_can_overlap(const struct cresnet_model *model, const struct cr_api_images *call);
/* The functions of such a job. The argument is the call. */
cr_status cr_api_overlap_begin(struct cresnet_model *model, void *call);
bool      cr_api_overlap_ready(struct cresnet_model *model, void *call);
cr_status cr_api_overlap_end(struct cresnet_model *model, void *call);

/* ---- api/results.c ---- */

/* Checks the output structure of a call and copies it; callers that were built for an older version have a shorter one.
 */
cresnet_status cr_api_read_output(const struct cresnet_model *model, const cresnet_output *given, cresnet_output *out,
                                  cresnet_error *error);
/* Whether a call needs the features: the caller wants them, or the scores are made of them. */
bool cr_api_wants_features(const struct cresnet_model *model, const cresnet_output *output);
/* Reads the results of the last run. With several views, the results after the last one are the means. */
CR_MUST cr_status cr_api_read_results(struct cresnet_model *model, const cresnet_output *output, int view, int views);
/* Takes the results that were read and writes those of its first `count` images to the output, as images first,
 * first + 1, ... CR_ERR_NUMERIC when they are not finite. */
CR_MUST cr_status cr_api_write_results(struct cresnet_model *model, const cresnet_output *output, int first, int count);

#endif
