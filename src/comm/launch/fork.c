/* comm/launch/fork.c: one process a rank, and the process that watches them. See comm/launch/launcher.h.
 *
 * The ranks are a process group of their own, so that a signal reaches each of them once: what a terminal, a shell or a
 * batch system sends to this process is passed on to all. The memory that they share has no name and was there before
 * the fork; nothing needs to be cleaned up, whoever is killed. */
#include "comm/launch/launcher_internal.h"
#include "comm/transport.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct child {
    pid_t pid;
    bool  ended;
    int   how; /* waitpid's status */
};

struct family {
    const struct cr_comm_options *where;
    struct cr_comm_shared_state  *board;
    struct child                 *child;
    struct cr_comm_seen          *seen;
    int                           size, alive;
    pid_t                         group;
    sigset_t                      taken, before;
    char                          host[CR_COMM_NAME_MAX];
    int64_t                       failed_ns; /* when the failure was noticed; 0: none */
    int                           stops;     /* SIGINT and SIGTERM passed on; the second ends a rank at once */
    sigset_t                      passed;
    int                           ended_by; /* one of these ended a rank, as it was meant to; 0: none */
};

/* ---- starting ---- */

static void block_signals(struct family *f) {
    static const int taken[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGTSTP, SIGCONT};
    sigemptyset(&f->taken);
    sigemptyset(&f->passed);
    for (size_t i = 0; i < CR_COUNT(taken); i++) sigaddset(&f->taken, taken[i]);
    sigprocmask(SIG_BLOCK, &f->taken, &f->before);
}

/* In the new process. */
static cr_status become_rank(struct family *f, int rank, pid_t parent, struct cr_ranks *out) {
    struct cr_comm_options where = *f->where;
    setpgid(0, f->group);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGTTOU, SIG_IGN); /* else a terminal may stop a group that writes and is not its own */
    sigprocmask(SIG_SETMASK, &f->before, NULL);
    if (getppid() != parent) raise(SIGTERM); /* it was killed before it could be watched */
    where.rank = where.local_rank = rank;
    where.size = where.local_size = f->size;
    where.shared                  = f->board;
    cr_free(f->child);
    cr_free(f->seen);
    cr_ranks_name_log(rank);
    cr_status status = cr_comm_open(&where, &out->comm);
    if (status != CR_OK) {
        struct cr_comm_failure failure = {.rank = rank};
        snprintf(failure.text, sizeof failure.text, "%s", cr_error_message());
        cr_comm_shared_state_raise(f->board, &failure);
        cr_error_clear(); /* the parent prints it */
    }
    return status;
}

/* *child: this is the new process. */
static cr_status start_ranks(struct family *f, struct cr_ranks *out, bool *child) {
    const pid_t parent = getpid();
    fflush(NULL); /* else every rank would write it again */
    for (int r = 0; r < f->size; r++) {
        const pid_t pid = fork();
        if (pid == 0) {
            *child = true;
            return become_rank(f, r, parent, out);
        }
        if (pid < 0) return CR_FAIL(CR_ERR_IO, "cannot start rank %d of %d: %s", r, f->size, strerror(errno));
        if (!r) f->group = pid;
        setpgid(pid, f->group); /* both sides do it: whoever comes first */
        f->child[r].pid = pid;
        f->alive++;
    }
    return CR_OK;
}

/* ---- watching ---- */

static const char *name_of(const struct family *f, int rank, char *buf, size_t size) {
    snprintf(buf, size, "rank %d of %d on %s (process %ld)", rank, f->size, f->host, (long)f->child[rank].pid);
    return buf;
}

static void fail(struct family *f, int rank, const char *how) {
    struct cr_comm_failure failure = {.rank = rank};
    char                   name[200];
    snprintf(failure.text, sizeof failure.text, "%s %s", name_of(f, rank, name, sizeof name), how);
    cr_comm_shared_state_raise(f->board, &failure);
}

/* A rank that has not taken its leave. */
static void judge_end(struct family *f, int rank) {
    char      text[200];
    const int how = f->child[rank].how;
    if (cr_comm_shared_state_has_left(f->board, rank)) return;
    if (WIFSIGNALED(how) && sigismember(&f->passed, WTERMSIG(how))) f->ended_by = WTERMSIG(how);
    if (WIFEXITED(how) && WEXITSTATUS(how) > 128 && f->stops > 1) f->ended_by = WEXITSTATUS(how) - 128;
    if (WIFSIGNALED(how))
        snprintf(text, sizeof text, "was killed by signal %d (%s)%s", WTERMSIG(how), strsignal(WTERMSIG(how)),
                 WTERMSIG(how) == SIGKILL ? ", by somebody or because the system had no memory left" : "");
    else
        snprintf(text, sizeof text, "ended with exit code %d and without a word", WEXITSTATUS(how));
    fail(f, rank, text);
}

static void reap(struct family *f) {
    int   how;
    pid_t pid;
    while ((pid = waitpid(-1, &how, WNOHANG)) > 0)
        for (int r = 0; r < f->size; r++) {
            if (f->child[r].pid != pid || f->child[r].ended) continue;
            f->child[r].ended = true;
            f->child[r].how   = how;
            f->alive--;
            judge_end(f, r);
        }
}

static void to_all(const struct family *f, int number) {
    for (int r = 0; r < f->size; r++)
        if (f->child[r].pid && !f->child[r].ended) kill(f->child[r].pid, number);
}

static void pass_on(struct family *f, int number) {
    switch (number) {
    case SIGTSTP: /* Ctrl-Z stops all, and this process with them */
        to_all(f, SIGSTOP);
        kill(getpid(), SIGSTOP);
        to_all(f, SIGCONT);
        break;
    case SIGCONT: to_all(f, SIGCONT); break;
    case SIGCHLD: break;
    default:
        sigaddset(&f->passed, number);
        f->stops += number == SIGINT || number == SIGTERM;
        to_all(f, number);
        break;
    }
}

/* Ranks that do not end by themselves after a failure are ended. */
static void look(struct family *f, int64_t awake_ns) {
    double    silent;
    const int lost = cr_comm_shared_state_silent(f->board, -1, f->seen, awake_ns, f->where->timeout_s, &silent);
    if (lost >= 0 && !f->child[lost].ended) {
        struct cr_comm_failure failure = {.rank = lost, .silent = 1};
        char                   name[200];
        cr_comm_silent_text(&failure, name_of(f, lost, name, sizeof name), silent);
        cr_comm_shared_state_raise(f->board, &failure);
    }
    const struct cr_comm_failure *failure = cr_comm_shared_state_failure(f->board);
    if (!failure) return;
    if (!f->failed_ns) {
        f->failed_ns = cr_time_ns();
        if (failure->silent && !f->child[failure->rank].ended) kill(f->child[failure->rank].pid, SIGKILL);
    }
    if (cr_time_ns() - f->failed_ns > INT64_C(1000000000) * CR_COMM_GRACE_S) to_all(f, SIGKILL);
}

static void watch_ranks(struct family *f) {
    struct cr_comm_clock  clock = {0};
    const struct timespec pause = {.tv_nsec = CR_COMM_HEARTBEAT_MS * 1000000L};
    while (f->alive) {
        const int number = sigtimedwait(&f->taken, NULL, &pause);
        if (number > 0) pass_on(f, number);
        reap(f);
        look(f, cr_comm_clock_tick(&clock));
    }
}

/* ---- the end ---- */

/* The exit code of the rank that failed first says which kind of error it was. */
static cr_status family_status(const struct family *f, struct cr_ranks *out) {
    const struct cr_comm_failure *failure = cr_comm_shared_state_failure(f->board);
    out->signal                           = f->ended_by;
    if (f->ended_by) return CR_OK;
    if (failure) {
        const struct child *c      = &f->child[failure->rank];
        const bool          config = c->ended && WIFEXITED(c->how) && WEXITSTATUS(c->how) == 2;
        return CR_FAIL(config ? CR_ERR_CONFIG : CR_ERR_PEER, "%s", failure->text);
    }
    for (int r = 0; r < f->size; r++) {
        const int code = WIFEXITED(f->child[r].how) ? WEXITSTATUS(f->child[r].how) : 1;
        if (code > 128)
            out->signal = code - 128;
        else if (code)
            return CR_FAIL(CR_ERR_PEER, "rank %d of %d on %s ended with exit code %d", r, f->size, f->host, code);
    }
    return CR_OK;
}

static void end_family(struct family *f) {
    cr_free(f->child);
    cr_free(f->seen);
    sigprocmask(SIG_SETMASK, &f->before, NULL);
    cr_comm_shared_free(f->board);
}

cr_status cr_ranks_fork(const struct cr_ranks_request *wish, const struct cr_comm_options *where,
                        struct cr_ranks *out) {
    struct family f = {.where = where, .size = wish->fork};
    void         *shared;
    bool          child = false;
    CR_TRY(cr_comm_shared_new(f.size, &shared));
    f.board = shared;
    cr_comm_shared_state_init(f.board, f.size, (long)getpid());
    gethostname(f.host, sizeof f.host - 1);
    f.child = cr_alloc((size_t)f.size, sizeof *f.child);
    f.seen  = cr_alloc((size_t)f.size, sizeof *f.seen);
    block_signals(&f);
    cr_status status =
        f.child && f.seen ? start_ranks(&f, out, &child) : CR_NO_MEMORY((size_t)f.size * sizeof *f.child);
    if (child) return status;
    if (status != CR_OK) {
        to_all(&f, SIGKILL);
        while (f.alive && waitpid(-1, NULL, 0) > 0) f.alive--;
    } else {
        watch_ranks(&f);
        status = family_status(&f, out);
    }
    out->parent = true;
    end_family(&f);
    return status;
}
