/* training/setup.c: opens a training run, new or resumed: folder, configuration, datasets, weights, session. */
#include "training/run.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the run folder ---- */

/* --resume PATH: PATH is a run folder, or a step folder inside a run folder. */
static cr_status split_resume_path(const char *path, char **dir, char **from) {
    char resolved[PATH_MAX];
    if (!realpath(path, resolved))
        return CR_FAIL(CR_ERR_CONFIG,
                       "--resume %s: %s; give a run folder or a checkpoint, or --resume auto, which continues the "
                       "run in the output folder",
                       path, strerror(errno));
    if (!cr_fs_has_file(resolved, "state.safetensors")) {
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

void cr_run_read_last_link(const char *dir, char out[CR_RUN_LINK_BYTES]) {
    char          path[PATH_MAX + 8];
    const ssize_t length   = snprintf(path, sizeof path, "%s/last", dir) < (int)sizeof path
                                 ? readlink(path, out, CR_RUN_LINK_BYTES - 1)
                                 : -1;
    out[CR_MAX(length, 0)] = 0;
}

static cr_status choose_dir(const struct cr_config *user_config, const struct cr_train_options *o, struct cr_run *run) {
    char path[CR_PATH_MAX];
    if (o->resume && strcmp(o->resume, "auto") != 0) return split_resume_path(o->resume, &run->dir, &run->from);
    CR_TRY(cr_path_join(path, "checkpoints", "%s", user_config->name));
    run->dir = cr_strdup(*user_config->train.output ? user_config->train.output : path);
    if (!run->dir) return CR_NO_MEMORY(sizeof path);
    if (o->resume) {
        cr_run_read_last_link(run->dir, run->last_link);
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
    char link[sizeof run->last_link];
    if (o->resume && strcmp(o->resume, "auto") != 0) return CR_OK; /* the checkpoint was named */
    cr_run_read_last_link(run->dir, link);
    if (o->resume ? strcmp(link, run->last_link) == 0 : !cr_ckpt_dir_in_use(run->dir)) return CR_OK;
    return CR_FAIL(CR_ERR_CONFIG, "%s: another run has written there meanwhile: start again", run->dir);
}

/* ---- datasets and session ---- */

static cr_status open_data(struct cr_run *run) {
    struct cr_text          text = {0};
    const struct cr_config *c    = run->config;
    CR_TRY(cr_dataset_open(c, CR_SPLIT_TRAIN, &run->train));
    CR_TRY(cr_dataset_open(c, CR_SPLIT_VAL, &run->val));
    cr_dataset_describe(run->train, &text);
    cr_text_add(&text, "; validation: ");
    cr_dataset_describe(run->val, &text);
    if (!text.failed) cr_log(CR_LOG_INFO, "data    %s: %s", cr_word_data_kind(c->data.kind), text.data);
    cr_text_free(&text);
    if (run->train->classes != run->val->classes)
        return cr_config_fail(c, "data.root", "%d classes in training, %d in validation: the numbers must be equal",
                              run->train->classes, run->val->classes);
    CR_TRY(cr_run_number_classes(run));
    int64_t need =
        CR_MAX(cr_run_update_images(run), c->train.accumulate * cr_comm_size(run->comm)); /* batch is 0 when auto */
    if (run->train->count < need)
        return cr_config_fail(c, "train.batch",
                              "%" PRId64 " images per update, but the training set has %" PRId64
                              ": lower batch or accumulate",
                              need, run->train->count);
    return CR_OK;
}

static cr_status open_loader(struct cr_run *run) {
    const struct cr_config  *c       = run->config;
    const struct cr_session *s       = &run->session;
    struct cr_loader_options options = cr_loader_options_of_training(c, &s->prepare_train, s->state.batch);
    options.sizes                    = &s->state.sizes;
    options.prepare_sizes            = s->prepare_sizes;
    options.rank                     = cr_comm_rank(run->comm);
    options.ranks                    = cr_comm_size(run->comm);
    options.memory                   = cr_session_loader_memory(&run->session);
    int64_t stored                   = run->at.steps_per_epoch;
    run->at.steps_per_epoch          = cr_loader_batches(run->train, &options) / c->train.accumulate;
    if (run->from || run->at.step) { /* position and schedule are computed from the number of updates */
        if (stored != run->at.steps_per_epoch)
            cr_log(CR_LOG_WARN,
                   "an epoch had %" PRId64 " steps and now has %" PRId64 ": step %" PRId64 " is epoch %.2f", stored,
                   run->at.steps_per_epoch, run->at.step, (double)run->at.step / (double)run->at.steps_per_epoch);
        options.epoch       = run->at.step / run->at.steps_per_epoch;
        options.first_batch = run->at.step % run->at.steps_per_epoch * c->train.accumulate;
    }
    CR_TRY(cr_session_jpeg_open(&run->session, run->train, &options));
    cr_status status = cr_loader_open(run->train, &options, &run->loader);
    if (status != CR_ERR_MEMORY || !options.jpeg_auto) return status;
    cr_log(CR_LOG_WARN, "the CPU decodes all images: there is no page-locked memory left for data.decode = auto");
    cr_session_jpeg_close(&run->session);
    options.jpeg_bytes = 0;
    return cr_loader_open(run->train, &options, &run->loader);
}

static cr_status load_values(struct cr_run *run) {
    if (!run->from) {
        CR_TRY(cr_session_init(&run->session));
        if (*run->config->model.weights) {
            CR_TRY(cr_session_load_weights(&run->session, run->config->model.weights, false));
            if (run->config->model.head == CR_HEAD_MATCH)
                CR_TRY(cr_session_match_head(&run->session, run->config->model.weights, run->train->class_names));
            CR_TRY(cr_state_ema_start(&run->session));
        } else
            cr_log(CR_LOG_INFO, "weights: model.weights is not set: training from scratch");
    } else {
        CR_TRY(cr_state_load(&run->session, run->from, &run->at));
        CR_TRY(cr_session_fit_loss_scale(&run->session));
        cr_log(CR_LOG_INFO, "resume  %s, step %" PRId64, run->from, run->at.step);
    }
    const int64_t saved_ranks = run->at.ranks;
    run->at.data_fingerprint  = run->train->fingerprint;
    run->at.data_images       = run->train->count;
    run->at.data_contents     = run->data_contents;
    run->at.ranks             = cr_comm_size(run->comm);
    run->at.teacher           = run->teacher ? run->teacher->hash : 0;
    CR_TRY(cr_session_same_values(&run->session));
    return run->from ? cr_state_running_load(&run->session, run->from, saved_ranks) : CR_OK;
}

/* Opens the session after `state->epoch` epochs. `state` has the batch size and the memory limit that the run has
 * found, or zeros. `weights` may be pruned; `from` is the checkpoint that a resumed run takes its kernels from, or
 * NULL. */
static cr_status start_session(struct cr_run *run, const struct cr_run_state *state, const char *weights,
                               const char *from, bool force) {
    const struct cr_session_options options = {.train        = true,
                                               .all_sizes    = true,
                                               .eval         = true,
                                               .execute      = true,
                                               .epoch        = state->epoch,
                                               .batch        = state->batch,
                                               .memory_limit = state->memory_limit,
                                               .masks_from   = weights,
                                               .batch_max    = run->train->count /
                                                            (run->config->train.accumulate * cr_comm_size(run->comm)),
                                               .classes                 = run->train->classes,
                                               .kernel_times_from       = from,
                                               .kernel_times_unmeasured = from && run->unmeasured,
                                               .retune                  = force,
                                               .train_data              = run->train,
                                               .comm                    = run->comm,
                                               .teacher                 = run->teacher};
    CR_TRY(cr_session_open(run->config, &options, &run->session));
    CR_TRY(cr_session_check_evaluation(&run->session, run->val));
    return cr_config_prunes(run->config) ? cr_prune_open(&run->session.model.store, run->config, &run->prune) : CR_OK;
}

static int64_t epoch_of(const struct cr_run *run) {
    return run->at.steps_per_epoch ? run->at.step / run->at.steps_per_epoch : 0;
}

cr_status cr_run_unfreeze(struct cr_run *run) {
    char                folder[PATH_MAX + 32];
    const int64_t       ranks = run->at.ranks;
    struct cr_run_state state = run->session.state;
    snprintf(folder, sizeof folder, "%s/step-%" PRId64, run->dir, run->at.step);
    state.epoch  = epoch_of(run);
    run->corrupt = CR_MAX(run->corrupt, cr_loader_corrupt(run->loader));
    cr_loader_close(run->loader); /* its images may be in memory of the device, which the session closes */
    run->loader = NULL;
    cr_prune_close(&run->prune);
    cr_session_close(&run->session);
    CR_TRY(cr_comm_barrier(run->comm)); /* rank 0 has written the folder */
    CR_TRY(start_session(run, &state, folder, NULL, false));
    CR_TRY(cr_state_load(&run->session, folder, &run->at));
    CR_TRY(cr_session_same_values(&run->session));
    CR_TRY(cr_state_running_load(&run->session, folder, ranks));
    return open_loader(run);
}

static cr_status open_session(struct cr_run *run, bool force) {
    const struct cr_config *c     = run->config;
    struct cr_run_state     state = {0};
    if (run->from && c->model.unfreeze.count) {
        CR_TRY(cr_state_position(run->from, &run->at));
        state.epoch = epoch_of(run);
    }
    CR_TRY(start_session(run, &state, run->from ? run->from : c->model.weights, run->from, force));
    CR_TRY(load_values(run));
    CR_TRY(open_loader(run));
    cr_run_set_steps(run);
    cr_run_scale_lr(run);
    CR_TRY(cr_run_find_evaluation(run));
    if (c->schedule.warmup_epochs > (double)c->train.epochs) /* a recipe for many epochs, run for a few */
        cr_log(CR_LOG_WARN,
               "schedule.warmup_epochs = %g is longer than the training of %" PRId64
               " epochs: the learning rate never reaches optim.lr = %g",
               c->schedule.warmup_epochs, c->train.epochs, c->optim.lr);
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

/* The configuration that checkpoints hold: with the batch size and the memory limit that the run has found, so that a
 * resumed run has the same programs. */
static cr_status write_config_text(struct cr_run *run) {
    char                    batch[40], limit[40], output[PATH_MAX + 16];
    const struct cr_config *stored;
    const char *const       changes[] = {batch, output, limit};
    snprintf(batch, sizeof batch, "train.batch=%" PRId64, run->session.state.batch);
    snprintf(output, sizeof output, "train.output=%s", run->dir);
    snprintf(limit, sizeof limit, "memory.limit=%zuB", run->session.state.memory_limit);
    CR_TRY(cr_config_derive(&stored, run->config, 0, changes, run->session.need_without_limit ? 3 : 2));
    cr_config_dump_for_run(stored, &run->config_text);
    cr_config_close(stored);
    return run->config_text.failed ? CR_NO_MEMORY(4096) : CR_OK;
}

static cr_status open_run(const struct cr_config *user_config, const struct cr_train_options *o, struct cr_run *run) {
    if (cr_comm_rank(run->comm) == 0) CR_TRY(choose_dir(user_config, o, run));
    CR_TRY(cr_run_share_folders(run));
    if (run->from)
        CR_TRY(cr_run_resumed_config(user_config, o, run));
    else
        CR_TRY(cr_config_reopen(&run->config, user_config, o->overrides, o->override_count));
    CR_TRY(cr_run_prune_check(run->config));
    CR_TRY(cr_run_check_final_tta(run));
    CR_TRY(cr_device_check(run->config->train.device));
    if (!run->from) CR_TRY(cr_state_weights_there(run->config));
    /* The data is opened before anything is written: a wrong data.root leaves no empty run folder. */
    CR_TRY(cr_run_open_data_one_rank_at_a_time(run, open_data));
    CR_TRY(cr_session_open_teacher(run->config, run->train, run->train->classes, &run->teacher));
    CR_TRY(cr_run_check_ranks_agree(run));
    CR_TRY(cr_run_check_data(run, o->force));
    CR_TRY(cr_run_check_teacher(run, o->force));
    CR_TRY(cr_run_check_balance(run));
    CR_TRY(prepare_folder(o, run));
    CR_TRY(open_session(run, o->force));
    return write_config_text(run);
}

cr_status cr_training_check(const struct cr_config *config) {
    CR_TRY(cr_run_prune_check(config));
    if (config->quant.type != CR_QUANT_INT8) return CR_OK;
    return cr_config_fail(config, "quant.type",
                          "a quantised network cannot be trained: train the one in floating point, then give its run "
                          "to cresnet quantize");
}

cr_status cr_run_open(const struct cr_config *user_config, const struct cr_train_options *options, struct cr_run *run) {
    CR_TRY(cr_training_check(user_config));
    *run             = (struct cr_run){.lock = -1, .comm = options->comm};
    cr_status status = open_run(user_config, options, run);
    if (status == CR_OK) return CR_OK;
    cr_comm_abort(run->comm, cr_error_message()); /* before this rank closes anything that other ranks wait for */
    if (run->made && run->lock >= 0) cr_ckpt_remove_empty(run->dir);
    cr_run_close(run);
    return status;
}

void cr_run_close(struct cr_run *run) {
    cr_loader_close(run->loader);
    cr_prune_close(&run->prune);
    cr_session_close(&run->session);
    cr_teacher_close(run->teacher);
    cr_dataset_close(run->train);
    cr_dataset_close(run->val);
    cr_text_free(&run->config_text);
    cr_config_close(run->config);
    if (run->lock >= 0) close(run->lock);
    cr_free(run->dir);
    cr_free(run->from);
    *run = (struct cr_run){.lock = -1};
}
