/* cli/budget/parts.c: the cost of a fused op at widths for which it has no kernel, or where its parts are faster. The
 * compiler fuses these ops for some widths only (compiler/fusion/conv_pairs.c, conv_pool.c), so at other widths the
 * program has the parts. See cli/budget/budget.h. */
#include "cli/budget/budget.h"

enum { PARTS_MAX = 4 };

/* The slots that split_first uses for both kinds. */
_Static_assert((int)CR_IN_conv_pair_x == (int)CR_IN_qconv_pair_x && (int)CR_IN_conv_x == (int)CR_IN_qconv_x &&
                   (int)CR_IN_conv_w == (int)CR_IN_qconv_w && (int)CR_OUT_conv_y == (int)CR_OUT_qconv_y,
               "slots of floating-point and 8-bit convolutions");

/* A convolution as the layers emit it, with ReLU. */
static struct cr_op conv_op(enum cr_op_kind kind, int layer, const struct cr_program *p, int w, int stride, int pad) {
    struct cr_op op = cr_op_make(kind, layer);
    op.attr.conv =
        (struct cr_conv_attr){.stride = stride, .pad = pad, .window = (int)p->tensor[w].dim[1], .relu = true};
    return op;
}

/* The 3x3 convolution `w` in front of a pair. Adds a tensor between them, which the pair's first convolution reads. The
 * slots of x, w and y are those of conv. */
static void split_first(struct cr_program *p, const struct cr_op *op, int w, struct cr_op *first, struct cr_op *next) {
    const struct cr_tensor x = p->tensor[op->in[CR_IN_conv_pair_x]];
    const int              t =
        cr_tensor_add(p, "convolved", x.dtype, CR_REGION_POOL, x.dim[0], x.dim[1], x.dim[2], p->tensor[w].dim[0]);
    *first                    = conv_op(next->kind, op->layer, p, w, 1, 1);
    first->in[CR_IN_conv_x]   = op->in[CR_IN_conv_pair_x];
    first->in[CR_IN_conv_w]   = w;
    first->out[CR_OUT_conv_y] = t;
    next->in[CR_IN_conv_x]    = t;
}

/* The convolution in the place of the pair's summand. Adds a tensor for its result. */
static void split_shortcut(struct cr_program *p, const struct cr_op *op, struct cr_op *shortcut, struct cr_op *pair) {
    const int              w = op->in[CR_IN_conv_pair_shortcut_w];
    const struct cr_tensor y = p->tensor[op->out[CR_OUT_conv_pair_y]];
    const int t = cr_tensor_add(p, "shortcut", y.dtype, CR_REGION_POOL, y.dim[0], y.dim[1], y.dim[2], y.dim[3]);
    *shortcut   = conv_op(CR_OP_conv, op->layer, p, w, 1, 0);
    shortcut->attr.conv.relu      = false;
    shortcut->in[CR_IN_conv_x]    = op->in[CR_IN_conv_pair_shortcut_x];
    shortcut->in[CR_IN_conv_w]    = w;
    shortcut->in[CR_IN_conv_bias] = op->in[CR_IN_conv_pair_shortcut_bias];
    shortcut->out[CR_OUT_conv_y]  = t;
    pair->in[CR_IN_conv_add]      = t;
}

static int split_conv_pair(struct cr_program *p, const struct cr_op *op, struct cr_op part[PARTS_MAX]) {
    const int w = op->in[CR_IN_conv_pair_w], next = op->in[CR_IN_conv_pair_next_w];
    part[0]                     = conv_op(CR_OP_conv, op->layer, p, w, 1, 0);
    part[0].in[CR_IN_conv_x]    = op->in[CR_IN_conv_pair_x];
    part[0].in[CR_IN_conv_w]    = w;
    part[0].in[CR_IN_conv_bias] = op->in[CR_IN_conv_pair_bias];
    part[0].in[CR_IN_conv_add]  = op->in[CR_IN_conv_pair_add];
    part[0].out[CR_OUT_conv_y]  = op->out[CR_OUT_conv_pair_y];
    part[1]                     = conv_op(CR_OP_conv, op->layer, p, next, 1, 0);
    part[1].in[CR_IN_conv_x]    = op->out[CR_OUT_conv_pair_y];
    part[1].in[CR_IN_conv_w]    = next;
    part[1].in[CR_IN_conv_bias] = op->in[CR_IN_conv_pair_next_bias];
    part[1].out[CR_OUT_conv_y]  = op->out[CR_OUT_conv_pair_z];
    int parts                   = 2;
    if (op->in[CR_IN_conv_pair_shortcut_w] >= 0) split_shortcut(p, op, &part[parts++], &part[0]);
    if (op->in[CR_IN_conv_pair_first_w] < 0) return parts;
    split_first(p, op, op->in[CR_IN_conv_pair_first_w], &part[parts], &part[0]);
    part[parts].in[CR_IN_conv_bias] = op->in[CR_IN_conv_pair_first_bias];
    return parts + 1;
}

static int split_qconv_pair(struct cr_program *p, const struct cr_op *op, struct cr_op part[PARTS_MAX]) {
    const int w = op->in[CR_IN_qconv_pair_w], next = op->in[CR_IN_qconv_pair_next_w];
    part[0]                        = conv_op(CR_OP_qconv, op->layer, p, w, 1, 0);
    part[0].in[CR_IN_qconv_x]      = op->in[CR_IN_qconv_pair_x];
    part[0].in[CR_IN_qconv_w]      = w;
    part[0].in[CR_IN_qconv_coeffs] = op->in[CR_IN_qconv_pair_coeffs];
    part[0].in[CR_IN_qconv_add]    = op->in[CR_IN_qconv_pair_add];
    part[0].in[CR_IN_qconv_packed] = op->in[CR_IN_qconv_pair_packed];
    part[0].out[CR_OUT_qconv_y]    = op->out[CR_OUT_qconv_pair_y];
    part[1]                        = conv_op(CR_OP_qconv, op->layer, p, next, 1, 0);
    part[1].in[CR_IN_qconv_x]      = op->out[CR_OUT_qconv_pair_y];
    part[1].in[CR_IN_qconv_w]      = next;
    part[1].in[CR_IN_qconv_coeffs] = op->in[CR_IN_qconv_pair_next_coeffs];
    part[1].in[CR_IN_qconv_packed] = op->in[CR_IN_qconv_pair_next_packed];
    part[1].out[CR_OUT_qconv_y]    = op->out[CR_OUT_qconv_pair_z];
    if (op->in[CR_IN_qconv_pair_first_w] < 0) return 2;
    split_first(p, op, op->in[CR_IN_qconv_pair_first_w], &part[2], &part[0]);
    part[2].in[CR_IN_qconv_coeffs] = op->in[CR_IN_qconv_pair_first_coeffs];
    part[2].in[CR_IN_qconv_packed] = op->in[CR_IN_qconv_pair_first_packed];
    return 3;
}

/* Adds a tensor between convolution and pooling. */
static int split_conv_pool(struct cr_program *p, const struct cr_op *op, struct cr_op part[PARTS_MAX]) {
    const int              w = op->in[CR_IN_conv_pool_w], stride = op->attr.conv.stride, pad = op->attr.conv.pad;
    const struct cr_tensor filter = p->tensor[w], x = p->tensor[op->in[CR_IN_conv_pool_x]];
    const int64_t          P = (x.dim[1] + 2 * pad - filter.dim[1]) / stride + 1;
    const int64_t          Q = (x.dim[2] + 2 * pad - filter.dim[2]) / stride + 1;
    const int t = cr_tensor_add(p, "convolved", p->tensor[op->out[CR_OUT_conv_pool_y]].dtype, CR_REGION_POOL, x.dim[0],
                                P, Q, filter.dim[0]);
    part[0]     = conv_op(CR_OP_conv, op->layer, p, w, stride, pad);
    part[0].in[CR_IN_conv_x]      = op->in[CR_IN_conv_pool_x];
    part[0].in[CR_IN_conv_w]      = w;
    part[0].in[CR_IN_conv_bias]   = op->in[CR_IN_conv_pool_bias];
    part[0].out[CR_OUT_conv_y]    = t;
    part[1]                       = cr_op_make(CR_OP_maxpool, op->layer);
    part[1].attr.conv             = (struct cr_conv_attr){.stride = 2, .pad = 1, .window = 3};
    part[1].in[CR_IN_maxpool_x]   = t;
    part[1].out[CR_OUT_maxpool_y] = op->out[CR_OUT_conv_pool_y];
    return 2;
}

static int split(struct cr_program *p, const struct cr_op *op, struct cr_op part[PARTS_MAX]) {
    switch (op->kind) {
    case CR_OP_conv_pair: return split_conv_pair(p, op, part);
    case CR_OP_qconv_pair: return split_qconv_pair(p, op, part);
    case CR_OP_conv_pool: return split_conv_pool(p, op, part);
    default: return 0;
    }
}

/* Bytes of the packed filter of an 8-bit convolution; 0: the device's kernel reads the filter itself. */
static int64_t packed_bytes(const struct cr_program *p, const struct cr_cost_model *model, const struct cr_op *op) {
    return model->device.packed_elems ? model->device.packed_elems(model->device.self, p, op) : 0;
}

static void resize_one(struct cr_program *p, const struct cr_cost_model *model, const struct cr_op *op) {
    const int packed = op->in[CR_IN_qconv_packed];
    if (packed < 0 || packed_bytes(p, model, op) <= 0) return;
    p->tensor[packed].dim[3] = packed_bytes(p, model, op);
    p->tensor[packed].bytes  = (size_t)p->tensor[packed].dim[3];
}

void cr_budget_resize_packed(struct cr_program *p, const struct cr_cost_model *model, const struct cr_op *op) {
    struct cr_op part[PARTS_MAX];
    if (op->kind == CR_OP_qconv) resize_one(p, model, op);
    if (op->kind != CR_OP_qconv_pair) return;
    const int parts = split(p, op, part);
    for (int i = 0; i < parts; i++) resize_one(p, model, &part[i]);
}

cr_status cr_budget_parts_cost(struct cr_budget_clock *clock, struct cr_program *p, const struct cr_op *op,
                               double *cost, bool *known) {
    const int    tensors = p->tensors;
    struct cr_op part[PARTS_MAX];
    const int    parts  = split(p, op, part);
    cr_status    status = p->failed ? CR_NO_MEMORY(256) : CR_OK;
    *cost               = 0;
    *known              = parts > 0;
    for (int i = 0; i < parts && *known && status == CR_OK; i++) {
        double one;
        if (part[i].kind == CR_OP_qconv && packed_bytes(p, &clock->model, &part[i]) <= 0)
            part[i].in[CR_IN_qconv_packed] = CR_NONE;
        status = cr_budget_op_cost(clock, p, &part[i], &one, known);
        *cost += one;
    }
    p->tensors = tensors;
    return status;
}
