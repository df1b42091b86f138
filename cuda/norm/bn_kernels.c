/* cuda/norm/bn_kernels.c: kernel table of batch normalisation and of the ReLU gradient, which computes sums for it.
 * This file reads shapes and slots. Device code is in cuda/norm/bn.cu, bn_apply.cu, bn_grad.cu, bn_relu_grad.cu,
 * relu_grad.cu, pool_bn.cu and fold_bn.cu. Data is f32, f16 or bf16, one type in an op; sums, coefficients, parameters
 * and their gradients are always f32. */
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

struct ck_bn_finalize cr_cuda_bn_finalize_args(const struct cr_call *call) {
    const struct cr_bn_attr *a = &call->op->attr.bn;
    return (struct ck_bn_finalize){.sums            = call->in[CR_IN_bn_finalize_sums],
                                   .gamma           = call->in[CR_IN_bn_finalize_gamma],
                                   .beta            = call->in[CR_IN_bn_finalize_beta],
                                   .old_mean        = call->in[CR_IN_bn_finalize_running_mean],
                                   .old_var         = call->in[CR_IN_bn_finalize_running_var],
                                   .scale_bias      = call->out[CR_OUT_bn_finalize_scale_bias],
                                   .mean_rstd       = call->out[CR_OUT_bn_finalize_mean_rstd],
                                   .new_mean        = call->out[CR_OUT_bn_finalize_running_mean],
                                   .new_var         = call->out[CR_OUT_bn_finalize_running_var],
                                   .scale_bias_half = call->out[CR_OUT_bn_finalize_scale_bias_half],
                                   .half =
                                       half_type(cuda_out(call->program, call->op, CR_OUT_bn_finalize_scale_bias_half)),
                                   .channels = cuda_in(call->program, call->op, CR_IN_bn_finalize_sums)->dim[3],
                                   .count    = a->count,
                                   .eps      = a->eps,
                                   .momentum = a->momentum};
}

static cr_status bn_finalize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_bn_finalize args = cr_cuda_bn_finalize_args(call);
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

/* Both ops have these inputs in the same slots. */
_Static_assert((int)CR_IN_bn_grad_sums_dy == (int)CR_IN_bn_grad_apply_dy &&
                   (int)CR_IN_bn_grad_sums_x == (int)CR_IN_bn_grad_apply_x &&
                   (int)CR_IN_bn_grad_sums_y == (int)CR_IN_bn_grad_apply_y &&
                   (int)CR_IN_bn_grad_sums_scale_bias == (int)CR_IN_bn_grad_apply_scale_bias,
               "slots of bn_grad_sums and bn_grad_apply");

/* The slots y and scale_bias exclude each other. */
static bool bn_grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return is_mask(cuda_in(p, op, CR_IN_bn_grad_sums_y), cuda_in(p, op, CR_IN_bn_grad_sums_x)) &&
           (op->in[CR_IN_bn_grad_sums_y] == CR_NONE || op->in[CR_IN_bn_grad_sums_scale_bias] == CR_NONE);
}

static struct ck_bn_grad bn_grad_args(const struct cr_call *call) {
    const struct cr_tensor *x   = cuda_in(call->program, call->op, CR_IN_bn_grad_sums_x);
    const bool              act = call->op->in[CR_IN_bn_grad_sums_scale_bias] != CR_NONE;
    return (struct ck_bn_grad){.type     = cuda_type(x),
                               .by       = mask_kind(cuda_in(call->program, call->op, CR_IN_bn_grad_sums_y), act),
                               .dy       = call->in[CR_IN_bn_grad_sums_dy],
                               .x        = call->in[CR_IN_bn_grad_sums_x],
                               .mask     = call->in[act ? CR_IN_bn_grad_sums_scale_bias : CR_IN_bn_grad_sums_y],
                               .pixels   = cuda_pixels(x),
                               .channels = x->dim[3]};
}

static size_t grad_sums_bytes(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_bn_grad args = bn_grad_args(&(struct cr_call){.program = p, .op = op});
    return ck_bn_grad_sums_workspace(&args, cuda_of(device)->multiprocessors);
}

static cr_status bn_grad_sums_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_bn_grad args = bn_grad_args(call);
    args.mean_rstd         = call->in[CR_IN_bn_grad_sums_mean_rstd];
    args.grad_sums         = call->out[CR_OUT_bn_grad_sums_grad_sums];
    return CUDA_STATUS(
        ck_bn_grad_sums(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

static cr_status bn_grad_apply_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_bn_grad args = bn_grad_args(call);
    args.coeffs            = call->in[CR_IN_bn_grad_apply_coeffs];
    args.dx                = call->out[CR_OUT_bn_grad_apply_dx];
    return CUDA_STATUS(ck_bn_grad_apply(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

struct ck_bn_grad_finalize cr_cuda_bn_grad_finalize_args(const struct cr_call *call) {
    const struct cr_bn_attr *a = &call->op->attr.bn;
    return (struct ck_bn_grad_finalize){.grad_sums = call->in[CR_IN_bn_grad_finalize_grad_sums],
                                        .gamma     = call->in[CR_IN_bn_grad_finalize_gamma],
                                        .mean_rstd = call->in[CR_IN_bn_grad_finalize_mean_rstd],
                                        .dgamma    = call->out[CR_OUT_bn_grad_finalize_dgamma],
                                        .dbeta     = call->out[CR_OUT_bn_grad_finalize_dbeta],
                                        .coeffs    = call->out[CR_OUT_bn_grad_finalize_coeffs],
                                        .channels =
                                            cuda_in(call->program, call->op, CR_IN_bn_grad_finalize_grad_sums)->dim[3],
                                        .count      = a->count,
                                        .accumulate = a->accumulate,
                                        .ranks      = a->ranks};
}

static cr_status bn_grad_finalize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_bn_grad_finalize args = cr_cuda_bn_grad_finalize_args(call);
    return CUDA_STATUS(ck_bn_grad_finalize(&args, cr_cuda_stream(device, call)));
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

static struct ck_relu_grad relu_grad_args(const struct cr_call *call) {
    const struct cr_tensor *dy = cuda_in(call->program, call->op, CR_IN_relu_grad_dy);
    return (struct ck_relu_grad){
        .type      = cuda_type(dy),
        .by        = mask_kind(cuda_in(call->program, call->op, CR_IN_relu_grad_y), false),
        .dy        = call->in[CR_IN_relu_grad_dy],
        .y         = call->in[CR_IN_relu_grad_y],
        .add       = call->in[CR_IN_relu_grad_add],
        .bns       = (call->op->in[CR_IN_relu_grad_bn_x] != CR_NONE) + (call->op->in[CR_IN_relu_grad_bn2_x] != CR_NONE),
        .bn_x      = {call->in[CR_IN_relu_grad_bn_x], call->in[CR_IN_relu_grad_bn2_x]},
        .mean_rstd = {call->in[CR_IN_relu_grad_mean_rstd], call->in[CR_IN_relu_grad_mean_rstd2]},
        .grad_sums = {call->out[CR_OUT_relu_grad_grad_sums], call->out[CR_OUT_relu_grad_grad_sums2]},
        .dx        = call->out[CR_OUT_relu_grad_dx],
        .pixels    = cuda_pixels(dy),
        .channels  = dy->dim[3]};
}

static size_t relu_grad_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_relu_grad args = relu_grad_args(&(struct cr_call){.program = p, .op = op});
    return ck_relu_grad_workspace(&args, cuda_of(device)->multiprocessors);
}

static cr_status relu_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_relu_grad args = relu_grad_args(call);
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

/* ---- the gradient of BN, ReLU and max pooling in one kernel ---- */

/* Both ops have these inputs in the same slots. */
_Static_assert((int)CR_IN_pool_bn_grad_sums_dy == (int)CR_IN_pool_bn_grad_apply_dy &&
                   (int)CR_IN_pool_bn_grad_sums_index == (int)CR_IN_pool_bn_grad_apply_index &&
                   (int)CR_IN_pool_bn_grad_sums_x == (int)CR_IN_pool_bn_grad_apply_x &&
                   (int)CR_IN_pool_bn_grad_sums_scale_bias == (int)CR_IN_pool_bn_grad_apply_scale_bias,
               "slots of pool_bn_grad_sums and pool_bn_grad_apply");

/* Windows are 3x3 with stride 2; channels come in whole 16-byte vectors. */
static bool pool_bn_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_conv_attr *a = &op->attr.conv;
    const struct cr_tensor    *x = cuda_in(p, op, CR_IN_pool_bn_grad_sums_x);
    (void)device;
    return a->window == 3 && a->stride == 2 && a->pad <= 1 && x->dim[3] % (x->dtype == CR_F32 ? 4 : 8) == 0 &&
           cuda_fits_ints(x);
}

static struct ck_pool_bn_grad pool_bn_args(const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_pool_bn_grad_sums_x);
    return (struct ck_pool_bn_grad){
        .type  = cuda_type(x),
        .dy    = call->in[CR_IN_pool_bn_grad_sums_dy],
        .index = call->in[CR_IN_pool_bn_grad_sums_index],
        .x     = call->in[CR_IN_pool_bn_grad_sums_x],
        .act   = call->in[CR_IN_pool_bn_grad_sums_scale_bias],
        .w     = cuda_window(call->op, x, cuda_in(call->program, call->op, CR_IN_pool_bn_grad_sums_dy))};
}

static size_t pool_bn_sums_bytes(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_pool_bn_grad args = pool_bn_args(&(struct cr_call){.program = p, .op = op});
    return ck_pool_bn_grad_sums_workspace(args.type, &args.w, cuda_of(device)->multiprocessors);
}

static cr_status pool_bn_grad_sums_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_pool_bn_grad args = pool_bn_args(call);
    args.mean_rstd              = call->in[CR_IN_pool_bn_grad_sums_mean_rstd];
    args.grad_sums              = call->out[CR_OUT_pool_bn_grad_sums_grad_sums];
    return CUDA_STATUS(
        ck_pool_bn_grad_sums(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

static cr_status pool_bn_grad_apply_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_pool_bn_grad args = pool_bn_args(call);
    args.coeffs                 = call->in[CR_IN_pool_bn_grad_apply_coeffs];
    args.dx                     = call->out[CR_OUT_pool_bn_grad_apply_dx];
    return CUDA_STATUS(ck_pool_bn_grad_apply(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

/* ---- BN folded into filters, for inference ---- */

static cr_status fold_bn_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w    = cuda_in(call->program, call->op, CR_IN_fold_bn_w);
    const struct ck_fold_bn args = {.w       = call->in[CR_IN_fold_bn_w],
                                    .gamma   = call->in[CR_IN_fold_bn_gamma],
                                    .beta    = call->in[CR_IN_fold_bn_beta],
                                    .mean    = call->in[CR_IN_fold_bn_running_mean],
                                    .var     = call->in[CR_IN_fold_bn_running_var],
                                    .bias    = call->out[CR_OUT_fold_bn_bias],
                                    .filters = w->dim[0],
                                    .elems   = cr_tensor_elems(w) / w->dim[0],
                                    .eps     = call->op->attr.bn.eps};
    return CUDA_STATUS(ck_fold_bn(&args, cuda_type(cuda_out(call->program, call->op, CR_OUT_fold_bn_y)),
                                  call->out[CR_OUT_fold_bn_y], cr_cuda_stream(device, call)));
}

static bool fold_bn_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_is_data(cuda_out(p, op, CR_OUT_fold_bn_y));
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
              .accepts = bn_grad_accepts, .workspace = grad_sums_bytes),
    BN_KERNEL(bn_grad_finalize, CR_TYPES_F32),
    BN_KERNEL(bn_grad_apply, CR_TYPES_FLOAT,
              .optional_in = CR_IN_BIT(bn_grad_apply, y) | CR_IN_BIT(bn_grad_apply, scale_bias),
              .accepts     = bn_grad_accepts),
    BN_KERNEL(channel_scale, CR_TYPES_FLOAT),
    BN_KERNEL(relu_grad, CR_TYPES_FLOAT,
              .optional_in = CR_IN_BIT(relu_grad, add) | CR_IN_BIT(relu_grad, bn_x) | CR_IN_BIT(relu_grad, mean_rstd) |
                             CR_IN_BIT(relu_grad, bn2_x) | CR_IN_BIT(relu_grad, mean_rstd2),
              .optional_out = CR_OUT_BIT(relu_grad, grad_sums) | CR_OUT_BIT(relu_grad, grad_sums2),
              .accepts = relu_grad_accepts, .workspace = relu_grad_workspace),
    BN_KERNEL(pool_bn_grad_sums, CR_TYPES_FLOAT, .accepts = pool_bn_accepts, .workspace = pool_bn_sums_bytes),
    BN_KERNEL(pool_bn_grad_apply, CR_TYPES_FLOAT, .accepts = pool_bn_accepts),
    BN_KERNEL(fold_bn, CR_TYPES_F32, .accepts = fold_bn_accepts),
    {0}};
