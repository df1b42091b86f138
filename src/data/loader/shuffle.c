/* data/loader/shuffle.c: the samples of an epoch and their order. */
#include "core/rng.h"
#include "data/loader/loader_internal.h"
#include "data/source.h"

int64_t cr_loader_batches(const struct cr_dataset *dataset, const struct cr_loader_options *options) {
    int64_t count = dataset->count, batch = options->batch * CR_MAX(options->ranks, 1);
    return options->split == CR_SPLIT_TRAIN && options->drop_last ? count / batch : (count + batch - 1) / batch;
}

void cr_order_shuffle(uint32_t *order, int64_t count, uint64_t seed, int64_t epoch) {
    struct cr_rng rng = cr_rng_make(seed, CR_RNG_ORDER, (uint64_t)epoch, 0);
    for (int64_t i = 0; i < count; i++) order[i] = (uint32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t  j = (int64_t)cr_rng_below(&rng, (uint64_t)i + 1);
        uint32_t t = order[i];
        order[i]   = order[j];
        order[j]   = t;
    }
}

uint32_t *cr_loader_order_new(const struct cr_loader *loader) {
    return cr_alloc((size_t)loader->count * (loader->index.sample ? 2 : 1), sizeof(uint32_t));
}

void cr_loader_order_fill(const struct cr_loader *loader, uint32_t *order, int64_t epoch) {
    if (loader->index.sample)
        cr_order_balance(order, loader->count, &loader->index, loader->options.seed, epoch);
    else
        cr_order_shuffle(order, loader->count, loader->options.seed, epoch);
}
