/* cli/commands/eval.c: cresnet eval: accuracy and loss of weights on a split, per-class scores, the confusion matrix.
 */
#include "cli/common/command.h"
#include "core/utf8.h"
#include "session/confusion.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The options of the command and its results. */
struct evaluation {
    const char         *split;
    bool                json, per_class;
    const char         *matrix; /* CSV file to write, or NULL */
    struct cr_scores    scores;
    struct cr_confusion confusion; /* has no classes unless per_class or matrix is set */
    struct cr_cmd_names names;
};

static double fraction(int64_t part, int64_t all) {
    return all ? (double)part / (double)all : 0;
}

/* ---- JSON ---- */

static void json_fraction(struct cr_text *out, const char *name, int64_t part, int64_t all) {
    if (all)
        cr_text_add(out, ", \"%s\": %.6f", name, fraction(part, all));
    else
        cr_text_add(out, ", \"%s\": null", name);
}

static void json_class(const struct evaluation *e, int label, struct cr_text *out) {
    const struct cr_class_score s = cr_confusion_class(&e->confusion, label);
    cr_text_add(out, "%s{\"label\": %d, \"class\": ", label ? ", " : "", label);
    cr_text_add_json(out, e->names.at[label]);
    cr_text_add(out, ", \"images\": %lld, \"correct\": %lld", (long long)s.images, (long long)s.correct);
    json_fraction(out, "top1", s.correct, s.images);
    cr_text_add(out, ", \"predicted\": %lld", (long long)s.predicted);
    json_fraction(out, "precision", s.correct, s.predicted);
    if (s.confused_with < 0) {
        cr_text_add(out, ", \"confused_with\": null}");
        return;
    }
    cr_text_add(out, ", \"confused_with\": {\"label\": %d, \"class\": ", s.confused_with);
    cr_text_add_json(out, e->names.at[s.confused_with]);
    cr_text_add(out, ", \"images\": %lld}}", (long long)s.confused);
}

static void print_json(const struct cr_config *config, const struct evaluation *e, struct cr_text *out) {
    const struct cr_scores *s    = &e->scores;
    const double            loss = s->loss_sum / (double)CR_MAX(s->images, 1);
    cr_text_add(
        out,
        "{\"split\": \"%s\", \"images\": %lld, \"correct\": %lld, \"correct5\": %lld, \"top1\": %.6f, \"top5\": %.6f, ",
        e->split, (long long)s->images, (long long)s->correct1, (long long)s->correct5,
        fraction(s->correct1, s->images), fraction(s->correct5, s->images));
    if (isfinite(loss))
        cr_text_add(out, "\"loss\": %.6f, ", loss);
    else
        cr_text_add(out, "\"loss\": null, "); /* JSON has no NaN and no infinity */
    cr_text_add(out,
                "\"corrupt\": %lld, \"seconds\": %.3f, \"images_per_s\": %.1f, \"weights\": ", (long long)s->corrupt,
                s->seconds, s->seconds > 0 ? (double)s->images / s->seconds : 0);
    cr_text_add_json(out, config->model.weights);
    if (e->per_class) {
        cr_text_add(out, ", \"per_class\": [");
        for (int i = 0; i < e->confusion.classes; i++) json_class(e, i, out);
        cr_text_add(out, "]");
    }
    cr_text_add(out, "}\n");
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
        width = CR_MAX(width, (int)CR_MIN(strlen(e->names.at[i]), (size_t)40));
    cr_text_add(out, "%6s  %-*s %8s %8s %10s %10s  %s\n", "label", width, "class", "images", "correct", "top-1",
                "precision", "most confused with");
    for (int i = 0; i < e->confusion.classes; i++) {
        const struct cr_class_score s = cr_confusion_class(&e->confusion, i);
        cr_text_add(out, "%6d  %-*s %8lld %8lld", i, width, e->names.at[i], (long long)s.images, (long long)s.correct);
        print_fraction(out, s.correct, s.images);
        print_fraction(out, s.correct, s.predicted);
        if (s.confused_with >= 0) cr_text_add(out, "  %s (%lld)", e->names.at[s.confused_with], (long long)s.confused);
        cr_text_add(out, "\n");
    }
}

static void print_scores(const struct evaluation *e, struct cr_text *out) {
    const struct cr_scores *s = &e->scores;
    if (e->per_class) print_classes(e, out);
    cr_text_add(out, "%s: %lld of %lld correct: top-1 %.2f %%, top-5 %.2f %%, loss %.4f  (%.1f s, %.0f images/s)\n",
                e->split, (long long)s->correct1, (long long)s->images, 100 * fraction(s->correct1, s->images),
                100 * fraction(s->correct5, s->images), s->loss_sum / (double)CR_MAX(s->images, 1), s->seconds,
                s->seconds > 0 ? (double)s->images / s->seconds : 0);
    if (s->corrupt) cr_text_add(out, "%lld unreadable images were skipped\n", (long long)s->corrupt);
}

/* ---- the confusion matrix ---- */

/* Adds a CSV field (RFC 4180) as valid UTF-8, in quotes where needed. */
static void csv_field(struct cr_text *out, const char *s) {
    const bool     quoted = s[strcspn(s, ",\"\r\n")] != 0;
    const char    *quote  = quoted ? "\"" : "";
    struct cr_text field  = {0};
    cr_text_add_utf8(&field, s);
    out->failed |= field.failed;
    cr_text_add(out, "%s", quote);
    for (const char *c = field.data ? field.data : ""; *c; c++)
        cr_text_add_bytes(out, *c == '"' ? "\"\"" : c, *c == '"' ? 2 : 1);
    cr_text_add(out, "%s", quote);
    cr_text_free(&field);
}

static cr_status write_matrix(const struct cr_args *args, const struct evaluation *e) {
    const struct cr_confusion *c   = &e->confusion;
    struct cr_text             csv = {0};
    cr_text_add(&csv, CR_OUTPUT_CSV_START);
    for (int k = 0; k < c->classes; k++) {
        cr_text_add(&csv, ",");
        csv_field(&csv, e->names.at[k]);
    }
    for (int i = 0; i < c->classes; i++) {
        cr_text_add(&csv, "\n");
        csv_field(&csv, e->names.at[i]);
        for (int k = 0; k < c->classes; k++)
            cr_text_add(&csv, ",%lld", (long long)c->count[(size_t)i * (size_t)c->classes + (size_t)k]);
    }
    cr_text_add(&csv, "\n");
    cr_status status = csv.failed ? CR_NO_MEMORY(csv.length)
                                  : cr_cmd_write_file(args, e->matrix, CR_OUTPUT_CONFUSION, csv.data, csv.length);
    cr_text_free(&csv);
    return status;
}

/* ---- the command ---- */

static cr_status evaluate(const struct cr_config *config, enum cr_split split, struct evaluation *e) {
    struct cr_dataset        *dataset = NULL;
    struct cr_session         session = {0};
    struct cr_sample_callback on_sample;
    const bool                count_classes = e->per_class || e->matrix;
    cr_status                 status;
    CR_TRY_OUT(cr_dataset_open(config, split, &dataset));
    struct cr_session_options options = {.eval = true, .execute = true, .classes = cr_dataset_classes(dataset)};
    CR_TRY_OUT(cr_session_open(config, &options, &session));
    cr_log(CR_LOG_INFO, "device: %s", session.device->caps.text);
    CR_TRY_OUT(cr_session_load_weights(&session, config->model.weights, true));
    if (count_classes) {
        CR_TRY_OUT(cr_confusion_open(session.model.classes, &e->confusion));
        CR_TRY_OUT(cr_cmd_names_of(dataset, &e->names));
    }
    on_sample = cr_confusion_callback(&e->confusion);
    CR_TRY_OUT(cr_session_evaluate_each(&session, dataset, NULL, count_classes ? &on_sample : NULL, &e->scores));
out:
    cr_session_close(&session);
    cr_dataset_close(dataset);
    return status;
}

cr_status cr_cmd_eval(const struct cr_args *args, int *signal_taken) {
    static const char *const splits[] = {"val", "train", NULL};
    struct evaluation        e        = {.json      = cr_args_has(args, CR_OPT_JSON),
                                         .per_class = cr_args_has(args, CR_OPT_PER_CLASS),
                                         .matrix    = args->value[CR_OPT_CONFUSION]};
    struct cr_config         config;
    struct cr_text           text = {0};
    int                      split;
    cr_status                status;
    (void)signal_taken;
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_args_word(args, CR_OPT_SPLIT, splits, &split));
    if (cr_args_has(args, CR_OPT_REPLACE) && !e.matrix)
        return cr_args_fail(args, "--force needs --confusion FILE, which it replaces: leave it out");
    if (e.matrix) CR_TRY(cr_cmd_output_check(args, e.matrix, CR_OUTPUT_CONFUSION));
    CR_TRY(cr_cmd_config(args, &config));
    if (!*config.model.weights) {
        status = cr_args_fail(args, "no weights to evaluate: give --weights FILE, or a run folder instead of %s",
                              args->operand[0]);
        goto out;
    }
    e.split = splits[split];
    CR_TRY_OUT(evaluate(&config, split ? CR_SPLIT_TRAIN : CR_SPLIT_VAL, &e));
    if (e.matrix) CR_TRY_OUT(write_matrix(args, &e));
    if (e.json)
        print_json(&config, &e, &text);
    else
        print_scores(&e, &text);
    if (e.matrix && cr_cmd_is_stdout(e.matrix)) /* standard output carries the matrix alone */
        fputs(text.data && !text.failed ? text.data : "", stderr);
    else
        CR_TRY_OUT(cr_cmd_print(&text));
out:
    cr_text_free(&text);
    cr_confusion_close(&e.confusion);
    cr_arena_free(&e.names.arena);
    cr_config_close(&config);
    return status;
}
