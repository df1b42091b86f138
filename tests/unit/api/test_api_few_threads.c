/* tests/unit/api/test_api_few_threads.c: the library where the system starts few threads (RLIMIT_NPROC): the
 * results are those without a limit, or the call returns an error. No call ends the process or blocks for ever. */
#include "tests/harness/api_support.h"
#include "tests/harness/test.h"

#include <grp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IMAGES = 4, LIMIT_MAX = 12, SECONDS = 60, UID_FIRST = 1 << 20, ANSWERED = 40, REFUSED = 41, WRONG = 42 };
#ifdef __SANITIZE_THREAD__
enum { FIRST_ENOUGH = 3 }; /* the sanitizer has a thread of its own */
#else
enum { FIRST_ENOUGH = 2 };
#endif

static char    dir[SUPPORT_PATH], run[SUPPORT_PATH];
static uint8_t pixels[IMAGES * API_PIXELS];

/* Opens the model with four threads, classifies four images in one call and closes it. */
static cresnet_status classify(float logits[IMAGES * API_CLASSES], cresnet_error *error) {
    cresnet_options options = api_options(IMAGES);
    cresnet_output  output  = api_logits(logits);
    cresnet_image   image[IMAGES];
    cresnet_model  *model;
    options.threads = 4;
    for (int i = 0; i < IMAGES; i++)
        image[i] = (cresnet_image){.pixels = pixels + i * API_PIXELS, .width = API_SIZE, .height = API_SIZE};
    if (cresnet_open(run, &options, &model, error) != CRESNET_OK) return error->status;
    cresnet_status status = CRESNET_OK;
    for (int round = 0; round < 20 && status == CRESNET_OK; round++) { /* of 4, 1, 2, 3, 4 ... images */
        const int count = (round + 3) % IMAGES + 1;
        status          = cresnet_classify_images(model, image, count, &output, error);
    }
    if (status == CRESNET_OK) status = cresnet_classify_images(model, image, IMAGES, &output, error);
    cresnet_close(model);
    return status;
}

/* In a child process, as a user that has no other process: limits on processes do not hold for root. */
_Noreturn static void classify_within(int limit, const float *want) {
    const struct rlimit threads = {(rlim_t)limit, (rlim_t)limit};
    cresnet_error       error   = {0};
    float               logits[IMAGES * API_CLASSES];
    alarm(SECONDS);
    if (setgroups(0, NULL) != 0 || setuid((uid_t)(UID_FIRST + getpid())) != 0 || setrlimit(RLIMIT_NPROC, &threads) != 0)
        _exit(WRONG);
    if (classify(logits, &error) != CRESNET_OK) _exit(*error.text ? REFUSED : WRONG);
    for (int i = 0; i < IMAGES * API_CLASSES; i++)
        if (!(fabsf(logits[i] - want[i]) <= 1e-5F)) _exit(WRONG);
    exit(ANSWERED); /* handlers of exit() must not need threads, either */
}

static void few_threads_are_enough_or_an_error(void) {
    float         want[IMAGES * API_CLASSES];
    cresnet_error error;
    if (geteuid() != 0) SKIP("only root can become another user");
    REQUIRE(api_have_run(dir, run, pixels, IMAGES));
    REQUIRE(chmod(dir, 0755) == 0);
    REQUIRE_CALL(classify(want, &error));
    for (int limit = 1; limit <= LIMIT_MAX; limit++) {
        int         how   = -1;
        const pid_t child = fork();
        if (child == 0) classify_within(limit, want);
        REQUIRE(child > 0 && waitpid(child, &how, 0) == child);
        if (how != ANSWERED << 8 && (how != REFUSED << 8 || limit >= FIRST_ENOUGH))
            TEST_FAIL_("%d processes: wait status %#x", limit, how);
    }
    drop_folder(dir);
}

TESTS(CASE(few_threads_are_enough_or_an_error))
