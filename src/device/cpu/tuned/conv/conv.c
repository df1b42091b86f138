/* device/cpu/tuned/conv/conv.c: the kernels cpu.conv and cpu.conv_dgrad: convolutions and their input gradients; and
 * cpu.conv_bf16 and cpu.conv_dgrad_bf16. A filter is packed in each launch, or once where it is constant. */
#include "device/cpu/tuned/conv/window.h"

static size_t rounded(int64_t floats) {
    return ((size_t)floats * sizeof(float) + CR_CPU_ALIGN - 1) / CR_CPU_ALIGN * CR_CPU_ALIGN;
}

static bool has_epilogue(const struct cr_op *op) {
    if (op->kind == CR_OP_conv_dgrad) return op->in[CR_IN_conv_dgrad_add] >= 0;
    return op->attr.conv.relu || op->in[CR_IN_conv_bias] >= 0 || op->in[CR_IN_conv_add] >= 0;
}

/* cpu.conv3 accepts no bias, add and ReLU. Where it is faster, it would lose its ops to this kernel with them. */
CR_CPU_ACCEPTS(accepts) {
    return op->attr.conv.stride <= 2 && !(has_epilogue(op) && cr_cpu_conv3_is_best(p, op));
}

static bool has_one_reader(const struct cr_program *p, int tensor) {
    int readers = 0;
    for (int i = 0; i < p->ops; i++) {
        int ids[CR_OP_IDS_MAX];
        for (int n = cr_op_reads(&p->op[i], ids); n > 0; n--) readers += ids[n - 1] == tensor;
    }
    return readers == 1;
}

static int64_t packed_floats(const struct cr_conv_plan *plan) {
    return plan->packed_floats;
}
static const struct cr_conv_method f32_method = {packed_floats, cr_conv_pack, cr_conv_scratch_floats, cr_conv_run};

struct prepared {
    const struct cr_conv_method *method;
    struct cr_conv_plan          plan;
    float                       *packed; /* a constant filter. NULL: each launch packs the filter */
    bool                         is_packed;
    size_t                       unread_bytes; /* of the filter, which nothing reads once it is packed */
};

static cr_status prepare_by(const struct cr_conv_method *method, struct cr_device *device, const struct cr_program *p,
                            const struct cr_op *op, void **prepared, size_t *workspace_bytes) {
    const int        threads = cr_cpu_threads(device);
    struct prepared *s;
    CR_ALLOC(s, 1);
    s->method             = method;
    s->plan               = cr_conv_plan_of(p, op);
    s->plan.packed_floats = method->packed_floats(&s->plan);
    *workspace_bytes      = rounded(method->scratch_floats(&s->plan, threads) * threads);
    if (op->kind == CR_OP_conv && cr_program_is_constant(p, op->in[CR_IN_conv_w])) {
        const int w = op->in[CR_IN_conv_w];
        if (p->tensor[w].region != CR_REGION_STORE && has_one_reader(p, w)) s->unread_bytes = p->tensor[w].bytes;
        s->packed = cr_alloc((size_t)s->plan.packed_floats, sizeof *s->packed);
        if (!s->packed) {
            const size_t bytes = (size_t)s->plan.packed_floats * sizeof *s->packed;
            cr_free(s);
            return CR_NO_MEMORY(bytes);
        }
    } else
        *workspace_bytes += rounded(s->plan.packed_floats);
    *prepared = s;
    return CR_OK;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    return prepare_by(&f32_method, device, p, op, prepared, workspace_bytes);
}

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (s) cr_free(s->packed);
    cr_free(s);
}

/* Runs when constant filters have changed, for several ops at once: one thread packs a filter. A filter that a hoisted
 * op has computed gives its memory back: that op writes it again before the next packing. */
static void complete(struct cr_device *device, const struct cr_call *call) {
    struct prepared *s = call->prepared;
    (void)device;
    if (!s->packed) return;
    if (!s->is_packed) cr_cpu_populate_pages(s->packed, (size_t)s->plan.packed_floats * sizeof *s->packed);
    s->method->pack(&s->plan, call->in[CR_IN_conv_w], s->packed, 1);
    cr_cpu_drop_pages((void *)(uintptr_t)call->in[CR_IN_conv_w], s->unread_bytes);
    s->is_packed = true;
}

static void run(struct cr_device *device, const struct cr_call *call, const float *w, struct cr_conv_io *io) {
    struct prepared *s       = call->prepared;
    const int        threads = cr_cpu_threads(device);
    float           *scratch = call->workspace, *packed = s->packed ? s->packed : scratch;
    if (!s->packed) scratch += rounded(s->plan.packed_floats) / sizeof *scratch;
    if (!s->packed || !s->is_packed) s->method->pack(&s->plan, w, packed, threads);
    s->is_packed = true;
    io->packed   = packed;
    s->method->run(&s->plan, io, scratch, threads);
}

CR_CPU_LAUNCH(conv_launch) {
    struct cr_conv_io io = {.x    = call->in[CR_IN_conv_x],    /* [N,H,W,C] */
                            .bias = call->in[CR_IN_conv_bias], /* [K] */
                            .add  = call->in[CR_IN_conv_add],  /* [N,P,Q,K] */
                            .y    = call->out[CR_OUT_conv_y],  /* [N,P,Q,K] */
                            .relu = call->op->attr.conv.relu};
    run(device, call, call->in[CR_IN_conv_w], &io);
}

CR_CPU_LAUNCH(conv_dgrad_launch) {
    struct cr_conv_io io = {.x   = call->in[CR_IN_conv_dgrad_dy],  /* [N,P,Q,K] */
                            .add = call->in[CR_IN_conv_dgrad_add], /* [N,H,W,C] */
                            .y   = call->out[CR_OUT_conv_dgrad_dx]}; /* [N,H,W,C] */
    run(device, call, call->in[CR_IN_conv_dgrad_w], &io);
}

const struct cr_kernel cr_cpu_conv_kernels[] = {
    {CR_KERNEL("cpu.conv", conv, CR_MATH_F32), .dtypes = CR_TYPES_F32,
     .optional_in = CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add), .accepts = accepts, .prepare = prepare,
     .complete = complete, .launch = conv_launch, .release = release, .relaxations = CR_RELAXED_TILE_ERROR},
    {CR_KERNEL("cpu.conv_dgrad", conv_dgrad, CR_MATH_F32), .dtypes = CR_TYPES_F32,
     .optional_in = CR_IN_BIT(conv_dgrad, add), .accepts = accepts, .prepare = prepare, .launch = conv_dgrad_launch,
     .release = release, .relaxations = CR_RELAXED_TILE_ERROR},
    {0}};

#if defined(__x86_64__)
static cr_status prepare_bf16(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    return prepare_by(&cr_conv_bf16_method, device, p, op, prepared, workspace_bytes);
}

const struct cr_kernel cr_cpu_conv_bf16_kernels[] = {
    {CR_KERNEL("cpu.conv_bf16", conv, CR_MATH_BF16_PRODUCTS), .dtypes = CR_TYPES_F32,
     .optional_in = CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add), .accepts = cr_conv_bf16_accepts,
     .prepare = prepare_bf16, .complete = complete, .launch = conv_launch, .release = release},
    {CR_KERNEL("cpu.conv_dgrad_bf16", conv_dgrad, CR_MATH_BF16_PRODUCTS), .dtypes = CR_TYPES_F32,
     .optional_in = CR_IN_BIT(conv_dgrad, add), .accepts = cr_conv_bf16_accepts, .prepare = prepare_bf16,
     .launch = conv_dgrad_launch, .release = release},
    {0}};
#endif
