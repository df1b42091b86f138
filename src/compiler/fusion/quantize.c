/* compiler/fusion/quantize.c: replaces floating-point ops on quantised values by 8-bit (int8) ops, for inference.
 *
 *     fake_quant(x) -> conv (with fake_quant_filter(w)) -> bn_apply [-> add] [-> relu] [-> fake_quant]
 *     becomes
 *     qconv(x8, w8, coeffs [, add8]) -> y8, or y when anything but one fake_quant reads y
 *
 * The add is that of a quantised tensor. x8 is the output of another qconv, or of the op `quantize`. Max pooling and
 * the zero channels of a shortcut run on the 8-bit tensor. quantize_filter, qconv_coeffs and pack_filter depend on
 * parameters only, so cr_pass_hoist moves them to the front. The pass matches all convolutions first, then finds which
 * tensors are needed in which form, and then writes the new list of ops. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"

/* A convolution or dense layer and the ops behind it that become one qconv; op indices, CR_NONE: absent. */
struct match {
    int  root;       /* the last of the ops that are replaced, where qconv is placed */
    int  x, add;     /* quantised tensors in floating point */
    int  y;          /* output in floating point */
    int  fake_quant; /* the only reader of y, whose output qconv writes in 8 bits */
    bool relu;
};

struct pass {
    struct cr_program          *program;
    const struct cr_cost_model *cost_model;
    int                         ops, tensors;     /* of the program before the pass */
    int                        *writer;           /* [tensors] the op that writes a tensor */
    int                        *readers, *reader; /* [tensors] number of reading slots, last reading op */
    struct match               *match;            /* [ops] of each conv and dense; root CR_NONE: not replaced */
    int                        *root_of;          /* [ops] the conv whose qconv is placed here */
    bool                       *removed;          /* [ops] */
    bool                       *need_float;       /* [tensors] something reads the tensor in floating point */
    int                        *int8;             /* [tensors] the 8-bit tensor with the same values; CR_NONE: none */
    bool                       *need_int8;        /* [tensors] something reads or writes that tensor */
    struct cr_op               *out;
    int                         outs, capacity;
};

static const struct cr_op *op_at(const struct pass *a, int index) {
    return &a->program->op[index];
}

static const struct cr_op *writer_of(const struct pass *a, int tensor) {
    return tensor >= 0 && a->writer[tensor] != CR_NONE ? op_at(a, a->writer[tensor]) : NULL;
}

/* The only op that reads the tensor, if it is of this kind; CR_NONE: none. */
static int only_reader(const struct pass *a, int tensor, enum cr_op_kind kind) {
    const bool only = a->readers[tensor] == 1 && !a->program->tensor[tensor].keep;
    return only && op_at(a, a->reader[tensor])->kind == kind ? a->reader[tensor] : CR_NONE;
}

static bool keeps_values(const struct cr_op *op) {
    return (op->kind == CR_OP_maxpool && op->in[CR_IN_maxpool_scale_bias] == CR_NONE &&
            op->out[CR_OUT_maxpool_index] == CR_NONE) ||
           op->kind == CR_OP_pad_shortcut;
}

/* The fake_quant whose values the tensor has; NULL: the tensor is not quantised. */
static const struct cr_op *source_of(const struct pass *a, int tensor) {
    const struct cr_op *op = writer_of(a, tensor);
    while (op && keeps_values(op)) op = writer_of(a, op->in[0]);
    return op && op->kind == CR_OP_fake_quant ? op : NULL;
}

static enum cr_dtype type_of(const struct cr_op *fake_quant) {
    return fake_quant->attr.quant.is_signed ? CR_I8 : CR_U8;
}

/* ---- matching ---- */

static bool filter_is_quantized(const struct pass *a, int w) {
    const struct cr_op *op = writer_of(a, w);
    return op && op->kind == CR_OP_fake_quant_filter;
}

/* Follows the ops behind the convolution with output m->y and BN `bn`. */
static void follow(const struct pass *a, int bn, struct match *m) {
    m->root                   = bn;
    m->y                      = op_at(a, bn)->out[CR_OUT_bn_apply_y];
    const int           add   = only_reader(a, m->y, CR_OP_add);
    const struct cr_op *sum   = add != CR_NONE ? op_at(a, add) : NULL;
    const int           relu  = only_reader(a, sum ? sum->out[CR_OUT_add_y] : m->y, CR_OP_relu);
    const int           other = sum ? sum->in[sum->in[CR_IN_add_a] == m->y ? CR_IN_add_b : CR_IN_add_a] : CR_NONE;
    if (relu == CR_NONE || (sum && !source_of(a, other))) return;
    m->add  = other;
    m->root = relu;
    m->relu = true;
    m->y    = op_at(a, m->root)->out[CR_OUT_relu_y];
}

static struct match match_conv(const struct pass *a, const struct cr_op *conv) {
    struct match m = {.root = CR_NONE, .x = conv->in[CR_IN_conv_x], .add = CR_NONE, .fake_quant = CR_NONE};
    const bool   plain =
        cr_op_uses_only(conv, 1u << CR_IN_conv_x | 1u << CR_IN_conv_w, 1u << CR_OUT_conv_y) && !conv->attr.conv.relu;
    if (!plain || !source_of(a, m.x) || !filter_is_quantized(a, conv->in[CR_IN_conv_w])) return m;
    const int bn = only_reader(a, conv->out[CR_OUT_conv_y], CR_OP_bn_apply);
    if (bn == CR_NONE || op_at(a, bn)->in[CR_IN_bn_apply_add] != CR_NONE || op_at(a, bn)->attr.bn.relu) return m;
    follow(a, bn, &m);
    m.fake_quant = only_reader(a, m.y, CR_OP_fake_quant);
    return m;
}

static struct match match_dense(const struct pass *a, int index) {
    const struct cr_op *op = op_at(a, index);
    struct match        m  = {.root = CR_NONE, .x = op->in[CR_IN_dense_x], .add = CR_NONE, .fake_quant = CR_NONE};
    if (!source_of(a, m.x) || !filter_is_quantized(a, op->in[CR_IN_dense_w])) return m;
    m.root = index;
    m.y    = op->out[CR_OUT_dense_y];
    return m;
}

/* ---- the qconv of a match ---- */

static int new_tensor(struct pass *a, const char *of, const char *suffix, enum cr_dtype dtype, const int64_t *dim) {
    return cr_tensor_derive(a->program, of, suffix, dtype, CR_REGION_POOL, dim);
}

/* Returns the 8-bit tensor with the values of `tensor`, which is created at the first call. */
static int int8_of(struct pass *a, int tensor) {
    if (a->int8[tensor] == CR_NONE) {
        const struct cr_tensor t = a->program->tensor[tensor];
        a->int8[tensor]          = new_tensor(a, t.name, ".8", type_of(source_of(a, tensor)), t.dim);
    }
    return a->int8[tensor];
}

/* The ops that compute the operands of qconv from parameters, and qconv itself. */
struct group {
    struct cr_op quantize_filter, coeffs, pack, conv;
    bool         packs;
};

static void make_coeffs(struct pass *a, const struct match *m, const struct cr_op *from, struct group *g) {
    struct cr_program  *p              = a->program;
    const struct cr_op *fq             = m->fake_quant != CR_NONE ? op_at(a, m->fake_quant) : NULL;
    struct cr_op       *op             = &g->coeffs;
    const struct cr_op *filter         = writer_of(a, from->in[CR_IN_conv_w]);
    const int64_t       dim[4]         = {3, 1, 1, p->tensor[from->in[CR_IN_conv_w]].dim[0]};
    *op                                = cr_op_make(CR_OP_qconv_coeffs, from->layer);
    op->in[CR_IN_qconv_coeffs_x_scale] = source_of(a, m->x)->in[CR_IN_fake_quant_scale];
    op->in[CR_IN_qconv_coeffs_w_scale] = filter->in[CR_IN_fake_quant_filter_scale];
    if (from->kind == CR_OP_dense)
        op->in[CR_IN_qconv_coeffs_bias] = from->in[CR_IN_dense_b];
    else
        op->in[CR_IN_qconv_coeffs_scale_bias] =
            op_at(a, a->reader[from->out[CR_OUT_conv_y]])->in[CR_IN_bn_apply_scale_bias];
    if (fq) op->in[CR_IN_qconv_coeffs_y_scale] = fq->in[CR_IN_fake_quant_scale];
    if (m->add != CR_NONE) op->in[CR_IN_qconv_coeffs_add_scale] = source_of(a, m->add)->in[CR_IN_fake_quant_scale];
    op->out[CR_OUT_qconv_coeffs_coeffs] = new_tensor(a, p->layer[from->layer], ".coeffs", CR_F32, dim);
}

/* The device may want the filter in a layout of its own. */
static void make_pack(struct pass *a, const struct cr_op *from, struct group *g) {
    const struct cr_cost_model *model = a->cost_model;
    const int64_t               elems =
        model->device.packed_elems ? model->device.packed_elems(model->device.self, a->program, &g->conv) : 0;
    const int64_t dim[4] = {1, 1, 1, elems};
    g->packs             = elems > 0;
    if (!g->packs) return;
    const struct cr_tensor *x = &a->program->tensor[g->conv.in[CR_IN_qconv_x]];
    g->pack                   = cr_op_make(CR_OP_pack_filter, from->layer);
    g->pack.attr.conv         = g->conv.attr.conv;
    const int add             = g->conv.in[CR_IN_qconv_add];
    g->pack.attr.conv.types   = (struct cr_qconv_types){
          .has_add = add != CR_NONE,
          .x       = x->dtype,
          .add     = add != CR_NONE ? a->program->tensor[add].dtype : CR_U8,
          .y       = a->program->tensor[g->conv.out[CR_OUT_qconv_y]].dtype,
    };
    for (int i = 0; i < 3; i++) g->pack.attr.conv.pattern.image[i] = x->dim[i];
    g->pack.in[CR_IN_pack_filter_w]   = g->conv.in[CR_IN_qconv_w];
    g->pack.out[CR_OUT_pack_filter_y] = new_tensor(a, a->program->layer[from->layer], ".packed", CR_U8, dim);
    g->conv.in[CR_IN_qconv_packed]    = g->pack.out[CR_OUT_pack_filter_y];
}

static void make_group(struct pass *a, const struct match *m, const struct cr_op *from, struct group *g) {
    struct cr_program  *p                              = a->program;
    const int           w                              = from->in[CR_IN_conv_w]; /* dense has the same slots x and w */
    const struct cr_op *filter                         = writer_of(a, w);
    g->quantize_filter                                 = cr_op_make(CR_OP_quantize_filter, from->layer);
    g->quantize_filter.in[CR_IN_quantize_filter_w]     = filter->in[CR_IN_fake_quant_filter_w];
    g->quantize_filter.in[CR_IN_quantize_filter_scale] = filter->in[CR_IN_fake_quant_filter_scale];
    g->quantize_filter.out[CR_OUT_quantize_filter_y] = new_tensor(a, p->tensor[w].name, ".8", CR_I8, p->tensor[w].dim);
    make_coeffs(a, m, from, g);
    g->conv           = cr_op_make(CR_OP_qconv, from->layer);
    g->conv.attr.conv = from->kind == CR_OP_conv ? from->attr.conv : (struct cr_conv_attr){.stride = 1, .window = 1};
    g->conv.attr.conv.relu         = m->relu;
    g->conv.in[CR_IN_qconv_x]      = int8_of(a, m->x);
    g->conv.in[CR_IN_qconv_w]      = g->quantize_filter.out[CR_OUT_quantize_filter_y];
    g->conv.in[CR_IN_qconv_coeffs] = g->coeffs.out[CR_OUT_qconv_coeffs_coeffs];
    if (m->add != CR_NONE) g->conv.in[CR_IN_qconv_add] = int8_of(a, m->add);
    g->conv.out[CR_OUT_qconv_y] =
        m->fake_quant == CR_NONE ? m->y : int8_of(a, op_at(a, m->fake_quant)->out[CR_OUT_fake_quant_y]);
    make_pack(a, from, g);
}

/* ---- what is needed ---- */

static void replace_match(struct pass *a, int conv, const struct match *m) {
    a->root_of[m->root] = conv;
    a->need_int8[m->x]  = true;
    if (m->add != CR_NONE) a->need_int8[m->add] = true;
    if (m->fake_quant != CR_NONE) a->need_int8[op_at(a, m->fake_quant)->out[CR_OUT_fake_quant_y]] = true;
    a->removed[conv] = true;
    if (op_at(a, conv)->kind == CR_OP_conv) {
        const int bn   = a->reader[op_at(a, conv)->out[CR_OUT_conv_y]];
        a->removed[bn] = true;
        if (m->add != CR_NONE) a->removed[a->reader[op_at(a, bn)->out[CR_OUT_bn_apply_y]]] = true;
    }
    a->removed[m->root] = true;
    if (m->fake_quant != CR_NONE) a->removed[m->fake_quant] = true;
}

static bool is_pure(const struct cr_op *op) {
    return op->kind == CR_OP_fake_quant || op->kind == CR_OP_fake_quant_filter || keeps_values(op);
}

/* Goes backwards through the ops: marks the inputs of every op that stays, and drops ops whose results nobody reads. */
static void find_needs(struct pass *a) {
    for (int i = a->ops - 1; i >= 0; i--) {
        const struct cr_op *op = op_at(a, i);
        const int           y  = op->out[0];
        int                 ids[CR_OP_IDS_MAX];
        if (keeps_values(op) && a->need_int8[y]) {
            a->need_int8[op->in[0]] = true;
            (void)int8_of(a, op->in[0]);
        }
        if (a->removed[i]) continue;
        const bool quantizes = op->kind == CR_OP_fake_quant && a->need_int8[y];
        if (is_pure(op) && !a->need_float[y] && !a->program->tensor[y].keep) a->removed[i] = true;
        if (a->removed[i] && !quantizes) continue;
        const int count = cr_op_reads(op, ids);
        for (int k = 0; k < count; k++)
            if (ids[k] < a->tensors) a->need_float[ids[k]] = true;
    }
}

/* ---- the new list of ops ---- */

static void push(struct pass *a, const struct cr_op *op) {
    CR_ASSERT(a->outs < a->capacity);
    a->out[a->outs++] = *op;
}

static struct cr_op quantize_op(struct pass *a, const struct cr_op *from) {
    struct cr_op op             = cr_op_make(CR_OP_quantize, from->layer);
    op.in[CR_IN_quantize_x]     = from->in[CR_IN_fake_quant_x];
    op.in[CR_IN_quantize_scale] = from->in[CR_IN_fake_quant_scale];
    op.attr.quant               = from->attr.quant;
    op.out[CR_OUT_quantize_y]   = a->int8[from->out[CR_OUT_fake_quant_y]];
    return op;
}

static struct cr_op dequantize_op(struct pass *a, const struct cr_op *from) {
    struct cr_op op               = cr_op_make(CR_OP_dequantize, from->layer);
    op.in[CR_IN_dequantize_x]     = a->int8[from->out[CR_OUT_fake_quant_y]];
    op.in[CR_IN_dequantize_scale] = from->in[CR_IN_fake_quant_scale];
    op.out[CR_OUT_dequantize_y]   = from->out[CR_OUT_fake_quant_y];
    return op;
}

/* One op of the old list, at its place in the new one. */
static void rewrite(struct pass *a, int index, const struct group *groups) {
    const struct cr_op *from = op_at(a, index);
    const int           y    = from->out[0];
    struct cr_op        op;
    if (a->root_of[index] != CR_NONE) {
        const struct group *g = &groups[a->root_of[index]];
        push(a, &g->quantize_filter);
        push(a, &g->coeffs);
        if (g->packs) push(a, &g->pack);
        push(a, &g->conv);
        return;
    }
    const bool has_int8 = y >= 0 && y < a->tensors && a->need_int8[y];
    if (from->kind == CR_OP_fake_quant && has_int8) {
        const int  writer = a->writer[from->in[CR_IN_fake_quant_x]];
        const bool absorbed =
            writer != CR_NONE && a->root_of[writer] != CR_NONE && a->match[a->root_of[writer]].fake_quant == index;
        op = quantize_op(a, from);
        if (!absorbed) push(a, &op);
        op = dequantize_op(a, from);
        if (a->need_float[y]) push(a, &op);
        return;
    }
    if (keeps_values(from) && has_int8) {
        op        = *from;
        op.in[0]  = a->int8[from->in[0]];
        op.out[0] = a->int8[y];
        push(a, &op);
    }
    if (!a->removed[index]) push(a, from);
}

static void count_readers(struct pass *a) {
    for (int t = 0; t < a->tensors; t++) a->writer[t] = a->reader[t] = a->int8[t] = CR_NONE;
    for (int i = 0; i < a->ops; i++) {
        int       ids[CR_OP_IDS_MAX];
        const int reads = cr_op_reads(op_at(a, i), ids);
        for (int k = 0; k < reads; k++) {
            a->readers[ids[k]]++;
            a->reader[ids[k]] = i;
        }
        const int writes = cr_op_writes(op_at(a, i), ids);
        for (int k = 0; k < writes; k++) a->writer[ids[k]] = i;
        a->root_of[i] = CR_NONE;
    }
}

/* Matches all convolutions. A match for which the device has no 8-bit kernel is not replaced. *found: their number. */
static cr_status find_matches(struct pass *a, struct group *groups, int *found) {
    for (int i = 0; i < a->ops; i++) {
        const enum cr_op_kind kind = op_at(a, i)->kind;
        struct match         *m    = &a->match[i];
        *m                         = kind == CR_OP_conv    ? match_conv(a, op_at(a, i))
                                     : kind == CR_OP_dense ? match_dense(a, i)
                                                           : (struct match){.root = CR_NONE};
        if (m->root == CR_NONE) continue;
        make_group(a, m, op_at(a, i), &groups[i]);
        if (a->program->failed) return CR_NO_MEMORY(sizeof *a->program->tensor);
        if (!cr_accepts(a->cost_model, a->program, &groups[i].conv)) {
            m->root = CR_NONE;
            continue;
        }
        replace_match(a, i, m);
        ++*found;
    }
    return CR_OK;
}

static cr_status write_ops(struct pass *a, const struct group *groups) {
    find_needs(a);
    if (a->program->failed) return CR_NO_MEMORY(sizeof *a->program->tensor);
    for (int i = 0; i < a->ops; i++) rewrite(a, i, groups);
    cr_free(a->program->op);
    a->program->op          = a->out;
    a->program->ops         = a->outs;
    a->program->op_capacity = a->capacity;
    a->out                  = NULL;
    return CR_OK;
}

static cr_status quantize_all(struct pass *a, struct group *groups) {
    int found = 0;
    count_readers(a);
    CR_TRY(find_matches(a, groups, &found));
    return found ? write_ops(a, groups) : CR_OK;
}

/* Working memory of the pass; all of it is zero. */
static cr_status alloc_all(struct pass *a, struct cr_arena *arena, struct group **groups) {
    const size_t tensors = (size_t)a->tensors, ops = (size_t)a->ops;
    CR_ARENA_ALLOC(arena, a->writer, tensors);
    CR_ARENA_ALLOC(arena, a->readers, tensors);
    CR_ARENA_ALLOC(arena, a->reader, tensors);
    CR_ARENA_ALLOC(arena, a->int8, tensors);
    CR_ARENA_ALLOC(arena, a->need_float, tensors);
    CR_ARENA_ALLOC(arena, a->need_int8, tensors);
    CR_ARENA_ALLOC(arena, a->root_of, ops);
    CR_ARENA_ALLOC(arena, a->removed, ops);
    CR_ARENA_ALLOC(arena, a->match, ops);
    CR_ARENA_ALLOC(arena, *groups, ops);
    CR_ALLOC(a->out, (size_t)a->capacity);
    return CR_OK;
}

cr_status cr_pass_quantize(struct cr_program *p, const struct cr_cost_model *cost_model) {
    enum { OPS_FOR_ONE = 4 }; /* one op becomes at most four */
    struct pass a = {
        .program = p, .cost_model = cost_model, .ops = p->ops, .tensors = p->tensors, .capacity = OPS_FOR_ONE * p->ops};
    struct group   *groups = NULL;
    struct cr_arena arena  = {0};
    bool            any    = false;
    for (int i = 0; i < p->ops; i++) any |= p->op[i].kind == CR_OP_fake_quant;
    if (!any || cr_program_trains(p)) return CR_OK;
    cr_status status = alloc_all(&a, &arena, &groups);
    if (status == CR_OK) status = quantize_all(&a, groups);
    cr_free(a.out);
    cr_arena_free(&arena);
    return status;
}
