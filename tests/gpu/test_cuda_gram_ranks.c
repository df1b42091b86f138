/* tests/gpu/test_cuda_gram_ranks.c: SyncBN with BN statistics from Gram matrices, on one GPU: the programs of two ranks
 * run op by op, and where an op sums over the ranks, the test adds the values of both. Loss, gradients and running
 * statistics are those of one rank that has the images of both, and every op is within its error bound. */
#include "compiler/compiler.h"
#include "core/rng.h"
#include "tests/harness/gpu_training.h"
#include "tests/harness/offload_support.h"
#include "tests/harness/test_gpu.h"
#include "verification/verify.h"

#include <math.h>

enum { RANKS = 2, BATCH = 16, SIZE = 16, CLASSES = 5, IMAGE = SIZE * SIZE * 3 };
/* Weights keep their values: the second step has the gradients of the first, but other running means. */
static const struct cr_step_block block      = {.momentum = 0.9f};
static const double               loss_scale = 1024;

/* The last convolutions of two blocks and both shortcuts, of which one has 256 input channels: only GPUs of 9.0 have
 * kernels for it. */
static void check_program(const struct cr_program *p, int ranks) {
    int grams = 0, sums = 0, grad_sums = 0, reduced = 0;
    for (int i = 0; i < p->ops; i++) {
        grams += p->op[i].kind == CR_OP_gram;
        sums += p->op[i].kind == CR_OP_gram_bn_sums;
        grad_sums += p->op[i].kind == CR_OP_gram_bn_grad_sums;
        reduced += p->op[i].kind == CR_OP_gram_bn_grad && p->op[i].in[CR_IN_gram_bn_grad_grad_sums] >= 0;
    }
    CHECK(grams == 4 || grams == 3);
    CHECK_INT(sums, ranks > 1 ? grams : 0);
    CHECK_INT(grad_sums, sums);
    CHECK_INT(reduced, sums);
}

static const char *const overrides[] = {"model.arch=custom",   "model.block=bottleneck", "model.depths=1,1",
                                        "model.widths=64,128", "model.shortcut=B",       "model.sync_bn=yes",
                                        "data.kind=synthetic", "data.image_size=16",     "train.device=cuda"};

static cr_status open_rank(struct run *r, enum cr_dtype real, int ranks, enum cr_gram_mode gram) {
    const struct cr_device_options  options = {.deterministic = true};
    const struct cr_compile_options how     = {
            .fuse = true, .reuse = true, .gram = gram, .bucket_bytes = ranks > 1 ? 1 << 16 : 0, .wire = CR_F32};
    CR_TRY(cr_config_open(&r->config, NULL, overrides, CR_COUNT(overrides)));
    CR_TRY(cr_model_open(r->config, CLASSES, SIZE, SIZE, &r->model));
    cr_model_set_real(&r->model, real);
    r->model.ranks = ranks;
    CR_TRY(cr_device_open(CR_DEVICE_CUDA, &options, &r->device));
    struct cr_cost_model cost_model = cr_device_cost_model(r->device);
    CR_TRY(cr_model_program(&r->model, r->config, CR_PROGRAM_STEP, BATCH / ranks, &r->program));
    CR_TRY(cr_compile(&r->program, &cost_model, &how));
    if (gram == CR_GRAM_ALL) check_program(&r->program, ranks);
    CR_TRY(exec_begin(r->device, &r->model, r->config, &r->program, &r->memory, &r->exec));
    const int state = cr_tensor_store_find(&r->program, CR_BUFFER_STATE, CR_NONE);
    double    value[CR_STATE_COUNT];
    CR_TRY(cr_exec_get(r->exec, state, value));
    value[CR_STATE_LOSS_SCALE] = real == CR_F16 ? loss_scale : 1;
    return cr_exec_put(r->exec, state, value);
}

/* Rank `rank` gets its part of the images. Those of the second half are brighter and have more contrast, so that the
 * statistics of the ranks differ. */
static cr_status feed(struct run *r, int rank, int ranks) {
    uint8_t       pixels[BATCH * IMAGE];
    int32_t       labels[BATCH], boxes[BATCH * 4] = {0};
    const int     first = rank * BATCH / ranks;
    struct cr_rng rng   = cr_rng_make(5, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < BATCH * IMAGE; i++) {
        const int late = i >= BATCH * IMAGE / 2;
        pixels[i] = (uint8_t)((late ? 120 : 40) + i / IMAGE % CLASSES * 5 + (int)cr_rng_below(&rng, late ? 110 : 50));
    }
    for (int i = 0; i < BATCH; i++) labels[i] = i % CLASSES;
    return cr_exec_feed(r->exec, pixels + (size_t)first * IMAGE, labels + first, boxes);
}

/* The sum over the ranks, in their order, on each of them. */
static cr_status add_ranks(struct run *r, const struct cr_op *op) {
    const int     y     = op->out[CR_OUT_all_reduce_y];
    const int64_t elems = cr_tensor_elems(&r->program.tensor[y]);
    float        *sum, *other;
    cr_status     status;
    CR_ALLOC(sum, (size_t)(2 * elems));
    other = sum + elems;
    CR_TRY_OUT(cr_exec_get(r[0].exec, y, sum));
    CR_TRY_OUT(cr_exec_get(r[1].exec, y, other));
    for (int64_t i = 0; i < elems; i++) sum[i] += other[i];
    for (int k = 0; k < RANKS; k++) CR_TRY_OUT(cr_exec_put(r[k].exec, y, sum));
out:
    cr_free(sum);
    return status;
}

static cr_status step(struct run *r, int ranks) {
    for (int i = 0; i < r->program.ops; i++) {
        for (int k = 0; k < ranks; k++) CR_TRY(cr_exec_run_range(r[k].exec, &block, i, i));
        if (ranks > 1 && r->program.op[i].kind == CR_OP_all_reduce) CR_TRY(add_ranks(r, &r->program.op[i]));
    }
    return CR_OK;
}

struct outcome {
    float *values;                /* the parameter store */
    size_t bytes, grads, running; /* ... and where gradients and running statistics begin */
    double scale;                 /* of the gradients */
    double loss;                  /* sum over the images */
};

static cr_status read_store(const struct run *r, struct outcome *out) {
    float metrics[4];
    out->bytes   = r->memory.bytes[CR_REGION_STORE];
    out->grads   = cr_param_store_buffer_offset(&r->model.store, CR_BUFFER_GRAD) / sizeof *out->values;
    out->running = cr_param_store_buffer_offset(&r->model.store, CR_BUFFER_RUNNING) / sizeof *out->values;
    out->scale   = r->model.real == CR_F16 ? loss_scale : 1;
    CR_ALLOC(out->values, out->bytes / sizeof *out->values);
    CR_TRY(cr_exec_get(r->exec, r->program.metrics, metrics));
    out->loss = (double)metrics[0];
    return r->device->backend->get(r->device, out->values, r->memory.region[CR_REGION_STORE], out->bytes);
}

/* Runs two steps on `ranks` ranks, which must end with the same values. Sums are about the running mean, which is 0 in
 * the first step. */
static cr_status outcome_of(enum cr_dtype real, int ranks, enum cr_gram_mode gram, struct outcome *out) {
    struct run     r[RANKS] = {{.device = NULL}};
    struct outcome other    = {0};
    cr_status      status;
    *out = (struct outcome){0};
    for (int k = 0; k < ranks; k++) {
        CR_TRY_OUT(open_rank(&r[k], real, ranks, gram));
        CR_TRY_OUT(feed(&r[k], k, ranks));
    }
    for (int i = 0; i < 2; i++) CR_TRY_OUT(step(r, ranks));
    CR_TRY_OUT(read_store(&r[0], out));
    if (ranks > 1) {
        CR_TRY_OUT(read_store(&r[1], &other));
        CHECK(out->bytes == other.bytes && memcmp(out->values, other.values, out->bytes) == 0);
        cr_free(other.values);
    }
out:
    for (int k = 0; k < ranks; k++) run_close(&r[k]);
    return status;
}

/* Element i of a parameter's gradient, or of its value when it is a running statistic. */
static double element(const struct outcome *o, const struct cr_param *q, int64_t i) {
    const bool running = cr_param_is_running(q->role);
    return (double)o->values[(running ? o->running : o->grads) + (size_t)(q->offset + i)] / (running ? 1 : o->scale);
}

/* The difference of a from `exact`, relative to it. */
static double distance(const struct cr_param *q, const struct outcome *a, const struct outcome *exact) {
    double off = 0, size = 0;
    for (int64_t i = 0; i < q->elems; i++) {
        const double want = element(exact, q, i), d = element(a, q, i) - want;
        off += d * d;
        size += want * want;
    }
    return sqrt(off / size);
}

static void compare(const struct cr_param_store *store, const struct outcome *many, const struct outcome *one,
                    const struct outcome *exact) {
    double worst = 0, worst_one = 0, sum = 0, sum_one = 0;
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        const double           d = distance(q, many, exact), e = distance(q, one, exact);
        if (d > 2 * e + 5e-3) TEST_FAIL_("%s: the distance from fp32 is %.2e, with one rank %.2e", q->name, d, e);
        worst     = fmax(worst, d);
        worst_one = fmax(worst_one, e);
        sum += d * d;
        sum_one += e * e;
    }
    printf("    distances from fp32: two ranks with Gram matrices %.2e (largest %.2e), one rank without %.2e (largest "
           "%.2e)\n",
           sqrt(sum / store->params), worst, sqrt(sum_one / store->params), worst_one);
    CHECK(sum <= 1.5 * 1.5 * sum_one);
    CHECK_NEAR(many->loss, exact->loss, 5e-3 * exact->loss);
}

static void two_ranks_are_like_one(void) {
    NEED_GPU();
    struct run     r = {.device = NULL}; /* for the names of the parameters */
    struct outcome exact, one, many;
    REQUIRE_OK(open_rank(&r, CR_F32, 1, CR_GRAM_NO));
    REQUIRE_OK(outcome_of(CR_F32, 1, CR_GRAM_NO, &exact));
    REQUIRE_OK(outcome_of(CR_F16, 1, CR_GRAM_NO, &one));
    REQUIRE_OK(outcome_of(CR_F16, RANKS, CR_GRAM_ALL, &many));
    compare(&r.model.store, &many, &one, &exact);
    run_close(&r);
    cr_free(exact.values);
    cr_free(one.values);
    cr_free(many.values);
}

/* Each op of a rank's program against FP64; the sum over the ranks is a copy here. */
static void every_op_is_exact(void) {
    NEED_GPU();
    for (int half = 0; half < 2; half++) {
        const struct cr_device_options options = {.deterministic = true, .ref_only = true};
        struct cr_device              *cpu;
        struct run                     r     = {.device = NULL};
        int                            ops   = 0;
        double                         worst = 0;
        REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &cpu));
        REQUIRE_OK(open_rank(&r, half ? CR_F16 : CR_BF16, RANKS, CR_GRAM_ALL));
        REQUIRE_OK(feed(&r, 0, RANKS));
        CHECK_STATUS(cr_verify_program(cpu, r.device, r.exec, &r.program, &block, &ops, &worst), CR_OK);
        printf("    %s: %d ops, the largest error is %.3f of its bound\n", half ? "f16" : "bf16", ops, worst);
        CHECK(ops > 60);
        run_close(&r);
        cr_device_close(cpu);
    }
}

TESTS(CASE(two_ranks_are_like_one), CASE(every_op_is_exact))
