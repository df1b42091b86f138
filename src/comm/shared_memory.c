/* comm/shared_memory.c: collectives, votes and failure detection for the ranks of one host, in shared memory.
 *
 * Each rank has a slot in the shared state: heartbeat, description of its current call, number of completed phases of
 * collectives. Each rank also has a chunk for data. A collective consists of phases: a rank writes its part, announces
 * the phase (release), and waits until all other ranks have announced the phase (acquire). Waiting ranks sleep in the
 * kernel (futex) for at most 100 ms at a time, and check in between whether the run has failed.
 *
 * A sum, chunk by chunk: every rank writes its part; every rank adds its slice of the chunk over all ranks, in rank
 * order, into the common result; every rank copies the result. Two phases per chunk are sufficient: a rank overwrites
 * its chunk only after the second phase, when all ranks have added; the result is overwritten only after the next first
 * phase, when all ranks have copied.
 *
 * Everything that several ranks access is atomic or ordered by these phases, so that TSan can check it with ranks that
 * are threads. */
#include "comm/transport.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK_BYTES = 256 << 10, VOTE_RING = 8, LINE = 64 };

enum slot_state { SLOT_EMPTY, SLOT_JOINED, SLOT_LEFT };

struct rank_slot {
    _Alignas(LINE) atomic_uint phase; /* a futex */
    atomic_int      state;
    _Atomic int64_t heartbeat;        /* incremented with every heartbeat */
    _Alignas(LINE) atomic_uint votes; /* a futex: number of votes cast */
    atomic_uint request[VOTE_RING];
    _Alignas(LINE) struct cr_comm_call call[2]; /* index: parity of its number; ordered by phase */
    struct cr_comm_rank_info info;              /* ordered by `state` */
    char                     group[CR_COMM_NAME_MAX];
};

struct cr_comm_shared_state {
    uint64_t               magic;
    int                    size;
    long                   parent;  /* process that prints failures; 0 if the ranks print them */
    atomic_int             claimed; /* a rank writes, or has written, the failure */
    atomic_int             failed;  /* the failure is written */
    struct cr_comm_failure failure;
    _Alignas(LINE) struct rank_slot slot[]; /* [size], then the result's chunk and one chunk per rank */
};

static const uint64_t state_magic = 0x6472616f62726341; /* identifies this layout */

static size_t slots_bytes(int size) {
    return sizeof(struct cr_comm_shared_state) + (size_t)size * sizeof(struct rank_slot);
}

size_t cr_comm_shared_state_bytes(int size) {
    return slots_bytes(size) + (size_t)(size + 1) * CHUNK_BYTES;
}

static void *chunk(struct cr_comm_shared_state *state, int rank) { /* rank -1: the result's chunk */
    return (char *)state + slots_bytes(state->size) + (size_t)(rank + 1) * CHUNK_BYTES;
}

void cr_comm_shared_state_init(struct cr_comm_shared_state *state, int size, long parent) {
    state->size   = size;
    state->parent = parent;
    state->magic  = state_magic;
}

bool cr_comm_shared_state_fits(const struct cr_comm_shared_state *state, int size) {
    return state->magic == state_magic && state->size == size;
}

cr_status cr_comm_shared_new(int size, void **out) {
    const size_t bytes = cr_comm_shared_state_bytes(size);
    void        *p     = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return CR_FAIL(CR_ERR_MEMORY, "cannot allocate %zu bytes of shared memory for %d ranks: %s", bytes, size,
                       strerror(errno));
    cr_comm_shared_state_init(p, size, 0);
    *out = p;
    return CR_OK;
}

void cr_comm_shared_free(void *shared) {
    if (shared) munmap(shared, cr_comm_shared_state_bytes(((struct cr_comm_shared_state *)shared)->size));
}

/* ---- waiting ---- */

static void wake(atomic_uint *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool run_failed(struct cr_comm *comm) {
    if (atomic_load(&comm->failed)) return true;
    if (!atomic_load_explicit(&comm->shared_state->failed, memory_order_acquire)) return false;
    cr_comm_record_failure(comm, &comm->shared_state->failure);
    return true;
}

/* Fails if the run has failed or the wait for `rank` has timed out. */
static cr_status check_wait(struct cr_comm *comm, int rank, const char *doing, int64_t since) {
    char         name[200];
    const double waited = (double)(cr_time_ns() - since) * 1e-9;
    if (run_failed(comm)) return cr_comm_failed(comm);
    if (comm->options.wait_timeout_s > 0 && waited > comm->options.wait_timeout_s)
        return cr_comm_raise(
            comm, rank, comm->options.rank,
            "%s is alive, but rank %d has waited %.0f s for it in %s: it hangs, or it does something long "
            "(then raise ranks.patience)",
            cr_comm_name(comm, rank, name, sizeof name), comm->options.rank, waited, doing);
    return CR_OK;
}

static cr_status wait_word(struct cr_comm *comm, int rank, atomic_uint *word, unsigned want, const char *doing) {
    const struct timespec longest = {.tv_nsec = 100000000};
    struct rank_slot     *slot    = &comm->shared_state->slot[rank];
    int64_t               since   = 0;
    for (;;) {
        /* loaded before the word, so that everything the rank did before it left is visible */
        const int      left = atomic_load(&slot->state) == SLOT_LEFT;
        const unsigned have = atomic_load_explicit(word, memory_order_acquire);
        char           name[200];
        if ((int)(have - want) >= 0) return CR_OK;
        if (left)
            return cr_comm_raise(comm, rank, comm->options.rank,
                                 "%s ended its run while rank %d was waiting for it in %s",
                                 cr_comm_name(comm, rank, name, sizeof name), comm->options.rank, doing);
        if (!since) since = cr_time_ns();
        CR_TRY(check_wait(comm, rank, doing, since));
        syscall(SYS_futex, word, FUTEX_WAIT, have, &longest, NULL, 0);
    }
}

static void announce(atomic_uint *word) {
    atomic_fetch_add_explicit(word, 1, memory_order_release);
    wake(word);
}

/* Completes a phase on all ranks. */
static cr_status phase(struct cr_comm *comm, const char *doing) {
    struct cr_comm_shared_state *state = comm->shared_state;
    atomic_uint                 *mine  = &state->slot[comm->options.rank].phase;
    const unsigned               want  = atomic_load_explicit(mine, memory_order_relaxed) + 1;
    announce(mine);
    for (int i = 1; i < state->size; i++) { /* each rank starts with a different one */
        const int rank = (comm->options.rank + i) % state->size;
        CR_TRY(wait_word(comm, rank, &state->slot[rank].phase, want, doing));
    }
    return CR_OK;
}

/* The first phase of a collective also compares the descriptions of the calls. */
static cr_status first_phase(struct cr_comm *comm, const struct cr_comm_call *call) {
    struct cr_comm_shared_state *state           = comm->shared_state;
    const size_t                 parity          = call->number & 1;
    state->slot[comm->options.rank].call[parity] = *call;
    CR_TRY(phase(comm, cr_comm_kind_name(call->kind)));
    for (int r = 0; r < state->size; r++) {
        const struct cr_comm_call theirs = state->slot[r].call[parity];
        CR_TRY(cr_comm_same_call(comm, r, call, &theirs));
    }
    return CR_OK;
}

static cr_status next_phase(struct cr_comm *comm, const struct cr_comm_call *call, bool first) {
    return first ? first_phase(comm, call) : phase(comm, cr_comm_kind_name(call->kind));
}

/* ---- collectives ---- */

static cr_status shm_broadcast(struct cr_comm *comm, const struct cr_comm_call *call, void *data) {
    void *common = chunk(comm->shared_state, -1);
    for (size_t at = 0; at < call->bytes || at == 0; at += CHUNK_BYTES) {
        const size_t n = CR_MIN(call->bytes - at, (size_t)CHUNK_BYTES);
        if (comm->options.rank == (int)call->detail && n) memcpy(common, (char *)data + at, n);
        CR_TRY(next_phase(comm, call, at == 0));
        if (comm->options.rank != (int)call->detail && n) memcpy((char *)data + at, common, n);
        CR_TRY(next_phase(comm, call, false));
    }
    return CR_OK;
}

static cr_status shm_gather(struct cr_comm *comm, const struct cr_comm_call *call, const void *mine, void *all) {
    struct cr_comm_shared_state *state = comm->shared_state;
    const int                    rank  = comm->options.rank;
    for (size_t at = 0; at < call->bytes || at == 0; at += CHUNK_BYTES) {
        const size_t n = CR_MIN(call->bytes - at, (size_t)CHUNK_BYTES);
        if (n) memcpy(chunk(state, rank), (const char *)mine + at, n);
        CR_TRY(next_phase(comm, call, at == 0));
        if (!call->bytes)
            return CR_OK; /* a barrier is one phase: the next call overwrites only `call`, which has two copies */
        for (int r = 0; r < state->size; r++)
            if (r != rank) memcpy((char *)all + (size_t)r * call->bytes + at, chunk(state, r), n);
        CR_TRY(next_phase(comm, call, false));
    }
    char *place = (char *)all + (size_t)rank * call->bytes;
    if (place != mine) memmove(place, mine, call->bytes);
    return CR_OK;
}

/* This rank's slice of a chunk of `count` elements: whole cache lines, except for the last slice. */
static void slice(int rank, int size, size_t count, size_t each, size_t *from, size_t *to) {
    const size_t lines = (count * each + LINE - 1) / LINE, per_line = LINE / each;
    *from = CR_MIN(lines * (size_t)rank / (size_t)size * per_line, count);
    *to   = CR_MIN(lines * (size_t)(rank + 1) / (size_t)size * per_line, count);
}

static void add_slice(struct cr_comm *comm, size_t count, enum cr_comm_type type) {
    struct cr_comm_shared_state *state = comm->shared_state;
    const size_t                 each  = cr_comm_type_bytes(type);
    size_t                       from, to;
    slice(comm->options.rank, state->size, count, each, &from, &to);
    char *sum = (char *)chunk(state, -1) + from * each;
    memcpy(sum, (char *)chunk(state, 0) + from * each, (to - from) * each);
    for (int r = 1; r < state->size; r++) cr_comm_add(sum, (char *)chunk(state, r) + from * each, to - from, type);
}

static cr_status shm_reduce(struct cr_comm *comm, const struct cr_comm_call *call, void *data, size_t count) {
    struct cr_comm_shared_state *state = comm->shared_state;
    const enum cr_comm_type      type  = (enum cr_comm_type)call->detail;
    const size_t                 each = cr_comm_type_bytes(type), capacity = CHUNK_BYTES / each;
    for (size_t at = 0; at < count || at == 0; at += capacity) {
        const size_t n = CR_MIN(count - at, capacity);
        if (n) memcpy(chunk(state, comm->options.rank), (char *)data + at * each, n * each);
        CR_TRY(next_phase(comm, call, at == 0));
        if (n) add_slice(comm, n, type);
        CR_TRY(next_phase(comm, call, false));
        if (n) memcpy((char *)data + at * each, chunk(state, -1), n * each);
    }
    return CR_OK;
}

/* Vote `number` is stored at index number mod VOTE_RING. A rank casts vote n only when all other ranks have cast
 * vote n - LAG - 1, and reads vote n - LAG: a ring of 2 LAG + 2 entries is sufficient. */
static cr_status shm_vote(struct cr_comm *comm, uint32_t number, uint32_t request, uint32_t *requests) {
    struct cr_comm_shared_state *state = comm->shared_state;
    struct rank_slot            *mine  = &state->slot[comm->options.rank];
    atomic_store_explicit(&mine->request[number % VOTE_RING], request, memory_order_relaxed);
    announce(&mine->votes);
    *requests = 0;
    if (number < CR_VOTE_LAG) return CR_OK;
    uint32_t all = 0;
    for (int r = 0; r < state->size; r++) {
        CR_TRY(wait_word(comm, r, &state->slot[r].votes, number - CR_VOTE_LAG + 1, "the vote between steps"));
        all |= atomic_load_explicit(&state->slot[r].request[(number - CR_VOTE_LAG) % VOTE_RING], memory_order_relaxed);
    }
    *requests = all;
    return CR_OK;
}

const struct cr_comm_transport cr_comm_transport_shm = {shm_broadcast, shm_gather, shm_reduce, shm_vote};

/* ---- failures, heartbeats, rendezvous ---- */

void cr_comm_shared_state_raise(struct cr_comm_shared_state *state, struct cr_comm_failure *failure) {
    const struct timespec pause = {.tv_nsec = 1000000};
    if (atomic_exchange(&state->claimed, 1) == 0) {
        if (state->parent) failure->reporter = -1;
        state->failure = *failure;
        atomic_store_explicit(&state->failed, 1, memory_order_release);
        return;
    }
    for (int i = 0; i < 1000; i++) { /* the claiming rank may have been killed while writing: then *failure stays */
        if (atomic_load_explicit(&state->failed, memory_order_acquire)) {
            *failure = state->failure;
            return;
        }
        nanosleep(&pause, NULL);
    }
}

int cr_comm_shared_state_silent(struct cr_comm_shared_state *state, int except, struct cr_comm_seen *seen,
                                int64_t awake_ns, double timeout_s, double *silent_s) {
    for (int r = 0; r < state->size; r++) {
        const int64_t heartbeat = atomic_load(&state->slot[r].heartbeat);
        if (r == except || atomic_load(&state->slot[r].state) != SLOT_JOINED || heartbeat != seen[r].heartbeat)
            seen[r] = (struct cr_comm_seen){heartbeat, awake_ns};
        *silent_s = (double)(awake_ns - seen[r].at_ns) * 1e-9;
        if (*silent_s >= timeout_s) return r;
    }
    return -1;
}

void cr_comm_shared_state_watch(struct cr_comm *comm, int64_t awake_ns) {
    struct cr_comm_shared_state *state = comm->shared_state;
    double                       silent;
    atomic_fetch_add(&state->slot[comm->options.rank].heartbeat, 1);
    if (run_failed(comm)) return;
    const int lost =
        cr_comm_shared_state_silent(state, comm->options.rank, comm->seen, awake_ns, comm->options.timeout_s, &silent);
    if (lost >= 0) cr_comm_raise_silent(comm, lost, comm->options.rank, silent);
}

bool cr_comm_shared_state_has_left(struct cr_comm_shared_state *state, int rank) {
    return atomic_load(&state->slot[rank].state) == SLOT_LEFT;
}

const struct cr_comm_failure *cr_comm_shared_state_failure(struct cr_comm_shared_state *state) {
    return atomic_load_explicit(&state->failed, memory_order_acquire) ? &state->failure : NULL;
}

static cr_status raise_missing(struct cr_comm *comm, int rank) {
    struct cr_text text  = {0};
    int            named = 0;
    for (int r = 0; r < comm->options.size; r++)
        if (atomic_load(&comm->shared_state->slot[r].state) == SLOT_EMPTY && named++ < 16)
            cr_text_add(&text, "%s%d", named > 1 ? ", " : "", r);
    if (named > 16) cr_text_add(&text, " and %d more", named - 16);
    cr_status status =
        cr_comm_raise(comm, rank, comm->options.rank,
                      "%d ranks were expected; these did not connect within %g s: %s (timeout: ranks.meet)",
                      comm->options.size, comm->options.rendezvous_s, text.failed ? "?" : text.data);
    cr_text_free(&text);
    return status;
}

static cr_status enter_slot(struct cr_comm *comm) {
    struct rank_slot *slot = &comm->shared_state->slot[comm->options.rank];
    int               none = SLOT_EMPTY;
    slot->info             = (struct cr_comm_rank_info){
                    .local_rank = comm->options.rank, .local_size = comm->options.size, .pid = (long)getpid()};
    gethostname(slot->info.host_name, sizeof slot->info.host_name - 1);
    if (!atomic_compare_exchange_strong(&slot->state, &none, SLOT_JOINED))
        return CR_FAIL(CR_ERR_CONFIG, "rank %d connected twice", comm->options.rank);
    return CR_OK;
}

cr_status cr_comm_shared_state_rendezvous(struct cr_comm *comm, bool places) {
    struct cr_comm_shared_state *state = comm->shared_state;
    const struct timespec        pause = {.tv_nsec = 2000000};
    const int64_t                start = cr_time_ns();
    CR_TRY(enter_slot(comm));
    for (int r = 0; r < state->size; r++) {
        while (atomic_load(&state->slot[r].state) == SLOT_EMPTY) {
            if (run_failed(comm)) return cr_comm_failed(comm);
            if ((double)(cr_time_ns() - start) * 1e-9 > comm->options.rendezvous_s) return raise_missing(comm, r);
            atomic_fetch_add(&state->slot[comm->options.rank].heartbeat, 1); /* the watcher thread does not run yet */
            nanosleep(&pause, NULL);
        }
        if (places) comm->info[r] = state->slot[r].info;
    }
    return CR_OK;
}

void cr_comm_shared_state_leave(struct cr_comm *comm) {
    struct rank_slot *slot = &comm->shared_state->slot[comm->options.rank];
    atomic_store(&slot->state, SLOT_LEFT);
    wake(&slot->phase);
    wake(&slot->votes);
}
