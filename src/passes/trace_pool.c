/* trace_pool.c: what a pool would need that does not know the future: one malloc and free after the other, each in the
 * smallest free range that holds it, free neighbours joined. What a plan is compared with. */
#include "passes/trace.h"

#include <string.h>

enum { TURNS = 4 };

struct range {
    size_t offset, size;
    bool   free;
};

struct pool {
    struct range *range; /* by offset, without gaps from 0 */
    int           ranges, capacity;
    size_t        top, peak;
};

static void remove_range(struct pool *pool, int at) {
    memmove(&pool->range[at], &pool->range[at + 1], (size_t)(pool->ranges - at - 1) * sizeof *pool->range);
    pool->ranges--;
}

static cr_status insert_range(struct pool *pool, int at, struct range range) {
    if (pool->ranges == pool->capacity) {
        const int     wider = pool->capacity ? 2 * pool->capacity : 256;
        struct range *more  = cr_realloc(pool->range, (size_t)wider, sizeof *more);
        if (!more) return CR_NO_MEMORY((size_t)wider * sizeof *more);
        pool->range    = more;
        pool->capacity = wider;
    }
    memmove(&pool->range[at + 1], &pool->range[at], (size_t)(pool->ranges - at) * sizeof *pool->range);
    pool->range[at] = range;
    pool->ranges++;
    return CR_OK;
}

static cr_status pool_take(struct pool *pool, size_t size, size_t *offset) {
    int best = CR_NONE;
    for (int i = 0; i < pool->ranges; i++) {
        const struct range *r = &pool->range[i];
        if (r->free && r->size >= size && (best == CR_NONE || r->size < pool->range[best].size)) best = i;
    }
    if (best == CR_NONE) { /* grows; a free range at the top is part of it */
        if (pool->ranges && pool->range[pool->ranges - 1].free) pool->top = pool->range[--pool->ranges].offset;
        best = pool->ranges;
        CR_TRY(insert_range(pool, best, (struct range){pool->top, size, true}));
        pool->top += size;
        pool->peak = CR_MAX(pool->peak, pool->top);
    }
    struct range *r      = &pool->range[best];
    const size_t  left   = r->size - size;
    *r                   = (struct range){r->offset, size, false};
    *offset              = r->offset;
    return left ? insert_range(pool, best + 1, (struct range){*offset + size, left, true}) : CR_OK;
}

static void pool_give(struct pool *pool, size_t offset) {
    int low = 0, high = pool->ranges - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (pool->range[middle].offset < offset) low = middle + 1;
        else high = middle;
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

cr_status cr_trace_online(const struct cr_trace *trace, const struct cr_trace_loop *loop, const struct cr_trace_plan *plan,
                          size_t *peak) {
    struct pool   pool   = {0};
    cr_status     status = CR_OK;
    const int     begin  = loop->start + plan->cut;
    const int64_t end    = CR_MIN((int64_t)loop->end, begin + (int64_t)TURNS * loop->period);
    size_t       *offset = cr_alloc((size_t)CR_MAX(trace->blocks, 1), sizeof *offset);
    if (!offset) return CR_NO_MEMORY((size_t)trace->blocks * sizeof *offset);
    for (int i = begin; i < end; i++) {
        const struct cr_trace_event *e    = &trace->event[i];
        const struct cr_trace_block *b    = &trace->block[e->block];
        const size_t                 size = (b->size + plan->alignment - 1) / plan->alignment * plan->alignment;
        if (b->born < begin || b->died == CR_NONE || !size) continue; /* what lives on is not of the iteration */
        if (e->kind == CR_TRACE_MALLOC) CR_TRY_OUT(pool_take(&pool, size, &offset[e->block]));
        if (e->kind == CR_TRACE_FREE) pool_give(&pool, offset[e->block]);
    }
    *peak = pool.peak;
out:
    cr_free(offset);
    cr_free(pool.range);
    return status;
}
