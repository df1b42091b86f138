/* comm/dispatch.c: opens and closes a comm, and passes collectives on to its transport. See comm/comm.h. */
#include "comm/transport.h"

#include <stdio.h>
#include <string.h>
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

static cr_status init_lock(struct cr_comm *comm) {
    pthread_condattr_t attributes;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&comm->change, &attributes);
    pthread_condattr_destroy(&attributes);
    return CR_OK;
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
    cr_free(comm);
}

cr_status cr_comm_open(const struct cr_comm_options *where, struct cr_comm **out) {
    struct cr_comm *comm;
    CR_TRY(check_options(where));
    CR_ALLOC(comm, 1);
    comm->options = *where;
    comm->hosts   = 1;
    comm->info    = cr_alloc((size_t)where->size, sizeof *comm->info);
    if (!comm->info) {
        cr_free(comm);
        return CR_NO_MEMORY((size_t)where->size * sizeof *comm->info);
    }
    cr_status status = init_lock(comm);
    if (status == CR_OK && (where->size > 1 || where->shared))
        status = rendezvous(comm);
    else {
        struct cr_comm_rank_info *p = comm->info;
        p->local_rank               = CR_MAX(where->local_rank, 0);
        p->local_size               = 1;
        p->pid                      = (long)getpid();
        gethostname(p->host_name, sizeof p->host_name - 1);
    }
    if (status != CR_OK) {
        cr_error_hold();
        comm_free(comm, false);
        cr_error_release();
        return status;
    }
    *out = comm;
    return CR_OK;
}

void cr_comm_close(struct cr_comm *comm) {
    if (comm) comm_free(comm, !atomic_load(&comm->failed));
}

void cr_comm_abort(struct cr_comm *comm, const char *why) {
    char name[200];
    if (!comm || atomic_load(&comm->failed)) return;
    cr_error_hold();
    cr_status status = cr_comm_raise(comm, comm->options.rank, comm->options.rank, "%s: %s",
                                     cr_comm_name(comm, comm->options.rank, name, sizeof name), why);
    (void)status;
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

cr_status cr_comm_check(struct cr_comm *comm) {
    return comm && atomic_load_explicit(&comm->failed, memory_order_acquire) ? cr_comm_failed(comm) : CR_OK;
}

void cr_comm_on_failure(struct cr_comm *comm, void (*call)(void *context), void *context) {
    if (!comm) return;
    pthread_mutex_lock(&comm->lock);
    while (comm->calling) pthread_cond_wait(&comm->change, &comm->lock);
    comm->on_failure         = call;
    comm->on_failure_context = context;
    pthread_mutex_unlock(&comm->lock);
}

bool cr_comm_reports_error(struct cr_comm *comm) {
    return !comm || (atomic_load(&comm->failed) && comm->failure.reporter == comm->options.rank);
}

/* ---- collectives ---- */

size_t cr_comm_type_bytes(enum cr_comm_type type) {
    return type == CR_COMM_F32 ? 4 : 8;
}

void cr_comm_add(void *sum, const void *x, size_t count, enum cr_comm_type type) {
    switch (type) {
    case CR_COMM_F32:
        for (size_t i = 0; i < count; i++) ((float *)sum)[i] += ((const float *)x)[i];
        break;
    case CR_COMM_F64:
        for (size_t i = 0; i < count; i++) ((double *)sum)[i] += ((const double *)x)[i];
        break;
    case CR_COMM_I64: /* unsigned: an overflow wraps in the same way on all ranks */
        for (size_t i = 0; i < count; i++) ((uint64_t *)sum)[i] += ((const uint64_t *)x)[i];
        break;
    }
}

static bool single_rank(const struct cr_comm *comm) {
    return !comm || comm->options.size == 1;
}

static struct cr_comm_call next_call(struct cr_comm *comm, enum cr_comm_kind kind, uint32_t detail, size_t bytes) {
    return (struct cr_comm_call){.kind = (uint32_t)kind, .detail = detail, .number = comm->calls++, .bytes = bytes};
}

cr_status cr_comm_barrier(struct cr_comm *comm) {
    if (single_rank(comm)) return CR_OK;
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_BARRIER, 0, 0);
    return comm->transport->gather(comm, &call, NULL, NULL);
}

cr_status cr_comm_broadcast(struct cr_comm *comm, void *data, size_t bytes, int root) {
    if (single_rank(comm)) return CR_OK;
    CR_ASSERT(root >= 0 && root < comm->options.size);
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_BROADCAST, (uint32_t)root, bytes);
    return comm->transport->broadcast(comm, &call, data);
}

cr_status cr_comm_all_gather(struct cr_comm *comm, const void *mine, size_t bytes, void *all) {
    if (single_rank(comm)) {
        if (bytes) memmove(all, mine, bytes);
        return CR_OK;
    }
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_GATHER, 0, bytes);
    return comm->transport->gather(comm, &call, mine, all);
}

cr_status cr_comm_all_reduce(struct cr_comm *comm, void *data, size_t count, enum cr_comm_type type) {
    if (single_rank(comm)) return CR_OK;
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_REDUCE, (uint32_t)type, count * cr_comm_type_bytes(type));
    return comm->transport->reduce(comm, &call, data, count);
}

cr_status cr_comm_same(struct cr_comm *comm, const void *data, size_t bytes, const char *what) {
    char name[200];
    if (single_rank(comm)) return CR_OK;
    char *all = cr_alloc((size_t)comm->options.size, CR_MAX(bytes, 1));
    if (!all) return CR_NO_MEMORY((size_t)comm->options.size * bytes);
    cr_status status = cr_comm_all_gather(comm, data, bytes, all);
    for (int r = 1; status == CR_OK && r < comm->options.size; r++)
        if (memcmp(all, all + (size_t)r * bytes, bytes) != 0) /* all ranks find it; the first one reports it */
            status = cr_comm_raise(comm, r, comm->options.rank,
                                   "%s: %s differs from rank 0 (%s). All ranks must run the same program "
                                   "with the same configuration, files and kernels",
                                   cr_comm_name(comm, r, name, sizeof name), what, comm->info[0].host_name);
    cr_free(all);
    return status;
}

cr_status cr_comm_vote(struct cr_comm *comm, uint32_t request, uint32_t *requests) {
    *requests = request;
    if (single_rank(comm)) return CR_OK;
    CR_TRY(cr_comm_check(comm));
    return comm->transport->vote(comm, comm->votes++, request, requests);
}
