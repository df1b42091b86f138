/* cuda/norm/pool_bn_kernels.c: kernel table for the gradient of BN, ReLU and max pooling in one kernel.
 *
 * Windows are 3x3 with stride 2; channels come in whole 16-byte vectors. Device code is in cuda/norm/pool_bn.cu. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/optional_slots.h"

#define SLOT_IN(kind, slot) (1u << CR_IN_##kind##_##slot)
#define SLOT_OUT(kind, slot) (1u << CR_OUT_##kind##_##slot)

static bool fits_int(const struct cr_tensor *t) {
    return t->dim[1] <= INT32_MAX / t->dim[2] && t->dim[1] * t->dim[2] <= INT32_MAX / t->dim[3];
}
static bool pool_accepts(const struct cr_op *op, const struct cr_tensor *dy, const struct cr_tensor *index,
                         const struct cr_tensor *x) {
    const struct cr_conv_attr *a = &op->attr.conv;
    return cuda_is_data(x) && is_like(dy, x) && index->dtype == CR_U8 && a->window == 3 && a->stride == 2 &&
           a->pad <= 1 && x->dim[3] % (x->dtype == CR_F32 ? 4 : 8) == 0 && fits_int(x);
}
static struct ck_window pool_window(const struct cr_op *op, const struct cr_tensor *x, const struct cr_tensor *dy) {
    const struct cr_conv_attr *a = &op->attr.conv;
    return (struct ck_window){.N      = x->dim[0],
                              .H      = x->dim[1],
                              .W      = x->dim[2],
                              .C      = x->dim[3],
                              .P      = dy->dim[1],
                              .Q      = dy->dim[2],
                              .K      = dy->dim[3],
                              .window = a->window,
                              .stride = a->stride,
                              .pad    = a->pad};
}

static bool pool_bn_grad_sums_accepts(const struct cr_device *device, const struct cr_program *p,
                                      const struct cr_op *op) {
    (void)device;
    return pool_accepts(op, cuda_in(p, op, CR_IN_pool_bn_grad_sums_dy), cuda_in(p, op, CR_IN_pool_bn_grad_sums_index),
                        cuda_in(p, op, CR_IN_pool_bn_grad_sums_x)) &&
           is_f32(cuda_in(p, op, CR_IN_pool_bn_grad_sums_scale_bias)) &&
           is_f32(cuda_in(p, op, CR_IN_pool_bn_grad_sums_mean_rstd)) &&
           is_f32(cuda_out(p, op, CR_OUT_pool_bn_grad_sums_grad_sums)) &&
           cr_op_uses_only(op,
                           SLOT_IN(pool_bn_grad_sums, dy) | SLOT_IN(pool_bn_grad_sums, index) |
                               SLOT_IN(pool_bn_grad_sums, x) | SLOT_IN(pool_bn_grad_sums, scale_bias) |
                               SLOT_IN(pool_bn_grad_sums, mean_rstd),
                           SLOT_OUT(pool_bn_grad_sums, grad_sums));
}

static cr_status pool_bn_grad_sums_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                           void **prepared, size_t *workspace_bytes) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_pool_bn_grad_sums_x);
    const struct ck_window  w = pool_window(op, x, cuda_in(p, op, CR_IN_pool_bn_grad_sums_dy));
    *prepared                 = NULL;
    *workspace_bytes          = ck_pool_bn_grad_sums_workspace(cuda_type(x), &w, cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status pool_bn_grad_sums_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor      *x    = cuda_in(call->program, call->op, CR_IN_pool_bn_grad_sums_x);
    const struct ck_pool_bn_grad args = {
        .type      = cuda_type(x),
        .dy        = call->in[CR_IN_pool_bn_grad_sums_dy],
        .index     = call->in[CR_IN_pool_bn_grad_sums_index],
        .x         = call->in[CR_IN_pool_bn_grad_sums_x],
        .act       = call->in[CR_IN_pool_bn_grad_sums_scale_bias],
        .mean_rstd = call->in[CR_IN_pool_bn_grad_sums_mean_rstd],
        .grad_sums = call->out[CR_OUT_pool_bn_grad_sums_grad_sums],
        .w         = pool_window(call->op, x, cuda_in(call->program, call->op, CR_IN_pool_bn_grad_sums_dy))};
    CUDA_TRY(
        ck_pool_bn_grad_sums(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool pool_bn_grad_apply_accepts(const struct cr_device *device, const struct cr_program *p,
                                       const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_pool_bn_grad_apply_x);
    (void)device;
    return pool_accepts(op, cuda_in(p, op, CR_IN_pool_bn_grad_apply_dy), cuda_in(p, op, CR_IN_pool_bn_grad_apply_index),
                        x) &&
           is_like(cuda_out(p, op, CR_OUT_pool_bn_grad_apply_dx), x) &&
           is_f32(cuda_in(p, op, CR_IN_pool_bn_grad_apply_scale_bias)) &&
           is_f32(cuda_in(p, op, CR_IN_pool_bn_grad_apply_coeffs)) &&
           cr_op_uses_only(op,
                           SLOT_IN(pool_bn_grad_apply, dy) | SLOT_IN(pool_bn_grad_apply, index) |
                               SLOT_IN(pool_bn_grad_apply, x) | SLOT_IN(pool_bn_grad_apply, scale_bias) |
                               SLOT_IN(pool_bn_grad_apply, coeffs),
                           SLOT_OUT(pool_bn_grad_apply, dx));
}

static cr_status pool_bn_grad_apply_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor      *x    = cuda_in(call->program, call->op, CR_IN_pool_bn_grad_apply_x);
    const struct ck_pool_bn_grad args = {
        .type   = cuda_type(x),
        .dy     = call->in[CR_IN_pool_bn_grad_apply_dy],
        .index  = call->in[CR_IN_pool_bn_grad_apply_index],
        .x      = call->in[CR_IN_pool_bn_grad_apply_x],
        .act    = call->in[CR_IN_pool_bn_grad_apply_scale_bias],
        .coeffs = call->in[CR_IN_pool_bn_grad_apply_coeffs],
        .dx     = call->out[CR_OUT_pool_bn_grad_apply_dx],
        .w      = pool_window(call->op, x, cuda_in(call->program, call->op, CR_IN_pool_bn_grad_apply_dy))};
    CUDA_TRY(ck_pool_bn_grad_apply(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the table ---- */

#define POOL_BN_KERNEL(kind, accept, prepares, reads)                                                                  \
    static const struct cr_kernel kernel_##kind = {.name          = "cuda." #kind,                                     \
                                                   .op            = CR_OP_##kind,                                      \
                                                   .math          = CR_MATH_F32,                                       \
                                                   .deterministic = true,                                              \
                                                   .accepts       = accept,                                            \
                                                   .prepare       = prepares,                                          \
                                                   .host_slots    = reads,                                             \
                                                   .launch        = kind##_launch}
POOL_BN_KERNEL(pool_bn_grad_sums, pool_bn_grad_sums_accepts, pool_bn_grad_sums_prepare, SLOT_IN(pool_bn_grad_sums, x));
POOL_BN_KERNEL(pool_bn_grad_apply, pool_bn_grad_apply_accepts, NULL, SLOT_IN(pool_bn_grad_apply, x));

const struct cr_kernel *const cr_cuda_pool_bn_kernels[] = {&kernel_pool_bn_grad_sums, &kernel_pool_bn_grad_apply, NULL};
