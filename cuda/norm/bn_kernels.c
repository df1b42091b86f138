/* cuda/norm/bn_kernels.c: kernel table of batch normalisation and of the ReLU gradient, which computes sums for it.
 * This file reads shapes and slots. Device code is in cuda/norm/bn.cu, bn_apply.cu, bn_grad.cu, bn_relu_grad.cu and
 * relu_grad.cu. Data is f32, f16 or bf16, one type in an op; sums, coefficients, parameters and their gradients are
 * always f32. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/optional_slots.h"

#define SLOT_IN(kind, slot) (1u << CR_IN_##kind##_##slot)
#define SLOT_OUT(kind, slot) (1u << CR_OUT_##kind##_##slot)

static bool is_half(const struct cr_tensor *t) {
    return !t || t->dtype == CR_F16 || t->dtype == CR_BF16;
}

/* A mask slot: the activation, or its bit mask with one byte for eight channels. */
static bool is_mask(const struct cr_tensor *y, const struct cr_tensor *data) {
    return is_like(y, data) || (y->dtype == CR_U8 && data->dim[3] % 8 == 0);
}
static enum ck_mask mask_kind(const struct cr_tensor *y, bool act) {
    return act ? CK_MASK_ACT : !y ? CK_MASK_NONE : y->dtype == CR_U8 ? CK_MASK_BITS : CK_MASK_Y;
}

/* ---- forward ---- */

static bool bn_sums_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_is_data(cuda_in(p, op, CR_IN_bn_sums_x)) && is_f32(cuda_out(p, op, CR_OUT_bn_sums_sums)) &&
           cr_op_uses_only(op, SLOT_IN(bn_sums, x), SLOT_OUT(bn_sums, sums));
}

static cr_status bn_sums_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                 void **prepared, size_t *workspace_bytes) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_sums_x);
    *prepared                 = NULL;
    *workspace_bytes = ck_bn_sums_workspace(cuda_type(x), cuda_pixels(x), x->dim[3], cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status bn_sums_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_bn_sums_x);
    CUDA_TRY(ck_bn_sums(cuda_type(x), call->in[CR_IN_bn_sums_x], call->out[CR_OUT_bn_sums_sums], call->workspace,
                        cuda_pixels(x), x->dim[3], cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* All tensors are f32 except output slot `half`, an optional copy in 16 bits (-1: the op has no such slot). */
static bool f32_but(const struct cr_program *p, const struct cr_op *op, int half) {
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (!is_f32(cuda_in(p, op, s))) return false;
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (s == half ? !is_half(cuda_out(p, op, s)) : !is_f32(cuda_out(p, op, s))) return false;
    return true;
}

/* An op with `center` has a kernel in cuda/conv/gram/gram_kernels.c. */
static bool bn_finalize_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return f32_but(p, op, CR_OUT_bn_finalize_scale_bias_half) &&
           cr_op_uses_only(op,
                           SLOT_IN(bn_finalize, sums) | SLOT_IN(bn_finalize, gamma) | SLOT_IN(bn_finalize, beta) |
                               SLOT_IN(bn_finalize, running_mean) | SLOT_IN(bn_finalize, running_var),
                           SLOT_OUT(bn_finalize, scale_bias) | SLOT_OUT(bn_finalize, mean_rstd) |
                               SLOT_OUT(bn_finalize, running_mean) | SLOT_OUT(bn_finalize, running_var) |
                               SLOT_OUT(bn_finalize, scale_bias_half));
}

static enum ck_type half_type(const struct cr_tensor *t) {
    return t ? cuda_type(t) : CK_F16;
}

static cr_status bn_finalize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_bn_attr    *a    = &call->op->attr.bn;
    const struct ck_bn_finalize args = {
        .sums            = call->in[CR_IN_bn_finalize_sums],
        .gamma           = call->in[CR_IN_bn_finalize_gamma],
        .beta            = call->in[CR_IN_bn_finalize_beta],
        .old_mean        = call->in[CR_IN_bn_finalize_running_mean],
        .old_var         = call->in[CR_IN_bn_finalize_running_var],
        .scale_bias      = call->out[CR_OUT_bn_finalize_scale_bias],
        .mean_rstd       = call->out[CR_OUT_bn_finalize_mean_rstd],
        .new_mean        = call->out[CR_OUT_bn_finalize_running_mean],
        .new_var         = call->out[CR_OUT_bn_finalize_running_var],
        .scale_bias_half = call->out[CR_OUT_bn_finalize_scale_bias_half],
        .half            = half_type(cuda_out(call->program, call->op, CR_OUT_bn_finalize_scale_bias_half)),
        .channels        = cuda_in(call->program, call->op, CR_IN_bn_finalize_sums)->dim[3],
        .count           = a->count,
        .eps             = a->eps,
        .momentum        = a->momentum};
    CUDA_TRY(ck_bn_finalize(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool bn_scale_bias_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return f32_but(p, op, -1) &&
           cr_op_uses_only(op,
                           SLOT_IN(bn_scale_bias, gamma) | SLOT_IN(bn_scale_bias, beta) |
                               SLOT_IN(bn_scale_bias, running_mean) | SLOT_IN(bn_scale_bias, running_var),
                           SLOT_OUT(bn_scale_bias, scale_bias));
}

static cr_status bn_scale_bias_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_bn_scale_bias args = {.gamma      = call->in[CR_IN_bn_scale_bias_gamma],
                                          .beta       = call->in[CR_IN_bn_scale_bias_beta],
                                          .mean       = call->in[CR_IN_bn_scale_bias_running_mean],
                                          .var        = call->in[CR_IN_bn_scale_bias_running_var],
                                          .scale_bias = call->out[CR_OUT_bn_scale_bias_scale_bias],
                                          .channels =
                                              cuda_in(call->program, call->op, CR_IN_bn_scale_bias_gamma)->dim[3],
                                          .eps = call->op->attr.bn.eps};
    CUDA_TRY(ck_bn_scale_bias(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool bn_apply_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_apply_x);
    (void)device;
    return cuda_is_data(x) && is_like(cuda_in(p, op, CR_IN_bn_apply_add), x) &&
           is_like(cuda_out(p, op, CR_OUT_bn_apply_y), x) && is_f32(cuda_in(p, op, CR_IN_bn_apply_scale_bias)) &&
           is_f32(cuda_in(p, op, CR_IN_bn_apply_add_scale_bias)) &&
           (op->out[CR_OUT_bn_apply_mask] == CR_NONE || (op->attr.bn.relu && x->dim[3] % 8 == 0)) &&
           cr_op_uses_only(op,
                           SLOT_IN(bn_apply, x) | SLOT_IN(bn_apply, scale_bias) | SLOT_IN(bn_apply, mean_rstd) |
                               SLOT_IN(bn_apply, add) | SLOT_IN(bn_apply, add_scale_bias),
                           SLOT_OUT(bn_apply, y) | SLOT_OUT(bn_apply, mask));
}

static cr_status bn_apply_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor  *x    = cuda_in(call->program, call->op, CR_IN_bn_apply_x);
    const struct ck_bn_apply args = {.type           = cuda_type(x),
                                     .x              = call->in[CR_IN_bn_apply_x],
                                     .add            = call->in[CR_IN_bn_apply_add],
                                     .scale_bias     = call->in[CR_IN_bn_apply_scale_bias],
                                     .add_scale_bias = call->in[CR_IN_bn_apply_add_scale_bias],
                                     .y              = call->out[CR_OUT_bn_apply_y],
                                     .mask           = call->out[CR_OUT_bn_apply_mask],
                                     .pixels         = cuda_pixels(x),
                                     .channels       = x->dim[3],
                                     .relu           = call->op->attr.bn.relu};
    CUDA_TRY(ck_bn_apply(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- backward ---- */

static bool bn_grad_sums_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_grad_sums_x);
    (void)device;
    return cuda_is_data(x) && is_like(cuda_in(p, op, CR_IN_bn_grad_sums_dy), x) &&
           is_mask(cuda_in(p, op, CR_IN_bn_grad_sums_y), x) && is_f32(cuda_in(p, op, CR_IN_bn_grad_sums_mean_rstd)) &&
           is_f32(cuda_in(p, op, CR_IN_bn_grad_sums_scale_bias)) &&
           is_f32(cuda_out(p, op, CR_OUT_bn_grad_sums_grad_sums)) &&
           (op->in[CR_IN_bn_grad_sums_y] == CR_NONE || op->in[CR_IN_bn_grad_sums_scale_bias] == CR_NONE) &&
           cr_op_uses_only(op,
                           SLOT_IN(bn_grad_sums, dy) | SLOT_IN(bn_grad_sums, x) | SLOT_IN(bn_grad_sums, mean_rstd) |
                               SLOT_IN(bn_grad_sums, y) | SLOT_IN(bn_grad_sums, scale_bias),
                           SLOT_OUT(bn_grad_sums, grad_sums));
}

/* Type, mask and sizes; no pointers. */
static struct ck_bn_grad bn_grad_sums_args(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_grad_sums_x);
    return (struct ck_bn_grad){
        .type     = cuda_type(x),
        .by       = mask_kind(cuda_in(p, op, CR_IN_bn_grad_sums_y), op->in[CR_IN_bn_grad_sums_scale_bias] != CR_NONE),
        .pixels   = cuda_pixels(x),
        .channels = x->dim[3]};
}

static cr_status bn_grad_sums_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                      void **prepared, size_t *workspace_bytes) {
    const struct ck_bn_grad args = bn_grad_sums_args(p, op);
    *prepared                    = NULL;
    *workspace_bytes             = ck_bn_grad_sums_workspace(&args, cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status bn_grad_sums_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_bn_grad args = bn_grad_sums_args(call->program, call->op);
    args.dy                = call->in[CR_IN_bn_grad_sums_dy];
    args.x                 = call->in[CR_IN_bn_grad_sums_x];
    args.mask      = args.by == CK_MASK_ACT ? call->in[CR_IN_bn_grad_sums_scale_bias] : call->in[CR_IN_bn_grad_sums_y];
    args.mean_rstd = call->in[CR_IN_bn_grad_sums_mean_rstd];
    args.grad_sums = call->out[CR_OUT_bn_grad_sums_grad_sums];
    CUDA_TRY(ck_bn_grad_sums(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool bn_grad_finalize_accepts(const struct cr_device *device, const struct cr_program *p,
                                     const struct cr_op *op) {
    (void)device;
    return f32_but(p, op, -1) &&
           cr_op_uses_only(op,
                           SLOT_IN(bn_grad_finalize, grad_sums) | SLOT_IN(bn_grad_finalize, gamma) |
                               SLOT_IN(bn_grad_finalize, mean_rstd),
                           SLOT_OUT(bn_grad_finalize, dgamma) | SLOT_OUT(bn_grad_finalize, dbeta) |
                               SLOT_OUT(bn_grad_finalize, coeffs));
}

static cr_status bn_grad_finalize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_bn_attr         *a    = &call->op->attr.bn;
    const struct ck_bn_grad_finalize args = {
        .grad_sums  = call->in[CR_IN_bn_grad_finalize_grad_sums],
        .gamma      = call->in[CR_IN_bn_grad_finalize_gamma],
        .mean_rstd  = call->in[CR_IN_bn_grad_finalize_mean_rstd],
        .dgamma     = call->out[CR_OUT_bn_grad_finalize_dgamma],
        .dbeta      = call->out[CR_OUT_bn_grad_finalize_dbeta],
        .coeffs     = call->out[CR_OUT_bn_grad_finalize_coeffs],
        .channels   = cuda_in(call->program, call->op, CR_IN_bn_grad_finalize_grad_sums)->dim[3],
        .count      = a->count,
        .accumulate = a->accumulate,
        .ranks      = a->ranks};
    CUDA_TRY(ck_bn_grad_finalize(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool bn_grad_apply_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_grad_apply_x);
    (void)device;
    return cuda_is_data(x) && is_like(cuda_in(p, op, CR_IN_bn_grad_apply_dy), x) &&
           is_mask(cuda_in(p, op, CR_IN_bn_grad_apply_y), x) && is_like(cuda_out(p, op, CR_OUT_bn_grad_apply_dx), x) &&
           is_f32(cuda_in(p, op, CR_IN_bn_grad_apply_coeffs)) &&
           is_f32(cuda_in(p, op, CR_IN_bn_grad_apply_scale_bias)) &&
           (op->in[CR_IN_bn_grad_apply_y] == CR_NONE || op->in[CR_IN_bn_grad_apply_scale_bias] == CR_NONE) &&
           cr_op_uses_only(op,
                           SLOT_IN(bn_grad_apply, dy) | SLOT_IN(bn_grad_apply, x) | SLOT_IN(bn_grad_apply, coeffs) |
                               SLOT_IN(bn_grad_apply, y) | SLOT_IN(bn_grad_apply, scale_bias),
                           SLOT_OUT(bn_grad_apply, dx));
}

static cr_status bn_grad_apply_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x    = cuda_in(call->program, call->op, CR_IN_bn_grad_apply_x);
    const void             *act  = call->in[CR_IN_bn_grad_apply_scale_bias];
    const struct ck_bn_grad args = {.type = cuda_type(x),
                                    .by =
                                        mask_kind(cuda_in(call->program, call->op, CR_IN_bn_grad_apply_y), act != NULL),
                                    .dy       = call->in[CR_IN_bn_grad_apply_dy],
                                    .x        = call->in[CR_IN_bn_grad_apply_x],
                                    .mask     = act ? act : call->in[CR_IN_bn_grad_apply_y],
                                    .coeffs   = call->in[CR_IN_bn_grad_apply_coeffs],
                                    .dx       = call->out[CR_OUT_bn_grad_apply_dx],
                                    .pixels   = cuda_pixels(x),
                                    .channels = x->dim[3]};
    CUDA_TRY(ck_bn_grad_apply(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the ReLU gradient, with the sums of the BNs in front of it ---- */

/* A BN's input, its statistics and its sums are all present or all absent. */
static bool together(bool x, bool mean_rstd, bool grad_sums) {
    return x == mean_rstd && x == grad_sums;
}

static bool relu_grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dy = cuda_in(p, op, CR_IN_relu_grad_dy);
    const bool first = op->in[CR_IN_relu_grad_bn_x] != CR_NONE, second = op->in[CR_IN_relu_grad_bn2_x] != CR_NONE;
    (void)device;
    return cuda_is_data(dy) && is_mask(cuda_in(p, op, CR_IN_relu_grad_y), dy) &&
           is_like(cuda_in(p, op, CR_IN_relu_grad_add), dy) && is_like(cuda_in(p, op, CR_IN_relu_grad_bn_x), dy) &&
           is_like(cuda_in(p, op, CR_IN_relu_grad_bn2_x), dy) && is_like(cuda_out(p, op, CR_OUT_relu_grad_dx), dy) &&
           is_f32(cuda_in(p, op, CR_IN_relu_grad_mean_rstd)) && is_f32(cuda_in(p, op, CR_IN_relu_grad_mean_rstd2)) &&
           is_f32(cuda_out(p, op, CR_OUT_relu_grad_grad_sums)) &&
           is_f32(cuda_out(p, op, CR_OUT_relu_grad_grad_sums2)) && (first || !second) &&
           (!first || dy->dim[3] % 8 == 0) &&
           together(first, op->in[CR_IN_relu_grad_mean_rstd] != CR_NONE,
                    op->out[CR_OUT_relu_grad_grad_sums] != CR_NONE) &&
           together(second, op->in[CR_IN_relu_grad_mean_rstd2] != CR_NONE,
                    op->out[CR_OUT_relu_grad_grad_sums2] != CR_NONE) &&
           cr_op_uses_only(op,
                           SLOT_IN(relu_grad, dy) | SLOT_IN(relu_grad, y) | SLOT_IN(relu_grad, add) |
                               SLOT_IN(relu_grad, bn_x) | SLOT_IN(relu_grad, mean_rstd) | SLOT_IN(relu_grad, bn2_x) |
                               SLOT_IN(relu_grad, mean_rstd2),
                           SLOT_OUT(relu_grad, dx) | SLOT_OUT(relu_grad, grad_sums) | SLOT_OUT(relu_grad, grad_sums2));
}

/* Type, mask, sums and sizes; no pointers. */
static struct ck_relu_grad relu_grad_args(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dy = cuda_in(p, op, CR_IN_relu_grad_dy);
    return (struct ck_relu_grad){.type = cuda_type(dy),
                                 .by   = mask_kind(cuda_in(p, op, CR_IN_relu_grad_y), false),
                                 .bns  = (op->in[CR_IN_relu_grad_bn_x] != CR_NONE ? 1 : 0) +
                                        (op->in[CR_IN_relu_grad_bn2_x] != CR_NONE ? 1 : 0),
                                 .pixels   = cuda_pixels(dy),
                                 .channels = dy->dim[3]};
}

static cr_status relu_grad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                   void **prepared, size_t *workspace_bytes) {
    const struct ck_relu_grad args = relu_grad_args(p, op);
    *prepared                      = NULL;
    *workspace_bytes               = ck_relu_grad_workspace(&args, cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status relu_grad_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_relu_grad args = relu_grad_args(call->program, call->op);
    args.dy                  = call->in[CR_IN_relu_grad_dy];
    args.y                   = call->in[CR_IN_relu_grad_y];
    args.add                 = call->in[CR_IN_relu_grad_add];
    args.bn_x[0]             = call->in[CR_IN_relu_grad_bn_x];
    args.bn_x[1]             = call->in[CR_IN_relu_grad_bn2_x];
    args.mean_rstd[0]        = call->in[CR_IN_relu_grad_mean_rstd];
    args.mean_rstd[1]        = call->in[CR_IN_relu_grad_mean_rstd2];
    args.grad_sums[0]        = call->out[CR_OUT_relu_grad_grad_sums];
    args.grad_sums[1]        = call->out[CR_OUT_relu_grad_grad_sums2];
    args.dx                  = call->out[CR_OUT_relu_grad_dx];
    CUDA_TRY(ck_relu_grad(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the second kernel of a conv_dgrad: ReLU mask and sums of the BN in front of the convolution ---- */

size_t cr_cuda_bn_relu_grad_workspace(const struct cr_device *device, const struct cr_program *p,
                                      const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_dgrad_bn_x);
    return x ? ck_bn_relu_grad_workspace(cuda_type(x), cuda_pixels(x), x->dim[3], cuda_of(device)->multiprocessors) : 0;
}

cr_status cr_cuda_bn_relu_grad(struct cr_device *device, const struct cr_call *call, size_t relu_mask_at) {
    const struct cr_tensor      *x    = cuda_in(call->program, call->op, CR_IN_conv_dgrad_bn_x);
    const struct ck_bn_relu_grad args = {.type      = cuda_type(x),
                                         .g         = call->out[CR_OUT_conv_dgrad_dx],
                                         .x         = call->in[CR_IN_conv_dgrad_bn_x],
                                         .mean_rstd = call->in[CR_IN_conv_dgrad_mean_rstd],
                                         .gamma     = call->in[CR_IN_conv_dgrad_gamma],
                                         .beta      = call->in[CR_IN_conv_dgrad_beta],
                                         .grad_sums = call->out[CR_OUT_conv_dgrad_grad_sums],
                                         .pixels    = cuda_pixels(x),
                                         .channels  = x->dim[3]};
    CUDA_TRY(ck_bn_relu_grad(&args, (char *)call->workspace + relu_mask_at, cuda_of(device)->multiprocessors,
                             cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool channel_scale_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dy = cuda_in(p, op, CR_IN_channel_scale_dy);
    (void)device;
    return cuda_is_data(dy) && is_like(cuda_out(p, op, CR_OUT_channel_scale_dx), dy) &&
           is_f32(cuda_in(p, op, CR_IN_channel_scale_scale_bias)) &&
           cr_op_uses_only(op, SLOT_IN(channel_scale, dy) | SLOT_IN(channel_scale, scale_bias),
                           SLOT_OUT(channel_scale, dx));
}

static cr_status channel_scale_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dy = cuda_in(call->program, call->op, CR_IN_channel_scale_dy);
    CUDA_TRY(ck_channel_scale(cuda_type(dy), call->in[CR_IN_channel_scale_dy], call->in[CR_IN_channel_scale_scale_bias],
                              call->out[CR_OUT_channel_scale_dx], cuda_pixels(dy), dy->dim[3],
                              cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the table ---- */

#define BN_KERNEL(kind, accept, prepares, reads, ...)                                                                  \
    static const struct cr_kernel kernel_##kind = {.name          = "cuda." #kind,                                     \
                                                   .op            = CR_OP_##kind,                                      \
                                                   .math          = CR_MATH_F32,                                       \
                                                   .deterministic = true,                                              \
                                                   .accepts       = accept,                                            \
                                                   .prepare       = prepares,                                          \
                                                   .host_slots    = reads,                                             \
                                                   .launch        = kind##_launch,                                     \
                                                   __VA_ARGS__}
BN_KERNEL(bn_sums, bn_sums_accepts, bn_sums_prepare, SLOT_IN(bn_sums, x));
BN_KERNEL(bn_finalize, bn_finalize_accepts, NULL, 0);
BN_KERNEL(bn_scale_bias, bn_scale_bias_accepts, NULL, 0);
BN_KERNEL(bn_apply, bn_apply_accepts, NULL, SLOT_IN(bn_apply, x) | SLOT_IN(bn_apply, add));
BN_KERNEL(bn_grad_sums, bn_grad_sums_accepts, bn_grad_sums_prepare,
          SLOT_IN(bn_grad_sums, dy) | SLOT_IN(bn_grad_sums, x) | SLOT_IN(bn_grad_sums, y));
BN_KERNEL(bn_grad_finalize, bn_grad_finalize_accepts, NULL, 0);
BN_KERNEL(bn_grad_apply, bn_grad_apply_accepts, NULL,
          SLOT_IN(bn_grad_apply, dy) | SLOT_IN(bn_grad_apply, x) | SLOT_IN(bn_grad_apply, y));
BN_KERNEL(channel_scale, channel_scale_accepts, NULL, SLOT_IN(channel_scale, dy));
BN_KERNEL(relu_grad, relu_grad_accepts, relu_grad_prepare,
          SLOT_IN(relu_grad, dy) | SLOT_IN(relu_grad, y) | SLOT_IN(relu_grad, add) | SLOT_IN(relu_grad, bn_x) |
              SLOT_IN(relu_grad, bn2_x));

const struct cr_kernel *const cr_cuda_bn_kernels[] = {
    &kernel_bn_sums,          &kernel_bn_finalize,   &kernel_bn_scale_bias, &kernel_bn_apply,  &kernel_bn_grad_sums,
    &kernel_bn_grad_finalize, &kernel_bn_grad_apply, &kernel_channel_scale, &kernel_relu_grad, NULL};
