/* cuda/train/optimizer_kernels.c: kernel table for the optimizers, the norms that LARS and LAMB need, and moving
 * averages. All of them process whole parameter buffers in place. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* ---- buffers ---- */

static bool is_buffer(const struct cr_program *p, int tensor, enum cr_param_buffer buffer, int64_t elems) {
    const struct cr_tensor *t = &p->tensor[tensor];
    return t->dtype == CR_F32 && t->buffer == (int)buffer && cr_tensor_elems(t) == elems;
}

static bool is_values(const struct cr_program *p, int tensor, enum cr_param_buffer buffer) {
    return is_buffer(p, tensor, buffer, p->store->value_elems) && p->store->value_elems % CK_SGD_BLOCK == 0;
}

static bool is_mask(const struct cr_program *p, int tensor) {
    return tensor == CR_NONE ||
           (p->tensor[tensor].dtype == CR_U8 && cr_tensor_elems(&p->tensor[tensor]) == p->store->value_elems / 8);
}

/* ---- tables about the parameters, in device memory ---- */

struct tables {
    uint8_t             *map;   /* see CK_SGD_BLOCK */
    float               *scale; /* NULL when all learning rates are the same */
    int32_t             *owner; /* lars, lamb */
    struct ck_norm_tile *tile;  /* param_norms, lamb_norms */
    int32_t             *first_tile;
    int                  tiles;
};

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

static cr_status to_device(struct cr_device *device, const void *host, size_t bytes, void **out) {
    CUDA_TRY(cudaMalloc(out, CR_MAX(bytes, 1)));
    return device->backend->put(device, *out, host, bytes);
}

static void update_release(void *prepared) {
    struct tables *t = prepared;
    if (!t) return;
    (void)cudaFree(t->map);
    (void)cudaFree(t->scale);
    (void)cudaFree(t->owner);
    (void)cudaFree(t->tile);
    (void)cudaFree(t->first_tile);
    cr_free(t);
}

static cr_status make_map(struct cr_device *device, const struct cr_param_store *store, struct tables *t) {
    const size_t bytes = (size_t)(store->value_elems / CK_SGD_BLOCK);
    uint8_t     *host;
    CR_ALLOC(host, bytes);
    fill_map(store, host);
    cr_status status = to_device(device, host, bytes, (void **)&t->map);
    cr_free(host);
    return status;
}

static bool has_scales(const struct cr_param_store *store) {
    for (int i = 0; i < store->params; i++)
        if (moves(&store->param[i]) && store->param[i].lr_scale != 1) return true;
    return false;
}

/* Factors of the learning rates of all blocks, if they differ. */
static cr_status make_scale(struct cr_device *device, const struct cr_param_store *store, struct tables *t) {
    const size_t blocks = (size_t)(store->value_elems / CK_SGD_BLOCK);
    float       *host;
    if (!has_scales(store)) return CR_OK;
    CR_ALLOC(host, blocks);
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        for (int64_t at = 0; moves(q) && at < q->elems; at += CK_SGD_BLOCK)
            host[(q->offset + at) / CK_SGD_BLOCK] = (float)q->lr_scale;
    }
    cr_status status = to_device(device, host, blocks * sizeof *host, (void **)&t->scale);
    cr_free(host);
    return status;
}

static cr_status make_owner(struct cr_device *device, const struct cr_param_store *store, enum cr_op_kind rule,
                            struct tables *t) {
    const size_t blocks = (size_t)(store->value_elems / CK_SGD_BLOCK);
    int32_t     *host;
    CR_ALLOC(host, blocks);
    fill_owner(store, rule, host);
    cr_status status = to_device(device, host, blocks * sizeof *host, (void **)&t->owner);
    cr_free(host);
    return status;
}

static cr_status make_tiles(struct cr_device *device, const struct cr_param_store *store, struct tables *t) {
    struct ck_norm_tile *tile   = NULL;
    int32_t             *first  = NULL;
    cr_status            status = CR_OK;
    t->tiles                    = count_tiles(store);
    tile                        = cr_alloc((size_t)CR_MAX(t->tiles, 1), sizeof *tile);
    first                       = cr_alloc((size_t)store->params + 1, sizeof *first);
    if (!tile || !first) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the table of parameters");
    fill_tiles(store, tile, first);
    CR_TRY_OUT(to_device(device, tile, (size_t)t->tiles * sizeof *tile, (void **)&t->tile));
    CR_TRY_OUT(to_device(device, first, ((size_t)store->params + 1) * sizeof *first, (void **)&t->first_tile));
out:
    cr_free(tile);
    cr_free(first);
    return status;
}

static cr_status update_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                void **prepared, size_t *workspace_bytes) {
    const bool norms = op->kind == CR_OP_param_norms || op->kind == CR_OP_lamb_norms,
               map   = op->kind != CR_OP_param_norms;
    cr_status status = CR_OK;
    *prepared        = NULL;
    *workspace_bytes = norms ? ck_param_norms_workspace(count_tiles(p->store)) : 0;
    if (cuda_of(device)->offline) return CR_OK;
    struct tables *t = cr_alloc(1, sizeof *t);
    if (!t) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the table of parameters");
    if (norms) CR_TRY_OUT(make_tiles(device, p->store, t));
    if (map) CR_TRY_OUT(make_map(device, p->store, t));
    if (!norms) CR_TRY_OUT(make_scale(device, p->store, t));
    if (op->kind == CR_OP_lars || op->kind == CR_OP_lamb) CR_TRY_OUT(make_owner(device, p->store, op->kind, t));
    *prepared = t;
out:
    if (status != CR_OK) update_release(t);
    return status;
}

/* ---- sgd, adamw, lars, lamb: the slots are the same ---- */

static bool update_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    if (!p->store || !is_values(p, op->in[CR_IN_sgd_value], CR_BUFFER_VALUE) ||
        !is_values(p, op->in[CR_IN_sgd_grad], CR_BUFFER_GRAD) ||
        !is_values(p, op->in[CR_IN_sgd_momentum], CR_BUFFER_MOMENTUM) || !is_mask(p, op->in[CR_IN_sgd_mask]))
        return false;
    if ((op->kind == CR_OP_adamw || op->kind == CR_OP_lamb) &&
        (!is_values(p, op->in[CR_IN_adamw_second], CR_BUFFER_SECOND) ||
         op->out[CR_OUT_adamw_second] != op->in[CR_IN_adamw_second]))
        return false;
    if (op->kind == CR_OP_lars && cuda_in(p, op, CR_IN_lars_norms)->dtype != CR_F32) return false;
    if (op->kind == CR_OP_lamb && cuda_in(p, op, CR_IN_lamb_norms)->dtype != CR_F32) return false;
    return cuda_in(p, op, CR_IN_sgd_norm)->dtype == CR_F32 && cuda_in(p, op, CR_IN_sgd_state)->dtype == CR_F64 &&
           op->out[CR_OUT_sgd_value] == op->in[CR_IN_sgd_value] &&
           op->out[CR_OUT_sgd_momentum] == op->in[CR_IN_sgd_momentum] &&
           op->out[CR_OUT_sgd_state] == op->in[CR_IN_sgd_state];
}

static struct ck_sgd sgd_args(struct cr_device *device, const struct cr_call *call) {
    const struct tables      *tables = call->prepared;
    const struct cr_sgd_attr *attr   = &call->op->attr.sgd;
    return (struct ck_sgd){.value         = call->out[CR_OUT_sgd_value],
                           .momentum      = call->out[CR_OUT_sgd_momentum],
                           .grad          = call->in[CR_IN_sgd_grad],
                           .norm          = call->in[CR_IN_sgd_norm],
                           .state         = call->out[CR_OUT_sgd_state],
                           .map           = tables->map,
                           .mask          = call->in[CR_IN_sgd_mask],
                           .scale         = tables->scale,
                           .step          = cuda_of(device)->step,
                           .elems         = call->program->store->value_elems,
                           .micro_batches = attr->micro_batches,
                           .nesterov      = attr->nesterov,
                           .moving_scale  = attr->moving_scale};
}

static cr_status sgd_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_sgd args = sgd_args(device, call);
    const int64_t at   = call->op - call->program->op; /* outside of the program where a test launches one op */
    args.early         = at > 0 && at < call->program->ops && call->op[-1].kind == CR_OP_grad_norm;
    CUDA_TRY(ck_sgd(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status adamw_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_sgd_attr *attr = &call->op->attr.sgd;
    const struct ck_rule      args = {.sgd    = sgd_args(device, call),
                                      .second = call->out[CR_OUT_adamw_second],
                                      .beta2  = attr->beta2,
                                      .eps    = attr->eps};
    CUDA_TRY(ck_adamw(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status lars_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_sgd_attr *attr   = &call->op->attr.sgd;
    const struct tables      *tables = call->prepared;
    const struct ck_rule      args   = {.sgd   = sgd_args(device, call),
                                        .norms = call->in[CR_IN_lars_norms],
                                        .owner = tables->owner,
                                        .eps   = attr->eps,
                                        .trust = attr->trust};
    CUDA_TRY(ck_lars(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status lamb_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_sgd_attr *attr   = &call->op->attr.sgd;
    const struct tables      *tables = call->prepared;
    const struct ck_rule      args   = {.sgd    = sgd_args(device, call),
                                        .second = call->out[CR_OUT_lamb_second],
                                        .norms  = call->in[CR_IN_lamb_norms],
                                        .owner  = tables->owner,
                                        .beta2  = attr->beta2,
                                        .eps    = attr->eps};
    CUDA_TRY(ck_lamb(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- lamb_norms ---- */

static bool lamb_norms_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->store && is_values(p, op->in[CR_IN_lamb_norms_value], CR_BUFFER_VALUE) &&
           is_values(p, op->in[CR_IN_lamb_norms_grad], CR_BUFFER_GRAD) &&
           is_values(p, op->in[CR_IN_lamb_norms_momentum], CR_BUFFER_MOMENTUM) &&
           is_values(p, op->in[CR_IN_lamb_norms_second], CR_BUFFER_SECOND) &&
           is_mask(p, op->in[CR_IN_lamb_norms_mask]) && cuda_in(p, op, CR_IN_lamb_norms_norm)->dtype == CR_F32 &&
           cuda_in(p, op, CR_IN_lamb_norms_state)->dtype == CR_F64 &&
           cuda_out(p, op, CR_OUT_lamb_norms_norms)->dtype == CR_F32;
}

/* The launcher's arguments are those of the update, but it writes none of the buffers. */
static cr_status lamb_norms_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_sgd_attr *attr   = &call->op->attr.sgd;
    const struct tables      *tables = call->prepared;
    struct ck_lamb_norms      args   = {.tile       = tables->tile,
                                        .first_tile = tables->first_tile,
                                        .norms      = call->out[CR_OUT_lamb_norms_norms],
                                        .tiles      = tables->tiles,
                                        .params     = call->program->store->params};
    args.rule.sgd.value              = (float *)(uintptr_t)call->in[CR_IN_lamb_norms_value];
    args.rule.sgd.momentum           = (float *)(uintptr_t)call->in[CR_IN_lamb_norms_momentum];
    args.rule.sgd.state              = (double *)(uintptr_t)call->in[CR_IN_lamb_norms_state];
    args.rule.second                 = (float *)(uintptr_t)call->in[CR_IN_lamb_norms_second];
    args.rule.sgd.grad               = call->in[CR_IN_lamb_norms_grad];
    args.rule.sgd.norm               = call->in[CR_IN_lamb_norms_norm];
    args.rule.sgd.mask               = call->in[CR_IN_lamb_norms_mask];
    args.rule.sgd.map                = tables->map;
    args.rule.sgd.step               = cuda_of(device)->step;
    args.rule.beta2                  = attr->beta2;
    args.rule.eps                    = attr->eps;
    CUDA_TRY(ck_lamb_norms(&args, call->workspace, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- param_norms ---- */

static bool norms_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->store && is_values(p, op->in[CR_IN_param_norms_value], CR_BUFFER_VALUE) &&
           is_values(p, op->in[CR_IN_param_norms_grad], CR_BUFFER_GRAD) &&
           cuda_in(p, op, CR_IN_param_norms_state)->dtype == CR_F64 &&
           cuda_out(p, op, CR_OUT_param_norms_norms)->dtype == CR_F32;
}

static cr_status norms_launch(struct cr_device *device, const struct cr_call *call) {
    const struct tables        *tables = call->prepared;
    const struct ck_param_norms args   = {.value      = call->in[CR_IN_param_norms_value],
                                          .grad       = call->in[CR_IN_param_norms_grad],
                                          .state      = call->in[CR_IN_param_norms_state],
                                          .tile       = tables->tile,
                                          .first_tile = tables->first_tile,
                                          .norms      = call->out[CR_OUT_param_norms_norms],
                                          .tiles      = tables->tiles,
                                          .params     = call->program->store->params};
    CUDA_TRY(ck_param_norms(&args, call->workspace, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- ema ---- */

static bool ema_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    if (!p->store) return false;
    const int64_t running = p->store->running_elems;
    return is_values(p, op->in[CR_IN_ema_value], CR_BUFFER_VALUE) &&
           is_values(p, op->in[CR_IN_ema_averages], CR_BUFFER_EMA) &&
           is_buffer(p, op->in[CR_IN_ema_running], CR_BUFFER_RUNNING, running) && running % CK_SGD_BLOCK == 0 &&
           is_buffer(p, op->in[CR_IN_ema_running_averages], CR_BUFFER_EMA_RUNNING, running) &&
           is_mask(p, op->in[CR_IN_ema_mask]) && cuda_in(p, op, CR_IN_ema_norm)->dtype == CR_F32 &&
           cuda_in(p, op, CR_IN_ema_state)->dtype == CR_F64 &&
           op->out[CR_OUT_ema_averages] == op->in[CR_IN_ema_averages] &&
           op->out[CR_OUT_ema_running_averages] == op->in[CR_IN_ema_running_averages];
}

static cr_status ema_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_ema args = {.value            = call->in[CR_IN_ema_value],
                                .running          = call->in[CR_IN_ema_running],
                                .norm             = call->in[CR_IN_ema_norm],
                                .state            = call->in[CR_IN_ema_state],
                                .averages         = call->out[CR_OUT_ema_averages],
                                .running_averages = call->out[CR_OUT_ema_running_averages],
                                .mask             = call->in[CR_IN_ema_mask],
                                .elems            = call->program->store->value_elems,
                                .running_elems    = call->program->store->running_elems,
                                .decay            = call->op->attr.ema.decay,
                                .warmup           = call->op->attr.ema.warmup};
    CUDA_TRY(ck_ema(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the table ---- */

#define RULE(kind)                                                                                                     \
    static const struct cr_kernel kind##_row = {.name          = "cuda." #kind,                                        \
                                                .op            = CR_OP_##kind,                                         \
                                                .math          = CR_MATH_F32,                                          \
                                                .deterministic = true,                                                 \
                                                .accepts       = update_accepts,                                       \
                                                .prepare       = update_prepare,                                       \
                                                .launch        = kind##_launch,                                        \
                                                .release       = update_release}
RULE(sgd);
RULE(adamw);
RULE(lars);
RULE(lamb);
static const struct cr_kernel lamb_norms_row = {.name          = "cuda.lamb_norms",
                                                .op            = CR_OP_lamb_norms,
                                                .math          = CR_MATH_F32,
                                                .deterministic = true,
                                                .accepts       = lamb_norms_accepts,
                                                .prepare       = update_prepare,
                                                .launch        = lamb_norms_launch,
                                                .release       = update_release};
static const struct cr_kernel norms_row      = {.name          = "cuda.param_norms",
                                                .op            = CR_OP_param_norms,
                                                .math          = CR_MATH_F32,
                                                .deterministic = true,
                                                .accepts       = norms_accepts,
                                                .prepare       = update_prepare,
                                                .launch        = norms_launch,
                                                .release       = update_release};
static const struct cr_kernel ema_row        = {.name          = "cuda.ema",
                                                .op            = CR_OP_ema,
                                                .math          = CR_MATH_F32,
                                                .deterministic = true,
                                                .accepts       = ema_accepts,
                                                .launch        = ema_launch};

const struct cr_kernel *const cr_cuda_optimizer_kernels[] = {&sgd_row,   &adamw_row,      &lars_row, &lamb_row,
                                                             &norms_row, &lamb_norms_row, &ema_row,  NULL};
