/* cuda/conv/generic/conv_kernels.c: kernel table of the generic convolutions, after cuDNN's: shapes that cuDNN does not
 * support, in f32, f16 or bf16. Device code is in cuda/conv/generic/conv.cu. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

/* Sizes that cuda/conv/generic/conv.cu indexes with 32 bits: sides of images, elements of a filter, blocks of 64 x 64
 * results. */
static bool fits(const struct cr_tensor *x, const struct cr_tensor *w, const struct cr_tensor *y) {
    const int64_t side = 1 << 20, taps = w->dim[1] * w->dim[2], wide = CR_MAX(x->dim[3], y->dim[3]);
    if (x->dim[1] >= side || x->dim[2] >= side || y->dim[1] >= side || y->dim[2] >= side || taps >= side) return false;
    return wide <= INT32_MAX / taps && CR_MAX(cuda_pixels(x), cuda_pixels(y)) / 64 + 1 <= INT32_MAX / (wide / 64 + 1);
}

static bool accepts(const struct cr_tensor *x, const struct cr_tensor *w, const struct cr_tensor *y) {
    return cuda_is_data(x) && y->dtype == x->dtype && fits(x, w, y);
}

#define IN(kind, slot) cuda_in(p, op, CR_IN_##kind##_##slot)
#define OUT(kind, slot) cuda_out(p, op, CR_OUT_##kind##_##slot)
#define IN_BIT(kind, slot) (1u << CR_IN_##kind##_##slot)
#define OUT_BIT(kind, slot) (1u << CR_OUT_##kind##_##slot)

/* Accepts plain convolutions only: the kernels support none of the fused operations. */

/* ---- forward ---- */

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    if (!cr_op_uses_only(op, IN_BIT(conv, x) | IN_BIT(conv, w), OUT_BIT(conv, y)) || op->attr.conv.relu) return false;
    return IN(conv, w)->dtype == IN(conv, x)->dtype && accepts(IN(conv, x), IN(conv, w), OUT(conv, y));
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    const struct ck_conv     v  = cuda_conv_shape(op, IN(conv, x), IN(conv, w), OUT(conv, y));
    CUDA_TRY(ck_conv_forward(&v, call->in[CR_IN_conv_x], call->in[CR_IN_conv_w], call->out[CR_OUT_conv_y],
                             cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- gradient of the input ---- */

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    if (!cr_op_uses_only(op, IN_BIT(conv_dgrad, dy) | IN_BIT(conv_dgrad, w), OUT_BIT(conv_dgrad, dx))) return false;
    return IN(conv_dgrad, w)->dtype == IN(conv_dgrad, dy)->dtype &&
           accepts(OUT(conv_dgrad, dx), IN(conv_dgrad, w), IN(conv_dgrad, dy));
}

static cr_status dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    const struct ck_conv     v  = cuda_conv_shape(op, OUT(conv_dgrad, dx), IN(conv_dgrad, w), IN(conv_dgrad, dy));
    CUDA_TRY(ck_conv_dgrad(&v, call->in[CR_IN_conv_dgrad_dy], call->in[CR_IN_conv_dgrad_w],
                           call->out[CR_OUT_conv_dgrad_dx], cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- gradient of the filters ---- */

static bool wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    if (!cr_op_uses_only(op, IN_BIT(conv_wgrad, x) | IN_BIT(conv_wgrad, dy), OUT_BIT(conv_wgrad, dw))) return false;
    return OUT(conv_wgrad, dw)->dtype == CR_F32 && accepts(IN(conv_wgrad, x), OUT(conv_wgrad, dw), IN(conv_wgrad, dy));
}

static cr_status wgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    const struct ck_conv v = cuda_conv_shape(op, IN(conv_wgrad, x), OUT(conv_wgrad, dw), IN(conv_wgrad, dy));
    *prepared              = NULL;
    *workspace_bytes       = ck_conv_wgrad_workspace(&v, cuda_of(device)->multiprocessors);
    return CR_OK;
}

static cr_status wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program *p  = call->program;
    const struct cr_op      *op = call->op;
    const struct ck_conv     v  = cuda_conv_shape(op, IN(conv_wgrad, x), OUT(conv_wgrad, dw), IN(conv_wgrad, dy));
    CUDA_TRY(ck_conv_wgrad(&v, call->in[CR_IN_conv_wgrad_x], call->in[CR_IN_conv_wgrad_dy],
                           call->out[CR_OUT_conv_wgrad_dw], op->attr.conv.accumulate, call->workspace,
                           cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static void nothing_to_release(void *prepared) {
    (void)prepared;
}

/* ---- the kernels ---- */

static const struct cr_kernel kernel_conv  = {.name          = "cuda.conv",
                                              .op            = CR_OP_conv,
                                              .math          = CR_MATH_F32,
                                              .deterministic = true,
                                              .accepts       = conv_accepts,
                                              .launch        = conv_launch};
static const struct cr_kernel kernel_dgrad = {.name          = "cuda.conv_dgrad",
                                              .op            = CR_OP_conv_dgrad,
                                              .math          = CR_MATH_F32,
                                              .deterministic = true,
                                              .accepts       = dgrad_accepts,
                                              .launch        = dgrad_launch};
static const struct cr_kernel kernel_wgrad = {.name          = "cuda.conv_wgrad",
                                              .op            = CR_OP_conv_wgrad,
                                              .math          = CR_MATH_F32,
                                              .deterministic = true,
                                              .accepts       = wgrad_accepts,
                                              .prepare       = wgrad_prepare,
                                              .launch        = wgrad_launch,
                                              .release       = nothing_to_release};

const struct cr_kernel *const cr_cuda_conv_kernels[] = {&kernel_conv, &kernel_dgrad, &kernel_wgrad, NULL};
