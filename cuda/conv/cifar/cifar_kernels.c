/* cuda/conv/cifar/cifar_kernels.c: kernel table of the convolutions of CIFAR ResNets, forward and backward, and their
 * classifier, in f16 and bf16, for every GPU. The forward also has bias, sum and ReLU of inference. The backward of
 * 32x32 pixels with stride 2, 3x3, needs more shared memory than a block of compute capability 8.6, 8.9 or 12.0 has.
 * Device code is in cuda/conv/cifar/cifar_conv.cu, cifar_conv_grad.cu and cifar_dense.cu. */
#include "cuda/conv/cifar/cifar_fused.h"
#include "cuda/core/family_kernels.h"
#include "cuda/core/kernel_tables.h"

/* A filter can exceed the number range of struct ck_conv only if the shape is not supported. */
static bool supports(const struct cr_op *op, const struct cr_tensor *x, const struct cr_tensor *w,
                     const struct cr_tensor *y) {
    if (w->dim[1] > 3 || w->dim[2] > 3) return false;
    const struct ck_conv v = cuda_conv_shape(op, x, w, y);
    return ck_cifar_conv_supports(&v);
}

/* ---- forward ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_##slot)

static bool stores_rows(const struct cr_program *p, const struct cr_op *op) {
    return OUT(sums) && cr_sum_rows(OUT(sums)) > 1;
}
static int rows_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv v    = cuda_conv_shape(op, IN(x), IN(w), OUT(y));
    const int            rows = ck_cifar_conv_rows(&v, cuda_of(device)->multiprocessors);
    return rows ? rows : CR_NONE;
}

/* All tensors that finish the sums are present, or none. */
static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    if ((IN(bias) || IN(add) || op->attr.conv.relu) && (!IN(bias) || IN(scale_bias) || OUT(sums))) return false;
    if (!cuda_is_f32(IN(scale_bias))) return false;
    for (int s = CR_IN_conv_gamma; s <= CR_IN_conv_running_var; s++)
        if (!cuda_in(p, op, s) != !IN(gamma)) return false;
    for (int s = CR_OUT_conv_next_scale_bias; s <= CR_OUT_conv_running_var; s++)
        if (!cuda_out(p, op, s) != !IN(gamma)) return false;
    if (IN(gamma) && !OUT(sums)) return false;
    if (!supports(op, IN(x), IN(w), OUT(y)) || (IN(scale_bias) && IN(x)->dim[3] == 3)) return false;
    return !stores_rows(p, op) || (!IN(gamma) && cr_sum_rows(OUT(sums)) == rows_of(device, p, op));
}

size_t cr_cuda_cifar_conv_workspace(const struct cr_device *device, const struct cr_program *p,
                                    const struct cr_op *op) {
    const struct ck_conv v = cuda_conv_shape(op, IN(x), IN(w), OUT(y));
    return OUT(sums) && !stores_rows(p, op) ? ck_cifar_conv_workspace(&v, cuda_of(device)->multiprocessors) : 0;
}

static struct ck_bn_finalize conv_finish(const struct cr_call *call) {
    const struct cr_bn_attr *a = &call->op->attr.conv.bn;
    return (struct ck_bn_finalize){.gamma      = call->in[CR_IN_conv_gamma],
                                   .beta       = call->in[CR_IN_conv_beta],
                                   .old_mean   = call->in[CR_IN_conv_running_mean],
                                   .old_var    = call->in[CR_IN_conv_running_var],
                                   .scale_bias = call->out[CR_OUT_conv_next_scale_bias],
                                   .mean_rstd  = call->out[CR_OUT_conv_mean_rstd],
                                   .new_mean   = call->out[CR_OUT_conv_running_mean],
                                   .new_var    = call->out[CR_OUT_conv_running_var],
                                   .count      = a->count,
                                   .eps        = a->eps,
                                   .momentum   = a->momentum};
}

struct ck_cifar_conv cr_cuda_cifar_conv_of(const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    return (struct ck_cifar_conv){.conv        = cuda_conv_shape(op, IN(x), IN(w), OUT(y)),
                                  .x           = call->in[CR_IN_conv_x],
                                  .w           = call->in[CR_IN_conv_w],
                                  .scale_bias  = call->in[CR_IN_conv_scale_bias],
                                  .y           = call->out[CR_OUT_conv_y],
                                  .sums        = call->out[CR_OUT_conv_sums],
                                  .finish      = conv_finish(call),
                                  .bias        = call->in[CR_IN_conv_bias],
                                  .add         = call->in[CR_IN_conv_add],
                                  .relu        = op->attr.conv.relu,
                                  .stores_rows = stores_rows(p, op)};
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_cifar_conv args = cr_cuda_cifar_conv_of(call);
    return CUDA_STATUS(
        ck_cifar_conv(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}
#undef IN
#undef OUT

/* ---- backward ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_grad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_grad_##slot)

/* Where a launch for dy and dx, and one for the dw of many convolutions, are faster. */
static int grad_sum_rows(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv v = cuda_conv_shape(op, IN(x), IN(w), IN(g));
    if (!IN(dy_x) || !ck_cifar_dgrad_supports(&v, cuda_of(device)->multiprocessors, cuda_of(device)->block_bytes))
        return CR_NONE;
    return ck_cifar_dgrad_rows(&v, cuda_of(device)->multiprocessors);
}

static bool grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    if (!IN(gamma) != !OUT(grad_coeffs) || (IN(gamma) ? !OUT(grad_sums) : OUT(dgamma) || OUT(dbeta))) return false;
    if (!cuda_is_f32(IN(scale_bias)) || !supports(op, x, IN(w), IN(g))) return false;
    const struct ck_conv v = cuda_conv_shape(op, x, IN(w), IN(g));
    if (!ck_cifar_conv_grad_supports(&v, cuda_of(device)->block_bytes)) return false;
    if (OUT(dy) && (OUT(dw) || !OUT(grad_sums) || !grad_sum_rows(device, p, op) ||
                    cr_sum_rows(OUT(grad_sums)) != grad_sum_rows(device, p, op)))
        return false;
    if (!OUT(dy) && (!OUT(dw) || (OUT(grad_sums) && cr_sum_rows(OUT(grad_sums)) != 1))) return false;
    if (op->attr.conv.add_pad_c && (!IN(add) || v.stride != 2 || v.R != 3 || op->attr.conv.add_pad_c % 8 != 0))
        return false;
    if (!IN(dy_x) != !IN(dy_coeffs) || !IN(mean_rstd) != !OUT(grad_sums)) return false;
    if (IN(mean_rstd) ? !IN(scale_bias) == !IN(bn_x) : IN(bn_x) != NULL)
        return false; /* exactly one of them gives the mask */
    if (x->dim[3] != 3) return OUT(dx) != NULL;
    return !OUT(dx) && !IN(mean_rstd) && !IN(scale_bias) && !IN(add);
}

size_t cr_cuda_cifar_grad_workspace(const struct cr_device *device, const struct cr_program *p,
                                    const struct cr_op *op) {
    const struct ck_conv v = cuda_conv_shape(op, IN(x), IN(w), IN(g));
    return OUT(dy) ? 0 : ck_cifar_conv_grad_workspace(&v, cuda_of(device)->multiprocessors);
}

struct ck_cifar_conv_grad cr_cuda_cifar_grad_of(const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    return (struct ck_cifar_conv_grad){.conv       = cuda_conv_shape(op, IN(x), IN(w), IN(g)),
                                       .g          = call->in[CR_IN_conv_grad_g],
                                       .dy_x       = call->in[CR_IN_conv_grad_dy_x],
                                       .dy_coeffs  = call->in[CR_IN_conv_grad_dy_coeffs],
                                       .w          = call->in[CR_IN_conv_grad_w],
                                       .x          = call->in[CR_IN_conv_grad_x],
                                       .scale_bias = call->in[CR_IN_conv_grad_scale_bias],
                                       .mean_rstd  = call->in[CR_IN_conv_grad_mean_rstd],
                                       .add        = call->in[CR_IN_conv_grad_add],
                                       .add_pad    = op->attr.conv.add_pad_c,
                                       .bn_x       = call->in[CR_IN_conv_grad_bn_x],
                                       .dx         = call->out[CR_OUT_conv_grad_dx],
                                       .dw         = call->out[CR_OUT_conv_grad_dw],
                                       .grad_sums  = call->out[CR_OUT_conv_grad_grad_sums],
                                       .accumulate = op->attr.conv.accumulate,
                                       .finish     = {.gamma      = call->in[CR_IN_conv_grad_gamma],
                                                      .dgamma     = call->out[CR_OUT_conv_grad_dgamma],
                                                      .dbeta      = call->out[CR_OUT_conv_grad_dbeta],
                                                      .coeffs     = call->out[CR_OUT_conv_grad_grad_coeffs],
                                                      .count      = op->attr.conv.bn.count,
                                                      .accumulate = op->attr.conv.bn.accumulate},
                                       .dy         = call->out[CR_OUT_conv_grad_dy]};
}

static cr_status grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_cifar_conv_grad args = cr_cuda_cifar_grad_of(call);
    return CUDA_STATUS(ck_cifar_conv_grad(&args, call->workspace, cuda_of(device)->multiprocessors,
                                          cuda_of(device)->block_bytes, cr_cuda_stream(device, call)));
}

/* ---- the classifier ---- */

static struct ck_dense dense_shape(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x, *y; /* x or dx [N,C], y or dy [N,K] */
    switch (op->kind) {
    case CR_OP_dense: x = cuda_in(p, op, CR_IN_dense_x), y = cuda_out(p, op, CR_OUT_dense_y); break;
    case CR_OP_dense_dgrad: x = cuda_out(p, op, CR_OUT_dense_dgrad_dx), y = cuda_in(p, op, CR_IN_dense_dgrad_dy); break;
    default: x = cuda_in(p, op, CR_IN_dense_wgrad_x), y = cuda_in(p, op, CR_IN_dense_wgrad_dy);
    }
    return (struct ck_dense){.type = cuda_type(x), .N = cuda_pixels(x), .C = x->dim[3], .K = y->dim[3]};
}

static bool dense_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_dense v = dense_shape(p, op);
    return (void)device, ck_cifar_dense_supports(&v);
}

static cr_status dense_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_dense v = dense_shape(call->program, call->op);
    return CUDA_STATUS(ck_cifar_dense(&v, call->in[CR_IN_dense_x], call->in[CR_IN_dense_w], call->in[CR_IN_dense_b],
                                      call->out[CR_OUT_dense_y], cr_cuda_stream(device, call)));
}
static cr_status dense_dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_dense v = dense_shape(call->program, call->op);
    return CUDA_STATUS(ck_cifar_dense_dgrad(&v, call->in[CR_IN_dense_dgrad_dy], call->in[CR_IN_dense_dgrad_w],
                                            call->out[CR_OUT_dense_dgrad_dx], cr_cuda_stream(device, call)));
}
static cr_status dense_wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_dense v = dense_shape(call->program, call->op);
    return CUDA_STATUS(ck_cifar_dense_wgrad(&v, call->in[CR_IN_dense_wgrad_x], call->in[CR_IN_dense_wgrad_dy],
                                            call->out[CR_OUT_dense_wgrad_dw], call->op->attr.dense.accumulate,
                                            cr_cuda_stream(device, call)));
}

/* ---- the kernels ---- */

const struct cr_kernel cr_cuda_cifar_kernels[] = {
    {CUDA_HALF_KERNEL("cifar_conv", conv),
     .optional_in = CR_IN_BIT(conv, scale_bias) | CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add) |
                    CR_IN_BIT(conv, gamma) | CR_IN_BIT(conv, beta) | CR_IN_BIT(conv, running_mean) |
                    CR_IN_BIT(conv, running_var),
     .optional_out = CR_OUT_BIT(conv, sums) | CR_OUT_BIT(conv, next_scale_bias) | CR_OUT_BIT(conv, mean_rstd) |
                     CR_OUT_BIT(conv, running_mean) | CR_OUT_BIT(conv, running_var),
     .accepts = conv_accepts, .workspace = cr_cuda_cifar_conv_workspace, .sum_rows = rows_of, .launch = conv_launch},
    {CUDA_HALF_KERNEL("cifar_conv_grad", conv_grad),
     .optional_in = CR_IN_BIT(conv_grad, dy_x) | CR_IN_BIT(conv_grad, dy_coeffs) | CR_IN_BIT(conv_grad, scale_bias) |
                    CR_IN_BIT(conv_grad, mean_rstd) | CR_IN_BIT(conv_grad, add) | CR_IN_BIT(conv_grad, bn_x) |
                    CR_IN_BIT(conv_grad, gamma),
     .optional_out = CR_OUT_BIT(conv_grad, dx) | CR_OUT_BIT(conv_grad, dw) | CR_OUT_BIT(conv_grad, grad_sums) |
                     CR_OUT_BIT(conv_grad, dgamma) | CR_OUT_BIT(conv_grad, dbeta) | CR_OUT_BIT(conv_grad, grad_coeffs) |
                     CR_OUT_BIT(conv_grad, dy),
     .accepts = grad_accepts, .workspace = cr_cuda_cifar_grad_workspace, .sum_rows = grad_sum_rows,
     .launch = grad_launch},
    {CUDA_HALF_KERNEL("cifar_dense", dense), .accepts = dense_accepts, .launch = dense_launch},
    {CUDA_HALF_KERNEL("cifar_dense_dgrad", dense_dgrad), .accepts = dense_accepts, .launch = dense_dgrad_launch},
    {CUDA_HALF_KERNEL("cifar_dense_wgrad", dense_wgrad), .accepts = dense_accepts, .launch = dense_wgrad_launch},
    {0}};
