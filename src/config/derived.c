/* config/derived.c: values that follow from several keys, such as mean and std of a channel, or unfreezing. */
#include "config/config.h"

#include <stdlib.h>
#include <string.h>

double cr_config_mean(const struct cr_config *config, int channel) {
    return config->data.mean.at[config->data.mean.count == 1 ? 0 : channel];
}

double cr_config_std(const struct cr_config *config, int channel) {
    return config->data.std.at[config->data.std.count == 1 ? 0 : channel];
}

int64_t cr_config_unfreeze_epoch(const struct cr_config *config, int part) {
    const struct cr_ints *at = &config->model.unfreeze;
    return at->count == 1 ? at->at[0] : part < at->count ? at->at[part] : 0;
}

bool cr_config_unfreezes(const struct cr_config *config, int64_t epoch) {
    for (int i = 0; i < config->model.unfreeze.count; i++)
        if (epoch > 0 && config->model.unfreeze.at[i] == epoch) return true;
    return false;
}

bool cr_config_prunes(const struct cr_config *config) {
    return config->prune.sparsity > 0 || *config->prune.budget;
}

size_t cr_config_card_bytes(const struct cr_config *config) {
    size_t bytes;
    return cr_bytes_parse(config->memory.card, &bytes) ? bytes : 0;
}

bool cr_config_mixes_labels(const struct cr_config *config) {
    return config->data.mixup > 0 || config->data.cutmix > 0;
}

bool cr_config_is_binary(const struct cr_config *config) {
    return config->loss.kind == CR_LOSS_BCE || config->data.multi_label;
}

bool cr_config_mixes(const struct cr_config *config) {
    return cr_config_mixes_labels(config) || config->data.erase > 0;
}

bool cr_config_has_image_files(const struct cr_config *config) {
    const enum cr_data_kind kind = config->data.kind;
    return kind == CR_DATA_FOLDER || kind == CR_DATA_CSV || kind == CR_DATA_TAR || kind == CR_DATA_PACKED;
}

bool cr_config_is_small(const struct cr_config *config) {
    if (config->model.stem != CR_STEM_AUTO) return config->model.stem == CR_STEM_CIFAR;
    if (config->model.arch == CR_ARCH_CUSTOM) return !cr_config_has_image_files(config);
    return config->model.arch >= CR_ARCH_RESNET20; /* config.def lists the networks for ImageNet first */
}

/* ---- data.image_sizes ---- */

enum { SIZE_MAX_PIXELS = 4096, EPOCH_MAX = 1000000 };

/* Reads a whole number from 0 to `most` at *at, and moves *at behind it. */
static bool read_number(const char **at, long most, long *out) {
    char *end;
    if (**at < '0' || **at > '9') return false;
    *out = strtol(*at, &end, 10);
    *at  = end;
    return *out <= most;
}

static const char *skip_blanks(const char *at) {
    return at + strspn(at, " \t");
}

bool cr_config_sizes(const struct cr_config *config, struct cr_size_schedule *out) {
    const char *at = skip_blanks(config->data.image_sizes);
    *out           = (struct cr_size_schedule){0};
    while (*at) {
        long size, epoch;
        if (out->count == CR_SIZES_MAX || !read_number(&at, SIZE_MAX_PIXELS, &size) || *at++ != '@') return false;
        if (!read_number(&at, EPOCH_MAX, &epoch) || size < 1) return false;
        if (out->count ? epoch <= out->epoch[out->count - 1] : epoch != 0) return false;
        out->size[out->count]    = (int)size;
        out->epoch[out->count++] = epoch;
        at                       = skip_blanks(at);
        if (*at && *at != ',') return false;
        if (*at && !*(at = skip_blanks(at + 1))) return false; /* a comma at the end */
    }
    return true;
}

int cr_size_index(const struct cr_size_schedule *sizes, int64_t epoch) {
    int k = 0;
    while (k + 1 < sizes->count && sizes->epoch[k + 1] <= epoch) k++;
    return k;
}

int cr_size_largest(const struct cr_size_schedule *sizes) {
    int largest = 0;
    for (int k = 1; k < sizes->count; k++)
        if (sizes->size[k] > sizes->size[largest]) largest = k;
    return largest;
}
