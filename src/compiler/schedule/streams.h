/* compiler/schedule/streams.h: vector clocks of the ops and the live intervals that follow from them.
 *
 * Ops of one stream run in list order, one after the other. Only waits order ops of different streams. The clock of an
 * op holds, for each stream, the last op that is complete when the op starts; all earlier ops of that stream are
 * complete too. insert_waits.c and memory/plan_memory.c share this code; race_check.c has clocks of its own. */
#ifndef CR_STREAMS_H
#define CR_STREAMS_H

#include "graph/graph.h"

struct cr_clock {
    int done[CR_STREAMS]; /* op index; -1: none */
};

/* Returns whether op `op` of stream `stream` is complete when the op with this clock starts. */
static inline bool cr_clock_covers(const struct cr_clock *clock, enum cr_stream stream, int op) {
    return op <= clock->done[stream];
}
/* Sets a clock at which no op is complete. */
void cr_clock_start(struct cr_clock *clock);
/* Updates `clock` for a wait: op `index` of `stream`, whose own clock is `other`, is complete. */
void cr_clock_join(struct cr_clock *clock, const struct cr_clock *other, enum cr_stream stream, int index);
bool cr_uses_several_streams(const struct cr_program *program);
/* Sets clock[ops] from the waits of the ops. */
void cr_stream_clocks(const struct cr_program *program, struct cr_clock *clock);

/* Live interval [lower, upper) of a tensor, in op indices. Two tensors with disjoint intervals are accessed in the
 * order of their intervals, whatever the streams do. */
struct cr_stream_interval {
    int  lower, upper; /* 0, 0 for a tensor that no op uses */
    bool crossing;     /* extended over ops of other streams: the storage cannot be reused in place */
};
/* Sets interval[tensors] from tensor.first, tensor.last and the waits. Returns CR_ERR_MEMORY. */
CR_MUST cr_status cr_stream_intervals(const struct cr_program *program, struct cr_stream_interval *interval);

#endif
