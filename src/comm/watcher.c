/* comm/watcher.c: the thread that watches the other ranks (heartbeats, hangs) and ends this process after a failure.
 * See comm/transport.h. */
#include "comm/transport.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Terminates a process that is stuck in a call that cannot be interrupted (a driver), so that nobody waits for it. */
static void end_process(struct cr_comm *comm) {
    if (cr_comm_reports_error(comm))
        cr_log(CR_LOG_ERROR, "%s. Rank %d is stuck: it did not end within %d s and is terminated", comm->failure.text,
               comm->options.rank, CR_COMM_GRACE_S);
    _exit(1);
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
    cr_comm_deadline_after(&until, CR_COMM_GRACE_S * 1000);
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
    cr_comm_deadline_after(&until, CR_COMM_HEARTBEAT_MS);
    pthread_mutex_lock(&comm->lock);
    if (!atomic_load(&comm->closing) && !atomic_load(&comm->failed))
        pthread_cond_timedwait(&comm->change, &comm->lock, &until);
    pthread_mutex_unlock(&comm->lock);
}

static void *watch_thread(void *argument) {
    struct cr_comm      *comm  = argument;
    struct cr_comm_clock clock = {0};
    while (!atomic_load(&comm->closing) && !atomic_load(&comm->failed)) {
        const int64_t awake = cr_comm_clock_tick(&clock);
        if (comm->shared_state) cr_comm_shared_state_watch(comm, awake);
        if (comm->tcp)
            cr_comm_tcp_watch(comm, awake);
        else
            pause_or_closing(comm);
    }
    if (atomic_load(&comm->failed)) kill_silent(comm);
    if (!atomic_load(&comm->closing)) after_failure(comm);
    return NULL;
}

cr_status cr_comm_start_watcher(struct cr_comm *comm) {
    CR_ALLOC(comm->seen, (size_t)comm->options.size);
    comm->watched   = true; /* set before the thread starts, because the thread reads it */
    const int error = pthread_create(&comm->watcher, NULL, watch_thread, comm);
    if (!error) return CR_OK;
    comm->watched = false;
    return CR_FAIL(CR_ERR_IO, "cannot start the thread that watches the other ranks: %s", strerror(error));
}
