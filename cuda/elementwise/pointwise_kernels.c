/* cuda/elementwise/pointwise_kernels.c: kernel table for the input, pointwise ops, pooling, the shortcut without
 * parameters, cast, zero, the space-to-depth filter, and copies to host memory and back. This file reads shapes and
 * slots. Device code is in cuda/elementwise/pointwise.cu, pool.cu, pool_grad.cu, mix.cu and space_to_depth.cu. Data is
 * f32, f16 or bf16, one type in an op. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <math.h>
#include <string.h>

/* ---- accepted operands ---- */

bool cr_cuda_window_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_fits_ints(cuda_in(p, op, 0)) && cuda_fits_ints(cuda_out(p, op, 0));
}

#define IN(kind, slot) cuda_in(call->program, call->op, CR_IN_##kind##_##slot)
#define OUT(kind, slot) cuda_out(call->program, call->op, CR_OUT_##kind##_##slot)

/* ---- input ---- */

static bool normalize_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *images = cuda_in(p, op, CR_IN_normalize_images);
    (void)device;
    if (op->attr.input.wide) return false;
    if ((op->in[CR_IN_normalize_boxes] >= 0 || op->attr.input.s2d) && !cuda_fits_ints(images)) return false;
    return images->dim[3] == 3;
}

static cr_status normalize_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor     *y      = OUT(normalize, y);
    const struct cr_input_attr *a      = &call->op->attr.input;
    const struct cr_tensor     *images = IN(normalize, images);
    return CUDA_STATUS((a->s2d ? ck_normalize_s2d : ck_normalize)(
        call->in[CR_IN_normalize_images], call->in[CR_IN_normalize_boxes], cuda_type(y), call->out[CR_OUT_normalize_y],
        images->dim[0], images->dim[1], images->dim[2], a->mean, a->std, cr_cuda_stream(device, call)));
}

/* Other numbers of channels, and 16 bits. */
static bool normalize_any_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return !op->attr.input.s2d && cuda_fits_ints(cuda_in(p, op, CR_IN_normalize_images));
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
    return CUDA_STATUS(
        ck_normalize_any(&args, cuda_type(y), call->out[CR_OUT_normalize_y], cr_cuda_stream(device, call)));
}

static cr_status s2d_filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w = IN(s2d_filter, w);
    return CUDA_STATUS(ck_s2d_filter(cuda_type(w), call->in[CR_IN_s2d_filter_w], call->out[CR_OUT_s2d_filter_y],
                                     w->dim[0], cr_cuda_stream(device, call)));
}

static cr_status s2d_filter_grad_launch(struct cr_device *device, const struct cr_call *call) {
    return CUDA_STATUS(ck_s2d_filter_grad(call->in[CR_IN_s2d_filter_grad_dy], call->out[CR_OUT_s2d_filter_grad_dw],
                                          IN(s2d_filter_grad, dy)->dim[0], call->op->attr.conv.accumulate,
                                          cr_cuda_stream(device, call)));
}

/* ---- pointwise ---- */

static cr_status relu_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = OUT(relu, y);
    return CUDA_STATUS(ck_relu(cuda_type(y), call->in[CR_IN_relu_x], call->out[CR_OUT_relu_y], cr_tensor_elems(y),
                               cr_cuda_stream(device, call)));
}

static cr_status add_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = OUT(add, y);
    return CUDA_STATUS(ck_add(cuda_type(y), call->in[CR_IN_add_a], call->in[CR_IN_add_b], call->out[CR_OUT_add_y],
                              cr_tensor_elems(y), cr_cuda_stream(device, call)));
}

static cr_status cast_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = OUT(cast, y);
    return CUDA_STATUS(ck_cast(call->in[CR_IN_cast_x], cuda_type(y), call->out[CR_OUT_cast_y], cr_tensor_elems(y),
                               cr_cuda_stream(device, call)));
}

/* 0 is represented by zero bits in every type. */
static cr_status zero_launch(struct cr_device *device, const struct cr_call *call) {
    return CUDA_STATUS(cudaMemsetAsync(call->out[CR_OUT_zero_y], 0, OUT(zero, y)->bytes, cr_cuda_stream(device, call)));
}

/* ---- pooling ---- */

static cr_status maxpool_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = IN(maxpool, x);
    const struct ck_window  w = cuda_window(call->op, x, OUT(maxpool, y));
    return CUDA_STATUS(ck_maxpool(cuda_type(x), call->in[CR_IN_maxpool_x], call->in[CR_IN_maxpool_scale_bias],
                                  call->out[CR_OUT_maxpool_y], call->out[CR_OUT_maxpool_index], &w,
                                  cr_cuda_stream(device, call)));
}

static cr_status maxpool_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = OUT(maxpool_grad, dx);
    const struct ck_window  w  = cuda_window(call->op, dx, IN(maxpool_grad, dy));
    return CUDA_STATUS(ck_maxpool_grad(cuda_type(dx), call->in[CR_IN_maxpool_grad_dy],
                                       call->in[CR_IN_maxpool_grad_index], call->out[CR_OUT_maxpool_grad_dx], &w,
                                       cr_cuda_stream(device, call)));
}

static cr_status avgpool_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = IN(avgpool, x);
    return CUDA_STATUS(ck_avgpool(cuda_type(x), call->in[CR_IN_avgpool_x], call->out[CR_OUT_avgpool_y], x->dim[0],
                                  x->dim[1] * x->dim[2], x->dim[3], cr_cuda_stream(device, call)));
}

static cr_status avgpool_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = OUT(avgpool_grad, dx);
    return CUDA_STATUS(ck_avgpool_grad(cuda_type(dx), call->in[CR_IN_avgpool_grad_dy],
                                       call->out[CR_OUT_avgpool_grad_dx], dx->dim[0], dx->dim[1] * dx->dim[2],
                                       dx->dim[3], cr_cuda_stream(device, call)));
}

/* ---- option A shortcut ---- */

static cr_status pad_shortcut_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = IN(pad_shortcut, x);
    const struct ck_window  w = cuda_window(call->op, x, OUT(pad_shortcut, y));
    return CUDA_STATUS(ck_pad_shortcut(cuda_type(x), call->in[CR_IN_pad_shortcut_x], call->out[CR_OUT_pad_shortcut_y],
                                       &w, cr_cuda_stream(device, call)));
}

static cr_status pad_shortcut_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = OUT(pad_shortcut_grad, dx);
    const struct ck_window  w  = cuda_window(call->op, dx, IN(pad_shortcut_grad, dy));
    return CUDA_STATUS(ck_pad_shortcut_grad(cuda_type(dx), call->in[CR_IN_pad_shortcut_grad_dy],
                                            call->out[CR_OUT_pad_shortcut_grad_dx], &w, cr_cuda_stream(device, call)));
}

/* ---- mix ---- */

_Static_assert((int)CK_MIX_PARTNER == (int)CR_MIX_PARTNER && (int)CK_MIX_FRACTION == (int)CR_MIX_LABEL_WEIGHT &&
                   (int)CK_MIX_WEIGHT == (int)CR_MIX_WEIGHT && (int)CK_MIX_CUT == (int)CR_MIX_CUT &&
                   (int)CK_MIX_ERASE == (int)CR_MIX_ERASE && (int)CK_MIX_NUMBERS == (int)CR_MIX_NUMBERS &&
                   (int)CK_MIX_ONE == (int)CR_MIX_ONE,
               "the kernels' enums equal the host's");

static bool mix_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return cuda_fits_ints(cuda_in(p, op, CR_IN_mix_images));
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
    return CUDA_STATUS(ck_mix(&args, cr_cuda_stream(device, call)));
}

/* ---- copies to host memory and back: the GPU's copy engines run them concurrently with compute; the executor orders
 * them and inserts their waits ---- */

/* The addresses give the direction, so that a test may offload to another place of the device. */
static cr_status copy(struct cr_device *device, const struct cr_call *call, int in, int out) {
    return CUDA_STATUS(cudaMemcpyAsync(call->out[out], call->in[in], cuda_out(call->program, call->op, out)->bytes,
                                       cudaMemcpyDefault, cr_cuda_stream(device, call)));
}

static cr_status offload_launch(struct cr_device *device, const struct cr_call *call) {
    return copy(device, call, CR_IN_offload_x, CR_OUT_offload_y);
}

static cr_status prefetch_launch(struct cr_device *device, const struct cr_call *call) {
    return copy(device, call, CR_IN_prefetch_x, CR_OUT_prefetch_y);
}

/* The op consists of its waits and its event only. */
static cr_status barrier_launch(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    (void)call;
    return CR_OK;
}

/* ---- the kernels ---- */

/* Of the type that cast rounds to. */
static bool rounds_to_half(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_cast_x), *y = cuda_out(p, op, CR_OUT_cast_y);
    (void)device;
    return (y->dtype == CR_F16 || y->dtype == CR_BF16) && cr_tensor_elems(x) == cr_tensor_elems(y);
}

#define KERNEL(kind, how, types, ...)                                                                                  \
    { CR_KERNEL("cuda." #kind, kind, how), .dtypes = types, .launch = kind##_launch, __VA_ARGS__ }
const struct cr_kernel cr_cuda_pointwise_kernels[] = {
    KERNEL(mix, CR_MATH_EXACT, CR_TYPES_BYTE, .accepts = mix_accepts),
    KERNEL(normalize, CR_MATH_F32, CR_TYPES_FLOAT, .optional_in = CR_IN_BIT(normalize, boxes),
           .accepts = normalize_accepts),
    {CR_KERNEL("cuda.normalize_any", normalize, CR_MATH_F32), .dtypes = CR_TYPES_FLOAT,
     .optional_in = CR_IN_BIT(normalize, boxes), .accepts = normalize_any_accepts, .launch = normalize_any_launch},
    KERNEL(s2d_filter, CR_MATH_EXACT, CR_TYPES_FLOAT),
    KERNEL(s2d_filter_grad, CR_MATH_F32, CR_TYPES_F32),
    KERNEL(relu, CR_MATH_EXACT, CR_TYPES_FLOAT),
    KERNEL(add, CR_MATH_F32, CR_TYPES_FLOAT),
    KERNEL(cast, CR_MATH_EXACT, CR_TYPES_F32, .accepts = rounds_to_half),
    KERNEL(zero, CR_MATH_EXACT, 0), /* zero bits are 0 in every type; the copies are of bytes of any type */
    KERNEL(offload, CR_MATH_EXACT, 0),
    KERNEL(prefetch, CR_MATH_EXACT, 0),
    KERNEL(barrier, CR_MATH_EXACT, 0),
    /* exact without scale_bias */
    KERNEL(maxpool, CR_MATH_F32, CR_TYPES_FLOAT, .optional_in = CR_IN_BIT(maxpool, scale_bias),
           .optional_out = CR_OUT_BIT(maxpool, index), .accepts = cr_cuda_window_accepts),
    KERNEL(maxpool_grad, CR_MATH_F32, CR_TYPES_FLOAT, .accepts = cr_cuda_window_accepts),
    KERNEL(avgpool, CR_MATH_F32, CR_TYPES_FLOAT),
    KERNEL(avgpool_grad, CR_MATH_F32, CR_TYPES_FLOAT),
    KERNEL(pad_shortcut, CR_MATH_EXACT, CR_TYPES_FLOAT, .accepts = cr_cuda_window_accepts),
    KERNEL(pad_shortcut_grad, CR_MATH_EXACT, CR_TYPES_FLOAT, .accepts = cr_cuda_window_accepts),
    {0}};
