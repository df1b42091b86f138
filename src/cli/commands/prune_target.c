/* cli/commands/prune_target.c: cresnet prune --target-ms: chooses the sparsity of each layer from the times of its
 * kernels at a grid of sparsities. */
#include "cli/commands/prune.h"
#include "compiler/passes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* 0.81 and not 0.8: a rule "from 0.8 on" must also hold when the number of pruned weights is rounded down. */
static const double grid[] = {0, 0.5, 0.6, 0.7, 0.81, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98};
enum { POINTS = CR_COUNT(grid) };

/* The device of the evaluation, the program with nothing pruned, and the times at each sparsity of the grid. */
struct search {
    struct cr_config       config;  /* the caller's without memory.limit */
    struct cr_session      session; /* device, model and kernel times only */
    struct cr_cost_model   model;
    struct cr_program      program;
    bool                   has_program;
    struct cr_prune       *prune;
    uint8_t               *mask;
    struct cr_prune_point *point;  /* [layers][POINTS] */
    bool                  *sparse; /* [layers][POINTS]: whether a sparse kernel runs */
};

/* ---- the program ---- */

static cr_status op_seconds(const struct cr_cost_model *model, const struct cr_program *p, const struct cr_op *op,
                            double *seconds) {
    *seconds = cr_op_seconds(model, p, op);
    return model->cost ? model->cost(model->self, p, op, seconds) : CR_OK;
}

/* Sum over the ops that run for each batch (hoisted ops run once). */
static cr_status program_seconds(const struct cr_cost_model *model, const struct cr_program *p, double *sum) {
    double seconds;
    *sum = 0;
    for (int i = p->hoisted; i < p->ops; i++) {
        CR_TRY(op_seconds(model, p, &p->op[i], &seconds));
        *sum += seconds;
    }
    return CR_OK;
}

static cr_status check_config(const struct cr_config *c, int64_t batch) {
    if (c->prune.pattern != CR_PRUNE_PATTERN_UNSTRUCTURED)
        return cr_config_fail(c, "prune.pattern", "--target-ms needs the pattern unstructured, not %s",
                              cr_word_prune_pattern(c->prune.pattern));
    if (!c->train.sparse || !c->train.fuse)
        return cr_config_fail(c, c->train.sparse ? "train.fuse" : "train.sparse",
                              "--target-ms needs yes: otherwise pruning saves no time");
    if (!batch) return cr_config_fail(c, "train.eval_batch", "--target-ms needs a batch size: give --batch N");
    return CR_OK;
}

static cr_status open_program(struct search *g, const struct cr_config *config, int classes, int64_t batch) {
    const struct cr_session_options options = {0};
    struct cr_session              *s       = &g->session;
    struct cr_prepare               prepare;
    enum cr_dtype                   real;
    g->config              = *config;
    g->config.memory.limit = "";
    s->config              = &g->config;
    CR_TRY(cr_prepare_from_config(config, CR_SPLIT_VAL, &prepare));
    CR_TRY(cr_session_device(&g->config, false, &s->device, &real));
    if (real != CR_F32)
        return cr_config_fail(
            config, "train.precision",
            "--target-ms works in fp32 only, but this device would compute in %s: give train.precision=fp32",
            real == CR_F16 ? "fp16" : "bf16");
    CR_TRY(cr_model_open(&g->config, classes, prepare.size, prepare.size, &s->model));
    cr_model_set_real(&s->model, real);
    CR_TRY(cr_session_open_cost_table(s, &options));
    g->model = cr_session_cost_model(s);
    CR_TRY(cr_session_compile(s, CR_PROGRAM_EVAL, batch, "fuse", &g->program));
    g->has_program = true;
    CR_ASSERT(s->model.store.value_elems ==
              g->prune->store->value_elems); /* the masks refer to elements of that store */
    return CR_OK;
}

static void close_program(struct search *g) {
    if (g->has_program) cr_program_free(&g->program);
    if (g->session.cost_table) cr_cost_table_flush(g->session.cost_table);
    cr_session_close(&g->session);
    cr_free(g->mask);
    cr_free(g->point);
    cr_free(g->sparse);
}

/* ---- times ---- */

/* Index of the prunable layer of a parameter, or CR_NONE. */
static int layer_of(const struct cr_prune *prune, int param) {
    for (int l = 0; l < prune->layers; l++)
        if (prune->layer[l].param == param) return prune->layer[l].dense ? CR_NONE : l;
    return CR_NONE;
}

/* Adds the time of one convolution with the current mask to point `at` of its layer. Chooses between the sparse and the
 * dense kernel as cr_pass_sparsify does when all convolutions together gain enough. */
static cr_status time_conv(struct search *g, int conv, int at, struct cr_prune_guide *guide) {
    const int             tensors = g->program.tensors;
    struct cr_sparse_cost c;
    double                dense_s;
    CR_TRY(cr_sparsify_cost(&g->program, &g->model, conv, &c));
    const struct cr_sparsity_attr *pattern = &c.op.attr.conv.pattern;
    const int                      l       = pattern->nnz ? layer_of(g->prune, pattern->param) : CR_NONE;
    if (l != CR_NONE) {
        struct cr_prune_point *point = &g->point[l * POINTS + at];
        CR_TRY(op_seconds(&g->model, &g->program, &g->program.op[conv], &dense_s));
        if (!g->model.cost && c.formats) c.sparse_s = cr_op_seconds(&g->model, &g->program, &c.op);
        const bool sparse = c.formats && (!g->model.cost || c.sparse_s < dense_s);
        point->seconds += sparse ? c.sparse_s : dense_s;
        g->sparse[l * POINTS + at] = sparse;
        guide->layer[l].timed      = true;
        if (!at) guide->layer[l].dense_s += dense_s;
    }
    g->program.tensors = tensors; /* remove the tensors that cr_sparsify_cost added */
    return CR_OK;
}

/* Fraction of the squared L2 norm of a parameter that the mask removes. */
static double lost_fraction(const struct cr_param *q, const float *value, const uint8_t *mask) {
    double lost = 0, all = 0;
    for (int64_t i = q->offset; i < q->offset + q->elems; i++) {
        const double square = (double)value[i] * (double)value[i];
        all += square;
        if (!(mask[i / 8] >> (i % 8) & 1)) lost += square;
    }
    return all > 0 ? lost / all : 0;
}

static cr_status time_all(struct search *g, const struct cr_state_buffers *buffers, struct cr_prune_guide *guide) {
    struct cr_prune *prune = g->prune;
    for (int at = 0; at < POINTS; at++) { /* a mask of higher sparsity extends the mask before */
        for (int l = 0; l < prune->layers; l++) prune->layer[l].sparsity = grid[at];
        CR_TRY(cr_prune_masks(prune, 1, buffers->value, g->mask));
        for (int i = 0; i < g->program.ops; i++)
            if (g->program.op[i].kind == CR_OP_conv) CR_TRY(time_conv(g, i, at, guide));
        for (int l = 0; l < prune->layers; l++)
            g->point[l * POINTS + at].lost =
                guide->layer[l].timed
                    ? lost_fraction(&prune->store->param[prune->layer[l].param], buffers->value, g->mask)
                    : 0;
    }
    return CR_OK;
}

/* ---- the choice ---- */

/* Layers other than convolutions gain no time: they stay dense. */
static void exempt_untimed(struct cr_prune *prune, const struct cr_prune_guide *guide) {
    for (int l = 0; l < prune->layers; l++) {
        prune->layer[l].sparsity = 0;
        if (prune->layer[l].dense || guide->layer[l].timed) continue;
        prune->layer[l].dense = "stays dense: pruning it saves no time";
        prune->elems -= prune->layer[l].elems;
    }
}

/* Milliseconds, rounded up, so that a printed time can be given to --target-ms. */
static double ceil_ms(double seconds) {
    return ceil(1e9 * seconds) * 1e-6;
}

/* Note for error messages when times are not measured, also because a RUN was trained with train.measure = no. */
static const char *estimate_note(const struct cr_prune_guide *g) {
    return g->measured ? "" : "; times are estimates: train.measure = no, or no GPU";
}

static cr_status refuse(const struct cr_prune_guide *g, bool reached_anyway) {
    if (reached_anyway)
        return CR_FAIL(CR_ERR_CONFIG,
                       "--target-ms %g: no pruning needed, the predicted time of these weights is already lower "
                       "(dense %.6g ms, batch %lld, %s%s)",
                       1e3 * g->target_s, ceil_ms(g->dense_s), (long long)g->batch, g->device, estimate_note(g));
    return CR_FAIL(
        CR_ERR_CONFIG,
        "--target-ms %g cannot be reached: the minimum is %.6g ms, with at most %g %% of a layer pruned (dense "
        "%.6g ms, of which %.6g ms in ops that are not pruned; batch %lld, %s%s): give a larger time or a "
        "smaller --batch",
        1e3 * g->target_s, ceil_ms(g->predicted_s), 100 * grid[POINTS - 1], ceil_ms(g->dense_s), ceil_ms(g->fixed_s),
        (long long)g->batch, g->device, estimate_note(g));
}

static cr_status choose(struct search *g, struct cr_prune_guide *guide) {
    struct cr_prune *prune = g->prune;
    int             *choice;
    double           seconds, now = 0;
    guide->fixed_s = guide->dense_s;
    for (int l = 0; l < prune->layers; l++) {
        guide->fixed_s -= guide->layer[l].dense_s;
        now += g->point[l * POINTS].seconds;
    }
    CR_ALLOC(choice, (size_t)CR_MAX(prune->layers, 1));
    cr_status status =
        cr_prune_choose(g->point, prune->layers, POINTS, guide->target_s - guide->fixed_s, choice, &seconds);
    for (int l = 0; l < prune->layers && status == CR_OK; l++) {
        const struct cr_prune_point *point = &g->point[l * POINTS + choice[l]];
        if (!guide->layer[l].timed) continue;
        prune->layer[l].sparsity = grid[choice[l]];
        guide->layer[l].seconds  = point->seconds;
        guide->layer[l].lost     = point->lost;
        guide->layer[l].sparse   = g->sparse[l * POINTS + choice[l]];
    }
    cr_free(choice);
    CR_TRY(status);
    guide->predicted_s        = guide->fixed_s + seconds;
    const bool reached_anyway = guide->fixed_s + now <= guide->target_s;
    return reached_anyway || guide->predicted_s > guide->target_s ? refuse(guide, reached_anyway) : CR_OK;
}

/* Predicts the time of the final program. It may differ from the sum of the chosen points, because sparse and dense
 * kernels fuse different sums and ReLUs. */
static cr_status predict(struct search *g, const struct cr_state_buffers *buffers, struct cr_prune_guide *guide) {
    struct cr_program whole;
    memcpy(g->mask, buffers->mask, (size_t)g->prune->store->value_elems / 8);
    CR_TRY(cr_prune_masks(g->prune, 1, buffers->value, g->mask));
    CR_TRY(cr_session_compile(&g->session, CR_PROGRAM_EVAL, guide->batch, "fuse", &whole));
    const cr_status status = program_seconds(&g->model, &whole, &guide->predicted_s);
    cr_program_free(&whole);
    CR_TRY(status);
    if (guide->measured &&
        guide->predicted_s >
            1.000001 * guide->target_s) /* the gain is below CR_SPARSE_GAIN_MIN, so cr_pass_sparsify kept all dense */
        return CR_FAIL(
            CR_ERR_CONFIG,
            "--target-ms %g saves too little: sparse kernels are used when they save at least %g %% of the time of "
            "all convolutions; predicted %.6g ms (dense %.6g ms): give a smaller time",
            1e3 * guide->target_s, 100 * CR_SPARSE_GAIN_MIN, ceil_ms(guide->predicted_s), ceil_ms(guide->dense_s));
    return CR_OK;
}

cr_status cr_prune_guide(const struct cr_config *config, int classes, struct cr_prune *prune,
                         const struct cr_state_buffers *buffers, struct cr_prune_guide *guide) {
    struct search g      = {.prune = prune};
    const size_t  bytes  = (size_t)prune->store->value_elems / 8;
    cr_status     status = CR_OK;
    guide->batch         = config->train.eval_batch ? config->train.eval_batch : config->train.batch;
    CR_TRY(check_config(config, guide->batch));
    prune->global = false;
    guide->layer  = cr_alloc((size_t)CR_MAX(prune->layers, 1), sizeof *guide->layer);
    g.mask        = cr_alloc(bytes, 1);
    g.point       = cr_alloc((size_t)CR_MAX(prune->layers, 1) * POINTS, sizeof *g.point);
    g.sparse      = cr_alloc((size_t)CR_MAX(prune->layers, 1) * POINTS, sizeof *g.sparse);
    if (!guide->layer || !g.mask || !g.point || !g.sparse)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: tables of %d layers", prune->layers);
    memcpy(g.mask, buffers->mask, bytes);
    CR_TRY_OUT(open_program(&g, config, classes, guide->batch));
    snprintf(guide->device, sizeof guide->device, "%s", g.session.device->caps.text);
    guide->measured           = g.model.cost != NULL;
    guide->sparse_density_max = g.model.sparse_density_max;
    CR_TRY_OUT(program_seconds(&g.model, &g.program, &guide->dense_s));
    g.session.model.store.pattern = g.mask;
    CR_TRY_OUT(time_all(&g, buffers, guide));
    exempt_untimed(prune, guide);
    CR_TRY_OUT(choose(&g, guide));
    CR_TRY_OUT(predict(&g, buffers, guide));
out:
    close_program(&g);
    return status;
}

void cr_prune_guide_free(struct cr_prune_guide *guide) {
    cr_free(guide->layer);
    guide->layer = NULL;
}

/* ---- output ---- */

void cr_prune_guide_print(const struct cr_prune_guide *g, const struct cr_prune *prune, struct cr_text *out) {
    double lost  = 0;
    int    timed = 0;
    cr_text_add(out, "%-28s %12s %9s %11s %11s %9s\n", "layer", "weights", "sparsity", "dense us", "sparse us", "lost");
    for (int l = 0; l < prune->layers; l++) {
        const struct cr_prune_layer  *layer    = &prune->layer[l];
        const struct cr_prune_guided *at       = &g->layer[l];
        const double                  fraction = layer->elems ? (double)layer->pruned / (double)layer->elems : 0;
        cr_text_add(out, "%-28s %12lld %7.2f %%", layer->name, (long long)layer->elems, 100 * fraction);
        if (!at->timed) {
            cr_text_add(out, "  %s\n", layer->dense ? layer->dense : "");
            continue;
        }
        cr_text_add(out, " %11.2f", 1e6 * at->dense_s);
        if (at->sparse)
            cr_text_add(out, " %11.2f", 1e6 * at->seconds);
        else
            cr_text_add(out, " %11s", "-");
        cr_text_add(out, " %7.2f %%\n", 100 * at->lost);
        lost += at->lost;
        timed++;
    }
    cr_text_add(out, "%-28s %12lld %7.2f %%\n", "prunable layers", (long long)prune->elems,
                prune->elems ? 100 * (double)prune->pruned / (double)prune->elems : 0);
    cr_text_add(out, "lost: fraction of the squared L2 norm of a layer that pruning removes; %.2f %% on average\n",
                timed ? 100 * lost / timed : 0);
    cr_text_add(
        out,
        "predicted %.4g ms per batch of %lld (dense %.4g ms, of which %.4g ms in ops that are not pruned; target "
        "%g ms)\n",
        1e3 * g->predicted_s, (long long)g->batch, 1e3 * g->dense_s, 1e3 * g->fixed_s, 1e3 * g->target_s);
    if (g->measured)
        cr_text_add(out, "times are sums of measured kernel times on %s\n", g->device);
    else
        cr_text_add(out,
                    "times are not measured on %s: they are roofline estimates, and filters larger than 1x1 use sparse "
                    "kernels from a sparsity of %.0f %% on\n",
                    g->device, 100 * (1 - g->sparse_density_max));
}

void cr_prune_guide_json(const struct cr_prune_guide *g, const struct cr_prune *prune, struct cr_json_writer *w) {
    cr_json_put_general(w, "target_ms", 1e3 * g->target_s, 9);
    cr_json_put_general(w, "predicted_ms", 1e3 * g->predicted_s, 9);
    cr_json_put_general(w, "dense_ms", 1e3 * g->dense_s, 9);
    cr_json_put_int(w, "batch", g->batch);
    cr_json_put_bool(w, "measured", g->measured);
    cr_json_put_string(w, "device", g->device);
    cr_json_open_array(w, "times");
    for (int l = 0; l < prune->layers; l++) {
        const struct cr_prune_guided *at = &g->layer[l];
        if (!at->timed) continue;
        cr_json_open_object(w, NULL);
        cr_json_put_string(w, "layer", prune->layer[l].name);
        cr_json_put_general(w, "sparsity", prune->layer[l].sparsity, 6);
        cr_json_put_general(w, "dense_us", 1e6 * at->dense_s, 6);
        cr_json_put_general(w, "us", 1e6 * at->seconds, 6);
        cr_json_put_bool(w, "sparse", at->sparse);
        cr_json_put_general(w, "lost", at->lost, 6);
        cr_json_close_object(w);
    }
    cr_json_close_array(w);
}
