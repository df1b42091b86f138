/* tests/harness/random_network.h: configurations of random small networks with all kinds of blocks, stems, shortcuts
 * and attention, for tests of channel groups. */
#ifndef CR_TEST_RANDOM_NETWORK_H
#define CR_TEST_RANDOM_NETWORK_H

#include "core/rng.h"

#include <stdio.h>

enum { RANDOM_KEYS = 8 };
struct random_network {
    char        text[RANDOM_KEYS][64];
    const char *keys[RANDOM_KEYS];
    char        name[512];
    int         size; /* of images, in pixels */
};

/* Widths are w or w + 2 to w + 4 with w in {2, 4}, times `scale`. */
static inline void random_network(uint64_t i, int scale, struct random_network *n) {
    static const char *const stems[] = {"cifar", "imagenet", "deep"}, *const shortcuts[] = {"A", "B", "D"};
    struct cr_rng  rng   = cr_rng_make(11, CR_RNG_TEST, i, 0);
    const int      width = 2 + 2 * (int)cr_rng_below(&rng, 2), stem = (int)cr_rng_below(&rng, 3);
    const uint64_t attention = cr_rng_below(&rng, 5);
    const int      depth = 1 + (int)cr_rng_below(&rng, 2), second = 1 + (int)cr_rng_below(&rng, 2);
    snprintf(n->text[0], sizeof n->text[0], "model.arch=custom");
    snprintf(n->text[1], sizeof n->text[1], "model.block=%s", i % 2 ? "basic" : "bottleneck");
    snprintf(n->text[2], sizeof n->text[2], "model.depths=%d,%d", depth, second);
    snprintf(n->text[3], sizeof n->text[3], "model.widths=%d,%d", scale * width,
             scale * (width + 2 * (int)cr_rng_below(&rng, 3)));
    snprintf(n->text[4], sizeof n->text[4], "model.stem=%s", stems[stem]);
    snprintf(n->text[5], sizeof n->text[5], "model.shortcut=%s", shortcuts[cr_rng_below(&rng, 3)]);
    snprintf(n->text[6], sizeof n->text[6], "model.%s=%s", attention < 2 ? "excitation" : "eca",
             attention < 3 ? "yes" : "no");
    snprintf(n->text[7], sizeof n->text[7], "model.blur_pool=%s", cr_rng_below(&rng, 4) ? "no" : "yes");
    n->size     = stem ? 16 : 4;
    size_t used = 0;
    for (int k = 0; k < RANDOM_KEYS; k++) {
        n->keys[k] = n->text[k];
        used += (size_t)snprintf(n->name + used, sizeof n->name - used, "%s ", n->text[k]);
    }
}

#endif
