/* training/setup.c: opens a training run: run folder, configuration, datasets, session. See training/run.h. */
#include "training/run.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_step_folder(const char *path) {
    char        file[PATH_MAX + 32];
    struct stat st;
    snprintf(file, sizeof file, "%s/state.safetensors", path);
    return stat(file, &st) == 0;
}

/* ---- the run folder ---- */

static char *printf_alloc(const char *fmt, const char *a, const char *b) {
    size_t size = strlen(fmt) + strlen(a) + strlen(b) + 1;
    char  *s    = cr_alloc(size, 1);
    if (s) snprintf(s, size, fmt, a, b);
    return s;
}

static cr_status default_dir(const struct cr_config *c, char **out) {
    *out = *c->train.output ? cr_strdup(c->train.output) : printf_alloc("checkpoints/%s%s", c->name, "");
    return *out ? CR_OK : CR_NO_MEMORY(256);
}

/* --resume PATH: PATH is a run folder, or a step folder inside a run folder. */
static cr_status split_resume_path(const char *path, char **dir, char **from) {
    char resolved[PATH_MAX];
    if (!realpath(path, resolved))
        return CR_FAIL(CR_ERR_CONFIG,
                       "--resume %s: %s; give a run folder or a checkpoint, or --resume auto, which continues the "
                       "run in the output folder",
                       path, strerror(errno));
    if (!is_step_folder(resolved)) {
        CR_TRY(cr_ckpt_find_intact(resolved, from));
        if (!*from) return CR_FAIL(CR_ERR_CONFIG, "--resume %s: no checkpoint there (no step-N folder)", path);
    } else {
        CR_TRY(cr_ckpt_verify(resolved));
        *from       = cr_strdup(resolved);
        char *slash = strrchr(resolved, '/');
        if (slash && slash != resolved) *slash = 0;
    }
    *dir = cr_strdup(resolved);
    return *dir && *from ? CR_OK : CR_NO_MEMORY(sizeof resolved);
}

void cr_run_read_last(const char *dir, char out[CR_RUN_LAST_BYTES]) {
    char          path[PATH_MAX + 8];
    const ssize_t length   = snprintf(path, sizeof path, "%s/last", dir) < (int)sizeof path
                                 ? readlink(path, out, CR_RUN_LAST_BYTES - 1)
                                 : -1;
    out[CR_MAX(length, 0)] = 0;
}

static cr_status choose_dir(const struct cr_config *given, const struct cr_train_options *o, struct cr_run *run) {
    if (o->resume && strcmp(o->resume, "auto") != 0) {
        CR_TRY(split_resume_path(o->resume, &run->dir, &run->from));
        return CR_OK;
    }
    CR_TRY(default_dir(given, &run->dir));
    if (o->resume) {
        cr_run_read_last(run->dir, run->last);
        CR_TRY(cr_ckpt_find_intact(run->dir, &run->from));
        if (!run->from) cr_log(CR_LOG_INFO, "resume: no checkpoint in %s, starting from the beginning", run->dir);
        return CR_OK;
    }
    if (cr_ckpt_dir_in_use(run->dir))
        return CR_FAIL(CR_ERR_CONFIG,
                       "%s is not empty and may contain a run: continue it with --resume auto, or choose another "
                       "folder with train.output=DIR",
                       run->dir);
    return CR_OK;
}

/* Checks with the lock that the folder is as choose_dir found it: another run may have written there and ended. */
static cr_status check_unchanged(const struct cr_train_options *o, const struct cr_run *run) {
    char last[sizeof run->last];
    if (o->resume && strcmp(o->resume, "auto") != 0) return CR_OK; /* the checkpoint was named */
    cr_run_read_last(run->dir, last);
    if (o->resume ? strcmp(last, run->last) == 0 : !cr_ckpt_dir_in_use(run->dir)) return CR_OK;
    return CR_FAIL(CR_ERR_CONFIG, "%s: another run has written there meanwhile: start again", run->dir);
}

/* ---- configuration of a resumed run ---- */

static bool starts_with_any(const char *line, const char *const *prefix, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strncmp(line, prefix[i], strlen(prefix[i])) == 0) return true;
    return false;
}

/* True when this change alters the model or the order of the data. */
static bool changes_results(const char *line) {
    static const char *const allowed[] = {"model.weights:", "model.head:",   "model.init",
                                          "data.root:",     "data.workers:", "data.prefetch:",
                                          "data.eval_",     "data.corrupt:", "data.max_pixels:"};
    static const char *const fixed[]   = {"model.", "data.", "train.batch:", "train.seed:", "train.accumulate:"};
    return !starts_with_any(line, allowed, CR_COUNT(allowed)) && starts_with_any(line, fixed, CR_COUNT(fixed));
}

/* Changes of the output folder, the command of events, train.steps and the memory that a run may see
 * (a sweep sets it) are not logged. */
static bool is_silent(const char *line) {
    static const char *const silent[] = {"train.output:", "train.steps:", "train.on_event:", "memory.card:"};
    return starts_with_any(line, silent, CR_COUNT(silent));
}

static cr_status check_changes(struct cr_text *diff, bool force, bool same_update) {
    static const char *const update[] = {"train.batch:", "train.accumulate:"};
    struct cr_text           rejected = {0};
    char                    *save     = NULL;
    for (char *line = diff->data ? strtok_r(diff->data, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        const bool same_images = same_update && starts_with_any(line, update, CR_COUNT(update));
        if (changes_results(line) && !same_images)
            cr_text_add(&rejected, "\n  %s", line);
        else if (!is_silent(line))
            cr_log(CR_LOG_INFO, "resume: %s", line);
    }
    cr_status status = CR_OK;
    if (rejected.data && !force)
        status = CR_FAIL(CR_ERR_CONFIG,
                         "these values would change the model or the order of the data of the run:%s\nrestore the "
                         "old values, or add --force",
                         rejected.data);
    else if (rejected.data)
        cr_run_warn_forced(rejected.data);
    cr_text_free(&rejected);
    return status;
}

static cr_status stored_config(const struct cr_config *given, const struct cr_train_options *o, struct cr_run *run) {
    struct cr_config stored = {0};
    struct cr_text   diff = {0}, ignored = {0};
    bool             same_update;
    cr_status        status = CR_OK;
    char            *path   = printf_alloc("%s/%s", run->from, "config.ini");
    if (!path) return CR_NO_MEMORY(256);
    CR_TRY_OUT(cr_config_open_stored(&stored, path, NULL, 0));
    CR_TRY_OUT(cr_config_reopen(&run->config, &stored, o->overrides, o->override_count));
    run->config.train.on_event = "";
    if (!run->config.train.batch && !o->force)
        run->config.train.batch = stored.train.batch; /* auto: the batch size that was found when the run began */
    CR_TRY_OUT(cr_run_fit_batch(run, &stored, o->force, &same_update));
    run->unmeasured = !stored.train.measure;
    cr_config_diff(&stored, &run->config, &diff);
    if (diff.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while comparing configurations");
    CR_TRY_OUT(check_changes(&diff, o->force, same_update));
    cr_config_diff(&run->config, given, &ignored);
    char *save = NULL;
    for (char *line = ignored.data ? strtok_r(ignored.data, "\n", &save) : NULL; line;
         line       = strtok_r(NULL, "\n", &save))
        if (!is_silent(line))
            cr_log(CR_LOG_INFO, "resume: %s in %s is not applied; give it on the command line to change it", line,
                         given->path);
out:
    cr_config_close(&stored);
    cr_text_free(&diff);
    cr_text_free(&ignored);
    cr_free(path);
    return status;
}

/* Makes the run's own copy of the given configuration. run->events has the command of train.on_event. */
static cr_status copy_config(const struct cr_config *given, const struct cr_train_options *o, struct cr_run *run) {
    CR_TRY(cr_config_reopen(&run->config, given, o->overrides, o->override_count));
    run->config.train.on_event = "";
    return CR_OK;
}

/* ---- datasets and session ---- */

static cr_status open_data(struct cr_run *run) {
    struct cr_text    text = {0};
    struct cr_config *c    = &run->config;
    CR_TRY(cr_dataset_open(c, CR_SPLIT_TRAIN, &run->train));
    CR_TRY(cr_dataset_open(c, CR_SPLIT_VAL, &run->val));
    cr_dataset_describe(run->train, &text);
    cr_text_add(&text, "; validation: ");
    cr_dataset_describe(run->val, &text);
    if (!text.failed) cr_log(CR_LOG_INFO, "data    %s: %s", cr_word_data_kind(c->data.kind), text.data);
    cr_text_free(&text);
    if (cr_dataset_classes(run->train) != cr_dataset_classes(run->val))
        return cr_config_fail(c, "data.root", "%d classes in training, %d in validation: the numbers must be equal",
                              cr_dataset_classes(run->train), cr_dataset_classes(run->val));
    CR_TRY(cr_run_number_classes(run));
    int64_t need =
        CR_MAX(cr_run_update_images(run), c->train.accumulate * cr_comm_size(run->comm)); /* batch is 0 when auto */
    if (cr_dataset_count(run->train) < need)
        return cr_config_fail(c, "train.batch",
                              "%" PRId64 " images per update, but the training set has %" PRId64
                              ": lower batch or accumulate",
                              need, cr_dataset_count(run->train));
    return CR_OK;
}

static cr_status open_loader(struct cr_run *run) {
    const struct cr_config  *c       = &run->config;
    struct cr_loader_options options = {.split         = CR_SPLIT_TRAIN,
                                        .prepare       = run->session.prepare_train,
                                        .sizes         = &run->session.sizes,
                                        .prepare_sizes = run->session.prepare_sizes,
                                        .batch         = c->train.batch,
                                        .seed          = (uint64_t)c->train.seed,
                                        .workers       = (int)c->data.workers,
                                        .prefetch      = (int)c->data.prefetch,
                                        .drop_last     = c->data.drop_last,
                                        .corrupt_fatal = c->data.corrupt == CR_CORRUPT_FATAL,
                                        .balanced      = c->data.sampling == CR_SAMPLING_BALANCED,
                                        .repeats       = (int)c->data.repeats,
                                        .rank          = cr_comm_rank(run->comm),
                                        .ranks         = cr_comm_size(run->comm)};
    int64_t                  stored  = run->at.steps_per_epoch;
    run->at.steps_per_epoch          = cr_loader_batches(run->train, &options) / c->train.accumulate;
    if (run->from) { /* position and schedule are computed from the number of updates */
        if (stored != run->at.steps_per_epoch)
            cr_log(CR_LOG_WARN,
                   "an epoch had %" PRId64 " steps and now has %" PRId64 ": step %" PRId64 " is epoch %.2f", stored,
                   run->at.steps_per_epoch, run->at.step, (double)run->at.step / (double)run->at.steps_per_epoch);
        options.epoch       = run->at.step / run->at.steps_per_epoch;
        options.first_batch = run->at.step % run->at.steps_per_epoch * c->train.accumulate;
    }
    return cr_loader_open(run->train, &options, &run->loader);
}

static cr_status load_values(struct cr_run *run) {
    if (!run->from) {
        CR_TRY(cr_session_init(&run->session));
        if (run->config.model.stem_init == CR_STEM_INIT_WHITENING) {
            CR_TRY(cr_session_whiten_stem(&run->session, run->train));
            CR_TRY(cr_state_ema_start(&run->session));
        }
        if (*run->config.model.weights) {
            CR_TRY(cr_session_load_weights(&run->session, run->config.model.weights, false));
            CR_TRY(cr_state_ema_start(&run->session));
        } else
            cr_log(CR_LOG_INFO, "weights: model.weights is not set: training from scratch");
    } else {
        CR_TRY(cr_state_load(&run->session, run->from, &run->at));
        CR_TRY(cr_session_fit_loss_scale(&run->session));
        cr_log(CR_LOG_INFO, "resume  %s, step %" PRId64, run->from, run->at.step);
    }
    const int64_t saved_ranks = run->at.ranks;
    run->at.data_fingerprint  = cr_dataset_fingerprint(run->train);
    run->at.data_images       = cr_dataset_count(run->train);
    run->at.data_contents     = run->data_contents;
    run->at.ranks             = cr_comm_size(run->comm);
    run->at.teacher           = run->teacher ? run->teacher->hash : 0;
    CR_TRY(cr_session_same_values(&run->session));
    return run->from ? cr_state_running_load(&run->session, run->from, saved_ranks) : CR_OK;
}

/* The weights that the run starts from: a checkpoint, a file, or "". */
static const char *initial_weights(const struct cr_run *run) {
    return run->from ? run->from : run->config.model.weights;
}

/* Opens the session with the parts that are frozen after run->config.epoch epochs. `weights` may be pruned; `from` is
 * the checkpoint that a resumed run takes its kernels from, or NULL. */
static cr_status start_session(struct cr_run *run, const char *weights, const char *from, bool force) {
    bool pruned = false;
    if (*weights) CR_TRY(cr_state_is_pruned(weights, &pruned));
    const struct cr_session_options options = {.train      = true,
                                               .all_sizes  = true,
                                               .eval       = true,
                                               .execute    = true,
                                               .masks      = pruned,
                                               .masks_from = pruned ? weights : NULL,
                                               .batch_max  = cr_dataset_count(run->train) /
                                                            (run->config.train.accumulate * cr_comm_size(run->comm)),
                                               .classes                 = cr_dataset_classes(run->train),
                                               .kernel_times_from       = from,
                                               .kernel_times_unmeasured = from && run->unmeasured,
                                               .retune                  = force,
                                               .train_data              = run->train,
                                               .comm                    = run->comm,
                                               .teacher                 = run->teacher};
    CR_TRY(cr_session_open(&run->config, &options, &run->session));
    CR_TRY(cr_session_check_evaluation(&run->session, run->val));
    run->config.train.batch = run->session.batch; /* replaces auto; the checkpoint stores this number */
    const size_t limit      = cr_session_limit_found(&run->session);
    if (limit) { /* replaces auto too, so that a resumed run has the same programs */
        snprintf(run->limit, sizeof run->limit, "%zuB", limit);
        run->config.memory.limit = run->limit;
    }
    return cr_run_prune_open(run);
}

static int64_t epoch_of(const struct cr_run *run) {
    return run->at.steps_per_epoch ? run->at.step / run->at.steps_per_epoch : 0;
}

cr_status cr_run_unfreeze(struct cr_run *run) {
    char          folder[PATH_MAX + 32];
    const int64_t ranks = run->at.ranks;
    snprintf(folder, sizeof folder, "%s/step-%" PRId64, run->dir, run->at.step);
    run->config.epoch = epoch_of(run);
    cr_run_prune_close(run);
    cr_session_close(&run->session);
    CR_TRY(start_session(run, folder, NULL, false));
    CR_TRY(cr_state_load(&run->session, folder, &run->at));
    CR_TRY(cr_session_same_values(&run->session));
    return cr_state_running_load(&run->session, folder, ranks);
}

static cr_status open_session(struct cr_run *run, bool force) {
    if (run->from && run->config.model.unfreeze.count) {
        CR_TRY(cr_state_position(run->from, &run->at));
        run->config.epoch = epoch_of(run);
    }
    CR_TRY(start_session(run, initial_weights(run), run->from, force));
    CR_TRY(load_values(run));
    CR_TRY(open_loader(run));
    run->total_steps = run->config.train.epochs * run->at.steps_per_epoch;
    if (run->config.train.steps) run->total_steps = CR_MIN(run->total_steps, run->config.train.steps);
    cr_run_scale_lr(run);
    cr_run_prune_warn(run);
    return CR_OK;
}

/* ---- open, close ---- */

static cr_status prepare_folder(const struct cr_train_options *o, struct cr_run *run) {
    if (cr_comm_rank(run->comm) > 0) return CR_OK;
    run->made = !cr_fs_is_dir(run->dir);
    CR_TRY(cr_ckpt_prepare_dir(run->dir));
    CR_TRY(cr_ckpt_lock(run->dir, &run->lock)); /* two runs in one folder would overwrite each other's checkpoints */
    CR_TRY(check_unchanged(o, run));
    CR_TRY(cr_ckpt_check_dir(run->dir));
    cr_ckpt_sweep(run->dir);
    return CR_OK;
}

static cr_status open_run(const struct cr_config *given, const struct cr_train_options *o, struct cr_run *run) {
    if (cr_comm_rank(run->comm) == 0) CR_TRY(choose_dir(given, o, run));
    CR_TRY(cr_run_share_folders(run));
    if (run->from)
        CR_TRY(stored_config(given, o, run));
    else
        CR_TRY(copy_config(given, o, run));
    CR_TRY(cr_run_prune_check(&run->config));
    CR_TRY(cr_run_check_final_tta(run));
    CR_TRY(cr_device_check(run->config.train.device));
    if (!run->from) CR_TRY(cr_state_weights_there(&run->config));
    /* The data is opened before anything is written: a wrong data.root leaves no empty run folder. */
    CR_TRY(cr_run_data_turn(run, open_data));
    CR_TRY(cr_run_open_teacher(run));
    CR_TRY(cr_run_same(run));
    CR_TRY(cr_run_check_data(run, o->force));
    CR_TRY(cr_run_check_teacher(run, o->force));
    CR_TRY(cr_run_check_balance(run));
    CR_TRY(prepare_folder(o, run));
    CR_TRY(open_session(run, o->force));
    run->config.train.output = run->dir;
    cr_config_dump(&run->config, &run->config_text);
    return run->config_text.failed ? CR_NO_MEMORY(4096) : CR_OK;
}

cr_status cr_training_check(const struct cr_config *config) {
    CR_TRY(cr_run_prune_check(config));
    if (config->quant.type != CR_QUANT_INT8 || config->quant.train) return CR_OK;
    return cr_config_fail(config, "quant.type",
                          "a quantised network cannot be trained: start from the one in floating point, with "
                          "quant.train=yes to train with quantised values");
}

cr_status cr_run_open(const struct cr_config *given, const struct cr_train_options *options, struct cr_run *run) {
    CR_TRY(cr_training_check(given));
    *run             = (struct cr_run){.lock = -1, .comm = options->comm, .events.command = options->on_event};
    cr_status status = open_run(given, options, run);
    if (status == CR_OK) return CR_OK;
    cr_comm_abort(run->comm, cr_error_message()); /* before this rank closes anything that other ranks wait for */
    if (run->made && run->lock >= 0) cr_ckpt_remove_empty(run->dir);
    cr_run_close(run);
    return status;
}

void cr_run_close(struct cr_run *run) {
    cr_loader_close(run->loader);
    cr_run_prune_close(run);
    cr_session_close(&run->session);
    cr_teacher_close(run->teacher);
    cr_dataset_close(run->train);
    cr_dataset_close(run->val);
    cr_text_free(&run->config_text);
    cr_config_close(&run->config);
    if (run->lock >= 0) close(run->lock);
    cr_free(run->dir);
    cr_free(run->from);
    *run = (struct cr_run){.lock = -1};
}
