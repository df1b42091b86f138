/* cli/budget/candidate.c: builds the pruned network of a choice of widths and patterns. See cli/budget/budget.h. */
#include "cli/budget/budget.h"

#include <string.h>

/* Applies the widths and patterns of the result to source and layers. */
static void apply(struct cr_budget *b, const struct cr_search_result *result, const struct cr_budget_candidate *c) {
    struct cr_budget_layers        *layers  = &b->layers;
    const struct cr_budget_problem *problem = &b->problem;
    for (int k = 0; k < b->source.groups.groups; k++)
        c->level[k] = problem->variable_of[k] == CR_NONE ? 0 : result->value[problem->variable_of[k]];
    cr_widths_apply(&b->source.widths, c->level, &b->source.shrink);
    for (int l = 0; l < layers->count; l++) {
        struct cr_budget_layer *q = &layers->at[l];
        q->use = (struct cr_budget_use){CR_NONE, q->dense_cost, 1 - cr_width_left(q->bins, q->energy, c->level)};
    }
    for (int f = 0; f < problem->search.factors; f++) {
        const struct cr_search_option *option = &problem->search.factor[f].option[result->option[f]];
        int                            layer[CR_BUDGET_OP_LAYERS];
        const int count = cr_budget_op_layers(&b->axes, &b->clock.program.op[problem->factor_op[f]], layer);
        for (int l = 0; l < count; l++) layers->at[layer[l]].use.cost = option->cost / count;
        if (count != 1) continue;
        layers->at[layer[0]].use.chosen = option->tag;
        layers->at[layer[0]].use.lost   = option->loss;
    }
    for (int l = 0; l < layers->count; l++) c->use[l] = layers->at[l].use;
}

void cr_budget_candidate_show(struct cr_budget *b, const struct cr_budget_candidate *c) {
    cr_widths_apply(&b->source.widths, c->level, &b->source.shrink);
    for (int l = 0; l < b->layers.count; l++) b->layers.at[l].use = c->use[l];
}

/* The keys of the smaller network. */
static cr_status set_config(struct cr_budget_source *source, struct cr_budget_candidate *c) {
    bool same = true;
    for (int k = 0; k < source->groups.groups; k++) same &= c->level[k] == 0;
    CR_TRY(cr_config_derive(&c->config, source->config, 0, NULL, 0));
    if (same) return CR_OK;
    CR_TRY(cr_budget_channels(source, &c->channels));
    return cr_config_set(&c->config, "model.channels", c->channels.data);
}

/* Copies the weights that are left, and prunes them. */
static cr_status set_weights(struct cr_budget_source *source, const struct cr_budget_layers *layers,
                             struct cr_budget_candidate *c) {
    const struct cr_param_store   *store = &source->session.model.store, *small = &c->model.store;
    const size_t                   bytes = (size_t)small->value_elems / 8 + 1;
    const struct cr_shrink_buffers from  = {source->buffers.value, source->running, source->buffers.mask};
    CR_ARENA_ALLOC(&c->arena, c->value, (size_t)small->value_elems + 1);
    CR_ARENA_ALLOC(&c->arena, c->running, (size_t)small->running_elems + 1);
    CR_ARENA_ALLOC(&c->arena, c->mask, bytes);
    memset(c->mask, 0xff, bytes);
    const struct cr_shrink_buffers to = {c->value, c->running, c->mask};
    cr_shrink_copy(&source->shrink, store, &from, small, &to);
    CR_TRY(cr_budget_masks(c->config, layers, small, c->value, c->mask));
    cr_prune_zero(small, c->mask, c->value);
    for (size_t i = 0; i < bytes - 1; i++) c->masked |= c->mask[i] != 0xff;
    return CR_OK;
}

/* The model as the device runs it: an 8-bit network has further parameters, which masks do not know. */
static cr_status predict(struct cr_budget_clock *clock, struct cr_budget_candidate *c) {
    const struct cr_config *config;
    struct cr_model         model;
    cr_status               status;
    CR_TRY(cr_config_derive(&config, clock->config, 0, NULL, 0));
    CR_TRY_OUT(cr_config_set(&config, "model.channels", c->config->model.channels));
    CR_TRY_OUT(cr_model_open(config, c->model.classes, c->model.eval_size, c->model.eval_size, &model));
    cr_model_set_real(&model, clock->session.model.real);
    CR_ASSERT(!c->masked || config->quant.type != CR_QUANT_NONE ||
              model.store.value_elems == c->model.store.value_elems);
    const bool masked = c->masked && config->quant.type == CR_QUANT_NONE && config->train.sparse;
    status            = cr_budget_network_cost(clock, config, &model, masked ? c->mask : NULL, &c->cost);
    cr_model_close(&model);
out:
    cr_config_close(config);
    return status;
}

cr_status cr_budget_candidate_make(struct cr_budget *b, const struct cr_search_result *result,
                                   struct cr_budget_candidate *c) {
    const struct cr_model *model = &b->source.session.model;
    *c                           = (struct cr_budget_candidate){0};
    CR_ARENA_ALLOC(&c->arena, c->level, (size_t)b->source.groups.groups + 1);
    CR_ARENA_ALLOC(&c->arena, c->use, (size_t)b->layers.count + 1);
    apply(b, result, c);
    c->table = c->cost = b->problem.fixed + result->cost;
    c->loss            = result->loss;
    c->gap             = result->gap;
    CR_TRY(set_config(&b->source, c));
    CR_TRY(cr_model_open(c->config, model->classes, model->image_size, model->eval_size, &c->model));
    CR_TRY(set_weights(&b->source, &b->layers, c));
    return predict(&b->clock, c);
}

void cr_budget_candidate_free(struct cr_budget_candidate *c) {
    cr_model_close(&c->model);
    cr_arena_free(&c->arena);
    cr_text_free(&c->channels);
    cr_config_close(c->config);
    *c = (struct cr_budget_candidate){0};
}
