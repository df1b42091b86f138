/* tests/unit/data/test_image_kinds.c: WebP, TIFF and BMP images against PIL (tests/golden/data/make_webp.py and
 * make_tiff.py): pixels, orientation; damaged images of every kind, animated and huge ones. Without libwebp or libtiff
 * only the message is checked. */
#include "tests/harness/data_support.h"
#include "tests/harness/image_support.h"

static bool has_webp(void) {
    char version[CR_WEBP_VERSION_BYTES];
    cr_webp_version(version);
    return strcmp(version, "no") != 0;
}

static bool has_tiff(void) {
    char version[CR_TIFF_VERSION_BYTES];
    cr_tiff_version(version);
    return strcmp(version, "no") != 0;
}

/* Every image of the table, upright, in every format of its lines. Returns the number of lines; *seen: images read. */
static int check_table(const char *path, int *seen) {
    OWNED(file)        table = fopen(path, "r");
    char               name[128];
    int                channels, bits, width, height, lines = 0;
    unsigned long long want;
    while (table && fscanf(table, "%127s %d %d %d %d %llx", name, &channels, &bits, &width, &height, &want) == 6) {
        const bool      webp     = strstr(name, ".webp");
        const bool      readable = strstr(name, ".bmp") || (webp ? has_webp() : has_tiff());
        struct cr_image image;
        lines++;
        if (image_read(in_golden(name), true, format_of(channels, bits), &image) != CR_OK) {
            if (readable && !strstr(cr_error_message(), "compression 50000")) /* libtiff may lack Zstandard */
                TEST_FAIL_("%s", cr_error_message());
            if (!readable) CHECK_HAS(cr_error_message(), webp ? "built without libwebp" : "built without libtiff");
            continue;
        }
        const size_t bytes = (size_t)width * (size_t)height * cr_format_bytes(image.format);
        CHECK(readable && image.format == format_of(channels, bits));
        if (image.width != width || image.height != height)
            TEST_FAIL_("%s: %d x %d pixels, PIL has %d x %d", name, image.width, image.height, width, height);
        else if (sum_bytes(image.rgb, bytes) != want)
            TEST_FAIL_("%s: other pixels than PIL's with %d channels and %d bits", name, channels, bits);
        cr_image_free(&image);
        ++*seen;
    }
    return lines;
}

TEST(images_match_pil) {
    int webps = 0, others = 0;
    CHECK_INT(check_table(GOLDEN "webp.txt", &webps), 8);
    CHECK_INT(webps, has_webp() ? 8 : 0);
    CHECK_INT(check_table(GOLDEN "tiff.txt", &others), 258);
    CHECK(!has_tiff() || others >= 252);
}

/* exif = no: the pixels as they are stored. The orientation of each golden file is checked with the pixels. */
TEST(orientation_is_optional) {
    static const struct {
        const char *name;
        int         width, height;
        bool (*has)(void);
    } files[] = {{"rotated.webp", 29, 21, has_webp}, {"turned6.tif", 7, 5, has_tiff}};
    struct cr_image image;
    for (size_t i = 0; i < CR_COUNT(files); i++) {
        if (!files[i].has()) SKIP("a build without libwebp or libtiff");
        REQUIRE_OK(image_read(in_golden(files[i].name), false, CR_RGB8, &image));
        CHECK(image.width == files[i].width && image.height == files[i].height);
        cr_image_free(&image);
    }
}

TEST(animations_are_named) {
    struct cr_image image;
    if (!has_webp()) SKIP("a build without libwebp");
    CHECK_STATUS(image_read(GOLDEN "animated.webp", true, CR_RGB8, &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "animated.webp: an animated WebP; only still images can be read");
}

/* A file of 30 bytes that claims 16,383 x 16,383 pixels, the most that the format can. */
TEST(a_claimed_size_without_data) {
    static const uint8_t huge[] = {'R', 'I', 'F', 'F', 22, 0,    0,    0,    'W',  'E',  'B', 'P', 'V', 'P', '8',
                                   'L', 9,   0,   0,   0,  0x2f, 0xfe, 0xbf, 0xff, 0x0f, 0,   0,   0,   0,   0};
    struct cr_image      image;
    if (!has_webp()) SKIP("a build without libwebp");
    CHECK_STATUS(image_decode(huge, sizeof huge, "h.webp", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "h.webp: a file of 30 bytes with 16383 x 16383 pixels, which takes 1791 MiB");
}

/* ---- TIFF and BMP ---- */

TEST(pages_are_counted) {
    static const struct {
        const char *name;
        int         pages;
    } files[] = {{"pages.tif", 3}, {"rgb-bigtiff.tif", 1}, {"grey16-tiles-big.tif", 1}, {"rgb.bmp", 1}, {"rgb.png", 1}};
    for (size_t i = 0; i < CR_COUNT(files); i++) {
        size_t       count;
        const char  *path  = in_golden(files[i].name);
        OWNED(bytes) bytes = read_bytes(path, &count);
        CHECK_INT(cr_tiff_pages(bytes, count), files[i].pages);
        if (files[i].pages == 1 && i < 2) { /* a directory that follows itself: an end all the same */
            memcpy(bytes + count - 8, bytes + 8, 8);
            CHECK(cr_tiff_pages(bytes, count) >= 1);
        }
    }
}

TEST(unread_kinds_are_named) {
    static const struct {
        const char *name, *why;
    } files[] = {
        {"float.tif", "float.tif: a TIFF whose samples are floating-point numbers, which have no fixed range: scale"},
        {"signed16.tif", "signed16.tif: a TIFF whose samples are signed"},
        {"five-channels.tif", "five-channels.tif: a TIFF with 5 samples a pixel and the colour space 1; grey, RGB"},
        {"lzma.tif", "lzma.tif: a TIFF with the compression 34925"},
        {"rle8.bmp", "rle8.bmp: a BMP of 8 bits with compression 1, which is not read: save it as PNG"},
    };
    struct cr_image image;
    for (size_t i = has_tiff() ? 0 : 4; i < CR_COUNT(files); i++) {
        const char *path = in_golden(files[i].name);
        CHECK_STATUS(image_read(path, true, CR_RGB8, &image), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), files[i].why);
    }
    CHECK_STATUS(image_decode("GIF89a", 6, "a.gif", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(),
              "a.gif: a GIF file; only JPEG, PNG, WebP, TIFF and BMP images can be read: convert it to one");
}

/* A file that is cut anywhere but in its last `rest` bytes is refused with its name (-1: it may be read); one with
 * other bytes is refused or read, without a read outside the bytes (ASan) or a line of libtiff. */
static void check_damage(const char *name, int rest) {
    size_t          count;
    struct cr_image image;
    const char     *path  = in_golden(name);
    uint8_t        *bytes = read_bytes(path, &count), *copy = malloc(count);
    for (size_t length = 1; length < count - (size_t)CR_MAX(rest, 0); length += TEST_SANITIZED ? 5 : 1) {
        uint8_t *cut = malloc(length); /* of the exact size, so that ASan sees a read behind it */
        memcpy(cut, bytes, length);
        if (image_decode(cut, length, "cut.pic", &image) == CR_OK) {
            if (rest >= 0) TEST_FAIL_("%s: read with %zu of %zu bytes", name, length, count);
            cr_image_free(&image);
        } else
            CHECK_HAS(cr_error_message(), "cut.pic");
        free(cut);
    }
    struct cr_rng rng = cr_rng_make(3, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < (TEST_SANITIZED ? 400 : 2000); i++) {
        memcpy(copy, bytes, count);
        for (int k = 0; k <= i % 3; k++) copy[cr_rng_below(&rng, count)] ^= (uint8_t)(1 + cr_rng_below(&rng, 255));
        if (image_decode(copy, count, "a", &image) == CR_OK) cr_image_free(&image);
    }
    cr_free(bytes);
    free(copy);
}

/* Standard error goes to a file; libtiff would write there. The end chunk of a PNG (12 bytes) and the end marker of a
 * JPEG are not needed for the pixels. */
TEST(damaged_files_are_refused_in_silence) {
    static const struct {
        const char *name;
        int         rest;
    } files[]        = {{"rgb.png", 16},
                        {"palette8.png", 16},
                        {"rgb16.png", 16},
                        {"rgb.jpg", 8},
                        {"rgb-progressive.jpg", 8},
                        {"cmyk.jpg", 8},
                        {"l.jpg", 8},
                        {"lossless.webp", 0},
                        {"rgb.bmp", 4},
                        {"palette4.bmp", 4},
                        {"rgba.bmp", 4},
                        {"grey16-tiles-big.tif", 4},
                        {"rgb-planes-lzw.tif", 4},
                        {"jpeg-strips.tif", -1},
                        {"bilevel-g4.tif", -1},
                        {"palette.tif", -1},
                        {"rgb16-big.tif", -1}};
    OWNED(file) file = tmpfile();
    char        line[512];
    int         foreign = 0;
    REQUIRE(file);
    fflush(stderr);
    const int kept = dup(STDERR_FILENO);
    REQUIRE(kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    for (size_t i = 0; i < (has_tiff() ? CR_COUNT(files) : 11); i++) check_damage(files[i].name, files[i].rest);
    fflush(stderr);
    REQUIRE(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(file);
    while (fgets(line, sizeof line, file)) foreign += strncmp(line, "cresnet:", 8) != 0;
    CHECK_INT(foreign, 0);
}

/* Writes a little-endian number of 4 bytes. */
static void put32(uint8_t *to, uint32_t value) {
    for (int k = 0; k < 4; k++) to[k] = (uint8_t)(value >> 8 * k);
}

/* Sides of a TIFF are in its tags 256 and 257, of a BMP at places 18 and 22. */
TEST(huge_sides_take_no_memory) {
    size_t          count;
    struct cr_image image;
    uint8_t        *bmp = read_bytes(GOLDEN "rgb.bmp", &count);
    put32(bmp + 18, 20000);
    put32(bmp + 22, 13000);
    CHECK_STATUS(image_decode(bmp, count, "h.bmp", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "h.bmp: a file of 1902 bytes with 20000 x 13000 pixels, which takes 743 MiB");
    put32(bmp + 18, 0x80000000u);
    CHECK_STATUS(image_decode(bmp, count, "h.bmp", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "h.bmp: an image without pixels");
    cr_free(bmp);
    if (!has_tiff()) SKIP("a build without libtiff");
    OWNED(bytes) tiff = read_bytes(GOLDEN "turned2.tif", &count);
    for (size_t at = 10; at + 12 < count; at += 12)
        if (tiff[at + 1] == 1 && tiff[at] <= 1) {
            tiff[at + 2] = 4; /* LONG */
            put32(tiff + at + 8, tiff[at] ? 13000 : 20000);
        }
    CHECK_STATUS(image_decode(tiff, count, "h.tif", &image), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "h.tif: a file of 257 bytes with 20000 x 13000 pixels, which takes");
}
