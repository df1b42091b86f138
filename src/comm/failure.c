/* comm/failure.c: records failures of ranks and reports them to all ranks. See comm/transport.h. */
#include "comm/transport.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

static const int64_t ms = 1000000;

int64_t cr_comm_clock_tick(struct cr_comm_clock *clock) {
    const int64_t now = cr_time_ns(), longest = 2 * CR_COMM_HEARTBEAT_MS * ms; /* tolerates a loaded machine */
    if (clock->last_ns) clock->awake_ns += CR_MIN(now - clock->last_ns, longest);
    clock->last_ns = now;
    return clock->awake_ns;
}

/* ---- names ---- */

uint64_t cr_comm_pid_space(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

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

cr_status cr_comm_check(struct cr_comm *comm) {
    return comm && atomic_load_explicit(&comm->failed, memory_order_acquire) ? cr_comm_failed(comm) : CR_OK;
}

bool cr_comm_reports_error(struct cr_comm *comm) {
    return !comm || (atomic_load(&comm->failed) && comm->failure.reporter == comm->options.rank);
}

/* The failure may become that of another rank, which was first. */
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

void cr_comm_deadline_after(struct timespec *at, int milliseconds) {
    clock_gettime(CLOCK_MONOTONIC, at);
    const int64_t ns = at->tv_nsec + milliseconds * ms;
    at->tv_sec += (time_t)(ns / (1000 * ms));
    at->tv_nsec = (long)(ns % (1000 * ms));
}

bool cr_comm_await_failure(struct cr_comm *comm, int milliseconds) {
    struct timespec until;
    cr_comm_deadline_after(&until, milliseconds);
    pthread_mutex_lock(&comm->lock);
    while (!atomic_load(&comm->failed) && pthread_cond_timedwait(&comm->change, &comm->lock, &until) != ETIMEDOUT) {
    }
    const bool failed = atomic_load(&comm->failed);
    pthread_mutex_unlock(&comm->lock);
    return failed;
}

cr_status cr_comm_same_call(struct cr_comm *comm, int rank, const struct cr_comm_call *mine,
                            const struct cr_comm_call *theirs) {
    if (mine->kind == theirs->kind && mine->detail == theirs->detail && mine->number == theirs->number &&
        mine->bytes == theirs->bytes)
        return CR_OK;
    return cr_comm_raise(comm, rank, comm->options.rank,
                         "ranks call different collectives: rank %d calls %s of %" PRIu64 " bytes (number %" PRIu64
                         ", argument %u), rank %d calls %s of %" PRIu64 " bytes (number %" PRIu64
                         ", argument %u). Do all ranks run the same configuration on the same data?",
                         comm->options.rank, cr_comm_kind_name(mine->kind), mine->bytes, mine->number, mine->detail,
                         rank, cr_comm_kind_name(theirs->kind), theirs->bytes, theirs->number, theirs->detail);
}
