/* tests/harness/masks_network.h: a small network for tests of masks: conv1, two convolutions, one that no pattern fits,
 * fc. Its weights are drawn. */
#ifndef CR_TEST_MASKS_NETWORK_H
#define CR_TEST_MASKS_NETWORK_H

#include "core/rng.h"
#include "pruning/pruning.h"
#include "tests/harness/config_support.h"

struct net {
    const struct cr_config *config;
    struct cr_param_store   store;
    struct cr_prune         prune;
    float                  *value;
    uint8_t                *mask;
};

enum { A = 1, B = 2, ODD = 3 }; /* layers */

static inline void net_close(struct net *n) {
    cr_prune_close(&n->prune);
    cr_free(n->value);
    cr_free(n->mask);
    cr_param_store_free(&n->store);
    cr_config_close(n->config);
}
OWNABLE(net, struct net, net_close(x))

/* Closes the network that `n` has; { 0 } at first. */
static inline cr_status net_open_(struct net *n, const char *const *overrides) {
    int count = 0;
    while (overrides[count]) count++;
    net_close(n);
    *n = (struct net){.store = {.real = CR_F32, .has_momentum = true, .has_mask = true}};
    CR_TRY(cr_config_open(&n->config, NULL, overrides, count));
    cr_param_store_add(&n->store, "conv1.weight", CR_ROLE_CONV, (const int64_t[4]){8, 3, 3, 3}, CR_NONE);
    cr_param_store_add(&n->store, "bn1.weight", CR_ROLE_GAMMA, (const int64_t[4]){1, 1, 1, 8}, CR_NONE);
    cr_param_store_add(&n->store, "layer1.0.conv1.weight", CR_ROLE_CONV, (const int64_t[4]){8, 3, 3, 8}, CR_NONE);
    cr_param_store_add(&n->store, "layer1.0.conv2.weight", CR_ROLE_CONV, (const int64_t[4]){16, 1, 1, 8}, CR_NONE);
    cr_param_store_add(&n->store, "layer2.0.conv1.weight", CR_ROLE_CONV, (const int64_t[4]){9, 1, 1, 7}, CR_NONE);
    cr_param_store_add(&n->store, "fc.weight", CR_ROLE_DENSE_WEIGHT, (const int64_t[4]){10, 1, 1, 16}, CR_NONE);
    n->value = cr_alloc((size_t)n->store.value_elems, sizeof *n->value);
    n->mask  = cr_alloc((size_t)n->store.value_elems / 8, 1);
    if (!n->value || !n->mask) return CR_NO_MEMORY(0);
    memset(n->mask, 0xff, (size_t)n->store.value_elems / 8);
    struct cr_rng rng = cr_rng_make(3, CR_RNG_TEST, 0, 0);
    for (int64_t i = 0; i < n->store.value_elems; i++) n->value[i] = cr_rng_normal(&rng);
    return cr_prune_open(&n->store, n->config, &n->prune);
}
#define net_open(n, ...) net_open_(n, (const char *const[]){__VA_ARGS__, NULL})

static inline const struct cr_param *param(const struct net *n, int layer) {
    return &n->store.param[n->prune.layer[layer].param];
}
static inline float *weights(struct net *n, int layer) {
    return n->value + param(n, layer)->offset;
}
static inline bool is_unpruned(const struct net *n, int layer, int64_t i) {
    const int64_t at = param(n, layer)->offset + i;
    return n->mask[at / 8] >> (at % 8) & 1;
}

#endif
