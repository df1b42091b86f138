/* cuda/conv/fused/fused_conv_kernels.c: kernel table of convolutions in f16 and bf16, with fused operations, and of the
 * gradients of their inputs: the families of cuda/common/fused_conv.h. */
#include "cuda/common/fused_conv.h"
#include "cuda/core/family_kernels.h"
#include "cuda/core/kernel_tables.h"

/* x, w and y of the convolution that is computed: of a gradient dy, w and dx. */
static struct ck_fused_conv shape_of(const struct cr_op *op, const struct cr_tensor *x, const struct cr_tensor *w,
                                     const struct cr_tensor *y) {
    return (struct ck_fused_conv){.type   = cuda_type(x),
                                  .N      = x->dim[0],
                                  .H      = x->dim[1],
                                  .W      = x->dim[2],
                                  .C      = x->dim[3],
                                  .P      = y->dim[1],
                                  .Q      = y->dim[2],
                                  .K      = y->dim[3],
                                  .R      = (int)w->dim[1],
                                  .S      = (int)w->dim[2],
                                  .stride = op->attr.conv.stride,
                                  .pad    = op->attr.conv.pad,
                                  .config = op->algo};
}

/* ---- forward ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_##slot)

static bool conv_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    struct ck_fused_conv a      = shape_of(op, IN(x), IN(w), OUT(y));
    a.relu                      = op->attr.conv.relu;
    a.has_scale_bias            = IN(scale_bias) != NULL;
    a.has_bias                  = IN(bias) != NULL;
    a.has_add                   = IN(add) != NULL;
    a.has_sums                  = OUT(sums) != NULL;
    a.has_out_scale_bias        = IN(out_scale_bias) != NULL;
    a.has_mask                  = OUT(mask) != NULL;
    a.x                         = cuda_data_in(call, CR_IN_conv_x);
    a.w                         = cuda_data_in(call, CR_IN_conv_w);
    a.scale_bias                = cuda_data_in(call, CR_IN_conv_scale_bias);
    a.bias                      = cuda_data_in(call, CR_IN_conv_bias);
    a.add                       = cuda_data_in(call, CR_IN_conv_add);
    a.out_scale_bias            = cuda_data_in(call, CR_IN_conv_out_scale_bias);
    a.y                         = cuda_data_out(call, CR_OUT_conv_y);
    a.sums                      = cuda_data_out(call, CR_OUT_conv_sums);
    a.mask                      = cuda_data_out(call, CR_OUT_conv_mask);
    *(struct ck_fused_conv *)to = a;
    return cuda_is_f32(IN(scale_bias));
}
CUDA_FAMILY_KERNEL(point_conv, point_conv, ck_fused_conv, conv_args)
CUDA_FAMILY_KERNEL(conv3x3, conv3x3, ck_fused_conv, conv_args)
CUDA_FAMILY_KERNEL(gram_conv, point_gram, ck_fused_conv, conv_args)
CUDA_FAMILY_KERNEL(stem, stem, ck_fused_conv, conv_args)
CUDA_FAMILY_KERNEL(split_conv, split_conv, ck_fused_conv, conv_args)

#undef IN
#undef OUT

/* ---- gradient of the input ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_dgrad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_dgrad_##slot)

static bool dgrad_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    struct ck_fused_conv a = shape_of(op, IN(dy), IN(w), OUT(dx));
    a.transposed           = true;
    a.has_add              = IN(add) != NULL;
    a.has_bn_x = a.has_mean_rstd = IN(bn_x) != NULL;
    a.has_sums                   = OUT(grad_sums) != NULL;
    a.x                          = cuda_data_in(call, CR_IN_conv_dgrad_dy);
    a.w                          = cuda_data_in(call, CR_IN_conv_dgrad_w);
    a.add                        = cuda_data_in(call, CR_IN_conv_dgrad_add);
    a.bn_x                       = cuda_data_in(call, CR_IN_conv_dgrad_bn_x);
    a.mean_rstd                  = cuda_data_in(call, CR_IN_conv_dgrad_mean_rstd);
    a.gamma                      = cuda_data_in(call, CR_IN_conv_dgrad_gamma);
    a.beta                       = cuda_data_in(call, CR_IN_conv_dgrad_beta);
    a.y                          = cuda_data_out(call, CR_OUT_conv_dgrad_dx);
    a.sums                       = cuda_data_out(call, CR_OUT_conv_dgrad_grad_sums);
    *(struct ck_fused_conv *)to  = a;
    return IN(bn_x) ? IN(mean_rstd) && IN(gamma) && IN(beta) : !OUT(grad_sums);
}
CUDA_FAMILY_KERNEL(point_dgrad, point_conv, ck_fused_conv, dgrad_args)
CUDA_FAMILY_KERNEL(conv3x3_dgrad, conv3x3, ck_fused_conv, dgrad_args)

#undef IN
#undef OUT

/* ---- gradient of the input, with BN statistics from a Gram matrix ---- */

#define IN(slot) cuda_in(p, op, CR_IN_gram_dgrad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_gram_dgrad_##slot)

enum { SUMMED_CHANNELS_MAX = 256 }; /* with sums: a block has all channels of a pixel */

/* The product is g * w_g; second_x is x, and it is also bn_x where it is read again for a mask. */
static bool gram_dgrad_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x    = IN(x);
    const bool              mask = IN(mean_rstd) || op->attr.conv.relu;
    struct ck_fused_conv    a    = shape_of(op, IN(g), IN(w_g), x);
    a.H = x->dim[1], a.W = x->dim[2], a.P = IN(g)->dim[1], a.Q = IN(g)->dim[2];
    a.has_second                = true;
    a.has_add                   = IN(add) != NULL;
    a.has_scale_bias            = IN(scale_bias) != NULL;
    a.has_mean_rstd             = IN(mean_rstd) != NULL;
    a.has_bn_x                  = mask;
    a.has_sums                  = OUT(grad_sums) != NULL;
    a.x                         = cuda_data_in(call, CR_IN_gram_dgrad_g);
    a.w                         = cuda_data_in(call, CR_IN_gram_dgrad_w_g);
    a.second_x                  = cuda_data_in(call, CR_IN_gram_dgrad_x);
    a.second_w                  = cuda_data_in(call, CR_IN_gram_dgrad_w_x);
    a.factor_bias               = cuda_data_in(call, CR_IN_gram_dgrad_factor_bias);
    a.add                       = cuda_data_in(call, CR_IN_gram_dgrad_add);
    a.scale_bias                = cuda_data_in(call, CR_IN_gram_dgrad_scale_bias);
    a.mean_rstd                 = cuda_data_in(call, CR_IN_gram_dgrad_mean_rstd);
    a.bn_x                      = mask ? a.second_x : NULL;
    a.y                         = cuda_data_out(call, CR_OUT_gram_dgrad_dx);
    a.sums                      = cuda_data_out(call, CR_OUT_gram_dgrad_grad_sums);
    *(struct ck_fused_conv *)to = a;
    return cuda_is_f32(IN(scale_bias)) && (!IN(mean_rstd) || x->dim[3] <= SUMMED_CHANNELS_MAX);
}
CUDA_FAMILY_KERNEL(gram_dgrad, point_gram, ck_fused_conv, gram_dgrad_args)

#undef IN
#undef OUT

/* ---- the kernels ---- */

const struct cr_kernel cr_cuda_fused_conv_kernels[] = {
    {CUDA_HALF_KERNEL("point_conv", conv),
     .optional_in  = CR_IN_BIT(conv, scale_bias) | CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add),
     .optional_out = CR_OUT_BIT(conv, sums), CUDA_FAMILY(point_conv)},
    {CUDA_HALF_KERNEL("conv3x3", conv), .optional_in = CR_IN_BIT(conv, bias), .optional_out = CR_OUT_BIT(conv, sums),
     CUDA_FAMILY(conv3x3)},
    {CUDA_HALF_KERNEL("point_gram.conv", conv),
     .optional_in  = CR_IN_BIT(conv, scale_bias) | CR_IN_BIT(conv, add) | CR_IN_BIT(conv, out_scale_bias),
     .optional_out = CR_OUT_BIT(conv, mask), CUDA_FAMILY(gram_conv)},
    {CUDA_HALF_KERNEL("stem", conv), .optional_in = CR_IN_BIT(conv, bias), .optional_out = CR_OUT_BIT(conv, sums),
     CUDA_FAMILY(stem)},
    {CUDA_HALF_KERNEL("split_conv", conv), .optional_in = CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add),
     CUDA_FAMILY(split_conv)},
    {CUDA_HALF_KERNEL("point_dgrad", conv_dgrad), CUDA_DGRAD_SLOTS, CUDA_FAMILY(point_dgrad)},
    {CUDA_HALF_KERNEL("conv3x3_dgrad", conv_dgrad), CUDA_DGRAD_SLOTS, CUDA_FAMILY(conv3x3_dgrad)},
    {CUDA_HALF_KERNEL("point_gram.dgrad", gram_dgrad),
     .optional_in  = CR_IN_BIT(gram_dgrad, scale_bias) | CR_IN_BIT(gram_dgrad, mean_rstd) | CR_IN_BIT(gram_dgrad, add),
     .optional_out = CR_OUT_BIT(gram_dgrad, grad_sums), CUDA_FAMILY(gram_dgrad)},
    {0}};
