/* tests/unit/data/test_packed.c: a packed dataset has the content of the folder.
 * Invalid packed files: tests/unit/data/test_packed_corrupt.c. */
#include "tests/harness/packed_support.h"

TEST(packed_images_match_the_files) {
    char name[SUPPORT_PATH];
    make_pack(0, 3);
    for (int split = 0; split < 2; split++) {
        OWNED(dataset) a = NULL, b = NULL;
        REQUIRE_OK(OPEN((enum cr_split)split, &a, FOLDER_SET));
        REQUIRE_OK(open_packed((enum cr_split)split, &b));
        REQUIRE(a->count == b->count && b->classes == 2);
        CHECK_STR(b->class_names[0], "cat");
        CHECK_STR(b->class_names[1], "dog");
        for (int64_t i = 0; i < a->count; i++) {
            OWNED(image) x = {0}, y = {0};
            int32_t      label_x, label_y;
            REQUIRE_OK(cr_dataset_get(a, i, &x, &label_x));
            REQUIRE_OK(cr_dataset_get(b, i, &y, &label_y));
            CHECK(label_x == label_y && x.width == y.width && x.height == y.height);
            CHECK(!memcmp(x.rgb, y.rgb, (size_t)x.width * x.height * 3));
        }
        cr_dataset_sample_name(b, 3, name, sizeof name);
        CHECK_HAS(name, split ? "packed/val.crpk[3]" : "packed/train.crpk[3]");
    }
}

/* Raw: evaluation gets the same pixels as from the files, and a small image stays unchanged. */
TEST(raw_images_prepare_as_the_files) {
    make_pack(18, 2);
    struct cr_prepare prep = {.size = 14, .eval_resize = 18};
    OWNED(dataset)    a = NULL, b = NULL;
    int               reduced = 0, kept = 0;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &a, FOLDER_SET));
    REQUIRE_OK(open_packed(CR_SPLIT_TRAIN, &b));
    for (int64_t i = 0; i < a->count; i++) {
        OWNED(image) x = {0}, y = {0};
        int32_t      label;
        uint8_t      from_x[14 * 14 * 3], from_y[14 * 14 * 3];
        REQUIRE_OK(cr_dataset_get(a, i, &x, &label));
        REQUIRE_OK(cr_dataset_get(b, i, &y, &label));
        int shorter = CR_MIN(x.width, x.height);
        CHECK_INT(CR_MIN(y.width, y.height), CR_MIN(shorter, 18));
        shorter > 18 ? reduced++ : kept++;
        REQUIRE_OK(cr_prepare_eval(&prep, &x, from_x));
        REQUIRE_OK(cr_prepare_eval(&prep, &y, from_y));
        CHECK(!memcmp(from_x, from_y, sizeof from_x));
    }
    CHECK(reduced > 4 && kept > 4);
}

TEST(datasets_without_files_are_packed_raw) {
    folder_open();
    OWNED(dataset)         a = NULL, b = NULL;
    struct cr_pack_options options = {.workers = 2};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &a, "data.kind=synthetic", "data.train_images=700"));
    REQUIRE_OK(cr_pack_dataset(a, in_folder("train.crpk"), &options, &result));
    CHECK_INT(result.images, 700);
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &b, "data.kind=packed", root_is(tmp_path)));
    for (int64_t i = 0; i < 700; i += 13) {
        OWNED(image) x = {0}, y = {0};
        int32_t      label_x, label_y;
        REQUIRE_OK(cr_dataset_get(a, i, &x, &label_x));
        REQUIRE_OK(cr_dataset_get(b, i, &y, &label_y));
        CHECK(label_x == label_y && x.width == y.width && !memcmp(x.rgb, y.rgb, (size_t)x.width * x.height * 3));
    }
}

TEST(unreadable_images_are_skipped) {
    write_set();
    size_t   count;
    uint8_t *jpeg = read_bytes(GOLDEN "rgb.jpg", &count);
    write_bytes(in_folder("train/cat/cut.jpg"), jpeg,
                count - 40); /* damage near the end: only decoding to the end finds it */
    cr_free(jpeg);
    OWNED(dataset)         set     = NULL;
    struct cr_pack_options options = {.workers = 2};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, FOLDER_SET));
    REQUIRE_OK(cr_pack_dataset(set, in_folder("train.crpk"), &options, &result));
    CHECK(result.images == 16 && result.skipped == 1);
    options.corrupt_fatal = true;
    CHECK_STATUS(cr_pack_dataset(set, in_folder("fatal.crpk"), &options, &result), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "train/cat/cut.jpg");
    CHECK(access(in_folder("fatal.crpk"), F_OK) != 0);
}
