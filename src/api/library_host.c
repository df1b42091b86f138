/* api/library_host.c: log lines, interruption and programming errors in the shared library, which never prints, exits
 * or aborts. In the library this file takes the place of core/host.c. */
#include "api/model.h"
#include "core/host.h"

/* Threads that do not belong to a model have no place for log lines. */
void cr_host_log(enum cr_log_level level, const char *line) {
    const struct cresnet_model *model = cr_api_current();
    if (!model || !model->log) return;
    model->log(model->log_context, level <= CR_LOG_WARN ? CRESNET_LOG_WARNING : CRESNET_LOG_INFO, line);
}

bool cr_host_interrupted(void) {
    const struct cresnet_model *model = cr_api_current();
    return model && model->interrupt && model->interrupt(model->interrupt_context) != 0;
}

void cr_host_stop(const char *text) {
    cr_api_abandon(text);
}
