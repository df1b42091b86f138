/* cli/compress/process.c: runs another command of this program. See cli/compress/compress.h. */
#include "cli/compress/compress.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The process has a group of its own: Ctrl-C reaches it through this command only, or it would count as two signals. It
 * saves and stops when this command is killed. */
_Noreturn static void become(char *const *argv, const char *output, pid_t parent, const sigset_t *mask) {
    const int file = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigprocmask(SIG_SETMASK, mask, NULL);
    if (getppid() == parent && file >= 0 && null >= 0 && dup2(null, 0) == 0 && dup2(file, 1) == 1)
        execv("/proc/self/exe", argv);
    _exit(127);
}

static bool is_key(const char *text, const char *key) {
    return strncmp(text, key, strlen(key)) == 0 && text[strlen(key)] == '=';
}

/* Keys of the command line that say where and how to run, not which network. */
static bool is_passed_on(const char *override) {
    return !is_key(override, "train.output") && !is_key(override, "model.weights") && !is_key(override, "quant.type");
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
        if (is_passed_on(args->override[i])) argv[n++] = args->override[i];
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
static int wait_for(struct cr_compress *c, pid_t child, const sigset_t *set) {
    int how;
    for (;;) {
        if (waitpid(child, &how, WNOHANG) == child) return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
        const int got = sigwaitinfo(set, NULL);
        if (got != SIGINT && got != SIGTERM) continue;
        *c->signal_taken = got;
        kill(child, got);
    }
}

cr_status cr_compress_process(struct cr_compress *c, const char *const *arguments, bool keys, const char *file) {
    const char **argv;
    const char  *partial = cr_arena_printf(&c->arena, "%s.partial", file);
    sigset_t     set, mask;
    if (!partial) return CR_NO_MEMORY(CR_PATH_MAX);
    CR_TRY(make_argv(c, arguments, keys, &argv));
    say(&c->arena, argv);
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, &mask);
    const pid_t parent = getpid(), child = fork();
    if (child == 0) become((char *const *)argv, partial, parent, &mask);
    const int error = errno, code = child > 0 ? wait_for(c, child, &set) : 0;
    sigprocmask(SIG_SETMASK, &mask, NULL);
    if (child < 0) return CR_FAIL(CR_ERR_IO, "cannot start a process: %s", strerror(error));
    if (*c->signal_taken) return CR_FAIL(CR_ERR_INTERRUPTED, "stopped: the same command continues");
    if (code)
        return CR_FAIL(CR_ERR_IO, "cresnet %s failed with exit code %d, see above; the same command tries it again",
                       arguments[0], code);
    if (cr_fs_rename(partial, file) < 0) return cr_fs_refused(file, "create", errno);
    return CR_OK;
}
