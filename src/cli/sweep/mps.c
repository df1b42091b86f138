/* cli/sweep/mps.c: starts and ends NVIDIA's Multi-Process Service for the processes of a sweep. See cli/sweep/sweep.h. */
#include "cli/sweep/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "nvidia-cuda-mps-control"
#define PIPES   "CUDA_MPS_PIPE_DIRECTORY"
#define LOGS    "CUDA_MPS_LOG_DIRECTORY"

enum { WAIT_MS = 10, START_MS = 5000, QUIT_MS = 3000, FOLDER_MAX = 80 /* the path of a socket has 108 bytes */ };

extern char **environ;

static void sleep_ms(int ms) {
    const struct timespec time = {.tv_nsec = ms * 1000000L};
    nanosleep(&time, NULL);
}

/* Waits up to `ms` for the service to end. */
static bool has_ended(struct cr_sweep_mps *mps, int ms) {
    for (int waited = 0;; waited += WAIT_MS) {
        const pid_t got = waitpid(mps->process, NULL, WNOHANG);
        if (got == mps->process || (got < 0 && errno == ECHILD)) return true;
        if (waited >= ms) return false;
        sleep_ms(WAIT_MS);
    }
}

static bool is_ready(const struct cr_sweep_mps *mps) {
    char path[sizeof mps->folder + 16];
    snprintf(path, sizeof path, "%s/control", mps->folder);
    return access(path, F_OK) == 0;
}

/* Becomes the service, in the foreground: it ends with the sweep, also when that is killed. It has a process group of
 * its own, so that Ctrl-C does not end it before the runs. */
_Noreturn static void become(pid_t parent) {
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent && null >= 0 && dup2(null, 0) == 0 && dup2(null, 1) == 1 && dup2(null, 2) == 2)
        execlp(PROGRAM, PROGRAM, "-f", (char *)NULL);
    _exit(127);
}

/* Forgets an ended service and removes its folder. */
static void clear(struct cr_sweep_mps *mps) {
    unsetenv(PIPES);
    unsetenv(LOGS);
    cr_fs_remove_tree(mps->folder);
    *mps = (struct cr_sweep_mps){0};
}

static void end_by_signal(struct cr_sweep_mps *mps) {
    kill(-mps->process, SIGTERM);
    if (has_ended(mps, QUIT_MS)) return;
    kill(-mps->process, SIGKILL);
    waitpid(mps->process, NULL, 0);
}

/* True if the runs will use a service that somebody else started. */
static bool is_started(void) {
    return getenv(PIPES) || access("/tmp/nvidia-mps/control", F_OK) == 0;
}

void cr_sweep_mps_start(struct cr_sweep_mps *mps) {
    const char *base = getenv("TMPDIR");
    *mps             = (struct cr_sweep_mps){0};
    if (is_started()) return;
    if (!base || strlen(base) + 24 > FOLDER_MAX) base = "/tmp";
    snprintf(mps->folder, sizeof mps->folder, "%s/cresnet-mps-XXXXXX", base);
    if (!mkdtemp(mps->folder)) {
        mps->folder[0] = 0;
        return;
    }
    setenv(PIPES, mps->folder, 1);
    setenv(LOGS, mps->folder, 1);
    const pid_t parent = getpid();
    mps->process       = fork();
    if (mps->process == 0) become(parent);
    bool ended = mps->process < 0;
    for (int waited = 0; !ended && waited < START_MS && !is_ready(mps); waited += WAIT_MS) ended = has_ended(mps, WAIT_MS);
    if (!ended && is_ready(mps)) {
        cr_log(CR_LOG_INFO, "sweep: the runs share the GPU through NVIDIA's Multi-Process Service");
        return;
    }
    if (!ended) end_by_signal(mps);
    clear(mps);
    cr_log(CR_LOG_INFO, "sweep: the runs take turns on the GPU, because " PROGRAM " is not installed or did not start");
}

/* Asks the service to end. */
static void ask_to_quit(void) {
    char                      *argv[] = {(char *)PROGRAM, NULL};
    posix_spawn_file_actions_t files;
    pid_t                      child;
    int                        pipes[2], failed;
    if (pipe2(pipes, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, pipes[0], 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    failed = posix_spawnp(&child, PROGRAM, &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (!failed && write(pipes[1], "quit\n", 5) != 5) kill(child, SIGTERM);
    close(pipes[0]); /* only now: a write to a pipe without readers ends the process */
    close(pipes[1]);
    if (!failed) waitpid(child, NULL, 0);
}

void cr_sweep_mps_stop(struct cr_sweep_mps *mps) {
    if (!mps->folder[0]) return;
    if (mps->process) {
        ask_to_quit();
        if (!has_ended(mps, QUIT_MS)) end_by_signal(mps);
    }
    clear(mps);
}
