/* cuda/train/update_tables.c: implements cuda/train/update_tables.h. */
#include "cuda/train/update_tables.h"

#include "graph/muon.h"

static bool moves(const struct cr_param *q) {
    return !q->frozen && !cr_param_is_running(q->role);
}

/* Fills map[value_elems / CK_SGD_BLOCK], which is zeroed. Parameters begin at multiples of a block. */
static void fill_map(const struct cr_param_store *store, uint8_t *map) {
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (!moves(q)) continue;
        CR_ASSERT(q->offset % CK_SGD_BLOCK == 0);
        for (int64_t at = 0; at < q->elems; at += CK_SGD_BLOCK) {
            const int64_t live = CR_MIN(q->elems - at, (int64_t)CK_SGD_BLOCK);
            map[(q->offset + at) / CK_SGD_BLOCK] =
                (uint8_t)(CK_SGD_UPDATED | (q->decay ? CK_SGD_DECAY : 0) | (live - 1) << CK_SGD_COUNT_SHIFT);
        }
    }
}

/* lars: filters and dense weights have a trust ratio; lamb: parameters with weight decay. */
static bool has_ratio(const struct cr_param *q, enum cr_op_kind rule) {
    if (!moves(q)) return false;
    return rule == CR_OP_lamb ? q->decay : q->role == CR_ROLE_CONV || q->role == CR_ROLE_DENSE_WEIGHT;
}

static void fill_owner(const struct cr_param_store *store, enum cr_op_kind rule, int32_t *owner) {
    for (int64_t b = 0; b < store->value_elems / CK_SGD_BLOCK; b++) owner[b] = -1;
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (!has_ratio(q, rule)) continue;
        for (int64_t at = 0; at < q->elems; at += CK_SGD_BLOCK) owner[(q->offset + at) / CK_SGD_BLOCK] = i;
    }
}

static int tiles_of(const struct cr_param *q) {
    return moves(q) ? (int)((q->elems + CK_NORM_TILE - 1) / CK_NORM_TILE) : 0;
}

static int count_tiles(const struct cr_param_store *store) {
    int tiles = 0;
    for (int i = 0; i < store->params; i++) tiles += tiles_of(&store->param[i]);
    return tiles;
}

static void fill_tiles(const struct cr_param_store *store, struct ck_norm_tile *tile, int32_t *first_tile) {
    int t = 0;
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        first_tile[i]            = t;
        for (int k = 0; k < tiles_of(q); k++) {
            const int64_t at = (int64_t)k * CK_NORM_TILE;
            tile[t++]        = (struct ck_norm_tile){.first = q->offset + at,
                                                     .elems = (int32_t)CR_MIN(q->elems - at, (int64_t)CK_NORM_TILE)};
        }
    }
    first_tile[store->params] = t;
}

cr_status cr_cuda_table(struct cr_device *device, const void *host, size_t bytes, void **out) {
    CUDA_TRY(cudaMalloc(out, CR_MAX(bytes, 1)));
    return device->backend->put(device, *out, host, bytes);
}

void cr_cuda_update_release(void *prepared) {
    struct update_tables *t = prepared;
    if (!t) return;
    (void)cudaFree(t->map);
    (void)cudaFree(t->scale);
    (void)cudaFree(t->owner);
    (void)cudaFree(t->factor);
    (void)cudaFree(t->tile);
    (void)cudaFree(t->first_tile);
    cr_free(t);
}

static cr_status make_map(struct cr_device *device, const struct cr_param_store *store, struct update_tables *t) {
    const size_t bytes = (size_t)(store->value_elems / CK_SGD_BLOCK);
    uint8_t     *host;
    CR_ALLOC(host, bytes);
    fill_map(store, host);
    cr_status status = cr_cuda_table(device, host, bytes, (void **)&t->map);
    cr_free(host);
    return status;
}

static bool has_scales(const struct cr_param_store *store) {
    for (int i = 0; i < store->params; i++)
        if (moves(&store->param[i]) && store->param[i].lr_scale != 1) return true;
    return false;
}

/* Factors of the learning rates of all blocks, if they differ. */
static cr_status make_scale(struct cr_device *device, const struct cr_param_store *store, struct update_tables *t) {
    const size_t blocks = (size_t)(store->value_elems / CK_SGD_BLOCK);
    float       *host;
    if (!has_scales(store)) return CR_OK;
    CR_ALLOC(host, blocks);
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        for (int64_t at = 0; moves(q) && at < q->elems; at += CK_SGD_BLOCK)
            host[(q->offset + at) / CK_SGD_BLOCK] = (float)q->lr_scale;
    }
    cr_status status = cr_cuda_table(device, host, blocks * sizeof *host, (void **)&t->scale);
    cr_free(host);
    return status;
}

static cr_status make_owner(struct cr_device *device, const struct cr_param_store *store, enum cr_op_kind rule,
                            struct update_tables *t) {
    const size_t blocks = (size_t)(store->value_elems / CK_SGD_BLOCK);
    int32_t     *host;
    CR_ALLOC(host, blocks);
    fill_owner(store, rule, host);
    cr_status status = cr_cuda_table(device, host, blocks * sizeof *host, (void **)&t->owner);
    cr_free(host);
    return status;
}

/* muon: factors of the directions of filters; 0 for all other parameters. */
static cr_status make_factor(struct cr_device *device, const struct cr_param_store *store, struct update_tables *t) {
    const size_t blocks = (size_t)(store->value_elems / CK_SGD_BLOCK);
    float       *host;
    CR_ALLOC(host, blocks);
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (!cr_muon_has_direction(q)) continue;
        for (int64_t at = 0; at < q->elems; at += CK_SGD_BLOCK)
            host[(q->offset + at) / CK_SGD_BLOCK] = (float)cr_muon_factor(q);
    }
    cr_status status = cr_cuda_table(device, host, blocks * sizeof *host, (void **)&t->factor);
    cr_free(host);
    return status;
}

static cr_status make_tiles(struct cr_device *device, const struct cr_param_store *store, struct update_tables *t) {
    struct ck_norm_tile *tile   = NULL;
    int32_t             *first  = NULL;
    cr_status            status = CR_OK;
    t->tiles                    = count_tiles(store);
    tile                        = cr_alloc((size_t)CR_MAX(t->tiles, 1), sizeof *tile);
    first                       = cr_alloc((size_t)store->params + 1, sizeof *first);
    if (!tile || !first) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the table of parameters");
    fill_tiles(store, tile, first);
    CR_TRY_OUT(cr_cuda_table(device, tile, (size_t)t->tiles * sizeof *tile, (void **)&t->tile));
    CR_TRY_OUT(cr_cuda_table(device, first, ((size_t)store->params + 1) * sizeof *first, (void **)&t->first_tile));
out:
    cr_free(tile);
    cr_free(first);
    return status;
}

cr_status cr_cuda_update_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                 void **prepared, size_t *workspace_bytes) {
    const bool norms = op->kind == CR_OP_param_norms || op->kind == CR_OP_lamb_norms,
               map   = op->kind != CR_OP_param_norms;
    cr_status status = CR_OK;
    *prepared        = NULL;
    *workspace_bytes = norms ? ck_param_norms_workspace(count_tiles(p->store)) : 0;
    if (cuda_of(device)->offline) return CR_OK;
    struct update_tables *t = cr_alloc(1, sizeof *t);
    if (!t) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the table of parameters");
    if (norms) CR_TRY_OUT(make_tiles(device, p->store, t));
    if (map) CR_TRY_OUT(make_map(device, p->store, t));
    if (!norms) CR_TRY_OUT(make_scale(device, p->store, t));
    if (op->kind == CR_OP_lars || op->kind == CR_OP_lamb) CR_TRY_OUT(make_owner(device, p->store, op->kind, t));
    if (op->kind == CR_OP_muon) CR_TRY_OUT(make_factor(device, p->store, t));
    *prepared = t;
out:
    if (status != CR_OK) cr_cuda_update_release(t);
    return status;
}
