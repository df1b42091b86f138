/* runtime/profiler.c: times the ops of a bound program and prints the profile. See runtime/profiler.h. */
#include "runtime/profiler.h"

#include "formats/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Number of whole runs that are enqueued before a timed pass. At least two, so that the last of them begins without a
 * wait. */
enum { LEAD_MIN = 2, LEAD_MAX = 64 };

struct timing {
    struct cr_exec        *exec;
    struct cr_device      *device;
    const struct cr_async *async; /* NULL: wall time */
    struct cr_step_block   step;
    int                    ops, passes;
    double                *seconds;         /* [ops + 1][passes]; the last entry is of the whole program */
    void                 **before, **after; /* [ops + 1] events; the last ones enclose the whole program */
    int                    lead;            /* whole runs before a timed pass */
    double                *begin;           /* [ops]: start of each op in the last pass */
    double                 event_s;         /* time between two events without work between them */
    double                 enqueue_s;       /* time that the host needed to enqueue the last timed pass */
};

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, cr_compare_doubles);
    return 0.5 * (v[(n - 1) / 2] + v[n / 2]);
}

static double *seconds_of(const struct timing *t, int op, int pass) {
    return &t->seconds[(int64_t)op * t->passes + pass];
}

/* ---- one pass ---- */

static cr_status sync(const struct timing *t) {
    return t->device->backend->sync(t->device);
}

/* Times every op by the wall clock, after one whole run. */
static cr_status wall_clock_pass(struct timing *t, int pass) {
    int64_t start = cr_time_ns();
    CR_TRY(cr_exec_run(t->exec, &t->step));
    CR_TRY(sync(t));
    *seconds_of(t, t->ops, pass) = (double)(cr_time_ns() - start) * 1e-9;
    for (int i = 0; i < t->ops; i++) {
        start       = cr_time_ns();
        t->begin[i] = i ? t->begin[i - 1] + *seconds_of(t, i - 1, pass) : 0;
        CR_TRY(cr_exec_run_range(t->exec, &t->step, i, i));
        CR_TRY(sync(t));
        *seconds_of(t, i, pass) = (double)(cr_time_ns() - start) * 1e-9;
    }
    return CR_OK;
}

/* Times every op by events. The last of the whole runs before it is timed as the whole program. */
static cr_status event_pass(struct timing *t, int pass) {
    CR_TRY(sync(t));
    for (int i = 0; i < t->lead; i++) {
        const bool last = i == t->lead - 1;
        if (last) CR_TRY(t->async->event_record(t->device, CR_STREAM_COMPUTE, t->before[t->ops]));
        CR_TRY(cr_exec_run(t->exec, &t->step));
        if (last) CR_TRY(t->async->event_record(t->device, CR_STREAM_COMPUTE, t->after[t->ops]));
    }
    const int64_t start = cr_time_ns();
    CR_TRY(cr_exec_run_timed(t->exec, &t->step, t->before, t->after));
    t->enqueue_s = (double)(cr_time_ns() - start) * 1e-9;
    CR_TRY(sync(t));
    for (int i = 0; i <= t->ops; i++)
        CR_TRY(t->async->elapsed(t->device, t->before[i], t->after[i], seconds_of(t, i, pass)));
    for (int i = 0; i < t->ops; i++) CR_TRY(t->async->elapsed(t->device, t->before[0], t->before[i], &t->begin[i]));
    return CR_OK;
}

/* Measures the time between two events without work between them. */
static cr_status time_events(struct timing *t) {
    double *empty = seconds_of(t, 0, 0); /* not in use before the passes */
    if (!t->async) return CR_OK;
    for (int i = 0; i < t->passes; i++) {
        CR_TRY(cr_exec_run(t->exec, &t->step)); /* keeps the device busy while the events are enqueued */
        CR_TRY(t->async->event_record(t->device, CR_STREAM_COMPUTE, t->before[0]));
        CR_TRY(t->async->event_record(t->device, CR_STREAM_COMPUTE, t->after[0]));
        CR_TRY(sync(t));
        CR_TRY(t->async->elapsed(t->device, t->before[0], t->after[0], &empty[i]));
    }
    t->event_s = median(empty, t->passes);
    return CR_OK;
}

static cr_status run_passes(struct timing *t) {
    for (int r = t->async ? -1 : 0; r < t->passes; r++) { /* -1: a warm-up pass that determines the lead */
        const int pass = CR_MAX(r, 0);
        CR_TRY(t->async ? event_pass(t, pass) : wall_clock_pass(t, pass));
        t->step.step++;
        const double whole_s = *seconds_of(t, t->ops, pass);
        if (t->async && whole_s > 0) t->lead = (int)CR_MIN(ceil(t->enqueue_s / whole_s) + LEAD_MIN, (double)LEAD_MAX);
    }
    return CR_OK;
}

/* ---- open, close ---- */

static cr_status timing_open(struct timing *t) {
    CR_ALLOC(t->seconds, ((size_t)t->ops + 1) * (size_t)t->passes);
    CR_ALLOC(t->begin, (size_t)t->ops + 1);
    if (!t->async) return CR_OK;
    CR_ALLOC(t->before, (size_t)t->ops + 1);
    CR_ALLOC(t->after, (size_t)t->ops + 1);
    for (int i = 0; i <= t->ops; i++) {
        CR_TRY(t->async->event_create(t->device, &t->before[i]));
        CR_TRY(t->async->event_create(t->device, &t->after[i]));
    }
    return CR_OK;
}

static void timing_close(struct timing *t) {
    for (int i = 0; t->before && t->after && i <= t->ops; i++) {
        t->async->event_destroy(t->device, t->before[i]);
        t->async->event_destroy(t->device, t->after[i]);
    }
    cr_free(t->before);
    cr_free(t->after);
    cr_free(t->seconds);
    cr_free(t->begin);
}

/* A copy between host and device is limited by the rate of that connection, not by the memory of the device. Its bytes
 * count the read and the write, so half of them cross the connection. */
static double roofline_of(const struct timing *t, const struct cr_op *op, double bytes, double flops) {
    const struct cr_device_caps *caps = &t->device->caps;
    if (op->kind == CR_OP_offload) return caps->to_host_bytes_per_s > 0 ? bytes / 2 / caps->to_host_bytes_per_s : 0;
    if (op->kind == CR_OP_prefetch)
        return caps->to_device_bytes_per_s > 0 ? bytes / 2 / caps->to_device_bytes_per_s : 0;
    return CR_MAX(bytes / caps->bytes_per_s, flops / cr_device_flops(t->device, t->device->kernels[op->kernel]->math));
}

static void fill_profile(const struct timing *t, struct cr_profile *out) {
    for (int i = 0; i < t->ops; i++) {
        struct cr_op_profile *o        = &out->op[i];
        const double          median_s = median(seconds_of(t, i, 0), t->passes);
        *o = (struct cr_op_profile){.op = i, .begin_s = t->begin[i], .seconds = CR_MAX(median_s - t->event_s, 0)};
        cr_op_cost(out->program, &out->program->op[i], &o->bytes, &o->flops);
        o->roofline_s = roofline_of(t, &out->program->op[i], o->bytes, o->flops);
        out->sum_s += o->seconds;
    }
    out->event_s = t->event_s;
    out->whole_s = median(seconds_of(t, t->ops, 0), t->passes);
}

cr_status cr_profile_open(struct cr_exec *exec, const struct cr_program *program, struct cr_device *device,
                          const struct cr_step_block *step, int passes, struct cr_profile *out) {
    cr_status     status;
    struct timing t = {.exec   = exec,
                       .device = device,
                       .async  = device->backend->async,
                       .step   = *step,
                       .ops    = program->ops,
                       .passes = passes,
                       .lead   = LEAD_MIN};
    CR_ASSERT(passes > 0);
    *out = (struct cr_profile){.program = program, .device = device, .passes = passes};
    CR_ALLOC(out->op, (size_t)program->ops);
    CR_TRY_OUT(timing_open(&t));
    CR_TRY_OUT(time_events(&t));
    CR_TRY_OUT(run_passes(&t));
    fill_profile(&t, out);
out:
    timing_close(&t);
    if (status != CR_OK) cr_profile_close(out);
    return status;
}

void cr_profile_close(struct cr_profile *profile) {
    cr_free(profile->op);
    *profile = (struct cr_profile){0};
}

/* ---- printing ---- */

static int compare_slowest_first(const void *a, const void *b) {
    const struct cr_op_profile *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? 1 : -1;
    return x->op - y->op;
}

void cr_profile_sort_slowest_first(struct cr_profile *p) {
    qsort(p->op, (size_t)p->program->ops, sizeof *p->op, compare_slowest_first);
}

static double per(double amount, double seconds) {
    return seconds > 0 ? amount / seconds : 0;
}

static const char numbers_head[] = "        ms  percent        MB      GB/s     GFLOP   TFLOP/s  roofline";

/* Without the rates of the machine there is no roofline, and percentages would be meaningless. */
static bool has_roofline(const struct cr_profile *p) {
    return !p->device->caps.typical_rates;
}

static void add_numbers(const struct cr_profile *p, const struct cr_op_profile *o, struct cr_text *out) {
    cr_text_add(out, "%10.4f %6.2f%% %9.2f %9.1f %9.3f %9.3f", o->seconds * 1e3, 100 * per(o->seconds, p->sum_s),
                o->bytes * 1e-6, per(o->bytes, o->seconds) * 1e-9, o->flops * 1e-9, per(o->flops, o->seconds) * 1e-12);
    if (has_roofline(p))
        cr_text_add(out, " %8.1f%%", 100 * per(o->roofline_s, o->seconds));
    else
        cr_text_add(out, " %9s", "-");
}

static const char *layer_of(const struct cr_program *p, const struct cr_op *op) {
    return op->layer >= 0 ? p->layer[op->layer] : "-";
}

/* One line for each op kind with the sums over its ops. The member `op` holds the kind while the lines are sorted. */
static void add_kinds(const struct cr_profile *p, struct cr_text *out) {
    struct cr_op_profile kind[CR_OP_COUNT]  = {0};
    int                  count[CR_OP_COUNT] = {0};
    for (int k = 0; k < CR_OP_COUNT; k++) kind[k].op = k;
    for (int i = 0; i < p->program->ops; i++) {
        const struct cr_op_profile *o = &p->op[i];
        const enum cr_op_kind       k = p->program->op[o->op].kind;
        count[k]++;
        kind[k].seconds += o->seconds;
        kind[k].bytes += o->bytes;
        kind[k].flops += o->flops;
        kind[k].roofline_s += o->roofline_s;
    }
    qsort(kind, CR_OP_COUNT, sizeof *kind, compare_slowest_first);
    cr_text_add(out, "\n%s  %5s  %s\n", numbers_head, "ops", "kind");
    for (int k = 0; k < CR_OP_COUNT && kind[k].seconds > 0; k++) {
        add_numbers(p, &kind[k], out);
        cr_text_add(out, "  %5d  %s\n", count[kind[k].op], cr_op_info((enum cr_op_kind)kind[k].op)->name);
    }
}

/* " (NAME)" of the op's algorithm or weight format, if it has one. */
static void add_algo(const struct cr_profile *p, const struct cr_op *op, struct cr_text *out) {
    struct cr_text name = {0};
    cr_device_algo_name(p->device, p->program, op, &name);
    if (name.data) cr_text_add(out, " (%s)", name.data);
    cr_text_free(&name);
}

static double total_roofline(const struct cr_profile *p) {
    double sum = 0;
    for (int i = 0; i < p->program->ops; i++) sum += p->op[i].roofline_s;
    return sum;
}

static void add_totals(const struct cr_profile *p, struct cr_text *out) {
    const struct cr_device_caps *caps       = &p->device->caps;
    char                         events[64] = "", roofline[64] = "";
    if (p->event_s > 0) snprintf(events, sizeof events, " (minus %.2f us per op for events)", p->event_s * 1e6);
    if (has_roofline(p)) {
        snprintf(roofline, sizeof roofline, " at the roofline %.3f ms;", total_roofline(p) * 1e3);
        cr_text_add(out,
                    "\nroofline: roofline time as a percentage of the measured time. The roofline time is the longer "
                    "of bytes at "
                    "%.1f GB/s and FLOPs at %.3f TFLOP/s (%.1f in tf32, %.1f in f32), estimates for this device.\n",
                    caps->bytes_per_s * 1e-9, caps->flops_per_s * 1e-12,
                    cr_device_flops(p->device, CR_MATH_TF32) * 1e-12, cr_device_flops(p->device, CR_MATH_F32) * 1e-12);
    } else
        cr_text_add(out, "\nroofline: none on this device, whose peak rates are not known.\n");
    cr_text_add(out, "sum of %d ops: %.3f ms%s;%s the whole program: %.3f ms (medians of %d passes)\n", p->program->ops,
                p->sum_s * 1e3, events, roofline, p->whole_s * 1e3, p->passes);
}

void cr_profile_print(const struct cr_profile *p, struct cr_text *out) {
    cr_text_add(out, "%s  %-24s %-18s %s\n", numbers_head, "kernel", "op", "layer");
    for (int i = 0; i < p->program->ops; i++) {
        const struct cr_op *op = &p->program->op[p->op[i].op];
        add_numbers(p, &p->op[i], out);
        cr_text_add(out, "  %-24s %-18s %s", p->device->kernels[op->kernel]->name, cr_op_info(op->kind)->name,
                    layer_of(p->program, op));
        add_algo(p, op, out);
        cr_text_add(out, "\n");
    }
    add_kinds(p, out);
    add_totals(p, out);
}

static void json_op(const struct cr_profile *p, const struct cr_op_profile *o, struct cr_text *out) {
    const struct cr_op   *op   = &p->program->op[o->op];
    struct cr_text        algo = {0};
    struct cr_json_writer w    = cr_json_writer(out, CR_JSON_SPACED);
    cr_device_algo_name(p->device, p->program, op, &algo);
    cr_json_open_object(&w, NULL);
    cr_json_put_int(&w, "op", o->op);
    cr_json_put_string(&w, "kind", cr_op_info(op->kind)->name);
    cr_json_put_string(&w, "layer", layer_of(p->program, op));
    cr_json_put_string(&w, "kernel", p->device->kernels[op->kernel]->name);
    if (algo.data) cr_json_put_string(&w, "algo", algo.data);
    cr_json_put_string(&w, "stream", cr_stream_name(op->stream));
    cr_json_put_fixed(&w, "begin_ms", o->begin_s * 1e3, 5);
    cr_json_put_fixed(&w, "ms", o->seconds * 1e3, 5);
    cr_json_put_fixed(&w, "fraction", per(o->seconds, p->sum_s), 6);
    cr_json_put_fixed(&w, "bytes", o->bytes, 0);
    cr_json_put_fixed(&w, "flops", o->flops, 0);
    cr_json_put_fixed(&w, "roofline", has_roofline(p) ? per(o->roofline_s, o->seconds) : NAN, 4);
    cr_json_close_line(&w);
    cr_text_free(&algo);
}

void cr_profile_print_json(const struct cr_profile *p, struct cr_text *out) {
    struct cr_json_writer w = cr_json_writer(out, CR_JSON_SPACED);
    for (int i = 0; i < p->program->ops; i++) json_op(p, &p->op[i], out);
    cr_json_open_object(&w, NULL);
    cr_json_put_int(&w, "ops", p->program->ops);
    cr_json_put_string(&w, "program", p->program->name);
    cr_json_put_fixed(&w, "sum_ms", p->sum_s * 1e3, 5);
    cr_json_put_fixed(&w, "roofline_ms", has_roofline(p) ? total_roofline(p) * 1e3 : NAN, 5);
    cr_json_put_fixed(&w, "whole_ms", p->whole_s * 1e3, 5);
    cr_json_put_fixed(&w, "event_us", p->event_s * 1e6, 4);
    cr_json_put_int(&w, "passes", p->passes);
    cr_json_put_string(&w, "device", p->device->caps.text);
    cr_json_close_line(&w);
}
