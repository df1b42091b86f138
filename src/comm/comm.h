/* comm/comm.h: ranks: the processes of one run, what they say to each other through host memory, and what happens when
 * one of them dies. Gradients on GPUs do not come this way (NCCL does that); its id, hashes, metrics and gradients on
 * CPUs do.
 *
 * Two ways, one interface: shared memory where all ranks are on one host (comm/shared_memory.c), TCP through rank 0
 * where they are not (comm/tcp.c). Ranks may also be threads of one process: each opens a comm of its own.
 *
 * Laws
 *   - Every rank calls the same collectives, in the same order, with the same sizes, from one thread. What differs is
 * an error that names both ranks, never a hang.
 *   - Sums are taken in the order of the ranks: ((x0 + x1) + x2) + ..., whatever the way and the number of hosts: the
 * same ranks give the same bits.
 *   - A rank that fails, ends, is killed, is stopped or does not answer makes every call of every other rank fail with
 *     CR_ERR_PEER; the message names its rank, its host and the cause. After an error only abort and close are of use.
 *   - A thread in each process gives signs of life and looks at those of the others. If it learns of a failure and the
 *     process has not closed its comm CR_COMM_GRACE_S seconds later (stuck in a driver, say), it ends the process. A
 * process on this host that was found silent is killed.
 *   - Nothing has a name in the file system: no memory, no socket and no file is left behind, however a process ends.
 * Knows nothing of programs, devices or training. */
#ifndef CR_COMM_H
#define CR_COMM_H

#include "core/base.h"

enum {
    CR_COMM_NAME_MAX  = 64,
    CR_COMM_RANKS_MAX = 4096,
    CR_COMM_GRACE_S   = 5,
};

/* Where this rank is and how it finds the others. comm/launch/launcher.h fills it from the command line or a launcher's
 * variables. */
struct cr_comm_options {
    int    rank, size;
    int    local_rank, local_size;  /* on its host; -1: unknown, found when the ranks meet */
    char   group[CR_COMM_NAME_MAX]; /* tells launch groups on one machine apart: a host is a host name and a group */
    char   address[256];            /* of rank 0, for TCP; unused with `shared` */
    int    port;
    char   job[128];       /* names the run: a rank of another job is refused */
    void  *shared;         /* ranks forked by us or threads: memory of cr_comm_shared_new; else NULL */
    double rendezvous_s;   /* how long ranks wait for each other at start */
    double timeout_s;      /* without a sign of life for so long a rank is lost */
    double wait_timeout_s; /* how long to wait for a rank that lives but does not come; 0: for ever */
};

/* Who everybody is, the same table in all ranks. Hosts are numbered by their lowest rank. */
struct cr_comm_rank_info {
    int      local_rank, local_size, host;
    long     pid;
    uint64_t pid_space; /* processes have numbers in spaces (containers); 0: unknown */
    char     host_name[CR_COMM_NAME_MAX];
};

struct cr_comm;

/* Meets the others. CR_ERR_CONFIG for sizes, ranks, jobs or versions that do not fit (with both values), CR_ERR_IO for
 * addresses and ports (with what to do), CR_ERR_PEER when some do not come within rendezvous_s. size 1 needs nothing
 * else. */
CR_MUST cr_status cr_comm_open(const struct cr_comm_options *where, struct cr_comm **out);
/* The end of a run that went well, on every rank: others may go on until they close too. NULL is fine. After a failure:
 * only frees. */
void cr_comm_close(struct cr_comm *comm);
/* This rank cannot go on: the others fail with "rank R on HOST: WHY". From any thread; close must follow. NULL is fine.
 */
void cr_comm_abort(struct cr_comm *comm, const char *why);

int                             cr_comm_rank(const struct cr_comm *comm); /* NULL: 0 */
int                             cr_comm_size(const struct cr_comm *comm); /* NULL: 1 */
const struct cr_comm_rank_info *cr_comm_rank_info(const struct cr_comm *comm, int rank);
int                             cr_comm_hosts(const struct cr_comm *comm); /* how many */

/* ---- collectives; comm may be NULL, which is a run of one rank ---- */

CR_MUST cr_status cr_comm_barrier(struct cr_comm *comm);
/* `bytes` of root's data into everybody's. */
CR_MUST cr_status cr_comm_broadcast(struct cr_comm *comm, void *data, size_t bytes, int root);
/* `bytes` of every rank into everybody's `all`: rank r's at all + r * bytes. `mine` may lie in its place in `all`. */
CR_MUST cr_status cr_comm_all_gather(struct cr_comm *comm, const void *mine, size_t bytes, void *all);
enum cr_comm_type { CR_COMM_F32, CR_COMM_F64, CR_COMM_I64 };
/* data[i] becomes the sum over ranks, added in the type itself, in the order of the ranks. */
CR_MUST cr_status cr_comm_all_reduce(struct cr_comm *comm, void *data, size_t count, enum cr_comm_type type);
/* Is `bytes` of data the same on all ranks? CR_ERR_PEER that names the first rank that differs and `what` it is. */
CR_MUST cr_status cr_comm_same(struct cr_comm *comm, const void *data, size_t bytes, const char *what);

/* ---- between steps ---- */

/* What ranks may ask of all: bits. */
enum {
    CR_REQUEST_SAVE = 1, /* SIGUSR1 */
    CR_REQUEST_INT  = 2, /* SIGINT: save and end */
    CR_REQUEST_TERM = 4, /* SIGTERM: the same */
    CR_REQUEST_STOP = CR_REQUEST_INT | CR_REQUEST_TERM,
};
/* A vote that does not hold up the step: called by every rank before each step (and wherever else all of them pass),
 * with what this rank asks for now. *asked gets, on every rank in the same call, what any rank asked for CR_VOTE_LAG
 * calls ago; so all save or stop at the same step, and a rank waits only for one that is more than CR_VOTE_LAG calls
 * behind. Fails as cr_comm_check does. With one rank *asked = ask at once. */
enum { CR_VOTE_LAG = 2 };
CR_MUST cr_status cr_comm_vote(struct cr_comm *comm, uint32_t ask, uint32_t *asked);

/* Has anybody failed? Costs one load; for loops that wait for a device. From any thread. */
CR_MUST cr_status cr_comm_check(struct cr_comm *comm);
/* Called once, by the thread that watches, when a rank has failed: ends what this process may be stuck in (NCCL's
 * abort). It must return soon. Setting another one, or NULL, waits for a call that has begun: afterwards `context` may
 * go. If a failure came before the first was set, nobody calls it: ask cr_comm_check behind this. Not to be set by the
 * call itself. */
void cr_comm_on_failure(struct cr_comm *comm, void (*call)(void *context), void *context);
/* Does it fall to this rank to print what went wrong? To the rank that failed if it can, else to one other (one a host
 * if rank 0 is the one that is lost); to none where a parent of forked ranks prints it. */
bool cr_comm_reports_error(struct cr_comm *comm);

/* ---- memory for ranks that have a common parent ---- */

/* Made before the fork (or by the thread that starts the others); goes with the last process that has it. `size` ranks.
 */
CR_MUST cr_status cr_comm_shared_new(int size, void **out);
void              cr_comm_shared_free(void *shared);

#endif
