/* cli/commands/predict.c: cresnet predict: classifies images and folders of images. The class names come from the
 * checkpoint of the weights, else from the dataset of the configuration; else classes are numbered. */
#include "cli/common/command.h"
#include "core/utf8.h"
#include "formats/json_write.h"
#include "session/session.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { BATCH_MAX = 32, TOP_DEFAULT = 5, TOP_MAX = 1000000, PRINT_IMAGES = 256, COLUMN_MAX = 60 };

/* The images to classify, and the form of the output. */
struct request {
    const char        **path;
    int64_t             images;
    bool                json, table; /* neither: each image with a list of classes */
    int                 top;
    int                 path_width, class_width; /* columns of the table */
    struct cr_cmd_names names;
    struct cr_arena     arena;
    int64_t             unreadable;
};

/* Class names of the dataset; a missing dataset is a warning. */
static cr_status names_from_data(const struct cr_config *config, struct cr_cmd_names *out) {
    struct cr_dataset *dataset;
    if (cr_dataset_open(config, CR_SPLIT_VAL, &dataset) != CR_OK) {
        cr_log(CR_LOG_WARN, "no class names, printing class numbers: %s", cr_error_message());
        cr_error_clear();
        return CR_OK;
    }
    cr_status status = cr_cmd_names_of(dataset, out);
    cr_dataset_close(dataset);
    return status;
}

/* ---- images ---- */

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

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
        const char **paths = &args->operand[i];
        int64_t      count = 1;
        if (is_folder(args->operand[i])) {
            r->table = !r->json;
            CR_TRY(cr_folder_images(args->operand[i], &r->arena, &paths, &count));
            if (!count) cr_log(CR_LOG_WARN, "%s: contains no images (jpg, jpeg, png)", args->operand[i]);
        }
        CR_TRY(add_paths(r, paths, count));
    }
    if (!r->images) return CR_FAIL(CR_ERR_IO, "no images found");
    return CR_OK;
}

/* ---- printing ---- */

static const char *class_name(const struct cr_cmd_names *names, int label, char *buffer, size_t bytes) {
    if (label < names->count) return names->at[label];
    snprintf(buffer, bytes, "class %d", label);
    return buffer;
}

static void print_list(const struct request *r, const char *path, const struct cr_prediction *p, struct cr_text *out) {
    char number[32];
    if (!p->count) return;
    cr_text_add_visible(out, path);
    cr_text_add(out, "\n");
    for (int i = 0; i < CR_MIN(r->top, p->count); i++)
        cr_text_add(out, "  %6.2f %%  %s\n", 100 * (double)p->probability[i],
                    class_name(&r->names, p->label[i], number, sizeof number));
}

static void print_line(const struct request *r, const char *path, const struct cr_prediction *p, struct cr_text *out) {
    char number[32];
    char shown[PATH_MAX];
    cr_utf8_visible(path, false, shown, sizeof shown);
    cr_text_add(out, "%-*s", r->path_width, shown);
    if (!p->count) cr_text_add(out, "  unreadable");
    for (int i = 0; i < CR_MIN(r->top, p->count); i++) {
        const bool last = i == CR_MIN(r->top, p->count) - 1;
        cr_text_add(out, "  %6.2f %%  %-*s", 100 * (double)p->probability[i], last ? 0 : r->class_width,
                    class_name(&r->names, p->label[i], number, sizeof number));
    }
    cr_text_add(out, "\n");
}

static void print_json(const struct request *r, const char *path, const struct cr_prediction *p, struct cr_text *out) {
    char                  number[32];
    struct cr_json_writer w = cr_json_writer(out, CR_JSON_SPACED);
    cr_json_open_object(&w, NULL);
    cr_json_put_string(&w, "image", path);
    if (p->count) {
        cr_json_open_array(&w, "top");
        for (int i = 0; i < CR_MIN(r->top, p->count); i++) {
            cr_json_open_object(&w, NULL);
            cr_json_put_int(&w, "label", p->label[i]);
            cr_json_put_string(&w, "class", class_name(&r->names, p->label[i], number, sizeof number));
            cr_json_put_general(&w, "probability", (double)p->probability[i], 9);
            cr_json_close_object(&w);
        }
        cr_json_close_array(&w);
    } else
        cr_json_put_string(&w, "error", p->error);
    cr_json_close_object(&w);
    cr_json_end_line(&w);
}

/* Sets the column widths to those of the longest entries, at most COLUMN_MAX. */
static void set_widths(struct request *r) {
    char number[32];
    for (int64_t i = 0; i < r->images; i++)
        r->path_width = CR_MAX(r->path_width, (int)CR_MIN(strlen(r->path[i]), (size_t)COLUMN_MAX));
    for (int i = 0; i < r->names.count; i++)
        r->class_width = CR_MAX(
            r->class_width, (int)CR_MIN(strlen(class_name(&r->names, i, number, sizeof number)), (size_t)COLUMN_MAX));
}

/* ---- the command ---- */

static cr_status predict_range(struct cr_session *session, struct request *r, int64_t first, int count,
                               struct cr_prediction *result) {
    struct cr_text text = {0};
    CR_TRY(cr_session_predict(session, r->path + first, count, result));
    for (int i = 0; i < count; i++) {
        if (!result[i].count) {
            r->unreadable++;
            cr_log(CR_LOG_WARN, "%s", result[i].error);
        }
        (r->json ? print_json : r->table ? print_line : print_list)(r, r->path[first + i], &result[i], &text);
    }
    return cr_cmd_print(&text);
}

/* Predictions with room for `top` classes each. */
struct results {
    struct cr_prediction *at;
    int                  *label;
    float                *probability;
};

static cr_status results_open(int count, int top, struct results *out) {
    const size_t elems = (size_t)count * (size_t)top;
    *out               = (struct results){.at          = cr_alloc((size_t)count, sizeof *out->at),
                                          .label       = cr_alloc(elems, sizeof *out->label),
                                          .probability = cr_alloc(elems, sizeof *out->probability)};
    if (!out->at || !out->label || !out->probability)
        return CR_NO_MEMORY(elems * (sizeof *out->label + sizeof *out->probability));
    for (int i = 0; i < count; i++)
        out->at[i] = (struct cr_prediction){.label       = out->label + (size_t)i * (size_t)top,
                                            .probability = out->probability + (size_t)i * (size_t)top,
                                            .top         = top};
    return CR_OK;
}

static void results_close(struct results *results) {
    cr_free(results->at);
    cr_free(results->label);
    cr_free(results->probability);
}

static cr_status predict(const struct cr_args *args, const struct cr_config *config, struct request *r) {
    struct results    results = {0};
    struct cr_session session = {0};
    cr_status         status;
    CR_TRY_OUT(cr_cmd_names_load(config->model.weights, &r->names));
    if (!r->names.count) CR_TRY_OUT(names_from_data(config, &r->names));
    struct cr_session_options options = {
        .eval = true, .execute = true, .eval_batch = CR_MIN(r->images, BATCH_MAX), .classes = r->names.count};
    CR_TRY_OUT(cr_session_open(config, &options, &session));
    CR_TRY_OUT(cr_session_load_weights(&session, config->model.weights, true));
    if (cr_args_has(args, CR_OPT_TOP) && r->top > session.model.classes) {
        status = cr_args_fail(args, "--top %d: the network has %d classes: give a number from 1 to %d", r->top,
                              session.model.classes, session.model.classes);
        goto out;
    }
    CR_TRY_OUT(results_open((int)CR_MIN(r->images, PRINT_IMAGES), CR_MIN(r->top, session.model.classes), &results));
    set_widths(r);
    for (int64_t first = 0; first < r->images; first += PRINT_IMAGES)
        CR_TRY_OUT(predict_range(&session, r, first, (int)CR_MIN(r->images - first, PRINT_IMAGES), results.at));
    if (r->unreadable)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%lld of %lld images could not be read", (long long)r->unreadable,
                    (long long)r->images);
out:
    results_close(&results);
    cr_session_close(&session);
    return status;
}

cr_status cr_cmd_predict(const struct cr_args *args, int *signal_taken) {
    struct cr_config config;
    struct request   r = {.json = cr_args_has(args, CR_OPT_JSON)};
    int64_t          top;
    cr_status        status;
    (void)signal_taken;
    CR_TRY(cr_args_int(args, CR_OPT_TOP, 1, TOP_MAX, 0, &top));
    CR_TRY(cr_cmd_config(args, &config));
    if (args->operands < 2) {
        status = cr_args_fail(args, "no image given: cresnet predict %s IMAGE|FOLDER ...", args->operand[0]);
        goto out;
    }
    if (!*config.model.weights) {
        status = cr_args_fail(args, "no weights: give --weights FILE, or a run folder instead of %s", args->operand[0]);
        goto out;
    }
    CR_TRY_OUT(find_images(args, &r));
    r.top = top ? (int)top : r.table ? 1 : TOP_DEFAULT;
    CR_TRY_OUT(predict(args, &config, &r));
out:
    cr_free(r.path);
    cr_arena_free(&r.arena);
    cr_arena_free(&r.names.arena);
    cr_config_close(&config);
    return status;
}
