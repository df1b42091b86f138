/* device/cpu/onednn/dnnl_qconv.c: 8-bit convolution by oneDNN with AVX-512 (VNNI, or AMX where the processor has it),
 * and the filter in oneDNN's layout.
 *
 * oneDNN 2 computes (sum + bias) * scale in f32, oneDNN 3 sum * scale + bias; the rule of graph/ops.def is one fma. An
 * output near the middle between two integers may therefore differ by one. The factors are attributes of the primitive,
 * so the primitive is created when the parameters are known: before the first launch for many ops at once, by several
 * threads (qconv_complete), or else in the first launch. It is created again when the parameters have changed. */
#include "device/cpu/onednn/dnnl.h"
#include "device/cpu/simd.h"

#include <math.h>
#include <string.h>

static void copy_dims(int64_t to[4], const struct cr_tensor *t) {
    memcpy(to, t->dim, sizeof t->dim);
}

static struct cr_dnnl_qconv conv_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor    *t   = p->tensor;
    const struct cr_conv_attr *a   = &op->attr.conv;
    const int                  add = op->in[CR_IN_qconv_add];
    struct cr_dnnl_qconv       c   = {.stride = a->stride, .pad = a->pad, .relu = a->relu};
    copy_dims(c.x, &t[op->in[CR_IN_qconv_x]]);
    copy_dims(c.w, &t[op->in[CR_IN_qconv_w]]);
    copy_dims(c.y, &t[op->out[CR_OUT_qconv_y]]);
    c.types = (struct cr_qconv_types){.has_add = add >= 0,
                                      .x       = t[op->in[CR_IN_qconv_x]].dtype,
                                      .add     = add >= 0 ? t[add].dtype : CR_U8,
                                      .y       = t[op->out[CR_OUT_qconv_y]].dtype};
    return c;
}

/* The convolution that will read the output of pack_filter. */
static struct cr_dnnl_qconv conv_of_pack(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_conv_attr *a = &op->attr.conv;
    const struct cr_tensor    *w = &p->tensor[op->in[CR_IN_pack_filter_w]];
    const int64_t             *x = a->pattern.image;
    struct cr_dnnl_qconv       c = {.types = a->types, .stride = a->stride, .pad = a->pad, .relu = a->relu};
    const int64_t              P = (x[1] + 2 * a->pad - w->dim[1]) / a->stride + 1,
                  Q              = (x[2] + 2 * a->pad - w->dim[2]) / a->stride + 1;
    copy_dims(c.w, w);
    memcpy(c.x, (const int64_t[]){x[0], x[1], x[2], w->dim[3]}, sizeof c.x);
    memcpy(c.y, (const int64_t[]){x[0], P, Q, w->dim[0]}, sizeof c.y);
    return c;
}

static bool is_int8(enum cr_dtype dtype) {
    return dtype == CR_I8 || dtype == CR_U8;
}

/* Without VNNI oneDNN adds pairs of products in 16 bits, and these sums saturate: results are wrong by any amount. With
 * AVX-VNNI cpu.qconv is as fast. oneDNN 2.6 for ARM has no layout for some filters of 8-bit convolutions, and its sums
 * with a signed summand are wrong (test_checkops, under qemu). */
bool cr_cpu_dnnl_is_best_int8(void) {
#ifdef __x86_64__
    return (unsigned)dnnl_get_effective_cpu_isa() & (dnnl_cpu_isa_avx512_core_vnni & ~dnnl_cpu_isa_avx512_core);
#else
    return false;
#endif
}

static bool types_are_known(const struct cr_qconv_types *t) {
    return cr_cpu_dnnl_is_best_int8() && is_int8(t->x) && (is_int8(t->y) || t->y == CR_F32) &&
           (!t->has_add || is_int8(t->add));
}

CR_CPU_ACCEPTS(qconv_accepts) {
    const struct cr_dnnl_qconv c = conv_of(p, op);
    return types_are_known(&c.types);
}

int64_t cr_cpu_qconv_packed_bytes(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_dnnl_qconv  c = conv_of(p, op);
    const_dnnl_primitive_desc_t pd;
    if (!types_are_known(&c.types)) return -1;
    if (cr_dnnl_qconv_layout(device, &c, &pd) != CR_OK) {
        cr_error_clear();
        return 0;
    }
    return (int64_t)dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0));
}

/* ---- pack_filter ---- */

struct pack {
    dnnl_stream_t    stream;
    dnnl_primitive_t reorder;
    dnnl_memory_t    from, to;
};

static void pack_release(void *opaque) {
    struct pack *s = opaque;
    if (!s) return;
    if (s->reorder) dnnl_primitive_destroy(s->reorder);
    if (s->from) dnnl_memory_destroy(s->from);
    if (s->to) dnnl_memory_destroy(s->to);
    cr_free(s);
}

CR_CPU_ACCEPTS(pack_accepts) {
    return types_are_known(&op->attr.conv.types);
}

/* *bytes: size of the packed filter. */
static cr_status pack_open(struct cr_device *device, const struct cr_dnnl_qconv *c, struct pack **out, size_t *bytes) {
    struct dnnl_handles        *h;
    struct pack                *s;
    cr_dnnl_md_own              from = {0};
    const_dnnl_primitive_desc_t conv;
    dnnl_primitive_desc_t       pd     = NULL;
    cr_status                   status = CR_OK;
    const dnnl_dims_t           w      = {c->w[0], c->w[3], c->w[1], c->w[2]};
    CR_TRY(cr_dnnl_open(device, &h));
    CR_ALLOC(s, 1);
    s->stream = h->stream;
    CR_TRY_OUT(cr_dnnl_qconv_layout(device, c, &conv));
    CR_TRY_OUT(cr_dnnl_md(&from, 4, w, dnnl_s8, dnnl_ohwi));
    const cr_dnnl_md_ref to = dnnl_primitive_desc_query_md(conv, dnnl_query_weights_md, 0);
    DNNL_TRY_OUT(dnnl_reorder_primitive_desc_create(&pd, CR_DNNL_MD(from), h->engine, to, h->engine, NULL));
    DNNL_TRY_OUT(cr_dnnl_primitive_create(&s->reorder, pd));
    DNNL_TRY_OUT(dnnl_memory_create(&s->from, CR_DNNL_MD(from), h->engine, DNNL_MEMORY_NONE));
    DNNL_TRY_OUT(dnnl_memory_create(&s->to, to, h->engine, DNNL_MEMORY_NONE));
    *bytes = cr_dnnl_bytes(to);
    *out   = s;
    s      = NULL;
out:
    if (pd) dnnl_primitive_desc_destroy(pd);
    cr_dnnl_md_free(&from);
    pack_release(s);
    return status;
}

static cr_status pack_run(struct pack *s, const void *from, void *to) {
    dnnl_memory_set_data_handle(s->from, (void *)(uintptr_t)from);
    dnnl_memory_set_data_handle(s->to, to);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, s->from}, {DNNL_ARG_TO, s->to}};
    return cr_dnnl_check(dnnl_primitive_execute(s->reorder, s->stream, CR_COUNT(args), args), "reorder");
}

static cr_status pack_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    struct cr_dnnl_qconv c = conv_of_pack(p, op);
    struct pack         *s;
    size_t               bytes;
    CR_TRY(pack_open(device, &c, &s, &bytes));
    *workspace_bytes = 0;
    *prepared        = s;
    return CR_OK;
}

static cr_status pack_launch(CR_UNUSED struct cr_device *device, const struct cr_call *call) {
    return pack_run(call->prepared, call->in[CR_IN_pack_filter_w], call->out[CR_OUT_pack_filter_y]);
}

/* ---- qconv ---- */

/* One prepared op. `coeffs` are those that the primitive was created with. */
struct qconv {
    struct dnnl_handles *handles;
    struct cr_dnnl_qconv shape;
    struct pack         *pack;       /* NULL: the op has a packed filter */
    size_t               pack_bytes; /* without one: the workspace begins with the packed filter */
    dnnl_primitive_t     conv;       /* NULL before the first launch */
    dnnl_memory_t        x, y, w, bias, scale, scratch;
    float               *coeffs, *numbers; /* [3K]; [2K]: scale, bias in oneDNN's units */
};

static void memories_free(struct qconv *s) {
    dnnl_memory_t *all[] = {&s->x, &s->y, &s->w, &s->bias, &s->scale, &s->scratch};
    for (size_t i = 0; i < CR_COUNT(all); i++) {
        if (*all[i]) dnnl_memory_destroy(*all[i]);
        *all[i] = NULL;
    }
    if (s->conv) dnnl_primitive_destroy(s->conv);
    s->conv = NULL;
}

static void qconv_release(void *opaque) {
    struct qconv *s = opaque;
    if (!s) return;
    memories_free(s);
    pack_release(s->pack);
    cr_free(s->coeffs);
    cr_free(s->numbers);
    cr_free(s);
}

static cr_status qconv_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    struct qconv               *s;
    const_dnnl_primitive_desc_t pd;
    cr_status                   status = CR_OK;
    CR_ALLOC(s, 1);
    s->shape       = conv_of(p, op);
    const size_t K = (size_t)s->shape.w[0];
    CR_TRY_OUT(cr_dnnl_open(device, &s->handles));
    CR_ALLOC_OUT(s->coeffs, 3 * K);
    CR_ALLOC_OUT(s->numbers, 2 * K);
    if (op->in[CR_IN_qconv_packed] < 0) CR_TRY_OUT(pack_open(device, &s->shape, &s->pack, &s->pack_bytes));
    CR_TRY_OUT(cr_dnnl_qconv_layout(device, &s->shape, &pd));
    *workspace_bytes = s->pack_bytes + cr_dnnl_bytes(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
    *prepared        = s;
    s                = NULL;
out:
    qconv_release(s);
    return status;
}

/* In oneDNN 2 the bias is added before the product with the scale. A scale of 0 (a channel whose gamma is 0) becomes
 * one that makes every sum vanish in the rounding. */
static void set_numbers(struct qconv *s) {
    const float   least = 0x1p-60f;
    const int64_t K     = s->shape.w[0];
    for (int64_t k = 0; k < K; k++) {
        float scale = s->coeffs[k];
        float bias  = s->coeffs[K + k];
        if (DNNL_VERSION_MAJOR < 3) {
            if (fabsf(scale) < least) scale = least;
            bias /= scale;
        }
        s->numbers[k]     = scale;
        s->numbers[K + k] = bias;
    }
}

static cr_status create(struct qconv *s) {
    dnnl_primitive_desc_t pd     = NULL;
    dnnl_engine_t         engine = s->handles->engine;
    cr_dnnl_md_own        scale  = {0};
    const dnnl_dims_t     K      = {s->shape.w[0]};
    cr_status             status = CR_OK;
    memories_free(s);
    set_numbers(s);
    s->shape.scale     = s->numbers;
    s->shape.add_scale = s->coeffs[2 * K[0]];
    CR_TRY_OUT(cr_dnnl_qconv_desc(&s->shape, engine, &pd));
    CR_TRY_OUT(cr_dnnl_md(&scale, 1, K, dnnl_f32, dnnl_a));
    DNNL_TRY_OUT(cr_dnnl_primitive_create(&s->conv, pd));
    const struct {
        dnnl_memory_t *memory;
        dnnl_query_t   what;
    } all[] = {{&s->x, dnnl_query_src_md},
               {&s->y, dnnl_query_dst_md},
               {&s->w, dnnl_query_weights_md},
               {&s->scratch, dnnl_query_scratchpad_md}};
    for (size_t i = 0; i < CR_COUNT(all); i++)
        DNNL_TRY_OUT(dnnl_memory_create(all[i].memory, dnnl_primitive_desc_query_md(pd, all[i].what, 0), engine,
                                        DNNL_MEMORY_NONE));
    DNNL_TRY_OUT(dnnl_memory_create(&s->bias, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 1), engine,
                                    s->numbers + K[0]));
    DNNL_TRY_OUT(dnnl_memory_create(&s->scale, CR_DNNL_MD(scale), engine, s->numbers));
out:
    if (pd) dnnl_primitive_desc_destroy(pd);
    cr_dnnl_md_free(&scale);
    if (status != CR_OK) memories_free(s);
    return status;
}

#define WIDEN(type)                                                                                                    \
    CR_BY_LEVEL(void, widen_##type, (const type##_t *from, float *to, int64_t count), (from, to, count)) {             \
        for (int64_t i = 0; i < count; i++) to[i] = (float)from[i];                                                    \
    }
WIDEN(int8)
WIDEN(uint8)

/* oneDNN adds to what the destination holds. */
static void put_summand(struct cr_device *device, const struct qconv *s, const void *add, void *y) {
    const int64_t elems = s->shape.y[0] * s->shape.y[1] * s->shape.y[2] * s->shape.y[3];
    if (add == y) return;
    if (s->shape.types.y != CR_F32)
        CR_EACH_RUN(elems, i, n, memcpy((char *)y + i, (const char *)add + i, (size_t)n));
    else if (s->shape.types.add == CR_I8)
        CR_EACH_RUN(elems, i, n, widen_int8((const int8_t *)add + i, (float *)y + i, n));
    else
        CR_EACH_RUN(elems, i, n, widen_uint8((const uint8_t *)add + i, (float *)y + i, n));
}

/* Creates the primitive unless there is one for these coefficients. */
static cr_status update(struct qconv *s, const void *coeffs) {
    const size_t bytes = 3 * (size_t)s->shape.w[0] * sizeof *s->coeffs;
    if (s->conv && memcmp(s->coeffs, coeffs, bytes) == 0) return CR_OK;
    memcpy(s->coeffs, coeffs, bytes);
    return create(s);
}

static void qconv_complete(CR_UNUSED struct cr_device *device, const struct cr_call *call) {
    if (update(call->prepared, call->in[CR_IN_qconv_coeffs]) != CR_OK) cr_error_clear(); /* launch repeats it */
}

static cr_status qconv_launch(struct cr_device *device, const struct cr_call *call) {
    struct qconv *s = call->prepared;
    CR_TRY(update(s, call->in[CR_IN_qconv_coeffs]));
    if (s->shape.types.has_add) put_summand(device, s, call->in[CR_IN_qconv_add], call->out[CR_OUT_qconv_y]);
    dnnl_memory_set_data_handle(s->x, (void *)(uintptr_t)call->in[CR_IN_qconv_x]);
    char *const workspace = call->workspace;
    if (s->pack) CR_TRY(pack_run(s->pack, call->in[CR_IN_qconv_w], workspace));
    dnnl_memory_set_data_handle(s->w, s->pack ? workspace : (void *)(uintptr_t)call->in[CR_IN_qconv_packed]);
    dnnl_memory_set_data_handle(s->y, call->out[CR_OUT_qconv_y]);
    dnnl_memory_set_data_handle(s->scratch, workspace ? workspace + s->pack_bytes : NULL);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, s->x},
                                    {DNNL_ARG_WEIGHTS, s->w},
                                    {DNNL_ARG_BIAS, s->bias},
                                    {DNNL_ARG_DST, s->y},
                                    {DNNL_ARG_SCRATCHPAD, s->scratch},
                                    {CR_DNNL_ARG_FILTER_SCALES, s->scale}}; /* the last one in oneDNN 3 only */
    const int             count  = (int)CR_COUNT(args) - (DNNL_VERSION_MAJOR < 3);
    return cr_dnnl_check(dnnl_primitive_execute(s->conv, s->handles->stream, count, args), "8-bit convolution");
}

const struct cr_kernel cr_cpu_dnnl_int8_kernels[] = {
    {CR_KERNEL("dnnl.qconv", qconv, CR_MATH_F32), .accepts = qconv_accepts, .prepare = qconv_prepare,
     .complete = qconv_complete, .launch = qconv_launch, .release = qconv_release},
    {CR_KERNEL("dnnl.pack_filter", pack_filter, CR_MATH_EXACT), .accepts = pack_accepts, .prepare = pack_prepare,
     .launch = pack_launch, .release = pack_release},
    {0}};
