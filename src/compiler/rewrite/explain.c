/* compiler/rewrite/explain.c: writes ops and their kernels as JSON, for `plan --choices`. */
#include "compiler/rewrite/explain.h"

static void add_slots(struct cr_text *out, const struct cr_program *p, const char *const *name, const int *id,
                      int count, bool *has_slots) {
    for (int s = 0; s < count; s++) {
        if (id[s] < 0) continue;
        const struct cr_tensor *t = &p->tensor[id[s]];
        cr_text_add(out, "%s\"%s\": [%lld, %lld, %lld, %lld]", *has_slots ? ", " : "", name[s], (long long)t->dim[0],
                    (long long)t->dim[1], (long long)t->dim[2], (long long)t->dim[3]);
        *has_slots = true;
    }
}

cr_status cr_choices_add_selection(struct cr_choices *choices, const struct cr_cost_model *cost_model,
                                   const struct cr_program *p, const struct cr_op *op) {
    struct cr_selection selection = {0};
    if (cost_model->explain) CR_TRY(cost_model->explain(cost_model->self, p, op, &selection));
    if (selection.kernel)
        cr_text_add(choices->text, "\"kernel\": \"%s\", \"algo\": %d, \"us\": %.4f, \"source\": \"%s\"",
                    selection.kernel, selection.algo, 1e6 * selection.seconds, selection.source);
    else
        cr_text_add(choices->text, "\"kernel\": null, \"algo\": null, \"us\": null, \"source\": null");
    return CR_OK;
}

cr_status cr_choices_begin(struct cr_choices *choices, const struct cr_cost_model *cost_model,
                           const struct cr_program *p, const struct cr_op *op, const char *choice) {
    const struct cr_op_info *info      = cr_op_info(op->kind);
    struct cr_text          *out       = choices->text;
    bool                     has_slots = false;
    cr_text_add(out, "{\"choice\": \"%s\", \"layer\": ", choice);
    cr_text_add_json(out, op->layer >= 0 ? p->layer[op->layer] : "");
    cr_text_add(out, ", \"kind\": \"%s\", \"type\": \"%s\", \"stride\": %d, \"pad\": %d, \"shape\": {", info->name,
                cr_dtype_name(p->real), op->attr.conv.stride, op->attr.conv.pad);
    add_slots(out, p, info->in_name, op->in, info->ins, &has_slots);
    add_slots(out, p, info->out_name, op->out, info->outs, &has_slots);
    cr_text_add(out, "}, ");
    return cr_choices_add_selection(choices, cost_model, p, op);
}
