/* rows_bn.c: the GPU's rows of batch normalisation. Shapes and slots here; kernels in bn.cu, bn_apply.cu and bn_grad.cu.
 * Data is f32, f16 or bf16, one type in an op; sums, coefficients, parameters and their gradients are f32 always. */
#include "cuda.h"

/* Of slots that may be absent: fits when absent. */
static bool is_like(const struct cr_tensor *t, const struct cr_tensor *data) { return !t || t->dtype == data->dtype; }
static bool is_f32(const struct cr_tensor *t) { return !t || t->dtype == CR_F32; }

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static bool bn_stats_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_is_data(cuda_in(p, op, CR_IN_bn_stats_x)) && is_f32(cuda_out(p, op, CR_OUT_bn_stats_stats));
}

static cr_status bn_stats_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                                  size_t *workspace_bytes) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_stats_x);
    *prepared                 = NULL;
    *workspace_bytes = ck_bn_stats_workspace(cuda_type(x), cuda_pixels(x), x->dim[3], cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status bn_stats_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_bn_stats_x);
    CUDA_TRY(ck_bn_stats(cuda_type(x), call->in[CR_IN_bn_stats_x], call->out[CR_OUT_bn_stats_stats], call->workspace,
                         cuda_pixels(x), x->dim[3], cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool all_f32_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (!is_f32(cuda_in(p, op, s))) return false;
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (!is_f32(cuda_out(p, op, s))) return false;
    return true;
}

static cr_status bn_finalize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_bn_attr    *a    = &call->op->attr.bn;
    const struct ck_bn_finalize args = {.stats    = call->in[CR_IN_bn_finalize_stats],
                                        .gamma    = call->in[CR_IN_bn_finalize_gamma],
                                        .beta     = call->in[CR_IN_bn_finalize_beta],
                                        .old_mean = call->in[CR_IN_bn_finalize_running_mean],
                                        .old_var  = call->in[CR_IN_bn_finalize_running_var],
                                        .coef     = call->out[CR_OUT_bn_finalize_coef],
                                        .saved    = call->out[CR_OUT_bn_finalize_saved],
                                        .new_mean = call->out[CR_OUT_bn_finalize_running_mean],
                                        .new_var  = call->out[CR_OUT_bn_finalize_running_var],
                                        .channels = cuda_in(call->program, call->op, CR_IN_bn_finalize_stats)->dim[3],
                                        .count    = a->count,
                                        .eps      = a->eps,
                                        .momentum = a->momentum};
    CUDA_TRY(ck_bn_finalize(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status bn_coef_launch(struct cr_device *device, const struct cr_call *call) {
    CUDA_TRY(ck_bn_coef(call->in[CR_IN_bn_coef_gamma], call->in[CR_IN_bn_coef_beta], call->in[CR_IN_bn_coef_running_mean],
                        call->in[CR_IN_bn_coef_running_var], call->out[CR_OUT_bn_coef_coef],
                        cuda_in(call->program, call->op, CR_IN_bn_coef_gamma)->dim[3], call->op->attr.bn.eps,
                        cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool bn_apply_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_apply_x);
    (void)device;
    return cuda_is_data(x) && is_like(cuda_in(p, op, CR_IN_bn_apply_add), x) && is_like(cuda_out(p, op, CR_OUT_bn_apply_y), x) &&
           is_f32(cuda_in(p, op, CR_IN_bn_apply_coef)) && is_f32(cuda_in(p, op, CR_IN_bn_apply_add_coef));
}

static cr_status bn_apply_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor  *x    = cuda_in(call->program, call->op, CR_IN_bn_apply_x);
    const struct ck_bn_apply args = {.type     = cuda_type(x),
                                     .x        = call->in[CR_IN_bn_apply_x],
                                     .add      = call->in[CR_IN_bn_apply_add],
                                     .coef     = call->in[CR_IN_bn_apply_coef],
                                     .add_coef = call->in[CR_IN_bn_apply_add_coef],
                                     .y        = call->out[CR_OUT_bn_apply_y],
                                     .pixels   = cuda_pixels(x),
                                     .channels = x->dim[3],
                                     .relu     = call->op->attr.bn.relu};
    CUDA_TRY(ck_bn_apply(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static bool bn_grad_stats_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_grad_stats_x);
    (void)device;
    return cuda_is_data(x) && is_like(cuda_in(p, op, CR_IN_bn_grad_stats_dy), x) &&
           is_like(cuda_in(p, op, CR_IN_bn_grad_stats_y), x) && is_f32(cuda_in(p, op, CR_IN_bn_grad_stats_saved)) &&
           is_f32(cuda_out(p, op, CR_OUT_bn_grad_stats_dstats));
}

static cr_status bn_grad_stats_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                       void **prepared, size_t *workspace_bytes) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_grad_stats_x);
    *prepared                 = NULL;
    *workspace_bytes = ck_bn_grad_stats_workspace(cuda_type(x), cuda_pixels(x), x->dim[3], cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status bn_grad_stats_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_bn_grad_stats_x);
    CUDA_TRY(ck_bn_grad_stats(cuda_type(x), call->in[CR_IN_bn_grad_stats_dy], call->in[CR_IN_bn_grad_stats_x],
                              call->in[CR_IN_bn_grad_stats_saved], call->in[CR_IN_bn_grad_stats_y],
                              call->out[CR_OUT_bn_grad_stats_dstats], call->workspace, cuda_pixels(x), x->dim[3],
                              cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status bn_grad_finalize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_bn_attr         *a    = &call->op->attr.bn;
    const struct ck_bn_grad_finalize args = {.dstats   = call->in[CR_IN_bn_grad_finalize_dstats],
                                             .gamma    = call->in[CR_IN_bn_grad_finalize_gamma],
                                             .saved    = call->in[CR_IN_bn_grad_finalize_saved],
                                             .dgamma   = call->out[CR_OUT_bn_grad_finalize_dgamma],
                                             .dbeta    = call->out[CR_OUT_bn_grad_finalize_dbeta],
                                             .coef     = call->out[CR_OUT_bn_grad_finalize_coef],
                                             .channels = cuda_in(call->program, call->op, CR_IN_bn_grad_finalize_dstats)->dim[3],
                                             .count    = a->count,
                                             .accumulate = a->accumulate};
    CUDA_TRY(ck_bn_grad_finalize(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool bn_grad_apply_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_grad_apply_x);
    (void)device;
    return cuda_is_data(x) && is_like(cuda_in(p, op, CR_IN_bn_grad_apply_dy), x) &&
           is_like(cuda_in(p, op, CR_IN_bn_grad_apply_y), x) && is_like(cuda_out(p, op, CR_OUT_bn_grad_apply_dx), x) &&
           is_f32(cuda_in(p, op, CR_IN_bn_grad_apply_coef));
}

static cr_status bn_grad_apply_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_bn_grad_apply_x);
    CUDA_TRY(ck_bn_grad_apply(cuda_type(x), call->in[CR_IN_bn_grad_apply_dy], call->in[CR_IN_bn_grad_apply_x],
                              call->in[CR_IN_bn_grad_apply_coef], call->in[CR_IN_bn_grad_apply_y],
                              call->out[CR_OUT_bn_grad_apply_dx], cuda_pixels(x), x->dim[3],
                              cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool channel_scale_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dy = cuda_in(p, op, CR_IN_channel_scale_dy);
    (void)device;
    return cuda_is_data(dy) && is_like(cuda_out(p, op, CR_OUT_channel_scale_dx), dy) &&
           is_f32(cuda_in(p, op, CR_IN_channel_scale_coef));
}

static cr_status channel_scale_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dy = cuda_in(call->program, call->op, CR_IN_channel_scale_dy);
    CUDA_TRY(ck_channel_scale(cuda_type(dy), call->in[CR_IN_channel_scale_dy], call->in[CR_IN_channel_scale_coef],
                              call->out[CR_OUT_channel_scale_dx], cuda_pixels(dy), dy->dim[3],
                              cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define BN_ROW(kind, accept, prepares)                                                                                 \
    static const struct cr_kernel row_##kind = {.name = "cuda." #kind, .op = CR_OP_##kind, .math = CR_MATH_F32,       \
                                                .deterministic = true, .accepts = accept, .prepare = prepares,         \
                                                .launch = kind##_launch}
BN_ROW(bn_stats, bn_stats_accepts, bn_stats_prepare);
BN_ROW(bn_finalize, all_f32_accepts, NULL);
BN_ROW(bn_coef, all_f32_accepts, NULL);
BN_ROW(bn_apply, bn_apply_accepts, NULL);
BN_ROW(bn_grad_stats, bn_grad_stats_accepts, bn_grad_stats_prepare);
BN_ROW(bn_grad_finalize, all_f32_accepts, NULL);
BN_ROW(bn_grad_apply, bn_grad_apply_accepts, NULL);
BN_ROW(channel_scale, channel_scale_accepts, NULL);

const struct cr_kernel *const cr_cuda_bn_rows[] = {&row_bn_stats,      &row_bn_finalize,      &row_bn_coef,
                                                   &row_bn_apply,      &row_bn_grad_stats,    &row_bn_grad_finalize,
                                                   &row_bn_grad_apply, &row_channel_scale,    NULL};
