/* comm/transport.h: internals that the files of comm/ share: the state of a comm, failures, the two transports. */
#ifndef CR_COMM_TRANSPORT_H
#define CR_COMM_TRANSPORT_H

#include "comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CR_COMM_TEXT_MAX = 2000, CR_COMM_HEARTBEAT_MS = 250 };

/* The first failure of a run. All ranks receive the same one. */
struct cr_comm_failure {
    int  rank;                   /* the rank that failed */
    int  silent;                 /* 1: the rank sends no heartbeat, so it does not exit by itself */
    int  reporter;               /* the rank that prints the message; -1: the parent process prints it */
    char text[CR_COMM_TEXT_MAX]; /* the complete message */
};

/* A clock that stops while this process is stopped or the machine sleeps: otherwise all ranks would seem lost to each
 * other afterwards. The watcher thread advances it. */
struct cr_comm_clock {
    int64_t last_ns, awake_ns;
};
int64_t cr_comm_clock_tick(struct cr_comm_clock *clock); /* advances the clock; returns awake_ns */

struct cr_comm_shared_state;
struct cr_comm_tcp;

enum cr_comm_kind { CR_COMM_BARRIER, CR_COMM_BROADCAST, CR_COMM_GATHER, CR_COMM_REDUCE };
const char *cr_comm_kind_name(uint32_t kind);

/* Description of a collective call; all ranks must call with the same values. */
struct cr_comm_call {
    uint32_t kind, detail; /* detail: root rank, or element type */
    uint64_t number;       /* index of this collective */
    uint64_t bytes;
};

struct cr_comm_transport {
    cr_status (*broadcast)(struct cr_comm *comm, const struct cr_comm_call *call, void *data);
    cr_status (*gather)(struct cr_comm *comm, const struct cr_comm_call *call, const void *mine, void *all);
    cr_status (*reduce)(struct cr_comm *comm, const struct cr_comm_call *call, void *data, size_t count);
    cr_status (*vote)(struct cr_comm *comm, uint32_t number, uint32_t request, uint32_t *requests);
};

struct cr_comm {
    struct cr_comm_options          options;
    struct cr_comm_rank_info       *info; /* [size] */
    int                             hosts;
    const struct cr_comm_transport *transport;
    struct cr_comm_shared_state    *shared_state; /* NULL if the ranks share no memory */
    bool                            owns_shared_state;
    struct cr_comm_tcp             *tcp; /* NULL for ranks of one parent */
    uint64_t                        calls;
    uint32_t                        votes;

    pthread_mutex_t        lock;   /* protects the members below, and the votes of TCP */
    pthread_cond_t         change; /* signals a failure or the result of a vote */
    struct cr_comm_failure failure;
    atomic_bool            failed; /* `failure` is written and does not change any more */
    void (*on_failure)(void *context);
    void *on_failure_context;
    bool  calling; /* on_failure is running */

    pthread_t            watcher;
    bool                 watched;
    struct cr_comm_seen *seen; /* [size], of the watcher thread */
    atomic_bool          closing;
};

/* ---- failures (comm/failure.c) ---- */

/* Records a failure in this process if it is the first, and wakes waiting threads. */
void cr_comm_record_failure(struct cr_comm *comm, const struct cr_comm_failure *failure);
/* Determines the first failure among all ranks, sends it to them and records it. Returns CR_ERR_PEER with its text.
 * `reporter` is the rank that prints the message. */
cr_status cr_comm_raise(struct cr_comm *comm, int rank, int reporter, const char *fmt, ...) CR_PRINTF(4, 5);
/* Like cr_comm_raise, for a rank without a heartbeat for silent_s seconds. */
void cr_comm_raise_silent(struct cr_comm *comm, int rank, int reporter, double silent_s);
void cr_comm_silent_text(struct cr_comm_failure *failure, const char *name, double silent_s);
/* Returns CR_ERR_PEER with the recorded text. */
cr_status cr_comm_failed(struct cr_comm *comm);
/* Waits until a failure is reported; false after `milliseconds` without one. */
bool cr_comm_await_failure(struct cr_comm *comm, int milliseconds);
/* Writes "rank 2 of 4 on gpu7 (process 4711)" to buf. Returns buf. */
const char *cr_comm_name(const struct cr_comm *comm, int rank, char *buf, size_t size);
uint64_t    cr_comm_pid_space(void); /* PID namespace of this process; 0 if unknown */
/* Checks that another rank calls the same collective. CR_ERR_PEER, which is reported to all ranks. */
CR_MUST cr_status cr_comm_same_call(struct cr_comm *comm, int rank, const struct cr_comm_call *mine,
                                    const struct cr_comm_call *theirs);
/* Sets *at to a time `milliseconds` from now, on the clock of cr_comm.change. */
struct timespec;
void cr_comm_deadline_after(struct timespec *at, int milliseconds);

/* ---- comm/watcher.c ---- */

/* Starts the watcher thread. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_comm_start_watcher(struct cr_comm *comm);

/* ---- comm/dispatch.c ---- */

/* sum[i] += x[i] in the given type */
void   cr_comm_add(void *sum, const void *x, size_t count, enum cr_comm_type type);
size_t cr_comm_type_bytes(enum cr_comm_type type);

/* ---- shared memory (comm/shared_memory.c) ---- */

extern const struct cr_comm_transport cr_comm_transport_shm;

size_t cr_comm_shared_state_bytes(int size);
/* Initialises zeroed memory of cr_comm_shared_state_bytes. `parent`: process that prints failures; 0 if the ranks
 * do. */
void cr_comm_shared_state_init(struct cr_comm_shared_state *state, int size, long parent);
bool cr_comm_shared_state_fits(const struct cr_comm_shared_state *state, int size);
/* Enters this rank and waits for all other ranks; fills comm->info if `places`. CR_ERR_PEER, CR_ERR_CONFIG. */
CR_MUST cr_status cr_comm_shared_state_rendezvous(struct cr_comm *comm, bool places);
void              cr_comm_shared_state_leave(struct cr_comm *comm);
/* Records *failure in the shared state. If another rank was first, *failure becomes that rank's failure. */
void cr_comm_shared_state_raise(struct cr_comm_shared_state *state, struct cr_comm_failure *failure);
/* Called by the watcher thread: sends a heartbeat and checks the other ranks. */
void cr_comm_shared_state_watch(struct cr_comm *comm, int64_t awake_ns);
/* The heartbeats of a rank at the last check. */
struct cr_comm_seen {
    int64_t heartbeat, at_ns;
};
/* Returns the first rank except `except` (-1: no exception) without a heartbeat for timeout_s seconds; -1 if none.
 * `seen`: [size]. */
int cr_comm_shared_state_silent(struct cr_comm_shared_state *state, int except, struct cr_comm_seen *seen,
                                int64_t awake_ns, double timeout_s, double *silent_s);
/* For a parent process. The first function returns whether the rank has closed its comm; the second returns the first
 * failure of the run, or NULL. */
bool                          cr_comm_shared_state_has_left(struct cr_comm_shared_state *state, int rank);
const struct cr_comm_failure *cr_comm_shared_state_failure(struct cr_comm_shared_state *state);

/* ---- TCP (comm/tcp.c, comm/tcp_control.c, comm/rendezvous.c) ---- */

extern const struct cr_comm_transport cr_comm_transport_tcp;

/* The rendezvous over TCP: creates comm->tcp and fills comm->info. */
CR_MUST cr_status cr_comm_tcp_rendezvous(struct cr_comm *comm);
/* If all ranks are on one host, sets comm->shared_state to shared memory; it stays NULL if that is impossible. */
CR_MUST cr_status cr_comm_tcp_share(struct cr_comm *comm);
void              cr_comm_tcp_close(struct cr_comm *comm, bool well);
/* Called by the watcher thread: reads control messages, sends heartbeats, waits up to CR_COMM_HEARTBEAT_MS. */
void cr_comm_tcp_watch(struct cr_comm *comm, int64_t awake_ns);
/* Sends a failure: rank 0 to all ranks; another rank to rank 0, whose decision it awaits for a short time. */
void cr_comm_tcp_raise(struct cr_comm *comm, const struct cr_comm_failure *failure);

#endif
