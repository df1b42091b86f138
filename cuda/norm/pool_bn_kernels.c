/* cuda/norm/pool_bn_kernels.c: kernel table for the gradient of BN, ReLU and max pooling in one kernel.
 *
 * Windows are 3x3 with stride 2; channels come in whole 16-byte vectors. Device code is in cuda/norm/pool_bn.cu. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

static bool fits_int(const struct cr_tensor *t) {
    return t->dim[1] <= INT32_MAX / t->dim[2] && t->dim[1] * t->dim[2] <= INT32_MAX / t->dim[3];
}
/* Both ops have x in the same slot. */
_Static_assert((int)CR_IN_pool_bn_grad_sums_x == (int)CR_IN_pool_bn_grad_apply_x, "slots of x");
static bool pool_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_conv_attr *a = &op->attr.conv;
    const struct cr_tensor    *x = cuda_in(p, op, CR_IN_pool_bn_grad_sums_x);
    (void)device;
    return a->window == 3 && a->stride == 2 && a->pad <= 1 && x->dim[3] % (x->dtype == CR_F32 ? 4 : 8) == 0 &&
           fits_int(x);
}

static size_t sums_bytes(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_pool_bn_grad_sums_x);
    const struct ck_window  w = cuda_window(op, x, cuda_in(p, op, CR_IN_pool_bn_grad_sums_dy));
    return ck_pool_bn_grad_sums_workspace(cuda_type(x), &w, cuda_of(device)->multiprocessors);
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
        .w         = cuda_window(call->op, x, cuda_in(call->program, call->op, CR_IN_pool_bn_grad_sums_dy))};
    return CUDA_STATUS(
        ck_pool_bn_grad_sums(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
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
        .w      = cuda_window(call->op, x, cuda_in(call->program, call->op, CR_IN_pool_bn_grad_apply_dy))};
    return CUDA_STATUS(ck_pool_bn_grad_apply(&args, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

/* ---- the table ---- */

#define POOL_BN_KERNEL(kind, ...)                                                                                      \
    {                                                                                                                  \
        CR_KERNEL("cuda." #kind, kind, CR_MATH_F32), .dtypes = CR_TYPES_FLOAT, .accepts = pool_accepts,                \
                                                     .launch = kind##_launch, __VA_ARGS__                              \
    }
const struct cr_kernel cr_cuda_pool_bn_kernels[] = {
    POOL_BN_KERNEL(pool_bn_grad_sums, .workspace = sums_bytes), POOL_BN_KERNEL(pool_bn_grad_apply), {0}};
