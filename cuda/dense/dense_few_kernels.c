/* cuda/dense/dense_few_kernels.c: the kernel of the classifier for a few images. With it a program for one image needs
 * no cuBLAS, whose first product takes 40 to 80 ms, because it loads its kernels. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x     = cuda_in(p, op, CR_IN_dense_x);
    const int64_t           elems = (int64_t)(16 / cr_dtype_bytes(x->dtype));
    (void)device;
    return cuda_pixels(x) <= CK_DENSE_FEW_ROWS && x->dim[3] % elems == 0;
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_dense_x),
                           *y = cuda_out(call->program, call->op, CR_OUT_dense_y);
    return CUDA_STATUS(ck_dense_few(cuda_type(x), call->in[CR_IN_dense_x], call->in[CR_IN_dense_w],
                                    call->in[CR_IN_dense_b], call->out[CR_OUT_dense_y], (int)cuda_pixels(x), y->dim[3],
                                    x->dim[3], cr_cuda_stream(device, call)));
}

const struct cr_kernel cr_cuda_dense_few_kernels[] = {
    {CR_KERNEL("cuda.dense_few", dense, CR_MATH_F32), .dtypes = CR_TYPES_FLOAT, .accepts = accepts, .launch = launch},
    {0}};
