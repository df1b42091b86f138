/* tests/unit/data/test_image_webp.c: WebP images against PIL (tests/golden/data/make_webp.py): pixels, orientation;
 * damaged, animated and huge files. Without libwebp only the message is checked. */
#include "tests/harness/data_support.h"
#include "tests/harness/image_support.h"

#include "tests/harness/failing_alloc.h"

static bool has_webp(void) {
    char version[CR_WEBP_VERSION_BYTES];
    cr_webp_version(version);
    return strcmp(version, "no") != 0;
}

/* Every image of webp.txt is bitwise identical to that of PIL, upright. */
static void golden_images_match_pil(void) {
    FILE *table = fopen(GOLDEN "webp.txt", "r");
    REQUIRE(table);
    char               name[128], path[SUPPORT_PATH];
    int                width, height, seen = 0;
    unsigned long long want;
    if (!has_webp()) {
        fclose(table);
        SKIP("a build without libwebp");
    }
    while (fscanf(table, "%127s %d %d %llx", name, &width, &height, &want) == 4) {
        struct cr_image image;
        text_into(path, GOLDEN "%s", name);
        seen++;
        if (image_read(path, true, CR_RGB8, &image) != CR_OK) {
            TEST_FAIL_("%s", cr_error_message());
            continue;
        }
        if (image.width != width || image.height != height)
            TEST_FAIL_("%s: %d x %d pixels, PIL has %d x %d", name, image.width, image.height, width, height);
        if (sum_bytes(image.rgb, (size_t)width * height * 3) != want) TEST_FAIL_("%s: other pixels than PIL's", name);
        cr_image_free(&image);
    }
    fclose(table);
    CHECK_INT(seen, 8);
}

/* exif = no: the pixels as they are stored. */
static void orientation_is_optional(void) {
    struct cr_image image;
    if (!has_webp()) SKIP("a build without libwebp");
    REQUIRE_OK(image_read(GOLDEN "rotated.webp", false, CR_RGB8, &image));
    CHECK_INT(image.width, 29);
    CHECK_INT(image.height, 21);
    cr_image_free(&image);
}

/* Damaged files never succeed with pixels that the file does not have, and never read outside the bytes (ASan). */
static void damaged_files_are_refused(void) {
    size_t          count;
    uint8_t        *bytes = read_bytes(GOLDEN "lossless.webp", &count), *copy = malloc(count);
    struct cr_image image;
    if (!has_webp()) {
        CHECK_STATUS(image_decode(bytes, count, "a.webp", &image), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), "built without libwebp");
    }
    for (size_t length = 1; length < count; length++) {
        uint8_t *cut = malloc(length); /* of the exact size, so that ASan sees a read behind it */
        memcpy(cut, bytes, length);
        CHECK_STATUS(image_decode(cut, length, "a.webp", &image), CR_ERR_FORMAT);
        if (has_webp() && length > 40) CHECK_HAS(cr_error_message(), "a.webp: broken WebP");
        free(cut);
    }
    struct cr_rng rng = cr_rng_make(3, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < 500; i++) {
        memcpy(copy, bytes, count);
        copy[12 + cr_rng_below(&rng, count - 12)] ^= (uint8_t)(1 + cr_rng_below(&rng, 255));
        if (image_decode(copy, count, "a.webp", &image) == CR_OK) cr_image_free(&image);
    }
    cr_free(bytes);
    free(copy);
}

static void animations_are_named(void) {
    struct cr_image image;
    if (!has_webp()) SKIP("a build without libwebp");
    CHECK_STATUS(image_read(GOLDEN "animated.webp", true, CR_RGB8, &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "animated.webp: an animated WebP; only still images can be read");
}

/* A file of 30 bytes that claims 16,383 x 16,383 pixels, the most that the format can. */
static void a_claimed_size_without_data(void) {
    static const uint8_t huge[] = {'R', 'I', 'F', 'F', 22, 0,    0,    0,    'W',  'E',  'B', 'P', 'V', 'P', '8',
                                   'L', 9,   0,   0,   0,  0x2f, 0xfe, 0xbf, 0xff, 0x0f, 0,   0,   0,   0,   0};
    struct cr_image      image;
    if (!has_webp()) SKIP("a build without libwebp");
    CHECK_STATUS(image_decode(huge, sizeof huge, "h.webp", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "h.webp: a file of 30 bytes with 16383 x 16383 pixels, which takes 1791 MiB");
}

TESTS(CASE(golden_images_match_pil), CASE(orientation_is_optional), CASE(damaged_files_are_refused),
      CASE(animations_are_named), CASE(a_claimed_size_without_data))
