/* core/host.h: what the process around this code provides: where log lines go, who can interrupt a download, and what
 * happens at a programming error.
 *
 * The functions of the program are in core/host.c: it prints to standard error, ends by a signal, and aborts. Those of
 * the shared library are in api/library_host.c: it never prints, and asks the caller of cresnet_open. In a wheel the
 * program is a part of the library. */
#ifndef CR_HOST_H
#define CR_HOST_H

#include "core/base.h"

struct cr_host {
    /* Writes one log line, which has no control characters except newlines. Thread-safe. */
    void (*log)(enum cr_log_level level, const char *line);
    /* True if the work that this thread does is no longer wanted. */
    bool (*interrupted)(void);
    /* A programming error, which `text` describes. Does not return. */
    void (*stop)(const char *text);
};

/* Replaces the functions; NULL: those of the program, which are also the default. To be called before other threads
 * start. */
void cr_host_set(const struct cr_host *host);

/* The functions of the process. */
void           cr_host_log(enum cr_log_level level, const char *line);
bool           cr_host_interrupted(void);
_Noreturn void cr_host_stop(const char *text);

#endif
