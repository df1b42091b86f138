/* tests/unit/data/test_image_formats.c: images of 1, 3 and 4 channels and 8 and 16 bits, against PIL and numpy
 * (tests/golden/data/make_formats.py): decoding, parts, orientation, resizing, packing, and operations on pixels. */
#include "tests/harness/data_support.h"
#include "tests/harness/image_support.h"

#include "data/pack.h"
#include "data/source.h"

static const enum cr_pixel_format formats[] = {CR_RGB8, CR_GREY8, CR_RGBA8, CR_RGB16, CR_GREY16, CR_RGBA16};

static size_t image_bytes(const struct cr_image *image) {
    return (size_t)image->width * (size_t)image->height * cr_format_bytes(image->format);
}

TEST(decoded_images_match_pil) {
    OWNED(file)        table = fopen(GOLDEN "formats.txt", "r");
    char               name[128];
    int                channels, bits, seen = 0;
    unsigned long long want;
    REQUIRE(table);
    while (fscanf(table, "%127s %d %d %llx", name, &channels, &bits, &want) == 4) {
        OWNED(image) image = {0};
#ifndef CR_WITH_WEBP
        if (strstr(name, ".webp")) continue;
#endif
        const char *path = in_golden(name);
        seen++;
        if (image_read(path, false, format_of(channels, bits), &image) != CR_OK) {
            TEST_FAIL_("%s", cr_error_message());
            continue;
        }
        CHECK_INT(image.format, format_of(channels, bits));
        if (sum_bytes(image.rgb, image_bytes(&image)) != want)
            TEST_FAIL_("%s: other pixels than PIL's with %d channels and %d bits", name, channels, bits);
    }
    CHECK(seen >= 140);
}

/* The formula of make_formats.py. */
static struct cr_image waves(int w, int h, enum cr_pixel_format format) {
    const int       channels = cr_format_channels(format);
    const bool      wide     = cr_format_bits(format) == 16;
    struct cr_image image    = {w, h, cr_alloc((size_t)(w * h), cr_format_bytes(format)), format};
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int c = 0; c < channels; c++) {
                const uint16_t v  = (uint16_t)(x * (300 + 71 * c) + y * (517 - 13 * c) + x * y * 7);
                const size_t   at = ((size_t)y * (size_t)w + (size_t)x) * (size_t)channels + (size_t)c;
                if (wide)
                    memcpy(image.rgb + 2 * at, &v, 2);
                else
                    image.rgb[at] = (uint8_t)(v >> 8);
            }
    return image;
}

/* At every level up to that of the test; a mirrored result is the mirror image. */
static void check_resize(const struct cr_image *image, const double box[4], int out_w, int out_h,
                         unsigned long long want) {
    const size_t pixel = cr_format_bytes(image->format), bytes = (size_t)(out_w * out_h) * pixel;
    OWNED(bytes) out = cr_alloc(bytes, 1), mirrored = cr_alloc(bytes, 1);
    const int    most = (int)cr_cpu_level();
    for (int level = CR_CPU_BASELINE; level <= most; level++) {
        (void)cr_cpu_set_level((enum cr_cpu_level)level);
        memset(out, 0, bytes);
        CHECK_STATUS(cr_image_resize(image, box[0], box[1], box[2] - box[0], box[3] - box[1], out, out_w, out_h, false),
                     CR_OK);
        CHECK_STATUS(
            cr_image_resize(image, box[0], box[1], box[2] - box[0], box[3] - box[1], mirrored, out_w, out_h, true),
            CR_OK);
        if (sum_bytes(out, bytes) != want)
            TEST_FAIL_("format %d, %d x %d to %d x %d, level %d: other pixels than PIL's", (int)image->format,
                       image->width, image->height, out_w, out_h, level);
        for (size_t i = 0; i < (size_t)(out_w * out_h); i++) {
            const size_t x = i % (size_t)out_w, mirror = i - x + (size_t)out_w - 1 - x;
            CHECK(!memcmp(out + i * pixel, mirrored + mirror * pixel, pixel));
        }
    }
}

TEST(resized_images_match_pil) {
    OWNED(file)        table = fopen(GOLDEN "resize_formats.txt", "r");
    int                channels, bits, w, h, out_w, out_h, seen = 0;
    double             box[4];
    unsigned long long want;
    REQUIRE(table);
    while (fscanf(table, "%d %d %d %d %lf %lf %lf %lf %d %d %llx", &channels, &bits, &w, &h, &box[0], &box[1], &box[2],
                  &box[3], &out_w, &out_h, &want) == 11) {
        struct cr_image image = waves(w, h, format_of(channels, bits));
        check_resize(&image, box, out_w, out_h, want);
        cr_image_free(&image);
        seen++;
    }
    CHECK_INT(seen, 40);
    OWNED(file) plain = fopen(GOLDEN "resize.txt", "r"); /* images of another formula */
    REQUIRE(plain);
    while (fscanf(plain, "%d %d %lf %lf %lf %lf %d %d %llx", &w, &h, &box[0], &box[1], &box[2], &box[3], &out_w, &out_h,
                  &want) == 9) {
        OWNED(image) image = make_image(w, h);
        check_resize(&image, box, out_w, out_h, want);
        seen++;
    }
    CHECK_INT(seen, 40 + 80);
}

/* A part of a resized image is that part of the whole, and a part of a file is that part of its pixels. */
TEST(parts_equal_the_whole) {
    for (size_t f = 0; f < CR_COUNT(formats); f++) {
        const size_t     pixel  = cr_format_bytes(formats[f]);
        OWNED(image)     image  = waves(37, 29, formats[f]);
        struct cr_buffer tables = {0};
        uint8_t          whole[20 * 16 * 8], part[7 * 5 * 8];
        struct cr_resize job = {.src        = image.rgb,
                                .src_w      = 37,
                                .src_h      = 29,
                                .src_stride = 37 * pixel,
                                .x          = 1.5,
                                .w          = 30,
                                .h          = 29,
                                .full_w     = 20,
                                .full_h     = 16,
                                .part_x     = 9,
                                .part_y     = 6,
                                .part_w     = 7,
                                .part_h     = 5,
                                .dst        = part,
                                .dst_stride = 7 * pixel,
                                .format     = formats[f]};
        REQUIRE_OK(cr_image_resize(&image, 1.5, 0, 30, 29, whole, 20, 16, false));
        REQUIRE_OK(cr_resize_run(&job, &tables));
        for (size_t y = 0; y < 5; y++)
            CHECK(!memcmp(part + y * 7 * pixel, whole + ((6 + y) * 20 + 9) * pixel, 7 * pixel));
        cr_free(tables.bytes);
    }
}

TEST(windows_of_files_are_parts) {
    static const char *const files[] = {"rgb.jpg", "l.jpg", "rgb-progressive.jpg", "rgba16.png"};
    for (size_t k = 0; k < CR_COUNT(files); k++)
        for (size_t f = 0; f < CR_COUNT(formats); f++) {
            const size_t         pixel   = cr_format_bytes(formats[f]);
            OWNED(image)         image   = {0};
            OWNED(scratch)       scratch = {0};
            struct cr_stored     stored  = {.format = formats[f]};
            struct cr_lazy_image lazy;
            struct cr_window     window;
            const char          *path = in_golden(files[k]);
            REQUIRE_OK(image_read(path, false, formats[f], &image));
            const int box[4] = {2, 1, image.width - 3, image.height - 3};
            stored.bytes     = read_bytes(path, &stored.count);
            REQUIRE_OK(cr_lazy_image_open(&stored, path, &scratch, &lazy));
            REQUIRE_OK(cr_lazy_image_window(&lazy, box, 0, &scratch, &window));
            CHECK_INT(window.format, formats[f]);
            for (size_t y = 0; y < (size_t)box[3]; y++)
                CHECK(!memcmp(window.rgb + y * window.stride, image.rgb + ((1 + y) * (size_t)image.width + 2) * pixel,
                              (size_t)box[2] * pixel));
            cr_free((void *)(uintptr_t)stored.bytes);
        }
}

/* A rotated file gives the rotated pixels in every format: orientation and conversion can be exchanged. */
TEST(orientations_move_whole_pixels) {
    for (size_t f = 0; f < CR_COUNT(formats); f++)
        for (int orientation = 1; orientation <= 8; orientation++) {
            OWNED(scratch)   a = {0}, b = {0};
            OWNED(image)     rgb   = waves(23, 11, CR_RGB8);
            struct cr_window first = {.rgb = rgb.rgb, .width = 23, .height = 11, .stride = 23 * 3}, second = first;
            REQUIRE_OK(cr_orient_window(orientation, &a, &first));
            REQUIRE_OK(cr_convert_window(formats[f], &a, &first));
            REQUIRE_OK(cr_convert_window(formats[f], &b, &second));
            REQUIRE_OK(cr_orient_window(orientation, &b, &second));
            CHECK(first.width == second.width && first.format == formats[f] && second.format == formats[f]);
            for (int y = 0; y < first.height; y++)
                CHECK(!memcmp(first.rgb + (size_t)y * first.stride, second.rgb + (size_t)y * second.stride,
                              (size_t)first.width * cr_format_bytes(formats[f])));
        }
}

TEST(grey_operations_are_those_of_equal_channels) {
    enum { W = 17, H = 13 };
    for (int op = CR_PIXELS_IDENTITY; op <= CR_PIXELS_INVERT; op++) {
        const double     amount = op == CR_PIXELS_POSTERIZE ? 3 : op == CR_PIXELS_SOLARIZE ? 100 : 0.35;
        OWNED(image)     image  = waves(W, H, CR_GREY8);
        uint8_t          rgb[W * H * 3], copy[W * H * 3];
        struct cr_pixels grey = {image.rgb, copy, W, H, {7, 7, 7}, 1}, colour = {rgb, copy, W, H, {7, 7, 7}, 3};
        for (int i = 0; i < W * H * 3; i++) rgb[i] = image.rgb[i / 3];
        cr_pixels_apply((enum cr_pixel_op)op, amount, &colour);
        cr_pixels_apply((enum cr_pixel_op)op, amount, &grey);
        for (int i = 0; i < W * H * 3; i++)
            if (rgb[i] != image.rgb[i / 3]) {
                TEST_FAIL_("operation %d differs at %d", op, i);
                break;
            }
    }
}

/* Packing keeps the pixels, as files and as pixels; other keys than at packing are an error. */
TEST(packed_images_keep_their_format) {
    static const char *const keys[][2] = {{"data.channels=1", "data.bits=16"}, {"data.channels=4", "data.bits=8"}};
    folder_open();
    for (int c = 0; c < 2; c++)
        for (int split = 0; split < 2; split++)
            put_golden(in_folder("%s/class%d/a.png", split ? "val" : "train", c), c ? "rgba16.png" : "grey16.png");
    for (size_t k = 0; k < CR_COUNT(keys); k++)
        for (int side = 0; side <= 8; side += 8) {
            const struct cr_config *config, *packed_config;
            struct cr_dataset      *set, *packed;
            struct cr_pack_result   result;
            struct cr_pack_options  options = {.raw_side = side, .workers = 1};
            REQUIRE_OK(make_config(&config, FOLDER_SET, keys[k][0], keys[k][1]));
            REQUIRE_OK(cr_dataset_open(config, CR_SPLIT_TRAIN, &set));
            REQUIRE_OK(cr_pack_dataset(set, in_folder("train.crpk"), &options, &result));
            REQUIRE_OK(make_config(&packed_config, "data.kind=packed", root_is(tmp_path), keys[k][0], keys[k][1]));
            REQUIRE_OK(cr_dataset_open(packed_config, CR_SPLIT_TRAIN, &packed));
            for (int i = 0; i < 2; i++) {
                OWNED(image) a = {0}, b = {0};
                int32_t      label;
                REQUIRE_OK(cr_dataset_get(set, i, &a, &label));
                REQUIRE_OK(cr_dataset_get(packed, i, &b, &label));
                CHECK(b.format == a.format && cr_format_channels(a.format) == config->data.channels);
                if (!side) CHECK(!memcmp(a.rgb, b.rgb, image_bytes(&a)));
                if (side) {
                    uint8_t out[64 * 64 * 8];
                    REQUIRE_OK(cr_image_resize(&a, 0, 0, a.width, a.height, out, b.width, b.height, false));
                    CHECK(!memcmp(out, b.rgb, image_bytes(&b)));
                }
            }
            cr_dataset_close(packed);
            cr_config_close(packed_config);
            REQUIRE_OK(make_config(&packed_config, "data.kind=packed", root_is(tmp_path)));
            CHECK_STATUS(cr_dataset_open(packed_config, CR_SPLIT_TRAIN, &packed), side ? CR_ERR_CONFIG : CR_OK);
            if (side) CHECK(strstr(cr_error_message(), "pack the images again"));
            if (!side) cr_dataset_close(packed);
            cr_config_close(packed_config);
            cr_dataset_close(set);
            cr_config_close(config);
        }
}
