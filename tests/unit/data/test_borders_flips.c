/* tests/unit/data/test_borders_flips.c: the borders of data.pad_mode, and flips that alternate (data.flip). */
#include "tests/harness/data_support.h"
#include "tests/harness/image_support.h"

enum { SIZE = 9, PAD = 3, WHOLE = SIZE + 2 * PAD, BYTES = SIZE * SIZE * 3 };

static void draw(uint8_t rgb[BYTES]) {
    struct cr_rng rng = cr_rng_make(8, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < BYTES; i++) rgb[i] = (uint8_t)cr_rng_below(&rng, 256);
}

/* Builds the padded image outwards, one ring of pixels after the other. */
static void pad_image(const uint8_t *rgb, bool reflect, uint8_t whole[WHOLE][WHOLE][3]) {
    int from[WHOLE];
    for (int i = 0; i < SIZE; i++) from[PAD + i] = i;
    for (int ring = 1; ring <= PAD; ring++) {
        from[PAD - ring]            = reflect ? ring : 0;
        from[PAD + SIZE - 1 + ring] = reflect ? SIZE - 1 - ring : SIZE - 1;
    }
    for (int y = 0; y < WHOLE; y++)
        for (int x = 0; x < WHOLE; x++) memcpy(whole[y][x], rgb + ((size_t)from[y] * SIZE + (size_t)from[x]) * 3, 3);
}

/* Shifted images are windows of the padded image. The flip is left to the device. */
TEST(windows_of_the_padded_image) {
    for (int reflect = 0; reflect < 2; reflect++) {
        struct cr_prepare     black = {.size = SIZE, .crop = CR_CROP_PAD, .pad = PAD, .hflip = 0.5}, prep = black;
        uint8_t               rgb[BYTES], out[BYTES], plain[BYTES], whole[WHOLE][WHOLE][3];
        const struct cr_image image = {SIZE, SIZE, rgb, CR_RGB8};
        int                   moved = 0, wrong = 0;
        prep.pad_mode = reflect ? CR_PAD_REFLECT : CR_PAD_EDGE;
        draw(rgb);
        pad_image(rgb, reflect, whole);
        for (int i = 0; i < 60; i++) {
            int32_t box[4], shift[4];
            REQUIRE_OK(prepare_train(&black, &image, 1, 0, i, plain, shift));
            REQUIRE_OK(prepare_train(&prep, &image, 1, 0, i, out, box));
            CHECK(box[0] == 0 && box[1] == 0 && box[2] == shift[2]);
            moved += shift[0] != 0 && shift[1] != 0;
            for (int y = 0; y < SIZE; y++)
                for (int x = 0; x < SIZE; x++)
                    wrong += memcmp(out + (y * SIZE + x) * 3, whole[y + shift[0] + PAD][x + shift[1] + PAD], 3) != 0;
        }
        CHECK_INT(wrong, 0);
        CHECK(moved > 30);
    }
}

/* A border wider than the image is reflected several times; a single pixel is repeated. */
TEST(wide_borders) {
    uint8_t               rgb[2 * 2 * 3], out[2 * 2 * 3];
    const struct cr_image image = {2, 2, rgb, CR_RGB8}, dot = {1, 1, rgb, CR_RGB8};
    struct cr_prepare     prep = {.size = 2, .crop = CR_CROP_PAD, .pad = 40, .pad_mode = CR_PAD_REFLECT}, black = prep;
    for (int i = 0; i < 12; i++) rgb[i] = (uint8_t)(10 * i);
    black.pad_mode = CR_PAD_CONSTANT;
    for (int i = 0; i < 40; i++) {
        uint8_t plain[12];
        int32_t box[4], shift[4];
        REQUIRE_OK(prepare_train(&black, &image, 2, 0, i, plain, shift));
        REQUIRE_OK(prepare_train(&prep, &image, 2, 0, i, out, box));
        for (int at = 0; at < 4; at++) /* with two pixels, reflections alternate */
            CHECK(memcmp(out + 3 * at, rgb + 3 * (2 * ((at / 2 + shift[0]) & 1) + ((at + shift[1]) & 1)), 3) == 0);
    }
    prep.size = 1;
    for (int i = 0; i < 10; i++) {
        int32_t box[4];
        REQUIRE_OK(prepare_train(&prep, &dot, 2, 0, i, out, box));
        CHECK(memcmp(out, rgb, 3) == 0);
    }
}

/* Each epoch shows the other side; the first epoch mirrors half of the images, other ones with another seed. */
TEST(flips_alternate) {
    enum { IMAGES = 2000 };
    struct cr_prepare     prep = {.size = SIZE, .crop = CR_CROP_NONE, .hflip = 0.5, .flip = CR_FLIP_ALTERNATE};
    uint8_t               rgb[BYTES], out[BYTES];
    const struct cr_image image = {SIZE, SIZE, rgb, CR_RGB8};
    int                   first = 0, same_seed = 0;
    draw(rgb);
    for (int i = 0; i < IMAGES; i++) {
        int32_t box[4], other[4];
        REQUIRE_OK(prepare_train(&prep, &image, 1, 0, i, out, box));
        first += box[2];
        REQUIRE_OK(prepare_train(&prep, &image, 2, 0, i, out, other));
        same_seed += box[2] == other[2];
        for (int epoch = 1; epoch < 4; epoch++) {
            REQUIRE_OK(prepare_train(&prep, &image, 1, epoch, i, out, other));
            CHECK_INT(other[2], epoch % 2 ? !box[2] : box[2]);
        }
    }
    prep.hflip = 0;
    for (int epoch = 0; epoch < 4; epoch++) {
        int32_t box[4];
        REQUIRE_OK(prepare_train(&prep, &image, 1, epoch, 0, out, box));
        CHECK_INT(box[2], 0);
    }
    CHECK_NEAR(first, IMAGES / 2.0, 150);
    CHECK_NEAR(same_seed, IMAGES / 2.0, 150);
}
