/* comm/tcp_control.c: votes, heartbeats and failures of ranks on TCP control connections. See comm/tcp.h. */
#include "comm/tcp.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { VOTE_RING = 8, DECISION_WAIT_MS = 2000 };

/* ---- frames on the control connections ---- */

/* Sends a small frame to one rank. Errors are ignored: the watcher thread detects the end of the connection. */
static void send_frame(struct cr_comm *comm, int rank, struct cr_tcp_frame frame, const void *more) {
    unsigned char bytes[sizeof frame + sizeof(struct cr_comm_failure)];
    const int     fd = comm->tcp->peer[rank].control;
    if (fd < 0) return;
    memcpy(bytes, &frame, sizeof frame);
    if (more) memcpy(bytes + sizeof frame, more, frame.bytes);
    pthread_mutex_lock(&comm->tcp->send);
    (void)cr_tcp_write(NULL, fd, bytes, sizeof frame + frame.bytes,
                       cr_time_ns() + (int64_t)(comm->options.timeout_s * 1e9));
    pthread_mutex_unlock(&comm->tcp->send);
}

static void send_frames(struct cr_comm *comm, struct cr_tcp_frame frame, const void *more) {
    if (comm->options.rank)
        send_frame(comm, 0, frame, more);
    else
        for (int r = 1; r < comm->options.size; r++) send_frame(comm, r, frame, more);
}

void cr_comm_tcp_raise(struct cr_comm *comm, const struct cr_comm_failure *failure) {
    const struct cr_tcp_frame frame = {.kind = CR_TCP_FAILURE, .bytes = sizeof *failure};
    if (comm->options.rank == 0)
        cr_comm_record_failure(comm, failure); /* before sending: ranks must receive the failure that rank 0 recorded */
    send_frames(comm, frame, comm->options.rank ? failure : &comm->failure);
    const bool watches = comm->watched && pthread_equal(pthread_self(), comm->watcher);
    if (comm->options.rank && comm->watched && !watches) cr_comm_await_failure(comm, DECISION_WAIT_MS);
}

/* ---- votes: every rank sends its vote to rank 0, which sends the result to all ranks ---- */

/* On rank 0, with the lock held: computes the result of every vote that all ranks have cast, [*from, *to). */
static void count_votes(struct cr_comm *comm, uint32_t *from, uint32_t *to) {
    struct cr_comm_tcp *tcp = comm->tcp;
    uint32_t            all = tcp->peer[0].votes;
    for (int r = 1; r < comm->options.size; r++)
        if ((int32_t)(tcp->peer[r].votes - all) < 0) all = tcp->peer[r].votes;
    *from = tcp->outcomes;
    *to   = all;
    for (uint32_t n = *from; n != *to; n++) {
        uint32_t requests = 0;
        for (int r = 0; r < comm->options.size; r++) requests |= tcp->peer[r].request[n % VOTE_RING];
        tcp->outcome[n % VOTE_RING] = requests;
    }
    tcp->outcomes = all;
    if (*from != *to) pthread_cond_broadcast(&comm->change);
}

static void record_vote(struct cr_comm *comm, int rank, uint32_t number, uint32_t request) {
    uint32_t from, to, outcome[VOTE_RING];
    pthread_mutex_lock(&comm->lock);
    comm->tcp->peer[rank].request[number % VOTE_RING] = request;
    comm->tcp->peer[rank].votes                       = number + 1;
    count_votes(comm, &from, &to);
    memcpy(outcome, comm->tcp->outcome, sizeof outcome);
    pthread_mutex_unlock(&comm->lock);
    for (uint32_t n = from; n != to; n++)
        send_frames(comm, (struct cr_tcp_frame){.kind = CR_TCP_OUTCOME, .number = n, .request = outcome[n % VOTE_RING]},
                    NULL);
}

static void record_outcome(struct cr_comm *comm, uint32_t number, uint32_t requests) {
    pthread_mutex_lock(&comm->lock);
    comm->tcp->outcome[number % VOTE_RING] = requests;
    if ((int32_t)(number + 1 - comm->tcp->outcomes) > 0) comm->tcp->outcomes = number + 1;
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
}

/* The rank that this rank waits for: rank 0, or on rank 0 a rank that has not voted. The lock is held. */
static int behind_in_vote(const struct cr_comm *comm, uint32_t number) {
    for (int r = 1; comm->options.rank == 0 && r < comm->options.size; r++)
        if ((int32_t)(comm->tcp->peer[r].votes - number) <= 0) return r;
    return 0;
}

static cr_status wait_outcome(struct cr_comm *comm, uint32_t number, uint32_t *requests) {
    const int64_t deadline = cr_tcp_wait_deadline(comm);
    for (;;) {
        pthread_mutex_lock(&comm->lock);
        const int  behind = behind_in_vote(comm, number);
        const bool left   = (comm->options.rank || behind) &&
                          atomic_load(&comm->tcp->peer[behind].left); /* its last results arrived before its goodbye */
        const bool done = (int32_t)(comm->tcp->outcomes - number) > 0;
        if (done) *requests = comm->tcp->outcome[number % VOTE_RING];
        struct timespec until;
        cr_comm_deadline_after(&until, 1000);
        if (!done && !left && !atomic_load(&comm->failed)) pthread_cond_timedwait(&comm->change, &comm->lock, &until);
        pthread_mutex_unlock(&comm->lock);
        if (done) return CR_OK;
        CR_TRY(cr_comm_check(comm));
        if (left) return cr_tcp_connection_failed(comm, behind, ECONNRESET, "the vote between steps");
        if (deadline && cr_time_ns() > deadline)
            return cr_tcp_connection_failed(comm, behind, ETIMEDOUT, "the vote between steps");
    }
}

cr_status cr_tcp_vote(struct cr_comm *comm, uint32_t number, uint32_t request, uint32_t *requests) {
    if (comm->options.rank)
        send_frame(comm, 0, (struct cr_tcp_frame){.kind = CR_TCP_VOTE, .number = number, .request = request}, NULL);
    else
        record_vote(comm, 0, number, request);
    *requests = 0;
    return number < CR_VOTE_LAG ? CR_OK : wait_outcome(comm, number - CR_VOTE_LAG, requests);
}

/* ---- the watcher thread ---- */

/* The rank that prints that rank `lost` is lost: rank 0, or, if rank 0 is lost, the first remaining rank of each host.
 * With shared memory it is the first rank that records the failure. */
static int reporter_for(const struct cr_comm *comm, int lost) {
    if (comm->shared_state) return comm->options.rank;
    if (lost) return 0;
    for (int r = 1; r < comm->options.size; r++)
        if (comm->info[r].host == comm->info[comm->options.rank].host) return r;
    return comm->options.rank;
}

static void report_lost(struct cr_comm *comm, int rank, const char *how) {
    char name[200];
    if (atomic_load(&comm->closing) || atomic_load(&comm->failed)) return;
    (void)cr_comm_raise(comm, rank, reporter_for(comm, rank), "%s %s", cr_comm_name(comm, rank, name, sizeof name),
                        how);
}

static void handle_frame(struct cr_comm *comm, int rank, const struct cr_tcp_frame *frame, const void *more) {
    struct cr_comm_failure failure;
    switch (frame->kind) {
    case CR_TCP_VOTE:
        if (comm->options.rank == 0) record_vote(comm, rank, frame->number, frame->request);
        break;
    case CR_TCP_OUTCOME: record_outcome(comm, frame->number, frame->request); break;
    case CR_TCP_BYE: atomic_store(&comm->tcp->peer[rank].left, true); break;
    case CR_TCP_FAILURE:
        memcpy(&failure, more, sizeof failure);
        failure.text[sizeof failure.text - 1] = 0;
        if (comm->options.rank == 0)
            cr_comm_tcp_raise(comm, &failure);
        else
            cr_comm_record_failure(comm, &failure);
        break;
    default: break; /* a heartbeat */
    }
}

/* Reads the available frames of one rank. */
static void read_frames(struct cr_comm *comm, int rank, int64_t awake_ns) {
    struct cr_tcp_peer *peer = &comm->tcp->peer[rank];
    for (;;) {
        struct cr_tcp_frame frame;
        size_t              want = sizeof frame;
        if (peer->in_bytes >= want) {
            memcpy(&frame, peer->in, sizeof frame);
            if (frame.bytes && frame.bytes != sizeof(struct cr_comm_failure)) {
                report_lost(comm, rank, "sent an invalid message");
                peer->closed = true;
                return;
            }
            want += frame.bytes;
        }
        if (peer->in_bytes == want) {
            peer->in_bytes = 0;
            handle_frame(comm, rank, &frame, peer->in + sizeof frame);
            continue;
        }
        const ssize_t n = recv(peer->control, peer->in + peer->in_bytes, want - peer->in_bytes, MSG_DONTWAIT);
        if (n > 0) {
            peer->in_bytes += (size_t)n;
            peer->last_seen_ns = awake_ns;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        else if (n == 0 || errno != EINTR) {
            if (!atomic_load(&peer->left))
                report_lost(comm, rank, "ended unexpectedly: it was killed or crashed, or its machine failed");
            peer->closed = true;
            return;
        }
    }
}

static void send_heartbeat(struct cr_comm *comm, int64_t awake_ns) {
    if (comm->tcp->heartbeat_ns && awake_ns - comm->tcp->heartbeat_ns < INT64_C(1000000) * CR_COMM_HEARTBEAT_MS) return;
    comm->tcp->heartbeat_ns = CR_MAX(awake_ns, 1);
    send_frames(comm, (struct cr_tcp_frame){.kind = CR_TCP_HEARTBEAT}, NULL);
}

static void check_heartbeats(struct cr_comm *comm, int64_t awake_ns) {
    const int from = comm->options.rank ? 0 : 1, to = comm->options.rank ? 1 : comm->options.size;
    for (int r = from; r < to; r++) {
        const double silent = (double)(awake_ns - comm->tcp->peer[r].last_seen_ns) * 1e-9;
        if (atomic_load(&comm->tcp->peer[r].left) || silent < comm->options.timeout_s) continue;
        if (!atomic_load(&comm->closing)) cr_comm_raise_silent(comm, r, reporter_for(comm, r), silent);
        return;
    }
}

void cr_comm_tcp_watch(struct cr_comm *comm, int64_t awake_ns) {
    struct cr_comm_tcp *tcp  = comm->tcp;
    const int           from = comm->options.rank ? 0 : 1, to = comm->options.rank ? 1 : comm->options.size;
    struct pollfd       p[1 + 64];
    send_heartbeat(comm, awake_ns);
    for (int first = from; first < to; first += 64) { /* in groups of 64; only the last poll waits */
        const int count = CR_MIN(to - first, 64);
        for (int i = 0; i < count; i++)
            p[i] = (struct pollfd){.fd     = tcp->peer[first + i].closed ? -1 : tcp->peer[first + i].control,
                                   .events = POLLIN};
        p[count] = (struct pollfd){.fd = tcp->listen, .events = POLLIN};
        if (poll(p, (nfds_t)count + 1, first + count < to ? 0 : CR_COMM_HEARTBEAT_MS / 2) <= 0) continue;
        for (int i = 0; i < count; i++)
            if (p[i].revents) read_frames(comm, first + i, awake_ns);
        if (p[count].revents) cr_tcp_refuse_late(comm);
    }
    check_heartbeats(comm, awake_ns);
}

/* Reads and drops unread data before closing: otherwise TCP would discard the goodbye message. */
static void close_connection(int fd) {
    char unread[4096];
    if (fd < 0) return;
    shutdown(fd, SHUT_WR);
    while (recv(fd, unread, sizeof unread, MSG_DONTWAIT) > 0) {
    }
    close(fd);
}

void cr_comm_tcp_close(struct cr_comm *comm, bool success) {
    struct cr_comm_tcp *tcp = comm->tcp;
    if (!tcp) return;
    if (success) send_frames(comm, (struct cr_tcp_frame){.kind = CR_TCP_BYE}, NULL);
    const int peers = comm->options.rank ? 1 : comm->options.size;
    for (int r = 0; r < peers && tcp->peer; r++) {
        close_connection(tcp->peer[r].data);
        close_connection(tcp->peer[r].control);
    }
    if (tcp->listen >= 0) close(tcp->listen);
    pthread_mutex_destroy(&tcp->send);
    cr_free(tcp->chunk);
    cr_free(tcp->peer);
    cr_free(tcp);
    comm->tcp = NULL;
}
