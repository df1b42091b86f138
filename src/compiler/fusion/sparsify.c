/* compiler/fusion/sparsify.c: convolutions whose filters are mostly pruned skip what is pruned, where a kernel that
 * does so is faster.
 *
 *     conv (w)     becomes     sparse_filter (w -> kept); conv (w, kept), with a pattern and a layout
 *
 * Each layout that the device has for such a convolution (kernel and form of the kept weights) is priced like any other
 * op, and so is the dense convolution: a sparse network is never slower than the same one with zeros. A layout that
 * arithmetic foresees to take more than CR_ESTIMATE_MARGIN times the best that is known, dense or sparse, is neither
 * cut nor measured. Where no times are measured a device names the share of kept weights that pays. sparse_filter
 * depends on parameters only: cr_pass_hoist brings it to the front.
 *
 * What a whole program gains can be less than the sum over its layers, in caches and in power: where that sum promises
 * less than CR_SPARSE_GAIN_MIN of the convolutions' time, all stay dense. In 16 bits, where dense kernels seldom lose,
 * layouts with a forecast are not even measured where forecasts promise no more: sparse tensor cores that ran once cost
 * power ever after (cr_cost_table_has_lasting_effect).
 *
 * In a program that trains the values change with every step: there convolutions and both of their gradients get the
 * pattern alone, and their rows gather the values as part of the op, at its price. */
#include "compiler/rewrite/explain.h"

#include <stdio.h>

/* Above this share of kept weights no row here has ever won. */
static const double share_most = 0.7;

/* ---- what is pruned ---- */

static int64_t count_kept(const struct cr_param_store *store, const struct cr_param *q) {
    int64_t kept = 0;
    for (int64_t i = q->offset; i < q->offset + q->elems; i++) kept += store->pattern[i / 8] >> (i % 8) & 1;
    return kept;
}

/* The parameter whose pattern a filter has: its own, or that of the filter that BN was folded into. */
static int param_of(const struct cr_program *p, int w) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_fold_bn && p->op[i].out[CR_OUT_fold_bn_y] == w) w = p->op[i].in[CR_IN_fold_bn_w];
    return p->tensor[w].region == CR_REGION_STORE ? cr_param_store_find_offset(p->store, p->tensor[w].offset) : CR_NONE;
}

/* The filter, or its gradient; CR_NONE: no op that may get a pattern. */
static int filter_of(const struct cr_op *op) {
    switch (op->kind) {
    case CR_OP_conv: return op->in[CR_IN_conv_w];
    case CR_OP_conv_dgrad: return op->in[CR_IN_conv_dgrad_w];
    case CR_OP_conv_wgrad: return op->out[CR_OUT_conv_wgrad_dw];
    default: return CR_NONE;
    }
}

static bool find_pattern(const struct cr_program *p, struct cr_sparse_cost *c) {
    struct cr_op *op    = &c->op;
    const int     param = param_of(p, filter_of(op));
    if (param == CR_NONE) return false;
    const struct cr_param *q = &p->store->param[param];
    op->attr.conv.pattern    = (struct cr_pattern_attr){.nnz = count_kept(p->store, q), .param = param};
    c->density               = (double)op->attr.conv.pattern.nnz / (double)q->elems;
    return c->density > 0 && c->density < 1;
}

/* ---- prices ---- */

static bool accepted(const struct cr_program *p, const struct cr_cost_model *target, const struct cr_op *op) {
    return !target->accepts || target->accepts(target->self, p, op);
}

static void set_kept(struct cr_program *p, const struct cr_op *op, int64_t elems) {
    struct cr_tensor *kept = &p->tensor[op->in[CR_IN_conv_packed]];
    kept->dim[3]           = elems;
    kept->bytes            = (size_t)elems * cr_dtype_bytes(kept->dtype);
}

/* Gives the kept weights the length that the op's layout wants; false: it is none for this convolution. */
static bool fit_layout(struct cr_program *p, const struct cr_cost_model *target, const struct cr_op *op) {
    const int64_t elems = target->packed_elems ? target->packed_elems(target->self, p, op) : 0;
    set_kept(p, op, elems);
    return elems > 0 && accepted(p, target, op);
}

/* Without measured times: the device's own word. */
static bool is_worth_by_share(const struct cr_program *p, const struct cr_cost_model *target,
                              const struct cr_sparse_cost *c) {
    const struct cr_tensor *w = &p->tensor[filter_of(&c->op)];
    return w->dim[1] * w->dim[2] > 1 && c->density <= target->sparse_density_max;
}

static bool has_kept(const struct cr_op *op) {
    return op->kind == CR_OP_conv && op->in[CR_IN_conv_packed] >= 0;
}

static bool fits(struct cr_program *p, const struct cr_cost_model *target, const struct cr_op *op) {
    return has_kept(op) ? fit_layout(p, target, op) : accepted(p, target, op);
}
static int64_t elems_of(const struct cr_program *p, const struct cr_op *op) {
    return has_kept(op) ? p->tensor[op->in[CR_IN_conv_packed]].dim[3] : 0;
}

/* A layout to be asked for. */
struct trial {
    int    layout;
    double foreseen; /* seconds; 0: unknown */
};

/* All layouts, those that are foreseen to be quick first, so that what is measured soon leaves the others behind; as
 * numbered where nothing is foreseen. */
static void order_trials(const struct cr_program *p, const struct cr_cost_model *target, struct cr_op op,
                         struct trial trial[CR_FORMATS_MAX]) {
    for (int layout = 0; layout < CR_FORMATS_MAX; layout++) {
        op.attr.conv.pattern.format = layout;
        const struct trial t        = {.layout   = layout,
                                       .foreseen = target->estimate ? target->estimate(target->self, p, &op) : 0};
        int                at       = layout;
        for (; at > 0 && trial[at - 1].foreseen > t.foreseen; at--) trial[at] = trial[at - 1];
        trial[at] = t;
    }
}

/* Is it the better one of two of the same time as well? The choice must not hang on the order in which they were asked
 * for. */
static bool is_better(double seconds, int layout, const struct cr_sparse_cost *c) {
    const int held = c->op.attr.conv.pattern.format;
    return !c->formats || seconds < c->sparse_s || (seconds <= c->sparse_s && layout < held);
}

static cr_status ask_all(struct cr_program *p, const struct cr_cost_model *target, struct cr_sparse_cost *c) {
    struct trial trial[CR_FORMATS_MAX];
    struct cr_op op = c->op;
    order_trials(p, target, op, trial);
    for (int i = 0; i < CR_FORMATS_MAX; i++) {
        const double least = c->formats && c->sparse_s < c->dense_s ? c->sparse_s : c->dense_s;
        double       seconds;
        op.attr.conv.pattern.format = trial[i].layout;
        if (trial[i].foreseen > CR_ESTIMATE_MARGIN * least || (c->unpromising && trial[i].foreseen > 0)) {
            c->pruned++;
            continue;
        }
        if (!fits(p, target, &op)) continue;
        CR_TRY(target->cost(target->self, p, &op, &seconds));
        if (is_better(seconds, trial[i].layout, c)) {
            c->sparse_s = seconds;
            c->op       = op;
            c->elems    = elems_of(p, &op);
        }
        c->formats++;
    }
    return CR_OK;
}

static cr_status ask(struct cr_program *p, const struct cr_cost_model *target, const struct cr_op *dense,
                     struct cr_sparse_cost *c) {
    struct cr_op trial = c->op;
    if (c->density > share_most) return CR_OK;
    if (!target->cost) {
        c->formats = is_worth_by_share(p, target, c) && fits(p, target, &trial);
        c->elems   = elems_of(p, &trial);
        return CR_OK;
    }
    CR_TRY(target->cost(target->self, p, dense, &c->dense_s));
    return ask_all(p, target, c);
}

/* The convolution with its pattern and a tensor for what is kept, if it `is` one that is pruned. */
static cr_status begin(struct cr_program *p, int conv, struct cr_sparse_cost *c, bool *is) {
    char name[256];
    *c  = (struct cr_sparse_cost){.op = p->op[conv]};
    *is = !cr_op_has_pattern(&c->op) && find_pattern(p, c);
    if (!*is) return CR_OK;
    snprintf(name, sizeof name, "%s.packed", p->tensor[c->op.out[CR_OUT_conv_y]].name);
    c->op.in[CR_IN_conv_packed] = cr_tensor_add(p, name, CR_F32, CR_REGION_POOL, 1, 1, 1, 1);
    return p->failed ? CR_NO_MEMORY(sizeof *p->tensor) : CR_OK;
}

static cr_status price(struct cr_program *p, const struct cr_cost_model *target, int conv, bool unpromising,
                       struct cr_sparse_cost *c) {
    const struct cr_op dense = p->op[conv];
    bool               is;
    CR_TRY(begin(p, conv, c, &is));
    c->unpromising = unpromising;
    return is ? ask(p, target, &dense, c) : CR_OK;
}

cr_status cr_sparsify_cost(struct cr_program *p, const struct cr_cost_model *target, int conv,
                           struct cr_sparse_cost *c) {
    return price(p, target, conv, false, c);
}

/* ---- the program ---- */

static cr_status insert(struct cr_program *p, int at, const struct cr_op *op) {
    cr_emit(p, op, NULL); /* at the end; the outputs are there */
    if (p->failed) return CR_NO_MEMORY(sizeof *p->op);
    const struct cr_op last = p->op[p->ops - 1];
    for (int i = p->ops - 1; i > at; i--) p->op[i] = p->op[i - 1];
    p->op[at] = last;
    return CR_OK;
}

static cr_status rewrite(struct cr_program *p, int conv, const struct cr_sparse_cost *c) {
    const struct cr_tensor *x      = &p->tensor[c->op.in[CR_IN_conv_x]];
    struct cr_op            filter = cr_op_make(CR_OP_sparse_filter, c->op.layer);
    set_kept(p, &c->op, c->elems);
    filter.attr.conv      = c->op.attr.conv;
    filter.attr.conv.relu = false;
    for (int i = 0; i < 3; i++) filter.attr.conv.pattern.image[i] = x->dim[i];
    filter.in[CR_IN_sparse_filter_w]   = c->op.in[CR_IN_conv_w];
    filter.out[CR_OUT_sparse_filter_y] = c->op.in[CR_IN_conv_packed];
    p->op[conv]                        = c->op;
    return insert(p, conv, &filter);
}

static const char *far_words(const struct cr_sparse_cost *c) {
    return c->unpromising ? "save too little" : "be far behind";
}

/* "layout 18, union 1x3, best of 26; 19 foreseen to be far behind". */
static void print_layout(const struct cr_program *p, const struct cr_cost_model *target, const struct cr_sparse_cost *c,
                         struct cr_text *out) {
    struct cr_text name = {0};
    if (target->algo_name) target->algo_name(target->self, p, &c->op, &name);
    cr_text_add(out, "layout %d%s%s, best of %d", c->op.attr.conv.pattern.format, name.data ? ", " : "",
                name.data ? name.data : "", c->formats);
    if (c->pruned) cr_text_add(out, "; %d foreseen to %s", c->pruned, far_words(c));
    cr_text_free(&name);
}

static void print(const struct cr_program *p, const struct cr_cost_model *target, const struct cr_sparse_cost *c,
                  bool taken, struct cr_text *out) {
    const char *name = c->op.layer >= 0 ? p->layer[c->op.layer] : "?";
    if (cr_program_trains(p)) cr_text_add(out, "%-11s ", cr_op_info(c->op.kind)->name);
    cr_text_add(out, "%-28s kept %6.2f %%  %s", name, 100 * c->density, taken ? "sparse" : "dense ");
    if (c->density > share_most)
        cr_text_add(out, "  too much is kept\n");
    else if (!target->cost && taken)
        cr_text_add(out, "  layout 0: it pays up to %.0f %% here\n", 100 * target->sparse_density_max);
    else if (!target->cost)
        cr_text_add(out, "  %s\n",
                    target->sparse_density_max > 0 ? "only larger filters that keep less pay here"
                                                   : "no times are measured");
    else if (!c->formats && c->pruned)
        cr_text_add(out, "  dense %9.2f us; %d sparse layouts, all foreseen to %s\n", 1e6 * c->dense_s, c->pruned,
                    far_words(c));
    else if (!c->formats)
        cr_text_add(out, "  %9.2f us; no sparse kernel takes it\n", 1e6 * c->dense_s);
    else {
        cr_text_add(out, "  dense %9.2f us, sparse %9.2f us (", 1e6 * c->dense_s, 1e6 * c->sparse_s);
        print_layout(p, target, c, out);
        cr_text_add(out, ")\n");
    }
}

/* `dense`: the op as it was. */
static cr_status tell(const struct cr_program *p, const struct cr_cost_model *target, const struct cr_op *dense,
                      const struct cr_sparse_cost *c, bool taken, struct cr_choices *report) {
    struct cr_text *out  = report->text;
    struct cr_text  name = {0};
    CR_TRY(cr_choices_begin(report, target, p, taken ? &c->op : dense, "pattern"));
    cr_text_add(out, ", \"kept\": %.6f, \"taken\": \"%s\"", c->density, taken ? "sparse" : "dense");
    if (target->cost && c->density <= share_most)
        cr_text_add(out, ", \"dense_us\": %.4f", 1e6 * c->dense_s);
    else
        cr_text_add(out, ", \"dense_us\": null");
    if (c->formats && target->cost)
        cr_text_add(out, ", \"sparse_us\": %.4f", 1e6 * c->sparse_s);
    else
        cr_text_add(out, ", \"sparse_us\": null");
    if (c->formats)
        cr_text_add(out, ", \"layout\": %d, \"layout_name\": ", c->op.attr.conv.pattern.format);
    else
        cr_text_add(out, ", \"layout\": null, \"layout_name\": ");
    if (c->formats && target->algo_name) target->algo_name(target->self, p, &c->op, &name);
    if (name.data)
        cr_text_add_json(out, name.data);
    else
        cr_text_add(out, "null");
    cr_text_add(out, ", \"layouts\": %d, \"hopeless\": %d}\n", c->formats, c->pruned);
    cr_text_free(&name);
    return CR_OK;
}

/* `dense`: the op as it was. */
static cr_status report_on(struct cr_program *p, const struct cr_cost_model *target, const struct cr_op *dense,
                           const struct cr_sparse_cost *c, bool taken, struct cr_choices *report) {
    if (!report) return CR_OK;
    report->sparse++;
    if (has_kept(&c->op) && c->formats)
        set_kept(p, &c->op, c->elems); /* of the layout that was found best, not of the last one asked for */
    if (report->json) return tell(p, target, dense, c, taken, report);
    print(p, target, c, taken, report->text);
    return CR_OK;
}

/* Seconds of the ops that were asked about: dense, and as they were taken; 0 where no times are measured. */
struct gain {
    double dense_s, sparse_s;
};

static bool choose(const struct cr_cost_model *target, const struct cr_sparse_cost *c, struct gain *gain) {
    const bool taken = c->formats && (!target->cost || c->sparse_s < c->dense_s);
    gain->dense_s += c->dense_s;
    gain->sparse_s += taken ? c->sparse_s : c->dense_s;
    return taken;
}

static cr_status sparsify(struct cr_program *p, const struct cr_cost_model *target, int *index, bool unpromising,
                          struct gain *gain, struct cr_choices *report) {
    const int             tensors = p->tensors;
    struct cr_sparse_cost c;
    CR_TRY(price(p, target, *index, unpromising, &c));
    const bool taken = choose(target, &c, gain);
    if (p->tensors > tensors) CR_TRY(report_on(p, target, &p->op[*index], &c, taken, report));
    if (taken) return rewrite(p, (*index)++, &c);
    p->tensors = tensors; /* the trial's */
    return CR_OK;
}

static bool is_enough(const struct gain *gain) {
    return gain->sparse_s <= (1 - CR_SPARSE_GAIN_MIN) * gain->dense_s;
}

/* What a convolution takes dense, and by the best forecast. */
static cr_status foresee_one(struct cr_program *p, const struct cr_cost_model *target, int conv, struct gain *gain) {
    const struct cr_op    dense = p->op[conv];
    struct cr_sparse_cost c;
    double                best;
    bool                  is;
    CR_TRY(begin(p, conv, &c, &is));
    if (!is || c.density > share_most) return CR_OK;
    CR_TRY(target->cost(target->self, p, &dense, &best));
    gain->dense_s += best;
    for (int layout = 0; layout < CR_FORMATS_MAX; layout++) {
        c.op.attr.conv.pattern.format = layout;
        const double foreseen         = target->estimate(target->self, p, &c.op);
        if (foreseen > 0 && foreseen < best) best = foreseen;
    }
    gain->sparse_s += best;
    return CR_OK;
}

static cr_status foresee_all(struct cr_program *p, const struct cr_cost_model *target, struct gain *gain) {
    const int tensors = p->tensors;
    for (int i = 0; i < p->ops; i++) {
        if (p->op[i].kind == CR_OP_conv) CR_TRY(foresee_one(p, target, i, gain));
        p->tensors = tensors; /* the trial's */
    }
    return CR_OK;
}

static cr_status sparsify_eval(struct cr_program *p, const struct cr_cost_model *target, struct gain *gain,
                               struct cr_choices *report) {
    struct gain foreseen    = {0};
    bool        unpromising = p->real != CR_F32 && target->cost && target->estimate;
    if (unpromising) {
        CR_TRY(foresee_all(p, target, &foreseen));
        unpromising = !is_enough(&foreseen);
    }
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_conv) CR_TRY(sparsify(p, target, &i, unpromising, gain, report));
    if (unpromising && foreseen.dense_s > 0 && report && !report->json)
        cr_text_add(
            report->text,
            "sparse kernels with a forecast should save %.1f %% together, less than %.0f %%: they were not timed\n",
            100 * (1 - foreseen.sparse_s / foreseen.dense_s), 100 * CR_SPARSE_GAIN_MIN);
    return CR_OK;
}

/* ---- programs that train ---- */

static cr_status sparsify_training(struct cr_program *p, const struct cr_cost_model *target, int index,
                                   struct gain *gain, struct cr_choices *report) {
    const struct cr_op    dense = p->op[index];
    struct cr_sparse_cost c     = {.op = dense};
    if (cr_op_has_pattern(&dense) || !find_pattern(p, &c)) return CR_OK;
    CR_TRY(ask(p, target, &dense, &c));
    const bool taken = choose(target, &c, gain);
    CR_TRY(report_on(p, target, &dense, &c, taken, report));
    if (taken) p->op[index] = c.op;
    return CR_OK;
}

/* In 16 bits the matrix units win, and gradients have no rows. */
static cr_status sparsify_all(struct cr_program *p, const struct cr_cost_model *target, bool filter_grads,
                              struct gain *gain, struct cr_choices *report) {
    for (int i = 0; i < p->ops && p->real == CR_F32; i++) {
        const struct cr_op *op = &p->op[i];
        if (filter_of(op) != CR_NONE && (filter_grads || op->kind != CR_OP_conv_wgrad))
            CR_TRY(sparsify_training(p, target, i, gain, report));
    }
    return CR_OK;
}

/* ---- the pass ---- */

static void report_gain(const struct gain *gain, bool enough, struct cr_choices *report) {
    const double share = 1 - gain->sparse_s / gain->dense_s;
    report->too_little = !enough;
    if (report->json) return;
    if (enough)
        cr_text_add(report->text, "together %.2f us instead of %.2f\n", 1e6 * gain->sparse_s, 1e6 * gain->dense_s);
    else
        cr_text_add(
            report->text,
            "together they would save %.1f %%, less than %.0f %%, which a whole run may not show: all stay dense\n",
            100 * share, 100 * CR_SPARSE_GAIN_MIN);
}

cr_status cr_pass_sparsify(struct cr_program *p, const struct cr_cost_model *target, bool filter_grads,
                           struct cr_choices *report) {
    struct cr_program dense;
    struct gain       gain = {0};
    if (!p->store || !p->store->pattern) return CR_OK;
    CR_TRY(cr_program_copy(p, &dense));
    const cr_status status = cr_program_trains(p) ? sparsify_all(p, target, filter_grads, &gain, report)
                                                  : sparsify_eval(p, target, &gain, report);
    const bool      enough = is_enough(&gain), some = gain.sparse_s < gain.dense_s;
    if (report) {
        report->dense_s  = gain.dense_s;
        report->sparse_s = gain.sparse_s;
    }
    if (status == CR_OK && some && report) report_gain(&gain, enough, report);
    if (status == CR_OK && some && !enough) {
        const struct cr_program sparse = *p;
        *p                             = dense;
        dense                          = sparse;
    }
    cr_program_free(&dense);
    return status;
}
