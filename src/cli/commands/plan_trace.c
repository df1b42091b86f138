/* cli/commands/plan_trace.c: cresnet plan --trace: analyses and plans the memory log of any program. */
#include "cli/common/command.h"
#include "inspect/memory_trace/memory_trace.h"

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

static void print_json(const struct analysis *w, struct cr_text *out) {
    static const char *const    names[ENDS] = {"free", "use"};
    const struct cr_trace_plan *f           = &w->plan[BY_FREE];
    cr_text_add(out, "{\"trace\": ");
    cr_text_add_json(out, w->path);
    cr_text_add(out,
                ", \"events\": %d, \"blocks\": %d, \"live_blocks\": %d, \"period\": %d, \"iterations\": %d, "
                "\"first_line\": %d",
                w->trace.events, w->trace.blocks, w->trace.alive, w->loop.period, f->iterations,
                w->loop.start + f->cut + 2);
    cr_text_add(out,
                ", \"tail_events\": %d, \"persistent_bytes\": %zu, \"persistent_blocks\": %d, \"leaked_bytes\": %zu, "
                "\"lifetimes\": %d, "
                "\"wrapping\": %d",
                f->tail, f->persistent, f->persistent_blocks, f->leaked, f->intervals, f->wrapping);
    for (int by = 0; by < ENDS; by++) {
        const struct cr_trace_plan *p = &w->plan[by];
        cr_text_add(out,
                    ", \"%s\": {\"bound_bytes\": %zu, \"peak_bytes\": %zu, \"ratio\": %.6f, \"sum_bytes\": %zu, "
                    "\"steps\": %lld}",
                    names[by], p->bound, p->peak, ratio(p->peak, p->bound), p->naive, (long long)p->steps);
    }
    cr_text_add(out, ", \"online_bytes\": %zu}\n", w->online);
}

cr_status cr_plan_trace(const struct cr_args *args) {
    static const enum cr_option_id excluded[] = {CR_OPT_PROGRAM,   CR_OPT_AFTER,    CR_OPT_CHOICES,    CR_OPT_WHICH,
                                                 CR_OPT_LIFETIMES, CR_OPT_CURVE,    CR_OPT_PNG,        CR_OPT_TARGET,
                                                 CR_OPT_RANKS,     CR_OPT_CAPACITY, CR_OPT_TIME_LIMIT, CR_OPT_REPLACE};
    bool                           more       = args->overrides > 0;
    struct analysis                w          = {.path = args->value[CR_OPT_TRACE]};
    struct cr_text                 text       = {0};
    int64_t                        alignment;
    cr_status                      status;
    CR_TRY(cr_args_max_operands(args, 0));
    for (size_t i = 0; i < CR_COUNT(excluded); i++) more |= cr_args_has(args, excluded[i]);
    if (more)
        return cr_args_fail(
            args, "--trace plans a log, not a configuration: only --alignment, --csv and --json can be given with it");
    CR_TRY(cr_args_int(args, CR_OPT_ALIGNMENT, 1, ALIGNMENT_MAX, ALIGNMENT, &alignment));
    CR_TRY_OUT(run(&w, (size_t)alignment));
    if (cr_args_has(args, CR_OPT_JSON))
        print_json(&w, &text);
    else if (cr_args_has(args, CR_OPT_CSV))
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
