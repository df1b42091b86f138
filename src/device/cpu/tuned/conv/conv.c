/* device/cpu/tuned/conv/conv.c: the kernels cpu.conv and cpu.conv_dgrad: convolutions and their input gradients, on rows of NHWC
 * tensors as they are. Filters are packed in each launch, or once by pack_filter. */
#include "device/cpu/tuned/conv/gather.h"

static size_t rounded(int64_t floats) {
    return ((size_t)floats * sizeof(float) + CR_CPU_ALIGN - 1) / CR_CPU_ALIGN * CR_CPU_ALIGN;
}

static int64_t image_elems(const struct cr_tensor *t) {
    return cr_tensor_elems(t) / t->dim[0];
}

/* Offsets within an image have 32 bits. */
static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const bool              gradient = op->kind == CR_OP_conv_dgrad;
    const struct cr_tensor *in       = &p->tensor[op->in[gradient ? CR_IN_conv_dgrad_dy : CR_IN_conv_x]];
    const struct cr_tensor *out      = &p->tensor[op->out[gradient ? CR_OUT_conv_dgrad_dx : CR_OUT_conv_y]];
    (void)device;
    return op->attr.conv.stride <= 2 && image_elems(in) < INT32_MAX / 2 && image_elems(out) < INT32_MAX / 2;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    struct cr_conv_plan *plan;
    CR_TRY(cr_conv_plan_make(p, op, &plan));
    *workspace_bytes = rounded(plan->packed_floats) + rounded(cr_conv_scratch_floats(plan) * cr_cpu_threads(device));
    *prepared        = plan;
    return CR_OK;
}

static void release(void *prepared) {
    cr_conv_plan_free(prepared);
}

static cr_status run(struct cr_device *device, const struct cr_call *call, const float *w, struct cr_conv_io *io) {
    const struct cr_conv_plan *plan    = call->prepared;
    const int                  threads = cr_cpu_threads(device);
    float                     *packed  = call->workspace;
    cr_conv_pack(plan, w, packed, threads);
    io->packed = packed;
    cr_conv_run(plan, io, (float *)(void *)((char *)call->workspace + rounded(plan->packed_floats)), threads);
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

const struct cr_kernel cr_cpu_conv_kernels[] = {
    {CR_KERNEL("cpu.conv", conv, CR_MATH_F32), .dtypes = CR_TYPES_F32,
     .optional_in = CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add), .accepts = accepts, .prepare = prepare,
     .launch = conv_launch, .release = release},
    {CR_KERNEL("cpu.conv_dgrad", conv_dgrad, CR_MATH_F32), .dtypes = CR_TYPES_F32,
     .optional_in = CR_IN_BIT(conv_dgrad, add), .accepts = accepts, .prepare = prepare, .launch = conv_dgrad_launch,
     .release = release},
    {0}};
