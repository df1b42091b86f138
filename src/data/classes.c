/* data/classes.c: the class numbers (labels) of a dataset, renumbered to those of a network. See data/data.h. */
#include "data/class_match.h"
#include "data/source.h"

#include <string.h>

cr_status cr_dataset_fetch(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                           struct cr_stored *out, int32_t *label) {
    *label = cr_dataset_label(dataset, sample);
    *out   = (struct cr_stored){.exif = dataset->exif, .format = dataset->format, .max_pixels = dataset->max_pixels};
    return dataset->ops->fetch(dataset, cr_dataset_stored_as(dataset, sample), scratch, out);
}

int32_t cr_dataset_label(const struct cr_dataset *dataset, int64_t sample) {
    const int64_t place = cr_dataset_stored_as(dataset, sample);
    const int32_t label = dataset->edited_labels ? dataset->edited_labels[place] : dataset->ops->label(dataset, place);
    return dataset->label_rows ? label : cr_dataset_renumbered(dataset, label); /* label_rows: `label` is a hash */
}

int cr_dataset_renumbered(const struct cr_dataset *dataset, int first_label) {
    return dataset->renumbered ? dataset->renumbered[first_label] : first_label;
}

/* Moves the bits of each row: a row begins with its number of labels (graph/loss.h). */
static cr_status renumber_rows(struct cr_dataset *dataset, const int *to) {
    const size_t words = (size_t)dataset->label_words;
    int32_t     *moved;
    CR_ALLOC(moved, words);
    for (int64_t i = 0; i < dataset->count; i++) {
        int32_t *row = dataset->label_rows + (size_t)i * words;
        memset(moved, 0, words * sizeof *moved);
        moved[0] = row[0];
        for (int k = 0; k < dataset->classes; k++)
            if (cr_dataset_row_has(row, k)) moved[1 + to[k] / 32] |= (int32_t)(1u << (to[k] % 32));
        memcpy(row, moved, words * sizeof *row);
    }
    cr_free(moved);
    return CR_OK;
}

cr_status cr_dataset_renumber(struct cr_dataset *dataset, const int *to) {
    const int    classes = dataset->classes;
    const char **names;
    int64_t     *counts = NULL;
    int32_t     *labels;
    CR_ARENA_ALLOC(&dataset->arena, names, (size_t)classes);
    CR_ARENA_ALLOC(&dataset->arena, labels, (size_t)classes);
    if (dataset->class_counts) CR_ARENA_ALLOC(&dataset->arena, counts, (size_t)classes);
    if (dataset->label_rows) CR_TRY(renumber_rows(dataset, to));
    for (int k = 0; k < classes; k++) {
        names[to[k]] = dataset->class_names[k];
        labels[k]    = to[cr_dataset_renumbered(dataset, k)];
        if (counts) counts[to[k]] = dataset->class_counts[k];
    }
    dataset->class_names  = names;
    dataset->class_counts = counts;
    dataset->renumbered   = labels;
    return CR_OK;
}

/* ---- a network's classes ---- */

/* missing[classes]: the classes of the network that the dataset lacks. */
static cr_status add_classes(struct cr_dataset *dataset, const char *const *names, int classes, const bool *missing) {
    const char **all;
    int64_t     *counts;
    int32_t     *labels;
    int          next = dataset->classes;
    CR_ARENA_ALLOC(&dataset->arena, all, (size_t)classes);
    CR_ARENA_ALLOC(&dataset->arena, counts, (size_t)classes);
    CR_ARENA_ALLOC(&dataset->arena, labels, (size_t)classes);
    for (int k = 0; k < dataset->classes; k++) {
        all[k]    = dataset->class_names[k];
        counts[k] = dataset->class_counts ? dataset->class_counts[k] : 0;
        labels[k] = cr_dataset_renumbered(dataset, k);
    }
    for (int k = 0; k < classes; k++) {
        if (!missing[k]) continue;
        labels[next] = next;
        all[next]    = cr_arena_printf(&dataset->arena, "%s", names[k]);
        if (!all[next++]) return CR_NO_MEMORY(strlen(names[k]) + 1);
    }
    cr_log(CR_LOG_INFO, "the dataset lacks %d of the network's %d classes, %s%s", classes - dataset->classes, classes,
           classes - dataset->classes > 1 ? "such as " : "", all[dataset->classes]);
    dataset->class_names  = all;
    dataset->class_counts = dataset->class_counts ? counts : NULL;
    dataset->renumbered   = labels;
    dataset->classes      = classes;
    return CR_OK;
}

cr_status cr_dataset_add_missing_classes(struct cr_dataset *dataset, const char *const *names, int classes) {
    struct cr_class_match match;
    bool                 *missing;
    if (dataset->label_rows || dataset->classes >= classes) return CR_OK;
    CR_TRY(cr_class_match(dataset->class_names, dataset->classes, names, classes, true, &match));
    cr_status status = CR_OK;
    if (match.matched == dataset->classes) {
        CR_ALLOC_OUT(missing, (size_t)classes);
        for (int k = 0; k < classes; k++) missing[k] = true;
        for (int k = 0; k < dataset->classes; k++) missing[match.to[k]] = false;
        status = add_classes(dataset, names, classes, missing);
        cr_free(missing);
    }
out:
    cr_class_match_free(&match);
    return status;
}

/* Says how the lists differ. */
static void warn_other(const struct cr_dataset *dataset, const char *const *names, int classes,
                       const struct cr_class_match *match, const char *network, const char *consequence) {
    const int k = match->shown;
    if (dataset->classes != classes)
        cr_log(CR_LOG_WARN,
               "the classes of the dataset are not those of %s: %d classes in the dataset, %d in the "
               "network, %d of them with the same name; %s",
               network, dataset->classes, classes, match->matched, consequence);
    else
        cr_log(CR_LOG_WARN,
               "the classes of the dataset are not those of %s: label %d is %s in the dataset and %s in the network; "
               "%s",
               network, k, dataset->class_names[k], names[k], consequence);
}

cr_status cr_dataset_adopt_classes(struct cr_dataset *dataset, const char *const *names, int classes,
                                   const char *network, const char *consequence) {
    struct cr_class_match match;
    cr_status             status = CR_OK;
    CR_TRY(cr_class_match(dataset->class_names, dataset->classes, names, classes, true, &match));
    if (match.relation == CR_CLASSES_OTHER) {
        if (consequence) warn_other(dataset, names, classes, &match, network, consequence);
        goto out;
    }
    cr_class_match_log(&match, dataset->class_names, names, "the dataset", network);
    if (match.relation == CR_CLASSES_EQUAL) goto out;
    CR_TRY_OUT(cr_dataset_renumber(dataset, match.to));
out:
    cr_class_match_free(&match);
    return status;
}
