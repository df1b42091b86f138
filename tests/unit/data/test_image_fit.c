/* tests/unit/data/test_image_fit.c: images that are shown whole (data.fit = squash, letterbox): evaluation against
 * Pillow (tests/golden/data/make.py), random crops against crops of an image that was squashed or padded before. */
#include "tests/harness/data_support.h"
#include "tests/harness/image_support.h"

#define MEAN_COLOUR                                                                                                    \
    { 124, 116, 104 }

TEST(evaluation_matches_pillow) {
    char               fit[16];
    int                w, h, height, width, seen = 0;
    unsigned long long want;
    OWNED(file)        file = fopen(GOLDEN "fit.txt", "r");
    REQUIRE(file);
    while (fscanf(file, "%15s %d %d %d %d %llx", fit, &w, &h, &height, &width, &want) == 6) {
        struct cr_image   image = make_image(w, h);
        struct cr_prepare prep  = {.size   = height,
                                   .width  = width,
                                   .fit    = strcmp(fit, "squash") == 0 ? CR_FIT_SQUASH : CR_FIT_LETTERBOX,
                                   .border = MEAN_COLOUR};
        const size_t      bytes = cr_prepare_bytes(&prep);
        uint8_t          *out   = cr_alloc(bytes, 1);
        int32_t           box[4];
        REQUIRE_OK(cr_prepare_eval(&prep, &image, out));
        if (sum_bytes(out, bytes) != want) TEST_FAIL_("%s %dx%d to %dx%d: other pixels", fit, w, h, width, height);
        prep.crop = CR_CROP_NONE; /* training shows the same image */
        memset(out, 0, bytes);
        REQUIRE_OK(prepare_train(&prep, &image, 1, 0, 0, out, box));
        CHECK(sum_bytes(out, bytes) == want);
        cr_free(out);
        cr_image_free(&image);
        seen++;
    }
    CHECK_INT(seen, 28);
}

/* An image of 16-bit samples in a border: the border has the bytes of the configuration's mean. */
TEST(the_border_has_the_mean_colour) {
    static const struct {
        const char *overrides[4];
        uint8_t     border[8];
    } cases[] = {
        {{"data.fit=letterbox", "data.root=x", NULL}, MEAN_COLOUR},
        {{"data.fit=crop", "data.root=x", NULL}, {0}},
        {{"data.fit=squash", "data.root=x", NULL}, {0}},
        {{"data.fit=letterbox", "data.mean=-1,0.5,2", "data.root=x", NULL}, {0, 128, 255}},
        {{"data.fit=letterbox", "data.channels=1", "data.bits=16", NULL}, {0xf1, 0x72}}, /* 0.449 of 65535 */
    };
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        OWNED(config)     config = NULL;
        struct cr_prepare prep;
        REQUIRE_OK(make_config_(&config, cases[i].overrides));
        REQUIRE_OK(cr_prepare_from_config(config, CR_SPLIT_VAL, &prep));
        CHECK(memcmp(prep.border, cases[i].border, sizeof prep.border) == 0);
    }
}

TEST(several_crops_need_the_fit_crop) {
    OWNED(config)     config      = NULL;
    const char *const overrides[] = {"data.fit=squash", "data.tta=five-crop", "data.eval_resize=300", "data.root=x",
                                     NULL};
    struct cr_prepare prep;
    REQUIRE_OK(make_config_(&config, overrides));
    CHECK_STATUS(cr_prepare_from_config(config, CR_SPLIT_VAL, &prep), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "five-crop needs data.fit = crop");
    CHECK_STATUS(cr_prepare_from_config(config, CR_SPLIT_TRAIN, &prep), CR_OK);
}

/* ---- random crops ---- */

TEST(squashed_boxes_have_the_shape_of_the_image) {
    struct cr_prepare prep = {.fit = CR_FIT_SQUASH, .scale = {0.25, 0.25}, .ratio = {1, 1}};
    struct cr_rng     rng  = cr_rng_make(3, CR_RNG_TEST, 0, 0);
    int               box[4], moved = 0;
    for (int i = 0; i < 50; i++) {
        cr_prepare_draw_box(&prep, 1000, 60, &rng, box);
        CHECK(box[2] == 500 && box[3] == 30 && box[0] >= 0 && box[0] <= 500 && box[1] >= 0 && box[1] <= 30);
        moved += box[0] < 100 || box[0] > 400;
    }
    CHECK(moved > 5);
    prep = (struct cr_prepare){.fit = CR_FIT_SQUASH, .scale = {1, 1}, .ratio = {2, 3}}; /* does not fit: the centre */
    cr_prepare_draw_box(&prep, 1000, 60, &rng, box);
    CHECK(box[0] == 0 && box[2] == 1000 && box[1] == 15 && box[3] == 30);
}

TEST(a_crop_of_everything_is_the_evaluation) {
    for (int fit = CR_FIT_SQUASH; fit <= CR_FIT_LETTERBOX; fit++) {
        struct cr_prepare prep  = {.size   = 24,
                                   .fit    = (enum cr_fit)fit,
                                   .border = MEAN_COLOUR,
                                   .crop   = CR_CROP_RANDOM_RESIZED,
                                   .scale  = {1, 1},
                                   .ratio  = {1, 1}};
        OWNED(image)      image = make_image(96, 48);
        uint8_t           a[24 * 24 * 3], b[24 * 24 * 3];
        int32_t           box[4];
        REQUIRE_OK(prepare_train(&prep, &image, 1, 0, 0, a, box));
        REQUIRE_OK(cr_prepare_eval(&prep, &image, b));
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
}

enum { SIZE = 32, BORDER = 0 };

/* A ramp to the right in the first channel, one downwards in the second. */
static void draw_ramp(struct cr_image *image, int x0, int y0, int w, int h) {
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) {
            uint8_t *pixel = image->rgb + 3 * ((size_t)(y + y0) * (size_t)image->width + (size_t)(x + x0));
            pixel[0]       = (uint8_t)(100 + x);
            pixel[1]       = (uint8_t)(100 + y);
            pixel[2]       = UINT8_MAX;
        }
}

/* Compares crops of a letterboxed image with crops of an image that has the border. Between `least` and `most` of the
 * 200 show a border. */
static void compare_with_padded(int w, int h, int least, int most) {
    const int               side = CR_MAX(w, h), left = (side - w) / 2, top = (side - h) / 2;
    struct cr_image         image  = {w, h, cr_alloc((size_t)w * (size_t)h, 3), CR_RGB8};
    struct cr_image         padded = {side, side, cr_alloc((size_t)side * (size_t)side, 3), CR_RGB8};
    const struct cr_prepare prep   = {
          .size = SIZE, .crop = CR_CROP_RANDOM_RESIZED, .scale = {0.08, 1}, .ratio = {3.0 / 4, 4.0 / 3}};
    struct cr_prepare fits    = prep;
    int               borders = 0;
    fits.fit                  = CR_FIT_LETTERBOX;
    draw_ramp(&image, 0, 0, w, h);
    draw_ramp(&padded, left, top, w, h);
    for (int s = 0; s < 200; s++) {
        uint8_t       got[SIZE * SIZE * 3], want[SIZE * SIZE * 3];
        int32_t       box[4];
        int           drawn[4], border = 0;
        struct cr_rng rng = cr_rng_make(7, CR_RNG_AUGMENT, (uint64_t)s, 0);
        cr_prepare_draw_box(&prep, side, side, &rng, drawn);
        const int x = drawn[0] + drawn[2] / 2 - left, y = drawn[1] + drawn[3] / 2 - top;
        REQUIRE_OK(prepare_train(&fits, &image, 7, 0, s, got, box));
        REQUIRE_OK(prepare_train(&prep, &padded, 7, 0, s, want, box));
        for (int i = 0; i < SIZE * SIZE; i++) {
            CHECK(got[3 * i + 2] == BORDER || got[3 * i + 2] == UINT8_MAX);
            border += got[3 * i + 2] == BORDER;
        }
        CHECK(border < SIZE * SIZE);
        borders += border > 0;
        if (x < 0 || y < 0 || x >= w || y >= h) continue;              /* the letterboxed image is another crop */
        const double step = (double)CR_MAX(drawn[2], drawn[3]) / SIZE; /* pixels of the image for one of the crop */
        for (int i = 0; i < SIZE * SIZE; i++) {
            if (want[3 * i + 2] != UINT8_MAX || got[3 * i + 2] != UINT8_MAX) {
                CHECK(want[3 * i + 2] < UINT8_MAX || i % SIZE == 0 || i % SIZE == SIZE - 1 || i < SIZE ||
                      i >= SIZE * (SIZE - 1) || want[3 * i + 2 + 3] < UINT8_MAX || want[3 * i + 2 - 3] < UINT8_MAX ||
                      want[3 * (i + SIZE) + 2] < UINT8_MAX || want[3 * (i - SIZE) + 2] < UINT8_MAX);
                continue;
            }
            for (int c = 0; c < 2; c++) CHECK_NEAR(got[3 * i + c], want[3 * i + c], step + 1);
        }
    }
    cr_image_free(&image);
    cr_image_free(&padded);
    CHECK(borders >= least && borders <= most);
}

TEST(letterboxed_crops_are_those_of_the_padded_image) {
    compare_with_padded(120, 80, 50, 180);
    compare_with_padded(40, 150, 150, 200);
    compare_with_padded(60, 60, 0, 0);
    compare_with_padded(150, 2, 200, 200);
}

TEST(a_device_gets_boxes_within_the_image) {
    const struct cr_prepare prep    = {.size   = 20,
                                       .fit    = CR_FIT_LETTERBOX,
                                       .border = {1, 255, 2},
                                       .crop   = CR_CROP_RANDOM_RESIZED,
                                       .scale  = {0.08, 1},
                                       .ratio  = {3.0 / 4, 4.0 / 3}};
    struct cr_scratch       scratch = {0};
    struct cr_jpeg_data     data    = {.bytes = cr_alloc(1 << 20, 1), .capacity = 1 << 20};
    struct cr_jpeg_scan     scan    = {0};
    struct cr_stored        stored  = {.format = CR_RGB8};
    int                     devices = 0;
    stored.bytes                    = read_bytes(GOLDEN "rgb-444.jpg", &stored.count);
    REQUIRE(stored.bytes && data.bytes);
    for (int s = 0; s < 100; s++) {
        const struct cr_jpeg_job job = {&data, &scan};
        struct cr_lazy_image     lazy;
        uint8_t                  out[20 * 20 * 3];
        int32_t                  box[4];
        int                      border = 0;
        atomic_store(&data.used, 0);
        REQUIRE_OK(cr_lazy_image_open(&stored, "rgb-444.jpg", &scratch, &lazy));
        REQUIRE_OK(cr_prepare_train_with(&prep, &lazy, 1, 0, s, &scratch, out, box, &job));
        const bool device = scan.bytes > 0;
        scan.bytes        = 0;
        REQUIRE_OK(cr_lazy_image_open(&stored, "rgb-444.jpg", &scratch, &lazy));
        REQUIRE_OK(cr_prepare_train_with(&prep, &lazy, 1, 0, s, &scratch, out, box, NULL));
        for (int i = 0; i < 20 * 20; i++) border += memcmp(out + 3 * i, prep.border, 3) == 0;
        CHECK(device == (border == 0));
        devices += device;
    }
    CHECK(devices > 10 && devices < 90);
    cr_scratch_free(&scratch);
    cr_free(data.bytes);
    cr_free((void *)(uintptr_t)stored.bytes);
}
