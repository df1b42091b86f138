/* The safetensors container: our writer and reader against the files of tests/tools/st.py, against every flaw of
 * tests/golden/safetensors/bad.txt, against missing memory, failing calls and full disks. */
#include "fsutil.h"
#include "json.h"
#include "safetensors.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GOLDEN CR_SOURCE_DIR "/tests/golden/safetensors/"
#define CORPUS CR_SOURCE_DIR "/tests/fuzz/corpus/fuzz_safetensors/"

static char folder[256]; /* of the running case */

static bool folder_open(void) {
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/cresnet-st-XXXXXX", base);
    return mkdtemp(folder) != NULL;
}

static void folder_close(void) { cr_fs_remove_tree(folder); }

static const char *in_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* ---- the demo of st.py ---- */

static const float    demo_a[6]  = {-1, -0.5f, 0, 0.5f, 1, 1.5f};
static const double   demo_b[2]  = {1.0 / 3, -1e300};
static const uint16_t demo_c[4]  = {0x3e00, 0xb400, 0x7bff, 0x0001};
static const uint16_t demo_d[4]  = {0x3f80, 0xc020, 0x4049, 0x006d};
static const uint8_t  demo_e[3]  = {0, 7, 255};
static const int32_t  demo_f[2]  = {-5, 2147483647};
static const int64_t  demo_g     = 123456789012;
static const float    demo_i[1]  = {42};
#define NAME_I "i \"\u00fc\\\u20ac\U0001f600"

static const struct demo {
    struct cr_st_entry entry;
    const void        *data;
} demo[] = {
    {{.name = NAME_I, .dtype = CR_F32, .dims = 1, .dim = {1}}, demo_i},
    {{.name = "e.u8", .dtype = CR_U8, .dims = 1, .dim = {3}}, demo_e},
    {{.name = "a.weight", .dtype = CR_F32, .dims = 2, .dim = {2, 3}}, demo_a},
    {{.name = "g.count", .dtype = CR_I64}, &demo_g},
    {{.name = "f.i32", .dtype = CR_I32, .dims = 1, .dim = {2}}, demo_f},
    {{.name = "d.bf16", .dtype = CR_BF16, .dims = 1, .dim = {4}}, demo_d},
    {{.name = "c.f16", .dtype = CR_F16, .dims = 1, .dim = {4}}, demo_c},
    {{.name = "b.f64", .dtype = CR_F64, .dims = 1, .dim = {2}}, demo_b},
    {{.name = "h.empty", .dtype = CR_F32, .dims = 2, .dim = {0, 5}}, NULL},
};
enum { DEMO = CR_COUNT(demo) };

/* Writes the demo with its entries turned by `turn` places. */
static cr_status write_demo(const char *path, size_t turn) {
    struct cr_st_entry      entries[DEMO];
    const struct cr_st_meta meta[2][3]  = {{{"format", "pt"}, {"b", ""}, {"answer", "forty \"two\""}},
                                           {{"b", ""}, {"answer", "forty \"two\""}, {"format", "pt"}}};
    struct cr_st_writer    *writer;
    for (size_t i = 0; i < DEMO; i++) entries[i] = demo[(i + turn) % DEMO].entry;
    CR_TRY(cr_st_create(path, entries, DEMO, meta[turn % 2], 3, &writer));
    for (int i = 0; i < DEMO; i++) {
        const struct demo *d     = &demo[((size_t)cr_st_writer_index(writer, i) + turn) % DEMO];
        size_t             bytes = (size_t)cr_st_writer_entry(writer, i)->bytes, half = bytes / 2;
        cr_status          status = cr_st_write(writer, d->data, half);
        if (status == CR_OK) status = cr_st_write(writer, d->data ? (const char *)d->data + half : NULL, bytes - half);
        if (status != CR_OK) {
            cr_st_abandon(writer);
            return status;
        }
    }
    CR_TRY(cr_st_finish(writer));
    return CR_OK;
}

static void check_demo(const char *path) {
    struct cr_st_file *file;
    REQUIRE_OK(cr_st_open(path, &file));
    CHECK_INT(cr_st_count(file), DEMO);
    for (size_t i = 0; i < DEMO; i++) {
        const struct cr_st_entry *want = &demo[i].entry, *got = cr_st_find(file, want->name);
        unsigned char             data[64] = {0};
        CHECK(got != NULL);
        if (!got) continue;
        CHECK_INT(got->dtype, want->dtype);
        CHECK_INT(got->dims, want->dims);
        for (int d = 0; d < want->dims; d++) CHECK_INT(got->dim[d], want->dim[d]);
        REQUIRE_OK(cr_st_read(file, got, 0, data, (size_t)got->bytes));
        CHECK(!got->bytes || !memcmp(data, demo[i].data, (size_t)got->bytes));
        if (got->bytes < 2) continue;
        REQUIRE_OK(cr_st_read(file, got, 1, data, (size_t)got->bytes - 1));
        CHECK(!memcmp(data, (const char *)demo[i].data + 1, (size_t)got->bytes - 1));
    }
    for (int i = 1; i < cr_st_count(file); i++)
        CHECK_INT(cr_st_at(file, i)->offset, cr_st_at(file, i - 1)->offset + cr_st_at(file, i - 1)->bytes);
    CHECK(cr_st_find(file, "a") == NULL);
    CHECK(cr_st_find(file, "__metadata__") == NULL);
    CHECK_STR(cr_st_meta_find(file, "answer"), "forty \"two\"");
    CHECK_STR(cr_st_meta_find(file, "b"), "");
    CHECK(cr_st_meta_find(file, "c") == NULL);
    cr_st_close(file);
}

static bool same_bytes(const char *path_a, const char *path_b) {
    char  *a = NULL, *b = NULL;
    size_t na = 0, nb = 1;
    bool   same = cr_file_read(path_a, 1 << 20, &a, &na) == CR_OK && cr_file_read(path_b, 1 << 20, &b, &nb) == CR_OK &&
                na == nb && !memcmp(a, b, na);
    cr_free(a);
    cr_free(b);
    return same;
}

static void reads_golden(void) { check_demo(GOLDEN "demo.safetensors"); }

/* Equal to the byte to the file of the independent writer, in whatever order the entries are given. */
static void writes_golden(void) {
    REQUIRE(folder_open());
    for (size_t turn = 0; turn < DEMO; turn++) {
        const char *path = in_folder("demo");
        REQUIRE_OK(write_demo(path, turn));
        CHECK(same_bytes(path, GOLDEN "demo.safetensors"));
        check_demo(path);
        unlink(path);
    }
    folder_close();
}

static void python_reads_ours(void) {
    char command[1024];
    if (system("/usr/bin/python3 -c 'import numpy' >/dev/null 2>&1")) SKIP("needs python3 with numpy");
    REQUIRE(folder_open());
    REQUIRE_OK(write_demo(in_folder("demo"), 3));
    snprintf(command, sizeof command, "/usr/bin/python3 -B %s/tests/tools/st.py verify-demo %s", CR_SOURCE_DIR,
             in_folder("demo"));
    CHECK_INT(system(command), 0);
    snprintf(command, sizeof command, "/usr/bin/python3 -B %s/tests/tools/st.py demo %s", CR_SOURCE_DIR, in_folder("theirs"));
    CHECK_INT(system(command), 0);
    check_demo(in_folder("theirs"));
    folder_close();
}

static void empty_file(void) {
    struct cr_st_writer *writer;
    struct cr_st_file   *file;
    REQUIRE(folder_open());
    REQUIRE_OK(cr_st_create(in_folder("empty"), NULL, 0, NULL, 0, &writer));
    REQUIRE_OK(cr_st_finish(writer));
    REQUIRE_OK(cr_st_open(in_folder("empty"), &file));
    CHECK_INT(cr_st_count(file), 0);
    CHECK(cr_st_find(file, "x") == NULL);
    CHECK(cr_st_meta_find(file, "x") == NULL);
    cr_st_close(file);
    folder_close();
}

/* Enough tensors to make the tables grow, and every escape. */
static void many_tensors(void) {
    enum { MANY = 3000 };
    static struct cr_st_entry entries[MANY];
    static char               names[MANY][24];
    struct cr_st_writer      *writer;
    struct cr_st_file        *file;
    REQUIRE(folder_open());
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "\t\x01\"\\/%d", i * 7919 % MANY);
        entries[i] = (struct cr_st_entry){.name = names[i], .dtype = CR_I64};
    }
    REQUIRE_OK(cr_st_create(in_folder("many"), entries, MANY, NULL, 0, &writer));
    for (int i = 0; i < MANY; i++) {
        int64_t value = atoi(strrchr(cr_st_writer_entry(writer, i)->name, '/') + 1);
        REQUIRE_OK(cr_st_write(writer, &value, 8));
    }
    REQUIRE_OK(cr_st_finish(writer));
    REQUIRE_OK(cr_st_open(in_folder("many"), &file));
    CHECK_INT(cr_st_count(file), MANY);
    for (int i = 0; i < MANY; i++) {
        const struct cr_st_entry *entry = cr_st_find(file, names[i]);
        int64_t                   value = -1;
        REQUIRE(entry != NULL);
        REQUIRE_OK(cr_st_read(file, entry, 0, &value, 8));
        CHECK_INT(value, i * 7919 % MANY);
    }
    cr_st_close(file);
    folder_close();
}

static cr_status write_raw(const char *path, const char *header, uint64_t header_bytes, size_t data_bytes) {
    char bytes[1024] = {0};
    memcpy(bytes, &header_bytes, 8);
    memcpy(bytes + 8, header, strlen(header));
    return cr_fs_write_new(path, bytes, 8 + strlen(header) + data_bytes);
}

/* Names as other writers may spell them. */
static void escapes_are_decoded(void) {
    static const char header[] = " {\"__metadata__\":{\"\\u0061\":\"\\u00e9\"},\n"
                                 "\"\\ud83d\\ude00\\u20ac\\u00E9\\b\\f\\n\\r\\t\\/\\\\\\\"\\u007f\""
                                 " : {\"shape\":[ ],\t\"data_offsets\":[0 , 8],\"dtype\":\"I64\"}}\r\n ";
    struct cr_st_file *file;
    REQUIRE(folder_open());
    REQUIRE_OK(write_raw(in_folder("x"), header + 1, sizeof header - 2, 8));
    REQUIRE_OK(cr_st_open(in_folder("x"), &file));
    CHECK_STR(cr_st_at(file, 0)->name, "\U0001f600\u20ac\u00e9\b\f\n\r\t/\\\"\x7f");
    CHECK_STR(cr_st_meta_find(file, "a"), "\u00e9");
    cr_st_close(file);
    folder_close();
}

/* ---- refusals ---- */

static void bad_files_are_refused(void) {
    char  *list = NULL, *save = NULL;
    int    count = 0;
    int64_t live = cr_alloc_live();
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
    CHECK(count >= 89);
    CHECK_INT(cr_alloc_live(), live);
}

/* Every prefix of a good file, and every good file with a byte more, is refused. */
static void every_cut_is_refused(void) {
    char  *bytes;
    size_t length;
    REQUIRE(folder_open());
    REQUIRE_OK(cr_file_read(GOLDEN "demo.safetensors", 1 << 20, &bytes, &length));
    for (size_t cut = 0; cut <= length + 1; cut++) {
        struct cr_st_file *file;
        const char        *path = in_folder("cut");
        if (cut == length) continue;
        REQUIRE_OK(cr_fs_write_new(path, bytes, cut)); /* length + 1: cr_file_read put a 0 there */
        CHECK_STATUS(cr_st_open(path, &file), CR_ERR_FORMAT);
        unlink(path);
    }
    cr_free(bytes);
    folder_close();
}

/* One byte of the header changed: opened or refused, but never a crash, and what opens has sound entries. */
static void every_flip_is_survived(void) {
    char  *bytes;
    size_t length;
    int    refused = 0, opened = 0;
    REQUIRE(folder_open());
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
    cr_free(bytes);
    folder_close();
}

static void things_that_are_no_files(void) {
    struct cr_st_file *file;
    REQUIRE(folder_open());
    CHECK_STATUS(cr_st_open(in_folder("none"), &file), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "No such file");
    CHECK_HAS(cr_error_message(), in_folder("none"));
    CHECK_STATUS(cr_st_open(folder, &file), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "is a folder");
    CHECK_STATUS(cr_st_open("/dev/null", &file), CR_ERR_IO);
    CHECK_INT(mkfifo(in_folder("pipe"), 0600), 0);
    CHECK_STATUS(cr_st_open(in_folder("pipe"), &file), CR_ERR_IO); /* and does not wait */
    folder_close();
}

/* A header above the format's limit is refused before memory is asked for; the file is a hole, so it costs no disk. */
static void header_beyond_the_limit(void) {
    struct cr_st_file *file;
    REQUIRE(folder_open());
    REQUIRE_OK(write_raw(in_folder("x"), "{", CR_ST_HEADER_MAX + 1, 0));
    CHECK_INT(truncate(in_folder("x"), CR_ST_HEADER_MAX + 100), 0);
    uint64_t calls = cr_alloc_calls();
    CHECK_STATUS(cr_st_open(in_folder("x"), &file), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "larger than the format allows");
    CHECK_INT(cr_alloc_calls() - calls, 2);
    folder_close();
}

static void file_shrinks_while_open(void) {
    struct cr_st_file *file;
    float              data[6];
    REQUIRE(folder_open());
    REQUIRE_OK(write_demo(in_folder("demo"), 0));
    REQUIRE_OK(cr_st_open(in_folder("demo"), &file));
    CHECK_INT(truncate(in_folder("demo"), 600), 0);
    CHECK_STATUS(cr_st_read(file, cr_st_find(file, "a.weight"), 0, data, sizeof data), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "became shorter");
    cr_st_close(file);
    folder_close();
}

/* ---- the writer's failures ---- */

static void writer_refuses(void) {
    struct cr_st_entry   entry = {.name = "a", .dtype = CR_F32, .dims = 1, .dim = {2}};
    struct cr_st_writer *writer;
    float                data[2] = {1, 2};
    REQUIRE(folder_open());
    const char *path = in_folder("x");
    /* too little */
    REQUIRE_OK(cr_st_create(path, &entry, 1, NULL, 0, &writer));
    REQUIRE_OK(cr_st_write(writer, data, 4));
    CHECK_STATUS(cr_st_create(path, &entry, 1, NULL, 0, &(struct cr_st_writer *){NULL}), CR_ERR_IO); /* is there already */
    CHECK_STATUS(cr_st_finish(writer), CR_ERR_FORMAT);
    CHECK(access(path, F_OK) < 0);
    /* names and values that no reader would take */
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
    folder_close();
}

static void memory_runs_out(void) {
    struct cr_st_file *file;
    int64_t            live = cr_alloc_live(), n;
    REQUIRE(folder_open());
    for (n = 1; n < 1000; n++) {
        cr_alloc_fail_at(n);
        cr_status status = write_demo(in_folder("demo"), 0);
        cr_alloc_fail_at(0);
        CHECK_INT(cr_alloc_live(), live);
        if (status == CR_OK) break;
        CHECK_INT(status, CR_ERR_MEMORY);
        CHECK(access(in_folder("demo"), F_OK) < 0);
    }
    CHECK(n > 4 && n < 1000);
    for (n = 1; n < 1000; n++) {
        cr_alloc_fail_at(n);
        cr_status status = cr_st_open(in_folder("demo"), &file);
        cr_alloc_fail_at(0);
        if (status == CR_OK) break;
        CHECK_INT(status, CR_ERR_MEMORY);
        CHECK_INT(cr_alloc_live(), live);
    }
    CHECK(n > 4 && n < 1000);
    if (n < 1000) cr_st_close(file);
    CHECK_INT(cr_alloc_live(), live);
    folder_close();
}

static void calls_fail(void) {
    int64_t live = cr_alloc_live();
    REQUIRE(folder_open());
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
        CHECK_INT(cr_alloc_live(), live);
    }
    folder_close();
}

static void write_big(const char *path, size_t bytes, cr_status want, const char *message) {
    struct cr_st_entry   entry = {.name = "a", .dtype = CR_U8, .dims = 1, .dim = {(int64_t)bytes}};
    struct cr_st_writer *writer;
    char                *data = cr_alloc(bytes, 1);
    REQUIRE(data != NULL);
    cr_status status = cr_st_create(path, &entry, 1, NULL, 0, &writer);
    if (status == CR_OK) {
        status = cr_st_write(writer, data, bytes / 2);
        if (status == CR_OK) status = cr_st_write(writer, data + bytes / 2, bytes - bytes / 2);
        if (status == CR_OK) status = cr_st_finish(writer);
        else cr_st_abandon(writer);
    }
    CHECK_INT(status, want);
    CHECK_HAS(cr_error_message(), message);
    CHECK_HAS(cr_error_message(), path);
    CHECK(access(path, F_OK) < 0);
    cr_free(data);
}

static void disk_is_full(void) {
    REQUIRE(folder_open());
    if (mount("none", folder, "tmpfs", 0, "size=1m") < 0) {
        folder_close();
        SKIP("needs the right to mount a tmpfs");
    }
    write_big(in_folder("big"), 3 << 20, CR_ERR_IO, "disk full: 2097");
    write_big(in_folder("big"), 3 << 20, CR_ERR_IO, "bytes (2.0 MiB) could not be written");
    umount(folder);
    folder_close();
}

static void file_size_limit(void) {
    REQUIRE(folder_open());
    struct rlimit old, small;
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &old), 0);
    small          = old;
    small.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
    write_big(in_folder("big"), 3 << 20, CR_ERR_IO, "file size limit reached: 2097");
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    folder_close();
}

/* ---- small helpers ---- */

static void quoted_names(void) {
    char out[20];
    cr_json_quote(out, sizeof out, "a\"b\x1b");
    CHECK_STR(out, "\"a\\\"b\\u001b\"");
    cr_json_quote(out, sizeof out, "0123456789abcdef");
    CHECK_STR(out, "\"012345...\"");
    cr_json_quote(out, sizeof out, "01234\u00fc\u00fc\u00fc");
    CHECK(cr_utf8_valid(out, strlen(out)));
    CHECK_HAS(out, "...");
}

static void shapes_as_text(void) {
    char out[CR_ST_SHAPE_TEXT];
    cr_st_shape_text(out, 0, NULL);
    CHECK_STR(out, "[]");
    cr_st_shape_text(out, 4, (int64_t[]){64, 3, 7, 7});
    CHECK_STR(out, "[64, 3, 7, 7]");
    int64_t large = INT64_MAX;
    cr_st_shape_text(out, 8, (int64_t[]){large, large, large, large, large, large, large, large});
    CHECK_INT(strlen(out), 8 * 19 + 7 * 2 + 2);
}

/* ---- real weights ---- */

static void read_real(const char *name, int tensors, int64_t trainable) {
    char               path[1024], layer[64];
    struct cr_st_file *file;
    int64_t            values = 0;
    snprintf(path, sizeof path, "%s/resnet-cifar10-weights/%s", test_data_dir(), name);
    REQUIRE_OK(cr_st_open(path, &file));
    CHECK_INT(cr_st_count(file), tensors);
    for (int i = 0; i < cr_st_count(file); i++) {
        const struct cr_st_entry *entry = cr_st_at(file, i);
        CHECK_INT(entry->dtype, CR_F32);
        if (!strstr(entry->name, "running_")) values += (int64_t)(entry->bytes / 4);
    }
    CHECK_INT(values, trainable);
    CHECK_STR(cr_st_meta_find(file, "format"), "pt");
    for (int stage = 1; stage <= 3; stage++)
        for (int conv = 1; conv <= 2; conv++) {
            snprintf(layer, sizeof layer, "layer%d.0.conv%d.weight", stage, conv);
            const struct cr_st_entry *entry = cr_st_find(file, layer);
            REQUIRE(entry && entry->dims == 4);
            CHECK_INT(entry->dim[0], 8 << stage);
            CHECK_INT(entry->dim[1], conv == 1 && stage > 1 ? 4 << stage : 8 << stage);
            CHECK_INT(entry->dim[2] * 10 + entry->dim[3], 33);
        }
    const struct cr_st_entry *linear = cr_st_find(file, "linear.weight");
    REQUIRE(linear && linear->dims == 2);
    CHECK_INT(linear->dim[0] * 100 + linear->dim[1], 1064);
    float variance[16];
    REQUIRE_OK(cr_st_read(file, cr_st_find(file, "bn1.running_var"), 0, variance, sizeof variance));
    for (int i = 0; i < 16; i++) CHECK(variance[i] > 0 && variance[i] < 100);
    cr_st_close(file);
}

static void real_weights(void) {
    if (!test_data_dir()) SKIP("CRESNET_TEST_DATA is not set");
    read_real("resnet20-cifar10.safetensors", 97, 269722);
    read_real("resnet32-cifar10.safetensors", 157, 464154);
}

TESTS(CASE(reads_golden), CASE(writes_golden), CASE(python_reads_ours), CASE(empty_file), CASE(many_tensors),
      CASE(escapes_are_decoded), CASE(bad_files_are_refused), CASE(every_cut_is_refused), CASE(every_flip_is_survived), CASE(things_that_are_no_files),
      CASE(header_beyond_the_limit),
      CASE(file_shrinks_while_open), CASE(writer_refuses), CASE(memory_runs_out), CASE(calls_fail), CASE(disk_is_full),
      CASE(file_size_limit), CASE(quoted_names), CASE(shapes_as_text), CASE(real_weights))
