/* tests/unit/api/test_api.c: the functions of include/cresnet.h: results against own computations, every kind of input,
 * wrong arguments, many threads. */
#define IMAGES 5
#include "tests/harness/api_support.h"

#include <pthread.h>

static cresnet_tensor tensor_of(const void *data, cresnet_tensor_type type, cresnet_layout layout, int count) {
    return (cresnet_tensor){.data = data, .type = type, .layout = layout, .count = count};
}

/* ---- results ---- */

/* The classifier of CIFAR networks is called linear. */
static cr_status read_either(struct cr_st_file *file, const char *name, const char *other, void *out, size_t bytes) {
    const struct cr_st_entry *entry = cr_st_find(file, name);
    return cr_st_read(file, entry ? entry : cr_st_find(file, other), 0, out, bytes);
}

/* logits = features * W^T + b with the weights of the file; labels and probabilities follow from the logits. */
TEST(results_follow_from_the_weights) {
    cresnet_error      error;
    cresnet_output     output;
    cresnet_options    options = api_options(2); /* less than the images of a call */
    float              logits[IMAGES][API_CLASSES], features[IMAGES][API_FEATURES], probability[IMAGES][2];
    int32_t            label[IMAGES][2];
    char               path[CR_PATH_MAX];
    struct cr_st_file *file;
    options.features       = 1;
    OWNED(api_model) model = open_run(&options);
    REQUIRE(model);
    cresnet_output_init(&output);
    output.top           = 2;
    output.labels        = label[0];
    output.probabilities = probability[0];
    output.logits        = logits[0];
    output.features      = features[0];
    REQUIRE_CALL(cresnet_classify_tensor(model, &all_images, &output, &error));
    CHECK_INT(error.status, CRESNET_OK);
    CHECK_STR(error.text, "");

    float w[API_CLASSES * API_FEATURES], b[API_CLASSES];
    REQUIRE_OK(cr_path_join(path, run, "last/model.safetensors"));
    REQUIRE_OK(cr_ckpt_open_weights(path, NULL, 0, &file));
    REQUIRE_OK(read_either(file, "fc.weight", "linear.weight", w, sizeof w));
    REQUIRE_OK(read_either(file, "fc.bias", "linear.bias", b, sizeof b));
    cr_st_close(file);
    for (int i = 0; i < IMAGES; i++) {
        int    best = 0;
        double sum  = 0;
        for (int k = 0; k < API_CLASSES; k++) {
            double want = (double)b[k];
            for (int c = 0; c < API_FEATURES; c++) want += (double)w[k * API_FEATURES + c] * (double)features[i][c];
            CHECK_NEAR((double)logits[i][k], want, 1e-5);
            if (logits[i][k] > logits[i][best]) best = k;
        }
        for (int k = 0; k < API_CLASSES; k++) sum += exp((double)(logits[i][k] - logits[i][best]));
        CHECK_INT(label[i][0], best);
        CHECK_NEAR((double)probability[i][0], 1 / sum, 1e-6);
        CHECK(probability[i][0] >= probability[i][1] && label[i][1] != best);
    }
}

/* An image of the network's size is not resized. The rows of the second one have a gap. */
TEST(rows_may_have_gaps) {
    cresnet_error         error;
    const cresnet_options options = api_options(3);
    float                 want[IMAGES][API_CLASSES], got[IMAGES][API_CLASSES];
    uint8_t               padded[API_SIZE * 40];
    cresnet_output        to_want = api_logits(want[0]), to_got = api_logits(got[0]);
    OWNED(api_model)      model = open_run(&options);
    REQUIRE(model);
    REQUIRE_CALL(cresnet_classify_tensor(model, &all_images, &to_want, &error));
    for (int y = 0; y < API_SIZE; y++) memcpy(padded + 40 * y, images + API_PIXELS + 24 * y, 24);
    const cresnet_image pair[] = {{images, API_SIZE, API_SIZE, 0}, {padded, API_SIZE, API_SIZE, 40}};
    REQUIRE_CALL(cresnet_classify_images(model, pair, 2, &to_got, &error));
    CHECK(memcmp(got, want, 2 * sizeof got[0]) == 0);
}

TEST(files_and_their_bytes_give_the_same_results) {
    cresnet_error    error, image_error[4];
    cresnet_options  options = api_options(2);
    float            by_path[4][API_CLASSES], by_bytes[4][API_CLASSES];
    int32_t          label[4];
    OWNED(string)    bytes = NULL;
    size_t           count;
    cresnet_output   output = api_logits(by_path[0]);
    OWNED(api_model) model  = open_run(&options);
    REQUIRE(model);
    put_image(tmp_path, "good.png", 19, 17, 100);
    put_text(tmp_path, "bad.png", "not an image");
    const char *const good = in_folder("good.png"), *const paths[] = {good, in_folder("bad.png"), "/nowhere/x.png",
                                                                      good};
    output.image_errors = image_error;
    output.labels       = label;
    REQUIRE_CALL(cresnet_classify_files(model, paths, 4, &output, &error));
    CHECK_INT(image_error[0].status, CRESNET_OK);
    CHECK_INT(image_error[1].status, CRESNET_ERROR_FORMAT);
    CHECK_HAS(image_error[1].text, "bad.png: not an image; JPEG, PNG, WebP, TIFF and BMP can be read");
    CHECK_INT(image_error[2].status, CRESNET_ERROR_IO);
    CHECK_INT(image_error[3].status, CRESNET_OK);
    CHECK(label[1] == -1 && label[2] == -1 && label[0] == label[3] && by_path[1][0] == 0);
    CHECK(memcmp(by_path[0], by_path[3], sizeof by_path[0]) == 0);

    REQUIRE_OK(cr_file_read(good, 1 << 20, &bytes, &count));
    const cresnet_encoded encoded[] = {{bytes, count}, {"x", 1}, {NULL, 0}};
    output.logits                   = by_bytes[0];
    REQUIRE_CALL(cresnet_classify_encoded(model, encoded, 3, &output, &error));
    CHECK(memcmp(by_path[0], by_bytes[0], sizeof by_path[0]) == 0);
    CHECK(image_error[1].status == CRESNET_ERROR_FORMAT && image_error[2].status == CRESNET_ERROR_FORMAT);
    output.image_errors = NULL; /* now the first bad image fails the call */
    CHECK_CALL(cresnet_classify_encoded(model, encoded, 3, &output, &error), CRESNET_ERROR_FORMAT);
    CHECK_HAS(error.text, "image 1");
    CHECK_CALL(cresnet_classify_encoded(model, encoded, 1, &output, &error), CRESNET_OK); /* the model still works */
}

TEST(properties_are_those_of_the_run) {
    cresnet_error    error;
    cresnet_memory   memory;
    cresnet_options  options = api_options(7);
    cresnet_info     info    = {.size = sizeof info};
    OWNED(api_model) model   = open_run(&options);
    REQUIRE(model);
    REQUIRE_CALL(cresnet_memory_needed(run, &options, &memory, &error));
    CHECK_CALL(cresnet_get_info(model, &info), CRESNET_OK);
    CHECK_INT(info.classes, API_CLASSES);
    CHECK_INT(info.features, API_FEATURES);
    CHECK_INT(info.image_size, API_SIZE);
    CHECK_INT(info.max_batch, 7);
    CHECK_STR(info.precision, "fp32");
    CHECK_STR(info.network, "custom");
    CHECK_HAS(info.weights, "step-2");
    CHECK_HAS(info.device, "CPU");
    CHECK(info.memory.device_bytes == memory.device_bytes && memory.device_bytes > 1000);
    CHECK(info.memory.host_bytes == memory.host_bytes && memory.host_bytes >= 7 * API_PIXELS);
    CHECK_STR(cresnet_version(), CR_VERSION);
    CHECK(!cresnet_class_name(model, API_CLASSES) && !cresnet_class_name(model, -1));
    info.size = 1;
    CHECK_CALL(cresnet_get_info(model, &info), CRESNET_ERROR_ARGUMENT);
}

TEST(wrong_arguments_are_errors_and_the_model_stays_usable) {
    cresnet_error   error;
    cresnet_options options = api_options(1);
    float           logits[API_CLASSES];
    cresnet_output  output = api_logits(logits), wrong = output;
    cresnet_model  *model = open_run(&options);
    REQUIRE(model);
    const cresnet_tensor good  = tensor_of(images, CRESNET_U8, CRESNET_NHWC, 1);
    const cresnet_image  image = {images, API_SIZE, API_SIZE, 0};
    cresnet_tensor       t     = good;
    cresnet_image        i     = image;
#define REFUSED(call, part)                                                                                            \
    CHECK_CALL(call, CRESNET_ERROR_ARGUMENT);                                                                          \
    CHECK_HAS(error.text, part)
    REFUSED(cresnet_classify_tensor(NULL, &good, &output, &error), "model is NULL");
    REFUSED(cresnet_classify_tensor(model, NULL, &output, &error), "tensor is NULL");
    REFUSED(cresnet_classify_tensor(model, &good, NULL, &error), "output is NULL");
    REFUSED(cresnet_classify_images(model, NULL, 1, &output, &error), "images is NULL, but its count is 1");
    REFUSED(cresnet_classify_images(model, &image, -1, &output, &error), "count = -1");
    REFUSED(cresnet_classify_encoded(model, NULL, 2, &output, &error), "NULL");
    t.data = NULL;
    REFUSED(cresnet_classify_tensor(model, &t, &output, &error), "tensor.data is NULL, but its count is");
    t = good, t.type = CRESNET_F32;
    REFUSED(cresnet_classify_tensor(model, &t, &output, &error), "f32_tensors");
    t = good, t.layout = (cresnet_layout)9;
    REFUSED(cresnet_classify_tensor(model, &t, &output, &error), "tensor.layout = 9");
    t = good, t.on_device = 1;
    REFUSED(cresnet_classify_tensor(model, &t, &output, &error), "CPU");
    i.width = 0;
    REFUSED(cresnet_classify_images(model, &i, 1, &output, &error), "0 x 8");
    i = image, i.stride = 23;
    REFUSED(cresnet_classify_images(model, &i, 1, &output, &error), "stride = 23");
    wrong.size = 8;
    REFUSED(cresnet_classify_tensor(model, &good, &wrong, &error), "output.size = 8");
    wrong = output, wrong.features = logits;
    REFUSED(cresnet_classify_tensor(model, &good, &wrong, &error), "options.features = 1");
    wrong = output, wrong.top = API_CLASSES + 1, wrong.probabilities = logits;
    REFUSED(cresnet_classify_tensor(model, &good, &wrong, &error), "3 classes");
    /* a caller that was built before scores and rejected were added */
    wrong = output, wrong.size = offsetof(cresnet_output, scores), wrong.scores = (double *)1, wrong.logits = logits;
    CHECK_CALL(cresnet_classify_tensor(model, &good, &wrong, &error), CRESNET_OK);
    double score;
    wrong = output, wrong.scores = &score;
    CHECK_CALL(cresnet_classify_tensor(model, &good, &wrong, &error), CRESNET_ERROR_CONFIG);
    CHECK_HAS(error.text, "cresnet eval RUN --reject");
    CHECK_CALL(cresnet_classify_tensor(model, NULL, NULL, NULL), CRESNET_ERROR_ARGUMENT); /* no place for the text */
    CHECK_CALL(cresnet_classify_images(model, NULL, 0, &output, &error), CRESNET_OK);
    CHECK_CALL(cresnet_classify_tensor(model, &good, &output, &error), CRESNET_OK);
    cresnet_close(model);
    cresnet_close(NULL);
}

enum { THREADS = 10, CALLS = 20 };

struct caller {
    cresnet_model *model; /* NULL: the thread opens its own */
    const float   *want;
    int            wrong;
};

static void *call_often(void *argument) {
    struct caller   *c   = argument;
    OWNED(api_model) own = NULL;
    cresnet_error    error;
    cresnet_options  options = api_options(2);
    float            got[IMAGES][API_CLASSES];
    cresnet_output   output = api_logits(got[0]);
    if (!c->model && cresnet_open(run, &options, &own, &error) != CRESNET_OK) {
        c->wrong++;
        return NULL;
    }
    for (int i = 0; i < CALLS; i++) {
        const cresnet_tensor tensor = tensor_of(images, CRESNET_U8, CRESNET_NHWC, 1 + i % IMAGES);
        const size_t         bytes  = (size_t)tensor.count * sizeof got[0];
        memset(got, 0, sizeof got);
        if (cresnet_classify_tensor(own ? own : c->model, &tensor, &output, &error) != CRESNET_OK ||
            memcmp(got, c->want, bytes) != 0)
            c->wrong++;
    }
    return NULL;
}

TEST(many_threads_get_the_results_of_one) {
    cresnet_error    error;
    cresnet_options  options = api_options(2);
    float            want[IMAGES][API_CLASSES];
    cresnet_output   output = api_logits(want[0]);
    pthread_t        thread[THREADS];
    struct caller    caller[THREADS];
    OWNED(api_model) model = open_run(&options);
    REQUIRE(model);
    REQUIRE_CALL(cresnet_classify_tensor(model, &all_images, &output, &error));
    for (int i = 0; i < THREADS; i++) {
        caller[i] = (struct caller){.model = i % 2 ? model : NULL, .want = want[0]};
        REQUIRE(pthread_create(&thread[i], NULL, call_often, &caller[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(thread[i], NULL);
        CHECK_INT(caller[i].wrong, 0);
    }
}
