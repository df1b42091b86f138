/* cuda/norm/fold_bn_kernels.c: kernel that folds batch normalisation into filters, for inference. Device code is in
 * cuda/norm/fold_bn.cu. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

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

static bool writes_float(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_is_data(cuda_out(p, op, CR_OUT_fold_bn_y));
}

const struct cr_kernel cr_cuda_fold_bn_kernels[] = {{CR_KERNEL("cuda.fold_bn", fold_bn, CR_MATH_F32),
                                                     .dtypes = CR_TYPES_F32, .accepts = writes_float,
                                                     .launch = fold_bn_launch},
                                                    {0}};
