/* api/worker.c: C API: the worker thread of a model and its queue of jobs. See api/model.h. */
#include "api/model.h"
#include "core/utf8.h"
#include "data/scratch.h"

#include <fenv.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum { STACK_BYTES = 8 << 20, NAP_NS = 30000 };

static _Thread_local struct cresnet_model *current; /* the model whose thread this is */
static _Thread_local bool                  is_user; /* between cr_api_use_begin and cr_api_use_end */

struct cresnet_model *cr_api_current(void) {
    return current;
}

/* ---- errors ---- */

static cresnet_status public_status(cr_status status) {
    switch (status) {
    case CR_OK: return CRESNET_OK;
    case CR_ERR_USAGE:
    case CR_ERR_CONFIG: return CRESNET_ERROR_CONFIG;
    case CR_ERR_IO: return CRESNET_ERROR_IO;
    case CR_ERR_FORMAT: return CRESNET_ERROR_FORMAT;
    case CR_ERR_MEMORY: return CRESNET_ERROR_MEMORY;
    case CR_ERR_NUMERIC: return CRESNET_ERROR_NOT_FINITE;
    case CR_ERR_DEVICE:
    case CR_ERR_INTERRUPTED:
    case CR_ERR_PEER: break;
    }
    return CRESNET_ERROR_DEVICE;
}

cresnet_status cr_api_fail(cresnet_error *error, cresnet_status status, const char *fmt, ...) {
    va_list args;
    char    text[8192];
    if (!error) return status;
    error->status = status;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    cr_utf8_visible(text, true, error->text, sizeof error->text); /* shortens a long text in the middle */
    return status;
}

/* The mutex is held. */
static void finish_locked(struct cresnet_model *model, struct cr_api_job *job, cresnet_status status,
                          const char *text) {
    cr_api_fail(&job->result, status, "%s", text);
    if (status == CRESNET_ERROR_DEVICE && !*model->broken) snprintf(model->broken, sizeof model->broken, "%s", text);
    job->done = true;
}

_Noreturn static void park(void) {
    for (;;) (void)pause();
}

/* The job is the current one or the oldest that was begun. */
static void finish(struct cresnet_model *model, struct cr_api_job *job, cresnet_status status, const char *text) {
    struct cr_api_worker *w = &model->worker;
    (void)pthread_mutex_lock(&w->mutex);
    const bool abandoned = w->abandoned; /* abandon() gives the caller its error: the job may be gone already */
    if (!abandoned) {
        if (w->current == job)
            w->current = NULL;
        else
            memmove(w->begun, w->begun + 1, (size_t)--w->begun_jobs * sizeof *w->begun);
        finish_locked(model, job, status, text);
    }
    (void)pthread_cond_broadcast(&w->done);
    (void)pthread_mutex_unlock(&w->mutex);
    if (abandoned) park();
}

static void nap(void) {
    const struct timespec time = {.tv_nsec = NAP_NS};
    (void)nanosleep(&time, NULL);
}

/* ---- programming errors ---- */

/* All models of the process, so that a thread of a team finds its model by a number. A team inherits the number of the
 * default device from the thread that starts the team, and nothing else uses this number, since no code is offloaded by
 * OpenMP. The threads themselves say nothing: LLVM's OpenMP lends the same ones to all models. */
enum { FIRST_NUMBER = 1 << 24 }; /* no device of the host's own threads */
static pthread_mutex_t       models_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct cresnet_model *models;
static unsigned              models_opened;

static void register_model(struct cresnet_model *model) {
    (void)pthread_mutex_lock(&models_mutex);
    model->worker.number = FIRST_NUMBER + (int)(models_opened++ % FIRST_NUMBER);
    model->worker.next   = models;
    models               = model;
    (void)pthread_mutex_unlock(&models_mutex);
}

static void unregister_model(const struct cresnet_model *model) {
    (void)pthread_mutex_lock(&models_mutex);
    for (struct cresnet_model **at = &models; *at; at = &(*at)->worker.next)
        if (*at == model) {
            *at = model->worker.next;
            break;
        }
    (void)pthread_mutex_unlock(&models_mutex);
}

static struct cresnet_model *model_of_thread(void) {
    struct cresnet_model *model = current;
#ifdef _OPENMP
    if (model) return model;
    const int number = omp_get_default_device();
    (void)pthread_mutex_lock(&models_mutex);
    for (model = models; model && model->worker.number != number;) model = model->worker.next;
    (void)pthread_mutex_unlock(&models_mutex);
#endif
    return model;
}

void cr_api_use_begin(struct cresnet_model *model) {
    atomic_fetch_add(&model->worker.users, 1);
    is_user = true;
    if (!model->worker.abandoned) return;
    atomic_fetch_sub(&model->worker.users, 1);
    park();
}

void cr_api_use_end(struct cresnet_model *model) {
    is_user = false;
    atomic_fetch_sub(&model->worker.users, 1);
}

/* Gives the error to all callers, as soon as no thread uses their memory any more. */
static void abandon(struct cresnet_model *model, const char *text) {
    struct cr_api_worker *w     = &model->worker;
    const bool            first = !atomic_exchange(&w->abandoned, true);
    if (is_user) atomic_fetch_sub(&w->users, 1);
    if (!first) return;
    while (atomic_load(&w->users)) nap();
    (void)pthread_mutex_lock(&w->mutex);
    if (w->current) finish_locked(model, w->current, CRESNET_ERROR_DEVICE, text);
    for (int i = 0; i < w->begun_jobs; i++) finish_locked(model, w->begun[i], CRESNET_ERROR_DEVICE, text);
    for (; w->first; w->first = w->first->next) finish_locked(model, w->first, CRESNET_ERROR_DEVICE, text);
    (void)pthread_cond_broadcast(&w->done);
    (void)pthread_mutex_unlock(&w->mutex);
}

/* A thread of an OpenMP team cannot end, nor can the thread of the model while its team computes: the other threads of
 * the team wait for it. So the threads of the model wait until the process ends, and its memory is lost. */
void cr_api_abandon(const char *text) {
    struct cresnet_model *model = model_of_thread();
    cr_image_abandon_turn(); /* other threads may wait for it, also those of other models */
    if (model) abandon(model, text);
    park();
}

/* ---- the thread ---- */

/* A batch that takes longer than SPIN_NS is awaited with naps, which cost a tenth of a processor. A nap delays the
 * answer by less than one percent of what the next images of such a batch need. */
enum { SPIN_NS = 500000 };

/* Removes the first job that can begin now; NULL when there is none. The mutex is held. */
static struct cr_api_job *take(struct cr_api_worker *w) {
    struct cr_api_job *job = w->first;
    if (!job || (w->begun_jobs && (!job->end || w->begun_jobs == CR_API_BEGUN))) return NULL;
    w->first          = job->next;
    return w->current = job;
}

/* Waits for a job that can begin. Returns NULL when the oldest job that was begun is ready or stands in the way of the
 * next one, and after `quit`. */
static struct cr_api_job *next_job(struct cresnet_model *model) {
    struct cr_api_worker *w   = &model->worker;
    struct cr_api_job    *job = NULL;
    (void)pthread_mutex_lock(&w->mutex);
    if (!w->begun_jobs)
        while (!w->first && !w->quit) (void)pthread_cond_wait(&w->work, &w->mutex);
    for (const int64_t start = cr_time_ns(); !(job = take(w)) && w->begun_jobs;) {
        struct cr_api_job *oldest = w->begun[0];
        (void)pthread_mutex_unlock(&w->mutex);
        if (oldest->ready(model, oldest->argument)) return NULL;
        if (cr_time_ns() - start > SPIN_NS) nap();
        (void)pthread_mutex_lock(&w->mutex);
    }
    (void)pthread_mutex_unlock(&w->mutex);
    return job;
}

static const char is_broken[] = "close this model: an earlier error has left it unusable";

static void begin(struct cresnet_model *model, struct cr_api_job *job) {
    struct cr_api_worker *w = &model->worker;
    if (*model->broken) { /* since this job was added */
        char text[sizeof is_broken + sizeof model->broken + 2];
        snprintf(text, sizeof text, "%s: %s", is_broken, model->broken);
        finish(model, job, CRESNET_ERROR_BROKEN, text);
        return;
    }
    const cr_status status = job->begin(model, job->argument);
    if (status == CR_OK && job->end) {
        (void)pthread_mutex_lock(&w->mutex);
        w->current                = NULL;
        w->begun[w->begun_jobs++] = job;
        (void)pthread_mutex_unlock(&w->mutex);
    } else
        finish(model, job, public_status(status), status == CR_OK ? "" : cr_error_message());
    cr_error_clear();
}

static void end_oldest(struct cresnet_model *model) {
    struct cr_api_job *job    = model->worker.begun[0];
    const cr_status    status = job->end(model, job->argument);
    finish(model, job, public_status(status), status == CR_OK ? "" : cr_error_message());
    cr_error_clear();
}

/* A new thread has the locale of the process and the floating-point modes of the caller: rounding, traps, subnormal
 * numbers that become zero. Results and files must not depend on them. The OpenMP threads of the model inherit the
 * modes and the number of this thread. */
static void set_defaults(const struct cresnet_model *model) {
    const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* does not allocate: glibc has a static "C" locale */
    if (c) (void)uselocale(c);
    (void)fesetenv(FE_DFL_ENV);
#ifdef _OPENMP
    omp_set_default_device(model->worker.number);
#else
    (void)model;
#endif
}

static void *serve(void *argument) {
    struct cresnet_model *model = argument;
    current                     = model;
    set_defaults(model);
    for (;;) {
        struct cr_api_job *job = next_job(model);
        if (job)
            begin(model, job);
        else if (model->worker.begun_jobs)
            end_oldest(model);
        else
            return NULL;
    }
}

/* Signals of the process are for its own threads. */
static int start_thread(struct cresnet_model *model) {
    pthread_attr_t attributes;
    sigset_t       all, before;
    int            failed = pthread_attr_init(&attributes);
    if (failed) return failed;
    (void)sigfillset(&all);
    failed = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!failed) failed = pthread_create(&model->worker.thread, &attributes, serve, model);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attributes);
    return failed;
}

struct cresnet_model *cr_api_start(cresnet_error *error) {
    struct cresnet_model *model = cr_alloc(1, sizeof *model);
    if (!model) {
        cr_api_fail(error, CRESNET_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    model->process = getpid();
    model->owners  = 1;
    register_model(model);
    (void)pthread_mutex_init(&model->worker.mutex, NULL);
    (void)pthread_cond_init(&model->worker.work, NULL);
    (void)pthread_cond_init(&model->worker.done, NULL);
    const int failed = start_thread(model);
    if (failed) {
        cr_api_fail(error, CRESNET_ERROR_MEMORY, "cannot start a thread: %s", strerror(failed));
        cr_api_stop(model);
        return NULL;
    }
    model->worker.started = true;
    return model;
}

/* In a child process the thread of the model does not exist: a call would wait forever. */
static cresnet_status fail_in_child(const struct cresnet_model *model, cresnet_error *error) {
    return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                       "the model was opened by process %d and cannot be used after fork(): open it in process %d",
                       (int)model->process, (int)getpid());
}

cresnet_status cr_api_call_job(struct cresnet_model *model, struct cr_api_job *job, cresnet_error *error) {
    struct cr_api_worker *w = &model->worker;
    if (getpid() != model->process) return fail_in_child(model, error);
    (void)pthread_mutex_lock(&w->mutex);
    if (*model->broken) {
        cr_api_fail(&job->result, CRESNET_ERROR_BROKEN, "%s: %s", is_broken, model->broken);
    } else {
        if (w->first)
            w->last->next = job;
        else
            w->first = job;
        w->last = job;
        (void)pthread_cond_signal(&w->work);
        while (!job->done) (void)pthread_cond_wait(&w->done, &w->mutex);
    }
    (void)pthread_mutex_unlock(&w->mutex);
    if (error) *error = job->result;
    return job->result.status;
}

cresnet_status cr_api_call(struct cresnet_model *model, cr_api_job_fn *function, void *argument, cresnet_error *error) {
    struct cr_api_job job = {.begin = function, .argument = argument};
    return cr_api_call_job(model, &job, error);
}

void cr_api_stop(struct cresnet_model *model) {
    struct cr_api_worker *w = &model->worker;
    if (w->started) {
        (void)pthread_mutex_lock(&w->mutex);
        w->quit = true;
        (void)pthread_cond_signal(&w->work);
        (void)pthread_mutex_unlock(&w->mutex);
        (void)pthread_join(w->thread, NULL);
    }
    unregister_model(model);
    (void)pthread_mutex_destroy(&w->mutex);
    (void)pthread_cond_destroy(&w->work);
    (void)pthread_cond_destroy(&w->done);
    cr_free(model);
}
