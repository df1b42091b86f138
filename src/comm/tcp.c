/* comm/tcp.c: collectives, votes and the watch over TCP, for ranks on several hosts. See comm/tcp.h.
 *
 * A collective goes up to rank 0 and comes back: every rank sends what it calls and its part, rank 0 takes them in the
 * order of the ranks and answers all. Sums are added by rank 0, so their order is that of the ranks. Large ones go in
 * chunks: this is the slow way; gradients of GPUs do not come here. */
#include "comm/tcp.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20, VOTES_KEPT = 8, VERDICT_MS = 2000, LAST_WORD_MS = 1500 };

/* ---- whole reads and writes ---- */

int cr_tcp_poll_ms(int64_t deadline, int most) {
    if (!deadline) return most;
    const int64_t left = (deadline - cr_time_ns()) / 1000000 + 1;
    return left < 0 ? 0 : left > most ? most : (int)left;
}

/* 0: try again; else an errno. */
static int wait_ready(struct cr_comm *comm, int fd, short events, int64_t deadline) {
    struct pollfd p = {.fd = fd, .events = events};
    if (comm && atomic_load(&comm->failed)) return ECANCELED;
    if (deadline && cr_time_ns() > deadline) return ETIMEDOUT;
    return poll(&p, 1, cr_tcp_poll_ms(deadline, 100)) < 0 && errno != EINTR ? errno : 0;
}

int cr_tcp_write(struct cr_comm *comm, int fd, const void *bytes, size_t count, int64_t deadline) {
    const char *p = bytes;
    while (count) {
        const ssize_t n = send(fd, p, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            p += n;
            count -= (size_t)n;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return errno == EPIPE ? ECONNRESET : errno;
        const int error = wait_ready(comm, fd, POLLOUT, deadline);
        if (error) return error;
    }
    return 0;
}

int cr_tcp_read(struct cr_comm *comm, int fd, void *bytes, size_t count, int64_t deadline) {
    char *p = bytes;
    while (count) {
        const ssize_t n = recv(fd, p, count, MSG_DONTWAIT);
        if (n > 0) {
            p += n;
            count -= (size_t)n;
            continue;
        }
        if (n == 0) return ECONNRESET;
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return errno;
        const int error = wait_ready(comm, fd, POLLIN, deadline);
        if (error) return error;
    }
    return 0;
}

static int64_t patience_deadline(const struct cr_comm *comm) {
    return comm->options.wait_timeout_s > 0 ? cr_time_ns() + (int64_t)(comm->options.wait_timeout_s * 1e9) : 0;
}

/* What a failed read or write in a collective means. The thread that watches may know it better in a moment. */
static cr_status data_trouble(struct cr_comm *comm, int rank, int error, const char *doing) {
    char name[200];
    if (error == ECANCELED || atomic_load(&comm->failed)) return cr_comm_failed(comm);
    cr_comm_name(comm, rank, name, sizeof name);
    if (error == ETIMEDOUT)
        return cr_comm_raise(comm, rank, comm->options.rank,
                             "%s lives, but rank %d has waited %.0f s for it in %s: it hangs, or it does something "
                             "long (then raise ranks.patience)",
                             name, comm->options.rank, comm->options.wait_timeout_s, doing);
    if (cr_comm_await_failure(comm, LAST_WORD_MS)) return cr_comm_failed(comm);
    return cr_comm_raise(comm, rank, comm->options.rank,
                         "%s has ended its run, or lost its connection, while rank %d waits for it in %s: %s", name,
                         comm->options.rank, doing, strerror(error));
}

static cr_status up_down_write(struct cr_comm *comm, int rank, const void *bytes, size_t count,
                               const struct cr_comm_call *call) {
    const int error = cr_tcp_write(comm, comm->tcp->peer[rank].data, bytes, count, patience_deadline(comm));
    return error ? data_trouble(comm, rank, error, cr_comm_kind_name(call->kind)) : CR_OK;
}

static cr_status up_down_read(struct cr_comm *comm, int rank, void *bytes, size_t count,
                              const struct cr_comm_call *call) {
    const int error = cr_tcp_read(comm, comm->tcp->peer[rank].data, bytes, count, patience_deadline(comm));
    return error ? data_trouble(comm, rank, error, cr_comm_kind_name(call->kind)) : CR_OK;
}

/* ---- collectives ---- */

static bool same_call(const struct cr_comm_call *a, const struct cr_comm_call *b) {
    return a->kind == b->kind && a->detail == b->detail && a->number == b->number && a->bytes == b->bytes;
}

/* What all call goes up; rank 0 compares. */
static cr_status agree(struct cr_comm *comm, const struct cr_comm_call *call) {
    if (comm->options.rank) return up_down_write(comm, 0, call, sizeof *call, call);
    for (int r = 1; r < comm->options.size; r++) {
        struct cr_comm_call theirs;
        CR_TRY(up_down_read(comm, r, &theirs, sizeof theirs, call));
        if (!same_call(call, &theirs)) return cr_comm_mismatch(comm, r, call, &theirs);
    }
    return CR_OK;
}

static cr_status to_all(struct cr_comm *comm, const struct cr_comm_call *call, const void *data, size_t bytes,
                        int but) {
    for (int r = 1; r < comm->options.size; r++)
        if (r != but) CR_TRY(up_down_write(comm, r, data, bytes, call));
    return CR_OK;
}

static cr_status tcp_broadcast(struct cr_comm *comm, const struct cr_comm_call *call, void *data) {
    const int root = (int)call->detail;
    CR_TRY(agree(comm, call));
    if (comm->options.rank == 0) {
        if (root) CR_TRY(up_down_read(comm, root, data, call->bytes, call));
        return to_all(comm, call, data, call->bytes, root);
    }
    return comm->options.rank == root ? up_down_write(comm, 0, data, call->bytes, call)
                                      : up_down_read(comm, 0, data, call->bytes, call);
}

static cr_status tcp_gather(struct cr_comm *comm, const struct cr_comm_call *call, const void *mine, void *all) {
    const size_t bytes = call->bytes, total = bytes * (size_t)comm->options.size;
    uint64_t     go = call->number; /* the answer to a barrier */
    CR_TRY(agree(comm, call));
    if (comm->options.rank) {
        if (bytes) CR_TRY(up_down_write(comm, 0, mine, bytes, call));
        return bytes ? up_down_read(comm, 0, all, total, call) : up_down_read(comm, 0, &go, sizeof go, call);
    }
    if (!bytes) return to_all(comm, call, &go, sizeof go, 0);
    if (all != mine) memmove(all, mine, bytes);
    for (int r = 1; r < comm->options.size; r++)
        CR_TRY(up_down_read(comm, r, (char *)all + (size_t)r * bytes, bytes, call));
    return to_all(comm, call, all, total, 0);
}

static cr_status reduce_chunk(struct cr_comm *comm, const struct cr_comm_call *call, void *data, size_t count) {
    const size_t bytes = count * cr_comm_type_bytes((enum cr_comm_type)call->detail);
    if (comm->options.rank) {
        CR_TRY(up_down_write(comm, 0, data, bytes, call));
        return up_down_read(comm, 0, data, bytes, call);
    }
    for (int r = 1; r < comm->options.size; r++) {
        CR_TRY(up_down_read(comm, r, comm->tcp->chunk, bytes, call));
        cr_comm_add(data, comm->tcp->chunk, count, (enum cr_comm_type)call->detail);
    }
    return to_all(comm, call, data, bytes, 0);
}

static cr_status tcp_reduce(struct cr_comm *comm, const struct cr_comm_call *call, void *data, size_t count) {
    const size_t each = cr_comm_type_bytes((enum cr_comm_type)call->detail), most = CHUNK_BYTES / each;
    if (!comm->tcp->chunk && !(comm->tcp->chunk = cr_alloc(CHUNK_BYTES, 1))) return CR_NO_MEMORY(CHUNK_BYTES);
    CR_TRY(agree(comm, call));
    for (size_t at = 0; at < count; at += most)
        CR_TRY(reduce_chunk(comm, call, (char *)data + at * each, CR_MIN(most, count - at)));
    return CR_OK;
}

/* ---- frames on the control connections ---- */

/* A small frame to one rank. Trouble is left to the thread that watches: it sees the connection end. */
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
        cr_comm_record_failure(comm, failure); /* first: the verdict is what rank 0 has recorded */
    send_frames(comm, frame, comm->options.rank ? failure : &comm->failure);
    const bool watches = comm->watched && pthread_equal(pthread_self(), comm->watcher);
    if (comm->options.rank && comm->watched && !watches) cr_comm_await_failure(comm, VERDICT_MS);
}

/* ---- votes: to rank 0, which tells all what came of them ---- */

/* Rank 0, with the lock: the outcome of every vote that all have cast. *from, *to: which are new. */
static void count_votes(struct cr_comm *comm, uint32_t *from, uint32_t *to) {
    struct cr_comm_tcp *tcp = comm->tcp;
    uint32_t            all = tcp->peer[0].votes;
    for (int r = 1; r < comm->options.size; r++)
        if ((int32_t)(tcp->peer[r].votes - all) < 0) all = tcp->peer[r].votes;
    *from = tcp->outcomes;
    *to   = all;
    for (uint32_t n = *from; n != *to; n++) {
        uint32_t asked = 0;
        for (int r = 0; r < comm->options.size; r++) asked |= tcp->peer[r].request[n % VOTES_KEPT];
        tcp->outcome[n % VOTES_KEPT] = asked;
    }
    tcp->outcomes = all;
    if (*from != *to) pthread_cond_broadcast(&comm->change);
}

static void take_vote(struct cr_comm *comm, int rank, uint32_t number, uint32_t ask) {
    uint32_t from, to, outcome[VOTES_KEPT];
    pthread_mutex_lock(&comm->lock);
    comm->tcp->peer[rank].request[number % VOTES_KEPT] = ask;
    comm->tcp->peer[rank].votes                        = number + 1;
    count_votes(comm, &from, &to);
    memcpy(outcome, comm->tcp->outcome, sizeof outcome);
    pthread_mutex_unlock(&comm->lock);
    for (uint32_t n = from; n != to; n++)
        send_frames(
            comm, (struct cr_tcp_frame){.kind = CR_TCP_OUTCOME, .number = n, .request = outcome[n % VOTES_KEPT]}, NULL);
}

static void take_outcome(struct cr_comm *comm, uint32_t number, uint32_t asked) {
    pthread_mutex_lock(&comm->lock);
    comm->tcp->outcome[number % VOTES_KEPT] = asked;
    if ((int32_t)(number + 1 - comm->tcp->outcomes) > 0) comm->tcp->outcomes = number + 1;
    pthread_cond_broadcast(&comm->change);
    pthread_mutex_unlock(&comm->lock);
}

/* Whom this rank would wait for: rank 0; of rank 0 a rank that has not voted. Under the lock. */
static int behind_in_vote(const struct cr_comm *comm, uint32_t number) {
    for (int r = 1; comm->options.rank == 0 && r < comm->options.size; r++)
        if ((int32_t)(comm->tcp->peer[r].votes - number) <= 0) return r;
    return 0;
}

static cr_status wait_outcome(struct cr_comm *comm, uint32_t number, uint32_t *asked) {
    const int64_t deadline = patience_deadline(comm);
    for (;;) {
        pthread_mutex_lock(&comm->lock);
        const int  behind = behind_in_vote(comm, number);
        const bool left   = (comm->options.rank || behind) &&
                          atomic_load(&comm->tcp->peer[behind].left); /* its last outcomes came before */
        const bool there = (int32_t)(comm->tcp->outcomes - number) > 0;
        if (there) *asked = comm->tcp->outcome[number % VOTES_KEPT];
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 1;
        if (!there && !left && !atomic_load(&comm->failed)) pthread_cond_timedwait(&comm->change, &comm->lock, &until);
        pthread_mutex_unlock(&comm->lock);
        if (there) return CR_OK;
        CR_TRY(cr_comm_check(comm));
        if (left) return data_trouble(comm, behind, ECONNRESET, "the vote between steps");
        if (deadline && cr_time_ns() > deadline) return data_trouble(comm, behind, ETIMEDOUT, "the vote between steps");
    }
}

static cr_status tcp_vote(struct cr_comm *comm, uint32_t number, uint32_t ask, uint32_t *asked) {
    if (comm->options.rank)
        send_frame(comm, 0, (struct cr_tcp_frame){.kind = CR_TCP_VOTE, .number = number, .request = ask}, NULL);
    else
        take_vote(comm, 0, number, ask);
    *asked = 0;
    return number < CR_VOTE_LAG ? CR_OK : wait_outcome(comm, number - CR_VOTE_LAG, asked);
}

const struct cr_comm_transport cr_comm_transport_tcp = {tcp_broadcast, tcp_gather, tcp_reduce, tcp_vote};

/* ---- the thread that watches ---- */

/* Which rank prints that another one is lost: rank 0; where that is the lost one, the first other of each host. With a
 * board whoever is first there. */
static int speaker_for(const struct cr_comm *comm, int lost) {
    if (comm->shared_state) return comm->options.rank;
    if (lost) return 0;
    for (int r = 1; r < comm->options.size; r++)
        if (comm->info[r].host == comm->info[comm->options.rank].host) return r;
    return comm->options.rank;
}

static void lose(struct cr_comm *comm, int rank, const char *how) {
    char name[200];
    if (atomic_load(&comm->closing) || atomic_load(&comm->failed)) return;
    cr_status status =
        cr_comm_raise(comm, rank, speaker_for(comm, rank), "%s %s", cr_comm_name(comm, rank, name, sizeof name), how);
    (void)status;
}

static void take_frame(struct cr_comm *comm, int rank, const struct cr_tcp_frame *frame, const void *more) {
    struct cr_comm_failure failure;
    switch (frame->kind) {
    case CR_TCP_VOTE:
        if (comm->options.rank == 0) take_vote(comm, rank, frame->number, frame->request);
        break;
    case CR_TCP_OUTCOME: take_outcome(comm, frame->number, frame->request); break;
    case CR_TCP_BYE: atomic_store(&comm->tcp->peer[rank].left, true); break;
    case CR_TCP_FAILURE:
        memcpy(&failure, more, sizeof failure);
        failure.text[sizeof failure.text - 1] = 0;
        if (comm->options.rank == 0)
            cr_comm_tcp_raise(comm, &failure);
        else
            cr_comm_record_failure(comm, &failure);
        break;
    default: break; /* a sign of life */
    }
}

/* Reads what is there of one rank's frames. */
static void hear(struct cr_comm *comm, int rank, int64_t awake_ns) {
    struct cr_tcp_peer *peer = &comm->tcp->peer[rank];
    for (;;) {
        struct cr_tcp_frame frame;
        size_t              want = sizeof frame;
        if (peer->in_bytes >= want) {
            memcpy(&frame, peer->in, sizeof frame);
            if (frame.bytes && frame.bytes != sizeof(struct cr_comm_failure)) {
                lose(comm, rank, "sends what no rank would send");
                peer->closed = true;
                return;
            }
            want += frame.bytes;
        }
        if (peer->in_bytes == want) {
            peer->in_bytes = 0;
            take_frame(comm, rank, &frame, peer->in + sizeof frame);
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
                lose(comm, rank, "has ended without a word: it was killed, or it crashed, or its machine did");
            peer->closed = true;
            return;
        }
    }
}

static void beat(struct cr_comm *comm, int64_t awake_ns) {
    if (comm->tcp->heartbeat_ns && awake_ns - comm->tcp->heartbeat_ns < INT64_C(1000000) * CR_COMM_HEARTBEAT_MS) return;
    comm->tcp->heartbeat_ns = CR_MAX(awake_ns, 1);
    send_frames(comm, (struct cr_tcp_frame){.kind = CR_TCP_HEARTBEAT}, NULL);
}

static void look_for_silence(struct cr_comm *comm, int64_t awake_ns) {
    const int from = comm->options.rank ? 0 : 1, to = comm->options.rank ? 1 : comm->options.size;
    for (int r = from; r < to; r++) {
        const double silent = (double)(awake_ns - comm->tcp->peer[r].last_seen_ns) * 1e-9;
        if (atomic_load(&comm->tcp->peer[r].left) || silent < comm->options.timeout_s) continue;
        if (!atomic_load(&comm->closing)) cr_comm_raise_silent(comm, r, speaker_for(comm, r), silent);
        return;
    }
}

void cr_comm_tcp_watch(struct cr_comm *comm, int64_t awake_ns) {
    struct cr_comm_tcp *tcp  = comm->tcp;
    const int           from = comm->options.rank ? 0 : 1, to = comm->options.rank ? 1 : comm->options.size;
    struct pollfd       p[1 + 64];
    beat(comm, awake_ns);
    for (int first = from; first < to; first += 64) { /* of more than 64, the last wait is the only one */
        const int count = CR_MIN(to - first, 64);
        for (int i = 0; i < count; i++)
            p[i] = (struct pollfd){.fd     = tcp->peer[first + i].closed ? -1 : tcp->peer[first + i].control,
                                   .events = POLLIN};
        p[count] = (struct pollfd){.fd = tcp->listen, .events = POLLIN};
        if (poll(p, (nfds_t)count + 1, first + count < to ? 0 : CR_COMM_HEARTBEAT_MS / 2) <= 0) continue;
        for (int i = 0; i < count; i++)
            if (p[i].revents) hear(comm, first + i, awake_ns);
        if (p[count].revents) cr_tcp_refuse_late(comm);
    }
    look_for_silence(comm, awake_ns);
}

/* What lies there unread is read first: else the system would take the goodbye back. */
static void hang_up(int fd) {
    char rest[4096];
    if (fd < 0) return;
    shutdown(fd, SHUT_WR);
    while (recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0) {
    }
    close(fd);
}

void cr_comm_tcp_close(struct cr_comm *comm, bool well) {
    struct cr_comm_tcp *tcp = comm->tcp;
    if (!tcp) return;
    if (well) send_frames(comm, (struct cr_tcp_frame){.kind = CR_TCP_BYE}, NULL);
    const int peers = comm->options.rank ? 1 : comm->options.size;
    for (int r = 0; r < peers; r++) {
        hang_up(tcp->peer[r].data);
        hang_up(tcp->peer[r].control);
    }
    if (tcp->listen >= 0) close(tcp->listen);
    pthread_mutex_destroy(&tcp->send);
    cr_free(tcp->chunk);
    cr_free(tcp->peer);
    cr_free(tcp);
    comm->tcp = NULL;
}
