/* session/batches.c: runs training programs on batches of a dataset without an update: gradients, BN statistics. See
 * session/session.h. */
#include "data/data.h"
#include "session/checkpoint_tensors.h"

#include <string.h>

/* ---- what a training program changes, with learning rate 0 too ---- */

static const enum cr_param_buffer changed[] = {CR_BUFFER_VALUE, CR_BUFFER_MOMENTUM, CR_BUFFER_RUNNING, CR_BUFFER_STATE,
                                               CR_BUFFER_SECOND};

static void refresh(const struct cr_session *s) {
    for (int i = 0; i < s->trains; i++) cr_exec_refresh(s->train_exec[i]);
}

typedef void *saved_buffers[CR_BUFFERS];

/* The caller frees the copies with forget, also after a failure. */
static cr_status save(struct cr_session *s, saved_buffers saved) {
    CR_TRY(s->device->backend->sync(s->device));
    for (size_t i = 0; i < CR_COUNT(changed); i++) {
        const size_t bytes = cr_param_store_buffer_bytes(&s->model.store, changed[i]);
        if (!bytes) continue;
        saved[changed[i]] = cr_alloc(bytes, 1);
        if (!saved[changed[i]]) return CR_NO_MEMORY(bytes);
        CR_TRY(cr_state_buffer_get(s, changed[i], saved[changed[i]]));
    }
    return CR_OK;
}

static cr_status restore(struct cr_session *s, const saved_buffers saved) {
    CR_TRY(s->device->backend->sync(s->device));
    for (size_t i = 0; i < CR_COUNT(changed); i++)
        if (saved[changed[i]]) CR_TRY(cr_state_buffer_put(s, changed[i], saved[changed[i]]));
    refresh(s);
    return CR_OK;
}

static void forget(saved_buffers saved) {
    for (int i = 0; i < CR_BUFFERS; i++) cr_free(saved[i]);
}

/* ---- feeding ---- */

static cr_status reserve_host(void *device, size_t bytes, void **out) {
    struct cr_device *d = device;
    return d->backend->async->host_reserve(d, bytes, out);
}

/* A copy from the memory may still run when a run ends with an error. */
static void release_host(void *device, void *memory) {
    struct cr_device *d = device;
    cr_error_hold();
    (void)d->backend->sync(d);
    cr_error_release();
    d->backend->async->host_release(d, memory);
}

struct cr_loader_memory cr_session_loader_memory(struct cr_session *s) {
    if (!s->device->backend->async) return (struct cr_loader_memory){0};
    return (struct cr_loader_memory){.owner = s->device, .reserve = reserve_host, .release = release_host};
}

cr_status cr_session_run_next(struct cr_session *s, struct cr_loader *loader, struct cr_exec *exec,
                              const struct cr_step_block *block, int64_t *samples) {
    struct cr_batch b;
    cr_status       status = CR_OK;
    CR_TRY(cr_loader_next(loader, &b));
    if (samples) *samples = b.count;
    if (b.count == 0) return CR_OK;
    if (b.scans) status = cr_session_jpeg_decode(s, loader, &b);
    const struct cr_feed feed = {.images   = b.images,
                                 .labels   = b.labels,
                                 .boxes    = b.boxes,
                                 .mixes    = b.mixes,
                                 .in_place = b.page_locked,
                                 .decoder  = b.scans ? s->jpeg : NULL,
                                 .scan     = b.scans,
                                 .places   = (int)b.count};
    if (status == CR_OK) status = cr_exec_feed_batch(exec, &feed);
    cr_loader_release(loader, &b);
    CR_TRY(status);
    return cr_exec_run(exec, block);
}

/* ---- gradients ---- */

static cr_status one_batch(struct cr_session *s, struct cr_loader *loader, int64_t step) {
    const struct cr_step_block block = {.step = step, .seed = (uint64_t)s->config->train.seed}; /* learning rate 0 */
    struct cr_exec            *exec  = s->train_exec[0];
    struct cr_exec_result      result;
    CR_TRY(cr_session_run_next(s, loader, exec, &block, NULL));
    CR_TRY(cr_exec_result(exec, cr_exec_runs(exec), &result));
    return result.nonfinite ? CR_FAIL(CR_ERR_CONFIG,
                                      "the loss or a gradient of batch %lld is not finite: the weights "
                                      "cannot be ranked by gradients",
                                      (long long)step + 1)
                            : CR_OK;
}

cr_status cr_session_gradients(struct cr_session *s, const struct cr_dataset *train, int64_t batches,
                               cr_status (*on_gradients)(void *self, const float *grad), void *self) {
    const struct cr_loader_options options =
        cr_loader_options_from(s->config, CR_SPLIT_TRAIN, &s->prepare_train, s->state.batch);
    struct cr_loader *loader = NULL;
    saved_buffers     saved  = {0};
    cr_status         status = CR_OK;
    CR_ASSERT(s->trains == 1);
    CR_TRY(cr_loader_open(train, &options, &loader));
    CR_TRY_OUT(save(s, saved));
    for (int64_t i = 0; i < batches; i++) {
        float *grad;
        CR_TRY_OUT(one_batch(s, loader, i));
        CR_TRY_OUT(cr_state_buffer_copy(s, CR_BUFFER_GRAD, &grad));
        status = on_gradients(self, grad);
        cr_free(grad);
        CR_TRY_OUT(status);
    }
    CR_TRY_OUT(restore(s, saved));
out:
    forget(saved);
    cr_loader_close(loader);
    return status;
}

/* ---- BN statistics ---- */

/* Frozen batch norms normalise by their running statistics, so these stay. */
static cr_status clear_running(struct cr_session *s, struct cr_bn_statistics *a) {
    const struct cr_param_store *store = &s->model.store;
    const size_t                 bytes = cr_param_store_buffer_bytes(store, CR_BUFFER_RUNNING);
    if (!bytes) return CR_OK;
    memcpy(a->batch, a->saved[CR_BUFFER_RUNNING], bytes);
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        if (cr_param_is_running(q->role) && !q->frozen)
            memset(a->batch + q->offset, 0, (size_t)q->elems * sizeof *a->batch);
    }
    return cr_state_buffer_put(s, CR_BUFFER_RUNNING, a->batch);
}

cr_status cr_session_bn_begin(struct cr_session *s, bool averages, struct cr_bn_statistics *a) {
    const size_t running = (size_t)CR_MAX(s->model.store.running_elems, 1);
    *a                   = (struct cr_bn_statistics){.averages = averages};
    CR_ALLOC(a->batch, running);
    CR_ALLOC(a->sum, running);
    CR_TRY(save(s, a->saved));
    if (averages) {
        float *average;
        CR_TRY(cr_state_buffer_copy(s, CR_BUFFER_EMA, &average));
        const cr_status status = cr_state_buffer_put(s, CR_BUFFER_VALUE, average);
        cr_free(average);
        CR_TRY(status);
    }
    CR_TRY(clear_running(s, a));
    refresh(s);
    return CR_OK;
}

/* The running statistics were 0 before the run, so they are bn_momentum times those of the batch. */
cr_status cr_session_bn_add(struct cr_session *s, struct cr_bn_statistics *a) {
    CR_TRY(s->device->backend->sync(s->device));
    CR_TRY(cr_state_buffer_get(s, CR_BUFFER_RUNNING, a->batch));
    for (int64_t i = 0; i < s->model.store.running_elems; i++) a->sum[i] += (double)a->batch[i];
    a->batches++;
    return clear_running(s, a);
}

static cr_status run_batches(struct cr_session *s, const struct cr_bn_options *options, struct cr_bn_statistics *a,
                             struct cr_exec *exec, struct cr_loader *loader, int64_t batches) {
    const struct cr_step_block block = {.momentum    = (float)s->config->optim.momentum,
                                        .step        = options->step,
                                        .seed        = (uint64_t)s->config->train.seed,
                                        .first_image = cr_comm_rank(s->comm) * s->state.batch};
    for (int64_t i = 0; i < batches; i++) {
        CR_TRY(cr_session_run_next(s, loader, exec, &block, NULL));
        CR_TRY(cr_session_bn_add(s, a));
    }
    return CR_OK;
}

/* Adds the sums of all ranks, in rank order. */
static cr_status sum_over_ranks(const struct cr_session *s, struct cr_bn_statistics *a) {
    const size_t elems = (size_t)s->model.store.running_elems;
    const int    ranks = cr_comm_size(s->comm);
    double      *all;
    if (ranks < 2 || !elems) return CR_OK;
    CR_ALLOC(all, elems * (size_t)ranks);
    const cr_status status = cr_comm_all_gather(s->comm, a->sum, elems * sizeof *all, all);
    for (size_t i = 0; status == CR_OK && i < elems; i++) {
        a->sum[i] = 0;
        for (int r = 0; r < ranks; r++) a->sum[i] += all[(size_t)r * elems + i];
    }
    a->batches *= ranks;
    cr_free(all);
    return status;
}

/* Frozen batch norms keep their statistics, and so do scales of quantised values. */
static void set_means(const struct cr_session *s, const struct cr_bn_statistics *a, float *running) {
    const struct cr_param_store *store = &s->model.store;
    const double                 scale = 1 / (s->config->model.bn_momentum * (double)a->batches);
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        for (int64_t i = 0; i < q->elems && (q->role == CR_ROLE_MEAN || q->role == CR_ROLE_VAR) && !q->frozen; i++)
            running[q->offset + i] = (float)(scale * a->sum[q->offset + i]);
    }
}

cr_status cr_session_bn_end(struct cr_session *s, struct cr_bn_statistics *a) {
    CR_TRY(sum_over_ranks(s, a));
    CR_TRY(restore(s, a->saved));
    if (!a->saved[CR_BUFFER_RUNNING]) return CR_OK;
    set_means(s, a, a->saved[CR_BUFFER_RUNNING]);
    return cr_state_buffer_put(s, a->averages ? CR_BUFFER_EMA_RUNNING : CR_BUFFER_RUNNING, a->saved[CR_BUFFER_RUNNING]);
}

void cr_session_bn_free(struct cr_bn_statistics *a) {
    forget(a->saved);
    cr_free(a->batch);
    cr_free(a->sum);
    *a = (struct cr_bn_statistics){0};
}

cr_status cr_session_bn_statistics(struct cr_session *s, const struct cr_dataset *train,
                                   const struct cr_bn_options *options, int64_t *used) {
    const struct cr_config  *c     = s->config;
    const int                size  = cr_size_index(&s->state.sizes, options->epoch - 1); /* of the last epoch */
    struct cr_loader_options order = cr_loader_options_from(c, CR_SPLIT_TRAIN, &s->prepare_sizes[size], s->state.batch);
    order.drop_last                = c->data.drop_last;
    order.corrupt_fatal            = c->data.corrupt == CR_CORRUPT_FATAL;
    order.rank                     = cr_comm_rank(s->comm);
    order.ranks                    = cr_comm_size(s->comm);
    order.epoch                    = options->epoch;
    struct cr_bn_statistics a      = {0};
    struct cr_loader       *loader = NULL;
    const int64_t           batches = CR_MIN(options->batches, cr_loader_batches(train, &order));
    cr_status               status;
    CR_ASSERT(c->model.bn_momentum > 0);
    if (batches < 1)
        return cr_config_fail(c, "train.batch", "%lld images, but the training set has %lld: lower it",
                              (long long)s->state.batch, (long long)train->count);
    CR_TRY(cr_loader_open(train, &order, &loader));
    CR_TRY_OUT(cr_session_bn_begin(s, options->averages, &a));
    CR_TRY_OUT(run_batches(s, options, &a, s->train_exec[size * s->parts], loader, batches));
    CR_TRY_OUT(cr_session_bn_end(s, &a));
    if (used) *used = a.batches;
out:
    cr_loader_close(loader);
    cr_session_bn_free(&a);
    return status;
}
