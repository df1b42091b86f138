/* tests/gpu/test_cuda_bn_chains.c: CIFAR convolutions on the GPU that finish the BN before them and compute the end of
 * the residual block before them, their input gradients, and filter gradients in one op: each op of a step against the
 * FP64 reference, for batches that are smaller and larger than the number of multiprocessors; and whole trainings while
 * the memory of dead tensors is filled with NaN. */
#include "tests/harness/executor_poison.h"
#include "tests/harness/network_support.h"
#include "tests/harness/offload_support.h"
#include "tests/harness/test_gpu.h"
#include "verification/verify.h"

enum { BATCH_MAX = 150, SIZE = 32, CLASSES = 10, IMAGE = SIZE * SIZE * 3 };

static cr_status open_network(const char *arch, const char *shortcut, enum cr_dtype real, int batch, bool chains,
                              struct net *r) {
    const char *const overrides[] = {arch, shortcut, "data.kind=synthetic", "data.image_size=32", "train.device=cuda"};
    const struct cr_device_options  options = {.deterministic = true};
    const struct cr_compile_options how     = {.fuse = true, .reuse = true};
    CR_TRY(cr_config_open(&r->config, NULL, overrides, CR_COUNT(overrides)));
    CR_TRY(cr_model_open(r->config, CLASSES, SIZE, SIZE, &r->model));
    cr_model_set_real(&r->model, real);
    CR_TRY(cr_device_open(CR_DEVICE_CUDA, &options, &r->device));
    r->cost_model = cr_device_cost_model(r->device);
    if (!chains) r->cost_model.device.sum_rows = NULL;
    CR_TRY(cr_model_program(&r->model, r->config, CR_PROGRAM_STEP, batch, &r->program));
    CR_TRY(cr_compile(&r->program, &r->cost_model, &how));
    return exec_begin(r->device, &r->model, r->config, &r->program, &r->memory, &r->exec);
}

static cr_status feed(struct net *r, int batch) {
    static uint8_t pixels[BATCH_MAX * IMAGE];
    static int32_t labels[BATCH_MAX], boxes[BATCH_MAX * 4];
    struct cr_rng  rng = cr_rng_make(21, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < batch; i++) labels[i] = i % CLASSES;
    for (int i = 0; i < batch * IMAGE; i++)
        pixels[i] = (uint8_t)(labels[i / IMAGE] * 20 + (int32_t)cr_rng_below(&rng, 60));
    return cr_exec_feed(r->exec, pixels, labels, boxes);
}

static const struct cr_step_block block = {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-4f};

static void verify(const char *shortcut, enum cr_dtype real, int batch) {
    const struct cr_device_options options = {.deterministic = true, .ref_only = true};
    OWNED(device)                  cpu     = NULL;
    OWNED(net)                     r       = {0};
    int                            checked = 0;
    double                         worst   = 0;
    cr_status                      status  = cr_device_open(CR_DEVICE_CPU, &options, &cpu);
    if (status == CR_OK) status = open_network("model.arch=resnet20", shortcut, real, batch, true, &r);
    if (status == CR_OK) status = feed(&r, batch);
    if (status == CR_OK) status = cr_verify_program(cpu, r.device, r.exec, &r.program, &block, &checked, &worst);
    CHECK_STATUS(status, CR_OK);
    CHECK_INT(checked, r.program.ops);
    CHECK(fused_ops(&r.program, CR_OP_conv) > 0);
    if (!test_is_emulated() && shortcut[sizeof "model.shortcut=" - 1] == 'A')
        CHECK_INT(fused_ops(&r.program, CR_OP_conv_wgrad), batch <= 132); /* GPUs with 132 multiprocessors */
    printf("    %s, %s, %d images: %d convolutions, %d gradients, worst %.3f of the bound\n", cr_dtype_name(real),
           shortcut, batch, fused_ops(&r.program, CR_OP_conv), fused_ops(&r.program, CR_OP_conv_grad), worst);
}

TEST(few_images) {
    NEED_GPU();
    verify("model.shortcut=A", CR_F16, 5);
    verify("model.shortcut=A", CR_BF16, 1);
    verify("model.shortcut=B", CR_BF16, 5);
}
/* More than half as many images as multiprocessors: the first blocks of a launch have no image, and one of them stores
 * the results of the BN. */
TEST(blocks_without_image) {
    NEED_GPU();
    verify("model.shortcut=A", CR_F16, 70);
}
TEST(many_images) {
    NEED_GPU();
    verify("model.shortcut=A", CR_BF16, 150);
}

struct outcome {
    float *values; /* parameter store */
    size_t bytes;
    double loss;
};

static cr_status train(enum cr_dtype real, bool chains, int steps, struct outcome *out) {
    enum { BATCH = 40 };
    struct net            r = {0};
    struct cr_exec_result result;
    cr_status             status = open_network("model.arch=resnet20", "model.shortcut=A", real, BATCH, chains, &r);
    *out                         = (struct outcome){0};
    if (status == CR_OK) status = cr_exec_poison(r.exec);
    for (int i = 0; i < steps && status == CR_OK; i++) {
        status = feed(&r, BATCH);
        if (status == CR_OK) status = cr_exec_run(r.exec, &block);
    }
    if (status == CR_OK) status = cr_exec_result(r.exec, steps, &result);
    if (status == CR_OK) {
        out->loss   = result.loss_sum / BATCH;
        out->bytes  = r.memory.bytes[CR_REGION_STORE];
        out->values = cr_alloc(out->bytes, 1);
        status      = out->values
                          ? r.device->backend->get(r.device, out->values, r.memory.region[CR_REGION_STORE], out->bytes)
                          : CR_ERR_MEMORY;
    }
    net_close(&r);
    return status;
}

/* The order of the sums differs, and 16-bit activations may be rounded to the other side. */
TEST(a_step_is_nearly_that_without_chains) {
    NEED_GPU();
    for (int half = 0; half < 2; half++) {
        struct outcome apart, chained;
        REQUIRE_OK(train(half ? CR_F16 : CR_BF16, false, 1, &apart));
        REQUIRE_OK(train(half ? CR_F16 : CR_BF16, true, 1, &chained));
        CHECK_NEAR(chained.loss, apart.loss, half ? 5e-3 : 3e-2);
        cr_free(apart.values);
        cr_free(chained.values);
    }
}

TEST(every_training_gives_the_same_values) {
    NEED_GPU();
    struct outcome first, again;
    REQUIRE_OK(train(CR_F16, true, 40, &first));
    REQUIRE_OK(train(CR_F16, true, 40, &again));
    CHECK(isfinite(first.loss) && first.loss < 2);
    CHECK(first.bytes == again.bytes && memcmp(first.values, again.values, first.bytes) == 0);
    cr_free(first.values);
    cr_free(again.values);
}
