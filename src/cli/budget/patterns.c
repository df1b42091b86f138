/* cli/budget/patterns.c: the sparsity patterns (unstructured, 2:4, block) that single layers may get. */
#include "cli/budget/budget.h"
#include "compiler/passes.h"

#include <string.h>

/* 0.81 and not 0.8: a rule "from 0.8 on" must also hold when the number of pruned weights is rounded down. */
static const double weights_grid[]  = {0.5, 0.6, 0.7, 0.81, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98};
static const double two_four_grid[] = {0.5};
static const double block_grid[]    = {0.5, 0.6, 0.7, 0.8, 0.9};
enum { CHOICES_MAX = 2 + CR_COUNT(weights_grid) + CR_COUNT(two_four_grid) + CR_COUNT(block_grid) };

/* ---- layers ---- */

static cr_status add_layer(const struct cr_budget_source *s, struct cr_budget_layers *layers, int param) {
    const struct cr_param  *q      = &s->session.model.store.param[param];
    struct cr_budget_layer *l      = &layers->at[layers->count];
    const size_t            length = strlen(q->name), suffix = cr_ends_with(q->name, ".weight") ? strlen(".weight") : 0;
    l->param      = param;
    l->tensor     = cr_tensor_store_find(&s->program, CR_BUFFER_VALUE, param);
    l->use.chosen = CR_NONE;
    l->weight     = q->name;
    l->name       = cr_arena_printf(&layers->arena, "%.*s", (int)(length - suffix), q->name);
    if (!l->name) return CR_NO_MEMORY(length);
    CR_ASSERT(l->tensor != CR_NONE);
    layers->count++;
    CR_ARENA_ALLOC(&layers->arena, l->choice, CHOICES_MAX);
    for (int axis = 0; axis < CR_CHANNEL_AXES; axis++)
        CR_TRY(cr_width_bins_of(&s->widths, l->tensor, axis, &l->bins[axis]));
    return cr_width_energy(&s->widths, &s->shrink, s->config->prune.importance, q, l->tensor, s->buffers.value, l->bins,
                           &l->energy);
}

cr_status cr_budget_layers_open(const struct cr_budget_source *s, struct cr_budget_layers *layers) {
    const struct cr_param_store *store = &s->session.model.store;
    CR_ARENA_ALLOC(&layers->arena, layers->at, (size_t)store->params + 1);
    for (int i = 0; i < store->params; i++)
        if (store->param[i].role == CR_ROLE_CONV || store->param[i].role == CR_ROLE_DENSE_WEIGHT)
            CR_TRY(add_layer(s, layers, i));
    return CR_OK;
}

void cr_budget_layers_close(struct cr_budget_layers *layers) {
    for (int l = 0; l < layers->count; l++) {
        for (int axis = 0; axis < CR_CHANNEL_AXES; axis++) cr_free(layers->at[l].bins[axis].bin);
        cr_free(layers->at[l].energy);
    }
    cr_arena_free(&layers->arena);
    *layers = (struct cr_budget_layers){0};
}

/* ---- one pattern at one sparsity ---- */

struct trial {
    struct cr_budget     *budget;
    struct cr_prune       prune;
    uint8_t              *mask;
    enum cr_prune_pattern pattern;
    double                sparsity;
};

static double norm_left(const struct trial *t, const struct cr_param *q) {
    const float *value = t->budget->source.buffers.value;
    double       left = 0, all = 0;
    for (int64_t i = q->offset; i < q->offset + q->elems; i++) {
        const double square = (double)value[i] * (double)value[i];
        all += square;
        if (cr_mask_bit(t->mask, i)) left += square;
    }
    return all > 0 ? left / all : 1;
}

/* Adds the choice to the layer when it saves something. */
static void add_choice(const struct trial *t, struct cr_budget_layer *l, double ratio) {
    const struct cr_param  *q = &t->budget->source.session.model.store.param[l->param];
    struct cr_budget_choice c = {
        .pattern = t->pattern, .sparsity = t->sparsity, .ratio = ratio, .outputs = 1, .inputs = 1};
    if (ratio >= 1) return;
    c.left = norm_left(t, q);
    if (t->pattern == CR_PRUNE_PATTERN_BLOCK) CR_ASSERT(cr_config_block(t->prune.config, &c.outputs, &c.inputs));
    if (t->pattern == CR_PRUNE_PATTERN_2_4) c.inputs = 4;
    CR_ASSERT(l->choices < CHOICES_MAX);
    l->choice[l->choices++] = c;
}

static struct cr_budget_layer *layer_of(const struct trial *t, const char *weight) {
    for (int l = 0; l < t->budget->layers.count; l++)
        if (strcmp(t->budget->layers.at[l].weight, weight) == 0) return &t->budget->layers.at[l];
    return NULL;
}

static bool may_prune(const struct trial *t, const struct cr_budget_layer *l) {
    if (t->sparsity <= 0) return true; /* as the weights are */
    for (int i = 0; i < t->prune.layers; i++)
        if (t->prune.layer[i].param == l->param) return !t->prune.layer[i].dense;
    return false;
}

/* The time of a convolution with the mask compared with its dense kernel. */
static cr_status time_conv(const struct trial *t, int conv) {
    struct cr_budget_clock *clock   = &t->budget->clock;
    struct cr_program      *p       = &clock->program;
    const int               tensors = p->tensors;
    struct cr_sparse_cost   c;
    double                  dense, sparse;
    bool                    known;
    CR_TRY(cr_sparsify_cost(p, &clock->model, conv, &c));
    const struct cr_sparsity_attr *pattern = &c.op.attr.conv.pattern;
    struct cr_budget_layer        *layer =
        pattern->nnz ? layer_of(t, clock->session.model.store.param[pattern->param].name) : NULL;
    if (layer && c.formats && may_prune(t, layer)) {
        p->tensor[c.op.in[CR_IN_conv_packed]].dim[3] = CR_MAX(c.elems, 1);
        p->tensor[c.op.in[CR_IN_conv_packed]].bytes  = (size_t)CR_MAX(c.elems, 1) * sizeof(float);
        CR_TRY(cr_budget_op_cost(clock, p, &p->op[conv], &dense, &known));
        sparse = c.sparse_s;
        if (!clock->model.cost) CR_TRY(cr_budget_op_cost(clock, p, &c.op, &sparse, &known));
        if (known && dense > 0) add_choice(t, layer, sparse / dense);
    }
    p->tensors = tensors; /* removes the tensors that cr_sparsify_cost added */
    return CR_OK;
}

static cr_status try_mask(struct trial *t) {
    const struct cr_program *p = &t->budget->clock.program;
    for (int i = p->hoisted; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_conv) CR_TRY(time_conv(t, i));
    return CR_OK;
}

/* A pattern at all its sparsities; a mask of higher sparsity extends the mask before. */
static cr_status try_pattern(struct trial *t, const struct cr_config *config, enum cr_prune_pattern pattern,
                             const double *grid, int count, bool automatic) {
    struct cr_config local = *config;
    cr_status        status;
    local.prune.pattern  = pattern;
    local.prune.sparsity = local.prune.initial = 0;
    local.prune.scope                          = CR_PRUNE_SCOPE_UNIFORM;
    t->pattern                                 = pattern;
    status = cr_prune_open(&t->budget->source.session.model.store, &local, &t->prune);
    if (status == CR_ERR_CONFIG && automatic) { /* no layer has the shape for it */
        cr_error_clear();
        return CR_OK;
    }
    CR_TRY(status);
    memcpy(t->mask, t->budget->source.buffers.mask, (size_t)t->budget->source.session.model.store.value_elems / 8);
    for (int i = 0; i < count; i++) {
        t->sparsity = grid[i];
        for (int l = 0; l < t->prune.layers; l++) t->prune.layer[l].sparsity = grid[i];
        CR_TRY_OUT(cr_prune_masks(&t->prune, 1, t->budget->source.buffers.value, t->mask));
        CR_TRY_OUT(try_mask(t));
    }
out:
    cr_prune_close(&t->prune);
    return status;
}

/* Layers that are pruned already. */
static cr_status try_given_mask(struct trial *t) {
    t->pattern  = CR_PRUNE_PATTERN_UNSTRUCTURED;
    t->sparsity = 0;
    memcpy(t->mask, t->budget->source.buffers.mask, (size_t)t->budget->source.session.model.store.value_elems / 8);
    return try_mask(t);
}

static cr_status try_all(struct trial *t) {
    const struct cr_budget_request *r = &t->budget->request;
    const struct cr_config         *c = t->budget->source.config;
    const bool                      a = r->automatic;
    CR_TRY(try_given_mask(t));
    if (r->unstructured)
        CR_TRY(try_pattern(t, c, CR_PRUNE_PATTERN_UNSTRUCTURED, weights_grid, CR_COUNT(weights_grid), a));
    if (r->two_four) CR_TRY(try_pattern(t, c, CR_PRUNE_PATTERN_2_4, two_four_grid, CR_COUNT(two_four_grid), a));
    if (r->block) CR_TRY(try_pattern(t, c, CR_PRUNE_PATTERN_BLOCK, block_grid, CR_COUNT(block_grid), a));
    return CR_OK;
}

cr_status cr_budget_patterns(struct cr_budget *b) {
    const struct cr_config *config = b->clock.config;
    struct cr_param_store  *store  = &b->clock.session.model.store;
    struct trial            t      = {.budget = b};
    /* kernels for 8-bit values skip no weights */
    if (config->quant.type != CR_QUANT_NONE) return CR_OK;
    CR_ASSERT(store->value_elems == b->source.session.model.store.value_elems);
    CR_ALLOC(t.mask, (size_t)store->value_elems / 8 + 1);
    store->pattern         = config->train.sparse ? t.mask : NULL;
    const cr_status status = store->pattern ? try_all(&t) : CR_OK;
    store->pattern         = NULL;
    cr_free(t.mask);
    return status;
}

/* ---- masks of the chosen patterns ---- */

static const struct cr_budget_choice *chosen_by(const struct cr_budget_layers *layers, const char *name) {
    for (int l = 0; l < layers->count; l++)
        if (strcmp(layers->at[l].name, name) == 0)
            return layers->at[l].use.chosen == CR_NONE ? NULL : &layers->at[l].choice[layers->at[l].use.chosen];
    return NULL;
}

static cr_status mask_pattern(const struct cr_config *config, enum cr_prune_pattern pattern,
                              const struct cr_budget_layers *layers, const struct cr_param_store *store,
                              const float *value, uint8_t *mask) {
    struct cr_config local = *config;
    struct cr_prune  prune;
    bool             any = false;
    for (int l = 0; l < layers->count; l++) {
        const struct cr_budget_choice *c = chosen_by(layers, layers->at[l].name);
        any |= c && c->pattern == pattern && c->sparsity > 0;
    }
    if (!any) return CR_OK;
    local.prune.pattern = pattern;
    local.prune.exempt = local.prune.budget = "";
    local.prune.sparsity = local.prune.initial = 0;
    local.prune.scope                          = CR_PRUNE_SCOPE_UNIFORM;
    CR_TRY(cr_prune_open(store, &local, &prune));
    for (int l = 0; l < prune.layers; l++) {
        const struct cr_budget_choice *c = chosen_by(layers, prune.layer[l].name);
        if (!c || c->pattern != pattern || c->sparsity <= 0) prune.layer[l].dense = "has another pattern";
        prune.layer[l].sparsity = prune.layer[l].dense ? 0 : c->sparsity;
    }
    const cr_status status = cr_prune_masks(&prune, 1, value, mask);
    cr_prune_close(&prune);
    return status;
}

cr_status cr_budget_masks(const struct cr_config *config, const struct cr_budget_layers *layers,
                          const struct cr_param_store *store, const float *value, uint8_t *mask) {
    static const enum cr_prune_pattern all[] = {CR_PRUNE_PATTERN_UNSTRUCTURED, CR_PRUNE_PATTERN_2_4,
                                                CR_PRUNE_PATTERN_BLOCK};
    for (size_t i = 0; i < CR_COUNT(all); i++) CR_TRY(mask_pattern(config, all[i], layers, store, value, mask));
    return CR_OK;
}
