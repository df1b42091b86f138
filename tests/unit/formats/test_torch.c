/* tests/unit/formats/test_torch.c: PyTorch's files: every file of tests/golden/torch/cases.txt gives the demo's tensors
 * or is refused for its reason; truncated and changed files, missing memory. The files are written by
 * tests/golden/torch/make_cases.py; tests/cli/test_torchvision.py reads those of PyTorch itself. */
#include "formats/torch.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/safetensors_demo.h"

#define CORPUS CR_SOURCE_DIR "/tests/fuzz/corpus/fuzz_torch/"

static void check_demo(const char *path) {
    OWNED(weights) file = NULL;
    REQUIRE_OK(cr_st_open_any(path, &file));
    check_demo_tensors(file);
    CHECK(cr_st_find(file, "a") == NULL);
    CHECK(cr_st_meta_find(file, "format") == NULL);
}

static void check_refused(const char *path, const char *part) {
    struct cr_st_file *file = NULL;
    cr_error_clear();
    const cr_status status = cr_torch_open(path, &file);
    if (status != CR_ERR_FORMAT) TEST_FAIL_("%s: status %s (%s)", path, cr_status_name(status), cr_error_message());
    CHECK(!strncmp(cr_error_message(), path, strlen(path)));
    CHECK_HAS(cr_error_message() + CR_MIN(strlen(path), strlen(cr_error_message())), part);
    CHECK(!strpbrk(cr_error_message(), "\x1b\a")); /* names of the file do not reach the terminal */
    CHECK(file == NULL);
}

TEST(every_case) {
    char *list = NULL, *save = NULL;
    int   good = 0, bad = 0;
    REQUIRE_OK(cr_file_read(CR_SOURCE_DIR "/tests/golden/torch/cases.txt", 1 << 20, &list, NULL));
    for (char *line = strtok_r(list, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char path[1024], *part = strchr(line, '\t');
        REQUIRE(part != NULL);
        *part++ = 0;
        snprintf(path, sizeof path, "%s%s", CORPUS, line);
        const int failures = test_failures_;
        if (strcmp(part, "ok") == 0) {
            good++;
            check_demo(path);
        } else {
            bad++;
            check_refused(path, part);
        }
        if (test_failures_ > failures) printf("    in %s\n", line);
    }
    cr_free(list);
    CHECK(good >= 18 && bad >= 110);
}

/* ---- damage ---- */

/* Opens a file and reads all of it. Returns whether it was opened; a file that is not must be refused. */
static bool open_and_read(const char *path) {
    OWNED(weights)  file   = NULL;
    const cr_status status = cr_torch_open(path, &file);
    if (status != CR_OK) {
        CHECK(status == CR_ERR_FORMAT);
        return false;
    }
    for (int i = 0; i < cr_st_count(file); i++) {
        const struct cr_st_entry *e    = cr_st_at(file, i);
        void                     *data = cr_alloc((size_t)e->bytes, 1);
        CHECK(data && cr_st_read(file, e, 0, data, (size_t)e->bytes) == CR_OK);
        cr_free(data);
    }
    return true;
}

static void damage(const char *name) {
    OWNED(string) bytes = NULL;
    size_t        length;
    int           opened = 0;
    folder_open();
    const char *const path = formatted("%s", in_folder("damaged"));
    REQUIRE_OK(cr_file_read(name, 1 << 20, &bytes, &length));
    for (size_t cut = 0; cut < length; cut += TEST_SANITIZED ? 5 : 1) {
        REQUIRE_OK(cr_fs_write_new(path, bytes, cut));
        if (open_and_read(path)) TEST_FAIL_("%s: opened with %zu of %zu bytes", name, cut, length);
        unlink(path);
    }
    for (size_t i = 0; i < length; i += TEST_SANITIZED ? 3 : 1)
        for (int bit = 0; bit < 8; bit += 3) {
            bytes[i] ^= (char)(1 << bit);
            REQUIRE_OK(cr_fs_write_new(path, bytes, length));
            bytes[i] ^= (char)(1 << bit);
            opened += open_and_read(path);
            unlink(path);
        }
    CHECK(opened > 0);
}

TEST(damaged_zip) {
    damage(CORPUS "good-zip-strided");
}
TEST(damaged_stream) {
    damage(CORPUS "good-stream-strided");
}

TEST(memory_runs_out) {
    static const char *const names[] = {CORPUS "good-zip-checkpoint", CORPUS "good-stream-strided"};
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        for_each_failing_alloc(f, .least = 8) {
            struct cr_st_file *file;
            const cr_status    status = failing_alloc_run(&f, cr_torch_open(names[i], &file));
            if (status == CR_OK) cr_st_close(file);
        }
    }
    for_each_failing_alloc(f, .least = 2) {
        OWNED(weights) file = NULL;
        float          data[6];
        REQUIRE_OK(cr_torch_open(names[1], &file));
        failing_alloc_run(&f, cr_st_read(file, cr_st_find(file, "a.weight"), 0, data, sizeof data));
    }
}

/* A pickle of a few bytes can need much: time and memory stay within the limits of formats/torch/pickle.h. */
TEST(limits) {
    static const char preamble[] = "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.K\1.}.";
    const size_t      size = 24 << 20, begin = sizeof preamble - 1;
    folder_open();
    char *bytes = cr_alloc(size, 1), path[512];
    REQUIRE(bytes != NULL);
    snprintf(path, sizeof path, "%s", in_folder("large"));
    memcpy(bytes, preamble, begin);
    static const char *const repeated[] = {"]", "(", "h", ")"}; /* values, marks, references, values */
    static const char *const message[]  = {"more than", "too many marks", "too deep", "more than"};
    for (size_t i = 0; i < CR_COUNT(repeated); i++) {
        memset(bytes + begin, repeated[i][0], size - begin);
        if (*repeated[i] == 'h') {
            for (size_t k = begin; k + 1 < size; k++) bytes[k] = (k - begin) % 2 ? 0 : 'h'; /* BINGET 0 */
            memcpy(bytes + begin, "Nq\0", 3);
            memmove(bytes + begin + 3, bytes + begin + 4, size - begin - 4);
        }
        REQUIRE_OK(cr_fs_write_new(path, bytes, size));
        check_refused(path, message[i]);
        unlink(path);
    }
    cr_free(bytes);
}
