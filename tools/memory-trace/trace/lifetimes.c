/* tools/memory-trace/trace/lifetimes.c: the lifetimes of the blocks of an iteration. Time is circular: iterations
 * follow each other, and a block that is allocated late in one iteration may be freed early in the next.
 *
 * A phase is an event of the repetition modulo the period. Each malloc that is freed within the repetition has a
 * lifetime, which is read from its first instance; at least one whole period follows the first instance. Steps are
 * the time unit of the planner: as few as are necessary to separate what the log separates. A step ends where the
 * time increases in every iteration, and before a malloc that follows a free, because the malloc may reuse the freed
 * memory. */
#include "tools/memory-trace/trace/trace.h"

struct builder {
    const struct cr_trace *trace;
    struct cr_trace_loop   loop;
    struct cr_trace_plan  *plan;
    bool                  *joined; /* by phase: does the event have the time of the previous event in some iteration? */
    int32_t               *back, *ahead; /* by phase: number of events of equal time before and after it */
    int32_t               *step;         /* by (phase - cut): the step */
};

static int phase_of(const struct builder *b, int64_t event) {
    return (int)((event - b->loop.start) % b->loop.period);
}

/* Adds bytes; sums stay far from overflow, also after sizes are rounded up. */
static cr_status add_bytes(size_t *sum, size_t bytes) {
    if (bytes > SIZE_MAX / 4 - *sum) return CR_FAIL(CR_ERR_MEMORY, "the log has more bytes than can be counted");
    *sum += bytes;
    return CR_OK;
}

/* ---- time ---- */

static void find_joined(struct builder *b) {
    const struct cr_trace_event *event    = b->trace->event;
    const int                    period   = b->loop.period;
    int                          separate = CR_NONE;
    for (int i = b->loop.start + 1; i < b->loop.end; i++)
        if (event[i].time <= event[i - 1].time) b->joined[phase_of(b, i)] = true;
    for (int p = 0; p < period && separate == CR_NONE; p++)
        if (!b->joined[p]) separate = p;
    for (int k = 0; k < period; k++) {
        if (separate == CR_NONE) { /* all events have equal times */
            b->back[k] = b->ahead[k] = period - 1;
            continue;
        }
        const int p = (separate + k) % period, q = (separate + period - 1 - k) % period;
        b->back[p]  = b->joined[p] ? b->back[(p + period - 1) % period] + 1 : 0;
        b->ahead[q] = b->joined[(q + 1) % period] ? b->ahead[(q + 1) % period] + 1 : 0;
    }
}

/* ---- the cut between iterations ---- */

static bool is_freed_inside(const struct builder *b, int block) {
    const int died = b->trace->block[block].free_at;
    return died != CR_NONE && died < b->loop.end;
}

/* Returns the block that the malloc at a phase of the first period creates; CR_NONE: the event is no malloc, or the
 * block is not freed within the repetition. */
static int block_at(const struct builder *b, int phase) {
    const struct cr_trace_event *event = &b->trace->event[b->loop.start + phase];
    return event->kind == CR_TRACE_MALLOC && is_freed_inside(b, event->block) ? event->block : CR_NONE;
}

/* Returns whether a cut before p is better than a cut before q with equal live bytes. The best cut is at the end of the
 * log if the log ends with an iteration; otherwise a cut where the time increases is preferred. */
static bool is_better_cut(const struct builder *b, int p, int q) {
    const int last = phase_of(b, b->loop.end);
    if (q == last) return false;
    return p == last || (b->joined[q] && !b->joined[p]);
}

/* Cuts where the fewest bytes are live between two events. */
static cr_status find_cut(struct builder *b) {
    const int period = b->loop.period;
    size_t   *change; /* by phase: change of the live bytes before its event; modulo 2^64, because it may be negative */
    size_t    live = 0, min = SIZE_MAX;
    CR_ALLOC(change, (size_t)period);
    for (int p = 0; p < period; p++) {
        const int block = block_at(b, p);
        if (block == CR_NONE) continue;
        const struct cr_trace_block *x      = &b->trace->block[block];
        const int                    length = (x->free_at - x->alloc_at) % period; /* whole iterations change nothing */
        if (!length) continue;
        change[(p + 1) % period] += x->size;
        change[(p + 1 + length) % period] -= x->size;
        if (p + 1 < period && p + length + 1 >= period) live += x->size; /* live before the first phase */
    }
    for (int p = 0; p < period; p++) {
        live += change[p];
        if (live < min || (live == min && is_better_cut(b, p, b->plan->cut))) {
            min          = live;
            b->plan->cut = p;
        }
    }
    cr_free(change);
    return CR_OK;
}

static void find_steps(struct builder *b) {
    const int period = b->loop.period;
    int       step   = 0;
    bool      freed  = false;
    for (int k = 0; k < period; k++) {
        const int p    = (b->plan->cut + k) % period;
        const int kind = b->trace->event[b->loop.start + p].kind;
        if (k && (!b->joined[p] || (kind == CR_TRACE_MALLOC && freed))) {
            step++;
            freed = false;
        }
        freed |= kind == CR_TRACE_FREE;
        b->step[k] = step;
    }
    b->plan->steps = step + 1;
}

/* ---- lifetimes ---- */

static cr_status add_interval(struct builder *b, int phase) {
    const int                    period = b->loop.period, block = block_at(b, phase);
    const struct cr_trace_block *x    = &b->trace->block[block];
    int64_t                      from = x->alloc_at, to = x->free_at; /* event indices, half open */
    if (b->plan->by == CR_TRACE_BY_USE && x->first != CR_NONE) {
        from = CR_MAX(from, x->first - (int64_t)b->back[phase_of(b, x->first)]);
        to   = CR_MIN(to, x->last + 1 + (int64_t)b->ahead[phase_of(b, x->last)]);
    }
    const int64_t begin = (phase_of(b, from) - b->plan->cut + period) % period, last = begin + (to - from) - 1;
    struct cr_trace_interval interval = {.lower = b->step[begin],
                                         .upper = b->step[last % period] + 1 + b->plan->steps * (last / period),
                                         .size  = x->size,
                                         .block = block,
                                         .phase = phase};
    interval.copies                   = (int)((interval.upper - interval.lower + b->plan->steps - 1) / b->plan->steps);
    b->plan->wrapping += interval.upper > b->plan->steps;
    b->plan->interval[b->plan->intervals++] = interval;
    const size_t padded = (x->size + b->plan->alignment - 1) / b->plan->alignment * b->plan->alignment;
    for (int c = 0; c < interval.copies; c++) CR_TRY(add_bytes(&b->plan->naive, padded));
    return CR_OK;
}

static cr_status add_intervals(struct builder *b) {
    int count = 0;
    for (int p = 0; p < b->loop.period; p++) count += block_at(b, p) != CR_NONE;
    CR_ALLOC(b->plan->interval, (size_t)CR_MAX(count, 1));
    for (int k = 0; k < b->loop.period; k++) {
        const int p = (b->plan->cut + k) % b->loop.period;
        if (block_at(b, p) != CR_NONE) CR_TRY(add_interval(b, p));
    }
    return CR_OK;
}

/* Counts the blocks that are live throughout the last period and belong to no iteration: parameters, momentum, and
 * blocks that each iteration allocates but does not free in the log. */
static cr_status find_persistent(struct builder *b) {
    const struct cr_trace_loop l               = b->loop;
    const int                  last            = l.end - l.period;
    size_t                     allocated_bytes = 0, freed_bytes = 0;
    int                        allocations = 0, frees = 0;
    for (int i = 0; i < b->trace->blocks; i++) {
        const struct cr_trace_block *x = &b->trace->block[i];
        const bool                   own =
            x->alloc_at >= l.start && x->alloc_at < l.end && block_at(b, phase_of(b, x->alloc_at)) != CR_NONE;
        if (own || x->alloc_at >= last || (x->free_at != CR_NONE && x->free_at < last)) continue;
        CR_TRY(add_bytes(&b->plan->persistent, x->size));
        b->plan->persistent_blocks++;
        if (x->alloc_at >= l.start || x->free_at == CR_NONE || x->free_at >= l.end) continue;
        /* Allocated before the repetition and freed in the last period: it may correspond to a malloc that is not
         * freed. */
        freed_bytes += x->size;
        frees++;
    }
    for (int p = 0; p < l.period; p++) {
        const struct cr_trace_event *event = &b->trace->event[l.start + p];
        if (event->kind != CR_TRACE_MALLOC || block_at(b, p) != CR_NONE) continue;
        CR_TRY(add_bytes(&allocated_bytes, b->trace->block[event->block].size));
        allocations++;
    }
    b->plan->leaked        = allocated_bytes > freed_bytes ? allocated_bytes - freed_bytes : 0;
    b->plan->leaked_blocks = CR_MAX(allocations - frees, 0);
    return CR_OK;
}

static void count_iterations(struct builder *b) {
    const struct cr_trace_loop l = b->loop;
    const int                  n = l.end - l.start - b->plan->cut;
    b->plan->iterations          = n / l.period;
    b->plan->tail                = n % l.period;
}

static cr_status build(struct builder *b) {
    const size_t period = (size_t)b->loop.period;
    CR_ALLOC(b->joined, period);
    CR_ALLOC(b->back, period);
    CR_ALLOC(b->ahead, period);
    CR_ALLOC(b->step, period);
    find_joined(b);
    CR_TRY(find_cut(b));
    find_steps(b);
    CR_TRY(add_intervals(b));
    CR_TRY(find_persistent(b));
    count_iterations(b);
    return CR_OK;
}

cr_status cr_trace_intervals(const struct cr_trace *trace, const struct cr_trace_loop *loop,
                             struct cr_trace_plan *plan) {
    struct builder b      = {.trace = trace, .loop = *loop, .plan = plan};
    cr_status      status = build(&b);
    cr_free(b.joined);
    cr_free(b.back);
    cr_free(b.ahead);
    cr_free(b.step);
    return status;
}
