/* device/cpu/tuned/conv/conv.c: the kernels cpu.conv and cpu.conv_dgrad: convolutions and their input gradients, on rows of NHWC
 * tensors as they are. Filters are packed in each launch, or once by pack_filter. */
#include "device/cpu/tuned/conv/window.h"

enum { WINDOW_MAX = 7, CHANNELS_MAX = 1 << 13 }; /* a sum has at most CR_CHUNKS_MAX chunks */

static size_t rounded(int64_t floats) {
    return ((size_t)floats * sizeof(float) + CR_CPU_ALIGN - 1) / CR_CPU_ALIGN * CR_CPU_ALIGN;
}

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    const struct cr_tensor *w = &p->tensor[op->in[op->kind == CR_OP_conv ? CR_IN_conv_w : CR_IN_conv_dgrad_w]];
    return op->attr.conv.stride <= 2 && w->dim[1] <= WINDOW_MAX && w->dim[2] <= WINDOW_MAX &&
           w->dim[0] <= CHANNELS_MAX && w->dim[3] <= CHANNELS_MAX;
}

static size_t workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_conv_plan plan    = cr_conv_plan_of(p, op);
    const int                 threads = cr_cpu_threads(device);
    return rounded(plan.packed_floats) + rounded(cr_conv_scratch_floats(&plan, threads) * threads);
}

static cr_status run(struct cr_device *device, const struct cr_call *call, const float *w, struct cr_conv_io *io) {
    const struct cr_conv_plan plan    = cr_conv_plan_of(call->program, call->op);
    const int                 threads = cr_cpu_threads(device);
    float                    *packed  = call->workspace;
    cr_conv_pack(&plan, w, packed, threads);
    io->packed = packed;
    cr_conv_run(&plan, io, (float *)(void *)((char *)call->workspace + rounded(plan.packed_floats)), threads);
    return CR_OK;
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    struct cr_conv_io io = {.x    = call->in[CR_IN_conv_x],    /* [N,H,W,C] */
                            .bias = call->in[CR_IN_conv_bias], /* [K] */
                            .add  = call->in[CR_IN_conv_add],  /* [N,P,Q,K] */
                            .y    = call->out[CR_OUT_conv_y],  /* [N,P,Q,K] */
                            .relu = call->op->attr.conv.relu};
    return run(device, call, call->in[CR_IN_conv_w], &io);
}

static cr_status conv_dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    struct cr_conv_io io = {.x   = call->in[CR_IN_conv_dgrad_dy],  /* [N,P,Q,K] */
                            .add = call->in[CR_IN_conv_dgrad_add], /* [N,H,W,C] */
                            .y   = call->out[CR_OUT_conv_dgrad_dx]}; /* [N,H,W,C] */
    return run(device, call, call->in[CR_IN_conv_dgrad_w], &io);
}

const struct cr_kernel cr_cpu_conv_kernels[] = {{CR_KERNEL("cpu.conv", conv, CR_MATH_F32), .dtypes = CR_TYPES_F32,
                                                 .optional_in = CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add),
                                                 .accepts = accepts, .workspace = workspace, .launch = conv_launch},
                                                {CR_KERNEL("cpu.conv_dgrad", conv_dgrad, CR_MATH_F32),
                                                 .dtypes = CR_TYPES_F32, .optional_in = CR_IN_BIT(conv_dgrad, add),
                                                 .accepts = accepts, .workspace = workspace,
                                                 .launch = conv_dgrad_launch},
                                                {0}};
