/* pruning/exempt_channels.c: the channels that prune.exempt keeps. See pruning/shrink.h. */
#include "pruning/pruning.h"
#include "pruning/shrink.h"

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
    for (int l = 0; l < layers.layers; l++)
        if (layers.layer[l].dense) cr_shrink_keep(shrink, layers.layer[l].param);
    if (cr_prune_exempts_residual(&local)) keep_sums(shrink);
    cr_prune_close(&layers);
    return CR_OK;
}
