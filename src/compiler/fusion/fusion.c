/* compiler/fusion/fusion.c: helpers of fusion patterns: find a tensor's writer, check for a kernel, replace ops. */
#include "compiler/fusion/fusion.h"

#include <stdio.h>

bool cr_fuse_accepted(const struct cr_edit *edit, const struct cr_op *op) {
    return cr_accepts(edit->cost_model, edit->program, op);
}

double cr_fuse_seconds(struct cr_edit *edit, const struct cr_op *op) {
    const struct cr_cost_model *model   = edit->cost_model;
    double                      seconds = cr_op_seconds(model, edit->program, op);
    if (model->cost && edit->failure == CR_OK) edit->failure = model->cost(model->self, edit->program, op, &seconds);
    return seconds;
}

const struct cr_op *cr_fuse_op(const struct cr_edit *edit, int index) {
    return &edit->program->op[index];
}

bool cr_fuse_same_stream(const struct cr_edit *edit, int a, int b) {
    return cr_fuse_op(edit, a)->stream == cr_fuse_op(edit, b)->stream;
}

int cr_fuse_writer(const struct cr_edit *edit, int tensor, enum cr_op_kind kind) {
    if (tensor < 0 || edit->program->tensor[tensor].region != CR_REGION_POOL || edit->writes[tensor] != 1)
        return CR_NONE;
    int writer = edit->writer[tensor];
    return writer != CR_NONE && cr_fuse_op(edit, writer)->kind == kind ? writer : CR_NONE;
}

int cr_fuse_before(const struct cr_edit *edit, int tensor, enum cr_op_kind kind, int root) {
    const int op = cr_edit_private_writer(edit, tensor, kind);
    return op != CR_NONE && cr_fuse_same_stream(edit, op, root) && cr_edit_can_move(edit, op, root) ? op : CR_NONE;
}

bool cr_fuse_bn_grad(const struct cr_edit *edit, int root, int dy, int *sums, int *apply) {
    if (!cr_edit_is_inner(edit, dy, 2)) return false;
    *sums  = cr_edit_next_reader(edit, dy, root);
    *apply = *sums == CR_NONE ? CR_NONE : cr_edit_next_reader(edit, dy, *sums);
    if (*apply == CR_NONE) return false;
    const struct cr_op *s = cr_fuse_op(edit, *sums), *a = cr_fuse_op(edit, *apply);
    return s->kind == CR_OP_bn_grad_sums && a->kind == CR_OP_bn_grad_apply && s->in[CR_IN_bn_grad_sums_dy] == dy &&
           a->in[CR_IN_bn_grad_apply_dy] == dy && s->in[CR_IN_bn_grad_sums_x] == a->in[CR_IN_bn_grad_apply_x] &&
           cr_fuse_same_stream(edit, root, *sums) && cr_fuse_same_stream(edit, root, *apply) &&
           cr_edit_can_move(edit, root, *apply);
}

bool cr_fuse_parts(struct cr_edit *edit, const struct cr_op *fused, const int *part, int count, int root) {
    double apart_s = 0;
    if (!cr_fuse_accepted(edit, fused)) return false;
    for (int i = 0; i < count; i++) apart_s += cr_fuse_seconds(edit, cr_fuse_op(edit, part[i]));
    if (cr_fuse_seconds(edit, fused) > apart_s * (1 + 1e-9) || edit->failure != CR_OK) return false;
    for (int i = 0; i < count; i++)
        if (part[i] != root) cr_edit_remove(edit, part[i]);
    cr_edit_replace(edit, root, fused);
    return true;
}

bool cr_fuse_replace(struct cr_edit *edit, int root, const struct cr_op *fused, int first, int second) {
    if (!cr_fuse_accepted(edit, fused)) return false;
    if (first != CR_NONE) cr_edit_remove(edit, first);
    if (second != CR_NONE) cr_edit_remove(edit, second);
    cr_edit_replace(edit, root, fused);
    return true;
}

void cr_fuse_patterns(struct cr_edit *edit, const struct cr_pattern *patterns, size_t count) {
    for (size_t k = 0; k < count; k++)
        for (int i = 0; i < edit->program->ops; i++)
            if (!edit->removed[i] && cr_fuse_op(edit, i)->kind == patterns[k].root) patterns[k].fuse(edit, i);
}

cr_status cr_fuse_pass(struct cr_program *program, const struct cr_cost_model *cost_model,
                       const struct cr_pattern *patterns, size_t count) {
    struct cr_edit edit;
    CR_TRY(cr_edit_open(&edit, program, cost_model));
    cr_fuse_patterns(&edit, patterns, count);
    const cr_status status = cr_edit_finish(&edit);
    cr_edit_close(&edit);
    return status;
}

bool cr_fuse_is_stem_pool(const struct cr_op *pool) {
    return pool->attr.conv.window == 3 && pool->attr.conv.stride == 2 && pool->attr.conv.pad == 1 &&
           cr_op_uses_only(pool, 1u << CR_IN_maxpool_x, 1u << CR_OUT_maxpool_y);
}

int cr_fuse_output(struct cr_edit *edit, const struct cr_op *op, int slot, int like, const char *suffix) {
    enum cr_dtype dtype;
    int64_t       dim[4];
    char          name[256];
    cr_op_infer(edit->program, op, slot, &dtype, dim);
    snprintf(name, sizeof name, "%s.%s", edit->program->tensor[like].name, suffix);
    return cr_edit_tensor(edit, name, dtype, dim);
}
