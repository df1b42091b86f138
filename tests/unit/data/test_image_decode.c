/* tests/unit/data/test_image_decode.c: PNG and JPEG decoding against PIL (tests/golden/data/make.py), other files, and
 * the PNG writer. */
#include "tests/harness/image_boxes.h"

#include "data/decode.h"
#include "tests/harness/failing_alloc.h"

TEST(photos_match_pil) {
    if (!test_data_dir()) SKIP("CRESNET_TEST_DATA is not set");
    OWNED(file) table = fopen(GOLDEN "photos.txt", "r");
    REQUIRE(table);
    struct cr_prepare  prep = {.size = 224, .eval_resize = 256};
    uint8_t           *out  = cr_alloc(224 * 224, 3);
    char               name[128];
    int                width, height, seen = 0;
    unsigned long long want, want_eval;
    while (fscanf(table, "%127s %d %d %llx %llx", name, &width, &height, &want, &want_eval) == 5) {
        OWNED(image)      image = {0};
        const char *const path  = formatted("%s/imagenet-sample-jpegs/%s", test_data_dir(), name);
        if (access(path, R_OK) != 0) continue;
        seen++;
        if (image_read(path, false, CR_RGB8, &image) != CR_OK) {
            TEST_FAIL_("%s", cr_error_message());
            continue;
        }
        if (image.width != width || image.height != height || sum_bytes(image.rgb, (size_t)width * height * 3) != want)
            TEST_FAIL_("%s: other pixels than PIL's", name);
        CHECK_STATUS(cr_prepare_eval(&prep, &image, out), CR_OK);
        if (sum_bytes(out, 224 * 224 * 3) != want_eval) TEST_FAIL_("%s: other pixels than torchvision's", name);
    }
    cr_free(out);
    if (!seen) SKIP("no imagenet-sample-jpegs");
    CHECK_INT(seen, 40);
}

/* ---- parts of images ---- */

/* Boxes of a file are bitwise identical to the same part of the whole image. */
static void check_boxes_of(const char *path, int times) {
    struct cr_stored stored = {0};
    OWNED(image)     whole  = {0};
    OWNED(bytes)     bytes  = read_bytes(path, &stored.count);
    struct cr_rng    rng    = cr_rng_make(1, CR_RNG_TEST, stored.count, 0);
    REQUIRE(bytes);
    REQUIRE_OK(image_decode(bytes, stored.count, path, &whole));
    stored.bytes = bytes;
    check_boxes(path, &stored, &whole, &rng, times);
}

TEST(boxes_equal_the_whole_image) {
    OWNED(file) table = fopen(GOLDEN "decode.txt", "r");
    REQUIRE(table);
    char               name[128];
    int                width, height;
    unsigned long long sum;
    while (fscanf(table, "%127s %d %d %llx", name, &width, &height, &sum) == 4) check_boxes_of(in_golden(name), 40);
}

/* Calls `each` with every photo; false when there are none. */
static bool for_each_photo(void (*each)(const char *path)) {
    OWNED(file) table = test_data_dir() ? fopen(GOLDEN "photos.txt", "r") : NULL;
    char        name[128];
    int         seen = 0;
    while (table && fscanf(table, "%127s %*d %*d %*x %*x", name) == 1) {
        const char *const path = formatted("%s/imagenet-sample-jpegs/%s", test_data_dir(), name);
        if (access(path, R_OK) != 0) continue;
        each(path);
        seen++;
    }
    return seen > 0;
}

static void check_photo_boxes(const char *path) {
    check_boxes_of(path, 12);
}
TEST(boxes_of_photos_equal_the_whole_image) {
    if (!for_each_photo(check_photo_boxes)) SKIP("no imagenet-sample-jpegs");
}

/* Mean difference of two images. */
static double mean_difference(const uint8_t *a, const uint8_t *b, size_t count) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += abs(a[i] - b[i]);
    return (double)sum / (double)count;
}

static double worst_scaled;
static int    scaled_seen[4];

/* Compares the scaled window, resized, with the same part of the whole image. */
static void compare_scaled(const char *path, const struct cr_image *whole, const int box[4],
                           const struct cr_window *window, int least) {
    OWNED(bytes)     a = cr_alloc((size_t)least * least, 3), b = cr_alloc((size_t)least * least, 3);
    struct cr_buffer tables = {0};
    struct cr_resize job    = {.src        = window->rgb,
                               .src_w      = window->width,
                               .src_h      = window->height,
                               .src_stride = window->stride,
                               .x          = window->x,
                               .y          = window->y,
                               .w          = window->w,
                               .h          = window->h,
                               .full_w     = least,
                               .full_h     = least,
                               .part_w     = least,
                               .part_h     = least,
                               .dst        = a,
                               .dst_stride = (size_t)least * 3};
    REQUIRE_OK(cr_resize_run(&job, &tables));
    REQUIRE_OK(cr_image_resize(whole, box[0], box[1], box[2], box[3], b, least, least, false));
    double difference = mean_difference(a, b, (size_t)least * least * 3);
    worst_scaled      = CR_MAX(worst_scaled, difference);
    if (difference > 5)
        TEST_FAIL_("%s, box %d %d %d %d to %d: mean difference %.2f", path, box[0], box[1], box[2], box[3], least,
                   difference);
    cr_free(tables.bytes);
}

static void check_scaled(const char *path) {
    static const int leasts[] = {16, 33, 64, 100};
    OWNED(scratch)   scratch  = {0};
    OWNED(image)     whole    = {0};
    size_t           count;
    OWNED(bytes)     bytes = read_bytes(path, &count);
    struct cr_rng    rng   = cr_rng_make(2, CR_RNG_TEST, count, 0);
    REQUIRE(bytes);
    REQUIRE_OK(image_decode(bytes, count, path, &whole));
    for (int k = 0; k < 24; k++) {
        struct cr_stored     stored = {.bytes = bytes, .count = count, .verified = k % 2};
        struct cr_lazy_image image;
        struct cr_window     window;
        int                  box[4], least = leasts[k % 4], scale = 1;
        draw_box(&rng, whole.width, whole.height, box);
        if (box[2] < least || box[3] < least) continue;
        REQUIRE_OK(cr_lazy_image_open(&stored, path, &scratch, &image));
        REQUIRE_OK(cr_lazy_image_window(&image, box, least, &scratch, &window));
        CHECK(window.w >= least && window.h >= least && window.w > 0);
        /* the part that the window shows */
        while (scale < 8 && window.w * (scale + 0.5) < box[2]) scale *= 2;
        CHECK(scale == 8 || box[2] / (2 * scale) < least || box[3] / (2 * scale) < least); /* no larger than needed */
        CHECK(window.x >= 0 && window.y >= 0 && window.x + window.w <= window.width &&
              window.y + window.h <= window.height);
        scaled_seen[scale == 1 ? 0 : scale == 2 ? 1 : scale == 4 ? 2 : 3]++;
        compare_scaled(path, &whole, box, &window, least);
    }
}

/* A box far larger than its output may be decoded at a smaller scale: the result differs little and has the right
 * position (an offset of one pixel would be visible). */
TEST(scaled_boxes_differ_little) {
    worst_scaled = 0;
    memset(scaled_seen, 0, sizeof scaled_seen);
    if (!for_each_photo(check_scaled)) SKIP("no imagenet-sample-jpegs");
    for (int i = 0; i < 4; i++) CHECK(scaled_seen[i] > 3);
    printf("    worst mean difference %.2f levels\n", worst_scaled);
}

/* Damage after the box: found in an image that was not verified before, not searched in one that was. */
TEST(damage_after_a_box_is_found) {
    static const char *const names[] = {"rgb.jpg", "rgb-422.jpg", "l.jpg", "cmyk.jpg"};
    for (size_t n = 0; n < CR_COUNT(names); n++) {
        size_t         count;
        OWNED(scratch) scratch = {0};
        OWNED(bytes)   bytes   = read_bytes(in_golden(names[n]), &count);
        REQUIRE(bytes);
        for (size_t cut = count - 8; cut < count - 4; cut++)
            for (int proven = 0; proven < 2; proven++) {
                struct cr_stored     stored = {.bytes = bytes, .count = cut - 40, .verified = proven};
                struct cr_lazy_image image;
                struct cr_window     window;
                int                  box[4] = {0, 0, 8, 4};
                REQUIRE_OK(cr_lazy_image_open(&stored, "cut.jpg", &scratch, &image));
                CHECK_STATUS(cr_lazy_image_window(&image, box, 0, &scratch, &window), proven ? CR_OK : CR_ERR_FORMAT);
                if (!proven) CHECK_HAS(cr_error_message(), "cut.jpg");
            }
    }
}

TEST(other_files_are_named) {
    static const struct {
        const char *bytes, *says;
        size_t      count;
    } cases[] = {
        {"", "empty", 0},
        {"GIF89a....", "GIF", 10},
        {"RIFF....WEBPVP8 ", "WebP", 16}, /* cut off, or a build without libwebp */
        {"BM......", "not an image; JPEG", 8},
        {"hello", "not an image; JPEG, PNG, WebP, TIFF and BMP can be read", 5},
        {"<!DOCTYPE html>", "HTML", 15},
        {"\xff\xd8\xff", "JPEG", 3},
        {"\x89PNG\r\n\x1a\n", "PNG", 8},
        {"version https://git-lfs", "LFS", 22},
    };
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        struct cr_image image;
        CHECK_STATUS(image_decode(cases[i].bytes, cases[i].count, "some/file.jpg", &image), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "some/file.jpg");
        CHECK_HAS(cr_error_message(), cases[i].says);
    }
    struct cr_image image;
    CHECK_STATUS(image_read("/nonexistent/x.png", false, CR_RGB8, &image), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "/nonexistent/x.png");
    CHECK_STATUS(image_read("/", false, CR_RGB8, &image), CR_ERR_IO);
}

/* A header with a huge image size must cost neither memory nor time. */
TEST(bombs_are_refused) {
    struct cr_image image;
    size_t          count;
    uint8_t        *jpeg = read_bytes(GOLDEN "rgb.jpg", &count);
    REQUIRE(jpeg);
    size_t at = 0; /* the frame header: ff c0, length, precision, height, width */
    while (at + 9 < count && !(jpeg[at] == 0xff && jpeg[at + 1] == 0xc0)) at++;
    REQUIRE(at + 9 < count);
    jpeg[at + 5] = jpeg[at + 7] = 0x3f; /* about 16000 x 16000 */
    CHECK_STATUS(image_decode(jpeg, count, "bomb.jpg", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "bomb.jpg");
    jpeg[at + 5] = jpeg[at + 7] = 0xff; /* above the limit of a side */
    CHECK_STATUS(image_decode(jpeg, count, "bomb.jpg", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "at most");
    cr_free(jpeg);
    /* 16000 x 16000 pixels of 8-bit colour, in a PNG with a valid header checksum and no data after it. */
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0,    0, 0,    13,
                                  'I',  'H', 'D', 'R', 0,    0,    0x3e, 0x80, 0,    0, 0x3e, 0x80,
                                  8,    2,   0,   0,   0,    0xce, 0x1c, 0x48, 0x89, 0, 0,    0,
                                  0,    'I', 'D', 'A', 'T',  0x35, 0xaf, 6,    0x1e};
    CHECK_STATUS(image_decode(png, sizeof png, "bomb.png", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "cannot hold 16000 x 16000");
}

TEST(written_png_reads_back) {
    folder_open();
    const char      *path       = in_folder("a.png");
    static const int sizes[][2] = {{1, 1}, {17, 3}, {64, 200}};
    for (size_t i = 0; i < CR_COUNT(sizes); i++) {
        OWNED(image) image = make_image(sizes[i][0], sizes[i][1]), back = {0};
        REQUIRE_OK(cr_image_write_png(path, image.rgb, image.width, image.height));
        REQUIRE_OK(image_read(path, false, CR_RGB8, &back));
        CHECK(back.width == image.width && back.height == image.height);
        CHECK(memcmp(back.rgb, image.rgb, (size_t)image.width * image.height * 3) == 0);
    }
    CHECK_STATUS(cr_image_write_png("/nonexistent/a.png", (const uint8_t *)"abc", 1, 1), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "/nonexistent/a.png");
}

/* The n-th allocation fails, for every n: the status is out of memory, nothing leaks. (libjpeg has its own
 * allocator.) */
TEST(failing_allocations_are_reported) {
    static const char *const names[] = {"rgb.png", "palette8.png", "rgb.jpg", "cmyk.jpg"};
    for (size_t n = 0; n < CR_COUNT(names); n++) {
        const char *path = in_golden(names[n]);
        for_each_failing_alloc(f, .least = 2) {
            OWNED(image) image = {0};
            failing_alloc_run(&f, image_read(path, false, CR_RGB8, &image));
        }
    }
}
