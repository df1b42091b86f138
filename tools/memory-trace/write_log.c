/* tools/memory-trace/write_log.c: opens training sessions, and writes the memory log of one from its plan. */
#include "tools/memory-trace/commands.h"
#include "tools/memory-trace/trace/trace.h"

/* One warm-up iteration and two identical ones. */
enum { ITERATIONS = 3 };

cr_status cr_trace_open_session(const struct cr_tool_args *args, const struct cr_config **config,
                                struct cr_session *session) {
    struct cr_session_options options = {.train = true};
    struct cr_args            cli     = args->cli;
    *config                           = NULL;
    *session                          = (struct cr_session){0};
    cli.operand++; /* without the command */
    cli.operands--;
    CR_TRY(cr_cmd_config(&cli, config));
    CR_TRY(cr_cmd_classes(*config, &options.classes));
    return cr_session_open(*config, &options, session);
}

/* The programs of an update in the order in which training runs them. */
static int programs_of(const struct cr_session *s, int parts, const struct cr_program **programs) {
    for (int i = 0; i < parts; i++) programs[i] = &s->train[parts == 1 || i == 0 ? 0 : i == parts - 1 ? 2 : 1];
    return parts;
}

cr_status cr_trace_command_log(const struct cr_tool_args *args) {
    const struct cr_config   *config;
    struct cr_session         session;
    const struct cr_program **programs = NULL;
    struct cr_text            text     = {0};
    cr_status                 status;
    CR_TRY_OUT(cr_trace_open_session(args, &config, &session));
    const int parts = (int)config->train.accumulate;
    programs        = cr_alloc((size_t)parts, sizeof *programs);
    if (!programs) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %d programs", parts);
    cr_trace_write(programs, programs_of(&session, parts, programs), ITERATIONS, session.device->caps.alignment, &text);
    CR_TRY_OUT(cr_cmd_print(&text));
out:
    cr_text_free(&text);
    cr_free(programs);
    cr_session_close(&session);
    cr_config_close(config);
    return status;
}
