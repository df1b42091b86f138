/* cli/main.c: finds the command, parses its command line, runs it, prints its error and ends the program. This is the
 * only file that exits. Exit codes: 0 success, 1 failure, 2 wrong command line or configuration, 128+n ended by
 * signal n. */
#include "cli/common/command.h"
#include "core/cpu.h"
#include "core/host.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Prints "cresnet train: message" on standard error. Each line of a list of errors gets the prefix. */
static void print_error(const char *who) {
    const char *line = cr_error_message();
    do {
        size_t length = strcspn(line, "\n");
        fprintf(stderr, "%s: %.*s\n", who, (int)length, line);
        line += length + (line[length] == '\n');
    } while (*line);
    const char *trace = getenv("CRESNET_TRACE");
    if (trace && strcmp(trace, "1") == 0) fprintf(stderr, "%s: trail: %s\n", who, cr_error_trail());
}

/* Prints the error of a command, if there is one, and returns the exit code. */
static int finish(const char *who, cr_status status, int signal_taken) {
    if (status == CR_ERR_INTERRUPTED && !signal_taken)
        return 128 + SIGPIPE;                                     /* cr_cmd_print: the reader closed the pipe */
    if (status != CR_OK && *cr_error_message()) print_error(who); /* no message: another rank printed it */
    return signal_taken ? 128 + signal_taken : cr_status_exit(status);
}

static int print_and_finish(const char *who, struct cr_text *text) {
    return finish(who, cr_cmd_print(text), 0);
}

/* SIGUSR1 requests a checkpoint from a training. It may come before cr_train has installed its handler, also while the
 * program restarts: it is blocked from the first line of main, waits, and is delivered when cr_train unblocks it. Other
 * commands do not use it. Other signals that the parent has left blocked would never stop the program, and with SIGCHLD
 * ignored the system forgets how child processes ended. */
static void set_signals(bool block_save) {
    sigset_t blocked;
    sigemptyset(&blocked);
    if (block_save) sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    signal(SIGCHLD, SIG_DFL);
}

static int print_overview(const char *who) {
    struct cr_text text = {0};
    cr_help_overview(&text);
    return print_and_finish(who, &text);
}

static int print_version(const char *who) {
    struct cr_text text = {0};
    cr_help_version(&text);
    return print_and_finish(who, &text);
}

static int run_command(enum cr_command_id id, int argc, char **argv) {
    char           who[64];
    struct cr_args args         = {0};
    struct cr_text text         = {0};
    int            signal_taken = 0, code;
    snprintf(who, sizeof who, "cresnet %s", cr_command(id)->name);
    cr_status status = cr_command_moved(id, argc, argv);
    if (status == CR_OK) status = cr_args_parse(id, argc, argv, &args);
    if (status != CR_OK) return finish(who, status, 0);
    cr_log_quiet(cr_args_has(&args, CR_OPT_QUIET));
    if (id != CR_CMD_TRAIN) set_signals(false);
    if (cr_args_has(&args, CR_OPT_HELP) && id == CR_CMD_HELP)
        code = print_overview(who);
    else if (cr_args_has(&args, CR_OPT_HELP)) {
        cr_command_help(id, &text);
        code = print_and_finish(who, &text);
    } else if (cr_args_has(&args, CR_OPT_VERSION))
        code = print_version(who);
    else {
        status = cr_command_run(&args, &signal_taken);
        code   = finish(who, status, signal_taken);
    }
    cr_args_free(&args);
    return code;
}

/* A command line without a command is a mistake. */
static cr_status fail_bare(const char *word, const char *hint) {
    if (word[0] == '-')
        return CR_FAIL(CR_ERR_USAGE,
                       "option %s is given before the command: cresnet COMMAND [options]; see cresnet help", word);
    if (cr_ends_with(word, ".ini")) return CR_FAIL(CR_ERR_USAGE, "no command given: cresnet train %s?", word);
    if (strcmp(word, "version") == 0) hint = "--version";
    return CR_FAIL(CR_ERR_USAGE, "unknown command %s%s%s%s; see cresnet help", word, hint ? " (did you mean " : "",
                   hint ? hint : "", hint ? "?)" : "");
}

/* `cresnet` by its own name: a command, help, version, or a mistake. */
static int run_bare(int argc, char **argv) {
    struct cr_text text = {0};
    const char    *word = argc > 1 ? argv[1] : NULL, *hint = NULL;
    if (!word) {
        cr_help_overview(&text);
        fprintf(stderr, "%s", text.data ? text.data : "");
        cr_text_free(&text);
        return finish("cresnet", CR_FAIL(CR_ERR_USAGE, "no command given"), 0);
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return print_overview("cresnet");
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) return print_version("cresnet");
    const enum cr_command_id id = *word == '-' ? CR_CMD_COUNT : cr_command_find(word, &hint);
    return id != CR_CMD_COUNT ? run_command(id, argc - 2, argv + 2) : finish("cresnet", fail_bare(word, hint), 0);
}

/* Threads need a stack of some size, and so do the commands. Raises a smaller limit for this program and its threads,
 * which takes effect when the program starts again; 1 when the limit cannot be raised. */
static int need_stack(char **argv) {
    const rlim_t  least = 1 << 20, usual = 8 << 20;
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= least) return 0;
    if (limit.rlim_max < least) {
        static const char text[] =
            "cresnet: the limit of the stack is below 1 MiB; please set it to 8 MiB: ulimit -s 8192\n";
        return write(STDERR_FILENO, text, sizeof text - 1) >= 0;
    }
    limit.rlim_cur = CR_MIN(limit.rlim_max, usual);
    if (setrlimit(RLIMIT_STACK, &limit) == 0) execv("/proc/self/exe", argv);
    return 0;
}

/* Restarts the program with a short spin time for OpenMP threads. By default, waiting threads of GCC's OpenMP spin for
 * longer than a time slice of the system, and two programs that share the cores slow each other down by a factor of
 * twenty. The library reads the limit from the environment before main, so the program has to start again. A program
 * that runs alone becomes 1 % slower. A setting of the user is kept. */
static void limit_thread_spinning(char **argv) {
#ifdef _OPENMP
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (setenv("GOMP_SPINCOUNT", "10000", 1) == 0) execv("/proc/self/exe", argv);
        /* execv failed (no /proc): continue with the default. */
#else
    (void)argv;
#endif
}

/* The name that ps and top show. The system takes it from the path of the program, which is /proc/self/exe when the
 * program has started again or was started by compress or sweep. It has at most 15 bytes. */
static void set_process_name(const char *name) {
    char text[16];
    snprintf(text, sizeof text, "%s", name);
    (void)pthread_setname_np(pthread_self(), text);
}

int main(int argc, char **argv) {
    cr_host_set(NULL);
    set_signals(true);
    if (need_stack(argv)) return cr_status_exit(CR_ERR_MEMORY);
    limit_thread_spinning(argv);
    signal(SIGPIPE, SIG_IGN); /* writing to a closed pipe is an error and must not kill a training run */
    signal(SIGXFSZ, SIG_IGN); /* the same for a file at its size limit (ulimit -f) */
    const cr_status cpu = cr_cpu_check();
    if (cpu != CR_OK) return finish("cresnet", cpu, 0);
    const char *base = argc > 0 ? strrchr(argv[0], '/') : NULL;
    base             = base ? base + 1 : argc > 0 ? argv[0] : "cresnet";
    set_process_name(base);
    if (strncmp(base, "cresnet-", 8) == 0) {
        const char        *hint;
        enum cr_command_id id = cr_command_find(base + 8, &hint);
        if (id != CR_CMD_COUNT) return run_command(id, argc - 1, argv + 1);
    }
    return run_bare(argc, argv);
}
