/* cli/compress/plan.c: makes the folder of a compression and the configuration of its fine-tuning. See
 * cli/compress/compress.h. */
#include "cli/compress/compress.h"
#include "session/saved_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CLAIM_MAX = 1 << 20 };

/* ---- the fine-tuning ---- */

static bool given(const struct cr_compress *c, const char *key) {
    return cr_config_given(c->config, key);
}

/* Whether RUN can be a teacher: networks with several labels per image, for instance, have none. */
static bool can_teach(const struct cr_config *config) {
    struct cr_teacher *teacher = NULL;
    int                classes;
    const bool         can = cr_saved_model_classes(config, &classes) == CR_OK &&
                     cr_session_open_teacher(config, NULL, classes, &teacher) == CR_OK;
    if (!can) cr_log(CR_LOG_INFO, "fine-tuning has no teacher: %s", cr_error_message());
    if (!can) cr_error_clear();
    cr_teacher_close(teacher);
    return can;
}

/* The keys of RUN with a short schedule at low learning rates, on images of the final size. What the command line gives
 * stays. */
static cr_status derive_config(const struct cr_compress *c, const struct cr_config **out) {
    char epochs[40], rate[40], head_rate[40], teacher[CR_PATH_MAX + 20];
    snprintf(epochs, sizeof epochs, "train.epochs=%" PRId64, CR_MAX((c->config->train.epochs + 4) / 5, (int64_t)2));
    snprintf(rate, sizeof rate, "optim.lr=%.17g", c->config->optim.lr / 5);
    snprintf(head_rate, sizeof head_rate, "optim.head_lr=%.17g", c->config->optim.head_lr / 5);
    snprintf(teacher, sizeof teacher, "distill.teacher=%s", c->run);
    const char *const unless_given[][2] = {{"train.epochs", epochs},
                                           {"train.eval_every", "train.eval_every=1"},
                                           {"train.patience", "train.patience=0"},
                                           {"train.steps", "train.steps=0"},
                                           {"optim.lr", rate},
                                           {"optim.head_lr", head_rate},
                                           {"schedule.kind", "schedule.kind=cosine"},
                                           {"schedule.warmup_epochs", "schedule.warmup_epochs=0"},
                                           {"schedule.min_lr", "schedule.min_lr=0"},
                                           {"schedule.low_momentum", "schedule.low_momentum=0"},
                                           {"data.image_sizes", "data.image_sizes="},
                                           {"model.unfreeze", "model.unfreeze="},
                                           {"distill.teacher", teacher}};
    const char       *changes[20]       = {CR_CMD_NO_PRUNING, "prune.pattern=unstructured", "prune.importance=l2"};
    int               count             = 7;
    for (size_t i = 0; i < CR_COUNT(unless_given); i++)
        if (!given(c, unless_given[i][0])) changes[count++] = unless_given[i][1];
    CR_TRY(cr_config_derive(out, c->config, 0, changes, count)); /* its weights tell the classes of the teacher */
    if (*(*out)->distill.teacher && !given(c, "distill.teacher") && !can_teach(*out))
        CR_TRY(cr_config_change(out, CR_CHANGES("distill.teacher=")));
    return cr_config_change(out, CR_CHANGES("model.weights=", "train.output="));
}

/* Reports mistakes of OUT/compress.ini, with the keys of the command line, before the first step. */
static cr_status check_ini(const struct cr_compress *c) {
    const struct cr_config *config;
    CR_TRY(cr_config_open(&config, c->ini, c->args->override, c->args->overrides));
    cr_config_close(config);
    return CR_OK;
}

cr_status cr_compress_write_ini(struct cr_compress *c) {
    const struct cr_config *config = NULL;
    struct cr_text          text   = {0};
    if (cr_fs_is_file(c->ini)) {
        cr_log(CR_LOG_INFO, "configuration of the fine-tuning: %s", c->ini);
        return check_ini(c);
    }
    cr_status status = derive_config(c, &config);
    cr_text_add(
        &text,
        "# Written by `cresnet compress`: the fine-tuning of its pruned networks. The keys are those of the run,\n"
        "# with fewer epochs, a fifth of its learning rate and the run as teacher. Keys that are changed here apply\n"
        "# to trainings that have not begun. model.channels, model.weights and train.output come from each try.\n\n");
    if (status == CR_OK) cr_config_dump(config, &text);
    cr_config_close(config);
    if (status == CR_OK)
        status = text.failed ? CR_NO_MEMORY(text.length) : cr_file_write_atomic(c->ini, text.data, text.length);
    cr_text_free(&text);
    if (status == CR_OK && (status = check_ini(c)) != CR_OK) (void)unlink(c->ini);
    return status;
}

/* ---- the folder ---- */

/* What OUT was made for: one line. */
static cr_status describe(const struct cr_compress *c, struct cr_text *out) {
    struct cr_json_writer w = cr_json_open_line(out);
    cr_json_put_string(&w, "run", c->run);
    cr_json_put_general(&w, "speedup", c->speedup, 9);
    cr_json_put_bool(&w, "int8", c->int8);
    cr_json_put_int(&w, "batch", c->batch);
    cr_json_put_string(&w, "pattern", c->args->value[CR_OPT_PATTERN] ? c->args->value[CR_OPT_PATTERN] : "auto");
    cr_json_close_line(&w);
    return out->failed ? CR_NO_MEMORY(out->length) : CR_OK;
}

cr_status cr_compress_claim(struct cr_compress *c) {
    struct cr_text text = {0};
    char          *old  = NULL;
    size_t         length;
    cr_status      status;
    char           file[CR_PATH_MAX];
    CR_TRY(cr_path_join(file, c->root, "compress.json"));
    CR_TRY_OUT(describe(c, &text));
    if (cr_fs_is_file(file)) {
        CR_TRY_OUT(cr_file_read(file, CLAIM_MAX, &old, &length));
        if (length != text.length || memcmp(old, text.data, length) != 0)
            CR_FAIL_OUT(CR_ERR_CONFIG,
                        "%s was made for %.*s: give these options to continue it, or choose another folder with -o",
                        c->root, (int)strcspn(old, "\n"), old);
        cr_log(CR_LOG_INFO, "continues %s", c->root);
        goto out;
    }
    if (cr_ckpt_dir_in_use(c->root))
        CR_FAIL_OUT(CR_ERR_CONFIG, "%s is not empty: choose another folder with -o", c->root);
    if (cr_args_has(c->args, CR_OPT_DRY_RUN)) goto out;
    CR_TRY_OUT(cr_ckpt_prepare_dir(c->root));
    CR_TRY_OUT(cr_file_write_atomic(file, text.data, text.length));
out:
    cr_free(old);
    cr_text_free(&text);
    return status;
}
