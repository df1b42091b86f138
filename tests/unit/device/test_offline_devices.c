/* tests/unit/device/test_offline_devices.c: planning for GPUs that are not present: the data sheets, and the ops that
 * the kernels say they support, against the known properties of the kernels. */
#include "compiler/compiler.h"
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "device/capability.h"
#include "model/model.h"
#include "runtime/executor.h"
#include "tests/harness/conv_cases.h"
#include "tests/harness/offline_gpu.h"

/* ---- the table ---- */

static void gpus_are_found_by_name(void) {
    struct cr_text names = {0};
    cr_gpu_names(", ", &names);
    CHECK_STR(names.data, "h200, h100, a100, l40s, l4, rtx5090, rtx4090, rtx3090, rtx3060");
    cr_text_free(&names);
    CHECK(cr_gpu_find("h200x") == NULL);
    CHECK(cr_gpu_find("H200") == cr_gpu_find("h200"));
    const struct cr_gpu *h200 = cr_gpu_find("h200"), *a100 = cr_gpu_find("a100");
    REQUIRE(h200 && a100);
    CHECK_INT(h200->cc, 90);
    CHECK_INT(a100->cc, 80);
    CHECK(h200->memory_bytes > (size_t)139 << 30 && h200->memory_bytes < (size_t)142 << 30);
    CHECK_NEAR(h200->flops_per_s * h200->f32_fraction, 0.8 * 67e12, 1e12);
    CHECK(h200->bytes_per_s > 2 * a100->bytes_per_s && h200->flops_per_s > 3 * a100->flops_per_s);
}

/* Table of technical specifications in NVIDIA's CUDA programming guide. */
static void capabilities_have_their_limits(void) {
    static const struct {
        int cc, block_kib, multiprocessor_kib, threads, blocks;
    } guide[] = {{80, 163, 164, 2048, 32}, {86, 99, 100, 1536, 16},   {89, 99, 100, 1536, 24},
                 {90, 227, 228, 2048, 32}, {100, 227, 228, 2048, 32}, {120, 99, 100, 1536, 24}};
    for (size_t i = 0; i < CR_COUNT(guide); i++) {
        const struct cr_capability c = cr_capability_of(guide[i].cc);
        CHECK_INT(c.cc, guide[i].cc);
        CHECK_INT(c.block_bytes, guide[i].block_kib << 10);
        CHECK_INT(c.multiprocessor_bytes, guide[i].multiprocessor_kib << 10);
        CHECK_INT(c.threads, guide[i].threads);
        CHECK_INT(c.blocks, guide[i].blocks);
    }
    CHECK_INT(cr_capability_of(137).block_bytes, 99 << 10); /* unknown: the smallest */
}

static void capability_of_the_environment_is_read(void) {
    static const char *const wrong[] = {"", "8", "80", "9.0", "8.0 ", " 8.0", "7.5", "8.00", "sm_80", "12"};
    struct cr_capability     c       = {0};
    REQUIRE_OK(cr_capability_read("8.0", &c));
    CHECK(c.cc == 80 && c.block_bytes == 163 << 10);
    REQUIRE_OK(cr_capability_read("8.6", &c));
    CHECK(c.cc == 86 && c.block_bytes == 99 << 10);
    REQUIRE_OK(cr_capability_read("8.9", &c));
    CHECK(c.cc == 89 && c.block_bytes == 99 << 10);
    REQUIRE_OK(cr_capability_read("12.0", &c));
    CHECK(c.cc == 120 && c.block_bytes == 99 << 10);
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        CHECK_INT(cr_capability_read(wrong[i], &c), CR_ERR_CONFIG);
        CHECK_HAS(cr_error_message(), "must be 8.0, 8.6, 8.9 or 12.0");
        cr_error_clear();
    }
}

/* The driver does not report rates of tensor cores. The data sheets have both rates: their ratio must be that of the
 * rates per multiprocessor and cycle. */
static void rates_agree_with_data_sheets(void) {
    static const char *const names[] = {"h200",    "h100",    "a100",    "l40s",   "l4",
                                        "rtx5090", "rtx4090", "rtx3090", "rtx3060"};
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        const struct cr_gpu *gpu = cr_gpu_find(names[i]);
        REQUIRE(gpu);
        const double ratio = cr_capability_f32_rate(gpu->cc) / cr_capability_matrix_rate(gpu->cc, gpu->text);
        if (ratio < 0.9 * gpu->f32_fraction || ratio > 1.1 * gpu->f32_fraction)
            TEST_FAIL_("%s: %g of the rate of tensor cores, data sheet %g", gpu->name, ratio, gpu->f32_fraction);
        /* the rate from multiprocessors and clock: data sheets have the clock under load, 2 to 8 % less on some */
        const double peak = gpu->multiprocessors * 1e3 * gpu->clock_khz * cr_capability_matrix_rate(gpu->cc, gpu->text);
        if (peak < 0.98 * gpu->flops_per_s / 0.8 || peak > 1.1 * gpu->flops_per_s / 0.8)
            TEST_FAIL_("%s: %g FLOP/s from the clock, data sheet %g", gpu->name, peak, gpu->flops_per_s / 0.8);
        /* a bus of 6144 bits at most, a multiple of 64 bits */
        const double bits = gpu->bytes_per_s / 0.875 * 8 / (2e3 * gpu->memory_khz), bus = 64 * round(bits / 64);
        if (bus > 6144 || bits < 0.97 * bus || bits > 1.03 * bus)
            TEST_FAIL_("%s: %g bits of memory bus", gpu->name, bits);
    }
}

/* In every build: what plan --target says where it cannot plan. */
static void a_build_without_cuda_says_so(void) {
    const struct cr_device_options options = {0};
    struct cr_device              *device;
    if (cr_gpu_open_offline(cr_gpu_find("a100"), &options, &device) == CR_OK) {
        cr_device_close(device);
        SKIP("the kernels can be queried");
    }
    CHECK(device == NULL);
    for (const struct cr_backend *const *b = cr_backends(); *b; b++)
        if ((*b)->open_offline) SKIP("this build has CUDA, but not all of its libraries are here");
    CHECK_HAS(cr_error_message(), "NVIDIA A100");
    CHECK_HAS(cr_error_message(), "build cresnet with CUDA (cmake -DCRESNET_WITH_CUDA=ON)");
    cr_error_clear();
}

static void offline_gpu_has_its_figures(void) {
    const struct cr_gpu *gpu    = cr_gpu_find("h100");
    struct cr_device    *device = open_gpu("h100", false);
    REQUIRE(gpu);
    if (!device) SKIP(no_kernels_for_gpus);
    CHECK_INT(device->caps.alignment, 256);
    CHECK(device->caps.half && device->caps.bytes_per_s == gpu->bytes_per_s);
    CHECK_INT(device->backend->memory_free(device), gpu->memory_bytes);
    CHECK_NEAR(cr_device_flops(device, CR_MATH_TF32) / cr_device_flops(device, CR_MATH_F16), 0.5, 1e-12);
    CHECK_HAS(device->caps.text, "NVIDIA H100");
    CHECK(device->caps.to_host_bytes_per_s > 0 && device->caps.to_host_bytes_per_s < gpu->copy_bytes_per_s);
    cr_device_close(device);
}

/* ---- ops that kernels support ---- */

static const struct takes {
    const char          *gpu;
    bool                 deterministic;
    enum cr_dtype        real;
    enum form            form;
    struct shape_of_conv shape;
    bool                 yes;
} table[] = {
    {"h200", true, CR_F16, PLAIN, {8, 56, 64, 64, 3, 1, 1}, true},
    {"a100", true, CR_F32, PLAIN, {8, 224, 3, 64, 7, 2, 3}, true},
    {"h200", true, CR_BF16, BIAS_ADD_RELU, {8, 56, 64, 64, 3, 1, 1}, true},
    /* sums: those of cuDNN are in f16 and not deterministic; our own kernels are, for 1x1, for 3x3 of 64 channels, and
     * on 9.0 for 3x3 of multiples of 128 */
    {"h200", true, CR_F16, SUMS, {8, 56, 64, 64, 3, 1, 1}, true},
    {"h200", true, CR_BF16, SUMS, {8, 56, 64, 64, 3, 1, 1}, true},
    {"h200", false, CR_F16, SUMS, {8, 28, 128, 128, 3, 1, 1}, true},
    {"h200", true, CR_F16, SUMS, {8, 28, 128, 128, 3, 1, 1}, true},
    {"h200", false, CR_BF16, SUMS, {8, 28, 128, 128, 3, 1, 1}, true},
    {"h200", true, CR_F16, SUMS, {8, 28, 128, 192, 3, 1, 1}, false},
    /* of at least 2 x 2 pixels, and while two tiles fit into the shared memory */
    {"h200", true, CR_F16, SUMS, {8, 1, 128, 128, 3, 1, 1}, false},
    {"h200", true, CR_F16, SUMS, {8, 2, 128, 128, 3, 1, 1}, true},
    {"h200", true, CR_F16, SUMS, {8, 87, 128, 128, 3, 1, 1}, true},
    {"h200", true, CR_F16, SUMS, {8, 88, 128, 128, 3, 1, 1}, false},
    {"h200", false, CR_F32, SUMS, {8, 56, 64, 64, 3, 1, 1}, false},
    {"h200", true, CR_BF16, SUMS, {8, 56, 64, 256, 1, 1, 0}, true},
    {"a100", true, CR_BF16, SUMS, {8, 56, 64, 256, 1, 1, 0}, true},
    {"rtx3090", true, CR_BF16, SUMS, {8, 56, 64, 256, 1, 1, 0}, true},
    {"a100", true, CR_F32, SUMS, {8, 56, 64, 256, 1, 1, 0}, false},
    {"a100", true, CR_F16, SUMS, {8, 56, 64, 64, 3, 1, 1}, true}, /* our own, which needs 163 KiB of shared memory */
    {"a100", true, CR_F16, SUMS, {8, 56, 128, 128, 3, 1, 1}, false},
    {"rtx3090", true, CR_F16, SUMS, {8, 56, 64, 64, 3, 1, 1}, false},
    {"a100", false, CR_F16, SUMS, {8, 56, 64, 256, 1, 1, 0}, true},
    {"h200", true, CR_F16, SUMS, {8, 32, 16, 16, 3, 1, 1}, true}, /* that of a CIFAR network */
    {"a100", true, CR_F16, SUMS, {8, 32, 16, 16, 3, 1, 1}, true},
    {"rtx4090", true, CR_F16, SUMS, {8, 32, 16, 16, 3, 1, 1}, true},
    {"a100", true, CR_F32, SUMS, {8, 32, 16, 16, 3, 1, 1}, false},
    /* the same with pruned channels, and shapes that differ */
    {"h200", true, CR_F16, SUMS, {8, 32, 8, 16, 3, 1, 1}, true},
    {"a100", true, CR_BF16, SUMS, {8, 32, 3, 8, 3, 1, 1}, true},
    {"rtx4090", true, CR_F16, SUMS, {8, 16, 24, 8, 3, 1, 1}, true},
    {"h200", true, CR_F16, SUMS, {8, 8, 40, 56, 3, 1, 1}, true},
    {"h200", true, CR_F16, SUMS, {8, 16, 24, 40, 3, 2, 1}, true},
    {"h200", true, CR_F16, SUMS, {8, 16, 12, 16, 3, 1, 1}, false},
    {"h200", true, CR_F16, SUMS, {8, 16, 40, 32, 3, 1, 1}, false},
    {"h200", true, CR_F16, SUMS, {8, 16, 32, 40, 3, 1, 1}, false},
    {"h200", true, CR_F16, SUMS, {8, 8, 72, 64, 3, 1, 1}, false},
    {"h200", true, CR_F16, SUMS, {8, 24, 16, 16, 3, 1, 1}, false},
    /* prologues and masks without sums are deterministic */
    {"h200", true, CR_F16, ACT, {8, 56, 64, 64, 3, 1, 1}, true},
    {"h200", true, CR_F16, ACT_WGRAD, {8, 56, 64, 64, 3, 1, 1}, true},
    /* cuDNN has no fused forward convolution for 12.0 */
    {"rtx5090", true, CR_F16, ACT, {8, 56, 64, 64, 3, 1, 1}, false},
    {"rtx5090", false, CR_F16, SUMS, {8, 56, 64, 64, 3, 1, 1}, false},
    {"rtx5090", false, CR_F16, SUMS, {8, 56, 64, 256, 1, 1, 0}, true},
    {"rtx5090", true, CR_F16, ACT_WGRAD, {8, 56, 64, 64, 3, 1, 1}, true},
    {"rtx5090", true, CR_F16, SUMS, {8, 32, 16, 16, 3, 1, 1}, true},
    {"h200", true, CR_BF16, ACT_WGRAD, {8, 56, 64, 64, 3, 1, 1}, false},
    /* after a data gradient, a separate kernel of ours computes them in a fixed order, for every type */
    {"h200", true, CR_F16, DGRAD_BN, {8, 56, 64, 64, 3, 1, 1}, true},
    {"a100", true, CR_F32, DGRAD_BN, {8, 56, 64, 64, 3, 2, 1}, true},
    {"h200", true, CR_F16, DGRAD_BN, {8, 56, 20, 64, 3, 1, 1}, false},
    {"h200", false, CR_F16, DGRAD_BN, {8, 56, 64, 64, 3, 1, 1}, true},
    {"h200", true, CR_BF16, DGRAD_BN, {8, 56, 256, 64, 1, 1, 0}, true},
    {"h200", true, CR_BF16, DGRAD_ADD, {8, 56, 64, 64, 3, 1, 1}, true},
};

static bool accepts(const struct cr_device *device, const struct takes *t) {
    struct alone a;
    alone_open(&a, t->form, t->real, &t->shape);
    const bool yes = cr_device_accepts(device, &a.p, &a.op);
    alone_close(&a);
    return yes;
}

static void kernels_answer_without_a_gpu(void) {
    for (size_t i = 0; i < CR_COUNT(table); i++) {
        struct cr_device *device = open_gpu(table[i].gpu, table[i].deterministic);
        if (!device) SKIP(no_kernels_for_gpus);
        if (accepts(device, &table[i]) != table[i].yes)
            TEST_FAIL_("case %zu, %s on %s: %s", i, form_name[table[i].form], table[i].gpu,
                       table[i].yes ? "refused" : "taken");
        cr_device_close(device);
    }
}

/* ---- whole programs ---- */

enum { KEYS = 3 };

/* Compiles the network that `keys` describe for images of size x size pixels. */
static cr_status compile_network(struct cr_device *device, const char *const keys[KEYS], int size, enum cr_dtype real,
                                 enum cr_program_kind kind, struct cr_program *p) {
    char                    size_is[64], crop_is[64];
    const char             *overrides[KEYS + 3] = {"data.kind=synthetic", size_is, crop_is};
    int                     count               = 3;
    const struct cr_config *config;
    struct cr_model         model;
    cr_status               status;
    snprintf(size_is, sizeof size_is, "data.image_size=%d", size);
    snprintf(crop_is, sizeof crop_is, "data.eval_crop=%d", size);
    for (int i = 0; i < KEYS && keys[i]; i++) overrides[count++] = keys[i];
    CR_TRY(cr_config_open(&config, NULL, overrides, count));
    CR_TRY(cr_model_open(config, 10, size, size, &model));
    cr_model_set_real(&model, real);
    struct cr_cost_model            cost_model = cr_device_cost_model(device);
    const struct cr_compile_options how        = {.fuse = true, .reuse = true};
    CR_TRY(cr_model_program(&model, config, kind, 16, p));
    status = cr_compile(p, &cost_model, &how);
    if (status == CR_OK) status = cr_plan_check(p, cost_model.alignment);
    p->store = NULL; /* freed with the model */
    cr_model_close(&model);
    cr_config_close(config);
    return status;
}

static cr_status compile_kind(struct cr_device *device, const char *arch, int size, enum cr_dtype real,
                              enum cr_program_kind kind, struct cr_program *p) {
    char arch_is[64];
    snprintf(arch_is, sizeof arch_is, "model.arch=%s", arch);
    return compile_network(device, (const char *const[KEYS]){arch_is}, size, real, kind, p);
}

static cr_status compile_for(struct cr_device *device, const char *arch, enum cr_dtype real, struct cr_program *p) {
    return compile_kind(device, arch, 64, real, CR_PROGRAM_STEP, p);
}

/* The sums of two batch norms, and masks of bits, are fused for multiples of 8 channels only. */
static void any_number_of_channels_has_a_program(void) {
    static const char *const   widths[] = {"model.widths=8,12,16", "model.widths=5,7,9", "model.widths=16,32,64"};
    static const enum cr_dtype reals[]  = {CR_F32, CR_F16};
    int                        sums[3]  = {0};
    for (size_t i = 0; i < CR_COUNT(widths) * CR_COUNT(reals); i++) {
        const char *const   keys[KEYS] = {"model.arch=custom", "model.depths=1,1,1", widths[i / 2]};
        struct cr_device   *device     = open_gpu("h200", true);
        struct cr_program   p;
        const enum cr_dtype real = reals[i % 2];
        if (!device) SKIP(no_kernels_for_gpus);
        REQUIRE_OK(compile_network(device, keys, 32, real, CR_PROGRAM_STEP, &p));
        for (int k = 0; k < p.ops && real == CR_F32; k++)
            sums[i / 2] += p.op[k].kind == CR_OP_relu_grad && p.op[k].out[CR_OUT_relu_grad_grad_sums] != CR_NONE;
        cr_program_free(&p);
        cr_device_close(device);
    }
    CHECK(sums[0] > 0 && sums[0] < sums[2]);
    CHECK_INT(sums[1], 0);
}

static int count(const struct cr_program *p, enum cr_op_kind kind) {
    int n = 0;
    for (int i = 0; i < p->ops; i++) n += p->op[i].kind == kind;
    return n;
}

/* Hopper GPUs pool the stem of an evaluation in its kernel, older ones compute the gradient of that pooling in the
 * stem's filter gradient. */
static void pooling_is_fused_in_the_stem(void) {
    static const char *const names[] = {"h200", "a100"};
    for (int i = 0; i < 2; i++) {
        struct cr_device *device = open_gpu(names[i], true);
        struct cr_program step, evaluation;
        if (!device) SKIP(no_kernels_for_gpus);
        REQUIRE_OK(compile_kind(device, "resnet50", 224, CR_BF16, CR_PROGRAM_STEP, &step));
        REQUIRE_OK(compile_kind(device, "resnet50", 224, CR_BF16, CR_PROGRAM_EVAL, &evaluation));
        CHECK_INT(count(&evaluation, CR_OP_conv_pool), i == 0);
        CHECK_INT(count(&step, CR_OP_conv_pool_grad), i == 1);
        CHECK_INT(count(&step, CR_OP_maxpool), 1);
        cr_program_free(&step);
        cr_program_free(&evaluation);
        cr_device_close(device);
    }
}

/* Every GPU that plan --target knows. */
static void every_gpu_has_a_program(void) {
    static const char *const names[] = {"h200",    "h100",    "a100",    "l40s",   "l4",
                                        "rtx5090", "rtx4090", "rtx3090", "rtx3060"};
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        struct cr_device *device = open_gpu(names[i], true);
        struct cr_program p;
        if (!device) SKIP(no_kernels_for_gpus);
        REQUIRE_OK(compile_for(device, "resnet18", CR_F16, &p));
        CHECK(p.ops > 100 && p.region_bytes[CR_REGION_POOL] > 0);
        cr_program_free(&p);
        cr_device_close(device);
    }
}

/* Hopper GPUs pool the stem convolution in its kernel: in 16 bits, up to 112 columns. */
static void stem_is_pooled_on_hopper(void) {
    static const struct {
        const char   *gpu;
        enum cr_dtype real;
        int           size;
        bool          pooled;
    } cases[] = {{"h200", CR_F16, 224, true},
                 {"h200", CR_BF16, 64, true},
                 {"h200", CR_F16, 226, false},
                 {"h200", CR_F32, 64, false},
                 {"a100", CR_F16, 224, false}};
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        struct cr_device *device = open_gpu(cases[i].gpu, true);
        struct cr_program p;
        if (!device) SKIP(no_kernels_for_gpus);
        REQUIRE_OK(compile_kind(device, "resnet18", cases[i].size, cases[i].real, CR_PROGRAM_EVAL, &p));
        CHECK_INT(count(&p, CR_OP_conv_pool), cases[i].pooled);
        cr_program_free(&p);
        cr_device_close(device);
    }
}

TESTS(CASE(gpus_are_found_by_name), CASE(a_build_without_cuda_says_so), CASE(offline_gpu_has_its_figures),
      CASE(capabilities_have_their_limits), CASE(capability_of_the_environment_is_read),
      CASE(rates_agree_with_data_sheets), CASE(kernels_answer_without_a_gpu),
      CASE(any_number_of_channels_has_a_program), CASE(every_gpu_has_a_program), CASE(pooling_is_fused_in_the_stem),
      CASE(stem_is_pooled_on_hopper))
