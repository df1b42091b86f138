/* tests/unit/api/test_api_guarded.c: images, encoded files and tensors that a caller of the library has at the edge of
 * its memory, and results at the edge, at every level; what CRESNET_CPU may name. */
#define IMAGES 5
#include "tests/harness/api_support.h"
#include "tests/harness/guard_pages.h"

enum { W = 16, H = 12, ROW = 3 * W, GAP = 7 };

static cresnet_model *open_model(bool f32) {
    cresnet_options options = api_options(2);
    options.f32_tensors     = f32;
    return open_run(&options);
}

/* Classifies with the logits in `want`, then the same bytes between guards. */
static void check_tensor(cresnet_model *model, const void *bytes, cresnet_tensor tensor, size_t count) {
    cresnet_error  error;
    float          want[IMAGES][API_CLASSES];
    cresnet_output output = api_logits(want[0]);
    tensor.data           = bytes;
    CHECK_CALL(cresnet_classify_tensor(model, &tensor, &output, &error), CRESNET_OK);
    for (int side = GUARD_AFTER; side < GUARD_SIDES; side++) {
        OWNED(guarded) from = guard_copy(bytes, count, (enum guard_side)side);
        OWNED(guarded) to   = guard_alloc(sizeof want, (enum guard_side)side);
        tensor.data         = from.bytes;
        output.logits       = (float *)(void *)to.bytes;
        CHECK_CALL(cresnet_classify_tensor(model, &tensor, &output, &error), CRESNET_OK);
        CHECK(memcmp(to.bytes, want, sizeof want) == 0);
    }
}

static void tensors_at(enum cr_cpu_level level) {
    static float values[IMAGES * API_PIXELS];
    for (int i = 0; i < IMAGES * API_PIXELS; i++) values[i] = (float)images[i] / 100 - 1;
    for (int layout = CRESNET_NHWC; layout <= CRESNET_NCHW; layout++)
        for (int f32 = 0; f32 < 2; f32++) {
            OWNED(api_model) model = open_model(f32);
            REQUIRE(model);
            check_tensor(model, images,
                         (cresnet_tensor){.type = CRESNET_U8, .layout = (cresnet_layout)layout, .count = IMAGES},
                         sizeof images);
            if (f32)
                check_tensor(model, values,
                             (cresnet_tensor){.type = CRESNET_F32, .layout = (cresnet_layout)layout, .count = IMAGES},
                             sizeof values);
        }
}

TEST(tensors_stay_inside) {
    if (have_run()) at_every_level(tensors_at);
}

TEST(a_wrong_level_is_an_error) {
    cresnet_options  options = api_options(1);
    OWNED(api_model) model   = NULL;
    cresnet_error    error;
    const char      *before = getenv("CRESNET_CPU");
    OWNED(string)    kept   = before ? cr_strdup(before) : NULL;
    if (!have_run()) return;
    setenv("CRESNET_CPU", "sse9", 1);
    CHECK_CALL(cresnet_open(run, &options, &model, &error), CRESNET_ERROR_CONFIG);
    CHECK_HAS(error.text, "CRESNET_CPU=sse9: give baseline, avx2, avx2_vnni or avx512; this processor has ");
    CHECK_HAS(error.text, cr_cpu_level_name(cr_cpu_processor_level()));
    CHECK(!model);
    if (cr_cpu_processor_level() < CR_CPU_AVX512) {
        setenv("CRESNET_CPU", "avx512", 1);
        CHECK_CALL(cresnet_open(run, &options, &model, &error), CRESNET_ERROR_DEVICE);
        CHECK_HAS(error.text, cr_cpu_level_name(cr_cpu_processor_level()));
    }
    if (kept)
        setenv("CRESNET_CPU", kept, 1);
    else
        unsetenv("CRESNET_CPU");
    CHECK_CALL(cresnet_open(run, &options, &model, &error), CRESNET_OK);
}
