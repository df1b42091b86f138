/* PNG and JPEG decoding against PIL (tests/golden/data/make.py), on broken files, and the PNG writer. */
#include "data_support.h"

/* Every picture of decode.txt has PIL's pixels, to the bit. */
static void golden_pictures_decode_as_in_pil(void) {
    FILE *table = fopen(GOLDEN "decode.txt", "r");
    REQUIRE(table);
    char               name[128], path[SUPPORT_PATH];
    int                width, height, seen = 0;
    unsigned long long want;
    while (fscanf(table, "%127s %d %d %llx", name, &width, &height, &want) == 4) {
        struct cr_image image;
        text_into(path, GOLDEN "%s", name);
        seen++;
        if (cr_image_read(path, &image) != CR_OK) {
            TEST_FAIL_("%s", cr_error_message());
            continue;
        }
        CHECK_INT(image.width, width);
        CHECK_INT(image.height, height);
        if (sum_bytes(image.rgb, (size_t)width * height * 3) != want) TEST_FAIL_("%s: other pixels than PIL's", name);
        cr_image_free(&image);
    }
    fclose(table);
    CHECK(seen >= 20);
}

static void photos_decode_and_prepare_as_in_pil(void) {
    if (!test_data_dir()) SKIP("CRESNET_TEST_DATA is not set");
    FILE *table = fopen(GOLDEN "photos.txt", "r");
    REQUIRE(table);
    struct cr_prepare  prep = {.size = 224, .eval_resize = 256};
    uint8_t           *out  = cr_alloc(224 * 224, 3);
    char               name[128], path[SUPPORT_PATH];
    int                width, height, seen = 0;
    unsigned long long want, want_eval;
    while (fscanf(table, "%127s %d %d %llx %llx", name, &width, &height, &want, &want_eval) == 5) {
        struct cr_image image;
        text_into(path, "%s/imagenet-sample-jpegs/%s", test_data_dir(), name);
        if (access(path, R_OK) != 0) continue;
        seen++;
        if (cr_image_read(path, &image) != CR_OK) {
            TEST_FAIL_("%s", cr_error_message());
            continue;
        }
        if (image.width != width || image.height != height || sum_bytes(image.rgb, (size_t)width * height * 3) != want)
            TEST_FAIL_("%s: other pixels than PIL's", name);
        CHECK_STATUS(cr_prepare_eval(&prep, &image, out), CR_OK);
        if (sum_bytes(out, 224 * 224 * 3) != want_eval) TEST_FAIL_("%s: other pixels than torchvision's", name);
        cr_image_free(&image);
    }
    fclose(table);
    cr_free(out);
    if (!seen) SKIP("no imagenet-sample-jpegs");
    CHECK_INT(seen, 40);
}

static cr_status decode_status(const uint8_t *bytes, size_t count) {
    struct cr_image image;
    cr_status       status = cr_image_decode(bytes, count, "cut.pic", &image);
    if (status == CR_OK) cr_image_free(&image);
    return status;
}

/* Cut anywhere before the last pixels' data, a file is refused with its name; never a crash, never a leak. */
static void cut_files_are_refused(void) {
    static const char *const names[] = {"rgb.png",  "palette8.png", "rgb16.png", "rgb.jpg", "rgb-progressive.jpg",
                                        "cmyk.jpg", "l.jpg"};
    for (size_t n = 0; n < CR_COUNT(names); n++) {
        char   path[SUPPORT_PATH];
        size_t count;
        text_into(path, GOLDEN "%s", names[n]);
        uint8_t *bytes = read_bytes(path, &count);
        REQUIRE(bytes && count > 100);
        int64_t live = cr_alloc_live();
        /* The end chunk of a PNG (12 bytes) and the end marker of a JPEG are not needed for the pixels. */
        size_t whole = strstr(names[n], "png") ? count - 16 : count - 8;
        for (size_t cut = 0; cut < whole; cut++) {
            if (decode_status(bytes, cut) == CR_OK)
                TEST_FAIL_("%s cut to %zu of %zu bytes was taken", names[n], cut, count);
            if (cut > 0) CHECK_HAS(cr_error_message(), "cut.pic");
        }
        CHECK_STATUS(decode_status(bytes, count), CR_OK);
        CHECK_INT(cr_alloc_live(), live);
        cr_free(bytes);
    }
}

/* Every byte flipped in turn: any status but a crash or a leak (the sanitizers and the fuzzers listen). */
static void damaged_files_do_no_harm(void) {
    static const char *const names[] = {"la.png", "palette4.png", "rgb-422.jpg", "cmyk-progressive.jpg"};
    int                      refused = 0;
    for (size_t n = 0; n < CR_COUNT(names); n++) {
        char   path[SUPPORT_PATH];
        size_t count;
        text_into(path, GOLDEN "%s", names[n]);
        uint8_t *bytes = read_bytes(path, &count);
        REQUIRE(bytes);
        int64_t live = cr_alloc_live();
        for (size_t i = 0; i < count; i++) {
            bytes[i] ^= 0x55;
            refused += decode_status(bytes, count) != CR_OK;
            bytes[i] ^= 0x55;
        }
        CHECK_INT(cr_alloc_live(), live);
        cr_free(bytes);
    }
    CHECK(refused > 1000);
}

static void other_files_are_named(void) {
    static const struct {
        const char *bytes, *says;
        size_t      count;
    } cases[] = {
        {"", "empty", 0},
        {"GIF89a....", "GIF", 10},
        {"RIFF....WEBPVP8 ", "WebP", 16},
        {"BM......", "BMP", 8},
        {"hello", "neither", 5},
        {"<!DOCTYPE html>", "HTML", 15},
        {"\xff\xd8\xff", "JPEG", 3},
        {"\x89PNG\r\n\x1a\n", "PNG", 8},
        {"version https://git-lfs", "LFS", 22},
    };
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        struct cr_image image;
        CHECK_STATUS(cr_image_decode(cases[i].bytes, cases[i].count, "some/file.jpg", &image), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "some/file.jpg");
        CHECK_HAS(cr_error_message(), cases[i].says);
    }
    struct cr_image image;
    CHECK_STATUS(cr_image_read("/nonexistent/x.png", &image), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "/nonexistent/x.png");
    CHECK_STATUS(cr_image_read("/", &image), CR_ERR_IO);
}

/* A header that claims a huge picture must cost neither memory nor time. */
static void bombs_are_refused(void) {
    struct cr_image image;
    size_t          count;
    uint8_t        *jpeg = read_bytes(GOLDEN "rgb.jpg", &count);
    REQUIRE(jpeg);
    size_t at = 0; /* the frame header: ff c0, length, precision, height, width */
    while (at + 9 < count && !(jpeg[at] == 0xff && jpeg[at + 1] == 0xc0)) at++;
    REQUIRE(at + 9 < count);
    jpeg[at + 5] = jpeg[at + 7] = 0x3f; /* about 16000 x 16000 */
    CHECK_STATUS(cr_image_decode(jpeg, count, "bomb.jpg", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "bomb.jpg");
    jpeg[at + 5] = jpeg[at + 7] = 0xff; /* beyond the limit of a side */
    CHECK_STATUS(cr_image_decode(jpeg, count, "bomb.jpg", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "at most");
    cr_free(jpeg);
    /* 16000 x 16000 pixels of 8-bit colour, in a PNG whose header has a right check sum and nothing behind it. */
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0,    0, 0,    13,
                                  'I',  'H', 'D', 'R', 0,    0,    0x3e, 0x80, 0,    0, 0x3e, 0x80,
                                  8,    2,   0,   0,   0,    0xce, 0x1c, 0x48, 0x89, 0, 0,    0,
                                  0,    'I', 'D', 'A', 'T',  0x35, 0xaf, 6,    0x1e};
    CHECK_STATUS(cr_image_decode(png, sizeof png, "bomb.png", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "cannot hold 16000 x 16000");
}

static void written_png_reads_back(void) {
    char folder[SUPPORT_PATH], path[SUPPORT_PATH];
    make_folder(folder);
    text_into(path, "%s/a.png", folder);
    static const int sizes[][2] = {{1, 1}, {17, 3}, {64, 200}};
    for (size_t i = 0; i < CR_COUNT(sizes); i++) {
        struct cr_image image = make_picture(sizes[i][0], sizes[i][1]), back;
        REQUIRE_OK(cr_image_write_png(path, image.rgb, image.width, image.height));
        REQUIRE_OK(cr_image_read(path, &back));
        CHECK(back.width == image.width && back.height == image.height);
        CHECK(memcmp(back.rgb, image.rgb, (size_t)image.width * image.height * 3) == 0);
        cr_image_free(&image);
        cr_image_free(&back);
    }
    CHECK_STATUS(cr_image_write_png("/nonexistent/a.png", (const uint8_t *)"abc", 1, 1), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "/nonexistent/a.png");
    drop_folder(folder);
}

/* The n-th allocation fails, for every n: out of memory is said, nothing leaks. (libjpeg has an allocator of its own.)
 */
static void failing_allocations_are_clean(void) {
    static const char *const names[] = {"rgb.png", "palette8.png", "rgb.jpg", "cmyk.jpg"};
    for (size_t n = 0; n < CR_COUNT(names); n++) {
        char path[SUPPORT_PATH];
        text_into(path, GOLDEN "%s", names[n]);
        int64_t live = cr_alloc_live(), nth = 0;
        for (cr_status status = CR_ERR_MEMORY; status != CR_OK && nth < 100;) {
            struct cr_image image = {0};
            cr_alloc_fail_at(++nth);
            status = cr_image_read(path, &image);
            cr_alloc_fail_at(0);
            if (status != CR_OK) CHECK_STATUS(status, CR_ERR_MEMORY);
            cr_image_free(&image);
            CHECK_INT(cr_alloc_live(), live);
        }
        CHECK(nth > 2 && nth < 100);
    }
}

TESTS(CASE(golden_pictures_decode_as_in_pil), CASE(photos_decode_and_prepare_as_in_pil), CASE(cut_files_are_refused),
      CASE(damaged_files_do_no_harm), CASE(other_files_are_named), CASE(bombs_are_refused),
      CASE(written_png_reads_back), CASE(failing_allocations_are_clean))
