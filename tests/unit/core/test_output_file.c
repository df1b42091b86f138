/* tests/unit/core/test_output_file.c: which names may be written: new, own, foreign and empty files, links, devices,
 * pipes, folders. Every kind is recognised by its first bytes, and by nothing shorter; arrays and lists of names, which
 * other programs write with the same beginning, are not recognised. */
#include "core/output_file.h"
#include "tests/harness/folder.h"

#include <fcntl.h>

static void put(const char *path, const void *bytes, size_t count) {
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, count, f) == count);
    if (f) fclose(f);
}

static cr_status find(const char *path, enum cr_output_kind kind, unsigned flags, struct cr_output_file *file) {
    cr_error_clear();
    return cr_output_file_find(path, kind, flags, file);
}

/* The shortest content of each kind. */
#define BYTES(text) text, sizeof(text) - 1
static const struct {
    const char *bytes;
    size_t      count;
} starts[CR_OUTPUT_KINDS] = {
    [CR_OUTPUT_SAFETENSORS] = {BYTES("01234567{\"__metadata__\":{\"" CR_OUTPUT_EXPORT_KEY "\":")},
    [CR_OUTPUT_ONNX]        = {BYTES("\x08\x08\x12\x07" CR_OUTPUT_PRODUCER)},
    [CR_OUTPUT_CONFUSION]   = {BYTES(CR_OUTPUT_CSV_START ",")},
    [CR_OUTPUT_PREDICTIONS] = {BYTES(CR_OUTPUT_PREDICTIONS_START ",")},
    [CR_OUTPUT_REPORT]      = {BYTES("<!DOCTYPE html>\nname=\"generator\" content=\"cresnet ")},
    [CR_OUTPUT_POOL_SVG]    = {BYTES(CR_OUTPUT_POOL_SVG_START)},
    [CR_OUTPUT_EXPLAIN_PNG] = {BYTES(
        "\x89PNG\r\n\x1a\n.........................1234tEXtSoftware\0" CR_OUTPUT_EXPLAIN_SOFTWARE)},
    [CR_OUTPUT_SHOW_PNG]    = {BYTES(
           "\x89PNG\r\n\x1a\n.........................1234tEXtSoftware\0" CR_OUTPUT_SHOW_SOFTWARE)},
    [CR_OUTPUT_EXPLAIN_CSV] = {BYTES(CR_OUTPUT_EXPLAIN_START ",")},
    [CR_OUTPUT_PACK]        = {BYTES("\x89"
                                            "CRPK\r\n\x1a")},
};

TEST(each_kind_is_recognised) {
    struct cr_output_file file;
    folder_open();
    const char *path = in_folder("x");
    for (int kind = 0; kind < CR_OUTPUT_KINDS; kind++) {
        for (int content = 0; content < CR_OUTPUT_KINDS; content++) {
            if (!starts[content].bytes) continue;
            put(path, starts[content].bytes, starts[content].count);
            CHECK_STATUS(find(path, (enum cr_output_kind)kind, 0, &file), kind == content ? CR_OK : CR_ERR_CONFIG);
        }
        for (size_t count = 1; count < starts[kind].count; count++) {
            put(path, starts[kind].bytes, count);
            CHECK_STATUS(find(path, (enum cr_output_kind)kind, 0, &file), CR_ERR_CONFIG);
        }
        put(path, "", 0);
        CHECK_STATUS(find(path, (enum cr_output_kind)kind, 0, &file), CR_OK);
    }
}

TEST(names_of_descriptors) {
    static const struct {
        const char *name;
        int         fd;
    } names[] = {{"/dev/stdout", 1},      {"/dev/stderr", 2}, {"/dev/fd/7", 7},   {"/proc/self/fd/12", 12},
                 {"/dev/fd/9999999", -1}, {"/dev/fd/", -1},   {"/dev/fd/-1", -1}, {"/dev/fd/1x", -1}};
    struct cr_output_file file;
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        file.fd = -2;
        if (find(names[i].name, CR_OUTPUT_ONNX, 0, &file) == CR_OK)
            CHECK_INT(file.fd, names[i].fd);
        else
            CHECK_INT(names[i].fd, -1);
    }
    REQUIRE_OK(find("/dev/fd/999999", CR_OUTPUT_ONNX, 0, &file));
    CHECK_STATUS(cr_output_file_write(&file, "new", 3), CR_ERR_IO); /* not open */
}

TEST(other_names_are_errors) {
    struct cr_output_file file;
    char                  path[CR_PATH_MAX + 8];
    folder_open();
    CHECK_STATUS(find("", CR_OUTPUT_ONNX, 0, &file), CR_ERR_CONFIG);
    CHECK_STATUS(find(tmp_path, CR_OUTPUT_ONNX, CR_OUTPUT_FORCE, &file), CR_ERR_IO);
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;
    CHECK_STATUS(find(path, CR_OUTPUT_ONNX, 0, &file), CR_ERR_IO);
    REQUIRE_OK(find(in_folder("missing/x"), CR_OUTPUT_ONNX, 0, &file)); /* found out when it is written */
    CHECK_STATUS(cr_output_file_write(&file, "new", 3), CR_ERR_IO);
}
