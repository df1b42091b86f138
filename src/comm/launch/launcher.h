/* comm/launch/launcher.h: finds this process's rank from a launcher's environment variables, or forks the ranks.
 *
 * Supported launchers: torchrun, Open MPI, MPICH and others with Hydra, srun. Without a launcher, one process per rank
 * is forked, and the parent process watches them.
 *
 * Invariants
 *   - Ranks are forked before the process has threads, devices or relevant open files.
 *   - The parent computes nothing: it forwards signals, waits, prints the single error message of a failed run and
 *     terminates ranks that do not exit. If the parent is killed, the ranks receive SIGTERM: they save and exit.
 *   - An error that another process prints has no message here (cr_error_message is empty): main then prints nothing.
 * This header does not depend on training. */
#ifndef CR_LAUNCHER_H
#define CR_LAUNCHER_H

#include "comm/comm.h"
#include "config/config.h"

struct cr_ranks_request {
    int  fork; /* number of ranks to fork; 0: use the launcher's variables, or one rank */
    bool gpus; /* the user gave the number as --gpus (for messages) */
};

struct cr_ranks {
    struct cr_comm *comm;   /* NULL for a run with one rank */
    bool            parent; /* this process forked the ranks, which have all ended */
    int             signal; /* parent: the signal that ended the run regularly; 0 if none */
};

/* Forks the ranks, or joins the ranks that a launcher has started. Returns in each rank with an open comm. In the
 * parent it returns after all ranks have ended, with `parent` set and the result of the run as its status. */
CR_MUST cr_status cr_ranks_open(const struct cr_ranks_request *request, const struct cr_config *config,
                                struct cr_ranks *out);
/* Ends a rank whose run returned `status`: reports an error to the other ranks and closes the comm. Returns the status;
 * its message starts with the rank's name, or is empty if another process prints it. No effect with one rank. */
cr_status cr_ranks_close(struct cr_ranks *ranks, cr_status status);

/* Fills `where` from the environment: rank 0 of 1 if no launcher is detected. *launcher is the launcher's name or "".
 * `get` is getenv or a test's function. CR_ERR_CONFIG for incomplete or inconsistent variables. */
typedef const char *cr_ranks_getenv(const char *name);
CR_MUST cr_status   cr_ranks_locate(cr_ranks_getenv *get, const struct cr_config *config, struct cr_comm_options *where,
                                    const char **launcher);
/* Writes the first host of a Slurm node list: "n[01-04,7],login1" -> "n01". CR_ERR_CONFIG. */
CR_MUST cr_status cr_ranks_first_host(const char *list, char *out, size_t size);

#endif
