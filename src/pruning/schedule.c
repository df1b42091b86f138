/* pruning/schedule.c: which layers are pruned, to which sparsity, and when (gradual pruning). See pruning/pruning.h. */
#include "config/config.h"
#include "pruning/pruning.h"

#include <math.h>
#include <string.h>

/* ---- layers ---- */

/* Iterates over "a, b,c"; NULL at the end. */
static const char *next_word(const char **at, size_t *length) {
    *at += strspn(*at, ", \t");
    const char *word = *at;
    *length          = strcspn(word, ", \t");
    *at += *length;
    return *length ? word : NULL;
}

static bool is_residual(const struct cr_config *config, const char *word, size_t length) {
    return config->prune.pattern == CR_PRUNE_PATTERN_CHANNELS && length == strlen("residual") &&
           memcmp(word, "residual", length) == 0;
}

bool cr_prune_exempts_residual(const struct cr_config *config) {
    const char *at = config->prune.exempt, *word;
    size_t      length;
    while ((word = next_word(&at, &length)))
        if (is_residual(config, word, length)) return true;
    return false;
}

static const char *const by_exempt = "stays dense by prune.exempt";

static cr_status exempt(struct cr_prune *prune) {
    const char *at = prune->config->prune.exempt, *word;
    size_t      length;
    if (strcmp(at, "auto") == 0) at = *prune->config->prune.budget ? "" : "conv1,fc"; /* a budget names its layers */
    while ((word = next_word(&at, &length))) {
        bool found = is_residual(prune->config, word, length);
        for (int l = 0; l < prune->layers; l++) {
            const char *name = prune->layer[l].name;
            if (strncmp(name, word, length) != 0 || (name[length] && name[length] != '.')) continue;
            prune->layer[l].dense = by_exempt;
            found                 = true;
        }
        if (found) continue;
        return cr_config_fail(prune->config, "prune.exempt", "\"%.*s\" is not a layer or part of this network",
                              (int)length, word);
    }
    return CR_OK;
}

/* The reason why the pattern does not apply to a filter; NULL when it applies. */
static const char *mismatch(struct cr_prune *prune, const struct cr_param *q) {
    const bool blocks = prune->config->prune.pattern == CR_PRUNE_PATTERN_BLOCK;
    int64_t    outputs, inputs;
    CR_ASSERT(cr_config_block(prune->config, &outputs, &inputs));
    if (q->frozen) return "is frozen";
    if (prune->config->prune.pattern == CR_PRUNE_PATTERN_2_4 && q->dim[3] % 4)
        return cr_arena_printf(&prune->arena, "has %lld input channels, not a multiple of 4", (long long)q->dim[3]);
    if (blocks && q->dim[0] % outputs)
        return cr_arena_printf(&prune->arena, "has %lld output channels, not a multiple of %lld", (long long)q->dim[0],
                               (long long)outputs);
    if (blocks && q->dim[3] % inputs)
        return cr_arena_printf(&prune->arena, "has %lld input channels, not a multiple of %lld", (long long)q->dim[3],
                               (long long)inputs);
    return NULL;
}

static cr_status list_layers(struct cr_prune *prune) {
    const struct cr_param_store *store = prune->store;
    CR_ARENA_ALLOC(&prune->arena, prune->layer, (size_t)store->params);
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT) continue;
        const size_t           suffix = cr_ends_with(q->name, ".weight") ? strlen(".weight") : 0;
        const size_t           length = strlen(q->name) - suffix;
        struct cr_prune_layer *layer  = &prune->layer[prune->layers++];
        *layer = (struct cr_prune_layer){.name  = cr_arena_printf(&prune->arena, "%.*s", (int)length, q->name),
                                         .param = i,
                                         .elems = q->elems,
                                         .dense = mismatch(prune, q)};
        if (!layer->name) return CR_NO_MEMORY(length);
    }
    return CR_OK;
}

/* ---- sparsity of each layer ---- */

static double raw_density(const struct cr_param *q) {
    const int64_t window = q->role == CR_ROLE_CONV ? q->dim[1] + q->dim[2] : 0;
    return (double)(q->dim[0] + q->dim[3] + window) / (double)q->elems;
}

/* A layer whose density would exceed 1 becomes dense, which lowers the density of the remaining layers. Repeated until
 * no density exceeds 1. */
void cr_prune_erk(struct cr_prune *prune, double sparsity) {
    const struct cr_param *param = prune->store->param;
    double                 left  = 0, weight, factor;
    bool                   again = true;
    for (int l = 0; l < prune->layers; l++) {
        prune->layer[l].sparsity = prune->layer[l].dense ? 0 : 1; /* 1 until the layer is found to be dense */
        if (!prune->layer[l].dense) left += (1 - sparsity) * (double)prune->layer[l].elems;
    }
    while (again) {
        again  = false;
        weight = 0;
        for (int l = 0; l < prune->layers; l++)
            if (prune->layer[l].sparsity > 0)
                weight += raw_density(&param[prune->layer[l].param]) * (double)prune->layer[l].elems;
        factor = weight > 0 ? left / weight : 0;
        for (int l = 0; l < prune->layers; l++) {
            struct cr_prune_layer *layer = &prune->layer[l];
            if (layer->sparsity <= 0 || factor * raw_density(&param[layer->param]) < 1) continue;
            layer->sparsity = 0;
            left -= (double)layer->elems;
            again = true;
        }
    }
    for (int l = 0; l < prune->layers; l++)
        if (prune->layer[l].sparsity > 0)
            prune->layer[l].sparsity = 1 - factor * raw_density(&param[prune->layer[l].param]);
}

static cr_status set_sparsities(struct cr_prune *prune) {
    const struct cr_config *c = prune->config;
    if (*c->prune.budget) return cr_prune_budget(prune, c->prune.budget);
    prune->global = c->prune.scope == CR_PRUNE_SCOPE_GLOBAL;
    for (int l = 0; l < prune->layers; l++)
        if (!prune->layer[l].dense) prune->layer[l].sparsity = c->prune.sparsity;
    if (c->prune.scope == CR_PRUNE_SCOPE_ERK) cr_prune_erk(prune, c->prune.sparsity);
    return CR_OK;
}

/* Reports the reason of the first layer that is not exempt. */
static cr_status nothing_left(const struct cr_prune *prune) {
    static const char what[] = "no layer can be pruned";
    for (int l = 0; l < prune->layers; l++)
        if (prune->layer[l].dense != by_exempt)
            return cr_config_fail(
                prune->config, prune->config->prune.pattern == CR_PRUNE_PATTERN_BLOCK ? "prune.block" : "prune.pattern",
                "%s: %s %s", what, prune->layer[l].name, prune->layer[l].dense);
    return cr_config_fail(prune->config, "prune.exempt", "%s: all layers stay dense", what);
}

static cr_status resolve(struct cr_prune *prune) {
    CR_TRY(list_layers(prune));
    CR_TRY(exempt(prune));
    CR_TRY(set_sparsities(prune));
    for (int l = 0; l < prune->layers; l++)
        if (!prune->layer[l].dense) prune->elems += prune->layer[l].elems;
    return prune->elems ? CR_OK : nothing_left(prune);
}

cr_status cr_prune_open(const struct cr_param_store *store, const struct cr_config *config, struct cr_prune *out) {
    *out             = (struct cr_prune){.store = store, .config = config};
    cr_status status = resolve(out);
    if (status != CR_OK) cr_prune_close(out);
    return status;
}

void cr_prune_close(struct cr_prune *prune) {
    cr_arena_free(&prune->arena);
    *prune = (struct cr_prune){0};
}

/* ---- schedule ---- */

bool cr_prune_due(const struct cr_config *c, int64_t step, int64_t steps_per_epoch, double *fraction) {
    const int64_t first = llround(c->prune.start * (double)steps_per_epoch);
    const int64_t last  = CR_MAX(first, (int64_t)llround(c->prune.end * (double)steps_per_epoch));
    if (!cr_config_prunes(c) || step < first || step > last) return false;
    if ((step - first) % c->prune.frequency && step != last) return false;
    const double begin = c->prune.sparsity > 0 ? c->prune.initial / c->prune.sparsity : 0;
    const double to_go = last > first ? (double)(last - step) / (double)(last - first) : 0;
    *fraction          = 1 - (1 - begin) * to_go * to_go * to_go;
    return *fraction > 0;
}
