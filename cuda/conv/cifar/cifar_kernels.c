/* cuda/conv/cifar/cifar_kernels.c: kernel table of the convolutions of CIFAR ResNets, forward and backward, and their
 * classifier, in f16 and bf16, for every GPU. The forward also has bias, sum and ReLU of inference. The backward of
 * 32x32 pixels with stride 2, 3x3, needs more shared memory than a block of compute capability 8.6, 8.9 or 12.0 has.
 * Device code is in cuda/conv/cifar/cifar_conv.cu, cifar_conv_grad.cu and cifar_dense.cu. */
#include "cuda/conv/cifar/cifar_fused.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/optional_slots.h"

/* A filter can exceed the number range of struct ck_conv only if the shape is not supported. */
static bool supports(const struct cr_op *op, const struct cr_tensor *x, const struct cr_tensor *w,
                     const struct cr_tensor *y) {
    if (!cuda_is_data(x) || x->dtype == CR_F32 || w->dim[1] > 3 || w->dim[2] > 3) return false;
    const struct ck_conv v = cuda_conv_shape(op, x, w, y);
    return w->dtype == x->dtype && y->dtype == x->dtype && ck_cifar_conv_supports(&v);
}

/* ---- forward ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_##slot)

#define IN_BIT(slot) (1u << CR_IN_conv_##slot)
#define OUT_BIT(slot) (1u << CR_OUT_conv_##slot)
#define FINISH_IN (IN_BIT(gamma) | IN_BIT(beta) | IN_BIT(running_mean) | IN_BIT(running_var))
#define FINISH_OUT (OUT_BIT(next_scale_bias) | OUT_BIT(mean_rstd) | OUT_BIT(running_mean) | OUT_BIT(running_var))

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
    if (!cr_op_uses_only(op, IN_BIT(x) | IN_BIT(w) | IN_BIT(scale_bias) | IN_BIT(bias) | IN_BIT(add) | FINISH_IN,
                         OUT_BIT(y) | OUT_BIT(sums) | FINISH_OUT))
        return false;
    if ((IN(bias) || IN(add) || op->attr.conv.relu) && (!IN(bias) || IN(scale_bias) || OUT(sums))) return false;
    if (!is_f32(IN(scale_bias)) || !is_f32(IN(bias)) || !is_like(IN(add), IN(x)) || !is_f32(OUT(sums))) return false;
    for (int s = CR_IN_conv_gamma; s <= CR_IN_conv_running_var; s++)
        if (!is_f32(cuda_in(p, op, s)) || !cuda_in(p, op, s) != !IN(gamma)) return false;
    for (int s = CR_OUT_conv_next_scale_bias; s <= CR_OUT_conv_running_var; s++)
        if (!is_f32(cuda_out(p, op, s)) || !cuda_out(p, op, s) != !IN(gamma)) return false;
    if (IN(gamma) && !OUT(sums)) return false;
    if (!supports(op, IN(x), IN(w), OUT(y)) || (IN(scale_bias) && IN(x)->dim[3] == 3)) return false;
    return !stores_rows(p, op) || (!IN(gamma) && cr_sum_rows(OUT(sums)) == rows_of(device, p, op));
}

static cr_status conv_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_conv v = cuda_conv_shape(op, IN(x), IN(w), OUT(y));
    *prepared              = NULL;
    *workspace_bytes       = 0;
    if (OUT(sums) && !stores_rows(p, op))
        *workspace_bytes = ck_cifar_conv_workspace(&v, cuda_of(device)->multiprocessors);
    return CR_OK;
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
                                  .w_new       = !cr_call_reads_early(call, IN_BIT(w)),
                                  .stores_rows = stores_rows(p, op)};
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_cifar_conv args = cr_cuda_cifar_conv_of(call);
    CUDA_TRY(ck_cifar_conv(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}
#undef IN
#undef OUT
#undef IN_BIT
#undef OUT_BIT

/* ---- backward ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_grad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_grad_##slot)

#define IN_BIT(slot) (1u << CR_IN_conv_grad_##slot)
#define OUT_BIT(slot) (1u << CR_OUT_conv_grad_##slot)

/* Where a launch for dy and dx, and one for the dw of many convolutions, are faster. */
static int grad_sum_rows(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv v = cuda_conv_shape(op, IN(x), IN(w), IN(g));
    if (!IN(dy_x) || !ck_cifar_dgrad_supports(&v, cuda_of(device)->multiprocessors, cuda_of(device)->block_bytes))
        return CR_NONE;
    return ck_cifar_dgrad_rows(&v, cuda_of(device)->multiprocessors);
}

static bool grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    if (!cr_op_uses_only(op,
                         IN_BIT(g) | IN_BIT(dy_x) | IN_BIT(dy_coeffs) | IN_BIT(w) | IN_BIT(x) | IN_BIT(scale_bias) |
                             IN_BIT(mean_rstd) | IN_BIT(add) | IN_BIT(bn_x) | IN_BIT(gamma),
                         OUT_BIT(dx) | OUT_BIT(dw) | OUT_BIT(grad_sums) | OUT_BIT(dgamma) | OUT_BIT(dbeta) |
                             OUT_BIT(grad_coeffs) | OUT_BIT(dy)))
        return false;
    if (!IN(gamma) != !OUT(grad_coeffs) || (IN(gamma) ? !OUT(grad_sums) : OUT(dgamma) || OUT(dbeta))) return false;
    if (!is_f32(IN(gamma)) || !is_f32(OUT(dgamma)) || !is_f32(OUT(dbeta)) || !is_f32(OUT(grad_coeffs))) return false;
    if (!supports(op, x, IN(w), IN(g))) return false;
    const struct ck_conv v = cuda_conv_shape(op, x, IN(w), IN(g));
    if (!ck_cifar_conv_grad_supports(&v, cuda_of(device)->block_bytes)) return false;
    if (OUT(dy) && (OUT(dw) || !is_like(OUT(dy), x) || !OUT(grad_sums) || !grad_sum_rows(device, p, op) ||
                    cr_sum_rows(OUT(grad_sums)) != grad_sum_rows(device, p, op)))
        return false;
    if (!OUT(dy) && (!OUT(dw) || (OUT(grad_sums) && cr_sum_rows(OUT(grad_sums)) != 1))) return false;
    if (!is_like(IN(dy_x), x) || !is_like(IN(add), x) || !is_like(IN(bn_x), x) || !is_like(OUT(dx), x)) return false;
    if (!is_f32(IN(dy_coeffs)) || !is_f32(IN(scale_bias)) || !is_f32(IN(mean_rstd)) || !is_f32(OUT(dw)) ||
        !is_f32(OUT(grad_sums)))
        return false;
    if (op->attr.conv.add_pad_c && (!IN(add) || v.stride != 2 || v.R != 3 || op->attr.conv.add_pad_c % 8 != 0))
        return false;
    if (!IN(dy_x) != !IN(dy_coeffs) || !IN(mean_rstd) != !OUT(grad_sums)) return false;
    if (IN(mean_rstd) ? !IN(scale_bias) == !IN(bn_x) : IN(bn_x) != NULL)
        return false; /* exactly one of them gives the mask */
    if (x->dim[3] != 3) return OUT(dx) != NULL;
    return !OUT(dx) && !IN(mean_rstd) && !IN(scale_bias) && !IN(add);
}

static cr_status grad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_conv v = cuda_conv_shape(op, IN(x), IN(w), IN(g));
    *prepared              = NULL;
    *workspace_bytes       = OUT(dy) ? 0 : ck_cifar_conv_grad_workspace(&v, cuda_of(device)->multiprocessors);
    return CR_OK;
}

struct ck_cifar_conv_grad cr_cuda_cifar_grad_of(const struct cr_call *call) {
    const unsigned           data = IN_BIT(x) | IN_BIT(dy_x) | IN_BIT(bn_x) | IN_BIT(scale_bias) | IN_BIT(mean_rstd);
    const struct cr_program *p    = call->program;
    const struct cr_op      *op   = call->op;
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
                                       .w_new      = !cr_call_reads_early(call, IN_BIT(w)),
                                       .x_new      = !cr_call_reads_early(call, data),
                                       .dy         = call->out[CR_OUT_conv_grad_dy]};
}

static cr_status grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_cifar_conv_grad args = cr_cuda_cifar_grad_of(call);
    CUDA_TRY(ck_cifar_conv_grad(&args, call->workspace, cuda_of(device)->multiprocessors, cuda_of(device)->block_bytes,
                                cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the classifier ---- */

/* x [N,C], dy or y [N,K] */
static struct ck_dense dense_shape(const struct cr_tensor *x, const struct cr_tensor *y) {
    return (struct ck_dense){.type = cuda_type(x), .N = cuda_pixels(x), .C = x->dim[3], .K = y->dim[3]};
}
static bool dense_takes(const struct cr_tensor *x, const struct cr_tensor *y, const struct cr_tensor *other,
                        enum cr_dtype other_type) {
    if (!cuda_is_data(x) || x->dtype == CR_F32 || y->dtype != x->dtype || other->dtype != other_type) return false;
    const struct ck_dense v = dense_shape(x, y);
    return ck_cifar_dense_supports(&v);
}

static bool dense_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_dense_x), *b = cuda_in(p, op, CR_IN_dense_b);
    (void)device;
    return dense_takes(x, cuda_out(p, op, CR_OUT_dense_y), cuda_in(p, op, CR_IN_dense_w), x->dtype) &&
           b->dtype == CR_F32;
}
static cr_status dense_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_dense v =
        dense_shape(cuda_in(call->program, call->op, CR_IN_dense_x), cuda_out(call->program, call->op, CR_OUT_dense_y));
    CUDA_TRY(ck_cifar_dense(&v, call->in[CR_IN_dense_x], call->in[CR_IN_dense_w], call->in[CR_IN_dense_b],
                            call->out[CR_OUT_dense_y], cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool dense_dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dx = cuda_out(p, op, CR_OUT_dense_dgrad_dx);
    (void)device;
    return dense_takes(dx, cuda_in(p, op, CR_IN_dense_dgrad_dy), cuda_in(p, op, CR_IN_dense_dgrad_w), dx->dtype);
}
static cr_status dense_dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_dense v = dense_shape(cuda_out(call->program, call->op, CR_OUT_dense_dgrad_dx),
                                          cuda_in(call->program, call->op, CR_IN_dense_dgrad_dy));
    CUDA_TRY(ck_cifar_dense_dgrad(&v, call->in[CR_IN_dense_dgrad_dy], call->in[CR_IN_dense_dgrad_w],
                                  call->out[CR_OUT_dense_dgrad_dx], cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool dense_wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return dense_takes(cuda_in(p, op, CR_IN_dense_wgrad_x), cuda_in(p, op, CR_IN_dense_wgrad_dy),
                       cuda_out(p, op, CR_OUT_dense_wgrad_dw), CR_F32);
}
static cr_status dense_wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_dense v = dense_shape(cuda_in(call->program, call->op, CR_IN_dense_wgrad_x),
                                          cuda_in(call->program, call->op, CR_IN_dense_wgrad_dy));
    CUDA_TRY(ck_cifar_dense_wgrad(&v, call->in[CR_IN_dense_wgrad_x], call->in[CR_IN_dense_wgrad_dy],
                                  call->out[CR_OUT_dense_wgrad_dw], call->op->attr.dense.accumulate,
                                  cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the kernels ---- */

#define BY_TYPE(kind, X, enum_type)                                                                                    \
    static bool kind##_accepts_##enum_type(const struct cr_device *device, const struct cr_program *p,                 \
                                           const struct cr_op *op) {                                                   \
        return cuda_in(p, op, X)->dtype == CR_##enum_type && kind##_accepts(device, p, op);                            \
    }
BY_TYPE(conv, CR_IN_conv_x, F16)
BY_TYPE(conv, CR_IN_conv_x, BF16)
BY_TYPE(grad, CR_IN_conv_grad_x, F16)
BY_TYPE(grad, CR_IN_conv_grad_x, BF16)
BY_TYPE(dense, CR_IN_dense_x, F16)
BY_TYPE(dense, CR_IN_dense_x, BF16)
BY_TYPE(dense_dgrad, CR_IN_dense_dgrad_dy, F16)
BY_TYPE(dense_dgrad, CR_IN_dense_dgrad_dy, BF16)
BY_TYPE(dense_wgrad, CR_IN_dense_wgrad_x, F16)
BY_TYPE(dense_wgrad, CR_IN_dense_wgrad_x, BF16)

#define SMALL_KERNEL(kernel, text, kind, what, enum_type, prepare_, rows)                                              \
    static const struct cr_kernel kernel = {.name          = text,                                                     \
                                            .op            = CR_OP_##what,                                             \
                                            .math          = CR_MATH_##enum_type,                                      \
                                            .deterministic = true,                                                     \
                                            .accepts       = kind##_accepts_##enum_type,                               \
                                            .prepare       = prepare_,                                                 \
                                            .sum_rows      = rows,                                                     \
                                            .launch        = kind##_launch}
SMALL_KERNEL(conv_f16, "cuda.cifar_conv.f16", conv, conv, F16, conv_prepare, rows_of);
SMALL_KERNEL(conv_bf16, "cuda.cifar_conv.bf16", conv, conv, BF16, conv_prepare, rows_of);
SMALL_KERNEL(grad_f16, "cuda.cifar_conv_grad.f16", grad, conv_grad, F16, grad_prepare, grad_sum_rows);
SMALL_KERNEL(grad_bf16, "cuda.cifar_conv_grad.bf16", grad, conv_grad, BF16, grad_prepare, grad_sum_rows);
SMALL_KERNEL(dense_f16, "cuda.cifar_dense.f16", dense, dense, F16, NULL, NULL);
SMALL_KERNEL(dense_bf16, "cuda.cifar_dense.bf16", dense, dense, BF16, NULL, NULL);
SMALL_KERNEL(dense_dgrad_f16, "cuda.cifar_dense_dgrad.f16", dense_dgrad, dense_dgrad, F16, NULL, NULL);
SMALL_KERNEL(dense_dgrad_bf16, "cuda.cifar_dense_dgrad.bf16", dense_dgrad, dense_dgrad, BF16, NULL, NULL);
SMALL_KERNEL(dense_wgrad_f16, "cuda.cifar_dense_wgrad.f16", dense_wgrad, dense_wgrad, F16, NULL, NULL);
SMALL_KERNEL(dense_wgrad_bf16, "cuda.cifar_dense_wgrad.bf16", dense_wgrad, dense_wgrad, BF16, NULL, NULL);

const struct cr_kernel *const cr_cuda_cifar_kernels[] = {
    &conv_f16,        &conv_bf16,        &grad_f16,        &grad_bf16,        &dense_f16, &dense_bf16,
    &dense_dgrad_f16, &dense_dgrad_bf16, &dense_wgrad_f16, &dense_wgrad_bf16, NULL};
