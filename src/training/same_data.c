/* training/same_data.c: compares the dataset of a resumed run with the one that the checkpoint was trained on. */
#include "training/run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES_BYTES_MAX = 256 << 20, NAMES_IN_MESSAGE = 5 };

/* Class names, sorted. */
struct names {
    const char **at;
    int          count;
};

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Splits `text`, one name in a line, in place. The caller frees names->at, also after a failure. */
static cr_status split_names(char *text, struct names *names) {
    char *save  = NULL;
    int   lines = 1;
    for (const char *c = text; *c; c++) lines += *c == '\n';
    CR_ALLOC(names->at, (size_t)lines);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        names->at[names->count++] = line;
    return CR_OK;
}

static cr_status names_of(const struct cr_dataset *dataset, struct names *names) {
    CR_ALLOC(names->at, (size_t)cr_dataset_classes(dataset));
    for (; names->count < cr_dataset_classes(dataset); names->count++)
        names->at[names->count] = cr_dataset_class_name(dataset, names->count);
    return CR_OK;
}

/* Adds a line with the names of `a` that `b` lacks; both are sorted. Returns their number. */
static int add_missing(const struct names *a, const struct names *b, const char *what, struct cr_text *out) {
    int found = 0;
    for (int i = 0, j = 0; i < a->count; i++) {
        int order = -1;
        while (j < b->count && (order = strcmp(b->at[j], a->at[i])) < 0) j++;
        if (j < b->count && order == 0) continue;
        if (found == 0) cr_text_add(out, "\n  %s:", what);
        if (found < NAMES_IN_MESSAGE) cr_text_add(out, "%s %s", found ? "," : "", a->at[i]);
        found++;
    }
    if (found > NAMES_IN_MESSAGE) cr_text_add(out, " and %d more", found - NAMES_IN_MESSAGE);
    return found;
}

/* Adds the classes that were added, removed, renamed or put into another order. */
static cr_status add_classes(struct names *before, struct names *now, struct cr_text *out) {
    bool in_order = before->count == now->count;
    for (int i = 0; in_order && i < now->count; i++) in_order = strcmp(before->at[i], now->at[i]) == 0;
    if (in_order) return CR_OK;
    if (before->count) qsort(before->at, (size_t)before->count, sizeof *before->at, compare_names);
    if (now->count) qsort(now->at, (size_t)now->count, sizeof *now->at, compare_names);
    const int removed = add_missing(before, now, "classes removed", out);
    const int added   = add_missing(now, before, "classes added", out);
    if (removed && removed == added && before->count == now->count) cr_text_add(out, " (renamed?)");
    if (!removed && !added) cr_text_add(out, "\n  the classes are in another order");
    return out->failed ? CR_NO_MEMORY(256) : CR_OK;
}

static cr_status compare_classes(const struct cr_run *run, struct cr_text *out, int *before) {
    char         path[CR_PATH_MAX], *text = NULL;
    struct names old = {0}, now = {0};
    cr_status    status;
    CR_TRY(cr_path_join(path, run->from, "classes.txt"));
    *before = cr_dataset_classes(run->train);
    if (!cr_fs_is_file(path)) return CR_OK; /* the comparison of the other properties has to do */
    CR_TRY_OUT(cr_file_read_no_link(path, CLASSES_BYTES_MAX, &text, NULL));
    CR_TRY_OUT(split_names(text, &old));
    CR_TRY_OUT(names_of(run->train, &now));
    *before = old.count;
    CR_TRY_OUT(add_classes(&old, &now, out));
out:
    cr_free(old.at);
    cr_free(now.at);
    cr_free(text);
    return status;
}

/* Adds a line for each difference. */
static void compare_images(const struct cr_run *run, const struct cr_position *old, struct cr_text *out) {
    const int64_t count = cr_dataset_count(run->train);
    if (old->data_images && old->data_images != count)
        cr_text_add(out, "\n  %" PRId64 " training images, before %" PRId64, count, old->data_images);
    else if (old->data_contents && run->data_contents && old->data_contents != run->data_contents)
        cr_text_add(out, "\n  the contents of training images differ");
    else if (!out->length && old->data_fingerprint != cr_dataset_fingerprint(run->train))
        cr_text_add(out, "\n  names, labels or the number of training images differ");
}

void cr_run_warn_forced(char *lines) {
    char *save = NULL;
    for (char *line = strtok_r(lines, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        cr_log(CR_LOG_WARN, "resume, forced: %s", line + strspn(line, " "));
}

cr_status cr_run_check_data(struct cr_run *run, bool force) {
    const char        *root = run->config.data.root;
    struct cr_text     diff = {0};
    struct cr_position old;
    int                before, classes = cr_dataset_classes(run->train);
    cr_status          status;
    CR_TRY(cr_dataset_check_readable(run->train));
    CR_TRY(cr_dataset_contents(run->train, &run->data_contents));
    if (!run->from) return CR_OK;
    CR_TRY(cr_state_position(run->from, &old));
    CR_TRY_OUT(compare_classes(run, &diff, &before));
    compare_images(run, &old, &diff);
    if (diff.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while comparing datasets");
    if (!diff.length) goto out;
    if (before != classes)
        CR_FAIL_OUT(CR_ERR_CONFIG,
                    "%s: the dataset%s%s has changed since this run was saved:%s\na network of %d classes cannot "
                    "continue with %d: restore the dataset, or start a new run with model.weights=%s",
                    run->from, *root ? " " : "", root, diff.data, before, classes, run->from);
    if (!force)
        CR_FAIL_OUT(CR_ERR_CONFIG,
                    "%s: the dataset%s%s has changed since this run was saved:%s\nrestore the dataset, or add --force",
                    run->from, *root ? " " : "", root, diff.data);
    cr_run_warn_forced(diff.data);
out:
    cr_text_free(&diff);
    return status;
}
