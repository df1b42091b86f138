/* config/check.c: checks rules between keys that depend on the config alone (keys that contradict each other). A rule
 * is skipped if one of its values was rejected before, so that one mistake gives one error. */
#include "config/keys.h"

#include <string.h>

static const struct cr_key *key_of(const char *dotted) {
    const struct cr_key *key = cr_key_dotted(dotted);
    CR_ASSERT(key);
    return key;
}

static bool was_rejected(const struct cr_config *c, const char *dotted) {
    return c->src[key_of(dotted) - cr_keys].line == CR_KEY_REFUSED;
}

/* In a function that checks the configuration c and adds to the list `to`. */
#define COMPLAIN(dotted, ...) cr_config_complain(c, to, key_of(dotted), __VA_ARGS__)

static void check_custom(const struct cr_config *c, struct cr_complaints *to) {
    if (was_rejected(c, "model.depths") || was_rejected(c, "model.widths")) return;
    int depths = c->model.depths.count, widths = c->model.widths.count;
    if (!depths && !widths)
        COMPLAIN("model.arch", "needs depths and widths, one number per stage in each, e.g. depths = 3,3,3 and "
                               "widths = 16,32,64");
    else if (!depths)
        COMPLAIN("model.arch", "also needs depths, with as many numbers as widths (%d)", widths);
    else if (!widths)
        COMPLAIN("model.arch", "also needs widths, with as many numbers as depths (%d)", depths);
    else if (depths != widths)
        COMPLAIN("model.widths", "must have as many numbers as depths (%d), one per stage; has %d", depths, widths);
}

static void check_model(const struct cr_config *c, struct cr_complaints *to) {
    if (c->model.eca && c->model.excitation) COMPLAIN("model.eca", "excludes excitation: set one of the two to no");
    if (was_rejected(c, "model.arch")) return;
    if (c->model.arch == CR_ARCH_CUSTOM) {
        check_custom(c, to);
        return;
    }
    const char *arch = cr_word_arch(c->model.arch);
    if (c->model.depths.count)
        COMPLAIN("model.depths", "is only for arch = custom; %s has fixed depths; leave it empty", arch);
    if (c->model.widths.count)
        COMPLAIN("model.widths", "is only for arch = custom; %s has fixed widths; leave it empty", arch);
    if (c->model.block != CR_BLOCK_AUTO)
        COMPLAIN("model.block", "is only for arch = custom; %s has a fixed block; use auto", arch);
}

static void check_memory(const struct cr_config *c, struct cr_complaints *to) {
    const char *limit = c->memory.limit, *card = c->memory.card;
    size_t      bytes;
    const bool  word = !*limit || strcmp(limit, "auto") == 0 || strcmp(limit, "none") == 0;
    if (!was_rejected(c, "memory.limit") && !word && !cr_bytes_parse(limit, &bytes))
        COMPLAIN("memory.limit", "must be a memory size with a unit, e.g. 8GiB or 700MB, or auto, or none");
    if (!was_rejected(c, "memory.card") && *card && !cr_bytes_parse(card, &bytes))
        COMPLAIN("memory.card", "must be a memory size with a unit, e.g. 8GiB, or empty");
}

/* Checks the syntax only. model/resnet.c checks that the network has the part. */
static bool is_part(const char *word, size_t length) {
    if (length == 6 && memcmp(word, "layer", 5) == 0) return word[5] >= '1' && word[5] <= '9';
    return (length == 4 && memcmp(word, "stem", 4) == 0) || (length == 2 && memcmp(word, "fc", 2) == 0);
}

static void check_freeze(const struct cr_config *c, struct cr_complaints *to) {
    const char *at = c->model.freeze;
    if (!*at) return;
    for (;; at++) {
        at += strspn(at, " \t");
        size_t length = strcspn(at, ","), used = length;
        while (used && (at[used - 1] == ' ' || at[used - 1] == '\t')) used--;
        if (!is_part(at, used))
            COMPLAIN("model.freeze", "'%.*s' is not a part of a network; allowed: stem, layer1, layer2, ..., fc",
                     (int)CR_MIN(used, (size_t)40), at);
        at += length;
        if (!*at) return;
    }
}

static void check_unfreeze(const struct cr_config *c, struct cr_complaints *to) {
    const int given = c->model.unfreeze.count;
    int       parts = *c->model.freeze != 0;
    if (was_rejected(c, "model.unfreeze") || was_rejected(c, "model.freeze") || !given) return;
    for (const char *at = c->model.freeze; *at; at++) parts += *at == ',';
    if (!parts)
        COMPLAIN("model.unfreeze", "needs freeze: the parts that are frozen until then");
    else if (given != 1 && given != parts)
        COMPLAIN("model.unfreeze", "must be one number, or one for each of the %d parts of freeze; has %d", parts,
                 given);
    if (c->train.batch == 0 && !was_rejected(c, "train.batch"))
        COMPLAIN("model.unfreeze", "needs a number as train.batch: auto fits the batch to the parts trained first");
}

static void check_range(const struct cr_config *c, struct cr_complaints *to, const char *dotted,
                        const struct cr_reals *range) {
    if (was_rejected(c, dotted)) return;
    if (range->count != 2 || range->at[0] > range->at[1]) COMPLAIN(dotted, "must be two numbers, the smaller first");
}

static void check_channels(const struct cr_config *c, struct cr_complaints *to, const char *dotted,
                           const struct cr_reals *list) {
    const int64_t channels = c->data.channels;
    if (was_rejected(c, dotted) || was_rejected(c, "data.channels") || list->count == 1) return;
    if (list->count == channels || channels == 2) return; /* 2: check_format rejects it */
    if (channels == 1)
        COMPLAIN(dotted, "must be one number: the images are grey (channels = 1)");
    else
        COMPLAIN(dotted, "must be %s numbers: red, green, blue%s; or one number for all channels",
                 channels == 3 ? "three" : "four", channels == 3 ? "" : ", alpha");
}

static void check_format(const struct cr_config *c, struct cr_complaints *to) {
    const int64_t channels = c->data.channels, bits = c->data.bits;
    const char   *colours = c->data.augment != CR_AUGMENT_NONE ? "data.augment"
                            : c->data.jitter.count             ? "data.jitter"
                                                               : NULL;
    if (channels == 2 && !was_rejected(c, "data.channels"))
        COMPLAIN("data.channels", "must be 1 (grey), 3 (RGB) or 4 (RGBA)");
    if (bits != 8 && bits != 16 && !was_rejected(c, "data.bits")) COMPLAIN("data.bits", "must be 8 or 16");
    if (!colours || was_rejected(c, colours)) return;
    if (channels == 4)
        COMPLAIN(colours, "is not defined for channels = 4: use channels = 3, or remove the key");
    else if (bits == 16)
        COMPLAIN(colours, "is not defined for bits = 16: use bits = 8, or remove the key");
}

static void check_sizes(const struct cr_config *c, struct cr_complaints *to) {
    struct cr_size_schedule sizes;
    if (!*c->data.image_sizes) return;
    if (!cr_config_sizes(c, &sizes))
        COMPLAIN("data.image_sizes",
                 "must be at most %d sizes, each with @ and the epoch from which it is used, the first with 0: e.g. "
                 "128@0,160@6,224@12",
                 (int)CR_SIZES_MAX);
    else if (c->data.image_width)
        COMPLAIN("data.image_sizes", "excludes image_width: images of several sizes are square");
    else if (*c->distill.teacher)
        COMPLAIN("data.image_sizes", "excludes distill.teacher, whose images have one size");
}

static void check_data(const struct cr_config *c, struct cr_complaints *to) {
    check_sizes(c, to);
    check_range(c, to, "data.scale", &c->data.scale);
    check_range(c, to, "data.ratio", &c->data.ratio);
    check_range(c, to, "data.erase_scale", &c->data.erase_scale);
    check_format(c, to);
    check_channels(c, to, "data.mean", &c->data.mean);
    check_channels(c, to, "data.std", &c->data.std);
    const struct cr_reals *jitter = &c->data.jitter;
    if (!was_rejected(c, "data.jitter") && jitter->count && (jitter->count != 4 || jitter->at[3] > 0.5))
        COMPLAIN("data.jitter", "must be four numbers: brightness, contrast, saturation, and hue (at most 0.5)");
    if (!was_rejected(c, "data.eval_resize") && !was_rejected(c, "data.eval_crop") && c->data.eval_resize &&
        c->data.fit == CR_FIT_CROP && c->data.eval_crop > c->data.eval_resize)
        COMPLAIN("data.eval_crop", "must not exceed eval_resize (%d): the crop is taken from the resized image",
                 (int)c->data.eval_resize);
    if (c->data.image_width && !c->data.image_size && !was_rejected(c, "data.image_size"))
        COMPLAIN("data.image_width", "needs image_size, the height: e.g. image_size = 192x320 sets both");
    if (c->data.image_width && c->data.eval_crop)
        COMPLAIN("data.eval_crop", "must be 0 with image_width: rectangular images have one size");
    if (c->data.repeats > 1 && c->data.sampling == CR_SAMPLING_BALANCED)
        COMPLAIN("data.repeats", "excludes sampling = balanced, which repeats images of rare classes: use 1");
    if (was_rejected(c, "data.kind")) return;
    bool has_files =
        c->data.kind == CR_DATA_CIFAR10 || c->data.kind == CR_DATA_CIFAR100 || cr_config_has_image_files(c);
    if (!has_files) return;
    const char *kind  = cr_word_data_kind(c->data.kind);
    const bool  named = c->data.kind == CR_DATA_TAR && (*c->data.train || *c->data.val);
    if (!*c->data.root && !named && !was_rejected(c, "data.root"))
        COMPLAIN("data.kind", "needs root: the folder of the dataset");
    if (c->data.train_images)
        COMPLAIN("data.train_images", "is only for shapes and synthetic; %s has a fixed size; use 0", kind);
    if (c->data.val_images)
        COMPLAIN("data.val_images", "is only for shapes and synthetic; %s has a fixed size; use 0", kind);
}

static void check_optim(const struct cr_config *c, struct cr_complaints *to) {
    if (c->optim.nesterov && c->optim.momentum == 0) COMPLAIN("optim.nesterov", "needs momentum above 0");
    if (c->optim.head_lr > 0 && c->optim.lr == 0 && !was_rejected(c, "optim.lr"))
        COMPLAIN("optim.head_lr", "needs lr above 0: to train only the classifier, set model.freeze");
    if (was_rejected(c, "optim.kind")) return;
    if (c->optim.kind == CR_OPTIM_SGD || c->optim.kind == CR_OPTIM_LARS) return;
    if (c->optim.nesterov && c->optim.kind != CR_OPTIM_MUON)
        COMPLAIN("optim.nesterov", "is only for sgd, lars and muon; use no with %s", cr_word_optim_kind(c->optim.kind));
    if (!cr_config_is_set(c, "optim.lr") && !was_rejected(c, "optim.lr"))
        COMPLAIN("optim.kind", "needs lr: the default, %g, is for sgd; a common value is %s", c->optim.lr,
                 c->optim.kind == CR_OPTIM_LAMB   ? "0.005"
                 : c->optim.kind == CR_OPTIM_MUON ? "0.002"
                                                  : "0.001");
}

static void check_averages(const struct cr_config *c, struct cr_complaints *to) {
    if (!c->ema.swa_start) return;
    if (c->ema.decay > 0) COMPLAIN("ema.swa_start", "excludes decay: set one of the two to 0");
    if (c->model.bn_momentum == 0) COMPLAIN("ema.swa_start", "needs [model] bn_momentum above 0");
}

static void check_schedule(const struct cr_config *c, struct cr_complaints *to) {
    if (!was_rejected(c, "schedule.milestones")) {
        const struct cr_reals *at = &c->schedule.milestones;
        for (int i = 1; i < at->count; i++) {
            if (at->at[i] > at->at[i - 1]) continue;
            COMPLAIN("schedule.milestones", "must be in ascending order; item %d is not", i + 1);
            break;
        }
        if (c->schedule.kind == CR_SCHEDULE_MULTISTEP && !at->count)
            COMPLAIN("schedule.kind",
                     "needs milestones: the epochs at which the learning rate decays, e.g. milestones = 100,150");
    }
    if (was_rejected(c, "schedule.kind")) return;
    if (c->schedule.kind == CR_SCHEDULE_ONE_CYCLE && c->schedule.warmup_epochs > 0)
        COMPLAIN("schedule.warmup_epochs", "must be 0 with one_cycle, which has its own warm-up: see peak");
    if (c->schedule.low_momentum > 0 && c->schedule.kind != CR_SCHEDULE_ONE_CYCLE)
        COMPLAIN("schedule.low_momentum", "is only for one_cycle; use 0");
    else if (c->schedule.low_momentum > c->optim.momentum && !was_rejected(c, "optim.momentum"))
        COMPLAIN("schedule.low_momentum", "must not exceed [optim] momentum (%g)", c->optim.momentum);
    const bool has_end = c->schedule.kind == CR_SCHEDULE_COSINE || c->schedule.kind == CR_SCHEDULE_POLYNOMIAL;
    if (has_end && c->schedule.min_lr > c->optim.lr && !was_rejected(c, "optim.lr"))
        COMPLAIN("schedule.min_lr", "must not exceed [optim] lr (%g)", c->optim.lr);
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

static void check_block(const struct cr_config *c, struct cr_complaints *to) {
    int64_t outputs, inputs;
    if (was_rejected(c, "prune.block") || cr_config_block(c, &outputs, &inputs)) return;
    COMPLAIN("prune.block",
             "must be output channels, e.g. 8, or output x input channels, e.g. 64x64; each from 1 to 4096, with more "
             "than one weight per block");
}

static void check_prune_schedule(const struct cr_config *c, struct cr_complaints *to) {
    const enum cr_prune_schedule kind  = c->prune.schedule;
    const bool                   acdc  = kind == CR_PRUNE_SCHEDULE_ACDC;
    const double                 cycle = c->prune.sparse_epochs + c->prune.dense_epochs;
    if (kind == CR_PRUNE_SCHEDULE_GRADUAL || was_rejected(c, "prune.schedule") || !cr_config_prunes(c)) return;
    if (c->prune.initial > 0)
        COMPLAIN("prune.initial", "is only for schedule = gradual; use 0 with %s", cr_word_prune_schedule(kind));
    if (c->prune.end <= c->prune.start)
        COMPLAIN("prune.end", "must be above start (%g) with schedule = %s: the epoch from which masks are fixed",
                 c->prune.start, cr_word_prune_schedule(kind));
    else if (acdc && c->prune.end - c->prune.start < cycle * (1 - 1e-9))
        COMPLAIN(
            "prune.end",
            "must be at least %g, so that a sparse phase and a dense phase end before it (start = %g, sparse_epochs "
            "= %g, dense_epochs = %g)",
            c->prune.start + cycle, c->prune.start, c->prune.sparse_epochs, c->prune.dense_epochs);
    if (acdc) return;
    if (c->prune.pattern != CR_PRUNE_PATTERN_UNSTRUCTURED)
        COMPLAIN("prune.pattern", "must be unstructured with schedule = rigl, which moves single weights");
    if (c->prune.scope == CR_PRUNE_SCOPE_GLOBAL && !*c->prune.budget)
        COMPLAIN("prune.scope",
                 "must be erk or uniform with schedule = rigl, which keeps the number of weights of each layer");
}

static void check_prune(const struct cr_config *c, struct cr_complaints *to) {
    check_block(c, to);
    if (was_rejected(c, "prune.sparsity")) return;
    if (c->prune.pattern == CR_PRUNE_PATTERN_2_4 && c->prune.sparsity > 0.5)
        COMPLAIN("prune.sparsity", "must not exceed 0.5 with pattern 2:4, which keeps 2 of 4 weights");
    if (c->prune.pattern == CR_PRUNE_PATTERN_CHANNELS && cr_config_prunes(c))
        COMPLAIN("prune.pattern", "channels is for `cresnet prune --flops X`, without sparsity and budget: to prune "
                                  "whole output channels while training, use channel");
    if (c->prune.sparsity > 0 && c->prune.initial > c->prune.sparsity)
        COMPLAIN("prune.initial", "must not exceed sparsity (%g)", c->prune.sparsity);
    if (c->prune.end > 0 && c->prune.end < c->prune.start)
        COMPLAIN("prune.end", "must not be less than start (%g)", c->prune.start);
    check_prune_schedule(c, to);
    if (*c->prune.column && !*c->prune.budget) COMPLAIN("prune.column", "needs budget: the CSV file with this column");
}

static void check_train(const struct cr_config *c, struct cr_complaints *to) {
    if (c->train.patience > 0 && c->train.eval_every == 0 && !was_rejected(c, "train.eval_every"))
        COMPLAIN("train.patience", "needs evaluations: set eval_every to at least 1");
}

/* Keys that need one label per image. */
static void check_multi_label(const struct cr_config *c, struct cr_complaints *to) {
    if (c->data.kind != CR_DATA_CSV && c->data.kind != CR_DATA_TAR && !was_rejected(c, "data.kind"))
        COMPLAIN("data.multi_label",
                 "needs data.kind = csv, lists with lines file,label1;label2, or tar, archives with arrays of labels");
    if (*c->data.exclude || *c->data.labels)
        COMPLAIN(*c->data.exclude ? "data.exclude" : "data.labels",
                 "needs one label per image: please change the lists of data.root themselves");
    if (c->data.sampling == CR_SAMPLING_BALANCED)
        COMPLAIN("data.sampling", "balanced needs one label per image: please use loss.class_weights = balanced");
    if (c->train.best == CR_BEST_TOP5) COMPLAIN("train.best", "top5 needs one label per image: use map or loss");
    if (c->loss.kind == CR_LOSS_SOFTMAX && !was_rejected(c, "loss.kind"))
        COMPLAIN("loss.kind", "softmax needs one label per image: data.multi_label = yes needs bce (or auto)");
}

static void check_loss(const struct cr_config *c, struct cr_complaints *to) {
    if (c->data.multi_label) check_multi_label(c, to);
    if (c->train.best == CR_BEST_MAP && !c->data.multi_label)
        COMPLAIN("train.best", "map is for data.multi_label = yes: use top1, top5 or loss");
    if (c->loss.target_threshold > 0 && !cr_config_is_binary(c) && !was_rejected(c, "loss.kind"))
        COMPLAIN("loss.target_threshold", "is only for binary cross-entropy: set kind = bce, or use 0");
}

static void check_ranks(const struct cr_config *c, struct cr_complaints *to) {
    if (c->ranks.transport == CR_TRANSPORT_PEER && c->ranks.reduce != CR_REDUCE_FP32)
        COMPLAIN("ranks.transport", "peer supports only fp32 gradients: set reduce to fp32, or transport to nccl");
}

void cr_config_check(const struct cr_config *c, struct cr_complaints *to) {
    check_model(c, to);
    check_memory(c, to);
    check_freeze(c, to);
    check_unfreeze(c, to);
    check_data(c, to);
    check_optim(c, to);
    check_schedule(c, to);
    check_averages(c, to);
    check_prune(c, to);
    check_train(c, to);
    check_loss(c, to);
    check_ranks(c, to);
}
