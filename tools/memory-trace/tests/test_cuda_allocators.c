/* tools/memory-trace/tests/test_cuda_allocators.c: CUDA's allocators run the allocations of a short step: their peak
 * memory, and that all memory is returned. */
#include "tests/harness/test.h"
#include "tests/harness/test_gpu.h"
#include "tools/memory-trace/allocators.h"

static const size_t mib = (size_t)1 << 20;

static const struct cr_device_options options = {.deterministic = true};

/* Allocates 64 and 32 MiB, then 48 MiB in place of the 64. */
static const struct cr_pool_event step[] = {{0, true, 64 << 20}, {1, true, 32 << 20},  {0, false, 64 << 20},
                                            {2, true, 48 << 20}, {1, false, 32 << 20}, {2, false, 48 << 20}};

TEST(allocators_hold_the_memory_of_a_step) {
    NEED_GPU();
    struct cr_device *device;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CUDA, &options, &device));
    const struct cr_backend *backend = device->backend;
    int                      pools   = 0;
    for (const struct cr_pool *pool = cr_pools_of(device); pool->name; pool++, pools++) {
        struct cr_pool_times times;
        const size_t         before = backend->memory_free(device);
        REQUIRE_OK(pool->measure(device, step, CR_COUNT(step), 7, &times));
        CHECK(times.ms > 0);
        if (times.peak_bytes < 96 * mib || times.peak_bytes > 256 * mib)
            TEST_FAIL_("%s held %zu MiB", pool->name, times.peak_bytes / mib);
        const size_t after = backend->memory_free(device);
        if (after + 32 * mib < before) TEST_FAIL_("%s kept %zu MiB", pool->name, (before - after) / mib);
    }
    CHECK_INT(pools, 2);
    cr_device_close(device);
}

/* Allocates more than the GPU has: an error, and no memory is kept. */
TEST(an_allocator_without_memory_returns_an_error) {
    NEED_GPU();
    struct cr_device *device;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CUDA, &options, &device));
    const size_t               before = device->backend->memory_free(device);
    const struct cr_pool_event much[] = {
        {0, true, before / 2}, {1, true, before}, {1, false, before}, {0, false, before / 2}};
    for (const struct cr_pool *pool = cr_pools_of(device); pool->name; pool++) {
        struct cr_pool_times times;
        CHECK_STATUS(pool->measure(device, much, CR_COUNT(much), 3, &times), CR_ERR_MEMORY);
        CHECK(device->backend->memory_free(device) + 32 * mib >= before);
    }
    cr_device_close(device);
}

/* Memory that the run uses is counted from here. */
TEST(free_memory_is_stored_when_a_device_opens) {
    NEED_GPU();
    struct cr_device *device;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CUDA, &options, &device));
    CHECK(device->free_at_start > 0);
    void *region;
    REQUIRE_OK(device->backend->reserve(device, 512 * mib, &region));
    CHECK(device->backend->memory_free(device) + 512 * mib <= device->free_at_start);
    device->backend->release(device, region);
    cr_device_close(device);
}
