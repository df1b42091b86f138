/* api/worker.c: the thread of a model. See api/model.h. */
#include "api/model.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { STACK_BYTES = 8 << 20 };

static _Thread_local struct cresnet_model *current; /* the model whose thread this is */

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
    if (!error) return status;
    error->status = status;
    va_start(args, fmt);
    vsnprintf(error->text, sizeof error->text, fmt, args);
    va_end(args);
    return status;
}

static void finish(struct cresnet_model *model, cresnet_status status, const char *text) {
    struct cr_api_worker *w = &model->worker;
    (void)pthread_mutex_lock(&w->mutex);
    cr_api_fail(&w->result, status, "%s", text);
    if (status == CRESNET_ERROR_DEVICE && !*model->broken) snprintf(model->broken, sizeof model->broken, "%s", text);
    w->function = NULL;
    w->done     = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->mutex);
}

/* Memory and locks of the job are lost; the model cannot be used any more. */
void cr_api_abandon(const char *text) {
    struct cresnet_model *model = current;
    current                     = NULL;
    model->worker.abandoned     = true;
    finish(model, CRESNET_ERROR_DEVICE, text);
    pthread_exit(NULL);
}

/* ---- the thread ---- */

static void *serve(void *argument) {
    struct cresnet_model *model = argument;
    struct cr_api_worker *w     = &model->worker;
    current                     = model;
    for (;;) {
        (void)pthread_mutex_lock(&w->mutex);
        while (!w->function && !w->quit) (void)pthread_cond_wait(&w->changed, &w->mutex);
        cr_api_job_fn *function = w->function;
        void          *job      = w->job;
        (void)pthread_mutex_unlock(&w->mutex);
        if (!function) return NULL;
        const cr_status status = function(model, job);
        finish(model, public_status(status), status == CR_OK ? "" : cr_error_message());
        cr_error_clear();
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
    (void)pthread_mutex_init(&model->worker.calls, NULL);
    (void)pthread_mutex_init(&model->worker.mutex, NULL);
    (void)pthread_cond_init(&model->worker.changed, NULL);
    const int failed = start_thread(model);
    if (failed) {
        cr_api_fail(error, CRESNET_ERROR_MEMORY, "cannot start a thread: %s", strerror(failed));
        cr_api_stop(model);
        return NULL;
    }
    model->worker.started = true;
    return model;
}

cresnet_status cr_api_call(struct cresnet_model *model, cr_api_job_fn *function, void *job, cresnet_error *error) {
    struct cr_api_worker *w = &model->worker;
    cresnet_error         result;
    (void)pthread_mutex_lock(&w->calls);
    if (*model->broken) {
        (void)pthread_mutex_unlock(&w->calls);
        return cr_api_fail(error, CRESNET_ERROR_BROKEN, "close this model: an earlier error has left it unusable: %s",
                           model->broken);
    }
    (void)pthread_mutex_lock(&w->mutex);
    w->function = function;
    w->job      = job;
    w->done     = false;
    (void)pthread_cond_broadcast(&w->changed);
    while (!w->done) (void)pthread_cond_wait(&w->changed, &w->mutex);
    result = w->result;
    (void)pthread_mutex_unlock(&w->mutex);
    (void)pthread_mutex_unlock(&w->calls);
    if (error) *error = result;
    return result.status;
}

void cr_api_stop(struct cresnet_model *model) {
    struct cr_api_worker *w = &model->worker;
    if (w->started) {
        (void)pthread_mutex_lock(&w->mutex);
        w->quit = true;
        (void)pthread_cond_broadcast(&w->changed);
        (void)pthread_mutex_unlock(&w->mutex);
        (void)pthread_join(w->thread, NULL);
    }
    (void)pthread_mutex_destroy(&w->calls);
    (void)pthread_mutex_destroy(&w->mutex);
    (void)pthread_cond_destroy(&w->changed);
    cr_free(model);
}
