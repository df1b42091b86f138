/* config/check.c: checks rules between keys that depend on the config alone. A rule is skipped if one of its values was
 * rejected before, so that one mistake gives one error. */
#include "config/keys.h"

#include <string.h>

struct check {
    const struct cr_config *config;
    struct cr_complaints   *complaints;
};

static const struct cr_key *key_of(const char *dotted) {
    const struct cr_key *key = cr_key_dotted(dotted);
    CR_ASSERT(key);
    return key;
}

static bool was_rejected(const struct check *c, const char *dotted) {
    return c->config->src[key_of(dotted) - cr_keys].line == CR_KEY_REFUSED;
}

#define COMPLAIN(c, dotted, ...) cr_config_complain((c)->config, (c)->complaints, key_of(dotted), __VA_ARGS__)

static void check_custom(const struct check *c) {
    const struct cr_config *config = c->config;
    if (was_rejected(c, "model.depths") || was_rejected(c, "model.widths")) return;
    int depths = config->model.depths.count, widths = config->model.widths.count;
    if (!depths && !widths)
        COMPLAIN(c, "model.arch",
                 "needs depths and widths, one number per stage in each, e.g. depths = 3,3,3 and "
                 "widths = 16,32,64");
    else if (!depths)
        COMPLAIN(c, "model.arch", "also needs depths, with as many numbers as widths (%d)", widths);
    else if (!widths)
        COMPLAIN(c, "model.arch", "also needs widths, with as many numbers as depths (%d)", depths);
    else if (depths != widths)
        COMPLAIN(c, "model.widths", "must have as many numbers as depths (%d), one per stage; has %d", depths, widths);
}

static void check_model(const struct check *c) {
    if (c->config->model.eca && c->config->model.excitation)
        COMPLAIN(c, "model.eca", "excludes excitation: set one of the two to no");
    const struct cr_config *config = c->config;
    if (was_rejected(c, "model.arch")) return;
    if (config->model.arch == CR_ARCH_CUSTOM) {
        check_custom(c);
        return;
    }
    const char *arch = cr_word_arch(config->model.arch);
    if (config->model.depths.count)
        COMPLAIN(c, "model.depths", "is only for arch = custom; %s has fixed depths; leave it empty", arch);
    if (config->model.widths.count)
        COMPLAIN(c, "model.widths", "is only for arch = custom; %s has fixed widths; leave it empty", arch);
    if (config->model.block != CR_BLOCK_AUTO)
        COMPLAIN(c, "model.block", "is only for arch = custom; %s has a fixed block; use auto", arch);
}

static void check_memory(const struct check *c) {
    const char *limit = c->config->memory.limit, *card = c->config->memory.card;
    size_t      bytes;
    const bool  word = !*limit || strcmp(limit, "auto") == 0 || strcmp(limit, "none") == 0;
    if (!was_rejected(c, "memory.limit") && !word && !cr_bytes_parse(limit, &bytes))
        COMPLAIN(c, "memory.limit", "must be a memory size with a unit, e.g. 8GiB or 700MB, or auto, or none");
    if (!was_rejected(c, "memory.card") && *card && !cr_bytes_parse(card, &bytes))
        COMPLAIN(c, "memory.card", "must be a memory size with a unit, e.g. 8GiB, or empty");
}

/* Checks the syntax only. model/resnet.c checks that the network has the part. */
static bool is_part(const char *word, size_t length) {
    if (length == 6 && memcmp(word, "layer", 5) == 0) return word[5] >= '1' && word[5] <= '9';
    return (length == 4 && memcmp(word, "stem", 4) == 0) || (length == 2 && memcmp(word, "fc", 2) == 0);
}

static void check_freeze(const struct check *c) {
    const char *at = c->config->model.freeze;
    if (!*at) return;
    for (;; at++) {
        at += strspn(at, " \t");
        size_t length = strcspn(at, ","), used = length;
        while (used && (at[used - 1] == ' ' || at[used - 1] == '\t')) used--;
        if (!is_part(at, used))
            COMPLAIN(c, "model.freeze", "'%.*s' is not a part of a network; allowed: stem, layer1, layer2, ..., fc",
                     (int)CR_MIN(used, (size_t)40), at);
        at += length;
        if (!*at) return;
    }
}

static void check_unfreeze(const struct check *c) {
    const struct cr_config *config = c->config;
    const int               given  = config->model.unfreeze.count;
    int                     parts  = *config->model.freeze != 0;
    if (was_rejected(c, "model.unfreeze") || was_rejected(c, "model.freeze") || !given) return;
    for (const char *at = config->model.freeze; *at; at++) parts += *at == ',';
    if (!parts)
        COMPLAIN(c, "model.unfreeze", "needs freeze: the parts that are frozen until then");
    else if (given != 1 && given != parts)
        COMPLAIN(c, "model.unfreeze", "must be one number, or one for each of the %d parts of freeze; has %d", parts,
                 given);
    if (config->train.batch == 0 && !was_rejected(c, "train.batch"))
        COMPLAIN(c, "model.unfreeze", "needs a number as train.batch: auto fits the batch to the parts trained first");
}

static void check_range(const struct check *c, const char *dotted, const struct cr_reals *range) {
    if (was_rejected(c, dotted)) return;
    if (range->count != 2 || range->at[0] > range->at[1]) COMPLAIN(c, dotted, "must be two numbers, the smaller first");
}

static void check_channels(const struct check *c, const char *dotted, const struct cr_reals *list) {
    const int64_t channels = c->config->data.channels;
    if (was_rejected(c, dotted) || was_rejected(c, "data.channels") || list->count == 1) return;
    if (list->count == channels || channels == 2) return; /* 2: check_format rejects it */
    if (channels == 1)
        COMPLAIN(c, dotted, "must be one number: the images are grey (channels = 1)");
    else
        COMPLAIN(c, dotted, "must be %s numbers: red, green, blue%s; or one number for all channels",
                 channels == 3 ? "three" : "four", channels == 3 ? "" : ", alpha");
}

static void check_format(const struct check *c) {
    const struct cr_config *config   = c->config;
    const int64_t           channels = config->data.channels, bits = config->data.bits;
    const char             *colours = config->data.augment != CR_AUGMENT_NONE ? "data.augment"
                                      : config->data.jitter.count             ? "data.jitter"
                                                                              : NULL;
    if (channels == 2 && !was_rejected(c, "data.channels"))
        COMPLAIN(c, "data.channels", "must be 1 (grey), 3 (RGB) or 4 (RGBA)");
    if (bits != 8 && bits != 16 && !was_rejected(c, "data.bits")) COMPLAIN(c, "data.bits", "must be 8 or 16");
    if (!colours || was_rejected(c, colours)) return;
    if (channels == 4)
        COMPLAIN(c, colours, "is not defined for channels = 4: use channels = 3, or remove the key");
    else if (bits == 16)
        COMPLAIN(c, colours, "is not defined for bits = 16: use bits = 8, or remove the key");
}

static void check_sizes(const struct check *c) {
    const struct cr_config *config = c->config;
    struct cr_size_schedule sizes;
    if (!*config->data.image_sizes) return;
    if (!cr_config_sizes(config, &sizes))
        COMPLAIN(c, "data.image_sizes",
                 "must be at most %d sizes, each with @ and the epoch from which it is used, the first with 0: e.g. "
                 "128@0,160@6,224@12",
                 (int)CR_SIZES_MAX);
    else if (config->data.image_width)
        COMPLAIN(c, "data.image_sizes", "excludes image_width: images of several sizes are square");
    else if (*config->distill.teacher)
        COMPLAIN(c, "data.image_sizes", "excludes distill.teacher, whose images have one size");
}

static void check_data(const struct check *c) {
    const struct cr_config *config = c->config;
    check_sizes(c);
    check_range(c, "data.scale", &config->data.scale);
    check_range(c, "data.ratio", &config->data.ratio);
    check_range(c, "data.erase_scale", &config->data.erase_scale);
    check_format(c);
    check_channels(c, "data.mean", &config->data.mean);
    check_channels(c, "data.std", &config->data.std);
    const struct cr_reals *jitter = &config->data.jitter;
    if (!was_rejected(c, "data.jitter") && jitter->count && (jitter->count != 4 || jitter->at[3] > 0.5))
        COMPLAIN(c, "data.jitter", "must be four numbers: brightness, contrast, saturation, and hue (at most 0.5)");
    if (!was_rejected(c, "data.eval_resize") && !was_rejected(c, "data.eval_crop") && config->data.eval_resize &&
        config->data.fit == CR_FIT_CROP && config->data.eval_crop > config->data.eval_resize)
        COMPLAIN(c, "data.eval_crop", "must not exceed eval_resize (%d): the crop is taken from the resized image",
                 (int)config->data.eval_resize);
    if (config->data.image_width && !config->data.image_size && !was_rejected(c, "data.image_size"))
        COMPLAIN(c, "data.image_width", "needs image_size, the height: e.g. image_size = 192x320 sets both");
    if (config->data.image_width && config->data.eval_crop)
        COMPLAIN(c, "data.eval_crop", "must be 0 with image_width: rectangular images have one size");
    if (config->data.repeats > 1 && config->data.sampling == CR_SAMPLING_BALANCED)
        COMPLAIN(c, "data.repeats", "excludes sampling = balanced, which repeats images of rare classes: use 1");
    if (was_rejected(c, "data.kind")) return;
    bool has_files = config->data.kind == CR_DATA_CIFAR10 || config->data.kind == CR_DATA_CIFAR100 ||
                     cr_config_has_image_files(config);
    if (!has_files) return;
    const char *kind  = cr_word_data_kind(config->data.kind);
    const bool  named = config->data.kind == CR_DATA_TAR && (*config->data.train || *config->data.val);
    if (!*config->data.root && !named && !was_rejected(c, "data.root"))
        COMPLAIN(c, "data.kind", "needs root: the folder of the dataset");
    if (config->data.train_images)
        COMPLAIN(c, "data.train_images", "is only for shapes and synthetic; %s has a fixed size; use 0", kind);
    if (config->data.val_images)
        COMPLAIN(c, "data.val_images", "is only for shapes and synthetic; %s has a fixed size; use 0", kind);
}

static void check_optim(const struct check *c) {
    const struct cr_config *config = c->config;
    if (config->optim.nesterov && config->optim.momentum == 0) COMPLAIN(c, "optim.nesterov", "needs momentum above 0");
    if (config->optim.head_lr > 0 && config->optim.lr == 0 && !was_rejected(c, "optim.lr"))
        COMPLAIN(c, "optim.head_lr", "needs lr above 0: to train only the classifier, set model.freeze");
    if (was_rejected(c, "optim.kind")) return;
    if (config->optim.kind == CR_OPTIM_SGD || config->optim.kind == CR_OPTIM_LARS) return;
    if (config->optim.nesterov && config->optim.kind != CR_OPTIM_MUON)
        COMPLAIN(c, "optim.nesterov", "is only for sgd, lars and muon; use no with %s",
                 cr_word_optim_kind(config->optim.kind));
    if (!cr_config_is_set(config, "optim.lr") && !was_rejected(c, "optim.lr"))
        COMPLAIN(c, "optim.kind", "needs lr: the default, %g, is for sgd; a common value is %s", config->optim.lr,
                 config->optim.kind == CR_OPTIM_LAMB   ? "0.005"
                 : config->optim.kind == CR_OPTIM_MUON ? "0.002"
                                                       : "0.001");
}

static void check_averages(const struct check *c) {
    const struct cr_config *config = c->config;
    if (!config->ema.swa_start) return;
    if (config->ema.decay > 0) COMPLAIN(c, "ema.swa_start", "excludes decay: set one of the two to 0");
    if (config->model.bn_momentum == 0) COMPLAIN(c, "ema.swa_start", "needs [model] bn_momentum above 0");
    if (config->quant.type != CR_QUANT_NONE) COMPLAIN(c, "ema.swa_start", "is not supported with [quant] type");
}

static void check_schedule(const struct check *c) {
    const struct cr_config *config = c->config;
    if (!was_rejected(c, "schedule.milestones")) {
        const struct cr_reals *at = &config->schedule.milestones;
        for (int i = 1; i < at->count; i++) {
            if (at->at[i] > at->at[i - 1]) continue;
            COMPLAIN(c, "schedule.milestones", "must be in ascending order; item %d is not", i + 1);
            break;
        }
        if (config->schedule.kind == CR_SCHEDULE_MULTISTEP && !at->count)
            COMPLAIN(c, "schedule.kind",
                     "needs milestones: the epochs at which the learning rate decays, e.g. milestones = 100,150");
    }
    if (was_rejected(c, "schedule.kind")) return;
    if (config->schedule.kind == CR_SCHEDULE_ONE_CYCLE && config->schedule.warmup_epochs > 0)
        COMPLAIN(c, "schedule.warmup_epochs", "must be 0 with one_cycle, which has its own warm-up: see peak");
    if (config->schedule.low_momentum > 0 && config->schedule.kind != CR_SCHEDULE_ONE_CYCLE)
        COMPLAIN(c, "schedule.low_momentum", "is only for one_cycle; use 0");
    else if (config->schedule.low_momentum > config->optim.momentum && !was_rejected(c, "optim.momentum"))
        COMPLAIN(c, "schedule.low_momentum", "must not exceed [optim] momentum (%g)", config->optim.momentum);
    const bool has_end = config->schedule.kind == CR_SCHEDULE_COSINE || config->schedule.kind == CR_SCHEDULE_POLYNOMIAL;
    if (has_end && config->schedule.min_lr > config->optim.lr && !was_rejected(c, "optim.lr"))
        COMPLAIN(c, "schedule.min_lr", "must not exceed [optim] lr (%g)", config->optim.lr);
}

/* Parses a number of channels that is followed by `end`; returns the text after `end`, or NULL if invalid. */
static const char *block_channels(const char *text, char end, int64_t *channels) {
    for (*channels = 0; *text >= '0' && *text <= '9' && *channels <= 4096; text++)
        *channels = 10 * *channels + (*text - '0');
    return *channels >= 1 && *channels <= 4096 && *text == end ? text + 1 : NULL;
}

bool cr_config_block(const struct cr_config *config, int64_t *outputs, int64_t *inputs) {
    const char *text = config->prune.block, *second = block_channels(text, 'x', outputs);
    *inputs = 1;
    if (second ? !block_channels(second, '\0', inputs) : !block_channels(text, '\0', outputs)) return false;
    return *outputs * *inputs > 1;
}

static void check_block(const struct check *c) {
    int64_t outputs, inputs;
    if (was_rejected(c, "prune.block") || cr_config_block(c->config, &outputs, &inputs)) return;
    COMPLAIN(c, "prune.block",
             "must be output channels, e.g. 8, or output x input channels, e.g. 64x64; each from 1 to 4096, with more "
             "than one weight per block");
}

static void check_prune_schedule(const struct check *c) {
    const struct cr_config      *config = c->config;
    const enum cr_prune_schedule kind   = config->prune.schedule;
    const bool                   acdc   = kind == CR_PRUNE_SCHEDULE_ACDC;
    const double                 cycle  = config->prune.sparse_epochs + config->prune.dense_epochs;
    if (kind == CR_PRUNE_SCHEDULE_GRADUAL || was_rejected(c, "prune.schedule") || !cr_config_prunes(config)) return;
    if (config->prune.initial > 0)
        COMPLAIN(c, "prune.initial", "is only for schedule = gradual; use 0 with %s", cr_word_prune_schedule(kind));
    if (config->prune.end <= config->prune.start)
        COMPLAIN(c, "prune.end", "must be above start (%g) with schedule = %s: the epoch from which masks are fixed",
                 config->prune.start, cr_word_prune_schedule(kind));
    else if (acdc && config->prune.end - config->prune.start < cycle * (1 - 1e-9))
        COMPLAIN(
            c, "prune.end",
            "must be at least %g, so that a sparse phase and a dense phase end before it (start = %g, sparse_epochs "
            "= %g, dense_epochs = %g)",
            config->prune.start + cycle, config->prune.start, config->prune.sparse_epochs, config->prune.dense_epochs);
    if (acdc) return;
    if (config->prune.pattern != CR_PRUNE_PATTERN_UNSTRUCTURED)
        COMPLAIN(c, "prune.pattern", "must be unstructured with schedule = rigl, which moves single weights");
    if (config->prune.scope == CR_PRUNE_SCOPE_GLOBAL && !*config->prune.budget)
        COMPLAIN(c, "prune.scope",
                 "must be erk or uniform with schedule = rigl, which keeps the number of weights of each layer");
}

static void check_prune(const struct check *c) {
    const struct cr_config *config = c->config;
    check_block(c);
    if (was_rejected(c, "prune.sparsity")) return;
    if (config->prune.pattern == CR_PRUNE_PATTERN_2_4 && config->prune.sparsity > 0.5)
        COMPLAIN(c, "prune.sparsity", "must not exceed 0.5 with pattern 2:4, which keeps 2 of 4 weights");
    if (config->prune.pattern == CR_PRUNE_PATTERN_CHANNELS && cr_config_prunes(config))
        COMPLAIN(c, "prune.pattern",
                 "channels is for `cresnet prune --flops X`, without sparsity and budget: to prune "
                 "whole output channels while training, use channel");
    if (config->prune.sparsity > 0 && config->prune.initial > config->prune.sparsity)
        COMPLAIN(c, "prune.initial", "must not exceed sparsity (%g)", config->prune.sparsity);
    if (config->prune.end > 0 && config->prune.end < config->prune.start)
        COMPLAIN(c, "prune.end", "must not be less than start (%g)", config->prune.start);
    check_prune_schedule(c);
    if (*config->prune.column && !*config->prune.budget)
        COMPLAIN(c, "prune.column", "needs budget: the CSV file with this column");
}

static void check_train(const struct check *c) {
    const struct cr_config *config = c->config;
    if (config->train.patience > 0 && config->train.eval_every == 0 && !was_rejected(c, "train.eval_every"))
        COMPLAIN(c, "train.patience", "needs evaluations: set eval_every to at least 1");
}

/* Keys that need one label per image. */
static void check_multi_label(const struct check *c) {
    const struct cr_config *config = c->config;
    if (config->data.kind != CR_DATA_CSV && config->data.kind != CR_DATA_TAR && !was_rejected(c, "data.kind"))
        COMPLAIN(c, "data.multi_label",
                 "needs data.kind = csv, lists with lines file,label1;label2, or tar, archives with arrays of labels");
    if (*config->data.exclude || *config->data.labels)
        COMPLAIN(c, *config->data.exclude ? "data.exclude" : "data.labels",
                 "needs one label per image: please change the lists of data.root themselves");
    if (config->data.sampling == CR_SAMPLING_BALANCED)
        COMPLAIN(c, "data.sampling", "balanced needs one label per image: please use loss.class_weights = balanced");
    if (config->train.best == CR_BEST_TOP5)
        COMPLAIN(c, "train.best", "top5 needs one label per image: use map or loss");
    if (config->loss.kind == CR_LOSS_SOFTMAX && !was_rejected(c, "loss.kind"))
        COMPLAIN(c, "loss.kind", "softmax needs one label per image: data.multi_label = yes needs bce (or auto)");
}

static void check_loss(const struct check *c) {
    const struct cr_config *config = c->config;
    if (config->data.multi_label) check_multi_label(c);
    if (config->train.best == CR_BEST_MAP && !config->data.multi_label)
        COMPLAIN(c, "train.best", "map is for data.multi_label = yes: use top1, top5 or loss");
    if (config->loss.target_threshold > 0 && !cr_config_is_binary(config) && !was_rejected(c, "loss.kind"))
        COMPLAIN(c, "loss.target_threshold", "is only for binary cross-entropy: set kind = bce, or use 0");
}

static void check_ranks(const struct check *c) {
    if (c->config->ranks.transport == CR_TRANSPORT_PEER && c->config->ranks.reduce != CR_REDUCE_FP32)
        COMPLAIN(c, "ranks.transport", "peer supports only fp32 gradients: set reduce to fp32, or transport to nccl");
}

void cr_config_check(const struct cr_config *config, struct cr_complaints *complaints) {
    const struct check c = {config, complaints};
    check_model(&c);
    check_memory(&c);
    check_freeze(&c);
    check_unfreeze(&c);
    check_data(&c);
    check_optim(&c);
    check_schedule(&c);
    check_averages(&c);
    check_prune(&c);
    check_train(&c);
    check_loss(&c);
    check_ranks(&c);
}
