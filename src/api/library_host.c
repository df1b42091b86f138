/* api/library_host.c: log lines, interruption and programming errors in the shared library, which never prints, exits
 * or aborts. Only the library contains this file, which replaces the functions of core/host.c when it is loaded. */
#include "api/model.h"
#include "core/host.h"

/* Threads that do not belong to a model have no place for log lines. */
static void library_log(enum cr_log_level level, const char *line) {
    const struct cresnet_model *model = cr_api_current();
    if (!model || !model->log) return;
    model->log(model->log_context, level <= CR_LOG_WARN ? CRESNET_LOG_WARNING : CRESNET_LOG_INFO, line);
}

static bool library_interrupted(void) {
    const struct cresnet_model *model = cr_api_current();
    return model && model->interrupt && model->interrupt(model->interrupt_context) != 0;
}

__attribute__((constructor)) static void on_load(void) {
    static const struct cr_host library = {library_log, library_interrupted, cr_api_abandon};
    cr_host_set(&library);
}
