/* cli/commands/predict.c: cresnet predict: classifies images and folders of images. The class names come from the
 * checkpoint of the weights, else from the dataset of the configuration; else classes are numbered. */
#include "api/model.h"
#include "cli/common/predictions_csv.h"
#include "core/utf8.h"
#include "formats/json_write.h"

#include <limits.h>
#include <string.h>

enum { BATCH_MAX = 32, TOP_DEFAULT = 5, TOP_MAX = 1000000, PRINT_IMAGES = 256, COLUMN_MAX = 60 };

/* The classes of one image. */
struct prediction {
    const int32_t *label;       /* [count] */
    const float   *probability; /* [count] */
    int            count;
    double         score; /* with --reject */
    bool           rejected;
    bool           failed; /* the image could not be read, with the reason in `error` */
    const char    *error;
};

/* The images to classify, and the form of the output. */
struct request {
    const char        **path;
    int64_t             images;
    enum cr_tta         tta;
    bool                json, table;             /* neither: each image with a list of classes */
    bool                reject;                  /* images are scored, and may be rejected */
    int64_t             rejected;                /* number of such images */
    int                 top;                     /* classes to print per image */
    int                 ranked;                  /* classes that the network ranks: all of them with --csv */
    int                 path_width, class_width; /* columns of the table */
    struct cr_cmd_names names;
    struct cr_arena     arena;
    int64_t             unreadable;
    double             *threshold;  /* [classes] when images have several labels; else NULL */
    bool                above_only; /* with thresholds: print the labels above them; else `top` labels */

    struct cr_predictions_csv csv;
    float                    *by_class; /* [classes]: probabilities of one image for the table of --csv */
};

/* ---- images ---- */

static cr_status add_paths(struct request *r, const char *const *paths, int64_t count) {
    if (!count) return CR_OK;
    const char **grown = cr_realloc(r->path, (size_t)(r->images + count), sizeof *grown);
    if (!grown) return CR_NO_MEMORY((size_t)(r->images + count) * sizeof *grown);
    r->path = grown;
    memcpy(r->path + r->images, paths, (size_t)count * sizeof *paths);
    r->images += count;
    return CR_OK;
}

static cr_status find_images(const struct cr_args *args, struct request *r) {
    for (int i = 1; i < args->operands; i++) {
        const char  *given = args->operand[i];
        const char **paths = &given;
        int64_t      count = 1;
        CR_TRY(cr_cmd_input_image(args, &given));
        if (cr_fs_is_dir(given)) {
            r->table = !r->json;
            CR_TRY(cr_folder_images(given, &r->arena, &paths, &count));
            if (!count) cr_log(CR_LOG_WARN, "%s: contains no images (" CR_IMAGE_ENDINGS ")", given);
        }
        CR_TRY(add_paths(r, paths, count));
    }
    if (!r->images) return CR_FAIL(CR_ERR_IO, "no images found");
    return CR_OK;
}

/* ---- printing ---- */

static void print_list(const struct request *r, const char *path, const struct prediction *p, struct cr_text *out) {
    char number[32];
    if (p->failed) return;
    cr_text_add_visible(out, path);
    if (r->reject) cr_text_add(out, "  score %.6g%s", p->score, p->rejected ? ", rejected" : "");
    cr_text_add(out, "\n");
    if (!p->count) cr_text_add(out, "  no label\n");
    for (int i = 0; i < p->count; i++)
        cr_text_add(out, "  %6.2f %%  %s\n", 100 * (double)p->probability[i],
                    cr_cmd_class_name(&r->names, p->label[i], number, sizeof number));
}

static void print_line(const struct request *r, const char *path, const struct prediction *p, struct cr_text *out) {
    char number[32];
    char shown[PATH_MAX];
    cr_utf8_visible(path, false, shown, sizeof shown);
    cr_text_add(out, "%-*s", cr_utf8_field(shown, r->path_width), shown);
    if (!p->count) cr_text_add(out, p->failed ? "  unreadable" : "  no label");
    if (r->reject && !p->failed) cr_text_add(out, "  %-8s %12.6g", p->rejected ? "rejected" : "", p->score);
    for (int i = 0; i < p->count; i++) {
        const char *name = cr_cmd_class_name(&r->names, p->label[i], number, sizeof number);
        cr_text_add(out, "  %6.2f %%  %-*s", 100 * (double)p->probability[i],
                    i == p->count - 1 ? 0 : cr_utf8_field(name, r->class_width), name);
    }
    cr_text_add(out, "\n");
}

static void print_json(const struct request *r, const char *path, const struct prediction *p, struct cr_text *out) {
    char                  number[32];
    struct cr_json_writer w = cr_json_open_line(out);
    cr_json_put_string(&w, "image", path);
    if (r->tta != CR_TTA_NONE) cr_json_put_string(&w, "tta", cr_word_tta(r->tta));
    if (!p->failed) {
        cr_json_open_array(&w, r->above_only ? "labels" : "top");
        for (int i = 0; i < p->count; i++) {
            cr_json_open_object(&w, NULL);
            cr_json_put_int(&w, "label", p->label[i]);
            cr_json_put_string(&w, "class", cr_cmd_class_name(&r->names, p->label[i], number, sizeof number));
            cr_json_put_general(&w, "probability", (double)p->probability[i], 9);
            if (r->threshold) cr_json_put_general(&w, "threshold", r->threshold[p->label[i]], 9);
            cr_json_close_object(&w);
        }
        cr_json_close_array(&w);
        if (r->reject) cr_json_put_general(&w, "score", p->score, 17);
        if (r->reject) cr_json_put_bool(&w, "rejected", p->rejected);
    } else
        cr_json_put_string(&w, "error", p->error);
    cr_json_close_line(&w);
}

/* Sets the column widths to those of the longest entries, at most COLUMN_MAX. */
static void set_widths(struct request *r) {
    char number[32];
    for (int64_t i = 0; i < r->images; i++)
        r->path_width = CR_MAX(r->path_width, CR_MIN(cr_utf8_characters(r->path[i]), COLUMN_MAX));
    for (int i = 0; i < r->names.count; i++) {
        const int count = cr_utf8_characters(cr_cmd_class_name(&r->names, i, number, sizeof number));
        r->class_width  = CR_MAX(r->class_width, CR_MIN(count, COLUMN_MAX));
    }
}

/* ---- the command ---- */

/* Room for the results of PRINT_IMAGES images. */
struct results {
    int32_t       *label;       /* [images][top] */
    float         *probability; /* [images][top] */
    cresnet_error *error;       /* [images] */
    double        *score;       /* [images] */
    uint8_t       *rejected;    /* [images] */
};

static cr_status results_open(struct request *r, struct results *out) {
    const size_t count = (size_t)CR_MIN(r->images, PRINT_IMAGES), elems = count * (size_t)r->ranked;
    CR_ARENA_ALLOC(&r->arena, out->label, elems);
    CR_ARENA_ALLOC(&r->arena, out->probability, elems);
    CR_ARENA_ALLOC(&r->arena, out->error, count);
    CR_ARENA_ALLOC(&r->arena, out->score, count);
    CR_ARENA_ALLOC(&r->arena, out->rejected, count);
    return CR_OK;
}

/* The error of a call to the library as an error of the program. */
static cr_status from_library(const cresnet_error *error) {
    static const cr_status of_program[] = {
        [CRESNET_ERROR_ARGUMENT] = CR_ERR_CONFIG, [CRESNET_ERROR_CONFIG] = CR_ERR_CONFIG,
        [CRESNET_ERROR_IO] = CR_ERR_IO,           [CRESNET_ERROR_FORMAT] = CR_ERR_FORMAT,
        [CRESNET_ERROR_MEMORY] = CR_ERR_MEMORY,   [CRESNET_ERROR_NOT_FINITE] = CR_ERR_NUMERIC,
        [CRESNET_ERROR_DEVICE] = CR_ERR_DEVICE,   [CRESNET_ERROR_BROKEN] = CR_ERR_DEVICE};
    return error->status == CRESNET_OK ? CR_OK : CR_FAIL(of_program[error->status], "%s", error->text);
}

/* Adds a line to the table of --csv; all classes are ranked. */
static cr_status add_to_table(struct request *r, const char *path, const struct prediction *p) {
    for (int i = 0; i < r->ranked && !p->failed; i++) r->by_class[p->label[i]] = p->probability[i];
    r->csv.score    = p->score;
    r->csv.rejected = p->rejected;
    return cr_predictions_csv_add(&r->csv, path, NULL, p->failed ? NULL : r->by_class);
}

/* Keeps the labels above their thresholds. Returns their number. */
static int keep_above(const struct request *r, int32_t *label, float *probability) {
    int above = 0;
    for (int i = 0; i < r->ranked; i++) {
        if (!((double)probability[i] > r->threshold[label[i]])) continue;
        label[above]         = label[i];
        probability[above++] = probability[i];
    }
    return above;
}

static cr_status predict_range(cresnet_model *model, struct request *r, int64_t first, int count,
                               const struct results *results) {
    struct cr_text text = {0};
    cresnet_error  error;
    cresnet_output output;
    cr_status      status;
    cresnet_output_init(&output);
    output.top           = r->ranked;
    output.labels        = results->label;
    output.probabilities = results->probability;
    output.image_errors  = results->error;
    output.scores        = r->reject ? results->score : NULL;
    output.rejected      = r->reject ? results->rejected : NULL;
    (void)cresnet_classify_files(model, r->path + first, count, &output, &error);
    CR_TRY(from_library(&error));
    for (int i = 0; i < count; i++) {
        const bool        failed = results->error[i].status != CRESNET_OK;
        const size_t      at     = (size_t)i * (size_t)r->ranked;
        struct prediction p      = {.label       = results->label + at,
                                    .probability = results->probability + at,
                                    .count       = failed ? 0 : r->top,
                                    .score       = results->score[i],
                                    .rejected    = results->rejected[i],
                                    .failed      = failed,
                                    .error       = results->error[i].text};
        r->rejected += p.rejected;
        if (failed) {
            r->unreadable++;
            cr_log(CR_LOG_WARN, "%s", p.error);
        }
        if (r->csv.name) CR_TRY_OUT(add_to_table(r, r->path[first + i], &p));
        if (r->above_only && !failed) p.count = keep_above(r, results->label + at, results->probability + at);
        if (!r->csv.to_stdout)
            (r->json ? print_json : r->table ? print_line : print_list)(r, r->path[first + i], &p, &text);
    }
    return cr_cmd_print(&text);
out:
    cr_text_free(&text);
    return status;
}

static cr_status check_top(const struct cr_args *args, struct request *r, const cresnet_model *model) {
    cresnet_info info = {.size = sizeof info};
    if (cresnet_get_info(model, &info) != CRESNET_OK) return CR_FAIL(CR_ERR_DEVICE, "the model cannot be described");
    if (cr_args_has(args, CR_OPT_TOP) && r->top > info.classes)
        return cr_args_fail(args, "--top %d: the network has %d classes: give a number from 1 to %d", r->top,
                            info.classes, info.classes);
    r->top        = CR_MIN(r->top, info.classes);
    r->above_only = info.multi_label && !cr_args_has(args, CR_OPT_TOP);
    r->ranked     = r->csv.name || r->above_only ? info.classes : r->top;
    if (r->reject && !info.reject_score)
        return cr_args_fail(args, "--reject: no threshold was chosen for %s: cresnet eval %s --reject 0.05 does",
                            info.weights, args->operand[0]);
    r->csv.rejects = r->reject;
    if (info.multi_label) {
        CR_ARENA_ALLOC(&r->arena, r->threshold, (size_t)info.classes);
        for (int k = 0; k < info.classes; k++) r->threshold[k] = cresnet_threshold(model, k);
        r->csv.threshold = r->threshold;
    }
    if (!r->csv.name) return CR_OK;
    CR_ARENA_ALLOC(&r->arena, r->by_class, (size_t)info.classes);
    return cr_predictions_csv_start(&r->csv, info.classes, false, &r->names);
}

/* Opens the model, which takes the configuration over. */
static cr_status predict(const struct cr_args *args, const struct cr_config *config, struct request *r) {
    struct results  results;
    cresnet_model  *model = NULL;
    cresnet_options options;
    cresnet_error   error;
    cr_status       status;
    cresnet_options_init(&options);
    options.max_batch = (int)CR_MIN(r->images, BATCH_MAX);
    (void)cr_api_open_config(config, &options, &model, &error);
    CR_TRY_OUT(from_library(&error));
    CR_TRY_OUT(check_top(args, r, model));
    if (r->tta != CR_TTA_NONE)
        cr_log(CR_LOG_INFO, "test-time augmentation %s: probabilities of the mean logits of %d views per image",
               cr_word_tta(r->tta), cr_prepare_views(r->tta));
    CR_TRY_OUT(results_open(r, &results));
    set_widths(r);
    for (int64_t first = 0; first < r->images; first += PRINT_IMAGES)
        CR_TRY_OUT(predict_range(model, r, first, (int)CR_MIN(r->images - first, PRINT_IMAGES), &results));
    if (r->csv.name) CR_TRY_OUT(cr_predictions_csv_finish(&r->csv));
    if (r->reject)
        cr_log(CR_LOG_INFO, "rejected: %lld of %lld images", (long long)r->rejected,
               (long long)(r->images - r->unreadable));
    if (r->unreadable)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%lld of %lld images could not be read", (long long)r->unreadable,
                    (long long)r->images);
out:
    cresnet_close(model);
    return status;
}

/* Checks the name of the output file before the work. */
static cr_status check_output(const struct cr_args *args) {
    const char *csv = args->value[CR_OPT_PREDICTIONS_CSV];
    if (!csv)
        return cr_args_has(args, CR_OPT_REPLACE)
                   ? cr_args_fail(args, "--force needs --csv FILE, which it replaces: leave it out")
                   : CR_OK;
    if (cr_args_has(args, CR_OPT_JSON) && cr_cmd_is_stdout(csv))
        return cr_args_fail(args, "--json and --csv %s both print to standard output: give --csv FILE", csv);
    return cr_cmd_output_check(args, csv, CR_OUTPUT_PREDICTIONS);
}

cr_status cr_cmd_predict(const struct cr_args *args, struct cr_result *out) {
    const struct cr_config *config;
    struct request          r = {.json = cr_args_has(args, CR_OPT_JSON), .reject = cr_args_has(args, CR_OPT_REJECT)};
    int64_t                 top;
    cr_status               status;
    bool                    owned = true; /* until the model takes the configuration over */
    (void)out;                            /* prints as it goes */
    CR_TRY(check_output(args));
    CR_TRY(cr_args_int(args, CR_OPT_TOP, 1, TOP_MAX, 0, &top));
    CR_TRY(cr_cmd_config_of_weights(args, &config));
    if (args->operands < 2)
        CR_TRY_OUT(cr_args_fail(args, "no image given: cresnet predict %s IMAGE|FOLDER ...", args->operand[0]));
    r.tta = config->data.tta;
    CR_TRY_OUT(find_images(args, &r));
    CR_TRY_OUT(cr_predictions_csv_open(args, &r.csv));
    r.top = top ? (int)top : r.table ? 1 : TOP_DEFAULT;
    CR_TRY_OUT(cr_cmd_names_find(config, &r.names));
    owned  = false;
    status = predict(args, config, &r);
out:
    cr_predictions_csv_close(&r.csv);
    cr_free(r.path);
    cr_arena_free(&r.arena);
    cr_arena_free(&r.names.arena);
    if (owned) cr_config_close(config);
    return status;
}
