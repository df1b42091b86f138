/* comm/tcp.h: TCP between ranks without a common parent: every rank has two connections to rank 0.
 *
 * The data connection carries collectives and belongs to the thread that calls them. The control connection carries
 * heartbeats, votes, failures and goodbyes; the watcher thread reads it. Numbers have the machine's byte order; the
 * magic number detects a different byte order. */
#ifndef CR_COMM_TCP_H
#define CR_COMM_TCP_H

#include "comm/transport.h"

enum { CR_TCP_PROTOCOL = 1, CR_TCP_DATA = 0, CR_TCP_CONTROL = 1 };
#define CR_TCP_MAGIC UINT64_C(0x316b6e7274656e63) /* differs for another byte order */

/* The first message on a connection, and the reply. */
struct cr_tcp_hello {
    uint64_t magic;
    uint32_t protocol, channel;
    int32_t  rank, size, local_rank;
    uint32_t unused;
    int64_t  pid;
    uint64_t pid_space;
    char     version[32];
    char     job[128], group[CR_COMM_NAME_MAX], host_name[CR_COMM_NAME_MAX];
};
/* REFUSED_BY_FAILURE: refused, and rank 0 fails for the same reason and prints it. */
enum cr_tcp_answer_code { CR_TCP_WELCOME, CR_TCP_REFUSED, CR_TCP_REFUSED_BY_FAILURE };
struct cr_tcp_answer {
    uint64_t magic;
    uint32_t code, unused;
    char     text[CR_COMM_TEXT_MAX];
};

/* Header of a message on a control connection; `bytes` bytes of payload follow. */
enum cr_tcp_kind { CR_TCP_HEARTBEAT, CR_TCP_VOTE, CR_TCP_OUTCOME, CR_TCP_FAILURE, CR_TCP_BYE };
struct cr_tcp_frame {
    uint32_t kind, number, request, bytes;
};

struct cr_tcp_peer {
    int           data, control; /* descriptors; -1 if not connected */
    int64_t       last_seen_ns;  /* clock value (cr_comm_clock) of the last received data */
    bool          closed;        /* the control connection has ended */
    atomic_bool   left;          /* the peer said goodbye, or was given up */
    unsigned char in[sizeof(struct cr_tcp_frame) + sizeof(struct cr_comm_failure)]; /* incomplete frame */
    size_t        in_bytes;
    uint32_t      votes, request[8]; /* on rank 0: votes of that rank, under comm->lock */
};

struct cr_comm_tcp {
    struct cr_tcp_peer *peer;                 /* on rank 0: [size], entry 0 only used for votes; else [1]: rank 0 */
    int                 listen;               /* rank 0: stays open to refuse other jobs on this port with a reason */
    pthread_mutex_t     send;                 /* serialises frames on control connections */
    int64_t             heartbeat_ns;         /* clock value of the last heartbeat sent */
    uint32_t            outcomes, outcome[8]; /* number of finished votes; ring of their results */
    void               *chunk;                /* receive buffer of reductions */
};

/* ---- comm/tcp_io.c ---- */

/* Transfer all bytes. The functions stop early when the deadline (cr_time_ns; 0: none) passes, when the run fails (if
 * comm is not NULL) or when the connection ends. Return 0 or an errno: ETIMEDOUT, ECANCELED (the run failed),
 * ECONNRESET (also at the end of the stream). */
int cr_tcp_write(struct cr_comm *comm, int fd, const void *bytes, size_t count, int64_t deadline);
int cr_tcp_read(struct cr_comm *comm, int fd, void *bytes, size_t count, int64_t deadline);
int cr_tcp_poll_ms(int64_t deadline, int longest); /* remaining milliseconds, at most `longest` */

int64_t cr_tcp_wait_deadline(const struct cr_comm *comm); /* now + wait_timeout_s; 0: none */
/* Reports the failure that a failed read or write (errno `error`) of `rank` means. CR_ERR_PEER. */
cr_status cr_tcp_connection_failed(struct cr_comm *comm, int rank, int error, const char *doing);

void cr_tcp_hello_fill(const struct cr_comm *comm, uint32_t channel, struct cr_tcp_hello *hello);
void cr_tcp_options(int fd);
/* Resolves the address of rank 0. The caller frees *out with freeaddrinfo. CR_ERR_IO if it is unknown. */
struct addrinfo;
CR_MUST cr_status cr_tcp_resolve(const struct cr_comm *comm, struct addrinfo **out);

/* comm/tcp_control.c: votes between steps, see cr_comm_vote. */
cr_status cr_tcp_vote(struct cr_comm *comm, uint32_t number, uint32_t request, uint32_t *requests);

/* comm/tcp_listen.c: rank 0's side of the rendezvous: listens, accepts both connections of every rank, fills comm->info
 * and sends it to all. */
CR_MUST cr_status cr_tcp_listen_rendezvous(struct cr_comm *comm, int64_t deadline);
/* Refuses, with a reason, one connection that arrives after all ranks have connected. */
void cr_tcp_refuse_late(struct cr_comm *comm);

#endif
