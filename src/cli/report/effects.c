/* cli/report/effects.c: section of the report: what pruning and moving averages did to the accuracy. */
#include "cli/report/report.h"

#include <math.h>

static void add_percent(struct cr_text *out, double fraction) {
    if (isnan(fraction))
        cr_text_add(out, "<td>-</td>");
    else
        cr_text_add(out, "<td>%.2f %%</td>", 100 * fraction);
}

/* The first value after a step; NAN when there is none. */
static double next_after(const struct cr_series *s, double step) {
    for (int i = 0; s && i < s->count; i++)
        if (s->step[i] > step) return s->value[i];
    return NAN;
}

enum { PRUNINGS_SHOWN = 20 };

/* One line for each pruning step; of many, evenly spaced ones with the last. */
static void add_prunings(const struct cr_report_run *run, const struct cr_series *sparsity, struct cr_text *out) {
    const struct cr_series *top1 = cr_report_accuracy(run, false), *pruned = cr_report_series(run, "prune/pruned"),
                           *of = cr_report_series(run, "prune/of");
    const int shown            = CR_MIN(sparsity->count, PRUNINGS_SHOWN);
    cr_text_add(out,
                "<div class=\"wide\"><table><tr><th>step</th><th>sparsity</th><th>weights left</th>"
                "<th>%s before</th><th>%s after</th></tr>\n",
                cr_report_metric(run), cr_report_metric(run));
    for (int k = 0; k < shown; k++) {
        const int    i    = shown == 1 ? 0 : (int)((int64_t)k * (sparsity->count - 1) / (shown - 1));
        const double step = sparsity->step[i];
        cr_text_add(out, "<tr><td>%.0f</td>", step);
        add_percent(out, sparsity->value[i]);
        if (pruned && of && i < pruned->count && i < of->count)
            cr_text_add(out, "<td>%.0f</td>", of->value[i] - pruned->value[i]);
        else
            cr_text_add(out, "<td>-</td>");
        add_percent(out, top1 ? cr_series_at(top1, step) : NAN);
        add_percent(out, next_after(top1, step));
        cr_text_add(out, "</tr>\n");
    }
    cr_text_add(out, "</table></div>\n");
}

static void add_pruning(const struct cr_report_run *run, const struct cr_series *sparsity, struct cr_text *out) {
    const struct cr_series *top1 = cr_report_accuracy(run, false), *loss = cr_report_series(run, "train/loss");
    const int               last  = sparsity->count - 1;
    const double            first = sparsity->step[0], before = top1 ? cr_series_at(top1, first) : NAN;
    const struct cr_chart   chart = {.title     = "Sparsity",
                                     .unit      = "% of the prunable weights",
                                     .format    = "%.2f %%",
                                     .from_zero = true,
                                     .epoch     = cr_report_epoch_steps(run),
                                     .best      = cr_report_best(run).step,
                                     .steps     = loss ? loss->step[loss->count - 1] : 0,
                                     .line = {{.name = "sparsity", .series = sparsity, .scale = 100, .dots = true}}};
    if (top1 && !isnan(before))
        cr_page_note(out,
                     "Pruning began at step %.0f and left %.2f %% of the prunable weights at 0. Validation %s: %.2f %% "
                     "before the first pruning, %.2f %% at the end.",
                     first, 100 * sparsity->value[last], cr_report_metric(run), 100 * before,
                     100 * top1->value[top1->count - 1]);
    else
        cr_page_note(out, "Pruning began at step %.0f and left %.2f %% of the prunable weights at 0.", first,
                     100 * sparsity->value[last]);
    cr_text_add(out, "<div class=\"charts\">\n");
    cr_page_chart(out, &chart);
    add_prunings(run, sparsity, out);
    cr_text_add(out, "</div>\n");
}

/* Both at the step of the best evaluation. */
static void add_averages(const struct cr_report_run *run, const struct cr_series *ema, struct cr_text *out) {
    const struct cr_best    best = cr_report_best(run);
    const struct cr_series *top1 = cr_report_accuracy(run, false);
    const double weights = top1 ? cr_series_at(top1, best.step) : NAN, averages = cr_series_at(ema, best.step);
    cr_page_note(out,
                 "At the best evaluation (step %.0f) the weights have %s %.2f %% and their moving averages %.2f %%: "
                 "%+.2f points.",
                 best.step, cr_report_metric(run), 100 * weights, 100 * averages, 100 * (averages - weights));
}

void cr_report_effects(const struct cr_report_run *run, struct cr_text *out) {
    const struct cr_series *sparsity = cr_report_series(run, "prune/sparsity"),
                           *kept = cr_report_series(run, "sparsity/sparsity"), *ema = cr_report_accuracy(run, true);
    if (!sparsity && !kept && !ema) return;
    cr_page_section(out, "effects", sparsity || kept ? (ema ? "Pruning and averages" : "Pruning") : "Moving averages");
    const bool both = (sparsity || kept) && ema;
    if (both) cr_text_add(out, "<h3>Pruning</h3>\n");
    if (sparsity) add_pruning(run, sparsity, out);
    if (kept && !sparsity)
        cr_page_note(
            out, "The run began with pruned weights and kept them at 0: %.2f %% of the weights of the pruned layers.",
            100 * kept->value[kept->count - 1]);
    if (both) cr_text_add(out, "<h3>Moving averages</h3>\n");
    if (ema) add_averages(run, ema, out);
    cr_text_add(out, "</section>\n");
}
