/* runtime/profiler.h: measures the time of every op of a bound program on its device and compares it with the roofline.
 *
 * Method
 *   - Ops are timed within whole passes over the program, in program order and on the results of the ops before them.
 *     So caches are in the same state as in a training step. The time of an op is the median over the passes.
 *   - On a device with async the time of an op is measured by the device between an event before the op and one after
 *     it. Earlier work keeps the device busy until the host has enqueued the pass, so no launch is waited for. A pair
 *     of events takes about a microsecond, which is subtracted. On other devices the time is wall time.
 *   - The roofline time of an op is the longer of moving its bytes and doing its arithmetic at the rates of the device.
 *     A device whose rates are typical values (the CPU) has no roofline: the tables show "-" and JSON null.
 *     Bytes count each operand once (cr_op_cost), so more than 100 % of roofline means that a cache held a part of the
 *     operands. */
#ifndef CR_PROFILER_H
#define CR_PROFILER_H

#include "runtime/executor.h"

struct cr_op_profile {
    int    op; /* index in the program */
    double seconds, bytes, flops;
    double begin_s; /* start of the op in the last pass, relative to the start of the first op; for all streams */
    double roofline_s;
};

struct cr_profile {
    const struct cr_program *program;
    const struct cr_device  *device;
    struct cr_op_profile    *op;      /* [program->ops] */
    double                   sum_s;   /* sum of the times of the ops */
    double                   event_s; /* time of a pair of events, subtracted from every op; 0 for wall times */
    double                   whole_s; /* time of a whole run, as a graph where the device captures one */
    int                      passes;
};

/* Measures `passes` passes (at least 1) and fills *out; cr_profile_close frees it. The program must have a batch and
 * must have run before. A training program is trained by these passes. Returns the status of the executor on an error.
 */
CR_MUST cr_status cr_profile_open(struct cr_exec *exec, const struct cr_program *program, struct cr_device *device,
                                  const struct cr_step_block *step, int passes, struct cr_profile *out);
void              cr_profile_close(struct cr_profile *profile);
/* Sorts profile->op by time, slowest first. The initial order is program order. */
void cr_profile_sort_slowest_first(struct cr_profile *profile);
/* Appends tables of the ops and of the op kinds, and the totals. */
void cr_profile_print(const struct cr_profile *profile, struct cr_text *out);
/* Appends one JSON object per line: every op, then the totals. */
void cr_profile_print_json(const struct cr_profile *profile, struct cr_text *out);

#endif
