/* compiler/fusion/sparsify.c: makes convolutions with pruned filters sparse where a sparse kernel is faster.
 *
 *     conv (w)     becomes     sparse_filter (w -> packed); conv (w, packed)
 *
 * The new conv has a sparsity pattern and a weight format.
 *
 * The pass compares the cost of the dense convolution with the cost of each weight format that the device has for the
 * convolution. It keeps the dense kernel unless a sparse kernel is faster. A format whose estimate exceeds
 * CR_ESTIMATE_MARGIN times the best known time, dense or sparse, is neither packed nor measured. Without measured times
 * the device names the density up to which its sparse kernels pay. sparse_filter depends on parameters only, so
 * cr_pass_hoist moves it to the front.
 *
 * A whole program can gain less than the sum over its layers, because of caches and power. When that sum is below
 * CR_SPARSE_GAIN_MIN of the convolutions' time, all convolutions stay dense. In 16 bits dense kernels are seldom
 * slower. There, formats that have an estimate are not measured when the estimates promise less than
 * CR_SPARSE_GAIN_MIN: sparse tensor cores that ran once raise the power draw from then on
 * (cr_cost_table_has_lasting_effect).
 *
 * In a program that trains, the weights change in each step. Its convolutions and both of their gradients get the
 * sparsity pattern only; their kernels gather the weights, and the measured time includes the gather. */
#include "compiler/fusion/sparsify.h"

/* ---- sparsity patterns ---- */

static int64_t count_nonzeros(const struct cr_param_store *store, const struct cr_param *q) {
    int64_t nonzeros = 0;
    for (int64_t i = q->offset; i < q->offset + q->elems; i++) nonzeros += store->pattern[i / 8] >> (i % 8) & 1;
    return nonzeros;
}

/* The parameter that holds the sparsity pattern of the filter `w`: the filter itself, or the filter that a BN was
 * folded into. */
static int param_of(const struct cr_program *p, int w) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_fold_bn && p->op[i].out[CR_OUT_fold_bn_y] == w) w = p->op[i].in[CR_IN_fold_bn_w];
    return p->tensor[w].param;
}

/* The filter of a convolution, or its gradient; CR_NONE: the op cannot get a pattern. */
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
    if (param < 0) return false; /* computed by an op, or a constant of a teacher */
    const struct cr_param *q = &p->store->param[param];
    op->attr.conv.pattern    = (struct cr_sparsity_attr){.nnz = count_nonzeros(p->store, q), .param = param};
    c->density               = (double)op->attr.conv.pattern.nnz / (double)q->elems;
    return c->density > 0 && c->density < 1;
}

/* ---- costs ---- */

static void set_packed_elems(struct cr_program *p, const struct cr_op *op, int64_t elems) {
    struct cr_tensor *packed = &p->tensor[op->in[CR_IN_conv_packed]];
    packed->dim[3]           = elems;
    packed->bytes            = (size_t)elems * cr_dtype_bytes(packed->dtype);
}

/* Sets the length of the packed weights to the length of the op's weight format. Returns false when the format does not
 * suit the convolution. */
static bool is_format_usable(struct cr_program *p, const struct cr_cost_model *cost_model, const struct cr_op *op) {
    const int64_t elems =
        cost_model->device.packed_elems ? cost_model->device.packed_elems(cost_model->device.self, p, op) : 0;
    set_packed_elems(p, op, elems);
    return elems > 0 && cr_accepts(cost_model, p, op);
}

/* Decides without measured times, by the density that the device names. */
static bool is_sparse_enough(const struct cr_program *p, const struct cr_cost_model *cost_model,
                             const struct cr_sparse_cost *c) {
    const struct cr_tensor *w = &p->tensor[filter_of(&c->op)];
    return w->dim[1] * w->dim[2] > 1 && c->density <= cost_model->sparse_density_max;
}

static bool has_packed(const struct cr_op *op) {
    return op->kind == CR_OP_conv && op->in[CR_IN_conv_packed] >= 0;
}

static bool is_usable(struct cr_program *p, const struct cr_cost_model *cost_model, const struct cr_op *op) {
    return has_packed(op) ? is_format_usable(p, cost_model, op) : cr_accepts(cost_model, p, op);
}

static int64_t packed_elems_of(const struct cr_program *p, const struct cr_op *op) {
    return has_packed(op) ? p->tensor[op->in[CR_IN_conv_packed]].dim[3] : 0;
}

/* A weight format and its estimate. */
struct trial {
    struct cr_sparse_format format;
    double                  estimate; /* 0 when unknown */
};

/* All weight formats by increasing estimate, unknown estimates first. A fast format that is measured early prunes
 * slower ones. Formats with equal estimates stay in numerical order. */
static void sort_trials(const struct cr_program *p, const struct cr_cost_model *cost_model, struct cr_op op,
                        struct trial trial[CR_SPARSE_FORMATS]) {
    for (int i = 0; i < CR_SPARSE_FORMATS; i++) {
        op.attr.conv.pattern.format = cr_sparse_format_at(i);
        const double estimate =
            cost_model->device.estimate ? cost_model->device.estimate(cost_model->device.self, p, &op) : 0;
        const struct trial t  = {.format = op.attr.conv.pattern.format, .estimate = estimate};
        int                at = i;
        for (; at > 0 && trial[at - 1].estimate > t.estimate; at--) trial[at] = trial[at - 1];
        trial[at] = t;
    }
}

/* Returns whether this format is better than the best so far. For equal times the format with the lower number wins, so
 * the result does not depend on the order of the trials. */
static bool is_better(double seconds, struct cr_sparse_format format, const struct cr_sparse_cost *c) {
    const int number = cr_sparse_format_number(format), best = cr_sparse_format_number(c->op.attr.conv.pattern.format);
    return !c->formats || seconds < c->sparse_s || (seconds <= c->sparse_s && number < best);
}

static cr_status measure_formats(struct cr_program *p, const struct cr_cost_model *cost_model,
                                 struct cr_sparse_cost *c) {
    struct trial trial[CR_SPARSE_FORMATS];
    struct cr_op op = c->op;
    sort_trials(p, cost_model, op, trial);
    for (int i = 0; i < CR_SPARSE_FORMATS; i++) {
        const double best_s = c->formats && c->sparse_s < c->dense_s ? c->sparse_s : c->dense_s;
        double       seconds;
        op.attr.conv.pattern.format = trial[i].format;
        if (trial[i].estimate > CR_ESTIMATE_MARGIN * best_s || (c->unpromising && trial[i].estimate > 0)) {
            c->pruned++;
            continue;
        }
        if (!is_usable(p, cost_model, &op)) continue;
        CR_TRY(cost_model->cost(cost_model->self, p, &op, &seconds));
        if (is_better(seconds, trial[i].format, c)) {
            c->sparse_s = seconds;
            c->op       = op;
            c->elems    = packed_elems_of(p, &op);
        }
        c->formats++;
    }
    return CR_OK;
}

static cr_status measure(struct cr_program *p, const struct cr_cost_model *cost_model, const struct cr_op *dense,
                         struct cr_sparse_cost *c) {
    struct cr_op trial = c->op;
    if (c->density > CR_SPARSE_DENSITY_MAX) return CR_OK;
    if (!cost_model->cost) {
        c->formats = is_sparse_enough(p, cost_model, c) && is_usable(p, cost_model, &trial);
        c->elems   = packed_elems_of(p, &trial);
        return CR_OK;
    }
    CR_TRY(cost_model->cost(cost_model->self, p, dense, &c->dense_s));
    return measure_formats(p, cost_model, c);
}

/* Sets c->op to the convolution with its sparsity pattern and adds a tensor for the packed weights, when the filter has
 * a sparsity pattern. */
static cr_status add_pattern(struct cr_program *p, int conv, struct cr_sparse_cost *c, bool *has_pattern) {
    static const int64_t unknown[] = {1, 1, 1, 1};
    *c                             = (struct cr_sparse_cost){.op = p->op[conv]};
    *has_pattern                   = !cr_op_has_sparsity_pattern(&c->op) && find_pattern(p, c);
    if (!*has_pattern) return CR_OK;
    c->op.in[CR_IN_conv_packed] =
        cr_tensor_derive(p, p->tensor[c->op.out[CR_OUT_conv_y]].name, ".packed", CR_F32, CR_REGION_POOL, unknown);
    return p->failed ? CR_NO_MEMORY(sizeof *p->tensor) : CR_OK;
}

static cr_status find_cost(struct cr_program *p, const struct cr_cost_model *cost_model, int conv, bool unpromising,
                           struct cr_sparse_cost *c) {
    const struct cr_op dense = p->op[conv];
    bool               has_pattern;
    CR_TRY(add_pattern(p, conv, c, &has_pattern));
    c->unpromising = unpromising;
    return has_pattern ? measure(p, cost_model, &dense, c) : CR_OK;
}

cr_status cr_sparsify_cost(struct cr_program *p, const struct cr_cost_model *cost_model, int conv,
                           struct cr_sparse_cost *c) {
    return find_cost(p, cost_model, conv, false, c);
}

/* ---- the program ---- */

static cr_status rewrite(struct cr_program *p, int conv, const struct cr_sparse_cost *c) {
    const struct cr_tensor *x      = &p->tensor[c->op.in[CR_IN_conv_x]];
    struct cr_op            filter = cr_op_make(CR_OP_sparse_filter, c->op.layer);
    set_packed_elems(p, &c->op, c->elems);
    filter.attr.conv      = c->op.attr.conv;
    filter.attr.conv.relu = false;
    for (int i = 0; i < 3; i++) filter.attr.conv.pattern.image[i] = x->dim[i];
    filter.in[CR_IN_sparse_filter_w]   = c->op.in[CR_IN_conv_w];
    filter.out[CR_OUT_sparse_filter_y] = c->op.in[CR_IN_conv_packed];
    p->op[conv]                        = c->op;
    cr_emit_at(p, conv, &filter, "");
    return p->failed ? CR_NO_MEMORY(sizeof *p->op) : CR_OK;
}

static void report_op(struct cr_program *p, const struct cr_cost_model *cost_model, const struct cr_sparse_cost *c,
                      bool chosen, struct cr_text *report) {
    if (!report) return;
    if (has_packed(&c->op) && c->formats)
        set_packed_elems(p, &c->op, c->elems); /* the length of the best format, not of the last one tried */
    cr_sparsify_report_op(p, cost_model, c, chosen, report);
}

static bool choose(const struct cr_cost_model *cost_model, const struct cr_sparse_cost *c,
                   struct cr_sparse_gain *gain) {
    const bool chosen = c->formats && (!cost_model->cost || c->sparse_s < c->dense_s);
    gain->dense_s += c->dense_s;
    gain->sparse_s += chosen ? c->sparse_s : c->dense_s;
    return chosen;
}

static cr_status sparsify_conv(struct cr_program *p, const struct cr_cost_model *cost_model, int *index,
                               bool unpromising, struct cr_sparse_gain *gain, struct cr_text *report) {
    const int             tensors = p->tensors;
    struct cr_sparse_cost c;
    CR_TRY(find_cost(p, cost_model, *index, unpromising, &c));
    const bool chosen = choose(cost_model, &c, gain);
    if (p->tensors > tensors) report_op(p, cost_model, &c, chosen, report);
    if (chosen) return rewrite(p, (*index)++, &c);
    p->tensors = tensors; /* removes the trial's tensors */
    return CR_OK;
}

static bool is_gain_enough(const struct cr_sparse_gain *gain) {
    return gain->sparse_s <= (1 - CR_SPARSE_GAIN_MIN) * gain->dense_s;
}

/* Adds the time of the dense convolution and the best estimate. */
static cr_status estimate_one(struct cr_program *p, const struct cr_cost_model *cost_model, int conv,
                              struct cr_sparse_gain *gain) {
    const struct cr_op    dense = p->op[conv];
    struct cr_sparse_cost c;
    double                best;
    bool                  has_pattern;
    CR_TRY(add_pattern(p, conv, &c, &has_pattern));
    if (!has_pattern || c.density > CR_SPARSE_DENSITY_MAX) return CR_OK;
    CR_TRY(cost_model->cost(cost_model->self, p, &dense, &best));
    gain->dense_s += best;
    for (int i = 0; i < CR_SPARSE_FORMATS; i++) {
        c.op.attr.conv.pattern.format = cr_sparse_format_at(i);
        const double estimate         = cost_model->device.estimate(cost_model->device.self, p, &c.op);
        if (estimate > 0 && estimate < best) best = estimate;
    }
    gain->sparse_s += best;
    return CR_OK;
}

static cr_status estimate_all(struct cr_program *p, const struct cr_cost_model *cost_model,
                              struct cr_sparse_gain *gain) {
    const int tensors = p->tensors;
    for (int i = 0; i < p->ops; i++) {
        if (p->op[i].kind == CR_OP_conv) CR_TRY(estimate_one(p, cost_model, i, gain));
        p->tensors = tensors; /* removes the trial's tensors */
    }
    return CR_OK;
}

static cr_status sparsify_eval(struct cr_program *p, const struct cr_cost_model *cost_model,
                               struct cr_sparse_gain *gain, struct cr_text *report) {
    struct cr_sparse_gain estimates   = {0};
    bool                  unpromising = p->real != CR_F32 && cost_model->cost && cost_model->device.estimate;
    if (unpromising) {
        CR_TRY(estimate_all(p, cost_model, &estimates));
        unpromising = !is_gain_enough(&estimates);
    }
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_conv) CR_TRY(sparsify_conv(p, cost_model, &i, unpromising, gain, report));
    if (unpromising && estimates.dense_s > 0 && report) cr_sparsify_report_estimates(&estimates, report);
    return CR_OK;
}

/* ---- programs that train ---- */

static cr_status sparsify_training_op(struct cr_program *p, const struct cr_cost_model *cost_model, int index,
                                      struct cr_sparse_gain *gain, struct cr_text *report) {
    const struct cr_op    dense = p->op[index];
    struct cr_sparse_cost c     = {.op = dense};
    if (cr_op_has_sparsity_pattern(&dense) || !find_pattern(p, &c)) return CR_OK;
    CR_TRY(measure(p, cost_model, &dense, &c));
    const bool chosen = choose(cost_model, &c, gain);
    report_op(p, cost_model, &c, chosen, report);
    if (chosen) p->op[index] = c.op;
    return CR_OK;
}

/* FP32 only: in 16 bits the tensor cores are faster, and the gradients have no sparse kernels. */
static cr_status sparsify_training(struct cr_program *p, const struct cr_cost_model *cost_model, bool filter_grads,
                                   struct cr_sparse_gain *gain, struct cr_text *report) {
    for (int i = 0; i < p->ops && p->real == CR_F32; i++) {
        const struct cr_op *op = &p->op[i];
        if (filter_of(op) != CR_NONE && (filter_grads || op->kind != CR_OP_conv_wgrad))
            CR_TRY(sparsify_training_op(p, cost_model, i, gain, report));
    }
    return CR_OK;
}

/* ---- the pass ---- */

cr_status cr_pass_sparsify(struct cr_program *p, const struct cr_cost_model *cost_model, bool filter_grads,
                           struct cr_text *report) {
    struct cr_program     dense;
    struct cr_sparse_gain gain = {0};
    if (!p->store || !p->store->pattern) return CR_OK;
    CR_TRY(cr_program_copy(p, &dense));
    const cr_status status = cr_program_trains(p) ? sparsify_training(p, cost_model, filter_grads, &gain, report)
                                                  : sparsify_eval(p, cost_model, &gain, report);
    const bool      enough = is_gain_enough(&gain), some = gain.sparse_s < gain.dense_s;
    if (status == CR_OK && some && report) cr_sparsify_report_gain(&gain, enough, report);
    if (status == CR_OK && some && !enough) {
        const struct cr_program sparse = *p;
        *p                             = dense;
        dense                          = sparse;
    }
    cr_program_free(&dense);
    return status;
}
