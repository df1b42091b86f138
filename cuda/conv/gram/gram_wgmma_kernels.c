/* cuda/conv/gram/gram_wgmma_kernels.c: kernel table of BN statistics from Gram matrices for compute capability 9.0, f16
 * and bf16: 1x1 convolutions of any stride. Device code is in the *_sm90a.cu files of this folder. */
#include "cuda/conv/gram/gram.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/typed_kernels.h"

/* For optional slots: an absent tensor also fits. */
static bool is_like(const struct cr_tensor *t, const struct cr_tensor *data) {
    return !t || t->dtype == data->dtype;
}
static bool is_f32(const struct cr_tensor *t) {
    return !t || t->dtype == CR_F32;
}
static bool is_point(const struct cr_device *device, const struct cr_op *op, const struct cr_tensor *x,
                     enum cr_dtype type) {
    return cuda_of(device)->cc == 90 && x->dtype == type && op->attr.conv.pad == 0;
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

static bool gram_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct ck_gram_matrix a = gram_of(p, op);
    return is_point(device, op, IN(gram, x), type) && is_f32(IN(gram, scale_bias)) &&
           cr_op_uses_only(op, IN_BIT(gram, x) | IN_BIT(gram, scale_bias), OUT_BIT(gram, gram)) &&
           ck_gram_matrix_supports(&a);
}
BOTH_TYPES(gram)

static cr_status gram_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_gram_matrix a = gram_of(p, op);
    *prepared                     = NULL;
    *workspace_bytes              = ck_gram_matrix_workspace(&a, cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status gram_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_gram_matrix a = gram_of(call->program, call->op);
    a.x                     = call->in[CR_IN_gram_x];
    a.scale_bias            = call->in[CR_IN_gram_scale_bias];
    a.gram                  = call->out[CR_OUT_gram_gram];
    CUDA_TRY(ck_gram_matrix(&a, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
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

static bool wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                          enum cr_dtype type) {
    const struct cr_tensor      *x = IN(conv_wgrad, x), *dw = OUT(conv_wgrad, dw);
    const struct ck_gram_product a = product_of(p, op);
    if (!OUT(conv_wgrad, dy_sums) || op->attr.conv.accumulate || cr_op_has_sparsity_pattern(op)) return false;
    return is_point(device, op, x, type) && dw->dim[1] == 1 && dw->dim[2] == 1 && is_like(IN(conv_wgrad, dy), x) &&
           is_f32(dw) && is_f32(IN(conv_wgrad, scale_bias)) && ck_gram_product_supports(&a);
}
BOTH_TYPES(wgrad)

static cr_status wgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    const struct ck_gram_product a = product_of(p, op);
    *prepared                      = NULL;
    *workspace_bytes               = ck_gram_product_workspace(&a, cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_gram_product a = product_of(call->program, call->op);
    a.x                      = call->in[CR_IN_conv_wgrad_x];
    a.dy                     = call->in[CR_IN_conv_wgrad_dy];
    a.scale_bias             = call->in[CR_IN_conv_wgrad_scale_bias];
    a.dw                     = call->out[CR_OUT_conv_wgrad_dw];
    a.dy_sums                = call->out[CR_OUT_conv_wgrad_dy_sums];
    CUDA_TRY(ck_gram_product(&a, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the kernels ---- */

#define KERNELS(name, kind, ...)                                                                                       \
    static const struct cr_kernel name##_f16  = {CR_KERNEL("cuda.gram_wgmma." #name ".f16", kind, CR_MATH_F16),        \
                                                 .accepts = name##_accepts_f16, .launch = name##_launch, __VA_ARGS__}, \
                                  name##_bf16 = {CR_KERNEL("cuda.gram_wgmma." #name ".bf16", kind, CR_MATH_BF16),      \
                                                 .accepts = name##_accepts_bf16, .launch = name##_launch, __VA_ARGS__}
KERNELS(gram, gram, .prepare = gram_prepare, .release = nothing_to_release);
KERNELS(wgrad, conv_wgrad, .prepare = wgrad_prepare, .release = nothing_to_release);

const struct cr_kernel *const cr_cuda_gram_wgmma_kernels[] = {&gram_f16, &gram_bf16, &wgrad_f16, &wgrad_bf16, NULL};
