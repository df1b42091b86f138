/* session/ema.c: the moving averages of a session's store: their start, their evaluation, their file. See
 * session/state.h. */
#include "session/state.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const enum cr_param_buffer pairs[2][2] = {{CR_BUFFER_VALUE, CR_BUFFER_EMA},
                                                 {CR_BUFFER_RUNNING, CR_BUFFER_EMA_RUNNING}};

/* A plane on the host. Rare (once an evaluation), so copies through the host do not matter. */
static cr_status plane_get(struct cr_session *s, enum cr_param_buffer plane, void **host) {
    const size_t bytes = cr_param_store_buffer_bytes(&s->model.store, plane);
    const char *from = (char *)s->memory.region[CR_REGION_STORE] + cr_param_store_buffer_offset(&s->model.store, plane);
    *host            = cr_alloc(CR_MAX(bytes, 1), 1);
    if (!*host) return CR_NO_MEMORY(bytes);
    return s->device->backend->get(s->device, *host, from, bytes);
}

static cr_status plane_put(struct cr_session *s, enum cr_param_buffer plane, const void *host) {
    char *to = (char *)s->memory.region[CR_REGION_STORE] + cr_param_store_buffer_offset(&s->model.store, plane);
    return s->device->backend->put(s->device, to, host, cr_param_store_buffer_bytes(&s->model.store, plane));
}

/* What is averaged goes to its averages; with `both` ways. */
static cr_status move_pair(struct cr_session *s, const enum cr_param_buffer pair[2], bool both) {
    void     *now = NULL, *mean = NULL;
    cr_status status;
    CR_TRY_OUT(plane_get(s, pair[0], &now));
    if (both) CR_TRY_OUT(plane_get(s, pair[1], &mean));
    CR_TRY_OUT(plane_put(s, pair[1], now));
    if (both) CR_TRY_OUT(plane_put(s, pair[0], mean));
out:
    cr_free(now);
    cr_free(mean);
    return status;
}

static cr_status move_all(struct cr_session *s, bool both) {
    for (int i = 0; i < 2 && s->model.store.has_ema; i++) CR_TRY(move_pair(s, pairs[i], both));
    return CR_OK;
}

cr_status cr_state_ema_start(struct cr_session *s) {
    return move_all(s, false);
}

cr_status cr_state_ema_exchange(struct cr_session *s) {
    return move_all(s, true);
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
    cr_log(CR_LOG_INFO, "resume: %s has no averages (ema.safetensors): they begin as the weights are now", folder);
    return cr_state_ema_start(s);
}
