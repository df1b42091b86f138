/* cli/compress/process.c: runs another command of this program as a child process. See cli/compress/compress.h. */
#include "cli/compress/compress.h"

#include "core/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static bool is_key(const char *text, const char *key) {
    return strncmp(text, key, strlen(key)) == 0 && text[strlen(key)] == '=';
}

/* Keys of the command line that say where and how to run, not which network, and keys that the step sets itself. */
static bool is_passed_on(const char *override, const char *const *arguments) {
    bool set = is_key(override, "train.output") || is_key(override, "model.weights") || is_key(override, "quant.type");
    for (const char *equals = strchr(override, '='); equals && *arguments && !set; arguments++)
        set = strncmp(*arguments, override, (size_t)(equals - override) + 1) == 0;
    return !set;
}

static cr_status make_argv(struct cr_compress *c, const char *const *arguments, bool keys, const char ***out) {
    const struct cr_args *args  = c->args;
    int                   count = 0, n = 0;
    while (arguments[count]) count++;
    const char **argv = cr_arena_alloc(&c->arena, (size_t)(count + args->overrides + 2) * sizeof *argv);
    if (!argv) return CR_NO_MEMORY((size_t)count * sizeof *argv);
    argv[n++] = "cresnet";
    for (int i = 0; i < count; i++) argv[n++] = arguments[i];
    for (int i = 0; i < args->overrides && keys; i++)
        if (is_passed_on(args->override[i], arguments)) argv[n++] = args->override[i];
    *out = argv;
    return CR_OK;
}

static void say(struct cr_arena *arena, const char *const *argv) {
    struct cr_text text = {0};
    for (int i = 0; argv[i]; i++) cr_text_add(&text, "%s%s", i ? " " : "", cr_cmd_shell_word(arena, argv[i]));
    if (!text.failed) cr_log(CR_LOG_INFO, "$ %s", text.data);
    cr_text_free(&text);
}

/* Waits for the process; passes signals on. */
static int wait_for(struct cr_compress *c, pid_t process, const struct cr_process_signals *signals) {
    int how;
    while (!cr_process_ended(process, &how)) {
        const int got = cr_process_wait(signals, CR_PROCESS_POLL_MS);
        if (!got) continue;
        c->out->signal = got;
        (void)kill(process, got);
    }
    return cr_process_code(how);
}

/* Runs the program with its results in a file. It saves and stops when this command is killed. */
static cr_status run_program(struct cr_compress *c, const char *const *argv, const char *path, int *code) {
    struct cr_process_signals signals;
    pid_t                     process;
    const int                 file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) return cr_fs_refused(path, "create", errno);
    const struct cr_process_program program = {
        .path = "/proc/self/exe", .argv = argv, .input = -1, .output = file, .errors = -1, .stops_with_parent = true};
    cr_process_signals_begin(&signals, NULL, 0);
    const int failed = cr_process_start(&program, &process);
    if (!failed) *code = wait_for(c, process, &signals);
    cr_process_signals_end(&signals);
    close(file);
    return failed ? CR_FAIL(CR_ERR_IO, "cannot start a process: %s", strerror(failed)) : CR_OK;
}

cr_status cr_compress_process(struct cr_compress *c, const char *const *arguments, bool keys, const char *file) {
    const char **argv;
    const char  *partial = cr_arena_printf(&c->arena, "%s.partial", file);
    int          code;
    if (!partial) return CR_NO_MEMORY(CR_PATH_MAX);
    CR_TRY(make_argv(c, arguments, keys, &argv));
    say(&c->arena, argv);
    CR_TRY(run_program(c, argv, partial, &code));
    if (c->out->signal) return CR_FAIL(CR_ERR_INTERRUPTED, "stopped: the same command continues");
    if (code)
        return CR_FAIL(CR_ERR_IO, "cresnet %s failed with exit code %d, see above; the same command tries it again",
                       arguments[0], code);
    if (cr_fs_rename(partial, file) < 0) return cr_fs_refused(file, "create", errno);
    return CR_OK;
}
