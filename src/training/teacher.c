/* training/teacher.c: checks that a resumed run has the same teacher (knowledge distillation) as before. A checkpoint
 * has its hash, and its path in the configuration, but not its weights. */
#include "training/run.h"

#include <inttypes.h>

cr_status cr_run_check_teacher(struct cr_run *run, bool force) {
    const char        *path = run->config->distill.teacher;
    const uint64_t     hash = run->teacher ? run->teacher->hash : 0;
    struct cr_position old;
    if (!run->from) return CR_OK;
    CR_TRY(cr_state_position(run->from, &old));
    if (old.teacher == hash) return CR_OK;
    if (force) {
        cr_log(CR_LOG_WARN, "resume, forced: the teacher is not that of the checkpoint");
        return CR_OK;
    }
    if (!hash || !old.teacher)
        return CR_FAIL(CR_ERR_CONFIG,
                       "%s: this run %s a teacher until now: restore distill.teacher, or add --force to continue %s",
                       run->from, hash ? "had not" : "had", hash ? "with one" : "without it");
    return cr_config_fail(run->config, "distill.teacher",
                          "%s is not the network that %s was trained with (hash %016" PRIx64 ", before %016" PRIx64
                          "): restore it, name its copy, or add --force to continue with another teacher",
                          path, run->from, hash, old.teacher);
}
