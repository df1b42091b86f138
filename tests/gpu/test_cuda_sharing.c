/* tests/gpu/test_cuda_sharing.c: the test whether other work uses the GPU (autotune/sharing.c): quiet on a quiet GPU,
 * and not while another stream of this process keeps the GPU busy. CRESNET_TEST_SHARED=1 says that another process uses
 * the GPU; then only this is checked. */
#include "autotune/cost_table_internal.h"
#include "tests/harness/test_gpu.h"

#include <stdio.h>

enum { TESTS_MADE = 40, BACKGROUND = 4000 };

static struct cr_device *open_gpu(void) {
    const struct cr_device_options options = {.deterministic = true};
    struct cr_device              *device  = NULL;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CUDA, &options, &device));
    return device;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Tests the device repeatedly, prints the spread, and returns how many of them decide that the device is shared. */
static int count_shared(struct cr_device *device, const char *what, bool background) {
    double        contention[TESTS_MADE], sorted[CR_SHARING_TRIES];
    int           shared = 0;
    const int64_t start  = cr_time_ns();
    for (int i = 0; i < TESTS_MADE; i++) {
        for (int k = 0; background && i % 4 == 0 && k < BACKGROUND; k++)
            REQUIRE_OK(device->backend->async->reference_work(device, CR_STREAM_TO_HOST));
        REQUIRE_OK(cr_sharing_measure(device, &contention[i]));
    }
    const double ms = (double)(cr_time_ns() - start) * 1e-6 / TESTS_MADE;
    REQUIRE_OK(device->backend->sync(device));
    for (int i = 0; i + CR_SHARING_TRIES <= TESTS_MADE; i++) {
        enum cr_sharing decision = CR_SHARING_UNDECIDED;
        memcpy(sorted, contention + i, sizeof sorted);
        for (int tests = 1; decision == CR_SHARING_UNDECIDED; tests++) decision = cr_sharing_decide(sorted, tests);
        shared += decision == CR_SHARING_YES;
    }
    const double first = contention[0];
    qsort(contention, TESTS_MADE, sizeof *contention, compare);
    printf("    %s: contention %.3f at first, then %.3f to %.3f, median %.3f; shared %d of %d; %.2f ms a test\n", what,
           first, contention[0], contention[TESTS_MADE - 1], contention[TESTS_MADE / 2], shared,
           TESTS_MADE - CR_SHARING_TRIES + 1, ms);
    return shared;
}

static void a_quiet_gpu_is_not_shared(void) {
    NEED_GPU();
    struct cr_device *device = open_gpu();
    const char       *other  = getenv("CRESNET_TEST_SHARED");
    const int         shared = count_shared(device, other ? "next to another process" : "quiet", false);
    if (other)
        CHECK(shared > TESTS_MADE / 2);
    else
        CHECK_INT(shared, 0);
    cr_device_close(device);
}

static void work_of_another_stream_is_detected(void) {
    NEED_GPU();
    if (getenv("CRESNET_TEST_SHARED")) SKIP("another process uses the GPU");
    struct cr_device *device = open_gpu();
    CHECK(count_shared(device, "next to another stream", true) > TESTS_MADE / 2);
    cr_device_close(device);
}

TESTS(CASE(a_quiet_gpu_is_not_shared), CASE(work_of_another_stream_is_detected))
