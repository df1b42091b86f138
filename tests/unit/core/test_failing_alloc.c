/* tests/unit/core/test_failing_alloc.c: the sweep over failing allocations of tests/harness/failing_alloc.h finds code
 * that leaks, ignores a failure, returns another status or allocates nothing. */
#include "tests/harness/failing_alloc.h"

enum fault { NONE, LEAKS, IGNORES, WRONG_STATUS, NO_ALLOCATION, NEVER_SUCCEEDS };

static void *leaked;

/* Three blocks; with a fault the second one is handled in a wrong way. */
static cr_status three_blocks(enum fault fault) {
    void     *block[3] = {0};
    cr_status status   = CR_OK;
    if (fault == NO_ALLOCATION) return CR_OK;
    for (int i = 0; status == CR_OK && i < 3; i++) {
        block[i] = cr_alloc(1, 16);
        if (block[i]) continue;
        if (fault == IGNORES && i == 1) break;
        status = fault == WRONG_STATUS && i == 1 ? CR_ERR_IO : CR_ERR_MEMORY;
    }
    if (fault == LEAKS && status != CR_OK) {
        leaked   = block[0];
        block[0] = NULL;
    }
    for (int i = 0; i < 3; i++) cr_free(block[i]);
    return fault == NEVER_SUCCEEDS && status == CR_OK ? CR_ERR_FORMAT : status;
}

/* Returns the failed checks of a sweep, which do not count for this case. Nothing is printed. */
static int failed_checks(enum fault fault, int least, int *runs) {
    const int before = test_failures_, printed = test_failed_checks_;
    *runs               = 0;
    test_failed_checks_ = 1000; /* prints nothing */
    for_each_failing_alloc(f, .least = least) {
        failing_alloc_run(&f, three_blocks(fault));
        ++*runs;
    }
    const int failed    = test_failures_ - before;
    test_failures_      = before;
    test_failed_checks_ = printed;
    cr_free(leaked);
    leaked = NULL;
    return failed;
}

TEST(sound_code_passes) {
    int runs;
    CHECK_INT(failed_checks(NONE, 3, &runs), 0);
    CHECK_INT(runs, 4); /* three failures, and a run without one */
    CHECK_INT(failed_checks(NONE, 4, &runs), 1);
}

TEST(faults_are_found) {
    int runs;
    CHECK(failed_checks(LEAKS, 1, &runs) > 0);
    CHECK_INT(runs, 2);
    CHECK(failed_checks(IGNORES, 1, &runs) > 0);
    CHECK_INT(runs, 2);
    CHECK(failed_checks(WRONG_STATUS, 1, &runs) > 0);
    CHECK_INT(runs, 2);
    CHECK(failed_checks(NEVER_SUCCEEDS, 1, &runs) > 0);
    CHECK_INT(runs, 4);
}

TEST(code_without_allocations_fails) {
    int runs;
    CHECK(failed_checks(NO_ALLOCATION, 0, &runs) > 0);
    CHECK_INT(runs, 1);
}
