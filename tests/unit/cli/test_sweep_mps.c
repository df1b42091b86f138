/* tests/unit/cli/test_sweep_mps.c: a sweep starts and ends NVIDIA's Multi-Process Service. A script plays the program
 * of the service: it writes what it is asked to a file. */
#include "cli/sweep/sweep.h"
#include "tests/harness/test.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], program[96], notes[96];

/* Makes the script the only program with the service's name that PATH finds; `service` is its part of the service. */
static void install(const char *service) {
    char  script[1024], search[128];
    FILE *f;
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "/tmp/cresnet-test-mps-XXXXXX");
        REQUIRE(mkdtemp(folder) != NULL);
    }
    snprintf(program, sizeof program, "%s/nvidia-cuda-mps-control", folder);
    snprintf(notes, sizeof notes, "%s/notes", folder);
    snprintf(search, sizeof search, "%s:/usr/bin:/bin", folder);
    snprintf(script, sizeof script,
             "#!/bin/sh\n"
             "d=$CUDA_MPS_PIPE_DIRECTORY\n"
             "if [ \"$1\" = -f ]; then %s\n"
             "else read -r word; echo \"$word\" >>'%s'; touch \"$d/quit\"; fi\n",
             service, notes);
    REQUIRE((f = fopen(program, "w")) != NULL);
    fputs(script, f);
    fclose(f);
    REQUIRE(chmod(program, 0700) == 0 && setenv("PATH", search, 1) == 0);
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    unsetenv("CUDA_MPS_LOG_DIRECTORY");
}

static void starts_and_quits(void) {
    struct cr_sweep_mps mps;
    char                used[sizeof mps.folder], *text;
    struct stat         st;
    install("mkdir \"$d/control\"; while [ ! -e \"$d/quit\" ]; do sleep 0.01; done; exit 0");
    cr_sweep_mps_start(&mps);
    REQUIRE(mps.process > 0);
    REQUIRE(getenv("CUDA_MPS_PIPE_DIRECTORY"));
    CHECK_STR(getenv("CUDA_MPS_PIPE_DIRECTORY"), mps.folder);
    CHECK(stat(mps.folder, &st) == 0 && (st.st_mode & 0777) == 0700);
    snprintf(used, sizeof used, "%s", mps.folder);
    cr_sweep_mps_stop(&mps);
    CHECK(!mps.process && !getenv("CUDA_MPS_PIPE_DIRECTORY") && !getenv("CUDA_MPS_LOG_DIRECTORY"));
    CHECK(!cr_fs_is_dir(used));
    REQUIRE_OK(cr_file_read(notes, 100, &text, NULL));
    CHECK_STR(text, "quit\n");
    cr_free(text);
}

/* A service that does not react to "quit" is ended by a signal. */
static void ends_without_answer(void) {
    struct cr_sweep_mps mps;
    install("mkdir \"$d/control\"; exec sleep 60");
    cr_sweep_mps_start(&mps);
    REQUIRE(mps.process > 0);
    const int process = mps.process;
    cr_sweep_mps_stop(&mps);
    CHECK(kill(process, 0) != 0 && !mps.folder[0]);
}

static void nothing_is_left_of_a_failed_start(void) {
    struct cr_sweep_mps mps;
    install("exit 1");
    cr_sweep_mps_start(&mps);
    CHECK(!mps.process && !mps.folder[0] && !getenv("CUDA_MPS_PIPE_DIRECTORY"));
    cr_sweep_mps_stop(&mps);
    setenv("PATH", "/nowhere", 1); /* not installed */
    cr_sweep_mps_start(&mps);
    CHECK(!mps.process && !mps.folder[0] && !getenv("CUDA_MPS_PIPE_DIRECTORY"));
}

static void keeps_the_service_of_the_user(void) {
    struct cr_sweep_mps mps;
    install("exit 1");
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/mine", 1);
    cr_sweep_mps_start(&mps);
    CHECK(!mps.process && !mps.folder[0]);
    cr_sweep_mps_stop(&mps);
    CHECK_STR(getenv("CUDA_MPS_PIPE_DIRECTORY"), "/mine");
}

static void remove_folder(void) {
    CHECK_INT(cr_fs_remove_tree(folder), 0);
}

TESTS(CASE(starts_and_quits), CASE(ends_without_answer), CASE(nothing_is_left_of_a_failed_start),
      CASE(keeps_the_service_of_the_user), CASE(remove_folder))
