/* inspect/memory_trace/lifetimes.c: the lives of an iteration's blocks, on a circle: an iteration follows another, and
 * what is allocated late in one may be freed early in the next.
 *
 * Phases are events of the repetition modulo the period. Each malloc that is freed inside the repetition is a life; the
 * first instance of each is looked at, which has at least a whole period before it. Steps are what planners count in:
 * as few as keep apart what the log keeps apart. A step ends where the time goes on in every iteration, and before a
 * malloc that follows a free, which may take the freed place. */
#include "inspect/memory_trace/memory_trace.h"

struct builder {
    const struct cr_trace *trace;
    struct cr_trace_loop   loop;
    struct cr_trace_plan  *plan;
    bool                  *joined;       /* by phase: has the event the time of the one before, in some iteration? */
    int32_t               *back, *ahead; /* by phase: events of its time before and behind it */
    int32_t               *step;         /* by phase - cut */
};

static int phase_of(const struct builder *b, int64_t event) {
    return (int)((event - b->loop.start) % b->loop.period);
}

/* Sums stay far from overflow, also when sizes are rounded up. */
static cr_status add_bytes(size_t *sum, size_t bytes) {
    if (bytes > SIZE_MAX / 4 - *sum) return CR_FAIL(CR_ERR_MEMORY, "the log has more bytes than can be counted");
    *sum += bytes;
    return CR_OK;
}

/* ---- time ---- */

static void find_joined(struct builder *b) {
    const struct cr_trace_event *event  = b->trace->event;
    const int                    period = b->loop.period;
    int                          apart  = CR_NONE;
    for (int i = b->loop.start + 1; i < b->loop.end; i++)
        if (event[i].time <= event[i - 1].time) b->joined[phase_of(b, i)] = true;
    for (int p = 0; p < period && apart == CR_NONE; p++)
        if (!b->joined[p]) apart = p;
    for (int k = 0; k < period; k++) {
        if (apart == CR_NONE) { /* all has one time */
            b->back[k] = b->ahead[k] = period - 1;
            continue;
        }
        const int p = (apart + k) % period, q = (apart + period - 1 - k) % period;
        b->back[p]  = b->joined[p] ? b->back[(p + period - 1) % period] + 1 : 0;
        b->ahead[q] = b->joined[(q + 1) % period] ? b->ahead[(q + 1) % period] + 1 : 0;
    }
}

/* ---- where to cut ---- */

static bool is_freed_inside(const struct builder *b, int block) {
    const int died = b->trace->block[block].free_at;
    return died != CR_NONE && died < b->loop.end;
}

/* The block that the malloc at a phase of the first period makes; CR_NONE: no malloc, or it is not freed inside. */
static int block_at(const struct builder *b, int phase) {
    const struct cr_trace_event *event = &b->trace->event[b->loop.start + phase];
    return event->kind == CR_TRACE_MALLOC && is_freed_inside(b, event->block) ? event->block : CR_NONE;
}

/* Is cutting before p better than before q, with as many bytes alive? Best is where the log ends, if it ends with an
 * iteration; then where the time goes on. */
static bool is_better_cut(const struct builder *b, int p, int q) {
    const int last = phase_of(b, b->loop.end);
    if (q == last) return false;
    return p == last || (b->joined[q] && !b->joined[p]);
}

/* Fewest bytes alive between two events. */
static cr_status find_cut(struct builder *b) {
    const int period = b->loop.period;
    size_t   *change; /* by phase, of what lives before its event; modulo 2^64, as it may fall */
    size_t    live = 0, least = SIZE_MAX;
    CR_ALLOC(change, (size_t)period);
    for (int p = 0; p < period; p++) {
        const int block = block_at(b, p);
        if (block == CR_NONE) continue;
        const struct cr_trace_block *x = &b->trace->block[block];
        const int length               = (x->free_at - x->alloc_at) % period; /* whole turns are the same everywhere */
        if (!length) continue;
        change[(p + 1) % period] += x->size;
        change[(p + 1 + length) % period] -= x->size;
        if (p + 1 < period && p + length + 1 >= period) live += x->size; /* alive before the last phase */
    }
    for (int p = 0; p < period; p++) {
        live += change[p];
        if (live < least || (live == least && is_better_cut(b, p, b->plan->cut))) {
            least        = live;
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

/* ---- lives ---- */

static cr_status add_life(struct builder *b, int phase) {
    const int                    period = b->loop.period, block = block_at(b, phase);
    const struct cr_trace_block *x    = &b->trace->block[block];
    int64_t                      from = x->alloc_at, to = x->free_at; /* events, half open */
    if (b->plan->by == CR_TRACE_BY_USE && x->first != CR_NONE) {
        from = CR_MAX(from, x->first - (int64_t)b->back[phase_of(b, x->first)]);
        to   = CR_MIN(to, x->last + 1 + (int64_t)b->ahead[phase_of(b, x->last)]);
    }
    const int64_t begin = (phase_of(b, from) - b->plan->cut + period) % period, last = begin + (to - from) - 1;
    struct cr_trace_interval life = {.lower = b->step[begin],
                                     .upper = b->step[last % period] + 1 + b->plan->steps * (last / period),
                                     .size  = x->size,
                                     .block = block,
                                     .phase = phase};
    life.copies                   = (int)((life.upper - life.lower + b->plan->steps - 1) / b->plan->steps);
    b->plan->wrapping += life.upper > b->plan->steps;
    b->plan->interval[b->plan->intervals++] = life;
    const size_t padded = (x->size + b->plan->alignment - 1) / b->plan->alignment * b->plan->alignment;
    for (int c = 0; c < life.copies; c++) CR_TRY(add_bytes(&b->plan->naive, padded));
    return CR_OK;
}

static cr_status add_lives(struct builder *b) {
    int count = 0;
    for (int p = 0; p < b->loop.period; p++) count += block_at(b, p) != CR_NONE;
    CR_ALLOC(b->plan->interval, (size_t)CR_MAX(count, 1));
    for (int k = 0; k < b->loop.period; k++) {
        const int p = (b->plan->cut + k) % b->loop.period;
        if (block_at(b, p) != CR_NONE) CR_TRY(add_life(b, p));
    }
    return CR_OK;
}

/* What is there throughout the last period and is none of its own: parameters and momentum, and what is allocated in
 * each iteration but not freed in the log. */
static cr_status find_across(struct builder *b) {
    const struct cr_trace_loop l     = b->loop;
    const int                  last  = l.end - l.period;
    size_t                     taken = 0, given = 0;
    int                        takes = 0, gives = 0;
    for (int i = 0; i < b->trace->blocks; i++) {
        const struct cr_trace_block *x = &b->trace->block[i];
        const bool                   own =
            x->alloc_at >= l.start && x->alloc_at < l.end && block_at(b, phase_of(b, x->alloc_at)) != CR_NONE;
        if (own || x->alloc_at >= last || (x->free_at != CR_NONE && x->free_at < last)) continue;
        CR_TRY(add_bytes(&b->plan->persistent, x->size));
        b->plan->persistent_blocks++;
        if (x->alloc_at >= l.start || x->free_at == CR_NONE || x->free_at >= l.end) continue;
        given += x->size; /* freed in the last period, from before the repetition: it may stand for one that is taken */
        gives++;
    }
    for (int p = 0; p < l.period; p++) {
        const struct cr_trace_event *event = &b->trace->event[l.start + p];
        if (event->kind != CR_TRACE_MALLOC || block_at(b, p) != CR_NONE) continue;
        CR_TRY(add_bytes(&taken, b->trace->block[event->block].size));
        takes++;
    }
    b->plan->leaked        = taken > given ? taken - given : 0;
    b->plan->leaked_blocks = CR_MAX(takes - gives, 0);
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
    CR_TRY(add_lives(b));
    CR_TRY(find_across(b));
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
