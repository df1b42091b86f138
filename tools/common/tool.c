/* tools/common/tool.c: parses the command line of a tool, runs the tool and prints its error. */
#include "tools/common/tool.h"
#include "core/cpu.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cr_status cr_tool_fail(const struct cr_tool_args *args, const char *fmt, ...) {
    char    what[1000];
    va_list list;
    va_start(list, fmt);
    vsnprintf(what, sizeof what, fmt, list);
    va_end(list);
    return CR_FAIL(CR_ERR_USAGE, "%s; see %s --help", what, args->tool->name);
}

/* Index of the option of this name, of `length` characters; CR_NONE when there is none. */
static int find_option(const struct cr_tool *tool, const char *name, size_t length) {
    for (int i = 0; tool->option[i].name; i++)
        if (strlen(tool->option[i].name) == length && strncmp(tool->option[i].name, name, length) == 0) return i;
    return -1;
}

const char *cr_tool_value(const struct cr_tool_args *args, const char *option) {
    const int i = find_option(args->tool, option, strlen(option));
    CR_ASSERT(i >= 0);
    return args->value[i];
}

cr_status cr_tool_int(const struct cr_tool_args *args, const char *option, int64_t min, int64_t max, int64_t fallback,
                      int64_t *out) {
    const char *text = cr_tool_value(args, option);
    char       *end;
    *out = fallback;
    if (!text) return CR_OK;
    errno                 = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < min || value > max)
        return cr_tool_fail(args, "--%s %s: must be an integer from %lld to %lld", option, text, (long long)min,
                            (long long)max);
    *out = value;
    return CR_OK;
}

cr_status cr_tool_numbers(const struct cr_tool_args *args, const char *option, const char *fallback, double min,
                          double max, double *out, int room, int *count) {
    const char *given = cr_tool_value(args, option), *text = given ? given : fallback;
    for (*count = 0; *text;) {
        char        *end;
        const double number = strtod(text, &end);
        if (end == text || !(number >= min) || number > max || (*end && *end != ',') || (*end == ',' && !end[1]) ||
            *count == room)
            return cr_tool_fail(args, "--%s %s: must be at most %d numbers from %g to %g, separated by commas", option,
                                given, room, min, max);
        out[(*count)++] = number;
        text            = *end ? end + 1 : end;
    }
    return *count ? CR_OK : cr_tool_fail(args, "--%s: must be numbers separated by commas", option);
}

cr_status cr_tool_operands(const struct cr_tool_args *args, int min, int max) {
    if (args->cli.operands > max) return cr_tool_fail(args, "unexpected operand %s", args->cli.operand[max]);
    if (args->cli.operands < min)
        return cr_tool_fail(args, "an operand is missing: %s %s", args->tool->name, args->tool->operands);
    return CR_OK;
}

/* ---- the command line ---- */

static cr_status add_override(struct cr_tool_args *args, const char *key, const char *value) {
    const size_t bytes = strlen(key) + strlen(value) + 2;
    char        *text  = cr_arena_alloc(&args->cli.arena, bytes);
    if (!text) return CR_NO_MEMORY(bytes);
    snprintf(text, bytes, "%s=%s", key, value);
    args->cli.override[args->cli.overrides++] = text;
    return CR_OK;
}

/* Parses one option; *at is the index of the next word, which may be its value. */
static cr_status parse_option(struct cr_tool_args *args, const char *word, int argc, char **argv, int *at) {
    const size_t length = strcspn(word, "=");
    const int    i      = find_option(args->tool, word, length);
    if (i < 0) return cr_tool_fail(args, "unknown option --%.*s", (int)length, word);
    const struct cr_tool_option *option = &args->tool->option[i];
    if (!option->value && word[length]) return cr_tool_fail(args, "option --%s takes no value", option->name);
    if (option->value && !word[length] && *at == argc)
        return cr_tool_fail(args, "option --%s needs a value: %s", option->name, option->value);
    args->value[i] = !option->value ? "" : word[length] ? word + length + 1 : argv[(*at)++];
    return option->key ? add_override(args, option->key, args->value[i]) : CR_OK;
}

static bool is_override(const char *word) {
    const char *equals = strchr(word, '='), *dot = strchr(word, '.'), *slash = strchr(word, '/');
    return equals && dot && dot < equals && !(slash && slash < equals);
}

static cr_status parse(struct cr_tool_args *args, int argc, char **argv) {
    struct cr_args *cli   = &args->cli;
    const size_t    bytes = (size_t)argc * sizeof *cli->operand;
    cli->command          = CR_CMD_PLAN;
    cli->operand          = cr_arena_alloc(&cli->arena, bytes);
    cli->override         = cr_arena_alloc(&cli->arena, bytes);
    if (!cli->operand || !cli->override) return CR_NO_MEMORY(bytes);
    for (int at = 1; at < argc;) {
        const char *word = argv[at++];
        if (strncmp(word, "--", 2) == 0)
            CR_TRY(parse_option(args, word + 2, argc, argv, &at));
        else if (is_override(word))
            cli->override[cli->overrides++] = word;
        else
            cli->operand[cli->operands++] = word;
    }
    return CR_OK;
}

static void add_help(const struct cr_tool *tool, struct cr_text *out) {
    cr_text_add(out, "usage: %s %s\n\n%s\n", tool->name, tool->operands, tool->about);
    for (const struct cr_tool_option *o = tool->option; o->name; o++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
        cr_text_add(out, "  %-22s  %s%s%s%s\n", left, o->help, o->key ? " [" : "", o->key ? o->key : "",
                    o->key ? "]" : "");
    }
}

static bool wants_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) return true;
    return false;
}

int cr_tool_main(const struct cr_tool *tool, int argc, char **argv) {
    struct cr_tool_args args = {.tool = tool};
    cr_status           status;
    signal(SIGPIPE, SIG_IGN);
    CR_TRY_OUT(cr_cpu_check());
    if (wants_help(argc, argv)) {
        struct cr_text text = {0};
        add_help(tool, &text);
        CR_TRY_OUT(cr_cmd_print(&text));
    } else {
        CR_TRY_OUT(parse(&args, argc, argv));
        CR_TRY_OUT(tool->run(&args));
    }
out:
    if (status != CR_OK && status != CR_ERR_INTERRUPTED) fprintf(stderr, "%s: %s\n", tool->name, cr_error_message());
    cr_arena_free(&args.cli.arena);
    return cr_status_exit(status);
}
