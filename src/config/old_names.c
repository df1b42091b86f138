/* config/old_names.c: renamed, removed and deprecated names of older versions: keys of the configuration, values of
 * keys, and kernels.
 *
 * A configuration that the user gives must have today's names: an old name is an error that says what to write. The
 * configuration and the kernel times of a run folder were written by the program, so a run folder of an older version
 * is read with its old names. Both use the tables of this file. */
#include "config/keys.h"

#include <stdio.h>
#include <string.h>

/* A key or value that is renamed or removed gets a line here, and one in docs/upgrading.md. */
static const struct cr_old_name names[] = {
    {"distill", "features", NULL, NULL, "leave it out: the teacher's logits teach (distill.weight)"},
    {"memory", "swap", "best", "auto", NULL},
    {"memory", "swap", "doa", "auto", NULL},
    {"memory", "swap", "aoa", "auto", NULL},
    {"memory", "swap", "wdoa", "auto", NULL},
    {"memory", "swap", "swdoa", "auto", NULL},
    {"memory", "swap", "first", "auto", NULL},
    {"memory", "trace", NULL, NULL, "cresnet-memory-trace log CONFIG writes the log: tools/memory-trace/README.md"},
    {"memory", "zero_copy", NULL, NULL,
     "leave it out: offloaded activations are copied back, which is as fast, or recomputed"},
    {"model", "stem_init", NULL, NULL, "leave it out: whitening filters changed no accuracy"},
    {"prune", "group_decay", NULL, NULL,
     "leave it out: networks lost more accuracy with it; cresnet prune --pattern channels needs no such training"},
    {"quant", "method", "mse", "entropy", NULL},
    {"quant", "method", "percentile", "entropy", NULL},
    {"quant", "train", NULL, NULL,
     "train in floating point, then cresnet quantize RUN: training with quantised values gained 0.04 points at most"},
    {"quant", "momentum", NULL, NULL, "leave it out: it belonged to quant.train"},
    {"train", "on_event", NULL, NULL, "each event is a line of RUN/log.jsonl: tail -F RUN/log.jsonl | YOUR_COMMAND"},
    {"train", "event_timeout", NULL, NULL, "it belonged to train.on_event: read RUN/log.jsonl"},
};

/* Kernels that were renamed. Times that a checkpoint stores under the old name belong to the new one. */
static const struct {
    const char *old, *now;
} kernels[] = {
    {"cuda.loss_weighted", "cuda.loss"},
    {"cuda.loss_weighted_grad", "cuda.loss_grad"},
};

const struct cr_old_name *cr_old_name_find(const char *section, const char *key, const char *value) {
    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (strcmp(names[i].section, section) == 0 && strcmp(names[i].key, key) == 0 &&
            (!names[i].value || strcmp(names[i].value, value) == 0))
            return &names[i];
    return NULL;
}

void cr_old_name_explain(const struct cr_old_name *old, char *out, size_t bytes) {
    const char *what = old->value ? "this value" : "this key";
    if (old->now)
        snprintf(out, bytes, "this version no longer has %s: write %s.%s = %s", what, old->section, old->key, old->now);
    else
        snprintf(out, bytes, "this version no longer has %s: %s", what, old->advice);
}

const char *cr_old_kernel_now(const char *name) {
    for (size_t i = 0; i < CR_COUNT(kernels); i++)
        if (strcmp(kernels[i].old, name) == 0) return kernels[i].now;
    return name;
}
