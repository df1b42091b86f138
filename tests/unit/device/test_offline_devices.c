/* tests/unit/device/test_offline_devices.c: planning for GPUs that are not present: the data sheets, and
 * a program for every GPU. The kernels of shipped networks: tests/guard; what kernels accept: test_checkops. */
#include "device/capability.h"
#include "tests/harness/compiler_support.h"
#include "tests/harness/offline_gpu.h"

/* ---- the table ---- */

TEST(gpus_are_found_by_name) {
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
TEST(capabilities_have_their_limits) {
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

TEST(capability_of_the_environment_is_read) {
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
TEST(rates_agree_with_data_sheets) {
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
TEST(a_build_without_cuda_says_so) {
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

TEST(offline_gpu_has_its_figures) {
    const struct cr_gpu *gpu    = cr_gpu_find("h100");
    OWNED(device)        device = open_gpu("h100", false);
    REQUIRE(gpu);
    if (!device) SKIP(no_kernels_for_gpus);
    CHECK_INT(device->caps.alignment, 256);
    CHECK(device->caps.half && device->caps.bytes_per_s == gpu->bytes_per_s);
    CHECK_INT(device->backend->memory_free(device), gpu->memory_bytes);
    CHECK_NEAR(cr_device_flops(device, CR_MATH_TF32) / cr_device_flops(device, CR_MATH_F16), 0.5, 1e-12);
    CHECK_HAS(device->caps.text, "NVIDIA H100");
    CHECK(device->caps.to_host_bytes_per_s > 0 && device->caps.to_host_bytes_per_s < gpu->copy_bytes_per_s);
}

/* Every GPU that plan --target knows. */
TEST(every_gpu_has_a_program) {
    static const char *const names[]     = {"h200",    "h100",    "a100",    "l40s",   "l4",
                                            "rtx5090", "rtx4090", "rtx3090", "rtx3060"};
    static const char *const overrides[] = {"model.arch=resnet18"};
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        const struct cr_compile_options how    = {.fuse = true, .reuse = true};
        OWNED(device)                   device = open_gpu(names[i], true);
        OWNED(bench_model)              b      = {0};
        OWNED(program)                  p      = {0};
        if (!device) SKIP(no_kernels_for_gpus);
        const struct cr_cost_model cost_model = cr_device_cost_model(device);
        REQUIRE_OK(bench_open(&b, overrides, 1, 64));
        cr_model_set_real(&b.model, CR_F16);
        REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_STEP, 16, &p));
        REQUIRE_OK(cr_compile(&p, &cost_model, &how));
        CHECK_STATUS(cr_plan_check(&p, cost_model.alignment), CR_OK);
    }
}
