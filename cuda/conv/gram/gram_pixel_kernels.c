/* cuda/conv/gram/gram_pixel_kernels.c: kernel table of BN statistics from Gram matrices, the kernels over all pixels,
 * f16 and bf16: 1x1 convolutions of any stride. Device code is in the *_sm90a.cu files of this folder for compute
 * capability 9.0 (cuda.gram_wgmma), and in gram.cu and gram_wgrad.cu for all others from 8.0 on (cuda.gram). */
#include "cuda/conv/gram/gram.h"
#include "cuda/conv/mma/mma_device.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/optional_slots.h"
#include "cuda/core/typed_kernels.h"

static bool is_point(const struct cr_op *op, const struct cr_tensor *x, enum cr_dtype type) {
    return x->dtype == type && op->attr.conv.pad == 0;
}

/* ---- gram ---- */

static struct ck_gram_matrix gram_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(gram, x);
    return (struct ck_gram_matrix){.type   = cuda_type(x),
                                   .N      = x->dim[0],
                                   .H      = x->dim[1],
                                   .W      = x->dim[2],
                                   .C      = x->dim[3],
                                   .stride = op->attr.conv.stride};
}

static bool gram_fits(const struct cr_program *p, const struct cr_op *op, enum cr_dtype type) {
    return is_point(op, IN(gram, x), type) && is_f32(IN(gram, scale_bias)) &&
           cr_op_uses_only(op, IN_BIT(gram, x) | IN_BIT(gram, scale_bias), OUT_BIT(gram, gram));
}
static bool gram_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct ck_gram_matrix a = gram_of(p, op);
    return cuda_uses_mma(device) && gram_fits(p, op, type) && ck_gram_mma_supports(&a);
}
static bool gram_wgmma_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               enum cr_dtype type) {
    const struct ck_gram_matrix a = gram_of(p, op);
    return cuda_has_wgmma(device) && gram_fits(p, op, type) && ck_gram_matrix_supports(&a);
}
BOTH_TYPES(gram)
BOTH_TYPES(gram_wgmma)

static cr_status gram_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_gram_matrix a = gram_of(p, op);
    const int                   m = cuda_of(device)->multiprocessors;
    *prepared                     = NULL;
    *workspace_bytes = cuda_has_wgmma(device) ? ck_gram_matrix_workspace(&a, m) : ck_gram_mma_workspace(&a, m);
    return CR_OK;
}

static cr_status gram_launch(struct cr_device *device, const struct cr_call *call) {
    const int             m = cuda_of(device)->multiprocessors;
    struct ck_gram_matrix a = gram_of(call->program, call->op);
    a.x                     = call->in[CR_IN_gram_x];
    a.scale_bias            = call->in[CR_IN_gram_scale_bias];
    a.gram                  = call->out[CR_OUT_gram_gram];
    if (cuda_has_wgmma(device))
        CUDA_TRY(ck_gram_matrix(&a, call->workspace, m, cr_cuda_stream(device, call)));
    else
        CUDA_TRY(ck_gram_mma(&a, call->workspace, m, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- product of the gradient and the input ---- */

static struct ck_gram_product product_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(conv_wgrad, x);
    return (struct ck_gram_product){.type   = cuda_type(x),
                                    .N      = x->dim[0],
                                    .H      = x->dim[1],
                                    .W      = x->dim[2],
                                    .C      = x->dim[3],
                                    .K      = IN(conv_wgrad, dy)->dim[3],
                                    .stride = op->attr.conv.stride};
}

static bool wgrad_fits(const struct cr_program *p, const struct cr_op *op, enum cr_dtype type) {
    const struct cr_tensor *x = IN(conv_wgrad, x), *dw = OUT(conv_wgrad, dw);
    return OUT(conv_wgrad, dy_sums) && !op->attr.conv.accumulate && !cr_op_has_sparsity_pattern(op) &&
           is_point(op, x, type) && dw->dim[1] == 1 && dw->dim[2] == 1 && is_like(IN(conv_wgrad, dy), x) &&
           is_f32(dw) && is_f32(IN(conv_wgrad, scale_bias));
}
static bool wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                          enum cr_dtype type) {
    const struct ck_gram_product a = product_of(p, op);
    return cuda_uses_mma(device) && wgrad_fits(p, op, type) &&
           ck_gram_product_mma_supports(&a, cuda_of(device)->multiprocessors);
}
static bool wgrad_wgmma_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                enum cr_dtype type) {
    const struct ck_gram_product a = product_of(p, op);
    return cuda_has_wgmma(device) && wgrad_fits(p, op, type) && ck_gram_product_supports(&a);
}
BOTH_TYPES(wgrad)
BOTH_TYPES(wgrad_wgmma)

static cr_status wgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    const struct ck_gram_product a = product_of(p, op);
    const int                    m = cuda_of(device)->multiprocessors;
    *prepared                      = NULL;
    *workspace_bytes = cuda_has_wgmma(device) ? ck_gram_product_workspace(&a, m) : ck_gram_product_mma_workspace(&a, m);
    return CR_OK;
}

static cr_status wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cuda_device *d = cuda_of(device);
    const cudaStream_t        s = cr_cuda_stream(device, call);
    struct ck_gram_product    a = product_of(call->program, call->op);
    a.x                         = call->in[CR_IN_conv_wgrad_x];
    a.dy                        = call->in[CR_IN_conv_wgrad_dy];
    a.scale_bias                = call->in[CR_IN_conv_wgrad_scale_bias];
    a.dw                        = call->out[CR_OUT_conv_wgrad_dw];
    a.dy_sums                   = call->out[CR_OUT_conv_wgrad_dy_sums];
    if (cuda_has_wgmma(device))
        CUDA_TRY(ck_gram_product(&a, call->workspace, d->multiprocessors, s));
    else
        CUDA_TRY(ck_gram_product_mma(&a, call->workspace, d->multiprocessors, d->block_bytes, s));
    return CR_OK;
}

/* ---- the kernels ---- */

#define KERNEL(name, kernel, kind, step, type, of_math)                                                                \
    static const struct cr_kernel name##_##type = {CR_KERNEL(kernel, kind, of_math), .accepts = name##_accepts_##type, \
                                                   .prepare = step##_prepare, .launch = step##_launch,                 \
                                                   .release = nothing_to_release}
KERNEL(gram, "cuda.gram.gram.f16", gram, gram, f16, CR_MATH_F16);
KERNEL(gram, "cuda.gram.gram.bf16", gram, gram, bf16, CR_MATH_BF16);
KERNEL(gram_wgmma, "cuda.gram_wgmma.gram.f16", gram, gram, f16, CR_MATH_F16);
KERNEL(gram_wgmma, "cuda.gram_wgmma.gram.bf16", gram, gram, bf16, CR_MATH_BF16);
KERNEL(wgrad, "cuda.gram.wgrad.f16", conv_wgrad, wgrad, f16, CR_MATH_F16);
KERNEL(wgrad, "cuda.gram.wgrad.bf16", conv_wgrad, wgrad, bf16, CR_MATH_BF16);
KERNEL(wgrad_wgmma, "cuda.gram_wgmma.wgrad.f16", conv_wgrad, wgrad, f16, CR_MATH_F16);
KERNEL(wgrad_wgmma, "cuda.gram_wgmma.wgrad.bf16", conv_wgrad, wgrad, bf16, CR_MATH_BF16);

const struct cr_kernel *const cr_cuda_gram_pixel_kernels[] = {&gram_f16,        &gram_bf16,        &gram_wgmma_f16,
                                                              &gram_wgmma_bf16, &wgrad_f16,        &wgrad_bf16,
                                                              &wgrad_wgmma_f16, &wgrad_wgmma_bf16, NULL};
