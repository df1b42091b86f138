/* cuda/norm/bn_kernels.c: kernel table of batch normalisation and of the ReLU gradient, which computes sums for it.
 * This file reads shapes and slots. Device code is in cuda/norm/bn.cu, bn_apply.cu, bn_grad.cu, bn_relu_grad.cu and
 * relu_grad.cu. Data is f32, f16 or bf16, one type in an op; sums, coefficients, parameters and their gradients are
 * always f32. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* A mask slot: the activation, or its bit mask with one byte for eight channels. */
static bool is_mask(const struct cr_tensor *y, const struct cr_tensor *data) {
    return !y || y->dtype == data->dtype || (y->dtype == CR_U8 && data->dim[3] % 8 == 0);
}
static enum ck_mask mask_kind(const struct cr_tensor *y, bool act) {
    return act ? CK_MASK_ACT : !y ? CK_MASK_NONE : y->dtype == CR_U8 ? CK_MASK_BITS : CK_MASK_Y;
}

/* ---- forward ---- */

static size_t bn_sums_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_bn_sums_x);
    return ck_bn_sums_workspace(cuda_type(x), cuda_pixels(x), x->dim[3], cuda_of(device)->multiprocessors);
}

static cr_status bn_sums_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_bn_sums_x);
    return CUDA_STATUS(ck_bn_sums(cuda_type(x), call->in[CR_IN_bn_sums_x], call->out[CR_OUT_bn_sums_sums],
                                  call->workspace, cuda_pixels(x), x->dim[3], cuda_of(device)->multiprocessors,
                                  cr_cuda_stream(device, call)));
}

/* The copy of scale and bias is in 16 bits. */
static bool bn_finalize_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *copy = cuda_out(p, op, CR_OUT_bn_finalize_scale_bias_half);
    (void)device;
    return !copy || copy->dtype == CR_F16 || copy->dtype == CR_BF16;
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
    return CUDA_STATUS(ck_bn_finalize(&args, cr_cuda_stream(device, call)));
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
    return CUDA_STATUS(ck_bn_scale_bias(&args, cr_cuda_stream(device, call)));
}

static bool bn_apply_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return op->out[CR_OUT_bn_apply_mask] == CR_NONE ||
           (op->attr.bn.relu && cuda_in(p, op, CR_IN_bn_apply_x)->dim[3] % 8 == 0);
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
    return CUDA_STATUS(ck_bn_apply(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

/* ---- backward ---- */

/* The slots y and scale_bias exclude each other. */
static bool bn_grad_sums_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return is_mask(cuda_in(p, op, CR_IN_bn_grad_sums_y), cuda_in(p, op, CR_IN_bn_grad_sums_x)) &&
           (op->in[CR_IN_bn_grad_sums_y] == CR_NONE || op->in[CR_IN_bn_grad_sums_scale_bias] == CR_NONE);
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

static size_t grad_sums_bytes(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_bn_grad args = bn_grad_sums_args(p, op);
    return ck_bn_grad_sums_workspace(&args, cuda_of(device)->multiprocessors);
}

static cr_status bn_grad_sums_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_bn_grad args = bn_grad_sums_args(call->program, call->op);
    args.dy                = call->in[CR_IN_bn_grad_sums_dy];
    args.x                 = call->in[CR_IN_bn_grad_sums_x];
    args.mask      = args.by == CK_MASK_ACT ? call->in[CR_IN_bn_grad_sums_scale_bias] : call->in[CR_IN_bn_grad_sums_y];
    args.mean_rstd = call->in[CR_IN_bn_grad_sums_mean_rstd];
    args.grad_sums = call->out[CR_OUT_bn_grad_sums_grad_sums];
    return CUDA_STATUS(
        ck_bn_grad_sums(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
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
    return CUDA_STATUS(ck_bn_grad_finalize(&args, cr_cuda_stream(device, call)));
}

static bool bn_grad_apply_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return is_mask(cuda_in(p, op, CR_IN_bn_grad_apply_y), cuda_in(p, op, CR_IN_bn_grad_apply_x)) &&
           (op->in[CR_IN_bn_grad_apply_y] == CR_NONE || op->in[CR_IN_bn_grad_apply_scale_bias] == CR_NONE);
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
    return CUDA_STATUS(ck_bn_grad_apply(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
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
    return is_mask(cuda_in(p, op, CR_IN_relu_grad_y), dy) && (first || !second) && (!first || dy->dim[3] % 8 == 0) &&
           together(first, op->in[CR_IN_relu_grad_mean_rstd] != CR_NONE,
                    op->out[CR_OUT_relu_grad_grad_sums] != CR_NONE) &&
           together(second, op->in[CR_IN_relu_grad_mean_rstd2] != CR_NONE,
                    op->out[CR_OUT_relu_grad_grad_sums2] != CR_NONE);
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

static size_t relu_grad_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_relu_grad args = relu_grad_args(p, op);
    return ck_relu_grad_workspace(&args, cuda_of(device)->multiprocessors);
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
    return CUDA_STATUS(
        ck_relu_grad(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
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
    return CUDA_STATUS(ck_bn_relu_grad(&args, (char *)call->workspace + relu_mask_at, cuda_of(device)->multiprocessors,
                                       cr_cuda_stream(device, call)));
}

static cr_status channel_scale_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dy = cuda_in(call->program, call->op, CR_IN_channel_scale_dy);
    return CUDA_STATUS(ck_channel_scale(cuda_type(dy), call->in[CR_IN_channel_scale_dy],
                                        call->in[CR_IN_channel_scale_scale_bias], call->out[CR_OUT_channel_scale_dx],
                                        cuda_pixels(dy), dy->dim[3], cuda_of(device)->multiprocessors,
                                        cr_cuda_stream(device, call)));
}

/* ---- the table ---- */

#define BN_KERNEL(kind, types, ...)                                                                                    \
    { CR_KERNEL("cuda." #kind, kind, CR_MATH_F32), .dtypes = types, .launch = kind##_launch, __VA_ARGS__ }
const struct cr_kernel cr_cuda_bn_kernels[] = {
    BN_KERNEL(bn_sums, CR_TYPES_FLOAT, .workspace = bn_sums_workspace),
    /* An op with `center` has a kernel in cuda/conv/gram/gram_kernels.c. */
    BN_KERNEL(bn_finalize, CR_TYPES_F32, .optional_out = CR_OUT_BIT(bn_finalize, scale_bias_half),
              .accepts = bn_finalize_accepts),
    BN_KERNEL(bn_scale_bias, CR_TYPES_F32),
    BN_KERNEL(bn_apply, CR_TYPES_FLOAT,
              .optional_in =
                  CR_IN_BIT(bn_apply, mean_rstd) | CR_IN_BIT(bn_apply, add) | CR_IN_BIT(bn_apply, add_scale_bias),
              .optional_out = CR_OUT_BIT(bn_apply, mask), .accepts = bn_apply_accepts),
    BN_KERNEL(bn_grad_sums, CR_TYPES_FLOAT,
              .optional_in = CR_IN_BIT(bn_grad_sums, y) | CR_IN_BIT(bn_grad_sums, scale_bias),
              .accepts = bn_grad_sums_accepts, .workspace = grad_sums_bytes),
    BN_KERNEL(bn_grad_finalize, CR_TYPES_F32),
    BN_KERNEL(bn_grad_apply, CR_TYPES_FLOAT,
              .optional_in = CR_IN_BIT(bn_grad_apply, y) | CR_IN_BIT(bn_grad_apply, scale_bias),
              .accepts     = bn_grad_apply_accepts),
    BN_KERNEL(channel_scale, CR_TYPES_FLOAT),
    BN_KERNEL(relu_grad, CR_TYPES_FLOAT,
              .optional_in = CR_IN_BIT(relu_grad, add) | CR_IN_BIT(relu_grad, bn_x) | CR_IN_BIT(relu_grad, mean_rstd) |
                             CR_IN_BIT(relu_grad, bn2_x) | CR_IN_BIT(relu_grad, mean_rstd2),
              .optional_out = CR_OUT_BIT(relu_grad, grad_sums) | CR_OUT_BIT(relu_grad, grad_sums2),
              .accepts = relu_grad_accepts, .workspace = relu_grad_workspace),
    {0}};
