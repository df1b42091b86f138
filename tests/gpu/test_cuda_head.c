/* tests/gpu/test_cuda_head.c: the ops around the loss as one op (cr_pass_head) in a whole training of ResNet-20 on the
 * GPU, while the memory of dead tensors is filled with NaN: nearly the same values as with the ops one by one, and
 * bitwise the same values in every run. */
#include "compiler/compiler.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/gpu_training.h"
#include "tests/harness/offload_support.h"
#include "tests/harness/test_gpu.h"

enum { BATCH = 40, SIZE = 32, PIXELS = BATCH * SIZE * SIZE * 3 };

struct variant {
    enum cr_dtype real;
    const char   *shortcut; /* override */
    int           classes;
    bool          joined;
};

struct outcome {
    float *values; /* parameter store */
    size_t bytes;
    double loss;
    int    joined; /* ops head */
};

static bool accepts_all_but_head(void *self, const struct cr_program *p, const struct cr_op *op) {
    return op->kind != CR_OP_head && cr_device_accepts(self, p, op);
}

static cr_status compile(struct run *r, const struct variant *v) {
    const char *const overrides[] = {"model.arch=resnet20", v->shortcut, "data.kind=synthetic", "data.image_size=32",
                                     "train.device=cuda"};
    const struct cr_device_options  options = {.deterministic = true};
    const struct cr_compile_options how     = {.fuse = true, .reuse = true};
    CR_TRY(cr_config_open(&r->config, NULL, overrides, CR_COUNT(overrides)));
    CR_TRY(cr_model_open(r->config, v->classes, SIZE, SIZE, &r->model));
    cr_model_set_real(&r->model, v->real);
    CR_TRY(cr_device_open(CR_DEVICE_CUDA, &options, &r->device));
    struct cr_cost_model cost_model = cr_device_cost_model(r->device);
    if (!v->joined) cost_model.accepts = accepts_all_but_head;
    CR_TRY(cr_model_program(&r->model, r->config, CR_PROGRAM_STEP, BATCH, &r->program));
    CR_TRY(cr_compile(&r->program, &cost_model, &how));
    return exec_begin(r->device, &r->model, r->config, &r->program, &r->memory, &r->exec);
}

/* The brightness of an image follows its class; one image has no label. */
static cr_status train(struct run *r, int classes, int steps, struct outcome *out) {
    static uint8_t             pixels[PIXELS];
    static int32_t             labels[BATCH], boxes[BATCH * 4];
    const struct cr_step_block block = {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-4f};
    struct cr_exec_result      result;
    struct cr_rng              rng = cr_rng_make(22, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < BATCH; i++) labels[i] = i == 7 ? -1 : i % 10 * (classes / 10);
    for (int i = 0; i < PIXELS; i++)
        pixels[i] = (uint8_t)(i / (SIZE * SIZE * 3) % 10 * 20 + (int32_t)cr_rng_below(&rng, 60));
    for (int i = 0; i < steps; i++) {
        CR_TRY(cr_exec_feed(r->exec, pixels, labels, boxes));
        CR_TRY(cr_exec_run(r->exec, &block));
    }
    CR_TRY(cr_exec_result(r->exec, steps, &result));
    CHECK_NEAR(result.valid, BATCH - 1, 0);
    out->loss  = result.loss_sum / (BATCH - 1);
    out->bytes = r->memory.bytes[CR_REGION_STORE];
    CR_ALLOC(out->values, out->bytes / sizeof *out->values);
    return r->device->backend->get(r->device, out->values, r->memory.region[CR_REGION_STORE], out->bytes);
}

static cr_status outcome_of(const struct variant *v, int steps, struct outcome *out) {
    struct run r = {0};
    cr_status  status;
    *out = (struct outcome){0};
    CR_TRY_OUT(compile(&r, v));
    for (int i = 0; i < r.program.ops; i++) out->joined += r.program.op[i].kind == CR_OP_head;
    CR_TRY_OUT(cr_exec_poison(r.exec));
    CR_TRY_OUT(train(&r, v->classes, steps, out));
out:
    run_close(&r);
    return status;
}

/* After one step: the sums of logits and of BN gradients have another order, so that 16-bit values may be rounded to
 * the other side. */
static void a_step_gives_nearly_the_same_values(void) {
    NEED_GPU();
    for (int round = 0; round < 8; round++) {
        struct variant v     = {.real     = round & 1 ? CR_F16 : CR_BF16,
                                .shortcut = round & 2 ? "model.shortcut=A" : "model.shortcut=B",
                                .classes  = round & 4 ? 100 : 10};
        struct outcome apart = {0}, joined = {0};
        double         off = 0, size = 0;
        REQUIRE_OK(outcome_of(&v, 1, &apart));
        v.joined = true;
        REQUIRE_OK(outcome_of(&v, 1, &joined));
        CHECK_INT(apart.joined, 0);
        CHECK_INT(joined.joined, 1);
        CHECK_NEAR(joined.loss, apart.loss, round & 1 ? 5e-3 : 3e-2);
        for (size_t i = 0; i < apart.bytes / sizeof(float); i++) {
            /* 16-bit copies may be any number as f32 */
            if (!isfinite(apart.values[i]) || fabs((double)apart.values[i]) > 1e3) continue;
            off += pow((double)joined.values[i] - (double)apart.values[i], 2);
            size += pow((double)apart.values[i], 2);
        }
        CHECK(size > 0 && sqrt(off / size) < (round & 1 ? 1e-2 : 5e-2));
        cr_free(apart.values);
        cr_free(joined.values);
    }
}

static void every_run_gives_the_same_values(void) {
    NEED_GPU();
    const struct variant v     = {.real = CR_F16, .shortcut = "model.shortcut=A", .classes = 10, .joined = true};
    struct outcome       first = {0}, again = {0};
    REQUIRE_OK(outcome_of(&v, 40, &first));
    REQUIRE_OK(outcome_of(&v, 40, &again));
    CHECK(isfinite(first.loss) && first.loss < 2);
    CHECK(first.bytes == again.bytes && memcmp(first.values, again.values, first.bytes) == 0);
    cr_free(first.values);
    cr_free(again.values);
}

TESTS(CASE(a_step_gives_nearly_the_same_values), CASE(every_run_gives_the_same_values))
