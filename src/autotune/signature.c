/* autotune/signature.c: the signature of an op, the key of its kernel times: device options, op kind, the attributes
 * that graph/ops.def marks with KEY, types and shapes of the slots. See cr_cost_signature in
 * autotune/cost_table_internal.h. */
#include "autotune/cost_table_internal.h"

static void add_slot(struct cr_text *out, const struct cr_program *p, const struct cr_op *op, const char *name,
                     int id) {
    if (id < 0) return;
    cr_text_add(out, " %s", name);
    if (op->kind == CR_OP_conv && name == cr_op_info(op->kind)->in_name[CR_IN_conv_packed])
        return; /* its length follows from the pattern, whose density is in the signature */
    cr_text_add(out, "=");
    cr_tensor_add_shape(&p->tensor[id], out);
}

/* The density has two digits, so that a network with a similar pattern uses the same times. */
static void add_pattern(struct cr_text *out, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_sparsity_attr *a   = &op->attr.conv.pattern;
    const double                   all = a->nnz ? (double)p->store->param[a->param].elems : 0;
    if (!a->nnz) return;
    cr_text_add(out, " nnz%.2g format%d", (double)a->nnz / all, cr_sparse_format_number(a->format));
    /* Stored weights as a fraction of all: some weight formats store whole blocks. */
    const int packed = op->kind == CR_OP_conv            ? op->in[CR_IN_conv_packed]
                       : op->kind == CR_OP_sparse_filter ? op->out[CR_OUT_sparse_filter_y]
                                                         : CR_NONE;
    if (packed >= 0) cr_text_add(out, " stored%.2g", (double)p->tensor[packed].dim[3] / all);
}

static void add_attributes(struct cr_text *out, const struct cr_program *p, const struct cr_op *op) {
    switch (op->kind) {
#define OP(kind, what) case CR_OP_##kind:
#define KEY(kind, member, format) cr_text_add(out, " " format, op->attr.member);
#define KEY_FLAG(kind, member, word) cr_text_add(out, "%s", op->attr.member ? " " word : "");
#define KEY_PATTERN(kind) add_pattern(out, p, op);
#define END(kind) break;
#include "graph/ops.def"
    case CR_OP_COUNT: break;
    }
}

/* The signature begins with the device options that change which kernels exist. */
cr_status cr_cost_signature(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                            struct cr_text *out) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    cr_text_add(out, "%s%s%s%s", device->options.deterministic ? "" : "any ", device->options.tf32 ? "tf32 " : "",
                device->options.bf16 && device->caps.bf16_products ? "bf16 " : "", info->name);
    add_attributes(out, p, op);
    for (int s = 0; s < info->ins; s++) add_slot(out, p, op, info->in_name[s], op->in[s]);
    cr_text_add(out, " ->");
    for (int s = 0; s < info->outs; s++) add_slot(out, p, op, info->out_name[s], op->out[s]);
    return out->failed ? CR_NO_MEMORY(256) : CR_OK;
}
