/* config/removed.c: keys and values of earlier versions that no version reads any more, and what takes their place. */
#include "config/keys.h"

#include <string.h>

static const struct removed {
    const char *section, *name;
    const char *value;  /* NULL: any value but an empty one, which was the default */
    const char *stored; /* value that a run folder with this one gets; NULL: the key is ignored there */
    const char *instead;
} removed[] = {
#define SWAP "give auto; cresnet-memory-trace offloading CONFIG compares the rules (tools/memory-trace/README.md)"
    {"memory", "trace", NULL, NULL,
     "the key is gone: cresnet-memory-trace log CONFIG writes the log (tools/memory-trace/README.md)"},
    {"memory", "swap", "best", "auto", SWAP},
    {"memory", "swap", "doa", "auto", SWAP},
    {"memory", "swap", "aoa", "auto", SWAP},
    {"memory", "swap", "wdoa", "auto", SWAP},
    {"memory", "swap", "swdoa", "auto", SWAP},
    {"memory", "swap", "first", "auto", SWAP},
};

const char *cr_key_removed(const char *section, const char *name, const char *value, const char **stored) {
    for (size_t i = 0; i < CR_COUNT(removed); i++) {
        const struct removed *r = &removed[i];
        if (strcmp(r->section, section) != 0 || strcmp(r->name, name) != 0) continue;
        if (r->value && strcmp(r->value, value) != 0) continue;
        *stored = r->stored;
        return r->instead;
    }
    return NULL;
}
