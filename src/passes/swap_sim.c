/* swap_sim.c: how long a program takes whose lanes run beside each other: each lane does its ops in list order, an op starts when
 * its lane is free and what it waits for has ended. Copies both ways at once are slower than alone. */
#include "passes.h"

double cr_copy_beside(const struct cr_target *t) {
    const double alone = CR_MIN(CR_MAX(t->copy_alone, 1.0), 2.0);
    return CR_MAX((2 - alone) / alone, 0.1); /* together they move 2, one alone `alone` */
}

double cr_copy_seconds(const struct cr_target *t, enum cr_lane lane, size_t bytes) {
    const double rate = lane == CR_LANE_TO_HOST ? t->to_host_bytes_per_s : t->to_device_bytes_per_s;
    return rate > 0 ? t->copy_latency_s + (double)bytes / (rate * CR_MIN(CR_MAX(t->copy_alone, 1.0), 2.0)) : 0;
}

double cr_copy_end(double begin, double alone, double other, double beside) {
    const double shared = CR_MAX(other - begin, 0);
    return alone <= shared * beside ? begin + alone / beside : begin + alone + shared * (1 - beside);
}

cr_status cr_program_seconds(const struct cr_program *p, const struct cr_target *target, double *seconds) {
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        seconds[i]             = cr_op_seconds(target, p, op);
        if (op->kind == CR_OP_swap_out) seconds[i] = cr_copy_seconds(target, CR_LANE_TO_HOST, p->tensor[op->in[CR_IN_swap_out_x]].bytes);
        else if (op->kind == CR_OP_swap_in) seconds[i] = cr_copy_seconds(target, CR_LANE_TO_DEVICE, p->tensor[op->in[CR_IN_swap_in_x]].bytes);
        else if (target->cost && op->kind != CR_OP_sync) CR_TRY(target->cost(target->self, p, op, &seconds[i]));
    }
    return CR_OK;
}

void cr_program_simulate(const struct cr_program *p, const double *seconds, double beside, struct cr_op_time *time, struct cr_simulated *out) {
    double free_at[CR_LANES] = {0};
    *out                     = (struct cr_simulated){0};
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op    = &p->op[i];
        double              start = free_at[op->lane];
        for (int k = 0; k < CR_OP_WAIT_MAX && op->wait[k] != CR_NONE; k++) start = CR_MAX(start, time[op->wait[k]].end);
        double end = start + seconds[i];
        if (op->lane == CR_LANE_TO_HOST) end = cr_copy_end(start, seconds[i], free_at[CR_LANE_TO_DEVICE], beside);
        if (op->lane == CR_LANE_TO_DEVICE) end = cr_copy_end(start, seconds[i], free_at[CR_LANE_TO_HOST], beside);
        time[i]           = (struct cr_op_time){.start = start, .end = end, .stall = start - free_at[op->lane]};
        free_at[op->lane] = end;
        out->busy[op->lane] += seconds[i];
        if (op->lane == CR_LANE_COMPUTE) out->stalled += time[i].stall;
        out->total = CR_MAX(out->total, time[i].end);
    }
}

cr_status cr_program_predict(const struct cr_program *p, const struct cr_target *target, struct cr_simulated *out) {
    double            *seconds = cr_alloc((size_t)CR_MAX(p->ops, 1), sizeof *seconds);
    struct cr_op_time *time    = cr_alloc((size_t)CR_MAX(p->ops, 1), sizeof *time);
    cr_status          status  = seconds && time ? cr_program_seconds(p, target, seconds) : CR_NO_MEMORY((size_t)p->ops * sizeof *time);
    if (status == CR_OK) cr_program_simulate(p, seconds, cr_copy_beside(target), time, out);
    cr_free(seconds);
    cr_free(time);
    return status;
}
