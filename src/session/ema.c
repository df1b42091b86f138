/* session/ema.c: initialises, exchanges and loads the moving averages of a session. See session/state.h. */
#include "session/state.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const enum cr_param_buffer pairs[2][2] = {{CR_BUFFER_VALUE, CR_BUFFER_EMA},
                                                 {CR_BUFFER_RUNNING, CR_BUFFER_EMA_RUNNING}};

/* Copies a buffer to the host. This happens once in an evaluation, so the copies do not matter. */
static cr_status buffer_get(struct cr_session *s, enum cr_param_buffer buffer, void **host) {
    const size_t bytes = cr_param_store_buffer_bytes(&s->model.store, buffer);
    const char  *from =
        (char *)s->memory.region[CR_REGION_STORE] + cr_param_store_buffer_offset(&s->model.store, buffer);
    *host = cr_alloc(CR_MAX(bytes, 1), 1);
    if (!*host) return CR_NO_MEMORY(bytes);
    return s->device->backend->get(s->device, *host, from, bytes);
}

static cr_status buffer_put(struct cr_session *s, enum cr_param_buffer buffer, const void *host) {
    char *to = (char *)s->memory.region[CR_REGION_STORE] + cr_param_store_buffer_offset(&s->model.store, buffer);
    return s->device->backend->put(s->device, to, host, cr_param_store_buffer_bytes(&s->model.store, buffer));
}

/* Copies pair[0] to pair[1]; with `exchange` exchanges the two buffers. */
static cr_status copy_pair(struct cr_session *s, const enum cr_param_buffer pair[2], bool exchange) {
    void     *current = NULL, *average = NULL;
    cr_status status;
    CR_TRY_OUT(buffer_get(s, pair[0], &current));
    if (exchange) CR_TRY_OUT(buffer_get(s, pair[1], &average));
    CR_TRY_OUT(buffer_put(s, pair[1], current));
    if (exchange) CR_TRY_OUT(buffer_put(s, pair[0], average));
out:
    cr_free(current);
    cr_free(average);
    return status;
}

static cr_status copy_all(struct cr_session *s, bool exchange) {
    for (int i = 0; i < 2 && s->model.store.has_ema; i++) CR_TRY(copy_pair(s, pairs[i], exchange));
    return CR_OK;
}

cr_status cr_state_ema_start(struct cr_session *s) {
    return copy_all(s, false);
}

cr_status cr_state_ema_exchange(struct cr_session *s) {
    return copy_all(s, true);
}

static cr_status load_file(struct cr_session *s, const char *path) {
    const struct cr_ckpt_io io     = cr_state_io(s);
    struct cr_arena         arena  = {0};
    struct cr_state_sparse  sparse = {0};
    struct cr_st_file      *file   = NULL;
    struct cr_state_list    list;
    bool                    parts;
    cr_status               status;
    CR_TRY_OUT(cr_state_ema_list(&s->model.store, &arena, &list));
    CR_TRY_OUT(cr_st_open(path, &file));
    CR_TRY_OUT(cr_ckpt_is_sparse(file, path, &parts));
    CR_TRY_OUT(cr_state_sparse_open(&s->model.store, file, path, false, &sparse));
    CR_TRY_OUT(cr_state_sparse_take(&sparse, file, path, &list));
    CR_TRY_OUT(cr_ckpt_read(file, path, list.tensor, list.count, parts ? CR_CKPT_SPARSE_PARTS : NULL, NULL, &io));
    CR_TRY_OUT(cr_state_sparse_put(&sparse, file, &io));
out:
    cr_state_sparse_close(&sparse);
    cr_st_close(file);
    cr_arena_free(&arena);
    return status;
}

cr_status cr_state_ema_load(struct cr_session *s, const char *folder) {
    char        path[CR_PATH_MAX];
    struct stat st;
    if (!s->model.store.has_ema) return CR_OK;
    CR_TRY(cr_path_join(path, folder, "ema.safetensors"));
    if (stat(path, &st) == 0) return load_file(s, path);
    cr_log(CR_LOG_INFO, "resume: %s has no moving averages (ema.safetensors): they start from the current weights",
           folder);
    return cr_state_ema_start(s);
}

/* ---- stochastic weight averaging ---- */

cr_status cr_state_swa_average(struct cr_session *s, int64_t before) {
    const int64_t elems = s->model.store.value_elems;
    const float   count = (float)(before + 1);
    void         *value = NULL, *average = NULL;
    cr_status     status;
    CR_TRY_OUT(buffer_get(s, CR_BUFFER_VALUE, &value));
    CR_TRY_OUT(buffer_get(s, CR_BUFFER_EMA, &average));
    const float *w = value;
    float       *a = average;
    for (int64_t i = 0; i < elems; i++) a[i] = before ? a[i] + (w[i] - a[i]) / count : w[i];
    CR_TRY_OUT(buffer_put(s, CR_BUFFER_EMA, average));
out:
    cr_free(value);
    cr_free(average);
    return status;
}

static const enum cr_param_buffer changed[] = {CR_BUFFER_VALUE, CR_BUFFER_MOMENTUM, CR_BUFFER_RUNNING, CR_BUFFER_STATE,
                                               CR_BUFFER_SECOND};

static cr_status clear_running(struct cr_session *s, struct cr_swa *swa) {
    memset(swa->batch, 0, (size_t)s->model.store.running_elems * sizeof *swa->batch);
    return buffer_put(s, CR_BUFFER_RUNNING, swa->batch);
}

cr_status cr_state_swa_begin(struct cr_session *s, struct cr_swa *swa) {
    const size_t running = (size_t)CR_MAX(s->model.store.running_elems, 1);
    void        *average = NULL;
    cr_status    status;
    *swa       = (struct cr_swa){0};
    swa->batch = cr_alloc(running, sizeof *swa->batch);
    swa->sum   = cr_alloc(running, sizeof *swa->sum);
    if (!swa->batch || !swa->sum) return CR_NO_MEMORY(running * sizeof *swa->sum);
    CR_TRY(s->device->backend->sync(s->device));
    for (size_t i = 0; i < CR_COUNT(changed); i++)
        if (cr_param_store_buffer_bytes(&s->model.store, changed[i]))
            CR_TRY(buffer_get(s, changed[i], &swa->saved[changed[i]]));
    CR_TRY_OUT(buffer_get(s, CR_BUFFER_EMA, &average));
    CR_TRY_OUT(buffer_put(s, CR_BUFFER_VALUE, average));
    CR_TRY_OUT(clear_running(s, swa));
    for (int i = 0; i < s->trains; i++) cr_exec_refresh(s->train_exec[i]);
out:
    cr_free(average);
    return status;
}

/* The running statistics were 0 before the run, so they are bn_momentum times those of the batch. */
cr_status cr_state_swa_add(struct cr_session *s, struct cr_swa *swa) {
    const int64_t elems = s->model.store.running_elems;
    CR_TRY(s->device->backend->sync(s->device));
    const char *from =
        (char *)s->memory.region[CR_REGION_STORE] + cr_param_store_buffer_offset(&s->model.store, CR_BUFFER_RUNNING);
    CR_TRY(s->device->backend->get(s->device, swa->batch, from, (size_t)elems * sizeof *swa->batch));
    for (int64_t i = 0; i < elems; i++) swa->sum[i] += (double)swa->batch[i];
    swa->batches++;
    return clear_running(s, swa);
}

/* Adds the sums of all ranks, in rank order. */
static cr_status sum_over_ranks(struct cr_session *s, struct cr_swa *swa) {
    const size_t elems = (size_t)s->model.store.running_elems;
    const int    ranks = cr_comm_size(s->comm);
    double      *all;
    if (ranks < 2 || !elems) return CR_OK;
    CR_ALLOC(all, elems * (size_t)ranks);
    const cr_status status = cr_comm_all_gather(s->comm, swa->sum, elems * sizeof *all, all);
    for (size_t i = 0; status == CR_OK && i < elems; i++) {
        swa->sum[i] = 0;
        for (int r = 0; r < ranks; r++) swa->sum[i] += all[(size_t)r * elems + i];
    }
    swa->batches *= ranks;
    cr_free(all);
    return status;
}

/* Frozen batch norms keep their statistics. */
static void set_means(const struct cr_session *s, const struct cr_swa *swa, float *running) {
    const struct cr_param_store *store = &s->model.store;
    const double                 scale = 1 / (s->config->model.bn_momentum * (double)swa->batches);
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        for (int64_t i = 0; i < q->elems && cr_param_is_running(q->role) && !q->frozen; i++)
            running[q->offset + i] = (float)(scale * swa->sum[q->offset + i]);
    }
}

cr_status cr_state_swa_end(struct cr_session *s, struct cr_swa *swa) {
    CR_TRY(sum_over_ranks(s, swa));
    for (size_t i = 0; i < CR_COUNT(changed); i++)
        if (swa->saved[changed[i]]) CR_TRY(buffer_put(s, changed[i], swa->saved[changed[i]]));
    for (int i = 0; i < s->trains; i++) cr_exec_refresh(s->train_exec[i]);
    if (!swa->saved[CR_BUFFER_RUNNING]) return CR_OK;
    set_means(s, swa, swa->saved[CR_BUFFER_RUNNING]);
    return buffer_put(s, CR_BUFFER_EMA_RUNNING, swa->saved[CR_BUFFER_RUNNING]);
}

void cr_state_swa_free(struct cr_swa *swa) {
    for (int i = 0; i < CR_BUFFERS; i++) cr_free(swa->saved[i]);
    cr_free(swa->batch);
    cr_free(swa->sum);
    *swa = (struct cr_swa){0};
}
