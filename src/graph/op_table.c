/* graph/op_table.c: the tables made from graph/ops.def, and the slots of one op. See graph/graph.h. */
#include "graph/graph.h"

#include <string.h>

/* ---- tables from graph/ops.def ---- */

const struct cr_op_info *cr_op_info(enum cr_op_kind kind) {
    static const struct cr_op_info table[CR_OP_COUNT] = {
#define OP(op, text) [CR_OP_##op] = {.name = #op, .what = text,
#define IN(op, slot, ...) .in_name[CR_IN_##op##_##slot] = #slot, .in_type[CR_IN_##op##_##slot] = CR_SLOT_##__VA_ARGS__,
#define OUT(op, slot, ...)                                                                                             \
    .out_name[CR_OUT_##op##_##slot] = #slot, .out_type[CR_OUT_##op##_##slot] = CR_SLOT_##__VA_ARGS__,
#define OPT_IN(op, slot, ...) IN(op, slot, __VA_ARGS__).in_optional[CR_IN_##op##_##slot] = true,
#define OPT_OUT(op, slot, ...) OUT(op, slot, __VA_ARGS__).out_optional[CR_OUT_##op##_##slot] = true,
#define END(op)                                                                                                        \
    .ins = CR_INS_##op, .outs = CR_OUTS_##op                                                                           \
    }                                                                                                                  \
    ,
#include "graph/ops.def"
    };
    return &table[kind];
}

/* One output may reuse one of several inputs, so the table is a list of pairs. */
unsigned cr_op_inplace(enum cr_op_kind kind, int out) {
    static const struct {
        enum cr_op_kind kind;
        int             out, in;
    } pairs[] = {
#define INPLACE(op, out_slot, in_slot) {CR_OP_##op, CR_OUT_##op##_##out_slot, CR_IN_##op##_##in_slot},
#include "graph/ops.def"
    };
    unsigned mask = 0;
    for (size_t i = 0; i < CR_COUNT(pairs); i++)
        if (pairs[i].kind == kind && pairs[i].out == out) mask |= 1u << pairs[i].in;
    return mask;
}

bool cr_op_has_sparsity_pattern(const struct cr_op *op) {
    const bool is_conv = op->kind == CR_OP_conv || op->kind == CR_OP_conv_dgrad || op->kind == CR_OP_conv_wgrad;
    return is_conv && op->attr.conv.pattern.nnz > 0;
}

uint32_t cr_drop_threshold(const struct cr_drop_attr *attr) {
    return (uint32_t)(attr->rate * 0x1p32);
}

float cr_drop_scale(const struct cr_drop_attr *attr) {
    return (float)(1 / (1 - attr->rate));
}

const char *cr_stream_name(enum cr_stream stream) {
    static const char *const names[CR_STREAMS] = {"compute", "to_host", "to_device", "comm", "side"};
    return names[stream];
}

const char *cr_region_name(enum cr_region region) {
    static const char *const names[CR_REGIONS] = {"store", "pool", "input", "host"};
    return names[region];
}

int64_t cr_tensor_elems(const struct cr_tensor *t) {
    return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
}

void cr_tensor_add_shape(const struct cr_tensor *t, struct cr_text *out) {
    cr_text_add(out, "%s[%lld,%lld,%lld,%lld]", cr_dtype_name(t->dtype), (long long)t->dim[0], (long long)t->dim[1],
                (long long)t->dim[2], (long long)t->dim[3]);
}

/* ---- one op ---- */

struct cr_op cr_op_make(enum cr_op_kind kind, int layer) {
    struct cr_op op = {
        .kind = kind, .stream = CR_STREAM_COMPUTE, .layer = layer, .workspace = CR_NONE, .kernel = CR_NONE};
    for (int i = 0; i < CR_OP_IN_MAX; i++) op.in[i] = CR_NONE;
    for (int i = 0; i < CR_OP_OUT_MAX; i++) op.out[i] = CR_NONE;
    for (int i = 0; i < CR_OP_WAIT_MAX; i++) op.wait[i] = CR_NONE;
    return op;
}

static int slot_ids(const struct cr_op *op, bool out, int ids[CR_OP_IDS_MAX]) {
    int                 n    = 0, parts;
    const struct cr_op *part = cr_op_parts(op, &parts);
    for (int k = 0; k < parts; k++) {
        const struct cr_op_info *info  = cr_op_info(part[k].kind);
        const int               *slots = out ? part[k].out : part[k].in, count = out ? info->outs : info->ins;
        for (int s = 0; s < count; s++)
            if (slots[s] >= 0) ids[n++] = slots[s];
    }
    if (op->workspace >= 0) ids[n++] = op->workspace;
    return n;
}

int cr_op_reads(const struct cr_op *op, int ids[CR_OP_IDS_MAX]) {
    return slot_ids(op, false, ids);
}

int cr_op_writes(const struct cr_op *op, int ids[CR_OP_IDS_MAX]) {
    return slot_ids(op, true, ids);
}

int cr_op_operands(const struct cr_op *op, int ids[2 * CR_OP_IDS_MAX]) {
    const int reads = cr_op_reads(op, ids);
    return reads + cr_op_writes(op, ids + reads);
}

struct cr_op cr_op_fuse(struct cr_program *p, const struct cr_op *part, int count) {
    struct cr_op  op   = cr_op_make(CR_OP_fused, part[count - 1].layer);
    struct cr_op *copy = cr_arena_alloc(&p->arena, (size_t)count * sizeof *copy);
    CR_ASSERT(count <= CR_FUSED_MAX);
    if (!copy) {
        p->failed = true;
        return op;
    }
    memcpy(copy, part, (size_t)count * sizeof *copy);
    for (int k = 0; k < count; k++) copy[k].workspace = CR_NONE;
    op.stream     = part[0].stream;
    op.attr.fused = (struct cr_fused_attr){.part = copy, .parts = count};
    return op;
}

_Static_assert((int)CR_IN_loss_class_weights == (int)CR_IN_loss_grad_class_weights, "both ops have the same slot");

bool cr_loss_is_plain(const struct cr_op *op) {
    return !op->attr.loss.sigmoid && op->attr.loss.gamma == 0 && op->in[CR_IN_loss_class_weights] < 0;
}

void cr_loss_check(const struct cr_program *p, const struct cr_op *op) {
    const int64_t classes = p->tensor[op->in[CR_IN_loss_logits]].dim[3];
    const int     weights = op->in[CR_IN_loss_class_weights];
    CR_ASSERT(op->attr.loss.sigmoid || !op->attr.loss.several);
    CR_ASSERT(!op->attr.loss.several || p->tensor[op->in[CR_IN_loss_labels]].dim[3] == cr_label_words(classes));
    CR_ASSERT(weights < 0 || cr_tensor_elems(&p->tensor[weights]) == classes);
}

bool cr_op_uses_only(const struct cr_op *op, unsigned in, unsigned out) {
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++)
        if (op->in[s] >= 0 && !(in >> s & 1)) return false;
    for (int s = 0; s < cr_op_info(op->kind)->outs; s++)
        if (op->out[s] >= 0 && !(out >> s & 1)) return false;
    return true;
}

/* Checks one slot. *data is the type of the op's data, -1 until the first slot with data. */
static bool slot_fits(const struct cr_program *p, int tensor, enum cr_slot_type type, unsigned dtypes, int *data) {
    if (tensor < 0 || type == CR_SLOT_ANY) return true;
    const enum cr_dtype dtype = p->tensor[tensor].dtype;
    switch (type) {
    case CR_SLOT_WIDE: return dtype == (*data == CR_F64 ? CR_F64 : CR_F32);
    case CR_SLOT_F64: return dtype == CR_F64;
    case CR_SLOT_I32: return dtype == CR_I32;
    case CR_SLOT_U8: return dtype == CR_U8;
    default:
        if (*data < 0) *data = (int)dtype;
        return (int)dtype == *data && (dtypes >> dtype & 1);
    }
}

static bool part_has_types(const struct cr_program *p, const struct cr_op *op, unsigned dtypes) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    int                      data = -1;
    for (int s = 0; s < info->ins; s++)
        if (!slot_fits(p, op->in[s], info->in_type[s], dtypes, &data)) return false;
    for (int s = 0; s < info->outs; s++)
        if (!slot_fits(p, op->out[s], info->out_type[s], dtypes, &data)) return false;
    return true;
}

/* The parts before the last may be BN ops, whose data are sums. */
bool cr_op_has_types(const struct cr_program *p, const struct cr_op *op, unsigned dtypes) {
    int                 parts;
    const struct cr_op *part = cr_op_parts(op, &parts);
    for (int k = 0; k < parts; k++)
        if (!part_has_types(p, &part[k], k < parts - 1 ? dtypes | 1u << CR_F32 : dtypes)) return false;
    return true;
}
