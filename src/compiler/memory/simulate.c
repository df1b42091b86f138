/* compiler/memory/simulate.c: predicts the time of a program whose streams (compute, copies) run concurrently.
 *
 * Each stream runs its ops in list order. An op starts when its stream is free and the ops that it waits for have
 * ended. Copies in both directions at once are slower than alone. Copies and memory-bound kernels slow each other down.
 * Kernels of the side stream share the device with those of the compute stream, so their times add up. */
#include "compiler/simulate.h"
#include "compiler/cost_model.h"

double cr_copy_contention(const struct cr_cost_model *t) {
    const double alone = CR_MIN(CR_MAX(t->duplex_speedup, 1.0), 2.0);
    return CR_MAX((2 - alone) / alone,
                  0.1); /* both directions together have rate 2, one direction alone has rate `alone` */
}

/* A copy to the host competes with kernels for reads of device memory. Kernels do not slow a copy to the device. */
double cr_copy_seconds(const struct cr_cost_model *t, enum cr_stream stream, size_t bytes) {
    const bool   out    = stream == CR_STREAM_TO_HOST;
    const double rate   = out ? t->to_host_bytes_per_s : t->to_device_bytes_per_s;
    const double loaded = out ? CR_MAX(t->loaded_copy_slowdown, 1.0) : 1;
    return rate > 0 ? t->copy_latency_s + loaded * (double)bytes / (rate * CR_MIN(CR_MAX(t->duplex_speedup, 1.0), 2.0))
                    : 0;
}

double cr_copy_end(double begin, double alone, double other, double duplex) {
    const double overlap = CR_MAX(other - begin, 0);
    return alone <= overlap * duplex ? begin + alone / duplex : begin + alone + overlap * (1 - duplex);
}

/* ---- kernels during copies ---- */

struct cr_contention cr_contention_of(const struct cr_cost_model *t, const double *memory_busy) {
    return (struct cr_contention){
        .duplex = cr_copy_contention(t), .out = t->contention_out, .in = t->contention_in, .memory_busy = memory_busy};
}

double cr_kernel_end(const struct cr_contention *b, int op, double begin, double seconds, double out_end,
                     double in_end) {
    if (!b->memory_busy) return begin + seconds;
    const double out = CR_MIN(CR_MAX(out_end - begin, 0), seconds), in = CR_MIN(CR_MAX(in_end - begin, 0), seconds);
    return begin + seconds + b->memory_busy[op] * (out * b->out + in * b->in);
}

/* Fraction of the op's time in which it saturates device memory: its roofline memory time over its time. */
static double memory_busy_of(const struct cr_program *p, const struct cr_cost_model *t, const struct cr_op *op,
                             double seconds) {
    double bytes, flops;
    if (op->stream != CR_STREAM_COMPUTE || op->kind == CR_OP_barrier || seconds <= 0 || t->bytes_per_s <= 0) return 0;
    cr_op_cost(p, op, &bytes, &flops);
    return CR_MIN(bytes / t->bytes_per_s / seconds, 1.0);
}

/* ---- a program ---- */

cr_status cr_program_seconds(const struct cr_program *p, const struct cr_cost_model *cost_model, double *seconds,
                             double *memory_busy) {
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        seconds[i]             = cr_op_seconds(cost_model, p, op);
        if (op->kind == CR_OP_offload)
            seconds[i] = cr_copy_seconds(cost_model, CR_STREAM_TO_HOST, p->tensor[op->in[CR_IN_offload_x]].bytes);
        else if (op->kind == CR_OP_prefetch)
            seconds[i] = cr_copy_seconds(cost_model, CR_STREAM_TO_DEVICE, p->tensor[op->in[CR_IN_prefetch_x]].bytes);
        else if (cost_model->cost && op->kind != CR_OP_barrier)
            CR_TRY(cost_model->cost(cost_model->self, p, op, &seconds[i]));
        memory_busy[i] = memory_busy_of(p, cost_model, op, seconds[i]);
    }
    return CR_OK;
}

void cr_program_simulate(const struct cr_program *p, const double *seconds, const struct cr_contention *contention,
                         struct cr_op_time *time, struct cr_simulation *out) {
    double free_at[CR_STREAMS] = {0};
    *out                       = (struct cr_simulation){0};
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op  *op     = &p->op[i];
        const enum cr_stream stream = op->stream == CR_STREAM_SIDE ? CR_STREAM_COMPUTE : op->stream;
        double               start  = free_at[stream];
        for (int k = 0; k < CR_OP_WAIT_MAX && op->wait[k] != CR_NONE; k++) start = CR_MAX(start, time[op->wait[k]].end);
        double end = start + seconds[i];
        if (stream == CR_STREAM_COMPUTE)
            end = cr_kernel_end(contention, i, start, seconds[i], free_at[CR_STREAM_TO_HOST],
                                free_at[CR_STREAM_TO_DEVICE]);
        if (op->stream == CR_STREAM_TO_HOST)
            end = cr_copy_end(start, seconds[i], free_at[CR_STREAM_TO_DEVICE], contention->duplex);
        if (op->stream == CR_STREAM_TO_DEVICE)
            end = cr_copy_end(start, seconds[i], free_at[CR_STREAM_TO_HOST], contention->duplex);
        time[i]         = (struct cr_op_time){.start = start, .end = end, .stall = start - free_at[stream]};
        free_at[stream] = end;
        if (stream == CR_STREAM_COMPUTE) out->stalled += time[i].stall;
        out->total = CR_MAX(out->total, time[i].end);
    }
}

cr_status cr_program_predict(const struct cr_program *p, const struct cr_cost_model *cost_model,
                             struct cr_simulation *out) {
    const size_t       ops     = (size_t)CR_MAX(p->ops, 1);
    double            *seconds = cr_alloc(2 * ops, sizeof *seconds), *memory_busy = seconds ? seconds + ops : NULL;
    struct cr_op_time *time = cr_alloc(ops, sizeof *time);
    cr_status          status =
        seconds && time ? cr_program_seconds(p, cost_model, seconds, memory_busy) : CR_NO_MEMORY(ops * sizeof *time);
    const struct cr_contention contention = cr_contention_of(cost_model, memory_busy);
    if (status == CR_OK) cr_program_simulate(p, seconds, &contention, time, out);
    cr_free(seconds);
    cr_free(time);
    return status;
}
