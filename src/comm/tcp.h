/* comm/tcp.h: TCP between ranks that share no parent: all are connected to rank 0, each by two connections. One is for
 * collectives and belongs to the thread that calls them; the other carries signs of life, votes, failures and goodbyes,
 * and is read by the thread that watches. Numbers stand as the machine has them; the first word finds out who counts
 * otherwise. */
#ifndef CR_COMM_TCP_H
#define CR_COMM_TCP_H

#include "comm/transport.h"

enum { CR_TCP_PROTOCOL = 1, CR_TCP_DATA = 0, CR_TCP_CONTROL = 1 };
#define CR_TCP_MAGIC UINT64_C(0x316b6e7274656e63) /* also tells another byte order */

/* The first words of a connection, and the answer to them. */
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
/* TOLD: refused too, and rank 0 fails for the same reason and prints it. */
enum cr_tcp_answer_code { CR_TCP_WELCOME, CR_TCP_REFUSED, CR_TCP_REFUSED_BY_FAILURE };
struct cr_tcp_answer {
    uint64_t magic;
    uint32_t code, unused;
    char     text[CR_COMM_TEXT_MAX];
};

/* On the control connections: this, then `bytes`. */
enum cr_tcp_kind { CR_TCP_HEARTBEAT, CR_TCP_VOTE, CR_TCP_OUTCOME, CR_TCP_FAILURE, CR_TCP_BYE };
struct cr_tcp_frame {
    uint32_t kind, number, request, bytes;
};

struct cr_tcp_peer {
    int         data, control; /* descriptors, -1: none */
    int64_t     last_seen_ns;  /* awake time of the last word */
    bool        closed;        /* nothing more comes */
    atomic_bool left;          /* it said goodbye, or was given up */
    unsigned char
             in[sizeof(struct cr_tcp_frame) + sizeof(struct cr_comm_failure)]; /* of a frame that is not whole yet */
    size_t   in_bytes;
    uint32_t votes, request[8]; /* rank 0: of that rank, under comm->lock */
};

struct cr_comm_tcp {
    struct cr_tcp_peer *peer;   /* of rank 0: all ranks, its own unused but for votes; of others: rank 0's alone */
    int                 listen; /* rank 0: stays open, so that another job on this port hears why it cannot have it */
    pthread_mutex_t     send;   /* one frame at a time on control connections */
    int64_t             heartbeat_ns; /* awake time of the last sign of life */
    uint32_t            outcomes, outcome[8];
    void               *chunk;
};

/* All bytes, unless the deadline (cr_time_ns; 0: none) passes, the run fails (comm, may be NULL) or the other end does.
 * The functions give 0, or an errno: ETIMEDOUT, ECANCELED (the run has failed), ECONNRESET (also for an end of data).
 */
int cr_tcp_write(struct cr_comm *comm, int fd, const void *bytes, size_t count, int64_t deadline);
int cr_tcp_read(struct cr_comm *comm, int fd, void *bytes, size_t count, int64_t deadline);
int cr_tcp_poll_ms(int64_t deadline, int most); /* time left, at most `most` */

/* comm/tcp_listen.c: rank 0's part of meeting: listens, takes both connections of every rank, fills comm->place and
 * tells all. */
CR_MUST cr_status cr_tcp_listen_rendezvous(struct cr_comm *comm, int64_t deadline);
/* One connection that comes when all ranks are there already: refused with a reason. */
void cr_tcp_refuse_late(struct cr_comm *comm);

/* comm/rendezvous.c */
void cr_tcp_hello_fill(const struct cr_comm *comm, uint32_t channel, struct cr_tcp_hello *hello);
void cr_tcp_options(int fd);
/* Addresses of rank 0. *out: freeaddrinfo. CR_ERR_IO. */
struct addrinfo;
CR_MUST cr_status cr_tcp_resolve(const struct cr_comm *comm, struct addrinfo **out);

#endif
