/* tests/unit/data/test_cifar.c: the dataset formats CIFAR-10 and CIFAR-100: layout, counts and names against published
 * values, and error messages. */
#include "tests/harness/datasets_support.h"

#include "data/source.h"

TEST(cifar_records_become_nhwc) {
    uint8_t bytes[2 * RECORD100], pixels[2 * 3072];
    int32_t labels[2];
    fill_record(bytes, 2, 19, 7);
    fill_record(bytes + RECORD100, 2, 0, 99);
    REQUIRE_OK(cr_cifar_parse(bytes, sizeof bytes, 2, "train.bin", 0, pixels, labels));
    CHECK_INT(labels[0], 7);
    CHECK_INT(labels[1], 99);
    for (int p = 0; p < 1024; p++)
        for (int c = 0; c < 3; c++) CHECK_INT(pixels[3072 + p * 3 + c], (uint8_t)(p * (c + 1) + 99));
    bytes[RECORD100 + 1] = 100;
    CHECK_STATUS(cr_cifar_parse(bytes, sizeof bytes, 2, "train.bin", 40, pixels, labels), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "train.bin: record 41 has label 100, must be 0 to 99");
    bytes[RECORD100 + 1] = 3, bytes[0] = 20;
    CHECK_STATUS(cr_cifar_parse(bytes, sizeof bytes, 2, "train.bin", 40, pixels, labels), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "record 40 has label 20, must be 0 to 19");
    CHECK_STATUS(cr_cifar_parse(bytes, RECORD + 5, 1, "x.bin", 0, pixels, labels), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "x.bin: cut off inside record 1");
}

/* A file of zero records with the given one at the end; sparse on the disk. */
TEST(cifar10_folder_is_found_and_checked) {
    char name[64];
    folder_open();
    CHECK_REFUSED(CR_ERR_CONFIG, "test_batch.bin", "fetch-cifar10.sh", CR_SPLIT_VAL, "data.kind=cifar10",
                  root_is(tmp_path));
    put_cifar(tmp_path, "cifar-10-batches-bin/test_batch.bin", 10000, 1, 9);
    struct cr_dataset *set;
    REQUIRE_OK(OPEN(CR_SPLIT_VAL, &set, "data.kind=cifar10", root_is(tmp_path)));
    CHECK_INT(set->count, 10000);
    CHECK_INT(set->classes, 10);
    CHECK_STR(set->class_names[9], "truck"); /* built in: there is no batches.meta.txt */
    cr_dataset_sample_name(set, 117, name, sizeof name);
    CHECK_STR(name, "test_batch.bin[117]");
    struct cr_image image;
    int32_t         label;
    REQUIRE_OK(cr_dataset_get(set, 9999, &image, &label));
    CHECK_INT(label, 9);
    CHECK_INT(image.rgb[3 * 5 + 1], 5 * 2 + 9);
    cr_image_free(&image);
    cr_dataset_close(set);
    put_text(tmp_path, "cifar-10-batches-bin/batches.meta.txt", "a\r\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n");
    REQUIRE_OK(OPEN(CR_SPLIT_VAL, &set, "data.kind=cifar10", root_is(tmp_path)));
    CHECK_STR(set->class_names[0], "a");
    cr_dataset_close(set);
    put_text(tmp_path, "cifar-10-batches-bin/batches.meta.txt", "a\nb\n");
    CHECK_REFUSED(CR_ERR_FORMAT, "batches.meta.txt", "2 class names, must be 10", CR_SPLIT_VAL, "data.kind=cifar10",
                  root_is(tmp_path));
    put_text(tmp_path, "cifar-10-batches-bin/batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n");
    put_cifar(tmp_path, "cifar-10-batches-bin/test_batch.bin", 9999, 1, 0);
    CHECK_REFUSED(CR_ERR_FORMAT, "test_batch.bin", "must be 30730000", CR_SPLIT_VAL, "data.kind=cifar10",
                  root_is(tmp_path));
    put_cifar(tmp_path, "cifar-10-batches-bin/test_batch.bin", 10000, 1, 10);
    CHECK_REFUSED(CR_ERR_FORMAT, "record 9999", "label 10", CR_SPLIT_VAL, "data.kind=cifar10", root_is(tmp_path));
    CHECK_REFUSED(CR_ERR_CONFIG, "data", "root", CR_SPLIT_VAL, "data.kind=cifar10", "data.root=/nonexistent");
    folder_open();
    put_text(tmp_path, "data_batch_1", "pickle");
    CHECK_REFUSED(CR_ERR_CONFIG, "Python version", "fetch-cifar10.sh", CR_SPLIT_TRAIN, "data.kind=cifar10",
                  root_is(tmp_path));
}

TEST(cifar100_reads_fine_labels) {
    folder_open();
    put_cifar(tmp_path, "cifar-100-binary/test.bin", 10000, 2, 42);
    OWNED(dataset) set = NULL;
    REQUIRE_OK(OPEN(CR_SPLIT_VAL, &set, "data.kind=cifar100", root_is(tmp_path)));
    CHECK_INT(set->classes, 100);
    CHECK_STR(set->class_names[0], "apple");
    CHECK_STR(set->class_names[99], "worm");
    for (int c = 1; c < 100; c++) CHECK(strcmp(set->class_names[c - 1], set->class_names[c]) < 0);
    OWNED(image) image = {0};
    int32_t      label;
    REQUIRE_OK(cr_dataset_get(set, 9999, &image, &label));
    CHECK_INT(label, 42);
}

/* The real dataset: counts by class and batch, first bytes, mean and standard deviation as published in the README of
 * the data. */
TEST(cifar10_matches_the_published_data) {
    static const int by_batch[5][10] = {{1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981},
                                        {984, 1007, 1010, 995, 1010, 988, 1008, 1026, 987, 985},
                                        {994, 1042, 965, 997, 990, 1029, 978, 1015, 961, 1029},
                                        {1003, 963, 1041, 976, 1004, 1021, 1004, 981, 1024, 983},
                                        {1014, 1014, 952, 1016, 997, 1025, 980, 977, 1003, 1022}};
    if (!test_data_dir()) SKIP("CRESNET_TEST_DATA is not set");
    const char *path = formatted("%s/cifar10/data_batch_1.bin", test_data_dir());
    if (access(path, R_OK) != 0) SKIP("no unpacked cifar10 in CRESNET_TEST_DATA");
    path               = formatted("%s/cifar10", test_data_dir());
    OWNED(dataset) set = NULL;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=cifar10", root_is(path)));
    REQUIRE(set->count == 50000);
    int         counts[5][10] = {{0}};
    double      sum[3] = {0}, square[3] = {0};
    OWNED(text) text = {0};
    for (int64_t i = 0; i < 50000; i++) {
        OWNED(image) image = {0};
        int32_t      label;
        REQUIRE_OK(cr_dataset_get(set, i, &image, &label));
        counts[i / 10000][label]++;
        if (i == 0) CHECK(label == 6 && image.rgb[0] == 0x3b && image.rgb[3] == 0x2b && image.rgb[6] == 0x32);
        int64_t s[3] = {0}, q[3] = {0};
        for (int p = 0; p < 3072; p++) s[p % 3] += image.rgb[p], q[p % 3] += image.rgb[p] * image.rgb[p];
        for (int c = 0; c < 3; c++) sum[c] += (double)s[c], square[c] += (double)q[c];
    }
    CHECK(!memcmp(counts, by_batch, sizeof counts));
    static const double mean[3] = {0.491400, 0.482158, 0.446531}, deviation[3] = {0.247032, 0.243485, 0.261588};
    for (int c = 0; c < 3; c++) {
        double m = sum[c] / 51.2e6 / 255, v = square[c] / 51.2e6 / 255 / 255 - m * m;
        CHECK_NEAR(m, mean[c], 1e-6);
        CHECK_NEAR(sqrt(v), deviation[c], 1e-6);
    }
    cr_dataset_describe(set, &text);
    CHECK_STR(text.data, "50000 images, 10 classes, 5000 per class");
    CHECK_STR(set->class_names[6], "frog");
}
