/* tests/unit/data/test_rectangle.c: rectangular inputs: the pixels of evaluation and training images against those of
 * torchvision (tests/golden/data/make.py), erasing and mixing in the rectangle, the keys of [data]. */
#include "tests/harness/data_support.h"
#include "tests/harness/image_support.h"

TEST(pixels_are_torchvisions) {
    int                w, h, height, width, cover, seen = 0;
    unsigned long long want;
    OWNED(file)        file = fopen(GOLDEN "rectangle.txt", "r");
    REQUIRE(file);
    while (fscanf(file, "%d %d %d %d %d %llx", &w, &h, &height, &width, &cover, &want) == 6) {
        struct cr_image   image = make_image(w, h);
        int32_t           box[4];
        const double      aspect = (double)w / h;
        struct cr_prepare prep   = {.size        = height,
                                    .width       = width,
                                    .eval_resize = cover == height ? 0 : cover,
                                    .crop        = CR_CROP_RANDOM_RESIZED,
                                    .scale       = {1, 1},
                                    .ratio       = {aspect, aspect}};
        uint8_t          *out    = cr_alloc(cr_prepare_bytes(&prep), 1);
        CHECK_INT(cr_prepare_bytes(&prep), 3 * height * width);
        if (cover)
            REQUIRE_OK(cr_prepare_eval(&prep, &image, out));
        else
            REQUIRE_OK(prepare_train(&prep, &image, 1, 0, 0, out, box));
        if (sum_bytes(out, cr_prepare_bytes(&prep)) != want)
            TEST_FAIL_("%dx%d to %dx%d, cover %d: other pixels", w, h, height, width, cover);
        cr_free(out);
        cr_image_free(&image);
        seen++;
    }
    CHECK_INT(seen, 8);
}

/* An image of one value, and the box of the result that has this value; the rest is black. */
static void check_extreme(struct cr_prepare prep, int w, int h, int x, int y, int columns, int rows) {
    const int    width = prep.width, value = 201;
    OWNED(image) image = {.width = w, .height = h, .rgb = cr_alloc((size_t)w * (size_t)h, 3)};
    OWNED(bytes) out   = cr_alloc(cr_prepare_bytes(&prep), 1);
    int          wrong = 0;
    REQUIRE(image.rgb && out);
    memset(image.rgb, value, (size_t)w * (size_t)h * 3);
    REQUIRE_OK(cr_prepare_eval(&prep, &image, out));
    for (int i = 0; i < prep.size * width; i++) {
        const int  at_x = i % width - x, at_y = i / width - y;
        const bool inside = at_x >= 0 && at_x < columns && at_y >= 0 && at_y < rows;
        for (int c = 0; c < 3; c++) wrong += out[3 * i + c] != (inside ? value : 0);
    }
    if (wrong) TEST_FAIL_("%dx%d to %dx%d: %d bytes differ", w, h, prep.size, width, wrong);
}

/* Where eval_resize times the width is less than the height, the covering rectangle still has a column. */
TEST(every_image_has_a_pixel) {
    struct cr_prepare prep = {.size = 128, .width = 16, .eval_resize = 1};
    check_extreme(prep, 100, 50, 7, 63, 2, 1); /* covers 1 x 1 with 2 x 1 pixels */
    prep = (struct cr_prepare){.size = 32, .width = 8, .eval_resize = 3};
    check_extreme(prep, 1, 300, 3, 0, 1, 32);
    check_extreme(prep, 5000, 1, 0, 14, 8, 3);
    prep =
        (struct cr_prepare){.size = 16, .width = 128, .eval_resize = 8192}; /* 2^31 rows, most of which are cut off */
    check_extreme(prep, 1, CR_IMAGE_SIDE_MAX, 0, 0, 128, 16);
    check_extreme(prep, CR_IMAGE_SIDE_MAX, 1, 0, 0, 128, 16);
}

/* The shift and the flip of the box before an operation on pixels: as the device applies them (apply_box). */
TEST(operations_see_the_shifted_rectangle) {
    enum { H = 9, W = 15, BYTES = H * W * 3 };
    struct cr_prepare plain = {.size = H, .width = W, .crop = CR_CROP_PAD, .pad = 2, .hflip = 0.5}, with = plain;
    OWNED(image)      image = make_image(W, H);
    with.jitter[0]          = 1e-12; /* brightness that changes nothing */
    for (int i = 0; i < 40; i++) {
        uint8_t a[BYTES], b[BYTES];
        int32_t box[4], none[4];
        REQUIRE_OK(prepare_train(&plain, &image, 1, 0, i, a, box));
        REQUIRE_OK(prepare_train(&with, &image, 1, 0, i, b, none));
        CHECK(!none[0] && !none[1] && !none[2]);
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                const int  from_y = y + box[0], from_x = box[1] + (box[2] ? W - 1 - x : x);
                const bool inside = from_y >= 0 && from_y < H && from_x >= 0 && from_x < W;
                for (int c = 0; c < 3; c++)
                    CHECK_INT(b[(y * W + x) * 3 + c], inside ? a[(from_y * W + from_x) * 3 + c] : 0);
            }
    }
}

TEST(cuts_and_erased_boxes_fit) {
    const struct cr_prepare prep  = {.size        = 20,
                                     .width       = 60,
                                     .mixes       = true,
                                     .cutmix      = 1,
                                     .erase       = 1,
                                     .erase_scale = {0.02, 0.33},
                                     .mix_prob    = 1,
                                     .cutmix_prob = 1};
    int                     right = 0, shape = 0, cuts = 0;
    for (int i = 0; i < 4000; i++) {
        int32_t mix[CR_MIX_NUMBERS];
        cr_prepare_mix(&prep, 1, 0, i, 0, 8, mix);
        const int32_t *cut = mix + CR_MIX_CUT, *erase = mix + CR_MIX_ERASE;
        const int      h = cut[2] - cut[0], w = cut[3] - cut[1];
        CHECK(cut[0] >= 0 && cut[1] >= 0 && cut[2] <= 20 && cut[3] <= 60 && erase[2] <= 20 && erase[3] <= 60);
        CHECK_INT(mix[CR_MIX_LABEL_WEIGHT], (int)lrint((1 - (double)(h * w) / (20 * 60)) * CR_MIX_ONE));
        right += erase[3] > 20;
        if (cut[0] == 0 || cut[1] == 0 || cut[2] == 20 || cut[3] == 60 || h < 8) continue;
        cuts++;
        shape += abs(w - 3 * h) <= 8; /* the shape of the image, each side rounded to an even number */
    }
    CHECK(right > 2000);
    CHECK(cuts > 50);
    CHECK_INT(shape, cuts);
}

/* Keys of the command line replace the rectangle of a file; one number is a square again. */
TEST(keys_set_height_and_width) {
    static const struct {
        const char *keys[2];
        int         height, width;
        const char *error;
    } cases[] = {
        {{NULL}, 24, 40, NULL},
        {{"data.image_size=64"}, 64, 64, NULL},
        {{"data.image_width=96", "data.image_size=64"}, 64, 96, NULL},
        {{"data.image_size=192x320"}, 192, 320, NULL},
        {{"data.image_size=192x320", "data.image_width=0"}, 192, 192, NULL},
        {{"data.image_size=24y40"}, 0, 0, "a rectangle is HEIGHTxWIDTH, e.g. 192x320"},
        {{"data.image_size=192x9999"}, 0, 0, "image_width = 9999: must be from 0 to 4096"},
        {{"data.image_size=192x320", "data.eval_crop=192"}, 0, 0, "must be 0 with image_width"},
    };
    char  path[] = "/tmp/cresnet-rectangle-XXXXXX";
    int   fd     = mkstemp(path);
    FILE *file   = fd >= 0 ? fdopen(fd, "w") : NULL;
    REQUIRE(file);
    fputs("[data]\nimage_width = 40\nimage_size = 24\n", file);
    fclose(file);
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        OWNED(config)     config = NULL;
        struct cr_prepare prep;
        int               n = 0;
        while (n < 2 && cases[i].keys[n]) n++;
        const cr_status status = cr_config_open(&config, path, cases[i].keys, n);
        CHECK_INT(status, cases[i].error ? CR_ERR_CONFIG : CR_OK);
        if (status != CR_OK) {
            CHECK_HAS(cr_error_message(), cases[i].error ? cases[i].error : "");
            continue;
        }
        for (int split = 0; split < 2; split++) {
            REQUIRE_OK(cr_prepare_from_config(config, (enum cr_split)split, &prep));
            CHECK(prep.size == cases[i].height && cr_prepare_width(&prep) == cases[i].width);
        }
    }
    unlink(path);
}
