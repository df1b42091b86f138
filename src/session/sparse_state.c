/* session/sparse_state.c: encodes and decodes the tensors of a pruned network in checkpoints (sparse tensors). See
 * session/checkpoint_tensors.h and the end of checkpoint/checkpoint.h. */
#include "pruning/pruning.h"
#include "session/checkpoint_tensors.h"

#include <stdio.h>
#include <string.h>

static const char *const prefixes[] = {"momentum.", "second."};

/* ---- elements ---- */

/* Converts an element index of a parameter from the order of the file (O,I,H,W) to that of the parameter store
 * (K,R,S,C). */
static int64_t store_index(const struct cr_param *q, int64_t i) {
    const int64_t window = q->dim[1] * q->dim[2], C = q->dim[3];
    if (q->role != CR_ROLE_CONV || window == 1) return i;
    return (i / (C * window) * window + i % window) * C + i / window % C;
}

/* The parameter of a listed tensor "momentum.NAME", "second.NAME" or NAME; CR_NONE when there is none. */
static int param_of(const struct cr_param_store *store, const char *name) {
    for (size_t i = 0; i < CR_COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return cr_param_store_find(store, name + strlen(prefixes[i]));
    return cr_param_store_find(store, name);
}

static cr_status state_open(const struct cr_param_store *store, struct cr_state_sparse *s) {
    const size_t bytes = (size_t)store->value_elems / 8;
    *s                 = (struct cr_state_sparse){.store = store};
    CR_ALLOC(s->mask, bytes);
    CR_ALLOC(s->sparse, (size_t)store->params);
    memset(s->mask, 0xff, bytes);
    return CR_OK;
}

void cr_state_sparse_close(struct cr_state_sparse *s) {
    for (int i = 0; i < s->parts; i++) cr_free(s->part[i].data);
    cr_free(s->part);
    cr_free(s->mask);
    cr_free(s->sparse);
    cr_arena_free(&s->arena);
    *s = (struct cr_state_sparse){0};
}

static size_t chunk_bytes(uint64_t left) {
    return (size_t)CR_MIN(left, (uint64_t)CR_CKPT_CHUNK_BYTES);
}

/* ---- saving ---- */

static cr_status sparse_get(void *self, struct cr_ckpt_address from, uint64_t offset, void *host, size_t bytes) {
    const struct cr_state_sparse *s = self;
    if (from.kind != CR_STATE_IN_PART) return s->below.get(s->below.self, from, offset, host, bytes);
    const struct cr_state_part *part = &s->part[from.value];
    CR_ASSERT(offset + bytes <= part->bytes);
    memcpy(host, (const unsigned char *)part->data + offset, bytes);
    return CR_OK;
}

/* Adds the part NAME + `suffix` to the list; the caller fills its memory *data. */
static cr_status add_part(struct cr_state_sparse *s, struct cr_state_list *list, const char *name, const char *suffix,
                          enum cr_dtype dtype, int64_t count, void **data) {
    struct cr_state_part *part = &s->part[s->parts];
    part->bytes                = (size_t)count * cr_dtype_bytes(dtype);
    part->data                 = cr_alloc(CR_MAX(part->bytes, 1), 1);
    if (!part->data) return CR_NO_MEMORY(part->bytes);
    struct cr_ckpt_tensor *t = &list->tensor[list->count++];
    *t                       = (struct cr_ckpt_tensor){.name    = cr_arena_printf(&s->arena, "%s%s", name, suffix),
                                                       .dtype   = dtype,
                                                       .dims    = 1,
                                                       .dim     = {count},
                                                       .address = {CR_STATE_IN_PART, (uint64_t)s->parts}};
    *data                    = part->data;
    s->parts++;
    return t->name ? CR_OK : CR_NO_MEMORY(64);
}

static cr_status add_values(struct cr_state_sparse *s, const struct cr_ckpt_tensor *t, const struct cr_param *q,
                            struct cr_state_list *list) {
    const uint64_t bytes = (uint64_t)q->elems * sizeof(float);
    float         *dense = NULL, *next;
    void          *data;
    cr_status      status;
    CR_TRY(add_part(s, list, t->name, ".values", CR_F32, q->elems - cr_prune_count(q, s->mask), &data));
    CR_ALLOC(dense, (size_t)q->elems);
    for (uint64_t at = 0; at < bytes; at += CR_CKPT_CHUNK_BYTES)
        CR_TRY_OUT(s->below.get(s->below.self, t->address, at, (char *)dense + at, chunk_bytes(bytes - at)));
    next = data;
    for (int64_t i = 0; i < q->elems; i++) {
        const int64_t at = store_index(q, i);
        if (cr_mask_bit(s->mask, q->offset + at)) *next++ = dense[at];
    }
out:
    cr_free(dense);
    return status;
}

static cr_status add_shape_and_gaps(struct cr_state_sparse *s, const struct cr_ckpt_tensor *t, const struct cr_param *q,
                                    struct cr_state_list *list) {
    void     *data;
    uint8_t  *bits = NULL;
    cr_status status;
    CR_TRY(add_part(s, list, t->name, ".shape", CR_I64, t->dims, &data));
    memcpy(data, t->dim, (size_t)t->dims * sizeof t->dim[0]);
    CR_ALLOC(bits, (size_t)(q->elems + 7) / 8);
    for (int64_t i = 0; i < q->elems; i++)
        if (cr_mask_bit(s->mask, q->offset + store_index(q, i))) bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << (i % 8));
    CR_TRY_OUT(add_part(s, list, t->name, ".gaps", CR_U8, (int64_t)cr_ckpt_gaps(bits, q->elems, NULL), &data));
    cr_ckpt_gaps(bits, q->elems, data);
out:
    cr_free(bits);
    return status;
}

static cr_status split_list(struct cr_state_sparse *s, bool model, struct cr_state_list *list) {
    struct cr_state_list out = {0};
    CR_ARENA_ALLOC(&s->arena, out.tensor, 3 * (size_t)list->count);
    for (int i = 0; i < list->count; i++) {
        const struct cr_ckpt_tensor *t     = &list->tensor[i];
        const int                    param = param_of(s->store, t->name);
        if (param == CR_NONE || !s->sparse[param]) {
            out.tensor[out.count++] = *t;
            continue;
        }
        CR_TRY(add_values(s, t, &s->store->param[param], &out));
        if (model) CR_TRY(add_shape_and_gaps(s, t, &s->store->param[param], &out));
    }
    *list = out;
    return CR_OK;
}

static bool may_be_pruned(const struct cr_param *q) {
    return q->role == CR_ROLE_CONV || q->role == CR_ROLE_DENSE_WEIGHT;
}

cr_status cr_state_sparse_save(struct cr_session *session, struct cr_state_list *model, struct cr_state_list *optim,
                               struct cr_state_list *ema, struct cr_ckpt_io *io, struct cr_state_sparse *s) {
    const struct cr_param_store *store = &session->model.store;
    *s                                 = (struct cr_state_sparse){0};
    if (!store->has_mask) return CR_OK;
    CR_TRY(state_open(store, s));
    CR_TRY(cr_state_buffer_get(session, CR_BUFFER_MASK, s->mask));
    for (int i = 0; i < store->params; i++)
        s->sparse[i] = may_be_pruned(&store->param[i]) && cr_prune_count(&store->param[i], s->mask) > 0;
    CR_ALLOC(
        s->part,
        8 * (size_t)store
                ->params); /* for each parameter 3 in the model, 3 in its averages, 1 in each of 2 optimizer buffers */
    s->below = *io;
    CR_TRY(split_list(s, true, model));
    CR_TRY(split_list(s, false, optim));
    if (ema->count) CR_TRY(split_list(s, true, ema));
    *io = (struct cr_ckpt_io){.self = s, .get = sparse_get};
    return CR_OK;
}

/* ---- loading ---- */

static cr_status read_mask(struct cr_state_sparse *s, struct cr_st_file *file, const char *path, int param) {
    const struct cr_param *q = &s->store->param[param];
    const int64_t conv[4] = {q->dim[0], q->dim[3], q->dim[1], q->dim[2]}, dense[4] = {q->dim[0], q->dim[3], 0, 0};
    const bool    filter = q->role == CR_ROLE_CONV;
    struct cr_ckpt_sparse sparse;
    CR_TRY(cr_ckpt_sparse_read(file, path, q->name, &sparse));
    cr_status status = CR_OK;
    if (sparse.dims != (filter ? 4 : 2) ||
        memcmp(sparse.dim, filter ? conv : dense, (size_t)sparse.dims * sizeof *conv) != 0) {
        char in_file[CR_ST_SHAPE_TEXT], here[CR_ST_SHAPE_TEXT];
        cr_st_shape_text(in_file, sparse.dims, sparse.dim);
        cr_st_shape_text(here, filter ? 4 : 2, filter ? conv : dense);
        status = CR_FAIL(CR_ERR_FORMAT, "%s: does not fit: \"%s\" has shape %s in the file, %s here", path, q->name,
                         in_file, here);
    }
    for (int64_t i = 0; i < q->elems && status == CR_OK; i++) {
        const int64_t at = q->offset + store_index(q, i);
        if (!cr_mask_bit(sparse.bits, i)) s->mask[at / 8] &= (uint8_t) ~(1u << (at % 8));
    }
    cr_ckpt_sparse_free(&sparse);
    s->sparse[param] = true;
    return status;
}

/* Copies the name without ".gaps" to `stem`; returns false when the name has another suffix. */
static bool gaps_of(const char *name, char *stem, size_t size) {
    const size_t length = strlen(name), suffix = strlen(".gaps");
    if (length <= suffix || length - suffix >= size || strcmp(name + length - suffix, ".gaps") != 0) return false;
    snprintf(stem, size, "%.*s", (int)(length - suffix), name);
    return true;
}

cr_status cr_state_sparse_open(const struct cr_param_store *store, struct cr_st_file *file, const char *path,
                               bool fresh_head, struct cr_state_sparse *s) {
    char stem[512];
    CR_TRY(state_open(store, s));
    CR_TRY(cr_ckpt_is_sparse(file, path, &s->has_parts));
    for (int i = 0; i < cr_st_count(file) && s->has_parts; i++) {
        if (!gaps_of(cr_st_at(file, i)->name, stem, sizeof stem)) continue;
        const int param = cr_param_store_find(store, stem);
        if (fresh_head && param != CR_NONE && store->param[param].classifier) continue;
        if (param == CR_NONE || !may_be_pruned(&store->param[param]))
            return CR_FAIL(CR_ERR_FORMAT, "%s: does not fit: \"%.200s\" is in the file, but not in the network", path,
                           stem);
        CR_TRY(read_mask(s, file, path, param));
    }
    return CR_OK;
}

static const struct cr_st_entry *values_of(struct cr_st_file *file, const char *name) {
    char full[512];
    return snprintf(full, sizeof full, "%s.values", name) < (int)sizeof full ? cr_st_find(file, full) : NULL;
}

/* Moves the tensors that the file stores as sparse tensors from the list to s->split. */
static cr_status take_sparse(struct cr_state_sparse *s, struct cr_st_file *file, const char *path,
                             struct cr_state_list *list) {
    int left = 0;
    CR_ARENA_ALLOC(&s->arena, s->split.tensor, (size_t)list->count + 1);
    s->split.count = 0;
    for (int i = 0; i < list->count; i++) {
        const struct cr_ckpt_tensor *t     = &list->tensor[i];
        const int                    param = param_of(s->store, t->name);
        if (param == CR_NONE || !s->sparse[param] || cr_st_find(file, t->name)) {
            list->tensor[left++] = *t;
            continue;
        }
        const struct cr_st_entry *values = values_of(file, t->name);
        if (!values || values->dtype != CR_F32 || values->dims != 1 ||
            values->dim[0] != s->store->param[param].elems - cr_prune_count(&s->store->param[param], s->mask))
            return CR_FAIL(
                CR_ERR_FORMAT,
                "%s: does not fit: \"%s.values\" is missing or its length differs from the number of nonzeros", path,
                t->name);
        s->split.tensor[s->split.count++] = *t;
    }
    list->count = left;
    return CR_OK;
}

static cr_status decode_tensor(struct cr_state_sparse *s, struct cr_st_file *file, const struct cr_ckpt_tensor *t,
                               const struct cr_ckpt_io *io) {
    const struct cr_param    *q      = &s->store->param[param_of(s->store, t->name)];
    const struct cr_st_entry *values = values_of(file, t->name);
    const uint64_t            bytes  = (uint64_t)q->elems * sizeof(float);
    float                    *dense = NULL, *value = NULL, *next;
    cr_status                 status = CR_OK;
    CR_ALLOC_OUT(dense, (size_t)q->elems);
    CR_ALLOC_OUT(value, (size_t)values->dim[0]);
    CR_TRY_OUT(cr_st_read(file, values, 0, value, (size_t)values->bytes));
    next = value;
    for (int64_t i = 0; i < q->elems; i++) {
        const int64_t at = store_index(q, i);
        if (cr_mask_bit(s->mask, q->offset + at)) dense[at] = *next++;
    }
    for (uint64_t at = 0; at < bytes; at += CR_CKPT_CHUNK_BYTES)
        CR_TRY_OUT(io->put(io->self, t->address, at, (const char *)dense + at, chunk_bytes(bytes - at)));
out:
    cr_free(dense);
    cr_free(value);
    return status;
}

cr_status cr_state_sparse_read(struct cr_state_sparse *s, struct cr_st_file *file, const char *path,
                               struct cr_state_list *list, const char *ignore, const struct cr_ckpt_io *io) {
    char suffixes[256];
    snprintf(suffixes, sizeof suffixes, "%s%s%s", ignore, *ignore && s->has_parts ? "," : "",
             s->has_parts ? CR_CKPT_SPARSE_PARTS : "");
    CR_TRY(take_sparse(s, file, path, list));
    CR_TRY(cr_ckpt_read(file, path, list->tensor, list->count, *suffixes ? suffixes : NULL, io));
    for (int i = 0; i < s->split.count; i++) CR_TRY(decode_tensor(s, file, &s->split.tensor[i], io));
    return CR_OK;
}

cr_status cr_state_sparse_put_mask(const struct cr_state_sparse *s, struct cr_session *session) {
    return session->model.store.has_mask ? cr_state_buffer_put(session, CR_BUFFER_MASK, s->mask) : CR_OK;
}

cr_status cr_state_mask_full(struct cr_session *session) {
    const struct cr_param_store *store = &session->model.store;
    struct cr_state_sparse       s     = {0};
    cr_status                    status;
    if (!store->has_mask) return CR_OK;
    CR_TRY_OUT(state_open(store, &s));
    CR_TRY_OUT(cr_state_buffer_put(session, CR_BUFFER_MASK, s.mask));
out:
    cr_state_sparse_close(&s);
    return status;
}

cr_status cr_state_is_pruned(const char *given, bool *pruned) {
    struct cr_st_file *file;
    char               path[CR_PATH_MAX];
    *pruned = false;
    CR_TRY(cr_ckpt_model_path(given, path));
    CR_TRY(cr_st_open_any(path, &file));
    const cr_status status = cr_ckpt_is_sparse(file, path, pruned);
    cr_st_close(file);
    return status;
}
