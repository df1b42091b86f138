/* tests/unit/api/test_api_open.c: models that cannot be opened or used: wrong options, missing and damaged files,
 * lack of memory. That a download can be interrupted: tests/cli/library_arrays.py. */
#define IMAGES 1
#include "api/model.h"
#include "tests/harness/api_support.h"
#include "tests/harness/failing_alloc.h"

static uint8_t pixels[16 * 12 * 3];

TEST(models_that_cannot_be_opened_say_why) {
    OWNED(api_model)   model = NULL;
    cresnet_error      error;
    cresnet_options    options = api_options(1);
    static const char *wrong[] = {"model.depths=0"};
    static const char *other[] = {"model.widths=4,8"}, *classes[] = {"model.classes=77"};
    char              *bytes;
    size_t             count;
    if (!have_run()) return;
#define NOT_OPENED(given, want, part)                                                                                  \
    model = (cresnet_model *)&error;                                                                                   \
    CHECK_CALL(cresnet_open(given, &options, &model, &error), want);                                                   \
    CHECK_HAS(error.text, part);                                                                                       \
    CHECK(!model)
    NOT_OPENED(NULL, CRESNET_ERROR_ARGUMENT, "no path");
    NOT_OPENED("/nowhere/run", CRESNET_ERROR_IO, "/nowhere/run: No such file");
    NOT_OPENED(formatted("/%02000d", 7), CRESNET_ERROR_IO, "00007: File name too long");
    NOT_OPENED(tmp_path, CRESNET_ERROR_CONFIG, "is no run folder");
    options.device = "tpu";
    NOT_OPENED(run, CRESNET_ERROR_CONFIG, "options: [train] device = tpu: must be one of");
    options.device = "cpu:1";
    NOT_OPENED(run, CRESNET_ERROR_CONFIG, "options.device = cpu:1: only cuda has a number");
    options.device = "cuda:1023";
    NOT_OPENED(run, CRESNET_ERROR_DEVICE, cr_device_count(CR_DEVICE_CUDA) ? "device" : "use options.device = cpu");
    CHECK(!strstr(error.text, "--device"));
    options = api_options(1), options.config = "";
    NOT_OPENED(run, CRESNET_ERROR_ARGUMENT, "options.config is empty");
    options = api_options(0);
    NOT_OPENED(run, CRESNET_ERROR_ARGUMENT, "max_batch = 0");
    options = api_options(1), options.size = 3;
    NOT_OPENED(run, CRESNET_ERROR_ARGUMENT, "options.size = 3");
    options = api_options(1), options.setting_count = 1;
    NOT_OPENED(run, CRESNET_ERROR_ARGUMENT, "setting_count");
    options.settings = wrong;
    NOT_OPENED(run, CRESNET_ERROR_CONFIG, "depths");
    options.settings = other; /* the weights do not fit this network */
    NOT_OPENED(run, CRESNET_ERROR_FORMAT, "safetensors");
    options.settings = classes;
    NOT_OPENED(run, CRESNET_ERROR_FORMAT, "but model.classes is 77");
    options = api_options(1);

    /* A truncated file of weights with a configuration next to it. */
    const char *path = formatted("%s/last/model.safetensors", run);
    REQUIRE_OK(cr_file_read(path, 1 << 24, &bytes, &count));
    path = formatted("%s/cut.safetensors", tmp_path);
    REQUIRE_OK(cr_file_write_atomic(path, bytes, count / 2));
    cr_free(bytes);
    NOT_OPENED(path, CRESNET_ERROR_CONFIG, "config.ini: does not exist");
    options.config = formatted("%s/last/config.ini", run);
    NOT_OPENED(path, CRESNET_ERROR_FORMAT, "cut.safetensors");
    path = formatted("%s/last/model.safetensors", run);
    REQUIRE_CALL(cresnet_open(path, &options, &model, &error));
}

/* cr_api_open_config owns the configuration that it is given: it must also free it when the model cannot be opened. */
TEST(failing_allocations_are_errors_without_leaks) {
    const cresnet_options   options = api_options(2);
    const cresnet_image     image   = {pixels, 16, 12, 0};
    const struct cr_config *config  = NULL;
    cresnet_model          *model;
    cresnet_error           error;
    float                   logits[IMAGES][API_CLASSES];
    cresnet_output          output = api_logits(logits[0]);
    if (!have_run()) return;
    const char *path = formatted("%s/last/config.ini", run), *weights = formatted("model.weights=%s/last", run);
    for (int given = 0; given < 2; given++) for_each_failing_alloc(f, .least = 50) {
            if (given) REQUIRE_OK(cr_config_open_stored(&config, path, &weights, 1));
            failing_alloc_begin(&f);
            cresnet_status status = given ? cr_api_open_config(config, &options, &model, &error)
                                          : cresnet_open(run, &options, &model, &error);
            if (status == CRESNET_OK) status = cresnet_classify_images(model, &image, 1, &output, &error);
            failing_alloc_end(&f, status == CRESNET_ERROR_MEMORY ? CR_ERR_MEMORY : status ? CR_ERR_DEVICE : CR_OK);
            cresnet_close(model);
        }
}
