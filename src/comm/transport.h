/* comm/transport.h: what the files of comm share: the state of a comm, how a failure is recorded and told, the two
 * ways. */
#ifndef CR_COMM_PARTS_H
#define CR_COMM_PARTS_H

#include "comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CR_COMM_TEXT_MAX = 2000, CR_COMM_HEARTBEAT_MS = 250 };

/* The first failure of a run, as all ranks get to know it. */
struct cr_comm_failure {
    int  rank;                   /* whose it is */
    int  silent;                 /* 1: it gives no sign of life, so it will not end by itself */
    int  reporter;               /* which rank prints it; -1: no rank, a parent does */
    char text[CR_COMM_TEXT_MAX]; /* the whole message */
};

/* A clock that stands still while this process is stopped or the machine sleeps: otherwise all ranks would seem lost to
 * each other afterwards. Advanced by the thread that watches. */
struct cr_comm_clock {
    int64_t last_ns, awake_ns;
};
int64_t cr_comm_clock_tick(struct cr_comm_clock *clock); /* ns awake so far */

struct cr_comm_shared_state;
struct cr_comm_tcp;

enum cr_comm_kind { CR_COMM_BARRIER, CR_COMM_BROADCAST, CR_COMM_GATHER, CR_COMM_REDUCE };
const char *cr_comm_kind_name(uint32_t kind);

/* What a rank is about to do; all ranks must say the same. */
struct cr_comm_call {
    uint32_t kind, detail; /* detail: root, or type */
    uint64_t number;       /* of this rank's collectives */
    uint64_t bytes;
};

struct cr_comm_transport {
    cr_status (*broadcast)(struct cr_comm *comm, const struct cr_comm_call *call, void *data);
    cr_status (*gather)(struct cr_comm *comm, const struct cr_comm_call *call, const void *mine, void *all);
    cr_status (*reduce)(struct cr_comm *comm, const struct cr_comm_call *call, void *data, size_t count);
    cr_status (*vote)(struct cr_comm *comm, uint32_t number, uint32_t ask, uint32_t *asked);
};

struct cr_comm {
    struct cr_comm_options          options;
    struct cr_comm_rank_info       *info; /* size */
    int                             hosts;
    const struct cr_comm_transport *transport;
    struct cr_comm_shared_state    *shared_state; /* NULL: the ranks share no memory */
    bool                            owns_shared_state;
    struct cr_comm_tcp             *tcp; /* NULL: ranks of one parent */
    uint64_t                        calls;
    uint32_t                        votes;

    pthread_mutex_t        lock;   /* of what follows, and of the votes of TCP */
    pthread_cond_t         change; /* a failure, an outcome of a vote */
    struct cr_comm_failure failure;
    atomic_bool            failed; /* `failure` is written and stays */
    void (*on_failure)(void *context);
    void *on_failure_context;
    bool  calling; /* on_failure is being called */

    pthread_t   watcher;
    bool        watched;
    atomic_bool closing;
};

/* ---- failures (comm/dispatch.c) ---- */

/* Records a failure in this process, if it is the first; wakes who waits. */
void cr_comm_record_failure(struct cr_comm *comm, const struct cr_comm_failure *failure);
/* Finds out who was first among all ranks, tells them, and records that one. Returns CR_ERR_PEER with its text. */
cr_status cr_comm_raise(struct cr_comm *comm, int rank, int speaker, const char *fmt, ...) CR_PRINTF(4, 5);
/* The same for a rank that has been silent for so long. */
void cr_comm_raise_silent(struct cr_comm *comm, int rank, int speaker, double silent_s);
void cr_comm_silent_text(struct cr_comm_failure *failure, const char *name, double silent_s);
/* CR_ERR_PEER with the recorded text. */
cr_status cr_comm_failed(struct cr_comm *comm);
/* Waits for a failure to be recorded, at most so long; false: none was. */
bool cr_comm_await_failure(struct cr_comm *comm, int milliseconds);
/* "rank 2 of 4 on gpu7 (process 4711)" */
const char *cr_comm_name(const struct cr_comm *comm, int rank, char *buf, size_t size);
uint64_t    cr_comm_pid_space(void); /* of this process */
/* The message for two ranks that call different things. */
cr_status cr_comm_mismatch(struct cr_comm *comm, int rank, const struct cr_comm_call *mine,
                           const struct cr_comm_call *theirs);

/* sum += x, in the given type */
void   cr_comm_add(void *sum, const void *x, size_t count, enum cr_comm_type type);
size_t cr_comm_type_bytes(enum cr_comm_type type);

/* ---- shared memory (comm/shared_memory.c) ---- */

extern const struct cr_comm_transport cr_comm_transport_shm;

size_t cr_comm_shared_state_bytes(int size);
/* Makes zeroed memory of cr_comm_shared_state_bytes a board. */
void cr_comm_shared_state_init(struct cr_comm_shared_state *board, int size, long parent);
bool cr_comm_shared_state_fits(const struct cr_comm_shared_state *board, int size);
/* Enters and waits for all others; fills comm->place where `places`. */
CR_MUST cr_status cr_comm_shared_state_rendezvous(struct cr_comm *comm, bool places);
void              cr_comm_shared_state_leave(struct cr_comm *comm);
/* Of several that claim one is first: into *failure, as it stands on the board, comes that one's. */
void cr_comm_shared_state_raise(struct cr_comm_shared_state *board, struct cr_comm_failure *failure);
/* By the thread that watches: sign of life, and a look at the others. `seen`: memory of the last looks, size entries.
 */
struct cr_comm_seen {
    int64_t heartbeat, at_ns;
};
void cr_comm_shared_state_watch(struct cr_comm *comm, struct cr_comm_seen *seen, int64_t awake_ns);
/* The first rank but `but` (-1: any) that has given no sign of life for so long; -1: none. */
int cr_comm_shared_state_silent(struct cr_comm_shared_state *board, int but, struct cr_comm_seen *seen,
                                int64_t awake_ns, double timeout_s, double *silent_s);
/* For a parent: has that rank taken its leave? What failed first, NULL: nothing. */
bool                          cr_comm_shared_state_has_left(struct cr_comm_shared_state *board, int rank);
const struct cr_comm_failure *cr_comm_shared_state_failure(struct cr_comm_shared_state *board);

/* ---- TCP (comm/tcp.c, comm/rendezvous.c) ---- */

extern const struct cr_comm_transport cr_comm_transport_tcp;

/* Meets over TCP: comm->tcp, comm->place. */
CR_MUST cr_status cr_comm_tcp_rendezvous(struct cr_comm *comm);
/* If all ranks are on one host: memory that they share becomes comm->board; stays NULL where that cannot be had. */
CR_MUST cr_status cr_comm_tcp_share(struct cr_comm *comm);
void              cr_comm_tcp_close(struct cr_comm *comm, bool well);
/* By the thread that watches: reads what others sent, sends signs of life, waits up to CR_COMM_HEARTBEAT_MS. */
void cr_comm_tcp_watch(struct cr_comm *comm, int64_t awake_ns);
/* To the others: rank 0 tells all, others tell rank 0 and wait for its verdict a moment. */
void cr_comm_tcp_raise(struct cr_comm *comm, const struct cr_comm_failure *failure);

#endif
