/* inspect/memory_trace/memory_trace.h: the memory log of any program: reading it, finding the iteration that repeats in
 * it, the lives of its blocks within one iteration, offsets for them; and the log that a program of our own would
 * leave.
 *
 * The log is CSV. Header "time,event,id,size"; then a line an event: a time that never goes back, one of malloc, free,
 * read, write, any id without a comma (ids may come again after their free, as addresses do), the bytes of a malloc.
 * Events of one time are one operation: what it reads and what it writes are there together.
 *
 * Laws
 *   - A log is believed only when it is sound: the first thing that cannot be is named with its line (CR_ERR_FORMAT).
 *   - The iteration is proved event by event; hashes only propose it.
 *   - cr_trace_check proves a plan from the log's events and shares no code with what made the plan. */
#ifndef CR_TRACE_H
#define CR_TRACE_H

#include "graph/graph.h"

/* ---- the log ---- */

enum cr_trace_kind { CR_TRACE_MALLOC, CR_TRACE_FREE, CR_TRACE_READ, CR_TRACE_WRITE, CR_TRACE_KINDS };

struct cr_trace_event {
    double  time;
    int32_t block;
    int32_t kind;
};
struct cr_trace_block { /* one malloc: an id that comes again is another block */
    size_t  id;         /* offset into trace.id */
    size_t  size;
    int32_t alloc_at, free_at; /* events; died = CR_NONE: lives on when the log ends */
    int32_t first, last;       /* first and last read or write; CR_NONE: none */
};
struct cr_trace {
    struct cr_trace_event *event;
    struct cr_trace_block *block;
    int                    events, blocks, event_capacity, block_capacity;
    int                    alive; /* blocks that live on when the log ends */
    char                  *id;    /* names, each ended by a 0 */
    size_t                 id_bytes, id_capacity;
};
CR_MUST cr_status cr_trace_read(const char *path, struct cr_trace *out);
/* The same from memory; `name` stands for the path in messages. */
CR_MUST cr_status cr_trace_read_bytes(const void *bytes, size_t count, const char *name, struct cr_trace *out);
void              cr_trace_free(struct cr_trace *trace);

/* ---- the iteration ---- */

/* Events [start, end) repeat with this period, and at least twice. Two events are the same when kind, size of the block
 * and the distance to the block's event before are: so whole lives repeat, whatever ids they have. */
struct cr_trace_loop {
    int start, end, period;
};
/* The longest repetition, with its shortest period; one that gives back as many blocks as it takes counts eight times
 * its length, one that takes and gives none four times. CR_ERR_FORMAT when nothing is there twice. */
CR_MUST cr_status cr_trace_find_loop(const struct cr_trace *trace, const char *name, struct cr_trace_loop *out);

/* ---- lives ---- */

/* What ends a life: the free, or the last read or write. A block that nobody reads or writes lives from malloc to free.
 */
enum cr_trace_by { CR_TRACE_BY_FREE, CR_TRACE_BY_USE };

/* A block that each iteration allocates. lower, upper: steps of the iteration, half open, 0 <= lower < steps. upper >
 * steps: the life goes on in the next iteration, and what is placed beside it must be clear of it there too. A block
 * that would meet its own successor has several places (copies) behind each other; iteration i takes place i % copies.
 */
struct cr_trace_interval {
    int64_t lower, upper;
    size_t  size, offset; /* offset: out */
    int     block;        /* the one that the life was read from */
    int     phase;        /* of its malloc: (event - loop.start) % period */
    int     copies;
};
struct cr_trace_plan {
    struct cr_trace_interval *interval;
    int                       intervals, wrapping; /* wrapping: lives with upper > steps */
    int              cut; /* the iteration begins at events loop.start + cut + n * period: few bytes live there */
    int              iterations; /* whole ones from the first cut on */
    int              tail;       /* events of the repetition behind the last whole one */
    int64_t          steps;      /* of an iteration, in the lives' time */
    enum cr_trace_by by;
    size_t           alignment;
    size_t           bound, peak; /* largest sum of live bytes; bytes of the plan */
    size_t           naive;       /* sum of the sizes: an allocation each */
    size_t           persistent;  /* bytes of the blocks that live through whole iterations */
    int              persistent_blocks;
    size_t           leaked; /* bytes an iteration allocates and, as far as the log goes, never frees */
    int              leaked_blocks;
};
/* Lives and offsets. Out of memory, or more bytes than can be counted: CR_ERR_MEMORY. */
CR_MUST cr_status cr_trace_plan(const struct cr_trace *trace, const struct cr_trace_loop *loop, enum cr_trace_by by,
                                size_t alignment, struct cr_trace_plan *out);
void              cr_trace_plan_free(struct cr_trace_plan *plan);
/* Replays the repetition: no two blocks that are there at once share a byte, in this iteration or the next. */
CR_MUST cr_status cr_trace_check(const struct cr_trace *trace, const struct cr_trace_loop *loop,
                                 const struct cr_trace_plan *plan);
/* The bytes that a pool needs which sees one malloc and free after the other (best fit, free neighbours joined, as
 * CnMeM): the iteration's own blocks over four iterations. */
CR_MUST cr_status cr_trace_online(const struct cr_trace *trace, const struct cr_trace_loop *loop,
                                  const struct cr_trace_plan *plan, size_t *peak);

/* ---- parts (trace_*.c) ---- */

/* Fills everything of the plan but offsets and peak. */
CR_MUST cr_status cr_trace_intervals(const struct cr_trace *trace, const struct cr_trace_loop *loop,
                                     struct cr_trace_plan *plan);

/* ---- a log of our own ---- */

/* What `iterations` runs of the programs, one after the other, do to memory: planned tensors from malloc to free as
 * their plan has them (a chain that hands storage on is one block), the store's planes and the batch as blocks that
 * live across. Sizes are rounded up to `alignment`; the time counts ops. The programs must be planned. */
void cr_trace_write(const struct cr_program *const *programs, int count, int iterations, size_t alignment,
                    struct cr_text *out);

#endif
