/* compiler/fusion/sparsify_report.c: prints which sparse kernel cr_pass_sparsify chose for each op, as a table. */
#include "compiler/fusion/sparsify.h"

static const char *prune_reason(const struct cr_sparse_cost *c) {
    return c->unpromising ? "skipped: total gain too small" : "pruned by estimate";
}

/* Appends such as "format 18, mma_sp 1x3, best of 26; 19 pruned by estimate". */
static void print_format(const struct cr_program *p, const struct cr_cost_model *cost_model,
                         const struct cr_sparse_cost *c, struct cr_text *out) {
    struct cr_text name = {0};
    if (cost_model->device.algo_name) cost_model->device.algo_name(cost_model->device.self, p, &c->op, &name);
    cr_text_add(out, "format %d%s%s, best of %d", cr_sparse_format_number(c->op.attr.conv.pattern.format),
                name.data ? ", " : "", name.data ? name.data : "", c->formats);
    if (c->pruned) cr_text_add(out, "; %d %s", c->pruned, prune_reason(c));
    cr_text_free(&name);
}

void cr_sparsify_report_op(const struct cr_program *p, const struct cr_cost_model *cost_model,
                           const struct cr_sparse_cost *c, bool chosen, struct cr_text *out) {
    const char *name = c->op.layer >= 0 ? p->layer[c->op.layer] : "?";
    if (cr_program_trains(p)) cr_text_add(out, "%-11s ", cr_op_info(c->op.kind)->name);
    cr_text_add(out, "%-28s nonzero %6.2f %%  %s", name, 100 * c->density, chosen ? "sparse" : "dense ");
    if (c->density > CR_SPARSE_DENSITY_MAX)
        cr_text_add(out, "  density too high\n");
    else if (!cost_model->cost && chosen)
        cr_text_add(out, "  format 0; at most %.0f %% nonzeros\n", 100 * cost_model->sparse_density_max);
    else if (!cost_model->cost && cost_model->sparse_density_max > 0)
        cr_text_add(out, "  this device has sparse kernels for filters larger than 1x1 with at most %.0f %% nonzeros\n",
                    100 * cost_model->sparse_density_max);
    else if (!cost_model->cost)
        cr_text_add(out, "  no times are measured\n");
    else if (!c->formats && c->pruned)
        cr_text_add(out, "  dense %9.2f us; %d sparse formats, all %s\n", 1e6 * c->dense_s, c->pruned, prune_reason(c));
    else if (!c->formats)
        cr_text_add(out, "  %9.2f us; no sparse kernel supports it\n", 1e6 * c->dense_s);
    else {
        cr_text_add(out, "  dense %9.2f us, sparse %9.2f us (", 1e6 * c->dense_s, 1e6 * c->sparse_s);
        print_format(p, cost_model, c, out);
        cr_text_add(out, ")\n");
    }
}

void cr_sparsify_report_estimates(const struct cr_sparse_gain *estimates, struct cr_text *out) {
    cr_text_add(out, "sparse kernels: estimated total gain %.1f %%, below the minimum of %.0f %%; not measured\n",
                100 * (1 - estimates->sparse_s / estimates->dense_s), 100 * CR_SPARSE_GAIN_MIN);
}

void cr_sparsify_report_gain(const struct cr_sparse_gain *gain, bool enough, struct cr_text *out) {
    if (enough)
        cr_text_add(out, "total: %.2f us instead of %.2f us\n", 1e6 * gain->sparse_s, 1e6 * gain->dense_s);
    else
        cr_text_add(out, "total gain %.1f %%, below the minimum of %.0f %%: all convolutions stay dense\n",
                    100 * (1 - gain->sparse_s / gain->dense_s), 100 * CR_SPARSE_GAIN_MIN);
}
