/* data/dataset.c: opens a dataset of any format ([data] kind), with the functions that all datasets share. */
#include "data/decode.h"
#include "data/scratch.h"
#include "data/source.h"

#include <string.h>

enum { CONTENTS_SAMPLES = 64 };

enum cr_pixel_format cr_format_of(const struct cr_config *config) {
    const bool wide = config->data.bits == 16;
    switch (config->data.channels) {
    case 1: return wide ? CR_GREY16 : CR_GREY8;
    case 4: return wide ? CR_RGBA16 : CR_RGBA8;
    default: return wide ? CR_RGB16 : CR_RGB8;
    }
}

static cr_status open_kind(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    switch (config->data.kind) {
    case CR_DATA_SHAPES: return cr_shapes_open(config, split, dataset);
    case CR_DATA_CIFAR10:
    case CR_DATA_CIFAR100: return cr_cifar_open(config, split, dataset);
    case CR_DATA_FOLDER:
        if (!config->data.root[0])
            return cr_config_fail(config, "data.root",
                                  "is empty: name the folder that holds train/ and val/, or one "
                                  "folder of images for each class");
        return cr_folder_open(config, split, config->data.root, dataset);
    case CR_DATA_CSV: return cr_csv_open(config, split, dataset);
    case CR_DATA_TAR: return cr_tar_open(config, split, dataset);
    case CR_DATA_PACKED: return cr_packed_open(config, split, dataset);
    case CR_DATA_SYNTHETIC: return cr_synthetic_open(config, split, dataset);
    }
    return CR_FAIL(CR_ERR_CONFIG, "[data] kind: unknown value %d", (int)config->data.kind);
}

cr_status cr_dataset_alloc_logged(struct cr_dataset *dataset) {
    CR_ARENA_ALLOC(&dataset->arena, dataset->logged, (size_t)dataset->count / 8 + 1);
    return CR_OK;
}

cr_status cr_dataset_open(const struct cr_config *config, enum cr_split split, struct cr_dataset **out) {
    struct cr_dataset *dataset;
    CR_ALLOC(dataset, 1);
    dataset->format     = cr_format_of(config);
    dataset->max_pixels = config->data.max_pixels;
    cr_status status    = open_kind(config, split, dataset);
    if (status == CR_OK) status = cr_dataset_edit(config, split, dataset);
    if (status == CR_OK) status = cr_dataset_alloc_logged(dataset);
    if (status != CR_OK) cr_dataset_close(dataset);
    CR_TRY(status);
    /* Count, classes and class names are hashed for all formats; each format adds what distinguishes its datasets
     * otherwise. */
    uint64_t hash = cr_hash_bytes(dataset->fingerprint ^ CR_HASH_START, &dataset->count, sizeof dataset->count);
    for (int c = 0; c < dataset->classes; c++)
        hash = cr_hash_bytes(hash, dataset->class_names[c], strlen(dataset->class_names[c]) + 1);
    dataset->fingerprint = cr_hash_mix(hash);
    *out                 = dataset;
    return CR_OK;
}

void cr_dataset_close(struct cr_dataset *dataset) {
    if (!dataset) return;
    if (dataset->ops) dataset->ops->close(dataset);
    cr_arena_free(&dataset->arena);
    cr_free(dataset);
}

cr_status cr_dataset_check_used(const struct cr_dataset *dataset, cr_status status) {
    if (dataset->ops->check) CR_TRY(dataset->ops->check(dataset));
    return status;
}

bool cr_dataset_is_corrupt(const struct cr_dataset *dataset, cr_status status) {
    return status == CR_ERR_FORMAT || (status == CR_ERR_IO && !dataset->one_file);
}

int cr_dataset_class_of(const struct cr_dataset *dataset, const char *name) {
    int k = dataset->classes;
    while (--k >= 0 && strcmp(dataset->class_names[k], name) != 0) {
    }
    return k;
}

const int32_t *cr_dataset_labels(const struct cr_dataset *dataset, int64_t sample) {
    return dataset->label_rows ? dataset->label_rows + sample * dataset->label_words : NULL;
}

int cr_dataset_label_words(const struct cr_dataset *dataset) {
    return dataset->label_rows ? dataset->label_words : 1;
}

void cr_dataset_sample_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size) {
    dataset->ops->name(dataset, cr_dataset_stored_as(dataset, sample), buf, size);
}

int64_t cr_dataset_stored_as(const struct cr_dataset *dataset, int64_t sample) {
    CR_ASSERT(sample >= 0 && sample < dataset->count);
    return dataset->kept ? dataset->kept[sample] : sample;
}

cr_status cr_dataset_view(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                          struct cr_stored *stored, struct cr_image *view, int32_t *label) {
    struct cr_lazy_image lazy;
    char                 name[CR_SAMPLE_NAME_BYTES];
    cr_dataset_sample_name(dataset, sample, name, sizeof name);
    CR_TRY(cr_dataset_fetch(dataset, sample, scratch, stored, label));
    cr_status status = cr_lazy_image_open(stored, name, scratch, &lazy);
    if (status == CR_OK) status = cr_lazy_image_whole(&lazy, scratch, view);
    return cr_dataset_check_used(dataset, status);
}

cr_status cr_dataset_get(const struct cr_dataset *dataset, int64_t sample, struct cr_image *out, int32_t *label) {
    struct cr_scratch scratch = {0};
    struct cr_stored  stored;
    struct cr_image   copy;
    int32_t           found;
    cr_status         status;
    CR_TRY_OUT(cr_dataset_view(dataset, sample, &scratch, &stored, &copy, &found));
    if (copy.rgb == scratch.pixels.bytes) {
        scratch.pixels.bytes = NULL; /* the caller owns it now */
    } else {
        size_t         bytes = (size_t)copy.width * (size_t)copy.height * cr_format_bytes(copy.format);
        const uint8_t *rgb   = copy.rgb;
        CR_ALLOC_OUT(copy.rgb, bytes);
        memcpy(copy.rgb, rgb, bytes);
    }
    *out   = copy;
    *label = found;
out:
    cr_scratch_free(&scratch);
    return status;
}

void cr_dataset_describe(const struct cr_dataset *dataset, struct cr_text *out) {
    cr_text_add(out, "%lld images, %d classes", (long long)dataset->count, dataset->classes);
    if (!dataset->class_counts) return;
    int64_t low = INT64_MAX, high = 0;
    for (int c = 0; c < dataset->classes; c++) {
        low  = CR_MIN(low, dataset->class_counts[c]);
        high = CR_MAX(high, dataset->class_counts[c]);
    }
    if (low == high)
        cr_text_add(out, ", %lld per class", (long long)low);
    else
        cr_text_add(out, ", %lld-%lld per class", (long long)low, (long long)high);
}

cr_status cr_dataset_contents(const struct cr_dataset *dataset, uint64_t *out) {
    const int64_t samples = CR_MIN(dataset->count, CONTENTS_SAMPLES);
    uint64_t      hash    = CR_HASH_START;
    uint8_t      *head;
    *out = 0;
    if (!dataset->ops->digest || dataset->generated) return CR_OK;
    CR_ALLOC(head, CR_DIGEST_BYTES);
    bool known = true;
    for (int64_t i = 0; known && i < samples; i++) { /* the last image is always one of them */
        const int64_t sample = cr_dataset_stored_as(dataset, ((i + 1) * dataset->count - 1) / samples);
        uint64_t      digest = dataset->ops->digest(dataset, sample, head);
        if (!digest) digest = dataset->ops->digest(dataset, sample, head); /* network file systems fail now and then */
        hash  = cr_hash_mix(hash ^ digest) + 1;
        known = digest != 0;
    }
    cr_free(head);
    *out = !known ? 0 : hash ? hash : 1;
    return CR_OK;
}
