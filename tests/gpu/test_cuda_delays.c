/* tests/gpu/test_cuda_delays.c: ResNet-20 with offloaded tensors on the GPU: 1,000 steps with random delay kernels
 * on every stream, while the memory of dead tensors is filled with NaN. The result must be bitwise identical to the
 * plain program without delays. With a missing wait it must differ. With CRESNET_CAPABILITY there are 250 steps: five
 * times as many as a missing wait needs to be detected, and the waits do not depend on the capability. */
#include "tests/harness/executor_poison.h"
#include "tests/harness/network_support.h"
#include "tests/harness/offload_support.h"
#include "tests/harness/test_gpu.h"

enum {
    BATCH          = 32,
    SIZE           = 32,
    CLASSES        = 10,
    STEPS          = 1000,
    STEPS_EMULATED = 250,
    BATCHES        = 8,
    PIXELS         = BATCH * SIZE * SIZE * 3
};

static const struct cr_step_block block = {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-4f};

enum offload_kind { PLAIN, BY_HAND, BY_PASS };

static const char *const overrides[] = {"model.arch=resnet20", "data.kind=synthetic", "data.image_size=32",
                                        "train.device=cuda"};

/* The limit of the pass: a fraction of the plain program's pool. */
static cr_status offload_by_pass(struct net *r) {
    struct cr_program    plain;
    struct cr_fit_report report = {0};
    CR_TRY(cr_program_copy(&r->program, &plain));
    cr_status    status = hand_finish(&plain, &r->cost_model);
    const size_t pool   = plain.region_bytes[CR_REGION_POOL];
    cr_program_free(&plain);
    CR_TRY(status);
    CR_TRY(cr_pass_offload(&r->program, &r->cost_model, pool / 10 * 7, CR_OFFLOAD_BEST, &report));
    printf("    the pass offloads %d tensors: %.1f to %.1f MiB\n", report.offloaded, (double)report.before / (1 << 20),
           (double)report.after / (1 << 20));
    CHECK(report.offloaded > 0);
    return CR_OK;
}

static cr_status run_make(struct net *r, enum cr_dtype real, enum offload_kind how) {
    const struct cr_device_options  options = {.deterministic = true};
    const struct cr_compile_options select  = {.fuse = true, .reuse = true, .until = "select"};
    *r                                      = (struct net){0};
    CR_TRY(cr_config_open(&r->config, NULL, overrides, CR_COUNT(overrides)));
    CR_TRY(cr_model_open(r->config, CLASSES, SIZE, SIZE, &r->model));
    cr_model_set_real(&r->model, real);
    CR_TRY(cr_device_open(CR_DEVICE_CUDA, &options, &r->device));
    r->cost_model = cr_device_cost_model(r->device);
    CR_TRY(cr_model_program(&r->model, r->config, CR_PROGRAM_STEP, BATCH, &r->program));
    CR_TRY(cr_compile(&r->program, &r->cost_model, &select));
    struct hand_offloads offloads;
    if (how == BY_HAND) hand_offload(&r->program, &r->cost_model, 1, &offloads);
    if (how == BY_PASS) CR_TRY(offload_by_pass(r));
    return hand_finish(&r->program, &r->cost_model);
}

static cr_status run_start(struct net *r) {
    return exec_begin(r->device, &r->model, r->config, &r->program, &r->memory, &r->exec);
}

struct batches {
    uint8_t pixels[BATCHES][PIXELS];
    int32_t labels[BATCHES][BATCH], boxes[BATCHES][BATCH * 4];
};

/* Every class has its own brightness, so that the network can learn and numbers stay finite. */
static struct batches *draw_batches(void) {
    struct batches *b = cr_alloc(1, sizeof *b);
    for (int n = 0; b && n < BATCHES; n++) {
        struct cr_rng rng = cr_rng_make(11, CR_RNG_TEST, (uint64_t)n, 0);
        for (int i = 0; i < BATCH; i++) {
            b->labels[n][i] = (int32_t)cr_rng_below(&rng, CLASSES);
            for (int k = 0; k < SIZE * SIZE * 3; k++)
                b->pixels[n][i * SIZE * SIZE * 3 + k] =
                    (uint8_t)(b->labels[n][i] * 20 + (int32_t)cr_rng_below(&rng, 60));
        }
    }
    return b;
}

/* The parameter store after all steps, which the caller frees; *loss of the last step. */
static cr_status train(struct net *r, const struct batches *b, int steps, unsigned char **store, double *loss) {
    struct cr_exec_result result;
    const size_t          bytes = r->memory.bytes[CR_REGION_STORE];
    const int64_t         start = cr_time_ns();
    for (int i = 0; i < steps; i++) {
        const int n = i % BATCHES;
        CR_TRY(cr_exec_feed(r->exec, b->pixels[n], b->labels[n], b->boxes[n]));
        CR_TRY(cr_exec_run(r->exec, &block));
    }
    CR_TRY(cr_exec_result(r->exec, steps, &result));
    printf("    %d steps in %.1f s, loss %.6f\n", steps, (double)(cr_time_ns() - start) * 1e-9,
           result.loss_sum / BATCH);
    *loss = result.loss_sum;
    CR_ALLOC(*store, bytes);
    return r->device->backend->get(r->device, *store, r->memory.region[CR_REGION_STORE], bytes);
}

/* One complete run; `spoil` removes waits before the program is bound. */
struct outcome {
    unsigned char *store;
    size_t         bytes;
    double         loss;
};

static cr_status outcome_make(enum cr_dtype real, enum offload_kind how, uint64_t seed,
                              void (*spoil)(struct cr_program *), const struct batches *b, int steps,
                              struct outcome *out) {
    OWNED(net) r = {0};
    *out         = (struct outcome){0};
    CR_TRY(run_make(&r, real, how));
    if (spoil) spoil(&r.program);
    CR_TRY(run_start(&r));
    if (seed) CR_TRY(cr_exec_poison(r.exec));
    if (seed) CR_TRY(cr_exec_jitter(r.exec, seed));
    out->bytes = r.memory.bytes[CR_REGION_STORE];
    return train(&r, b, steps, &out->store, &out->loss);
}

static bool same(const struct outcome *a, const struct outcome *b) {
    return a->bytes == b->bytes && a->store && b->store && memcmp(a->store, b->store, a->bytes) == 0;
}

static void check_delayed(enum cr_dtype real) {
    struct batches *b     = draw_batches();
    const int       steps = test_is_emulated() ? STEPS_EMULATED : STEPS;
    struct outcome  plain;
    REQUIRE(b != NULL);
    REQUIRE_OK(outcome_make(real, PLAIN, 0, NULL, b, steps, &plain));
    CHECK(isfinite(plain.loss));
    for (int how = PLAIN; how <= BY_PASS; how++) {
        struct outcome with = {0};
        CHECK_STATUS(outcome_make(real, (enum offload_kind)how, 40 + (uint64_t)how, NULL, b, steps, &with), CR_OK);
        CHECK(same(&plain, &with));
        cr_free(with.store);
    }
    cr_free(plain.store);
    cr_free(b);
}

/* ---- cases ---- */

TEST(many_delayed_steps_in_fp32) {
    NEED_GPU();
    check_delayed(CR_F32);
}

TEST(many_delayed_steps_in_fp16) {
    NEED_GPU();
    check_delayed(CR_F16);
}

static void forget_waits_of(struct cr_program *p, enum cr_op_kind kind) {
    for (int i = 0; i < p->ops; i++)
        for (int k = 0; k < CR_OP_WAIT_MAX && p->op[i].kind == kind; k++) p->op[i].wait[k] = CR_NONE;
}
static void forget_waits_of_copies_in(struct cr_program *p) {
    forget_waits_of(p, CR_OP_prefetch);
}
static void forget_waits_of_copies_out(struct cr_program *p) {
    forget_waits_of(p, CR_OP_offload);
}

/* The test must be able to fail. */
TEST(missing_waits_are_detected) {
    NEED_GPU();
    static void (*const spoils[])(struct cr_program *) = {forget_waits_of_copies_in, forget_waits_of_copies_out};
    struct batches *b                                  = draw_batches();
    struct outcome  plain;
    REQUIRE(b != NULL);
    REQUIRE_OK(outcome_make(CR_F32, PLAIN, 0, NULL, b, 50, &plain));
    for (size_t i = 0; i < CR_COUNT(spoils); i++) {
        struct outcome with = {0};
        CHECK_STATUS(outcome_make(CR_F32, BY_HAND, 9, spoils[i], b, 50, &with), CR_OK);
        CHECK(!same(&plain, &with));
        cr_free(with.store);
    }
    cr_free(plain.store);
    cr_free(b);
}
