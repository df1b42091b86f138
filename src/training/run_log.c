/* training/run_log.c: logs a run's start and end, unfrozen layers, and a changed image size. See training/run.h. */
#include "training/run.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void cr_run_log_setup(const struct cr_run *run) {
    const struct cr_session *s    = &run->session;
    struct cr_text           text = {0};
    cr_model_table(&s->model, &s->eval, &text);
    char *save = NULL; /* one log call for each line: the table of a deep network exceeds the length of a log message */
    for (char *line = text.failed ? NULL : strtok_r(text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        cr_log(CR_LOG_INFO, "%s", line);
    cr_text_free(&text);
    double pool           = (double)s->memory.bytes[CR_REGION_POOL] / (1 << 20),
           store          = (double)s->memory.bytes[CR_REGION_STORE] / (1 << 20);
    const char *precision = s->model.real == CR_F16    ? "fp16"
                            : s->model.real == CR_BF16 ? "bf16"
                            : s->device->options.tf32  ? "tf32"
                            : s->device->options.bf16  ? "bf16 convolutions"
                                                       : "fp32";
    cr_log(CR_LOG_INFO, "device  %s; %s; parameters and state %.1f MiB, activations %.1f MiB", s->device->caps.text,
           precision, store, pool);
    cr_log(CR_LOG_INFO,
           "run     batch size %" PRId64 ", accumulate %" PRId64 ", %" PRId64 " epochs of %" PRId64
           " steps, up to step %" PRId64 ", output %s",
           cr_run_batch(run), run->config->train.accumulate, run->config->train.epochs, run->at.steps_per_epoch,
           run->total_steps, run->dir);
    cr_log(CR_LOG_INFO, "Ctrl-C finishes the step, saves and stops; a second one stops at once.");
}

void cr_run_log_start(const struct cr_run *run, struct cr_report *report) {
    struct cr_json_writer w = cr_report_begin(report, run->from ? CR_EVENT_RESUME : CR_EVENT_START);
    cr_json_put_int(&w, "step", run->at.step);
    cr_json_put_int(&w, "total_steps", run->total_steps);
    cr_json_put_int(&w, "steps_per_epoch", run->at.steps_per_epoch);
    cr_json_put_int(&w, "time", (int64_t)time(NULL));
    cr_json_put_string(&w, "version", CR_VERSION);
    cr_report_end(report, &w, NULL);
}

/* Appends the names of the parts that are frozen. */
static void add_frozen(const struct cr_model *m, struct cr_text *out) {
    const char *between = "";
    for (int part = 0; part <= CR_STAGES_MAX + 1; part++) {
        if (!(m->frozen >> part & 1)) continue;
        if (part == 0 || part > CR_STAGES_MAX)
            cr_text_add(out, "%s%s", between, part ? "fc" : "stem");
        else
            cr_text_add(out, "%slayer%d", between, part);
        between = ",";
    }
}

void cr_run_log_size(const struct cr_run *run, bool start) {
    const struct cr_size_schedule *sizes = &run->session.state.sizes;
    const int64_t                  epoch = run->at.step / run->at.steps_per_epoch;
    const int                      k     = cr_size_index(sizes, epoch);
    if (sizes->count > 1 && (start || sizes->epoch[k] == epoch))
        cr_log(CR_LOG_INFO, "images  of %d pixels from epoch %" PRId64 " on", sizes->size[k], epoch + 1);
}

void cr_run_log_unfrozen(const struct cr_run *run, struct cr_report *report) {
    struct cr_text        text = {0};
    char                  human[256];
    struct cr_json_writer w = cr_report_begin(report, CR_EVENT_UNFREEZE);
    add_frozen(&run->session.model, &text);
    const char *frozen = text.failed || !text.length ? "" : text.data;
    cr_json_put_int(&w, "step", run->at.step);
    cr_json_put_string(&w, "frozen", frozen);
    snprintf(human, sizeof human, "unfreeze after epoch %" PRId64 ": %s%.100s", run->session.state.epoch,
             *frozen ? "still frozen: " : "all parts are trained", frozen);
    cr_report_end(report, &w, human);
    cr_text_free(&text);
}

void cr_run_log_end(const struct cr_run *run, struct cr_report *report, int ended_by,
                    const struct cr_best *early_best) {
    char human[PATH_MAX + 256], early[160] = "";
    if (early_best)
        snprintf(early, sizeof early,
                 "; stopped early: no better %s in %" PRId64 " evaluations (best: step %" PRId64 ", train.patience)",
                 cr_word_best_metric(run->config->train.best), (int64_t)run->config->train.patience, early_best->step);
    if (ended_by)
        snprintf(human, sizeof human, "stopped by signal %d after step %" PRId64 ", saved in %s; continue with %s",
                 ended_by, run->at.step, run->dir, run->continued_by);
    else
        snprintf(human, sizeof human, "done: step %" PRId64 ", saved in %s%s", run->at.step, run->dir, early);
    struct cr_json_writer w = cr_report_begin(report, ended_by ? CR_EVENT_STOPPED : CR_EVENT_DONE);
    cr_json_put_int(&w, "time", (int64_t)time(NULL));
    if (!ended_by && early_best) cr_json_put_bool(&w, "early", true);
    cr_report_end(report, &w, human);
}

void cr_run_log_failed(const struct cr_run *run, cr_status why) {
    char checkpoint[CR_RUN_LINK_BYTES];
    if (!cr_run_reports(run) || why == CR_ERR_CONFIG || why == CR_ERR_USAGE || why == CR_ERR_NUMERIC) return;
    cr_run_read_last_link(run->dir, checkpoint);
    if (*checkpoint)
        cr_log(CR_LOG_WARN, "the run failed; its checkpoint %s/%s is complete: %s continues there", run->dir,
               checkpoint, run->continued_by);
}
