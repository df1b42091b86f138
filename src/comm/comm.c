/* comm/comm.c: opens and closes a communicator of ranks (rendezvous, transport). See comm/comm.h. */
#include "comm/transport.h"

#include <time.h>
#include <unistd.h>

/* ---- open, close ---- */

static cr_status check_options(const struct cr_comm_options *w) {
    if (w->size < 1 || w->size > CR_COMM_RANKS_MAX)
        return CR_FAIL(CR_ERR_CONFIG, "%d ranks: the number of ranks must be 1 to %d", w->size, CR_COMM_RANKS_MAX);
    if (w->rank < 0 || w->rank >= w->size)
        return CR_FAIL(CR_ERR_CONFIG, "rank %d of %d: the rank must be 0 to %d", w->rank, w->size, w->size - 1);
    if (w->shared && !cr_comm_shared_state_fits(w->shared, w->size))
        return CR_FAIL(CR_ERR_CONFIG, "rank %d: the shared memory was not created for %d ranks", w->rank, w->size);
    return CR_OK;
}

static void init_lock(struct cr_comm *comm) {
    pthread_condattr_t attributes;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&comm->change, &attributes);
    pthread_condattr_destroy(&attributes);
}

static cr_status rendezvous(struct cr_comm *comm) {
    if (comm->options.shared) {
        comm->shared_state = comm->options.shared;
        comm->transport    = &cr_comm_transport_shm;
        CR_TRY(cr_comm_shared_state_rendezvous(comm, true));
        return cr_comm_start_watcher(comm);
    }
    CR_TRY(cr_comm_tcp_rendezvous(comm));
    comm->transport = &cr_comm_transport_tcp;
    CR_TRY(cr_comm_tcp_share(comm));
    if (comm->shared_state) {
        comm->transport = &cr_comm_transport_shm;
        CR_TRY(cr_comm_shared_state_rendezvous(comm, false));
    }
    return cr_comm_start_watcher(comm);
}

static void comm_free(struct cr_comm *comm, bool success) {
    pthread_mutex_lock(&comm->lock);
    atomic_store(&comm->closing, true);
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
    if (comm->shared_state && success) cr_comm_shared_state_leave(comm);
    if (comm->watched) pthread_join(comm->watcher, NULL);
    cr_comm_tcp_close(comm, success);
    if (comm->owns_shared_state) cr_comm_shared_free(comm->shared_state);
    pthread_cond_destroy(&comm->change);
    pthread_mutex_destroy(&comm->lock);
    cr_free(comm->info);
    cr_free(comm->seen);
    cr_free(comm);
}

cr_status cr_comm_open(const struct cr_comm_options *where, struct cr_comm **out) {
    struct cr_comm *comm;
    cr_status       status;
    CR_TRY(check_options(where));
    CR_ALLOC(comm, 1);
    comm->options = *where;
    comm->hosts   = 1;
    init_lock(comm);
    CR_ALLOC_OUT(comm->info, (size_t)where->size);
    if (where->size > 1 || where->shared) {
        CR_TRY_OUT(rendezvous(comm));
    } else {
        struct cr_comm_rank_info *p = comm->info;
        p->local_rank               = CR_MAX(where->local_rank, 0);
        p->local_size               = 1;
        p->pid                      = (long)getpid();
        gethostname(p->host_name, sizeof p->host_name - 1);
    }
    *out = comm;
    return CR_OK;
out:
    cr_error_hold();
    comm_free(comm, false);
    cr_error_release();
    return status;
}

void cr_comm_close(struct cr_comm *comm) {
    if (comm) comm_free(comm, !atomic_load(&comm->failed));
}

void cr_comm_abort(struct cr_comm *comm, const char *why) {
    char name[200];
    if (!comm || atomic_load(&comm->failed)) return;
    cr_error_hold();
    (void)cr_comm_raise(comm, comm->options.rank, comm->options.rank, "%s: %s",
                        cr_comm_name(comm, comm->options.rank, name, sizeof name), why);
    cr_error_release();
}

int cr_comm_rank(const struct cr_comm *comm) {
    return comm ? comm->options.rank : 0;
}
int cr_comm_size(const struct cr_comm *comm) {
    return comm ? comm->options.size : 1;
}
int cr_comm_hosts(const struct cr_comm *comm) {
    return comm ? comm->hosts : 1;
}

const struct cr_comm_rank_info *cr_comm_rank_info(const struct cr_comm *comm, int rank) {
    CR_ASSERT(comm && rank >= 0 && rank < comm->options.size);
    return &comm->info[rank];
}

void cr_comm_on_failure(struct cr_comm *comm, void (*call)(void *context), void *context) {
    if (!comm) return;
    pthread_mutex_lock(&comm->lock);
    while (comm->calling) pthread_cond_wait(&comm->change, &comm->lock);
    comm->on_failure         = call;
    comm->on_failure_context = context;
    pthread_mutex_unlock(&comm->lock);
}
