/* session/loading/class_numbers.c: the classes of a dataset and those of trained weights. See session/saved_model.h. */
#include "checkpoint/checkpoint.h"
#include "data/class_match.h"
#include "data/data.h"
#include "session/saved_model.h"

#include <stdio.h>
#include <string.h>

/* The names of the built-in list of ImageNet are not those of its folders (n01440764). */
static bool has_names_file(const char *model) {
    const char *slash = strrchr(model, '/');
    char        path[CR_PATH_MAX];
    return snprintf(path, sizeof path, "%.*s/classes.txt", slash ? (int)(slash - model) : 1, slash ? model : ".") <
               (int)sizeof path &&
           cr_fs_is_file(path);
}

/* True when every class of the dataset has one of the names. */
static cr_status all_fit(const struct cr_dataset *dataset, const char *const *names, int count, bool *fit) {
    struct cr_class_match match;
    CR_TRY(cr_class_match(cr_dataset_class_names(dataset), count, names, count, true, &match));
    *fit = match.relation != CR_CLASSES_OTHER;
    cr_class_match_free(&match);
    return CR_OK;
}

cr_status cr_saved_model_number_classes(const struct cr_config *config, struct cr_dataset *dataset, bool exact,
                                        const char *consequence) {
    const char     *weights = config->model.weights;
    struct cr_arena arena   = {0};
    char           *model   = NULL;
    const char    **names;
    int             count;
    bool            named;
    cr_status       status;
    if (config->data.kind == CR_DATA_SYNTHETIC) return CR_OK;
    CR_TRY_OUT(cr_ckpt_model_path(weights, &model));
    CR_TRY_OUT(cr_saved_model_names(weights, &arena, &names, &count));
    named = count > 0;
    if (named && count != cr_dataset_classes(dataset)) goto out;
    if (named && !has_names_file(model)) CR_TRY_OUT(all_fit(dataset, names, count, &named));
    if (named)
        CR_TRY_OUT(cr_dataset_adopt_classes(dataset, names, count, "the weights", consequence));
    else if (exact)
        cr_log(CR_LOG_INFO,
               "%s: has no classes.txt with the names of its classes: label k of the dataset is taken as "
               "its class k",
               weights);
out:
    cr_free(model);
    cr_arena_free(&arena);
    return status;
}
