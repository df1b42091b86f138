/* data/loader/balance.c: balanced sampling (class imbalance): an order in which every class occurs equally often. */
#include "core/rng.h"
#include "data/loader/loader_internal.h"
#include "data/source.h"

#include <string.h>

void cr_class_index_free(struct class_index *index) {
    cr_free(index->sample);
    cr_free(index->first);
    *index = (struct class_index){0};
}

cr_status cr_class_index_make(const struct cr_dataset *dataset, struct class_index *out) {
    const int classes = dataset->classes;
    CR_ALLOC(out->first, (size_t)classes + 1);
    CR_ALLOC(out->sample, (size_t)dataset->count);
    for (int64_t i = 0; i < dataset->count; i++) out->first[cr_dataset_label(dataset, i) + 1]++;
    for (int c = 0; c < classes; c++) {
        out->present += out->first[c + 1] > 0;
        out->first[c + 1] += out->first[c];
    }
    /* first[c] moves to the end of class c while the samples are entered, and then back */
    for (int64_t i = 0; i < dataset->count; i++) out->sample[out->first[cr_dataset_label(dataset, i)]++] = (uint32_t)i;
    memmove(out->first + 1, out->first, (size_t)classes * sizeof *out->first);
    out->first[0] = 0;
    out->classes  = classes;
    return CR_OK;
}

/* Draws `wanted` of the samples in pool[n]: all of them before any occurs again. */
static void draw(struct cr_rng *rng, uint32_t *pool, int64_t n, uint32_t *out, int64_t wanted) {
    for (int64_t i = 0; i < wanted; i++) {
        const int64_t  at = i % n, from = at + (int64_t)cr_rng_below(rng, (uint64_t)(n - at));
        const uint32_t t = pool[at];
        pool[at]         = pool[from];
        pool[from]       = t;
        out[i]           = pool[at];
    }
}

void cr_order_balance(uint32_t *order, int64_t count, const struct class_index *index, uint64_t seed, int64_t epoch) {
    struct cr_rng rng   = cr_rng_make(seed, CR_RNG_ORDER, (uint64_t)epoch, 1);
    uint32_t     *pool  = order + count;
    int64_t       at    = 0;
    const int64_t start = (int64_t)cr_rng_below(&rng, (uint64_t)index->present); /* the classes that get one more */
    for (int c = 0, k = 0; c < index->classes; c++) {
        const int64_t n = index->first[c + 1] - index->first[c];
        if (n == 0) continue;
        const int64_t wanted = count / index->present + ((k + start) % index->present < count % index->present);
        memcpy(pool, index->sample + index->first[c], (size_t)n * sizeof *pool);
        draw(&rng, pool, n, order + at, wanted);
        at += wanted;
        k++;
    }
    memcpy(pool, order, (size_t)count * sizeof *pool);
    draw(&rng, pool, count, order, count);
}
