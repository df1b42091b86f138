/* tools/memory-trace/allocators.c: turns a program into allocator requests and replays them. */
#include "tools/memory-trace/allocators.h"

#include "compiler/passes.h"
#include "compiler/schedule/streams.h"
#include "tools/memory-trace/trace/best_fit.h"

#include <stdlib.h>

/* ---- requests of a step ---- */

/* Live interval of a block: ops lower to upper - 1. A block is the chain of aliases that begins with one tensor. */
struct interval {
    int  lower, upper;
    bool used; /* false: no block begins with this tensor */
};

static void merge_aliases(const struct cr_program *p, const struct cr_stream_interval *own, struct interval *interval) {
    for (int t = 0; t < p->tensors; t++) {
        if (p->tensor[t].region != CR_REGION_POOL || p->tensor[t].first < 0 || !p->tensor[t].bytes) continue;
        struct interval *s = &interval[cr_alias_root(p, t)];
        if (!s->used) *s = (struct interval){own[t].lower, own[t].upper, true};
        s->lower = CR_MIN(s->lower, own[t].lower);
        s->upper = CR_MAX(s->upper, own[t].upper);
    }
}

/* Requests at the same op are in the order of tensor ids. */
static int list_events(const struct cr_program *p, const struct interval *interval, size_t alignment,
                       struct cr_pool_event *event) {
    int count = 0;
    for (int i = 0; i < p->ops; i++) {
        for (int t = 0; t < p->tensors; t++)
            if (interval[t].used && interval[t].lower == i)
                event[count++] =
                    (struct cr_pool_event){t, true, (p->tensor[t].bytes + alignment - 1) / alignment * alignment};
        for (int t = 0; t < p->tensors; t++)
            if (interval[t].used && interval[t].upper - 1 == i)
                event[count++] =
                    (struct cr_pool_event){t, false, (p->tensor[t].bytes + alignment - 1) / alignment * alignment};
    }
    return count;
}

/* Replaces tensor ids by block numbers from 0, in the order of allocation. */
static cr_status number_blocks(struct cr_pool_event *event, int events, int tensors) {
    int *number, next = 0;
    CR_ALLOC(number, (size_t)CR_MAX(tensors, 1));
    for (int i = 0; i < events; i++) {
        if (event[i].alloc) number[event[i].block] = next++;
        event[i].block = number[event[i].block];
    }
    cr_free(number);
    return CR_OK;
}

cr_status cr_pool_events(const struct cr_program *p, size_t alignment, struct cr_pool_event **event, int *events) {
    const size_t               n        = (size_t)CR_MAX(p->tensors, 1);
    struct cr_stream_interval *own      = cr_alloc(n, sizeof *own);
    struct interval           *interval = cr_alloc(n, sizeof *interval);
    cr_status                  status   = CR_OK;
    *event                              = cr_alloc(2 * n, sizeof **event);
    if (!own || !interval || !*event) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the requests of %s", p->name);
    CR_TRY_OUT(cr_stream_intervals(p, own));
    merge_aliases(p, own, interval);
    *events = list_events(p, interval, alignment, *event);
    CR_TRY_OUT(number_blocks(*event, *events, p->tensors));
out:
    cr_free(own);
    cr_free(interval);
    if (status != CR_OK) {
        cr_free(*event);
        *event = NULL;
    }
    return status;
}

size_t cr_pool_load(const struct cr_pool_event *event, int events, size_t piece) {
    size_t load = 0, max = 0;
    for (int i = 0; i < events; i++) {
        const size_t bytes = (event[i].bytes + piece - 1) / piece * piece;
        load               = event[i].alloc ? load + bytes : load - bytes;
        max                = CR_MAX(max, load);
    }
    return max;
}

/* ---- best fit ---- */

static cr_status replay(struct cr_best_fit *pool, const struct cr_pool_event *event, int events, size_t *offset) {
    for (int i = 0; i < events; i++) {
        if (event[i].alloc)
            CR_TRY(cr_best_fit_alloc(pool, event[i].bytes, &offset[event[i].block]));
        else
            cr_best_fit_release(pool, offset[event[i].block]);
    }
    return CR_OK;
}

cr_status cr_pool_best_fit(const struct cr_pool_event *event, int events, int steps, struct cr_pool_times *out) {
    struct cr_best_fit pool   = {0};
    cr_status          status = CR_OK;
    size_t            *offset = cr_alloc((size_t)events + 1, sizeof *offset);
    int64_t           *ns     = cr_alloc((size_t)steps + 1, sizeof *ns);
    if (!offset || !ns) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for a pool of %d requests", events);
    for (int s = 0; s <= steps; s++) { /* the first is a warm-up */
        const int64_t start = cr_time_ns();
        CR_TRY_OUT(replay(&pool, event, events, offset));
        ns[s] = cr_time_ns() - start;
    }
    qsort(ns + 1, (size_t)steps, sizeof *ns, cr_compare_i64);
    *out = (struct cr_pool_times){.ms = (double)ns[1 + steps / 2] * 1e-6, .peak_bytes = pool.peak};
out:
    cr_free(offset);
    cr_free(ns);
    cr_best_fit_free(&pool);
    return status;
}
