/* data/loader/shuffle.c: shuffles the samples of each epoch (their order), also with repeated augmentation. */
#include "core/rng.h"
#include "data/loader/loader_internal.h"
#include "data/source.h"

struct cr_loader_options cr_loader_options_from(const struct cr_config *c, enum cr_split split,
                                                const struct cr_prepare *prepare, int64_t batch) {
    return (struct cr_loader_options){.split    = split,
                                      .prepare  = *prepare,
                                      .batch    = batch,
                                      .seed     = (uint64_t)c->train.seed,
                                      .workers  = (int)c->data.workers,
                                      .prefetch = (int)c->data.prefetch};
}

struct cr_loader_options cr_loader_options_of_training(const struct cr_config *c, const struct cr_prepare *prepare,
                                                       int64_t batch) {
    struct cr_loader_options o = cr_loader_options_from(c, CR_SPLIT_TRAIN, prepare, batch);
    o.drop_last                = c->data.drop_last;
    o.corrupt_fatal            = c->data.corrupt == CR_CORRUPT_FATAL;
    o.balanced                 = c->data.sampling == CR_SAMPLING_BALANCED;
    o.repeats                  = (int)c->data.repeats;
    return o;
}

int64_t cr_loader_batches(const struct cr_dataset *dataset, const struct cr_loader_options *options) {
    const int     views = options->split == CR_SPLIT_VAL ? cr_prepare_views(options->prepare.tta) : 1;
    const int64_t count = dataset->count * views, batch = options->batch * CR_MAX(options->ranks, 1);
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

/* Copies of an image are near each other, so that most batches hold all of them, but never neighbours, which mixup
 * would mix. 2 * repeats images form a group, which occurs `repeats` times in a row; each time an image with an even
 * number has another neighbour. */
void cr_order_repeat(uint32_t *order, int64_t count, int repeats, uint64_t seed, int64_t epoch) {
    const int64_t   images = 2 * (int64_t)repeats, places = images * repeats;
    uint32_t *const pool = order + count;
    cr_order_shuffle(pool, count, seed, epoch);
    for (int64_t i = 0; i < count; i++) {
        const int64_t time = i % places / images, at = i % images, pair = at % 2 ? (at / 2 + time) % repeats : at / 2;
        order[i] = pool[(i / places * images + 2 * pair + at % 2) % count];
    }
}

bool cr_loader_repeats(const struct cr_loader *loader) {
    return loader->index.sample || loader->options.repeats > 1;
}

uint32_t *cr_loader_order_new(const struct cr_loader *loader) {
    return cr_alloc((size_t)loader->count * (cr_loader_repeats(loader) ? 2 : 1), sizeof(uint32_t));
}

void cr_loader_order_fill(const struct cr_loader *loader, uint32_t *order, int64_t epoch) {
    if (loader->index.sample)
        cr_order_balance(order, loader->count, &loader->index, loader->options.seed, epoch);
    else if (loader->options.repeats > 1)
        cr_order_repeat(order, loader->count, loader->options.repeats, loader->options.seed, epoch);
    else
        cr_order_shuffle(order, loader->count, loader->options.seed, epoch);
}
