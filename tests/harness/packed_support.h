/* tests/harness/packed_support.h: helpers of the packed dataset tests: an image folder, opened and packed. */
#ifndef CR_TEST_PACK_SUPPORT_H
#define CR_TEST_PACK_SUPPORT_H

#include "tests/harness/data_support.h"

#include "core/files.h"
#include "data/pack.h"

static const char *const jpegs[] = {"rgb.jpg",  "rgb-422.jpg",         "l.jpg",
                                    "cmyk.jpg", "rgb-progressive.jpg", "rgb-444.jpg"};

/* Writes train/ and val/ with two classes of JPEG and PNG files. */
static inline void write_set(const char *folder) {
    char path[SUPPORT_PATH], name[128];
    for (int i = 0; i < 12; i++) {
        size_t   count;
        uint8_t *bytes = read_bytes(text_into(path, GOLDEN "%s", jpegs[i % 6]), &count);
        text_into(path, "%s/%s/%s/%02d.jpg", folder, i % 3 ? "train" : "val", i % 2 ? "cat" : "dog", i);
        make_parents(path);
        write_bytes(path, bytes, count);
        cr_free(bytes);
        snprintf(name, sizeof name, "%s/%s/p%02d.png", i % 3 ? "train" : "val", i % 2 ? "cat" : "dog", i);
        put_image(folder, name, 20 + i, 17, 10 * i);
    }
}

static inline cr_status open_split(struct cr_dataset **set, enum cr_split split, const char *const *overrides) {
    const struct cr_config *config;
    CR_TRY(make_config_(&config, overrides));
    cr_status status = cr_dataset_open(config, split, set);
    cr_config_close(config);
    return status;
}
#define OPEN(split, set, ...) open_split((set), (split), (const char *const[]){__VA_ARGS__, NULL})

static inline cr_status pack_set(const char *folder, const char *out, enum cr_split split, int raw, int workers,
                                 struct cr_pack_result *result) {
    struct cr_pack_options options = {.raw_side = raw, .workers = workers};
    struct cr_dataset     *set;
    char                   root[SUPPORT_PATH], path[SUPPORT_PATH];
    CR_TRY(OPEN(split, &set, "data.kind=folder", root_is(folder, root)));
    text_into(path, "%s/%s", out, split == CR_SPLIT_TRAIN ? CR_PACK_TRAIN_NAME : CR_PACK_VAL_NAME);
    cr_status status = cr_pack_dataset(set, path, &options, result);
    cr_dataset_close(set);
    return status;
}

/* Packs both splits of a new dataset into folder/packed. */
static inline void make_pack(char folder[SUPPORT_PATH], char packed[SUPPORT_PATH], int raw, int workers) {
    struct cr_pack_result result;
    make_folder(folder);
    write_set(folder);
    text_into(packed, "%s/packed", folder);
    mkdir(packed, 0777);
    REQUIRE_OK(pack_set(folder, packed, CR_SPLIT_TRAIN, raw, workers, &result));
    CHECK(result.images == 16 && result.skipped == 0 && result.bytes > 1000);
    REQUIRE_OK(pack_set(folder, packed, CR_SPLIT_VAL, raw, workers, &result));
    CHECK_INT(result.images, 8);
}

#endif
