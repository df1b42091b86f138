/* tests/gpu/test_cuda_train.c: training on the GPU: captured graphs and single launches, fp16 and its loss scale, no
 * allocation after the first step, bitwise identical resuming, and refused settings. test_checkops tests single ops,
 * test_golden_train compares whole runs with PyTorch. */
#include "core/rng.h"
#include "tests/harness/test_gpu.h"

enum { BATCH = 16, SIZE = 32, CLASSES = 10 };

static const struct cr_step_block block = {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-4f};

struct run {
    const struct cr_config *config;
    struct cr_session       session;
    uint8_t                *pixels;
    int32_t                 labels[BATCH], boxes[BATCH * 4];
};

/* train.measure=no: while other programs use the GPU, two sessions may measure different times and choose different
 * kernels. */
static cr_status run_open(struct run *r, const char *const *more, int count) {
    const char *overrides[24] = {"train.device=cuda",  "model.arch=custom", "model.depths=1,1",
                                 "model.widths=16,32", "model.classes=10",  "data.kind=synthetic",
                                 "data.image_size=32", "train.batch=16",    "train.measure=no"};
    int         n             = 9;
    for (int i = 0; i < count; i++) overrides[n++] = more[i];
    *r = (struct run){0};
    CR_TRY(cr_config_open(&r->config, NULL, overrides, n));
    const struct cr_session_options o = {.train = true, .eval = true, .execute = true, .classes = CLASSES};
    CR_TRY(cr_session_open(r->config, &o, &r->session));
    CR_TRY(cr_session_init(&r->session));
    CR_ALLOC(r->pixels, (size_t)BATCH * SIZE * SIZE * 3);
    return CR_OK;
}
#define OPEN(r, ...) run_open(r, ((const char *const[]){__VA_ARGS__}), CR_COUNT(((const char *const[]){__VA_ARGS__})))

static void run_close(struct run *r) {
    cr_free(r->pixels);
    cr_session_close(&r->session);
    cr_config_close(r->config);
}
OWNABLE(run, struct run, run_close(x))

/* Step `step` of a fixed sequence of batches; every class has its own brightness, so that the network can learn. */
static cr_status feed(struct run *r, struct cr_exec *exec, int64_t step) {
    struct cr_rng rng = cr_rng_make(7, CR_RNG_TEST, (uint64_t)step, 0);
    for (int i = 0; i < BATCH; i++) {
        r->labels[i] = (int32_t)cr_rng_below(&rng, CLASSES);
        for (int k = 0; k < 4; k++) r->boxes[i * 4 + k] = k == 2 ? (int32_t)cr_rng_below(&rng, 2) : 0;
        for (int k = 0; k < SIZE * SIZE * 3; k++)
            r->pixels[i * SIZE * SIZE * 3 + k] = (uint8_t)(r->labels[i] * 20 + (int32_t)cr_rng_below(&rng, 60));
    }
    return cr_exec_feed(exec, r->pixels, r->labels, r->boxes);
}

static cr_status steps(struct run *r, int64_t from, int64_t to, struct cr_exec_result *last) {
    struct cr_exec *exec = r->session.train_exec[0];
    for (int64_t i = from; i < to; i++) {
        CR_TRY(feed(r, exec, i));
        CR_TRY(cr_exec_run(exec, &block));
        CR_TRY(cr_exec_result(exec, cr_exec_runs(exec), last));
    }
    return CR_OK;
}

/* The whole parameter store, which the caller frees. */
static char *store_of(struct run *r) {
    const size_t bytes = r->session.memory.bytes[CR_REGION_STORE];
    char        *host  = malloc(bytes);
    if (!host || r->session.device->backend->get(r->session.device, host, r->session.memory.region[CR_REGION_STORE],
                                                 bytes) != CR_OK)
        abort();
    return host;
}

static const char *const precisions[] = {"train.precision=fp32", "train.precision=tf32", "train.precision=fp16",
                                         "train.precision=bf16"};

static void check_captured(const char *const *more, int count) {
    OWNED(run)            a = {0}, b = {0};
    struct cr_exec_result ra, rb;
    REQUIRE_OK(run_open(&a, more, count));
    setenv("CRESNET_SYNC", "1", 1);
    cr_status status = run_open(&b, more, count);
    unsetenv("CRESNET_SYNC");
    REQUIRE_OK(status);
    REQUIRE_OK(steps(&a, 0, 6, &ra));
    REQUIRE_OK(steps(&b, 0, 6, &rb));
    char *sa = store_of(&a), *sb = store_of(&b);
    CHECK(memcmp(sa, sb, a.session.memory.bytes[CR_REGION_STORE]) == 0);
    CHECK(isfinite(ra.loss_sum) && ra.loss_sum == rb.loss_sum);
    free(sa);
    free(sb);
}

TEST(captured_graph_equals_launches) {
    NEED_GPU();
    for (size_t p = 0; p < CR_COUNT(precisions); p++) check_captured(&precisions[p], 1);
}

/* Other update rules, averages, masks, mixed images and layers. */
TEST(captured_graph_equals_launches_with_all_options) {
    static const char *const sets[][6] = {{"train.precision=fp16", "optim.kind=adamw", "optim.lr=0.001",
                                           "ema.decay=0.9", "data.mixup=0.4", "data.erase=0.5"},
                                          {"train.precision=bf16", "optim.kind=lars", "prune.sparsity=0.5",
                                           "ema.decay=0.9", "ema.warmup=no", "data.cutmix=1"},
                                          {"train.precision=fp16", "model.excitation=yes", "model.stem=deep",
                                           "model.shortcut=D", "ema.decay=0.9", "optim.nesterov=yes"}};
    NEED_GPU();
    for (size_t i = 0; i < CR_COUNT(sets); i++) check_captured(sets[i], 6);
}

TEST(it_learns_in_every_precision) {
    NEED_GPU();
    double fp32 = 0;
    for (size_t p = 0; p < CR_COUNT(precisions); p++) {
        OWNED(run)            r = {0};
        struct cr_exec_result first, last;
        REQUIRE_OK(OPEN(&r, precisions[p]));
        REQUIRE_OK(steps(&r, 0, 1, &first));
        REQUIRE_OK(steps(&r, 1, 60, &last));
        if (p == 0) fp32 = last.loss_sum;
        printf("    %s: loss %.4f -> %.4f, scale %g, %lld skipped\n", precisions[p], first.loss_sum / BATCH,
               last.loss_sum / BATCH, last.loss_scale, (long long)last.skipped);
        CHECK(isfinite(last.loss_sum) && last.loss_sum < 0.75 * first.loss_sum);
        CHECK_NEAR(last.loss_sum / BATCH, fp32 / BATCH, 0.5);
    }
}

TEST(nothing_is_allocated_after_the_first_step) {
    NEED_GPU();
    OWNED(run)            r = {0};
    struct cr_exec_result last;
    REQUIRE_OK(OPEN(&r, "train.precision=fp16"));
    const struct cr_backend *backend = r.session.device->backend;
    REQUIRE_OK(steps(&r, 0, 1, &last));
    const uint64_t calls = cr_alloc_calls();
    const size_t   left  = backend->memory_free(r.session.device);
    REQUIRE_OK(steps(&r, 1, 100, &last));
    CHECK_INT(cr_alloc_calls(), calls);
    CHECK(left > 0);
    CHECK_INT(backend->memory_free(r.session.device), left);
}

/* A loss scale at which every gradient overflows: updates are skipped and the scale is halved until they are finite. */
TEST(an_overflow_skips_the_update_and_halves_the_scale) {
    NEED_GPU();
    OWNED(run)            r = {0};
    struct cr_exec_result result;
    REQUIRE_OK(OPEN(&r, "train.precision=fp16"));
    char *state = (char *)r.session.memory.region[CR_REGION_STORE] +
                  cr_param_store_buffer_offset(&r.session.model.store, CR_BUFFER_STATE);
    double scale = 0x1p40;
    REQUIRE_OK(r.session.device->backend->put(r.session.device, state, &scale, sizeof scale));
    char *before = store_of(&r);
    REQUIRE_OK(steps(&r, 0, 1, &result));
    char *after = store_of(&r);
    CHECK(result.nonfinite && result.skipped == 1 && result.loss_scale == 0x1p39);
    CHECK(memcmp(before, after, cr_param_store_buffer_bytes(&r.session.model.store, CR_BUFFER_VALUE)) == 0);
    REQUIRE_OK(steps(&r, 1, 60, &result));
    CHECK(!result.nonfinite && result.skipped > 1 && result.loss_scale < 0x1p39);
    free(before);
    free(after);
}

TEST(a_static_scale_does_not_change) {
    NEED_GPU();
    OWNED(run)            r = {0};
    struct cr_exec_result result;
    REQUIRE_OK(OPEN(&r, "train.precision=fp16", "train.loss_scale=128"));
    REQUIRE_OK(steps(&r, 0, 30, &result));
    CHECK(result.loss_scale == 128 && result.skipped == 0 && !result.nonfinite);
}

TEST(invalid_settings_are_refused) {
    NEED_GPU();
    struct run r;
    CHECK_STATUS(OPEN(&r, "train.gpu=99"), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "train.gpu = 99");
    run_close(&r);
    CHECK_STATUS(OPEN(&r, "train.batch=100000", "data.image_size=512"), CR_ERR_MEMORY);
    CHECK_HAS(cr_error_message(), "MiB more than available");
    CHECK_HAS(cr_error_message(), "train.batch");
    run_close(&r);
}
