/* compiler/rewrite/explain.c: writes ops and their kernels as JSON, for `plan --choices`. */
#include "compiler/rewrite/explain.h"

#include <math.h>

static void add_slots(struct cr_json_writer *w, const struct cr_program *p, const char *const *name, const int *id,
                      int count) {
    for (int s = 0; s < count; s++) {
        if (id[s] < 0) continue;
        const struct cr_tensor *t = &p->tensor[id[s]];
        cr_json_open_array(w, name[s]);
        for (int d = 0; d < 4; d++) cr_json_put_int(w, NULL, t->dim[d]);
        cr_json_close_array(w);
    }
}

cr_status cr_choices_add_selection(struct cr_choices *choices, const struct cr_cost_model *cost_model,
                                   const struct cr_program *p, const struct cr_op *op) {
    struct cr_selection    selection = {0};
    struct cr_json_writer *w         = &choices->writer;
    if (cost_model->explain) CR_TRY(cost_model->explain(cost_model->self, p, op, &selection));
    cr_json_put_string(w, "kernel", selection.kernel);
    if (selection.kernel)
        cr_json_put_int(w, "algo", selection.algo);
    else
        cr_json_put_null(w, "algo");
    cr_json_put_fixed(w, "us", selection.kernel ? 1e6 * selection.seconds : NAN, 4);
    cr_json_put_string(w, "source", selection.kernel ? selection.source : NULL);
    return CR_OK;
}

cr_status cr_choices_begin(struct cr_choices *choices, const struct cr_cost_model *cost_model,
                           const struct cr_program *p, const struct cr_op *op, const char *choice) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    struct cr_json_writer   *w    = &choices->writer;
    *w                            = cr_json_writer(choices->text, CR_JSON_SPACED);
    cr_json_open_object(w, NULL);
    cr_json_put_string(w, "choice", choice);
    cr_json_put_string(w, "layer", op->layer >= 0 ? p->layer[op->layer] : "");
    cr_json_put_string(w, "kind", info->name);
    cr_json_put_string(w, "type", cr_dtype_name(p->real));
    cr_json_put_int(w, "stride", op->attr.conv.stride);
    cr_json_put_int(w, "pad", op->attr.conv.pad);
    cr_json_open_object(w, "shape");
    add_slots(w, p, info->in_name, op->in, info->ins);
    add_slots(w, p, info->out_name, op->out, info->outs);
    cr_json_close_object(w);
    return cr_choices_add_selection(choices, cost_model, p, op);
}

void cr_choices_end(struct cr_choices *choices) {
    cr_json_close_object(&choices->writer);
    cr_json_end_line(&choices->writer);
}
