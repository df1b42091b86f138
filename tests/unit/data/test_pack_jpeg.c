/* tests/unit/data/test_pack_jpeg.c: datasets packed as JPEGs of reduced size. The truth is libjpeg, called here: it
 * makes the files of every kind, writes the pixels that the folder has after the resize, and reads what was stored. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/packed_support.h"

#include "core/rng.h"

#include <jpeglib.h>

enum { MADE_QUALITY = 80 };

struct form {       /* a JPEG that the test makes */
    int  h, v;      /* blocks of luma; 0: grey */
    int  restart;   /* MCUs */
    int  quality;   /* 0: MADE_QUALITY */
    bool not_plain; /* not a baseline file of one scan without restarts that is grey or YCbCr */
    bool progressive, scans, optimize;
    int  rgb; /* no transform of colours: 1: Adobe's marker says so, 2: the names of the components */
    int  orientation;
};

/* Writes pixels of `channels` samples; cr_free. */
static uint8_t *write_jpeg(const struct form *form, const struct cr_image *image, int channels, size_t *count) {
    static const jpeg_scan_info single[3] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr       errors;
    unsigned char              *bytes = NULL;
    unsigned long               size  = 0;
    jpeg.err                          = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, &size);
    jpeg.image_width      = (JDIMENSION)image->width;
    jpeg.image_height     = (JDIMENSION)image->height;
    jpeg.input_components = channels;
    jpeg.in_color_space   = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&jpeg);
    if (form->rgb) jpeg_set_colorspace(&jpeg, JCS_RGB);
    for (int i = 0; form->rgb == 1 && i < 3; i++) jpeg.comp_info[i].component_id = i + 1;
    if (form->rgb) jpeg.write_Adobe_marker = form->rgb == 1;
    if (channels == 3 && !form->h) jpeg_set_colorspace(&jpeg, JCS_GRAYSCALE);
    if (form->h && !form->rgb) {
        jpeg.comp_info[0].h_samp_factor = form->h;
        jpeg.comp_info[0].v_samp_factor = form->v;
    }
    /* steps above 255, as low qualities have them, make a file that is not baseline */
    jpeg_set_quality(&jpeg, form->quality ? form->quality : MADE_QUALITY, form->quality != 5);
    jpeg.restart_interval = (unsigned)form->restart;
    jpeg.optimize_coding  = form->optimize;
    if (form->progressive) jpeg_simple_progression(&jpeg);
    if (form->scans) jpeg.scan_info = single, jpeg.num_scans = 3;
    jpeg_start_compress(&jpeg, TRUE);
    if (form->orientation) {
        uint8_t exif[32] = {'E', 'x', 'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1};
        exif[24]         = (uint8_t)form->orientation;
        jpeg_write_marker(&jpeg, JPEG_APP0 + 1, exif, sizeof exif);
    }
    for (int y = 0; y < image->height; y++) {
        JSAMPROW row = image->rgb + (size_t)y * (size_t)image->width * (size_t)channels;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    uint8_t *copy = cr_alloc(size, 1);
    memcpy(copy, bytes, size);
    free(bytes);
    *count = size;
    return copy;
}

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
static cr_status pack_jpegs(const char *folder, const char *keys, const struct cr_pack_options *options) {
    struct cr_dataset    *set;
    struct cr_pack_result result;
    char                  root[SUPPORT_PATH], path[SUPPORT_PATH];
    CR_TRY(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=folder", root_is(folder, root), keys));
    cr_status status = cr_pack_dataset(set, text_into(path, "%s/out.crpk", folder), options, &result);
    cr_dataset_close(set);
    return status;
}

static void open_packed(const char *folder, struct cr_pack **out) {
    struct cr_pack *pack;
    char            path[SUPPORT_PATH];
    REQUIRE_OK(cr_pack_open(text_into(path, "%s/out.crpk", folder), &pack));
    CHECK(cr_pack_form(pack) == CR_PACK_ENCODED && !cr_pack_exif(pack));
    REQUIRE_OK(cr_pack_verify(pack, 2));
    *out = pack;
}

/* Writes training image `i` of the folder. */
static void put_file(const char *folder, int i, const char *ending, const void *bytes, size_t count) {
    char path[SUPPORT_PATH];
    text_into(path, "%s/train/%s/%02d.%s", folder, i ? "a" : "0", i, ending);
    make_parents(path);
    write_bytes(path, bytes, count);
}

static void put_png(const char *folder, int i, struct cr_image image) {
    char path[SUPPORT_PATH];
    put_file(folder, i, "png", "", 0);
    text_into(path, "%s/train/%s/%02d.png", folder, i ? "a" : "0", i);
    REQUIRE_OK(cr_image_write_png(path, image.rgb, image.width, image.height));
    cr_image_free(&image);
}

static int largest_difference(const struct cr_image *a, const struct cr_image *b) {
    int most = 0;
    for (int i = 0; i < a->width * a->height * 3; i++) most = CR_MAX(most, abs(a->rgb[i] - b->rgb[i]));
    return most;
}

/* ---- images that are written again ---- */

enum { PNGS = 6, SIDE = 48 };

static void write_pngs(const char *folder) {
    put_png(folder, 0, smooth_image(150, 101, false));
    put_png(folder, 1, smooth_image(77, 130, true));
    put_png(folder, 2, noise_image(160, 160));
    put_png(folder, 3, smooth_image(300, 49, false));
    put_png(folder, 4, smooth_image(31, 20, false)); /* smaller than SIDE */
    put_png(folder, 5, make_image(64, 64));
}

static void stored_bytes_are_those_of_libjpeg(void) {
    static const int qualities[] = {90, 100, 35};
    char             folder[SUPPORT_PATH], root[SUPPORT_PATH];
    make_folder(folder);
    write_pngs(folder);
    struct cr_dataset *set;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=folder", root_is(folder, root)));
    for (size_t q = 0; q < CR_COUNT(qualities); q++) {
        REQUIRE_OK(pack_jpegs(folder, NULL,
                              &(struct cr_pack_options){.jpeg_side = SIDE, .quality = qualities[q], .workers = 3}));
        struct cr_pack *pack = NULL;
        open_packed(folder, &pack);
        REQUIRE(pack);
        for (int i = 0; i < PNGS; i++) {
            struct cr_image      whole, small, stored;
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
                write_jpeg(&(struct form){.h = grey ? 0 : 2, .v = 2, .quality = qualities[q]}, &small, 3, &count);
            CHECK(count == entry.bytes && !memcmp(bytes, truth, count));
            stored = read_jpeg(bytes, entry.bytes, &components);
            CHECK(components == (grey ? 1 : 3) && stored.width == small.width && stored.height == small.height);
            if (exact && qualities[q] >= 90) CHECK(largest_difference(&stored, &small) <= 10);
            for (int k = 0; grey && k < small.width * small.height; k++)
                CHECK(stored.rgb[3 * k] == stored.rgb[3 * k + 1] && stored.rgb[3 * k] == stored.rgb[3 * k + 2]);
            cr_free(truth);
            cr_image_free(&stored);
            cr_image_free(&small);
            cr_image_free(&whole);
        }
        cr_pack_close(pack);
    }
    cr_dataset_close(set);
    drop_folder(folder);
}

/* ---- small images ---- */

static const struct form forms[] = {
    {.h = 2, .v = 2},
    {.h = 1, .v = 1},
    {.h = 2, .v = 1},
    {.h = 1, .v = 2, .optimize = true},
    {.h = 0},
    {.h = 2, .v = 2, .orientation = 1},
    {.h = 2, .v = 2, .orientation = 6},
    {.h = 0, .orientation = 3},
    {.h = 2, .v = 2, .progressive = true, .not_plain = true},
    {.h = 2, .v = 2, .restart = 3, .not_plain = true},
    {.h = 2, .v = 2, .scans = true, .not_plain = true},
    {.h = 4, .v = 1, .not_plain = true},
    {.h = 1, .v = 1, .rgb = 1, .not_plain = true},
    {.h = 1, .v = 1, .rgb = 2, .not_plain = true},
    {.h = 2, .v = 2, .quality = 5, .not_plain = true},
};
enum { FORMS = CR_COUNT(forms), WIDTH = 45, HEIGHT = 32 };

static void write_forms(const char *folder) {
    struct cr_image image = smooth_image(WIDTH, HEIGHT, false), line = smooth_image(WIDTH, HEIGHT, true);
    for (int i = 0; i < WIDTH * HEIGHT; i++) line.rgb[i] = line.rgb[3 * i]; /* one sample for each pixel */
    for (int i = 0; i < FORMS; i++) {
        size_t   count;
        uint8_t *bytes = write_jpeg(&forms[i], forms[i].h ? &image : &line, forms[i].h ? 3 : 1, &count);
        put_file(folder, i, "jpg", bytes, count);
        cr_free(bytes);
    }
    cr_image_free(&image);
    cr_image_free(&line);
}

/* Packs the forms with data.exif on or off and the number of channels, and compares each with its file. */
static void check_forms(const char *folder, bool exif, int channels) {
    char keys[64], path[SUPPORT_PATH], root[SUPPORT_PATH];
    snprintf(keys, sizeof keys, "data.channels=%d", channels);
    struct cr_pack_options options = {.jpeg_side = HEIGHT, .quality = 90, .workers = 2};
    struct cr_dataset     *set;
    struct cr_pack_result  result;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=folder", root_is(folder, root), keys,
                    exif ? "data.exif=yes" : "data.exif=no"));
    REQUIRE_OK(cr_pack_dataset(set, text_into(path, "%s/out.crpk", folder), &options, &result));
    struct cr_pack *pack = NULL;
    open_packed(folder, &pack);
    REQUIRE(pack);
    for (int i = 0; i < FORMS; i++) {
        const struct form   *form = &forms[i];
        struct cr_pack_entry entry;
        const uint8_t       *bytes;
        int32_t              label;
        int                  components;
        size_t               count;
        struct cr_image      image;
        uint8_t *file = read_bytes(text_into(path, "%s/train/%s/%02d.jpg", folder, i ? "a" : "0", i), &count);
        REQUIRE_OK(cr_pack_read(pack, i, &entry, &bytes));
        const bool same   = entry.bytes == count && !memcmp(bytes, file, count);
        const bool turned = exif && form->orientation > 1, kept = !form->not_plain && !turned;
        if (same != (kept && (channels == 3 || !form->h))) TEST_FAIL_("form %d: %s", i, same ? "kept" : "not kept");
        CHECK(entry.width == (turned && form->orientation == 6 ? HEIGHT : WIDTH));
        struct cr_image stored = read_jpeg(bytes, entry.bytes, &components);
        CHECK_INT(components, channels == 3 && form->h ? 3 : 1);
        REQUIRE_OK(cr_dataset_get(set, i, &image, &label));
        if (channels == 3) {
            CHECK(stored.width == image.width && stored.height == image.height);
            /* one more rounding, and steps of hundreds in the file of quality 5 */
            CHECK(largest_difference(&stored, &image) <= (same ? 0 : 12));
        }
        cr_image_free(&image);
        cr_image_free(&stored);
        cr_free(file);
    }
    cr_pack_close(pack);
    cr_dataset_close(set);
}

static void small_jpegs_stay_if_decoders_read_them_fast(void) {
    char folder[SUPPORT_PATH];
    make_folder(folder);
    write_forms(folder);
    check_forms(folder, true, 3);
    check_forms(folder, false, 3);
    check_forms(folder, true, 1);
    drop_folder(folder);
}

/* ---- the file ---- */

static void number_of_workers_changes_nothing(void) {
    char                   folder[SUPPORT_PATH], path[SUPPORT_PATH], root[SUPPORT_PATH];
    size_t                 count, count_again;
    struct cr_pack_options options = {.jpeg_side = 24, .quality = 90, .workers = 1};
    make_folder(folder);
    write_forms(folder);
    text_into(path, "%s/out.crpk", folder);
    REQUIRE_OK(pack_jpegs(folder, NULL, &options));
    uint8_t *bytes  = read_bytes(path, &count);
    options.workers = 4;
    REQUIRE_OK(pack_jpegs(folder, NULL, &options));
    uint8_t *again = read_bytes(path, &count_again);
    CHECK(count == count_again && !memcmp(bytes, again, count));
    cr_free(again);
    /* packed again, nothing changes: all images are small, upright and plain */
    struct cr_dataset    *set;
    struct cr_pack_result result;
    rename(path, text_into(root, "%s/train.crpk", folder));
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=packed", root_is(folder, root)));
    REQUIRE_OK(cr_pack_dataset(set, path, &options, &result));
    again = read_bytes(path, &count_again);
    CHECK(count == count_again && !memcmp(bytes, again, count));
    cr_dataset_close(set);
    cr_free(again);
    cr_free(bytes);
    drop_folder(folder);
}

static void other_pixels_are_refused(void) {
    char                         folder[SUPPORT_PATH];
    const struct cr_pack_options options = {.jpeg_side = SIDE, .quality = 90, .workers = 1};
    make_folder(folder);
    write_pngs(folder);
    CHECK_STATUS(pack_jpegs(folder, "data.channels=4", &options), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "data.channels = 4 and data.bits = 8: pack with --raw=48");
    CHECK_STATUS(pack_jpegs(folder, "data.bits=16", &options), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "data.bits = 16");
    drop_folder(folder);
}

/* Every allocation fails in turn, and every system call; the noise of quality 100 makes the buffer grow. */
static void failures_leave_no_file(void) {
    char                         folder[SUPPORT_PATH], root[SUPPORT_PATH], path[SUPPORT_PATH];
    const struct cr_pack_options options = {.jpeg_side = SIDE, .quality = 100, .workers = 1, .corrupt_fatal = true};
    struct cr_dataset           *set;
    struct cr_pack_result        result;
    make_folder(folder);
    write_pngs(folder);
    text_into(path, "%s/out.crpk", folder);
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, "data.kind=folder", root_is(folder, root)));
    for_each_failing_alloc(f, .least = 8) {
        failing_alloc_begin(&f);
        failing_alloc_end(&f, cr_pack_dataset(set, path, &options, &result));
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
    cr_dataset_close(set);
    drop_folder(folder);
}

TESTS(CASE(stored_bytes_are_those_of_libjpeg), CASE(small_jpegs_stay_if_decoders_read_them_fast),
      CASE(number_of_workers_changes_nothing), CASE(other_pixels_are_refused), CASE(failures_leave_no_file))
