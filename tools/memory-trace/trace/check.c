/* tools/memory-trace/trace/check.c: verifies the plan of a memory log. It shares no code and no time steps with the
 * planner: it replays the events of the log and records which block holds which bytes until when. */
#include "tools/memory-trace/trace/trace.h"

#include <stdlib.h>
#include <string.h>

struct allocation { /* the storage of a block: events [begin, end), bytes [low, high) */
    int    begin, end, block;
    size_t low, high;
};

struct check {
    const struct cr_trace      *trace;
    const struct cr_trace_loop *loop;
    const struct cr_trace_plan *plan;

    int *interval_at;    /* by phase of the malloc: index of the planned lifetime, or CR_NONE */
    int *opens, *closes; /* by event of the repetition: first event of equal time, and the end of these events */
    int *first, *last;   /* by block: first and last use in the repetition, CR_NONE: none */

    struct allocation *allocation;
    int                allocations;
    struct allocation *held; /* sorted by address, disjoint; ended ones remain until another block uses their bytes */
    int                held_count;
};

static const char *name_of(const struct check *c, int block) {
    return c->trace->id + c->trace->block[block].id;
}

static void find_times(struct check *c) {
    const int begin = c->loop->start, n = c->loop->end - begin;
    for (int i = 0; i < n; i++) {
        const bool same = i && c->trace->event[begin + i].time <= c->trace->event[begin + i - 1].time;
        c->opens[i]     = same ? c->opens[i - 1] : begin + i;
    }
    for (int i = n - 1; i >= 0; i--) {
        const bool same = i + 1 < n && c->opens[i + 1] == c->opens[i];
        c->closes[i]    = same ? c->closes[i + 1] : begin + i + 1;
    }
}

static cr_status index_intervals(struct check *c) {
    const int period = c->loop->period;
    for (int p = 0; p < period; p++) c->interval_at[p] = CR_NONE;
    for (int i = 0; i < c->plan->intervals; i++) {
        const struct cr_trace_interval *x = &c->plan->interval[i];
        if (x->phase < 0 || x->phase >= period || c->interval_at[x->phase] != CR_NONE)
            return CR_FAIL(CR_ERR_DEVICE, "the plan has two lifetimes for one malloc, or a lifetime without malloc");
        c->interval_at[x->phase] = i;
    }
    return CR_OK;
}

/* Finds the first and last use of each block in the repetition; later events belong to no iteration. */
static void find_uses(struct check *c) {
    for (int b = 0; b < c->trace->blocks; b++) c->first[b] = c->last[b] = CR_NONE;
    for (int i = c->loop->start; i < c->loop->end; i++) {
        const struct cr_trace_event *e = &c->trace->event[i];
        if (e->kind != CR_TRACE_READ && e->kind != CR_TRACE_WRITE) continue;
        if (c->first[e->block] == CR_NONE) c->first[e->block] = i;
        c->last[e->block] = i;
    }
}

/* The live range of a block in events. With CR_TRACE_BY_USE, the operations of the first and the last use count as a
 * whole. `used`: the corresponding blocks of other iterations are used; a block whose first use lies after the end
 * of the repetition is then not live. */
static void bounds_of(const struct check *c, int block, bool used, int *begin, int *end) {
    const struct cr_trace_block *x    = &c->trace->block[block];
    const int                    stop = c->loop->end;
    *begin                            = x->alloc_at;
    *end                              = x->free_at == CR_NONE ? stop : CR_MIN(x->free_at, stop);
    if (c->plan->by != CR_TRACE_BY_USE || !used) return;
    if (c->first[block] == CR_NONE)
        *begin = stop;
    else {
        *begin = CR_MAX(*begin, c->opens[c->first[block] - c->loop->start]);
        *end   = CR_MIN(*end, c->closes[c->last[block] - c->loop->start]);
    }
}

static cr_status add_allocation(struct check *c, int block) {
    const struct cr_trace_block *x         = &c->trace->block[block];
    const int                    iteration = (x->alloc_at - c->loop->start) / c->loop->period;
    const int                    interval  = c->interval_at[(x->alloc_at - c->loop->start) % c->loop->period];
    const bool                   inside    = x->free_at != CR_NONE && x->free_at < c->loop->end;
    if (interval == CR_NONE)
        return inside ? CR_FAIL(CR_ERR_DEVICE, "%s of line %d has no offset in the plan", name_of(c, block),
                                x->alloc_at + 2)
                      : CR_OK;
    const struct cr_trace_interval *l = &c->plan->interval[interval];
    if (l->size != x->size || l->copies < 1 || l->block < 0 || l->block >= c->trace->blocks)
        return CR_FAIL(CR_ERR_DEVICE, "%s of line %d has %zu bytes, its planned storage has %zu", name_of(c, block),
                       x->alloc_at + 2, x->size, l->size);
    const size_t      units = x->size / c->plan->alignment + (x->size % c->plan->alignment != 0);
    struct allocation s     = {.block = block,
                               .low   = l->offset + (size_t)(iteration % l->copies) * units * c->plan->alignment};
    s.high                  = s.low + x->size;
    if (s.low % c->plan->alignment || s.high > c->plan->peak)
        return CR_FAIL(CR_ERR_DEVICE, "%s lies at bytes %zu to %zu of %zu, in units of %zu", name_of(c, block), s.low,
                       s.high, c->plan->peak, c->plan->alignment);
    bounds_of(c, block, c->trace->block[l->block].first != CR_NONE, &s.begin, &s.end);
    if (x->size && s.begin < s.end) c->allocation[c->allocations++] = s;
    return CR_OK;
}

static int compare_begins(const void *a, const void *b) {
    const struct allocation *s = a, *t = b;
    return s->begin != t->begin ? s->begin - t->begin : s->block - t->block;
}

/* Assigns the bytes of an allocation; allocations that have ended lose them. */
static cr_status occupy(struct check *c, struct allocation s) {
    int low = 0, high = c->held_count;
    while (low < high) { /* finds the first one that ends above s.low */
        const int middle = (low + high) / 2;
        if (c->held[middle].high > s.low)
            high = middle;
        else
            low = middle + 1;
    }
    int after = low;
    for (; after < c->held_count && c->held[after].low < s.high; after++) {
        const struct allocation *h = &c->held[after];
        if (h->end > s.begin)
            return CR_FAIL(CR_ERR_DEVICE, "%s of line %d and %s of line %d are live at once and overlap in the plan",
                           name_of(c, h->block), c->trace->block[h->block].alloc_at + 2, name_of(c, s.block),
                           c->trace->block[s.block].alloc_at + 2);
    }
    memmove(&c->held[low + 1], &c->held[after], (size_t)(c->held_count - after) * sizeof *c->held);
    c->held_count += 1 - (after - low);
    c->held[low] = s;
    return CR_OK;
}

static cr_status check_all(struct check *c) {
    const size_t events = (size_t)(c->loop->end - c->loop->start), blocks = (size_t)c->trace->blocks;
    CR_ALLOC(c->interval_at, (size_t)c->loop->period);
    CR_ALLOC(c->opens, events);
    CR_ALLOC(c->closes, events);
    CR_ALLOC(c->first, blocks + 1);
    CR_ALLOC(c->last, blocks + 1);
    CR_ALLOC(c->allocation, blocks + 1);
    CR_ALLOC(c->held, blocks + 1);
    CR_TRY(index_intervals(c));
    find_times(c);
    find_uses(c);
    for (int i = 0; i < c->trace->blocks; i++)
        if (c->trace->block[i].alloc_at >= c->loop->start && c->trace->block[i].alloc_at < c->loop->end)
            CR_TRY(add_allocation(c, i));
    qsort(c->allocation, (size_t)c->allocations, sizeof *c->allocation, compare_begins);
    for (int i = 0; i < c->allocations; i++) CR_TRY(occupy(c, c->allocation[i]));
    return CR_OK;
}

cr_status cr_trace_check(const struct cr_trace *trace, const struct cr_trace_loop *loop,
                         const struct cr_trace_plan *plan) {
    struct check c      = {.trace = trace, .loop = loop, .plan = plan};
    cr_status    status = check_all(&c);
    cr_free(c.interval_at);
    cr_free(c.opens);
    cr_free(c.closes);
    cr_free(c.first);
    cr_free(c.last);
    cr_free(c.allocation);
    cr_free(c.held);
    return status;
}
