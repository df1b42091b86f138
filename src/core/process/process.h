/* core/process/process.h: child processes (fork, exec): starts a program or a copy of this process, and waits for it.
 *
 * No other file of the program calls fork, setpgid, prctl or waitpid. */
#ifndef CR_PROCESS_H
#define CR_PROCESS_H

#include "core/base.h"

#include <signal.h>
#include <sys/types.h>

struct cr_process_program {
    const char        *path;
    const char *const *argv;    /* ends with NULL */
    int  input, output, errors; /* become descriptors 0, 1, 2. -1: /dev/null as input, else the one of this process */
    bool stops_with_parent;     /* gets SIGTERM when this process ends, also by SIGKILL */
};

/* Starts the program in a process group of its own, so that Ctrl-C reaches it through this process only, and with the
 * default signals: none is blocked, and none ignored but SIGHUP (nohup). Returns 0 or an errno, and sets no error. */
int cr_process_start(const struct cr_process_program *program, pid_t *process);

enum { CR_PROCESS_NEW_GROUP = 0 };
/* Forks this process, which must have no other threads and nothing in buffered output. Returns in both processes, with
 * *process = 0 in the copy. The copy joins the process group (CR_PROCESS_NEW_GROUP: leads a new one), gets SIGTERM when
 * this process ends, also by SIGKILL, and has this process's handlers and `mask`. Returns 0 or an errno, and sets no
 * error. */
int cr_process_fork(pid_t group, const sigset_t *mask, pid_t *process);

/* Whether the process has ended, without waiting. *how is then its status of waitpid; that of the exit code 1 when the
 * system has forgotten it (ECHILD). */
bool cr_process_ended(pid_t process, int *how);
/* Waits until the process has ended. Returns what cr_process_ended stores. */
int cr_process_finish(pid_t process);
/* The exit code, or 128 + the signal that ended the process. */
int cr_process_code(int how);

/* Between begin and end, the signals wait for cr_process_wait, which a caller passes on to its processes. */
struct cr_process_signals {
    sigset_t taken, before;
};
/* SIGINT, SIGTERM and the `count` signals in `more`. */
void cr_process_signals_begin(struct cr_process_signals *signals, const int *more, int count);
void cr_process_signals_end(const struct cr_process_signals *signals);
enum { CR_PROCESS_POLL_MS = 1000 }; /* SIGCHLD may be ignored, or go to another thread */
/* Sleeps until a process has ended or a signal has come, but at most this long. Returns the signal or 0. */
int cr_process_wait(const struct cr_process_signals *signals, int milliseconds);

#endif
