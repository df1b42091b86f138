/* session/ema.c: EMA and SWA: initialises, averages, exchanges and loads the moving averages of a session's weights.
 * See session/checkpoint_tensors.h. */
#include "session/checkpoint_tensors.h"

#include <sys/stat.h>

static const enum cr_param_buffer pairs[2][2] = {{CR_BUFFER_VALUE, CR_BUFFER_EMA},
                                                 {CR_BUFFER_RUNNING, CR_BUFFER_EMA_RUNNING}};

/* Copies pair[0] to pair[1]; with `exchange` exchanges the two buffers. By way of the host: this happens once in an
 * evaluation, so the copies do not matter. */
static cr_status copy_pair(struct cr_session *s, const enum cr_param_buffer pair[2], bool exchange) {
    float    *current = NULL, *average = NULL;
    cr_status status;
    CR_TRY_OUT(cr_state_buffer_copy(s, pair[0], &current));
    if (exchange) CR_TRY_OUT(cr_state_buffer_copy(s, pair[1], &average));
    CR_TRY_OUT(cr_state_buffer_put(s, pair[1], current));
    if (exchange) CR_TRY_OUT(cr_state_buffer_put(s, pair[0], average));
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
    cr_status               status;
    CR_TRY_OUT(cr_state_ema_list(&s->model.store, &arena, &list));
    CR_TRY_OUT(cr_st_open(path, &file));
    CR_TRY_OUT(cr_state_sparse_open(&s->model.store, file, path, false, &sparse));
    CR_TRY_OUT(cr_state_sparse_read(&sparse, file, path, &list, "", &io));
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
    float        *w = NULL, *a = NULL; /* weights and averages */
    cr_status     status;
    CR_TRY_OUT(cr_state_buffer_copy(s, CR_BUFFER_VALUE, &w));
    CR_TRY_OUT(cr_state_buffer_copy(s, CR_BUFFER_EMA, &a));
    for (int64_t i = 0; i < elems; i++) a[i] = before ? a[i] + (w[i] - a[i]) / count : w[i];
    CR_TRY_OUT(cr_state_buffer_put(s, CR_BUFFER_EMA, a));
out:
    cr_free(w);
    cr_free(a);
    return status;
}
