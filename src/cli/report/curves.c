/* cli/report/curves.c: sections of the report that come from log.jsonl: header, facts, training curves, speed. */
#include "cli/report/report.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- header and facts ---- */

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

static double median_of(const struct cr_series *s) {
    double *copy = cr_alloc((size_t)s->count, sizeof *copy), middle = 0;
    if (!copy) return 0;
    memcpy(copy, s->value, (size_t)s->count * sizeof *copy);
    qsort(copy, (size_t)s->count, sizeof *copy, cr_compare_doubles);
    middle = copy[s->count / 2];
    cr_free(copy);
    return middle;
}

static double mean_of(const struct cr_series *s) {
    double sum = 0;
    for (int i = 0; i < s->count; i++) sum += s->value[i];
    return sum / s->count;
}

/* A series of the log; NULL when it has no values. */
static const struct cr_series *series(const struct cr_report_run *run, const char *name) {
    const struct cr_series *s = cr_run_log_find(&run->log, name);
    return s && s->count ? s : NULL;
}

/* Index of the largest value. */
static int best_of(const struct cr_series *s) {
    int best = 0;
    for (int i = 1; i < s->count; i++)
        if (s->value[i] > s->value[best]) best = i;
    return best;
}

void cr_report_facts(const struct cr_report_run *run, const struct cr_model *model, struct cr_text *out) {
    const struct cr_series *top1 = series(run, "eval/top1"), *loss = series(run, "train/loss"),
                           *speed = series(run, "train/images_per_s");
    const struct cr_series *wait = series(run, "train/data_wait"), *epoch = series(run, "train/epoch"),
                           *ema = series(run, "eval/ema_top1");
    cr_text_add(out, "<dl class=\"facts\">\n");
    if (top1) {
        const int best = best_of(top1), ema_best = ema ? best_of(ema) : 0;
        add_fact(out, "best validation top-1", "%.2f %%", 100 * top1->value[best]);
        add_fact(out, "at step", "%.0f", top1->step[best]);
        if (ema) add_fact(out, "best EMA validation top-1", "%.2f %%", 100 * ema->value[ema_best]);
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
    if (wait) add_fact(out, "time waiting for data", "%.2f %%", 100 * mean_of(wait));
    add_fact(out, "network", "%s", cr_word_arch(run->config.model.arch));
    if (model) add_fact(out, "parameters", "%.3f M", (double)cr_param_store_trainable(&model->store) * 1e-6);
    add_fact(out, "classes", "%d", run->classes);
    add_fact(out, "data", "%s", cr_word_data_kind(run->config.data.kind));
    add_fact(out, "effective batch size per GPU", "%lld",
             (long long)(run->config.train.batch * run->config.train.accumulate));
    cr_text_add(out, "</dl>\n");
}

void cr_report_header(const struct cr_report_run *run, struct cr_text *out) {
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

static void add_eval_table(const struct cr_report_run *run, struct cr_text *out) {
    const struct cr_series *top1 = series(run, "eval/top1"), *top5 = series(run, "eval/top5"),
                           *loss = series(run, "eval/loss");
    if (!top1) return;
    cr_text_add(out, "<details><summary>Table of evaluations</summary><div "
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

void cr_report_curves(const struct cr_report_run *run, struct cr_text *out) {
    const struct cr_series *loss     = series(run, "train/loss");
    const double            steps    = loss ? loss->step[loss->count - 1] : 0;
    struct cr_chart         charts[] = {
                {.title  = "Loss",
                 .unit   = "cross entropy",
                 .format = "%.4f",
                 .clip   = true,
                 .line   = {{"training", series(run, "train/loss"), 1, false},
                            {"validation", series(run, "eval/loss"), 1, true},
                            {"validation, EMA", series(run, "eval/ema_loss"), 1, true}}},
                {.title     = "Accuracy",
                 .unit      = "%",
                 .format    = "%.2f %%",
                 .from_zero = true,
                 .line      = {{"training top-1", series(run, "train/top1"), 100, false},
                               {"validation top-1", series(run, "eval/top1"), 100, true},
                               {"validation top-5", series(run, "eval/top5"), 100, true},
                               {"validation top-1, EMA", series(run, "eval/ema_top1"), 100, true}}},
                {.title     = "Learning rate",
                 .unit      = "",
                 .format    = "%.6g",
                 .from_zero = true,
                 .line      = {{"learning rate", series(run, "train/lr"), 1, false}}},
                {.title     = "Gradient norm",
                 .unit      = "",
                 .format    = "%.4g",
                 .from_zero = true,
                 .clip      = true,
                 .line      = {{"gradient norm", series(run, "train/grad_norm"), 1, false}}},
                {.title     = "Sparsity",
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
        cr_page_note(out, "%lld of %lld lines of the log are not valid JSON and were skipped.",
                     (long long)run->log.bad_lines, (long long)run->log.lines);
    cr_text_add(out, "</section>\n");
}

void cr_report_speed(const struct cr_report_run *run, struct cr_text *out) {
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
         .min_top   = 5,
         .line      = {{"waiting", series(run, "train/data_wait"), 100, false}}},
    };
    cr_page_section(out, "speed", "Speed");
    if (!series(run, "train/images_per_s")) cr_page_note(out, "The log has no training steps.");
    cr_text_add(out, "<div class=\"charts\">\n");
    for (size_t i = 0; i < CR_COUNT(charts); i++) cr_page_chart(out, &charts[i]);
    cr_text_add(out, "</div>\n</section>\n");
}
