/* session/running_stats.c: running statistics of several ranks without SyncBN. Each rank trains with its own
 * running statistics. An evaluation and the weights of a checkpoint use the mean over the ranks; the state of a
 * checkpoint contains the running statistics of every rank.
 * See session/checkpoint_tensors.h. */
#include "session/checkpoint_tensors.h"

#include <string.h>

static const struct {
    enum cr_param_buffer buffer;
    const char          *name; /* in state.safetensors, shape [ranks, elements of the buffer] */
} buffers[CR_RUNNING_BUFFERS] = {{CR_BUFFER_RUNNING, "running" CR_STATE_OF_RANKS},
                                 {CR_BUFFER_EMA_RUNNING, "ema_running" CR_STATE_OF_RANKS}};

static bool differ_by_rank(const struct cr_session *s) {
    return cr_comm_size(s->comm) > 1 && !s->config->model.sync_bn;
}

static size_t buffer_bytes(const struct cr_session *s, int i) {
    return cr_param_store_buffer_bytes(&s->model.store, buffers[i].buffer);
}

void cr_state_running_free(struct cr_session *s) {
    for (int i = 0; i < CR_RUNNING_BUFFERS; i++) {
        cr_free(s->running_of_ranks[i]);
        s->running_of_ranks[i] = NULL;
    }
}

/* ---- mean over ranks ---- */

/* Adds in rank order, so that all ranks compute the same mean. */
static cr_status put_mean(struct cr_session *s, int i) {
    const size_t elems = buffer_bytes(s, i) / sizeof(float);
    const int    ranks = cr_comm_size(s->comm);
    const float *all   = s->running_of_ranks[i];
    float       *mean;
    CR_ALLOC(mean, elems);
    for (size_t k = 0; k < elems; k++) {
        double sum = 0;
        for (int r = 0; r < ranks; r++) sum += (double)all[(size_t)r * elems + k];
        mean[k] = (float)(sum / ranks);
    }
    cr_status status = cr_state_buffer_put(s, buffers[i].buffer, mean);
    cr_free(mean);
    return status;
}

static cr_status gather(struct cr_session *s, int i) {
    const size_t bytes = buffer_bytes(s, i);
    float       *of_this_rank;
    CR_ALLOC(s->running_of_ranks[i], (size_t)cr_comm_size(s->comm) * bytes / sizeof(float));
    CR_TRY(cr_state_buffer_copy(s, buffers[i].buffer, &of_this_rank));
    const cr_status status = cr_comm_all_gather(s->comm, of_this_rank, bytes, s->running_of_ranks[i]);
    cr_free(of_this_rank);
    return status;
}

cr_status cr_state_running_mean(struct cr_session *s) {
    cr_state_running_free(s);
    for (int i = 0; i < CR_RUNNING_BUFFERS && differ_by_rank(s); i++)
        if (buffer_bytes(s, i)) {
            CR_TRY(gather(s, i));
            CR_TRY(put_mean(s, i));
        }
    return CR_OK;
}

cr_status cr_state_running_own(struct cr_session *s) {
    for (int i = 0; i < CR_RUNNING_BUFFERS; i++) {
        const size_t bytes = buffer_bytes(s, i);
        const char  *all   = (const char *)s->running_of_ranks[i];
        if (all) CR_TRY(cr_state_buffer_put(s, buffers[i].buffer, all + (size_t)cr_comm_rank(s->comm) * bytes));
    }
    cr_state_running_free(s);
    return CR_OK;
}

/* ---- in files ---- */

void cr_state_running_list(const struct cr_session *s, struct cr_state_list *list) {
    for (int i = 0; i < CR_RUNNING_BUFFERS; i++)
        if (s->running_of_ranks[i])
            list->tensor[list->count++] =
                (struct cr_ckpt_tensor){.name    = buffers[i].name,
                                        .dtype   = CR_F32,
                                        .dims    = 2,
                                        .address = {CR_STATE_OF_ALL, (uint64_t)i},
                                        .dim = {cr_comm_size(s->comm), (int64_t)(buffer_bytes(s, i) / sizeof(float))}};
}

void cr_state_running_get(const struct cr_session *s, uint64_t index, uint64_t offset, void *host, size_t bytes) {
    memcpy(host, (const char *)s->running_of_ranks[index] + offset, bytes);
}

/* Loads this rank's statistics: slice `rank` of the tensor [ranks, elements]. */
static cr_status read_own(struct cr_session *s, struct cr_st_file *file, const char *path, int i) {
    const size_t              bytes = buffer_bytes(s, i);
    const struct cr_st_entry *e     = cr_st_find(file, buffers[i].name);
    char                     *own;
    if (!e || !bytes) return CR_OK; /* written by an older version, or before [ema] was set: keep the mean */
    if (e->dtype != CR_F32 || e->dims != 2 || e->dim[0] != cr_comm_size(s->comm) ||
        e->dim[1] != (int64_t)(bytes / sizeof(float)))
        return CR_FAIL(CR_ERR_FORMAT, "%s: \"%s\" does not fit the network and its %d ranks", path, buffers[i].name,
                       cr_comm_size(s->comm));
    CR_ALLOC(own, bytes);
    cr_status status = cr_st_read(file, e, (uint64_t)cr_comm_rank(s->comm) * bytes, own, bytes);
    if (status == CR_OK) status = cr_state_buffer_put(s, buffers[i].buffer, own);
    cr_free(own);
    return status;
}

cr_status cr_state_running_load(struct cr_session *s, const char *folder, int64_t ranks) {
    char               path[CR_PATH_MAX];
    struct cr_st_file *file;
    cr_status          status = CR_OK;
    if (!differ_by_rank(s) || ranks != cr_comm_size(s->comm)) return CR_OK;
    CR_TRY(cr_path_join(path, folder, "state.safetensors"));
    CR_TRY(cr_st_open(path, &file));
    for (int i = 0; i < CR_RUNNING_BUFFERS && status == CR_OK; i++) status = read_own(s, file, path, i);
    cr_st_close(file);
    return status;
}
