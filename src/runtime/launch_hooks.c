/* runtime/launch_hooks.c: hooks around the launch of each op of a program: the profiler's events, and what tests add.
 * See struct cr_launch_hook in runtime/executor.h. */
#include "runtime/executor_internal.h"

/* ---- calls by the executor ---- */

cr_status cr_exec_before_launch(struct cr_exec *exec, int op) {
    for (int h = 0; h < exec->hooks; h++)
        if (exec->hook[h].before) CR_TRY(exec->hook[h].before(exec->hook[h].context, op));
    return CR_OK;
}

cr_status cr_exec_after_launch(struct cr_exec *exec, int op) {
    for (int h = exec->hooks - 1; h >= 0; h--)
        if (exec->hook[h].after) CR_TRY(exec->hook[h].after(exec->hook[h].context, op));
    return CR_OK;
}

cr_status cr_exec_at_end(struct cr_exec *exec) {
    for (int h = 0; h < exec->hooks; h++)
        if (exec->hook[h].end) CR_TRY(exec->hook[h].end(exec->hook[h].context));
    return CR_OK;
}

cr_status cr_exec_recapture(struct cr_exec *exec) {
    for (int h = 0; h < exec->hooks; h++)
        if (exec->hook[h].recapture_runs && exec->runs % exec->hook[h].recapture_runs == 0)
            return cr_exec_drop_graph(exec);
    return CR_OK;
}

void cr_exec_close_hooks(struct cr_exec *exec) {
    for (int h = 0; h < exec->hooks; h++)
        if (exec->hook[h].close) exec->hook[h].close(exec->hook[h].context);
    exec->hooks = 0;
}

/* ---- adding ---- */

cr_status cr_exec_add_hook(struct cr_exec *exec, const struct cr_launch_hook *hook) {
    CR_ASSERT(exec->hooks < CR_LAUNCH_HOOKS_MAX);
    const cr_status status = cr_exec_drop_graph(exec);
    if (status == CR_OK)
        exec->hook[exec->hooks++] = *hook;
    else if (hook->close)
        hook->close(hook->context);
    return status;
}

/* ---- timing ---- */

struct timing {
    struct cr_exec *exec;
    void *const *before, *const *after; /* [program->ops] events */
};

static cr_status record(const struct timing *t, void *const *events, int op) {
    return cr_exec_async(t->exec)->event_record(cr_exec_device(t->exec), t->exec->program->op[op].stream, events[op]);
}
static cr_status record_before(void *context, int op) {
    const struct timing *t = context;
    return record(t, t->before, op);
}
static cr_status record_after(void *context, int op) {
    const struct timing *t = context;
    return record(t, t->after, op);
}

/* The events stand around the work of the other hooks, so this hook is the first. It is no part of the graph, which
 * this run does not use. */
cr_status cr_exec_run_timed(struct cr_exec *exec, const struct cr_step_block *step, void *const *before,
                            void *const *after) {
    struct timing t = {.exec = exec, .before = before, .after = after};
    CR_ASSERT(cr_exec_async(exec) && exec->hooks < CR_LAUNCH_HOOKS_MAX);
    for (int h = exec->hooks++; h > 0; h--) exec->hook[h] = exec->hook[h - 1];
    exec->hook[0]    = (struct cr_launch_hook){.before = record_before, .after = record_after, .context = &t};
    cr_status status = cr_exec_run_range(exec, step, 0, exec->program->ops - 1);
    exec->hooks--;
    for (int h = 0; h < exec->hooks; h++) exec->hook[h] = exec->hook[h + 1];
    return status;
}
