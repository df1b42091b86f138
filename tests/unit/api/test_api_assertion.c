/* tests/unit/api/test_api_assertion.c: a failed assertion in any thread of a model: the call returns an error, other
 * models and the process go on. The program is linked with the library's cr_host_stop, and with wrappers of two
 * functions in which the assertions fail. */
#include "api/model.h"
#include "data/resize.h"
#define IMAGES 6
#include "tests/harness/api_support.h"

#include <sys/wait.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) {
    return 0;
}
#endif

enum { SIDE = 12, SECONDS = 60, STEP_US = 1000, LATE_US = 50000 };
enum place { NOWHERE, ALONE, IN_TEAM, IN_DECODER }; /* where an assertion fails; ALONE: outside of OpenMP regions */

static uint8_t large[IMAGES][SIDE * SIDE * 3];
static char    files[IMAGES][SUPPORT_PATH];

static atomic_int  fails_in; /* enum place */
static int         fails_thread, team;
static atomic_bool has_failed;

cr_status __real_cr_exec_run(struct cr_exec *exec, const struct cr_step_block *step);
cr_status __wrap_cr_exec_run(struct cr_exec *exec, const struct cr_step_block *step);
cr_status __real_cr_resize_run(const struct cr_resize *job, struct cr_buffer *tables);
cr_status __wrap_cr_resize_run(const struct cr_resize *job, struct cr_buffer *tables);

cr_status __wrap_cr_exec_run(struct cr_exec *exec, const struct cr_step_block *step) {
    const enum place place = (enum place)fails_in;
    CR_ASSERT(place != ALONE);
    if (place == IN_TEAM) {
#ifdef _OPENMP
#pragma omp parallel num_threads(team)
#endif
        CR_ASSERT(omp_get_thread_num() != fails_thread);
    }
    return __real_cr_exec_run(exec, step);
}

/* The other decoders still write their images when one has failed. */
cr_status __wrap_cr_resize_run(const struct cr_resize *job, struct cr_buffer *tables) {
    if (fails_in == IN_DECODER) {
        const bool first = omp_get_thread_num() == fails_thread && !atomic_exchange(&has_failed, true);
        CR_ASSERT(!first);
        while (!has_failed) (void)usleep(STEP_US);
        (void)usleep(LATE_US);
    }
    return __real_cr_resize_run(job, tables);
}

/* ---- a host ---- */

static cresnet_model *open_model(int threads, int batch) {
    cresnet_options options = api_options(batch);
    options.threads         = threads;
    return open_run(&options);
}

static bool classifies(cresnet_model *model, const float want[IMAGES][API_CLASSES]) {
    float          logits[IMAGES][API_CLASSES];
    cresnet_error  error;
    cresnet_output output = api_logits(logits[0]);
    return cresnet_classify_tensor(model, &all_images, &output, &error) == CRESNET_OK &&
           memcmp(logits, want, sizeof logits) == 0;
}

struct caller {
    cresnet_model *model;
    enum place     place;
    cresnet_error  error;
    bool           untouched; /* memory of the caller does not change after the call */
};

static void *call(void *argument) {
    const char    *path[IMAGES];
    struct caller *c = argument;
    uint8_t        prepared[IMAGES * API_PIXELS], after[sizeof prepared];
    float          logits[IMAGES * API_CLASSES];
    cresnet_output output = api_logits(logits);
    cresnet_image  image[IMAGES];
    for (int i = 0; i < IMAGES; i++) {
        path[i]  = files[i];
        image[i] = (cresnet_image){large[i], SIDE, SIDE, 0};
    }
    memset(prepared, 0, sizeof prepared);
    if (c->place == IN_DECODER)
        (void)cresnet_prepare_files(c->model, path, IMAGES, prepared, NULL, &c->error);
    else
        (void)cresnet_classify_images(c->model, image, IMAGES, &output, &c->error);
    memcpy(after, prepared, sizeof after);
    (void)usleep(2 * LATE_US);
    c->untouched = memcmp(after, prepared, sizeof after) == 0;
    return NULL;
}

/* Runs in a process of its own: two threads call a model in which an assertion fails. */
static void break_model(enum place place, int threads, int batch, int thread) {
    static const float none[IMAGES][API_CLASSES];
    float              want[IMAGES][API_CLASSES];
    pthread_t          other;
    cresnet_error      error;
    cresnet_output     output  = api_logits(want[0]);
    OWNED(api_model)   healthy = open_model(threads, batch);
    cresnet_model     *earlier = open_model(threads, batch);
    CHECK_CALL(cresnet_classify_tensor(healthy, &all_images, &output, &error), CRESNET_OK);
    CHECK(memcmp(want, none, sizeof want) != 0);
    CHECK(classifies(earlier, want));
    cresnet_close(earlier); /* LLVM's OpenMP has one pool of threads: the next model gets those of this one */
    cresnet_model *broken     = open_model(threads, batch);
    struct caller  callers[2] = {{.model = broken, .place = place}, {.model = broken, .place = place}};
    if (!healthy || !broken) return;
    CHECK(classifies(broken, want));
    team         = threads;
    fails_thread = thread;
    fails_in     = place;
    CHECK(pthread_create(&other, NULL, call, &callers[1]) == 0);
    (void)call(&callers[0]);
    (void)pthread_join(other, NULL);
    fails_in = NOWHERE;
    /* One call may begin after the assertion: the model is broken then. `second` is its index. */
    const int second = callers[0].error.status == CRESNET_ERROR_DEVICE;
    CHECK_INT(callers[!second].error.status, CRESNET_ERROR_DEVICE);
    CHECK(callers[second].error.status == CRESNET_ERROR_DEVICE || callers[second].error.status == CRESNET_ERROR_BROKEN);
    for (int i = 0; i < 2; i++) {
        CHECK_HAS(callers[i].error.text, "internal error: ");
        CHECK_HAS(callers[i].error.text, "assertion failed: ");
        CHECK(callers[i].untouched);
    }
    CHECK_CALL(cresnet_classify_tensor(broken, &all_images, &output, &error), CRESNET_ERROR_BROKEN);
    CHECK(classifies(healthy, want));
    cresnet_close(broken);
    OWNED(api_model) next = open_model(threads, batch);
    CHECK(next && classifies(next, want) && classifies(healthy, want));
}

static void in_a_process(enum place place, int threads, int batch, int thread) {
    int how;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        (void)alarm(SECONDS);
        break_model(place, threads, batch, thread);
        fflush(stdout);
#ifdef __clang__
        _exit(test_failures_ ? 1 : 0); /* LLVM's OpenMP 14 may abort in exit() when a team still waits for a thread */
#else
        exit(test_failures_ ? 1 : 0);
#endif
    }
    REQUIRE(child > 0 && waitpid(child, &how, 0) == child);
    if (how)
        TEST_FAIL_("place %d, %d threads, batch %d, thread %d: %s %d", (int)place, threads, batch, thread,
                   WIFSIGNALED(how) ? "killed by signal" : "exit code",
                   WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
}

static bool have_files(void) {
    if (**files) return true;
    if (!have_run()) return false;
    for (int i = 0; i < IMAGES; i++) {
        for (int k = 0; k < SIDE * SIDE * 3; k++) large[i][k] = (uint8_t)(i * 31 + k * 7);
        snprintf(files[i], sizeof files[i], "%s", in_folder("%d.png", i));
        if (cr_image_write_png(files[i], large[i], SIDE, SIDE) != CR_OK) return false;
    }
    return true;
}

static void everywhere(enum place place) {
    if (!have_files()) SKIP("no run");
#ifdef _OPENMP
    static const int threads[] = {1, 2, 4};
#else
    static const int threads[] = {1};
#endif
    for (size_t k = 0; k < CR_COUNT(threads); k++)
        for (int batch = 1; batch <= 4; batch += 3) {
            const int members = place == ALONE ? 1 : place == IN_TEAM ? threads[k] : CR_MIN(threads[k], IMAGES);
            in_a_process(place, threads[k], batch, 0);
            if (members > 1 && (place == IN_TEAM || batch > 1)) in_a_process(place, threads[k], batch, members - 1);
        }
}

TEST(in_the_thread_of_the_model) {
    everywhere(ALONE);
}
TEST(in_a_team) {
    everywhere(IN_TEAM);
}
TEST(in_a_decoder) {
    everywhere(IN_DECODER);
}
