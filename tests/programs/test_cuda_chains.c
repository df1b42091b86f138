/* tests/programs/test_cuda_chains.c: chains of ops that run in fewer launches (struct cr_chain_kernel). A step with
 * chains gives the results of the same program op by op, and the same bits when it is repeated. */
#include "core/rng.h"
#include "cuda/core/cuda_device.h"
#include "session/session.h"
#include "tests/harness/test_gpu.h"

#include <math.h>
#include <stdlib.h>

enum { SIZE = 32, CLASSES = 10 };

static const struct cr_step_block block = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 5e-4f};

struct run {
    struct cr_config  config;
    struct cr_session session;
    int               batch;
    uint8_t          *pixels;
    int32_t          *labels, *boxes;
};

static cr_status run_open(struct run *r, const char *depths, const char *shortcut, const char *precision, int batch) {
    char        text[4][64];
    const char *overrides[16] = {"train.device=cuda",
                                 "model.arch=custom",
                                 "model.widths=16,32,64",
                                 "model.stem=cifar",
                                 "model.block=basic",
                                 "model.classes=10",
                                 "data.kind=synthetic",
                                 "data.image_size=32",
                                 "train.eval_batch=100",
                                 text[0],
                                 text[1],
                                 text[2],
                                 text[3]};
    snprintf(text[0], sizeof text[0], "model.depths=%s", depths);
    snprintf(text[1], sizeof text[1], "model.shortcut=%s", shortcut);
    snprintf(text[2], sizeof text[2], "train.precision=%s", precision);
    snprintf(text[3], sizeof text[3], "train.batch=%d", batch);
    cr_log_quiet(getenv("CRESNET_TEST_LOG") == NULL);
    *r = (struct run){.batch = batch};
    CR_TRY(cr_config_open(&r->config, NULL, overrides, 13));
    const struct cr_session_options o = {.train = true, .execute = true, .classes = CLASSES};
    CR_TRY(cr_session_open(&r->config, &o, &r->session));
    CR_ALLOC(r->pixels, (size_t)batch * SIZE * SIZE * 3);
    CR_ALLOC(r->labels, (size_t)batch);
    CR_ALLOC(r->boxes, (size_t)batch * 4);
    return CR_OK;
}

static void run_close(struct run *r) {
    cr_free(r->pixels);
    cr_free(r->labels);
    cr_free(r->boxes);
    cr_session_close(&r->session);
    cr_config_close(&r->config);
}

static cr_status feed(struct run *r, int64_t step) {
    struct cr_rng rng = cr_rng_make(7, CR_RNG_TEST, (uint64_t)step, 0);
    for (int i = 0; i < r->batch; i++) {
        r->labels[i] = (int32_t)cr_rng_below(&rng, CLASSES);
        for (int k = 0; k < SIZE * SIZE * 3; k++)
            r->pixels[i * SIZE * SIZE * 3 + k] = (uint8_t)(r->labels[i] * 20 + (int32_t)cr_rng_below(&rng, 60));
    }
    return cr_exec_feed(r->session.train_exec[0], r->pixels, r->labels, r->boxes);
}

/* Trains `steps` steps from the same start; *store receives the parameter store, which the caller frees. */
static void train(struct run *r, bool op_by_op, int steps, char **store) {
    struct cr_exec          *exec    = r->session.train_exec[0];
    const struct cr_backend *backend = r->session.device->backend;
    const size_t             bytes   = r->session.memory.bytes[CR_REGION_STORE];
    *store                           = calloc(bytes, 1);
    REQUIRE(*store);
    REQUIRE_OK(backend->put(r->session.device, r->session.memory.region[CR_REGION_STORE], *store, bytes));
    REQUIRE_OK(cr_session_init(&r->session));
    for (int64_t i = 0; i < steps; i++) {
        REQUIRE_OK(feed(r, i));
        if (!op_by_op) REQUIRE_OK(cr_exec_run(exec, &block));
        for (int op = 0; op_by_op && op < r->session.train[0].ops; op++)
            REQUIRE_OK(cr_exec_run_range(exec, &block, op, op));
        REQUIRE_OK(backend->sync(r->session.device));
    }
    REQUIRE_OK(backend->get(r->session.device, *store, r->session.memory.region[CR_REGION_STORE], bytes));
}

static int chained_ops(const struct run *r) {
    int ops = 0;
    for (int i = 0; i < r->session.train[0].ops; i++) ops += r->session.train[0].op[i].chain;
    return ops;
}

/* Microseconds of a step; the parameters go on changing. */
static double step_us(struct run *r, struct cr_exec *exec) {
    enum { WARM_UP = 10, COUNT = 200 };
    int64_t start = 0;
    for (int i = 0; i < WARM_UP + COUNT; i++) {
        if (i == WARM_UP && r->session.device->backend->sync(r->session.device) == CR_OK) start = cr_time_ns();
        if (cr_exec_run(exec, &block) != CR_OK) return 0;
    }
    if (r->session.device->backend->sync(r->session.device) != CR_OK) return 0;
    return (double)(cr_time_ns() - start) * 1e-3 / COUNT;
}

/* Prints the time of a step of the program, and of the same program without its chains. */
static void print_times(struct run *r, const char *what) {
    struct cr_program plain;
    struct cr_exec   *exec = NULL;
    int               ops  = 0;
    REQUIRE_OK(cr_program_copy(&r->session.train[0], &plain));
    for (int i = 0; i < plain.ops; i++) ops += plain.op[i].chain, plain.op[i].chain = 0;
    const cr_status status = cr_exec_open(&plain, &r->session.memory, &exec);
    if (status == CR_OK)
        printf("    %s: %d of %d ops in chains; %.1f us a step, %.1f us without chains\n", what, ops, plain.ops,
               step_us(r, r->session.train_exec[0]), step_us(r, exec));
    cr_exec_close(exec);
    cr_program_free(&plain);
    REQUIRE_OK(status);
}

/* Largest difference of the parameters, relative to the largest parameter. */
static double difference(const struct run *r, const char *a, const char *b) {
    const struct cr_param_store *store = &r->session.model.store;
    const int64_t                at    = cr_param_store_buffer_offset(store, CR_BUFFER_VALUE);
    const float                 *x = (const float *)(a + at), *y = (const float *)(b + at);
    double                       most = 0, size = 0;
    for (size_t i = 0; i < cr_param_store_buffer_bytes(store, CR_BUFFER_VALUE) / sizeof *x; i++) {
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
        size = fmax(size, fabs((double)y[i]));
    }
    return most / size;
}

static void check(const char *depths, const char *shortcut, const char *precision, int batch, int steps, double bound) {
    struct run r;
    char       what[128];
    REQUIRE_OK(run_open(&r, depths, shortcut, precision, batch));
    const int ops = chained_ops(&r);
    char     *a = NULL, *b = NULL, *again = NULL;
    train(&r, false, steps, &a), train(&r, true, steps, &b), train(&r, false, steps, &again);
    REQUIRE(a && b && again);
    const double apart = difference(&r, a, b);
    CHECK(memcmp(a, again, r.session.memory.bytes[CR_REGION_STORE]) == 0);
    CHECK(apart <= bound);
    snprintf(what, sizeof what, "depths %s, shortcut %s, %s, batch %d, difference %.1e", depths, shortcut, precision,
             batch, apart);
    print_times(&r, what);
    CHECK(ops >= 12);
    free(a), free(b), free(again);
    run_close(&r);
}

static void a_chain_gives_the_results_of_its_ops(void) {
    NEED_GPU();
    setenv("CRESNET_CHAINS", "always", 1);
    check("3,3,3", "A", "fp16", 128, 1, 1e-4);
    check("3,3,3", "B", "fp16", 128, 1, 1e-4);
    check("2,1,2", "B", "bf16", 100, 1, 1e-3);
    check("1,2,1", "A", "bf16", 32, 1, 1e-3);
    check("1,1,1", "B", "fp16", 300, 1, 1e-4);
    check("1,1,2", "A", "fp16", 1, 1, 1e-4);
    unsetenv("CRESNET_CHAINS");
}

TESTS(CASE(a_chain_gives_the_results_of_its_ops))
