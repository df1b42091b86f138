/* comm/failure.c: records failures, reports them to all ranks, and runs the watcher thread. See comm/transport.h. */
#include "comm/transport.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const int64_t ms = 1000000;

int64_t cr_comm_clock_tick(struct cr_comm_clock *clock) {
    const int64_t now = cr_time_ns(), longest = 2 * CR_COMM_HEARTBEAT_MS * ms; /* tolerates a loaded machine */
    if (clock->last_ns) clock->awake_ns += CR_MIN(now - clock->last_ns, longest);
    clock->last_ns = now;
    return clock->awake_ns;
}

/* ---- names ---- */

const char *cr_comm_kind_name(uint32_t kind) {
    static const char *const names[] = {"barrier", "broadcast", "all_gather", "all_reduce"};
    return kind < CR_COUNT(names) ? names[kind] : "an unknown collective";
}

const char *cr_comm_name(const struct cr_comm *comm, int rank, char *buf, size_t size) {
    const struct cr_comm_rank_info *p = &comm->info[rank];
    if (p->pid)
        snprintf(buf, size, "rank %d of %d on %s (process %ld)", rank, comm->options.size, p->host_name, p->pid);
    else
        snprintf(buf, size, "rank %d of %d", rank, comm->options.size);
    return buf;
}

/* ---- failures ---- */

void cr_comm_record_failure(struct cr_comm *comm, const struct cr_comm_failure *failure) {
    pthread_mutex_lock(&comm->lock);
    if (!atomic_load(&comm->failed)) {
        comm->failure = *failure;
        atomic_store(&comm->failed, true);
    }
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
}

cr_status cr_comm_failed(struct cr_comm *comm) {
    return CR_FAIL(CR_ERR_PEER, "%s", comm->failure.text);
}

static void raise_failure(struct cr_comm *comm, struct cr_comm_failure *failure) {
    if (atomic_load(&comm->failed)) return;
    if (comm->shared_state)
        cr_comm_shared_state_raise(comm->shared_state, failure);
    else if (comm->tcp)
        cr_comm_tcp_raise(comm, failure);
    cr_comm_record_failure(comm, failure);
}

cr_status cr_comm_raise(struct cr_comm *comm, int rank, int reporter, const char *fmt, ...) {
    struct cr_comm_failure failure = {.rank = rank, .reporter = reporter};
    va_list                list;
    va_start(list, fmt);
    vsnprintf(failure.text, sizeof failure.text, fmt, list);
    va_end(list);
    raise_failure(comm, &failure);
    return cr_comm_failed(comm);
}

void cr_comm_raise_silent(struct cr_comm *comm, int rank, int reporter, double silent_s) {
    struct cr_comm_failure failure = {.rank = rank, .reporter = reporter, .silent = 1};
    char                   name[200];
    cr_comm_silent_text(&failure, cr_comm_name(comm, rank, name, sizeof name), silent_s);
    raise_failure(comm, &failure);
}

void cr_comm_silent_text(struct cr_comm_failure *failure, const char *name, double silent_s) {
    snprintf(failure->text, sizeof failure->text,
             "%s has sent no heartbeat for %.0f s: it was stopped, it hangs, or its machine or the network failed",
             name, silent_s);
}

static void deadline_after(struct timespec *at, int milliseconds) {
    clock_gettime(CLOCK_MONOTONIC, at);
    const int64_t ns = at->tv_nsec + milliseconds * ms;
    at->tv_sec += (time_t)(ns / (1000 * ms));
    at->tv_nsec = (long)(ns % (1000 * ms));
}

bool cr_comm_await_failure(struct cr_comm *comm, int milliseconds) {
    struct timespec until;
    deadline_after(&until, milliseconds);
    pthread_mutex_lock(&comm->lock);
    while (!atomic_load(&comm->failed) && pthread_cond_timedwait(&comm->change, &comm->lock, &until) != ETIMEDOUT) {
    }
    const bool failed = atomic_load(&comm->failed);
    pthread_mutex_unlock(&comm->lock);
    return failed;
}

static void call_text(const struct cr_comm_call *call, char *buf, size_t size) {
    snprintf(buf, size, "%s of %" PRIu64 " bytes", cr_comm_kind_name(call->kind), call->bytes);
}

cr_status cr_comm_mismatch(struct cr_comm *comm, int rank, const struct cr_comm_call *mine,
                           const struct cr_comm_call *theirs) {
    char a[64], b[64];
    call_text(mine, a, sizeof a);
    call_text(theirs, b, sizeof b);
    return cr_comm_raise(comm, rank, comm->options.rank,
                         "ranks call different collectives: rank %d calls %s (number %" PRIu64
                         ", argument %u), rank %d calls %s (number %" PRIu64
                         ", argument %u). Do all ranks run the same configuration on the same data?",
                         comm->options.rank, a, mine->number, mine->detail, rank, b, theirs->number, theirs->detail);
}

/* ---- the watcher thread ---- */

/* Terminates a process that is stuck in a call that cannot be interrupted (a driver), so that nobody waits for it. */
static void end_process(struct cr_comm *comm) {
    if (cr_comm_reports_error(comm))
        cr_log(CR_LOG_ERROR, "%s. Rank %d is stuck: it did not end within %d s and is terminated", comm->failure.text,
               comm->options.rank, CR_COMM_GRACE_S);
    _exit(1);
}

uint64_t cr_comm_pid_space(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* A rank of this host without a heartbeat does not exit by itself, and its launcher may take long. The lowest remaining
 * rank of the host kills it. */
static void kill_silent(const struct cr_comm *comm) {
    const struct cr_comm_failure   *f    = &comm->failure;
    const struct cr_comm_rank_info *lost = &comm->info[f->rank], *mine = &comm->info[comm->options.rank];
    if (!f->silent || lost->host != mine->host || !lost->pid_space || lost->pid_space != mine->pid_space ||
        lost->pid == mine->pid)
        return;
    for (int r = 0; r < comm->options.rank; r++)
        if (comm->info[r].host == mine->host && r != f->rank) return;
    kill((pid_t)lost->pid, SIGKILL);
}

static void after_failure(struct cr_comm *comm) {
    pthread_mutex_lock(&comm->lock);
    void (*call)(void *) = comm->on_failure;
    void *context        = comm->on_failure_context;
    comm->calling        = call != NULL;
    pthread_mutex_unlock(&comm->lock);
    if (call) call(context);
    struct timespec until;
    deadline_after(&until, CR_COMM_GRACE_S * 1000);
    pthread_mutex_lock(&comm->lock);
    comm->calling = false;
    pthread_cond_broadcast(&comm->change);
    while (!atomic_load(&comm->closing) && pthread_cond_timedwait(&comm->change, &comm->lock, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&comm->lock);
    if (!atomic_load(&comm->closing)) end_process(comm);
}

static void pause_or_closing(struct cr_comm *comm) {
    struct timespec until;
    deadline_after(&until, CR_COMM_HEARTBEAT_MS);
    pthread_mutex_lock(&comm->lock);
    if (!atomic_load(&comm->closing) && !atomic_load(&comm->failed))
        pthread_cond_timedwait(&comm->change, &comm->lock, &until);
    pthread_mutex_unlock(&comm->lock);
}

struct watcher {
    struct cr_comm      *comm;
    struct cr_comm_seen *seen; /* [size] */
};

static void *watch_thread(void *argument) {
    struct watcher       w     = *(struct watcher *)argument;
    struct cr_comm_clock clock = {0};
    cr_free(argument);
    while (!atomic_load(&w.comm->closing) && !atomic_load(&w.comm->failed)) {
        const int64_t awake = cr_comm_clock_tick(&clock);
        if (w.comm->shared_state) cr_comm_shared_state_watch(w.comm, w.seen, awake);
        if (w.comm->tcp)
            cr_comm_tcp_watch(w.comm, awake);
        else
            pause_or_closing(w.comm);
    }
    if (atomic_load(&w.comm->failed)) kill_silent(w.comm);
    if (!atomic_load(&w.comm->closing)) after_failure(w.comm);
    cr_free(w.seen);
    return NULL;
}

cr_status cr_comm_start_watcher(struct cr_comm *comm) {
    struct watcher *w = cr_alloc(1, sizeof *w);
    if (w) *w = (struct watcher){comm, cr_alloc((size_t)comm->options.size, sizeof *w->seen)};
    if (!w || !w->seen) {
        cr_free(w);
        return CR_NO_MEMORY(sizeof *w);
    }
    comm->watched = true; /* set before the thread starts, because the thread reads it */
    int error     = pthread_create(&comm->watcher, NULL, watch_thread, w);
    if (error) {
        comm->watched = false;
        cr_free(w->seen);
        cr_free(w);
        return CR_FAIL(CR_ERR_IO, "cannot start the thread that watches the other ranks: %s", strerror(error));
    }
    return CR_OK;
}
