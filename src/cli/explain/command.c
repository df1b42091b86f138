/* cli/explain/command.c: cresnet explain: Grad-CAM of one image, as an overlay and as numbers. */
#include "cli/common/command.h"
#include "cli/explain/class_map.h"
#include "cli/explain/overlay.h"
#include "core/utf8.h"
#include "formats/json_write.h"
#include "session/labels/label_scores.h"
#include "session/saved_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct explanation {
    const char         *path;
    struct cr_image     image;
    struct cr_class_map map;
    double              box[4]; /* part of the image that the network saw, in pixels */
    double              probability, predicted_probability;
    struct cr_cmd_names names;
};

/* ---- the command line ---- */

static cr_status check_outputs(const struct cr_args *args) {
    const char *png = args->value[CR_OPT_OVERLAY], *csv = args->value[CR_OPT_MAP_CSV];
    const bool  json = cr_args_has(args, CR_OPT_JSON);
    if (!png && !csv) return cr_args_fail(args, "no output named: add -o FILE.png for the overlay");
    if (png && csv && (strcmp(png, csv) == 0 || (cr_cmd_is_stdout(png) && cr_cmd_is_stdout(csv))))
        return cr_args_fail(args, "-o and --csv name the same output: give two names");
    const char *end = png ? strrchr(png, '.') : NULL;
    if (png && cr_is_image_name(png) && strcasecmp(end, ".png") != 0)
        return cr_args_fail(args, "-o %s: the overlay is a PNG image: name it FILE.png", png);
    if (json && ((png && cr_cmd_is_stdout(png)) || (csv && cr_cmd_is_stdout(csv))))
        return cr_args_fail(args, "--json and the file - both print to standard output: name a file");
    if (png && cr_cmd_is_stdout(png) && isatty(STDOUT_FILENO))
        return cr_args_fail(args, "standard output is a terminal: redirect it (> FILE), or name a file instead of -");
    if (png) CR_TRY(cr_cmd_output_check(args, png, CR_OUTPUT_EXPLAIN_PNG));
    return csv ? cr_cmd_output_check(args, csv, CR_OUTPUT_EXPLAIN_CSV) : CR_OK;
}

/* Sets *label to the class of --class, a name or else a number; to -1 without the option. */
static cr_status find_class(const struct cr_args *args, const struct cr_cmd_names *names, int classes, int *label) {
    const char *text = args->value[CR_OPT_CLASS];
    char       *end;
    *label = -1;
    if (!text) return CR_OK;
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->at[i], text) == 0) {
            *label = i;
            return CR_OK;
        }
    const long number = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || number >= classes)
        return cr_args_fail(args, "--class %s: is no class of this network: give a name%s%s%s or a number from 0 to %d",
                            text, names->count ? " such as " : "", names->count ? names->at[0] : "",
                            names->count ? "" : " (this network has none)", classes - 1);
    *label = (int)number;
    return CR_OK;
}

/* ---- the map ---- */

static double probability_of(const struct cr_session *s, const float *logits, int label, int largest) {
    const int classes = s->model.classes;
    double    sum     = 0;
    if (s->config->data.multi_label) return cr_label_probability((double)logits[label]);
    for (int k = 0; k < classes; k++) sum += exp((double)logits[k] - (double)logits[largest]);
    return exp((double)logits[label] - (double)logits[largest]) / sum;
}

static cr_status compute(struct cr_session *s, int label, struct explanation *e) {
    struct cr_prepare prepare = s->prepare_eval;
    uint8_t          *pixels;
    prepare.tta = CR_TTA_NONE; /* the map is that of one view */
    CR_ALLOC(pixels, cr_prepare_bytes(&prepare));
    cr_status status = cr_prepare_eval(&prepare, &e->image, pixels);
    if (status == CR_OK) status = cr_class_map_compute(s, pixels, label, &e->map);
    cr_free(pixels);
    CR_TRY(status);
    cr_prepare_eval_box(&prepare, e->image.width, e->image.height, e->box);
    e->probability           = probability_of(s, e->map.logits, e->map.label, e->map.predicted);
    e->predicted_probability = probability_of(s, e->map.logits, e->map.predicted, e->map.predicted);
    return CR_OK;
}

static cr_status explain(const struct cr_args *args, const struct cr_config *config, struct explanation *e) {
    struct cr_session         session = {0};
    struct cr_session_options options = {.eval = true, .execute = true, .keep_maps = true, .eval_batch = 1};
    int                       label;
    cr_status                 status;
    CR_TRY(cr_saved_model_classes(config, &options.classes));
    CR_TRY(cr_cmd_names_find(config, &e->names));
    if (e->names.count != options.classes) e->names.count = 0;
    CR_TRY(find_class(args, &e->names, options.classes, &label));
    CR_TRY_OUT(cr_session_open(config, &options, &session));
    CR_TRY_OUT(cr_session_load_weights(&session, config->model.weights, true));
    CR_TRY_OUT(compute(&session, label, e));
out:
    cr_session_close(&session);
    return status;
}

/* ---- output ---- */

static float largest_value(const struct cr_class_map *m) {
    float largest = 0;
    for (int i = 0; i < m->height * m->width; i++) largest = CR_MAX(largest, m->value[i]);
    return largest;
}

static cr_status write_csv(const struct cr_args *args, const char *file, const struct cr_class_map *m) {
    struct cr_text text = {0};
    cr_text_add(&text, CR_OUTPUT_EXPLAIN_START);
    for (int x = 0; x < m->width; x++) cr_text_add(&text, ",%d", x);
    for (int y = 0; y < m->height; y++) {
        cr_text_add(&text, "\n%d", y);
        for (int x = 0; x < m->width; x++) cr_text_add(&text, ",%.9g", (double)m->value[y * m->width + x]);
    }
    cr_text_add(&text, "\n");
    return cr_cmd_write_file(args, file, CR_OUTPUT_EXPLAIN_CSV, &text);
}

/* Changes the pixels of the image. */
static cr_status write_png(const struct cr_args *args, const char *file, struct explanation *e) {
    struct cr_text       png  = {0};
    const struct cr_heat heat = {.value  = e->map.value,
                                 .height = e->map.height,
                                 .width  = e->map.width,
                                 .box    = {e->box[0], e->box[1], e->box[2], e->box[3]}};
    CR_TRY(cr_image_to_rgb(&e->image));
    cr_overlay_draw(&heat, &e->image);
    cr_status status =
        cr_image_encode_png(CR_OUTPUT_EXPLAIN_SOFTWARE, e->image.rgb, e->image.width, e->image.height, &png);
    if (status == CR_OK) status = cr_cmd_write_file(args, file, CR_OUTPUT_EXPLAIN_PNG, &png);
    cr_text_free(&png);
    return status;
}

static void print_json(const struct explanation *e, struct cr_text *out) {
    char                  number[32];
    const char           *name = cr_cmd_class_name(&e->names, e->map.label, number, sizeof number);
    struct cr_json_writer w    = cr_json_open_line(out);
    cr_json_put_string(&w, "image", e->path);
    cr_json_put_int(&w, "label", e->map.label);
    cr_json_put_string(&w, "class", name);
    cr_json_put_general(&w, "probability", e->probability, 9);
    cr_json_put_int(&w, "predicted_label", e->map.predicted);
    cr_json_put_general(&w, "largest", (double)largest_value(&e->map), 9);
    cr_json_open_array(&w, "box");
    for (int i = 0; i < 4; i++) cr_json_put_general(&w, NULL, e->box[i], 9);
    cr_json_close_array(&w);
    cr_json_close_line(&w);
}

static void print_text(const struct explanation *e, struct cr_text *out) {
    char number[32];
    cr_text_add_visible(out, e->path);
    cr_text_add(out, ": %s, %.2f %%", cr_cmd_class_name(&e->names, e->map.label, number, sizeof number),
                100 * e->probability);
    if (e->map.label != e->map.predicted)
        cr_text_add(out, " (predicted: %s, %.2f %%)",
                    cr_cmd_class_name(&e->names, e->map.predicted, number, sizeof number),
                    100 * e->predicted_probability);
    cr_text_add(out, "\n");
}

/* Prints the result, to standard error when standard output carries a file. */
static void print(const struct cr_args *args, const struct explanation *e, struct cr_text *out) {
    const char *png = args->value[CR_OPT_OVERLAY], *csv = args->value[CR_OPT_MAP_CSV];
    (cr_args_has(args, CR_OPT_JSON) ? print_json : print_text)(e, out);
    if ((png && cr_cmd_is_stdout(png)) || (csv && cr_cmd_is_stdout(csv))) cr_cmd_print_aside(out);
}

static cr_status write_outputs(const struct cr_args *args, struct explanation *e) {
    const char *png = args->value[CR_OPT_OVERLAY], *csv = args->value[CR_OPT_MAP_CSV];
    if (largest_value(&e->map) <= 0)
        cr_log(CR_LOG_WARN, "%s: no part of the image is evidence for this class: the map is 0 everywhere", e->path);
    if (csv) CR_TRY(write_csv(args, csv, &e->map));
    return png ? write_png(args, png, e) : CR_OK;
}

/* ---- the command ---- */

static cr_status check_config(const struct cr_args *args, const struct cr_config *config) {
    if (args->operands != 2)
        return cr_args_fail(args, "%s: cresnet explain %s IMAGE -o FILE.png",
                            args->operands < 2 ? "no image given" : "more than one image given", args->operand[0]);
    if (config->quant.type == CR_QUANT_NONE) return CR_OK;
    return cr_config_fail(config, "quant.type",
                          "explain needs a network in floating point: give the run that was quantised");
}

cr_status cr_cmd_explain(const struct cr_args *args, struct cr_result *out) {
    const struct cr_config *config;
    struct explanation      e = {0};
    cr_status               status;
    CR_TRY(check_outputs(args));
    CR_TRY(cr_cmd_config_of_weights(args, &config));
    CR_TRY_OUT(check_config(args, config));
    e.path = args->operand[1];
    CR_TRY_OUT(cr_cmd_input_image(args, &e.path));
    CR_TRY_OUT(cr_image_read(e.path, config, &e.image));
    CR_TRY_OUT(explain(args, config, &e));
    CR_TRY_OUT(write_outputs(args, &e));
    print(args, &e, &out->text);
out:
    cr_image_free(&e.image);
    cr_arena_free(&e.map.arena);
    cr_arena_free(&e.names.arena);
    cr_config_close(config);
    return status;
}
