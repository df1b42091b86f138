/* training/resumed_config.c: the configuration of a resumed run: which keys may change, and the differences from the
 * stored ones. See training/run.h and, for cr_training_compare, training/training.h. */
#include "training/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Changes of the output folder, train.steps and the memory that a run may see (a sweep sets it) are not logged. */
static bool is_silent(const char *key) {
    static const char *const silent[] = {"train.output", "train.steps", "memory.card"};
    for (size_t i = 0; i < CR_COUNT(silent); i++)
        if (strcmp(key, silent[i]) == 0) return true;
    return false;
}

/* Why a key must not change in a run, by what it decides; NULL: it may change. */
static const char *why_fixed(const struct cr_config_difference *d, bool same_update) {
    if (same_update && (strcmp(d->name, "train.batch") == 0 || strcmp(d->name, "train.accumulate") == 0)) return NULL;
    if (d->decides == CR_DECIDES_MODEL) return "it decides the network";
    return d->decides == CR_DECIDES_DATA ? "it decides which images training sees, and in which order" : NULL;
}

static cr_status check_changes(const struct cr_config_differences *differ, bool force, bool same_update) {
    struct cr_text rejected = {0};
    for (int i = 0; i < differ->count; i++) {
        const struct cr_config_difference *d   = &differ->at[i];
        const char                        *why = why_fixed(d, same_update);
        if (why)
            cr_text_add(&rejected, "\n  %s (%s)", d->text, why);
        else if (!is_silent(d->name))
            cr_log(CR_LOG_INFO, "resume: %s", d->text);
    }
    cr_status status = CR_OK;
    if (rejected.data && !force)
        status = CR_FAIL(CR_ERR_CONFIG,
                         "these values would change the model or the data of the run:%s\nrestore the old values, or "
                         "add --force",
                         rejected.data);
    else if (rejected.data)
        cr_run_warn_forced(rejected.data);
    cr_text_free(&rejected);
    return status;
}

/* The values of the command line in the configuration of the run that is resumed. With batch size auto, the run keeps
 * the number that it found when it began. */
static cr_status resumed_config(const struct cr_config *stored, const struct cr_train_options *o, struct cr_run *run) {
    char batch[40];
    snprintf(batch, sizeof batch, "train.batch=%" PRId64, stored->train.batch);
    CR_TRY(cr_config_reopen(&run->config, stored, o->overrides, o->override_count));
    return run->config->train.batch || !stored->train.batch || o->force
               ? CR_OK
               : cr_config_change(&run->config, CR_CHANGES(batch));
}

/* Logs which values of the user's configuration have no effect, because the run keeps its stored ones. */
static cr_status log_ignored(const struct cr_config *user_config, const struct cr_run *run) {
    struct cr_config_differences differ;
    const cr_status              status = cr_config_compare(run->config, user_config, &differ);
    for (int i = 0; i < differ.count && status == CR_OK; i++)
        if (!is_silent(differ.at[i].name))
            cr_log(CR_LOG_INFO, "resume: %s in %s is not applied; give it on the command line to change it",
                   differ.at[i].text, user_config->path);
    cr_config_differences_free(&differ);
    return status;
}

cr_status cr_run_resumed_config(const struct cr_config *user_config, const struct cr_train_options *o,
                                struct cr_run *run) {
    const struct cr_config      *stored = NULL;
    struct cr_config_differences differ = {0};
    char                         path[CR_PATH_MAX];
    bool                         same_update;
    cr_status                    status;
    CR_TRY(cr_path_join(path, run->from, "config.ini"));
    CR_TRY_OUT(cr_config_open_stored(&stored, path, NULL, 0));
    CR_TRY_OUT(resumed_config(stored, o, run));
    CR_TRY_OUT(cr_run_fit_batch(run, stored, o->force, &same_update));
    run->unmeasured = !stored->train.measure;
    CR_TRY_OUT(cr_config_compare(stored, run->config, &differ));
    CR_TRY_OUT(check_changes(&differ, o->force, same_update));
    CR_TRY_OUT(log_ignored(user_config, run));
out:
    cr_config_close(stored);
    cr_config_differences_free(&differ);
    return status;
}

/* ---- what has changed since a run was saved ---- */

/* A limit, or a batch size, that the run has found is not a change of the value `auto`. */
static bool was_found(const struct cr_config_difference *d, const struct cr_config *fresh) {
    if (strcmp(d->name, "memory.limit") == 0) return strcmp(fresh->memory.limit, "auto") == 0;
    return strcmp(d->name, "train.batch") == 0 && !fresh->train.batch;
}

static void keep_effective(const struct cr_config *fresh, struct cr_training_changes *out) {
    struct cr_config_differences *keys = &out->keys;
    int                           kept = 0;
    for (int i = 0; i < keys->count; i++) {
        const struct cr_config_difference *d = &keys->at[i];
        /* the network has its weights, and the images are compared by themselves */
        const bool start = d->decides == CR_DECIDES_START || strcmp(d->name, "model.weights") == 0;
        if (is_silent(d->name) || start || was_found(d, fresh)) continue;
        out->refused |= why_fixed(d, false) != NULL;
        keys->at[kept++] = *d;
    }
    keys->count = kept;
}

/* The number of steps and the best evaluation so far, by the stored configuration. */
static cr_status read_end(const struct cr_run *stored, bool *ended) {
    struct cr_run run = *stored;
    CR_TRY(cr_state_position(run.from, &run.at));
    cr_run_set_steps(&run);
    CR_TRY(cr_run_find_evaluation(&run));
    const struct cr_best best = cr_run_best_read(&run);
    *ended                    = cr_run_is_complete(&run, &best) || cr_run_stops_early(&run, &best);
    return CR_OK;
}

cr_status cr_training_compare(const struct cr_config *config, const char *run_dir, struct cr_training_changes *out) {
    const struct cr_config *stored = NULL;
    struct cr_run           run    = {.lock = -1, .dir = cr_strdup(run_dir)};
    char                    path[CR_PATH_MAX];
    cr_status               status = run.dir ? CR_OK : CR_NO_MEMORY(strlen(run_dir));
    *out                           = (struct cr_training_changes){0};
    CR_TRY_OUT(status);
    CR_TRY_OUT(cr_ckpt_find_intact(run_dir, &run.from));
    out->begun = run.from != NULL;
    if (!run.from) goto out;
    CR_TRY_OUT(cr_path_join(path, run.from, "config.ini"));
    CR_TRY_OUT(cr_config_open_stored(&stored, path, NULL, 0));
    run.config = stored;
    CR_TRY_OUT(read_end(&run, &out->ended));
    CR_TRY_OUT(cr_config_compare(stored, config, &out->keys));
    keep_effective(config, out);
    run.config = config;
    CR_TRY_OUT(cr_run_compare_data(&run, &out->data, &out->classes));
out:
    run.config = NULL;
    cr_config_close(stored);
    cr_run_close(&run);
    return status;
}

void cr_training_changes_free(struct cr_training_changes *changes) {
    cr_config_differences_free(&changes->keys);
    cr_text_free(&changes->data);
}
