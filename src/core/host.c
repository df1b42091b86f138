/* core/host.c: log lines and programming errors of the program. See core/host.h. */
#include "core/host.h"

#include <stdio.h>
#include <stdlib.h>

static char log_prefix[32];

void cr_log_prefix(const char *who) {
    snprintf(log_prefix, sizeof log_prefix, "%s", who);
}

static void program_log(enum cr_log_level level, const char *line) {
    static const char *const prefix[] = {"cresnet: error: ", "cresnet: warning: ", "", ""};
    /* one call, so that lines of two threads do not mix */
    fprintf(stderr, "%s%s%s\n", prefix[level], level >= CR_LOG_INFO ? "" : log_prefix, line);
}

static bool program_interrupted(void) {
    return false;
}

static void program_stop(const char *text) {
    fprintf(stderr, "cresnet: %s\nThis is a bug in cresnet; please report it.\n", text);
}

static const struct cr_host  program = {program_log, program_interrupted, program_stop};
static const struct cr_host *host    = &program;

void cr_host_set(const struct cr_host *other) {
    host = other ? other : &program;
}

void cr_host_log(enum cr_log_level level, const char *line) {
    host->log(level, line);
}

bool cr_host_interrupted(void) {
    return host->interrupted();
}

void cr_host_stop(const char *text) {
    host->stop(text);
    abort(); /* the library's function does not return */
}
