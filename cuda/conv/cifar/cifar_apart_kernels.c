/* cuda/conv/cifar/cifar_apart_kernels.c: kernel table of the input gradients and filter gradients of CIFAR convolutions
 * as separate kernels, in f16 and bf16. Device code is in cuda/conv/cifar/cifar_dgrad.cu and cifar_wgrads.cu. */
#include "cuda/conv/cifar/cifar_apart.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/optional_slots.h"

static bool has_type(const struct cr_tensor *t, enum cr_dtype type) {
    return t && t->dtype == type;
}

/* A filter can exceed the number range of struct ck_conv only if the shape is not supported. */
static bool is_small(const struct cr_tensor *w) {
    return w->dim[1] <= 3 && w->dim[2] <= 3;
}

/* ---- the input gradient ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_grad_##slot)
#define OUT(slot) cuda_out(p, op, CR_OUT_conv_grad_##slot)
#define IN_BIT(slot) (1u << CR_IN_conv_grad_##slot)
#define OUT_BIT(slot) (1u << CR_OUT_conv_grad_##slot)

/* All inputs and outputs of the BN before the convolution are present as ck_cifar_dgrad needs them. */
static bool has_whole_bn(const struct cr_program *p, const struct cr_op *op) {
    if (!IN(gamma) != !OUT(grad_coeffs) || (IN(gamma) ? !OUT(grad_sums) : OUT(dgamma) || OUT(dbeta))) return false;
    if (!IN(dy_x) != !IN(dy_coeffs) || !IN(mean_rstd) != !OUT(grad_sums)) return false;
    return IN(mean_rstd) ? !IN(scale_bias) != !IN(bn_x) : !IN(bn_x); /* exactly one of them gives the mask */
}

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x), *w = IN(w), *g = IN(g);
    if (!cr_op_uses_only(op,
                         IN_BIT(g) | IN_BIT(dy_x) | IN_BIT(dy_coeffs) | IN_BIT(w) | IN_BIT(x) | IN_BIT(scale_bias) |
                             IN_BIT(mean_rstd) | IN_BIT(add) | IN_BIT(bn_x) | IN_BIT(gamma),
                         OUT_BIT(dx) | OUT_BIT(grad_sums) | OUT_BIT(dgamma) | OUT_BIT(dbeta) | OUT_BIT(grad_coeffs)))
        return false;
    if (!OUT(dx) || x->dtype == CR_F32 || !is_small(w) || !has_type(w, x->dtype) || !has_type(g, x->dtype)) return false;
    if (!is_like(IN(dy_x), x) || !is_like(IN(add), x) || !is_like(IN(bn_x), x) || !is_like(OUT(dx), x)) return false;
    if (!is_f32(IN(gamma)) || !is_f32(IN(dy_coeffs)) || !is_f32(IN(scale_bias)) || !is_f32(IN(mean_rstd))) return false;
    if (!is_f32(OUT(grad_sums)) || !is_f32(OUT(dgamma)) || !is_f32(OUT(dbeta)) || !is_f32(OUT(grad_coeffs)))
        return false;
    const struct ck_conv v = cuda_conv_shape(op, x, w, g);
    return ck_cifar_apart_supports(&v, cuda_of(device)->block_bytes) && has_whole_bn(p, op);
}

static int dgrad_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv v = cuda_conv_shape(op, IN(x), IN(w), IN(g));
    (void)device;
    return ck_cifar_dgrad_algos(&v);
}

static cr_status dgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    const struct ck_conv v = cuda_conv_shape(op, IN(x), IN(w), IN(g));
    *prepared              = NULL;
    *workspace_bytes       = ck_cifar_dgrad_workspace(&v, op->algo, cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program        *p    = call->program;
    const struct cr_op             *op   = call->op;
    const struct ck_cifar_conv_grad args = {.conv       = cuda_conv_shape(op, IN(x), IN(w), IN(g)),
                                            .g          = call->in[CR_IN_conv_grad_g],
                                            .dy_x       = call->in[CR_IN_conv_grad_dy_x],
                                            .dy_coeffs  = call->in[CR_IN_conv_grad_dy_coeffs],
                                            .w          = call->in[CR_IN_conv_grad_w],
                                            .x          = call->in[CR_IN_conv_grad_x],
                                            .scale_bias = call->in[CR_IN_conv_grad_scale_bias],
                                            .mean_rstd  = call->in[CR_IN_conv_grad_mean_rstd],
                                            .add        = call->in[CR_IN_conv_grad_add],
                                            .bn_x       = call->in[CR_IN_conv_grad_bn_x],
                                            .dx         = call->out[CR_OUT_conv_grad_dx],
                                            .grad_sums  = call->out[CR_OUT_conv_grad_grad_sums],
                                            .finish     = {.gamma      = call->in[CR_IN_conv_grad_gamma],
                                                           .dgamma     = call->out[CR_OUT_conv_grad_dgamma],
                                                           .dbeta      = call->out[CR_OUT_conv_grad_dbeta],
                                                           .coeffs     = call->out[CR_OUT_conv_grad_grad_coeffs],
                                                           .count      = op->attr.conv.bn.count,
                                                           .accumulate = op->attr.conv.bn.accumulate},
                                            .w_new      = !op->attr.conv.early_filter,
                                            .x_new      = !op->attr.conv.early_data};
    CUDA_TRY(ck_cifar_dgrad(&args, op->algo, call->workspace, cuda_of(device)->multiprocessors,
                            cuda_of(device)->block_bytes, cr_cuda_stream(device, call)));
    return CR_OK;
}
#undef IN
#undef OUT

/* ---- filter gradients ---- */

#define SLOT(slot, i) (CR_IN_conv_wgrads_##slot##0 + (i)*CR_WGRADS_STEP)
#define IN(slot, i) cuda_in(p, op, SLOT(slot, i))
_Static_assert((int)CR_WGRADS == (int)CK_CIFAR_WGRADS, "convolutions of an op and of a launch");

/* Convolution i, whose g, x and dw are present. */
static struct ck_conv shape_of(const struct cr_program *p, const struct cr_op *op, int i) {
    const struct cr_tensor *x = IN(x, i), *g = IN(g, i), *dw = cuda_out(p, op, i);
    struct ck_conv          v = cuda_conv_shape(op, x, dw, g);
    v.stride                  = (int)((x->dim[1] + g->dim[1] - 1) / g->dim[1]);
    v.pad                     = v.R / 2;
    return v;
}

static bool accepts_one(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op, int i) {
    const struct cr_tensor *x = IN(x, i), *g = IN(g, i), *dw = cuda_out(p, op, i), *first = IN(x, 0);
    if (!x || !g || !has_type(g, first->dtype) || !has_type(x, first->dtype) || !has_type(dw, CR_F32)) return false;
    if (x->dim[0] != first->dim[0] || !is_small(dw) || !is_like(IN(dy_x, i), x)) return false;
    if (!is_f32(IN(dy_coeffs, i)) || !is_f32(IN(scale_bias, i)) || !IN(dy_x, i) != !IN(dy_coeffs, i)) return false;
    const struct ck_conv v = shape_of(p, op, i);
    return ck_cifar_apart_supports(&v, cuda_of(device)->block_bytes);
}

static bool wgrads_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    for (int i = 0; i < CR_WGRADS; i++)
        if (op->out[i] >= 0 && !accepts_one(device, p, op, i)) return false;
    return op->out[0] >= 0 && IN(x, 0)->dtype != CR_F32;
}

/* Shapes alone, without a call. */
static struct ck_cifar_wgrads arguments(const struct cr_program *p, const struct cr_op *op,
                                        const struct cr_call *call) {
    struct ck_cifar_wgrads a = {.accumulate = op->attr.conv.accumulate};
    for (int i = 0; i < CR_WGRADS; i++) {
        if (op->out[i] < 0) continue;
        const int n    = a.convs++;
        a.conv[n].conv = shape_of(p, op, i);
        if (!call) continue;
        a.conv[n].g          = call->in[SLOT(g, i)];
        a.conv[n].dy_x       = call->in[SLOT(dy_x, i)];
        a.conv[n].x          = call->in[SLOT(x, i)];
        a.conv[n].dy_coeffs  = call->in[SLOT(dy_coeffs, i)];
        a.conv[n].scale_bias = call->in[SLOT(scale_bias, i)];
        a.conv[n].dw         = call->out[i];
    }
    return a;
}

static cr_status wgrads_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                void **prepared, size_t *workspace_bytes) {
    const struct ck_cifar_wgrads a = arguments(p, op, NULL);
    *prepared                      = NULL;
    *workspace_bytes               = ck_cifar_wgrads_workspace(&a, cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status wgrads_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_cifar_wgrads a = arguments(call->program, call->op, call);
    CUDA_TRY(ck_cifar_wgrads(&a, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the kernels ---- */

#define BY_TYPE(kind, X, enum_type)                                                                                    \
    static bool kind##_accepts_##enum_type(const struct cr_device *device, const struct cr_program *p,                 \
                                           const struct cr_op *op) {                                                   \
        return cuda_in(p, op, X)->dtype == CR_##enum_type && kind##_accepts(device, p, op);                            \
    }
BY_TYPE(dgrad, CR_IN_conv_grad_x, F16)
BY_TYPE(dgrad, CR_IN_conv_grad_x, BF16)
BY_TYPE(wgrads, CR_IN_conv_wgrads_x0, F16)
BY_TYPE(wgrads, CR_IN_conv_wgrads_x0, BF16)

#define APART_KERNEL(kernel, text, kind, what, enum_type, algos)                                                       \
    static const struct cr_kernel kernel = {.name          = text,                                                     \
                                            .op            = CR_OP_##what,                                             \
                                            .math          = CR_MATH_##enum_type,                                      \
                                            .deterministic = true,                                                     \
                                            .accepts       = kind##_accepts_##enum_type,                               \
                                            .algo_count    = algos,                                                    \
                                            .prepare       = kind##_prepare,                                           \
                                            .launch        = kind##_launch}
APART_KERNEL(dgrad_f16, "cuda.cifar_dgrad.f16", dgrad, conv_grad, F16, dgrad_algo_count);
APART_KERNEL(dgrad_bf16, "cuda.cifar_dgrad.bf16", dgrad, conv_grad, BF16, dgrad_algo_count);
APART_KERNEL(wgrads_f16, "cuda.cifar_wgrads.f16", wgrads, conv_wgrads, F16, NULL);
APART_KERNEL(wgrads_bf16, "cuda.cifar_wgrads.bf16", wgrads, conv_wgrads, BF16, NULL);

const struct cr_kernel *const cr_cuda_cifar_apart_kernels[] = {&dgrad_f16, &dgrad_bf16, &wgrads_f16, &wgrads_bf16, NULL};
