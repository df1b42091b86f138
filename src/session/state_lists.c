/* session/state_lists.c: the tensors of a checkpoint, and copies between the parameter store and files. See
 * session/state.h. */
#include "session/state.h"

#include <string.h>

/* ---- lists ---- */

static struct cr_ckpt_tensor param_tensor(const struct cr_param_store *store, const struct cr_param *q,
                                          enum cr_param_buffer buffer, const char *name) {
    struct cr_ckpt_tensor t = {.name = name, .dtype = CR_F32};
    t.address               = (struct cr_ckpt_address){CR_STATE_IN_STORE, cr_param_store_buffer_offset(store, buffer) +
                                                                              (uint64_t)q->offset * sizeof(float)};
    switch (q->role) {
    case CR_ROLE_CONV:
        t.dims         = 4;
        t.dim[0]       = q->dim[0];
        t.dim[1]       = q->dim[3];
        t.dim[2]       = q->dim[1];
        t.dim[3]       = q->dim[2];
        t.permute_krsc = true;
        break;
    case CR_ROLE_CHANNEL_CONV:
        t.dims   = 3;
        t.dim[0] = t.dim[1] = 1;
        t.dim[2]            = q->dim[3];
        break;
    case CR_ROLE_DENSE_WEIGHT:
        t.dims   = 2;
        t.dim[0] = q->dim[0];
        t.dim[1] = q->dim[3];
        break;
    default: t.dims = 1; t.dim[0] = q->dim[3];
    }
    return t;
}

/* "layer1.0.bn1.running_var" -> "layer1.0.bn1.num_batches_tracked" */
static const char *tracked_name(const struct cr_param *var, struct cr_arena *arena) {
    int stem = (int)(strlen(var->name) - strlen("running_var"));
    return cr_arena_printf(arena, "%.*snum_batches_tracked", stem, var->name);
}

static cr_status model_list(const struct cr_param_store *store, enum cr_param_buffer values,
                            enum cr_param_buffer running, struct cr_arena *arena, struct cr_state_list *out) {
    size_t capacity = 2 * (size_t)store->params;
    *out            = (struct cr_state_list){.tensor = cr_arena_alloc(arena, capacity * sizeof *out->tensor)};
    if (!out->tensor) return CR_NO_MEMORY(capacity * sizeof *out->tensor);
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q      = &store->param[i];
        enum cr_param_buffer   buffer = cr_param_is_running(q->role) ? running : values;
        out->tensor[out->count++]     = param_tensor(store, q, buffer, q->name);
        if (q->role != CR_ROLE_VAR) continue;
        const char *name = tracked_name(q, arena);
        if (!name) return CR_NO_MEMORY(64);
        out->tensor[out->count++] =
            (struct cr_ckpt_tensor){.name = name, .dtype = CR_I64, .address = {CR_STATE_IN_COUNTER, 0}};
    }
    return CR_OK;
}

cr_status cr_state_model_list(const struct cr_param_store *store, struct cr_arena *arena, struct cr_state_list *out) {
    return model_list(store, CR_BUFFER_VALUE, CR_BUFFER_RUNNING, arena, out);
}

cr_status cr_state_ema_list(const struct cr_param_store *store, struct cr_arena *arena, struct cr_state_list *out) {
    *out = (struct cr_state_list){0};
    return store->has_ema ? model_list(store, CR_BUFFER_EMA, CR_BUFFER_EMA_RUNNING, arena, out) : CR_OK;
}

/* Adds the tensor "<buffer>.NAME" of every trainable parameter. */
static cr_status add_buffer(const struct cr_param_store *store, enum cr_param_buffer buffer, struct cr_arena *arena,
                            struct cr_state_list *out) {
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (cr_param_is_running(q->role)) continue;
        const char *name = cr_arena_printf(arena, "%s.%s", cr_param_buffer_name(buffer), q->name);
        if (!name) return CR_NO_MEMORY(64);
        out->tensor[out->count++] = param_tensor(store, q, buffer, name);
    }
    return CR_OK;
}

cr_status cr_state_optim_list(const struct cr_param_store *store, struct cr_arena *arena, struct cr_state_list *out) {
    size_t capacity = 2 * (size_t)store->params + 1 + CR_RUNNING_BUFFERS;
    *out            = (struct cr_state_list){.tensor = cr_arena_alloc(arena, capacity * sizeof *out->tensor)};
    if (!out->tensor) return CR_NO_MEMORY(capacity * sizeof *out->tensor);
    if (store->has_momentum) CR_TRY(add_buffer(store, CR_BUFFER_MOMENTUM, arena, out));
    if (store->has_second) CR_TRY(add_buffer(store, CR_BUFFER_SECOND, arena, out));
    out->tensor[out->count++] =
        (struct cr_ckpt_tensor){.name    = "device_state",
                                .dtype   = CR_F64,
                                .dims    = 1,
                                .dim     = {CR_STATE_COUNT},
                                .address = {CR_STATE_IN_STORE, cr_param_store_buffer_offset(store, CR_BUFFER_STATE)}};
    return CR_OK;
}

/* ---- copies between store and files ---- */

static unsigned char *store_bytes(struct cr_session *s, uint64_t offset) {
    return (unsigned char *)s->memory.region[CR_REGION_STORE] + offset;
}

static cr_status get_batches(struct cr_session *s, int64_t *out) {
    double   state[CR_STATE_COUNT];
    uint64_t at = cr_param_store_buffer_offset(&s->model.store, CR_BUFFER_STATE);
    CR_TRY(s->device->backend->get(s->device, state, store_bytes(s, at), sizeof state));
    *out = (int64_t)state[CR_STATE_BATCHES];
    return CR_OK;
}

static cr_status store_get(void *self, struct cr_ckpt_address from, uint64_t offset, void *host, size_t bytes) {
    struct cr_session *s = self;
    int64_t            batches;
    switch ((enum cr_state_place)from.kind) {
    case CR_STATE_OF_ALL: cr_state_running_get(s, from.value, offset, host, bytes); return CR_OK;
    case CR_STATE_IN_COUNTER:
        CR_TRY(get_batches(s, &batches));
        CR_ASSERT(offset + bytes <= sizeof batches);
        memcpy(host, (unsigned char *)&batches + offset, bytes);
        return CR_OK;
    default: break;
    }
    CR_ASSERT(from.kind == CR_STATE_IN_STORE);
    return s->device->backend->get(s->device, host, store_bytes(s, from.value + offset), bytes);
}

/* num_batches_tracked of a file is ignored: the counter counts the batches of this run. A resumed run restores it from
 * device_state. */
static cr_status store_put(void *self, struct cr_ckpt_address to, uint64_t offset, const void *host, size_t bytes) {
    struct cr_session *s = self;
    if (to.kind == CR_STATE_IN_COUNTER || to.kind == CR_STATE_NOWHERE) return CR_OK;
    CR_ASSERT(to.kind == CR_STATE_IN_STORE);
    if (!s->device->backend->async)
        return s->device->backend->put(s->device, store_bytes(s, to.value + offset), host, bytes);
    cr_status status;
    /* The threads of cr_ckpt_read read, transpose and check tensors side by side. Only the copies take turns. */
#ifdef _OPENMP
#pragma omp critical(cr_state_put)
#endif
    status = s->device->backend->put(s->device, store_bytes(s, to.value + offset), host, bytes);
    return status;
}

struct cr_ckpt_io cr_state_io(struct cr_session *s) {
    return (struct cr_ckpt_io){
        .self = s, .get = store_get, .put = store_put, .parallel_put = true, .host_get = !s->device->backend->async};
}
