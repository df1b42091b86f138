/* tests/gpu/test_cuda_sharing.c: the test whether other work uses the GPU (autotune/sharing.c): quiet on a quiet GPU,
 * and not while another stream of this process keeps the GPU busy. CRESNET_TEST_SHARED=1 says that another process uses
 * the GPU; then only this is checked. */
#include "autotune/cost_table_internal.h"
#include "tests/harness/test_gpu.h"

enum { TESTS_MADE = 40, BACKGROUND = 150 };

static struct cr_device *open_gpu(void) {
    const struct cr_device_options options = {.deterministic = true};
    struct cr_device              *device  = NULL;
    CHECK_STATUS(cr_device_open(CR_DEVICE_CUDA, &options, &device), CR_OK);
    return device;
}

static void add_background(struct cr_device *device, uint64_t *ticks) {
    for (int k = 0; k < BACKGROUND; k++)
        CHECK_STATUS(device->backend->async->reference_work(device, CR_STREAM_TO_HOST, ticks), CR_OK);
}

/* Tests the device repeatedly, and returns how often three tests decide that it is shared. */
static int count_shared(struct cr_device *device, const char *what, bool background) {
    struct cr_contention contention[TESTS_MADE];
    void                *ticks  = NULL;
    int                  shared = 0;
    CHECK_STATUS(device->backend->reserve(device, 3 * CR_REFERENCE_BLOCKS * sizeof(uint64_t), &ticks), CR_OK);
    const int64_t start = cr_time_ns();
    for (int i = 0; i < TESTS_MADE; i++) {
        if (background && ticks) add_background(device, ticks);
        CHECK_STATUS(cr_sharing_measure(device, &contention[i]), CR_OK);
    }
    const double ms = (double)(cr_time_ns() - start) * 1e-6 / TESTS_MADE;
    CHECK_STATUS(device->backend->sync(device), CR_OK);
    device->backend->release(device, ticks);
    for (int i = 0; i + CR_SHARING_TRIES <= TESTS_MADE; i++) {
        enum cr_sharing decision = CR_SHARING_UNDECIDED;
        for (int tests = 1; decision == CR_SHARING_UNDECIDED; tests++)
            decision = cr_sharing_decide(contention + i, tests);
        shared += decision == CR_SHARING_YES;
    }
    printf("    %s: shared %d of %d; %.2f ms a test\n", what, shared, TESTS_MADE - CR_SHARING_TRIES + 1, ms);
    return shared;
}

TEST(a_quiet_gpu_is_not_shared) {
    NEED_GPU();
    OWNED(device) device = open_gpu();
    REQUIRE(device);
    const char *other  = getenv("CRESNET_TEST_SHARED");
    const int   shared = count_shared(device, other ? "next to another process" : "quiet", false);
    if (other)
        CHECK(shared > TESTS_MADE / 2);
    else
        CHECK_INT(shared, 0);
}

TEST(work_of_another_stream_is_detected) {
    NEED_GPU();
    if (getenv("CRESNET_TEST_SHARED")) SKIP("another process uses the GPU");
    OWNED(device) device = open_gpu();
    REQUIRE(device);
    CHECK(count_shared(device, "next to another stream", true) > TESTS_MADE / 2);
}
