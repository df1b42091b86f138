/* cuda/train/update_tables.c: tables about the parameters for optimizers; implements cuda/train/update_tables.h. */
#include "cuda/train/update_tables.h"

#include "graph/muon.h"

static bool moves(const struct cr_param *q) {
    return !q->frozen && !cr_param_is_running(q->role);
}

/* lars: filters and dense weights have a trust ratio; lamb: parameters with weight decay. */
static bool has_ratio(const struct cr_param *q, enum cr_op_kind rule) {
    return rule == CR_OP_lamb ? q->decay : q->role == CR_ROLE_CONV || q->role == CR_ROLE_DENSE_WEIGHT;
}

int cr_cuda_put_tiles(const struct cr_param *q, struct ck_norm_tile *tile) {
    int tiles = 0;
    for (int64_t at = 0; at < q->elems; at += CK_NORM_TILE, tiles++)
        if (tile)
            tile[tiles] = (struct ck_norm_tile){.first = q->offset + at,
                                                .elems = (int32_t)CR_MIN(q->elems - at, (int64_t)CK_NORM_TILE)};
    return tiles;
}

/* Returns the number of tiles. tile and first_tile[params + 1] are written unless they are NULL. */
static int put_tiles(const struct cr_param_store *store, struct ck_norm_tile *tile, int32_t *first_tile) {
    int tiles = 0;
    for (int i = 0; i < store->params; i++) {
        if (first_tile) first_tile[i] = tiles;
        if (moves(&store->param[i])) tiles += cr_cuda_put_tiles(&store->param[i], tile ? tile + tiles : NULL);
    }
    if (first_tile) first_tile[store->params] = tiles;
    return tiles;
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

/* Tables of the blocks of the parameter buffers: parameters begin at multiples of a block. */
static cr_status make_blocks(struct cr_device *device, const struct cr_param_store *store, enum cr_op_kind rule,
                             struct update_tables *t) {
    const size_t blocks = (size_t)(store->value_elems / CK_SGD_BLOCK);
    uint8_t     *map    = cr_alloc(blocks, sizeof *map);
    float       *scale = cr_alloc(blocks, sizeof *scale), *factor = cr_alloc(blocks, sizeof *factor);
    int32_t     *owner  = cr_alloc(blocks, sizeof *owner);
    bool         scaled = false;
    cr_status    status = CR_OK;
    if (!map || !scale || !factor || !owner) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the table of parameters");
    for (size_t b = 0; b < blocks; b++) owner[b] = -1;
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (!moves(q)) continue;
        CR_ASSERT(q->offset % CK_SGD_BLOCK == 0);
        scaled = scaled || q->lr_scale != 1;
        for (int64_t at = 0; at < q->elems; at += CK_SGD_BLOCK) {
            const int64_t b = (q->offset + at) / CK_SGD_BLOCK, live = CR_MIN(q->elems - at, (int64_t)CK_SGD_BLOCK);
            map[b]   = (uint8_t)(CK_SGD_UPDATED | (q->decay ? CK_SGD_DECAY : 0) | (live - 1) << CK_SGD_COUNT_SHIFT);
            scale[b] = (float)q->lr_scale;
            if (has_ratio(q, rule)) owner[b] = i;
            if (cr_muon_has_direction(q)) factor[b] = (float)cr_muon_factor(q);
        }
    }
    CR_TRY_OUT(cr_cuda_table(device, map, blocks, (void **)&t->map));
    if (scaled && rule != CR_OP_lamb_norms)
        CR_TRY_OUT(cr_cuda_table(device, scale, blocks * sizeof *scale, (void **)&t->scale));
    if (rule == CR_OP_lars || rule == CR_OP_lamb)
        CR_TRY_OUT(cr_cuda_table(device, owner, blocks * sizeof *owner, (void **)&t->owner));
    if (rule == CR_OP_muon) CR_TRY_OUT(cr_cuda_table(device, factor, blocks * sizeof *factor, (void **)&t->factor));
out:
    cr_free(map);
    cr_free(scale);
    cr_free(factor);
    cr_free(owner);
    return status;
}

static cr_status make_tiles(struct cr_device *device, const struct cr_param_store *store, struct update_tables *t) {
    struct ck_norm_tile *tile   = NULL;
    int32_t             *first  = NULL;
    cr_status            status = CR_OK;
    t->tiles                    = put_tiles(store, NULL, NULL);
    tile                        = cr_alloc((size_t)CR_MAX(t->tiles, 1), sizeof *tile);
    first                       = cr_alloc((size_t)store->params + 1, sizeof *first);
    if (!tile || !first) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the table of parameters");
    (void)put_tiles(store, tile, first);
    CR_TRY_OUT(cr_cuda_table(device, tile, (size_t)t->tiles * sizeof *tile, (void **)&t->tile));
    CR_TRY_OUT(cr_cuda_table(device, first, ((size_t)store->params + 1) * sizeof *first, (void **)&t->first_tile));
out:
    cr_free(tile);
    cr_free(first);
    return status;
}

cr_status cr_cuda_update_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                 void **prepared, size_t *workspace_bytes) {
    const bool            norms = op->kind == CR_OP_param_norms || op->kind == CR_OP_lamb_norms;
    struct update_tables *t;
    if (norms) *workspace_bytes = ck_param_norms_workspace(put_tiles(p->store, NULL, NULL));
    if (cuda_of(device)->offline) return CR_OK;
    CR_ALLOC(t, 1);
    *prepared = t;
    if (norms) CR_TRY(make_tiles(device, p->store, t));
    return op->kind == CR_OP_param_norms ? CR_OK : make_blocks(device, p->store, op->kind, t);
}
