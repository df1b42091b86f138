/* cli/report/report.c: cresnet report: writes one HTML page about a run. */
#include "cli/report/report.h"

#include "checkpoint/checkpoint.h"
#include "session/saved_model.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the run ---- */

/* Finds the run folder and the step folder. When the operand is a run folder, cr_cmd_checkpoint_find chooses the step
 * folder. When the operand is a step folder, its parent is the run folder. */
static cr_status find_run(const struct cr_args *args, int index, struct cr_report_run *run) {
    const char *given = args->operand[index];
    char        real[PATH_MAX];
    struct stat st;
    if (stat(given, &st) != 0) return CR_FAIL(CR_ERR_IO, "%s: %s", given, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return cr_args_fail(args, "%s: is not a run folder", given);
    if (cr_fs_has_file(given, "config.ini") && cr_fs_has_file(given, "model.safetensors")) {
        if (!realpath(given, real)) return CR_FAIL(CR_ERR_IO, "%s: %s", given, strerror(errno));
        char *slash = strrchr(real, '/');
        snprintf(run->step_name, sizeof run->step_name, "%.60s", slash + 1);
        *slash = 0;
        CR_TRY(cr_path_copy(run->step, given));
        return cr_path_copy(run->dir, *real ? real : "/");
    }
    CR_TRY(cr_path_copy(run->dir, given));
    CR_TRY(cr_cmd_checkpoint_find(args, given, run->step));
    if (!*run->step) return CR_FAIL(CR_ERR_CONFIG, "%s: no checkpoint found: is it a run folder?", given);
    const char *name = realpath(run->step, real) ? strrchr(real, '/') : NULL;
    snprintf(run->step_name, sizeof run->step_name, "%.60s", name ? name + 1 : run->step);
    return CR_OK;
}

cr_status cr_report_run_open(const struct cr_args *args, int index, struct cr_report_run *run) {
    struct cr_cmd_source source = {0};
    char                 path[CR_PATH_MAX];
    cr_status            status;
    CR_TRY(find_run(args, index, run));
    CR_TRY(cr_ckpt_verify_weights(run->step));
    CR_TRY(cr_path_join(source.config, run->step, "config.ini"));
    CR_TRY(cr_path_copy(source.folder, run->step));
    CR_TRY(cr_cmd_config_open(args, &source, NULL, &run->config));
    status = cr_saved_model_classes(run->config, &run->classes);
    if (status == CR_OK && cr_fs_has_file(run->dir, "log.jsonl")) {
        CR_TRY(cr_path_join(path, run->dir, "log.jsonl"));
        status = cr_run_log_read(path, &run->log);
    }
    return status;
}

void cr_report_run_close(struct cr_report_run *run) {
    cr_run_log_free(&run->log);
    cr_config_close(run->config);
}

/* Turns an error of one section into a note in that section, so that the page is written all the same. Out of memory
 * and signals stay errors. */
static cr_status note_error(cr_status status, struct cr_text *out) {
    if (status == CR_OK || status == CR_ERR_MEMORY || status == CR_ERR_INTERRUPTED) return status;
    cr_page_note(out, "Not available: %s", cr_error_message());
    cr_log(CR_LOG_WARN, "report: %s", cr_error_message());
    cr_error_clear();
    return CR_OK;
}

/* ---- sections that need the network ---- */

/* Memory plan of the training program, which is compiled but not run. */
static cr_status add_memory(const struct cr_report_run *run, struct cr_text *out) {
    const struct cr_session_options options = {.train = true, .classes = run->classes};
    struct cr_session               session;
    CR_TRY(cr_session_open(run->config, &options, &session));
    cr_page_note(out, "Memory plan of the training step on %s, batch %lld.", session.device->caps.text,
                 (long long)session.state.batch);
    cr_report_plan(out, &session.train[session.trains - 1], &session.model.store);
    cr_session_close(&session);
    return CR_OK;
}

static void note_scores(const struct cr_report_run *run, const struct cr_scores *weights,
                        const struct cr_scores *averages, struct cr_text *out) {
    cr_page_note(out,
                 "Weights: %s %.2f %%, loss %.4f. Moving averages: %s %.2f %%, loss %.4f. The rest of this section is "
                 "about the moving averages of %s.",
                 cr_report_metric(run), 100 * cr_scores_accuracy(weights), cr_scores_loss(weights),
                 cr_report_metric(run), 100 * cr_scores_accuracy(averages), cr_scores_loss(averages), run->step_name);
}

static cr_status evaluate_once(const struct cr_report_run *run, struct cr_text *out, struct cr_session *session,
                               const struct cr_dataset *dataset, struct cr_scores *scores) {
    if (run->config->data.multi_label)
        return cr_report_labels(out, session, run->config->model.weights, dataset, scores);
    return cr_report_eval(out, session, dataset, scores);
}

/* Evaluates the chosen weights. When these are moving averages, the weights are evaluated before, and the page gives
 * both scores. */
static cr_status evaluate(const struct cr_report_run *run, struct cr_session *session, const struct cr_dataset *dataset,
                          struct cr_text *out) {
    struct cr_text   page = {0}, unused = {0};
    struct cr_scores scores, weights_scores;
    char             averages[CR_PATH_MAX];
    cr_status        status;
    CR_TRY_OUT(cr_path_join(averages, run->step, "ema.safetensors"));
    const bool averaged = strcmp(run->config->model.weights, averages) == 0;
    if (averaged) {
        CR_TRY_OUT(cr_session_load_weights(session, run->step, true));
        CR_TRY_OUT(evaluate_once(run, &unused, session, dataset, &weights_scores));
        CR_TRY_OUT(cr_session_load_weights(session, averages, true));
    }
    CR_TRY_OUT(evaluate_once(run, &page, session, dataset, &scores));
    if (averaged) note_scores(run, &weights_scores, &scores, out);
    if (page.data) cr_text_add_bytes(out, page.data, page.length);
    out->failed |= page.failed;
out:
    cr_text_free(&page);
    cr_text_free(&unused);
    return status;
}

static cr_status add_evaluation(const struct cr_args *args, const struct cr_report_run *run, struct cr_session *session,
                                struct cr_text *out) {
    struct cr_dataset *dataset;
    if (cr_args_has(args, CR_OPT_NO_EVAL)) {
        cr_page_note(out, "Skipped (--no-eval).");
        return CR_OK;
    }
    CR_TRY(cr_dataset_open(run->config, CR_SPLIT_VAL, &dataset));
    cr_status status = CR_OK;
    if (dataset->classes != run->classes)
        status = CR_FAIL(CR_ERR_CONFIG, "the dataset has %d classes, but the network has %d", dataset->classes,
                         run->classes);
    if (status == CR_OK) status = cr_saved_model_number_classes(run->config, dataset, true, CR_CMD_SCORES_BY_NUMBER);
    if (status == CR_OK) {
        cr_log(CR_LOG_INFO, "evaluating %lld images with %s on %s", (long long)dataset->count, run->step_name,
               session->device->caps.text);
        status = evaluate(run, session, dataset, out);
    }
    cr_dataset_close(dataset);
    return status;
}

static cr_status add_config(const struct cr_report_run *run, struct cr_text *out) {
    char path[CR_PATH_MAX], *text = NULL;
    CR_TRY(cr_path_join(path, run->step, "config.ini"));
    CR_TRY(cr_file_read(path, 1 << 20, &text, NULL));
    cr_page_closed_section(out, "config", "Configuration", "config.ini of the checkpoint");
    cr_text_add(out, "<pre>");
    cr_page_escape(out, text);
    cr_text_add(out, "</pre>\n" CR_PAGE_CLOSED_END);
    cr_free(text);
    return CR_OK;
}

/* Writes all sections. Only one session is open at a time: the sparsity section, which comes last, is computed with the
 * session of the evaluation. */
static cr_status write_page(const struct cr_args *args, const struct cr_report_run *run, struct cr_text *out) {
    struct cr_session         session  = {0};
    struct cr_text            sparsity = {0};
    struct cr_session_options options  = {.eval = true, .execute = true, .classes = run->classes};
    cr_status                 status, opened;
    opened = cr_session_open(run->config, &options, &session);
    if (opened == CR_OK) opened = cr_session_load_weights(&session, run->config->model.weights, true);
    cr_report_header(run, out);
    cr_report_facts(run, opened == CR_OK ? &session.model : NULL, out);
    cr_report_curves(run, out);
    cr_report_speed(run, out);
    cr_page_section(out, "evaluation", "Evaluation");
    CR_TRY_OUT(note_error(opened == CR_OK ? add_evaluation(args, run, &session, out) : opened, out));
    cr_page_closed_section(&sparsity, "sparsity", "Sparsity", "weights that are 0, by layer");
    if (opened == CR_OK)
        CR_TRY_OUT(note_error(cr_report_sparsity(&sparsity, &session), &sparsity));
    else
        cr_page_note(&sparsity, "Not available: see the section Evaluation.");
    cr_session_close(&session);
    cr_text_add(out, "</section>\n");
    cr_page_closed_section(out, "memory", "Memory", "the plan of the training step");
    CR_TRY_OUT(note_error(add_memory(run, out), out));
    cr_text_add(out, CR_PAGE_CLOSED_END);
    if (sparsity.length) cr_text_add_bytes(out, sparsity.data, sparsity.length);
    cr_text_add(out, CR_PAGE_CLOSED_END);
    out->failed |= sparsity.failed;
    CR_TRY_OUT(add_config(run, out));
    cr_page_end(out);
out:
    cr_text_free(&sparsity);
    cr_session_close(&session);
    return status;
}

/* ---- the command ---- */

cr_status cr_cmd_report(const struct cr_args *args, struct cr_result *out) {
    struct cr_report_run run  = {0};
    struct cr_text       page = {0};
    const char          *file = args->value[CR_OPT_EXPORT_FILE];
    char                 path[CR_PATH_MAX];
    cr_status            status;
    /* RUN/report.html lies in a folder that somebody else may have made: a link there may name any file */
    const unsigned        flags = CR_OUTPUT_NO_LINK | (cr_args_has(args, CR_OPT_REPLACE) ? CR_OUTPUT_FORCE : 0);
    struct cr_output_file default_file;
    (void)out; /* writes files */
    if (!args->operands || !*args->operand[0])
        return cr_args_fail(args, "no run given: give a run folder, e.g. checkpoints/demo");
    if (cr_args_has(args, CR_OPT_COMPARE)) return cr_report_compare(args);
    if (args->operands > 1 && cr_fs_is_dir(args->operand[1]))
        return cr_args_fail(args, "%s: a report shows one run: --compare shows several on one page", args->operand[1]);
    CR_TRY(cr_args_max_operands(args, 1));
    if (file) CR_TRY(cr_cmd_output_check(args, file, CR_OUTPUT_REPORT));
    CR_TRY_OUT(cr_report_run_open(args, 0, &run));
    CR_TRY_OUT(cr_path_join(path, run.dir, "report.html"));
    if (!file) CR_TRY_OUT(cr_output_file_find(path, CR_OUTPUT_REPORT, flags, &default_file));
    CR_TRY_OUT(write_page(args, &run, &page));
    if (page.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while writing the page");
    const size_t bytes = page.length;
    if (file)
        CR_TRY_OUT(cr_cmd_write_file(args, file, CR_OUTPUT_REPORT, &page));
    else
        CR_TRY_OUT(cr_output_file_write(&default_file, page.data, page.length));
    if (!file) file = path;
    cr_log(CR_LOG_INFO, "%s: %.0f KB", cr_cmd_is_stdout(file) ? "standard output" : file, (double)bytes * 1e-3);
out:
    cr_text_free(&page);
    cr_report_run_close(&run);
    return status;
}
