/* comm/launch/launcher.h: which rank this process is: read from a launcher's variables (torchrun, Open MPI, MPICH and
 * others with Hydra, srun), or made by forking one process a rank, which the first process then watches.
 *
 * Laws
 *   - Ranks are forked before anything else has happened in the process: no thread, no device, no open file that
 * matters.
 *   - The process that forked computes nothing: it passes signals on, waits, prints the one message of a run that
 * failed and ends the ranks that did not end by themselves. If it is killed, the ranks get SIGTERM: they save and end.
 *   - An error that another process prints has no message here (cr_error_message is empty): main then prints nothing.
 * Knows nothing of training. */
#ifndef CR_RANKS_H
#define CR_RANKS_H

#include "comm/comm.h"
#include "config/config.h"

struct cr_ranks_request {
    int  fork; /* ranks to fork here; 0: as the launcher's variables say, or one */
    bool gpus; /* they were asked for as GPUs (for messages) */
};

struct cr_ranks {
    struct cr_comm *comm;   /* NULL: a run of one rank */
    bool            parent; /* this process forked ranks, which have all ended */
    int             signal; /* parent: the signal that ended their run in order; 0: none */
};

/* Forks or joins. Returns in a rank with an open comm, and in the process that forked when all ranks have ended: with
 * `parent`, and what became of them as its status. */
CR_MUST cr_status cr_ranks_open(const struct cr_ranks_request *wish, const struct cr_config *config,
                                struct cr_ranks *out);
/* The end of a rank whose run returned `status`: tells the others if that is an error, closes the comm. Returns the
 * status, its message with the rank in front, or without a message where another process prints it. Nothing with one
 * rank. */
cr_status cr_ranks_close(struct cr_ranks *ranks, cr_status status);

/* Fills `where` from the environment: rank 0 of 1 when no launcher is recognised. *launcher: its name, "" for none. get
 * is getenv, or a test's. CR_ERR_CONFIG for variables that are incomplete or make no sense. */
typedef const char *cr_ranks_getenv(const char *name);
CR_MUST cr_status   cr_ranks_locate(cr_ranks_getenv *get, const struct cr_config *config, struct cr_comm_options *where,
                                    const char **launcher);
/* "n[01-04,7],login1" -> "n01". CR_ERR_CONFIG. */
CR_MUST cr_status cr_ranks_first_host(const char *list, char *out, size_t size);

#endif
