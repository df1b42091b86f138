/* comm/launch/fork.c: forks one process per rank and watches these processes. See comm/launch/launcher.h.
 *
 * The ranks form their own process group, so that a signal reaches each rank once: this process forwards the signals of
 * a terminal, a shell or a batch system to all ranks. The shared memory has no name and is created before the fork, so
 * nothing needs cleanup, whichever process is killed. */
#include "comm/launch/launcher_internal.h"
#include "comm/transport.h"
#include "core/process/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct child {
    pid_t pid;
    bool  ended;
    int   wait_status; /* from waitpid */
};

struct process_group {
    const struct cr_comm_options *where;
    struct cr_comm_shared_state  *state;
    struct child                 *child;
    struct cr_comm_seen          *seen;
    int                           size, alive;
    pid_t                         group;
    struct cr_process_signals     signals;
    char                          host[CR_COMM_NAME_MAX];
    int64_t                       failed_ns; /* time at which the failure was detected; 0 without a failure */
    int                           stops;     /* forwarded SIGINT and SIGTERM; the second ends a rank at once */
    sigset_t                      forwarded;
    int                           ended_by; /* forwarded signal that ended a rank; 0 if none */
};

/* ---- starting ---- */

/* Warnings and errors get the rank as a prefix; only rank 0 prints info lines. */
void cr_ranks_name_log(int rank) {
    char who[32];
    snprintf(who, sizeof who, "rank %d: ", rank);
    cr_log_prefix(who);
    if (rank) cr_log_quiet(true);
}

/* Runs in the new process. */
static cr_status become_rank(struct process_group *f, int rank, struct cr_ranks *out) {
    struct cr_comm_options where = *f->where;
    signal(SIGTTOU, SIG_IGN); /* else a terminal may stop a background process group that writes */
    where.rank = where.local_rank = rank;
    where.size = where.local_size = f->size;
    where.shared                  = f->state;
    cr_free(f->child);
    cr_free(f->seen);
    cr_ranks_name_log(rank);
    cr_status status = cr_comm_open(&where, &out->comm);
    if (status != CR_OK) {
        struct cr_comm_failure failure = {.rank = rank};
        cr_error_copy(failure.text, sizeof failure.text);
        cr_comm_shared_state_raise(f->state, &failure);
        cr_error_clear(); /* the parent prints it */
    }
    return status;
}

/* *child is set to true in the new process. */
static cr_status start_ranks(struct process_group *f, struct cr_ranks *out, bool *child) {
    fflush(NULL); /* else every rank would write the buffered output again */
    for (int r = 0; r < f->size; r++) {
        pid_t     pid;
        const int failed = cr_process_fork(f->group, &f->signals.before, &pid);
        if (failed) return CR_FAIL(CR_ERR_IO, "cannot start rank %d of %d: %s", r, f->size, strerror(failed));
        if (pid == 0) {
            *child = true;
            return become_rank(f, r, out);
        }
        if (!r) f->group = pid;
        f->child[r].pid = pid;
        f->alive++;
    }
    return CR_OK;
}

/* ---- watching ---- */

static const char *name_of(const struct process_group *f, int rank, char *buf, size_t size) {
    snprintf(buf, size, "rank %d of %d on %s (process %ld)", rank, f->size, f->host, (long)f->child[rank].pid);
    return buf;
}

/* Handles the end of a rank; a rank that has not closed its comm has failed. */
static void handle_exit(struct process_group *f, int rank) {
    struct cr_comm_failure failure = {.rank = rank};
    char                   name[200], text[200];
    const int              wait_status = f->child[rank].wait_status;
    if (cr_comm_shared_state_has_left(f->state, rank)) return;
    if (WIFSIGNALED(wait_status) && sigismember(&f->forwarded, WTERMSIG(wait_status)))
        f->ended_by = WTERMSIG(wait_status);
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) > 128 && f->stops > 1)
        f->ended_by = WEXITSTATUS(wait_status) - 128;
    if (WIFSIGNALED(wait_status))
        snprintf(text, sizeof text, "was killed by signal %d (%s)%s", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)),
                 WTERMSIG(wait_status) == SIGKILL ? ", by a user or because the system ran out of memory" : "");
    else
        snprintf(text, sizeof text, "ended unexpectedly with exit code %d", WEXITSTATUS(wait_status));
    snprintf(failure.text, sizeof failure.text, "%s %s", name_of(f, rank, name, sizeof name), text);
    cr_comm_shared_state_raise(f->state, &failure);
}

static void reap(struct process_group *f) {
    for (int r = 0; r < f->size; r++) {
        struct child *child = &f->child[r];
        if (!child->pid || child->ended || !cr_process_ended(child->pid, &child->wait_status)) continue;
        child->ended = true;
        f->alive--;
        handle_exit(f, r);
    }
}

static void signal_all(const struct process_group *f, int number) {
    for (int r = 0; r < f->size; r++)
        if (f->child[r].pid && !f->child[r].ended) kill(f->child[r].pid, number);
}

static void forward_signal(struct process_group *f, int number) {
    switch (number) {
    case SIGTSTP: /* Ctrl-Z stops all ranks and this process */
        signal_all(f, SIGSTOP);
        kill(getpid(), SIGSTOP);
        signal_all(f, SIGCONT);
        break;
    case SIGCONT: signal_all(f, SIGCONT); break;
    default:
        sigaddset(&f->forwarded, number);
        f->stops += number == SIGINT || number == SIGTERM;
        signal_all(f, number);
        break;
    }
}

/* Detects lost ranks, and kills ranks that do not exit after a failure. */
static void check_ranks(struct process_group *f, int64_t awake_ns) {
    double    silent;
    const int lost = cr_comm_shared_state_silent(f->state, -1, f->seen, awake_ns, f->where->timeout_s, &silent);
    if (lost >= 0 && !f->child[lost].ended) {
        struct cr_comm_failure failure = {.rank = lost, .silent = 1};
        char                   name[200];
        cr_comm_silent_text(&failure, name_of(f, lost, name, sizeof name), silent);
        cr_comm_shared_state_raise(f->state, &failure);
    }
    const struct cr_comm_failure *failure = cr_comm_shared_state_failure(f->state);
    if (!failure) return;
    if (!f->failed_ns) {
        f->failed_ns = cr_time_ns();
        if (failure->silent && !f->child[failure->rank].ended) kill(f->child[failure->rank].pid, SIGKILL);
    }
    if (cr_time_ns() - f->failed_ns > INT64_C(1000000000) * CR_COMM_GRACE_S) signal_all(f, SIGKILL);
}

static void watch_ranks(struct process_group *f) {
    struct cr_comm_clock clock = {0};
    while (f->alive) {
        const int number = cr_process_wait(&f->signals, CR_COMM_HEARTBEAT_MS);
        if (number) forward_signal(f, number);
        reap(f);
        check_ranks(f, cr_comm_clock_tick(&clock));
    }
}

/* ---- the end ---- */

/* The exit code of the rank that failed first determines the kind of error. */
static cr_status group_status(const struct process_group *f, struct cr_ranks *out) {
    const struct cr_comm_failure *failure = cr_comm_shared_state_failure(f->state);
    out->signal                           = f->ended_by;
    if (f->ended_by) return CR_OK;
    if (failure) {
        const struct child *c      = &f->child[failure->rank];
        const bool          config = c->ended && WIFEXITED(c->wait_status) && WEXITSTATUS(c->wait_status) == 2;
        return CR_FAIL(config ? CR_ERR_CONFIG : CR_ERR_PEER, "%s", failure->text);
    }
    for (int r = 0; r < f->size; r++) {
        const int code = WIFEXITED(f->child[r].wait_status) ? WEXITSTATUS(f->child[r].wait_status) : 1;
        if (code > 128)
            out->signal = code - 128;
        else if (code)
            return CR_FAIL(CR_ERR_PEER, "rank %d of %d on %s ended with exit code %d", r, f->size, f->host, code);
    }
    return CR_OK;
}

cr_status cr_ranks_fork(const struct cr_ranks_request *request, const struct cr_comm_options *where,
                        struct cr_ranks *out) {
    static const int     more[] = {SIGHUP, SIGUSR1, SIGTSTP, SIGCONT};
    struct process_group f      = {.where = where, .size = request->fork};
    void                *shared;
    bool                 child = false;
    CR_TRY(cr_comm_shared_new(f.size, &shared));
    f.state = shared;
    cr_comm_shared_state_init(f.state, f.size, (long)getpid());
    gethostname(f.host, sizeof f.host - 1);
    f.child = cr_alloc((size_t)f.size, sizeof *f.child);
    f.seen  = cr_alloc((size_t)f.size, sizeof *f.seen);
    sigemptyset(&f.forwarded);
    cr_process_signals_begin(&f.signals, more, CR_COUNT(more));
    cr_status status =
        f.child && f.seen ? start_ranks(&f, out, &child) : CR_NO_MEMORY((size_t)f.size * sizeof *f.child);
    if (child) return status;
    if (status != CR_OK) {
        signal_all(&f, SIGKILL);
        for (int r = 0; r < f.size; r++)
            if (f.child && f.child[r].pid) (void)cr_process_finish(f.child[r].pid);
    } else {
        watch_ranks(&f);
        status = group_status(&f, out);
    }
    out->parent = true;
    cr_free(f.child);
    cr_free(f.seen);
    cr_process_signals_end(&f.signals);
    cr_comm_shared_free(f.state);
    return status;
}
