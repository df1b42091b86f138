/* tests/harness/packed_support.h: helpers of the packed dataset tests: an image folder, opened and packed. */
#ifndef CR_TEST_PACK_SUPPORT_H
#define CR_TEST_PACK_SUPPORT_H

#include "tests/harness/data_support.h"

#include "data/pack.h"

OWNABLE(pack, struct cr_pack *, cr_pack_close(*x))

static const char *const jpegs[] = {"rgb.jpg",  "rgb-422.jpg",         "l.jpg",
                                    "cmyk.jpg", "rgb-progressive.jpg", "rgb-444.jpg"};

/* Writes train/ and val/ with two classes of JPEG and PNG files to a new folder. */
static inline void write_set(void) {
    folder_open();
    for (int i = 0; i < 12; i++) {
        put_golden(in_folder("%s/%s/%02d.jpg", i % 3 ? "train" : "val", i % 2 ? "cat" : "dog", i), jpegs[i % 6]);
        put_image(tmp_path, formatted("%s/%s/p%02d.png", i % 3 ? "train" : "val", i % 2 ? "cat" : "dog", i), 20 + i, 17,
                  10 * i);
    }
}

static inline cr_status pack_set(enum cr_split split, int raw, int workers, struct cr_pack_result *result) {
    struct cr_pack_options options = {.raw_side = raw, .workers = workers};
    OWNED(dataset)         set     = NULL;
    CR_TRY(OPEN(split, &set, FOLDER_SET));
    return cr_pack_dataset(set, in_folder("packed/%s", split == CR_SPLIT_TRAIN ? CR_PACK_TRAIN_NAME : CR_PACK_VAL_NAME),
                           &options, result);
}

/* Packs both splits of a new dataset into tmp_path/packed. */
static inline void make_pack(int raw, int workers) {
    struct cr_pack_result result;
    write_set();
    mkdir(in_folder("packed"), 0777);
    REQUIRE_OK(pack_set(CR_SPLIT_TRAIN, raw, workers, &result));
    CHECK(result.images == 16 && result.skipped == 0 && result.bytes > 1000);
    REQUIRE_OK(pack_set(CR_SPLIT_VAL, raw, workers, &result));
    CHECK_INT(result.images, 8);
}
static inline cr_status open_packed(enum cr_split split, struct cr_dataset **set) {
    return OPEN(split, set, "data.kind=packed", root_is(in_folder("packed")));
}

#endif
