/* cli/common/label_table.c: prints the table of multi-label scores by class; see cli/common/label_table.h. */
#include "cli/common/label_table.h"

#include "core/utf8.h"
#include "session/saved_model.h"

#include <math.h>
#include <string.h>

cr_status cr_label_table_open(const struct cr_session *session, const char *weights, struct cr_label_table *out) {
    const int classes = session->model.classes;
    int       with    = 0;
    double    sum     = 0;
    *out              = (struct cr_label_table){.classes = classes};
    CR_ARENA_ALLOC(&out->arena, out->threshold, (size_t)classes);
    CR_ARENA_ALLOC(&out->arena, out->score, (size_t)classes);
    CR_ARENA_ALLOC(&out->arena, out->counts, (size_t)classes);
    CR_TRY(cr_saved_model_thresholds(weights, classes, out->threshold));
    CR_TRY(cr_label_scores_classes(session->label_scores, out->score));
    for (int k = 0; k < classes; k++) {
        out->counts[k] = cr_label_scores_count(session->label_scores, k, out->threshold[k]);
        if (!out->counts[k].images) continue;
        sum += cr_label_f1(&out->counts[k]);
        with++;
    }
    out->macro_f1 = with ? sum / with : (double)NAN;
    return CR_OK;
}

double cr_label_precision(const struct cr_label_counts *c) {
    return c->predicted ? (double)c->correct / (double)c->predicted : (double)NAN;
}

double cr_label_recall(const struct cr_label_counts *c) {
    return c->images ? (double)c->correct / (double)c->images : (double)NAN;
}

static void print_percent(struct cr_text *out, double value) {
    if (isnan(value))
        cr_text_add(out, " %10s", "-");
    else
        cr_text_add(out, " %8.2f %%", 100 * value);
}

void cr_label_table_print(const struct cr_label_table *t, const struct cr_cmd_names *names, struct cr_text *out) {
    char number[32];
    int  width = 5;
    for (int k = 0; k < t->classes; k++) {
        const char *name = cr_cmd_class_name(names, k, number, sizeof number);
        width            = CR_MAX(width, CR_MIN(cr_utf8_characters(name), 40));
    }
    cr_text_add(out, "%6s  %-*s %8s %9s %10s %10s %10s %10s %10s\n", "label", width, "class", "images", "predicted",
                "AP", "precision", "recall", "F1", "threshold");
    for (int k = 0; k < t->classes; k++) {
        const struct cr_label_counts *c    = &t->counts[k];
        const char                   *name = cr_cmd_class_name(names, k, number, sizeof number);
        cr_text_add(out, "%6d  %-*s %8lld %9lld", k, cr_utf8_field(name, width), name, (long long)c->images,
                    (long long)c->predicted);
        print_percent(out, t->score[k].ap);
        print_percent(out, cr_label_precision(c));
        print_percent(out, cr_label_recall(c));
        print_percent(out, c->images ? cr_label_f1(c) : (double)NAN);
        cr_text_add(out, " %10.4f\n", t->threshold[k]);
    }
}

void cr_label_table_json(const struct cr_label_table *t, const struct cr_cmd_names *names, struct cr_json_writer *w) {
    char number[32];
    cr_json_open_array(w, "per_class");
    for (int k = 0; k < t->classes; k++) {
        const struct cr_label_counts *c = &t->counts[k];
        cr_json_open_object(w, NULL);
        cr_json_put_int(w, "label", k);
        cr_json_put_string(w, "class", cr_cmd_class_name(names, k, number, sizeof number));
        cr_json_put_int(w, "images", c->images);
        cr_json_put_fixed(w, "average_precision", t->score[k].ap, 6);
        cr_json_put_fixed(w, "threshold", t->threshold[k], 6);
        cr_json_put_int(w, "predicted", c->predicted);
        cr_json_put_int(w, "correct", c->correct);
        cr_json_put_fixed(w, "precision", cr_label_precision(c), 6);
        cr_json_put_fixed(w, "recall", cr_label_recall(c), 6);
        cr_json_put_fixed(w, "f1", c->images ? cr_label_f1(c) : (double)NAN, 6);
        cr_json_close_object(w);
    }
    cr_json_close_array(w);
}
