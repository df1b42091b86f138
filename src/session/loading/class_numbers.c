/* session/loading/class_numbers.c: matches the classes of a dataset and of trained weights. */
#include "data/class_match.h"
#include "data/data.h"
#include "pretrained/pretrained.h"
#include "session/saved_model.h"

#include <string.h>

/* The built-in list, also in the classes.txt of a network that was pruned without a dataset. */
static bool are_imagenet_names(const char *const *names, int count) {
    const char *line = cr_imagenet_classes;
    for (int k = 0; k < count; k++) {
        const size_t length = strcspn(line, "\n");
        if (strlen(names[k]) != length || memcmp(names[k], line, length) != 0) return false;
        line += length + (line[length] == '\n');
    }
    return !*line;
}

cr_status cr_saved_model_names_for(const struct cr_dataset *dataset, const char *weights, struct cr_arena *arena,
                                   const char ***names, int *count) {
    struct cr_class_match match;
    CR_TRY(cr_saved_model_names(weights, arena, names, count));
    if (!*count || *count != dataset->classes || !are_imagenet_names(*names, *count)) return CR_OK;
    CR_TRY(cr_class_match(dataset->class_names, *count, *names, *count, true, &match));
    if (match.relation == CR_CLASSES_OTHER) *count = 0;
    cr_class_match_free(&match);
    return CR_OK;
}

cr_status cr_saved_model_add_classes(const struct cr_config *config, struct cr_dataset *dataset) {
    struct cr_arena arena = {0};
    const char    **names;
    int             count = 0;
    cr_status       status;
    if (config->data.kind == CR_DATA_SYNTHETIC || !*config->model.weights) return CR_OK;
    status = cr_saved_model_names(config->model.weights, &arena, &names, &count);
    if (status == CR_OK && count) status = cr_dataset_add_missing_classes(dataset, names, count);
    cr_arena_free(&arena);
    if (status == CR_OK || status == CR_ERR_MEMORY) return status;
    cr_error_clear();
    return CR_OK;
}

cr_status cr_saved_model_number_classes(const struct cr_config *config, struct cr_dataset *dataset, bool exact,
                                        const char *consequence) {
    const char     *weights = config->model.weights;
    struct cr_arena arena   = {0};
    const char    **names;
    int             count;
    cr_status       status;
    if (config->data.kind == CR_DATA_SYNTHETIC) return CR_OK;
    CR_TRY_OUT(cr_saved_model_names_for(dataset, weights, &arena, &names, &count));
    if (count && count != dataset->classes) goto out;
    if (count)
        CR_TRY_OUT(cr_dataset_adopt_classes(dataset, names, count, "the weights", consequence));
    else if (exact)
        cr_log(CR_LOG_INFO,
               "%s: has no classes.txt, or one with ImageNet's names: label k of the dataset is taken as its class k",
               weights);
out:
    cr_arena_free(&arena);
    return status;
}
