/* cli/finetune/network.c: chooses the pretrained weights that cresnet finetune starts from, and their network. See
 * cli/finetune/finetune.h. */
#include "checkpoint/checkpoint.h"
#include "cli/finetune/finetune.h"
#include "config/keys.h"
#include "data/data.h"
#include "model/model.h"
#include "pretrained/pretrained.h"
#include "session/saved_model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { IMAGENET_SIZE = 224, LARGE_SET = 500 };

/* ---- weights with a configuration: a run, a checkpoint, a file in one ---- */

/* Copies the keys that describe the network, the format of its images and their normalisation. */
static cr_status copy_network(struct cr_finetune *f, const struct cr_config *config) {
    static const char *const keys[] = {"model.arch",     "model.block",     "model.depths",
                                       "model.widths",   "model.groups",    "model.width_per_group",
                                       "model.stem",     "model.shortcut",  "model.excitation",
                                       "model.eca",      "model.blur_pool", "model.bn_eps",
                                       "model.channels", "data.channels",   "data.bits",
                                       "data.mean",      "data.std"};
    const struct cr_config  *plain;
    struct cr_prepare        prepare;
    cr_status                status;
    CR_TRY(cr_config_open(&plain, NULL, NULL, 0));
    CR_TRY_OUT(cr_prepare_from_config(config, CR_SPLIT_TRAIN, &prepare));
    f->trained_size = prepare.size;
    f->network      = cr_word_arch(config->model.arch);
    for (size_t i = 0; i < CR_COUNT(keys); i++) {
        const struct cr_key *key   = cr_key_dotted(keys[i]);
        struct cr_text       value = {0};
        if (i > 0 && cr_value_equal(key, config, plain)) continue;
        cr_value_print(key, config, &value);
        f->failed |= value.failed;
        cr_finetune_set(f, keys[i], NULL, "%s", value.data ? value.data : "");
        cr_text_free(&value);
    }
    /* `auto` depends on the kind of the dataset */
    if (config->model.arch == CR_ARCH_CUSTOM && config->model.stem == CR_STEM_AUTO)
        cr_finetune_set(f, "model.stem", NULL, "%s", cr_config_is_small(config) ? "cifar" : "imagenet");
out:
    cr_config_close(plain);
    return status;
}

static cr_status use_saved(struct cr_finetune *f, const struct cr_saved_model *saved) {
    const struct cr_config *config;
    CR_TRY(cr_config_open_stored(&config, saved->config, NULL, 0));
    cr_status status = copy_network(f, config);
    cr_config_close(config);
    f->weights = cr_arena_printf(&f->arena, "%s", saved->weights);
    return status == CR_OK && !f->weights ? CR_NO_MEMORY(strlen(saved->weights)) : status;
}

/* ---- weights without a configuration: the network is recognised by its tensors ---- */

static bool has_tensor(const struct cr_st_file *file, const struct cr_param *q) {
    const struct cr_st_entry *e    = cr_st_find(file, q->name);
    const bool                conv = q->role == CR_ROLE_CONV; /* K,R,S,C here; K,C,R,S in files */
    if (!e) return false;
    return conv ? e->dims == 4 && e->dim[0] == q->dim[0] && e->dim[1] == q->dim[3] && e->dim[2] == q->dim[1] &&
                      e->dim[3] == q->dim[2]
                : e->dims == 1 && e->dim[0] == q->dim[3];
}

/* Returns the number of tensors of the model in the file, or 0 when one is not there; the classifier may differ. */
static int count_tensors(const struct cr_model *m, const struct cr_st_file *file) {
    int count = 0;
    for (int i = 0; i < m->store.params; i++) {
        const struct cr_param *q = &m->store.param[i];
        if (q->classifier) continue;
        if (!has_tensor(file, q)) return 0;
        count++;
    }
    return count;
}

struct candidate {
    enum cr_arch arch;
    const char  *stem, *shortcut;
};

static cr_status try_candidate(const struct candidate *c, const struct cr_st_file *file, int *tensors) {
    char                    arch[64], stem[64], shortcut[64];
    const struct cr_config *config;
    struct cr_model         model;
    snprintf(arch, sizeof arch, "model.arch=%s", cr_word_arch(c->arch));
    snprintf(stem, sizeof stem, "model.stem=%s", c->stem);
    snprintf(shortcut, sizeof shortcut, "model.shortcut=%s", c->shortcut);
    CR_TRY(cr_config_open(&config, NULL, (const char *const[]){arch, stem, shortcut}, 3));
    cr_status status = cr_model_open(config, 10, 64, 64, &model);
    if (status == CR_OK) {
        *tensors = count_tensors(&model, file);
        cr_model_close(&model);
    }
    cr_config_close(config);
    return status;
}

/* The network with the most tensors in the file: ResNet-18 is a part of ResNet-34. */
static cr_status recognise(struct cr_finetune *f, const char *path) {
    static const char *const stems[] = {"imagenet", "cifar", "deep"}, *const shortcuts[] = {"B", "A", "D"};
    struct cr_st_file *file;
    struct candidate   best   = {CR_ARCH_CUSTOM, NULL, NULL};
    cr_status          status = CR_OK;
    int                most = 0, tensors = 0;
    CR_TRY(cr_ckpt_open_weights(path, NULL, 0, &file));
    for (int arch = 0; arch < (int)CR_ARCH_CUSTOM; arch++)
        for (size_t k = 0; k < CR_COUNT(stems) * CR_COUNT(shortcuts); k++) {
            const struct candidate c = {(enum cr_arch)arch, stems[k % CR_COUNT(stems)], shortcuts[k / CR_COUNT(stems)]};
            tensors                  = 0;
            if (try_candidate(&c, file, &tensors) == CR_ERR_MEMORY) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory");
            cr_error_clear(); /* shortcuts that do not fit a network */
            if (tensors <= most) continue;
            most = tensors;
            best = c;
        }
    if (!most)
        CR_FAIL_OUT(CR_ERR_CONFIG,
                    "%s: its tensors are those of no network that cresnet knows: give --model NAME, or use the run "
                    "folder that has its config.ini",
                    path);
    f->network      = cr_word_arch(best.arch);
    f->trained_size = strcmp(best.stem, "cifar") == 0 ? 32 : IMAGENET_SIZE;
    cr_finetune_set(f, "model.arch", "recognised by the tensors of the weights", "%s", f->network);
    cr_finetune_set(f, "model.stem", NULL, "%s", best.stem);
    cr_finetune_set(f, "model.shortcut", NULL, "%s", best.shortcut);
out:
    cr_st_close(file);
    return status;
}

/* ---- published weights ---- */

/* The network of "resnet50.v2" is resnet50. */
static cr_status use_published(struct cr_finetune *f, const char *name) {
    char            file[CR_PATH_MAX];
    const cr_status status = cr_pretrained_file(name, file);
    if (status != CR_OK) {
        char why[1500];
        if (!cr_pretrained_is_name(name)) return status;
        cr_error_copy(why, sizeof why);
        return CR_FAIL(status,
                       "%s; other weights: --weights FILE (safetensors, .pth, a run); training from scratch, which "
                       "needs many more images: --weights none",
                       why);
    }
    f->trained_size = IMAGENET_SIZE;
    f->weights      = cr_arena_printf(&f->arena, "%s", name);
    f->network      = cr_arena_printf(&f->arena, "%.*s", (int)strcspn(name, "."), name);
    if (!f->weights || !f->network) return CR_NO_MEMORY(64);
    cr_finetune_set(f, "model.arch", NULL, "%s", f->network);
    return CR_OK;
}

/* ---- the choice ---- */

/* On a GPU a larger network is worth its time, unless there are few images. */
static const char *default_network(const struct cr_finetune *f) {
    return f->gpu && f->train >= LARGE_SET ? "resnet50" : "resnet18";
}

static cr_status from_scratch(struct cr_finetune *f) {
    const char *model = f->args->value[CR_OPT_MODEL];
    f->weights        = "";
    f->network        = model ? model : "resnet18";
    cr_finetune_set(f, "model.arch", NULL, "%s", f->network);
    const struct cr_config *config;
    struct cr_prepare       prepare;
    CR_TRY(cr_finetune_config(f, NULL, &config));
    cr_status status = cr_prepare_from_config(config, CR_SPLIT_TRAIN, &prepare);
    cr_config_close(config);
    f->trained_size = prepare.size;
    return status;
}

static cr_status use_file(struct cr_finetune *f, const char *path) {
    const char           *model = f->args->value[CR_OPT_MODEL];
    struct cr_saved_model saved;
    if (cr_saved_model_find(path, NULL, &saved) == CR_OK) return use_saved(f, &saved);
    if (cr_fs_is_dir(path) || (access(path, F_OK) != 0 && !cr_st_key(path)))
        return CR_ERR_CONFIG; /* the message is set */
    cr_error_clear();
    f->weights = cr_arena_printf(&f->arena, "%s", path);
    if (!f->weights) return CR_NO_MEMORY(strlen(path));
    if (!model) return recognise(f, path);
    CR_TRY(from_scratch(f));
    f->weights = cr_arena_printf(&f->arena, "%s", path);
    return f->weights ? CR_OK : CR_NO_MEMORY(strlen(path));
}

cr_status cr_finetune_network(struct cr_finetune *f) {
    const char *model = f->args->value[CR_OPT_MODEL], *weights = f->args->value[CR_OPT_START_WEIGHTS];
    if (!weights) weights = f->start ? f->start : f->given->model.weights;
    if (f->before) weights = f->before;
    const bool scratch = strcmp(weights, "none") == 0;
    if (!*weights) weights = model ? model : default_network(f);
    if (scratch)
        CR_TRY(from_scratch(f));
    else if (access(weights, F_OK) == 0 || cr_st_key(weights) || strchr(weights, '/'))
        CR_TRY(use_file(f, weights));
    else if (model && weights == model && !cr_pretrained_is_name(model)) {
        CR_TRY(from_scratch(f)); /* reports the name of no network */
        return cr_args_fail(f->args,
                            "--model %s: there are no published weights of this network: give --weights FILE, or "
                            "--weights none to train from scratch",
                            model);
    } else
        CR_TRY(use_published(f, weights));
    cr_finetune_set(f, "model.weights",
                    !*f->weights               ? "no weights: training from scratch"
                    : f->head == CR_HEAD_KEEP  ? "the classifier is kept"
                    : f->head == CR_HEAD_MATCH ? "the classifier keeps the classes of the same names"
                                               : "the classifier is replaced by one for the classes of the folder",
                    "%s", f->weights);
    if (*f->weights) cr_finetune_set(f, "model.head", NULL, "%s", cr_word_head(f->head));
    return CR_OK;
}

bool cr_finetune_same_weights(const char *given, const char *stored) {
    struct cr_saved_model saved;
    if (strcmp(given, "none") == 0) return !*stored;
    if (strcmp(given, stored) == 0 || cr_fs_is_same(given, stored)) return true;
    cr_error_hold();
    const bool same = cr_saved_model_find(given, NULL, &saved) == CR_OK && cr_fs_is_same(saved.weights, stored);
    cr_error_release();
    cr_error_clear();
    return same;
}
