/* tools/memory-trace/trace/trace.h: memory logs of arbitrary programs: reading a log, finding the iteration that
 * repeats in it, the lifetimes of the blocks within one iteration, and offsets for them. Also writes the log that a
 * planned program of cresnet would produce.
 *
 * The log is CSV with the header "time,event,id,size" and one line per event: a time that never decreases; malloc,
 * free, read or write; an id without a comma (an id may be used again after its free, as addresses are); the bytes of a
 * malloc. Events of equal time are one operation: all blocks that it reads and writes are live together.
 *
 * Invariants
 *   - A log must be consistent: the first impossible event is reported with its line (CR_ERR_FORMAT).
 *   - The iteration is verified event by event; hashes only propose it.
 *   - cr_trace_check verifies a plan from the events of the log and shares no code with the planner. */
#ifndef CR_MEMORY_TRACE_H
#define CR_MEMORY_TRACE_H

#include "graph/graph.h"

/* ---- the log ---- */

enum cr_trace_kind { CR_TRACE_MALLOC, CR_TRACE_FREE, CR_TRACE_READ, CR_TRACE_WRITE, CR_TRACE_KINDS };

struct cr_trace_event {
    double  time;  /* since the first event, in the unit of the log */
    int32_t block; /* index into trace.block */
    int32_t kind;  /* enum cr_trace_kind */
};
struct cr_trace_block { /* one malloc; an id that is used again is another block */
    size_t  id;         /* offset into trace.id */
    size_t  size;
    int32_t alloc_at, free_at; /* event indices; free_at = CR_NONE: not freed in the log */
    int32_t first, last;       /* event indices of the first and the last read or write; CR_NONE: none */
};
struct cr_trace {
    struct cr_trace_event *event;
    struct cr_trace_block *block;
    int                    events, blocks, event_capacity, block_capacity;
    int                    alive; /* number of blocks that are not freed in the log */
    char                  *id;    /* all ids, each ended by a 0 */
    size_t                 id_bytes, id_capacity;
};
/* Reads a log; the caller frees `out`. CR_ERR_IO, CR_ERR_FORMAT, CR_ERR_MEMORY. */
CR_MUST cr_status cr_trace_read(const char *path, struct cr_trace *out);
/* The same for bytes in memory; `name` replaces the path in messages. */
CR_MUST cr_status cr_trace_read_bytes(const void *bytes, size_t count, const char *name, struct cr_trace *out);
void              cr_trace_free(struct cr_trace *trace);

/* ---- the iteration ---- */

/* Events [start, end) repeat with this period at least twice. Two events are equal if the kind, the size of the
 * block and the distance to the previous event of the block are equal. Whole lifetimes therefore repeat, whatever
 * their ids are. */
struct cr_trace_loop {
    int start, end, period;
};
/* Finds the longest repetition, with its shortest period. A repetition that frees as many blocks as it allocates
 * counts eight times its length; one that neither allocates nor frees counts four times. CR_ERR_FORMAT: no iteration
 * repeats. */
CR_MUST cr_status cr_trace_find_loop(const struct cr_trace *trace, const char *name, struct cr_trace_loop *out);

/* ---- lifetimes ---- */

/* The event that ends a lifetime: the free, or the last read or write. A block without reads and writes lives from
 * malloc to free in both cases. */
enum cr_trace_by { CR_TRACE_BY_FREE, CR_TRACE_BY_USE };

/* The lifetime of a block that each iteration allocates. lower and upper are steps of the iteration, half open, with
 * 0 <= lower < steps. upper > steps: the lifetime continues in the next iteration, and no block there may overlap
 * it. A block that would overlap its own successor gets several copies at consecutive addresses; iteration i uses
 * copy i % copies. */
struct cr_trace_interval {
    int64_t lower, upper;
    size_t  size, offset; /* bytes; offset is set by the planner */
    int     block;        /* the block from which the lifetime was read */
    int     phase;        /* phase of its malloc: (event - loop.start) % period */
    int     copies;       /* at consecutive addresses, at least 1 */
};
struct cr_trace_plan {
    struct cr_trace_interval *interval;
    int                       intervals, wrapping; /* wrapping: lifetimes with upper > steps */
    int              cut; /* the iterations begin at events loop.start + cut + n * period, where few bytes are live */
    int              iterations; /* complete iterations from the first cut on */
    int              tail;       /* events of the repetition after the last complete iteration */
    int64_t          steps;      /* steps of an iteration, the time unit of the lifetimes */
    enum cr_trace_by by;
    size_t           alignment;
    size_t           bound, peak; /* largest sum of live bytes; bytes of the plan */
    size_t           naive;       /* sum of all sizes: one allocation per block */
    size_t           persistent;  /* bytes of the blocks that live through whole iterations */
    int              persistent_blocks;
    size_t           leaked; /* bytes that an iteration allocates and does not free within the log */
    int              leaked_blocks;
};
/* Computes lifetimes and offsets; the caller frees `out` with cr_trace_plan_free. CR_ERR_MEMORY: out of memory, or
 * the number of bytes overflows. */
CR_MUST cr_status cr_trace_plan(const struct cr_trace *trace, const struct cr_trace_loop *loop, enum cr_trace_by by,
                                size_t alignment, struct cr_trace_plan *out);
void              cr_trace_plan_free(struct cr_trace_plan *plan);
/* Replays the repetition and checks that no two blocks that are live at once overlap in memory, in one iteration or
 * across iterations. CR_ERR_DEVICE: the plan is wrong. */
CR_MUST cr_status cr_trace_check(const struct cr_trace *trace, const struct cr_trace_loop *loop,
                                 const struct cr_trace_plan *plan);
/* Computes the bytes that a pool without knowledge of the future needs (best fit, adjacent free blocks merged, as in
 * CnMeM), for the blocks of the iteration over four iterations. */
CR_MUST cr_status cr_trace_online(const struct cr_trace *trace, const struct cr_trace_loop *loop,
                                  const struct cr_trace_plan *plan, size_t *peak);

/* ---- internal to this folder ---- */

/* Fills all members of the plan except offsets and peak. */
CR_MUST cr_status cr_trace_intervals(const struct cr_trace *trace, const struct cr_trace_loop *loop,
                                     struct cr_trace_plan *plan);

/* ---- writing a log ---- */

/* Writes the log of `iterations` runs of the programs, one after the other. Planned tensors are allocated and freed
 * as in their plan (a chain that passes storage on is one block). The buffers of the parameter store and the batch
 * are blocks that live through all iterations. Sizes are rounded up to `alignment` bytes; the time unit is an op.
 * The programs must be planned. */
void cr_trace_write(const struct cr_program *const *programs, int count, int iterations, size_t alignment,
                    struct cr_text *out);

#endif
