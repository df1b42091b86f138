/* tests/harness/api_support.h: a small trained run in tmp_path for the tests of the library. A test defines IMAGES, the
 * number of images that it classifies. */
#ifndef API_SUPPORT_H
#define API_SUPPORT_H

#include "include/cresnet.h"
#include "tests/harness/data_support.h"
#include "training/training.h"

enum { API_SIZE = 8, API_CLASSES = 3, API_PIXELS = API_SIZE * API_SIZE * 3, API_FEATURES = 6 };

static char run[SUPPORT_PATH]; /* the run folder */

OWNABLE(api_model, cresnet_model *, cresnet_close(*x))

/* Trains a network of 3 classes and images of 8 x 8 for two steps in a new tmp_path. */
static inline cr_status api_train(const char *const *more, int count) {
    const char   *list[32] = {"model.arch=custom", "model.depths=1,1",    "model.widths=4,6",  "model.shortcut=B",
                              "model.classes=3",   "data.kind=synthetic", "data.image_size=8", "data.train_images=8",
                              "data.val_images=5", "data.workers=0",      "train.batch=4",     "train.epochs=1",
                              "train.device=cpu",  "train.threads=1"};
    int           used = 14, signal_taken = 0;
    OWNED(config) config = NULL;
    folder_open();
    snprintf(run, sizeof run, "%s", in_folder("run"));
    for (int i = 0; i < count; i++) list[used++] = more[i];
    list[used++] = formatted("train.output=%s", run);
    CR_TRY(cr_config_open(&config, NULL, list, used));
    const struct cr_train_options options = {.overrides = list, .override_count = used};
    return cr_train(config, &options, &signal_taken);
}

static inline cresnet_options api_options(int batch) {
    cresnet_options options;
    cresnet_options_init(&options);
    options.device    = "cpu";
    options.max_batch = batch;
    options.threads   = 1;
    return options;
}

static inline cresnet_output api_logits(float *logits) {
    cresnet_output output;
    cresnet_output_init(&output);
    output.logits = logits;
    return output;
}

#ifdef IMAGES
static uint8_t              images[IMAGES * API_PIXELS]; /* values that depend on index and position */
static const cresnet_tensor all_images = {.data = images, .type = CRESNET_U8, .count = IMAGES};

/* Trains the run that all cases of a test use, at the first call. Reports a test failure when the training fails. */
static inline bool have_run(void) {
    if (*run) return true;
    for (int i = 0; i < IMAGES * API_PIXELS; i++)
        images[i] = (uint8_t)((i * 37 + (i / API_PIXELS) * 101 + (i % 7) * 13) % 256);
    if (api_train(NULL, 0) == CR_OK) return true;
    TEST_FAIL_("training: %s", cr_error_message());
    *run = 0;
    return false;
}

/* Opens that run; NULL after a failure, which is reported. */
static inline cresnet_model *open_run(const cresnet_options *options) {
    cresnet_model *model = NULL;
    cresnet_error  error;
    if (have_run() && cresnet_open(run, options, &model, &error) != CRESNET_OK) TEST_FAIL_("%s", error.text);
    return model;
}
#endif

#define CHECK_CALL(call, want)                                                                                         \
    do {                                                                                                               \
        const cresnet_status got_status_ = (call);                                                                     \
        if (got_status_ != (want))                                                                                     \
            TEST_FAIL_("%s: %s, want %s: %s", #call, cresnet_status_name(got_status_), cresnet_status_name(want),      \
                       error.text);                                                                                    \
    } while (0)
#define REQUIRE_CALL(call)                                                                                             \
    do {                                                                                                               \
        if ((call) != CRESNET_OK) {                                                                                    \
            TEST_FAIL_("%s: %s: %s", #call, cresnet_status_name(error.status), error.text);                            \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

#endif
