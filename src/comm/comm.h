/* comm/comm.h: communication between the ranks (processes) of a run through host memory, and failure detection.
 *
 * GPU gradients do not use this interface (NCCL transfers them). NCCL's id, hashes, metrics and CPU gradients use it.
 * There are two transports: shared memory if all ranks are on one host (comm/shared_memory.c), TCP through rank 0
 * otherwise (comm/tcp.c). Ranks may also be threads of one process, each with its own comm.
 *
 * Invariants
 *   - Every rank calls the same collectives in the same order with the same sizes, from one thread. A difference is an
 *     error that names both ranks; the run never hangs.
 *   - Sums are computed in rank order, ((x0 + x1) + x2) + ..., for every transport and number of hosts: the same number
 *     of ranks gives bitwise identical results.
 *   - If a rank fails, exits, is killed, is stopped or does not respond, every call of every other rank fails with
 *     CR_ERR_PEER; the message names the rank, its host and the cause. After an error only abort and close are useful.
 *   - A watcher thread in each process sends heartbeats and checks those of the other ranks. If the process has not
 *     closed its comm CR_COMM_GRACE_S seconds after a failure (because it is stuck in a driver, for example), the
 *     watcher terminates the process. A process on this host without a heartbeat is killed.
 *   - Nothing has a name in the file system: memory, sockets and files disappear with the processes.
 * This header does not depend on programs, devices or training. */
#ifndef CR_COMM_H
#define CR_COMM_H

#include "core/base.h"

enum {
    CR_COMM_NAME_MAX  = 64,
    CR_COMM_RANKS_MAX = 4096,
    CR_COMM_GRACE_S   = 5,
};

/* The rank of this process and how it reaches the other ranks. comm/launch/launcher.h fills it from the command line or
 * a launcher's environment variables. */
struct cr_comm_options {
    int    rank, size;
    int    local_rank, local_size;  /* on its host; -1 if unknown: the rendezvous then determines them */
    char   group[CR_COMM_NAME_MAX]; /* launch group: ranks share a host if host name and group are equal */
    char   address[256];            /* of rank 0, for TCP; unused with `shared` */
    int    port;                    /* of rank 0, for TCP */
    char   job[128];                /* name of the run: rank 0 rejects ranks of another job */
    void  *shared;                  /* forked ranks or threads: memory from cr_comm_shared_new; else NULL */
    double rendezvous_s;            /* timeout of the rendezvous, seconds */
    double timeout_s;               /* a rank without a heartbeat for this time is lost, seconds */
    double wait_timeout_s;          /* timeout for a live rank that is late in a collective, seconds; 0: none */
};

/* Host and process of a rank; all ranks have the same table. Hosts are numbered in the order of their lowest rank. */
struct cr_comm_rank_info {
    int      local_rank, local_size, host;
    long     pid;
    uint64_t pid_space; /* PID namespace (containers); 0 if unknown */
    char     host_name[CR_COMM_NAME_MAX];
};

struct cr_comm;

/* Connects to all other ranks. CR_ERR_CONFIG: sizes, ranks, jobs or versions do not match (the message has both
 * values); CR_ERR_IO: address or port problems; CR_ERR_PEER: ranks are missing after rendezvous_s. With size 1 there is
 * no communication. The caller closes *out with cr_comm_close. */
CR_MUST cr_status cr_comm_open(const struct cr_comm_options *where, struct cr_comm **out);
/* Leaves a successful run and frees the comm; other ranks may continue until they close too. After a failure it only
 * frees. NULL is allowed. */
void cr_comm_close(struct cr_comm *comm);
/* Reports that this rank failed: the other ranks fail with "rank R on HOST: WHY". Callable from any thread; close must
 * follow. NULL is allowed. */
void cr_comm_abort(struct cr_comm *comm, const char *why);

int                             cr_comm_rank(const struct cr_comm *comm); /* 0 for NULL */
int                             cr_comm_size(const struct cr_comm *comm); /* 1 for NULL */
const struct cr_comm_rank_info *cr_comm_rank_info(const struct cr_comm *comm, int rank);
int                             cr_comm_hosts(const struct cr_comm *comm); /* number of hosts */

/* ---- collectives; comm may be NULL for a run with one rank ---- */

CR_MUST cr_status cr_comm_barrier(struct cr_comm *comm);
/* Copies `bytes` bytes of root's data to all ranks. */
CR_MUST cr_status cr_comm_broadcast(struct cr_comm *comm, void *data, size_t bytes, int root);
/* Gathers `bytes` bytes of every rank: the bytes of rank r are at all + r * bytes. `mine` may be this rank's part of
 * `all`. */
CR_MUST cr_status cr_comm_all_gather(struct cr_comm *comm, const void *mine, size_t bytes, void *all);
enum cr_comm_type { CR_COMM_F32, CR_COMM_F64, CR_COMM_I64 };
/* Replaces data[i] by the sum over all ranks, computed in the given type in rank order. */
CR_MUST cr_status cr_comm_all_reduce(struct cr_comm *comm, void *data, size_t count, enum cr_comm_type type);
/* Checks that `bytes` bytes of data are equal on all ranks. CR_ERR_PEER names the first rank that differs and
 * `what`. */
CR_MUST cr_status cr_comm_same(struct cr_comm *comm, const void *data, size_t bytes, const char *what);

/* ---- between steps ---- */

/* Requests that a rank may make; bits. */
enum {
    CR_REQUEST_SAVE = 1, /* SIGUSR1 */
    CR_REQUEST_INT  = 2, /* SIGINT: save and stop */
    CR_REQUEST_TERM = 4, /* SIGTERM: save and stop */
    CR_REQUEST_STOP = CR_REQUEST_INT | CR_REQUEST_TERM,
};
/* A vote that does not delay the step. Every rank calls it before each step (and at other points that all ranks pass)
 * with its own request bits. On every rank, the same call sets *requests to the union of the requests of CR_VOTE_LAG
 * calls ago. All ranks therefore save or stop at the same step, and a rank waits only for a rank that is more than
 * CR_VOTE_LAG calls behind. Errors as cr_comm_check. With one rank *requests = request immediately. */
enum { CR_VOTE_LAG = 2 };
CR_MUST cr_status cr_comm_vote(struct cr_comm *comm, uint32_t request, uint32_t *requests);

/* Fails with CR_ERR_PEER if a rank has failed. Costs one load; for loops that wait for a device. Thread-safe. */
CR_MUST cr_status cr_comm_check(struct cr_comm *comm);
/* Sets a callback that the watcher thread calls once when a rank fails, to unblock this process (NCCL's abort). The
 * callback must return soon and must not set a callback. Setting another callback, or NULL, waits for a running call,
 * so `context` may be freed afterwards. A failure before the first callback was set does not call it: call
 * cr_comm_check after this function. */
void cr_comm_on_failure(struct cr_comm *comm, void (*call)(void *context), void *context);
/* True if this rank must print the error: the failed rank itself if it can, else one other rank (one per host if rank 0
 * is lost). False on all ranks if the parent of forked ranks prints it. */
bool cr_comm_reports_error(struct cr_comm *comm);

/* ---- memory for ranks with a common parent ---- */

/* Allocates shared memory for `size` ranks, before the fork or before the threads start. It disappears with the last
 * process that has it mapped. */
CR_MUST cr_status cr_comm_shared_new(int size, void **out);
void              cr_comm_shared_free(void *shared);

#endif
