/* rows_train.c: the GPU's rows for the loss, its gradient, the check of all gradients and the SGD update. */
#include "cuda.h"

/* ---- loss, loss_grad ---- */

/* The two ops have logits and labels in the same slots. */
_Static_assert((int)CR_IN_loss_logits == (int)CR_IN_loss_grad_logits && (int)CR_IN_loss_labels == (int)CR_IN_loss_grad_labels,
               "one way to read them");

static struct ck_loss loss_args(const struct cr_call *call) {
    const struct cr_tensor *logits = cuda_in(call->program, call->op, CR_IN_loss_logits);
    return (struct ck_loss){.type      = cuda_type(logits),
                            .logits    = call->in[CR_IN_loss_logits],
                            .labels    = call->in[CR_IN_loss_labels],
                            .samples   = cuda_pixels(logits),
                            .classes   = logits->dim[3],
                            .smoothing = call->op->attr.loss.smoothing};
}

static bool loss_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_is_data(cuda_in(p, op, CR_IN_loss_logits)) && cuda_in(p, op, CR_IN_loss_labels)->dtype == CR_I32 &&
           cuda_in(p, op, CR_IN_loss_metrics)->dtype == CR_F32 && cuda_out(p, op, CR_OUT_loss_metrics)->dtype == CR_F32;
}

static cr_status loss_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                              size_t *workspace_bytes) {
    (void)device;
    *prepared        = NULL;
    *workspace_bytes = ck_loss_workspace(cuda_pixels(cuda_in(p, op, CR_IN_loss_logits)));
    return CR_OK;
}

static cr_status loss_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_loss args = loss_args(call);
    CUDA_TRY(ck_loss(&args, call->in[CR_IN_loss_metrics], call->out[CR_OUT_loss_metrics], call->workspace,
                     cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool loss_grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    const struct cr_tensor *logits = cuda_in(p, op, CR_IN_loss_grad_logits);
    return cuda_is_data(logits) && cuda_out(p, op, CR_OUT_loss_grad_dx)->dtype == logits->dtype &&
           cuda_in(p, op, CR_IN_loss_grad_labels)->dtype == CR_I32 && cuda_in(p, op, CR_IN_loss_grad_state)->dtype == CR_F64;
}

static cr_status loss_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_loss args = loss_args(call);
    CUDA_TRY(ck_loss_grad(&args, call->op->attr.loss.weight, call->in[CR_IN_loss_grad_state], call->out[CR_OUT_loss_grad_dx],
                          cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- grad_check ---- */

static bool check_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_in(p, op, CR_IN_grad_check_grad)->dtype == CR_F32 && cuda_in(p, op, CR_IN_grad_check_metrics)->dtype == CR_F32 &&
           cuda_out(p, op, CR_OUT_grad_check_norm)->dtype == CR_F32;
}

static cr_status check_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                               size_t *workspace_bytes) {
    (void)device;
    *prepared        = NULL;
    *workspace_bytes = ck_grad_check_workspace(cr_tensor_elems(cuda_in(p, op, CR_IN_grad_check_grad)));
    return CR_OK;
}

static cr_status check_launch(struct cr_device *device, const struct cr_call *call) {
    CUDA_TRY(ck_grad_check(call->in[CR_IN_grad_check_grad],
                           cr_tensor_elems(cuda_in(call->program, call->op, CR_IN_grad_check_grad)),
                           call->in[CR_IN_grad_check_metrics], call->in[CR_IN_grad_check_state], call->out[CR_OUT_grad_check_norm],
                           call->workspace, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- sgd ---- */

struct sgd_plan {
    uint8_t *map; /* device memory: see CK_SGD_BLOCK */
};

static bool is_plane(const struct cr_program *p, int tensor, enum cr_plane plane) {
    const struct cr_tensor *t = &p->tensor[tensor];
    return t->dtype == CR_F32 && t->region == CR_REGION_STORE && t->offset == cr_store_plane_offset(p->store, plane) &&
           cr_tensor_elems(t) == p->store->value_elems;
}

static bool is_mask(const struct cr_program *p, int tensor) {
    return tensor == CR_NONE || (p->tensor[tensor].dtype == CR_U8 && cr_tensor_elems(&p->tensor[tensor]) == p->store->value_elems / 8);
}

/* Whole planes, updated where they are. */
static bool sgd_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->store && is_plane(p, op->in[CR_IN_sgd_value], CR_PLANE_VALUE) && is_plane(p, op->in[CR_IN_sgd_grad], CR_PLANE_GRAD) &&
           is_plane(p, op->in[CR_IN_sgd_momentum], CR_PLANE_MOMENTUM) && p->store->value_elems % CK_SGD_BLOCK == 0 &&
           is_mask(p, op->in[CR_IN_sgd_mask]) &&
           cuda_in(p, op, CR_IN_sgd_norm)->dtype == CR_F32 && cuda_in(p, op, CR_IN_sgd_state)->dtype == CR_F64 &&
           op->out[CR_OUT_sgd_value] == op->in[CR_IN_sgd_value] && op->out[CR_OUT_sgd_momentum] == op->in[CR_IN_sgd_momentum] &&
           op->out[CR_OUT_sgd_state] == op->in[CR_IN_sgd_state];
}

/* map[value_elems / CK_SGD_BLOCK], zeroed. Parameters begin at multiples of a block. */
static void fill_map(const struct cr_store *store, uint8_t *map) {
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (q->frozen || cr_store_is_running(q->role)) continue;
        CR_ASSERT(q->offset % CK_SGD_BLOCK == 0);
        for (int64_t at = 0; at < q->elems; at += CK_SGD_BLOCK) {
            const int64_t live = CR_MIN(q->elems - at, (int64_t)CK_SGD_BLOCK);
            map[(q->offset + at) / CK_SGD_BLOCK] =
                (uint8_t)(CK_SGD_MOVES | (q->decay ? CK_SGD_DECAY : 0) | (live - 1) << CK_SGD_LIVE_SHIFT);
        }
    }
}

static cr_status map_to_device(struct cr_device *device, const uint8_t *host, size_t bytes, struct sgd_plan *plan) {
    CUDA_TRY(cudaMalloc((void **)&plan->map, bytes));
    CR_TRY(device->backend->put(device, plan->map, host, bytes));
    return CR_OK;
}

static void sgd_release(void *prepared) {
    struct sgd_plan *plan = prepared;
    if (plan) (void)cudaFree(plan->map);
    cr_free(plan);
}

static cr_status sgd_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                             size_t *workspace_bytes) {
    const size_t     bytes = (size_t)(p->store->value_elems / CK_SGD_BLOCK);
    cr_status        status;
    uint8_t         *host = NULL;
    (void)op;
    *prepared        = NULL;
    *workspace_bytes = 0;
    if (cuda_of(device)->described) return CR_OK;
    struct sgd_plan *plan = cr_alloc(1, sizeof *plan);
    if (!plan) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for the map of parameters");
    host = cr_alloc(bytes, 1);
    if (!host) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for the map of parameters: %zu bytes", bytes);
    fill_map(p->store, host);
    CR_TRY_OUT(map_to_device(device, host, bytes, plan));
    *prepared = plan;
out:
    cr_free(host);
    if (status != CR_OK) sgd_release(plan);
    return status;
}

static cr_status sgd_launch(struct cr_device *device, const struct cr_call *call) {
    const struct sgd_plan    *plan = call->prepared;
    const struct cr_sgd_attr *attr = &call->op->attr.sgd;
    const struct ck_sgd       args = {.value         = call->out[CR_OUT_sgd_value],
                                      .momentum      = call->out[CR_OUT_sgd_momentum],
                                      .grad          = call->in[CR_IN_sgd_grad],
                                      .norm          = call->in[CR_IN_sgd_norm],
                                      .state         = call->out[CR_OUT_sgd_state],
                                      .map           = plan->map,
                                      .mask          = call->in[CR_IN_sgd_mask],
                                      .step          = cuda_of(device)->step,
                                      .elems         = call->program->store->value_elems,
                                      .micro_batches = attr->micro_batches,
                                      .nesterov      = attr->nesterov,
                                      .moving_scale  = attr->moving_scale};
    CUDA_TRY(ck_sgd(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the table ---- */

static const struct cr_kernel loss_row = {.name = "cuda.loss", .op = CR_OP_loss, .math = CR_MATH_F32, .deterministic = true,
                                          .accepts = loss_accepts, .prepare = loss_prepare, .launch = loss_launch};
static const struct cr_kernel loss_grad_row = {.name = "cuda.loss_grad", .op = CR_OP_loss_grad, .math = CR_MATH_F32,
                                               .deterministic = true, .accepts = loss_grad_accepts, .launch = loss_grad_launch};
static const struct cr_kernel check_row = {.name = "cuda.grad_check", .op = CR_OP_grad_check, .math = CR_MATH_F32,
                                           .deterministic = true, .accepts = check_accepts, .prepare = check_prepare,
                                           .launch = check_launch};
static const struct cr_kernel sgd_row = {.name = "cuda.sgd", .op = CR_OP_sgd, .math = CR_MATH_F32, .deterministic = true,
                                         .accepts = sgd_accepts, .prepare = sgd_prepare, .launch = sgd_launch,
                                         .release = sgd_release};

const struct cr_kernel *const cr_cuda_train_rows[] = {&loss_row, &loss_grad_row, &check_row, &sgd_row, NULL};
