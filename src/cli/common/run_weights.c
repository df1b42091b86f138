/* cli/common/run_weights.c: chooses the weights of a run that a command uses, and names them in one line: see
 * cli/common/command.h. */
#include "checkpoint/checkpoint.h"
#include "cli/common/command.h"
#include "pretrained/pretrained.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the checkpoint of a run folder ---- */

/* The option that chooses a checkpoint; NULL when none is given. */
static const char *checkpoint_option(const struct cr_args *args) {
    if (cr_args_has(args, CR_OPT_LAST)) return "--last";
    return cr_args_has(args, CR_OPT_STEP) ? "--step" : NULL;
}

cr_status cr_cmd_checkpoint_find(const struct cr_args *args, const char *run, char out[CR_PATH_MAX]) {
    int64_t step;
    if (cr_args_has(args, CR_OPT_LAST) && cr_args_has(args, CR_OPT_STEP))
        return cr_args_fail(args, "--last and --step exclude each other: give one of them");
    CR_TRY(cr_args_int(args, CR_OPT_STEP, 0, INT64_MAX / 2, -1, &step));
    if (step >= 0) return cr_ckpt_find_step(run, step, out);
    return cr_args_has(args, CR_OPT_LAST) ? cr_ckpt_find(run, out) : cr_ckpt_find_best(run, out);
}

/* ---- the line that names the weights ---- */

/* Returns whether the link `link` of a run folder names the checkpoint `name`. */
static bool is_target(const char *run, const char *link, const char *name) {
    char path[CR_PATH_MAX], target[64];
    if (strcmp(name, link) == 0) return true; /* a copy of a run may have a folder instead of the link */
    if (snprintf(path, sizeof path, "%s/%s", run, link) >= (int)sizeof path) return false;
    const ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) return false;
    target[length] = 0;
    return strcmp(target, name) == 0;
}

/* Returns whether scores belong to the checkpoint `name`, which is step-N or a folder with another name. */
static bool scores_are_of(const struct cr_ckpt_best *scores, const char *name) {
    return strncmp(name, "step-", 5) != 0 || strtoll(name + 5, NULL, 10) == scores->step;
}

/* Adds " (best and last, top-1 92.10 %)" for a checkpoint of a run. */
static void add_role(const char *folder, bool averages, struct cr_text *out) {
    char run[PATH_MAX];
    if (!realpath(folder, run)) return;
    char *name       = strrchr(run, '/');
    *name++          = 0;
    const bool  best = is_target(run, "best", name), last = is_target(run, "last", name);
    const char *role = best && last ? "best and last" : best ? "best" : last ? "last" : NULL;
    if (!role) return;
    /* the scores are for this line only: a file that cannot be used leaves them unknown */
    const char               *why;
    const struct cr_ckpt_best scores = cr_ckpt_best_read(run, "top1", &why);
    const double              other  = averages ? scores.raw_top1 : scores.ema_top1;
    double                    top1   = averages ? scores.ema_top1 : scores.raw_top1;
    if (top1 < 0 && !averages) top1 = scores.top1; /* a run without averages has one score */
    cr_text_add(out, " (%s", role);
    const bool  scored = best && top1 >= 0 && scores_are_of(&scores, name);
    const char *metric = scores.is_map ? "mAP" : "top-1";
    if (scored) cr_text_add(out, ", %s %.2f %%", metric, 100 * top1);
    cr_text_add(out, ")%s", averages ? ", moving averages" : "");
    if (scored && other > top1)
        cr_text_add(out, "; the %s have %s %.2f %%%s", averages ? "weights" : "moving averages", metric, 100 * other,
                    averages ? ": --no-ema uses them" : "");
}

static void log_weights(const char *folder, bool averages) {
    struct cr_text text = {0};
    add_role(folder, averages, &text);
    if (averages && !text.length) cr_text_add(&text, ", moving averages");
    cr_log(CR_LOG_INFO, "weights: %s%s", folder, text.data && !text.failed ? text.data : "");
    cr_text_free(&text);
}

/* ---- the choice ---- */

/* The given weights are a file, or there are none: options that choose between the weights of a run do not apply. */
static cr_status refuse_options(const struct cr_args *args, const char *given) {
    const char *option = cr_args_has(args, CR_OPT_EMA)      ? "--ema"
                         : cr_args_has(args, CR_OPT_NO_EMA) ? "--no-ema"
                                                            : checkpoint_option(args);
    if (!option) return CR_OK;
    if (!*given)
        return cr_args_fail(args, "%s needs a run or one of its checkpoints; use --weights FILE for other files",
                            option);
    return cr_args_fail(args, "%s and a file of weights (%s) exclude each other: give one of them", option, given);
}

/* Chooses between the weights and the moving averages of a step folder. */
static cr_status choose_in_checkpoint(const struct cr_args *args, const char *folder, char path[CR_PATH_MAX]) {
    const bool there    = cr_fs_has_file(folder, "ema.safetensors");
    const bool averages = there && !cr_args_has(args, CR_OPT_NO_EMA);
    if (cr_args_has(args, CR_OPT_EMA) && cr_args_has(args, CR_OPT_NO_EMA))
        return cr_args_fail(args, "--ema and --no-ema exclude each other: give one of them");
    CR_TRY(cr_path_join(path, folder, "ema.safetensors"));
    if (cr_args_has(args, CR_OPT_EMA) && !there)
        return CR_FAIL(CR_ERR_CONFIG, "%s: does not exist: the run was trained without moving averages (ema.decay)",
                       path);
    if (!averages) snprintf(path, CR_PATH_MAX, "%s", folder);
    log_weights(folder, averages);
    return CR_OK;
}

/* Options that choose a checkpoint apply to a run folder, also when the operand was such a folder and has become a
 * checkpoint already. */
static cr_status check_checkpoint_option(const struct cr_args *args, const char *given) {
    const char *option = checkpoint_option(args), *operand = args->operands ? args->operand[0] : "";
    if (!option || (cr_fs_is_dir(operand) && !cr_fs_has_file(operand, "config.ini") && strcmp(operand, given) != 0))
        return CR_OK;
    return cr_args_fail(args, "%s needs a run folder, but %s is one checkpoint: leave %s out", option, given, option);
}

/* Downloads published weights before anything else takes time. Their name stays in the configuration. */
static cr_status fetch_published(const char *name) {
    char file[CR_PATH_MAX];
    if (access(name, F_OK) == 0 || errno != ENOENT || !cr_pretrained_is_name(name)) return CR_OK;
    CR_TRY(cr_pretrained_file(name, file));
    cr_log(CR_LOG_INFO, "weights: %s, %s", name, file);
    return CR_OK;
}

cr_status cr_cmd_weights_choose(const struct cr_args *args, const char *given, char path[CR_PATH_MAX]) {
    char folder[CR_PATH_MAX];
    if (strlen(given) >= CR_PATH_MAX) return CR_FAIL(CR_ERR_USAGE, "the path of the weights is too long");
    strcpy(path, given);
    if (!*given || !cr_fs_is_dir(given)) {
        CR_TRY(refuse_options(args, given));
        if (!*given) return CR_OK;
        CR_TRY(fetch_published(given));
        if (access(given, F_OK) == 0 || cr_st_key(given)) cr_log(CR_LOG_INFO, "weights: %s", given);
        return CR_OK;
    }
    if (cr_fs_has_file(given, "model.safetensors")) {
        CR_TRY(check_checkpoint_option(args, given));
        return choose_in_checkpoint(args, given, path);
    }
    if (cr_fs_has_file(given,
                       "model.safetensors.index.json")) /* weights in several files; resolved when they are read */
        return check_checkpoint_option(args, given);
    CR_TRY(cr_cmd_checkpoint_find(args, given, folder));
    if (!*folder) return CR_FAIL(CR_ERR_IO, "%s: no model.safetensors and no readable step-N in this folder", given);
    return choose_in_checkpoint(args, folder, path);
}
