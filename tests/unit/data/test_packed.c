/* tests/unit/data/test_packed.c: a packed dataset has the content of the folder, for any number of packing threads.
 * Invalid packed files: tests/unit/data/test_packed_corrupt.c. */
#include "tests/harness/packed_support.h"

static void packed_images_match_the_files(void) {
    char folder[SUPPORT_PATH], packed[SUPPORT_PATH], root[SUPPORT_PATH], packed_root[SUPPORT_PATH], name[SUPPORT_PATH];
    make_pack(folder, packed, 0, 3);
    for (int split = 0; split < 2; split++) {
        struct cr_dataset *a, *b;
        REQUIRE_OK(OPEN((enum cr_split)split, &a, "data.kind=folder", root_is(folder, root)));
        REQUIRE_OK(OPEN((enum cr_split)split, &b, "data.kind=packed", root_is(packed, packed_root)));
        REQUIRE(cr_dataset_count(a) == cr_dataset_count(b) && cr_dataset_classes(b) == 2);
        CHECK_STR(cr_dataset_class_name(b, 0), "cat");
        CHECK_STR(cr_dataset_class_name(b, 1), "dog");
        for (int64_t i = 0; i < cr_dataset_count(a); i++) {
            struct cr_image x, y;
            int32_t         label_x, label_y;
            REQUIRE_OK(cr_dataset_get(a, i, &x, &label_x));
            REQUIRE_OK(cr_dataset_get(b, i, &y, &label_y));
            CHECK(label_x == label_y && x.width == y.width && x.height == y.height);
            CHECK(!memcmp(x.rgb, y.rgb, (size_t)x.width * x.height * 3));
            cr_image_free(&x);
            cr_image_free(&y);
        }
        cr_dataset_sample_name(b, 3, name, sizeof name);
        CHECK_HAS(name, split ? "packed/val.crpk[3]" : "packed/train.crpk[3]");
        cr_dataset_close(a);
        cr_dataset_close(b);
    }
    drop_folder(folder);
}

/* The number of packing threads changes no byte, and packing a packed dataset gives the same file again. */
static void packing_is_deterministic(void) {
    char   folder[SUPPORT_PATH], packed[SUPPORT_PATH], again[SUPPORT_PATH], root[SUPPORT_PATH], path[SUPPORT_PATH];
    size_t count, count_again;
    make_pack(folder, packed, 0, 1);
    uint8_t              *bytes = read_bytes(text_into(path, "%s/train.crpk", packed), &count);
    struct cr_pack_result result;
    REQUIRE_OK(pack_set(folder, packed, CR_SPLIT_TRAIN, 0, 4, &result)); /* replaces the first one */
    uint8_t *other = read_bytes(path, &count_again);
    CHECK(count == count_again && !memcmp(bytes, other, count));
    cr_free(other);
    struct cr_dataset     *set;
    struct cr_pack_options options = {.workers = 2};
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed", root_is(packed, root)));
    REQUIRE_OK(cr_pack_dataset(set, text_into(again, "%s/again.crpk", folder), &options, &result));
    cr_dataset_close(set);
    other = read_bytes(again, &count_again);
    CHECK(count == count_again && !memcmp(bytes, other, count));
    cr_free(other);
    cr_free(bytes);
    drop_folder(folder);
}

/* Raw: evaluation gets the same pixels as from the files, and a small image stays unchanged. */
static void raw_images_prepare_as_the_files(void) {
    char folder[SUPPORT_PATH], packed[SUPPORT_PATH], root[SUPPORT_PATH], packed_root[SUPPORT_PATH];
    make_pack(folder, packed, 18, 2);
    struct cr_prepare  prep = {.size = 14, .eval_resize = 18};
    struct cr_dataset *a, *b;
    int                reduced = 0, kept = 0;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &a, "data.kind=folder", root_is(folder, root)));
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &b, "data.kind=packed", root_is(packed, packed_root)));
    for (int64_t i = 0; i < cr_dataset_count(a); i++) {
        struct cr_image x, y;
        int32_t         label;
        uint8_t         from_x[14 * 14 * 3], from_y[14 * 14 * 3];
        REQUIRE_OK(cr_dataset_get(a, i, &x, &label));
        REQUIRE_OK(cr_dataset_get(b, i, &y, &label));
        int shorter = CR_MIN(x.width, x.height);
        CHECK_INT(CR_MIN(y.width, y.height), CR_MIN(shorter, 18));
        shorter > 18 ? reduced++ : kept++;
        REQUIRE_OK(cr_prepare_eval(&prep, &x, from_x));
        REQUIRE_OK(cr_prepare_eval(&prep, &y, from_y));
        CHECK(!memcmp(from_x, from_y, sizeof from_x));
        cr_image_free(&x);
        cr_image_free(&y);
    }
    CHECK(reduced > 4 && kept > 4);
    cr_dataset_close(a);
    cr_dataset_close(b);
    drop_folder(folder);
}

/* A dataset of pixels without files is packed as pixels. */
static void datasets_without_files_are_packed_raw(void) {
    char folder[SUPPORT_PATH], root[SUPPORT_PATH], path[SUPPORT_PATH];
    make_folder(folder);
    struct cr_dataset     *a, *b;
    struct cr_pack_options options = {.workers = 2};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &a, "data.kind=synthetic", "data.train_images=700"));
    REQUIRE_OK(cr_pack_dataset(a, text_into(path, "%s/train.crpk", folder), &options, &result));
    CHECK_INT(result.images, 700);
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &b, "data.kind=packed", root_is(folder, root)));
    for (int64_t i = 0; i < 700; i += 13) {
        struct cr_image x, y;
        int32_t         label_x, label_y;
        REQUIRE_OK(cr_dataset_get(a, i, &x, &label_x));
        REQUIRE_OK(cr_dataset_get(b, i, &y, &label_y));
        CHECK(label_x == label_y && x.width == y.width && !memcmp(x.rgb, y.rgb, (size_t)x.width * x.height * 3));
        cr_image_free(&x);
        cr_image_free(&y);
    }
    cr_dataset_close(a);
    cr_dataset_close(b);
    drop_folder(folder);
}

static void unreadable_images_are_skipped(void) {
    char folder[SUPPORT_PATH], out[SUPPORT_PATH], path[SUPPORT_PATH], root[SUPPORT_PATH];
    make_folder(folder);
    write_set(folder);
    size_t   count;
    uint8_t *jpeg = read_bytes(GOLDEN "rgb.jpg", &count);
    text_into(path, "%s/train/cat/cut.jpg", folder);
    write_bytes(path, jpeg, count - 40); /* damage near the end: only decoding to the end finds it */
    cr_free(jpeg);
    struct cr_dataset     *set;
    struct cr_pack_options options = {.workers = 2};
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=folder", root_is(folder, root)));
    cr_log_quiet(true);
    REQUIRE_OK(cr_pack_dataset(set, text_into(out, "%s/train.crpk", folder), &options, &result));
    cr_log_quiet(false);
    CHECK(result.images == 16 && result.skipped == 1);
    options.corrupt_fatal = true;
    text_into(out, "%s/fatal.crpk", folder);
    CHECK_STATUS(cr_pack_dataset(set, out, &options, &result), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "train/cat/cut.jpg");
    CHECK(access(out, F_OK) != 0);
    cr_dataset_close(set);
    drop_folder(folder);
}

TESTS(CASE(packed_images_match_the_files), CASE(packing_is_deterministic), CASE(raw_images_prepare_as_the_files),
      CASE(datasets_without_files_are_packed_raw), CASE(unreadable_images_are_skipped))
