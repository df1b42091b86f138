/* tests/unit/data/test_pack_jpeg.c: datasets packed as JPEGs of reduced size. The truth is libjpeg, called here: it
 * makes the files of every kind, writes the pixels that the folder has after the resize, and reads what was stored. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/jpeg_support.h"
#include "tests/harness/packed_support.h"

/* Decodes to RGB by libjpeg, and checks that the file is one that all decoders read fast. *components: of the file. */
static struct cr_image read_jpeg(const uint8_t *bytes, size_t count, int *components) {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr         errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, bytes, count);
    jpeg_read_header(&jpeg, TRUE);
    *components = jpeg.num_components;
    CHECK(!jpeg.progressive_mode && !jpeg.arith_code && !jpeg.restart_interval && !jpeg_has_multiple_scans(&jpeg));
    CHECK(jpeg.data_precision == 8 && (*components == 1 || jpeg.jpeg_color_space == JCS_YCbCr));
    jpeg.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg);
    struct cr_image image = {(int)jpeg.output_width, (int)jpeg.output_height,
                             cr_alloc((size_t)jpeg.output_width * jpeg.output_height, 3), CR_RGB8};
    while (jpeg.output_scanline < jpeg.output_height) {
        JSAMPROW row = image.rgb + (size_t)jpeg.output_scanline * jpeg.output_width * 3;
        jpeg_read_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_decompress(&jpeg);
    jpeg_destroy_decompress(&jpeg);
    return image;
}

/* A smooth image, which a JPEG describes well; grey: of three equal samples. */
static struct cr_image smooth_image(int width, int height, bool grey) {
    struct cr_image image = {width, height, cr_alloc((size_t)width * (size_t)height, 3), CR_RGB8};
    for (int i = 0; i < width * height * 3; i++) {
        const int x = i / 3 % width, y = i / 3 / width, c = grey ? 0 : i % 3;
        image.rgb[i] = (uint8_t)(40 + (x * (1 + c) + y * (3 - c)) * 180 / (3 * (width + height)));
    }
    return image;
}

static struct cr_image noise_image(int width, int height) {
    struct cr_image image = smooth_image(width, height, false);
    struct cr_rng   rng   = cr_rng_make(3, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < width * height * 3; i++) image.rgb[i] = (uint8_t)cr_rng_u32(&rng);
    return image;
}

/* Packs the training images of the folder into folder/out.crpk. `keys`: one more override, or NULL. */
static cr_status pack_jpegs(const char *keys, const struct cr_pack_options *options) {
    OWNED(dataset)        set = NULL;
    struct cr_pack_result result;
    CR_TRY(OPEN(CR_SPLIT_TRAIN, &set, FOLDER_SET, keys));
    return cr_pack_dataset(set, in_folder("out.crpk"), options, &result);
}

static void open_jpegs(struct cr_pack **out) {
    struct cr_pack *pack;
    REQUIRE_OK(cr_pack_open(in_folder("out.crpk"), &pack));
    CHECK(pack->form == CR_PACK_ENCODED && !(pack->flags & CR_PACK_EXIF));
    REQUIRE_OK(cr_pack_verify(pack, 2));
    *out = pack;
}

/* Path of training image `i` of the folder. */
static const char *path_of(int i, const char *ending) {
    return in_folder("train/%s/%02d.%s", i ? "a" : "0", i, ending);
}

static void put_png(int i, struct cr_image image) {
    const char *path = path_of(i, "png");
    make_parents(path);
    REQUIRE_OK(cr_image_write_png(path, image.rgb, image.width, image.height));
    cr_image_free(&image);
}

static int largest_difference(const struct cr_image *a, const struct cr_image *b) {
    int most = 0;
    for (int i = 0; i < a->width * a->height * 3; i++) most = CR_MAX(most, abs(a->rgb[i] - b->rgb[i]));
    return most;
}

enum { PNGS = 6, SIDE = 48 };

static void write_pngs(void) {
    folder_open();
    put_png(0, smooth_image(150, 101, false));
    put_png(1, smooth_image(77, 130, true));
    put_png(2, noise_image(160, 160));
    put_png(3, smooth_image(300, 49, false));
    put_png(4, smooth_image(31, 20, false)); /* smaller than SIDE */
    put_png(5, make_image(64, 64));
}

TEST(stored_bytes_are_those_of_libjpeg) {
    static const int qualities[] = {90, 100, 35};
    write_pngs();
    OWNED(dataset) set = NULL;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, FOLDER_SET));
    for (size_t q = 0; q < CR_COUNT(qualities); q++) {
        REQUIRE_OK(
            pack_jpegs(NULL, &(struct cr_pack_options){.jpeg_side = SIDE, .quality = qualities[q], .workers = 3}));
        OWNED(pack) pack = NULL;
        open_jpegs(&pack);
        REQUIRE(pack);
        for (int i = 0; i < PNGS; i++) {
            OWNED(image)         whole = {0}, small = {0}, stored = {0};
            struct cr_pack_entry entry;
            const uint8_t       *bytes;
            int32_t              label;
            size_t               count;
            int                  components;
            const bool           grey = i == 1, exact = i != 2 && i != 5;
            REQUIRE_OK(cr_dataset_get(set, i, &whole, &label));
            const int shorter = CR_MIN(whole.width, whole.height), side = CR_MIN(shorter, SIDE);
            small     = (struct cr_image){whole.width * side / shorter, whole.height * side / shorter, NULL, CR_RGB8};
            small.rgb = cr_alloc((size_t)small.width * (size_t)small.height, 3);
            REQUIRE_OK(
                cr_image_resize(&whole, 0, 0, whole.width, whole.height, small.rgb, small.width, small.height, false));
            REQUIRE_OK(cr_pack_read(pack, i, &entry, &bytes));
            CHECK(entry.width == small.width && entry.height == small.height && entry.label == label);
            uint8_t *truth =
                write_jpeg(&(struct jpeg_form){.h = grey ? 0 : 2, .v = 2, .quality = qualities[q]}, &small, 3, &count);
            CHECK(count == entry.bytes && !memcmp(bytes, truth, count));
            stored = read_jpeg(bytes, entry.bytes, &components);
            CHECK(components == (grey ? 1 : 3) && stored.width == small.width && stored.height == small.height);
            if (exact && qualities[q] >= 90) CHECK(largest_difference(&stored, &small) <= 10);
            for (int k = 0; grey && k < small.width * small.height; k++)
                CHECK(stored.rgb[3 * k] == stored.rgb[3 * k + 1] && stored.rgb[3 * k] == stored.rgb[3 * k + 2]);
            cr_free(truth);
        }
    }
}

static const struct jpeg_form forms[] = {
    {.h = 2, .v = 2, .quality = 80},
    {.h = 1, .v = 1, .quality = 80},
    {.h = 2, .v = 1, .quality = 80},
    {.h = 1, .v = 2, .quality = 80, .optimize = true},
    {.h = 0, .quality = 80},
    {.h = 2, .v = 2, .quality = 80, .orientation = 1},
    {.h = 2, .v = 2, .quality = 80, .orientation = 6},
    {.h = 0, .quality = 80, .orientation = 3},
    {.h = 2, .v = 2, .quality = 80, .progressive = true},
    {.h = 2, .v = 2, .quality = 80, .restart = 3},
    {.h = 2, .v = 2, .quality = 80, .scans = true},
    {.h = 4, .v = 1, .quality = 80},
    {.h = 1, .v = 1, .quality = 80, .rgb = 1},
    {.h = 1, .v = 1, .quality = 80, .rgb = 2},
    {.h = 2, .v = 2, .quality = 5, .wide_steps = true},
};
/* A baseline file of one scan without restarts, grey or YCbCr. */
static bool is_plain(const struct jpeg_form *f) {
    return !f->progressive && !f->restart && !f->scans && f->h < 4 && !f->rgb && !f->wide_steps;
}
enum { FORMS = CR_COUNT(forms), WIDTH = 45, HEIGHT = 32 };

static void write_forms(void) {
    folder_open();
    OWNED(image) image = smooth_image(WIDTH, HEIGHT, false), line = smooth_image(WIDTH, HEIGHT, true);
    for (int i = 0; i < WIDTH * HEIGHT; i++) line.rgb[i] = line.rgb[3 * i]; /* one sample for each pixel */
    for (int i = 0; i < FORMS; i++) {
        size_t       count;
        OWNED(bytes) bytes = write_jpeg(&forms[i], forms[i].h ? &image : &line, forms[i].h ? 3 : 1, &count);
        write_bytes(path_of(i, "jpg"), bytes, count);
    }
}

/* Packs the forms with data.exif on or off and the number of channels, and compares each with its file. */
static void check_forms(bool exif, int channels) {
    const char *const      keys    = formatted("data.channels=%d", channels);
    struct cr_pack_options options = {.jpeg_side = HEIGHT, .quality = 90, .workers = 2};
    OWNED(dataset)         set     = NULL;
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, FOLDER_SET, keys, exif ? "data.exif=yes" : "data.exif=no"));
    REQUIRE_OK(cr_pack_dataset(set, in_folder("out.crpk"), &options, &result));
    OWNED(pack) pack = NULL;
    open_jpegs(&pack);
    REQUIRE(pack);
    for (int i = 0; i < FORMS; i++) {
        const struct jpeg_form *form = &forms[i];
        struct cr_pack_entry    entry;
        const uint8_t          *bytes;
        int32_t                 label;
        int                     components;
        size_t                  count;
        OWNED(image)            image = {0};
        OWNED(bytes)            file  = read_bytes(path_of(i, "jpg"), &count);
        REQUIRE_OK(cr_pack_read(pack, i, &entry, &bytes));
        const bool same   = entry.bytes == count && !memcmp(bytes, file, count);
        const bool turned = exif && form->orientation > 1, kept = is_plain(form) && !turned;
        if (same != (kept && (channels == 3 || !form->h))) TEST_FAIL_("form %d: %s", i, same ? "kept" : "not kept");
        CHECK(entry.width == (turned && form->orientation == 6 ? HEIGHT : WIDTH));
        OWNED(image) stored = read_jpeg(bytes, entry.bytes, &components);
        CHECK_INT(components, channels == 3 && form->h ? 3 : 1);
        REQUIRE_OK(cr_dataset_get(set, i, &image, &label));
        if (channels == 3) {
            CHECK(stored.width == image.width && stored.height == image.height);
            /* one more rounding, and steps of hundreds in the file of quality 5 */
            CHECK(largest_difference(&stored, &image) <= (same ? 0 : 12));
        }
    }
}

TEST(small_jpegs_stay_if_decoders_read_them_fast) {
    write_forms();
    check_forms(true, 3);
    check_forms(false, 3);
    check_forms(true, 1);
}

/* ---- the file ---- */

TEST(number_of_workers_changes_nothing) {
    struct cr_pack_options options = {.jpeg_side = 24, .quality = 90, .workers = 1};
    OWNED(dataset)         set     = NULL;
    struct cr_pack_result  result;
    write_forms();
    const char *path = in_folder("out.crpk"), *first = in_folder("train.crpk");
    REQUIRE_OK(pack_jpegs(NULL, &options));
    REQUIRE(rename(path, first) == 0);
    options.workers = 4;
    REQUIRE_OK(pack_jpegs(NULL, &options));
    CHECK(same_bytes(path, first));
    /* packed again, nothing changes: all images are small, upright and plain */
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed", root_is(tmp_path)));
    REQUIRE_OK(cr_pack_dataset(set, path, &options, &result));
    CHECK(same_bytes(path, first));
}

TEST(other_pixels_are_refused) {
    const struct cr_pack_options options = {.jpeg_side = SIDE, .quality = 90, .workers = 1};
    write_pngs();
    CHECK_STATUS(pack_jpegs("data.channels=4", &options), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "data.channels = 4 and data.bits = 8: pack with --raw=48");
    CHECK_STATUS(pack_jpegs("data.bits=16", &options), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "data.bits = 16");
}

/* Every allocation fails in turn, and every system call; the noise of quality 100 makes the buffer grow. */
TEST(failures_leave_no_file) {
    const struct cr_pack_options options = {.jpeg_side = SIDE, .quality = 100, .workers = 1, .corrupt_fatal = true};
    OWNED(dataset)               set     = NULL;
    struct cr_pack_result        result;
    write_pngs();
    const char *path = in_folder("out.crpk");
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, FOLDER_SET));
    for_each_failing_alloc(f, .least = 8) {
        failing_alloc_run(&f, cr_pack_dataset(set, path, &options, &result));
    }
    unlink(path);
    atomic_int             stop    = 2;
    struct cr_pack_options stopped = options;
    stopped.stop                   = &stop;
    CHECK_STATUS(cr_pack_dataset(set, path, &stopped, &result), CR_ERR_INTERRUPTED);
    CHECK(access(path, F_OK) != 0);
    cr_fs_fail_at(4, 1, ENOSPC);
    CHECK_STATUS(cr_pack_dataset(set, path, &options, &result), CR_ERR_IO);
    cr_fs_fail_at(0, 0, 0);
    CHECK(access(path, F_OK) != 0);
}
