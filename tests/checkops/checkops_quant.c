/* tests/checkops/checkops_quant.c: cases, operands and packed filters of the ops on 8-bit integers (graph/ops.def,
 * "quantisation"), and maxpool and pad_shortcut on 8-bit pixels. */
#include "core/rng.h"
#include "tests/checkops/checkops.h"

#include <math.h>
#include <stdio.h>

struct shape {
    int64_t N, H, W, C, K;
    int     window, stride, pad;
    bool    big;
};
static const struct shape convs[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, false},       {2, 5, 4, 3, 7, 3, 1, 1, false},      {2, 5, 5, 7, 3, 3, 2, 1, false},
    {1, 7, 5, 16, 17, 3, 1, 1, false},     {2, 6, 6, 17, 16, 1, 1, 0, false},    {2, 7, 7, 16, 64, 1, 2, 0, false},
    {1, 9, 9, 3, 16, 7, 2, 3, false},      {3, 4, 4, 64, 13, 3, 1, 1, false},    {5, 1, 1, 65, 10, 1, 1, 0, false},
    {2, 32, 32, 3, 16, 3, 1, 1, true},     {2, 32, 32, 16, 16, 3, 1, 1, true},   {2, 32, 32, 16, 32, 3, 2, 1, true},
    {4, 8, 8, 64, 64, 3, 1, 1, true},      {1, 33, 33, 3, 64, 7, 2, 3, true},    {1, 14, 14, 64, 256, 1, 1, 0, true},
    {1, 8, 8, 256, 512, 1, 2, 0, true},    {1, 4, 4, 512, 512, 3, 1, 1, true},   {4, 1, 1, 512, 1000, 1, 1, 0, true},
    {1, 14, 14, 1024, 256, 1, 1, 0, true}, {1, 14, 14, 128, 128, 3, 2, 1, true},
};
static const struct shape images[] = {
    {1, 1, 1, 1, 0, 0, 0, 0, false},   {2, 3, 5, 7, 0, 0, 0, 0, false},   {1, 7, 7, 16, 0, 0, 0, 0, false},
    {3, 5, 3, 17, 0, 0, 0, 0, false},  {1, 1, 31, 33, 0, 0, 0, 0, false}, {1, 1, 1, 1000, 0, 0, 0, 0, false},
    {2, 32, 32, 16, 0, 0, 0, 0, true}, {2, 7, 7, 512, 0, 0, 0, 0, true},
};
static const struct shape pools[] = {
    {1, 1, 1, 1, 0, 1, 1, 0, false},  {2, 5, 4, 7, 0, 3, 2, 1, false},  {1, 7, 7, 16, 0, 3, 2, 1, false},
    {2, 6, 6, 17, 0, 2, 1, 0, false}, {1, 9, 9, 33, 0, 5, 3, 2, false}, {1, 56, 56, 64, 0, 3, 2, 1, true},
};
static const struct shape shortcuts[] = {
    {1, 1, 1, 1, 0, 1, 1, 1, false},  {2, 5, 5, 3, 0, 1, 2, 2, false},   {1, 4, 6, 16, 0, 1, 2, 8, false},
    {1, 7, 7, 17, 0, 1, 3, 5, false}, {2, 32, 32, 16, 0, 1, 2, 8, true},
};

/* ---- the list ---- */

static struct checkops_case case_of(const struct shape *s, enum cr_op_kind kind, unsigned flags) {
    return (struct checkops_case){.kind   = kind,
                                  .N      = s->N,
                                  .H      = s->H,
                                  .W      = s->W,
                                  .C      = s->C,
                                  .K      = s->K,
                                  .window = s->window,
                                  .stride = s->stride,
                                  .pad    = s->pad,
                                  .flags  = flags,
                                  .real   = CR_F32,
                                  .big    = s->big};
}

static void add_all(struct checkops_list *list, const struct shape *table, size_t count, enum cr_op_kind kind,
                    unsigned flags, bool types) {
    for (size_t i = 0; i < count; i++) {
        const struct checkops_case c = case_of(&table[i], kind, flags);
        if (types)
            checkops_list_add_types(list, &c, i);
        else
            checkops_list_add(list, &c);
    }
}

#define TABLE(table) table, CR_COUNT(table)

/* Every combination of the types of x, add and y, with and without ReLU and packed filter: all of them for two shapes,
 * a fifth of them for each other shape. */
static void list_qconv(struct checkops_list *list) {
    static const unsigned x[] = {0, CHECKOPS_SIGNED}, add[] = {0, CHECKOPS_ADD, CHECKOPS_ADD | CHECKOPS_ADD_SIGNED},
                          y[] = {0, CHECKOPS_Y_SIGNED, CHECKOPS_Y_REAL}, relu[] = {0, CHECKOPS_RELU};
    unsigned turn = 0;
    for (size_t i = 0; i < CR_COUNT(x) * CR_COUNT(add) * CR_COUNT(y) * CR_COUNT(relu); i++) {
        const unsigned flags = x[i % 2] | add[i / 2 % 3] | y[i / 6 % 3] | relu[i / 18];
        for (size_t k = 0; k < CR_COUNT(convs); k++) {
            if (k != 1 && k != 6 && turn++ % 5) continue;
            const struct checkops_case plain  = case_of(&convs[k], CR_OP_qconv, flags),
                                       packed = case_of(&convs[k], CR_OP_qconv, flags | CHECKOPS_BITS);
            checkops_list_add(list, &packed);
            if (!convs[k].big) checkops_list_add(list, &plain);
        }
    }
}

void checkops_list_quant(struct checkops_list *list) {
    static const unsigned types[] = {CHECKOPS_BITS, CHECKOPS_BITS | CHECKOPS_SIGNED};
    for (size_t i = 0; i < CR_COUNT(types); i++) {
        const unsigned is_signed = types[i] & CHECKOPS_SIGNED;
        add_all(list, TABLE(images), CR_OP_quantize, is_signed, true);
        add_all(list, TABLE(images), CR_OP_dequantize, is_signed, true);
        add_all(list, TABLE(pools), CR_OP_maxpool, types[i] | CHECKOPS_NO_INDEX, false);
        add_all(list, TABLE(shortcuts), CR_OP_pad_shortcut, types[i], false);
    }
    add_all(list, TABLE(convs), CR_OP_quantize_filter, 0, true);
    add_all(list, TABLE(convs), CR_OP_pack_filter, 0, false);
    add_all(list, TABLE(convs), CR_OP_qconv_coeffs, 0, true);
    add_all(list, TABLE(convs), CR_OP_qconv_coeffs, CHECKOPS_BIAS, true);
    add_all(list, TABLE(convs), CR_OP_qconv_coeffs, CHECKOPS_ADD, true);
    list_qconv(list);
}

/* ---- operands ---- */

#define in(...) checkops_build_in(__VA_ARGS__)
#define out(...) checkops_build_out(__VA_ARGS__)

static bool has_flag(const struct checkops_build *b, unsigned flag) {
    return (b->c->flags & flag) != 0;
}
static enum cr_dtype byte_type(bool is_signed) {
    return is_signed ? CR_I8 : CR_U8;
}

void checkops_build_bytes(struct checkops_build *b, int slot) {
    in(b, slot, byte_type(has_flag(b, CHECKOPS_SIGNED)), b->c->N, b->c->H, b->c->W, b->c->C);
}

/* Bytes that hold a filter in any layout: channels padded to multiples of 64, and a few numbers for each filter. */
static int64_t packed_bytes(const struct checkops_case *c) {
    return (c->K + 64) * (c->window * c->window * (c->C + 64) + 64);
}

static enum cr_dtype type_of_y(const struct checkops_build *b) {
    return has_flag(b, CHECKOPS_Y_REAL) ? b->real : byte_type(has_flag(b, CHECKOPS_Y_SIGNED));
}

static void build_qconv(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    const int64_t               P = checkops_window_out(c->H, c), Q = checkops_window_out(c->W, c);
    b->op.attr.conv.relu = has_flag(b, CHECKOPS_RELU);
    checkops_build_bytes(b, CR_IN_qconv_x);
    in(b, CR_IN_qconv_w, CR_I8, c->K, c->window, c->window, c->C);
    in(b, CR_IN_qconv_coeffs, CR_F32, 3, 1, 1, c->K);
    if (has_flag(b, CHECKOPS_ADD))
        in(b, CR_IN_qconv_add, byte_type(has_flag(b, CHECKOPS_ADD_SIGNED)), c->N, P, Q, c->K);
    if (has_flag(b, CHECKOPS_BITS)) in(b, CR_IN_qconv_packed, CR_U8, 1, 1, 1, packed_bytes(c));
    out(b, CR_OUT_qconv_y, type_of_y(b), c->N, P, Q, c->K);
}

static void build_coeffs(struct checkops_build *b) {
    const int64_t K = b->c->K;
    in(b, CR_IN_qconv_coeffs_x_scale, b->wide, 1, 1, 1, 1);
    in(b, CR_IN_qconv_coeffs_w_scale, b->wide, 1, 1, 1, K);
    if (has_flag(b, CHECKOPS_BIAS))
        in(b, CR_IN_qconv_coeffs_bias, b->wide, 1, 1, 1, K);
    else
        in(b, CR_IN_qconv_coeffs_scale_bias, b->wide, 2, 1, 1, K);
    if (!has_flag(b, CHECKOPS_BIAS)) in(b, CR_IN_qconv_coeffs_y_scale, b->wide, 1, 1, 1, 1);
    if (has_flag(b, CHECKOPS_ADD)) in(b, CR_IN_qconv_coeffs_add_scale, b->wide, 1, 1, 1, 1);
}

void checkops_build_quant(struct checkops_build *b) {
    const struct checkops_case *c      = b->c;
    const bool                  filter = c->kind == CR_OP_quantize_filter;
    if (c->kind == CR_OP_quantize) b->op.attr.quant.is_signed = has_flag(b, CHECKOPS_SIGNED);
    if (c->kind == CR_OP_qconv || c->kind == CR_OP_pack_filter)
        b->op.attr.conv = (struct cr_conv_attr){.stride = c->stride, .pad = c->pad, .window = c->window};
    switch (c->kind) {
    case CR_OP_qconv: build_qconv(b); return;
    case CR_OP_qconv_coeffs: build_coeffs(b); return;
    case CR_OP_pack_filter:
        b->op.attr.conv.types            = (struct cr_qconv_types){.x = CR_U8, .add = CR_U8, .y = CR_U8};
        b->op.attr.conv.pattern.image[0] = c->N;
        b->op.attr.conv.pattern.image[1] = c->H;
        b->op.attr.conv.pattern.image[2] = c->W;
        in(b, CR_IN_pack_filter_w, CR_I8, c->K, c->window, c->window, c->C);
        out(b, CR_OUT_pack_filter_y, CR_U8, 1, 1, 1, packed_bytes(c));
        return;
    case CR_OP_dequantize: checkops_build_bytes(b, CR_IN_dequantize_x); break;
    default: /* slots 0 and 1 are the numbers and their scale */
        if (filter)
            in(b, 0, b->real, c->K, c->window, c->window, c->C);
        else
            checkops_build_image(b, 0);
    }
    in(b, 1, b->wide, 1, 1, 1, filter ? c->K : 1);
}

/* ---- inputs ---- */

/* Factors for which the sums fill the range of 8 bits; one channel has the factor 0, as if gamma were 0. */
void checkops_draw_coeffs(const struct checkops_unit *unit, struct cr_rng *rng, float *coeffs) {
    const struct checkops_case *c    = &unit->c;
    const double                most = 75.0 * 150 * sqrt((double)(c->window * c->window * c->C));
    for (int64_t k = 0; k < c->K; k++) {
        const double sign    = cr_rng_below(rng, 2) ? 1 : -1;
        coeffs[k]            = k % 7 == 3 ? 0 : (float)(sign * (0.5 + cr_rng_real(rng)) * 100 / most);
        coeffs[c->K + k]     = 30 * cr_rng_normal(rng);
        coeffs[2 * c->K + k] = 0.7f; /* one number for all channels */
    }
}

/* Packs the filter as the device's qconv reads it. */
cr_status checkops_pack(struct cr_device *device, const struct checkops_unit *unit, struct checkops_inputs *inputs) {
    const struct cr_op *conv   = unit->op;
    struct cr_program   p      = {0};
    void               *work   = NULL;
    size_t              bytes  = 0;
    cr_status           status = CR_OK;
    int                 index;
    if (conv->kind != CR_OP_qconv || conv->in[CR_IN_qconv_packed] < 0) return CR_OK;
    const struct cr_tensor *t = unit->program.tensor, *w = &t[conv->in[CR_IN_qconv_w]];
    const int               add = conv->in[CR_IN_qconv_add];
    struct cr_op            op  = cr_op_make(CR_OP_pack_filter, CR_NONE);
    op.attr.conv                = conv->attr.conv;
    op.attr.conv.types          = (struct cr_qconv_types){.has_add = add >= 0,
                                                          .x       = t[conv->in[CR_IN_qconv_x]].dtype,
                                                          .add     = add >= 0 ? t[add].dtype : CR_U8,
                                                          .y       = t[conv->out[CR_OUT_qconv_y]].dtype};
    for (int i = 0; i < 3; i++) op.attr.conv.pattern.image[i] = t[conv->in[CR_IN_qconv_x]].dim[i];
    cr_program_init(&p, "pack", unit->program.store);
    op.in[0]  = cr_tensor_add(&p, "w", CR_I8, CR_REGION_POOL, w->dim[0], w->dim[1], w->dim[2], w->dim[3]);
    op.out[0] = cr_tensor_add(&p, "y", CR_U8, CR_REGION_POOL, 1, 1, 1, packed_bytes(&unit->c));
    cr_emit(&p, &op, "y");
    struct cr_call call = {.program = &p, .op = p.op, .step = &unit->step};
    call.in[0]          = inputs->in[CR_IN_qconv_w];
    call.out[0]         = inputs->in[CR_IN_qconv_packed];
    if (p.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for a packed filter");
    const struct cr_kernel *kernel = cr_kernel_find(device, &p, p.op, 0, &index);
    if (!kernel) CR_FAIL_OUT(CR_ERR_DEVICE, "no kernel packs a filter");
    if (kernel->prepare) CR_TRY_OUT(kernel->prepare(device, &p, p.op, &call.prepared, &bytes));
    if (bytes && !(work = cr_alloc(bytes, 1))) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for a packed filter");
    call.workspace = work;
    status         = kernel->launch(device, &call);
    if (kernel->release) kernel->release(call.prepared);
out:
    cr_free(work);
    cr_program_free(&p);
    return status;
}
