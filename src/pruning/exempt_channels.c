/* pruning/exempt_channels.c: the channels that channel pruning must keep by prune.exempt. See pruning/shrink.h. */
#include "pruning/pruning.h"
#include "pruning/shrink.h"

#include <string.h>

/* Keeps the groups of `count` slices of an axis of a tensor. */
static void keep_axis(struct cr_shrink *s, int tensor, enum cr_channel_axis axis, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int group = s->groups->group_of[cr_channel_unit(s->groups, tensor, axis, i)];
        if (group != CR_NONE) s->keeps[group] = true;
    }
}

cr_status cr_shrink_keep_exempt(struct cr_shrink *shrink, const struct cr_param_store *store,
                                const struct cr_config *config) {
    struct cr_config local = *config;
    struct cr_prune  layers;
    local.prune.pattern = CR_PRUNE_PATTERN_CHANNELS; /* no layer has another reason to stay dense */
    if (strcmp(local.prune.exempt, "auto") == 0) local.prune.exempt = "";
    CR_TRY(cr_prune_open(store, &local, &layers));
    const struct cr_program *p = shrink->groups->program;
    for (int l = 0; l < layers.layers; l++) {
        const int w = cr_tensor_store_find(p, CR_BUFFER_VALUE, layers.layer[l].param);
        if (layers.layer[l].dense && w != CR_NONE) keep_axis(shrink, w, CR_AXIS_K, p->tensor[w].dim[0]);
    }
    for (int i = 0; i < p->ops && cr_prune_exempts_residual(&local); i++) { /* sums: what a block adds to its input */
        const int y = p->op[i].out[CR_OUT_add_y];
        if (p->op[i].kind == CR_OP_add) keep_axis(shrink, y, CR_AXIS_C, p->tensor[y].dim[3]);
    }
    cr_prune_close(&layers);
    return CR_OK;
}
