/* pruning/group_decay.c: a penalty that makes unimportant channels small while training. See pruning/shrink.h. */
#include "pruning/pruning.h"
#include "pruning/shrink.h"

#include <math.h>
#include <string.h>

/* Keeps the channels of sums: what a block adds to its input, and the input. */
static void keep_sums(struct cr_shrink *s) {
    const struct cr_channel_groups *g = s->groups;
    for (int i = 0; i < g->program->ops; i++) {
        const struct cr_op *op = &g->program->op[i];
        if (op->kind != CR_OP_add) continue;
        const int sum = op->out[CR_OUT_add_y];
        for (int64_t c = 0; c < g->program->tensor[sum].dim[3]; c++) {
            const int group = g->group_of[cr_channel_unit(g, sum, CR_AXIS_C, c)];
            if (group != CR_NONE) s->keeps[group] = true;
        }
    }
}

cr_status cr_shrink_keep_exempt(struct cr_shrink *shrink, const struct cr_param_store *store,
                                const struct cr_config *config) {
    struct cr_config local = *config;
    struct cr_prune  layers;
    local.prune.pattern = CR_PRUNE_PATTERN_CHANNELS; /* no layer has another reason to stay dense */
    if (strcmp(local.prune.exempt, "auto") == 0) local.prune.exempt = "";
    CR_TRY(cr_prune_open(store, &local, &layers));
    for (int l = 0; l < layers.layers && shrink; l++)
        if (layers.layer[l].dense) cr_shrink_keep(shrink, layers.layer[l].param);
    if (shrink && cr_prune_exempts_residual(&local)) keep_sums(shrink);
    cr_prune_close(&layers);
    return CR_OK;
}

enum { GROWTH = 4 }; /* the least important unit decays 2^GROWTH times as fast as the most important one */

struct range {
    double min, max;
};

static struct range range_of(const struct cr_shrink *s, int group) {
    struct range r = {INFINITY, -INFINITY};
    for (int u = 0; u < s->groups->units; u++) {
        if (s->groups->group_of[u] != group) continue;
        r.min = fmin(r.min, s->importance[u]);
        r.max = fmax(r.max, s->importance[u]);
    }
    return r;
}

/* Sets g of each unit. Units of a group with equal importances have 1. */
static void set_growth(const struct cr_shrink *s, double *growth) {
    const struct cr_channel_groups *g = s->groups;
    for (int k = 0; k < g->groups; k++) {
        const struct range r = range_of(s, k);
        for (int u = 0; u < g->units; u++)
            if (g->group_of[u] == k && !s->keeps[k])
                growth[u] = r.max > r.min ? exp2(GROWTH * (r.max - s->importance[u]) / (r.max - r.min)) : 1;
    }
}

static void decay_param(const struct cr_shrink *s, int tensor, const struct cr_param *q, const double *growth,
                        double amount, float *value) {
    const struct cr_channel_groups *g     = s->groups;
    const int64_t                   inner = q->dim[1] * q->dim[2] * q->dim[3], C = q->dim[3];
    const bool matrix = q->role == CR_ROLE_CONV || q->role == CR_ROLE_DENSE_WEIGHT; /* has outputs on axis K */
    for (int64_t i = 0; i < q->elems; i++) {
        double sum = growth[cr_channel_unit(g, tensor, CR_AXIS_C, i % C)];
        if (matrix) sum += growth[cr_channel_unit(g, tensor, CR_AXIS_K, i / inner)];
        const double left    = 1 - amount * q->lr_scale * sum;
        value[q->offset + i] = (float)((double)value[q->offset + i] * fmax(left, 0));
    }
}

cr_status cr_shrink_decay(const struct cr_shrink *s, const struct cr_param_store *store, double amount, float *value) {
    double *growth;
    CR_ALLOC(growth, (size_t)s->groups->units + 1);
    set_growth(s, growth);
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q      = &store->param[i];
        const int              tensor = cr_tensor_store_find(s->groups->program, CR_BUFFER_VALUE, i);
        if (!cr_param_is_running(q->role) && !q->frozen && tensor != CR_NONE)
            decay_param(s, tensor, q, growth, amount, value);
    }
    cr_free(growth);
    return CR_OK;
}
