/* cli/report/compare.c: cresnet report --compare: several runs on one page: a table, curves, and the keys of their
 * configurations that differ. Nothing is evaluated: all numbers come from the logs and the configurations. */
#include "cli/report/report.h"
#include "config/keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RUNS_MAX = CR_CHART_LINES };

struct comparison {
    struct cr_report_run run[RUNS_MAX];
    char                 name[RUNS_MAX][256];
    int                  count;
};

/* Names of run folders; equal names get the path that was given. */
static void name_runs(const struct cr_args *args, struct comparison *c) {
    char name[CR_PATH_MAX];
    for (int i = 0; i < c->count; i++) {
        cr_report_name(&c->run[i], name, sizeof name);
        snprintf(c->name[i], sizeof c->name[i], "%.250s", name);
    }
    for (int i = 0; i < c->count; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(c->name[i], c->name[k]) == 0) {
                snprintf(c->name[i], sizeof c->name[i], "%.250s", args->operand[i]);
                snprintf(c->name[k], sizeof c->name[k], "%.250s", args->operand[k]);
            }
}

/* ---- the table of runs ---- */

static void add_run(const struct comparison *c, int i, struct cr_text *out) {
    const struct cr_report_run *run    = &c->run[i];
    const struct cr_best        best   = cr_report_best(run);
    const double                epoch  = cr_report_epoch_steps(run);
    const struct cr_series     *pruned = cr_report_series(run, "prune/sparsity"),
                           *kept       = cr_report_series(run, "sparsity/sparsity"),
                           *speed      = cr_report_series(run, "train/images_per_s");
    char subject[CR_PATH_MAX], when[CR_WHEN_MAX];
    cr_report_subject(run, subject, sizeof subject);
    cr_report_when(run, when);
    cr_text_add(out,
                "<tr><td class=\"l\"><svg class=\"key\" viewBox=\"0 0 28 10\" aria-hidden=\"true\"><path class=\"line "
                "s%d\" d=\"M1 5H27\"/></svg></td>",
                i + 1);
    cr_page_cell(out, c->name[i]);
    cr_page_cell(out, subject);
    cr_page_cell(out, *when ? when : "-");
    cr_page_number(out, "%.0f", cr_series_last(cr_report_series(run, "train/epoch")));
    cr_page_number(out, "%.2f %%", best.top1 ? 100 * best.value : NAN);
    cr_page_number(out, "%.6g", best.top1 && epoch > 0 ? round(100 * best.step / epoch) / 100 : NAN);
    cr_page_number(out, "%.4f", cr_series_last(cr_report_series(run, "train/loss")));
    cr_page_number(out, "%.4f", cr_series_last(cr_report_series(run, "eval/loss")));
    cr_page_number(out, "%.2f %%", 100 * cr_series_last(pruned ? pruned : kept));
    cr_page_number(out, "%.0f", speed ? cr_series_median(speed) : NAN);
    cr_text_add(out, "</tr>\n");
}

static void add_runs(const struct comparison *c, struct cr_text *out) {
    cr_page_section(out, "runs", "Runs");
    cr_text_add(
        out, "<div class=\"wide\"><table id=\"runs-table\"><tr><th></th><th class=\"l\">run</th><th class=\"l\">"
             "network and data</th><th class=\"l\">date, time</th><th>epochs</th><th>best top-1</th><th>at epoch</th>"
             "<th>training loss</th><th>validation loss</th><th>sparsity</th><th>images/s</th></tr>\n");
    for (int i = 0; i < c->count; i++) add_run(c, i, out);
    cr_text_add(out, "</table></div>\n");
    cr_page_note(out,
                 "Top-1 is that of the weights or of their moving averages, whichever is better. Losses are the last "
                 "ones of each log; images/s is the median.");
    cr_text_add(out, "</section>\n");
}

/* ---- curves ---- */

/* One line for each run. Without a series: the top-1 of the weights or of the averages, whichever is better. */
static void add_chart(const struct comparison *c, struct cr_chart chart, const char *series, double scale, bool dots,
                      struct cr_text *out) {
    bool epochs = true;
    for (int i = 0; i < c->count; i++) epochs &= cr_report_epoch_steps(&c->run[i]) > 0;
    chart.epoch    = epochs ? cr_report_epoch_steps(&c->run[0]) : 0;
    chart.relative = epochs;
    for (int i = 0; i < c->count; i++) {
        chart.line[i].name   = c->name[i];
        chart.line[i].series = series ? cr_report_series(&c->run[i], series) : cr_report_best(&c->run[i]).top1;
        chart.line[i].scale  = scale;
        chart.line[i].dots   = dots;
        chart.line[i].epoch  = epochs ? cr_report_epoch_steps(&c->run[i]) : 0;
    }
    cr_page_chart(out, &chart);
}

static void add_curves(const struct comparison *c, struct cr_text *out) {
    cr_page_section(out, "curves", "Curves");
    cr_text_add(out, "<div class=\"charts\">\n");
    add_chart(c, (struct cr_chart){.title = "Validation top-1", .unit = "%", .format = "%.2f %%", .from_zero = true},
              NULL, 100, true, out);
    add_chart(c, (struct cr_chart){.title = "Validation loss", .unit = "cross entropy", .format = "%.4f", .clip = true},
              "eval/loss", 1, true, out);
    add_chart(c, (struct cr_chart){.title = "Training loss", .unit = "cross entropy", .format = "%.4f", .clip = true},
              "train/loss", 1, false, out);
    add_chart(c, (struct cr_chart){.title = "Learning rate", .unit = "", .format = "%.6g", .from_zero = true},
              "train/lr", 1, false, out);
    cr_text_add(out, "</div>\n</section>\n");
}

/* ---- configurations ---- */

static bool differs(const struct comparison *c, const struct cr_key *key) {
    for (int i = 1; i < c->count; i++)
        if (!cr_value_equal(key, c->run[0].config, c->run[i].config)) return true;
    return false;
}

/* One line for each key whose values differ. The weights are those of the checkpoint that the page shows. */
static void add_configs(const struct comparison *c, struct cr_text *out) {
    int shown = 0;
    cr_page_section(out, "config", "Configuration");
    cr_text_add(out, "<div class=\"wide\"><table id=\"differences\"><tr><th class=\"l\">key</th>");
    for (int i = 0; i < c->count; i++) {
        cr_text_add(out, "<th class=\"l\">");
        cr_page_escape(out, c->name[i]);
        cr_text_add(out, "</th>");
    }
    cr_text_add(out, "</tr>\n");
    for (const struct cr_key *key = cr_keys; key < cr_keys + cr_key_count; key++) {
        if (!differs(c, key) || key == cr_key_dotted("model.weights")) continue;
        shown++;
        cr_text_add(out, "<tr><td class=\"l\">%s.%s</td>", key->section, key->name);
        for (int i = 0; i < c->count; i++) {
            struct cr_text value = {0};
            cr_value_print(key, c->run[i].config, &value);
            cr_page_cell(out, value.data ? value.data : "");
            out->failed |= value.failed;
            cr_text_free(&value);
        }
        cr_text_add(out, "</tr>\n");
    }
    cr_text_add(out, "</table></div>\n");
    if (!shown) cr_page_note(out, "The configurations are equal.");
    cr_text_add(out, "</section>\n");
}

/* ---- the page ---- */

static void write_page(const struct comparison *c, struct cr_text *out) {
    char title[64];
    snprintf(title, sizeof title, "Comparison of %d runs", c->count);
    cr_page_begin(out, title);
    cr_text_add(out, "<header><h1>%s</h1></header>\n", title);
    add_runs(c, out);
    add_curves(c, out);
    add_configs(c, out);
    cr_page_end(out);
}

static cr_status check(const struct cr_args *args) {
    if (args->operands < 2) return cr_args_fail(args, "--compare needs at least two runs");
    if (args->operands > RUNS_MAX)
        return cr_args_fail(args, "--compare shows at most %d runs, %d were given", RUNS_MAX, args->operands);
    return cr_args_has(args, CR_OPT_NO_EVAL)
               ? cr_args_fail(args, "--no-eval is about one run: leave it out with --compare")
               : CR_OK;
}

cr_status cr_report_compare(const struct cr_args *args) {
    const char       *file = args->value[CR_OPT_EXPORT_FILE] ? args->value[CR_OPT_EXPORT_FILE] : "compare.html";
    struct comparison c    = {0};
    struct cr_text    page = {0};
    cr_status         status;
    CR_TRY(check(args));
    CR_TRY(cr_cmd_output_check(args, file, CR_OUTPUT_REPORT));
    for (int i = 0; i < args->operands; i++) {
        c.count = i + 1;
        CR_TRY_OUT(cr_report_run_open(args, i, &c.run[i]));
    }
    name_runs(args, &c);
    write_page(&c, &page);
    const size_t bytes = page.length;
    CR_TRY_OUT(cr_cmd_write_file(args, file, CR_OUTPUT_REPORT, &page));
    cr_log(CR_LOG_INFO, "%s: %d runs, %.0f KB", cr_cmd_is_stdout(file) ? "standard output" : file, c.count,
           (double)bytes * 1e-3);
out:
    for (int i = 0; i < c.count; i++) cr_report_run_close(&c.run[i]);
    return status;
}
