/* runtime/profiler.h: how long every op of a bound program takes on its device, beside the time that its bytes and
 * FLOPs would need at the device's roof.
 *
 * Laws
 *   - Ops are timed within whole passes over the program, in its order and on what the ops before them left, so caches
 * are as warm or cold as in a training step. The time of an op is the median over the passes.
 *   - On a device that works beside the host an op's time is the device's own, from a mark in front of the op to one
 * behind it, while earlier work keeps the device busy until the host has enqueued the pass: no launch is waited for. A
 * mark costs about a microsecond, which small ops show. Elsewhere it is wall time.
 *   - Bytes count each operand once (cr_op_cost): a share of the roof above 1 means that a cache held some of them.
 * Knows nothing of configurations or commands. */
#ifndef CR_PROFILE_H
#define CR_PROFILE_H

#include "runtime/executor.h"

struct cr_op_profile {
    int    op; /* index in the program */
    double seconds, bytes, flops;
    double begin_s;    /* after the first op's begin, in the last pass: of ops on other lanes too */
    double roofline_s; /* the longer of moving the bytes and doing the arithmetic at the device's rates */
};

struct cr_profile {
    const struct cr_program *program;
    const struct cr_exec    *exec;
    const struct cr_device  *device;
    struct cr_op_profile    *op;    /* program->ops of them */
    double                   sum_s; /* of the ops */
    double event_s; /* what the two marks around an op take themselves: taken off every op; 0: none were set */
    double whole_s; /* the program run whole, replayed where the device can */
    int    passes;
};

/* Times `passes` passes. The program must be fed and have run before. Running it trains it. */
CR_MUST cr_status cr_profile_open(struct cr_exec *exec, const struct cr_program *program, struct cr_device *device,
                                  const struct cr_step_block *step, int passes, struct cr_profile *out);
void              cr_profile_close(struct cr_profile *profile);
void              cr_profile_sort_slowest_first(struct cr_profile *profile); /* else the ops stand in program order */
/* Every op, every kind of op, and the totals, as a table; or a JSON object a line: the ops, then the totals. */
void cr_profile_print(const struct cr_profile *profile, struct cr_text *out);
void cr_profile_print_json(const struct cr_profile *profile, struct cr_text *out);

#endif
