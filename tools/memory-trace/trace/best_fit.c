/* tools/memory-trace/trace/best_fit.c: online best-fit allocator over a sorted list of ranges. */
#include "tools/memory-trace/trace/best_fit.h"

#include "graph/graph.h"

#include <string.h>

static void remove_range(struct cr_best_fit *pool, int at) {
    memmove(&pool->range[at], &pool->range[at + 1], (size_t)(pool->ranges - at - 1) * sizeof *pool->range);
    pool->ranges--;
}

static cr_status insert_range(struct cr_best_fit *pool, int at, struct cr_best_fit_range range) {
    if (pool->ranges == pool->capacity) {
        const int                 wider = pool->capacity ? 2 * pool->capacity : 256;
        struct cr_best_fit_range *more  = cr_realloc(pool->range, (size_t)wider, sizeof *more);
        if (!more) return CR_NO_MEMORY((size_t)wider * sizeof *more);
        pool->range    = more;
        pool->capacity = wider;
    }
    memmove(&pool->range[at + 1], &pool->range[at], (size_t)(pool->ranges - at) * sizeof *pool->range);
    pool->range[at] = range;
    pool->ranges++;
    return CR_OK;
}

cr_status cr_best_fit_alloc(struct cr_best_fit *pool, size_t size, size_t *offset) {
    int best = CR_NONE;
    for (int i = 0; i < pool->ranges; i++) {
        const struct cr_best_fit_range *r = &pool->range[i];
        if (r->free && r->size >= size && (best == CR_NONE || r->size < pool->range[best].size)) best = i;
    }
    if (best == CR_NONE) { /* grows the pool; a free range at its end becomes part of the allocation */
        if (pool->ranges && pool->range[pool->ranges - 1].free) pool->top = pool->range[--pool->ranges].offset;
        best = pool->ranges;
        CR_TRY(insert_range(pool, best, (struct cr_best_fit_range){pool->top, size, true}));
        pool->top += size;
        pool->peak = CR_MAX(pool->peak, pool->top);
    }
    struct cr_best_fit_range *r         = &pool->range[best];
    const size_t              remaining = r->size - size;
    *r                                  = (struct cr_best_fit_range){r->offset, size, false};
    *offset                             = r->offset;
    return remaining ? insert_range(pool, best + 1, (struct cr_best_fit_range){*offset + size, remaining, true})
                     : CR_OK;
}

void cr_best_fit_release(struct cr_best_fit *pool, size_t offset) {
    int low = 0, high = pool->ranges - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (pool->range[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    pool->range[low].free = true;
    if (low + 1 < pool->ranges && pool->range[low + 1].free) {
        pool->range[low].size += pool->range[low + 1].size;
        remove_range(pool, low + 1);
    }
    if (low > 0 && pool->range[low - 1].free) {
        pool->range[low - 1].size += pool->range[low].size;
        remove_range(pool, low);
    }
}

void cr_best_fit_free(struct cr_best_fit *pool) {
    cr_free(pool->range);
    *pool = (struct cr_best_fit){0};
}
