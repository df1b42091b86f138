/* runtime/allocator_bench.c: see runtime/allocator_bench.h. */
#include "runtime/allocator_bench.h"

#include "compiler/memory/best_fit.h"
#include "compiler/schedule/streams.h"

#include <stdlib.h>

/* ---- a step as requests ---- */

struct stay { /* of the chain that begins with this tensor; ops, half open */
    int  lower, upper;
    bool used;
};

static int root_of(const struct cr_program *p, int t) {
    while (p->tensor[t].alias != CR_NONE) t = p->tensor[t].alias;
    return t;
}

static void join_chains(const struct cr_program *p, const struct cr_stream_interval *own, struct stay *stay) {
    for (int t = 0; t < p->tensors; t++) {
        if (p->tensor[t].region != CR_REGION_POOL || p->tensor[t].first < 0 || !p->tensor[t].bytes) continue;
        struct stay *s = &stay[root_of(p, t)];
        if (!s->used) *s = (struct stay){own[t].lower, own[t].upper, true};
        s->lower = CR_MIN(s->lower, own[t].lower);
        s->upper = CR_MAX(s->upper, own[t].upper);
    }
}

/* What is taken and given at one op: in the order of ids. */
static int put_events(const struct cr_program *p, const struct stay *stay, size_t alignment,
                      struct cr_pool_event *event) {
    int count = 0;
    for (int i = 0; i < p->ops; i++) {
        for (int t = 0; t < p->tensors; t++)
            if (stay[t].used && stay[t].lower == i)
                event[count++] =
                    (struct cr_pool_event){t, true, (p->tensor[t].bytes + alignment - 1) / alignment * alignment};
        for (int t = 0; t < p->tensors; t++)
            if (stay[t].used && stay[t].upper - 1 == i)
                event[count++] =
                    (struct cr_pool_event){t, false, (p->tensor[t].bytes + alignment - 1) / alignment * alignment};
    }
    return count;
}

/* Blocks are numbered anew, from 0 on. */
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
    const size_t               n      = (size_t)CR_MAX(p->tensors, 1);
    struct cr_stream_interval *own    = cr_alloc(n, sizeof *own);
    struct stay               *stay   = cr_alloc(n, sizeof *stay);
    cr_status                  status = CR_OK;
    *event                            = cr_alloc(2 * n, sizeof **event);
    if (!own || !stay || !*event) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the requests of %s", p->name);
    CR_TRY_OUT(cr_stream_intervals(p, own));
    join_chains(p, own, stay);
    *events = put_events(p, stay, alignment, *event);
    CR_TRY_OUT(number_blocks(*event, *events, p->tensors));
out:
    cr_free(own);
    cr_free(stay);
    if (status != CR_OK) {
        cr_free(*event);
        *event = NULL;
    }
    return status;
}

size_t cr_pool_load(const struct cr_pool_event *event, int events, size_t piece) {
    size_t load = 0, most = 0;
    for (int i = 0; i < events; i++) {
        const size_t bytes = (event[i].bytes + piece - 1) / piece * piece;
        load               = event[i].alloc ? load + bytes : load - bytes;
        most               = CR_MAX(most, load);
    }
    return most;
}

/* ---- best fit ---- */

static cr_status play(struct cr_best_fit *pool, const struct cr_pool_event *event, int events, size_t *offset) {
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
    for (int s = 0; s <= steps; s++) { /* the first warms up */
        const int64_t start = cr_time_ns();
        CR_TRY_OUT(play(&pool, event, events, offset));
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
