/* cli/report/report.c: cresnet report: a run as one HTML page. */
#include "cli/report/report.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct run {
    char             *dir;  /* with log.jsonl */
    char             *step; /* step folder (or the link `best`) whose weights and configuration are shown */
    char              step_name[64];
    struct cr_config  config;
    int               classes;
    struct cr_run_log log;
};

/* ---- finding things ---- */

static bool is_there(const char *dir, const char *name) {
    char        path[CR_PATH_MAX];
    struct stat st;
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && stat(path, &st) == 0 &&
           S_ISREG(st.st_mode);
}

/* The run folder, and of its checkpoints the best one, else the newest; or the step folder that was given, in its run.
 */
static cr_status find_run(const struct cr_args *args, struct run *run) {
    const char *given = args->operand[0];
    char        real[PATH_MAX], best[CR_PATH_MAX];
    struct stat st;
    if (stat(given, &st) != 0) return CR_FAIL(CR_ERR_IO, "%s: %s", given, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return cr_args_fail(args, "%s: not the folder of a run", given);
    if (is_there(given, "config.ini") && is_there(given, "model.safetensors")) {
        if (!realpath(given, real)) return CR_FAIL(CR_ERR_IO, "%s: %s", given, strerror(errno));
        run->step   = cr_strdup(given);
        char *slash = strrchr(real, '/');
        snprintf(run->step_name, sizeof run->step_name, "%.60s", slash + 1);
        *slash   = 0;
        run->dir = cr_strdup(*real ? real : "/");
        return run->step && run->dir ? CR_OK : CR_NO_MEMORY(sizeof real);
    }
    run->dir = cr_strdup(given);
    CR_TRY(cr_path_join(best, given, "best"));
    if (is_there(best, "config.ini"))
        run->step = cr_strdup(best);
    else
        CR_TRY(cr_ckpt_find(given, &run->step));
    if (!run->dir) return CR_NO_MEMORY(sizeof real);
    if (!run->step) return CR_FAIL(CR_ERR_CONFIG, "%s: no checkpoint in it: is it the folder of a run?", given);
    const char *name = realpath(run->step, real) ? strrchr(real, '/') : NULL;
    snprintf(run->step_name, sizeof run->step_name, "%.60s", name ? name + 1 : run->step);
    return CR_OK;
}

static cr_status open_run(const struct cr_args *args, struct run *run) {
    struct cr_cmd_source source = {0};
    char                 path[CR_PATH_MAX];
    cr_status            status;
    CR_TRY(find_run(args, run));
    CR_TRY(cr_path_join(path, run->step, "config.ini"));
    source.config = path;
    source.folder = run->step;
    CR_TRY(cr_cmd_config_open(args, &source, NULL, &run->config));
    status = cr_cmd_classes_of_weights(&run->config, &run->classes);
    if (status == CR_OK && is_there(run->dir, "log.jsonl")) {
        CR_TRY(cr_path_join(path, run->dir, "log.jsonl"));
        status = cr_run_log_read(path, &run->log);
    }
    return status;
}

static void close_run(struct run *run) {
    cr_run_log_free(&run->log);
    cr_config_close(&run->config);
    cr_free(run->dir);
    cr_free(run->step);
}

/* What cannot be shown is no reason to show nothing: its section says why. */
static cr_status forgive(cr_status status, struct cr_text *out) {
    if (status == CR_OK || status == CR_ERR_MEMORY || status == CR_ERR_INTERRUPTED) return status;
    cr_page_note(out, "Not available: %s", cr_error_message());
    cr_log(CR_LOG_WARN, "report: %s", cr_error_message());
    cr_error_clear();
    return CR_OK;
}

/* ---- the head ---- */

static void add_fact(struct cr_text *out, const char *name, const char *fmt, ...) CR_PRINTF(3, 4);
static void add_fact(struct cr_text *out, const char *name, const char *fmt, ...) {
    char    text[256];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    cr_text_add(out, "<div><dt>%s</dt><dd>", name);
    cr_page_escape(out, text);
    cr_text_add(out, "</dd></div>\n");
}

static double last_of(const struct cr_series *s) {
    return s->value[s->count - 1];
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const struct cr_series *s) {
    double *copy = cr_alloc((size_t)s->count, sizeof *copy), middle = 0;
    if (!copy) return 0;
    memcpy(copy, s->value, (size_t)s->count * sizeof *copy);
    qsort(copy, (size_t)s->count, sizeof *copy, compare_doubles);
    middle = copy[s->count / 2];
    cr_free(copy);
    return middle;
}

static double mean_of(const struct cr_series *s) {
    double sum = 0;
    for (int i = 0; i < s->count; i++) sum += s->value[i];
    return sum / s->count;
}

static const struct cr_series *series(const struct run *run, const char *name) {
    const struct cr_series *s = cr_run_log_find(&run->log, name);
    return s && s->count ? s : NULL;
}

static int best_of(const struct cr_series *s) {
    int best = 0;
    for (int i = 1; i < s->count; i++)
        if (s->value[i] > s->value[best]) best = i;
    return best;
}

static void add_facts(const struct run *run, const struct cr_model *model, struct cr_text *out) {
    const struct cr_series *top1 = series(run, "eval/top1"), *loss = series(run, "train/loss"),
                           *speed = series(run, "train/images_per_s");
    const struct cr_series *wait = series(run, "train/data_wait"), *epoch = series(run, "train/epoch"),
                           *ema = series(run, "eval/ema_top1");
    cr_text_add(out, "<dl class=\"facts\">\n");
    if (top1) {
        const int best = best_of(top1), ema_best = ema ? best_of(ema) : 0;
        add_fact(out, "best validation top-1", "%.2f %%", 100 * top1->value[best]);
        add_fact(out, "at step", "%.0f", top1->step[best]);
        if (ema) add_fact(out, "best of the averages", "%.2f %%", 100 * ema->value[ema_best]);
    }
    if (loss) {
        add_fact(out, "last training loss", "%.4f", last_of(loss));
        if (run->log.total_steps)
            add_fact(out, "steps done", "%.0f of %lld", loss->step[loss->count - 1], (long long)run->log.total_steps);
        else
            add_fact(out, "steps done", "%.0f", loss->step[loss->count - 1]);
    }
    if (epoch) add_fact(out, "epochs", "%.0f of %lld", last_of(epoch), (long long)run->config.train.epochs);
    if (speed) add_fact(out, "images/s, median", "%.0f", median_of(speed));
    if (wait) add_fact(out, "waiting for data", "%.2f %%", 100 * mean_of(wait));
    add_fact(out, "network", "%s", cr_word_arch(run->config.model.arch));
    if (model) add_fact(out, "parameters", "%.3f M", (double)cr_param_store_trainable(&model->store) * 1e-6);
    add_fact(out, "classes", "%d", run->classes);
    add_fact(out, "data", "%s", cr_word_data_kind(run->config.data.kind));
    add_fact(out, "batch", "%lld", (long long)(run->config.train.batch * run->config.train.accumulate));
    cr_text_add(out, "</dl>\n");
}

static void add_head(const struct run *run, struct cr_text *out) {
    static const char *const parts[][2] = {
        {"curves", "Curves"},   {"speed", "Speed"},       {"evaluation", "Evaluation"}, {"memory", "Memory"},
        {"profile", "Profile"}, {"sparsity", "Sparsity"}, {"config", "Configuration"}};
    char        real[PATH_MAX];
    const char *name = realpath(run->dir, real) ? strrchr(real, '/') + 1 : run->dir;
    cr_page_begin(out, *name ? name : run->dir);
    cr_text_add(out, "<header><h1>");
    cr_page_escape(out, *name ? name : run->dir);
    cr_text_add(out, "</h1>\n<p class=\"sub\">weights of ");
    cr_page_escape(out, run->step_name);
    if (*run->log.version) {
        cr_text_add(out, ", trained by cresnet ");
        cr_page_escape(out, run->log.version);
    }
    if (run->log.resumes) cr_text_add(out, ", resumed %lld times", (long long)run->log.resumes);
    cr_text_add(out, "</p>\n<nav aria-label=\"sections\">");
    for (size_t i = 0; i < CR_COUNT(parts); i++) cr_text_add(out, "<a href=\"#%s\">%s</a>", parts[i][0], parts[i][1]);
    cr_text_add(out, "</nav></header>\n");
}

/* ---- curves ---- */

static void add_eval_table(const struct run *run, struct cr_text *out) {
    const struct cr_series *top1 = series(run, "eval/top1"), *top5 = series(run, "eval/top5"),
                           *loss = series(run, "eval/loss");
    if (!top1) return;
    cr_text_add(out, "<details><summary>Evaluations as a table</summary><div "
                     "class=\"wide\"><table><tr><th>step</th><th>top-1</th><th>top-5</th><th>loss</th></tr>\n");
    for (int i = 0; i < top1->count; i++) {
        cr_text_add(out, "<tr><td>%.0f</td><td>%.2f %%</td>", top1->step[i], 100 * top1->value[i]);
        if (top5 && i < top5->count) cr_text_add(out, "<td>%.2f %%</td>", 100 * top5->value[i]);
        for (int k = 0; loss && k < loss->count; k++)
            if (loss->step[k] == top1->step[i]) cr_text_add(out, "<td>%.4f</td>", loss->value[k]);
        cr_text_add(out, "</tr>\n");
    }
    cr_text_add(out, "</table></div></details>\n");
}

static void add_curves(const struct run *run, struct cr_text *out) {
    const struct cr_series *loss     = series(run, "train/loss");
    const double            steps    = loss ? loss->step[loss->count - 1] : 0;
    struct cr_chart         charts[] = {
                {.title  = "Loss",
                 .unit   = "cross entropy",
                 .format = "%.4f",
                 .cut    = true,
                 .line   = {{"training", series(run, "train/loss"), 1, false},
                            {"validation", series(run, "eval/loss"), 1, true},
                            {"averages, validation", series(run, "eval/ema_loss"), 1, true}}},
                {.title     = "Accuracy",
                 .unit      = "%",
                 .format    = "%.2f %%",
                 .from_zero = true,
                 .line      = {{"training top-1", series(run, "train/top1"), 100, false},
                               {"validation top-1", series(run, "eval/top1"), 100, true},
                               {"validation top-5", series(run, "eval/top5"), 100, true},
                               {"averages, top-1", series(run, "eval/ema_top1"), 100, true}}},
                {.title     = "Learning rate",
                 .unit      = "",
                 .format    = "%.6g",
                 .from_zero = true,
                 .line      = {{"learning rate", series(run, "train/lr"), 1, false}}},
                {.title     = "Gradient norm",
                 .unit      = "",
                 .format    = "%.4g",
                 .from_zero = true,
                 .cut       = true,
                 .line      = {{"gradient norm", series(run, "train/grad_norm"), 1, false}}},
                {.title     = "Pruned",
                 .unit      = "% of the weights",
                 .format    = "%.2f %%",
                 .from_zero = true,
                 .line      = {{"sparsity", series(run, "prune/sparsity"), 100, false}}},
                {.title     = "Loss scale",
                 .unit      = "",
                 .format    = "%.0f",
                 .from_zero = true,
                 .line      = {{"loss scale", series(run, "train/loss_scale"), 1, false}}},
    };
    cr_page_section(out, "curves", "Curves");
    if (!loss && !series(run, "eval/top1")) cr_page_note(out, "No log.jsonl with training steps in %s.", run->dir);
    cr_text_add(out, "<div class=\"charts\">\n");
    for (size_t i = 0; i < CR_COUNT(charts); i++) {
        charts[i].steps = steps;
        cr_page_chart(out, &charts[i]);
    }
    cr_text_add(out, "</div>\n");
    add_eval_table(run, out);
    if (run->log.bad_lines)
        cr_page_note(out, "%lld of %lld lines of the log are no JSON and were left out.", (long long)run->log.bad_lines,
                     (long long)run->log.lines);
    cr_text_add(out, "</section>\n");
}

static void add_speed(const struct run *run, struct cr_text *out) {
    const struct cr_chart charts[] = {
        {.title     = "Throughput",
         .unit      = "images/s",
         .format    = "%.0f",
         .from_zero = true,
         .line      = {{"images/s", series(run, "train/images_per_s"), 1, false}}},
        {.title     = "Waiting for data",
         .unit      = "% of the time",
         .format    = "%.2f %%",
         .from_zero = true,
         .least_top = 5,
         .line      = {{"wait", series(run, "train/data_wait"), 100, false}}},
    };
    cr_page_section(out, "speed", "Speed");
    if (!series(run, "train/images_per_s")) cr_page_note(out, "Nothing in the log.");
    cr_text_add(out, "<div class=\"charts\">\n");
    for (size_t i = 0; i < CR_COUNT(charts); i++) cr_page_chart(out, &charts[i]);
    cr_text_add(out, "</div>\n</section>\n");
}

/* ---- what needs the network ---- */

/* The training program is compiled, not run. */
static cr_status add_memory(const struct run *run, struct cr_text *out) {
    const struct cr_session_options options = {.train = true, .classes = run->classes};
    struct cr_session               session;
    CR_TRY(cr_session_open(&run->config, &options, &session));
    cr_page_note(out, "The training step as it is planned for %s, batch %lld.", session.device->caps.text,
                 (long long)session.batch);
    cr_report_plan(out, &session.train[session.trains - 1], &session.model.store);
    cr_session_close(&session);
    return CR_OK;
}

static bool is_better(const struct cr_scores *a, const struct cr_scores *b) {
    return a->correct1 != b->correct1 ? a->correct1 > b->correct1 : a->loss_sum < b->loss_sum;
}

static void note_both(const struct run *run, const struct cr_scores *weights, const struct cr_scores *averages,
                      struct cr_text *out) {
    const double images = (double)CR_MAX(weights->images, 1);
    cr_page_note(out,
                 "Weights: top-1 %.2f %%, loss %.4f. Moving averages: top-1 %.2f %%, loss %.4f. What follows is of the "
                 "%s of %s.",
                 100 * (double)weights->correct1 / images, weights->loss_sum / images,
                 100 * (double)averages->correct1 / images, averages->loss_sum / images,
                 is_better(averages, weights) ? "averages" : "weights", run->step_name);
}

/* The weights, and the averages where the checkpoint has some: the page shows the better of both. */
static cr_status evaluate(const struct run *run, struct cr_session *session, const struct cr_dataset *dataset,
                          struct cr_text *out) {
    struct cr_text   both[2] = {0};
    struct cr_scores scores[2];
    char             averages[CR_PATH_MAX];
    int              shown = 0;
    cr_status        status;
    CR_TRY_OUT(cr_report_eval(&both[0], session, dataset, &scores[0]));
    if (strcmp(run->config.model.weights, run->step) == 0 && is_there(run->step, "ema.safetensors")) {
        CR_TRY_OUT(cr_path_join(averages, run->step, "ema.safetensors"));
        CR_TRY_OUT(cr_session_load_weights(session, averages, true));
        CR_TRY_OUT(cr_report_eval(&both[1], session, dataset, &scores[1]));
        note_both(run, &scores[0], &scores[1], out);
        shown = is_better(&scores[1], &scores[0]);
    }
    if (both[shown].data) cr_text_add_bytes(out, both[shown].data, both[shown].length);
    out->failed |= both[shown].failed;
out:
    for (int i = 0; i < 2; i++) cr_text_free(&both[i]);
    return status;
}

static cr_status add_evaluation(const struct cr_args *args, const struct run *run, struct cr_session *session,
                                struct cr_text *out) {
    struct cr_dataset *dataset;
    if (cr_args_has(args, CR_OPT_NO_EVAL)) {
        cr_page_note(out, "Left out (--no-eval).");
        return CR_OK;
    }
    CR_TRY(cr_dataset_open(&run->config, CR_SPLIT_VAL, &dataset));
    cr_status status = CR_OK;
    if (cr_dataset_classes(dataset) != run->classes)
        status = CR_FAIL(CR_ERR_CONFIG, "the data set has %d classes, the network %d", cr_dataset_classes(dataset),
                         run->classes);
    if (status == CR_OK) {
        cr_log(CR_LOG_INFO, "evaluating %lld pictures with %s on %s", (long long)cr_dataset_count(dataset),
               run->step_name, session->device->caps.text);
        status = evaluate(run, session, dataset, out);
    }
    cr_dataset_close(dataset);
    return status;
}

static cr_status add_profile(const struct cr_args *args, const struct run *run, struct cr_text *out) {
    const char *path = args->value[CR_OPT_PROFILE];
    char        beside[CR_PATH_MAX];
    if (path) return cr_report_profile(out, path); /* asked for: an error ends the command */
    if (!is_there(run->dir, "profile.jsonl")) {
        cr_page_note(out,
                     "None: cresnet profile RUN --json >RUN/profile.jsonl measures one, or --profile FILE names one.");
        return CR_OK;
    }
    CR_TRY(cr_path_join(beside, run->dir, "profile.jsonl"));
    return forgive(cr_report_profile(out, beside), out);
}

static cr_status add_config(const struct run *run, struct cr_text *out) {
    char path[CR_PATH_MAX], *text = NULL;
    CR_TRY(cr_path_join(path, run->step, "config.ini"));
    CR_TRY(cr_file_read(path, 1 << 20, &text, NULL));
    cr_page_section(out, "config", "Configuration");
    cr_text_add(out, "<pre>");
    cr_page_escape(out, text);
    cr_text_add(out, "</pre>\n</section>\n");
    cr_free(text);
    return CR_OK;
}

/* Sections in the order of the page; of the network's one session at a time is open. */
static cr_status write_page(const struct cr_args *args, const struct run *run, struct cr_text *out) {
    struct cr_session         session = {0};
    struct cr_text            body    = {0};
    struct cr_session_options options = {.eval = true, .execute = true, .classes = run->classes};
    cr_status                 status, opened;
    opened = cr_session_open(&run->config, &options, &session);
    if (opened == CR_OK) opened = cr_session_load_weights(&session, run->config.model.weights, true);
    add_head(run, out);
    add_facts(run, opened == CR_OK ? &session.model : NULL, out);
    add_curves(run, out);
    add_speed(run, out);
    cr_page_section(out, "evaluation", "Evaluation");
    CR_TRY_OUT(forgive(opened == CR_OK ? add_evaluation(args, run, &session, out) : opened, out));
    cr_page_section(&body, "sparsity", "Sparsity");
    if (opened == CR_OK)
        CR_TRY_OUT(forgive(cr_report_sparsity(&body, &session), &body));
    else
        cr_page_note(&body, "Not available: see the evaluation.");
    cr_session_close(&session);
    cr_text_add(out, "</section>\n");
    cr_page_section(out, "memory", "Memory");
    CR_TRY_OUT(forgive(add_memory(run, out), out));
    cr_text_add(out, "</section>\n");
    cr_page_section(out, "profile", "Profile");
    CR_TRY_OUT(add_profile(args, run, out));
    cr_text_add(out, "</section>\n");
    if (body.length) cr_text_add_bytes(out, body.data, body.length);
    cr_text_add(out, "</section>\n");
    out->failed |= body.failed;
    CR_TRY_OUT(add_config(run, out));
    cr_page_end(out);
out:
    cr_text_free(&body);
    cr_session_close(&session);
    return status;
}

/* ---- the command ---- */

cr_status cr_cmd_report(const struct cr_args *args, int *signal_taken) {
    struct run     run  = {0};
    struct cr_text page = {0};
    const char    *file = args->value[CR_OPT_EXPORT_FILE];
    char           path[CR_PATH_MAX];
    cr_status      status;
    (void)signal_taken;
    if (!args->operands) return cr_args_fail(args, "which run? Give its folder, e.g. checkpoints/demo");
    CR_TRY(cr_args_most(args, 1));
    CR_TRY_OUT(open_run(args, &run));
    CR_TRY_OUT(write_page(args, &run, &page));
    if (page.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: the page could not be put together");
    CR_TRY_OUT(cr_path_join(path, run.dir, "report.html"));
    if (!file) file = path;
    CR_TRY_OUT(cr_file_write_atomic(file, page.data, page.length));
    cr_log(CR_LOG_INFO, "%s: %.0f KB", file, (double)page.length * 1e-3);
out:
    cr_text_free(&page);
    close_run(&run);
    return status;
}
