/* cli/features/command.c: cresnet features: writes the pooled features and the logits of image files as arrays of
 * numpy, and their names as CSV. Rows are written while images are computed: memory holds their names alone. */
#include "cli/common/command.h"
#include "cli/common/csv_fields.h"
#include "data/file_list.h"
#include "data/source/folder_list.h"
#include "formats/npy.h"
#include "session/saved_model.h"
#include "session/session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20, OUTPUTS = 3 };

struct features {
    const char         *root;  /* of the images: the folder, or that of the list */
    const char        **files; /* [count] */
    int64_t             count;
    struct cr_file_list list; /* of a CSV file; its rows have the labels */
    struct cr_arena     arena;
    char                path[OUTPUTS][CR_PATH_MAX]; /* features, logits, names */
    struct cr_npy       features, logits;
    struct cr_temporary names;
    bool                names_open;
    struct cr_text      text;   /* lines that are not written yet */
    cr_status           status; /* of the first row that could not be written */
};

/* ---- images ---- */

static cr_status find_in_folder(const char *folder, struct features *f) {
    const size_t length = strlen(folder);
    f->root             = folder;
    CR_TRY(cr_folder_images(folder, &f->arena, &f->files, &f->count));
    if (!f->count) return CR_FAIL(CR_ERR_IO, "%s: contains no images (" CR_IMAGE_ENDINGS ")", folder);
    for (int64_t i = 0; i < f->count; i++)
        if (strncmp(f->files[i], folder, length) == 0 && (f->files[i][length] == '/' || folder[length - 1] == '/'))
            f->files[i] += length + strspn(f->files[i] + length, "/");
    return CR_OK;
}

/* A list that names files that are gone is an error before the work. */
static cr_status check_files(const struct features *f) {
    char    path[CR_PATH_MAX];
    int64_t missing = 0, first = 0;
    for (int64_t i = 0; i < f->count; i++) {
        const char *file = f->files[i];
        const int   used =
            snprintf(path, sizeof path, "%s%s%s", *file == '/' ? "" : f->root, *file == '/' ? "" : "/", file);
        if (used < (int)sizeof path && access(path, F_OK) == 0) continue;
        if (!missing++) first = i;
    }
    if (!missing) return CR_OK;
    return CR_FAIL(CR_ERR_IO, "%s:%lld: %s is not there (%lld of %lld files are missing): names are relative to %s",
                   f->list.path, (long long)f->list.row[first].line, f->files[first], (long long)missing,
                   (long long)f->count, f->root);
}

static cr_status find_in_list(const char *path, struct features *f) {
    const char *slash = strrchr(path, '/');
    CR_TRY(cr_file_list_read(path, false, &f->list));
    f->count = f->list.count;
    if (!f->count) return CR_FAIL(CR_ERR_FORMAT, "%s: lists no images", path);
    f->root = !slash ? "." : cr_arena_printf(&f->arena, "%.*s", (int)CR_MAX(slash - path, 1), path);
    if (!f->root) return CR_NO_MEMORY(CR_PATH_MAX);
    CR_ARENA_ALLOC(&f->arena, f->files, (size_t)f->count);
    for (int64_t i = 0; i < f->count; i++) f->files[i] = f->list.row[i].file;
    return check_files(f);
}

static bool is_split(const char *name, size_t length, const char *const *names) {
    for (; *names; names++)
        if (strlen(*names) == length && strncasecmp(name, *names, length) == 0) return true;
    return false;
}

/* The class of a file below a folder: the first folder of its path, but for those of splits; "" when there is none. */
static void add_class_folder(const char *file, struct cr_text *out) {
    size_t         length = strcspn(file, "/");
    struct cr_text name   = {0};
    if (file[length] && (is_split(file, length, cr_train_names) || is_split(file, length, cr_val_names))) {
        file += length + 1;
        length = strcspn(file, "/");
    }
    if (!file[length] || *file == '/') return;
    cr_text_add(&name, "%.*s", (int)length, file);
    if (name.data) cr_csv_add_text(out, name.data);
    out->failed |= name.failed;
    cr_text_free(&name);
}

/* ---- output ---- */

/* x.npy, x.logits.npy, x.csv */
static cr_status name_outputs(const struct cr_args *args, struct features *f) {
    static const char *const endings[OUTPUTS] = {".npy", ".logits.npy", ".csv"};
    const char              *file             = args->value[CR_OPT_ARRAYS];
    const size_t             length           = file ? strlen(file) : 0;
    if (!file) return cr_args_fail(args, "no output given: give -o FILE.npy");
    if (length < 5 || strcmp(file + length - 4, ".npy") != 0)
        return cr_args_fail(args, "-o %s: the name must end with .npy; the logits get .logits.npy, the names .csv",
                            file);
    for (int i = 0; i < OUTPUTS; i++) {
        struct cr_output_file found;
        if (snprintf(f->path[i], CR_PATH_MAX, "%.*s%s", (int)(length - 4), file, endings[i]) >= CR_PATH_MAX)
            return cr_args_fail(args, "-o %.100s...: the path is too long", file);
        CR_TRY(cr_output_file_find(f->path[i], CR_OUTPUT_UNMARKED,
                                   cr_args_has(args, CR_OPT_REPLACE) ? CR_OUTPUT_FORCE : 0, &found));
        if (found.direct) return cr_args_fail(args, "%s: is no regular file", f->path[i]);
        snprintf(f->path[i], CR_PATH_MAX, "%s", found.path);
    }
    return CR_OK;
}

static cr_status open_outputs(struct features *f, int features, int classes) {
    CR_TRY(cr_npy_open(&f->features, f->path[0], features));
    CR_TRY(cr_npy_open(&f->logits, f->path[1], classes));
    CR_TRY(cr_temporary_file(&f->names, f->path[2]));
    f->names_open = true;
    cr_text_add(&f->text, CR_OUTPUT_FEATURE_NAMES_START "\n");
    return CR_OK;
}

static cr_status write_text(struct features *f) {
    if (f->text.failed) return CR_NO_MEMORY(f->text.length);
    CR_TRY(cr_fs_write(f->names.fd, f->names.target, f->text.data, f->text.length, 0));
    f->text.length = 0;
    return CR_OK;
}

static cr_status add_name(struct features *f, int64_t sample) {
    cr_csv_add_path(&f->text, f->files[sample]);
    cr_text_add(&f->text, ",");
    if (f->list.count)
        cr_csv_add_text(&f->text, f->list.row[sample].label);
    else
        add_class_folder(f->files[sample], &f->text);
    cr_text_add(&f->text, "\n");
    return f->text.length < PIECE_BYTES && !f->text.failed ? CR_OK : write_text(f);
}

static void on_sample(void *self, int64_t sample, const int32_t *labels, const float *logits, const float *features) {
    struct features *f = self;
    (void)labels;
    if (f->status == CR_OK) f->status = cr_npy_add(&f->features, features);
    if (f->status == CR_OK) f->status = cr_npy_add(&f->logits, logits);
    if (f->status == CR_OK) f->status = add_name(f, sample);
}

static cr_status finish_outputs(struct features *f) {
    CR_TRY(f->status);
    CR_TRY(write_text(f));
    CR_TRY(cr_npy_finish(&f->features));
    CR_TRY(cr_npy_finish(&f->logits));
    f->names_open = false;
    return cr_temporary_commit(&f->names);
}

static void close_all(struct features *f) {
    cr_npy_close(&f->features);
    cr_npy_close(&f->logits);
    if (f->names_open) cr_temporary_drop(&f->names);
    cr_text_free(&f->text);
    cr_file_list_free(&f->list);
    cr_arena_free(&f->arena);
}

/* ---- the command ---- */

static cr_status compute(const struct cr_config *config, struct features *f) {
    struct cr_dataset              *dataset  = NULL;
    struct cr_session               session  = {0};
    struct cr_session_options       options  = {.eval = true, .execute = true, .keep_features = true};
    const struct cr_sample_callback callback = {.self = f, .on_sample = on_sample};
    struct cr_scores                scores;
    cr_status                       status;
    CR_TRY_OUT(cr_dataset_open_files(config, f->root, f->files, f->count, &dataset));
    CR_TRY_OUT(cr_saved_model_classes(config, &options.classes));
    CR_TRY_OUT(cr_session_open(config, &options, &session));
    cr_log(CR_LOG_INFO, "device: %s", session.device->caps.text);
    CR_TRY_OUT(cr_session_load_weights(&session, config->model.weights, true));
    CR_TRY_OUT(open_outputs(f, cr_session_features(&session), session.model.classes));
    CR_TRY_OUT(cr_session_evaluate_each(&session, dataset, NULL, &callback, &scores));
    CR_TRY_OUT(finish_outputs(f));
    cr_log(CR_LOG_INFO,
           "%s: %d features of %lld images; logits of %d classes in %s, names in %s  (%.1f s, %.0f images/s)",
           f->path[0], cr_session_features(&session), (long long)scores.images, session.model.classes, f->path[1],
           f->path[2], scores.seconds, (double)scores.images / CR_MAX(scores.seconds, 1e-9));
    if (scores.corrupt)
        cr_log(CR_LOG_WARN, "%lld of %lld images could not be read: they have no row", (long long)scores.corrupt,
               (long long)f->count);
out:
    cr_session_close(&session);
    cr_dataset_close(dataset);
    return status;
}

cr_status cr_cmd_features(const struct cr_args *args, int *signal_taken) {
    const struct cr_config *config = NULL;
    struct features         f      = {0};
    cr_status               status;
    (void)signal_taken;
    CR_TRY(cr_args_max_operands(args, 2));
    if (args->operands < 2)
        return cr_args_fail(args, "give a RUN and a folder of images, or a CSV file that names them");
    CR_TRY(name_outputs(args, &f));
    CR_TRY(cr_cmd_config(args, &config));
    if (!*config->model.weights) {
        status = cr_args_fail(args, "no weights: give --weights FILE, or a run folder instead of %s", args->operand[0]);
        goto out;
    }
    /* The images have no labels: one class of no name stands for all. */
    CR_TRY_OUT(cr_config_change(&config, 0, CR_CHANGES("data.multi_label=no", "train.best=loss")));
    CR_TRY_OUT((cr_fs_is_dir(args->operand[1]) ? find_in_folder : find_in_list)(args->operand[1], &f));
    status = compute(config, &f);
out:
    close_all(&f);
    cr_config_close(config);
    return status;
}
