/* device/cpu/onednn/dnnl_util.c: engine, stream and errors of oneDNN, and the differences between oneDNN 2 and 3. See
 * device/cpu/onednn/dnnl.h. */
#include "device/cpu/onednn/dnnl.h"

static void handles_close(void *opaque) {
    struct dnnl_handles *h = opaque;
    if (h->stream) dnnl_stream_destroy(h->stream);
    if (h->engine) dnnl_engine_destroy(h->engine);
    cr_free(h);
}

cr_status cr_dnnl_check(dnnl_status_t status, const char *what) {
    static const char *const names[] = {"success",       "out of memory", "invalid arguments", "unimplemented",
                                        "iterator ends", "runtime error", "not required"};
    if (status == dnnl_success) return CR_OK;
    const char *name = (size_t)status < CR_COUNT(names) ? names[status] : "unknown";
    return CR_FAIL(status == dnnl_out_of_memory ? CR_ERR_MEMORY : CR_ERR_DEVICE, "oneDNN: %s (%s)", name, what);
}

cr_status cr_dnnl_open(struct cr_device *device, struct dnnl_handles **out) {
    struct cpu_device   *cpu    = cpu_of(device);
    struct dnnl_handles *h      = cpu->dnnl;
    cr_status            status = CR_OK;
    if (h) {
        *out = h;
        return CR_OK;
    }
    CR_ALLOC(h, 1);
    DNNL_TRY_OUT(dnnl_engine_create(&h->engine, dnnl_cpu, 0));
    DNNL_TRY_OUT(dnnl_stream_create(&h->stream, h->engine, dnnl_stream_default_flags));
    cpu->dnnl       = h;
    cpu->dnnl_close = handles_close;
    *out            = h;
    return CR_OK;
out:
    handles_close(h);
    return status;
}

/* ---- oneDNN 3: descriptors are handles, primitive descriptors are created in one step ---- */

#if DNNL_VERSION_MAJOR >= 3

cr_status cr_dnnl_md(cr_dnnl_md_own *md, const dnnl_dims_t dims, dnnl_format_tag_t tag) {
    return cr_dnnl_check(dnnl_memory_desc_create_with_tag(md, 4, dims, dnnl_f32, tag), "memory descriptor");
}

void cr_dnnl_md_free(cr_dnnl_md_own *md) {
    if (*md) dnnl_memory_desc_destroy(*md);
    *md = NULL;
}

cr_status cr_dnnl_append_sum(dnnl_post_ops_t ops) {
    return cr_dnnl_check(dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef), "sum");
}

cr_status cr_dnnl_conv_desc(enum cr_op_kind kind, const struct cr_dnnl_conv_shape *s, dnnl_primitive_attr_t attr,
                            dnnl_engine_t engine, dnnl_primitive_desc_t *out) {
    const dnnl_dims_t     no_dilation = {0};
    dnnl_primitive_desc_t forward     = NULL;
    cr_status             status      = CR_OK;
    DNNL_TRY_OUT(dnnl_convolution_forward_primitive_desc_create(&forward, engine, dnnl_forward_training,
                                                                dnnl_convolution_direct, s->x, s->w, NULL, s->y,
                                                                s->strides, no_dilation, s->pads, s->pads, attr));
    if (kind == CR_OP_conv) {
        *out = forward;
        return CR_OK;
    }
    if (kind == CR_OP_conv_dgrad)
        DNNL_TRY_OUT(dnnl_convolution_backward_data_primitive_desc_create(out, engine, dnnl_convolution_direct, s->x,
                                                                          s->w, s->y, s->strides, no_dilation, s->pads,
                                                                          s->pads, forward, attr));
    else
        DNNL_TRY_OUT(dnnl_convolution_backward_weights_primitive_desc_create(out, engine, dnnl_convolution_direct, s->x,
                                                                             s->w, NULL, s->y, s->strides, no_dilation,
                                                                             s->pads, s->pads, forward, attr));
out:
    if (forward) dnnl_primitive_desc_destroy(forward);
    return status;
}

#else /* ---- oneDNN 2: descriptors are structures ---- */

cr_status cr_dnnl_md(cr_dnnl_md_own *md, const dnnl_dims_t dims, dnnl_format_tag_t tag) {
    return cr_dnnl_check(dnnl_memory_desc_init_by_tag(md, 4, dims, dnnl_f32, tag), "memory descriptor");
}

void cr_dnnl_md_free(cr_dnnl_md_own *md) {
    (void)md;
}

cr_status cr_dnnl_append_sum(dnnl_post_ops_t ops) {
    return cr_dnnl_check(dnnl_post_ops_append_sum(ops, 1.0f), "sum");
}

/* The gradients need the forward descriptor as a hint. */
cr_status cr_dnnl_conv_desc(enum cr_op_kind kind, const struct cr_dnnl_conv_shape *s, dnnl_primitive_attr_t attr,
                            dnnl_engine_t engine, dnnl_primitive_desc_t *out) {
    dnnl_convolution_desc_t fwd, bwd;
    dnnl_primitive_desc_t   hint   = NULL;
    cr_status               status = CR_OK;
    DNNL_TRY_OUT(dnnl_convolution_forward_desc_init(&fwd, dnnl_forward_training, dnnl_convolution_direct, s->x, s->w,
                                                    NULL, s->y, s->strides, s->pads, s->pads));
    if (kind == CR_OP_conv) {
        DNNL_TRY_OUT(dnnl_primitive_desc_create(out, &fwd, attr, engine, NULL));
        return CR_OK;
    }
    DNNL_TRY_OUT(dnnl_primitive_desc_create(&hint, &fwd, attr, engine, NULL));
    if (kind == CR_OP_conv_dgrad)
        DNNL_TRY_OUT(dnnl_convolution_backward_data_desc_init(&bwd, dnnl_convolution_direct, s->x, s->w, s->y,
                                                              s->strides, s->pads, s->pads));
    else
        DNNL_TRY_OUT(dnnl_convolution_backward_weights_desc_init(&bwd, dnnl_convolution_direct, s->x, s->w, NULL, s->y,
                                                                 s->strides, s->pads, s->pads));
    DNNL_TRY_OUT(dnnl_primitive_desc_create(out, &bwd, attr, engine, hint));
out:
    if (hint) dnnl_primitive_desc_destroy(hint);
    return status;
}

#endif
