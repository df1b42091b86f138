/* cuda/elementwise/pointwise_kernels.c: kernel table for the input, pointwise ops, pooling, the shortcut without
 * parameters, cast, zero, and the space-to-depth filter. This file reads shapes and slots. Device code is in
 * cuda/elementwise/pointwise.cu, pool.cu, pool_grad.cu, mix.cu and space_to_depth.cu. Data is f32, f16 or bf16, one
 * type in an op. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <math.h>
#include <string.h>

/* ---- accepted operands ---- */

static bool same_data(const struct cr_tensor *a, const struct cr_tensor *b) {
    return cuda_is_data(a) && b && a->dtype == b->dtype;
}

/* cuda/elementwise/pool.cu indexes the elements of an image with 32 bits. */
static bool fits(const struct cr_tensor *t) {
    int64_t elems = 1;
    for (int i = 1; i < 4; i++) {
        if (t->dim[i] > INT32_MAX / elems) return false;
        elems *= t->dim[i];
    }
    return true;
}

/* For ops whose first input and first output are images of one type and of any shape. */
static bool plain_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return same_data(cuda_in(p, op, 0), cuda_out(p, op, 0));
}

/* As plain_accepts; all inputs have that type. */
static bool pointwise_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const int ins = cr_op_info(op->kind)->ins;
    for (int s = 1; s < ins; s++)
        if (!same_data(cuda_in(p, op, s), cuda_in(p, op, 0))) return false;
    return plain_accepts(device, p, op) && cr_op_uses_only(op, (1u << ins) - 1, 1);
}

/* As plain_accepts; the elements of an image can be indexed with 32 bits. */
static bool window_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return plain_accepts(device, p, op) && fits(cuda_in(p, op, 0)) && fits(cuda_out(p, op, 0));
}

/* large: [N,H,W,C]; small: [N,P,Q,K]. */
static struct ck_window window_of(const struct cr_op *op, const struct cr_tensor *large,
                                  const struct cr_tensor *small) {
    const struct cr_conv_attr *a = &op->attr.conv;
    return (struct ck_window){.N      = large->dim[0],
                              .H      = large->dim[1],
                              .W      = large->dim[2],
                              .C      = large->dim[3],
                              .P      = small->dim[1],
                              .Q      = small->dim[2],
                              .K      = small->dim[3],
                              .window = a->window,
                              .stride = a->stride,
                              .pad    = a->pad};
}

#define IN(kind, slot) cuda_in(call->program, call->op, CR_IN_##kind##_##slot)
#define OUT(kind, slot) cuda_out(call->program, call->op, CR_OUT_##kind##_##slot)

/* ---- input ---- */

static bool normalize_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *images = cuda_in(p, op, CR_IN_normalize_images);
    (void)device;
    if (op->attr.input.wide) return false;
    if ((op->in[CR_IN_normalize_boxes] >= 0 || op->attr.input.s2d) && !fits(images)) return false;
    return cr_op_uses_only(op, 1u << CR_IN_normalize_images | 1u << CR_IN_normalize_boxes, 1u << CR_OUT_normalize_y) &&
           images->dtype == CR_U8 && images->dim[3] == 3 && cuda_is_data(cuda_out(p, op, CR_OUT_normalize_y));
}

static cr_status normalize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor     *y      = OUT(normalize, y);
    const struct cr_input_attr *a      = &call->op->attr.input;
    const struct cr_tensor     *images = IN(normalize, images);
    const void                 *boxes  = call->in[CR_IN_normalize_boxes];
    cudaStream_t                stream = cr_cuda_stream(device, call);
    if (a->s2d)
        CUDA_TRY(ck_normalize_s2d(call->in[CR_IN_normalize_images], boxes, cuda_type(y), call->out[CR_OUT_normalize_y],
                                  images->dim[0], images->dim[1], images->dim[2], a->mean, a->std, stream));
    else
        CUDA_TRY(ck_normalize(call->in[CR_IN_normalize_images], boxes, cuda_type(y), call->out[CR_OUT_normalize_y],
                              images->dim[0], images->dim[1], images->dim[2], a->mean, a->std, stream));
    return CR_OK;
}

/* Other numbers of channels, and 16 bits. */
static bool normalize_any_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *images = cuda_in(p, op, CR_IN_normalize_images);
    (void)device;
    return cr_op_uses_only(op, 1u << CR_IN_normalize_images | 1u << CR_IN_normalize_boxes, 1u << CR_OUT_normalize_y) &&
           images->dtype == CR_U8 && !op->attr.input.s2d && fits(images) &&
           cuda_is_data(cuda_out(p, op, CR_OUT_normalize_y));
}

static cr_status normalize_any_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_input_attr *a      = &call->op->attr.input;
    const struct cr_tensor     *images = IN(normalize, images), *y = OUT(normalize, y);
    struct ck_images            args = {.images   = call->in[CR_IN_normalize_images],
                                        .boxes    = call->in[CR_IN_normalize_boxes],
                                        .N        = images->dim[0],
                                        .H        = images->dim[1],
                                        .W        = images->dim[2],
                                        .channels = (int)y->dim[3],
                                        .wide     = a->wide};
    memcpy(args.mean, a->mean, sizeof args.mean);
    memcpy(args.std, a->std, sizeof args.std);
    CUDA_TRY(ck_normalize_any(&args, cuda_type(y), call->out[CR_OUT_normalize_y], cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool s2d_filter_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return same_data(cuda_in(p, op, CR_IN_s2d_filter_w), cuda_out(p, op, CR_OUT_s2d_filter_y)) &&
           cr_op_uses_only(op, 1u << CR_IN_s2d_filter_w, 1u << CR_OUT_s2d_filter_y);
}

static cr_status s2d_filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w = IN(s2d_filter, w);
    CUDA_TRY(ck_s2d_filter(cuda_type(w), call->in[CR_IN_s2d_filter_w], call->out[CR_OUT_s2d_filter_y], w->dim[0],
                           cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool s2d_filter_grad_accepts(const struct cr_device *device, const struct cr_program *p,
                                    const struct cr_op *op) {
    (void)device;
    return cuda_in(p, op, CR_IN_s2d_filter_grad_dy)->dtype == CR_F32 &&
           cuda_out(p, op, CR_OUT_s2d_filter_grad_dw)->dtype == CR_F32 &&
           cr_op_uses_only(op, 1u << CR_IN_s2d_filter_grad_dy, 1u << CR_OUT_s2d_filter_grad_dw);
}

static cr_status s2d_filter_grad_launch(struct cr_device *device, const struct cr_call *call) {
    CUDA_TRY(ck_s2d_filter_grad(call->in[CR_IN_s2d_filter_grad_dy], call->out[CR_OUT_s2d_filter_grad_dw],
                                IN(s2d_filter_grad, dy)->dim[0], call->op->attr.conv.accumulate,
                                cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- pointwise ---- */

static cr_status relu_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = OUT(relu, y);
    CUDA_TRY(ck_relu(cuda_type(y), call->in[CR_IN_relu_x], call->out[CR_OUT_relu_y], cr_tensor_elems(y),
                     cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status add_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = OUT(add, y);
    CUDA_TRY(ck_add(cuda_type(y), call->in[CR_IN_add_a], call->in[CR_IN_add_b], call->out[CR_OUT_add_y],
                    cr_tensor_elems(y), cr_cuda_stream(device, call)));
    return CR_OK;
}

static bool cast_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_cast_x), *y = cuda_out(p, op, CR_OUT_cast_y);
    (void)device;
    return x->dtype == CR_F32 && (y->dtype == CR_F16 || y->dtype == CR_BF16) &&
           cr_tensor_elems(x) == cr_tensor_elems(y);
}

static cr_status cast_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = OUT(cast, y);
    CUDA_TRY(ck_cast(call->in[CR_IN_cast_x], cuda_type(y), call->out[CR_OUT_cast_y], cr_tensor_elems(y),
                     cr_cuda_stream(device, call)));
    return CR_OK;
}

/* 0 is represented by zero bits in every type. */
static cr_status zero_launch(struct cr_device *device, const struct cr_call *call) {
    CUDA_TRY(cudaMemsetAsync(call->out[CR_OUT_zero_y], 0, OUT(zero, y)->bytes, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- pooling ---- */

static bool maxpool_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *scale_bias = cuda_in(p, op, CR_IN_maxpool_scale_bias);
    return window_accepts(device, p, op) && (!scale_bias || scale_bias->dtype == CR_F32) &&
           cr_op_uses_only(op, 1u << CR_IN_maxpool_x | 1u << CR_IN_maxpool_scale_bias,
                           1u << CR_OUT_maxpool_y | 1u << CR_OUT_maxpool_index);
}

static cr_status maxpool_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = IN(maxpool, x);
    const struct ck_window  w = window_of(call->op, x, OUT(maxpool, y));
    CUDA_TRY(ck_maxpool(cuda_type(x), call->in[CR_IN_maxpool_x], call->in[CR_IN_maxpool_scale_bias],
                        call->out[CR_OUT_maxpool_y], call->out[CR_OUT_maxpool_index], &w,
                        cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status maxpool_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = OUT(maxpool_grad, dx);
    const struct ck_window  w  = window_of(call->op, dx, IN(maxpool_grad, dy));
    CUDA_TRY(ck_maxpool_grad(cuda_type(dx), call->in[CR_IN_maxpool_grad_dy], call->in[CR_IN_maxpool_grad_index],
                             call->out[CR_OUT_maxpool_grad_dx], &w, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status avgpool_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = IN(avgpool, x);
    CUDA_TRY(ck_avgpool(cuda_type(x), call->in[CR_IN_avgpool_x], call->out[CR_OUT_avgpool_y], x->dim[0],
                        x->dim[1] * x->dim[2], x->dim[3], cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status avgpool_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = OUT(avgpool_grad, dx);
    CUDA_TRY(ck_avgpool_grad(cuda_type(dx), call->in[CR_IN_avgpool_grad_dy], call->out[CR_OUT_avgpool_grad_dx],
                             dx->dim[0], dx->dim[1] * dx->dim[2], dx->dim[3], cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- option A shortcut ---- */

static cr_status pad_shortcut_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = IN(pad_shortcut, x);
    struct ck_window        w = window_of(call->op, x, OUT(pad_shortcut, y));
    w.pad                     = call->op->attr.conv.pad_c;
    CUDA_TRY(ck_pad_shortcut(cuda_type(x), call->in[CR_IN_pad_shortcut_x], call->out[CR_OUT_pad_shortcut_y], &w,
                             cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status pad_shortcut_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = OUT(pad_shortcut_grad, dx);
    struct ck_window        w  = window_of(call->op, dx, IN(pad_shortcut_grad, dy));
    w.pad                      = call->op->attr.conv.pad_c;
    CUDA_TRY(ck_pad_shortcut_grad(cuda_type(dx), call->in[CR_IN_pad_shortcut_grad_dy],
                                  call->out[CR_OUT_pad_shortcut_grad_dx], &w, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- mix ---- */

_Static_assert((int)CK_MIX_PARTNER == (int)CR_MIX_PARTNER && (int)CK_MIX_FRACTION == (int)CR_MIX_LABEL_WEIGHT &&
                   (int)CK_MIX_WEIGHT == (int)CR_MIX_WEIGHT && (int)CK_MIX_CUT == (int)CR_MIX_CUT &&
                   (int)CK_MIX_ERASE == (int)CR_MIX_ERASE && (int)CK_MIX_NUMBERS == (int)CR_MIX_NUMBERS &&
                   (int)CK_MIX_ONE == (int)CR_MIX_ONE,
               "the kernels' enums equal the host's");

static bool mix_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    const struct cr_tensor *images = cuda_in(p, op, CR_IN_mix_images);
    return images->dtype == CR_U8 && fits(images) && cuda_in(p, op, CR_IN_mix_boxes)->dtype == CR_I32 &&
           cuda_in(p, op, CR_IN_mix_mixes)->dtype == CR_I32;
}

static cr_status mix_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *images  = IN(mix, images);
    struct ck_mix           args    = {.images = call->in[CR_IN_mix_images],
                                       .boxes  = call->in[CR_IN_mix_boxes],
                                       .mixes  = call->in[CR_IN_mix_mixes],
                                       .y      = call->out[CR_OUT_mix_y],
                                       .N      = images->dim[0],
                                       .H      = images->dim[1],
                                       .W      = images->dim[2],
                                       .wide   = call->op->attr.input.wide};
    const double            largest = args.wide ? 65535 : 255;
    args.channels                   = (int)images->dim[3] / (args.wide ? 2 : 1);
    for (int c = 0; c < args.channels; c++)
        args.fill[c] = (int)rint(fmin(fmax(largest * (double)call->op->attr.input.mean[c], 0), largest));
    CUDA_TRY(ck_mix(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the kernels ---- */

#define DATA_KERNEL(kind, test, how)                                                                                   \
    static const struct cr_kernel kernel_##kind = {.name          = "cuda." #kind,                                     \
                                                   .op            = CR_OP_##kind,                                      \
                                                   .math          = how,                                               \
                                                   .deterministic = true,                                              \
                                                   .accepts       = test,                                              \
                                                   .launch        = kind##_launch}
DATA_KERNEL(mix, mix_accepts, CR_MATH_EXACT);
DATA_KERNEL(normalize, normalize_accepts, CR_MATH_F32);
static const struct cr_kernel kernel_normalize_any = {.name          = "cuda.normalize_any",
                                                      .op            = CR_OP_normalize,
                                                      .math          = CR_MATH_F32,
                                                      .deterministic = true,
                                                      .accepts       = normalize_any_accepts,
                                                      .launch        = normalize_any_launch};
DATA_KERNEL(s2d_filter, s2d_filter_accepts, CR_MATH_EXACT);
DATA_KERNEL(s2d_filter_grad, s2d_filter_grad_accepts, CR_MATH_F32);
DATA_KERNEL(relu, pointwise_accepts, CR_MATH_EXACT);
DATA_KERNEL(add, pointwise_accepts, CR_MATH_F32);
DATA_KERNEL(cast, cast_accepts, CR_MATH_EXACT);
DATA_KERNEL(zero, NULL, CR_MATH_EXACT);
DATA_KERNEL(maxpool, maxpool_accepts, CR_MATH_F32); /* exact without scale_bias */
DATA_KERNEL(maxpool_grad, window_accepts, CR_MATH_F32);
DATA_KERNEL(avgpool, plain_accepts, CR_MATH_F32);
DATA_KERNEL(avgpool_grad, plain_accepts, CR_MATH_F32);
DATA_KERNEL(pad_shortcut, window_accepts, CR_MATH_EXACT);
DATA_KERNEL(pad_shortcut_grad, window_accepts, CR_MATH_EXACT);

const struct cr_kernel *const cr_cuda_pointwise_kernels[] = {&kernel_mix,
                                                             &kernel_normalize,
                                                             &kernel_normalize_any,
                                                             &kernel_s2d_filter,
                                                             &kernel_s2d_filter_grad,
                                                             &kernel_relu,
                                                             &kernel_add,
                                                             &kernel_cast,
                                                             &kernel_zero,
                                                             &kernel_maxpool,
                                                             &kernel_maxpool_grad,
                                                             &kernel_avgpool,
                                                             &kernel_avgpool_grad,
                                                             &kernel_pad_shortcut,
                                                             &kernel_pad_shortcut_grad,
                                                             NULL};
