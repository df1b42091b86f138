/* tests/unit/data/test_jpeg_scan.c: what the loader leaves to a device that decodes JPEGs, and batches are the same
 * whoever decodes. That a scan describes its image completely: tests/gpu/test_cuda_jpeg.c. */
#include "tests/harness/jpeg_support.h"

#include "data/image/jpeg.h"
#include "data/source.h"
#include "tests/harness/image_support.h"

enum { DATA_BYTES = 4 << 20, IMAGES = 24 };

static bool makes_scan(const struct jpeg_form *form, struct cr_stored stored, int min_side, size_t capacity) {
    static uint8_t       memory[DATA_BYTES];
    struct cr_jpeg_data  data    = {.bytes = memory, .capacity = capacity};
    struct cr_scratch    scratch = {0};
    OWNED(bytes)         bytes   = make_jpeg(form, &stored.count);
    const int            box[4]  = {0, 0, form->width, form->height};
    struct cr_jpeg_scan  scan    = {.bytes = 1};
    struct cr_lazy_image lazy;
    stored.bytes = bytes;
    CHECK_STATUS(cr_lazy_image_open(&stored, "made.jpg", &scratch, &lazy), CR_OK);
    const bool made = cr_jpeg_scan_make(&lazy, box, min_side, &scratch, &data, &scan);
    CHECK_INT(scan.bytes > 0, made);
    cr_scratch_free(&scratch);
    return made;
}

TEST(what_a_device_does_not_decode_stays) {
    const struct jpeg_form plain = {2, 2, 85, 200, 100, .restart = 0}, restarts = {2, 2, 85, 200, 100, .restart = 3},
                           scans = {2, 2, 85, 200, 100, .progressive = true};
    const struct cr_stored rgb = {.format = CR_RGB8}, grey = {.format = CR_GREY8};
    CHECK(makes_scan(&plain, rgb, 0, DATA_BYTES));
    CHECK(makes_scan(&plain, rgb, 51, DATA_BYTES)); /* half of 100 rows is less */
    CHECK(!makes_scan(&plain, rgb, 50, DATA_BYTES));
    CHECK(!makes_scan(&restarts, rgb, 0, DATA_BYTES));
    CHECK(!makes_scan(&scans, rgb, 0, DATA_BYTES));
    CHECK(!makes_scan(&plain, grey, 0, DATA_BYTES));
    CHECK(!makes_scan(&plain, rgb, 0, 100)); /* no room */
}

static void write_photos(void) {
    static const struct jpeg_form forms[] = {{2, 2, 85, 90, 70, .restart = 0},
                                             {1, 1, 70, 64, 80, .optimize = true},
                                             {2, 2, 60, 50, 60, .progressive = true}};
    for (int i = 0; i < IMAGES; i++) {
        size_t           count;
        struct jpeg_form form = forms[i % 3];
        form.quality -= i;
        OWNED(bytes) bytes = make_jpeg(&form, &count);
        const char  *path  = in_folder("train/%s/%03d.jpg", i % 2 ? "a" : "b", i);
        write_bytes(path, bytes, count);
    }
}

/* Checksum of four batches. `jpeg_bytes`: a device is there, whose decoder fails at every image. */
static uint64_t sum_photos(const struct cr_dataset *set, size_t jpeg_bytes, int scans[4]) {
    struct cr_loader_options options = {
        .split      = CR_SPLIT_TRAIN,
        .batch      = 8,
        .workers    = 2,
        .prefetch   = 1,
        .seed       = 3,
        .drop_last  = true,
        .jpeg_bytes = jpeg_bytes,
        .prepare = {.size = 48, .crop = CR_CROP_RANDOM_RESIZED, .hflip = 0.5, .scale = {0.3, 1}, .ratio = {0.75, 1.3}}};
    static const uint8_t all[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    OWNED(loader)        loader = NULL;
    uint64_t             sum    = CR_HASH_START;
    CHECK_STATUS(cr_loader_open(set, &options, &loader), CR_OK);
    for (int b = 0; b < 12; b++) {
        struct cr_batch batch;
        CHECK_STATUS(cr_loader_next(loader, &batch), CR_OK);
        for (int i = 0; i < 8 && batch.scans; i++) scans[b / 3] += batch.scans[i].bytes > 0;
        if (batch.scans) CHECK_STATUS(cr_loader_decode_failed(loader, &batch, all), CR_OK);
        for (int i = 0; i < 8 && batch.scans; i++) CHECK_INT(batch.scans[i].bytes, 0);
        CHECK(batch.width == 48 && batch.height == 48);
        sum = cr_hash_bytes(sum, batch.images, 8 * 48 * 48 * 3);
        sum = cr_hash_bytes(sum, batch.labels, 8 * sizeof *batch.labels);
        sum = cr_hash_bytes(sum, batch.boxes, 32 * sizeof *batch.boxes);
        cr_loader_release(loader, &batch);
    }
    return sum;
}

/* 16 of the 24 photos can be left to the device. One that it refused is decoded by the workers from then on; a batch
 * that was in preparation may still contain it. */
TEST(batches_are_the_same_whoever_decodes) {
    OWNED(dataset) set     = NULL;
    int            none[4] = {0}, scans[4] = {0};
    folder_open();
    write_photos();
    const struct cr_config *config;
    REQUIRE_OK(make_config_(&config, (const char *const[]){FOLDER_SET, NULL}));
    REQUIRE_OK(cr_dataset_open(config, CR_SPLIT_TRAIN, &set));
    cr_config_close(config);
    const uint64_t want = sum_photos(set, 0, none);
    CHECK(sum_photos(set, 1 << 20, scans) == want);
    CHECK_INT(none[0] + none[1] + none[2] + none[3], 0);
    CHECK_INT(scans[0], 16);
    CHECK(scans[1] <= 16);
    CHECK_INT(scans[2] + scans[3], 0);
}
