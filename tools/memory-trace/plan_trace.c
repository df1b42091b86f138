/* tools/memory-trace/plan_trace.c: analyses and plans the memory log of any program. */
#include "formats/json_write.h"
#include "tools/memory-trace/commands.h"
#include "tools/memory-trace/trace/trace.h"

enum { BY_FREE = CR_TRACE_BY_FREE, BY_USE = CR_TRACE_BY_USE, ENDS = 2, ALIGNMENT = 64, ALIGNMENT_MAX = 1 << 30 };

static const double min_fraction = 0.05; /* of the log; shorter iterations print a warning */

struct analysis {
    const char          *path;
    struct cr_trace      trace;
    struct cr_trace_loop loop;
    struct cr_trace_plan plan[ENDS];
    size_t               online; /* bytes of an online best-fit allocator */
};

/* Small logs are printed in KiB. */
static bool is_small(const struct analysis *w) {
    return w->plan[BY_FREE].bound < 1 << 20;
}
static const char *unit(const struct analysis *w) {
    return is_small(w) ? "KiB" : "MiB";
}
static double in_units(const struct analysis *w, size_t bytes) {
    return (double)bytes / (is_small(w) ? 1 << 10 : 1 << 20);
}

static double ratio(size_t bytes, size_t bound) {
    return bound ? (double)bytes / (double)bound : 1;
}

static cr_status run(struct analysis *w, size_t alignment) {
    CR_TRY(cr_trace_read(w->path, &w->trace));
    CR_TRY(cr_trace_find_loop(&w->trace, w->path, &w->loop));
    const double fraction = (double)(w->loop.end - w->loop.start) / w->trace.events;
    if (fraction < min_fraction)
        cr_log(CR_LOG_WARN, "%s: the part that repeats is only %.2f %% of the log: it may not be the iteration",
               w->path, 100 * fraction);
    for (int by = 0; by < ENDS; by++) {
        CR_TRY(cr_trace_plan(&w->trace, &w->loop, (enum cr_trace_by)by, alignment, &w->plan[by]));
        CR_TRY(cr_trace_check(&w->trace, &w->loop, &w->plan[by]));
    }
    return cr_trace_online(&w->trace, &w->loop, &w->plan[BY_FREE], &w->online);
}

/* ---- output ---- */

static void print_line(const struct analysis *w, const char *name, size_t free, size_t use, struct cr_text *out) {
    cr_text_add(out, "%-22s %12.2f %s %8.4f %14.2f %s %8.4f\n", name, in_units(w, free), unit(w),
                ratio(free, w->plan[BY_FREE].bound), in_units(w, use), unit(w), ratio(use, w->plan[BY_USE].bound));
}

static void print_text(const struct analysis *w, struct cr_text *out) {
    const struct cr_trace_plan *f = &w->plan[BY_FREE], *u = &w->plan[BY_USE];
    cr_text_add(out, "log         %s: %d events, %d blocks, %d of them still live at the end\n", w->path,
                w->trace.events, w->trace.blocks, w->trace.alive);
    cr_text_add(out,
                "iterations  %d complete iterations of %d events, from line %d on; %d events of an incomplete one, %d "
                "after it\n",
                f->iterations, w->loop.period, w->loop.start + f->cut + 2, f->tail, w->trace.events - w->loop.end);
    cr_text_add(out, "persistent  %.2f %s in %d blocks that are live across iterations\n", in_units(w, f->persistent),
                unit(w), f->persistent_blocks);
    cr_text_add(out, "each        %d blocks per iteration, %d of them freed in a later iteration\n", f->intervals,
                f->wrapping);
    if (f->leaked_blocks)
        cr_text_add(out,
                    "leaked      %.2f %s in %d blocks are allocated in each iteration and not freed in this log; they "
                    "are not planned\n",
                    in_units(w, f->leaked), unit(w), f->leaked_blocks);
    cr_text_add(out, "\n%-22s %25s %27s\n", "size and ratio to bound", "malloc to free", "first to last use");
    print_line(w, "peak load (bound)", f->bound, u->bound, out);
    print_line(w, "planned", f->peak, u->peak, out);
    cr_text_add(out, "%-22s %12.2f %s %8.4f\n", "best fit, online", in_units(w, w->online), unit(w),
                ratio(w->online, f->bound));
    print_line(w, "no reuse", f->naive, u->naive, out);
}

/* Prints the lifetimes from malloc to the last use. In a log without uses they end at the free. */
static void print_csv(const struct analysis *w, struct cr_text *out) {
    const struct cr_trace_plan *p = &w->plan[BY_USE];
    cr_text_add(out, "id,lower,upper,size,offset\n");
    for (int i = 0; i < p->intervals; i++) {
        const struct cr_trace_interval *x = &p->interval[i];
        const size_t stride = (x->size + p->alignment - 1) / p->alignment * p->alignment; /* of one copy of the block */
        cr_text_add(out, "%d,%lld,%lld,%zu,%zu\n", i, (long long)x->lower, (long long)x->upper,
                    stride * (size_t)(x->copies - 1) + x->size, x->offset);
    }
}

static void json_plan(struct cr_json_writer *w, const char *name, const struct cr_trace_plan *p) {
    cr_json_open_object(w, name);
    cr_json_put_uint(w, "bound_bytes", p->bound);
    cr_json_put_uint(w, "peak_bytes", p->peak);
    cr_json_put_fixed(w, "ratio", ratio(p->peak, p->bound), 6);
    cr_json_put_uint(w, "sum_bytes", p->naive);
    cr_json_put_int(w, "steps", p->steps);
    cr_json_close_object(w);
}

static void print_json(const struct analysis *a, struct cr_text *out) {
    const struct cr_trace_plan *f = &a->plan[BY_FREE];
    struct cr_json_writer       w = cr_json_writer(out, CR_JSON_SPACED);
    cr_json_open_object(&w, NULL);
    cr_json_put_string(&w, "trace", a->path);
    cr_json_put_int(&w, "events", a->trace.events);
    cr_json_put_int(&w, "blocks", a->trace.blocks);
    cr_json_put_int(&w, "live_blocks", a->trace.alive);
    cr_json_put_int(&w, "period", a->loop.period);
    cr_json_put_int(&w, "iterations", f->iterations);
    cr_json_put_int(&w, "first_line", a->loop.start + f->cut + 2);
    cr_json_put_int(&w, "tail_events", f->tail);
    cr_json_put_uint(&w, "persistent_bytes", f->persistent);
    cr_json_put_int(&w, "persistent_blocks", f->persistent_blocks);
    cr_json_put_uint(&w, "leaked_bytes", f->leaked);
    cr_json_put_int(&w, "lifetimes", f->intervals);
    cr_json_put_int(&w, "wrapping", f->wrapping);
    json_plan(&w, "free", f);
    json_plan(&w, "use", &a->plan[BY_USE]);
    cr_json_put_uint(&w, "online_bytes", a->online);
    cr_json_close_object(&w);
    cr_json_end_line(&w);
}

cr_status cr_trace_command_plan(const struct cr_tool_args *args) {
    struct analysis w    = {.path = args->cli.operand[1]};
    struct cr_text  text = {0};
    int64_t         alignment;
    cr_status       status;
    if (args->cli.overrides)
        return cr_tool_fail(args, "a log is planned without a configuration: leave %s out", args->cli.override[0]);
    CR_TRY(cr_tool_int(args, "alignment", 1, ALIGNMENT_MAX, ALIGNMENT, &alignment));
    CR_TRY_OUT(run(&w, (size_t)alignment));
    if (cr_tool_value(args, "json"))
        print_json(&w, &text);
    else if (cr_tool_value(args, "csv"))
        print_csv(&w, &text);
    else
        print_text(&w, &text);
    CR_TRY_OUT(cr_cmd_print(&text));
out:
    cr_text_free(&text);
    for (int by = 0; by < ENDS; by++) cr_trace_plan_free(&w.plan[by]);
    cr_trace_free(&w.trace);
    return status;
}
