/* tests/unit/data/test_image_exif.c: images with an EXIF orientation: whole, in parts, reduced and prepared for the
 * network. The truth is EXIF's own definition: which side of the upright image row 0 and column 0 are. */
#include "tests/harness/image_boxes.h"
#include "tests/harness/jpeg_support.h"

enum { WIDTH = 75, HEIGHT = 42, EXIF_BYTES = 200 };

static const struct side {
    bool column;                    /* row 0 is a column of the upright image: its left or right side */
    bool row_at_end, column_at_end; /* row 0 is at the bottom or right; column 0 is at the right or bottom */
} sides[9] = {
    [1] = {false, false, false}, [2] = {false, false, true}, [3] = {false, true, true}, [4] = {false, true, false},
    [5] = {true, false, false},  [6] = {true, true, false},  [7] = {true, true, true},  [8] = {true, false, true}};

/* The upright image of stored pixels; cr_image_free. */
static struct cr_image upright(const struct cr_image *stored, int orientation) {
    const struct side s   = sides[orientation];
    struct cr_image   out = {s.column ? stored->height : stored->width, s.column ? stored->width : stored->height,
                           cr_alloc((size_t)stored->width * (size_t)stored->height, 3), CR_RGB8};
    for (int r = 0; r < stored->height; r++)
        for (int c = 0; c < stored->width; c++) {
            const int row = s.row_at_end ? stored->height - 1 - r : r,
                      col = s.column_at_end ? stored->width - 1 - c : c;
            const int x = s.column ? row : col, y = s.column ? col : row;
            memcpy(out.rgb + ((size_t)y * (size_t)out.width + (size_t)x) * 3,
                   stored->rgb + ((size_t)r * (size_t)stored->width + (size_t)c) * 3, 3);
        }
    return out;
}

static void put16(uint8_t *b, uint32_t v, bool big) {
    b[big ? 1 : 0] = (uint8_t)v;
    b[big ? 0 : 1] = (uint8_t)(v >> 8);
}
static void put32(uint8_t *b, uint32_t v, bool big) {
    put16(b + (big ? 2 : 0), v & 0xffff, big);
    put16(b + (big ? 0 : 2), v >> 16, big);
}

/* A TIFF block with three entries, the second of which is the orientation. Returns its size. */
static size_t make_tiff(uint8_t out[EXIF_BYTES], int orientation, bool big) {
    static const uint32_t tags[] = {0x010f, 0x0112, 0x0213};
    memset(out, 0, EXIF_BYTES);
    memcpy(out, big ? "MM" : "II", 2);
    put16(out + 2, 42, big);
    put32(out + 4, 14, big); /* the directory does not follow the head at once */
    put16(out + 14, 3, big);
    for (int i = 0; i < 3; i++) {
        uint8_t *entry = out + 16 + 12 * i;
        put16(entry, tags[i], big);
        put16(entry + 2, 3, big);
        put32(entry + 4, 1, big);
        put16(entry + 8, i == 1 ? (uint32_t)orientation : 9, big);
    }
    return 16 + 3 * 12 + 4;
}

/* Inserts `size` bytes at `at`; frees *bytes. */
static void insert(uint8_t **bytes, size_t *count, size_t at, const void *more, size_t size) {
    uint8_t *grown = cr_alloc(*count + size, 1);
    memcpy(grown, *bytes, at);
    memcpy(grown + at, more, size);
    memcpy(grown + at + size, *bytes + at, *count - at);
    cr_free(*bytes);
    *bytes = grown;
    *count += size;
}

/* The segment comes after a fill byte and after JFIF's segment of 18 bytes. */
static void add_app1(uint8_t **jpeg, size_t *count, const uint8_t *tiff, size_t size) {
    uint8_t segment[EXIF_BYTES + 11] = {0xff, 0xff, 0xe1, 0, 0, 'E', 'x', 'i', 'f', 0, 0};
    put16(segment + 3, (uint32_t)size + 8, true);
    memcpy(segment + 11, tiff, size);
    insert(jpeg, count, 20, segment, size + 11);
}

static uint32_t png_sum(const uint8_t *bytes, size_t count) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

/* The chunk comes after the head of 33 bytes, or, `late`, before the end chunk of 12 bytes. */
static void add_chunk(uint8_t **png, size_t *count, const uint8_t *tiff, size_t size, bool late) {
    uint8_t chunk[EXIF_BYTES + 12];
    put32(chunk, (uint32_t)size, true);
    memcpy(chunk + 4, "eXIf", 4);
    memcpy(chunk + 8, tiff, size);
    put32(chunk + 8 + size, png_sum(chunk + 4, size + 4), true);
    insert(png, count, late ? *count - 12 : 33, chunk, size + 12);
}

static uint8_t *make_png(const struct cr_image *image, size_t *count) {
    const char *path = in_folder("image.png");
    CR_ASSERT(cr_image_write_png(path, image->rgb, image->width, image->height) == CR_OK);
    return read_bytes(path, count);
}

/* ---- decoding ---- */

static void check_whole(const uint8_t *bytes, size_t count, bool exif, const struct cr_image *want, const char *what) {
    const struct cr_stored stored  = {.bytes = bytes, .count = count, .exif = exif};
    OWNED(scratch)         scratch = {0};
    struct cr_lazy_image   lazy;
    struct cr_image        view;
    REQUIRE_OK(cr_lazy_image_open(&stored, what, &scratch, &lazy));
    if (lazy.image.width != want->width || lazy.image.height != want->height)
        TEST_FAIL_("%s: %d x %d before decoding", what, lazy.image.width, lazy.image.height);
    REQUIRE_OK(cr_lazy_image_whole(&lazy, &scratch, &view));
    if (view.width != want->width || view.height != want->height ||
        memcmp(view.rgb, want->rgb, (size_t)want->width * (size_t)want->height * 3) != 0)
        TEST_FAIL_("%s: other pixels, or %d x %d", what, view.width, view.height);
    CHECK(view.rgb == scratch.pixels.bytes);
}

/* A reduced box is the oriented reduced box of the stored image. */
static void check_reduced(const uint8_t *bytes, size_t count, int orientation) {
    const struct side    s           = sides[orientation];
    const int            stored_b[4] = {9, 3, 55, 36};
    const int            x = s.column_at_end ? WIDTH - 9 - 55 : 9, y = s.row_at_end ? HEIGHT - 3 - 36 : 3;
    const int            box[4]  = {s.column ? y : x, s.column ? x : y, s.column ? 36 : 55, s.column ? 55 : 36};
    OWNED(scratch)       scratch = {0}, plain = {0};
    struct cr_stored     stored = {.bytes = bytes, .count = count};
    struct cr_window     from, to;
    struct cr_lazy_image lazy;
    REQUIRE_OK(cr_lazy_image_open(&stored, "plain", &plain, &lazy));
    REQUIRE_OK(cr_lazy_image_window(&lazy, stored_b, 10, &plain, &from));
    stored.exif = true;
    REQUIRE_OK(cr_lazy_image_open(&stored, "oriented", &scratch, &lazy));
    REQUIRE_OK(cr_lazy_image_window(&lazy, box, 10, &scratch, &to));
    CHECK(from.width < 55 && to.width == (s.column ? from.height : from.width));
    const double far_x = s.column_at_end ? from.width - from.x - from.w : from.x;
    const double far_y = s.row_at_end ? from.height - from.y - from.h : from.y;
    CHECK(to.x == (s.column ? far_y : far_x) && to.y == (s.column ? far_x : far_y));
    CHECK(to.w == (s.column ? from.h : from.w) && to.h == (s.column ? from.w : from.h));
    OWNED(image) packed = {from.width, from.height, cr_alloc((size_t)from.width * (size_t)from.height, 3), CR_RGB8};
    for (int r = 0; r < from.height; r++)
        memcpy(packed.rgb + (size_t)r * (size_t)from.width * 3, from.rgb + (size_t)r * from.stride,
               (size_t)from.width * 3);
    OWNED(image) want = upright(&packed, orientation);
    for (int r = 0; r < want.height; r++)
        CHECK(!memcmp(to.rgb + (size_t)r * to.stride, want.rgb + (size_t)r * (size_t)want.width * 3,
                      (size_t)want.width * 3));
}

/* JPEG: baseline or progressive, both byte orders. PNG: both byte orders, the chunk before or after the pixels. */
static void all_orientations(bool png) {
    OWNED(image)  image = make_image(WIDTH, HEIGHT);
    struct cr_rng rng   = cr_rng_make(png ? 6 : 5, CR_RNG_TEST, 0, 0);
    for (int k = 0; k < 32; k++) {
        const int              orientation = 1 + k / 4;
        size_t                 count;
        const struct jpeg_form form = {.h = 2, .v = 2, .quality = 75, .progressive = k % 2};
        uint8_t      tiff[EXIF_BYTES], *bytes = png ? make_png(&image, &count) : write_jpeg(&form, &image, 3, &count);
        const size_t size   = make_tiff(tiff, orientation, k / 2 % 2);
        OWNED(image) stored = {0};
        if (png)
            add_chunk(&bytes, &count, tiff, size, k % 2);
        else
            add_app1(&bytes, &count, tiff, size);
        CHECK_INT(cr_exif_orientation(bytes, count), orientation);
        REQUIRE_OK(image_decode(bytes, count, "plain", &stored));
        CHECK(!png || memcmp(stored.rgb, image.rgb, (size_t)WIDTH * HEIGHT * 3) == 0);
        OWNED(image)      want = upright(&stored, orientation);
        const char *const name = formatted("%s, orientation %d, form %d", png ? "PNG" : "JPEG", orientation, k % 4);
        check_whole(bytes, count, true, &want, name);
        check_whole(bytes, count, false, &stored, "data.exif = no");
        check_boxes(name, &(struct cr_stored){.bytes = bytes, .count = count, .exif = true}, &want, &rng, 20);
        if (!png) check_reduced(bytes, count, orientation);
        cr_free(bytes);
    }
}
TEST(all_orientations_of_jpeg) {
    all_orientations(false);
}
TEST(all_orientations_of_png) {
    all_orientations(true);
}

/* Crops are chosen on the upright image: it and a oriented one with an orientation prepare to the same bytes. */
TEST(prepared_images_are_those_of_the_upright_image) {
    OWNED(image)            image = make_image(WIDTH, HEIGHT);
    const struct cr_prepare eval  = {.size = 20, .eval_resize = 24};
    const struct cr_prepare train = {
        .size = 20, .crop = CR_CROP_RANDOM_RESIZED, .scale = {0.08, 1}, .ratio = {0.75, 1.33}, .hflip = 0.5};
    for (int orientation = 1; orientation <= 8; orientation++) {
        size_t         count, plain_count;
        OWNED(image)   oriented = upright(&image, orientation);
        uint8_t        tiff[EXIF_BYTES], *bytes = make_png(&image, &count), *plain = make_png(&oriented, &plain_count);
        OWNED(scratch) scratch = {0};
        add_chunk(&bytes, &count, tiff, make_tiff(tiff, orientation, true), false);
        const struct cr_stored stored[] = {{.bytes = bytes, .count = count, .exif = true},
                                           {.bytes = plain, .count = plain_count, .exif = true}};
        for (int64_t sample = 0; sample < 10; sample++) {
            uint8_t out[2][20 * 20 * 3];
            int32_t box[2][4] = {{0}};
            for (int i = 0; i < 2; i++) {
                struct cr_lazy_image lazy;
                REQUIRE_OK(cr_lazy_image_open(&stored[i], "png", &scratch, &lazy));
                if (sample)
                    REQUIRE_OK(cr_prepare_train_with(&train, &lazy, 1, 0, sample, &scratch, out[i], box[i], NULL));
                else
                    REQUIRE_OK(cr_prepare_eval_with(&eval, &lazy, &scratch, out[i]));
            }
            CHECK(!memcmp(out[0], out[1], sizeof out[0]) && !memcmp(box[0], box[1], sizeof box[0]));
        }
        cr_free(bytes);
        cr_free(plain);
    }
}

/* The orientation of a JPEG whose EXIF block has the first `size` bytes of `tiff`; memory of the exact size, so that a
 * sanitizer sees every read outside. */
static int orientation_of(const uint8_t *tiff, size_t size) {
    OWNED(bytes) bytes = cr_alloc(2, 1);
    size_t       count = 2;
    memcpy(bytes, "\xff\xd8", 2);
    uint8_t segment[EXIF_BYTES + 10] = {0xff, 0xe1, 0, 0, 'E', 'x', 'i', 'f', 0, 0};
    put16(segment + 2, (uint32_t)size + 8, true);
    memcpy(segment + 10, tiff, size);
    insert(&bytes, &count, 2, segment, size + 10);
    return cr_exif_orientation(bytes, count);
}

TEST(damaged_blocks_are_ignored) {
    static const struct {
        size_t   at;
        bool     wide; /* a number of 32 bits */
        uint32_t value;
    } faults[] = {{0, false, 0x4d49}, {2, false, 43},      {4, true, 0xffffffff}, {4, true, 199}, {4, true, 55},
                  {14, false, 0},     {28, false, 0x0111}, {30, false, 2},        {32, true, 0},  {32, true, 2},
                  {36, false, 0},     {36, false, 9},      {36, false, 0xffff}};
    uint8_t tiff[EXIF_BYTES];
    for (int big = 0; big < 2; big++) {
        const size_t size = make_tiff(tiff, 6, big);
        CHECK_INT(orientation_of(tiff, size), 6);
        for (size_t cut = 0; cut < size; cut++) /* the entry of the orientation ends at byte 40 */
            CHECK_INT(orientation_of(tiff, cut), cut >= 40 ? 6 : 1);
        for (size_t i = 0; i < CR_COUNT(faults); i++) {
            make_tiff(tiff, 6, big);
            (faults[i].wide ? put32 : put16)(tiff + faults[i].at, faults[i].value, big);
            if (orientation_of(tiff, size) != 1) TEST_FAIL_("fault %zu, big %d: not ignored", i, big);
        }
    }
}
