/* compiler/memory/simulate.c: how long a program takes whose lanes run beside each other: each lane does its ops in
 * list order, an op starts when its lane is free and what it waits for has ended. Copies both ways at once are slower
 * than alone; copies and kernels that keep the device's memory busy slow each other. */
#include "compiler/compiler.h"

double cr_copy_contention(const struct cr_cost_model *t) {
    const double alone = CR_MIN(CR_MAX(t->duplex_speedup, 1.0), 2.0);
    return CR_MAX((2 - alone) / alone, 0.1); /* together they move 2, one alone `alone` */
}

/* A copy to the host reads the device's memory in competition with kernels; one to the device writes when it comes to
 * it. */
double cr_copy_seconds(const struct cr_cost_model *t, enum cr_stream lane, size_t bytes) {
    const bool   out    = lane == CR_STREAM_TO_HOST;
    const double rate   = out ? t->to_host_bytes_per_s : t->to_device_bytes_per_s;
    const double loaded = out ? CR_MAX(t->loaded_copy_slowdown, 1.0) : 1;
    return rate > 0 ? t->copy_latency_s + loaded * (double)bytes / (rate * CR_MIN(CR_MAX(t->duplex_speedup, 1.0), 2.0))
                    : 0;
}

double cr_copy_end(double begin, double alone, double other, double beside) {
    const double shared = CR_MAX(other - begin, 0);
    return alone <= shared * beside ? begin + alone / beside : begin + alone + shared * (1 - beside);
}

/* ---- work beside copies ---- */

struct cr_contention cr_contention_of(const struct cr_cost_model *t, const double *moving) {
    return (struct cr_contention){.duplex      = cr_copy_contention(t),
                                  .out         = t->contention_out,
                                  .in          = t->contention_in,
                                  .memory_busy = moving,
                                  .read_s      = t->to_device_bytes_per_s > 0
                                                     ? CR_MAX(t->mapped_read_slowdown, 1.0) *
                                                      (cr_copy_seconds(t, CR_STREAM_TO_DEVICE, 1) - t->copy_latency_s)
                                                     : 0};
}

double cr_kernel_end(const struct cr_contention *b, int op, double begin, double seconds, double out_end,
                     double in_end) {
    if (!b->memory_busy) return begin + seconds;
    const double out = CR_MIN(CR_MAX(out_end - begin, 0), seconds), in = CR_MIN(CR_MAX(in_end - begin, 0), seconds);
    return begin + seconds + b->memory_busy[op] * (out * b->out + in * b->in);
}

/* Loads are many and small: the way is theirs when the copy before has passed, and one behind them comes later. */
double cr_mapped_read_end(const struct cr_contention *b, int op, double begin, double seconds, double reading,
                          double out_end, double *in_end) {
    const double end = cr_kernel_end(b, op, begin, seconds, out_end, *in_end);
    if (reading <= 0) return end;
    *in_end = cr_copy_end(CR_MAX(*in_end, begin), reading, out_end, b->duplex);
    return CR_MAX(end, *in_end);
}

/* Seconds that what an op of compute reads of the host's memory takes. */
static double reading_of(const struct cr_program *p, const struct cr_op *op, const struct cr_contention *b) {
    double sum = 0;
    for (int s = 0; s < CR_OP_IN_MAX && op->kind != CR_OP_barrier; s++)
        if (op->in[s] >= 0 && p->tensor[op->in[s]].region == CR_REGION_HOST)
            sum += b->read_s * (double)p->tensor[op->in[s]].bytes;
    return sum;
}

/* By what the roofline says of its bytes. */
static double moving_of(const struct cr_program *p, const struct cr_cost_model *t, const struct cr_op *op,
                        double seconds) {
    double bytes, flops;
    if (op->stream != CR_STREAM_COMPUTE || op->kind == CR_OP_barrier || seconds <= 0 || t->bytes_per_s <= 0) return 0;
    cr_op_cost(p, op, &bytes, &flops);
    return CR_MIN(bytes / t->bytes_per_s / seconds, 1.0);
}

/* ---- a program ---- */

cr_status cr_program_seconds(const struct cr_program *p, const struct cr_cost_model *target, double *seconds,
                             double *moving) {
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        seconds[i]             = cr_op_seconds(target, p, op);
        if (op->kind == CR_OP_offload)
            seconds[i] = cr_copy_seconds(target, CR_STREAM_TO_HOST, p->tensor[op->in[CR_IN_offload_x]].bytes);
        else if (op->kind == CR_OP_prefetch)
            seconds[i] = cr_copy_seconds(target, CR_STREAM_TO_DEVICE, p->tensor[op->in[CR_IN_prefetch_x]].bytes);
        else if (target->cost && op->kind != CR_OP_barrier)
            CR_TRY(target->cost(target->self, p, op, &seconds[i]));
        moving[i] = moving_of(p, target, op, seconds[i]);
    }
    return CR_OK;
}

void cr_program_simulate(const struct cr_program *p, const double *seconds, const struct cr_contention *beside,
                         struct cr_op_time *time, struct cr_simulation *out) {
    double free_at[CR_STREAMS] = {0};
    *out                       = (struct cr_simulation){0};
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op    = &p->op[i];
        double              start = free_at[op->stream];
        for (int k = 0; k < CR_OP_WAIT_MAX && op->wait[k] != CR_NONE; k++) start = CR_MAX(start, time[op->wait[k]].end);
        double end = start + seconds[i];
        if (op->stream == CR_STREAM_COMPUTE)
            end = cr_mapped_read_end(beside, i, start, seconds[i], reading_of(p, op, beside),
                                     free_at[CR_STREAM_TO_HOST], &free_at[CR_STREAM_TO_DEVICE]);
        if (op->stream == CR_STREAM_TO_HOST)
            end = cr_copy_end(start, seconds[i], free_at[CR_STREAM_TO_DEVICE], beside->duplex);
        if (op->stream == CR_STREAM_TO_DEVICE)
            end = cr_copy_end(start, seconds[i], free_at[CR_STREAM_TO_HOST], beside->duplex);
        time[i]             = (struct cr_op_time){.start = start, .end = end, .stall = start - free_at[op->stream]};
        free_at[op->stream] = end;
        out->busy[op->stream] += seconds[i];
        if (op->stream == CR_STREAM_COMPUTE) out->stalled += time[i].stall;
        out->total = CR_MAX(out->total, time[i].end);
    }
}

cr_status cr_program_predict(const struct cr_program *p, const struct cr_cost_model *target,
                             struct cr_simulation *out) {
    const size_t       ops     = (size_t)CR_MAX(p->ops, 1);
    double            *seconds = cr_alloc(2 * ops, sizeof *seconds), *moving = seconds ? seconds + ops : NULL;
    struct cr_op_time *time = cr_alloc(ops, sizeof *time);
    cr_status          status =
        seconds && time ? cr_program_seconds(p, target, seconds, moving) : CR_NO_MEMORY(ops * sizeof *time);
    const struct cr_contention beside = cr_contention_of(target, moving);
    if (status == CR_OK) cr_program_simulate(p, seconds, &beside, time, out);
    cr_free(seconds);
    cr_free(time);
    return status;
}
