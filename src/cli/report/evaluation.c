/* cli/report/evaluation.c: section Evaluation of the report: scores, classes, the confusion matrix, and the images with
 * the highest loss. */
#include "cli/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MATRIX_CLASSES = 60, MATRIX_NUMBERS = 16, PAIRS_SHOWN = 30, CLASSES_SHOWN = 60, IMAGE_SIDE = 512 };

struct view {
    const struct cr_confusion   *c;
    const struct cr_dataset     *dataset;
    const struct cr_class_score *score; /* [classes] */
    int                         *order; /* [classes]: labels, lowest F1 first */
};

static const char *name_of(const struct view *v, int label) {
    return v->dataset->class_names[label];
}

static double fraction(int64_t part, int64_t all) {
    return all ? (double)part / (double)all : 0;
}

/* ---- scores of classes ---- */

static int compare_f1(const void *a, const void *b, void *scores) {
    const struct cr_class_score *x = (const struct cr_class_score *)scores + *(const int *)a,
                                *y = (const struct cr_class_score *)scores + *(const int *)b;
    const double s = cr_class_f1(x), t = cr_class_f1(y);
    if (!x->images != !y->images) return x->images ? -1 : 1; /* classes without images last */
    if (s != t) return s < t ? -1 : 1;
    return *(const int *)a - *(const int *)b;
}

static void add_class(const struct view *v, int label, struct cr_text *out) {
    const struct cr_class_score *s = &v->score[label];
    cr_text_add(out, "<tr>");
    cr_page_cell(out, name_of(v, label));
    cr_text_add(out, "<td>%lld</td><td>%lld</td>", (long long)s->images, (long long)s->correct);
    cr_page_number(out, "%.2f %%", 100 * fraction(s->correct, s->predicted));
    cr_page_number(out, "%.2f %%", 100 * fraction(s->correct, s->images));
    cr_page_number(out, "%.2f %%", 100 * cr_class_f1(s));
    cr_text_add(out, "<td class=\"l\">");
    if (s->confused_with >= 0) {
        cr_page_escape(out, name_of(v, s->confused_with));
        cr_text_add(out, " (%lld)", (long long)s->confused);
    }
    cr_text_add(out, "</td></tr>\n");
}

/* Means over the classes that have images: each class counts once. */
static void add_macro_average(const struct view *v, struct cr_text *out) {
    const struct cr_class_means means  = cr_confusion_means(v->c);
    int64_t                     images = 0, correct = 0;
    for (int i = 0; i < v->c->classes; i++) {
        images += v->score[i].images;
        correct += v->score[i].correct;
    }
    if (!means.classes) return;
    cr_text_add(out, "<tr class=\"sum\"><td class=\"l\">macro average</td><td>%lld</td><td>%lld</td>",
                (long long)images, (long long)correct);
    cr_page_number(out, "%.2f %%", 100 * means.precision);
    cr_page_number(out, "%.2f %%", 100 * means.recall);
    cr_page_number(out, "%.2f %%", 100 * means.f1);
    cr_text_add(out, "<td class=\"l\">mean over %d classes</td></tr>\n", means.classes);
    cr_text_add(out, "<tr class=\"sum\"><td class=\"l\">all images (top-1)</td><td>%lld</td><td>%lld</td>",
                (long long)images, (long long)correct);
    for (int i = 0; i < 3; i++)
        cr_page_number(out, "%.2f %%", 100 * fraction(correct, images)); /* every prediction counts once: all equal */
    cr_text_add(out, "<td class=\"l\">micro average</td></tr>\n");
}

static void add_classes(const struct view *v, struct cr_text *out) {
    const int shown = CR_MIN(v->c->classes, CLASSES_SHOWN);
    cr_text_add(out, "<h3>Classes</h3>\n");
    cr_page_note(out,
                 "Precision: part of the images predicted as the class that belong to it. Recall: part of the class's "
                 "images that are predicted as it (its top-1). F1: their harmonic mean.");
    if (shown < v->c->classes) cr_page_note(out, "The %d classes with the lowest F1, of %d.", shown, v->c->classes);
    cr_text_add(out,
                "<div class=\"wide\"><table id=\"classes\"><tr><th class=\"l\">class</th><th>images</th>"
                "<th>correct</th><th>precision</th><th>recall</th><th>F1</th><th class=\"l\">most confused with</th>"
                "</tr>\n");
    for (int i = 0; i < shown; i++) add_class(v, v->order[i], out);
    add_macro_average(v, out);
    cr_text_add(out, "</table></div>\n");
    cr_page_note(out,
                 "Balanced accuracy is the macro average of recall. Expected calibration error: %.2f %%, the mean "
                 "distance between probabilities and the fraction of correct predictions, in %d bins.",
                 100 * cr_calibration_error(v->c->bin), CR_CALIBRATION_BINS);
}

/* ---- the matrix ---- */

/* Adds a name next to the matrix, cut when it is long. */
static void add_short_name(struct cr_text *out, const char *name) {
    char   cut[64];
    size_t length = strnlen(name, 15);
    while (length && name[length] && ((unsigned char)name[length] & 0xc0) == 0x80)
        length--; /* do not cut within a UTF-8 character */
    snprintf(cut, sizeof cut, "%.*s%s", (int)length, name, name[length] ? "\xe2\x80\xa6" : "");
    cr_page_escape(out, cut);
}

static void add_cell(const struct view *v, int label, int predicted, double x, double y, double side,
                     struct cr_text *out) {
    const int64_t n = cr_confusion_count(v->c, label, predicted);
    const double  s = fraction(n, v->score[label].images);
    if (n)
        cr_text_add(out, "<rect class=\"cell\" fill-opacity=\"%.3f\"", 0.08 + 0.92 * s);
    else
        cr_text_add(out, "<rect class=\"zero\"");
    cr_text_add(out, " x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>", x, y, side - 1, side - 1);
    cr_page_escape(out, name_of(v, label));
    cr_text_add(out, label == predicted ? ", correct: " : " predicted as ");
    if (label != predicted) {
        cr_page_escape(out, name_of(v, predicted));
        cr_text_add(out, ": ");
    }
    cr_text_add(out, "%lld of %lld</title></rect>", (long long)n, (long long)v->score[label].images);
    if (n && v->c->classes <= MATRIX_NUMBERS)
        cr_text_add(
            out, "<text class=\"%s\" pointer-events=\"none\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%lld</text>",
            s > 0.5 ? "hi" : "lo", x + (side - 1) / 2, y + side / 2 + 4, (long long)n);
    cr_text_add(out, "\n");
}

static void add_matrix(const struct view *v, struct cr_text *out) {
    enum {
        MARGIN = 120,
        SIDE   = 600,
        HEAD   = 104,
        TAIL   = 70
    }; /* TAIL: space for the last slanted name, which extends beyond its column */
    const int    n    = v->c->classes;
    const double side = (double)SIDE / n, font = CR_MAX(6, CR_MIN(13, side * 0.8));
    cr_text_add(out,
                "<h3>Confusion matrix</h3>\n<p class=\"note\">Rows are labels, columns are predicted classes. A "
                "stronger colour is a larger fraction of "
                "the row.</p>\n<div class=\"wide\"><svg class=\"matrix\" style=\"min-width:%dpx\" "
                "viewBox=\"0 0 %d %d\" role=\"img\" "
                "aria-label=\"confusion matrix\">\n",
                n > 20 ? 680 : 526, MARGIN + SIDE + TAIL, HEAD + SIDE);
    for (int i = 0; i < n; i++) {
        cr_text_add(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" style=\"font-size:%.1fpx\">", MARGIN - 6,
                    HEAD + (i + 0.5) * side + font * 0.35, font);
        add_short_name(out, name_of(v, i));
        cr_text_add(out, "</text><text transform=\"translate(%.1f %d) rotate(-50)\" style=\"font-size:%.1fpx\">",
                    MARGIN + (i + 0.5) * side, HEAD - 6, font);
        add_short_name(out, name_of(v, i));
        cr_text_add(out, "</text>\n");
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) add_cell(v, i, k, MARGIN + k * side, HEAD + i * side, side, out);
    cr_text_add(out, "</svg></div>\n");
}

/* For many classes a matrix is too large: lists the largest cells off its diagonal. */
static void add_pairs(const struct view *v, struct cr_text *out) {
    struct cr_confusion_cell pair[PAIRS_SHOWN];
    int                      pairs = 0;
    for (int64_t i = 0; i < v->c->cells; i++) {
        int at = pairs;
        while (at > 0 && v->c->cell[i].count > pair[at - 1].count) at--;
        if (at == PAIRS_SHOWN) continue;
        if (pairs < PAIRS_SHOWN) pairs++;
        memmove(&pair[at + 1], &pair[at], (size_t)(pairs - at - 1) * sizeof *pair);
        pair[at] = v->c->cell[i];
    }
    cr_text_add(out, "<h3>Most confused</h3>\n");
    cr_page_note(out,
                 "A matrix of %d classes is too large for a page; cresnet eval --confusion FILE.csv writes it. Its "
                 "largest cells off the diagonal:",
                 v->c->classes);
    cr_text_add(out, "<div class=\"wide\"><table><tr><th class=\"l\">label</th><th class=\"l\">"
                     "predicted</th><th>images</th><th>%% of the label</th></tr>\n");
    for (int i = 0; i < pairs; i++) {
        cr_text_add(out, "<tr>");
        cr_page_cell(out, name_of(v, pair[i].label));
        cr_page_cell(out, name_of(v, pair[i].predicted));
        cr_text_add(out, "<td>%lld</td>", (long long)pair[i].count);
        cr_page_number(out, "%.2f %%", 100 * fraction(pair[i].count, v->score[pair[i].label].images));
        cr_text_add(out, "</tr>\n");
    }
    cr_text_add(out, "</table></div>\n");
}

/* ---- images ---- */

/* Adds an image, reduced to IMAGE_SIDE pixels; smaller images keep their size. The style sheet shows it small, and
 * large when its link was followed. */
static cr_status add_image(struct cr_text *out, const struct cr_image *image, const char *alt) {
    const double    factor = (double)IMAGE_SIDE / CR_MAX(image->width, image->height);
    struct cr_image small  = {.width  = CR_MAX(1, (int)(image->width * factor)),
                              .height = CR_MAX(1, (int)(image->height * factor))};
    if (factor >= 1) return cr_page_image(out, image, alt);
    CR_ALLOC(small.rgb, (size_t)small.width * (size_t)small.height * 3);
    cr_status status =
        cr_image_resize(image, 0, 0, image->width, image->height, small.rgb, small.width, small.height, false);
    if (status == CR_OK) status = cr_page_image(out, &small, alt);
    cr_image_free(&small);
    return status;
}

static void add_probability(struct cr_text *out, const char *what, const char *name, double probability) {
    cr_text_add(out, "<tr><td class=\"l\">%s</td>", what);
    cr_page_cell(out, name);
    cr_text_add(out, "<td>%.1f&nbsp;%%</td></tr>", 100 * probability);
}

static cr_status add_top_loss(const struct view *v, int index, struct cr_text *out) {
    const struct cr_sample_loss *one = &v->c->worst[index];
    char                         name[CR_PATH_MAX], alt[256];
    struct cr_image              image = {0};
    int32_t                      label;
    cr_dataset_sample_name(v->dataset, one->sample, name, sizeof name);
    CR_TRY(cr_dataset_get(v->dataset, one->sample, &image, &label));
    snprintf(alt, sizeof alt, "%.100s, predicted as %.100s", name_of(v, one->label), name_of(v, one->predicted));
    cr_text_add(out, "<figure id=\"loss-%d\"><a class=\"open\" href=\"#loss-%d\">", index + 1, index + 1);
    cr_status status = cr_image_to_rgb(&image);
    if (status == CR_OK) status = add_image(out, &image, alt);
    cr_image_free(&image);
    CR_TRY(status);
    cr_text_add(out, "</a><a class=\"close\" href=\"#top-losses\">close</a><figcaption>loss %.3f<table class=\"two\">",
                one->loss);
    add_probability(out, "true", name_of(v, one->label), one->label_probability);
    add_probability(out, "predicted", name_of(v, one->predicted), one->probability);
    cr_text_add(out, "</table><small>");
    cr_page_escape(out, cr_path_name(name));
    cr_text_add(out, "</small></figcaption></figure>\n");
    return CR_OK;
}

static cr_status add_top_losses(const struct view *v, struct cr_text *out) {
    if (!v->c->worst_count) return CR_OK;
    cr_text_add(out, "<h3 id=\"top-losses\">Top losses</h3>\n");
    cr_page_note(out,
                 "The %d image%s with the highest loss, with the probabilities of the true and of the predicted class. "
                 "Choose an image to see it large (up to %d pixels).",
                 v->c->worst_count, v->c->worst_count == 1 ? "" : "s", IMAGE_SIDE);
    cr_text_add(out, "<div class=\"gallery\">\n");
    for (int i = 0; i < v->c->worst_count; i++) CR_TRY(add_top_loss(v, i, out));
    cr_text_add(out, "</div>\n");
    return CR_OK;
}

/* ---- the section ---- */

void cr_report_skipped(struct cr_text *out, const struct cr_scores *s) {
    cr_text_add(out, "</dl>\n");
    if (s->corrupt)
        cr_page_note(out, "%lld unreadable image%s skipped.", (long long)s->corrupt,
                     s->corrupt == 1 ? " was" : "s were");
}

static void add_scores(const struct cr_scores *s, int classes, struct cr_text *out) {
    cr_text_add(out, "<dl class=\"facts\">");
    cr_page_fact(out, "top-1", "%.2f %%", 100 * fraction(s->correct1, s->images));
    if (cr_top5_tells(classes)) cr_page_fact(out, "top-5", "%.2f %%", 100 * fraction(s->correct5, s->images));
    cr_page_fact(out, "loss", "%.4f", cr_scores_loss(s));
    cr_page_fact(out, "correct", "%lld of %lld", (long long)s->correct1, (long long)s->images);
    cr_report_skipped(out, s);
}

cr_status cr_report_eval(struct cr_text *out, struct cr_session *session, const struct cr_dataset *dataset,
                         struct cr_scores *scores) {
    struct cr_confusion       confusion;
    struct view               v = {.c = &confusion, .dataset = dataset};
    struct cr_sample_callback on_sample;
    const int                 classes = session->model.classes;
    cr_status                 status;
    CR_TRY(cr_confusion_open(classes, &confusion));
    on_sample = cr_confusion_callback(&confusion);
    v.score   = confusion.score;
    CR_ALLOC_OUT(v.order, (size_t)classes);
    CR_TRY_OUT(cr_session_evaluate_each(session, dataset, NULL, &on_sample, scores));
    CR_TRY_OUT(cr_confusion_finish(&confusion));
    for (int i = 0; i < classes; i++) v.order[i] = i;
    qsort_r(v.order, (size_t)classes, sizeof *v.order, compare_f1, confusion.score);
    add_scores(scores, classes, out);
    if (classes <= MATRIX_CLASSES)
        add_matrix(&v, out);
    else
        add_pairs(&v, out);
    add_classes(&v, out);
    CR_TRY_OUT(add_top_losses(&v, out));
out:
    cr_free(v.order);
    cr_confusion_close(&confusion);
    return status;
}
