/* tools/memory-trace/plan_lifetimes.c: plans offsets for the lifetimes in a file, of any program. */
#include "tools/memory-trace/commands.h"
#include "tools/memory-trace/lifetimes_csv.h"
#include "tools/memory-trace/search.h"

enum { TIME_LIMIT_S = 60, TIME_LIMIT_MAX_S = 1000 * 1000 };

static cr_status plan_file(const struct cr_tool_args *args, struct cr_lifetimes *lifetimes) {
    const char *path = args->cli.operand[1];
    int64_t     capacity, limit_s, begin = cr_time_ns();
    CR_TRY(cr_tool_int(args, "capacity", 1, (int64_t)1 << 62, 0, &capacity));
    CR_TRY(cr_tool_int(args, "time-limit", 0, TIME_LIMIT_MAX_S, TIME_LIMIT_S, &limit_s));
    CR_TRY(cr_lifetimes_read(path, lifetimes));
    const struct cr_plan_effort effort = {.alignment = 1,
                                          .capacity  = (size_t)capacity,
                                          .visits    = limit_s ? INT64_MAX / 8 : 0,
                                          .limit_ns  = limit_s * 1000 * 1000 * 1000};
    struct cr_plan_found        found;
    CR_TRY(cr_plan_search(lifetimes->interval, lifetimes->count, &effort, &found));
    CR_TRY(cr_lifetimes_check(lifetimes, found.peak));
    double seconds = (double)(cr_time_ns() - begin) * 1e-9;
    if (capacity && found.peak > (size_t)capacity) {
        if (found.lower_bound > (size_t)capacity)
            return CR_FAIL(
                CR_ERR_MEMORY,
                "%s: no plan fits into the capacity %lld: every plan needs at least %zu; the best plan found "
                "needs %zu (lower bound %zu)",
                path, (long long)capacity, found.lower_bound, found.peak, found.bound);
        return CR_FAIL(CR_ERR_MEMORY,
                       "%s: no plan within the capacity %lld was found in %.1f s: peak %zu, lower bound %zu; "
                       "increase --time-limit",
                       path, (long long)capacity, seconds, found.peak, found.bound);
    }
    cr_log(CR_LOG_INFO, "%s: %d lifetimes, peak %zu, lower bound %zu, peak/bound %.4f, greedy %zu, %.2f s%s", path,
           lifetimes->count, found.peak, found.bound, found.bound ? (double)found.peak / (double)found.bound : 1,
           found.greedy, seconds, found.peak == found.lower_bound ? ", optimal" : "");
    return CR_OK;
}

cr_status cr_trace_command_offsets(const struct cr_tool_args *args) {
    cr_status           status    = CR_OK;
    struct cr_lifetimes lifetimes = {0};
    struct cr_text      text      = {0};
    if (args->cli.overrides)
        return cr_tool_fail(args, "a file of lifetimes has no configuration keys: %s", args->cli.override[0]);
    CR_TRY_OUT(plan_file(args, &lifetimes));
    cr_lifetimes_print(&lifetimes, &text);
    CR_TRY_OUT(cr_cmd_print(&text));
out:
    cr_text_free(&text);
    cr_lifetimes_free(&lifetimes);
    return status;
}
