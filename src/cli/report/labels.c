/* cli/report/labels.c: section of the report: multi-label evaluation (data.multi_label), average precision. */
#include "cli/common/label_table.h"
#include "cli/report/report.h"

#include <math.h>
#include <stdlib.h>

static void add_scores(const struct cr_scores *s, const struct cr_label_table *t, struct cr_text *out) {
    const double images = (double)CR_MAX(s->images, 1);
    cr_text_add(out, "<dl class=\"facts\">");
    cr_page_fact(out, "mAP", "%.2f %%", 100 * s->map);
    cr_page_fact(out, "macro F1", "%.2f %%", 100 * t->macro_f1);
    cr_page_fact(out, "all labels correct", "%.2f %%", 100 * (double)s->correct1 / images);
    cr_page_fact(out, "labels correct", "%.2f %%", 100 * (double)s->correct5 / images / t->classes);
    cr_page_fact(out, "loss", "%.4f", cr_scores_loss(s));
    cr_page_fact(out, "images", "%lld", (long long)s->images);
    cr_report_skipped(out, s);
}

/* Lowest average precision first; classes without images last. */
static int compare_classes(const void *a, const void *b, void *scores) {
    const struct cr_label_score *x = (const struct cr_label_score *)scores + *(const int *)a,
                                *y = (const struct cr_label_score *)scores + *(const int *)b;
    if (isnan(x->ap) || isnan(y->ap)) return !!isnan(x->ap) - !!isnan(y->ap);
    return (x->ap > y->ap) - (x->ap < y->ap);
}

static void add_class(const struct cr_label_table *t, const struct cr_dataset *dataset, int k, struct cr_text *out) {
    const struct cr_label_counts *c = &t->counts[k];
    cr_text_add(out, "<tr>");
    cr_page_cell(out, dataset->class_names[k]);
    cr_text_add(out, "<td>%lld</td><td>%lld</td>", (long long)c->images, (long long)c->predicted);
    cr_page_number(out, "%.2f %%", 100 * t->score[k].ap);
    cr_page_number(out, "%.2f %%", 100 * cr_label_precision(c));
    cr_page_number(out, "%.2f %%", 100 * cr_label_recall(c));
    cr_page_number(out, "%.2f %%", c->images ? 100 * cr_label_f1(c) : (double)NAN);
    cr_text_add(out, "<td>%.4f</td></tr>\n", t->threshold[k]);
}

static cr_status add_classes(struct cr_label_table *t, const struct cr_dataset *dataset, struct cr_text *out) {
    int *order;
    CR_ALLOC(order, (size_t)t->classes);
    for (int k = 0; k < t->classes; k++) order[k] = k;
    qsort_r(order, (size_t)t->classes, sizeof *order, compare_classes, t->score);
    cr_text_add(out, "<h3>Classes</h3>\n");
    cr_page_note(out, "Lowest average precision first. Predictions are images whose probability is above the threshold "
                      "of the class.");
    cr_text_add(out, "<div class=\"wide\"><table><tr><th class=\"l\">class</th><th>images</th><th>predicted</th>"
                     "<th>average precision</th><th>precision</th><th>recall</th><th>F1</th><th>threshold</th></tr>\n");
    for (int i = 0; i < t->classes; i++) add_class(t, dataset, order[i], out);
    cr_text_add(out, "</table></div>\n");
    cr_free(order);
    return CR_OK;
}

cr_status cr_report_labels(struct cr_text *out, struct cr_session *session, const char *weights,
                           const struct cr_dataset *dataset, struct cr_scores *scores) {
    struct cr_label_table table = {0};
    cr_status             status;
    CR_TRY(cr_session_evaluate(session, dataset, NULL, scores));
    CR_TRY_OUT(cr_label_table_open(session, weights, &table));
    add_scores(scores, &table, out);
    CR_TRY_OUT(add_classes(&table, dataset, out));
out:
    cr_arena_free(&table.arena);
    return status;
}
