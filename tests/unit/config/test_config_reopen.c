/* tests/unit/config/test_config_reopen.c: a configuration is read once: from a pipe, and from files that change or
 * vanish afterwards. cr_config_reopen gives the same values with other overrides. */
#include "config/config.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/folder.h"

#include <fcntl.h>
#include <pthread.h>

static void put(const char *name, const char *text) {
    CHECK_STATUS(cr_file_write_atomic(in_folder("%s", name), text, strlen(text)), CR_OK);
}

static const char a_text[] =
    "include = b.ini\n[train]\nbatch = 24\n[data]\nroot = \"a folder\"\n[model]\narch = custom\n"
    "depths = 1,2\nwidths = 8,16\n";
static const char b_text[] = "[train]\nbatch = 16\nepochs = 7\n[optim]\nlr = 0.375\n";

static void check_values(const struct cr_config *c, int64_t epochs) {
    CHECK_INT(c->train.batch, 24);
    CHECK_INT(c->train.epochs, epochs);
    CHECK_NEAR(c->optim.lr, 0.375, 0);
    CHECK_STR(c->data.root, "a folder");
    CHECK(c->model.depths.count == 2 && c->model.depths.at[1] == 2 && c->model.widths.at[0] == 8);
    CHECK_STR(c->name, "a");
    CHECK_STR(c->path, in_folder("a.ini"));
    CHECK(cr_config_is_set(c, "optim.lr") && !cr_config_is_set(c, "optim.momentum"));
}

TEST(files_may_change) {
    static const char *const first[] = {"train.epochs=3", "optim.momentum=0.5"}, *const second[] = {"train.epochs=9"};
    const struct cr_config *a, *b, *c;
    folder_open();
    put("a.ini", a_text);
    put("b.ini", b_text);
    REQUIRE_OK(cr_config_open(&a, in_folder("a.ini"), first, 2));
    put("a.ini", "[train]\nbatch = 999\n");
    CHECK(unlink(in_folder("b.ini")) == 0);
    CHECK_INT(a->train.epochs, 3);
    REQUIRE_OK(cr_config_reopen(&b, a, second, 1));
    cr_config_close(a); /* b does not refer to a */
    check_values(b, 9);
    REQUIRE_OK(cr_config_reopen(&c, b, NULL, 0));
    cr_config_close(b);
    check_values(c, 7);
    cr_config_fail(c, "optim.lr", "x"); /* an error about a value still names its file and line */
    CHECK_HAS(cr_error_message(), "b.ini:5: [optim] lr");
    cr_config_close(c);
}

static void *write_pipe(void *path) {
    const int     file  = open(path, O_WRONLY);
    const ssize_t wrote = write(file, "[train]\nbatch = 24\n", 19);
    close(file);
    return wrote == 19 ? path : NULL;
}

TEST(pipes_are_read_once) {
    static const char *const more[] = {"train.epochs=5"};
    OWNED(config)            a = NULL, b = NULL;
    pthread_t                writer;
    void                    *written;
    folder_open();
    OWNED(string) path = cr_strdup(in_folder("pipe"));
    REQUIRE(mkfifo(path, 0600) == 0 && pthread_create(&writer, NULL, write_pipe, path) == 0);
    const cr_status status = cr_config_open(&a, path, NULL, 0);
    CHECK(pthread_join(writer, &written) == 0 && written == path);
    REQUIRE_OK(status);
    REQUIRE_OK(cr_config_reopen(&b, a, more, 1)); /* a second open of the pipe would wait for ever */
    CHECK_INT(a->train.batch, 24);
    CHECK(b->train.batch == 24 && b->train.epochs == 5);
}

TEST(errors_and_defaults) {
    static const char *const bad[] = {"train.batch=x", "optim.no=1"}, *const good[] = {"train.batch=5"};
    const struct cr_config *a, *b;
    folder_open();
    put("a.ini", a_text);
    put("b.ini", b_text);
    REQUIRE_OK(cr_config_open(&a, in_folder("a.ini"), NULL, 0));
    CHECK_STATUS(cr_config_reopen(&b, a, bad, 2), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "train] batch = x");
    CHECK_HAS(cr_error_message(), "optim] no = 1");
    CHECK(!b);
    cr_config_close(a);
    REQUIRE_OK(cr_config_open(&a, NULL, good, 1)); /* without a file */
    REQUIRE_OK(cr_config_reopen(&b, a, NULL, 0));
    CHECK(a->train.batch == 5 && b->train.batch != 5);
    CHECK_STR(b->path, "(built in)");
    cr_config_close(a);
    cr_config_close(b);
}

/* The configuration of a run folder is not the user's: reopening it keeps this. */
TEST(stored_stays_stored) {
    static const char *const epochs[] = {"train.epochs=9"}, *const depths[] = {"model.depths=1,2,3"};
    const struct cr_config *a, *b;
    folder_open();
    put("a.ini", strchr(a_text, '\n') + 1); /* without the include, which a stored file may not have */
    REQUIRE_OK(cr_config_open_stored(&a, in_folder("a.ini"), NULL, 0));
    REQUIRE_OK(cr_config_reopen(&b, a, epochs, 1));
    CHECK(b->stored && !b->data.exif && b->train.batch == 24 && b->train.epochs == 9);
    CHECK(cr_config_given(b, "train.epochs") && !cr_config_given(b, "train.batch"));
    cr_config_close(b);
    CHECK_STATUS(cr_config_reopen(&b, a, depths, 1), CR_ERR_CONFIG); /* widths has two values, and stays hidden */
    CHECK_HAS(cr_error_message(), "a.ini:8: [model] widths is invalid, perhaps because of a value of the command line");
    CHECK(!strstr(cr_error_message(), "8,16"));
    cr_config_close(a);
}

TEST(failing_allocations) {
    OWNED(config) a = NULL;
    folder_open();
    char long_line[1000] = "[data]\nroot = ";
    memset(long_line + strlen(long_line), 'x', 700);
    put("b.ini", long_line);
    put("a.ini", a_text);
    REQUIRE_OK(cr_config_open(&a, in_folder("a.ini"), NULL, 0));
    for_each_failing_alloc(f, .least = 1) {
        const struct cr_config *b;
        const cr_status         status = failing_alloc_run(&f, cr_config_reopen(&b, a, NULL, 0));
        if (status == CR_OK) cr_config_close(b);
    }
}
