/* tests/harness/api_support.h: a small trained run for the tests of the library. */
#ifndef API_SUPPORT_H
#define API_SUPPORT_H

#include "core/files.h"
#include "include/cresnet.h"
#include "session/session.h"
#include "tests/harness/data_support.h"
#include "training/training.h"

enum { API_SIZE = 8, API_CLASSES = 3, API_PIXELS = API_SIZE * API_SIZE * 3, API_FEATURES = 6 };

/* Trains a network of 3 classes and images of 8 x 8 for two steps; writes the path of its run folder to `run`. */
static inline cr_status api_train(const char *dir, const char *const *more, int count, char run[SUPPORT_PATH]) {
    const char *list[32] = {"model.arch=custom", "model.depths=1,1",    "model.widths=4,6",  "model.shortcut=B",
                            "model.classes=3",   "data.kind=synthetic", "data.image_size=8", "data.train_images=8",
                            "data.val_images=5", "data.workers=0",      "train.batch=4",     "train.epochs=1",
                            "train.device=cpu",  "train.threads=1"};
    int         used = 14, signal_taken = 0;
    char        output[SUPPORT_PATH];
    const struct cr_config *config;
    text_into(run, "%s/run", dir);
    text_into(output, "train.output=%s", run);
    for (int i = 0; i < count; i++) list[used++] = more[i];
    list[used++] = output;
    CR_TRY(cr_config_open(&config, NULL, list, used));
    const struct cr_train_options options = {.overrides = list, .override_count = used};
    cr_status                     status  = cr_train(config, &options, &signal_taken);
    cr_config_close(config);
    return status;
}

/* Images with values that depend on index and position. */
static inline void api_images(uint8_t *out, int count) {
    for (int i = 0; i < count * API_PIXELS; i++)
        out[i] = (uint8_t)((i * 37 + (i / API_PIXELS) * 101 + (i % 7) * 13) % 256);
}

/* The run that all cases of a test use: trains it at the first call and fills `count` images. `dir` and `run` are empty
 * before. Reports a test failure and returns false if the training fails. */
static inline bool api_have_run(char dir[SUPPORT_PATH], char run[SUPPORT_PATH], uint8_t *images, int count) {
    if (*run) return true;
    make_folder(dir);
    api_images(images, count);
    if (api_train(dir, NULL, 0, run) == CR_OK) return true;
    TEST_FAIL_("training: %s", cr_error_message());
    *run = 0;
    return false;
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
