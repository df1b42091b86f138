/* tools/memory-trace/trace/online_pool.c: the bytes that a pool without knowledge of the future needs for a log, for
 * comparison with a plan. */
#include "tools/memory-trace/trace/best_fit.h"
#include "tools/memory-trace/trace/trace.h"

enum { ITERATIONS = 4 };

cr_status cr_trace_online(const struct cr_trace *trace, const struct cr_trace_loop *loop,
                          const struct cr_trace_plan *plan, size_t *peak) {
    struct cr_best_fit pool   = {0};
    cr_status          status = CR_OK;
    const int          begin  = loop->start + plan->cut;
    const int64_t      end    = CR_MIN((int64_t)loop->end, begin + (int64_t)ITERATIONS * loop->period);
    size_t            *offset = cr_alloc((size_t)CR_MAX(trace->blocks, 1), sizeof *offset);
    if (!offset) return CR_NO_MEMORY((size_t)trace->blocks * sizeof *offset);
    for (int i = begin; i < end; i++) {
        const struct cr_trace_event *e    = &trace->event[i];
        const struct cr_trace_block *b    = &trace->block[e->block];
        const size_t                 size = (b->size + plan->alignment - 1) / plan->alignment * plan->alignment;
        if (b->alloc_at < begin || b->free_at == CR_NONE || !size)
            continue; /* a block that lives longer does not belong to the iteration */
        if (e->kind == CR_TRACE_MALLOC) CR_TRY_OUT(cr_best_fit_alloc(&pool, size, &offset[e->block]));
        if (e->kind == CR_TRACE_FREE) cr_best_fit_release(&pool, offset[e->block]);
    }
    *peak = pool.peak;
out:
    cr_free(offset);
    cr_best_fit_free(&pool);
    return status;
}
