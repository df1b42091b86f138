/* cli/report/curves.c: sections of the report that come from log.jsonl: header, facts, training curves, speed. */
#include "cli/report/report.h"

#include <math.h>
#include <stdio.h>

/* ---- header and facts ---- */

static double mean_of(const struct cr_series *s) {
    double sum = 0;
    for (int i = 0; i < s->count; i++) sum += s->value[i];
    return sum / s->count;
}

void cr_report_facts(const struct cr_report_run *run, const struct cr_model *model, struct cr_text *out) {
    const struct cr_series *loss  = cr_report_series(run, "train/loss"),
                           *speed = cr_report_series(run, "train/images_per_s");
    const struct cr_series *wait  = cr_report_series(run, "train/data_wait"),
                           *epoch = cr_report_series(run, "train/epoch");
    const struct cr_best best     = cr_report_best(run);
    const double         steps    = cr_report_epoch_steps(run);
    cr_text_add(out, "<dl class=\"facts\">\n");
    if (best.top1) {
        char name[64];
        snprintf(name, sizeof name, "best validation %s%s", cr_report_metric(run), best.averages ? " (averages)" : "");
        cr_page_fact(out, name, "%.2f %%", 100 * best.value);
        if (steps > 0)
            cr_page_fact(out, "at epoch", "%.6g (step %.0f)", round(100 * best.step / steps) / 100, best.step);
        else
            cr_page_fact(out, "at step", "%.0f", best.step);
    }
    if (loss) {
        cr_page_fact(out, "last training loss", "%.4f", cr_series_last(loss));
        if (run->log.total_steps)
            cr_page_fact(out, "steps done", "%.0f of %lld", loss->step[loss->count - 1],
                         (long long)run->log.total_steps);
        else
            cr_page_fact(out, "steps done", "%.0f", loss->step[loss->count - 1]);
    }
    /* the configuration is that of the best checkpoint; the run may have been continued for more epochs */
    if (epoch)
        cr_page_fact(out, "epochs", "%.0f of %.0f", cr_series_last(epoch),
                     CR_MAX(cr_series_last(epoch), (double)run->config->train.epochs));
    if (speed) cr_page_fact(out, "images/s, median", "%.0f", cr_series_median(speed));
    if (wait) cr_page_fact(out, "time waiting for data", "%.2f %%", 100 * mean_of(wait));
    cr_page_fact(out, "network", "%s", cr_word_arch(run->config->model.arch));
    if (model) cr_page_fact(out, "parameters", "%.3f M", (double)cr_param_store_trainable(&model->store) * 1e-6);
    cr_page_fact(out, "classes", "%d", run->classes);
    cr_page_fact(out, "data", "%s", cr_word_data_kind(run->config->data.kind));
    cr_page_fact(out, "effective batch size per GPU", "%lld",
                 (long long)(run->config->train.batch * run->config->train.accumulate));
    cr_text_add(out, "</dl>\n");
}

void cr_report_header(const struct cr_report_run *run, struct cr_text *out) {
    static const char *const parts[][2] = {{"curves", "Curves"}, {"speed", "Speed"},       {"evaluation", "Evaluation"},
                                           {"memory", "Memory"}, {"sparsity", "Sparsity"}, {"config", "Configuration"}};
    char                     name[CR_PATH_MAX];
    char                     subject[CR_PATH_MAX], when[CR_WHEN_MAX], title[sizeof subject + sizeof when + 1];
    cr_report_name(run, name, sizeof name);
    cr_report_subject(run, subject, sizeof subject);
    cr_report_when(run, when);
    snprintf(title, sizeof title, "%s%s%s", subject, *when ? ", " : "", when);
    cr_page_begin(out, title);
    cr_text_add(out, "<header><h1>");
    cr_page_escape(out, subject);
    cr_text_add(out, "</h1>\n<p class=\"sub\">");
    if (*when) cr_text_add(out, "%s of training; ", when);
    cr_text_add(out, "run ");
    cr_page_escape(out, name);
    cr_text_add(out, ", weights of ");
    cr_page_escape(out, run->step_name);
    if (*run->log.version) {
        cr_text_add(out, ", trained by cresnet ");
        cr_page_escape(out, run->log.version);
    }
    if (run->log.resumes)
        cr_text_add(out, ", resumed %lld time%s", (long long)run->log.resumes, run->log.resumes == 1 ? "" : "s");
    cr_text_add(out, "</p>\n<nav aria-label=\"sections\">");
    for (size_t i = 0; i < CR_COUNT(parts); i++) cr_text_add(out, "<a href=\"#%s\">%s</a>", parts[i][0], parts[i][1]);
    cr_text_add(out, "</nav></header>\n");
}

/* ---- curves ---- */

#define LOG(name) cr_report_series(run, name)
static const struct cr_series *top5_of(const struct cr_report_run *run) {
    return cr_top5_tells(run->classes) ? LOG("eval/top5") : NULL;
}

static void add_eval_table(const struct cr_report_run *run, struct cr_text *out) {
    const struct cr_series *top1 = cr_report_accuracy(run, false),
                           *next = run->config->data.multi_label ? LOG("eval/exact_match") : top5_of(run),
                           *loss = cr_report_series(run, "eval/loss");
    if (!top1) return;
    cr_text_add(out,
                "<details><summary>Table of evaluations</summary><div "
                "class=\"wide\"><table><tr><th>epoch</th><th>step</th><th>%s</th>%s<th>loss</th></tr>\n",
                cr_report_metric(run),
                !next                           ? ""
                : run->config->data.multi_label ? "<th>all labels correct</th>"
                                                : "<th>top-5</th>");
    for (int i = 0; i < top1->count; i++) {
        const double epoch = cr_report_epoch_steps(run);
        if (epoch > 0)
            cr_text_add(out, "<tr><td>%.6g</td>", round(100 * top1->step[i] / epoch) / 100);
        else
            cr_text_add(out, "<tr><td>-</td>");
        cr_text_add(out, "<td>%.0f</td><td>%.2f %%</td>", top1->step[i], 100 * top1->value[i]);
        if (next && i < next->count) cr_text_add(out, "<td>%.2f %%</td>", 100 * next->value[i]);
        for (int k = 0; loss && k < loss->count; k++)
            if (loss->step[k] == top1->step[i]) cr_text_add(out, "<td>%.4f</td>", loss->value[k]);
        cr_text_add(out, "</tr>\n");
    }
    cr_text_add(out, "</table></div></details>\n");
}

static struct cr_chart accuracy_chart(const struct cr_report_run *run) {
    if (run->config->data.multi_label)
        return (struct cr_chart){
            .title     = "Mean average precision",
            .unit      = "%",
            .format    = "%.2f %%",
            .from_zero = true,
            .line      = {{.name = "training, all labels", .series = LOG("train/exact_match"), .scale = 100},
                          {.name = "validation mAP", .series = LOG("eval/map"), .scale = 100, .dots = true},
                          {.name = "validation, all", .series = LOG("eval/exact_match"), .scale = 100, .dots = true},
                          {.name = "validation, EMA", .series = LOG("eval/ema_map"), .scale = 100, .dots = true}}};
    return (struct cr_chart){
        .title     = "Accuracy",
        .unit      = "%",
        .format    = "%.2f %%",
        .from_zero = true,
        .line      = {{.name = "training top-1", .series = LOG("train/top1"), .scale = 100},
                      {.name = "validation top-1", .series = LOG("eval/top1"), .scale = 100, .dots = true},
                      {.name = "validation top-5", .series = top5_of(run), .scale = 100, .dots = true},
                      {.name = "validation, EMA", .series = LOG("eval/ema_top1"), .scale = 100, .dots = 1}}};
}

/* One series, in a chart whose y axis includes 0. */
static struct cr_chart chart_of(const char *title, const char *unit, const char *format, const struct cr_series *series,
                                double scale) {
    return (struct cr_chart){.title     = title,
                             .unit      = unit,
                             .format    = format,
                             .from_zero = true,
                             .line      = {{.name = title, .series = series, .scale = scale}}};
}

/* Adds the charts that have values. */
static void add_charts(const struct cr_report_run *run, struct cr_chart *charts, size_t count, struct cr_text *out) {
    cr_text_add(out, "<div class=\"charts\">\n");
    for (size_t i = 0; i < count; i++) {
        charts[i].epoch = cr_report_epoch_steps(run);
        cr_page_chart(out, &charts[i]);
    }
    cr_text_add(out, "</div>\n");
}

void cr_report_curves(const struct cr_report_run *run, struct cr_text *out) {
    const struct cr_series *loss     = LOG("train/loss"),
                           *sparsity = LOG("prune/sparsity") ? LOG("prune/sparsity") : LOG("sparsity/sparsity");
    struct cr_chart charts[]         = {
                {.title  = "Loss",
                 .unit   = "cross entropy",
                 .format = "%.4f",
                 .clip   = true,
                 .line   = {{.name = "training", .series = loss, .scale = 1},
                            {.name = "validation", .series = LOG("eval/loss"), .scale = 1, .dots = true},
                            {.name = "validation, EMA", .series = LOG("eval/ema_loss"), .scale = 1, .dots = true}}},
                accuracy_chart(run),
                chart_of("Learning rate", "", "%.6g", LOG("train/lr"), 1),
                chart_of("Gradient norm", "", "%.4g", LOG("train/grad_norm"), 1),
                chart_of("Loss scale", "", "%.0f", LOG("train/loss_scale"), 1),
                chart_of("Sparsity", "% of the prunable weights", "%.2f %%", sparsity, 100),
    };
    charts[3].clip         = true;
    charts[5].line[0].dots = true;
    for (size_t i = 0; i < CR_COUNT(charts); i++) {
        charts[i].steps = loss ? loss->step[loss->count - 1] : 0;
        charts[i].best  = cr_report_best(run).step;
    }
    cr_page_section(out, "curves", "Curves");
    if (!loss && !cr_report_accuracy(run, false))
        cr_page_note(out, "No log.jsonl with training steps in %s.", run->dir);
    add_charts(run, charts, CR_COUNT(charts), out);
    add_eval_table(run, out);
    if (run->log.bad_lines)
        cr_page_note(out, "%lld of %lld lines of the log are not valid JSON and were skipped.",
                     (long long)run->log.bad_lines, (long long)run->log.lines);
    cr_text_add(out, "</section>\n");
}

void cr_report_speed(const struct cr_report_run *run, struct cr_text *out) {
    struct cr_chart charts[] = {chart_of("Throughput", "images/s", "%.0f", LOG("train/images_per_s"), 1),
                                chart_of("Waiting for data", "% of the time", "%.2f %%", LOG("train/data_wait"), 100)};
    charts[1].min_top        = 5;
    cr_page_section(out, "speed", "Speed");
    if (!LOG("train/images_per_s")) cr_page_note(out, "The log has no training steps.");
    if (*run->log.hint) cr_page_note(out, "Training waits for images: %s.", run->log.hint);
    add_charts(run, charts, CR_COUNT(charts), out);
    cr_text_add(out, "</section>\n");
}
