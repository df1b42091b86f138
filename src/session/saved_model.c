/* session/saved_model.c: finds and reads a trained network's files: config, weights, classes. */
#include "session/saved_model.h"

#include "checkpoint/checkpoint.h"
#include "formats/json.h"
#include "pretrained/pretrained.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CLASSES_FILE_MAX = 64 << 20, CLASSES_MAX = 1000000, NAME_SHOWN = 100 };

/* ---- finding ---- */

static cr_status find_in_checkpoint(const char *folder, struct cr_saved_model *out) {
    CR_TRY(cr_path_join(out->config, folder, "config.ini"));
    return cr_fs_has_file(folder, "ema.safetensors") ? cr_path_join(out->weights, folder, "ema.safetensors")
                                                     : cr_path_copy(out->weights, folder);
}

static cr_status find_in_folder(const char *path, struct cr_saved_model *out) {
    char checkpoint[CR_PATH_MAX];
    if (cr_fs_has_file(path, "model.safetensors")) return find_in_checkpoint(path, out);
    CR_TRY(cr_ckpt_find_best(path, checkpoint));
    if (*checkpoint) return find_in_checkpoint(checkpoint, out);
    return CR_FAIL(CR_ERR_CONFIG,
                   "%s: is no run folder: it holds neither model.safetensors nor a checkpoint that can be read", path);
}

static cr_status find_near_file(const char *path, struct cr_saved_model *out) {
    char folder[CR_PATH_MAX];
    cr_path_folder(folder, path);
    CR_TRY(cr_path_join(out->config, folder, "config.ini"));
    return cr_path_copy(out->weights, path);
}

static cr_status find_published(const char *name, const char *config, struct cr_saved_model *out) {
    if (!config)
        return CR_FAIL(CR_ERR_CONFIG, "%s: is the name of published weights: give the configuration of their network",
                       name);
    CR_TRY(cr_path_copy(out->weights, name));
    return cr_path_copy(out->config, config);
}

cr_status cr_saved_model_find(const char *path, const char *config, struct cr_saved_model *out) {
    if (access(path, F_OK) != 0 && !cr_st_key(path)) {
        const int error = errno;
        if (error == ENOENT && cr_pretrained_is_name(path)) return find_published(path, config, out);
        return CR_FAIL(CR_ERR_IO, "%s: %s", path, strerror(error));
    }
    CR_TRY(cr_fs_is_dir(path) ? find_in_folder(path, out) : find_near_file(path, out));
    if (config) return cr_path_copy(out->config, config);
    if (cr_fs_is_file(out->config)) return CR_OK;
    if (cr_ends_with(path, ".ini"))
        return CR_FAIL(CR_ERR_CONFIG, "%s: is a configuration file; a trained network is its run folder", path);
    return CR_FAIL(CR_ERR_CONFIG, "%s: does not exist: %s needs the configuration of its network", out->config, path);
}

/* ---- classes ---- */

static cr_status fail_no_classes(const struct cr_st_file *file, const char *path) {
    char        shown[NAME_SHOWN], first[NAME_SHOWN + 64] = "";
    const char *head = NULL;
    for (int i = 0; i < cr_st_count(file) && !head; i++)
        if (cr_ckpt_is_head(cr_st_at(file, i)->name)) head = cr_st_at(file, i)->name;
    cr_json_quote(shown, sizeof shown, head ? head : cr_st_count(file) ? cr_st_at(file, 0)->name : "");
    if (head)
        return CR_FAIL(
            CR_ERR_FORMAT,
            "%s: its classifier (%s) is no single linear layer, as that of a ResNet is: train a new one with "
            "`cresnet finetune` or model.head=new",
            path, shown);
    if (cr_st_count(file)) snprintf(first, sizeof first, "; its first tensor is %s", shown);
    return CR_FAIL(
        CR_ERR_FORMAT,
        "%s: has no classifier, whose length is the number of classes: it has %d tensors, and none of them "
        "is fc.weight or fc.bias%s. Is it of a ResNet? For weights without a classifier, give the number with "
        "model.classes=N",
        path, cr_st_count(file), first);
}

cr_status cr_saved_model_classes(const struct cr_config *config, int *classes) {
    static const char *const names[] = {"fc.bias", "fc.weight"};
    struct cr_st_file       *file;
    char                     path[CR_PATH_MAX];
    *classes = (int)config->model.classes;
    if (*classes) return CR_OK;
    CR_TRY(cr_ckpt_model_path(config->model.weights, path));
    CR_TRY(cr_ckpt_open_weights(path, NULL, 0, &file));
    for (size_t i = 0; i < CR_COUNT(names) && !*classes; i++) {
        const struct cr_st_entry *e = cr_st_find(file, names[i]);
        if (e && e->dims >= 1 && e->dim[0] > 0 && e->dim[0] <= CLASSES_MAX) *classes = (int)e->dim[0];
    }
    const cr_status status = *classes ? CR_OK : fail_no_classes(file, path);
    cr_st_close(file);
    return status;
}

cr_status cr_saved_model_path_beside(const char *weights, const char *name, char *path) {
    char model[CR_PATH_MAX], folder[CR_PATH_MAX];
    CR_TRY(cr_ckpt_model_path(weights, model));
    cr_path_folder(folder, model);
    return cr_path_join(path, folder, "%s", name);
}

/* Reads the file `name` next to the weights into *text, which the caller frees; without the file *text is NULL. */
static cr_status read_beside(const char *weights, const char *name, char path[CR_PATH_MAX], char **text) {
    *text = NULL;
    CR_TRY(cr_saved_model_path_beside(weights, name, path));
    return access(path, F_OK) == 0 ? cr_file_read_no_link(path, CLASSES_FILE_MAX, text, NULL) : CR_OK;
}

static cr_status split_lines(char *text, struct cr_arena *arena, const char ***names, int *count) {
    int          lines = 0, used = 0;
    const char **list;
    for (const char *c = text; *c; c++) lines += *c == '\n';
    CR_ARENA_ALLOC(arena, list, (size_t)lines + 1);
    for (char *line = text; *line;) {
        const size_t length = strcspn(line, "\n");
        const bool   more   = line[length] == '\n';
        line[length]        = 0;
        list[used]          = cr_arena_printf(arena, "%s", line);
        if (!list[used++]) return CR_NO_MEMORY(length);
        line += length + more;
    }
    *names = list;
    *count = used;
    return CR_OK;
}

/* Reads a JSON list of strings. *count stays 0 when the text is something else: another program wrote it. */
static cr_status parse_names(const char *text, struct cr_arena *arena, const char ***names, int *count) {
    const size_t   length = strlen(text);
    char          *copied = cr_arena_printf(arena, "%s", text), *name;
    int            used   = 0;
    size_t         quotes = 0;
    struct cr_json json;
    for (size_t i = 0; i < length; i++) quotes += text[i] == '"';
    const char **list = cr_arena_alloc(arena, (quotes / 2 + 1) * sizeof *list);
    if (!copied || !list) return CR_NO_MEMORY(length);
    cr_json_start(&json, copied, length);
    bool good = cr_json_expect(&json, '[');
    for (bool more = true; good && more; more = cr_json_take(&json, ',')) {
        good = cr_json_string(&json, &name) && !strchr(name, '\n');
        if (good) list[used++] = name;
    }
    if (!good || !cr_json_expect(&json, ']') || !cr_json_end(&json)) return CR_OK;
    *names = list;
    *count = used;
    return CR_OK;
}

/* The names that `export` writes into a file of weights. A file that cannot be opened has none: whoever loads its
 * weights says why. */
static cr_status names_in_file(const char *weights, struct cr_arena *arena, const char ***names, int *count) {
    struct cr_st_file *file = NULL;
    char               path[CR_PATH_MAX];
    CR_TRY(cr_ckpt_model_path(weights, path));
    cr_status   status = cr_st_open_any(path, &file);
    const char *text   = status == CR_OK ? cr_st_meta_find(file, CR_CKPT_CLASS_NAMES) : NULL;
    if (text) status = parse_names(text, arena, names, count);
    if (status != CR_OK && status != CR_ERR_MEMORY) {
        cr_error_clear();
        status = CR_OK;
    }
    cr_st_close(file);
    return status;
}

cr_status cr_saved_model_names(const char *weights, struct cr_arena *arena, const char ***names, int *count) {
    char     *text = NULL, path[CR_PATH_MAX];
    cr_status status;
    *names = NULL;
    *count = 0;
    CR_TRY(names_in_file(weights, arena, names, count));
    if (*count) return CR_OK;
    CR_TRY_OUT(read_beside(weights, "classes.txt", path, &text));
    if (!text) CR_TRY_OUT(cr_ckpt_model_path(weights, path));
    if (!text && cr_pretrained_has_imagenet_classes(path)) {
        text = cr_strdup(cr_imagenet_classes);
        if (!text) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the names of classes");
    }
    if (text) CR_TRY_OUT(split_lines(text, arena, names, count));
out:
    cr_free(text);
    return status;
}

/* ---- thresholds ---- */

static const char thresholds_file[] = "thresholds.txt";

static cr_status parse_thresholds(const char *path, char *text, int classes, double *out) {
    int   count = 0;
    char *save  = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), count++) {
        char        *end;
        const double value = strtod(line, &end);
        if (end == line || end[strspn(end, " \t\r")] || !(value >= 0 && value <= 1))
            return CR_FAIL(CR_ERR_FORMAT, "%s:%d: is no number from 0 to 1: correct the line, or remove the file", path,
                           count + 1);
        if (count < classes) out[count] = value;
    }
    if (count == classes) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT, "%s: has %d thresholds, but the network has %d classes: correct or remove the file",
                   path, count, classes);
}

cr_status cr_saved_model_thresholds(const char *weights, int classes, double *out) {
    char     *text = NULL, path[CR_PATH_MAX];
    cr_status status;
    for (int k = 0; k < classes; k++) out[k] = 0.5;
    CR_TRY_OUT(read_beside(weights, thresholds_file, path, &text));
    if (text) CR_TRY_OUT(parse_thresholds(path, text, classes, out));
out:
    cr_free(text);
    return status;
}

cr_status cr_saved_model_put_thresholds(const char *folder, int classes, const double *thresholds) {
    char           path[CR_PATH_MAX];
    struct cr_text text = {0};
    CR_TRY(cr_path_join(path, folder, "%s", thresholds_file));
    for (int k = 0; k < classes; k++) cr_text_add(&text, "%.9g\n", thresholds[k]);
    cr_status status = text.failed ? CR_NO_MEMORY(text.length) : cr_file_write_atomic(path, text.data, text.length);
    cr_text_free(&text);
    return status;
}
