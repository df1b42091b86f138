/* cuda/conv/pair/conv_pair_kernels.c: kernel table of two 1x1 convolutions in one kernel, and of a 3x3 convolution and
 * two 1x1 convolutions in one kernel, for compute capability 9.0 (cuda/conv/pair/conv_pair.h). */
#include "cuda/conv/pair/conv_pair.h"
#include "cuda/core/family_kernels.h"
#include "cuda/core/kernel_tables.h"

/* ---- f16 and bf16 ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_pair_##slot)

static bool half_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x = IN(x), *w = IN(w);
    *(struct ck_conv_pair *)to =
        (struct ck_conv_pair){.type          = x->dtype == CR_F16 ? CK_PAIR_F16 : CK_PAIR_BF16,
                              .N             = x->dim[0],
                              .H             = x->dim[1],
                              .W             = x->dim[2],
                              .C             = w->dim[3],
                              .K             = w->dim[0],
                              .L             = IN(next_w)->dim[0],
                              .has_first     = IN(first_w) != NULL,
                              .has_shortcut  = IN(shortcut_w) != NULL,
                              .config        = op->algo,
                              .x             = cuda_data_in(call, CR_IN_conv_pair_x),
                              .first_w       = cuda_data_in(call, CR_IN_conv_pair_first_w),
                              .first_coeffs  = cuda_data_in(call, CR_IN_conv_pair_first_bias),
                              .w             = cuda_data_in(call, CR_IN_conv_pair_w),
                              .coeffs        = cuda_data_in(call, CR_IN_conv_pair_bias),
                              .add           = cuda_data_in(call, CR_IN_conv_pair_add),
                              .next_w        = cuda_data_in(call, CR_IN_conv_pair_next_w),
                              .next_coeffs   = cuda_data_in(call, CR_IN_conv_pair_next_bias),
                              .shortcut_x    = cuda_data_in(call, CR_IN_conv_pair_shortcut_x),
                              .shortcut_w    = cuda_data_in(call, CR_IN_conv_pair_shortcut_w),
                              .shortcut_bias = cuda_data_in(call, CR_IN_conv_pair_shortcut_bias),
                              .y             = cuda_data_out(call, CR_OUT_conv_pair_y),
                              .z             = cuda_data_out(call, CR_OUT_conv_pair_z)};
    if (IN(add) ? IN(shortcut_w) != NULL : !IN(shortcut_w) || IN(shortcut_x)->dim[3] != CK_CONV_CHAIN_CHANNELS)
        return false;
    return !IN(first_w) || x->dim[3] == w->dim[3];
}
CUDA_FAMILY_KERNEL(half_pair, conv_pair, ck_conv_pair, half_args)
CUDA_FAMILY_KERNEL(half_chain, conv_chain, ck_conv_pair, half_args)

#undef IN

/* ---- 8-bit integers ---- */

#define IN(slot) cuda_in(p, op, CR_IN_qconv_pair_##slot)

/* Packed filters take the places of the others. */
static bool byte_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x = IN(x), *w = IN(w), *add = IN(add);
    const bool              packed = IN(packed) && IN(next_packed) && (!IN(first_w) || IN(first_packed));
    *(struct ck_conv_pair *)to     = (struct ck_conv_pair){
            .type         = CK_PAIR_U8,
            .N            = x->dim[0],
            .H            = x->dim[1],
            .W            = x->dim[2],
            .C            = w->dim[3],
            .K            = w->dim[0],
            .L            = IN(next_w)->dim[0],
            .has_first    = IN(first_w) != NULL,
            .add_signed   = add->dtype == CR_I8,
            .has_packed   = packed,
            .config       = op->algo,
            .x            = cuda_data_in(call, CR_IN_qconv_pair_x),
            .add          = cuda_data_in(call, CR_IN_qconv_pair_add),
            .first_w      = cuda_data_in(call, packed ? CR_IN_qconv_pair_first_packed : CR_IN_qconv_pair_first_w),
            .w            = cuda_data_in(call, packed ? CR_IN_qconv_pair_packed : CR_IN_qconv_pair_w),
            .next_w       = cuda_data_in(call, packed ? CR_IN_qconv_pair_next_packed : CR_IN_qconv_pair_next_w),
            .first_coeffs = cuda_data_in(call, CR_IN_qconv_pair_first_coeffs),
            .coeffs       = cuda_data_in(call, CR_IN_qconv_pair_coeffs),
            .next_coeffs  = cuda_data_in(call, CR_IN_qconv_pair_next_coeffs),
            .y            = cuda_data_out(call, CR_OUT_qconv_pair_y),
            .z            = cuda_data_out(call, CR_OUT_qconv_pair_z)};
    return x->dtype == CR_U8 && (add->dtype == CR_U8 || add->dtype == CR_I8) &&
           (!IN(first_w) || x->dim[3] == w->dim[3]);
}
CUDA_FAMILY_KERNEL(byte_pair, conv_pair, ck_conv_pair, byte_args)
CUDA_FAMILY_KERNEL(byte_chain, conv_chain, ck_conv_pair, byte_args)

const struct cr_kernel cr_cuda_conv_pair_kernels[] = {
    {CUDA_HALF_KERNEL("conv_pair", conv_pair), .optional_in = CR_IN_BIT(conv_pair, add), CUDA_FAMILY(half_pair)},
    {CUDA_HALF_KERNEL("conv_chain", conv_pair),
     .optional_in = CR_IN_BIT(conv_pair, add) | CR_IN_BIT(conv_pair, first_w) | CR_IN_BIT(conv_pair, first_bias) |
                    CR_IN_BIT(conv_pair, shortcut_x) | CR_IN_BIT(conv_pair, shortcut_w) |
                    CR_IN_BIT(conv_pair, shortcut_bias),
     CUDA_FAMILY(half_chain)},
    {CR_KERNEL("cuda.int8_conv_pair", qconv_pair, CR_MATH_EXACT), CUDA_FAMILY(byte_pair)},
    {CR_KERNEL("cuda.int8_conv_chain", qconv_pair, CR_MATH_EXACT), CUDA_FAMILY(byte_chain)},
    {0}};
