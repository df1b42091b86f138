/* training/same_data.c: the classes of a run by name, and the check that a resumed run has the same dataset that the
 * checkpoint was trained on. */
#include "data/class_match.h"
#include "session/saved_model.h"
#include "training/run.h"

#include <inttypes.h>
#include <string.h>

enum { NAMES_IN_MESSAGE = 5 };

/* ---- numbers of classes ---- */

/* The first class that the run gives another label than the format of the dataset; CR_NONE when there is none. */
static int first_renumbered(const struct cr_dataset *dataset) {
    for (int k = 0; k < dataset->classes; k++)
        if (cr_dataset_renumbered(dataset, k) != k) return k;
    return CR_NONE;
}

/* The validation set has the classes of the training set, in the same order. */
static cr_status number_as_training(struct cr_run *run) {
    const int classes = run->train->classes;
    int      *to;
    if (first_renumbered(run->train) == CR_NONE) return CR_OK;
    CR_ALLOC(to, (size_t)classes);
    for (int k = 0; k < classes; k++) to[k] = cr_dataset_renumbered(run->train, k);
    const cr_status status = cr_dataset_renumber(run->val, to);
    cr_free(to);
    return status;
}

cr_status cr_run_number_classes(struct cr_run *run) {
    const struct cr_config *c      = run->config;
    struct cr_arena         arena  = {0};
    cr_status               status = CR_OK;
    const char            **names;
    int                     count;
    if (run->from) {
        CR_TRY_OUT(cr_saved_model_names(run->from, &arena, &names, &count));
        if (count) CR_TRY_OUT(cr_dataset_adopt_classes(run->train, names, count, "the checkpoint", NULL));
    } else if (*c->model.weights && c->model.head != CR_HEAD_NEW && c->model.head != CR_HEAD_MATCH) {
        CR_TRY_OUT(cr_saved_model_number_classes(c, run->train, false, CR_RUN_SAME_HEAD));
    }
    CR_TRY_OUT(number_as_training(run));
out:
    cr_arena_free(&arena);
    return status;
}

/* ---- comparison with the checkpoint ---- */

/* Adds a line with the names of `a` that `b` lacks. Sets *found to their number. */
static cr_status add_missing(const char *const *a, int count, const char *const *b, int b_count, const char *what,
                             struct cr_text *out, int *found) {
    struct cr_class_match match;
    *found = 0;
    CR_TRY(cr_class_match(a, count, b, b_count, false, &match));
    for (int i = 0; i < count; i++) {
        if (match.to[i] >= 0) continue;
        if (*found == 0) cr_text_add(out, "\n  %s:", what);
        if (*found < NAMES_IN_MESSAGE) cr_text_add(out, "%s %s", *found ? "," : "", a[i]);
        ++*found;
    }
    if (*found > NAMES_IN_MESSAGE) cr_text_add(out, " and %d more", *found - NAMES_IN_MESSAGE);
    cr_class_match_free(&match);
    return CR_OK;
}

/* Adds the classes that were added, removed or renamed. *before: number of classes of the checkpoint. */
static cr_status compare_classes(const struct cr_run *run, struct cr_text *out, int *before) {
    const int          count = run->train->classes;
    const char *const *now   = run->train->class_names;
    struct cr_arena    arena = {0};
    const char       **old;
    int                removed, added;
    cr_status          status;
    CR_TRY_OUT(cr_saved_model_names(run->from, &arena, &old, before));
    if (!*before)
        *before = count; /* the comparison of the other properties has to do */
    else {
        CR_TRY_OUT(add_missing(old, *before, now, count, "classes removed", out, &removed));
        CR_TRY_OUT(add_missing(now, count, old, *before, "classes added", out, &added));
        if (removed && removed == added && *before == count) cr_text_add(out, " (renamed?)");
    }
out:
    cr_arena_free(&arena);
    return status;
}

/* Adds a line for each difference. */
static void compare_images(const struct cr_run *run, const struct cr_position *old, struct cr_text *out) {
    const int64_t count   = run->train->count;
    const bool    same    = old->data_fingerprint == run->train->fingerprint;
    const bool    ordered = same || first_renumbered(run->train) == CR_NONE; /* else the hashes differ by the labels */
    if (!ordered) cr_text_add(out, "\n  the classes are in another order (they are matched by name)");
    if (old->data_images && old->data_images != count)
        cr_text_add(out, "\n  %" PRId64 " training images, before %" PRId64, count, old->data_images);
    else if (ordered && old->data_contents && run->data_contents && old->data_contents != run->data_contents)
        cr_text_add(out, "\n  the contents of training images differ");
    else if (!out->length && !same)
        cr_text_add(out, "\n  names, labels or the number of training images differ");
}

void cr_run_warn_forced(char *lines) {
    char *save = NULL;
    for (char *line = strtok_r(lines, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        cr_log(CR_LOG_WARN, "resume, forced: %s", line + strspn(line, " "));
}

/* Adds a line for each difference between the training set and that of the checkpoint. *before: number of classes of
 * the checkpoint. *classes: their names or their number differ. */
static cr_status compare_data(const struct cr_run *run, struct cr_text *diff, int *before, bool *classes) {
    struct cr_position old;
    CR_TRY(cr_state_position(run->from, &old));
    CR_TRY(compare_classes(run, diff, before));
    *classes = diff->length > 0;
    compare_images(run, &old, diff);
    return diff->failed ? CR_NO_MEMORY(diff->length) : CR_OK;
}

cr_status cr_run_compare_data(struct cr_run *run, struct cr_text *diff, bool *classes) {
    int before;
    CR_TRY(cr_dataset_open(run->config, CR_SPLIT_TRAIN, &run->train));
    CR_TRY(cr_dataset_open(run->config, CR_SPLIT_VAL, &run->val));
    CR_TRY(cr_run_number_classes(run));
    CR_TRY(cr_dataset_contents(run->train, &run->data_contents));
    return compare_data(run, diff, &before, classes);
}

static cr_status refuse_untrained(const struct cr_run *run, bool force) {
    struct cr_position old;
    CR_TRY(cr_state_position(run->from, &old));
    if (old.steps_per_epoch || old.data_fingerprint || force) return CR_OK;
    return CR_FAIL(CR_ERR_CONFIG,
                   "%s: a network without a training that could continue, as prune and compress save it: start a "
                   "new run from it, with model.weights=%s and -o FOLDER",
                   run->from, run->from);
}

cr_status cr_run_check_data(struct cr_run *run, bool force) {
    const char    *root = run->config->data.root;
    struct cr_text diff = {0};
    int            before, classes = run->train->classes;
    bool           other;
    cr_status      status;
    CR_TRY(cr_dataset_check_readable(run->train));
    CR_TRY(cr_dataset_contents(run->train, &run->data_contents));
    if (!run->from) return CR_OK;
    CR_TRY_OUT(refuse_untrained(run, force));
    CR_TRY_OUT(compare_data(run, &diff, &before, &other));
    if (!diff.length) goto out;
    if (before != classes)
        CR_FAIL_OUT(CR_ERR_CONFIG,
                    "%s: the dataset%s%s has changed since this run was saved:%s\na network of %d classes cannot "
                    "continue with %d: restore the dataset, or start a new run with model.weights=%s",
                    run->from, *root ? " " : "", root, diff.data, before, classes, run->from);
    if (!force)
        CR_FAIL_OUT(CR_ERR_CONFIG,
                    "%s: the dataset%s%s has changed since this run was saved:%s\nadd --force to continue with it, "
                    "start a new run "
                    "from these weights with -o DIR model.weights=%s, or restore the dataset",
                    run->from, *root ? " " : "", root, diff.data, run->from);
    cr_run_warn_forced(diff.data);
out:
    cr_text_free(&diff);
    return status;
}
