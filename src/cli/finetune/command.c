/* cli/finetune/command.c: cresnet finetune DIR: fine-tunes pretrained weights on a folder of images. */
#include "checkpoint/checkpoint.h"
#include "cli/finetune/finetune.h"
#include "data/data.h"
#include "device/device.h"
#include "session/session.h"
#include "training/training.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the command line ---- */

/* Checks the keys of the command line before anything else takes time. */
static cr_status open_given(struct cr_finetune *f) {
    const struct cr_args *args = f->args;
    const char          **list;
    char                  kind[32], root[CR_PATH_MAX + 16];
    CR_ALLOC(list, (size_t)args->overrides + 4);
    int n = 0;
    snprintf(kind, sizeof kind, "data.kind=%s", cr_word_data_kind(cr_cmd_data_kind(f->root)));
    list[n++] = kind;
    snprintf(root, sizeof root, "data.root=%s", f->root);
    list[n++] = root;
    list[n++] = "data.val_fraction=0.2";
    for (int i = 0; i < args->overrides; i++) list[n++] = args->override[i];
    cr_status status = cr_config_open(&f->given, NULL, list, n);
    cr_free(list);
    return status;
}

/* The name of the folder, for the name of the run: "flowers" of "data/flowers/". */
static const char *folder_name(struct cr_finetune *f) {
    char resolved[CR_PATH_MAX];
    if (!realpath(f->root, resolved)) return "images";
    const char *slash = strrchr(resolved, '/');
    const char *name  = slash && slash[1] ? cr_arena_printf(&f->arena, "%s", slash + 1) : "images";
    return name ? name : "images";
}

static cr_status name_files(struct cr_finetune *f) {
    const char *given = f->given->train.output;
    f->run            = *given ? cr_arena_printf(&f->arena, "%s", given)
                               : cr_arena_printf(&f->arena, "checkpoints/finetune-%s", folder_name(f));
    if (!f->run) return CR_NO_MEMORY(CR_PATH_MAX);
    const size_t length = cr_path_length(f->run);
    f->first            = cr_arena_printf(&f->arena, "%.*s", (int)length, f->run);
    f->ini              = cr_arena_printf(&f->arena, "%.*s.ini", (int)length, f->run);
    return f->first && f->ini ? CR_OK : CR_NO_MEMORY(CR_PATH_MAX);
}

/* The trainings of a run after the first one are named RUN-2, RUN-3 ... */
static cr_status name_number(struct cr_finetune *f, int number) {
    f->run = cr_arena_printf(&f->arena, "%s-%d", f->first, number);
    f->ini = f->run ? cr_arena_printf(&f->arena, "%s.ini", f->run) : NULL;
    return f->ini ? CR_OK : CR_NO_MEMORY(CR_PATH_MAX);
}

/* The run that the last command of this name trained. */
static cr_status find_newest(struct cr_finetune *f) {
    char next[CR_PATH_MAX];
    f->number = 0;
    do snprintf(next, sizeof next, "%s-%d.ini", f->first, ++f->number + 1);
    while (access(next, F_OK) == 0);
    return f->number > 1 ? name_number(f, f->number) : CR_OK;
}

/* ---- dataset and device ---- */

/* The median of the shorter sides of a few images; 0 when none can be read. */
static int source_size(const struct cr_dataset *set) {
    enum { SAMPLES = 9 };
    double        side[SAMPLES];
    int           count = 0;
    const int64_t total = set->count;
    cr_error_hold();
    for (int64_t i = 0; i < SAMPLES && i < total; i++) {
        struct cr_image image;
        int32_t         label;
        if (cr_dataset_get(set, i * total / SAMPLES, &image, &label) != CR_OK) continue;
        side[count++] = (double)CR_MIN(image.width, image.height);
        cr_image_free(&image);
    }
    cr_error_release();
    cr_error_clear();
    qsort(side, (size_t)count, sizeof *side, cr_compare_doubles);
    return count ? (int)side[count / 2] : 0;
}

static cr_status open_data(struct cr_finetune *f) {
    struct cr_dataset      *train = NULL, *val = NULL;
    const struct cr_config *whole = NULL;
    struct cr_dataset      *all   = NULL;
    cr_status               status;
    CR_TRY_OUT(cr_dataset_open(f->given, CR_SPLIT_TRAIN, &train));
    CR_TRY_OUT(cr_dataset_open(f->given, CR_SPLIT_VAL, &val));
    f->train   = train->count;
    f->val     = val->count;
    f->classes = train->classes;
    CR_TRY_OUT(cr_cmd_check_no_class(f->args, f->given, train, f->run));

    f->source_size = source_size(train);
    /* without a fraction only a folder of its own can be the validation set */
    CR_TRY_OUT(cr_config_derive(&whole, f->given, 0, CR_CHANGES("data.val_fraction=0")));
    cr_error_hold();
    f->has_val = cr_dataset_open(whole, CR_SPLIT_VAL, &all) == CR_OK;
    cr_error_release();
    if (!f->has_val) cr_error_clear();
out:
    cr_config_close(whole);
    cr_dataset_close(all);
    cr_dataset_close(train);
    cr_dataset_close(val);
    return status;
}

static cr_status choose_device(struct cr_finetune *f) {
    CR_TRY(cr_device_check(f->given->train.device));
    f->gpu = f->given->train.device != CR_DEVICE_CPU && cr_device_count(CR_DEVICE_CUDA) > 0;
    return CR_OK;
}

static void set_data(struct cr_finetune *f) {
    cr_finetune_set(f, "data.kind", NULL, "%s", cr_word_data_kind(f->given->data.kind));
    cr_finetune_set(f, "data.root", NULL, "%s", f->root);
    if (f->has_val) return;
    cr_finetune_set(f, "data.val_fraction", "held out of each class for validation, by a hash of the file names", "%g",
                    f->given->data.val_fraction);
}

/* ---- what was chosen ---- */

static void say_data(const struct cr_finetune *f) {
    char how[96];
    if (f->has_val)
        snprintf(how, sizeof how, "its own validation set");
    else
        snprintf(how, sizeof how, "%g %% of each class, held out by a hash of the names",
                 100 * f->given->data.val_fraction);
    cr_log(CR_LOG_INFO, "data      %s: %" PRId64 " images of %d classes for training; %" PRId64 " for validation (%s)",
           f->root, f->train, f->classes, f->val, how);
}

static void say_network(const struct cr_finetune *f) {
    if (*f->weights && f->head == CR_HEAD_KEEP)
        cr_log(CR_LOG_INFO, "network   %s, from the weights %s, with their classifier", f->network, f->weights);
    else if (*f->weights && f->head == CR_HEAD_MATCH)
        cr_log(CR_LOG_INFO,
               "network   %s, from the weights %s; classes of the same names keep their part of the classifier",
               f->network, f->weights);
    else if (*f->weights)
        cr_log(CR_LOG_INFO, "network   %s, from the weights %s; a new classifier for %d classes", f->network,
               f->weights, f->classes);
    else
        cr_log(CR_LOG_INFO, "network   %s, from scratch: with pretrained weights, far fewer images are enough",
               f->network);
}

static void say_schedule(const struct cr_finetune *f, const struct cr_config *c) {
    char frozen[96] = "", time[96] = "", every[32] = "epoch", stops[96] = "";
    if (f->trained_stages < f->stages)
        snprintf(frozen, sizeof frozen, " of the last %d of %d stages and the classifier", f->trained_stages,
                 f->stages);
    else if (c->model.unfreeze.count)
        snprintf(frozen, sizeof frozen, ", at first %" PRId64 " with the classifier alone",
                 (int64_t)c->model.unfreeze.at[0]);
    if (f->seconds > 0)
        snprintf(time, sizeof time, "; about %.*f %s at %.0f images/s", f->seconds < 60 || f->seconds >= 600 ? 0 : 1,
                 f->seconds < 60 ? ceil(f->seconds) : f->seconds / 60,
                 f->seconds > 60  ? "minutes"
                 : f->seconds > 1 ? "seconds"
                                  : "second",
                 f->images_per_s);
    cr_log(CR_LOG_INFO, "images    %lld pixels in training, %lld in evaluations%s", (long long)c->data.image_size,
           (long long)c->data.eval_crop, time);
    if (c->train.eval_every != 1) snprintf(every, sizeof every, "%" PRId64 " epochs", (int64_t)c->train.eval_every);
    cr_log(CR_LOG_INFO, "schedule  %" PRId64 " epoch%s%s; batch size %" PRId64 "; evaluated every %s",
           (int64_t)c->train.epochs, c->train.epochs == 1 ? "" : "s", frozen, (int64_t)c->train.batch, every);
    /* the first evaluation is always better, and nothing is left to stop after the last one */
    const int64_t evaluations = (c->train.epochs + c->train.eval_every - 1) / CR_MAX(c->train.eval_every, (int64_t)1);
    if (c->train.patience && evaluations > c->train.patience + 1)
        snprintf(stops, sizeof stops, "; stops after %" PRId64 " evaluations without a better %s",
                 (int64_t)c->train.patience, cr_word_best_metric(c->train.best));
    cr_log(CR_LOG_INFO, "rates     learning rate %g, classifier %g, falling to 0%s", c->optim.lr,
           c->optim.head_lr > 0 ? c->optim.head_lr : c->optim.lr, stops);
}

static void say_files(struct cr_finetune *f) {
    cr_log(CR_LOG_INFO, "file      %s has these choices: edit it, then cresnet train %s -o DIR", f->ini,
           cr_cmd_shell_word(&f->arena, f->ini));
    cr_log(CR_LOG_INFO, "training  Ctrl-C saves and stops; the same command continues. Checkpoints are in %s", f->run);
}

static void say_use(struct cr_finetune *f) {
    const char *run = cr_cmd_shell_word(&f->arena, f->run);
    cr_log(CR_LOG_INFO, "use it    cresnet predict %s IMAGE; cresnet report %s; cresnet export %s --onnx FILE", run,
           run, run);
}

/* ---- training ---- */

/* The keys of the command line, then those that have changed since the run began, then its folder. */
static cr_status list_keys(struct cr_finetune *f, const struct cr_training_changes *changes, const char ***list,
                           int *count) {
    const int given = f->args->overrides, changed = changes ? changes->keys.count : 0;
    *count = given + changed + 1;
    CR_ARENA_ALLOC(&f->arena, *list, (size_t)*count);
    for (int i = 0; i < *count; i++) {
        (*list)[i] = i < given             ? cr_arena_printf(&f->arena, "%s", f->args->override[i])
                     : i < given + changed ? cr_arena_printf(&f->arena, "%s", changes->keys.at[i - given].fresh)
                                           : cr_arena_printf(&f->arena, "train.output=%s", f->run);
        if (!(*list)[i]) return CR_NO_MEMORY(CR_PATH_MAX);
    }
    return CR_OK;
}

/* `changes`: of a run that is continued; NULL for a new one. */
static cr_status train(struct cr_finetune *f, const struct cr_config *config, const struct cr_training_changes *changes,
                       int *signal_taken) {
    const char **list;
    int          count;
    CR_TRY(list_keys(f, changes, &list, &count));
    const struct cr_train_options options = {.resume         = changes ? "auto" : NULL,
                                             .overrides      = list,
                                             .override_count = count,
                                             .continued_by   = "the same command",
                                             .brief          = true};
    CR_TRY(cr_train(config, &options, signal_taken));
    if (!*signal_taken) say_use(f);
    return CR_OK;
}

/* The network was chosen when the run began. */
static void warn_of_choices(const struct cr_finetune *f, const struct cr_config *config) {
    const char *model = f->args->value[CR_OPT_MODEL], *weights = f->args->value[CR_OPT_START_WEIGHTS];
    if (f->start) weights = f->start;
    const bool other_model   = model && strcmp(model, cr_word_arch(config->model.arch)) != 0;
    const bool other_weights = weights && !cr_finetune_same_weights(weights, config->model.weights);
    if (other_model || other_weights)
        cr_log(
            CR_LOG_WARN, "not used: %s%s%s: the network of this run was chosen when it began; another one needs -o DIR",
            other_model ? "--model" : "", other_model && other_weights ? ", " : "", other_weights ? "--weights" : "");
}

static void say_changes(const struct cr_training_changes *changes) {
    for (const char *line = changes->data.length ? changes->data.data : ""; *line;) {
        line += strspn(line, "\n ");
        const int length = (int)strcspn(line, "\n");
        cr_log(CR_LOG_INFO, "changed   %.*s", length, line);
        line += length;
    }
    for (int i = 0; i < changes->keys.count; i++) cr_log(CR_LOG_INFO, "changed   %s", changes->keys.at[i].text);
}

static cr_status start_run(struct cr_finetune *f, int *signal_taken);

/* A run that has ended, or that has other images or a batch size of its own now, is not continued but trained again
 * from its weights, in a new run folder: nothing of the old one is lost. */
static cr_status train_again(struct cr_finetune *f, const struct cr_training_changes *changes, int *signal_taken) {
    struct cr_args args = *f->args;
    f->before           = f->run;
    f->head             = changes->classes ? CR_HEAD_MATCH : CR_HEAD_KEEP;
    CR_TRY(name_number(f, f->number + 1));
    CR_TRY(list_keys(f, changes, &args.override, &args.overrides));
    f->args = &args;
    cr_config_close(f->given);
    f->given = NULL;
    CR_TRY(open_given(f));
    cr_log(CR_LOG_INFO, "again     trains from the weights of %s, in the new run %s", f->before, f->run);
    return start_run(f, signal_taken);
}

/* A file RUN.ini that is there is used as it is: the user may have edited it. */
static cr_status continue_run(struct cr_finetune *f, int *signal_taken) {
    struct cr_training_changes changes = {0};
    const struct cr_config    *config;
    if (!cr_finetune_is_own(f->ini))
        return CR_FAIL(CR_ERR_CONFIG,
                       "%s: exists, and was not written by cresnet finetune: choose another run with "
                       "-o DIR",
                       f->ini);
    CR_TRY(cr_config_open(&config, f->ini, f->args->override, f->args->overrides));
    cr_status status = CR_OK;
    if (!cr_fs_is_same(config->data.root, f->root))
        CR_FAIL_OUT(CR_ERR_CONFIG, "%s: is a run on the images in %s: choose another run with -o DIR", f->ini,
                    config->data.root);
    CR_TRY_OUT(cr_config_set(&config, "train.output", f->run));
    CR_TRY_OUT(cr_training_compare(config, f->run, &changes));
    if (f->number == 1) warn_of_choices(f, config);
    say_changes(&changes);
    if (changes.ended && !changes.data.length && !changes.keys.count) {
        cr_log(CR_LOG_INFO,
               "ended     the run %s has ended: more images or other values, such as --epochs N, train again", f->run);
        say_use(f);
        goto out;
    }
    if (changes.data.length || changes.refused || changes.ended) {
        CR_TRY_OUT(train_again(f, &changes, signal_taken));
        goto out;
    }
    cr_log(CR_LOG_INFO, "continues the run %s with the choices in %s", f->run, f->ini);
    CR_TRY_OUT(train(f, config, &changes, signal_taken));
out:
    cr_training_changes_free(&changes);
    cr_config_close(config);
    return status;
}

static cr_status choose(struct cr_finetune *f) {
    CR_TRY(choose_device(f));
    CR_TRY(open_data(f));
    set_data(f);
    say_data(f);
    CR_TRY(cr_finetune_network(f));
    say_network(f);
    return cr_finetune_schedule(f);
}

/* A run that fails before it has written anything leaves no file that the next command would continue. */
static cr_status start_run(struct cr_finetune *f, int *signal_taken) {
    const struct cr_config *config = NULL;
    cr_status               status;
    if (cr_fs_is_file(f->run)) return CR_FAIL(CR_ERR_CONFIG, "%s: is a file: choose a run folder with -o DIR", f->run);
    if (cr_ckpt_dir_in_use(f->run))
        return CR_FAIL(CR_ERR_CONFIG, "%s is not empty, and there is no %s: choose another run folder with -o DIR",
                       f->run, f->ini);
    CR_TRY(choose(f));
    CR_TRY(cr_finetune_write(f));
    CR_TRY_OUT(cr_config_open(&config, f->ini, NULL, 0));
    say_schedule(f, config);
    say_files(f);
    CR_TRY_OUT(train(f, config, NULL, signal_taken));
out:
    if (status != CR_OK && !cr_ckpt_dir_in_use(f->run)) cr_fs_unlink(f->ini);
    cr_config_close(config);
    return status;
}

/* The run whose network is trained further, before the folder of images. */
static cr_status check_start(struct cr_finetune *f, const char *run) {
    if (cr_args_has(f->args, CR_OPT_START_WEIGHTS) || cr_args_has(f->args, CR_OPT_MODEL))
        return cr_args_fail(f->args, "%s gives the network and its weights: leave --weights and --model out", run);
    if (!cr_fs_is_dir(run) || !cr_ckpt_dir_in_use(run))
        return cr_args_fail(f->args, "%s: is no run folder: cresnet finetune RUN DIR", run);
    f->start = run;
    f->head  = CR_HEAD_MATCH;
    return CR_OK;
}

cr_status cr_cmd_finetune(const struct cr_args *args, struct cr_result *out) {
    struct cr_finetune f = {.args = args, .head = CR_HEAD_NEW};
    char               newest[CR_PATH_MAX];
    cr_status          status;
    CR_TRY(cr_args_max_operands(args, 2));
    if (!args->operands) return cr_args_fail(args, "no folder of images given: cresnet finetune DIR");
    f.root = args->operand[args->operands - 1];
    if (args->operands == 2) CR_TRY(check_start(&f, args->operand[0]));
    if (cr_fs_is_file(f.root))
        return cr_args_fail(args, "%s: is a file, not a folder of images; unpack an archive first", f.root);
    if (!cr_fs_is_dir(f.root)) {
        char hint[400];
        cr_path_hint(f.root, hint, sizeof hint);
        return cr_args_fail(args, "%s: no such folder of images%s", f.root, hint);
    }
    if (cr_path_join(newest, f.root, "last/config.ini") == CR_OK && cr_fs_is_file(newest))
        return cr_args_fail(args, "%s: is a run, not a folder of images: cresnet finetune RUN DIR", f.root);
    CR_TRY(cr_args_real(args, CR_OPT_MINUTES, DBL_TRUE_MIN, 1e6, "a number of minutes above 0, e.g. 10 or 0.5",
                        &f.minutes));
    CR_TRY_OUT(open_given(&f));
    CR_TRY_OUT(name_files(&f));
    CR_TRY_OUT(find_newest(&f));
    CR_TRY_OUT(access(f.ini, F_OK) == 0 ? continue_run(&f, &out->signal) : start_run(&f, &out->signal));
out:
    cr_config_close(f.given);
    cr_arena_free(&f.arena);
    return status;
}
