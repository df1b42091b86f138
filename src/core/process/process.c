/* core/process/process.c: starts child processes (fork, exec) and waits for them; see core/process/process.h. */
#include "core/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { POLL_NS = 1000000 };

/* ---- starting ---- */

static bool place(int from, int to) {
    if (from < 0) return true;
    return from == to ? fcntl(to, F_SETFD, 0) == 0 : dup2(from, to) == to;
}

static void default_signals(void) {
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    struct sigaction       action;
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && (number != SIGHUP || action.sa_handler != SIG_IGN))
            (void)sigaction(number, &standard, NULL);
}

static void stop_with_parent(void) {
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
}

/* Runs in the new process, in the memory of the parent, which waits: calls the system only. */
_Noreturn static void become(const struct cr_process_program *p, pid_t parent, volatile int *failed) {
    const int input = p->input < 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : p->input;
    sigset_t  none;
    default_signals();
    (void)setpgid(0, 0);
    if (p->stops_with_parent) stop_with_parent();
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (!p->stops_with_parent || getppid() == parent) /* else the parent was killed before prctl took effect */
        if (input >= 0 && place(input, 0) && place(p->output, 1) && place(p->errors, 2))
            (void)execve(p->path, (char *const *)(uintptr_t)p->argv, environ);
    *failed = errno;
    _exit(127);
}

/* vfork, because fork copies the page tables of a training, or fails where memory must not be promised twice. Handlers
 * of this process must not run in the new one, so all signals are blocked. */
int cr_process_start(const struct cr_process_program *program, pid_t *process) {
    volatile int failed = 0;
    sigset_t     all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t parent = getpid(), child = vfork();
    if (child == 0) become(program, parent, &failed);
    if (child < 0) failed = errno;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (child > 0 && failed) (void)waitpid(child, NULL, 0);
    *process = failed ? 0 : child;
    return failed;
}

/* Each of the two processes makes the copy join the group: whichever runs first, it has joined when either goes on. */
int cr_process_fork(pid_t group, const sigset_t *mask, pid_t *process) {
    const pid_t parent = getpid();
    *process           = fork();
    if (*process < 0) return errno;
    if (*process > 0) {
        (void)setpgid(*process, group);
        return 0;
    }
    (void)setpgid(0, group);
    stop_with_parent();
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    if (getppid() != parent) (void)raise(SIGTERM); /* the parent was killed before prctl took effect */
    return 0;
}

/* ---- waiting ---- */

bool cr_process_ended(pid_t process, int *how) {
    const pid_t got = waitpid(process, how, WNOHANG);
    if (got < 0 && errno == EINTR) return false;
    if (got < 0) *how = 1 << 8; /* W_EXITCODE(1, 0) */
    return got != 0;
}

int cr_process_finish(pid_t process) {
    const struct timespec pause = {.tv_nsec = POLL_NS};
    int                   how;
    while (!cr_process_ended(process, &how)) nanosleep(&pause, NULL);
    return how;
}

int cr_process_code(int how) {
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

void cr_process_signals_begin(struct cr_process_signals *signals, const int *more, int count) {
    (void)sigemptyset(&signals->taken);
    (void)sigaddset(&signals->taken, SIGINT);
    (void)sigaddset(&signals->taken, SIGTERM);
    (void)sigaddset(&signals->taken, SIGCHLD);
    for (int i = 0; i < count; i++) (void)sigaddset(&signals->taken, more[i]);
    (void)sigprocmask(SIG_BLOCK, &signals->taken, &signals->before);
}

void cr_process_signals_end(const struct cr_process_signals *signals) {
    (void)sigprocmask(SIG_SETMASK, &signals->before, NULL);
}

int cr_process_wait(const struct cr_process_signals *signals, int milliseconds) {
    const struct timespec pause = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    const int             got   = sigtimedwait(&signals->taken, NULL, &pause);
    return got > 0 && got != SIGCHLD ? got : 0;
}
