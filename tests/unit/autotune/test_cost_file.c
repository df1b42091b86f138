/* tests/unit/autotune/test_cost_file.c: the file of the cost table: it is ignored when it does not fit or is corrupt,
 * processes share it, and it never stops a run. */
#include "tests/harness/cost_table_support.h"

TEST(mismatched_file_is_ignored) {
    static const char *const corrupt[] = {"",
                                          "cresnet kernel times 6",
                                          "cresnet costs 1\tGPU\n",
                                          "\x7f\x45LF",
                                          "cresnet costs 3\tGPU A, driver 1\n",
                                          "cresnet kernel times 6\tanother device\n1\ta\t0\tb\n"};
    OWNED(fixture)           s         = {0};
    fixture_begin(&s);
    best(&s);
    cr_cost_table_flush(s.table);
    fixture_reopen(&s, "GPU A, driver 2"); /* another driver: measured again */
    best(&s);
    CHECK(measured(&s) == 3);
    for (size_t i = 0; i < CR_COUNT(corrupt); i++) {
        REQUIRE_OK(cr_file_write_atomic(s.path, corrupt[i], strlen(corrupt[i])));
        fixture_reopen(&s, "GPU A, driver 1");
        CHECK(best(&s).kernel == 1 && measured(&s) == 3);
    }
}

/* The result of a run that measured: the text of the file. */
static void begin_with_file(struct fixture *s, char **text) {
    fixture_begin(s);
    best(s);
    cr_cost_table_flush(s->table);
    REQUIRE_OK(cr_file_read(s->path, 1 << 20, text, NULL));
}

/* The file is not trusted: everything is measured again. */
static void check_dropped(struct fixture *s, const char *text, size_t length) {
    REQUIRE_OK(cr_file_write_atomic(s->path, text, length));
    fixture_reopen(s, "GPU A, driver 1");
    CHECK(best(s).algo == 1 && measured(s) == 3);
}

/* Lines with invalid numbers, missing fields, a truncated end: the whole file is ignored. */
TEST(corrupt_line_invalidates_the_file) {
    static const char *const lines[] = {"x\tfake.a\t0\tsig\n",
                                        "-1\tfake.a\t0\tsig\n",
                                        "0\tfake.a\t0\tsig\n",
                                        "1\t\t0\tsig\n",
                                        "1\tfake.a\t0\n",
                                        "1\tfake.a\t0\tsig",
                                        "1\tfake.a\t9999999999\tsig\n",
                                        "\n",
                                        "1\tfake.a\t0\tsig\n",
                                        "1\tfake.a\t0\tconv x=f16[1,1,1,1] -> y=f16[1,1,1,1]\n",
                                        "1\tfake.q\t0\trelu x\n",
                                        "1\t-\t0\trelu x\n",
                                        "100000000001\tfake.a\t0\trelu x\n",
                                        "99999999999999999999\tfake.a\t0\trelu x\n"};
    OWNED(fixture)           s       = {0};
    OWNED(string)            text    = NULL;
    begin_with_file(&s, &text);
    for (size_t i = 0; i < CR_COUNT(lines); i++) {
        OWNED(text) corrupt = {0};
        add_line_and_checksum(text, lines[i], &corrupt);
        check_dropped(&s, corrupt.data, corrupt.length);
    }
    /* bytes after a zero must be read, although the checksum of the bytes before it is valid */
    static const char hidden[] = "1\tfake.a\t0\trelu x\n";
    char             *sum      = strstr(text, "\nsum\t");
    REQUIRE(sum);
    const size_t  before = (size_t)(sum + 1 - text), last = strlen(sum + 1), length = before + sizeof hidden + last;
    OWNED(string) whole = cr_alloc(length, 1);
    REQUIRE(whole);
    memcpy(whole, text, before);
    memcpy(whole + before + 1, hidden, sizeof hidden - 1);
    memcpy(whole + before + sizeof hidden, sum + 1, last);
    check_dropped(&s, whole, length);
}

/* A changed kernel or algo could name one that cannot run. */
TEST(edited_file_is_ignored) {
    OWNED(fixture) s    = {0};
    OWNED(string)  text = NULL;
    begin_with_file(&s, &text);
    char *algo = strstr(text, "\t1\trelu");
    REQUIRE(algo);
    algo[1] = '7';
    check_dropped(&s, text, strlen(text));
}

TEST(line_of_another_op_is_ignored) {
    OWNED(string)  text = NULL;
    OWNED(text)    more = {0};
    OWNED(fixture) s    = {0};
    fixture_begin(&s);
    best(&s);
    REQUIRE_OK(cr_cost_table_text(s.table, &text));
    add_line_and_checksum(text, "100000000000\tfake.a\t0\trelu x\n", &more);
    REQUIRE_OK(cr_file_write_atomic(s.path, more.data, more.length));
    fixture_reopen(&s, "GPU A, driver 1");
    CHECK(best(&s).algo == 1 && measured(&s) == 0);
}

TEST(pipe_as_file_does_not_block) {
    OWNED(fixture) s = {0};
    char           dir[SUPPORT_PATH];
    make_folder(dir);
    CHECK_INT(mkfifo(formatted("%s/kernel_times.txt", dir), 0600), 0);
    fixture_open(&s, dir, "GPU A, driver 1");
    CHECK(best(&s).kernel == 1 && measured(&s) == 3);
}

/* Each process wrote its measurements: neither is lost. */
TEST(two_processes_share_the_file) {
    struct fixture a, b;
    fixture_begin(&a);
    fixture_open(&b, a.dir, "GPU A, driver 1");
    best(&a);
    cr_cost_table_flush(a.table);
    resize(&b, 7);
    best(&b);
    cr_cost_table_flush(b.table);
    fixture_close(&b);
    fixture_reopen(&a, "GPU A, driver 1");
    best(&a);
    resize(&a, 7);
    CHECK(best(&a).algo == 1);
    CHECK(measured(&a) == 0);
    fixture_close(&a);
}

/* Entries of hundreds of signatures are found again, in the file and in memory. */
TEST(many_signatures) {
    enum { MANY = 700 };
    struct fixture s;
    char           dir[SUPPORT_PATH];
    make_folder(dir);
    for (int round = 0; round < 2; round++) {
        fixture_open(&s, dir, "GPU A, driver 1");
        for (int i = 1; i <= MANY; i++) {
            resize(&s, i);
            takes[0][0]               = i % 2 ? 3e-4 : 9e-5; /* kernel a is faster for every second signature */
            const struct cr_cost cost = best(&s);
            CHECK(cost.kernel == i % 2 && fabs(cost.seconds - (i % 2 ? 1e-4 : 9e-5)) < 2e-9);
        }
        CHECK(measured(&s) == (round ? 0 : 3 * MANY));
        cr_cost_table_flush(s.table);
        fixture_close(&s);
    }
}

TEST(unwritable_file_does_not_stop_the_run) {
    struct fixture s;
    char           dir[SUPPORT_PATH];
    make_folder(dir);
    put_text(dir, "a-file", "");
    fixture_open(&s, formatted("%s/a-file", dir), "GPU A, driver 1");
    CHECK(best(&s).kernel == 1);
    cr_cost_table_flush(s.table);
    CHECK_STR(cr_error_message(), "");
    CHECK(best(&s).kernel == 1 && measured(&s) == 3);
    fixture_close(&s);
    fixture_open(&s, dir, "GPU A, driver 1");
    best(&s);
    for (int64_t n = 1; n <= 6;
         n++) { /* a full disk at each change: create, write, sync, close, rename, sync of the folder */
        cr_fs_fail_at(n, 1, ENOSPC);
        cr_cost_table_flush(s.table);
        cr_fs_fail_at(0, 0, 0);
        CHECK_STR(cr_error_message(), "");
        CHECK((access(s.path, F_OK) == 0) == (n == 6));
        resize(&s, 10 + n);
        best(&s);
    }
    fixture_reopen(&s, "GPU A, driver 1");
    for (int64_t n = 1; n <= 5; n++) { /* a later save writes the entries that could not be written before */
        resize(&s, 10 + n);
        best(&s);
    }
    CHECK(measured(&s) == 0);
    fixture_close(&s);
}

TEST(location_of_the_file) {
    struct cr_device device = {.caps = {.text = "GPU A, driver 1"}};
    char             long_home[CR_PATH_MAX + 8], *path;
    memset(long_home, 'h', sizeof long_home - 1);
    long_home[sizeof long_home - 1] = 0;
    const struct {
        const char *own, *xdg, *home, *want;
    } cases[] = {{"off", "/x", "/h", ""},
                 {"cache", "/x", "/h", "cache/kernel-times-gpu-a.txt"},
                 {"", "/x", "/h", "/x/cresnet/kernel-times-gpu-a.txt"},
                 {"", "x", "/h", "/h/.cache/cresnet/kernel-times-gpu-a.txt"},
                 {"", "", "", ""},
                 {"", "", long_home, ""}};
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        setenv("CRESNET_CACHE", cases[i].own, 1);
        setenv("XDG_CACHE_HOME", cases[i].xdg, 1);
        setenv("HOME", cases[i].home, 1);
        REQUIRE_OK(cr_cost_table_path(&device, &path));
        CHECK_STR(path, cases[i].want);
        CHECK_STR(cr_error_message(), "");
        cr_free(path);
    }
}
