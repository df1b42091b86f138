/* session/checkpoint_lists.c: lists the tensors of a checkpoint, and copies them between the parameter store and files
 * or the host. See session/checkpoint_tensors.h. */
#include "session/checkpoint_tensors.h"

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
    *out = (struct cr_state_list){0};
    CR_ARENA_ALLOC(arena, out->tensor, 2 * (size_t)store->params);
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
    *out = (struct cr_state_list){0};
    CR_ARENA_ALLOC(arena, out->tensor, 2 * (size_t)store->params + 1 + CR_RUNNING_BUFFERS);
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
    double state[CR_STATE_COUNT];
    CR_TRY(cr_state_buffer_get(s, CR_BUFFER_STATE, state));
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
#pragma omp critical(cr_state_put)
    status = s->device->backend->put(s->device, store_bytes(s, to.value + offset), host, bytes);
    return status;
}

struct cr_ckpt_io cr_state_io(struct cr_session *s) {
    return (struct cr_ckpt_io){
        .self = s, .get = store_get, .put = store_put, .parallel_put = true, .host_get = !s->device->backend->async};
}

/* ---- copies of whole buffers ---- */

char *cr_state_buffer_at(const struct cr_session *s, enum cr_param_buffer buffer) {
    return (char *)s->memory.region[CR_REGION_STORE] + cr_param_store_buffer_offset(&s->model.store, buffer);
}

cr_status cr_state_buffer_get(const struct cr_session *s, enum cr_param_buffer buffer, void *to) {
    const size_t bytes = cr_param_store_buffer_bytes(&s->model.store, buffer);
    return s->device->backend->get(s->device, to, cr_state_buffer_at(s, buffer), bytes);
}

cr_status cr_state_buffer_put(const struct cr_session *s, enum cr_param_buffer buffer, const void *from) {
    const size_t bytes = cr_param_store_buffer_bytes(&s->model.store, buffer);
    return s->device->backend->put(s->device, cr_state_buffer_at(s, buffer), from, bytes);
}

cr_status cr_state_buffer_copy(const struct cr_session *s, enum cr_param_buffer buffer, float **out) {
    const size_t bytes = cr_param_store_buffer_bytes(&s->model.store, buffer);
    float       *copy  = cr_alloc(CR_MAX(bytes, 1), 1);
    CR_ASSERT(cr_param_store_buffer_dtype(&s->model.store, buffer) == CR_F32);
    if (!copy) return CR_FAIL(CR_ERR_MEMORY, "out of memory: copy of the weights, %zu bytes", bytes);
    cr_status status = cr_state_buffer_get(s, buffer, copy);
    if (status == CR_OK)
        *out = copy;
    else
        cr_free(copy);
    return status;
}

/* ---- the buffers of a store with masks ---- */

enum { FLOAT_BUFFERS = 4 };
static const enum cr_param_buffer float_buffers[FLOAT_BUFFERS] = {CR_BUFFER_VALUE, CR_BUFFER_MOMENTUM, CR_BUFFER_SECOND,
                                                                  CR_BUFFER_EMA};

cr_status cr_state_buffers_get(struct cr_session *s, struct cr_state_buffers *b) {
    const struct cr_param_store *store               = &s->model.store;
    float                      **host[FLOAT_BUFFERS] = {&b->value, &b->momentum, &b->second, &b->ema};
    cr_status                    status;
    CR_ASSERT(store->has_mask && store->has_momentum && store->real == CR_F32);
    *b = (struct cr_state_buffers){.mask = cr_alloc((size_t)store->value_elems / 8, 1)};
    if (!b->mask)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: copy of the mask, %zu bytes", (size_t)store->value_elems / 8);
    for (int i = 0; i < FLOAT_BUFFERS; i++)
        if (cr_param_store_buffer_bytes(store, float_buffers[i]))
            CR_TRY_OUT(cr_state_buffer_copy(s, float_buffers[i], host[i]));
    CR_TRY_OUT(cr_state_buffer_get(s, CR_BUFFER_MASK, b->mask));
    return CR_OK;
out:
    cr_state_buffers_free(b);
    return status;
}

cr_status cr_state_buffers_put(struct cr_session *s, const struct cr_state_buffers *b) {
    const float *const host[FLOAT_BUFFERS] = {b->value, b->momentum, b->second, b->ema};
    for (int i = 0; i < FLOAT_BUFFERS; i++)
        if (host[i]) CR_TRY(cr_state_buffer_put(s, float_buffers[i], host[i]));
    return cr_state_buffer_put(s, CR_BUFFER_MASK, b->mask);
}

void cr_state_buffers_free(struct cr_state_buffers *b) {
    cr_free(b->value);
    cr_free(b->momentum);
    cr_free(b->second);
    cr_free(b->ema);
    cr_free(b->mask);
    *b = (struct cr_state_buffers){0};
}
