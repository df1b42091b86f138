/* cli/budget/output.c: prints what pruning to a budget did to each layer. See cli/budget/budget.h. */
#include "cli/budget/budget.h"

#include <stdio.h>

static double microseconds(const struct cr_budget *b, double cost) {
    return 1e6 * b->outcome.scale * cost;
}

static const struct cr_budget_choice *choice_of(const struct cr_budget_layer *l) {
    return l->use.chosen == CR_NONE || l->choice[l->use.chosen].sparsity <= 0 ? NULL : &l->choice[l->use.chosen];
}

static int64_t channels(const struct cr_budget *b, const struct cr_budget_layer *l) {
    return cr_width_of(&l->bins[CR_AXIS_K], b->outcome.best.level);
}

/* Sparsity and pattern: "81 % unstructured", "2:4", "80 % block". */
static void pattern_text(const struct cr_budget_layer *l, char *out, size_t size) {
    const struct cr_budget_choice *c = choice_of(l);
    if (!c)
        snprintf(out, size, "dense");
    else if (c->pattern == CR_PRUNE_PATTERN_2_4)
        snprintf(out, size, "2:4");
    else
        snprintf(out, size, "%.3g %% %s", 100 * c->sparsity, cr_word_prune_pattern(c->pattern));
}

static void print_layers(const struct cr_budget *b, struct cr_text *out) {
    cr_text_add(out, "%-28s %9s %6s %-20s %9s us %9s us %9s\n", "layer", "channels", "left", "weights", "before",
                "after", "lost");
    for (int l = 0; l < b->layers.count; l++) {
        const struct cr_budget_layer *q = &b->layers.at[l];
        char                          pattern[64];
        pattern_text(q, pattern, sizeof pattern);
        cr_text_add(out, "%-28s %9lld %6lld %-20s %12.2f %12.2f %7.2f %%\n", q->name,
                    (long long)b->source.session.model.store.param[q->param].dim[0], (long long)channels(b, q), pattern,
                    microseconds(b, q->dense_cost), microseconds(b, q->use.cost), 100 * q->use.lost);
    }
}

static void print_totals(const struct cr_budget *b, struct cr_text *out) {
    const struct cr_budget_outcome *o    = &b->outcome;
    const struct cr_param_store    *from = &b->source.session.model.store, *to = &o->best.model.store;
    int64_t                         pruned = 0;
    for (int i = 0; i < to->params; i++)
        if (!cr_param_is_running(to->param[i].role)) pruned += cr_prune_count(&to->param[i], o->best.mask);
    cr_text_add(out, "parameters %lld of %lld", (long long)cr_param_store_trainable(to),
                (long long)cr_param_store_trainable(from));
    if (pruned) cr_text_add(out, ", %lld of them 0", (long long)pruned);
    cr_text_add(out, "; lost: fraction of the squared L2 norm of a layer; %.2f %% on average\n",
                b->layers.count ? 100 * o->best.loss / b->layers.count : 0);
}

static void print_gap(const struct cr_budget *b, struct cr_text *out) {
    const struct cr_budget_candidate *best = &b->outcome.best;
    if (best->gap <= 0)
        cr_text_add(out, "no other choice of that cost in this table loses less");
    else
        cr_text_add(out, "optimality gap %.2g %%: no choice that is %.2g %% cheaper in this table loses less",
                    100 * best->gap / best->table, 100 * best->gap / best->table);
    if (b->outcome.compiled)
        cr_text_add(out, "; %d network%s compiled", b->outcome.compiled, b->outcome.compiled == 1 ? "" : "s");
    cr_text_add(out, "\n");
}

static void print_time(const struct cr_budget *b, struct cr_text *out) {
    const struct cr_budget_outcome *o      = &b->outcome;
    const struct cr_budget_clock   *k      = &b->clock;
    const double                    before = o->scale * o->dense;
    cr_text_add(out, "predicted %.4g ms per batch of %lld, %.3g times as fast (before %.4g ms; target %.4g ms)\n",
                1e3 * o->predicted, (long long)k->batch, before / o->predicted, 1e3 * before, 1e3 * o->target);
    if (o->measured > 0)
        cr_text_add(out, "measured  %.4g ms, %.3g times as fast; predicted %+.1f %%\n", 1e3 * o->measured,
                    before / o->measured, 100 * (o->predicted / o->measured - 1));
    if (o->measured > 0 && o->measured_networks > 1)
        cr_text_add(
            out, "%d networks measured; the first prediction was off by %+.1f %%, and each time corrected the next\n",
            o->measured_networks, 100 * (o->first - 1));
    cr_text_add(out, "times are %s on %s%s\n",
                !k->measured ? "not measured: they are roofline estimates of kernels" : "sums of measured kernel times",
                k->session.device->caps.text, o->measured > 0 ? ", scaled by measured times of whole networks" : "");
}

void cr_budget_print(const struct cr_budget *b, struct cr_text *out) {
    print_layers(b, out);
    print_totals(b, out);
    print_gap(b, out);
    if (b->recalibrated) cr_text_add(out, "BN statistics are from %lld training batches\n", (long long)b->recalibrated);
    print_time(b, out);
}

static void json_layers(const struct cr_budget *b, struct cr_json_writer *w) {
    cr_json_open_array(w, "layers");
    for (int l = 0; l < b->layers.count; l++) {
        const struct cr_budget_layer  *q = &b->layers.at[l];
        const struct cr_budget_choice *c = choice_of(q);
        cr_json_open_object(w, NULL);
        cr_json_put_string(w, "layer", q->name);
        cr_json_put_int(w, "channels", b->source.session.model.store.param[q->param].dim[0]);
        cr_json_put_int(w, "left", channels(b, q));
        cr_json_put_string(w, "pattern", c ? cr_word_prune_pattern(c->pattern) : "dense");
        cr_json_put_general(w, "sparsity", c ? c->sparsity : 0, 6);
        cr_json_put_general(w, "before_us", microseconds(b, q->dense_cost), 6);
        cr_json_put_general(w, "us", microseconds(b, q->use.cost), 6);
        cr_json_put_general(w, "lost", q->use.lost, 6);
        cr_json_close_object(w);
    }
    cr_json_close_array(w);
}

static void json_time(const struct cr_budget *b, struct cr_json_writer *w) {
    const struct cr_budget_outcome *o      = &b->outcome;
    const double                    before = o->scale * o->dense;
    cr_json_put_general(w, "target_ms", 1e3 * o->target, 9);
    cr_json_put_general(w, "predicted_ms", 1e3 * o->predicted, 9);
    cr_json_put_general(w, "before_ms", 1e3 * before, 9);
    cr_json_put_general(w, "speedup", before / o->predicted, 6);
    if (o->measured > 0) {
        cr_json_put_general(w, "measured_ms", 1e3 * o->measured, 9);
        cr_json_put_general(w, "measured_before_ms", 1e3 * o->measured_dense, 9);
        cr_json_put_int(w, "measured_networks", o->measured_networks);
        cr_json_put_general(w, "first_prediction", o->first, 6);
    }
    cr_json_put_int(w, "batch", b->clock.batch);
    cr_json_put_bool(w, "measured", b->clock.measured);
    cr_json_put_string(w, "device", b->clock.session.device->caps.text);
}

void cr_budget_json(const struct cr_budget *b, struct cr_text *out) {
    const struct cr_budget_outcome *o = &b->outcome;
    struct cr_json_writer           w = cr_json_open_line(out);
    cr_json_put_string(&w, "output", b->config->train.output);
    cr_json_put_string(&w, "channels", o->best.config->model.channels);
    cr_json_put_int(&w, "parameters_before", cr_param_store_trainable(&b->source.session.model.store));
    cr_json_put_int(&w, "parameters", cr_param_store_trainable(&o->best.model.store));
    json_time(b, &w);
    if (b->recalibrated) cr_json_put_int(&w, "recalibrated_batches", b->recalibrated);
    cr_json_put_general(&w, "loss", o->best.loss, 9);
    cr_json_put_general(&w, "gap", o->best.table > 0 ? o->best.gap / o->best.table : 0, 6);
    json_layers(b, &w);
    cr_json_close_line(&w);
}
