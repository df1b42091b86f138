/* graph/param_store.c: the table of parameters, the layout of its buffers, and weight initialisation (He et al.). */
#include "config/config.h"
#include "core/rng.h"
#include "graph/graph.h"

#include <math.h>
#include <string.h>

enum { ALIGN_ELEMS = 64, ALIGN_BYTES = 256 };

const char *cr_param_buffer_name(enum cr_param_buffer buffer) {
    static const char *const names[CR_BUFFERS] = {"value", "grad",        "momentum", "running",
                                                  "state", "half",        "mask",     "second",
                                                  "ema",   "ema_running", "teacher",  "teacher_half"};
    return names[buffer];
}

bool cr_param_is_running(enum cr_param_role role) {
    return role == CR_ROLE_MEAN || role == CR_ROLE_VAR || role == CR_ROLE_SCALE;
}

static void set_fans(const struct cr_param_store *store, struct cr_param *q) {
    const int64_t *d = q->dim;
    q->fan_in        = d[1] * d[2] * d[3];
    q->fan_out       = d[0] * d[1] * d[2];
    if (q->role == CR_ROLE_DENSE_BIAS &&
        store->params) { /* the bias follows its weight in the table and has its fans */
        q->fan_in  = store->param[store->params - 1].fan_in;
        q->fan_out = store->param[store->params - 1].fan_out;
    }
}

int cr_param_store_add(struct cr_param_store *store, const char *name, enum cr_param_role role, const int64_t dim[4],
                       int layer) {
    if (store->failed) return 0;
    if (store->params == store->capacity) {
        int              new_capacity = CR_MAX(64, store->capacity * 2);
        struct cr_param *grown        = cr_realloc(store->param, (size_t)new_capacity, sizeof *grown);
        if (!grown) {
            store->failed = true;
            return 0;
        }
        store->param    = grown;
        store->capacity = new_capacity;
    }
    struct cr_param *q = &store->param[store->params];
    *q = (struct cr_param){.name = cr_arena_printf(&store->arena, "%s", name), .role = role, .layer = layer};
    if (!q->name) {
        q->name       = "";
        store->failed = true;
    }
    memcpy(q->dim, dim, sizeof q->dim);
    q->elems    = dim[0] * dim[1] * dim[2] * dim[3];
    q->decay    = role == CR_ROLE_CONV || role == CR_ROLE_CHANNEL_CONV || role == CR_ROLE_DENSE_WEIGHT;
    q->lr_scale = 1;
    set_fans(store, q);
    int64_t *end = cr_param_is_running(role) ? &store->running_elems : &store->value_elems;
    q->offset    = *end;
    *end += (q->elems + ALIGN_ELEMS - 1) / ALIGN_ELEMS * ALIGN_ELEMS;
    return store->params++;
}

int cr_param_store_find(const struct cr_param_store *store, const char *name) {
    for (int i = 0; i < store->params; i++)
        if (strcmp(store->param[i].name, name) == 0) return i;
    return CR_NONE;
}

int cr_param_store_first_filter(const struct cr_param_store *store) {
    for (int i = 0; i < store->params; i++)
        if (store->param[i].role == CR_ROLE_CONV) return i;
    return CR_NONE;
}

enum cr_dtype cr_param_store_buffer_dtype(const struct cr_param_store *store, enum cr_param_buffer buffer) {
    switch (buffer) {
    case CR_BUFFER_STATE: return CR_F64;
    case CR_BUFFER_TEACHER_HALF:
    case CR_BUFFER_HALF: return store->half;
    case CR_BUFFER_MASK: return CR_U8;
    default: return store->real;
    }
}

size_t cr_param_store_buffer_bytes(const struct cr_param_store *store, enum cr_param_buffer buffer) {
    size_t size = cr_dtype_bytes(cr_param_store_buffer_dtype(store, buffer));
    switch (buffer) {
    case CR_BUFFER_VALUE:
    case CR_BUFFER_GRAD: return (size_t)store->value_elems * size;
    case CR_BUFFER_MOMENTUM: return store->has_momentum ? (size_t)store->value_elems * size : 0;
    case CR_BUFFER_RUNNING: return (size_t)store->running_elems * size;
    case CR_BUFFER_STATE: return CR_STATE_COUNT * sizeof(double);
    case CR_BUFFER_HALF: return store->half == CR_F32 ? 0 : (size_t)store->value_elems * size;
    case CR_BUFFER_MASK: return store->has_mask ? (size_t)store->value_elems / 8 : 0;
    case CR_BUFFER_SECOND: return store->has_second ? (size_t)store->value_elems * size : 0;
    case CR_BUFFER_EMA: return store->has_ema ? (size_t)store->value_elems * size : 0;
    case CR_BUFFER_EMA_RUNNING: return store->has_ema ? (size_t)store->running_elems * size : 0;
    case CR_BUFFER_TEACHER: return (size_t)store->teacher_elems * size;
    case CR_BUFFER_TEACHER_HALF: return store->half == CR_F32 ? 0 : (size_t)store->teacher_elems * size;
    case CR_BUFFERS: break;
    }
    return 0;
}

size_t cr_param_store_buffer_offset(const struct cr_param_store *store, enum cr_param_buffer buffer) {
    size_t offset = 0;
    for (int i = 0; i < (int)buffer; i++) {
        size_t bytes = cr_param_store_buffer_bytes(store, (enum cr_param_buffer)i);
        offset += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    }
    return offset;
}

size_t cr_param_store_offset(const struct cr_param_store *store, enum cr_param_buffer buffer, int param) {
    const size_t size = cr_dtype_bytes(cr_param_store_buffer_dtype(store, buffer));
    return cr_param_store_buffer_offset(store, buffer) + (param < 0 ? 0 : (size_t)store->param[param].offset * size);
}

size_t cr_param_store_bytes(const struct cr_param_store *store) {
    return cr_param_store_buffer_offset(store, CR_BUFFERS);
}

int64_t cr_param_store_trainable(const struct cr_param_store *store) {
    int64_t sum = 0;
    for (int i = 0; i < store->params; i++)
        if (!cr_param_is_running(store->param[i].role)) sum += store->param[i].elems;
    return sum;
}

/* ---- initial values ---- */

/* He et al. 2015: variance 2/fan preserves the variance of activations (fan-in) or gradients (fan-out) through
 * ReLUs. */
static float he_value(const struct cr_param *q, int param, int64_t oihw, const struct cr_config *c) {
    double fan = (double)(c->model.init == CR_INIT_HE_FAN_IN ? q->fan_in : q->fan_out);
    if (c->model.init_shape == CR_INIT_UNIFORM)
        return (float)sqrt(6.0 / fan) * cr_init_uniform((uint64_t)c->train.seed, (uint32_t)param, (uint64_t)oihw);
    return (float)sqrt(2.0 / fan) * cr_init_normal((uint64_t)c->train.seed, (uint32_t)param, (uint64_t)oihw);
}

float cr_param_store_initial(const struct cr_param_store *store, int param, int64_t oihw, const struct cr_config *c) {
    const struct cr_param *q = &store->param[param];
    switch (q->role) {
    case CR_ROLE_CONV: return he_value(q, param, oihw, c);
    case CR_ROLE_CHANNEL_CONV:
    case CR_ROLE_DENSE_WEIGHT:
    case CR_ROLE_DENSE_BIAS:
        return (float)(1.0 / sqrt((double)q->fan_in)) *
               cr_init_uniform((uint64_t)c->train.seed, (uint32_t)param, (uint64_t)oihw);
    case CR_ROLE_GAMMA: return q->zero ? 0.0f : 1.0f;
    case CR_ROLE_SCALE:
    case CR_ROLE_VAR: return 1.0f;
    case CR_ROLE_BETA:
    case CR_ROLE_MEAN: return 0.0f;
    }
    return 0.0f;
}

void cr_param_store_init_param(const struct cr_param_store *store, int param, const struct cr_config *config,
                               float *value, float *running) {
    const struct cr_param *q   = &store->param[param];
    float                 *dst = (cr_param_is_running(q->role) ? running : value) + q->offset;
    const int64_t          K = q->dim[0], R = q->dim[1], S = q->dim[2], C = q->dim[3];
    for (int64_t k = 0; k < K; k++)
        for (int64_t r = 0; r < R; r++)
            for (int64_t s = 0; s < S; s++)
                for (int64_t c = 0; c < C; c++)
                    *dst++ = cr_param_store_initial(store, param, ((k * C + c) * R + r) * S + s, config);
}

void cr_param_store_init_host(const struct cr_param_store *store, const struct cr_config *config, float *value,
                              float *running) {
    for (int i = 0; i < store->params; i++) cr_param_store_init_param(store, i, config, value, running);
}

void cr_param_store_free(struct cr_param_store *store) {
    cr_free(store->param);
    cr_arena_free(&store->arena);
    *store = (struct cr_param_store){0};
}
