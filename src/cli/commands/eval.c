/* cli/commands/eval.c: cresnet eval: accuracy and loss of weights on a split, per-class scores, the confusion matrix.
 */
#include "cli/common/label_table.h"
#include "cli/common/predictions_csv.h"
#include "cli/common/reject_choice.h"
#include "core/utf8.h"
#include "formats/json_write.h"
#include "session/saved_model.h"
#include "session/scores/confusion.h"
#include "session/scores/temperature.h"

#include <math.h>
#include <string.h>

/* The table of --csv. */
struct table {
    struct cr_predictions_csv csv;
    const struct cr_dataset  *dataset;
    float                    *probabilities; /* [classes] */
    double                   *threshold;     /* [classes], with several labels per image */
    int64_t                   next;          /* the sample whose line is next */
    cr_status                 status;        /* of the first line that could not be written */
};

/* The options of the command and its results. */
struct evaluation {
    const char             *split;
    bool                    json, per_class, scale;
    const char             *matrix; /* CSV file to write, or NULL */
    enum cr_tta             tta;
    struct cr_scores        scores;
    int                     classes;
    struct cr_confusion     confusion; /* has no classes unless per_class or matrix is set */
    struct cr_cmd_names     names;
    struct table            table;
    struct cr_label_scores  logits;        /* has no classes unless `scale` is set */
    cr_status               logits_status; /* of the first image that could not be added */
    struct cr_label_table   labels;        /* has no classes unless images have several labels */
    struct cr_reject_choice reject;
};

static double fraction(int64_t part, int64_t all) {
    return all ? (double)part / (double)all : 0;
}

/* ---- JSON ---- */

static void json_fraction(struct cr_json_writer *w, const char *name, int64_t part, int64_t all) {
    cr_json_put_fixed(w, name, all ? fraction(part, all) : NAN, 6);
}

static void json_class(const struct evaluation *e, int label, struct cr_json_writer *w) {
    const struct cr_class_score s = e->confusion.score[label];
    cr_json_open_object(w, NULL);
    cr_json_put_int(w, "label", label);
    cr_json_put_string(w, "class", e->names.at[label]);
    cr_json_put_int(w, "images", s.images);
    cr_json_put_int(w, "correct", s.correct);
    json_fraction(w, "top1", s.correct, s.images);
    cr_json_put_int(w, "predicted", s.predicted);
    json_fraction(w, "precision", s.correct, s.predicted);
    if (s.confused_with < 0)
        cr_json_put_null(w, "confused_with");
    else {
        cr_json_open_object(w, "confused_with");
        cr_json_put_int(w, "label", s.confused_with);
        cr_json_put_string(w, "class", e->names.at[s.confused_with]);
        cr_json_put_int(w, "images", s.confused);
        cr_json_close_object(w);
    }
    cr_json_close_object(w);
}

static void json_temperature(const struct evaluation *e, struct cr_json_writer *w) {
    const struct cr_temperature before = cr_temperature_scores(&e->logits, 1), after = cr_temperature_fit(&e->logits);
    cr_json_open_object(w, "temperature_scaling");
    cr_json_put_fixed(w, "temperature", after.temperature, 6);
    cr_json_put_fixed(w, "loss_before", before.loss, 6);
    cr_json_put_fixed(w, "loss", after.loss, 6);
    cr_json_put_fixed(w, "calibration_error_before", before.calibration_error, 6);
    cr_json_put_fixed(w, "calibration_error", after.calibration_error, 6);
    cr_json_close_object(w);
}

static void json_labels(const struct evaluation *e, struct cr_json_writer *w) {
    const struct cr_scores *s = &e->scores;
    cr_json_put_fixed(w, "map", s->map, 6);
    cr_json_put_fixed(w, "macro_f1", e->labels.macro_f1, 6);
    cr_json_put_fixed(w, "exact_match", fraction(s->correct1, s->images), 6);
    cr_json_put_fixed(w, "label_accuracy", fraction(s->correct5, s->images * e->labels.classes), 6);
}

static void print_json(const struct cr_config *config, const struct evaluation *e, struct cr_text *out) {
    const struct cr_scores *s = &e->scores;
    struct cr_json_writer   w = cr_json_open_line(out);
    cr_json_put_string(&w, "split", e->split);
    cr_json_put_int(&w, "images", s->images);
    if (e->labels.classes)
        json_labels(e, &w);
    else {
        cr_json_put_int(&w, "correct", s->correct1);
        cr_json_put_int(&w, "correct5", s->correct5);
        cr_json_put_fixed(&w, "top1", fraction(s->correct1, s->images), 6);
        cr_json_put_fixed(&w, "top5", fraction(s->correct5, s->images), 6);
    }
    cr_json_put_fixed(&w, "loss", cr_scores_loss(s), 6);
    cr_json_put_int(&w, "corrupt", s->corrupt);
    cr_json_put_fixed(&w, "seconds", s->seconds, 3);
    cr_json_put_fixed(&w, "images_per_s", s->seconds > 0 ? (double)s->images / s->seconds : 0, 1);
    cr_json_put_string(&w, "weights", config->model.weights);
    if (e->tta != CR_TTA_NONE) cr_json_put_string(&w, "tta", cr_word_tta(e->tta));
    if (e->scale) json_temperature(e, &w);
    cr_reject_choice_json(&e->reject, &w);
    if (e->per_class && e->labels.classes)
        cr_label_table_json(&e->labels, &e->names, &w);
    else if (e->per_class) {
        const struct cr_class_means means = cr_confusion_means(&e->confusion);
        cr_json_put_fixed(&w, "balanced_accuracy", means.recall, 6);
        cr_json_put_fixed(&w, "macro_f1", means.f1, 6);
        cr_json_put_fixed(&w, "calibration_error", cr_calibration_error(e->confusion.bin), 6);
        cr_json_open_array(&w, "per_class");
        for (int i = 0; i < e->confusion.classes; i++) json_class(e, i, &w);
        cr_json_close_array(&w);
    }
    cr_json_close_line(&w);
}

/* ---- text ---- */

static void print_fraction(struct cr_text *out, int64_t part, int64_t all) {
    if (all)
        cr_text_add(out, " %8.2f %%", 100 * fraction(part, all));
    else
        cr_text_add(out, " %10s", "-");
}

static void print_classes(const struct evaluation *e, struct cr_text *out) {
    int width = 5;
    for (int i = 0; i < e->confusion.classes; i++)
        width = CR_MAX(width, CR_MIN(cr_utf8_characters(e->names.at[i]), 40));
    cr_text_add(out, "%6s  %-*s %8s %8s %10s %10s  %s\n", "label", width, "class", "images", "correct", "top-1",
                "precision", "most confused with");
    for (int i = 0; i < e->confusion.classes; i++) {
        const struct cr_class_score s = e->confusion.score[i];
        cr_text_add(out, "%6d  %-*s %8lld %8lld", i, cr_utf8_field(e->names.at[i], width), e->names.at[i],
                    (long long)s.images, (long long)s.correct);
        print_fraction(out, s.correct, s.images);
        print_fraction(out, s.correct, s.predicted);
        if (s.confused_with >= 0) cr_text_add(out, "  %s (%lld)", e->names.at[s.confused_with], (long long)s.confused);
        cr_text_add(out, "\n");
    }
}

static void print_means(const struct evaluation *e, struct cr_text *out) {
    const struct cr_class_means means = cr_confusion_means(&e->confusion);
    if (!means.classes) return;
    cr_text_add(out, "balanced accuracy %.2f %%, macro F1 %.2f %%, expected calibration error %.2f %%\n",
                100 * means.recall, 100 * means.f1, 100 * cr_calibration_error(e->confusion.bin));
}

static void print_temperature(const struct evaluation *e, struct cr_text *out) {
    const struct cr_temperature before = cr_temperature_scores(&e->logits, 1), after = cr_temperature_fit(&e->logits);
    if (!e->logits.images) return;
    cr_text_add(out, "temperature %.3f: loss %.4f -> %.4f, expected calibration error %.2f %% -> %.2f %%\n",
                after.temperature, before.loss, after.loss, 100 * before.calibration_error,
                100 * after.calibration_error);
}

/* The first line of the scores, when images have several labels. */
static void print_label_scores(const struct evaluation *e, struct cr_text *out) {
    const struct cr_scores *s = &e->scores;
    if (e->per_class) cr_label_table_print(&e->labels, &e->names, out);
    cr_text_add(out,
                "%s: %lld images: mAP %.2f %%, macro F1 %.2f %%, all labels correct %.2f %%, labels correct %.2f %%, "
                "loss %.4f  (%.1f s, %.0f images/s)\n",
                e->split, (long long)s->images, 100 * s->map, 100 * e->labels.macro_f1,
                100 * fraction(s->correct1, s->images), 100 * fraction(s->correct5, s->images * e->labels.classes),
                cr_scores_loss(s), s->seconds, s->seconds > 0 ? (double)s->images / s->seconds : 0);
}

static void print_class_scores(const struct evaluation *e, struct cr_text *out) {
    const struct cr_scores *s = &e->scores;
    if (e->per_class) print_classes(e, out);
    cr_text_add(out, "%s: %lld of %lld correct: top-1 %.2f %%", e->split, (long long)s->correct1, (long long)s->images,
                100 * fraction(s->correct1, s->images));
    if (cr_top5_tells(e->classes)) cr_text_add(out, ", top-5 %.2f %%", 100 * fraction(s->correct5, s->images));
    cr_text_add(out, ", loss %.4f  (%.1f s, %.0f images/s)\n", cr_scores_loss(s), s->seconds,
                s->seconds > 0 ? (double)s->images / s->seconds : 0);
    if (e->per_class) print_means(e, out);
    if (e->scale) print_temperature(e, out);
}

static void print_scores(const struct evaluation *e, struct cr_text *out) {
    const struct cr_scores *s = &e->scores;
    if (e->labels.classes)
        print_label_scores(e, out);
    else
        print_class_scores(e, out);
    if (e->tta != CR_TTA_NONE)
        cr_text_add(out, "with test-time augmentation %s: by the mean logits of %d views per image\n",
                    cr_word_tta(e->tta), cr_prepare_views(e->tta));
    if (s->corrupt)
        cr_text_add(out, "%lld unreadable image%s skipped\n", (long long)s->corrupt,
                    s->corrupt == 1 ? " was" : "s were");
    cr_reject_choice_print(&e->reject, out);
}

/* ---- the confusion matrix ---- */

static cr_status write_matrix(const struct cr_args *args, const struct evaluation *e) {
    struct cr_text csv = {0};
    if (cr_csv_add_confusion(&csv, &e->confusion, e->names.at))
        cr_log(
            CR_LOG_INFO,
            "the confusion matrix of %d classes is a list: a line label,predicted,images for each cell that is not 0",
            e->confusion.classes);
    return cr_cmd_write_file(args, e->matrix, CR_OUTPUT_CONFUSION, &csv);
}

/* ---- the table of predictions ---- */

static void softmax(const float *logits, int classes, float *out) {
    double largest = -INFINITY, sum = 0;
    for (int k = 0; k < classes; k++) largest = fmax(largest, (double)logits[k]);
    for (int k = 0; k < classes; k++) sum += exp((double)logits[k] - largest);
    for (int k = 0; k < classes; k++) out[k] = (float)(exp((double)logits[k] - largest) / sum);
}

static void sigmoids(const float *logits, int classes, float *out) {
    for (int k = 0; k < classes; k++) out[k] = (float)cr_label_probability((double)logits[k]);
}

static void add_line(struct table *t, const int32_t *labels, const float *probabilities) {
    char path[CR_PATH_MAX + 64];
    cr_dataset_sample_name(t->dataset, t->next++, path, sizeof path);
    if (t->status == CR_OK) t->status = cr_predictions_csv_add(&t->csv, path, labels, probabilities);
}

/* Adds a line with empty fields for each image before `end` that the evaluation has skipped. */
static void add_unreadable(struct table *t, int64_t end) {
    while (t->next < end && t->status == CR_OK) add_line(t, NULL, NULL);
}

static void on_sample(void *self, int64_t sample, const int32_t *labels, const float *logits, const float *features) {
    struct evaluation *e = self;
    if (e->confusion.classes) {
        const struct cr_sample_callback count = cr_confusion_callback(&e->confusion);
        count.on_sample(count.self, sample, labels, logits, features);
    }
    if (e->scale && e->logits_status == CR_OK) e->logits_status = cr_temperature_add(&e->logits, *labels, logits);
    if (e->reject.wanted) cr_reject_choice_add(&e->reject, *labels, logits, features);
    if (!e->table.csv.name || e->table.status != CR_OK) return;
    add_unreadable(&e->table, sample);
    (e->table.csv.threshold ? sigmoids : softmax)(logits, e->table.csv.classes, e->table.probabilities);
    add_line(&e->table, labels, e->table.probabilities);
}

static cr_status start_table(struct evaluation *e, const struct cr_config *config, const struct cr_dataset *dataset,
                             int classes) {
    e->table.dataset = dataset;
    if (config->data.multi_label) {
        CR_ALLOC(e->table.threshold, (size_t)classes);
        CR_TRY(cr_saved_model_thresholds(config->model.weights, classes, e->table.threshold));
        e->table.csv.threshold = e->table.threshold;
    }
    CR_ALLOC(e->table.probabilities, (size_t)classes);
    return cr_predictions_csv_start(&e->table.csv, classes, true, &e->names);
}

static cr_status finish_table(struct table *t) {
    add_unreadable(t, t->dataset->count);
    CR_TRY(t->status);
    return cr_predictions_csv_finish(&t->csv);
}

/* ---- the command ---- */

static cr_status evaluate(const struct cr_config *config, enum cr_split split, struct evaluation *e) {
    struct cr_dataset              *dataset  = NULL;
    struct cr_session               session  = {0};
    const struct cr_sample_callback callback = {.self = e, .on_sample = on_sample};
    const bool                      several  = config->data.multi_label;
    const bool                      count = !several && (e->per_class || e->matrix), table = e->table.csv.name != NULL,
               each = count || table || e->scale || e->reject.wanted;
    cr_status status;
    CR_TRY_OUT(cr_dataset_open(config, split, &dataset));
    CR_TRY_OUT(cr_saved_model_add_classes(config, dataset));
    struct cr_session_options options = {
        .eval = true, .execute = true, .keep_features = e->reject.wanted, .classes = dataset->classes};
    CR_TRY_OUT(cr_session_open(config, &options, &session));
    cr_log(CR_LOG_INFO, "device: %s", session.device->caps.text);
    CR_TRY_OUT(cr_session_load_weights(&session, config->model.weights, true));
    CR_TRY_OUT(cr_saved_model_number_classes(config, dataset, true, CR_CMD_SCORES_BY_NUMBER));
    if (count || table || several) CR_TRY_OUT(cr_cmd_names_of(dataset, &e->names));
    if (count) CR_TRY_OUT(cr_confusion_open(session.model.classes, &e->confusion));
    if (table) CR_TRY_OUT(start_table(e, config, dataset, session.model.classes));
    e->classes = session.model.classes;
    e->logits  = (struct cr_label_scores){.classes  = session.model.classes,
                                          .words    = 1,
                                          .expected = dataset->count,
                                          .advice   = "leave --temperature out, or give a smaller validation set"};
    if (e->reject.wanted) CR_TRY_OUT(cr_reject_choice_prepare(&e->reject, config, &session, dataset->count));
    CR_TRY_OUT(cr_session_evaluate_each(&session, dataset, NULL, each ? &callback : NULL, &e->scores));
    CR_TRY_OUT(e->logits_status);
    CR_TRY_OUT(cr_confusion_finish(&e->confusion));
    if (several) CR_TRY_OUT(cr_label_table_open(&session, config->model.weights, &e->labels));
    if (table) CR_TRY_OUT(finish_table(&e->table));
    if (e->reject.wanted) CR_TRY_OUT(cr_reject_choice_finish(&e->reject, config, &session));
out:
    cr_session_close(&session);
    cr_dataset_close(dataset);
    return status;
}

/* Checks the names of output files before the work. */
static cr_status check_outputs(const struct cr_args *args, struct evaluation *e) {
    const char *csv = args->value[CR_OPT_PREDICTIONS_CSV];
    if (cr_args_has(args, CR_OPT_REPLACE) && !e->matrix && !csv)
        return cr_args_fail(args, "--force needs --confusion FILE or --csv FILE, which it replaces: leave it out");
    if (e->matrix && csv && (strcmp(e->matrix, csv) == 0 || (cr_cmd_is_stdout(e->matrix) && cr_cmd_is_stdout(csv))))
        return cr_args_fail(args, "--confusion and --csv name the same output: give two names");
    if (e->matrix) CR_TRY(cr_cmd_output_check(args, e->matrix, CR_OUTPUT_CONFUSION));
    return csv ? cr_cmd_output_check(args, csv, CR_OUTPUT_PREDICTIONS) : CR_OK;
}

/* Prints the scores, to standard error when standard output carries a matrix or table. */
static void print(const struct cr_config *config, const struct evaluation *e, struct cr_text *out) {
    if (e->json)
        print_json(config, e, out);
    else
        print_scores(e, out);
    if (e->table.csv.to_stdout || (e->matrix && cr_cmd_is_stdout(e->matrix))) cr_cmd_print_aside(out);
}

cr_status cr_cmd_eval(const struct cr_args *args, struct cr_result *out) {
    struct evaluation       e = {.json      = cr_args_has(args, CR_OPT_JSON),
                                 .per_class = cr_args_has(args, CR_OPT_PER_CLASS),
                                 .scale     = cr_args_has(args, CR_OPT_TEMPERATURE),
                                 .matrix    = args->value[CR_OPT_CONFUSION]};
    const struct cr_config *config;
    int                     split;
    cr_status               status;
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_args_word(args, CR_OPT_SPLIT, &split));
    CR_TRY(check_outputs(args, &e));
    CR_TRY(cr_cmd_config_of_weights(args, &config));
    if (config->data.multi_label && (e.matrix || e.scale))
        CR_TRY_OUT(cr_args_fail(args, "%s needs one label per image, but data.multi_label = yes: leave it out",
                                e.matrix ? "--confusion" : "--temperature"));
    e.split = split ? "train" : "val";
    e.tta   = config->data.tta;
    CR_TRY_OUT(cr_reject_choice_open(args, config, &e.reject));
    CR_TRY_OUT(cr_predictions_csv_open(args, &e.table.csv));
    CR_TRY_OUT(evaluate(config, split ? CR_SPLIT_TRAIN : CR_SPLIT_VAL, &e));
    if (e.matrix) CR_TRY_OUT(write_matrix(args, &e));
    print(config, &e, &out->text);
out:
    cr_predictions_csv_close(&e.table.csv);
    cr_free(e.table.probabilities);
    cr_free(e.table.threshold);
    cr_arena_free(&e.labels.arena);
    cr_reject_choice_close(&e.reject);
    cr_confusion_close(&e.confusion);
    cr_label_scores_free(&e.logits);
    cr_arena_free(&e.names.arena);
    cr_config_close(config);
    return status;
}
