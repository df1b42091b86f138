/* comm/dispatch.c: what both ways share: opening and closing, the thread that watches, how a failure is recorded and
 * told, checks of what is called. See comm/comm.h. */
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
    const int64_t now = cr_time_ns(), longest = 2 * CR_COMM_HEARTBEAT_MS * ms; /* a loaded machine may be late */
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
    case CR_COMM_I64: /* unsigned: an overflow wraps, the same on all ranks */
        for (size_t i = 0; i < count; i++) ((uint64_t *)sum)[i] += ((const uint64_t *)x)[i];
        break;
    }
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

cr_status cr_comm_raise(struct cr_comm *comm, int rank, int speaker, const char *fmt, ...) {
    struct cr_comm_failure failure = {.rank = rank, .reporter = speaker};
    va_list                list;
    va_start(list, fmt);
    vsnprintf(failure.text, sizeof failure.text, fmt, list);
    va_end(list);
    raise_failure(comm, &failure);
    return cr_comm_failed(comm);
}

void cr_comm_raise_silent(struct cr_comm *comm, int rank, int speaker, double silent_s) {
    struct cr_comm_failure failure = {.rank = rank, .reporter = speaker, .silent = 1};
    char                   name[200];
    cr_comm_silent_text(&failure, cr_comm_name(comm, rank, name, sizeof name), silent_s);
    raise_failure(comm, &failure);
}

void cr_comm_silent_text(struct cr_comm_failure *failure, const char *name, double silent_s) {
    snprintf(failure->text, sizeof failure->text,
             "%s has given no sign of life for %.0f s: it was stopped, it hangs, or its machine or the network does",
             name, silent_s);
}

static void deadline_in(struct timespec *at, int milliseconds) {
    clock_gettime(CLOCK_MONOTONIC, at);
    const int64_t ns = at->tv_nsec + milliseconds * ms;
    at->tv_sec += (time_t)(ns / (1000 * ms));
    at->tv_nsec = (long)(ns % (1000 * ms));
}

bool cr_comm_await_failure(struct cr_comm *comm, int milliseconds) {
    struct timespec until;
    deadline_in(&until, milliseconds);
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
                         "ranks have come apart: rank %d does %s (number %" PRIu64 ", %u), rank %d %s (number %" PRIu64
                         ", %u). Do all ranks run the same configuration on the same data?",
                         comm->options.rank, a, mine->number, mine->detail, rank, b, theirs->number, theirs->detail);
}

/* ---- the thread that watches ---- */

/* The process is stuck where nothing reaches it (a driver): nobody must wait for it longer. */
static void end_process(struct cr_comm *comm) {
    if (cr_comm_reports_error(comm))
        cr_log(CR_LOG_ERROR, "%s. Rank %d did not come back within %d s after that and is ended", comm->failure.text,
               comm->options.rank, CR_COMM_GRACE_S);
    _exit(1);
}

uint64_t cr_comm_pid_space(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* A rank of this host that was found silent does not end by itself, and its launcher may take long: the first other
 * rank ends it. */
static void end_silent(const struct cr_comm *comm) {
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
    deadline_in(&until, CR_COMM_GRACE_S * 1000);
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
    deadline_in(&until, CR_COMM_HEARTBEAT_MS);
    pthread_mutex_lock(&comm->lock);
    if (!atomic_load(&comm->closing) && !atomic_load(&comm->failed))
        pthread_cond_timedwait(&comm->change, &comm->lock, &until);
    pthread_mutex_unlock(&comm->lock);
}

struct watch {
    struct cr_comm      *comm;
    struct cr_comm_seen *seen; /* an entry a rank */
};

static void *watch(void *argument) {
    struct watch         w     = *(struct watch *)argument;
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
    if (atomic_load(&w.comm->failed)) end_silent(w.comm);
    if (!atomic_load(&w.comm->closing)) after_failure(w.comm);
    cr_free(w.seen);
    return NULL;
}

static cr_status start_watch(struct cr_comm *comm) {
    struct watch *w = cr_alloc(1, sizeof *w);
    if (w) *w = (struct watch){comm, cr_alloc((size_t)comm->options.size, sizeof *w->seen)};
    if (!w || !w->seen) {
        cr_free(w);
        return CR_NO_MEMORY(sizeof *w);
    }
    comm->watched = true; /* before: the thread asks for it */
    int error     = pthread_create(&comm->watcher, NULL, watch, w);
    if (error) {
        comm->watched = false;
        cr_free(w->seen);
        cr_free(w);
        return CR_FAIL(CR_ERR_IO, "cannot start the thread that watches the other ranks: %s", strerror(error));
    }
    return CR_OK;
}

/* ---- open, close ---- */

static cr_status check_where(const struct cr_comm_options *w) {
    if (w->size < 1 || w->size > CR_COMM_RANKS_MAX)
        return CR_FAIL(CR_ERR_CONFIG, "%d ranks: there can be 1 to %d", w->size, CR_COMM_RANKS_MAX);
    if (w->rank < 0 || w->rank >= w->size)
        return CR_FAIL(CR_ERR_CONFIG, "rank %d of %d: ranks count from 0 to %d", w->rank, w->size, w->size - 1);
    if (w->shared && !cr_comm_shared_state_fits(w->shared, w->size))
        return CR_FAIL(CR_ERR_CONFIG, "rank %d: the memory of the ranks was made for another number than %d", w->rank,
                       w->size);
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

static cr_status meet(struct cr_comm *comm) {
    if (comm->options.shared) {
        comm->shared_state = comm->options.shared;
        comm->transport    = &cr_comm_transport_shm;
        CR_TRY(cr_comm_shared_state_rendezvous(comm, true));
        return start_watch(comm);
    }
    CR_TRY(cr_comm_tcp_rendezvous(comm));
    comm->transport = &cr_comm_transport_tcp;
    CR_TRY(cr_comm_tcp_share(comm));
    if (comm->shared_state) {
        comm->transport = &cr_comm_transport_shm;
        CR_TRY(cr_comm_shared_state_rendezvous(comm, false));
    }
    return start_watch(comm);
}

static void comm_free(struct cr_comm *comm, bool well) {
    pthread_mutex_lock(&comm->lock);
    atomic_store(&comm->closing, true);
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
    if (comm->shared_state && well) cr_comm_shared_state_leave(comm);
    if (comm->watched) pthread_join(comm->watcher, NULL);
    cr_comm_tcp_close(comm, well);
    if (comm->owns_shared_state) cr_comm_shared_free(comm->shared_state);
    pthread_cond_destroy(&comm->change);
    pthread_mutex_destroy(&comm->lock);
    cr_free(comm->info);
    cr_free(comm);
}

cr_status cr_comm_open(const struct cr_comm_options *where, struct cr_comm **out) {
    struct cr_comm *comm;
    CR_TRY(check_where(where));
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
        status = meet(comm);
    else {
        struct cr_comm_rank_info *p = comm->info;
        *p                          = (struct cr_comm_rank_info){
                                     .local_rank = CR_MAX(where->local_rank, 0), .local_size = 1, .pid = (long)getpid()};
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

static bool alone(const struct cr_comm *comm) {
    return !comm || comm->options.size == 1;
}

static struct cr_comm_call next_call(struct cr_comm *comm, enum cr_comm_kind kind, uint32_t detail, size_t bytes) {
    return (struct cr_comm_call){.kind = (uint32_t)kind, .detail = detail, .number = comm->calls++, .bytes = bytes};
}

cr_status cr_comm_barrier(struct cr_comm *comm) {
    if (alone(comm)) return CR_OK;
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_BARRIER, 0, 0);
    return comm->transport->gather(comm, &call, NULL, NULL);
}

cr_status cr_comm_broadcast(struct cr_comm *comm, void *data, size_t bytes, int root) {
    if (alone(comm)) return CR_OK;
    CR_ASSERT(root >= 0 && root < comm->options.size);
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_BROADCAST, (uint32_t)root, bytes);
    return comm->transport->broadcast(comm, &call, data);
}

cr_status cr_comm_all_gather(struct cr_comm *comm, const void *mine, size_t bytes, void *all) {
    if (alone(comm)) {
        if (bytes) memmove(all, mine, bytes);
        return CR_OK;
    }
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_GATHER, 0, bytes);
    return comm->transport->gather(comm, &call, mine, all);
}

cr_status cr_comm_all_reduce(struct cr_comm *comm, void *data, size_t count, enum cr_comm_type type) {
    if (alone(comm)) return CR_OK;
    CR_TRY(cr_comm_check(comm));
    const struct cr_comm_call call = next_call(comm, CR_COMM_REDUCE, (uint32_t)type, count * cr_comm_type_bytes(type));
    return comm->transport->reduce(comm, &call, data, count);
}

cr_status cr_comm_same(struct cr_comm *comm, const void *data, size_t bytes, const char *what) {
    char name[200];
    if (alone(comm)) return CR_OK;
    char *all = cr_alloc((size_t)comm->options.size, CR_MAX(bytes, 1));
    if (!all) return CR_NO_MEMORY((size_t)comm->options.size * bytes);
    cr_status status = cr_comm_all_gather(comm, data, bytes, all);
    for (int r = 1; status == CR_OK && r < comm->options.size; r++)
        if (memcmp(all, all + (size_t)r * bytes, bytes) != 0) /* found by all ranks; the first to say so is heard */
            status = cr_comm_raise(comm, r, comm->options.rank,
                                   "%s: %s is not that of rank 0 (%s). All ranks must run the same program "
                                   "with the same configuration, files and kernels",
                                   cr_comm_name(comm, r, name, sizeof name), what, comm->info[0].host_name);
    cr_free(all);
    return status;
}

cr_status cr_comm_vote(struct cr_comm *comm, uint32_t ask, uint32_t *asked) {
    *asked = ask;
    if (alone(comm)) return CR_OK;
    CR_TRY(cr_comm_check(comm));
    return comm->transport->vote(comm, comm->votes++, ask, asked);
}
