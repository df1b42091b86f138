/* compiler/schedule/streams.h: what each op knows to be complete when it starts, and what that means for memory.
 *
 * Ops of one lane run in list order, one after the other; between lanes only waits give an order. The clock of op i
 * says for each lane the last op that is complete when i starts (and with it all earlier ops of that lane). Shared by
 * compiler/schedule/synchronize.c and compiler/memory/plan_memory.c; compiler/schedule/race_check.c keeps a clock of
 * its own. */
#ifndef CR_LANES_H
#define CR_LANES_H

#include "graph/graph.h"

struct cr_clock {
    int done[CR_STREAMS]; /* op index, -1: none */
};

/* Does i (a lane mate or not, i < j in the list) end before the op whose clock this is starts? */
static inline bool cr_clock_covers(const struct cr_clock *clock, enum cr_stream lane, int op) {
    return op <= clock->done[lane];
}
void cr_clock_start(struct cr_clock *clock);
/* What `clock` knows after waiting for op `index` on `lane`, whose own clock was `other`. */
void cr_clock_join(struct cr_clock *clock, const struct cr_clock *other, enum cr_stream lane, int index);
bool cr_uses_several_streams(const struct cr_program *program);
/* clock[ops], from the waits that the ops carry. */
void cr_stream_clocks(const struct cr_program *program, struct cr_clock *clock);

/* A tensor's stay in memory in list order, [lower, upper), such that two tensors whose stays are disjoint are accessed
 * in that order whatever the lanes do. `crossing`: the stay was stretched over ops that run beside it, so its storage
 * cannot be handed over in place. Tensors that no op touches get lower = upper = 0. */
struct cr_stream_interval {
    int  lower, upper;
    bool crossing;
};
CR_MUST cr_status cr_stream_intervals(const struct cr_program *program, struct cr_stream_interval *stay);

#endif
