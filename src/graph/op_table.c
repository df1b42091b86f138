/* graph/op_table.c: the tables made from graph/ops.def, and the slots of one op. See graph/graph.h. */
#include "graph/graph.h"

/* ---- tables from graph/ops.def ---- */

const struct cr_op_info *cr_op_info(enum cr_op_kind kind) {
    static const struct cr_op_info table[CR_OP_COUNT] = {
#define OP(op, text) [CR_OP_##op] = {.name = #op, .what = text,
#define IN(op, slot, ...) .in_name[CR_IN_##op##_##slot] = #slot, .in_type[CR_IN_##op##_##slot] = CR_SLOT_##__VA_ARGS__,
#define OUT(op, slot, ...)                                                                                             \
    .out_name[CR_OUT_##op##_##slot] = #slot, .out_type[CR_OUT_##op##_##slot] = CR_SLOT_##__VA_ARGS__,
#define OPT_IN(op, slot, ...) IN(op, slot, __VA_ARGS__).in_optional[CR_IN_##op##_##slot] = true,
#define OPT_OUT(op, slot, ...) OUT(op, slot, __VA_ARGS__).out_optional[CR_OUT_##op##_##slot] = true,
#define GRAD(op) .has_grad = true,
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
    static const char *const names[CR_STREAMS] = {"compute", "to_host", "to_device", "comm"};
    return names[stream];
}

const char *cr_region_name(enum cr_region region) {
    static const char *const names[CR_REGIONS] = {"store", "pool", "input", "host"};
    return names[region];
}

int64_t cr_tensor_elems(const struct cr_tensor *t) {
    return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
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

int cr_op_reads(const struct cr_op *op, int ids[CR_OP_IDS_MAX]) {
    int n = 0;
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++)
        if (op->in[s] >= 0) ids[n++] = op->in[s];
    if (op->workspace >= 0) ids[n++] = op->workspace;
    return n;
}

int cr_op_writes(const struct cr_op *op, int ids[CR_OP_IDS_MAX]) {
    int n = 0;
    for (int s = 0; s < cr_op_info(op->kind)->outs; s++)
        if (op->out[s] >= 0) ids[n++] = op->out[s];
    if (op->workspace >= 0) ids[n++] = op->workspace;
    return n;
}

bool cr_op_finishes_later(const struct cr_op *op) {
    if (op->kind == CR_OP_bn_apply) return op->attr.bn.finish_later;
    return (op->kind == CR_OP_conv || op->kind == CR_OP_conv_grad || op->kind == CR_OP_pad_shortcut) &&
           op->attr.conv.finish_later;
}

/* Whether an op is a bn_apply of the BN behind the convolution `conv`. */
static bool applies_bn(const struct cr_op *op, const struct cr_op *conv) {
    return op->kind == CR_OP_bn_apply && conv->out[CR_OUT_conv_next_scale_bias] >= 0 &&
           op->in[CR_IN_bn_apply_scale_bias] == conv->out[CR_OUT_conv_next_scale_bias];
}

int cr_op_before(const struct cr_program *p, int i) {
    const struct cr_op   *op   = &p->op[i];
    const enum cr_op_kind kind = op->kind == CR_OP_bn_apply ? CR_OP_conv : op->kind;
    int                   at   = i - 1;
    if (kind != CR_OP_conv && kind != CR_OP_conv_grad) return CR_NONE;
    while (at >= 0 && p->op[at].kind != kind) at--;
    if (at < 0 || (op->kind == CR_OP_bn_apply && !applies_bn(op, &p->op[at]))) return CR_NONE;
    for (int k = at + 1; k < i && kind == CR_OP_conv; k++)
        if (applies_bn(&p->op[k], &p->op[at])) /* completes it */
            return p->op[k].attr.bn.finish_later ? k : CR_NONE;
    return at;
}

int cr_op_shortcut(const struct cr_program *p, int i) {
    const int at = i - 1;
    return at >= 0 && p->op[i].kind == CR_OP_bn_apply && p->op[at].kind == CR_OP_pad_shortcut &&
                   p->op[at].out[CR_OUT_pad_shortcut_y] == p->op[i].in[CR_IN_bn_apply_add]
               ? at
               : CR_NONE;
}

static int add_ids(int *ids, int n, const int *slots, int first, int last) {
    for (int s = first; s <= last; s++)
        if (slots[s] >= 0) ids[n++] = slots[s];
    return n;
}

int cr_op_finish_ids(const struct cr_op *op, int ids[CR_OP_IDS_MAX]) {
    int n = add_ids(ids, 0, &op->workspace, 0, 0);
    if (op->kind == CR_OP_pad_shortcut) return add_ids(ids, n, op->in, CR_IN_pad_shortcut_x, CR_IN_pad_shortcut_x);
    if (op->kind == CR_OP_bn_apply) {
        n = add_ids(ids, n, op->in, CR_IN_bn_apply_x, CR_IN_bn_apply_x);
        n = add_ids(ids, n, op->in, CR_IN_bn_apply_add, CR_IN_bn_apply_add);
        return add_ids(ids, n, op->out, CR_OUT_bn_apply_y, CR_OUT_bn_apply_y);
    }
    if (op->kind == CR_OP_conv) {
        n = add_ids(ids, n, op->in, CR_IN_conv_gamma, CR_IN_conv_running_var);
        return add_ids(ids, n, op->out, CR_OUT_conv_sums, CR_OUT_conv_running_var);
    }
    n = add_ids(ids, n, op->in, CR_IN_conv_grad_mean_rstd, CR_IN_conv_grad_mean_rstd);
    n = add_ids(ids, n, op->in, CR_IN_conv_grad_gamma, CR_IN_conv_grad_gamma);
    return add_ids(ids, n, op->out, CR_OUT_conv_grad_dw, CR_OUT_conv_grad_grad_coeffs);
}

static void each_filter(const struct cr_op *op, void (*f)(void *arg, int tensor), void *arg) {
    const int ids[] = {op->in[CR_IN_conv_grad_x], op->in[CR_IN_conv_grad_scale_bias], op->workspace,
                       op->out[CR_OUT_conv_grad_dw]};
    for (int k = 0; k < (int)CR_COUNT(ids); k++)
        if (ids[k] >= 0) f(arg, ids[k]);
}

void cr_op_each_left(const struct cr_program *p, int i, void (*f)(void *arg, int tensor), void *arg) {
    int       ids[CR_OP_IDS_MAX];
    const int before = cr_op_before(p, i);
    if (before < 0 || !cr_op_finishes_later(&p->op[before])) return;
    const int shortcut = cr_op_shortcut(p, before);
    for (int n = cr_op_finish_ids(&p->op[before], ids); n > 0; n--) f(arg, ids[n - 1]);
    if (p->op[before].kind == CR_OP_bn_apply) cr_op_each_left(p, before, f, arg);
    if (shortcut >= 0 && cr_op_finishes_later(&p->op[shortcut]))
        for (int n = cr_op_finish_ids(&p->op[shortcut], ids); n > 0; n--) f(arg, ids[n - 1]);
    if (p->op[i].kind != CR_OP_conv_grad || p->op[i].attr.conv.filter_later) return;
    for (int k = before; k >= 0 && p->op[k].attr.conv.filter_later; k = cr_op_before(p, k))
        each_filter(&p->op[k], f, arg);
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

bool cr_op_has_types(const struct cr_program *p, const struct cr_op *op, unsigned dtypes) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    int                      data = -1;
    for (int s = 0; s < info->ins; s++)
        if (!slot_fits(p, op->in[s], info->in_type[s], dtypes, &data)) return false;
    for (int s = 0; s < info->outs; s++)
        if (!slot_fits(p, op->out[s], info->out_type[s], dtypes, &data)) return false;
    return true;
}
