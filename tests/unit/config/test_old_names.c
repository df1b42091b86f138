/* tests/unit/config/test_old_names.c: names of older versions are errors in configurations that users give, and are
 * replaced in the configurations of run folders. tests/cli/test_old_runs.sh does the same with a run of version 0.3.0.
 */
#include "config/keys.h"
#include "tests/harness/test.h"

#include <unistd.h>

static const char file[] = "test_old_names.ini";

static void write_file(const char *text) {
    REQUIRE_OK(cr_file_write_atomic(file, text, strlen(text)));
}

TEST(users_get_an_error) {
    const struct cr_config *config;
    write_file("[memory]\nswap = wdoa\ntrace = a.log\n");
    CHECK_STATUS(cr_config_open(&config, file, NULL, 0), CR_ERR_CONFIG);
    CHECK(strstr(cr_error_message(),
                 "test_old_names.ini:2: [memory] swap = wdoa: this version no longer has this value: "
                 "write memory.swap = auto"));
    CHECK(strstr(cr_error_message(), "test_old_names.ini:3: [memory] trace = a.log: this version no longer has this "
                                     "key: "));
    CHECK(unlink(file) == 0);
}

TEST(run_folders_are_read) {
    static const char *const old_override[] = {"memory.swap=first"};
    const struct cr_config  *config;
    write_file("[memory]\nswap = wdoa\ntrace = a.log\nlimit = 3MiB\n");
    REQUIRE_OK(cr_config_open_stored(&config, file, NULL, 0));
    CHECK(config->memory.swap == CR_OFFLOAD_MODE_AUTO);
    CHECK_STR(config->memory.limit, "3MiB");
    cr_config_close(config);
    CHECK_STATUS(cr_config_open_stored(&config, file, old_override, 1), CR_ERR_CONFIG); /* the user gave it */
    CHECK(strstr(cr_error_message(), "command line: [memory] swap = first: this version no longer has this value"));
    CHECK(unlink(file) == 0);
}

TEST(other_names_are_not_old) {
    CHECK(!cr_old_name_find("memory", "swap", "auto"));
    CHECK(!cr_old_name_find("memory", "swap", "wdoa2"));
    CHECK(!cr_old_name_find("train", "trace", ""));
    CHECK_STR(cr_old_kernel_now("cuda.no_such_kernel"), "cuda.no_such_kernel");
    CHECK_STR(cr_old_kernel_now("cuda.loss_weighted"), "cuda.loss");
}
