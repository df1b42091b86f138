/* comm/launch/launcher_internal.h: what comm/launch/launcher.c and comm/launch/fork.c share. */
#ifndef CR_RANKS_PARTS_H
#define CR_RANKS_PARTS_H

#include "comm/launch/launcher.h"

/* Forks `wish->fork` ranks; `where` has the times. See cr_ranks_open. */
CR_MUST cr_status cr_ranks_fork(const struct cr_ranks_request *wish, const struct cr_comm_options *where,
                                struct cr_ranks *out);
/* Log lines of this process name the rank. */
void cr_ranks_name_log(int rank);
/* "rank 2 of 4 on gpu7 (process 4711)": this one. */
const char *cr_ranks_name(const struct cr_comm *comm, char *buf, size_t size);

#endif
