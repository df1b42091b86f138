/* tests/unit/data/test_data_corrupt.c: images that cannot be read: skipped, replaced and counted, or named, independent
 * of the workers. */
#include "tests/harness/loader_support.h"

TEST(skipped_images_are_replaced_and_counted) {
    write_set();
    put_text(tmp_path, "a/007.png", "\x89PNG\r\n\x1a\n, and then nothing");
    put_text(tmp_path, "b/033.png", "");
    OWNED(dataset) set = NULL;
    REQUIRE_OK(open_folder(&set));
    uint64_t want = 0;
    for (int workers = 0; workers <= 4; workers += 2) {
        struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 20, workers);
        struct cr_loader        *loader;
        uint64_t                 sum = CR_HASH_START;
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        for (int epoch = 0; epoch < 3; epoch++) {
            int times[IMAGES] = {0}, twice = 0;
            for (int b = 0; b < 3; b++) {
                struct cr_batch batch;
                REQUIRE_OK(cr_loader_next(loader, &batch));
                for (int i = 0; i < 20; i++) {
                    CHECK_INT(batch.labels[i], sample_of(&batch, i) >= IMAGES / 2);
                    times[sample_of(&batch, i)]++;
                }
                sum = cr_hash_bytes(sum, batch.images, 20 * 192);
                cr_loader_release(loader, &batch);
            }
            CHECK(times[7] == 0 && times[33] == 0);
            for (int i = 0; i < IMAGES; i++) twice += times[i] == 2;
            CHECK_INT(twice, 2); /* the next readable images replace them */
        }
        CHECK_INT(cr_loader_corrupt(loader), 2); /* each counted once, however often it is read */
        cr_loader_close(loader);
        if (!workers) want = sum;
        CHECK(sum == want);
        options = plain_options(CR_SPLIT_VAL, 20, workers);
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        for (int b = 0; b < 3; b++) {
            struct cr_batch batch;
            REQUIRE_OK(cr_loader_next(loader, &batch));
            CHECK_INT(batch.count, 20);
            for (int i = 0; i < 20; i++) {
                int sample = b * 20 + i;
                CHECK_INT(batch.labels[i], sample == 7 || sample == 33 ? -1 : sample >= IMAGES / 2);
            }
            cr_loader_release(loader, &batch);
        }
        CHECK_INT(cr_loader_corrupt(loader), 2);
        cr_loader_close(loader);
    }
}

/* JPEGs, one of them truncated near its end: whether it counts as corrupt must not depend on the random crops, nor on
 * how long the loader has been running. */
TEST(truncated_image_is_corrupt_for_any_crop) {
    size_t   count;
    uint8_t *jpeg = read_bytes(GOLDEN "rgb.jpg", &count);
    REQUIRE(jpeg);
    folder_open();
    for (int i = 0; i < 20; i++) {
        const char *path = in_folder("%s/%02d.jpg", i < 10 ? "a" : "b", i);
        write_bytes(path, jpeg, i == 13 ? count - 60 : count);
    }
    cr_free(jpeg);
    OWNED(dataset) set = NULL;
    REQUIRE_OK(open_folder(&set));
    uint64_t want = 0;
    for (int workers = 0; workers <= 2; workers++) {
        struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 10, workers);
        struct cr_loader        *loader;
        struct cr_load_counts    counts;
        options.prepare = (struct cr_prepare){
            .size = 8, .crop = CR_CROP_RANDOM_RESIZED, .scale = {0.05, 0.2}, .ratio = {0.75, 1.33}, .hflip = 0.5};
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        uint64_t late = CR_HASH_START;
        for (int b = 0; b < 8; b++) {
            struct cr_batch batch;
            REQUIRE_OK(cr_loader_next(loader, &batch));
            if (b >= 6) late = sum_seen(late, &batch, 10, 8);
            cr_loader_release(loader, &batch);
        }
        CHECK_INT(cr_loader_corrupt(loader), 1);
        cr_loader_counts(loader, &counts);
        CHECK(counts.images >= 80 && counts.images - counts.verified >= 19 && counts.images - counts.verified < 40);
        CHECK(counts.file_bytes >= counts.images * 700 && counts.decode_ns > 0 && counts.resize_ns > 0 &&
              counts.cpu_ns > 0);
        cr_loader_close(loader);
        options.epoch = 3; /* a run that starts here has not verified any image yet */
        CHECK(sum_batches(set, options, 2, NULL) == late);
        if (!workers) want = late;
        CHECK(late == want);
    }
}

TEST(fatal_names_the_first_image) {
    write_set();
    put_text(tmp_path, "b/045.png", "nonsense");
    put_text(tmp_path, "b/047.png", "nonsense");
    OWNED(dataset) set = NULL;
    REQUIRE_OK(open_folder(&set));
    for (int workers = 0; workers <= 4; workers += 2) {
        struct cr_loader_options options = plain_options(CR_SPLIT_VAL, 10, workers);
        OWNED(loader)            loader  = NULL;
        struct cr_batch          batch;
        options.corrupt_fatal = true;
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        for (int b = 0; b < 4; b++) { /* the batches before the broken one are complete */
            REQUIRE_OK(cr_loader_next(loader, &batch));
            cr_loader_release(loader, &batch);
        }
        for (int again = 0; again < 2; again++) {
            cr_error_clear();
            CHECK_STATUS(cr_loader_next(loader, &batch), CR_ERR_FORMAT);
            CHECK_HAS(cr_error_message(), "b/045.png");
            CHECK_HAS(cr_error_message(), "data.corrupt");
        }
    }
}

TEST(no_readable_image_is_an_error) {
    folder_open();
    for (int i = 0; i < 8; i++) put_text(tmp_path, formatted("%c/%d.jpg", "ab"[i % 2], i), "nonsense");
    OWNED(dataset) set = NULL;
    REQUIRE_OK(open_folder(&set));
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 4, 2);
    struct cr_loader        *loader;
    struct cr_batch          batch;
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    CHECK_STATUS(cr_loader_next(loader, &batch), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "8 images in a row could not be read");
    cr_loader_close(loader);
    options.batch = 9;
    CHECK_STATUS(cr_loader_open(set, &options, &loader), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "more than the 8 training images");
}
