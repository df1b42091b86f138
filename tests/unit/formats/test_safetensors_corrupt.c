/* tests/unit/formats/test_safetensors_corrupt.c: the safetensors format: every fault of
 * tests/golden/safetensors/bad.txt, truncated and changed files, missing memory, failing calls, full disks. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/safetensors_demo.h"

#include <errno.h>
#include <sys/resource.h>

#define CORPUS CR_SOURCE_DIR "/tests/fuzz/corpus/fuzz_safetensors/"

/* ---- refusals ---- */

TEST(invalid_files_are_refused) {
    char *list = NULL, *save = NULL;
    int   count = 0;
    REQUIRE_OK(cr_file_read(GOLDEN "bad.txt", 1 << 20, &list, NULL));
    for (char *line = strtok_r(list, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char               path[1024], *part = strchr(line, '\t');
        struct cr_st_file *file = NULL;
        REQUIRE(part != NULL);
        *part++ = 0;
        snprintf(path, sizeof path, "%s%s", CORPUS, line);
        cr_error_clear();
        cr_status status = cr_st_open(path, &file);
        if (status != CR_ERR_FORMAT) TEST_FAIL_("%s: status %s (%s)", line, cr_status_name(status), cr_error_message());
        CHECK(!strncmp(cr_error_message(), path, strlen(path)));
        CHECK_HAS(cr_error_message() + CR_MIN(strlen(path), strlen(cr_error_message())), part);
        CHECK(file == NULL);
        count++;
    }
    cr_free(list);
    CHECK_INT(count, 49);
}

TEST(every_truncation_is_refused) {
    OWNED(string) bytes = NULL;
    size_t        length;
    folder_open();
    REQUIRE_OK(cr_file_read(GOLDEN "demo.safetensors", 1 << 20, &bytes, &length));
    for (size_t cut = 0; cut <= length + 1; cut++) {
        struct cr_st_file *file;
        const char        *path = in_folder("cut");
        if (cut == length) continue;
        REQUIRE_OK(cr_fs_write_new(path, bytes, cut)); /* length + 1: cr_file_read put a 0 there */
        CHECK_STATUS(cr_st_open(path, &file), CR_ERR_FORMAT);
        unlink(path);
    }
}

/* One byte of the header changed: the file is opened or refused, without a crash; an opened file has valid entries. */
TEST(every_changed_byte_is_handled) {
    OWNED(string) bytes = NULL;
    size_t        length;
    int           refused = 0, opened = 0;
    folder_open();
    REQUIRE_OK(cr_file_read(GOLDEN "demo.safetensors", 1 << 20, &bytes, &length));
    for (size_t i = 0; i < length; i++)
        for (int bit = 0; bit < 8; bit += 3) {
            struct cr_st_file *file;
            const char        *path = in_folder("flip");
            bytes[i] ^= (char)(1 << bit);
            REQUIRE_OK(cr_fs_write_new(path, bytes, length));
            bytes[i] ^= (char)(1 << bit);
            if (cr_st_open(path, &file) != CR_OK) {
                refused++;
            } else {
                opened++;
                char data[64];
                for (int t = 0; t < cr_st_count(file); t++)
                    REQUIRE_OK(cr_st_read(file, cr_st_at(file, t), 0, data, (size_t)cr_st_at(file, t)->bytes));
                cr_st_close(file);
            }
            unlink(path);
        }
    CHECK(refused > 500);
    CHECK(opened > 100); /* names and data may change */
}

TEST(paths_that_are_not_files) {
    struct cr_st_file *file;
    folder_open();
    CHECK_STATUS(cr_st_open(in_folder("none"), &file), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "No such file");
    CHECK_HAS(cr_error_message(), in_folder("none"));
    CHECK_STATUS(cr_st_open(tmp_path, &file), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "is a folder");
    CHECK_STATUS(cr_st_open("/dev/null", &file), CR_ERR_IO);
    CHECK_INT(mkfifo(in_folder("pipe"), 0600), 0);
    CHECK_STATUS(cr_st_open(in_folder("pipe"), &file), CR_ERR_IO); /* and does not wait */
}

/* A header above the limit of the format is refused before memory is allocated; the file is a hole, so it needs no disk
 * space. */
TEST(header_beyond_the_limit) {
    struct cr_st_file *file;
    folder_open();
    REQUIRE_OK(write_raw(in_folder("x"), "{", CR_ST_HEADER_MAX + 1, 0));
    CHECK_INT(truncate(in_folder("x"), CR_ST_HEADER_MAX + 100), 0);
    uint64_t calls = cr_alloc_calls();
    CHECK_STATUS(cr_st_open(in_folder("x"), &file), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "larger than the format allows");
    CHECK_INT(cr_alloc_calls() - calls, 2);
}

TEST(file_shrinks_while_open) {
    OWNED(weights) file = NULL;
    float          data[6];
    folder_open();
    REQUIRE_OK(write_demo(in_folder("demo"), 0));
    REQUIRE_OK(cr_st_open(in_folder("demo"), &file));
    CHECK_INT(truncate(in_folder("demo"), 600), 0);
    CHECK_STATUS(cr_st_read(file, cr_st_find(file, "a.weight"), 0, data, sizeof data), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "was truncated");
}

/* ---- failures of the writer ---- */

TEST(writer_refuses) {
    struct cr_st_entry   entry = {.name = "a", .dtype = CR_F32, .dims = 1, .dim = {2}};
    struct cr_st_writer *writer;
    float                data[2] = {1, 2};
    folder_open();
    const char *path = in_folder("x");
    /* too few bytes */
    REQUIRE_OK(cr_st_create(path, &entry, 1, NULL, 0, &writer));
    REQUIRE_OK(cr_st_write(writer, data, 4));
    CHECK_STATUS(cr_st_create(path, &entry, 1, NULL, 0, &(struct cr_st_writer *){NULL}),
                 CR_ERR_IO); /* exists already */
    CHECK_STATUS(cr_st_finish(&writer), CR_ERR_FORMAT);
    CHECK(access(path, F_OK) < 0);
    /* names and values that no reader would accept */
    entry.name = "a\xff";
    CHECK_STATUS(cr_st_create(path, &entry, 1, NULL, 0, &writer), CR_ERR_FORMAT);
    entry.name             = "a";
    struct cr_st_meta meta = {"class", "caf\xe9"};
    CHECK_STATUS(cr_st_create(path, &entry, 1, &meta, 1, &writer), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "UTF-8");
    CHECK(access(path, F_OK) < 0);
    /* abandoned */
    REQUIRE_OK(cr_st_create(path, &entry, 1, NULL, 0, &writer));
    cr_st_abandon(writer);
    CHECK(access(path, F_OK) < 0);
    cr_st_abandon(NULL);
}

TEST(memory_runs_out) {
    struct cr_st_file *file;
    folder_open();
    for_each_failing_alloc(f, .least = 4) {
        const cr_status status = failing_alloc_run(&f, write_demo(in_folder("demo"), 0));
        CHECK((access(in_folder("demo"), F_OK) == 0) == (status == CR_OK));
    }
    for_each_failing_alloc(f, .least = 4) {
        const cr_status status = failing_alloc_run(&f, cr_st_open(in_folder("demo"), &file));
        if (status == CR_OK) cr_st_close(file);
    }
}

TEST(calls_fail) {
    folder_open();
    for (int64_t n = 1;; n++) {
        uint64_t before = cr_fs_calls();
        cr_fs_fail_at(n, 1, EIO);
        cr_status status = write_demo(in_folder("demo"), 0);
        cr_fs_fail_at(0, 0, 0);
        if (cr_fs_calls() - before < (uint64_t)n) {
            CHECK_INT(status, CR_OK);
            CHECK(n > 10);
            break;
        }
        CHECK_INT(status, CR_ERR_IO);
        CHECK_HAS(cr_error_message(), in_folder("demo"));
        CHECK(access(in_folder("demo"), F_OK) < 0);
    }
}

static void write_big(const char *path, size_t bytes, cr_status want, const char *message) {
    struct cr_st_entry   entry = {.name = "a", .dtype = CR_U8, .dims = 1, .dim = {(int64_t)bytes}};
    struct cr_st_writer *writer;
    OWNED(string)        data = cr_alloc(bytes, 1);
    REQUIRE(data != NULL);
    cr_status status = cr_st_create(path, &entry, 1, NULL, 0, &writer);
    if (status == CR_OK) {
        status = cr_st_write(writer, data, bytes / 2);
        if (status == CR_OK) status = cr_st_write(writer, data + bytes / 2, bytes - bytes / 2);
        if (status == CR_OK)
            status = cr_st_finish(&writer);
        else
            cr_st_abandon(writer);
    }
    CHECK_INT(status, want);
    CHECK_HAS(cr_error_message(), message);
    CHECK_HAS(cr_error_message(), path);
    CHECK(access(path, F_OK) < 0);
}

TEST(file_size_limit) {
    folder_open();
    struct rlimit old, small;
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &old), 0);
    small          = old;
    small.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
    write_big(in_folder("big"), 3 << 20, CR_ERR_IO, "file size limit reached: 2097");
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
}
