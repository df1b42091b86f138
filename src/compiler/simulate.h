/* compiler/simulate.h: the predicted time of a program: its streams, with copies and kernels that slow each other down.
 * Units: seconds, bytes, unless a comment names another unit. */
#ifndef CR_SIMULATE_H
#define CR_SIMULATE_H

#include "compiler/cost_model.h"

struct cr_op_time {
    double start, end;
    double stall; /* time in which the op's stream is idle before the op starts */
};
struct cr_simulation {
    double total;   /* end of the last op */
    double stalled; /* sum of the stalls of the compute stream */
};
/* How concurrent copies and kernels slow each other down. */
struct cr_contention {
    double        duplex;      /* speed of a copy while the other direction is busy, as a fraction of its speed alone */
    double        out, in;     /* contention_out, contention_in of the cost model */
    const double *memory_busy; /* [ops]: fraction of the op's time in which it saturates device memory; NULL: 0 */
};
/* `memory_busy` is borrowed and may be NULL. */
struct cr_contention cr_contention_of(const struct cr_cost_model *cost_model, const double *memory_busy);

/* Sets seconds[ops] to the time that each op takes alone: cost_model->cost, else the roofline; cr_copy_seconds for a
 * copy. Sets memory_busy[ops] as in struct cr_contention. Returns the errors of cost_model->cost. */
CR_MUST cr_status cr_program_seconds(const struct cr_program *program, const struct cr_cost_model *cost_model,
                                     double *seconds, double *memory_busy);
/* Simulates the streams of a program whose ops carry their waits (after insert_waits). Sets time[ops] and *out. */
void cr_program_simulate(const struct cr_program *program, const double *seconds,
                         const struct cr_contention *contention, struct cr_op_time *time, struct cr_simulation *out);
/* cr_program_seconds and cr_program_simulate in one call. */
CR_MUST cr_status cr_program_predict(const struct cr_program *program, const struct cr_cost_model *cost_model,
                                     struct cr_simulation *out);

/* End of kernel `op`, which starts at `begin` and takes `seconds` alone, while the copies to the host run until
 * `out_end` and the copies to the device until `in_end`. */
double cr_kernel_end(const struct cr_contention *contention, int op, double begin, double seconds, double out_end,
                     double in_end);
/* End of a copy that takes `alone` seconds alone and starts at `begin`, while the other direction is busy until
 * `other`. The later copy carries the loss of both, so the end of the earlier copy stays valid. */
double cr_copy_end(double begin, double alone, double other, double duplex);
/* The `duplex` member of struct cr_contention. */
double cr_copy_contention(const struct cr_cost_model *cost_model);
/* Seconds of a copy on stream TO_HOST or TO_DEVICE while the other direction is idle and kernels run. */
double cr_copy_seconds(const struct cr_cost_model *cost_model, enum cr_stream stream, size_t bytes);

#endif
