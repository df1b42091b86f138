/* core/host.c: log lines and programming errors of the program. See core/host.h. */
#include "core/host.h"

#include <stdio.h>
#include <stdlib.h>

static char log_prefix[32];

void cr_log_prefix(const char *who) {
    snprintf(log_prefix, sizeof log_prefix, "%s", who);
}

void cr_host_log(enum cr_log_level level, const char *line) {
    static const char *const prefix[] = {"cresnet: error: ", "cresnet: warning: ", "", ""};
    /* one call, so that lines of two threads do not mix */
    fprintf(stderr, "%s%s%s\n", prefix[level], level >= CR_LOG_INFO ? "" : log_prefix, line);
}

bool cr_host_interrupted(void) {
    return false;
}

void cr_host_stop(const char *text) {
    fprintf(stderr, "cresnet: %s\nThis is a bug in cresnet; please report it.\n", text);
    abort();
}
