/* data/source/packed.c: a packed dataset (data/pack.h) as a dataset: data.root holds train.crpk and val.crpk, which
 * `cresnet data pack` has written. Images are read directly from the mapped file. */
#include "data/class_match.h"
#include "data/decode.h"
#include "data/pack.h"
#include "data/scratch.h"
#include "data/source.h"

#include <stdio.h>
#include <unistd.h>

static const char *const file_names[] = {CR_PACK_TRAIN_NAME, CR_PACK_VAL_NAME};

static void packed_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size) {
    const struct cr_pack *pack = dataset->state;
    snprintf(buf, size, "%s[%lld]", pack->name, (long long)sample);
}

static cr_status packed_fetch(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                              struct cr_stored *out) {
    const struct cr_pack *pack = dataset->state;
    struct cr_pack_entry  entry;
    const uint8_t        *bytes;
    char                  name[CR_SAMPLE_NAME_BYTES];
    (void)scratch;
    CR_TRY(cr_pack_read(pack, sample, &entry, &bytes));
    out->verified = true;
    if (pack->form == CR_PACK_RAW) {
        packed_name(dataset, sample, name, sizeof name);
        CR_TRY(cr_image_check_sides(out, entry.width, entry.height, name));
        out->pixels = (struct cr_image){entry.width, entry.height, (uint8_t *)(uintptr_t)bytes,
                                        /* never written */ pack->format};
    } else {
        out->bytes = bytes;
        out->count = entry.bytes;
    }
    return CR_OK;
}

static int32_t packed_label(const struct cr_dataset *dataset, int64_t sample) {
    return cr_pack_entry(dataset->state, sample).label;
}

static void packed_close(struct cr_dataset *dataset) {
    cr_pack_close(dataset->state);
}

static cr_status packed_check(const struct cr_dataset *dataset) {
    return cr_pack_check(dataset->state);
}

/* The index has a checksum of each image: nothing is read from the disk. */
static uint64_t packed_digest(const struct cr_dataset *dataset, int64_t sample, uint8_t *head) {
    const struct cr_pack_entry entry   = cr_pack_entry(dataset->state, sample);
    const uint32_t             image[] = {entry.crc, dataset->exif};
    (void)head;
    return cr_hash_sample(entry.bytes, entry.label, image, sizeof image);
}

static const struct cr_dataset_ops packed_ops = {packed_fetch, packed_name,   packed_label,
                                                 packed_close, packed_digest, packed_check};

static cr_status set_from_pack(struct cr_dataset *dataset, const struct cr_pack *pack) {
    uint64_t hash    = CR_HASH_START;
    dataset->count   = pack->count;
    dataset->classes = pack->classes;
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_names, (size_t)dataset->classes);
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_counts, (size_t)dataset->classes);
    for (int c = 0; c < dataset->classes; c++) dataset->class_names[c] = pack->class_names[c];
    for (int64_t i = 0; i < dataset->count; i++) {
        struct cr_pack_entry entry = cr_pack_entry(pack, i);
        dataset->class_counts[entry.label]++;
        hash = cr_hash_mix(hash ^ ((uint64_t)(uint32_t)entry.label << 32 | entry.crc));
    }
    dataset->fingerprint = hash;
    return CR_OK;
}

/* Training and validation must have the same classes. The labels of validation are those of training. */
static cr_status match_other(struct cr_dataset *dataset, const struct cr_pack *pack, const char *other_path,
                             enum cr_split split) {
    struct cr_pack       *other;
    struct cr_class_match match;
    CR_TRY(cr_pack_open(other_path, &other));
    cr_status status =
        cr_class_match(dataset->class_names, dataset->classes, other->class_names, other->classes, false, &match);
    if (status == CR_OK && match.relation == CR_CLASSES_OTHER)
        status =
            CR_FAIL(CR_ERR_FORMAT, "%s and %s have different classes: write both with one call of cresnet data pack",
                    pack->name, other_path);
    else if (status == CR_OK && match.relation == CR_CLASSES_PERMUTED && split == CR_SPLIT_VAL)
        status = cr_dataset_renumber(dataset, match.to);
    cr_class_match_free(&match);
    cr_pack_close(other);
    return status;
}

cr_status cr_packed_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    char            path[PATH_MAX], other[PATH_MAX];
    struct cr_pack *pack;
    CR_TRY(cr_path_format(path, "%s/%s", config->data.root, file_names[split]));
    CR_TRY(cr_path_format(other, "%s/%s", config->data.root, file_names[split == CR_SPLIT_TRAIN]));
    if (access(path, F_OK) != 0)
        return cr_config_fail(config, "data.root",
                              "%s does not exist: set data.root to the folder that cresnet data pack or a script "
                              "datasets/fetch-*.sh has written",
                              path);
    CR_TRY(cr_pack_open(path, &pack));
    dataset->state    = pack;
    dataset->ops      = &packed_ops;
    dataset->one_file = true;
    CR_TRY(set_from_pack(dataset, pack));
    if (pack->form == CR_PACK_RAW && pack->format != dataset->format)
        return cr_config_fail(config, "data.channels",
                              "with data.bits = %d does not fit %s, whose pixels were packed with channels = %d and "
                              "bits = %d: set both keys to these, or pack the images again",
                              (int)config->data.bits, path, cr_format_channels(pack->format),
                              cr_format_bits(pack->format));
    /* A set that an older version packed stays as it was: runs that were trained on it see the same images. */
    const bool exif = pack->flags & CR_PACK_EXIF;
    dataset->exif   = config->data.exif && exif && pack->form == CR_PACK_ENCODED;
    if (!config->data.exif && exif && pack->form == CR_PACK_RAW)
        cr_log(CR_LOG_WARN,
               "%s: the EXIF orientation was applied when its pixels were packed: data.exif = no has "
               "no effect",
               path);
    return access(other, F_OK) == 0 ? match_other(dataset, pack, other, split) : CR_OK;
}
