/* device/cpu/onednn/dnnl_conv.c: grouped convolution and its two gradients by oneDNN. Activations stay NHWC. oneDNN
 * chooses the layout of the filter, and the filter is reordered in each launch, because filters are much
 * smaller than activations. */
#include "device/cpu/onednn/dnnl.h"

/* One prepared op: an optional reorder of the filter before (fwd, dgrad) or after (wgrad) the convolution. Workspace:
 * blocked filter, then oneDNN's scratchpad. */
struct conv_state {
    dnnl_stream_t    stream; /* the device's */
    dnnl_primitive_t conv, reorder;
    dnnl_memory_t    image_in, image_out, filter_user, filter, scratch; /* image_out: dst (fwd, wgrad) or diff_src */
    size_t           filter_bytes; /* of the blocked filter; 0: the filter is not reordered */
};

static void conv_release(void *opaque) {
    struct conv_state *s = opaque;
    if (!s) return;
    dnnl_memory_t memories[] = {s->image_in, s->image_out, s->filter_user, s->filter, s->scratch};
    for (size_t i = 0; i < CR_COUNT(memories); i++)
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    if (s->conv) dnnl_primitive_destroy(s->conv);
    if (s->reorder) dnnl_primitive_destroy(s->reorder);
    cr_free(s);
}

/* The operands of the forward convolution, or the tensors of a gradient op in their places. */
struct operands {
    const struct cr_tensor *x, *w, *y;
};

static struct operands operands_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *t = p->tensor;
    switch (op->kind) {
    case CR_OP_group_conv_dgrad:
        return (struct operands){&t[op->out[CR_OUT_group_conv_dgrad_dx]], &t[op->in[CR_IN_group_conv_dgrad_w]],
                                 &t[op->in[CR_IN_group_conv_dgrad_dy]]};
    case CR_OP_group_conv_wgrad:
        return (struct operands){&t[op->in[CR_IN_group_conv_wgrad_x]], &t[op->out[CR_OUT_group_conv_wgrad_dw]],
                                 &t[op->in[CR_IN_group_conv_wgrad_dy]]};
    default:
        return (struct operands){&t[op->in[CR_IN_group_conv_x]], &t[op->in[CR_IN_group_conv_w]],
                                 &t[op->out[CR_OUT_group_conv_y]]};
    }
}

/* oneDNN 2.6's filter gradient of 1x1 convolutions for AVX2 has a data race when there are fewer than 8 input channels:
 * with two threads its results are wrong in most runs. */
static bool has_data_race(const struct cr_op *op, const struct operands *o) {
    enum { SIMD_CHANNELS = 8 };
    return op->kind == CR_OP_group_conv_wgrad && o->w->dim[1] == 1 && o->w->dim[2] == 1 && o->w->dim[3] < SIMD_CHANNELS;
}

CR_CPU_ACCEPTS(conv_accepts) {
    struct operands o = operands_of(p, op);
    return !has_data_race(op, &o);
}

struct descriptors {
    cr_dnnl_md_own x, w_user, w, y;
};

static void descriptors_free(struct descriptors *d) {
    cr_dnnl_md_free(&d->x);
    cr_dnnl_md_free(&d->w_user);
    cr_dnnl_md_free(&d->w);
    cr_dnnl_md_free(&d->y);
}

static cr_status describe(const struct operands *o, struct descriptors *d) {
    const dnnl_dims_t x = {o->x->dim[0], o->x->dim[3], o->x->dim[1], o->x->dim[2]};
    const int64_t     g = o->x->dim[3] / o->w->dim[3];
    const dnnl_dims_t w = {g, o->w->dim[0] / g, o->w->dim[3], o->w->dim[1], o->w->dim[2]};
    const dnnl_dims_t y = {o->y->dim[0], o->y->dim[3], o->y->dim[1], o->y->dim[2]};
    CR_TRY(cr_dnnl_md(&d->x, 4, x, dnnl_f32, dnnl_nhwc));
    CR_TRY(cr_dnnl_md(&d->y, 4, y, dnnl_f32, dnnl_nhwc));
    CR_TRY(cr_dnnl_md(&d->w_user, 5, w, dnnl_f32, dnnl_gohwi));
    return cr_dnnl_md(&d->w, 5, w, dnnl_f32, dnnl_format_tag_any);
}

static cr_status make_reorder(struct conv_state *s, cr_dnnl_md_ref from, cr_dnnl_md_ref to, bool add,
                              dnnl_engine_t engine) {
    dnnl_primitive_desc_t pd     = NULL;
    dnnl_primitive_attr_t attr   = NULL;
    dnnl_post_ops_t       ops    = NULL;
    cr_status             status = CR_OK;
    DNNL_TRY_OUT(dnnl_primitive_attr_create(&attr));
    if (add) { /* dw += */
        DNNL_TRY_OUT(dnnl_post_ops_create(&ops));
        DNNL_TRY_OUT(CR_DNNL_APPEND_SUM(ops));
        DNNL_TRY_OUT(dnnl_primitive_attr_set_post_ops(attr, ops));
    }
    DNNL_TRY_OUT(dnnl_reorder_primitive_desc_create(&pd, from, engine, to, engine, attr));
    DNNL_TRY_OUT(cr_dnnl_primitive_create(&s->reorder, pd));
out:
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (ops) dnnl_post_ops_destroy(ops);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

static cr_status make_memories(struct conv_state *s, const struct descriptors *d, enum cr_op_kind kind,
                               cr_dnnl_md_ref w, cr_dnnl_md_ref scratch, dnnl_engine_t engine) {
    cr_status            status = CR_OK;
    const cr_dnnl_md_ref x = CR_DNNL_MD(d->x), y = CR_DNNL_MD(d->y);
    const cr_dnnl_md_ref in = kind == CR_OP_group_conv_dgrad ? y : x, out = kind == CR_OP_group_conv_dgrad ? x : y;
    DNNL_TRY_OUT(dnnl_memory_create(&s->image_in, in, engine, DNNL_MEMORY_NONE));
    DNNL_TRY_OUT(dnnl_memory_create(&s->image_out, out, engine, DNNL_MEMORY_NONE));
    DNNL_TRY_OUT(dnnl_memory_create(&s->filter_user, CR_DNNL_MD(d->w_user), engine, DNNL_MEMORY_NONE));
    DNNL_TRY_OUT(dnnl_memory_create(&s->filter, w, engine, DNNL_MEMORY_NONE));
    DNNL_TRY_OUT(dnnl_memory_create(&s->scratch, scratch, engine, DNNL_MEMORY_NONE));
out:
    return status;
}

static cr_status conv_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    struct operands       o = operands_of(p, op);
    struct descriptors    d = {0};
    struct dnnl_handles  *h;
    struct conv_state    *s;
    dnnl_primitive_attr_t attr   = NULL;
    dnnl_primitive_desc_t pd     = NULL;
    cr_status             status = CR_OK;
    const enum cr_op_kind kind   = op->kind;
    bool                  wgrad = kind == CR_OP_group_conv_wgrad, add = wgrad && op->attr.conv.accumulate;
    CR_TRY(cr_dnnl_open(device, &h));
    CR_ALLOC(s, 1);
    s->stream = h->stream;
    CR_TRY_OUT(describe(&o, &d));
    DNNL_TRY_OUT(dnnl_primitive_attr_create(&attr));
    DNNL_TRY_OUT(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    const int64_t                   stride = op->attr.conv.stride, pad = op->attr.conv.pad;
    const struct cr_dnnl_conv_shape shape = {
        CR_DNNL_MD(d.x), CR_DNNL_MD(d.w), CR_DNNL_MD(d.y), {stride, stride}, {pad, pad}};
    CR_TRY_OUT(cr_dnnl_conv_desc(kind, &shape, attr, h->engine, &pd));
    const cr_dnnl_md_ref user = CR_DNNL_MD(d.w_user),
                         w    = dnnl_primitive_desc_query_md(
                                pd, wgrad ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    const cr_dnnl_md_ref scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    CR_TRY_OUT(make_memories(s, &d, kind, w, scratch, h->engine));
    DNNL_TRY_OUT(cr_dnnl_primitive_create(&s->conv, pd));
    if (add || !dnnl_memory_desc_equal(w, user)) {
        CR_TRY_OUT(make_reorder(s, wgrad ? w : user, wgrad ? user : w, add, h->engine));
        s->filter_bytes = cr_dnnl_bytes(w);
    }
    *workspace_bytes = s->filter_bytes + cr_dnnl_bytes(scratch);
    *prepared        = s;
    s                = NULL;
out:
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (attr) dnnl_primitive_attr_destroy(attr);
    descriptors_free(&d);
    conv_release(s);
    return status;
}

static cr_status run_reorder(struct conv_state *s, dnnl_memory_t from, dnnl_memory_t to) {
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return cr_dnnl_check(dnnl_primitive_execute(s->reorder, s->stream, CR_COUNT(args), args), "reorder");
}

/* `filter` is the operand of the program. Addresses are set in each launch because the prepared op does not hold them.
 */
static void set_handles(struct conv_state *s, const void *in, const void *out, const void *filter, char *workspace) {
    dnnl_memory_set_data_handle(s->image_in, (void *)(uintptr_t)in);
    dnnl_memory_set_data_handle(s->image_out, (void *)(uintptr_t)out);
    dnnl_memory_set_data_handle(s->filter_user, (void *)(uintptr_t)filter);
    dnnl_memory_set_data_handle(s->filter, s->filter_bytes ? workspace : (void *)(uintptr_t)filter);
    dnnl_memory_set_data_handle(s->scratch, workspace ? workspace + s->filter_bytes : NULL);
}

static cr_status launch(CR_UNUSED struct cr_device *device, const struct cr_call *call) {
    struct conv_state *s = call->prepared;
    const bool dgrad = call->op->kind == CR_OP_group_conv_dgrad, wgrad = call->op->kind == CR_OP_group_conv_wgrad;
    if (dgrad)
        set_handles(s, call->in[CR_IN_group_conv_dgrad_dy], call->out[CR_OUT_group_conv_dgrad_dx],
                    call->in[CR_IN_group_conv_dgrad_w], call->workspace);
    else if (wgrad)
        set_handles(s, call->in[CR_IN_group_conv_wgrad_x], call->in[CR_IN_group_conv_wgrad_dy],
                    call->out[CR_OUT_group_conv_wgrad_dw], call->workspace);
    else
        set_handles(s, call->in[CR_IN_group_conv_x], call->out[CR_OUT_group_conv_y], call->in[CR_IN_group_conv_w],
                    call->workspace);
    if (s->reorder && !wgrad) CR_TRY(run_reorder(s, s->filter_user, s->filter));
    const dnnl_exec_arg_t args[] = {{dgrad ? DNNL_ARG_DIFF_DST : DNNL_ARG_SRC, s->image_in},
                                    {wgrad ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, s->filter},
                                    {dgrad   ? DNNL_ARG_DIFF_SRC
                                     : wgrad ? DNNL_ARG_DIFF_DST
                                             : DNNL_ARG_DST,
                                     s->image_out},
                                    {DNNL_ARG_SCRATCHPAD, s->scratch}};
    CR_TRY(cr_dnnl_check(dnnl_primitive_execute(s->conv, s->stream, CR_COUNT(args), args),
                         dgrad   ? "convolution, data gradient"
                         : wgrad ? "convolution, filter gradient"
                                 : "convolution"));
    return s->reorder && wgrad ? run_reorder(s, s->filter, s->filter_user) : CR_OK;
}

#define CONV_KERNEL(kind)                                                                                              \
    {                                                                                                                  \
        CR_KERNEL("dnnl." #kind, kind, CR_MATH_F32), .dtypes = CR_TYPES_F32, .accepts = conv_accepts,                  \
                                                     .prepare = conv_prepare, .launch = launch,                        \
                                                     .release = conv_release                                           \
    }
const struct cr_kernel cr_cpu_dnnl_kernels[] = {
    CONV_KERNEL(group_conv), CONV_KERNEL(group_conv_dgrad), CONV_KERNEL(group_conv_wgrad), {0}};
