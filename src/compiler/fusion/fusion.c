/* compiler/fusion/fusion.c: helpers that all fusion patterns share. See compiler/fusion/fusion.h. */
#include "compiler/fusion/fusion.h"

#include <stdio.h>

bool cr_fuse_accepted(const struct cr_edit *edit, const struct cr_cost_model *cost_model, const struct cr_op *op) {
    return !cost_model->accepts || cost_model->accepts(cost_model->self, edit->program, op);
}

double cr_fuse_seconds(struct cr_edit *edit, const struct cr_cost_model *cost_model, const struct cr_op *op) {
    double seconds = cr_op_seconds(cost_model, edit->program, op);
    if (cost_model->cost && edit->failure == CR_OK)
        edit->failure = cost_model->cost(cost_model->self, edit->program, op, &seconds);
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

int cr_fuse_output(struct cr_edit *edit, const struct cr_op *op, int slot, int like, const char *suffix) {
    enum cr_dtype dtype;
    int64_t       dim[4];
    char          name[256];
    cr_op_infer(edit->program, op, slot, &dtype, dim);
    snprintf(name, sizeof name, "%s.%s", edit->program->tensor[like].name, suffix);
    return cr_edit_tensor(edit, name, dtype, dim);
}
