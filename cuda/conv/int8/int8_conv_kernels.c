/* cuda/conv/int8/int8_conv_kernels.c: kernel table of 8-bit convolutions (cuda/conv/int8/int8_conv.h): cuda.int8_conv
 * for compute capability 9.0 with its packed filter, cuda.int8_conv_mma for other GPUs and for shapes that it does not
 * support, and cuda.int8_conv_plain for all other shapes on compute capability 9.0; and of the 8-bit stem. */
#include "cuda/conv/int8/int8_conv.h"
#include "cuda/conv/int8/int8_stem.h"
#include "cuda/core/family_kernels.h"
#include "cuda/core/kernel_tables.h"

#define IN(slot) cuda_in(p, op, CR_IN_qconv_##slot)

static bool is_int8(const struct cr_tensor *t) {
    return t->dtype == CR_I8 || t->dtype == CR_U8;
}

static enum ck_int8_type type_of(const struct cr_tensor *t) {
    switch (t->dtype) {
    case CR_U8: return CK_INT8_U8;
    case CR_I8: return CK_INT8_I8;
    case CR_F16: return CK_INT8_F16;
    case CR_BF16: return CK_INT8_BF16;
    default: return CK_INT8_F32;
    }
}

static bool operands_fit(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *add = IN(add), *y = cuda_out(p, op, CR_OUT_qconv_y);
    return is_int8(IN(x)) && IN(w)->dtype == CR_I8 && IN(coeffs)->dtype == CR_F32 && (!add || is_int8(add)) &&
           (is_int8(y) || cuda_is_data(y));
}

static bool conv_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *add = IN(add), *y = cuda_out(p, op, CR_OUT_qconv_y);
    const struct ck_conv    c  = cuda_conv_shape(op, IN(x), IN(w), y);
    *(struct ck_int8_conv *)to = (struct ck_int8_conv){.R          = c.R,
                                                       .S          = c.S,
                                                       .stride     = c.stride,
                                                       .pad        = c.pad,
                                                       .N          = c.N,
                                                       .H          = c.H,
                                                       .W          = c.W,
                                                       .C          = c.C,
                                                       .K          = c.K,
                                                       .P          = c.P,
                                                       .Q          = c.Q,
                                                       .x_type     = type_of(IN(x)),
                                                       .add_type   = add ? type_of(add) : CK_INT8_U8,
                                                       .y_type     = type_of(y),
                                                       .relu       = op->attr.conv.relu,
                                                       .has_add    = add != NULL,
                                                       .has_packed = IN(packed) != NULL,
                                                       .config     = op->algo,
                                                       .x          = cuda_data_in(call, CR_IN_qconv_x),
                                                       .w          = cuda_data_in(call, CR_IN_qconv_w),
                                                       .coeffs     = cuda_data_in(call, CR_IN_qconv_coeffs),
                                                       .add        = cuda_data_in(call, CR_IN_qconv_add),
                                                       .packed     = cuda_data_in(call, CR_IN_qconv_packed),
                                                       .y          = cuda_data_out(call, CR_OUT_qconv_y)};
    return operands_fit(p, op);
}
CUDA_FAMILY_KERNEL(fast, int8_conv, ck_int8_conv, conv_args)
CUDA_FAMILY_KERNEL(mma, int8_conv_any, ck_int8_conv, conv_args)

static bool mma_accepts_others(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return mma_accepts(device, p, op) && !fast_accepts(device, p, op);
}

/* ---- all shapes ---- */

/* Whether the convolution becomes a qstem together with the ops around it (compiler/fusion/quantize_stem.c). */
static bool belongs_to_stem(const struct ck_int8_conv *a) {
    return a->R == 7 && a->S == 7 && a->stride == 2 && a->pad == 3 && a->C == 3 && a->H % 2 == 0 && a->W % 2 == 0 &&
           a->K % 64 == 0 && a->x_type == CK_INT8_I8 && a->y_type == CK_INT8_U8 && !a->has_add;
}

/* On other GPUs than Hopper such convolutions stay in floating point with rounded values: cuDNN's kernels are much
 * faster than this one. */
static bool plain_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_int8_conv a;
    return conv_args(p, op, NULL, &a) && (cuda_of(device)->cc == 90 || belongs_to_stem(&a)) &&
           cr_tensor_elems(cuda_out(p, op, CR_OUT_qconv_y)) < (int64_t)INT32_MAX * 128;
}

static cr_status plain_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_int8_conv a;
    (void)conv_args(call->program, call->op, call, &a);
    return CUDA_STATUS(ck_int8_conv_plain(&a, cr_cuda_stream(device, call)));
}

/* ---- the packed filter ---- */

static size_t packed_bytes(const struct cr_tensor *w) {
    return ck_int8_packed_bytes(w->dim[0], (int)w->dim[1], (int)w->dim[2], w->dim[3]);
}

int64_t cr_cuda_int8_packed_bytes(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return fast_accepts(device, p, op) ? (int64_t)packed_bytes(IN(w)) : 0;
}

static bool pack_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const size_t bytes = packed_bytes(cuda_in(p, op, CR_IN_pack_filter_w));
    return cuda_of(device)->cc == 90 && bytes && bytes <= cuda_out(p, op, CR_OUT_pack_filter_y)->bytes;
}

static cr_status pack_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w = cuda_in(call->program, call->op, CR_IN_pack_filter_w);
    return CUDA_STATUS(ck_int8_pack(call->in[CR_IN_pack_filter_w], call->out[CR_OUT_pack_filter_y], w->dim[0],
                                    (int)w->dim[1], (int)w->dim[2], w->dim[3], cr_cuda_stream(device, call)));
}

/* ---- the stem ---- */

static bool stem_args(const struct cr_program *p, const struct cr_op *op, const struct cr_call *call, void *to) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_qstem_images);
    struct ck_int8_stem     a = {.N      = x->dim[0],
                                 .H      = x->dim[1],
                                 .W      = x->dim[2],
                                 .K      = cuda_out(p, op, CR_OUT_qstem_y)->dim[3],
                                 .images = cuda_data_in(call, CR_IN_qstem_images),
                                 .scale  = cuda_data_in(call, CR_IN_qstem_scale),
                                 .w      = cuda_data_in(call, CR_IN_qstem_w),
                                 .coeffs = cuda_data_in(call, CR_IN_qstem_coeffs),
                                 .y      = cuda_data_out(call, CR_OUT_qstem_y)};
    for (int c = 0; c < 3; c++) {
        a.mean[c] = op->attr.input.mean[c];
        a.std[c]  = op->attr.input.std[c];
    }
    *(struct ck_int8_stem *)to = a;
    return x->dtype == CR_U8 && cuda_in(p, op, CR_IN_qstem_w)->dtype == CR_I8 &&
           cuda_in(p, op, CR_IN_qstem_scale)->dtype == CR_F32 && cuda_in(p, op, CR_IN_qstem_coeffs)->dtype == CR_F32;
}
CUDA_FAMILY_KERNEL(stem, int8_stem, ck_int8_stem, stem_args)
CUDA_FAMILY_KERNEL(stem_mma, int8_stem_mma, ck_int8_stem, stem_args)

const struct cr_kernel cr_cuda_int8_conv_kernels[] = {
    {CR_KERNEL("cuda.int8_conv", qconv, CR_MATH_EXACT), CUDA_FAMILY(fast)},
    {CR_KERNEL("cuda.int8_conv_mma", qconv, CR_MATH_EXACT), .accepts = mma_accepts_others, .algo_count = mma_configs,
     .workspace = mma_workspace, .launch = mma_launch},
    {CR_KERNEL("cuda.int8_conv_plain", qconv, CR_MATH_EXACT), .accepts = plain_accepts, .launch = plain_launch},
    {CR_KERNEL("cuda.int8_pack", pack_filter, CR_MATH_EXACT), .accepts = pack_accepts, .launch = pack_launch},
    {CR_KERNEL("cuda.int8_stem", qstem, CR_MATH_EXACT), CUDA_FAMILY(stem)},
    {CR_KERNEL("cuda.int8_stem_mma", qstem, CR_MATH_EXACT), CUDA_FAMILY(stem_mma)},
    {0}};
