/* tests/unit/api/test_api_tensors.c: cresnet_classify_tensors and cresnet_prepare_files, and the ranking of classes. */
#define IMAGES 7
#include "tests/harness/api_support.h"

static cresnet_model *open_with(int batch, int f32_tensors) {
    cresnet_options options = api_options(batch);
    options.f32_tensors     = f32_tensors;
    return open_run(&options);
}

/* The images of several tensors in any order give the logits of each image alone, also when a tensor is divided between
 * two batches. */
TEST(scattered_images_give_the_logits_of_each) {
    static const int order[IMAGES] = {4, 0, 6, 2, 3, 1, 5}; /* 2 and 3 come from one tensor */
    cresnet_error    error;
    float            one[IMAGES][API_CLASSES], got[IMAGES][API_CLASSES];
    cresnet_output   to_one = api_logits(one[0]), to_got = api_logits(got[0]);
    cresnet_tensor   list[8] = {{0}};
    int              used    = 0;
    for (int i = 0; i < IMAGES; i++) {
        if (i == 4) continue; /* image 3 follows image 2 */
        list[used++] = (cresnet_tensor){
            .data = images + order[i] * API_PIXELS, .type = CRESNET_U8, .count = order[i] == 2 ? 2 : 1};
        if (i == 1) list[used++] = (cresnet_tensor){.data = NULL, .type = CRESNET_U8, .count = 0};
    }
    for (int batch = 1; batch <= IMAGES + 1; batch++)
        for (int f32 = 0; f32 < 2; f32++) {
            OWNED(api_model) model = open_with(batch, f32);
            REQUIRE(model);
            memset(got, 0, sizeof got);
            CHECK_CALL(cresnet_classify_tensor(model, &all_images, &to_one, &error), CRESNET_OK);
            CHECK_CALL(cresnet_classify_tensors(model, list, used, &to_got, &error), CRESNET_OK);
            for (int i = 0; i < IMAGES; i++) CHECK(memcmp(got[i], one[order[i]], sizeof got[i]) == 0);
        }
}

TEST(wrong_lists_of_tensors_are_errors) {
    cresnet_error        error;
    float                logits[2 * API_CLASSES], values[API_PIXELS] = {0};
    cresnet_output       output = api_logits(logits);
    const cresnet_tensor bytes  = {.data = images, .type = CRESNET_U8, .count = 1};
    const cresnet_tensor reals  = {.data = values, .type = CRESNET_F32, .count = 1};
    cresnet_tensor       list[] = {bytes, reals}, large[3];
    OWNED(api_model)     model  = open_with(2, 1);
    REQUIRE(model);
    CHECK_CALL(cresnet_classify_tensors(model, list, 2, &output, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_HAS(error.text, "tensors[0] and tensors[1] differ");
    list[1] = bytes, list[1].data = NULL;
    CHECK_CALL(cresnet_classify_tensors(model, list, 2, &output, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_CALL(cresnet_classify_tensors(model, list, -1, &output, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_CALL(cresnet_classify_tensors(NULL, list, 1, &output, &error), CRESNET_ERROR_ARGUMENT);
    for (int i = 0; i < 3; i++) large[i] = bytes, large[i].count = INT32_MAX;
    CHECK_CALL(cresnet_classify_tensors(model, large, 3, &output, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_HAS(error.text, "6442450941 images");
    CHECK_CALL(cresnet_classify_tensors(model, NULL, 0, &output, &error), CRESNET_OK);
    CHECK_CALL(cresnet_classify_tensors(model, list, 1, &output, &error), CRESNET_OK);
}

TEST(prepared_files_are_what_is_classified) {
    cresnet_error    error, image_error[3];
    uint8_t          prepared[3 * API_PIXELS];
    float            want[2][API_CLASSES], got[2][API_CLASSES];
    cresnet_output   to_want = api_logits(want[0]), to_got = api_logits(got[0]);
    OWNED(api_model) model = open_with(2, 0);
    REQUIRE(model);
    put_image(tmp_path, "good.png", 19, 17, 100);
    put_text(tmp_path, "bad.png", "not an image");
    const char *const    paths[] = {in_folder("good.png"), in_folder("bad.png"), in_folder("good.png")};
    const cresnet_tensor tensor  = {.data = prepared + API_PIXELS, .type = CRESNET_U8, .count = 2};
    memset(prepared, 7, sizeof prepared);
    CHECK_CALL(cresnet_prepare_files(model, paths, 3, prepared, image_error, &error), CRESNET_OK);
    CHECK(image_error[0].status == CRESNET_OK && image_error[2].status == CRESNET_OK);
    CHECK_INT(image_error[1].status, CRESNET_ERROR_FORMAT);
    for (int i = 0; i < API_PIXELS; i++) CHECK(prepared[API_PIXELS + i] == 0);
    CHECK(memcmp(prepared, prepared + 2 * API_PIXELS, API_PIXELS) == 0);
    CHECK_CALL(cresnet_classify_files(model, &paths[2], 1, &to_want, &error), CRESNET_OK);
    CHECK_CALL(cresnet_classify_tensor(model, &tensor, &to_got, &error), CRESNET_OK);
    CHECK(memcmp(want[0], got[1], sizeof want[0]) == 0);

    CHECK_CALL(cresnet_prepare_files(model, paths, 3, prepared, NULL, &error), CRESNET_ERROR_FORMAT);
    CHECK_HAS(error.text, "bad.png");
    CHECK_CALL(cresnet_prepare_files(model, paths, 1, NULL, NULL, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_HAS(error.text, "out is NULL");
    CHECK_CALL(cresnet_prepare_files(model, NULL, 1, prepared, NULL, &error), CRESNET_ERROR_ARGUMENT);
    CHECK_CALL(cresnet_prepare_files(model, NULL, 0, NULL, NULL, &error), CRESNET_OK);
}

/* Against a search for the best class that is not yet ranked. Logits of few values have many ties. */
TEST(classes_are_ranked_by_logit_and_label) {
    enum { CLASSES = 37 };
    float            logits[CLASSES], probability[CLASSES];
    int32_t          label[CLASSES];
    struct cr_ranked ranked[CLASSES];
    srand(5);
    for (int round = 0; round < 60; round++) {
        double sum = 0;
        for (int k = 0; k < CLASSES; k++) logits[k] = (float)(rand() % (round % 3 ? 9 : 10000)) / 8 - 3;
        for (int k = 0; k < CLASSES; k++) sum += exp((double)logits[k]);
        for (int top = 1; top <= CLASSES; top += top < 10 ? 1 : 9) {
            bool taken[CLASSES] = {false};
            cr_session_top_classes(logits, CLASSES, top, false, ranked, label, round % 2 ? probability : NULL);
            for (int i = 0; i < top; i++) {
                int best = -1;
                for (int k = 0; k < CLASSES; k++)
                    if (!taken[k] && (best < 0 || logits[k] > logits[best])) best = k;
                taken[best] = true;
                CHECK_INT(label[i], best);
                if (round % 2 && round % 3) CHECK_NEAR((double)probability[i], exp((double)logits[best]) / sum, 1e-6);
            }
        }
    }
}

/* The setting gives tensors of 8 rows of 16 pixels; an image of this size is not resized. Logits of views are averaged,
 * for images but not for tensors. */
TEST(settings_give_rectangles_and_views) {
    enum { WIDTH = 2 * API_SIZE, BYTES = API_SIZE * WIDTH * 3 };
    const char *const settings[] = {"data.image_size=8x16", "data.tta=flip"};
    cresnet_options   options    = api_options(1);
    cresnet_error     error;
    cresnet_info      info = {.size = sizeof info};
    uint8_t           mirrored[BYTES];
    float             one[API_CLASSES], other[API_CLASSES], mean[API_CLASSES];
    cresnet_output    to_one = api_logits(one), to_other = api_logits(other), to_mean = api_logits(mean);
    options.settings       = settings;
    options.setting_count  = 2;
    OWNED(api_model) model = open_run(&options);
    REQUIRE(model);
    CHECK_CALL(cresnet_get_info(model, &info), CRESNET_OK);
    CHECK(info.image_size == API_SIZE && info.image_width == WIDTH);
    for (int i = 0; i < BYTES; i++) {
        const int y = i / 3 / WIDTH, x = i / 3 % WIDTH;
        mirrored[(y * WIDTH + WIDTH - 1 - x) * 3 + i % 3] = images[i];
    }
    const cresnet_image  image = {images, WIDTH, API_SIZE, 0};
    const cresnet_tensor plain = {.data = images, .type = CRESNET_U8, .count = 1},
                         back  = {.data = mirrored, .type = CRESNET_U8, .count = 1};
    CHECK_CALL(cresnet_classify_tensor(model, &plain, &to_one, &error), CRESNET_OK);
    CHECK_CALL(cresnet_classify_tensor(model, &back, &to_other, &error), CRESNET_OK);
    CHECK_CALL(cresnet_classify_images(model, &image, 1, &to_mean, &error), CRESNET_OK);
    for (int k = 0; k < API_CLASSES; k++) CHECK_NEAR(mean[k], (one[k] + other[k]) / 2, 1e-6);
    CHECK(memcmp(one, other, sizeof one) != 0);
}
