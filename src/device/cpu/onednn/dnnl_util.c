/* device/cpu/onednn/dnnl_util.c: engine, stream and errors of oneDNN, and the differences between oneDNN 2 and 3. See
 * device/cpu/onednn/dnnl.h. */
#include "device/cpu/onednn/dnnl.h"

#include <pthread.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/mman.h>

/* ---- the level ---- */

/* Returns whether the user has limited oneDNN to instructions older than AVX2. */
static bool is_limited_below_avx2(void) {
    const char *isa = getenv("ONEDNN_MAX_CPU_ISA");
    if (!isa) isa = getenv("DNNL_MAX_CPU_ISA");
    return isa && (strcasecmp(isa, "SSE41") == 0 || strcasecmp(isa, "AVX") == 0);
}

/* oneDNN's lowest level is SSE4.1, which it uses at the level baseline. On a processor without SSE4.1 its own reference
 * code runs. A lower limit of the user stays, because a call of dnnl_set_max_cpu_isa would replace it. */
static void lower(void) {
    const enum cr_cpu_level level = cr_cpu_level();
    if (level == cr_cpu_processor_level() || (level == CR_CPU_AVX2 && is_limited_below_avx2())) return;
    if (dnnl_set_max_cpu_isa(level == CR_CPU_BASELINE ? dnnl_cpu_isa_sse41 : dnnl_cpu_isa_avx2) != dnnl_success)
        cr_log(CR_LOG_WARN, "oneDNN was used before: its kernels are not lowered to the level %s of CRESNET_CPU",
               cr_cpu_level_name(level));
}

void cr_cpu_dnnl_lower(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, lower);
}

/* ---- engine, stream and errors ---- */

static void handles_close(void *opaque) {
    struct dnnl_handles *h = opaque;
    cr_dnnl_layouts_free(h);
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

/* oneDNN maps 256 KiB for the code of each kernel of a primitive, and writes there even when the system refuses. So
 * room for 32 kernels is mapped first, and given back. */
dnnl_status_t cr_dnnl_primitive_create(dnnl_primitive_t *out, const_dnnl_primitive_desc_t desc) {
    enum { CODE_BYTES = 8 << 20 };
    void *room = mmap(NULL, CODE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return dnnl_out_of_memory;
    (void)munmap(room, CODE_BYTES);
    return dnnl_primitive_create(out, desc);
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

cr_status cr_dnnl_md(cr_dnnl_md_own *md, int count, const dnnl_dims_t dims, dnnl_data_type_t type,
                     dnnl_format_tag_t tag) {
    return cr_dnnl_check(dnnl_memory_desc_create_with_tag(md, count, dims, type, tag), "memory descriptor");
}

void cr_dnnl_md_free(cr_dnnl_md_own *md) {
    if (*md) dnnl_memory_desc_destroy(*md);
    *md = NULL;
}

cr_status cr_dnnl_conv_desc(enum cr_op_kind kind, const struct cr_dnnl_conv_shape *s, dnnl_primitive_attr_t attr,
                            dnnl_engine_t engine, dnnl_primitive_desc_t *out) {
    const dnnl_dims_t     no_dilation = {0};
    dnnl_primitive_desc_t forward     = NULL;
    cr_status             status      = CR_OK;
    DNNL_TRY_OUT(dnnl_convolution_forward_primitive_desc_create(&forward, engine, dnnl_forward_training,
                                                                dnnl_convolution_direct, s->x, s->w, NULL, s->y,
                                                                s->strides, no_dilation, s->pads, s->pads, attr));
    if (kind == CR_OP_group_conv) {
        *out = forward;
        return CR_OK;
    }
    if (kind == CR_OP_group_conv_dgrad)
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

cr_status cr_dnnl_md(cr_dnnl_md_own *md, int count, const dnnl_dims_t dims, dnnl_data_type_t type,
                     dnnl_format_tag_t tag) {
    return cr_dnnl_check(dnnl_memory_desc_init_by_tag(md, count, dims, type, tag), "memory descriptor");
}

void cr_dnnl_md_free(cr_dnnl_md_own *md) {
    (void)md;
}

/* The gradients need the forward descriptor as a hint. */
cr_status cr_dnnl_conv_desc(enum cr_op_kind kind, const struct cr_dnnl_conv_shape *s, dnnl_primitive_attr_t attr,
                            dnnl_engine_t engine, dnnl_primitive_desc_t *out) {
    dnnl_convolution_desc_t fwd, bwd;
    dnnl_primitive_desc_t   hint   = NULL;
    cr_status               status = CR_OK;
    DNNL_TRY_OUT(dnnl_convolution_forward_desc_init(&fwd, dnnl_forward_training, dnnl_convolution_direct, s->x, s->w,
                                                    NULL, s->y, s->strides, s->pads, s->pads));
    if (kind == CR_OP_group_conv) {
        DNNL_TRY_OUT(dnnl_primitive_desc_create(out, &fwd, attr, engine, NULL));
        return CR_OK;
    }
    DNNL_TRY_OUT(dnnl_primitive_desc_create(&hint, &fwd, attr, engine, NULL));
    if (kind == CR_OP_group_conv_dgrad)
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

/* ---- the 8-bit convolution ---- */

static dnnl_data_type_t type_of(enum cr_dtype dtype) {
    return dtype == CR_I8 ? dnnl_s8 : dtype == CR_U8 ? dnnl_u8 : dnnl_f32;
}

/* The previous value of the destination, times `scale`, and the ReLU. The summand has the type of the destination when
 * that is f32. */
static cr_status make_post_ops(const struct cr_dnnl_qconv *c, dnnl_post_ops_t *out) {
    const dnnl_data_type_t add    = c->types.y == CR_F32 ? dnnl_f32 : type_of(c->types.add);
    cr_status              status = CR_OK;
    DNNL_TRY_OUT(dnnl_post_ops_create(out));
#if DNNL_VERSION_MAJOR >= 3
    if (c->types.has_add) DNNL_TRY_OUT(dnnl_post_ops_append_sum(*out, c->add_scale, 0, add));
    if (c->relu) DNNL_TRY_OUT(dnnl_post_ops_append_eltwise(*out, dnnl_eltwise_relu, 0, 0));
#else
    if (c->types.has_add) DNNL_TRY_OUT(dnnl_post_ops_append_sum_v2(*out, c->add_scale, add));
    if (c->relu) DNNL_TRY_OUT(dnnl_post_ops_append_eltwise(*out, 1, dnnl_eltwise_relu, 0, 0));
#endif
out:
    return status;
}

static cr_status make_attr(const struct cr_dnnl_qconv *c, dnnl_primitive_attr_t *out) {
    dnnl_post_ops_t ops    = NULL;
    cr_status       status = CR_OK;
    DNNL_TRY_OUT(dnnl_primitive_attr_create(out));
    DNNL_TRY_OUT(dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user));
    CR_TRY_OUT(make_post_ops(c, &ops));
    DNNL_TRY_OUT(dnnl_primitive_attr_set_post_ops(*out, ops));
#if DNNL_VERSION_MAJOR >= 3
    DNNL_TRY_OUT(dnnl_primitive_attr_set_scales_mask(*out, DNNL_ARG_WEIGHTS, 1));
#else
    DNNL_TRY_OUT(dnnl_primitive_attr_set_output_scales(*out, c->w[0], 2, c->scale));
#endif
out:
    if (ops) dnnl_post_ops_destroy(ops);
    return status;
}

cr_status cr_dnnl_qconv_desc(const struct cr_dnnl_qconv *c, dnnl_engine_t engine, dnnl_primitive_desc_t *out) {
    const dnnl_dims_t dx = {c->x[0], c->x[3], c->x[1], c->x[2]}, dw = {c->w[0], c->w[3], c->w[1], c->w[2]},
                      dy = {c->y[0], c->y[3], c->y[1], c->y[2]}, K = {c->w[0]}, strides = {c->stride, c->stride},
                      pads  = {c->pad, c->pad};
    cr_dnnl_md_own        x = {0}, w = {0}, y = {0}, bias = {0};
    dnnl_primitive_attr_t attr   = NULL;
    cr_status             status = CR_OK;
    CR_TRY_OUT(cr_dnnl_md(&x, 4, dx, type_of(c->types.x), dnnl_nhwc));
    CR_TRY_OUT(cr_dnnl_md(&y, 4, dy, type_of(c->types.y), dnnl_nhwc));
    CR_TRY_OUT(cr_dnnl_md(&w, 4, dw, dnnl_s8, dnnl_format_tag_any));
    CR_TRY_OUT(cr_dnnl_md(&bias, 1, K, dnnl_f32, dnnl_a));
    CR_TRY_OUT(make_attr(c, &attr));
#if DNNL_VERSION_MAJOR >= 3
    const dnnl_dims_t no_dilation = {0};
    DNNL_TRY_OUT(dnnl_convolution_forward_primitive_desc_create(out, engine, dnnl_forward_inference,
                                                                dnnl_convolution_direct, x, w, bias, y, strides,
                                                                no_dilation, pads, pads, attr));
#else
    dnnl_convolution_desc_t conv;
    DNNL_TRY_OUT(dnnl_convolution_forward_desc_init(&conv, dnnl_forward_inference, dnnl_convolution_direct, &x, &w,
                                                    &bias, &y, strides, pads, pads));
    DNNL_TRY_OUT(dnnl_primitive_desc_create(out, &conv, attr, engine, NULL));
#endif
out:
    if (attr) dnnl_primitive_attr_destroy(attr);
    cr_dnnl_md_free(&x);
    cr_dnnl_md_free(&w);
    cr_dnnl_md_free(&y);
    cr_dnnl_md_free(&bias);
    return status;
}
