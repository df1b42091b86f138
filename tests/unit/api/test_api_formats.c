/* tests/unit/api/test_api_formats.c: the library with networks for RGB, grey, RGBA and 16-bit images: files, decoded
 * images, prepared tensors in both layouts and normalised values give the same results. */
#include "tests/harness/api_support.h"
#include "tests/harness/image_support.h"

enum { SAMPLES_MAX = API_SIZE * API_SIZE * 4 };

struct format {
    const char          *keys[2], *file;
    enum cr_pixel_format pixels;
};
static const struct format formats[] = {{{"data.channels=3", "data.bits=8"}, "rgba.png", CR_RGB8},
                                        {{"data.channels=1", "data.bits=8"}, "grey16.png", CR_GREY8},
                                        {{"data.channels=1", "data.bits=16"}, "grey16.png", CR_GREY16},
                                        {{"data.channels=4", "data.bits=8"}, "rgba.png", CR_RGBA8},
                                        {{"data.channels=4", "data.bits=16"}, "rgba16.png", CR_RGBA16}};

static void check_info(const cresnet_model *model, const struct format *f) {
    cresnet_info info = {.size = sizeof info};
    CHECK_INT(cresnet_get_info(model, &info), CRESNET_OK);
    CHECK_INT(info.channels, cr_format_channels(f->pixels));
    CHECK_INT(info.bits, cr_format_bits(f->pixels));
    if (info.channels == 1) CHECK_NEAR((double)info.mean[0], 0.449, 1e-6);
    if (info.channels == 4) CHECK_NEAR((double)info.std4, 0.226, 1e-6);
    if (info.channels == 4) CHECK_NEAR((double)info.mean[2], 0.406, 1e-6);
}

/* prepared: [H][W][C]; writes [C][H][W], and the normalised values [H][W][C]. */
static void other_forms(const struct format *f, const void *prepared, void *by_channel, float *values) {
    static const double mean[4] = {0.485, 0.456, 0.406, 0.449}, std[4] = {0.229, 0.224, 0.225, 0.226};
    const int           C = cr_format_channels(f->pixels), pixels = API_SIZE * API_SIZE;
    for (int i = 0; i < pixels * C; i++) {
        const int    c = i % C, to = c * pixels + i / C, k = C == 1 ? 3 : c;
        const bool   wide = cr_format_bits(f->pixels) == 16;
        const double v    = wide ? ((const uint16_t *)prepared)[i] / 65535.0 : ((const uint8_t *)prepared)[i] / 255.0;
        if (wide)
            ((uint16_t *)by_channel)[to] = ((const uint16_t *)prepared)[i];
        else
            ((uint8_t *)by_channel)[to] = ((const uint8_t *)prepared)[i];
        values[i] = (float)((v - mean[k]) / std[k]);
    }
}

static void check_format(const struct format *f) {
    uint16_t        prepared[SAMPLES_MAX], by_channel[SAMPLES_MAX];
    float           values[SAMPLES_MAX], want[API_CLASSES], got[API_CLASSES];
    const bool      wide = cr_format_bits(f->pixels) == 16;
    const char     *file = formatted(CR_SOURCE_DIR "/tests/golden/data/%s", f->file);
    struct cr_image image;
    cresnet_error   error;
    cresnet_output  output;
    cresnet_options options;
    cresnet_model  *model;
    REQUIRE_OK(api_train(f->keys, 2));
    for (int f32 = 0; f32 < 2; f32++) {
        cresnet_options_init(&options);
        cresnet_output_init(&output);
        options.device = "cpu", options.threads = 1, options.f32_tensors = f32;
        REQUIRE_CALL(cresnet_open(run, &options, &model, &error));
        check_info(model, f);
        output.logits = want;
        CHECK_CALL(cresnet_classify_files(model, &file, 1, &output, &error), CRESNET_OK);
        output.logits = got;
        REQUIRE_OK(image_read(file, false, f->pixels, &image));
        const cresnet_image decoded = {image.rgb, image.width, image.height, 0};
        CHECK_CALL(cresnet_classify_images(model, &decoded, 1, &output, &error), CRESNET_OK);
        CHECK(!memcmp(got, want, sizeof want));
        CHECK_CALL(cresnet_prepare_files(model, &file, 1, (uint8_t *)prepared, NULL, &error), CRESNET_OK);
        other_forms(f, prepared, by_channel, values);
        cresnet_tensor tensor = {.data = prepared, .type = wide ? CRESNET_U16 : CRESNET_U8, .count = 1};
        CHECK_CALL(cresnet_classify_tensor(model, &tensor, &output, &error), CRESNET_OK);
        CHECK(!memcmp(got, want, sizeof want));
        tensor.data = by_channel, tensor.layout = CRESNET_NCHW;
        CHECK_CALL(cresnet_classify_tensor(model, &tensor, &output, &error), CRESNET_OK);
        CHECK(!memcmp(got, want, sizeof want));
        tensor.type = wide ? CRESNET_U8 : CRESNET_U16;
        CHECK_CALL(cresnet_classify_tensor(model, &tensor, &output, &error), CRESNET_ERROR_ARGUMENT);
        CHECK_HAS(error.text, wide ? "16 bits: use CRESNET_U16" : "8 bits: use CRESNET_U8");
        tensor = (cresnet_tensor){.data = values, .type = CRESNET_F32, .count = 1};
        CHECK_CALL(cresnet_classify_tensor(model, &tensor, &output, &error), f32 ? CRESNET_OK : CRESNET_ERROR_ARGUMENT);
        for (int k = 0; k < API_CLASSES && f32; k++) CHECK_NEAR((double)got[k], (double)want[k], 1e-5);
        cr_image_free(&image);
        cresnet_close(model);
    }
}

TEST(all_forms_of_an_image_give_the_same_logits) {
    for (size_t i = 0; i < CR_COUNT(formats); i++) check_format(&formats[i]);
}
