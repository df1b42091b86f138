/* training/trace.c: writes the memory trace of a run ([memory] trace), the input of cresnet plan --trace. */
#include "core/output_file.h"
#include "inspect/memory_trace/memory_trace.h"
#include "training/run.h"

/* One warm-up iteration and two identical ones. */
enum { ITERATIONS = 3 };

/* The programs of an update in the order in which train_step runs them. */
static int programs_of(const struct cr_run *run, const struct cr_program **programs) {
    const struct cr_session *s     = &run->session;
    const int                parts = (int)run->config->train.accumulate;
    for (int i = 0; i < parts; i++) programs[i] = &s->train[parts == 1 || i == 0 ? 0 : i == parts - 1 ? 2 : 1];
    return parts;
}

cr_status cr_run_trace(const struct cr_run *run) {
    const char               *path = run->config->memory.trace;
    const struct cr_program **programs;
    struct cr_text            text = {0};
    struct cr_output_file     output;
    if (!*path) return CR_OK;
    CR_TRY(cr_output_file_find(path, CR_OUTPUT_TRACE, CR_OUTPUT_NO_FORCE, &output));
    CR_ALLOC(programs, (size_t)run->config->train.accumulate);
    cr_trace_write(programs, programs_of(run, programs), ITERATIONS, run->session.device->caps.alignment, &text);
    cr_status status = text.failed ? CR_FAIL(CR_ERR_MEMORY, "out of memory while writing %s", path)
                                   : cr_output_file_write(&output, text.data, text.length);
    if (status == CR_OK)
        cr_log(CR_LOG_INFO, "trace   %s: %d iterations of the step; cresnet plan --trace %s", path, ITERATIONS, path);
    cr_text_free(&text);
    cr_free(programs);
    return status;
}
