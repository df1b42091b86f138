/* cli/common/command_common.c: helpers that several commands use, such as to open the configuration; see command.h. */
#include "cli/common/command.h"

#include "checkpoint/checkpoint.h"
#include "core/rng.h"
#include "data/data.h"
#include "data/pack.h"
#include "session/saved_model.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

double cr_cmd_median_ms(int64_t *times, int64_t count) {
    qsort(times, (size_t)count, sizeof *times, cr_compare_i64);
    return (double)(times[(count - 1) / 2] + times[count / 2]) * 0.5e-6;
}

/* ---- the configuration ---- */

static cr_status find_in_folder(const struct cr_args *args, const char *given, struct cr_cmd_source *out) {
    if (cr_fs_has_file(given, "config.ini")) /* a step folder */
        CR_TRY(cr_path_copy(out->folder, given));
    else
        CR_TRY(cr_cmd_checkpoint_find(args, given, out->folder));
    if (!*out->folder)
        return CR_FAIL(
            CR_ERR_CONFIG,
            "%s: is neither a configuration file nor a run folder (it holds no config.ini and no checkpoint); for a "
            "folder of images: cresnet finetune %s",
            given, given);
    return cr_path_join(out->config, out->folder, "config.ini");
}

static bool is_weights(const char *path) {
    static const char *const endings[] = {".safetensors", ".safetensors.index.json", ".pth", ".pt", ".onnx"};
    for (size_t i = 0; i < CR_COUNT(endings); i++)
        if (cr_ends_with(path, endings[i])) return true;
    return false;
}

/* model.safetensors or ema.safetensors of a checkpoint: config.ini in the same folder describes the network. */
static cr_status find_weights(const char *given, struct cr_cmd_source *out) {
    struct cr_st_file *file;
    CR_TRY(cr_path_copy(out->weights, given));
    cr_path_folder(out->folder, given);
    CR_TRY(cr_path_join(out->config, out->folder, "config.ini"));
    if (cr_fs_is_file(out->config)) return CR_OK;
    CR_TRY(cr_st_open_any(given, &file)); /* what is no file of weights needs no configuration */
    cr_st_close(file);
    return CR_FAIL(CR_ERR_CONFIG,
                   "%s: is a file of weights without a config.ini in its folder: give CONFIG --weights %s", given,
                   given);
}

/* Returns a configuration error of the first operand; it ends with the usage of the command. */
static cr_status fail_usage(const struct cr_args *args, const char *what) {
    struct cr_text usage = {0};
    cr_command_usage(args->command, &usage);
    if (usage.length) usage.data[usage.length - 1] = 0;
    const cr_status status = cr_args_fail(args, "%s; %s", what, usage.data ? usage.data : "");
    cr_text_free(&usage);
    return status;
}

/* An image was given where a configuration or a run belongs. */
static cr_status fail_image(const struct cr_args *args, const char *given) {
    char what[CR_PATH_MAX + 64];
    snprintf(what, sizeof what, "%s: is an image, not a configuration or a run", given);
    return fail_usage(args, what);
}

/* A file of that name, or, if it does not exist, the installed configuration of that name. */
static cr_status find_file(const struct cr_args *args, const char *given, struct cr_cmd_source *out) {
    struct stat st;
    if (cr_is_image_name(given)) return fail_image(args, given);
    if ((is_weights(given) && cr_fs_is_file(given)) || cr_st_key(given)) return find_weights(given, out);
    if (stat(given, &st) != 0) {
        CR_TRY(cr_cmd_installed_config(given, out->config));
        if (*out->config)
            cr_log(CR_LOG_INFO, "config  %s does not exist here; using the installed %s", given, out->config);
        if (*out->config) return CR_OK;
    }
    return cr_path_copy(out->config, given);
}

/* A run that `train --resume PATH` continues needs no other configuration than that of its last checkpoint. */
static cr_status find_resumed(const struct cr_args *args, const char *path, struct cr_cmd_source *out) {
    char *checkpoint;
    if (!cr_fs_is_dir(path))
        return cr_args_fail(args, "--resume %s: no such run folder or checkpoint; a CONFIG takes --resume auto", path);
    out->stored = true;
    CR_TRY(cr_path_join(out->config, path, "config.ini")); /* of a checkpoint */
    if (cr_fs_is_file(out->config)) return CR_OK;
    CR_TRY(cr_ckpt_find_intact(path, &checkpoint));
    if (!checkpoint) return cr_args_fail(args, "--resume %s: no checkpoint there (no step-N folder)", path);
    const cr_status status = cr_path_join(out->config, checkpoint, "config.ini");
    cr_free(checkpoint);
    return status;
}

cr_status cr_cmd_source_find(const struct cr_args *args, struct cr_cmd_source *out) {
    const char *resumed = args->value[CR_OPT_RESUME];
    const bool  path    = resumed && strcmp(resumed, "auto") != 0; /* of a run or checkpoint, not of a CONFIG */
    *out                = (struct cr_cmd_source){0};
    if (!args->operands)
        return path ? find_resumed(args, resumed, out) : fail_usage(args, "no configuration file given");
    if (!*args->operand[0]) return cr_args_fail(args, "the name of the configuration file is empty");
    return cr_fs_is_dir(args->operand[0]) ? find_in_folder(args, args->operand[0], out)
                                          : find_file(args, args->operand[0], out);
}

/* The commands that want a trained classifier do not use the weights that a training with a new classifier starts
 * from. */
static cr_status check_trained(const struct cr_args *args, const struct cr_config *config) {
    const bool wants = args->command == CR_CMD_PREDICT || args->command == CR_CMD_EXPLAIN ||
                       args->command == CR_CMD_EXPORT || args->command == CR_CMD_QUANTIZE ||
                       args->command == CR_CMD_FEATURES;
    const bool other = config->model.head == CR_HEAD_NEW || config->model.head == CR_HEAD_MATCH;
    if (!wants || !other || !cr_config_file(config, "model.weights")) return CR_OK;
    return cr_args_fail(args,
                        "%s: its model.weights are those that training starts from (model.head = %s): give the run "
                        "folder%s%s, or --weights FILE",
                        args->operand[0], cr_word_head(config->model.head), *config->train.output ? " " : "",
                        config->train.output);
}

/* Resolves model.weights for the commands that use trained weights. */
static cr_status choose_weights(const struct cr_args *args, const struct cr_config **config) {
    char path[CR_PATH_MAX];
    if (!cr_cli_option_belongs(CR_OPT_EMA, args->command)) return CR_OK;
    CR_TRY(check_trained(args, *config));
    CR_TRY(cr_cmd_weights_choose(args, (*config)->model.weights, path));
    return cr_config_set(config, "model.weights", path);
}

cr_status cr_cmd_config_open(const struct cr_args *args, const struct cr_cmd_source *source, const char *first,
                             const struct cr_config **out) {
    const char   **list;
    struct cr_text weights = {0};
    cr_status      status  = CR_OK;
    int            count   = 0;
    CR_ALLOC(list, (size_t)args->overrides + 2);
    if (*source->folder) {
        cr_text_add(&weights, "model.weights=%s", *source->weights ? source->weights : source->folder);
        if (weights.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory");
        list[count++] = weights.data;
    }
    if (first) list[count++] = first;
    for (int i = 0; i < args->overrides; i++) list[count++] = args->override[i];
    if (source->read)
        CR_TRY_OUT(cr_config_reopen(out, source->read, list, count));
    else
        CR_TRY_OUT((*source->folder || source->stored ? cr_config_open_stored : cr_config_open)(out, source->config,
                                                                                                list, count));
    status = choose_weights(args, out);
    if (status != CR_OK) {
        cr_config_close(*out);
        *out = NULL;
    }
out:
    cr_text_free(&weights);
    cr_free(list);
    return status;
}

cr_status cr_cmd_config(const struct cr_args *args, const struct cr_config **out) {
    struct cr_cmd_source source;
    CR_TRY(cr_cmd_source_find(args, &source));
    return cr_cmd_config_open(args, &source, NULL, out);
}

cr_status cr_cmd_config_of_weights(const struct cr_args *args, const struct cr_config **out) {
    CR_TRY(cr_cmd_config(args, out));
    if (*(*out)->model.weights) return CR_OK;
    cr_config_close(*out);
    return cr_args_fail(args, "no weights: give --weights FILE, or a run folder instead of %s", args->operand[0]);
}

enum cr_data_kind cr_cmd_data_kind(const char *folder) {
    if (cr_dataset_is_of_archives(folder)) return CR_DATA_TAR;
    if (cr_fs_has_file(folder, CR_PACK_TRAIN_NAME)) return CR_DATA_PACKED;
    return cr_fs_has_file(folder, "train.csv") && !cr_fs_has_dir(folder, "train") ? CR_DATA_CSV : CR_DATA_FOLDER;
}

cr_status cr_cmd_data_config(const struct cr_args *args, const struct cr_config **config) {
    struct cr_cmd_source source;
    const char         **list;
    struct cr_text       root = {0}, kind = {0};
    if (!args->operands || !cr_fs_is_dir(args->operand[0])) return cr_cmd_config(args, config);
    if (cr_cmd_source_find(args, &source) == CR_OK) return cr_cmd_config_open(args, &source, NULL, config);
    cr_error_clear();
    CR_ALLOC(list, (size_t)args->overrides + 2);
    cr_text_add(&root, "data.root=%s", args->operand[0]);
    cr_text_add(&kind, "data.kind=%s", cr_word_data_kind(cr_cmd_data_kind(args->operand[0])));
    list[0] = kind.data;
    list[1] = root.data;
    for (int i = 0; i < args->overrides; i++) list[2 + i] = args->override[i];
    cr_status status = root.failed || kind.failed ? CR_NO_MEMORY(strlen(args->operand[0]))
                                                  : cr_config_open(config, NULL, list, args->overrides + 2);
    cr_text_free(&root);
    cr_text_free(&kind);
    cr_free(list);
    return status;
}

/* The path of a file or folder that may not exist yet, without links; "" when it is too long. */
static void resolve_new(const char *path, char out[CR_PATH_MAX]) {
    char parent[CR_PATH_MAX], resolved[CR_PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    *out = 0;
    for (;;) {
        const bool  there = realpath(*parent ? parent : "/", resolved) != NULL;
        char       *slash = strrchr(parent, '/');
        const char *rest  = path + strlen(parent);
        if (!there && slash) {
            *slash = 0;
            continue;
        }
        if (!there && !realpath(".", resolved)) return;
        if (!there) rest = path; /* a name without a folder */
        if (snprintf(out, CR_PATH_MAX, "%s/%s", resolved, rest + (*rest == '/')) >= CR_PATH_MAX) *out = 0;
        return;
    }
}

cr_status cr_cmd_check_no_class(const struct cr_args *args, const struct cr_config *config,
                                const struct cr_dataset *dataset, const char *out) {
    char        root[CR_PATH_MAX], path[CR_PATH_MAX], part[CR_PATH_MAX];
    const char *name = dataset->class_names[0];
    if (config->data.kind != CR_DATA_FOLDER || !realpath(config->data.root, root)) return CR_OK;
    resolve_new(out, path);
    const size_t length = strlen(root);
    if (strncmp(path, root, length) != 0 || path[length] != '/') return CR_OK;
    snprintf(part, sizeof part, "%.*s", (int)(length + 1 + strcspn(path + length + 1, "/")), path);
    if (!cr_fs_has_dir(root, name) && !cr_fs_has_dir(part, name)) return CR_OK; /* next to train/ and val/ */
    return cr_args_fail(
        args, "%s lies in the folder of images, where each folder is a class: choose a place outside of it", out);
}

cr_status cr_cmd_classes(const struct cr_config *config, int *classes) {
    enum { ASSUMED = 1000 };
    cr_status status = cr_session_classes(config, classes);
    if (status == CR_OK || status == CR_ERR_MEMORY) return status;
    cr_log(CR_LOG_INFO, "note: assuming %d classes (model.classes sets another number): %s", ASSUMED,
           cr_error_message());
    cr_error_clear();
    *classes = ASSUMED;
    return CR_OK;
}

/* ---- names of classes ---- */

cr_status cr_cmd_names_load(const char *weights, struct cr_cmd_names *out) {
    return cr_saved_model_names(weights, &out->arena, &out->at, &out->count);
}

cr_status cr_cmd_names_of(const struct cr_dataset *dataset, struct cr_cmd_names *out) {
    const int classes = dataset->classes;
    CR_ARENA_ALLOC(&out->arena, out->at, (size_t)classes);
    for (out->count = 0; out->count < classes; out->count++) {
        out->at[out->count] = cr_arena_printf(&out->arena, "%s", dataset->class_names[out->count]);
        if (!out->at[out->count]) return CR_NO_MEMORY(64);
    }
    return CR_OK;
}

static cr_status names_from_data(const struct cr_config *config, struct cr_cmd_names *out) {
    struct cr_dataset *dataset;
    if (cr_dataset_open(config, CR_SPLIT_VAL, &dataset) != CR_OK) {
        cr_log(CR_LOG_WARN, "no class names, printing class numbers: %s", cr_error_message());
        cr_error_clear();
        return CR_OK;
    }
    cr_status status = cr_cmd_names_of(dataset, out);
    cr_dataset_close(dataset);
    return status;
}

cr_status cr_cmd_names_find(const struct cr_config *config, struct cr_cmd_names *out) {
    CR_TRY(cr_cmd_names_load(config->model.weights, out));
    return out->count ? CR_OK : names_from_data(config, out);
}

const char *cr_cmd_class_name(const struct cr_cmd_names *names, int label, char *buffer, size_t bytes) {
    if (label < names->count) return names->at[label];
    snprintf(buffer, bytes, "class %d", label);
    return buffer;
}

/* ---- programs without data ---- */

void cr_cmd_batch_free(struct cr_cmd_batch *batch) {
    cr_free(batch->images);
    cr_free(batch->labels);
    cr_free(batch->boxes);
    *batch = (struct cr_cmd_batch){0};
}

cr_status cr_cmd_init_weights(struct cr_session *s) {
    CR_TRY(cr_session_init(s));
    if (s->config->quant.type == CR_QUANT_NONE || !*s->config->model.weights) return CR_OK;
    return cr_session_load_weights(s, s->config->model.weights, true);
}

cr_status cr_cmd_random_batch(const struct cr_program *program, int classes, uint64_t seed, struct cr_cmd_batch *out) {
    const struct cr_tensor *images = &program->tensor[program->images], *labels = &program->tensor[program->labels];
    const int64_t           count = labels->dim[0];
    struct cr_rng           rng   = cr_rng_make(seed, CR_RNG_TEST, 0, 0);
    struct cr_cmd_batch     b     = {.images = cr_alloc(images->bytes, 1),
                                     .labels = cr_alloc(labels->bytes, 1),
                                     .boxes  = cr_alloc((size_t)count, 4 * sizeof *b.boxes)}; /* dy, dx, flip, 0 */
    if (!b.images || !b.labels || !b.boxes) {
        cr_cmd_batch_free(&b);
        return CR_NO_MEMORY(images->bytes + labels->bytes);
    }
    for (size_t i = 0; i < images->bytes; i++) b.images[i] = (uint8_t)cr_rng_u32(&rng);
    const int64_t words = labels->dim[3]; /* 1, or with data.multi_label as in graph/loss.h: one label for each image */
    for (int64_t i = 0; i < count; i++) {
        const int32_t k     = (int32_t)cr_rng_below(&rng, (uint64_t)classes);
        b.labels[i * words] = words == 1 ? k : 1;
        if (words > 1) b.labels[i * words + 1 + k / 32] = (int32_t)(1u << (k % 32));
    }
    for (int64_t i = 0; i < count; i++) {
        for (int k = 0; k < 2; k++) b.boxes[4 * i + k] = (int32_t)cr_rng_below(&rng, 9) - 4;
        b.boxes[4 * i + 2] = (int32_t)cr_rng_below(&rng, 2);
    }
    *out = b;
    return CR_OK;
}

cr_status cr_cmd_feed_random(struct cr_exec *exec, const struct cr_program *program, int classes, uint64_t seed) {
    struct cr_cmd_batch batch;
    CR_TRY(cr_cmd_random_batch(program, classes, seed, &batch));
    cr_status status = cr_exec_feed(exec, batch.images, batch.labels, batch.boxes);
    cr_cmd_batch_free(&batch);
    return status;
}

struct cr_step_block cr_cmd_step_block(const struct cr_config *c) {
    return (struct cr_step_block){.lr           = (float)c->optim.lr,
                                  .momentum     = (float)c->optim.momentum,
                                  .weight_decay = (float)c->optim.weight_decay,
                                  .clip_norm    = (float)c->train.clip_norm,
                                  .seed         = (uint64_t)c->train.seed};
}
