/* comm/launch/launcher_internal.h: functions that comm/launch/launcher_variables.c and comm/launch/fork.c share. */
#ifndef CR_LAUNCHER_INTERNAL_H
#define CR_LAUNCHER_INTERNAL_H

#include "comm/launch/launcher.h"

/* Forks `request->fork` ranks; `where` has the timeouts. See cr_ranks_open. */
CR_MUST cr_status cr_ranks_fork(const struct cr_ranks_request *request, const struct cr_comm_options *where,
                                struct cr_ranks *out);
/* Adds the rank to the log lines of this process. */
void cr_ranks_name_log(int rank);

#endif
