/* core/host.h: what the process around this code provides: where log lines go, who can interrupt a download, and what
 * happens at a programming error.
 *
 * The program defines these functions in core/host.c: it prints to standard error, ends by a signal, and aborts. The
 * shared library defines them in api/library_host.c: it never prints, and asks the caller of cresnet_open. */
#ifndef CR_HOST_H
#define CR_HOST_H

#include "core/base.h"

/* Writes one log line, which has no control characters except newlines. Thread-safe. */
void cr_host_log(enum cr_log_level level, const char *line);
/* True if the work that this thread does is no longer wanted. */
bool cr_host_interrupted(void);
/* A programming error, which `text` describes. */
_Noreturn void cr_host_stop(const char *text);

#endif
