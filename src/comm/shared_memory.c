/* comm/shared_memory.c: ranks of one host over memory that they share: the board.
 *
 * Each rank has a seat on the board: signs of life, what it is about to call, how many phases of collectives it has
 * been through, a chunk for data. A collective is phases: a rank writes its part, announces the phase (release), and
 * waits until all others have announced it too (acquire). Ranks that wait sleep in the kernel (futex), a tenth of a
 * second at a time, and look in between whether the run has failed.
 *
 * A sum over chunks: all write their part; each adds up its slice of the chunk over all seats, in the order of the
 * ranks, into the common result; all copy the result. Two phases a chunk are enough: a seat is written again only
 * behind the second, when everybody has added; the result is written again only behind the next first, when everybody
 * has copied.
 *
 * All that several ranks touch is atomic or ordered by these phases, so that TSan can judge it with ranks as threads.
 */
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

enum { CHUNK_BYTES = 256 << 10, VOTES_KEPT = 8, LINE = 64 };

enum seat_state { SEAT_EMPTY, SEAT_TAKEN, SEAT_LEFT };

struct seat {
    _Alignas(LINE) atomic_uint phase; /* a futex */
    atomic_int      state;
    _Atomic int64_t heartbeat;        /* rises with every sign of life */
    _Alignas(LINE) atomic_uint votes; /* a futex: votes cast */
    atomic_uint ask[VOTES_KEPT];
    _Alignas(LINE) struct cr_comm_call call[2]; /* by parity of its number; ordered by phase */
    struct cr_comm_rank_info info;              /* ordered by state */
    char                     group[CR_COMM_NAME_MAX];
};

struct cr_comm_shared_state {
    uint64_t               magic;
    int                    size;
    long                   parent;  /* prints what went wrong; 0: the ranks do */
    atomic_int             claimed; /* somebody writes, or wrote, the failure */
    atomic_int             failed;  /* it is written */
    struct cr_comm_failure failure;
    _Alignas(LINE) struct seat seat[]; /* size, then the result's chunk and one chunk a seat */
};

static const uint64_t board_magic = 0x6472616f62726341; /* of this layout */

static size_t seats_end(int size) {
    return sizeof(struct cr_comm_shared_state) + (size_t)size * sizeof(struct seat);
}

size_t cr_comm_shared_state_bytes(int size) {
    return seats_end(size) + (size_t)(size + 1) * CHUNK_BYTES;
}

static void *chunk(struct cr_comm_shared_state *board, int rank) { /* -1: the result's */
    return (char *)board + seats_end(board->size) + (size_t)(rank + 1) * CHUNK_BYTES;
}

void cr_comm_shared_state_init(struct cr_comm_shared_state *board, int size, long parent) {
    board->size   = size;
    board->parent = parent;
    board->magic  = board_magic;
}

bool cr_comm_shared_state_fits(const struct cr_comm_shared_state *board, int size) {
    return board->magic == board_magic && board->size == size;
}

cr_status cr_comm_shared_new(int size, void **out) {
    const size_t bytes = cr_comm_shared_state_bytes(size);
    void        *p     = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return CR_FAIL(CR_ERR_MEMORY, "no memory to share between %d ranks (%zu bytes): %s", size, bytes,
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

static void sleep_on(atomic_uint *word, unsigned seen) {
    const struct timespec longest = {.tv_nsec = 100000000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &longest, NULL, 0);
}

static bool reached(unsigned have, unsigned want) {
    return (int)(have - want) >= 0;
}

static bool board_failed(struct cr_comm *comm) {
    if (atomic_load(&comm->failed)) return true;
    if (!atomic_load_explicit(&comm->shared_state->failed, memory_order_acquire)) return false;
    cr_comm_record_failure(comm, &comm->shared_state->failure);
    return true;
}

/* Has that rank lost its way in a manner that no waiting heals? */
static cr_status judge_wait(struct cr_comm *comm, int rank, const char *doing, int64_t since) {
    char         name[200];
    const double waited = (double)(cr_time_ns() - since) * 1e-9;
    if (board_failed(comm)) return cr_comm_failed(comm);
    if (comm->options.wait_timeout_s > 0 && waited > comm->options.wait_timeout_s)
        return cr_comm_raise(
            comm, rank, comm->options.rank,
            "%s lives, but rank %d has waited %.0f s for it in %s: it hangs, or it does something long "
            "(then raise ranks.patience)",
            cr_comm_name(comm, rank, name, sizeof name), comm->options.rank, waited, doing);
    return CR_OK;
}

static cr_status wait_word(struct cr_comm *comm, int rank, atomic_uint *word, unsigned want, const char *doing) {
    struct seat *seat  = &comm->shared_state->seat[rank];
    int64_t      since = 0;
    for (;;) {
        const int left = atomic_load(&seat->state) == SEAT_LEFT; /* before the word: what it did before is seen then */
        const unsigned have = atomic_load_explicit(word, memory_order_acquire);
        char           name[200];
        if (reached(have, want)) return CR_OK;
        if (left)
            return cr_comm_raise(comm, rank, comm->options.rank,
                                 "%s has ended its run, while rank %d waits for it in %s",
                                 cr_comm_name(comm, rank, name, sizeof name), comm->options.rank, doing);
        if (!since) since = cr_time_ns();
        CR_TRY(judge_wait(comm, rank, doing, since));
        sleep_on(word, have);
    }
}

static void announce(atomic_uint *word) {
    atomic_fetch_add_explicit(word, 1, memory_order_release);
    wake(word);
}

/* The end of a phase, for all ranks. */
static cr_status phase(struct cr_comm *comm, const char *doing) {
    struct cr_comm_shared_state *board = comm->shared_state;
    atomic_uint                 *mine  = &board->seat[comm->options.rank].phase;
    const unsigned               want  = atomic_load_explicit(mine, memory_order_relaxed) + 1;
    announce(mine);
    for (int i = 1; i < board->size; i++) { /* not all on the same one first */
        const int rank = (comm->options.rank + i) % board->size;
        CR_TRY(wait_word(comm, rank, &board->seat[rank].phase, want, doing));
    }
    return CR_OK;
}

/* A collective's first phase also says what it is. */
static cr_status first_phase(struct cr_comm *comm, const struct cr_comm_call *call) {
    struct cr_comm_shared_state *board         = comm->shared_state;
    const size_t                 slot          = call->number & 1;
    board->seat[comm->options.rank].call[slot] = *call;
    CR_TRY(phase(comm, cr_comm_kind_name(call->kind)));
    for (int r = 0; r < board->size; r++) {
        const struct cr_comm_call *theirs = &board->seat[r].call[slot];
        if (theirs->kind != call->kind || theirs->detail != call->detail || theirs->number != call->number ||
            theirs->bytes != call->bytes) {
            const struct cr_comm_call copy = *theirs;
            return cr_comm_mismatch(comm, r, call, &copy);
        }
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
    struct cr_comm_shared_state *board = comm->shared_state;
    const int                    rank  = comm->options.rank;
    for (size_t at = 0; at < call->bytes || at == 0; at += CHUNK_BYTES) {
        const size_t n = CR_MIN(call->bytes - at, (size_t)CHUNK_BYTES);
        if (n) memcpy(chunk(board, rank), (const char *)mine + at, n);
        CR_TRY(next_phase(comm, call, at == 0));
        if (!call->bytes)
            return CR_OK; /* a barrier is one phase: nothing is read that the next call overwrites but `call`, and of
                             that there are two */
        for (int r = 0; r < board->size; r++)
            if (r != rank) memcpy((char *)all + (size_t)r * call->bytes + at, chunk(board, r), n);
        CR_TRY(next_phase(comm, call, false));
    }
    char *place = (char *)all + (size_t)rank * call->bytes;
    if (place != mine) memmove(place, mine, call->bytes);
    return CR_OK;
}

/* This rank's slice of a chunk of `count` elements: whole cache lines but for the last. */
static void slice(int rank, int size, size_t count, size_t each, size_t *from, size_t *to) {
    const size_t lines = (count * each + LINE - 1) / LINE, per_line = LINE / each;
    *from = CR_MIN(lines * (size_t)rank / (size_t)size * per_line, count);
    *to   = CR_MIN(lines * (size_t)(rank + 1) / (size_t)size * per_line, count);
}

static void add_slice(struct cr_comm *comm, size_t count, enum cr_comm_type type) {
    struct cr_comm_shared_state *board = comm->shared_state;
    const size_t                 each  = cr_comm_type_bytes(type);
    size_t                       from, to;
    slice(comm->options.rank, board->size, count, each, &from, &to);
    char *sum = (char *)chunk(board, -1) + from * each;
    memcpy(sum, (char *)chunk(board, 0) + from * each, (to - from) * each);
    for (int r = 1; r < board->size; r++) cr_comm_add(sum, (char *)chunk(board, r) + from * each, to - from, type);
}

static cr_status shm_reduce(struct cr_comm *comm, const struct cr_comm_call *call, void *data, size_t count) {
    struct cr_comm_shared_state *board = comm->shared_state;
    const enum cr_comm_type      type  = (enum cr_comm_type)call->detail;
    const size_t                 each = cr_comm_type_bytes(type), most = CHUNK_BYTES / each;
    for (size_t at = 0; at < count || at == 0; at += most) {
        const size_t n = CR_MIN(count - at, most);
        if (n) memcpy(chunk(board, comm->options.rank), (char *)data + at * each, n * each);
        CR_TRY(next_phase(comm, call, at == 0));
        if (n) add_slice(comm, n, type);
        CR_TRY(next_phase(comm, call, false));
        if (n) memcpy((char *)data + at * each, chunk(board, -1), n * each);
    }
    return CR_OK;
}

/* Vote `number` is kept in place number mod VOTES_KEPT. A rank casts it only when all others have cast number - LAG -
 * 1, and reads number - LAG: 2 LAG + 2 places are enough. */
static cr_status shm_vote(struct cr_comm *comm, uint32_t number, uint32_t ask, uint32_t *asked) {
    struct cr_comm_shared_state *board = comm->shared_state;
    struct seat                 *mine  = &board->seat[comm->options.rank];
    atomic_store_explicit(&mine->ask[number % VOTES_KEPT], ask, memory_order_relaxed);
    announce(&mine->votes);
    *asked = 0;
    if (number < CR_VOTE_LAG) return CR_OK;
    uint32_t all = 0;
    for (int r = 0; r < board->size; r++) {
        CR_TRY(wait_word(comm, r, &board->seat[r].votes, number - CR_VOTE_LAG + 1, "the vote between steps"));
        all |= atomic_load_explicit(&board->seat[r].ask[(number - CR_VOTE_LAG) % VOTES_KEPT], memory_order_relaxed);
    }
    *asked = all;
    return CR_OK;
}

const struct cr_comm_transport cr_comm_transport_shm = {shm_broadcast, shm_gather, shm_reduce, shm_vote};

/* ---- life and death ---- */

void cr_comm_shared_state_raise(struct cr_comm_shared_state *board, struct cr_comm_failure *failure) {
    const struct timespec moment = {.tv_nsec = 1000000};
    if (atomic_exchange(&board->claimed, 1) == 0) {
        if (board->parent) failure->reporter = -1;
        board->failure = *failure;
        atomic_store_explicit(&board->failed, 1, memory_order_release);
        return;
    }
    for (int i = 0; i < 1000; i++) { /* who claimed it may have been killed while writing: then ours stays ours */
        if (atomic_load_explicit(&board->failed, memory_order_acquire)) {
            *failure = board->failure;
            return;
        }
        nanosleep(&moment, NULL);
    }
}

int cr_comm_shared_state_silent(struct cr_comm_shared_state *board, int but, struct cr_comm_seen *seen,
                                int64_t awake_ns, double timeout_s, double *silent_s) {
    for (int r = 0; r < board->size; r++) {
        const int64_t heartbeat = atomic_load(&board->seat[r].heartbeat);
        if (r == but || atomic_load(&board->seat[r].state) != SEAT_TAKEN || heartbeat != seen[r].heartbeat)
            seen[r] = (struct cr_comm_seen){heartbeat, awake_ns};
        *silent_s = (double)(awake_ns - seen[r].at_ns) * 1e-9;
        if (*silent_s >= timeout_s) return r;
    }
    return -1;
}

void cr_comm_shared_state_watch(struct cr_comm *comm, struct cr_comm_seen *seen, int64_t awake_ns) {
    struct cr_comm_shared_state *board = comm->shared_state;
    double                       silent;
    atomic_fetch_add(&board->seat[comm->options.rank].heartbeat, 1);
    if (board_failed(comm)) return;
    const int lost =
        cr_comm_shared_state_silent(board, comm->options.rank, seen, awake_ns, comm->options.timeout_s, &silent);
    if (lost >= 0) cr_comm_raise_silent(comm, lost, comm->options.rank, silent);
}

bool cr_comm_shared_state_has_left(struct cr_comm_shared_state *board, int rank) {
    return atomic_load(&board->seat[rank].state) == SEAT_LEFT;
}

const struct cr_comm_failure *cr_comm_shared_state_failure(struct cr_comm_shared_state *board) {
    return atomic_load_explicit(&board->failed, memory_order_acquire) ? &board->failure : NULL;
}

static void missing_ranks(const struct cr_comm_shared_state *board, struct cr_text *text) {
    int named = 0;
    for (int r = 0; r < board->size; r++)
        if (atomic_load((atomic_int *)&board->seat[r].state) == SEAT_EMPTY && named++ < 16)
            cr_text_add(text, "%s%d", named > 1 ? ", " : "", r);
    if (named > 16) cr_text_add(text, " and %d more", named - 16);
}

static cr_status raise_missing(struct cr_comm *comm, int rank) {
    struct cr_text text = {0};
    missing_ranks(comm->shared_state, &text);
    cr_status status = cr_comm_raise(comm, rank, comm->options.rank,
                                     "of %d ranks these did not come within %g s: %s (ranks.meet is the time)",
                                     comm->options.size, comm->options.rendezvous_s, text.failed ? "?" : text.data);
    cr_text_free(&text);
    return status;
}

static cr_status take_seat(struct cr_comm *comm) {
    struct seat             *seat = &comm->shared_state->seat[comm->options.rank];
    struct cr_comm_rank_info me   = {
          .local_rank = comm->options.rank, .local_size = comm->options.size, .pid = (long)getpid()};
    int none = SEAT_EMPTY;
    gethostname(me.host_name, sizeof me.host_name - 1);
    seat->info = me;
    if (!atomic_compare_exchange_strong(&seat->state, &none, SEAT_TAKEN))
        return CR_FAIL(CR_ERR_CONFIG, "rank %d came twice", comm->options.rank);
    return CR_OK;
}

cr_status cr_comm_shared_state_rendezvous(struct cr_comm *comm, bool places) {
    struct cr_comm_shared_state *board = comm->shared_state;
    const struct timespec        pause = {.tv_nsec = 2000000};
    const int64_t                start = cr_time_ns();
    CR_TRY(take_seat(comm));
    for (int r = 0; r < board->size; r++) {
        while (atomic_load(&board->seat[r].state) == SEAT_EMPTY) {
            if (board_failed(comm)) return cr_comm_failed(comm);
            if ((double)(cr_time_ns() - start) * 1e-9 > comm->options.rendezvous_s) return raise_missing(comm, r);
            atomic_fetch_add(&board->seat[comm->options.rank].heartbeat, 1); /* no thread watches yet */
            nanosleep(&pause, NULL);
        }
        if (places) comm->info[r] = board->seat[r].info;
    }
    return CR_OK;
}

void cr_comm_shared_state_leave(struct cr_comm *comm) {
    struct seat *seat = &comm->shared_state->seat[comm->options.rank];
    atomic_store(&seat->state, SEAT_LEFT);
    wake(&seat->phase);
    wake(&seat->votes);
}
