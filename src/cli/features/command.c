/* cli/features/command.c: cresnet features: writes the pooled features and the logits of image files as arrays of
 * numpy, and their names as CSV. Rows are written while images are computed: memory holds their names alone. */
#include "cli/common/command.h"
#include "formats/csv.h"
#include "formats/npy.h"
#include "session/saved_model.h"
#include "session/session.h"

#include <stdio.h>
#include <string.h>

enum { FEATURES, LOGITS, NAMES, OUTPUTS };

struct features {
    const char         *root;  /* of the images: the folder, or that of the list */
    const char        **files; /* [count] */
    int64_t             count;
    struct cr_csv_table list;
    struct cr_arena     arena;
    char                path[OUTPUTS][CR_PATH_MAX];
    struct cr_npy       array[NAMES];
    struct cr_text      names;
    cr_status           status; /* of the first row that could not be written */
};

/* ---- images ---- */

static cr_status find_in_folder(const char *folder, struct features *f) {
    const size_t length = cr_path_length(folder);
    f->root             = folder;
    CR_TRY(cr_folder_images(folder, &f->arena, &f->files, &f->count));
    for (int64_t i = 0; i < f->count; i++) f->files[i] += length + strspn(f->files[i] + length, "/");
    return CR_OK;
}

/* A list that names files that are gone is an error before the work. */
static cr_status find_in_list(const char *path, struct features *f) {
    const char *slash = strrchr(path, '/');
    char        whole[CR_PATH_MAX];
    int64_t     missing = 0, first = 0;
    int         file;
    CR_TRY(cr_csv_table_read(path, &f->list));
    CR_TRY(cr_csv_table_column(&f->list, "file", &file));
    f->root = slash ? cr_arena_printf(&f->arena, "%.*s", (int)CR_MAX(slash - path, 1), path) : ".";
    if (!f->root) return CR_NO_MEMORY(CR_PATH_MAX);
    CR_ARENA_ALLOC(&f->arena, f->files, (size_t)f->list.rows);
    for (int64_t i = 1; i < f->list.rows; i++) {
        const char *name = f->files[f->count++] = f->list.cell[i * f->list.columns + file];
        snprintf(whole, sizeof whole, "%s/%s", *name == '/' ? "" : f->root, name);
        if (!cr_fs_is_file(whole) && !missing++) first = i;
    }
    if (!missing) return CR_OK;
    return CR_FAIL(CR_ERR_IO, "%s:%lld: %s is not there (%lld of %lld files are missing): names are relative to %s",
                   path, (long long)f->list.line[first], f->files[first - 1], (long long)missing, (long long)f->count,
                   f->root);
}

/* ---- output ---- */

/* x.npy, x.logits.npy, x.csv */
static cr_status name_outputs(const struct cr_args *args, struct features *f) {
    static const char *const endings[OUTPUTS] = {".npy", ".logits.npy", ".csv"};
    const char              *file             = args->value[CR_OPT_ARRAYS];
    const size_t             length           = file ? strlen(file) : 0;
    if (!file) return cr_args_fail(args, "no output given: give -o FILE.npy");
    if (length < 5 || !cr_ends_with(file, ".npy"))
        return cr_args_fail(args, "-o %s: the name must end with .npy; the logits get .logits.npy, the names .csv",
                            file);
    for (int i = 0; i < OUTPUTS; i++) {
        struct cr_output_file found;
        const int             used = snprintf(f->path[i], CR_PATH_MAX, "%.*s%s", (int)(length - 4), file, endings[i]);
        if (used >= CR_PATH_MAX) return cr_args_fail(args, "-o %.100s...: the path is too long", file);
        CR_TRY(cr_cmd_output_check(args, f->path[i], CR_OUTPUT_UNMARKED));
        CR_TRY(cr_output_file_find(f->path[i], CR_OUTPUT_UNMARKED,
                                   cr_args_has(args, CR_OPT_REPLACE) ? CR_OUTPUT_FORCE : 0, &found));
        if (found.direct) return cr_args_fail(args, "%s: is no regular file", f->path[i]);
        memcpy(f->path[i], found.path, CR_PATH_MAX);
    }
    return CR_OK;
}

static cr_status write_row(struct features *f, int64_t sample, const float *features, const float *logits) {
    CR_TRY(cr_npy_add(&f->array[FEATURES], features));
    CR_TRY(cr_npy_add(&f->array[LOGITS], logits));
    cr_csv_add_path(&f->names, f->files[sample]);
    cr_text_add(&f->names, "\n");
    return CR_OK;
}

static void on_sample(void *self, int64_t sample, const int32_t *labels, const float *logits, const float *features) {
    struct features *f = self;
    (void)labels;
    if (f->status == CR_OK) f->status = write_row(f, sample, features, logits);
}

static cr_status finish_outputs(struct features *f) {
    CR_TRY(f->status);
    if (f->names.failed) return CR_NO_MEMORY(f->names.length);
    CR_TRY(cr_npy_finish(&f->array[FEATURES]));
    CR_TRY(cr_npy_finish(&f->array[LOGITS]));
    return cr_file_write_atomic(f->path[NAMES], f->names.data, f->names.length);
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
    CR_TRY_OUT(cr_npy_open(&f->array[FEATURES], f->path[FEATURES], cr_session_features(&session)));
    CR_TRY_OUT(cr_npy_open(&f->array[LOGITS], f->path[LOGITS], session.model.classes));
    cr_text_add(&f->names, "file\n");
    CR_TRY_OUT(cr_session_evaluate_each(&session, dataset, NULL, &callback, &scores));
    CR_TRY_OUT(finish_outputs(f));
    cr_log(CR_LOG_INFO,
           "%s: %d features of %lld images; logits of %d classes in %s, names in %s  (%.1f s, %.0f images/s)",
           f->path[FEATURES], cr_session_features(&session), (long long)scores.images, session.model.classes,
           f->path[LOGITS], f->path[NAMES], scores.seconds, (double)scores.images / CR_MAX(scores.seconds, 1e-9));
    if (scores.corrupt)
        cr_log(CR_LOG_WARN, "%lld of %lld images could not be read: they have no row", (long long)scores.corrupt,
               (long long)f->count);
out:
    cr_session_close(&session);
    cr_dataset_close(dataset);
    return status;
}

cr_status cr_cmd_features(const struct cr_args *args, struct cr_result *out) {
    const struct cr_config *config = NULL;
    struct features         f      = {0};
    cr_status               status;
    (void)out; /* writes files */
    CR_TRY(cr_args_max_operands(args, 2));
    if (args->operands < 2)
        return cr_args_fail(args, "give a RUN and a folder of images, or a CSV file that names them");
    CR_TRY(name_outputs(args, &f));
    CR_TRY(cr_cmd_config_of_weights(args, &config));
    /* The images have no labels: one class of no name stands for all. */
    CR_TRY_OUT(cr_config_change(&config, CR_CHANGES("data.multi_label=no", "train.best=loss")));
    CR_TRY_OUT((cr_fs_is_dir(args->operand[1]) ? find_in_folder : find_in_list)(args->operand[1], &f));
    if (!f.count) CR_FAIL_OUT(CR_ERR_IO, "%s: contains no images (" CR_IMAGE_ENDINGS ")", args->operand[1]);
    status = compute(config, &f);
out:
    for (int i = 0; i < NAMES; i++) cr_npy_close(&f.array[i]);
    cr_text_free(&f.names);
    cr_csv_table_free(&f.list);
    cr_arena_free(&f.arena);
    cr_config_close(config);
    return status;
}
