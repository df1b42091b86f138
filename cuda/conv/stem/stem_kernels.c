/* cuda/conv/stem/stem_kernels.c: kernel table of the space-to-depth stem in f16 and bf16: forward with max-pooling and
 * filter gradients (cuda/common/fused_conv.h). The plain forward convolution is in
 * cuda/conv/fused/fused_conv_kernels.c. */
#include "cuda/common/fused_conv.h"
#include "cuda/core/family_kernels.h"
#include "cuda/core/kernel_tables.h"

/* filter: w or dw. */
static bool is_stem(const struct cr_op *op, const struct cr_tensor *x, const struct cr_tensor *filter) {
    return op->attr.conv.stride == 1 && op->attr.conv.pad == 0 && x->dim[3] == CK_STEM_CHANNELS &&
           filter->dim[1] == CK_STEM_SIDE && filter->dim[2] == CK_STEM_SIDE;
}

/* ---- forward with max-pooling ---- */

static bool pool_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_pool_x), *w = cuda_in(p, op, CR_IN_conv_pool_w);
    *(struct ck_stem_pool *)to = (struct ck_stem_pool){.type = cuda_type(x),
                                                       .N    = x->dim[0],
                                                       .H    = x->dim[1],
                                                       .W    = x->dim[2],
                                                       .K    = w->dim[0],
                                                       .x    = cuda_data_in(call, CR_IN_conv_pool_x),
                                                       .w    = cuda_data_in(call, CR_IN_conv_pool_w),
                                                       .bias = cuda_data_in(call, CR_IN_conv_pool_bias),
                                                       .y    = cuda_data_out(call, CR_OUT_conv_pool_y)};
    return is_stem(op, x, w);
}
CUDA_FAMILY_KERNEL(stem_pool, stem_pool, ck_stem_pool, pool_args)

/* ---- filter gradient ---- */

static bool wgrad_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_wgrad_x), *dw = cuda_out(p, op, CR_OUT_conv_wgrad_dw);
    *(struct ck_stem_grad *)to = (struct ck_stem_grad){.type       = cuda_type(x),
                                                       .N          = x->dim[0],
                                                       .H          = x->dim[1],
                                                       .W          = x->dim[2],
                                                       .K          = dw->dim[0],
                                                       .accumulate = op->attr.conv.accumulate,
                                                       .config     = op->algo,
                                                       .x          = cuda_data_in(call, CR_IN_conv_wgrad_x),
                                                       .g          = cuda_data_in(call, CR_IN_conv_wgrad_dy),
                                                       .dw         = cuda_data_out(call, CR_OUT_conv_wgrad_dw)};
    return is_stem(op, x, dw);
}
CUDA_FAMILY_KERNEL(stem_wgrad, stem_grad, ck_stem_grad, wgrad_args)

/* ---- the kernels ---- */

const struct cr_kernel cr_cuda_stem_kernels[] = {{CUDA_HALF_KERNEL("stem_pool", conv_pool), CUDA_FAMILY(stem_pool)},
                                                 {CUDA_HALF_KERNEL("stem_wgrad", conv_wgrad), CUDA_FAMILY(stem_wgrad)},
                                                 {0}};
